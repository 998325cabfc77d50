"""Which episodes are worth a film: a typical one, and the worst with the step at which it went wrong.

A film does again what was done in an episode of the evaluation, from the same seed. To let the policy act again would
not do: alone it rounds otherwise than beside others, and after some hundred steps that is another episode.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repolicy.envs import MAX_ENVS, Evaluation
from repolicy.report.movie import Shot
from repolicy.text import number

BEHIND = 0.1  # an episode with this share less reward than the typical one has gone wrong


@dataclass(frozen=True)
class Episode:
    """One whole episode of an evaluation."""

    seed: int
    rewards: np.ndarray  # [T] basic reward and add-on as far as they are known
    terminated: bool
    sent: np.ndarray  # [T, A] the actions as the environment got them

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


def scenes(file: Path, mean: dict[str, Evaluation]) -> list[Scene]:
    """Return the prior, where there is one, a typical episode from the same start, and the mean action's worst one.

    `file` is the policy's, and `mean` its evaluation, the last, behind the prior's.
    """
    *_, (who, evaluation) = mean.items()
    (typical, worst), count = typical_and_worst(evaluation)
    usual, bad = episode(evaluation, typical), episode(evaluation, worst)

    def shot(one: Episode, which: str = "policy", around: int = 0) -> Shot:
        return Shot(str(file), evaluation.env, which, seed=one.seed, around=around, actions=one.sent.tolist())

    chosen = [Scene(shot(usual), f"{who}, a typical episode of {count}, which earns {usual}")]
    if "prior" in mean:
        before = episode(mean["prior"], typical)
        chosen.insert(0, Scene(shot(before, "prior"), f"prior, from the same start, which earns {before}", "prior"))
    if bad.seed != usual.seed:
        chosen.append(Scene(shot(bad, around=wrong_at(bad, usual) or 0), f"{who}, {story(bad, usual, count)}"))
    return chosen


def episode(evaluation: Evaluation, place: int) -> Episode:
    """Return the first one of the environment at this place."""
    length, steps = int(evaluation.lengths[place]), evaluation.steps
    assert steps is not None
    assert evaluation.terminated is not None
    rewards, sent = steps.rewards[:length, place], steps.env_actions[:length, place]
    return Episode(evaluation.seed + place, rewards, bool(evaluation.terminated[place]), sent)


def typical_and_worst(evaluation: Evaluation) -> tuple[tuple[int, int], int]:
    """Return the episodes with the median and the lowest reward, as far as it is known, and of how many.

    Of more episodes than environments, those that are the first of their environments: only these begin by its seed.
    """
    columns = evaluation.columns
    name = next(each for each in ("total_reward", "basic_reward", "addon_reward", "length") if each in columns)
    rewards = columns[name].values[:MAX_ENVS]
    typical = int(np.argmin(np.abs(rewards - np.median(rewards))))
    return (typical, int(np.argmin(rewards))), len(rewards)


def wrong_at(episode: Episode, usual: Episode) -> int | None:
    """Return the step, from 1, at which an episode went wrong beside the usual one; None where it did not.

    That is its end where the environment ended it sooner. Else, if it earns much less, it is the step that best parts
    its rewards into those before and those after (the largest sum of differences from their mean).
    """
    if episode.terminated and len(episode.rewards) < len(usual.rewards):
        return len(episode.rewards)
    if usual.total - episode.total <= BEHIND * abs(usual.total):
        return None
    count = max(len(episode.rewards), len(usual.rewards))  # who has reached the end earns nothing more
    own, others = (np.pad(each.rewards, (0, count - len(each.rewards))) for each in (episode, usual))
    behind = others - own
    step = int(np.argmin(np.round(np.cumsum([0.0, *(behind - behind.mean())]), 9))) + 1
    return min(step, len(episode.rewards))


def story(episode: Episode, usual: Episode, count: int) -> str:
    """Return what a film of the worst episode shows, in words."""
    step = wrong_at(episode, usual)
    if step is None:
        what = "nothing went wrong in it"
    elif episode.terminated and step == len(episode.rewards):
        what = f"it ended early, at step {step:,}"
    elif step > 1:
        what = f"it went wrong about step {step:,}"
    else:
        what = "it was behind from its start"
    return f"the worst of {count} episodes, which earns {episode}: {what}"
