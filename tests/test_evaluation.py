"""Whole episodes, evenly shared out, each counted once."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from noise_worlds import named
from tiny_envs import LinearQuadratic, tiny
from typed_commands import answered

from repolicy import evaluation
from repolicy.addons.addon import combine_addons
from repolicy.addons.limits import parse_limits as limits_of
from repolicy.differences import Column
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.errors import NumericError, UsageError
from repolicy.evaluation import evaluate, run_episodes
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.prepare.generative import standard_normal
from repolicy.priors.opening import load_policy

ONE_NUMBER = ActionSpace("continuous", (1,), (-1.0,), (1.0,))


def policy(observations: int = 2) -> Policy:
    torch.manual_seed(1)
    return frozen(Policy(PolicySpec(observations, ONE_NUMBER, initial_std=0.5)))


def counted(episodes: list[int]) -> list[float]:
    """What `Counter` pays in its k-th episode of 2 + k steps: 10·k + t in step t."""
    return [float(sum(10 * k + t for t in range(1, 3 + k))) for k in episodes]


def test_each_environment_runs_its_share_of_episodes_however_short_they_are() -> None:
    found = run_episodes(policy(), make_envs(tiny("Counter"), 2, 0), 5)
    assert [*found.lengths] == [3, 3, 4, 4, 5]  # three episodes of the one, two of the other
    assert [*found.basic] == counted([1, 1, 2, 2, 3])


def test_hasty_environments_do_not_run_more_episodes() -> None:
    """One environment's episodes have one step, the other's 3, 4 and 5: each gives three, in turns."""
    envs: Any = make_envs(tiny("Counter"), 2, 0)
    usual = envs._ones[1].step
    envs._ones[1].step = lambda action: (usual(action)[0], 1.0, True, False, {})
    assert [*run_episodes(policy(), envs, 6).lengths] == [3, 1, 4, 1, 5, 1]


def test_returns_are_those_of_a_loop_by_hand() -> None:
    addon = combine_addons([f"{tiny('stay_near')}=2"])
    found = evaluate(policy(1), tiny("LinearQuadratic"), 5, addon=addon)
    envs = make_envs(tiny("LinearQuadratic"), 5, 0)
    seen, basic, extra = envs.reset(), np.zeros(5), np.zeros(5)
    for _ in range(8):
        with torch.no_grad():
            step = envs.step(policy(1)(torch.from_numpy(seen)).mode().numpy())
        basic += step.rewards
        extra -= 2.0 * step.final[:, 0].astype(np.float64) ** 2  # of the true last observation, too
        seen = step.observations
    np.testing.assert_allclose(found.basic, basic, rtol=1e-5)
    np.testing.assert_allclose(found.addon, extra, rtol=1e-5)
    np.testing.assert_allclose(found.total, basic + extra, rtol=1e-5)


def test_evaluations_are_compared_without_an_error() -> None:
    one, other = (evaluate(policy(1), tiny("LinearQuadratic"), 2) for _ in range(2))
    assert [one == one, one == other] == [True, False]  # each is itself alone, and has a place in a set
    assert len({one, other}) == 2


def test_the_mean_action_is_the_same_whatever_the_seed_and_the_sampled_is_not() -> None:
    def distance(deterministic: bool, sampling: int) -> float:
        envs = make_envs(tiny("LinearQuadratic"), 2, 0)
        return float(run_episodes(policy(1), envs, 2, deterministic=deterministic, seed=sampling).basic.sum())

    assert distance(True, 0) == distance(True, 1)
    assert distance(False, 0) != distance(False, 1)
    assert distance(False, 3) == distance(False, 3)


def test_log_probabilities_and_entropies_are_summed_over_each_episode() -> None:
    envs = make_envs(tiny("LinearQuadratic"), 3, 0)
    found = run_episodes(policy(1), envs, 6, prior=policy(1), deterministic=False)
    assert found.log_prior is not None
    np.testing.assert_allclose(found.log_prior, found.log_policy, rtol=1e-5)
    assert found.entropy == pytest.approx(8 * float(policy(1)(torch.zeros(1, 1)).entropy()))  # one std for all states
    mode = run_episodes(policy(1), make_envs(tiny("LinearQuadratic"), 3, 0), 6)
    at_mode = float(policy(1)(torch.zeros(1, 1)).log_prob(policy(1)(torch.zeros(1, 1)).mode()))
    np.testing.assert_allclose(mode.log_policy, 8 * at_mode, rtol=1e-4)  # one std for all states, 8 steps


def test_a_prior_that_is_an_object_gets_rows_as_when_a_policy_is_customized() -> None:
    def log_prob(observations: torch.Tensor, actions: torch.Tensor) -> np.ndarray:
        assert observations.shape == actions.shape == (len(actions), 1), "rows of one number"
        return policy(1).log_prob(observations, actions).numpy()

    found, expected = (
        evaluate(policy(1), tiny("LinearQuadratic"), 3, prior=prior, deterministic=False)
        for prior in (SimpleNamespace(log_prob=log_prob), policy(1))
    )
    assert found.log_prior == pytest.approx(expected.log_prior, rel=1e-6)
    wrong = SimpleNamespace(log_prob=lambda observations, actions: actions)
    with pytest.raises(UsageError, match=r"gave shape \[60, 1\]; of 60 actions it must give one number for each"):
        evaluate(policy(1), tiny("LinearQuadratic"), 3, prior=wrong)


def test_what_is_a_step_has_the_weight_of_its_episodes_length() -> None:
    """The mean and std of a column with lengths are those of all steps, each with the mean of its episode."""
    values, lengths = np.array([1.0, 4.0, 2.0]), np.array([10, 1, 5])
    column, steps = Column("speed", values, lengths), np.repeat(values, lengths)
    assert (column.mean, column.std) == pytest.approx((steps.mean(), steps.std()))
    plain = Column("speed", values)
    assert (plain.mean, plain.std) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert plain.error == pytest.approx(values.std(ddof=1) / 3**0.5)


def test_a_limits_mean_is_that_of_all_steps() -> None:
    """A fall in every fourth step, which is the only one of its decision."""
    env, limits = named("three", chunk=3).replace("Walk", "Falling"), ["fell<=0.3"]
    prior, (limit,) = standard_normal(2, 2), limits_of(limits)
    rollout = Collector(make_envs(env, 4, 0), 6, torch.Generator()).collect(prior)
    assert limit.values(rollout).mean() == pytest.approx(0.25)
    found = evaluate(prior, env, 2, limits=limits)
    assert found.columns["limit_fell<=0.3"].mean == pytest.approx(0.25)
    assert found.inner is not None
    assert (found.lengths.tolist(), found.inner.tolist()) == ([2, 2], [4, 4])


def test_several_add_ons_are_told_apart_and_one_that_is_named_twice_counts_with_both_weights() -> None:
    far, near = tiny("far_away"), tiny("stay_near")
    found = evaluate(policy(1), tiny("LinearQuadratic"), 3, addon=combine_addons([f"{far}=2", near, f"{far}=3"]))
    alone = evaluate(policy(1), tiny("LinearQuadratic"), 3, addon=combine_addons([far])).addon
    assert set(found.wishes) == {"far_away", "stay_near"}
    assert alone is not None
    np.testing.assert_allclose(found.wishes["far_away"], 5 * alone)
    np.testing.assert_allclose(sum(found.wishes.values()), found.addon)


def test_each_episode_is_in_the_file() -> None:
    found = evaluate(policy(1), tiny("LinearQuadratic"), 6, addon=combine_addons([tiny("stay_near")]))
    values = json.loads(json.dumps(found.as_dict()))
    assert (values["episodes"], values["each"]["length"]) == (6, [8.0] * 6)
    for name in ("basic_reward", "addon_reward", "total_reward"):
        assert values["summary"][name]["mean"] == pytest.approx(np.mean(values["each"][name]))
        assert values["summary"][name]["std"] == pytest.approx(np.std(values["each"][name], ddof=1))


def test_a_return_that_is_not_finite_does_not_hide_the_others() -> None:
    found = evaluate(policy(1), tiny("LinearQuadratic"), 4)
    unknown = np.full(4, np.nan)
    assert "basic_reward" not in dataclasses.replace(found, basic=unknown).columns
    for value in (np.nan, np.inf):
        with pytest.raises(NumericError, match="the basic reward is not finite in 3 of 4 episodes"):
            _ = dataclasses.replace(found, basic=np.array([1.0, value, value, value])).columns


def test_the_referee_scores_the_same() -> None:
    """CartPole on EnvPool and on Gymnasium: the same task, other starts."""
    pytest.importorskip("envpool")
    decent = Policy(PolicySpec(4, ActionSpace("discrete", (2,)), "categorical", hidden=(1,)))
    with torch.no_grad():  # push towards where the pole leans: too simple to last
        decent.network.weights[0].copy_(torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
        decent.network.weights[1].copy_(torch.tensor([[0.0], [10.0]]))
    pool, referee = (evaluate(decent, "CartPole-v1", 50, backend=name).lengths for name in ("envpool", "gymnasium"))
    assert 30 < pool.mean() < 50
    assert pool.mean() == pytest.approx(referee.mean(), rel=0.15)


def test_an_endless_episode_is_cut_so_that_evaluations_end_and_the_cut_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "EPISODE_CAP", 30)
    found = evaluate(policy(1), tiny("Endless"), 5)
    assert found.lengths.tolist() == found.basic.tolist() == [30.0] * 5
    assert repr(found).splitlines()[-1].split() == ["cut", "5", "of", "5", "episodes,", "after", "30", "steps"]
    assert "cut" not in repr(evaluate(policy(1), tiny("endless_with_time_limit"), 5))


def test_an_episode_is_as_long_as_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EPISODE_CAP", 3)
    assert evaluate(policy(1), tiny("endless_with_time_limit"), 5).lengths.tolist() == [5.0] * 5
    assert evaluation.episode_cap(10**9) == 3, "a limit that nobody waits for means that there is none"


def test_after_an_episode_that_is_cut_the_next_one_begins_anew() -> None:
    """Not with the rest of the same one. Episode k of `Counter` pays 10 k + 1 and 10 k + 2 in its first two steps."""
    found = run_episodes(policy(), make_envs(tiny("Counter"), 2, 0), 6, longest=2)
    assert found.basic.tolist() == [23.0, 23.0, 43.0, 43.0, 63.0, 63.0]


def test_all_steps_of_the_environments_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of second episodes, and those after an episode's end, until the slowest environment is done."""
    envs, taken = make_envs(tiny("Endless"), 2, 0), [0]
    step = envs.step

    def counted(actions: np.ndarray) -> Any:
        taken[0] += len(actions)
        return step(actions)

    monkeypatch.setattr(envs, "step", counted)
    assert run_episodes(policy(1), envs, 3, longest=25).environment_steps == taken[0] == 2 * 60


