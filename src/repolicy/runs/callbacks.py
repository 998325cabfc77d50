"""Callbacks that show or log a run: a live display, TensorBoard, Weights & Biases.

A callback is any object with `begin`, `write`, `say` and `close`. The display writes to stderr: a panel on a terminal,
elsewhere a line every few seconds.
"""

import math
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from repolicy.errors import UsageError
from repolicy.files import write_bytes
from repolicy.runs.request import Request
from repolicy.runs.terminal import SECONDS_BETWEEN_LINES, Terminal
from repolicy.text import format_number, printable, with_minus

SECONDS_BETWEEN_FRAMES = 0.25

_with_sign = partial(format_number, plus=True)

# The panel's rows below each heading: (metric, title, what formats it, unit). A row appears when
# its metric is first logged.
PANEL_ROWS: dict[str, list[tuple[str, str, Callable[[float], str], str]]] = {
    "an episode": [
        ("basic_return", "basic reward", format_number, ""),
        ("task_return", "task's reward", format_number, ""),
        ("episode_length", "length", "{:,.0f}".format, "steps"),
        ("evaluation_basic", "basic reward, last evaluation", format_number, ""),
        ("evaluation_addon", "add-on reward, last evaluation", format_number, ""),
        ("evaluation_objective", "objective, last evaluation", format_number, ""),
        ("evaluation_ended_early", "ended early, last evaluation", "{:,.0f}".format, "episodes"),
    ],
    "a step": [
        ("reward_task", "task's reward", _with_sign, ""),
        ("reward_prior", "ω′ · log prior", _with_sign, ""),
        ("reward_entropy", "−α · log policy", _with_sign, ""),
        ("reward_states", "states unlike the prior's", _with_sign, ""),
        ("reward_limits", "limits", _with_sign, ""),
        ("reward_total", "sum", _with_sign, ""),
        ("log_prior", "log prior", "{:.3f}".format, "nats"),
        ("log_prior_low", "… its lowest tenth", "{:.3f}".format, "nats"),
        ("prior_kl", "KL to the prior", "{:z.3f}".format, "nats"),
        ("below_prior", "less likely to the prior than its own", "{:.3f}".format, "nats"),
    ],
    "policy": [
        ("omega", "ω′", "{:.4g}".format, ""),
        ("alpha", "α", "{:.4g}".format, ""),
        ("entropy", "entropy", "{:.3f}".format, "nats"),
        ("std", "mean std", format_number, "of an action"),
        ("kl", "KL of the last update", "{:.4f}".format, "nats"),
        ("clipped", "clipped", "{:.1%}".format, "of the samples"),
        ("loss", "loss of Q", "{:.4f}".format, ""),
        ("critic_loss", "loss of the critics", "{:.4f}".format, ""),
        ("actor_loss", "loss of the actor", "{:.4f}".format, ""),
        ("explained_variance", "critic explains", "{:.1%}".format, "of the returns"),
    ],
}
OF_PRIOR = ("reward_prior", "omega")  # of the panel's rows, those that a run without a prior lacks
IN_EVALUATION = "an episode in the last evaluation"  # the other metrics are of training's own steps
# What formats the metrics of a line, which replaces the panel outside a terminal.
LINE_METRICS: dict[str, Callable[[float], str]] = {
    "basic_return": lambda reward: f"basic reward {format_number(reward)} an episode",
    "task_return": lambda reward: f"task's reward {format_number(reward)} an episode",
    "evaluation_addon": lambda reward: f"add-on reward {format_number(reward)} {IN_EVALUATION}",
    "evaluation_objective": lambda objective: f"objective {format_number(objective)} {IN_EVALUATION}",
    "entropy": "entropy {:.3f} nats".format,
    "prior_kl": "{:z.3f} nats a step from the prior".format,
}


def recipe(request: Request) -> str:
    """Return a summary of a run's weights and length: `ω′ 0.6 · α̂ 0.135 · 1,000,000 steps`."""
    objective, settings = request.objective, request.settings
    alpha = "α̂" if request.prior else "α"
    parts = []
    if objective.reads_prior:
        parts.append(f"ω′ {objective.omega:.3g}")
    if objective.alpha:
        parts.append(f"{alpha} = ω′" if objective.alpha == "omega" else f"{alpha} {objective.alpha:.3g}")
    if objective.bonus > 0:
        parts.append(f"{objective.bonus:.3g} · entropy in the loss")
    if objective.reads_prior or objective.reads_states:
        parts.append(f"states {objective.states:.3g}")  # also 0, which a named ω′ brings
    if settings.budget is not None:
        parts.append(f"from there {settings.budget.words}")
    ranks = getattr(settings, "ranks", 1)
    parts.append(f"{settings.steps:,} steps" + (f" on {ranks} cores" if ranks > 1 else ""))
    return " · ".join(parts)


