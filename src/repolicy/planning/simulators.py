"""What a planner simulates with: many states at once, apart from the environment that is acted in.

`MujocoModel` runs Gymnasium's MuJoCo environments in batches, by `mujoco.rollout`. It reads a state out of an
observation: each number of the observation must be a coordinate or a velocity, perhaps cut to bounds. Which one, is
found by trying; what is seen of no state, such as how far a robot has come, must not matter. So it needs no access to
the environment that is acted in, and it plans in EnvPool's as well.

`Copies` takes any Gymnasium environment that can be copied, and is slow. A copy is made of the very environment that is
acted in. Its random stream is its own, so that luck is not foreseen.
"""

from typing import Any, NamedTuple, Protocol

import gymnasium
import gymnasium.wrappers
import numpy as np

from repolicy.envs import Backend, Info, action_space, check_copied, copied_env, flat, native, one_env, shown, together
from repolicy.errors import UsageError, in_one_sentence


class Simulated(NamedTuple):
    """What B states became under B actions."""

    states: np.ndarray  # [B, S]
    observations: np.ndarray  # [B, O] float32
    info: Info  # what an add-on may read, [B] each
    ended: np.ndarray  # [B] whether the episode is over
    failed: np.ndarray  # [B] whether the simulation broke down


class Model(Protocol):
    """A simulator."""

    seconds: float  # that a step lasts, or 0 where that is not known
    backend: Backend  # whose environments can be planned in

    def watch(self, envs: Any) -> None:
        """Note the environments that are acted in."""

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the states `[N, S]` that are seen as observations `[N, O]`."""

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Return what states `[B, S]` become under actions `[B, A]`, as the environment gets them."""

    def trunks(self, states: np.ndarray) -> np.ndarray:
        """Return where the robot's trunk is in states `[B, 3]`: at 0 where no state tells."""


class CopyModel:
    """Simulates in copies of the environments that `watch` was given."""

    backend: Backend = "gymnasium"

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self._seed = name, seed
        self._live, self._random = list[Any](), np.random.default_rng(seed)
        made = one_env(name)
        self._space, self._own = action_space(made.action_space, name), made.action_space
        self._keys, _ = shown(made.observation_space, name, False)
        rate = made.metadata.get("render_fps")
        self.seconds = float(getattr(made.unwrapped, "dt", 1.0 / rate if rate else 0.0))  # 0: it does not say
        with in_one_sentence(f"environment {name!r} cannot be copied", UsageError):
            check_copied(made, name)

    def watch(self, envs: Any) -> None:
        """Copy these environments, or the one environment of a loop of your own, from now on."""
        live = [envs] if isinstance(envs, gymnasium.Env) else getattr(envs, "each", None)
        if live is None:
            raise UsageError(f"{self.name} runs where its state cannot be had: take Gymnasium's (backend='gymnasium')")
        self._live, self._random = live, np.random.default_rng(self._seed)

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the environments themselves `[N]`, which are not stepped, but copied."""
        if len(self._live) != len(observations):
            raise UsageError(f"a planner copies {self.name} and was not told which one acts: call its watch(env) first")
        return as_array(self._live)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Return what states become. One that came out of a step is used up by this one."""
        live = {id(env) for env in self._live}
        copies = [self.copied(env) if id(env) in live else env for env in states]
        rows = [self.advance(env, action[None]) for env, action in zip(copies, actions, strict=True)]
        keys = {key for row in rows for key in row.info}
        return Simulated(
            as_array(copies),
            np.concatenate([row.observations for row in rows]),
            {key: np.concatenate([row.info.get(key, np.zeros(1)) for row in rows]) for key in keys},
            np.concatenate([row.ended for row in rows]),
            np.concatenate([row.failed for row in rows]),
        )

    def trunks(self, states: np.ndarray) -> np.ndarray:
        robots = [env.unwrapped for env in states]
        return np.array([each.data.xpos[1] if hasattr(each, "data") else np.zeros(3) for each in robots])

    def advance(self, env: Any, actions: np.ndarray) -> Simulated:
        """Step one environment by an action `[1, A]`, in place."""
        observation, _, terminated, _, told = env.step(native(actions, self._space, self._own)[0])
        seen = flat(observation, 1, self._keys)
        return Simulated(env, seen, together([told]), np.array([bool(terminated)]), ~np.isfinite(seen).all(1))

    def copied(self, env: Any) -> Any:
        """Return a copy of an environment, with a random stream of its own."""
        return copied_env(env, self._random)


