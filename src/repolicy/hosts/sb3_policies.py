"""Conversion between policies of ours and Stable-Baselines3's."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from repolicy.envs import action_space
from repolicy.errors import UsageError
from repolicy.hosts.priors import as_squashed, check_same_network, layer_pairs, set_statistics, squashes, unwrap_prior
from repolicy.policies import (
    ACTIVATION_MODULES,
    FAMILIES,
    OBSERVATION_BOUND,
    ActionSpace,
    Normalizer,
    Policy,
    PolicySpec,
)

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
except ImportError:
    raise UsageError("this needs Stable-Baselines3, which is not installed: pip install 'repolicy[sb3]'") from None


class Standardized(BaseFeaturesExtractor):
    """Normalize observations `[B, ...]` by fixed means and variances, as a policy of Repolicy does."""

    def __init__(
        self,
        observation_space: spaces.Box,
        mean: list[float],
        var: list[float],
        count: float,
        bound: float | None = OBSERVATION_BOUND,
    ) -> None:
        super().__init__(observation_space, features_dim=len(mean))
        self.normalizer = Normalizer(len(mean), bound)
        set_statistics(self.normalizer, mean, var, count)

    def forward(self, observations: Tensor) -> Tensor:
        return self.normalizer(observations.flatten(1).float())


class HeadPolicy(ActorCriticPolicy):
    """Stable-Baselines3's MlpPolicy with a std for each state, computed by the network as in a policy of ours.

    head: the fields `HEAD` of a `PolicySpec`.
    """

    def __init__(self, *args: Any, head: dict[str, Any], **kwargs: Any) -> None:
        self.head = head
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        space = space_of(self.action_space)
        self.spec = PolicySpec(1, space, "state_gaussian", clips=False, **self.head)
        super()._build(lr_schedule)
        del self.log_std
        self.action_net = nn.Linear(self.mlp_extractor.latent_dim_pi, 2 * space.width)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Any:
        found: Any = FAMILIES["state_gaussian"].distribution(self.action_net(latent_pi), self.spec, None)
        return self.action_dist.proba_distribution(found.mean, found.log_std)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"head": self.head}


def check_choices(space: spaces.Space[Any]) -> None:
    """Raise where Stable-Baselines3 would send other choices to the environment than the policy made."""
    if np.any(first := getattr(space, "start", 0)):
        what = f"the environment's choices begin at {first}, and Stable-Baselines3 sends them counted from 0"
        raise UsageError(f"{what}: let the environment count from 0, too")


def space_of(space: spaces.Space[Any]) -> ActionSpace:
    """Return a model's action space as one of ours, with a single axis."""
    check_choices(space)
    return action_space(space, "of the model")


HEAD = ("std", "min_std", "std_bounds", "initial_std", "mean_clip")  # a `PolicySpec`'s fields about means and stds


def like(policy: Policy, critic: tuple[int, ...] = (64, 64)) -> dict[str, Any]:
    """Return `policy_kwargs` that build Stable-Baselines3's MlpPolicy like this policy, with its normalizer.

    Where its std depends on the state, they are those of a `HeadPolicy`.
    """
    spec, normalizer = policy.spec, policy.normalizer
    if spec.family not in ("gaussian", "state_gaussian", "categorical"):
        raise UsageError(f"the policy is {spec.family}, and Stable-Baselines3's PPO has normal numbers or choices")
    if spec.activation not in ACTIVATION_MODULES:
        raise UsageError(f"the policy's activation is {spec.activation}, none of {', '.join(ACTIVATION_MODULES)}")
    statistics = {name: getattr(normalizer, name).tolist() for name in ("mean", "var", "count")}
    kwargs = {
        "net_arch": {"pi": list(spec.hidden), "vf": list(critic)},
        "activation_fn": ACTIVATION_MODULES[spec.activation],
        "features_extractor_class": Standardized,
        "features_extractor_kwargs": statistics | {"bound": spec.observation_bound},
    }
    if spec.family == "state_gaussian":
        kwargs["head"] = {name: getattr(spec, name) for name in HEAD}
    return kwargs


