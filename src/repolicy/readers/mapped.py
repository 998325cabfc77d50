"""Policies by a mapping from parts to names of tensors: CleanRL, TorchRL, rl_games, tianshou, or a layout of a user's.

A layout is a row of data; what is done with the parts is the same for all. Its names are those of nested state dicts,
joined by dots, and may stand below others (`model.`), which all of a library's own then share.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.readers.context import ReadContext
from repolicy.readers.description import Array, CannotCopyError, HiddenLayer, Normalizer, PolicyDescription, Std
from repolicy.readers.perceptrons import (
    Tensors,
    finite_float32,
    first_names,
    linear_layer,
    make_normalizer,
    make_perceptron,
    sequential_layers,
    tensors_under,
)
from repolicy.readers.pickles import ObjectStub

MOST, DEEPEST = 100_000, 30  # of values in a file, and how deep they may lie
NO_NAMES = ("_parameters", "_buffers", "_modules")  # between a module and its own, in a pickle of a whole module
MEANS, COUNTS = ("mean", "running_mean", "_mean"), ("count", "current_count")
VARIANCES = ("var", "running_var", "running_variance", "_var")
DEVIATIONS = ("std", "running_std", "_std")
MEMORIES = ("rnn", "a_rnn", "nn", "lstm", "gru", "memory")
ASSUMED = (
    "the file does not say whether the mean goes through a function after its last layer, such as tanh, and not by how "
    "much the environment scales actions: neither is assumed"
)
EXP_SIGMA = "the std is taken as exp(sigma), which only continuous_a2c_logstd without a min_sigma has"
ALONE = (
    "without its critics a policy of SAC, TD3 or DDPG looks like this one: if it is such, save the algorithm's "
    "state_dict(), or say squashed=yes by --layout"
)
UNCLIPPED = "CleanRL's script clips actions to the environment's bounds, which are not in the file: this copy does not"
UNSEEN = (
    "CleanRL's files hold no statistics of observations, which its scripts for continuous actions normalize (clipped "
    "to 10): without them (--vecnormalize FILE.npz with mean and var) the policy acts badly"
)
TANH_NORMAL = (
    "the file does not say the distribution: TanhNormal between -1 and 1 is assumed, without tanh_loc and with the "
    "scale of NormalParamExtractor where the last layer gives one; --layout says otherwise"
)
LOGITS = "the file holds no std, so its outputs are taken as the logits of one choice"


@dataclass(frozen=True)
class Layout:
    """Which names stand for what. Those with a default need not be there."""

    actor: str  # the layers that give the mean, or logits; several names, joined by +, follow each other
    log_std: str = ""  # a tensor, or a layer on the values of the last hidden layer
    std: str = ""  # the same of the std itself
    halves: bool = False  # the last layer gives the means, and then as many log-stds
    normalizer: str = ""  # what holds the mean and the variance, or the std, of observations
    activation: str = ""
    discrete: bool = False  # one choice
    squashed: bool = False  # tanh, after the noise
    low: float = -math.inf  # within which the raw numbers of the std are kept
    high: float = math.inf
    epsilon: float = 0.0  # beside the variance of observations, under the root
    clip: float = math.inf  # of normalized observations
    # What follows is a library's own, and nothing that a user names.
    library: str = ""
    kind: str = "policy"
    beside: tuple[str, ...] = ()  # modules of which one stands beside the actor
    modules: tuple[str, ...] = ()  # all that a policy has; with another, it is somebody else's
    roots: tuple[str, ...] = ()  # all that may stand before its names
    certain: bool = False  # whether all of its policies have this activation
    values: bool = False  # the outputs are values of actions
    link: str = "exp"  # from the raw numbers of log_std to the std
    shift: float = 0.0  # of the raw numbers that are half of the last layer
    floor: float = 0.0  # of the std
    scale: str = ""  # which tensors, NAME_scale and NAME_bias, take a squashed action to its bounds
    unseen: str = ""  # a sentence for a file without its observations' statistics
    notes: tuple[str, ...] = ()


CLEAN = Layout(
    "actor_mean", "actor_logstd", activation="tanh", library="CleanRL", kind="PPO", certain=True,
    modules=("actor_mean", "actor_logstd", "critic"), notes=(UNCLIPPED,), unseen=UNSEEN,
    roots=("model_weights", "agent", "model", "state_dict", "0", "_orig_mod", "module"),  # the last two are PyTorch's
)  # fmt: skip
VALUES = Layout(
    "network", activation="relu", library="CleanRL", kind="DQN", certain=True, discrete=True, values=True,
    modules=("network",), roots=CLEAN.roots,
)  # fmt: skip
TD3 = Layout(
    "fc1+fc2+fc_mu", activation="relu", library="CleanRL", kind="TD3 or DDPG", certain=True, squashed=True,
    scale="action", modules=("fc1", "fc2", "fc_mu", "action_scale", "action_bias"), roots=CLEAN.roots,
)  # fmt: skip
SAC = replace(
    TD3, actor="fc1+fc2+fc_mean", log_std="fc_logstd", low=-5.0, high=2.0, link="exp_tanh", kind="SAC",
    modules=("fc1", "fc2", "fc_mean", "fc_logstd", "action_scale", "action_bias"),
)  # fmt: skip
TORCHRL = Layout(
    "module.0.module.0", "module.0.module.1.state_independent_scale", activation="tanh", squashed=True,
    library="TorchRL", modules=("module",), notes=(TANH_NORMAL,),
)  # fmt: skip
SCALES = replace(TORCHRL, log_std="", halves=True, link="softplus", shift=math.log(math.expm1(0.99)), floor=0.01)
GAMES = Layout(
    "a2c_network.actor_mlp+a2c_network.mu", "a2c_network.sigma", normalizer="running_mean_std", activation="elu",
    epsilon=1e-5, clip=5.0, library="rl_games", kind="PPO", notes=(ASSUMED, EXP_SIGMA),
)  # fmt: skip
TIANSHOU = Layout(
    "actor.preprocess.model.model+actor.mu.model", "actor.sigma_param", normalizer="obs_rms", activation="tanh",
    epsilon=float(np.finfo(np.float32).eps), clip=10.0, library="tianshou", kind="PPO", notes=(ASSUMED,),
)  # fmt: skip
HEAD = replace(TIANSHOU, log_std="actor.sigma.model", low=-20.0, high=2.0)
LAST = replace(TIANSHOU, actor="actor.preprocess.model.model+actor.last.model", log_std="", activation="relu")
LAYOUTS = (
    CLEAN,
    SAC,
    TD3,
    replace(VALUES, actor="actor", activation="tanh", kind="PPO", values=False, modules=("actor", "critic"),
            beside=("critic",), notes=(LOGITS,)),
    VALUES,
    TORCHRL,
    replace(SCALES, actor="module.0.module"),
    SCALES,
    GAMES,
    replace(GAMES, actor="a2c_network.actor_mlp+a2c_network.logits", log_std="", discrete=True, notes=()),
    TIANSHOU,
    replace(HEAD, kind="SAC", squashed=True, activation="relu", beside=("critic_old", "critic1_old", "critics_old")),
    replace(HEAD, notes=(ASSUMED, ALONE)),
    replace(LAST, kind="TD3 or DDPG", squashed=True, beside=("actor_old",)),
    replace(LAST, discrete=True, notes=(ALONE,)),
)  # fmt: skip
BY_USER: dict[str, Any] = {
    field.name: field.type for field in itertools.takewhile(lambda field: field.name != "library", fields(Layout))
}


def matches(saved: Any) -> bool:
    """Return whether it is of a library's layout that is known here."""
    return _known(tensors_in(saved)) is not None


