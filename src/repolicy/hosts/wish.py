"""An add-on of a file as a host's: a wish that was learnt, or a function of yours, of what the actor sees and does."""

import torch
from torch import Tensor

from repolicy.envs import Transitions, addons
from repolicy.errors import UsageError


class Wished:
    """What `wish.safetensors=10` or `my.py:quiet` pays. It is computed on the CPU, a rollout at a time."""

    def __init__(self, request: str) -> None:
        self._addon = addons.combined([request])

    @classmethod
    def of(cls, addon: str | None) -> "Wished | None":
        """Return the wish where an add-on names a file or a module; else it is an entry of the host's extras."""
        if not isinstance(addon, str | None):
            raise UsageError(f"addon is {addon!r}; it must be one name: let the environment add several up")
        return cls(addon) if addon and addons.imported(addon) else None

    def paid(self, before: Tensor, actions: Tensor, after: Tensor, ended: Tensor) -> Tensor:
        """Return the rewards `[...]` of transitions; 0 where an episode ended, for nobody tells what it ended in."""
        states, done, led_to = (part.detach().cpu().numpy() for part in (before, actions, after))
        found = torch.from_numpy(self._addon.reward(Transitions(states, done, led_to, {}))).to(before)
        return torch.where(ended, 0.0, found)
