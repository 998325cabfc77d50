"""Residual PPO inside rsl_rl's runner, and so inside Isaac Lab and mjlab.

    algorithm = {
        "class_name": "repolicy.hosts.rsl_rl:ResidualPPO",
        "prior": "logs/prior/model_500.pt",
        "omega": 0.1,
        "alpha": 0.05,
        ...                                    # whatever rsl_rl's own PPO takes
    }

The environment pays the add-on. Rewards change on their way into the storage, once a step, on the storage's device.
"""

import copy
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import FileError, UsageError
from repolicy.hosts.kept_prior import (
    Steering,
    called,
    check_finite,
    check_needs,
    check_same_network,
    check_same_prior,
    check_sizes,
    check_version,
    fill,
    read_prior,
    scored,
    without_gradient,
)
from repolicy.loading import read_bytes
from repolicy.objective import Objective, given_objective, reformulated, task_reward
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.network import MODULES
from repolicy.policies.policy import Policy, PolicySpec, Prior
from repolicy.readers.pickles import load, shortened

check_version("rsl-rl-lib", (5, 4), (6, 0), "rsl-rl")  # first: others lack what is imported here

try:
    from rsl_rl.algorithms import PPO
    from rsl_rl.modules import EmpiricalNormalization, GaussianDistribution
except ImportError:
    raise UsageError("this runs inside rsl_rl, which is not installed: pip install 'repolicy[rsl-rl]'") from None

PARTS = ("task", "prior", "entropy", "log_policy", "log_prior", "steps")  # what is added up over an iteration


