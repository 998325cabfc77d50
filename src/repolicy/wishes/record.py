"""A record of who did what, step by step, and what each step says of the person's wish."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from repolicy.envs import Features
from repolicy.errors import FileError, UsageError, check_counts
from repolicy.loading import read_bytes
from repolicy.policies.storage import check_shape, write_bytes
from repolicy.readers.demonstrations import read_npz

MOST_TOGETHER, FEWEST_GROUPS = 16, 8  # windows of a group, at most; and groups, at least
FORMAT = 1
HEADER = {"record": int, "env": str, "policy": str, "sizes": [int]}
LINE = {
    "episode": int, "time": float, "observation": [float], "action": [float], "proposed": [float], "next": [float],
    "person": bool,
}  # fmt: skip


class Step(NamedTuple):
    """One step, as it is recorded."""

    episode: int
    time: float  # seconds of the episode
    observation: np.ndarray  # [O]
    action: np.ndarray  # [A] what was done, in the environment's own numbers
    proposed: np.ndarray  # [A] what the policy would have done
    next: np.ndarray  # [O]
    person: bool  # whether a person acted


@dataclass(frozen=True)
class Record:
    """N steps of whole or cut episodes, in arrays `[N, ...]`."""

    env: str
    policy: str  # the fingerprint of who proposed
    episode: np.ndarray
    time: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    proposed: np.ndarray
    next: np.ndarray
    person: np.ndarray

    @classmethod
    def of(cls, steps: Iterable[Step], env: str, policy: str = "") -> Self:
        """Return a record of steps from anywhere."""
        rows = [*steps]
        if not rows:
            raise UsageError("the record has no steps: record an episode first")
        kinds = {"episode": np.int64, "time": np.float64, "person": np.bool_}
        try:
            arrays: list[Any] = [
                np.array([getattr(row, name) for row in rows], kinds.get(name, np.float32)) for name in Step._fields
            ]
        except ValueError:
            raise UsageError("the record's steps differ in how many numbers they have") from None
        for place, name in enumerate(Step._fields):
            if name not in kinds:  # a number alone is a row of one
                arrays[place] = arrays[place].reshape(len(rows), -1)
        return cls(env, policy, *arrays)

    @classmethod
    def read(cls, path: Path, env: str = "") -> Self:
        """Return what `takeover` wrote; or NumPy's .npz, or LeRobot's .parquet, both of which tell no environment."""
        if path.suffix == ".npz":
            needed = ("observation", "action", "next", "person", "episode")
            return cls._given(read_npz(path, needed, ("proposed", "time")), path, env)
        if path.suffix == ".parquet":
            return cls._lerobot(path, env)
        lines, dropped, steps = read_bytes(path).decode(errors="replace").splitlines(), set[int](), list[Step]()
        header = _line(lines[0] if lines else "", f"{path}, line 1")
        check_shape(header, HEADER, f"{path} is no record of take-overs: its first line")
        if (format := header["record"]) > FORMAT:
            raise FileError(f"{path} has format {format}; this version reads up to {FORMAT}: upgrade repolicy")
        if env not in ("", header["env"]):
            raise UsageError(f"{path} is a record of {header['env']}, not of {env}")
        for number, text in enumerate(lines[1:], 2):
            if number == len(lines) and not text.endswith("}"):
                break  # the machine stopped while it was written
            line = _line(text, f"{path}, line {number}")
            if "dropped" in line:
                dropped.add(line["dropped"])
                continue
            check_shape(line, LINE, f"{path}, line {number}")
            steps.append(Step(**{name: line[name] for name in Step._fields}))
        return cls.of((step for step in steps if step.episode not in dropped), header["env"], header["policy"])

    @classmethod
    def _lerobot(cls, path: Path, env: str) -> Self:
        """Read a parquet file of LeRobot's datasets: a frame's next observation is that of the frame behind it."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise UsageError(f"{path} is parquet, which needs pyarrow: pip install pyarrow") from None
        try:
            table = parquet.read_table(path)
            columns = {name: table[name].to_pylist() for name in table.column_names}
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}") from None
        ours = {"observation.state": "observation", "episode_index": "episode", "timestamp": "time"}
        arrays: dict[str, Any] = {ours.get(name, name): values for name, values in columns.items()}
        who = next((name for name in arrays if name.rpartition(".")[2] in ("intervention", "is_intervention")), "")
        if who:
            arrays["person"] = np.ravel(arrays[who]).tolist()
        if not {"observation", "action", "episode", "person"} <= arrays.keys():
            raise FileError(f"{path} has no observation.state, action, episode_index and intervention")
        episodes = np.array(arrays["episode"])
        kept = np.flatnonzero(episodes[1:] == episodes[:-1])
        names = [name for name in ("observation", "action", "episode", "person", "time") if name in arrays]
        steps: dict[str, Any] = {name: np.array(arrays[name])[kept] for name in names}
        steps["next"] = np.array(arrays["observation"])[kept + 1]
        return cls._given(steps, path, env)

    @classmethod
    def _given(cls, arrays: dict[str, np.ndarray], path: Path, env: str) -> Self:
        arrays = {"proposed": arrays["action"], "time": np.arange(np.size(arrays["person"]))} | arrays
        if not env:
            raise UsageError(f"{path} does not say which environment it is of: name it with --env")
        if len(lengths := {np.shape(arrays[name])[:1] for name in Step._fields}) > 1 or () in lengths:
            raise FileError(f"{path} has arrays of several lengths")
        rows = zip(*(arrays[name] for name in Step._fields), strict=True)
        return cls.of((Step(*row) for row in rows), env)

    @property
    def rate(self) -> float:
        """The share of steps in which the person acted."""
        return float(self.person.mean())

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


