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
from repolicy.envs import Backend, Collector, check_fit, make_envs, probe_env
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.policies import Policy, make_policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.weights import Weights, default_kl_budget, weights_from_worths
from repolicy.prepare.worth import Worth, Worths, pooled, worths_of
from repolicy.text import with_minus

DIAGNOSIS_ENVS, DIAGNOSIS_STEPS = 16, 1_000
OUTLIER_STEPS = 200  # in each environment
MIN_STD_SHARE = 1e-3  # a std below this share of an action's range explores nothing
MAX_NORMALIZED = 10.0  # normalized observations beyond this were rare in training
MAX_OUTLIER_SHARE = 0.01  # share of all numbers that may be beyond it by chance
LIKELY_CAUSE = (
    "; are the statistics of its observations missing (--vecnormalize FILE), or is the environment another one?"
)


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis; the worst complaint is the first."""

    policy: Policy
    mean_action: Evaluation
    sampled: Evaluation
    untrained: Evaluation  # an untrained policy with sampled actions
    outlier_share: float  # share of the observations' numbers that the normalizer puts beyond ±10
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
        returns = self.mean_action.basic
        ended = round(share_ended(self.mean_action) * len(returns))
        ends = f"{ended} of {len(returns)} episodes end before their time" if ended else "no episode ends"
        if not np.isfinite(returns).all():
            return f"it acts: {ends}, and the environment tells no reward"
        sampled = self.sampled.basic.mean()
        return with_minus(
            f"it acts: {ends}, basic reward {returns.mean():,.4g} by the mean action and {sampled:,.4g} sampled"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.mean_action.env,
            "verdict": self.verdict,
            "complaints": self.complaints,
            **{name: getattr(self, name).as_dict() for name in ("mean_action", "sampled", "untrained")},
            "std": mean_std(self.policy),
            "beyond_10": self.outlier_share,
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
    """Run the policy with sampled and with mean actions, and an untrained one of its architecture with sampled ones.

    `nat_worth` is the worth in the prior's card. It is used where it is significant: it has more episodes.
    """
    check_fit(policy, probe_env(env, backend), "the prior")
    unskilled = make_policy(policy.spec, EVALUATION_SEED)
    sampled = measure_episodes(policy, env, addon, False, backend)
    mean_action = measure_episodes(policy, env, addon, True, backend)
    untrained = measure_episodes(unskilled, env, addon, False, backend)

    # With different numbers of episodes, episode i of one does not begin as episode i of the other.
    paired = len(mean_action.basic) == len(sampled.basic)
    worths = worths_of(pooled([mean_action]), pooled([sampled]), is_first_look=True, paired=paired)
    if nat_worth is not None and nat_worth.is_known:
        worths = replace(worths, basic=nat_worth)
    outliers = find_outlier_share(policy, env, backend)
    complaints = find_complaints(policy, mean_action, sampled, untrained, outliers)
    return Diagnosis(policy, mean_action, sampled, untrained, outliers, worths, complaints)


def measure_episodes(policy: Policy, env: str, addon: Addon, deterministic: bool, backend: Backend) -> Evaluation:
    """Run an episode of at most a thousand steps in each environment; run more episodes where they are short."""
    how: dict[str, Any] = {"deterministic": deterministic, "backend": backend, "longest": DIAGNOSIS_STEPS}

    def run(episodes: int) -> Evaluation:
        return evaluate(policy, env, episodes, addon=addon, seed=EVALUATION_SEED, **how)

    evaluation = run(DIAGNOSIS_ENVS)
    factor = int(DIAGNOSIS_STEPS // evaluation.lengths.mean())
    return run(DIAGNOSIS_ENVS * factor) if factor > 1 else evaluation


def find_outlier_share(policy: Policy, env: str, backend: Backend) -> float:
    """Return the share of numbers beyond ±10 among the normalized observations of some of the policy's steps."""
    with closing(make_envs(env, DIAGNOSIS_ENVS, EVALUATION_SEED, backend)) as envs:
        rollout = Collector(envs, OUTLIER_STEPS, torch.Generator().manual_seed(EVALUATION_SEED)).collect(policy)
    seen = torch.from_numpy(rollout.observations[..., : policy.observation_size])
    normalized = (seen - policy.normalizer.shift) * policy.normalizer.scale
    return float((normalized.abs() > MAX_NORMALIZED).double().mean())


def share_ended(evaluation: Evaluation) -> float:
    """Return the share of the episodes that the environment ended before the time limit."""
    assert evaluation.terminated is not None
    return float(evaluation.terminated.mean())


@torch.no_grad()
def mean_std(policy: Policy) -> float | None:
    """Return the mean std of the actions' numbers, at the mean observation; None for choices."""
    log_std = getattr(policy(policy.normalizer.mean.float()), "log_std", None)
    return None if log_std is None else float(log_std.exp().mean())


def find_complaints(
    policy: Policy, mean_action: Evaluation, sampled: Evaluation, untrained: Evaluation, outlier_share: float
) -> list[str]:
    """Return the reasons against training from this prior as it was read, the worst first."""
    sentences = []
    returns = [each.basic for each in (mean_action, sampled, untrained)]
    is_known = np.isfinite(np.concatenate(returns)).all()
    if is_known and not any(is_better(one, returns[2]) for one in returns[:2]):
        sentences.append(
            "these episodes do not show that it acts better than a policy that knows nothing: "
            + with_minus(
                f"basic reward {returns[0].mean():,.4g} by the mean action and {returns[1].mean():,.4g} sampled, "
                f"against {returns[2].mean():,.4g}"
            )
            + LIKELY_CAUSE
        )
    if outlier_share > MAX_OUTLIER_SHARE:
        sentences.append(
            f"{outlier_share:.0%} of the numbers that it sees are beyond ±{MAX_NORMALIZED:g}{LIKELY_CAUSE}"
        )
    ended = [share_ended(each) for each in (mean_action, sampled)]
    if ended[1] - ended[0] >= 0.5:
        sentences.append(
            f"sampled actions end {ended[1]:.0%} of the episodes, the mean action {ended[0]:.0%}: its std is too wide "
            "to train from; where you gave it, give a smaller --std"
        )
    std, span = mean_std(policy), _action_span(policy)
    if std is not None and span is not None and std < MIN_STD_SHARE * span:
        narrow = f"its std is {std:.2g}, too narrow to try anything"
        sentences.append(f"{narrow}: where you gave it, give a larger --std, and expect large values of log prior")
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
