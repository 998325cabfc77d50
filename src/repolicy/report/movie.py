"""Films of policies, rendered off-screen.

    films([Shot(policy_file, "HalfCheetah-v4")])        # [the bytes of an mp4]

A process of its own renders: the graphics library is chosen before MuJoCo is imported, whatever was imported here, and
a driver that crashes takes nothing with it.
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
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import (
    Backend,
    EnvPoolEnvs,
    Envs,
    GymnasiumEnvs,
    check_fit,
    chunk_length,
    decoder_options,
    env_maker,
    envpool_names,
    is_in_gymnasium,
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
from repolicy.text import counted

CANNOT_RENDER = (
    "this machine cannot render off-screen: install Debian's package libegl1 (or libosmesa6, for rendering in software)"
)
NO_RENDERER = 3  # the exit code of a process that found its graphics library unusable
LIBRARIES = ("egl", "osmesa")
FRAMES_A_SECOND = 25
FARTHER = 100.0  # times as far as the model says, a floor is drawn: a cheetah leaves its 40 m within seconds
TELLS = "filming: "  # how a line begins that a user is to see
FORMATS = ("mp4", "gif")
QUALITIES = (28, 32, 36, 40, 44, 51)  # of H.264: the larger, the coarser


@dataclass(frozen=True)
class Shot:
    """One film to make: who acts, where, for how long, and how it looks."""

    policy: str
    """A policy's file, or a planner's folder."""
    env: str
    """The environment, as Gymnasium knows it or, where it does not, EnvPool."""
    which: str = "policy"
    """Whom of the file to film: the policy, or the prior in it."""
    seconds: float = 6.0
    seed: int = 0
    width: int = 480
    height: int = 320
    format: str = "mp4"
    fine: bool = False
    """With shadows and smooth edges, at ten times the work."""
    actions: list[list[float]] = field(default_factory=list)
    """What is done in each step, to the end of the episode; else the policy acts, and another episode may follow."""
    around: int = 0
    """The step to show what is before and after it; 0: from the beginning."""
    trust: bool = False
    """Run code that a planner's folder names."""
    most_bytes: int = 0
    """How large the film may be; it is made coarser until it fits. 0: as large as it gets."""


def films(shots: Sequence[Shot], say: Callable[[str], None] = lambda _: None) -> list[bytes]:
    """Make the films; raise CANNOT_RENDER where there is nothing to render with.

    `say` hears what is to be drawn, how long that takes once two pictures tell, and every ten seconds how far it is.
    """
    for shot in shots:
        _check(shot)
    say(f"{TELLS}{counted(len(shots), 'film')}, up to {sum(map(pictures_of, shots)):,} pictures")
    with tempfile.TemporaryDirectory(prefix="repolicy-film-") as folder:
        ready = [asdict(replace(shot, policy=str(file_of(shot.policy).resolve()))) for shot in shots]
        Path(folder, "shots.json").write_text(json.dumps(ready))
        for library in libraries():
            code, output = _in_its_own_process(folder, library, say)
            if code == 0:
                return [Path(folder, str(index)).read_bytes() for index in range(len(shots))]
            sentence = output.removeprefix("repolicy: ")
            if code == UsageError.exit_code:
                raise UsageError(sentence)
            if code > 0 and code != NO_RENDERER:  # below 0: the driver crashed
                raise RepolicyError(sentence if output.startswith("repolicy: ") else f"filming failed: {output}")
    raise RepolicyError(CANNOT_RENDER)


def file_of(policy: str) -> Path:
    """Return a policy's file, or a planner's folder."""
    return Path(policy) if is_plan(policy) else find_policy(policy)


def _check(shot: Shot) -> None:
    if not is_in_gymnasium(shot.env) and parse_env_name(shot.env)[0] not in envpool_names():
        raise UsageError(f"{shot.env!r} cannot be filmed: neither Gymnasium nor EnvPool has one of that name")
    for name, least, most in (("seconds", 0.1, 3600), ("width", 16, 4096), ("height", 16, 4096)):
        if not least <= getattr(shot, name) <= most:
            raise UsageError(f"{name} is {getattr(shot, name):g}; it must lie between {least} and {most}")


def pictures_of(shot: Shot) -> int:
    """Return how many it has at most; an environment with fewer a second has fewer."""
    return round(shot.seconds * FRAMES_A_SECOND)


def libraries() -> tuple[str, ...]:
    """Return what may draw here, in the order in which it is tried."""
    wanted = os.environ.get("MUJOCO_GL", "")
    return (wanted,) if wanted in LIBRARIES else LIBRARIES


def _in_its_own_process(folder: str, library: str, say: Callable[[str], None]) -> tuple[int, str]:
    """Return (exit code, last line that it said)."""
    environment = os.environ | {"MUJOCO_GL": library, "PYOPENGL_PLATFORM": library, "SDL_VIDEODRIVER": "dummy"}
    program = [*PYTHON, "-W", "ignore", "-c", "from repolicy.report.movie import main; main()", folder]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            for line in process.stdout:  # environments may print there, too
                if (words := line.decode(errors="replace").strip()).startswith(TELLS):
                    say(words)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    return process.returncode, lines[-1] if lines else ""


