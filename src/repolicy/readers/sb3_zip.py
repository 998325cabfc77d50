"""Stable-Baselines3's zips and sb3-contrib's, of all versions since 1.0.

A zip holds `data` (JSON, in which whatever is no plain value is a pickle in base64), `policy.pth` (a state dict) and
the version. What kind of policy it is, its tensors' names tell; its activation and its spaces are in the pickles,
which are read through shells.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.readers.context import ReadContext, agree, find_statistics, read_statistics, time_is_seen
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    HiddenLayer,
    Linear,
    Normalizer,
    Perceptron,
    PolicyDescription,
    Std,
)
from repolicy.readers.perceptrons import (
    canonical_activation,
    check_width,
    finite_float32,
    first_names,
    linear_layer,
    make_perceptron,
    sequential_layers,
    tensors_of,
    tensors_under,
)
from repolicy.readers.pickles import GlobalName, load, read_pickle
from repolicy.readers.spaces import actions_of, has_switches, observations_of
from repolicy.readers.zips import open_zip, read_zip_entry

LIBRARY = "Stable-Baselines3"
HOSTS = ("stable_baselines3.", "sb3_contrib.")  # whose code is known
OWN = re.compile(  # their classes; one of another name in their modules is a fork's
    r"(|Maskable|Recurrent)(|MultiInput)ActorCritic(|Cnn)Policy|(ARS|ARSLinear|CrossQ|DQN|QRDQN|SAC|TD3|TQC)Policy|"
    r"(Cnn|MultiInput)Policy|(Flatten|Combined)Extractor|NatureCNN"
)
STANDARDIZED = "repolicy.hosts.sb3_policies.Standardized"  # the features extractor of what our adapter builds
MASKED = "it was trained with action masks, which this copy does not apply"
HER = ("observation", "desired_goal")  # whose numbers HER put side by side, before 1.1
HINDSIGHT = "it takes observation and desired_goal side by side: --env NAME?observe=observation,desired_goal"
MARKS = {  # an algorithm by a setting that only it has, the first that fits
    "top_quantiles_to_drop_per_net": "TQC",
    "n_quantiles": "QR-DQN",
    "n_delta": "ARS",
    "cg_damping": "TRPO",
    "target_policy_noise": "TD3 or DDPG",
    "exploration_fraction": "DQN",
    "ent_coef_optimizer": "SAC",
    "target_entropy": "SAC",
    "clip_range": "PPO",
    "gae_lambda": "A2C",
}


@dataclass(frozen=True)
class Zip:
    """A zip's contents, as its readers need them."""

    tensors: dict[str, Array]
    data: dict[str, Any]
    settings: dict[str, Any]  # policy_kwargs
    policy_class: Any
    observations: tuple[tuple[str, int], ...]  # one group without a name, or those of a Dict
    actions: ActionSpace
    switches: bool  # actions that are each on or off

    @property
    def width(self) -> int:
        return sum(size for _, size in self.observations)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Of a Dict, its keys and their sizes; of anything else none."""
        return self.observations if self.observations[0][0] else ()

    @property
    def hindsight(self) -> bool:
        """Whether HER was an algorithm of its own, which made a row of numbers of a Dict."""
        return "goal_selection_strategy" in self.data and not self.groups

    @property
    def standardizes(self) -> bool:
        """Whether observations are normalized inside, as in a model that our adapter built."""
        extractor = self.settings.get("features_extractor_class")
        return isinstance(extractor, GlobalName) and extractor.text == STANDARDIZED

    def activation(self, default: str) -> str:
        activation = self.settings.get("activation_fn")
        if activation is None:
            return default
        known = isinstance(activation, GlobalName) and activation.text.startswith("torch.nn.")
        return canonical_activation(activation.last if known else _told(activation))


class Parts(NamedTuple):
    """What depends on the kind of policy."""

    actor: Perceptron
    std: Std | None = None
    squashed: bool = False
    mean_clip: float | None = None


def matches(names: list[str]) -> bool:
    """Return whether a zip with these entries is Stable-Baselines3's."""
    return "data" in names and "policy.pth" in names


