"""Customizing: the prior is held by its log-probability alone, and the basic reward by nobody."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import at_once
import numpy as np
import pytest
import torch
from known_optimum import ALPHA, SETTINGS, SLOW, WISH, as_policy, assert_found, customized, of_both
from linear_quadratic import LinearGaussian
from small_runs import SMALL, Log
from tiny_envs import WithoutReward, tiny

from repolicy.envs.batches import GymnasiumEnvs
from repolicy.envs.rollout import Collector
from repolicy.errors import UsageError
from repolicy.evaluation import evaluate
from repolicy.learning import ppo
from repolicy.learning.ppo import STD_SPEED, STD_SPEED_MIN_SAMPLES
from repolicy.learning.training import customize
from repolicy.objective import Objective, full, greedy, kl, residual, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import PolicySpec, make_policy
from repolicy.prepare.weights import alpha_from_card
from repolicy.priors.opening import read_policy
from repolicy.runs.request import Request, command_words


@pytest.mark.parametrize(
    ("objective", "wanted"),
    [
        (residual(omega=2.0 * ALPHA, alpha=0.15), of_both(2.0, 0.15)),  # at another temperature than the prior's
        pytest.param(greedy(0.15), of_both(0.0, 0.15), marks=pytest.mark.long),
    ],
    ids=["residual", "greedy"],
)
def test_the_optimum_of_the_summed_cost_is_found_without_the_first_reward(
    prior: Path, tmp_path: Path, objective: Objective, wanted: LinearGaussian
) -> None:
    settings = replace(SETTINGS, steps=100_000, learning_rate=6e-3)
    assert_found(customized(prior, objective, tmp_path / "run", settings).policy, wanted)


@pytest.mark.parametrize("name", ["LinearQuadratic", "WithoutReward"])
def test_environments_that_are_stepped_at_once_answer_as_one_after_the_other(name: str) -> None:
    """Which the long runs here rely on; half of the first episodes are cut, so not all begin at the same time."""
    rollouts = []
    for make in (GymnasiumEnvs, at_once.batch):
        cuts = np.array([0, 3, 0, 5])
        collector = Collector(make(tiny(name), 4, 7), 20, torch.Generator().manual_seed(0), cuts)
        rollouts.append(collector.collect(as_policy(of_both())))
    one, other = rollouts
    for part in ("observations", "next_observations", "env_actions", "basic", "terminated", "truncated", "ages"):
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
    np.testing.assert_array_equal(one.info["distance"], other.info["distance"])


@pytest.mark.parametrize(("least", "speed"), [(1, STD_SPEED), (STD_SPEED_MIN_SAMPLES, 1.0)])
def test_from_some_samples_on_the_logarithm_of_the_std_takes_longer_steps(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, speed: float
) -> None:
    """Adam's first step is as long as the learning rate, whatever the gradient is."""
    monkeypatch.setattr(ppo, "STD_SPEED_MIN_SAMPLES", least)
    whole = SETTINGS.iteration_steps
    one = replace(SETTINGS, steps=whole, minibatch=whole, epochs=1, critic_warmup=0.0)
    settings = replace(one, learning_rate=1e-3, schedule="constant")
    ours = customized(prior, residual(0.2, 0.1), tmp_path / "run", settings).policy.log_std
    moved = ours - read_policy(prior).policy.log_std
    assert moved.abs().item() == pytest.approx(speed * 1e-3, rel=0.01)


def test_the_basic_reward_is_never_read(prior: Path, tmp_path: Path) -> None:
    few = replace(SETTINGS, steps=1_024, checkpoint_every=1)
    policies = []
    for env in ("LinearQuadratic", "WithoutReward"):  # the same environment, but for its rewards
        policies.append(customized(prior, residual(0.2, 0.1), tmp_path / env, few, env=env).policy.state_dict())
    ours, theirs = policies
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(ours["log_std"], read_policy(prior).policy.state_dict()["log_std"])


@pytest.mark.long
def test_omega_alone_holds_a_budget_of_likelihood(prior: Path, tmp_path: Path) -> None:
    """The budget is what the exact optimum at a known omega spends; from a third of it, that omega is found."""
    omega, alpha = 0.2, 0.8
    known = of_both(omega / ALPHA, alpha)
    held = read_policy(prior).policy
    acted = evaluate(as_policy(known), tiny("WithoutReward"), 2_000, prior=held, deterministic=False)
    own = -held(torch.zeros(1, 1)).entropy().item()
    budget = own - acted.log_prior.sum() / acted.lengths.sum()
    assert budget > 0.1
    settings = replace(SLOW, log_prior_budget=float(budget), steps=200_000)
    log = Log()
    wish_for = [WISH, residual(omega / 3, alpha)]
    customize(prior, *wish_for, tmp_path / "run", settings, env=tiny("WithoutReward"), callbacks=[log])
    last = log.metrics[-50:]
    assert np.mean([metrics["below_prior"] for metrics in last]) == pytest.approx(budget, rel=0.05)
    assert np.mean([metrics["omega"] for metrics in last]) == pytest.approx(omega, rel=0.05)
    assert {metrics["alpha"] for metrics in log.metrics} == {alpha}


