"""The file of a learnt wish: a reward θ·f(s, a, s′) with weights θ of features f, or an ensemble of networks.

Features are entries of observation, action and next observation, which need no code, or a function of the user's own.
The file only names that function. It is imported if the user types its name: `wish.safetensors(features=my.py:f)`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.envs import Info
from repolicy.errors import FileError, NumericError, UsageError, in_one_sentence
from repolicy.files import check_shape
from repolicy.loading import load_function, reference_to
from repolicy.policies.storage import read, write
from repolicy.text import printable, strip_version

REQUEST = re.compile(r"(?P<path>.+\.safetensors)(?:\(features=(?P<features>[^()]+)\))?")
ENTRY = re.compile(r"(observation|action|next)(?:\[(\d+)(?::(\d+))?\])?(?:\^(\d+(?:\.\d+)?))?")
HEADER = {"env": str, "policy": str, "features": str, "names": [str], "from": str, "sizes": [int]}
NETWORK_TENSORS = ("shift", "scale", "first", "bias", "second")  # fields of `Networks`
Function = Callable[..., Any]


@dataclass(frozen=True)
class Features:
    """The K features of a wish; an instance maps `(observations, actions, next_observations, info)` to `[B, K]`.

    reference: entries such as `next[2]^1,action^2`, where ^p is the p-th power of the absolute value; or
    `file.py:function`.
    """

    reference: str
    function: Function | None = None  # None for entries

    @classmethod
    def of(cls, named: str | Function) -> "Features":
        """Return the features that the user named or handed over; code is imported here."""
        reference = named if isinstance(named, str) else reference_to(named)
        entries = [part.strip() for part in reference.split(",")]
        if needs_no_code(reference):
            return cls(",".join(entries))
        source, _, name = reference.rpartition(":")
        if not (source and name.isidentifier()) or any(ENTRY.fullmatch(entry) for entry in entries):
            raise UsageError(
                f"features {reference!r} are none: name entries such as next[2], action^2 or observation[0:3], with "
                "commas between them, or file.py:function"
            )
        return cls(reference, load_function(reference, "features"))

    def __call__(self, observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Info) -> np.ndarray:
        if self.function is None:
            parts = {"observation": observations, "action": actions, "next": after}
            values = np.concatenate([self._entry(entry, parts) for entry in self.reference.split(",")], 1)
        else:
            with in_one_sentence(f"features {self.reference!r} failed", UsageError):
                values = np.asarray(self.function(observations.copy(), actions.copy(), after.copy(), info), np.float64)
        if values.ndim != 2 or len(values) != len(observations) or not values.shape[1]:
            message = f"features {self.reference!r} returned shape {values.shape} for {len(observations)} transitions"
            raise UsageError(f"{message}, not one row of numbers each")
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise NumericError(f"features {self.reference!r} returned {values[row, column]} as number {column}")
        return values

    def _entry(self, entry: str, parts: dict[str, np.ndarray]) -> np.ndarray:
        """Return the features of one entry, `[B, K]`."""
        part, places, power = _parse_entry(entry)
        count = parts[part].shape[1]
        if not range(count)[places] or (places.stop or 0) > count:
            raise UsageError(f"feature {entry!r} is no range of the {count} numbers that there are")
        chosen = parts[part][:, places].astype(np.float64)
        return chosen if power is None else np.abs(chosen) ** power

    def names(self, count: int, sizes: tuple[int, int]) -> tuple[str, ...]:
        """Return a name for each of `count` features; `sizes`: of observation and action."""
        if self.function is not None:
            return tuple(f"{self.reference.rpartition(':')[2]}[{k}]" for k in range(count))
        names = list[str]()
        for entry in self.reference.split(","):
            part, places, power = _parse_entry(entry)
            suffix = "" if power is None else f"^{power:g}"
            names += [f"{part}[{k}]{suffix}" for k in range(sizes[part == "action"])[places]]
        return tuple(names)


def needs_no_code(reference: str) -> bool:
    """Return whether features are entries of observation, action and next observation."""
    return all(ENTRY.fullmatch(entry.strip()) for entry in reference.split(","))


def _parse_entry(entry: str) -> tuple[str, slice, float | None]:
    """Return (part, places in it, power) of an entry; the slice of a whole part has no ends."""
    match = ENTRY.fullmatch(entry)
    assert match is not None
    part, first, end, power = match.groups()
    places = slice(None) if first is None else slice(int(first), int(end or int(first) + 1))
    return part, places, None if power is None else float(power)


@dataclass(frozen=True)
class Networks:
    """An ensemble of E networks, whose mean is the reward: w₂·tanh(W₁·(x − shift)/scale + b₁) each, of inputs x."""

    shift: Tensor  # [I]
    scale: Tensor  # [I]
    first: Tensor  # [E, I, H]
    bias: Tensor  # [E, H]
    second: Tensor  # [E, H]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return each network's reward `[E, B]` of inputs `[B, I]`."""
        rows = (inputs - self.shift) / self.scale
        hidden = torch.tanh(torch.einsum("bi,eih->ebh", rows, self.first) + self.bias[:, None])
        return torch.einsum("ebh,eh->eb", hidden, self.second)


