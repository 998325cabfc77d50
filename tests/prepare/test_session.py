"""Repolicy from Python: functions and results are handed over, and what comes back can be asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tiny_envs
import torch
from tiny_envs import LinearQuadratic, Manifold, stay_near, tiny

import repolicy
from repolicy.envs import find_session_only
from repolicy.errors import FileError, UsageError
from repolicy.loading import load_object, reference_to
from repolicy.objective import Objective, repeat_entropy, residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.session import describe_folder, ranks_for, resume_choices, resumed_objective
from repolicy.ranges import Range
from repolicy.runs import ranks
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.result import Result

SMALL = repolicy.Settings(
    steps=512, envs=8, n_steps=16, minibatch=64, checkpoint_every=2, hidden=(8,), evaluation_episodes=2
)


pytestmark = pytest.mark.usefixtures("_elsewhere")


def small_policy() -> Policy:
    return Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(8,)))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Result]:
    """A policy that was trained in an environment of this session, and customized to a wish of this session."""
    folder = tmp_path_factory.mktemp("chain")

    def nearer(observations: Any, actions: Any, after: Any, info: Any) -> Any:
        return -(after[:, 0] ** 2)

    trained = repolicy.train(lambda: LinearQuadratic(), repolicy.soft(0.1), folder / "prior", SMALL)
    wish = repolicy.customize(trained, nearer, repolicy.residual(0.3, 0.1), folder / "run", replace(SMALL, ranks=1))
    return trained, wish


def test_a_function_of_a_module_goes_by_its_name_and_others_by_the_session() -> None:
    assert reference_to(stay_near) == "tiny_envs:stay_near"
    assert load_object("tiny_envs:stay_near", "add-on") is stay_near

    def mine() -> None: ...

    first, second = (lambda: 1), (lambda: 2)
    for function in (mine, first, second, tiny_envs.Tiny().reset):
        name = reference_to(function)
        assert find_session_only(["CartPole-v1", name])
        assert load_object(name, "add-on") == function
    assert reference_to(first) != reference_to(second)
    with pytest.raises(UsageError, match=r"another Python session.*file.py:gone"):
        load_object("session:gone", "add-on")


def test_what_lives_here_alone_takes_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    alone, said = ranks_for(replace(SMALL, ranks=0), ["CartPole-v1", reference_to(lambda: None)])
    assert alone.ranks == 1
    assert "name it as file.py:" in said[0]
    assert ranks_for(SMALL, ["CartPole-v1", "mine.py:f"]) == (SMALL, [])
    gymnasium.register("Mine-v9", entry_point=LinearQuadratic)  # as a script or a notebook does
    try:
        assert ranks_for(replace(SMALL, ranks=0), ["Mine-v9?seed=1"])[0].ranks == 1
        with pytest.raises(UsageError, match=r"process of its own, which cannot import 'Mine-v9'"):
            repolicy.sweep("hopper", "height", [0.1], env="Mine-v9", settings=SMALL)
    finally:
        del gymnasium.registry["Mine-v9"]
    with pytest.raises(UsageError, match="lives in this Python session alone, and 2 ranks must import it"):
        repolicy.customize(
            "hopper", lambda *_: 0, repolicy.kl(0.1), settings=replace(SMALL, ranks=2), env=tiny("LinearQuadratic")
        )


def test_a_sweep_takes_names_and_results_but_nothing_that_lives_here_alone(chain: tuple[Result, Result]) -> None:
    settings = replace(SMALL, ranks=1)
    with pytest.raises(UsageError, match=r"each point of a sweep is a process of its own.*file.py:lambda"):
        repolicy.sweep(chain[0], stay_near, [0.1], settings=settings)  # its environment is a lambda
    with pytest.raises(UsageError, match="each point of a sweep is a process"):
        repolicy.sweep("hopper", lambda *_: 0, [0.1], settings=settings)
    with pytest.raises(UsageError, match="the same reward, 0, in all"):  # so far, it is as asked for
        repolicy.sweep(chain[0], tiny("constant"), [0.1], settings=settings, env=LinearQuadratic)


def test_other_ranks_import_what_this_process_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a_module_of_mine.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    with ranks.launch_ranks(2, ["import a_module_of_mine"]):
        pass  # ends with an error where the other could not


def test_a_policy_is_customized_from_a_result_to_a_function(chain: tuple[Result, Result]) -> None:
    prior, wish = chain
    assert (prior.finished, wish.finished) == (True, True)
    scored = wish.evaluate(4)
    assert scored.env.startswith("session:lambda")
    assert set(scored.columns) >= {"total_reward", "addon_reward", "log_prior_a_step"}
    assert prior.evaluate(4).addon is None
    states = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    before, after = (result.policy.predict(states, deterministic=True)[0] for result in chain)
    assert not np.array_equal(before, after)


def test_what_is_left_out_is_as_in_the_run_that_is_resumed(tmp_path: Path) -> None:
    """Nobody can tell what a nat is worth here, so the run takes a budget, which the same call finds again."""
    prior = small_policy()

    def again(objective: Any, settings: repolicy.Settings | None, resume: bool = True) -> Result:
        return repolicy.customize(
            prior, tiny("constant"), objective, tmp_path / "run", settings, env=tiny("WithoutReward"), sparse=True,
            resume=resume,
        )  # fmt: skip

    one = replace(SMALL, ranks=1)
    first = again(None, one, resume=False)
    assert {"prior_kl", "evaluation_objective"} <= set(first.last)
    told = {name: value for name, value in first.last.items() if np.isfinite(value)}
    for objective, settings in ((None, one), (residual(), None), (residual("auto"), one)):
        assert again(objective, settings).last == told  # and nothing was left to do


def test_a_name_that_is_too_long_for_a_folder_is_said_where_the_folder_is_made() -> None:
    def make() -> LinearQuadratic:
        return LinearQuadratic()

    make.__name__ = "x" * 300
    Path("runs").mkdir()
    with pytest.raises(FileError, match="File name too long"):
        repolicy.train(make, repolicy.soft(0.1))


def test_a_budget_goes_on_from_where_it_began_and_a_run_at_a_weight_without_one(tmp_path: Path) -> None:
    """The run that chose it knew from its measurement how much a nat can be worth, and began there."""
    begun = Request("CartPole-v1", repolicy.kl(0.7), replace(SMALL, ranks=1, kl_budget=2.0), ("a.py:wish",), "0" * 64)
    for asked in (residual(), residual("auto")):
        assert resume_choices(asked, SMALL, begun, tmp_path) == (repolicy.kl(0.7), replace(SMALL, kl_budget=2.0))
    assert resume_choices(residual(0.3), SMALL, begun, tmp_path)[1].kl_budget is None  # which `RunFolder.begin` refuses
    at_weight = replace(begun, objective=residual(0.3, 0.7), settings=replace(SMALL, ranks=1))
    with pytest.raises(UsageError, match="it has no budget, and now ω′ and α̂ move to stay 1 nats"):
        resume_choices(residual(), replace(SMALL, kl_budget=1.0), at_weight, tmp_path)


@pytest.mark.parametrize(
    ("asked", "begun", "goes_on"),
    [
        (repolicy.kl(), repolicy.kl(0.1), True),
        (residual(), residual(Range(0.1, 1.0), 0.1, 0.2), True),
        (residual(), repolicy.kl(0.1), True),
        (repeat_entropy(), repeat_entropy(0.1), True),
        (residual(alpha="omega"), residual(0.3, 0.3), True),
        (repolicy.kl(), residual(0.3, 0.1), False),
        (repeat_entropy(), repolicy.soft(0.1), False),
        (residual(alpha="omega"), residual(0.3, 0.1), False),
    ],
)
def test_a_word_for_a_weight_holds_where_a_run_is_resumed_too(
    tmp_path: Path, asked: Objective, begun: Objective, goes_on: bool
) -> None:
    before = Request("CartPole-v1", begun, replace(SMALL, ranks=1))
    assert (resumed_objective(asked, before, tmp_path) == begun) is goes_on  # else `RunFolder.begin` refuses it
    with pytest.raises(UsageError, match="resumed with other settings: omega was .* and is now auto"):
        resumed_objective(residual("auto"), before, tmp_path)


def test_a_result_is_evaluated_where_it_was_trained() -> None:
    settings = replace(SMALL, ranks=1, steps=128, backend="gymnasium")
    assert repolicy.train("CartPole-v1", repolicy.soft(0.1), settings=settings).evaluate(1).backend == "gymnasium"


def test_a_result_tells_of_itself_in_one_line_also_where_it_was_stopped(
    chain: tuple[Result, Result], tmp_path: Path
) -> None:
    prior, wish = chain
    for result in chain:
        assert repr(result).startswith(f"Result of {result.folder}: 512 steps; objective ")
        assert "\n" not in repr(result)
    assert "nats a step from the prior" in repr(wish)
    assert "prior" not in repr(prior).partition(": ")[2]
    assert "stopped early" in repr(replace(wish, finished=False))
    (tmp_path / "run.json").write_bytes((prior.folder / "run.json").read_bytes())
    with pytest.raises(FileError, match="has no policy yet: its first segment is not done"):
        _ = replace(prior, folder=tmp_path, finished=False).policy


def test_a_result_has_its_metrics_and_draws_them(chain: tuple[Result, Result]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    result = chain[1]
    found = result.metrics()
    assert found["steps"].tolist() == [128, 256, 384, 512]
    assert found["prior_kl"][-1] == pytest.approx(result.last["prior_kl"])
    assert np.isnan(found["evaluation_objective"]).tolist() == [True, False, True, False]
    assert [axis.get_ylabel() for axis in result.plot().axes][-1] == "KL to the prior, nats a step"
    [axis] = result.plot("entropy").axes
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), found["entropy"])
    with pytest.raises(UsageError, match="logged no 'entrophy'"):
        result.plot("entrophy")
    with pytest.raises(FileError, match=r"/gone is not there: was it moved, or the working folder changed\?$"):
        replace(result, folder=Path("gone")).metrics()


def test_a_run_that_is_evaluated_knows_its_add_on() -> None:
    env, wish = tiny("LinearQuadratic"), tiny("stay_near")
    prior, settings = small_policy(), replace(SMALL, ranks=1, steps=256)
    result = repolicy.customize(prior, [wish, f"{wish}=2"], repolicy.kl(0.1), settings=settings, env=env)
    assert result.folder == Path("runs/policy-kl-0")
    found = repolicy.evaluate(result.folder, episodes=2, trust=True)
    assert found.addon is not None
    assert found.log_prior is not None
    assert repolicy.evaluate(result.folder, episodes=2, trust=True, addon=()).addon is None
    with pytest.raises(UsageError, match="names code that would be run"):
        repolicy.evaluate(result.folder, episodes=2)
    with pytest.raises(UsageError, match="a policy alone does not say which environment"):
        repolicy.evaluate(result.policy)
    with pytest.raises(UsageError, match=r"the first argument is a function, and no policy; .* MeanPrior\(it, 0.2\)"):
        repolicy.evaluate(lambda observations: observations, env)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a policy alone does not say which environment"):
        repolicy.customize(prior, wish, repolicy.kl(0.1))
    with pytest.raises(UsageError, match="has all that it needs: leave out --std"):
        repolicy.customize(prior, wish, std=0.1, env=env)
    again = repolicy.customize(prior, wish, repolicy.kl(0.1), settings=settings, env=env)
    assert again.folder == Path("runs/policy-kl-0-2")
    resumed = repolicy.customize(prior, wish, out=again.folder, env=env, resume=True)  # objective, settings: the run's
    assert resumed.finished


def test_a_second_run_is_refused_before_weights_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(start: object, request: object, folder: RunFolder, *_: object) -> None:
        RunFolder(folder.path).locked().__enter__()

    monkeypatch.setattr("repolicy.learning.training._prepare_start", prepared)
    with pytest.raises(FileError, match="another run is at work in .*run; wait for it"):
        repolicy.customize(small_policy(), tiny("stay_near"), out=tmp_path / "run", env=tiny("LinearQuadratic"))
    assert not (tmp_path / "run").exists()


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(SMALL, ranks=1, steps=128)
    for progress, shown in ((True, True), (False, False), (None, False)):  # nobody looks at a test's stderr
        repolicy.train("CartPole-v1", repolicy.soft(0.1), f"run-{progress}", one, progress=progress)
        assert bool(capsys.readouterr().err) == shown


def test_an_environment_is_a_name_or_a_function_and_no_thing() -> None:
    no_names: list[Any] = [gymnasium.make("CartPole-v1"), 3]
    for env in no_names:
        with pytest.raises(UsageError, match="give its id, or a function that makes a new one at each call"):
            repolicy.train(env, repolicy.soft(0.1), "run", SMALL)


def test_predict_is_what_stable_baselines3_predicts(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy

    env = gymnasium.make("Pendulum-v1")
    theirs = sb3.PPO("MlpPolicy", env, seed=3)
    theirs.save(tmp_path / "theirs.zip")
    ours = repolicy.load_policy(tmp_path / "theirs.zip")
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for observation in (seen, seen[0]):
        action, state = ours.predict(observation, deterministic=True)
        np.testing.assert_allclose(action, theirs.predict(observation, deterministic=True)[0], atol=1e-5)
        assert state is None
    torch.manual_seed(0)
    assert np.stack([ours.predict(seen[0], deterministic=False)[0] for _ in range(400)]).std() > 0.3
    mean, _ = evaluate_policy(ours, env, n_eval_episodes=1, warn=False)
    assert -2000 < mean < 0
    with pytest.raises(UsageError, match=r"observations of 3 numbers, .* shape \(4,\)"):
        ours.predict(np.zeros(4))


def test_predict_gives_choices_as_the_environment_counts_them() -> None:
    env: Any = Manifold()
    sizes = tuple(map(int, env.action_space.nvec))
    spec = PolicySpec(3, ActionSpace("discrete", sizes, (5.0, 7.0)), family="categorical", hidden=(4,))
    single, several = Policy(spec).predict(np.zeros(3))[0], Policy(spec).predict(np.zeros((6, 3)))[0]
    assert (single.shape, several.shape) == ((len(sizes),), (6, len(sizes)))
    assert (several >= [5, 7]).all()
    one = Policy(PolicySpec(4, ActionSpace("discrete", (2,)), family="categorical", hidden=(4,)))
    assert gymnasium.make("CartPole-v1").action_space.contains(one.predict(np.zeros(4))[0])


def test_who_resumes_what_is_not_there_hears_that_a_run_begins(tmp_path: Path) -> None:
    folder, before = RunFolder(tmp_path / "typo"), Request("CartPole-v1", residual(0.1, 0.1), SMALL)
    assert describe_folder(folder, True, None) == f"{folder.path}, where no run is yet: a new one begins"
    assert describe_folder(folder, True, before) == describe_folder(folder, False, None) == str(folder.path)
