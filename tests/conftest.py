"""What every test may rely on: a processor, one torch thread, and the same random numbers whatever ran before."""

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on a GPU, Stable-Baselines3's models and the tests' tensors would lie apart
# No test waits for a network. Hugging Face's libraries read this once, whichever test imports them first.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Import what takes seconds where tests are collected, and not where they are only handed out."""
    if collector.path.is_relative_to(Path(__file__).parent):
        gc.disable()  # until all is imported, there is hardly any
        import torch
        from hypothesis import settings

        settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
        settings.load_profile("repeatable")
        torch.set_num_threads(1)
        for device in (torch.cuda, torch.xpu, torch.mtia):  # to seed them writes down the whole stack, for later
            device.manual_seed_all = lambda seed: None


def pytest_collection_finish() -> None:
    """Leave what the tests import out of what is searched for garbage: TRL has it searched after each training."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Begin what several tests share with the same random numbers, whichever of them comes first."""
    if fixturedef.scope != "function":
        seed()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed()


def seed() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # `torch.manual_seed` also writes down where it was called, for GPUs


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, where Python looks for code only during this test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))


@pytest.fixture(scope="session")
def _renderer() -> None:
    """For tests that film: a machine that cannot render skips them and says so."""
    from repolicy.cli.about import renderer

    if not renderer():
        pytest.skip("rendering needs Debian's package libegl1 or libosmesa6")


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, started once; CI fails where there is none, another machine skips its tests."""
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
        f"user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):  # fmt: skip
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


@pytest.fixture
def browser(_chromium: Any) -> Iterator[Any]:
    """A window of the browser's that no other test has had, and a log that begins with it."""
    first = _chromium.current_window_handle
    _chromium.switch_to.new_window("window")
    for kind in ("performance", "browser"):
        _chromium.get_log(kind)
    try:
        yield _chromium
    finally:
        _chromium.close()
        _chromium.switch_to.window(first)
