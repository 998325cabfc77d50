"""Other people's policy files: one file a format, and one description that all of them give."""

from repolicy.policies.formats.described import CannotCopy, Described, Options
from repolicy.policies.formats.find import describe, recognized

__all__ = ["CannotCopy", "Described", "Options", "describe", "recognized"]
