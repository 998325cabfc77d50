"""Render films of policies off-screen.

    render_films([Shot(policy_file, "HalfCheetah-v4")])        # [the bytes of an mp4]

A separate process renders (`filming`). It can choose the graphics library before MuJoCo is imported, and a driver that
crashes does not end this process.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from repolicy.envs import env_maker, envpool_names, parse_env_name
from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import PYTHON, child_environment
from repolicy.priors import find_policy, is_plan
from repolicy.text import Say, format_count

CANNOT_RENDER = (
    "this machine cannot render off-screen: install Debian's package libegl1 (or libosmesa6, for rendering in software)"
)
EXIT_NO_RENDERER = 3  # exit code of a rendering process whose graphics library is unusable
LIBRARIES = ("egl", "osmesa")
FRAMES_A_SECOND = 25
PROGRESS_PREFIX = "filming: "  # lines of the rendering process that begin so are shown to the user
FORMATS = ("mp4", "gif")


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
    is_in_envpool: bool = False
    """Whether to film EnvPool's environment, as these actions were recorded there, also where Gymnasium has it too."""
    center_step: int = 0
    """The step in the middle of the film; 0: the film starts with the episode."""
    trust: bool = False
    """Run code that a planner's folder names."""
    max_bytes: int = 0
    """The film's quality is lowered until its size is below this; 0: no limit."""


def render_films(shots: Sequence[Shot], say: Say = lambda _: None) -> list[bytes]:
    """Render the films; raise CANNOT_RENDER where no graphics library works.

    `say` prints the number of pictures, the time left after the second picture, and again every ten seconds.
    """
    if find_spec("imageio") is None:
        raise UsageError("films need the package imageio: pip install 'repolicy[engine]'")
    for shot in shots:
        _check(shot)
    say(f"{PROGRESS_PREFIX}{format_count(len(shots), 'film')}, about {sum(map(usual_pictures, shots)):,} pictures")
    try:
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
    except OSError as error:
        remedy = "TMPDIR names another folder for them"
        raise RepolicyError(f"films need room for temporary files: {error.strerror}; {remedy}") from None
    raise RepolicyError(CANNOT_RENDER)


def policy_path(policy: str) -> Path:
    """Return a policy's file, or a planner's folder."""
    return Path(policy) if is_plan(policy) else find_policy(policy)


def _check(shot: Shot) -> None:
    env = parse_env_name(shot.env)
    if not env.is_in_gymnasium and env.plain not in envpool_names():
        env_maker(shot.env)  # raises, and says what is like it
    for name, least, most in (("seconds", 0.1, 3600), ("width", 16, 4096), ("height", 16, 4096)):
        if not least <= getattr(shot, name) <= most:
            raise UsageError(f"{name} is {getattr(shot, name):g}; it must lie between {least} and {most}")


def usual_pictures(shot: Shot) -> int:
    """Return the number of pictures at 25 a second; by its own steps a second, an environment has more or fewer."""
    return round(shot.seconds * FRAMES_A_SECOND)


def libraries() -> tuple[str, ...]:
    """Return the graphics libraries to try, in order: the one that MUJOCO_GL names, else all."""
    requested = os.environ.get("MUJOCO_GL", "")
    return (requested,) if requested in LIBRARIES else LIBRARIES


def _render_in_process(folder: str, library: str, say: Say) -> tuple[int, str]:
    """Run `filming.main` in a process with this graphics library, and return its exit code and last line on stderr."""
    environment = child_environment() | {"MUJOCO_GL": library, "PYOPENGL_PLATFORM": library, "SDL_VIDEODRIVER": "dummy"}
    program = [*PYTHON, "-W", "ignore", "-c", "from repolicy.report.filming import main; main()", folder]
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
