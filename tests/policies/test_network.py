"""The hand-written network against the plain one of torch, and the flat layout of its parameters."""

import math

import pytest
import torch
from torch import nn

from repolicy.policies.network import ACTIVATIONS, Mlp, flatten

PLAIN = {
    "tanh": nn.Tanh(),
    "relu": nn.ReLU(),
    "elu": nn.ELU(),
    "swish": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "leaky_relu": nn.LeakyReLU(0.2),
}


def network(activation: str, hidden: tuple[int, ...], norms: tuple[str, ...] = ()) -> Mlp:
    return randomised(Mlp(4, hidden, 3, activation, slope=0.2, norms=norms, epsilon=1e-3).double())


def plain(mlp: Mlp) -> nn.Sequential:
    """The same network from torch's own layers."""
    layers: list[nn.Module] = []
    for index, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        layers.append(layer)
        norm = mlp.norm(index)
        if norm is not None:
            theirs = nn.LayerNorm(len(weight), norm.epsilon, dtype=weight.dtype)
            theirs.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
            layers += [theirs, PLAIN[mlp.activation]] if norm.place == "before" else [PLAIN[mlp.activation], theirs]
        elif index < len(mlp.weights) - 1:
            layers.append(PLAIN[mlp.activation])
    return nn.Sequential(*layers)


def randomised(mlp: Mlp) -> Mlp:
    for parameter in [*mlp.biases, *mlp.norms.parameters()]:
        nn.init.normal_(parameter)
    return mlp


SHAPES = [(8,), (16, 5), (6, 7, 8), (1,), ()]
NORMS = [("swish", (6, 5), ("before", "after")), ("tanh", (6, 5, 4), ("", "before", "after"))]
EVERY = [(activation, hidden, ()) for activation in ACTIVATIONS for hidden in SHAPES] + NORMS


@pytest.mark.parametrize(("activation", "hidden", "norms"), EVERY)
def test_values_and_gradients_are_the_plain_networks(
    activation: str, hidden: tuple[int, ...], norms: tuple[str, ...]
) -> None:
    ours = network(activation, hidden, norms)
    theirs = plain(ours)
    inputs = torch.randn(32, 4, dtype=torch.float64)
    here, there = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    torch.testing.assert_close(ours(here), theirs(there), rtol=1e-12, atol=1e-12)
    ours(here).square().sum().backward()
    theirs(there).square().sum().backward()
    torch.testing.assert_close(here.grad, there.grad, rtol=1e-10, atol=1e-10)
    linear = [layer for layer in theirs if isinstance(layer, nn.Linear)]
    for index, layer in enumerate(linear):
        torch.testing.assert_close(ours.weights[index].grad, layer.weight.grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.biases[index].grad, layer.bias.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("activation", "hidden", "norms"), EVERY)
def test_a_snapshot_gives_the_same_values_and_stays_as_it_was(
    activation: str, hidden: tuple[int, ...], norms: tuple[str, ...]
) -> None:
    mlp = network(activation, hidden, norms)
    inputs = 2.0 * torch.randn(32, 4, dtype=torch.float64)
    expected = mlp(inputs).detach()
    snapshot, before = mlp.snapshot(), inputs.clone()
    for parameter in mlp.parameters():
        parameter.data.add_(1.0)
    torch.testing.assert_close(torch.from_numpy(snapshot(inputs.numpy())), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(inputs, before)


def test_inputs_stay_as_they_were_and_may_have_any_leading_shape() -> None:
    mlp = Mlp(4, (8,), 2, "relu")
    inputs = torch.randn(3, 5, 4)
    before = inputs.clone()
    outputs = mlp(inputs)
    assert torch.equal(inputs, before)
    assert outputs.shape == (3, 5, 2)
    torch.testing.assert_close(outputs[1, 2], mlp(inputs[1, 2][None])[0])


def test_weights_begin_orthogonal() -> None:
    mlp = Mlp(16, (16, 16), 4, last_gain=0.01)
    for weight, gain in zip(mlp.weights, (math.sqrt(2.0), math.sqrt(2.0), 0.01), strict=True):
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), atol=1e-5, rtol=0)
    assert not any(bias.any() for bias in mlp.biases)


def test_flat_parameters_are_views() -> None:
    mlp = Mlp(4, (8, 8), 2)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in mlp.parameters()]).clone()
    values, gradients = flatten(mlp.parameters(), extra=5)
    assert torch.equal(values, expected)
    assert gradients.shape == (len(values) + 5,)

    mlp(torch.randn(7, 4)).sum().backward()
    assert torch.equal(gradients[:-5], torch.cat([p.grad.reshape(-1) for p in mlp.parameters() if p.grad is not None]))
    assert gradients[:-5].any()
    assert not gradients[-5:].any()

    inputs = torch.randn(7, 4)
    before = mlp(inputs)
    values.mul_(0.5)  # changes the network itself
    assert not torch.equal(mlp(inputs), before)
    assert all(p.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() for p in mlp.parameters())
