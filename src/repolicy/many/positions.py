"""Take positions between a prior and its customized policy, as files, and evaluate all that a dial can be turned to."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from repolicy.addons import addon_names, combine_addons
from repolicy.envs import Backend, parse_env_name
from repolicy.errors import UsageError
from repolicy.files import file_sum, replace_nonfinite
from repolicy.many.tradeoff import Point, SweepResult, evaluate_point
from repolicy.objective import DIALED
from repolicy.policies import ConditionedPolicy, Policy, SavedPolicy, check_policy_name, read_card, save_policy
from repolicy.policies.storage import FORMAT, is_repolicy_file
from repolicy.priors import (
    How,
    decoder_bytes,
    extrapolation_warning,
    interpolate_policies,
    output_folder,
    require_prior,
)
from repolicy.ranges import Dial
from repolicy.text import as_file_name

TENTHS = [tenths / 10 for tenths in range(1, 11)]  # positions t of an untrained dial; the prior, t = 0, is beside them
STOPS = (11, 5, 3, 2)  # stops of each dial, for one to four dials: 11 to 27 positions in all
Method = Literal["mixture", "weights", "trained"]
Position = dict[str, float]  # a value for each dial by its name; of an untrained dial `t`


class Meaning(NamedTuple):
    """The words of a trained dial: its symbol, its weight, and the effect of turning it down and up."""

    symbol: str
    weight: str
    low: str
    high: str


MEANINGS = {
    "omega": Meaning(
        "ω′", "ω′, the weight on the old behavior", "less weight on the prior", "more weight on the prior"
    ),
    "alpha": Meaning("α̂", "α̂, the weight on variety", "less variety", "more variety"),
}


def meaning(dial: Dial) -> Meaning:
    addon = Meaning(dial.name, f"the weight of the add-on {dial.name}", f"less {dial.name}", f"more {dial.name}")
    return MEANINGS.get(dial.name, addon)


@dataclass(frozen=True)
class DialedPolicy:
    """A customized policy's file, and the positions between its prior and it."""

    path: Path
    saved: SavedPolicy
    untrained_method: How = "mixture"  # how positions are made if the policy was trained without dials

    @property
    def method(self) -> Method:
        return "trained" if self.dials else self.untrained_method

    @cached_property
    def checksum(self) -> str:
        return file_sum(self.path)

    @property
    def dials(self) -> tuple[Dial, ...]:
        """The dials that the policy was trained with; empty if positions lie between its prior and it."""
        return self.saved.policy.dials if isinstance(self.saved.policy, ConditionedPolicy) else ()

    @property
    def stops(self) -> list[list[float]]:
        """The values of each dial that are evaluated."""
        return [dial.spread(STOPS[len(self.dials) - 1]) for dial in self.dials] or [[*TENTHS]]

    @property
    def positions(self) -> list[Position]:
        names = [dial.name for dial in self.dials] or ["t"]
        return [dict(zip(names, values, strict=True)) for values in product(*self.stops)]

    def find_position(self, number: float | None, values: Position) -> tuple[Position, str]:
        """Return the position for a number or named values, and a warning if it is outside of the trained range."""
        if isinstance(self.saved.policy, ConditionedPolicy):
            values = self.saved.policy.dial_values(number, values)
            position = {dial.name: dial.nearest(values[dial.name]) for dial in self.dials}
            return position, self.saved.policy.range_warning(values)
        if number is None:
            raise UsageError(f"{self.path} has no trained dial: --at takes one number, where 0 is the prior")
        return {"t": number}, extrapolation_warning(number)

    def policy_at(self, position: Position) -> Policy:
        policy = self.saved.policy
        if isinstance(policy, ConditionedPolicy):
            return policy.at_positions([dial.place(position[dial.name]) for dial in self.dials])
        return interpolate_policies(require_prior(self.saved, self.path), policy, position["t"], self.untrained_method)

    def save(self, position: Position, path: Path) -> None:
        """Write the policy at a position as a file; only the file of another position is replaced."""
        check_policy_name(path)
        if path.exists() and not (is_repolicy_file(path) and "dial" in read_card(path)):
            raise UsageError(f"{path} is there already, and not a position of a dial: choose another --out")
        decoder = parse_env_name(self.saved.card.get("request", {}).get("env", "")).decoder
        save_policy(
            path, self.policy_at(position), self.card(position), self.saved.prior, decoder=decoder_bytes(decoder)
        )

    def card(self, position: Position) -> dict[str, Any]:
        """Return the metadata of a position's file: the run's, without its scores, with the dials' values."""
        kept = ("request", "versions", "steps", "prior_is", "alpha")
        card = {key: value for key, value in self.saved.card.items() if key in kept}
        if self.dials and "request" in card:
            weights = {name: value for name, value in position.items() if name in DIALED}
            objective = card["request"].get("objective", {}) | weights
            wishes = [*addon_names.with_weights(card["request"].get("addons", ()), position)]
            card["request"] = card["request"] | {"objective": objective, "addons": wishes}
        place: dict[str, Any] = {"values": position} if self.dials else {"at": position["t"]}
        place |= {"how": self.method, "of": str(self.path), "sha256": self.checksum}
        return card | {"which": f"{self.method} at {describe_position(position)}", "dial": place}

    def default_file(self, position: Position) -> Path:
        """Return the file for a position, beside the policy's file."""
        parts = [self.path.stem, self.method]
        for name, value in position.items():
            parts += [as_file_name(name), exact_text(value)] if len(position) > 1 else [exact_text(value)]
        return output_folder(self.path) / f"{'-'.join(parts)}.safetensors"

    def command(self, position: Position) -> str:
        """Return the command that writes a position's file."""
        words = ["repolicy", "dial", str(self.path)]
        for name, value in position.items():
            words += ["--at", f"{name}={exact_text(value)}" if len(position) > 1 else exact_text(value)]
        return shlex.join([*words, "--how", self.method] if self.method == "weights" else words)


