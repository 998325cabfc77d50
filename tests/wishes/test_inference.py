"""What is inferred of a wish: against autograd through the exact optimum, and against closed forms."""

import numpy as np
import pytest
import torch

from repolicy.errors import RepolicyError
from repolicy.exact import MDP, enumerate_trajectories, soft_optimal, solve_residual
from repolicy.objective import residual
from repolicy.wishes.inference import beyond_start, gradient, inferred, weights

ALPHA, OMEGA = 0.7, 0.4
TRUE = np.array([0.8, -1.1, 0.5])


def process(features: np.ndarray, sure: bool = False) -> tuple[MDP, torch.Tensor]:
    """A small process of four steps, and its soft-optimal prior for a reward that nobody else is told."""
    random = np.random.default_rng(3)
    moves = random.dirichlet(np.full(3, 0.3), (3, 2))
    if sure:
        moves = np.eye(3)[moves.argmax(-1)]
    mdp = MDP(moves, random.normal(size=(3, 2)), [0.5, 0.3, 0.2], 0.9, 4, addon=features @ TRUE[: features.shape[-1]])
    prior = soft_optimal(mdp, 0.5).log_policy
    return mdp.with_reward(torch.zeros(3, 2)), prior


def optimum(mdp: MDP, prior: torch.Tensor, addon: torch.Tensor) -> torch.Tensor:
    """The residual policy for this add-on, through which autograd reaches it."""
    object.__setattr__(mdp, "addon", addon)
    return solve_residual(mdp, residual(OMEGA, ALPHA), prior).log_policy


def summed(mdp: MDP, features: np.ndarray) -> tuple[object, np.ndarray, torch.Tensor]:
    """Every trajectory, its discounted features, and the discount of each step."""
    trajectories = enumerate_trajectories(mdp)
    fade = mdp.discount ** torch.arange(mdp.horizon or 0).double()
    table = torch.from_numpy(features)
    along = [trajectories.along(table[..., k].expand(mdp.horizon, -1, -1)) @ fade for k in range(table.shape[-1])]
    return trajectories, torch.stack(along, -1).numpy(), fade


FEATURES = np.random.default_rng(0).normal(size=(3, 2, 3))


def test_the_gradient_is_that_of_the_likelihood_under_the_residual_policy() -> None:
    mdp, prior = process(FEATURES)
    trajectories, features, fade = summed(mdp, FEATURES)
    person = trajectories.probability(optimum(mdp, prior, torch.from_numpy(FEATURES @ TRUE))).numpy()
    theta = torch.tensor([0.3, 0.2, -0.4], dtype=torch.float64, requires_grad=True)
    policy = optimum(mdp, prior, torch.from_numpy(FEATURES) @ theta)
    likelihood = torch.from_numpy(person) @ (trajectories.along(policy) @ fade)
    [wanted] = torch.autograd.grad(likelihood, theta)
    chances = trajectories.probability(policy.detach()).numpy()
    assert gradient(person @ features, chances @ features, ALPHA) == pytest.approx(wanted.numpy(), abs=1e-12)


@pytest.mark.parametrize("twice", [False, True], ids=["all told apart", "one that is the sum of two"])
def test_theta_is_found_where_chance_moves_the_environment(twice: bool) -> None:
    table = np.concatenate([FEATURES[..., :2], FEATURES[..., :2].sum(-1, keepdims=True)], -1) if twice else FEATURES
    mdp, prior = process(table)
    trajectories, features, _ = summed(mdp, table)
    person = trajectories.probability(optimum(mdp, prior, torch.from_numpy(table @ TRUE))).numpy()
    theta = np.zeros(3)
    for _ in range(200):  # chance adds to the trajectories' spread, so each step is short
        policy = trajectories.probability(optimum(mdp, prior, torch.from_numpy(table @ theta))).numpy()
        theta = inferred(features, features, ALPHA, theta, (person, policy)).value
    assert table @ theta == pytest.approx(table @ TRUE, abs=1e-3)
    if not twice:
        assert theta == pytest.approx(TRUE, abs=1e-3)


