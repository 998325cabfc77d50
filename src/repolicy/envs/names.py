"""Names of environments: an id of EnvPool or Gymnasium, or the user's own code, with options behind a `?`."""

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import gymnasium

from repolicy.errors import UsageError, describe_error, in_one_sentence
from repolicy.loading import SESSION, load_function, reference_to
from repolicy.priors import DecoderSpec
from repolicy.text import suggest

OBSERVE_OPTIONS = ("observe", "observe_critic")  # select parts of a Dict observation, in any environment
TEXT_OPTIONS = ("sha256",)  # never parsed as JSON, which would read 12e4567 as a number
RESET_PREFIX = "reset."  # marks options of each reset; others are options of the environment's constructor

Make = Callable[..., gymnasium.Env[Any, Any]]
EnvLike = str | Make


def env_name(env: EnvLike) -> str:
    """Return an environment's name; for a function that makes one, the reference by which it can be imported."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env) or not callable(env):
        need = "give its id, or a function that makes a new one at each call (a run needs many)"
        raise UsageError(f"the environment is of type {type(env).__name__}; {need}")
    return reference_to(env)


def find_session_only(references: Iterable[str]) -> str:
    """Return the first reference that other processes cannot resolve, or an empty string.

    These are functions of this session, and ids that its own code registered with Gymnasium.
    """
    for reference in references:
        if reference.startswith(f"{SESSION}:"):
            return reference.removeprefix(f"{SESSION}:")
        spec = gymnasium.registry.get(reference.partition("?")[0])
        entry_point = spec.entry_point if spec and spec.entry_point else "gymnasium"
        module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
        if module.partition(".")[0] not in ("gymnasium", "envpool"):
            return reference
    return ""


@dataclass(frozen=True)
class EnvName:
    """The parts of an environment's name, `ID?option=value&option=value`."""

    plain: str  # an id of EnvPool or Gymnasium, or the code that makes the environment
    options: dict[str, Any]  # of the constructor
    reset_options: dict[str, Any]  # of each reset: `{"high": 0.2}` for `CartPole-v1?reset.high=0.2`
    observed_keys: tuple[str, ...]  # parts of a Dict observation that the policy sees; empty: it sees all
    critic_keys: tuple[str, ...]  # parts that the critic sees; empty: it sees what the policy sees
    decoder: DecoderSpec | None  # of `ID?decoder=FILE&noise=8&chunk=4`; None if the environment takes plain actions
    title: str  # the name without its decoder, for titles: its path and checksum tell other readers nothing

    @property
    def chunk_length(self) -> int:
        """The number of environment steps of one action: the decoder's chunk, or 1 without a decoder."""
        return 1 if self.decoder is None else int(self.decoder.chunk)

    @property
    def is_judged_by_mean(self) -> bool:
        """Whether a policy's mean action decides about it: nobody uses a generative policy with its mean noise."""
        return self.decoder is None

    @property
    def import_target(self) -> str:
        """The code that makes the environment, `module:name` or `file.py:name`; empty for an id."""
        return self.plain if ":" in self.plain else ""

    @property
    def is_in_gymnasium(self) -> bool:
        """Whether it is made as a Gymnasium environment: by the user's code, or by an id that Gymnasium knows."""
        return bool(self.import_target) or self.plain in gymnasium.registry

    def check_copyable(self, remedy: str = "") -> None:
        """Raise where EnvPool alone has the environment; the message ends with `remedy`."""
        if not self.is_in_gymnasium:
            raise UsageError(f"{self.plain} is EnvPool's alone, whose environments cannot be copied{remedy}")


def parse_env_name(name: str) -> EnvName:
    """Return the parts of a name; `HalfCheetah-v4?reset_noise_scale=0.2` has one option, of the constructor."""
    plain, options = _split_options(name)
    selected = (str(options.pop(option, "")) for option in OBSERVE_OPTIONS)
    observed_keys, critic_keys = (tuple(keys.split(",")) if keys else () for keys in selected)
    decoder, title = None, name
    if "decoder" in options:
        parts = name.partition("?")[2].split("&")
        own = [part for part in parts if part.partition("=")[0] not in DecoderSpec._fields]
        title = "?".join([plain, *(["&".join(own)] if own else [])])
        decoder = DecoderSpec(*(options.pop(field, None) for field in DecoderSpec._fields))
    at_reset = {key: options.pop(key) for key in [*options] if key.startswith(RESET_PREFIX)}
    reset_options = {key.removeprefix(RESET_PREFIX): value for key, value in at_reset.items()}
    return EnvName(plain, options, reset_options, observed_keys, critic_keys, decoder, title)


def check_plain(name: str, command: str) -> None:
    """Raise if the environment has a decoder: the command needs the environment's own actions."""
    if parse_env_name(name).decoder is not None:
        raise UsageError(f"{command} needs the environment's own actions, and in {name} a policy gives noise")


def with_option(name: str, option: str) -> str:
    """Return an environment's name with an option more, `KEY=VALUE`."""
    return f"{name}{'&' if '?' in name else '?'}{option}"


def with_decoder(name: str, file: str, noise: int, chunk: int, sha256: str = "") -> str:
    """Return the name of the environment in which an action is the noise of a generative policy."""
    if "&" in file:
        raise UsageError(f"{file}: the path of a decoder may not hold &, which stands between options: rename it")
    digest = f"&sha256={sha256}" if sha256 else ""
    return with_option(name, f"decoder={file}&noise={noise}&chunk={chunk}{digest}")


