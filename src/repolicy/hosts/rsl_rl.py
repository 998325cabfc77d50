"""Residual PPO inside rsl_rl's runner, and so inside Isaac Lab and mjlab.

    algorithm = {
        "class_name": "repolicy.hosts.rsl_rl:ResidualPPO",
        "prior": "logs/prior/model_500.pt",    # all weights are measured
    }

The environment pays the add-on. Rewards change in the storage, once an iteration, on its device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repolicy.addons import addon_names, combine_addons
from repolicy.addons.registered import info_entry
from repolicy.errors import UsageError
from repolicy.hosts import priors
from repolicy.hosts.measuring import compare_with_prior, measure_unset
from repolicy.hosts.method import DESIRED_KL, TARGET_RATIO, HostRollout, Method, accelerate_std
from repolicy.hosts.rsl_rl_envs import RunnerEnvs, time_outs
from repolicy.hosts.rsl_rl_networks import PolicyActor, dial_settings, flattened, from_repolicy, layers_of, to_repolicy
from repolicy.hosts.rsl_rl_priors import RunnerPrior, build_prior
from repolicy.hosts.steering import (
    Steering,
    check_options,
    default_warmup,
    has_weight,
    objective_from_settings,
    warn_about_entropy_bonus,
)
from repolicy.objective import Objective, task_reward
from repolicy.policies import Density, Mlp, Policy, frozen, metadata, policy_bytes
from repolicy.prepare.defaults import settings_for_shape

from rsl_rl.algorithms import PPO  # isort: skip  # after ours, which say what to install where it is missing
from rsl_rl.utils import resolve_callable  # isort: skip

__all__ = ["PolicyActor", "ResidualPPO", "from_repolicy", "to_repolicy"]


class ResidualPPO(PPO):
    """rsl_rl's PPO whose storage gets task + omega · log prior − alpha · log policy. The rest is rsl_rl's.

    objective: an `Objective`, or its fields as a mapping; or its weights by themselves: `omega`, `alpha`, `states`.
        Those that are not named are measured before training.
    prior: one of the runner's own checkpoints (`.pt`, of the same networks as the actor), any file that Repolicy
        reads, a mapping with its `path` and how to read it, or an object with `log_prob(observations, actions)`.
    copy_prior: whether the actor begins as the prior, and keeps its observation statistics as they are.
    addon: the entry of the environment's `extras` that holds the add-on `[N]`; or `wish.safetensors=10`, a learnt wish,
        or `my.py:quiet`, a function as of `repolicy customize`. Without it, the environment's own reward is the task's,
        whatever the objective calls it.
    critic_warmup: iterations that fit the critic alone; by default the first 5, and of the next 10 those where it lags.
    kl_budget: adapt omega and alpha, one number, so that the policy stays this far from its prior, in nats a step.
    log_prior_budget: adapt omega alone so that actions are to the prior this many nats less likely than its own.
    limits: such as `["power<=0.07"]`, each on the mean of an entry `[N]` of `extras`; beside an `addon`, the
        environment's own reward is `basic_reward`.
    keep: adapt omega so that a share like 0.97 is kept of what the prior's mean action earns of `basic_reward` a step.
    host: everything that rsl_rl's PPO takes; beside a prior the engine's settings where none is named.
    """

    schedule: str
    envs: RunnerEnvs

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
        limits: Sequence[str] | None = None,
        keep: float | None = None,
        device: str = "cpu",
        **host: Any,
    ) -> None:
        check_options(host, ResidualPPO.__init__, PPO.__init__)
        weights = objective_from_settings(objective, omega, alpha, states)
        critic_warmup = default_warmup(critic_warmup, copy_prior and prior is not None)
        steering = Steering(weights, kl_budget, log_prior_budget, critic_warmup, limits or (), keep, ranges=True)
        self.adapts, self.learning_rate = False, 0.0  # adapts: whether the learning rate adapts to the KL
        customizes = prior is not None and has_weight(weights)
        if has_weight(weights):
            host = {"entropy_coef": 0.0} | host  # rsl_rl's 0.01 would pay for an entropy that alpha already pays for
        if customizes:
            warn_about_settings(host)
            is_recurrent = actor.is_recurrent or critic.is_recurrent
            self.adapts = "schedule" not in host and not is_recurrent
            host = _default_settings(actor, storage, is_recurrent) | host
        super().__init__(actor, critic, storage, device=device, **host)
        self.flat_observations = partial(flattened, groups=actor.obs_groups)
        if self.adapts:
            storage.mini_batch_generator = partial(self._minibatches_until_target_kl, storage.mini_batch_generator)
        self.addon = addon = addon and str(addon)
        self.wish = combine_addons([addon]) if addon and addon_names.import_target(addon) else None
        self.prior, self._prior_label = None, priors.prior_label(prior)
        if prior is not None:
            self.prior = build_prior(prior, self.get_policy(), storage, copy_prior).to(self.device)
        self.method = Method(steering, self.prior, self._add_up)
        self.method.desired_kl = self.desired_kl or DESIRED_KL
        if customizes:
            for log_std in _log_stds(actor):
                accelerate_std(self.optimizer, log_std, storage.num_envs * storage.num_transitions_per_env)
        self.method.normalize_critic(critic, critic.mlp if isinstance(critic.mlp, Mlp) else layers_of(critic)[-1])
        self._task_rewards = torch.zeros_like(storage.rewards.squeeze(-1))  # of the iteration, [T, N]
        self._timed_out = torch.zeros_like(storage.dones.squeeze(-1), dtype=torch.bool)  # [T, N]
        self._iterations_left = 0  # until the verdict; 0 where the settings do not tell the number of iterations
        self._has_moved = False  # whether the environments moved on since the runner last saw them

    @property
    def steering(self) -> Steering:
        return self.method.steering

    def act(self, obs: Any) -> Tensor:
        """Sample actions as rsl_rl does, for what the environments show now."""
        return super().act(self.present(obs))

    def present(self, obs: Any) -> Any:
        """Return the runner's observations, or new ones where the environments have moved on since then."""
        if self._has_moved:
            obs, self._has_moved = self.envs.env.get_observations().to(self.device), False
        return obs

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Store one step with the task's reward. rsl_rl itself handles time limits."""
        task = rewards
        if self.addon is not None:
            task = task_reward(self.steering.objective, rewards, self.addon_rewards(extras, rewards))
        self._task_rewards[self.storage.step].copy_(task)
        self._timed_out[self.storage.step].copy_(time_outs(extras, dones))
        for values, found in zip(self._limit_values, self.read_limit_values(extras, rewards), strict=True):
            values[self.storage.step].copy_(found)
        super().process_env_step(obs, task, dones, extras)

    def compute_returns(self, obs: Any) -> None:
        """Compute rsl_rl's returns from the reformulated rewards."""
        st = self.storage
        rewards, returns, values = (part.squeeze(-1) for part in (st.rewards, st.returns, st.values))
        bootstrap = rewards - self._task_rewards  # rsl_rl adds it at time limits
        self._add_wish_rewards(obs)
        rewards.copy_(self.method.reward(self.rollout(obs)) + bootstrap)
        super().compute_returns(obs)
        self.method.credit(returns, values)

    def _add_wish_rewards(self, obs: Any) -> None:
        """Add the rewards of a wish for the rollout in the storage; `obs` are the observations after it."""
        if self.wish is not None:
            rollout = self.rollout(obs)
            states = rollout.states()
            self._task_rewards += self.envs.wish_rewards(states[:-1], rollout.actions, states[1:], rollout.ended)

    def rollout(self, obs: Any) -> HostRollout:
        """Return the rollout in the storage; `obs` are the observations after it."""
        st = self.storage
        ended = st.dones.squeeze(-1) > 0

        def states() -> Tensor:
            return torch.cat([self.flat_observations(st.observations), self.flat_observations(obs).unsqueeze(0)])

        return HostRollout(
            st.observations,
            st.actions,
            st.actions_log_prob.squeeze(-1),
            self._task_rewards,
            ended,
            ended & ~self._timed_out,
            states,
            self._limit_values,
            self.gamma,
        )

    def update(self) -> dict[str, float]:
        """Run rsl_rl's update, of the critic alone during the warm-up, and then move the weights."""
        metrics, schedule = self.method.iteration_metrics(), self.schedule
        learning_rate = self.learning_rate if self.adapts else None
        actor = self.get_policy().parameters()
        with self.method.policy_update(actor, learning_rate, self._set_learning_rate) as critic_only:
            if critic_only:
                self.schedule = "fixed"  # a KL of 0 would raise the learning rate
            losses = super().update()
            self.schedule = schedule
        if self.adapts and not critic_only:
            self.method.update_kl_sums = self._update_kl_sums
            planned = self.num_learning_epochs * self.num_mini_batches  # rsl_rl has divided the sums by this
            losses = {name: loss * planned / self._minibatches_done for name, loss in losses.items()}
        self._iterations_left -= 1
        if self._iterations_left == 0 and self.prior is not None and self.prior.can_act and self.method.changes_rewards:
            print(f"ResidualPPO: {self.verdict()}")
        return losses | metrics

    def _set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    @torch.no_grad()
    def _measure_update_kl(self) -> Tensor:
        """Return the KL by which the update moved the actor, summed over some states, and the number of states."""
        st, actor = self.storage, self.get_policy()
        some = slice(None, None, max(1, st.num_envs * st.num_transitions_per_env // priors.SCORE_BATCH))
        actor.distribution.update(actor.mlp(actor.get_latent(st.observations.flatten(0, 1)[some])))
        return self._kl_sums(tuple(part.flatten(0, 1)[some] for part in st.distribution_params))

    def _kl_sums(self, old: tuple[Tensor, ...]) -> Tensor:
        """Return KL(old ‖ new) summed over the actor's last batch, and the size of that batch."""
        new = tuple(part[: len(old[0])] for part in self.get_policy().output_distribution_params)
        kl = self.get_policy().get_kl_divergence(old, new)
        return self._add_up(torch.stack([kl.sum(), torch.ones_like(kl).sum()]).double())

    def _minibatches_until_target_kl(self, minibatches: Callable[..., Iterator[Any]], *sizes: int) -> Iterator[Any]:
        """Yield an update's minibatches; stop once the actor had moved too far before its step on the last one."""
        for self._minibatches_done, batch in enumerate(minibatches(*sizes), 1):
            yield batch
            with torch.no_grad():
                total, states = self._kl_sums(batch.old_distribution_params).tolist()
            if total > TARGET_RATIO * self.method.desired_kl * states:
                break
        self._update_kl_sums = self._measure_update_kl()  # here, as rsl_rl then updates its statistics of observations

    def save(self) -> dict[str, Any]:
        """Return rsl_rl's checkpoint, with the method's state, the prior and its name added."""
        state = self.method.state() | {"addon": self.addon}
        with self.method.critic_in_rewards():
            saved: dict[str, Any] = super().save() | {"residual": state}
            saved["critic_state_dict"] = {name: part.clone() for name, part in saved["critic_state_dict"].items()}
        if self.method.density is not None:
            saved["residual_states"] = self.method.density.tensors()
        if isinstance(actor := self.get_policy(), PolicyActor):  # a policy file inside: all our tools can read it
            policy = priors.unwrap_prior(self.prior)
            prior = frozen(policy).cpu() if isinstance(policy, Policy) else None
            saved |= metadata.checkpoint_entries(
                saved["actor_state_dict"], policy_bytes(actor.to_repolicy(), {}, prior)
            )
        if self.prior is not None:
            saved |= {"prior_state_dict": self.prior.state_dict(), "prior_name": self._prior_label}
        return saved

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:
        """Load as rsl_rl does, and the method's state where there is one. Raises where the prior is another."""
        if "residual" in loaded_dict:
            self.steering.check_same_ranges(loaded_dict["residual"])
        resumes = super().load(loaded_dict, load_cfg, strict)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]  # rsl_rl before 5.4.2 begins at the settings' again
        if load_cfg is None or load_cfg.get("critic"):
            self.method.resume_critic(loaded_dict.get("residual"))
        if resumes and "residual" in loaded_dict:
            if self.prior is not None:
                weights, label = loaded_dict.get("prior_state_dict", {}), loaded_dict.get("prior_name")
                priors.check_same_prior(self.prior.state_dict(), weights, self._prior_label, label)
            addon = loaded_dict["residual"].get("addon", self.addon)
            if addon == self.addon:
                self.method.resume(loaded_dict["residual"])
            else:  # a nat has another worth in it, and the critic is of another reward
                beside = f"the checkpoint's addon was {addon}, and today's is {self.addon}"
                print(f"ResidualPPO: {beside}: weights that are not named are measured anew")
            objective = self.steering.objective
            if objective.is_set:  # else measuring prints the weights
                print(f"ResidualPPO: goes on with omega {objective.omega:.3g} and alpha {objective.alpha:.3g}")
            if "residual_states" in loaded_dict:
                self.method.density = Density.from_tensors(loaded_dict["residual_states"]).to(self.device)
        return bool(resumes)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: str) -> Any:
        """Build the algorithm for the runner. Only here the environment is known, so its checks stand here."""
        if resolve_callable(cfg["actor"]["class_name"]) is PolicyActor:
            cfg["actor"] = {"policy": cfg["algorithm"].get("prior")} | cfg["actor"]
        weights = objective_from_settings(*map(cfg["algorithm"].get, ("objective", "omega", "alpha", "states")))
        if weights.dials:
            obs, cfg = dial_settings(weights, obs, cfg)
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        clipping = "" if getattr(env, "clip_actions", None) is None else "the environment clips actions (clip_actions)"
        priors.check_objective(algorithm.steering.objective, algorithm.prior is not None, clipping)
        remedy = "apply it in the environment's step, and give that an attribute squashes = True"
        priors.check_squashed(algorithm.prior, getattr(env, "squashes", False), remedy)
        algorithm.envs = RunnerEnvs(env, algorithm)
        algorithm.envs.set_step_count(getattr(algorithm.prior, "env_steps", 0) or algorithm.envs.step_count)
        if not algorithm.is_multi_gpu or not algorithm.gpu_global_rank:
            # Isaac Lab's and mjlab's scripts train for this number of iterations.
            algorithm._iterations_left = int(cfg.get("max_iterations", 0))
        return algorithm

    def train_mode(self) -> None:
        """Begin to learn, as rsl_rl's runner calls it: what is not known by now is measured."""
        super().train_mode()
        if not self.method.is_ready:
            ages, steps = self.envs.ages, self.envs.step_count
            self.measure()
            self.envs.set_step_count(steps)  # measuring has taken steps
            self.envs.ages = ages  # the runner may have set them at random
            self._has_moved = True
        shape = len(self.steering.required_entries), *self._task_rewards.shape
        self._limit_values = torch.zeros(shape, device=self.device)  # the quantities that have limits, [L, T, N]
        self.method.ages = self.envs.ages

    def verdict(self) -> str:
        """Run the prior and the present actor; return their rewards, and whether the actor is better."""
        actor = self.get_policy()
        self.envs.has_stepped = True  # the runner has stepped them
        with torch.inference_mode():  # the environments' tensors are inference tensors, as the runner steps them so
            text = compare_with_prior(self.method, self.envs, RunnerPrior(actor, actor.state_dict(), Path()))
        for network in (actor, self.critic):
            network.reset()  # their memory is of the episodes before
        self._has_moved = True
        return text

    def measure(self) -> None:
        """Measure what is not named, and learn the prior's states where they have a price."""
        measured: list[Any] = [None, None]
        if not self.is_multi_gpu or not self.gpu_global_rank:
            measure_unset(self.method, self.envs)
            density = self.method.density
            measured = [self.steering.state(), density and density.to("cpu")]
        if self.is_multi_gpu:
            torch.distributed.broadcast_object_list(measured)
            self.steering.resume(measured[0])
            self.method.density = measured[1] and measured[1].to(self.device)

    def addon_rewards(self, extras: dict[str, Any], rewards: Tensor) -> Tensor:
        """Return the add-on `[N]` in extras; 0 for a wish, whose rewards are added to the whole rollout later."""
        if self.wish is not None:
            return torch.zeros_like(rewards)
        return self.read_extra(extras, rewards, str(self.addon), f"the add-on is {self.addon!r}")

    def read_limit_values(self, extras: dict[str, Any], rewards: Tensor) -> list[Tensor]:
        """Return the quantities that have limits, each `[N]`."""
        if self.addon is not None:  # then the environment's own reward is the old one
            extras = {"basic_reward": rewards} | extras
        return [self.read_extra(extras, rewards, name, why) for name, why in self.steering.required_entries]

    def read_extra(self, extras: dict[str, Any], rewards: Tensor, name: str, why: str) -> Tensor:
        """Return an entry `[N]` of the environment's extras; errors begin with `why`."""
        value = info_entry(extras, name, why, "extras")
        if not isinstance(value, Tensor) or value.numel() != rewards.numel():
            must = f"must be a tensor of {rewards.numel()} numbers, one an environment"
            raise UsageError(f"{why} in the environment's extras, and that {must}")
        return value.to(rewards).view_as(rewards)

    def _add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all GPUs, in place."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(tensor)
        return tensor


