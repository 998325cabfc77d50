"""Draw the films that `movie` asks for: the program of the process that renders."""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import (
    Backend,
    EnvPoolEnvs,
    Envs,
    GymnasiumEnvs,
    check_fit,
    env_maker,
    evaluation_backend,
    match_observation,
    parse_env_name,
    wrap_decoder,
)
from repolicy.errors import RepolicyError, UsageError, in_one_sentence
from repolicy.policies import ActionSpace, Agent, EnvAwareAgent, RecurrentActor
from repolicy.priors import open_agent
from repolicy.readers.reading import Options
from repolicy.report.movie import EXIT_NO_RENDERER, FRAMES_A_SECOND, PROGRESS_PREFIX, Shot, usual_pictures
from repolicy.runs import SECONDS_BETWEEN_LINES, format_duration

RENDER_HINT = "it needs a render() that returns a picture, and render_mode 'rgb_array' (docs/quickstart.md shows one)"
FLOOR_SCALE = 100.0  # floors are drawn so many times larger: a cheetah leaves its 40 m within seconds
QUALITIES = (28, 32, 36, 40, 44, 51)  # CRF of H.264, best quality first


def main() -> None:
    """Render every film that the folder's `shots.json` names, each into a file that is named by its index."""
    import torch

    torch.set_num_threads(1)
    folder, code = Path(sys.argv[1]), 0
    try:
        shots = [Shot(**values) for values in json.loads((folder / "shots.json").read_text())]
        on_picture = progress_printer(shots)
        for index, shot in enumerate(shots):
            pictures, rate = render_pictures(shot, on_picture)
            (folder / str(index)).write_bytes(encode_film(pictures, rate, shot.format, shot.max_bytes))
            gc.collect()  # a renderer that Python frees later would break the next film
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        code = error.exit_code
    except _NoRendererError:
        code = EXIT_NO_RENDERER
    sys.stderr.flush()
    os._exit(code)  # some drivers crash when Python exits normally


def progress_printer(shots: Sequence[Shot]) -> Callable[[], None]:
    """Return a function to call after each picture: it prints the share that is drawn and the time left."""
    total = sum(map(usual_pictures, shots))
    done, first_time, printed_time = 0, 0.0, 0.0

    def on_picture() -> None:
        nonlocal done, first_time, printed_time
        now, done = time.monotonic(), done + 1
        if done == 1:
            first_time = now  # the time before it was spent on making the environment
        elif now - printed_time >= SECONDS_BETWEEN_LINES:  # true for the second picture
            left = (now - first_time) / (done - 1) * max(total - done, 0)
            print(f"{PROGRESS_PREFIX}{min(done / total, 1):.0%} drawn, about {format_duration(left)} left", flush=True)
            printed_time = now

    return on_picture


class _NoRendererError(Exception):
    """The graphics library cannot be loaded, or gives no picture."""


def render_pictures(shot: Shot, on_picture: Callable[[], None] = lambda: None) -> tuple[list[np.ndarray], float]:
    """Return the pictures `[H, W, 3]` of a policy that takes its mean action, and the pictures per second."""
    opened = open_agent(shot.policy, Options(), shot.trust)
    policy = opened.prior if shot.role == "prior" else opened.agent
    assert policy is not None
    try:
        backend = "envpool" if shot.is_in_envpool else evaluation_backend(shot.env)
        env = match_observation(shot.env, policy, backend)
        filming = Filming(replace(shot, env=env), policy, backend, on_picture)
    except UsageError:
        if find_spec("mujoco"):  # which may not load its graphics library
            with _errors_mean_no_renderer():
                import mujoco  # noqa: F401
        raise
    pictures = filming.render()
    if all(picture.min() == picture.max() for picture in pictures):
        raise _NoRendererError
    return pictures, filming.rate


class Filming:
    """An agent that acts in one environment, and the pictures of it."""

    def __init__(self, shot: Shot, agent: Agent, backend: Backend, on_picture: Callable[[], None]) -> None:
        self._shot, self._agent, self._on_picture = shot, agent, on_picture
        self._pictures, self._steps = list[np.ndarray](), 0
        self._env, self._batch, self._steps_a_second = _make_envs(shot, backend, self._after_env_step)
        check_fit(agent, self._batch)
        self._stride = max(1, round(self._steps_a_second / FRAMES_A_SECOND))
        self.rate = self._steps_a_second / self._stride
        if isinstance(agent, EnvAwareAgent):
            agent.watch(self._batch)
        self._act, self._observations = agent.actor(1, 1), self._batch.reset()
        self._recorded = recorded_actions(shot, self._batch.actions)  # those that are still to be replayed
        self._env_name = parse_env_name(shot.env)
        self._max_pictures = max(2, round(shot.seconds * self.rate))

    def render(self) -> list[np.ndarray]:
        """Run to the start of the film, then return all its pictures."""
        shot = self._shot
        half_film = round(shot.seconds * self._steps_a_second / (2 * self._env_name.chunk_length))  # in decisions
        for _ in range(shot.center_step - half_film):
            self._step()
        self._pictures, self._steps = [_picture(self._env, shot)], 0
        while len(self._pictures) < self._max_pictures and (len(self._recorded) or not shot.actions):
            self._step()
        self._batch.close()
        return self._pictures

    def _step(self) -> None:
        """Step the environment by the next recorded action, else by the agent's."""
        action, self._recorded = self._recorded[:1], self._recorded[1:]
        step = self._batch.step(action if len(action) else self._agent.to_environment(self._act(self._observations)))
        self._observations, ended = step.observations, step.terminated | step.truncated
        if ended.any() and isinstance(self._act, RecurrentActor):
            self._act.reset_memory(ended)
        if self._env_name.decoder is None:  # else it calls _after_env_step for each step of a chunk
            self._after_env_step(bool(ended[0]))

    def _after_env_step(self, ended: bool) -> None:
        """Take a picture if one is due. After the end of an episode the environment shows the next one already."""
        self._steps += 1
        is_due = self._steps % self._stride == 0 and not (ended and self._shot.actions)
        if is_due and self._pictures and len(self._pictures) < self._max_pictures:
            self._pictures.append(_picture(self._env, self._shot))
            self._on_picture()


