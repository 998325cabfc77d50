"""A model that is learnt from the prior's own steps, for an environment whose simulator cannot be had.

It takes an observation for the state. Episodes do not end in it: only the price on states keeps a plan away from where
the prior falls. It does not know what the prior never tried, so a plan is cut off where it leaves what was seen.
"""

from contextlib import closing

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from repolicy.envs import Backend, Collector, Info, Transitions, make_envs, own_numbers
from repolicy.errors import UsageError
from repolicy.planning.simulators import Simulated
from repolicy.planning.value import regression
from repolicy.policies import Policy
from repolicy.runs import one_thread

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
        off = f"{one:.2g} stds of an observation after a step, and by {more:.2g} after {AHEAD}"
        return f"the model is learnt from {ENVS * STEPS:,} steps of the prior; it is off by {off}"

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
        self._middle, self._width = spread(seen)
        self._at, self._across = spread(actions)
        targets = np.concatenate([rows.next_observations - seen, *(rows.info[key][:, None] for key in keys)], axis=1)
        inputs = torch.from_numpy(self._inputs(seen, actions))
        self._networks = [regression(inputs, targets, HIDDEN, EPOCHS, seed + one) for one in range(NETWORKS)]
        self._told = {key: seen.shape[1] + place for place, key in enumerate(keys)}

    def _judged(self, steps: Transitions, ended: np.ndarray) -> tuple[float, float]:
        """Return by how many stds it is off after a step and after some; of info, forget what it cannot tell."""
        rows = steps.in_one_row()
        after_one = self.step(rows.observations.astype(np.float64), rows.actions)
        left = {key: np.var(rows.info[key] - after_one.info[key]) for key in self._told}
        known = [key for key in self._told if left[key] <= (1.0 - TOLD) * np.var(rows.info[key])]
        self._told = {key: self._told[key] for key in known}
        first, env = np.nonzero(~sliding_window_view(ended[:-1], AHEAD - 1, axis=0).any(-1))
        if not len(first):
            raise UsageError(f"the prior's episodes in {self.name} are shorter than {AHEAD} steps: no model is learnt")
        states = steps.observations[first, env].astype(np.float64)
        for ahead in range(AHEAD):
            states = self.step(states, steps.actions[first + ahead, env]).states
        off = self._off(after_one.states, rows.next_observations)
        return off, self._off(states, steps.next_observations[first + AHEAD - 1, env])

    def _off(self, foretold: np.ndarray, reached: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square((foretold - reached) / self._width))))


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the std of each number; 1 where it never changes."""
    width = values.std(0)
    return values.mean(0), np.where(width > 1e-6, width, 1.0)
