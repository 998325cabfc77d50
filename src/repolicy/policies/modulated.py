"""Policies that are conditioned on dials, by FiLM (Perez et al., 2018).

Each dial adds an input to the network, a position from −1 to 1. Positions scale and shift the pre-activations of each
layer, so that at any fixed position the network is an ordinary one with other weights and biases (`fold`). The
modulations are polynomials in the positions. Their coefficients start at 0, so at first the dials have no effect.
"""

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import Normalizer
from repolicy.policies.policy import Policy, PolicySpec, frozen, make_policy, with_torch_defaults
from repolicy.ranges import Dial

DEGREE = 4  # of the polynomials: enough for one or two bends over the range of a dial


@cache
def exponents(dials: int) -> Tensor:
    """Return the degrees `[K, dials]` of all polynomials of a total degree from 1 to `DEGREE`."""
    return torch.tensor([each for each in product(range(DEGREE + 1), repeat=dials) if 0 < sum(each) <= DEGREE])


def polynomials(positions: Tensor) -> Tensor:
    """Return the Chebyshev polynomials of positions `[B, dials]`, clipped to ±1, and their products, `[B, K]`."""
    degrees = torch.arange(1, DEGREE + 1, dtype=positions.dtype, device=positions.device)
    by_dial = torch.cos(torch.arccos(positions.clamp(-1.0, 1.0)).unsqueeze(-1) * degrees).unbind(-2)
    with_constant = [torch.cat([torch.ones_like(each[:, :1]), each], 1) for each in by_dial]
    columns = exponents(len(by_dial)).unbind(1)
    return torch.stack([each[:, column] for each, column in zip(with_constant, columns, strict=True)]).prod(0)


class FilmMlp(Mlp):
    """A network `[B, inputs + dials]` to `[B, outputs + spare]`, whose last inputs are positions on dials.

    The spare outputs depend on the positions alone: a policy adds them to a std that all states share.
    """

    _ones: Tensor  # the modulations without any effect: 1 for each scale, 0 for each shift and spare output

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        activation: str = "tanh",
        *,
        spare: int = 0,
        dials: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(inputs, hidden, outputs, activation, **options)
        self.dials = dials
        stops = [0]  # the modulations lie side by side: scales and shifts of each layer, then the spare outputs
        for size in (*hidden, outputs):
            stops += [stops[-1] + size, stops[-1] + 2 * size]
        width = stops[-1] + spare
        slices = [slice(*pair) for pair in pairwise([*stops, width])]
        self.scales, self.shifts, self._spare = slices[:-1:2], slices[1:-1:2], slices[-1]
        self.film = nn.Parameter(torch.zeros(len(exponents(dials)), width))
        ones = torch.zeros(width)
        for scale in self.scales:
            ones[scale] = 1.0
        self.register_buffer("_ones", ones, persistent=False)

    def films(self, positions: Tensor) -> Tensor:
        """Return scales, shifts and spare outputs at positions `[B, dials]`, side by side."""
        return torch.addmm(self._ones, polynomials(positions), self.film)

    @torch.no_grad()
    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        super().rescale(factor, offset)
        scale, shift = self.scales[-1], self.shifts[-1]
        self.film[:, shift].mul_(factor).sub_(self.film[:, scale] * offset)  # the scale must not change the offset

    @torch.no_grad()
    def fold(self, positions: Sequence[float], plain: Mlp) -> Tensor:
        """Write this network at fixed positions into `plain`, a network without dials; return the spare outputs."""
        (films,) = self.films(torch.tensor([[*positions]]))
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            scale, shift = films[self.scales[index]], films[self.shifts[index]]
            norm, plain_norm = self.norm(index), plain.norm(index)
            if norm is None or plain_norm is None or norm.place != "before":
                plain.weights[index].copy_(weight * scale.unsqueeze(-1))
                plain.biases[index].copy_(bias * scale + shift)
                if norm is not None and plain_norm is not None:
                    plain_norm.load_state_dict(norm.state_dict())
            else:  # the modulation follows the LayerNorm, so it changes that one's weight and bias
                plain.weights[index].copy_(weight)
                plain.biases[index].copy_(bias)
                plain_norm.weight.copy_(norm.weight * scale)
                plain_norm.bias.copy_(norm.bias * scale + shift)
        return films[self._spare]

    def snapshot(self) -> Callable[..., np.ndarray]:
        """Return the current network in NumPy. It stores the modulations, as positions change seldom."""
        run_layers, film, first_dial = super().snapshot(), self.film.detach().clone(), -self.dials
        positions, films = np.empty(0), np.empty(0)

        def run(inputs: np.ndarray) -> np.ndarray:
            nonlocal positions, films
            if not np.array_equal(positions, inputs[:, first_dial:]):
                positions = inputs[:, first_dial:].copy()
                films = torch.addmm(self._ones, polynomials(torch.from_numpy(positions)), film).numpy()
            outputs = run_layers(np.ascontiguousarray(inputs[:, :first_dial]), films)
            spare = films[:, self._spare]
            return np.concatenate([outputs, spare], 1) if spare.shape[1] else outputs

        return run

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]  # the films come from the inputs
        flat = inputs.reshape(-1, inputs.shape[-1])
        films = self.films(flat[:, -self.dials :])
        values = super().forward(flat[:, : -self.dials].contiguous(), films)
        return torch.cat([values, films[:, self._spare]], -1).reshape(*inputs.shape[:-1], -1)


