"""Add-on rewards: functions of batches of steps, `(observations, actions, next_observations, info) -> rewards [B]`.

    repolicy customize halfcheetah --addon hind_leg
    repolicy customize hopper --addon height=1.0 --addon my_rewards.py:quiet=0.1
    repolicy customize hopper --addon wish.safetensors=2

`registered.py` holds the add-ons that ship. A user names their own as `module:function` or `file.py:function`, and a
learnt wish by its file. A class is a stateful add-on (`gaits.py`). Several add-ons are summed with weights. If a
function has an attribute `metric`, a function of the same arguments, reports show that metric. A `Limit` bounds the
mean of an add-on.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs.names import parse_env_name
from repolicy.envs.registered import DEFAULT_LAYOUT, REGISTERED, Function, Registered, info_entry
from repolicy.envs.rollout import Rollout, StatefulAddon, Transitions
from repolicy.envs.wish_file import check_same_env, is_wish_file, open_wish
from repolicy.errors import NumericError, UsageError, describe_error, in_one_sentence
from repolicy.loading import load_object, reference_to
from repolicy.ranges import Dial, Range
from repolicy.text import parse_number, strip_version, suggest

PREVIEW_NUMBERS = 6  # numbers of an observation or action that an error message shows

# What reports show of an add-on: the metric's name, a function like an add-on, and a map from its values to the metric.
MetricSource = tuple[str, Function | StatefulAddon, Callable[[np.ndarray], np.ndarray]]


@dataclass(frozen=True)
class Addon:
    """A weighted sum of add-on functions."""

    names: tuple[str, ...]
    functions: tuple[Function | StatefulAddon, ...]
    weights: tuple[float, ...]
    metric_source: MetricSource | None = None  # of the first add-on that has a metric

    @property
    def metric_name(self) -> str:
        return self.metric_source[0] if self.metric_source else ""

    @property
    def titles(self) -> tuple[str, ...]:
        """The names without their files, if these differ from each other; else the full names."""
        short = tuple(map(_title, self.names))
        return short if len(set(short)) == len(set(self.names)) else self.names

    @property
    def largest_weight(self) -> float:
        """The largest absolute weight; 1 without add-ons."""
        return max(map(abs, self.weights), default=1.0)

    @property
    def stateful_names(self) -> tuple[str, ...]:
        """The names of the stateful add-ons."""
        return tuple(
            name for name, each in zip(self.names, self.functions, strict=True) if isinstance(each, StatefulAddon)
        )

    def reward(self, steps: Transitions) -> np.ndarray:
        """Return the summed rewards `[...]` of transitions with observations `[..., O]`."""
        return sum(self.weighted_rewards(steps), np.zeros(steps.observations.shape[:-1]))

    def weighted_rewards(self, steps: Transitions) -> Iterator[np.ndarray]:
        """Yield the rewards of each function, times its weight, in the order of `names`."""
        rows = steps.flattened()
        for name, function, weight in zip(self.names, self.functions, self.weights, strict=True):
            entry = REGISTERED.get(name.partition("(")[0])
            made_for = f" (made for {entry.envs[0]})" if entry and entry.envs else ""  # explains a wrong index
            rewards = weight * _call_function(f"add-on {name!r}{made_for}", function, rows)
            yield rewards.reshape(steps.observations.shape[:-1])

    def metric(self, steps: Transitions) -> np.ndarray:
        """Return the metric `[...]` that reports show of transitions; there must be a `metric_source`."""
        assert self.metric_source is not None
        name, function, to_metric = self.metric_source
        values = _call_function(f"the add-on's metric {name!r}", function, steps.flattened())
        return to_metric(values).reshape(steps.observations.shape[:-1])


def _title(name: str) -> str:
    """Return the name of an add-on without its file."""
    return Path(name.partition("(")[0]).stem if is_wish_file(name) else name.rpartition(":")[2]


def _call_function(name: str, function: Function | StatefulAddon, rows: Transitions) -> np.ndarray:
    """Call an add-on's function with flattened transitions, and return its values `[B]`.

    Raises an error that begins with `name` if the function fails or returns anything but finite numbers `[B]`.
    """
    _, actions, after, info, past = rows
    with in_one_sentence(f"{name} failed", UsageError):
        copies = rows.map(np.copy)  # the function may change its arguments in place
        try:
            if not isinstance(function, StatefulAddon):
                returned: Any = function(*copies[:4])
            elif past is None:
                raise UsageError("an add-on that has a past needs the steps in their order, which is not known here")
            else:
                returned = past.rewards(function, copies)
            if returned is None:
                raise UsageError(f"{name} returned None: it has no `return`, or one without a value")
            rewards = np.asarray(returned, np.float64)
        except KeyError as error:
            keys = ", ".join(sorted(info)) or "nothing"
            remedy = "what only some steps tell is read by info.get(NAME, np.zeros(len(actions)))"
            raise UsageError(f"{name} failed: {describe_error(error)}; info has {keys}; {remedy}") from error
    count = len(actions)
    if rewards.shape != (count,):
        shape = f"shape {rewards.shape}" if rewards.shape else "one number"
        raise UsageError(f"{name} returned {shape} for {count} transitions, not one number each")
    if not np.isfinite(rewards).all():
        wrong = np.flatnonzero(~np.isfinite(rewards))
        raise NumericError(
            f"{name} returned {rewards[wrong[0]]:g} for {len(wrong):,} of {count:,} transitions; the first has "
            f"next_observations {_preview(after[wrong[0]])} and actions {_preview(actions[wrong[0]])}"
        )
    return rewards


def _preview(numbers: np.ndarray) -> str:
    """Return the first numbers of a row as text."""
    shown = ", ".join(f"{number:.4g}" for number in numbers[:PREVIEW_NUMBERS])
    return f"{shown}, …" if len(numbers) > PREVIEW_NUMBERS else shown


def check_env(requests: Sequence[str], env: str) -> None:
    """Raise if an add-on was made for another environment: its indices would then mean something else."""
    own = "write your own and name it as file.py:function"
    for request in requests:
        addon, _ = _split_weight(request)
        if is_wish_file(addon):
            check_same_env(addon, env)
        name = addon.partition("(")[0]
        entry = REGISTERED.get(name)
        if entry is None or ":" in env or not entry.envs:
            continue
        if strip_version(env) not in entry.envs:
            problem = f"add-on {name!r} reads the numbers of {' and '.join(entry.envs)}"
            raise UsageError(f"{problem}, which mean something else in {env}; {own}")
        moved = [key for key, value in parse_env_name(env).options.items() if value != DEFAULT_LAYOUT.get(key, value)]
        if moved and entry.reads == "observation":
            problem = f"add-on {name!r} reads a place in the observation that {moved[0]} moves"
            raise UsageError(f"{problem}; leave that option out, or {own}")


Wish = str | Function | Sequence[str | Function]  # one add-on or several, by name or as functions


def requests_of(wish: Wish) -> tuple[str, ...]:
    """Return the requests, such as `height=0.5`, of a wish. A weight of 1 is left out: a wish has one spelling."""
    requests = list[str]()
    for each in wish if isinstance(wish, list | tuple) else (wish,):
        if isinstance(each, str):
            name, weight = _split_weight(each)
            requests.append(name if parse_number(weight) == 1.0 else each)
        else:
            requests.append(reference_to(each))
    return tuple(requests)


def load_addon(wish: Wish, env: str) -> Addon | None:
    """Return the add-on of a wish after checking that it fits the environment; None for an empty wish."""
    requests = requests_of(wish)
    check_env(requests, env)
    return combine_addons(requests) if requests else None


def combine_addons(requests: Sequence[str]) -> Addon:
    """Return one add-on of requests such as `height`, `height=0.5`, `hind_leg(joint=bshin)=2` or `my.py:quiet=0.1`."""
    parsed = [parse(request) for request in requests]
    names, functions, weights, metrics = zip(*parsed, strict=True) if parsed else ((),) * 4
    return Addon(names, functions, weights, next(filter(None, metrics), None))


def import_target(request: str) -> str:
    """Return the code or file that a request loads, `module:name` or `wish.safetensors`; empty for one that ships."""
    addon, _ = _split_weight(request)
    return addon if ":" in addon or is_wish_file(addon) else ""


def parse(request: str) -> tuple[str, Function | StatefulAddon, float, MetricSource | None]:
    """Return (name, function, weight, metric source) of one request; a user's own code is imported here."""
    addon, weight_text = _split_weight(request)
    _, colon, name = addon.rpartition(":")
    bare, bracket, options = name.partition("(")
    if not (colon or is_wish_file(addon)) and ("=" in bare or (bracket and not options.endswith(")"))):
        raise UsageError(f"add-on {request!r} is not of the form NAME(OPTION=VALUE)=WEIGHT")
    if ".." in weight_text:
        raise UsageError(
            f"add-on {request!r} has a range of weights, which goes with `repolicy customize`; write one, as NAME=0.5"
        )
    if not math.isfinite(weight := parse_number(weight_text)):
        raise UsageError(f"add-on {request!r}: {weight_text!r} is not a weight; write NAME=0.5")
    if is_wish_file(addon):
        return addon, open_wish(addon), weight, None
    if own := import_target(request):
        if bracket:
            raise UsageError(f"add-on {request!r}: a function of your own has no options in brackets; leave them out")
        function = load_object(own, "add-on")
        if not callable(function):
            raise UsageError(f"add-on {own!r} is not a function")
        if inspect.isclass(function):
            return own, StatefulAddon(function), weight, None
        reported = getattr(function, "metric", None)
        named = f"mean {getattr(reported, '__name__', 'metric')}"
        return own, function, weight, None if reported is None else (named, reported, lambda numbers: numbers)
    if bare not in REGISTERED:
        problem = f"there is no add-on {bare!r}{suggest(bare, REGISTERED)}"
        raise UsageError(f"{problem}; name your own as module:function or file.py:function")
    entry = REGISTERED[bare]
    function = _configured(bare, entry, options.removesuffix(")"))
    return name, function, weight, (entry.metric, function, entry.measure)


