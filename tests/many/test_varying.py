"""Comparing two policies around the place where the old one was trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_envs import LinearQuadratic, tiny

from repolicy.cli import main as cli
from repolicy.errors import UsageError
from repolicy.many.comparing import compare
from repolicy.many.varying import Varied, compare_around
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.kinds import MeanPrior
from repolicy.report import compare_page
from repolicy.report.compare_page import sentences, tables

GOOD, BAD = (MeanPrior(lambda seen, gain=gain: gain * seen, 0.1) for gain in (-0.9, 0.9))  # type: ignore[misc]


class Wired(LinearQuadratic):  # type: ignore[misc]
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
    around = compare_around(GOOD, BAD, Wired, "1e-6", vary=["wires=-1..1"], episodes=100)
    found = {place.options["wires"]: place.found.verdict for place in around.places}
    assert [*found] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert (found[-1.0], found[0.0], found[1.0]) == ("better", "cannot tell", "worse")
    assert (around.verdict, around.worst.options) == ("worse", {"wires": 1.0})
    assert "worse at the worst of 5 places, wires = 1," in sentences(around)[0]
    rows = tables(around)[0][1]
    assert [row[0] for row in rows] == [f"wires = {wires:g}" for wires in found]
    assert [row[-1] for row in rows] == [*found.values()]


def test_a_place_is_compared_as_if_it_were_named_with_its_share_of_the_error() -> None:
    around = compare_around(GOOD, GOOD, Wired, "0.5", vary=["wires=0.5..1", "push=0..1"], episodes=50, error=0.25)
    assert len(around.places) == 25
    place = around.places[7]
    assert place.options == {"wires": 0.625, "push": 0.5}
    alone = compare(GOOD, GOOD, place.found.env, "0.5", episodes=50, error=0.01)
    assert place.found == alone
    assert "probability of at most 25%" in sentences(around)[1]


def test_an_option_of_each_reset_does_what_the_same_option_does_when_it_is_made() -> None:
    made, reset = (
        compare_around(GOOD, BAD, Wired, "1e-6", vary=[f"{name}=-1..1"], episodes=50)
        for name in ("wires", "reset.wires")
    )
    assert [place.found.rows for place in reset.places] == [place.found.rows for place in made.places]
    assert not made.is_flat
    unread = compare_around(GOOD, GOOD, Wired, vary=["reset.wind=0..1"], episodes=2)
    assert "nothing differs between the places" in sentences(unread)[-1]
    with pytest.raises(UsageError, match="resets take no options; leave out --backend envpool"):
        compare("halfcheetah", "halfcheetah", "HalfCheetah-v4?reset.x=1", backend="envpool", episodes=1)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=0..1", (0.0, 0.25, 0.5, 0.75, 1.0)),
        ("b=-2..2", (-2.0, -1.0, 0.0, 1.0, 2.0)),
        ("c=0.1..0.5", (0.1, 0.2, 0.3, 0.4, 0.5)),
    ],
)
def test_values_of_an_option(text: str, values: tuple[float, ...]) -> None:
    assert Varied.of(text) == (text[0], values)


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        (["push"], "--vary is 'push'; it must be an option and a range"),
        (["push=1"], "it must be an option and a range"),
        (["push=0..inf"], "it must be an option and a range"),
        (["2x=0..1"], "it must be an option and a range"),
        (["reset.=0..1"], "it must be an option and a range"),
        (["push=1..0"], "the range must end above where it begins"),
        (["push=0..1", "push=0..2"], "one or two options, each once"),
        (["a=0..1", "b=0..1", "c=0..1"], "one or two options"),
        (["wind=0..1"], "cannot be made: TypeError: .*unexpected keyword argument 'wind'"),
    ],
)
def test_what_cannot_be_varied_is_one_sentence(vary: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare_around(GOOD, BAD, Wired, vary=vary)


def test_an_option_that_the_name_sets_is_not_varied() -> None:
    with pytest.raises(UsageError, match="sets reset_noise_scale itself"):
        compare_around(
            "halfcheetah", "halfcheetah", "HalfCheetah-v4?reset_noise_scale=0.2", vary=["reset_noise_scale=0..1"]
        )


@pytest.mark.parametrize("vary", [[], ["--vary", "g=1..10"]])
def test_the_page_shows_the_map_and_films_the_worst_place(
    vary: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shots: list[Any] = []
    monkeypatch.setattr(compare_page, "filmed", lambda wanted, say: (shots.extend(wanted), ([b"one", b"two"], ""))[1])
    policy = Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)), hidden=(4,)))
    save_policy(path := tmp_path / "a.safetensors", policy, {"request": {"env": "Pendulum-v1"}})
    words = [str(path), str(path), "--backend", "gymnasium", "--episodes", "2", "--json", *vary]
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *words, "--out", str(tmp_path / "page")])
    assert ended.value.code == 3  # two episodes tell nothing
    values = json.loads(capsys.readouterr().out)
    page = (tmp_path / "page" / "report.html").read_text()
    assert values["report"] == str(tmp_path / "page" / "report.html")
    worst = f"?g={values['worst']['g']:g}" if vary else ""
    assert [shot.env for shot in shots] == [f"Pendulum-v1{worst}"] * 2
    assert ("Where it was tried" in page) == bool(vary)
    assert page.count("g = ") >= 6 * bool(vary)
    assert len(values.get("places", [])) == (5 if vary else 0)


def test_options_for_the_new_policys_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_policy(
        path := tmp_path / "a",
        Policy(PolicySpec(1, ActionSpace("continuous", (1,)), hidden=(4,))),
        {"request": {"env": tiny("LinearQuadratic")}},
    )
    for word, said in (
        ("stdd=1", "--of-new is 'stdd=1'; it must be NAME=VALUE"),
        ("std=x", "std must be a number"),
        ("std=0.2", "leave out --std"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["compare", str(path), str(path), "--of-new", word])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
