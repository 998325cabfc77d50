"""One rank's share of a run: collect, score, reward, update."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Collector, Rollout, critic_size, probe_env
from repolicy.errors import NumericError
from repolicy.learning import ppo
from repolicy.learning.multipliers import Multipliers
from repolicy.learning.terms import DialedTerms, FixedTerms, Task, ends_apart, in_the_middle
from repolicy.objective import DIALED, Objective, Reward, reformulated
from repolicy.policies import OBSERVATION_BOUND, Density, Normalizer, Policy, moment_sums, trainable_copy
from repolicy.prepare.states import familiarity
from repolicy.priors import Scorer, ScoringPrior
from repolicy.runs import Request, ranks, spec_for

CRITIC_LOST = -0.5  # explained variance below which a budget's weights stay: the critic cannot follow
LEAST_RATE_ALONE = 1e-3  # least learning rate while only the critic learns, where the KL of the policy steers it later
WIDTH_INPUTS = 256  # of an iteration's inputs, at which the width of the policy is looked at
MOST_SORTED = 1 << 24  # numbers of which torch finds a quantile, at most
MOST_WARMUPS = 3  # the actor waits for its critic at most this many times `critic_warmup`


class Worker:
    """What one rank learns, and where its environments stand."""

    def __init__(
        self,
        request: Request,
        prior: Policy | None,
        team: ranks.Ranks,
        scoring_prior: ScoringPrior | None = None,
        first: Policy | None = None,
    ) -> None:
        """`prior` was fitted to `scoring_prior`, where it is no copy; then that scores. The actor starts as `first`."""
        self.request, self.prior, self.team = request, prior, team
        self.settings, self.objective = request.settings, request.objective
        self.scoring_prior = scoring_prior or prior
        self.scorer = None if self.scoring_prior is None else Scorer(self.scoring_prior)
        self.terms: FixedTerms | DialedTerms = DialedTerms(request) if request.dials else FixedTerms(request)
        self.density: Density | None = None  # of the prior's states, where the objective weighs them
        self.iteration = 0
        self.probed: Rollout | None = None  # the last steps with the mean action, where something is measured in them
        self.evidence: dict[str, Tensor] = {}  # what the last iteration saw, in case it fails
        self.critic_size = critic_size(request.env, self.settings.backend)  # 0: the critic sees what the policy sees
        self.critic_normalizer = Normalizer(
            self.critic_size, OBSERVATION_BOUND if self.settings.normalize_observations else None
        )
        torch.manual_seed(self.settings.seed)  # initial weights: the same on every rank
        if prior is None:
            policy = Policy(spec_for(probe_env(request.env, self.settings.backend), self.settings))
        else:
            policy = trainable_copy(first or prior)
        self.multipliers = Multipliers(request, policy.observation_size)
        speed = 1.0 if prior is None else ppo.std_speed(self.settings.iteration_steps)
        self.learner = ppo.Learner(*self.terms.networks(policy, self.critic_size), self.settings.learning_rate, speed)

    @property
    def shown(self) -> tuple[Policy, Objective]:
        """What the short evaluations evaluate, and by which objective."""
        return in_the_middle(self.learner.policy, self.objective)

    @property
    def steps(self) -> int:
        return self.iteration * self.settings.iteration_steps

    @property
    def fits_normalizer(self) -> bool:
        return self.prior is None and self.settings.normalize_observations

    @property
    def fits_critic_normalizer(self) -> bool:
        return self.critic_size > 0 and self.settings.normalize_observations

    @property
    def normalizers(self) -> dict[str, Normalizer]:
        """By their names in a checkpoint."""
        own = {"normalizer": self.learner.policy.normalizer}
        return own | ({"critic_normalizer": self.critic_normalizer} if self.critic_size else {})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what the next iteration depends on: tensors, and plain numbers."""
        tensors = self.learner.state()
        for prefix, normalizer in self.normalizers.items():
            tensors |= {f"{prefix}.{name}": value for name, value in normalizer.state_dict().items()}
        if self.density is not None:
            tensors |= self.density.tensors()
        if self.multipliers.prior_earns is not None:
            tensors["prior_earns"] = self.multipliers.prior_earns
        numbers = {"iteration": self.iteration, "steps": self.steps, "objective": self.objective.as_dict()}
        return tensors, numbers | self.multipliers.state()

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        if self.prior is not None and self.objective.reads_states:
            self.density = Density.from_tensors(tensors)
            self.density.check_normalizer(self.prior.normalizer)
        self.learner.restore(tensors)
        for prefix, normalizer in self.normalizers.items():
            normalizer.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in normalizer.state_dict()})
        self.iteration, self.objective = numbers["iteration"], Objective(**numbers["objective"])
        self.multipliers.restore(numbers, tensors.get("prior_earns"))

    def begin(self, collector: Collector, stream: torch.Generator, probes: Collector | None = None) -> None:
        """Go on with these environments and this random stream, and with those where the mean action is measured."""
        self.collector, self.stream, self.probes = collector, stream, probes
        if self.scorer is not None:
            self.scorer.begin()

    def close(self) -> None:
        for collector in (self.collector, self.probes):
            if collector is not None:
                collector.envs.close()

    def iterate(self, stop: bool) -> dict[str, float]:
        """Run one iteration and return its metrics. The ranks meet twice, apart from the minibatches."""
        learner, began = self.learner, time.perf_counter()
        # Collect: the policy acts for `n_steps` in each environment.
        rollout = self.collector.collect(learner.policy)
        self.probed = None if self.probes is None else self.probes.collect(learner.policy, deterministic=True)
        collected = time.perf_counter()
        self.iteration += 1
        # The critic begins with statistics of its own from the first rollout, where a prior has brought its own.
        size = learner.policy.observation_size
        fresh = self.fits_critic_normalizer and self.prior is not None and self.iteration == 1
        if fresh:
            self.critic_normalizer.update(self.team.sum(moment_sums(rollout.observations[:-1, :, size:])))
        # Score, reward, advantages: what happened becomes what the update learns from.
        batch, metrics, observed = self.prepared(rollout, stop)
        explained = metrics["explained_variance"]
        # Budgets and limits move the weights of the next iteration, once the actor moves and its critic can follow.
        moves = self.actor_moves(explained)
        in_force = {name: getattr(self.objective, name) for name in DIALED}
        if moves and explained > CRITIC_LOST:
            self.objective = self.multipliers.steer(metrics, self.objective)
        metrics.pop("below_prior_squares", None)
        # Update: the critic always, the actor where it moves.
        report = self.update(batch, moves)
        # What was observed goes into the statistics that grow.
        if self.fits_normalizer:
            learner.policy.normalizer.update(observed[:, :size])
        if self.fits_critic_normalizer and not fresh:
            self.critic_normalizer.update(observed[:, size:])
        now = time.perf_counter()
        metrics |= {"iteration": self.iteration, "steps": self.steps}
        metrics["steps_per_second"] = self.settings.iteration_steps / (now - began)
        spent = {"physics": rollout.physics_seconds, "policy": rollout.policy_seconds, "update": now - collected}
        metrics |= {f"share_{what}": seconds / (now - began) for what, seconds in spent.items()} | report.as_dict()
        metrics |= {name: weight for name, weight in in_force.items() if isinstance(weight, float)}  # for all episodes
        return metrics | self.width(batch.inputs[torch.linspace(0, len(batch.inputs) - 1, WIDTH_INPUTS).long()])

    def update(self, batch: ppo.Batch, moves: bool) -> ppo.Report:
        """Take the gradient steps of one iteration, at the step size that the schedule has for it."""
        settings, learner = self.settings, self.learner
        if settings.schedule == "linear":
            learner.learning_rate = settings.learning_rate * (1.0 - (self.iteration - 1) / settings.iterations)
        rate = learner.learning_rate
        if settings.schedule == "adaptive" and not moves:  # the KL of a policy that rests says nothing
            learner.learning_rate = max(rate, LEAST_RATE_ALONE)
        report = ppo.update(learner, batch, settings, self.stream, self.team, self.objective.bonus, moves)
        if not moves:
            learner.learning_rate = rate
        return report

    def actor_moves(self, explained: float) -> bool:
        """Return whether the critic has had its time alone and explains enough now, or has had three times as much."""
        alone = self.settings.critic_warmup * self.settings.iterations
        enough = self.settings.critic_explains is None or explained >= self.settings.critic_explains
        return self.iteration > alone and (enough or self.iteration > MOST_WARMUPS * alone)

    def prepared(self, rollout: Rollout, stop: bool) -> tuple[ppo.Batch, dict[str, float], Tensor]:
        """Return what the update learns from, and what `exchange` gave. What it came from is kept, in case it fails."""
        self.evidence = {"observations": torch.from_numpy(rollout.observations), "actions": rollout.actions}
        self.evidence |= {"basic": torch.from_numpy(rollout.basic), "log_policy": rollout.log_probs}
        # Score: by the prior, and by the critic before it learns.
        inputs, critic_inputs = self.seen(rollout.observations)
        log_prior, values, next_values = self.score(rollout, critic_inputs)
        self.evidence |= {} if log_prior is None else {"log_prior": log_prior}
        # Reward: the paper's.
        task = self.terms.task(self.objective, rollout, self.bare_size)
        reward = self.reward(rollout, task, log_prior)
        self.evidence["rewards"] = reward.total
        terminated = torch.from_numpy(rollout.terminated)
        ended = terminated | torch.from_numpy(rollout.truncated)
        metrics, observed = self.exchange(rollout, reward, log_prior, stop)
        # Advantages, and targets in the scale that the critic predicts in.
        gains, targets = self.terms.credit(task, reward, values, next_values, terminated, ended)
        credit = self.terms.normalized(task, gains, targets, self.team)
        scale = self.learner.return_scale
        scale.update(credit.returned, self.learner.critic)
        metrics.update(explained_variance=credit.explained, return_scale=float(scale.std.mean()))
        batch = ppo.Batch(
            inputs[:-1].flatten(0, 1),
            rollout.actions.flatten(0, 1),
            rollout.log_probs.flatten(),
            credit.gains.flatten(),
            scale.apply(targets).flatten(0, 1),
            critic_inputs[:-1].flatten(0, 1) if self.critic_size else None,
        )
        return batch, metrics, observed

    @torch.no_grad()
    def width(self, inputs: Tensor) -> dict[str, float]:
        """Return the entropy of the actions at some inputs and, where they have one, their mean std."""
        distribution = self.learner.policy.distribution(inputs)
        log_std = getattr(distribution, "log_std", None)
        numbers = {"entropy": float(distribution.entropy().mean())}
        std = {} if log_std is None else {"std": float(log_std.exp().mean())}
        return numbers | std | ends_apart(self.learner.policy, inputs)

    def seen(self, observations: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return what the policy sees of raw observations, and what the critic sees: both normalized."""
        raw, policy = torch.from_numpy(observations), self.learner.policy
        inputs = policy.normalizer(raw[..., : policy.observation_size])
        if not self.critic_size:
            return inputs, inputs
        own = self.critic_normalizer(raw[..., policy.observation_size :])
        return inputs, torch.cat([own, inputs[..., self.bare_size :]], -1)  # behind which are the places on the dials

    @torch.no_grad()
    def score(self, rollout: Rollout, inputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return log prior `[T, N]`, V(s_t) and V(s_{t+1}) `[T, N, H]` of a rollout; the critic sees `inputs`."""
        learner, log_prior = self.learner, None
        if self.scorer is not None:
            observations, actions, ended = rollout.prior_inputs
            log_prior = self.scorer(self.bare(observations), actions, ended)
        values = learner.values(inputs)
        next_values = values[1:].clone()
        if len(rollout.cut_indices):
            _, ends = self.seen(rollout.cut_observations)
            next_values[rollout.cut_indices[:, 0], rollout.cut_indices[:, 1]] = learner.values(ends)
        return log_prior, values[:-1], next_values

    def reward(self, rollout: Rollout, task: Task, log_prior: Tensor | None) -> Reward:
        """Return the reformulated reward of a rollout, in float64. Raises where a part of it is not finite."""
        known = self.familiarity(rollout.next_observations, rollout.ages)
        prior = None if log_prior is None else log_prior.double()
        parts = reformulated(self.objective, task.total, prior, rollout.log_probs.double(), known, **task.weights)
        price = self.multipliers.price(rollout)
        parts = parts if price is None else parts._replace(total=parts.total - price)
        names = ("reward", "prior's log-probability", "policy's log-probability")
        for name, part in zip(names, (parts.task, parts.prior, parts.entropy), strict=True):
            if not bool(torch.isfinite(part).all()):
                t, n = np.argwhere(~torch.isfinite(part).numpy())[0]
                where = f"environment {n}, step {t} of iteration {self.iteration}"
                raise NumericError(f"the {name} is not finite ({where})")
        return parts

    @property
    def bare_size(self) -> int:
        """How many numbers the environment itself shows to a policy."""
        return self.learner.policy.spec.observation_size

    def bare(self, observations: Any) -> Any:
        """Return what the environment itself shows to a policy, as the prior and add-ons know it."""
        return observations[..., : self.bare_size]

    def familiarity(self, observations: np.ndarray | None, ages: np.ndarray) -> Tensor | None:
        """Return the familiarity of true next observations, where the objective weighs it."""
        if self.density is None or self.prior is None or observations is None:
            return None
        seen = torch.from_numpy(self.bare(observations))
        return familiarity(self.density, self.prior.normalizer, seen, torch.from_numpy(ages))

    @torch.no_grad()
    def below_prior(self, rollout: Rollout, log_prior: Tensor | None) -> dict[str, Tensor]:
        """Return by how many nats actions are less likely to the prior than its own there; and the squares."""
        if self.settings.log_prior_budget is None or self.prior is None or log_prior is None:
            return {}
        own = -self.prior(torch.from_numpy(self.bare(rollout.observations[:-1]))).entropy().double()
        nats = own - log_prior.double()
        return {"below_prior": nats.sum(), "below_prior_squares": nats.square().sum()}

    def exchange(
        self, rollout: Rollout, reward: Reward, log_prior: Tensor | None, stop: bool
    ) -> tuple[dict[str, float], Tensor]:
        """Return what all ranks together saw, by one sum over them: the metrics, and sums for the normalizers.

        The sums are `[3, O]`, and `[3, 0]` where none is fitted.
        """
        values = {"reward_task": reward.task, "reward_prior": reward.prior, "reward_entropy": reward.entropy}
        values |= {"reward_states": reward.states} if self.objective.reads_states else {}
        limits = {"reward_limits": reward.total - sum(reward[:3]) - reward.states} if self.multipliers.limits else {}
        values |= limits | {"reward_total": reward.total, "log_policy": rollout.log_probs.double()}
        if log_prior is not None:
            low = lowest_tenth(log_prior) * log_prior.numel()
            values |= {"log_prior": log_prior.double(), "log_prior_low": low, **self.below_prior(rollout, log_prior)}
        totals = {name: value.sum() for name, value in values.items()} | {
            "basic_return": sum(rollout.episodes.returns),
            "episode_length": sum(rollout.episodes.lengths),
            "episodes": len(rollout.episodes.lengths),
            "stop": float(stop),
        }
        numbers = torch.tensor([float(value) for value in totals.values()], dtype=torch.float64)
        fits = self.fits_normalizer or self.fits_critic_normalizer
        observed = moment_sums(rollout.observations[:-1]) if fits else numbers.new_empty(3, 0)
        probed = self.multipliers.sums(self.probed, rollout)
        self.team.sum(packed := torch.cat([numbers, observed.flatten(), probed]))
        numbers, observed, probed = packed.split([len(numbers), observed.numel(), len(probed)])
        totals = dict(zip(totals, numbers.tolist(), strict=True))
        episodes, samples = totals["episodes"], self.settings.iteration_steps
        metrics = {
            name: total / (samples if name.startswith(("reward", "log", "below")) else max(episodes, 1.0))
            for name, total in totals.items()
        }
        metrics |= {"episodes": episodes, "stop": totals["stop"]} | self.multipliers.told(probed, self.objective)
        if not episodes:
            del metrics["basic_return"], metrics["episode_length"]
        if log_prior is not None:
            metrics["prior_kl"] = metrics["log_policy"] - metrics["log_prior"]  # KL(policy ‖ prior), from samples
        return metrics, observed.reshape(3, -1)


def lowest_tenth(values: Tensor) -> Tensor:
    """Return the number below which a tenth lies; of more than torch sorts, every second or so is looked at."""
    return values.flatten()[:: 1 + values.numel() // MOST_SORTED].quantile(0.1)
