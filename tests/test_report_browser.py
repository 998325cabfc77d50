"""A sweep from the command line, and its page in a real browser: the slider switches table and film."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repolicy.cli import main as cli
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.policies.spaces import ActionSpace
from repolicy.report import run as report

SETTINGS = {"steps": 512, "envs": 8, "horizon": 32, "minibatch": 256, "segment": 2, "evaluation_episodes": 2}


def calm(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    return -np.abs(next_observations[..., 0])


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if (chromium is None or driver is None) and not os.environ.get("CI"):
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    assert chromium is not None, "install Debian's packages chromium and chromium-driver"
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1200,1600",
        f"user-data-dir={tmp_path / 'browser'}",
    ):  # fmt: skip
        options.add_argument(f"--{option}")
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Two points that are trained, and one whose folder is in the way."""
    monkeypatch.setattr(report, "FILM_SECONDS", 0.4)
    prior, settings, out = tmp_path / "prior.safetensors", tmp_path / "settings.json", tmp_path / "sweep"
    space = ActionSpace("continuous", (1,), (-3.0,), (3.0,))
    save_policy(prior, Policy(PolicySpec(4, space)), {"request": {"env": "InvertedPendulum-v4"}})
    settings.write_text(json.dumps(SETTINGS))
    (out / "omega-0.5").mkdir(parents=True)
    (out / "omega-0.5" / "run.json").write_text("no JSON")
    words = f"sweep {prior} --addon {__file__}:calm --omega 0.5 0 0.1 --alpha 0.01 --settings {settings} --out {out}"
    cli.main([*words.split(), "--episodes", "2", "--json"])
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    assert f"report: {out / 'report.html'}" in captured.err
    assert found == json.loads((out / "sweep.json").read_text()) | {"folder": str(out), "report": found["report"]}
    return found


def test_the_slider_switches_table_and_film(swept: dict[str, Any], browser: Any) -> None:
    assert [point["omega"] for point in swept["points"]] == [0.0, 0.1]
    assert swept["prior"]["kl"] == 0.0
    assert [point["omega"] for point in swept["failed"]] == [0.5]
    assert "run.json cannot be read" in swept["failed"][0]["error"]

    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"file://{swept['report']}")
    slider = browser.find_element(By.ID, "omega")

    def seen() -> tuple[str, str, str, str]:
        """(the value, the table, the chosen row, the film) that a reader sees."""
        [table] = [part for part in browser.find_elements(By.CSS_SELECTOR, "div[data-shown]") if part.is_displayed()]
        [film] = [part for part in browser.find_elements(By.CSS_SELECTOR, "figure[data-shown]") if part.is_displayed()]
        row = browser.find_element(By.CSS_SELECTOR, "tr.chosen")
        source = film.find_element(By.TAG_NAME, "video").get_attribute("src")
        return browser.find_element(By.ID, "chosen").text, table.text, row.text, source

    slider.send_keys(Keys.HOME)
    first = seen()
    slider.send_keys(Keys.ARROW_RIGHT)
    second = seen()
    assert first[0].startswith("ω′ 0")
    assert second[0].startswith("ω′ 0.1")
    assert "ω′ 0.1" in second[1]
    assert all(before != after for before, after in zip(first, second, strict=True))
    WebDriverWait(browser, 30).until(
        lambda page: page.execute_script(
            "return [...document.querySelectorAll('figure:not([hidden]) > video')].every(v => v.videoWidth == 480)"
        )
    )
    browser.find_elements(By.CSS_SELECTOR, "circle[data-point]")[0].click()
    assert seen()[1] == first[1]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
