"""What a planner's weighted samples converge to: closed forms, limits, and a model that is learnt from steps."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from known_optimum import DISCOUNT, as_policy
from linear_world import OMEGA, PRIOR, augmented, first_action, looked, planner
from tiny_envs import CONTROL, DYNAMICS, Endless, LinearQuadratic

from repolicy.envs.names import env_name
from repolicy.errors import UsageError
from repolicy.planning import learned_model
from repolicy.planning.asking import plan
from repolicy.planning.keeping import save_planner
from repolicy.planning.learned_model import LearnedModel, mean_and_std
from repolicy.planning.planner import Search, effective, interpolate, normalized, temperature
from repolicy.planning.scoring import simulated
from repolicy.priors.opening import open_agent
from repolicy.readers.reading import Options

STD = float(PRIOR.covariance) ** 0.5


@pytest.mark.parametrize(
    ("horizon", "samples", "discount"), [(1, 50_000, DISCOUNT), (3, 100_000, 0.99), (8, 200_000, 0.99)]
)
def test_a_plan_begins_as_the_residual_optimum(horizon, samples, discount):
    """With the exact value at its end, however long it is. The noise draws to the prior, as if ω′ were λ larger."""
    optimum = augmented(0.1, discount).policy
    made = planner(horizon=horizon, samples=samples, discount=discount)
    made = replace(made, score=replace(made.score, omega=OMEGA - 0.1))
    mean, variance = first_action(made)
    assert mean == pytest.approx(-float(optimum.gain), abs=0.01)
    assert variance == pytest.approx(float(optimum.covariance), rel=0.03)


def quadratic(made, horizon):
    """Gradient and curvature of the score in the deviations, by the score itself, which is a quadratic form."""
    one = np.eye(horizon)
    points = [0.0 * one[0], *one, *-one, *(one[i] + one[j] for i in range(horizon) for j in range(horizon))]
    candidates = np.array(points)[None, :, :, None]
    [scores] = simulated(
        made.model, made.prior, np.ones((1, 1), np.float32), candidates, np.full((1, 1), STD), made.score
    )
    up, down, both = scores[1 : 1 + horizon], scores[1 + horizon : 1 + 2 * horizon], scores[1 + 2 * horizon :]
    curvature = both.reshape(horizon, horizon) - up[:, None] - up[None] + scores[0]
    return 0.5 * (up - down), curvature


@pytest.mark.parametrize("knots", [0, 2])
def test_a_plan_converges_to_its_closed_form(knots):
    """exp(S/λ) times a Gaussian is a Gaussian."""
    plans = np.array([[[0.5], [-0.3], [0.2]]])
    made = planner(samples=100_000, knots=knots, noise=0.8)
    lines = 0.8 * interpolate(knots or 3, 3)
    gradient, curvature = quadratic(made, 3)
    center = plans[0, :, 0]
    precision = np.eye(lines.shape[1]) - lines.T @ curvature @ lines / 0.1
    z = np.linalg.solve(precision, lines.T @ (gradient + curvature @ center) / 0.1)
    assert looked(made, plans=plans).plans[0, :, 0] == pytest.approx(center + lines @ z, abs=0.02)


def test_the_prior_s_own_plan_competes_with_a_warm_one_and_a_cold_plan_is_the_best_candidate():
    found = looked(planner(temperature=1e-9, samples=30), plans=np.ones((1, 3, 1)))
    assert not found.deviations[0, 0].any()
    best = found.scores[0].argmax()
    assert found.scores[0, best] >= found.scores[0, 0]
    assert found.plans[0] == pytest.approx(found.deviations[0, best])


def test_an_open_loop_repeats_the_controls_of_the_prior_s_own_plan():
    """A closed loop does the same where it takes back what the prior would do about the other state."""
    made, x, spread = planner(horizon=2), np.ones((1, 1), np.float32), np.full((1, 1), STD)
    back = float(PRIOR.gain) * CONTROL
    opened = np.array([[0.0, 0.0], [1.5, 0.0]])[None, :, :, None]
    closed = np.array([[0.0, 0.0], [1.5, 1.5 * back]])[None, :, :, None]
    scores = simulated(made.model, made.prior, x, opened, spread, made.score, closed=False)
    assert scores == pytest.approx(simulated(made.model, made.prior, x, closed, spread, made.score), abs=1e-5)


def test_lines_have_variance_one_and_pass_through_their_knots():
    for knots in (1, 2, 4, 8):
        lines = interpolate(knots, 8)
        assert lines.shape == (8, knots)
        assert np.square(lines).sum(1) == pytest.approx(1.0)
    assert interpolate(8, 8) == pytest.approx(np.eye(8))


@pytest.mark.parametrize("wanted", [1.5, 4.8, 20.0])
def test_the_temperature_has_the_wanted_effective_size(wanted):
    scores = np.random.default_rng(0).normal(size=(3, 32)) * [[1e-3], [1.0], [1e4]]
    heat = temperature(scores, wanted)
    assert effective(normalized(scores / heat)) == pytest.approx(wanted, rel=1e-6)


def test_what_broke_down_weighs_nothing():
    scores = np.array([[1.0, -np.inf, 2.0, 3.0], [-np.inf] * 4])
    weights = normalized(scores / temperature(scores, 2.0))
    assert effective(weights)[0] == pytest.approx(2.0)
    assert weights[0, 1] == 0.0
    assert list(weights[1]) == [1.0, 0.0, 0.0, 0.0]  # nothing is known: as the prior would


class Telling(LinearQuadratic):
    """Tells how far the state is from 0, and a number that no state tells."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {
            "distance": float(abs(observation[0])), "luck": float(self.np_random.normal()),
        }  # fmt: skip


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_model, "STEPS", 80)
        patch.setattr(learned_model, "EPOCHS", 30)

        patch.setattr(learned_model, "HIDDEN", (64, 64))
        patch.setattr(learned_model, "NETWORKS", 2)
        return LearnedModel(as_policy(PRIOR), env_name(Telling), seed=0)


