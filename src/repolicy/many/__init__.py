"""Runs side by side: a pool, Ray, sweeps over ω′, positions of a dial; two policies compared."""

# The door: other rooms may import these files, and no others of this folder.
__all__ = ["comparing", "positions", "sweep", "tradeoff", "varying"]
