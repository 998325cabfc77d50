"""Diagnose a prior before training: does it act well, how wide is its std, and what is a nat of it worth?

The prior runs a thousand steps in each of some environments, with the mean action and sampled, and so does an untrained
policy. Only the add-on's reward is needed; the environment's own is shown where there is one.
"""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from repolicy.addons import Addon
from repolicy.differences import Column
from repolicy.envs import Backend, Rollout, check_fit, make_envs, probe_env
from repolicy.errors import UsageError
from repolicy.evaluation import EVALUATION_SEED, MAX_ENVS, Evaluation, run_episodes
from repolicy.policies import Policy, make_policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.weights import Weights, default_kl_budget, weights_from_worths
from repolicy.prepare.worth import ReturnsAndNats, Worth, Worths, nats_of, worth_of
from repolicy.runs import spec_for
from repolicy.text import with_minus

DIAGNOSIS_ENVS, DIAGNOSIS_STEPS = 16, 1_000
MAX_NORMALIZED = 10.0  # normalized observations beyond this were rare in training
MAX_OUTLIER_SHARE = 0.01  # share of all numbers that may be beyond it by chance
MIN_STD_SHARE = 1e-3  # a std below this share of an action's range explores nothing


@dataclass(frozen=True)
class EpisodeStatistics:
    """Statistics of one policy's episodes; arrays are `[E]`, with a value for each episode."""

    basic: np.ndarray  # basic return; NaN where the environment has no reward
    addon: np.ndarray  # add-on return
    lengths: np.ndarray
    terminated: np.ndarray  # whether the episode terminated before the time limit
    nats: np.ndarray  # log π of the mean actions, or the entropy where actions were sampled
    entropy: float  # −log π of the actions that were taken, a step
    std: float | None  # mean std of the actions
    outlier_share: float  # share of the observations' numbers that the normalizer puts beyond ±10

    def as_dict(self) -> dict[str, Any]:
        sums = {"addon": self.addon, "length": self.lengths}
        if np.isfinite(self.basic).all():
            sums = {"basic": self.basic} | sums
        columns = {name: Column("", values) for name, values in sums.items()}
        return {name: [column.mean, column.std] for name, column in columns.items()} | {
            "fell": float(self.terminated.mean()), "std": self.std, "entropy": self.entropy, "far": self.outlier_share
        }  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis; the worst complaint is the first."""

    env: str
    policy: Policy
    mean_action: EpisodeStatistics
    sampled: EpisodeStatistics
    untrained: EpisodeStatistics  # an untrained policy with sampled actions
    worths: Worths  # what a nat is worth
    complaints: list[str]  # reasons against training from this prior

    @property
    def weights(self) -> Weights | None:
        """The weights to begin with, by the rule of `customize` for a prior whose card has none."""
        return weights_from_worths(self.worths, self.policy.observation_size)

    @property
    def suggested_options(self) -> list[str]:
        """The command-line options of `customize` to begin with."""
        if self.weights is None:
            return ["--omega", "auto", "--kl-budget", f"{default_kl_budget(self.policy):g}"]
        return ["--omega", f"{self.weights.omega:g}", "--states", f"{self.weights.states:g}"]

    @property
    def verdict(self) -> str:
        if self.complaints:
            return self.complaints[0]
        terminated, returns = self.mean_action.terminated, self.mean_action.basic
        ends = "no episode ends"
        if terminated.any():
            ends = f"{terminated.sum():.0f} of {len(terminated)} episodes end before their time"
        if not np.isfinite(returns).all():
            return f"it acts: {ends}, and the environment tells no reward"
        sampled = self.sampled.basic.mean()
        return with_minus(
            f"it acts: {ends}, return {returns.mean():,.4g} by the mean action and {sampled:,.4g} sampled"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "verdict": self.verdict,
            "complaints": self.complaints,
            "mean_action": self.mean_action.as_dict(),
            "sampled": self.sampled.as_dict(),
            "untrained": self.untrained.as_dict(),
            "worth": None if self.worths.basic is None else asdict(self.worths.basic),
            "wish_worth": None if self.worths.addon is None else asdict(self.worths.addon),
            "omega": None if self.weights is None else self.weights.omega,
            "states": None if self.weights is None else self.weights.states,
            "first": self.suggested_options,
            "settings": customize_defaults(self.policy).as_dict(),
        }


def diagnose(
    policy: Policy, env: str, addon: Addon, *, nat_worth: Worth | None = None, backend: Backend = "auto"
) -> Diagnosis:
    """Run the policy with sampled and with mean actions, and an untrained policy with sampled ones.

    `nat_worth` is the worth in the prior's card. It is used where it is significant: it has more episodes.
    """
    spaces = probe_env(env, backend)
    check_fit(policy, spaces, "the prior")
    spec = spec_for(spaces, customize_defaults(policy))
    clips = spec.family == "gaussian" and (policy.spec.clips or policy.family.squashes)
    unskilled = make_policy(replace(spec, clips=clips), EVALUATION_SEED)
    sampled = measure_episodes(policy, env, addon, False, backend)
    mean_action = measure_episodes(policy, env, addon, True, backend)
    untrained = measure_episodes(unskilled, env, addon, False, backend)

    paired = len(mean_action.nats) == len(sampled.nats)  # else their environments have other shares of the episodes
    basic_worth, addon_worth = (
        worth_of(ReturnsAndNats(mean_returns, mean_action.nats), ReturnsAndNats(sampled_returns, sampled.nats), paired)
        for mean_returns, sampled_returns in ((mean_action.basic, sampled.basic), (mean_action.addon, sampled.addon))
    )
    if nat_worth is not None and nat_worth.is_known:
        basic_worth = nat_worth
    worths = Worths(basic_worth, addon_worth, float(sampled.lengths.mean()))
    complaints = find_complaints(policy, mean_action, sampled, untrained)
    return Diagnosis(env, policy, mean_action, sampled, untrained, worths, complaints)


@torch.no_grad()
def measure_episodes(
    policy: Policy, env: str, addon: Addon, deterministic: bool, backend: Backend
) -> EpisodeStatistics:
    """Run an episode of at most a thousand steps in each environment; run more episodes where they are short."""

    def run(episodes: int) -> tuple[Evaluation, list[Rollout]]:
        seed, rollouts = EVALUATION_SEED, list[Rollout]()
        with closing(make_envs(env, min(episodes, MAX_ENVS), seed, backend)) as envs:
            evaluation = run_episodes(
                policy, envs, episodes, addon=addon, deterministic=deterministic, seed=seed, longest=DIAGNOSIS_STEPS,
                look=rollouts.append,
            )  # fmt: skip
        return evaluation, rollouts

    evaluation, rollouts = run(DIAGNOSIS_ENVS)
    factor = int(DIAGNOSIS_STEPS // evaluation.lengths.mean())
    if factor > 1:
        evaluation, rollouts = run(DIAGNOSIS_ENVS * factor)
    assert evaluation.addon is not None
    assert evaluation.terminated is not None

    outlier_shares, stds = list[float](), list[float]()
    for rollout in rollouts:
        observations = torch.from_numpy(rollout.observations[:-1])
        normalized = (observations - policy.normalizer.shift) * policy.normalizer.scale
        outlier_shares.append(float((normalized.abs() > MAX_NORMALIZED).double().mean()))
        log_std = getattr(policy(observations[0]), "log_std", None)
        if log_std is not None:
            stds.append(float(log_std.exp().mean()))
    return EpisodeStatistics(
        evaluation.basic,
        evaluation.addon,
        evaluation.lengths,
        evaluation.terminated,
        nats_of(evaluation),
        entropy=float(-evaluation.log_policy.sum() / evaluation.lengths.sum()),
        std=float(np.mean(stds)) if stds else None,
        outlier_share=float(np.mean(outlier_shares)),
    )


def find_complaints(
    policy: Policy, mean_action: EpisodeStatistics, sampled: EpisodeStatistics, untrained: EpisodeStatistics
) -> list[str]:
    """Return the reasons against training from this prior as it was read, the worst first."""
    sentences = []
    question = (
        "; are the statistics of its observations missing (--vecnormalize FILE), or is the environment another one?"
    )
    returns = [each.basic for each in (mean_action, sampled, untrained)]
    is_known = np.isfinite(np.concatenate(returns)).all()
    is_doubtful = is_known and not any(is_better(one, returns[2]) for one in returns[:2])
    is_higher = any(one.mean() > returns[2].mean() for one in returns[:2])
    means = with_minus(
        f"return {returns[0].mean():,.4g} by the mean action and {returns[1].mean():,.4g} sampled, "
        f"against {returns[2].mean():,.4g}"
    )
    if is_doubtful and not is_higher:
        sentences.append(f"it acts no better than a policy that knows nothing: {means}{question}")
    if sampled.outlier_share > MAX_OUTLIER_SHARE:
        share = f"{sampled.outlier_share:.0%} of the numbers that it sees"
        sentences.append(f"{share} are beyond ±{MAX_NORMALIZED:g}{question}")
    if mean_action.terminated.mean() - sampled.terminated.mean() <= -0.5:
        sentences.append(
            f"sampled actions end {sampled.terminated.mean():.0%} of the episodes, the mean action "
            f"{mean_action.terminated.mean():.0%}: its std is too wide to train from; where you gave it, give a "
            "smaller --std"
        )
    span = _action_span(policy)
    if sampled.std is not None and span is not None and sampled.std < MIN_STD_SHARE * span:
        narrow = f"its std is {sampled.std:.2g}, too narrow to try anything"
        sentences.append(f"{narrow}: where you gave it, give a larger --std, and expect large values of log prior")
    if is_doubtful and is_higher:
        doubt = "these episodes do not show that it acts better than a policy that knows nothing"
        sentences.append(f"{doubt}: {means}")
    return sentences


def _action_span(policy: Policy) -> float | None:
    """Return the range of continuous actions, before tanh for a squashed policy, or None without bounds."""
    if policy.family.squashes:
        return 2.0
    if not policy.actions.high:
        return None
    spans = np.array(policy.actions.high) - np.array(policy.actions.low)
    return float(spans.mean()) if np.isfinite(spans).all() else None


def is_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether the mean of `one` is higher by more than two standard errors."""
    return bool(one.mean() - other.mean() > 2.0 * np.sqrt(sum(each.var(ddof=1) / len(each) for each in (one, other))))


def check_addon(diagnosis: Diagnosis) -> None:
    """Raise where the add-on's reward is constant."""
    rewards = np.concatenate([each.addon / each.lengths for each in (diagnosis.mean_action, diagnosis.sampled)])
    if rewards.min() == rewards.max():
        reward = with_minus(f"{rewards.min():g}")
        raise UsageError(f"the add-on gave {reward} a step throughout: there is nothing to learn from")
