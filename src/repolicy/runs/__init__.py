"""A run's settings, its request, its folder, its ranks, and what it shows while it goes on."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = ["callbacks", "folder", "machine", "ranks", "request", "result", "settings", "terminal"]
