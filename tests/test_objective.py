"""The table of objectives, their identities, and the reformulated reward against literal answers."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repolicy import objective
from repolicy.errors import UsageError
from repolicy.objective import Objective, reformulated, task_reward
from repolicy.objective_names import OBJECTIVES, objective_by_name, objective_name
from repolicy.ranges import Dial, Range

ALPHA, OMEGA = 0.13472, 0.17

coefficients = st.floats(0.0, 10.0)
dyadic = st.integers(-(2**20), 2**20).map(lambda number: number / 1024)  # sums and products of these are exact


@pytest.mark.parametrize(
    ("name", "named", "task", "omega", "alpha", "bonus"),
    [
        ("no_entropy", {}, "basic", 0, 0, 0),
        ("end_entropy", {"alpha": ALPHA}, "basic", 0, 0, ALPHA),
        ("repeat_entropy", {"alpha": ALPHA}, "basic", 0, ALPHA, ALPHA),
        ("soft", {"alpha": ALPHA}, "basic", 0, ALPHA, 0),
        ("greedy", {"alpha": ALPHA}, "addon", 0, ALPHA, 0),
        ("kl", {"alpha": ALPHA}, "addon", ALPHA, ALPHA, 0),
        ("residual", {"omega": OMEGA, "alpha": ALPHA}, "addon", OMEGA, ALPHA, 0),
        ("full", {"alpha": ALPHA}, "both", 0, ALPHA, 0),
    ],
)
def test_the_table(name: str, named: dict[str, float], task: str, omega: float, alpha: float, bonus: float) -> None:
    made = objective_by_name(name, **named)
    assert made == getattr(objective, name)(**named)
    assert (made.task, made.omega, made.alpha, made.bonus) == (task, omega, alpha, bonus)
    assert (made.reads_basic, made.reads_addon, made.reads_prior) == (task != "addon", task != "basic", omega > 0)
    assert objective_name(made) == (name, named)


def test_an_objective_without_a_name_and_one_in_json() -> None:
    assert objective_name(Objective("both", omega=OMEGA, alpha=ALPHA)) is None
    assert objective_name(Objective("both", alpha=ALPHA, states=0.2)) is None
    what = objective.residual(OMEGA, ALPHA)
    assert Objective(**json.loads(json.dumps(what.as_dict()))) == what
    assert json.dumps(Objective(alpha=np.float32(0.5)).as_dict()) == json.dumps(Objective(alpha=0.5).as_dict())


def rewards(what: Objective, size: int = 64, log_prior: Any = "random") -> Any:
    """The reformulated reward of a random batch, whose numbers do not depend on the objective."""
    generator = torch.Generator().manual_seed(7)
    basic, addon, policy, prior = torch.randn(4, size, generator=generator, dtype=torch.float64)
    log_prior = prior if isinstance(log_prior, str) else log_prior
    return reformulated(what, task_reward(what, basic, addon), log_prior, policy)


@pytest.mark.parametrize("log_prior", [None, -math.inf, math.nan])
def test_a_prior_without_weight_may_be_absent_or_infinite(log_prior: float | None) -> None:
    assert torch.equal(
        rewards(objective.greedy(ALPHA), log_prior=log_prior).total, rewards(objective.greedy(ALPHA)).total
    )


def test_an_entropy_without_weight_may_be_infinite() -> None:
    parts = reformulated(objective.residual(0.5, 0.0), 2.0, -1.0, -math.inf)
    assert parts == (2.0, -0.5, 0.0, 0.0, 1.5)


@pytest.mark.parametrize(
    ("what", "prior", "entropy", "total"),
    [
        (objective.no_entropy(), 0.0, 0.0, 2.0),
        (objective.soft(0.25), 0.0, 0.75, 2.75),
        (objective.repeat_entropy(0.25), 0.0, 0.75, 2.75),
        (objective.end_entropy(0.25), 0.0, 0.0, 2.0),
        (objective.greedy(0.25), 0.0, 0.75, 8.75),
        (objective.kl(0.25), -0.25, 0.75, 8.5),
        (objective.residual(0.5, 0.25), -0.5, 0.75, 8.25),
        (objective.full(0.25), 0.0, 0.75, 10.75),
    ],
)
@pytest.mark.parametrize("kind", [float, np.array, lambda x: torch.tensor(x, dtype=torch.float64)])
def test_literal_answers(what: Objective, prior: float, entropy: float, total: float, kind: Any) -> None:
    basic, addon, log_prior, log_policy = kind(2.0), kind(8.0), kind(-1.0), kind(-3.0)
    parts = reformulated(what, task_reward(what, basic, addon), log_prior, log_policy)
    assert (float(parts.prior), float(parts.entropy), float(parts.total)) == (prior, entropy, total)
    assert type(parts.total) is type(basic) or isinstance(parts.total, np.floating)


def test_states_that_the_prior_does_not_know_cost() -> None:
    """A state that is 4 nats too unlikely, at 0.5 a nat: 2 less than the 7 without that price."""
    parts = reformulated(objective.residual(0.25, 0.5, states=0.5), 7.0, -4.0, -2.0, familiarity=-4.0)
    assert (parts.task, parts.prior, parts.entropy, parts.states, parts.total) == (7.0, -1.0, 1.0, -2.0, 5.0)
    assert reformulated(objective.residual(0.25, 0.5), 7.0, -4.0, -2.0, familiarity=-4.0).total == 7.0


@settings(max_examples=20)
@given(st.lists(st.tuples(dyadic, dyadic, dyadic), min_size=1, max_size=20), st.integers(0, 64), st.integers(0, 64))
def test_it_is_linear(steps: list[tuple[float, float, float]], omega: int, alpha: int) -> None:
    """The sum over an episode may be taken before or after."""
    what = objective.residual(omega / 64, alpha / 64)
    task, log_prior, log_policy = np.array(steps).T
    each = reformulated(what, task, log_prior, log_policy)
    whole = reformulated(what, task.sum(), log_prior.sum(), log_policy.sum())
    assert [float(part.sum()) for part in each] == [float(part) for part in whole]
    assert np.array_equal(each.total, each.task + each.prior + each.entropy)


class Untouchable:
    """Whatever is done with it fails."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    def __add__(self, other: Any) -> Any:
        raise AssertionError("it was added")

    __radd__ = __add__


