"""The tensor names of CleanRL's, TorchRL's, rl_games's and tianshou's policies, and a user's --layout in this form.

Names of nested state dicts are joined by dots. All names of a library's layout may share a root, such as `model.`.
"""

import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from repolicy.errors import UsageError

NO_TRANSFORM_NOTE = (
    "the file does not say whether the mean goes through a function after its last layer, such as tanh, and not by how "
    "much the environment scales actions: neither is assumed"
)
EXP_SIGMA_NOTE = "the std is taken as exp(sigma), which only continuous_a2c_logstd without a min_sigma has"
NO_CRITIC_NOTE = (
    "without its critics a policy of SAC, TD3 or DDPG looks like this one: if it is such, save the algorithm's "
    "state_dict(), or say squashed=yes by --layout"
)
UNCLIPPED_NOTE = (
    "CleanRL's script clips actions to the environment's bounds, which are not in the file: this copy does not"
)
NO_STATISTICS_NOTE = (
    "CleanRL's files hold no statistics of observations, which its scripts for continuous actions normalize (clipped "
    "to 10): without them (--vecnormalize FILE.npz with mean and var) the policy acts badly"
)
TANH_NORMAL_NOTE = (
    "the file does not say the distribution: TanhNormal between -1 and 1 is assumed, without tanh_loc and, where the "
    "last layer gives the scale, with NormalParamExtractor's scale_mapping=biased_softplus_1.0 and no scale_lb above "
    "0.01; --layout says otherwise: discrete=yes for choices, halves=yes with low and high for scale_mapping=exp"
)
LOGITS_NOTE = (
    "the file holds no std, so its outputs are taken as the logits of one choice; --layout says otherwise, by std or "
    "squashed=yes"
)


@dataclass(frozen=True)
class Layout:
    """The tensor names of a policy's parts, and what is fixed about them. A user's --layout sets the first twelve."""

    actor: str  # layers up to the mean or the logits; several names, joined by +, are applied in this order
    log_std: str = ""  # a tensor, or a linear layer on the last hidden features
    std: str = ""  # like log_std, where the numbers are the std itself
    halves: bool = False  # the last layer outputs the means and then as many log-stds
    normalizer: str = ""  # prefix of the mean and the variance (or std) of the observations
    activation: str = ""
    discrete: bool = False  # the outputs are the logits of one choice
    squashed: bool = False  # tanh follows the noise
    low: float = -math.inf  # bounds of the raw std (or log-std)
    high: float = math.inf
    epsilon: float = 0.0  # added to the variance of the observations
    clip: float = math.inf  # bound of normalized observations
    # Only the layouts of libraries below set what follows.
    library: str = ""
    kind: str = "policy"
    companions: tuple[str, ...] = ()  # modules of which the file must have one
    modules: tuple[str, ...] = ()  # all modules of such a policy; with any other module, it is another policy
    roots: tuple[str, ...] = ()  # names that may come before those of the layout
    is_q_network: bool = False  # the outputs are Q-values
    link: str = "exp"  # from the raw log_std to the std
    shift: float = 0.0  # added to the raw stds of `halves`
    floor: float = 0.0  # least std
    scale: str = ""  # the tensors SCALE_scale and SCALE_bias map a squashed action to its bounds
    no_statistics_note: str = ""  # for a file without statistics of the observations
    notes: tuple[str, ...] = ()