def _line(text: str, where: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FileError(f"{where} is no line of a record of take-overs")
    return found


class RecordFile:
    """A record as it is written: a line a step, flushed at once, so that whoever stops loses nothing."""

    def __init__(self, path: Path, env: str, policy: str, sizes: tuple[int, int], resume: bool = False) -> None:
        self.path, self.episode, self.steps = path, 0, 0  # the present episode, and how many steps count
        header = {"record": FORMAT, "env": env, "policy": policy, "sizes": list(sizes)}
        if path.exists() and path.stat().st_size:
            if not resume:
                go_on = "add --resume to go on with it, or " if path.is_file() else ""
                raise UsageError(f"{path} is there already: {go_on}name another --out")
            lines = read_bytes(path).decode(errors="replace").splitlines()
            if _line(lines[0], f"{path}, line 1") != header:
                raise UsageError(f"{path} is the record of another policy or environment: name another --out")
            whole = [line for line in lines[1:] if line.endswith("}")]
            if len(whole) < len(lines) - 1:  # the machine stopped while a line was written
                write_bytes(path, "".join(f"{line}\n" for line in [lines[0], *whole]).encode())
            kept = [_line(line, str(path)) for line in whole]
            dropped = {line["dropped"] for line in kept if "dropped" in line}
            told = [line.get("episode", -1) for line in kept if "dropped" not in line]
            self.episode = 1 + max(told, default=-1)
            self.steps = sum(episode not in dropped for episode in told)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._of_episode, self._header = 0, header
        self._file = path.open("a")

    def add(self, step: Step) -> None:
        """Write a step."""
        self._of_episode = self._of_episode + 1 if step.episode == self.episode else 1
        self.episode, self.steps = step.episode, self.steps + 1
        names = ("observation", "action", "proposed", "next")
        numbers = {name: np.ravel(getattr(step, name)).astype(float).tolist() for name in names}
        self._write({"episode": step.episode, "time": float(step.time), **numbers, "person": bool(step.person)})

    def drop(self, episode: int) -> None:
        """Note that an episode counts for nothing."""
        self.steps -= self._of_episode
        self._write({"dropped": episode})

    def _write(self, values: dict[str, Any]) -> None:
        if not self._file.tell():  # who fails before the first step leaves nothing in the way
            self._file.write(json.dumps(self._header) + "\n")
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Labels:
    """The rule by which steps count. Its three numbers."""

    before: int = 10
    """So many steps before a take-over are bad: they led to it, and count for nothing."""
    settle: int = 0
    """So many steps after a take-over count for nothing: the person is still leaving a bad state."""
    passed: float = 1.0
    """What a step that the person let pass weighs beside one of their own."""

    def __post_init__(self) -> None:
        check_counts(0, before=self.before, settle=self.settle)
        if not 0.0 <= self.passed < np.inf:
            raise UsageError(f"passed is {self.passed}; it must be 0 or more")

    def weights(self, record: Record) -> np.ndarray:
        """Return what each step weighs `[N]`: 1 the person's, `passed` the policy's own, 0 bad or settling."""
        found = np.where(record.person, 1.0, self.passed)
        same = record.episode[1:] == record.episode[:-1]
        for start in np.flatnonzero(same & record.person[1:] & ~record.person[:-1]) + 1:
            first = max(start - self.before, int(np.flatnonzero(record.episode == record.episode[start])[0]))
            found[first:start] = np.where(record.person[first:start], found[first:start], 0.0)
            behind = slice(start, start + self.settle)
            settles = record.person[behind] & (record.episode[behind] == record.episode[start])
            found[behind] = np.where(settles, 0.0, found[behind])
        return found


class Windows(NamedTuple):
    """M stretches of a record's steps, as long as each other."""

    sums: np.ndarray  # [M, K] of the features of their steps
    weights: np.ndarray  # [M]
    firsts: np.ndarray  # [M] the first step of each, by its place in the record
    groups: np.ndarray  # [M] numbers, the same for some in a row of one episode


def windows(record: Record, features: Features, length: int, weights: np.ndarray) -> Windows:
    """Return windows of so many steps, one behind the other, by what each step of the record weighs `[N]`.

    A window lies in one episode, and weighs what its first step does. Each of its steps counts, or the first is the
    person's, and the policy may go on within it: what it makes of their step is what the step was worth. So the mean
    over the windows that a person began, less what the policy has from there, is the slope of their steps' likelihood.
    """
    values = features(record.observation, record.action, record.next, {})
    starts, places = list[int](), list[int]()  # of each its first step, and its place in its episode
    breaks = np.flatnonzero(record.episode[1:] != record.episode[:-1]) + 1
    for episode in np.split(np.arange(len(weights)), breaks):
        first, before = int(episode[0]), len(starts)
        while first + length <= episode[-1] + 1:
            counts = weights[first : first + length] > 0
            if counts.all() or (counts[0] and record.person[first]):
                places.append(len(starts) - before)
                starts.append(first)
                first += length
            else:
                first += 1
    firsts = np.array(starts, int)
    together = max(1, min(MOST_TOGETHER, len(starts) // FEWEST_GROUPS))
    groups = np.cumsum(np.array(places, int) % together == 0)
    return Windows(values[firsts[:, None] + np.arange(length)].sum(1), weights[firsts], firsts, groups)
