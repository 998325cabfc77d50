"""Other libraries' files, read into plain arrays: one file a format, one description that all of them give."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = [
    "context",
    "copying",
    "demonstrations",
    "description",
    "onnx_graphs",
    "pickles",
    "reading",
    "recognize",
    "rsl_rl_checkpoint",
    "zips",
]
