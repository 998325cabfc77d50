"""The list of mutants belongs to the code as it is: a mutant that is out of date would stop `make mutate`."""

import subprocess

import pytest

from benchmarks import mutate
from benchmarks.mutants import Mutant
from benchmarks.mutate import MUTANTS, ROOT, check, dies


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.what}")
def test_up_to_date(mutant: Mutant) -> None:
    check(mutant)
    for tests in mutant.tests.split():
        assert (ROOT / tests).exists()


def test_one_that_is_out_of_date_is_named() -> None:
    with pytest.raises(SystemExit, match=r"objective.py contains 'no such text' 0 times, not once"):
        check(Mutant("objective.py", "no such text", "", "tests/test_objective.py", "nothing"))


def test_the_pieces_differ() -> None:
    assert all(mutant.old != mutant.new for mutant in MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_tests_that_are_not_done_in_time_have_decided_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pytest", 300)

    monkeypatch.setattr(mutate.subprocess, "run", late)
    assert dies(MUTANTS[0]) is None
    for code, noticed in ((1, True), (0, False), (2, False)):
        monkeypatch.setattr(mutate, "passes", lambda *_, code=code: code)
        assert dies(MUTANTS[0]) is noticed
