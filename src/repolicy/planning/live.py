"""A local web page that shows a planner acting, with sliders for its weights. It needs only the standard library.

The browser draws the robot from its capsules and spheres, so Python renders nothing and needs no display.
"""

import contextlib
import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.addons import Addon
from repolicy.envs import Transitions, make_envs, make_one_env
from repolicy.errors import RepolicyError, UsageError
from repolicy.planning.asking import Planned
from repolicy.planning.keeping import save_planner
from repolicy.planning.planner import effective
from repolicy.planning.simulators import Model, Simulated
from repolicy.policies import one_thread
from repolicy.text import Say

LOCALHOST = "127.0.0.1"
SMOOTHING = 0.98  # of the running means of rewards
CAPSULE = 3  # mjGEOM_CAPSULE; other shapes are drawn as balls
WISH = "weight of "  # prefix of the names of the wishes' sliders
MAX_FACTOR = 5.0  # a wish's slider goes up to so many times its weight
PATIENCE = 2.0  # seconds in which a page must have read what was sent, when the session ends
MAX_PATHS = 16  # candidates whose paths are drawn
MAX_RATIO = 100.0  # a slider of omega or states goes from so many times less to so many times more than at the start
SAMPLES, HORIZON = 512, 32  # where these sliders end at least


class TracedModel:
    """A planner's model that records the trunk's path in the first candidates."""

    def __init__(self, model: Model) -> None:
        self._model, self._start, self._offsets = model, np.zeros(3), list[np.ndarray]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def states(self, observations: np.ndarray) -> np.ndarray:
        states = self._model.states(observations)
        self._start, self._offsets = self._model.trunks(states), []
        return states

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        after = self._model.step(states, actions)
        self._offsets.append(self._model.trunks(after.states[:MAX_PATHS]) - self._start)
        return after

    @property
    def paths(self) -> list[list[list[float]]]:
        """The trunk's offsets `[candidates, steps, 3]` from where the plan begins."""
        return np.stack(self._offsets, axis=1).round(3).tolist()


def check_robot(name: str) -> None:
    """Raise UsageError if an environment has no MuJoCo robot that the page can draw."""
    if not hasattr(make_one_env(name).unwrapped, "model"):
        raise UsageError(f"{name} has no MuJoCo robot, which is what the page draws: plan without --live")


class LiveSession:
    """A planner at work in one environment, with the values that the page shows and the settings that it may change."""

    def __init__(self, planner: Planned, out: Path) -> None:
        self.planner, self.out, self.lock = planner, out, threading.Lock()
        self.is_over, self.streams = False, list[threading.Thread]()  # the threads that act for an open page
        self._envs: Any = make_envs(planner.env, 1, planner.search.seed, "gymnasium")
        self._observations = self._envs.reset()
        planner.watch(self._envs)
        self._begin()
        self._means = dict[str, float]()
        # The wish is shown with its first weights, so that values before and after a change can be compared.
        self._shown_addon = addon = planner.score.addon
        self._wishes = [f"{WISH}{title}" for title in addon.titles]
        ends = (MAX_FACTOR * (weight or 1.0) for weight in addon.weights)
        self._sliders = {wish: (min(0.0, end), max(0.0, end)) for wish, end in zip(self._wishes, ends, strict=True)}
        weights = {"omega": planner.score.omega, "states": planner.score.states}
        for name, weight in weights.items():
            middle = weight or 0.1
            self._sliders[name] = (middle / MAX_RATIO, middle * MAX_RATIO)
        self._sliders["samples"] = (2, max(SAMPLES, planner.search.samples))
        self._sliders["horizon"] = (1, max(HORIZON, planner.search.horizon))

    def _begin(self) -> None:
        """Begin to plan with the present settings."""
        self._model: Any = TracedModel(self.planner.model)
        self._actor: Any = replace(self.planner, model=self._model).actor(1, 1)

    @property
    def settings(self) -> dict[str, float]:
        planner = self.planner
        weights = {"omega": planner.score.omega}
        if planner.score.density is not None:
            weights["states"] = planner.score.states
        weights |= dict(zip(self._wishes, planner.score.addon.weights, strict=True))
        return weights | {"samples": planner.search.samples, "horizon": planner.search.horizon}

    @property
    def seconds(self) -> float:
        """How long a step lasts. A learned model does not know it, but the environment."""
        return self.planner.model.seconds or 1.0 / float(self._envs.steps_a_second)

    def set(self, changes: dict[str, Any]) -> None:
        """Change settings. Each value is clipped to the range of its slider."""
        with self.lock:
            settings, planner = self.settings, self.planner
            for name, value in changes.items():
                if name not in settings or not isinstance(value, int | float) or not np.isfinite(value):
                    raise UsageError(f"{name!r} is no slider, or {value!r} no number")
                settings[name] = min(max(value, self._sliders[name][0]), self._sliders[name][1])
            terms = zip(planner.score.addon.terms, self._wishes, strict=True)
            addon = Addon(tuple(replace(term, weight=settings[wish]) for term, wish in terms))
            score = replace(planner.score, omega=settings["omega"], states=settings.get("states", 0.0), addon=addon)
            search = replace(planner.search, samples=int(settings["samples"]), horizon=int(settings["horizon"]))
            addons = tuple(f"{term.name}={term.weight!r}" for term in addon.terms)
            self.planner = replace(planner, score=score, search=search, addons=addons)
            self._begin()
            self._means = {}

    def keep(self) -> str:
        """Write the planner's folder with the present settings, and return its path."""
        with self.lock:  # two requests at once would write into one temporary file
            save_planner(self.planner, self.out)
        return str(self.out)

    def end(self) -> None:
        """Wait until no thread acts any more, because Python can crash if it exits while one does."""
        self.is_over = True
        for stream in self.streams:
            stream.join(PATIENCE)
        self.lock.acquire()  # never released: where a page no longer reads, its thread stays out of the next step

    def step(self) -> dict[str, Any]:
        """Act once, and return the values that the page shows."""
        with self.lock:
            start = time.perf_counter()
            before = self._observations
            sent = self.planner.to_environment(self._actor(before))
            took = time.perf_counter() - start
            weights = self._actor.candidates.weights
            shown = {
                "paths": self._model.paths,
                "weights": weights[0, :MAX_PATHS].round(3).tolist(),
                "took": took,
                "effective": float(effective(weights)[0]),
                "parts": parts(self._envs.each[0].unwrapped),
            }
            step = self._envs.step(sent)
            wish = float(self._shown_addon.reward(Transitions(before, sent, step.final, step.info))[0])
            for name, value in (("old", float(step.rewards[0])), ("wish", wish)):
                mean = self._means.get(name, value)
                self._means[name] = mean + (1.0 - SMOOTHING) * (value - mean)
            self._actor.reset_memory(step.terminated | step.truncated)
            self._observations = step.observations
            return shown | self._means | self.settings | {"ends": self._sliders}


