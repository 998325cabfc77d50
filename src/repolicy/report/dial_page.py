"""Write the page of a dial: the rewards at positions between prior and customized policy, and sliders over them."""

import math
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from repolicy.envs import addon_names, combine_addons, parse_env_name
from repolicy.errors import UsageError
from repolicy.files import check_shape, file_sum, read_json, replace_nonfinite, write_json
from repolicy.many.tradeoff import Point, SweepResult, evaluate_point
from repolicy.objective import DIALED
from repolicy.policies import ConditionedPolicy, Policy, SavedPolicy, read_card, save_policy
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
from repolicy.report import page, sweep_page
from repolicy.report.movie import Shot
from repolicy.report.pieces import films_for_page
from repolicy.report.sweep_page import Beside
from repolicy.runs import ranks
from repolicy.text import as_file_name, capitalize

TENTHS = [tenths / 10 for tenths in range(1, 11)]  # positions t of an untrained dial; the prior, t = 0, is beside them
STOPS = (11, 5, 3, 2)  # stops of each dial, for one to four dials: 11 to 27 positions in all
Method = Literal["mixture", "weights", "trained"]
METHOD_WORDS = {
    "mixture": "the geometric mixture of both policies: each action's probability is multiplied, not averaged",
    "weights": "the networks' numbers, taken between their values before and after",
}


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
    # The fields below are for the report only.
    env: str = ""
    addons: tuple[str, ...] = ()
    out: Path = Path()
    sweep_points: tuple[Beside, ...] = ()  # points of a sweep, each trained by itself, for comparison

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
        """The values of each dial that the report shows."""
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
        if path.suffix != ".safetensors":
            raise UsageError(f"--out is {path}; a policy's file is called NAME.safetensors")
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
        values = self.named(position)
        card = {key: self.saved.card[key] for key in ("request", "versions", "steps") if key in self.saved.card}
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
    dial: DialedPolicy, episodes: int, progress: Callable[[int], None] = lambda _: None
) -> SweepResult:
    """Evaluate every position with the mean action and with sampled ones, from the same seeds, in one thread.

    A dialed add-on has the weight 1 at every position, so that positions can be compared.
    """
    once = addon_names.with_weights(dial.addons, {each.name: 1.0 for each in addon_names.dials(dial.addons)})
    addon, prior = combine_addons(once), require_prior(dial.saved, dial.path)

    def point(policy: Policy, value: float, label: str = "") -> Point:
        mean, sampled = evaluate_point(policy, prior, dial.env, addon, episodes)
        return Point(value, dial.path, mean, sampled, label)

    with ranks.one_thread():
        first, points = point(prior, math.inf), []
        for done, position in enumerate(dial.positions):
            progress(done)
            if len(position) == 1:
                points.append(point(dial.policy_at(position), position[0]))
                continue
            named = zip(dial.dials, position, strict=True)
            label = ", ".join(f"{meaning(each).symbol} {exact_text(value)}" for each, value in named)
            points.append(point(dial.policy_at(position), math.nan, label))
    symbols = [meaning(each).symbol for each in dial.dials] or ["t"]
    is_curve = len(symbols) == 1
    request = {"env": dial.env, "addons": list(once)}
    return SweepResult(request, dial.out, first, points, {}, symbols[0] if is_curve else "position", is_curve)


def as_dict(dial: DialedPolicy, swept: SweepResult) -> dict[str, Any]:
    """Return the content of `dial.json`; numbers that are not finite become null."""
    places = [each[0] if len(each) == 1 else dial.named(each) for each in dial.positions]
    content: dict[str, Any] = {"format": FORMAT, "of": str(dial.path), "sha256": dial.checksum, "how": dial.method}
    content["prior"] = {"at": swept.prior.omega} | swept.prior.as_dict()
    content |= swept.request
    content["positions"] = [{"at": at} | point.as_dict() for point, at in zip(swept.points, places, strict=True)]
    return dict(replace_nonfinite(content))


