"""A policy for every weight of a range: the network takes the position on one or several dials as inputs more.

A position goes from −1 at the lower end of the range to 1 at the upper one, and stands behind an observation's own
numbers. At any one position it is an ordinary policy, `at(0.3)` or `at(omega=0.3, quiet=1.5)`.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Self

import torch

from repolicy.errors import UsageError
from repolicy.policies.modulated import FilmMlp
from repolicy.policies.normalizer import Normalizer
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.ranges import Dial


class Conditioned(Policy):
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
    def begun(cls, prior: Policy, dials: Sequence[Dial]) -> "Conditioned":
        """The prior at every position."""
        made = cls(prior.spec, dials)
        state = made.state_dict() | prior.state_dict()
        for name, neutral in (("mean", 0.0), ("var", 1.0)):  # positions are taken as they are
            own = state[f"normalizer.{name}"]
            state[f"normalizer.{name}"] = torch.cat([own, own.new_full((len(made.dials),), neutral)])
        made.load_state_dict(state)
        return made

    def alike(self) -> Self:
        return type(self)(self.spec, self.dials)

    def at(self, value: float | None = None, /, **values: float) -> Policy:
        """The ordinary policy at a value of each dial, by its name; of one dial, the value is enough.

        Outside of a range, with a warning, that of the nearer end.
        """
        chosen = self.chosen(value, values)
        if warning := self.beyond(chosen):
            warnings.warn(warning, stacklevel=2)
        return self.placed([dial.place(chosen[dial.name]) for dial in self.dials])

    def chosen(self, value: float | None, values: Mapping[str, float]) -> dict[str, float]:
        """A value for each dial, from one number or from names; refused where it is not exactly that."""
        names = [dial.name for dial in self.dials]
        if value is not None and not values and len(names) == 1:
            return {names[0]: value}
        if value is not None or {*values} != {*names}:
            example = ", ".join(f"{dial.name} = {dial.value(0.0):.3g}" for dial in self.dials)
            raise UsageError(f"this policy has {self.words}: name one value for each, such as {example}")
        return dict(values)

    @property
    def words(self) -> str:
        """`the dial omega from 0.1 to 3`, or of several dials."""
        return f"the dial{'s' * (len(self.dials) > 1)} {' and '.join(map(str, self.dials))}"

    @torch.no_grad()
    def placed(self, places: Sequence[float]) -> Policy:
        """The ordinary policy at a position on each dial."""
        plain, state, own = Policy(self.spec), self.state_dict(), self.spec.observation_size
        state |= {f"normalizer.{name}": state[f"normalizer.{name}"][:own] for name in ("mean", "var")}
        plain.load_state_dict({name: state[name] for name in plain.state_dict()})
        spare = self.network.fold(places, plain.network)
        if plain.log_std is not None and len(spare):
            plain.log_std.add_(spare)
        return frozen(plain)

    def beyond(self, values: Mapping[str, float]) -> str:
        """What a user must know of values outside of their ranges; empty where none is."""
        return "; ".join(filter(None, (dial.beyond(values[dial.name]) for dial in self.dials)))
