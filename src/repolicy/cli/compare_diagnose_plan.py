"""The commands that work with policies without training: compare, diagnose, plan."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from repolicy.cli.options import OpensPolicy, Positional, Repeated, RunsPolicy, normalize_words, parse
from repolicy.cli.policy_commands import warn_of_unfinished
from repolicy.errors import UsageError, check_counts
from repolicy.files import check_writable
from repolicy.readers.reading import Options
from repolicy.runs import Terminal
from repolicy.text import default_out, format_count, format_digits, format_number

if TYPE_CHECKING:
    from repolicy.planning.asking import Planned
    from repolicy.prepare.beginning import Start
    from repolicy.prepare.diagnosis import Diagnosis

UNSAFE_VERDICTS = ("worse", "cannot tell")  # after these, `compare` exits with 3


@dataclass(frozen=True)
class Compare(RunsPolicy):
    """Decide whether a new policy is worse than an old one, with as many episodes as that takes.

    Exits with 0 if it is not worse, and with 3 if it is worse or if the episodes do not decide it.

    Example: repolicy compare halfcheetah runs/spare-leg --not-worse 5%
    """

    old: Annotated[str, Positional("OLD")]
    """The policy in use: a file, a run's folder, a name that ships, or code, as evaluate takes it."""
    new: Annotated[str, Positional("NEW")]
    """The policy that is to take its place."""
    not_worse: str = "5%"
    """The loss that is allowed: a share of the old one's mean, or a number in units of the rewards."""
    addon: Repeated = ()
    """Add-on reward that is compared too; by default those that either policy was customized to. Repeatable."""
    sampled: bool = False
    """Base the verdict on sampled actions, and only show the mean action."""
    error: float = 0.05
    """Maximum probability of each wrong verdict, except for losses that are rare and larger than all that were seen."""
    episodes: int = 1000
    """Maximum number of episodes of each policy, with each kind of action and each value of --vary."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Library that runs the environment."""
    vary: Repeated = ()
    """An option of the environment and a range, NAME=LOW..HIGH: compare at five values of it. At most two."""
    of_new: Repeated = ()
    """Option for reading the new policy's file, NAME=VALUE, such as std=0.2; --std is for the old one. Repeatable."""
    out: Path | None = None
    """A folder for a page with the verdict, the table and films; by default there is no page."""

    def run(self) -> dict[str, Any]:
        from repolicy.many.varying import compare_around
        from repolicy.report.compare_page import write_compare_report

        if self.out is not None:
            check_writable(self.out / "report.html")  # before the work, which would be lost
            if (self.out / "report.html").exists():
                raise UsageError(f"{self.out} has a report already: name another --out")
        terminal, names = Terminal(), f"{self.old} and {self.new}"
        try:
            new_options = parse(Options, normalize_words([f"--{text}" for text in self.of_new]), "repolicy compare")
        except UsageError as error:
            raise UsageError(f"of the new policy (--of-new), {error}") from None
        for policy in (self.old, self.new):
            warn_of_unfinished(policy)
        with terminal.progress(f"{names}: the first episodes") as show:
            comparison = compare_around(
                self.old, self.new, self.env, self.not_worse,
                vary=self.vary, addon=self.addon or None, sampled=self.sampled, error=self.error,
                episodes=self.episodes, seed=self.seed, backend=self.backend, options=self.reading,
                new_options=new_options, trust=self.trust,
                progress=lambda place, done: show(f"{names} {place}: {format_count(done, 'episode')} each"),
            )  # fmt: skip
        terminal.say(str(comparison))
        values = {"old": self.old, "new": self.new}
        values |= comparison.as_dict() if self.vary else comparison.places[0].comparison.as_dict()
        if self.out is not None:
            page = write_compare_report(comparison, self.old, self.new, self.out, terminal.say, self.trust)
            terminal.say(f"report: {page}")
            values["report"] = str(page)
        return values


