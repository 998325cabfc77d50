"""RLlib's modules since its new API stack: `module_state.pkl`, and beside it the arguments that made the module.

The state alone tells neither the activation nor whether the outputs are means and log-stds or logits of choices. What
happens to observations before the network stands in another part of a checkpoint: a pipeline of connectors.
"""

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import UsageError
from repolicy.loading import read_bytes
from repolicy.readers.context import ReadContext
from repolicy.readers.description import Array, CannotCopyError, Linear, Normalizer, PolicyDescription, Std
from repolicy.readers.perceptrons import (
    canonical_activation,
    finite_float32,
    make_normalizer,
    make_perceptron,
    sequential_layers,
    tensors_of,
)
from repolicy.readers.pickles import ObjectStub, read_pickle
from repolicy.readers.spaces import actions_of, has_switches

LIBRARY = "RLlib"
ARGUMENTS = "class_and_ctor_args.pkl"
SHIPS = r"Default(\w+?)TorchRLModule"  # whose code is RLlib's own
HEAD, LOG_STD, BOUND = "pi.net.mlp", "pi.log_std", "pi.log_std_clip_param_const"
SAC_BODY = "pi_encoder.net.mlp"
BODIES = ("encoder.actor_encoder.net.mlp", "encoder.encoder.net.mlp", SAC_BODY)
SAC_BOUNDS, USUAL_BOUND = (-5.0, 2.0), 20.0  # of a log-std
PIPELINE = Path("env_runner/env_to_module_connector")  # in the checkpoint's folder
DEEP = 4  # folders from there to the module's state
FILTER, EPSILON = "MeanStdFilter", 1e-8
HEADER = 128  # bytes of an .npy before its numbers
HARMLESS = {  # connectors that leave a row of numbers as it is
    "AddObservationsFromEpisodesToBatch", "AddStatesFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping", "BatchIndividualItems", "FlattenObservations", "NumpyToTensor",
}  # fmt: skip
SCALED = (
    "actions are scaled from [-1, 1] to the environment's bounds, as RLlib does unless normalize_actions is turned off"
)


def matches(saved: Any) -> bool:
    """Return whether a pickle is the state of a module of RLlib's."""
    return isinstance(saved, dict) and f"{HEAD}.0.weight" in saved and bool(_bodies(saved))


def read(state: dict[str, Any], context: ReadContext) -> PolicyDescription:
    tensors = tensors_of(state)
    algorithm, arguments = _made_with(context)
    config = arguments["model_config"]  # the settings of its model as far as they are not the usual ones
    if isinstance(config, ObjectStub):
        config = config.state
    if has_switches(arguments["action_space"]):
        raise CannotCopyError("its actions are switches")
    actions = actions_of(arguments["action_space"])
    body = _bodies(tensors)[0]
    head = sequential_layers(tensors, HEAD)
    recorded = canonical_activation(config.get("fcnet_activation", "tanh"))
    if head[1:] and canonical_activation(config.get("head_fcnet_activation", "relu")) != recorded:
        raise CannotCopyError("its head has another activation than its encoder")
    activation = context.activation("tanh", LIBRARY, recorded)
    network = make_perceptron([*sequential_layers(tensors, body), *head], None, activation)
    statistics = context.statistics(network.width, _filtered(context, network.width))

    has_std_head = actions.kind == "continuous" and LOG_STD not in tensors
    needed = sum(actions.sizes) * (2 if has_std_head else 1)
    if len(network.output.bias) != needed:
        raise ValueError(f"its last layer has {len(network.output.bias)} outputs, and its actions need {needed}")
    policy = PolicyDescription(LIBRARY, "", algorithm, network, actions, normalizer=statistics)
    if actions.kind == "discrete":
        return policy
    squashed = body == SAC_BODY
    bound = float(tensors[BOUND].item()) if BOUND in tensors else USUAL_BOUND
    low, high = SAC_BOUNDS if squashed else (-bound, bound)
    if has_std_head:
        network, raw = network.split_output()
        std = Std("head", raw, "exp", low, high)
    else:
        std = Std("vector", finite_float32(tensors[LOG_STD], LOG_STD), "exp", low, high)
    policy = replace(policy, actor=network, std=std, squashed=squashed, clips=not squashed)
    if squashed or (set(actions.low) == {-1.0} and set(actions.high) == {1.0}):
        return policy
    return _to_bounds(policy, std, context)


