"""A run's settings, its request, its folder, its ranks, and what it shows while it goes on."""

from typing import TYPE_CHECKING

from repolicy.loading import later

# The door: other rooms import these names, and the files in `__all__`. What needs torch is imported when it is first
# used, so that `--help` is quick.
from repolicy.runs.machine import (
    keep_freed_memory,
    physical_cores,
    polite_interrupt,
    terminated_as_interrupted,
    torchrun_place,
    versions,
)
from repolicy.runs.settings import (
    ACTORS,
    BUDGETS,
    AnySettings,
    Budget,
    S,
    Settings,
    Within,
    budget_of,
    read_settings,
    validated,
)
from repolicy.runs.terminal import Terminal, full_stdout_is_an_error, laid_out, silent_stdout

if TYPE_CHECKING:
    from repolicy.runs.callbacks import SECONDS_BETWEEN_LINES, Display, TensorBoard, Wandb, clock, recipe
    from repolicy.runs.folder import RunFolder, changed
    from repolicy.runs.ranks import Alone, Ranks, one_thread
    from repolicy.runs.request import Request, check_dials, derived_seed, options, spec_for, words
    from repolicy.runs.result import Measured, Result

_LATER = {
    **dict.fromkeys(("SECONDS_BETWEEN_LINES", "Display", "TensorBoard", "Wandb", "clock", "recipe"), "callbacks"),
    **dict.fromkeys(("RunFolder", "changed"), "folder"),
    **dict.fromkeys(("Alone", "Ranks", "one_thread"), "ranks"),
    **dict.fromkeys(("Request", "check_dials", "derived_seed", "options", "spec_for", "words"), "request"),
    **dict.fromkeys(("Measured", "Result"), "result"),
}

__all__ = ["ranks", "request"]
__getattr__ = later(__name__, _LATER)
