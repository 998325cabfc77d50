"""What the live display says of a run."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import repolicy
from repolicy.errors import UsageError
from repolicy.objective import full, kl, repeat_entropy, residual, soft
from repolicy.runs.callbacks import ROWS, SHORT, Display, Wandb, recipe
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

SETTINGS = repolicy.Settings(steps=100_000, ranks=2)
METRICS = {
    "iteration": 25, "steps": 102_400, "steps_per_second": 8_123.0, "share_physics": 0.5, "share_policy": 0.2,
    "share_update": 0.3, "omega": 0.123, "alpha": 0.1, "prior_kl": 0.9, "below_prior": 1.4, "entropy": -1.2,
    "evaluation_objective": 12.0, "basic_return": 3000.2, "episode_length": 1000,
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
            "ω′ 0.1 · α̂ 0.1 · from there ω′ and α̂ move to stay 2 nats a step from the prior · 100,000 steps",
        ),
        (
            asked(residual(0.3, 0.1), log_prior_budget=3.0, ranks=1),
            "ω′ 0.3 · α̂ 0.1 · from there ω′ moves until actions are 3 nats less likely than the prior's own "
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


def test_a_line_says_what_each_number_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    first, line = lines(capsys, asked(ranks=1))
    assert first == "ω′ 0.1 · α̂ 0.1 · 100,000 steps"
    assert line.startswith(
        "100% · 100,000 of 100,000 steps · 8,123 a second · 0:00 left · basic reward 3,000.2 an episode"
    )
    assert "0.900 nats a step from the prior" in line
    assert SHORT["prior_kl"].format(-1e-5) == "0.000 nats a step from the prior"  # samples of 0 may fall below it
    assert "budget" not in line
    assert all(re.search(r"[a-z]", words.partition("}")[2]) for words in SHORT.values())


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"kl_budget": 1.0}, "ω′ 0.123 · 0.90 nats a step, the budget is 1"),
        ({"log_prior_budget": 2.0}, "ω′ 0.123 · 1.40 nats a step, the budget is 2"),
    ],
)
def test_a_budget_is_shown_with_what_is_spent_of_it(
    budget: dict[str, float], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = asked(residual(0.1, 0.1), **budget)
    assert lines(capsys, request)[1].endswith(words)


def test_the_panel_keeps_the_bar_apart_from_the_text() -> None:
    display = Display()
    display._request, display._start, display._total, display._began = asked(kl_budget=1.0), 0, 25, 0.0
    display._latest = dict(METRICS)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(display._panel())
    console.file.close()
    text = [line.rstrip() for line in console.export_text().splitlines()]
    assert text[0].startswith("Hopper-v4  100,000 of 100,000 steps  8,123 a second")
    [bar] = [place for place, line in enumerate(text) if set(line) == {"━"}]
    assert text[bar - 1] == text[bar + 1] == ""
    assert any(re.fullmatch(r"a step +KL to the prior +0\.900 +nats", line) for line in text)
    assert "ω′ 0.123 · 0.90 nats a step, the budget is 1" in text


def test_every_row_is_a_metric_that_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading-a-report.md").read_text()
    of_q_learning = {"task_return", "loss", "critic_loss", "actor_loss", "best"}
    assert all(f"`{name}`" in page for _, rows in ROWS for name, *_ in rows if name not in of_q_learning)


def test_the_display_is_closed_where_wandb_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ValueError("no such project")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=lambda: None, init=init, Error=ValueError))
    display, closed = Display(), list[str]()
    monkeypatch.setattr(display, "close", lambda: closed.append("the display"))
    callbacks, alone = [display, Wandb(RunFolder(tmp_path / "run"), "mine")], replace(SETTINGS, ranks=1)
    with pytest.raises(UsageError, match="--wandb: no such project"):
        repolicy.train("CartPole-v1", soft(0.1), tmp_path / "run", alone, callbacks=callbacks)
    assert closed == ["the display"]


def test_the_time_left_of_a_resumed_run_is_by_what_it_did_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 iterations took 10 seconds and 10 are left, whatever was done before."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    display = Display()
    display.begin(Request("Hopper-v4", soft(0.1), Settings()), 10, 25)
    now[0] += 10.0
    display._latest = {"iteration": 15.0}
    assert display._progress() == (0.6, 20.0)
