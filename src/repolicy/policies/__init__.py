"""Our network and our file: distributions, normalizer, checks of a file, export."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = [
    "carrying",
    "density",
    "distributions",
    "export",
    "families",
    "file",
    "modulated",
    "network",
    "normalizer",
    "policy",
    "storage",
]