def read(model: Zip, context: ReadContext) -> PolicyDescription:
    """Return the policy in a zip, with the normalizer from the file that VecNormalize wrote."""
    _check_code(model)
    parts = _kind(model)(model, context)
    normalizer = _normalizer(model, context)
    if model.hindsight:
        context.notes.append(HINDSIGHT)
    context.notes += time_is_seen(context.path)
    of_network = parts.actor.width, len(parts.actor.output.bias)
    of_spaces = model.width, sum(model.actions.sizes)
    if of_network != of_spaces:
        raise ValueError(f"its network takes and gives {of_network} numbers, and its spaces have {of_spaces}")
    algorithm = next((algorithm for mark, algorithm in MARKS.items() if mark in model.data), "policy")
    return PolicyDescription(
        LIBRARY, str(model.data.get("version", "")), algorithm, parts.actor, model.actions, parts.squashed, parts.std,
        normalizer, parts.mean_clip, clips=model.actions.kind == "continuous" and not parts.squashed,
        groups=model.groups,
    )  # fmt: skip


def _check_code(model: Zip) -> None:
    """Refuse a class of the user's own: it may compute anything with the same tensors, such as another tanh."""
    classes = {"policy": model.policy_class, "features extractor": model.settings.get("features_extractor_class")}
    for part, cls in classes.items():
        ours = part == "features extractor" and model.standardizes
        theirs = isinstance(cls, GlobalName) and cls.text.startswith(HOSTS) and OWN.fullmatch(cls.last)
        if cls is not None and not (ours or theirs):
            raise CannotCopyError(f"its {part} is {_told(cls)}, and what that computes is not in the file")


def _told(cls: Any) -> str:
    """Return what to call a class that is not the library's: its name or, where it is pickled whole, whose it is."""
    return cls.text if isinstance(cls, GlobalName) else "a class or function of the script that trained it"


# The kinds ------------------------------------------------------------------------------------------------------------


def _kind(model: Zip) -> Callable[[Zip, ReadContext], Parts]:
    names = model.tensors
    foreign = [name for name in names if "features_extractor." in name or "sde_net" in name]
    if model.standardizes:
        foreign = [name for name in foreign if "features_extractor.normalizer." not in name]
    if any(name.startswith("lstm_") for name in names):
        raise CannotCopyError("the policy has a memory (an LSTM)")
    if foreign:
        raise CannotCopyError(f"the policy has layers of its own kind, such as {foreign[0]}")
    for mark, reader in KINDS.items():
        if any(name.startswith(mark) for name in names):
            return reader
    raise ValueError(f"it holds a policy of an unknown kind, {_class_name(model) or 'no class'}: {first_names(names)}")


def _on_policy(model: Zip, context: ReadContext) -> Parts:
    hidden = [*_maybe(model, "mlp_extractor.shared_net"), *_maybe(model, "mlp_extractor.policy_net")]
    output = linear_layer(model.tensors, "action_net")
    std = None
    if model.switches:
        output = _choices_of_two(output)
    elif model.actions.kind == "continuous":
        raw = model.tensors["log_std"]
        std = _noise(model, raw) if raw.ndim == 2 else Std("vector", finite_float32(raw, "log_std"))
    actor = make_perceptron(hidden, output, model.activation("tanh"))
    if _class_name(model).startswith("Maskable"):
        context.notes.append(MASKED)
    return Parts(actor, std, bool(model.settings.get("squash_output", False)))


def _choices_of_two(switches: Linear) -> Linear:
    """Return two logits for each switch: 0 for off, and its own for on."""
    weight = np.stack([np.zeros_like(switches.weight), switches.weight], axis=1)
    bias = np.stack([np.zeros_like(switches.bias), switches.bias], axis=1)
    return Linear(weight.reshape(-1, switches.weight.shape[1]), bias.reshape(-1))


