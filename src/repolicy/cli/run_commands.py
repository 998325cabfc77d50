"""The commands that train: from nothing, and from a prior."""

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from repolicy.cli.policy_commands import policy_and_env, warn_of_unfinished
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import as_file_name, stem_of
from repolicy.objective import RANGES, Objective, coefficients, name_of
from repolicy.plan.defaults import TABLE, of_shape, train_defaults
from repolicy.ranges import Dial, ends_of
from repolicy.readers.reading import Options
from repolicy.runs.machine import torchrun_place
from repolicy.runs.settings import (
    ACTORS,
    BUDGETS,
    S,
    Settings,
    read_settings,
    validated,
)

if TYPE_CHECKING:
    from repolicy.learning.training import Result
    from repolicy.plan.wanted import Wanted
    from repolicy.runs.request import Request


ObjectiveName = Literal["no_entropy", "end_entropy", "repeat_entropy", "soft", "full"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every command that makes a run takes."""

    resume: bool = False
    """Go on with the run in the folder, if there is one."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file of settings; options on the command line override it."""
    env_timeout: float | None = None
    """End the run when one step of an environment takes longer than these seconds; a minute is reported in any case."""
    wandb: str | None = None
    """Log to this Weights & Biases project too."""
    trust: bool = False
    """Run code that the file of the prior, or the run that is resumed, names as its environment or add-on."""
    json: bool = False
    """Print one JSON object on stdout at the end."""


@dataclass(frozen=True)
class Train(Run):
    """Train a policy from nothing, as a prior or a baseline.

    Example: repolicy train HalfCheetah-v4 --objective soft --alpha 0.13472 --steps 3e6 --out runs/cheetah
    """

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Environment: an id of EnvPool or Gymnasium, or module:callable that makes one; NAME?option=value with options."""
    objective: ObjectiveName = "soft"
    """What the return contains (see the docs, "The eight objectives")."""
    alpha: float | None = None
    """α, the reward that a nat of entropy is worth; by default the usual one, or scaled from the reward in a trial."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward for --objective full: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    observe: str | None = None
    """Of an observation that is a Dict, what the policy sees: KEY or KEY,KEY. By default state or policy, where there
    is a part for a critic too, else all."""
    observe_critic: str | None = None
    """What the critic sees, while training: KEY or KEY,KEY. By default privileged_state beside state, critic beside
    policy, else what the policy sees."""
    out: Path | None = None
    """The run's folder; by default runs/ENV-OBJECTIVE-SEED."""
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)
    UNUSED: ClassVar = (*BUDGETS,)  # settings that it has no use for

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """What the settings depend on by default, and examples."""
        return "the environment", [train_defaults(env) for env in ("", *TABLE)]

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{as_file_name(self.env)}-{self.objective}-{self.settings.seed}"

    def beginning(self) -> "Train":
        """What the options are options of: the environment's own settings, or the run that is resumed."""
        from repolicy.envs.names import observed, observed_by_critic

        before = run_before(self)
        start = Train(self.env, settings=settings_of(self, before, train_defaults(self.env)))
        named = name_of(Objective(**before["objective"])) if before else None
        if before is None or named is None:
            return start
        name, values = named
        addon = () if self.addon else tuple(before["addons"])
        return replace(
            start, objective=cast(ObjectiveName, name), alpha=values.get("alpha"), addon=addon,
            observe=",".join(observed(before["env"])), observe_critic=",".join(observed_by_critic(before["env"])),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        from repolicy.learning.training import train
        from repolicy.plan.wanted import Wanted

        result = train(
            self.env, Wanted(self.objective, alpha=self.alpha), self.folder, self.settings,
            addon=self.addon, resume=self.resume, callbacks=callbacks_of(self.folder, self.wandb),
            env_timeout=self.env_timeout, progress=False,
            observe=self.observe or "", observe_critic=self.observe_critic or "",
        )  # fmt: skip
        values = ended(result)
        if result.finished and speaks():
            env = ["--env", self.env] if ":" in self.env else []  # code, which is named again
            words = shlex.join(["repolicy", "customize", str(result.folder), *env, "--addon", "FILE.py:FUNCTION"])
            print(f"to give it a wish: {words}", file=sys.stderr)
        return values


@dataclass(frozen=True)
class Customize(Run):
    """Give a trained policy a new requirement, without the reward that trained it.

    Example: repolicy customize halfcheetah --addon hind_leg=10 --omega auto --kl-budget 2
    """

    prior: Positional[Annotated[str, arg(metavar="PRIOR")]]
    """The trained policy: a name that ships (halfcheetah, hopper, ant), a policy's file (Repolicy's own or another
    library's), a run's folder, or code: module:name or file.py:name of a function from observations to mean actions
    (with --std), or of an object with log_prob."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """The new requirement: NAME, NAME=WEIGHT, module:function or file.py:function; repolicy addons lists names.
    NAME=0..2: all weights from one to the other, as a dial. Repeatable."""
    omega: str | None = None
    """ω′, the reward that a nat of the prior's log-likelihood is worth. 0.03..3: all from one to the other, as one
    policy with a dial; auto: moved to hold --kl-budget (and alpha with it) or --log-prior-budget. By default what a
    nat of the prior is worth, from its file or measured before the run; where that cannot be told, auto."""
    alpha: str | None = None
    """α̂, the reward that a nat of entropy is worth; 0.01..0.3: all from one to the other, as a dial. By default the
    prior's own α, where its file tells it, else a third of ω′, else scaled from the add-on's reward."""
    states: float | None = None
    """Price of a nat by which a state is less likely than the prior's own states. By default what a nat is worth in the
    old reward where ω′ is left out or is a range; beside one ω′ 0, as in the paper."""
    objective: Literal["residual", "kl", "greedy"] = "residual"
    """residual: omega and alpha apart; kl: omega equal to alpha; greedy: the add-on alone."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    observe: str | None = None
    """Of an observation that is a Dict, what the policy sees: KEY or KEY,KEY. By default the part that fits the
    prior."""
    observe_critic: str | None = None
    """What the critic sees, while training: KEY or KEY,KEY. By default privileged_state beside state, critic beside
    policy, else what the policy sees."""
    init: Literal["auto", "copy", "clone"] = "auto"
    """copy: the actor starts as the prior; clone: it is fitted to the prior first, which then scores as it is; auto:
    clone what cannot be copied."""
    out: Path | None = None
    """The run's folder; by default runs/PRIOR-OBJECTIVE-SEED."""
    sparse: bool = False
    """Accept an add-on that is constant over some thousand trial steps."""
    trust: bool = field(default=False, kw_only=True)
    """Run code: a prior that is TorchScript, or what the prior's file or the resumed run names as environment or
    add-on."""
    report: bool = True
    """At the end, evaluate and film prior and result, and write report.html into the folder."""
    reading: OmitArgPrefixes[Options] = field(default_factory=Options)
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)
    UNUSED: ClassVar = ACTORS  # settings that it has no use for

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """What the settings depend on by default, and examples."""
        return "the prior", [of_shape(64, 1), of_shape(256, 12)]

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{as_file_name(stem_of(self.prior))}-{self.objective}-{self.settings.seed}"

    def beginning(self) -> "Customize":
        """What the options are options of: the environment's own settings, or the run that is resumed."""
        before = run_before(self)
        start = Customize(self.prior, settings=_customizing(self, before))
        if before is None:
            return start
        made = Objective(**before["objective"])
        high = {name: f"..{getattr(made, to)}" if getattr(made, to) else "" for to, name in RANGES.items()}
        omega = f"{made.omega}{high['omega']}" if start.settings.budget is None else "auto"
        return replace(
            start, env=before["env"], omega=omega if "omega" in coefficients(self.objective) else None,
            alpha=f"{made.alpha}{high['alpha']}", states=made.states, sparse=before["sparse"],
            addon=() if self.addon else tuple(before["addons"]),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        from repolicy.learning.training import customize

        warn_of_unfinished(self.prior)
        result = customize(
            self.prior, self.addon, self.wanted(), self.folder, self.settings,
            env=policy_and_env(self.prior, self.env, self.trust)[1], sparse=self.sparse, resume=self.resume,
            callbacks=callbacks_of(self.folder, self.wandb), env_timeout=self.env_timeout, reading=self.reading,
            progress=False, init=self.init, trust=self.trust, observe=self.observe or "",
            observe_critic=self.observe_critic or "",
        )  # fmt: skip
        return ended(result) | (_reported(result) if self.report else {})

    def wanted(self) -> "Wanted":
        """The objective that the options describe, as far as they do."""
        from repolicy.plan.wanted import Wanted

        omega, omega_to = (self.omega, 0.0) if self.omega in (None, "auto") else _ends("omega", str(self.omega))
        alpha, alpha_to = (None, 0.0) if self.alpha is None else _ends("alpha", self.alpha)
        known = cast("float | Literal['auto'] | None", omega)
        return Wanted(self.objective, known, alpha, self.states, omega_to, alpha_to)


def run_before(command: Any, *kinds: "type[Request]") -> dict[str, Any] | None:
    """The request of the run that is to be resumed, where there is one."""
    if not command.resume:
        return None
    from repolicy.runs.folder import RunFolder

    before = RunFolder(command.folder, *kinds).request()
    if before is not None:
        if bool(before["prior"]) != hasattr(command, "prior"):
            whose = "customize" if before["prior"] else "train"
            raise UsageError(f"{command.folder} is a run of `{whose}`; go on with it by that command")
        confirm_names(command, before, command.folder / "run.json")
    return before


def confirm_names(command: Any, before: dict[str, Any], path: Path) -> None:
    """What is resumed may name code only where the same is typed again, or where the file is trusted."""
    from repolicy.envs.trust import confirm

    if command.env is None:
        confirm(path, command.trust, env=before["env"])
    if not command.addon:
        confirm(path, command.trust, addons=before["addons"])


def settings_of(command: Any, before: dict[str, Any] | None, usual: S) -> S:
    """Those of the run before, or the usual ones; a file of settings goes before either."""
    if before is not None:
        usual = type(usual)(**validated(before["settings"], f"the run in {command.folder}", type(usual)))
    return usual if command.settings_file is None else read_settings(command.settings_file, usual)


def _customizing(command: Any, before: dict[str, Any] | None) -> Settings:
    """The same for a command that customizes."""
    if before is None:
        policy_and_env(command.prior, command.env, command.trust)  # what is missing there is to be said first
    usual = Settings() if before else _usual(command)
    return settings_of(command, before, usual)


def _usual(command: Any) -> Settings:
    """The settings that go with the prior."""
    from repolicy.envs.names import with_observed
    from repolicy.plan.starting import start_of

    start = start_of(command.prior, command.reading, getattr(command, "init", "auto"), command.trust, Path())
    if start.exact is not None and not isinstance(command, Customize):
        raise UsageError(f"{start.name} cannot be copied, which a sweep needs: customize at each --omega instead")
    env = policy_and_env(command.prior, command.env, command.trust)[1]
    if isinstance(command, Customize):
        env = with_observed(env, command.observe or "", command.observe_critic or "")
    return start.usual(env)


def alpha_of(prior: str) -> float:
    from repolicy.policies.file import read_card
    from repolicy.priors.finding import find_policy

    objective = read_card(find_policy(prior)).get("request", {}).get("objective", {})
    if not objective.get("alpha"):
        raise UsageError(f"{prior} does not tell the alpha that it was trained with; name one with --alpha")
    return float(objective["alpha"])


def _ends(name: str, text: str) -> tuple[float, float]:
    """A weight and, of a range such as 0.03..3, where it ends; else 0."""
    try:
        if (ends := ends_of(text)) is None:
            return float(text), 0.0
        dial = Dial(name, *ends).checked()
    except ValueError:
        also = ", or auto" if name == "omega" else ""
        raise UsageError(f"--{name} is {text!r}; it must be a number, a range such as 0.03..3{also}") from None
    return dial.low, dial.high


def speaks() -> bool:
    """Whether this process is the one that talks to the user: under torchrun, the first."""
    place = torchrun_place()
    return place is None or place[0] == 0


def callbacks_of(out: Path, wandb: str | None) -> list[Any]:
    """Who watches a run that the command line started; under torchrun, only the first process has any."""
    from repolicy.runs.callbacks import TensorBoard, Wandb
    from repolicy.runs.display import Display
    from repolicy.runs.folder import RunFolder

    if not speaks():
        return []
    folder = RunFolder(out)
    return [Display(), TensorBoard(folder), *([Wandb(folder, wandb)] if wandb is not None else [])]


def ended(result: "Result") -> dict[str, Any]:
    from repolicy.priors.finding import find_policy
    from repolicy.runs.folder import RunFolder

    folder = result.folder
    if result.finished:
        sentence = f"done: {find_policy(folder)} is the policy to take"
    else:
        latest = RunFolder(folder).latest()
        steps = f"the checkpoint at {latest[1]['steps']:,}" if latest else "the start: there is no checkpoint yet"
        sentence = f"stopped after {result.steps:,} steps in {folder}; --resume goes on from {steps}"
    if speaks():
        print(sentence, file=sys.stderr)
    return {"folder": str(folder), "steps": result.steps, "finished": result.finished, "metrics": result.last}


def _reported(result: "Result") -> dict[str, Any]:
    """The run's page, written once, where the run is done. The run is not lost when the page fails."""
    from repolicy.cli.dial_command import Dial
    from repolicy.report.run_page import write_report
    from repolicy.runs.terminal import Terminal

    if not result.finished or not speaks():
        return {}
    terminal = Terminal()
    try:
        if "dial_kl" in result.last:
            return Dial(str(result.folder), trust=True).run()
        path = write_report(result.folder, trust=True, say=terminal.say)
    except RepolicyError as error:
        terminal.say(f"no report: {error}")
        return {}
    terminal.say(f"report: {path}")
    return {"report": str(path)}
