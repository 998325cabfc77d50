"""Records of take-overs: every step, and whether the person or the policy acted; and how steps are weighted."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from repolicy.addons import Features, are_same_env
from repolicy.errors import FileError, UsageError, check_counts
from repolicy.files import check_shape, read_bytes, write_bytes
from repolicy.readers.demonstrations import read_npz

MAX_GROUP_SIZE, MIN_GROUPS = 16, 8  # windows per group, and number of groups
FORMAT = 1
HEADER = {"record": int, "env": str, "policy": str, "sizes": [int]}
LINE = {
    "episode": int, "observation": [float], "action": [float], "proposed?": [float], "next": [float], "person": bool,
}  # fmt: skip
ROWS = ("observation", "action", "next")  # the fields of a record that are rows of numbers
COLUMNS = ("episode", *ROWS, "person")


class Step(NamedTuple):
    """One recorded step."""

    episode: int
    observation: np.ndarray  # [O]
    action: np.ndarray  # [A] the action taken, as the environment takes it
    proposed: np.ndarray  # [A] the policy's action
    next: np.ndarray  # [O]
    person: bool  # whether a person acted


@dataclass(frozen=True)
class Record:
    """N steps of complete or truncated episodes, as arrays `[N, ...]` with the names of `Step`'s fields."""

    env: str
    policy: str  # fingerprint of the policy that proposed the actions
    episode: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    next: np.ndarray
    person: np.ndarray

    @classmethod
    def of(cls, columns: dict[str, Any], env: str, policy: str = "") -> Self:
        """Return a record from any source, given the values of all steps for each of `COLUMNS`."""
        steps = len(columns["episode"])
        if not steps:
            raise UsageError("the record has no steps: record an episode first")
        kinds: dict[str, Any] = {"episode": np.int64, "person": np.bool_}
        try:
            acted = np.asarray(columns["person"])
            if acted.dtype.kind not in "biuf" or np.isnan(acted).any():  # "no" and NaN would be true
                raise UsageError("the record's person is not true or false in each step: write 1 and 0")
            arrays: dict[str, Any] = {name: np.array(columns[name], kinds[name]).reshape(steps) for name in kinds}
            for name in ROWS:  # a scalar becomes a row of one number
                arrays[name] = np.array(columns[name], np.float32).reshape(steps, -1)
        except ValueError:
            raise UsageError("the record's steps differ in how many numbers they have") from None
        if not np.isfinite(arrays["observation"]).all():
            raise UsageError("the record has an observation that is no finite number: leave its episode out")
        return cls(env, policy, **arrays)

    @classmethod
    def read(cls, path: str | Path, env: str = "") -> Self:
        """Read the file of a take-over, NumPy's .npz or LeRobot's .parquet. For the latter two `env` must be named."""
        path = Path(path)
        if path.suffix == ".npz":
            return cls._from_arrays(read_npz(path, COLUMNS), path, env)
        if path.suffix == ".parquet":
            return cls._read_lerobot(path, env)
        header, *lines = _read_lines(path)
        check_shape(header, HEADER, f"{path} is no record of take-overs: its first line")
        if (format := header["record"]) > FORMAT:
            raise FileError(f"{path} has format {format}; this version reads up to {FORMAT}: upgrade repolicy")
        if env and not are_same_env(env, header["env"]):
            raise UsageError(f"{path} is a record of {header['env']}, not of {env}")
        for number, line in enumerate(lines, 2):
            check_shape(line, {"dropped": int} if "dropped" in line else LINE, f"{path}, line {number}")
        steps = _kept_steps(lines)
        columns = {name: [step[name] for step in steps] for name in COLUMNS}
        return cls.of(columns, env or header["env"], header["policy"])

    @classmethod
    def _read_lerobot(cls, path: Path, env: str) -> Self:
        """Read a parquet file of LeRobot's datasets. The next observation of a frame is that of the following frame."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise UsageError(f"{path} is parquet, which needs pyarrow: pip install pyarrow") from None
        ours = {"observation.state": "observation", "action": "action", "episode_index": "episode"}
        try:
            table = parquet.read_table(path)
            flags = [name for name in table.column_names if re.search(r"(^|\.)(is_)?intervention$", name)]
            ours |= dict.fromkeys(flags, "person")
            arrays = {ours[name]: np.array(table[name].to_pylist()) for name in table.column_names if name in ours}
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}") from None
        if not {"observation", "action", "episode", "person"} <= arrays.keys():
            raise FileError(f"{path} has no observation.state, action, episode_index and intervention")
        has_next = np.flatnonzero(arrays["episode"][1:] == arrays["episode"][:-1])
        steps = {name: values[has_next] for name, values in arrays.items()}
        steps["next"] = arrays["observation"][has_next + 1]
        return cls._from_arrays(steps, path, env)

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray], path: Path, env: str) -> Self:
        if not env:
            raise UsageError(f"{path} does not say which environment it is of: name it with --env")
        lengths = {np.shape(arrays[name])[:1] for name in COLUMNS}
        if len(lengths) > 1 or () in lengths:
            raise FileError(f"{path} has arrays of several lengths")
        return cls.of(arrays, env)

    @property
    def rate(self) -> float:
        """The share of steps in which the person acted."""
        return float(self.person.mean())

    @property
    def rate_error(self) -> float:
        """The standard error of the share, where chance begins and ends take-overs; large if they are few and long."""
        goes_on = np.append(False, (self.episode[1:] == self.episode[:-1]) & self.person[:-1])
        lengths = np.bincount(np.cumsum(~goes_on)[self.person])
        return float(np.sqrt(np.sum(np.square(lengths)))) / len(self.person) * (1.0 - self.rate)

    @classmethod
    def joined(cls, records: "list[Record]") -> "Record":
        """Return several records of one environment as one."""
        if len({(each.env, each.observation.shape[1:], each.action.shape[1:]) for each in records}) > 1:
            raise UsageError("the records are of several environments: learn from those of one")
        arrays: dict[str, np.ndarray] = {
            each.name: np.concatenate([getattr(record, each.name) for record in records])
            for each in fields(cls) if each.name not in ("env", "policy", "episode")
        }  # fmt: skip
        firsts = np.cumsum([0, *(int(record.episode.max()) + 1 for record in records[:-1])])
        episode = np.concatenate([record.episode + first for record, first in zip(records, firsts, strict=True)])
        return Record(records[-1].env, records[-1].policy, episode=episode, **arrays)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the header and all further lines of a record's file, without a last one that was cut short."""
    texts, lines = read_bytes(path).decode(errors="replace").splitlines(), list[Any]()
    if len(texts) > 1 and not texts[-1].endswith("}"):
        texts.pop()  # the process was killed while it wrote this line
    for number, text in enumerate(texts or [""], 1):
        try:
            lines.append(json.loads(text))
        except (ValueError, RecursionError):
            lines.append(None)
        if not isinstance(lines[-1], dict):
            raise FileError(f"{path}, line {number} is no line of a record of take-overs")
    return lines


