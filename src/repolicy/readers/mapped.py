"""Checkpoints that a table of tensor names is enough to read: those of `layouts.py`, or a layout that the user gives.

Also guesses a layout for a checkpoint that has none of the known ones.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.readers.context import Limits, ReadContext, agent_settings, setting_pairs
from repolicy.readers.description import (
    Array,
    CannotCopyError,
    HiddenLayer,
    Normalizer,
    PolicyDescription,
    Std,
    UnknownSettingError,
)
from repolicy.readers.layouts import EXP_SIGMA_NOTE, LAYOUTS, TIANSHOU_CHOICE, TIANSHOU_TD3, Layout, parse_layout
from repolicy.readers.perceptrons import (
    Tensors,
    check_no_memory,
    finite_float32,
    first_names,
    make_normalizer,
    make_perceptron,
    named_layers,
    tensors_under,
)
from repolicy.readers.pickles import ObjectStub

MAX_VALUES, MAX_DEPTH = 100_000, 30  # limits of a file's nested values
MODULE_DICTS = ("_parameters", "_buffers", "_modules")  # not part of a tensor's name in a pickle of a whole module
RL_GAMES_LINKS = {"continuous_a2c_logstd": "exp", "continuous_a2c": "identity"}  # from sigma to the std, by model
MEAN_NAMES, COUNT_NAMES = ("mean", "running_mean", "_mean"), ("count", "current_count")
VARIANCE_NAMES = ("var", "running_var", "running_variance", "_var")
STD_NAMES = ("std", "running_std", "_std")


def matches(saved: Any) -> bool:
    """Return whether the checkpoint has one of the LAYOUTS."""
    return _find_layout(tensors_in(saved)) is not None


def read(saved: Any, context: ReadContext) -> PolicyDescription:
    """Read the policy by the user's --layout, or else by the first of the LAYOUTS that fits."""
    tensors = tensors_in(saved)
    if context.options.layout is not None:
        return _read_by_user_layout(tensors, parse_layout(context.options.layout), context)
    match = _find_layout(tensors)
    assert match is not None  # `matches` was asked before
    layout, root = match
    if layout is TIANSHOU_CHOICE and context.options.std is not None:  # choices have no std
        layout = TIANSHOU_TD3
    agent = agent_settings(context.path) if layout.library == "rl_games" else {}  # Isaac Lab writes them
    if agent and not layout.discrete:
        layout = _by_settings(layout, agent, dict(setting_pairs(context.path, "model")).get("name", ""))
    activation = context.activation(layout.activation, layout.library, agent.get("activation"))
    return _describe(tensors, layout, root, activation, context)


def _by_settings(layout: Layout, agent: dict[str, str], model: str) -> Layout:
    """Return rl_games' layout with the std of this model of its own; refuse what else may follow the last layer."""
    for key, number in (("mu_activation", "mean"), ("sigma_activation", "std")):
        if key in agent:
            raise UnknownSettingError(f"its {number} goes through {agent[key]}")
    if "min_sigma" in agent:
        raise UnknownSettingError(f"its std has a min_sigma, {agent['min_sigma']}")
    if not model:
        return layout
    if model not in RL_GAMES_LINKS:
        raise UnknownSettingError(f"its model is {model}, another distribution than a Gaussian")
    notes = tuple(note for note in layout.notes if note != EXP_SIGMA_NOTE)
    return replace(layout, link=RL_GAMES_LINKS[model], notes=notes)


def _read_by_user_layout(tensors: Tensors, layout: Layout, context: ReadContext) -> PolicyDescription:
    """Read the policy by a user's layout. It must name the activation, unless --file-activation does."""
    named = context.options.file_activation or layout.activation
    if not named:
        raise UsageError('--layout names no activation, and no file does: add "activation=elu", or another')
    context.options = replace(context.options, file_activation=named)
    if "+" in layout.actor:
        context.notes.append(f"between the parts {layout.actor} an activation is assumed")
    if not layout.discrete and "squashed" not in (context.options.layout or ""):
        has_std = layout.halves or layout.std or layout.log_std
        halves, remedy = ("", "") if has_std else (", nor log-stds in its second half", " or halves=yes")
        assumed = f"no tanh is assumed behind the last layer{halves}"
        context.notes.append(f"{assumed}: --layout says otherwise, by squashed=yes{remedy}")
    if layout.normalizer and math.isinf(layout.clip):
        context.notes.append("normalized observations are not clipped: if they were, add clip=5 to --layout")
    return _describe(tensors, layout, "", context.activation("", ""), context)


def tensors_in(saved: Any) -> dict[str, Array]:
    """Return all arrays and numbers in nested dicts, lists and object stubs, by their names joined with dots."""
    tensors = dict(itertools.islice(_walk(saved, "", MAX_DEPTH, set()), MAX_VALUES + 1))
    if len(tensors) > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values, and is no policy")
    return tensors


