"""Files on disk: what is read is what was written, and what is damaged, foreign or full is said in a sentence."""

import errno
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from saved_policies import SPECS, trained

from repolicy.errors import FileError, UsageError
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import frozen
from repolicy.policies.storage import FORMAT, read, serialize, write
from repolicy.priors.opening import load_policy, read_policy
from repolicy.ranges import Dial

TENSORS = {
    "floats": torch.tensor([1.5, -math.inf, math.nan]),
    "doubles": torch.arange(6, dtype=torch.float64).reshape(2, 3).T,  # not contiguous
    "scalar": torch.tensor(3.25),
}


OMEGA = Dial("omega", 0.1, 3.0)
DIALED = ConditionedPolicy.from_prior(trained(), [OMEGA])


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


def test_any_byte_that_changed_is_noticed(whole: Path, tmp_path: Path) -> None:
    content, chance = whole.read_bytes(), random.Random(0)
    for _ in range(150):
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= chance.randint(1, 255)
        with pytest.raises(FileError, match="file is damaged|has format|not one of Repolicy's"):
            read(tmp_path / "file", "policy", bytes(changed))


DAMAGED = "is damaged, or no Repolicy file"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (0.0, "file is damaged: it is empty$"),
        (0.001, DAMAGED),
        (0.3, DAMAGED),
        (0.999, DAMAGED),
        (b"PK\x03\x04" + bytes(1000), DAMAGED),
        (safetensors.torch.save({"a": torch.zeros(3)}), "is a safetensors file, but not one of Repolicy's"),
        (safetensors.torch.save({}, {"repolicy": "[]"}), "no object"),
        (serialize("checkpoint", {}, {}), "is a checkpoint, not a policy"),
        (serialize("policy", {}, {"format": 99}), "has format 99; this version reads up to 1: upgrade repolicy"),
    ],
)
def test_a_file_that_is_cut_or_of_another_kind_or_of_the_future_is_refused(
    whole: Path, tmp_path: Path, content: float | bytes, sentence: str
) -> None:
    if isinstance(content, float):
        content = whole.read_bytes()[: int(content * whole.stat().st_size)]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FileError, match=sentence):
        read(tmp_path / "file", "policy")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        read(tmp_path / "nothing", "policy")


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
@pytest.mark.parametrize("prior", [None, frozen(trained(seed=2))])
@pytest.mark.parametrize("family", list(SPECS))
def test_a_policy_comes_back_with_its_normalizer_and_its_prior(tmp_path: Path, family: str, prior: Any) -> None:
    policy, observations = trained(family), torch.randn(50, 3) * 3.0 + 5.0
    save_policy(tmp_path / "policy", policy, {"env": "Ant-v4"}, prior)
    saved = read_policy(tmp_path / "policy")
    pairs = [(saved.policy, policy), (saved.prior, prior)] if prior else [(saved.policy, policy)]
    for found, wanted in pairs:
        actions = wanted(observations).sample()
        assert torch.equal(found.log_prob(observations, actions), wanted.log_prob(observations, actions))
        assert torch.equal(found(observations).mode(), wanted(observations).mode())
        assert found.spec == wanted.spec
        assert not any(parameter.requires_grad for parameter in found.parameters())
    assert (saved.prior is None) == (prior is None)
    assert saved.card == {"env": "Ant-v4"}


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


@pytest.mark.parametrize(
    ("lost", "changes", "sentence"),
    [
        ("policy.normalizer.mean", {}, "part is no whole policy"),
        ("policy_probes.actions", {}, "part is no whole policy"),
        ("", {"policy": {"mean_clip": 10**30}}, "'mean_clip' is too large"),
        ("", {"policy": {"slope": 10**30}}, "'slope' is too large"),
        ("", {"policy": {"observation_bound": 10**30}}, "'observation_bound' is too large"),
        ("", {"card": {"request": {"addons": 3}}}, "is no whole policy: .*'addons' is 3, not a list"),
        ("", {"card": {"request": {"limits": 3}}}, "is no whole policy: .*'limits' is 3, not a list"),
    ],
)
def test_a_policy_that_lacks_a_part_or_has_another_is_refused(
    whole: Path, tmp_path: Path, lost: str, changes: dict[str, Any], sentence: str
) -> None:
    tensors, story = read(whole, "policy")
    tensors.pop(lost, None)
    for part, change in changes.items():
        story[part] |= change
    write(tmp_path / "part", "policy", tensors, story)
    with pytest.raises(FileError, match=sentence):
        read_policy(tmp_path / "part")


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ({"steps": 1e6}, "its card, 'steps' is 1000000.0, not a whole number"),
        ({"evaluation": -812.0}, "its card, 'evaluation' is -812.0, not an object"),
        ({"request": {"env": "Ant-v4", "settings": None}}, "its card, 'request', 'settings' is None, not an object"),
        ({"request": {"addons": 3}}, "its card, 'request', 'addons' is 3, not a"),
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


@pytest.mark.parametrize(
    ("policy", "more", "name", "sentence"),
    [
        (trained(), {"prior": DIALED}, "mine", r"^the prior is one for every omega .*policy.at\("),
        (torch.nn.Linear(2, 2), {}, "mine", r"^a Linear is no Policy, .* a run's result has one, its \.policy$"),
        (trained(), {}, "x.pt", r"x.pt: a policy's file is called NAME.safetensors"),
    ],
)
def test_what_is_no_policy_or_is_called_otherwise_is_not_written(
    tmp_path: Path, policy: Any, more: dict[str, Any], name: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        save_policy(tmp_path / name, policy, **more)
    assert not any(tmp_path.iterdir())


def test_a_policy_comes_back_with_what_it_observes(tmp_path: Path) -> None:
    policy = trained()
    policy.groups = ("speed", "place")
    dialed = ConditionedPolicy.from_prior(policy, [OMEGA])
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
