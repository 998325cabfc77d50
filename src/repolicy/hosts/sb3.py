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
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.hosts import kept_prior
from repolicy.hosts.kept_prior import Given
from repolicy.hosts.measuring import compared, decide_in
from repolicy.hosts.method import TARGET_KL, Method, Seen, entry, quicken
from repolicy.hosts.sb3_policies import HeadPolicy, from_repolicy, like, space_of, to_repolicy
from repolicy.hosts.sb3_priors import CRITICS, SameKind, Weights, kept_in, read, stored, tensors_of
from repolicy.hosts.sb3_vec_envs import ModelEnvs, Squashed, Unclipped, check_env, check_seen_alike, clips
from repolicy.hosts.steering import Steering, check_options, say_of_bonus, usual_warmup, weighs, weights_named
from repolicy.loading import check_version
from repolicy.objective import Objective
from repolicy.policies import Policy
from repolicy.prepare.defaults import ROLLOUT_SIZE, settings_for_shape
from repolicy.priors import MeanPrior, OpenedPolicy
from repolicy.text import printable

from stable_baselines3 import PPO  # isort: skip  # after ours, which say what to install where it is missing
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer  # isort: skip
from stable_baselines3.common.policies import ActorCriticPolicy  # isort: skip
from stable_baselines3.common.save_util import open_path  # isort: skip
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage, unwrap_vec_wrapper  # isort: skip

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
    critic_warmup: iterations at the start that fit the critic alone; by default 5, or more for a critic that lags.
    kl_budget: adapt omega and alpha, one number, so that the policy stays this far from its prior, in nats a step.
    log_prior_budget: adapt omega alone so that actions are to the prior this many nats less likely than its own.
    limits: such as `["power<=0.07"]`, each on the mean of an entry of `info`.
    keep: adapt omega so that a share like 0.97 is kept of what the prior's mean action earns of `basic_reward` a step.
    host: everything that Stable-Baselines3's PPO takes; beside a prior the engine's settings where none is named.
    """

    rollout_buffer_class: Any

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
        limits: Sequence[str] = (),
        keep: float | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **host: Any,
    ) -> None:
        check_options(host, ResidualPPO.__init__, PPO.__init__)
        # what `load` may set anew; plain values, so that a saved model has no pickle of ours
        self.objective = objective.as_dict() if isinstance(objective, Objective) else objective
        self.omega, self.alpha, self.states = omega, alpha, states
        self.critic_warmup = usual_warmup(critic_warmup, copy_prior and prior is not None)
        self.kl_budget, self.log_prior_budget, self.limits, self.keep = kl_budget, log_prior_budget, limits, keep
        self.position: dict[str, Any] | None = None  # the method's state, in a saved model
        self.prior, self.prior_name = read(prior), kept_prior.called(prior)
        named = self.prior.agent if isinstance(self.prior, OpenedPolicy) else None
        widest = max((64, *named.spec.hidden)) if isinstance(named, Policy) else 64
        if copy_prior and policy_kwargs is None and policy == "MlpPolicy" and isinstance(named, Policy):
            policy_kwargs = like(_begun(named, True), settings_for_shape(widest, named.actions.width).hidden)
            policy = HeadPolicy if "head" in policy_kwargs else policy
        if policy_kwargs is None and isinstance(self.prior, Weights) and self.prior.policy is not None:
            policy_kwargs = self.prior.kwargs
            policy = type(self.prior.policy) if policy == "MlpPolicy" else policy
        customizes = prior is not None and env is not None and weighs(self._weights)
        self.adapts = customizes and "learning_rate" not in host  # the learning rate, once an iteration
        if customizes:
            say_of_bonus("ent_coef", host)
            env = gymnasium.make(env) if isinstance(env, str) else env
            host = _usual(env, widest, host) | host
        super().__init__(policy, env, policy_kwargs=policy_kwargs, _init_setup_model=_init_setup_model, **host)
        if _init_setup_model and copy_prior:
            if isinstance(named, Policy):
                check_seen_alike(self)
                begun, gaussian = _begun(named, isinstance(self.policy, HeadPolicy)), kept_prior.as_gaussian(named)
                from_repolicy(begun, self)
                gsde = "with prior=PPO.load(FILE) and use_sde=True"
                remedy = gsde if named.spec.family.startswith("features") else "without policy_kwargs"
                kept_prior.say_of_one_std(gaussian, begun, self.prior_name, remedy)
            elif isinstance(self.prior, SameKind):
                own, weights = _critics_own(self.policy), self.prior.policy.state_dict()
                weights = {name: tensor for name, tensor in weights.items() if not name.startswith(own)}
                self.policy.load_state_dict(weights, strict=False)

    @property
    def _weights(self) -> Objective:
        return weights_named(self.objective, self.omega, self.alpha, self.states)

    def _setup_model(self) -> None:
        steering = Steering(
            self._weights, self.kl_budget, self.log_prior_budget, self.critic_warmup, self.limits, self.keep
        )
        self.prior = read(self.prior)
        check_env(steering.objective, self.env, self.prior)
        given = self.rollout_buffer_class
        host = given or (DictRolloutBuffer if isinstance(self.observation_space, spaces.Dict) else RolloutBuffer)
        self.rollout_buffer_class = type("ResidualBuffer", (Reformulated, host), {})
        super()._setup_model()
        self.rollout_buffer_class = given  # a saved model names no class of ours
        self.rollout_buffer.reformulate, self.rollout_buffer.credit = self._reformulated, self._credited
        self.prior = self._fitted(steering.objective, self.prior)
        self.method = Method(steering, self.prior)
        self.method.scaled(self.policy.value_net, self.policy.value_net)
        if self.prior is not None and weighs(steering.objective) and hasattr(self.policy, "log_std"):
            quicken(self.policy.optimizer, self.policy.log_std, self.n_steps * self.n_envs)
        if self.position is not None:
            self.method.resume(self.position)

    @property
    def steering(self) -> Steering:
        return self.method.steering

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Take an environment as Stable-Baselines3 does; one that is refused leaves the one before."""
        env = self._wrap_env(env, self.verbose)
        check_env(self.steering.objective, env, self.prior)
        super().set_env(env, force_reset)

    def train(self) -> None:
        """Do Stable-Baselines3's update, of the critic alone while that warms up; then the budget steers."""
        own, rate = _critics_own(self.policy), float(self.learning_rate) if self.adapts else None  # type: ignore[arg-type]
        actor = [parameter for name, parameter in self.policy.named_parameters() if not name.startswith(own)]
        with self.method.updating(actor, rate, self._take) as alone:
            super().train()
        if self.adapts and not alone:  # the KL of the last epoch
            self.method.moved = torch.tensor([float(self.logger.name_to_value["train/approx_kl"]), 1.0])

    def _take(self, rate: float) -> None:
        self.learning_rate = rate
        self._setup_lr_schedule()

    def save(self, path: Any, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """Write Stable-Baselines3's zip, which its own PPO loads as well, with the prior's tensors in it."""
        self.position = self.method.state()
        written = io.BytesIO()
        with self.method.critic_in_rewards():
            super().save(written, exclude, include)
        with zipfile.ZipFile(written, "a") as archive:
            for name, content in stored(self.prior, self.method.density):
                archive.writestr(name, content)
        file = open_path(path, "w", verbose=0, suffix="zip")
        file.write(written.getvalue())
        if isinstance(path, str | Path):
            file.close()

    @classmethod
    def load(cls, path: Any, env: Any = None, device: Any = "auto", **options: Any) -> "ResidualPPO":
        """Load a model of this class, or Stable-Baselines3's own PPO with `prior=`, `omega=`, `alpha=` given."""
        check_options(options, ResidualPPO.__init__, PPO.__init__, PPO.load)
        kept = kept_in(path)
        if options.get("prior") is None:
            if kept.prior is None and kept.name not in (None, kept_prior.called(None)):
                raise UsageError(f"the model does not hold its prior, {printable(str(kept.name))}: name it, prior=")
            options["prior"] = kept.prior
        else:
            name = options["prior_name"] = kept_prior.called(options["prior"])
            options["prior"] = read(options["prior"])
            if kept.tensors:
                kept_prior.check_same_prior(tensors_of(options["prior"]), kept.tensors, name, kept.name)
        if isinstance(options.get("objective"), Objective):
            options["objective"] = options["objective"].as_dict()
        named = options.keys()
        if kept.budget and named & {"omega", "alpha", "objective"} and not named & {"kl_budget", "log_prior_budget"}:
            raise UsageError("the model's budget moves its weights: with another weight, name kl_budget, too, or None")
        loaded: ResidualPPO = super().load(path, env, device, **options)
        loaded.method.resume_critic(loaded.position)
        loaded.method.density = kept.density
        return loaded

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "prior", "method", "_held", "_paid", "_callback"]

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        """Note what is paid, and what the limits are on: Stable-Baselines3 calls this once a step."""
        super()._update_info_buffer(infos, dones)
        self._paid[self.rollout_buffer.pos] = self._callback.locals["rewards"]
        self._held[:, self.rollout_buffer.pos] = self.held_in(infos)

    def held_in(self, infos: Sequence[dict[str, Any]]) -> np.ndarray:
        """Return what limits are on, `[L, N]`."""
        each = [[entry(info, name, "infos", why) for info in infos] for name, why in self.steering.reads]
        return np.array(each, np.float32).reshape(len(each), len(infos))

    def _setup_learn(self, *given: Any, **named: Any) -> Any:
        """Set learning up as Stable-Baselines3 does, after what is not named was measured."""
        envs = ModelEnvs(self)
        if not self.method.is_ready:
            decide_in(self.method, envs)
            self._last_obs = None  # the episodes that were under way are over
        self._held = np.zeros((len(self.steering.reads), self.n_steps, self.n_envs), np.float32)  # what limits are on
        self._paid = np.zeros((self.n_steps, self.n_envs), np.float32)  # the task's rewards
        _, self._callback = found = super()._setup_learn(*given, **named)
        if self._last_episode_starts.all():  # type: ignore[union-attr]
            self.method.forget()
        return found

    def learn(self, *given: Any, **named: Any) -> Any:
        """Learn as Stable-Baselines3 does and, where the model is `verbose`, print the verdict at the end."""
        super().learn(*given, **named)
        if self.verbose and self.prior is not None and self.method.changes_rewards:
            print(f"ResidualPPO: {self.verdict()}")
        return self

    def verdict(self) -> str:
        """Run the prior and the policy as it is now; return their rewards, and whether the policy is better."""
        envs = ModelEnvs(self)
        told = compared(self.method, envs, Acting(self, envs))
        self._last_obs, self._last_episode_starts = envs.seen, np.ones(envs.count, bool)  # episodes have begun anew
        return told

    def _reformulated(self, buffer: RolloutBuffer) -> np.ndarray:
        """Return the rewards of a whole rollout `[T, N]`."""
        check_env(self.steering.objective, self.env, self.prior)  # statistics may have begun to move
        ended = np.concatenate([buffer.episode_starts[1:], self._last_episode_starts[None]]).astype(bool)
        log_policy, task, last = (torch.from_numpy(part) for part in (buffer.log_probs, self._paid, ended))
        at_limits = buffer.rewards.astype(np.float64) - self._paid  # what was added for what would have followed
        seen = Seen(
            self.observed(buffer.observations), self.tensor(buffer.actions), log_policy, task, last,
            lambda: self.rows(np.concatenate([buffer.observations[1:], self._last_obs[None]])),  # type: ignore[index]
            torch.from_numpy(self._held),
        )  # fmt: skip
        return (self.method.reward(seen).numpy() + at_limits).astype(np.float32)

    def _credited(self, buffer: RolloutBuffer) -> None:
        """Turn a buffer's returns and values into the critic's unit, and log what the rollout paid."""
        self.method.credit(torch.from_numpy(buffer.returns), torch.from_numpy(buffer.values))
        for name, value in self.method.measured().items():
            place = name.replace("_", "/", 1) if name.startswith(("limit_", "multiplier_")) else f"residual/{name}"
            self.logger.record(place.replace("/reward_", "/"), value)

    def raw(self, observations: Any) -> Any:
        """Return observations `[T, N, ...]` as the environment shows them: their axes and scale."""
        moved, normalized = unwrap_vec_wrapper(self.env, VecTransposeImage), self.get_vec_normalize_env()  # type: ignore[arg-type]
        if moved is not None and isinstance(observations, dict):
            images = {key: np.moveaxis(observations[key], 2, -1) for key in moved.image_space_keys}
            observations = observations | images
        elif moved is not None:
            observations = np.moveaxis(observations, 2, -1)
        scaled = normalized is not None and normalized.norm_obs
        return normalized.unnormalize_obs(observations) if scaled else observations  # type: ignore[union-attr]

    def rows(self, observations: Any) -> Tensor:
        """Return raw observations `[T, N, ...]` in rows of numbers; of frames in a stack, the newest."""
        rows, stack = torch.from_numpy(self.raw(observations)).float(), unwrap_vec_wrapper(self.env, VecFrameStack)  # type: ignore[arg-type]
        if stack is not None:
            rows = rows.chunk(stack.stacked_obs.n_stack, 2 if stack.stacked_obs.stack_dimension == 1 else -1)[-1]
        return rows.flatten(2)

    def observed(self, observations: Any) -> Any:
        """Return observations `[T, N, ...]` as the prior takes them."""
        seen = observations if isinstance(self.prior, SameKind) else self.raw(observations)
        found = kept_prior.of_each(seen, self.tensor)
        return found.flatten(2) if isinstance(self.prior, Given) and not isinstance(found, dict) else found

    def tensor(self, part: np.ndarray) -> Tensor:
        """Return an array on the model's device; numbers in single precision, images as they are."""
        tensor = torch.as_tensor(part, device=self.device)
        return tensor.float() if tensor.is_floating_point() else tensor

    def _fitted(self, objective: Objective, prior: Any) -> Any:
        """Return the prior on the model's device, checked against its spaces."""
        kept_prior.check_needs(objective, prior is not None, clips(self))
        if isinstance(prior, Weights):
            if self.use_sde:  # its noise has a gradient, and could not be copied
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self.policy.reset_noise()
            twin = copy.deepcopy(self.policy)
            prior.check_built(twin, self.env)
            critic = {name: part for name, part in twin.state_dict().items() if name.startswith(CRITICS)}
            kept_prior.fill(twin, critic | prior, "the prior")
            prior = SameKind(twin.requires_grad_(False).eval())
        if isinstance(prior, OpenedPolicy):
            if isinstance(prior.agent, Policy) and not isinstance(self.observation_space, spaces.Box):
                kind, remedy = type(self.observation_space).__name__, "give a model of its own: prior=PPO.load(FILE)"
                raise UsageError(f"observations are of kind {kind}, and the prior takes rows of numbers; {remedy}")
            if self.policy.squash_output and isinstance(prior.agent, Policy | MeanPrior):
                what = "the model scales its actions itself, and the prior scores them as the environment gets them"
                raise UsageError(f"{what}: leave squash_output out, or give a model of its own: prior=PPO.load(FILE)")
            count = int(np.prod(self.observation_space.shape or 0))
            prior = Given(prior, count, space_of(self.action_space))
        return prior.to(self.device) if isinstance(prior, nn.Module) else prior


