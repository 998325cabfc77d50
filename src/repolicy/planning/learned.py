"""What a planner learns from the prior's steps within seconds: what is still to come after a plan's end, and a model.

The model is for an environment whose simulator cannot be had. It takes an observation for the state. Episodes do not
end in it: only the price on states keeps a plan away from where the prior falls. It does not know what the prior never
tried, so a plan is cut off where it leaves what was seen.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from repolicy.envs import Backend, Collector, Info, Rollout, Transitions, make_envs, own_numbers
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.models import Simulated
from repolicy.planning.scoring import Score, Value, step_rewards
from repolicy.policies import Mlp, Policy
from repolicy.prepare.states import rollouts_of
from repolicy.runs import Request, Settings, one_thread

MINIBATCH, LEARNING_RATE = 512, 1e-2  # at first; it falls to 0

Function = Callable[[np.ndarray], np.ndarray]


def regression(inputs: Tensor, targets: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int) -> Function:
    """Return a network's fit of targets `[M, D]` at inputs `[M, I]`: from inputs `[B, I]` to `[B, D]`."""
    middle, width = targets.mean(0), np.maximum(targets.std(0), 1e-12)
    wanted = torch.from_numpy((targets - middle) / width).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Mlp(inputs.shape[1], hidden, targets.shape[1])
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        order = [rows for _ in range(epochs) for rows in torch.randperm(len(inputs)).split(MINIBATCH)]
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(order))
        for rows in order:
            loss = (network(inputs[rows]) - wanted[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
    run = network.snapshot()

    def fitted(rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = middle + width * run(rows).astype(np.float64)
        return found

    return fitted


BLOCKS = 32  # of the prior's rollouts, of 64 environments and 50 steps each: with fewer, few of its falls are seen
AHEAD = 100  # steps that must be known behind one whose value is learned
HIDDEN, EPOCHS = (64, 64), 8
NETWORKS = 4  # whose mean is the value, because a planner goes where a single one is too high


def rollouts_in(prior: Policy, env: str, seed: int) -> list[Rollout]:
    """Return what the prior's sampled actions do in some thousand steps."""
    with closing(rollouts_of(prior, Request(env, residual(), Settings(seed=seed)))) as rollouts:
        return [*islice(rollouts, BLOCKS)]


def fitted_value(
    prior: Policy, rollouts: Sequence[Rollout], score: Score, seed: int = 0, of_ends: bool = False
) -> Value:
    """Return V by regression on the discounted sums of what a planner scores, along the prior's sampled actions.

    Raises where the prior's episodes are too short, or with `of_ends` where none of them ends early.
    """
    rewards = np.concatenate([rewards_of(prior, rollout, score) for rollout in rollouts])
    terminated = np.concatenate([rollout.terminated for rollout in rollouts])
    if of_ends and not terminated.any():
        raise UsageError("no episode of the prior ends early, so a value has no end to tell of")
    ended = terminated | np.concatenate([rollout.truncated for rollout in rollouts])
    sums, known = to_come(rewards, terminated, ended, score.discount)
    observations = np.concatenate([rollout.observations[:-1] for rollout in rollouts])[known]
    if not len(observations):
        raise UsageError(f"the prior's episodes are shorter than {AHEAD} steps: plan without a value")
    inputs = prior.normalizer(torch.from_numpy(observations))
    targets, normalize = sums[known][:, None], prior.normalizer.snapshot()
    fitted = [regression(inputs, targets, HIDDEN, EPOCHS, NETWORKS * seed + number) for number in range(NETWORKS)]

    def value(seen: np.ndarray) -> np.ndarray:
        rows = normalize(seen)
        found: np.ndarray = np.mean([each(rows)[:, 0] for each in fitted], axis=0)
        return found

    return value


def rewards_of(prior: Policy, rollout: Rollout, score: Score) -> np.ndarray:
    """Return what a score pays for each step `[T, N]`, whoever acted."""
    observations = torch.from_numpy(rollout.observations[:-1])
    modes = prior(observations).mode()
    log_ratio = (prior.log_prob(observations, rollout.actions) - prior.log_prob(observations, modes)).numpy()
    return step_rewards(score, prior, rollout.transitions, log_ratio, rollout.terminated)


def to_come(
    rewards: np.ndarray, terminated: np.ndarray, ended: np.ndarray, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ γ^k·r of each step `[T, N]`, and of which ones enough is known: a cut hides what would have followed."""
    sums, ahead = np.zeros_like(rewards), np.zeros_like(rewards)
    following, steps = np.zeros(rewards.shape[1]), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * np.where(ended[t], 0.0, following)
        steps = np.where(terminated[t], np.inf, np.where(ended[t], 0.0, steps) + 1.0)
        sums[t], ahead[t] = following, steps
    return sums, ahead >= AHEAD


ENVS, STEPS, HELD_OUT = 64, 800, 8  # environments, steps in each, and how many environments only judge
NETWORKS, HIDDEN, EPOCHS = 3, (256, 256), 10
AHEAD = 8  # steps over which its error is told
FAR = 10.0  # stds of the observations seen: beyond, the model knows nothing
TOLD = 0.9  # the least share of the variance of an entry of `info` that must be explained, or the entry is left out


class LearnedModel:
    """The mean of some networks, which tell from an observation and an action what the observation becomes."""

    backend: Backend = "auto"
    seconds = 0.0  # not known

    def __init__(self, prior: Policy, name: str, seed: int = 0) -> None:
        self.name, self._space = name, prior.actions
        with one_thread():
            with closing(make_envs(name, ENVS, seed)) as envs:
                collector = Collector(envs, STEPS, torch.Generator().manual_seed(seed), keep_transitions=True)
                rollout = collector.collect(prior)
            steps, ended = rollout.transitions, rollout.terminated | rollout.truncated
            self._fit(steps.each(lambda part: part[:, HELD_OUT:]), seed)
            self.errors = self._judged(steps.each(lambda part: part[:, :HELD_OUT]), ended[:, :HELD_OUT])

    @property
    def note(self) -> str:
        """What is to be said of it."""
        one, more = self.errors
        return (
            f"the model is learnt from {ENVS * STEPS:,} steps of the prior; it is off by {one:.2g} stds of an "
            f"observation after a step, and by {more:.2g} after {AHEAD}"
        )

    def watch(self, envs: object) -> None:
        """Do nothing: observations are its states."""

    def states(self, observations: np.ndarray) -> np.ndarray:
        return observations.astype(np.float64)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        inputs = self._inputs(states, own_numbers(actions, self._space))
        found = np.mean([network(inputs) for network in self._networks], axis=0)
        after = states + found[:, : states.shape[1]]
        failed = ~(np.abs(after - self._middle) < FAR * self._width).all(1)
        after = np.where(failed[:, None], states, after)
        info: Info = {key: found[:, place] for key, place in self._told.items()}
        return Simulated(after, after.astype(np.float32), info, np.zeros(len(states), bool), failed)

    def trunks(self, states: np.ndarray) -> np.ndarray:
        return np.zeros((len(states), 3))

    def _inputs(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        seen = (states - self._middle) / self._width
        return np.concatenate([seen, (actions - self._at) / self._across], axis=1).astype(np.float32)

    def _fit(self, steps: Transitions, seed: int) -> None:
        """Fit the networks to the change of an observation, and to each number of info."""
        rows = steps.in_one_row()
        seen, actions = rows.observations.astype(np.float64), rows.actions.astype(np.float64)
        keys = [key for key, values in rows.info.items() if values.ndim == 1]
        (self._middle, self._width), (self._at, self._across) = spread(seen), spread(actions)
        targets = np.concatenate([rows.next_observations - seen, *(rows.info[key][:, None] for key in keys)], axis=1)
        inputs = torch.from_numpy(self._inputs(seen, actions))
        self._networks = [regression(inputs, targets, HIDDEN, EPOCHS, seed + one) for one in range(NETWORKS)]
        self._told = {key: seen.shape[1] + place for place, key in enumerate(keys)}

    def _judged(self, steps: Transitions, ended: np.ndarray) -> tuple[float, float]:
        """Return by how many stds it is off after a step and after some; of info, forget what it cannot tell."""
        rows = steps.in_one_row()
        found = self.step(rows.observations.astype(np.float64), rows.actions)
        left = {key: np.var(rows.info[key] - found.info[key]) for key in self._told}
        self._told = {
            key: place for key, place in self._told.items() if left[key] <= (1.0 - TOLD) * np.var(rows.info[key])
        }
        first, env = np.nonzero(~sliding_window_view(ended[:-1], AHEAD - 1, axis=0).any(-1))
        if not len(first):
            raise UsageError(f"the prior's episodes in {self.name} are shorter than {AHEAD} steps: no model is learnt")
        states = steps.observations[first, env].astype(np.float64)
        for ahead in range(AHEAD):
            states = self.step(states, steps.actions[first + ahead, env]).states
        after = self._off(found.states, rows.next_observations)
        return after, self._off(states, steps.next_observations[first + AHEAD - 1, env])

    def _off(self, found: np.ndarray, reached: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square((found - reached) / self._width))))


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the std of each number; 1 where it never changes."""
    width = values.std(0)
    return values.mean(0), np.where(width > 1e-6, width, 1.0)
