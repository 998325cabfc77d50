"""The commands of the groups `repolicy llm` and `repolicy rql`. Nothing heavy is imported before one runs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from repolicy.cli.options import Command, Positional, Repeated, SettingsDefaults, overrides
from repolicy.cli.run_commands import Run, make_callbacks, report_end
from repolicy.files import check_writable, write_bytes
from repolicy.objective import residual
from repolicy.objective_names import objective_by_name
from repolicy.readers.reading import Options
from repolicy.rql.hyperparameters import TASKS, Settings, customize_defaults, train_defaults
from repolicy.runs import Terminal
from repolicy.text import escaped

RUNS_FOLDER = Path("runs/rql")


@contextmanager
def _print_warnings() -> Iterator[None]:
    """Print warnings as plain sentences, and leave out FutureWarnings, which are for the authors of the libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.showwarning = lambda message, *_: Terminal().say(f"warning: {message}")
        yield


@dataclass(frozen=True)
class Generate(Command):
    """Generate text with one or two tuned models, at another omega than the ones they were trained at.

    Example: repolicy llm generate runs/low runs/high --prior runs/prior --omega 0.25 --prompt "Once"
    """

    models: Annotated[tuple[str, ...], Positional("MODEL")]
    """Folders of one or two tuned models, or of their adapters."""
    prior: str
    """The model that they were tuned from."""
    omega: float
    """The position of the dial: the weight of the prior's log-probability."""
    prompt: tuple[str, ...]
    """One or more prompts."""
    alpha: float | None = None
    """Weight of the entropy; by default that of the first model."""
    count: int = 1
    """Number of responses to each prompt."""
    tokens: int = 128
    """Maximum number of tokens in a response."""
    chat: bool = False
    """Write the prompts with the tokenizer's chat template."""
    trained_at: tuple[str, ...] = ()
    """omega,alpha of each model, for models without a repolicy.json; such as 0.1,0.2."""
    seed: int = 0
    """Seed of the sampling."""

    def run(self) -> dict[str, Any]:
        from repolicy.llm import require_trl

        require_trl()
        from repolicy.llm.models import generate

        with _print_warnings():
            responses = generate(
                self.models, self.prior, self.prompt, omega=self.omega, alpha=self.alpha, count=self.count,
                tokens=self.tokens, chat=self.chat, trained_at=self.trained_at, seed=self.seed,
            )  # fmt: skip
        return {"omega": self.omega, "responses": responses}

    def text(self, values: dict[str, Any]) -> str:
        text = "\n".join(f"{response['prompt']}{response['text']}" for response in values["responses"])
        return escaped(text, kept="\n\t")  # a model's text can contain control characters of the terminal


@dataclass(frozen=True)
class Evaluate(Command):
    """Compare models with their prior on a page: add-on, log prior, KL, length and entropy, with intervals.

    Example: repolicy llm evaluate runs/low runs/high --prior runs/prior --prompts p.jsonl --reward my_rewards:brevity
    """

    models: Annotated[tuple[str, ...], Positional("MODEL")]
    """Folders of tuned models, or of their adapters."""
    prior: str
    """The model that they were tuned from; it is evaluated as well."""
    prompts: Path
    """A JSON-lines file with a column prompt (text, or a list of messages), and any columns that the reward reads."""
    reward: str
    """The add-on reward, as TRL calls it: module:function or file.py:function."""
    responses: int = 8
    """Number of responses of each model to each prompt."""
    tokens: int = 128
    """Maximum number of tokens in a response."""
    out: Path = Path("evaluation.html")
    """The page; an existing one is replaced."""
    seed: int = 0
    """Seed of the sampling."""

    def run(self) -> dict[str, Any]:
        from repolicy.llm import require_trl

        require_trl()
        from repolicy.llm.models import MEASURES, evaluate, format_interval

        check_writable(self.out)
        with _print_warnings():
            models, page = evaluate(
                self.models, self.prior, self.prompts, self.reward,
                responses=self.responses, tokens=self.tokens, seed=self.seed,
            )  # fmt: skip
        rows = [[model["model"], *(format_interval(**model[name]) for name in MEASURES)] for model in models]
        Terminal().numbers("Means over prompts, and 95 % intervals", ["", *MEASURES.values()], rows)
        write_bytes(self.out, page.encode())
        Terminal().say(f"page: {self.out}")
        return {"page": str(self.out), "models": models}


