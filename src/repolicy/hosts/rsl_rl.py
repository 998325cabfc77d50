"""Residual PPO inside rsl_rl's runner, and so inside Isaac Lab and mjlab.

    algorithm = {
        "class_name": "repolicy.hosts.rsl_rl:ResidualPPO",
        "prior": "logs/prior/model_500.pt",    # all weights are measured
        ...                                    # whatever rsl_rl's own PPO takes
    }

The environment pays the add-on. Rewards change in the storage, once an iteration, on its device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repolicy.envs import addons
from repolicy.errors import UsageError
from repolicy.hosts.kept_prior import ROWS, behind, called, check_needs, check_same_prior, check_squashed
from repolicy.hosts.measuring import compared, decide_in
from repolicy.hosts.method import TARGET_KL, Method, Seen, entry, quicken
from repolicy.hosts.rsl_rl_envs import RunnerEnvs
from repolicy.hosts.rsl_rl_networks import PolicyActor, dialed, from_repolicy, layers_of, to_repolicy
from repolicy.hosts.rsl_rl_priors import RunnersPrior, prior_for
from repolicy.hosts.steering import Steering, check_options, say_of_bonus, usual_warmup, weighs, weights_named
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
    critic_warmup: iterations at the start that fit the critic alone; by default 5, or more for a critic that lags.
    kl_budget: adapt omega and alpha, one number, so that the policy stays this far from its prior, in nats a step.
    log_prior_budget: adapt omega alone so that actions are to the prior this many nats less likely than its own.
    limits: such as `["power<=0.07"]`, each on the mean of an entry `[N]` of `extras`; beside an `addon`, the
        environment's own reward is `basic_reward`.
    keep: adapt omega so that a share like 0.97 is kept of what the prior's mean action earns of `basic_reward` a step.
    host: everything that rsl_rl's PPO takes; beside a prior the engine's settings where none is named.
    """

    schedule: str
    envs: RunnerEnvs
    ranges = False  # whether a weight may be one

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
        limits: Sequence[str] = (),
        keep: float | None = None,
        device: str = "cpu",
        **host: Any,
    ) -> None:
        check_options(host, ResidualPPO.__init__, PPO.__init__)
        weights = weights_named(objective, omega, alpha, states)
        critic_warmup = usual_warmup(critic_warmup, copy_prior and prior is not None)
        steering = Steering(weights, kl_budget, log_prior_budget, critic_warmup, limits, keep, ranges=self.ranges)
        self.adapts, self.learning_rate = False, 0.0  # whether the learning rate moves once an iteration
        if weighs(weights):
            host = {"entropy_coef": 0.0} | host  # rsl_rl's 0.01 would pay for an entropy that alpha already pays for
        if prior is not None and weighs(weights):
            say_what_works_against(host)
            self.adapts = "schedule" not in host and not (actor.is_recurrent or critic.is_recurrent)
            host = _usual(actor, storage) | host
        super().__init__(actor, critic, storage, device=device, **host)
        if self.adapts:
            storage.mini_batch_generator = partial(self._until_far, storage.mini_batch_generator)
        self.addon = addon = addon and str(addon)  # an entry of extras; or, of a file or a module, a wish
        self.wish = addons.combine_addons([addon]) if addon and addons.import_target(addon) else None
        check_needs(steering.objective, has_prior=prior is not None)
        own = None if prior is None else prior_for(prior, self.get_policy(), storage, copy_prior).to(self.device)
        self.prior, self._prior_name = own, called(prior)
        self.method = Method(steering, own, self._add_up)
        if self.prior is not None and weighs(weights):
            for log_std in _log_stds(actor):
                quicken(self.optimizer, log_std, storage.num_envs * storage.num_transitions_per_env)
        self.method.scaled(critic, critic.mlp if isinstance(critic.mlp, Mlp) else layers_of(critic)[-1])
        self._paid = torch.zeros_like(storage.rewards.squeeze(-1))  # the task's rewards of the iteration, [T, N]
        self._left = 0  # iterations until the end, where the settings tell them

    @property
    def steering(self) -> Steering:
        return self.method.steering

    def process_env_step(self, obs: Any, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Record one step with the task's reward; time limits are rsl_rl's own affair."""
        task = rewards
        if self.addon is not None:  # where the task is the add-on's alone, the environment's own is not read
            task = task_reward(self.steering.objective, rewards, self.addon_in(extras, rewards))
        self._paid[self.storage.step].copy_(task)
        for steps, found in zip(self._held, self.held_in(extras, rewards), strict=True):
            steps[self.storage.step].copy_(found)
        super().process_env_step(obs, task, dones, extras)

    def compute_returns(self, obs: Any) -> None:
        """Compute rsl_rl's returns of the reformulated rewards."""
        rewards, returns, values = (
            part.squeeze(-1) for part in (self.storage.rewards, self.storage.returns, self.storage.values)
        )
        at_limits = rewards - self._paid  # what rsl_rl has added for what would have followed
        self._pay_wish(obs)
        rewards.copy_(self.method.reward(self.seen(obs)) + at_limits)
        super().compute_returns(obs)
        self.method.credit(returns, values)

    def _pay_wish(self, obs: Any) -> None:
        """Add what a wish pays for the rollout in the storage, which ended with these observations."""
        if self.wish is not None:
            st = self.storage
            states = torch.cat([self.rows(st.observations), self.rows(obs).unsqueeze(0)])
            self._paid += self.envs.paid_by_wish(states[:-1], st.actions, states[1:], st.dones.squeeze(-1) > 0)

    def seen(self, obs: Any) -> Seen:
        """Return the rollout in the storage, which ended with these observations."""
        st = self.storage
        return Seen(
            st.observations, st.actions, st.actions_log_prob.squeeze(-1), self._paid, st.dones.squeeze(-1) > 0,
            lambda: torch.cat([self.rows(st.observations)[1:], self.rows(obs).unsqueeze(0)]), self._held,
        )  # fmt: skip

    def update(self) -> dict[str, float]:
        """Do rsl_rl's update, of the critic alone while that warms up; then the budget steers."""
        shown, schedule = self.method.measured(), self.schedule
        rate = self.learning_rate if self.adapts else None
        with self.method.updating(self.get_policy().parameters(), rate, self._take) as alone:
            self.schedule = "fixed" if alone else schedule  # a policy that stands still would speed up its learning
            losses = super().update()
            self.schedule = schedule
        if self.adapts and not alone:
            self.method.moved = self._moved()
            planned = self.num_learning_epochs * self.num_mini_batches  # by which rsl_rl has divided the sums
            losses = {name: loss * planned / self._steps for name, loss in losses.items()}
        self._left -= 1
        if self._left == 0 and self.prior is not None and self.method.changes_rewards:
            print(f"ResidualPPO: {self.verdict()}")
        return losses | shown

    def _take(self, rate: float) -> None:
        self.learning_rate = rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @torch.no_grad()
    def _moved(self) -> Tensor:
        """Return the KL by which the update moved the actor, summed over some states, and their number."""
        st, actor = self.storage, self.get_policy()
        some = slice(None, None, max(1, st.num_envs * st.num_transitions_per_env // ROWS))
        actor.distribution.update(actor.mlp(actor.get_latent(st.observations.flatten(0, 1)[some])))
        return self._kl(tuple(part.flatten(0, 1)[some] for part in st.distribution_params))

    def _kl(self, before: tuple[Tensor, ...]) -> Tensor:
        """Return KL(before ‖ now), summed over the rows that the actor saw last, and their number."""
        now = tuple(part[: len(before[0])] for part in self.get_policy().output_distribution_params)
        kl = self.get_policy().get_kl_divergence(before, now)
        return self._add_up(torch.stack([kl.sum(), torch.ones_like(kl).sum()]).double())

    def _until_far(self, minibatches: Callable[..., Iterator[Any]], *sizes: int) -> Iterator[Any]:
        """Yield an update's minibatches; end once the actor had moved too far before its step on the last one."""
        for self._steps, batch in enumerate(minibatches(*sizes), 1):
            yield batch
            with torch.no_grad():
                total, states = self._kl(batch.old_distribution_params).tolist()
            if total > TARGET_KL * states:
                return

    def save(self) -> dict[str, Any]:
        """Return rsl_rl's checkpoint with the prior, its name, and where the steering stands beside it."""
        state = self.method.state()
        with self.method.critic_in_rewards():
            saved: dict[str, Any] = super().save() | {"residual": state}
            saved["critic_state_dict"] = {name: part.clone() for name, part in saved["critic_state_dict"].items()}
        if self.method.density is not None:
            saved["residual_states"] = self.method.density.tensors()
        if isinstance(actor := self.get_policy(), PolicyActor):  # whatever reads policies then reads the checkpoint
            own = behind(self.prior)
            prior = frozen(own).cpu() if isinstance(own, Policy) else None
            saved |= metadata.checkpoint_entries(
                saved["actor_state_dict"], policy_bytes(actor.to_repolicy(), {}, prior)
            )
        if self.prior is None:
            return saved
        return saved | {"prior_state_dict": self.prior.state_dict(), "prior_name": self._prior_name}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:
        """Load as rsl_rl does; of a checkpoint of this class, the steering too. Raises where its prior is another."""
        if "residual" in loaded_dict:
            self.steering.check_same_ranges(loaded_dict["residual"])
        goes_on = super().load(loaded_dict, load_cfg, strict)
        if load_cfg is None or load_cfg.get("critic"):
            self.method.resume_critic(loaded_dict.get("residual"))
        if goes_on and "residual" in loaded_dict:
            if self.prior is not None:
                kept, name = loaded_dict.get("prior_state_dict", {}), loaded_dict.get("prior_name")
                check_same_prior(self.prior.state_dict(), kept, self._prior_name, name)
            self.method.resume(loaded_dict["residual"])
            found = self.steering.objective
            if found.is_set:  # else it is told when the rest is measured
                print(f"ResidualPPO: goes on with omega {found.omega:.3g} and alpha {found.alpha:.3g}")
            if "residual_states" in loaded_dict:
                self.method.density = Density.from_tensors(loaded_dict["residual_states"]).to(self.device)
        return bool(goes_on)

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], device: str) -> Any:
        """Return what the runner calls; here the environment is at hand."""
        if resolve_callable(cfg["actor"]["class_name"]) is PolicyActor:
            cfg["actor"] = {"policy": cfg["algorithm"].get("prior")} | cfg["actor"]
        weights = weights_named(*map(cfg["algorithm"].get, ("objective", "omega", "alpha", "states")))
        if weights.dials:
            obs, cfg = dialed(weights, obs, cfg)
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        clips = getattr(env, "clip_actions", None) is not None
        said = "the environment clips actions (clip_actions)" if clips else ""
        check_needs(algorithm.steering.objective, algorithm.prior is not None, said)
        remedy = "apply it in the environment's step, and give that an attribute squashes = True"
        check_squashed(algorithm.prior, getattr(env, "squashes", False), remedy)
        algorithm.envs = RunnerEnvs(env, algorithm)
        steps = getattr(algorithm.prior, "env_steps", 0)
        algorithm.envs.at(steps)
        if not algorithm.is_multi_gpu or not algorithm.gpu_global_rank:
            algorithm._left = int(cfg.get("max_iterations", 0))  # as Isaac Lab's and mjlab's scripts learn so many
        if not cfg.get("resume"):  # else the checkpoint tells what was measured
            algorithm.begin()
            algorithm.envs.at(steps)  # again, for measuring has taken some
        return algorithm

    def train_mode(self) -> None:
        """Begin to learn, as rsl_rl's runner calls it: what is not known by now is measured."""
        super().train_mode()
        self.begin()
        self.method.ages = self.envs.ages  # at random, where the runner was told to

    def verdict(self) -> str:
        """Run the prior and the actor as it is now; return their rewards, and whether the actor is better."""
        actor = self.get_policy()
        self.envs.stepped = True  # by the runner
        with torch.inference_mode():  # as the runner steps its environments, whose tensors know it
            told = compared(self.method, self.envs, RunnersPrior(actor, actor.state_dict(), Path()))
        for network in (actor, self.critic):
            network.reset()  # what they remember is of the episodes before
        return told

    def begin(self) -> None:
        """Measure what is not named, and learn the prior's states where they have a price."""
        if not self.method.is_ready:
            told: list[Any] = [None, None]
            if not self.is_multi_gpu or not self.gpu_global_rank:
                decide_in(self.method, self.envs)
                found = self.method.density
                told = [self.steering.state(), found and found.to("cpu")]
            if self.is_multi_gpu:
                torch.distributed.broadcast_object_list(told)
                self.steering.resume(told[0])
                self.method.density = told[1] and told[1].to(self.device)
        self._held = torch.zeros(len(self.steering.reads), *self._paid.shape, device=self.device)  # what limits are on

    def addon_in(self, extras: dict[str, Any], rewards: Tensor) -> Tensor:
        """Return the add-on `[N]` of extras; a wish pays later, when the rollout is there."""
        if self.wish is not None:
            return torch.zeros_like(rewards)
        return self._told(extras, rewards, str(self.addon), "was to hold the add-on")

    def held_in(self, extras: dict[str, Any], rewards: Tensor) -> list[Tensor]:
        """Return what limits are on, each `[N]`."""
        return [self._told(extras, rewards, name, why) for name, why in self.steering.reads]

    def _told(self, extras: dict[str, Any], rewards: Tensor, name: str, why: str) -> Tensor:
        """Return an entry `[N]` of the environment's extras; beside an add-on, its own reward is one, too."""
        told = entry({"basic_reward": rewards} | extras if self.addon else extras, name, "extras", why)
        if not isinstance(told, Tensor) or told.numel() != rewards.numel():
            must = f"must be a tensor of {rewards.numel()} numbers, one an environment"
            raise UsageError(f"the environment's extras[{name!r}], which {why}, {must}")
        return told.to(rewards).view_as(rewards)

    def rows(self, observations: Any) -> Tensor:
        """Return the actor's observation groups side by side, `[..., O]`."""
        lead = len(observations.batch_size)
        return torch.cat([observations[group].flatten(lead) for group in self.get_policy().obs_groups], dim=-1)

    def _add_up(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all GPUs, in place."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(tensor)
        return tensor


def say_what_works_against(host: Mapping[str, Any]) -> None:
    """Print which of PPO's usual settings, as settings of a dataclass always name them, do harm beside a prior."""
    say_of_bonus("entropy_coef", host)
    if host.get("schedule") == "adaptive":
        print("ResidualPPO: the schedule 'adaptive' may raise the learning rate until the policy is lost: set 'fixed'")
    if host.get("rnd_cfg"):
        print("ResidualPPO: rnd_cfg adds a reward for new states, which neither measured weights nor the verdict count")
    mirrors = host.get("symmetry_cfg") or {}
    if mirrors.get("use_data_augmentation") or mirrors.get("use_mirror_loss"):
        print("ResidualPPO: symmetry_cfg needs a prior that is symmetric itself: leave it out beside any other")


def _usual(actor: Any, storage: Any) -> dict[str, Any]:
    """Return the engine's settings for customizing, in rsl_rl's words."""
    usual = settings_for_shape(max(map(len, actor.mlp.parameters())), int(storage.actions_shape[0]))
    samples = storage.num_envs * storage.num_transitions_per_env
    return {
        "num_learning_epochs": usual.epochs,
        "num_mini_batches": max(1, round(samples / usual.minibatch)),
        "gamma": usual.gamma,
        "learning_rate": usual.learning_rate,
        "schedule": "fixed",
        "max_grad_norm": usual.max_gradient_norm,
        "value_loss_coef": usual.value_coefficient / 2,  # of the whole squared error, not of half of it
        "use_clipped_value_loss": False,
    }


def _log_stds(actor: Any) -> list[Tensor]:
    """Return the logarithm of an actor's std, where it is learnt as one: a std that is a number is quick by itself."""
    of_policy = isinstance(actor, PolicyActor) and not actor.dials and actor.spec.std == "exp"
    found = getattr(actor.distribution, "log_std" if of_policy else "log_std_param", None)
    return [] if found is None else [found]
