"""Networks of ours inside rsl_rl: a policy as its actor, whatever its shape, and the critic of a range of weights.

actor = {"class_name": "repolicy.hosts.rsl_rl:PolicyActor"}    # beside a `prior` that Repolicy can copy
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.hosts.begun import as_gaussian, check_sizes, unbounded
from repolicy.hosts.kept_prior import check_version, open_prior
from repolicy.learning.terms import TERMS
from repolicy.objective import Objective
from repolicy.policies import ACTIVATIONS, FAMILIES, Conditioned, FilmMlp, Policy, PolicySpec, frozen

check_version("rsl-rl-lib", (5, 0), (6, 0), "rsl-rl")  # first: others lack what is imported here

try:
    from rsl_rl.models import MLPModel
    from rsl_rl.modules import Distribution, GaussianDistribution
    from rsl_rl.utils import resolve_callable
except ImportError:
    raise UsageError("this runs inside rsl_rl, which is not installed: pip install 'repolicy[rsl-rl]'") from None

GROUP = "dial"  # of observations: where on the dials an episode stands


class PolicyActor(MLPModel):
    """What an `MLPModel` is, made of the parts of a policy. A policy whose actions pass through tanh acts before it.

    policy: as a `prior` is named; the algorithm's, where nothing is named.
    dials: of a range, whose positions it sees as the group `dial`, and else stands in the middle.
    """

    def __init__(
        self, obs: Any, obs_groups: Any, obs_set: str, output_dim: int, policy: Any = None, dials: Any = (), **_: Any
    ) -> None:
        nn.Module.__init__(self)
        given = open_prior(policy).prior
        if not isinstance(given, Policy):
            raise UsageError(f"the prior is a {type(given).__name__}, which cannot be copied: name another actor")
        self.obs_groups, self.obs_dim = self._get_obs_dim(obs, obs_groups, obs_set)
        check_sizes(given, self.obs_dim, unbounded(output_dim))
        own = as_gaussian(given)
        own = (Conditioned.begun(own, dials) if dials else copy.deepcopy(own)).requires_grad_(True)
        self.spec, self.dials = own.spec, dials
        self.mlp, self.obs_normalizer, self.obs_normalization = own.network, own.normalizer, False
        self.distribution = OfFamily(own.spec, own.log_std)

    def get_latent(self, obs: Any, *memory: Any) -> Tensor:
        latent = torch.cat([obs[group] for group in self.obs_groups], -1)
        if self.dials:
            middle = latent.new_zeros(*latent.shape[:-1], len(self.dials))
            latent = torch.cat([latent, obs.get(GROUP, middle)], -1)
        return self.obs_normalizer(latent)  # type: ignore[no-any-return]

    @torch.no_grad()
    def as_jit(self) -> nn.Module:
        """Return what rsl_rl exports, its parts traced, which TorchScript could not compile."""
        whole = super().as_jit().to("cpu")
        passed = torch.zeros(1, self.obs_dim + len(self.dials))
        for name, part in whole.named_children():
            traced = torch.jit.trace(part, passed)
            setattr(whole, name, traced)
            passed = traced(passed)
        return whole  # type: ignore[no-any-return]

    def as_onnx(self, verbose: bool) -> nn.Module:
        """Return what rsl_rl exports; it takes the places on the dials behind the observations."""
        whole: Any = super().as_onnx(verbose)
        whole.input_size += len(self.dials)
        return whole  # type: ignore[no-any-return]

    def has(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether these are the weights of an actor like this one."""
        return not self.dials and weights.keys() == self.state_dict().keys()

    def to_repolicy(self) -> Policy:
        """Return it as the policy that it is now."""
        found = Conditioned(self.spec, self.dials) if self.dials else Policy(self.spec)
        found.network.load_state_dict(self.mlp.state_dict())
        found.normalizer.load_state_dict(self.obs_normalizer.state_dict())
        if found.log_std is not None:
            found.log_std = self.distribution.log_std
        return frozen(found)


class OfFamily(GaussianDistribution):
    """The normal distribution that a network's outputs `[..., outputs]` stand for in a policy of ours."""

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
    """The means of a network's outputs, for a graph."""

    def __init__(self, width: int, most: float) -> None:
        super().__init__()
        self.width, self.most = width, most

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[..., : self.width].clip(-self.most, self.most)


class HeadsCritic(MLPModel):
    """An `MLPModel` with a head for each part of the return. Its layers see the positions as the policy's do."""

    def __init__(self, *given: Any, heads: int, dials: Any, **network: Any) -> None:
        super().__init__(*given, **network)
        hidden, activation = tuple(network.get("hidden_dims", (256, 256, 256))), network.get("activation", "elu")
        self.mlp = FilmMlp(self.obs_dim, hidden, heads, activation, dials=len(dials))

    def get_latent(self, obs: Any, *memory: Any) -> Tensor:
        return torch.cat([super().get_latent(obs, *memory), obs[GROUP]], -1)


def dialed(weights: Objective, obs: Any, cfg: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first observations and the settings of a run with a range."""
    actor, critic, algorithm = cfg["actor"], cfg["critic"], cfg["algorithm"]
    for who, network, wanted in (("actor", actor, PolicyActor), ("critic", critic, MLPModel)):
        if resolve_callable(network["class_name"]) is not wanted:
            name = "repolicy.hosts.rsl_rl:PolicyActor" if wanted is PolicyActor else "MLPModel"
            raise UsageError(f"omega or alpha is a range, and then the {who}'s class_name must be {name}")
    if critic.get("activation", "elu") not in ACTIVATIONS:
        raise UsageError(f"with a range the critic's activation must be one of {', '.join(ACTIVATIONS)}")
    heads = 1 + sum(getattr(weights, name) != 0 for name in TERMS.values())
    critic = critic | {"class_name": "repolicy.hosts.rsl_rl_networks:HeadsCritic", "heads": heads}
    algorithm = algorithm | {"class_name": "repolicy.hosts.rsl_rl_dial:DialedPPO"}
    seen, dials = obs.clone(recurse=False), weights.dials
    seen[GROUP] = torch.zeros(*obs.batch_size, len(dials), device=obs.device)
    networks = {"actor": actor | {"dials": dials}, "critic": critic | {"dials": dials}}
    return seen, cfg | networks | {"algorithm": algorithm}
