"""A network with inputs more, positions from −1 to 1, which scale and shift what each of its layers computes.

Before the activation, so that at any one position the network is an ordinary one with other weights and biases. (FiLM:
Perez et al., 2018.) Scales and shifts are polynomials in the positions, without a constant, and 0 at the beginning.
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
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.ranges import Dial

DEGREE = 4  # of the polynomials: enough for a bend or two over the range


@cache
def exponents(dials: int) -> Tensor:
    """Return the degrees `[K, dials]` of all products that add up to at most `DEGREE`, but the constant."""
    return torch.tensor([each for each in product(range(DEGREE + 1), repeat=dials) if 0 < sum(each) <= DEGREE])


def polynomials(places: Tensor) -> Tensor:
    """Return products of Chebyshev's polynomials of positions `[B, dials]`: `[B, len(exponents(dials))]`.

    Of one position they are those of degrees 1 to `DEGREE`. Beyond ±1 they are those of ±1.
    """
    degrees = torch.arange(1, DEGREE + 1, dtype=places.dtype, device=places.device)
    powers = torch.cos(torch.arccos(places.clamp(-1.0, 1.0)).unsqueeze(-1) * degrees).unbind(-2)
    if len(powers) == 1:
        return powers[0]
    whole = [torch.cat([torch.ones_like(each[:, :1]), each], 1) for each in powers]
    columns = exponents(len(powers)).unbind(1)
    return torch.stack([each[:, column] for each, column in zip(whole, columns, strict=True)]).prod(0)


class FilmMlp(Mlp):
    """`[B, inputs + dials]` to `[B, outputs + spare]`: the last inputs are the positions.

    The spare outputs are polynomials in them, which read nothing else.
    """

    _ones: Tensor

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        *options: Any,
        spare: int = 0,
        dials: int = 1,
        **more: Any,
    ) -> None:
        super().__init__(inputs, hidden, outputs, *options, **more)
        self.dials = dials
        ends = [0]
        for size in (*hidden, outputs):
            ends += [ends[-1] + size, ends[-1] + 2 * size]
        slices = [slice(*pair) for pair in pairwise([*ends, ends[-1] + spare])]
        self.scales, self.shifts, self._spare = slices[:-1:2], slices[1:-1:2], slices[-1]
        self.film = nn.Parameter(torch.zeros(len(exponents(dials)), ends[-1] + spare))
        ones = torch.zeros(ends[-1] + spare)  # what the polynomials are added to
        for scale in self.scales:
            ones[scale] = 1.0
        self.register_buffer("_ones", ones, persistent=False)

    def films(self, places: Tensor) -> Tensor:
        """Return scales, shifts and spare outputs at positions `[B, dials]`, side by side."""
        return torch.addmm(self._ones, polynomials(places), self.film)

    @torch.no_grad()
    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        super().rescale(factor, offset)  # what a scale does to the offset, a shift takes back
        scale, shift = self.scales[-1], self.shifts[-1]
        self.film[:, shift].mul_(factor).sub_(self.film[:, scale] * offset)

    @torch.no_grad()
    def fold(self, places: Sequence[float], into: Mlp) -> Tensor:
        """Give `into`, a network without dials, the weights of this one at a position. Returns the spare outputs."""
        (films,) = self.films(torch.tensor([[*places]]))
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            scale, shift, norm = films[self.scales[index]], films[self.shifts[index]], self.norm(index)
            before = norm is not None and norm.place == "before"
            into.weights[index].copy_(weight if before else weight * scale.unsqueeze(-1))
            into.biases[index].copy_(bias if before else bias * scale + shift)
            if norm is not None and (folded := into.norm(index)) is not None:
                folded.weight.copy_(norm.weight * scale if before else norm.weight)
                folded.bias.copy_(norm.bias * scale + shift if before else norm.bias)
        return films[self._spare]

    def snapshot(self) -> Callable[..., np.ndarray]:
        """Return the network as it is now, in NumPy; positions change seldom, so their scales and shifts are kept."""
        through, film, own = super().snapshot(), self.film.detach().clone(), -self.dials
        places, films = np.empty(0), np.empty(0)

        def run(inputs: np.ndarray) -> np.ndarray:
            nonlocal places, films
            if not np.array_equal(places, inputs[:, own:]):
                places = inputs[:, own:].copy()
                films = torch.addmm(self._ones, polynomials(torch.from_numpy(places)), film).numpy()
            values, spare = through(np.ascontiguousarray(inputs[:, :own]), films), films[:, self._spare]
            return np.concatenate([values, spare], 1) if spare.shape[1] else values

        return run

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        films = self.films(flat[:, -self.dials :])
        values = self.through(flat[:, : -self.dials].contiguous(), films)
        return torch.cat([values, films[:, self._spare]], -1).reshape(*inputs.shape[:-1], -1)


# A policy for every weight of a range: the network takes the position on one or several dials as inputs more ----------


class ConditionedPolicy(Policy):
    """Observations and positions, `[..., O + dials]`, to a distribution over actions. `spec` is each position's."""

    network: FilmMlp

    def __init__(self, spec: PolicySpec, dials: Sequence[Dial]) -> None:
        super().__init__(spec)
        self.dials, self.observation_size = tuple(dials), spec.observation_size + len(dials)
        self.normalizer = Normalizer(self.observation_size, spec.observation_bound)
        shared = self.log_std is not None and self.log_std.dim() == 1
        self.network = FilmMlp(
            spec.observation_size, spec.hidden, self.family.outputs(spec), spec.activation, last_gain=0.01,
            slope=spec.slope, norms=spec.norms, epsilon=spec.epsilon, spare=spec.actions.width if shared else 0,
            dials=len(dials),
        )  # fmt: skip

    @classmethod
    def from_prior(cls, prior: Policy, dials: Sequence[Dial]) -> "ConditionedPolicy":
        """Return the prior at every position."""
        made = cls(prior.spec, dials)
        state = made.state_dict() | prior.state_dict()
        for name, neutral in (("mean", 0.0), ("var", 1.0)):  # positions are taken as they are
            own = state[f"normalizer.{name}"]
            state[f"normalizer.{name}"] = torch.cat([own, own.new_full((len(made.dials),), neutral)])
        made.load_state_dict(state)
        return made

    def reinitialized(self) -> Self:
        return type(self)(self.spec, self.dials)

    def at(self, value: float | None = None, /, **values: float) -> Policy:
        """Return the ordinary policy at a value of each dial, by its name; of one dial, the value is enough.

        Outside of a range, with a warning, that of the nearer end.
        """
        chosen = self.dial_values(value, values)
        if warning := self.beyond(chosen):
            warnings.warn(warning, stacklevel=2)
        return self.at_positions([dial.place(chosen[dial.name]) for dial in self.dials])

    def dial_values(self, value: float | None, values: Mapping[str, float]) -> dict[str, float]:
        """Return a value for each dial, from one number or from names; refused where it is not exactly that."""
        names = [dial.name for dial in self.dials]
        if value is not None and not values and len(names) == 1:
            return {names[0]: value}
        if value is not None or {*values} != {*names}:
            example = ", ".join(f"{dial.name} = {dial.value(0.0):.3g}" for dial in self.dials)
            raise UsageError(f"this policy has {self.dials_description}: name one value for each, such as {example}")
        return dict(values)

    @property
    def dials_description(self) -> str:
        """`the dial omega from 0.1 to 3`, or of several dials."""
        return f"the dial{'s' * (len(self.dials) > 1)} {' and '.join(map(str, self.dials))}"

    def predict(self, observation: Any, *given: Any, **options: Any) -> tuple[np.ndarray, None]:
        if np.shape(observation)[-1:] == (self.spec.observation_size,):
            raise UsageError(self.missing_dials_message())
        return super().predict(observation, *given, **options)

    def missing_dials_message(self, what: str = "the policy") -> str:
        """Say that the positions on its dials are missing, and how to name them."""
        middle = {dial.name: float(f"{dial.value(0.0):.3g}") for dial in self.dials}
        if len(middle) == 1:
            places = given = [f"{value:g}" for value in middle.values()]
        else:
            places = [f"{name}={value:g}" for name, value in middle.items()]
            given = places if all(map(str.isidentifier, middle)) else [f"**{middle}"]
        words = shlex.join(word for place in places for word in ("--at", place))
        return (
            f"{what} is one for every {' and '.join(map(str, self.dials))}, so it must be told which: `repolicy dial "
            f"FILE {words} --out POLICY` keeps one as a file; in Python, policy.at({', '.join(given)})"
        )

    @torch.no_grad()
    def at_positions(self, places: Sequence[float]) -> Policy:
        """Return the ordinary policy at a position on each dial."""
        plain, state, own = Policy(self.spec), self.state_dict(), self.spec.observation_size
        state |= {f"normalizer.{name}": state[f"normalizer.{name}"][:own] for name in ("mean", "var")}
        plain.load_state_dict({name: state[name] for name in plain.state_dict()})
        spare = self.network.fold(places, plain.network)
        if plain.log_std is not None and len(spare):
            plain.log_std.add_(spare)
        return frozen(plain)

    def beyond(self, values: Mapping[str, float]) -> str:
        """Return what a user must know of values outside of their ranges; empty where none is."""
        return "; ".join(filter(None, (dial.beyond(values[dial.name]) for dial in self.dials)))
