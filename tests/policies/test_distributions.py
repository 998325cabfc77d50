"""Distributions and networks against torch's own, and against integration where torch has no answer."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as reference

from repolicy.policies.distributions import Categorical, Gaussian, SquashedGaussian
from repolicy.policies.network import ACTIVATIONS, Mlp, flatten

BATCH, WIDTH = 5, 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs() -> list[Any]:
    """(mean, log_std) of two Gaussians: with one std for all states, and with one for each."""
    return [
        pytest.param((random(BATCH, WIDTH), random(WIDTH, seed=1)), id="one std"),
        pytest.param((random(BATCH, WIDTH), random(BATCH, WIDTH, seed=1)), id="a std for each state"),
    ]


def as_torch(mean: Tensor, log_std: Tensor) -> Any:
    return reference.Independent(reference.Normal(mean, log_std.exp().expand(mean.shape)), 1)


@pytest.mark.parametrize("parameters", pairs())
def test_gaussian_is_torchs(parameters: Any) -> None:
    ours, theirs = Gaussian(*parameters), as_torch(*parameters)
    actions = random(BATCH, WIDTH, seed=2)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-13, atol=1e-13)
    other = random(BATCH, WIDTH, seed=3), random(*parameters[1].shape, seed=4)
    kl = reference.kl_divergence(theirs, as_torch(*other))
    torch.testing.assert_close(ours.kl(Gaussian(*other)), kl, rtol=1e-12, atol=1e-12)
    assert torch.equal(ours.mode(), parameters[0])


def test_gaussian_samples() -> None:
    mean, log_std = torch.tensor([1.0, -2.0]).expand(100_000, 2), torch.tensor([0.5, 3.0]).log()
    drawn = Gaussian(mean, log_std).sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), mean[0], atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.std(0), log_std.exp(), atol=0, rtol=0.01)
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 0.01


@pytest.mark.parametrize(
    "made",
    [
        Gaussian(random(BATCH, WIDTH), random(WIDTH)),
        SquashedGaussian(random(BATCH, WIDTH), random(BATCH, WIDTH)),
        Categorical(random(BATCH, 5), (2, 3)),
    ],
)
def test_sampling_repeats_with_its_generator(made: Any) -> None:
    first, second, other = (made.sample(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert made.log_prob(first).shape == made.entropy().shape == made.kl(made).shape == (BATCH,)
    torch.testing.assert_close(made.kl(made), torch.zeros(BATCH, dtype=torch.float64), atol=1e-14, rtol=0)


def test_one_choice_may_come_without_an_axis_of_its_own() -> None:
    made = Categorical(random(BATCH, 5), (5,))
    chosen = made.sample()
    assert torch.equal(made.log_prob(chosen.squeeze(-1)), made.log_prob(chosen))
    with pytest.raises(RuntimeError):  # of two choices there would be no telling which it is
        Categorical(random(BATCH, 5), (2, 3)).log_prob(chosen.squeeze(-1))


# Squashed -------------------------------------------------------------------------------------------------------------
GRID = torch.linspace(-30.0, 30.0, 400_001, dtype=torch.float64)  # values before tanh


def integral(integrand: Tensor) -> float:
    return float(torch.trapezoid(integrand, GRID))


def squashed(mean: float, std: float) -> tuple[SquashedGaussian, Tensor, Tensor]:
    """One, its log-density at the grid in the box, and its probability mass a unit of the grid."""
    centre, spread = torch.tensor([[mean]], dtype=torch.float64), torch.tensor([std], dtype=torch.float64)
    made = SquashedGaussian(centre, spread.log())
    mass = reference.Normal(centre[0], spread).log_prob(GRID).exp()
    return made, made.log_prob(GRID[:, None]), mass


@pytest.mark.parametrize("parameters", pairs())
def test_squashed_is_torchs(parameters: Any) -> None:
    actions = random(BATCH, WIDTH, seed=2)
    theirs = reference.TransformedDistribution(as_torch(*parameters), reference.TanhTransform())
    torch.testing.assert_close(
        SquashedGaussian(*parameters).log_prob(actions), theirs.log_prob(actions.tanh()), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.2), (-1.5, 0.5), (0.0, 1.5), (3.0, 1.0), (0.0, 2.0)])
def test_squashed_entropy_by_integration(mean: float, std: float) -> None:
    """H = −∫ p(a) log p(a) da over the box, with da = tanh′(u) du."""
    made, log_density, mass = squashed(mean, std)
    slope = 1.0 - GRID.tanh().square()
    assert integral(log_density.exp() * slope) == pytest.approx(1.0, abs=1e-6)  # it is a density in the box
    assert float(made.entropy()) == pytest.approx(-integral(mass * log_density), abs=2e-5 if std < 2.0 else 2e-4)


def test_squashed_entropy_adds_up_over_numbers() -> None:
    mean, log_std = random(BATCH, WIDTH), random(WIDTH, seed=1).mul(0.3)
    whole = SquashedGaussian(mean, log_std).entropy()
    parts = [SquashedGaussian(mean[:, i : i + 1], log_std[i : i + 1]).entropy() for i in range(WIDTH)]
    torch.testing.assert_close(whole, torch.stack(parts).sum(0))


def test_squashed_kl_by_integration() -> None:
    one, one_density, mass = squashed(0.4, 0.6)
    two, two_density, _ = squashed(-0.2, 0.9)
    assert float(one.kl(two)) == pytest.approx(integral(mass * (one_density - two_density)), abs=1e-8)


def test_squashed_survives_far_out() -> None:
    made = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1))
    far = made.log_prob(torch.tensor([[40.0], [-40.0]]))
    assert torch.isfinite(far).all()
    torch.testing.assert_close(far[0], far[1])


# Categorical ----------------------------------------------------------------------------------------------------------
def test_categorical_is_torchs_head_by_head() -> None:
    sizes, logits, other = (2, 3, 4), random(BATCH, 9), random(BATCH, 9, seed=1)
    heads = [reference.Categorical(logits=part) for part in logits.split(sizes, -1)]
    others = [reference.Categorical(logits=part) for part in other.split(sizes, -1)]
    actions = torch.stack([head.sample() for head in heads], -1)
    ours = Categorical(logits, sizes)
    log_prob = sum(head.log_prob(actions[:, i]) for i, head in enumerate(heads))
    torch.testing.assert_close(ours.log_prob(actions), log_prob)
    torch.testing.assert_close(ours.entropy(), sum(head.entropy() for head in heads))
    kl = sum(reference.kl_divergence(mine, theirs) for mine, theirs in zip(heads, others, strict=True))
    torch.testing.assert_close(ours.kl(Categorical(other, sizes)), kl)
    assert torch.equal(ours.mode(), torch.stack([part.argmax(-1) for part in logits.split(sizes, -1)], -1))


def test_categorical_samples() -> None:
    logits = random(1, 5).expand(60_000, 5)
    drawn = Categorical(logits, (2, 3)).sample(torch.Generator().manual_seed(0))
    assert drawn.shape == (60_000, 2)
    for head, part in enumerate(logits[0].split((2, 3))):
        found = torch.bincount(drawn[:, head], minlength=len(part)) / len(drawn)
        torch.testing.assert_close(found.double(), part.softmax(-1), atol=0.01, rtol=0)


PLAIN = {"tanh": nn.Tanh(), "relu": nn.ReLU(), "elu": nn.ELU(), "swish": nn.SiLU(), "gelu": nn.GELU()}
PLAIN |= {"gelu_tanh": nn.GELU("tanh"), "leaky_relu": nn.LeakyReLU(0.2)}


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
            theirs = nn.LayerNorm(len(weight), norm.eps, dtype=weight.dtype)
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
def test_values_are_the_plain_networks_and_a_snapshot_keeps_them(
    activation: str, hidden: tuple[int, ...], norms: tuple[str, ...]
) -> None:
    mlp = network(activation, hidden, norms)
    inputs = 2.0 * torch.randn(32, 4, dtype=torch.float64)
    before, expected = inputs.clone(), mlp(inputs).detach()
    torch.testing.assert_close(expected, plain(mlp)(inputs), rtol=1e-12, atol=1e-12)
    snapshot = mlp.snapshot()
    for parameter in mlp.parameters():
        parameter.data.add_(1.0)
    torch.testing.assert_close(torch.from_numpy(snapshot(inputs.numpy())), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(inputs, before)


def test_a_snapshot_is_as_silent_as_torch_where_numbers_overflow() -> None:
    mlp = Mlp(4, (8,), 2, "relu")
    mlp.weights[0].data.fill_(1.0)
    assert not torch.from_numpy(mlp.snapshot()(torch.full((1, 4), 3e38).numpy())).isfinite().any()


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
