"""`repolicy rql`: the commands of Residual Q-learning. Nothing heavy is imported before one runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from repolicy.cli import run_commands as runs
from repolicy.cli.options import Positional, Repeated, overrides
from repolicy.cli.run_commands import callbacks_of, ended
from repolicy.objective import named
from repolicy.readers.reading import Options
from repolicy.rql.hyperparameters import TASKS, Settings, customize_defaults, train_defaults

ObjectiveName = Literal["soft", "full", "greedy"]
ROOT = Path("runs/rql")


@dataclass(frozen=True, kw_only=True)
class Run(runs.Run):
    """What both commands take."""

    out: Path | None = None
    """The run's folder; by default runs/rql/TASK-OBJECTIVE-SEED or runs/rql/PRIOR-residual-SEED."""
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class Train(Run):
    """Train a soft Q-learning policy from nothing, as a prior or a baseline.

    Example: repolicy rql train cartpole --out runs/cartpole
    """

    env: Annotated[str, Positional("TASK")]
    """cartpole, mountain_car, highway, parking; or any environment, as a Gymnasium id or module:callable."""
    objective: ObjectiveName = "soft"
    """soft: the basic reward; full: basic and add-on; greedy: the add-on alone."""
    alpha: float | None = None
    """α, the reward that a nat of entropy is worth; by default the task's own."""
    addon: Repeated = ()
    """Add-on reward for full and greedy, as in `repolicy customize`; by default what the environment's info tells."""

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """Return what the settings depend on by default, and examples."""
        return "the environment", [train_defaults(env) for env in ("", *TASKS)]

    def run(self) -> dict[str, Any]:
        from repolicy.prepare.session import folder_for
        from repolicy.rql.customizing import train

        folder = folder_for(self.out, self.env, self.objective, self.settings, self.resume, ROOT)
        return ended(
            train(
                self.env, named(self.objective, alpha=self.alpha), folder, overrides(self, Settings),
                addon=self.addon, resume=self.resume, callbacks=callbacks_of(folder, self.wandb),
                env_timeout=self.env_timeout, trust=self.trust,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Customize(Run):
    """Give a policy a new requirement by Residual Q-learning, without the reward that trained it.

    Example: repolicy rql customize runs/cartpole --omega 1 --alpha 1
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy: a policy's file, a run's folder, or a name that ships."""
    omega: float | None = None
    """ω′, the reward that a nat of the prior's log-likelihood is worth; it must be named."""
    alpha: float | None = None
    """α̂, the reward that a nat of entropy is worth; by default the prior's own α, if its file tells it."""
    addon: Repeated = ()
    """Add-on reward, as in `repolicy customize`; by default what the environment's info tells as addon_reward."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    reading: Options = field(default_factory=Options)

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """Return what the settings depend on by default, and examples."""
        return "the environment", [customize_defaults(env) for env in ("", *TASKS)]

    def run(self) -> dict[str, Any]:
        from repolicy.prepare.session import folder_for
        from repolicy.rql.customizing import customize

        folder = folder_for(self.out, self.prior, "residual", self.settings, self.resume, ROOT)
        return ended(
            customize(
                self.prior, named("residual", omega=self.omega, alpha=self.alpha, states=0.0), folder,
                overrides(self, Settings), addon=self.addon, env=self.env, options=self.reading, resume=self.resume,
                callbacks=callbacks_of(folder, self.wandb), env_timeout=self.env_timeout, trust=self.trust,
            )
        )  # fmt: skip


COMMANDS: dict[str, Any] = {"train": Train, "customize": Customize}
