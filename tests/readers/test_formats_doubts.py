"""Files that look like a known policy and are another one: each is refused in one sentence, never read wrongly."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import COUNT, assert_equal, assert_scored, describe, log_prob, mean, observations, random, stirred
from gymnasium import spaces
from made_checkpoints import Agent, Seen, brax_body, brax_file, dense, mlp, named, saved, seen_by_rsl_rl, settings
from made_graphs import graph, node, onnx
from made_sb3 import contrib, made, sb3
from torch import nn

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError
from repolicy.policies.distributions import ActionSpace
from repolicy.priors.opening import open_policy
from repolicy.readers import brax
from repolicy.readers.context import find_statistics
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import Options


# Stable-Baselines3: code of the user's own ----------------------------------------------------------------------------
class Squares(sb3.common.torch_layers.BaseFeaturesExtractor):
    """No tensors of its own, so that only its name tells that it is there."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, space.shape[0])

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs**2


class Bounded(sb3.ppo.MlpPolicy):
    """The same tensors as the library's policy, and another mean."""

    def _get_action_dist_from_latent(self, latent: torch.Tensor, *_: Any) -> Any:
        return self.action_dist.proba_distribution(torch.tanh(self.action_net(latent)), self.log_std)


class ReLU(nn.ELU):
    """Called as another."""


SLOPED = partial(nn.LeakyReLU, 0.2)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "MlpLstmPolicy"}, "the policy has a memory"),
        ({"policy": Bounded}, "its policy is .*Bounded, and what that computes is not in the file"),
        ({"policy_kwargs": {"features_extractor_class": Squares}}, "its features extractor is .*Squares"),
        ({"policy_kwargs": {"activation_fn": ReLU}}, "its activation is .*ReLU; tanh"),
        ({"policy_kwargs": {"activation_fn": nn.Mish}}, "its activation is Mish; tanh"),
        (
            {"policy_kwargs": {"activation_fn": SLOPED}},
            "its activation is a functools.partial, whose arguments are not",
        ),
        ({"seen": spaces.MultiBinary(5)}, "are a MultiBinary, and Repolicy takes a Box, or a Dict of such"),
        ({"seen": spaces.Discrete(3)}, "its observations are a Discrete"),
        ({"seen": spaces.Box(0, 255, (3, 8, 8), np.uint8)}, "its observations are images"),
    ],
)
def test_a_zip_of_another_kind_of_policy_is_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    kind = contrib("RecurrentPPO") if settings.get("policy") == "MlpLstmPolicy" else sb3.PPO
    _, path = made(kind, tmp_path, n_steps=8, batch_size=8, **settings)
    with pytest.raises(CannotCopyError, match=f"{reason}.*; export it to ONNX or TorchScript") as caught:
        describe(path)
    for asked in (lambda: inspect(path), lambda: open_policy(path)):  # it is no TorchScript, and cannot run as it is
        with pytest.raises(CannotCopyError) as again:
            asked()
        assert str(again.value) == str(caught.value)


def test_a_librarys_own_classes_are_known(tmp_path: Path) -> None:
    flat = sb3.common.torch_layers.FlattenExtractor
    _, path = made(contrib("TRPO"), tmp_path, policy_kwargs={"features_extractor_class": flat})
    assert describe(path).kind == "TRPO"


def test_masks_that_a_copy_does_not_apply_are_told(tmp_path: Path) -> None:
    said = "it was trained with action masks, which this copy does not apply"
    _, path = made(contrib("MaskablePPO"), tmp_path, "choice")
    assert said in inspect(path)["notes"]
    _, path = made(sb3.PPO, tmp_path, "choice")
    assert said not in inspect(path)["notes"]


