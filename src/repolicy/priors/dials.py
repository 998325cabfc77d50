"""Dials that cost no training: from a prior and the policy that it was customized to, every policy between the two.

    mixture     π^(1−t) · π_c^t, divided by its sum or integral in each state
    weights     (1 − t) · θ + t · θ_c, for each number of the networks

At t = 0 both are the prior, at t = 1 the customized policy. What comes out is a `Policy` like any other: for Gaussians
whose std is the same in all states, and for logits, the mixture is a weighted sum of both networks' outputs, and two
networks side by side are one network.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from numbers import Real
from pathlib import Path
from typing import Literal, NamedTuple

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
    scale_outputs,
)
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

How = Literal["mixture", "weights"]
OTHER_DIAL = "use the other dial: how='weights', or --how weights"


def dial(policy: str | Path | SavedPolicy, t: float | None = None, how: How = "mixture", **values: float) -> Policy:
    """Turn between the prior in a customized policy's file (t = 0) and the customized policy (t = 1), and return that.

    Args:
        policy: a file, a run's folder, or what `read_policy` gave.
        t: the position; of a policy with a trained dial, the weight.
        how: "mixture" of the two distributions, or "weights" of the two networks; a trained dial has no choice.
        **values: of several trained dials, each weight by its name: `dial("runs/dial", omega=0.3, quiet=1.5)`.
    """
    saved = policy if isinstance(policy, SavedPolicy) else read_policy(find_policy(policy))
    if isinstance(saved.policy, ConditionedPolicy):
        return saved.policy.at(t, **values)
    name = "this policy" if isinstance(policy, SavedPolicy) else str(policy)
    if t is None or values:
        raise UsageError(f"{name} has no trained dial of a name: give t, where 0 is the prior, 1 the customized policy")
    found = interpolate_policies(require_prior(saved, name), saved.policy, t, how)
    if warning := extrapolation_warning(t):
        warnings.warn(warning, stacklevel=2)
    return found


def interpolate_policies(prior: Policy, customized: Policy, t: float, how: How = "mixture") -> Policy:
    """Return the policy at `t` between two of one family."""
    if not (isinstance(t, Real) and math.isfinite(t)):
        raise UsageError(f"t is {t!r}; it must be a number: 0 is the prior, 1 the customized policy")
    if how not in HOWS:
        raise UsageError(f"there is no dial {how!r}; choose from {', '.join(HOWS)}")
    _check_alike(prior, customized)
    return frozen(HOWS[how](prior, customized, float(t)))


def require_prior(saved: SavedPolicy, name: str | Path) -> Policy:
    """Return the prior in a customized policy's file."""
    if saved.prior is None:
        raise UsageError(f"{name} holds no prior; a dial needs what `repolicy customize` made, which holds its prior")
    return saved.prior


def extrapolation_warning(t: float) -> str:
    """Return what a user must know of a `t` outside 0..1; empty for one inside."""
    if 0 <= t <= 1 or not math.isfinite(t):
        return ""
    end = "the customized policy" if t > 1 else "the prior"
    return f"t is {t:g}, which goes on beyond {end}: no training ever was there, so evaluate what comes out"


# The two dials --------------------------------------------------------------------------------------------------------


def _mixture(prior: Policy, customized: Policy, t: float) -> Policy:
    """Return both networks side by side; how much each of them counts for an output is `_shares`' to say."""
    one, other = prior.spec, customized.spec
    if (len(one.hidden), one.activation, one.slope) != (len(other.hidden), other.activation, other.slope):
        both = [f"{len(spec.hidden)} hidden layers of {spec.activation}" for spec in (one, other)]
        raise UsageError(f"the prior has {both[0]}, the customized policy {both[1]}; both must be alike, slopes too")
    if not one.hidden or any(spec.norms or spec.mean_clip is not None for spec in (one, other)):
        kind = "with hidden layers, without LayerNorm and without a bound on the mean"
        raise UsageError(f"a mixture is of networks {kind}; {OTHER_DIAL}")
    shares = _shares(prior, customized, t)
    hidden = tuple(a + b for a, b in zip(one.hidden, other.hidden, strict=True))
    mixed = Policy(replace(one, hidden=hidden, std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf)))
    ours = scale_outputs(layers_of(prior.network), shares.prior)
    theirs = scale_outputs(layers_of(customized.network), shares.customized)
    load_layers(mixed.network, add_networks(ours, theirs))
    if mixed.log_std is not None and shares.std is not None:
        mixed.log_std.data = shares.std.log().float()
    mixed.normalizer.load_state_dict(prior.normalizer.state_dict())
    return mixed


