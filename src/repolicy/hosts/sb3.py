"""Residual PPO in the place of Stable-Baselines3's PPO.

    from repolicy.hosts.sb3 import ResidualPPO

    model = ResidualPPO("MlpPolicy", env, prior="prior.safetensors")  # all weights are measured
    model.learn(1_000_000)
    print(model.verdict())

The environment pays the add-on. Rewards change in the rollout buffer, once a rollout, before it computes advantages.
"""

import copy
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from repolicy.addons.registered import info_entry
from repolicy.errors import UsageError
from repolicy.files import write_bytes
from repolicy.hosts import priors
from repolicy.hosts.measuring import compare_with_prior, measure_unset
from repolicy.hosts.method import HostRollout, Method, accelerate_std
from repolicy.hosts.priors import FlatPrior
from repolicy.hosts.sb3_policies import HeadPolicy, actor_layers, from_repolicy, like, space_of, to_repolicy
from repolicy.hosts.sb3_priors import CRITICS, ActorWeights, ModelPrior, prior_files, prior_tensors, read, read_saved
from repolicy.hosts.sb3_vec_envs import (
    ModelActor,
    ModelEnvs,
    Squashed,
    Unclipped,
    check_env,
    clipping_of,
    default_settings,
    flat_observations,
    raw_observations,
)
from repolicy.hosts.steering import (
    Steering,
    check_options,
    default_warmup,
    has_weight,
    objective_from_settings,
    warn_about_entropy_bonus,
)
from repolicy.loading import check_version
from repolicy.objective import Objective
from repolicy.policies import Policy
from repolicy.prepare.defaults import settings_for_shape
from repolicy.priors import MeanPrior, OpenedPolicy
from repolicy.runs import BUDGETS
from repolicy.text import printable

from stable_baselines3 import PPO  # isort: skip  # after ours, which say what to install where it is missing
from stable_baselines3.common.buffers import RolloutBuffer  # isort: skip
from stable_baselines3.common.policies import ActorCriticPolicy  # isort: skip

check_version("stable-baselines3", (2, 6), (3, 0), "sb3")

__all__ = ["HeadPolicy", "ResidualPPO", "Squashed", "Unclipped", "from_repolicy", "like", "to_repolicy"]