def _soft(model: Zip, _: ReadContext) -> Parts:
    """Read SAC and TQC: squashed, with a std that depends on the state."""
    names = model.tensors
    if any("running_mean" in name for name in names if name.startswith("actor.")):
        raise CannotCopyError("the policy has batch normalization (CrossQ)")
    output = linear_layer(names, "actor.mu.0" if "actor.mu.0.weight" in names else "actor.mu")
    actor = make_perceptron(_maybe(model, "actor.latent_pi"), output, model.activation("relu"))
    if "actor.log_std" not in names:
        return Parts(actor, Std("head", linear_layer(names, "actor.log_std"), low=-20.0, high=2.0), squashed=True)
    clip = float(model.settings.get("clip_mean", 2.0))  # of gSDE alone
    return Parts(actor, _noise(model, names["actor.log_std"]), squashed=True, mean_clip=clip if clip > 0.0 else None)


def _deterministic(model: Zip, context: ReadContext) -> Parts:
    """Read TD3 and DDPG: the mean ends in tanh, and the std is the user's (of the action before tanh)."""
    actor = make_perceptron(_maybe(model, "actor.mu"), None, model.activation("relu"))
    return Parts(actor, context.std(model.actions.width), True)


def _searched(model: Zip, context: ReadContext) -> Parts:
    """Read ARS: no std either; a linear policy has no hidden layer, and sb3-contrib 1.x gave its layer no number."""
    squashed = bool(model.settings.get("squash_output", _class_name(model) != "ARSLinearPolicy"))
    if "action_net.weight" in model.tensors:
        layers = [HiddenLayer(linear_layer(model.tensors, "action_net"))]
    else:
        layers = sequential_layers(model.tensors, "action_net")
    actor = make_perceptron(layers, None, model.activation("relu"))
    if model.actions.kind == "discrete":
        return Parts(context.with_temperature(actor))
    return Parts(actor, context.std(model.actions.width), squashed)


def _values(model: Zip, context: ReadContext) -> Parts:
    return Parts(
        context.with_temperature(make_perceptron(_maybe(model, "q_net.q_net"), None, model.activation("relu")))
    )


def _quantiles(model: Zip, context: ReadContext) -> Parts:
    """Read QR-DQN: a value is the mean of its quantiles, which the last layer can take itself."""
    network = make_perceptron(_maybe(model, "quantile_net.quantile_net"), None, model.activation("relu"))
    choices = sum(model.actions.sizes)
    weight = network.output.weight.reshape(-1, choices, network.output.weight.shape[1]).mean(0, np.float64)
    bias = network.output.bias.reshape(-1, choices).mean(0, np.float64)
    output = Linear(weight.astype(np.float32), bias.astype(np.float32))
    return Parts(context.with_temperature(replace(network, output=output)))


KINDS: dict[str, Callable[[Zip, ReadContext], Parts]] = {  # by how the names of tensors begin; the order matters
    "quantile_net.quantile_net.": _quantiles,
    "q_net.q_net.": _values,
    "actor.latent_pi.": _soft,
    "actor.log_std": _soft,
    "actor.mu.": _deterministic,
    "value_net.": _on_policy,
    "action_net.": _searched,
}


def _noise(model: Zip, raw: Array) -> Std:
    """Read gSDE's std: the features' squares times a matrix of variances, and 1e-6."""
    matrix = finite_float32(np.broadcast_to(raw, (len(raw), model.actions.width)), "log_std")
    return Std("features", matrix, "expln" if model.settings.get("use_expln", False) else "exp", floor=1e-3)


def _maybe(model: Zip, prefix: str) -> list[HiddenLayer]:
    """Return the layers under a name, none where there are none: a policy may have no hidden layer of its own."""
    return sequential_layers(model.tensors, prefix) if tensors_under(model.tensors, prefix) else []


# The zip --------------------------------------------------------------------------------------------------------------