@dataclass(frozen=True)
class Diagnose(OpensPolicy):
    """Examine a prior before training: whether it acts well, what a nat of it is worth, and the weights to begin with.

    Example: repolicy diagnose theirs.zip --env HalfCheetah-v4 --addon hind_leg=10
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy, as for customize: a name that ships, a policy's file, or a run's folder."""
    addon: Repeated = ()
    """The new requirement, as for customize. Repeatable."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Library that runs the environment."""

    def run(self) -> dict[str, Any]:
        from repolicy.addons import check_env, combine_addons, env_from_card
        from repolicy.addons.addon_names import describe_clipped_weights, with_clipped_weights
        from repolicy.envs import with_observation_roles
        from repolicy.policies import origin_notes
        from repolicy.prepare.diagnosis import DIAGNOSIS_ENVS, DIAGNOSIS_STEPS, diagnose
        from repolicy.prepare.weights import worth_from_card
        from repolicy.priors import find_policy, read_policy
        from repolicy.runs import command_options

        if not self.addon:
            raise UsageError("a diagnosis needs the add-on that you wish for: --addon NAME, as for customize")
        warn_of_unfinished(self.prior)
        path, terminal = find_policy(self.prior), Terminal()
        saved = read_policy(path, self.reading)
        env = self.env or env_from_card(saved.card, path, self.trust)
        check_env(self.addon, env)
        env = with_observation_roles(env, saved.policy, self.backend)
        worth = worth_from_card(saved.card)
        with terminal.status(f"{env}: thrice {DIAGNOSIS_STEPS:,} steps in {DIAGNOSIS_ENVS} environments"):
            addon = combine_addons(with_clipped_weights(self.addon))
            diagnosis = diagnose(saved.policy, env, addon, nat_worth=worth, backend=self.backend)
        words = ["repolicy", "customize", self.prior, "--env", env]
        for name in self.addon:
            words += ["--addon", name]
        reading = command_options(self.reading, Options())
        backend = [] if self.backend == "auto" else ["--backend", self.backend]
        command = shlex.join([*words, *diagnosis.suggested_options, *reading, *backend])
        terminal.say(diagnosis.verdict, *diagnosis.complaints[1:], *origin_notes(saved.card))
        is_its_own = diagnosis.worths.basic is worth and saved.card.get("request", {}).get("addons")
        reward = "the reward that it was trained with" if is_its_own else "the environment's reward"
        _print_diagnosis(terminal, diagnosis, reward, describe_clipped_weights(self.addon))
        terminal.say(f"  {command}")
        return diagnosis.as_dict() | {"prior": str(path), "addons": list(self.addon), "command": command}


def _print_diagnosis(terminal: Terminal, diagnosis: "Diagnosis", reward_words: str, addon_words: str) -> None:
    """Print the statistics of the episodes, the worth of a nat in both rewards, and advice on weights."""
    from repolicy.differences import value_and_error

    counts = [len(each.basic) for each in (diagnosis.mean_action, diagnosis.sampled, diagnosis.untrained)]
    episodes = f"{counts[0]} episodes with the mean action, {counts[1]} with sampled actions, {counts[2]} untrained"
    headings = ["mean ± std", "mean action", "sampled", "untrained"]
    terminal.numbers(f"{diagnosis.mean_action.env}, {episodes}", headings, _statistics_rows(diagnosis))
    worths, weights = diagnosis.worths, diagnosis.weights
    for worth, reward in ((worths.basic, reward_words), (worths.addon, addon_words)):
        if worth is not None:
            doubt = "" if worth.is_known else ": not above 0 by more than chance, as sampled actions bring as much"
            value = value_and_error(worth.value, worth.error)
            terminal.say(f"a nat of log prior is worth {value} of {reward}{doubt}")
    advice = "what a nat is worth cannot be told, so hold a distance"
    if weights is not None:
        lowest, highest = format_digits(weights.omega / 3, 2), format_digits(3 * weights.omega, 2)
        advice = f"omega from {lowest} (the wish first) to {highest} (the prior first)"
    terminal.say(f"{advice}; to begin with:")


def _statistics_rows(diagnosis: "Diagnosis") -> list[list[str]]:
    """Return rows with a column for each of the mean action, sampled actions, and an untrained policy."""
    from repolicy.prepare.diagnosis import mean_std, share_ended

    evaluations = (diagnosis.mean_action, diagnosis.sampled, diagnosis.untrained)
    columns, std = [each.columns for each in evaluations], mean_std(diagnosis.policy)
    rows = {
        "basic reward": [each["basic_reward"].describe() if "basic_reward" in each else "" for each in columns],
        "add-on reward, at weight 1 at most": [each["addon_reward"].describe() for each in columns],
        "steps an episode": [f"{each.lengths.mean():,.0f}" for each in evaluations],
        "ended before its time": [f"{share_ended(each):.0%}" for each in evaluations],
        "std of an action": ["" if std is None else format_number(std)] * 2 + [""],
        "−log π a step, nats": [format_number(-each.log_policy.sum() / each.lengths.sum()) for each in evaluations],
        "observations beyond ±10": ["", f"{diagnosis.outlier_share:.1%}", ""],
    }
    return [[name, *cells] for name, cells in rows.items() if any(cells)]


