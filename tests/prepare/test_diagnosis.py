"""What is known of a prior before training: on linear–quadratic control, where it can be known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_envs import tiny
from typed_commands import typed
from worth_known import ALPHA, LONG, optimum

from repolicy.addons.addon import combine_addons
from repolicy.evaluation import Evaluation
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare import diagnosis
from repolicy.prepare.diagnosis import Diagnosis, diagnose, find_complaints
from repolicy.prepare.worth import Worth
from repolicy.readers.reading import Options
from repolicy.runs import command_options


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diagnosis, "DIAGNOSIS_STEPS", 100)
    monkeypatch.chdir(tmp_path)


def found(policy: Policy, addon: str = tiny("stay_near"), env: str = LONG) -> Diagnosis:
    return diagnose(policy, env, combine_addons([addon]))


def test_a_good_prior_acts_and_its_nats_have_their_worth() -> None:
    healthy = found(optimum())
    assert healthy.complaints == []
    assert healthy.verdict.startswith("it acts: no episode ends, basic reward")
    assert healthy.outlier_share == 0.0
    assert healthy.worths.basic.value == pytest.approx(ALPHA, abs=3 * healthy.worths.basic.error)
    omega, states, _ = healthy.weights or (0.0, 0.0, "")
    assert omega == pytest.approx(max(healthy.worths.basic.value, healthy.worths.addon.value), rel=0.05)
    assert states == pytest.approx(healthy.worths.basic.value, rel=0.05)
    assert healthy.suggested_options == ["--omega", f"{omega:g}", "--states", f"{states:g}"]


def test_the_worth_in_a_file_is_taken_where_it_is_no_chance() -> None:
    for told, value in ((Worth(0.7, 0.1, 8), 0.7), (Worth(0.7, 0.6, 8), ALPHA)):
        basic = diagnose(optimum(), LONG, combine_addons([tiny("stay_near")]), nat_worth=told).worths.basic
        assert basic.value == pytest.approx(value, rel=0.1)


def test_a_policy_that_knows_nothing_is_told_from_one_that_does() -> None:
    lost = optimum()
    with torch.no_grad():
        lost.network.weights[0].mul_(-1.0)  # it pushes the wrong way
    said = "do not show that it acts better than a policy that knows nothing"
    assert said in found(lost, env=tiny("LinearQuadratic")).verdict


def returning(*returns: float) -> Evaluation:
    return replace(evaluation_of(0.0), basic=np.repeat(returns, 4))


def test_who_is_better_by_one_kind_of_action_acts() -> None:
    good, poor = returning(1.0, 0.9, 1.1), returning(0.0, 0.1, -0.1)
    for mean_action, sampled in ((good, poor), (poor, good)):
        assert find_complaints(optimum(), mean_action, sampled, poor, 0.0) == []
    [said] = find_complaints(optimum(), poor, poor, poor, 0.0)
    assert said.startswith("these episodes do not show that it acts better")


def test_statistics_that_are_missing_show_in_what_is_seen() -> None:
    blind = optimum()
    blind.normalizer.var.fill_(1e-6)
    blind.normalizer._refresh()
    assert any("beyond ±10" in sentence and "--vecnormalize" in sentence for sentence in found(blind).complaints)


def evaluation_of(fell: float) -> Evaluation:
    """Ten episodes without a reward, of which a share falls."""
    zeros = np.zeros(10)
    found = Evaluation("any", "gymnasium", True, 0, zeros * np.nan, zeros, None, zeros + 100, zeros, None)
    return replace(found, terminated=np.arange(10) < 10 * fell)


def test_a_std_that_cannot_be_trained_from() -> None:
    steady, rarely, often, always = map(evaluation_of, (0.0, 0.1, 0.9, 1.0))
    assert find_complaints(optimum(), steady, rarely, always, 0.0) == []
    assert "too wide" in find_complaints(optimum(), steady, often, always, 0.0)[0]
    narrow = Policy(replace(optimum().spec, initial_std=1e-4, min_std=0.0))
    assert "too narrow" in find_complaints(narrow, steady, steady, always, 0.0)[0]


@pytest.mark.filterwarnings("error")
def test_choices_have_no_range_also_where_they_are_not_counted_from_0() -> None:
    for space in (ActionSpace("discrete", (3,), (2.0,)), ActionSpace("discrete", (3, 2), (-1.0, 5.0))):
        chooses = Policy(PolicySpec(1, space, "categorical"))
        assert find_complaints(chooses, *map(evaluation_of, (0.0, 0.0, 1.0)), 0.0) == []


def test_episodes_that_end_before_their_time_are_counted_once() -> None:
    policy = found(optimum(), env=tiny("Mortal"), addon=f"{Path(__file__)}:one").sampled
    assert policy.terminated.all()
    assert policy.addon.tolist() == policy.lengths.tolist()
    assert 1.0 < policy.lengths.mean() < 20.0


def test_short_episodes_are_driven_for_as_many_steps_as_long_ones() -> None:
    short, long = found(optimum(), env=tiny("Mortal")), found(optimum())
    for statistics in (short.mean_action, short.sampled, short.untrained):
        assert 0.6 < statistics.lengths.sum() / (diagnosis.DIAGNOSIS_ENVS * diagnosis.DIAGNOSIS_STEPS) < 1.4
    assert long.mean_action.lengths.tolist() == [100.0] * diagnosis.DIAGNOSIS_ENVS


def one(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.ones(len(observations))


def test_the_command_tells_the_verdict_first_and_a_command_last(capsys: pytest.CaptureFixture[str]) -> None:
    save_policy("mine.safetensors", optimum(), {})
    words = ("diagnose", "mine.safetensors", "--env", LONG, "--addon", tiny("stay_near"), "--backend", "gymnasium")
    code, _, err = typed(capsys, *words)
    assert code == 0
    lines = err.strip().splitlines()
    assert lines[0].startswith("it acts")
    assert lines[1] == f"{LONG}, 16 episodes with the mean action, 16 with sampled actions, 16 untrained"
    assert lines[2].split("  ")[0] == "mean ± std"
    assert lines[-1].strip().startswith("repolicy customize mine.safetensors --env")
    code, out, _ = typed(capsys, *words, "--json")
    told = json.loads(out)
    assert told["settings"]["schedule"] == "adaptive"
    assert told["command"] == lines[-1].strip()
    assert told["command"].endswith(" --backend gymnasium")
    theirs = Options(std=0.2, file_activation="elu")  # a file is read again as it was
    assert command_options(theirs, Options()) == ["--std", "0.2", "--file-activation", "elu"]


@pytest.mark.parametrize(
    ("card", "of"),
    [
        (
            {"nat_worth": {"value": 9.0, "error": 0.1, "episodes": 8}},
            "a nat of log prior is worth 9.00 ± 0.10 of the reward that it was trained with",
        ),
        ({"nat_worth": {"value": 5230.0, "error": 110.0, "episodes": 8}}, "is worth 5,230 ± 110 of the reward"),
        ({"nat_worth": {"value": 9.0, "error": 8.0, "episodes": 8}}, "of the environment's reward"),
    ],
)
def test_the_worth_in_a_file_is_of_the_reward_that_it_was_trained_with(
    card: dict[str, Any], of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy("mine.safetensors", optimum(), card | {"request": {"addons": [tiny("stay_near")]}})
    code, _, err = typed(capsys, "diagnose", "mine.safetensors", "--env", LONG, "--addon", tiny("stay_near"))
    assert code == 0
    assert of in err


def test_where_the_environment_tells_no_reward_the_rest_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    silent = found(optimum(), env=tiny("WithoutReward"))
    assert (silent.worths.basic, silent.worths.addon is None) == (None, False)
    save_policy("mine.safetensors", optimum(), {})
    words = ("diagnose", "mine.safetensors", "--env", tiny("WithoutReward"), "--addon", tiny("stay_near"))
    code, _, err = typed(capsys, *words)
    assert code == 0
    assert "tells no reward" in err
    assert "unknown" not in err
    assert "steps an episode" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hopper",), "needs the add-on that you wish for"),
        (("hopper", "--addon", "hind_leg"), "reads the numbers of HalfCheetah"),
        (("nothing.zip", "--addon", "height"), "there is no file nothing.zip"),
        (("hopper", "--addon", "height", "--env", "Ant-v4"), "reads the numbers of Hopper"),
        (("hopper", "--addon", tiny("stay_near"), "--env", "Ant-v4"), "the prior takes observations of 11 numbers"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_sentence(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy("mine.safetensors", optimum(), {})
    code, out, err = typed(capsys, "diagnose", *words)
    assert code in (1, 2)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
