"""The page of a dial: what positions between prior and customized policy are worth, and sliders over them."""

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

from repolicy.envs import addons, decoder_options
from repolicy.errors import UsageError
from repolicy.loading import file_sum, read_json
from repolicy.many.tradeoff import Found, Point, evaluate_point
from repolicy.objective import DIALED
from repolicy.policies import ConditionedPolicy, Policy, SavedPolicy, read_card, save_policy
from repolicy.policies.storage import FORMAT, check_shape, is_repolicy_file, replace_nonfinite, write_json
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
from repolicy.report.run_page import filmed
from repolicy.report.sweep_page import Beside
from repolicy.runs import ranks
from repolicy.text import as_file_name, capitalized

TENTHS = [tenths / 10 for tenths in range(1, 11)]  # of the way from the prior, which is shown beside them
STOPS = (11, 5, 3, 2)  # of each dial, where there are one to four: 11 to 27 positions in all
TURNS = Literal["mixture", "weights", "trained"]
WORDS = {
    "mixture": "the geometric mixture of both policies: each action's probability is multiplied, not averaged",
    "weights": "the networks' numbers, taken between their values before and after",
}


class Meaning(NamedTuple):
    """What a trained dial's weight is called, what it is the weight of, and what its two ends do."""

    letter: str
    weight: str
    low: str
    high: str


OLD = Meaning("ω′", "ω′, the weight on the old behavior", "less weight on the prior", "more weight on the prior")
MEANINGS = {"omega": OLD, "alpha": Meaning("α̂", "α̂, the weight on variety", "less variety", "more variety")}


def meaning(dial: Dial) -> Meaning:
    plain = Meaning(dial.name, f"the weight of the add-on {dial.name}", f"less {dial.name}", f"more {dial.name}")
    return MEANINGS.get(dial.name, plain)


@dataclass(frozen=True)
class Turning:
    """A customized policy's file, and how to turn between its prior and it. A position has a value for each dial."""

    path: Path
    saved: SavedPolicy
    mixes: How = "mixture"  # how it turns where no dial was trained
    env: str = ""  # of the report, as all that follows
    addons: tuple[str, ...] = ()
    out: Path = Path()
    beside: tuple[Beside, ...] = ()  # points that were trained one by one

    @property
    def how(self) -> TURNS:
        return "trained" if self.trained else self.mixes

    @cached_property
    def checksum(self) -> str:
        return file_sum(self.path)

    @property
    def trained(self) -> tuple[Dial, ...]:
        """The dials that the policy was trained with; none where the dial is between it and its prior."""
        return self.saved.policy.dials if isinstance(self.saved.policy, ConditionedPolicy) else ()

    @property
    def stops(self) -> list[list[float]]:
        """The values of each dial that are shown."""
        return [dial.spread(STOPS[len(self.trained) - 1]) for dial in self.trained] or [[*TENTHS]]

    @property
    def positions(self) -> list[tuple[float, ...]]:
        return [*product(*self.stops)]

    def named(self, position: Sequence[float]) -> dict[str, float]:
        return dict(zip([dial.name for dial in self.trained] or ["t"], position, strict=True))

    def written(self, position: Sequence[float]) -> list[tuple[str, str]]:
        """Return the values in words, each behind its dial's name, which is empty where there is but one."""
        return [(name if len(position) > 1 else "", exactly(value)) for name, value in self.named(position).items()]

    def asked(self, number: float | None, values: dict[str, float]) -> tuple[tuple[float, ...], str]:
        """Return the position that a number or named values ask for, and a warning where it is beyond the ends."""
        if isinstance(self.saved.policy, ConditionedPolicy):
            values = self.saved.policy.dial_values(number, values)
            return tuple(dial.nearest(values[dial.name]) for dial in self.trained), self.saved.policy.beyond(values)
        if number is None:
            raise UsageError(f"{self.path} has no trained dial: --at takes one number, where 0 is the prior")
        return (number,), extrapolation_warning(number)

    def at(self, position: Sequence[float]) -> Policy:
        if isinstance(self.saved.policy, ConditionedPolicy):
            dials = zip(self.trained, position, strict=True)
            return self.saved.policy.at_positions([dial.place(value) for dial, value in dials])
        (t,) = position
        return interpolate_policies(require_prior(self.saved, self.path), self.saved.policy, t, self.mixes)

    def save(self, position: Sequence[float], path: Path) -> None:
        """Write the policy at a position as a file for any command; a file that is no such position is left alone."""
        if path.suffix != ".safetensors":
            raise UsageError(f"--out is {path}; a policy's file is called NAME.safetensors")
        if path.exists() and not (is_repolicy_file(path) and "dial" in read_card(path)):
            raise UsageError(f"{path} is there already, and not a position of a dial: choose another --out")
        env = self.saved.card.get("request", {}).get("env", "")
        save_policy(
            path, self.at(position), self.card(position), self.saved.prior, decoder=decoder_bytes(decoder_options(env))
        )

    def card(self, position: Sequence[float]) -> dict[str, Any]:
        """Return the run's request at that position, and where it is on the dials; the scores were another's."""
        card, values = self.saved.card, self.named(position)
        rest = {key: card[key] for key in ("request", "versions", "steps") if key in card}
        where = ", ".join(f"{name} = {exactly(value)}" for name, value in values.items())
        place: dict[str, Any] = {"values": values} if self.trained else {"at": position[0]}
        if self.trained and "request" in rest:
            own = {name: value for name, value in values.items() if name in DIALED}
            objective = rest["request"].get("objective", {}) | own
            wishes = [*addons.with_weights(rest["request"].get("addons", ()), values)]
            rest["request"] = rest["request"] | {"objective": objective, "addons": wishes}
        place |= {"how": self.how, "of": str(self.path), "sha256": self.checksum}
        return rest | {"which": f"{self.how} at {where}", "dial": place}

    def file(self, position: Sequence[float], words: str) -> Path:
        """Return where a position is kept, beside the policy."""
        each = [f"{as_file_name(name)}-{value}" if name else value for name, value in self.written(position)]
        return output_folder(self.path) / f"{'-'.join([self.path.stem, words, *each])}.safetensors"

    def command(self, position: Sequence[float]) -> str:
        """Return what exports a position."""
        how = ["--how", self.how] if self.how == "weights" else []
        places = [f"{name}={value}" if name else value for name, value in self.written(position)]
        words = [word for place in places for word in ("--at", place)]
        return shlex.join(["repolicy", "dial", str(self.path), *words, *how, "--out", str(self.file(position, "at"))])


