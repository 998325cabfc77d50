"""Checkpoints of rsl_rl, skrl, CleanRL and Brax, against the libraries or their published formulas in PyTorch."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import COUNT, assert_equal, assert_scored, describe, log_prob, mean, observations, random, recognized
from made_checkpoints import Agent, brax_body, class_named, dense, mlp, named, saved, seen_by_rsl_rl, settings
from torch import nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.readers.brax import MEAN_SCALE_NOTE
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import Options


# rsl_rl ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("kind", ["GaussianDistribution", "HeteroscedasticGaussianDistribution"])
def test_rsl_rl_5(std_type: str, kind: str, tmp_path: Path) -> None:
    obs = observations(5, 3.0)
    actor, groups = seen_by_rsl_rl(obs, kind, std_type=std_type, init_std=0.7)
    kept = {"actor_state_dict": actor.state_dict(), "critic_state_dict": {}, "iter": 3}
    path = saved(tmp_path / "model_3.pt", kept)
    settings(tmp_path, f"  activation: elu\n  std_type: {std_type}\n")
    assert recognized(path) == "rsl_rl"
    described = describe(path)
    assert described.family == ("gaussian" if kind == "GaussianDistribution" else "state_gaussian")
    assert described.normalizer.count == COUNT
    actions = actor(groups, stochastic_output=True)
    assert_equal(log_prob(described, obs, actions), actor.get_output_log_prob(actions))
    assert_equal(mean(described, obs), actor(groups))


@pytest.mark.parametrize(
    ("std_type", "biases"), [("scalar", [0.5, 0.4]), ("log", [0.5, 0.6]), ("log", [0.5, -0.6]), ("log", [])]
)
def test_the_biases_tell_a_log_std_that_no_settings_tell(std_type: str, biases: list[float], tmp_path: Path) -> None:
    """Where every std was taken as it is, the log-probabilities of one in logarithms were off by 1e11."""
    is_open = min(biases, default=0.0) > 0.0  # a log-std begins there with an init_std above 1
    obs = observations(5)
    actor, groups = seen_by_rsl_rl(obs, "HeteroscedasticGaussianDistribution", std_type=std_type)
    if biases:
        actor.mlp[-2].bias[2:] = torch.tensor(biases)
    else:  # as rsl_rl begins
        actor.distribution.init_mlp_weights(actor.mlp)
    actor.mlp[-2].weight[2:] *= 0.1
    actions = actor(groups, stochastic_output=True)
    wanted = actor.get_output_log_prob(actions)
    path = saved(tmp_path / "model_3.pt", {"actor_state_dict": actor.state_dict(), "iter": 3})
    if is_open:
        with pytest.raises(CannotCopyError, match=r"stds or log-stds: say it by params/agent.yaml.*halves=yes for log"):
            describe(path)
        settings(tmp_path, f"std_type: {std_type}\n")
    described = describe(path)
    assert_equal(log_prob(described, obs, actions), wanted)
    assert any("is taken for a std_type of log" in note for note in described.notes) == (not is_open)


def normalization() -> nn.Module:
    """The normalizer that all versions share, after it has seen something."""
    module = pytest.importorskip("rsl_rl.modules").EmpiricalNormalization(5)
    module.train()
    module.update(observations(5, 3.0) + 1.0)
    return module.eval()


@pytest.mark.parametrize("layout", ["1.0", "2.0", "2.3 with log_std", "3.0", "3.0 student"])
def test_rsl_rl_before_4(layout: str, tmp_path: Path) -> None:
    """The layouts that rsl_rl's own releases wrote: the same actor, under other names."""
    actor, critic, std = mlp((5, 8, 7, 2), nn.ELU), mlp((5, 9, 1), nn.ELU), torch.tensor([0.3, 0.8])
    prefix = "student" if "student" in layout else "actor"
    model = named(prefix, actor) | named("critic", critic)
    model |= {"log_std": std.log()} if "log_std" in layout else {"std": std}
    kept: dict[str, Any] = {"model_state_dict": model, "optimizer_state_dict": {}, "iter": 7, "infos": None}
    normalizer = nn.Identity() if layout == "1.0" else normalization()
    if layout.startswith("2"):
        kept |= {name: normalizer.state_dict() for name in ("obs_norm_state_dict", "critic_obs_norm_state_dict")}
    if layout.startswith("3"):
        model |= named(f"{prefix}_obs_normalizer", normalizer) | named("critic_obs_normalizer", normalizer)
    described, obs = describe(path := saved(tmp_path / "model_7.pt", kept)), observations(5, 2.0)
    seen = "none" if layout == "1.0" else f"clips nothing, {COUNT:.0f} observations seen"
    assert inspect(path)["normalizer"] == seen
    inputs = normalizer(obs)
    assert_scored(described, obs, torch.distributions.Normal(actor(inputs), std))
    assert any("elu, is assumed" in note for note in described.notes)


