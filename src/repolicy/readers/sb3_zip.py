"""Stable-Baselines3's and sb3-contrib's zips, of all versions since 1.0.

A zip holds `data` (JSON, with base64 pickles for values that JSON cannot hold), `policy.pth` (a state dict) and the
version. The names of the tensors tell the kind of policy. Its activation and its spaces are in the pickles.
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
from repolicy.readers.context import ReadContext, find_statistics
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
    actions_of,
    canonical_activation,
    check_no_memory,
    finite_float32,
    first_names,
    linear_layer,
    make_perceptron,
    named_layers,
    observations_of,
    sequential_layers,
    tensors_of,
    tensors_under,
)
from repolicy.readers.pickles import GlobalName, ObjectStub, load, open_zip, read_pickle, read_zip_entry

LIBRARY = "Stable-Baselines3"
LIBRARY_MODULES = ("stable_baselines3.", "sb3_contrib.")
LIBRARY_CLASSES = re.compile(  # other class names in these modules belong to a fork
    r"(|Maskable|Recurrent)(|MultiInput)ActorCritic(|Cnn)Policy|(ARS|ARSLinear|CrossQ|DQN|QRDQN|SAC|TD3|TQC)Policy|"
    r"(Cnn|MultiInput)Policy|(Flatten|Combined)Extractor|NatureCNN"
)
STANDARDIZED = (
    "repolicy.hosts.sb3_policies.Standardized"  # features extractor of the models that Repolicy's host builds
)
MASKED_NOTE = "it was trained with action masks, which this copy does not apply"
ALGORITHMS = {  # by a setting that only this algorithm has; the first that fits
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
class SavedModel:
    """The contents of a zip."""

    tensors: dict[str, Array]  # the policy's state dict
    data: dict[str, Any]  # the JSON: attributes of the algorithm
    settings: dict[str, Any]  # policy_kwargs
    policy_class: Any
    observations: tuple[tuple[str, int], ...]  # (key, size) of each part; one part with an empty key if it is no Dict
    actions: ActionSpace

    @property
    def width(self) -> int:
        """Number of observations."""
        return sum(size for _, size in self.observations)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """The parts of a Dict observation; empty for any other observation."""
        return self.observations if self.observations[0][0] else ()

    @property
    def has_normalizer(self) -> bool:
        """Whether the network normalizes observations itself, as in models that Repolicy's host built."""
        extractor = self.settings.get("features_extractor_class")
        return isinstance(extractor, GlobalName) and extractor.text == STANDARDIZED

    @property
    def class_name(self) -> str:
        """Name of the policy's class, without its module; empty where the class was pickled by value."""
        return self.policy_class.last if isinstance(self.policy_class, GlobalName) else ""

    def activation(self, default: str) -> str:
        activation = self.settings.get("activation_fn")
        if activation is None:
            return default
        is_torch = isinstance(activation, GlobalName) and activation.text.startswith("torch.nn.")
        return canonical_activation(activation.last if is_torch else _foreign_name(activation))

    def layers(self, prefix: str) -> list[HiddenLayer]:
        """Return the layers of a Sequential; empty where it has none, as a policy may have no hidden layer."""
        return sequential_layers(self.tensors, prefix) if tensors_under(self.tensors, prefix) else []


class Parts(NamedTuple):
    """The parts of a policy that differ from algorithm to algorithm."""

    actor: Perceptron
    std: Std | None = None
    squashed: bool = False
    mean_clip: float | None = None


def matches(names: list[str]) -> bool:
    """Return whether a zip with these entries is Stable-Baselines3's."""
    return "data" in names and "policy.pth" in names


def open_model(content: bytes, where: str) -> SavedModel:
    """Parse a zip. No option of the user changes the result."""
    archive = open_zip(content, where)
    data = json.loads(read_zip_entry(archive, "data"))
    if "_stable_baselines3_version" in archive.namelist():
        version = read_zip_entry(archive, "_stable_baselines3_version")
        data["version"] = version[:40].decode("ascii", "replace").strip()
    settings = _unpickled_value(data, "policy_kwargs", where)
    return SavedModel(
        tensors=tensors_of(load(read_zip_entry(archive, "policy.pth"), f"policy.pth in {where}")),
        data=data,
        settings=settings if isinstance(settings, dict) else {},
        policy_class=_unpickled_value(data, "policy_class", where),
        observations=observations_of(_unpickled_value(data, "observation_space", where)),
        actions=actions_of(_unpickled_value(data, "action_space", where)),
    )


def _unpickled_value(data: dict[str, Any], name: str, where: str) -> Any:
    """Return a value of the JSON, unpickled where it is a pickle."""
    value = data.get(name)
    if not isinstance(value, dict) or ":serialized:" not in value:
        return value
    return read_pickle(base64.b64decode(value[":serialized:"]), f"{name} in {where}")