def exactly(value: float) -> str:
    """Return it in few digits, but as many as it takes to tell it from any other."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def measured(dial: Turning, episodes: int, progress: Callable[[int], None] = lambda _: None) -> Found:
    """Return every position's episodes: with the mean action, and sampled; the same seeds for all, in one thread.

    A dialed add-on counts once at every position, so that positions can be compared.
    """
    once = addons.with_weights(dial.addons, {each.name: 1.0 for each in addons.dials(dial.addons)})
    addon, prior = addons.combine_addons(once), require_prior(dial.saved, dial.path)

    def point(policy: Policy, value: float, label: str = "") -> Point:
        mean, sampled = evaluate_point(policy, prior, dial.env, addon, episodes)
        return Point(value, dial.path, mean, sampled, label)

    with ranks.one_thread():
        first, points = point(prior, math.inf), []
        for done, position in enumerate(dial.positions):
            progress(done)
            if len(position) == 1:
                points.append(point(dial.at(position), position[0]))
                continue
            named = zip(dial.trained, position, strict=True)
            label = ", ".join(f"{meaning(each).letter} {exactly(value)}" for each, value in named)
            points.append(point(dial.at(position), math.nan, label))
    letters = [meaning(each).letter for each in dial.trained] or ["t"]
    in_a_row = len(letters) == 1
    request = {"env": dial.env, "addons": list(once)}
    return Found(request, dial.out, first, points, {}, letters[0] if in_a_row else "position", in_a_row)


def as_dict(dial: Turning, swept: Found) -> dict[str, Any]:
    """Return what `dial.json` holds; numbers that are not finite become null."""
    whose: dict[str, Any] = {"format": FORMAT, "of": str(dial.path), "sha256": dial.checksum, "how": dial.how}
    whose["prior"] = {"at": swept.prior.omega} | swept.prior.as_dict()
    places = [each[0] if len(each) == 1 else dial.named(each) for each in dial.positions]
    positions = [{"at": at} | point.as_dict() for point, at in zip(swept.points, places, strict=True)]
    return dict(replace_nonfinite(whose | swept.request | {"positions": positions}))


def points_of(sweep: Path, env: str, wishes: Sequence[str]) -> tuple[Beside, ...]:
    """Return the points of a sweep of the same task, from its folder; those whose wish is known."""
    path = sweep / "sweep.json"
    content = read_json(path)
    acted = "mean_action" if decoder_options(env) is None else "sampled_action"  # as `Point.judged`
    point = {"omega": float, "kl": float, acted: {"summary": {str: {}}}}
    check_shape(content, {"request": {"env": str, "addons": [str]}, "points": [point]}, str(path))
    swept = content["request"]
    if (swept["env"], swept["addons"]) != (env, list(wishes)):
        raise UsageError(
            f"{sweep} is a sweep of {' + '.join(swept['addons'])} in {swept['env']}, and the dial is of "
            f"{' + '.join(wishes)} in {env}: their points do not belong into one drawing"
        )
    found = []
    for point in content["points"]:
        means = {name: each.get("mean") for name, each in point[acted]["summary"].items()}
        known = {name: float(value) for name, value in means.items() if isinstance(value, int | float)}
        if "addon_reward" in known:
            found.append(Beside(point["omega"], known.get("basic_reward"), point["kl"], known["addon_reward"]))
    return tuple(found)


def _filmed(dial: Turning, say: Callable[[str], None]) -> tuple[list[bytes], str]:
    """Return a film of the prior and of each position, from files, because films are made from files."""
    with tempfile.TemporaryDirectory(prefix="repolicy-dial-") as folder:
        files = [Path(folder, f"{index}.safetensors") for index in range(len(dial.positions))]
        for position, file in zip(dial.positions, files, strict=True):
            dial.save(position, file)
        shots = [Shot(str(file), dial.env) for file in files]
        return filmed([Shot(str(files[0]), dial.env, which="prior"), *shots], say)


def _lead(dial: Turning, swept: Found) -> str:
    """Return what the page is of, in a sentence or two."""
    file, verdict = escape(str(dial.path)), f"{escape(capitalized(swept.verdict))}."
    if not dial.trained:
        return f"Between the prior (t = 0) and {file} (t = 1): {WORDS[dial.how]}. Nothing was trained. {verdict}"
    weights = " and ".join(escape(meaning(each).weight) for each in dial.trained)
    inputs = f"{weights}, as an input" if len(dial.trained) == 1 else f"{weights} as inputs"
    sentences = [f"{file}: one run trained a policy that takes {inputs}."]
    if dial.beside:
        sentences.append(f"Beside it, in grey: {len(dial.beside)} points of a sweep, each trained for itself.")
    if swept.in_a_row:
        sentences.append(verdict)
    return " ".join(sentences)


def _sliders(dial: Turning, swept: Found) -> list[str]:
    """Return one for each dial, in the middle at first; that of one dial begins at its best position."""
    if swept.in_a_row:
        *_, left, right = meaning(dial.trained[0]) if dial.trained else ("prior", "customized")
        return [sweep_page.slider(swept, left, right)]
    drawn = []
    for index, (each, stops) in enumerate(zip(dial.trained, dial.stops, strict=True)):
        what = meaning(each)
        names = [f"{what.letter} {exactly(stop)}" for stop in stops]
        drawn.append(sweep_page.one_slider(f"dial-{index}", what.weight, names, len(stops) // 2, what.low, what.high))
    return drawn


def write_dial_report(dial: Turning, swept: Found, say: Callable[[str], None]) -> Path:
    """Film every position, and write `report.html` and `dial.json` into the dial's folder."""
    pictures, complaint = _filmed(dial, say)
    write_json(dial.out / "dial.json", as_dict(dial, swept))
    word = "dials" if len(dial.trained) > 1 else "dial"
    commands = [page.command(dial.command(position)) for position in dial.positions]
    at_stops = [sweep_page.at_stop(index, command) for index, command in enumerate(commands)]
    parts = [
        page.section(
            f"Turn the {word}",
            *_sliders(dial, swept),
            page.films(sweep_page.figures(swept, pictures), complaint),
            *sweep_page.tables(swept),
        ),
        page.section("Keep this position", *at_stops, note="Writes it as a policy's file, which every command takes."),
    ]
    if swept.in_a_row:
        drawing = sweep_page.tradeoff(swept, dial.beside)
        parts.append(page.section("The trade-off", drawing, note=sweep_page.legend(swept)))
    note = sweep_page.over(swept)
    if dialed := [each.name for each in dial.trained if each.name not in MEANINGS]:
        note += f" In the add-on reward the weight of {escape(' and of '.join(dialed))} is 1 at every position."
    parts.append(page.section("Every position", sweep_page.every_point(swept), note=note))
    title = f"{dial.env} with {' + '.join(dial.addons)}: the {word}"
    return page.write(dial.out / "report.html", title, _lead(dial, swept), parts, sweep_page.SCRIPT)
