"""The commands about several weights: dial takes positions between policies, sweep trains a policy at each weight."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from repolicy.cli.options import Command, CustomizesPrior, Positional, Repeated, Trains, overrides, parse_weight
from repolicy.cli.policy_commands import warn_of_unfinished
from repolicy.errors import UsageError
from repolicy.runs import ACTOR_SETTINGS, BUDGETS, Terminal

if TYPE_CHECKING:
    from repolicy.many.positions import DialedPolicy


@dataclass(frozen=True)
class Dial(Command):
    """Turn between a prior and its customized policy: one position as a file, or all in a report.

    After a run with a range of omega, alpha or an add-on's weight, each position is a weight that it was trained for.
    After any other run, a position is a mixture of prior and customized policy, and costs no training.

    Example: repolicy dial runs/spare-leg --at 0.5 --out half.safetensors
    """

    policy: Annotated[str, Positional("RUN")]
    """A run's folder, or a customized policy's file, which holds its prior."""
    at: Repeated = ()
    """The position: 0 is the prior, 1 the customized policy. For a run with a range it is the weight; for a run with
    several ranges NAME=WEIGHT for each. Without --at, a report on ten positions or more is written."""
    how: Literal["mixture", "weights"] | None = None
    """mixture (the default): mix the two distributions, prior^(1−t) · customized^t; weights: interpolate the numbers in
    the two networks. Not for a run with a range."""
    out: Path | None = None
    """The file of the position, or the folder of the report; by default beside the policy."""
    env: str | None = None
    """Environment of the report; by default the one that the policy was trained in."""
    addon: Repeated = ()
    """Add-on reward of the report; by default the one that the policy was customized to. Repeatable."""
    episodes: int | None = None
    """Episodes of each position in the report, with the mean action and again with sampled ones; by default 10."""
    trust: bool = False
    """Run code that the policy's file names as its environment or add-on."""

    def run(self) -> dict[str, Any]:
        from repolicy.many.positions import DialedPolicy
        from repolicy.priors import find_policy, read_policy, require_prior

        path = find_policy(self.policy)
        saved = read_policy(path)
        warn_of_unfinished(self.policy)
        require_prior(saved, path)  # raises if the file holds no prior
        policy = DialedPolicy(path, saved, self.how or "mixture")
        if policy.dials and self.how is not None:
            raise UsageError(f"{path} was trained at all positions, so there is nothing to mix: leave out --how")
        if self.at and (self.env or self.addon or self.episodes is not None):
            raise UsageError("--env, --addon and --episodes are for the report; with --at nothing is evaluated")
        return self._save_position(policy) if self.at else self._report(policy)

    def _save_position(self, policy: "DialedPolicy") -> dict[str, Any]:
        from repolicy.many.positions import describe_position, shortest

        position, warning = policy.find_position(*_parse_position(self.at))
        out, terminal = self.out or policy.default_file(position), Terminal()
        policy.save(position, out)
        if warning:
            terminal.say(f"warning: {warning}")
        terminal.say(f"policy: {out}, {policy.method} at {describe_position(position)}")
        return {"file": str(out), "at": shortest(position), "how": policy.method, "of": str(policy.path)}

    def _report(self, policy: "DialedPolicy") -> dict[str, Any]:
        from repolicy.many.positions import as_dict
        from repolicy.report.dial_page import EPISODES, write_dial_report

        terminal, episodes = Terminal(), EPISODES if self.episodes is None else self.episodes
        with terminal.progress("evaluating") as show:
            swept, report = write_dial_report(
                policy, self.env, self.addon, self.out, episodes, self.trust, terminal.say, show
            )
        terminal.say(f"report: {report}")
        return as_dict(policy, swept) | {"report": str(report)}


def _parse_position(at: tuple[str, ...]) -> tuple[float | None, dict[str, float]]:
    """Parse the values of --at: one number (or None), and the values that have a name."""
    values: dict[str, float] = {}
    for text in at:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise UsageError(f"--at is {text!r}; it must be a number or NAME=NUMBER") from None
        if name in values or (not name and len(at) > 1):
            raise UsageError(f"--at {text}: give one number, or, of several dials, NAME=NUMBER once for each")
        values[name] = value
    return (values[""], {}) if "" in values else (None, values)


# The command that customizes at several ω′ ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sweep(Trains, CustomizesPrior):
    """Choose ω′: customize at several values side by side, and see what each keeps and gains.

    Example: repolicy sweep halfcheetah --addon hind_leg=10 --omega 0.1 0.3 0.6 1 --steps 1e6 --out runs/sweep
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy, as for customize: a name that ships, a policy's file, a run's folder, or code."""
    addon: Repeated = ()
    """The new requirement: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    omega: tuple[float, ...] = ()
    """The values of ω′, each a run of --steps; at 0 only --states holds the old behavior."""
    alpha: str | None = None
    """α̂, the reward that a nat of entropy is worth; by default the prior's own α, else a third of the smallest
    ω′ above 0. omega: each point's own ω′, as always for a generative policy."""
    states: float | None = None
    """Price of a nat by which a state is less likely than the prior's own states; by default what a nat is worth in the
    old reward. 0: the paper's objective."""
    jobs: int = 0
    """Number of points that are trained at the same time, each on one core; 0: one for each physical core, or,
    with --ray, all points."""
    ray: bool = False
    """Train the points as Ray tasks, in the cluster that RAY_ADDRESS names (all of it must see the folder)."""
    episodes: int | None = None
    """Episodes of each evaluation afterwards; by default 50."""
    out: Path | None = None
    """The sweep's folder; by default runs/PRIOR-sweep."""
    resume: bool = False
    """Continue the sweep in the folder: name PRIOR as before, with the options that read it (such as --std); new values
    of --omega are added, other options stay as they were."""
    UNUSED: ClassVar = (*BUDGETS, *ACTOR_SETTINGS, "ranks")  # settings without effect here

    def run(self) -> dict[str, Any]:
        from repolicy.many.sweep import sweep
        from repolicy.report.sweep_page import write_sweep_report

        warn_of_unfinished(self.prior)
        terminal = Terminal()
        with terminal.progress("training") as show:
            swept = sweep(
                self.prior, self.addon, self.omega, parse_weight("alpha", self.alpha), self.out, overrides(self),
                states=self.states, env=self.env, resume=self.resume, trust=self.trust, reading=self.reading,
                noise=self.noise, chunk=self.chunk, sparse=self.sparse, jobs=self.jobs, on_ray=self.ray,
                episodes=self.episodes, say=terminal.say,
                progress=lambda shares: show(
                    "trained: " + " · ".join(f"ω′ {omega:g} {share:.0%}" for omega, share in shares.items())
                ),
            )  # fmt: skip
            terminal.say(str(swept))
            show("films")
            report = write_sweep_report(swept, terminal.say)
        terminal.say(f"report: {report}")
        return swept.as_dict() | {"folder": str(swept.folder), "report": str(report)}