def read_sweep_points(sweep: Path, env: str, addons: Sequence[str]) -> tuple[Beside, ...]:
    """Read the points of a sweep from its folder, without those that have no add-on reward.

    Raises UsageError if the sweep has another environment or add-on.
    """
    path = sweep / "sweep.json"
    content = read_json(path)
    action = "mean_action" if parse_env_name(env).is_judged_by_mean else "sampled_action"
    point_shape = {"omega": float, "kl": float, action: {"summary": {str: {}}}}
    check_shape(content, {"request": {"env": str, "addons": [str]}, "points": [point_shape]}, str(path))
    swept = content["request"]
    if (swept["env"], swept["addons"]) != (env, list(addons)):
        raise UsageError(
            f"{sweep} is a sweep of {' + '.join(swept['addons'])} in {swept['env']}, and the dial is of "
            f"{' + '.join(addons)} in {env}: their points do not belong into one chart"
        )
    points = []
    for point in content["points"]:
        means = {name: each.get("mean") for name, each in point[action]["summary"].items()}
        known = {name: float(value) for name, value in means.items() if isinstance(value, int | float)}
        if "addon_reward" in known:
            points.append(Beside(point["omega"], known.get("basic_reward"), point["kl"], known["addon_reward"]))
    return tuple(points)


def _film_positions(dial: DialedPolicy, say: Callable[[str], None]) -> tuple[list[bytes], str]:
    """Return a film of the prior and of each position; films need files, so positions are written to a folder."""
    with tempfile.TemporaryDirectory(prefix="repolicy-dial-") as folder:
        files = [Path(folder, f"{index}.safetensors") for index in range(len(dial.positions))]
        for position, file in zip(dial.positions, files, strict=True):
            dial.save(position, file)
        shots = [Shot(str(file), dial.env) for file in files]
        return films_for_page([Shot(str(files[0]), dial.env, role="prior"), *shots], say)


def _lead(dial: DialedPolicy, swept: SweepResult) -> str:
    """Return the lead of the page: what was turned or trained, and the verdict."""
    file, verdict = escape(str(dial.path)), f"{escape(capitalize(swept.verdict))}."
    if not dial.dials:
        words = METHOD_WORDS[dial.method]
        return f"Between the prior (t = 0) and {file} (t = 1): {words}. Nothing was trained. {verdict}"
    weights = " and ".join(escape(meaning(each).weight) for each in dial.dials)
    inputs = f"{weights}, as an input" if len(dial.dials) == 1 else f"{weights} as inputs"
    sentences = [f"{file}: one run trained a policy that takes {inputs}."]
    if dial.sweep_points:
        sentences.append(f"Beside it, in grey: {len(dial.sweep_points)} points of a sweep, each trained for itself.")
    if swept.is_curve:
        sentences.append(verdict)
    return " ".join(sentences)


def _sliders(dial: DialedPolicy, swept: SweepResult) -> list[str]:
    """Return a slider for each dial. A single one begins at the best position, several in the middle."""
    if swept.is_curve:
        *_, left, right = meaning(dial.dials[0]) if dial.dials else ("prior", "customized")
        return [sweep_page.point_slider(swept, left, right)]
    sliders = []
    for index, (each, stops) in enumerate(zip(dial.dials, dial.stops, strict=True)):
        words = meaning(each)
        names = [f"{words.symbol} {exact_text(stop)}" for stop in stops]
        middle = len(stops) // 2
        sliders.append(sweep_page.slider(f"dial-{index}", words.weight, names, middle, words.low, words.high))
    return sliders


def write_dial_report(dial: DialedPolicy, swept: SweepResult, say: Callable[[str], None]) -> Path:
    """Film every position, and write `report.html` and `dial.json` into the dial's folder."""
    films, complaint = _film_positions(dial, say)
    write_json(dial.out / "dial.json", as_dict(dial, swept))
    dialed_addons = [each.name for each in dial.dials if each.name not in MEANINGS]
    word = "dials" if len(dial.dials) > 1 else "dial"
    commands = [page.command(dial.command(position)) for position in dial.positions]
    commands = [sweep_page.at_stop(index, command) for index, command in enumerate(commands)]
    parts = [
        page.words(),
        page.section(
            f"Turn the {word}",
            *_sliders(dial, swept),
            *([] if dialed_addons else sweep_page.point_verdicts(swept)),
            page.films(sweep_page.film_figures(swept, films), complaint),
            *sweep_page.point_tables(swept),
        ),
        page.section("Keep this position", *commands, note="Writes it as a policy's file, which every command takes."),
    ]
    if swept.is_curve:
        chart = sweep_page.tradeoff_chart(swept, dial.sweep_points)
        parts.append(page.section("The trade-off", chart, note=sweep_page.tradeoff_note(swept)))
    note = sweep_page.points_note(swept)
    if dialed_addons:
        note += f" In the add-on reward the weight of {escape(' and of '.join(dialed_addons))} is 1 at every position."
    parts.append(page.section("Every position", sweep_page.points_table(swept), note=note))
    title = f"{dial.env} with {' + '.join(dial.addons)}: the {word}"
    return page.write(dial.out / "report.html", title, _lead(dial, swept), parts, sweep_page.SCRIPT)
