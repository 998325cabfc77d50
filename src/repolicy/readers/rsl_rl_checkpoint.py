"""rsl_rl's checkpoints since 1.0, and so those of legged_gym, Isaac Lab and mjlab.

Versions differ in the names of state dicts and tensors: a `Layout` each. The activation and the kind of distribution
are not in a checkpoint but in `params/agent.yaml`, which Isaac Lab and mjlab write beside it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.context import ReadContext, agent_settings, observed_groups, parse_numbers
from repolicy.readers.description import Array, CannotCopyError, Normalizer, Perceptron, PolicyDescription, Std
from repolicy.readers.perceptrons import (
    check_no_memory,
    finite_float32,
    first_names,
    make_normalizer,
    make_perceptron,
    sequential_layers,
    tensors_of,
    tensors_under,
)

LIBRARY = "rsl_rl"
EPSILON = 1e-2  # of EmpiricalNormalization, in all versions
STD_RANGE = "1e-6, 1e6"  # default limits of a std since 5.0
STD_RANGE_NOTE = "without params/agent.yaml nothing tells the std_range: rsl_rl's default, 1e-6 to 1e6, is assumed"


class Layout(NamedTuple):
    """The names that a version of rsl_rl uses."""

    version: str
    state: str  # key of the state dict in the checkpoint
    actor: str  # prefix of the actor's layers
    normalizer: str  # prefix of the normalizer


STDS = {  # names of the std's tensor, each with its link to the std; the last two since 5.0
    "std": "identity", "log_std": "exp", "distribution.std_param": "identity", "distribution.log_std_param": "exp",
}  # fmt: skip
LAYOUTS = (
    Layout("4 or later", "actor_state_dict", "mlp", "obs_normalizer"),
    Layout("1 to 3", "model_state_dict", "actor", "actor_obs_normalizer"),
    Layout("2 or 3, distilled", "model_state_dict", "student", "student_obs_normalizer"),
    Layout("4 or later, distilled", "student_state_dict", "mlp", "obs_normalizer"),
)


def matches(checkpoint: Any) -> bool:
    """Return whether a checkpoint's contents are rsl_rl's."""
    return isinstance(checkpoint, dict) and _find_layout(checkpoint) is not None


def read(checkpoint: dict[str, Any], context: ReadContext) -> PolicyDescription:
    match = _find_layout(checkpoint)
    assert match is not None  # `matches` was asked before
    layout, tensors = match
    _check_modules(layout, tensors)
    agent = agent_settings(context.path)
    activation = context.activation("elu", LIBRARY, agent.get("activation"))
    actor = make_perceptron(sequential_layers(tensors, layout.actor), None, activation)
    std, actor = _std(tensors, layout, actor, agent, context)
    statistics = context.statistics(actor.width, _normalizer(checkpoint, tensors, layout))
    context.notes.append("the file does not hold the scale of actions, which the environment applies")
    width, [clip] = len(actor.output.bias), parse_numbers(agent, "clip_actions", "inf")
    clips = math.isfinite(clip)
    actions = ActionSpace("continuous", (width,), *([(-clip,) * width, (clip,) * width] if clips else ()))
    return PolicyDescription(
        LIBRARY, layout.version, "PPO", actor, actions, std=std, normalizer=statistics, clips=clips,
        groups=tuple((name, 0) for name in observed_groups(agent)),
    )  # fmt: skip


def _find_layout(checkpoint: dict[str, Any]) -> tuple[Layout, dict[str, Array]] | None:
    """Return the first layout whose actor the checkpoint has, and the tensors of its state dict.

    Other libraries' choices have such names too, but neither a std nor the iteration that rsl_rl writes.
    """
    for layout in LAYOUTS:
        state = checkpoint.get(layout.state)
        tensors = tensors_of(state) if isinstance(state, dict) else {}
        if tensors_under(tensors, layout.actor) and ("iter" in checkpoint or not STDS.keys().isdisjoint(tensors)):
            return layout, tensors
    return None


def _check_modules(layout: Layout, tensors: dict[str, Array]) -> None:
    """Raise a CannotCopyError if the policy has modules beside its layers that change what it does."""
    check_no_memory(tensors)
    if "mlp.weights.0" in tensors:
        keep = "save_policy keeps repolicy.hosts.rsl_rl's to_repolicy(runner.alg.get_policy())"
        raise CannotCopyError(f"it is of a PolicyActor, and has no policy of these weights beside it: {keep}")
    if any(name.startswith(("cnn", "actor_cnn")) for name in tensors):
        raise CannotCopyError("the policy looks at images")
    known = (f"{layout.actor}.", f"{layout.normalizer}.", "critic", "teacher")
    others = [name for name in tensors if not name.startswith(known) and name not in STDS]
    if others:
        raise CannotCopyError(f"it has {first_names(others)}, which no policy of rsl_rl's own has")


def _std(
    tensors: dict[str, Array], layout: Layout, actor: Perceptron, agent: dict[str, str], context: ReadContext
) -> tuple[Std | None, Perceptron]:
    """Return the std and the actor without it: one std for all states, a half of the last layer, or the user's."""
    if layout.version.startswith("4") and not agent:
        context.notes.append(STD_RANGE_NOTE)
    for name, link in STDS.items():
        if name in tensors:
            return Std("vector", finite_float32(tensors[name].reshape(-1), name), link, *_limits(link, agent)), actor
    classes = agent.get("class_names", "")
    headless = classes and "Heteroscedastic" not in classes and agent.get("state_dependent_std", "").lower() != "true"
    if headless and "Distribution" not in classes:
        return context.std(len(actor.output.bias)), actor
    if headless or len(actor.output.bias) % 2:
        raise CannotCopyError("its distribution is no Gaussian, or it has no std")
    means, raw = actor.split_output()
    std_type = agent.get("std_type", agent.get("noise_std_type", "scalar" if agent else ""))
    if not std_type and np.all(raw.bias > 1e-3):  # a std itself begins there, but a log-std may, too
        remedy = (
            "say it by params/agent.yaml, such as by a line std_type: scalar, or by --layout with halves=yes for log"
        )
        raise CannotCopyError(f"nothing tells whether the second half of its last layer are stds or log-stds: {remedy}")
    if not std_type:
        std_type = "log"
        context.notes.append(
            "by its biases, the second half of the last layer is taken for a std_type of log: params/agent.yaml would "
            "say it"
        )
    link = "exp" if std_type == "log" else "identity"
    if not agent:
        context.notes.append("without params/agent.yaml a Beta policy looks the same, and its copy would be wrong")
    return Std("head", raw, link, *_limits(link, agent)), means


def _limits(link: str, agent: dict[str, str]) -> tuple[float, float]:
    """Return the limits of the raw std; rsl_rl itself keeps the std above 1e-6."""
    low, high = parse_numbers(agent, "std_range", STD_RANGE)
    low = max(low, 1e-6)
    return (low, high) if link == "identity" else (math.log(low), math.log(high))


def _normalizer(checkpoint: dict[str, Any], tensors: dict[str, Array], layout: Layout) -> Normalizer | None:
    """Return the normalizer, which is in the model since 3.0, and beside it before. rsl_rl does not clip."""
    statistics = tensors_under(tensors, layout.normalizer) or tensors_of(checkpoint.get("obs_norm_state_dict") or {})
    if not statistics:
        return None
    count = float(statistics["count"]) if "count" in statistics else 0.0
    return make_normalizer(statistics["_mean"], statistics["_std"].astype(np.float64) + EPSILON, None, count)
