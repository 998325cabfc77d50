"""The paper's campaign: its runs, what it begins with, and what the report may say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.one import thin_curve, total_seconds
from experiments.pages import markdown_table
from experiments.paper.curves import draw, episode_returns, learning_curve, learning_curves
from experiments.paper.results import Results, describe_differences, total_cost
from experiments.paper.tables import page_tables
from experiments.statistics import bootstrap_interval, iqm
from tests.experiments.rows import results, row


def curve_of(basic: list[float | None], length: list[float | None], task: list[float]) -> dict[str, Any]:
    return {"steps": [1.0, 2.0], "basic_return": basic, "episode_length": length, "reward_task": task}


@pytest.mark.parametrize(
    ("task", "total", "wanted"), [("basic", False, 50.0), ("full", True, 3.0), ("addon", True, 53.0)]
)
def test_a_curve_is_of_the_return_of_an_episode(task: str, total: bool, wanted: float) -> None:
    """Basic return 50; the run's own reward 0.3 a step in episodes of 10 steps. Full's own is the total already."""
    curve = curve_of([None, 50.0], [None, 10.0], [0.1, 0.3])
    made = row("halfcheetah/x/0", 1.0, curve=curve, request={"objective": {"task": task}})
    steps, found = episode_returns(made, total)
    assert steps.tolist() == [2.0]
    assert found == pytest.approx([wanted])


def test_a_curve_is_the_middle_of_the_seeds_and_its_band() -> None:
    """Four seeds whose return stands still at 0, 10, 20 and 90: the middle half has a mean of 15."""
    rows = {}
    for seed, level in enumerate((0.0, 10.0, 20.0, 90.0)):
        curve = curve_of([level] * 2, [5.0] * 2, [0.0] * 2)
        rows[f"halfcheetah/soft/{seed}"] = row("", level, curve=curve, request={"objective": {"task": "basic"}})
    found = learning_curve(Results(rows, 5), "halfcheetah", "soft", total=False)
    assert found is not None
    steps, middle, low, high = found
    assert (steps[-1], set(middle.tolist())) == (2.0, {15.0})
    assert (low[0], high[0]) == pytest.approx(
        bootstrap_interval(iqm, np.array([[0.0], [10.0], [20.0], [90.0]]), resamples=500)
    )
    drawn = learning_curves(results(soft=[7.0], kl=[2.0]))  # the total of these rows is 0.1 in each of 10 steps
    ends = {title: {name: curve[1][-1] for name, curve in curves.items()} for title, curves in drawn.items()}
    assert ends == {"HalfCheetah: basic return": {"Soft": 7.0}, "HalfCheetah: total return": {"KL": 1.0}}


def test_what_it_took_counts_runs_whose_computing_was_not_timed() -> None:
    """An hour of the clock each; 18 million steps at 5,000 a second are an hour of computing, of each of the two."""
    rows = [row("halfcheetah/kl/0", 1.0, steps=18_000_000, seconds=3600.0, steps_per_cpu_second=5_000) for _ in "12"]
    assert total_cost(rows) == pytest.approx((2.0, 2.0, 36.0))
    rows[1]["steps_per_cpu_second"] = None  # it ended before it was evaluated, and went on
    assert total_cost(rows) == pytest.approx((2.0, 2.0, 36.0))


def test_settings_are_those_of_the_rows_and_a_difference_is_told() -> None:
    found = results(soft=[1.0, 2.0])
    for seed, envs in enumerate((7, 8)):
        found.rows[f"halfcheetah/soft/{seed}"]["request"] = {"settings": {"envs": envs}, "objective": {"task": "basic"}}
    assert "| HalfCheetah | HalfCheetah-v4 | 7 | None |" in page_tables(found)["paper_settings"]()
    assert "Mixed in Table 1: halfcheetah's envs: 7 in 1 runs, 8 in 1 runs" in page_tables(found)["paper_missing"]()


def test_pooled_is_over_all_episodes() -> None:
    """As if the episodes of both seeds stood in one list: 100 at 7 ± 3 and 100 at 13 ± 3."""
    scores = results(soft=[7.0, 13.0]).scores("halfcheetah", "soft", "basic_reward")
    each = np.concatenate([np.repeat([4.0, 10.0], 50), np.repeat([10.0, 16.0], 50)])
    assert scores.pooled == pytest.approx((each.mean(), each.std()))
    assert scores.best == (13.0, 3.0)


def test_a_report_of_a_part_says_what_is_missing_and_mixed() -> None:
    found = results(soft=[5000.0, 6000.0], kl=[10.0])
    found.rows["halfcheetah/soft/1"]["versions"] = {"torch": "2.14"}
    text = page_tables(found)["paper_missing"]()
    assert "3 of 150 runs" in text
    assert "Missing of Ant: No-Entropy (seeds 0, 1, 2, 3, 4); " in text
    assert "Soft (seeds 2, 3, 4)" in text
    assert "Mixed in Table 1: torch: 2.13 in 1 runs, 2.14 in 1 runs" in text
    assert describe_differences(found.of("halfcheetah", "kl")) == []
    other = [row("halfcheetah/kl/0", 1.0), row("halfcheetah/kl/1", 1.0, commit="c" * 40 + "+")]
    assert describe_differences(other) == ["code: 2 commits"]
    other = [row("swimmer/kl/0", 1.0), row("swimmer/kl/1", 1.0)]
    for seed, each in enumerate(other):
        each |= {"command": f"repolicy a --omega 1 --seed {seed}", "env": "A", "addon": "x"}
    assert describe_differences(other) == []
    other[1] |= {"command": "repolicy a --omega 2 --seed 1", "env": "B", "addon": "y", "episodes": 2}
    assert [said.partition(":")[0] for said in describe_differences(other)] == [
        f"swimmer/kl's {name}" for name in ("command", "env", "addon", "episodes")
    ]
    beyond = {f"halfcheetah/{name}/0": row(f"halfcheetah/{name}/0", 1.0) for name in ("prior", "omega_x3")}
    beyond["halfcheetah/prior/0"]["policies"] = {"last": "a" * 64}
    beyond["halfcheetah/omega_x3/0"]["prior"] = "b" * 64
    assert "Mixed in other weights: halfcheetah's prior" in page_tables(Results(beyond, 5))["paper_missing"]()
    assert "Mixed in Table 5: torch: 2.13 in 1 runs, 2.14 in 1 runs" in text
    two = [row("halfcheetah/kl/0", 1.0, prior="a" * 64), row("halfcheetah/kl/1", 1.0, prior="b" * 64)]
    assert describe_differences(two) == ["halfcheetah's prior: aaaaaaaaaa in 1 runs, bbbbbbbbbb in 1 runs"]
    two[1] = row("halfcheetah/prior/0", 1.0, policies={"last": "b" * 64})
    two[0]["went_on_with"] = [{"versions": {"torch": "2.13"}, "machine": {"processor": "two"}, "commit": "c" * 40}]
    assert describe_differences(two) == [
        "processor: one in 2 runs, two in 1 runs", "halfcheetah's prior: aaaaaaaaaa in 1 runs, bbbbbbbbbb in 1 runs"
    ]  # fmt: skip
    for make in page_tables(found).values():
        assert make()


def test_the_picture_is_of_what_is_in_the_ledger(tmp_path: Path) -> None:
    pictures = []
    for low in (5000.0, 5000.0, 4000.0):
        draw(results(soft=[low, 6000.0]).rows, tmp_path / "paper.png")
        pictures.append((tmp_path / "paper.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_a_bar_does_not_end_a_cell() -> None:
    assert markdown_table(["a", "|b|"], [["1", "x|y"]]) == "| a | \\|b\\| |\n|---|---|\n| 1 | x\\|y |"


def test_a_curve_is_thinned_to_means_of_stretches_and_attempts_add_up() -> None:
    logged = {"steps": [1, 2, 3, 4], "basic_return": [None, 5.0, None, None], "omega": [0.0] * 4}
    assert thin_curve(logged, 2) == {"steps": [1.5, 3.5], "basic_return": [5.0, None]}
    assert total_seconds([1.0, 2.0, 0.5, 1.5]) == 3.5
