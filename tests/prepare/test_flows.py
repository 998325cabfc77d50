"""A flow policy that is fitted to demonstrations: chunks, the velocity's closed forms, and its graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from quick_graphs import quick_graph
from tiny_envs import tiny
from torch import Tensor
from typed_commands import typed

from repolicy.errors import UsageError
from repolicy.policies.export import onnx_runner
from repolicy.prepare import flows
from repolicy.prepare.flows import Flow, FlowFit, fit_flow, imitate_flow, split_into_chunks
from repolicy.prepare.generative import standard_normal
from repolicy.priors import decoders
from repolicy.priors.decoders import export_composed, load_decoder
from repolicy.readers.demonstrations import Demonstrations


def demonstrations(actions: Tensor, ended: list[int] | None, observations: Tensor | None = None) -> Demonstrations:
    seen = torch.arange(len(actions))[:, None].float() if observations is None else observations
    ends = None if ended is None else torch.isin(torch.arange(len(actions)), torch.tensor(ended))
    return Demonstrations("demos", seen, actions, ends)


def test_a_chunk_ends_with_its_episode() -> None:
    actions = torch.arange(7.0)[:, None] + torch.tensor([0.0, 0.5])
    _, chunks = split_into_chunks(demonstrations(actions, [2, 5]), 3)
    assert chunks[:, ::2].tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [3, 4, 5], [4, 5, 5], [5, 5, 5], [6, 6, 6]]
    torch.testing.assert_close(chunks[:, 1::2], chunks[:, ::2] + 0.5)
    with pytest.raises(UsageError, match="ended"):
        split_into_chunks(demonstrations(actions, None), 2)
    assert split_into_chunks(demonstrations(actions, None), 1)[1].shape == (7, 2)


def test_a_constant_velocity_moves_the_noise_by_itself() -> None:
    observations, chunks = torch.randn(50, 3), 4.0 + 2.0 * torch.randn(50, 2)
    flow = Flow(observations, chunks, (8,))
    torch.nn.init.zeros_(flow.network[-1].weight)
    flow.network[-1].bias.data = torch.tensor([0.3, -0.2])
    noise = 0.1 * torch.randn(5, 2)
    wanted = (noise + torch.tensor([0.3, -0.2])) * chunks.std(0) + chunks.mean(0)
    torch.testing.assert_close(flow(observations[:5], noise), wanted)


def test_a_constant_observation_that_later_moves_a_little_is_a_small_input() -> None:
    observations, chunks = torch.randn(50, 2), torch.randn(50, 2)
    observations[:, 1] = 0.3
    flow = Flow(observations, chunks, (8,))
    before, after = flow(torch.tensor([[0.0, 0.3], [0.0, 0.301]]), torch.zeros(2, 2))
    torch.testing.assert_close(before, after, rtol=0.0, atol=0.01)
    assert flow.observation_std[0] == observations[:, 0].std()


def test_a_flow_has_no_smallest_unit() -> None:
    observations, chunks = 1e-6 * torch.randn(50, 2), 1e-6 * torch.randn(50, 2)
    flow = Flow(observations, chunks, (8,))
    torch.testing.assert_close(flow.observation_std, observations.std(0), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(flow.action_std, chunks.std(0), rtol=1e-6, atol=0.0)


@pytest.mark.long
def test_a_fitted_flow_has_the_distribution_of_the_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways, at o + 1 and o − 1, one three times as frequent as the other: no Gaussian has them."""
    monkeypatch.setattr(flows, "STEPS", 1500)
    monkeypatch.setattr(flows, "LEARNING_RATE", 3e-3)
    generator = torch.Generator().manual_seed(0)
    observations = torch.rand(4000, 1, generator=generator)
    sides = torch.where(torch.rand(4000, 1, generator=generator) < 0.75, 1.0, -1.0)
    actions = observations + sides + 0.1 * torch.randn(4000, 1, generator=generator)
    torch.manual_seed(0)
    flow = Flow(observations, actions, (64, 64))
    fit_flow(flow, observations, actions, generator, lambda _: None)
    for seen in (0.1, 0.9):
        with torch.no_grad():
            decoded = flow(torch.full((4000, 1), seen), torch.randn(4000, 1, generator=generator)) - seen
        assert float((decoded > 0.0).float().mean()) == pytest.approx(0.75, abs=0.05)
        for side in (1.0, -1.0):
            near = decoded[torch.sign(decoded) == side]
            assert float(near.median()) == pytest.approx(side, abs=0.15)
        assert float((decoded.abs() < 0.5).float().mean()) < 0.1  # a Gaussian has a third there


