"""Priors that are none of our networks: a function that gives a mean, a program with a memory, any log_prob.

There are three depths of prior. *Copied*: its network is one of ours, and the actor starts as it (`readers/`).
*Cloned*: its log-probability goes into the return, and the actor is a policy of ours that is fitted to it
(`prepare/cloning.py`). *With a memory*: the same, and its state runs along with each episode.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from inspect import isfunction, signature
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import NumericError, UsageError, in_one_sentence
from repolicy.policies import ActionSpace, Distribution, Gaussian, Policy, Prior
from repolicy.readers.reading import MIN_STD, Options

State = dict[str, Tensor]  # what a program remembers: each tensor with a row an environment
Std = float | Sequence[float] | Tensor
MeanFunction = Callable[[Any], Any]


@runtime_checkable
class Program(Protocol):
    """A mean that depends on what came before, too."""

    def begin(self, count: int) -> State:
        """Return what it remembers at the start of an episode, for `count` environments."""

    def step(self, observations: Any, state: State) -> tuple[Any, State]:
        """Return the means `[N, A]` at observations `[N, O]`, and what it remembers afterwards."""


class MeanPrior(nn.Module):
    """A Gaussian prior: `mean` maps observations `[N, O]` to actions `[N, A]`, and you say the std.

    The function gets NumPy arrays; a torch module gets tensors, on the device where they are, and is put into its mode
    of evaluation. A `Program` remembers: its state runs along with an episode. The std is one number, or one for each
    number of an action.
    """

    observation_size = 0  # until an environment is known
    actions = ActionSpace("continuous", (0,))
    std: Tensor

    def __init__(self, mean: MeanFunction | Program, std: Std, name: str = "") -> None:
        super().__init__()
        self.mean, self.name = mean, name or qualname_of(mean)
        self.notes: tuple[str, ...] = ()  # what is to be known of it, a sentence each
        if isinstance(mean, nn.Module):
            mean.eval()  # without dropout, and with the statistics of a batch norm as they are
        self.program = mean if isinstance(mean, Program) else None
        self.has_memory = self.program is not None
        self._tried = self.has_memory or isinstance(mean, nn.Module)  # for whose numbers a device would be waited for
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32))
        if file := getattr(mean, "sha256", ""):  # by which a checkpoint knows the prior that it was made beside
            self.register_buffer("sha256", torch.tensor([*bytes.fromhex(file)], dtype=torch.uint8))
        if self.std.dim() > 1 or not bool((torch.isfinite(self.std) & (self.std >= MIN_STD * (1.0 - 1e-6))).all()):
            raise UsageError(f"the std of {self.name} is {std}; it must be above 0, {MIN_STD:g} or more")

    def for_spaces(self, observation_size: int, actions: ActionSpace) -> Self:
        """Return the same prior for an environment with these spaces."""
        if actions.kind != "continuous":
            need = "which have no mean: give an object with log_prob(observations, actions)"
            raise UsageError(f"{self.name} gives a mean, and this environment's actions are {actions}, {need}")
        if self.std.dim() and len(self.std) != actions.width:
            raise UsageError(f"{self.name} has {len(self.std)} stds, and an action has {actions.width} numbers")
        size = getattr(self.mean, "observation_size", 0)
        if size not in (0, observation_size):
            raise UsageError(f"{self.name} takes observations of {size} numbers, the environment's: {observation_size}")
        prior = copy(self)
        prior.observation_size, prior.actions = observation_size, actions
        if hasattr(self.mean, "prepare"):  # a file shows only when it runs whether it has a memory
            with in_one_sentence(f"{self.name} failed", UsageError):
                prior.has_memory = self.mean.prepare(observation_size)
        return prior

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) of observations `[..., O]`."""
        if self.has_memory:
            raise UsageError(f"{self.name} has a memory: what it does depends on the steps before")
        return self.distribution(observations).log_prob(actions)

    def distribution(self, observations: Tensor) -> Distribution:
        flat = observations.reshape(-1, observations.shape[-1])
        return self.gaussian(self.means(flat, {})[0].reshape(*observations.shape[:-1], -1))

    def follow(self, observations: Tensor, ended: Tensor, state: State | None) -> tuple[Distribution, State]:
        """Return the distributions along a rollout `[T, N]`, in the order of time, and what is remembered at its end.

        ended `[T, N]`: after which steps an episode ended, so that the next one begins with a fresh memory.
        """
        if not self.has_memory:
            return self.distribution(observations), {}
        means, state = [], self.initial_state(observations.shape[1]) if state is None else state
        for step, last in zip(observations.cpu(), ended.cpu(), strict=True):  # where programs run
            mean, state = self.means(step, state)
            means.append(mean)
            state = self.reset_state(state, last)
        return self.gaussian(torch.stack(means).to(observations.device)), state

    def means(self, observations: Tensor, state: State) -> tuple[Tensor, State]:
        """Call the function or the program once, on a copy that it may change, and check what it gave.

        Nothing waits for what a torch module gives, so whether that is finite shows later.
        """
        with in_one_sentence(f"{self.name} failed", UsageError), torch.no_grad():
            mean, state = self._run(observations, state)
            if not self._tried:
                self._tried = True
                if not torch.allclose(mean, self._run(observations, state)[0], atol=1e-6, equal_nan=True):
                    why = "it draws them at random, or remembers what came before, for which it needs begin and step"
                    raise UsageError(f"{self.name} gives different actions for the same observations: {why}")
        wanted = (len(observations), self.actions.width or mean.shape[-1:].numel())
        if tuple(mean.shape) != wanted:
            given = f"for {len(observations)} observations, and must give {list(wanted)}, a row an environment"
            raise UsageError(f"{self.name} gave means of shape {list(mean.shape)} {given}")
        return mean, state

    def _run(self, observations: Tensor, state: State) -> tuple[Tensor, State]:
        of_module = isinstance(self.mean, nn.Module)
        given: Any = observations.clone() if of_module else observations.cpu().numpy().copy()
        if self.program is not None:
            result, state = self.program.step(given, state)
        else:
            result = self.mean(given)  # type: ignore[operator]
        if of_module:
            return result.detach().float(), state
        mean = torch.as_tensor(np.asarray(result.detach() if isinstance(result, Tensor) else result)).float()
        self.check_finite(mean)
        return mean.to(observations.device), state

    def check_finite(self, mean: Tensor) -> None:
        if not bool(torch.isfinite(mean).all()):
            raise NumericError(f"{self.name} gave a mean that is not finite")

    def initial_state(self, count: int) -> State:
        with in_one_sentence(f"begin of {self.name} failed", UsageError):
            return self.program.begin(count) if self.program is not None else {}

    def reset_state(self, state: State, ended: Tensor) -> State:
        """Return the memory with the rows of ended episodes as at the start."""
        ended = ended.cpu()
        if not bool(ended.any()):
            return state
        fresh = self.initial_state(len(ended))
        with in_one_sentence(f"the memory of {self.name} cannot begin anew", UsageError):
            return {key: _mixed(ended, fresh[key], value) for key, value in state.items()}

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "MeanActor":
        return MeanActor(self, steps, count, generator)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions

    def gaussian(self, mean: Tensor) -> Gaussian:
        return Gaussian(mean, self.std.log().expand(mean.shape[-1]))


