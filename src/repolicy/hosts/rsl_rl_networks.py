"""rsl_rl's networks: actors made of policies of ours and the other way round, and the critic for a range of weights.

actor = {"class_name": "repolicy.hosts.rsl_rl:PolicyActor"}    # beside a `prior` that Repolicy can copy
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.hosts import priors
from repolicy.learning.terms import TERMS
from repolicy.loading import check_version
from repolicy.objective import Objective
from repolicy.policies import ACTIVATION_MODULES, FAMILIES, ConditionedPolicy, FilmMlp, Policy, PolicySpec, frozen

check_version("rsl-rl-lib", (5, 0), (6, 0), "rsl-rl")  # first: others lack what is imported here

try:
    from rsl_rl.models import MLPModel
    from rsl_rl.modules import Distribution, EmpiricalNormalization, GaussianDistribution
    from rsl_rl.utils import resolve_callable
except ImportError:
    raise UsageError("this runs inside rsl_rl, which is not installed: pip install 'repolicy[rsl-rl]'") from None

GROUP = "dial"  # the observation group with an episode's place on the dials


def flattened(observations: Any, groups: list[str]) -> Tensor:
    """Return observation groups side by side, `[..., O]`; without any, as an actor of images alone has none, O is 0."""
    lead = observations.batch_size
    parts = [observations[group].flatten(len(lead)) for group in groups]
    return torch.cat([torch.empty(*lead, 0, device=observations.device), *parts], -1)


class PolicyActor(MLPModel):
    """An rsl_rl actor made of the parts of a policy. A squashed policy gives its actions before tanh.

    policy: named as a `prior` is; the algorithm's prior by default.
    dials: of a range. The actor observes its place as the group `dial`, and takes the middle where that is missing.
    """

    def __init__(
        self, obs: Any, obs_groups: Any, obs_set: str, output_dim: int, policy: Any = None, dials: Any = (), **_: Any
    ) -> None:
        nn.Module.__init__(self)
        if policy is None:
            raise UsageError("a PolicyActor begins as the algorithm's prior, and there is none: name it, prior")
        prior = priors.open_prior(policy).agent
        if not isinstance(prior, Policy):
            raise UsageError(f"the prior is a {type(prior).__name__}, which cannot be copied: name another actor")
        self.obs_groups, self.obs_dim = self._get_obs_dim(obs, obs_groups, obs_set)
        priors.check_sizes(prior, self.obs_dim, priors.unbounded_actions(output_dim))
        self.squashed = prior.actions if prior.family.squashes else None  # the action bounds after tanh
        gaussian = priors.as_gaussian(prior)
        copied = ConditionedPolicy.from_prior(gaussian, dials) if dials else copy.deepcopy(gaussian)
        copied.requires_grad_(True)
        self.spec, self.dials = copied.spec, dials
        self.mlp, self.obs_normalizer, self.obs_normalization = copied.network, copied.normalizer, False
        self.distribution = PolicyDistribution(copied.spec, copied.log_std)

    def get_latent(self, obs: Any, *memory: Any) -> Tensor:
        latent = torch.cat([obs[group] for group in self.obs_groups], -1)
        if self.dials:
            middle = latent.new_zeros(*latent.shape[:-1], len(self.dials))
            latent = torch.cat([latent, obs.get(GROUP, middle)], -1)
        return self.obs_normalizer(latent)

    @torch.no_grad()
    def as_jit(self) -> nn.Module:
        """Return rsl_rl's export with traced parts, because TorchScript could not compile ours."""
        exported = super().as_jit().to("cpu")
        example = torch.zeros(1, self.obs_dim + len(self.dials))
        for name, part in exported.named_children():
            traced = torch.jit.trace(part, example)
            setattr(exported, name, traced)
            example = traced(example)
        return exported

    def as_onnx(self, verbose: bool) -> nn.Module:
        """Return rsl_rl's export, whose inputs are the observations followed by the place on the dials."""
        exported: Any = super().as_onnx(verbose)
        exported.input_size += len(self.dials)
        return exported

    def to_repolicy(self) -> Policy:
        """Return the present actor as a policy, which is squashed if the policy it was made of is."""
        found = ConditionedPolicy(self.spec, self.dials) if self.dials else Policy(self.spec)
        found.network.load_state_dict(self.mlp.state_dict())
        found.normalizer.load_state_dict(self.obs_normalizer.state_dict())
        if (log_std := self.distribution.log_std) is not None:
            found.log_std = nn.Parameter(log_std.detach().cpu())
        return frozen(found) if self.squashed is None else priors.as_squashed(found, self.squashed)


