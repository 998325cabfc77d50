"""How what a policy brings is compared, and what a run hands out that gains nothing."""

from dataclasses import replace
from pathlib import Path

import known_optimum as linear
import numpy as np
import pytest
from tiny_envs import tiny
from workers import SETTINGS, segments

from repolicy.envs.evaluation import Evaluation
from repolicy.learning.training import customize
from repolicy.objective import kl, residual
from repolicy.policies.file import save_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.result import Standing


def test_a_standing_is_a_mean_and_its_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 50)
    found = Standing.of(values.sum(), np.square(values).sum(), 50)
    assert (found.mean, found.error) == pytest.approx((values.mean(), values.std(ddof=1) / 50**0.5))
    assert Standing.of(-6.0, 12.0, 3).error == 0.0  # never below, whatever rounding does


def test_one_beats_another_by_more_than_both_their_errors() -> None:
    """Errors of 3 and 4 are one of 5 in the difference."""
    for one, other in ((3.0, 4.0), (4.0, 3.0)):
        assert not Standing(4.9, one).beats(Standing(0.0, other))
        assert Standing(5.1, one).beats(Standing(0.0, other))


@pytest.mark.parametrize(("budget", "error"), [(None, 4.0), (0.1, 2.0)])
def test_under_a_budget_the_task_compares_and_else_the_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, error: float
) -> None:
    """Three episodes, whose tasks pay 1, 3, 5; with 0.2 · log prior - 0.1 · log policy they are worth 4, 8, 12."""
    told = Evaluation(
        env="", backend="", deterministic=False, seed=0, basic=np.zeros(3),
        addon=np.array([1.0, 3.0, 5.0]), metric=None, lengths=np.full(3, 8.0),
        log_policy=np.full(3, -10.0), log_prior=np.array([10.0, 20.0, 30.0]),
    )  # fmt: skip
    settings = replace(SETTINGS, kl_budget=budget)
    made = segments(tmp_path, "LinearQuadratic", residual(0.2, 0.1), prior=True, settings=settings)
    monkeypatch.setattr("repolicy.learning.segments.run_episodes", lambda *_, **__: told)
    metrics = made.evaluated()
    assert (metrics["evaluation_task"], metrics["evaluation_objective"]) == pytest.approx((3.0, 8.0))
    assert metrics["evaluation_error"] == pytest.approx(error / 3**0.5)
    stands = made.standing(metrics)
    assert (stands.mean, stands.error) == pytest.approx((3.0 if budget else 8.0, error / 3**0.5))


def test_a_run_that_gains_nothing_hands_back_its_prior(tmp_path: Path) -> None:
    """The weight of the prior is so large that any step away costs more than the wish pays."""
    prior, log = tmp_path / "prior.safetensors", linear.Log()
    save_policy(prior, linear.as_policy(linear.optimum(linear.STATE_COST, linear.CONTROL_COST, linear.ALPHA)), {})
    said: list[str] = []
    log.say = said.append  # type: ignore[method-assign]
    rough = replace(linear.SETTINGS, steps=4_096, checkpoint_every=4, n_steps=4, learning_rate=0.3, schedule="constant")
    wish, objective = linear.WISH, kl(30.0)
    customize(prior, wish, objective, tmp_path / "run", rough, env=tiny("WithoutReward"), callbacks=[log])
    assert not any("--omega" in sentence or "--addon" in sentence for sentence in said)  # hints follow the verdict
    folder = RunFolder(tmp_path / "run")
    handed_out, last = read_policy(folder.policy), read_policy(folder.last_policy)
    assert handed_out.card["steps"] == 0
    assert handed_out.prior is not None
    kept, start = handed_out.policy.state_dict(), read_policy(prior).policy.state_dict()
    assert all((kept[name] == start[name]).all() for name in start)
    assert last.card["steps"] == 4_096