def _mixed(rows: Tensor, these: Any, others: Any) -> Any:
    """Return these rows of the first tensor or array `[N, ...]`, and the others of the second."""
    where = torch.where if isinstance(others, Tensor) else np.where
    return where(rows.reshape(-1, *[1] * (np.ndim(others) - 1)), these, others)  # type: ignore[operator]


class MeanActor:
    """A `MeanPrior` at work. Whoever drives it says which episodes ended, and hands its memory to the next one."""

    def __init__(self, prior: MeanPrior, steps: int, count: int, generator: torch.Generator | None) -> None:
        self._prior, self.memory, self._means = prior, prior.initial_state(count), list[Tensor]()
        shape = (steps, count, prior.actions.width)
        noise = torch.zeros(shape) if generator is None else torch.randn(shape, generator=generator)
        self._noise = iter((noise * prior.std).numpy())

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        mean, self.memory = self._prior.means(torch.from_numpy(observations), self.memory)
        self._prior.check_finite(mean)
        self._means.append(mean)
        return mean.numpy() + next(self._noise)

    def reset_memory(self, ended: np.ndarray) -> None:
        self.memory = self._prior.reset_state(self.memory, torch.from_numpy(ended))

    def log_probs(self, actions: Tensor) -> Tensor:
        return self._prior.gaussian(torch.stack(self._means)).log_prob(actions)