@torch.no_grad()
def from_repolicy(policy: Policy, model: PPO) -> None:
    """Make a model act as the policy. Its MlpPolicy must have the same architecture, as `like(policy)` builds it."""
    normalized = model.get_vec_normalize_env()
    if normalized is not None and normalized.norm_obs:
        remedy = "set norm_obs=False, or copy_prior=False to begin elsewhere"
        raise UsageError(f"VecNormalize changes what the actor sees, and the prior has its own normalizer: {remedy}")
    host, remedy = _spec_of(model), "leave out policy_kwargs, or set copy_prior to False to begin elsewhere"
    check_same_network(policy.spec, host, "model", remedy)
    for ours, theirs in layer_pairs(policy, actor_layers(model.policy)):
        theirs.copy_(ours)
    if policy.std is not None:
        model.policy.log_std.copy_(policy.std.log())
    extractor = model.policy.features_extractor
    if isinstance(extractor, Standardized):
        if extractor.normalizer.bound != policy.normalizer.bound:
            raise UsageError("the model clips its observations elsewhere than the prior: leave out policy_kwargs")
        extractor.normalizer.load_state_dict(policy.normalizer.state_dict())
    elif float(policy.normalizer.count):
        raise UsageError("the prior normalizes its observations, and the model does not: leave out policy_kwargs")


@torch.no_grad()
def to_repolicy(model: PPO) -> Policy:
    """Return a model with an MlpPolicy as a policy of ours, with the normalizer of its own or of its VecNormalize."""
    policy, normalized = Policy(_spec_of(model)), model.get_vec_normalize_env()
    for ours, theirs in layer_pairs(policy, actor_layers(model.policy)):
        ours.copy_(theirs)
    if policy.log_std is not None:
        policy.log_std.copy_(model.policy.log_std)
    if isinstance(model.policy.features_extractor, Standardized):
        policy.normalizer.load_state_dict(model.policy.features_extractor.normalizer.state_dict())
    elif normalized is not None and normalized.norm_obs:
        statistics = normalized.obs_rms
        var = statistics.var + (normalized.epsilon - 1e-8)
        set_statistics(policy.normalizer, statistics.mean, var, statistics.count)
    prior: Any = getattr(model, "prior", None)
    return as_squashed(policy, unwrap_prior(prior).actions) if squashes(prior) else policy.requires_grad_(False).eval()


def actor_layers(policy: ActorCriticPolicy) -> list[nn.Linear]:
    """Return the linear layers of an actor, the output layer last."""
    return [layer for layer in [*policy.mlp_extractor.policy_net, policy.action_net] if isinstance(layer, nn.Linear)]


def _spec_of(model: PPO) -> PolicySpec:
    """Return the spec of a model's actor as a policy of ours. Raises where it cannot be one."""
    policy, layers = model.policy, actor_layers(model.policy)
    has_switches = isinstance(model.action_space, spaces.MultiBinary)  # of one logit each
    if model.use_sde or has_switches:
        what = "switches" if has_switches else "gSDE"
        remedy = "its prior is prior=PPO.load(FILE), and `load_policy` reads what it saves"
        raise UsageError(f"the model has {what}: {remedy}")
    if is_image_space(model.observation_space):
        what = "observations are images, which Stable-Baselines3 turns and divides by 255"
        raise UsageError(f"{what}: wrap the environment in repolicy.rql.wrapping.PlainObservations")
    extractor = policy.features_extractor
    activation = [name for name, module in ACTIVATION_MODULES.items() if policy.activation_fn is module]
    if not activation or not isinstance(extractor, Standardized | FlattenExtractor):
        parts = f"{type(extractor).__name__} and {policy.activation_fn.__name__}"
        raise UsageError(
            f"the model has {parts}; a policy of Repolicy has flat observations and {', '.join(ACTIVATION_MODULES)}"
        )
    space = space_of(model.action_space)
    head = policy.head if isinstance(policy, HeadPolicy) else {"min_std": 0.0}
    gaussian = "state_gaussian" if isinstance(policy, HeadPolicy) else "gaussian"
    family: Any = gaussian if space.kind == "continuous" else "categorical"
    hidden = tuple(layer.out_features for layer in layers[:-1])
    normalized, bound = model.get_vec_normalize_env(), math.inf
    if isinstance(extractor, Standardized):
        bound = extractor.normalizer.bound
    elif normalized is not None and normalized.norm_obs:
        bound = normalized.clip_obs
    return PolicySpec(
        layers[0].in_features, space, family, hidden, activation[0],
        observation_bound=None if math.isinf(bound) else bound, clips=space.kind == "continuous", **head,
    )  # fmt: skip