@dataclass(frozen=True, kw_only=True)
class Plan(RunsPolicy):
    """Meet a wish without training: simulate candidates from the prior before each action; save this planner.

    Example: repolicy plan halfcheetah --addon hind_leg=10 --samples 32 --episodes 2
    """

    prior: Annotated[str, Positional("PRIOR")]
    """A policy's file, a run's folder, or a name that ships, as customize takes it."""
    addon: Repeated = ()
    """The new requirement, as for customize. Repeatable."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in. Gymnasium's MuJoCo tasks are fast; others are
    simulated in copies."""
    omega: float | None = None
    """ω′: the weight of log prior. Without --omega, --states and --value, short trials choose all three; where
    actions are choices, both weights are what a nat is worth."""
    states: float | None = None
    """The price on states that the prior does not visit; beside --omega or --value, by default what a nat is worth."""
    value: bool = False
    """Add the value at the end of each candidate, from a value function fitted to the prior's episodes."""
    learned: bool = False
    """Simulate with a model learnt from the prior's own steps, for an environment that cannot be copied."""
    samples: int | None = None
    """Number of candidates before each action; by default 32, or 150 for a tree (if actions are discrete)."""
    horizon: int | None = None
    """Number of steps of each candidate; by default 8, 4 with a value at its end, or 50 for a tree."""
    hz: float | None = None
    """Decisions a second; the planner then takes as many samples as this machine simulates in that time, and where
    those are fewer than 8, a shorter horizon."""
    episodes: int = 2
    """Number of episodes to evaluate, for the planner and for its prior."""
    steps: int = 1000
    """Maximum number of steps of an episode of the evaluation."""
    live: bool = False
    """Show the planner at work on a page of this machine, with sliders for its weights, until Ctrl-C."""
    port: int = 8000
    """Port of that page; 0: any free one."""
    distil: int | None = None
    """Save a policy instead of a planner, fitted to this number of the planner's decisions."""
    out: Path | None = None
    """The planner's folder, which evaluate, compare and render take; with --distil the policy's file. By default
    runs/PRIOR-plan or runs/PRIOR-planned.safetensors."""

    def run(self) -> dict[str, Any]:
        from repolicy.planning.asking import paced, plan
        from repolicy.planning.keeping import save_distilled, save_planner
        from repolicy.planning.live import show
        from repolicy.planning.planner import Search
        from repolicy.prepare.beginning import open_prior
        from repolicy.priors import is_plan

        terminal = Terminal()
        out = self.out or default_out(self.prior, "planned.safetensors" if self.distil else "plan")
        self._check_options(out)
        warn_of_unfinished(self.prior)
        start = open_prior(self.prior, self.reading, trust=self.trust)
        self._check_prior(start, out)
        search = Search(samples=self.samples or 0, horizon=self.horizon or 0, seed=self.seed)
        value = self.value or (False if self.live else None)  # a value that trials chose would not fit the sliders
        planner = plan(
            start, self.addon, env=self.env, omega=self.omega, states=self.states, value=value, search=search,
            learned=self.learned, trust=self.trust, say=terminal.say,
        )  # fmt: skip
        terminal.say(*planner.notes)
        if self.hz is not None:
            planner = paced(planner, self.hz)
            if self.horizon not in (None, planner.search.horizon):
                slow = f"{self.hz:g} decisions a second leave no time for {format_count(self.horizon, 'step')}"
                raise UsageError(f"{slow}: name a shorter --horizon, or none")
            samples = f"{planner.search.samples} samples of {format_count(planner.search.horizon, 'step')}"
            terminal.say(f"{samples} fit {self.hz:g} decisions a second")
        if self.live:
            show(planner, out, self.port, terminal.say)
            return {"folder": str(out) if is_plan(out) else None, "env": planner.env}
        agents: dict[str, Any] = {"prior": planner.prior, "planner": planner}
        if self.distil:
            agents["kept"] = save_distilled(planner, self.distil, out, terminal.say)
        else:
            save_planner(planner, out)
        results = self._evaluate(terminal, planner, agents)
        metrics = _print_metrics(terminal, planner)
        kind = "policy" if self.distil else "folder"
        terminal.say(f"its {'file' if self.distil else 'folder'}: {out}")
        weights = {"omega": planner.score.omega, "states": planner.score.states}
        return {kind: str(out), "env": planner.env} | weights | metrics | results

    def _check_options(self, out: Path) -> None:
        """Raise for options that contradict each other, before the work, which would be lost."""
        from repolicy.planning.live import server

        if self.hz is not None and not self.hz > 0.0:
            raise UsageError(f"--hz is {self.hz:g}; it must be above 0")
        if self.hz is not None and self.samples is not None:
            raise UsageError("--hz finds the number of samples: leave out --samples, or --hz")
        if self.live:
            for name in ("episodes", "steps"):
                if getattr(self, name) != getattr(Plan, name):
                    raise UsageError(f"--{name} goes without --live")
            if self.value:
                fitted = "the value at a plan's end is fitted with the weights that --live moves"
                raise UsageError(f"{fitted}: leave out --value")
            if self.distil is not None:
                raise UsageError("--live keeps a planner's folder: take --distil afterwards, with its weights")
        elif self.port != Plan.port:
            raise UsageError("--port goes with --live")
        counts = {f"--{name}": getattr(self, name) for name in ("steps", "episodes", "samples", "horizon")}
        check_counts(**{name: count for name, count in counts.items() if count is not None})
        if self.live:
            server(None, self.port).server_close()  # raises for a port that is in use

    def _check_prior(self, start: "Start", out: Path) -> None:
        """Raise if these options need another kind of prior or environment, or the folder is another planner's."""
        from repolicy.addons.addon_names import wishes_of
        from repolicy.envs import env_name, match_observation
        from repolicy.planning.keeping import check_free, check_room
        from repolicy.planning.live import check_robot

        if start.saved is None:
            return  # planning raises
        if start.saved.policy.actions.kind == "discrete" and (self.hz is not None or self.live or self.distil):
            raise UsageError("a tree of choices goes without --hz, --live and --distil")
        env = start.env(self.trust) if self.env is None else env_name(self.env)
        if self.live:
            check_robot(env)
        env, wishes = match_observation(env, start.saved.policy), wishes_of(self.addon)
        if self.distil is None:
            check_free(out, env, wishes)
        else:
            check_room(self.distil, out, env, wishes)

    def _evaluate(self, terminal: Terminal, planner: "Planned", agents: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the agents; print the rewards, and return their summaries by the agent's name."""
        from repolicy.addons import combine_addons
        from repolicy.evaluation import EVALUATION_SEED, evaluate
        from repolicy.report.pieces import reward_table

        evaluations, episodes = {}, format_count(self.episodes, "episode")
        with terminal.status(f"{planner.env}: {episodes}"):
            for name, agent in agents.items():
                evaluations[name] = evaluate(
                    agent, planner.env, self.episodes, addon=combine_addons(planner.addons),
                    seed=EVALUATION_SEED + self.seed, longest=self.steps, backend=planner.backend,
                )  # fmt: skip
        terminal.numbers(f"{planner.env}, {episodes} each", *reward_table(evaluations))
        return {name: evaluation.as_dict()["summary"] for name, evaluation in evaluations.items()}


def _print_metrics(terminal: Terminal, planner: "Planned") -> dict[str, float]:
    """Print and return the planner's speed, and the share of decisions in which it kept the prior's own plan."""
    from repolicy.planning.asking import decisions_per_second

    tally, rate = planner.tally, decisions_per_second(planner)
    metrics = {"decisions_a_second": rate, "real_time": rate * planner.model.seconds}
    metrics |= {"prior_kept": tally.kept / tally.decisions, "broken_down": tally.failed}
    pace = f"{rate:.3g} decisions a second"
    share = f"in {metrics['prior_kept']:.1%} of the decisions"
    if metrics["real_time"]:
        pace += f", {metrics['real_time']:.2g} times real time"
    if planner.actions.kind == "discrete":
        terminal.say(f"{pace}; {share} it chose what the prior would")
    else:
        metrics["effective_samples"] = tally.effective / tally.decisions
        count = f"{metrics['effective_samples']:.3g} of {planner.search.samples} samples count"
        terminal.say(f"{pace}; {count}; {share} none was better than the prior's own plan")
    if tally.failed:
        terminal.say(f"{tally.failed:,} simulations broke down, and were left out")
    return metrics
