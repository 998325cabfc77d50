"""Settings: their bounds, their files, the table, the sharing of environments by ranks."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repolicy.errors import UsageError
from repolicy.learning.ppo import std_speed
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.defaults import TABLE, customize_defaults, train_defaults
from repolicy.runs.request import choose_family, spec_for
from repolicy.runs.settings import Settings, complete_settings, read_settings


def test_values_are_taken_as_what_they_must_be_or_refused() -> None:
    settings = Settings(steps=3e6, hidden=[8, 8])
    assert (settings.steps, settings.hidden, type(settings.steps)) == (3_000_000, (8, 8), int)
    numbers = Settings(seed=np.int64(3), gamma=np.float32(0.5), hidden=[*np.array([8])])
    assert json.dumps(numbers.as_dict()) == json.dumps(Settings(seed=3, gamma=0.5, hidden=(8,)).as_dict())
    few = Settings(envs=8, n_steps=16, steps=1000)
    assert (few.iteration_steps, few.iterations, Settings(steps=1).iterations) == (128, 8, 1), "the last one is whole"
    for name, value in (("steps", 0), ("gamma", 1.01), ("learning_rate", -1e-4)):
        with pytest.raises(UsageError, match=f"{name} is {value}; it must lie between"):
            replace(Settings(), **{name: value})
    with pytest.raises(UsageError, match="'learning_rate' is nan; it must be a number"):
        Settings(learning_rate=math.nan)
    for wrong in ("settings.json", 3_000_000, SimpleNamespace(steps=3_000_000)):
        with pytest.raises(UsageError, match=f"^the settings are .*{type(wrong).__name__}: .* {{'steps': 300_000}}"):
            complete_settings(wrong, Settings())


def test_the_table() -> None:
    for env, row in TABLE.items():
        assert set(row) <= set(Settings().as_dict())
        for version in ("-v4", "-v5"):
            settings = train_defaults(env + version)
            assert {name: getattr(settings, name) for name in row} == row
    assert train_defaults("Unheard-v0") == train_defaults("my.py:Env") == Settings()
    assert train_defaults("HalfCheetah-v4?reset_noise_scale=0.3") == train_defaults("HalfCheetah-v4")


def policy(hidden: tuple[int, ...], width: int, activation: str = "tanh") -> Policy:
    space = ActionSpace("continuous", (width,), (-1.0,) * width, (1.0,) * width)
    return Policy(PolicySpec(7, space, hidden=hidden, activation=activation))


def test_customizing_goes_by_the_shape_of_the_prior() -> None:
    robot, hopper = customize_defaults(policy((512, 256, 128), 12)), customize_defaults(policy((64, 64), 3))
    assert (robot.minibatch, robot.hidden, robot.iteration_steps) == (2048, (256, 256), 8192)  # found by hand on a Go1
    assert robot.learning_rate == pytest.approx(1e-4, rel=0.1)
    assert (hopper.minibatch, hopper.hidden) == (512, (64, 64))
    assert hopper.learning_rate > robot.learning_rate
    assert robot.gamma == hopper.gamma < train_defaults("Hopper-v4").gamma
    assert customize_defaults(policy((64, 64), 3, "swish")) == replace(hopper, activation="swish")
    assert robot.iteration_steps % robot.minibatch == hopper.iteration_steps % hopper.minibatch == 0


@pytest.mark.parametrize(("hidden", "width"), [((64, 64), 1), ((64, 64), 3), ((512, 256, 128), 12), ((256, 256), 40)])
def test_few_steps_have_enough_updates_and_a_million_is_as_it_was(hidden: tuple[int, ...], width: int) -> None:
    """The fewer steps, the smaller are updates and what they trust; from a million on all is by the shape alone."""
    found = [customize_defaults(policy(hidden, width), steps) for steps in (3_000, 30_000, 100_000, 300_000, 1_000_000)]
    for settings in found:
        assert settings.iterations >= min(60, settings.steps // 256)
        assert settings.iteration_steps % settings.minibatch == 0
        assert settings.iteration_steps >= 4 * settings.minibatch
        assert settings.checkpoint_every * settings.iteration_steps >= 16 * 8192
    for name in ("iteration_steps", "gamma", "desired_kl", "target_kl"):
        values = [getattr(settings, name) for settings in found]
        assert values == sorted(values)
        assert (values[0] < values[-1]) == (width <= 3 or not name.endswith("kl"))
    assert [settings.evaluation_episodes for settings in found] == [0, 0, 0, 8, 8]
    million, more = found[-1], customize_defaults(policy(hidden, width), 5_000_000)
    assert replace(more, steps=1_000_000) == million == customize_defaults(policy(hidden, width))
    few = customize_defaults(policy((64, 64), 2), 200_000)
    assert [std_speed(settings.iteration_steps) for settings in (few, million)] == [1, 4]
    wanted = {"gamma": 0.97, "desired_kl": 0.01, "target_kl": 0.03, "critic_warmup": 0.05, "checkpoint_every": 16}
    assert {name: getattr(million, name) for name in wanted} == wanted


def test_extreme_shapes_have_settings_too() -> None:
    settings = [customize_defaults(policy(*shape)).resolved() for shape in (((), 1), ((8,), 1), ((4096,), 500))]
    assert [each.iteration_steps % each.minibatch for each in settings] == [0, 0, 0]
    assert settings[-1].minibatch == 4096
    assert customize_defaults("hopper") == customize_defaults(policy((64, 64), 3))


# Sharing by ranks -----------------------------------------------------------------------------------------------------
def test_as_many_ranks_as_there_are_cores_for_share_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.runs.settings.physical_cores", lambda: 12)
    assert [Settings(envs=envs).resolved().ranks for envs in (32, 5, 1)] == [8, 5, 1]
    assert Settings(envs=32, ranks=4).resolved().ranks == 4
    with pytest.raises(UsageError, match="envs is 32, which 3 ranks cannot share evenly; choose a multiple of 3"):
        Settings(envs=32, ranks=3).resolved()


# Files ----------------------------------------------------------------------------------------------------------------
def written(path: Path, content: Any) -> Path:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    file = path / "settings.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    named = {"hidden": [32, 32], "target_kl": None, "schedule": "adaptive", "normalize_advantages": False}
    base = Settings(seed=3, target_kl=0.1)
    found = replace(base, **read_settings(written(tmp_path, named | {"steps": 3e6, "gamma": 1}), Settings))
    assert found == replace(base, **named | {"hidden": (32, 32), "steps": 3_000_000, "gamma": 1.0})
    assert isinstance(found.steps, int)
    assert isinstance(found.gamma, float)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"learning_rat": 1e-3}, "unknown field 'learning_rat'; did you mean learning_rate"),
        ({"envs": "32"}, "field 'envs' is '32'; it must be a whole number"),
        ({"envs": True}, "field 'envs' is True; it must be a whole number"),
        ({"gamma": "0.9"}, "field 'gamma' is '0.9'; it must be a number"),
        ({"gamma": None}, "field 'gamma' is None; it must be a number"),
        ({"hidden": 64}, "field 'hidden' is 64; it must be a list of whole numbers"),
        ({"schedule": "cosine"}, "field 'schedule' is 'cosine'; choose from linear, adaptive, constant"),
        ({"gamma": 2.0}, "gamma is 2.0; it must lie between 0 and 1"),
        ('{"envs": Infinity}', "field 'envs' is inf; it must be a whole number"),
        ([1, 2], "must hold an object of fields, not a list"),
        ({"hidden": [100_000_000]}, "layer sizes from 1 to 16,384"),
        ("[" * 100_000, "is nested too deep"),
        ("{steps: 3}", "is not JSON"),
        (b"\xff\xfe\x00\x01", "is not JSON"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**read_settings(written(tmp_path, content), Settings))


@pytest.mark.parametrize(
    ("low", "high", "family"),
    [
        ((-1.0, -2.0), (1.0, 2.0), "gaussian"),
        ((0.0, -1.0), (1.0, 1.0), "squashed"),  # a throttle
        ((-1.0, 10.0), (1.0, 30.0), "squashed"),
        ((-200.0, -1.0), (200.0, 1.0), "squashed"),
        ((-math.inf, -1.0), (math.inf, 1.0), "gaussian"),
        ((-3.4e38, -3.4e38), (3.4e38, 3.4e38), "gaussian"),  # written for none
        ((0.0, 0.0), (math.inf, 1.0), "gaussian"),  # which tanh cannot reach
    ],
)
def test_a_new_policy_begins_within_the_bounds(low: Any, high: Any, family: str) -> None:
    spaces: Any = SimpleNamespace(actions=ActionSpace("continuous", (2,), low, high), observation_size=3)
    spec = spec_for(spaces, Settings())
    assert spec.family == family
    assert spec_for(spaces, Settings(family="state_gaussian")).family == "state_gaussian"
    if family == "squashed":
        begins = Policy(spec).predict(np.zeros((1, 3), np.float32))[0]
        np.testing.assert_allclose(begins[0], np.add(low, high) / 2, atol=0.05 * np.subtract(high, low).max())


@pytest.mark.parametrize(
    ("bound", "family"), [(0.01, "squashed"), (0.1, "gaussian"), (10.0, "gaussian"), (11.0, "squashed")]
)
def test_a_gaussian_is_for_bounds_of_the_size_of_its_std(bound: float, family: str) -> None:
    assert choose_family(ActionSpace("continuous", (1,), (-bound,), (bound,)), 1.0) == family
    assert choose_family(ActionSpace("continuous", (1,)), 1.0) == "gaussian"