def test_an_activation_comes_from_the_user_or_from_the_runs_settings(tmp_path: Path) -> None:
    actor = mlp((5, 8, 2), nn.Tanh)
    model = named("actor", actor) | {"std": torch.ones(2)}
    path = saved(tmp_path / "model_0.pt", {"model_state_dict": model})
    obs = observations(5)
    wanted = actor(obs)
    assert_equal(mean(describe(path, Options(file_activation="tanh")), obs), wanted)
    settings(tmp_path, "  class_name: ActorCritic\n  activation: 'tanh'\n")
    described = describe(path)
    assert_equal(mean(described, obs), wanted)
    assert not any("assumed" in note for note in described.notes)
    assert describe(path, Options(file_activation="relu")).actor.activation == "relu"  # the settings may be of another
    with pytest.raises(UsageError, match="no activation 'sine'"):
        describe(path, Options(file_activation="sine"))
    settings(tmp_path, "  activation: selu\n")
    with pytest.raises(CannotCopyError, match="its activation is selu") as caught:
        describe(path)
    assert "--layout" not in str(caught.value)  # a layout names an activation, and the one of the file is not known


def test_the_clip_of_isaac_labs_wrapper_bounds_the_actions(tmp_path: Path) -> None:
    actor, obs = mlp((5, 8, 2), nn.ELU), observations(5, 9.0)
    path = saved(tmp_path / "model_0.pt", {"model_state_dict": named("actor", actor) | {"std": torch.ones(2)}})
    for clip in ("0.2", "null"):
        settings(tmp_path, f"  class_name: ActorCritic\n  activation: elu\nclip_actions: {clip}\n")
        assert_equal(mean(describe(path), obs), actor(obs) if clip == "null" else actor(obs).clamp(-0.2, 0.2))


def test_of_a_runs_settings_the_actors_own_count(tmp_path: Path) -> None:
    model = {"actor_state_dict": named("mlp", mlp((5, 8, 2), nn.ReLU)) | {"distribution.std_param": torch.ones(2)}}
    path = saved(tmp_path / "model_0.pt", model)
    critic = "critic:\n  activation: elu\n  distribution_cfg:\n    std_range: [0.1, 0.2]\n"
    actor = "actor:\n  activation: relu\n  distribution_cfg:\n    std_range: [0.3, 0.6]\n"
    groups = "obs_groups:\n  actor:\n    - seen\n"  # another section of this name
    for text in (groups + critic + actor, groups + actor + critic):
        settings(tmp_path, text)
        described = describe(path)
        assert described.actor.activation == "relu"
        assert (described.std.low, described.std.high) == (0.3, 0.6)
    settings(tmp_path, "actor:\n  activation: relu\n  distribution_cfg: {std_range: [0.3, 0.6]}\n  others: {}\n")
    with pytest.raises(UsageError, match="agent.yaml has the settings of distribution_cfg in braces"):
        describe(path)


