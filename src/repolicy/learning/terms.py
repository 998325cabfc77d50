"""What a worker does with the terms of the return, where each has one weight, and for every weight of a range at once.

In the second case each environment shows where on the dials its episode stands, behind the observation (`Dialed`).
The critic has a head for each part of the reward, none of which holds a dialed weight as a factor. Advantages are
linear in reward and value, so those of the parts, each times its weight in that episode, add up to that of the whole.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repolicy.envs import Addon, Rollout, addons
from repolicy.learning import ppo
from repolicy.objective import Objective, Reward, task_reward
from repolicy.policies import ConditionedPolicy, Distribution, FilmMlp, Mlp, Policy, moment_sums
from repolicy.prepare.weights import Shape, default_kl_budget
from repolicy.ranges import Dial
from repolicy.runs import Ranks, Request, Settings


class Task(NamedTuple):
    """What is paid in a rollout beside the terms, and where on the dials its episodes stand."""

    total: Tensor  # [T, N]
    weights: dict[str, Tensor]  # each step's own omega or alpha [T, N], where it is not the objective's
    places: Tensor  # [T, N, dials]
    parts: list[Tensor]  # each [T, N]: by what has one weight, where something has, and by each dialed wish


class Normalized(NamedTuple):
    """Advantages as the update takes them, and what all ranks together know of them."""

    gains: Tensor  # [T, N]
    returned: Tensor  # [3, H] the targets' `normalizer.sums`
    explained: float  # the share of the returns' variance that the critic explains


def paid(addon: Addon, rollout: Rollout, size: int) -> Tensor:
    """Return what an add-on pays, `[T, N]`; it sees the first `size` numbers of each observation."""
    return torch.from_numpy(rollout.per_decision(addon.reward(rollout.transitions.with_observation_size(size))))


# Each term has one weight ---------------------------------------------------------------------------------------------


class FixedTerms:
    """The critic has one head, which predicts the whole return."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.addon = addons.combine_addons(request.addons) if request.objective.reads_addon else None

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, Mlp]:
        """Return policy and critic as they begin; `critic_size` is 0 where the critic sees what the policy sees."""
        size, settings = critic_size or policy.observation_size, self.settings
        return policy, Mlp(size, settings.hidden, 1, settings.activation)

    def task(self, objective: Objective, rollout: Rollout, size: int) -> Task:
        """Return what is paid; add-ons see the first `size` numbers of each observation."""
        basic = torch.from_numpy(rollout.basic)
        wished = None if self.addon is None else paid(self.addon, rollout, size)
        total = task_reward(objective, basic, wished)
        return Task(total, {}, total.new_empty(*total.shape, 0), [total])

    def credit(
        self, task: Task, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages `[T, N]`, and what each head is to predict, `[T, N, H]`, the shape of the values."""
        both = values.squeeze(-1), next_values.squeeze(-1)
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        gains = ppo.advantages(reward.total.float(), *both, terminated, ended, gamma, gae_lambda)
        return gains, gains.unsqueeze(-1) + values

    def normalized(self, task: Task, gains: Tensor, targets: Tensor, team: Ranks) -> Normalized:
        """Return the advantages as the update takes them."""
        return normalized(gains, targets, team, self.settings.normalize_advantages)


def normalized(gains: Tensor, targets: Tensor, team: Ranks, shifts: bool = True) -> Normalized:
    """Return advantages `[T, N]` with mean 0 and variance 1 over all ranks, where they are to be shifted.

    `targets` `[T, N, 1]` is what the critic's one head is to predict.
    """
    both = team.sum(moment_sums(torch.cat([gains.unsqueeze(-1), targets], -1)))
    count, total, squares = both
    means = total / count
    gain, target = (squares / count - means.square()).clamp_min(0.0).tolist()  # variances
    explained = 1.0 - gain / max(target, 1e-12)
    if shifts:
        gains = (gains - float(means[0])) / (gain**0.5 + 1e-8)
    return Normalized(gains, both[:, 1:], explained)


# For every weight of one or several ranges at once --------------------------------------------------------------------


# Parts of one dial, in each of which advantages have mean 0 and variance 1. Of several dials there are about as many
# cells in all, 3 × 3 or 2 × 2 × 2: each must hold episodes enough to have a mean and a variance.
STRATA = 8
ALIKE = 0.5  # of the usual budget: a dial whose ends are closer to each other than this hardly turns anything
TERMS = {"prior": "omega", "entropy": "alpha", "states": "states"}  # of the reward, and their weights in an objective


class Parts:
    """The parts of a return whose weights differ from episode to episode, wherever the episodes run."""

    def __init__(
        self,
        settings: Settings,
        objective: Objective,
        dials: Sequence[Dial],
        wished: Sequence[str] = (),
        has_fixed: bool = True,
    ) -> None:
        """Keep them. `wished` names the dials over wishes; `has_fixed` is whether something with one weight is paid."""
        self.settings, self.objective, self.dials, self.wished = settings, objective, tuple(dials), tuple(wished)
        self.has_fixed = has_fixed
        self.terms = [part for part, weight in TERMS.items() if getattr(objective, weight)]
        self.heads = int(has_fixed) + len(self.wished) + len(self.terms)

    def values(self, places: Tensor) -> dict[str, Tensor]:
        """Return each dial's value in each step, `[T, N]`, at `places` `[T, N, dials]`."""
        each = places.double().unbind(-1)
        return {dial.name: dial.value(place) for dial, place in zip(self.dials, each, strict=True)}

    def own_weights(self, places: Tensor) -> dict[str, Tensor]:
        """Return each step's own omega or alpha `[T, N]`, where it is not the objective's."""
        own = {name: value for name, value in self.values(places).items() if name not in self.wished}
        return own | ({"alpha": own["omega"]} if self.objective.alpha == "omega" else {})

    def weights(self, places: Tensor) -> Tensor:
        """Return the weights of the parts in each step's reward, `[T, N, H]`."""
        values, own = self.values(places), self.own_weights(places)
        weights: list[float | Tensor] = [1.0] if self.has_fixed else []
        weights += [values[name] for name in self.wished]
        weights += [own.get(TERMS[part], getattr(self.objective, TERMS[part])) for part in self.terms]
        each = (torch.as_tensor(weight, device=places.device) for weight in weights)
        return torch.stack([weight.expand(places.shape[:2]).double() for weight in each], -1)

    def parts(self, task: Task, reward: Reward) -> Tensor:
        """Return the parts without their weights, `[T, N, H]`. A wish may weigh 0; a term never does."""
        terms, weights = [getattr(reward, part) for part in self.terms], self.weights(task.places).unbind(-1)
        apart = [term / weight for term, weight in zip(terms, weights[len(task.parts) :], strict=True)]
        return torch.stack([*task.parts, *apart], -1)

    def credit(
        self, task: Task, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages of the whole `[T, N]`, and what each head is to predict `[T, N, H]`."""
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        rewards = self.parts(task, reward).to(values.dtype)
        heads = zip(rewards.unbind(-1), values.unbind(-1), next_values.unbind(-1), strict=True)
        gains = torch.stack([ppo.advantages(*each, terminated, ended, gamma, gae_lambda) for each in heads], -1)
        return (gains * self.weights(task.places)).sum(-1).to(values.dtype), gains + values

    def normalized(self, task: Task, gains: Tensor, targets: Tensor, team: Ranks) -> Normalized:
        """Return advantages with mean 0 and variance 1 in each stratum of the dials.

        So a large omega does not rule over the others.
        """
        places = task.places
        side = max(2, round(STRATA ** (1 / len(self.dials))))  # of each dial
        cells = side ** torch.arange(len(self.dials), device=places.device)
        stratum = (((places + 1.0) * (side / 2)).long().clamp(0, side - 1) * cells).sum(-1)
        both = torch.stack([gains.double(), (targets * self.weights(places)).sum(-1)], -1)
        of_stratum = torch.stack([moment_sums(both[stratum == index]) for index in range(side ** len(self.dials))], 1)
        packed = team.sum(torch.cat([of_stratum.reshape(3, -1), moment_sums(targets)], 1))
        parts, returned = packed.tensor_split([of_stratum[0].numel()], 1)
        count, total, squares = parts.reshape(of_stratum.shape)
        means = total / count.clamp_min(1.0)
        variances = (squares / count.clamp_min(1.0) - means.square()).clamp_min(0.0)
        unexplained, varied = (count * variances).sum(0).tolist()
        explained = 1.0 - unexplained / max(varied, 1e-12)
        if self.settings.normalize_advantages:
            shifted = both[..., 0] - means[stratum, 0]
            gains = (shifted / (variances[stratum, 0].sqrt() + 1e-8)).float()
        return Normalized(gains, returned, explained)


class DialedTerms(Parts):
    """The environments are `Dialed`: each step's observation ends with where its episode stands on the dials."""

    def __init__(self, request: Request) -> None:
        objective, wishes = request.objective, [addons.dials([each]) for each in request.addons]
        fixed = [name for name, dials in zip(request.addons, wishes, strict=True) if not dials]
        wished, has_fixed = [dial.name for each in wishes for dial in each], bool(fixed) or objective.reads_basic
        super().__init__(request.settings, objective, request.dials, wished, has_fixed)
        self.addon = addons.combine_addons(addons.with_weights(request.addons))
        self.fixed = addons.combine_addons(fixed) if has_fixed else None
        self.wishes = {  # each by itself
            dial.name: addons.combine_addons(addons.with_weights([name], {dial.name: 1.0}))
            for name, dials in zip(request.addons, wishes, strict=True)
            for dial in dials
        }

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, FilmMlp]:
        """Return policy and critic as they begin: at every position the policy is the prior."""
        size, settings = critic_size or policy.observation_size, self.settings
        dialed = ConditionedPolicy.from_prior(policy, self.dials).requires_grad_(True)
        return dialed, FilmMlp(size, settings.hidden, self.heads, settings.activation, dials=len(self.dials))

    def task(self, objective: Objective, rollout: Rollout, size: int) -> Task:
        """Return what is paid, each wish times its weight in the episode, and what each pays without it, for the heads.

        Add-ons see the first `size` numbers of each observation.
        """
        places = self.asked(rollout, size)
        values, basic = self.values(places), torch.from_numpy(rollout.basic)
        parts = []
        if self.fixed is not None:
            parts.append(task_reward(objective, basic, paid(self.fixed, rollout, size)))
        total = torch.stack(parts).sum(0) if parts else torch.zeros_like(basic)
        for name, wish in self.wishes.items():
            parts.append(paid(wish, rollout, size))
            total = total + values[name] * parts[-1]
        return Task(total, self.own_weights(places), places, parts)

    def asked(self, rollout: Rollout, size: int) -> Tensor:
        """Return where on the dials each step's episode stands, `[T, N, dials]`: what is behind the first numbers."""
        return torch.from_numpy(rollout.observations[:-1, :, size : size + len(self.dials)])


# Of a policy with dials -----------------------------------------------------------------------------------------------


def in_the_middle(policy: Policy, objective: Objective) -> tuple[Policy, Objective]:
    """Return both in the middle of the policy's dials, where it has some."""
    if not isinstance(policy, ConditionedPolicy):
        return policy, objective
    middle = {dial.name: dial.value(0.0) for dial in policy.dials}
    return policy.at_positions([0.0] * len(middle)), objective.at(middle)


@torch.no_grad()
def ends_apart(policy: Policy, inputs: Tensor) -> dict[str, float]:
    """Return how far apart the ends of each dial are at some inputs: in nats, the smaller of the two KLs."""
    if not isinstance(policy, ConditionedPolicy):
        return {}
    apart = {}
    for index, dial in enumerate(policy.dials):
        low, high = (_at_end(policy, inputs, index, end) for end in (-1.0, 1.0))
        apart[dial.name] = min(float(low.kl(high).mean()), float(high.kl(low).mean()))
    each = {f"dial_kl_{name}": value for name, value in apart.items()} if len(apart) > 1 else {}
    return {"dial_kl": min(apart.values())} | each


def _at_end(policy: ConditionedPolicy, inputs: Tensor, index: int, place: float) -> Distribution:
    """Return the policy with one dial at this end and the others in the middle."""
    inputs = inputs.clone()
    inputs[:, -len(policy.dials) :] = 0.0
    inputs[:, index - len(policy.dials)] = place
    return policy.distribution(inputs)


def collapsed(metrics: dict[str, float], policy: Shape) -> list[str]:
    """Return what is to be said of a finished run whose dial, or one of whose dials, turns too little."""
    alike = ALIKE * default_kl_budget(policy)
    several = {name: value for name, value in metrics.items() if name.startswith("dial_kl_")}
    return [
        f"the two ends of the dial{name.removeprefix('dial_kl').replace('_', ' ', 1)} are only {value:.2g} nats apart, "
        "so it hardly turns anything: take a wider range, a wish with a larger weight, or more steps"
        for name, value in (several or {"dial_kl": metrics.get("dial_kl", math.inf)}).items()
        if value <= alike
    ]