# In the process that renders ------------------------------------------------------------------------------------------


def main() -> None:
    """Make every film that `shots.json` in a folder asks for."""
    import torch

    torch.set_num_threads(1)
    folder, code = Path(sys.argv[1]), 0
    try:
        shots = [Shot(**values) for values in json.loads((folder / "shots.json").read_text())]
        seen = teller(shots)
        for index, shot in enumerate(shots):
            (folder / str(index)).write_bytes(encoded(*frames(shot, seen), shot.format, shot.most_bytes))
            gc.collect()  # a renderer that Python frees later would break the next film
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        code = error.exit_code
    except _NoRendererError:
        code = NO_RENDERER
    sys.stderr.flush()
    os._exit(code)  # some drivers crash while Python takes itself apart


def teller(shots: Sequence[Shot]) -> Callable[[], None]:
    """Return what is called after each picture: it prints how long all will take, and how long it still takes."""
    total = sum(map(pictures_of, shots))
    done, began, shown = 0, 0.0, 0.0

    def seen() -> None:
        nonlocal done, began, shown
        now, done = time.monotonic(), done + 1
        if done == 1:
            began = now  # what comes before is the making of the environment
        elif now - shown >= SECONDS_BETWEEN_LINES:  # the first time at the second picture
            left = (now - began) / (done - 1) * max(total - done, 0)
            print(f"{TELLS}{min(done / total, 1):.0%} drawn, about {format_duration(left)} left", flush=True)
            shown = now

    return seen


class _NoRendererError(Exception):
    """The graphics library cannot be loaded, or gives no picture."""


def frames(shot: Shot, seen: Callable[[], None] = lambda: None) -> tuple[list[np.ndarray], float]:
    """Return the pictures `[H, W, 3]` of a policy that takes its mean action, and how many make a second."""
    opened = open_agent(shot.policy, Options(), shot.trust)
    policy = opened.prior if shot.which == "prior" else opened.agent
    assert policy is not None
    backend: Backend = "gymnasium" if is_in_gymnasium(shot.env) else "auto"  # importing EnvPool is slow
    filming = Filming(replace(shot, env=match_observation(shot.env, policy.observation_size, backend)), policy, seen)
    pictures = filming.pictures()
    if all(picture.min() == picture.max() for picture in pictures):
        raise _NoRendererError
    return pictures, filming.rate


class Filming:
    """An agent at work, and a camera."""

    def __init__(self, shot: Shot, agent: Agent, seen: Callable[[], None]) -> None:
        self._shot, self._agent, self._seen = shot, agent, seen
        self._taken, self._steps = list[np.ndarray](), 0
        self._env, self._batch, self._steps_a_second = _stage(shot, self._look)
        check_fit(agent, self._batch)
        self._stride = max(1, round(self._steps_a_second / FRAMES_A_SECOND))
        self.rate = self._steps_a_second / self._stride
        if isinstance(agent, EnvAwareAgent):
            agent.watch(self._batch)
        self._act, self._observations = agent.actor(1, 1), self._batch.reset()
        self._given = choices(shot, agent.actions)
        self._has_decoder = decoder_options(shot.env) is not None  # which looks at each of a decision's steps

    def pictures(self) -> list[np.ndarray]:
        """Return them all."""
        shot = self._shot
        for _ in range(shot.around - round(shot.seconds * self._steps_a_second / (2 * chunk_length(shot.env)))):
            self._go()
        self._taken, self._steps = [_picture(self._env, shot)], 0
        while len(self._taken) < self._most and (len(self._given) or not shot.actions):
            self._go()
        self._batch.close()
        return self._taken

    @property
    def _most(self) -> int:
        return max(2, round(self._shot.seconds * self.rate))

    def _go(self) -> None:
        """Do a step: what is given, or what the agent does."""
        now, self._given = self._given[:1], self._given[1:]
        step = self._batch.step(now if len(now) else self._agent.to_environment(self._act(self._observations)))
        self._observations, ended = step.observations, step.terminated | step.truncated
        if ended.any() and isinstance(self._act, RecurrentActor):
            self._act.reset_memory(ended)
        if not self._has_decoder:
            self._look(bool(ended[0]))

    def _look(self, over: bool) -> None:
        """See what a step of the environment led to; where that is over, it has begun anew."""
        self._steps += 1
        due = self._steps % self._stride == 0 and not (over and self._shot.actions)
        if due and self._taken and len(self._taken) < self._most:
            self._taken.append(_picture(self._env, self._shot))
            self._seen()


def choices(shot: Shot, space: ActionSpace) -> np.ndarray:
    """Return the given actions `[T, A]`; of discrete ones, counted from 0 as policies count them."""
    given = np.array(shot.actions)
    return given - np.array(space.low, int) if space.kind == "discrete" and space.low else given


