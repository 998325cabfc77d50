"""Customizing without training: a planner, which simulates before it acts."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = ["asking", "planner"]