class ResidualPPO(PPO):
    """rsl_rl's PPO whose storage gets task + omega · log prior − alpha · log policy. The rest is rsl_rl's.

    objective: an `Objective`, or its fields as a mapping; or `omega` and `alpha` by themselves.
    prior: one of the runner's own checkpoints (`.pt`, of the same networks as the actor), any file that Repolicy
        reads, or an object with `log_prob(observations, actions)`.
    copy_prior: whether the actor begins as the prior, and keeps its observation statistics as they are.
    addon: the entry of the environment's `extras` that holds the add-on `[N]`; without it, the environment's own
        reward is the task's, whatever the objective calls it.
    critic_warmup: iterations at the start that fit the critic alone.
    kl_budget: adapt omega and alpha so that the policy stays this far from its prior, in nats a step.
    host: everything that rsl_rl's PPO takes; beside omega or alpha, `entropy_coef` is 0 unless it is named.
    """

    schedule: str

    def __init__(
        self,
        actor: Any,
        critic: Any,
        storage: Any,
        *,
        objective: Objective | Mapping[str, Any] | None = None,
        omega: float | None = None,
        alpha: float | None = None,
        prior: str | Path | Prior | None = None,
        copy_prior: bool = True,
        addon: str | None = None,
        critic_warmup: int = 0,
        kl_budget: float | None = None,
        device: str = "cpu",
        **host: Any,
    ) -> None:
        self.steering = Steering(given_objective(objective, omega, alpha), kl_budget, critic_warmup)
        if self.steering.objective.omega or self.steering.objective.alpha:
            host = {"entropy_coef": 0.0} | host  # rsl_rl's 0.01 would pay for an entropy that alpha already pays for
        super().__init__(actor, critic, storage, device=device, **host)
        self.addon = addon
        check_needs(self.steering.objective, has_prior=prior is not None)
        if addon is None and self.steering.objective.task == "both":
            raise UsageError(
                "the task 'both' needs two rewards: name the entry of extras that holds the add-on, addon="
            )
        self.prior = (
            None if prior is None else _prior_for(prior, self.get_policy(), storage, copy_prior).to(self.device)
        )
        self._prior_name = called(prior)
        self._sums = torch.zeros(len(PARTS), device=self.device)

    def act(self, obs: Any) -> Tensor:
        """Sample actions, and let the prior score them as they were sampled."""
        actions: Tensor = super().act(obs)
        self._log_prior = None if self.prior is None else self.prior.log_prob(obs, actions)
        return actions

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Record one step with its reformulated reward; time limits are rsl_rl's own affair."""
        log_policy = self.transition.actions_log_prob.detach().view_as(rewards)
        log_prior = None if self._log_prior is None else self._log_prior.view_as(rewards)
        reward = reformulated(self.steering.objective, self._task(rewards, extras), log_prior, log_policy)
        seen = (reward.task, reward.prior, reward.entropy, log_policy, log_policy if log_prior is None else log_prior)
        self._sums += torch.stack([*(part.sum() for part in seen), torch.ones_like(rewards).sum()])
        super().process_env_step(obs, reward.total, dones, extras)
        if self.prior is not None:
            self.prior.reset(dones)

    def update(self) -> dict[str, float]:
        """rsl_rl's update, of the critic alone while that warms up; then the budget steers."""
        means, steps = self._means()
        parts = {name: means[name] for name in ("task", "prior", "entropy")}
        weights = {"omega": self.steering.objective.omega, "alpha": self.steering.objective.alpha}  # that were in force
        check_finite(parts)
        if self.steering.fits_actor:
            losses = super().update()
        else:
            schedule, self.schedule = self.schedule, "fixed"  # a policy that stands still would speed up its learning
            with without_gradient(self.get_policy().parameters()):
                losses = super().update()
            self.schedule = schedule
        prior_kl = means["log_policy"] - means["log_prior"]  # KL(policy ‖ prior), from samples
        self.steering.steer(prior_kl, steps)
        logged = {f"reward_{name}": part for name, part in parts.items()} | weights
        return losses | logged | ({} if self.prior is None else {"prior_kl": prior_kl})

    def save(self) -> dict[str, Any]:
        """rsl_rl's checkpoint with the prior, its name, and where the steering stands beside it."""
        saved: dict[str, Any] = super().save() | {"residual": self.steering.state()}
        if self.prior is None:
            return saved
        return saved | {"prior_state_dict": self.prior.state_dict(), "prior_name": self._prior_name}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:
        """rsl_rl's load; of a checkpoint of this class, the steering as well. Raises where its prior is another."""
        goes_on = super().load(loaded_dict, load_cfg, strict)
        if goes_on and "residual" in loaded_dict:
            if self.prior is not None:
                kept, name = loaded_dict.get("prior_state_dict", {}), loaded_dict.get("prior_name")
                check_same_prior(self.prior.state_dict(), kept, self._prior_name, name)
            self.steering.resume(loaded_dict["residual"])
        return bool(goes_on)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: str) -> Any:
        """Return what the runner calls; here the environment is at hand."""
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        limit = getattr(env, "clip_actions", None)  # a number, or a tensor with one for each number of an action
        limits = [] if limit is None else sorted({*torch.as_tensor(limit).reshape(-1).tolist()})
        words = " to ".join(f"{each:g}" for each in (*limits[:1], *limits[1:][-1:]))
        clips = f"the environment clips actions to ±{words} (clip_actions)" if limits else ""
        check_needs(algorithm.steering.objective, algorithm.prior is not None, clips)
        return algorithm

    def _task(self, rewards: Tensor, extras: dict[str, Any]) -> Tensor:
        """Return the task's own reward. Where the task is the add-on's alone, the environment's is not read."""
        if self.addon is None:
            return rewards
        if self.addon not in extras:
            raise UsageError(
                f"the environment's extras have no {self.addon!r}, which was to hold the add-on; they have "
                f"{', '.join(sorted(extras)) or 'nothing'}"
            )
        addon = torch.as_tensor(extras[self.addon], device=rewards.device).to(rewards.dtype).view_as(rewards)
        return task_reward(self.steering.objective, rewards, addon)

    def _means(self) -> tuple[dict[str, float], int]:
        """Of everything in PARTS over the iteration's steps, on all GPUs, and how many steps these are."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(self._sums)
        *sums, steps = self._sums.tolist()
        self._sums = torch.zeros_like(self._sums)
        return {name: total / steps for name, total in zip(PARTS, sums, strict=False)}, int(steps)


# Priors ---------------------------------------------------------------------------------------------------------------


class RunnersPrior(nn.Module):
    """A copy of the runner's actor with a checkpoint's weights: its normalizer, memory and images included."""

    def __init__(self, actor: Any, weights: Mapping[str, Tensor], path: Path) -> None:
        super().__init__()
        self.model = copy.deepcopy(actor)
        self.model.reset()
        if any(name.startswith("rnn.") for name in weights) and not actor.is_recurrent:
            raise UsageError(f"the prior {path} is recurrent, and this runner's actor has no memory: use an RNNModel")
        fill(self.model, weights, f"the prior {path}")
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def log_prob(self, observations: Any, actions: Tensor) -> Tensor:
        """Return one step of it, `[N]`; without a sample, which would take random numbers from the actor."""
        self.model.distribution.update(self.model.mlp(self.model.get_latent(observations)))
        log_prob: Tensor = self.model.get_output_log_prob(actions)
        return log_prob

    def reset(self, dones: Tensor) -> None:
        """An episode that ended leaves no memory behind."""
        self.model.reset(dones)


class RawPrior(nn.Module):
    """A prior of any kind, which takes the actor's observation groups side by side, as they come."""

    def __init__(self, prior: Prior, groups: list[str]) -> None:
        super().__init__()
        self.prior, self.groups = prior, groups

    def log_prob(self, observations: Any, actions: Tensor) -> Tensor:
        return scored(self.prior, torch.cat([observations[group] for group in self.groups], dim=-1), actions)

    def reset(self, dones: Tensor) -> None:
        """It has no memory."""