def read(model: SavedModel, context: ReadContext) -> PolicyDescription:
    """Read the policy in a zip, with the normalizer that VecNormalize wrote to another file."""
    _check_classes(model)
    actor, std, squashed, mean_clip = _find_parts_reader(model)(model, context)
    normalizer = _normalizer(model, context)
    network_sizes = actor.width, len(actor.output.bias)
    space_sizes = model.width, sum(model.actions.sizes)
    if network_sizes != space_sizes:
        raise ValueError(f"its network takes and gives {network_sizes} numbers, and its spaces have {space_sizes}")
    algorithm = next((algorithm for setting, algorithm in ALGORITHMS.items() if setting in model.data), "policy")
    clips = model.actions.kind == "continuous" and not squashed
    return PolicyDescription(
        LIBRARY, str(model.data.get("version", "")), algorithm, actor, model.actions, squashed=squashed, std=std,
        normalizer=normalizer, mean_clip=mean_clip, clips=clips, groups=model.groups,
    )  # fmt: skip


def _check_classes(model: SavedModel) -> None:
    """Refuse a class of the user's own: with the same tensors it may compute something else, such as another tanh."""
    classes = {"policy": model.policy_class, "features extractor": model.settings.get("features_extractor_class")}
    for part, cls in classes.items():
        if cls is None or (part == "features extractor" and model.has_normalizer):
            continue
        is_library_module = isinstance(cls, GlobalName) and cls.text.startswith(LIBRARY_MODULES)
        if not is_library_module or not LIBRARY_CLASSES.fullmatch(cls.last):
            raise CannotCopyError(f"its {part} is {_foreign_name(cls)}, and what that computes is not in the file")


def _foreign_name(cls: Any) -> str:
    """Return what a message calls a class of another library: its name, unless it was pickled by value."""
    if isinstance(cls, ObjectStub) and cls.last == "partial":
        return "a functools.partial, whose arguments are not read"
    return cls.text if isinstance(cls, GlobalName) else "a class or function of the script that trained it"


# Parts of each kind of policy -----------------------------------------------------------------------------------------


def _find_parts_reader(model: SavedModel) -> Callable[[SavedModel, ReadContext], Parts]:
    """Return the function that reads this kind of policy, by the names of its tensors."""
    names = model.tensors
    foreign = [name for name in names if "features_extractor." in name or "sde_net" in name]
    if model.has_normalizer:
        foreign = [name for name in foreign if "features_extractor.normalizer." not in name]
    check_no_memory(names)
    if foreign:
        raise CannotCopyError(f"the policy has layers of its own kind, such as {foreign[0]}")
    for prefix, read_parts in PARTS_READERS.items():
        if any(name.startswith(prefix) for name in names):
            return read_parts
    raise ValueError(f"it holds a policy of an unknown kind, {model.class_name or 'no class'}: {first_names(names)}")


def _actor_critic_parts(model: SavedModel, context: ReadContext) -> Parts:
    """Read A2C, PPO, TRPO and their variants."""
    hidden = [*model.layers("mlp_extractor.shared_net"), *model.layers("mlp_extractor.policy_net")]
    output = linear_layer(model.tensors, "action_net")
    std = None
    if model.actions.kind == "continuous":
        raw = model.tensors["log_std"]
        std = _gsde_std(model, raw) if raw.ndim == 2 else Std("vector", finite_float32(raw, "log_std"))
    elif {*model.actions.sizes} == {2} and len(output.bias) == model.actions.width:  # MaskablePPO has both logits
        output = _switch_logits(output)
    actor = make_perceptron(hidden, output, model.activation("tanh"))
    if model.class_name.startswith("Maskable"):
        context.notes.append(MASKED_NOTE)
    return Parts(actor, std, squashed=bool(model.settings.get("squash_output", False)))


def _switch_logits(switches: Linear) -> Linear:
    """Return a layer of two logits for each switch: 0 for off, and the switch's own logit for on."""
    weight = np.stack([np.zeros_like(switches.weight), switches.weight], axis=1)
    bias = np.stack([np.zeros_like(switches.bias), switches.bias], axis=1)
    return Linear(weight.reshape(-1, switches.weight.shape[1]), bias.reshape(-1))


def _sac_parts(model: SavedModel, _: ReadContext) -> Parts:
    """Read SAC and TQC: squashed, with a std that depends on the state."""
    names = model.tensors
    [output] = (layer.linear for layer in named_layers(names, "actor.mu"))
    actor = make_perceptron(model.layers("actor.latent_pi"), output, model.activation("relu"))
    if "actor.log_std" not in names:
        return Parts(actor, Std("head", linear_layer(names, "actor.log_std"), low=-20.0, high=2.0), squashed=True)
    clip = float(model.settings.get("clip_mean", 2.0))  # with gSDE only
    std = _gsde_std(model, names["actor.log_std"])
    return Parts(actor, std, squashed=True, mean_clip=clip if clip > 0.0 else None)


def _gsde_std(model: SavedModel, raw: Array) -> Std:
    """Read gSDE's std: the variance is the squared features times a matrix of variances, plus 1e-6."""
    matrix = finite_float32(np.broadcast_to(raw, (len(raw), model.actions.width)), "log_std")
    return Std("features", matrix, "expln" if model.settings.get("use_expln", False) else "exp", floor=1e-3)


