"""Compare two policies: run episodes of both from the same starts until a verdict on the new one is certain.

    compare("halfcheetah", "runs/cheetah", not_worse="5%").verdict      # better, not worse, worse, or cannot tell

Each verdict is a bet that was won (`bets`), so the episodes may end at the first round that decides.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.envs import (
    BLOCK_STEPS,
    Backend,
    Collector,
    EnvLike,
    Evaluation,
    addons_from_card,
    check_fit,
    decoder_options,
    env_from_card,
    env_name,
    make_envs,
    match_observation,
    open_policy_in_env,
    place_prior,
    probe_env,
    resolve_backend,
    run_episodes,
    with_observed_keys_of,
)
from repolicy.envs.addons import Addon, Wish, load_addon
from repolicy.errors import UsageError, check_counts
from repolicy.many.bets import VERDICT_ORDER, Verdict, is_mean_proven_positive, loss_bounds, mean_lower_bound
from repolicy.policies import Agent
from repolicy.priors import MeanPrior, OpenedPolicy, shelf_entry
from repolicy.readers.reading import Options
from repolicy.runs import format_table
from repolicy.text import as_number, counted, number

DEFAULT_MARGIN = "5%"
EPISODES_PER_ROUND = 25  # episodes of each policy between two tests
TITLES = {"basic_reward": "return", "addon_reward": "add-on", "length": "length", "ended_early": "ended early"}
ACTIONS = {"mean": "with the mean action", "sampled": "with sampled actions"}
Quantities = dict[str, np.ndarray]  # a value of each episode, by the quantity's name
Table = tuple[list[str], list[list[str]]]
INFORMATIVE = ("length", "ended_early")  # reported only: in some tasks an early end is a success


@dataclass(frozen=True)
class Margin:
    """The loss up to which the new policy is still called not worse."""

    value: float
    is_share: bool  # whether the value is a share of the old policy's mean

    @classmethod
    def parse(cls, given: str | float) -> "Margin":
        """Return the margin of a text such as `5%` or `100`."""
        text = str(given).strip()
        value = as_number(text.removesuffix("%"))
        if not 0.0 < value < math.inf:
            raise UsageError(f"--not-worse is {text!r}; it must be a share of the old mean (5%), or a number above 0")
        return cls(value / 100.0, True) if text.endswith("%") else cls(value, False)

    def __str__(self) -> str:
        return f"{self.value:.3%}".replace(".000", "") if self.is_share else f"{self.value:g}"


@dataclass(frozen=True)
class QuantityComparison:
    """The comparison of one quantity of both policies' episodes."""

    name: str
    old: float  # mean of the old policy
    new: float
    low: float  # interval of new − old; each end is wrong with the comparison's error
    high: float
    verdict: Verdict

    @property
    def decides(self) -> bool:
        return self.name not in INFORMATIVE

    @property
    def loss(self) -> float:
        """The loss of the new policy, as a share of the old one's mean."""
        return (self.old - self.new) / (abs(self.old) or 1.0)

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.removeprefix("addon_reward_"))

    @property
    def cells(self) -> list[str]:
        """The row of this quantity in the table."""
        changes = (self.new - self.old, self.low, self.high)
        if self.name == "ended_early":
            old, new, difference, low, high = (
                f"{share:.1%}".replace("-", "−") for share in (self.old, self.new, *changes)
            )
        else:
            old, new = number(self.old), number(self.new)
            difference, low, high = (number(change, plus=True) for change in changes)
        interval = f"{low} to {high}" if math.isfinite(self.high - self.low) else "unknown"
        return [self.title, old, new, difference, interval, self.verdict]


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
    def deciding(self) -> list[QuantityComparison]:
        """The rows that decide the verdict."""
        return [row for row in next(iter(self.rows.values())) if row.decides]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the quantities that decide."""
        return min((row.verdict for row in self.deciding), key=VERDICT_ORDER.index)

    def sentences(self, where: str = "", count: int = 1) -> list[str]:
        """Return the verdict and its conditions. `where` names this place, the worst of `count` places."""
        starts = "the same starts" if self.is_paired else "starts of their own, as the environment has no seed"
        judges = " and ".join(row.title for row in self.deciding if row.verdict == self.verdict)
        shares = self.deciding if self.margin.endswith("%") else []
        nothing = [row.title for row in shares if row.old == 0.0 and row.name != "ended_early"]
        lines = [
            f"{self.verdict}{where}, {ACTIONS[next(iter(self.rows))]}, by {judges}; the margin is {self.margin}",
            f"{counted(self.episodes, 'episode')} each in {self.env} ({self.backend}), from {starts}, in "
            f"{counted(self.rounds, 'round')}; a verdict is wrong with a probability of at most "
            f"{100 * self.error * count:.3g}%, but for losses that are rare and larger than all that were seen",
        ]
        no_share = "has a mean of 0, of which no share is a margin: name a number, as --not-worse 0.1"
        return lines + [f"{title} {no_share}" for title in nothing]

    @property
    def tables(self) -> list[Table]:
        """A table for each kind of action."""
        headings = ["old", "new", "difference", f"{100 - 200 * self.error:.6g}% interval", "verdict"]
        return [([ACTIONS[action], *headings], [row.cells for row in rows]) for action, rows in self.rows.items()]

    def __repr__(self) -> str:
        return format_comparison(self.sentences(), self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON content."""
        rows = {action: {row.name: asdict(row) for row in rows} for action, rows in self.rows.items()}
        return {"verdict": self.verdict} | asdict(self) | {"rows": rows}


