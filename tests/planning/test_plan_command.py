"""`repolicy plan`, and its folder in the hands of the other commands."""

import json

import numpy as np
import pytest
from linear_world import nothing

import repolicy
from repolicy.cli.main import main
from repolicy.errors import RepolicyError
from repolicy.planning.asking import planned
from repolicy.planning.keeping import keep
from repolicy.planning.planner import Search
from repolicy.priors.opening import acting
from repolicy.readers.reading import Options
from repolicy.report.movie import Shot, films

FEW = ["--omega", "0.1", "--states", "0", "--samples", "4", "--horizon", "3", "--episodes", "1", "--steps", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("plans") / "spare"
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--out", str(out), "--json"])
    return out


def test_it_says_what_it_did(tmp_path, capsys):
    main(["plan", "halfcheetah", "--addon", "hind_leg=10", *FEW, "--out", str(tmp_path / "plan"), "--json"])
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["planner"]["addon_reward"]["mean"] > told["prior"]["addon_reward"]["mean"]
    assert told["real_time"] == pytest.approx(0.05 * told["decisions_a_second"])
    assert 0.0 < told["effective_samples"] < 4.0
    assert "times real time" in captured.err


def test_its_folder_is_the_same_planner_again(folder):
    made = repolicy.plan("halfcheetah", "hind_leg=10", omega=0.1, states=0.0, search=Search(samples=4, horizon=3))
    again = acting(folder, Options(), trust=False)
    observations = np.random.default_rng(0).normal(0, 0.1, (2, 17)).astype(np.float32)
    assert np.array_equal(again.agent.act(observations), made.act(observations))


def test_evaluate_takes_the_folder(folder, capsys):
    found = repolicy.evaluate(folder, episodes=1, longest=20)
    assert found.addon is not None
    assert found.env == "HalfCheetah-v4"
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder), "--std", "0.2"])
    assert "leave out --std" in capsys.readouterr().err


@pytest.mark.usefixtures("_renderer")
def test_a_film_shows_the_planner(folder):
    [film] = films([Shot(str(folder), "HalfCheetah-v4", seconds=0.2, width=64, height=64)])
    assert film[4:8] == b"ftyp"  # an mp4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "upgrade repolicy"),
        ({"omega": "much"}, "not a number"),
        ({"request": {"env": "HalfCheetah-v4", "addons": ["evil.py:wish"]}}, "names code"),
        ({"search": {"samples": 4}}, "has no 'horizon'"),
    ],
)
def test_a_folder_that_cannot_be_is_one_sentence(folder, tmp_path, change, why):
    other = tmp_path / "other"
    other.mkdir()
    values = json.loads((folder / "plan.json").read_text())
    (other / "plan.json").write_text(json.dumps(values | change))
    (other / "prior.safetensors").write_bytes((folder / "prior.safetensors").read_bytes())
    with pytest.raises(RepolicyError, match=why):
        acting(other, Options(), trust=False)


def test_a_wish_of_this_session_alone_is_not_kept(tmp_path):
    def wish(observations, actions, next_observations, info):
        return nothing(observations, actions, next_observations, info)

    made = planned("halfcheetah", wish, None, 0.1, 0.0, False, Search(samples=4, horizon=3))
    with pytest.raises(RepolicyError, match="lives in this Python session alone"):
        keep(made, tmp_path / "plan")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["halfcheetah"], "needs a wish"),
        (["halfcheetah", "--addon", "hind_leg", "--samples", "1"], "samples is 1"),
        (["zoo:ppo-cartpole-not", "--addon", "hind_leg"], "no file"),
        (["hopper", "--addon", "height", "--env", "CartPole-v1"], "mean something else"),
        (["hopper", "--addon", "height", "--live", "--distil", "64"], "take --distil afterwards"),
        (["hopper", "--addon", "height", "--distil", "0"], "too few to learn from"),
        (["hopper", "--addon", "height", "--omega", "nan", "--states", "0"], "omega is nan"),
        (["hopper", "--addon", "height", "--omega", "1", "--states", "-1"], "states is -1.0"),
        (["hopper", "--addon", "height", "--steps", "0"], "--steps is 0"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_leaves_no_folder(words, why, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["plan", *words, "--out", str(tmp_path / "new" / "plan")])
    error = capsys.readouterr().err
    assert why in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_wish_of_info_that_the_model_does_not_rebuild_is_one_sentence():
    def cheap(observations, actions, next_observations, info):
        return info["reward_ctrl"]

    planner = repolicy.plan("halfcheetah", cheap, omega=0.1, states=0.0, search=Search(samples=4, horizon=3))
    with pytest.raises(RepolicyError, match="'reward_ctrl'.*x_velocity, and that is all of it that a planner's model"):
        planner.act(np.zeros(17, np.float32))


@pytest.mark.parametrize("words", [["report"], ["export", "--out", "plan.onnx"], ["dial"]])
def test_what_does_not_take_its_folder_says_what_does(folder, words, capsys):
    with pytest.raises(SystemExit):
        main([words[0], str(folder), *words[1:]])
    assert "is a planner's folder, which evaluate, compare and render take" in capsys.readouterr().err


def test_inspect_shows_what_it_was_made_with(folder, capsys):
    main(["inspect", str(folder), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["omega"], shown["search"]["samples"]) == ("planner", 0.1, 4)
