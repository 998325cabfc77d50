"""RLlib's modules since its new API stack: `module_state.pkl`, and the constructor's arguments in a file beside it.

The arguments have the activation and the action space, which the state does not. Another part of the checkpoint, a
pipeline of connectors, has the normalizer of observations.
"""

import base64
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.files import read_bytes
from repolicy.readers.context import ReadContext
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    Linear,
    Normalizer,
    PolicyDescription,
    Std,
    UnknownSettingError,
)
from repolicy.readers.perceptrons import (
    actions_of,
    canonical_activation,
    check_no_memory,
    finite_float32,
    make_normalizer,
    make_perceptron,
    sequential_layers,
    tensors_of,
)
from repolicy.readers.pickles import ObjectStub, read_pickle, real_array

LIBRARY = "RLlib"
ARGUMENTS = "class_and_ctor_args.pkl"
RLLIB_CLASS = r"Default(\w+?)TorchRLModule"  # classes whose code is part of RLlib
HEAD, LOG_STD, BOUND = "pi.net.mlp", "pi.log_std", "pi.log_std_clip_param_const"
SAC_BODY = "pi_encoder.net.mlp"
BODIES = ("encoder.actor_encoder.net.mlp", "encoder.encoder.net.mlp", SAC_BODY)
MEMORIES = [f"encoder.{part}.{kind}.weight_ih_l0" for part in ("actor_encoder", "encoder") for kind in ("lstm", "gru")]
SAC_BOUNDS, DEFAULT_BOUND = (-5.0, 2.0), 20.0  # of a log-std
PIPELINE = Path("env_runner/env_to_module_connector")  # in the checkpoint's folder
ACTIONS_PIPELINE, ACTIONS_SCALER = Path("env_runner/module_to_env_connector"), "NormalizeAndClipActions"
MODULE_DEPTH = 4  # the module's state lies this many folders below the checkpoint's folder
FILTER, EPSILON = "MeanStdFilter", 1e-6  # RLlib's SMALL_NUMBER, added to a std
MAX_HEADER = 1024  # bytes before an array's numbers
NORM_EPSILON = 1e-3  # of RLlib's LayerNorms
HARMLESS = {  # connectors that do not change observations that are a row of numbers
    "AddObservationsFromEpisodesToBatch", "AddStatesFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping", "BatchIndividualItems", "FlattenObservations", "NumpyToTensor",
}  # fmt: skip
SCALED_NOTE = (
    "actions are scaled from [-1, 1] to the environment's bounds, as RLlib does unless normalize_actions is turned off"
)

GREEDY_NOTE = (
    "without exploration, RLlib itself leaves out SAC's tanh and cuts its means at -1 and 1: this copy has the tanh"
)


def matches(saved: Any) -> bool:
    """Return whether a pickle is the state of a module of RLlib's, perhaps one with a memory."""
    is_headed = isinstance(saved, dict) and f"{HEAD}.0.weight" in saved
    return is_headed and bool(_encoders(saved) or not saved.keys().isdisjoint(MEMORIES))


def read(state: dict[str, Any], context: ReadContext) -> PolicyDescription:
    tensors = tensors_of(state)
    check_no_memory(name for name in MEMORIES if name in tensors)
    algorithm, arguments = _load_constructor(context)
    config = arguments["model_config"]  # only the settings that differ from RLlib's defaults
    if isinstance(config, ObjectStub):
        config = config.state
    actions = actions_of(arguments["action_space"])
    body = _encoders(tensors)[0]
    head = sequential_layers(tensors, HEAD, NORM_EPSILON)
    recorded = canonical_activation(config.get("fcnet_activation", "tanh") or "linear")
    if head[1:] and canonical_activation(config.get("head_fcnet_activation", "relu") or "linear") != recorded:
        raise UnknownSettingError("its head has another activation than its encoder")
    activation = context.activation("tanh", LIBRARY, recorded)
    network = make_perceptron([*sequential_layers(tensors, body, NORM_EPSILON), *head], None, activation)
    statistics = context.statistics(network.width, _checkpoint_normalizer(context, network.width))

    has_std_head = actions.kind == "continuous" and LOG_STD not in tensors
    needed = sum(actions.sizes) * (2 if has_std_head else 1)
    if len(network.output.bias) != needed:
        raise ValueError(f"its last layer has {len(network.output.bias)} outputs, and its actions need {needed}")
    policy = PolicyDescription(LIBRARY, "", algorithm, network, actions, normalizer=statistics)
    if actions.kind == "discrete":
        return policy
    squashed = body == SAC_BODY
    if squashed:
        context.notes.append(GREEDY_NOTE)
    bound = float(tensors[BOUND].item()) if BOUND in tensors else DEFAULT_BOUND
    low, high = SAC_BOUNDS if squashed else (-bound, bound)
    if has_std_head:
        network, raw = network.split_output()
        std = Std("head", raw, "exp", low, high)
    else:
        std = Std("vector", finite_float32(tensors[LOG_STD], LOG_STD), "exp", low, high)
    scaling = dict(_connectors(context, ACTIONS_PIPELINE)).get(ACTIONS_SCALER, {})
    scaled = scaling.get("normalize_actions")
    clips = not squashed and (scaled is not False or scaling.get("clip_actions") is not False)
    policy = replace(policy, actor=network, std=std, squashed=squashed, clips=clips)
    if set(actions.low) == {-1.0} and set(actions.high) == {1.0}:
        return policy
    if scaled is False and squashed:  # the environment gets what tanh gives
        ones = (1.0,) * len(actions.low)
        return replace(policy, actions=replace(actions, low=tuple(-one for one in ones), high=ones))
    if squashed and scaled is None:
        context.notes.append(SCALED_NOTE)
    if scaled is False or squashed:
        return policy
    return _to_bounds(policy, std, context, is_recorded=scaled is not None)


