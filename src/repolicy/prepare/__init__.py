"""What to do: the worth of a nat, weights, the prior's states, the first policy, a diagnosis."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = [
    "beginning", "checks", "claiming", "decision", "defaults", "diagnosis", "flows", "generative", "imitation",
    "session", "spending", "states", "weights", "worth",
]  # fmt: skip
