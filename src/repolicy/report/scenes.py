"""Which episodes are worth a film: a typical one, and the worst with the step at which it went wrong.

Films are made in Gymnasium, where the same seed and the mean action give the same episode again.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from repolicy.envs.addons import Addon
from repolicy.envs.evaluation import LONGEST, MOST_ENVS, Evaluation
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.policies.file import SavedPolicy
from repolicy.policies.policy import Agent
from repolicy.report.movie import Shot
from repolicy.report.numbers import number

AT_A_TIME = 20  # steps between looks at whether the episode has ended
BEHIND = 0.1  # an episode with this share less reward than the typical one has gone wrong


@dataclass(frozen=True)
class Episode:
    """One whole episode with the mean action."""

    seed: int
    rewards: np.ndarray  # [T] basic reward and add-on as far as they are known
    terminated: bool

    def __str__(self) -> str:
        return number(self.total)

    @property
    def total(self) -> float:
        return float(self.rewards.sum())


@dataclass(frozen=True)
class Scene:
    """A film of a page: what to film, what stands beneath it, and whose it is, for its color."""

    shot: Shot
    caption: str
    kind: str = "customized"


def scenes(saved: SavedPolicy, file: Path, addon: Addon | None, evaluation: Evaluation) -> list[Scene]:
    """The prior, where there is one, a typical episode from the same start, and the worst one of the evaluation."""
    who, env = "policy" if saved.prior is None else "customized", evaluation.env
    usual, last, count = None, None, 0
    if evaluation.backend == "gymnasium":
        places, count = typical_and_worst(evaluation)
        usual, last = (played(saved.policy, env, addon, evaluation.seed + place) for place in places)
    seed = usual.seed if usual else 0
    typically = f"a typical episode of {count}, which earns {usual}"
    caption = f"{who}, {'mean action' if usual is None else typically}"
    chosen = [Scene(Shot(str(file), env, seed=seed), caption)]
    if saved.prior is not None:
        chosen.insert(0, Scene(Shot(str(file), env, "prior", seed=seed), "prior, from the same start", "prior"))
    if usual and last and last.seed != usual.seed:
        shot = Shot(str(file), env, seed=last.seed, around=wrong_at(last, usual) or 0)
        chosen.append(Scene(shot, f"{who}, {story(last, usual, count)}"))
    return chosen


def typical_and_worst(evaluation: Evaluation) -> tuple[tuple[int, int], int]:
    """The episodes with the median and the lowest reward, as far as it is known, and of how many.

    Of more episodes than environments, those that are the first of their environments: only these begin by its seed.
    """
    columns = evaluation.columns
    name = next(each for each in ("total_reward", "basic_reward", "addon_reward", "length") if each in columns)
    rewards = columns[name].values[:MOST_ENVS]
    typical = int(np.argmin(np.abs(rewards - np.median(rewards))))
    return (typical, int(np.argmin(rewards))), len(rewards)


def played(agent: Agent, env: str, addon: Addon | None, seed: int) -> Episode:
    """An episode in Gymnasium with the mean action, again."""
    envs = make_envs(env, 1, seed, "gymnasium")
    collector = Collector(envs, AT_A_TIME, torch.Generator(), keep_transitions=addon is not None)
    rewards: list[float] = []
    while True:
        rollout = collector.collect(agent, deterministic=True)
        reward = rollout.basic[:, 0]
        if addon is not None:
            extra = addon.reward(*rollout.transitions)[:, 0]
            reward = np.where(np.isfinite(reward), reward + extra, extra)
        ended = np.flatnonzero(rollout.terminated[:, 0] | rollout.truncated[:, 0])
        last = int(ended[0]) if len(ended) else AT_A_TIME - 1
        rewards += reward[: last + 1].tolist()
        if len(ended) or len(rewards) >= LONGEST:
            envs.close()
            return Episode(seed, np.array(rewards), bool(rollout.terminated[last, 0]))


def wrong_at(episode: Episode, usual: Episode) -> int | None:
    """The step, from 1, at which an episode went wrong beside the usual one; None where it did not.

    That is its end where the environment ended it sooner. Else, if it earns much less, it is the step that best parts
    its rewards into those before and those after (the largest sum of differences from their mean).
    """
    if episode.terminated and len(episode.rewards) < len(usual.rewards):
        return len(episode.rewards)
    if usual.total - episode.total <= BEHIND * abs(usual.total):
        return None
    count = max(len(episode.rewards), len(usual.rewards))  # who has reached the end earns nothing more
    one, other = (np.pad(each.rewards, (0, count - len(each.rewards))) for each in (episode, usual))
    behind = other - one
    step = int(np.argmin(np.round(np.cumsum([0.0, *(behind - behind.mean())]), 9))) + 1
    return min(step, len(episode.rewards))


def story(episode: Episode, usual: Episode, count: int) -> str:
    """What a film of the worst episode shows, in words."""
    step, whose = wrong_at(episode, usual), f"the worst of {count} episodes, which earns {episode}"
    if step is None:
        return f"{whose}: nothing went wrong in it"
    if episode.terminated and step == len(episode.rewards):
        return f"{whose}: it ended early, at step {step:,}"
    return f"{whose}: it went wrong about step {step:,}"