def _kept_steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines that are steps of episodes that were not dropped."""
    dropped = [line["dropped"] for line in lines if "dropped" in line]
    return [line for line in lines if "dropped" not in line and line.get("episode") not in dropped]


class RecordFile:
    """Writes a record, one line per step. Each line is flushed at once, so that an interruption loses nothing."""

    def __init__(self, path: str | Path, env: str, policy: str, sizes: tuple[int, int], resume: bool = False) -> None:
        path = Path(path)
        self.path, self.episode, self.steps = path, 0, 0  # the current episode, and the steps without dropped ones
        header = {"record": FORMAT, "env": env, "policy": policy, "sizes": list(sizes)}
        if path.exists() and path.stat().st_size:
            if not resume:
                raise UsageError(f"{path} is there already: add --resume to go on with it, or name another --out")
            recorded, *lines = _read_lines(path)
            if recorded != header:
                raise UsageError(f"{path} is the record of another policy or environment: name another --out")
            if not read_bytes(path).endswith(b"\n"):
                write_bytes(path, "".join(json.dumps(line) + "\n" for line in (header, *lines)).encode())
            self.episode = 1 + max((line.get("episode", -1) for line in lines), default=-1)
            self.steps = len(_kept_steps(lines))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._episode_steps, self._header = 0, header
        self._file = path.open("a")

    def add(self, step: Step) -> None:
        """Write a step."""
        self._episode_steps = self._episode_steps + 1 if step.episode == self.episode else 1
        self.episode, self.steps = step.episode, self.steps + 1
        numbers = {name: np.ravel(getattr(step, name)).astype(float).tolist() for name in (*ROWS, "proposed")}
        self._write({"episode": step.episode, **numbers, "person": bool(step.person)})

    def drop(self, episode: int) -> None:
        """Mark an episode as dropped, so that its steps do not count."""
        self.steps -= self._episode_steps
        self._write({"dropped": episode})

    def _write(self, values: dict[str, Any]) -> None:
        if not self._file.tell():  # the header is written late: without a step the file stays empty
            self._file.write(json.dumps(self._header) + "\n")
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Labels:
    """The rule that gives each recorded step its weight."""

    before: int = 10
    """The policy's steps before a take-over that get weight 0, because they led to it."""
    passed: float = 1.0
    """The weight of a policy's step that the person allowed, relative to 1 for a person's step."""

    def __post_init__(self) -> None:
        check_counts(0, before=self.before)
        if not 0.0 <= self.passed < np.inf:
            raise UsageError(f"passed is {self.passed}; it must be 0 or more")

    def weights(self, record: Record) -> np.ndarray:
        """Return the weight of each step `[N]`."""
        weights = np.where(record.person, 1.0, self.passed)
        same = record.episode[1:] == record.episode[:-1]
        goes_on = np.append(False, same & record.person[:-1])  # the person acted in the step before, too
        for start in np.flatnonzero(record.person & ~goes_on):
            led = slice(max(start - self.before, 0), start)
            weights[led][(record.episode[led] == record.episode[start]) & ~record.person[led]] = 0.0
        return weights