ACTIONS = torch.linspace(-2.0, 3.0, 400).sin().reshape(200, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[FlowFit, Flow]:
    """A graph of a flow, and the flow itself."""
    kept, file = [], tmp_path_factory.mktemp("flow") / "flow.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "STEPS", 20)
        patch.setattr(flows, "onnx_graph", quick_graph)
        patch.setattr(flows, "fit_flow", lambda flow, *rest: kept.append(flow) or fit_flow(flow, *rest))
        return imitate_flow(demonstrations(ACTIONS, [99]), file, chunk=3, hidden=(16,)), kept[0]


def test_its_graph_is_a_decoder_and_equals_the_module(made: tuple[FlowFit, Flow]) -> None:
    flowed, flow = made
    assert (flowed.noise, flowed.chunk, flowed.chunks) == (6, 3, 200)
    observations, noise = torch.randn(5, 1) * 100.0, torch.randn(5, 6)
    decoded = load_decoder(str(flowed.file), 6, 3)(observations.numpy(), noise.numpy())
    np.testing.assert_allclose(decoded, flow(observations, noise).detach(), atol=1e-5)
    assert flowed.env == "", "none was named"
    with pytest.raises(UsageError, match="is there already"):
        imitate_flow(demonstrations(ACTIONS, [99]), flowed.file)


def test_the_command_to_go_on_with_names_the_part_that_was_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows, "STEPS", 2)
    monkeypatch.setattr(flows, "onnx_graph", quick_graph)
    np.savez("demos.npz", observations=np.random.default_rng(0).normal(size=(200, 3)), actions=np.ones((200, 1)))
    code, _, err = typed(capsys, "imitate", "demos.npz", "--flow", "--env", tiny("Groups"))
    assert (code, err.splitlines()[-1].count(f"--env '{tiny('Groups')}?observe=privileged'")) == (0, 1)


def test_what_no_flow_can_be_fitted_to_or_written_into_is_refused(tmp_path: Path) -> None:
    numbers, choices = torch.randn(200, 1), torch.ones(200, 1, dtype=torch.int64)
    for actions, name, chunk, word in (
        (numbers, "flow.pt", 1, ".onnx"),
        (numbers, "flow.onnx", 0, "chunk is 0"),
        (choices, "flow.onnx", 1, "choices"),
    ):
        with pytest.raises(UsageError, match=word):
            imitate_flow(demonstrations(actions, []), tmp_path / name, chunk=chunk)
        assert not (tmp_path / name).exists()


def test_a_policy_and_its_decoder_are_one_graph(
    made: tuple[FlowFit, Flow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise it gives the mode's actions, and with it the policy's own samples."""
    monkeypatch.setattr(decoders, "onnx_graph", quick_graph)
    policy = standard_normal(1, 6)
    torch.nn.init.normal_(policy.network.weights[-1])
    policy.log_std.data = torch.linspace(-1.0, 0.5, 6)
    assert export_composed(policy, made[0].file, 6, 3, tmp_path / "whole.onnx") < 1e-5
    observations, noise = torch.randn(5, 1), torch.randn(5, 6)
    with torch.no_grad():
        found = policy(observations)
    chosen = found.mean + found.log_std.exp() * noise
    decoded = load_decoder(made[0].file, 6, 3)(observations.numpy(), chosen.numpy())
    whole = onnx_runner((tmp_path / "whole.onnx").read_bytes())
    graph = onnx.load(tmp_path / "whole.onnx").graph
    assert [each.name for each in (*graph.input, *graph.output)] == ["observations", "noise", "actions"]
    np.testing.assert_allclose(whole(observations.numpy(), noise.numpy()), decoded, atol=1e-5)
    assert np.abs(whole(observations.numpy(), 0.0 * noise.numpy()) - decoded).max() > 0.1
