"""A simulator that is learned from the prior's own steps, for an environment that cannot be simulated otherwise.

It uses the observation as the state. Episodes do not end in it, so only the price on states keeps a plan away from
states where the prior falls. A simulation fails as soon as it leaves the range of the prior's observations.
"""

from contextlib import closing

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from repolicy.envs import Backend, Collector, Info, Transitions, make_envs, probe_env
from repolicy.errors import UsageError
from repolicy.planning.simulators import Model, Simulated
from repolicy.planning.value import regression
from repolicy.policies import CONSTANT_VARIANCE, Policy, one_thread

ENVS, STEPS = 64, 800  # environments, and steps in each
LONG = 1_000  # steps; where episodes have more, fewer environments each play a whole one
HELD_OUT = 8  # one environment of so many is used only for the error
NETWORKS, HIDDEN, EPOCHS = 3, (256, 256), 10
AHEAD = 8  # steps over which the error is measured
MAX_DEVIATION = 10.0  # in stds of the prior's observations; beyond it a simulation counts as failed
EXPLAINED = 0.9  # the model drops an entry of `info` of whose variance it explains less than this share


class LearnedModel(Model):
    """The mean of several networks that predict the change of an observation by an action."""

    backend: Backend = "auto"
    seconds = 0.0  # unknown

    def __init__(self, prior: Policy, name: str, seed: int = 0) -> None:
        self.name = name
        limit = probe_env(name).limit or 0
        length = STEPS if limit <= LONG else min(limit, ENVS * STEPS // 2)
        count = ENVS * STEPS // length
        held_out = max(count // HELD_OUT, 1)
        with one_thread():
            with closing(make_envs(name, count, seed)) as envs:
                collector = Collector(envs, length, torch.Generator().manual_seed(seed))
                rollout = collector.collect(prior)
            steps, ended = rollout.transitions, rollout.terminated | rollout.truncated
            self._fit(steps.map(lambda part: part[:, held_out:]), seed)
            self.errors = self._validate(steps.map(lambda part: part[:, :held_out]), ended[:, :held_out])
        one, more = self.errors
        errors = f"{one:.2g} stds of an observation after a step, and by {more:.2g} after {AHEAD}"
        self.note = f"the model is learnt from {count * length:,} steps of the prior; it is off by {errors}"

    def states(self, observations: np.ndarray) -> np.ndarray:
        return observations.astype(np.float64)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        inputs = self._inputs(states, actions)
        predicted = np.mean([network(inputs) for network in self._networks], axis=0)
        after = states + predicted[:, : states.shape[1]]
        failed = ~(np.abs(after - self._mean) < MAX_DEVIATION * self._std).all(1)
        after = np.where(failed[:, None], states, after)
        info: Info = {key: predicted[:, column] for key, column in self._info_columns.items()}
        return Simulated(after, after.astype(np.float32), info, np.zeros(len(states), bool), failed)

    def _inputs(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        normalized = (states - self._mean) / self._std, (actions - self._action_mean) / self._action_std
        return np.concatenate(normalized, axis=1).astype(np.float32)

    def _fit(self, steps: Transitions, seed: int) -> None:
        """Fit the networks to the change of the observation and to each number of `info`."""
        rows = steps.flattened()
        observations, actions = rows.observations.astype(np.float64), rows.actions.astype(np.float64)
        keys = [key for key, values in rows.info.items() if values.ndim == 1]
        self._mean, self._std = mean_and_std(observations)
        self._action_mean, self._action_std = mean_and_std(actions)
        changes = rows.next_observations - observations
        targets = np.concatenate([changes, *(rows.info[key][:, None] for key in keys)], axis=1)
        inputs = torch.from_numpy(self._inputs(observations, actions))
        self._networks = [regression(inputs, targets, HIDDEN, EPOCHS, seed + number) for number in range(NETWORKS)]
        self._info_columns = {key: observations.shape[1] + index for index, key in enumerate(keys)}

    def _validate(self, steps: Transitions, ended: np.ndarray) -> tuple[float, float]:
        """Return the errors after one step and after AHEAD, in stds; drop entries of `info` that it cannot predict."""
        rows = steps.flattened()
        after_one = self.step(rows.observations.astype(np.float64), rows.actions)
        residual = {key: np.var(rows.info[key] - after_one.info[key]) for key in self._info_columns}
        predictable = [key for key, left in residual.items() if left <= (1.0 - EXPLAINED) * np.var(rows.info[key])]
        self.unknown_info = frozenset(self._info_columns).difference(predictable)
        self._info_columns = {key: self._info_columns[key] for key in predictable}
        # Sequences of AHEAD steps in which no episode ends.
        first, env = np.nonzero(~sliding_window_view(ended[:-1], AHEAD - 1, axis=0).any(-1))
        if not len(first):
            raise UsageError(f"the prior's episodes in {self.name} are shorter than {AHEAD} steps: no model is learnt")
        states = steps.observations[first, env].astype(np.float64)
        for ahead in range(AHEAD):
            states = self.step(states, steps.actions[first + ahead, env]).states
        error = self._error(after_one.states, rows.next_observations)
        return error, self._error(states, steps.next_observations[first + AHEAD - 1, env])

    def _error(self, predicted: np.ndarray, actual: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square((predicted - actual) / self._std))))


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the std of each column. A column that never changes gets the std 1."""
    mean, std = values.mean(0), values.std(0)
    return mean, np.where(np.square(std) > CONSTANT_VARIANCE * np.square(mean), std, 1.0)
