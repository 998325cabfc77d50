"""A policy from recorded actions, the std of a mean from them, and data that is refused in one sentence."""

import io
import math
import pickle
import sys
import warnings
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from known_optimum import EXACT, GAIN, STD, as_policy, steer
from quick_graphs import quick_graph
from tiny_envs import ACTIONS, tiny
from typed_commands import SMALL, answered, refused

from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import MeanActionModule
from repolicy.policies.file import save_policy
from repolicy.prepare import imitation
from repolicy.prepare.imitation import Imitation, imitate
from repolicy.priors.fitting import fit
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import load_policy, open_policy, read_policy
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.readers.reading import Options

pytestmark = [
    pytest.mark.usefixtures("_elsewhere"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of what a file does not tell
]

ROWS = 3_000


@pytest.fixture
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to learn, or only a sign; and it is tried by few episodes."""
    monkeypatch.setattr(imitation, "fit", partial(fit, max_epochs=8))
    monkeypatch.setattr(imitation, "TRIAL_EPISODES", 2)


def imitated(observations: Any, actions: Any, **how: Any) -> Imitation:
    """What is made of recorded actions."""
    np.savez("d.npz", observations=observations, actions=actions)
    return imitate("d.npz", "p.safetensors", **{"hidden": (8,)} | how)


def recorded(path: Path, count: int = ROWS, **other: Any) -> Path:
    """A thousand actions of the first task's optimum in random states, as `np.savez` writes them."""
    generator = np.random.default_rng(0)
    states = generator.uniform(-2.0, 2.0, (count, 1)).astype(np.float32)
    actions = -GAIN * states + STD * generator.normal(size=(count, 1))
    np.savez(path, **{"observations": states, "actions": actions} | other)
    return path


def test_the_likeliest_policy_is_the_one_that_was_recorded(tmp_path: Path) -> None:
    found = imitate(recorded(tmp_path / "d.npz"), tmp_path / "p.safetensors", hidden=(16,))
    entropy = 0.5 + math.log(STD * math.sqrt(2.0 * math.pi))
    assert found.fit_result.held_out == pytest.approx(-entropy, abs=0.1)
    policy = load_policy(found.file)
    assert float(policy.std) == pytest.approx(STD, rel=0.05)
    states = torch.linspace(-1.5, 1.5, 31)[:, None]
    with torch.no_grad():
        assert float((policy(states).mode() + GAIN * states).abs().max()) < 0.1 * STD + 0.1


def test_a_std_may_depend_on_the_state() -> None:
    generator = np.random.default_rng(1)
    states = generator.uniform(-1.0, 1.0, (ROWS, 1))
    widths = 0.3 * np.exp(1.2 * states)
    actions = widths * generator.normal(size=(ROWS, 1))
    both = [imitated(states, actions, state_std=wanted) for wanted in (False, True)]
    # log √E[σ²] − E[log σ], which is what one std for all costs
    gain = 0.5 * math.log(math.sinh(2.4) / 2.4)
    assert both[1].fit_result.held_out - both[0].fit_result.held_out == pytest.approx(gain, abs=0.1)


@pytest.mark.parametrize(("state_std", "unit"), [(False, 1.0), (True, 1.0), (False, 1e-3), (True, 1e-3)])
def test_the_std_is_that_of_the_noise_however_far_the_actions_are_from_0(state_std: bool, unit: float) -> None:
    generator = np.random.default_rng(4)
    actions = unit * (3.0 + 0.05 * generator.normal(size=(1_000, 2)))
    seen = generator.normal(size=(1_000, 4))
    policy = imitated(seen, actions, hidden=(64, 64), state_std=state_std).policy
    std = policy(torch.zeros(1, 4)).log_std.exp().flatten()
    assert std.tolist() == pytest.approx([0.05 * unit, 0.05 * unit], rel=0.15)


@pytest.mark.parametrize("state_std", [False, True])
def test_an_action_in_hundreds_is_learned_beside_one_within_1(state_std: bool) -> None:
    generator = np.random.default_rng(0)
    states, units = generator.normal(size=(ROWS, 1)), torch.tensor([0.2, 200.0])
    actions = units.numpy() * (states + 0.3 * generator.normal(size=(ROWS, 2)))
    policy = imitated(states, actions, hidden=(16,), state_std=state_std).policy
    likeliest = policy(torch.tensor([[-1.0], [1.0]]))
    np.testing.assert_allclose(likeliest.mean / units, [[-1.0, -1.0], [1.0, 1.0]], atol=0.1)
    np.testing.assert_allclose(likeliest.log_std.exp().expand(2, 2) / units, 0.3, rtol=0.1)


def test_actions_that_tell_no_width_are_noticed() -> None:
    said = list[str]()
    imitated(np.random.default_rng(5).normal(size=(120, 2)), np.full((120, 1), 0.3), say=said.append)
    assert "the std is at its lower bound" in said[-1]


def test_choices_are_imitated_with_their_frequencies() -> None:
    generator = np.random.default_rng(2)
    states = generator.integers(0, 2, (ROWS, 1))
    actions = np.where(generator.random((ROWS, 1)) < 0.8, states, 2)
    policy = imitated(states.astype(float), actions).policy
    chances = policy.log_prob(torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([[0], [1], [2]])).exp()
    assert chances.tolist() == pytest.approx([0.8, 0.8, 0.2], abs=0.05)


@pytest.mark.usefixtures("_briefly")
def test_customizing_goes_on_from_an_imitation(capsys: pytest.CaptureFixture[str]) -> None:
    recorded(Path("d.npz"), 500)
    env = tiny("LinearQuadratic")
    made = answered(capsys, "imitate", "d.npz", "--env", env, "--hidden", "8", "--out", "prior.safetensors")
    assert made["summary"]["basic_reward"]["mean"] < 0.0
    assert read_policy(Path(made["file"])).card["request"] == {"env": env}
    wanted = ["--addon", tiny("stay_near"), "--omega", "0.3", "--alpha", "0.1", "--trust", "--no-report", *SMALL]
    assert answered(capsys, "customize", made["file"], *wanted, "--out", "run")["finished"]
    assert "has observations of 1 numbers" in refused(capsys, 2, "imitate", "d.npz", "--env", tiny("Counter"))


@pytest.mark.usefixtures("_briefly")
def test_two_recordings_have_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(Path("one.npz"), 100)
    recorded(tmp_path / "two.npz", 100)
    made = [answered(capsys, "imitate", str(data), "--hidden", "8") for data in ("one.npz", tmp_path / "two.npz")]
    assert [each["file"] for each in made] == ["runs/one-imitated.safetensors", "runs/two-imitated.safetensors"]


@pytest.mark.usefixtures("_briefly")
def test_the_part_of_a_dict_that_was_recorded_is_found() -> None:
    generator = np.random.default_rng(6)
    found = imitated(generator.normal(size=(120, 2)), generator.normal(size=(120, 1)), env=tiny("Groups"))
    assert found.env == f"{tiny('Groups')}?observe=state"
    assert read_policy(found.file).card["request"] == {"env": found.env}


@pytest.mark.usefixtures("_briefly")
@pytest.mark.parametrize("actions", ["choice", "choices", "table"])
def test_choices_are_the_environments_own_wherever_it_begins_to_count(actions: str) -> None:
    states = np.linspace(-1.0, 1.0, 200, dtype=np.float32)[:, None]
    space = ACTIONS[actions]
    least, steps = np.ravel(space.start), {"choice": [1], "choices": [1, 2], "table": [0, 0, 0, 0]}[actions]
    taken = least + (states > 0) * np.array(steps)
    found = imitated(states, taken, env=f"{tiny('Told')}?actions={actions}")
    assert np.array_equal(found.policy.predict(states)[0].reshape(taken.shape)[[0, -1]], taken[[0, -1]])


@pytest.mark.usefixtures("_briefly")
def test_a_minari_dataset_tells_what_its_choices_count_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = SimpleNamespace(observations=np.zeros((121, 1)), actions=np.full(120, 2))
    data = SimpleNamespace(iterate_episodes=lambda: [episode], action_space=spaces.Discrete(4, start=1), env_spec=None)
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda _: data))
    found = imitate("some/data-v0", tmp_path / "p.safetensors", hidden=(8,))
    assert found.policy.predict([0.0])[0] == 2
    assert found.policy.actions == ActionSpace("discrete", (2,), (1.0,))
    data.action_space = spaces.Discrete(4, start=0)
    assert imitate("some/data-v0", tmp_path / "p.safetensors", hidden=(8,)).policy.actions.low == ()


