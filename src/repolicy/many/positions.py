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
from repolicy.envs import parse_env_name
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
    """A customized policy's file, and the positions between its prior and it. A position has a value for each dial."""

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
    def positions(self) -> list[tuple[float, ...]]:
        return [*product(*self.stops)]

    def named(self, position: Sequence[float]) -> dict[str, float]:
        """Return the position's values by the names of their dials."""
        return dict(zip([dial.name for dial in self.dials] or ["t"], position, strict=True))

    def as_texts(self, position: Sequence[float]) -> list[tuple[str, str]]:
        """Return (name, value) of each dial as text; the name of a single dial is empty."""
        return [(name if len(position) > 1 else "", exact_text(value)) for name, value in self.named(position).items()]

    def find_position(self, number: float | None, values: dict[str, float]) -> tuple[tuple[float, ...], str]:
        """Return the position for a number or named values, and a warning if it is outside of the trained range."""
        if isinstance(self.saved.policy, ConditionedPolicy):
            values = self.saved.policy.dial_values(number, values)
            position = tuple(dial.nearest(values[dial.name]) for dial in self.dials)
            return position, self.saved.policy.range_warning(values)
        if number is None:
            raise UsageError(f"{self.path} has no trained dial: --at takes one number, where 0 is the prior")
        return (number,), extrapolation_warning(number)

    def policy_at(self, position: Sequence[float]) -> Policy:
        if isinstance(self.saved.policy, ConditionedPolicy):
            dials = zip(self.dials, position, strict=True)
            return self.saved.policy.at_positions([dial.place(value) for dial, value in dials])
        (t,) = position
        return interpolate_policies(require_prior(self.saved, self.path), self.saved.policy, t, self.untrained_method)

    def save(self, position: Sequence[float], path: Path) -> None:
        """Write the policy at a position as a file; only the file of another position is replaced."""
        check_policy_name(path)
        if path.exists() and not (is_repolicy_file(path) and "dial" in read_card(path)):
            raise UsageError(f"{path} is there already, and not a position of a dial: choose another --out")
        env = self.saved.card.get("request", {}).get("env", "")
        save_policy(
            path,
            self.policy_at(position),
            self.card(position),
            self.saved.prior,
            decoder=decoder_bytes(parse_env_name(env).decoder),
        )

    def card(self, position: Sequence[float]) -> dict[str, Any]:
        """Return the metadata of a position's file: the run's, without its scores, with the dials' values."""
        values, kept = self.named(position), ("request", "versions", "steps", "prior_is")
        card = {key: value for key, value in self.saved.card.items() if key in kept}
        if self.dials and "request" in card:
            weights = {name: value for name, value in values.items() if name in DIALED}
            objective = card["request"].get("objective", {}) | weights
            wishes = [*addon_names.with_weights(card["request"].get("addons", ()), values)]
            card["request"] = card["request"] | {"objective": objective, "addons": wishes}
        place: dict[str, Any] = {"values": values} if self.dials else {"at": position[0]}
        place |= {"how": self.method, "of": str(self.path), "sha256": self.checksum}
        place_words = ", ".join(f"{name} = {exact_text(value)}" for name, value in values.items())
        return card | {"which": f"{self.method} at {place_words}", "dial": place}

    def default_file(self, position: Sequence[float], word: str) -> Path:
        """Return the file for a position, beside the policy's file."""
        parts = [f"{as_file_name(name)}-{value}" if name else value for name, value in self.as_texts(position)]
        return output_folder(self.path) / f"{'-'.join([self.path.stem, word, *parts])}.safetensors"

    def command(self, position: Sequence[float]) -> str:
        """Return the command that writes a position's file."""
        words = ["repolicy", "dial", str(self.path)]
        for name, value in self.as_texts(position):
            words += ["--at", f"{name}={value}" if name else value]
        words += ["--how", self.method] if self.method == "weights" else []
        return shlex.join([*words, "--out", str(self.default_file(position, "at"))])


def exact_text(value: float) -> str:
    """Return the number with few digits if these are exact, else with all digits."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def evaluate_positions(
    dialed: DialedPolicy,
    env: str,
    addons: Sequence[str],
    out: Path,
    episodes: int,
    progress: Callable[[int], None] = lambda _: None,
) -> SweepResult:
    """Evaluate every position with the mean action and with sampled ones, from the same seeds.

    A dialed add-on has the weight 1 at every position, so that positions can be compared. `out` is the result's folder.
    """
    once = addon_names.with_weights(addons, {each.name: 1.0 for each in addon_names.dials(addons)})
    addon, prior = combine_addons(once), require_prior(dialed.saved, dialed.path)

    def point(policy: Policy, value: float, label: str = "") -> Point:
        mean, sampled = evaluate_point(policy, prior, env, addon, episodes)
        return Point(value, dialed.path, mean, sampled, label)

    first, points = point(prior, math.inf), []
    for done, position in enumerate(dialed.positions):
        progress(done)
        if len(position) == 1:
            points.append(point(dialed.policy_at(position), position[0]))
            continue
        named = zip(dialed.dials, position, strict=True)
        label = ", ".join(f"{meaning(each).symbol} {exact_text(value)}" for each, value in named)
        points.append(point(dialed.policy_at(position), math.nan, label))
    symbols = [meaning(each).symbol for each in dialed.dials] or ["t"]
    is_curve = len(symbols) == 1
    request = {"env": env, "addons": list(once)}
    return SweepResult(request, out, first, points, {}, symbols[0] if is_curve else "position", is_curve)


def as_dict(dialed: DialedPolicy, swept: SweepResult) -> dict[str, Any]:
    """Return the content of `dial.json`; numbers that are not finite become null."""
    places = [each[0] if len(each) == 1 else dialed.named(each) for each in dialed.positions]
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
