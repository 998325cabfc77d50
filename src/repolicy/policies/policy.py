"""Policies map observations to a distribution over actions.

A `Policy` is a network, a family of distributions and its own observation normalizer, in one module. Whatever else acts
(a planner, a network of another library) is an `Agent`. A *prior* is any object with `log_prob(observations, actions)`.
"""

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies.distributions import ActionSpace, Distribution
from repolicy.policies.families import FAMILIES, STDS, Draw
from repolicy.policies.network import ACTIVATIONS, Mlp
from repolicy.policies.normalizer import OBSERVATION_BOUND, Normalizer


class Prior(Protocol):
    """A policy that customizing can start from: all that it needs is the log-probability of actions."""

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) of raw observations `[..., O]` and stored actions `[..., A]`; SAC also needs its gradient.

        Actions are stored as they were sampled. Discrete choices count from 0, even if the environment's do not.
        """


def check_has_log_prob(prior: object) -> None:
    """Raise if an object has no `log_prob`."""
    if not callable(getattr(prior, "log_prob", None)):
        need = "it has no log_prob(observations, actions); load_policy reads a policy from its file"
        raise UsageError(f"this {type(prior).__name__} cannot be a prior: {need}")


class Actor(Protocol):
    """What an agent uses to act in N environments for one rollout."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return stored actions `[N, A]` for raw observations `[N, O]`."""

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return log π `[T, N]` of the actions `[T, N, A]` that this actor took, under the policy of that time."""


@runtime_checkable
class RecurrentActor(Protocol):
    """An actor with a memory. The next rollout's actor continues with it; the end of an episode resets it."""

    memory: Any

    def reset_memory(self, ended: np.ndarray) -> None:
        """Reset the memory of the environments whose episode has ended, a mask `[N]`."""


@runtime_checkable
class EnvAwareAgent(Protocol):
    """An agent that needs access to its environments, such as a planner that copies them."""

    backend: Any  # the environments must be of this backend

    def watch(self, envs: Any) -> None:
        """Give the agent the environments in which it will act."""


