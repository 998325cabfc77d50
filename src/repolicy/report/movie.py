"""Render films of policies off-screen.

    render_films([Shot(policy_file, "HalfCheetah-v4")])        # [the bytes of an mp4]

A separate process renders. It can choose the graphics library before MuJoCo is imported, and a driver that crashes
does not end this process.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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
    envpool_names,
    match_observation,
    parse_env_name,
    wrap_decoder,
)
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import PYTHON
from repolicy.policies import ActionSpace, Agent, EnvAwareAgent, RecurrentActor
from repolicy.priors import find_policy, is_plan, open_agent
from repolicy.readers.reading import Options
from repolicy.runs import SECONDS_BETWEEN_LINES, format_duration
from repolicy.text import format_count

CANNOT_RENDER = (
    "this machine cannot render off-screen: install Debian's package libegl1 (or libosmesa6, for rendering in software)"
)
EXIT_NO_RENDERER = 3  # exit code of a rendering process whose graphics library is unusable
LIBRARIES = ("egl", "osmesa")
FRAMES_A_SECOND = 25
FLOOR_SCALE = 100.0  # floors are drawn so many times larger: a cheetah leaves its 40 m within seconds
PROGRESS_PREFIX = "filming: "  # lines of the rendering process that begin so are shown to the user
FORMATS = ("mp4", "gif")
QUALITIES = (28, 32, 36, 40, 44, 51)  # CRF of H.264, best quality first


@dataclass(frozen=True)
class Shot:
    """A film to make: the policy, the environment, the length and the look."""

    policy: str
    """A policy's file, or a planner's folder."""
    env: str
    """The environment, as Gymnasium knows it or, where it does not, EnvPool."""
    role: str = "policy"
    """Whether to film the file's `policy`, or the `prior` in it."""
    seconds: float = 6.0
    seed: int = 0
    width: int = 480
    height: int = 320
    format: str = "mp4"
    fine: bool = False
    """With shadows and smooth edges, at ten times the work."""
    actions: list[list[float]] = field(default_factory=list)
    """Actions to replay until the episode ends. Without any the policy acts, in several episodes if needed."""
    center_step: int = 0
    """The step in the middle of the film; 0: the film starts with the episode."""
    trust: bool = False
    """Run code that a planner's folder names."""
    max_bytes: int = 0
    """The film's quality is lowered until its size is below this; 0: no limit."""


def render_films(shots: Sequence[Shot], say: Callable[[str], None] = lambda _: None) -> list[bytes]:
    """Render the films; raise CANNOT_RENDER where no graphics library works.

    `say` prints the number of pictures, the time left after the second picture, and again every ten seconds.
    """
    if find_spec("imageio") is None:
        raise UsageError("films need the package imageio: pip install 'repolicy[engine]'")
    for shot in shots:
        _check(shot)
    say(f"{PROGRESS_PREFIX}{format_count(len(shots), 'film')}, up to {sum(map(max_pictures, shots)):,} pictures")
    with tempfile.TemporaryDirectory(prefix="repolicy-film-") as folder:
        found = [asdict(replace(shot, policy=str(policy_path(shot.policy).resolve()))) for shot in shots]
        Path(folder, "shots.json").write_text(json.dumps(found))
        for library in libraries():
            code, output = _render_in_process(folder, library, say)
            if code == 0:
                return [Path(folder, str(index)).read_bytes() for index in range(len(shots))]
            sentence = output.removeprefix("repolicy: ")
            if code == UsageError.exit_code:
                raise UsageError(sentence)
            if code > 0 and code != EXIT_NO_RENDERER:  # below 0: the driver crashed
                raise RepolicyError(sentence if output.startswith("repolicy: ") else f"filming failed: {output}")
    raise RepolicyError(CANNOT_RENDER)


def policy_path(policy: str) -> Path:
    """Return a policy's file, or a planner's folder."""
    return Path(policy) if is_plan(policy) else find_policy(policy)


def _check(shot: Shot) -> None:
    env = parse_env_name(shot.env)
    if not env.is_in_gymnasium and env.plain not in envpool_names():
        raise UsageError(f"{shot.env!r} cannot be filmed: neither Gymnasium nor EnvPool has one of that name")
    for name, least, most in (("seconds", 0.1, 3600), ("width", 16, 4096), ("height", 16, 4096)):
        if not least <= getattr(shot, name) <= most:
            raise UsageError(f"{name} is {getattr(shot, name):g}; it must lie between {least} and {most}")


def max_pictures(shot: Shot) -> int:
    """Return the number of pictures; a slow environment has fewer, because it makes fewer steps per second."""
    return round(shot.seconds * FRAMES_A_SECOND)


def libraries() -> tuple[str, ...]:
    """Return the graphics libraries to try, in order: the one that MUJOCO_GL names, else all."""
    requested = os.environ.get("MUJOCO_GL", "")
    return (requested,) if requested in LIBRARIES else LIBRARIES


