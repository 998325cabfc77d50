"""Take-overs: a person watches a policy and may act instead of it at any step. Every step is recorded.

Space takes over and hands back, Enter ends the episode, Backspace drops it, Escape quits.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from repolicy.errors import UsageError, in_one_sentence
from repolicy.text import format_count
from repolicy.wishes.keys import Keys
from repolicy.wishes.record import RecordFile, Step

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observation, proposed action) to an action


class Takeover(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment. `step` takes the policy's action, and does the person's instead while the person acts.

    Args:
        env: an environment whose observations and actions are arrays.
        person: returns the person's action. It may have an attribute `wants`: a function of (observation, proposed
            action, whether the person acts now) that returns whether the person wants to act. It replaces keys.
        record: the file to which each step is written.
        keys: the source of the person's keys, if there is one.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], person: Act, record: RecordFile | None = None, keys: Keys | None = None
    ) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, gymnasium.spaces.Box):
            kind = type(env.observation_space).__name__
            wrapped = "wrap the environment in gymnasium.wrappers.FlattenObservation"
            raise UsageError(f"observations of kind {kind} are not recorded: {wrapped}")
        self.person, self.record, self.keys = person, record, keys
        self.acts, self.left, self._steps = False, False, 0
        self._episode = (record.episode if record else 0) - 1
        self._observation: np.ndarray = np.zeros(0)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, in which the policy acts first."""
        with in_one_sentence("the environment failed"):
            observation, info = self.env.reset(**options)
        self._observation, self.acts, self._steps = _flat_copy(observation), False, 0
        self._episode += 1
        return observation, info

    def step(self, proposed: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do one step. In `info`, `person` is whether the person acted."""
        pressed = self.keys.pressed() if self.keys else []
        if pressed.count("space") % 2:
            self.acts = not self.acts
        wants = getattr(self.person, "wants", None)
        if wants is not None:
            with in_one_sentence("wants, which tells whether the person acts, failed", UsageError):
                self.acts = bool(wants(self._observation, np.asarray(proposed), self.acts))
        action = self._person_action(np.asarray(proposed)) if self.acts else proposed
        space = self.env.action_space
        action = np.asarray(action, space.dtype).reshape(space.shape)
        if isinstance(space, gymnasium.spaces.Box):  # clip the person's numbers; the policy's stay as they are
            own = action != np.asarray(proposed, space.dtype).reshape(space.shape)
            action = np.where(own, np.clip(action, space.low, space.high), action)
        with in_one_sentence("the environment failed"):  # a single choice is sent as a number, not as an array `[]`
            observation, reward, terminated, truncated, info = self.env.step(action.copy()[()])
        after = _flat_copy(observation)
        if self.record:
            self.record.add(Step(self._episode, self._observation, action, np.asarray(proposed), after, self.acts))
        self._observation = after
        self._steps += 1
        if "backspace" in pressed and self.record:
            self.record.drop(self._episode)
        self.left |= "escape" in pressed
        if self.keys:
            words = f"episode {self._episode}, step {self._steps}: {'YOU act' if self.acts else 'the policy acts'}"
            self.keys.show(self.env.render() if self.env.render_mode == "rgb_array" else None, words)
        truncated = truncated or self.left or "enter" in pressed or "backspace" in pressed
        return observation, reward, terminated, truncated, info | {"person": self.acts}

    def _person_action(self, proposed: np.ndarray) -> np.ndarray:
        with in_one_sentence("the person failed", UsageError):
            action = np.asarray(self.person(self._observation, proposed), np.float64)
        if action.size != proposed.size or not np.isfinite(action).all():
            raise UsageError(
                f"the person's action is {action.tolist()}; it takes {format_count(proposed.size, 'finite number')}"
            )
        space = self.env.action_space
        converted = action.astype(space.dtype).reshape(space.shape)
        is_valid = space.contains(converted) and np.array_equal(converted.ravel(), action.ravel())
        if not (is_valid or isinstance(space, gymnasium.spaces.Box)):  # `step` clips to a Box's bounds
            raise UsageError(f"the person's action is {action.tolist()}; the environment takes {space}")
        return converted


def _flat_copy(observation: Any) -> np.ndarray:
    """Return an observation as a vector of its own, because an environment may reuse the array."""
    return np.array(observation).reshape(-1)


PAIRS = [*zip("qwertyuio", "asdfghjkl", strict=True)]  # the keys that raise and lower each number of an action


def by_keys(keys: Keys, space: gymnasium.Space[Any]) -> Act:
    """Return a person who acts by keys. A digit chooses a discrete action; q and a set the first number high and low.

    Where two contradict each other, the one pressed last counts. A gamepad's axes set the numbers in their order. A
    number without a key stays as the policy proposes it.
    """
    bounded = isinstance(space, gymnasium.spaces.Box) and space.is_bounded()
    if not (bounded or (isinstance(space, gymnasium.spaces.Discrete) and space.n <= 10)):  # a digit each
        raise UsageError(f"actions of {space} cannot be given by keys: add --person CODE")

    def act(observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        held, action = keys.held(), np.array(proposed)
        if isinstance(space, gymnasium.spaces.Discrete):
            digits = [int(key) for key in held if key.isdigit() and int(key) < space.n]
            return np.array(int(space.start) + digits[-1]) if digits else action
        assert isinstance(space, gymnasium.spaces.Box)
        flat, low, high = action.reshape(-1), space.low.ravel(), space.high.ravel()
        for index, value in keys.axes().items():
            if index < len(flat):
                flat[index] = low[index] + (value + 1) / 2 * (high[index] - low[index])
        for index, (more, less) in enumerate(PAIRS[: len(flat)]):
            for key in held:  # of both, the one that was pressed later
                if key in (more, less):
                    flat[index] = (high if key == more else low)[index]
        return flat.reshape(action.shape)

    return act
