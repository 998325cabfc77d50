"""Networks as the weight and the bias of each of their layers; and sums of networks that are one network again."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies.network import Mlp

Layers = Sequence[tuple[Tensor, Tensor]]
# Activations that other libraries' networks have as modules, too.
MODULES: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def layers_of(network: Mlp) -> Layers:
    """The layers of a network, without gradient."""
    if network.norms:
        raise UsageError("the policy's network has LayerNorms, and this takes none")
    pairs = zip(network.weights, network.biases, strict=True)
    return [(weight.detach(), bias.detach()) for weight, bias in pairs]


def load_layers(network: Mlp, layers: Layers) -> None:
    """Give a network these layers, which must be of its sizes."""
    weights, biases = zip(*layers, strict=True)
    network.load_state_dict(
        {f"weights.{index}": weight for index, weight in enumerate(weights)}
        | {f"biases.{index}": bias for index, bias in enumerate(biases)}
    )


def scaled(layers: Layers, factor: float | Tensor) -> Layers:
    """The layers of a network that gives `factor` times what this one gives; factors of its outputs are `[outputs]`."""
    *hidden, (weight, bias) = layers
    factor = torch.as_tensor(factor, dtype=weight.dtype)
    return [*hidden, (weight * factor.reshape(-1, 1), bias * factor)]


def side_by_side(one: Layers, other: Layers) -> Layers:
    """The layers of a network that gives the sum of what two networks of equally many layers give."""
    (first, *_), (second, *_) = one, other
    layers = [(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))]
    for (a, b), (c, d) in zip(one[1:-1], other[1:-1], strict=True):
        layers.append((torch.block_diag(a, c), torch.cat([b, d])))
    return [*layers, (torch.cat([one[-1][0], other[-1][0]], 1), one[-1][1] + other[-1][1])]
