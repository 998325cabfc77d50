"""The page on which a planner acts."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.wrappers import TransformObservation

from repolicy.errors import RepolicyError, UsageError
from repolicy.planning.asking import plan
from repolicy.planning.live import LOCALHOST, LiveSession, parts, server, show
from repolicy.planning.planner import Search
from repolicy.priors.opening import open_agent
from repolicy.readers.reading import Options


def cheetah(**options):
    usual = {"omega": 0.1, "states": 0.0, "search": Search(samples=4, horizon=2)}
    return plan("halfcheetah", "hind_leg=10", **usual | options)


@pytest.fixture
def session(tmp_path):
    return LiveSession(cheetah(), tmp_path)


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


def steps_until(steps, is_wanted):
    """The steps up to the one that is wanted: on a busy machine others are on their way before it."""
    seen = [json.loads(steps.readline())]
    while not is_wanted(seen[-1]):
        assert len(seen) < 40
        seen.append(json.loads(steps.readline()))
    return seen


def test_a_slider_acts_on_the_next_step_and_what_is_kept_is_the_planner_with_it(session, port):
    steps = asked(port, "GET", "/steps")
    first = json.loads(steps.readline())
    assert (first["omega"], first["samples"]) == (0.1, 4)
    assert asked(port, "POST", "/set", json.dumps({"omega": 0.5, "samples": 6, "weight of hind_leg": 20})).status == 200
    seen = steps_until(steps, lambda step: step["omega"] == 0.5)
    assert np.ptp([step["parts"][0][0] for step in [first, *seen]]) > 0.0
    planner = open_agent(asked(port, "POST", "/keep").read().decode(), Options(), trust=False).agent
    assert (planner.score.omega, planner.search.samples, planner.score.addon.weights) == (0.5, 6, (20.0,))
    assert asked(port, "POST", "/set", '{"weight of hind_leg": 1000}').status == 200
    assert session.settings["weight of hind_leg"] == 50.0
    steps_until(steps, lambda step: step["ends"]["weight of hind_leg"] == [0.0, 50.0])  # also for who opens it now


def test_a_slider_reaches_the_weights_that_it_began_with(tmp_path, monkeypatch):
    """Where rewards are large, these are, too."""
    monkeypatch.setattr("repolicy.planning.value.BLOCKS", 3)
    session = LiveSession(cheetah(omega=50.0, states=0.002, search=Search(samples=600, horizon=40)), tmp_path)
    session.set(session.settings)
    assert session.settings == {
        "omega": 50.0, "states": 0.002, "samples": 600, "horizon": 40, "weight of hind_leg": 10.0,
    }  # fmt: skip
    session.set({"omega": 60.0, "states": 0.001})
    assert (session.settings["omega"], session.settings["states"]) == (60.0, 0.001)
    session.set({"omega": 1e9, "states": 0.0})
    assert (session.settings["omega"], session.settings["states"]) == pytest.approx((5_000.0, 0.00002))


def test_a_model_that_does_not_know_how_long_a_step_lasts_is_shown_in_real_time(session, port):
    session.planner = replace(session.planner, model=SimpleNamespace(seconds=0.0))
    steps = asked(port, "GET", "/steps")
    steps.readline()
    began = time.perf_counter()
    for _ in range(5):
        steps.readline()
    assert time.perf_counter() - began > 4 * 0.05


def test_an_environment_that_fails_is_one_sentence(session, monkeypatch):
    monkeypatch.setattr(session._envs.each[0], "step", lambda action: 1 / 0)
    with pytest.raises(RepolicyError, match="^environment 'HalfCheetah-v4' failed: ZeroDivisionError"):
        session.step()


def test_observations_in_parts_are_planned_from_live(session, tmp_path):
    def in_parts():
        env = gymnasium.make("HalfCheetah-v4")
        parts = gymnasium.spaces.Dict(left=gymnasium.spaces.Box(-9, 9, (8,)), right=gymnasium.spaces.Box(-9, 9, (9,)))
        return TransformObservation(env, lambda seen: {"right": seen[8:], "left": seen[:8]}, parts)

    same = LiveSession(cheetah(env=in_parts), tmp_path)
    for _ in range(3):
        assert np.array(same.step()["parts"]) == pytest.approx(np.array(session.step()["parts"]), abs=1e-3)


def test_the_plan_begins_anew_with_each_episode(tmp_path, monkeypatch):
    live, ended = LiveSession(cheetah(env="HalfCheetah-v4?max_episode_steps=2"), tmp_path), []

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
