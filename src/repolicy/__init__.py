"""Repolicy gives a trained policy a new requirement without its old reward."""

from repolicy.objective import Objective

__version__ = "0.1.0"
__all__ = ["Objective", "__version__"]
