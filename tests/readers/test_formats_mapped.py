"""Checkpoints by a mapping from parts to names: rl_games, tianshou, and layouts that a user names."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import assert_equal, assert_scored, describe, log_prob, mean, observations, recognized
from made_checkpoints import Seen, mlp, named, saved, settings
from safetensors.torch import save_file
from torch import nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.priors.opening import load_policy
from repolicy.readers.description import CannotCopyError
from repolicy.readers.mapped import suggest_layout, tensors_in
from repolicy.readers.reading import Options

MEAN, VAR = torch.arange(5.0).double() - 2.0, torch.tensor([0.5, 2.0, 9.0, 1.0, 0.3]).double()
STD = torch.tensor([0.3, 0.8])


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what a file does not tell


def normalized(obs: torch.Tensor, epsilon: float, clip: float) -> torch.Tensor:
    return ((obs - MEAN.float()) / torch.sqrt(VAR.float() + epsilon)).clamp(-clip, clip)


def trunk(activation: type[nn.Module], norm: bool = False) -> nn.Sequential:
    """The hidden layers alone: the last one with its activation, as both libraries build them."""
    layers: list[nn.Module] = []
    for size, units in ((5, 8), (8, 7)):
        layers += [nn.Linear(size, units), activation(), *([nn.LayerNorm(units)] if norm else [])]
    return nn.Sequential(*layers)


# rl_games -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["fixed sigma", "sigma of the state", "LayerNorm", "compiled", "old", "choice"])
def test_rl_games(kind: str, tmp_path: Path) -> None:
    body, head, sigma = trunk(nn.ELU, kind == "LayerNorm"), nn.Linear(7, 3 if kind == "choice" else 2), nn.Linear(7, 2)
    network = named("actor_mlp", body) | named("logits" if kind == "choice" else "mu", head)
    network |= named("value", nn.Linear(7, 1))
    if kind == "sigma of the state":
        network |= named("sigma", sigma)
    elif kind != "choice":
        network |= {"sigma": STD.log()}
    statistics = {"running_mean": MEAN, "running_var": VAR, "count": torch.tensor(77.0).double()}
    model = {f"a2c_network.{name}": each for name, each in network.items()}
    if kind != "old":
        model |= {f"running_mean_std.{name}": each for name, each in statistics.items()}
    model |= {"value_mean_std.running_mean": torch.zeros(1), "value_mean_std.running_var": torch.ones(1)}
    if kind == "compiled":
        model = {f"_orig_mod.{name}": each for name, each in model.items()}
    kept = {"model": model, "epoch": 3, "frame": 9, "optimizer": {"state": {0: {"exp_avg": torch.zeros(8, 5)}}}}
    path = saved(tmp_path / "Ant.pth", kept | ({"running_mean_std": statistics} if kind == "old" else {}))
    assert recognized(path) == "mapped"
    obs = observations(5, 4.0)
    values = body(normalized(obs, 1e-5, 5.0))
    dist: Any = torch.distributions.Categorical(logits=head(values))
    if kind != "choice":
        std = sigma(values).exp() if kind == "sigma of the state" else STD
        dist = torch.distributions.Normal(head(values), std)
    described = describe(path)
    assert_scored(described, obs, dist)
    assert (described.library, described.normalizer.count) == ("rl_games", 77.0)
    assert any("elu, is assumed" in note for note in described.notes)
    assert any("taken as exp(sigma)" in note for note in described.notes) == (kind != "choice")


def test_isaac_labs_settings_tell_rl_gamess_activation(tmp_path: Path) -> None:
    body, head = trunk(nn.ReLU, False), nn.Linear(7, 2)
    network = named("a2c_network.actor_mlp", body) | named("a2c_network.mu", head) | {"a2c_network.sigma": STD.log()}
    (tmp_path / "nn").mkdir()
    path, obs = saved(tmp_path / "nn" / "Ant.pth", {"model": network}), observations(5)
    text = "  network:\n    space:\n      continuous:\n        mu_activation: {}\n    mlp:\n      activation: relu\n"
    settings(tmp_path, text.format("None"))
    assert_scored(describe(path), obs, torch.distributions.Normal(head(body(obs)), STD))
    for of, function in (("mean", text.format("tanh")), ("std", text.format("None\n        sigma_activation: tanh"))):
        settings(tmp_path, function)
        with pytest.raises(CannotCopyError, match=f"its {of} goes through tanh"):
            describe(path)


def test_isaac_labs_settings_tell_what_rl_gamess_sigma_is(tmp_path: Path) -> None:
    body, head = trunk(nn.ELU), nn.Linear(7, 2)
    network = named("a2c_network.actor_mlp", body) | named("a2c_network.mu", head) | {"a2c_network.sigma": STD}
    path, obs = saved(tmp_path / "Ant.pth", {"model": network}), observations(5)
    text = "  name: a2c_continuous\n  model:\n    name: {}\n  mlp:\n    activation: elu\n"
    for model, std in (("continuous_a2c", STD), ("continuous_a2c_logstd", STD.exp())):
        settings(tmp_path, text.format(model))
        assert_scored(describe(path), obs, torch.distributions.Normal(head(body(obs)), std))
        assert not any("exp(sigma)" in note for note in describe(path).notes)
    settings(tmp_path, text.format("continuous_a2c_tanh"))
    with pytest.raises(CannotCopyError, match="its model is continuous_a2c_tanh, another distribution"):
        describe(path)


def test_a_memory_is_no_part_of_a_layout(tmp_path: Path) -> None:
    """Of a critic it does not matter."""
    network = named("enc", nn.Linear(5, 7)) | named("mu", nn.Linear(7, 2)) | {"log_std": STD}
    options = Options(layout="actor=enc+mu, log_std=log_std, activation=elu")
    kept = network | named("critic_memory", nn.LSTM(7, 7))
    assert describe(saved(tmp_path / "a.pth", kept), options).actor.width == 5
    with pytest.raises(CannotCopyError, match=r"has a memory \(cell.weight_ih\)"):
        describe(saved(tmp_path / "b.pth", network | named("cell", nn.GRUCell(7, 7))), options)


# TorchRL --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["in one Sequential", "behind an MLP", "one scale", "of a loss", "of two modules"])
def test_torchrl(kind: str, tmp_path: Path) -> None:
    """As a ProbabilisticActor keeps it, with NormalParamExtractor's scale or AddStateIndependentNormalScale's."""
    net = mlp((5, 8, 7, 2 if kind == "one scale" else 4), nn.Tanh)
    kept = named("module.0.module" if kind == "in one Sequential" else "module.0.module.0", net)
    if kind == "one scale":
        kept |= {"module.0.module.1.state_independent_scale": STD.log()}
    if kind == "of two modules":
        kept = named("module.0.module.0.module", net)
    if kind == "of a loss":
        kept = {f"actor_network_params.{name}": each for name, each in kept.items()}
        kept |= named("critic_network_params.module", nn.Linear(5, 1)) | {"clip_epsilon": torch.tensor(0.2)}
    obs = observations(5)
    out = net(obs)
    inverse = torch.tensor(0.99).expm1().log()  # so that a raw 0 becomes 1, of which 0.01 is the least
    scale = STD.expand(len(obs), 2) if kind == "one scale" else nn.functional.softplus(out[:, 2:] + inverse) + 0.01
    dist = torch.distributions.Normal(out[:, :2], scale)
    before = dist.sample().clamp(-3.0, 3.0)
    slope = torch.log(1.0 - torch.tanh(before.double()) ** 2).sum(-1)
    described = describe(saved(tmp_path / "actor.pt", kept))
    assert_equal(log_prob(described, obs, before), dist.log_prob(before).sum(-1) - slope)
    assert_equal(mean(described, obs), torch.tanh(out[:, :2]))
    assert described.library == "TorchRL"
    assert any("TanhNormal between -1 and 1 is assumed" in note for note in described.notes)


@pytest.mark.parametrize(
    "behind",
    [named("module.1.module.0.module.0", mlp((4, 7, 4), nn.Tanh)), {"module.1.action_low": torch.tensor(-1.0)}],
    ids=["ActorValueOperator", "TanhModule"],
)
def test_a_part_of_another_module_of_torchrl_is_no_policy(behind: Any, tmp_path: Path) -> None:
    actor = named("module.0.module", mlp((5, 8, 4), nn.Tanh))
    assert describe(saved(tmp_path / "actor.pt", actor)).library == "TorchRL"
    with pytest.raises(FileError, match="no policy of a known layout"):
        describe(saved(tmp_path / "other.pt", actor | behind))


def test_a_users_last_layer_of_means_and_log_stds(tmp_path: Path) -> None:
    net = mlp((5, 8, 6), nn.ReLU)
    path = saved(tmp_path / "policy.pt", named("pi", net))
    obs = observations(5, 4.0)
    described = describe(path, Options(layout="actor=pi, activation=relu, halves=yes, low=-1, high=0.1"))
    means, log_stds = net(obs).chunk(2, -1)
    assert (log_stds > 0.1).any()
    assert (log_stds < -1.0).any()
    assert_scored(described, obs, torch.distributions.Normal(means, log_stds.clamp(-1.0, 0.1).exp()))
    odd = saved(tmp_path / "odd.pt", named("pi", nn.Linear(5, 3)))
    with pytest.raises(CannotCopyError, match="its last layer has 3 outputs"):
        describe(odd, Options(layout="actor=pi, activation=relu, halves=yes"))


# tianshou -------------------------------------------------------------------------------------------------------------
STATISTICS = Seen(mean=MEAN.numpy(), var=VAR.numpy(), count=77.0, clip_max=10.0)  # as tianshou keeps them


@pytest.mark.parametrize("kind", ["PPO 1", "PPO 2", "SAC", "conditioned", "TD3 or DDPG", "choice"])
def test_tianshou(kind: str, tmp_path: Path) -> None:
    tanh = kind in ("PPO 1", "PPO 2", "conditioned")
    body, head, sigma = trunk(nn.Tanh if tanh else nn.ReLU), nn.Linear(7, 3 if kind == "choice" else 2), nn.Linear(7, 2)
    last = "last" if kind in ("TD3 or DDPG", "choice") else "mu"
    actor = named("preprocess.model.model", body) | named(f"{last}.model", nn.Sequential(head))
    if kind.startswith("PPO"):
        actor |= {"sigma_param": STD.log()[:, None]}
    elif last == "mu":
        actor |= named("sigma.model", nn.Sequential(sigma))
    roots = {"PPO 1": ("actor.", "_actor_critic.actor."), "TD3 or DDPG": ("actor.", "actor_old.")}
    model = {f"{root}{name}": each for root in roots.get(kind, ("policy.actor.",)) for name, each in actor.items()}
    model |= named("critic_old" if kind == "SAC" else "critic", mlp((5, 8, 1), nn.Tanh))
    kept = model if kind in ("SAC", "TD3 or DDPG") else {"model": model, "obs_rms": STATISTICS}
    path, obs = saved(tmp_path / "policy.pth", kept), observations(5, 4.0)
    described = describe(path)
    inputs = obs if kind in ("SAC", "TD3 or DDPG") else normalized(obs, 1.1920928955078125e-07, 10.0)
    values = body(inputs)
    if kind == "choice":
        assert_scored(described, obs, torch.distributions.Categorical(logits=head(values)))
        return
    if kind == "TD3 or DDPG":
        assert_equal(mean(described, obs), torch.tanh(head(values)))
        assert "give one with --std" in " ".join(described.notes)
        return
    std = STD if kind.startswith("PPO") else sigma(values).clamp(-20, 2).exp()
    normal = torch.distributions.Normal(head(values), std)
    raw = normal.sample()
    assert any("a policy of SAC" in note for note in described.notes) == (kind == "conditioned")
    assert (described.squashed, described.kind) == (kind == "SAC", "SAC" if kind == "SAC" else "PPO")
    slopes = torch.log1p(-(torch.tanh(raw.double()) ** 2)).sum(-1) if kind == "SAC" else 0.0
    assert_equal(log_prob(described, obs, raw), normal.log_prob(raw).sum(-1) - slopes)


def test_tianshous_policy_without_its_critics_takes_a_std(tmp_path: Path) -> None:
    body, head, obs = trunk(nn.ReLU), nn.Linear(7, 2), observations(5)
    state = named("actor.preprocess.model.model", body) | named("actor.last.model", nn.Sequential(head))
    path = saved(tmp_path / "policy.pth", state)
    assert describe(path).actions.kind == "discrete"
    assert_equal(mean(describe(path, Options(std=0.2)), obs), torch.tanh(head(body(obs))))


def test_layers_of_tianshous_head_have_its_default_activation(tmp_path: Path) -> None:
    body, head = trunk(nn.Tanh), mlp((7, 6, 2), nn.ReLU)
    state = named("actor.preprocess.model.model", body) | named("actor.mu.model", head)
    path = saved(tmp_path / "policy.pth", state | {"actor.sigma_param": STD.log()[:, None]})
    with pytest.raises(CannotCopyError, match="head has layers of relu, tianshou's default, and its other layers tan"):
        describe(path)
    assert describe(path, Options(file_activation="relu")).actor.activation == "relu"


# A user's layout ------------------------------------------------------------------------------------------------------
BOOSTER = "actor=model.actor, log_std=model.logstd, activation=elu"


def suggested(layout: str) -> str:
    """Return what a message suggests: no file tells the activation, and a guess would be a wrong copy."""
    return layout.replace("activation=elu", "activation=NAME")


def booster(folder: Path, **more: Any) -> tuple[Path, nn.Sequential]:
    """As booster_gym's training leaves it."""
    actor = mlp((5, 8, 7, 2), nn.ELU)
    model = named("critic", mlp((9, 8, 1), nn.ELU)) | named("actor", actor) | {"logstd": STD.log()[None]}
    return saved(folder / "model_10.pth", {"model": model, "optimizer": {"state": {}}, "curriculum": 0.5} | more), actor


