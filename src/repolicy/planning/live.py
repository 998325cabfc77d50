"""A page on this machine where a planner acts and its weights are sliders, by the standard library alone.

The browser draws the robot from its capsules and spheres, so nothing is rendered here and no display is needed.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import Transitions, action_space, native, one_env, together
from repolicy.errors import RepolicyError, UsageError
from repolicy.planning.asking import Planned
from repolicy.planning.keeping import keep
from repolicy.planning.sampling import effective
from repolicy.planning.simulators import Model, Simulated
from repolicy.runs import one_thread

HERE = "127.0.0.1"  # and nowhere else
SMOOTH = 0.98  # of the rewards that are shown
CAPSULE = 3  # mjGEOM_CAPSULE; whatever else there is, is drawn as a ball
WISH = "weight of "  # before a wish, in the name of its slider, which goes to so many times its weight
FURTHEST = 5.0
MOST_PATHS = 16  # of candidates, that are drawn
SLIDERS = {"omega": (0.001, 10.0), "states": (0.0, 10.0), "samples": (2, 512), "horizon": (1, 32)}


class Traced:
    """A planner's model, which notes where the trunk goes in the first candidates."""

    def __init__(self, model: Model) -> None:
        self._model, self._began, self._went = model, np.zeros(3), list[np.ndarray]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def states(self, observations: np.ndarray) -> np.ndarray:
        states = self._model.states(observations)
        self._began, self._went = self._model.trunks(states), []
        return states

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        after = self._model.step(states, actions)
        self._went.append(self._model.trunks(after.states[:MOST_PATHS]) - self._began)
        return after

    @property
    def paths(self) -> list[list[list[float]]]:
        """How far each of these candidates has gone after each of its steps."""
        return np.stack(self._went, axis=1).round(3).tolist()


def with_robot(name: str) -> Any:
    """Return one such environment, or raise where a page could not draw it."""
    env = one_env(name)
    if not hasattr(env.unwrapped, "model"):
        raise UsageError(f"{name} has no MuJoCo robot, which is what the page draws: plan without --live")
    return env


class Stage:
    """The environment in which a planner acts, what a page shows of it, and what a page may set."""

    def __init__(self, planner: Planned, out: Path) -> None:
        self.planner, self.out, self.lock = planner, out, threading.Lock()
        self._env: Any = with_robot(planner.env)
        self._space = action_space(self._env.action_space, planner.env)
        self._seen, _ = self._env.reset(seed=planner.search.seed)
        self.each = [self._env]
        planner.watch(self)
        self._begin()
        self._means = dict[str, float]()
        self._asked = addon = planner.score.addon  # whose weights stay, so that what is shown can be compared
        self._wishes = [f"{WISH}{title}" for title in addon.titles]
        ends = (FURTHEST * (weight or 1.0) for weight in addon.weights)
        self._sliders = SLIDERS | {
            wish: (min(0.0, end), max(0.0, end)) for wish, end in zip(self._wishes, ends, strict=True)
        }

    def _begin(self) -> None:
        """Plan with the settings as they are."""
        self._model: Any = Traced(self.planner.model)
        self._planning: Any = replace(self.planner, model=self._model).actor(1, 1)

    @property
    def settings(self) -> dict[str, float]:
        planner = self.planner
        weights = {"omega": planner.score.omega}
        if planner.score.density is not None:
            weights["states"] = planner.score.states
        weights |= dict(zip(self._wishes, planner.score.addon.weights, strict=True))
        return weights | {"samples": planner.search.samples, "horizon": planner.search.horizon}

    def set(self, wanted: dict[str, Any]) -> None:
        """Plan on with other settings; each stays within its slider."""
        with self.lock:
            given, planner = self.settings, self.planner
            for name, value in wanted.items():
                if name not in given or not isinstance(value, int | float) or not np.isfinite(value):
                    raise UsageError(f"{name!r} is no slider, or {value!r} no number")
                given[name] = min(max(value, self._sliders[name][0]), self._sliders[name][1])
            addon = replace(planner.score.addon, weights=tuple(given[wish] for wish in self._wishes))
            score = replace(planner.score, omega=given["omega"], states=given.get("states", 0.0), addon=addon)
            search = replace(planner.search, samples=int(given["samples"]), horizon=int(given["horizon"]))
            asked = (f"{name}={weight!r}" for name, weight in zip(addon.names, addon.weights, strict=True))
            self.planner = replace(planner, score=score, search=search, addons=tuple(asked))
            self._begin()
            self._means = {}

    def keep(self) -> str:
        """Write the planner's folder with the settings as they are."""
        keep(self.planner, self.out)
        return str(self.out)

    def step(self) -> dict[str, Any]:
        """Act once, and return what there is to see."""
        with self.lock:
            began = time.perf_counter()
            before = np.asarray(self._seen, np.float32).ravel()[None]
            sent = self.planner.to_environment(self._planning(before))
            own = native(sent, self._space, self._env.action_space)[0]
            took = time.perf_counter() - began
            weights = self._planning.found.weights
            seen = {
                "paths": self._model.paths,
                "weights": weights[0, :MOST_PATHS].round(3).tolist(),
                "took": took,
                "effective": float(effective(weights)[0]),
                "parts": parts(self._env.unwrapped),
            }
            self._seen, reward, terminated, truncated, told = self._env.step(own)
            after = np.asarray(self._seen, np.float32).ravel()[None]
            wish = float(self._asked.reward(Transitions(before, sent, after, together([told])))[0])
            for name, value in (("old", float(reward)), ("wish", wish)):
                mean = self._means.get(name, value)
                self._means[name] = mean + (1.0 - SMOOTH) * (value - mean)
            if terminated or truncated:
                self._seen, _ = self._env.reset()
                self._planning.begin_anew(np.array([True]))
            return seen | self._means | self.settings | {"ends": self._sliders}


