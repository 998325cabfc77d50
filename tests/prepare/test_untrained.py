"""What a generative policy does without training: at smaller noise, and as the best of some draws."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from noise_worlds import FEW, HERE, RIGHT, WALK, named
from small_runs import Log

from repolicy.addons.addon import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Transitions
from repolicy.envs.wrapped import NoiseEnvs
from repolicy.errors import UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.prepare import generative
from repolicy.prepare.generative import BestOf, check_copyable, evaluate_untrained, standard_normal, with_noise_scale


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative, "EPISODES", 2)


def test_the_best_of_some_draws_is_as_good_as_the_largest_of_them() -> None:
    """The mean of the largest of sixteen normal numbers is 1.766."""
    envs = make_envs(f"{HERE}:Spot?decoder={HERE}:same&noise=2&chunk=1", 400, 0)
    agent = BestOf(standard_normal(2, 2), combine_addons([f"{HERE}:first"]), 16)
    agent.watch(envs)
    assert agent(envs.reset())[:, 0].mean() == pytest.approx(1.766, abs=0.08)


def test_a_decoder_that_ignores_its_noise_is_refused_before_it_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative, "evaluate", None)
    with pytest.raises(UsageError, match="deaf gives the same actions whatever its noise is"):
        evaluate_untrained(standard_normal(2, 2), named("deaf"), (RIGHT,), FEW)


def test_the_best_of_some_draws_is_that_of_a_whole_chunk_and_looking_changes_nothing() -> None:
    """Beside each draw in an environment of its own that begins alike, so near to the end that many draws end early."""
    addon, envs, tried = combine_addons([RIGHT]), make_envs(named("three", chunk=3), 1, 13), []
    agent, seen = BestOf(standard_normal(2, 2), addon, 64), envs.reset()

    class Heard:
        def copies(self, *given):
            copies = envs.copies(*given)
            step = copies.step
            copies.step = lambda noise: tried.append(noise) or step(noise)
            return copies

    agent.watch(Heard())
    [chosen], [before] = agent(seen), [env.unwrapped.place.copy() for env in envs.envs.each]
    paid = []
    for draw in tried[0]:
        other = make_envs(envs.name, 1, 13)
        np.testing.assert_array_equal(other.reset(), seen)
        chunk = other.step(draw[None]).chunk
        paid.append(addon.reward(Transitions(*chunk[:4]))[chunk.counts].sum())
    assert len(paid) == 64
    np.testing.assert_array_equal(chosen, tried[0][np.argmax(paid)])
    np.testing.assert_array_equal(before, envs.envs.each[0].unwrapped.place)
    np.testing.assert_array_equal(before.astype(np.float32), seen[0])


def test_what_cannot_be_copied_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="EnvPool's alone"):
        check_copyable("MetaWorld/Push-v3?decoder=flow.onnx&noise=2&chunk=1", combine_addons([RIGHT]))
    with pytest.raises(UsageError, match="action_rate has a past"):
        check_copyable(named("same"), combine_addons(["action_rate"]))


def test_every_decision_before_training_is_counted_and_what_takes_long_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how often environments and their copies were stepped."""
    taken, heard, step = [], Log(), NoiseEnvs.step

    def counted(self, actions):
        taken.append(self.count)
        return step(self, actions)

    def evaluated(*given: object) -> tuple[list[str], int]:
        heard.said.append("it begins")
        return evaluate_untrained(*given)

    monkeypatch.setattr(NoiseEnvs, "step", counted)
    monkeypatch.setattr("repolicy.learning.training.evaluate_untrained", evaluated)
    settings = replace(FEW, evaluation_episodes=0)
    asked = {"env": WALK, "noise": 2, "chunk": 3, "callbacks": [heard]}
    customize(f"{HERE}:three", RIGHT, residual(), tmp_path / "run", settings, **asked)
    [sentence] = [each for each in heard.said if "in all" in each]
    assert sentence.startswith(f"{sum(taken):,} decisions, of 3 steps of the environment each, in all: ")
    assert any("best of 16 by the wish: basic reward" in each for each in heard.said)
    before = heard.said[: heard.said.index("it begins")]
    assert before[0].startswith("customizing ")
    assert before[-1].startswith("evaluating it without training")


def test_without_training_a_prior_that_was_customized_is_itself() -> None:
    """Of two priors, N((3, 0), 0.5² I) is not N(0, I): its noise of scale 1, its draws, and the square of its noise."""
    policy = with_noise_scale(standard_normal(2, 2), 0.5)
    policy.network.biases[-1].copy_(torch.tensor([3.0, 0.0]))
    assert torch.allclose(with_noise_scale(policy, 1.0).std, torch.full((2,), 0.5))
    spot = f"{HERE}:Spot?decoder={HERE}:same&noise=2&chunk=1"
    agent, envs = BestOf(policy, combine_addons([f"{HERE}:first"]), 16), make_envs(spot, 400, 0)
    agent.watch(envs)
    assert agent(envs.reset())[:, 0].mean() == pytest.approx(3.0 + 0.5 * 1.766, abs=0.04)
    found = [evaluate(policy, spot, 400, prior=policy, deterministic=each).columns for each in (True, False)]
    squares = [each["noise_square"].mean for each in found]
    assert squares == pytest.approx([9.0 / 2, 9.0 / 2 + 0.25], rel=0.05)
