"""The commands that make a policy: train (from nothing), customize (from a prior), imitate (from recorded data)."""

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from repolicy.cli.options import (
    Command,
    CustomizesPrior,
    Positional,
    Repeated,
    Trains,
    defaults_by_env,
    overrides,
    parse_weight,
)
from repolicy.cli.policy_commands import warn_of_unfinished
from repolicy.errors import RepolicyError, UsageError
from repolicy.objective import Objective, soft
from repolicy.objective_names import objective_by_name
from repolicy.runs import ACTOR_SETTINGS, BUDGETS, Settings, Terminal, torchrun_place
from repolicy.text import default_out, with_minus

if TYPE_CHECKING:
    from repolicy.runs import Result


@dataclass(frozen=True, kw_only=True)
class Run(Trains):
    """A command that trains one policy."""

    env_timeout: float | None = None
    """Stop the run if an environment step takes more seconds than this; a minute is reported in any case."""
    wandb: str | None = None
    """Log to this Weights & Biases project too."""
    trust: bool = False
    """Run code that the resumed run or the prior's file names as environment or add-on, or a prior in TorchScript."""


@dataclass(frozen=True, kw_only=True)
class Train(Run):
    """Train a policy from nothing, as a prior or a baseline.

    Example: repolicy train HalfCheetah-v4 --objective soft --alpha 0.13472 --steps 3e6 --out runs/cheetah
    """

    env: Annotated[str, Positional("ENV")]
    """Environment: an id of EnvPool or Gymnasium, or module:callable that makes one; NAME?option=value with options."""
    objective: Literal["no_entropy", "end_entropy", "repeat_entropy", "soft", "full"] | None = None
    """The terms of the return (see the docs, "The eight objectives"); by default soft, or that of the resumed run."""
    alpha: float | None = None
    """α, the reward that a nat of entropy is worth; by default the usual one, or scaled from the reward in a trial."""
    addon: Repeated = ()
    """Add-on reward for --objective full: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    observe: str = ""
    """For a Dict observation, the parts that the policy sees: KEY or KEY,KEY. By default state or policy if there is a
    part for the critic too, else all."""
    observe_critic: str = ""
    """What the critic sees, while training: KEY or KEY,KEY. By default, if --observe is not named, privileged_state
    beside state, critic beside policy; else what the policy sees."""
    out: Path | None = None
    """The run's folder; by default runs/ENV-OBJECTIVE-SEED."""
    trust: bool = False
    """Run code that the resumed run names as environment or add-on."""
    named_settings: Settings = field(default_factory=Settings)
    UNUSED: ClassVar = BUDGETS  # settings without effect here
    defaults = staticmethod(defaults_by_env)

    def run(self) -> dict[str, Any]:
        from repolicy.learning.training import train
        from repolicy.prepare.session import folder_for

        objective, settings = self.parse_objective(), overrides(self)
        folder = folder_for(self.out, self.env, objective or soft(), settings, self.resume)
        result = train(
            self.env, objective, folder, settings,
            addon=self.addon, resume=self.resume, callbacks=make_callbacks(folder, self.wandb), progress=False,
            env_timeout=self.env_timeout, observe=self.observe, observe_critic=self.observe_critic,
            trust=self.trust,
        )  # fmt: skip
        values = report_end(result)
        if result.finished and is_main_process():
            env = ["--env", self.env] if ":" in self.env else []  # customize runs code only if the user names it
            command = shlex.join(["repolicy", "customize", str(result.folder), *env, "--addon", "FILE.py:FUNCTION"])
            Terminal().say(f"to give it a wish: {command}")
        return values

    def parse_objective(self) -> Objective | None:
        """Return the objective that the options name, or None if they name none."""
        if self.objective is None and self.alpha is None:
            return None
        return objective_by_name(self.objective or "soft", alpha=self.alpha)