def format_comparison(sentences: list[str], tables: list[Table]) -> str:
    return "\n".join([*sentences, *(f"\n{format_table(*table)}" for table in tables)])


def compare_quantity(
    name: str, old: np.ndarray, new: np.ndarray, margin: Margin, error: float, quantities: int = 1
) -> QuantityComparison:
    """Compare one quantity by its values `[E]` in both policies' episodes, in pairs and in the order of time.

    The bets are on the mean of new − old + margin. A share of the old mean is taken of each old value, so that the mean
    itself need not be known. `quantities` is the number of quantities that decide: one that is worse is enough for the
    verdict *worse*, so each has this share of the error for it; *not worse* must hold for all, so each has the whole.
    """
    old, new = old.astype(float), new.astype(float)
    losses = loss_bounds(old, new)
    allowed = np.full_like(old, margin.value)
    sign = 1.0
    if name == "ended_early":  # fewer are better; a margin of 5 % is 5 episodes in a hundred
        sign, losses = -1.0, np.ones_like(old)
    elif margin.is_share:
        allowed = margin.value * math.copysign(1.0, old.mean()) * old
    gain = sign * (new - old)
    verdict: Verdict = "cannot tell"
    if is_mean_proven_positive(-gain - allowed, losses + abs(allowed), error / quantities)[-1]:
        verdict = "worse"
    elif is_mean_proven_positive(gain, losses, error)[-1]:
        verdict = "better"
    elif is_mean_proven_positive(gain + allowed, losses, error)[-1]:
        verdict = "not worse"
    low, high = mean_lower_bound(gain, losses, error), -mean_lower_bound(-gain, losses, error)
    if sign < 0:
        low, high = -high, -low
    return QuantityComparison(name, float(old.mean()), float(new.mean()), low, high, verdict)