# The std of a mean ----------------------------------------------------------------------------------------------------
def test_the_std_of_a_mean_is_fitted_to_its_recorded_actions(tmp_path: Path) -> None:
    path = recorded(tmp_path / "d.npz")
    data = read_demonstrations(path)
    prior = open_policy(steer, Options(std="fit", demonstrations=str(path))).agent
    assert isinstance(prior, MeanPrior)
    assert float(prior.std) == pytest.approx(STD, rel=0.05)
    [note] = prior.notes
    assert "costs 0.5 nats a step, and ω′ times that in reward" in note
    best = prior.log_prob(data.observations, data.actions).mean()
    assert float(-best) == pytest.approx(0.5 + float(prior.std.log()) + 0.5 * math.log(2.0 * math.pi), abs=1e-4)
    for factor in (0.95, 1.05):  # no other std makes them likelier
        assert MeanPrior(steer, prior.std * factor).log_prob(data.observations, data.actions).mean() < best


def test_the_std_of_a_file_without_one_is_fitted_too(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    policy = as_policy(EXACT)
    (tmp_path / "mean.onnx").write_bytes(quick_graph(MeanActionModule(policy).eval(), (torch.zeros(2, 1),)))
    path = recorded(tmp_path / "d.npz")
    copied = load_policy(tmp_path / "mean.onnx", std="fit", demonstrations=str(path))
    assert float(copied.std) == pytest.approx(STD, rel=0.05)
    with pytest.raises(UsageError, match="std=.fit. needs recorded actions of this policy: demonstrations=.FILE"):
        load_policy(tmp_path / "mean.onnx", std="fit")
    with pytest.raises(UsageError, match="demonstrations goes with std=.fit."):
        load_policy(tmp_path / "mean.onnx", std=0.1, demonstrations=str(path))
    np.savez(tmp_path / "means.npz", observations=np.ones((200, 1)), actions=policy(torch.ones(200, 1)).mode().detach())
    with pytest.raises(UsageError, match="has the policy's own means, which tell no std"):
        load_policy(tmp_path / "mean.onnx", std="fit", demonstrations=str(tmp_path / "means.npz"))
    np.savez(tmp_path / "wide.npz", observations=np.ones((200, 2)), actions=np.ones((200, 1)))
    with pytest.raises(UsageError, match="observations of 2 numbers and actions of 1, and the policy obs"):
        load_policy(tmp_path / "mean.onnx", std="fit", demonstrations=str(tmp_path / "wide.npz"))
    own = tmp_path / "own.safetensors"
    save_policy(own, policy, {})
    with pytest.raises(UsageError, match="is Repolicy's own file: leave out"):
        load_policy(own, std="fit", demonstrations=str(path))


def scripted(module: torch.nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), str(path))


