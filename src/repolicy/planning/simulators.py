"""Simulators for a planner. They step many states at once, apart from the environment in which it acts.

`MujocoModel` runs Gymnasium's MuJoCo environments in batches, by `mujoco.rollout`. It reads a state out of an
observation: each number of the observation must be a coordinate or a velocity, perhaps clipped. It finds out which one
by setting random states. State that no observation shows, such as the distance travelled, must not matter. So the model
needs no access to the environment in which the planner acts, and it works with EnvPool's environments as well.

`CopyModel` takes any Gymnasium environment that can be copied, and is slow. It copies the environment in which the
planner acts. Each copy has a random stream of its own, so that a plan does not know the environment's random numbers.
"""

from typing import Any, NamedTuple, Protocol

import gymnasium
import gymnasium.wrappers
import numpy as np

from repolicy.envs import (
    Backend,
    GymnasiumEnvs,
    Info,
    action_space,
    check_copies,
    copy_env,
    flatten_observations,
    make_one_env,
    merge_infos,
    observed_parts,
    stack_observations,
    to_env_actions,
)
from repolicy.errors import UsageError, in_one_sentence


class Simulated(NamedTuple):
    """The results of one step of B states under B actions."""

    states: np.ndarray  # [B, S]
    observations: np.ndarray  # [B, O] float32
    info: Info  # entries that an add-on may read, [B] each
    ended: np.ndarray  # [B] whether the episode is over
    failed: np.ndarray  # [B] whether the simulation broke down


class Model(Protocol):
    """A simulator of one environment."""

    unknown_info: frozenset[str] = frozenset()  # entries of the environment's info that the model does not compute
    note: str = ""  # what the user should know about it
    seconds: float  # duration of a step, or 0 if unknown
    backend: Backend  # of the environments in which plans can be carried out

    def watch(self, envs: Any) -> None:
        """Remember the environments in which the planner acts, if an observation is not the whole state."""
        return

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the states `[N, S]` of observations `[N, O]`."""

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Step states `[B, S]` under the environment's actions `[B, A]`."""

    def trunks(self, states: np.ndarray) -> np.ndarray:
        """Return the position of the robot's trunk in each state, `[B, 3]`; 0 if the states do not contain it."""
        return np.zeros((len(states), 3))


class CopyModel(Model):
    """Simulates in copies of the environments that `watch` received."""

    backend: Backend = "gymnasium"

    def __init__(self, name: str, seed: int = 0, note: str = "") -> None:
        self.name, self._seed, self.note = name, seed, note
        self._envs: Any = None  # that `watch` received; a batch is asked for its own when they are needed
        self._random = np.random.default_rng(seed)
        envs = GymnasiumEnvs(name, 1, seed)
        made = envs.each[0]
        self.space, self._own = action_space(made.action_space, name), made.action_space
        self._observed = made.observation_space
        self._keys, _ = observed_parts(self._observed, name, False)
        rate = made.metadata.get("render_fps")
        self.seconds = envs.period or (1.0 / rate if rate else 0.0)
        with in_one_sentence(f"environment {name!r} cannot be copied", UsageError):
            check_copies(made, name)

    def watch(self, envs: Any) -> None:
        """Copy these environments, or the one environment of a user's own loop, from now on."""
        if not (isinstance(envs, gymnasium.Env) or hasattr(envs, "each")):
            raise UsageError(f"{self.name} runs where its state cannot be had: take Gymnasium's (backend='gymnasium')")
        self._envs, self._random = envs, np.random.default_rng(self._seed)

    @property
    def _live(self) -> list[Any]:
        """The environments in which the planner acts; none once their batch is closed."""
        return [self._envs] if isinstance(self._envs, gymnasium.Env) else getattr(self._envs, "each", [])

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the environments themselves, `[N]`. They are copied before a step."""
        if len(self._live) != len(observations):
            raise UsageError(f"a planner copies {self.name} and was not told which one acts: call its watch(env) first")
        return as_array(self._live)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Step the states. States that came from an earlier step are changed in place, the environments are copied."""
        live = {id(env) for env in self._live}
        after = self.advance([StopsAtEnd(self.copied(env)) if id(env) in live else env for env in states], actions)
        after.observations[after.failed] = 0.0  # numbers, for prior and add-on; what broke down does not count
        return after

    def advance(self, envs: list[Any], actions: np.ndarray) -> Simulated:
        """Step environments in place."""
        sent = to_env_actions(actions, self.space, self._own)
        with in_one_sentence(f"environment {self.name!r} failed"):
            steps = [env.step(action) for env, action in zip(envs, sent, strict=True)]
        observations, _, terminated, _, infos = zip(*steps, strict=True)
        parts = stack_observations(self._observed, observations)  # an environment may give them in another order
        rows = flatten_observations(parts, len(envs), self._keys)
        ended, failed = np.array(terminated, bool), ~np.isfinite(rows).all(1)
        return Simulated(as_array(envs), rows, merge_infos(list(infos)), ended, failed)

    def trunks(self, states: np.ndarray) -> np.ndarray:
        robots = [env.unwrapped for env in states]
        return np.array([each.data.xpos[1] if hasattr(each, "data") else np.zeros(3) for each in robots])

    def copied(self, env: Any) -> Any:
        """Return a copy of an environment, with a random stream of its own."""
        return copy_env(env, self._random)


class StopsAtEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment that is stepped no more once its episode ended; it gives its last step again."""

    last: tuple[Any, Any, bool, bool, dict[str, Any]] | None = None

    def step(self, action: Any) -> Any:
        if self.last is None or not self.last[2]:
            self.last = self.env.step(action)
        return self.last


def as_array(things: list[Any]) -> np.ndarray:
    """Return an object array `[B]`."""
    array = np.empty(len(things), object)
    array[:] = things
    return array


# The steps by which a model is compared with its environment: with a tenth of the force, and with all of it.
WEAK_STEPS, STRONG_STEPS = 20, 200
FAR = 1e3  # a coordinate beyond any bound
OBSERVATION_TOLERANCE, INFO_TOLERANCE = 1e-3, 0.1
# Gymnasium's environments that never end by themselves, and have no is_healthy.
ENDLESS = ("HalfCheetahEnv", "SwimmerEnv")
# Wrappers that do not change the physics.
WRAPPERS = (
    gymnasium.wrappers.TimeLimit, gymnasium.wrappers.OrderEnforcing, gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
)  # fmt: skip


class CannotBatchError(UsageError):
    """Raised for an environment that `MujocoModel` cannot simulate."""


def first_changing_wrapper(env: Any) -> str:
    """Return the name of the first wrapper that may change actions, observations or ends, or "" if there is none."""
    while isinstance(env, gymnasium.Wrapper):
        changes_reward = isinstance(env, gymnasium.RewardWrapper) and type(env).step is gymnasium.RewardWrapper.step
        if type(env) not in WRAPPERS and not changes_reward:
            return type(env).__name__
        env = env.env
    return ""


class MujocoModel(Model):
    """The physics of one of Gymnasium's MuJoCo environments, from observations alone."""

    backend: Backend = "auto"

    def __init__(self, name: str) -> None:
        import mujoco
        from mujoco import rollout

        self.name = name
        made = make_one_env(name)
        env: Any = made.unwrapped
        if not all(hasattr(env, part) for part in ("model", "data", "frame_skip", "_get_obs")):
            raise CannotBatchError(f"{name} is none of Gymnasium's MuJoCo environments")
        if wrapper := first_changing_wrapper(made):
            raise CannotBatchError(f"{name} is wrapped in {wrapper}, which its MuJoCo model does not know")
        self._env = env
        self._repeats = int(env.frame_skip)
        self.seconds = float(env.dt)
        self._space, self._own = action_space(made.action_space, name), made.action_space
        self._positions = env.model.nq
        self._size = env.model.nq + env.model.nv
        self._rest = np.zeros(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
        self._rest[1 : 1 + self._size] = np.concatenate([env.init_qpos, env.init_qvel])  # index 0 is the time
        self._index = self._state_indices()
        far = np.full(self._size, FAR)
        self._bounds = (self._observed(-far), self._observed(far))
        self._ends = hasattr(type(env), "is_healthy") and getattr(env, "_terminate_when_unhealthy", True)
        if not hasattr(type(env), "is_healthy") and type(env).__name__ not in ENDLESS:
            raise CannotBatchError(f"{name} does not say when its episodes end (is_healthy)")
        self._data = [mujoco.MjData(env.model)]
        self._rollout = rollout.Rollout(nthread=0)
        self.info_keys: tuple[str, ...] = ("x_velocity", "y_velocity")  # entries of info that the model computes
        self._check(made)

    def _state_indices(self) -> np.ndarray:
        """Return the index in a state of each number of an observation."""
        state = np.random.default_rng(0).uniform(-0.5, 0.5, self._size)
        same = self._observed(state)[:, None] == state
        if not (same.sum(1) == 1).all():
            raise CannotBatchError(
                f"{self.name} shows {int((same.sum(1) != 1).sum())} numbers that are neither coordinates nor velocities"
            )
        return same.argmax(1)

    def _observed(self, state: np.ndarray) -> np.ndarray:
        """Return the environment's observation of coordinates and velocities."""
        self._env.data.qpos[:], self._env.data.qvel[:] = np.split(state, [self._positions])
        return np.ravel(self._env._get_obs()).astype(np.float64)

    def states(self, observations: np.ndarray) -> np.ndarray:
        states = np.repeat(self._rest[None], len(observations), 0)
        states[:, 1 + self._index] = observations
        return states

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        controls = to_env_actions(actions, self._space, self._own).reshape(len(states), 1, -1)
        repeated = np.repeat(controls, self._repeats, 1).astype(np.float64)
        rows, _ = self._rollout.rollout(self._env.model, self._data, states, repeated)
        after = rows[:, -1]
        with np.errstate(invalid="ignore"):
            failed = ~(after[:, 0] > states[:, 0] + 0.5 * self.seconds) | ~np.isfinite(after).all(1)
        after = np.where(failed[:, None], states, after)
        coordinates = after[:, 1 : 1 + self._size]
        observations = coordinates[:, self._index].clip(*self._bounds).astype(np.float32)
        velocity = (after[:, 1:3] - states[:, 1:3]) / self.seconds
        info: Info = {
            key: velocity[:, axis] for axis, key in enumerate(("x_velocity", "y_velocity")) if key in self.info_keys
        }
        return Simulated(after, observations, info, self._ended(coordinates), failed)

    def trunks(self, states: np.ndarray) -> np.ndarray:
        import mujoco

        trunks, data = np.empty((len(states), 3)), self._data[0]
        for row, state in enumerate(states):
            data.qpos[:] = state[1 : 1 + self._positions]
            mujoco.mj_kinematics(self._env.model, data)
            trunks[row] = data.xpos[1]
        return trunks

    def _ended(self, coordinates: np.ndarray) -> np.ndarray:
        ended = np.zeros(len(coordinates), bool)
        if not self._ends:
            return ended
        for row, state in enumerate(coordinates):
            self._env.data.qpos[:], self._env.data.qvel[:] = np.split(state, [self._positions])
            ended[row] = not self._env.is_healthy
        return ended

    def _check(self, made: Any) -> None:
        """Compare the model with its environment step by step. Raise if they differ; drop info that differs."""
        space: Any = made.action_space
        space.seed(0)
        observation, _ = made.reset(seed=0)
        errors, ends_agree = list[float](), True
        info_errors, seen = dict.fromkeys(self.info_keys, 0.0), set[str]()
        for index in range(WEAK_STEPS + STRONG_STEPS):
            is_weak = index < WEAK_STEPS  # full force hides what a robot does with little
            action = space.sample()
            if is_weak:
                action = 0.1 * action
            elif index % 2 and space.is_bounded():
                action = np.where(action > 0.0, space.high, space.low).astype(action.dtype)
            before = np.ravel(observation)[None]
            observation, _, terminated, truncated, info = made.step(action)
            seen |= merge_infos([info]).keys()
            saved = self._env.data.qpos.copy(), self._env.data.qvel.copy()  # `_ended` sets others
            simulated = self.step(self.states(before), action.reshape(1, -1))
            self._env.data.qpos[:], self._env.data.qvel[:] = saved
            low, high = self._bounds
            if ((low < before) & (before < high)).all():  # a clipped observation does not show the state
                errors.append(float(np.abs(simulated.observations - np.ravel(observation)).max()))
                ends_agree &= bool(simulated.ended[0]) == bool(terminated)
            for key, error in info_errors.items():
                if is_weak:
                    info_errors[key] = max(error, abs(float(info.get(key, np.inf)) - simulated.info[key][0]))
            if terminated or truncated:
                observation, _ = made.reset()
        worst = float(np.max(errors or [np.inf]))
        if not worst < OBSERVATION_TOLERANCE:
            raise CannotBatchError(f"{self.name} goes elsewhere than its MuJoCo model, by {worst:.2g} a step")
        if not ends_agree:
            raise CannotBatchError(f"{self.name} ends elsewhere than its MuJoCo model")
        self.info_keys = tuple(key for key, error in info_errors.items() if error < INFO_TOLERANCE)
        self.unknown_info = frozenset(seen.difference(self.info_keys))