def read(saved: Any, context: ReadContext) -> PolicyDescription:
    """Return the policy, by the user's layout where one is given, or by a library's own."""
    tensors = tensors_in(saved)
    if context.options.layout is None:
        known = _known(tensors)
        assert known is not None
        layout, root = known
    else:
        layout, root = of_text(context.options.layout), ""
    return _described(tensors, layout, root, context)


def of_text(text: str) -> Layout:
    """Return a user's layout, such as `actor=model.actor, log_std=model.logstd, activation=elu, normalizer=obs_rms`."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value or name not in BY_USER or name in values:
            example = '"actor=NAME, log_std=NAME, activation=elu"'
            raise UsageError(f"--layout has {part.strip()!r}; it must be {example}, of {', '.join(BY_USER)}, each once")
        kind = BY_USER[name]
        try:
            values[name] = {"yes": True, "no": False}[value] if kind is bool else kind(value)
        except (ValueError, KeyError):
            takes = "yes or no" if kind is bool else "a number"
            raise UsageError(f"--layout has {part.strip()!r}; it takes {takes}") from None
    if "actor" not in values or len(values.keys() & {"std", "log_std", "halves", "discrete"}) > 1:
        one = "no more than one of std=NAME, log_std=NAME, halves=yes and discrete=yes"
        raise UsageError(f"--layout needs actor=NAME, and {one}")
    layout = Layout(**values)
    if not (layout.low < layout.high and layout.clip > 0.0 and layout.epsilon >= 0.0):
        raise UsageError("--layout has numbers that cannot be: low must be below high, and clip above 0")
    return layout


def tensors_in(saved: Any) -> dict[str, Array]:
    """Return all arrays and numbers of nested dicts, lists and shells of objects, by their names joined with dots."""
    found = dict(itertools.islice(_named(saved, "", DEEPEST, set()), MOST + 1))
    if len(found) > MOST:
        raise ValueError(f"it holds more than {MOST:,} values, and is no policy")
    return found


def _named(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Array]]:
    if isinstance(value, np.ndarray | np.generic | int | float):
        yield name, np.asarray(value)
    elif depth and id(value) not in seen and isinstance(value, ObjectStub | dict | list | tuple):
        seen.add(id(value))  # a few bytes can hold one part 2^depth times
        if isinstance(value, ObjectStub):  # of a module, not its settings
            value = {key: value.state[key] for key in NO_NAMES if key in value.state} or value.state
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            where = name if key in NO_NAMES else f"{name}.{key}".removeprefix(".")
            yield from _named(part, where, depth - 1, seen)


def _known(tensors: Tensors) -> tuple[Layout, str] | None:
    """Return the first layout whose parts are all there, and what stands before their names."""
    for layout in LAYOUTS:
        last = layout.actor.rpartition("+")[2]
        for end in (f"{last}.weight", f"{last}.0.weight"):
            roots = [name.removesuffix(end) for name in tensors if name == end or name.endswith(f".{end}")]
            if roots and _fits(tensors, layout, root := min(roots, key=len)):
                return layout, root
    return None


def _fits(tensors: Tensors, layout: Layout, root: str) -> bool:
    own = {name.removeprefix(root).partition(".")[0] for name in tensors if name.startswith(root)}
    everywhere = {module for name in tensors for module in name.split(".")}
    std = f"{root}{layout.log_std}"
    return (
        (not layout.log_std or std in tensors or bool(tensors_under(tensors, std)))
        and (not layout.beside or not everywhere.isdisjoint(layout.beside))
        and (not layout.modules or own <= {*layout.modules})
        and (not layout.roots or {*root.split(".")} <= {*layout.roots, ""})
    )


def _described(tensors: Tensors, layout: Layout, root: str, context: ReadContext) -> PolicyDescription:
    if layout.library:
        for name in tensors:
            if {*name.removeprefix(root).split(".")[:-1]} & {*MEMORIES}:
                raise CannotCopyError(f"the policy has a memory ({name})")
    else:  # the user's layout names the activation as an option would
        named = context.options.file_activation or layout.activation
        if not named:
            raise UsageError('--layout names no activation, and no file does: add "activation=elu", or another')
        context.options = replace(context.options, file_activation=named)
    activation = context.activation(layout.activation, layout.library, layout.activation if layout.certain else None)
    layers = [layer for name in layout.actor.split("+") for layer in _layers(tensors, f"{root}{name.strip()}")]
    actor = make_perceptron(layers, None, activation)
    if "+" in layout.actor and not layout.library:
        context.notes.append(f"between the parts {layout.actor} an activation is assumed")

    std = None
    if layout.halves:
        actor, raw = actor.split_output()
        raw = replace(raw, bias=raw.bias + np.float32(layout.shift))
        std = Std("head", raw, layout.link, layout.low, layout.high, layout.floor)
    elif layout.log_std or layout.std:
        std = _std(tensors, layout, root, len(actor.output.bias))
    elif layout.values:
        actor = context.with_temperature(actor)
    elif not layout.discrete:
        std = context.std(len(actor.output.bias))
    statistics = context.statistics(actor.width, _normalizer(tensors, layout, root))
    if layout.unseen and statistics is None:
        context.notes.append(layout.unseen)
    context.notes += layout.notes
    width = len(actor.output.bias)
    bounds = _bounds(tensors, f"{root}{layout.scale}", width) if layout.scale else ()
    actions = ActionSpace("discrete" if layout.discrete else "continuous", (width,), *bounds)
    library = layout.library or "a layout of its own"
    return PolicyDescription(library, "", layout.kind, actor, actions, layout.squashed, std, statistics)


def _bounds(tensors: Tensors, name: str, width: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest actions, which tanh is scaled and shifted to."""
    scale, shift = (np.broadcast_to(tensors[f"{name}_{part}"].reshape(-1), width) for part in ("scale", "bias"))
    return tuple(map(float, shift - scale)), tuple(map(float, shift + scale))


