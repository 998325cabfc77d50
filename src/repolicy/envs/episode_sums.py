"""Add up quantities of steps over whole episodes."""

from collections.abc import Callable

import numpy as np

from repolicy.envs.rollout import Rollout


class EpisodeSums:
    """Adds up quantities over episodes, until each environment has ended its share of them."""

    def __init__(self, environments: int, episodes: int) -> None:
        self.missing = episodes
        self._quota = np.full(environments, episodes // environments)
        self._quota[: episodes % environments] += 1
        self._ended = np.zeros(environments, int)
        self._running: dict[str, np.ndarray] = {}
        self._done: list[dict[str, float]] = []

    @property
    def has_first_episodes(self) -> bool:
        """Whether an environment is still in its first episode."""
        return bool((self._ended == 0).any())

    def add(
        self, steps: dict[str, np.ndarray], rollout: Rollout, progress: Callable[[int], None] | None = None
    ) -> None:
        """Add a block of steps `[T, N]`, and close the episodes that end in it."""
        self._running = self._running or {name: np.zeros(len(self._quota)) for name in steps}
        for t in range(len(rollout.basic)):
            for name, values in self._running.items():
                values += steps[name][t]
            ended = rollout.terminated[t] | rollout.truncated[t]
            for n in np.flatnonzero(ended & (self._quota > 0)):
                self._end(int(n), bool(rollout.terminated[t, n]))
                if progress is not None:
                    progress(len(self._done))
            for values in self._running.values():
                values[ended] = 0.0

    def _end(self, n: int, terminated: bool) -> None:
        place = self._ended[n] * len(self._quota) + n
        sums = {name: float(values[n]) for name, values in self._running.items()}
        self._done.append(sums | {"terminated": terminated, "place": place})
        self._ended[n] += 1
        self._quota[n] -= 1
        self.missing -= 1

    def each(self) -> dict[str, np.ndarray]:
        """Return the sums of each episode `[E]`, in the order in which the environments began them."""
        ordered = sorted(self._done, key=lambda sums: sums["place"])
        return {name: np.array([sums[name] for sums in ordered]) for name in ordered[0] if name != "place"}