def _prior_for(prior: str | Path | Prior, actor: Any, storage: Any, copied: bool) -> RunnersPrior | RawPrior:
    """Return the prior in the form that the runner asks, and the actor begun as it."""
    if isinstance(prior, str | Path) and Path(prior).suffix == ".pt":
        weights = _read_checkpoint(Path(prior))
        if weights is not None:
            own = RunnersPrior(actor, weights, Path(prior))
            if copied:
                actor.load_state_dict(weights)
                _keep_statistics(actor)
            return own
    source = read_prior(prior)
    if isinstance(source, Policy):
        seen = sum(storage.observations[group].shape[-1] for group in actor.obs_groups)
        count = storage.actions_shape[0]
        check_sizes(source, seen, f"{count} numbers", "continuous", (count,))
        if copied:
            from_repolicy(source, actor)
            _keep_statistics(actor)
    return RawPrior(source, list(actor.obs_groups))


def _read_checkpoint(path: Path) -> dict[str, Tensor] | None:
    """Return the actor in one of the runner's checkpoints, without running anything; None where it is no such file."""
    loaded = load(read_bytes(path), str(path))
    actor = loaded.get("actor_state_dict") if isinstance(loaded, dict) else None
    if not isinstance(actor, dict):
        return None
    for name, part in actor.items():
        if not isinstance(part, np.ndarray):
            raise FileError(f"{path} cannot be read: {name} is {shortened(part)}, and no tensor")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise FileError(f"{path} cannot be used: {name} has numbers that are not finite")
    return {name: torch.from_numpy(np.array(part)) for name, part in actor.items()}


def _keep_statistics(actor: Any) -> None:
    """No more updates of the actor's observation statistics: they would move the policy without a gradient."""
    if isinstance(actor.obs_normalizer, EmpiricalNormalization):
        actor.obs_normalizer.until = 0


# Policies of ours and of rsl_rl ---------------------------------------------------------------------------------------


