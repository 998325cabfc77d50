"""Rewards, advantages and networks of a worker, for one weight per term (`FixedTerms`) or a range (`DialedTerms`).

With ranges the environments are `DialedEnvs`: an episode draws a place on each dial, which ends every observation.
The critic has a head for each part of the reward, without the part's dialed weight. Advantages are linear in rewards
and values. So the weighted sum of the parts' advantages is the advantage of the whole reward.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.addons import Addon, addon_names, combine_addons
from repolicy.envs import Rollout
from repolicy.learning import ppo
from repolicy.objective import Objective, Reward, task_reward
from repolicy.policies import ConditionedPolicy, Distribution, FilmMlp, Mlp, Policy, moment_sums
from repolicy.prepare.weights import Shape, default_kl_budget
from repolicy.ranges import Dial
from repolicy.runs import Ranks, Request, Settings


class TaskRewards(NamedTuple):
    """The task's rewards in a rollout, before prior and entropy terms, and the places on the dials."""

    total: Tensor  # [T, N]
    weights: dict[str, Tensor]  # omega or alpha of each step [T, N], where it differs from the objective's
    places: Tensor  # [T, N, dials]
    parts: list[Tensor]  # each [T, N]: the rewards with a fixed weight, if any; then each dialed add-on, unweighted


class Normalized(NamedTuple):
    """Advantages as the update takes them, and statistics over all ranks."""

    advantages: Tensor  # [T, N]
    target_sums: Tensor  # [3, H] the critic's targets, as `moment_sums`
    explained_variance: float  # share of the returns' variance that the critic explains


def addon_rewards(addon: Addon, rollout: Rollout) -> Tensor:
    """Return an add-on's rewards `[T, N]`."""
    return torch.from_numpy(rollout.per_decision(addon.reward(rollout.transitions)))


# One weight per term --------------------------------------------------------------------------------------------------


