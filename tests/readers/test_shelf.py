"""The shelf, without a network: files are fetched once, checked, and known by their environment."""

import hashlib
import http.client
from collections.abc import Callable
from pathlib import Path
from unittest import mock
from urllib.error import URLError

import pytest
from tiny_envs import tiny
from typed_commands import refused

from repolicy.addons.trust import env_from_card
from repolicy.errors import FileError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import read_card, save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors import finding as shelf
from repolicy.priors.finding import SHELF, Published, cached_policy, fetch_published, find_policy
from repolicy.priors.opening import is_code, read_policy


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shelf, "_download", mock.Mock(side_effect=URLError("no network")))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, bytes]]:
    """A name on the shelf with a policy and statistics, and what is at their addresses."""
    save_policy(tmp_path / "theirs", Policy(PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)))), {})
    contents = {"a/policy.zip": (tmp_path / "theirs").read_bytes(), "a/statistics.pkl": b"numbers"}
    names = {"policy.zip": "a/policy.zip", "policy.vecnormalize.pkl": "a/statistics.pkl"}
    files = {name: (path, hashlib.sha256(contents[path]).hexdigest()) for name, path in names.items()}
    monkeypatch.setitem(SHELF, "mine:walker", Published(("me/policies", "abc123"), tiny("LinearQuadratic"), files))
    return "mine:walker", contents


def test_a_file_is_fetched_once_from_its_commit_and_checked(mine: tuple[str, dict[str, bytes]]) -> None:
    name, contents = mine
    asked = []

    def download(address: str) -> bytes:
        asked.append(address)
        assert address.startswith("https://")
        return contents[address.split("/me/policies/abc123/")[1]]

    path = fetch_published(name, download)
    assert path.read_bytes() == contents["a/policy.zip"]
    assert path.with_name("policy.vecnormalize.pkl").read_bytes() == b"numbers"
    assert len(asked) == 2
    assert fetch_published(name, download) == find_policy(name) == path
    assert len(asked) == 2
    assert env_from_card(read_card(path), path) == env_from_card({}, Path(name)) == tiny("LinearQuadratic")


@pytest.mark.parametrize("error", [URLError("no network"), TimeoutError("timed out"), http.client.IncompleteRead(b"")])
def test_without_a_network_the_file_and_its_place_are_named(
    error: Exception, mine: tuple[str, dict[str, bytes]]
) -> None:
    said = r"cannot be fetched.*put a/policy.zip of me/policies at commit abc123 at .*mine"
    with pytest.raises(FileError, match=said):
        fetch_published(mine[0], mock.Mock(side_effect=error))
    assert not cached_policy(mine[0]).exists()


def test_another_file_is_refused_on_its_way_and_in_the_cache(mine: tuple[str, dict[str, bytes]]) -> None:
    name, _ = mine
    with pytest.raises(FileError, match="not the file that was published"):
        fetch_published(name, lambda address: b"something else")
    assert not cached_policy(name).exists()
    cached_policy(name).parent.mkdir(parents=True)
    cached_policy(name).write_bytes(b"something else")
    with pytest.raises(FileError, match="its sha256 differs; remove it"):
        find_policy(name)


def test_a_file_that_was_put_in_its_place_by_hand_will_do(mine: tuple[str, dict[str, bytes]]) -> None:
    name, contents = mine
    cached_policy(name).parent.mkdir(parents=True)
    cached_policy(name).write_bytes(contents["a/policy.zip"])
    with pytest.raises(FileError, match=r"put a/statistics.pkl .* at .*policy.vecnormalize.pkl"):
        find_policy(name)
    cached_policy(name).with_name("policy.vecnormalize.pkl").write_bytes(b"numbers")
    assert read_policy(find_policy(name)).policy.observation_size == 1


def test_a_name_that_is_not_on_the_shelf_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "none on the shelf of that name; did you mean" in refused(capsys, 1, "inspect", "playground:go2")


ZOO = "rl_trained_agents/"
FILES = {
    "playground:go1": ("mujoco_playground/go1_policy.onnx",),
    "playground:berkeley": ("mujoco_playground/bh_policy.onnx",),
    "zoo:ppo-halfcheetah": (f"{ZOO}ppo_HalfCheetah-v3.zip", f"{ZOO}ppo_HalfCheetah-v3.vecnormalize.pkl"),
    "zoo:trpo-hopper": (f"{ZOO}trpo_Hopper-v3.zip", f"{ZOO}trpo_Hopper-v3.vecnormalize.pkl"),
    "zoo:sac-hopper": (f"{ZOO}sac_Hopper-v3.zip",),
    "zoo:ppo-cartpole": (f"{ZOO}ppo_CartPole-v1.zip",),
}


@pytest.mark.parametrize("name", SHELF)
def test_what_is_on_the_shelf_is_what_it_says(name: str, real: Callable[[str], Path]) -> None:
    """With the published files themselves, where they lie beside this clone."""
    left = [real(file) for file in FILES[name]]
    path = fetch_published(name, lambda address: left.pop(0).read_bytes())
    assert read_policy(path).policy.observation_size > 0


def test_a_user_without_a_home_has_a_cache_in_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", mock.Mock(side_effect=KeyError))
    assert find_policy("hopper").is_file()
    assert not shelf.cache_folder().is_absolute()


def test_names_of_the_shelf_and_the_hub_are_no_code() -> None:
    assert not any(is_code(name) for name in (*SHELF, "playground:go2", "hf://somebody/mine"))
    assert is_code("mine.py:swing")
    assert is_code("mine:swing")
