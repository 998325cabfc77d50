"""Wishes that were learnt, as files: features, what every command takes, and that nothing in a file is trusted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typed_commands import failed

from repolicy.addons.addon import check_env, combine_addons
from repolicy.addons.addon_names import dials, import_target, with_weights
from repolicy.addons.limits import Limit
from repolicy.addons.trust import check_trust
from repolicy.addons.wish_file import Features, LearntWish, Networks, open_wish
from repolicy.envs.rollout import Transitions
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.policies.storage import read, write

BEFORE, DONE, AFTER = np.full((2, 3), 9.0), np.array([[1.0, -2.0], [0.0, 3.0]]), np.array([[-4.0, 5, 6], [7, -8, 9]])
STEPS = Transitions(BEFORE, DONE, AFTER, {})


def wish(features: str = "next[0]^1", theta: float = -2.0, env: str = "HalfCheetah-v4") -> LearntWish:
    known = Features(features, len if ":" in features.replace("0:", "") else None)
    return LearntWish(env, "p", "a test", (3, 2), known, ("one",), np.array([theta]), np.ones((1, 1)))


@pytest.mark.parametrize(
    ("reference", "values", "names"),
    [
        ("next[1]", [[5], [-8]], ("next[1]",)),
        ("next[0]^1,action[1]^2", [[4, 4], [7, 9]], ("next[0]^1", "action[1]^2")),
        ("observation[1:3]", [[9, 9], [9, 9]], ("observation[1]", "observation[2]")),
        ("action", [[1, -2], [0, 3]], ("action[0]", "action[1]")),
    ],
)
def test_features_that_need_no_code(reference: str, values: list[list[float]], names: tuple[str, ...]) -> None:
    features = Features.of(reference)
    found = features(BEFORE, DONE, AFTER, {})
    assert found.tolist() == values
    assert features.names(found.shape[1], (3, 2)) == names


def test_a_file_is_an_add_on_with_a_weight(tmp_path: Path) -> None:
    path = tmp_path / "x=1" / "spare.safetensors"
    wish().write(path)
    assert combine_addons([str(path)]).reward(STEPS).tolist() == [-8, -14]
    weighed = combine_addons([f"{path}=0.5"])
    assert weighed.reward(STEPS).tolist() == [-4, -7]
    assert weighed.titles == ("spare",)
    assert [dial.name for dial in dials([f"{path}=0..2"])] == ["spare"]
    assert with_weights([f"{path}=0..2"], {"spare": 1.5}) == (f"{path}=1.5",)


def test_a_file_can_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "spare.safetensors"
    wish().write(path)
    limit = Limit.of(f"{path}>=-10")
    assert limit.quantity.reward(STEPS).tolist() == [-8, -14]
    assert str(limit) == "spare>=-10"


@pytest.mark.parametrize("text", ["ticks<=1000000.7", "pressure>=101325.25", "ticks<=1e+06", "power<=0.3", "x>=-5"])
def test_a_limit_is_read_back_with_the_bound_it_was_written_with(text: str) -> None:
    assert str(Limit.of(text)) == text


def test_networks_are_their_mean(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    parts = [torch.randn(size, generator=random) for size in ((8,), (8,), (3, 8, 4), (3, 4), (3, 4))]
    LearntWish("X-v0", "p", "a test", (3, 2), None, networks=Networks(*parts)).write(tmp_path / "w.safetensors")
    inputs = np.concatenate([BEFORE, DONE, AFTER], 1)
    one = [
        [float(np.tanh(((inputs[b] - parts[0].numpy()) / parts[1].numpy()) @ parts[2][e].numpy() + parts[3][e].numpy())
               @ parts[4][e].numpy()) for b in range(2)] for e in range(3)
    ]  # fmt: skip
    found = open_wish(str(tmp_path / "w.safetensors"))(BEFORE, DONE, AFTER, {})
    assert found == pytest.approx(np.mean(one, 0), rel=1e-4)


def test_features_of_ones_own_are_only_named_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("open('ran', 'w').close()\ndef f(o, a, n, i): return n[:, :1]\n")
    wish("own.py:f").write(Path("w.safetensors"))
    asked = r"names code that would be run: own.py:f; .* 'w.safetensors\(features=own.py:f\)'"
    with pytest.raises(UsageError, match=asked):
        combine_addons(["w.safetensors"])
    assert not (tmp_path / "ran").exists()
    typed = "w.safetensors(features=own.py:f)=2"
    assert combine_addons([typed]).reward(STEPS).tolist() == [16, -28]
    with pytest.raises(UsageError, match="names code"):
        check_trust("a policy", False, addons=[typed])
    with pytest.raises(UsageError, match="is a wish of the features own.py:f, not of own.py:g"):
        combine_addons(["w.safetensors(features=own.py:g)"])


def test_a_policys_file_that_names_a_wish_file_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names a file that would be opened: elsewhere.safetensors=2; if you trust it"):
        check_trust("a policy", False, addons=["elsewhere.safetensors=2"])
    assert import_target("elsewhere.safetensors=2") == "elsewhere.safetensors"


def test_another_environment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    wish().write(path)
    check_env([f"{path}=2"], "HalfCheetah-v5")
    with pytest.raises(UsageError, match="was learnt in HalfCheetah-v4, not in Hopper-v4"):
        check_env([f"{path}=2"], "Hopper-v4")
    wrong = "3 observed numbers and 2 of an action in HalfCheetah-v4, and here are 2 and 2"
    with pytest.raises(RepolicyError, match=wrong):
        combine_addons([str(path)]).reward(Transitions(BEFORE[:, :2], DONE, AFTER[:, :2], {}))
    wish(env="goalenv.py:Goal").write(path)
    check_env([str(path)], f"{tmp_path / 'goalenv.py'}:Goal?speed=2")  # the same code, named in another way
    with pytest.raises(UsageError, match="was learnt in goalenv.py:Goal, not in ./goalenv.py:Goals"):
        check_env([str(path)], "./goalenv.py:Goals")


@pytest.mark.parametrize(
    ("header", "tensors", "why"),
    [
        ({"names": ["a", "b"]}, {}, "no wish that can be used"),
        ({"sizes": [3]}, {}, "no wish that can be used"),
        ({"sizes": "3"}, {}, "not a list"),
        ({"features": ""}, {}, "no wish that can be used"),
        ({"features": "next[0"}, {}, "names code"),
        ({}, {"theta": torch.tensor([torch.nan])}, "no wish that can be used"),
        ({}, {"covariance": torch.ones(2, 2)}, "no wish that can be used"),
        ({}, {"theta": torch.tensor(1.0)}, "no wish that can be used"),
        ({}, {"theta": torch.ones(1, 3)}, "no wish that can be used"),
    ],
)
def test_a_damaged_file_is_one_sentence(header: object, tensors: object, why: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    wish().write(path)
    kept, values = read(path, "wish")
    values = {name: value for name, value in values.items() if name not in ("format", "kind")}
    write(path, "wish", kept | tensors, values | header)
    with pytest.raises(RepolicyError, match=why):
        combine_addons([str(path)])


def test_what_is_no_wish_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileError, match="there is no file"):
        combine_addons([str(tmp_path / "none.safetensors")])
    write(tmp_path / "p.safetensors", "policy", {}, {})
    assert "is a policy, not a wish" in failed(capsys, "evaluate", "hopper", "--addon", tmp_path / "p.safetensors")


def test_a_file_of_features_may_begin_like_an_entry(tmp_path: Path) -> None:
    (tmp_path / "actions.py").write_text("def f(observations, actions, after, info): return actions\n")
    found = Features.of(f"{tmp_path / 'actions.py'}:f")
    assert np.array_equal(found(BEFORE, DONE, AFTER, {}), DONE)


def test_features_are_handed_over_as_a_function_of_this_session() -> None:
    def squares(observations: Any, actions: Any, after: Any, info: Any) -> Any:
        return actions**2

    found = Features.of(squares)
    assert found(BEFORE, DONE, AFTER, {}).tolist() == [[1, 4], [0, 9]]
    assert found.names(2, (3, 2)) == ("squares[0]", "squares[1]")
    assert Features.of(found.reference).function is squares


@pytest.mark.parametrize("reference", ["nxt[0]", "nxt[0:1]^2", "next[0],my.py:f", "next[9]", "next[2:1]", "next[0:1"])
def test_features_that_cannot_be_are_one_sentence(reference: str) -> None:
    with pytest.raises(UsageError, match="are none: name entries|is no range of the 3 numbers"):
        Features.of(reference)(BEFORE, DONE, AFTER, {})


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda o, a, n, i: n[:, 0], r"returned shape \(2,\) for 2 transitions"),
        (lambda o, a, n, i: n * np.nan, "returned nan as number 0"),
        (lambda o, a, n, i: i["no"], "failed"),
    ],
)
def test_features_that_are_wrong_are_one_sentence(function: object, why: str) -> None:
    with pytest.raises(RepolicyError, match=why):
        Features("own.py:f", function)(BEFORE, DONE, AFTER, {})