def network_inputs(observations: np.ndarray, actions: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the inputs of `Networks`, `[..., I]`."""
    return np.concatenate([observations, actions, after], -1).astype(np.float32)


@dataclass(frozen=True)
class LearntWish:
    """An add-on that was learnt from a person's choices or demonstrations; it has features or networks."""

    env: str
    policy: str  # fingerprint of the policy from which it was learnt
    source: str  # what it was learnt from, in words
    sizes: tuple[int, int]  # of observation and action
    features: Features | None
    names: tuple[str, ...] = ()  # of the features
    theta: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [K]
    covariance: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [K, K] of theta
    groups: int = 0  # the number of independent groups behind the covariance; the file does not keep it
    networks: Networks | None = None

    def __call__(self, observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Info) -> np.ndarray:
        sizes = (observations.shape[1], actions.shape[1])
        if sizes != self.sizes:
            learnt = f"it was learnt of {self.sizes[0]} observed numbers and {self.sizes[1]} of an action in {self.env}"
            raise UsageError(f"{learnt}, and here are {sizes[0]} and {sizes[1]}")
        if self.networks is not None:
            inputs = torch.from_numpy(network_inputs(observations, actions, after))
            return self.networks(inputs).mean(0).numpy().astype(np.float64)
        assert self.features is not None
        values = self.features(observations, actions, after, info)
        if values.shape[1] != len(self.theta):
            raise UsageError(f"its features are {values.shape[1]} now, and were {len(self.theta)}: learn it again")
        return values @ self.theta

    def write(self, path: str | Path) -> None:
        """Write the wish's file, which every command takes as an add-on."""
        header = {
            "env": self.env, "policy": self.policy, "from": self.source, "sizes": list(self.sizes),
            "names": list(self.names), "features": self.features.reference if self.features else "",
        }  # fmt: skip
        tensors = {"theta": torch.from_numpy(self.theta), "covariance": torch.from_numpy(self.covariance)}
        if self.networks is not None:
            tensors = {name: getattr(self.networks, name) for name in NETWORK_TENSORS}
        write(Path(path), "wish", tensors, header)


def open_wish(request: str) -> LearntWish:
    """Return the wish of `wish.safetensors` or, if its features are code, `wish.safetensors(features=my.py:f)`."""
    match = REQUEST.fullmatch(request)
    if match is None:
        raise UsageError(f"{request} does not end in .safetensors, and a wish is known by that")
    path, features = Path(match["path"]), match["features"]
    tensors, header = read(path, "wish")
    check_shape(header, HEADER, str(path))
    origin = (header["env"], header["policy"], header["from"], tuple(header["sizes"]))
    named_features = header["features"]

    # Check that the tensors are those of features or of networks.
    expected = {"theta", "covariance"} if named_features else set(NETWORK_TENSORS)
    is_valid = {*tensors} == expected and len(header["sizes"]) == 2
    is_valid = is_valid and all(tensor.isfinite().all() for tensor in tensors.values())
    if is_valid and named_features:
        count = len(header["names"])
        is_valid = tensors["theta"].shape == (count,) and tensors["covariance"].shape == (count, count)
    if not is_valid:
        raise FileError(f"{path} is no wish that can be used: its numbers are not those of one")
    if not named_features:
        return LearntWish(*origin, None, networks=Networks(*(tensors[name] for name in NETWORK_TENSORS)))

    # The file may have moved, so the user's reference must agree with the file's in the function's name only.
    if features and features.rpartition(":")[2] != named_features.rpartition(":")[2]:
        raise UsageError(f"{path} is a wish of the features {printable(named_features, 200)}, not of {features}")
    if not (features or needs_no_code(named_features)):
        code = printable(named_features, 200)
        message = f"{path} names code that would be run: {code}; if you trust it, type that yourself"
        raise UsageError(f"{message}: '{wish_request(path, code)}'")
    theta, covariance = (tensors[name].double().numpy() for name in ("theta", "covariance"))
    used_features = Features.of(features or named_features)
    return LearntWish(*origin, used_features, names=tuple(header["names"]), theta=theta, covariance=covariance)


def wish_request(path: Path, features: str) -> str:
    """Return the name of a wish's file as a user types it: with its features, if they are code."""
    return str(path) if not features or needs_no_code(features) else f"{path}(features={features})"


def is_wish_file(request: str) -> bool:
    """Return whether an add-on's request names the file of a learnt wish."""
    return REQUEST.fullmatch(request) is not None


def are_same_env(one: str, other: str) -> bool:
    """Return whether two names are of one environment. Code may have moved, or be named from another folder."""
    return one == other or (":" in one and ":" in other and Path(one).name == Path(other).name)


def check_same_env(request: str, env: str) -> None:
    """Raise if the wish was learnt in another environment."""
    wish = open_wish(request)
    if not are_same_env(strip_version(wish.env), strip_version(env)):
        raise UsageError(f"the wish {request} was learnt in {printable(wish.env, 100)}, not in {env}")