ONES = torch.ones


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ({"memory_a.rnn.weight_ih_l0": ONES(4, 5), "actor.0.weight": ONES(2, 4)}, CannotCopyError, "has a memory"),
        ({"backbone.0.weight": ONES(4, 5)}, FileError, 'no policy of a known layout.*"actor=model_state_dict.backbone'),
        ({"actor.0.weight": ONES(4, 5), "std": ONES(3)}, FileError, "size mismatch for log_std"),
        ({"actor.0.weight": ONES(4, 5), "actor.2.weight": ONES(2, 3), "std": ONES(2)}, FileError, "takes 3"),
        ({"actor.0.weight": ONES(4, 5), "actor.3.weight": ONES(2, 4), "std": ONES(2)}, CannotCopyError, "activation"),
        ({"actor.0.weight": torch.full((2, 5), torch.nan), "std": ONES(2)}, FileError, "not finite"),
    ],
)
def test_other_checkpoints_are_one_sentence(model: Any, kind: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        policy_from(describe(saved(tmp_path / "model.pt", {"model_state_dict": model, "iter": 1})))
    assert "\n" not in str(caught.value)


# skrl -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [1, 2])
def test_skrl(version: int, tmp_path: Path) -> None:
    """The names of skrl's model builder; its scaler and its clipping of the log-std as it documents them."""
    hidden, last = mlp((5, 8, 7), nn.ELU), nn.Linear(7, 2)
    raw, mu, var = torch.tensor([-0.5, 3.0]), torch.linspace(-1, 1, 5), torch.linspace(0.5, 4, 5)
    scaler = {"running_mean": mu.double(), "running_variance": var.double(), "current_count": torch.tensor(99.0)}
    kept = {
        "policy": {"log_std_parameter": raw} | named("net_container", hidden) | named("output_layer", last),
        "value": named("net_container", mlp((5, 8, 1), nn.ELU)),
        "optimizer": {},
        "state_preprocessor" if version == 1 else "observation_preprocessor": scaler,
    }
    path = saved(tmp_path / "agent_100.pt", kept)
    assert recognized(path) == "skrl"
    described = describe(path)
    obs = observations(5, 6.0)
    inputs = ((obs - mu) / (var.sqrt() + 1e-8)).clamp(-5.0, 5.0)
    dist = torch.distributions.Normal(last(nn.functional.elu(hidden(inputs))), raw.clamp(-20.0, 2.0).exp())
    assert_scored(described, obs, dist)


@pytest.mark.parametrize("critic", ["value_layer", "critic"])
def test_the_critic_of_skrls_shared_model_is_left_out(critic: str, tmp_path: Path) -> None:
    body, actor, raw = mlp((5, 8, 7), nn.ELU), nn.Linear(7, 2), torch.tensor([-0.5, 0.3])
    shared = {"log_std_parameter": raw} | named("net", body) | named(critic, nn.Linear(7, 1)) | named("actor", actor)
    described = describe(saved(tmp_path / "agent.pt", {"policy": shared, "value": shared, "optimizer": {}}))
    obs = observations(5)
    dist = torch.distributions.Normal(actor(nn.functional.elu(body(obs))), raw.exp())
    assert_scored(described, obs, dist)


# CleanRL --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("root", ["", "model_state_dict"])
def test_cleanrls_files_lack_statistics_and_take_a_file_of_them(root: str, tmp_path: Path) -> None:
    """PyTorch's own tutorial saves a state dict as model_state_dict, a name of rsl_rl's too."""
    model = Agent(5, 3)
    path = saved(tmp_path / "model", {root: model.state_dict(), "epoch": 3} if root else model.state_dict())
    np.savez(tmp_path / "seen.npz", mean=np.arange(5.0), var=np.full(5, 0.04))
    without, described = describe(path), describe(path, Options(vecnormalize=str(tmp_path / "seen.npz")))
    for each in (without, described):
        assert any("clips actions to the environment's bounds" in note for note in each.notes)
        assert any("hold no statistics" in note for note in each.notes) == (each is without)
    obs, actions = observations(5, 2.0), torch.randn(COUNT, 3)
    inputs = ((obs - torch.arange(5.0)) / (0.04 + 1e-8) ** 0.5).clamp(-10.0, 10.0)
    assert_equal(log_prob(without, obs, actions), model.log_prob(obs, actions))
    assert_equal(log_prob(described, obs, actions), model.log_prob(inputs, actions))


@pytest.mark.parametrize(
    ("layout", "own", "clip", "epsilon"),
    [
        (None, {}, 10.0, 1e-8),
        (None, {"clip": 1.5, "epsilon": 0.5}, 1.5, 0.5),
        ("clip=2, epsilon=0.25", {}, 2.0, 0.25),
        ("clip=2, epsilon=0.25", {"clip": np.inf}, None, 0.25),
    ],
)
def test_an_npz_of_statistics_may_have_its_own_clip_and_epsilon(
    layout: str | None, own: dict[str, float], clip: float | None, epsilon: float, tmp_path: Path
) -> None:
    path = saved(tmp_path / "model", Agent(5, 3).state_dict())
    np.savez(tmp_path / "seen.npz", mean=np.zeros(5), var=np.full(5, 0.04), **own)
    if layout is not None:
        layout = f"actor=actor_mean, log_std=actor_logstd, activation=tanh, {layout}"
    described = describe(path, Options(vecnormalize=str(tmp_path / "seen.npz"), layout=layout))
    assert described.normalizer.clip == clip
    np.testing.assert_allclose(described.normalizer.scale, (0.04 + epsilon) ** -0.5)
    ending = f", clipped to {clip:g}" if clip else ""
    assert f"observations are normalized by seen.npz{ending}" in described.notes


@pytest.mark.parametrize("root", ["", "model_state_dict"])
def test_cleanrls_other_scripts(root: str, tmp_path: Path) -> None:
    obs = observations(5)
    actor, critic, network = mlp((5, 8, 8, 3), nn.Tanh), mlp((5, 8, 8, 1), nn.Tanh), mlp((5, 8, 8, 3), nn.ReLU)
    choices, values = actor(obs), network(obs)
    model = named("actor", actor) | named("critic", critic)
    described = describe(saved(tmp_path / "ppo", {"model_state_dict": model} if root else model))
    assert_scored(described, obs, torch.distributions.Categorical(logits=choices))
    described = describe(saved(tmp_path / "dqn", named("network", network)), Options(temperature=0.1))
    assert_scored(described, obs, torch.distributions.Categorical(logits=values / 0.1))


@pytest.mark.parametrize("soft", [False, True])
def test_cleanrls_squashed_policies(soft: bool, tmp_path: Path) -> None:
    fc1, fc2, fc_mean, fc_logstd = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)
    scale, bias = torch.tensor([[1.5, 2.0]]), torch.tensor([[0.5, -1.0]])
    state = named("fc1", fc1) | named("fc2", fc2) | named("fc_mean" if soft else "fc_mu", fc_mean)
    state |= {"action_scale": scale, "action_bias": bias} | (named("fc_logstd", fc_logstd) if soft else {})
    described = describe(saved(tmp_path / "model", state if soft else (state, {}, {})))
    obs = observations(5)
    hidden = torch.relu(fc2(torch.relu(fc1(obs))))
    assert_equal(mean(described, obs), torch.tanh(fc_mean(hidden)) * scale + bias)
    if soft:
        log_std = -5 + 0.5 * (2 - -5) * (torch.tanh(fc_logstd(hidden)) + 1)
        dist = torch.distributions.Normal(fc_mean(hidden), log_std.exp())
        before = dist.sample().clamp(-3.0, 3.0)
        jacobian = torch.log(1.0 - torch.tanh(before.double()) ** 2).sum(-1)
        assert_equal(log_prob(described, obs, before), dist.log_prob(before).sum(-1) - jacobian)