class Acting(SameKind):
    """A model's policy in its environments: it sees what these show to the model, and not what the prior sees."""

    def __init__(self, model: ResidualPPO, envs: ModelEnvs) -> None:
        super().__init__(model.policy)
        self.shown = lambda: kept_prior.of_each(envs.seen, model.tensor)

    def distribution(self, observations: Any) -> Any:
        return super().distribution(self.shown())


class Reformulated:
    """A rollout buffer, of whatever kind, whose rewards change before its advantages are computed."""

    reformulate: Callable[[Any], np.ndarray]
    credit: Callable[[Any], None]
    rewards: np.ndarray

    def compute_returns_and_advantage(self, last_values: Tensor, dones: np.ndarray) -> None:
        self.rewards = self.reformulate(self)
        super().compute_returns_and_advantage(last_values, dones)  # type: ignore[misc]
        self.credit(self)


def _usual(env: Any, widest: int, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's settings for customizing, in Stable-Baselines3's words."""
    usual = settings_for_shape(widest, int(np.prod(env.action_space.shape or 1)))
    count = getattr(env, "num_envs", 1)
    n_steps = host.get("n_steps", 2 ** max(0, int(np.log2(ROLLOUT_SIZE / count))))
    sizes = (size for size in range(usual.minibatch, 0, -1) if n_steps * count % size == 0)
    return {
        "n_steps": n_steps,
        "batch_size": next(sizes),
        "n_epochs": usual.epochs,
        "gamma": usual.gamma,
        "learning_rate": usual.learning_rate,
        "target_kl": TARGET_KL / 1.5,  # it ends an update at one and a half times as much
        "vf_coef": usual.value_coefficient / 2,  # of the whole squared error, not of half of it
    }


def _begun(prior: Policy, heads: bool) -> Policy:
    """Return what the actor begins as: with `heads`, its std may be made of outputs; else it has one for all states."""
    gaussian = kept_prior.as_gaussian(prior)
    return gaussian if heads and gaussian.log_std is None else kept_prior.with_one_std(gaussian)


def _critics_own(policy: ActorCriticPolicy) -> tuple[str, ...]:
    """Return how the names of those parameters begin that the actions do not depend on."""
    own = ("value_net.", "mlp_extractor.value_net.")
    return own if policy.share_features_extractor else (*own, "vf_features_extractor.")
