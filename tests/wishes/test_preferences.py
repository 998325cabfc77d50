"""What answers tell of a wish: against closed forms, and against a person whose wish is known."""

import numpy as np
import pytest
import torch

from repolicy.errors import RepolicyError
from repolicy.wishes.inference import Theta
from repolicy.wishes.preferences import as_belief, bradley_terry, fitted_networks, most_telling


def test_two_options_have_the_closed_form() -> None:
    """Of n answers k prefer the first: θ is the log odds, and its variance 1/(n·p·(1 − p))."""
    answers = np.repeat([1.0, 0.0], [30, 10])
    found = bradley_terry(np.ones((40, 1)), answers, spread=1e6)
    assert found.value == pytest.approx([np.log(3.0)], abs=1e-8)
    assert found.covariance == pytest.approx(np.array([[1 / (40 * 0.75 * 0.25)]]), abs=1e-8)


def test_alike_is_half_of_each() -> None:
    some = np.array([[1.0], [1.0], [2.0], [2.0]])
    halves = bradley_terry(np.array([[1.0], [2.0]]), np.array([1.0, 0.5]), spread=1.0)
    twice = bradley_terry(some, np.array([1.0, 1.0, 1.0, 0.0]), spread=2**-0.5)
    assert halves.value == pytest.approx(twice.value, abs=1e-8)


def test_features_may_have_any_unit() -> None:
    random = np.random.default_rng(0)
    rows, units = random.normal(size=(80, 3)), np.array([1.0, 100.0, 0.01])
    answers = (rows @ [1.0, -2.0, 0.0] + random.logistic(size=80) > 0).astype(float)
    one, other = bradley_terry(rows, answers), bradley_terry(rows * units, answers)
    assert other.value * units == pytest.approx(one.value, rel=1e-6)
    assert other.error * units == pytest.approx(one.error, rel=1e-6)


def test_errors_are_those_of_many_people() -> None:
    random, theta, far = np.random.default_rng(0), np.array([1.0, -0.5]), []
    for _ in range(60):
        rows = random.normal(size=(400, 2))
        found = bradley_terry(rows, (rows @ theta + random.logistic(size=400) > 0).astype(float))
        far.append((found.value - theta) / found.error)
    assert np.std(far, 0) == pytest.approx(1, abs=0.3)


def test_a_spread_is_chosen_that_leaves_out_what_matters_not() -> None:
    """Of forty features one counts, in 100 answers: freely fitted, the others would drown it."""
    random = np.random.default_rng(0)
    rows, fresh = random.normal(size=(100, 40)), random.normal(size=(1000, 40))
    answers = (2 * rows[:, 0] + random.logistic(size=100) > 0).astype(float)
    chosen, free = (np.corrcoef(fresh @ found.value, fresh[:, 0])[0, 1]
                    for found in (bradley_terry(rows, answers), bradley_terry(rows, answers, spread=1e3)))  # fmt: skip
    assert chosen > max(0.85, free + 0.04)


def test_the_most_telling_pair_lowers_the_doubt_most() -> None:
    """What is chosen first is what leaves the least log-volume of the covariance, among all pairs."""
    random = np.random.default_rng(0)
    rows, belief = random.normal(size=(12, 3)), Theta(np.array([0.5, -1.0, 0.2]), np.diag([1.0, 0.2, 3.0]))

    def left(row: np.ndarray) -> float:
        chance = 1 / (1 + np.exp(-row @ belief.value))
        precision = np.linalg.inv(belief.covariance) + chance * (1 - chance) * np.outer(row, row)
        return -float(np.linalg.slogdet(precision)[1])

    first, second = most_telling(rows, belief, 2)
    assert first == int(np.argmin([left(row) for row in rows]))
    again = np.vstack([rows[first], rows])
    assert most_telling(again, belief, 2)[1] != first + 1  # the same pair once more would tell less
    assert second != first


def test_an_ensemble_asks_where_it_disagrees() -> None:
    logits = np.array([[1.0, 0.1, 2.0], [1.0, -0.1, 2.0], [1.0, 3.0, 2.2]])
    rows, belief = as_belief(logits)
    assert rows @ belief.value == pytest.approx(logits.mean(0))
    variance = np.einsum("pk,kl,pl->p", rows, belief.covariance, rows)
    assert variance == pytest.approx(logits.var(0, ddof=1))
    assert most_telling(rows, belief, 1) == [1]


def test_networks_learn_what_no_linear_wish_says() -> None:
    """The wish is −|x₀|, of three numbers; its rank correlation on new fragments."""
    random = np.random.default_rng(0)
    left, right, fresh = (random.normal(size=(count, 5, 3)) for count in (200, 200, 300))

    def hidden(clips: np.ndarray) -> np.ndarray:
        return -np.abs(clips[..., 0]).sum(-1)

    answers = (hidden(left) > hidden(right)).astype(float)
    made = fitted_networks(left, right, answers)
    found = made(torch.from_numpy(fresh).float().reshape(-1, 3)).mean(0).reshape(300, 5).sum(-1).numpy()
    ranks = [np.argsort(np.argsort(each)) for each in (found, hidden(fresh))]
    assert np.corrcoef(*ranks)[0, 1] > 0.8


@pytest.mark.parametrize(
    ("rows", "answers", "why"),
    [
        (np.ones((0, 1)), np.ones(0), "answer some more"),
        (np.array([[np.nan], [1.0]]), np.ones(2), "feature 0 is no finite number"),
        (np.array([[1.0, 0.0], [2.0, 0.0]]), np.ones(2), "feature 1 is the same"),
    ],
)
def test_what_cannot_be_learnt_is_one_sentence(rows: np.ndarray, answers: np.ndarray, why: str) -> None:
    with pytest.raises(RepolicyError, match=why):
        bradley_terry(rows, answers)
