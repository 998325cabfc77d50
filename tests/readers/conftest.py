"""Real policies made by other people, where they lie beside the repository, and the tolerance of all comparisons."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

PRIORS = Path(__file__).parents[2].parent / "shared" / "priors"


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    """Networks are compared here, and none learns."""
    with torch.no_grad():
        yield


@pytest.fixture
def real() -> Callable[[str], Path]:
    """A file of `../shared/priors`; a test of one that is not there is skipped and says so."""

    def find(name: str) -> Path:
        path = PRIORS / name
        if not path.is_file():
            pytest.skip(f"{name} is not in ../shared/priors beside this repository")
        return path

    return find
