"""`repolicy rql`: the commands of Residual Q-learning. Nothing heavy is imported before one runs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from repolicy.errors import UsageError
from repolicy.loading import as_file_name, confirm, nearest
from repolicy.objective import named
from repolicy.rql.settings import TASKS, Settings, customizing, defaults, read_settings


@dataclass(frozen=True)
class Train:
    """Train a soft Q-learning policy from nothing, as a prior or a baseline.

    Example: repolicy rql train cartpole --out runs/cartpole.safetensors
    """

    env: Positional[Annotated[str, arg(metavar="TASK")]]
    """cartpole, mountain_car, highway, parking; or any environment, as a Gymnasium id or module:callable."""
    objective: Literal["soft", "full", "greedy"] = "soft"
    """soft: the basic reward; full: basic and add-on; greedy: the add-on alone."""
    alpha: float | None = None
    """Temperature: the weight of the entropy; by default the task's own."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward for full and greedy, as in `repolicy customize`; by default what the environment's info tells."""
    out: Path | None = None
    """The policy's file; by default runs/rql/TASK-OBJECTIVE-SEED.safetensors."""
    steps: int | None = None
    """Environment steps; by default the task's own."""
    seed: int = 0
    """Seed of everything."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file with any other settings, such as {"learning_rate": 0.001}."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def run(self) -> dict[str, Any]:
        from repolicy.rql.training import train

        alpha = self.alpha if self.alpha is not None else _alpha_of(self.env)
        objective = named(self.objective, alpha=alpha)
        settings = _settings(defaults(self.env), self.settings_file, self.steps, self.seed)
        out = self.out or Path("runs/rql") / f"{as_file_name(self.env)}-{self.objective}-{self.seed}.safetensors"
        with _shown(self.env, settings) as progress:
            train(self.env, objective, out, settings, addon=self.addon, progress=progress)
        return _done(out, settings)


@dataclass(frozen=True)
class Customize:
    """Give a policy a new requirement by Residual Q-learning, without the reward that trained it.

    Example: repolicy rql customize runs/cartpole.safetensors --omega 1 --alpha 1
    """

    prior: Positional[Annotated[str, arg(metavar="PRIOR")]]
    """The trained policy: a file of `repolicy rql train` or of `repolicy train`, or a run's folder."""
    omega: float
    """ω′, the weight of the prior's log-probability."""
    alpha: float | None = None
    """α̂, the temperature; by default the prior's own, where its file tells it."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward, as in `repolicy customize`; by default what the environment's info tells as addon_reward."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    out: Path | None = None
    """The policy's file; by default runs/rql/PRIOR-residual-SEED.safetensors."""
    steps: int | None = None
    """Environment steps; by default the task's own."""
    seed: int = 0
    """Seed of everything."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file with any other settings, such as {"learning_rate": 0.001}."""
    trust: bool = False
    """Run code that the prior's file names as its environment."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def run(self) -> dict[str, Any]:
        from repolicy.rql.training import customize, story_of

        story = story_of(self.prior)
        alpha = self.alpha if self.alpha is not None else story.get("objective", {}).get("alpha")
        if alpha is None:
            raise UsageError(f"{self.prior} does not tell the alpha that it was trained with; name one with --alpha")
        env = self.env or story.get("env", "")
        if self.env is None:
            confirm([env], self.prior, "env", self.trust)
        settings = _settings(customizing(env), self.settings_file, self.steps, self.seed)
        out = self.out or Path("runs/rql") / f"{Path(self.prior).stem}-residual-{self.seed}.safetensors"
        objective = named("residual", omega=self.omega, alpha=float(alpha))
        with _shown(self.prior, settings) as progress:
            customize(self.prior, objective, out, settings, addon=self.addon, env=env or None, progress=progress)
        return _done(out, settings)


COMMANDS: dict[str, Any] = {"train": Train, "customize": Customize}


def _alpha_of(env: str) -> float:
    if env not in TASKS:
        known = ", ".join(TASKS)
        raise UsageError(
            f"{env} is none of {known}, whose temperature is known; name one with --alpha{nearest(env, TASKS)}"
        )
    return TASKS[env].alpha


def _settings(settings: Settings, path: Path | None, steps: int | None, seed: int) -> Settings:
    settings = settings if path is None else read_settings(path, settings)
    return replace(settings, seed=seed, steps=settings.steps if steps is None else steps)


@contextmanager
def _shown(what: str, settings: Settings) -> Iterator[Callable[[int, float | None], None]]:
    """A live line on stderr: share done, time left, return."""
    from rich.progress import Progress

    from repolicy.cli.terminal import Terminal

    with Progress(console=Terminal()) as bar:
        line = bar.add_task(what, total=settings.steps)

        def progress(steps: int, mean: float | None) -> None:
            bar.update(line, completed=steps, description=what if mean is None else f"{what}: return {mean:,.1f}")

        yield progress


def _done(out: Path, settings: Settings) -> dict[str, Any]:
    print(f"done: {out}; repolicy evaluate {out} shows what it does", file=sys.stderr)
    return {"file": str(out), "steps": settings.steps}