class Shares(NamedTuple):
    """How much of each network's outputs a mixture takes, and its std `[A]` where it has one."""

    prior: Tensor
    customized: Tensor
    std: Tensor | None


def _shares(prior: Policy, customized: Policy, t: float) -> Shares:
    """Return what the mixture at `t` takes of each.

    Logits are logarithms, so they are taken in the proportion (1 − t) : t. Gaussians are taken in proportion to
    (1 − t)/σ² : t/σ_c², which sum up to the mixture's 1/σ².
    """
    first, second = prior.std, customized.std
    if prior.family.kind == "discrete":
        return Shares(torch.tensor(1.0 - t), torch.tensor(t), None)
    if first is None or second is None:
        raise UsageError(f"the std of a {prior.spec.family} policy depends on the state: {OTHER_DIAL}")
    narrow, narrow_c = first.double() ** -2, second.double() ** -2
    precision = (1 - t) * narrow + t * narrow_c
    if not bool((precision > 0).all()):
        low, high = valid_range(narrow, narrow_c)
        within = f"for these two policies t must lie between {low:.4g} and {high:.4g}"
        raise UsageError(f"at t = {t:g} the mixture is no distribution, by its variance; {within}")
    return Shares((1 - t) * narrow / precision, t * narrow_c / precision, precision**-0.5)


def valid_range(narrow: Tensor, narrow_c: Tensor) -> tuple[float, float]:
    """Return between which t's the mixture of Gaussians with these precisions `[A]` is a distribution."""
    slope = narrow_c - narrow
    ends = -narrow / slope  # ±∞ where both are alike
    low, high = ends[slope > 0], ends[slope < 0]
    return float(low.max()) if len(low) else -math.inf, float(high.min()) if len(high) else math.inf


def _weights(prior: Policy, customized: Policy, t: float) -> Policy:
    """Return the policy whose numbers lie between those of two networks that started as one."""
    one, other = asdict(prior.spec), asdict(customized.spec)
    if differing := ", ".join(name for name in one if one[name] != other[name]):
        raise UsageError(f"the prior and the customized policy differ in {differing}: use the mixture")
    between = Policy(prior.spec)
    old, new = prior.state_dict(), customized.state_dict()
    between.load_state_dict({key: torch.lerp(old[key].double(), new[key].double(), t).to(old[key]) for key in old})
    return between


HOWS: dict[str, Callable[[Policy, Policy, float], Policy]] = {"mixture": _mixture, "weights": _weights}


def _check_alike(prior: Policy, customized: Policy) -> None:
    """Raise unless both are distributions of one family over the same actions, from the same inputs."""
    one, other = prior.spec, customized.spec
    for what, a, b in (
        ("families", one.family, other.family),
        ("numbers in an observation", one.observation_size, other.observation_size),
        ("actions", one.actions, other.actions),
        ("ways of cutting actions to their bounds (clips)", one.clips, other.clips),
    ):
        if a != b:
            raise UsageError(f"the prior and the customized policy have different {what}, {a} and {b}: no dial between")
    ours, theirs = prior.normalizer, customized.normalizer
    same = all(torch.allclose(a, b) for a, b in ((ours.mean, theirs.mean), (ours.var, theirs.var)))
    if not same or ours.bound != theirs.bound:
        raise UsageError("the prior and the customized policy normalize observations differently: no dial between")