def with_observed_keys(name: str, keys: str = "", critic: str = "") -> str:
    """Return the name with `KEY,KEY` for the policy and for the critic added, if given; raise if it has others."""
    parsed = parse_env_name(name)
    present_keys = parsed.observed_keys, parsed.critic_keys
    for option, added, present in zip(OBSERVE_OPTIONS, (keys, critic), map(",".join, present_keys), strict=True):
        if added and present not in ("", added):
            raise UsageError(f"environment {name!r} is to have {option}={added} too: name these parts only once")
        if added and not present:
            name = with_option(name, f"{option}={added}")
    return name


def with_observed_keys_of(name: str, other: str) -> str:
    """Return the name with the parts that `other` selects, unless it selects its own."""
    own, others = parse_env_name(name), parse_env_name(other)
    rows = zip(
        OBSERVE_OPTIONS, (own.observed_keys, own.critic_keys), (others.observed_keys, others.critic_keys), strict=True
    )
    for option, present, added in sorted(rows, key=lambda row: other.find(f"{row[0]}=")):  # in the order of `other`
        if added and not present:
            name = with_option(name, f"{option}={','.join(added)}")
    return name


LITERALS = {"True": "true", "False": "false", "None": "null"}  # Python's words, which are no JSON


def _split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Return what stands before the `?`, and all options, as JSON values or else as text."""
    plain, _, query = name.partition("?")
    options: dict[str, Any] = {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not (key.removeprefix(RESET_PREFIX).isidentifier() and equals):
            raise UsageError(f"environment {name!r}: {part!r} is no option; write NAME?option=value&option=value")
        if key in options:
            raise UsageError(f"environment {name!r} sets {key} more than once: leave one out")
        try:
            options[key] = value if key in TEXT_OPTIONS else json.loads(LITERALS.get(value, value))
        except (ValueError, RecursionError):  # text, or brackets as deep as a forged file may have
            options[key] = value
    return plain, options


@cache
def why_no_envpool() -> str:
    """Return why EnvPool cannot be used here; empty where it can. Warns where it is there and cannot be imported."""
    if find_spec("envpool") is None:
        return "is not installed"
    try:
        import envpool  # noqa: F401
    except ImportError as error:
        why = f"cannot be imported: {describe_error(error)}"
        warnings.warn(f"EnvPool {why}; Gymnasium's environments are used, which are slower", stacklevel=2)
        return why
    return ""


@cache
def envpool_names() -> frozenset[str]:
    """Return the ids of EnvPool's environments; none where it cannot be used."""
    if why_no_envpool():
        return frozenset()
    import envpool

    error = getattr(sys.modules.get("envpool.procgen"), "_PROCGEN_IMPORT_ERROR", None)
    if error is not None:  # EnvPool stores this error; its traceback would keep our callers' locals in memory
        error.__traceback__ = None
    return frozenset(envpool.list_all_envs())


class ResetWith(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment, with options that are passed to every reset."""

    def __init__(self, env: gymnasium.Env[Any, Any], reset_options: dict[str, Any]) -> None:
        super().__init__(env)
        self._reset_options = reset_options

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=self._reset_options | (options or {}))


def _made_by(function: Callable[..., Any], name: str, **options: Any) -> Any:
    """Return the environment that a user's function makes; raise unless it is one of Gymnasium's kind."""
    env = function(**options)
    if not isinstance(env, gymnasium.Env):
        kind = f"environment {name!r} is of the class {type(env).__name__}"
        raise UsageError(f"{kind}, which is no gymnasium.Env: it must be one environment of one agent")
    return env


def env_maker(name: str) -> Make:
    """Return a function that makes one Gymnasium environment; it takes further options of the constructor."""
    make, at_reset = _constructor(name), parse_env_name(name).reset_options

    def make_one(**options: Any) -> gymnasium.Env[Any, Any]:
        with contextlib.chdir("."):  # a maker may change the working folder, and our paths may be relative
            env = make(**options)
        return ResetWith(env, at_reset) if at_reset else env

    return make_one


def make_one_env(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make one Gymnasium environment; raise an error of one sentence if that fails."""
    with (
        in_one_sentence(f"environment {name!r} cannot be made", UsageError),
        warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
    ):
        return env_maker(name)(**options)


def _constructor(name: str) -> Make:
    """Return the user's function or `gymnasium.make`, with the name's options, but not those of each reset."""
    parsed = parse_env_name(name)
    plain, options = parsed.plain, parsed.options
    if parsed.import_target:
        try:
            function = load_function(plain, "environment")
        except UsageError:
            # In `module:id`, importing the module registers the id.
            registered = plain.rpartition(":")[2]
            if registered not in gymnasium.registry:
                raise
            return partial(gymnasium.make, registered, **options)
        return partial(_made_by, function, plain, **options)
    if plain not in gymnasium.registry:
        hint = suggest(plain, set(gymnasium.registry) | envpool_names())
        if plain.endswith(".py"):
            hint = f"; to make one of your own, name what makes it: {plain}:NAME"
        else:
            hint += " (an id that a module of yours registers is MODULE:ID)"
            if why := why_no_envpool():
                hint += f"; EnvPool, which has more of them, {why}"
        raise UsageError(f"there is no environment {plain!r}{hint}")
    if str(gymnasium.registry[plain].entry_point).startswith("gymnasium.envs.mujoco") and not find_spec("mujoco"):
        raise UsageError(f"environment {plain!r} needs MuJoCo, which is not installed: pip install 'repolicy[engine]'")
    return partial(gymnasium.make, plain, **options)
