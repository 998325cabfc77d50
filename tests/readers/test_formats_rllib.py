"""RLlib's modules, as its new API stack saves them: a state, and beside it what the module was made with."""

import base64
import io
import pickle
import tracemalloc
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import COUNT, assert_equal, assert_scored, describe, log_prob, mean, observations, recognized, stirred
from gymnasium.spaces import Box, Discrete, Space
from made_checkpoints import class_named, mlp, named
from torch import nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.priors.finding import RLLIB
from repolicy.priors.opening import load_policy
from repolicy.readers.description import CannotCopyError
from repolicy.readers.rllib import (
    ACTIONS_PIPELINE,
    ACTIONS_SCALER,
    ARGUMENTS,
    FILTER,
    GREEDY_NOTE,
    PIPELINE,
    SCALED_NOTE,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what a file does not tell
ACTIONS = Box(-1.0, 1.0, (2,))
TAUGHT = "ray.rllib.algorithms.{0}.torch.default_{0}_torch_rl_module.Default{1}TorchRLModule"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module as RLlib does, and return its state's file."""

    def written(
        state: dict[str, torch.Tensor], actions: Space[Any] = ACTIONS, module: str = TAUGHT.format("ppo", "PPO"),
        **config: Any,
    ) -> Path:  # fmt: skip
        arrays = OrderedDict((name, each.detach().numpy()) for name, each in state.items())
        arguments = {"observation_space": Box(-np.inf, np.inf, (5,)), "action_space": actions, "model_config": config}
        kind = class_named(monkeypatch, module)
        beside = tmp_path / ARGUMENTS
        beside.write_bytes(pickle.dumps({"class": kind, "ctor_args_and_kwargs": ((), arguments)}))
        path = tmp_path / RLLIB.name
        path.write_bytes(pickle.dumps(arrays))
        return path

    return written


def made(width: int, body: str = "encoder.actor_encoder", bound: float = 20.0) -> tuple[nn.Module, dict[str, Any]]:
    """A network, and the state of a module with it; the head is a Sequential of its own."""
    encoder, head = stirred(mlp((5, 8, 7), nn.Tanh)), stirred(mlp((7, width), nn.Tanh))
    state = named(f"{body}.net.mlp", encoder) | named("pi.net.mlp", head)
    state |= {"pi.log_std_clip_param_const": torch.tensor([bound])}
    return nn.Sequential(encoder, nn.Tanh(), head), state


def into_folder(tmp_path: Path) -> Path:
    """Put what `write` wrote where it lies in a checkpoint's folder."""
    folder = tmp_path / "checkpoint"
    module = folder / RLLIB.parent
    module.mkdir(parents=True, exist_ok=True)
    for name in (RLLIB.name, ARGUMENTS):
        (tmp_path / name).rename(module / name)
    return folder


def compressed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def packed(numbers: np.ndarray) -> str:
    stream = io.BytesIO()
    np.save(stream, numbers)
    return compressed(stream.getvalue())


@pytest.fixture
def checkpoint(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a checkpoint whose observations pass these connectors; RLlib's filter has this state."""
    state = made(4)[1]

    def written(*connectors: str, **running: Any) -> Path:
        write(state)
        folder = into_folder(tmp_path)
        pipeline = folder / PIPELINE
        (pipeline / FILTER).mkdir(parents=True, exist_ok=True)
        kinds = [(class_named(monkeypatch, f"ray.{name.lower()}.{name}"), (), {}) for name in connectors]
        (pipeline / ARGUMENTS).write_bytes(pickle.dumps({"ctor_args_and_kwargs": ((), {"connectors": kinds})}))
        settings = {"de_mean_to_zero": True, "de_std_to_one": True, "clip_by_value": 1.5, "running_stats": [running]}
        (pipeline / FILTER / "state.pkl").write_bytes(pickle.dumps({None: settings}))
        return folder

    return written


@pytest.mark.parametrize("squares", ["sum_sq_diff_array", "std_array"])  # by RLlib's version
def test_observations_are_normalized_as_the_connectors_do(checkpoint: Any, squares: str) -> None:
    seen = 3.0 * np.random.default_rng(0).standard_normal((COUNT, 5)) + 1.0
    seen[:, 4] *= 1e-4  # so that it matters what RLlib adds to a std
    sums = {"mean_array": packed(seen.mean(0)), squares: packed(COUNT * seen.var(0))}
    policy = load_policy(checkpoint(FILTER, "NumpyToTensor", num_pushes=COUNT, **sums))
    obs, plain = torch.from_numpy(seen).float(), load_policy(checkpoint("NumpyToTensor"))
    normalized = ((obs - obs.mean(0)) / (obs.std(0) + 1e-6)).clamp(-1.5, 1.5)
    assert (normalized.abs() == 1.5).any()
    assert_equal(policy(obs).mode(), plain(normalized).mode())
    assert float(policy.normalizer.count) == COUNT


def test_the_checkpoint_is_found_from_the_folder_of_the_module(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(FILTER, num_pushes=10, mean_array=packed(np.ones(5)), std_array=packed(np.full(5, 9.0)))
    monkeypatch.chdir((folder / RLLIB).parent)
    assert float(load_policy(RLLIB.name).normalizer.count) == 10.0


def test_what_changes_observations_and_is_not_known_is_refused(checkpoint: Any) -> None:
    with pytest.raises(FileError, match="observations pass FrameStackingEnvToModule"):
        load_policy(checkpoint(FILTER, "FrameStackingEnvToModule"))


def headed(header: bytes, numbers: bytes = b"") -> str:
    """An .npy of version 1 with this header."""
    return compressed(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + numbers)


HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,)}"


@pytest.mark.parametrize(
    "mean",
    [
        *("!", base64.b64encode(b"no zlib").decode(), packed(np.zeros(4)), None),
        headed(HEADER % 5, bytes(2**26)),
        *(headed(HEADER % 10**12), headed(b"{("), compressed(b"PK\x03\x04 no zip"), packed(np.array(["a"] * 5))),
    ],
    ids=range(9),
)
def test_damaged_statistics_are_one_sentence(checkpoint: Any, mean: Any) -> None:
    sums = {"mean_array": mean, "std_array": packed(np.ones(5))}
    folder = checkpoint(FILTER, num_pushes=2, **sums)
    tracemalloc.start()
    with pytest.raises(FileError, match="damaged|cannot be read"):
        load_policy(folder)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24


@pytest.mark.parametrize("body", ["encoder.actor_encoder", "encoder.encoder"])
@pytest.mark.parametrize("bound", [20.0, 0.2])
def test_a_gaussian_of_which_both_halves_depend_on_the_state(write: Any, body: str, bound: float) -> None:
    net, state = made(4, body, bound)
    path, obs = write(state | named("vf.net.mlp", nn.Sequential(nn.Linear(7, 1)))), observations(5)
    assert recognized(path) == "rllib"
    loc, log_std = net(obs).chunk(2, -1)
    assert bool((log_std.abs() > bound).any()) is (bound < 1.0)
    dist = torch.distributions.Normal(loc, log_std.clamp(-bound, bound).exp())
    described = describe(path)
    assert_scored(described, obs, dist)
    assert (described.library, described.kind, described.clips) == ("RLlib", "PPO", True)
    assert "where observations are at their mean" in inspect(path)["std"]


def test_layer_norms_have_rllibs_epsilon_and_one_std_is_for_all_states(write: Any) -> None:
    net, _ = made(2)
    encoder = nn.Sequential(net[0][0], nn.LayerNorm(8, eps=1e-3), nn.Tanh(), net[0][2], nn.LayerNorm(7, eps=1e-3))
    log_std, obs = torch.tensor([-0.5, 0.3]), observations(5)
    dist = torch.distributions.Normal(net[2](torch.tanh(encoder(obs))), log_std.exp())
    state = named("encoder.actor_encoder.net.mlp", encoder) | named("pi.net.mlp", net[2]) | {"pi.log_std": log_std}
    assert_scored(describe(write(state, free_log_std=True, fcnet_use_layernorm=True)), obs, dist)


def test_actions_are_taken_to_the_bounds_of_the_environment(write: Any) -> None:
    net, state = made(4)
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 3.0])
    path, obs = write(state, Box(low.numpy(), high.numpy())), observations(5)
    loc, log_std = net(obs).chunk(2, -1)
    half = (high - low) / 2.0
    dist = torch.distributions.Normal(low + (loc + 1.0) * half, log_std.exp() * half)
    described = describe(path)
    assert_scored(described, obs, dist)
    assert_equal(mean(described, obs), dist.mean.clamp(low, high))
    assert any("scaled from [-1, 1] to the environment's bounds" in note for note in described.notes)
    bounded = write(made(4, bound=0.2)[1], Box(low.numpy(), high.numpy()))
    with pytest.raises(CannotCopyError, match="log-stds are cut at 0.2"):
        describe(bounded)