def test_a_std_before_tanh_is_fitted_before_tanh(tmp_path: Path) -> None:
    """A TorchScript perceptron that ends in tanh and a scale: recorded actions are taken back through both."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
    states = torch.randn(3_000, 3)
    with torch.no_grad():
        before = module[0](states) + torch.tensor([0.1, 0.4]) * torch.randn(3_000, 2)
    scripted(module, tmp_path / "policy.pt")
    np.savez(tmp_path / "d.npz", observations=states, actions=torch.tanh(before))
    policy = load_policy(tmp_path / "policy.pt", std="fit", demonstrations=str(tmp_path / "d.npz"))
    assert policy.spec.family == "squashed"
    assert policy.std.tolist() == pytest.approx([0.1, 0.4], rel=0.06)
    np.savez(tmp_path / "d.npz", observations=states, actions=2.0 * torch.tanh(before))
    with pytest.raises(UsageError, match="d.npz has actions beyond the policy's bounds"):
        load_policy(tmp_path / "policy.pt", std="fit", demonstrations=str(tmp_path / "d.npz"))


def test_a_std_before_tanh_is_fitted_where_tanh_is_not_flat(tmp_path: Path) -> None:
    """A mean of 12 or of 50 is the same action: how far it is from where atanh is cut must not count as noise."""
    module, states = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Tanh()), 20.0 * torch.randn(3_000, 1)
    with torch.no_grad():
        module[0].weight.fill_(1.0), module[0].bias.zero_()
        before = module[0](states) + 0.3 * torch.randn(3_000, 1)
    scripted(module, tmp_path / "policy.pt")
    np.savez(tmp_path / "d.npz", observations=states, actions=torch.tanh(before))
    policy = load_policy(tmp_path / "policy.pt", std="fit", demonstrations=str(tmp_path / "d.npz"))
    assert policy.std.tolist() == pytest.approx([0.3], rel=0.1)
    np.savez(tmp_path / "d.npz", observations=states[:200] + 200.0, actions=torch.ones(200, 1))
    with pytest.raises(UsageError, match="means or its recorded actions are at the bounds, where they tell no std"):
        load_policy(tmp_path / "policy.pt", std="fit", demonstrations=str(tmp_path / "d.npz"))


class Adds:
    """A mean with a memory: the sum of an episode's observations."""

    def begin(self, count: int) -> dict[str, torch.Tensor]:
        return {"sum": torch.zeros(count, 1)}

    def step(self, observations: np.ndarray, state: dict[str, torch.Tensor]) -> Any:
        after = state["sum"] + torch.from_numpy(observations)
        return after, {"sum": after}