def _layers(tensors: Tensors, name: str) -> list[HiddenLayer]:
    return (
        [HiddenLayer(linear_layer(tensors, name))] if f"{name}.weight" in tensors else sequential_layers(tensors, name)
    )


def _std(tensors: Tensors, layout: Layout, root: str, width: int) -> Std:
    """Return one for all states, or a layer of its own."""
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
        layers = _layers(tensors, name)
        if len(layers) != 1:
            raise CannotCopyError(f"its std has a network of its own, {name}")
        head = layers[0].linear
        std, count = Std("head", head, link, layout.low, layout.high), len(head.bias)
    if count != width:
        raise ValueError(f"{name} is of {count} stds, and an action has {width} numbers")
    return std


def _normalizer(tensors: Tensors, layout: Layout, root: str) -> Normalizer | None:
    """Return the statistics beside the network, or beside the state dict that holds it."""
    if not layout.normalizer:
        return None
    inside = tensors_under(tensors, f"{root}{layout.normalizer}") or tensors_under(tensors, layout.normalizer)
    if not inside:
        if layout.library:
            return None
        raise ValueError(f"it has no {layout.normalizer}: it holds {first_names(tensors)}")
    mean, variance, deviation, count = (_first(inside, names) for names in (MEANS, VARIANCES, DEVIATIONS, COUNTS))
    if variance is not None:
        deviation = np.sqrt(variance.astype(np.float64) + layout.epsilon)
    elif layout.epsilon and deviation is not None:
        raise UsageError(f"{layout.normalizer} has a std and no variance, so that epsilon has no place: leave it out")
    if mean is None or deviation is None:
        raise ValueError(f"it has no mean and var, or std, in {layout.normalizer}: it holds {first_names(inside)}")
    clip = None if math.isinf(layout.clip) else layout.clip
    return make_normalizer(mean, deviation, clip, 0.0 if count is None else float(count))


