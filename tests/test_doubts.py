"""A run that drifts and gains nothing says so, once for each segment, with what to try."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_customize as linear
from tiny_envs import tiny

from repolicy.engine.doubts import Standing, doubt
from repolicy.engine.folder import RunFolder
from repolicy.engine.training import customize
from repolicy.objective import kl
from repolicy.policies.file import read_policy, save_policy

START = Standing(-10.0, 1.0)


def test_a_standing_is_a_mean_and_its_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 50)
    found = Standing.of(values.sum(), np.square(values).sum(), 50)
    assert (found.mean, found.error) == pytest.approx((values.mean(), values.std(ddof=1) / 50**0.5))
    assert Standing.of(-6.0, 12.0, 3).error == 0.0  # never below, whatever rounding does


@pytest.mark.parametrize(
    ("now", "drift", "explained", "share", "said"),
    [
        (Standing(-5.0, 1.0), 2.0, 0.5, 0.9, ""),
        (Standing(-12.0, 1.0), 2.0, 0.5, 0.1, ""),
        (Standing(-9.9, 1.0), 2.0, 0.5, 0.9, "smaller steps (--desired-kl"),
        (Standing(-9.9, 1.0), 0.01, 0.5, 0.9, "hardly moved"),
        (Standing(-12.0, 1.0), 2.0, -1.9, 0.9, "explained variance -1.9"),
    ],
)
def test_what_is_said(now: Standing, drift: float, explained: float, share: float, said: str) -> None:
    sentence = doubt(START, now, drift, explained, share, "the objective")
    assert said in sentence
    assert bool(sentence) == bool(said)


def test_a_run_that_gains_nothing_says_so_and_hands_back_its_prior(tmp_path: Path) -> None:
    """The weight of the prior is so large that any step away costs more than the wish pays."""
    prior, log = tmp_path / "prior.safetensors", linear.Log()
    save_policy(prior, linear.as_policy(linear.optimum(linear.STATE_COST, linear.CONTROL_COST, linear.ALPHA)), {})
    said: list[str] = []
    log.say = said.append  # type: ignore[method-assign]
    rough = replace(linear.SETTINGS, steps=4_096, segment=4, horizon=4, learning_rate=0.3, schedule="constant")
    wish, objective = f"{linear.__file__}:wish", kl(30.0)
    customize(prior, wish, objective, tmp_path / "run", rough, env=tiny("WithoutReward"), watchers=[log])
    assert any("of the steps the objective of an episode is" in sentence for sentence in said)
    best, last = (
        read_policy(path) for path in (RunFolder(tmp_path / "run").best_policy, tmp_path / "run/policy.safetensors")
    )
    assert best.card["steps"] == 0
    assert best.prior is not None
    kept, start = best.policy.state_dict(), read_policy(prior).policy.state_dict()
    assert all((kept[name] == start[name]).all() for name in start)
    assert last.card["steps"] == 4_096
