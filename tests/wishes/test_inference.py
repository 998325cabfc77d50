"""What is inferred of a wish, from actions and from answers: against the exact optimum, and closed forms."""

import numpy as np
import pytest
import torch

from repolicy.addons.wish_file import Features
from repolicy.errors import RepolicyError
from repolicy.exact import MDP, enumerate_trajectories, soft_optimal, solve_residual
from repolicy.objective import residual
from repolicy.wishes import inference
from repolicy.wishes.inference import (
    Theta,
    effective_share,
    gradient,
    infer_theta,
    may_be_chance,
    minus_expected,
    reweighted,
)
from repolicy.wishes.preferences import as_belief, bradley_terry, fit_networks, fit_with_prior, most_informative
from repolicy.wishes.record import Labels, Record, windows

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
    for _ in range(120):  # chance adds to the trajectories' spread, so each step is short
        policy = trajectories.probability(optimum(mdp, prior, torch.from_numpy(table @ theta))).numpy()
        theta = infer_theta(features, features, ALPHA, theta, (person, policy)).value
    assert table @ theta == pytest.approx(table @ TRUE, abs=1e-3)
    if not twice:
        assert theta == pytest.approx(TRUE, abs=1e-3)


def test_one_inference_is_enough_where_the_environment_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MIN_SHARE", 0.01)
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
    found = infer_theta(features[able], features[able], ALPHA, None, (person[able], policy[able]))
    assert reweighted(features[able], found.value, ALPHA, policy[able]) == pytest.approx(person[able], abs=1e-6)


def test_what_follows_a_take_over_tells_what_it_was_worth() -> None:
    """The person acts in two of three states, the policy in the third: the slope is that of the person's own steps."""
    mdp, prior = process(FEATURES)
    object.__setattr__(mdp, "discount", 1.0)
    trajectories, features, _ = summed(mdp, FEATURES)
    theta = torch.tensor([0.3, 0.2, -0.4], dtype=torch.float64, requires_grad=True)
    policy = optimum(mdp, prior, torch.from_numpy(FEATURES) @ theta)
    wanted = optimum(mdp, prior, torch.from_numpy(FEATURES @ TRUE))
    person, states = torch.tensor([True, True, False]), trajectories.states.numpy()
    s, a = states.ravel(), trajectories.actions.numpy().ravel()
    episode = np.repeat(np.arange(len(states)), states.shape[1])
    columns = {"episode": episode, "observation": s, "action": a}
    beside = Record.of(columns | {"next": FEATURES[s, a], "person": person.numpy()[s]}, "X-v0")
    sums, _, firsts, _ = windows(beside, Features.of("next"), 4, Labels().weights(beside))
    begun = beside.person[firsts]
    which = firsts[begun] // 4  # all trajectories that they begin, however soon they hand back
    assert len(which) == sum(bool(person[s]) for s in states[:, 0])
    chances = trajectories.probability(torch.where(person[:, None], wanted, policy.detach())).numpy()[which]
    usual, level = trajectories.probability(policy.detach()).numpy(), np.zeros((3, 3))
    for state in range(3):
        level[state] = np.average(features, 0, usual * (states[:, 0] == state))
    found = gradient(chances @ sums[begun], chances @ level[states[which, 0]], ALPHA)
    own = trajectories.along(torch.where(person[:, None], policy, 0.0))[which].sum(-1)
    [slope] = torch.autograd.grad(torch.from_numpy(chances) @ own, theta)
    assert found == pytest.approx(slope.numpy(), abs=1e-6)  # a record has single precision


def test_a_gaussian_is_moved_by_its_covariance() -> None:
    """exp(θ·f/α) moves a Gaussian's mean by Σθ/α; and the errors are those that are seen in many repetitions."""
    random, theta = np.random.default_rng(1), np.array([0.3, -0.5])
    root = np.array([[1.0, 0.0], [0.6, 2.0]])
    shift = root @ root.T @ theta / ALPHA
    far = []
    for _ in range(60):
        policy, person = (random.normal(size=(count, 2)) @ root.T for count in (1500, 300))
        found = infer_theta(person + shift, policy, ALPHA)
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
    plain = infer_theta(person, policy, ALPHA)
    assert abs(plain.value - theta) > 4 * plain.error
    mine, left = minus_expected((person, theirs), (policy, starts))
    found = infer_theta(mine, left, ALPHA)
    assert found.value == pytest.approx(theta, abs=3 * found.error[0])
    assert left.std() == pytest.approx(1.0, abs=0.1)
    high, higher = minus_expected((person + 500.0, theirs), (policy + 500.0, starts))  # a height of which all have much
    assert high == pytest.approx(mine, abs=1e-9)
    assert higher == pytest.approx(left, abs=1e-9)


