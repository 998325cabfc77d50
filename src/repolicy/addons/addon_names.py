"""Add-ons as a user types them, `hind_leg=10` or `my_rewards.py:quiet=0..2`: names, weights, ranges of weights.

Nothing is imported here: `addon.py` makes an add-on of such wishes.
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


def wishes_of(wish: Wish) -> tuple[str, ...]:
    """Return each add-on of a wish as text, such as `height=0.5`. A weight of 1 is left out: there is one spelling."""
    wishes = list[str]()
    for each in wish if isinstance(wish, list | tuple) else (wish,):
        if isinstance(each, str):
            name, weight = split_weight(each)
            wishes.append(name if parse_number(weight) == 1.0 else each)
        elif callable(each):
            wishes.append(reference_to(each))
        else:
            raise UsageError(f"{each!r} is no add-on: give names, such as 'height=2', or functions, weighed inside")
    return tuple(wishes)


def split_weight(wish: str) -> tuple[str, str]:
    """Return (add-on, weight as text) of a wish: `("height", "0.5")` of `height=0.5`."""
    place, colon, name = wish.rpartition(":")  # a folder may have a name with = or ( in it
    head, equals, tail = name.rpartition("=")
    weighs = equals and not tail.endswith((")", ".safetensors"))
    return (f"{place}{colon}{head}", tail) if weighs else (wish, "1")


def title_of(name: str) -> str:
    """Return the name of an add-on without its file."""
    wish = REQUEST.fullmatch(name)
    return Path(wish["path"]).stem if wish else name.rpartition(":")[2]


def titles_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without their files, if these differ from each other; else the full names."""
    short = tuple(map(title_of, names))
    return short if len(set(short)) == len(set(names)) else tuple(names)


def import_target(wish: str) -> str:
    """Return the code or file that a wish loads, `module:name` or `wish.safetensors`; empty for one that ships."""
    addon, _ = split_weight(wish)
    return addon if ":" in addon or is_wish_file(addon) else ""


def enabling_option(wish: str) -> str:
    """Return the environment's option without which it weighs an add-on that ships with 0, if there is one."""
    addon, _ = split_weight(wish)
    return REGISTERED[addon].option if addon in REGISTERED else ""


# Ranges of weights: `quiet=0..2` --------------------------------------------------------------------------------------


def dials(wishes: Sequence[str]) -> tuple[Dial, ...]:
    """Return the dials of the add-ons whose weight is a range. Each has the add-on's name, without its file."""
    ranges = []
    for wish in wishes:
        addon, weight_text = split_weight(wish)
        try:
            if isinstance(weight := Range.of(weight_text), Range):
                ranges.append(Dial(title_of(addon), *weight, "linear").checked())
        except ValueError:
            raise UsageError(
                f"add-on {wish!r}: {weight_text!r} is no weight; write NAME=10, or NAME=0..2 for a range"
            ) from None
    return tuple(ranges)


def with_weights(wishes: Sequence[str], values: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """Return the wishes with one weight for each range: that of its name or, where there is none, its middle."""
    chosen = []
    for wish in wishes:
        for dial in dials([wish]):
            weight = float((values or {}).get(dial.name, dial.value(0.0)))
            wish = f"{split_weight(wish)[0]}={weight!r}"
        chosen.append(wish)
    return tuple(chosen)


def with_clipped_weights(wishes: Sequence[str]) -> tuple[str, ...]:
    """Return the wishes with weights of at most 1, or −1; of a range, its upper end counts."""
    ends = {dial.name: dial.value(1.0) for dial in dials(wishes)}
    weights = ((addon, float(weight_text)) for addon, weight_text in map(split_weight, with_weights(wishes, ends)))
    return tuple(f"{addon}={max(-1.0, min(1.0, weight)):g}" for addon, weight in weights)


def describe_clipped_weights(wishes: Sequence[str]) -> str:
    """Describe the reward of `with_clipped_weights`: `the wish 'energy' at weight 0.001`."""
    names, weights = zip(*map(split_weight, with_clipped_weights(wishes)), strict=True)
    titles = titles_of(names)
    each = [f"{title!r} at weight {weight}" for title, weight in zip(titles, weights, strict=True)]
    return f"the wish{'es' if len(wishes) > 1 else ''} {' and '.join(each)}"