def test_a_file_of_an_unknown_layout_says_which_line_to_try_and_that_line_opens_it(tmp_path: Path) -> None:
    path, actor = booster(tmp_path)
    with pytest.raises(FileError, match=f'such as --layout "{suggested(BOOSTER)}"'):
        inspect(path)
    obs = observations(5)
    dist = torch.distributions.Normal(actor(obs), STD)
    described = describe(path, Options(layout=BOOSTER))
    assert_scored(described, obs, dist)
    assert described.normalizer is None
    assert inspect(path, Options(layout=BOOSTER))["std"] == "0.3, 0.8"
    assert load_policy(path, layout=BOOSTER).spec.activation == "elu"


@pytest.mark.parametrize(
    ("module", "layout"),
    [
        (named("fc1", nn.Linear(5, 8)) | named("fc2", nn.Linear(8, 7)) | named("mu", nn.Linear(7, 2)),
         "actor=fc1+fc2+mu, activation=NAME"),
        (nn.Linear(5, 2).state_dict(), ""),
        (named("cnn.0", nn.Conv2d(4, 8, 3)) | named("cnn.2", nn.Linear(9, 7)) | named("actor", nn.Linear(7, 2)), ""),
        (named("actor", nn.Linear(5, 2)) | {"norm.running_mean_std.running_mean": MEAN},
         "actor=actor, activation=NAME, normalizer=norm.running_mean_std, epsilon=1e-5, clip=5"),
        (named("encoder.net.mlp", trunk(nn.ReLU)) | named("af.net.mlp.0", nn.Linear(7, 3)),  # RLlib's DQN
         "actor=encoder.net.mlp+af.net.mlp, discrete=yes, activation=NAME"),
        (named("q_network.net", mlp((5, 8, 3), nn.ReLU)) | named("target_q_network.net", mlp((5, 8, 3), nn.ReLU)),
         "actor=q_network.net, discrete=yes, activation=NAME"),  # skrl's
    ],
)  # fmt: skip
def test_layers_of_a_module_of_ones_own_are_suggested_from_the_first_on(module: Any, layout: str) -> None:
    assert suggest_layout({name: tensor.detach().numpy() for name, tensor in module.items()})[0] == layout


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_stds_of_sample_factory_are_suggested_as_logarithms(adaptive: bool, tmp_path: Path) -> None:
    body, head, name = trunk(nn.ELU), nn.Linear(7, 4 if adaptive else 2), "action_parameterization"
    model = named("encoder.mlp_head", body) | named(f"{name}.distribution_linear", head)
    learned = {} if adaptive else {f"{name}.learned_stddev": STD}  # log-stds which all are above 0
    path, obs = saved(tmp_path / "a.pth", {"model": model | learned}), observations(5)
    line = f"actor=model.encoder.mlp_head+model.{name}.distribution_linear"
    std = "" if adaptive else f", log_std=model.{name}.learned_stddev"
    end = r" \(with halves=yes, too, if the second half of the last layer are log-stds\)$" if adaptive else "$"
    with pytest.raises(FileError, match=rf'--layout "{re.escape(line + std)}, activation=NAME"{end}'):
        describe(path)
    means, log_stds = head(body(obs)).chunk(2, -1) if adaptive else (head(body(obs)), STD)
    described = describe(path, Options(layout=f"{line}{std}{', halves=yes' * adaptive}, activation=elu"))
    assert_scored(described, obs, torch.distributions.Normal(means, log_stds.exp()))


