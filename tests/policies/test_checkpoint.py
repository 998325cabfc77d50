"""Files on disk: what is read is what was written, and what is damaged, foreign or full is said in a sentence."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_policies import SPECS, trained

from repolicy.errors import FileError, UsageError
from repolicy.policies import storage
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import frozen
from repolicy.policies.storage import FORMAT, read, write
from repolicy.priors.opening import load_policy, read_policy
from repolicy.ranges import Dial

TENSORS = {
    "floats": torch.tensor([1.5, -math.inf, math.nan]),
    "doubles": torch.arange(6, dtype=torch.float64).reshape(2, 3).T,  # not contiguous
    "scalar": torch.tensor(3.25),
}


# Any file -------------------------------------------------------------------------------------------------------------
def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    story = {"words": "ω′ and α̂", "numbers": [1, 2.5, None, math.inf], "nested": {"yes": True}}
    write(tmp_path / "deep" / "file", "checkpoint", TENSORS, story)
    tensors, found = read(tmp_path / "deep" / "file", "checkpoint")
    assert found == {"format": FORMAT, "kind": "checkpoint"} | story
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "policy"
    save_policy(path, trained(), {"steps": 100})
    return path


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0.0, 1.0, exclude_max=True), flip=st.integers(1, 255))
def test_any_byte_that_changed_is_noticed(whole: Path, tmp_path: Path, where: float, flip: int) -> None:
    content = bytearray(whole.read_bytes())
    content[int(where * len(content))] ^= flip
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FileError, match="file is damaged|has format|not one of Repolicy's"):
        read(tmp_path / "file", "policy")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_is_noticed(whole: Path, tmp_path: Path, share: float) -> None:
    content = whole.read_bytes()
    (tmp_path / "cut").write_bytes(content[: int(share * len(content))])
    reason = "cut is damaged, or no Repolicy file" if share else "cut is damaged: it is empty$"
    with pytest.raises(FileError, match=reason):
        read(tmp_path / "cut", "policy")


def test_other_files_are_told_apart(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        read(tmp_path / "nothing", "policy")
    with pytest.raises(FileError, match="is a policy, not a checkpoint"):
        read(whole, "checkpoint")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(FileError, match="is damaged, or no Repolicy file"):
        read(tmp_path / "zip", "policy")
    safetensors.torch.save_file({"a": torch.zeros(3)}, tmp_path / "foreign")
    with pytest.raises(FileError, match="is a safetensors file, but not one of Repolicy's"):
        read(tmp_path / "foreign", "policy")


def test_a_format_of_the_future_asks_for_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FORMAT", 99)
    write(tmp_path / "file", "policy", {}, {})
    monkeypatch.undo()
    with pytest.raises(FileError, match="has format 99; this version reads up to 1: upgrade repolicy"):
        read(tmp_path / "file", "policy")


def test_a_write_that_fails_leaves_what_was_there_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "file", "checkpoint", TENSORS, {})
    before = (tmp_path / "file").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="file cannot be written: No space left"):
        write(tmp_path / "file", "checkpoint", {}, {})
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file", before)]


# Policies -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", list(SPECS))
def test_a_policy_comes_back_with_its_normalizer(tmp_path: Path, family: str) -> None:
    policy, observations = trained(family), torch.randn(50, 3) * 3.0 + 5.0
    save_policy(tmp_path / "policy", policy, {"env": "Ant-v4"})
    saved = read_policy(tmp_path / "policy")
    actions = policy(observations).sample()
    assert torch.equal(saved.policy.log_prob(observations, actions), policy.log_prob(observations, actions))
    assert torch.equal(saved.policy(observations).mode(), policy(observations).mode())
    assert saved.policy.spec == policy.spec
    assert saved.card == {"env": "Ant-v4"}
    assert saved.prior is None
    assert not any(parameter.requires_grad for parameter in saved.policy.parameters())


def test_a_customized_policy_brings_its_prior(tmp_path: Path) -> None:
    policy, prior, observations = trained(seed=1), frozen(trained(seed=2)), torch.randn(50, 3) + 5.0
    save_policy(tmp_path / "policy", policy, {}, prior)
    saved = read_policy(tmp_path / "policy")
    actions = policy(observations).sample()
    assert torch.equal(saved.prior.log_prob(observations, actions), prior.log_prob(observations, actions))
    assert torch.equal(saved.policy.log_prob(observations, actions), policy.log_prob(observations, actions))


@pytest.mark.parametrize("who", ["policy", "prior"])
@pytest.mark.parametrize("name", ["normalizer.mean", "normalizer.var", "network.weights.0"])
def test_a_policy_that_is_not_itself_is_refused(tmp_path: Path, name: str, who: str) -> None:
    """The checksum is right, but the tensors are not those that the probes were made with."""
    save_policy(tmp_path / "policy", trained(), {}, frozen(trained(seed=2)))
    tensors, story = read(tmp_path / "policy", "policy")
    tensors[f"{who}.{name}"].mul_(1.5)
    write(tmp_path / "tampered", "policy", tensors, story)
    with pytest.raises(FileError, match=f"the {who} in .* does not reproduce its log-probabilities: it is off by"):
        read_policy(tmp_path / "tampered")


@pytest.mark.parametrize("left", ["policy.normalizer.mean", "policy_probes.actions"])
def test_a_policy_that_lacks_a_part_is_refused(whole: Path, tmp_path: Path, left: str) -> None:
    tensors, story = read(whole, "policy")
    del tensors[left]
    write(tmp_path / "part", "policy", tensors, story)
    with pytest.raises(FileError, match="part is no whole policy"):
        read_policy(tmp_path / "part")


@pytest.mark.parametrize("part", ["mean_clip", "slope", "observation_bound"])
def test_a_number_that_no_tensor_takes_is_refused(whole: Path, tmp_path: Path, part: str) -> None:
    tensors, story = read(whole, "policy")
    story["policy"][part] = 10**30
    write(tmp_path / "huge", "policy", tensors, story)
    with pytest.raises(FileError, match=f"{part!r} is too large"):
        read_policy(tmp_path / "huge")


def test_a_story_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(safetensors.torch.save({}, {"repolicy": "[]"}))
    with pytest.raises(FileError, match="no object"):
        read_policy(path)


@pytest.mark.parametrize("part", ["addons", "limits"])
def test_a_request_of_another_kind_is_refused(tmp_path: Path, part: str) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(FileError, match=f"a.safetensors cannot be written: its card, 'request', '{part}' is 3, not a"):
        save_policy(path, load_policy("hopper"), {"request": {part: 3}})
    save_policy(path, load_policy("hopper"))
    tensors, header = read(path)
    write(path, "policy", tensors, header | {"card": {"request": {part: 3}}})
    with pytest.raises(FileError, match=f"is no whole policy: .*'{part}' is 3, not a list"):
        read_policy(path)


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ({"steps": 1e6}, "its card, 'steps' is 1000000.0, not a whole number"),
        ({"evaluation": -812.0}, "its card, 'evaluation' is -812.0, not an object"),
        ({"request": {"env": "Ant-v4", "settings": None}}, "its card, 'request', 'settings' is None, not an object"),
        ({"notes": object()}, "its card is no JSON"),
        ({"notes": np.zeros(2)}, "its card is no JSON"),
    ],
)
def test_a_card_that_could_not_be_read_again_is_not_written(tmp_path: Path, card: Any, problem: str) -> None:
    with pytest.raises((FileError, UsageError), match=f"mine cannot be written: {problem}"):
        save_policy(tmp_path / "mine", trained(), card)
    assert not any(tmp_path.iterdir())


def test_a_card_has_numbers_of_any_library(tmp_path: Path) -> None:
    save_policy(
        tmp_path / "mine", trained(), {"steps": np.int64(3), "evaluation": {"a": np.float32(2), "b": torch.ones(())}}
    )
    assert read_policy(tmp_path / "mine").card == {"steps": 3, "evaluation": {"a": 2.0, "b": 1.0}}


def test_a_prior_with_a_dial_is_not_written(tmp_path: Path) -> None:
    dialed = ConditionedPolicy.from_prior(trained(), [Dial("omega", 0.1, 3.0)])
    with pytest.raises(UsageError, match=r"^the prior is one for every omega .*policy.at\("):
        save_policy(tmp_path / "mine", trained(), prior=dialed)


def test_what_is_no_policy_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^a Linear is no Policy, .* a run's result has one, its \.policy$"):
        save_policy(tmp_path / "mine", torch.nn.Linear(2, 2))
    assert not (tmp_path / "mine").exists()


def test_a_policy_comes_back_with_what_it_observes(tmp_path: Path) -> None:
    policy = trained()
    policy.groups = ("speed", "place")
    dialed = ConditionedPolicy.from_prior(policy, [Dial("omega", 0.1, 3.0)])
    for each in (policy, dialed):
        save_policy(tmp_path / "mine", each)
        assert load_policy(tmp_path / "mine").groups == ("speed", "place")
    assert dialed.at(1.0).groups == ("speed", "place")


def test_loading_a_policy_leaves_a_users_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    frozen(load_policy("hopper"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_policy_that_does_not_ship_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder without a run; name a policy's file in it$"):
        load_policy(tmp_path)
    (tmp_path / "swept" / "omega-0.3").mkdir(parents=True)
    for name in ("sweep.json", "prior.safetensors", "omega-0.3.log"):
        (tmp_path / "swept" / name).touch()
    with pytest.raises(FileError, match="swept is a sweep: name one of its points, such as .*swept/omega-0.3$"):
        load_policy(tmp_path / "swept")
    (tmp_path / "000000000100").mkdir()
    (tmp_path / "000000000100" / "_CHECKPOINT_METADATA").touch()
    with pytest.raises(FileError, match=r"Orbax wrote.* write that by brax.io.model.save_params$"):
        load_policy(tmp_path / "000000000100")
    (tmp_path / "best_model.zip").touch()
    with pytest.raises(FileError, match=r"in it, such as best_model.zip$"):
        load_policy(tmp_path)
    with pytest.raises(FileError, match="there is no file .*nowhere.safetensors, and no policy of that name ships"):
        load_policy(tmp_path / "nowhere.safetensors")


def test_a_file_of_ours_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x.pt: a policy's file is called NAME.safetensors"):
        save_policy(tmp_path / "x.pt", trained())
    save_policy(tmp_path / "x.safetensors", trained())
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
