"""Other ways to steer the same flow: SAC over its noise (DSRL), and a residual that is added to its actions.

DSRL is Wagenmaker et al., 2025, as its program sets it, but with networks of 3 x 256 in place of 3 x 2,048, and no
layer norm. The residual is customary, too: PPO whose policy sees observation and flow action, and adds to it. Both
train by Stable-Baselines3, and are paid the wish alone.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC

from experiments.batches import ForSb3
from repolicy.envs.addons import Addon
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Chunk, Envs, Step, stack_infos
from repolicy.priors.decoders import Decoder

BOUND, WITHIN, BEGIN, HIDDEN = 1.5, 4, 1_500, [256, 256, 256]
SIDE_BY_SIDE, ROLLOUT = 32, 50  # environments and steps of the residual's PPO
Act = Callable[[np.ndarray], np.ndarray]


def paid(step: Step, wish: Addon) -> np.ndarray:
    """Return what each wish pays `[W, N]` for the steps that a decision led to."""
    assert step.chunk is not None
    tried = Transitions(step.chunk.observations, step.chunk.actions, step.chunk.final, step.chunk.info)
    return np.stack([np.where(step.chunk.counts, pays, 0.0).sum(0) for pays in wish.weighted_rewards(tried)])


def played(envs: Any, act: Act, wish: Addon) -> np.ndarray:
    """Return what each wish pays in the first episode of each environment, `[W, N]`."""
    seen, running, sums = envs.reset(), np.ones(envs.count, bool), np.zeros((len(wish.names), envs.count))
    while running.any():
        step = envs.step(act(seen))
        sums += running * paid(step, wish)
        running &= ~(step.terminated | step.truncated)
        seen = step.observations
    return sums


class Paid:
    """Environments whose reward is the wish, for each decision."""

    squashes = False

    def __init__(self, envs: Any, wish: Addon) -> None:
        self.batch, self.wish, self.current = envs, wish, envs.reset()

    def step(self, actions: np.ndarray) -> tuple[Step, np.ndarray]:
        step = self.batch.step(actions)
        self.current = step.observations
        return step, paid(step, self.wish).sum(0)


def dsrl(envs: Envs, wish: Addon, seed: int, decisions: int, gradients: int, seconds: float) -> tuple[SAC, int]:
    """Return SAC over the noise after so many decisions, or seconds of this process, and how many it took."""
    began, given = time.process_time(), ForSb3(Paid(envs, wish), BOUND)
    model = SAC(
        "MlpPolicy", given, learning_starts=0, batch_size=256, gradient_steps=gradients, target_entropy=0.0, seed=seed,
        buffer_size=decisions // envs.count * envs.count + BEGIN, device="cpu",
        policy_kwargs={"net_arch": HIDDEN, "activation_fn": torch.nn.Tanh},
    )  # fmt: skip
    random, seen = np.random.default_rng(seed), given.reset()
    for _ in range(BEGIN // envs.count):
        noise = random.standard_normal((envs.count, envs.actions.width)).astype(np.float32).clip(-BOUND, BOUND)
        after, rewards, ended, infos = given.step(noise)
        last = np.stack([info.get("terminal_observation", own) for info, own in zip(infos, after, strict=True)])
        model.replay_buffer.add(seen, last, noise / BOUND, rewards, ended, infos)
        seen = after
    model.learn(decisions - BEGIN, callback=lambda *_: time.process_time() - began < seconds)
    return model, BEGIN + model.num_timesteps


class ByNoise:
    """The trained SAC's noise, and the nats by which it is unlike N(0, I)."""

    def __init__(self, model: SAC, mean: bool) -> None:
        self.model, self.mean, self.nats = model, mean, 0.0

    @torch.no_grad()
    def __call__(self, seen: np.ndarray) -> np.ndarray:
        observations = torch.from_numpy(seen)
        if self.mean:
            return BOUND * self.model.actor(observations, deterministic=True).numpy()  # type: ignore[no-any-return]
        within, own = self.model.actor.action_log_prob(observations)
        noise: torch.Tensor = BOUND * within
        own = own - noise.shape[1] * math.log(BOUND)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(1)
        self.nats += float((own - prior).mean())
        return noise.numpy()


class Corrected:
    """Environments in which an action is added to the flow's own, which is seen behind the observation.

    Their episodes end together, as MetaWorld's do.
    """

    def __init__(self, envs: Envs, decoder: Decoder, seed: int) -> None:
        self.envs, self.decoder, self.count, self.actions = envs, decoder, envs.count, envs.actions
        self.observation_size = envs.observation_size + envs.actions.width
        self._random = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        self._seen, self._planned = self.envs.reset(), list[np.ndarray]()
        return self._shown()

    def _shown(self) -> np.ndarray:
        if not self._planned:
            noise = self._random.standard_normal((self.count, self.decoder.noise)).astype(np.float32)
            chunks = self.decoder(self._seen, noise).reshape(self.count, self.decoder.chunk, -1)
            self._planned = [*chunks.swapaxes(0, 1)]
        return np.concatenate([self._seen, self._planned[0]], 1)

    def step(self, actions: np.ndarray) -> Step:
        base, before = self._planned.pop(0), self._seen
        taken = base + actions.astype(np.float32)
        step = self.envs.step(taken)
        self._seen, ended = step.observations, step.terminated | step.truncated
        if ended.any():
            self._planned = []
        chunk = Chunk(
            before[None], taken[None], step.final[None], stack_infos([step.info]), np.ones((1, self.count), bool)
        )
        final = np.concatenate([step.final, base], 1)
        return Step(self._shown(), step.rewards, step.terminated, step.truncated, final, {}, chunk)

    def close(self) -> None:
        self.envs.close()


def residual(envs: Corrected, wish: Addon, seed: int, steps: int, scale: float) -> PPO:
    """Return PPO of corrections within ± scale, after so many steps of the environments."""
    given = ForSb3(Paid(envs, wish), scale)
    model = PPO(
        "MlpPolicy", given, n_steps=ROLLOUT, batch_size=400, n_epochs=5, seed=seed, device="cpu",
        policy_kwargs={"log_std_init": math.log(scale / 2.0)},
    )  # fmt: skip
    return model.learn(steps)


def corrections(model: PPO, mean: bool, seen: np.ndarray) -> np.ndarray:
    return model.predict(seen, deterministic=mean)[0]  # type: ignore[no-any-return]
