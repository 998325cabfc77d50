"""Which episodes are filmed: the typical one and the worst, and the step at which that one went wrong."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_envs import tiny

from repolicy.envs.addons import combined
from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.policies.actions import ActionSpace
from repolicy.policies.file import SavedPolicy, save_policy
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.priors.opening import read_policy
from repolicy.report import movie as film
from repolicy.report import scenes
from repolicy.report.movie import QUALITIES, Shot, encoded, films
from repolicy.report.scenes import Episode, played, story, typical_and_worst, wrong_at

USUAL = Episode(0, np.ones(100), False)


def agent(observations: int, bound: float = 1.0) -> Policy:
    torch.manual_seed(1)
    space = ActionSpace("continuous", (1,), (-bound,), (bound,))
    return frozen(Policy(PolicySpec(observations, space, initial_std=0.5)))


def saved(path: Path, prior: bool) -> SavedPolicy:
    save_policy(path, agent(4, 3.0), {}, agent(4, 3.0) if prior else None)
    return read_policy(path)


def test_the_typical_one_is_in_the_middle_and_the_worst_at_the_end() -> None:
    """Of all that were evaluated, however many they are; only a further episode of an environment is not seen again."""
    totals = np.array([5.0, -1.0, 3.0, 100.0, 2.0] + [3.5] * 44 + [-9.0, -99.0])
    found = Evaluation(
        env="", backend="gymnasium", deterministic=True, seed=0, basic=totals, addon=None, metric=None, lengths=totals,
        log_policy=totals, log_prior=None,
    )  # fmt: skip
    (typical, worst), count = typical_and_worst(found)
    assert (totals[typical], totals[worst], count) == (3.5, -9.0, 50)


@pytest.mark.parametrize("step", [1, 2, 50, 81])
def test_an_episode_goes_wrong_where_its_reward_drops(step: int) -> None:
    rewards = np.ones(100)
    rewards[step - 1 :] = 0.0
    assert wrong_at(Episode(1, rewards, False), USUAL) == step
    assert f"it went wrong about step {step}" in story(Episode(1, rewards, False), USUAL, 10)


def test_an_episode_that_ended_sooner_went_wrong_there() -> None:
    fallen = Episode(1, np.full(37, 2.0), True)
    assert wrong_at(fallen, USUAL) == 37
    assert story(fallen, USUAL, 10) == "the worst of 10 episodes, which earns 74.0: it ended early, at step 37"


def test_an_episode_that_takes_longer_went_wrong_where_the_usual_one_was_done() -> None:
    usual, slow = Episode(0, -np.ones(110), True), Episode(1, -np.ones(160), True)
    assert wrong_at(slow, usual) == 111


def test_a_little_less_is_nothing_wrong() -> None:
    assert wrong_at(Episode(1, np.full(100, 0.91), False), USUAL) is None
    assert "nothing went wrong" in story(Episode(1, np.full(100, 0.91), False), USUAL, 10)
    assert wrong_at(Episode(1, np.full(100, 0.89), False), USUAL) == 1


def test_an_episode_of_an_evaluation_is_played_again() -> None:
    addon = combined([f"{tiny('stay_near')}=2"])
    beside = evaluate(agent(1), tiny("LinearQuadratic"), 4, addon=addon, seed=EVALUATION_SEED)
    found = [played(agent(1), tiny("LinearQuadratic"), addon, EVALUATION_SEED + place) for place in range(4)]
    np.testing.assert_allclose([episode.total for episode in found], beside.total, rtol=1e-5)
    assert [len(episode.rewards) for episode in found] == beside.lengths.tolist()


@pytest.mark.parametrize("prior", [False, True])
def test_a_page_has_the_prior_a_typical_episode_and_the_worst(tmp_path: Path, prior: bool) -> None:
    path = tmp_path / "policy.safetensors"
    kept = saved(path, prior)
    found = evaluate(kept.policy, "InvertedPendulum-v4", 20, seed=EVALUATION_SEED, backend="gymnasium")
    chosen = scenes.scenes(kept, path, None, found)
    typical, worst = (EVALUATION_SEED + place for place in typical_and_worst(found)[0])
    assert worst == EVALUATION_SEED + found.basic.argmin()
    shots = [scene.shot for scene in chosen]
    assert [scene.kind for scene in chosen] == ["prior"] * prior + ["customized"] * 2
    assert [shot.seed for shot in shots] == [typical] * (1 + prior) + [worst]
    assert [shot.which for shot in shots] == ["prior"] * prior + ["policy"] * 2
    assert shots[-1].around == found.lengths[worst - EVALUATION_SEED]
    assert f"it ended early, at step {shots[-1].around}" in chosen[-1].caption


def test_what_gymnasium_cannot_make_has_films_of_any_episode(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    found = evaluate(agent(4, 3.0), "InvertedPendulum-v4", 2, seed=EVALUATION_SEED)
    assert found.backend == "envpool"
    chosen = scenes.scenes(saved(path, True), path, None, found)
    assert [scene.caption for scene in chosen] == ["prior, from the same start", "customized, mean action"]


@pytest.mark.usefixtures("_renderer")
def test_a_film_shows_the_end_of_the_episode_and_no_more(tmp_path: Path) -> None:
    """One picture a step: from ten steps before the one in the middle to the last that the episode has."""
    path = tmp_path / "policy.safetensors"
    saved(path, False)
    steps = len(played(agent(4, 3.0), "InvertedPendulum-v4", None, EVALUATION_SEED).rewards)
    shot = Shot(str(path), "InvertedPendulum-v4", seed=EVALUATION_SEED, seconds=9.0, width=96, height=64)
    assert steps > 13
    shots = [replace(shot, around=steps, format="gif"), replace(shot, seconds=0.8, around=steps, format="gif")]
    assert [Image.open(io.BytesIO(content)).n_frames for content in films(shots)] == [steps, 10]


def test_a_film_is_made_coarser_until_it_fits() -> None:
    noise = [np.random.default_rng(i).integers(0, 255, (64, 96, 3), np.uint8) for i in range(10)]
    large, small = encoded(noise, 25, "mp4"), encoded(noise, 25, "mp4", most_bytes=10_000)
    assert len(small) <= 10_000 < len(large)
    assert encoded(noise, 25, "mp4", most_bytes=1) == film._encoded(noise, 25, "mp4", QUALITIES[-1])
