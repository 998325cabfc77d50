"""The commands, a file for each question that a user asks."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = ["main"]
