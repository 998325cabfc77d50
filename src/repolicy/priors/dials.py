"""Dials without training: interpolate between a prior π and the policy π_c that was customized from it.

    mixture     π^(1−t) · π_c^t, normalized in each state
    weights     (1 − t) · θ + t · θ_c, for the parameters θ of the networks

At t = 0 both give the prior, at t = 1 the customized policy. The result is an ordinary `Policy`, also for a mixture:
for logits, and for Gaussians with the same std in all states, it is a weighted sum of both networks' outputs. So one
network that holds both side by side computes it.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies import (
    ConditionedPolicy,
    Policy,
    SavedPolicy,
    add_networks,
    frozen,
    layers_of,
    load_layers,
    make_policy,
    scale_outputs,
    with_torch_defaults,
)
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

How = Literal["mixture", "weights"]
OTHER_DIAL = "use the other dial: how='weights', or --how weights"


@with_torch_defaults()
def dial(policy: str | Path | SavedPolicy, t: float | None = None, how: How = "mixture", **values: float) -> Policy:
    """Interpolate between the prior in a customized policy's file (t = 0) and the customized policy (t = 1).

    Args:
        policy: a file, a run's folder, or a policy from `read_policy`.
        t: the position; for a policy with a trained dial, its weight.
        how: "mixture" of the two distributions, or "weights" of the two networks; not used for a trained dial.
        **values: the weights of several trained dials by name: `dial("runs/dial", omega=0.3, quiet=1.5)`.
    """
    saved = policy if isinstance(policy, SavedPolicy) else read_policy(find_policy(policy))
    if isinstance(saved.policy, ConditionedPolicy):
        return saved.policy.at(t, **values)
    name = "this policy" if isinstance(policy, SavedPolicy) else str(policy)
    if t is None or values:
        raise UsageError(f"{name} has no trained dial of a name: give t, where 0 is the prior, 1 the customized policy")
    interpolated = interpolate_policies(require_prior(saved, name), saved.policy, t, how)
    if warning := extrapolation_warning(t):
        warnings.warn(warning, stacklevel=3)  # the decorator is a call of its own
    return interpolated


def interpolate_policies(prior: Policy, customized: Policy, t: float, how: How = "mixture") -> Policy:
    """Return the policy at `t` between two policies of one family."""
    if not math.isfinite(t):
        raise UsageError(f"t is {t!r}; it must be a number: 0 is the prior, 1 the customized policy")
    if how not in METHODS:
        raise UsageError(f"there is no dial {how!r}; choose from {', '.join(METHODS)}")
    if prior.actions.kind == "discrete" and prior.actions.sizes == customized.actions.sizes:
        prior = frozen(prior)  # its file may not tell from which number choices are counted
        prior.spec = replace(prior.spec, actions=customized.spec.actions)
    _check_compatible(prior, customized)
    return frozen(METHODS[how](prior, customized, float(t)))


def require_prior(saved: SavedPolicy, name: str | Path) -> Policy:
    """Return the prior in a customized policy's file; raise UsageError if there is none."""
    if saved.prior is None:
        raise UsageError(f"{name} holds no prior; a dial needs a policy from `repolicy customize`, which holds one")
    return saved.prior


def extrapolation_warning(t: float) -> str:
    """Return a warning for a `t` outside 0..1, else an empty string."""
    if 0 <= t <= 1 or not math.isfinite(t):
        return ""
    end = "the customized policy" if t > 1 else "the prior"
    return f"t is {t:g}, which is beyond {end}: no training ever was there, so evaluate the result"


# The two dials --------------------------------------------------------------------------------------------------------


