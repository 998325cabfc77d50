"""What a run is asked for, and what else its result depends on."""

from dataclasses import dataclass
from typing import Any

from repolicy.engine.settings import Settings, checked
from repolicy.envs.step import Envs
from repolicy.objective import Objective
from repolicy.policies.policy import PolicySpec


@dataclass(frozen=True)
class Request:
    """What a run is asked for: all that its result depends on."""

    env: str
    objective: Objective
    settings: Settings
    addons: tuple[str, ...] = ()
    prior: str = ""  # the checksum of the prior's file, a copy of which lies in the run's folder
    sparse: bool = False  # whether an add-on may be constant over a trial

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "objective": self.objective.as_dict(),
            "settings": self.settings.as_dict(),
            "addons": list(self.addons),
            "prior": self.prior,
            "sparse": self.sparse,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Request":
        return cls(
            values["env"],
            Objective(**values["objective"]),
            Settings(**checked(values["settings"], "the run")),
            tuple(values["addons"]),
            values["prior"],
            values["sparse"],
        )


def spec_for(batch: Envs, settings: Settings) -> PolicySpec:
    """The shape of a new policy for these environments."""
    family = "categorical" if batch.actions.kind == "discrete" else "gaussian"
    return PolicySpec(
        observation_size=batch.observation_size,
        actions=batch.actions,
        family=family if settings.family == "auto" else settings.family,
        hidden=settings.hidden,
        activation=settings.activation,
        initial_std=settings.initial_std,
        min_std=settings.min_std,
    )
