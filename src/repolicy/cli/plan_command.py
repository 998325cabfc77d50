"""The command that customizes without training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from repolicy.cli.options import Positional, Repeated
from repolicy.errors import UsageError
from repolicy.loading import as_file_name, counted, stem_of
from repolicy.readers.reading import Options
from repolicy.runs.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Meet a wish without training: simulate what the prior might do before each action, and keep that as a folder.

    Example: repolicy plan halfcheetah --addon hind_leg=10 --samples 32 --episodes 2
    """

    prior: Annotated[str, Positional("PRIOR")]
    """A policy's file, a run's folder, or a name that ships, as customize takes it."""
    addon: Repeated = ()
    """Add-on reward that is wished for. Repeatable."""
    env: str | None = None
    """Environment, one of Gymnasium's MuJoCo tasks; by default the one that the prior was trained in."""
    omega: float | None = None
    """ω′: the weight of log prior. Without it, --states and --value, what does best in short trials."""
    states: float | None = None
    """The price on states that the prior does not visit; beside --omega or --value, what a nat is worth."""
    value: bool = False
    """Count what is still to come after a plan's end, by a value that is fitted to the prior's episodes."""
    samples: int = 32
    """How many candidates are simulated before each action."""
    horizon: int = 8
    """How many steps each of them has."""
    hz: float | None = None
    """Decisions a second that are wanted: as many samples as this machine simulates in that time."""
    episodes: int = 2
    """Episodes of the planner, and of its prior beside it."""
    steps: int = 1000
    """An episode is cut after so many steps."""
    seed: int = 0
    """Of the planner's noise and of the environments."""
    live: bool = False
    """Show the planner at work on a page of this machine, with sliders for its weights, until Ctrl-C."""
    port: int = 8000
    """Of that page; 0: any that is free."""
    distil: int = 0
    """Keep it as a policy that needs no planner: fit that to so many of the planner's decisions."""
    out: Path | None = None
    """The planner's folder, which evaluate, compare and render take; with --distil the policy's file. By default
    runs/PRIOR-plan or runs/PRIOR-planned.safetensors."""
    trust: bool = False
    """Run code that the prior's file names as its environment."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.envs.addons import combined
        from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
        from repolicy.planning.asking import planned
        from repolicy.planning.distilling import check_room, keep_as_policy
        from repolicy.planning.keeping import keep
        from repolicy.planning.live import show
        from repolicy.planning.pace import paced
        from repolicy.planning.planner import Search
        from repolicy.policies.storage import check_place
        from repolicy.priors.code import PLAN
        from repolicy.report.run_page import rewards
        from repolicy.runs.ranks import one_thread
        from repolicy.runs.terminal import Terminal

        Settings(seed=self.seed)  # which refuses one that no environment takes
        name = as_file_name(stem_of(self.prior)) + ("-planned.safetensors" if self.distil else "-plan")
        terminal, out = Terminal(), self.out or Path("runs", name)
        if self.distil and self.live:
            raise UsageError("--live keeps a planner's folder: take --distil afterwards, with its weights")
        if self.distil:  # before the work, which would be lost
            check_room(self.distil, out)
        else:
            check_place(out / PLAN)
        search = Search(samples=self.samples, horizon=self.horizon, seed=self.seed)
        made = planned(
            self.prior, self.addon, self.env, self.omega, self.states, self.value, search, self.reading, self.trust,
            terminal.say,
        )  # fmt: skip
        for note in made.notes:
            terminal.say(note)
        if self.hz is not None:
            made = paced(made, self.hz)
            search = made.planner.search
            terminal.say(
                f"{search.samples} samples of {counted(search.horizon, 'step')} fit {self.hz:g} decisions a second"
            )
        if self.live:
            show(made, out, self.port, terminal.say)
            return {"folder": str(out), "env": made.env}
        planner, found = made.planner, {}
        agents: dict[str, Any] = {"prior": planner.prior, "planner": planner}
        if self.distil:
            agents["kept"] = keep_as_policy(made, self.distil, out, terminal.say)
        else:
            keep(made, out)
        with one_thread(), terminal.status(f"{made.env}: {counted(self.episodes, 'episode')}"):
            for name, agent in agents.items():
                found[name] = evaluate(
                    agent, made.env, self.episodes, addon=combined(made.addons), seed=EVALUATION_SEED + self.seed,
                    longest=self.steps,
                )  # fmt: skip
        terminal.numbers(f"{made.env}, {counted(self.episodes, 'episode')} each", *rewards(found))
        tally = planner.tally
        told = {
            "decisions_a_second": tally.rate,
            "real_time": tally.rate * planner.model.seconds,
            "effective_samples": tally.effective / tally.decisions,
            "prior_kept": tally.kept / tally.decisions,
            "broken_down": tally.failed,
        }
        terminal.say(
            f"{told['decisions_a_second']:.3g} decisions a second, {told['real_time']:.2g} times real time; "
            f"{told['effective_samples']:.3g} of {search.samples} samples count; in {told['prior_kept']:.1%} of the "
            "decisions none was better than the prior's own plan"
        )
        if tally.failed:
            terminal.say(f"{tally.failed:,} simulations broke down, and were left out")
        terminal.say(f"its {'file' if self.distil else 'folder'}: {out}")
        results = {name: evaluation.as_dict()["summary"] for name, evaluation in found.items()}
        return {
            "policy" if self.distil else "folder": str(out),
            "env": made.env,
            "omega": planner.score.omega,
            "states": planner.score.states,
        } | (told | results)