class ConditionedPolicy(Policy):
    """A policy for every value of its dials: it takes observations and positions, `[..., O + dials]`.

    `spec` describes the ordinary policy that it is at any fixed position.
    """

    network: FilmMlp

    def __init__(self, spec: PolicySpec, dials: Sequence[Dial]) -> None:
        super().__init__(spec)
        self.dials, self.observation_size = tuple(dials), spec.observation_size + len(dials)
        self.normalizer = Normalizer(self.observation_size, spec.observation_bound)
        has_shared_std = self.log_std is not None and self.log_std.dim() == 1
        self.network = FilmMlp(
            spec.observation_size, spec.hidden, self.family.output_size(spec), spec.activation, last_gain=0.01,
            slope=spec.slope, norms=spec.norms, epsilon=spec.epsilon, spare=spec.actions.width if has_shared_std else 0,
            dials=len(dials),
        )  # fmt: skip

    @classmethod
    def from_prior(cls, prior: Policy, dials: Sequence[Dial]) -> "ConditionedPolicy":
        """Return a conditioned policy that equals the prior at every position."""
        policy = cls(prior.spec, dials)
        state = policy.state_dict() | prior.state_dict()
        for name, neutral in (("mean", 0.0), ("var", 1.0)):  # positions are not normalized
            statistic = state[f"normalizer.{name}"]
            state[f"normalizer.{name}"] = torch.cat([statistic, statistic.new_full((len(policy.dials),), neutral)])
        policy.load_state_dict(state)
        policy.groups = prior.groups
        return policy

    def reinitialized(self) -> Self:
        return type(self)(self.spec, self.dials)

    def at(self, value: float | None = None, /, **values: float) -> Policy:
        """Return the ordinary policy at a value of each dial, given by name, or by number if there is only one dial.

        A value outside of a dial's range counts as the nearer end, with a warning.
        """
        by_name = self.dial_values(value, values)
        if warning := self.range_warning(by_name):
            warnings.warn(warning, stacklevel=2)
        return self.at_positions([dial.place(by_name[dial.name]) for dial in self.dials])

    def dial_values(self, value: float | None, values: Mapping[str, float]) -> dict[str, float]:
        """Return a value for each dial by name, from the arguments of `at`; raise unless there is exactly one each."""
        names = [dial.name for dial in self.dials]
        if value is not None and not values and len(names) == 1:
            return {names[0]: value}
        if value is not None or {*values} != {*names}:
            example = ", ".join(f"{dial.name} = {dial.value(0.0):.3g}" for dial in self.dials)
            raise UsageError(f"this policy has {self.dials_description}: name one value for each, such as {example}")
        return dict(values)

    @property
    def dials_description(self) -> str:
        """The dials in words, such as `the dial omega from 0.1 to 3`."""
        return f"the dial{'s' * (len(self.dials) > 1)} {' and '.join(map(str, self.dials))}"

    def predict(self, observation: Any, *args: Any, **options: Any) -> tuple[np.ndarray, None]:
        if np.shape(observation)[-1:] == (self.spec.observation_size,):
            raise UsageError(self.missing_dials_message())
        return super().predict(observation, *args, **options)

    def missing_dials_message(self, subject: str = "the policy") -> str:
        """Return a message that the values of the dials are missing, with an example."""
        middle = {dial.name: float(f"{dial.value(0.0):.3g}") for dial in self.dials}
        if len(middle) == 1:
            options = arguments = [f"{value:g}" for value in middle.values()]
        else:
            options = [f"{name}={value:g}" for name, value in middle.items()]
            arguments = options if all(map(str.isidentifier, middle)) else [f"**{middle}"]
        command = shlex.join(word for option in options for word in ("--at", option))
        return (
            f"{subject} is one for every {' and '.join(map(str, self.dials))}, so it must be told which: `repolicy "
            f"dial FILE {command} --out POLICY` keeps one as a file; in Python, policy.at({', '.join(arguments)})"
        )

    @with_torch_defaults()
    @torch.no_grad()
    def at_positions(self, positions: Sequence[float]) -> Policy:
        """Return the ordinary policy at a position from −1 to 1 on each dial."""
        plain, state, size = make_policy(self.spec, 0), self.state_dict(), self.spec.observation_size
        state |= {f"normalizer.{name}": state[f"normalizer.{name}"][:size] for name in ("mean", "var")}
        plain.load_state_dict({name: state[name] for name in plain.state_dict()})
        plain.groups = self.groups
        spare = self.network.fold(positions, plain.network)
        if plain.log_std is not None and len(spare):
            plain.log_std.add_(spare)
        return frozen(plain)

    def range_warning(self, values: Mapping[str, float]) -> str:
        """Return a warning about the values that are outside of their dial's range; empty if there are none."""
        return "; ".join(filter(None, (dial.range_warning(values[dial.name]) for dial in self.dials)))
