"""What a nat is worth, where it is known: the optimum of linear–quadratic control at α."""

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST, LinearQuadratic, Tiny, tiny

from repolicy import exact
from repolicy.engine.folder import RunFolder
from repolicy.engine.settings import Settings
from repolicy.engine.training import train
from repolicy.engine.weights import weights_of
from repolicy.engine.worth import measured, worth_of
from repolicy.objective import soft
from repolicy.policies.file import add_to_card, find_policy, read_card, read_policy, save_policy, shipped
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.spaces import ActionSpace

ALPHA = 0.3


class Long(LinearQuadratic):
    """From 0, cut after 200 steps, so that its ends do not count for much."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Tiny.reset(self, seed=seed)
        self._x, self._t = 0.0, -192
        return np.zeros(1, np.float32), {}


def optimum() -> Policy:
    problem = exact.LinearQuadratic(DYNAMICS, CONTROL, exact.quadratic_cost(STATE_COST, CONTROL_COST), 0.9999)
    best = exact.linear_quadratic_optimal(problem, ALPHA).policy
    actions = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    policy = Policy(PolicySpec(1, actions, hidden=(2,), activation="relu", min_std=0.0))
    with torch.no_grad():
        policy.network.weights[0].copy_(torch.tensor([[1.0], [-1.0]]))
        policy.network.weights[1].copy_(float(best.gain) * torch.tensor([[-1.0, 1.0]]))
        assert policy.log_std is not None
        policy.log_std.fill_(0.5 * math.log(float(best.covariance)))
    return policy


def test_a_nat_is_worth_alpha_at_the_optimum_of_alpha() -> None:
    found = measured(optimum(), f"{Path(__file__)}:Long", 100)
    assert found is not None
    assert found.error < 0.02 * ALPHA
    assert found.value == pytest.approx(ALPHA, abs=3 * found.error + 0.01 * ALPHA)  # the last steps cost less: 1 %
    assert found.is_known


def test_noise_that_costs_nothing_tells_nothing() -> None:
    returns = np.random.default_rng(0).normal(size=(2, 50))
    assert not worth_of(returns[0], returns[1], 10.0, 2).is_known


def test_the_error_is_that_of_the_difference() -> None:
    """Of many repetitions, the values scatter as their errors say."""
    rng = np.random.default_rng(1)
    many = [worth_of(rng.normal(5, 3, 40), rng.normal(1, 2, 40), 10.0, 4) for _ in range(2_000)]
    assert np.mean([each.value for each in many]) == pytest.approx(0.2, rel=0.02)
    assert np.std([each.value for each in many]) == pytest.approx(np.mean([each.error for each in many]), rel=0.1)


def test_choices_have_no_worth() -> None:
    space = gymnasium.spaces.Discrete(2)
    policy = Policy(PolicySpec(1, ActionSpace("discrete", (int(space.n),)), "categorical"))
    assert measured(policy, "any") is None


def test_training_ends_with_what_a_nat_is_worth(tmp_path: Path) -> None:
    """Measured on the best policy, once, and nothing but its card is touched."""
    settings = Settings(ranks=1, envs=4, horizon=16, minibatch=32, steps=128, hidden=(4,), evaluation_episodes=2)
    result = train(tiny("LinearQuadratic"), soft(0.1), tmp_path / "run", settings)
    best = RunFolder(result.folder).best_policy
    known = read_policy(best)
    found = measured(known.policy, tiny("LinearQuadratic"), 8)
    assert found is not None
    assert known.card["nat_worth"] == found.as_dict()
    before = best.read_bytes()
    train(tiny("LinearQuadratic"), soft(0.1), tmp_path / "run", settings, resume=True)
    assert best.read_bytes() == before


def test_a_card_says_more_and_the_tensors_stay(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(path, optimum(), {"name": "mine"}, prior=optimum())
    before = safetensors.torch.load_file(path)
    add_to_card(path, {"nat_worth": {"value": 0.3, "error": 0.01, "episodes": 8}})
    after = safetensors.torch.load_file(path)
    assert read_policy(path).card["name"] == "mine"
    assert read_policy(path).card["nat_worth"]["value"] == 0.3
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_priors_that_ship_tell_what_was_measured() -> None:
    rows = json.loads((Path(__file__).parents[1] / "results" / "nat_worth.json").read_text())
    for name in shipped():
        card = read_card(find_policy(name))
        assert card["nat_worth"] == {key: rows[name][key] for key in ("value", "error", "episodes")}
        found = weights_of(card)
        assert found == (rows[name]["value"], rows[name]["value"])


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({}, None),
        ({"nat_worth": {"value": 0.3, "error": 0.2, "episodes": 8}}, None),  # within its error
        ({"nat_worth": {"value": 0.3, "error": 0.1, "episodes": 8}}, (0.3, 0.0)),
        (
            {"nat_worth": {"value": 0.3, "error": 0.1, "episodes": 8}, "evaluation": {"evaluation_length": 20.0}},
            (0.3, 0),
        ),
    ],
)
def test_the_usual_weights_are_what_the_card_tells(card: dict[str, Any], expected: Any) -> None:
    """Without the states where the prior's episodes are too short to learn them, or unknown."""
    assert weights_of(card) == expected
