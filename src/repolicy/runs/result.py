"""What a run ended in, and what can be done with it in Python."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from repolicy.envs import Evaluation, evaluate
from repolicy.errors import UsageError
from repolicy.policies import Policy, read_card
from repolicy.priors import How, dial, find_policy, load_policy
from repolicy.runs.folder import RunFolder
from repolicy.text import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What `plot` draws where nothing else is asked for, as far as the run has it: a metric and its axis.
CURVES = {
    "evaluation_objective": "objective of an episode",
    "basic_return": "basic reward of an episode",
    "reward_task": "task's reward a step",
    "prior_kl": "KL to the prior, nats a step",
}


@dataclass(frozen=True, repr=False)
class Result:
    """What a run ended in."""

    folder: Path
    steps: int
    finished: bool
    last: dict[str, float]  # the metrics of the last iteration

    def __repr__(self) -> str:
        parts = [f"{self.steps:,} steps" + ("" if self.finished else ", stopped early")]
        if "evaluation_objective" in self.last:
            parts.append(f"objective {self.last['evaluation_objective']:,.1f} an episode in the end")
        if "prior_kl" in self.last:
            parts.append(f"{self.last['prior_kl']:.2f} nats a step from the prior")
        return f"Result of {self.folder}: {'; '.join(parts)}"

    @cached_property
    def policy(self) -> Policy:
        """What the run hands out: the last policy, or a clearly better one (docs/reading-a-report.md)."""
        return load_policy(RunFolder(self.folder).policy)

    def at(self, t: float | None = None, how: How = "mixture", **values: float) -> Policy:
        """Return the policy between the prior (t = 0) and the run's own (t = 1), without training.

        Of a run with a dial, it is the policy for that weight, and of several, for weights by their names
        (docs/dials-and-sweeps.md).
        """
        return dial(self.folder, t, how, **values)

    def metrics(self) -> dict[str, np.ndarray]:
        """Return what was logged, a value an iteration; nan where there is none (docs/reading-a-report.md)."""
        return {name: np.array(values, np.float64) for name, values in RunFolder(self.folder).read_metrics().items()}

    def evaluate(self, episodes: int = 100, *, deterministic: bool = True, seed: int = 0) -> Evaluation:
        """Run whole episodes of the policy, in the run's environment, with its add-on."""
        settings = read_card(find_policy(self.folder)).get("request", {}).get("settings", {})
        return evaluate(
            self.folder, episodes=episodes, deterministic=deterministic, seed=seed, trust=True,
            backend=settings.get("backend", "auto"),
        )  # fmt: skip

    def plot(self, *names: str) -> "Figure":
        """Draw curves of these metrics over environment steps, or of the few that people look at first."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise UsageError("plot needs the package matplotlib: pip install matplotlib") from None
        columns = self.metrics()
        missing = [name for name in names if name not in columns]
        if missing:
            raise UsageError(f"the run logged no {missing[0]!r}; it has {', '.join(columns)}")
        wanted = names or [name for name in CURVES if name in columns]
        figure, axes = pyplot.subplots(1, len(wanted), figsize=(4.5 * len(wanted), 3.2), squeeze=False)
        for axis, name in zip(axes[0], wanted, strict=True):
            known = np.isfinite(columns[name])
            marker = "o" if known.sum() < 20 else ""
            axis.plot(columns["steps"][known], columns[name][known], marker=marker)
            axis.set(xlabel="environment steps", ylabel=CURVES.get(name, name.replace("_", " ")))
        figure.tight_layout()
        return figure


class Estimate(NamedTuple):
    """A mean over episodes or environments, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, total: float, squares: float, count: float) -> "Estimate":
        mean = total / count
        return cls(mean, math.sqrt(max(squares / count - mean**2, 0.0) / max(count - 1.0, 1.0)))

    def beats(self, other: "Estimate") -> bool:
        """Say whether it is higher by more than the error of the difference."""
        return self.mean - other.mean > math.hypot(self.error, other.error)

    def __str__(self) -> str:
        return f"{figures(self.mean, 4)} ± {figures(self.error, 2)}"
