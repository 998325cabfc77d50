"""Record, infer, customize, until a person seldom takes over (MEReQ)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.envs import (
    EPISODE_CAP,
    Collector,
    Features,
    LearntWish,
    check_fit,
    check_plain,
    make_envs,
    make_one_env,
    probe_env,
    to_env_actions,
)
from repolicy.errors import UsageError, check_counts
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies import Agent
from repolicy.policies.storage import read
from repolicy.priors import OpenedPolicy, open_agent
from repolicy.readers.reading import Options
from repolicy.report.movie import follow
from repolicy.text import counted
from repolicy.wishes.inference import beyond_start, inferred, spreads, weights
from repolicy.wishes.pairs import fingerprint
from repolicy.wishes.record import Labels, Record, RecordFile, windows
from repolicy.wishes.rounds_page import write_rounds
from repolicy.wishes.takeover import Act, Keys, Takeover

ENVS, ALONE = 16, 16_000  # how many environments, and steps in all, of the policy alone
LEAST, MOST = 0.25, 2.0  # how far one update may be from what was foretold, for the next one
FEWEST = 5  # windows that a person began: of fewer the error is chance, too
PATIENCE = 2  # so many rounds in which the person is needed no less end the loop

Say = Callable[[str], None]


def record(
    found: OpenedPolicy,
    env: str,
    out: Path,
    steps: int,
    person: Act,
    keys: Keys | None = None,
    seed: int = 0,
    resume: bool = False,
) -> Record:
    """Let a policy act beside a person for so many steps, and return the record, which lies in the file `out`.

    The policy samples its actions. With `resume`, the steps that are recorded already count.
    """
    check_counts(steps=steps)
    check_plain(env, "a take-over")
    made = make_one_env(env, **({"render_mode": "rgb_array"} if keys and keys.shows else {}))
    follow(made.unwrapped)
    with closing(made):
        spaces = probe_env(env, "gymnasium")
        check_fit(found.agent, spaces)
        sizes = (spaces.observation_size, found.agent.actions.width)
        file = RecordFile(out, env, fingerprint(found.path), sizes, resume)
        beside = Takeover(made, person, file, keys)
        with closing(file):
            _run(found.agent, beside, file, steps, seed)
    return Record.read(out)


def _run(agent: Agent, beside: Takeover, file: RecordFile, steps: int, seed: int) -> None:
    """Go on until so many steps count, or the person leaves."""
    first_seed: int | None = seed + file.episode
    generator = torch.Generator().manual_seed(seed + file.episode)
    while file.steps < steps and not beside.left:
        observation, _ = beside.reset(seed=first_seed)
        first_seed = None  # the environment goes on with its own stream
        act = agent.actor(EPISODE_CAP, 1, generator)
        for _ in range(EPISODE_CAP):
            row = np.asarray(observation, np.float32).reshape(1, -1)
            proposed = to_env_actions(agent.to_environment(act(row)), agent.actions, beside.action_space)[0]
            observation, _, terminated, truncated, _ = beside.step(proposed)
            if terminated or truncated or file.steps >= steps:
                break


def alone(found: OpenedPolicy, env: str, seed: int = 0, steps: int = ALONE) -> Record:
    """Return what a policy does with no person beside it, by sampled actions."""
    each = max(steps // ENVS, 1)
    with closing(make_envs(env, ENVS, seed)) as envs:
        generator = torch.Generator().manual_seed(seed)
        rollout = Collector(envs, each, generator, keep_transitions=True).collect(found.agent)
    ended = (rollout.terminated | rollout.truncated).T
    episode = np.cumsum(np.concatenate([np.ones((ENVS, 1), int), ended[:, :-1]], 1).ravel()) - 1
    before, actions, after = (part.swapaxes(0, 1).reshape(ENVS * each, -1) for part in rollout.transitions[:3])
    time = rollout.ages.T.ravel().astype(float)
    nobody = np.zeros(len(time), bool)
    return Record(env, fingerprint(found.path), episode, time, before, actions, actions, after, nobody)


def infer(
    records: Sequence[Record],
    found: OpenedPolicy,
    features: str,
    alpha: float,
    earlier: LearntWish | None = None,
    labels: Labels | None = None,
    length: int = 10,
    seed: int = 0,
    steps: int = ALONE,
    usual: Record | None = None,
) -> LearntWish:
    """Return the wish that makes likeliest what a person did and let pass, beside what the policy does alone.

    Args:
        records: of take-overs; the last one beside this policy.
        found: the policy, as `priors.opening.acting` returns it.
        features: what the wish is a sum of.
        alpha: the temperature α̂ at which the policy is customized.
        earlier: the wish that it was customized to; none for a prior.
        labels: the rule by which steps count.
        length: of the windows in which features are summed, in steps.
        seed: of the policy's own steps.
        steps: how many steps of the policy alone they are compared with.
        usual: these steps, where they are known already.
    """
    joined = Record.joined([*records])
    mine = fingerprint(found.path)
    if records[-1].policy not in ("", mine):
        raise UsageError(f"the record was made beside another policy than {found.path}: name that one")
    if not 0 < alpha < np.inf:
        raise UsageError(f"alpha is {alpha}; a temperature must be above 0")
    if length < 1 or steps < 2 * ENVS * length:
        enough = f"a length of 1 or more, and {2 * ENVS} times as many steps of the policy alone"
        raise UsageError(f"{steps} steps of the policy alone and a length of {length} are too few: it takes {enough}")
    sizes = (joined.observation.shape[1], joined.action.shape[1])
    check_fit(found.agent, probe_env(joined.env))
    if sizes != (found.agent.observation_size, found.agent.actions.width):
        raise UsageError(
            f"the record has other observations or actions than {joined.env}: it is of another environment"
        )
    described = Features.of(features)
    usual = usual or alone(found, joined.env, seed, steps)
    beside = windows(joined, described, length, (labels or Labels()).weights(joined))
    without = windows(usual, described, length, np.ones(len(usual.person)))
    own, begun = int(joined.person.sum()), int(joined.person[beside.firsts].sum())
    within = int(joined.person[beside.firsts[:, None] + np.arange(length)].sum())
    source = (
        f"{counted(len(beside.sums), 'window')} of {counted(length, 'step')}, of which a person began {begun}, with "
        f"{within} of their {counted(own, 'step')}"
    )
    if own and begun < FEWEST:
        few = f"the record has {source}; it takes {FEWEST} that they began"
        raise UsageError(f"{few}: record more, or name a smaller --length, --before or --settle")
    theta = None if earlier is None else earlier.theta
    if theta is not None and len(theta) != beside.sums.shape[1]:
        raise UsageError("the earlier wish has other features")
    names = described.names(beside.sums.shape[1], sizes)
    spreads(beside.sums, without.sums, names)
    chances = (beside.weights / beside.weights.sum(), without.weights / without.weights.sum())
    person, policy = beyond_start(
        (beside.sums, joined.observation[beside.firsts]), (without.sums, usual.observation[without.firsts])
    )
    wish = inferred(person, policy, alpha, theta, chances, (beside.groups, without.groups))
    return LearntWish(joined.env, mine, source, sizes, described, names, wish.value, wish.covariance)


def response(before: Record, after: Record, step: np.ndarray, features: Features, alpha: float, length: int) -> float:
    """Return how far a policy followed a step `[K]` of its wish, as a share of what the inference foretold.

    It is 1 for a soft-optimal policy. A prior whose log-likelihood is worth more, and training that is not at its end,
    follow less; θ is then larger by as much, for the same behavior.
    """
    one, other = (windows(each, features, length, np.ones(len(each.person))).sums for each in (before, after))
    foretold = weights(one, step, alpha, np.full(len(one), 1 / len(one))) @ one - one.mean(0)
    return float((other.mean(0) - one.mean(0)) @ step / (foretold @ step))


@dataclass(frozen=True)
class Teaching:
    """How records become the next policy: each update infers the wish anew, and customizes the prior to it."""

    prior: str
    env: str
    features: str
    omega: float
    alpha: float
    states: float = 0.0
    labels: Labels | None = None
    length: int = 10
    settings: Mapping[str, Any] | None = None
    seed: int = 0
    trust: bool = False
    updates: int = 2
    alone_steps: int = ALONE
    customizing: Callable[..., Any] = customize

    def __post_init__(self) -> None:
        check_counts(updates=self.updates)

    @property
    def untaught(self) -> "Taught":
        """Return the prior. Its unit is ω′: a prior is as wide as its log-likelihood at ω′ makes it."""
        return Taught(self.prior, None, max(self.omega, self.alpha))

    def taught(self, records: Sequence[Record], now: "Taught", folder: Path, say: Say) -> "Taught":
        """Return the policy after the updates, each of which lies in the folder."""
        for number in range(self.updates):
            found = open_agent(now.policy, Options(), self.trust)
            usual = now.alone or alone(found, self.env, self.seed, self.alone_steps)
            if number > 0:  # the record was made beside another policy, and tells of this one, too
                records = [*records[:-1], replace(records[-1], policy=fingerprint(found.path))]
            wish = infer(records, found, self.features, now.unit, now.wish, self.labels, self.length, usual=usual)
            path, run = folder / f"wish-{number}.safetensors", folder / f"run-{number}"
            if path.exists():
                kept, header = read(path, "wish")
                if header["features"] != self.features or not np.array_equal(kept["theta"].numpy(), wish.theta):
                    raise UsageError(
                        f"{path} was learnt of other features, records or settings: repeat those, or name another --out"
                    )
            wish.write(path)
            made = self.customizing(
                self.prior, str(path), residual(self.omega, self.alpha, self.states), run, dict(self.settings or {}),
                env=self.env, resume=True, trust=self.trust, progress=False,
            )  # fmt: skip
            if not made.finished:
                raise KeyboardInterrupt
            step = wish.theta if now.wish is None else wish.theta - now.wish.theta
            after = alone(open_agent(str(run), Options(), self.trust), self.env, self.seed, self.alone_steps)
            followed = response(usual, after, step, Features.of(self.features), now.unit, self.length)
            say(f"{run}: the policy followed {followed:.0%} of what was foretold")
            now = Taught(str(run), wish, now.unit / float(np.clip(followed, LEAST, MOST)), after)
        return now


@dataclass(frozen=True)
class Taught:
    """A policy, the wish that it has, and the temperature at which it follows one."""

    policy: str
    wish: LearntWish | None
    unit: float
    alone: Record | None = None


@dataclass(frozen=True)
class Round:
    """One round of `learn_wish`."""

    rate: float
    """The share of steps in which the person acted."""
    person_steps: int
    """How many these were, in this round."""
    policy: str
    """Who acted beside them."""


def basis(shares: Sequence[float]) -> int | None:
    """Return the round of the person's smallest share, from which to go on; none once two rounds were no better."""
    best = int(np.argmin(shares))
    return best if len(shares) - 1 - best < PATIENCE else None


