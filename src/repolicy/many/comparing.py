"""Compare two policies: run episodes of both from the same starts until a verdict on the new one is certain.

    compare("halfcheetah", "runs/spare-leg", not_worse="5%").verdict      # better, not worse, worse, or cannot tell

Verdicts come from tests by betting (`bets`), which may be read after each round: the run ends at the first round that
decides, and the error still holds.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.addons import (
    Addon,
    Limit,
    Wish,
    addon_names,
    addons_from_card,
    backend_from_card,
    env_from_card,
    load_addon,
    parse_limits,
)
from repolicy.envs import (
    Backend,
    Collector,
    EnvLike,
    check_fit,
    env_name,
    make_envs,
    match_observation,
    open_policy_in_env,
    parse_env_name,
    place_prior,
    probe_env,
    resolve_backend,
    with_observed_keys_of,
)
from repolicy.errors import NumericError, UsageError, check_counts
from repolicy.evaluation import ACTIONS, BLOCK_STEPS, Evaluation, check_is_agent, fitting_limits, run_episodes
from repolicy.many import bets
from repolicy.many.bets import VERDICT_ORDER, Margin, Verdict
from repolicy.policies import Agent, with_torch_defaults
from repolicy.priors import MeanPrior, OpenedPolicy, shelf_entry
from repolicy.readers.reading import Options, options_of_new
from repolicy.runs import format_table
from repolicy.text import format_count, format_number, with_minus

EPISODES_PER_ROUND = 25  # episodes of each policy between two tests
TITLES = {  # of those that are not their own; a length is in steps, or in a generative policy's decisions
    "basic_reward": "basic reward",
    "addon_reward": "add-on reward",
    "ended_early_share": "ended early",
}
Quantities = dict[str, np.ndarray]  # a value of each episode, by the quantity's name
Table = tuple[list[str], list[list[str]]]
# Reported, but they decide nothing: an early end may be a success, and a limit is often met by a hair.
INFORMATIVE = ("limit_", "length", "ended_early")  # beginnings of names


@dataclass(frozen=True)
class QuantityComparison:
    """The comparison of one quantity of both policies' episodes."""

    name: str
    old: float  # mean of the old policy
    new: float
    low: float  # low end of the interval of new − old; each end is wrong with the comparison's error
    high: float
    verdict: Verdict | None  # None where it decides nothing
    equal_episodes: int = 0  # in which two policies that are like the old one would be told not to differ, or 0

    @property
    def loss(self) -> float:
        """The loss of the new policy, as a share of the old one's mean."""
        return (self.old - self.new) / (abs(self.old) or 1.0)

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.removeprefix("addon_reward_").removeprefix("limit_"))

    @property
    def cells(self) -> list[str]:
        """The row of this quantity in the table."""
        means, changes = (self.old, self.new), (self.new - self.old, self.low, self.high)
        if self.name == "ended_early_share":
            old, new = (f"{share:.1%}" for share in means)
            difference, low, high = (with_minus(f"{change:+z.1%}") for change in changes)
        else:
            size = max(abs(number) for number in (*means, *changes) if math.isfinite(number))
            old, new = (format_number(mean, size) for mean in means)
            difference, low, high = (format_number(change, size, plus=True) for change in changes)
        known_ends = math.isfinite(self.low), math.isfinite(self.high)
        by_ends = {(True, True): f"{low} to {high}", (True, False): f"above {low}", (False, True): f"below {high}"}
        interval = by_ends.get(known_ends, "unknown")
        return [self.title, self.verdict or "–", old, new, difference, interval]


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of a comparison: two policies in `episodes` episodes each, with mean and with sampled actions."""

    env: str
    backend: str
    episodes: int
    rounds: int
    is_paired: bool
    margin: str
    error: float
    seed: int
    rows: dict[str, list[QuantityComparison]]  # by the kind of action; the first kind decides

    @property
    def deciding_rows(self) -> list[QuantityComparison]:
        """The rows that decide the verdict."""
        return [row for row in next(iter(self.rows.values())) if row.verdict]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the quantities that decide."""
        return min((row.verdict for row in self.deciding_rows if row.verdict), key=VERDICT_ORDER.index)

    @property
    def equal_episodes(self) -> int:
        """The episodes in which two policies that are like the old one would be told not to differ."""
        return max(row.equal_episodes for row in self.deciding_rows)

    def sentences(self, where: str = "", count: int = 1) -> list[str]:
        """Return the verdict and its conditions. `where` names this place, the worst of `count` places."""
        starts = "the same starts" if self.is_paired else "starts of their own, as the environment has no seed"
        deciding = " and ".join(row.title for row in self.deciding_rows if row.verdict == self.verdict)
        lines = [
            f"{self.verdict}{where}, {ACTIONS[next(iter(self.rows))]}, by {deciding}; the margin is {self.margin}",
            f"{format_count(self.episodes, 'episode')} each in {self.env} ({self.backend}), from {starts}, in "
            f"{format_count(self.rounds, 'round')}",
        ]
        if {row.verdict for rows in self.rows.values() for row in rows} - {None, "cannot tell"}:
            lines[1] += (
                f"; each of the verdicts is wrong with a probability of at most {100 * self.error * count:.3g}%, "
                "but for losses that are rare and larger than all that were seen"
            )
        if self.verdict == "cannot tell" and self.episodes < self.equal_episodes:
            fewest = f"two equal policies take about {self.equal_episodes:,}, clear differences fewer"
            lines.append(f"--episodes may be too low: {fewest}")
        for row in self.deciding_rows:
            if row.old == row.new == 0.0 and not math.isfinite(row.low):
                lines.append(f"{row.title} is 0 in every episode, and nothing else decides: name a wish with --addon")
            elif row.old == 0.0 and self.margin.endswith("%"):
                lines.append(
                    f"{row.title} has a mean of 0, of which no share is a margin: name a number, as --not-worse 0.1"
                )
        return lines

    @property
    def tables(self) -> list[Table]:
        """A table for each kind of action."""
        return [
            ([ACTIONS[action], "verdict", *self.headings], [row.cells for row in rows])
            for action, rows in self.rows.items()
        ]

    @property
    def headings(self) -> list[str]:
        """The headings of the numbers in `QuantityComparison.cells`."""
        return ["old", "new", "difference", f"{100 - 200 * self.error:.6g}% interval"]

    def __repr__(self) -> str:
        return format_comparison(self.sentences(), self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON content."""
        rows = {action: {row.name: asdict(row) for row in rows} for action, rows in self.rows.items()}
        return {"verdict": self.verdict} | asdict(self) | {"rows": rows}


def format_comparison(sentences: list[str], tables: list[Table]) -> str:
    return "\n".join([*sentences, *(f"\n{format_table(*table)}" for table in tables)])


def compare_quantity(
    name: str, old: np.ndarray, new: np.ndarray, margin: Margin | None, error: float, quantities: int = 1
) -> QuantityComparison:
    """Compare one quantity by its values `[E]` in both policies' episodes, in pairs and in the order of time.

    The bets are on the mean of new − old + margin. A margin that is a share is taken of each old value, so that the old
    mean need not be known. Without a margin there is no verdict. `quantities` is the number of quantities that decide.
    One worse quantity is enough for the verdict *worse*, so the error is divided among them; *not worse* must hold for
    all, so each has the whole error.
    """
    old, new = old.astype(float), new.astype(float)
    losses = np.ones_like(old) if name == "ended_early_share" else bets.loss_bounds(old, new)
    gain = new - old
    verdict: Verdict | None = None
    equal_episodes = 0
    if margin is not None:
        allowed = np.full_like(old, margin.value)
        if margin.is_share:
            allowed *= math.copysign(1.0, old.mean()) * old
        verdict = "cannot tell"
        if bets.is_mean_proven_positive(-gain - allowed, losses + abs(allowed), error / quantities)[-1]:
            verdict = "worse"
        elif bets.is_mean_proven_positive(gain, losses, error)[-1]:
            verdict = "better"
        elif bets.is_mean_proven_positive(gain + allowed, losses, error)[-1]:
            verdict = "not worse"
        equal_episodes = bets.numbers_needed(allowed, bets.loss_bounds(old, old), error)
    low, high = bets.mean_lower_bound(gain, losses, error), -bets.mean_lower_bound(-gain, losses, error)
    return QuantityComparison(name, float(old.mean()), float(new.mean()), low, high, verdict, equal_episodes)


@with_torch_defaults()
def compare(
    old: Agent | OpenedPolicy | str | Path,
    new: Agent | OpenedPolicy | str | Path,
    env: EnvLike | None = None,
    not_worse: str | float = "5%",
    *,
    addon: Addon | Wish | None = None,
    sampled: bool = False,
    error: float = 0.05,
    episodes: int = 1000,
    seed: int = 0,
    backend: Backend = "auto",
    progress: Callable[[int], None] | None = None,
    options: Options | None = None,
    new_options: Options | None = None,
    trust: bool = False,
) -> Comparison:
    """Run two policies from the same starts until it is certain whether the new one is worse.

    Args:
        old: a policy, its file, its run's folder, or the name of one that ships; or the generative policy that the new
            one was customized from.
        new: the policy that is to replace it.
        env: an id, or a function that makes one environment; by default the one that the files name.
        not_worse: the largest loss that is accepted: a share of the old policy's mean, such as "5%", or a number in the
            quantity's own units (0.05 is not 5%).
        addon: the wish that decides beside the basic reward; by default those of both policies' files, whose limits are
            shown, too. () is none.
        sampled: let sampled actions decide, not mean actions; for generative policies they always decide.
        error: the largest probability of each wrong verdict, except for losses that are rare and larger than all seen.
        episodes: the largest number of episodes of each policy, with each kind of action.
        seed: the seed of environments and sampling.
        backend: the library that runs the environments: "envpool", "gymnasium", or "auto".
        progress: is called with the number of episodes that are done.
        options: how the old policy's file is read, if it is another library's.
        new_options: how the new policy's file is read.
        trust: run code that a policy's file names.
    """
    margin = Margin.parse(not_worse)
    if not 0.0 < error < 0.5:
        raise UsageError(f"error is {error:g}; it must be above 0 and below 0.5")
    check_counts(episodes=episodes)
    sides, env = open_policies(old, new, env, options, new_options, trust)
    is_own_wish = addon is None
    if addon is None:
        wishes = [wish for side in sides for wish in addons_from_card(side.card, side.path, trust)]
        addon = tuple({addon_names.split_weight(wish)[0]: wish for wish in wishes}.values())  # the new file's weight
    if not isinstance(addon, Addon):
        addon = load_addon(addon, env)
    backend = backend_from_card(sides[1].card, env, resolve_backend(backend, *(side.agent for side in sides)))
    agents = [_fit_to_env(side, env, backend) for side in sides]  # each with its environment's name
    limits = tuple[Limit, ...]()
    if is_own_wish:  # the limits that the new one was held to, else those of the old one
        texts = [fitting_limits(side.agent, side.card, side.path, env, backend, trust) for side in reversed(sides)]
        limits = parse_limits(texts[0] or texts[1], env)
    kinds = ("mean", "sampled") if parse_env_name(env).is_judged_by_mean and not sampled else ("sampled", "mean")
    is_paired = _is_reproducible(*agents[0], seed, backend)
    results = {kind: list[list[Quantities]]() for kind in kinds}
    rounds = done = 0

    def run(agent: Agent, agent_env: str, kind: str, count: int) -> Evaluation:
        with closing(make_envs(agent_env, count, seed + done, backend)) as envs:  # one episode in each
            return run_episodes(
                agent, envs, count, addon=addon, deterministic=kind == "mean", seed=seed + done, limits=limits
            )

    while True:
        count = min(EPISODES_PER_ROUND, episodes - done)
        for kind in kinds:
            evaluations = [run(*each, kind, count) for each in agents]
            results[kind].append([_quantities(each) for each in evaluations])
        rounds += 1
        done += count
        rows = {kind: _compare_quantities(results[kind], margin, error) for kind in kinds}
        comparison = Comparison(env, evaluations[0].backend, done, rounds, is_paired, str(margin), error, seed, rows)
        verdicts = [row.verdict for row in comparison.deciding_rows]
        if not verdicts:
            raise UsageError(f"environment {env!r} tells no reward, so that nothing can decide; name one with --addon")
        if progress is not None:
            progress(done)
        if done == episodes or "worse" in verdicts or "cannot tell" not in verdicts:
            return comparison


def open_policies(
    old: Any, new: Any, env: EnvLike | None, options: Options | None, new_options: Options | None, trust: bool
) -> tuple[tuple[OpenedPolicy, OpenedPolicy], str]:
    """Open both policies and return them with their environment's name; opened policies are returned unchanged."""
    name = None if env is None else env_name(env)
    new_side = _open_policy(new, "the new policy", name, new_options, trust)
    # The old policy may be the decoder in the environment of the new policy's run.
    old_env = name or new_side.card.get("request", {}).get("env")
    sides = (_open_policy(old, "the old policy", old_env, options, trust), new_side)
    return sides, name or _common_env(sides, trust)


def _compare_quantities(rounds: list[list[Quantities]], margin: Margin, error: float) -> list[QuantityComparison]:
    """Compare each quantity. A reward that is 0 in every episode decides nothing, unless no other reward does."""
    values = dict[str, tuple[np.ndarray, np.ndarray]]()
    for name in rounds[0][0]:
        old, new = (np.concatenate([episodes[name] for episodes in side]) for side in zip(*rounds, strict=True))
        if np.isnan([old, new]).all():  # some environments have no reward
            continue
        broken = [int((~np.isfinite(each)).sum()) for each in (old, new)]
        if any(broken):  # a verdict without this quantity would be by the others alone
            where = f"{broken[0]} of the old policy's {len(old)} episodes and {broken[1]} of the new one's"
            raise NumericError(f"the {TITLES.get(name, name)} is not finite in {where}, so there is no verdict")
        values[name] = old, new
    rewards = {name for name in values if not name.startswith(INFORMATIVE)}
    deciding = {name for name in rewards if np.any(values[name])} or rewards
    return [
        compare_quantity(name, old, new, margin if name in deciding else None, error, len(rewards))
        for name, (old, new) in values.items()
    ]


def _quantities(evaluation: Evaluation) -> Quantities:
    """Return the quantities of the episodes; several wishes are separate quantities."""
    assert evaluation.terminated is not None
    wishes = {f"addon_reward_{name}": values for name, values in evaluation.wishes.items()}
    if not wishes and evaluation.addon is not None:
        wishes = {"addon_reward": evaluation.addon}
    limits = {f"limit_{name}": values for name, values in evaluation.limits.items()}
    informative = {"length": evaluation.lengths, "ended_early_share": evaluation.terminated}
    return {"basic_reward": evaluation.basic, **wishes, **limits, **informative}


def _open_policy(
    given: Agent | OpenedPolicy | str | Path, role: str, env: str | None, options: Options | None, trust: bool
) -> OpenedPolicy:
    if isinstance(given, OpenedPolicy):
        return given
    if not isinstance(given, str | Path):
        check_is_agent(given, role)
        return OpenedPolicy(role, given)
    try:
        opened = open_policy_in_env(env, given, options or Options(), trust)
    except UsageError as error:
        message = options_of_new(str(error)) if role == "the new policy" else str(error)
        raise UsageError(f"{role}: {message}") from None
    return replace(opened, name=f"{role}, {given},")


def _common_env(sides: tuple[OpenedPolicy, OpenedPolicy], trust: bool) -> str:
    """Return the environment that the files name; raise where they name two, or none."""
    known = [side for side in sides if side.card.get("request", {}).get("env") or shelf_entry(side.path) is not None]
    if not known and sides[0].path == sides[1].path == Path():
        raise UsageError("two policies alone do not say for which environment; name one: compare(old, new, ENV)")
    names = [env_from_card(side.card, side.path, trust) for side in known or sides[:1]]
    # Each name gets the observation groups of the other, which may be the only one that names groups.
    envs = {with_observed_keys_of(name, other) for name, other in zip(names, reversed(names), strict=True)}
    if len(envs) > 1:
        problem = f"the old policy was made for {names[0]} and the new one for {names[1]}"
        raise UsageError(f"{problem}; name the environment to compare them in with --env")
    return envs.pop()


def _fit_to_env(side: OpenedPolicy, env: str, backend: Backend) -> tuple[Agent, str]:
    """Return the policy and the environment's name with the observation groups that the policy takes."""
    if isinstance(side.agent, MeanPrior):
        return place_prior(side.agent, env, backend)
    env = match_observation(env, side.agent, backend)
    check_fit(side.agent, probe_env(env, backend), side.name)
    return side.agent, env


def _is_reproducible(agent: Agent, env: str, seed: int, backend: Backend) -> bool:
    """Return whether the environment obeys its seed: one seed gives the same observations twice."""

    def observations() -> np.ndarray:
        with closing(make_envs(env, 2, seed, backend)) as envs:
            return Collector(envs, BLOCK_STEPS, torch.Generator().manual_seed(seed)).collect(agent, True).observations

    return np.array_equal(observations(), observations())