def test_the_std_of_a_mean_with_a_memory_needs_to_know_where_episodes_ended(tmp_path: Path) -> None:
    states, noise = np.random.default_rng(3).normal(size=(2, 100, 30, 1))
    actions = states.cumsum(1) + STD * noise
    data = {"observations": states.reshape(-1, 1), "actions": actions.reshape(-1, 1)}
    np.savez(tmp_path / "d.npz", **data, ended=np.arange(3_000) % 30 == 29)
    prior = open_policy(Adds(), Options(std="fit", demonstrations=str(tmp_path / "d.npz"))).agent
    assert isinstance(prior, MeanPrior)
    assert float(prior.std) == pytest.approx(STD, rel=0.05)
    np.savez(tmp_path / "d.npz", **data)
    with pytest.raises(UsageError, match="does not say where an episode ended, and Adds has a memory.*array 'ended'"):
        open_policy(Adds(), Options(std="fit", demonstrations=str(tmp_path / "d.npz")))


# Bad data -------------------------------------------------------------------------------------------------------------
class Runs:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return (Path("ran").touch, ())


SEEN, DONE = np.zeros((200, 3)), np.zeros((200, 2))


def spoilt(values: np.ndarray, number: float) -> np.ndarray:
    values = values.copy()
    values[7, 1] = number
    return values


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"observations": SEEN}, "has no array 'actions' (it has observations)"),
        ({"obs": SEEN, "acts": DONE}, "has no array 'observations' (it has obs, acts)"),
        ({"observations": SEEN[:-1], "actions": DONE}, "it has 199 observations and 200 actions"),
        ({"observations": np.zeros((201, 3)), "actions": DONE}, "leave out the last observation of each episode"),
        ({"observations": SEEN[:5], "actions": DONE[:5]}, "5 steps are too few to learn from"),
        ({"observations": spoilt(SEEN, np.nan), "actions": DONE}, "observations have 1 numbers that are not finite"),
        ({"observations": SEEN, "actions": spoilt(DONE, np.inf)}, "1 numbers that are not finite, first in row 7"),
        ({"observations": SEEN.astype(str), "actions": DONE}, "observations are no rows of numbers, but <U"),
        ({"observations": SEEN, "actions": np.zeros((200, 0))}, "of shape [200, 0]"),
        ({"observations": SEEN, "actions": DONE, "ended": np.zeros(3)}, "ended are no 200 numbers"),
        ({"observations": SEEN, "actions": DONE, "ended": np.full(200, "False")}, "ended are no 200 numbers"),
        ({"observations": np.array([Runs()] * 200, object), "actions": DONE}, "pickled objects, which are not run"),
    ],
)
def test_bad_data_is_one_sentence(arrays: dict[str, Any], sentence: str) -> None:
    np.savez("d.npz", **arrays)
    with pytest.raises(FileError) as found:
        read_demonstrations("d.npz")
    assert sentence in str(found.value)
    assert not Path("ran").exists()


