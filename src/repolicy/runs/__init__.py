"""A run's settings, its request, its folder, its ranks, and what it shows while it goes on."""

from typing import TYPE_CHECKING

from repolicy.loading import imported_for_types, later

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
    ACTOR_SETTINGS,
    BUDGETS,
    AnySettings,
    Budget,
    Settings,
    Within,
    budget_of,
    complete_settings,
    read_settings,
    refuse_for_choices,
    validate_settings,
)
from repolicy.runs.terminal import (
    SECONDS_BETWEEN_LINES,
    Terminal,
    flushed_stdout,
    format_facts,
    format_table,
    silent_stdout,
)

if TYPE_CHECKING:
    from repolicy.runs.callbacks import Display, TensorBoard, Wandb, format_duration, recipe
    from repolicy.runs.folder import RunFolder, describe_changes
    from repolicy.runs.ranks import Ranks, SingleRank
    from repolicy.runs.request import (
        Request,
        Stream,
        check_dials,
        command_options,
        command_words,
        derived_seed,
        spec_for,
    )
    from repolicy.runs.result import Estimate, Result

__all__ = ["ranks", "request"]
if not TYPE_CHECKING:  # a type checker then knows that there are no other names
    __getattr__ = later(__name__, imported_for_types(__name__, __file__))
