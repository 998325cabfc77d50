"""One rank's share of a run: an iteration, a segment, a checkpoint.

A segment is a pure function of the checkpoint before it: at its start the environments and every random stream are
made anew from (seed, segment, rank).
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.engine import ppo, ranks
from repolicy.engine.folder import RunFolder
from repolicy.engine.machine import versions
from repolicy.engine.request import Request, spec_for
from repolicy.engine.scale import ReturnScale
from repolicy.engine.steering import FAR, off_budget, steered
from repolicy.envs import addons
from repolicy.envs.evaluation import check_fit, run_episodes
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector, Rollout
from repolicy.errors import NumericError
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.policies.file import read_policy, save_policy
from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import moments
from repolicy.policies.policy import Policy, frozen
from repolicy.policies.storage import write


class Worker:
    """One rank's state: what it learns, and where its environments stand."""

    def __init__(self, request: Request, folder: RunFolder, team: ranks.Ranks) -> None:
        self.request, self.folder, self.team = request, folder, team
        self.settings, self.objective = request.settings, request.objective
        self.addon = None
        if request.objective.reads_addon:  # what it reports for people is not needed here
            self.addon = replace(addons.combined(request.addons), metrics=())
        self.prior = read_policy(folder.prior).policy if request.prior else None
        self.iteration = 0
        self.best = -np.inf
        self.off_budget = -FAR
        self.returns = ReturnScale(self.settings.gamma)
        self._evidence: dict[str, Tensor] = {}
        torch.manual_seed(self.settings.seed)  # initial weights: the same on every rank
        if self.prior is None:
            probe = make_envs(request.env, 1, 0, self.settings.backend)
            probe.close()
            policy = Policy(spec_for(probe, self.settings))
        else:
            policy = frozen(self.prior).requires_grad_(True)
        critic = Mlp(policy.spec.observation_size, self.settings.hidden, 1, self.settings.activation)
        self.learner = ppo.Learner(policy, critic, self.settings.learning_rate)

    @property
    def steps(self) -> int:
        return self.iteration * self.settings.iteration_steps

    @property
    def fits_normaliser(self) -> bool:
        return self.prior is None and self.settings.normalise_observations

    # A segment --------------------------------------------------------------------------------------------------------

    def begin_segment(self, segment: int) -> None:
        """Environments and random streams, all from (seed, segment, rank)."""
        share = self.settings.envs // self.team.count
        self.stream = torch.Generator().manual_seed(derived_seed(self.settings.seed, segment, 1 + self.team.index))
        seed = derived_seed(self.settings.seed, segment, 0) + self.team.index * share
        self.envs = make_envs(self.request.env, share, seed, self.settings.backend)
        if self.prior is not None:
            check_fit(self.prior, self.envs, "the prior")
        self.collector = Collector(
            self.envs, self.settings.horizon, self.stream, keep_transitions=self.addon is not None
        )
        self.returns.begin(share)

    def end_segment(self, segment: int) -> dict[str, float]:
        """A short evaluation, shared out over the ranks, and the policies it leads to."""
        self.envs.close()
        episodes = max(1, self.settings.evaluation_episodes // self.team.count)
        seed = derived_seed(self.settings.seed, segment, 1000)
        batch = make_envs(self.request.env, episodes, seed + self.team.index * episodes, self.settings.backend)
        found = run_episodes(
            self.learner.policy,
            batch,
            episodes,
            addon=self.addon,
            prior=self.prior,
            stochastic=True,
            seed=seed + self.team.index,
        )
        batch.close()
        task = task_reward(self.objective, found.basic, found.addon)
        parts = reformulated(self.objective, task, found.log_prior, found.log_policy)  # it is linear: sums in, sums out
        sums = [len(task), parts.total.sum(), parts.task.sum(), found.basic.sum(), found.lengths.sum()]
        if found.addon is not None:
            sums.append(found.addon.sum())
        count, *totals = self.team.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        names = ["evaluation_objective", "evaluation_task", "evaluation_basic", "evaluation_length", "evaluation_addon"]
        metrics = {name: total / count for name, total in zip(names, totals, strict=False)}
        moves = self.settings.kl_budget is not None  # then each segment has weights of its own, and the last is best
        better = moves or metrics["evaluation_objective"] > self.best
        self.best = metrics["evaluation_objective"] if better else self.best
        if self.team.index == 0:
            card = self.card(metrics)
            save_policy(self.folder.last_policy, self.learner.policy, card | {"which": "last"}, self.prior)
            if better:
                save_policy(self.folder.best_policy, self.learner.policy, card | {"which": "best"}, self.prior)
        return metrics | {"best": self.best}

    def card(self, metrics: dict[str, float]) -> dict[str, Any]:
        """The story that a policy's file tells."""
        return {"request": self.request.as_dict(), "steps": self.steps, "evaluation": metrics, "versions": versions()}

    # An iteration -----------------------------------------------------------------------------------------------------

    def iterate(self, stop: bool) -> dict[str, float]:
        """Collect, score, update. The ranks meet twice, apart from the minibatches."""
        settings, learner = self.settings, self.learner
        self._evidence = {}
        began = time.perf_counter()
        rollout = self.collector.collect(learner.policy)
        collected = time.perf_counter()
        self.iteration += 1
        batch, summary = self.prepared(rollout, stop)
        if settings.schedule == "linear":
            learner.learning_rate = settings.learning_rate * (1.0 - (self.iteration - 1) / settings.iterations)
        fit_actor = self.iteration > settings.critic_warmup * settings.iterations
        weights = {"omega": self.objective.omega, "alpha": self.objective.alpha}  # that were in force
        if settings.kl_budget is not None and fit_actor:
            before, self.off_budget = self.off_budget, off_budget(summary.metrics["prior_kl"], settings.kl_budget)
            self.objective = steered(self.objective, before, self.off_budget)
        report = ppo.update(
            learner, batch, settings, self.stream, self.team.sum, self.team.count, self.objective.bonus, fit_actor
        )
        if self.fits_normaliser:
            learner.policy.normaliser.update(summary.observations)
        now = time.perf_counter()
        return (
            summary.metrics
            | {
                "iteration": self.iteration,
                "steps": self.steps,
                "steps_per_second": settings.iteration_steps / (now - began),
                "share_physics": rollout.physics_seconds / (now - began),
                "share_policy": rollout.policy_seconds / (now - began),
                "share_update": (now - collected) / (now - began),
                "policy_loss": report.policy_loss,
                "value_loss": report.value_loss,
                "kl": report.kl,
                "clipped": report.clipped,
                "gradient_norm": report.gradient_norm,
                "learning_rate": report.learning_rate,
                "epochs": report.epochs,
            }
            | weights
            | self.width(batch.inputs)
        )

    def prepared(self, rollout: Rollout, stop: bool) -> tuple[ppo.Batch, "Summary"]:
        """From what happened to what the update learns from: scores, the reformulated reward, advantages."""
        settings = self.settings
        self._evidence = {
            "observations": torch.from_numpy(rollout.observations),
            "actions": rollout.actions,
            "basic": torch.from_numpy(rollout.basic),
        }
        log_policy, log_prior, values, next_values = self.score(rollout)
        self._evidence |= {"log_policy": log_policy} | ({} if log_prior is None else {"log_prior": log_prior})
        reward = self.reward(rollout, log_policy, log_prior)
        self._evidence["rewards"] = reward.total
        terminated = torch.from_numpy(rollout.terminated)
        ended = terminated | torch.from_numpy(rollout.truncated)
        summary = self.exchange(rollout, reward, log_policy, log_prior, ended, stop)

        scaled = (reward.total / self.returns.std if settings.scale_rewards else reward.total).float()
        gains = ppo.advantages(scaled, values, next_values, terminated, ended, settings.gamma, settings.lam)
        targets = gains + values
        batch = ppo.Batch(
            rollout.inputs[:-1].flatten(0, 1),
            rollout.actions.flatten(0, 1),
            log_policy.flatten(),
            self.normalised(gains).flatten(),
            targets.flatten(),
        )
        summary.metrics["explained_variance"] = 1.0 - float((targets - values).var() / targets.var().clamp_min(1e-12))
        return batch, summary

    @torch.no_grad()
    def width(self, inputs: Tensor) -> dict[str, float]:
        """The entropy of the actions and, where they have one, their mean std, on some of the inputs."""
        distribution = self.learner.policy.distribution(inputs[:256])
        log_std = getattr(distribution, "log_std", None)
        found = {"entropy": float(distribution.entropy().mean())}
        return found if log_std is None else found | {"std": float(log_std.exp().mean())}

    @torch.no_grad()
    def score(self, rollout: Rollout) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """log π, log prior, V(s_t) and V(s_{t+1}), each `[T, N]`, for the whole rollout at once."""
        learner = self.learner
        log_policy = learner.policy.distribution(rollout.inputs[:-1]).log_prob(rollout.actions)
        log_prior = None
        if self.prior is not None:
            log_prior = self.prior.log_prob(torch.from_numpy(rollout.observations[:-1]), rollout.actions)
        values = learner.values(rollout.inputs)
        next_values = values[1:].clone()
        if len(rollout.cut):
            ends = learner.policy.normaliser(torch.from_numpy(rollout.cut_observations))
            next_values[rollout.cut[:, 0], rollout.cut[:, 1]] = learner.values(ends)
        return log_policy, log_prior, values[:-1], next_values

    def reward(self, rollout: Rollout, log_policy: Tensor, log_prior: Tensor | None) -> Any:
        """The reformulated reward of a rollout, in float64, with every part checked."""
        addon_reward = None
        if self.addon is not None:
            addon_reward = torch.from_numpy(self.addon.reward(*rollout.transitions))
        task = task_reward(self.objective, torch.from_numpy(rollout.basic), addon_reward)
        parts = reformulated(
            self.objective, task, None if log_prior is None else log_prior.double(), log_policy.double()
        )
        for name, part in (
            ("reward", parts.task),
            ("prior's log-probability", parts.prior),
            ("policy's log-probability", parts.entropy),
        ):
            if not bool(torch.isfinite(part).all()):
                t, n = np.argwhere(~torch.isfinite(part).numpy())[0]
                raise NumericError(
                    f"the {name} is not finite (environment {n}, step {t} of iteration {self.iteration})"
                )
        return parts

    def exchange(
        self, rollout: Rollout, reward: Any, log_policy: Tensor, log_prior: Tensor | None, ended: Tensor, stop: bool
    ) -> "Summary":
        """One sum over the ranks of all that they need to know of each other's rollouts."""
        discounted = self.returns.follow(reward.total, ended)
        values = {
            "reward_task": reward.task.sum(),
            "reward_prior": reward.prior.sum(),
            "reward_entropy": reward.entropy.sum(),
            "reward_total": reward.total.sum(),
            "log_policy": log_policy.double().sum(),
            "log_prior": log_prior.double().sum() if log_prior is not None else 0.0,
            "log_prior_low": log_prior.quantile(0.1) * log_prior.numel() if log_prior is not None else 0.0,
            "basic_return": sum(rollout.episodes.returns),
            "episode_length": sum(rollout.episodes.lengths),
            "episodes": len(rollout.episodes.lengths),
            "stop": float(stop),
        }
        seen = moments(rollout.observations[:-1])
        packed = torch.cat(
            [torch.tensor([float(value) for value in values.values()], dtype=torch.float64), discounted, seen.flatten()]
        )
        self.team.sum(packed)
        sums = dict(zip(values, packed.tolist(), strict=False))
        self.returns.update(packed[len(values) : len(values) + 3])
        episodes, samples = sums["episodes"], self.settings.iteration_steps
        metrics = {
            name: total / (samples if name.startswith(("reward", "log")) else max(episodes, 1.0))
            for name, total in sums.items()
        } | {"episodes": episodes, "stop": sums["stop"], "return_scale": self.returns.std}
        if not episodes:
            del metrics["basic_return"], metrics["episode_length"]
        if log_prior is None:
            del metrics["log_prior"], metrics["log_prior_low"]
        else:
            metrics["prior_kl"] = metrics["log_policy"] - metrics["log_prior"]  # KL(policy ‖ prior), from samples
        return Summary(metrics, packed[len(values) + 3 :].reshape(3, -1))

    def normalised(self, gains: Tensor) -> Tensor:
        """Advantages with mean 0 and variance 1 over all ranks."""
        if not self.settings.normalise_advantages:
            return gains
        exact = gains.double()
        sums = torch.stack([torch.tensor(float(exact.numel()), dtype=torch.float64), exact.sum(), exact.square().sum()])
        count, total, squares = self.team.sum(sums).tolist()
        mean = total / count
        std = max(squares / count - mean * mean, 0.0) ** 0.5
        return (gains - mean) / (std + 1e-8)

    # On disk ----------------------------------------------------------------------------------------------------------

    def save(self, segment: int) -> None:
        """The end of the segment before `segment`, from which that one begins."""
        if self.team.index > 0:
            return
        state = self.learner.state() | {
            f"normaliser.{name}": value for name, value in self.learner.policy.normaliser.state_dict().items()
        }
        state["returns"] = self.returns.statistics
        story = {"iteration": self.iteration, "steps": self.steps, "best": self.best, "off_budget": self.off_budget}
        self.folder.save(segment, state, story | {"objective": self.objective.as_dict()})

    def restore(self) -> tuple[int, list[str]]:
        """Take up the newest whole checkpoint. Returns the segment to begin with, and what was wrong with others."""
        found = self.folder.latest()
        if found is None:
            return 0, []
        state, story, complaints = found
        self.learner.restore(state)
        normaliser = {
            name.removeprefix("normaliser."): value for name, value in state.items() if name.startswith("normaliser.")
        }
        self.learner.policy.normaliser.load_state_dict(normaliser)
        self.returns.statistics = state["returns"]
        self.iteration, self.best = story["iteration"], story["best"]
        self.off_budget = story.get("off_budget", self.off_budget)
        self.objective = Objective(**story["objective"])
        return story["segment"], complaints

    def leave_evidence(self) -> str:
        """Write what the failure happened on, and say how to see it again."""
        path = self.folder.path / f"failure-rank{self.team.index}.safetensors"
        story = {"request": self.request.as_dict(), "iteration": self.iteration}
        write(path, "failure", self._evidence | {"parameters": self.learner.parameters}, story)
        return f"the batch is in {path}; to see it fail again, resume the run: segments repeat to the bit"


@dataclass(frozen=True)
class Summary:
    """What all ranks together saw in an iteration."""

    metrics: dict[str, float]
    observations: Tensor  # [3, O] sums for the normaliser


def derived_seed(seed: int, segment: int, stream: int) -> int:
    """An independent seed for each (seed, segment, stream)."""
    return int(np.random.SeedSequence([seed, segment, stream]).generate_state(1)[0] >> 2)
