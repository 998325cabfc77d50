"""The commands that work with policies without training: compare, diagnose, plan."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from repolicy.cli.options import OpensPolicy, Positional, Repeated, RunsPolicy, parse
from repolicy.errors import UsageError, check_counts
from repolicy.readers.reading import Options
from repolicy.runs import Terminal, format_table
from repolicy.text import counted, number, usual_out

if TYPE_CHECKING:
    from repolicy.planning.asking import Planned
    from repolicy.prepare.beginning import Start
    from repolicy.prepare.diagnosis import Diagnosis, EpisodeStatistics

UNSAFE_VERDICTS = ("worse", "cannot tell")  # with these the command exits with 3


@dataclass(frozen=True)
class Compare(RunsPolicy):
    """Tell whether a new policy is worse than an old one, with as many episodes as that takes.

    Exits with 0 if it is not worse, with 3 if it is, or if that cannot be told.

    Example: repolicy compare halfcheetah runs/cheetah --not-worse 5%
    """

    old: Annotated[str, Positional("OLD")]
    """The policy in use: a file, a run's folder, a name that ships, or code, as evaluate takes it."""
    new: Annotated[str, Positional("NEW")]
    """The policy that is to take its place."""
    not_worse: str = "5%"
    """How much less the new one may have: a share of the old one's mean, or a number in units of the rewards."""
    addon: Repeated = ()
    """Add-on reward that decides, too; by default the one that the new policy was customized to. Repeatable."""
    sampled: bool = False
    """Let sampled actions decide, and only show the mean action."""
    error: float = 0.05
    """The probability at most of a wrong verdict, but for losses that are rare and larger than all that were seen."""
    episodes: int = 1000
    """At most so many of each policy, with each kind of action."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments."""
    vary: Repeated = ()
    """An option of the environment and a range, NAME=LOW..HIGH: compare at five values of it, too. At most two."""
    of_new: Repeated = ()
    """NAME=VALUE, an option of reading the new policy's file, such as std=0.2; --std and its like are for the old one.
    Repeatable."""
    out: Path | None = None
    """A folder for a page with the verdict, the table, and films; none by default."""

    def run(self) -> dict[str, Any]:
        from repolicy.many.varying import compare_around
        from repolicy.policies.storage import check_writable
        from repolicy.report.compare_page import write_compare_report
        from repolicy.runs import one_thread

        if self.out is not None:
            check_writable(self.out / "report.html")  # before the work, which would be lost
            if (self.out / "report.html").exists():
                raise UsageError(f"{self.out} has a report already: name another --out")
        terminal, names = Terminal(), f"{self.old} and {self.new}"
        try:
            new = parse(Options, [f"--{text}" for text in self.of_new], "repolicy compare")
        except UsageError as error:
            raise UsageError(f"of the new policy (--of-new), {error}") from None
        with one_thread(), terminal.status(f"{names}: the first episodes") as status:
            around = compare_around(
                self.old, self.new, self.env, self.not_worse,
                vary=self.vary, addon=self.addon or None, sampled=self.sampled, error=self.error,
                episodes=self.episodes, seed=self.seed, backend=self.backend, options=self.reading, new_options=new,
                trust=self.trust,
                progress=lambda place, done: status.update(f"{names} {place}: {counted(done, 'episode')} each"),
            )  # fmt: skip
        terminal.say(str(around))
        said: dict[str, Any] = {"old": self.old, "new": self.new}
        said |= around.as_dict() if self.vary else around.places[0].found.as_dict()
        if self.out is not None:
            page = write_compare_report(around, self.old, self.new, self.out, terminal.say)
            terminal.say(f"report: {page}")
            said["report"] = str(page)
        return said


# The command that looks at a prior before anything is trained ---------------------------------------------------------


