"""The prior that customizing begins from, and environments for runs that are long."""

from pathlib import Path

import at_once
import pytest
from several import prior_file

from repolicy.envs import making


@pytest.fixture(scope="session")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact optimum of the first task: all that customizing gets to know of it."""
    return prior_file(tmp_path_factory.mktemp("prior"))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear–quadratic environments are stepped all at once, to the same bits."""
    monkeypatch.setattr(making, "GymnasiumEnvs", at_once.batch)