LLM: dict[str, Any] = {"generate": Generate, "evaluate": Evaluate}


@dataclass(frozen=True, kw_only=True)
class ResidualQLearning(Run):
    """A command of Residual Q-learning, with its settings as options."""

    named_settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, kw_only=True)
class Train(ResidualQLearning):
    """Train a soft Q-learning policy from nothing, as a prior or a baseline.

    Example: repolicy rql train cartpole --out runs/cartpole
    """

    env: Annotated[str, Positional("TASK")]
    """cartpole, mountain_car, highway, parking; or any environment, as a Gymnasium id or module:callable."""
    objective: Literal["soft", "full", "greedy"] | None = None
    """soft: the basic reward; full: basic and add-on; greedy: the add-on alone; by default soft, or that of the
    resumed run."""
    alpha: float | None = None
    """α, the reward that a nat of entropy is worth; by default the task's own."""
    addon: Repeated = ()
    """Add-on reward for full and greedy, as in `repolicy customize`; by default info["addon_reward"]."""
    out: Path | None = None
    """The run's folder; by default runs/rql/TASK-OBJECTIVE-SEED."""
    trust: bool = False
    """Run code that the resumed run names as environment or add-on."""

    @staticmethod
    def defaults(env: str = "") -> SettingsDefaults:
        return "the environment", [train_defaults(each) for each in ([env] if env else ["", *TASKS])]

    def run(self) -> dict[str, Any]:
        from repolicy.prepare.session import folder_for
        from repolicy.rql.customizing import train

        settings = overrides(self, Settings)
        objective = objective_by_name(self.objective or "soft")
        folder = folder_for(self.out, self.env, objective, settings, self.resume, RUNS_FOLDER)
        return report_end(
            train(
                self.env, objective if self.objective else None, folder, settings,
                alpha=self.alpha, addon=self.addon, resume=self.resume, callbacks=make_callbacks(folder, self.wandb),
                env_timeout=self.env_timeout, trust=self.trust,
            )
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Customize(ResidualQLearning):
    """Give a policy a new requirement by Residual Q-learning, without the reward that trained it.

    Example: repolicy rql customize runs/cartpole --omega 1 --alpha 1
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy: a policy's file, a run's folder, or a name that ships."""
    omega: float | None = None
    """ω′, the reward that a nat of the prior's log-likelihood is worth; by default as in `repolicy customize`, if an
    --addon is named."""
    alpha: float | None = None
    """α̂, the reward that a nat of entropy is worth; by default the prior's own α, if its file tells it, else, if an
    --addon is named, as in `repolicy customize`."""
    states: float | None = None
    """Price on states that the prior does not visit, as in `repolicy customize`; for discrete actions it is 0."""
    addon: Repeated = ()
    """Add-on reward, as in `repolicy customize`; by default info["addon_reward"]."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    out: Path | None = None
    """The run's folder; by default runs/rql/PRIOR-residual-SEED."""
    trust: bool = False
    """Run code that the resumed run or the prior's file names as environment or add-on."""
    reading: Options = field(default_factory=Options)

    @staticmethod
    def defaults(_: str = "") -> SettingsDefaults:
        return "the environment", [customize_defaults(env) for env in ("", *TASKS)]

    def run(self) -> dict[str, Any]:
        from repolicy.prepare.session import folder_for
        from repolicy.rql.customizing import customize

        settings = overrides(self, Settings)
        folder = folder_for(self.out, self.prior, residual(), settings, self.resume, RUNS_FOLDER)
        objective = objective_by_name("residual", omega=self.omega, alpha=self.alpha, states=self.states)
        return report_end(
            customize(
                self.prior, objective, folder, settings, addon=self.addon, env=self.env, reading=self.reading,
                resume=self.resume, callbacks=make_callbacks(folder, self.wandb), env_timeout=self.env_timeout,
                trust=self.trust,
            )
        )  # fmt: skip


RQL: dict[str, Any] = {"train": Train, "customize": Customize}
