"""What the tests of sweeps share: a wish is tried for few steps before the points are trained."""

from collections.abc import Iterator

import pytest

from repolicy.prepare import weights


@pytest.fixture(autouse=True, scope="module")
def _short_trials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights.collect_trial, "__defaults__", (32,))  # steps of each environment
        yield
