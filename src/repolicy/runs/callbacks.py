"""Who watches a run: TensorBoard, Weights & Biases. (The live display is `display.py`.)

A callback is any object with `begin`, `write`, `say` and `close`.
"""

import contextlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from repolicy.errors import UsageError
from repolicy.policies.storage import write_bytes
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request


class TensorBoard:
    """Event files in the run's folder, over environment steps."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path
        self._writer: Any = None

    def begin(self, request: Request, start: int, total: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("no files for TensorBoard: pip install 'repolicy[engine]'", file=sys.stderr)
            return
        threading.excepthook = _without_full_disks(threading.excepthook)
        first = start * request.settings.iteration_steps + 1
        with self._optional():
            self._writer = SummaryWriter(str(self._path), purge_step=first if start else None)

    def write(self, metrics: dict[str, float]) -> None:
        with self._optional():
            for name, value in metrics.items():
                if self._writer is not None:
                    self._writer.add_scalar(_grouped(name), value, int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        with self._optional():
            if self._writer is not None:
                self._writer.close()

    @contextlib.contextmanager
    def _optional(self) -> Iterator[None]:
        """Let a full disk, or files that cannot be written, not end a run: its metrics are in its folder."""
        try:
            yield
        except OSError as error:
            self._writer = None
            print(f"TensorBoard's files cannot be written: {error.strerror}; going on without them", file=sys.stderr)


def _without_full_disks(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Notice a full disk: TensorBoard writes in a thread, and what stops that comes back with the next number."""

    def call(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            hook(failure)

    return call


class Wandb:
    """Weights & Biases; a resumed run goes on in the run that it began."""

    def __init__(self, folder: RunFolder, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("--wandb needs the package wandb: pip install 'repolicy[wandb]'") from None
        try:
            wandb.login()  # before the run's folder is claimed
        except wandb.Error as error:
            raise UsageError(f"--wandb: {error}") from None
        self._wandb, self._folder, self._project = wandb, folder.path.resolve(), project

    def begin(self, request: Request, start: int, total: int) -> None:
        try:
            self._run = self._wandb.init(
                project=self._project, dir=self._folder, id=self._id(), resume="allow", config=request.as_dict()
            )
        except self._wandb.Error as error:
            raise UsageError(f"--wandb: {error}") from None

    def _id(self) -> str:
        """Return an id that is drawn once for each run, and kept in its folder."""
        file = self._folder / "wandb-id"
        if not file.exists():
            write_bytes(file, secrets.token_hex(8).encode())
        return file.read_text()

    def write(self, metrics: dict[str, float]) -> None:
        self._run.log({_grouped(name): value for name, value in metrics.items()}, step=int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        self._run.finish()


_GROUPS = ("reward", "evaluation", "share")


def _grouped(name: str) -> str:
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in _GROUPS and rest else f"run/{name}"
