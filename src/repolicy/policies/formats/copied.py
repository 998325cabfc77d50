"""From a description to one of our policies, which acts and scores as the original did."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies.families import STDS, bounded
from repolicy.policies.formats.described import Array, CannotCopyError, Described, Linear, Normalizer
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.spaces import ActionSpace


def policy_from(described: Described) -> Policy:
    """The same policy as a network of ours."""
    spec = _spec(described)
    std, parameter = described.std, None
    if std is not None and std.source == "vector":  # its logarithm, whatever it was: a step cannot make it negative
        least = torch.tensor(math.log(max(spec.min_std, 1e-30)))
        parameter = STDS[spec.std].log_std(bounded(_tensor(std.raw), spec), least)
        spec = replace(spec, std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf))
    elif std is not None and std.source == "features":
        parameter = _tensor(std.raw)
    policy = Policy(spec)
    normalizer = described.normalizer or Normalizer(np.zeros(spec.observation_size), np.ones(spec.observation_size))
    with torch.no_grad():
        layers = [hidden.linear for hidden in described.actor.hidden] + [_outputs(described, spec)]
        layers[0] = Linear(layers[0].weight * np.sign(normalizer.scale).astype(np.float32), layers[0].bias)
        for weight, bias, layer in zip(policy.network.weights, policy.network.biases, layers, strict=True):
            weight.copy_(_tensor(layer.weight))
            bias.copy_(_tensor(layer.bias))
        for index, hidden in enumerate(described.actor.hidden):
            norm = policy.network.norm(index)
            if norm is not None and hidden.norm is not None:
                norm.weight.copy_(_tensor(hidden.norm.weight))
                norm.bias.copy_(_tensor(hidden.norm.bias))
        if policy.log_std is not None and parameter is not None:
            policy.log_std.copy_(parameter)
    statistics = {"mean": normalizer.shift, "var": normalizer.var - 1e-8, "count": normalizer.count}
    policy.normalizer.load_state_dict(
        {name: torch.as_tensor(value, dtype=torch.float64) for name, value in statistics.items()}
    )
    return policy


def _spec(described: Described) -> PolicySpec:
    std, actor, actions = described.std, described.actor, described.actions
    if std is None and actions.kind == "continuous":
        before = ", before tanh" if described.squashed else ""
        raise UsageError(
            f"this {described.kind} of {described.library} has no std, so that none of its actions has a probability: "
            f"give one with --std, such as --std 0.2{before}"
        )
    norms = tuple(hidden.norm.place if hidden.norm else "" for hidden in actor.hidden)
    epsilons = {hidden.norm.epsilon for hidden in actor.hidden if hidden.norm}
    if len(epsilons) > 1:
        raise CannotCopyError(f"this {described.kind} of {described.library} has LayerNorms of different epsilons")
    if described.squashed and not actions.low:
        actions = ActionSpace("continuous", actions.sizes, (-1.0,) * actions.width, (1.0,) * actions.width)
    sizes = tuple(len(hidden.linear.bias) for hidden in actor.hidden)
    clip = described.normalizer.clip if described.normalizer else None
    spec = PolicySpec(
        described.observation_size, actions, described.family, sizes, actor.activation, 1.0, 0.0,
        observation_bound=clip, slope=actor.slope, norms=norms if epsilons else (),
        epsilon=epsilons.pop() if epsilons else 1e-5, mean_clip=described.mean_clip, clips=described.clips,
    )  # fmt: skip
    return spec if std is None else replace(spec, std=std.link, min_std=std.floor, std_bounds=(std.low, std.high))


def _outputs(described: Described, spec: PolicySpec) -> Linear:
    """The last layer: the mean's rows and, below them, those of the std's numbers, or the features as they are."""
    mean, std = described.actor.output, described.std
    if std is None or std.source == "vector":
        return mean
    if isinstance(std.raw, Linear):
        below = Linear(std.raw.weight, std.raw.bias - np.float32(STDS[spec.std].inverse(spec.initial_std)))
    else:
        below = Linear(np.eye(spec.features, dtype=np.float32), np.zeros(spec.features, np.float32))
    return Linear(np.concatenate([mean.weight, below.weight]), np.concatenate([mean.bias, below.bias]))


def _tensor(values: Array | Linear) -> Tensor:
    assert not isinstance(values, Linear)
    return torch.from_numpy(np.array(values, np.float32))