class Agent(Protocol):
    """An object that can act. Collectors, evaluations and films need no more than this."""

    @property
    def observation_size(self) -> int: ...
    @property
    def actions(self) -> ActionSpace: ...

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> Actor:
        """Return an actor for up to `steps` steps in `count` environments; without a generator it takes the modes."""

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Convert stored actions `[N, A]` to the form that the environment takes."""


@dataclass(frozen=True)
class PolicySpec:
    """The settings from which a policy is built, apart from its weights."""

    observation_size: int
    actions: ActionSpace
    family: str = "gaussian"
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    initial_std: float = 1.0
    min_std: float = 1e-3
    std: str = "exp"
    observation_bound: float | None = OBSERVATION_BOUND
    slope: float = 0.01  # negative slope of leaky_relu
    norms: tuple[str, ...] = ()  # LayerNorm per hidden layer: "before" or "after" its activation, or "" for none
    epsilon: float = 1e-5  # of LayerNorm
    std_bounds: tuple[float, float] = (-math.inf, math.inf)  # bounds of the raw std, before `std` transforms it
    mean_clip: float | None = None  # the mean is clipped to ± this, before any tanh
    clips: bool = False  # whether the environment gets clipped actions; their log-probability is that of the unclipped

    @property
    def features(self) -> int:
        """Number of inputs of the last layer."""
        return self.hidden[-1] if self.hidden else self.observation_size

    def __post_init__(self) -> None:
        for option, name, choices in (
            ("family", self.family, FAMILIES),
            ("activation", self.activation, ACTIVATIONS),
            ("form of a std", self.std, STDS),
        ):
            if name not in choices:
                raise UsageError(f"there is no {option} {name!r}; choose from {', '.join(choices)}")
        if FAMILIES[self.family].kind != self.actions.kind:
            raise UsageError(f"a {self.family} policy cannot act with {self.actions.kind} actions ({self.actions})")
        self._check_bounds()
        if any(size < 1 for size in self.hidden):
            raise UsageError(f"hidden is {self.hidden}; it must be layer sizes, such as 64 64")
        if self.norms and (len(self.norms) != len(self.hidden) or not {*self.norms} <= {"", "before", "after"}):
            raise UsageError(f"norms is {self.norms}; for each hidden layer it must say before, after or nothing")
        if not 0 <= self.min_std < self.initial_std:
            raise UsageError(f"stds must satisfy 0 <= min_std < initial_std, not {self.min_std} and {self.initial_std}")

    def _check_bounds(self) -> None:
        """Raise if actions are squashed or clipped to missing or invalid bounds. A clip may be open on one side."""
        low, high, squashes = self.actions.low, self.actions.high, FAMILIES[self.family].squashes
        if squashes and not (low and high and np.all(np.isfinite(low + high))):
            raise UsageError("a squashed policy needs bounded actions; this environment's have no bounds")
        if squashes and self.clips:
            raise UsageError("a squashed policy's actions are within their bounds: it cannot clip them, too")
        if not (squashes or self.clips):
            return
        if not len(low) == len(high) == self.actions.width or not np.all(np.less_equal(low, high)):
            raise UsageError(f"the bounds of {self.actions} are {low} and {high}; each needs a lower and a higher one")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PolicySpec":
        """Rebuild a spec from `asdict(spec)`, also after JSON has turned its tuples into lists."""
        space = values["actions"]
        actions = ActionSpace(space["kind"], tuple(space["sizes"]), tuple(space["low"]), tuple(space["high"]))
        tuples: dict[str, Any] = {name: tuple(values[name]) for name in ("hidden", "norms", "std_bounds")}
        return cls(**values | {"actions": actions} | tuples)


class Policy(nn.Module):
    """A network that maps observations to a distribution over actions."""

    log_std: nn.Parameter | None  # the raw std, where it does not depend on the state
    groups: tuple[str, ...] = ()  # names of the parts of a Dict observation, in order, where its file tells them

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec, self.family = spec, FAMILIES[spec.family]
        self.observation_size, self.actions = spec.observation_size, spec.actions
        self.normalizer = Normalizer(spec.observation_size, spec.observation_bound)
        self.network = Mlp(
            spec.observation_size, spec.hidden, self.family.output_size(spec), spec.activation, last_gain=0.01,
            slope=spec.slope, norms=spec.norms, epsilon=spec.epsilon,
        )  # fmt: skip
        self.register_parameter("log_std", None)
        shape = self.family.raw_std_shape(spec)
        if shape is not None:
            self.log_std = nn.Parameter(torch.full(shape, STDS[spec.std].inverse(spec.initial_std)))

    def forward(self, observations: Tensor) -> Distribution:
        """Return the distribution over actions at raw observations `[..., O]`."""
        return self.distribution(self.normalizer(observations))

    def distribution(self, inputs: Tensor) -> Distribution:
        """Return the distribution over actions at normalized observations."""
        return self.head(self.network(inputs))

    def head(self, outputs: Tensor) -> Distribution:
        """Return the distribution whose parameters are the network's outputs `[..., outputs]`."""
        return self.family.distribution(outputs, self.spec, self.log_std)

    @property
    @torch.no_grad()
    def std(self) -> Tensor | None:
        """The std `[A]` if it is the same in all states; None if it depends on the state, or if there is none."""
        if self.log_std is None or self.log_std.dim() > 1:
            return None
        outputs = self.log_std.new_zeros(self.family.output_size(self.spec))
        return self.head(outputs).log_std.exp()  # type: ignore[attr-defined]

    @torch.no_grad()
    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "NetworkActor":
        """Return an actor with the current parameters. It samples or, without a generator, takes the modes."""
        if generator is None:
            return NetworkActor(self, lambda outputs: self.family.mode(torch.from_numpy(outputs), self.spec).numpy())
        return NetworkActor(self, self.family.sampler(steps, count, self.spec, self.log_std, generator))

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) `[...]` of observations `[..., O]` and stored actions `[..., A]`, without gradient.

        This makes a policy a prior. Discrete choices count from 0, even if the environment starts elsewhere.
        """
        actions = self._check_actions(observations, actions)
        return self(observations.float()).log_prob(actions)

    def _check_actions(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the actions as `[..., A]`; raise if a shape or a choice is not one of this policy."""
        if self.actions.kind == "discrete" and actions.dim() < observations.dim():
            actions = actions[..., None]  # a single choice may come without its axis
        if observations.shape[-1:] != (self.observation_size,):
            takes = f"the policy takes {self.observation_size}"
            raise UsageError(f"observations have the shape {tuple(observations.shape)}; of each step {takes} numbers")
        if actions.shape != (*observations.shape[:-1], self.actions.width):
            shapes = f"actions have the shape {tuple(actions.shape)} and observations {tuple(observations.shape)}"
            raise UsageError(f"{shapes}; of each step the policy takes {self.actions.width} numbers as the action")
        if self.actions.kind == "discrete":
            for head, size in enumerate(self.actions.sizes):
                choices = actions[..., head]
                if bool(((choices < 0) | (choices >= size)).any()):
                    hint = f"; the environment counts from {self.actions.low[head]:g}" if self.actions.low else ""
                    found = f"actions go from {choices.min():g} to {choices.max():g}"
                    raise UsageError(f"{found}; the policy has choices 0 to {size - 1}{hint}")
        return actions

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """Return (action, None) for one observation `[O]` or several `[N, O]`, with the interface of Stable-Baselines3.

        The action has the environment's numbers: the mode if `deterministic`, else a sample. One of several dimensions
        comes flat, and a single choice as a number, also where the environment takes `MultiDiscrete([4])` or
        `MultiBinary(1)`. Discrete choices count as in the environment, whereas `log_prob` counts them from 0.
        """
        shape = np.shape(observation)  # () of a Dict
        if len(shape) not in (1, 2) or shape[-1] != self.observation_size:
            takes = f"the policy takes observations of {self.observation_size} numbers, one or a row each"
            raise UsageError(f"{takes}, laid out flat; got {type(observation).__name__} of shape {tuple(shape)}")
        observations = np.asarray(observation, np.float32)
        rows = np.atleast_2d(observations)
        actor = self.actor(1, len(rows), None if deterministic else torch.default_generator)
        actions = self.to_environment(actor(rows))
        if self.actions.kind == "discrete":
            actions = actions.astype(np.int64) + np.array(self.actions.low or 0, np.int64)
            if self.actions.width == 1:
                actions = actions[:, 0]
        return (actions if observations.ndim == 2 else actions[0]), None

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Convert stored actions `[N, A]` to the form that the environment takes."""
        low, high = self.spec.actions.float32_bounds
        sent = np.asarray(self.family.to_environment(actions, low, high))
        # Where tanh is ±1, rounding leaves the bounds.
        return sent.clip(low, high) if self.spec.clips or self.family.squashes else sent

    def reinitialized(self) -> Self:
        """Return a policy of the same architecture with new weights."""
        return type(self)(self.spec)


def make_policy(spec: PolicySpec, seed: int) -> Policy:
    """Return a new policy with weights drawn from this seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(spec)


