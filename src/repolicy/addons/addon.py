"""Add-on rewards: functions of batches of steps, `(observations, actions, next_observations, info) -> rewards [B]`.

    repolicy customize halfcheetah --addon hind_leg
    repolicy customize hopper --addon height=1.0 --addon my_rewards.py:quiet=0.1
    repolicy customize hopper --addon wish.safetensors=2

`registered.py` holds the add-ons that ship. A user names their own as `module:function` or `file.py:function`, and a
learnt wish by its file. A class is a stateful add-on (`gaits.py`). Several add-ons are summed with weights. If a
function has an attribute `metric`, a function of the same arguments, reports show that metric.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from repolicy.addons.addon_names import Wish, import_target, split_weight, titles_of, wishes_of
from repolicy.addons.registered import DEFAULT_LAYOUT, REGISTERED, Function, Registered
from repolicy.addons.wish_file import LearntWish, check_same_env, is_wish_file, open_wish
from repolicy.envs import StatefulAddon, Transitions, parse_env_name
from repolicy.errors import NumericError, UsageError, describe_error, in_one_sentence
from repolicy.loading import load_function
from repolicy.text import parse_number, strip_version, suggest

ARGUMENTS = ("observations", "actions", "next_observations", "info")  # of an add-on's function


class Metric(NamedTuple):
    """What reports show in place of an add-on's reward."""

    name: str
    function: Function | StatefulAddon  # like that of an add-on
    convert: Callable[[np.ndarray], np.ndarray]  # from the function's values to the metric


@dataclass(frozen=True)
class AddonTerm:
    """One add-on of a sum."""

    name: str
    function: Function | StatefulAddon
    weight: float = 1.0
    metric: Metric | None = None


@dataclass(frozen=True)
class Addon:
    """A weighted sum of add-on functions."""

    terms: tuple[AddonTerm, ...]

    @property
    def metric(self) -> Metric | None:
        """The metric of the first term that has one."""
        return next((term.metric for term in self.terms if term.metric), None)

    @property
    def metric_name(self) -> str:
        return self.metric.name if self.metric else ""

    @property
    def titles(self) -> tuple[str, ...]:
        """The names without their files, if these differ from each other; else the full names."""
        return titles_of([term.name for term in self.terms])

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(term.weight for term in self.terms)

    @property
    def descriptions(self) -> dict[str, str]:
        """What each add-on rewards, by its title: the first paragraph of its function's docstring, if it has one."""
        found = {}
        for term, title in zip(self.terms, self.titles, strict=True):
            entry = REGISTERED.get(term.name.partition("(")[0])
            documented = entry.make if entry else term.function
            if inspect.isfunction(documented) and documented.__doc__:
                found[title] = " ".join(inspect.cleandoc(documented.__doc__).partition("\n\n")[0].split())
        return found

    @property
    def largest_weight(self) -> float:
        """The largest absolute weight; 1 without add-ons."""
        return max(map(abs, self.weights), default=1.0)

    @property
    def stateful_names(self) -> tuple[str, ...]:
        """The names of the stateful add-ons."""
        return tuple(term.name for term in self.terms if isinstance(term.function, StatefulAddon))

    def reward(self, steps: Transitions) -> np.ndarray:
        """Return the summed rewards `[...]` of transitions with observations `[..., O]`."""
        return sum(self.weighted_rewards(steps), np.zeros(steps.observations.shape[:-1]))

    def weighted_rewards(self, steps: Transitions) -> Iterator[np.ndarray]:
        """Yield the rewards of each term, times its weight."""
        rows = steps.flattened()
        for term in self.terms:
            entry = REGISTERED.get(term.name.partition("(")[0])
            made_for = f" (made for {entry.envs[0]})" if entry and entry.envs else ""  # explains a wrong index
            rewards = term.weight * _call_function(f"add-on {term.name!r}{made_for}", term.function, rows)
            yield rewards.reshape(steps.observations.shape[:-1])

    def metric_values(self, steps: Transitions) -> np.ndarray:
        """Return the values `[...]` of the metric in transitions; the add-on must have one."""
        assert self.metric is not None
        values = _call_function(f"the add-on's metric {self.metric.name!r}", self.metric.function, steps.flattened())
        return self.metric.convert(values).reshape(steps.observations.shape[:-1])


