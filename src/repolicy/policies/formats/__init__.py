"""Other people's policy files: one file a format, and one description that all of them give."""

from repolicy.policies.formats.described import CannotCopyError, Described
from repolicy.policies.formats.find import describe, recognized
from repolicy.policies.options import Options

__all__ = ["CannotCopyError", "Described", "Options", "describe", "recognized"]
