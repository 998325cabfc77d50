"""Comparing two policies at places around the one where the old policy was trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared import BAD, GOOD, a_file
from tiny_envs import LinearQuadratic

from repolicy.errors import UsageError
from repolicy.many.comparing import Comparison, QuantityComparison, compare
from repolicy.many.varying import Place, VariedComparison, compare_around, parse_variation
from repolicy.priors import opening
from repolicy.readers.recognize import PolicyFile
from repolicy.report.compare_page import write_compare_report


class Wired(LinearQuadratic):
    """With a motor that may be connected the other way round, and a push."""

    def __init__(self, wires: float = 1.0, push: float = 0.0) -> None:
        super().__init__()
        self.wires, self.push = wires, push

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.wires = (options or {}).get("wires", self.wires)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        return super().step(self.wires * action + self.push)


def test_the_worst_place_decides() -> None:
    """The other way round the bad policy is the good one, and without wires the two are equal."""
    around = compare_around(GOOD, BAD, Wired, "1e-6", vary="wires=-1..1", episodes=50)
    found = {place.options["wires"]: place.comparison.verdict for place in around.places}
    assert [*found] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert (found[-1.0], found[0.0], found[1.0]) == ("better", "cannot tell", "worse")
    assert (around.verdict, around.worst.options) == ("worse", {"wires": 1.0})
    assert "worse at the worst of 5 places, wires = 1," in around.sentences[0]
    rows = around.tables[0][1]
    assert [row[0] for row in rows] == [f"wires = {wires:g}" for wires in found]
    assert [row[1] for row in rows] == [*found.values()]
    assert repr(around).startswith("worse at the worst of 5 places")  # what a notebook shows


def test_a_place_is_compared_as_if_it_were_named_with_its_share_of_the_error(tmp_path: Path) -> None:
    around = compare_around(GOOD, GOOD, Wired, "0.5", vary=["wires=0.5..1", "push=0..1"], episodes=2, error=0.25)
    assert len(around.places) == 25
    place = around.places[7]
    assert place.options == {"wires": 0.625, "push": 0.5}
    assert place.comparison == compare(GOOD, GOOD, place.comparison.env, "0.5", episodes=2, error=0.01)
    row = QuantityComparison("basic_reward", 1.0, 1.0, -0.01, 0.01, "not worse")
    sure = [replace(place, comparison=replace(place.comparison, rows={"mean": [row]})) for place in around.places]
    told = VariedComparison(sure)
    assert "each of the verdicts is wrong with a probability of at most 25%" in told.sentences[1]
    assert told.tables[0][0] == ["place", "verdict", "what", *told.tables[1][0][2:]]
    assert [told.tables[1][0][-1], replace(sure[0].comparison, error=0.002).tables[0][0][-1]] == [
        "98% interval", "99.6% interval"
    ]  # fmt: skip
    page = write_compare_report(around, "a:old", "a:new", tmp_path).read_text()
    assert page.count("+0.0%") == 25 + 2  # and of early ends, with either kind of action
    assert "Of the places: cannot tell at 25" in page


def test_a_place_shows_what_is_worst_there_and_not_a_larger_loss_that_may_be_chance(tmp_path: Path) -> None:
    worse = QuantityComparison("basic_reward", 100.0, 92.0, -9.0, -7.0, "worse")
    chance = QuantityComparison("addon_reward", 10.0, 8.0, -6.0, 2.0, "cannot tell")
    none = QuantityComparison("basic_reward", 0.0, 3.0, 2.5, 3.5, "better")
    places = [
        Place({"wires": one, "push": other}, Comparison("", "", 400, 1, True, "5%", 0.05, 0, {"mean": rows}))
        for one, other, rows in ((0.0, 0.0, [worse, chance]), (0.0, 1.0, [none]))
    ]
    around = VariedComparison(places)
    rows = [row[1:4] for row in around.table[1]]
    assert rows == [["worse", "basic reward", "100.0"], ["better", "basic reward", "0.00"]]
    page = write_compare_report(around, "a:old", "a:new", tmp_path).read_text()
    assert "worse, −8.0%" in page
    assert "better, +3.00" in page  # of a mean of 0 there is no share


def test_each_policys_file_is_opened_once_for_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [a_file(tmp_path / name) for name in ("old", "new")]
    seen: list[Any] = []
    monkeypatch.setattr(opening, "PolicyFile", lambda path: seen.append(str(path)) or PolicyFile(path))
    assert len(compare_around(*files, Wired, vary=["wires=0..1"], episodes=2).places) == 5
    assert sorted(seen) == sorted(files)


def test_films_run_the_code_that_the_comparison_was_trusted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "repolicy.report.compare_page.films_for_page", lambda shots, _: (seen.extend(shots) or [b"", b""], "")
    )
    files = [a_file(tmp_path / name) for name in ("old", "new")]
    around = VariedComparison([Place({}, compare(*files, LinearQuadratic, episodes=2))])
    for trust in (False, True):
        write_compare_report(around, *files, tmp_path, trust=trust)
    assert [shot.trust for shot in seen] == [False, False, True, True]


def test_an_option_of_each_reset_does_what_the_same_option_does_when_it_is_made() -> None:
    made, reset = (
        compare_around(GOOD, BAD, Wired, "1e-6", vary=[f"{name}=-1..1"], episodes=4)
        for name in ("wires", "reset.wires")
    )
    assert [place.comparison.rows for place in reset.places] == [place.comparison.rows for place in made.places]
    assert "nothing differs between the places" not in made.sentences[-1]
    unread = compare_around(GOOD, GOOD, Wired, vary=["reset.wind=0..1"], episodes=2)
    assert "nothing differs between the places" in unread.sentences[-1]
    pytest.importorskip("envpool")
    with pytest.raises(UsageError, match="resets take no options; leave out --backend envpool"):
        compare("halfcheetah", "halfcheetah", "HalfCheetah-v4?reset.x=1", backend="envpool", episodes=1)


def test_values_of_an_option() -> None:
    assert parse_variation("a=0..1") == ("a", [0.0, 0.25, 0.5, 0.75, 1.0])
    assert parse_variation("b=-2..2") == ("b", [-2.0, -1.0, 0.0, 1.0, 2.0])
    assert parse_variation("c=0.1..0.5") == ("c", [0.1, 0.2, 0.3, 0.4, 0.5])
    assert parse_variation("d=50..100") == ("d", [50.0, 62.0, 75.0, 88.0, 100.0])


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        (["push"], "--vary is 'push'; it must be an option and a range"),
        (["push=1"], "it must be an option and a range"),
        (["push=0..inf"], "it must be an option and a range"),
        (["2x=0..1"], "it must be an option and a range"),
        (["reset.=0..1"], "it must be an option and a range"),
        (["push=1..0"], "a range of numbers that ends above where it begins"),
        (["push=0..1", "push=0..2"], "one or two options, each once"),
        (["a=0..1", "b=0..1", "c=0..1"], "one or two options"),
        (["wind=0..1"], "cannot be made: TypeError: .*unexpected keyword argument 'wind'"),
    ],
)
def test_what_cannot_be_varied_is_one_sentence(vary: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare_around(GOOD, BAD, Wired, vary=vary)


def test_an_option_that_the_name_sets_is_not_varied() -> None:
    env = "HalfCheetah-v4?reset_noise_scale=0.2"
    with pytest.raises(UsageError, match="sets reset_noise_scale itself"):
        compare_around("halfcheetah", "halfcheetah", env, vary=["reset_noise_scale=0..1"])