def _call_function(name: str, function: Function | StatefulAddon, rows: Transitions) -> np.ndarray:
    """Call an add-on's function with flattened transitions, and return its values `[B]`.

    Raises an error that begins with `name` if the function fails or returns anything but finite numbers `[B]`.
    """
    _, actions, after, info, past = rows
    with in_one_sentence(f"{name} failed", UsageError):
        copies = rows.map(np.copy)  # the function may change its arguments in place
        try:
            if isinstance(function, StatefulAddon):
                assert past is not None, "an add-on that has a past needs the steps in their order"
                returned: Any = past.rewards(function, copies)
            else:
                returned = function(*copies[:4])
            if returned is None:
                raise UsageError(f"{name} returned None: it has no `return`, or one without a value")
            rewards = np.asarray(returned, np.float64)
        except KeyError as error:
            keys = ", ".join(sorted(map(str, info))) or "nothing"
            remedy = "what only some steps tell is read by info.get(NAME, np.zeros(len(actions)))"
            raise UsageError(f"{name} failed: {describe_error(error)}; info has {keys}; {remedy}") from error
    count = len(actions)
    if rewards.shape != (count,):
        shape = f"shape {rewards.shape}" if rewards.shape else "one number"
        raise UsageError(f"{name} returned {shape} for {count} transitions, not one number each")
    if len(wrong := np.flatnonzero(~np.isfinite(rewards))):
        first = wrong[0]
        seen, did = (np.array2string(row, precision=4, threshold=6) for row in (after[first], actions[first]))
        raise NumericError(
            f"{name} returned {rewards[first]:g} for {len(wrong):,} of {count:,} transitions; the first has "
            f"next_observations {seen} and actions {did}"
        )
    return rewards


def check_env(wishes: Sequence[str], env: str) -> None:
    """Raise if an add-on was made for another environment: its indices would then mean something else."""
    own = "write your own and name it as file.py:function"
    for wish in wishes:
        addon, _ = split_weight(wish)
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


def load_addon(wish: Wish, env: str) -> Addon | None:
    """Return the add-on of a wish after checking that it fits the environment; None for an empty wish."""
    wishes = wishes_of(wish)
    check_env(wishes, env)
    return combine_addons(wishes) if wishes else None


def combine_addons(wishes: Sequence[str]) -> Addon:
    """Return one add-on of wishes such as `height`, `height=0.5`, `hind_leg(joint=bshin)=2` or `my.py:quiet=0.1`."""
    return Addon(tuple(map(load_term, wishes)))


def weighted_wish(wish: str) -> LearntWish:
    """Return the learnt wish that is named as `wish.safetensors=2`, with θ times its weight."""
    addon, _ = split_weight(wish)
    learnt = open_wish(addon)
    return replace(learnt, theta=load_term(wish).weight * learnt.theta)


def load_term(wish: str) -> AddonTerm:
    """Return the term of one wish; a user's own code is imported here."""
    addon, weight_text = split_weight(wish)
    if ".." in weight_text:
        raise UsageError(
            f"add-on {wish!r} has a range of weights, which goes with `repolicy customize`; write one, as NAME=0.5"
        )
    if not math.isfinite(weight := parse_number(weight_text)):
        forms = "NAME=0.5 or, with an option, NAME(OPTION=VALUE)=0.5"
        raise UsageError(f"add-on {wish!r}: {weight_text!r} is not a weight; write {forms}")
    if is_wish_file(addon):
        return AddonTerm(addon, open_wish(addon), weight)
    if own := import_target(wish):
        code = load_function(own, "add-on")
        reported = getattr(code, "metric", None)
        name = getattr(reported, "__name__", "<lambda>")
        title = "mean metric" if name == "<lambda>" else f"mean {name}"
        metric = None if reported is None else Metric(title, reported, lambda values: values)
        if inspect.isclass(code.func if isinstance(code, partial) else code):
            return AddonTerm(own, StatefulAddon(code), weight, metric)
        _check_parameters(own, code)
        return AddonTerm(own, code, weight, metric)
    name, _, options = addon.partition("(")
    if name not in REGISTERED:
        problem = f"there is no add-on {name!r}{suggest(name, REGISTERED)}"
        raise UsageError(f"{problem}; name your own as module:function or file.py:function")
    entry = REGISTERED[name]
    function = _configured(name, entry, options.removesuffix(")"))
    return AddonTerm(addon, function, weight, Metric(entry.metric, function, entry.measure))


def _check_parameters(name: str, function: Function) -> None:
    """Raise if a user's function cannot be called with the four arguments of an add-on."""
    try:
        parameters = inspect.signature(function)
    except ValueError:  # of a function that is written in C
        return
    try:
        parameters.bind(*ARGUMENTS)
    except TypeError:
        problem = f"add-on {name!r} takes {parameters}, and is called with ({', '.join(ARGUMENTS)})"
        classes = "the class itself, or functools.partial(CLASS, ARGUMENT)"
        remedy = f"; to be called with began, too, name {classes}" if "began" in parameters.parameters else ""
        raise UsageError(problem + remedy) from None


def _configured(name: str, entry: Registered, options: str) -> Function | StatefulAddon:
    """Make an add-on that ships with options such as `joint=bshin`."""
    known_options, values = inspect.signature(entry.make).parameters, dict[str, str]()
    for part in options.split(",") if options else ():
        key, _, value = part.strip().partition("=")
        if key not in known_options:
            raise UsageError(f"add-on {name!r} has no option {key!r}; it has {', '.join(known_options) or 'none'}")
        if key in values:
            raise UsageError(f"add-on {name!r} has the option {key!r} twice")
        values[key] = value
    return entry.make(**values)
