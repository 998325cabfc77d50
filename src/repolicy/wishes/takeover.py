"""A person beside a policy: who acts may change at every step, and each step is recorded.

Space takes over and hands back, Enter ends an episode well, Backspace drops it, Escape leaves.
"""

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from repolicy.errors import UsageError, in_one_sentence
from repolicy.text import counted
from repolicy.wishes.record import RecordFile, Step

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observation, proposed action) to an action


class Keys(Protocol):
    """Where keys come from: a terminal, or a window that also shows the environment."""

    shows: bool

    def pressed(self) -> list[str]:
        """Return the keys since the last call: space, enter, backspace, escape, or a letter or digit."""

    def held(self) -> set[str]:
        """Return those that are down now."""

    def axes(self) -> dict[int, float]:
        """Return where a gamepad's axes are, from −1 to 1, without those that nobody touches."""

    def show(self, picture: Any, words: str) -> None:
        """Show the environment, and who acts."""

    def close(self) -> None: ...


class Takeover(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Any environment: `step` takes what the policy proposes, and does what the person does while they act.

    Args:
        env: whose observations and actions are arrays.
        person: what the person does; its attribute `wants`, of (observation, proposed, acts now), may tell whether they
            want to act, in place of keys.
        record: where each step goes.
        keys: where the person's keys come from, if there are any.
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
        self._now: np.ndarray = np.zeros(0)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self._now, self.acts, self._steps = np.ravel(observation), False, 0
        self._episode += 1
        return observation, info

    def step(self, proposed: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do one step. `info` tells who acted as `person`, and how the person ended it as `ended`."""
        pressed = self.keys.pressed() if self.keys else []
        if pressed.count("space") % 2:
            self.acts = not self.acts
        wants = getattr(self.person, "wants", None)
        if wants is not None:
            with in_one_sentence("wants, which tells whether the person acts, failed", UsageError):
                self.acts = bool(wants(self._now, np.asarray(proposed), self.acts))
        action = self._of_person(np.asarray(proposed)) if self.acts else proposed
        space = self.env.action_space
        action = np.asarray(action, space.dtype).reshape(space.shape)
        if isinstance(space, gymnasium.spaces.Box):  # the policy's numbers are as they would be without a person
            own = action != np.asarray(proposed, space.dtype).reshape(space.shape)
            action = np.where(own, np.clip(action, space.low, space.high), action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        after = np.ravel(observation)
        if self.record:
            time = self._steps / float(self.env.metadata.get("render_fps") or 30)
            self.record.add(Step(self._episode, time, self._now, action, np.asarray(proposed), after, self.acts))
        self._now = after
        self._steps += 1
        ended = "well" if "enter" in pressed else ""
        if "backspace" in pressed:
            ended = "dropped"
            if self.record:
                self.record.drop(self._episode)
        self.left |= "escape" in pressed
        if self.keys:
            words = f"episode {self._episode}, step {self._steps}: {'YOU act' if self.acts else 'the policy acts'}"
            self.keys.show(self.env.render() if self.env.render_mode == "rgb_array" else None, words)
        cut = truncated or bool(ended) or self.left
        return observation, reward, terminated, cut, info | {"person": self.acts, "ended": ended}

    def _of_person(self, proposed: np.ndarray) -> np.ndarray:
        with in_one_sentence("the person failed", UsageError):
            action = np.asarray(self.person(self._now, proposed), np.float64)
        if action.size != proposed.size or not np.isfinite(action).all():
            raise UsageError(
                f"the person's action is {action.tolist()}; it takes {counted(proposed.size, 'finite number')}"
            )
        space = self.env.action_space
        taken = action.astype(space.dtype).reshape(space.shape)
        known = space.contains(taken) and np.array_equal(taken.ravel(), action.ravel())
        if not (known or isinstance(space, gymnasium.spaces.Box)):  # a Box's bounds cut it
            raise UsageError(f"the person's action is {action.tolist()}; the environment takes {space}")
        return taken


PAIRS = [*zip("qwertyuio", "asdfghjkl", strict=True)]  # more and less of each number of an action


def by_keys(keys: Keys, space: gymnasium.Space[Any]) -> Act:
    """Return a person who acts by keys: a digit chooses; of numbers, q and a are more and less of the first, and so on.

    A gamepad's axes set the numbers in their order. What is not held stays as the policy proposes it.
    """
    bounded = isinstance(space, gymnasium.spaces.Box) and space.is_bounded()
    if not (bounded or isinstance(space, gymnasium.spaces.Discrete)):
        raise UsageError(f"actions of {space} cannot be given by keys: add --person CODE")

    def act(observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        held, action = keys.held(), np.array(proposed)
        if isinstance(space, gymnasium.spaces.Discrete):
            digits = [int(key) for key in held if key.isdigit() and int(key) < space.n]
            return np.array(int(space.start) + digits[0]) if digits else action
        assert isinstance(space, gymnasium.spaces.Box)
        flat, low, high = action.reshape(-1), space.low.ravel(), space.high.ravel()
        for place, value in keys.axes().items():
            if place < len(flat):
                flat[place] = low[place] + (value + 1) / 2 * (high[place] - low[place])
        for place, (more, less) in enumerate(PAIRS[: len(flat)]):
            if (more in held) != (less in held):
                flat[place] = (high if more in held else low)[place]
        return flat.reshape(action.shape)

    return act