class ResidualPPO(PPO):
    """PPO whose rollout buffer holds task + omega · log prior − alpha · log policy. The rest is Stable-Baselines3's.

    objective: an `Objective`, or its fields as a mapping; or its weights by themselves: `omega`, `alpha`, `states`.
        Those that are not named are measured when `learn` begins.
    prior: any file that Repolicy reads, or a mapping with its `path` and how to read it; a trained model of
        Stable-Baselines3 with the same policy as this one's; or an object with `log_prob(observations, actions)`. The
        model sees what the actor sees, the others raw observations.
    copy_prior: whether the actor begins as the prior. Without `policy_kwargs` it is built like it, too.
    critic_warmup: iterations that fit the critic alone; by default the first 5, and of the next 10 those where it lags.
    kl_budget: adapt omega and alpha, one number, so that the policy stays this far from its prior, in nats a step.
    log_prior_budget: adapt omega alone so that actions are to the prior this many nats less likely than its own.
    limits: such as `["power<=0.07"]`, each on the mean of an entry of `info`.
    keep: adapt omega so that a share like 0.97 is kept of what the prior's mean action earns of `basic_reward` a step.
    host: everything that Stable-Baselines3's PPO takes; beside a prior the engine's settings where none is named.
    """

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: Any,
        *,
        objective: Objective | Mapping[str, Any] | None = None,
        omega: float | None = None,
        alpha: float | None = None,
        states: float | None = None,
        prior: Any = None,
        copy_prior: bool = True,
        critic_warmup: int | None = None,
        kl_budget: float | None = None,
        log_prior_budget: float | None = None,
        limits: Sequence[str] | None = None,
        keep: float | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **host: Any,
    ) -> None:
        check_options(host, ResidualPPO.__init__, PPO.__init__)
        # The attributes that `load` may replace. They are plain values, so that a saved model has no pickle of ours.
        self.objective = objective.as_dict() if isinstance(objective, Objective) else objective
        self.omega, self.alpha, self.states = omega, alpha, states
        self.critic_warmup = default_warmup(critic_warmup, copy_prior and prior is not None)
        self.kl_budget, self.log_prior_budget, self.limits, self.keep = kl_budget, log_prior_budget, limits or (), keep
        self.position: dict[str, Any] | None = None  # the method's state in a saved model
        self.prior, self.prior_name = read(prior), priors.prior_label(prior)

        # build the actor like its prior
        prior_policy = self.prior.agent if isinstance(self.prior, OpenedPolicy) else None
        width = 64  # of the widest layer
        if isinstance(prior_policy, Policy):
            width = max((width, *prior_policy.spec.hidden))
            if copy_prior and policy_kwargs is None and policy in ("MlpPolicy", ActorCriticPolicy):
                critic_layers = settings_for_shape(width, prior_policy.actions.width).hidden
                policy_kwargs = like(_initial_policy(prior_policy, True), critic_layers)
                policy = HeadPolicy if "head" in policy_kwargs else policy
        prior_model = self.prior.policy if isinstance(self.prior, ActorWeights) else None
        if prior_model is not None:
            width = max((width, *(layer.in_features for layer in actor_layers(prior_model)[1:])))
            if policy_kwargs is None:
                policy_kwargs = self.prior.kwargs
                policy = type(prior_model) if policy in ("MlpPolicy", ActorCriticPolicy) else policy

        # take the engine's settings where the user names none
        customizes = prior is not None and env is not None and has_weight(self._weights)
        self.adapts = customizes and "learning_rate" not in host  # whether the learning rate adapts to the KL
        if customizes:
            env = gymnasium.make(env) if isinstance(env, str) else env
            host = default_settings(env, width, host) | host
        super().__init__(policy, env, policy_kwargs=policy_kwargs, _init_setup_model=_init_setup_model, **host)
        if _init_setup_model and copy_prior:
            self._begin_as_prior(prior_policy)

    def _begin_as_prior(self, prior_policy: Any) -> None:
        """Copy the prior's weights into the actor, where the prior is a policy of ours or a model like this one."""
        if isinstance(prior_policy, Policy):
            initial = _initial_policy(prior_policy, isinstance(self.policy, HeadPolicy))
            from_repolicy(initial, self)
            is_gsde = prior_policy.spec.family.startswith("features")
            remedy = "with prior=PPO.load(FILE) and use_sde=True" if is_gsde else "without policy_kwargs"
            priors.warn_about_one_std(priors.as_gaussian(prior_policy), initial, self.prior_name, remedy)
        elif isinstance(self.prior, ModelPrior):
            critic = _critic_prefixes(self.policy)
            weights = self.prior.policy.state_dict()
            weights = {name: tensor for name, tensor in weights.items() if not name.startswith(critic)}
            self.policy.load_state_dict(weights, strict=False)

    @property
    def _weights(self) -> Objective:
        return objective_from_settings(self.objective, self.omega, self.alpha, self.states)

    def _setup_model(self) -> None:
        steering = Steering(
            self._weights, self.kl_budget, self.log_prior_budget, self.critic_warmup, self.limits, self.keep
        )
        self.prior = read(self.prior)
        check_env(steering.objective, self.env, self.prior)
        super()._setup_model()
        buffer: Any = self.rollout_buffer
        buffer.compute_returns_and_advantage = partial(self._compute_returns, buffer.compute_returns_and_advantage)
        self.prior = self._prepared_prior(steering.objective, self.prior)
        self.method = Method(steering, self.prior)
        self.method.normalize_critic(self.policy.value_net, self.policy.value_net)
        if self.prior is not None and has_weight(steering.objective):
            warn_about_entropy_bonus("ent_coef", self.ent_coef)
            if hasattr(self.policy, "log_std"):
                accelerate_std(self.policy.optimizer, self.policy.log_std, self.n_steps * self.n_envs)
        if self.position is not None:
            self.method.resume(self.position)

    @property
    def steering(self) -> Steering:
        return self.method.steering

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Set an environment as Stable-Baselines3 does; where it is refused, the one before stays."""
        env = self._wrap_env(env, self.verbose)
        check_env(self.steering.objective, env, self.prior)
        super().set_env(env, force_reset)

    def get_parameters(self) -> dict[str, Any]:
        """Return parameters as Stable-Baselines3 does, so with a critic of plain rewards."""
        with self.method.critic_in_rewards():
            return copy.deepcopy(super().get_parameters())

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None:
        """Set parameters as Stable-Baselines3 does, so with a critic of plain rewards."""
        super().set_parameters(load_path_or_dict, exact_match, device)
        if not isinstance(load_path_or_dict, dict) or "policy" in load_path_or_dict:
            self.method.resume_critic(None)

    def train(self) -> None:
        """Run Stable-Baselines3's update, of the critic alone during the warm-up, and then move the weights."""
        critic = _critic_prefixes(self.policy)
        actor = [parameter for name, parameter in self.policy.named_parameters() if not name.startswith(critic)]
        learning_rate = float(self.learning_rate) if self.adapts else None  # type: ignore[arg-type]
        with self.method.policy_update(actor, learning_rate, self._set_learning_rate) as critic_only:
            super().train()
        if self.adapts and not critic_only:
            kl_of_last_epoch = float(self.logger.name_to_value["train/approx_kl"])
            self.method.update_kl_sums = torch.tensor([kl_of_last_epoch, 1.0])

    def _set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._setup_lr_schedule()

    def save(self, path: Any, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """Write Stable-Baselines3's zip with the prior's tensors in it. Its own PPO can load the file as well."""
        self.position = self.method.state()
        buffer = io.BytesIO()
        super().save(buffer, exclude, include)
        with zipfile.ZipFile(buffer, "a") as archive:
            for name, content in prior_files(self.prior, self.method.density):
                archive.writestr(name, content)
        if isinstance(path, str | Path):
            path = Path(path)
            write_bytes(path if path.suffix else Path(f"{path}.zip"), buffer.getvalue())
        else:
            path.write(buffer.getvalue())

    @classmethod
    def load(cls, path: Any, env: Any = None, device: Any = "auto", **options: Any) -> "ResidualPPO":
        """Load a model of this class, or one of Stable-Baselines3's own PPO with `prior=`, `omega=`, `alpha=` given."""
        check_options(options, ResidualPPO.__init__, PPO.__init__, PPO.load)
        saved = read_saved(path)
        if options.get("prior") is None:
            if saved.prior is None and saved.prior_name not in (None, priors.prior_label(None)):
                name = printable(str(saved.prior_name))
                raise UsageError(f"the model does not hold its prior, {name}: name it, prior=")
            options["prior"] = saved.prior
        else:
            name = options["prior_name"] = priors.prior_label(options["prior"])
            options["prior"] = read(options["prior"])
            if saved.tensors:
                priors.check_same_prior(prior_tensors(options["prior"]), saved.tensors, name, saved.prior_name)
        if isinstance(options.get("objective"), Objective):
            options["objective"] = options["objective"].as_dict()
        named = options.keys() | options.get("custom_objects", {}).keys()
        if "learning_rate" in named:
            options["adapts"] = False
        moved = {"omega", "alpha", "objective"} - ({"alpha"} if saved.steered_by == "keep" else set())
        if (by := saved.steered_by) and named & moved and not named & BUDGETS.keys():
            raise UsageError(f"the model's {by} moves its weights: with another weight, name {by}, too, or None")
        dropped = [name for name in BUDGETS if name in options and options[name] is None]
        options["position"] = saved.position and saved.position | dict.fromkeys(dropped)
        if saved.prior_name is None and options["prior"] is not None:
            options.setdefault("critic_warmup", None)  # the critic of plain PPO is of another reward
        loaded: ResidualPPO = super().load(path, env, device, **options)
        loaded.method.resume_critic(loaded.position)
        loaded.method.density = saved.density
        return loaded

    def _excluded_save_params(self) -> list[str]:
        ours = ["prior", "method", "_limit_values", "_task_rewards", "_timed_out", "_step_rewards"]
        return [*super()._excluded_save_params(), *ours]

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        """Store the step's rewards and limited quantities. Stable-Baselines3 calls this once a step."""
        super()._update_info_buffer(infos, dones)
        self._task_rewards[self.rollout_buffer.pos] = self._step_rewards()
        self._timed_out[self.rollout_buffer.pos] = [info.get("TimeLimit.truncated", False) for info in infos]
        self._limit_values[:, self.rollout_buffer.pos] = self.read_limit_values(infos)

    def read_limit_values(self, infos: Sequence[dict[str, Any]]) -> np.ndarray:
        """Return the quantities that have limits, `[L, N]`."""
        values = [[info_entry(info, name, why) for info in infos] for name, why in self.steering.required_entries]
        return np.array(values, np.float32).reshape(len(values), len(infos))

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        """Measure what is not named, then prepare `learn` as Stable-Baselines3 does."""
        envs = ModelEnvs(self)
        measures = not self.method.is_ready
        if measures:
            measure_unset(self.method, envs)
        if measures or not self.rollout_buffer.full:  # its episodes are over, or a callback stopped amid a rollout
            self._last_obs = None  # so that Stable-Baselines3 resets
        self._limit_values = np.zeros((len(self.steering.required_entries), self.n_steps, self.n_envs), np.float32)
        self._task_rewards = np.zeros((self.n_steps, self.n_envs), np.float32)
        self._timed_out = np.zeros((self.n_steps, self.n_envs), bool)
        _, callback = found = super()._setup_learn(*args, **kwargs)
        # a function, as a copy of the model would otherwise copy the callback, which is impossible
        self._step_rewards = lambda: callback.locals["rewards"]
        if self._last_episode_starts.all():  # type: ignore[union-attr]
            self.method.reset_episodes()
        return found

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Stable-Baselines3 does; a `verbose` model prints the verdict at the end."""
        super().learn(*args, **kwargs)
        if self.verbose and self.prior is not None and self.prior.can_act and self.method.changes_rewards:
            print(f"ResidualPPO: {self.verdict()}")
        return self

    def verdict(self) -> str:
        """Run the prior and the present policy; return their rewards, and whether the policy is better."""
        envs = ModelEnvs(self)
        self.policy.set_training_mode(False)
        text = compare_with_prior(self.method, envs, ModelActor(self, envs))
        self._last_obs, self._last_episode_starts = envs.last_observations, np.ones(envs.count, bool)
        return text

    def _compute_returns(self, compute: Callable[..., None], last_values: Tensor, dones: np.ndarray) -> None:
        """Compute Stable-Baselines3's returns from the reformulated rewards."""
        self.rollout_buffer.rewards = self._reformulated(self.rollout_buffer)
        compute(last_values, dones)
        self._credit(self.rollout_buffer)

    def _reformulated(self, buffer: RolloutBuffer) -> np.ndarray:
        """Return the reformulated rewards of a whole rollout `[T, N]`."""
        check_env(self.steering.objective, self.env, self.prior)  # a VecNormalize may have begun to train
        ended = np.concatenate([buffer.episode_starts[1:], self._last_episode_starts[None]]).astype(bool)
        bootstrap = buffer.rewards.astype(np.float64) - self._task_rewards  # Stable-Baselines3 adds it at time limits

        def states() -> Tensor:
            return flat_observations(self.env, np.concatenate([buffer.observations, self._last_obs[None]]))  # type: ignore[index]

        actions = self.to_tensor(buffer.actions)
        rollout = HostRollout(
            self.prior_observations(buffer.observations),
            actions if actions.is_floating_point() else actions.long(),  # Gymnasium's switches are int8
            torch.from_numpy(buffer.log_probs),
            torch.from_numpy(self._task_rewards),
            torch.from_numpy(ended),
            torch.from_numpy(ended & ~self._timed_out),
            states,
            torch.from_numpy(self._limit_values),
            self.gamma,
        )
        return (self.method.reward(rollout).numpy() + bootstrap).astype(np.float32)

    def _credit(self, buffer: RolloutBuffer) -> None:
        """Normalize the buffer's returns and values for the critic, and log the rollout's metrics."""
        self.method.credit(torch.from_numpy(buffer.returns), torch.from_numpy(buffer.values))
        for name, value in self.method.iteration_metrics().items():
            group = "" if name.startswith(("limit_", "multiplier_")) else "residual_"
            self.logger.record((group + name.removeprefix("reward_")).replace("_", "/", 1), value)

    def prior_observations(self, observations: Any) -> Any:
        """Return observations `[T, N, ...]` in the form that the prior takes."""
        if not isinstance(self.prior, ModelPrior):
            observations = raw_observations(self.env, observations)
        found = priors.map_observations(observations, self.to_tensor)
        return found.flatten(2).float() if isinstance(self.prior, FlatPrior) and not isinstance(found, dict) else found

    def to_tensor(self, array: np.ndarray) -> Tensor:
        """Return an array on the model's device: floats in single precision, images in their own type."""
        tensor = torch.as_tensor(array, device=self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def _prepared_prior(self, objective: Objective, prior: Any) -> Any:
        """Return the prior on the model's device. Raises where it does not fit the model's spaces."""
        priors.check_objective(objective, prior is not None, clipping_of(self))
        if isinstance(prior, ActorWeights):
            if self.use_sde:  # the noise has a gradient, and such a tensor cannot be copied
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self.policy.reset_noise()
            twin = copy.deepcopy(self.policy)
            prior.check_built(twin, self.env)
            critic = {name: part for name, part in twin.state_dict().items() if name.startswith(CRITICS)}
            priors.load_weights(twin, critic | prior, "the prior")
            prior = ModelPrior(twin.requires_grad_(False).eval())
        if isinstance(prior, OpenedPolicy):
            takes_rows = isinstance(prior.agent, Policy | MeanPrior)
            if takes_rows and not isinstance(self.observation_space, spaces.Box):
                kind, remedy = type(self.observation_space).__name__, "give a model of its own: prior=PPO.load(FILE)"
                raise UsageError(f"observations are of kind {kind}, and the prior takes rows of numbers; {remedy}")
            if self.policy.squash_output and takes_rows:
                what = "the model scales its actions itself, and the prior scores them as the environment gets them"
                raise UsageError(f"{what}: leave squash_output out, or give a model of its own: prior=PPO.load(FILE)")
            observation_size = int(np.prod(self.observation_space.shape or 0))
            prior = FlatPrior(prior, observation_size, space_of(self.action_space))
        return prior.to(self.device) if isinstance(prior, nn.Module) else prior


def _initial_policy(prior: Policy, has_head: bool) -> Policy:
    """Return the policy that the actor begins as. Without a std head, the actor has one std for all states."""
    gaussian = priors.as_gaussian(prior)
    return gaussian if has_head and gaussian.log_std is None else priors.with_one_std(gaussian)


def _critic_prefixes(policy: ActorCriticPolicy) -> tuple[str, ...]:
    """Return the prefixes of those parameters' names that the actions do not depend on."""
    return CRITICS if policy.share_features_extractor else (*CRITICS, "vf_features_extractor.")