def _mixture(prior: Policy, customized: Policy, t: float) -> Policy:
    """Return the mixture as one network that holds both side by side and sums their weighted outputs."""
    one, other = prior.spec, customized.spec
    if (len(one.hidden), one.activation, one.slope) != (len(other.hidden), other.activation, other.slope):
        both = [f"{len(spec.hidden)} hidden layers of {spec.activation}" for spec in (one, other)]
        raise UsageError(f"the prior has {both[0]}, the customized policy {both[1]}; both must be alike, slopes too")
    if not one.hidden or any(spec.norms or spec.mean_clip is not None for spec in (one, other)):
        condition = "needs networks with hidden layers, without LayerNorm and without a bound on the mean"
        raise UsageError(f"a mixture {condition}; {OTHER_DIAL}")
    prior_weight, customized_weight, std = _output_weights(prior, customized, t)
    prior_layers = scale_outputs(layers_of(prior.network), prior_weight)
    customized_layers = scale_outputs(layers_of(customized.network), customized_weight)
    hidden = tuple(a + b for a, b in zip(one.hidden, other.hidden, strict=True))
    spec = replace(one, hidden=hidden, std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf))
    mixed = make_policy(spec, 0)
    load_layers(mixed.network, add_networks(prior_layers, customized_layers))
    if mixed.log_std is not None and std is not None:
        mixed.log_std.data = std.log().float()
    mixed.normalizer.load_state_dict(prior.normalizer.state_dict())
    return mixed


def _output_weights(prior: Policy, customized: Policy, t: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the weights of both networks' outputs in the mixture at `t` ([] or [A]), and its std [A] if it has one.

    Logits are logarithms, so their weights are 1 − t and t. The weights of Gaussian means are in proportion to
    (1 − t)/σ² and t/σ_c², whose sum is 1/σ² of the mixture.
    """
    if prior.family.kind == "discrete":
        return torch.tensor(1.0 - t), torch.tensor(t), None
    if prior.std is None or customized.std is None:
        raise UsageError(f"the std of a {prior.spec.family} policy depends on the state: {OTHER_DIAL}")
    prior_precision, customized_precision = prior.std.double() ** -2, customized.std.double() ** -2
    precision = (1 - t) * prior_precision + t * customized_precision
    if not bool((precision > 0).all()):
        slope = customized_precision - prior_precision
        zeros = -prior_precision / slope  # the t at which the precision of each action's number is 0
        low, high = max([-math.inf, *zeros[slope > 0].tolist()]), min([math.inf, *zeros[slope < 0].tolist()])
        valid = f"for these two policies t must lie between {low:.4g} and {high:.4g}"
        raise UsageError(f"at t = {t:g} the mixture is no distribution, as its variance is not above 0; {valid}")
    return (1 - t) * prior_precision / precision, t * customized_precision / precision, precision**-0.5


def _weights(prior: Policy, customized: Policy, t: float) -> Policy:
    """Return the policy whose parameters are interpolated between those of two networks of one shape."""
    one, other = asdict(prior.spec), asdict(customized.spec)
    if differing := ", ".join(name for name in one if one[name] != other[name]):
        raise UsageError(f"the prior and the customized policy differ in {differing}: use the mixture")
    interpolated = make_policy(prior.spec, 0)
    start, end = prior.state_dict(), customized.state_dict()
    interpolated.load_state_dict(
        {name: torch.lerp(start[name].double(), end[name].double(), t).to(start[name]) for name in start}
    )
    return interpolated


METHODS: dict[str, Callable[[Policy, Policy, float], Policy]] = {"mixture": _mixture, "weights": _weights}


def _check_compatible(prior: Policy, customized: Policy) -> None:
    """Raise UsageError unless both have one family, the same actions, and the same normalized observations."""
    one, other = prior.spec, customized.spec
    for name, a, b in (
        ("families", one.family, other.family),
        ("numbers in an observation", one.observation_size, other.observation_size),
        ("actions", one.actions, other.actions),
        ("ways of cutting actions to their bounds (clips)", one.clips, other.clips),
    ):
        if a != b:
            raise UsageError(f"the prior and the customized policy have different {name}, {a} and {b}: no dial between")
    first, second = prior.normalizer, customized.normalizer
    is_same = torch.allclose(first.mean, second.mean) and torch.allclose(first.var, second.var)
    if not is_same or first.bound != second.bound:
        raise UsageError("the prior and the customized policy normalize observations differently: no dial between")
