"""What a worker does with the terms of the return, where each has one weight, and for every weight of a range at once.

In the second case each environment shows where on the dials its episode stands, behind the observation (`Dialed`).
The critic has a head for each part of the reward, none of which holds a dialed weight as a factor. Advantages are
linear in reward and value, so those of the parts, each times its weight in that episode, add up to that of the whole.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from repolicy.envs import Addon, Rollout, addons
from repolicy.learning import ppo
from repolicy.objective import Objective, Reward, task_reward
from repolicy.policies import Conditioned, Distribution, FilmMlp, Mlp, Policy, sums
from repolicy.ranges import Dial
from repolicy.runs import Ranks, Request, Settings


class OneWeight:
    """The critic has one head, which predicts the whole return."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.addon = addons.combined(request.addons) if request.objective.reads_addon else None

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, Mlp]:
        """Return policy and critic as they begin; `critic_size` is 0 where the critic sees what the policy sees."""
        self.size = policy.observation_size  # of what add-ons know
        return policy, Mlp(critic_size or self.size, self.settings.hidden, 1, self.settings.activation)

    def shown(self, policy: Policy, objective: Objective) -> tuple[Policy, Objective]:
        """Return what the short evaluations evaluate, and by which objective."""
        return policy, objective

    def critic_inputs(self, inputs: Tensor, own: Tensor) -> Tensor:
        """Return what the critic sees, from what the policy sees and from what it has of its `own`."""
        return own

    def task(self, objective: Objective, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the task's reward `[T, N]`, and each step's own omega or alpha: none."""
        wished = None if self.addon is None else paid(self.addon, rollout, self.size)
        return task_reward(objective, torch.from_numpy(rollout.basic), wished), {}

    def credit(
        self, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages `[T, N]`, and what each head is to predict, `[T, N, H]`, the shape of the values."""
        both = values.squeeze(-1), next_values.squeeze(-1)
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        gains = ppo.advantages(reward.total.float(), *both, terminated, ended, gamma, gae_lambda)
        return gains, gains.unsqueeze(-1) + values

    def normalized(self, gains: Tensor, targets: Tensor, team: Ranks) -> tuple[Tensor, Tensor, float]:
        """Return advantages with mean 0 and variance 1 over all ranks, the targets' sums, and what V explains of them.

        The sums are `[3, H]`, as of `normalizer.sums`; the last is a share of the variance.
        """
        both = team.sum(sums(torch.cat([gains.unsqueeze(-1), targets], -1)))
        count, total, squares = both
        means = total / count
        gain, target = (squares / count - means.square()).clamp_min(0.0).tolist()  # variances
        explained = 1.0 - gain / max(target, 1e-12)
        if self.settings.normalize_advantages:
            gains = (gains - float(means[0])) / (gain**0.5 + 1e-8)
        return gains, both[:, 1:], explained

    def metrics(self, policy: Policy, inputs: Tensor) -> dict[str, float]:
        """Return more of what the log says of the policy at some inputs."""
        return {}


def paid(addon: Addon, rollout: Rollout, size: int) -> Tensor:
    """Return what an add-on pays, `[T, N]`; it sees the first `size` numbers of each observation."""
    return torch.from_numpy(rollout.of_decisions(addon.reward(rollout.transitions.of_first(size))))


# For every weight of one or several ranges at once --------------------------------------------------------------------


# Parts of one dial, in each of which advantages have mean 0 and variance 1. Of several dials there are about as many
# cells in all, 3 × 3 or 2 × 2 × 2: each must hold episodes enough to have a mean and a variance.
STRATA = 8
ALIKE = 1.0  # nats: a dial whose ends are closer to each other than this hardly turns anything
TERMS = {"prior": "omega", "entropy": "alpha", "states": "states"}  # of the reward, and their weights in an objective


def collapsed(metrics: dict[str, float]) -> list[str]:
    """Return what is to be said of a finished run whose dial, or one of whose dials, turns too little."""
    several = {name: value for name, value in metrics.items() if name.startswith("dial_kl_")}
    return [
        f"the two ends of the dial{name.removeprefix('dial_kl').replace('_', ' ', 1)} are only {value:.2g} nats apart, "
        "so it hardly turns anything: take a wider range, a wish with a larger weight, or more steps"
        for name, value in (several or {"dial_kl": metrics.get("dial_kl", math.inf)}).items()
        if value <= ALIKE
    ]


class Parts:
    """The parts of a return whose weights differ from episode to episode, wherever the episodes run.

    Set in each iteration: `places`, where on the dials each step's episode stands `[T, N, dials]`; and `tasks`, what
    is paid beside the terms, each `[T, N]`: by what has one weight, where something has, and by each dialed wish.
    """

    places: Tensor
    tasks: list[Tensor]

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
        self.heads = has_fixed + len(self.wished) + len(self.terms)

    @property
    def values(self) -> dict[str, Tensor]:
        """Each dial's value in each step, `[T, N]`, of the rollout that was rewarded last."""
        places = self.places.double().unbind(-1)
        return {dial.name: dial.value(place) for dial, place in zip(self.dials, places, strict=True)}

    @property
    def own_weights(self) -> dict[str, Tensor]:
        """Each step's own omega or alpha `[T, N]`, where it is not the objective's."""
        own = {name: value for name, value in self.values.items() if name not in self.wished}
        return own | ({"alpha": own["omega"]} if self.objective.alpha == "omega" else {})

    def weights(self) -> Tensor:
        """Return the weights of the parts in each step's reward, `[T, N, H]`."""
        values, own = self.values, self.own_weights
        fixed = [1.0] * self.has_fixed
        terms = [own.get(TERMS[part], getattr(self.objective, TERMS[part])) for part in self.terms]
        each = [*fixed, *(values[name] for name in self.wished), *terms]
        known = (torch.as_tensor(one, device=self.places.device) for one in each)
        return torch.stack([one.expand(self.places.shape[:2]).double() for one in known], -1)

    def parts(self, reward: Reward) -> Tensor:
        """Return the parts without their weights, `[T, N, H]`. A wish may weigh 0; a term never does."""
        terms, weights = [getattr(reward, part) for part in self.terms], self.weights().unbind(-1)
        apart = [term / weight for term, weight in zip(terms, weights[len(self.tasks) :], strict=True)]
        return torch.stack([*self.tasks, *apart], -1)

    def credit(
        self, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages of the whole `[T, N]`, and what each head is to predict `[T, N, H]`."""
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        rewards = self.parts(reward).to(values.dtype)
        heads = zip(rewards.unbind(-1), values.unbind(-1), next_values.unbind(-1), strict=True)
        gains = torch.stack([ppo.advantages(*each, terminated, ended, gamma, gae_lambda) for each in heads], -1)
        return (gains * self.weights()).sum(-1).to(values.dtype), gains + values

    def normalized(self, gains: Tensor, targets: Tensor, team: Ranks) -> tuple[Tensor, Tensor, float]:
        """Return the same as `OneWeight`, with mean 0 and variance 1 in each stratum of the dials.

        So a large omega does not rule over the others.
        """
        side = max(2, round(STRATA ** (1 / len(self.dials))))  # of each dial
        cells = side ** torch.arange(len(self.dials), device=self.places.device)
        stratum = (((self.places + 1.0) * (side / 2)).long().clamp(0, side - 1) * cells).sum(-1)
        both = torch.stack([gains.double(), (targets * self.weights()).sum(-1)], -1)
        of_stratum = torch.stack([sums(both[stratum == index]) for index in range(side ** len(self.dials))], 1)
        packed = team.sum(torch.cat([of_stratum.reshape(3, -1), sums(targets)], 1))
        parts, returned = packed.tensor_split([of_stratum[0].numel()], 1)
        count, total, squares = parts.reshape(of_stratum.shape)
        means = total / count.clamp_min(1.0)
        variances = (squares / count.clamp_min(1.0) - means.square()).clamp_min(0.0)
        unexplained, varied = (count * variances).sum(0).tolist()
        explained = 1.0 - unexplained / max(varied, 1e-12)
        if not self.settings.normalize_advantages:
            return gains, returned, explained
        shifted = both[..., 0] - means[stratum, 0]
        return (shifted / (variances[stratum, 0].sqrt() + 1e-8)).float(), returned, explained


class RangeOfWeights(Parts):
    """The environments are `Dialed`: each step's observation ends with where its episode stands on the dials."""

    def __init__(self, request: Request) -> None:
        objective, wishes = request.objective, [addons.dials([each]) for each in request.addons]
        fixed = [name for name, dials in zip(request.addons, wishes, strict=True) if not dials]
        wished, has_fixed = [dial.name for each in wishes for dial in each], bool(fixed) or objective.reads_basic
        super().__init__(request.settings, objective, request.dials, wished, has_fixed)
        self.addon = addons.combined(addons.at(request.addons))
        self.fixed = addons.combined(fixed) if has_fixed else None
        self.wishes = {  # each by itself
            dial.name: addons.combined(addons.at([name], {dial.name: 1.0}))
            for name, dials in zip(request.addons, wishes, strict=True)
            for dial in dials
        }

    def networks(self, policy: Policy, critic_size: int) -> tuple[Policy, FilmMlp]:
        """Return policy and critic as they begin: at every position the policy is the prior."""
        self.size, settings = policy.observation_size, self.settings
        size, dialed = critic_size or self.size, Conditioned.begun(policy, self.dials).requires_grad_(True)
        return dialed, FilmMlp(size, settings.hidden, self.heads, settings.activation, dials=len(self.dials))

    def shown(self, policy: Policy, objective: Objective) -> tuple[Policy, Objective]:
        """Return both in the middle of the dials."""
        assert isinstance(policy, Conditioned)
        middle = {dial.name: dial.value(0.0) for dial in self.dials}
        return policy.placed([0.0] * len(middle)), objective.at(middle)

    def critic_inputs(self, inputs: Tensor, own: Tensor) -> Tensor:
        """Return what the critic sees; the positions are last, as for the policy."""
        return own if own is inputs else torch.cat([own, inputs[..., -len(self.dials) :]], -1)

    def task(self, objective: Objective, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the wishes' reward `[T, N]`, each times its weight in the episode, and each step's omega and alpha.

        What each wish pays is kept apart, for the heads.
        """
        self.places = self.asked(rollout)
        values, basic = self.values, torch.from_numpy(rollout.basic)
        self.tasks = []
        if self.fixed is not None:
            self.tasks.append(task_reward(objective, basic, paid(self.fixed, rollout, self.size)))
        total = torch.stack(self.tasks).sum(0) if self.tasks else torch.zeros_like(basic)
        for name, wish in self.wishes.items():
            self.tasks.append(paid(wish, rollout, self.size))
            total = total + values[name] * self.tasks[-1]
        return total, self.own_weights

    def asked(self, rollout: Rollout) -> Tensor:
        """Return where on the dials each step's episode stands, `[T, N, dials]`."""
        return torch.from_numpy(rollout.observations[:-1, :, self.size : self.size + len(self.dials)])

    @torch.no_grad()
    def metrics(self, policy: Policy, inputs: Tensor) -> dict[str, float]:
        """Return how far apart the ends of each dial are at some inputs: in nats, the smaller of the two KLs."""
        some, apart = inputs.clone(), {}
        for index, dial in enumerate(self.dials):
            low, high = (self._at_end(policy, some, index, end) for end in (-1.0, 1.0))
            apart[dial.name] = min(float(low.kl(high).mean()), float(high.kl(low).mean()))
        each = {f"dial_kl_{name}": value for name, value in apart.items()} if len(apart) > 1 else {}
        return {"dial_kl": min(apart.values())} | each

    def _at_end(self, policy: Policy, inputs: Tensor, index: int, place: float) -> Distribution:
        """Return the policy with one dial at this end and the others in the middle."""
        inputs[:, -len(self.dials) :] = 0.0
        inputs[:, index - len(self.dials)] = place
        return policy.distribution(inputs)
