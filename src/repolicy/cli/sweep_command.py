"""The command that customizes at several ω′."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from repolicy.cli.run_commands import overrides
from repolicy.plan.defaults import of_shape
from repolicy.readers.reading import Options
from repolicy.runs.settings import ACTORS, BUDGETS, Settings


@dataclass(frozen=True)
class Sweep:
    """Choose ω′: customize at several values side by side, and see what each keeps and gains.

    Example: repolicy sweep halfcheetah --addon hind_leg=10 --omega 0.1 0.3 0.6 1 --steps 1e6 --out runs/sweep
    """

    prior: Positional[Annotated[str, arg(metavar="PRIOR")]]
    """The trained policy: a name that ships (halfcheetah, hopper, ant), a policy's file, or a run's folder."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """The new requirement: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    omega: tuple[float, ...] = ()
    """The values of ω′; 0 is the add-on alone."""
    alpha: float | None = None
    """α̂, the reward that a nat of entropy is worth; by default the prior's own α, else a third of the smallest
    ω′."""
    states: float | None = None
    """Price of a nat by which a state is less likely than the prior's own states; by default what a nat is worth in the
    old reward. 0: the paper's objective."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    jobs: int = 0
    """How many points are trained at a time, each on one core; 0 means one a physical core."""
    ray: bool = False
    """Train the points as Ray tasks, in the cluster that RAY_ADDRESS names (all of it must see the folder)."""
    sparse: bool = False
    """Accept an add-on that is constant over some thousand trial steps."""
    episodes: int = 50
    """Episodes of each evaluation afterwards."""
    out: Path | None = None
    """The sweep's folder; by default runs/PRIOR-sweep."""
    resume: bool = False
    """Go on with the sweep in the folder; values of --omega that are new are added to it."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file of settings; options on the command line override it."""
    trust: bool = False
    """Run code that the file of the prior, or the sweep that is resumed, names as its environment or add-on."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: OmitArgPrefixes[Options] = field(default_factory=Options)
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)
    UNUSED: ClassVar = (*BUDGETS, *ACTORS, "ranks")  # settings that it has no use for

    @staticmethod
    def usual() -> tuple[str, list[Settings]]:
        """Return what the settings depend on by default, and examples."""
        return "the prior", [of_shape(64, 1), of_shape(256, 12)]

    def run(self) -> dict[str, Any]:
        from repolicy.many.sweep import sweep
        from repolicy.many.tradeoff import as_dict
        from repolicy.report.sweep_page import headings, rows, write_sweep_report
        from repolicy.runs.terminal import Terminal

        terminal = Terminal()
        with terminal.status("training") as status:
            swept = sweep(
                self.prior, self.addon, self.omega, self.alpha, self.out, overrides(self),
                states=self.states, env=self.env, resume=self.resume, trust=self.trust, reading=self.reading,
                sparse=self.sparse, jobs=self.jobs, on_ray=self.ray, episodes=self.episodes, say=terminal.say,
                progress=lambda shares: status.update(
                    "trained: " + " · ".join(f"ω′ {omega:g} {share:.0%}" for omega, share in shares.items())
                ),
            )  # fmt: skip
            status.update("films")
            report = write_sweep_report(swept, terminal.say)
        points = rows(swept, with_std=False)
        terminal.say(swept.verdict)
        terminal.numbers(f"{swept.request['env']}: what each ω′ keeps and gains", headings(swept), points)
        chosen = swept.knee if swept.knee is not None else swept.best
        if chosen is not None:
            point = swept.points[chosen]
            terminal.say(
                f"the policy of {swept.name(point)}{swept.marks(chosen)}: {point.policy}; "
                f"to train it for longer: {swept.longer(point)}"
            )
        terminal.say(f"report: {report}")
        return as_dict(swept) | {"folder": str(swept.folder), "report": str(report)}
