"""Runs side by side: a pool, Ray, sweeps over ω′; two policies compared."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = ["comparing", "sweep", "tradeoff", "varying"]