@dataclass(frozen=True)
class Diagnose(OpensPolicy):
    """Look at a prior before training: does it act, what is a nat of it worth, and which weights to begin with.

    Example: repolicy diagnose theirs.zip --env HalfCheetah-v4 --addon hind_leg=10
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy, as for customize: a name that ships, a policy's file, or a run's folder."""
    addon: Repeated = ()
    """The new requirement, as for customize. Repeatable."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments."""

    def run(self) -> dict[str, Any]:
        from repolicy.envs import check_env, combine_addons, env_from_card, with_observation_roles
        from repolicy.envs.addons import describe_clipped_weights, with_clipped_weights
        from repolicy.policies import origin_notes
        from repolicy.prepare.diagnosis import DIAGNOSIS_ENVS, DIAGNOSIS_STEPS, check_addon, diagnose
        from repolicy.prepare.weights import worth_from_card
        from repolicy.priors import find_policy, read_policy
        from repolicy.runs import one_thread

        if not self.addon:
            raise UsageError("a diagnosis needs the add-on that you wish for: --addon NAME, as for customize")
        path, terminal = find_policy(self.prior), Terminal()
        saved = read_policy(path, self.reading)
        env = self.env or env_from_card(saved.card, path, self.trust)
        check_env(self.addon, env)
        env = with_observation_roles(env, saved.policy.observation_size, self.backend)
        worth = worth_from_card(saved.card)
        with one_thread(), terminal.status(f"{env}: thrice {DIAGNOSIS_STEPS:,} steps in {DIAGNOSIS_ENVS} environments"):
            diagnosis = diagnose(
                saved.policy,
                env,
                combine_addons(with_clipped_weights(self.addon)),
                nat_worth=worth,
                backend=self.backend,
            )
        check_addon(diagnosis)
        command = ["repolicy", "customize", self.prior, "--env", env]
        command += [word for name in self.addon for word in ("--addon", name)] + diagnosis.suggested_options
        command += self._reading()
        _show(terminal, diagnosis, origin_notes(saved.card), shlex.join(command), describe_clipped_weights(self.addon))
        return diagnosis.as_dict() | {"prior": str(path), "addons": list(self.addon), "command": shlex.join(command)}

    def _reading(self) -> list[str]:
        """Return the options without which the file could not be read, or another backend would be taken."""
        given = vars(self.reading) | {"backend": None if self.backend == "auto" else self.backend}
        named = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items() if value is not None]
        return [word for pair in named for word in pair]


def _show(terminal: Any, diagnosis: "Diagnosis", notes: list[str], command: str, wish: str) -> None:
    terminal.say(diagnosis.verdict, *diagnosis.complaints[1:], *notes)
    rows = _rows((diagnosis.mean_action, diagnosis.sampled, diagnosis.untrained))
    terminal.say(format_table(["", "mean action", "sampled", "untrained"], [[name, *rows[name]] for name in rows]))
    worths = diagnosis.worths
    for worth, what in ((worths.basic, "the environment's reward"), (worths.addon, wish)):
        if worth is not None:
            known = "" if worth.is_known else ": not above 0 by more than chance, as sampled actions bring as much"
            terminal.say(f"a nat of log prior is worth {worth.value:.2g} ± {worth.error:.1g} of {what}{known}")
    advice, weights = "what a nat is worth cannot be told, so hold a distance", diagnosis.weights
    if weights is not None:
        advice = f"omega from {weights.omega / 3:.2g} (the wish first) to {3 * weights.omega:.2g} (the prior first)"
    terminal.say(f"{advice}; to begin with:", f"  {command}")


def _rows(statistics: "tuple[EpisodeStatistics, ...]") -> dict[str, list[str]]:
    rows = {
        "return": [_spread(each.as_dict().get("basic")) for each in statistics],
        "add-on, at weight 1 at most": [_spread(each.as_dict()["addon"]) for each in statistics],
        "steps an episode": [f"{each.lengths.mean():,.0f}" for each in statistics],
        "ended before its time": [f"{each.terminated.mean():.0%}" for each in statistics],
        "std of an action": ["" if each.std is None else number(each.std) for each in statistics],
        "−log π a step, nats": [number(each.entropy) for each in statistics],
        "observations beyond ±10": [*(f"{each.outlier_share:.1%}" for each in statistics[:2]), ""],
    }
    return {name: cells for name, cells in rows.items() if any(cells)}


