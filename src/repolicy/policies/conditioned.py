"""A policy for every ω′ of a range: the network takes the position on a dial as one input more.

The position is log ω′, from −1 at the lower end of the range to 1 at the upper one, and stands behind an observation's
own numbers. At any one position it is an ordinary policy, `at(omega)`.
"""

import math
import warnings
from typing import Self

import torch

from repolicy.errors import UsageError
from repolicy.objective import Omegas
from repolicy.policies.film import FilmMlp
from repolicy.policies.normalizer import Normalizer
from repolicy.policies.policy import Policy, PolicySpec, frozen


class Conditioned(Policy):
    """Observations and a position, `[..., O + 1]`, to a distribution over actions. `spec` is that of each position."""

    network: FilmMlp

    def __init__(self, spec: PolicySpec, omegas: Omegas) -> None:
        super().__init__(spec)
        self.omegas, self.observation_size = omegas, spec.observation_size + 1
        self.normalizer = Normalizer(self.observation_size, spec.observation_bound)
        shared = self.log_std is not None and self.log_std.dim() == 1
        self.network = FilmMlp(
            spec.observation_size, spec.hidden, self.family.outputs(spec), spec.activation, last_gain=0.01,
            slope=spec.slope, norms=spec.norms, epsilon=spec.epsilon, spare=spec.actions.width if shared else 0,
        )  # fmt: skip

    @classmethod
    def begun(cls, prior: Policy, omegas: Omegas) -> "Conditioned":
        """The prior at every position."""
        made = cls(prior.spec, omegas)
        state = made.state_dict() | prior.state_dict()
        for name, neutral in (("mean", 0.0), ("var", 1.0)):  # positions are taken as they are
            own = state[f"normalizer.{name}"]
            state[f"normalizer.{name}"] = torch.cat([own, own.new_tensor([neutral])])
        made.load_state_dict(state)
        return made

    def alike(self) -> Self:
        return type(self)(self.spec, self.omegas)

    def at(self, omega: float) -> Policy:
        """The ordinary policy for this ω′; outside of the range, with a warning, that of the nearer end."""
        if said := self.beyond(omega):
            warnings.warn(said, stacklevel=2)
        return self.placed(self.omegas.place(omega))

    @torch.no_grad()
    def placed(self, place: float) -> Policy:
        """The ordinary policy at a position."""
        plain, state, own = Policy(self.spec), self.state_dict(), self.spec.observation_size
        state |= {f"normalizer.{name}": state[f"normalizer.{name}"][:own] for name in ("mean", "var")}
        plain.load_state_dict({name: state[name] for name in plain.state_dict()})
        spare = self.network.fold(place, plain.network)
        if plain.log_std is not None and len(spare):
            plain.log_std.add_(spare)
        return frozen(plain)

    def beyond(self, omega: float) -> str:
        """What a user must know of an ω′ outside of the range; empty for one inside."""
        if isinstance(omega, bool) or not isinstance(omega, int | float) or not 0 < omega < math.inf:
            raise UsageError(f"omega is {omega!r}; it must be a number above 0: this policy's go from {self.omegas}")
        if self.omegas.low <= omega <= self.omegas.high:
            return ""
        end = min(max(omega, self.omegas.low), self.omegas.high)
        return f"omega is {omega:g}, and this policy was trained from {self.omegas}: it acts as at {end:g}"
