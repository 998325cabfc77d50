"""The page of one dial that was trained, or of several: each position has its film, table, command and file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from several import FAST, QUIET
from typed_commands import answered, refused

from repolicy.cli import main as cli
from repolicy.files import read_json, write_json
from repolicy.many import positions
from repolicy.many.positions import DialedPolicy
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import SavedPolicy, read_card, save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.weights import alpha_from_card
from repolicy.priors import read_policy
from repolicy.ranges import Dial, Range
from repolicy.report import dial_page as pages
from repolicy.report.run_page import write_report
from repolicy.runs.request import Request
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings


def dialed(dials: list[Dial], card: dict[str, Any]) -> SavedPolicy:
    """A policy that acts otherwise at each position of its dials; without dials, an ordinary one."""
    prior = Policy(PolicySpec(4, ActionSpace("continuous", (1,), (-3.0,), (3.0,)), hidden=(8,)))
    if not dials:
        return SavedPolicy(Policy(prior.spec), prior, card)
    made = ConditionedPolicy.from_prior(prior, dials)
    made.network.film.data.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(0))
    return SavedPolicy(made, prior, card)


@pytest.fixture(autouse=True, scope="module")
def _few_stops() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "STOPS", (3, 3))
        patch.setattr(positions, "TENTHS", [0.5, 1.0])
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    request: dict[str, Any] = {"env": "InvertedPendulum-v4", "addons": [QUIET], "settings": {"backend": "gymnasium"}}
    request["objective"] = {"task": "addon", "omega": [0.01, 1.0], "alpha": 0.1}
    made = dialed([Dial("omega", 0.01, 1.0)], {"request": request, "evaluation": {"task": 1.0}})
    save_policy(tmp_path / "policy.safetensors", made.policy, made.card, made.prior)
    return tmp_path / "policy.safetensors"


def test_what_is_no_position_of_a_dial_is_not_written_over(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.safetensors").write_text("not yours")
    for name, code in (("policy.safetensors", 2), ("mine.safetensors", 1), ("mine.py", 2)):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        refused(capsys, code, "dial", str(file), "--at", "0.5", "--out", str(tmp_path / name))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    for at in ("0.5", "0.7"):  # a position may be kept anew
        cli.main(["dial", str(file), "--at", at, "--out", str(tmp_path / "kept.safetensors")])
    assert read_card(tmp_path / "kept.safetensors")["dial"]["values"] == {"omega": 0.7}


def test_a_position_tells_the_alpha_that_it_was_trained_with() -> None:
    """An alpha that is omega is the position's; one that a budget moved is where that ended."""
    tied = {"request": {"objective": {"task": "addon", "omega": [0.01, 1.0], "alpha": "omega"}}}
    kept = positions.DialedPolicy(Path(__file__), dialed([Dial("omega", 0.01, 1.0)], tied))
    assert alpha_from_card(kept.card({"omega": 0.05})) == 0.05
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,)), hidden=(8,)))
    moved = SavedPolicy(policy, policy, {"alpha": 0.7, "request": {"objective": {"omega": 0.1, "alpha": 0.1}}})
    assert alpha_from_card(positions.DialedPolicy(Path(__file__), moved).card({"t": 0.5})) == 0.7


