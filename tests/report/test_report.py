"""The page of a run: it holds the evaluation's own numbers and needs nothing else; it is whole without films."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from repolicy.addons.addon import combine_addons
from repolicy.cli import main as cli
from repolicy.differences import Column, rounded
from repolicy.errors import FileError, RepolicyError
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.learning.training import customize, train
from repolicy.objective import Objective, residual, soft
from repolicy.policies.file import save_policy
from repolicy.prepare.decision import decide
from repolicy.prepare.defaults import customize_defaults, train_defaults
from repolicy.priors.opening import read_policy
from repolicy.report import page, pieces
from repolicy.report import run_page as report
from repolicy.report.charts import curve, short_number, tick_labels, ticks
from repolicy.report.movie import CANNOT_RENDER, Shot
from repolicy.report.run_page import write_report
from repolicy.report.verdict import verdict
from repolicy.runs.folder import RunFolder
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings
from repolicy.text import format_number

ENV = "InvertedPendulum-v4"
SETTINGS = Settings(steps=1024, ranks=1, envs=8, n_steps=32, minibatch=256, checkpoint_every=2, evaluation_episodes=4)


def calm(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    """Prefer a pole that
    is upright.

    This is no part of what reports show.
    """
    return -np.abs(next_observations[..., 0])


def distance(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    return np.abs(next_observations[..., 0])


calm.metric = distance
CALM = f"{__file__}:calm"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    """A plain run, and one that customizes its policy."""
    plain, customized = (RunFolder(tmp_path_factory.mktemp("runs") / name) for name in ("plain", "customized"))
    train(ENV, soft(0.01), plain.path, SETTINGS)
    customize(plain.path, CALM, residual(0.1, 0.01), customized.path, SETTINGS)
    return plain, customized


def copied(run: RunFolder, path: Path, **settings: float) -> RunFolder:
    """A copy of a run that was asked for with these settings."""
    folder = RunFolder(shutil.copytree(run.path, path))
    story = json.loads((path / "run.json").read_text())
    story["request"]["settings"] |= settings
    (path / "run.json").write_text(json.dumps(story))
    return folder


@pytest.fixture
def _no_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(shots: list[Shot], say: object) -> list[bytes]:
        raise RepolicyError(CANNOT_RENDER)

    monkeypatch.setattr(pieces, "render_films", refuse)


@pytest.fixture
def _short_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pieces, "render_films", lambda shots, say: [f"film of the {shot.role}".encode() for shot in shots]
    )


@pytest.mark.usefixtures("_short_films")
def test_the_page_holds_the_numbers_of_the_evaluation_and_asks_nobody(runs: tuple[RunFolder, RunFolder]) -> None:
    _, folder = runs
    text = write_report(folder.path, episodes=4, trust=True).read_text()
    saved, addon = read_policy(folder.policy), combine_addons([CALM])
    assert saved.prior is not None
    options = {"addon": addon, "prior": saved.prior, "seed": EVALUATION_SEED, "backend": "gymnasium"}
    pairs = [
        [evaluate(policy, ENV, 4, deterministic=kind, **options) for policy in (saved.prior, saved.policy)]
        for kind in (True, False)
    ]
    for name in ("total_reward", "basic_reward", "addon_reward", "metric"):
        assert all(format_number(found.columns[name].mean) in text for found in pairs[0])
    assert "mean distance" in text
    above = unescape(text[: text.index('class="tiles"')])
    assert all(sentence[1:] in above for sentence in verdict(pairs))
    hint = report.next_step_hint(folder, folder.load_request(), pairs)
    assert hint
    assert f"To try next: {hint}." in above
    assert "<dt>calm</dt><dd>Prefer a pole that is upright.</dd>" in above
    assert text.count("<video") == 3  # prior, typical, worst
    assert text.count("<figcaption>KL to the prior") == 1
    assert not re.search(r'(src|href)="(?!data:)|https?://|@import|url\(', text)


def test_a_run_whose_limit_only_envpool_measures_is_evaluated_and_filmed_there(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("envpool")
    folder, shots = copied(runs[1], tmp_path / "limited"), list[Shot]()
    monkeypatch.setattr(pieces, "render_films", lambda asked, say: shots.extend(asked) or [b"a film"] * len(asked))
    for limits in (["elapsed_step<=999"], []):
        story = json.loads((folder.path / "run.json").read_text())
        story["request"]["limits"] = limits
        (folder.path / "run.json").write_text(json.dumps(story))
        text = write_report(folder.path, episodes=2, trust=True).read_text()
        assert ("elapsed_step&lt;=999 holds" in text) == bool(limits)
        assert shots.pop().is_in_envpool == bool(limits)


def test_a_page_may_be_of_a_file_whose_name_is_no_utf8(tmp_path: Path) -> None:
    assert "<h1>a?b</h1>" in page.write(tmp_path / "report.html", "a\udcfcb", "", []).read_text()


@pytest.mark.usefixtures("_short_films")
def test_a_clone_of_the_prior_is_called_one(runs: tuple[RunFolder, RunFolder], tmp_path: Path) -> None:
    """The run was scored by the prior itself: the clone's levels are none of its curves'."""
    for name, more in (("copied", {}), ("clone", {"prior_is": {"kl": 0.1}})):
        folder = copied(runs[1], tmp_path / name)
        saved = read_policy(folder.policy)
        save_policy(folder.policy, saved.policy, saved.card | more, saved.prior)
        folder.prior.unlink()  # copied without it: what acts is in the policy's file
        said: list[str] = []
        text = write_report(folder.path, episodes=2, trust=True, say=said.append).read_text()
        lead = text.partition("</header>")[0]
        assert ("the clone of its prior" in said[1], "beside the clone of its prior" in lead) == (bool(more),) * 2
        assert ('class="level prior"' in text) == (not more)


@pytest.mark.usefixtures("_no_renderer")
def test_the_page_says_which_policy_it_shows_and_one_episode_has_no_std(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    folder = copied(runs[0], tmp_path / "run")
    one = write_report(folder.path, episodes=1).read_text()
    shutil.copy(folder.policy, folder.replaced)
    two = write_report(folder.path, episodes=2).read_text()
    leads = [each.partition("</header>")[0] for each in (one, two)]
    assert ["Shown is the last policy" in each for each in leads] == [True, False]
    assert ["clearly better than the last one" in each for each in leads] == [False, True]
    assert ["One episode a row" in each for each in (one, two)] == [True, False]
    assert ["ean ± std" in each for each in (one, two)] == [False, True]
    assert "Mean ± std over 2 episodes a row" in two


@pytest.mark.usefixtures("_no_renderer")
@pytest.mark.parametrize("which", [0, 1])
def test_without_a_renderer_the_page_says_so_and_has_the_rest(runs: tuple[RunFolder, RunFolder], which: int) -> None:
    told: list[str] = []
    text = write_report(runs[which].path, episodes=2, trust=True, say=told.append).read_text()
    assert told[-1] == f"report: no films, {CANNOT_RENDER}"
    assert CANNOT_RENDER in unescape(text)
    assert "<video" not in text
    for heading in ("What it earns", "While it learned", "The same again"):
        assert heading in text
    assert "<svg" in text


@pytest.mark.usefixtures("_short_films")
def test_an_unknown_basic_reward_is_left_out(
    runs: tuple[RunFolder, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = report.evaluate

    def without_basic(*arguments: object, **options: object) -> object:
        found = real(*arguments, **options)
        found.basic[:] = np.nan
        return found

    monkeypatch.setattr(report, "evaluate", without_basic)
    text = write_report(runs[1].path, episodes=2, trust=True).read_text()
    assert ">basic reward</th>" not in text
    assert ">add-on reward</th>" in text
    assert "the environment tells no basic reward" in text
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text)


@pytest.mark.parametrize("which", [0, 1])
def test_the_command_on_the_page_asks_for_the_same_run(runs: tuple[RunFolder, RunFolder], which: int) -> None:
    request = runs[which].load_request()
    words = shlex.split(report.repeat_command(runs[which], request))
    command = cli._parse_command(words[1:])
    steps = command.named_settings.get("steps", 1_000_000)
    usual = customize_defaults(read_policy(command.prior).policy, steps) if which else train_defaults(ENV)
    settings = replace(usual, **command.named_settings)
    assert settings == request.settings
    assert command.addon == request.addons
    if which:
        chosen = decide(command.parse_objective(), read_policy(command.prior), ENV, command.addon, settings)
        assert chosen.objective == request.objective
        assert read_policy(command.prior).card == read_policy(runs[which].prior).card
    else:
        assert (command.env, command.objective, command.alpha) == (ENV, "soft", 0.01)


def test_no_command_is_shown_for_a_run_that_none_can_repeat(runs: tuple[RunFolder, RunFolder]) -> None:
    request = runs[1].load_request()
    assert report.repeat_command(runs[1], replace(request, objective=Objective("both", omega=0.05, alpha=0.1))) == ""
    assert "--sparse" in report.repeat_command(runs[1], replace(request, sparse=True))


@pytest.mark.usefixtures("_no_renderer")
def test_a_run_that_is_not_finished_says_so_and_is_advised_to_go_on(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    """Whether it was stopped or is at work, the folder is the same; its critic may be at its warm-up still."""
    said = "This run is not finished: 1,024 of 9,216 steps are done so far, and this is what there is."
    half, other = (copied(run, tmp_path / f"half{n}", steps=9216) for n, run in enumerate(runs))
    assert said in write_report(half.path, episodes=1).read_text()
    assert report.next_step_hint(other, other.load_request(), []).startswith("go on with it (--resume)")
    whole = copied(runs[0], tmp_path / "whole")
    shutil.rmtree(whole.path / "checkpoints")  # as where a run was copied without them
    assert "not finished" not in write_report(whole.path, episodes=1).read_text()


@pytest.mark.usefixtures("_no_renderer")
def test_a_budget_is_shown_beside_what_was_spent_and_no_weight_that_it_moves_is_advised(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    folder = copied(runs[1], tmp_path / "held", kl_budget=0.5)
    spent = folder.read_metrics()["prior_kl"][-1]
    text = unescape(write_report(folder.path, episodes=2, trust=True).read_text())
    assert f"At its end: {spent:.2f} nats a step, the budget is 0.5." in text.partition("</header>")[0]
    assert "--omega" not in text[: text.index('class="tiles"')]


@pytest.mark.usefixtures("_no_renderer")
def test_a_run_of_one_iteration_has_a_page_without_curves(runs: tuple[RunFolder, RunFolder], tmp_path: Path) -> None:
    folder = copied(runs[1], tmp_path / "one")
    first, *_ = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text(first)
    assert "Fewer than two iterations are logged" in write_report(folder.path, episodes=2, trust=True).read_text()


@pytest.mark.usefixtures("_no_renderer")
def test_a_result_names_its_folder_and_is_trusted(runs: tuple[RunFolder, RunFolder]) -> None:
    result = Result(runs[1].path, 4096, True, {})  # its add-on is code
    assert write_report(result, episodes=1) == runs[1].path / "report.html"


def test_a_folder_without_a_run_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no run"):
        write_report(tmp_path)


def test_numbers_have_the_digits_that_a_reader_wants() -> None:
    values = [12345.6, -3.14159, 54.32, float("nan"), -0.0004, 7.2e-9]
    assert [format_number(each) for each in values] == ["12,346", "−3.14", "54.3", "unknown", "−0.00040", "0.00"]


def test_a_mean_ends_at_the_second_digit_of_its_error() -> None:
    assert rounded(653.2, 84.1) == "653"
    assert rounded(0.0123, 0.0004) == "0.01230"
    assert rounded(5.123456, 0.00012) == "5.12346"
    assert rounded(84.1, 84.1, of=653.2) == "84"
    assert rounded(0.005, 0.005, of=0.5) == "0.005"
    assert rounded(1.5, 0.0) == format_number(1.5)
    assert rounded(1.6e-6, 1.4e-8) == "0.000001600"
    assert rounded(4.956, 1.3e-16) == format_number(4.956)  # as of episodes that all earn the same
    assert rounded(1.3e-16, 1.3e-16, of=4.956) == "0.00"
    assert [rounded(-0.3, 84.1), rounded(-0.001, 0.1), rounded(-1.3, 0.84)] == ["0", "0.00", "−1.30"]


def test_one_episode_has_no_spread() -> None:
    assert Column("", np.array([7.5])).describe() == "7.50"
    assert Column("", np.array([7.0, 8.0])).describe() == "7.50 ± 0.71"


def test_ticks_are_round_and_inside_and_have_labels_of_their_own() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert ticks(-7.0, 23.0) == pytest.approx([0.0, 10.0, 20.0])
    assert ticks(2.0, 2.0) == [2.0]
    assert tick_labels([3650.0, 3652.5, 3655.0]) == ["3.65k", "3.6525k", "3.655k"]
    assert tick_labels([-0.5, 0.0, 0.25, 2e6]) == ["−0.5", "0", "0.25", "2M"]
    assert tick_labels([]) == []
    assert [short_number(value) for value in (999.4, 999.7, 999_600.0, -1500.0)] == ["999", "1k", "1M", "−1.5k"]


def test_a_curve_is_drawn_from_two_points_on_and_tells_its_own_ends() -> None:
    """Not those of the means that are drawn of a long one."""
    for ys in ([None, None, None], [1.0, None, float("nan")], []):
        assert curve("nothing", [float(x) for x in range(len(ys))], ys) == ""
    long = curve("x", [*range(1000)], [float(value) for value in range(1, 1001)])
    assert "<output>1,000.0</output>" in long
    assert "from 1.00 to 1,000.0" in long
    for level in (0.0, 5.0):
        constant = curve("level", [1.0, 2.0, 3.0], [level] * 3)
        assert ("<path" in constant, "nan" in constant) == (True, False)


def test_of_a_generative_policy_sampled_noise_comes_first() -> None:
    for env, first in (("Hopper-v4", "mean"), ("Hopper-v4?decoder=flow.py:decode&noise=4&chunk=2", "sampled")):
        both = ({"policy": SimpleNamespace(env=env, name=name)} for name in ("mean", "sampled"))
        assert pieces.deciding_first(*both)[0]["policy"].name == first


NO_CHANGE = "no certain difference (0.00 ± 0.00); prior −2.00"


def test_a_tile_says_what_changed_and_whether_that_is_good() -> None:
    seeds = count()  # so the two are drawn apart

    def evaluation(basic: float, addon: float, metric: float) -> Evaluation:
        wave, one = np.array([-1.0, 1.0] * 5), np.ones(10)  # √(10/9 · 2/10) = 0.47
        returns = wave + basic, 0 * wave + addon, 0 * wave + metric
        return Evaluation("env", "gymnasium", True, next(seeds), *returns, one, one, -2.0 * one, metric_name="mean z")

    found = pieces.reward_tiles({"prior": evaluation(100, 5, 0.3), "customized": evaluation(101, 9, 0.2)})
    said = {tile.name: (tile.change, tile.standing, tile.unit) for tile in found}
    assert said == {
        "total reward": ("▲ 5.00 ± 0.47 better; prior 105.0", "better", "an episode, with the mean action"),
        "basic reward": ("no certain difference (1.00 ± 0.47); prior 100.0", "", "an episode, with the mean action"),
        "mean z": ("▼ 0.100 ± 0.00 lower; prior 0.30", "", "mean of an episode, with the mean action"),
        "add-on reward": ("▲ 4.00 ± 0.00 better; prior 5.00", "better", "an episode, with the mean action"),
        "log prior a step, nats": (NO_CHANGE, "", "mean over all steps, with the mean action"),
    }
    assert pieces.reward_tiles({"policy": evaluation(1, 2, 3)})[0].change == ""


def test_a_page_that_cannot_be_written_is_told_before_the_work(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    folder, told = copied(runs[0], tmp_path / "run"), list[str]()
    (folder.path / "report.html").unlink(missing_ok=True)
    (folder.path / "report.html").mkdir()
    with pytest.raises(FileError, match="report.html is no file that could be written"):
        write_report(folder.path, say=told.append)
    assert not told
