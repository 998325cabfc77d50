"""Batches of environments behind one `Step`, add-ons, rollouts and evaluations."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = [
    "addons",
    "dialed",
    "envpool",
    "evaluation",
    "gymnasium",
    "limits",
    "making",
    "names",
    "registered",
    "rollout",
    "step",
    "trust",
    "watchdog",
    "wish_file",
]