def warn_about_settings(host: Mapping[str, Any]) -> None:
    """Print which settings do harm beside a prior. Settings from a dataclass name them even where no user did."""
    warn_about_entropy_bonus("entropy_coef", host.get("entropy_coef"))
    if host.get("schedule") == "adaptive":
        print("ResidualPPO: the schedule 'adaptive' may raise the learning rate until the policy is lost: set 'fixed'")
    if host.get("rnd_cfg"):
        print("ResidualPPO: rnd_cfg adds a reward for new states, which neither measured weights nor the verdict count")
    mirrors = host.get("symmetry_cfg") or {}
    if mirrors.get("use_data_augmentation") or mirrors.get("use_mirror_loss"):
        print("ResidualPPO: symmetry_cfg needs a prior that is symmetric itself: leave it out beside any other")


def _default_settings(actor: Any, storage: Any, is_recurrent: bool) -> dict[str, Any]:
    """Return the engine's settings for customizing, by rsl_rl's names."""
    usual = settings_for_shape(max(64, *map(len, actor.mlp.parameters())), int(storage.actions_shape[0]))
    samples = storage.num_envs * storage.num_transitions_per_env
    minibatches = max(1, round(samples / usual.minibatch))
    if is_recurrent:  # then a minibatch is of whole environments, and rsl_rl leaves out those that are over
        envs_each = max(1, round(storage.num_envs / minibatches))
        minibatches = storage.num_envs // envs_each
    return {
        "num_learning_epochs": usual.epochs,
        "num_mini_batches": minibatches,
        "gamma": usual.gamma,
        "learning_rate": usual.learning_rate,
        "schedule": "fixed",
        "max_grad_norm": usual.max_gradient_norm,
        # rsl_rl's loss of the critic is the whole squared error, the engine's is half of it.
        "value_loss_coef": usual.value_coefficient / 2,
        "use_clipped_value_loss": False,
    }


def _log_stds(actor: Any) -> list[Tensor]:
    """Return an actor's parameter for the log std. An std that is a parameter itself moves fast enough anyway."""
    is_ours = isinstance(actor, PolicyActor) and not actor.dials and actor.spec.std == "exp"
    log_std = getattr(actor.distribution, "log_std" if is_ours else "log_std_param", None)
    return [] if log_std is None else [log_std]
