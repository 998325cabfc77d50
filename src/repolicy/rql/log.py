"""What a run of Residual Q-learning tells while it learns: a line of metrics every hundred steps."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

from repolicy.learning.training import Callback
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import AnySettings

EPISODES = 20  # how many of the latest are averaged


def lines(steps: int, settings: AnySettings) -> int:
    """Return how many lines of metrics there are after so many steps; the last may have fewer steps than the others."""
    return settings.iterations if steps >= settings.steps else steps // settings.iteration_steps


class Log:
    """The metrics, for the folder and for the callbacks; its `step` is Stable-Baselines3's kind of callback."""

    def __init__(
        self, request: Request, folder: RunFolder, callbacks: Sequence[Callback], interrupted: threading.Event
    ) -> None:
        self._request, self._folder, self._watchers, self._interrupted = request, folder, callbacks, interrupted
        self.metrics: dict[str, float] = {}
        self.stopped = False

    def begin(self, steps: int, complaints: Sequence[str]) -> None:
        settings = self._request.settings
        done = lines(steps, settings)
        self._first, self._began = steps, time.perf_counter()
        self._folder.forget_after(done)
        for callback in self._watchers:
            callback.begin(self._request, done, settings.iterations)
            for complaint in complaints:
                callback.say(complaint)

    def step(self, local: dict[str, Any], _: dict[str, Any]) -> bool:
        """After every step of the environment. Returns whether to go on."""
        model, settings = local["self"], self._request.settings
        steps = model.num_timesteps
        if steps > settings.steps or (steps % settings.iteration_steps and steps != settings.steps):
            return True
        self.metrics = {"iteration": math.ceil(steps / settings.iteration_steps), "steps": steps}
        if episodes := list(model.ep_info_buffer)[-EPISODES:]:
            self.metrics["task_return"] = sum(episode["r"] for episode in episodes) / len(episodes)
            self.metrics["episode_length"] = sum(episode["l"] for episode in episodes) / len(episodes)
        logged = model.logger.name_to_value
        self.metrics |= {name.removeprefix("train/"): v for name, v in logged.items() if name.startswith("train/")}
        seconds = time.perf_counter() - self._began
        self.metrics |= {"seconds": seconds, "steps_per_second": (steps - self._first) / seconds}
        self._folder.log(self.metrics)
        for callback in self._watchers:
            callback.write(self.metrics)
        self.stopped = steps < settings.steps and self._interrupted.is_set()
        return not self.stopped

    def close(self) -> None:
        for callback in self._watchers:
            callback.close()