def learn_wish(
    teaching: Teaching,
    out: Path,
    person: Act,
    *,
    keys: Keys | None = None,
    steps: int = 2000,
    rounds: int = 5,
    rate: float = 0.05,
    say: Say = lambda sentence: None,
) -> list[Round]:
    """Record, infer and customize until the person takes over in less than this share of the steps; or go on so.

    What lies in the folder is not done again. Each customizing begins from the prior, with the wish as it is by then:
    that of the round in which the person was needed least. Two rounds that are no better end it.

    Args:
        teaching: the prior, and how it learns.
        out: the folder; round K lies in round-K.
        person: what the person does, from (observation, proposed action), as in `Takeover`.
        keys: where the person's keys come from.
        steps: how many steps each round records.
        rounds: how many rounds at most.
        rate: the share of the person's steps below which all is well.
        say: hears how far it is.
    """
    check_counts(rounds=rounds)
    now = teaching.untaught
    records, policies = list[Record](), list[Taught]()  # of each round
    for number in range(rounds):
        folder, seed = out / f"round-{number}", teaching.seed + 1000 * number
        acts = open_agent(now.policy, Options(), teaching.trust)
        last = record(acts, teaching.env, folder / "record.jsonl", steps, person, keys, seed, resume=True)
        if len(last.person) < steps:
            say(f"round {number}: {len(last.person):,} of {steps:,} steps are recorded; the same command goes on")
            break
        say(f"round {number}: the person acted in {last.rate:.1%} of {len(last.person):,} steps")
        records.append(last)
        policies.append(now)
        write_rounds(out, teaching.features, records, [each.wish for each in policies], rate)
        if last.rate < rate or number == rounds - 1:
            break
        best = basis([each.rate for each in records])
        if best is None:
            say(f"{PATIENCE} rounds needed the person no less: this is the end")
            break
        if best != number:
            say(f"round {number} was no better than round {best}, from which it goes on")
        others = [record for place, record in enumerate(records) if place != best]
        now = teaching.taught([*others, records[best]], policies[best], folder, say)
    return [
        Round(each.rate, int(each.person.sum()), taught.policy) for each, taught in zip(records, policies, strict=True)
    ]
