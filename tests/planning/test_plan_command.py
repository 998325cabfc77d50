"""`repolicy plan`: its folder in the hands of the other commands."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from tiny_envs import constant
from typed_commands import failed

import repolicy
from repolicy.cli.main import main
from repolicy.envs.batches import GymnasiumEnvs
from repolicy.errors import RepolicyError, UsageError
from repolicy.planning.asking import plan
from repolicy.planning.keeping import save_planner
from repolicy.planning.planner import Search
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import PolicySpec, make_policy
from repolicy.priors.opening import open_agent
from repolicy.readers.reading import Options
from repolicy.report import filming
from repolicy.report.movie import Shot

FEW = ["--omega", "0.1", "--states", "0", "--samples", "4", "--horizon", "3", "--episodes", "1", "--steps", "20"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """What the command says on stdout and on stderr, and its folder."""
    out, told, said = tmp_path_factory.mktemp("plans") / "spare", io.StringIO(), io.StringIO()
    with redirect_stdout(told), redirect_stderr(said):
        main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--out", str(out), "--json"])
    return told.getvalue(), said.getvalue(), out


@pytest.fixture
def folder(planned):
    return planned[2]


def test_it_says_what_it_did(planned):
    told, said = json.loads(planned[0]), planned[1]
    assert told["planner"]["addon_reward"]["mean"] > told["prior"]["addon_reward"]["mean"]
    assert told["real_time"] == pytest.approx(0.05 * told["decisions_a_second"])
    assert 0.0 < told["effective_samples"] < 4.0
    assert "times real time" in said


def test_the_speed_is_that_of_one_robot_however_many_episodes_run_at_once(tmp_path, capsys, monkeypatch):
    def seconds_of_a_decision(planner, observations, samples):
        return 0.02 * len(observations) * samples / 4

    monkeypatch.setattr("repolicy.planning.asking.decision_seconds", seconds_of_a_decision)
    options = [*FEW, "--episodes", "8", "--steps", "2"]
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *options, "--out", str(tmp_path / "plan"), "--json"])
    assert json.loads(capsys.readouterr().out)["decisions_a_second"] == 50.0


def test_a_pace_that_leaves_no_time_for_the_horizon_that_was_named_is_refused(tmp_path, capsys, monkeypatch):
    def seconds_of_a_decision(planner, observations, samples):
        return 1e-4 * samples * planner.search.horizon

    monkeypatch.setattr("repolicy.planning.asking.decision_seconds", seconds_of_a_decision)
    words = ["plan", "halfcheetah", "--addon", "hind_leg=10", "--omega", "0.1", "--states", "0", "--steps", "2"]
    said = failed(capsys, *words, "--hz", "500", "--horizon", "4", "--out", str(tmp_path / "plan"))
    assert "500 decisions a second leave no time for 4 steps: name a shorter --horizon, or none" in said
    assert not list(tmp_path.iterdir())
    for horizon in ([], ["--horizon", "2"]):
        main([*words, "--hz", "500", *horizon, "--out", str(tmp_path / f"plan{len(horizon)}"), "--json"])
        assert "8 samples of 2 steps fit" in capsys.readouterr().err


def test_its_folder_is_the_same_planner_again(folder):
    made = repolicy.plan("halfcheetah", "hind_leg=10", omega=0.1, states=0.0, search=Search(samples=4, horizon=3))
    assert repr(made).startswith("Planner in HalfCheetah-v4 for hind_leg=10: ")  # without its networks' numbers
    again = open_agent(folder, Options(), trust=False)
    observations = np.random.default_rng(0).normal(0, 0.1, (2, 17)).astype(np.float32)
    assert np.array_equal(again.agent.act(observations), made.act(observations))
    assert again.prior is again.agent.prior


def test_evaluate_takes_the_folder(folder, capsys):
    found = repolicy.evaluate(folder, episodes=1, longest=20)
    assert found.addon is not None
    assert found.env == "HalfCheetah-v4"
    assert "leave out --std" in failed(capsys, "evaluate", str(folder), "--std", "0.2")


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_film_shows_the_planner(folder, monkeypatch):
    """Here a picture is where the robot stands, and nothing is drawn."""
    monkeypatch.setattr(filming, "use_tracking_camera", lambda _: False)
    monkeypatch.setattr(filming, "_picture", lambda env, _: env.unwrapped.data.qpos.copy())
    pictures, _ = filming.render_pictures(Shot(str(folder), "HalfCheetah-v4", seconds=0.2))
    agent, envs = open_agent(folder, Options(), trust=False).agent, GymnasiumEnvs("HalfCheetah-v4", 1, 0)
    seen, act = envs.reset(), agent.actor(1, 1)
    for picture in pictures:
        assert np.array_equal(picture, envs.each[0].unwrapped.data.qpos)
        seen = envs.step(agent.to_environment(act(seen))).observations
    assert len(pictures) == 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "upgrade repolicy"),
        ({"omega": "much"}, "not a number"),
        (
            {"request": {"env": "HalfCheetah-v4", "addons": ["evil.py:wish"]}},
            r"names code .*, add --trust \(in Python, trust=True\)$",
        ),
        ({"search": {"samples": 4}}, "has no 'horizon'"),
        ({"prior": "0" * 64}, r"prior\.safetensors is not the prior of this planner"),
    ],
)
def test_a_folder_that_cannot_be_is_one_sentence(folder, tmp_path, change, why):
    other = tmp_path / "other"
    other.mkdir()
    (other / "plan.json").write_text(json.dumps(json.loads((folder / "plan.json").read_text()) | change))
    (other / "prior.safetensors").write_bytes((folder / "prior.safetensors").read_bytes())
    with pytest.raises(RepolicyError, match=why):
        open_agent(other, Options(), trust=False)


def test_a_wish_of_this_session_alone_is_not_kept(tmp_path):
    def wish(observations, actions, next_observations, info):
        return constant(observations, actions, next_observations, info)

    made = plan("halfcheetah", wish, omega=0.1, states=0.0, search=Search(samples=4, horizon=3))
    with pytest.raises(RepolicyError, match="lives in this Python session alone"):
        save_planner(made, tmp_path / "plan")


def test_more_than_memory_holds_is_one_sentence(tmp_path, capsys):
    words = ["halfcheetah", "--addon", "hind_leg", *FEW, "--samples", "9999999999999", "--out", str(tmp_path / "plan")]
    assert "not enough memory (Unable to allocate" in failed(capsys, "plan", *words, codes=(1,))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["halfcheetah"], "needs a wish"),
        (["halfcheetah", "--addon", "hind_leg", "--samples", "1"], "samples is 1"),
        (["zoo:ppo-cartpole-not", "--addon", "hind_leg"], "no file"),
        (["hopper", "--addon", "height", "--env", "CartPole-v1"], "mean something else"),
        (["hopper", "--addon", "height", "--env", "Hopper-v4?frames=3"], "frames"),
        (["hopper", "--addon", "height", "--live", "--distil", "64"], "take --distil afterwards"),
        (["hopper", "--addon", "height", "--omega", "nan", "--states", "0"], "omega is nan"),
        (["hopper", "--addon", "height", "--omega", "1", "--states", "-1"], "states is -1.0"),
        (["hopper", "--addon", "height", "--steps", "0"], "--steps is 0"),
        (["hopper", "--addon", "height", "--omega", "1", "--episodes", "0"], "--episodes is 0"),
        (["hopper", "--addon", "height", "--omega", "1", "--samples", "0"], "--samples is 0"),
        (["hopper", "--addon", "height", "--hz", "5", "--samples", "9"], "leave out --samples"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_leaves_no_folder(words, why, tmp_path, capsys):
    assert why in failed(capsys, "plan", *words, "--out", str(tmp_path / "new" / "plan"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", ["prior.safetensors", "run.json"])
def test_a_run_is_not_written_over(there, tmp_path, capsys):
    (tmp_path / there).write_text("a run's")
    words = ["halfcheetah", "--addon", "hind_leg", "--omega", "1", "--states", "0", "--steps", "1", "--samples", "2"]
    assert "is there already, and of no planner" in failed(capsys, "plan", *words, "--out", tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "a run's")]


@pytest.mark.parametrize("other", [["--addon", "hind_leg=5"], ["--addon", "hind_leg=10", "--env", "HalfCheetah-v5"]])
def test_a_planner_of_another_wish_or_environment_is_not_written_over(other, folder, monkeypatch, capsys):
    monkeypatch.setattr("repolicy.planning.asking.plan", lambda *_, **__: pytest.fail("it planned"))
    error = failed(capsys, "plan", "halfcheetah", *other, *FEW, "--out", folder)
    assert f"{folder} is there already, for hind_leg=10 in HalfCheetah-v4: choose another --out" in error


def test_a_planner_of_a_later_format_is_not_written_over(folder, tmp_path, capsys):
    later = json.dumps(json.loads((folder / "plan.json").read_text()) | {"format": 2})
    (tmp_path / "plan.json").write_text(later)
    words = ["halfcheetah", "--addon", "hind_leg=10", *FEW, "--out", tmp_path]
    assert "has format 2" in failed(capsys, "plan", *words)
    assert (tmp_path / "plan.json").read_text() == later


def test_the_same_request_again_writes_over_its_planner(tmp_path):
    words = ["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--out", str(tmp_path)]
    for samples in (4, 5):
        main([*words, "--samples", str(samples)])
        assert json.loads((tmp_path / "plan.json").read_text())["search"]["samples"] == samples


@pytest.mark.parametrize(
    "words",
    [["report"], ["export", "--out", "plan.onnx"], ["dial"], ["ask"], ["takeover", "--keys", "terminal"],
     ["learn-wish", "--features", "next", "--omega", "1", "--alpha", "1"]],
)  # fmt: skip
def test_what_does_not_take_its_folder_says_what_does(folder, words, capsys):
    assert "is a planner's folder, which evaluate, compare and" in failed(capsys, words[0], folder, *words[1:])


def test_inspect_shows_what_it_was_made_with(folder, capsys):
    main(["inspect", str(folder), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["omega"], shown["search"]["samples"]) == ("planner", 0.1, 4)
    main(["inspect", str(folder)])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["ω′", "0.1"] in lines
    assert ["search", f"4 samples of {shown['search']['horizon']} steps"] in lines
    assert not any("{" in value for _, value in lines)


@pytest.mark.parametrize(("words", "value"), [(["--live", "--port", "0"], False), ([], None), (["--value"], True)])
def test_trials_for_the_page_choose_no_value_which_its_sliders_would_make_wrong(words, value, monkeypatch, tmp_path):
    asked = []

    def plan(*_, **options):
        asked.append(options["value"])
        raise KeyboardInterrupt

    monkeypatch.setattr("repolicy.planning.asking.plan", plan)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(["plan", "hopper", "--addon", "height", "--out", str(tmp_path / "plan"), *words])
    assert asked == [value]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--value"], "leave out --value"),
        (["--port", "65536"], "0 to 65535): choose another --port"),
        (["--port", "0", "--env", "Pendulum-v1"], "plan without --live"),  # no page draws it
    ],
)
def test_what_cannot_be_live_is_found_before_the_trials(words, why, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("repolicy.planning.asking.plan", lambda *_, **__: pytest.fail("it has begun"))
    live = ["plan", "hopper", "--addon", "height", "--live", "--out", tmp_path / "plan"]
    assert why in failed(capsys, *live, *words)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_live_session_names_its_folder_if_it_kept_one(keeps, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("repolicy.planning.live.show", lambda made, out, *_: keeps and save_planner(made, out))
    out = tmp_path / "plan"
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW[:-4], "--live", "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)["folder"] == (str(out) if keeps else None)


@pytest.mark.parametrize("weight", [{"omega": "auto"}, {"omega": (0.1, 0.3)}, {"states": "auto"}])
def test_a_weight_that_is_no_number_is_one_sentence(weight):
    with pytest.raises(UsageError, match="a planner takes a number"):
        plan("halfcheetah", "hind_leg=10", **{"omega": 0.1, "states": 0.0} | weight)


def test_what_envpool_alone_has_is_refused_before_any_trial_and_seen_by_the_part_that_fits():
    pytest.importorskip("envpool")

    def wish(observations, actions, next_observations, info):
        return -np.abs(next_observations[:, 0])

    with pytest.raises(UsageError, match=r"^CartpoleBalance-v1 is EnvPool's alone.*: add --learned"):
        plan(make_policy(PolicySpec(3, ActionSpace("continuous", (1,))), 0), wish, env="CartpoleBalance-v1")