class Windows(NamedTuple):
    """M stretches of consecutive steps of a record, all of the same length."""

    sums: np.ndarray  # [M, K] sums of features over the steps of each window
    weights: np.ndarray  # [M]
    firsts: np.ndarray  # [M] index in the record of each window's first step
    groups: np.ndarray  # [M] group numbers: of episodes or, where these are few, of neighboring windows of one


def windows(record: Record, features: Features, length: int, weights: np.ndarray) -> Windows:
    """Return successive windows of `length` steps, given the weight of each step of the record `[N]`.

    A window lies within one episode and has the weight of its first step. Either all its steps have weight, or its
    first step is the person's. In the latter case the policy may act in the rest: its outcome shows what the person's
    step was worth. So the mean over windows that the person began, minus the policy's expected features from the same
    states, is the gradient of the person's likelihood.
    """
    values = features(record.observation, record.action, record.next, {})
    starts, numbers = list[int](), list[int]()  # the first step of each window, and its number within its episode
    has_weight = weights > 0
    weighted = np.append(0, np.cumsum(has_weight))  # steps with weight before each step
    breaks = np.flatnonzero(record.episode[1:] != record.episode[:-1]) + 1
    for episode in np.split(np.arange(len(weights)), breaks):
        begins = episode[: max(0, len(episode) - length + 1)]  # where a window fits
        is_whole = weighted[begins + length] - weighted[begins] == length
        free, before = 0, len(starts)  # the first step after the last window
        for first in begins[is_whole | (has_weight[begins] & record.person[begins])].tolist():
            if first >= free:
                numbers.append(len(starts) - before)
                starts.append(first)
                free = first + length
    firsts = np.array(starts, int)
    groups = record.episode[firsts]  # an episode may differ from the others as long as it lasts
    if len(np.unique(groups)) < MIN_GROUPS:
        group_size = max(1, min(MAX_GROUP_SIZE, len(starts) // MIN_GROUPS))
        groups = np.cumsum(np.array(numbers, int) % group_size == 0)
    return Windows(values[firsts[:, None] + np.arange(length)].sum(1), weights[firsts], firsts, groups)
