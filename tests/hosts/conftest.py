"""What tests of several hosts share; without the hosts' packages, only what needs none is tested."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from repolicy.hosts import measuring

NEED_NO_HOST = ("test_looks.py", "test_method.py", "test_reward.py", "test_snippets.py")
collect_ignore = [
    file.name
    for file in Path(__file__).parent.glob("test_*.py")
    if file.name not in NEED_NO_HOST and not (find_spec("rsl_rl") and find_spec("stable_baselines3"))
]


@pytest.fixture
def _short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose environments do not end by themselves."""
    monkeypatch.setattr(measuring, "MAX_EPISODE_STEPS", 30)


@pytest.fixture
def _few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at what is done with a measurement or a verdict, and not at its numbers."""
    for name in ("WORTH_EPISODES", "MAX_WORTH_EPISODES"):
        monkeypatch.setattr(measuring, name, 4)