def test_statistics_are_found_from_within_their_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Hopper-v4_1"
    (folder / "Hopper-v4").mkdir(parents=True)
    (folder / "Hopper-v4" / "vecnormalize.pkl").touch()
    for here, name in ((tmp_path, "Hopper-v4_1/best_model.zip"), (folder, "best_model.zip")):
        monkeypatch.chdir(here)
        assert find_statistics(Path(name)) == folder / "Hopper-v4" / "vecnormalize.pkl"


# ONNX -----------------------------------------------------------------------------------------------------------------
LAYERS = {"w": random(5, 7), "v": random(7, 3), "one": random(7, 1), "four": random(7, 4)}
BODY = [node("Gemm", "obs w", "a"), node("Tanh", "a", "b")]


def test_a_critic_is_never_taken_for_an_actor_that_cannot_be_copied(tmp_path: Path) -> None:
    heads = [node("Softsign", "a", "s"), node("Gemm", "s v", "moves"), node("Gemm", "b one", "worth")]
    with pytest.raises(CannotCopyError, match="it holds Softsign"):
        describe(graph(tmp_path / "policy.onnx", [*BODY, *heads], LAYERS, outputs=["moves", "worth"]))


@pytest.mark.parametrize("value", ["value_estimate", "critic", "vf", "Q"])
def test_a_value_is_no_action_wherever_it_stands(value: str, tmp_path: Path) -> None:
    heads = [node("Gemm", "b v", "moves"), node("Gemm", "b one", value)]
    described = describe(graph(tmp_path / "policy.onnx", [*BODY, *heads], LAYERS, outputs=[value, "moves"]))
    assert described.actions.width == 3
    assert f"of the graph's outputs moves is taken, and not {value}" in described.notes


def test_a_graph_that_runs_gives_its_action_and_not_its_std(tmp_path: Path) -> None:
    heads = [node("Softsign", "b", "s"), node("Gemm", "s v", "moves"), node("Softplus", "moves", "the_std")]
    path = graph(tmp_path / "policy.onnx", [*BODY, *heads], LAYERS, outputs=["the_std", "moves"])
    prior, obs = open_policy(path, Options(std=0.2)).agent, observations(5)
    assert prior.notes[-1] == "of the graph's outputs moves is taken, and not the_std"
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    [wanted] = session.run(["moves"], {"obs": obs.numpy()})
    assert_equal(prior.for_spaces(5, ActionSpace("continuous", (3,))).distribution(obs).mode(), wanted)


