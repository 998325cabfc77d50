"""Drawings say no more than the numbers do: what hardly moves looks like it, and every curve has the same steps."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from repolicy.evaluation import Evaluation
from repolicy.objective import residual
from repolicy.report.charts import Axes, curve, histogram
from repolicy.report.learning_curves import learning_section, reference_levels
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

STEPS = [100.0 * (index + 1) for index in range(10)]


def points(drawn: str) -> np.ndarray:
    """The curve's points as they are drawn: how far across, and how high."""
    [path] = re.findall(r'class="line" d="M([^"]*)"', drawn)
    return np.array([point.split(",") for point in path.split("L")], float)


def heights(drawn: str) -> list[float]:
    return points(drawn)[:, 1].tolist()


def test_a_change_of_a_third_of_a_percent_is_drawn_small() -> None:
    small = heights(curve("return", STEPS, np.linspace(1000.0, 997.0, 10).tolist()))
    large = heights(curve("return", STEPS, np.linspace(1000.0, 500.0, 10).tolist()))
    assert max(small) - min(small) < 0.04 * (max(large) - min(large))
    nats = heights(curve("entropy", STEPS, np.linspace(0.02, 0.0, 10).tolist(), min_span=1.0))
    assert max(nats) - min(nats) < 0.03 * (max(large) - min(large))


def test_every_curve_has_the_same_steps() -> None:
    early = curve("early", STEPS[:5], STEPS[:5], last_step=1000.0)
    late = curve("late", STEPS[5:], STEPS[5:], last_step=1000.0)
    width = Axes([0.0, 1000.0], [0.0, 1.0])
    assert points(early)[:, 0] == pytest.approx([width.x(step) for step in STEPS[:5]], abs=0.06)
    assert points(late)[:, 0] == pytest.approx([width.x(step) for step in STEPS[5:]], abs=0.06)


def test_levels_are_lines_with_their_names() -> None:
    drawn = curve("KL", STEPS, [0.1] * 10, levels={"prior": 0.0, "budget": 2.0})
    assert {"prior 0", "budget 2"} <= set(re.findall(r'<text class="level"[^>]*>([^<]*)<', drawn))
    [prior, budget] = [float(y) for y in re.findall(r'class="level \w+" x1="[^"]*" y1="([^"]*)"', drawn)]
    assert budget < heights(drawn)[0] < prior
    assert "prior: 0.00; budget: 2.00" in re.findall(r'aria-label="([^"]*)"', drawn)[0]
    assert "nan" not in curve("KL", STEPS, [0.1] * 10, levels={"prior": float("nan")})


def test_a_screen_reader_hears_the_numbers() -> None:
    [said] = re.findall(r'aria-label="([^"]*)"', curve("KL", STEPS, STEPS))
    assert said == "KL: from 100.0 to 1,000.0 over 1k steps"
    assert "from 0.0001 to 0.000348" in curve("ω′", [0, 1], [1e-4, 3.48e-4])
    [said] = re.findall(r'aria-label="([^"]*)"', histogram({"prior": np.array([1.0, 3.0])}, "reward"))
    assert said == "reward: prior 2.00 on average"


def test_the_tallest_bar_of_each_row_is_of_full_height() -> None:
    drawn = histogram({"prior": np.array([1.0, 1.0, 1.0, 3.0]), "customized": np.array([2.0])}, "reward")
    tall = [float(each) for each in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]
    assert tall == pytest.approx([40.0, 40.0 / 3, 40.0], abs=0.1)


def prior(basic: float = 3.0) -> Evaluation:
    """Two episodes of 10 steps."""
    lengths = np.full(2, 10.0)
    return Evaluation(
        "env", "gymnasium", False, 0, np.full(2, basic), np.full(2, -5.0), np.full(2, 0.25), lengths,
        -2.0 * lengths, -2.0 * lengths, "mean |θ|",
    )  # fmt: skip


def asked(**settings: float) -> Request:
    return Request("env", residual(0.1, 0.2), Settings(**settings), ("hind_leg",))


def test_the_prior_stands_beside_what_was_learned() -> None:
    values = {name: levels["prior"] for name, levels in reference_levels(asked(), prior()).items()}
    assert values == pytest.approx(
        {"basic_return": 3.0, "evaluation_addon": -5.0, "evaluation_metric": 0.25, "episode_length": 10.0,
         "prior_kl": 0.0, "below_prior": 0.0, "log_prior": -2.0, "entropy": 2.0, "reward_task": -0.5,
         "evaluation_objective": -5.0 + 0.1 * -20.0 + 0.2 * 20.0}
    )  # fmt: skip
    assert "basic_return" not in reference_levels(asked(), prior(np.nan))
    assert reference_levels(asked(), None) == {}


def test_a_budget_is_a_line() -> None:
    assert reference_levels(asked(kl_budget=2.0), prior())["prior_kl"] == {"prior": 0.0, "budget": 2.0}
    assert reference_levels(asked(log_prior_budget=0.5), prior())["below_prior"]["budget"] == 0.5


def logged(path: Path, **metrics: float) -> RunFolder:
    """A run's folder with two iterations."""
    folder = RunFolder(path)
    for step in (100, 200):
        folder.log({"iteration": step, "steps": step} | metrics)
    return folder


def test_an_objective_whose_weights_move_is_no_curve(tmp_path: Path) -> None:
    folder = logged(tmp_path, evaluation_objective=1.0)
    assert "own objective" in learning_section(folder, asked(), {})
    limited = dataclasses.replace(asked(), limits=("power<=0.07",))
    for moving in (asked(kl_budget=2.0), limited):  # what a limit costs is not in the objective either
        assert "own objective" not in learning_section(folder, moving, {})
        assert "evaluation_objective" not in reference_levels(moving, prior())


def test_the_metric_is_a_curve_under_its_own_name(tmp_path: Path) -> None:
    text = learning_section(logged(tmp_path, evaluation_metric=0.3, omega=0.1), asked(), {"prior": prior()})
    assert "<figcaption>Mean |θ| in an episode<" in text
    assert "ω′" not in text  # it did not move
    assert text.count("<figure") == 1


def test_axes_say_what_they_are() -> None:
    axes = Axes([0.0, 1.0], [0.0, 1.0], 400, 300)
    before = axes.x(0.0), axes.y(0.0)
    assert {">across<", ">up<"} <= set(re.findall(r">\w+<", axes.name_axes("across", "up")))
    assert axes.x(0.0) > before[0]  # room is made for them
    assert axes.y(0.0) < before[1]


def test_a_limit_is_drawn_with_its_bound_and_its_weight(tmp_path: Path) -> None:
    folder = logged(tmp_path, **{"kept": 0.9, "limit_power<=2": 3.0, "multiplier_power<=2": 0.5})
    asked = Request("env", residual(0.1, 0.2), Settings(keep=0.95), ("hind_leg",), limits=("my.py:power<=2",))
    text = learning_section(folder, asked, {"prior": prior()})
    for words in ("power&lt;=2: with the mean action", "power&lt;=2: its weight", "limit 2", "to keep 0.95"):
        assert words in text
    assert text.count("<figure") == 3
