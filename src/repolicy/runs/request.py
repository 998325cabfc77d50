"""The request of a run: environment, objective, settings and add-ons; and the command line that repeats it."""

from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import numpy as np

from repolicy.addons import addon_names
from repolicy.envs import HasSpaces, parse_env_name
from repolicy.errors import UsageError
from repolicy.objective import DIALED, Objective
from repolicy.objective_names import objective_name
from repolicy.policies import OBSERVATION_BOUND, WIDE, ActionSpace, PolicySpec
from repolicy.ranges import MAX_DIALS, Dial, Range
from repolicy.runs.settings import AnySettings, Settings, validate_settings


@dataclass(frozen=True)
class Request:
    """All inputs of a run that its result depends on."""

    env: str
    objective: Objective
    settings: Settings
    addons: tuple[str, ...] = ()
    prior: str = ""  # checksum of the prior's file, which is copied into the run's folder
    sparse: bool = False  # whether an add-on may be constant over a trial
    limits: tuple[str, ...] = ()  # such as energy<=0.09
    init: str = ""  # checksum of the file that the actor starts from, if that is not the prior

    method: ClassVar[str] = ""  # the training method; empty for Residual PPO

    @property
    def dials(self) -> tuple[Dial, ...]:
        """The weights that have a range: first those of the objective, then those of add-ons."""
        return (*self.objective.dials, *addon_names.dials(self.addons))

    @property
    def is_comparable(self) -> bool:
        """Whether all segments have the same weights, so that an earlier policy may be the run's result."""
        return self.settings.budget is None and not self.limits and not self.dials

    @property
    def is_judged_by_mean(self) -> bool:
        return parse_env_name(self.env).is_judged_by_mean

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"env": self.env, "objective": self.objective.as_dict()}
        values |= {"settings": self.settings.as_dict(), "addons": list(self.addons)}
        values |= {"prior": self.prior, "sparse": self.sparse}
        newer = {"limits": list(self.limits), "init": self.init, "method": self.method}
        return values | {name: value for name, value in newer.items() if value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the request of `as_dict`; older files lack some entries."""
        settings_class: type[AnySettings] = get_type_hints(cls)["settings"]
        return cls(
            values["env"],
            Objective(**values["objective"]),
            settings_class(**validate_settings(values["settings"], "the run", settings_class)),  # type: ignore[arg-type]
            tuple(values["addons"]),
            values["prior"],
            values["sparse"],
            tuple(values.get("limits", ())),
            values.get("init", ""),
        )


class Stream(IntEnum):
    """What a run's random numbers are for. Two uses with the same number begin alike, which does no harm."""

    TRAINING_ENVS = 0
    ACTIONS = 1  # of rank 0; rank r has the stream 1 + r
    EVALUATION = 1000
    COMPARISON = 2000
    PRIOR_STATES = 2000
    PHYSICS = 2000  # of `repolicy bench`
    CLONE = 3000
    KEPT_RETURN = 3000
    DIAL_POSITIONS = 10**6
    DEPLOYED_ENVS = 10**7


def derived_seed(seed: int, segment: int, stream: int) -> int:
    """Return the seed of one random stream; it differs for each (seed, segment, stream)."""
    return int(np.random.SeedSequence([seed, segment, stream]).generate_state(1)[0] >> 2)


def spec_for(spaces: HasSpaces, settings: Settings) -> PolicySpec:
    """Return the architecture of a new policy for an environment."""
    family = settings.family
    if family == "auto":
        family = choose_family(spaces.actions, settings.initial_std)
    return PolicySpec(
        observation_size=spaces.observation_size,
        actions=spaces.actions,
        family=family,
        hidden=settings.hidden,
        activation=settings.activation,
        initial_std=settings.initial_std,
        min_std=settings.min_std,
        observation_bound=OBSERVATION_BOUND if settings.normalize_observations else None,
    )


MAX_BOUND_IN_STDS = 10.0  # initial stds; a Gaussian around 0 hardly ever reaches actions near a bound beyond that


def choose_family(actions: ActionSpace, std: float) -> Literal["gaussian", "squashed", "categorical"]:
    """Return the usual family of a new policy.

    A Gaussian starts around 0, so it is used if 0 is inside the bounds and they are not too far for its `std`, nor too
    near: then nearly all of its actions would be outside.
    """
    if actions.kind == "discrete":
        return "categorical"
    bounds = [*zip(actions.low, actions.high, strict=True)]
    is_bounded = bool(bounds) and all(abs(bound) < WIDE for bound in actions.low + actions.high)
    least, largest = std / MAX_BOUND_IN_STDS, MAX_BOUND_IN_STDS * std
    fits_gaussian = all(low < 0.0 < high and least <= max(-low, high) <= largest for low, high in bounds)
    return "gaussian" if fits_gaussian or not is_bounded else "squashed"


RESERVED_DIAL_NAMES = (*DIALED, "t", "how", "policy")  # other parameters of the functions that take dial positions


def check_dials(request: Request) -> None:
    """Raise if there are too many dials, if one has a reserved name, or if a budget would move a dialed weight."""
    names = [dial.name for dial in request.dials]
    if not names:
        return
    if request.settings.budget is not None or request.limits:
        raise UsageError(
            f"a run with a dial ({', '.join(names)}) trains for many weights at once, and a budget or limit moves one: "
            "name --omega, a number or a range, and leave the budget or limit out"
        )
    addon_dials = [dial.name for dial in addon_names.dials(request.addons)]
    if unusable := [name for name in addon_dials if name in RESERVED_DIAL_NAMES or addon_dials.count(name) > 1]:
        raise UsageError(
            f"an add-on's dial cannot be called {unusable[0]!r}, as another is: rename its function, or name one weight"
        )
    if len(names) > MAX_DIALS:
        raise UsageError(
            f"{len(names)} dials are more than one run can learn: take {MAX_DIALS} at most, and one weight for others"
        )


def command_words(request: Request, prior: str | Path = "", init: str | Path = "INIT") -> list[str]:
    """Return the words behind `repolicy` on a command line for this run, without its settings.

    `command_options` returns the settings. The list is empty if no command line can express the request: not every
    objective has a name, and `customize` takes only those of a customized policy.
    """
    named = objective_name(request.objective)
    if named is None or (prior and request.objective.task != "addon"):
        return []
    name, coefficients = named
    has_nats = request.settings.budget is not None and request.settings.keep is None
    finds_omega = has_nats and request.objective.omega == request.objective.alpha  # --omega auto starts at alpha
    words = ["customize", str(prior), "--env", request.env] if prior else ["train", request.env]
    if request.init:
        words += ["--init", str(init)]
    for addon in request.addons:
        words += ["--addon", addon]
    for limit in request.limits:
        words += ["--limit", limit]
    if finds_omega:
        words += ["--omega", "auto"]
        coefficients.pop("omega", None)
    else:
        words += ["--objective", name]
    if isinstance(coefficients.get("omega"), Range):
        coefficients["states"] = request.objective.states  # the default of `states` is not 0 with a range
    for key, value in coefficients.items():
        words += [f"--{key}", f"{value}"]
    return [*words, "--sparse"] if request.sparse else words


def command_options(settings: Any, usual: Any) -> list[str]:
    """Return the command-line options for all settings that differ from the usual ones."""
    words = list[str]()
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(usual, field.name):
            words += command_option(field.name, value)
    return words


def command_option(name: str, value: Any) -> list[str]:
    """Return the command-line words of one setting: `["--n-steps", "64"]`."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    values = value if isinstance(value, tuple) else [value]
    return [f"--{option}", *map(str, values)]
