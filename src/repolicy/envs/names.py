"""Environments by name: an id of EnvPool's or Gymnasium's, or the user's own, with options behind a `?`."""

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import gymnasium

from repolicy.errors import UsageError, in_one_sentence
from repolicy.loading import SESSION, load_object, reference_to
from repolicy.priors import DecoderSpec
from repolicy.text import nearest

OBSERVE_OPTIONS = ("observe", "observe_critic")  # options of any environment, which name parts of an observation
TEXT_OPTIONS = ("sha256",)  # options that are no JSON: 12e4567 is no number there
RESET_PREFIX = "reset."  # before options that are given to each reset, not when the environment is made

Make = Callable[..., gymnasium.Env[Any, Any]]
EnvLike = str | Make


def env_name(env: EnvLike) -> str:
    """Return an environment's name; of a function that makes one, the name by which it is found again."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env) or not callable(env):
        raise UsageError(
            f"the environment is of type {type(env).__name__}; give its id, or a function that makes one "
            "(every process of a run makes environments of its own)"
        )
    return reference_to(env)


def find_session_only(references: Iterable[str]) -> str:
    """Return the first of these that other processes do not find, or nothing.

    Such are the functions of this session, and the ids that its own code registered with Gymnasium.
    """
    for reference in references:
        if reference.startswith(f"{SESSION}:"):
            return reference.removeprefix(f"{SESSION}:")
        spec = gymnasium.registry.get(reference.partition("?")[0])
        made_by = spec.entry_point if spec and spec.entry_point else "gymnasium"
        home = made_by if isinstance(made_by, str) else getattr(made_by, "__module__", "")
        if home.partition(".")[0] not in ("gymnasium", "envpool"):
            return reference
    return ""


def parse_env_name(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name alone of `HalfCheetah-v4?reset_noise_scale=0.2`, and the options with which it is made."""
    plain, options = _read(name)
    ours = (*OBSERVE_OPTIONS, *DecoderSpec._fields) if "decoder" in options else OBSERVE_OPTIONS
    return plain, {key: value for key, value in options.items() if key not in ours and not key.startswith(RESET_PREFIX)}


def reset_options(name: str) -> dict[str, Any]:
    """Return the options of each reset: `{"high": 0.2}` of `CartPole-v1?reset.high=0.2`."""
    return {
        key.removeprefix(RESET_PREFIX): value for key, value in _read(name)[1].items() if key.startswith(RESET_PREFIX)
    }


def decoder_options(name: str) -> DecoderSpec | None:
    """Return the options of `NAME?decoder=FILE&noise=8&chunk=4`; None where the environment takes plain actions."""
    _, options = _read(name)
    return DecoderSpec(*map(options.get, DecoderSpec._fields)) if "decoder" in options else None


def check_plain(name: str, what: str) -> None:
    """Refuse an environment that is acted in through a decoder, where the environment's own actions are needed."""
    if decoder_options(name) is not None:
        raise UsageError(f"{what} needs the environment's own actions, and in {name} a policy gives noise")


def chunk_length(name: str) -> int:
    """Return how many steps of the environment one action takes: as many as a decoder gives actions, else 1."""
    through = decoder_options(name)
    return 1 if through is None else int(through.chunk)


def with_decoder(name: str, file: str, noise: int, chunk: int, sha256: str = "") -> str:
    """Return the name of the environment whose actions are a generative policy's noise."""
    known = f"&sha256={sha256}" if sha256 else ""
    return f"{name}{'&' if '?' in name else '?'}decoder={file}&noise={noise}&chunk={chunk}{known}"


def observed_keys(name: str) -> tuple[str, ...]:
    """Return the keys of a Dict that `NAME?observe=KEY,KEY` asks for; where there are none, all are observed."""
    return _keys(name, "observe")


def critic_keys(name: str) -> tuple[str, ...]:
    """Return the keys of `NAME?observe_critic=KEY,KEY`; where it is empty, the critic sees what the policy sees."""
    return _keys(name, "observe_critic")


