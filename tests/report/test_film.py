"""Films show somebody moving, the typical episode and the worst; a machine that cannot render says what it lacks."""

import errno
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image, ImageChops
from tiny_envs import Endless, tiny
from typed_commands import refused

from repolicy.envs import names
from repolicy.envs.making import make_envs
from repolicy.envs.step import Backend
from repolicy.errors import RepolicyError, UsageError
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.report import filming, movie, pieces, scenes
from repolicy.report.filming import QUALITIES, encode_film, render_pictures
from repolicy.report.movie import Shot, render_films
from repolicy.report.scenes import Episode, describe_worst, first_episode, typical_and_worst, wrong_step

ENV = "InvertedPendulum-v5"


class Unseen(Endless):
    """It takes a render_mode, and has no render()."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


class Unlit(Unseen):
    """It takes a render_mode, and fails in it."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if render_mode is not None:
            raise TypeError("no lamp")


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


@pytest.mark.parametrize(
    ("library", "env"),
    [("disabled", ENV), ("one_that_mujoco_cannot_load", "Hopper-v4")],
    ids=["no picture", "no import"],
)
def test_a_machine_that_cannot_render_says_what_to_install(
    library: str, env: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movie, "LIBRARIES", (library,))
    with pytest.raises(RepolicyError, match=r"cannot render off-screen: install .*libegl1 .*libosmesa6"):
        render_films([Shot(policy, env)])


def test_a_film_imports_what_its_caller_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path, "only_of_a_notebook.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(movie, "PYTHON", (sys.executable, "-P", "-c", "import only_of_a_notebook"))
    assert movie._render_in_process("", "egl", print) == (0, "")


def test_a_missing_package_is_told_before_a_picture_is_drawn(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movie, "find_spec", lambda name: None)
    said: list[str] = []
    with pytest.raises(UsageError, match=r"^films need the package imageio: pip install 'repolicy\[engine\]'$"):
        render_films([Shot(policy, ENV)], said.append)
    assert said == []


def test_the_other_library_is_tried_after_a_driver_that_crashes(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(-11, ""), (0, ""), (2, "repolicy: it lacks a package")]
    tried = []

    def pretended(folder: str, library: str, say: object) -> tuple[int, str]:
        tried.append(library)
        Path(folder, "0").write_bytes(b"film")
        return ends.pop(0)

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    said: list[str] = []
    monkeypatch.setattr(movie, "_render_in_process", pretended)
    assert render_films([Shot(policy, ENV)], said.append) == [b"film"]
    assert tried == ["egl", "osmesa"]
    assert said == ["filming: 1 film, about 150 pictures"]  # before the first is drawn
    with pytest.raises(UsageError, match="^it lacks a package$"):
        render_films([Shot(policy, ENV)])


def test_the_second_picture_tells_how_long_all_take_and_later_ones_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([100.0, 102.0, 103.0, 113.0])
    monkeypatch.setattr(filming.time, "monotonic", lambda: next(times))
    seen = filming.progress_printer([Shot("", ENV, seconds=2.0), Shot("", ENV, seconds=2.0)])
    told = [(seen(), capsys.readouterr().out)[1] for _ in range(4)]
    assert told == ["", "filming: 2% drawn, about 3:16 left\n", "", "filming: 4% drawn, about 6:56 left\n"]


