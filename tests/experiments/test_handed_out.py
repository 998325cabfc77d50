"""What runs handed out in twelve tasks, as it is kept in results/."""

from pathlib import Path

from experiments.handed_out import PARTS, TASKS, table
from experiments.ledger import Ledger

ROWS = Ledger(Path(__file__).parents[2] / "results" / "handed_out.jsonl").rows()


def test_what_is_handed_out_is_never_clearly_worse_than_the_last_policy() -> None:
    assert {row["key"].partition("/")[0] for row in ROWS} == set(TASKS)
    costly = [row for row in ROWS if row["last"]["objective"][0] < 0.0 < row["last"]["ended_early"]]
    assert len({row["key"] for row in costly}) >= 4
    for row in ROWS:
        for part in PARTS:
            mean, error = row["handed_out"][f"{part}_better"]
            assert mean >= -2.0 * error, (row["key"], part)
    assert len(table(ROWS).splitlines()) == len(ROWS) + 2
