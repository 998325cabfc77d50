"""Priors that are not a `Policy`: a function to mean actions, a program with a memory, or any object with `log_prob`.

There are three kinds of prior. *Copied*: its network becomes a `Policy`, from which the actor starts (`readers/`).
*Cloned*: it stays as it is and scores actions; the actor starts as a `Policy` that is fitted to it
(`prepare/cloning.py`). *With a memory*: as cloned, but it has a state, which is followed along each episode.
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
from repolicy.policies import ActionSpace, Distribution, Gaussian, Policy, Prior, check_has_log_prob
from repolicy.readers.reading import MIN_STD, Options

State = dict[str, Tensor]  # the memory of a program: tensors `[N, ...]`, with a row for each environment
Std = float | Sequence[float] | Tensor
MeanFunction = Callable[[Any], Any]


@runtime_checkable
class Program(Protocol):
    """A function to mean actions that has a memory."""

    def begin(self, count: int) -> State:
        """Return the memory at the start of an episode, for `count` environments."""

    def step(self, observations: Any, state: State) -> tuple[Any, State]:
        """Return the means `[N, A]` at observations `[N, O]`, and the memory after this step."""


class MeanPrior(nn.Module):
    """A Gaussian prior with a given std, whose `mean` maps observations `[N, O]` to actions `[N, A]`.

    A function gets NumPy arrays. A torch module gets tensors on their own device, and is put into evaluation mode. A
    `Program` has a memory, which is followed along each episode. The std is one number, or one for each component.
    """

    observation_size = 0  # unknown until `for_spaces`
    actions = ActionSpace("continuous", (0,))
    std: Tensor

    def __init__(self, mean: MeanFunction | Program, std: Std, name: str = "") -> None:
        super().__init__()
        self.mean, self.name = mean, name or qualname_of(mean)
        self.notes: tuple[str, ...] = ()  # sentences that a user must know
        if isinstance(mean, nn.Module):
            mean.eval()  # without dropout, and with fixed batch norm statistics
        self.program = mean if isinstance(mean, Program) else None
        self.has_memory = self.program is not None
        self._is_checked = self.has_memory  # others are called twice at first, to see whether they are deterministic
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32))
        if sha256 := getattr(mean, "sha256", ""):  # a checkpoint stores it, to recognize the prior when it is loaded
            self.register_buffer("sha256", torch.tensor([*bytes.fromhex(sha256)], dtype=torch.uint8))
        if self.std.dim() > 1 or not bool((torch.isfinite(self.std) & (self.std >= MIN_STD * (1.0 - 1e-6))).all()):
            raise UsageError(f"the std of {self.name} is {std}; it must be above 0, {MIN_STD:g} or more")

    def for_spaces(self, observation_size: int, actions: ActionSpace) -> Self:
        """Return a copy of this prior for an environment with these spaces; raise if they do not fit."""
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
        if hasattr(self.mean, "prepare"):  # a file must run to show whether it has a memory
            with in_one_sentence(f"{self.name} failed", UsageError):
                prior.has_memory = self.mean.prepare(observation_size)
        return prior

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) `[...]` of observations `[..., O]` and actions `[..., A]`."""
        if self.has_memory:
            raise UsageError(f"{self.name} has a memory: what it does depends on the steps before")
        return self.distribution(observations).log_prob(actions)

    def distribution(self, observations: Tensor) -> Distribution:
        flat = observations.reshape(-1, observations.shape[-1])
        return self.gaussian(self.means(flat, {})[0].reshape(*observations.shape[:-1], -1))

    def follow(self, observations: Tensor, ended: Tensor, state: State | None) -> tuple[Distribution, State]:
        """Return the distributions along a rollout of observations `[T, N, O]`, and the memory at its end.

        `ended` `[T, N]` marks the steps after which an episode ended; there the memory is reset.
        """
        if not self.has_memory:
            return self.distribution(observations), {}
        if state is None:
            state = self.initial_state(observations.shape[1])
        means = []
        for step_observations, step_ended in zip(observations.cpu(), ended.cpu(), strict=True):  # programs run on CPU
            mean, state = self.means(step_observations, state)
            means.append(mean)
            state = self.reset_state(state, step_ended)
        return self.gaussian(torch.stack(means).to(observations.device)), state

    def means(self, observations: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the means `[N, A]` at observations `[N, O]`, and the memory after this step; check the means."""
        with in_one_sentence(f"{self.name} failed", UsageError), torch.no_grad():
            mean, state = self._run(observations, state)
            would_wait = isinstance(self.mean, nn.Module) and observations.device.type != "cpu"  # for the device
            if not (self._is_checked or would_wait):
                self._is_checked = True
                if not torch.allclose(mean, self._run(observations, state)[0], atol=1e-6, equal_nan=True):
                    why = "it draws them at random, or remembers what came before, for which it needs begin and step"
                    raise UsageError(f"{self.name} gives different actions for the same observations: {why}")
        shape = (len(observations), self.actions.width or mean.shape[-1:].numel())
        if tuple(mean.shape) != shape:
            need = f"for {len(observations)} observations, and must give {list(shape)}, a row an environment"
            raise UsageError(f"{self.name} gave means of shape {list(mean.shape)} {need}")
        return mean, state

    def _run(self, observations: Tensor, state: State) -> tuple[Tensor, State]:
        """Call the function or the program once, on a copy of the observations, which it may change."""
        is_module = isinstance(self.mean, nn.Module)
        inputs: Any = observations.clone() if is_module else observations.cpu().numpy().copy()
        if self.program is not None:
            result, state = self.program.step(inputs, state)
        else:
            result = self.mean(inputs)  # type: ignore[operator]
        if isinstance(result, tuple) or (is_module and not isinstance(result, Tensor)):
            remedy = "name a function that takes them out of it, without sampling"
            kind = type(result).__name__
            raise UsageError(f"{self.name} gave a {kind}, and must give the mean actions alone, [N, A]: {remedy}")
        if is_module:  # whether its means are finite is not checked, as that would wait for the device
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
        """Return the memory, reset in the environments `[N]` whose episode has ended."""
        ended = ended.cpu()
        if not bool(ended.any()):
            return state
        initial = self.initial_state(len(ended))
        with in_one_sentence(f"the memory of {self.name} cannot begin anew", UsageError):
            return {key: _select_rows(ended, initial[key], value) for key, value in state.items()}

    def actor(self, steps: int, count: int, generator: torch.Generator | None = None) -> "MeanActor":
        return MeanActor(self, steps, count, generator)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        return actions

    def gaussian(self, mean: Tensor) -> Gaussian:
        return Gaussian(mean, self.std.log().expand(mean.shape[-1]))


def _select_rows(mask: Tensor, masked: Any, others: Any) -> Any:
    """Return rows `[N, ...]` of `masked` where the mask `[N]` is set, else of `others`; these are tensors or arrays."""
    where = torch.where if isinstance(others, Tensor) else np.where
    return where(mask.reshape(-1, *[1] * (np.ndim(others) - 1)), masked, others)  # type: ignore[operator]


class MeanActor:
    """An actor for a `MeanPrior`. The collector resets its memory, and passes it on to the next rollout's actor."""

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
    """A prior around any object with `log_prob(observations, actions)`, which gets tensors `[B, O]` and `[B, A]`."""

    def __init__(self, scorer: Any, name: str = "") -> None:
        self.scorer, self.name = scorer, name or qualname_of(scorer)
        if isinstance(scorer, nn.Module):
            scorer.eval()
        self.notes: tuple[str, ...] = ()

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s) `[...]`; raise unless the object returns one finite number for each action."""
        batch_shape = actions.shape[:-1]
        count = math.prod(batch_shape)
        observations = observations.expand(*batch_shape, observations.shape[-1])
        with in_one_sentence(f"log_prob of {self.name} failed", UsageError), torch.no_grad():
            flat = (part.reshape(-1, part.shape[-1]).clone() for part in (observations, actions))
            log_probs = torch.as_tensor(self.scorer.log_prob(*flat)).detach().float()
        if tuple(log_probs.shape) != (count,):
            need = f"of {count} actions it must give one number for each, [{count}]"
            raise UsageError(f"log_prob of {self.name} gave shape {list(log_probs.shape)}; {need}")
        if not bool(torch.isfinite(log_probs).all()):
            wrong = log_probs[~torch.isfinite(log_probs)]
            found = f"gave {wrong[0]:g} for {len(wrong):,} of {len(log_probs):,} actions"
            raise NumericError(f"log_prob of {self.name} {found}; it must be finite for all that a policy could take")
        return log_probs.reshape(batch_shape)


ScoringPrior = MeanPrior | ScoredPrior | Policy  # a prior that scores the actor's actions


class Scorer:
    """Computes the prior's log-probabilities in consecutive rollouts, and stores its memory between them."""

    def __init__(self, prior: Prior) -> None:
        check_has_log_prob(prior)
        self.prior: Prior = prior if isinstance(prior, ScoringPrior) else ScoredPrior(prior)
        self._state: State | None = None

    def begin(self) -> None:
        """Reset the memory, for new environments."""
        self._state = None

    @torch.no_grad()
    def __call__(self, observations: Tensor, actions: Tensor, ended: Tensor) -> Tensor:
        """Return log-probabilities `[T, N]` of actions `[T, N, A]` at observations `[T, N, O]`.

        `ended` `[T, N]` marks the steps after which an episode ended.
        """
        if not getattr(self.prior, "has_memory", False):
            return self.prior.log_prob(observations, actions)
        distribution, self._state = self.prior.follow(observations, ended, self._state)  # type: ignore[attr-defined]
        return distribution.log_prob(actions)