@dataclass(frozen=True)
class Customize(Run, CustomizesPrior):
    """Give a trained policy a new requirement, without the reward that trained it.

    Example: repolicy customize halfcheetah --addon hind_leg=10 --kl-budget 2
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy: a name that ships (halfcheetah, hopper, ant), a policy's file (Repolicy's own or another
    library's), a run's folder, or code: module:name or file.py:name of a function from observations to mean actions
    (with --std), or of an object with log_prob."""
    addon: Repeated = ()
    """The new requirement: NAME, NAME=WEIGHT, module:function or file.py:function; repolicy addons lists names.
    NAME=0..2: all weights from one to the other, as a dial. Repeatable."""
    limit: Repeated = ()
    """A constraint on the mean action: NAME<=NUMBER or NAME>=NUMBER, where NAME is an add-on (named by its metric if it
    has one), an entry of the environment's info, module:function or file.py:function. Repeatable."""
    omega: str | None = None
    """ω′, the reward that a nat of the prior's log-likelihood is worth. 0.03..3: all values between, as one policy with
    a dial; auto: adjusted to hold --kl-budget (and alpha with it) or --log-prior-budget. By default what a nat of the
    prior is worth, from its file or measured before the run; if that is unknown, auto."""
    alpha: str | None = None
    """α̂, the reward that a nat of entropy is worth; 0.01..0.3: all values between, as a dial; omega: the same
    as ω′. By default the prior's own α, if its file contains it (with --kl-budget at least e⁻² of what a nat is worth),
    else a third of ω′, else scaled from the add-on's reward."""
    states: float | None = None
    """Price of a nat by which a state is less likely than the prior's own states. By default what a nat is worth in the
    old reward if ω′ is left out or is a range; with one value of ω′, a budget in nats, kl or greedy it is 0."""
    objective: Literal["residual", "kl", "greedy"] = "residual"
    """residual: separate omega and alpha; kl: omega equal to alpha; greedy: the add-on alone."""
    observe: str = ""
    """For a Dict observation, parts that the policy sees: KEY or KEY,KEY; by default the one that fits the prior."""
    observe_critic: str = ""
    """What the critic sees, while training: KEY or KEY,KEY. By default, if --observe is not named, privileged_state
    beside state, critic beside policy; else what the policy sees."""
    init: str = "auto"
    """copy: the actor starts as the prior; clone: it is first fitted to the prior, which only scores; auto: clone only
    what cannot be copied; FILE: it starts as another policy of the prior's shape, such as one that plan saved."""
    out: Path | None = None
    """The run's folder; by default runs/PRIOR-OBJECTIVE-SEED."""
    report: bool = True
    """At the end, evaluate and film the prior and the result, and write report.html into the folder."""
    UNUSED: ClassVar = ACTOR_SETTINGS  # settings without effect here

    def run(self) -> dict[str, Any]:
        from repolicy.learning.training import customize
        from repolicy.prepare.session import folder_for

        warn_of_unfinished(self.prior)
        objective, settings = self.parse_objective(), overrides(self)
        folder = folder_for(self.out, self.prior, objective, settings, self.resume)
        result = customize(
            self.prior, self.addon, objective, folder, settings,
            env=self.env, resume=self.resume, callbacks=make_callbacks(folder, self.wandb), progress=False,
            env_timeout=self.env_timeout, observe=self.observe, observe_critic=self.observe_critic,
            trust=self.trust, reading=self.reading, init=self.init, noise=self.noise, chunk=self.chunk,
            sparse=self.sparse, limits=self.limit,
        )  # fmt: skip
        return report_end(result) | (_write_report(result) if self.report else {})

    def parse_objective(self) -> Objective:
        """Return the objective that the options name; weights that they leave out are None."""
        omega, alpha = parse_weight("omega", self.omega), parse_weight("alpha", self.alpha)
        return objective_by_name(self.objective, omega=omega, alpha=alpha, states=self.states)


