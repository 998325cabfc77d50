"""Learning a policy for every ω′ of a range at once.

Each environment shows where on the dial its episode stands, behind the observation (`envs.dialed`). The critic has a
head for each part of the reward, none of which holds ω′ as a factor. Advantages are linear in reward and value, so
those of the parts, each times its weight at that ω′, add up to the advantage of the whole.
"""

import math

import numpy as np
import torch
from torch import Tensor

from repolicy.engine import ppo
from repolicy.engine.scale import ReturnScale
from repolicy.engine.worker import Worker
from repolicy.envs.rollout import Rollout
from repolicy.objective import Objective, Omegas, Reward
from repolicy.policies.conditioned import Conditioned
from repolicy.policies.distributions import Distribution
from repolicy.policies.film import FilmMlp
from repolicy.policies.moments import sums
from repolicy.policies.policy import Policy

STRATA = 8  # of the dial, in each of which advantages have mean 0 and variance 1
ALIKE = 1.0  # nats: with the ends of the dial closer to each other than this, there is little to turn


def collapsed(metrics: dict[str, float]) -> list[str]:
    """What is to be said of a finished run whose dial turns too little."""
    apart = metrics.get("dial_kl", math.inf)
    if apart > ALIKE:
        return []
    return [
        f"the two ends of the dial are only {apart:.2g} nats apart, so it hardly turns anything: take a wider range of "
        "omega, a wish with a larger weight, or more steps"
    ]


class ConditionedWorker(Worker):
    """A worker whose environments are `Dialed`."""

    def networks(self) -> tuple[Policy, FilmMlp]:
        assert self.prior is not None
        policy = Conditioned.begun(self.prior, self.range).requires_grad_(True)
        seen = self.critic_size or self.prior.observation_size
        return policy, FilmMlp(seen, self.settings.hidden, len(self.fixed_weights), self.settings.activation)

    @property
    def range(self) -> Omegas:
        assert self.objective.omegas is not None
        return self.objective.omegas

    @property
    def shown(self) -> tuple[Policy, Objective]:
        """The middle of the dial."""
        policy = self.learner.policy
        assert isinstance(policy, Conditioned)
        return policy.placed(0.0), self.objective.at(self.range.omega(0.0))

    @property
    def fixed_weights(self) -> dict[str, float]:
        """The parts that the reward has, and their weights; that of the prior is each episode's own."""
        return {"task": 1.0, "prior": 1.0} | {
            name: weight
            for name, weight in (("entropy", self.objective.alpha), ("states", self.objective.states))
            if weight
        }

    def scales(self) -> ReturnScale:
        return ReturnScale(self.settings.gamma, len(self.fixed_weights))

    def seen(self, observations: np.ndarray) -> tuple[Tensor, Tensor]:
        """The position is last for both."""
        inputs, own = super().seen(observations)
        return inputs, torch.cat([own, inputs[..., -1:]], -1) if self.critic_size else inputs

    def omegas(self, rollout: Rollout) -> Tensor:
        self.places = torch.from_numpy(rollout.observations[:-1, :, self.learner.policy.spec.observation_size])
        return self.range.omega(self.places.double())  # type: ignore[no-any-return]

    def weights(self) -> Tensor:
        """Of the parts in each step's reward, `[T, N, H]`, for the rollout that was weighed last."""
        weights = self.fixed_weights | {"prior": self.range.omega(self.places.double())}
        return torch.stack([torch.as_tensor(each).expand(self.places.shape).double() for each in weights.values()], -1)

    @property
    def scale(self) -> Tensor:
        """Of each head, `[H]`."""
        return self.returns.stds if self.settings.scale_rewards else torch.ones_like(self.returns.stds)

    def unscaled(self) -> Tensor:
        """What a head's unit is worth in the reward, `[T, N, H]`: its weight and its scale."""
        return self.weights() * self.scale

    def parts(self, reward: Reward) -> Tensor:
        """Without their weights, `[T, N, H]`."""
        return torch.stack([getattr(reward, name) for name in self.fixed_weights], -1) / self.weights()

    def credit(
        self, reward: Reward, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages of the whole `[T, N]`, and what each head is to predict `[T, N, H]`."""
        settings = self.settings
        rewards = (self.parts(reward) / self.scale).float()
        gains = torch.stack(
            [
                ppo.advantages(*each, terminated, ended, settings.gamma, settings.lam)
                for each in zip(rewards.unbind(-1), values.unbind(-1), next_values.unbind(-1), strict=True)
            ],
            -1,
        )
        return (gains * self.unscaled()).sum(-1).float(), gains + values

    def normalized(self, gains: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """With mean 0 and variance 1 in each stratum of the dial, over all ranks: a large omega rules no other."""
        stratum = ((self.places + 1.0) * (STRATA / 2)).long().clamp(0, STRATA - 1)
        returns = (targets * self.unscaled()).sum(-1)
        both = torch.stack([gains.double(), returns], -1)
        of_stratum = torch.stack([sums(both[stratum == index]) for index in range(STRATA)], 1)  # [3, STRATA, 2]
        count, total, squares = self.team.sum(of_stratum)
        means = total / count.clamp_min(1.0)
        variances = (squares / count.clamp_min(1.0) - means.square()).clamp_min(0.0)
        unexplained, varied = (count * variances).sum(0).tolist()
        explained = 1.0 - unexplained / max(varied, 1e-12)
        if not self.settings.normalize_advantages:
            return gains, explained
        return ((both[..., 0] - means[stratum, 0]) / (variances[stratum, 0].sqrt() + 1e-8)).float(), explained

    @torch.no_grad()
    def width(self, inputs: Tensor) -> dict[str, float]:
        """Also how far apart the ends of the dial are, on the same inputs: in nats, the smaller of the two KLs."""
        some = inputs[:256].clone()
        low, high = (self._at_end(some, end) for end in (-1.0, 1.0))
        apart = min(float(low.kl(high).mean()), float(high.kl(low).mean()))
        return super().width(inputs) | {"dial_kl": apart}

    def _at_end(self, inputs: Tensor, place: float) -> Distribution:
        inputs[:, -1] = place
        return self.learner.policy.distribution(inputs)
