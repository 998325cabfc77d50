"""Pages in a real browser: the verdict, the slider that moves everything, films in step, a phone, and no network."""

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typed_commands import worked

from repolicy.cli import main as cli
from repolicy.learning.training import customize
from repolicy.many import sweep
from repolicy.many.pool import Job
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.report import pieces
from repolicy.report.filming import encode_film
from repolicy.report.run_page import write_report
from repolicy.runs.settings import Settings

SETTINGS = {"steps": 512, "envs": 8, "n_steps": 32, "minibatch": 256, "checkpoint_every": 2, "evaluation_episodes": 2}


def calm(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    return -np.abs(next_observations[..., 0])


def prior_file(folder: Path) -> Path:
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,), (-3.0,), (3.0,))))
    save_policy(folder / "prior.safetensors", policy, {"request": {"env": "InvertedPendulum-v4"}})
    return folder / "prior.safetensors"


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Two points that are trained, and one whose folder is in the way; their films show nothing."""
    black = encode_film([np.zeros((320, 480, 3), np.uint8)] * 9, 25, "mp4")
    monkeypatch.setattr(pieces, "render_films", lambda shots, say: [black] * len(shots))

    def here(jobs: Sequence[Job], start: Any, at_once: int, on_end: Callable[[Job, str], None], on_poll: Any) -> None:
        for job in jobs:
            try:
                worked([job], start, at_once, on_end, on_poll)
            except SystemExit:
                said = capsys.readouterr().err.splitlines()
                on_end(job, next(line for line in said if line.startswith("repolicy: ")))

    monkeypatch.setattr(sweep, "run_jobs", here)
    prior, settings, out = prior_file(tmp_path), tmp_path / "settings.json", tmp_path / "sweep"
    settings.write_text(json.dumps(SETTINGS))
    (out / "omega-0.5").mkdir(parents=True)
    (out / "omega-0.5" / "run.json").write_text("no JSON")
    words = f"sweep {prior} --addon '{__file__}:calm' --omega 0.5 0 0.1 --alpha 0.01 --settings {settings} --out {out}"
    with pytest.raises(SystemExit, match="^1$"):
        cli.main([*shlex.split(words), "--episodes", "2", "--json"])
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    assert f"report: {out / 'report.html'}" in captured.err
    kept = json.loads((out / "sweep.json").read_text()) | {"folder": str(out), "report": found["report"]}
    assert found | {"format": kept["format"], "episodes": 2} == kept
    return found


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that was customized."""
    prior = prior_file(folder := tmp_path_factory.mktemp("reported"))
    customize(prior, f"{__file__}:calm", residual(0.1, 0.01), folder / "run", Settings(**SETTINGS, ranks=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "FILM_SECONDS", 0.6)
        return write_report(folder / "run", episodes=8, trust=True)


NETWORK = {"http", "https", "ws", "wss", "ftp"}


def asked_for(browser: Any) -> set[str]:
    """The kinds of address that the browser was sent to."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"]["request"]["url"] for message in messages if message["method"].endswith("WillBeSent")]
    return {url.partition(":")[0] for url in sent}


def test_the_page_of_a_run_has_its_verdict_on_top_films_in_step_and_fits_a_phone(reported: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"file://{reported}")
    verdict = browser.find_element(By.CLASS_NAME, "verdict")
    assert verdict.is_displayed()
    assert "its prior" in verdict.text
    assert "with the mean action" in verdict.text
    assert verdict.location["y"] < browser.find_element(By.CLASS_NAME, "tiles").location["y"] < 600
    videos = browser.find_elements(By.TAG_NAME, "video")
    assert len(videos) == 3
    for video in videos:
        assert video.get_attribute("controls")
        assert "film, " in video.get_attribute("aria-label")
    times = "return [...document.querySelectorAll('video')].map(video => [video.paused, video.currentTime])"

    def moments_of_all_that_play(page: Any) -> list[float] | None:
        states = page.execute_script(times)
        return None if any(paused for paused, _ in states) else [moment for _, moment in states]

    moments = WebDriverWait(browser, 30).until(moments_of_all_that_play)
    assert max(moments) - min(moments) < 0.2
    assert all(chart.get_attribute("aria-label") for chart in browser.find_elements(By.TAG_NAME, "svg"))
    assert not asked_for(browser) & NETWORK
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert reported.stat().st_size < 1_500_000
    for width in (390, 360):
        on_a_phone(browser, reported, width)


def test_a_printed_page_has_every_column_of_its_tables(reported: Path, browser: Any) -> None:
    a4 = {"width": 718, "height": 1046, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", a4)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.get(f"file://{reported}")
    cells = "return [...document.querySelectorAll('td, th')].map(cell => cell.getBoundingClientRect().right)"
    assert max(browser.execute_script(cells)) <= 718
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


ON_A_PHONE = """
const small = [], cut = [];
for (const part of document.querySelectorAll("body *")) {
  const box = part.getBoundingClientRect();
  const own = [...part.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!box.width || part.closest("[hidden]") || ["SCRIPT", "STYLE"].includes(part.tagName)) continue;
  const svg = part.closest("svg");
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  if (own && parseFloat(getComputedStyle(part).fontSize) * scale < 11.99) small.push(part.textContent);
  const outside = box.right > innerWidth + 0.5 || box.left < -0.5;
  if (outside && !part.closest(".scroll")) cut.push(part.outerHTML.slice(0, 99));
}
return [innerWidth, document.documentElement.scrollWidth, small, cut];
"""


def on_a_phone(browser: Any, page: str | Path, width: int) -> None:
    """Nothing but what scrolls is cut off, and every text can be read."""
    phone = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(f"file://{page}")
    assert browser.execute_script(ON_A_PHONE) == [width, width, [], []]


def test_the_slider_moves_every_part(swept: dict[str, Any], browser: Any) -> None:
    assert [point["omega"] for point in swept["points"]] == [0.0, 0.1]
    assert swept["prior"]["kl"] == 0.0
    assert [point["omega"] for point in swept["failed"]] == [0.5]
    assert "run.json cannot be read" in swept["failed"][0]["error"]

    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"file://{swept['report']}")
    slider = browser.find_element(By.ID, "omega")

    def seen() -> tuple[str, ...]:
        """(the value, the verdict, the table, the chosen row, the mark, the film) that a reader sees."""
        parts = [part for part in browser.find_elements(By.CSS_SELECTOR, "div[data-shown]") if part.is_displayed()]
        assert len({part.get_attribute("data-shown") for part in parts}) == 1
        verdict, table = (part.text for part in parts)
        [film] = [part for part in browser.find_elements(By.CSS_SELECTOR, "figure[data-shown]") if part.is_displayed()]
        row = browser.find_element(By.CSS_SELECTOR, "tr.chosen")
        assert film.find_element(By.TAG_NAME, "video").is_displayed()
        [mark] = browser.find_elements(By.CSS_SELECTOR, "circle.chosen")
        point = mark.get_attribute("data-point")
        value = browser.find_element(By.CSS_SELECTOR, ".slider output").text
        return value, verdict, table, row.text, point, film.text

    slider.send_keys(Keys.HOME)
    first = seen()
    slider.send_keys(Keys.ARROW_RIGHT)
    second = seen()
    assert first[0].startswith("ω′ 0")
    assert second[0].startswith("ω′ 0.1")
    assert second[1].startswith("At ω′ 0.1: ")
    assert "ω′ 0.1 with the mean action" in second[2]
    assert slider.get_attribute("aria-valuetext") == second[0]
    assert [before for before, after in zip(first, second, strict=True) if before == after] == []
    WebDriverWait(browser, 30).until(
        lambda page: page.execute_script(
            "return [...document.querySelectorAll('figure:not([hidden]) > video')].every(v => v.videoWidth == 480)"
        )
    )
    bars = "return [...document.querySelectorAll('.error')].map(bar => getComputedStyle(bar).pointerEvents)"
    assert set(browser.execute_script(bars)) == {"none"}  # else they would catch the clicks on other points
    point = browser.find_elements(By.CSS_SELECTOR, "circle[data-point]")[0]
    clicked = "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    browser.execute_script(clicked, point)  # two points of so short a training may lie on one another
    assert seen()[:4] == first[:4]
    assert not asked_for(browser) & NETWORK
    on_a_phone(browser, swept["report"], 390)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