def test_what_cannot_be_filmed_is_refused_in_one_sentence(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    needs, small = r"it needs a render\(\) .*'rgb_array' \(docs/qui", f"{Path(policy).with_name('small')}.safetensors"
    save_policy(Path(small), agent(1), {})
    for film, shot, said in (
        (render_films, Shot(policy, ENV, seconds=0.0), "seconds is 0"),
        (render_films, Shot(policy, ENV, width=3), "width is 3"),
        (render_films, Shot(policy, "NoSuchEnvironment-v0"), "there is no environment 'NoSuchEnvironment-v0'"),
        (render_pictures, Shot(small, f"{__file__}:Unseen"), rf"has no render\(\); {needs}"),
        (render_pictures, Shot(small, tiny("Endless")), f"it takes no render_mode; {needs}"),
        (render_pictures, Shot(small, f"{__file__}:Unlit"), r"filmed: TypeError: no lamp \(test_film.py, line \d+\)$"),
        (render_pictures, Shot(policy, "Hopper-v5", fine=True), "takes observations of 4 numbers"),
    ):
        with pytest.raises(UsageError, match=said):
            film([shot] if film is render_films else shot)
    said = refused(capsys, 2, "render", policy, "--out", "film.avi", "--env", ENV)
    assert "film.avi does not end in .mp4 or .gif" in said


def test_a_film_that_lacks_a_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(path, Policy(PolicySpec(4, ActionSpace("discrete", (2,)), "categorical")), {})
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.setattr(names, "envpool_names", lambda: pytest.fail("a film of Gymnasium's needs no EnvPool"))
    with pytest.raises(UsageError, match="cannot be filmed: DependencyNotInstalled: pygame is not installed, run `pip"):
        filming.render_pictures(Shot(str(path), "CartPole-v1", seconds=0.4))


# Which episodes are filmed, and the step at which the worst one went wrong --------------------------------------------
NOTHING = np.zeros((0, 1))
USUAL = Episode(0, np.ones(100), False, NOTHING)


def agent(observations: int, bound: float = 1.0, width: int = 1) -> Policy:
    torch.manual_seed(1)
    space = ActionSpace("continuous", (width,), (-bound,) * width, (bound,) * width)
    return frozen(Policy(PolicySpec(observations, space, initial_std=0.5)))


def test_a_robot_that_runs_away_stays_in_the_picture_and_on_its_floor() -> None:
    env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array").unwrapped
    size, repeats = env.model.geom_size.copy(), env.model.mat_texrepeat.copy()
    assert filming.use_tracking_camera(env)
    assert env.mujoco_renderer.camera_id == env.model.camera("track").id
    floor = env.model.geom("floor").id
    assert env.model.geom_size[floor, 0] > 1000.0
    tiles = env.model.mat_texrepeat / repeats
    assert (tiles[env.model.geom_matid[floor]] == env.model.geom_size[floor, 0] / size[floor, 0]).all()
    assert not filming.use_tracking_camera(gymnasium.make("CartPole-v1", render_mode="rgb_array").unwrapped)


def test_the_typical_one_is_in_the_middle_and_the_worst_at_the_end() -> None:
    """Of all that were evaluated, however many they are; only a further episode of an environment is not seen again."""
    totals = np.array([5.0, -1.0, 3.0, 100.0, 2.0] + [3.5] * 44 + [-9.0, -99.0])
    found = Evaluation("", "gymnasium", True, 0, totals, None, None, totals, totals, None)
    (typical, worst), count = typical_and_worst(found)
    assert (totals[typical], totals[worst], count) == (3.5, -9.0, 50)


@pytest.mark.parametrize("step", [1, 2, 50, 81])
def test_an_episode_goes_wrong_where_its_reward_drops(step: int) -> None:
    rewards = np.ones(100)
    rewards[step - 1 :] = 0.0
    assert wrong_step(Episode(1, rewards, False, NOTHING), USUAL) == step
    told = "was behind from its start" if step == 1 else f"went wrong about step {step}"
    assert f": it {told}" in describe_worst(Episode(1, rewards, False, NOTHING), USUAL, 10)


def test_an_episode_that_ended_sooner_or_later_went_wrong_there_and_a_little_less_is_nothing_wrong() -> None:
    fallen = Episode(1, np.full(37, 2.0), True, NOTHING)
    assert wrong_step(fallen, USUAL) == 37
    assert describe_worst(fallen, USUAL, 10) == "the worst of 10 episodes, which earns 74.0: it ended early, at step 37"
    usual, slow = Episode(0, -np.ones(110), True, NOTHING), Episode(1, -np.ones(160), True, NOTHING)
    assert wrong_step(slow, usual) == 111  # where the usual one was done
    less, much_less = (Episode(1, np.full(100, reward), False, NOTHING) for reward in (0.91, 0.89))
    assert (wrong_step(less, USUAL), wrong_step(much_less, USUAL)) == (None, 1)
    assert "nothing went wrong" in describe_worst(less, USUAL, 10)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_an_episode_of_an_evaluation_is_the_same_again_to_the_bit(backend: Backend) -> None:
    """Its actions, from its seed, alone: what the policy would do alone is rounded otherwise, and soon another one."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    found = evaluate(
        agent(17, width=6), "HalfCheetah-v4", 5, addon="hind_leg", seed=EVALUATION_SEED, backend=backend, longest=300
    )
    for place in (0, 4):
        one = first_episode(found, place)
        envs = make_envs("HalfCheetah-v4", 1, one.seed, backend)
        envs.reset()
        assert len(one.rewards) == len(one.actions) == 300
        assert float(one.rewards.sum()) == pytest.approx(found.total[place], rel=1e-12)
        assert np.cumsum([envs.step(action[None]).rewards[0] for action in one.actions])[-1] == found.basic[place]


def test_the_first_episodes_are_kept_and_only_these() -> None:
    found = evaluate(agent(1), tiny("LinearQuadratic"), 60, addon=f"{tiny('stay_near')}=2", seed=EVALUATION_SEED)
    for place in (0, 49):
        assert first_episode(found, place).total == pytest.approx(found.total[place], rel=1e-9)
    assert len(found.steps.env_actions) - found.lengths[:50].max() < 20  # a block


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
@pytest.mark.parametrize("prior", [False, True])
def test_a_page_has_the_prior_a_typical_episode_and_the_worst(prior: bool, backend: Backend) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    found = evaluate(agent(4, 3.0), "InvertedPendulum-v4", 20, seed=EVALUATION_SEED, backend=backend)
    before = evaluate(agent(4, 3.0), "InvertedPendulum-v4", 20, seed=EVALUATION_SEED, backend=backend)
    chosen = scenes.choose_scenes(Path("a policy"), ({"prior": before} if prior else {}) | {"customized": found})
    typical, worst = (EVALUATION_SEED + place for place in typical_and_worst(found)[0])
    assert worst == EVALUATION_SEED + found.basic.argmin()
    shots = [scene.shot for scene in chosen]
    assert [scene.kind for scene in chosen] == ["prior"] * prior + ["customized"] * 2
    assert [shot.seed for shot in shots] == [typical] * (1 + prior) + [worst]
    assert {shot.is_in_envpool for shot in shots} == {backend == "envpool"}  # where these actions do the same again
    assert [shot.role for shot in shots] == ["prior"] * prior + ["policy"] * 2
    assert shots[-1].center_step == len(shots[-1].actions) == found.lengths[worst - EVALUATION_SEED]
    assert f"it ended early, at step {shots[-1].center_step}" in chosen[-1].caption


@pytest.mark.usefixtures("_renderer")
def test_films(policy: str, tmp_path: Path) -> None:
    """They move and are what they are called; they show what was done to the end of the episode and no more.

    All are drawn by one process. Of `shown` there is a picture a step: from ten steps before the one in the middle to
    the last that the episode has. Through noise each step of a chunk is shown, and none of what an episode leaves.
    """
    pytest.importorskip("envpool")
    small = Shot(policy, ENV, seconds=0.4, width=96, height=64)
    pushing = Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-1.0,), (1.0,))))
    pushing.network.biases[-1].data.fill_(1.0)
    save_policy(tmp_path / "other.safetensors", pushing, {})
    only_envpool_has_it = replace(small, policy=str(tmp_path / "other.safetensors"), env="PendulumSwingup-v1")
    save_policy(tmp_path / "agent.safetensors", agent(4, 3.0), {})
    one = first_episode(evaluate(agent(4, 3.0), "InvertedPendulum-v4", 3, seed=EVALUATION_SEED, backend="gymnasium"), 2)
    still = replace(small, format="gif", seconds=9.0, env="InvertedPendulum-v4")
    shot = replace(still, policy=str(tmp_path / "agent.safetensors"), seed=one.seed, actions=one.actions.tolist())
    steps = len(one.rewards)
    assert steps > 13
    shown = [shot, replace(shot, seconds=0.8, center_step=steps), replace(shot, actions=[[3.0]] * 5)]
    noise, length = through_noise(tmp_path)
    hopping = Policy(PolicySpec(11, ActionSpace("continuous", (3,), (-1.0,) * 3, (1.0,) * 3)))
    save_policy(tmp_path / "hopper.safetensors", hopping, {})
    option = replace(small, policy=str(tmp_path / "hopper.safetensors"), env="Hopper-v4?healthy_z_min=0.5")
    found = render_films([small, replace(small, format="gif"), only_envpool_has_it, option, *shown, noise])
    assert found[0][4:8] == b"ftyp"
    assert found[1][:4] == b"GIF8"
    for content, name in zip(found, ("film.mp4", "film.gif", "other.mp4", "hop.mp4"), strict=False):
        seen = pictures(content, tmp_path / name)
        assert len(seen) >= 9
        assert seen[0].std() > 10
        assert np.abs(seen[0] - seen[1:]).max() > 30
    whole, end, pushed, chunks = (Image.open(io.BytesIO(content)) for content in found[4:])
    assert [film.n_frames for film in (whole, end, pushed, chunks)] == [steps, 10, 5, length]
    whole.seek(4), pushed.seek(4)
    assert ImageChops.difference(whole.convert("RGB"), pushed.convert("RGB")).getbbox()  # the policy does otherwise


def through_noise(folder: Path) -> tuple[Shot, int]:
    """An episode of a policy whose decisions are chunks of three steps and which ends inside one, and its length."""
    (folder / "flow.py").write_text("def decode(observations, noise):\n    return noise.repeat(3, 1)\n")
    env, path = f"InvertedPendulum-v4?decoder={folder}/flow.py:decode&noise=1&chunk=3", folder / "p.safetensors"
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,))))
    policy.network.biases[-1].data.fill_(1.0)
    save_policy(path, policy, {})
    found = evaluate(policy, env, 3, seed=EVALUATION_SEED, backend="gymnasium")
    lengths = [int(paid) for paid in found.basic]  # each step is paid 1
    [place, *_] = [place for place, length in enumerate(lengths) if length % 3]
    one = first_episode(found, place)
    shot = Shot(str(path), env, seed=one.seed, format="gif", actions=one.actions.tolist(), width=96, height=64)
    return shot, lengths[place]


def test_choices_that_are_done_again_are_counted_as_policies_count_them() -> None:
    """`sent` has the environment's own numbers, which an environment may count from elsewhere than 0."""
    shot = Shot("", "", actions=[[2], [4]])
    assert filming.recorded_actions(shot, ActionSpace("discrete", (3,), (2.0,))).tolist() == [[0], [2]]
    assert filming.recorded_actions(shot, ActionSpace("discrete", (5,))).tolist() == [[2], [4]]
    assert not filming.recorded_actions(Shot("", ""), ActionSpace("discrete", (3, 2), (2.0, 1.0))).size


def test_a_film_is_made_coarser_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = [np.random.default_rng(i).integers(0, 255, (64, 96, 3), np.uint8) for i in range(3)]
    fine, coarse = (filming._encode_film(noise, 25, "mp4", quality) for quality in (QUALITIES[0], QUALITIES[-1]))
    assert len(coarse) < 0.5 * len(fine)
    monkeypatch.setattr(filming, "_encode_film", lambda pictures, rate, format, quality: bytes(100 - quality))
    sizes = [len(encode_film(noise, 25, "mp4", max_bytes)) for max_bytes in (0, 68, 67, 1)]
    assert sizes == [100 - quality for quality in (28, 32, 36, 51)]


def test_a_page_does_without_films_where_there_is_no_room_for_them(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("tempfile.mkdtemp", mock.Mock(side_effect=full))
    films, complaint = pieces.films_for_page([Shot(policy, ENV)])
    assert films == [b""]
    assert complaint.startswith("films need room for temporary files: No space left on device; TMPDIR")


def test_films_that_are_missing_on_a_page_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise UsageError("no light")

    monkeypatch.setattr(pieces, "render_films", failed)
    said: list[str] = []
    assert pieces.films_for_page([Shot("a", "b")] * 2, said.append) == ([b"", b""], "no light")
    assert said == ["report: no films, no light"]