def test_a_clip_with_an_upper_bound_alone_has_no_lower_one(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Clip", ["obs", "", "top"], ["x"]), node("Gemm", "x w", "out")]
    with pytest.raises(CannotCopyError, match="clip stands where"):
        describe(graph(tmp_path / "one.onnx", nodes, LAYERS | {"top": np.array(0.5)}))
    assert describe(graph(tmp_path / "none.onnx", nodes, LAYERS | {"top": np.array(np.inf)})).actor.width == 5


# State dicts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("holder", [None, "model_weights", "state_dict"])
def test_what_torch_puts_around_a_state_dict(wrapper: str, holder: str | None, tmp_path: Path) -> None:
    model = stirred(Agent(5, 3))
    kept: Any = {f"{wrapper}{name}": values for name, values in model.state_dict().items()}
    path = saved(tmp_path / "model.pt", kept if holder is None else {holder: kept, "args": {}})
    obs, actions = observations(5), torch.randn(COUNT, 3)
    assert_equal(log_prob(describe(path), obs, actions), model.log_prob(obs, actions))


def test_one_std_for_all_numbers_of_an_action(tmp_path: Path) -> None:
    state = stirred(Agent(5, 3)).state_dict()
    described = describe(saved(tmp_path / "one.pt", state | {"actor_logstd": torch.tensor([[-0.7]])}))
    assert np.allclose(described.std.raw, [-0.7] * 3)
    with pytest.raises(FileError, match="4 stds"):
        describe(saved(tmp_path / "four.pt", state | {"actor_logstd": torch.zeros(1, 4)}))


def test_code_and_a_whole_module_are_told_from_a_policys_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...")
    code = r"mine.py holds no policy, but code: name what is in it, .*mine.py:NAME; an environment"
    with pytest.raises(FileError, match=code):
        describe(tmp_path / "mine.py")
    with pytest.raises(FileError, match="a whole module, <Sequential>, whose code is not in it"):
        describe(saved(tmp_path / "module.pt", mlp((5, 8, 3), nn.Tanh)))


@pytest.mark.parametrize("std", [None, 0.2])
def test_skrls_off_policy_agents(std: float | None, tmp_path: Path) -> None:
    network, obs = stirred(mlp((5, 8, 2), nn.ELU)), observations(5)
    kept: dict[str, Any] = {"policy": named("net", network), "critic_1": {}, "policy_optimizer": {}}
    if std:  # of a deterministic policy
        kept["target_policy"] = kept["policy"]
    else:
        kept["policy"]["log_std_parameter"] = torch.full((2,), -0.5)
    described = describe(saved(tmp_path / "agent.pt", kept), Options(std=std))
    assert described.kind == ("TD3 or DDPG" if std else "Gaussian policy")
    assert_scored(described, obs, torch.distributions.Normal(network(obs), std or float(np.exp(-0.5))))


def test_skrls_choices_are_read_by_the_layout_that_the_message_begins(tmp_path: Path) -> None:
    network, obs = stirred(mlp((5, 8, 3), nn.ELU)), observations(5)
    path = saved(tmp_path / "agent.pt", {"policy": named("net", network), "value": {}})
    said = r"looks like skrl.s, but its .*discrete=yes for choices.*--layout .actor=policy.net, activation=NAME"
    with pytest.raises(CannotCopyError, match=said):
        describe(path)
    dist = torch.distributions.Categorical(logits=network(obs))
    assert_scored(describe(path, Options(layout="actor=policy.net, activation=elu, discrete=yes")), obs, dist)


YAML = "  class_name: MLPModel\n  activation: relu\n  distribution_cfg:\n    class_name: rsl_rl.modules.distribution:"


@pytest.mark.parametrize("kind", ["BetaDistribution", "HeteroscedasticGaussianDistribution"])
def test_a_beta_policy_is_no_gaussian(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rsl_rl 5's have the same tensors; Isaac Lab writes the kind beside them."""
    model, _ = seen_by_rsl_rl(observations(5), kind)
    model.mlp[-2].bias.data[-1] = -0.1
    (tmp_path / "checkpoints").mkdir()
    whole = tmp_path / "checkpoints" / "model_1.pt"
    saved(whole, {"actor_state_dict": model.state_dict(), "critic_state_dict": {}, "iter": 1})
    said = "without params/agent.yaml a Beta policy looks the same, and its copy would be wrong"
    assert said in describe(whole).notes
    settings(tmp_path, f"actor:\n{YAML}{kind}\n")
    monkeypatch.chdir(tmp_path / "checkpoints")
    for path in (whole, Path("model_1.pt")):
        if kind == "BetaDistribution":
            with pytest.raises(CannotCopyError, match="its distribution is no Gaussian"):
                describe(path)
        else:
            described = describe(path)
            assert described.actor.activation == "relu"
            assert said not in described.notes


def test_a_student_of_rsl_rl_4_has_its_std(tmp_path: Path) -> None:
    kept = named("mlp", mlp((5, 8, 2), nn.ELU)) | {"log_std": torch.tensor([0.2, 0.8]).log()}
    described = describe(saved(tmp_path / "model_1.pt", {"student_state_dict": kept, "iter": 1}))
    torch.testing.assert_close(policy_from(described).std, torch.tensor([0.2, 0.8]))


@pytest.mark.parametrize("told", ["", "  distribution_cfg:\n    class_name: OwnDistribution\n", "v3"])
def test_a_student_without_a_std_has_no_second_half(told: str, tmp_path: Path) -> None:
    """Of six actions three were taken as stds."""
    network = stirred(mlp((5, 8, 6), nn.ELU))
    path = saved(tmp_path / "model_1.pt", {"student_state_dict": named("mlp", network), "iter": 1})
    told = "  state_dependent_std: true\n" if told == "v3" else told
    settings(tmp_path, f"student:\n  class_name: MLPModel\n  activation: elu\n{told}")
    if "Own" in told:
        with pytest.raises(CannotCopyError, match="its distribution is no Gaussian"):
            describe(path)
    else:
        described = describe(path, None if told else Options(std=0.2))
        assert described.actions.width == (3 if told else 6)
        assert described.std.source == ("head" if told else "vector")


# Brax -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("parts", [2, 3])
def test_what_braxs_files_do_not_tell(parts: int, tmp_path: Path) -> None:
    """Three parts are PPO's. Two may be SAC's, whose default is another activation."""
    path = brax_file(tmp_path / "params")
    _, layers = pickle.loads(path.read_bytes())
    statistics = Seen(mean=np.full(5, 0.3), std=np.full(5, 2.0), count=9.0)  # whether they were used or not
    path.write_bytes(pickle.dumps((statistics, layers, layers)[:parts]))

    def policy(inputs: torch.Tensor) -> torch.Tensor:
        hidden = brax_body(layers["params"], inputs, 1, torch.relu)
        return torch.tanh(dense(layers["params"]["hidden_1"], hidden)[:, :3])

    described, obs, relu = describe(path), observations(5), Options(file_activation="relu")
    assert described.kind == ("PPO" if parts == 3 else "PPO or SAC")
    assert "Brax PPO's default, swish, is assumed" in described.notes[0]
    assert described.notes[1:] == ((brax.RAW_NOTE,) if parts == 3 else (brax.SAC_NOTE, brax.RAW_NOTE))
    assert describe(path, relu).notes == (brax.RAW_NOTE,)
    assert_equal(mean(describe(path, relu), obs), policy((obs.double() - 0.3) / 2.0))
    plain = describe(path, replace(relu, vecnormalize="none"))
    assert plain.notes == ("observations are not normalized (vecnormalize is none)",)
    assert_equal(mean(plain, obs), policy(obs))


@pytest.mark.parametrize(
    ("modules", "size", "sentence"),
    [
        (("CNN_0",), 6, "the policy looks at images"),
        (("Dense_0", "Dense_1"), 8, "its std depends on the state"),
        (("Dense_0", "Dense_1"), 6, "its Dense_0 does not follow its MLP_0"),  # MLPHead's latents
        (("Dense_0", "Dense_1", "Dense_2"), 6, "its network holds MLP_0, Dense_0, Dense_1, Dense_2"),
    ],
)
def test_braxs_other_networks_are_refused_as_what_they_are(
    modules: tuple[str, ...], size: int, sentence: str, tmp_path: Path
) -> None:
    layer = {"kernel": random(size, 4), "bias": random(4)}
    layers = {"MLP_0": {"hidden_0": {"kernel": random(5, 8), "bias": random(8)}}, **dict.fromkeys(modules, layer)}
    (tmp_path / "params").write_bytes(pickle.dumps((0, {"params": layers}, 0)))
    with pytest.raises(CannotCopyError, match=f"cannot be copied: {sentence}"):
        describe(tmp_path / "params")


# Damage ---------------------------------------------------------------------------------------------------------------
def test_what_is_missing_in_a_known_layout_is_said(tmp_path: Path) -> None:
    path = brax_file(tmp_path / "params", LayerNorm_0={"scale": random(4)})
    with pytest.raises(FileError, match="params is damaged, or of another layout: 'bias' is missing"):
        describe(path)
    layer = {"kernel": random(5, 4), "bias": random(3)}
    with pytest.raises(FileError, match=r"4 units has biases of shape \[3\]"):
        describe(brax_file(tmp_path / "params", hidden_0=layer))
