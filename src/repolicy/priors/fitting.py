"""Fit a policy to actions by maximum likelihood, with early stopping on held-out rows."""

import copy
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

BLOCKS, HELD_OUT_BLOCKS = 20, 2  # whole blocks of consecutive rows are held out, because neighbors are nearly equal
MAX_MINIBATCH, MIN_STEPS = 512, 50  # rows of a step, and steps of an epoch
STD_SPEED = 10.0  # the factor of the learning rate for a std that does not depend on the state
LEARNING_RATE, MAX_CUTS = 1e-3, 2  # each cut divides the learning rate by 3; the fit ends where another would follow
PATIENCE, MIN_GAIN = 3, 1e-3  # the learning rate is cut after this number of epochs without this gain in nats
SMALL_STD = 1e-2  # actions whose stds are all below it are learned in a unit of their own
MAX_EPOCHS = 200


@dataclass(frozen=True)
class Samples:
    """A data set to imitate.

    With `spread`, each action is the mean of a Gaussian with this std; the expected log-likelihood under it is fitted.
    """

    observations: Tensor  # [M, O]
    actions: Tensor  # [M, A]
    spread: Tensor | None = None  # [M, A]

    def rows(self, rows: Tensor) -> "Samples":
        """Return the samples with these indices, or where this mask is true."""
        spread = None if self.spread is None else self.spread[rows]
        return Samples(self.observations[rows], self.actions[rows], spread)

    def __add__(self, other: Self) -> "Samples":
        spread = None
        if self.spread is not None and other.spread is not None:
            spread = torch.cat([self.spread, other.spread])
        observations = torch.cat([self.observations, other.observations])
        return Samples(observations, torch.cat([self.actions, other.actions]), spread)

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

    log_likelihood: float  # of the rows that were trained on
    held_out: float  # of the held-out rows
    epochs: int
    rows: int


def fit_normalizer(policy: Policy, observations: Tensor) -> None:
    """Replace the statistics of the normalizer by those of these observations; a constant one keeps a variance of 1."""
    policy.normalizer.count.zero_()
    policy.normalizer.update(moment_sums(observations))
    policy.normalizer.keep_constants()