@dataclass(frozen=True)
class Imitate(Command):
    """Fit a policy to recorded observations and actions, as a prior to customize: a Gaussian, or a flow.

    Example: repolicy imitate demos.npz --env HalfCheetah-v4 --out imitated.safetensors
    """

    data: Annotated[str, Positional("DATA")]
    """An .npz file with observations [M, O] and actions [M, A], or the name of a Minari dataset."""
    env: str | None = None
    """Environment in which the policy is checked and, but for a flow, tried, and in which customize then continues."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers."""
    state_std: bool = False
    """Fit a std that depends on the state, instead of one for all states."""
    flow: bool = False
    """Fit a flow: a generative policy, which can represent several ways of doing the same thing."""
    chunk: int = 1
    """For a flow: the number of successive actions in its output."""
    seed: int = 0
    """Seed of the network, and of the choice of held-out data (a flow holds none out)."""
    out: Path | None = None
    """The policy's file; by default runs/DATA-imitated.safetensors, or runs/DATA-flow.onnx."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies import one_thread
        from repolicy.prepare.imitation import imitate

        if self.flow:
            return self._fit_flow()
        if self.chunk != 1:
            raise UsageError("--chunk goes with --flow")
        terminal, out = Terminal(), self.out or self._default_out("imitated.safetensors")
        with one_thread(), terminal.progress("fitting") as show:
            result = imitate(
                self.data, out, env=self.env, hidden=self.hidden, state_std=self.state_std, seed=self.seed,
                say=terminal.say,
                progress=lambda epoch, loss: show(
                    with_minus(f"fitting: epoch {epoch}, held out {loss:.4g} nats a step")
                ),
            )  # fmt: skip
        command = f"repolicy customize {shlex.quote(str(result.file))} --addon ..."
        terminal.say(f"its file: {result.file}; go on with {command}")
        summary = {} if result.evaluation is None else result.evaluation.as_dict()["summary"]
        return {"file": str(result.file), "env": result.env} | asdict(result.fit_result) | {"summary": summary}

    def _default_out(self, ending: str) -> Path:
        """Return a path by the name of the data: of a Minari dataset the whole, as in `door/human-v2`."""
        return default_out(self.data if self.data.endswith(".npz") else self.data.replace("/", "-"), ending)

    def _fit_flow(self) -> dict[str, Any]:
        from repolicy.policies import one_thread
        from repolicy.prepare.flows import STEPS, imitate_flow

        if self.state_std:
            raise UsageError("a flow has no std: leave --state-std out")
        terminal, out = Terminal(), self.out or self._default_out("flow.onnx")
        with one_thread(), terminal.progress("fitting") as show:
            result = imitate_flow(
                self.data, out, env=self.env, chunk=self.chunk, hidden=self.hidden, seed=self.seed,
                progress=lambda step: show(f"fitting: step {step:,} of {STEPS:,}"),
            )  # fmt: skip
        words = ["repolicy", "customize", str(out), "--noise", str(result.noise), "--chunk", str(result.chunk)]
        words += ["--env", result.env or "ENV", "--addon", "NAME"]
        terminal.say(f"its file: {out}, fitted to {result.chunks:,} chunks; go on with {shlex.join(words)}")
        return asdict(result) | {"file": str(out)}


def is_main_process() -> bool:
    """Return whether this process prints for the user: under torchrun, only the first one does."""
    return (torchrun_place() or (0, 1))[0] == 0


def make_callbacks(out: Path, wandb: str | None) -> list[Any]:
    """Return the callbacks of a run; under torchrun, only the first process has any."""
    from repolicy.runs import Display, TensorBoard, Wandb

    if not is_main_process():
        return []
    callbacks = [Display(), TensorBoard(out)]
    return callbacks if wandb is None else [*callbacks, Wandb(out, wandb)]


def report_end(result: "Result") -> dict[str, Any]:
    """Print how a run ended, and return the values for --json."""
    if is_main_process():  # the others may be here before the first one has written the policy
        Terminal().say(_how_it_ended(result))
    return {"folder": str(result.folder), "steps": result.steps, "finished": result.finished, "metrics": result.last}


def _how_it_ended(result: "Result") -> str:
    """Return the sentence that names the policy of a finished run, or where --resume goes on."""
    from repolicy.priors import find_policy
    from repolicy.runs import RunFolder

    if result.finished:
        return f"done: {find_policy(result.folder)} is the policy to take"
    latest = RunFolder(result.folder).latest_checkpoint()
    steps = f"the checkpoint at {latest[1]['steps']:,}" if latest else "the start: there is no checkpoint yet"
    return f"stopped after {result.steps:,} steps in {result.folder}; --resume goes on from {steps}"


def _write_report(result: "Result") -> dict[str, Any]:
    """Write the report of a finished run, and return its path; an error in the report does not fail the run."""
    from repolicy.report.run_page import write_report

    if not result.finished or not is_main_process():
        return {}
    terminal = Terminal()
    try:
        path = write_report(result, say=terminal.say)
    except RepolicyError as error:
        terminal.say(f"no report: {error}")
        return {}
    terminal.say(f"report: {path}")
    return {"report": str(path)}
