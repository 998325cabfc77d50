"""Train two other methods that steer a flow: SAC over its noise (DSRL), and PPO of a correction to its actions.

DSRL has the settings of the program of Wagenmaker et al. (2025), but networks of 3 x 256 instead of 3 x 2,048, and no
layer norm. The residual policy observes the observation and the flow's action, and its action is added to the flow's.
Both train in Stable-Baselines3, and their reward is the wish alone.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC

from experiments.batches import Sb3Envs
from repolicy.addons.addon import Addon
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Chunk, Envs, Step, stack_infos
from repolicy.priors.decoders import Decoder

NOISE_BOUND, DSRL_ENVS, RANDOM_DECISIONS, HIDDEN = 1.5, 4, 1_500, [256, 256, 256]
RESIDUAL_ENVS, RESIDUAL_ROLLOUT = 32, 50
Act = Callable[[np.ndarray], np.ndarray]


def wish_rewards(step: Step, wish: Addon) -> np.ndarray:
    """Return the sum of each wish's rewards over the steps of a decision, `[W, N]`."""
    assert step.chunk is not None
    transitions = Transitions(step.chunk.observations, step.chunk.actions, step.chunk.final, step.chunk.info)
    rewards = wish.weighted_rewards(transitions)
    return np.stack([np.where(step.chunk.counts, reward, 0.0).sum(0) for reward in rewards])


def play_first_episodes(envs: Any, act: Act, wish: Addon) -> np.ndarray:
    """Return each wish's return in the first episode of each environment, `[W, N]`."""
    observations, running = envs.reset(), np.ones(envs.count, bool)
    returns = np.zeros((len(wish.terms), envs.count))
    while running.any():
        step = envs.step(act(observations))
        returns += running * wish_rewards(step, wish)
        running &= ~(step.terminated | step.truncated)
        observations = step.observations
    return returns


class WishEnvs:
    """Environments whose reward is the wish, summed over the steps of a decision. `Sb3Envs` adapts them."""

    squashes = False

    def __init__(self, envs: Any, wish: Addon) -> None:
        self.batch, self.wish, self.current = envs, wish, envs.reset()

    def step(self, actions: np.ndarray) -> tuple[Step, np.ndarray]:
        step = self.batch.step(actions)
        self.current = step.observations
        return step, wish_rewards(step, self.wish).sum(0)


def train_dsrl(envs: Envs, wish: Addon, seed: int, decisions: int, gradients: int, seconds: float) -> tuple[SAC, int]:
    """Train SAC over the noise for `decisions`, or until `seconds` of CPU are used. Return it and its decisions."""
    start, host_envs = time.process_time(), Sb3Envs(WishEnvs(envs, wish), NOISE_BOUND)
    model = SAC(
        "MlpPolicy", host_envs, learning_starts=0, batch_size=256, gradient_steps=gradients, target_entropy=0.0,
        seed=seed, buffer_size=decisions // envs.count * envs.count + RANDOM_DECISIONS, device="cpu",
        policy_kwargs={"net_arch": HIDDEN, "activation_fn": torch.nn.Tanh},
    )  # fmt: skip
    # Fill the buffer with decisions of the flow itself, whose noise is N(0, I).
    random, observations = np.random.default_rng(seed), host_envs.reset()
    for _ in range(RANDOM_DECISIONS // envs.count):
        noise = random.standard_normal((envs.count, envs.actions.width)).astype(np.float32)
        noise = noise.clip(-NOISE_BOUND, NOISE_BOUND)
        following, rewards, dones, infos = host_envs.step(noise)
        last = [info.get("terminal_observation", row) for info, row in zip(infos, following, strict=True)]
        model.replay_buffer.add(observations, np.stack(last), noise / NOISE_BOUND, rewards, dones, infos)
        observations = following
    model.learn(decisions - RANDOM_DECISIONS, callback=lambda *_: time.process_time() - start < seconds)
    return model, RANDOM_DECISIONS + model.num_timesteps


class NoiseActor:
    """The trained SAC as a function of observations; it sums its KL to N(0, I) over decisions in `nats`."""

    def __init__(self, model: SAC, mean: bool) -> None:
        self.model, self.mean, self.nats = model, mean, 0.0

    @torch.no_grad()
    def __call__(self, observations: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(observations)
        if self.mean:
            return NOISE_BOUND * self.model.actor(tensor, deterministic=True).numpy()  # type: ignore[no-any-return]
        actions, log_policy = self.model.actor.action_log_prob(tensor)  # in (-1, 1)
        noise: torch.Tensor = NOISE_BOUND * actions
        log_policy = log_policy - noise.shape[1] * math.log(NOISE_BOUND)
        log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(1)
        self.nats += float((log_policy - log_prior).mean())
        return noise.numpy()


class ResidualEnvs:
    """Environments that add an action to the flow's action, and append the flow's action to the observation.

    All episodes must end together, as MetaWorld's do: then a new chunk is planned for all.
    """

    def __init__(self, envs: Envs, decoder: Decoder, seed: int) -> None:
        self.envs, self.decoder, self.count, self.actions = envs, decoder, envs.count, envs.actions
        self.observation_size = envs.observation_size + envs.actions.width
        self._random = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        self._observations, self._planned = self.envs.reset(), list[np.ndarray]()
        return self._augmented_observations()

    def _augmented_observations(self) -> np.ndarray:
        """Return observations with the flow's next action `[N, O + A]`, planning a new chunk if there is none."""
        if not self._planned:
            noise = self._random.standard_normal((self.count, self.decoder.noise)).astype(np.float32)
            chunks = self.decoder(self._observations, noise).reshape(self.count, self.decoder.chunk, -1)
            self._planned = [*chunks.swapaxes(0, 1)]
        return np.concatenate([self._observations, self._planned[0]], 1)

    def step(self, actions: np.ndarray) -> Step:
        flow_action, before = self._planned.pop(0), self._observations
        action = flow_action + actions.astype(np.float32)
        step = self.envs.step(action)
        self._observations, ended = step.observations, step.terminated | step.truncated
        if ended.any():
            self._planned = []
        chunk = Chunk(
            before[None], action[None], step.final[None], stack_infos([step.info]), np.ones((1, self.count), bool)
        )
        final = np.concatenate([step.final, flow_action], 1)
        return Step(self._augmented_observations(), step.rewards, step.terminated, step.truncated, final, {}, chunk)

    def close(self) -> None:
        self.envs.close()


def train_residual(envs: ResidualEnvs, wish: Addon, seed: int, steps: int, scale: float) -> PPO:
    """Train PPO of corrections within ± scale for that many steps of the environments."""
    model = PPO(
        "MlpPolicy", Sb3Envs(WishEnvs(envs, wish), scale), n_steps=RESIDUAL_ROLLOUT, batch_size=400, n_epochs=5,
        seed=seed, device="cpu", policy_kwargs={"log_std_init": math.log(scale / 2.0)},
    )  # fmt: skip
    return model.learn(steps)


def predict_corrections(model: PPO, mean: bool, observations: np.ndarray) -> np.ndarray:
    return model.predict(observations, deterministic=mean)[0]  # type: ignore[no-any-return]
