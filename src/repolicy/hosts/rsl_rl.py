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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import FileError, UsageError
from repolicy.hosts.kept_prior import (
    ROWS,
    Given,
    called,
    check_needs,
    check_same_prior,
    fill,
    in_rows,
    open_prior,
    path_of,
    without_gradient,
)
from repolicy.hosts.measuring import Look, Paid, Sizes, decide_in
from repolicy.hosts.method import Method, Seen, Steering, weighs
from repolicy.hosts.rsl_rl_policies import from_repolicy, layers_of, to_repolicy
from repolicy.learning.ppo import adapted
from repolicy.learning.worker import ALONE
from repolicy.loading import read_bytes
from repolicy.objective import Objective, given_objective, task_reward
from repolicy.policies.density import Density
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy
from repolicy.prepare.defaults import of_shape
from repolicy.readers.pickles import load, shortened
from repolicy.runs.settings import Settings

from rsl_rl.algorithms import PPO  # isort: skip  # after ours, which say what to install where it is missing

__all__ = ["ResidualPPO", "from_repolicy", "to_repolicy"]

DESIRED_KL = Settings().desired_kl  # of an update


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
        states: float | None = None,
        prior: Any = None,
        copy_prior: bool = True,
        addon: str | None = None,
        critic_warmup: int | None = None,
        kl_budget: float | None = None,
        log_prior_budget: float | None = None,
        device: str = "cpu",
        **host: Any,
    ) -> None:
        weights = given_objective(objective, omega, alpha, states)
        critic_warmup = 0 if critic_warmup is None and not (copy_prior and prior is not None) else critic_warmup
        steering = Steering(weights, kl_budget, log_prior_budget, critic_warmup)
        self.adapts, self.learning_rate = False, 0.0  # whether the learning rate moves once an iteration
        if weighs(weights):
            host = {"entropy_coef": 0.0} | host  # rsl_rl's 0.01 would pay for an entropy that alpha already pays for
        if prior is not None and weighs(weights):
            usual = of_shape(max(layer.out_features for layer in layers_of(actor)), int(storage.actions_shape[0]))
            samples = storage.num_envs * storage.num_transitions_per_env
            self.adapts = "schedule" not in host and not actor.is_recurrent
            host = {
                "num_learning_epochs": usual.epochs,
                "num_mini_batches": max(1, round(samples / usual.minibatch)),
                "gamma": usual.gamma,
                "learning_rate": usual.learning_rate,
                "schedule": "fixed",
                "max_grad_norm": usual.max_gradient_norm,
                "value_loss_coef": usual.value_coefficient / 2,  # of the whole squared error, not of half of it
                "use_clipped_value_loss": False,
            } | host
        super().__init__(actor, critic, storage, device=device, **host)
        self.addon = addon
        check_needs(steering.objective, has_prior=prior is not None)
        if addon is None and steering.objective.task == "both":
            raise UsageError(
                "the task 'both' needs two rewards: name the entry of extras that holds the add-on, addon="
            )
        own = None if prior is None else _prior_for(prior, self.get_policy(), storage, copy_prior).to(self.device)
        self.prior, self._prior_name = own, called(path_of(prior))
        self.method = Method(steering, own, self._add_up)
        self.method.scaled(self._raw_critic, layers_of(self._raw_critic)[-1])
        self._paid = torch.zeros_like(storage.rewards.squeeze(-1))  # the task's rewards of the iteration, [T, N]

    @property
    def steering(self) -> Steering:
        return self.method.steering

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Record one step with the task's reward; time limits are rsl_rl's own affair."""
        task = self._task(rewards, extras)
        self._paid[self.storage.step].copy_(task)
        super().process_env_step(obs, task, dones, extras)

    def compute_returns(self, obs: Any) -> None:
        """rsl_rl's, of the reformulated rewards."""
        st = self.storage
        rewards, returns, values, log_policy, dones = (
            part.squeeze(-1) for part in (st.rewards, st.returns, st.values, st.actions_log_prob, st.dones)
        )
        seen = Seen(
            st.observations, st.actions, log_policy, self._paid, dones > 0,
            lambda: torch.cat([self.rows(st.observations)[1:], self.rows(obs).unsqueeze(0)]),
        )  # fmt: skip
        at_limits = rewards - self._paid  # what rsl_rl has added for what would have followed
        rewards.copy_(self.method.reward(seen) + at_limits)
        super().compute_returns(obs)
        self.method.credit(returns, values)

    def update(self) -> dict[str, float]:
        """rsl_rl's update, of the critic alone while that warms up; then the budget steers."""
        shown = self.method.measured()
        if self.adapts:
            self.learning_rate = adapted(self.learning_rate, self.method.update_kl, DESIRED_KL)
        if self.steering.fits_actor:
            self._take(self.learning_rate)
            losses = super().update()
            self.method.moved = self._moved() if self.adapts else None
        else:
            self._take(max(self.learning_rate, ALONE) if self.adapts else self.learning_rate)
            schedule, self.schedule = self.schedule, "fixed"  # a policy that stands still would speed up its learning
            with without_gradient(self.get_policy().parameters()):
                losses = super().update()
            self.schedule = schedule
        self.method.steer()
        return losses | shown

    def _take(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @torch.no_grad()
    def _moved(self) -> Tensor:
        """Return the KL by which the update moved the actor, summed over some states, and their number."""
        st, actor = self.storage, self.get_policy()
        some = slice(None, None, max(1, st.num_envs * st.num_transitions_per_env // ROWS))
        actor.distribution.update(actor.mlp(actor.get_latent(st.observations.flatten(0, 1)[some])))
        before = tuple(part.flatten(0, 1)[some] for part in st.distribution_params)
        kl = actor.get_kl_divergence(before, actor.output_distribution_params)
        return self._add_up(torch.stack([kl.sum(), torch.ones_like(kl).sum()]).double())

    def save(self) -> dict[str, Any]:
        """rsl_rl's checkpoint with the prior, its name, and where the steering stands beside it."""
        saved: dict[str, Any] = super().save() | {"residual": self.method.state()}
        if self.method.density is not None:
            saved["residual_states"] = self.method.density.tensors()
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
            self.method.resume(loaded_dict["residual"])
            if "residual_states" in loaded_dict:
                self.method.density = Density.from_tensors(loaded_dict["residual_states"]).to(self.device)
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
        algorithm.begin(RunnerEnvs(env, algorithm))
        return algorithm

    def begin(self, envs: "RunnerEnvs") -> None:
        """Measure the weights that are not named, and learn the prior's states where they have a price."""
        weights = self.steering.objective
        if self.prior is None or (weights.is_set and not weights.states):
            return
        if self.is_multi_gpu and self.gpu_global_rank:
            told: list[Any] = [None, None]
            torch.distributed.broadcast_object_list(told)
            state, density = told
            self.method.steering.resume(state, named=False)
            self.method.density = density if density is None else density.to(self.device)
            return
        sizes = Sizes(envs.states(self.storage.observations[0]).shape[-1], _actions(self.storage))
        decide_in(
            self.method, Look(envs, self.prior), self.prior.card, sizes, lambda said: print(f"ResidualPPO: {said}")
        )
        if self.is_multi_gpu:
            found = self.method.density
            torch.distributed.broadcast_object_list([self.steering.state(), found and found.to("cpu")])

    def _task(self, rewards: Tensor, extras: dict[str, Any]) -> Tensor:
        """Return the task's own reward. Where the task is the add-on's alone, the environment's is not read."""
        if self.addon is None:
            return rewards
        return task_reward(self.steering.objective, rewards, self.addon_in(extras, rewards))

    def addon_in(self, extras: dict[str, Any], rewards: Tensor) -> Tensor:
        """Return the add-on `[N]` from the environment's extras."""
        if self.addon not in extras:
            raise UsageError(
                f"the environment's extras have no {self.addon!r}, which was to hold the add-on; they have "
                f"{', '.join(sorted(extras)) or 'nothing'}"
            )
        return torch.as_tensor(extras[self.addon], device=rewards.device).to(rewards.dtype).view_as(rewards)

    def rows(self, observations: Any) -> Tensor:
        """Return the actor's observation groups side by side, `[..., O]`."""
        lead = len(observations.batch_size)
        return torch.cat([observations[group].flatten(lead) for group in self.get_policy().obs_groups], dim=-1)

    def _add_up(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all GPUs, in place."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(tensor)
        return tensor


class RunnerEnvs:
    """The runner's environments, for episodes of the prior before training."""

    def __init__(self, env: Any, algorithm: ResidualPPO) -> None:
        self.env, self.algorithm, self.states = env, algorithm, algorithm.rows
        self.stepped = False

    def begin(self) -> tuple[Any, bool]:
        """Return observations; not every runner's environments can be reset, and then some episodes are under way."""
        if self.stepped and hasattr(self.env, "reset"):
            self.env.reset()
            self.stepped = False
        return self.env.get_observations().to(self.algorithm.device), not self.stepped

    def step(self, actions: Tensor) -> Paid:
        """Return what followed; beside an add-on in the extras, the environment's reward is its own."""
        self.stepped, named = True, self.algorithm.addon is not None
        observations, rewards, dones, extras = self.env.step(actions.to(self.env.device))
        observations, rewards, dones = (part.to(self.algorithm.device) for part in (observations, rewards, dones))
        addon = self.algorithm.addon_in(extras, rewards) if named else rewards
        return Paid(observations, rewards if named else None, addon, dones > 0)


# Priors ---------------------------------------------------------------------------------------------------------------


class RunnersPrior(nn.Module):
    """A copy of the runner's actor with a checkpoint's weights: its normalizer, memory and images included."""

    def __init__(self, actor: Any, weights: Mapping[str, Tensor], path: Path) -> None:
        super().__init__()
        self.card: dict[str, Any] = {}  # the runner's checkpoints tell nothing of their training
        self.model = copy.deepcopy(actor)
        self.model.reset()
        if any(name.startswith("rnn.") for name in weights) and not actor.is_recurrent:
            raise UsageError(f"the prior {path} is recurrent, and this runner's actor has no memory: use an RNNModel")
        fill(self.model, weights, f"the prior {path}")
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def score(self, observations: Any, actions: Tensor, ended: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log prior and the prior's entropy, both `[T, N]`; a memory goes on where the last rollout stopped."""
        if not self.model.is_recurrent:
            return in_rows(self._step, observations, actions)
        found = []
        for seen, acted, last in zip(observations, actions, ended, strict=True):
            found.append(self._step(seen, acted))
            self.forget(last)
        log_prob, entropy = (torch.stack(part) for part in zip(*found, strict=True))
        return log_prob, entropy

    def _step(self, observations: Any, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return both of rows; without a sample, which would take random numbers from the actor."""
        self._look(observations)
        return self.model.get_output_log_prob(actions), self.model.output_entropy

    def _look(self, observations: Any) -> Tensor:
        """Move the distribution, and the memory, to these observations; return the likeliest actions."""
        outputs = self.model.mlp(self.model.get_latent(observations))
        self.model.distribution.update(outputs)
        likeliest: Tensor = self.model.distribution.deterministic_output(outputs)
        return likeliest

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        """Return actions, and their nats `[N]`: the entropy of sampled ones, log π of the likeliest."""
        likeliest = self._look(observations)
        if sample:
            return self.model.distribution.sample(), self.model.output_entropy
        return likeliest, self.model.get_output_log_prob(likeliest)

    def forget(self, ended: Tensor | None = None) -> None:
        """Begin anew where an episode ended. (rsl_rl's own reset of some rows waits for the device.)"""
        if ended is None or not self.model.is_recurrent:
            self.model.reset()
            return
        state, keep = self.model.get_hidden_state(), ~ended.unsqueeze(-1)
        parts = tuple(part * keep for part in (state if isinstance(state, tuple) else (state,)))
        self.model.reset(hidden_state=parts if isinstance(state, tuple) else parts[0])


class SideBySide(Given):
    """A prior of any kind, which takes the actor's observation groups side by side, as they come."""

    groups: list[str]

    def score(self, observations: Any, actions: Tensor, ended: Tensor) -> tuple[Tensor, Tensor | None]:
        return super().score(self._rows(observations), actions, ended)

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        return super().act(self._rows(observations), sample)

    def _rows(self, observations: Any) -> Tensor:
        return torch.cat([observations[group] for group in self.groups], dim=-1)


def _prior_for(given: Any, actor: Any, storage: Any, copied: bool) -> RunnersPrior | SideBySide:
    """Return the prior in the form that the runner asks, and the actor begun as it."""
    path = path_of(given)
    if isinstance(path, str | Path) and Path(path).suffix == ".pt":
        weights = _read_checkpoint(Path(path))
        if weights is not None:
            own = RunnersPrior(actor, weights, Path(path))
            if copied:
                actor.load_state_dict(weights)
                _keep_statistics(actor)
            return own
    seen = sum(storage.observations[group].shape[-1] for group in actor.obs_groups)
    prior = SideBySide(open_prior(given), seen, _actions(storage))
    prior.groups = list(actor.obs_groups)
    if copied and isinstance(prior.prior, Policy):
        from_repolicy(prior.prior, actor)
        _keep_statistics(actor)
    return prior


def _actions(storage: Any) -> ActionSpace:
    width = int(storage.actions_shape[0])
    return ActionSpace("continuous", (width,), (-float("inf"),) * width, (float("inf"),) * width)


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
    actor.obs_normalization = False