def _spread(values: list[float] | None) -> str:
    return "" if values is None else f"{number(values[0])} ± {number(values[1], like=values[0])}"


# The command that customizes without training -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan(RunsPolicy):
    """Meet a wish without training: simulate what the prior might do before each action, and keep that as a folder.

    Example: repolicy plan halfcheetah --addon hind_leg=10 --samples 32 --episodes 2
    """

    prior: Annotated[str, Positional("PRIOR")]
    """A policy's file, a run's folder, or a name that ships, as customize takes it."""
    addon: Repeated = ()
    """Add-on reward that is wished for. Repeatable."""
    env: str | None = None
    """Environment, by default the one that the prior was trained in. Gymnasium's MuJoCo tasks are fast; others are
    simulated in copies."""
    omega: float | None = None
    """ω′: the weight of log prior. Without it, --states and --value, what does best in short trials."""
    states: float | None = None
    """The price on states that the prior does not visit; beside --omega or --value, what a nat is worth."""
    value: bool = False
    """Count what is still to come after a plan's end, by a value that is fitted to the prior's episodes."""
    learned: bool = False
    """Simulate with a model that is learnt from the prior's own steps: where the environment has none."""
    samples: int | None = None
    """How many candidates are simulated before each action; by default 32, or 150 for a tree where actions are
    choices."""
    horizon: int | None = None
    """How many steps each of them has; by default 8, 4 with a value, or 50 for a tree."""
    hz: float | None = None
    """Decisions a second that are wanted: as many samples as this machine simulates in that time."""
    episodes: int = 2
    """Episodes of the planner, and of its prior beside it."""
    steps: int = 1000
    """An episode is cut after so many steps."""
    live: bool = False
    """Show the planner at work on a page of this machine, with sliders for its weights, until Ctrl-C."""
    port: int = 8000
    """Of that page; 0: any that is free."""
    distil: int | None = None
    """Keep it as a policy that needs no planner: fit that to so many of the planner's decisions."""
    out: Path | None = None
    """The planner's folder, which evaluate, compare and render take; with --distil the policy's file. By default
    runs/PRIOR-plan or runs/PRIOR-planned.safetensors."""

    def run(self) -> dict[str, Any]:
        from repolicy.planning.asking import paced, plan
        from repolicy.planning.keeping import save_distilled, save_planner
        from repolicy.planning.live import show
        from repolicy.planning.planner import Search
        from repolicy.prepare.beginning import open_prior

        terminal = Terminal()
        out = self.out or usual_out(self.prior, "planned.safetensors" if self.distil else "plan")
        self._check(out)
        start = open_prior(self.prior, self.reading, trust=self.trust)
        self._check_prior(start)
        search = Search(samples=self.samples or 0, horizon=self.horizon or 0, seed=self.seed)
        made = plan(
            start, self.addon, env=self.env, omega=self.omega, states=self.states, value=self.value, search=search,
            learned=self.learned, trust=self.trust, say=terminal.say,
        )  # fmt: skip
        terminal.say(*made.notes)
        if self.hz is not None:
            made = paced(made, self.hz)
            samples = f"{made.search.samples} samples of {counted(made.search.horizon, 'step')}"
            terminal.say(f"{samples} fit {self.hz:g} decisions a second")
        if self.live:
            show(made, out, self.port, terminal.say)
            return {"folder": str(out), "env": made.env}
        agents: dict[str, Any] = {"prior": made.prior, "planner": made}
        if self.distil:
            agents["kept"] = save_distilled(made, self.distil, out, terminal.say)
        else:
            save_planner(made, out)
        results = self._evaluated(terminal, made, agents)
        metrics = _planner_metrics(made)
        terminal.say(*_planner_sentences(made, metrics))
        terminal.say(f"its {'file' if self.distil else 'folder'}: {out}")
        said = {"policy" if self.distil else "folder": str(out), "env": made.env}
        return said | {"omega": made.score.omega, "states": made.score.states} | metrics | results

    def _check(self, out: Path) -> None:
        """Raise for options that cannot be, before the work, which would be lost."""
        from repolicy.planning.keeping import check_free, check_room
        from repolicy.planning.live import server

        if self.hz is not None and not self.hz > 0.0:
            raise UsageError(f"--hz is {self.hz:g}; it must be above 0")
        if self.hz is not None and self.samples is not None:
            raise UsageError("--hz finds the number of samples: leave out --samples, or --hz")
        passed = [name for name in ("episodes", "steps") if self.live and getattr(self, name) != getattr(Plan, name)]
        passed += ["port"] if self.port != Plan.port and not self.live else []
        if passed:
            raise UsageError(f"--{passed[0]} goes {'without' if self.live else 'with'} --live")
        counts = {f"--{name}": getattr(self, name) for name in ("steps", "episodes", "samples", "horizon")}
        check_counts(**{name: count for name, count in counts.items() if count is not None})
        if self.distil is not None and self.live:
            raise UsageError("--live keeps a planner's folder: take --distil afterwards, with its weights")
        if self.distil is not None:
            check_room(self.distil, out)
        else:
            check_free(out)
        if self.live:
            server(None, self.port).server_close()  # raises for a port that is taken

    def _check_prior(self, start: "Start") -> None:
        """Raise for a prior or a robot with which these options cannot be."""
        from repolicy.envs import env_name
        from repolicy.planning.live import with_robot

        choices = start.saved is not None and start.saved.policy.actions.kind == "discrete"
        if choices and (self.hz is not None or self.live or self.distil):
            raise UsageError("a tree of choices goes without --hz, --live and --distil")
        if self.live:
            with_robot(start.env(self.trust) if self.env is None else env_name(self.env))

    def _evaluated(self, terminal: Terminal, made: "Planned", agents: dict[str, Any]) -> dict[str, Any]:
        """Show the rewards of these agents, and return them."""
        from repolicy.envs import EVALUATION_SEED, combine_addons, evaluate
        from repolicy.report.run_page import reward_table
        from repolicy.runs import one_thread

        found = {}
        with one_thread(), terminal.status(f"{made.env}: {counted(self.episodes, 'episode')}"):
            for name, agent in agents.items():
                found[name] = evaluate(
                    agent, made.env, self.episodes, addon=combine_addons(made.addons), seed=EVALUATION_SEED + self.seed,
                    longest=self.steps, backend=made.backend,
                )  # fmt: skip
        terminal.numbers(f"{made.env}, {counted(self.episodes, 'episode')} each", *reward_table(found))
        return {name: evaluation.as_dict()["summary"] for name, evaluation in found.items()}