def _render_in_process(folder: str, library: str, say: Callable[[str], None]) -> tuple[int, str]:
    """Run `main` in a process with this graphics library, and return its exit code and last line on stderr."""
    environment = os.environ | {"MUJOCO_GL": library, "PYOPENGL_PLATFORM": library, "SDL_VIDEODRIVER": "dummy"}
    program = [*PYTHON, "-W", "ignore", "-c", "from repolicy.report.movie import main; main()", folder]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            for line in process.stdout:  # environments may print there, too
                progress = line.decode(errors="replace").strip()
                if progress.startswith(PROGRESS_PREFIX):
                    say(progress)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    return process.returncode, lines[-1] if lines else ""


# In the process that renders ------------------------------------------------------------------------------------------


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
    total = sum(map(max_pictures, shots))
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
    backend: Backend = "gymnasium" if parse_env_name(shot.env).is_in_gymnasium else "auto"  # importing EnvPool is slow
    env = match_observation(shot.env, policy.observation_size, backend)
    filming = Filming(replace(shot, env=env), policy, on_picture)
    pictures = filming.render()
    if all(picture.min() == picture.max() for picture in pictures):
        raise _NoRendererError
    return pictures, filming.rate


class Filming:
    """An agent that acts in one environment, and the pictures of it."""

    def __init__(self, shot: Shot, agent: Agent, on_picture: Callable[[], None]) -> None:
        self._shot, self._agent, self._on_picture = shot, agent, on_picture
        self._pictures, self._steps = list[np.ndarray](), 0
        self._env, self._batch, self._steps_a_second = _make_envs(shot, self._after_env_step)
        check_fit(agent, self._batch)
        self._stride = max(1, round(self._steps_a_second / FRAMES_A_SECOND))
        self.rate = self._steps_a_second / self._stride
        if isinstance(agent, EnvAwareAgent):
            agent.watch(self._batch)
        self._act, self._observations = agent.actor(1, 1), self._batch.reset()
        self._recorded = recorded_actions(shot, agent.actions)  # those that are still to be replayed
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
    actions = np.array(shot.actions)
    return actions - np.array(space.low, int) if space.kind == "discrete" and space.low else actions


def _make_envs(shot: Shot, on_step: Callable[[bool], None]) -> tuple[Any, Envs, float]:
    """Return the environment that renders, the batch of it in which a policy acts, and its steps per second."""
    if not parse_env_name(shot.env).is_in_gymnasium:
        with _errors_mean_no_renderer():  # EnvPool renders robots into a context, and ends the process without one
            import mujoco

            _CONTEXTS.append(mujoco.GLContext(shot.width, shot.height))
            _CONTEXTS[-1].make_current()
        pool = EnvPoolEnvs(shot.env, 1, shot.seed, filmed=(shot.width, shot.height))
        return pool, wrap_decoder(pool, shot.env, on_step), pool.steps_a_second
    env = _make_env(env_maker(shot.env), shot)
    if getattr(env, "render_mode", None) != "rgb_array":
        raise UsageError(f"environment {shot.env!r} cannot be filmed: it takes no render_mode='rgb_array'")
    if use_tracking_camera(env.unwrapped) and not shot.fine:
        _turn_off_shadows(env.unwrapped)
    batch = wrap_decoder(GymnasiumEnvs(shot.env, 1, shot.seed, lambda: env), shot.env, on_step)
    return env, batch, float(env.metadata.get("render_fps") or 30)


@contextmanager
def _errors_mean_no_renderer() -> Iterator[None]:
    """Turn any error inside into the error of a graphics library that gives no picture."""
    try:
        yield
    except Exception as error:
        raise _NoRendererError from error


_CONTEXTS: list[Any] = []  # references that keep the contexts alive as long as this process


def _make_env(make: Any, shot: Shot) -> Any:
    """Make the environment with the options that it takes, a size among them if it can; None if it takes nothing."""
    render_mode = {"render_mode": "rgb_array"}
    for options in (render_mode | {"width": shot.width, "height": shot.height}, render_mode, {}):
        try:
            return make(**options)
        except TypeError:
            continue
        except Exception as error:
            with _errors_mean_no_renderer():
                import mujoco  # noqa: F401  # it fails without its graphics library
            raise UsageError(_error_sentence(shot, error)) from error
    return None


def _error_sentence(shot: Shot, error: Exception) -> str:
    """Return why it cannot be filmed; if a package is missing, the command that installs it."""
    if "pygame" in str(error):
        return f"environment {shot.env!r} cannot be filmed without pygame: pip install 'repolicy[film]'"
    return f"environment {shot.env!r} cannot be filmed: {type(error).__name__}: {error}"


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
    try:
        picture = env.render()
    except Exception as error:
        if hasattr(getattr(env, "unwrapped", None), "mujoco_renderer"):
            raise _NoRendererError from error
        if isinstance(error, NotImplementedError):
            raise UsageError(f"environment {shot.env!r} cannot be filmed: it has no render()") from error
        raise UsageError(_error_sentence(shot, error)) from error
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise UsageError(f"environment {shot.env!r} cannot be filmed: it renders pictures of shape {picture.shape}")
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