def with_observed_keys(name: str, keys: str = "", critic: str = "") -> str:
    """Return the name with `KEY,KEY` of the policy's and of the critic's parts, where these are given."""
    for option, wanted in zip(OBSERVE_OPTIONS, (keys, critic), strict=True):
        named = ",".join(_keys(name, option))
        if wanted and named not in ("", wanted):
            raise UsageError(f"environment {name!r} is to have {option}={wanted} too: name these parts only once")
        if wanted and not named:
            name += f"{'&' if '?' in name else '?'}{option}={wanted}"
    return name


def with_observed_keys_of(name: str, other: str) -> str:
    """Return the name with the parts that `other` has, where it has none of its own."""
    return with_observed_keys(
        name, *("" if _keys(name, option) else ",".join(_keys(other, option)) for option in OBSERVE_OPTIONS)
    )


def _keys(name: str, option: str) -> tuple[str, ...]:
    value = _read(name)[1].get(option, "")
    return tuple(str(value).split(",")) if value != "" else ()


def _read(name: str) -> tuple[str, dict[str, Any]]:
    plain, _, query = name.partition("?")
    options = {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not (key.removeprefix(RESET_PREFIX).isidentifier() and equals):
            raise UsageError(
                f"environment {name!r}: {part!r} is no option; write them as NAME?option=value&option=value"
            )
        try:
            options[key] = value if key in TEXT_OPTIONS else json.loads(value)
        except (ValueError, RecursionError):
            options[key] = value
    return plain, options


def import_target(name: str) -> str:
    """Return what making the environment imports, `module:name` or `file.py:name`; empty for a registered id."""
    plain, _ = parse_env_name(name)
    return plain if ":" in plain else ""


def is_in_gymnasium(name: str) -> bool:
    """Return whether Gymnasium can make it: an id that it knows, or the user's own."""
    return bool(import_target(name)) or parse_env_name(name)[0] in gymnasium.registry


@cache
def envpool_names() -> frozenset[str]:
    try:
        import envpool
    except ImportError:
        return frozenset()
    failed = getattr(sys.modules.get("envpool.procgen"), "_PROCGEN_IMPORT_ERROR", None)
    if failed is not None:  # EnvPool keeps it, and so all that stood on the stack, such as gigabytes of environments
        failed.__traceback__ = None
    return frozenset(envpool.list_all_envs())


class ResetWith(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment with options that every reset gets."""

    def __init__(self, env: gymnasium.Env[Any, Any], given: dict[str, Any]) -> None:
        super().__init__(env)
        self._given = given

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=self._given | (options or {}))


def env_maker(name: str) -> Make:
    """Return what makes one such environment of Gymnasium's, or of the user's own; it takes further options."""
    make, given = _plain_maker(name), reset_options(name)
    return (lambda **options: ResetWith(make(**options), given)) if given else make


def make_one_env(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return one such environment, or raise a sentence."""
    with (
        in_one_sentence(f"environment {name!r} cannot be made", UsageError),
        warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
    ):
        return env_maker(name)(**options)


def _plain_maker(name: str) -> Make:
    plain, options = parse_env_name(name)
    if own := import_target(name):
        try:
            function = load_object(own, "environment")
        except UsageError:
            registered = plain.rpartition(":")[2]
            if registered not in gymnasium.registry:
                raise
            return partial(gymnasium.make, registered, **options)  # module:id, which importing the module registers
        if not callable(function):
            raise UsageError(f"environment {plain!r} is not something that can be called to make one")
        return partial(function, **options)
    if not is_in_gymnasium(name):
        known = set(gymnasium.registry) | envpool_names()
        own = f"; to make one of your own, name what makes it: {plain}:NAME" if plain.endswith(".py") else ""
        raise UsageError(f"there is no environment {plain!r}{own or nearest(plain, known)}")
    return partial(gymnasium.make, plain, **options)