class NetworkActor:
    """An actor with a snapshot of a policy in NumPy, which is faster than torch right after the physics.

    The outputs are stored, so that `log_probs` need not run the network again.
    """

    def __init__(self, policy: Policy, draw: Draw) -> None:
        self._normalize, self._network = policy.normalizer.snapshot(), policy.network.snapshot()
        self._policy, self._draw = policy, draw
        self._outputs: list[np.ndarray] = []  # one entry a step

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        outputs = self._network(self._normalize(observations))
        self._outputs.append(outputs)
        return self._draw(outputs)

    @torch.no_grad()
    def log_probs(self, actions: Tensor) -> Tensor:
        return self._policy.head(torch.from_numpy(np.stack(self._outputs))).log_prob(actions)


P = TypeVar("P", bound=Policy)


def trainable_copy(policy: P) -> P:
    """Return a copy of a policy, frozen or not, whose parameters take gradients."""
    copy = policy.reinitialized()
    copy.load_state_dict(policy.state_dict())
    copy.groups = policy.groups
    return copy


def frozen(policy: P) -> P:
    """Return a copy of the policy without gradients, for use as a prior."""
    with torch.random.fork_rng(devices=[]):  # the copy's first weights are replaced, and nobody's random numbers change
        return trainable_copy(policy).requires_grad_(False).eval()


@contextlib.contextmanager
def with_torch_defaults() -> Iterator[None]:
    """Compute in float32, on the CPU, with gradients and with 0 for an underflow, whatever the program around has set.

    Leave the random streams of the modules as they were. Every public function that makes or reads a policy has this
    as its decorator.
    """
    dtype, device = torch.get_default_dtype(), torch.empty(0).device  # get_default_device() may fail in old torch
    on_cpu = contextlib.nullcontext() if device.type == "cpu" else torch.device("cpu")  # the latter slows each call
    with (
        on_cpu,
        kept_modules(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        _float32_products(),
        np.errstate(under="ignore"),
    ):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@contextlib.contextmanager
def kept_modules() -> Iterator[None]:
    """Leave the random streams of the modules `random`, NumPy and torch as they were, at the end."""
    plain, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


@contextlib.contextmanager
def _float32_products() -> Iterator[None]:
    """Multiply matrices in float32, where `torch.set_float32_matmul_precision("medium")` lets the CPU use bfloat16."""
    products: Any = getattr(torch.backends.mkldnn, "matmul", None)  # before torch 2.9 there is none
    chosen = getattr(products, "fp32_precision", "none")
    if chosen in ("none", "ieee"):
        yield
        return
    products.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.fp32_precision = chosen


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries with thread pools. They are searched once: another thread's import could block a search."""
    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and BLAS to one thread: such small networks are slower on several, and each rank has one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):  # of NumPy
            yield
    finally:
        torch.set_num_threads(before)
