"""What a run hands out: the last policy, unless an earlier one is clearly better, and never because it falls early."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import known_optimum as linear
import numpy as np
import pytest
import torch
from small_runs import Log
from tiny_envs import tiny
from workers import SETTINGS, segments

from repolicy.evaluation import Evaluation
from repolicy.learning.segments import Segments, is_clearly_better
from repolicy.learning.training import customize
from repolicy.objective import kl, no_entropy, residual
from repolicy.policies.file import save_policy
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.result import Estimate

LIMIT = 100


def told(objective: np.ndarray, lengths: np.ndarray) -> Evaluation:
    return Evaluation(
        env="", backend="", deterministic=False, seed=0, basic=objective, addon=objective, metric=None, lengths=lengths,
        log_policy=np.zeros_like(objective), log_prior=np.zeros_like(objective), terminated=lengths < LIMIT,
    )  # fmt: skip


def known(policy: Policy) -> float:
    return round(float(policy.log_std.detach()[0]), 3)


class Run:
    """Segments whose policies are known by their std, and what each of them earns and how long it lives."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments = segments(tmp_path, "LinearQuadratic", no_entropy())
        self.does: dict[float, Evaluation] = {}
        self.played: list[tuple[float, int]] = []

        def played(policy: Any, envs: Any, episodes: int, **_: Any) -> Evaluation:
            which = known(policy)
            self.played.append((which, episodes))
            found = self.does[which]
            return told(found.basic[:episodes], found.lengths[:episodes])

        monkeypatch.setattr("repolicy.learning.segments.run_episodes", played)

    def ends(self, which: float, objective: np.ndarray, lengths: np.ndarray, last: bool = False) -> dict[str, float]:
        """A segment ends with this policy."""
        worker = self.segments.worker
        worker.iteration = worker.settings.iterations if last else int(which)
        with torch.no_grad():
            worker.learner.policy.get_parameter("log_std").fill_(which)
        self.does[which] = told(objective, lengths)
        evaluation = self.segments.evaluate()
        self.segments.store_policy(evaluation)
        return evaluation

    def files(self) -> list[tuple[str, float]]:
        folder = self.segments.folder
        saved = [read_policy(path) for path in (folder.policy, folder.last_policy)]
        return [(each.card["which"], known(each.policy)) for each in saved]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


@pytest.mark.parametrize("rows", [64, 3_000])  # of the latter, the sums of squares are rounded
def test_what_never_changed_in_training_may_move_a_little_where_the_policy_is_used(tmp_path: Path, rows: int) -> None:
    made, seen = segments(tmp_path, "LinearQuadratic", no_entropy()), torch.tensor([[0.3], [0.301]])
    trained = made.worker.learner.policy.normalizer
    trained.count.zero_()
    trained.update(moment_sums(np.full((rows, 1), 0.3, np.float32)))
    own = trained(seen)
    last = made.update_candidate({"evaluation_objective": 0.0})
    assert made.candidate is last
    torch.testing.assert_close(last.policy.normalizer(seen), torch.tensor([[0.0], [0.001]]))
    assert torch.equal(trained(seen), own)  # training goes on as it was
    assert own[0] == 0.0  # all that it saw is the same to both


def test_the_statistics_of_a_prior_stay_as_they_are(tmp_path: Path) -> None:
    made = segments(tmp_path, "LinearQuadratic", no_entropy(), prior=True)
    normalizer = made.worker.learner.policy.normalizer
    normalizer.var.zero_()
    assert made.update_candidate({"evaluation_objective": 0.0}).policy.normalizer.var == 0.0


def test_two_standard_errors_and_not_clearly_shorter() -> None:
    for gain, longer, better in (
        ((2.1, 1.0), (0.0, 0.0), True),
        ((1.9, 1.0), (0.0, 0.0), False),
        ((2.1, 1.0), (-0.1, 0.0), False),
        ((2.1, 1.0), (-1.9, 1.0), True),  # both fall now and then
        ((2.1, 1.0), (-2.1, 1.0), False),
        ((0.0, 0.0), (5.0, 0.0), False),
    ):
        assert is_clearly_better(Estimate(*gain), Estimate(*longer)) == better, (gain, longer)


NOISE = np.random.default_rng(0).normal(0.0, 1.0, (3, 32))
WHOLE, EARLY = np.full(32, LIMIT), np.full(32, 10)
STARTS = 10.0 * np.arange(32)
LUCKY = np.where(np.arange(32) < 8, 50.0, 38.0)  # in the eight episodes of the short evaluation, and not in others


@pytest.mark.parametrize(
    ("first", "lengths", "last", "episodes", "compared", "replaces"),
    [
        pytest.param(-10.0 + NOISE[0], EARLY, -100.0 + NOISE[1], 8, True, False, id="falls early where steps cost"),
        pytest.param(STARTS + 1.0, WHOLE, STARTS, 8, True, True, id="better by 1 from starts worth 0 to 310"),
        pytest.param(LUCKY, WHOLE, np.full(32, 40.0), 8, True, False, id="only lucky"),
        pytest.param(10.0 + NOISE[0], WHOLE, 50.0 + NOISE[1], 8, False, False, id="worse, so the last has no rival"),
        pytest.param(50.0 + NOISE[0], WHOLE, 10.0 + NOISE[1], 1, False, False, id="one episode tells no error"),
    ],
)
def test_an_earlier_policy_is_handed_out_where_it_is_clearly_better_in_new_episodes(
    run: Run, first: np.ndarray, lengths: np.ndarray, last: np.ndarray, episodes: int, compared: bool, replaces: bool
) -> None:
    run.segments.worker.settings = replace(SETTINGS, evaluation_episodes=episodes)
    metrics = run.ends(1.0, first, lengths)
    assert metrics["evaluation_ended_early"] == (8 if lengths is EARLY else 0)
    assert np.isnan(metrics["evaluation_error"]) == (episodes == 1)
    run.ends(2.0, last, WHOLE, last=True)
    assert run.played[2:] == [(1.0, 32), (2.0, 32)] * compared
    assert run.files() == [("earlier", 1.0) if replaces else ("last", 2.0), ("last", 2.0)]
    assert run.segments.folder.replaced.exists() == replaces == bool(run.segments.notes)