def parts(env: Any) -> list[list[float]]:
    """Return the two end points and the radius of each of a robot's geoms, for the page to draw."""
    model, data = env.model, env.data
    rows = []
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] == 0:
            continue  # the ground
        size, long = model.geom_size[geom], model.geom_type[geom] == CAPSULE
        along = data.geom_xmat[geom].reshape(3, 3)[:, 2] * (size[1] if long else 0.0)
        ends = [data.geom_xpos[geom] + sign * along for sign in (-1.0, 1.0)]
        rows.append([*(float(f"{number:.4g}") for end in ends for number in end), float(f"{size[0]:.3g}")])
    return rows


class Handler(BaseHTTPRequestHandler):
    """Serves the page. It answers only requests that address this machine as localhost."""

    session: LiveSession

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(200, files("repolicy.planning").joinpath("live.html").read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/steps":
            self._steps()
        else:
            self._answer(404, b"there is nothing here")

    def do_POST(self) -> None:
        try:
            body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 10_000))
            if self.path == "/set":
                self.session.set(json.loads(body))
            answer = self.session.keep() if self.path == "/keep" else ""
        except (RepolicyError, ValueError, AttributeError) as error:
            self._answer(400, str(error).encode())
        else:
            self._answer(200, answer.encode())

    def parse_request(self) -> bool:
        """Refuse requests of other websites: a foreign host name may resolve to this machine (DNS rebinding)."""
        if not super().parse_request():
            return False
        own = {f"{host}:{self.connection.getsockname()[1]}" for host in (LOCALHOST, "localhost")}
        origin = self.headers.get("Origin", "").removeprefix("http://")
        if self.headers.get("Host") in own and (not origin or origin in own):
            return True
        self._answer(403, b"this page is for this machine alone")
        return False

    def _steps(self) -> None:
        """Act while the page is open, at most in real time, and send one line of JSON per step."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        self.session.streams.append(threading.current_thread())
        try:
            while not self.session.is_over:
                due = time.perf_counter() + self.session.seconds
                self.wfile.write(json.dumps(self.session.step()).encode() + b"\n")
                time.sleep(max(0.0, due - time.perf_counter()))
        except OSError:
            return  # the page was closed
        except RepolicyError as error:
            self.wfile.write(json.dumps({"failed": str(error)}).encode() + b"\n")

    def _answer(self, code: int, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def server(session: LiveSession | None, port: int) -> ThreadingHTTPServer:
    """Return the server of the page, bound to localhost. Port 0 stands for any free port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} cannot be used (it must be 0 to 65535): choose another --port")
    try:
        return ThreadingHTTPServer((LOCALHOST, port), type("Handler", (Handler,), {"session": session}))
    except OSError as error:
        raise RepolicyError(f"port {port} cannot be used ({error.strerror}): choose another --port") from None


def show(planner: Planned, out: Path, port: int, say: Say) -> None:
    """Serve the page until Ctrl-C."""
    session = LiveSession(planner, out)
    with one_thread(), server(session, port) as serving, contextlib.suppress(KeyboardInterrupt):
        serving.daemon_threads = True
        say(f"open http://{LOCALHOST}:{serving.server_address[1]} in a browser on this machine; Ctrl-C ends it")
        serving.serve_forever()
    session.end()
