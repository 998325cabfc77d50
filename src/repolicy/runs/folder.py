"""A run's folder: its request, its metrics, its last checkpoints, its policies."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from repolicy.errors import FileError, UsageError
from repolicy.files import (
    check_shape,
    check_writable,
    file_sum,
    read_bytes,
    read_json,
    replace_nonfinite,
    write_bytes,
    write_json,
)
from repolicy.policies import OBJECTIVE_SHAPE, read_card
from repolicy.policies.storage import FORMAT, read, write
from repolicy.runs.request import Request


class RunFolder:
    """The files of a run: enough to resume, plot, render and repeat it.

    run.json               the request, and the versions of the software
    metrics.jsonl          one line for each iteration
    checkpoints/           the ends of the last two segments
    policy.safetensors     the run's result: the last policy, or at the end a clearly better earlier one
    last.safetensors       the last policy, if the result is an earlier one
    prior.safetensors      a copy of the prior, if there is one
    init.safetensors       a copy of the initial actor, if it is not the prior
    trial.safetensors      some steps, by which a resumed run checks that what it runs is unchanged
    """

    def __init__(self, path: str | Path, *kinds: type[Request]) -> None:
        self._kinds = {kind.method: kind for kind in kinds or (Request,)}
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.policy = self.path / "policy.safetensors"
        self.replaced = self.path / "last.safetensors"
        self.prior = self.path / "prior.safetensors"
        self.init = self.path / "init.safetensors"
        self.trial = self.path / "trial.safetensors"
        self._checkpoints = self.path / "checkpoints"
        self._header: dict[str, Any] = {}  # request and versions; empty until `begin`
        self._copies: list[Path] = []  # those that `begin` wrote; others may be the user's own files

    @property
    def last_policy(self) -> Path:
        """The file of the policy at the end of the last segment, whether or not it is the run's result."""
        return self.replaced if self.replaced.exists() else self.policy

    def request(self) -> Request | None:
        """Return the request of the run in this folder, or None if there is no run."""
        path = self.path / "run.json"
        if not os.path.lexists(path):
            return None
        header = read_json(path)
        check_shape(header, {"request": REQUEST_SHAPE}, f"{path} cannot be used: its header")
        return self._parse_request(header["request"], path)

    def load_request(self) -> Request:
        """Return the request of the run in this folder; raise if there is no run."""
        if (request := self.request()) is None:
            raise FileError(f"{self.path} holds no run: it has no run.json")
        return request

    def _parse_request(self, request: dict[str, Any], path: Path) -> Request:
        """Return the request in a file, with defaults for settings that are newer than the file."""
        method = request.get("method", "")
        if method not in self._kinds:
            method = method or "Residual PPO"
            raise FileError(f"{path} cannot be used here: it is a run of {method}; name another folder")
        try:
            return self._kinds[method].from_dict(request)
        except (UsageError, TypeError, ValueError) as error:
            raise FileError(f"{path} cannot be used: {error}") from None

    def begin(
        self,
        request: Request,
        versions: dict[str, str],
        resume: bool,
        prior: bytes | None = None,
        init: bytes | None = None,
    ) -> list[str]:
        """Claim the folder for this request; write `run.json` and copies of the prior and of the initial actor.

        Raises if this would overwrite or mix runs. Returns a warning if versions have changed since the last checkpoint
        of a resumed run.
        """
        wanted = _as_json(request)
        self._header = {"request": wanted, "versions": versions}
        before = self.request()
        if before is None:
            self._check_free(prior, init)
            for file, content in ((self.prior, prior), (self.init, init)):
                if content is not None and not file.exists():
                    write_bytes(file, content)
                    self._copies.append(file)
            write_json(self.path / "run.json", {"format": FORMAT} | self._header)
            return []
        self.check_new(resume)
        self.check_prior(before, request.prior)
        if changes := list(describe_changes(_as_json(before), wanted)):
            goes_on = request.prior and not request.method  # no other method has --init
            remedy = f"; a new --out takes them, and begins at this policy with --init {self.path}" if goes_on else ""
            raise UsageError(f"{self.path} cannot be resumed with other settings: {'; '.join(changes)}{remedy}")
        return self._check_unchanged(wanted, versions)

    def check_new(self, resume: bool) -> None:
        """Raise if the folder holds a run that is not to be resumed, or if it cannot be written."""
        if not resume and self.request() is not None:
            raise UsageError(f"{self.path} holds a run already; add --resume to go on with it, or choose another --out")
        check_writable(self.path / "run.json")

    def check_prior(self, before: Request, prior: str) -> None:
        """Raise if the run that began here has another prior than the one with this checksum."""
        if before.prior != prior:
            raise UsageError(f"{self.path} began with another prior: name that one, or {self.prior}, its copy")

    def _check_unchanged(self, request: dict[str, Any], versions: dict[str, str]) -> list[str]:
        """Raise if the folder's files are not those of the run that began here; return warnings."""
        for file, kind in ((self.prior, "prior"), (self.init, "init")):
            if request.get(kind) and file_sum(file) != request[kind]:
                raise FileError(f"{file} is not the {kind} that this run began with; put that one back")
        if (latest := self.latest_checkpoint()) is None:
            return []
        _, header, _ = latest
        began = self._parse_request(header.get("request", request), self._checkpoints)
        if edited := list(describe_changes(_as_json(began), request)):
            problem = f"{self.path / 'run.json'} was edited since the last checkpoint: {'; '.join(edited)}"
            raise FileError(f"{problem}; put it back, or begin a run of its own in another --out")
        others = list(describe_changes(header.get("versions", versions), versions))
        return [f"the last checkpoint was made with other versions: {'; '.join(others)}"] if others else []

    def _check_free(self, prior: bytes | None, init: bytes | None) -> None:
        """Raise if a new run would overwrite files of something else."""
        written = [self.metrics, self.policy, self.replaced, self._checkpoints]
        written += [self.path / name for name in ("report.html", "sweep.json", "plan.json")]
        existing = [path for path in written if os.path.lexists(path)]
        copies = ((self.prior, prior), (self.init, init))
        existing += [file for file, content in copies if file.exists() and file.read_bytes() != content]
        if existing:
            raise UsageError(f"{existing[0]} is there already, and of no run in {self.path}; choose another --out")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one run. The kernel releases the lock when the process ends, however that happens.

        If the run turns out not to begin here, the lock file, and a folder made for it, are removed again.
        """
        path = self.path / ".lock"
        try:
            new_folder = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise FileError(f"{self.path} cannot be used as a run's folder: {error.strerror}") from None
        with open(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(lock), os.lstat(path)):  # its holder has just removed it
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                problem = f"another run is at work in {self.path}"
                raise FileError(f"{problem}; wait for it, or choose another --out") from None
            except OSError as error:
                problem = f"{self.path} cannot be locked: {error.strerror}"
                raise FileError(f"{problem}; choose an --out on another disk") from None
            try:
                yield
            finally:
                if not any((self.path / name).exists() for name in ("run.json", "sweep.json")):
                    with contextlib.suppress(OSError):
                        path.unlink()
                        if new_folder:
                            self.path.rmdir()  # unless something is in it

    def release(self) -> None:
        """Give up the claim of a run that cannot begin, so that another one can have the folder."""
        for file in (*self._copies, self.trial, self.path / "run.json"):
            file.unlink(missing_ok=True)

    def check_exists(self) -> None:
        """Raise if the folder was moved or removed during the run: writing would make a second one."""
        if self._header and not (self.path / "run.json").exists():
            raise FileError(f"{self.path} was moved or removed while its run was at work; --resume it where it is now")

    def save(self, segment: int, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Save a checkpoint at the end of a segment. The one before stays, in case this one gets damaged."""
        self.check_exists()
        header = {"segment": segment} | header | self._header
        write(self._checkpoints / f"{segment:06d}.safetensors", "checkpoint", tensors, header)
        for old in self._checkpoint_files()[2:]:
            old.unlink(missing_ok=True)

    def unfinished_notice(self, request: Request) -> str:
        """Return in words how far an unfinished run is; empty for a finished one."""
        done = read_card(self.last_policy).get("steps", 0) if self.last_policy.exists() else 0
        wanted = request.settings.steps
        if done >= wanted:
            return ""
        return f"this run is not finished: {done:,} of {wanted:,} steps are done so far, and this is what there is"

    def latest_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """Return (tensors, header, warnings about damaged files) of the newest whole checkpoint, or None."""
        damaged = list[str]()
        for path in self._checkpoint_files():
            try:
                tensors, header = read(path, "checkpoint")
                check_shape(header, CHECKPOINT_SHAPE, f"{path} is no whole checkpoint: its header")
            except FileError as error:
                damaged.append(str(error))
                continue
            return tensors, header, [f"{each}; going on from the one before" for each in damaged]
        if damaged:
            raise FileError(
                f"{'; '.join(damaged)}; there is no other checkpoint: delete {self._checkpoints} to begin anew"
            )
        return None

    def log(self, metrics: dict[str, float]) -> None:
        self.check_exists()
        try:
            with open(self.metrics, "a") as file:
                file.write(json.dumps(replace_nonfinite(metrics)) + "\n")
        except OSError as error:
            raise FileError(f"{self.metrics} cannot be written: {error.strerror}") from None

    def read_metrics(self) -> dict[str, list[Any]]:
        """Return the metrics as columns, with None where an iteration has no such entry."""
        rows = [row for _, row in self._logged_lines()]
        names = {name: None for row in rows for name in row}
        return {name: [row.get(name) for row in rows] for name in names}

    def last_metrics(self) -> dict[str, float]:
        """Return the metrics of the last line."""
        logged = self.read_metrics()
        return {name: values[-1] for name, values in logged.items() if values and values[-1] is not None}

    def drop_metrics_after(self, iteration: int) -> None:
        """Drop the metrics of later iterations: a resumed run logs them again."""
        if os.path.lexists(self.metrics):
            lines = [line for line, row in self._logged_lines() if row["iteration"] <= iteration]
            write_bytes(self.metrics, b"".join(line + b"\n" for line in lines))

    def _logged_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return (line, parsed line) of the metrics. Damaged lines are left out: a killed run may leave half of one."""
        rows = []
        for line in read_bytes(self.metrics).splitlines() if os.path.lexists(self.metrics) else ():
            try:
                row = json.loads(line)
                numbers = {name: value for name, value in row.items() if value is not None}
                check_shape(numbers, {str: float}, "")
                check_shape(numbers, {"iteration": int}, "")
                rows.append((line, row))
            except (ValueError, AttributeError, RecursionError, FileError):
                continue
        return rows

    def _checkpoint_files(self) -> list[Path]:
        """Return the checkpoints, the newest first, by number: by name, seven digits would sort before six."""
        files = [path for path in self._checkpoints.glob("*.safetensors") if path.stem.isdecimal()]
        return sorted(files, key=lambda path: int(path.stem), reverse=True)


REQUEST_SHAPE = {
    "env": str, "objective": OBJECTIVE_SHAPE, "settings": {}, "addons": [str], "prior": str, "sparse": bool,
    "limits?": [str], "init?": str, "method?": str,
}  # fmt: skip
CHECKPOINT_SHAPE = {
    "segment": int, "iteration": int, "steps?": int, "candidate?": {"steps": int, "evaluation": {str: float}},
    "off_budget?": float, "kept?": [float], "limits?": {str: [float]},
    "objective?": OBJECTIVE_SHAPE, "request?": REQUEST_SHAPE, "versions?": {str: str},
}  # fmt: skip


def _as_json(request: Request) -> dict[str, Any]:
    return dict(json.loads(json.dumps(request.as_dict())))


def describe_changes(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """Yield `steps was 100 and is now 200` for each difference between two nested requests."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from describe_changes(before.get(key), after.get(key), key)
    elif before != after:
        was, now = ("nothing" if value is None else value for value in (before, after))
        yield f"{name} was {was} and is now {now}"
