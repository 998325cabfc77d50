"""The live display of a run: a panel on a terminal, a line now and then elsewhere. All of it goes to stderr."""

import time

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from repolicy.cli.terminal import Terminal
from repolicy.engine.request import Request
from repolicy.loading import printable

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_FRAMES = 0.25

# (heading, [(metric, what people call it, format)]); a row is shown once its metric has been seen.
ROWS = [
    (
        "return",
        [
            ("basic_return", "basic return of episodes", ",.1f"),
            ("task_return", "task's return of episodes", ",.1f"),
            ("episode_length", "episode length", ",.0f"),
            ("evaluation_objective", "objective, last evaluation", ",.1f"),
            ("best", "objective, best evaluation", ",.1f"),
        ],
    ),
    (
        "reward a step",
        [
            ("reward_task", "task", "+.4f"),
            ("reward_prior", "prior  ω′ log π₀", "+.4f"),
            ("reward_entropy", "entropy  −α log π", "+.4f"),
            ("reward_total", "total", "+.4f"),
        ],
    ),
    (
        "policy",
        [
            ("entropy", "entropy", ".3f"),
            ("std", "mean std", ".3f"),
            ("log_prior", "log-likelihood under the prior", ".3f"),
            ("log_prior_low", "… its lowest tenth", ".3f"),
            ("prior_kl", "KL to the prior, nats a step", ".3f"),
            ("kl", "KL of the last update", ".4f"),
            ("clipped", "clipped", ".1%"),
            ("loss", "loss of Q", ".4f"),
            ("critic_loss", "loss of the critics", ".4f"),
            ("actor_loss", "loss of the actor", ".4f"),
            ("explained_variance", "critic explains", ".1%"),
        ],
    ),
]


class Display:
    """Where a run stands, for a person."""

    def __init__(self) -> None:
        self.terminal = Terminal()
        self._live = Live(console=self.terminal, auto_refresh=False) if self.terminal.is_terminal else None
        self._latest: dict[str, float] = {}

    def begin(self, request: Request, start: int, total: int) -> None:
        self._request, self._start, self._total = request, start, total
        self._began = self._shown = time.monotonic()
        if start:
            self.say(f"resuming at {start * request.settings.iteration_steps:,} of {request.settings.steps:,} steps")
        if self._live:
            self._live.start()

    def write(self, metrics: dict[str, float]) -> None:
        self._latest |= metrics
        now = time.monotonic()
        finished = metrics["iteration"] == self._total
        if now - self._shown < (SECONDS_BETWEEN_FRAMES if self._live else SECONDS_BETWEEN_LINES) and not finished:
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
        """(share done, seconds left)."""
        done, elapsed = self._latest["iteration"], time.monotonic() - self._began
        return done / self._total, elapsed * (self._total - done) / max(done - self._start, 1)

    def _line(self) -> str:
        share, left = self._progress()
        found = self._latest
        parts = [
            f"{share:4.0%}",
            f"{found['steps']:,.0f} steps",
            f"{found['steps_per_second']:,.0f}/s",
            f"{clock(left)} left",
        ]
        for name, title, form in [row for _, rows in ROWS for row in rows]:
            if name in ("basic_return", "task_return", "evaluation_objective", "entropy", "prior_kl") and name in found:
                parts.append(f"{title} {found[name]:{form}}")
        return " · ".join(parts)

    def _panel(self) -> Group:
        share, left = self._progress()
        found, settings = self._latest, self._request.settings
        head = Text.assemble(
            (printable(self._request.env), "bold"),
            f"  {found['steps']:,.0f} of {settings.steps:,} steps  ",
            f"{found['steps_per_second']:,.0f} a second  {clock(left)} left",
        )
        times = Text()
        for name, color in (("physics", "green"), ("policy", "cyan"), ("update", "magenta")):
            if f"share_{name}" in found:
                times.append(f"{name} ", color).append(f"{found[f'share_{name}']:.0%}   ")
        table = Table.grid(padding=(0, 2))
        for heading, rows in ROWS:
            for index, (name, title, form) in enumerate([row for row in rows if row[0] in found]):
                value = format(found[name], form)
                table.add_row(Text(heading if index == 0 else "", "bold"), title, Text(value, justify="right"))
        return Group(head, ProgressBar(total=1.0, completed=share, width=60), times, table)


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