def test_no_reward_is_touched_without_need_and_a_missing_add_on_is_named() -> None:
    basic = addon = np.array([1.0, 2.0])
    for what in (objective.greedy(ALPHA), objective.kl(ALPHA), objective.residual(OMEGA, ALPHA)):
        assert task_reward(what, Untouchable(), addon) is addon
        assert task_reward(what, None, addon) is addon
    assert task_reward(objective.soft(ALPHA), basic, Untouchable()) is basic
    for what in (objective.greedy(ALPHA), objective.full(ALPHA)):
        with pytest.raises(UsageError, match="needs an add-on reward"):
            task_reward(what, np.zeros(1), None)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, True, "0.1", [0.1]])
@pytest.mark.parametrize("name", ["omega", "alpha", "bonus"])
def test_coefficients_are_checked(name: str, bad: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*; it must be a finite number, 0 or greater"):
        Objective(**{name: bad})


@pytest.mark.parametrize("scale", ["log", "linear"])
@pytest.mark.parametrize(("low", "high"), [(0.03, 3.0), (1.0, 1.001), (100.0, 100.5)])
def test_a_dials_values_are_apart_and_where_they_should_be(scale: Any, low: float, high: float) -> None:
    dial = Dial("omega", low, high, scale)
    values = dial.spread(11)
    assert [values[0], values[-1]] == [low, high]
    assert all(before < after for before, after in pairwise(values))
    assert [dial.place(value) for value in values] == pytest.approx([0.2 * n - 1.0 for n in range(11)], abs=0.011)


def test_the_ends_of_a_range() -> None:
    assert [Range.of(text) for text in ("0.03..3", "1e-3..2", ".1..3", "0.3")] == [
        Range(0.03, 3.0), Range(0.001, 2.0), Range(0.1, 3.0), 0.3
    ]  # fmt: skip
    assert f"{Range(0.1, 1 / 3)}" == "0.1..0.3333333333333333"
    assert f"{Range(0.1, 1 / 3):.2g}" == "0.1..0.33"
    for none in ("0.1...3", "..3", "1..", "a..b", "1..2..3"):
        with pytest.raises(ValueError, match=r"could end|could not convert"):
            Range.of(none)


def test_names_and_coefficients_that_an_objective_has_not_are_refused() -> None:
    for name, named, message in (
        ("softer", {}, "no objective 'softer'; choose from no_entropy, "),
        ("kl", {"alpha": 0.1, "omega": 0.1}, "kl has no omega; it takes alpha"),
        ("no_entropy", {"alpha": 0.1}, "no_entropy has no alpha; it takes no coefficient"),
    ):
        with pytest.raises(UsageError, match=message):
            objective_by_name(name, **named)
    with pytest.raises(UsageError, match="task is 'bonus'"):
        Objective("bonus")


def test_a_weight_that_is_left_out_is_not_set() -> None:
    for name in OBJECTIVES:
        assert objective_by_name(name).is_set == (name == "no_entropy")
    assert objective.residual(OMEGA, ALPHA).is_set
    assert objective.residual("alpha", ALPHA) == objective.residual(ALPHA, ALPHA) == objective.kl(ALPHA)
    assert replace(objective.residual("alpha"), alpha=ALPHA) == objective.kl(ALPHA)
    assert not objective.residual(Range(0.1, 3.0), ALPHA).is_set  # its states
    assert replace(objective.kl(), alpha=ALPHA) == objective.kl(ALPHA) == Objective("addon", omega=ALPHA, alpha=ALPHA)
    assert replace(objective.repeat_entropy(), alpha=ALPHA) == Objective(alpha=ALPHA, bonus=ALPHA)
    with pytest.raises(UsageError, match="one weight for both terms"):
        objective.kl(Range(0.1, 3.0))