def test_it_moves_as_the_world_does(model):
    states = np.linspace(-1.0, 1.0, 200)[:, None]
    actions = as_policy(PRIOR).actor(1, 200, torch.Generator().manual_seed(0))(states.astype(np.float32))
    found = model.step(states, actions)
    assert found.states == pytest.approx(DYNAMICS * states + CONTROL * actions, abs=0.1)
    assert np.abs(found.states - DYNAMICS * states - CONTROL * actions).mean() < 0.01
    assert not found.failed.any()
    assert not found.ended.any()


def test_its_error_is_that_of_other_episodes(model):
    one, more = model.errors
    assert 0.0 < one < 0.02
    assert one < more < 0.1
    assert f"{one:.2g} stds" in model.note


def test_info_is_rebuilt_where_a_state_tells_it(model):
    states = np.linspace(-2.0, 2.0, 50)[:, None] * model._std
    found = model.step(states, np.zeros((50, 1)))
    assert (found.info.keys(), model.unknown_info) == ({"distance"}, {"luck"})
    assert found.info["distance"] == pytest.approx(np.abs(found.states[:, 0]), abs=0.1 * float(model._std[0]))


def test_where_nothing_was_seen_the_simulation_breaks_down(model):
    far = np.array([[0.0], [2.0 * learned_model.MAX_DEVIATION]]) * model._std
    assert model.step(far, np.zeros((2, 1))).failed.tolist() == [False, True]


class Age(Endless):
    """One sees how many steps were done."""

    def _look(self):
        return np.array([self._steps], np.float32)


def test_an_episode_that_is_long_is_simulated_to_its_end(monkeypatch):
    monkeypatch.setattr(learned_model, "STEPS", 40)
    monkeypatch.setattr(learned_model, "EPOCHS", 1)
    env = env_name(lambda: gymnasium.wrappers.TimeLimit(Age(), 1_200))
    model = LearnedModel(as_policy(PRIOR), env)
    assert not model.step(np.array([[1_199.0]]), np.zeros((1, 1))).failed.any()
    assert "from 2,400 steps of the prior" in model.note


def test_a_planner_keeps_that_its_model_is_learnt(tmp_path, monkeypatch):
    for name, few in (("STEPS", 40), ("EPOCHS", 1), ("HIDDEN", (8,))):
        monkeypatch.setattr(learned_model, name, few)
    search = Search(samples=4, horizon=2)

    made = plan("halfcheetah", "hind_leg=10", omega=0.1, states=0.0, search=search, learned=True)
    save_planner(made, tmp_path / "plan")
    again = open_agent(tmp_path / "plan", Options(), trust=False)
    seen = np.random.default_rng(0).normal(0, 0.1, (2, 17)).astype(np.float32)
    assert np.array_equal(again.agent.act(seen), made.act(seen))


def test_short_episodes_teach_no_model(monkeypatch):
    monkeypatch.setattr(learned_model, "AHEAD", 9)  # the world's episodes have 8 steps
    monkeypatch.setattr(learned_model, "STEPS", 40)
    monkeypatch.setattr(learned_model, "EPOCHS", 1)
    with pytest.raises(UsageError, match="shorter than 9 steps"):
        LearnedModel(as_policy(PRIOR), env_name(Telling))


def test_small_observations_have_their_own_unit() -> None:
    values = np.stack([1e-7 * np.random.default_rng(0).normal(size=500), np.full(500, 0.3)], 1)
    assert mean_and_std(values)[1].tolist() == pytest.approx([values[:, 0].std(), 1.0])