def as_array(things: list[Any]) -> np.ndarray:
    """Return an array `[B]` of objects."""
    array = np.empty(len(things), object)
    array[:] = things
    return array


GENTLE, STRONG = 20, 200  # steps by which the model is compared with its environment: at a tenth of a force, at all
FAR = 1e3  # a coordinate beyond any bound
NEAR, NEAR_INFO = 1e-3, 0.1  # how far apart they may be
ENDLESS = ("HalfCheetahEnv", "SwimmerEnv")  # Gymnasium's environments that never end by themselves and do not say so
WRAPPERS = ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics")  # which change no physics


class CannotBatchError(UsageError):
    """The environment is none that can be simulated in batches."""


def changing(made: Any) -> str:
    """Return the name of an environment's first wrapper that may change its actions, observations or ends, else ""."""
    while isinstance(made, gymnasium.Wrapper):
        kind = type(made)
        known = kind is getattr(gymnasium.wrappers, kind.__name__, None) and kind.__name__ in WRAPPERS
        pays = isinstance(made, gymnasium.RewardWrapper) and kind.step is gymnasium.RewardWrapper.step
        if not known and not pays:
            return kind.__name__
        made = made.env
    return ""


class MujocoModel:
    """The physics of one of Gymnasium's MuJoCo environments, from observations alone."""

    backend: Backend = "auto"

    def watch(self, envs: Any) -> None:
        """Do nothing: observations tell the whole state."""

    def __init__(self, name: str) -> None:
        import mujoco
        from mujoco import rollout

        self.name = name
        made = one_env(name)
        env: Any = made.unwrapped
        if not all(hasattr(env, part) for part in ("model", "data", "frame_skip", "_get_obs")):
            raise CannotBatchError(f"{name} is none of Gymnasium's MuJoCo environments")
        if changed := changing(made):
            raise CannotBatchError(f"{name} is wrapped in {changed}, which its MuJoCo model does not know")
        self._env = env
        self._repeats = int(env.frame_skip)
        self.seconds = float(env.dt)
        self._space, self._own = action_space(made.action_space, name), made.action_space
        self._positions = env.model.nq
        self._seen = env.model.nq + env.model.nv
        self._rest = np.zeros(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
        self._rest[1 : 1 + self._seen] = np.concatenate([env.init_qpos, env.init_qvel])  # behind the time
        self._place = self._places()
        far = np.full(self._seen, FAR)
        self._bounds = (self._observed(-far), self._observed(far))
        self._ends = hasattr(type(env), "is_healthy") and getattr(env, "_terminate_when_unhealthy", True)
        if not hasattr(type(env), "is_healthy") and type(env).__name__ not in ENDLESS:
            raise CannotBatchError(f"{name} does not say when its episodes end (is_healthy)")
        self._data = [mujoco.MjData(env.model)]
        self._rollout = rollout.Rollout(nthread=0)
        self.told: tuple[str, ...] = ("x_velocity", "y_velocity")  # of the environment's info, what can be rebuilt
        self._check(made)

    def _places(self) -> np.ndarray:
        """Return where in a state each number of an observation stands."""
        state = np.random.default_rng(0).uniform(-0.5, 0.5, self._seen)
        same = self._observed(state)[:, None] == state
        if not (same.sum(1) == 1).all():
            raise CannotBatchError(
                f"{self.name} shows {int((same.sum(1) != 1).sum())} numbers that are neither coordinates nor velocities"
            )
        return same.argmax(1)

    def _observed(self, state: np.ndarray) -> np.ndarray:
        """Return what the environment shows of coordinates and velocities."""
        self._env.data.qpos[:], self._env.data.qvel[:] = np.split(state, [self._positions])
        return np.ravel(self._env._get_obs()).astype(np.float64)

    def states(self, observations: np.ndarray) -> np.ndarray:
        states = np.repeat(self._rest[None], len(observations), 0)
        states[:, 1 + self._place] = observations
        return states

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        controls = native(actions, self._space, self._own).reshape(len(states), 1, -1)
        repeated = np.repeat(controls, self._repeats, 1).astype(np.float64)
        rows, _ = self._rollout.rollout(self._env.model, self._data, states, repeated)
        after = rows[:, -1]
        with np.errstate(invalid="ignore"):
            failed = ~(after[:, 0] > states[:, 0] + 0.5 * self.seconds) | ~np.isfinite(after).all(1)
        after = np.where(failed[:, None], states, after)
        seen = after[:, 1 : 1 + self._seen]
        observations = seen[:, self._place].clip(*self._bounds).astype(np.float32)
        moved = (after[:, 1:3] - states[:, 1:3]) / self.seconds
        info: Info = {key: moved[:, axis] for axis, key in enumerate(("x_velocity", "y_velocity")) if key in self.told}
        return Simulated(after, observations, info, self._ended(seen), failed)

    def trunks(self, states: np.ndarray) -> np.ndarray:
        import mujoco

        found, data = np.empty((len(states), 3)), self._data[0]
        for row, state in enumerate(states):
            data.qpos[:] = state[1 : 1 + self._positions]
            mujoco.mj_kinematics(self._env.model, data)
            found[row] = data.xpos[1]
        return found

    def _ended(self, seen: np.ndarray) -> np.ndarray:
        ended = np.zeros(len(seen), bool)
        if not self._ends:
            return ended
        for row, state in enumerate(seen):
            self._env.data.qpos[:], self._env.data.qvel[:] = np.split(state, [self._positions])
            ended[row] = not self._env.is_healthy
        return ended

    def _check(self, made: Any) -> None:
        """Raise where the environment goes or ends elsewhere than the model; of its info, keep what both tell alike."""
        space: Any = made.action_space
        space.seed(0)
        observation, _ = made.reset(seed=0)
        apart, ends_alike = list[float](), True
        info_apart = dict.fromkeys(self.told, 0.0)
        for tried in range(GENTLE + STRONG):
            gentle = tried < GENTLE  # beside all its strength, which hides what a robot does with little
            action = space.sample()
            if gentle:
                action = 0.1 * action
            elif tried % 2 and space.is_bounded():
                action = np.where(action > 0.0, space.high, space.low).astype(action.dtype)
            before = np.ravel(observation)[None]
            observation, _, terminated, truncated, info = made.step(action)
            kept = self._env.data.qpos.copy(), self._env.data.qvel.copy()
            simulated = self.step(self.states(before), action.reshape(1, -1))
            self._env.data.qpos[:], self._env.data.qvel[:] = kept  # which the model used to ask whether it has ended
            low, high = self._bounds
            if ((low < before) & (before < high)).all():  # at a bound it does not tell the state
                apart.append(float(np.abs(simulated.observations - np.ravel(observation)).max()))
                ends_alike &= bool(simulated.ended[0]) == bool(terminated)
            for key, far in info_apart.items():
                if gentle:
                    info_apart[key] = max(far, abs(float(info.get(key, np.inf)) - simulated.info[key][0]))
            if terminated or truncated:
                observation, _ = made.reset()
        most = float(np.max(apart or [np.inf]))
        if not most < NEAR:
            raise CannotBatchError(f"{self.name} goes elsewhere than its MuJoCo model, by {most:.2g} a step")
        if not ends_alike:
            raise CannotBatchError(f"{self.name} ends elsewhere than its MuJoCo model")
        self.told = tuple(key for key, far in info_apart.items() if far < NEAR_INFO)