def test_one_std_is_cut_before_it_is_taken_to_the_bounds(write: Any) -> None:
    net, state = made(2, bound=0.2)
    state |= {"pi.log_std": torch.tensor([0.1, -0.5])}
    path, obs = write(state, Box(-3.0, 3.0, (2,)), free_log_std=True), observations(5)
    dist = torch.distributions.Normal(3.0 * net(obs), 3.0 * torch.tensor([0.1, -0.2]).exp())
    assert_scored(describe(path), obs, dist)


def record_scaling(folder: Path, scales: bool, monkeypatch: pytest.MonkeyPatch, clips: bool = False) -> None:
    """Write into a checkpoint's folder whether its actions are scaled, or only clipped."""
    pipeline = folder / ACTIONS_PIPELINE
    pipeline.mkdir(parents=True)
    kind = class_named(monkeypatch, f"ray.actions.{ACTIONS_SCALER}")
    connectors = [(kind, (), {"normalize_actions": scales, "clip_actions": clips})]
    (pipeline / ARGUMENTS).write_bytes(pickle.dumps({"ctor_args_and_kwargs": ((), {"connectors": connectors})}))


@pytest.mark.parametrize("bound", [1.0, 0.8])
@pytest.mark.parametrize(("scales", "clips"), [(False, False), (False, True), (True, False)])
def test_whether_actions_are_scaled_or_clipped_stands_in_the_checkpoint(
    write: Any, scales: bool, clips: bool, bound: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, state = made(4)
    state["pi.net.mlp.0.bias"][:2] += 0.9  # means beyond the bounds
    write(state, Box(-bound, bound, (2,)))
    folder, obs = into_folder(tmp_path), observations(5)
    record_scaling(folder, scales, monkeypatch, clips)
    described = describe(folder / RLLIB)
    loc, log_std = net(obs).chunk(2, -1)
    assert (loc > 1.0).any()
    factor = bound if scales else 1.0
    assert_scored(described, obs, torch.distributions.Normal(factor * loc, factor * log_std.exp()))
    assert_equal(mean(described, obs), (factor * loc).clamp(-bound, bound) if scales or clips else loc)
    assert not any("scaled" in note for note in described.notes)


@pytest.mark.parametrize("scales", [False, True])
def test_what_sac_sends_is_scaled_only_where_the_checkpoint_says_so(
    write: Any, scales: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, state = made(4, "pi_encoder")
    write(state, Box(-2.0, 2.0, (2,)), TAUGHT.format("sac", "SAC"))
    folder, obs = into_folder(tmp_path), observations(5)
    record_scaling(folder, scales, monkeypatch)
    loc = net.double()(obs.double()).chunk(2, -1)[0]
    described = describe(folder / RLLIB)
    assert_equal(mean(described, obs), (2.0 if scales else 1.0) * torch.tanh(loc).numpy())
    assert SCALED_NOTE not in described.notes


def test_sac(write: Any) -> None:
    net, state = made(4, "pi_encoder")
    state["pi.net.mlp.0.weight"] *= 40.0  # stds beyond both of their bounds
    low, high = np.float32([-2.0, -1.0]), np.float32([2.0, 3.0])
    path, obs = write(state, Box(low, high), TAUGHT.format("sac", "SAC"), twin_q=True), observations(5)
    loc, log_std = net.double()(obs.double()).chunk(2, -1)
    assert (log_std > 2.0).any()
    assert (log_std < -5.0).any()
    dist = torch.distributions.Normal(loc, log_std.clamp(-5.0, 2.0).exp())
    before = dist.sample().clamp(-3.0, 3.0)
    slope = torch.log(1.0 - torch.tanh(before) ** 2).sum(-1)
    described = describe(path)
    assert described.kind == "SAC"
    assert {GREEDY_NOTE, SCALED_NOTE} <= {*described.notes}
    assert_equal(log_prob(described, obs, before), dist.log_prob(before).sum(-1) - slope)
    assert_equal(mean(described, obs), low + (torch.tanh(loc).numpy() + 1.0) / 2.0 * (high - low))


def test_choices(write: Any) -> None:
    net, state = made(3)
    obs = observations(5)
    dist = torch.distributions.Categorical(logits=net(obs))
    assert_scored(describe(write(state, Discrete(3))), obs, dist)


def test_the_activation_is_that_of_the_settings(write: Any) -> None:
    relu = describe(write(made(4)[1], fcnet_activation="relu"))
    assert relu.actor.activation == "relu"
    with pytest.raises(CannotCopyError, match="its activation is linear"):
        describe(write(made(4)[1], fcnet_activation=None))
    state = made(4)[1]
    state |= named("pi.net.mlp", mlp((7, 6, 4), nn.ReLU))
    with pytest.raises(CannotCopyError, match="its head has another activation .*, file.py:act$"):
        describe(write(state))
    assert len(describe(write(state, fcnet_activation="relu")).actor.hidden) == 3


def test_what_cannot_be_copied_is_one_sentence(write: Any) -> None:
    _, state = made(4)
    with pytest.raises(CannotCopyError, match="MyModule, a class whose code is not in it"):
        describe(write(state, module="mine.MyModule"))
    memory = named("encoder.encoder.lstm", nn.LSTM(5, 7)) | named("pi.net.mlp.0", nn.Linear(7, 4))
    with pytest.raises(CannotCopyError, match=r"the policy has a memory \(encoder.encoder.lstm.weight_ih_l0\)"):
        describe(write(memory))
    with pytest.raises(FileError, match="its last layer has 4 outputs, and its actions need 6"):
        describe(write(state, Box(-1.0, 1.0, (3,))))
    with pytest.raises(FileError, match="4 outputs, and its actions need 3"):
        describe(write(state, Discrete(3)))
    path = write(state)
    path.with_name(ARGUMENTS).unlink()
    with pytest.raises(UsageError, match=r"needs class_and_ctor_args.pkl beside it"):
        describe(path)