def fit(
    policy: Policy,
    samples: Samples,
    generator: torch.Generator,
    report: Callable[[int, float], None] = lambda *_: None,
    max_epochs: int = MAX_EPOCHS,
) -> FitResult:
    """Maximize the likelihood with Adam until it no longer grows on held-out rows; keep the best epoch's weights.

    `report` is called after each epoch, with its number and the held-out log-likelihood.
    """
    block = torch.arange(len(samples.actions)) * BLOCKS // len(samples.actions)
    is_held_out = torch.isin(block, torch.randperm(BLOCKS, generator=generator)[:HELD_OUT_BLOCKS])
    training, held_out = samples.rows(~is_held_out), samples.rows(is_held_out)
    adam = _make_optimizer(policy, samples.actions)
    minibatch = max(16, min(MAX_MINIBATCH, len(training.actions) // MIN_STEPS))
    best, highest = copy.deepcopy(policy.state_dict()), mean_log_likelihood(policy, held_out)
    reference = highest  # the held-out log-likelihood from which the next gain is measured
    epoch = epochs_without_gain = cuts = 0
    while epoch < max_epochs and cuts <= MAX_CUTS:
        epoch += 1
        for rows in torch.randperm(len(training.actions), generator=generator).split(minibatch):
            adam.descend(-training.rows(rows).log_likelihood(policy).mean())
        likelihood = mean_log_likelihood(policy, held_out)
        report(epoch, likelihood)
        epochs_without_gain += 1
        if likelihood > highest:
            best, highest = copy.deepcopy(policy.state_dict()), likelihood
        if highest > reference + MIN_GAIN:
            epochs_without_gain, reference = 0, highest
        if epochs_without_gain >= PATIENCE:
            policy.load_state_dict(best)
            epochs_without_gain, cuts = 0, cuts + 1
            adam.rate /= 3.0
    policy.load_state_dict(best)
    return FitResult(mean_log_likelihood(policy, training), highest, epoch, len(samples.actions))


def _make_optimizer(policy: Policy, actions: Tensor) -> Adam:
    """Return the optimizer of a fit: the last layer learns as much faster as the actions' std is above 1.

    Adam's steps are equally long for all weights, and a mean in hundreds would never be reached beside one within ±1.
    Where all stds are below SMALL_STD, it learns as much slower as the largest of them is below 1.
    """
    weight, bias = policy.network.weights[-1], policy.network.biases[-1]
    others = [
        parameter for parameter in policy.network.parameters() if parameter is not weight and parameter is not bias
    ]
    factor = torch.ones(len(bias))
    if policy.actions.kind == "continuous":
        stds = actions.std(0)
        least = float(stds.max()) if 0.0 < stds.max() < SMALL_STD else 1.0
        factor[: policy.actions.width] = stds.clamp_min(least)
    quick, factors = [weight, bias], [factor.repeat_interleave(weight.shape[1]), factor]
    if policy.log_std is not None:
        quick.append(policy.log_std)
        factors.append(torch.full((policy.log_std.numel(),), STD_SPEED))
    return Adam(others, LEARNING_RATE, quick, torch.cat(factors))


@torch.no_grad()
def mean_log_likelihood(policy: Policy, samples: Samples) -> float:
    chunks = torch.arange(len(samples.actions)).split(8192)
    log_probs = torch.cat([samples.rows(rows).log_likelihood(policy) for rows in chunks])
    if not bool(torch.isfinite(log_probs).all()):
        raise NumericError("while a policy was fitted, the log-likelihood of an action was not finite")
    return float(log_probs.double().mean())


# `--std fit`: fit the std of a policy that has none to its recorded actions, by maximum likelihood --------------------


EDGE = 1.0 - 1e-4  # before atanh, actions and means beyond ± this do not count
BOUND = 1.0 + 1e-3  # no action is beyond this, except for errors of the user; 1e-3 is for rounding
MIN_ERRORS = 30  # number of errors that are needed for each number of an action


def wants_fit(options: Options) -> bool:
    """Return whether to fit a std; raise UsageError if only one of --std fit and --demonstrations is given."""
    if options.std == "fit" and options.demonstrations is None:
        raise UsageError("--std fit needs recorded actions of this policy: --demonstrations FILE.npz")
    if options.std != "fit" and options.demonstrations is not None:
        raise UsageError("--demonstrations goes with --std fit")
    return options.std == "fit"


def fit_std(prior: Policy | MeanPrior, options: Options) -> tuple[Tensor, str]:
    """Return the maximum-likelihood std `[A]` of the recorded actions, and a sentence for the user about it."""
    assert options.demonstrations is not None
    data = read_demonstrations(options.demonstrations)
    if data.discrete:
        raise UsageError(f"{data.name} holds choices, and choices have no std")
    errors = _errors_of_policy(prior, data) if isinstance(prior, Policy) else _errors_of_mean(prior, data)
    is_left_out = errors.isnan()
    if bool(((~is_left_out).sum(0) < MIN_ERRORS).any()):
        why = "the policy's means or its recorded actions are at the bounds, where they tell no std"
        raise UsageError(f"{data.name}: {why}: give one, such as --std 0.2")
    std = errors.double().square().nanmean(0).sqrt().float()
    if not bool((std > MIN_STD).all()):
        raise UsageError(f"{data.name} has the policy's own means, which tell no std: give one, such as --std 0.2")

    low, high = float(std.min()), float(std.max())
    width = f"{low:.3g}" if len(std) == 1 else f"{low:.3g} to {high:.3g}"
    costs = f"costs {len(std) / 2:g} nats a step, and ω′ times that in reward; with half the std, four times as much"
    fitted = f"the std, {width}, is fitted to the {len(data.actions):,} actions in {data.name}"
    if bool(is_left_out.any()):
        fitted += (
            f", without the {100.0 * float(is_left_out.float().mean()):.2g}% of their numbers that are at the bounds"
        )
    return std, f"{fitted}: how far these lie from the mean {costs}"


def _errors_of_policy(policy: Policy, data: Demonstrations) -> Tensor:
    """Return the differences `[M, A]` between recorded actions and the policy's means, before tanh if it has one.

    A difference is NaN where a clip or a tanh hides how far the mean or the action lies beyond the bounds.
    """
    sizes = (policy.observation_size, policy.actions.width)
    recorded_sizes = (data.observations.shape[1], data.actions.shape[1])
    if sizes != recorded_sizes:
        describe = "observations of {} numbers and actions of {}".format
        raise UsageError(f"{data.name} has {describe(*recorded_sizes)}, and the policy {describe(*sizes)}")
    with torch.no_grad():
        means = policy(data.observations).mode()
    low, high = torch.tensor(policy.actions.low), torch.tensor(policy.actions.high)
    if policy.spec.clips:
        return torch.where((means > low) & (means < high), data.actions - means, torch.nan)
    if not policy.family.squashes:
        return data.actions - means
    actions = 2.0 * (data.actions - low) / (high - low) - 1.0
    if bool((actions.abs() > BOUND).any()):
        why = "has actions beyond the policy's bounds: save them as the policy gives them, before they are scaled"
        raise UsageError(f"{data.name} {why}")
    is_within = (means.tanh().abs() < EDGE) & (actions.abs() < EDGE)
    return torch.where(is_within, torch.atanh(actions) - means, torch.nan)


def _errors_of_mean(prior: MeanPrior, data: Demonstrations) -> Tensor:
    """Return the differences `[M, A]` between recorded actions and the means of `prior` in the recorded episodes."""
    prior = prior.for_spaces(data.observations.shape[1], ActionSpace("continuous", (data.actions.shape[1],)))
    ended = data.ended
    if ended is None:
        if prior.has_memory:
            need = f"{prior.name} has a memory, which begins anew there: save an array 'ended' beside the actions"
            raise UsageError(f"{data.name} does not say where an episode ended, and {need}")
        ended = torch.zeros(len(data.actions), dtype=torch.bool)
    distribution, _ = prior.follow(data.observations[:, None], ended[:, None], None)
    return data.actions - distribution.mode()[:, 0]