def test_the_error_is_that_of_both_means() -> None:
    """(2/2 + (4/3)/4) · (α / 1)², for variances of 2 and 4/3 in two and four trajectories, and a curvature of 1."""
    found = infer_theta(np.array([[0.0], [2.0]]), np.array([[0.0], [2.0], [0.0], [2.0]]), 0.5)
    assert (found.value.item(), found.covariance.item()) == pytest.approx((0.0, 4 / 3 * 0.25))


def test_what_is_always_together_counts_once_in_the_error() -> None:
    random = np.random.default_rng(2)
    person, policy = random.normal(size=(20, 2)), random.normal(size=(50, 2))
    once = infer_theta(person, policy, ALPHA)
    groups = np.repeat(np.arange(20), 4), np.repeat(np.arange(50), 4)
    found = infer_theta(np.repeat(person, 4, 0), np.repeat(policy, 4, 0), ALPHA, groups=groups)
    assert found.value == pytest.approx(once.value)
    assert found.covariance == pytest.approx(once.covariance)


def test_a_person_far_away_is_approached_as_far_as_the_trajectories_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MIN_SHARE", 0.2)
    random = np.random.default_rng(2)
    policy = random.normal(size=(1000, 2))
    found = infer_theta(random.normal(size=(100, 2)) + 30.0, policy, ALPHA)
    alike = np.full(1000, 1 / 1000)
    assert 0.2 <= effective_share(reweighted(policy, found.value, ALPHA, alike), alike) < 0.4
    assert found.is_cut
    assert not infer_theta(random.normal(size=(100, 2)) + 0.3, policy, ALPHA).is_cut


def test_what_cannot_be_inferred_or_learnt_is_one_sentence() -> None:
    policy, rows = np.array([[1.0, 1.0], [3.0, 1.0]]), np.array([[1.0, 0.0], [2.0, 0.0]])
    for person, why in ((policy[:1], "record more"), (policy, "feature 1 is the same")):
        with pytest.raises(RepolicyError, match=why):
            infer_theta(person, policy, ALPHA)
    with pytest.raises(RepolicyError, match="feature 1 is the same"):
        bradley_terry(rows, np.ones(2))
    with pytest.raises(RepolicyError, match=r"^next\[7\] is the same in both .*: leave it out"):
        bradley_terry(rows, np.ones(2), names=["next[4]", "next[7]"])


def test_two_options_have_the_closed_form() -> None:
    """Of n answers k prefer the first: θ is the log odds, and its variance 1/(n·p·(1 − p))."""
    found, _ = fit_with_prior(np.ones((40, 1)), np.repeat([1.0, 0.0], [30, 10]), 1e6)
    assert found.value == pytest.approx([np.log(3.0)], abs=1e-8)
    assert found.covariance == pytest.approx(np.array([[1 / (40 * 0.75 * 0.25)]]), abs=1e-8)


def test_intervals_of_few_answers_hold_theta_as_often_as_they_promise() -> None:
    """Those of 95 %, of 20 answers: they hold 90 %, and by the likeliest spread alone 79 %."""
    random, held = np.random.default_rng(0), list[bool]()
    for _ in range(150):
        theta = random.normal(size=3) * np.exp(random.normal())
        rows = random.normal(size=(20, 3))
        found = bradley_terry(rows, (rows @ theta + random.logistic(size=20) > 0).astype(float))
        held += (np.abs(found.value - theta) < 1.96 * found.error).tolist()
    assert 0.86 < np.mean(held) < 0.98


def test_alike_is_half_of_each() -> None:
    some = np.array([[1.0], [1.0], [2.0], [2.0]])
    halves, _ = fit_with_prior(np.array([[1.0], [2.0]]), np.array([1.0, 0.5]), 1.0)
    twice, _ = fit_with_prior(some, np.array([1.0, 1.0, 1.0, 0.0]), 2**-0.5)
    assert halves.value == pytest.approx(twice.value, abs=1e-8)


