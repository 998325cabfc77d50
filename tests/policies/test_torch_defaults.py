"""Programs that have chosen other defaults of torch get the same policies, and their choices stay."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_policies import SPECS, trained
from small_runs import SMALL, same, small, weights

import repolicy
from repolicy.policies import ConditionedPolicy, with_torch_defaults
from repolicy.ranges import Dial


def test_torch_is_as_it_was_afterwards_also_after_an_error(other_defaults: None) -> None:
    seen = list[tuple[torch.dtype, torch.device]]()
    numbers = torch.arange(4096.0, dtype=torch.float32, device="cpu").reshape(64, 64) / 4096.0
    wanted = numbers.double() @ numbers.double()

    @with_torch_defaults()
    def fail() -> None:
        seen.append((torch.get_default_dtype(), torch.get_default_device()))
        torch.testing.assert_close((numbers @ numbers).double(), wanted, rtol=1e-6, atol=1e-6)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [(torch.float32, torch.device("cpu"))]
    assert (torch.get_default_dtype(), torch.get_default_device()) == (torch.float64, torch.device("meta"))
    assert torch.get_float32_matmul_precision() == "medium"


def test_what_is_too_small_for_a_float_is_0() -> None:
    with np.errstate(all="raise"), with_torch_defaults():
        assert np.exp(np.array([-1e3])).item() == 0.0


def test_a_policy_is_read_and_its_dial_turned_as_ever(tmp_path: Path, other_defaults: None) -> None:
    with torch.device("cpu"), with_torch_defaults():
        policy, prior = trained(seed=1), trained(seed=0)
        prior.normalizer.load_state_dict(policy.normalizer.state_dict())
    repolicy.save_policy(tmp_path / "policy", policy, prior=prior)
    assert same(repolicy.load_policy(tmp_path / "policy").state_dict(), policy.state_dict())
    assert same(repolicy.dial(tmp_path / "policy", 1.0, "weights").state_dict(), policy.state_dict())


@pytest.mark.parametrize("family", list(SPECS))
def test_a_policy_acts_and_its_dial_is_turned_as_ever(family: str, request: pytest.FixtureRequest) -> None:
    policy, seen = trained(family), np.full((5, 3), 5.0, np.float32)
    dialed = ConditionedPolicy.from_prior(policy, [Dial("omega", 0.1, 3.0)])

    def acted() -> list[np.ndarray]:
        torch.manual_seed(0)
        return [
            each.predict(seen, deterministic=mean)[0] for each in (policy, dialed.at(1.0)) for mean in (True, False)
        ]

    before = acted()
    request.getfixturevalue("other_defaults")
    for found, wanted in zip(acted(), before, strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)


TWO_SEGMENTS = replace(SMALL, steps=1_024)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with torch as it is."""
    small(folder := tmp_path_factory.mktemp("usual") / "run", TWO_SEGMENTS)
    return folder


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_training_ends_in_the_same_bits(
    usual: Path, tmp_path: Path, around: Callable[[], AbstractContextManager[None]], other_defaults: None
) -> None:
    with around():
        small(tmp_path / "run", TWO_SEGMENTS)
    with with_torch_defaults():
        assert same(weights(usual), weights(tmp_path / "run"))


@pytest.fixture
def other_defaults() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("medium")  # some processors then multiply in bfloat16
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
