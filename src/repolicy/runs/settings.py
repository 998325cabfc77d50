"""Every option of a run. (Without torch, so that `--help` is quick.)"""

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from repolicy.errors import FileError, UsageError
from repolicy.files import read_json
from repolicy.runs.machine import physical_cores, shares_memory
from repolicy.text import format_number, suggest, with_minus


class Within(NamedTuple):
    """The range of a setting, both ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class AnySettings:
    """Base of the settings of every training method: fields are checked for type and range."""

    steps: int
    seed: int

    def __post_init__(self) -> None:
        for name, value in validate_settings(self.as_dict(), "settings", type(self)).items():
            object.__setattr__(self, name, value)  # converted: 3e6 becomes 3000000 in an int field
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            for low, high in getattr(hint, "__metadata__", ()):
                if value is not None and not low <= value <= high:
                    raise UsageError(f"{name} is {value}; it must lie between {low:.10g} and {high:.10g}")
        hidden: tuple[int, ...] = vars(self)["hidden"]
        if not 1 <= len(hidden) <= 64 or not all(1 <= size <= 16_384 for size in hidden):
            raise UsageError(f"hidden is {hidden}; it must be 1 to 64 layer sizes from 1 to 16,384, such as 64 64")

    @property
    def iteration_steps(self) -> int:
        """The number of environment steps between two lines of the metrics."""
        return 100

    @property
    def iterations(self) -> int:
        return max(1, math.ceil(self.steps / self.iteration_steps))

    @property
    def budget(self) -> "Budget | None":
        return budget_of(vars(self))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Budget(NamedTuple):
    """A target that omega, or omega and alpha, are adapted to."""

    amount: float
    metric: str  # the logged metric that is compared with the amount
    description: str  # format of a clause for people, with the amount
    comparison: str  # format of the metric, the amount, and the metric in words with as many digits as the amount

    @property
    def words(self) -> str:
        """Describe the budget: `ω′ and α̂ move to stay 2 nats a step from the prior`."""
        return self.description.format(self.amount)

    def compare(self, value: float) -> str:
        """Return a value of the metric beside the amount, in words."""
        return with_minus(self.comparison.format(value, self.amount, format_number(value, self.amount)))


_NATS = "{2} nats a step, the budget is {1:g}"
# The settings that are budgets, each with the fields of `Budget` after the amount.
BUDGETS = {
    "kl_budget": ("prior_kl", "ω′ and α̂ move to stay {:g} nats a step from the prior", _NATS),
    "log_prior_budget": ("below_prior", "ω′ moves until actions are {:g} nats less likely than the prior's own", _NATS),
    "keep": ("kept", "ω′ moves to keep {:.4g} of the old return", "{:z.1%} of the old reward a step kept, of {:.1%}"),
}

ACTOR_SETTINGS = ("family", "initial_std", "min_std")  # of a new actor; customizing takes them from the prior


def budget_of(settings: Mapping[str, Any]) -> Budget | None:
    """Return the budget in these settings, or None."""
    for name, row in BUDGETS.items():
        if isinstance(amount := settings.get(name), int | float):
            return Budget(float(amount), *row)
    return None


@dataclass(frozen=True)
class Settings(AnySettings):
    """How to train. On one kind of processor, the same settings, objective and environment end in the same bits."""

    steps: Annotated[int, Within(1, 1e15)] = 1_000_000
    """Environment steps of a run, over all ranks, rounded up to whole updates."""
    seed: Annotated[int, Within(0, 2**31 - 1)] = 0
    """Seed of everything: environments, networks, sampling, shuffling."""
    ranks: Annotated[int, Within(0, 4096)] = 0
    """Processes that share the work, each on one core; 0: one for each physical core, or as many fewer as share --envs
    evenly (not x86-64: one)."""
    envs: Annotated[int, Within(1, 1e6)] = 64
    """Environments, over all ranks."""
    n_steps: Annotated[int, Within(1, 1e6)] = 64
    """Steps of each environment between two updates."""
    checkpoint_every: Annotated[int, Within(1, 1e9)] = 100
    """Iterations between two checkpoints; each segment starts its environments anew."""

    epochs: Annotated[int, Within(1, 1000)] = 5
    """Passes over a rollout in one update."""
    minibatch: Annotated[int, Within(1, 1e9)] = 1024
    """Samples in one gradient step, over all ranks."""
    learning_rate: Annotated[float, Within(0, 10)] = 3e-4
    """Adam's step size at the start."""
    schedule: Literal["linear", "adaptive", "constant"] = "linear"
    """Learning rate over the run: linearly to 0, adapted to the KL of each update, or constant."""
    desired_kl: Annotated[float, Within(1e-9, 10)] = 0.01
    """The KL that the adaptive schedule steers for, in the last pass of an update; its rate stays in 1e-5 to 1e-2."""
    target_kl: Annotated[float | None, Within(1e-9, 10)] = None
    """End an update early once the policy has moved this far from the one that acted."""
    gamma: Annotated[float, Within(0, 1)] = 0.99
    """Discount."""
    gae_lambda: Annotated[float, Within(0, 1)] = 0.95
    """λ of the generalized advantages."""
    surrogate: Literal["clipped", "vanilla"] = "clipped"
    """PPO's clipped ratio; or the plain policy gradient, without ratio and clip, in one pass."""
    clip: Annotated[float, Within(1e-6, 1e6)] = 0.2
    """How far from 1 the ratio of probabilities may go before the loss flattens."""
    value_coefficient: Annotated[float, Within(0, 1e6)] = 0.5
    """Weight of the critic's loss."""
    max_gradient_norm: Annotated[float, Within(1e-9, 1e9)] = 0.5
    """Longer gradients are shortened to this norm."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of a rollout to mean 0 and variance 1."""
    normalize_observations: bool = True
    """Shift and scale observations by their running mean and variance; while customizing, the critic's own
    parts alone (the actor keeps the statistics of its prior)."""

    family: Literal["auto", "gaussian", "state_gaussian", "squashed", "state_squashed", "categorical"] = "auto"
    """Distribution over actions; auto: gaussian with one std for all states; squashed where bounds leave 0 out, or are
    beyond 10 --initial-std or within a tenth; categorical for discrete actions."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers, of actor and critic; while customizing, of the critic (the actor is the prior)."""
    activation: Literal["tanh", "relu", "elu", "swish", "gelu", "gelu_tanh", "leaky_relu"] = "tanh"
    """Activation of the hidden layers; while customizing, of the critic, by default the prior's."""
    initial_std: float = 1.0
    """Std of a new policy's actions, before any tanh, to which --min-std is added."""
    min_std: float = 1e-3
    """Lower bound of the std."""

    evaluation_episodes: Annotated[int, Within(0, 1e6)] = 8
    """Episodes of the short evaluation at the end of every segment, in equal shares for the ranks, of 1 at least. By
    it a better earlier policy is found at the end, and in 4 times as many episodes train measures what a nat is worth;
    0 for none of this."""
    critic_warmup: Annotated[float, Within(0, 1)] = 0.0
    """Share of the steps that fit the critic alone, before the actor moves."""
    critic_explains: Annotated[float | None, Within(-1e6, 1)] = None
    """Share of the returns that the critic must explain for the actor to move, within 3 times --critic-warmup."""
    kl_budget: Annotated[float | None, Within(1e-9, 1e6)] = None
    """Adapt omega and alpha together so that the policy stays this far from its prior, in nats a step."""
    log_prior_budget: Annotated[float | None, Within(1e-9, 1e6)] = None
    """Adapt omega alone so that actions are, to the prior, this many nats less likely than its own, on average."""
    keep: Annotated[float | None, Within(0.01, 1)] = None
    """Adapt omega so that the mean action keeps this share of what the prior's earns of the environment's own reward,
    from which the policy never learns."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments: EnvPool's where it knows the name, or one of the two."""

    @property
    def evaluated_episodes(self) -> int:
        """The number of episodes that all ranks together play in one evaluation: each has an equal share."""
        return self.evaluation_episodes and max(1, self.evaluation_episodes // self.ranks) * self.ranks

    @property
    def iteration_steps(self) -> int:
        """The number of environment steps, or of a generative policy's decisions, in one iteration over all ranks."""
        return self.envs * self.n_steps

    def resolved(self) -> "Settings":
        """Return the settings with the number of `ranks` filled in; raise if settings contradict each other."""
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise UsageError(f"{budgets[0]} and {budgets[1]} are two ways to find omega: choose one")
        if self.surrogate == "vanilla" and self.epochs != 1:
            raise UsageError(f"epochs is {self.epochs}, and the vanilla gradient holds for one pass: add --epochs 1")
        if self.iteration_steps < 2:
            raise UsageError("envs and n_steps are 1: from one step there is nothing to learn; raise --n-steps")
        ranks = self.ranks or (min(physical_cores(), self.envs) if shares_memory() else 1)
        if self.envs % ranks:
            if self.ranks:
                raise UsageError(
                    f"envs is {self.envs}, which {ranks} ranks cannot share evenly; choose a multiple of {ranks}"
                )
            ranks = max(count for count in range(1, ranks + 1) if self.envs % count == 0)
        return replace(self, ranks=ranks)


def read_settings(path: Path, kind: type[AnySettings]) -> dict[str, Any]:
    """Return the fields of a JSON file of settings; raise if a field is unknown or has the wrong type."""
    try:
        values = read_json(path)
    except FileError as error:
        raise UsageError(f"--settings: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"settings file {path} must hold an object of fields, not a {type(values).__name__}")
    return validate_settings(values, f"settings file {path}", kind)


# Settings that are read only with one choice of another setting: that choice in words, and a test for it.
CONDITIONAL_SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "desired_kl": ("schedule adaptive", lambda settings: settings.schedule == "adaptive"),
    "clip": ("surrogate clipped", lambda settings: settings.surrogate == "clipped"),
    "critic_explains": ("a critic_warmup above 0", lambda settings: settings.critic_warmup > 0.0),
}


S = TypeVar("S", bound=AnySettings)


def complete_settings(named: S | Mapping[str, Any] | None, defaults: S) -> S:
    """Return `named` if it is a settings object; for a mapping, return the default settings with its values.

    Raises UsageError for a value that would have no effect, unless it is a default value.
    """
    if isinstance(named, AnySettings):
        return named  # type: ignore[return-value]
    if named is not None and not isinstance(named, Mapping):
        need = "they must be a dict such as {'steps': 300_000}, or a Settings"
        raise UsageError(f"the settings are of type {type(named).__name__}: {need}")
    values = validate_settings(dict(named or {}), "settings", type(defaults))
    settings = replace(defaults, **values)
    for name, (condition, is_read) in CONDITIONAL_SETTINGS.items():
        harmless = (None, getattr(defaults, name, None), getattr(Settings, name, None))
        if values.get(name) not in harmless and not is_read(settings):
            raise UsageError(f"{name} is read with {condition} alone: name that too, or leave {name} out")
    return settings


def refuse_for_choices(settings: AnySettings, *names: str) -> None:
    """Raise UsageError where one of these settings, which choices have no use for, is not its default."""
    for name in names:
        if getattr(settings, name) != getattr(type(settings), name):
            raise UsageError(f"{name} is for actions that are numbers, and here they are choices: leave it out")


def validate_settings(values: dict[str, Any], where: str, cls: type[AnySettings] = Settings) -> dict[str, Any]:
    """Convert the values to the fields' types; raise if a field is unknown or a value does not fit."""
    hints, result = typing.get_type_hints(cls), {}
    names = [field.name for field in fields(cls)]
    for name, value in values.items():
        if name not in names:
            raise UsageError(f"{where} has an unknown field {name!r}{suggest(name, names)}")
        result[name] = _convert(value, hints[name], f"{where}, field {name!r}")
    return result


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Convert a value to the type of a field's annotation; `where` begins the message if it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise UsageError(f"{where} is {value!r}; choose from {', '.join(arguments)}")
        return value
    if origin is types.UnionType:
        return None if value is None else _convert(value, arguments[0], where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where} is {value!r}; it must be a list of whole numbers")
        return tuple(_convert(item, int, where) for item in value)
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(value, Real) and hasattr(value, "item"):
        value = value.item()  # a NumPy number
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if hint in (int, float) and is_number and hint(value) == value:
        return hint(value)
    raise UsageError(f"{where} is {value!r}; it must be {_TYPE_WORDS[hint]}")


_TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}