def test_a_normalizer_of_a_users_layout(tmp_path: Path) -> None:
    path, actor = booster(tmp_path, obs_rms={"mean": MEAN, "var": VAR, "count": torch.ones(1)})
    with pytest.raises(FileError, match=f'"{suggested(BOOSTER)}, normalizer=obs_rms"'):
        describe(path)
    obs = observations(5, 4.0)
    dist = torch.distributions.Normal(actor(normalized(obs, 1e-8, 3.0)), STD)
    layout = f"{BOOSTER}, normalizer=obs_rms, epsilon=1e-8, clip=3"
    assert_scored(describe(path, Options(layout=layout)), obs, dist)
    unclipped = describe(path, Options(layout=layout.removesuffix(", clip=3")))
    assert any("observations are not clipped: if they were, add clip=5" in note for note in unclipped.notes)
    for said, told in (("", True), (", squashed=no", False)):
        notes = describe(path, Options(layout=layout + said)).notes
        assert any("no tanh is assumed behind the last layer: --layout" in note for note in notes) == told
    path, _ = booster(tmp_path, obs_rms={"mean": MEAN, "std": STD.new_ones(5)})
    with pytest.raises(UsageError, match="obs_rms has a std and no variance, so that epsilon has no place"):
        describe(path, Options(layout=layout))