class ScoredPrior:
    """Any object with `log_prob(observations, actions)`, of tensors `[B, O]` and `[B, A]`. Its numbers are checked."""

    def __init__(self, scorer: Any, name: str = "") -> None:
        self.scorer, self.name = scorer, name or qualname_of(scorer)
        if isinstance(scorer, nn.Module):
            scorer.eval()
        self.notes: tuple[str, ...] = ()

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        lead = actions.shape[:-1]
        observations = observations.expand(*lead, observations.shape[-1])
        with in_one_sentence(f"log_prob of {self.name} failed", UsageError), torch.no_grad():
            flat = (part.reshape(-1, part.shape[-1]).clone() for part in (observations, actions))
            log_probs = torch.as_tensor(self.scorer.log_prob(*flat)).detach().float()
        if tuple(log_probs.shape) != (math.prod(lead),):
            must = f"of {math.prod(lead)} actions it must give one number for each, [{math.prod(lead)}]"
            raise UsageError(f"log_prob of {self.name} gave shape {list(log_probs.shape)}; {must}")
        if not bool(torch.isfinite(log_probs).all()):
            wrong = log_probs[~torch.isfinite(log_probs)]
            gave = f"gave {wrong[0]:g} for {len(wrong):,} of {len(log_probs):,} actions"
            raise NumericError(f"log_prob of {self.name} {gave}; it must be finite for all that a policy could take")
        return log_probs.reshape(lead)


ScoringPrior = MeanPrior | ScoredPrior | Policy  # a prior that scores the actions of an actor, as it is or fitted to it


class Scorer:
    """log prior of rollouts that go on where the last one stopped: a prior with a memory remembers in between."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self._state: State | None = None

    def begin(self) -> None:
        """Begin with new environments."""
        self._state = None

    @torch.no_grad()
    def __call__(self, observations: Tensor, actions: Tensor, ended: Tensor) -> Tensor:
        """Return log-probabilities `[T, N]` of observations `[T, N, O]` and actions `[T, N, A]`; ended `[T, N]`."""
        if not getattr(self.prior, "has_memory", False):
            return self.prior.log_prob(observations, actions)
        distribution, self._state = self.prior.follow(observations, ended, self._state)  # type: ignore[attr-defined]
        return distribution.log_prob(actions)


GENERATIVE = (
    "customize takes it with --noise COUNT and --chunk COUNT, and other commands take it in the environment "
    "--env 'ENV?decoder=FILE&noise=COUNT&chunk=COUNT', where FILE is its own name"
)


def check_generative_options(name: str, options: Options | None) -> None:
    """Refuse options of reading a file for a generative policy, which runs as it is."""
    if options not in (None, Options()):
        raise UsageError(f"{name} is a generative policy and runs as it is: leave out --std and what else reads a file")


def wrap_prior(thing: Any, std: Std | None = None, name: str = "") -> MeanPrior | ScoredPrior:
    """Return the prior that an object or a function of the user's stands for."""
    name = name or qualname_of(thing)
    if isinstance(thing, type):
        with in_one_sentence(f"{name} cannot be made without arguments", UsageError):
            thing = thing()
    if callable(getattr(thing, "log_prob", None)):
        if std is not None:
            raise UsageError(f"{name} has log_prob, which knows its own std: leave the std out")
        return thing if isinstance(thing, MeanPrior | ScoredPrior) else ScoredPrior(thing, name)
    if _decodes(thing):
        raise UsageError(f"{name} takes noise beside observations, as a generative policy does: {GENERATIVE}")
    if not callable(thing) and not isinstance(thing, Program):
        need = "it must be a policy, an object with log_prob(observations, actions), or a function to mean actions"
        save = "; save it and name its file" if callable(getattr(thing, "save", None)) else ""
        raise UsageError(f"the prior is of type {type(thing).__name__}; {need}{save}")
    if std is None:
        raise UsageError(f"{name} gives a mean and no std: give one with --std (in Python, std=), such as 0.2")
    return MeanPrior(thing, std, name)


def _decodes(thing: Any) -> bool:
    """Return whether this has `decode`, or is a function of two inputs."""
    if callable(getattr(thing, "decode", None)):
        return True
    given = signature(thing).parameters.values() if isfunction(thing) else ()
    plain = [each for each in given if each.default is each.empty]
    return len(plain) == 2 and all(each.kind is each.POSITIONAL_OR_KEYWORD for each in plain)


def qualname_of(thing: Any) -> str:
    """Return what people call it, in a sentence."""
    return getattr(thing, "__qualname__", "") or type(thing).__qualname__