def compare(
    old: Agent | OpenedPolicy | str | Path,
    new: Agent | OpenedPolicy | str | Path,
    env: EnvLike | None = None,
    not_worse: str | float = DEFAULT_MARGIN,
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
        old: a policy, its file, its run's folder, or the name of one that ships; or a generative policy, which the new
            one was customized from.
        new: the one that is to take its place.
        env: an id, or a function that makes one environment; by default the one that the files name.
        not_worse: how much less it may have: a share of the old policy's mean, such as "5%", or a number.
        addon: the wish that decides beside the return; by default that of the new policy's file. () is none.
        sampled: let sampled actions decide, and no mean actions; of generative policies they do in any case.
        error: the probability at most of a wrong verdict, but for losses that are rare and larger than all seen.
        episodes: at most so many of each policy, with each kind of action.
        seed: of environments and sampling.
        backend: whose environments: "envpool", "gymnasium", or "auto".
        progress: is given the number of episodes that are done.
        options: how the old policy's file is read, where that is another library's.
        new_options: the same of the new policy's file.
        trust: run code that a policy's file names.
    """
    margin = Margin.parse(not_worse)
    if not 0.0 < error < 0.5:
        raise UsageError(f"error is {error:g}; it must be above 0 and below 0.5")
    check_counts(episodes=episodes)
    sides, env = open_policies(old, new, env, options, new_options, trust)
    if addon is None:
        addon = addons_from_card(sides[1].card, sides[1].path, trust)
    if not isinstance(addon, Addon):
        addon = load_addon(addon, env)
    backend = resolve_backend(backend, *(side.agent for side in sides))
    pairs = [_fit_to_env(side, env, backend) for side in sides]
    by_noise = decoder_options(env) is not None  # a generative policy with its most likely noise is never used
    kinds = ("sampled", "mean") if sampled or by_noise else ("mean", "sampled")
    is_paired = _is_reproducible(*pairs[0], seed, backend)
    results = {kind: list[list[Quantities]]() for kind in kinds}
    rounds = done = 0

    def run(agent: Agent, place: str, kind: str, count: int) -> Evaluation:
        with closing(make_envs(place, count, seed + done, backend)) as envs:  # an episode each
            return run_episodes(agent, envs, count, addon=addon, deterministic=kind == "mean", seed=seed + done)

    while True:
        count = min(EPISODES_PER_ROUND, episodes - done)
        for kind in kinds:
            evaluations = [run(*each, kind, count) for each in pairs]
            results[kind].append([_quantities(each) for each in evaluations])
        rounds += 1
        done += count
        rows = {kind: _compare_quantities(results[kind], margin, error) for kind in kinds}
        found = Comparison(env, evaluations[0].backend, done, rounds, is_paired, str(margin), error, seed, rows)
        deciding = [row.verdict for row in found.deciding]
        if not deciding:
            raise UsageError(f"environment {env!r} tells no reward, so that nothing can decide; name one with --addon")
        if progress is not None:
            progress(done)
        if done == episodes or "worse" in deciding or "cannot tell" not in deciding:
            return found


OLD_NAME, NEW_NAME = "the old policy", "the new policy"


def open_policies(
    old: Any, new: Any, env: EnvLike | None, options: Options | None = None, new_options: Options | None = None,
    trust: bool = False, **_: Any,
) -> tuple[tuple[OpenedPolicy, OpenedPolicy], str]:  # fmt: skip
    """Open both policies and return them with their environment's name; opened policies are returned unchanged."""
    name = None if env is None else env_name(env)
    newer = _open_policy(new, NEW_NAME, name, new_options, trust)
    known = name or newer.card.get("request", {}).get("env")  # the decoder in it may be the old policy
    sides = (_open_policy(old, OLD_NAME, known, options, trust), newer)
    return sides, name or _common_env(sides, trust)


def _compare_quantities(rounds: list[list[Quantities]], margin: Margin, error: float) -> list[QuantityComparison]:
    """Compare each quantity. A margin that is a number is for rewards; other quantities have the default margin."""
    default = margin if margin.is_share else Margin.parse(DEFAULT_MARGIN)
    values = dict[str, tuple[np.ndarray, np.ndarray]]()
    for name in rounds[0][0]:
        old, new = (np.concatenate([each[name] for each in side]) for side in zip(*rounds, strict=True))
        if np.isfinite([old, new]).all():  # some environments have no reward
            values[name] = old, new
    decisive = len(values.keys() - {*INFORMATIVE})
    return [
        compare_quantity(name, old, new, default, error)
        if name in INFORMATIVE
        else compare_quantity(name, old, new, margin, error, decisive)
        for name, (old, new) in values.items()
    ]


def _quantities(evaluation: Evaluation) -> Quantities:
    """Return the quantities of each episode; several wishes are separate quantities."""
    assert evaluation.terminated is not None
    wishes = {f"addon_reward_{name}": values for name, values in evaluation.wishes.items()}
    if not wishes and evaluation.addon is not None:
        wishes = {"addon_reward": evaluation.addon}
    return {
        "basic_reward": evaluation.basic, **wishes,
        "length": evaluation.lengths, "ended_early": evaluation.terminated,
    }  # fmt: skip


def _open_policy(
    given: Agent | OpenedPolicy | str | Path, what: str, env: str | None, options: Options | None, trust: bool
) -> OpenedPolicy:
    if isinstance(given, OpenedPolicy):
        return given
    if not isinstance(given, str | Path):
        return OpenedPolicy(what, given)
    try:
        found = open_policy_in_env(env, given, options or Options(), trust)
    except UsageError as error:
        message = f"{what}: {error}"
        if what == NEW_NAME and "--" in str(error):
            message += "; its options stand behind --of-new, such as --of-new std=0.2"
        raise UsageError(message) from None
    return replace(found, name=f"{what}, {given},")


def _common_env(sides: tuple[OpenedPolicy, OpenedPolicy], trust: bool) -> str:
    """Return the environment that the files name; raise where they name two, or none."""
    known = [side for side in sides if side.card.get("request", {}).get("env") or shelf_entry(side.path) is not None]
    if not known and sides[0].path == sides[1].path == Path():
        raise UsageError("two policies alone do not say for which environment; name one: compare(old, new, ENV)")
    named = [env_from_card(side.card, side.path, trust) for side in known or sides[:1]]
    seen = {with_observed_keys_of(name, other) for name, other in zip(named, reversed(named), strict=True)}
    if len(seen) > 1:
        made = f"the old policy was made for {named[0]} and the new one for {named[1]}"
        raise UsageError(f"{made}; name the environment to compare them in with --env")
    return seen.pop()


def _fit_to_env(side: OpenedPolicy, env: str, backend: Backend) -> tuple[Agent, str]:
    """Return the policy and the environment's name with the observation groups that the policy takes."""
    if isinstance(side.agent, MeanPrior):
        return place_prior(side.agent, env, backend)
    env = match_observation(env, side.agent.observation_size, backend)
    check_fit(side.agent, probe_env(env, backend), side.name)
    return side.agent, env


def _is_reproducible(agent: Agent, env: str, seed: int, backend: Backend) -> bool:
    """Return whether the environment can be seeded: one seed gives the same observations twice."""

    def observations() -> np.ndarray:
        with closing(make_envs(env, 2, seed, backend)) as envs:
            return Collector(envs, BLOCK_STEPS, torch.Generator().manual_seed(seed)).collect(agent, True).observations

    return np.array_equal(observations(), observations())
