"""Add-ons as a user types them, `hind_leg=10` or `my_rewards.py:quiet=0..2`: names, weights, ranges of weights.

Nothing is imported here: `addon.py` makes an add-on of such requests.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from repolicy.addons.registered import REGISTERED, Function
from repolicy.addons.wish_file import REQUEST, is_wish_file
from repolicy.errors import UsageError
from repolicy.loading import reference_to
from repolicy.ranges import Dial, Range
from repolicy.text import parse_number

Wish = str | Function | Sequence[str | Function]  # one add-on or several, by name or as functions


def requests_of(wish: Wish) -> tuple[str, ...]:
    """Return the requests, such as `height=0.5`, of a wish. A weight of 1 is left out: a wish has one spelling."""
    requests = list[str]()
    for each in wish if isinstance(wish, list | tuple) else (wish,):
        if isinstance(each, str):
            name, weight = split_weight(each)
            requests.append(name if parse_number(weight) == 1.0 else each)
        elif callable(each):
            requests.append(reference_to(each))
        else:
            raise UsageError(f"{each!r} is no add-on: give names, such as 'height=2', or functions, weighed inside")
    return tuple(requests)


def split_weight(request: str) -> tuple[str, str]:
    """Return (add-on, weight as text) of a request: `("height", "0.5")` of `height=0.5`."""
    place, colon, name = request.rpartition(":")  # a folder may have a name with = or ( in it
    head, equals, tail = name.rpartition("=")
    weighs = equals and not tail.endswith((")", ".safetensors"))
    return (f"{place}{colon}{head}", tail) if weighs else (request, "1")


def title_of(name: str) -> str:
    """Return the name of an add-on without its file."""
    wish = REQUEST.fullmatch(name)
    return Path(wish["path"]).stem if wish else name.rpartition(":")[2]


def titles_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without their files, if these differ from each other; else the full names."""
    short = tuple(map(title_of, names))
    return short if len(set(short)) == len(set(names)) else tuple(names)


def import_target(request: str) -> str:
    """Return the code or file that a request loads, `module:name` or `wish.safetensors`; empty for one that ships."""
    addon, _ = split_weight(request)
    return addon if ":" in addon or is_wish_file(addon) else ""


def enabling_option(request: str) -> str:
    """Return the environment's option without which it weighs an add-on that ships with 0, if there is one."""
    addon, _ = split_weight(request)
    return REGISTERED[addon].option if addon in REGISTERED else ""


# Ranges of weights: `quiet=0..2` --------------------------------------------------------------------------------------


def dials(requests: Sequence[str]) -> tuple[Dial, ...]:
    """Return the dials of the add-ons whose weight is a range. Each has the add-on's name, without its file."""
    ranges = []
    for request in requests:
        addon, weight_text = split_weight(request)
        try:
            if isinstance(weight := Range.of(weight_text), Range):
                ranges.append(Dial(title_of(addon), *weight, "linear").checked())
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
            request = f"{split_weight(request)[0]}={weight!r}"
        chosen.append(request)
    return tuple(chosen)


def with_clipped_weights(requests: Sequence[str]) -> tuple[str, ...]:
    """Return the requests with weights of at most 1, or −1; of a range, its upper end counts."""
    ends = {dial.name: dial.value(1.0) for dial in dials(requests)}
    weights = ((addon, float(weight_text)) for addon, weight_text in map(split_weight, with_weights(requests, ends)))
    return tuple(f"{addon}={max(-1.0, min(1.0, weight)):g}" for addon, weight in weights)


def describe_clipped_weights(requests: Sequence[str]) -> str:
    """Describe the reward of `with_clipped_weights`: `the wish 'energy' at weight 0.001`."""
    names, weights = zip(*map(split_weight, with_clipped_weights(requests)), strict=True)
    titles = titles_of(names)
    each = [f"{title!r} at weight {weight}" for title, weight in zip(titles, weights, strict=True)]
    return f"the wish{'es' if len(requests) > 1 else ''} {' and '.join(each)}"