def generative_usage(noise: int | str) -> str:
    """Return how the commands take a generative policy, with the size of its noise, or a word for it."""
    return (
        f"customize and sweep take it with --noise {noise} and --chunk COUNT; evaluate and compare take it in the "
        f"environment, --env 'ENV?decoder=FILE&noise={noise}&chunk=COUNT', where FILE is its own name"
    )


def check_no_options(name: object, options: Options | None, kind: str = "Repolicy's own file") -> None:
    """Raise if options for other libraries' files are given for what needs none; `kind` tells the user what it is."""
    if options not in (None, Options()):
        named = [f"--{option.replace('_', '-')}" for option, value in vars(options).items() if value is not None]
        raise UsageError(f"{name} is {kind}: leave out {' and '.join(named)}, for files of other libraries")


def wrap_prior(thing: Any, std: Std | None = None, name: str = "") -> MeanPrior | ScoredPrior:
    """Wrap a user's object, class or function as a prior; raise if it cannot be one."""
    name = name or qualname_of(thing)
    if isinstance(thing, type):
        with in_one_sentence(f"{name} cannot be made without arguments", UsageError):
            thing = thing()
    if callable(getattr(thing, "log_prob", None)):
        if std is not None:
            raise UsageError(f"{name} has log_prob, which knows its own std: leave the std out")
        return thing if isinstance(thing, MeanPrior | ScoredPrior) else ScoredPrior(thing, name)
    if _is_decoder(thing):
        usage = generative_usage("COUNT")
        raise UsageError(f"{name} takes noise beside observations, as a generative policy does: {usage}")
    if not callable(thing) and not isinstance(thing, Program):
        need = "it must be a policy, an object with log_prob(observations, actions), or a function to mean actions"
        save = "; save it and name its file" if callable(getattr(thing, "save", None)) else ""
        raise UsageError(f"the prior is of type {type(thing).__name__}; {need}{save}")
    if std is None:
        raise UsageError(f"{name} gives a mean and no std: give one, such as --std 0.2 (in Python, std=0.2)")
    return MeanPrior(thing, std, name)


def _is_decoder(thing: Any) -> bool:
    """Return whether an object has `decode`, or is a function with two required parameters."""
    if callable(getattr(thing, "decode", None)):
        return True
    parameters = signature(thing).parameters.values() if isfunction(thing) else ()
    required = [each for each in parameters if each.default is each.empty]
    return len(required) == 2 and all(each.kind is each.POSITIONAL_OR_KEYWORD for each in required)


def qualname_of(thing: Any) -> str:
    """Return the qualified name of a function or a class, or that of an object's class."""
    return getattr(thing, "__qualname__", "") or type(thing).__qualname__
