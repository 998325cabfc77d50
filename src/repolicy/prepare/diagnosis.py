"""Diagnose a prior before training: does it act well, how wide is its std, and what is a nat of it worth?

The prior runs a thousand steps in each of some environments, with the mean action and sampled, and so does an untrained
policy. Only the add-on's reward is needed; the environment's own is shown where there is one.
"""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from repolicy.envs import (
    EVALUATION_SEED,
    MAX_ENVS,
    Addon,
    Backend,
    Evaluation,
    Rollout,
    check_fit,
    make_envs,
    probe_env,
    run_episodes,
)
from repolicy.errors import UsageError
from repolicy.policies import Policy, make_policy
from repolicy.prepare.defaults import customize_defaults
from repolicy.prepare.weights import Weights, default_kl_budget, weights_from_worths
from repolicy.prepare.worth import EpisodeSums, Worth, Worths, nats_of, worth_of
from repolicy.runs import Settings, spec_for

DRIVEN_ENVS, DRIVEN_STEPS = 16, 1_000
MAX_NORMALIZED = 10.0  # normalized observations beyond this were rare in training
MAX_FAR_SHARE = 0.01  # share of all numbers that may be beyond it by chance
MIN_STD_SHARE = 1e-3  # a std below this share of an action's range explores nothing


@dataclass(frozen=True)
class Drive:
    """Statistics of some episodes; arrays are `[E]`."""

    basic: np.ndarray
    addon: np.ndarray
    lengths: np.ndarray
    fell: np.ndarray  # whether the episode terminated before the time limit
    nats: np.ndarray  # log π of the mean action; or the entropy, sampled
    entropy: float  # −log π of the actions that were taken, a step
    std: float | None  # of the actions, on average
    far: float  # share of the observations' numbers that the normalizer puts beyond ±10

    def as_dict(self) -> dict[str, Any]:
        known = {"basic": self.basic} if np.isfinite(self.basic).all() else {}
        sums = known | {"addon": self.addon, "length": self.lengths}
        return {name: [float(values.mean()), float(values.std())] for name, values in sums.items()} | {
            "fell": float(self.fell.mean()), "std": self.std, "entropy": self.entropy, "far": self.far
        }  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis; the worst complaint is the first."""

    env: str
    policy: Policy
    by_mean: Drive
    sampled: Drive
    ignorant: Drive  # an untrained policy, sampled
    worths: Worths  # of a nat
    complaints: list[str]

    @property
    def weights(self) -> Weights | None:
        """The weights to begin with, by the rule of `customize` for a prior whose card has none."""
        return weights_from_worths(self.worths, self.policy.observation_size)

    @property
    def first(self) -> list[str]:
        """The command-line options to begin with."""
        if self.weights is None:
            return ["--omega", "auto", "--kl-budget", f"{default_kl_budget(self.policy):g}"]
        return ["--omega", f"{self.weights.omega:g}", "--states", f"{self.weights.states:g}"]

    @property
    def settings(self) -> Settings:
        return customize_defaults(self.policy)

    @property
    def verdict(self) -> str:
        if self.complaints:
            return self.complaints[0]
        fell, by_mean, sampled = self.by_mean.fell, self.by_mean.basic, self.sampled.basic
        falls = f"{fell.sum():.0f} of {len(fell)} episodes end before their time" if fell.any() else "no episode ends"
        if not np.isfinite(by_mean).all():
            return f"it acts: {falls}, and the environment tells no reward"
        return f"it acts: {falls}, return {by_mean.mean():,.4g} by the mean action and {sampled.mean():,.4g} sampled"

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "verdict": self.verdict,
            "complaints": self.complaints,
            "mean_action": self.by_mean.as_dict(),
            "sampled": self.sampled.as_dict(),
            "untrained": self.ignorant.as_dict(),
            "worth": None if self.worths.basic is None else asdict(self.worths.basic),
            "wish_worth": None if self.worths.addon is None else asdict(self.worths.addon),
            "omega": None if self.weights is None else self.weights.omega,
            "states": None if self.weights is None else self.weights.states,
            "first": self.first,
            "settings": self.settings.as_dict(),
        }


def diagnose(
    policy: Policy, env: str, addon: Addon, *, nat_worth: Worth | None = None, backend: Backend = "auto"
) -> Diagnosis:
    """Run the policy with sampled and with mean actions, and an untrained policy.

    `nat_worth` is the worth in the prior's card. It is used where it is significant: it has more episodes.
    """
    spaces = probe_env(env, backend)
    check_fit(policy, spaces, "the prior")
    spec = spec_for(spaces, customize_defaults(policy))
    ignorant = make_policy(replace(spec, clips=policy.spec.clips or policy.family.squashes), EVALUATION_SEED)
    sampled, by_mean, untrained = (
        drive(who, env, addon, deterministic, backend)
        for who, deterministic in ((policy, False), (policy, True), (ignorant, False))
    )

    both = (by_mean, sampled)
    basic, wish = (
        worth_of(*(EpisodeSums(getattr(each, name), each.nats) for each in both)) for name in ("basic", "addon")
    )
    told = nat_worth if nat_worth and nat_worth.is_known else basic
    worths, against = (
        Worths(told, wish, float(sampled.lengths.mean())),
        find_complaints(policy, by_mean, sampled, untrained),
    )
    return Diagnosis(env, policy, by_mean, sampled, untrained, worths, against)


def drive(policy: Policy, env: str, addon: Addon, deterministic: bool, backend: Backend) -> Drive:
    """Run an episode of at most a thousand steps in each environment; run more episodes where they are short."""

    def run(episodes: int) -> tuple[Evaluation, _DriveObserver]:
        look, seed = _DriveObserver(policy), EVALUATION_SEED
        with closing(make_envs(env, min(episodes, MAX_ENVS), seed, backend)) as envs:
            found = run_episodes(
                policy, envs, episodes, addon=addon, deterministic=deterministic, seed=seed, longest=DRIVEN_STEPS,
                look=look,
            )  # fmt: skip
        return found, look

    found, look = run(DRIVEN_ENVS)
    times = int(DRIVEN_STEPS // found.lengths.mean())
    found, look = run(DRIVEN_ENVS * times) if times > 1 else (found, look)
    assert found.addon is not None
    assert found.terminated is not None
    entropy, std = -found.log_policy.sum() / found.lengths.sum(), float(np.mean(look.stds)) if look.stds else None
    return Drive(
        found.basic, found.addon, found.lengths, found.terminated, nats_of(found), float(entropy), std,
        float(np.mean(look.far)),
    )  # fmt: skip


class _DriveObserver:
    """Records how far a policy's observations are from training, and its std, for each rollout."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.far: list[float] = []
        self.stds: list[float] = []

    def __call__(self, rollout: Rollout) -> None:
        observations, normalizer = torch.from_numpy(rollout.observations[:-1]), self.policy.normalizer
        inputs = (observations - normalizer.shift) * normalizer.scale
        self.far.append(float((inputs.abs() > MAX_NORMALIZED).double().mean()))
        log_std = getattr(self.policy(observations[0]), "log_std", None)
        if log_std is not None:
            self.stds.append(float(log_std.exp().mean()))


