"""A run's folder: what was asked for, what was logged, the last checkpoints, the policies."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from repolicy.errors import FileError, UsageError
from repolicy.policies.storage import FORMAT, finite, read, write, write_bytes, write_json


class RunFolder:
    """What a run leaves behind: enough to resume, plot, render and repeat it.

    run.json               what was asked for, and the versions that ran
    metrics.jsonl          a line an iteration
    checkpoints/           the last two segments' ends
    policy.safetensors     the policy at the end of the last segment
    best.safetensors       the policy of the best segment, by the objective's own return
    prior.safetensors      a copy of the prior, where there is one
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.last_policy = self.path / "policy.safetensors"
        self.best_policy = self.path / "best.safetensors"
        self.prior = self.path / "prior.safetensors"
        self._checkpoints = self.path / "checkpoints"

    def request(self) -> dict[str, Any] | None:
        """What the run in this folder was asked for, or None if there is none."""
        try:
            return json.loads((self.path / "run.json").read_text())["request"]  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise FileError(f"{self.path / 'run.json'} cannot be read: {error}") from None

    def begin(
        self, request: dict[str, Any], versions: dict[str, str], resume: bool, prior: bytes | None = None
    ) -> None:
        """Claim the folder for this request, with a copy of its prior; refuse where that would lose or mix anything."""
        before = self.request()
        if before is None:
            self._check_free(prior)
            if prior is not None:
                write_bytes(self.prior, prior)
            write_json(self.path / "run.json", {"format": FORMAT, "request": request, "versions": versions})
            return
        if not resume:
            raise UsageError(f"{self.path} holds a run already; add --resume to go on with it, or choose another --out")
        changes = list(changed(before, json.loads(json.dumps(request))))
        if changes:
            raise UsageError(f"{self.path} cannot be resumed with other settings: {'; '.join(changes)}")

    def _check_free(self, prior: bytes | None) -> None:
        """Raise where a run would write over files that are not its own."""
        mine = [self.metrics, self.last_policy, self.best_policy, self._checkpoints, self.path / "report.html"]
        found = [path for path in [*mine, self.path / "sweep.json"] if path.exists()]
        if self.prior.exists() and (prior is None or self.prior.read_bytes() != prior):
            found.append(self.prior)
        if found:
            raise UsageError(f"{found[0]} is there already, and of no run in {self.path}; choose another --out")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time. The lock goes with the process that holds it, however that ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise FileError(f"{self.path} cannot be used as a run's folder: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FileError(f"another run is at work in {self.path}; choose another --out") from None
            yield

    def save(self, segment: int, tensors: dict[str, Tensor], story: dict[str, Any]) -> None:
        """The end of a segment; of older ones, one is kept in case this one is damaged."""
        write(self._checkpoints / f"{segment:06d}.safetensors", "checkpoint", tensors, {"segment": segment} | story)
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest checkpoint that is whole, with a sentence about each that is not; None if there is none."""
        complaints = []
        for path in self._files():
            try:
                tensors, story = read(path, "checkpoint")
            except FileError as error:
                complaints.append(f"{error}; going on from the one before")
                continue
            return tensors, story, complaints
        if complaints:
            raise FileError(
                "; ".join(complaints).replace("; going on from the one before", "") + "; there is no other checkpoint"
            )
        return None

    def log(self, metrics: dict[str, float]) -> None:
        """Add a line to the metrics."""
        try:
            with open(self.metrics, "a") as file:
                file.write(json.dumps(finite(metrics)) + "\n")
        except OSError as error:
            raise FileError(f"{self.metrics} cannot be written: {error.strerror}") from None

    def logged(self) -> dict[str, list[Any]]:
        """The metrics as columns; None where an iteration has no such entry."""
        if not self.metrics.exists():
            return {}
        rows = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        names = {name: None for row in rows for name in row}
        return {name: [row.get(name) for row in rows] for name in names}

    def forget_after(self, iteration: int) -> None:
        """Drop the metrics of iterations that are about to be done again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text().splitlines():
            try:
                if json.loads(line)["iteration"] <= iteration:
                    kept.append(line + "\n")
            except ValueError:
                continue  # the line that was being written when the run was killed
        write_bytes(self.metrics, "".join(kept).encode())

    def _files(self) -> list[Path]:
        return sorted(self._checkpoints.glob("[0-9]*.safetensors"), reverse=True)


def changed(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """`steps was 100 and is now 200`, for each difference between two nested requests."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from changed(before.get(key), after.get(key), key)
    elif before != after:
        yield f"{name} was {before} and is now {after}"
