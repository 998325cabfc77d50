"""The policy that people watch and take over."""

from pathlib import Path

import pytest

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import PolicySpec, make_policy


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "p.safetensors"
    spec = PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)))
    save_policy(path, make_policy(spec, 0), {"request": {"env": "Pendulum-v1"}})
    return path
