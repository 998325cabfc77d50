"""What a candidate is worth: the add-on, log prior and the prior's states along its simulated steps."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from repolicy.envs import Addon, Info, Transitions, own_numbers, stacked
from repolicy.errors import UsageError
from repolicy.planning.simulators import Model
from repolicy.policies import Density, Policy, log_tanh_slope
from repolicy.policies.density import MOST

Value = Callable[[np.ndarray], np.ndarray]  # from observations [B, O] to what is still to come [B]


@dataclass(frozen=True)
class Score:
    """S = Σ γ^t·(r_R + ω′·(log π(a|s) − log π(m|s)) + states·h(s′)) + γ^T·V(s_T), where m is π without noise.

    That costs nothing, however wide the prior is.
    """

    addon: Addon
    omega: float
    states: float
    discount: float
    density: Density | None
    value: Value | None


@torch.no_grad()
def simulated(
    model: Model,
    prior: Policy,
    observations: np.ndarray,
    plans: np.ndarray,
    spread: np.ndarray,
    score: Score,
    closed: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores `[N, K]` of candidates `[N, K, T, A]`, which are how many stds to deviate from the prior.

    With them comes Σ log tanh′ `[N, K]` of their actions, 0 where there is no tanh. A score is −∞ where the simulation
    broke down. A closed loop deviates from what the prior does in the *simulated* state; an open one from what it would
    do in the states that the first candidate comes to. observations: `[N, O]`; spread: `[N, A]`, the stds.
    """
    count, samples, steps, width = plans.shape
    batch = count * samples
    act = prior.actor(steps, batch)
    states = np.repeat(model.states(observations), samples, 0)
    stray = plans * spread[:, None, None]
    seen = [np.repeat(observations, samples, 0)]
    modes, chosen, sent = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    infos: list[Info] = []
    over = np.zeros((steps + 1, batch), bool)
    failed = np.zeros(batch, bool)
    for t in range(steps):
        modes.append(act(seen[t]))
        around = modes[t].reshape(count, samples, width)
        actions = (around if closed else around[:, :1]) + stray[:, :, t]
        chosen.append(actions.reshape(batch, width).astype(np.float32))
        sent.append(prior.to_environment(chosen[t]))
        step = model.step(states, sent[t])
        states = step.states
        seen.append(step.observations)
        infos.append(step.info)
        failed |= step.failed
        over[t + 1] = over[t] | step.ended | step.failed
    transitions = Transitions(
        np.stack(seen[:-1]), own_numbers(np.stack(sent), prior.actions), np.stack(seen[1:]), stacked(infos)
    )
    log_chosen = act.log_probs(torch.from_numpy(np.stack(chosen)))
    log_modes = act.log_probs(torch.from_numpy(np.stack(modes)))
    beside = (log_chosen - log_modes).numpy()
    total = (score.discount ** np.arange(steps)) @ step_rewards(score, prior, transitions, beside, over[1:])
    if score.value is not None:
        ahead = score.value(seen[-1])
        ahead[over[-1]] = min(0.0, float(ahead.min()))
        total += score.discount**steps * ahead
    total[failed] = -np.inf
    slopes = np.zeros(batch)
    if prior.family.squashes:
        slopes = log_tanh_slope(torch.from_numpy(np.stack(chosen))).sum((0, 2)).double().numpy()
        slopes[failed] = 0.0
    return total.reshape(count, samples), slopes.reshape(count, samples)


def step_rewards(
    score: Score, prior: Policy, transitions: Transitions, beside: np.ndarray, gone: np.ndarray
) -> np.ndarray:
    """Return what steps `[T, B]` pay: beside is log π(a|s) − log π(m|s), and gone is where the episode has ended.

    An end pays nothing more, and must not be a way out: it costs more than the worst of all other steps.
    """
    try:
        rewards = score.addon.reward(transitions) + score.omega * beside
    except UsageError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        raise UsageError(f"{error}; a planner's model rebuilds no other entries") from error
    if score.density is not None and score.states:
        inputs = prior.normalizer(torch.from_numpy(transitions.next_observations))
        rewards += score.states * score.density.familiarity(inputs).numpy()
    if gone.any():
        rewards[gone] = rewards.min() - MOST * max(score.omega, score.states)
    return rewards