def find_complaints(policy: Policy, by_mean: Drive, sampled: Drive, ignorant: Drive) -> list[str]:
    """Return the reasons against training from this prior as it was read."""
    sentences = []
    missing = (
        "; are the statistics of its observations missing (--vecnormalize FILE), or is the environment another one?"
    )
    known = np.isfinite([*by_mean.basic, *sampled.basic, *ignorant.basic]).all()
    if known and not is_better(by_mean.basic, ignorant.basic) and not is_better(sampled.basic, ignorant.basic):
        returns = f"return {by_mean.basic.mean():,.4g}, against {ignorant.basic.mean():,.4g}"
        sentences.append(f"it acts no better than a policy that knows nothing: {returns}{missing}")
    if sampled.far > MAX_FAR_SHARE:
        sentences.append(f"{sampled.far:.0%} of the numbers that it sees are beyond ±{MAX_NORMALIZED:g}{missing}")
    if by_mean.fell.mean() - sampled.fell.mean() <= -0.5:
        sentences.append(
            f"sampled actions end {sampled.fell.mean():.0%} of the episodes, the mean action "
            f"{by_mean.fell.mean():.0%}: its std is too wide to train from; where you gave it, give a smaller --std"
        )
    span = _action_span(policy)
    if sampled.std is not None and span is not None and sampled.std < MIN_STD_SHARE * span:
        narrow = f"its std is {sampled.std:.2g}, too narrow to try anything"
        sentences.append(f"{narrow}: where you gave it, give a larger --std, and expect large values of log prior")
    return sentences


def _action_span(policy: Policy) -> float | None:
    """Return the range of the actions, before tanh for a squashed policy, or None without bounds."""
    if policy.family.squashes:
        return 2.0
    if policy.actions.kind == "discrete" or not policy.actions.low:
        return None
    spans = np.array(policy.actions.high) - np.array(policy.actions.low)
    return float(spans.mean()) if np.isfinite(spans).all() else None


def is_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether the mean of `one` is higher by more than two standard errors."""
    return bool(one.mean() - other.mean() > 2.0 * np.sqrt(sum(each.var(ddof=1) / len(each) for each in (one, other))))


def check_addon(diagnosis: Diagnosis) -> None:
    """Raise where the add-on's reward is constant."""
    both = np.concatenate([drive.addon / drive.lengths for drive in (diagnosis.by_mean, diagnosis.sampled)])
    if both.min() == both.max():
        raise UsageError(f"the add-on gave {both.min():g} a step throughout: there is nothing to learn from")