def _bodies(state: Mapping[str, Any]) -> list[str]:
    """Return the encoders of an actor that are there."""
    return [body for body in BODIES if f"{body}.0.weight" in state]


def _made_with(context: ReadContext) -> tuple[str, dict[str, Any]]:
    """Return the algorithm of a module of RLlib's own, and the arguments that made it."""
    file = context.path.with_name(ARGUMENTS)
    if not file.is_file():
        raise UsageError(f"{context.path} needs {ARGUMENTS} beside it, with which RLlib saves it: put that file there")
    parts = read_pickle(read_bytes(file), str(file))
    ships = re.fullmatch(SHIPS, parts["class"].last)
    if ships is None:
        raise CannotCopyError(f"its module is {parts['class'].last}, a class whose code is not in it")
    _, arguments = parts["ctor_args_and_kwargs"]
    return ships[1], arguments


def _filtered(context: ReadContext, width: int) -> Normalizer | None:
    """Return the normalizer of a checkpoint's connectors; None where they have none, or stand nowhere."""
    folder = context.path.absolute().parents[DEEP] / PIPELINE
    file = folder / ARGUMENTS
    if context.path.parent.name != "default_policy" or not file.is_file():
        return None
    _, arguments = read_pickle(read_bytes(file), str(file))["ctor_args_and_kwargs"]
    connectors = [kind.last for kind, *_ in arguments["connectors"]]
    if others := set(connectors) - HARMLESS - {FILTER}:
        raise CannotCopyError(f"its observations pass {', '.join(sorted(others))}, which cannot be read")
    if FILTER not in connectors:
        return None
    state = read_pickle(read_bytes(folder / FILTER / "state.pkl"), str(folder / FILTER / "state.pkl"))[None]
    [running] = state["running_stats"]
    mean = _unpacked(running["mean_array"], width)
    squares = _unpacked(running.get("sum_sq_diff_array", running.get("std_array")), width)  # by its version
    count = int(running["num_pushes"])
    std = np.sqrt(squares / max(1, count - 1)) + EPSILON
    if not state["de_mean_to_zero"]:
        mean = np.zeros(width)
    if not state["de_std_to_one"]:
        std = np.ones(width)
    return make_normalizer(mean, std, state["clip_by_value"] or None, float(count))


def _unpacked(packed: str, width: int) -> Array:
    """Return an array of so many doubles, which stands as a compressed .npy in base64."""
    content = zlib.decompressobj().decompress(base64.b64decode(packed), HEADER + 8 * width)
    if b"'<f8'" not in content[:HEADER]:
        raise ValueError("its observations' statistics are no doubles")
    return np.frombuffer(content[HEADER:])


def _to_bounds(policy: PolicyDescription, std: Std, context: ReadContext) -> PolicyDescription:
    """Return mean and std in the environment's units: RLlib takes [-1, 1] to the bounds, where all are finite."""
    low, high = np.array(policy.actions.low), np.array(policy.actions.high)
    if not np.isfinite([low, high]).all():
        return policy
    if std.high < USUAL_BOUND:
        raise CannotCopyError(f"its log-stds are cut at {std.high:g}, in other units than the environment's")
    context.notes.append(SCALED)
    half = (high - low) / 2.0
    mean, raw = policy.actor.output, std.raw
    output = _linear(mean.weight * half[:, None], (mean.bias + 1.0) * half + low)
    moved = _linear(raw.weight, raw.bias + np.log(half)) if isinstance(raw, Linear) else raw + np.log(half)
    return replace(policy, actor=replace(policy.actor, output=output), std=Std(std.source, moved))


def _linear(weight: Array, bias: Array) -> Linear:
    return Linear(weight.astype(np.float32), bias.astype(np.float32))