def _first(inside: Tensors, names: tuple[str, ...]) -> Array | None:
    return next((inside[name] for name in names if name in inside), None)


# What to try ----------------------------------------------------------------------------------------------------------

NOT_ACTORS = ("critic", "value", "target", "_old", "optim", "teacher", "disc", "q1", "q2", "qf")
ACTORS = ("actor", "policy", "pi", "mu", "mean", "student")
WIDTHS = ("std", "sigma")
RECURRENT = ("weight_ih", "weight_hh")


def suggest_layout(saved: Any) -> str:
    """Return a layout to try, by the names and shapes of tensors; nothing where none of them looks like an actor."""
    tensors = {name: each for name, each in tensors_in(saved).items() if not _has(name, NOT_ACTORS)}
    modules = _modules(tensors)
    actor = _likely_actor(modules)
    if not actor or any(_has(name, RECURRENT) for name in tensors):
        return ""
    inputs, width = modules[actor[0]][0].shape[1], len(modules[actor[-1]][-1])
    parted = {name: name.rpartition(".") for name in tensors}
    normalizers = [
        module
        for name, (module, _, last) in parted.items()
        if module and last in MEANS and tensors[name].size == inputs
    ]
    stds = {
        name: tensors[name]
        for name, (module, _, last) in parted.items()
        if _has(last, WIDTHS) and tensors[name].size == width and module not in normalizers
    }
    for name, weights in modules.items():
        if _has(name, WIDTHS) and len(weights[-1]) == width:
            stds[name] = weights[-1][0]

    words = ["actor=" + "+".join(actor)]
    for name, values in [*stds.items()][:1]:
        is_log = "log" in name.lower() or bool((values <= 0.0).any())
        words.append(f"log_std={name}" if is_log else f"std={name}")
    words.append("activation=elu")
    words += [f"normalizer={name}" for name in normalizers[:1]]
    return ", ".join(words)


def _likely_actor(modules: dict[str, list[Array]]) -> list[str]:
    """Return the modules that may be an actor, each with the inputs that the one before it gives."""
    plain = [name for name in modules if not _has(name, WIDTHS)]
    plain = [name for name in plain if {*name.lower().split(".")} & {*ACTORS}] or plain
    chain = plain[:1]
    for name in plain[1:]:
        if modules[name][0].shape[1] == len(modules[chain[-1]][-1]):
            chain.append(name)
    return chain


def _has(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name.lower() for word in words)


def _modules(tensors: Tensors) -> dict[str, list[Array]]:
    """Return the weights of linear layers, those of a Sequential together."""
    modules: dict[str, list[Array]] = {}
    for name, each in tensors.items():
        module, _, last = name.rpartition(".")
        parent, _, number = module.rpartition(".")
        if last == "weight" and each.ndim == 2:
            modules.setdefault(parent if number.isdigit() and parent else module, []).append(each)
    return modules