def _stage(shot: Shot, look: Callable[[bool], None]) -> tuple[Any, Envs, float]:
    """Return who renders, the same one behind the contract that policies act in, and its steps a second."""
    if not is_in_gymnasium(shot.env):
        with _drawing():  # EnvPool draws robots into a context, and ends the process where there is none
            import mujoco

            _CONTEXTS.append(mujoco.GLContext(shot.width, shot.height))
            _CONTEXTS[-1].make_current()
        pool = EnvPoolEnvs(shot.env, 1, shot.seed, filmed=(shot.width, shot.height))
        return pool, wrap_decoder(pool, shot.env, look), pool.steps_a_second
    env = _made(env_maker(shot.env), shot)
    if getattr(env, "render_mode", None) != "rgb_array":
        raise UsageError(f"environment {shot.env!r} cannot be filmed: it takes no render_mode='rgb_array'")
    if follow(env.unwrapped) and not shot.fine:
        _plain(env.unwrapped)
    batch = wrap_decoder(GymnasiumEnvs(shot.env, 1, shot.seed, lambda: env), shot.env, look)
    return env, batch, float(env.metadata.get("render_fps") or 30)


@contextmanager
def _drawing() -> Iterator[None]:
    """Take whatever fails here for a graphics library that gives no picture."""
    try:
        yield
    except Exception as error:
        raise _NoRendererError from error


_CONTEXTS: list[Any] = []  # kept, so that they live as long as this process


def _made(make: Any, shot: Shot) -> Any:
    """Return the environment at the wanted size, if it takes a size; None where it takes nothing."""
    drawn = {"render_mode": "rgb_array"}
    for options in (drawn | {"width": shot.width, "height": shot.height}, drawn, {}):
        try:
            return make(**options)
        except TypeError:
            continue
        except Exception as error:
            with _drawing():
                import mujoco  # noqa: F401  # which fails without the graphics library that it is to use
            raise UsageError(_why(shot, error)) from error
    return None


def _why(shot: Shot, error: Exception) -> str:
    """Return what is wrong in a sentence; where a package is missing, which one would help."""
    if "pygame" in str(error):
        return f"environment {shot.env!r} cannot be filmed without pygame: pip install 'repolicy[film]'"
    return f"environment {shot.env!r} cannot be filmed: {type(error).__name__}: {error}"


def follow(task: Any) -> bool:
    """Look through the camera that follows a robot, on a floor without an end; return whether MuJoCo draws it."""
    if getattr(task, "mujoco_renderer", None) is None:
        return False
    import mujoco

    model = task.model
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:  # else Gymnasium's own choice, which in its version 1.4 stays where it is
        task.mujoco_renderer.camera_id = camera
    floors = (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) & (model.geom_size[:, 0] > 0) & (model.geom_matid >= 0)
    model.geom_size[floors, :2] *= FARTHER  # of what is drawn: whoever touches it finds no end anyway
    model.mat_texrepeat[model.geom_matid[floors]] *= FARTHER
    return True


def _plain(task: Any) -> None:
    """Leave out what costs most where the processor draws."""
    import mujoco

    task.model.vis.quality.offsamples = 0
    with _drawing():
        task.render()  # makes the scene
    task.mujoco_renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    task.mujoco_renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0


def _picture(env: Any, shot: Shot) -> np.ndarray:
    try:
        picture = env.render()
    except Exception as error:
        if hasattr(getattr(env, "unwrapped", None), "mujoco_renderer"):
            raise _NoRendererError from error
        raise UsageError(_why(shot, error)) from error
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise UsageError(f"environment {shot.env!r} cannot be filmed: it renders pictures of shape {picture.shape}")
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2].astype(np.uint8)  # H.264 wants even sizes


def encoded(pictures: list[np.ndarray], rate: float, format: str, most_bytes: int = 0) -> bytes:
    """Return an mp4 that every browser plays, or a gif that goes round and round; an mp4 of at most so many bytes."""
    for quality in QUALITIES:
        content = _encoded(pictures, rate, format, quality)
        if format != "mp4" or not most_bytes or len(content) <= most_bytes:
            break
    return content


def _encoded(pictures: list[np.ndarray], rate: float, format: str, quality: int) -> bytes:
    try:
        import imageio.v2 as imageio
    except ImportError:
        raise UsageError("films need the package imageio: pip install 'repolicy[engine]'") from None
    options: dict[str, Any] = {"duration": 1000.0 / rate, "loop": 0}
    if format == "mp4":
        options = {"fps": rate, "codec": "libx264", "pixelformat": "yuv420p", "macro_block_size": 2}
        options["output_params"] = ["-crf", str(quality), "-preset", "veryfast", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory(prefix="repolicy-film-") as folder:
        path = Path(folder, f"film.{format}")
        imageio.mimsave(path, pictures, **options)  # type: ignore[arg-type]
        return path.read_bytes()
