"""Choose the episodes to film: a typical one, and the worst one around the step at which it went wrong.

A film replays the recorded actions of an evaluation's episode, from the same seed. The policy itself could not repeat
it: in a batch of one it rounds differently, and after some hundred steps the episode is another one.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repolicy.evaluation import MAX_ENVS, Evaluation
from repolicy.report.movie import Shot
from repolicy.text import format_number

WRONG_SHARE = 0.1  # an episode went wrong if it earns less than the typical one by more than this share


@dataclass(frozen=True)
class Episode:
    """A whole episode of an evaluation."""

    seed: int
    rewards: np.ndarray  # [T] the sum of basic reward and add-on, or the one that is known
    terminated: bool
    actions: np.ndarray  # [T, A] the actions that the environment received

    def __str__(self) -> str:
        return format_number(self.total)

    @property
    def total(self) -> float:
        return float(self.rewards.sum())


@dataclass(frozen=True)
class Scene:
    """A film of a page with its caption; `kind`, prior or customized, selects its color."""

    shot: Shot
    caption: str
    kind: str = "customized"


def choose_scenes(file: Path, mean: dict[str, Evaluation]) -> list[Scene]:
    """Return a typical episode, the prior's from the same start if there is a prior, and the worst episode.

    `file` is the policy's file. `mean` are the evaluations with the mean action: of the prior, if any, and the policy.
    """
    *_, (agent, evaluation) = mean.items()
    (typical_index, worst_index), count = typical_and_worst(evaluation)
    typical, worst = first_episode(evaluation, typical_index), first_episode(evaluation, worst_index)

    def shot(episode: Episode, role: str = "policy", center_step: int = 0) -> Shot:
        return Shot(
            str(file), evaluation.env, role, seed=episode.seed, center_step=center_step,
            actions=episode.actions.tolist(), is_in_envpool=evaluation.backend == "envpool",
        )  # fmt: skip

    scenes = [Scene(shot(typical), f"{agent}, a typical episode of {count}, which earns {typical}")]
    if "prior" in mean:
        before = first_episode(mean["prior"], typical_index)
        scenes.insert(0, Scene(shot(before, "prior"), f"prior, from the same start, which earns {before}", "prior"))
    if worst.seed != typical.seed:
        wrong_shot = shot(worst, center_step=wrong_step(worst, typical) or 0)
        scenes.append(Scene(wrong_shot, f"{agent}, {describe_worst(worst, typical, count)}"))
    return scenes


def first_episode(evaluation: Evaluation, index: int) -> Episode:
    """Return the first episode of the environment with this index."""
    length, steps = int(evaluation.lengths[index]), evaluation.steps
    assert steps is not None
    assert evaluation.terminated is not None
    rewards, actions = steps.rewards[:length, index], steps.env_actions[:length, index]
    return Episode(evaluation.seed + index, rewards, bool(evaluation.terminated[index]), actions)


def typical_and_worst(evaluation: Evaluation) -> tuple[tuple[int, int], int]:
    """Return the indices of the episodes with the median and the lowest reward, and the number of candidates.

    Candidates are the first episode of each environment: only these begin with the environment's seed.
    """
    columns = evaluation.columns
    name = next(each for each in ("total_reward", "basic_reward", "addon_reward", "length") if each in columns)
    rewards = columns[name].values[:MAX_ENVS]
    typical = int(np.argmin(np.abs(rewards - np.median(rewards))))
    return (typical, int(np.argmin(rewards))), len(rewards)


def wrong_step(episode: Episode, typical: Episode) -> int | None:
    """Return the step, counted from 1, at which an episode went wrong compared with a typical one; None if it did not.

    If the environment terminated it earlier, this is its last step. Else, if it earns much less, it is the change point
    of the reward that it lacks: the minimum of the cumulative sum of the differences from their mean.
    """
    if episode.terminated and len(episode.rewards) < len(typical.rewards):
        return len(episode.rewards)
    if typical.total - episode.total <= WRONG_SHARE * abs(typical.total):
        return None
    length = max(len(episode.rewards), len(typical.rewards))  # after its end an episode earns nothing
    rewards, typical_rewards = (np.pad(each.rewards, (0, length - len(each.rewards))) for each in (episode, typical))
    lacking = typical_rewards - rewards
    step = int(np.argmin(np.round(np.cumsum([0.0, *(lacking - lacking.mean())]), 9))) + 1
    return min(step, len(episode.rewards))


def describe_worst(episode: Episode, typical: Episode, count: int) -> str:
    """Return the caption of the worst episode, without whose episode it is."""
    step = wrong_step(episode, typical)
    if step is None:
        outcome = "nothing went wrong in it"
    elif episode.terminated and step == len(episode.rewards):
        outcome = f"it ended early, at step {step:,}"
    elif step > 1:
        outcome = f"it went wrong about step {step:,}"
    else:
        outcome = "it was behind from its start"
    return f"the worst of {count} episodes, which earns {episode}: {outcome}"
