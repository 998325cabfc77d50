"""Films show somebody moving, and a machine that cannot render says what it lacks."""

import os
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from repolicy.cli import main as cli
from repolicy.errors import RepolicyError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.report import movie as film
from repolicy.report.movie import Shot, films

ENV = "InvertedPendulum-v5"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.safetensors"
    pushing = Policy(PolicySpec(4, ActionSpace("continuous", (1,), (-3.0,), (3.0,))))
    pushing.network.biases[-1].data.fill_(2.0)
    save_policy(path, pushing, {})
    return str(path)


def pictures(content: bytes, path: Path) -> np.ndarray:
    """What a player shows, `[T, 64, 96, 3]`."""
    path.write_bytes(content)
    program = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(program, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, 64, 96, 3).astype(int)


@pytest.mark.usefixtures("_renderer")
def test_films_move_and_are_what_they_are_called(policy: str, tmp_path: Path) -> None:
    small = Shot(policy, ENV, seconds=0.4, width=96, height=64)
    found = films([small, Shot(policy, ENV, seconds=0.4, width=96, height=64, format="gif")])
    assert found[0][4:8] == b"ftyp"
    assert found[1][:4] == b"GIF8"
    for content, name in zip(found, ("film.mp4", "film.gif"), strict=True):
        seen = pictures(content, tmp_path / name)
        assert len(seen) >= 9
        assert seen[0].std() > 10
        assert np.abs(seen[0] - seen[1:]).max() > 50


def test_a_machine_that_cannot_render_says_what_to_install(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "LIBRARIES", ("disabled",))
    with pytest.raises(RepolicyError, match=r"cannot render off-screen: install .*libegl1 .*libosmesa6"):
        films([Shot(policy, ENV)])


def test_the_other_library_is_tried_after_a_driver_that_crashes(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def crash(folder: str, library: str, say: object) -> tuple[int, str]:
        tried.append(library)
        if library == "egl":
            return -11, ""
        Path(folder, "0").write_bytes(b"film")
        return 0, ""

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    said: list[str] = []
    monkeypatch.setattr(film, "_in_its_own_process", crash)
    assert films([Shot(policy, ENV)], said.append) == [b"film"]
    assert tried == ["egl", "osmesa"]
    assert said == ["filming: 1 film, up to 150 pictures"]  # before the first is drawn


def test_the_second_picture_tells_how_long_all_take_and_later_ones_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([100.0, 102.0, 103.0, 113.0])
    monkeypatch.setattr(film.time, "monotonic", lambda: next(times))
    seen = film.teller([Shot("", ENV, seconds=2.0), Shot("", ENV, seconds=2.0)])
    told = [(seen(), capsys.readouterr().out)[1] for _ in range(4)]
    assert told == ["", "filming: 2% drawn, about 3:16 left\n", "", "filming: 4% drawn, about 6:56 left\n"]


@pytest.mark.parametrize(
    ("shot", "said"),
    [
        ({"seconds": 0.0}, "seconds is 0"),
        ({"width": 3}, "width is 3"),
        ({"format": "avi"}, "'avi'.*mp4, gif"),
    ],
)
def test_a_film_that_cannot_be_is_refused(policy: str, shot: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        films([Shot(policy, ENV, **shot)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "said"),
    [("NoSuchEnvironment-v0", "neither Gymnasium nor EnvPool"), ("Hopper-v5", "takes observations of 4 numbers")],
)
@pytest.mark.usefixtures("_renderer")
def test_an_environment_that_does_not_fit_is_refused_in_one_sentence(policy: str, env: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        films([Shot(policy, env)])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--out", "film.avi", "--env", ENV], "does not end in .mp4 or .gif"), ([], "does not say which environment")],
)
def test_the_command_refuses_in_one_sentence(
    policy: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["render", policy, *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_renderer")
def test_a_robot_that_only_envpool_has_is_filmed(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    pushing = Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-1.0,), (1.0,))))
    pushing.network.biases[-1].data.fill_(1.0)
    save_policy(path, pushing, {})
    [content] = films([Shot(str(path), "PendulumSwingup-v1", seconds=0.4, width=96, height=64)])
    seen = pictures(content, tmp_path / "film.mp4")
    assert len(seen) >= 9
    assert np.abs(seen[0] - seen[1:]).max() > 30


def test_an_environment_that_lacks_a_package_says_which_one_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(path, Policy(PolicySpec(4, ActionSpace("discrete", (2,)), "categorical")), {})
    (tmp_path / "pygame.py").write_text("raise ImportError('No module named pygame')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(UsageError, match=r"without pygame: pip install 'repolicy\[film\]'"):
        films([Shot(str(path), "CartPole-v1", seconds=0.4)])
