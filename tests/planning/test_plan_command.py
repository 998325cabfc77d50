"""`repolicy plan`: its folder in the hands of the other commands, and the page on which a planner acts."""

import http.client
import io
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.wrappers import TransformObservation
from tiny_envs import constant
from typed_commands import failed

import repolicy
from repolicy.cli.main import main
from repolicy.envs.batches import GymnasiumEnvs
from repolicy.errors import RepolicyError, UsageError
from repolicy.planning.asking import plan
from repolicy.planning.keeping import save_planner
from repolicy.planning.live import LOCALHOST, LiveSession, parts, server, show
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


@pytest.fixture
def session(tmp_path):
    return LiveSession(
        plan("halfcheetah", "hind_leg=10", omega=0.1, states=0.0, search=Search(samples=4, horizon=2)), tmp_path
    )


@pytest.fixture
def port(session):
    with server(session, 0) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
        yield serving.server_address[1]
        serving.shutdown()
        if not session.is_over:
            session.end()


def asked(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(LOCALHOST, port, timeout=60)
    connection.request(method, path, body, headers)
    return connection.getresponse()


def test_a_slider_acts_on_the_next_step_and_what_is_kept_is_the_planner_with_it(session, port):
    steps = asked(port, "GET", "/steps")
    first = json.loads(steps.readline())
    assert (first["omega"], first["samples"]) == (0.1, 4)
    assert asked(port, "POST", "/set", json.dumps({"omega": 0.5, "samples": 6, "weight of hind_leg": 20})).status == 200
    seen = [json.loads(steps.readline()) for _ in range(3)]
    assert seen[-1]["omega"] == 0.5
    assert np.ptp([step["parts"][0][0] for step in [first, *seen]]) > 0.0
    planner = open_agent(asked(port, "POST", "/keep").read().decode(), Options(), trust=False).agent
    assert (planner.score.omega, planner.search.samples, planner.score.addon.weights) == (0.5, 6, (20.0,))
    assert asked(port, "POST", "/set", '{"weight of hind_leg": 1000}').status == 200
    assert session.settings["weight of hind_leg"] == 50.0
    seen = [json.loads(steps.readline()) for _ in range(3)]
    assert seen[-1]["ends"]["weight of hind_leg"] == [0.0, 50.0]  # also for who opens the page now


def test_an_environment_that_fails_is_one_sentence(session, monkeypatch):
    monkeypatch.setattr(session._envs.each[0], "step", lambda action: 1 / 0)
    with pytest.raises(RepolicyError, match="^environment 'HalfCheetah-v4' failed: ZeroDivisionError"):
        session.step()


def test_observations_in_parts_are_planned_from_live(session, tmp_path):
    def in_parts():
        env = gymnasium.make("HalfCheetah-v4")
        parts = gymnasium.spaces.Dict(left=gymnasium.spaces.Box(-9, 9, (8,)), right=gymnasium.spaces.Box(-9, 9, (9,)))
        return TransformObservation(env, lambda seen: {"right": seen[8:], "left": seen[:8]}, parts)

    same = LiveSession(
        plan("halfcheetah", "hind_leg=10", env=in_parts, omega=0.1, states=0.0, search=session.planner.search), tmp_path
    )
    for _ in range(3):
        assert np.array(same.step()["parts"]) == pytest.approx(np.array(session.step()["parts"]), abs=1e-3)


def test_the_plan_begins_anew_with_each_episode(session, tmp_path, monkeypatch):
    short = plan(
        "halfcheetah", "hind_leg=10", env="HalfCheetah-v4?max_episode_steps=2", omega=0.1, states=0.0,
        search=session.planner.search,
    )  # fmt: skip
    live, ended = LiveSession(short, tmp_path), []
    monkeypatch.setattr(live._actor, "reset_memory", lambda mask: ended.extend(mask.tolist()))
    for _ in range(5):
        live.step()
    assert ended == [False, True, False, True, False]


def test_two_clicks_at_once_keep_the_same_planner(port, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: time.sleep(0.05))  # so that the second begins while the first writes
    with ThreadPoolExecutor(2) as pool:
        answers = [*pool.map(lambda _: asked(port, "POST", "/keep").status, range(2))]
    assert answers == [200, 200]


def test_the_robot_s_limbs_are_where_its_bodies_are(session):
    env = session._envs.each[0].unwrapped
    shown = parts(env)
    assert len(shown) == 8  # HalfCheetah's torso, head, and two legs of three
    for limb, geom in zip(shown, np.flatnonzero(env.model.geom_bodyid), strict=True):
        middle = np.add(limb[:3], limb[3:6]) / 2
        assert middle == pytest.approx(env.data.geom_xpos[geom], abs=1e-3)
        length = np.linalg.norm(np.subtract(limb[:3], limb[3:6]))
        assert length == pytest.approx(2.0 * env.model.geom_size[geom, 1], abs=1e-3)


def test_the_first_path_is_where_the_prior_would_go(session):
    env, prior = session._envs.each[0].unwrapped, session.planner.prior
    began = env.data.qpos.copy(), env.data.qvel.copy()
    seen, at = session._observations[0], env.data.xpos[1].copy()
    gone = []
    for _ in range(2):
        seen = env.step(prior.predict(seen)[0])[0]
        mujoco.mj_kinematics(env.model, env.data)
        gone.append(env.data.xpos[1] - at)
    env.set_state(*began)
    shown = session.step()
    assert np.shape(shown["paths"]) == (4, 2, 3)
    assert shown["paths"][0] == pytest.approx(np.array(gone), abs=2e-3)
    assert np.ptp(shown["paths"], axis=0).max() > 0.01
    assert sum(shown["weights"]) == pytest.approx(1.0, abs=1e-2)
    assert shown["effective"] == pytest.approx(1 / np.square(shown["weights"]).sum(), rel=1e-2)


def test_others_are_refused(port, session):
    assert asked(port, "GET", "/", Host="evil.example").status == 403
    assert asked(port, "POST", "/keep", Origin="http://evil.example").status == 403
    assert asked(port, "GET", "/../secret").status == 404
    for body in ('{"port": 1}', '{"omega": "much"}', "[]", "no JSON"):
        assert asked(port, "POST", "/set", body).status == 400
    assert session.settings["omega"] == 0.1
    for wanted in ({"omega": float("nan")}, {"states": 1.0}):  # which has no price here
        with pytest.raises(UsageError, match="no slider"):
            session.set(wanted)


def test_a_port_that_is_taken_is_one_sentence(session):
    with socket.socket() as taken:
        taken.bind((LOCALHOST, 0))
        taken.listen()
        with pytest.raises(RepolicyError, match="choose another --port"):
            server(session, taken.getsockname()[1])


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


def test_no_thread_acts_when_python_ends(port, session, monkeypatch, tmp_path):
    answer = asked(port, "GET", "/steps")
    answer.readline()

    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("repolicy.planning.live.LiveSession", lambda *_: session)
    show(session.planner, tmp_path, 0, stopped)
    assert session.lock.locked()
    assert [stream.is_alive() for stream in session.streams] == [False]


def test_in_a_browser_the_robot_moves_a_slider_acts_and_the_button_keeps(port, session, browser, tmp_path):
    from selenium.webdriver.support.wait import WebDriverWait

    def wait(condition):
        WebDriverWait(browser, 60, 0.05).until(lambda _: condition())

    browser.get(f"http://{LOCALHOST}:{port}/")
    told = browser.find_element("id", "told")
    wait(lambda: "decisions a second" in told.text)
    browser.execute_script(
        "const slider = document.getElementById('omega'); slider.value = 0.5; slider.dispatchEvent(new Event('input'))"
    )
    wait(lambda: session.settings["omega"] == pytest.approx(10**0.5))
    browser.execute_script(
        "const slider = document.getElementById('weight of hind_leg');"
        "slider.value = 25; slider.dispatchEvent(new Event('input'))"
    )
    wait(lambda: session.settings["weight of hind_leg"] == 25.0)
    browser.refresh()
    wait(lambda: browser.find_elements("id", "weight of hind_leg"))
    assert browser.find_element("id", "weight of hind_leg").get_attribute("max") == "50"
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.find_element("id", "keep").click()
    wait(lambda: "kept in" in browser.find_element("id", "kept").text)
    assert json.loads((tmp_path / "plan.json").read_text())["omega"] == pytest.approx(10**0.5)
    drawn = "return document.getElementById('stage').getContext('2d').getImageData(0, 0, 960, 339).data.some(n => n)"
    assert browser.execute_script(drawn)
    assert not [line for line in browser.get_log("browser") if "favicon" not in line["message"]]
    browser.execute_script("window.fetch = () => Promise.reject(TypeError())")  # as after Ctrl-C
    browser.find_element("id", "keep").click()
    wait(lambda: browser.find_element("id", "kept").text == "not kept: The command has ended.")
