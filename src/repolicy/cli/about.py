"""The commands about what is here: the add-ons that ship, the speed, the installation."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from repolicy.cli.options import Positional
from repolicy.errors import UsageError
from repolicy.loading import counted
from repolicy.prepare.defaults import TABLE, train_defaults
from repolicy.runs.settings import BUDGETS, Settings


@dataclass(frozen=True)
class Addons:
    """List the add-on rewards that ship, with what each is for.

    Example: repolicy addons
    """

    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from rich.table import Column, Table

        from repolicy.envs.registered import described
        from repolicy.runs.terminal import Terminal

        heads = ("name", "environment", "what it rewards", "reported as")
        table = Table(*(Column(head, overflow="fold") for head in heads))  # a name that ends in … cannot be typed
        for row in described():
            first, *more = row["env"].split(", ")
            env = f"{first} and {len(more)} more" if more[1:] else row["env"]
            table.add_row(row["name"], env, row["what"], row["metric"])
        terminal = Terminal()
        terminal.print(table)
        terminal.say("your own: --addon module:function or --addon file.py:function")
        return {"addons": described()}


@dataclass(frozen=True)
class Report:
    """Write the page on a run: of a folder of Repolicy's or rsl_rl's, or of one saved model or checkpoint.

    Example: repolicy report logs/rsl_rl/go1/2026-01-01
    """

    run_of: Annotated[Path, Positional("RUN")]
    """A run's folder, rsl_rl's folder with model_*.pt or one of those, or a model of Stable-Baselines3 (.zip)."""
    trust: bool = False
    """Run the code that a folder of Repolicy's names."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.report.host_page import write_host_report
        from repolicy.report.run_page import write_report
        from repolicy.runs.terminal import Terminal

        terminal = Terminal()
        if (self.run_of / "run.json").exists():
            path = write_report(self.run_of, say=terminal.say, trust=self.trust)
        else:
            path, said = write_host_report(self.run_of)
            if said:
                terminal.say(said)
        terminal.say(f"report: {path}")
        return {"report": str(path)}


@dataclass(frozen=True)
class Bench:
    """Measure, in alternating slices of one run, the physics alone and training end to end, and print the share.

    Example: repolicy bench HalfCheetah-v4 --ranks 1
    """

    env: Annotated[str, Positional("ENV")]
    """Environment."""
    slices: int = 10
    """Pairs of slices; the figures are those of the median slices."""
    json: bool = False
    """Print one JSON object on stdout."""
    settings: Settings = field(default_factory=Settings)
    UNUSED: ClassVar = (*BUDGETS, "steps")  # settings that it has no use for

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """Return what the settings depend on by default, and examples."""
        return "the environment", [train_defaults(env) for env in ("", *TABLE)]

    def run(self) -> dict[str, Any]:
        from repolicy.learning.bench import bench

        named: Any = self.settings
        if "steps" in named:
            raise UsageError("a bench has no --steps: how long it takes is --slices")
        figures = bench(self.env, replace(train_defaults(self.env), **named), self.slices)
        _show(figures)
        return figures


@dataclass(frozen=True)
class Doctor:
    """Say what this installation can do; or, of a training that broke when it was resumed, the usual causes.

    Example: repolicy doctor model_200.pt --before model_150.pt
    """

    checkpoint: Annotated[Path | None, Positional("RUN")] = None
    """A checkpoint of rsl_rl or Stable-Baselines3: soon after it was resumed."""
    before: Path | None = None
    """The checkpoint that was resumed."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.cli.doctor import doctor
        from repolicy.runs.terminal import Terminal

        if self.checkpoint is None:
            if self.before is not None:
                raise UsageError("--before goes with the checkpoint of the training that went on from it")
            return doctor()
        from repolicy.hosts.resuming import causes, read_checkpoint

        found = causes(read_checkpoint(self.checkpoint), None if self.before is None else read_checkpoint(self.before))
        terminal = Terminal()
        for sentence in found or ["none of the usual causes is there"]:
            terminal.say(sentence)
        return {"causes": found}


def _show(figures: dict[str, Any]) -> None:
    from rich.table import Table

    from repolicy.runs.terminal import Terminal

    title = f"{figures['env']} ({figures['backend']}), {counted(figures['ranks'], 'rank')}, {figures['steps']:,} steps"
    table = Table("", "", title=title, title_justify="left", show_header=False)
    table.add_row("physics alone", f"{figures['physics_steps_per_second']:,.0f} steps a second")
    table.add_row("training, end to end", f"{figures['training_steps_per_second']:,.0f} steps a second")
    table.add_row("share of the physics", f"{figures['share']:.3f}")
    table.add_row("… without evaluation and checkpoint", f"{figures['share_without_evaluation']:.3f}")
    spread = figures["slice_shares"]
    table.add_row("… of the slices", f"{spread['min']:.3f} – {spread['max']:.3f}")
    where = ", ".join(f"{name} {share:.0%}" for name, share in figures["training_is"].items())
    table.add_row("where training's time goes", where)
    table.add_row("its physics take", f"{figures['physics_in_training']:.2f} times what they take alone")
    table.add_row("memory", f"{figures['memory_mb_a_rank']:,.0f} MB a rank")
    Terminal().print(table)
