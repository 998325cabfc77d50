"""What a run is asked for, and what else its result depends on."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import numpy as np

from repolicy.envs import HasSpaces, addons
from repolicy.errors import UsageError
from repolicy.objective import DIALED, Objective
from repolicy.objective_names import objective_name
from repolicy.policies import OBSERVATION_BOUND, ActionSpace, PolicySpec
from repolicy.ranges import MAX_DIALS, Dial, Range
from repolicy.runs.settings import AnySettings, Settings, validate_settings


@dataclass(frozen=True)
class Request:
    """What a run is asked for: all that its result depends on."""

    env: str
    objective: Objective
    settings: Settings
    addons: tuple[str, ...] = ()
    prior: str = ""  # the checksum of the prior's file, a copy of which lies in the run's folder
    sparse: bool = False  # whether an add-on may be constant over a trial
    limits: tuple[str, ...] = ()  # such as energy<=0.09
    init: str = ""  # the checksum of what the actor begins as, where that is not the prior

    method: ClassVar[str] = ""  # empty for Residual PPO

    @property
    def dials(self) -> tuple[Dial, ...]:
        """What the policy takes as inputs: weights of the objective, and those of add-ons."""
        return (*self.objective.dials, *addons.dials(self.addons))

    def as_dict(self) -> dict[str, Any]:
        always: dict[str, Any] = {"env": self.env, "objective": self.objective.as_dict()}
        always |= {"settings": self.settings.as_dict(), "addons": list(self.addons)}
        always |= {"prior": self.prior, "sparse": self.sparse}
        newer = {"limits": list(self.limits), "init": self.init, "method": self.method}
        return always | {name: value for name, value in newer.items() if value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
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


def derived_seed(seed: int, segment: int, stream: int) -> int:
    """Return an independent seed for each (seed, segment, stream)."""
    return int(np.random.SeedSequence([seed, segment, stream]).generate_state(1)[0] >> 2)


def spec_for(spaces: HasSpaces, settings: Settings) -> PolicySpec:
    """Return the shape of a new policy for an environment."""
    family = settings.family
    if family == "auto":
        family = usual_family(spaces.actions, settings.initial_std)
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


FAR_BOUND = 10.0  # times the first std, beyond which a Gaussian around 0 hardly ever tries an action


def usual_family(actions: ActionSpace, std: float) -> Literal["gaussian", "squashed", "categorical"]:
    """Return the family of a new policy: a Gaussian, which begins around 0, where 0 lies well within the bounds."""
    if actions.kind == "discrete":
        return "categorical"
    bounds = [*zip(actions.low, actions.high, strict=True)]
    is_bounded = bool(bounds) and all(map(math.isfinite, actions.low + actions.high))
    begins_within = all(low < 0.0 < high and max(-low, high) <= FAR_BOUND * std for low, high in bounds)
    return "gaussian" if begins_within or not is_bounded else "squashed"


RESERVED_DIAL_NAMES = (*DIALED, "t", "how", "policy")  # what names something else where a position is named


def check_dials(request: Request) -> None:
    """Raise where there are too many dials, a name that cannot be used, or a budget that would turn one of them."""
    names = [dial.name for dial in request.dials]
    if not names:
        return
    if request.settings.budget is not None or request.limits:
        raise UsageError(
            f"a run with a dial ({', '.join(names)}) trains for many weights at once, and a budget or limit moves one: "
            "name --omega, a number or a range, and leave the budget or limit out"
        )
    wished = [dial.name for dial in addons.dials(request.addons)]
    if taken := [name for name in wished if name in RESERVED_DIAL_NAMES or wished.count(name) > 1]:
        raise UsageError(
            f"an add-on's dial cannot be called {taken[0]!r}, as another is: rename its function, or name one weight"
        )
    if len(names) > MAX_DIALS:
        raise UsageError(
            f"{len(names)} dials are more than one run can learn: take {MAX_DIALS} at most, and one weight for others"
        )


def command_words(request: Request, prior: str | Path = "", init: str | Path = "INIT") -> list[str]:
    """Return what follows `repolicy` on the command line that asks for this run; its settings are apart, as `options`.

    Empty where only Python can say what was asked for: not every objective has a name.
    """
    named = objective_name(request.objective)
    if named is None:
        return []
    objective, coefficients = named
    auto = request.settings.budget is not None and request.settings.keep is None
    if auto and request.objective.omega != request.objective.alpha:
        return []  # --omega auto begins at alpha
    parts = ["customize", str(prior), "--env", request.env] if prior else ["train", request.env]
    parts += ["--init", str(init)] if request.init else []
    for flag, names in (("--addon", request.addons), ("--limit", request.limits)):
        parts += [word for name in names for word in (flag, name)]
    if not auto:
        parts += ["--objective", objective]
    else:
        parts += ["--omega", "auto"]
        coefficients.pop("omega", None)
    if isinstance(coefficients.get("omega"), Range):
        coefficients["states"] = request.objective.states  # 0 is not what a range takes
    for key, value in coefficients.items():
        parts += [f"--{key}", f"{value}"]
    return [*parts, "--sparse"] if request.sparse else parts


def command_options(settings: Settings, usual: Settings) -> list[str]:
    """Return the options that make these settings from the usual ones."""
    names = [field.name for field in fields(Settings)]
    changed = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    return [word for name in changed for word in command_option(name, getattr(settings, name))]


def command_option(name: str, value: Any) -> list[str]:
    """Return a setting as words of the command line."""
    word = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [word if value else f"--no-{word[2:]}"]
    return [word, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
