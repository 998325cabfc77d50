"""Every command of the pages runs, typed as a reader types it, with fewer steps and episodes."""

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, snippets
from quick_graphs import quick_graph
from typed_commands import with_few_states, worked

from repolicy import evaluation
from repolicy.cli import main as cli
from repolicy.many import positions, sweep
from repolicy.planning import asking, value
from repolicy.policies import export
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare import diagnosis, weights, worth
from repolicy.priors.finding import find_policy
from repolicy.report import filming, pieces
from repolicy.report import movie as film
from repolicy.wishes import ask_page
from repolicy.wishes.pairs import Pairs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if "llm" not in page.name)]

FEW = "--envs 4 --n-steps 16 --minibatch 32 --hidden 8 --ranks 1 --evaluation-episodes 1 --checkpoint-every 4"
FEWER = {
    "train": f"--steps 64 {FEW}",
    "customize": f"--steps 64 {FEW} --no-report",
    "sweep": f"--steps 64 {FEW} --episodes 1",
    "bench": f"--slices 1 {FEW}",
    "dial": "--episodes 1",
    "evaluate": "--episodes 1",
    "compare": "--episodes 2",
    "render": "--seconds 0.1 --width 32",
    "plan": "--episodes 1 --steps 20 --samples 8",
    "rql": "--steps 100 --warmup 20",
    "ask": "--pairs 8 --seconds 0.2",
    "takeover": "--steps 300 --person me.py:act",
    "infer": "--alone 1600",
    "learn-wish": "--record-steps 60 --rounds 1 --person me.py:act",
}
# Downloads, a hub, several machines; and the files of your-policy.md, tested on their own: these are only parsed.
NOT_HERE = re.compile(
    r"--live|flow\.py|runs/flow|go1_policy|playground:|hf://|torchrun|swing\.py|runs/calm|policy\.onnx|lstm\.pt|cheetah\.npz|"
    r"imitated|model_200|report (logs|customized)" + ("" if find_spec("envpool") else "|Go1Joystick")
)