@torch.no_grad()
def from_repolicy(policy: Policy, actor: Any) -> None:
    """Make rsl_rl's actor (an `MLPModel`) act as the policy; refuse where its networks are others."""
    spec, host, std = policy.spec, _spec_of(actor), policy.std
    if std is None or policy.family.squashes:
        raise UsageError(f"the policy is {spec.family}, and rsl_rl's GaussianDistribution has one std for all states")
    remedy = "make the actor's settings the same, or set copy_prior to false to begin elsewhere"
    check_same_network(spec, host, "actor", remedy)
    low, high = actor.distribution.std_range
    if not torch.allclose(std.clamp(low, high), std, rtol=1e-4, atol=0.0):
        raise UsageError(
            f"the policy has a std from {std.min():.3g} to {std.max():.3g}, and the actor's std_range is {low:g} to "
            f"{high:g}: widen std_range in the actor's distribution_cfg"
        )
    for layer, weight, bias in zip(_layers(actor), policy.network.weights, policy.network.biases, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    if actor.distribution.std_type == "log":
        actor.distribution.log_std_param.copy_(std.log())
    else:
        actor.distribution.std_param.copy_(std)
    _copy_statistics(policy, actor)


@torch.no_grad()
def to_repolicy(actor: Any) -> Policy:
    """rsl_rl's actor (an `MLPModel` with a Gaussian of one std) as a policy of ours, its normalizer included."""
    policy = Policy(_spec_of(actor))
    for layer, weight, bias in zip(_layers(actor), policy.network.weights, policy.network.biases, strict=True):
        weight.copy_(layer.weight)
        bias.copy_(layer.bias)
    distribution = actor.distribution
    std = distribution.std_param if distribution.std_type != "log" else distribution.log_std_param.exp()
    assert policy.log_std is not None
    policy.log_std.copy_(std.clamp(*distribution.std_range).log())
    normalizer = actor.obs_normalizer
    if isinstance(normalizer, EmpiricalNormalization):
        var = (normalizer._std.squeeze(0).double() + normalizer.eps).square() - 1e-8
        state = {"mean": normalizer._mean.squeeze(0).double(), "var": var, "count": normalizer.count.double()}
        policy.normalizer.load_state_dict(state)
    return policy.requires_grad_(False).eval()


def _copy_statistics(policy: Policy, actor: Any) -> None:
    """Our (x − mean) / √(var + 1e-8) as rsl_rl's (x − mean) / (std + eps); its inputs are not clipped to ±10."""
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


def _layers(actor: Any) -> list[nn.Linear]:
    return [layer for layer in actor.mlp if isinstance(layer, nn.Linear)]


def _spec_of(actor: Any) -> PolicySpec:
    """Return what rsl_rl's actor would be as a policy of ours, or a sentence that says why it cannot be one."""
    if actor.is_recurrent or hasattr(actor, "cnns"):
        raise UsageError(f"a {type(actor).__name__} has a memory or images, which Repolicy's own policies have not")
    if type(actor.distribution) is not GaussianDistribution:
        raise UsageError(
            f"the actor has a {type(actor.distribution).__name__}; only a GaussianDistribution can be turned into a "
            "policy of Repolicy and back"
        )
    layers = _layers(actor)
    sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
    classes = {type(module) for module in actor.mlp if not isinstance(module, nn.Linear)}
    activation = [name for name, module in MODULES.items() if classes == {module}]
    if not activation or not all(a.out_features == b.in_features for a, b in pairwise(layers)):
        raise UsageError(
            f"the actor's network has {', '.join(sorted(each.__name__ for each in classes))}; Repolicy's "
            f"have {', '.join(MODULES)}"
        )
    unbounded = (float("inf"),) * sizes[-1]
    actions = ActionSpace("continuous", (sizes[-1],), tuple(-bound for bound in unbounded), unbounded)
    hidden = tuple(sizes[1:-1])
    return PolicySpec(sizes[0], actions, "gaussian", hidden, activation[0], min_std=0.0, observation_bound=None)