@pytest.mark.parametrize("whole", [False, True])
def test_layers_below_actor_layers(whole: bool, tmp_path: Path) -> None:
    actor = mlp((5, 8, 2), nn.ELU)
    model = nn.Module()
    model.actor = nn.Module()
    model.actor.layers = actor
    model.std = nn.Parameter(STD)
    path = saved(tmp_path / "model.pt", model if whole else {"model_state_dict": model.state_dict()})
    root = "" if whole else "model_state_dict."
    line = f"actor={root}actor.layers, std={root}std, activation=elu"
    with pytest.raises(FileError, match=f'--layout "{suggested(line)}"'):
        describe(path)
    obs = observations(5)
    assert_scored(describe(path, Options(layout=line)), obs, torch.distributions.Normal(actor(obs), STD))


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ("actor=model.actor", "--layout names no activation"),
        ("log_std=model.logstd, activation=elu", "--layout needs actor=NAME"),
        ("actor=model.actor, halves=yes, discrete=yes, activation=elu", "no more than one of"),
        ("actor=model.actor, std=a, log_std=b, activation=elu", "no more than one of"),
        ("actor=model.actor, hidden=3", "it must be"),
        ("actor=model.actor, library=x", "it must be"),
        ("actor=model.actor, clip=wide", "it takes a number"),
        ("actor=model.actor, squashed=1", "it takes yes or no"),
        ("actor=model.actor, activation=sine", "there is no activation 'sine'"),
        ("actor=model.pi, activation=elu", r"has no layers model.pi.\*"),
        ("actor=model.actor, log_std=model.pi, activation=elu", r"has no layers model.pi.\*"),
        ("actor=model.actor, normalizer=rms, activation=elu", "has no rms"),
        ("actor=model.actor, log_std=curriculum, normalizer=model.actor, activation=elu", "has no mean and var"),
        ("actor=model.actor, log_std=model.actor.0.bias, activation=elu", "is of 8 stds, and an action has 2"),
        ("actor=model.actor, std=model.logstd, activation=elu", "is it log_std=model.logstd"),
        ("actor=model.actor, low=1, high=1, activation=elu", "low must be below high"),
        ("actor=model.actor, low=nan, activation=elu", "low must be below high"),
        ("actor=model.actor, clip=0, activation=elu", "and clip above 0"),
    ],
)
def test_a_layout_that_does_not_fit_is_one_sentence(layout: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, FileError), match=sentence):
        describe(booster(tmp_path)[0], Options(layout=layout))