def test_everything_may_be_named_and_an_environment_may_be_a_function_that_makes_one() -> None:
    by_name, made = (
        evaluate(hopper, "Hopper-v4", 1, addon=wish, longest=20)
        for hopper, wish in (("hopper", "height=2"), (load_policy("hopper"), combine_addons(["height=2"])))
    )
    np.testing.assert_array_equal(by_name.total, made.total)
    found, named_env = (evaluate(policy(1), env, 3) for env in (LinearQuadratic, tiny("LinearQuadratic")))
    np.testing.assert_array_equal(found.basic, named_env.basic)


def test_an_evaluation_has_the_same_bits_whatever_the_number_of_threads() -> None:
    threads = list[int]()
    torch.set_num_threads(2)
    try:
        evaluate(policy(1), tiny("LinearQuadratic"), 1, progress=lambda _: threads.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(1)
    assert threads == [1]


def test_an_evaluation_shows_a_line_a_quantity_and_of_one_episode_no_std() -> None:
    one, three = (evaluate(policy(1), tiny("LinearQuadratic"), count) for count in (1, 3))
    shown = repr(three).splitlines()
    assert shown[0].startswith("3 episodes with the mean action in ")
    assert [line.split()[0] for line in shown[1:]] == ["basic", "length,", "ended"]
    assert shown[-2].startswith("  length, steps ")
    assert shown[-1] == "  ended early    0 of 3 episodes"
    assert repr(evaluate(policy(), tiny("Counter"), 3)).endswith("3 of 3 episodes")
    assert [found.as_dict()["summary"]["length"]["std"] for found in (one, three)] == [None, 0.0]
    assert ["±" in repr(found) for found in (one, three)] == [False, True]


@pytest.mark.parametrize(
    ("env", "episodes", "more", "error", "sentence"),
    [
        ("Counter", 0, {}, UsageError, "episodes is 0; it must be 1 or more"),
        ("Counter", 2.5, {}, UsageError, "episodes is 2.5; it must be a whole number, 1 or more"),
        ("Counter", 1, {}, UsageError, "takes observations of 1 numbers, but .* gives 2"),
        ("NanObservation", 1, {}, NumericError, "not finite"),
        *(("LinearQuadratic", 1, {"seed": seed}, UsageError, "seed is") for seed in (None, -1, 1.5)),
        ("LinearQuadratic", 1, {"prior": "hopper"}, UsageError, "this str cannot be a prior: it has no log_prob"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    env: str, episodes: int, more: dict[str, Any], error: type, sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        evaluate(policy(1), tiny(env), episodes, **more)


def test_a_file_tells_which_limits_are_reported_and_code_among_them_needs_trust(tmp_path: Path) -> None:
    request = {"env": "Pendulum-v1", "limits": ["action_rate<=0.5"]}
    save_policy(tmp_path / "own.safetensors", policy(3), {"request": request})
    assert [*evaluate(tmp_path / "own.safetensors", episodes=1).limits] == ["action_rate<=0.5"]
    assert [*evaluate(tmp_path / "own.safetensors", "Pendulum-v1", 1).limits] == ["action_rate<=0.5"]
    assert not evaluate(tmp_path / "own.safetensors", episodes=1, limits=()).limits
    other = request | {"env": "Hopper-v4", "limits": ["power<=9"]}
    save_policy(tmp_path / "other.safetensors", policy(3), {"request": other})
    assert not evaluate(tmp_path / "other.safetensors", "Pendulum-v1", 1).limits, "Pendulum tells no power"
    save_policy(tmp_path / "code.safetensors", policy(3), {"request": request | {"limits": ["mine.py:rate<=0.5"]}})
    with pytest.raises(UsageError, match="names code that would be run: mine.py:rate"):
        evaluate(tmp_path / "code.safetensors", episodes=1)


def test_a_files_own_add_on_is_left_out_only_where_it_does_not_fit_another_environment(tmp_path: Path) -> None:
    for wish, fits in (("action_rate", True), ("height", False)):
        save_policy(tmp_path / "own.safetensors", policy(3), {"request": {"env": "Hopper-v4", "addons": [wish]}})
        assert (evaluate(tmp_path / "own.safetensors", "Pendulum-v1", 1).addon is not None) == fits
    with pytest.raises(UsageError, match="reads the numbers of Hopper"):
        evaluate(tmp_path / "own.safetensors", "Pendulum-v1", 1, addon="height")
    for env, wish in (("Pendulum-v1", "height"), ("Hopper-v4", "mine.py:rate")):
        save_policy(tmp_path / "own.safetensors", policy(3), {"request": {"env": env, "addons": [wish]}})
        with pytest.raises(UsageError, match="reads the numbers of Hopper|names code that would be run: mine.py:rate"):
            evaluate(tmp_path / "own.safetensors", "Pendulum-v1", 1)


@pytest.mark.parametrize("own", ["gymnasium", "envpool"])
def test_a_file_is_evaluated_on_the_backend_of_its_run(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("envpool")
    request = {"env": "Pendulum-v1", "settings": {"backend": own}}
    save_policy(tmp_path / "own.safetensors", policy(3), {"request": request})
    assert evaluate(tmp_path / "own.safetensors", episodes=1).backend == own
    assert evaluate(tmp_path / "own.safetensors", episodes=1, backend="gymnasium").backend == "gymnasium"
    assert answered(capsys, "evaluate", str(tmp_path / "own.safetensors"), "--episodes", "1")["backend"] == own