class Display:
    """Shows a run's progress and metrics on stderr."""

    def __init__(self) -> None:
        self.terminal = Terminal()
        self._live = Live(console=self.terminal, auto_refresh=False) if self.terminal.is_interactive else None
        self._latest: dict[str, float] = {}
        self._first = math.inf, 0.0  # the first iteration that was written, and its time

    def begin(self, request: Request, start: int, total: int) -> None:
        self._request, self._start, self._total = request, start, total
        self._began = self._shown = time.monotonic()
        self._first = math.inf, 0.0
        self.say(recipe(request))
        if start >= total:
            self.say("the run is done")
        elif start:
            self.say(f"resuming at {start * request.settings.iteration_steps:,} of {request.settings.steps:,} steps")
        if self._live:
            self._live.start()

    def write(self, metrics: dict[str, float]) -> None:
        self._latest |= metrics
        now = time.monotonic()
        self._first = min(self._first, (metrics["iteration"], now))
        interval = SECONDS_BETWEEN_FRAMES if self._live else SECONDS_BETWEEN_LINES
        if now - self._shown < interval and metrics["iteration"] < self._total:
            return
        self._shown = now
        if self._live:
            self._live.update(self._panel(), refresh=True)
        else:
            self.terminal.say(self._line())

    def say(self, sentence: str) -> None:
        self.terminal.say(sentence)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _progress(self) -> tuple[float, float]:
        """Return (share done, seconds left). Start-up and the first iteration do not count for the speed."""
        done = self._latest["iteration"]
        start, began = self._first if done > self._first[0] else (self._start, self._began)
        return done / self._total, (time.monotonic() - began) * (self._total - done) / max(done - start, 1)

    def _line(self) -> str:
        (share, left), latest, budget = self._progress(), self._latest, self._budget()
        parts = [f"{share:4.0%}", self._steps()]
        parts.append(f"{latest['steps_per_second']:,.0f} a second")
        if latest["iteration"] > self._first[0]:  # the first iteration, with what comes only once, tells no time left
            parts.append(f"{format_duration(left)} left")
        shown = [name for name in LINE_METRICS if name in latest and not (budget and name == "prior_kl")]
        parts += [with_minus(LINE_METRICS[name](latest[name])) for name in shown]
        if ended := latest.get("evaluation_ended_early"):
            episodes = self._request.settings.evaluated_episodes
            parts.append(f"{ended:.0f} of {episodes} evaluated episodes ended early")
        return " · ".join([*parts, *budget])

    def _steps(self) -> str:
        """Return `100,000 of 100,000 steps`; the last iteration may go beyond the wanted number."""
        wanted = self._request.settings.steps
        return f"{min(self._latest['steps'], wanted):,.0f} of {wanted:,} steps"

    def _budget(self) -> list[str]:
        """Return the current omega and the budget's metric as text; empty if the run has no budget."""
        latest, budget = self._latest, self._request.settings.budget
        if budget is None or budget.metric not in latest or "omega" not in latest:
            return []
        return [f"ω′ {latest['omega']:.3g}", budget.compare(latest[budget.metric])]

    def _panel(self) -> Group:
        (share, left), latest = self._progress(), self._latest
        pace = f"  {self._steps()}  {latest['steps_per_second']:,.0f} a second  {format_duration(left)} left"
        head = Text.assemble((printable(self._request.env), "bold"), pace)
        times = Text("time: ")
        for name, color in (("physics", "green"), ("policy", "cyan"), ("update", "magenta")):
            if f"share_{name}" in latest:
                times.append(f"{name} ", color).append(f"{latest[f'share_{name}']:.0%}   ")
        table, reads_prior = Table.grid(padding=(0, 2)), self._request.objective.reads_prior
        for heading, rows in PANEL_ROWS.items():
            known_rows = [row for row in rows if row[0] in latest and (reads_prior or row[0] not in OF_PRIOR)]
            for index, (name, title, formatted, unit) in enumerate(known_rows):
                value = Text(with_minus(formatted(latest[name])), justify="right")
                table.add_row(Text(heading if index == 0 else "", "bold"), title, value, unit)
        budget = [Text(" · ".join(self._budget()), "bold")] if self._budget() else []
        bar = ProgressBar(total=1.0, completed=share, width=60)
        return Group(head, Padding(bar, (1, 0)), times, *budget, Text(), table)


def format_duration(seconds: float) -> str:
    """Return `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# Loggers --------------------------------------------------------------------------------------------------------------


class TensorBoard:
    """Writes TensorBoard's event files into the run's folder, over steps."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._writer: Any = None  # None where it is not installed

    def begin(self, request: Request, start: int, total: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("no files for TensorBoard: pip install 'repolicy[engine]'", file=sys.stderr)
            return
        first = start * request.settings.iteration_steps + 1
        self._writer = SummaryWriter(str(self._path), purge_step=first)  # what was drawn after the last checkpoint

    def write(self, metrics: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(_logged_name(name), value, int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """Logs to Weights & Biases; a resumed run continues the same run there."""

    def __init__(self, folder: Path, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("--wandb needs the package wandb: pip install 'repolicy[wandb]'") from None
        try:
            wandb.login()  # may fail, so before the run's folder is claimed
        except wandb.Error as error:
            raise UsageError(f"--wandb: {error}") from None
        self._wandb, self._folder, self._project = wandb, folder.resolve(), project

    def begin(self, request: Request, start: int, total: int) -> None:
        file = self._folder / "wandb-id"  # a random id, the same when the run is resumed
        if not file.exists():
            write_bytes(file, secrets.token_hex(8).encode())
        try:
            self._run = self._wandb.init(
                project=self._project, dir=self._folder, id=file.read_text(), resume="allow", config=request.as_dict()
            )
        except self._wandb.Error as error:
            raise UsageError(f"--wandb: {error}") from None

    def write(self, metrics: dict[str, float]) -> None:
        self._run.log({_logged_name(name): value for name, value in metrics.items()}, step=int(metrics["steps"]))

    def say(self, sentence: str) -> None: ...

    def close(self) -> None:
        self._run.finish()


_NAME_GROUPS = ("reward", "evaluation", "share")


def _logged_name(name: str) -> str:
    """Return a metric's name with its group, by which both loggers arrange the charts: `reward/task`, `run/omega`."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in _NAME_GROUPS and rest else f"run/{name}"