def test_a_layout_is_for_what_holds_tensors(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(UsageError, match="policy.onnx is a graph, .* leave --layout out"):
        describe(tmp_path / "policy.onnx", Options(layout=BOOSTER))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_safetensors_of_a_state_dict(kind: torch.dtype, tmp_path: Path) -> None:
    net = mlp((5, 8, 2), nn.Tanh).to(kind)
    path = tmp_path / "model.safetensors"
    save_file(named("pi", net) | {"log_std": STD.log()}, path)
    with pytest.raises(FileError, match='which tensors are what, such as layout "actor=pi, log_std=log_std'):
        load_policy(path)
    policy, obs = load_policy(path, layout="actor=pi, log_std=log_std, activation=tanh"), observations(5)
    assert_equal(policy(obs).mode(), net.float()(obs))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FileError, match="model.safetensors is damaged"):
        load_policy(path)


@pytest.mark.parametrize("layout", [None, "actor=actor_mean, log_std=actor_logstd, activation=tanh"])
def test_a_layer_norm_behind_the_last_layer_is_refused(layout: str | None, tmp_path: Path) -> None:
    kept = named("actor_mean", nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2), nn.LayerNorm(2)))
    path = saved(tmp_path / "a.pt", kept | {"actor_logstd": torch.zeros(1, 2)})
    with pytest.raises(CannotCopyError, match="a LayerNorm follows its last layer"):
        describe(path, Options(layout=layout))


def test_a_file_that_holds_itself_ends() -> None:
    around: dict[str, Any] = {"a": torch.zeros(2).numpy()}
    around["self"] = around
    assert len(tensors_in(around)) < 100
