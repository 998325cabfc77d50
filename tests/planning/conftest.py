"""What the tests of planners share: few rollouts of the prior before a plan."""

from collections.abc import Iterator

import pytest

from repolicy.planning import value


@pytest.fixture(autouse=True, scope="module")
def _few_rollouts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value, "BLOCKS", 1)
        yield