@pytest.mark.long
def test_a_budget_of_drift_is_held_and_the_policy_is_the_optimum_at_the_weight_that_holds_it(
    prior: Path, tmp_path: Path
) -> None:
    """From weights a hundred times too small, which move without going far beyond the budget on the way."""
    settings, log = replace(SLOW, kl_budget=0.02, steps=240 * SLOW.iteration_steps), Log()
    env = tiny("WithoutReward")
    found = customize(prior, WISH, kl(ALPHA / 10), tmp_path / "run", settings, env=env, callbacks=[log])
    drift = [metrics["prior_kl"] for metrics in log.metrics]
    assert 0.02 < max(drift) < 0.2
    assert np.mean(drift[-60:]) == pytest.approx(0.02, rel=0.1)
    multiplier = found.last["omega"]
    assert_found(found.policy, of_both(multiplier / ALPHA, multiplier), rel=0.1)
    # Who customizes this policy again begins at the temperature that it has, and not at the first one.
    assert alpha_from_card(read_policy(found.folder / "policy.safetensors").card) == pytest.approx(multiplier, rel=0.1)


class Unweighed(WithoutReward):
    """Tells of an energy that it weighs with 0, as some robots of Playground do."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"reward_energy": 0.0}


UNWEIGHED = f"{Path(__file__)}:Unweighed"
UNNAMED: dict[str, Any] = {"objective": None, "settings": None}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"env": tiny("Counter")}, "observations of 1 numbers, .* gives 2"),
        ({"addon": tiny("constant")}, "the same reward, 0, in all of 2,048 trial steps; if it is meant"),
        ({"addon": tiny("stay_near") + "=0"}, "the same reward, 0, in all of 2,048 trial steps; its weight is 0"),
        ({"addon": tiny("badly_told")}, r"metric 'mean metric' returned one number for"),
        ({"objective": Objective("basic", alpha=0.1)}, "task is the add-on"),
        ({"objective": {"steps": 2048}}, "the objective is a dict, and no objective such as residual"),
        ({"settings": replace(SETTINGS, kl_budget=0.1)}, "moves omega and alpha together"),
        ({"settings": replace(SETTINGS, log_prior_budget=0.1), "objective": greedy(0.1)}, "from a value above 0 on"),
        ({"settings": replace(SETTINGS, log_prior_budget=0.1), "objective": kl(0.1)}, "moves omega alone, so"),
        ({"settings": replace(SETTINGS, log_prior_budget=0.1), "objective": residual(0.1, "omega")}, "omega alone"),
        (UNNAMED | {"settings": {"steps": 255}}, "steps is 255, and one update takes 256: name that many at least"),
        (UNNAMED | {"addon": "nothing_of_the_kind"}, "add-on"),
        (UNNAMED | {"addon": "hind_leg", "env": "Hopper-v4"}, "add-on"),
        (UNNAMED | {"addon": tiny("constant"), "env": UNWEIGHED}, "add --sparse"),
        (UNNAMED | {"addon": "energy", "env": UNWEIGHED}, r":Unweighed\?energy_scale=-0\.001$"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured_or_written(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], sentence: str
) -> None:
    usual: Any = {"addon": WISH, "objective": residual(0.2, 0.1), "env": tiny("WithoutReward"), "settings": SETTINGS}
    with pytest.raises(UsageError, match=sentence):
        customize(prior, out=tmp_path / "run", progress=True, **usual | change)
    assert not (tmp_path / "run").exists()
    assert "measuring" not in capsys.readouterr().err


def test_a_rare_reward_is_accepted_where_it_is_announced_and_what_has_no_use_is_told(
    prior: Path, tmp_path: Path
) -> None:
    few, log = replace(SETTINGS, steps=2_048, checkpoint_every=2, family="squashed", min_std=0.3), Log()
    wanted = (tiny("constant"), residual(0.2, 0.1), tmp_path / "run", few)
    assert customize(prior, *wanted, env=tiny("WithoutReward"), sparse=True, callbacks=[log]).finished
    assert "family and min_std changed nothing: the actor begins as its prior" in log.said


def test_the_command_of_a_log_prior_budget_names_omega_once_and_what_only_python_can_ask_for_has_none() -> None:
    def words(objective: Objective, **settings: Any) -> list[str]:
        return command_words(Request("Hopper-v4", objective, replace(SETTINGS, **settings), ("height",)), "hopper")

    asked = words(kl(0.1), log_prior_budget=3.0)
    assert [asked[place + 1] for place, word in enumerate(asked) if word == "--omega"] == ["auto"]
    assert asked[asked.index("--alpha") + 1] == "0.1"
    begun_elsewhere = " ".join(words(residual(0.2, 0.1), log_prior_budget=3.0))
    assert "--objective residual --omega 0.2 --alpha 0.1" in begun_elsewhere
    for objective in (full(0.1), soft(0.1), Objective("both", alpha=0.1, states=0.2)):
        assert words(objective) == []


@pytest.mark.parametrize("dial", [False, True])
def test_a_policys_file_tells_where_choices_start_though_its_priors_does_not(tmp_path: Path, dial: bool) -> None:
    prior = make_policy(PolicySpec(1, ActionSpace("discrete", (3,)), "categorical", (4,)), 0)
    settings, env = replace(SMALL, steps=256, evaluation_episodes=0), tiny("Told") + "?actions=choice"
    weights = residual((0.1, 1.0) if dial else 0.1, 0.1)
    result = customize(prior, tiny("was_told"), weights, tmp_path / "run", settings, env=env, progress=False)
    policy = result.at(omega=0.1) if dial else result.policy
    action, _ = policy.predict(np.zeros(1))
    assert action in (7, 8, 9)