def test_one_inference_is_enough_where_the_environment_repeats_itself() -> None:
    mdp, prior = process(FEATURES, sure=True)
    object.__setattr__(mdp, "discount", 1.0)
    trajectories, features, _ = summed(mdp, FEATURES)
    person, policy = (
        trajectories.probability(optimum(mdp, prior, torch.from_numpy(FEATURES @ theta))).numpy()
        for theta in (TRUE, np.zeros(3))
    )
    # the start is given, so trajectories are weighed among those from the same one
    start = trajectories.states[:, 0] == 0
    person, policy, features = (each[start] for each in (person, policy, features))
    person, policy = person / person.sum(), policy / policy.sum()
    able = person > 0
    found = inferred(features[able], features[able], ALPHA, None, (person[able], policy[able]), least=0.01)
    assert weights(features[able], found.value, ALPHA, policy[able]) == pytest.approx(person[able], abs=1e-6)


def test_a_gaussian_is_moved_by_its_covariance() -> None:
    """exp(θ·f/α) moves a Gaussian's mean by Σθ/α; and the errors are those that are seen in many repetitions."""
    random, theta = np.random.default_rng(1), np.array([0.3, -0.5])
    root = np.array([[1.0, 0.0], [0.6, 2.0]])
    shift = root @ root.T @ theta / ALPHA
    far = []
    for _ in range(60):
        policy, person = (random.normal(size=(count, 2)) @ root.T for count in (1500, 300))
        found = inferred(person + shift, policy, ALPHA)
        far.append((found.value - theta) / found.error)
    assert np.abs(np.mean(far, 0)) == pytest.approx(0, abs=0.5)
    assert np.std(far, 0) == pytest.approx(1, abs=0.3)


def test_a_person_is_not_to_blame_for_where_they_take_over() -> None:
    """Features are what the start brings, and a Gaussian's choice, which θ moves; the person starts elsewhere."""
    random, theta = np.random.default_rng(0), np.array([0.4])
    starts, theirs = random.normal(size=(3000, 2)), random.normal((1.0, 0.0), size=(400, 2))

    def features(start: np.ndarray, moved: float) -> np.ndarray:
        return 3 * np.tanh(start[:, :1]) + start[:, 1:] + random.normal(size=(len(start), 1)) + moved

    policy, person = features(starts, 0.0), features(theirs, 0.4 / ALPHA)
    plain = inferred(person, policy, ALPHA)
    assert abs(plain.value - theta) > 4 * plain.error
    mine, left = beyond_start((person, theirs), (policy, starts))
    found = inferred(mine, left, ALPHA)
    assert found.value == pytest.approx(theta, abs=3 * found.error[0])
    assert left.std() == pytest.approx(1.0, abs=0.1)
    high, higher = beyond_start((person + 500.0, theirs), (policy + 500.0, starts))  # a height of which all have much
    assert high == pytest.approx(mine, abs=1e-9)
    assert higher == pytest.approx(left, abs=1e-9)


def test_a_person_who_lets_all_pass_leaves_theta_within_its_error() -> None:
    random = np.random.default_rng(2)
    found = inferred(random.normal(size=(200, 3)), random.normal(size=(400, 3)), ALPHA)
    assert (np.abs(found.value) < 3 * found.error).all()


def test_a_person_far_away_is_approached_as_far_as_the_trajectories_reach() -> None:
    random = np.random.default_rng(2)
    policy = random.normal(size=(1000, 2))
    found = inferred(random.normal(size=(100, 2)) + 30.0, policy, ALPHA, least=0.2)
    assert 0.2 <= found.effective < 0.4


@pytest.mark.parametrize(
    ("person", "why"),
    [
        (np.ones((1, 2)), "record more"),
        (np.array([[1.0, np.nan], [1.0, 2.0]]), "feature 1 of the person is nan"),
        (np.array([[1.0, 1.0], [2.0, 1.0]]), "feature 1 is the same"),
    ],
)
def test_what_cannot_be_inferred_is_one_sentence(person: np.ndarray, why: str) -> None:
    with pytest.raises(RepolicyError, match=why):
        inferred(person, np.array([[1.0, 1.0], [3.0, 1.0]]), ALPHA)
