"""Readers of policy files of other libraries: one file per format; all return a `PolicyDescription`."""

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
]