def test_files_that_are_no_npz_are_one_sentence() -> None:
    np.save("one.npy", SEEN)
    Path("one.npy").rename("one.npz")
    Path("pickle.npz").write_bytes(pickle.dumps(Runs()))
    Path("text.npz").write_text("observations\n")
    whole = io.BytesIO()
    np.savez(whole, observations=SEEN, actions=DONE)
    Path("cut.npz").write_bytes(whole.getvalue()[:900])
    packed = io.BytesIO()
    np.savez_compressed(packed, observations=np.random.default_rng(0).normal(size=(200, 3)), actions=DONE)
    content = packed.getvalue()
    start = 30 + len("observations.npy") + content[28]  # of what is packed, behind the entry's header
    Path("packed.npz").write_bytes(content[:start] + b"\xff" + content[start + 1 :])
    with zipfile.ZipFile("odd.npz", "w") as file:
        file.writestr("observations.npy", b"no array")
        file.writestr("actions.npy", b"")
    for name in ("one", "pickle", "text", "cut", "packed", "odd", "missing"):
        with pytest.raises(FileError) as found:
            read_demonstrations(f"{name}.npz")
        assert f"{name}.npz" in str(found.value)
        assert "\n" not in str(found.value)
    assert not Path("ran").exists()
    with pytest.raises(FileError, match="text.npz is no whole .npz file; save observations, actions with np.savez"):
        read_demonstrations("text.npz")


def test_a_minari_dataset_needs_minari(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(UsageError, match=r"pip install 'minari\[hdf5\]'"):
        read_demonstrations("mujoco/hopper/expert-v0")


def test_a_minari_dataset_is_read_episode_by_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    import gymnasium

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, last = gymnasium.make("Pendulum-v1"), np.arange(60) == 59
    episodes = [
        minari.data_collector.EpisodeBuffer(
            id=k, observations=np.full((61, 3), k, np.float32), actions=np.full((60, 1), 0.1 * k, np.float32),
            rewards=np.zeros(60), terminations=np.zeros(60, bool), truncations=last,
        )
        for k in range(3)
    ]  # fmt: skip
    warnings.simplefilter("ignore")  # Minari's, about authors and links
    minari.create_dataset_from_buffers("pendulum/random-v0", buffer=episodes, env=env)
    found = read_demonstrations("pendulum/random-v0")
    assert found.observations.shape == (180, 3)
    assert found.actions.shape == (180, 1)
    assert found.ended is not None
    assert torch.nonzero(found.ended)[:, 0].tolist() == [59, 119, 179]
    assert found.env == "Pendulum-v1"
    with pytest.raises(RepolicyError, match="the Minari dataset 'no/such-v0' cannot be read"):
        read_demonstrations("no/such-v0")


def test_a_name_that_no_policy_has_is_refused_before_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "fit", lambda *_: pytest.fail("the fit is lost"))
    with pytest.raises(UsageError, match=r"p\.onnx: a policy's file is called NAME\.safetensors"):
        imitate(recorded(tmp_path / "d.npz", 200), tmp_path / "p.onnx")


def test_data_that_does_not_fit_the_environment_is_refused(tmp_path: Path) -> None:
    data = Demonstrations("d", torch.zeros(200, 1), torch.full((200, 1), 5), torch.zeros(200, dtype=torch.bool))
    env = tiny("Told") + "?actions=choice"
    with pytest.raises(UsageError, match=r"choices from \[5\] to \[5\], and .*choice' takes \[7\] to \[9\]: record"):
        imitate(data, tmp_path / "p.safetensors", env=env)
    with pytest.raises(UsageError, match=r"has choices from \[-5\] to \[-5\], and without --env they count from 0"):
        imitate(replace(data, actions=-data.actions), tmp_path / "p.safetensors")
    with pytest.raises(UsageError, match="d has choices, which have no std: leave --state-std out"):
        imitate(data, tmp_path / "p.safetensors", state_std=True)
    with pytest.raises(UsageError, match="has actions of 1 choices, but .* takes 1 number"):
        imitate(data, tmp_path / "p.safetensors", env=tiny("LinearQuadratic"))
    assert not (tmp_path / "p.safetensors").exists()


def test_an_archive_that_unpacks_out_of_all_proportion_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", observations=np.zeros((100_000, 30)), actions=np.zeros((100_000, 2)))
    with pytest.raises(FileError, match=r"bytes would unpack to 25,6\d\d,\d\d\d"):
        imitate(tmp_path / "d.npz", tmp_path / "p.safetensors")
