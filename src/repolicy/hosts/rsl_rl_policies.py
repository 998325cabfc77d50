"""Policies of ours as rsl_rl's actors, and the other way round."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from repolicy.errors import UsageError
from repolicy.hosts.begun import check_same_network, paired, set_statistics, unbounded
from repolicy.hosts.rsl_rl_networks import PolicyActor
from repolicy.policies import MODULES, Policy, PolicySpec

from rsl_rl.modules import EmpiricalNormalization, GaussianDistribution  # isort: skip


@torch.no_grad()
def from_repolicy(policy: Policy, actor: Any) -> None:
    """Make rsl_rl's actor (an `MLPModel`) act as the policy; refuse where its networks are others."""
    spec, host, std = policy.spec, _spec_of(actor), policy.std
    if std is None or policy.family.squashes:
        raise UsageError(f"the policy is {spec.family}, and rsl_rl's GaussianDistribution has one std for all states")
    remedy = "make the actor's settings the same, or set copy_prior to false to begin elsewhere"
    check_same_network(spec, host, "actor", remedy)
    low, high = _std_range(actor)
    if not torch.allclose(std.clamp(low, high), std, rtol=1e-4, atol=0.0):
        raise UsageError(
            f"the policy has a std from {std.min():.3g} to {std.max():.3g}, and the actor's std_range is {low:g} to "
            f"{high:g}: widen std_range in the actor's distribution_cfg"
        )
    for ours, theirs in paired(policy, actor.mlp):
        theirs.copy_(ours)
    if actor.distribution.std_type == "log":
        actor.distribution.log_std_param.copy_(std.log())
    else:
        actor.distribution.std_param.copy_(std)
    _copy_statistics(policy, actor)


@torch.no_grad()
def to_repolicy(actor: Any) -> Policy:
    """Return rsl_rl's actor (an `MLPModel` with a Gaussian of one std) as a policy of ours, with its normalizer."""
    if isinstance(actor, PolicyActor):
        return actor.to_repolicy()
    policy = Policy(_spec_of(actor))
    for ours, theirs in paired(policy, actor.mlp):
        ours.copy_(theirs)
    distribution = actor.distribution
    std = distribution.std_param if distribution.std_type != "log" else distribution.log_std_param.exp()
    assert policy.log_std is not None
    policy.log_std.copy_(std.clamp(*_std_range(actor)).log())
    normalizer = actor.obs_normalizer
    if isinstance(normalizer, EmpiricalNormalization):
        var = (normalizer._std.squeeze(0).double() + normalizer.eps).square() - 1e-8
        set_statistics(policy.normalizer, normalizer._mean.squeeze(0), var, normalizer.count)
    return policy.requires_grad_(False).eval()


def _copy_statistics(policy: Policy, actor: Any) -> None:
    """Copy our (x − mean) / √(var + 1e-8) into rsl_rl's (x − mean) / (std + eps), which does not clip to ±10."""
    normalizer, theirs = policy.normalizer, actor.obs_normalizer
    if not isinstance(theirs, EmpiricalNormalization):
        if float(normalizer.count):
            raise UsageError("the prior normalizes its observations, and the actor does not: set obs_normalization")
        return
    std = (normalizer.var + 1e-8).sqrt() - theirs.eps
    theirs._mean.copy_(normalizer.mean)
    theirs._std.copy_(std)
    theirs._var.copy_(std.square())
    theirs.count.fill_(int(normalizer.count))


def _std_range(actor: Any) -> tuple[float, float]:
    low, high = getattr(actor.distribution, "std_range", (1e-12, math.inf))  # rsl_rl bounds it since 5.4
    return low, high


def layers_of(actor: Any) -> list[nn.Linear]:
    return [layer for layer in actor.mlp if isinstance(layer, nn.Linear)]


def _spec_of(actor: Any) -> PolicySpec:
    """Return what rsl_rl's actor would be as a policy of ours, or a sentence that says why it cannot be one."""
    if actor.is_recurrent or hasattr(actor, "cnns"):
        raise UsageError(f"a {type(actor).__name__} has a memory or images, which Repolicy's own policies have not")
    if type(actor.distribution) is not GaussianDistribution:
        raise UsageError(
            f"the actor has a {type(actor.distribution).__name__}; only a GaussianDistribution can be turned into a "
            "policy of Repolicy and back"
        )
    layers = layers_of(actor)
    sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
    classes = {type(module) for module in actor.mlp if not isinstance(module, nn.Linear)}
    activation = [name for name, module in MODULES.items() if classes == {module}]
    if not activation or not all(a.out_features == b.in_features for a, b in pairwise(layers)):
        raise UsageError(
            f"the actor's network has {', '.join(sorted(each.__name__ for each in classes))}; Repolicy's "
            f"have {', '.join(MODULES)}"
        )
    space, hidden = unbounded(sizes[-1]), tuple(sizes[1:-1])
    return PolicySpec(sizes[0], space, "gaussian", hidden, activation[0], min_std=0.0, observation_bound=None)