class PolicyDistribution(GaussianDistribution):
    """The normal distribution of a policy of ours at its network's outputs `[..., outputs]`."""

    def __init__(self, spec: PolicySpec, log_std: nn.Parameter | None) -> None:
        Distribution.__init__(self, spec.actions.width)
        self.spec, self.log_std = spec, log_std

    def update(self, mlp_output: Tensor) -> None:
        found: Any = FAMILIES[self.spec.family].distribution(mlp_output, self.spec, self.log_std)
        std = found.log_std.exp().expand_as(found.mean)
        self._distribution = torch.distributions.Normal(found.mean, std, validate_args=False)

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        return FAMILIES[self.spec.family].mode(mlp_output, self.spec)

    def as_deterministic_output_module(self) -> nn.Module:
        return Means(self.output_dim, self.spec.mean_clip or float("inf"))


class Means(nn.Module):
    """A module that maps a network's outputs to the clipped means, for exported graphs."""

    def __init__(self, width: int, bound: float) -> None:
        super().__init__()
        self.width, self.bound = width, bound

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[..., : self.width].clip(-self.bound, self.bound)


class HeadsCritic(MLPModel):
    """An `MLPModel` with a head for each part of the return. Its layers get the place on the dials."""

    def __init__(self, *args: Any, heads: int, dials: Any, **network: Any) -> None:
        super().__init__(*args, **network)
        hidden, activation = tuple(network.get("hidden_dims", (256, 256, 256))), network.get("activation", "elu")
        self.mlp = FilmMlp(self.obs_dim, hidden, heads, activation, dials=len(dials))

    def get_latent(self, obs: Any, *memory: Any) -> Tensor:
        return torch.cat([super().get_latent(obs, *memory), obs[GROUP]], -1)


