"""What a generative policy does without training, also at smaller noise."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from noise_worlds import FEW, HERE, RIGHT, WALK
from small_runs import Log

from repolicy.envs.wrapped import NoiseEnvs
from repolicy.evaluation import evaluate
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.prepare import generative
from repolicy.prepare.generative import evaluate_untrained, standard_normal, with_noise_scale


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative, "EPISODES", 2)


def test_every_decision_before_training_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By how often environments were stepped."""
    taken, heard, step = [], Log(), NoiseEnvs.step

    def counted(self, actions):
        taken.append(self.count)
        return step(self, actions)

    monkeypatch.setattr(NoiseEnvs, "step", counted)
    settings = replace(FEW, evaluation_episodes=0)
    asked = {"env": WALK, "noise": 2, "chunk": 3, "callbacks": [heard]}
    customize(f"{HERE}:three", RIGHT, residual(), tmp_path / "run", settings, **asked)
    [sentence] = [each for each in heard.said if "in all" in each]
    assert sentence.startswith(f"{sum(taken):,} decisions, of 3 steps of the environment each, in all: ")


def test_what_takes_long_before_training_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, settings = Log(), replace(FEW, evaluation_episodes=0)

    def evaluated(*_: object) -> tuple[list[str], int]:
        heard.said.append("it begins")
        return evaluate_untrained(*_)

    monkeypatch.setattr("repolicy.learning.training.evaluate_untrained", evaluated)
    customize(
        f"{HERE}:three", RIGHT, residual(), tmp_path / "run", settings, env=WALK, noise=2, chunk=3, callbacks=[heard]
    )
    before = heard.said[: heard.said.index("it begins")]
    assert before[0].startswith("customizing ")
    assert before[-1].startswith("evaluating it without training")


def test_without_training_a_prior_that_was_customized_is_itself() -> None:
    """Of two priors, N((3, 0), 0.5² I) is not N(0, I): its noise of scale 1, and the square of its noise."""
    policy = with_noise_scale(standard_normal(2, 2), 0.5)
    policy.network.biases[-1].copy_(torch.tensor([3.0, 0.0]))
    assert torch.allclose(with_noise_scale(policy, 1.0).std, torch.full((2,), 0.5))
    spot = f"{HERE}:Spot?decoder={HERE}:same&noise=2&chunk=1"
    found = [evaluate(policy, spot, 400, prior=policy, deterministic=each).columns for each in (True, False)]
    squares = [each["noise_square"].mean for each in found]
    assert squares == pytest.approx([9.0 / 2, 9.0 / 2 + 0.25], rel=0.05)
