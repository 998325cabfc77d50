"""One rank's part of a training iteration: collect a rollout, score it, compute rewards, update the networks."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Collector, Rollout, critic_size, probe_env
from repolicy.errors import NumericError
from repolicy.learning import ppo
from repolicy.learning.multipliers import MIN_EXPLAINED_VARIANCE, Multipliers
from repolicy.learning.terms import DialedTerms, FixedTerms, TaskRewards, dial_metrics
from repolicy.objective import DIALED, Objective, Reward, reformulated
from repolicy.policies import OBSERVATION_BOUND, Density, Normalizer, Policy, moment_sums, trainable_copy
from repolicy.prepare.states import familiarity
from repolicy.priors import MeanPrior, ScoredPrior, Scorer, ScoringPrior
from repolicy.runs import Request, ranks, spec_for

MIN_WARMUP_LEARNING_RATE = 1e-3  # while only the critic learns; later the policy's KL adapts the learning rate
ENTROPY_SAMPLES = 256  # observations of an iteration at which the policy's entropy is measured
MAX_WARMUPS = 3  # the actor waits for its critic at most this many times `critic_warmup`


class Worker:
    """The networks that one rank trains, its environments, and the iteration over them."""

    def __init__(
        self,
        request: Request,
        prior: Policy | None,
        team: ranks.Ranks,
        scoring_prior: ScoringPrior | None = None,
        initial_policy: Policy | None = None,
    ) -> None:
        """Build the networks.

        `scoring_prior` computes log prior(a|s) where `prior` is only an approximation fitted to it. The actor starts as
        a copy of `initial_policy`, by default of `prior`.
        """
        self.request, self.prior, self.team = request, prior, team
        self.settings, self.objective = request.settings, request.objective
        self.scoring_prior = scoring_prior or prior
        self.scorer = None if self.scoring_prior is None else Scorer(self.scoring_prior)
        self.terms: FixedTerms | DialedTerms = DialedTerms(request) if request.dials else FixedTerms(request)
        self.density: Density | None = None  # of the states that the prior visits, where the objective weighs them
        self.iteration = 0
        self.deployed_rollout: Rollout | None = None  # only where limits or a kept return are measured
        self.debug_tensors: dict[str, Tensor] = {}  # of the last iteration; written to a file if it fails
        self.critic_size = critic_size(request.env, self.settings.backend)  # 0: the critic sees what the policy sees
        bound = OBSERVATION_BOUND if self.settings.normalize_observations else None
        self.critic_normalizer = Normalizer(self.critic_size, bound)
        torch.manual_seed(self.settings.seed)  # the initial weights must be the same on every rank
        if prior is None:
            policy = Policy(spec_for(probe_env(request.env, self.settings.backend), self.settings))
        else:
            policy = trainable_copy(initial_policy or prior)
            if policy.actions.kind == "discrete":  # a prior's file may not tell from which number choices are counted
                actions = probe_env(request.env, self.settings.backend).actions
                policy.spec = replace(policy.spec, actions=actions)
        self.multipliers = Multipliers(request)
        std_speed = 1.0 if prior is None else ppo.std_speed(self.settings.iteration_steps)
        networks = self.terms.networks(policy, self.critic_size)
        self.learner = ppo.Learner(*networks, self.settings.learning_rate, std_speed)

    @property
    def acting_prior(self) -> MeanPrior | Policy | None:
        """The prior as it acts: the one that scores actions or, where it can only do that, the clone of it."""
        return self.prior if isinstance(self.scoring_prior, ScoredPrior) else self.scoring_prior

    @property
    def steps(self) -> int:
        return self.iteration * self.settings.iteration_steps

    @property
    def fits_normalizer(self) -> bool:
        return self.prior is None and self.settings.normalize_observations

    @property
    def normalizers(self) -> dict[str, Normalizer]:
        """The observation normalizers, by their names in a checkpoint."""
        own = {"normalizer": self.learner.policy.normalizer}
        return own | ({"critic_normalizer": self.critic_normalizer} if self.critic_size else {})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what the next iteration depends on, for a checkpoint: tensors, and plain numbers."""
        tensors = self.learner.state()
        for prefix, normalizer in self.normalizers.items():
            tensors |= {f"{prefix}.{name}": value for name, value in normalizer.state_dict().items()}
        if self.density is not None:
            tensors |= self.density.tensors()
        if self.multipliers.prior_rewards is not None:
            tensors["prior_earns"] = self.multipliers.prior_rewards
        numbers = {"iteration": self.iteration, "steps": self.steps, "objective": self.objective.as_dict()}
        return tensors, numbers | self.multipliers.state()

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Load what `state` returned."""
        if self.prior is not None and self.objective.reads_states:
            self.density = Density.from_tensors(tensors, self.prior.normalizer.bound)
            self.density.check_normalizer(self.prior.normalizer)
        self.learner.restore(tensors)
        for prefix, normalizer in self.normalizers.items():
            normalizer.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in normalizer.state_dict()})
        self.iteration, self.objective = numbers["iteration"], Objective(**numbers["objective"])
        self.multipliers.restore(numbers, tensors.get("prior_earns"))

    def begin(self, collector: Collector, stream: torch.Generator, deployed_collector: Collector | None = None) -> None:
        """Start a segment with new environments and a new random stream.

        `deployed_collector` has further environments, in which limits are measured with the deployed action.
        """
        self.collector, self.stream, self.deployed_collector = collector, stream, deployed_collector
        if self.scorer is not None:
            self.scorer.begin()

    def close(self) -> None:
        for collector in (self.collector, self.deployed_collector):
            if collector is not None:
                collector.envs.close()

    def iterate(self, stop: bool) -> dict[str, float]:
        """Run one iteration and return its metrics.

        Metric `stop` counts the ranks that passed `stop`, so that all of them end together.
        """
        learner, began = self.learner, time.perf_counter()
        # Collect: the policy acts for `n_steps` in each environment.
        rollout = self.collector.collect(learner.policy)
        if self.deployed_collector is not None:
            self.deployed_rollout = self.deployed_collector.collect(learner.policy, self.request.is_judged_by_mean)
        collected = time.perf_counter()
        self.iteration += 1
        # While customizing, only the critic's normalizer is new: fit it to the first rollout before it is used.
        fits_first = self.prior is not None and self.iteration == 1
        if fits_first:
            self.fit_normalizers(rollout)
        # Score the rollout, compute rewards and advantages.
        batch, metrics = self.prepare_batch(rollout, stop)
        explained = metrics["explained_variance"]
        # Budgets and limits change the weights of the next iteration, once the actor is trained. A segment's first
        # rollout shows how episodes begin, and no whole ones, so it moves nothing unless every rollout is a first one.
        fit_actor = self.should_fit_actor(explained)
        weights = {name: getattr(self.objective, name) for name in DIALED}
        is_first = self.iteration % self.settings.checkpoint_every == 1
        if fit_actor and explained > MIN_EXPLAINED_VARIANCE and not is_first:
            self.objective = self.multipliers.steer(metrics, self.objective)
        metrics.pop("below_prior_squares", None)
        # Update: the critic always, the actor after the warm-up.
        report = self.update(batch, fit_actor)
        # Only now may the normalizers change: the update needs the log-probabilities of the old ones.
        if not fits_first:
            self.fit_normalizers(rollout)
        # Report.
        now = time.perf_counter()
        metrics |= {"iteration": self.iteration, "steps": self.steps}
        metrics["steps_per_second"] = self.settings.iteration_steps / (now - began)
        seconds = {"physics": rollout.physics_seconds, "policy": rollout.policy_seconds, "update": now - collected}
        metrics |= {f"share_{part}": value / (now - began) for part, value in seconds.items()} | report
        metrics |= {name: weight for name, weight in weights.items() if isinstance(weight, float)}  # no ranges
        rows = torch.linspace(0, len(batch.inputs) - 1, ENTROPY_SAMPLES).long()
        return metrics | self.policy_metrics(batch.inputs[rows])

    def fit_normalizers(self, rollout: Rollout) -> None:
        """Add the observations of all ranks to the normalizers; a customized policy keeps that of its prior."""
        size = self.learner.policy.observation_size
        if self.fits_normalizer:
            self.learner.policy.normalizer.update(self.team.sum(moment_sums(rollout.observations[:-1, :, :size])))
        if self.critic_size and self.settings.normalize_observations:
            self.critic_normalizer.update(self.team.sum(moment_sums(rollout.observations[:-1, :, size:])))

    def update(self, batch: ppo.Batch, fit_actor: bool) -> dict[str, float]:
        """Take the gradient steps of one iteration, with the learning rate of the schedule."""
        settings, learner = self.settings, self.learner
        if settings.schedule == "linear":
            learner.learning_rate = settings.learning_rate * (1.0 - (self.iteration - 1) / settings.iterations)
        rate = learner.learning_rate
        if settings.schedule == "adaptive" and not fit_actor:
            learner.learning_rate = max(rate, MIN_WARMUP_LEARNING_RATE)
        report = ppo.update(learner, batch, settings, self.stream, self.team, self.objective.bonus, fit_actor)
        if not fit_actor:
            learner.learning_rate = rate
        return report

    def should_fit_actor(self, explained: float) -> bool:
        """Return whether the critic's warm-up is over, and the critic explains enough or has used up `MAX_WARMUPS`."""
        warmup = self.settings.critic_warmup * self.settings.iterations
        enough = self.settings.critic_explains is None or explained >= self.settings.critic_explains
        return self.iteration > warmup and (enough or self.iteration > MAX_WARMUPS * warmup)

    def prepare_batch(self, rollout: Rollout, stop: bool) -> tuple[ppo.Batch, dict[str, float]]:
        """Return the batch that the update learns from, and the iteration's metrics."""
        self.debug_tensors = {
            "observations": torch.from_numpy(rollout.observations),
            "actions": rollout.actions,
            "basic": torch.from_numpy(rollout.basic),
            "log_policy": rollout.log_probs,
        }
        # Score: by the prior, and by the critic before it learns.
        inputs, critic_inputs = self.network_inputs(rollout.observations)
        log_prior, values, next_values = self.score(rollout, critic_inputs)
        if log_prior is not None:
            self.debug_tensors["log_prior"] = log_prior
        # Reward: the reformulated one (Eq. 16).
        task = self.terms.task(self.objective, rollout)
        reward = self.reward(rollout, task, log_prior)
        self.debug_tensors["rewards"] = reward.total
        metrics = self.reduce_metrics(rollout, reward, log_prior, stop)
        # Advantages, and the critic's targets.
        scale = self.learner.return_scale
        if not scale.is_known:
            unit = ppo.first_unit(reward.total)
            values, next_values = unit * values, unit * next_values
        terminated = torch.from_numpy(rollout.terminated)
        ended = terminated | torch.from_numpy(rollout.truncated)
        advantages, targets = self.terms.credit(task, reward, values, next_values, terminated, ended)
        normalized = self.terms.normalized(task, advantages, targets, self.team)
        self.learner.critic.rescale(*scale.update(normalized.target_sums))
        metrics.update(explained_variance=normalized.explained_variance, return_scale=float(scale.std.mean()))
        batch = ppo.Batch(
            inputs[:-1].flatten(0, 1),
            rollout.actions.flatten(0, 1),
            rollout.log_probs.flatten(),
            normalized.advantages.flatten(),
            scale.apply(targets).flatten(0, 1),
            critic_inputs[:-1].flatten(0, 1) if self.critic_size else None,
        )
        return batch, metrics

    @torch.no_grad()
    def policy_metrics(self, inputs: Tensor) -> dict[str, float]:
        """Return the policy's mean entropy at some inputs `[B, O]` and, where it has one, its mean std."""
        distribution = self.learner.policy.distribution(inputs)
        metrics = {"entropy": float(distribution.entropy().mean())}
        log_std = getattr(distribution, "log_std", None)
        if log_std is not None:
            metrics["std"] = float(log_std.exp().mean())
        return metrics | dial_metrics(self.learner.policy, inputs)

    def network_inputs(self, observations: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the normalized inputs of the policy and of the critic, from raw observations."""
        raw, policy = torch.from_numpy(observations), self.learner.policy
        inputs = policy.normalizer(raw[..., : policy.observation_size])
        if not self.critic_size:
            return inputs, inputs
        privileged = self.critic_normalizer(raw[..., policy.observation_size :])
        dial_positions = inputs[..., policy.spec.observation_size :]
        return inputs, torch.cat([privileged, dial_positions], -1)

    @torch.no_grad()
    def score(self, rollout: Rollout, critic_inputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return log prior(a|s) `[T, N]`, V(s_t) and V(s_{t+1}) `[T, N, H]` of a rollout."""
        learner, log_prior = self.learner, None
        if self.scorer is not None:
            log_prior = self.scorer(*rollout.prior_inputs)
        values = learner.values(critic_inputs)
        next_values = values[1:].clone()
        if len(rollout.cut_indices):  # at time limits the next row is another episode's: use the true last observation
            _, last_inputs = self.network_inputs(rollout.cut_observations)
            next_values[rollout.cut_indices[:, 0], rollout.cut_indices[:, 1]] = learner.values(last_inputs)
        return log_prior, values[:-1], next_values

    def reward(self, rollout: Rollout, task: TaskRewards, log_prior: Tensor | None) -> Reward:
        """Return the reformulated reward of a rollout, in float64. Raises where a part of it is not finite."""
        familiarities = self.familiarity_of(rollout.next_observations, rollout.ages, rollout.terminated)
        prior = None if log_prior is None else log_prior.double()
        log_policy = rollout.log_probs.double()
        parts = reformulated(self.objective, task.total, prior, log_policy, familiarities, **task.weights)
        price = self.multipliers.price(rollout)
        if price is not None:
            parts = parts._replace(total=parts.total - price)
        names = ("reward", "prior's log-probability", "policy's log-probability")
        for name, part in zip(names, (parts.task, parts.prior, parts.entropy), strict=True):
            if not bool(torch.isfinite(part).all()):
                t, n = np.argwhere(~torch.isfinite(part).numpy())[0]
                where = f"environment {n}, step {t} of iteration {self.iteration}"
                raise NumericError(f"the {name} is not finite ({where})")
        return parts

    def familiarity_of(self, next_observations: np.ndarray, ages: np.ndarray, terminated: np.ndarray) -> Tensor | None:
        """Return how familiar the next states are to the prior, or None where the objective does not weigh it."""
        if self.density is None:
            return None
        observations, at, ends = map(torch.from_numpy, (next_observations, ages, terminated))
        return familiarity(self.density, observations, at, ends, self.settings.gamma)

    @torch.no_grad()
    def below_prior(self, rollout: Rollout, log_prior: Tensor | None) -> dict[str, Tensor]:
        """Return sums over steps for a log-prior budget; empty without one.

        They are of the nats by which log prior(a|s) is below its mean over the prior's own actions, and their squares.
        """
        if self.settings.log_prior_budget is None or self.prior is None or log_prior is None:
            return {}
        prior_mean = -self.prior(rollout.prior_inputs[0]).entropy().double()
        nats = prior_mean - log_prior.double()
        return {"below_prior": nats.sum(), "below_prior_squares": nats.square().sum()}

    def reduce_metrics(
        self, rollout: Rollout, reward: Reward, log_prior: Tensor | None, stop: bool
    ) -> dict[str, float]:
        """Sum statistics over all ranks at once, and return the metrics."""
        # Sums over steps become means over samples; sums over episodes become means over episodes.
        steps = {"reward_task": reward.task, "reward_prior": reward.prior, "reward_entropy": reward.entropy}
        if self.objective.reads_states:
            steps["reward_states"] = reward.states
        if self.multipliers.limits:
            steps["reward_limits"] = reward.total - sum(reward[:3]) - reward.states
        steps |= {"reward_total": reward.total, "log_policy": rollout.log_probs.double()}
        if log_prior is not None:
            low = log_prior.quantile(0.1) * log_prior.numel()
            steps |= {"log_prior": log_prior.double(), "log_prior_low": low, **self.below_prior(rollout, log_prior)}
        totals = {name: float(value.sum()) for name, value in steps.items()} | {
            "basic_return": float(sum(rollout.episodes.returns)),
            "episode_length": float(sum(rollout.episodes.lengths)),
            "episodes": float(len(rollout.episodes.lengths)),
            "stop": float(stop),
        }
        measured = self.multipliers.local_sums(self.deployed_rollout, rollout, self.team.count)
        numbers = torch.tensor([*totals.values(), *measured.values()], dtype=torch.float64)
        sums = dict(zip([*totals, *measured], self.team.sum(numbers).tolist(), strict=True))
        episodes, samples = sums["episodes"], self.settings.iteration_steps
        metrics = {name: sums[name] / (samples if name in steps else max(episodes, 1.0)) for name in totals}
        metrics |= {"episodes": episodes, "stop": sums["stop"]}
        metrics |= self.multipliers.metrics(sums, self.objective)
        if not episodes:
            del metrics["basic_return"], metrics["episode_length"]
        if log_prior is not None:
            metrics["prior_kl"] = metrics["log_policy"] - metrics["log_prior"]  # KL(policy ‖ prior), from samples
        return metrics
