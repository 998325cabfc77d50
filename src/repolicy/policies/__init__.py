"""Our network and our file: distributions, normalizer, checks of a file, export."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = [
    "actions",
    "density",
    "dialed_policy",
    "distributions",
    "export",
    "families",
    "file",
    "layers",
    "modulated",
    "network",
    "normalizer",
    "policy",
    "storage",
]
