"""Scores of candidate plans: the add-on, log prior and the price on states, summed along simulated steps."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from repolicy.addons import Addon
from repolicy.envs import Info, PartialInfo, Transitions, stack_infos
from repolicy.errors import UsageError
from repolicy.planning.simulators import Model
from repolicy.policies import Density, Policy, log_tanh_slope
from repolicy.policies.density import MAX_COST

Value = Callable[[np.ndarray], np.ndarray]  # from observations [B, O] to the expected discounted reward from there, [B]


@dataclass(frozen=True)
class Score:
    """S = Σ γ^t·(r_R + ω′·(log π(a|s) − log π(m|s)) + states·h(s′)) + γ^T·V(s_T), where m is π without noise.

    With log π(m|s) subtracted, the prior's own plan costs nothing, however wide the prior is.
    """

    addon: Addon
    omega: float
    states: float
    discount: float
    density: Density | None
    value: Value | None
    may_end: bool = False  # whether nearly all of the prior's episodes end by themselves, as at a goal

    @property
    def end_cost(self) -> float:
        """What an end costs: as much as the strangest state, or nothing where the prior's episodes end so."""
        return 0.0 if self.may_end else MAX_COST * max(self.omega, self.states)


@torch.no_grad()
def simulated(
    model: Model,
    prior: Policy,
    observations: np.ndarray,
    plans: np.ndarray,
    spread: np.ndarray,
    score: Score,
    closed: bool = True,
) -> np.ndarray:
    """Simulate candidates `[N, K, T, A]`, given as deviations from the prior in stds, and return their scores `[N, K]`.

    A score is −∞ where the simulation broke down. observations: `[N, O]`; spread: the prior's stds, `[N, A]`. With
    `closed`, a candidate deviates from the prior's action in its own simulated state; otherwise from that in the state
    of the first candidate.
    """
    count, samples, steps, width = plans.shape
    batch = count * samples
    act = prior.actor(steps, batch)
    states = np.repeat(model.states(observations), samples, 0)
    deviations = plans * spread[:, None, None]
    visited = [np.repeat(observations, samples, 0)]
    modes, chosen, sent = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    infos: list[Info] = []
    has_ended = np.zeros((steps + 1, batch), bool)
    failed = np.zeros(batch, bool)
    for t in range(steps):
        modes.append(act(visited[t]))
        centers = modes[t].reshape(count, samples, width)
        actions = (centers if closed else centers[:, :1]) + deviations[:, :, t]
        chosen.append(actions.reshape(batch, width).astype(np.float32))
        sent.append(prior.to_environment(chosen[t]))
        step = model.step(states, sent[t])
        states = step.states
        visited.append(step.observations)
        infos.append(step.info)
        failed |= step.failed
        has_ended[t + 1] = has_ended[t] | step.ended | step.failed
    info = PartialInfo(stack_infos(infos), model.unknown_info)
    transitions = Transitions(np.stack(visited[:-1]), np.stack(sent), np.stack(visited[1:]), info)
    stored = [torch.from_numpy(np.stack(actions)) for actions in (chosen, modes)]
    log_ratio = log_ratio_of(prior, *map(act.log_probs, stored), *stored)
    rewards = step_rewards(score, transitions, log_ratio, has_ended[1:] & ~has_ended[:-1])
    # A plan must not gain by what comes after an end, unless that is where the prior's episodes lead.
    rewards[has_ended[:-1]] = 0.0 if score.may_end else (_lowest(rewards, samples) - score.end_cost)[has_ended[:-1]]
    total = (score.discount ** np.arange(steps)) @ rewards
    if score.value is not None:
        # An end must not be worth more than going on: it gets the lowest value.
        values = score.value(visited[-1])
        lowest = np.minimum(0.0, _lowest(values[None], samples)[0])
        values[has_ended[-1]] = 0.0 if score.may_end else lowest[has_ended[-1]]
        total += score.discount**steps * values
    total[failed] = -np.inf
    return total.reshape(count, samples)


def _lowest(rewards: np.ndarray, samples: int) -> np.ndarray:
    """Return the lowest reward of all steps `[T, N · K]` of a decision's candidates, at each step."""
    steps, batch = rewards.shape
    lowest = rewards.reshape(steps, batch // samples, samples).min((0, 2))
    return np.broadcast_to(lowest.repeat(samples), rewards.shape)


def log_ratio_of(
    prior: Policy, log_chosen: torch.Tensor, log_modes: torch.Tensor, chosen: torch.Tensor, modes: torch.Tensor
) -> np.ndarray:
    """Return log π(a|s) − log π(m|s) `[T, B]`, from both log-probabilities and the stored actions `[T, B, A]`.

    They are densities before any tanh, where m is the mode. After it, an action at a bound would be denser than m.
    """
    log_ratio = log_chosen - log_modes
    if prior.family.squashes:
        log_ratio = log_ratio + (log_tanh_slope(chosen) - log_tanh_slope(modes)).sum(-1)
    return log_ratio.numpy()


def step_rewards(score: Score, transitions: Transitions, log_ratio: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the rewards of steps `[T, B]`. log_ratio: log π(a|s) − log π(m|s). ends: whether a step ends its episode.

    A step that ends its episode also costs `end_cost`. Its own reward counts: an episode may have no other step.
    """
    try:
        rewards = score.addon.reward(transitions) + score.omega * log_ratio
    except UsageError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        raise UsageError(f"{error}; a planner's model rebuilds no other entries") from error
    if score.density is not None and score.states:
        inputs = score.density.normalized(torch.from_numpy(transitions.next_observations))
        rewards += score.states * score.density.familiarity(inputs).numpy()
    return rewards - score.end_cost * ends
