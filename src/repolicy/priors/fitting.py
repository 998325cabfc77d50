"""Fit a policy to actions by maximum likelihood, with early stopping on held-out rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from repolicy.errors import NumericError, UsageError
from repolicy.policies import ActionSpace, Adam, Gaussian, Policy, moment_sums
from repolicy.priors.kinds import MeanPrior
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.readers.reading import MIN_STD, Options

BLOCKS, HELD_OUT = 20, 2  # blocks of consecutive rows, and how many are held out: neighbors are nearly the same
MINIBATCH, STEPS = 512, 50  # rows of a step at most, and steps of an epoch at least
LEARNING_RATE, CUTS = 1e-3, 2  # how often the learning rate is cut before the fit ends
PATIENCE, GAIN = 3, 1e-3  # epochs in which less than these nats are gained, before the step size is cut to a third
MOST_EPOCHS = 200


@dataclass(frozen=True)
class Samples:
    """A data set to imitate: observations `[M, O]` and actions `[M, A]`.

    With `spread` `[M, A]`, each action is the mean of a Gaussian with this std, and the expectation over it is fitted.
    """

    observations: Tensor
    actions: Tensor
    spread: Tensor | None = None

    def rows(self, which: Tensor) -> "Samples":
        spread = None if self.spread is None else self.spread[which]
        return Samples(self.observations[which], self.actions[which], spread)

    def __add__(self, other: Self) -> "Samples":
        spread = None
        if self.spread is not None and other.spread is not None:
            spread = torch.cat([self.spread, other.spread])
        return Samples(
            torch.cat([self.observations, other.observations]), torch.cat([self.actions, other.actions]), spread
        )

    def log_likelihood(self, policy: Policy) -> Tensor:
        """Return the log-likelihood of each row, `[M]`, in nats."""
        distribution = policy(self.observations)
        log_probs: Tensor = distribution.log_prob(self.actions)
        if self.spread is not None and isinstance(distribution, Gaussian):  # E[(a − μ)²] = (mean − μ)² + spread²
            log_probs = log_probs - 0.5 * (self.spread * torch.exp(-distribution.log_std)).square().sum(-1)
        return log_probs


@dataclass(frozen=True)
class FitResult:
    """The result of a fit: mean log-likelihoods of the best epoch, in nats per row."""

    log_likelihood: float
    held_out: float
    epochs: int
    rows: int


def fit_normalizer(policy: Policy, observations: Tensor) -> None:
    """Fit the statistics to these observations alone."""
    policy.normalizer.count.zero_()
    policy.normalizer.update(moment_sums(observations))


def fit(
    policy: Policy,
    samples: Samples,
    generator: torch.Generator,
    say: Callable[[int, float], None] = lambda *_: None,
    most_epochs: int = MOST_EPOCHS,
) -> FitResult:
    """Maximize the likelihood with Adam until it no longer grows on held-out rows; keep the best epoch's weights."""
    block = torch.arange(len(samples.actions)) * BLOCKS // len(samples.actions)
    outside = torch.isin(block, torch.randperm(BLOCKS, generator=generator)[:HELD_OUT])
    seen, unseen = samples.rows(~outside), samples.rows(outside)
    stds = [] if policy.log_std is None else [policy.log_std]
    adam = Adam(policy.network.parameters(), LEARNING_RATE, quick=stds, factor=10.0)
    size = max(16, min(MINIBATCH, len(seen.actions) // STEPS))
    best, highest = _copy(policy), mean_log_likelihood(policy, unseen)
    before = highest  # where the epochs `since` began
    epoch = since = cuts = 0
    while epoch < most_epochs and cuts <= CUTS:
        epoch += 1
        for rows in torch.randperm(len(seen.actions), generator=generator).split(size):
            adam.descend(-seen.rows(rows).log_likelihood(policy).mean())
        likelihood = mean_log_likelihood(policy, unseen)
        say(epoch, likelihood)
        since += 1
        if likelihood > highest:
            best, highest = _copy(policy), likelihood
        if highest > before + GAIN:
            since, before = 0, highest
        if since >= PATIENCE:
            policy.load_state_dict(best)
            since, cuts = 0, cuts + 1
            adam.rate /= 3.0
    policy.load_state_dict(best)
    return FitResult(mean_log_likelihood(policy, seen), highest, epoch, len(samples.actions))


@torch.no_grad()
def mean_log_likelihood(policy: Policy, samples: Samples) -> float:
    chunks = torch.arange(len(samples.actions)).split(8192)
    log_probs = torch.cat([samples.rows(rows).log_likelihood(policy) for rows in chunks])
    if not bool(torch.isfinite(log_probs).all()):
        raise NumericError("while a policy was fitted, the log-likelihood of an action was not finite")
    return float(log_probs.double().mean())


def _copy(policy: Policy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


# `--std fit`: the std of a policy that has none, from recorded actions of its own, by maximum likelihood --------------


EDGE = 1.0 - 1e-4  # actions are clipped to ± this before atanh, and means beyond it do not count
BEYOND = 1.0 + 1e-3  # actions are not, but for rounding
FEWEST = 30  # numbers of an action that count


def wants_fit(options: Options) -> bool:
    """Return whether a std is to be fitted; refused where there is nothing to fit it to, and the other way round."""
    if options.std == "fit" and options.demonstrations is None:
        raise UsageError("--std fit needs recorded actions of this policy: --demonstrations FILE.npz")
    if options.std != "fit" and options.demonstrations is not None:
        raise UsageError("--demonstrations goes with --std fit")
    return options.std == "fit"


def fit_std(prior: Policy | MeanPrior, options: Options) -> tuple[Tensor, str]:
    """Return the maximum-likelihood std `[A]` of the recorded actions, and a sentence that explains it."""
    assert options.demonstrations is not None
    data = read_demonstrations(options.demonstrations)
    if data.discrete:
        raise UsageError(f"{data.name} holds choices, and choices have no std")
    errors = _errors_of_policy(prior, data) if isinstance(prior, Policy) else _errors_of_mean(prior, data)
    if bool(((~errors.isnan()).sum(0) < FEWEST).any()):
        why = "the policy's means are at the bounds of its actions, where recorded ones tell no std"
        raise UsageError(f"{data.name}: {why}: give one, such as --std 0.2")
    std = errors.double().square().nanmean(0).sqrt().float()
    if not bool((std > MIN_STD).all()):
        raise UsageError(f"{data.name} has the policy's own means, which tell no std: give one, such as --std 0.2")
    return std, _sentence(std, data)


def _errors_of_policy(policy: Policy, data: Demonstrations) -> Tensor:
    """Return how far the recorded actions are from the policy's means `[M, A]`, before tanh where it has one.

    NaN where tanh is flat at the mean: the recorded action is then the bound, however far behind it the mean is.
    """
    own = (policy.observation_size, policy.actions.width)
    recorded = (data.observations.shape[1], data.actions.shape[1])
    if own != recorded:
        takes = "observations of {} numbers and actions of {}".format
        raise UsageError(f"{data.name} has {takes(*recorded)}, and the policy {takes(*own)}")
    with torch.no_grad():
        means = policy(data.observations).mode()
    if not policy.family.squashes:
        return data.actions - means
    low, high = torch.tensor(policy.actions.low), torch.tensor(policy.actions.high)
    actions = 2.0 * (data.actions - low) / (high - low) - 1.0
    if bool((actions.abs() > BEYOND).any()):
        why = "has actions beyond the policy's bounds: save them as the policy gives them, before they are scaled"
        raise UsageError(f"{data.name} {why}")
    return torch.where(means.tanh().abs() < EDGE, torch.atanh(actions.clamp(-EDGE, EDGE)) - means, torch.nan)


def _errors_of_mean(prior: MeanPrior, data: Demonstrations) -> Tensor:
    """Return the errors `[M, A]` of a function's means, or of a program's along the recorded episodes."""
    placed = prior.for_spaces(data.observations.shape[1], ActionSpace("continuous", (data.actions.shape[1],)))
    ended = data.ended
    if ended is None:
        if placed.has_memory:
            need = f"{placed.name} has a memory, which begins anew there: save an array 'ended' beside the actions"
            raise UsageError(f"{data.name} does not say where an episode ended, and {need}")
        ended = torch.zeros(len(data.actions), dtype=torch.bool)
    distribution, _ = placed.follow(data.observations[:, None], ended[:, None], None)
    return data.actions - distribution.mode()[:, 0]


def _sentence(std: Tensor, data: Demonstrations) -> str:
    low, high = float(std.min()), float(std.max())
    width = f"{low:.3g}" if len(std) == 1 else f"{low:.3g} to {high:.3g}"
    costs = f"costs {len(std) / 2:g} nats a step, and ω′ times that in reward; with half the std, four times as much"
    fitted = f"the std, {width}, is fitted to the {len(data.actions):,} actions in {data.name}"
    return f"{fitted}: how far these lie from the mean {costs}"
