"""`repolicy rql`: the commands of Residual Q-learning. Nothing heavy is imported before one runs."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from repolicy.cli import run_commands as runs
from repolicy.cli.policy_commands import policy_and_env
from repolicy.cli.run_commands import alpha_of, callbacks_of, ended, run_before, settings_of
from repolicy.errors import UsageError
from repolicy.loading import as_file_name, nearest, stem_of
from repolicy.objective import Objective, name_of, named
from repolicy.readers.reading import Options
from repolicy.rql.hyperparameters import TASKS, Settings, customize_defaults, task_of, train_defaults

ObjectiveName = Literal["soft", "full", "greedy"]


@dataclass(frozen=True, kw_only=True)
class Run(runs.Run):
    """What both commands take."""

    out: Path | None = None
    """The run's folder; by default runs/rql/TASK-OBJECTIVE-SEED or runs/rql/PRIOR-residual-SEED."""
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)

    def before(self) -> dict[str, Any] | None:
        """The request of the run that is to be resumed, where there is one."""
        if not self.resume:
            return None
        from repolicy.rql.customizing import Request

        return run_before(self, Request)


@dataclass(frozen=True)
class Train(Run):
    """Train a soft Q-learning policy from nothing, as a prior or a baseline.

    Example: repolicy rql train cartpole --out runs/cartpole
    """

    env: Positional[Annotated[str, arg(metavar="TASK")]]
    """cartpole, mountain_car, highway, parking; or any environment, as a Gymnasium id or module:callable."""
    objective: ObjectiveName = "soft"
    """soft: the basic reward; full: basic and add-on; greedy: the add-on alone."""
    alpha: float | None = None
    """α, the reward that a nat of entropy is worth; by default the task's own."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward for full and greedy, as in `repolicy customize`; by default what the environment's info tells."""

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """What the settings depend on by default, and examples."""
        return "the environment", [train_defaults(env) for env in ("", *TASKS)]

    @property
    def folder(self) -> Path:
        return self.out or Path("runs/rql") / f"{as_file_name(self.env)}-{self.objective}-{self.settings.seed}"

    def beginning(self) -> "Train":
        """What the options are options of: the task's own settings, or the run that is resumed."""
        before = self.before()
        start = Train(self.env, settings=settings_of(self, before, train_defaults(self.env)))
        named = name_of(Objective(**before["objective"])) if before else None
        if before is None or named is None:
            return start
        addon = () if self.addon else tuple(before["addons"])
        return replace(start, objective=cast(ObjectiveName, named[0]), alpha=named[1].get("alpha"), addon=addon)

    def run(self) -> dict[str, Any]:
        from repolicy.rql.customizing import train

        alpha = self.alpha if self.alpha is not None else _alpha_of_task(self.env)
        return ended(
            train(
                self.env, named(self.objective, alpha=alpha), self.folder, self.settings, addon=self.addon,
                resume=self.resume, callbacks=callbacks_of(self.folder, self.wandb), env_timeout=self.env_timeout,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Customize(Run):
    """Give a policy a new requirement by Residual Q-learning, without the reward that trained it.

    Example: repolicy rql customize runs/cartpole --omega 1 --alpha 1
    """

    prior: Positional[Annotated[str, arg(metavar="PRIOR")]]
    """The trained policy: a policy's file, a run's folder, or a name that ships."""
    omega: float | None = None
    """ω′, the reward that a nat of the prior's log-likelihood is worth; it must be named."""
    alpha: float | None = None
    """α̂, the reward that a nat of entropy is worth; by default the prior's own α, if its file tells it."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward, as in `repolicy customize`; by default what the environment's info tells as addon_reward."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    reading: OmitArgPrefixes[Options] = field(default_factory=Options)

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """What the settings depend on by default, and examples."""
        return "the environment", [customize_defaults(env) for env in ("", *TASKS)]

    @property
    def folder(self) -> Path:
        return self.out or Path("runs/rql") / f"{as_file_name(stem_of(self.prior))}-residual-{self.settings.seed}"

    def beginning(self) -> "Customize":
        """What the options are options of: the task's own settings, or the run that is resumed."""
        before = self.before()
        env = before["env"] if before else self._env()
        start = Customize(self.prior, settings=settings_of(self, before, customize_defaults(env)))
        if before is None:
            return start
        made = Objective(**before["objective"])
        addon = () if self.addon else tuple(before["addons"])
        return replace(start, env=env, omega=made.omega, alpha=made.alpha, addon=addon)

    def run(self) -> dict[str, Any]:
        from repolicy.rql.customizing import customize

        objective = named(
            "residual", omega=self.omega, alpha=self.alpha if self.alpha is not None else alpha_of(self.prior)
        )
        return ended(
            customize(
                self.prior, objective, self.folder, self.settings, addon=self.addon, env=self._env(),
                options=self.reading, resume=self.resume, callbacks=callbacks_of(self.folder, self.wandb),
                env_timeout=self.env_timeout,
            )
        )  # fmt: skip

    def _env(self) -> str:
        return policy_and_env(str(self.prior), self.env, self.trust)[1]


COMMANDS: dict[str, Any] = {"train": Train, "customize": Customize}


def _alpha_of_task(env: str) -> float:
    if (task := task_of(env)) is None:
        known = ", ".join(TASKS)
        raise UsageError(
            f"{env} is no task whose temperature is known (those are {known}){nearest(env, TASKS)}; for another "
            "environment give --alpha"
        )
    return task.alpha