def _split_weight(request: str) -> tuple[str, str]:
    """Return (add-on, weight as text) of a request: `("height", "0.5")` of `height=0.5`."""
    place, colon, name = request.rpartition(":")  # a folder may have a name with = or ( in it
    head, equals, tail = name.rpartition("=")
    weighs = equals and not tail.endswith((")", ".safetensors"))
    return (f"{place}{colon}{head}", tail) if weighs else (request, "1")


# Ranges of weights: `quiet=0..2` --------------------------------------------------------------------------------------


def dials(requests: Sequence[str]) -> tuple[Dial, ...]:
    """Return the dials of the add-ons whose weight is a range. Each has the add-on's name, without its file."""
    ranges = []
    for request in requests:
        addon, weight_text = _split_weight(request)
        try:
            if isinstance(weight := Range.of(weight_text), Range):
                ranges.append(Dial(_title(addon), *weight, "linear").checked())
        except ValueError:
            raise UsageError(
                f"add-on {request!r}: {weight_text!r} is no weight; write NAME=10, or NAME=0..2 for a range"
            ) from None
    return tuple(ranges)


def with_weights(requests: Sequence[str], values: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """Return the requests with one weight for each range: that of its name or, where there is none, its middle."""
    chosen = []
    for request in requests:
        for dial in dials([request]):
            weight = float((values or {}).get(dial.name, dial.value(0.0)))
            request = f"{_split_weight(request)[0]}={weight!r}"
        chosen.append(request)
    return tuple(chosen)


def with_clipped_weights(requests: Sequence[str]) -> tuple[str, ...]:
    """Return the requests with weights of at most 1, or −1; of a range, its upper end counts."""
    ends = {dial.name: dial.value(1.0) for dial in dials(requests)}
    weights = ((addon, float(weight_text)) for addon, weight_text in map(_split_weight, with_weights(requests, ends)))
    return tuple(f"{addon}={max(-1.0, min(1.0, weight)):g}" for addon, weight in weights)


def describe_clipped_weights(requests: Sequence[str]) -> str:
    """Describe the reward of `with_clipped_weights`: `the wish 'energy' at weight 0.001`."""
    clipped = with_clipped_weights(requests)
    weights = [abs(float(_split_weight(request)[1])) for request in clipped]
    titles = combine_addons(clipped).titles
    each = [f"{title!r} at weight {weight:g}" for title, weight in zip(titles, weights, strict=True)]
    return f"the wish{'es' if len(requests) > 1 else ''} {' and '.join(each)}"


def enabling_option(request: str) -> str:
    """Return the environment's option without which it weighs an add-on that ships with 0, if there is one."""
    addon, _ = _split_weight(request)
    return REGISTERED[addon].option if addon in REGISTERED else ""


def _configured(name: str, entry: Registered, options: str) -> Function | StatefulAddon:
    """Make an add-on that ships with options such as `joint=bshin`."""
    parts = [part.strip() for part in options.split(",") if part.strip()]
    if not all("=" in part for part in parts):
        raise UsageError(f"add-on {name!r}: {options!r} does not say which option; write NAME(OPTION=VALUE)")
    values = dict(part.split("=", 1) for part in parts)
    known_options = inspect.signature(entry.make).parameters
    for key in values:
        if key not in known_options:
            raise UsageError(f"add-on {name!r} has no option {key!r}; it has {', '.join(known_options) or 'none'}")
    return entry.make(**values)


# Limits in units that a user knows: `energy<=0.09`, `hind_leg<=0.25`, `my_rewards.py:speed_error<=0.1` ----------------


FORM = re.compile(r"(.*\S)\s*([<>]=)\s*(\S+)")


@dataclass(frozen=True)
class Limit:
    """The mean of a quantity over all steps is to be at most `bound`, or at least (`sign` is then −1).

    What stands on the left is an add-on (by its metric, where it reports one for people), an entry of the environment's
    `info`, or a function of the user's own.
    """

    name: str
    sign: int
    bound: float

    @classmethod
    def of(cls, text: str) -> "Limit":
        """Parse `NAME<=NUMBER` or `NAME>=NUMBER`. Nothing is imported yet."""
        form = FORM.fullmatch(text.strip())
        if form is None or not math.isfinite(bound := parse_number(form[3])):
            raise UsageError(f"limit {text!r} is not of the form NAME<=NUMBER or NAME>=NUMBER")
        return cls(form[1], 1 if form[2] == "<=" else -1, bound)

    def __str__(self) -> str:
        return f"{_title(self.name)}{'<=' if self.sign > 0 else '>='}{self.bound:g}"

    @cached_property
    def quantity(self) -> Addon:
        """What is measured; a function of the user's own is imported here."""
        if import_target(self.name) or self.name.partition("(")[0] in REGISTERED:
            return combine_addons([self.name])
        why = f"a limit is on {self.name!r}, no FILE.py:NAME and no add-on, so it must stand"
        return Addon((self.name,), (lambda *arguments: info_entry(arguments[-1], self.name, why),), (1.0,))

    def values(self, rollout: Rollout, size: int | None = None, mean: bool = True) -> np.ndarray:
        """Return the quantity in each step `[T, N]`, of the first `size` numbers of each observation, or of all.

        A decision has its sum or, where `mean`, what a mean over decisions is taken of.
        """
        measure = self.quantity.metric if self.quantity.metric_source else self.quantity.reward
        return rollout.per_decision(measure(rollout.transitions.with_observation_size(size)), mean)

    def excess(self, value: Any) -> Any:
        """Return by how much a mean exceeds the bound (negative if it is within); arrays of means work, too."""
        return self.sign * (value - self.bound)


def parse_limits(texts: str | Sequence[str], env: str | None = None) -> tuple[Limit, ...]:
    """Parse the limits of a run; raise if two contradict or repeat each other, or would have the same name.

    With `env`, check that add-ons among them were made for it.
    """
    limits = tuple(map(Limit.of, [texts] if isinstance(texts, str) else texts))
    check_env([limit.name for limit in limits] if env else (), env or "")
    for index, one in enumerate(limits):
        for other in limits[:index]:
            if one.name == other.name and (one.sign == other.sign or one.excess(other.bound) > 0):
                problem = "name the same side twice" if one.sign == other.sign else "contradict each other"
                raise UsageError(f"the limits {other} and {one} {problem}: leave one of them out")
            if str(one) == str(other):  # multipliers and reports go by this text
                raise UsageError(f"limits on {other.name} and {one.name} would both be called {one}: rename a function")
    return limits