def parts(env: Any) -> list[list[float]]:
    """Return the two ends and the radius of each of a robot's limbs, beside its trunk: what a page draws."""
    model, data = env.model, env.data
    shown = []
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] == 0:
            continue  # the ground
        size, long = model.geom_size[geom], model.geom_type[geom] == CAPSULE
        along = data.geom_xmat[geom].reshape(3, 3)[:, 2] * (size[1] if long else 0.0)
        ends = [data.geom_xpos[geom] + sign * along for sign in (-1.0, 1.0)]
        shown.append([*(float(f"{number:.4g}") for end in ends for number in end), float(f"{size[0]:.3g}")])
    return shown


class Handler(BaseHTTPRequestHandler):
    """Answers the page, and nobody who calls this machine by another name."""

    stage: Stage

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(200, files("repolicy.planning").joinpath("live.html").read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/steps":
            self._steps()
        else:
            self._answer(404, b"there is nothing here")

    def do_POST(self) -> None:
        try:
            said = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 10_000))
            if self.path == "/set":
                self.stage.set(json.loads(said))
            told = self.stage.keep() if self.path == "/keep" else ""
        except (RepolicyError, ValueError, AttributeError) as error:
            self._answer(400, str(error).encode())
        else:
            self._answer(200, told.encode())

    def parse_request(self) -> bool:
        """Refuse a page of others, which a browser would let call here by a name that leads to this machine."""
        if not super().parse_request():
            return False
        own = {f"{host}:{self.connection.getsockname()[1]}" for host in (HERE, "localhost")}
        origin = self.headers.get("Origin", "").removeprefix("http://")
        if self.headers.get("Host") in own and (not origin or origin in own):
            return True
        self._answer(403, b"this page is for this machine alone")
        return False

    def _steps(self) -> None:
        """Act for as long as the page is open, in real time where that is possible: a line of JSON a step."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        try:
            while True:
                due = time.perf_counter() + self.stage.planner.model.seconds
                self.wfile.write(json.dumps(self.stage.step()).encode() + b"\n")
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
        """Say nothing of each request."""


def server(stage: Stage | None, port: int) -> ThreadingHTTPServer:
    """Return what serves the page, on this machine alone. Port 0 is any that is free."""
    try:
        return ThreadingHTTPServer((HERE, port), type("Handler", (Handler,), {"stage": stage}))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", "it must be 0 to 65535")
        raise RepolicyError(f"port {port} cannot be used ({why}): choose another --port") from None


def show(planner: Planned, out: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C."""
    stage = Stage(planner, out)
    with one_thread(), server(stage, port) as serving, contextlib.suppress(KeyboardInterrupt):
        serving.daemon_threads = True
        say(f"open http://{HERE}:{serving.server_address[1]} in a browser on this machine; Ctrl-C ends it")
        serving.serve_forever()
    stage.lock.acquire()  # for good: Python can crash if it ends while a thread is in a step
