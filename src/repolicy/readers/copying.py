"""Build a Repolicy policy from a description: it acts and scores as the original did."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import FileError, UsageError, first_line
from repolicy.policies import STDS, ActionSpace, Policy, PolicySpec, bound_raw_std, make_policy
from repolicy.readers.description import Linear, Normalizer, PolicyDescription


def policy_from(described: PolicyDescription) -> Policy:
    """Return the described policy as a network of Repolicy."""
    spec, std = _spec(described), described.std
    normalizer = described.normalizer or Normalizer(np.zeros(spec.observation_size), np.ones(spec.observation_size))
    raw_std: dict[str, Tensor] = {}
    if std is not None and std.source == "vector":
        # It is stored as its logarithm, so that no gradient step makes it negative.
        least = torch.tensor(math.log(max(spec.min_std, 1e-30)))
        raw_std["log_std"] = STDS[spec.std].log_std(bound_raw_std(_tensor(std.raw), spec), least)
        spec = replace(spec, std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf))
    elif std is not None and std.source == "features":
        raw_std["log_std"] = _tensor(std.raw)
    policy = make_policy(spec, 0)
    policy.groups = tuple(key for key, _ in described.groups)
    try:
        policy.load_state_dict(_state(described, spec, normalizer) | raw_std)
    except (RuntimeError, ValueError) as error:  # shapes that do not fit
        raise FileError(f"this {described.kind} of {described.library} is damaged: {first_line(error)}") from None
    with torch.no_grad():  # Repolicy's normalizer has positive scales, so the first layer takes their signs
        policy.network.weights[0].mul_(_tensor(np.sign(normalizer.scale)))
    return policy


def _state(described: PolicyDescription, spec: PolicySpec, normalizer: Normalizer) -> dict[str, Tensor]:
    """Return the state dict of normalizer and network, with the names of Repolicy's policies."""
    variance = normalizer.scale**-2.0 - 1e-8  # gives the same scale after Repolicy adds its epsilon of 1e-8
    statistics = {"mean": normalizer.shift, "var": variance, "count": normalizer.count}
    state = {
        f"normalizer.{name}": torch.tensor(np.asarray(each), dtype=torch.float64) for name, each in statistics.items()
    }
    hidden = described.actor.hidden
    for index, layer in enumerate([*(each.linear for each in hidden), _output_layer(described, spec)]):
        state |= {f"network.weights.{index}": _tensor(layer.weight), f"network.biases.{index}": _tensor(layer.bias)}
    for place, norm in ((f"network.norms.{index}", each.norm) for index, each in enumerate(hidden)):
        if norm is not None:
            state |= {f"{place}.weight": _tensor(norm.weight), f"{place}.bias": _tensor(norm.bias)}
    return state


def _spec(described: PolicyDescription) -> PolicySpec:
    std, actor, actions = described.std, described.actor, described.actions
    if std is None and actions.kind == "continuous":
        logits = ", or --temperature 1 where its outputs are logits" * (described.kind == "perceptron")
        example = "--std 0.2, before tanh" if described.squashed else f"--std 0.2{logits}"
        raise UsageError(f"this {described.kind} of {described.library} has no std: give one, such as {example}")
    norms = tuple(hidden.norm.place if hidden.norm else "" for hidden in actor.hidden)
    epsilon = next((hidden.norm.epsilon for hidden in actor.hidden if hidden.norm), 1e-5)  # all have the same
    if described.squashed and not actions.low:
        actions = ActionSpace("continuous", actions.sizes, (-1.0,) * actions.width, (1.0,) * actions.width)
    sizes = tuple(len(hidden.linear.weight) for hidden in actor.hidden)
    clip = described.normalizer.clip if described.normalizer else None
    spec = PolicySpec(
        actor.width, actions, described.family, sizes, actor.activation, initial_std=1.0, min_std=0.0,
        observation_bound=clip, slope=actor.slope, norms=norms if any(norms) else (),
        epsilon=epsilon, mean_clip=described.mean_clip, clips=described.clips,
    )  # fmt: skip
    return spec if std is None else replace(spec, std=std.link, min_std=std.floor, std_bounds=(std.low, std.high))


def _output_layer(described: PolicyDescription, spec: PolicySpec) -> Linear:
    """Return the output layer: rows of the mean, then rows of the std head, or the identity for gSDE."""
    mean, std = described.actor.output, described.std
    if std is None or std.source == "vector":
        return mean
    if isinstance(std.raw, Linear):
        std_rows = Linear(std.raw.weight, std.raw.bias - np.float32(STDS[spec.std].inverse(spec.initial_std)))
    else:
        std_rows = Linear(np.eye(spec.features, dtype=np.float32), np.zeros(spec.features, np.float32))
    return Linear(np.concatenate([mean.weight, std_rows.weight]), np.concatenate([mean.bias, std_rows.bias]))


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))
