"""Pages that people look at, and films."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = ["charts", "compare_page", "dial_page", "filming", "host_page", "movie", "page"]
__all__ += ["pieces", "publish", "run_page", "sweep_page", "verdict"]