CLEANRL_PPO = Layout(
    "actor_mean", "actor_logstd", activation="tanh", library="CleanRL", kind="PPO",
    modules=("actor_mean", "actor_logstd", "critic"), notes=(UNCLIPPED_NOTE,), no_statistics_note=NO_STATISTICS_NOTE,
    roots=("model_weights", "agent", "model", "model_state_dict", "state_dict", "0", "_orig_mod", "module"),
)  # fmt: skip
CLEANRL_DQN = Layout(
    "network", activation="relu", library="CleanRL", kind="DQN", discrete=True,
    is_q_network=True, modules=("network",), roots=CLEANRL_PPO.roots,
)  # fmt: skip
CLEANRL_TD3 = Layout(
    "fc1+fc2+fc_mu", activation="relu", library="CleanRL", kind="TD3 or DDPG", squashed=True,
    scale="action", modules=("fc1", "fc2", "fc_mu", "action_scale", "action_bias"), roots=CLEANRL_PPO.roots,
)  # fmt: skip
CLEANRL_SAC = replace(
    CLEANRL_TD3, actor="fc1+fc2+fc_mean", log_std="fc_logstd", low=-5.0, high=2.0, link="exp_tanh", kind="SAC",
    modules=("fc1", "fc2", "fc_mean", "fc_logstd", "action_scale", "action_bias"),
)  # fmt: skip
TORCHRL = Layout(
    "module.0.module.0", "module.0.module.1.state_independent_scale", activation="tanh", squashed=True,
    library="TorchRL", modules=("module.0",), notes=(TANH_NORMAL_NOTE,),
)  # fmt: skip
TORCHRL_HALVES = replace(
    TORCHRL, log_std="", halves=True, link="softplus", shift=math.log(math.expm1(0.99)), floor=0.01
)
RL_GAMES = Layout(
    "a2c_network.actor_mlp+a2c_network.mu", "a2c_network.sigma", normalizer="running_mean_std", activation="elu",
    epsilon=1e-5, clip=5.0, library="rl_games", kind="PPO", notes=(NO_TRANSFORM_NOTE, EXP_SIGMA_NOTE),
)  # fmt: skip
TIANSHOU = Layout(
    "actor.preprocess.model.model+actor.mu.model", "actor.sigma_param", normalizer="obs_rms", activation="tanh",
    epsilon=float(np.finfo(np.float32).eps), clip=10.0, library="tianshou", kind="PPO", notes=(NO_TRANSFORM_NOTE,),
)  # fmt: skip
TIANSHOU_HEAD = replace(TIANSHOU, log_std="actor.sigma.model", low=-20.0, high=2.0)
TIANSHOU_LAST = replace(TIANSHOU, actor="actor.preprocess.model.model+actor.last.model", log_std="", activation="relu")
TIANSHOU_TD3 = replace(TIANSHOU_LAST, kind="TD3 or DDPG", squashed=True, companions=("actor_old",))
TIANSHOU_CHOICE = replace(TIANSHOU_LAST, discrete=True, notes=(NO_CRITIC_NOTE,))
LAYOUTS = (
    CLEANRL_PPO,
    CLEANRL_SAC,
    CLEANRL_TD3,
    replace(CLEANRL_DQN, actor="actor", activation="tanh", kind="PPO", is_q_network=False, modules=("actor", "critic"),
            companions=("critic",), notes=(LOGITS_NOTE,)),
    CLEANRL_DQN,
    TORCHRL,
    replace(TORCHRL_HALVES, actor="module.0.module"),
    TORCHRL_HALVES,
    RL_GAMES,
    replace(RL_GAMES, actor="a2c_network.actor_mlp+a2c_network.logits", log_std="", discrete=True, notes=()),
    TIANSHOU,
    replace(TIANSHOU_HEAD, kind="SAC", squashed=True, activation="relu",
            companions=("critic_old", "critic1_old", "critics_old")),
    replace(TIANSHOU_HEAD, notes=(NO_TRANSFORM_NOTE, NO_CRITIC_NOTE)),
    TIANSHOU_TD3, TIANSHOU_CHOICE,
)  # fmt: skip
USER_FIELDS: dict[str, Any] = {
    field.name: field.type for field in itertools.takewhile(lambda field: field.name != "library", fields(Layout))
}


def parse_layout(text: str) -> Layout:
    """Parse a user's --layout: `actor=model.actor, log_std=model.logstd, activation=elu, normalizer=obs_rms`."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if not value or name not in USER_FIELDS or name in values:
            example = '"actor=NAME, log_std=NAME, activation=elu"'
            raise UsageError(
                f"--layout has {part.strip()!r}; it must be {example}, of {', '.join(USER_FIELDS)}, each once"
            )
        kind = USER_FIELDS[name]
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