def _walk(value: Any, name: str, depth: int, visited: set[int]) -> Iterator[tuple[str, Array]]:
    """Yield the name and the array of each tensor in a nested value, down to a depth."""
    if isinstance(value, np.ndarray | np.generic | int | float):
        yield name, np.asarray(value)
        return
    if not depth or id(value) in visited or not isinstance(value, ObjectStub | dict | list | tuple):
        return
    visited.add(id(value))  # a small pickle can refer to the same part 2^depth times
    if isinstance(value, ObjectStub):  # of a module take the tensors, not its settings
        value = {key: value.state[key] for key in MODULE_DICTS if key in value.state} or value.state
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        part_name = name if key in MODULE_DICTS else f"{name}.{key}".removeprefix(".")
        yield from _walk(part, part_name, depth - 1, visited)


def _find_layout(tensors: Tensors) -> tuple[Layout, str] | None:
    """Return the first layout that fits, and the root before its names."""
    for layout in LAYOUTS:
        last_module = layout.actor.rpartition("+")[2]
        for suffix in (f"{last_module}.weight", f"{last_module}.0.weight"):
            roots = [name.removesuffix(suffix) for name in tensors if f".{name}".endswith(f".{suffix}")]
            root = min(roots, key=len, default=None)
            if root is not None and _fits(tensors, layout, root):
                return layout, root
    return None


def _fits(tensors: Tensors, layout: Layout, root: str) -> bool:
    """Return whether the std, the modules beside the actor, and the root are as the layout has them."""
    policy_names = [name.removeprefix(root) for name in tensors if name.startswith(root)]
    modules = tuple(f"{module}." for module in layout.modules)
    all_modules = {module for name in tensors for module in name.split(".")}
    is_later_part = any(part.isdigit() and int(part) for part in root.split("."))  # of a Sequential
    std = f"{root}{layout.log_std}"
    return (
        (not layout.log_std or std in tensors or bool(tensors_under(tensors, std)))
        and (not layout.companions or not all_modules.isdisjoint(layout.companions))
        and (not layout.scale or f"{root}{layout.scale}_scale" in tensors)
        and (not layout.modules or all(f"{name}.".startswith(modules) for name in policy_names))
        and not is_later_part
        and (not layout.roots or {*root.split(".")} <= {*layout.roots, ""})
    )


def _describe(tensors: Tensors, layout: Layout, root: str, activation: str, context: ReadContext) -> PolicyDescription:
    """Read the parts of the policy that a layout names below a root."""
    check_no_memory(name for name in tensors if not _has_word(name, NOT_ACTOR_WORDS))
    layers: list[HiddenLayer] = []
    for name in layout.actor.split("+"):
        part = named_layers(tensors, f"{root}{name.strip()}")
        if layout.library == "tianshou" and layers and part[1:] and activation != "relu":
            raise UnknownSettingError(
                f"its head has layers of relu, tianshou's default, and its other layers {activation}"
            )
        layers += part
    actor = make_perceptron(layers, None, activation)

    std = None
    if layout.halves:
        actor, raw = actor.split_output()
        raw = replace(raw, bias=raw.bias + np.float32(layout.shift))
        std = Std("head", raw, layout.link, layout.low, layout.high, layout.floor)
    elif layout.log_std or layout.std:
        std = _std(tensors, layout, root, len(actor.output.bias))
    elif layout.is_q_network:
        actor = context.with_temperature(actor)
    elif not layout.discrete:
        std = context.std(len(actor.output.bias))

    named = {"clip": 0.0 if math.isinf(layout.clip) else layout.clip, "epsilon": layout.epsilon}
    limits = Limits(**{name: value for name, value in named.items() if value})
    statistics = context.statistics(actor.width, _normalizer(tensors, layout, root), limits=limits)
    if layout.no_statistics_note and statistics is None:
        context.notes.append(layout.no_statistics_note)
    context.notes += layout.notes
    width = len(actor.output.bias)
    bounds = _bounds(tensors, f"{root}{layout.scale}", width) if layout.scale else ()
    actions = ActionSpace("discrete" if layout.discrete else "continuous", (width,), *bounds)
    library = layout.library or "a layout of its own"
    return PolicyDescription(
        library, "", layout.kind, actor, actions, squashed=layout.squashed, std=std, normalizer=statistics
    )