def _encoders(state: Mapping[str, Any]) -> list[str]:
    """Return the prefixes of the actor's encoder that the state has."""
    return [body for body in BODIES if f"{body}.0.weight" in state]


def _load_constructor(context: ReadContext) -> tuple[str, dict[str, Any]]:
    """Return the algorithm of the module, and its constructor's arguments; refuse classes that are not RLlib's."""
    file = context.path.with_name(ARGUMENTS)
    if not file.is_file():
        raise UsageError(f"{context.path} needs {ARGUMENTS} beside it, with which RLlib saves it: put that file there")
    parts = read_pickle(read_bytes(file), str(file))
    rllib_class = re.fullmatch(RLLIB_CLASS, parts["class"].last)
    if rllib_class is None:
        raise CannotCopyError(f"its module is {parts['class'].last}, a class whose code is not in it")
    _, arguments = parts["ctor_args_and_kwargs"]
    return rllib_class[1], arguments


def _checkpoint_normalizer(context: ReadContext, width: int) -> Normalizer | None:
    """Return the normalizer in the checkpoint's connectors; None where there is no normalizer or no checkpoint."""
    connectors = [name for name, _ in _connectors(context, PIPELINE)]
    if others := set(connectors) - HARMLESS - {FILTER}:
        raise CannotCopyError(f"its observations pass {', '.join(sorted(others))}, which cannot be read")
    if FILTER not in connectors:
        return None
    file = _checkpoint_folder(context) / PIPELINE / FILTER / "state.pkl"
    state = read_pickle(read_bytes(file), str(file))[None]
    [running] = state["running_stats"]
    squares = running.get("sum_sq_diff_array", running.get("std_array"))  # by RLlib's version
    with in_one_sentence(f"{file} is damaged", FileError):  # NumPy's, zlib's and tokenize's errors, of many classes
        mean, squares = (_decode_array(packed, width) for packed in (running["mean_array"], squares))
    count = int(running["num_pushes"])
    std = np.sqrt(squares / max(1, count - 1)) + EPSILON
    if not state["de_mean_to_zero"]:
        mean = np.zeros(width)
    if not state["de_std_to_one"]:
        std = np.ones(width)
    return make_normalizer(mean, std, state["clip_by_value"] or None, float(count))


def _checkpoint_folder(context: ReadContext) -> Path:
    """Return the folder of the checkpoint that the module is in."""
    return context.path.absolute().parents[MODULE_DEPTH]


def _connectors(context: ReadContext, pipeline: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return name and arguments of each connector in a pipeline; none where there is no checkpoint."""
    if context.path.absolute().parent.name != "default_policy":
        return []
    file = _checkpoint_folder(context) / pipeline / ARGUMENTS
    if not file.is_file():
        return []
    _, arguments = read_pickle(read_bytes(file), str(file))["ctor_args_and_kwargs"]
    return [(kind.last, settings) for kind, _, settings in arguments["connectors"]]


def _decode_array(packed: str, width: int) -> Array:
    """Decode a compressed .npy in base64, of no more than `width` doubles."""
    stream = io.BytesIO(zlib.decompressobj().decompress(base64.b64decode(packed), MAX_HEADER + 8 * width))
    np.lib.format.read_magic(stream)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    return real_array(np.frombuffer(stream.read(), dtype).reshape(shape, order="F" if is_fortran else "C"))


def _to_bounds(policy: PolicyDescription, std: Std, context: ReadContext, is_recorded: bool) -> PolicyDescription:
    """Scale mean and std to the environment's units: RLlib maps [-1, 1] to the bounds if all of them are finite."""
    low, high = np.array(policy.actions.low), np.array(policy.actions.high)
    if not np.isfinite([low, high]).all():
        return policy
    half, raw = (high - low) / 2.0, std.raw
    if isinstance(raw, Linear) and std.high < DEFAULT_BOUND:
        raise CannotCopyError(f"its log-stds are cut at {std.high:g}, in other units than the environment's")
    if not is_recorded:
        context.notes.append(SCALED_NOTE)
    mean = policy.actor.output
    output = Linear(mean.weight * half[:, None], (mean.bias + 1.0) * half + low)
    if isinstance(raw, Linear):
        moved = Linear(raw.weight, raw.bias + np.log(half))
    else:
        moved = np.clip(raw, std.low, std.high) + np.log(half)
    return replace(policy, actor=replace(policy.actor, output=output), std=Std(std.source, moved))
