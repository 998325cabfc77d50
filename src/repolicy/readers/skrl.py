"""skrl's checkpoints: one state dict per module, with the names of the user's model.

The layers are taken in the order in which the model registered them. skrl's own model builder runs them in this order.
"""

import math
from typing import Any

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.context import ReadContext, agent_settings, parse_list, parse_numbers, setting_pairs
from repolicy.readers.description import (
    CannotCopyError,
    HiddenLayer,
    Normalizer,
    PolicyDescription,
    Std,
    UnknownSettingError,
)
from repolicy.readers.perceptrons import (
    finite_float32,
    first_names,
    linear_layer,
    make_normalizer,
    make_perceptron,
    tensors_of,
)

LIBRARY = "skrl"
PREPROCESSORS = ("observation_preprocessor", "state_preprocessor")
LOG_STD = "log_std_parameter"
OUTPUT_NOTE = (
    "the file does not say whether the mean goes through a function after its last layer, such as tanh, whether the "
    "log-std is kept within other bounds than -20 and 2, or statistics are clipped elsewhere than at 5: none of it is "
    "assumed (params/agent.yaml would say it; export a policy with such a function to ONNX or TorchScript)"
)
UNCLIPPED_NOTE = "skrl clips actions to the environment's bounds, which are not in the file: this copy does not"
VARIANCE_NOTE = "before skrl 2.1.1 a MultivariateGaussian's std was the square of the one that is taken here"
CRITIC_NOTE = "skrl 2 gives a state_preprocessor to the critic alone: if skrl 2 wrote the file, add --vecnormalize none"
PLAIN_OUTPUTS = {  # settings of models that output the mean itself; skrl has the last two in its older form
    "output": ("ACTIONS",), "output_activation": ("", "null", "None"), "output_scale": ("1.0", "1"),
}  # fmt: skip
ACTIVATION_NAMES = ("elu", "leaky_relu", "relu", "selu", "sigmoid", "softmax", "softplus", "softsign", "tanh")
COMPANIONS = ("value", "optimizer", "policy_optimizer", "target_policy")  # one of these is beside the policy


def matches(saved: Any) -> bool:
    """Return whether a checkpoint's contents are skrl's."""
    has_policy = isinstance(saved, dict) and isinstance(saved.get("policy"), dict)
    return has_policy and any(name in saved for name in COMPANIONS)


def read(checkpoint: dict[str, Any], context: ReadContext) -> PolicyDescription:
    tensors = tensors_of(checkpoint["policy"])
    names = [name.removesuffix(".weight") for name, values in tensors.items() if name.endswith(".weight")]
    names = [name for name in names if not name.startswith(("value", "critic"))]  # a shared model has them too
    if any(tensors[f"{name}.weight"].ndim != 2 for name in names) or any("_ih_l" in name for name in tensors):
        raise CannotCopyError(f"its policy has other layers than linear ones ({first_names(tensors)})")
    deterministic = "target_policy" in checkpoint  # TD3 and DDPG
    if not names or (LOG_STD not in tensors and not deterministic):
        ways = "discrete=yes for choices, log_std or halves for stds that depend on the state"
        raise CannotCopyError(
            f"it looks like skrl's, but its policy has no {LOG_STD} (--layout tells what it has: {ways})"
        )
    agent = agent_settings(context.path)
    model = setting_pairs(context.path, "policy")
    activation = context.activation("elu", LIBRARY, _activation(model))
    actor = make_perceptron([HiddenLayer(linear_layer(tensors, name)) for name in names], None, activation)
    width = len(actor.output.bias)
    if deterministic:
        std = context.std(width)
    else:
        std = Std("vector", finite_float32(tensors[LOG_STD].reshape(-1), LOG_STD), "exp", *_limits(agent))
    if "MultivariateGaussian" in agent.get("class_names", ""):
        context.notes.append(VARIANCE_NOTE)
    statistics = context.statistics(actor.width, _normalizer(checkpoint, context))
    if agent.get("clip_mean_actions", "").lower() == "true":
        raise CannotCopyError("its means are clipped to the environment's bounds, which are not in the file")
    if agent.get("clip_actions", "").lower() == "true":
        context.notes.append(UNCLIPPED_NOTE)
    for name, value in model:
        if value not in PLAIN_OUTPUTS.get(name, value):
            raise UnknownSettingError(f"params/agent.yaml says that its {name} is {value}")
    if not {"output", "output_shape"} & {name for name, _ in model}:
        context.notes.append(OUTPUT_NOTE)
    version = "2" if PREPROCESSORS[0] in checkpoint else ""
    kind = "TD3 or DDPG" if deterministic else "Gaussian policy"
    return PolicyDescription(
        LIBRARY, version, kind, actor, ActionSpace("continuous", (width,)), std=std, normalizer=statistics
    )


def _activation(model: list[tuple[str, str]]) -> str | None:
    """Return the activation in the model's settings; refuse different activations per layer, and none.

    For a name that it does not know, skrl builds a network without activations.
    """
    settings = [value for name, value in model if name in ("activations", "hidden_activation")]
    names = {name for value in settings for name in parse_list(value)}
    if len(names) > 1:
        raise UnknownSettingError("its layers have different activations")
    name = (names.pop() or "none") if names else None
    if name is not None and name.lower() not in ACTIVATION_NAMES:
        raise UnknownSettingError(f"its activation is {name}, which skrl does not know and leaves out")
    return name


def _limits(agent: dict[str, str]) -> tuple[float, float]:
    """Return the limits of the log-std from the run's settings, or skrl's defaults."""
    if agent.get("clip_log_std", "true").lower() == "false":
        return -math.inf, math.inf
    [low], [high] = parse_numbers(agent, "min_log_std", "-20"), parse_numbers(agent, "max_log_std", "2")
    return low, high


def _normalizer(checkpoint: dict[str, Any], context: ReadContext) -> Normalizer | None:
    """Return the scaler of the policy's observations, with the clip and the epsilon of the run's settings."""
    for name in PREPROCESSORS:
        statistics = tensors_of(checkpoint.get(name) or {})
        if "running_mean" in statistics and "running_variance" in statistics:
            if name == "state_preprocessor" and context.options.vecnormalize is None:
                context.notes.append(CRITIC_NOTE)
            sections = [setting_pairs(context.path, f"{section}_kwargs") for section in (name, "state_preprocessor")]
            given = dict(sections[0] or sections[1])
            [clip], [epsilon] = parse_numbers(given, "clip_threshold", "5"), parse_numbers(given, "epsilon", "1e-8")
            deviation = np.sqrt(statistics["running_variance"].astype(np.float32)).astype(np.float64) + epsilon
            count = float(statistics.get("current_count", np.float64(0.0)))
            return make_normalizer(statistics["running_mean"].astype(np.float32), deviation, clip, count)
    return None