def describe_position(position: Position) -> str:
    return ", ".join(f"{name} = {exact_text(value)}" for name, value in position.items())


def exact_text(value: float) -> str:
    """Return the number with few digits if these are exact, else with all digits."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def evaluate_positions(
    dialed: DialedPolicy,
    env: str,
    addons: Sequence[str],
    out: Path,
    episodes: int,
    backend: Backend = "auto",
    limits: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> SweepResult:
    """Evaluate every position with the mean action and with sampled ones, from the same seeds.

    A dialed add-on has the weight 1 at every position, so that positions can be compared. `out` is the result's folder.
    """
    dialed_addons = {each.name: 1.0 for each in addon_names.dials(addons)}
    once = addon_names.with_weights(addons, dialed_addons)
    addon, prior = combine_addons(once), require_prior(dialed.saved, dialed.path)

    def point(policy: Policy, value: float, label: str = "") -> Point:
        mean, sampled = evaluate_point(policy, prior, env, addon, episodes, backend, limits)
        return Point(value, dialed.path, mean, sampled, label)

    first, points = point(prior, math.inf), []
    for done, position in enumerate(dialed.positions):
        progress(done)
        value, *others = position.values()
        label = ", ".join(f"{meaning(each).symbol} {exact_text(position[each.name])}" for each in dialed.dials)
        policy = dialed.policy_at(position)
        points.append(point(policy, math.nan, label) if others else point(policy, value))
    symbols = [meaning(each).symbol for each in dialed.dials] or ["t"]
    is_curve = len(symbols) == 1
    request = {"env": env, "addons": list(once)}
    symbol = symbols[0] if is_curve else "position"
    return SweepResult(request, out, first, points, {}, symbol, is_curve, bool(dialed_addons))


def shortest(position: Position) -> float | Position:
    """Return the value alone where there is one dial."""
    return position if len(position) > 1 else next(iter(position.values()))


def as_dict(dialed: DialedPolicy, swept: SweepResult) -> dict[str, Any]:
    """Return the content of `dial.json`; numbers that are not finite become null."""
    places = map(shortest, dialed.positions)
    content = {
        "format": FORMAT,
        "of": str(dialed.path),
        "sha256": dialed.checksum,
        "how": dialed.method,
        "prior": {"at": swept.prior.omega} | swept.prior.as_dict(),
        **swept.request,
        "positions": [{"at": at} | point.as_dict() for point, at in zip(swept.points, places, strict=True)],
    }
    return dict(replace_nonfinite(content))
