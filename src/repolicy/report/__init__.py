"""Pages that people look at, and films."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = ["charts", "compare_page", "dial_page", "filming", "host_page", "movie", "page", "publish", "run_page"]
__all__ += ["sweep_page", "verdict"]
