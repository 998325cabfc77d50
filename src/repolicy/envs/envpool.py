"""EnvPool behind the `Step` contract."""

import warnings

import numpy as np

from repolicy.envs.names import parsed
from repolicy.envs.step import Batch, Step, native
from repolicy.errors import UsageError, in_one_sentence
from repolicy.loading import nearest

OWN = ("num_envs", "num_threads", "seed", "env_type", "batch_size", "max_num_players")  # options that a run sets itself


class EnvPoolEnvs(Batch):
    """EnvPool: physics batches in C++, one thread. `filmed` at a width and a height, it has a picture to give."""

    backend = "envpool"

    def __init__(
        self, name: str, count: int, seed: int, filmed: tuple[int, int] | None = None, *, critic: bool = False
    ) -> None:
        import envpool

        self.name, self.count = name, count
        plain, options = parsed(name)
        for key in OWN:
            if key in options:
                raise UsageError(
                    f"environment {plain!r}: the option {key!r} is Repolicy's own to set: use --envs and --seed instead"
                )
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
                raise UsageError(
                    f"environment {plain!r} has no option {wrong!r}{nearest(wrong, known)}"
                    if wrong
                    else f"environment {plain!r} does not take {options}: a value is of the wrong kind"
                ) from None
        with warnings.catch_warnings(action="ignore"):  # EnvPool rounds the bounds of its spaces to float32, loudly
            self.note_spaces(self._pool.observation_space, self._pool.action_space, critic)

    def reset(self) -> np.ndarray:
        return self.flat(self.call(self._pool.reset)[0])

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        fresh, info = self.call(self._pool.reset, np.flatnonzero(which).astype(np.int32))
        observations = observations.copy()
        observations[info["env_id"]] = self.flat(fresh, int(which.sum()))
        return observations

    def step(self, actions: np.ndarray) -> Step:
        return self.answered(*self.call(self._pool.step, native(actions, self.actions, self._own)))

    @property
    def limit(self) -> int | None:
        return getattr(self._pool.spec.config, "max_episode_steps", None)

    @property
    def steps_a_second(self) -> float:
        """Of the robot's own time, where the task tells it."""
        return 1.0 / float(getattr(self._pool.spec.config, "ctrl_dt", 1.0 / 30.0))

    def render(self) -> np.ndarray:
        """Return what the first environment looks like, `[H, W, 3]`."""
        return np.asarray(self._pool.render())[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        self._pool.close()