def command_lines(page: Path) -> list[str]:
    """Lines in a block of code that begin with the command, without their comments."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^(?:    )?((?:torchrun .* -m )?repolicy [^`\n]+)$", text, re.MULTILINE)
    return [line.split("  #")[0].split(" # ")[0].strip() for line in found]


def commands_in_sentences(page: Path) -> list[str]:
    """Those with an option, in a sentence or a table, with a number for the seed S."""
    found = re.findall(r"`(repolicy [^`]* --[^`]+)`", page.read_text().replace("\n", " "))
    return [line.replace("--seed S", "--seed 0") for line in found if "..." not in line]


def test_there_is_something_to_run() -> None:
    assert len([line for page in PAGES for line in command_lines(page)]) > 40
    assert len([line for page in PAGES for line in commands_in_sentences(page)]) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_are_understood(page: Path) -> None:
    for line in commands_in_sentences(page):
        understood(shlex.split(line)[1:])


@pytest.mark.parametrize("name", ["Makefile", ".ci/wheel"])
def test_the_commands_of_the_builds_are_understood(name: str) -> None:
    lines = re.findall(r"^\s*(?:\$\(BIN\)/)?repolicy (?!\()([^|\n]+)", (ROOT / name).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        understood([word for word in shlex.split(line) if "${" not in word])


def understood(words: list[str]) -> None:
    """Fails for a command, or an option of it, that is not there."""
    if "--help" not in words:
        cli._parse_command(words)


# Running them ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages take for granted: two files of one's own, and some runs."""
    place = tmp_path_factory.mktemp("desk")
    for name, code in zip(("my_envs.py", "my_rewards.py"), snippets("quickstart.md"), strict=False):
        (place / name).write_text(code)
    with (place / "my_envs.py").open("a") as file:
        file.write("\n\nMaze = Puck\n")
    with (place / "my_rewards.py").open("a") as file:
        file.write("\n\ndef quiet(observations, actions, after, info):\n    return -0.1 * np.square(actions).sum(-1)\n")
    shutil.copy(place / "my_rewards.py", place / "rewards.py")
    (place / "me.py").write_text(
        "import numpy as np\ndef act(o, a): return np.zeros(6)\nact.wants = lambda o, a, acts: o[2] > 0\n"
    )
    cheetah = PolicySpec(17, ActionSpace("continuous", (6,), (-1.0,) * 6, (1.0,) * 6), hidden=(8,))
    save_policy(place / "theirs.safetensors", Policy(cheetah), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        quick(patch)
        run("repolicy train my_envs.py:Puck --alpha 0.01 --out runs/puck")
        run("repolicy train HalfCheetah-v4 --alpha 0.1 --out runs/cheetah")
        wanted = "--addon my_rewards.py:dry=10 --omega 0.1 --out runs/dry"
        run(f"repolicy customize runs/puck --env my_envs.py:Puck {wanted}")
        run("repolicy customize runs/cheetah --addon hind_leg=10 --omega 0.1 --out runs/spare-leg")
    shutil.copytree(place / "runs/puck", place / "runs/maze")
    return place


@pytest.fixture
def folder(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the desk."""
    shutil.copytree(desk, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    quick(monkeypatch)
    return tmp_path / "desk"


def quick(patch: pytest.MonkeyPatch) -> None:
    """Short episodes and trials, few observations to fit, and no other processes: for pictures and a sweep's points."""
    patch.setattr(evaluation, "episode_cap", lambda _: 20)
    patch.setattr(worth, "MAX_EPISODE_STEPS", 20)
    with_few_states(patch)
    for name, few in (("STEPS", 2), ("SKIPPED_STEPS", 0)):
        patch.setattr(asking, name, few)
    patch.setattr(value, "BLOCKS", 4)
    patch.setattr(export, "onnx_graph", quick_graph)
    patch.setattr(diagnosis, "DIAGNOSIS_STEPS", 50)
    patch.setattr(weights.collect_trial, "__defaults__", (32,))  # steps of each environment
    patch.setattr(worth.measure_worths, "__defaults__", ("auto", 4))  # episodes of each kind, in a round
    patch.setattr(positions, "STOPS", (3, 2))  # positions of one dial, and of each of two
    patch.setattr(positions, "TENTHS", [0.5, 1.0])
    patch.setattr(film, "render_films", filmed)
    patch.setattr(pieces, "render_films", filmed)
    patch.setattr(ask_page, "render_films", filmed)
    patch.setattr(sweep, "run_jobs", worked)


def filmed(shots: Sequence[film.Shot], say: object = None) -> list[bytes]:
    """Two pictures of an environment that draws itself; MuJoCo's films have tests of their own."""
    for shot in shots:
        film._check(shot)
    if ":" in shots[0].env:
        short = replace(shots[0], policy=str(find_policy(shots[0].policy)), seconds=0.01)
        return [filming.encode_film(*filming.render_pictures(short), short.format)] * len(shots)
    return [b"a film"] * len(shots)


def answered(folder: Path) -> None:
    """Save answers to a page, by a person who prefers left and right in turn."""
    pairs = Pairs.read(folder)
    lines = (f'{{"page": "{pairs.page}", "pair": {p}, "answer": "{("left", "right")[p % 2]}"}}\n' for p in range(8))
    Path("answers.jsonl").write_text("".join(lines))


def run(line: str) -> None:
    """Fails where the command does, with what it said."""
    words = shlex.split(line)[1:]
    if words[:2] == ["infer", "answers.jsonl"]:
        answered(Path(words[words.index("--asked") + 1]))
    few = [] if {"--at", "--asked"} & {*words} else FEWER.get(words[0], "").split()
    if "--resume" in words:
        few = ["--no-report"] * (words[0] == "customize")  # with what began the run
    elif "--out" in words and (out := Path(words[words.index("--out") + 1])).is_dir():
        shutil.rmtree(out)
    try:
        cli.main([*words, *few])
    except SystemExit as ended:
        if ended.code and not (words[0] == "compare" and ended.code == 3):  # two episodes tell nothing
            pytest.fail(f"{line} ended with {ended.code}")


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # of HalfCheetah-v4, the paper's
@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    lines = command_lines(page)
    if any("theirs.zip" in line for line in lines):
        sb3 = pytest.importorskip("stable_baselines3")
        sb3.PPO("MlpPolicy", "HalfCheetah-v4", n_steps=8, batch_size=8).save("theirs.zip")
    missing: set[str] = set()  # what a command that is not run would have written
    for line in lines:
        words = shlex.split(line.partition("-m ")[2] or line)
        if (NOT_HERE.search(line) and "my_envs" not in line) or missing & set(words):
            understood(words[1:])
            missing |= {words[words.index("--out") + 1]} if "--out" in words else set()
        else:
            run(line)


def test_the_quickstart_in_python(folder: Path) -> None:
    code = snippets("quickstart.md")[2]
    few = '"steps": 64, "envs": 4, "n_steps": 16, "minibatch": 32, "ranks": 1, "checkpoint_every": 4'
    assert '"steps": 200_000' in code
    exec(code.replace('"steps": 200_000', few), {})
    assert (folder / "runs/again/policy.safetensors").exists()


def test_the_examples_of_the_reference(folder: Path) -> None:
    few = '"steps": 64, "envs": 4, "n_steps": 16, "minibatch": 32, "ranks": 1, "checkpoint_every": 4, "hidden": (8,)'
    few += ', "evaluation_episodes": 1'
    names: dict[str, Any] = {}
    for code in snippets("api.md"):
        exec(code.replace('"steps": 100_000', few), names)
    assert names["same"]
    assert names["page"].exists()
    assert len(names["swept"].points) == 2


def test_a_command_that_fails_would_be_noticed(folder: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        run("repolicy evaluate runs/none")