@pytest.mark.parametrize(
    ("dial", "stops", "named"),
    [
        (Dial("omega", 0.01, 1.0), 11, "ω′, the weight on the old behavior, as an input"),
        (Dial("alpha", 0.01, 0.3), 3, "α̂, the weight on variety, as an input"),
    ],
)
def test_the_page_has_every_position(
    dial: Dial, stops: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "STOPS", (stops,))
    request = {"addons": [QUIET], "settings": {"backend": "gymnasium"}}
    found, html = reported(tmp_path, [dial], request, monkeypatch)
    places = [position["at"] for position in found["positions"]]
    assert places == dial.spread(stops)
    assert found["prior"]["mean_action"]["backend"] == "gymnasium"  # that of the run
    assert abs(found["prior"]["kl"]) < 1e-4 < found["positions"][0]["kl"]
    assert named in html
    assert "The trade-off" in html
    assert html.count(f'data-shown="{stops - 1}"') == 4  # verdict, film, table, command
    assert f"--at {places[-2]:g}<" in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_the_report_of_a_run_with_a_dial_is_that_of_the_dial(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("repolicy.report.dial_page.films_for_page", lambda shots, say: ([b""] * len(shots), ""))
    objective = residual(Range(0.01, 1.0), 0.1, 0.0)
    request = Request("InvertedPendulum-v4", objective, Settings(), addons=(QUIET,))
    write_json(file.parent / "run.json", {"request": request.as_dict()})
    page = write_report(Result(file.parent, 1, True, {}), episodes=1)
    assert page == file.parent / "policy-dial" / "report.html"
    assert len(read_json(page.parent / "dial.json")["positions"]) == 3
    assert answered(capsys, "report", str(file.parent), "--trust") == {"report": str(page)}


def test_what_was_evaluated_is_told_and_saved_before_the_films(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, "films_for_page", stop)
    said = list[str]()
    with pytest.raises(KeyboardInterrupt):
        pages.write_dial_report(
            DialedPolicy(file, read_policy(file)), out=tmp_path, episodes=1, trust=True, say=said.append
        )
    assert len(read_json(tmp_path / "dial.json")["positions"]) == 3
    assert "\n0.1 " in said[-1]
    assert "; one episode with the mean action (log prior" in said[-1]


def test_the_page_of_a_run_with_limits_says_at_each_position_whether_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = f"{FAST}<=-5"  # never
    request = {"addons": [QUIET], "limits": [limit]}
    found, html = reported(tmp_path, [], request, monkeypatch)
    assert "limit_fast<=-5" in found["positions"][0]["mean_action"]["summary"]
    assert '<th scope="col">fast&lt;=-5</th>' in html
    assert html.count("limit fast&lt;=-5 is broken") == len(found["positions"])
    _, html = reported(tmp_path, [], request, monkeypatch, "--addon", FAST)
    assert "&lt;=-5" not in html  # as where evaluate is asked for another wish


# Several dials --------------------------------------------------------------------------------------------------------
OMEGA, QUIETLY = Dial("omega", 0.03, 3.0), Dial("quiet", 0.0, 2.0, "linear")


def reported(
    folder: Path, dials: list[Dial], request: dict[str, Any], patch: pytest.MonkeyPatch, *words: str
) -> tuple[dict[str, Any], str]:
    """What the command prints as JSON, and its page."""
    made = dialed(dials, {"request": {"env": "InvertedPendulum-v4"} | request})
    save_policy(folder / "policy.safetensors", made.policy, made.card, made.prior)
    patch.setattr(pages, "films_for_page", lambda shots, say: ([b"a film"] * len(shots), ""))
    asked = [str(folder / "policy.safetensors"), "--episodes", "2", "--out", str(folder / "dial"), "--trust", *words]
    cli.main(["dial", *asked])
    html = (folder / "dial" / "report.html").read_text()
    return json.loads((folder / "dial" / "dial.json").read_text()), html


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the command tells of two dials, and its page."""
    folder, objective = tmp_path_factory.mktemp("two"), residual(Range(0.03, 3.0), 0.1, 0.0).as_dict()
    request = {"addons": [f"{FAST}=0.5", f"{QUIET}=0..2"], "objective": objective}
    with pytest.MonkeyPatch.context() as patch:
        found, _ = reported(folder, [OMEGA, QUIETLY], request, patch)
    return found, folder / "dial" / "report.html"


def test_two_dials_have_every_pair_of_their_stops(two: tuple[dict[str, Any], Path]) -> None:
    found, html = two[0], two[1].read_text()
    assert [position["at"] for position in found["positions"]] == [
        {"omega": omega, "quiet": quiet} for omega in (0.03, 0.3, 3.0) for quiet in (0.0, 1.0, 2.0)
    ]
    assert html.count('type="range"') == 2
    assert html.count('data-shown="8"') == 3  # film, table, command
    assert "--at omega=0.3 --at quiet=2<" in html
    assert "ω′ 0.3, quiet 2" in html
    assert "the weight of quiet is 1 at every position" in html
    assert "the weight of the add-on quiet" in html
    assert "trade-off bends" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    for position in found["positions"]:  # an add-on's reward is of the add-on once, and of each apart
        means = {name: each["mean"] for name, each in position["mean_action"]["summary"].items()}
        assert means["addon_reward"] == pytest.approx(means["addon_reward_fast"] + means["addon_reward_quiet"])
    assert '<th scope="col">of it quiet</th>' in html


def test_the_command_on_the_page_keeps_that_position(two: tuple[dict[str, Any], Path]) -> None:
    command = two[1].read_text().split("<code>")[5].split("</code>")[0]  # of the fifth of nine
    assert "omega=0.3 --at quiet=1" in command
    cli.main(command.split()[1:])
    assert (two[1].parents[1] / "policy-trained-omega-0.3-quiet-1.safetensors").exists()


@pytest.mark.parametrize("others", [[], [QUIETLY]])
def test_positions_that_lie_close_together_have_commands_and_files_of_their_own(others: list[Dial]) -> None:
    made = dialed([Dial("fast", 1e6, 1e6 + 10, "linear"), *others], {})
    turning = positions.DialedPolicy(Path("policy.safetensors"), made)
    for each in (turning.command, turning.default_file):
        assert len({each(position) for position in turning.positions}) == len(turning.positions)
    found = turning.positions[0] | {"fast": 1_000_003.0}
    assert "1000003.0" in turning.command(found)


def test_a_dial_over_a_wish_has_no_verdicts_on_a_total_because_the_wish_counts_once_at_every_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, html = reported(tmp_path, [QUIETLY], {"addons": [f"{QUIET}=0..2"]}, monkeypatch)
    assert "the weight of quiet is 1 at every position" in html
    assert html.count('data-shown="2"') == 3  # film, table, command: no verdict
    _, html = reported(tmp_path, [QUIETLY], {"addons": [QUIET]}, monkeypatch, "--addon", f"{QUIET}=2")
    assert "at every position" not in html
    assert html.count('data-shown="2"') == 4  # at a weight that is named a total is one


def test_each_slider_turns_what_is_seen(two: tuple[dict[str, Any], Path], browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get(f"file://{two[1]}")
    omega, quiet = browser.find_elements(By.CSS_SELECTOR, ".slider input")

    def seen() -> tuple[str, str, list[str]]:
        outputs = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".slider output")]
        parts = [each for each in browser.find_elements(By.CSS_SELECTOR, "[data-shown]") if each.is_displayed()]
        (shown,) = {each.get_attribute("data-shown") for each in parts}
        assert len(parts) == 3
        chosen = browser.find_element(By.CSS_SELECTOR, "tr.chosen th").text
        return shown, chosen, outputs

    assert seen() == ("4", "ω′ 0.3, quiet 1", ["ω′ 0.3", "quiet 1"])
    quiet.send_keys(Keys.ARROW_RIGHT)
    assert seen() == ("5", "ω′ 0.3, quiet 2", ["ω′ 0.3", "quiet 2"])
    omega.send_keys(Keys.HOME)
    assert seen() == ("2", "ω′ 0.03, quiet 2", ["ω′ 0.03", "quiet 2"])
    browser.find_elements(By.CSS_SELECTOR, "tr[data-point]")[7].click()
    assert seen() == ("7", "ω′ 3, quiet 1", ["ω′ 3", "quiet 1"])
    assert not [each for each in browser.get_log("browser") if each["level"] == "SEVERE"]
