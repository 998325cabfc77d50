"""What somebody else's policy file may not say, and its user can. (Without torch, so that `--help` is quick.)"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """How to read a policy's file that another library wrote."""

    std: float | Literal["fit"] | None = None
    """Of a policy that has none: the std of its actions (before tanh, where it squashes them); fit: from
    --demonstrations."""
    temperature: float | None = None
    """Of another library's Q-network: the temperature at which it chooses its actions, in units of the return."""
    vecnormalize: str | None = None
    """Of another library's policy: a file with its observations' statistics, or none to go without."""
    file_activation: str | None = None
    """Of another library's policy: its network's activation, where the file does not say."""
    demonstrations: str | None = None
    """For --std fit: recorded observations and actions of the policy, an .npz file or a Minari dataset."""