class FixedTerms:
    """Each term has one weight, and the critic one head, which predicts the whole return."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.addon = combine_addons(request.addons) if request.objective.reads_addon else None

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, Mlp]:
        """Return the actor and a new critic; `critic_size` is 0 where the critic sees what the policy sees."""
        size, settings = critic_size or policy.observation_size, self.settings
        return policy, Mlp(size, settings.hidden, 1, settings.activation)

    def task(self, objective: Objective, rollout: Rollout) -> TaskRewards:
        """Return the task's rewards."""
        basic = torch.from_numpy(rollout.basic)
        addon = None if self.addon is None else addon_rewards(self.addon, rollout)
        total = task_reward(objective, basic, addon)
        return TaskRewards(total, {}, total.new_empty(*total.shape, 0), [total])

    def credit(
        self, task: TaskRewards, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages `[T, N]` and the targets of the critic's heads `[T, N, H]`; values are `[T, N, H]`."""
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        v, next_v = values.squeeze(-1), next_values.squeeze(-1)
        advantages = ppo.advantages(reward.total.float(), v, next_v, terminated, ended, gamma, gae_lambda)
        return advantages, advantages.unsqueeze(-1) + values

    def normalized(self, task: TaskRewards, advantages: Tensor, targets: Tensor, team: Ranks) -> Normalized:
        """Return advantages standardized over all ranks, unless the settings say otherwise; targets are `[T, N, 1]`."""
        both = team.sum(moment_sums(torch.cat([advantages.unsqueeze(-1), targets], -1)))
        count, total, squares = both
        means = total / count
        advantage_var, target_var = (squares / count - means.square()).clamp_min(0.0).tolist()
        explained = ppo.explained_share(advantage_var, target_var)
        if self.settings.normalize_advantages:
            advantages = (advantages - float(means[0])) / (advantage_var**0.5 + 1e-8)
        return Normalized(advantages, both[:, 1:], explained)


# Every weight of one or several ranges at once ------------------------------------------------------------------------


# Advantages are standardized in each of so many strata of a dial; with several dials in about as many cells in all,
# 3 × 3 or 2 × 2 × 2. Each must hold enough episodes for a mean and a variance.
STRATA = 8
MIN_DIAL_KL = 0.5  # between a dial's ends, as a share of the usual budget; below it the dial hardly changes anything
TERMS = {"prior": "omega", "entropy": "alpha", "states": "states"}  # fields of `Reward`, and their weights


class Parts:
    """The parts of a return whose weights differ from episode to episode; the engine and hosts use it."""

    def __init__(
        self,
        settings: Settings,
        objective: Objective,
        dials: Sequence[Dial],
        addon_dials: Sequence[str] = (),
        has_fixed: bool = True,
    ) -> None:
        """`addon_dials` names the dials over add-ons; `has_fixed`: whether some task reward has a fixed weight."""
        self.settings, self.objective, self.dials = settings, objective, tuple(dials)
        self.addon_dials, self.has_fixed = tuple(addon_dials), has_fixed
        self.terms = [term for term, weight in TERMS.items() if getattr(objective, weight)]
        self.heads = int(has_fixed) + len(self.addon_dials) + len(self.terms)

    def values(self, places: Tensor) -> dict[str, Tensor]:
        """Return each dial's weight in each step `[T, N]`, from the places `[T, N, dials]`."""
        columns = places.double().unbind(-1)
        return {dial.name: dial.value(place) for dial, place in zip(self.dials, columns, strict=True)}

    def step_weights(self, places: Tensor) -> dict[str, Tensor]:
        """Return omega or alpha of each step `[T, N]`, where it differs from the objective's."""
        weights = {name: value for name, value in self.values(places).items() if name not in self.addon_dials}
        if self.objective.alpha == "omega":
            weights["alpha"] = weights["omega"]
        return weights

    def weights(self, places: Tensor) -> Tensor:
        """Return the weight of each part in each step's reward, `[T, N, H]`."""
        values, step_weights = self.values(places), self.step_weights(places)
        weights: list[float | Tensor] = [1.0] if self.has_fixed else []
        weights += [values[name] for name in self.addon_dials]
        for term in self.terms:
            name = TERMS[term]
            weights.append(step_weights[name] if name in step_weights else getattr(self.objective, name))
        tensors = [torch.as_tensor(weight, device=places.device) for weight in weights]
        return torch.stack([weight.expand(places.shape[:2]).double() for weight in tensors], -1)

    def unweighted(self, task: TaskRewards, reward: Reward) -> Tensor:
        """Return the parts of the reward without their weights, `[T, N, H]`.

        Terms are divided by their weights, which are above 0; an add-on's may be 0, so `task` has it unweighted.
        """
        term_weights = self.weights(task.places).unbind(-1)[len(task.parts) :]
        terms = [getattr(reward, term) / weight for term, weight in zip(self.terms, term_weights, strict=True)]
        return torch.stack([*task.parts, *terms], -1)

    def credit(
        self, task: TaskRewards, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages of the whole reward `[T, N]`, and the targets of the critic's heads `[T, N, H]`."""
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        rewards = self.unweighted(task, reward).to(values.dtype)
        heads = zip(rewards.unbind(-1), values.unbind(-1), next_values.unbind(-1), strict=True)
        by_head = torch.stack([ppo.advantages(*head, terminated, ended, gamma, gae_lambda) for head in heads], -1)
        return (by_head * self.weights(task.places)).sum(-1).to(values.dtype), by_head + values

    def normalized(self, task: TaskRewards, advantages: Tensor, targets: Tensor, team: Ranks) -> Normalized:
        """Return advantages standardized in each stratum, so that episodes with a large omega do not dominate."""
        # Find the stratum of each step.
        places = task.places
        side = max(2, round(STRATA ** (1 / len(self.dials))))  # strata of each dial
        cells = side ** torch.arange(len(self.dials), device=places.device)
        stratum = (((places + 1.0) * (side / 2)).long().clamp(0, side - 1) * cells).sum(-1)
        # Sum advantages and whole returns by stratum, and the heads' targets, over all ranks at once.
        both = torch.stack([advantages.double(), (targets * self.weights(places)).sum(-1)], -1)
        by_stratum = torch.stack([moment_sums(both[stratum == index]) for index in range(side ** len(self.dials))], 1)
        packed = team.sum(torch.cat([by_stratum.reshape(3, -1), moment_sums(targets)], 1))
        stratum_sums, target_sums = packed.tensor_split([by_stratum[0].numel()], 1)
        # Standardize.
        count, total, squares = stratum_sums.reshape(by_stratum.shape)
        means = total / count.clamp_min(1.0)
        variances = (squares / count.clamp_min(1.0) - means.square()).clamp_min(0.0)
        unexplained, varied = (count * variances).sum(0).tolist()
        explained = ppo.explained_share(unexplained, varied)
        if self.settings.normalize_advantages:
            shifted = both[..., 0] - means[stratum, 0]
            advantages = (shifted / (variances[stratum, 0].sqrt() + 1e-8)).float()
        return Normalized(advantages, target_sums, explained)


class DialedTerms(Parts):
    """Terms or add-ons with ranges of weights, in `DialedEnvs`."""

    def __init__(self, request: Request) -> None:
        pairs = [(addon, addon_names.dials([addon])) for addon in request.addons]
        fixed = [addon for addon, dials in pairs if not dials]
        addon_dials = [dial.name for _, dials in pairs for dial in dials]
        has_fixed = bool(fixed) or request.objective.reads_basic
        super().__init__(request.settings, request.objective, request.dials, addon_dials, has_fixed)
        # Evaluations use one add-on, with each dialed weight in the middle of its range.
        self.addon = combine_addons(addon_names.with_weights(request.addons))
        self.fixed_addon = combine_addons(fixed) if has_fixed else None
        self.dialed_addons: dict[str, Addon] = {}
        for addon, dials in pairs:
            for dial in dials:
                unweighted = addon_names.with_weights([addon], {dial.name: 1.0})
                self.dialed_addons[dial.name] = combine_addons(unweighted)

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, FilmMlp]:
        """Return the actor, which is the given policy at every place on the dials, and a new critic."""
        size, settings = critic_size or policy.observation_size, self.settings
        actor = ConditionedPolicy.from_prior(policy, self.dials).requires_grad_(True)
        return actor, FilmMlp(size, settings.hidden, self.heads, settings.activation, dials=len(self.dials))

    def task(self, objective: Objective, rollout: Rollout) -> TaskRewards:
        """Return the task's rewards."""
        places = self.dial_places(rollout)
        values, basic = self.values(places), torch.from_numpy(rollout.basic)
        parts = []
        if self.fixed_addon is not None:
            parts.append(task_reward(objective, basic, addon_rewards(self.fixed_addon, rollout)))
        total = torch.stack(parts).sum(0) if parts else torch.zeros_like(basic)
        for name, addon in self.dialed_addons.items():
            parts.append(addon_rewards(addon, rollout))
            total = total + values[name] * parts[-1]
        return TaskRewards(total, self.step_weights(places), places, parts)

    def dial_places(self, rollout: Rollout) -> Tensor:
        """Return each step's places on the dials `[T, N, dials]`."""
        return torch.from_numpy(rollout.observations[:-1, :, rollout.env_size : rollout.env_size + len(self.dials)])


# Policies with dials --------------------------------------------------------------------------------------------------


def at_dial_middle(policy: Policy, objective: Objective) -> tuple[Policy, Objective]:
    """Return policy and objective with each dial in its middle; as they are where the policy has no dials."""
    if not isinstance(policy, ConditionedPolicy):
        return policy, objective
    middle = {dial.name: dial.value(0.0) for dial in policy.dials}
    return policy.at_positions([0.0] * len(middle)), objective.at(middle)


@torch.no_grad()
def dial_metrics(policy: Policy, inputs: Tensor) -> dict[str, float]:
    """Return the KL in nats between the policies at both ends of each dial, the smaller of both directions."""
    if not isinstance(policy, ConditionedPolicy):
        return {}
    kls = {}
    for index, dial in enumerate(policy.dials):
        low, high = (_at_dial_end(policy, inputs, index, end) for end in (-1.0, 1.0))
        kls[dial.name] = min(float(low.kl(high).mean()), float(high.kl(low).mean()))
    metrics = {"dial_kl": min(kls.values())}
    if len(kls) > 1:
        metrics |= {f"dial_kl_{name}": kl for name, kl in kls.items()}
    return metrics


def _at_dial_end(policy: ConditionedPolicy, inputs: Tensor, index: int, place: float) -> Distribution:
    """Return the policy's distribution with one dial at this end and the others in the middle."""
    inputs = inputs.clone()
    inputs[:, -len(policy.dials) :] = 0.0
    inputs[:, index - len(policy.dials)] = place
    return policy.distribution(inputs)


def dial_warnings(metrics: dict[str, float], policy: Shape) -> list[str]:
    """Return a sentence for each dial of a finished run that hardly changes the policy."""
    kls = {name: value for name, value in metrics.items() if name.startswith("dial_kl_")}
    if not kls:
        kls = {"dial_kl": metrics.get("dial_kl", math.inf)}
    return [
        f"the two ends of the dial{name.removeprefix('dial_kl').replace('_', ' ', 1)} are only {kl:.2g} nats apart, "
        "so it hardly turns anything: take a wider range, a wish with a larger weight, or more steps"
        for name, kl in kls.items()
        if kl <= MIN_DIAL_KL * default_kl_budget(policy)
    ]