@pytest.mark.parametrize("features", [1, 6])
@pytest.mark.parametrize("count", [60, 8])
def test_a_wish_that_nobody_has_is_called_chance(features: int, count: int) -> None:
    """From many groups of trajectories and from few, whose errors are uncertain themselves."""
    random, groups = np.random.default_rng(0), (np.arange(60) % count, np.arange(900))
    found = [
        infer_theta(random.normal(size=(60, features)), random.normal(size=(900, features)), 1.0, groups=groups)
        for _ in "a" * 200
    ]
    are_chance = [may_be_chance(each.value, each.error, each.groups) for each in found]
    assert np.mean(are_chance) == pytest.approx(0.95, abs=0.03)


def test_features_may_have_any_unit() -> None:
    random = np.random.default_rng(0)
    rows, units = random.normal(size=(80, 3)), np.array([1.0, 100.0, 0.01])
    answers = (rows @ [1.0, -2.0, 0.0] + random.logistic(size=80) > 0).astype(float)
    one, other = bradley_terry(rows, answers), bradley_terry(rows * units, answers)
    assert other.value * units == pytest.approx(one.value, rel=1e-6)
    assert other.error * units == pytest.approx(one.error, rel=1e-6)


def test_a_spread_is_chosen_that_leaves_out_what_matters_not() -> None:
    """Of forty features one counts, in 100 answers: freely fitted, the others would drown it."""
    random = np.random.default_rng(0)
    rows, fresh = random.normal(size=(100, 40)), random.normal(size=(1000, 40))
    answers = (2 * rows[:, 0] + random.logistic(size=100) > 0).astype(float)
    fits = bradley_terry(rows, answers), fit_with_prior(rows, answers, 1e3)[0]
    chosen, free = (np.corrcoef(fresh @ each.value, fresh[:, 0])[0, 1] for each in fits)
    assert chosen > max(0.85, free + 0.04)


def test_the_most_telling_pair_lowers_the_doubt_most() -> None:
    """What is chosen first is what leaves the least log-volume of the covariance, among all pairs."""
    random = np.random.default_rng(0)
    rows, belief = random.normal(size=(12, 3)), Theta(np.array([0.5, -1.0, 0.2]), np.diag([1.0, 0.2, 3.0]))

    def left(answered: np.ndarray) -> float:
        chance = 1 / (1 + np.exp(-answered @ belief.value))
        precision = np.linalg.inv(belief.covariance) + (answered.T * chance * (1 - chance)) @ answered
        return -float(np.linalg.slogdet(precision)[1])

    chosen = most_informative(rows, belief, 6)
    for count, index in enumerate(chosen):
        open_ = [other for other in range(12) if other not in chosen[:count]]
        assert index == min(open_, key=lambda other: left(rows[[*chosen[:count], other]]))
    again = np.vstack([rows[chosen[0]], rows])
    assert most_informative(again, belief, 2)[1] != chosen[0] + 1  # the same pair once more would tell less


def test_an_ensemble_asks_where_it_disagrees() -> None:
    logits = np.array([[1.0, 0.1, 2.0], [1.0, -0.1, 2.0], [1.0, 3.0, 2.2]])
    rows, belief = as_belief(logits)
    assert rows @ belief.value == pytest.approx(logits.mean(0))
    variance = np.einsum("pk,kl,pl->p", rows, belief.covariance, rows)
    assert variance == pytest.approx(logits.var(0, ddof=1))
    assert most_informative(rows, belief, 1) == [1]


def test_networks_ignore_what_was_the_same_in_all_clips() -> None:
    """Answers tell nothing of it, so that the first change of it must not drown all that they told."""
    random = np.random.default_rng(0)
    clips = random.normal(size=(2, 20, 5, 2))
    clips[..., 1] = 100.3
    made = fit_networks(*clips, (random.random(20) < 0.5).astype(float))
    seen = torch.from_numpy(clips[0, :, 0]).float()
    moved = seen + torch.tensor([0.0, 0.1])
    assert torch.equal(made(moved), made(seen))
