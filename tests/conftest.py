"""What every test may rely on: one torch thread, and the same random numbers whatever ran before."""

import pytest
import torch
from hypothesis import settings

from repolicy.cli.doctor import renderer

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def _renderer() -> None:
    """For tests that film: a machine that cannot render skips them and says so."""
    if not renderer():
        pytest.skip("rendering needs Debian's package libegl1 or libosmesa6")
