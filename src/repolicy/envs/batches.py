"""EnvPool's and Gymnasium's batches of environments behind the `Step` contract."""

import copy
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from repolicy.envs.names import Make, env_maker, parse_env_name
from repolicy.envs.step import NUMBERS, Batch, check_reward, flatten_observations, shapes
from repolicy.envs.watchdog import ENV_CALL
from repolicy.errors import RepolicyError, UsageError, in_one_sentence
from repolicy.text import suggest

# Options that a run sets itself.
RESERVED_OPTIONS = ("num_envs", "num_threads", "seed", "env_type", "batch_size", "max_num_players")
INFO_TYPES = (*NUMBERS, np.bool_)
NO_LIMIT = 2**31 - 1  # steps, in EnvPool's words


class EnvPoolEnvs(Batch):
    """EnvPool's environments, which step in C++ in one thread. With `filmed=(width, height)` they can `render`."""

    backend = "envpool"

    def __init__(
        self, name: str, count: int, seed: int, filmed: tuple[int, int] | None = None, *, critic: bool = False
    ) -> None:
        import envpool

        self.name, self.count = name, count
        parsed = parse_env_name(name)
        plain, options = parsed.plain, parsed.options
        if own := next((key for key in RESERVED_OPTIONS if key in options), ""):
            raise UsageError(f"environment {plain!r}: {own!r} is Repolicy's own to set: use --envs and --seed instead")
        if filmed is not None:
            options |= {"render_mode": "rgb_array", "render_width": filmed[0], "render_height": filmed[1]}
        with in_one_sentence(f"environment {name!r} cannot be made", UsageError):
            try:
                self._pool = envpool.make(
                    plain, env_type="gymnasium", num_envs=count, num_threads=1, seed=seed % 2**31, **options
                )
            except TypeError:  # its own message is the whole signature
                known = envpool.make_spec(plain).config._asdict()
                wrong = next((key for key in options if key not in known), None)
                problem = f"does not take {options}: a value is of the wrong kind"
                if wrong is not None:
                    remedy = suggest(wrong, known) or "; Gymnasium's may have it: --backend gymnasium"
                    problem = f"has no option {wrong!r} in EnvPool{remedy}"
                raise UsageError(f"environment {plain!r} {problem}") from None
        with warnings.catch_warnings(action="ignore"):  # EnvPool rounds the bounds of its spaces to float32, loudly
            self.note_spaces(self._pool.observation_space, self._pool.action_space, critic)
        self._step = self._pool.step

    def reset(self) -> np.ndarray:
        return self.flat(self.call(self._pool.reset)[0])

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        fresh, info = self.call(self._pool.reset, np.flatnonzero(which).astype(np.int32))
        observations = observations.copy()
        observations[info["env_id"]] = self.flat(fresh, int(which.sum()))
        return observations

    @property
    def limit(self) -> int | None:
        steps: int | None = getattr(self._pool.spec.config, "max_episode_steps", None)
        return None if steps == NO_LIMIT else steps

    @property
    def steps_a_second(self) -> float:
        """Control steps per second of simulated time; 30 where neither the task nor Gymnasium's of that id says."""
        if (period := getattr(self._pool.spec.config, "ctrl_dt", None)) is not None:
            return 1.0 / float(period)
        named = gymnasium.registry.get(parse_env_name(self.name).plain)
        creator = load_env_creator(str(named.entry_point)) if named else None
        return float(getattr(creator, "metadata", {}).get("render_fps") or 30)

    def render(self) -> np.ndarray:
        """Return a picture of the first environment, `[H, W, 3]`."""
        return np.asarray(self._pool.render())[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        self._pool.close()


COPY_TEST_STEPS = 10  # steps in which a copy is compared with its environment
SHARED_TYPES = ("MjModel", "EnvSpec")  # large, and no step changes them: copies share them


class GymnasiumEnvs(Batch):
    """Gymnasium's environments, stepped one after the other: any id, or the user's own."""

    backend = "gymnasium"

    def __init__(self, name: str, count: int, seed: int, make_one: Make | None = None, *, critic: bool = False) -> None:
        self.name, self.count, self._seed = name, count, seed
        make = make_one or env_maker(name)  # once for all: it runs the user's file
        with (
            in_one_sentence(f"environment {name!r} cannot be made", UsageError),
            warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
        ):
            self._ones = [_One(name, n, make()) for n in range(count)]
            if len({id(each.unwrapped) for each in self.each}) < count:
                problem = f"environment {name!r}: its function returns the same environment again"
                raise UsageError(f"{problem}; it must make a new one at each call")
            check_keeps_its_scale(self.each[0], name)
            self._space, actions = self.each[0].observation_space, self.each[0].action_space
        self.note_spaces(self._space, actions, critic)
        self.limit = self._check_one_step()

    @property
    def each(self) -> list[Any]:
        return [one.env for one in self._ones]

    def copies(self, times: int, random: np.random.Generator) -> "GymnasiumEnvs":
        """Return `times` copies of each environment, side by side, in its state, with new random streams."""
        other = copy.copy(self)
        other.count = self.count * times
        other._ones = [_One(self.name, n, copy_env(e, random)) for n, e in enumerate(self.each) for _ in range(times)]
        return other

    @property
    def steps_a_second(self) -> float:
        """Steps per second of film: by MuJoCo's clock, else as the environment says, else 30."""
        return 1.0 / self._seconds if self._seconds else float(self.each[0].metadata.get("render_fps") or 30)

    @property
    def period(self) -> float:
        """Simulated seconds between two actions, or 0 if the environment does not tell."""
        return self._seconds or _number(self.each[0].unwrapped, "dt")

    def reset(self) -> np.ndarray:
        return self.flat(self.call(self._reset, self._ones, range(self._seed, self._seed + self.count)))

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        ones = [self._ones[n] for n in np.flatnonzero(which)]
        observations = observations.copy()
        observations[which] = self.flat(self.call(self._reset, ones, [None] * len(ones)), len(ones))
        return observations

    def _reset(self, ones: Sequence["_One"], seeds: Sequence[int | None]) -> Any:
        return stack_observations(self._space, [one.reset(seed) for one, seed in zip(ones, seeds, strict=True)])

    def _step(self, actions: np.ndarray) -> Any:
        steps = [one.step(action) for one, action in zip(self._ones, actions, strict=True)]
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        ends = np.array([terminated, truncated], bool)
        stacked = stack_observations(self._space, observations)
        return stacked, np.array(rewards, np.float64), *ends, merge_infos(list(infos))

    def close(self) -> None:
        failed, ones, self._ones = sys.exception(), self._ones, []
        try:
            self.call(lambda: [one.env.close() for one in ones])
        except RepolicyError:
            if failed is None:  # an earlier error is reported instead of this one
                raise

    def _check_one_step(self) -> int | None:
        """Raise if reset or step returns observations of another shape than the space declares; return the time limit.

        A wrapper that repeats actions makes several steps of a time limit inside of it: the difference tells how many.
        Also set `_seconds`, what MuJoCo's clock says that this step lasted, or 0 where there is no such clock.
        """
        one = self._ones[0]
        one.env.action_space.seed(0)
        limited = [layer for layer in _layers(one.env) if getattr(layer, "_max_episode_steps", None)]
        first, before = self.call(one.reset, 0), [getattr(layer, "_elapsed_steps", 0) for layer in limited]
        clock = getattr(one.env.unwrapped, "data", None)
        start = _number(clock, "time")
        after = self.call(one.step, one.env.action_space.sample())[0]
        self._seconds = max(0.0, round(_number(clock, "time") - start, 12))  # rounding errors add up in a clock
        for moment, observation in (("reset", first), ("step", after)):
            returned, declared = shapes(observation), shapes(self._space)
            if returned != declared:
                problem = f"environment {self.name!r} returns observations of shape {returned} from {moment}"
                raise RepolicyError(f"{problem}, but its observation space says {declared}")
        steps = math.inf
        for layer, elapsed in zip(limited, before, strict=True):  # of several time limits the shortest ends an episode
            steps = min(steps, layer._max_episode_steps / max(1, getattr(layer, "_elapsed_steps", 0) - elapsed))
        return math.ceil(steps) if math.isfinite(steps) else None


def _number(thing: object, name: str) -> float:
    """Return an attribute that is a number, or 0 where there is none of that name and kind."""
    value = getattr(thing, name, 0.0)
    return float(value) if isinstance(value, float | int) else 0.0


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment's wrappers, from the outermost, and then the environment itself."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def check_keeps_its_scale(env: Any, name: str) -> None:
    """Raise if a wrapper changes the scale of observations or rewards while the environment steps."""
    if any(getattr(layer, "update_running_mean", False) for layer in _layers(env)):
        problem = f"environment {name!r} normalizes by statistics that are in no policy's file"
        raise UsageError(f"{problem}: leave out NormalizeObservation and NormalizeReward; policy and critic normalize")


class _One:
    """One environment of a batch, whose return values are checked before NumPy converts them."""

    def __init__(self, name: str, index: int, env: Any) -> None:
        self.name, self.index, self.env = name, index, env

    def reset(self, seed: int | None = None) -> Any:
        """Return the first observation of an episode."""
        ENV_CALL.index = self.index
        return self._checked(self.env.reset(seed=seed), "reset", ("observation", "info"))[0]

    def step(self, action: Any) -> tuple[Any, ...]:
        ENV_CALL.index = self.index
        parts = ("observation", "reward", "terminated", "truncated", "info")
        answer = self._checked(self.env.step(action), "step", parts)
        check_reward(answer[1], self.name)
        return answer

    def _checked(self, answer: Any, function: str, parts: tuple[str, ...]) -> tuple[Any, ...]:
        """Return what an environment's function returned; raise unless it has these parts."""
        if isinstance(answer, tuple) and len(answer) == len(parts) and isinstance(answer[-1], dict):
            return answer
        kinds = [type(part).__name__ for part in (answer if isinstance(answer, tuple) else (answer,))]
        problem = f"environment {self.name!r} returns ({', '.join(kinds)}) from {function}, not ({', '.join(parts)})"
        remedy = "wrap it in shimmy.GymV21CompatibilityV0, or return all of these"
        raise RepolicyError(f"{problem}: old environments do; {remedy}")


def stack_observations(space: spaces.Space[Any], observations: Sequence[Any]) -> Any:
    """Return the observations of N environments as one array `[N, ...]`, or as a dict of such arrays."""
    if isinstance(space, spaces.Dict):
        return {key: stack_observations(part, [each[key] for each in observations]) for key, part in space.items()}
    return np.array(observations).reshape(len(observations), *(space.shape or ()))


def merge_infos(infos: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numeric entries of N infos as arrays `[N]`, with 0 where an environment has no such number.

    Booleans become 1 or 0. (Gymnasium's own function for this takes longer than a step of many environments.)
    """
    merged, known = {}, {key: value for info in reversed(infos) for key, value in info.items()}
    for key, first in known.items():
        if _is_number(first) or any(_is_number(info.get(key)) for info in infos):
            values = np.array([entry if _is_number(entry := info.get(key)) else 0 for info in infos])
            merged[key] = values.astype(np.float64) if values.dtype.kind in "iub" else values
    return merged


def _is_number(value: Any) -> bool:
    return isinstance(value, INFO_TYPES) or (isinstance(value, np.ndarray) and value.ndim == 0)


# Copies ---------------------------------------------------------------------------------------------------------------


def _reseed_generator(stream: np.random.Generator, seed: int) -> None:
    stream.bit_generator.state = type(stream.bit_generator)(seed).state


RESEEDERS: dict[type, Callable[[Any, int], Any]] = {  # what begins a random stream anew, by its type
    np.random.Generator: _reseed_generator,
    np.random.RandomState: np.random.RandomState.seed,
    Random: Random.seed,
    torch.Generator: torch.Generator.manual_seed,
}


def copy_env(env: Any, random: np.random.Generator) -> Any:
    """Return a copy of an environment with new random streams: a planner must not foresee the noise."""
    copies = dict[int, Any]()  # of all its parts
    other = clone_env(env, copies)
    for part in copies.values():
        if type(part) in RESEEDERS:
            RESEEDERS[type(part)](part, int(random.integers(2**32)))
    return other


def check_copies(made: Any, name: str) -> None:
    """Raise if a copy steps differently from its environment, or if a step of a copy changes the environment."""
    made.action_space.seed(0)
    made.reset(seed=0)
    for _ in range(COPY_TEST_STEPS):
        action, other_action = made.action_space.sample(), made.action_space.sample()
        disturbing, copied = clone_env(made, {}), clone_env(made, {})
        disturbing.step(other_action)  # must not change `made`
        observation, *_ = copied.step(action)
        expected, _, terminated, truncated, _ = made.step(action)
        if not np.array_equal(flatten_observations(observation, 1), flatten_observations(expected, 1), equal_nan=True):
            raise UsageError(f"environment {name!r} cannot be copied: a copy goes elsewhere than it does")
        if terminated or truncated:
            made.reset()


def clone_env(env: Any, memo: dict[int, Any]) -> Any:
    """Return a copy in the same state. (`deepcopy` alone would construct many classes anew, in their first state.)"""
    other = memo[id(env)] = object.__new__(type(env))
    for name, value in vars(env).items():
        if isinstance(value, gymnasium.Env):
            part = memo[id(value)] if id(value) in memo else clone_env(value, memo)
        elif isinstance(value, gymnasium.Space) or type(value).__name__ in SHARED_TYPES:
            part = value
        else:
            try:
                part = copy.deepcopy(value, memo)
            except Exception:  # such as a window; `check_copies` finds out whether sharing it does harm
                part = value
        vars(other)[name] = part
    return other