def _planner_metrics(made: "Planned") -> dict[str, float]:
    """Return the planner's speed, and the share of decisions in which it did what its prior would."""
    tally = made.tally
    metrics = {"decisions_a_second": tally.rate, "real_time": tally.rate * made.model.seconds}
    metrics |= {"prior_kept": tally.kept / tally.decisions, "broken_down": tally.failed}
    if made.actions.kind != "discrete":
        metrics["effective_samples"] = tally.effective / tally.decisions
    return metrics


def _planner_sentences(made: "Planned", metrics: dict[str, float]) -> Iterator[str]:
    """Yield the planner's metrics as sentences."""
    pace, kept = (
        f"{metrics['decisions_a_second']:.3g} decisions a second",
        f"in {metrics['prior_kept']:.1%} of the decisions",
    )
    if metrics["real_time"]:
        pace += f", {metrics['real_time']:.2g} times real time"
    if made.actions.kind == "discrete":
        yield f"{pace}; {kept} it chose what the prior would"
    else:
        count = f"{metrics['effective_samples']:.3g} of {made.search.samples} samples count"
        yield f"{pace}; {count}; {kept} none was better than the prior's own plan"
    if metrics["broken_down"]:
        yield f"{metrics['broken_down']:,} simulations broke down, and were left out"