def _bounds(tensors: Tensors, name: str, width: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest action, from the scale and the bias that are applied after tanh."""
    scale, shift = (np.broadcast_to(tensors[f"{name}_{part}"].reshape(-1), width) for part in ("scale", "bias"))
    return tuple(map(float, shift - scale)), tuple(map(float, shift + scale))


def _std(tensors: Tensors, layout: Layout, root: str, width: int) -> Std:
    """Read the std of `width` actions: one tensor for all states, or a linear layer."""
    name = f"{root}{layout.log_std or layout.std}"
    link = layout.link if layout.log_std else "identity"
    if name in tensors:
        raw = finite_float32(tensors[name].reshape(-1), name)
        if link == "identity" and not np.all(raw > 0.0):
            raise UsageError(f"{name} has numbers that are not above 0, and is no std: is it log_std={name}?")
        if len(raw) == 1:
            raw = np.broadcast_to(raw, width)
        std, count = Std("vector", raw, link, layout.low, layout.high), len(raw)
    else:
        layers = named_layers(tensors, name)
        if len(layers) != 1:
            raise CannotCopyError(f"its std has a network of its own, {name}")
        head = layers[0].linear
        std, count = Std("head", head, link, layout.low, layout.high), len(head.bias)
    if count != width:
        raise ValueError(f"{name} is of {count} stds, and an action has {width} numbers")
    return std


def _normalizer(tensors: Tensors, layout: Layout, root: str) -> Normalizer | None:
    """Read the statistics of observations below the root, or at the top level of the checkpoint."""
    if not layout.normalizer:
        return None
    statistics = tensors_under(tensors, f"{root}{layout.normalizer}") or tensors_under(tensors, layout.normalizer)
    if not statistics:
        if layout.library:
            return None
        raise ValueError(f"it has no {layout.normalizer}: it holds {first_names(tensors)}")
    mean, variance, std, count = (
        next((statistics[name] for name in names if name in statistics), None)
        for names in (MEAN_NAMES, VARIANCE_NAMES, STD_NAMES, COUNT_NAMES)
    )
    if variance is not None:
        std = np.sqrt(variance.astype(np.float64) + layout.epsilon)
    elif layout.epsilon and std is not None:
        raise UsageError(f"{layout.normalizer} has a std and no variance, so that epsilon has no place: leave it out")
    if mean is None or std is None:
        raise ValueError(f"it has no mean and var, or std, in {layout.normalizer}: it holds {first_names(statistics)}")
    return make_normalizer(mean, std, layout.clip, 0.0 if count is None else float(count.item()))


# Suggesting a layout --------------------------------------------------------------------------------------------------

NOT_ACTOR_WORDS = ("critic", "value", "target", "_old", "optim", "teacher", "disc", "q1", "q2", "qf")
ACTOR_WORDS = ("actor", "policy", "pi", "mu", "mean", "student")
STD_WORDS = ("std", "sigma")
VALUES_NAMES = ("af", "q_net", "q_network", "qnet")  # modules of a DQN, the first RLlib's


def suggest_layout(saved: Any) -> tuple[str, str]:
    """Guess a --layout from the names and shapes of tensors, and say what to add to it if something holds.

    Both texts are empty where nothing looks like an actor.
    """
    tensors = {name: tensor for name, tensor in tensors_in(saved).items() if not _has_word(name, NOT_ACTOR_WORDS)}
    modules = _linear_weights(tensors)
    actor = _likely_actor(modules)
    if not actor or any("weight_ih" in name or tensor.ndim > 2 for name, tensor in tensors.items()):
        return "", ""  # a memory or convolutions
    inputs, width = modules[actor[0]][0].shape[1], len(modules[actor[-1]][-1])

    # The normalizer has a mean of the observations' size; the std is a tensor or a layer of the actions' size.
    normalizers, stds = [], dict[str, Array]()
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        if module and last in MEAN_NAMES and tensor.size == inputs:
            normalizers.append(module)
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        if _has_word(last, STD_WORDS) and tensor.size == width and module not in normalizers:
            stds[name] = tensor
    for name, weights in modules.items():
        if _has_word(name, STD_WORDS) and len(weights[-1]) == width:
            stds[name] = weights[-1][0]

    words, addition = ["actor=" + "+".join(actor)], ""
    if stds:
        name, values = next(iter(stds.items()))
        is_log = "log" in name.lower() or "learned_stddev" in name or bool((values <= 0.0).any())  # Sample Factory's
        words.append(f"log_std={name}" if is_log else f"std={name}")
    elif not {*VALUES_NAMES}.isdisjoint(part for name in actor for part in name.lower().split(".")):
        words.append("discrete=yes")
    elif width % 2 == 0:
        addition = " (with halves=yes, too, if the second half of the last layer are log-stds)"
    words.append("activation=NAME")
    words += [f"normalizer={name}" for name in normalizers[:1]]
    if any("running_mean_std" in name for name in normalizers[:1]):  # the name in Sample Factory and rl_games
        words += ["epsilon=1e-5", "clip=5"]
    return ", ".join(words), addition


def _likely_actor(modules: dict[str, list[Array]]) -> list[str]:
    """Return the modules that may form the actor: each takes as many inputs as the one before has outputs."""
    names = [name for name in modules if not _has_word(name, STD_WORDS)]
    named = [name for name in names if {*name.lower().split(".")} & {*ACTOR_WORDS}] or names
    actor = named[:1]
    for name in named[1:]:
        if modules[name][0].shape[1] == len(modules[actor[-1]][-1]):
            actor.append(name)
    for name in reversed(names[: names.index(actor[0])] if actor else []):  # layers below: fc1 and fc2 before mu
        if len(modules[name][-1]) == modules[actor[0]][0].shape[1]:
            actor.insert(0, name)
    return actor


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name.lower() for word in words)


def _linear_weights(tensors: Tensors) -> dict[str, list[Array]]:
    """Return the weights of linear layers by module; those of a Sequential form one list."""
    modules: dict[str, list[Array]] = {}
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        parent, _, number = module.rpartition(".")
        if last == "weight" and module and tensor.ndim == 2:
            modules.setdefault(parent if number.isdigit() and parent else module, []).append(tensor)
    return modules
