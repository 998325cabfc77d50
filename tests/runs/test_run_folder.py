"""A run's folder: its newest whole checkpoint, one request, one run at a time; and what its display says."""

import errno
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import repolicy
from repolicy.errors import FileError, UsageError
from repolicy.files import write_json
from repolicy.objective import full, kl, repeat_entropy, residual, soft
from repolicy.policies.storage import FORMAT
from repolicy.runs.callbacks import LINE_METRICS, PANEL_ROWS, Display, TensorBoard, Wandb, recipe
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings

STATE = {"parameters": torch.arange(4.0)}


def test_the_newest_two_checkpoints_are_kept_by_number_and_the_newest_is_taken(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for segment in (9, 999_998, 999_999, 1_000_000, 1_000_001):
        folder.save(segment, {"parameters": STATE["parameters"] * segment}, {"iteration": 10 * segment})
        (tmp_path / "checkpoints" / "1 copy.safetensors").touch()
        tensors, story, complaints = folder.latest_checkpoint()
        assert torch.equal(tensors["parameters"], STATE["parameters"] * segment)
        assert (story["segment"], story["iteration"], complaints) == (segment, 10 * segment, [])
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["1 copy.safetensors", "1000000.safetensors", "1000001.safetensors"]


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_when_all_are_that_is_said(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for segment in (1, 2):
        folder.save(segment, STATE, {"iteration": 10 * segment})
    before, newest = sorted((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    _, story, [complaint] = folder.latest_checkpoint()
    assert story["segment"] == 1
    assert re.search("000002.safetensors is damaged.*; going on from the one before$", complaint)
    before.write_bytes(b"")
    said = r"000002.* is damaged.*000001.* is damaged.*: delete .*checkpoints to begin anew$"
    with pytest.raises(FileError, match=said):
        folder.latest_checkpoint()


REQUEST = Request("Ant-v4", soft(0.1), Settings(steps=100), ("a",))


@pytest.mark.parametrize(
    "name", ["policy.safetensors", "metrics.jsonl", "prior.safetensors", "sweep.json", "plan.json", "report.html"]
)
def test_files_of_nobodys_run_are_not_written_over(tmp_path: Path, name: str) -> None:
    mine, prior = tmp_path / name, tmp_path / "elsewhere"
    mine.write_text("mine")
    prior.write_text("a prior")
    with pytest.raises(UsageError, match=f"{name} is there already, and of no run"):
        RunFolder(tmp_path).begin(REQUEST, {}, False, prior)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "run.json").exists()


def test_a_run_that_was_killed_as_it_began_may_begin_again(tmp_path: Path) -> None:
    (tmp_path / "prior.safetensors").write_text("a prior")
    RunFolder(tmp_path).begin(REQUEST, {}, True, b"a prior")
    assert RunFolder(tmp_path).request() == REQUEST


@pytest.mark.parametrize("mine", [(), ("prior",), ("init",), ("prior", "init")])
def test_a_claim_that_is_given_up_leaves_what_was_there_before(tmp_path: Path, mine: tuple[str, ...]) -> None:
    for name in mine:
        (tmp_path / f"{name}.safetensors").write_text(name)
    folder = RunFolder(tmp_path)
    folder.begin(REQUEST, {}, False, b"prior", b"init")
    folder.release()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {f"{n}.safetensors": n for n in mine}


def test_a_folder_belongs_to_one_request(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.request() is None
    folder.begin(REQUEST, {"torch": "2"}, resume=False)
    folder.begin(REQUEST, {"torch": "3"}, resume=True)
    assert folder.request() == REQUEST
    with pytest.raises(UsageError, match="holds a run already; add --resume to go on with it, or choose another --out"):
        folder.begin(REQUEST, {}, resume=False)
    other = Request("Hopper-v4", soft(0.1), Settings(steps=200), ("a",))
    with pytest.raises(
        UsageError, match="with other settings: env was Ant-v4 and is now Hopper-v4; steps was 100 and is now 200$"
    ):
        folder.begin(other, {}, resume=True)
    with pytest.raises(UsageError, match=r"limits was nothing and is now \['a<=1'\]$"):
        folder.begin(replace(REQUEST, limits=("a<=1",)), {}, resume=True)
    assert folder.request() == REQUEST
    customizing = RunFolder(tmp_path / "customized")
    customizing.begin(replace(REQUEST, prior="0"), {}, resume=False)
    with pytest.raises(UsageError, match="is now 200; a new --out takes them, .* with --init .*customized$"):
        customizing.begin(replace(REQUEST, prior="0", settings=Settings(steps=200)), {}, resume=True)


def test_a_run_that_began_before_there_was_a_setting_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(REQUEST, {}, resume=False)
    del folder._header["request"]["settings"]["surrogate"]
    write_json(tmp_path / "run.json", {"format": FORMAT} | folder._header)
    folder.save(1, STATE, {"iteration": 10})
    assert folder.begin(REQUEST, {}, resume=True) == []


@pytest.mark.parametrize("there_before", [False, True])
def test_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool) -> None:
    """Also where no lock was there before another run made it at the same moment."""
    folder = RunFolder(tmp_path / "run")
    if there_before:
        folder.path.mkdir()
    with folder.locked():
        monkeypatch.setattr(os.path, "lexists", lambda path: False)
        with pytest.raises(FileError, match="another run is at work in .*run; wait for it"):
            RunFolder(tmp_path / "run").locked().__enter__()
        assert (folder.path / ".lock").exists()
    with folder.locked():
        pass  # it is free again
    assert folder.path.exists() == there_before


def test_a_folder_that_is_a_file_and_a_disk_without_locks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot be used as a run's folder: File exists"):
        RunFolder(tmp_path / "file").locked().__enter__()
    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(FileError, match="run cannot be locked: No locks available; choose an --out on another disk"):
        RunFolder(tmp_path / "run").locked().__enter__()


SETTINGS = repolicy.Settings(steps=100_000, ranks=2)
METRICS = {
    "iteration": 25, "steps": 102_400, "steps_per_second": 8_123.0, "share_physics": 0.5, "share_policy": 0.2,
    "share_update": 0.3, "omega": 0.123, "alpha": 0.1, "prior_kl": 0.9, "below_prior": 1.4, "kept": -0.25,
    "entropy": -1.2, "evaluation_objective": 12.0, "evaluation_addon": -4.2,
    "reward_prior": 0.0, "basic_return": 3000.2, "episode_length": 1000,
}  # fmt: skip


def asked(objective: Any = None, prior: str = "abc", **changed: Any) -> Request:
    return Request("Hopper-v4", objective or kl(0.1), replace(SETTINGS, **changed), ("height",), prior)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (asked(residual(0.6, 0.13472, 0.2)), "ω′ 0.6 · α̂ 0.135 · states 0.2 · 100,000 steps on 2 cores"),
        (asked(soft(0.13472), "", ranks=1), "α 0.135 · 100,000 steps"),
        (asked(repeat_entropy(0.2), "", ranks=1), "α 0.2 · 0.2 · entropy in the loss · 100,000 steps"),
        (
            asked(kl_budget=2.0, ranks=1),
            "ω′ 0.1 · α̂ 0.1 · states 0 · from there ω′ and α̂ move to stay 2 nats a step from the prior · 100,000 steps",
        ),
        (
            asked(residual(0.3, 0.1), log_prior_budget=3.0, ranks=1),
            "ω′ 0.3 · α̂ 0.1 · states 0 · from there ω′ moves until actions are 3 nats less likely than the prior's own "
            "· 100,000 steps",
        ),
        (asked(full(0.0), "", ranks=1), "100,000 steps"),
    ],
)
def test_the_weights_and_the_length_stand_first(request_: Request, sentence: str) -> None:
    assert recipe(request_) == sentence


def lines(capsys: pytest.CaptureFixture[str], request: Request) -> list[str]:
    display = Display()
    display.begin(request, 0, 25)
    display.write(METRICS)
    return capsys.readouterr().err.splitlines()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich shows no panel there before it is closed."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # counts as a terminal
    monkeypatch.setenv("TERM", "dumb")
    assert "100,000 of 100,000 steps" in lines(capsys, asked(ranks=1))[1]


def test_a_line_says_what_each_number_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    first, line = lines(capsys, asked(ranks=1))
    assert first == "ω′ 0.1 · α̂ 0.1 · states 0 · 100,000 steps"
    assert line.startswith("100% · 100,000 of 100,000 steps · 8,123 a second · basic reward 3,000.2 an episode")
    assert "0.900 nats a step from the prior" in line
    assert "entropy −1.200 nats" in line
    assert "add-on reward −4.20 an episode in the last evaluation · objective 12.00 an episode in the last ev" in line
    assert LINE_METRICS["prior_kl"](-1e-5) == "0.000 nats a step from the prior"  # samples may be below 0
    assert "budget" not in line
    assert all(re.search(r"\d [a-z]", formatted(1.0)) for formatted in LINE_METRICS.values())


def test_small_rewards_are_not_rounded_away() -> None:
    formats = {name: formatted for rows in PANEL_ROWS.values() for name, _, formatted, _ in rows}
    assert LINE_METRICS["basic_return"](0.0123) == "basic reward 0.012 an episode"
    assert [formats[name](-0.000123) for name in ("basic_return", "reward_task", "reward_total")] == ["−0.00012"] * 3
    assert (formats["reward_task"](0.5), formats["std"](2e-4)) == ("+0.50", "0.00020")
    assert "objective 0.0042 an episode" in repr(Result(Path("run"), 64, True, {"evaluation_objective": 0.0042}))


@pytest.mark.parametrize(("ended", "words"), [(6.0, " · 6 of 6 evaluated episodes ended early"), (0.0, "")])
def test_a_line_says_of_how_many_episodes_some_ended_early(
    ended: float, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 wanted episodes on 3 cores each plays 2."""
    monkeypatch.setitem(METRICS, "evaluation_ended_early", ended)
    line = lines(capsys, asked(ranks=3, evaluation_episodes=8))[1]
    assert re.findall(r" · [^·]*ended early", line) == [words] * bool(words)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"kl_budget": 1.0}, "ω′ 0.123 · 0.90 nats a step, the budget is 1"),
        ({"log_prior_budget": 2.0}, "ω′ 0.123 · 1.40 nats a step, the budget is 2"),
        ({"keep": 0.9}, "ω′ 0.123 · −25.0% of the old reward a step kept, of 90.0%"),
    ],
)
def test_a_budget_is_shown_with_what_is_spent_of_it(
    budget: dict[str, float], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(capsys, asked(residual(0.1, 0.1), **budget))[1].endswith(words)


def panel(request: Request) -> list[str]:
    display = Display()
    display._request, display._start, display._total, display._began = request, 0, 25, 0.0
    display._latest = dict(METRICS)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(display._panel())
    console.file.close()
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_panel_keeps_the_bar_apart_from_the_text_and_has_terms_of_a_prior_only_where_there_is_one() -> None:
    for request, count in ((asked(soft(0.1), ""), 0), (asked(kl(0.1)), 2)):
        assert sum("ω′" in line for line in panel(request)) == count
    text = panel(asked(kl_budget=1.0))
    assert text[0].startswith("Hopper-v4  100,000 of 100,000 steps  8,123 a second")
    [bar] = [place for place, line in enumerate(text) if set(line) == {"━"}]
    assert text[bar - 1] == text[bar + 1] == ""
    assert any(re.fullmatch(r" +KL to the prior +0\.900 +nats", line) for line in text)
    assert "ω′ 0.123 · 0.90 nats a step, the budget is 1" in text


def test_every_row_is_a_metric_that_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading-a-report.md").read_text()
    of_q_learning = {"task_return", "loss", "critic_loss", "actor_loss", "best"}
    assert all(f"`{name}`" in page for rows in PANEL_ROWS.values() for name, *_ in rows if name not in of_q_learning)


def test_the_display_is_closed_where_wandb_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ValueError("no such project")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=lambda: None, init=init, Error=ValueError))
    display, closed = Display(), list[str]()
    monkeypatch.setattr(display, "close", lambda: closed.append("the display"))
    callbacks, alone = [display, Wandb(tmp_path / "run", "mine")], replace(SETTINGS, ranks=1)
    with pytest.raises(UsageError, match="--wandb: no such project"):
        repolicy.train("CartPole-v1", soft(0.1), tmp_path / "run", alone, callbacks=callbacks)
    assert closed == ["the display"]


@pytest.mark.parametrize(
    ("start", "total", "written", "wanted"),
    [
        (10, 25, [(15, 10.0)], [20.0]),  # resumed: 5 iterations took 10 seconds and 10 are left, whatever was before
        (0, 11, [(1, 60.0), (2, 2.0), (6, 8.0)], [600.0, 18.0, 10.0]),  # what is slow at first comes only once
    ],
)
def test_the_time_left_is_by_what_a_run_did_itself_after_its_first_iteration(
    start: int, total: int, written: Any, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    display = Display()
    display.begin(asked(ranks=1), start, total)
    for iteration, seconds in written:
        now[0] += seconds
        display.write(METRICS | {"iteration": iteration})
        share, seconds_left = display._progress()
        assert share == iteration / total
        left.append(seconds_left)
    assert left == wanted


def test_the_parts_of_a_reward_that_are_shown_add_up_to_its_sum() -> None:
    """Of a run with limits and a price on states, as it was logged."""
    folder = RunFolder(Path(__file__).parents[1] / "golden" / "v1" / "held")
    logged, shown = folder.read_metrics(), {name for name, *_ in PANEL_ROWS["a step"]}
    parts = [name for name in logged if name.startswith("reward_") and name in shown - {"reward_total"}]
    assert sum(logged[name][-1] for name in parts) == pytest.approx(logged["reward_total"][-1], rel=1e-12)


@pytest.mark.parametrize("start", [0, 2])
def test_tensorboard_draws_each_iteration_once_after_a_resume(start: int, tmp_path: Path) -> None:
    """Also where a run was stopped before its first checkpoint, and begins anew."""
    request = Request("Hopper-v4", soft(0.1), Settings(envs=1, n_steps=10, minibatch=10, ranks=1))
    for first, last, value in ((0, 3, 1.0), (start, 4, 2.0)):
        drawing = TensorBoard(tmp_path)
        drawing.begin(request, first, 5)
        for iteration in range(first, last):
            drawing.write({"steps": 10.0 * (iteration + 1), "std": value})
        drawing.close()
    found = EventAccumulator(str(tmp_path)).Reload().Scalars("run/std")
    assert [event.step for event in found] == [10, 20, 30, 40]
    assert [event.value for event in found] == [1.0] * start + [2.0] * (4 - start)
