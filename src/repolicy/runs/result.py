"""The result of a run in Python: its policy, its metrics, evaluations and plots."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from repolicy.errors import FileError, UsageError
from repolicy.evaluation import Evaluation, evaluate
from repolicy.policies import Policy
from repolicy.priors import How, dial, load_policy
from repolicy.runs.folder import RunFolder
from repolicy.text import format_digits, format_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Metrics that `plot` draws by default, if the run has them, with the labels of their axes.
CURVES = {
    "evaluation_objective": "objective of an episode",
    "basic_return": "basic reward of an episode",
    "task_return": "task's reward of an episode",  # of Residual Q-learning
    "reward_task": "task's reward a step",
    "prior_kl": "KL to the prior, nats a step",
}


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run, finished or stopped early."""

    folder: Path
    steps: int
    finished: bool
    last: dict[str, float]  # the metrics of the last iteration

    def __repr__(self) -> str:
        parts = [f"{self.steps:,} steps" + ("" if self.finished else ", stopped early")]
        if (objective := self.last.get("evaluation_objective")) is not None:
            parts.append(f"objective {format_number(objective)} an episode in the end")
        if "prior_kl" in self.last:
            parts.append(f"{format_number(self.last['prior_kl'])} nats a step from the prior")
        return f"Result of {self.folder}: {'; '.join(parts)}"

    @cached_property
    def policy(self) -> Policy:
        """The run's policy: the last one, or a clearly better earlier one (docs/reading-a-report.md)."""
        return load_policy(self.folder)

    def at(self, t: float | None = None, how: How = "mixture", **values: float) -> Policy:
        """Return the policy between the prior (t = 0) and the run's own (t = 1), without training.

        If the run has a dial, return the policy for that weight; with several dials, give each weight by its name
        (docs/dials-and-sweeps.md).
        """
        return dial(self.folder, t, how, **values)

    def metrics(self) -> dict[str, np.ndarray]:
        """Return each logged metric as an array with one value an iteration, nan if missing.

        docs/reading-a-report.md explains them. Raises FileError where the run's folder is gone.
        """
        if not self.folder.is_dir():
            raise FileError(f"{self.folder.absolute()} is not there: was it moved, or the working folder changed?")
        return {name: np.array(values, np.float64) for name, values in RunFolder(self.folder).read_metrics().items()}

    def evaluate(self, episodes: int = 100, *, deterministic: bool = True, seed: int = 0) -> Evaluation:
        """Evaluate the policy for whole episodes in the run's environment, with its add-on."""
        return evaluate(self.folder, episodes=episodes, deterministic=deterministic, seed=seed, trust=True)

    def plot(self, *names: str) -> "Figure":
        """Draw these metrics over steps; by default those that people look at first."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise UsageError("plot needs the package matplotlib: pip install matplotlib") from None
        columns = self.metrics()
        for name in names:
            if name not in columns:
                raise UsageError(f"the run logged no {name!r}; it has {', '.join(columns)}")
        drawn = names or [name for name in CURVES if name in columns]
        figure, axes = pyplot.subplots(1, len(drawn), figsize=(4.5 * len(drawn), 3.2), squeeze=False)
        for axis, name in zip(axes[0], drawn, strict=True):
            is_logged = np.isfinite(columns[name])
            marker = "o" if is_logged.sum() < 20 else ""
            axis.plot(columns["steps"][is_logged], columns[name][is_logged], marker=marker)
            axis.set(xlabel="steps", ylabel=CURVES.get(name, name.replace("_", " ")))
        figure.tight_layout()
        return figure


class Estimate(NamedTuple):
    """A mean over episodes or environments, with its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, total: float, squares: float, count: float) -> "Estimate":
        """Return the estimate from the sum of the samples, the sum of their squares, and their number."""
        mean = total / count
        return cls(mean, math.sqrt(max(squares / count - mean**2, 0.0) / max(count - 1.0, 1.0)))

    def __str__(self) -> str:
        return f"{format_digits(self.mean, 4)} ± {format_digits(self.error, 2)}"