def _td3_parts(model: SavedModel, context: ReadContext) -> Parts:
    """Read TD3 and DDPG: tanh follows the mean, and the user gives the std of the action before tanh."""
    actor = make_perceptron(model.layers("actor.mu"), None, model.activation("relu"))
    return Parts(actor, context.std(model.actions.width), squashed=True)


def _ars_parts(model: SavedModel, context: ReadContext) -> Parts:
    """Read ARS: the user gives the std. A linear policy of sb3-contrib 1.x names its layer without a number."""
    squashed = bool(model.settings.get("squash_output", model.class_name != "ARSLinearPolicy"))
    actor = make_perceptron(named_layers(model.tensors, "action_net"), None, model.activation("relu"))
    if model.actions.kind == "discrete":
        return Parts(context.with_temperature(actor))
    return Parts(actor, context.std(model.actions.width), squashed=squashed)


def _dqn_parts(model: SavedModel, context: ReadContext) -> Parts:
    network = make_perceptron(model.layers("q_net.q_net"), None, model.activation("relu"))
    return Parts(context.with_temperature(network))


def _qrdqn_parts(model: SavedModel, context: ReadContext) -> Parts:
    """Read QR-DQN: a Q-value is the mean of its quantiles, so the last layer is averaged over the quantiles."""
    network = make_perceptron(model.layers("quantile_net.quantile_net"), None, model.activation("relu"))
    choices = sum(model.actions.sizes)
    weight = network.output.weight.reshape(-1, choices, network.output.weight.shape[1]).mean(0, np.float64)
    bias = network.output.bias.reshape(-1, choices).mean(0, np.float64)
    output = Linear(weight.astype(np.float32), bias.astype(np.float32))
    return Parts(context.with_temperature(replace(network, output=output)))


PARTS_READERS: dict[str, Callable[[SavedModel, ReadContext], Parts]] = {  # by a prefix of tensor names, in this order
    "quantile_net.quantile_net.": _qrdqn_parts,
    "q_net.q_net.": _dqn_parts,
    "actor.latent_pi.": _sac_parts,
    "actor.log_std": _sac_parts,
    "actor.mu.": _td3_parts,
    "value_net.": _actor_critic_parts,
    "action_net.": _ars_parts,
}


# The normalizer -------------------------------------------------------------------------------------------------------


def _normalizer(model: SavedModel, context: ReadContext) -> Normalizer | None:
    """Return the normalizer in the network, in the file that the user names, or in a usual place of VecNormalize's."""
    if model.has_normalizer:
        context.check_no_statistics()
        return _network_normalizer(model)
    keys = tuple(key for key, _ in model.groups)
    if context.options.vecnormalize is not None:
        return context.statistics(model.width, None, keys)
    was_normalized = _was_normalized(model)
    found = None if was_normalized is False else find_statistics(context.path)
    if found is not None:
        statistics = context.statistics_in(found, model.width, keys)
        _check_agreement(model, statistics, found)
        return statistics
    if was_normalized:
        remedy = "name their file with --vecnormalize (or none, where rewards alone were normalized)"
        raise UsageError(f"{context.path} was trained with VecNormalize, whose statistics are not beside it: {remedy}")
    if was_normalized is None:
        context.notes.append("the file does not tell whether VecNormalize was used, and no file of its is beside it")
    return None


TOLERANCE = 0.1  # in stds; statistics move by less after the last step of their own training


def _check_agreement(model: SavedModel, statistics: Normalizer | None, file: Path) -> None:
    """Raise unless statistics that the user did not name explain the last observations of an off-policy model."""
    raw, normalized = (_unpickled_value(model.data, name, name) for name in ("_last_original_obs", "_last_obs"))
    is_known = "learning_starts" in model.data and isinstance(raw, np.ndarray) and isinstance(normalized, np.ndarray)
    if statistics is None or not is_known:  # the parts of a Dict are not compared
        return
    bound = statistics.clip or np.inf
    expected = np.clip((raw.reshape(-1, model.width) - statistics.shift) * statistics.scale, -bound, bound)
    if np.abs(expected - normalized.reshape(-1, model.width)).max() >= TOLERANCE:
        problem = "is of another training or another time, by the last observation in the model"
        raise UsageError(f"{file} {problem}: name the policy's own with --vecnormalize, or none")


def _network_normalizer(model: SavedModel) -> Normalizer:
    """Return the normalizer in a network that Repolicy's host built."""
    mean, var, count = (model.tensors[f"features_extractor.normalizer.{name}"] for name in ("mean", "var", "count"))
    bound = model.settings["features_extractor_kwargs"]["bound"]
    return Normalizer(mean, (var + 1e-8) ** -0.5, None if bound is None else float(bound), float(count))


def _was_normalized(model: SavedModel) -> bool | None:
    """Return whether VecNormalize was used; None where the zip does not tell.

    On-policy algorithms store the original observations only with VecNormalize; off-policy algorithms always do.
    """
    if "_last_original_obs" not in model.data or ("n_epochs" not in model.data and "gae_lambda" not in model.data):
        return None
    return model.data["_last_original_obs"] is not None
