"""The prior that customizing begins from."""

from pathlib import Path

import pytest
from several import prior_file


@pytest.fixture(scope="session")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact optimum of the first task: all that customizing gets to know of it."""
    return prior_file(tmp_path_factory.mktemp("prior"))
