"""Who watches a run: a line of JSON an iteration, TensorBoard, Weights & Biases. (The live display is `display.py`.)

A watcher is any object with `begin`, `write`, `say` and `close`.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from repolicy.checkpoint import RunFolder
from repolicy.errors import FileError, UsageError
from repolicy.request import Request


class JsonLines:
    """`metrics.jsonl`: a line an iteration."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.metrics

    def begin(self, request: Request, start: int, total: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a", buffering=1)  # noqa: SIM115

    def write(self, metrics: dict[str, float]) -> None:
        try:
            self._file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            raise FileError(f"{self._path} cannot be written: {error.strerror}") from None

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was complained about when the line was written
            self._file.close()


class TensorBoard:
    """Event files in the run's folder, over environment steps."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path

    def begin(self, request: Request, start: int, total: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        first = start * request.settings.iteration_steps + 1
        self._writer = SummaryWriter(str(self._path), purge_step=first if start else None)

    def write(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(_grouped(name), value, int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases; a resumed run goes on in the run that it began."""

    def __init__(self, folder: RunFolder, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("--wandb needs the package wandb: pip install 'repolicy[wandb]'") from None
        self._wandb, self._folder, self._project = wandb, folder.path.resolve(), project

    def begin(self, request: Request, start: int, total: int) -> None:
        self._run = self._wandb.init(
            project=self._project, dir=self._folder, id=_run_id(self._folder), resume="allow", config=request.as_dict()
        )

    def write(self, metrics: dict[str, float]) -> None:
        self._run.log({_grouped(name): value for name, value in metrics.items()}, step=int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        self._run.finish()


_GROUPS = ("reward", "evaluation", "share")


def _grouped(name: str) -> str:
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in _GROUPS and rest else f"run/{name}"


def _run_id(folder: Path) -> str:
    import hashlib

    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def read_metrics(path: Path) -> dict[str, list[Any]]:
    """`metrics.jsonl` as columns; None where an iteration has no such entry."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}