# Brax -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dict_observations", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_brax_parameters(dict_observations: bool, norm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `brax.io.model.save_params` pickles them; evaluated by Brax's formulas, in PyTorch."""
    layers: dict[str, Any] = {}
    for i, sizes in enumerate([(5, 9), (9, 8), (8, 6)]):
        layers[f"hidden_{i}"] = {"kernel": random(*sizes).astype("f4") / 2, "bias": random(sizes[1])}
        if norm and i < 2:
            layers[f"LayerNorm_{i}"] = {"scale": random(sizes[1]), "bias": random(1, sizes[1])[0]}
    mu, std = random(5).astype("f4"), np.linspace(0.5, 2.0, 5, dtype="f4")
    statistics = class_named(monkeypatch, "brax.training.acme.running_statistics.RunningStatisticsState")()
    other = np.zeros(7, "f4")
    statistics.mean = {"state": mu, "privileged_state": other} if dict_observations else mu
    statistics.std = {"state": std, "privileged_state": other + 1} if dict_observations else std
    statistics.count = np.float32(1e4)
    critic = {"params": {"hidden_0": layers["hidden_0"], "BatchNorm_0": {}}}  # which could not be copied
    path = tmp_path / "params"
    path.write_bytes(pickle.dumps((statistics, {"params": layers}, critic)))
    assert recognized(path) == "brax"
    described = describe(path)
    assert described.groups == ((("state", 5),) if dict_observations else ())
    assert described.normalizer.count == 1e4
    obs = observations(5)
    hidden = brax_body(layers, (obs.double() - torch.as_tensor(mu)) / torch.as_tensor(std), 2)
    loc, raw = dense(layers["hidden_2"], hidden).chunk(2, -1)
    dist = torch.distributions.Normal(loc, nn.functional.softplus(raw) + 0.001)
    before = dist.sample().clamp(-8.0, 8.0)
    slope = 2.0 * (np.log(2.0) - before - nn.functional.softplus(-2.0 * before))
    assert_equal(log_prob(described, obs, before), dist.log_prob(before).sum(-1) - slope.sum(-1))
    assert_equal(mean(described, obs), torch.tanh(loc))


@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("norm", [False, True])
def test_brax_parameters_of_a_plain_gaussian(std_type: str, norm: bool, tmp_path: Path) -> None:
    """As Brax 0.14's `PolicyModuleWithStd` names them; evaluated by its formulas, in PyTorch."""
    layers = {f"hidden_{i}": {"kernel": random(*sizes), "bias": random(8)} for i, sizes in enumerate([(5, 8), (8, 8)])}
    norms = {f"LayerNorm_{i}": {"scale": random(8), "bias": random(8)} for i in range(2)} if norm else {}
    last, raw = {"kernel": random(8, 3), "bias": random(3)}, np.abs(random(3)) + 0.1
    stds = {"scalar": {"std_param": {"value": raw}}, "log": {"std_logparam": {"log_value": np.log(raw)}}}
    path = tmp_path / "params"
    path.write_bytes(pickle.dumps((0, {"params": {"MLP_0": layers | norms, "Dense_0": last, **stds[std_type]}}, 0)))
    described, obs = describe(path), observations(5)
    assert MEAN_SCALE_NOTE in described.notes
    loc = dense(last, brax_body(layers | norms, obs, 2))
    assert_equal(mean(described, obs), loc)
    assert_scored(described, obs, torch.distributions.Normal(loc, torch.as_tensor(raw).double()))