def dial_settings(weights: Objective, obs: Any, cfg: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first observations and the settings, extended for a run with a range."""
    actor, critic, algorithm = cfg["actor"], cfg["critic"], cfg["algorithm"]
    for who, network, wanted in (("actor", actor, PolicyActor), ("critic", critic, MLPModel)):
        if resolve_callable(network["class_name"]) is not wanted:
            name = "repolicy.hosts.rsl_rl:PolicyActor" if wanted is PolicyActor else "MLPModel"
            raise UsageError(f"omega or alpha is a range, and then the {who}'s class_name must be {name}")
    if algorithm.setdefault("rnd_cfg", None):  # rsl_rl before 5.5 reads the entry later on
        raise UsageError("with a range the reward of rnd_cfg would not be learned from: leave rnd_cfg out")
    heads = 1 + sum(getattr(weights, name) != 0 for name in TERMS.values())
    critic = critic | {"class_name": "repolicy.hosts.rsl_rl_networks:HeadsCritic", "heads": heads}
    algorithm = algorithm | {"class_name": "repolicy.hosts.rsl_rl_dial:DialedPPO"}
    obs, dials = obs.clone(recurse=False), weights.dials
    obs[GROUP] = torch.zeros(*obs.batch_size, len(dials), device=obs.device)
    networks = {"actor": actor | {"dials": dials}, "critic": critic | {"dials": dials}}
    return obs, cfg | networks | {"algorithm": algorithm}


# rsl_rl's own actors -----------------------------------------------------------------------------------------------


@torch.no_grad()
def from_repolicy(policy: Policy, actor: Any) -> None:
    """Make rsl_rl's actor (an `MLPModel`) act as the policy. Raises where its network has another architecture."""
    spec, std = policy.spec, policy.std
    host = _spec_of(actor)
    if std is None or policy.family.squashes:
        raise UsageError(f"the policy is {spec.family}, and rsl_rl's GaussianDistribution has one std for all states")
    remedy = "make the actor's settings the same, or set copy_prior to false to begin elsewhere"
    priors.check_same_network(spec, host, "actor", remedy)
    low, high = _std_range(actor)
    if not torch.allclose(std.clamp(low, high), std, rtol=1e-4, atol=0.0):
        has = f"the policy has a std from {std.min():.3g} to {std.max():.3g}"
        raise UsageError(f"{has}, and the actor's distribution_cfg a std_range of {low:g} to {high:g}: widen it")
    for ours, theirs in priors.layer_pairs(policy, actor.mlp):
        theirs.copy_(ours)
    if actor.distribution.std_type == "log":
        actor.distribution.log_std_param.copy_(std.log())
    else:
        actor.distribution.std_param.copy_(std)
    _copy_statistics(policy, actor)


@torch.no_grad()
def to_repolicy(actor: Any) -> Policy:
    """Return rsl_rl's actor (an `MLPModel` with a Gaussian of one std) as a policy of ours, with its normalizer."""
    if isinstance(actor, PolicyActor):
        return actor.to_repolicy()
    policy = Policy(_spec_of(actor))
    for ours, theirs in priors.layer_pairs(policy, actor.mlp):
        ours.copy_(theirs)
    distribution = actor.distribution
    std = distribution.std_param if distribution.std_type != "log" else distribution.log_std_param.exp()
    assert policy.log_std is not None
    policy.log_std.copy_(std.clamp(*_std_range(actor)).log())
    normalizer = actor.obs_normalizer
    if isinstance(normalizer, EmpiricalNormalization):
        var = (normalizer._std.squeeze(0).double() + normalizer.eps).square() - 1e-8
        priors.set_statistics(policy.normalizer, normalizer._mean.squeeze(0), var, normalizer.count)
    return policy.requires_grad_(False).eval()


def _copy_statistics(policy: Policy, actor: Any) -> None:
    """Copy our (x − mean) / √(var + 1e-8) into rsl_rl's (x − mean) / (std + eps), which does not clip to ±10."""
    normalizer, theirs = policy.normalizer, actor.obs_normalizer
    if not isinstance(theirs, EmpiricalNormalization):
        if float(normalizer.count):
            raise UsageError("the prior normalizes its observations, and the actor does not: set obs_normalization")
        return
    std = (normalizer.var + 1e-8).sqrt() - theirs.eps
    theirs._mean.copy_(normalizer.mean)
    theirs._std.copy_(std)
    theirs._var.copy_(std.square())
    theirs.count.fill_(int(normalizer.count))


def _std_range(actor: Any) -> tuple[float, float]:
    return getattr(actor.distribution, "std_range", (1e-12, math.inf))  # rsl_rl bounds it since 5.2


def layers_of(actor: Any) -> list[nn.Linear]:
    return [layer for layer in actor.mlp if isinstance(layer, nn.Linear)]


def _spec_of(actor: Any) -> PolicySpec:
    """Return the spec of rsl_rl's actor as a policy of ours. Raises where it cannot be one."""
    if actor.is_recurrent or hasattr(actor, "cnns") or type(actor.distribution) is not GaussianDistribution:
        kinds = f"{type(actor).__name__} with a {type(actor.distribution).__name__}"
        fits = "an MLPModel with a GaussianDistribution, or a repolicy.hosts.rsl_rl:PolicyActor, which takes any"
        raise UsageError(f"the actor is a {kinds}; one that can be a policy of Repolicy is {fits}")
    layers = layers_of(actor)
    sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
    classes = {type(module) for module in actor.mlp if not isinstance(module, nn.Linear)}
    activation = [name for name, module in ACTIVATION_MODULES.items() if classes == {module}]
    if not activation:
        names = ", ".join(sorted(each.__name__ for each in classes))
        raise UsageError(f"the actor's network has {names}; Repolicy's have {', '.join(ACTIVATION_MODULES)}")
    space, hidden = priors.unbounded_actions(sizes[-1]), tuple(sizes[1:-1])
    return PolicySpec(sizes[0], space, "gaussian", hidden, activation[0], min_std=0.0, observation_bound=None)