def test_the_best_of_three_is_handed_out_and_until_the_end_the_last_one(run: Run) -> None:
    run.ends(1.0, 20.0 + NOISE[0], WHOLE)
    run.ends(2.0, 50.0 + NOISE[1], WHOLE)
    assert run.files() == [("last", 2.0)] * 2
    run.ends(3.0, 40.0 + NOISE[2], WHOLE, last=True)
    assert run.files() == [("earlier", 2.0), ("last", 3.0)]
    assert run.played[-2:] == [(2.0, 32), (3.0, 32)]
    [note] = run.segments.notes
    assert "the policy after 104 steps is handed out" in note
    assert note.endswith("last.safetensors")
    card = read_policy(run.segments.folder.policy).card
    assert card["steps"] == 104
    assert card["evaluation"]["evaluation_objective"] == pytest.approx(50.0 + NOISE[1].mean())  # of the new episodes


def test_a_resumed_run_has_its_candidate(run: Run) -> None:
    run.ends(1.0, 50.0 + NOISE[0], WHOLE)
    run.ends(2.0, 10.0 + NOISE[1], WHOLE)
    run.segments.save()
    again = Segments(run.segments.worker.request, run.segments.folder, SingleRank())
    assert again.restore() == []
    before, after = run.segments.candidate, again.candidate
    assert before[1:] == after[1:]
    assert (before.policy.state_dict()["log_std"] == 1.0).all()
    kept = after.policy.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in before.policy.state_dict().items())
    run.segments = again
    run.ends(3.0, 10.0 + NOISE[1], WHOLE, last=True)
    assert run.files() == [("earlier", 1.0), ("last", 3.0)]


def test_what_is_measured_is_a_mean_and_its_error() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 50)
    found = Estimate.of(values.sum(), np.square(values).sum(), 50)
    assert (found.mean, found.error) == pytest.approx((values.mean(), values.std(ddof=1) / 50**0.5))
    assert Estimate.of(-6.0, 12.0, 3).error == 0.0  # never below, whatever rounding does


@pytest.mark.parametrize("budget", [None, 0.1])
def test_an_evaluation_is_the_objective_and_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    """Three episodes, whose tasks pay 1, 3, 5; with 0.2 · log prior - 0.1 · log policy they are worth 4, 8, 12."""
    known = replace(
        told(np.array([1.0, 3.0, 5.0]), np.full(3, 8.0)),
        basic=np.full(3, 7.0),
        metric=np.array([0.2, 0.4, 0.9]),
        log_policy=np.full(3, -10.0),
        log_prior=np.array([10.0, 20.0, 30.0]),
    )
    settings = replace(SETTINGS, kl_budget=budget)
    made = segments(tmp_path, "LinearQuadratic", residual(0.2, 0.1), prior=True, settings=settings)
    monkeypatch.setattr("repolicy.learning.segments.run_episodes", lambda *_, **__: known)
    metrics = made.evaluate()
    assert (metrics["evaluation_task"], metrics["evaluation_objective"]) == pytest.approx((3.0, 8.0))
    assert (metrics["evaluation_basic"], metrics["evaluation_addon"]) == pytest.approx((7.0, 3.0))
    assert metrics["evaluation_metric"] == pytest.approx(0.5)
    assert metrics["evaluation_error"] == pytest.approx(4.0 / 3**0.5)


def test_a_run_that_gains_nothing_hands_back_its_prior(tmp_path: Path) -> None:
    """The weight of the prior is so large that any step away costs more than the wish pays."""
    prior, log = tmp_path / "prior.safetensors", Log()
    save_policy(prior, linear.as_policy(linear.EXACT), {})
    said: list[str] = []
    log.say = said.append
    rough = replace(linear.SETTINGS, steps=4_096, checkpoint_every=4, n_steps=4, learning_rate=0.3, schedule="constant")
    wish, objective = linear.WISH, kl(30.0)
    customize(prior, wish, objective, tmp_path / "run", rough, env=tiny("WithoutReward"), callbacks=[log])
    assert any("the prior is handed out" in sentence for sentence in said)
    assert not any("--omega" in sentence or "--addon" in sentence for sentence in said)  # hints follow the verdict
    folder = RunFolder(tmp_path / "run")
    handed_out, last = read_policy(folder.policy), read_policy(folder.last_policy)
    assert handed_out.card["steps"] == 0
    assert handed_out.prior is not None
    kept, start = handed_out.policy.state_dict(), read_policy(prior).policy.state_dict()
    assert all((kept[name] == start[name]).all() for name in start)
    assert last.card["steps"] == 4_096
