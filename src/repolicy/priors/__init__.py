"""Whatever a user names as a prior: a name, a file, a place on the hub, an object, a function."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = [
    "decoders",
    "dials",
    "finding",
    "fitting",
    "hub",
    "kinds",
    "opening",
    "running",
]
