"""CleanRL's models: bare state dicts, each script with its own names and without a normalizer's statistics."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repolicy.errors import FileError
from repolicy.policies.distributions import ActionSpace
from repolicy.readers import vecnormalize
from repolicy.readers.described import Array, Described, Hidden, Std
from repolicy.readers.given_by_user import given_std, tempered, without_std
from repolicy.readers.perceptrons import (
    check_width,
    chosen_activation,
    linear,
    numbers,
    perceptron,
    perceptron_under,
    tensors_of,
)
from repolicy.readers.reading import Options

LIBRARY = "CleanRL"
UNSEEN = (
    "CleanRL's files hold no statistics of observations, which its scripts for continuous actions normalize (clipped "
    "to 10): without them (--vecnormalize FILE.npz with mean and var) the policy acts badly"
)
UNCLIPPED = (
    "CleanRL's script clips actions to the environment's bounds; the file does not hold them, so this copy sends its "
    "actions as they are"
)


def recognized(checkpoint: Any) -> bool:
    """Return whether a checkpoint's contents are one of CleanRL's models."""
    return _kind(checkpoint) is not None


def read(path: Path, checkpoint: Any, options: Options) -> Described:
    reader = _kind(checkpoint)
    assert reader is not None
    described = reader(tensors_of(_state(checkpoint), str(path)), options, str(path))
    if options.vecnormalize in (None, "none"):
        return described
    statistics = vecnormalize.read(Path(options.vecnormalize))
    check_width(described.observation_size, statistics, str(path))
    notes = tuple(note for note in described.notes if note != UNSEEN)
    return replace(described, normalizer=statistics, notes=notes)


def _continuous(tensors: dict[str, Array], options: Options, where: str) -> Described:
    """PPO: a Gaussian with one std for all states, and tanh."""
    activation, _ = chosen_activation(options, "tanh", LIBRARY, "tanh")
    actor = perceptron_under(tensors, "actor_mean", activation, where)
    raw, width = numbers(tensors["actor_logstd"].reshape(-1), "actor_logstd", where), len(actor.output.bias)
    if len(raw) not in (1, width):
        raise FileError(f"{where} is damaged: {len(raw)} stds do not fit {width} actions")
    raw, space = np.broadcast_to(raw, width), ActionSpace("continuous", (width,))
    return Described(LIBRARY, "", "PPO", actor, space, std=Std("vector", raw), notes=(UNSEEN, UNCLIPPED))


def _discrete(tensors: dict[str, Array], options: Options, where: str) -> Described:
    """PPO with one choice: logits, and tanh."""
    activation, _ = chosen_activation(options, "tanh", LIBRARY, "tanh")
    actor = perceptron_under(tensors, "actor", activation, where)
    space = ActionSpace("discrete", (len(actor.output.bias),))
    note = "the file holds no std, so its outputs are taken as the logits of one choice"
    return Described(LIBRARY, "", "PPO", actor, space, notes=(note,))


def _values(tensors: dict[str, Array], options: Options, where: str) -> Described:
    """DQN: values of actions, and relu."""
    activation, _ = chosen_activation(options, "relu", LIBRARY, "relu")
    actor = tempered(perceptron_under(tensors, "network", activation, where), options, where)
    return Described(LIBRARY, "", "DQN", actor, ActionSpace("discrete", (len(actor.output.bias),)))


def _squashed(tensors: dict[str, Array], options: Options, where: str) -> Described:
    """TD3 and DDPG (a mean without a std), or SAC (a log-std between −5 and 2, through tanh); relu."""
    activation, _ = chosen_activation(options, "relu", LIBRARY, "relu")
    hidden = [Hidden(linear(tensors, name, where)) for name in ("fc1", "fc2")]
    soft = "fc_logstd.weight" in tensors
    actor = perceptron(hidden, linear(tensors, "fc_mean" if soft else "fc_mu", where), activation, where)
    width = len(actor.output.bias)
    scale, shift = (np.broadcast_to(tensors[f"action_{name}"].reshape(-1), width) for name in ("scale", "bias"))
    bounds = [tuple(float(number) for number in bound) for bound in (shift - scale, shift + scale)]
    space = ActionSpace("continuous", (width,), bounds[0], bounds[1])
    if not soft:
        return Described(
            LIBRARY, "", "TD3 or DDPG", actor, space, True, given_std(options, width), notes=without_std(options)
        )
    head = linear(tensors, "fc_logstd", where)
    return Described(LIBRARY, "", "SAC", actor, space, True, Std("head", head, "exp_tanh", -5.0, 2.0))


Reader = Callable[[dict[str, Array], Options, str], Described]


class Kind(NamedTuple):
    """A script's model: tensors that it has, and all its modules. With others beside them, it is another's policy."""

    names: tuple[str, ...]
    modules: set[str]
    reader: Reader


SCALE = {"action_scale", "action_bias"}
KINDS = (
    Kind(("actor_mean.0.weight", "actor_logstd"), {"actor_mean", "actor_logstd", "critic"}, _continuous),
    Kind(("fc1.weight", "fc_mu.weight", "action_scale"), {"fc1", "fc2", "fc_mu"} | SCALE, _squashed),
    Kind(("fc1.weight", "fc_mean.weight", "action_scale"), {"fc1", "fc2", "fc_mean", "fc_logstd"} | SCALE, _squashed),
    Kind(("actor.0.weight", "critic.0.weight"), {"actor", "critic"}, _discrete),
    Kind(("network.0.weight", "network.2.weight"), {"network"}, _values),
)
HOLDERS = ("model_weights", "agent", "model", "state_dict")  # under which a state dict may be kept
WRAPPERS = ("_orig_mod.", "module.")  # what torch.compile and DataParallel put before each name


def _state(checkpoint: Any) -> Any:
    """TD3 and DDPG save the actor's state dict together with the critics'."""
    state = checkpoint[0] if isinstance(checkpoint, tuple) and checkpoint else checkpoint
    if isinstance(state, dict):
        state = next((state[name] for name in HOLDERS if isinstance(state.get(name), dict)), state)
    while isinstance(state, dict) and (wrapper := _wrapper(state)):
        state = {name.removeprefix(wrapper): values for name, values in state.items()}
    return state


def _wrapper(state: dict[Any, Any]) -> str:
    """Return what stands before all names, if it is known to be put there."""
    names = [str(name) for name in state]
    return next((each for each in WRAPPERS if names and all(name.startswith(each) for name in names)), "")


def _kind(checkpoint: Any) -> Reader | None:
    state = _state(checkpoint)
    if not isinstance(state, dict):
        return None
    modules = {str(name).partition(".")[0] for name in state}
    fitting = (kind for kind in KINDS if modules <= kind.modules and all(name in state for name in kind.names))
    return next((kind.reader for kind in fitting), None)
