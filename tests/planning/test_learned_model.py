"""A model that is learnt from the prior's own steps, beside the linear world that it was learnt in."""

import numpy as np
import pytest
import torch
from known_optimum import as_policy
from linear_world import PRIOR
from tiny_envs import CONTROL, DYNAMICS, LinearQuadratic

from repolicy.envs.names import env_name
from repolicy.errors import UsageError
from repolicy.planning import learned_model
from repolicy.planning.asking import planned
from repolicy.planning.keeping import keep
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Search
from repolicy.priors.opening import acting
from repolicy.readers.reading import Options


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
        patch.setattr(learned_model, "STEPS", 160)
        patch.setattr(learned_model, "EPOCHS", 60)
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
    states = np.linspace(-2.0, 2.0, 50)[:, None] * model._width
    found = model.step(states, np.zeros((50, 1)))
    assert found.info.keys() == {"distance"}
    assert found.info["distance"] == pytest.approx(np.abs(found.states[:, 0]), abs=0.1 * float(model._width[0]))


def test_where_nothing_was_seen_the_simulation_breaks_down(model):
    far = np.array([[0.0], [2.0 * learned_model.FAR]]) * model._width
    assert model.step(far, np.zeros((2, 1))).failed.tolist() == [False, True]


def test_a_planner_keeps_that_its_model_is_learnt(tmp_path, monkeypatch):
    monkeypatch.setattr(learned_model, "STEPS", 40)
    monkeypatch.setattr(learned_model, "EPOCHS", 1)
    search = Search(samples=4, horizon=2)
    made = planned("halfcheetah", "hind_leg=10", None, 0.1, 0.0, False, search, learned=True)
    keep(made, tmp_path / "plan")
    again = acting(tmp_path / "plan", Options(), trust=False)
    seen = np.random.default_rng(0).normal(0, 0.1, (2, 17)).astype(np.float32)
    assert np.array_equal(again.agent.act(seen), made.planner.act(seen))


def test_short_episodes_teach_no_model(monkeypatch):
    monkeypatch.setattr(learned_model, "AHEAD", 9)  # the world's episodes have 8 steps
    monkeypatch.setattr(learned_model, "STEPS", 40)
    monkeypatch.setattr(learned_model, "EPOCHS", 1)
    with pytest.raises(UsageError, match="shorter than 9 steps"):
        LearnedModel(as_policy(PRIOR), env_name(Telling))
