"""What somebody else's policy file may not say, and its user can. (Without torch, so that `--help` is quick.)"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How to read a policy's file that another library wrote."""

    std: float | None = None
    """Of another library's policy that has none: the std of its actions (before tanh, where it squashes them)."""
    temperature: float | None = None
    """Of another library's Q-network: the temperature at which it chooses its actions, in units of the return."""
    vecnormalize: str | None = None
    """Of another library's policy: a file with its observations' statistics, or none to go without."""
    file_activation: str | None = None
    """Of another library's policy: its network's activation, where the file does not say."""