def open_model(content: bytes, where: str) -> Zip:
    """Read a zip's contents, whatever the options, and return them."""
    archive = open_zip(content, where)
    data = json.loads(read_zip_entry(archive, "data"))
    if "_stable_baselines3_version" in archive.namelist():
        data["version"] = read_zip_entry(archive, "_stable_baselines3_version")[:40].decode("ascii", "replace").strip()
    settings = _value(data, "policy_kwargs", where)
    action_space = _value(data, "action_space", where)
    return Zip(
        tensors=tensors_of(load(read_zip_entry(archive, "policy.pth"), f"policy.pth in {where}")),
        data=data,
        settings=settings if isinstance(settings, dict) else {},
        policy_class=_value(data, "policy_class", where),
        observations=observations_of(_value(data, "observation_space", where)),
        actions=actions_of(action_space),
        switches=has_switches(action_space),
    )


def _value(data: dict[str, Any], name: str, where: str) -> Any:
    """Return a setting: as it is, or out of its pickle."""
    value = data.get(name)
    if not isinstance(value, dict) or ":serialized:" not in value:
        return value
    return read_pickle(base64.b64decode(value[":serialized:"]), f"{name} in {where}")


def _class_name(model: Zip) -> str:
    return model.policy_class.last if isinstance(model.policy_class, GlobalName) else ""


# The normalizer -------------------------------------------------------------------------------------------------------


def _normalizer(model: Zip, context: ReadContext) -> Normalizer | None:
    """Return the normalizer of the file that the user names, or where VecNormalize's files lie."""
    if model.standardizes:
        context.check_no_statistics()
        return _inside(model)
    named = context.options.vecnormalize
    if named == "none":
        context.notes.append("observations are not normalized, as you asked for")
        return None
    if named is not None:
        return _in_file(model, context, Path(named))
    needed = _was_normalized(model)
    if needed is not False and (beside := find_statistics(context.path)) is not None:
        return _in_file(model, context, beside)
    if needed:
        remedy = "name their file with --vecnormalize (or none, where rewards alone were normalized)"
        raise UsageError(f"{context.path} was trained with VecNormalize, whose statistics are not beside it: {remedy}")
    if needed is None:
        context.notes.append("the file does not tell whether VecNormalize was used, and no file of its is beside it")
    return None


def _in_file(model: Zip, context: ReadContext, file: Path) -> Normalizer | None:
    """Return the normalizer in a file; refused where it was found and makes no sense of the model's observations."""
    keys = HER if model.hindsight else tuple(key for key, _ in model.groups)
    statistics = read_statistics(file, keys)
    check_width(model.width, statistics, file)
    is_named = context.options.vecnormalize is not None
    if statistics is not None and not is_named and "learning_starts" in model.data:
        raw, seen = (_value(model.data, name, name) for name in ("_last_original_obs", "_last_obs"))
        if not agree(statistics, keys, raw, seen):
            other = "is of another training or another time, by the last observation in the model"
            raise UsageError(f"{file} {other}: name the policy's own with --vecnormalize, or none")
    done = "normalized by" if statistics is not None else "not normalized, as it says in"
    context.notes.append(f"observations are {done} {file.name}")
    return statistics


def _inside(model: Zip) -> Normalizer:
    """Return the normalizer in a network that our adapter built."""
    mean, var, count = (model.tensors[f"features_extractor.normalizer.{name}"] for name in ("mean", "var", "count"))
    bound = model.settings["features_extractor_kwargs"]["bound"]
    return Normalizer(mean, (var + 1e-8) ** -0.5, None if bound is None else float(bound), float(count))


def _was_normalized(model: Zip) -> bool | None:
    """Return whether VecNormalize was used: the on-policy algorithms keep the observations before it only if it was.

    The others always keep them, so that their zips do not tell.
    """
    if "_last_original_obs" not in model.data or ("n_epochs" not in model.data and "gae_lambda" not in model.data):
        return None
    return model.data["_last_original_obs"] is not None