def recorded_actions(shot: Shot, space: ActionSpace) -> np.ndarray:
    """Return the actions to replay `[T, A]`; discrete ones are counted from 0, as policies count them."""
    actions = np.array(shot.actions).reshape(-1, space.width)
    return actions - np.array(space.low, int) if space.kind == "discrete" and space.low else actions


def _make_envs(shot: Shot, backend: Backend, on_step: Callable[[bool], None]) -> tuple[Any, Envs, float]:
    """Return the environment that renders, the batch of it in which a policy acts, and its steps per second."""
    if backend != "gymnasium":
        with _errors_mean_no_renderer():  # EnvPool renders robots into a context, and ends the process without one
            import mujoco

            _CONTEXTS.append(mujoco.GLContext(shot.width, shot.height))
            _CONTEXTS[-1].make_current()
        pool = EnvPoolEnvs(shot.env, 1, shot.seed, filmed=(shot.width, shot.height))
        return pool, wrap_decoder(pool, shot.env, on_step), pool.steps_a_second
    env = _make_env(env_maker(shot.env), shot)
    if use_tracking_camera(env.unwrapped) and not shot.fine:
        _turn_off_shadows(env.unwrapped)
    batch = GymnasiumEnvs(shot.env, 1, shot.seed, lambda: env)
    return env, wrap_decoder(batch, shot.env, on_step), batch.steps_a_second


@contextmanager
def _errors_mean_no_renderer() -> Iterator[None]:
    """Turn any error inside into the error of a graphics library that gives no picture."""
    try:
        yield
    except Exception as error:
        raise _NoRendererError from error


_CONTEXTS: list[Any] = []  # references that keep the contexts alive as long as this process


def _make_env(make: Any, shot: Shot) -> Any:
    """Make the environment with the options that it takes: a way to render, and a size."""
    problem = f"environment {shot.env!r} cannot be filmed"
    with in_one_sentence(problem, UsageError):
        for size in ({"width": shot.width, "height": shot.height}, {}):
            try:
                return make(render_mode="rgb_array", **size)
            except TypeError as error:
                if "argument" not in str(error):  # else it does not take these options
                    raise
        raise UsageError(f"{problem}: it takes no render_mode; {RENDER_HINT}")


def use_tracking_camera(task: Any) -> bool:
    """Select the camera that follows the robot, and enlarge its floor; return whether MuJoCo renders the task."""
    if getattr(task, "mujoco_renderer", None) is None:
        return False
    import mujoco

    model = task.model
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:  # without it Gymnasium chooses the camera; in its version 1.4 that one does not move
        task.mujoco_renderer.camera_id = camera
    floors = (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_size[:, 0] > 0) & (model.geom_matid >= 0)
    model.geom_size[floors, :2] *= FLOOR_SCALE  # changes the picture only: in contacts a plane is infinite
    model.mat_texrepeat[model.geom_matid[floors]] *= FLOOR_SCALE
    return True


def _turn_off_shadows(task: Any) -> None:
    """Turn off what costs most when the CPU renders: shadows, reflections and smooth edges."""
    import mujoco

    task.model.vis.quality.offsamples = 0
    with _errors_mean_no_renderer():
        task.render()  # makes the scene
    task.mujoco_renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    task.mujoco_renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0


def _picture(env: Any, shot: Shot) -> np.ndarray:
    uses_mujoco = hasattr(getattr(env, "unwrapped", None), "mujoco_renderer")
    problem = f"environment {shot.env!r} cannot be filmed"
    with _errors_mean_no_renderer() if uses_mujoco else in_one_sentence(problem, UsageError):
        try:
            picture = np.asarray(env.render())
        except NotImplementedError:
            raise UsageError(f"{problem}: it has no render(); {RENDER_HINT}") from None
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise UsageError(f"{problem}: it renders pictures of shape {picture.shape}; {RENDER_HINT}")
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2].astype(np.uint8)  # H.264 wants even sizes


def encode_film(pictures: list[np.ndarray], rate: float, format: str, max_bytes: int = 0) -> bytes:
    """Encode an mp4 that every browser plays, or an endless gif; an mp4 loses quality until it fits `max_bytes`."""
    for quality in QUALITIES:
        content = _encode_film(pictures, rate, format, quality)
        if format != "mp4" or not max_bytes or len(content) <= max_bytes:
            break
    return content


def _encode_film(pictures: list[np.ndarray], rate: float, format: str, quality: int) -> bytes:
    import imageio.v2 as imageio

    options: dict[str, Any] = {"duration": 1000.0 / rate, "loop": 0}
    if format == "mp4":
        options = {"fps": rate, "codec": "libx264", "pixelformat": "yuv420p", "macro_block_size": 2}
        options["output_params"] = ["-crf", str(quality), "-preset", "veryfast", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory(prefix="repolicy-film-") as folder:
        path = Path(folder, f"film.{format}")
        imageio.mimsave(path, pictures, **options)  # type: ignore[arg-type]
        return path.read_bytes()
