"""Who watches a run: TensorBoard, Weights & Biases. (The live display is `display.py`.)

A watcher is any object with `begin`, `write`, `say` and `close`.
"""

import secrets

from repolicy.engine.folder import RunFolder
from repolicy.engine.request import Request
from repolicy.errors import UsageError
from repolicy.policies.storage import write_bytes


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
        try:
            wandb.login()  # before the run's folder is claimed
        except wandb.Error as error:
            raise UsageError(f"--wandb: {error}") from None
        self._wandb, self._folder, self._project = wandb, folder.path.resolve(), project

    def begin(self, request: Request, start: int, total: int) -> None:
        self._run = self._wandb.init(
            project=self._project, dir=self._folder, id=self._id(), resume="allow", config=request.as_dict()
        )

    def _id(self) -> str:
        """Drawn once for each run, and kept in its folder."""
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
