"""Record take-overs, infer the wish and customize, until the person seldom takes over (MEReQ)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.addons import Features, LearntWish, wish_request
from repolicy.envs import (
    Collector,
    EnvLike,
    check_fit,
    check_observed_alike,
    check_plain,
    env_name,
    make_envs,
    make_one_env,
    probe_env,
    to_env_actions,
)
from repolicy.errors import UsageError, check_counts
from repolicy.evaluation import EPISODE_CAP
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies import ActionSpace, Agent
from repolicy.policies.storage import read
from repolicy.priors import OpenedPolicy, open_agent
from repolicy.report.filming import use_tracking_camera
from repolicy.runs import Estimate
from repolicy.text import Say, format_count, with_minus
from repolicy.wishes.inference import feature_stds, infer_theta, minus_expected, noise_of_mean, reweighted
from repolicy.wishes.keys import Keys
from repolicy.wishes.pairs import fingerprint
from repolicy.wishes.record import Labels, Record, RecordFile, Windows, windows
from repolicy.wishes.rounds_page import write_rounds
from repolicy.wishes.takeover import Act, Takeover

ENVS, ALONE_STEPS = 16, 16_000  # environments, and steps in all, of the policy without a person
MIN_RESPONSE, MAX_RESPONSE = 0.25, 2.0  # the bounds of a response that changes the unit of the next inference
MIN_WINDOWS = 5  # that the person began; with fewer the standard error itself is too uncertain
PATIENCE = 2  # rounds without improvement that end the loop


def record(
    opened: OpenedPolicy,
    env: EnvLike,
    out: str | Path,
    steps: int,
    person: Act,
    keys: Keys | None = None,
    seed: int = 0,
    resume: bool = False,
) -> Record:
    """Let a policy and a person act together for so many steps; write the record to `out` and return it.

    The policy samples its actions. With `resume`, the steps already in the file count.
    """
    check_counts(steps=steps)
    env = env_name(env)
    check_plain(env, "a take-over")
    check_observed_alike(env, "a take-over")
    spaces = probe_env(env, "gymnasium")
    check_fit(opened.agent, spaces)
    try:
        made = make_one_env(env, **({"render_mode": "rgb_array"} if keys and keys.shows else {}))
    except UsageError as error:  # it could be made a moment ago
        raise UsageError(f"{error}; a window asks it for pictures (render_mode): add --keys terminal") from error
    use_tracking_camera(made.unwrapped)
    with closing(made):
        sizes = (spaces.observation_size, opened.agent.actions.width)
        file = RecordFile(out, env, fingerprint(opened.path), sizes, resume)
        takeover = Takeover(made, person, file, keys)
        with closing(file):
            _run(opened.agent, spaces.actions, takeover, file, steps, seed)
    return Record.read(out)


def _run(agent: Agent, actions: ActionSpace, takeover: Takeover, file: RecordFile, steps: int, seed: int) -> None:
    """Run episodes until so many steps are recorded, or the person quits."""
    first_seed: int | None = seed + file.episode
    generator = torch.Generator().manual_seed(seed + file.episode)
    while file.steps < steps and not takeover.left:
        observation, _ = takeover.reset(seed=first_seed)
        first_seed = None  # later episodes continue the environment's random stream
        act = agent.actor(EPISODE_CAP, 1, generator)
        for _ in range(EPISODE_CAP):
            row = np.asarray(observation, np.float32).reshape(1, -1)
            proposed = to_env_actions(agent.to_environment(act(row)), actions, takeover.action_space)[0]
            observation, _, terminated, truncated, _ = takeover.step(proposed)
            if terminated or truncated or file.steps >= steps:
                break


def record_alone(opened: OpenedPolicy, env: EnvLike, seed: int = 0, steps: int = ALONE_STEPS) -> Record:
    """Return a record of a policy's sampled actions without a person."""
    env, length = env_name(env), max(steps // ENVS, 1)
    with closing(make_envs(env, ENVS, seed)) as envs:
        check_fit(opened.agent, envs)
        generator = torch.Generator().manual_seed(seed)
        rollout = Collector(envs, length, generator).collect(opened.agent)
    ended = (rollout.terminated | rollout.truncated).T
    episode = np.cumsum(np.concatenate([np.ones((ENVS, 1), int), ended[:, :-1]], 1).ravel()) - 1
    before, actions, after = (part.swapaxes(0, 1).reshape(ENVS * length, -1) for part in rollout.transitions[:3])
    nobody = np.zeros(len(episode), bool)
    return Record(env, fingerprint(opened.path), episode, before, actions, after, nobody)


def infer(
    records: Sequence[Record],
    opened: OpenedPolicy,
    features: str | Callable[..., Any],
    alpha: float,
    earlier: LearntWish | None = None,
    labels: Labels | None = None,
    length: int = 10,
    seed: int = 0,
    steps: int = ALONE_STEPS,
    alone: Record | None = None,
) -> LearntWish:
    """Infer the wish by maximum likelihood of what the person did and allowed, compared with the policy alone.

    Args:
        records: the records of take-overs. One of them was made with this policy.
        opened: the policy, as `priors.open_agent` returns it.
        features: the features of which the wish is a weighted sum, named or as a function.
        alpha: the larger of the ω′ and α̂ with which the prior is customized. For the record of a customized policy that
            has converged, α̂ alone would be exact; but after usual runs its std is far above that of the optimum.
        earlier: the wish to which the policy was customized. None for a prior.
        labels: the rule that gives each step its weight.
        length: the number of steps in a window, over which features are summed.
        seed: the seed of the policy's own steps.
        steps: the number of steps of the policy alone.
        alone: a record of the policy alone, if there is one already.
    """
    joined = Record.joined([*records])
    policy = fingerprint(opened.path)
    if all(record.policy not in ("", policy) for record in records):
        raise UsageError(f"none of the records was made beside {opened.path}: name the policy that acted in one")
    if not 0 < alpha < np.inf:
        raise UsageError(f"alpha is {alpha}; a temperature must be above 0")
    if length < 1 or steps < 2 * ENVS * length:
        enough = f"a length of 1 or more, and {2 * ENVS} times as many steps of the policy alone"
        raise UsageError(f"{steps} steps of the policy alone and a length of {length} are too few: it takes {enough}")
    sizes = (joined.observation.shape[1], joined.action.shape[1])
    check_fit(opened.agent, probe_env(joined.env))
    size = opened.agent.observation_size
    if (*sizes, joined.next.shape[1]) != (size, opened.agent.actions.width, size):
        raise UsageError(
            f"the record has other observations or actions than {joined.env}: it is of another environment"
        )
    described = Features.of(features)
    alone = alone or record_alone(opened, joined.env, seed, steps)
    shared = windows(joined, described, length, (labels or Labels()).weights(joined))
    own = windows(alone, described, length, np.ones(len(alone.person)))
    source = _describe_source(joined, shared, length)
    names = described.names(shared.sums.shape[1], sizes)
    if earlier is not None and earlier.names != names:
        raise UsageError(f"the earlier wish is of other features: {', '.join(earlier.names) or 'it has networks'}")
    theta = None if earlier is None else earlier.theta
    feature_stds(shared.sums, own.sums, names)  # raises with the features' names

    probabilities = (shared.weights / shared.weights.sum(), own.weights / own.weights.sum())
    person_features, policy_features = minus_expected(
        (shared.sums, joined.observation[shared.firsts]), (own.sums, alone.observation[own.firsts])
    )
    groups = shared.groups, own.groups
    wish = infer_theta(person_features, policy_features, alpha, theta, probabilities, groups)
    source += ", which ask for more than the policy alone can tell" if wish.is_cut else ""
    return LearntWish(joined.env, policy, source, sizes, described, names, wish.value, wish.covariance, wish.groups)


def _describe_source(record: Record, found: Windows, length: int) -> str:
    """Return what a wish is inferred from, in words; raise where a person began too few of the windows."""
    person_steps, begun = int(record.person.sum()), int(record.person[found.firsts].sum())
    within = int(record.person[found.firsts[:, None] + np.arange(length)].sum())
    source = (
        f"{format_count(len(found.sums), 'window')} of {format_count(length, 'step')}, of which a person began "
        f"{begun}, with {within} of their {format_count(person_steps, 'step')}"
    )
    if person_steps and begun < MIN_WINDOWS:
        few = f"the record has {source}; it takes {MIN_WINDOWS} that they began"
        raise UsageError(f"{few}: record more, or name a smaller --length or --before")
    return source


def response(
    before: Record, after: Record, step: np.ndarray, features: Features, alpha: float, length: int
) -> Estimate:
    """Return the change of features between two records along a step `[K]` of θ, as a share of the predicted change.

    It is 1 for a soft-optimal policy. It is smaller if the prior's log-likelihood has a higher weight, or if training
    has not converged. θ must then be larger in proportion, for the same behavior. Its error takes the windows
    of one episode together, because an episode may differ from the others as long as it lasts.
    """
    records = (before, after)
    found = [windows(each, features, length, np.ones(len(each.person))) for each in records]
    one, other = (each.sums for each in found)
    equal_shares = [np.full(len(each.sums), 1 / len(each.sums)) for each in found]
    predicted = float((reweighted(one, step, alpha, equal_shares[0]) @ one - one.mean(0)) @ step)
    noise = sum(
        noise_of_mean(each.sums, shares, record.episode[each.firsts])
        for each, shares, record in zip(found, equal_shares, records, strict=True)
    )
    error = float(np.sqrt(step @ noise @ step)) / abs(predicted)
    return Estimate(float((other.mean(0) - one.mean(0)) @ step) / predicted, error)


def next_unit(unit: float, followed: Estimate) -> float:
    """Return the temperature of the next inference; it moves only where the response differs from 1 by two errors."""
    if abs(followed.mean - 1.0) <= 2.0 * followed.error:
        return unit
    return unit / float(np.clip(followed.mean, MIN_RESPONSE, MAX_RESPONSE))


@dataclass(frozen=True)
class Teaching:
    """Settings of the updates between records. An update infers the wish and customizes the prior to it."""

    prior: str
    env: EnvLike
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
    alone_steps: int = ALONE_STEPS
    customizing: Callable[..., Any] = customize

    def __post_init__(self) -> None:
        check_counts(updates=self.updates)

    @property
    def untaught(self) -> "TaughtPolicy":
        """Return the prior, with the larger of α̂ and ω′; it is the soft optimum of ω′·log prior at temperature ω′."""
        return TaughtPolicy(self.prior, None, max(self.omega, self.alpha))

    def taught(self, records: Sequence[Record], now: "TaughtPolicy", folder: Path, say: Say) -> "TaughtPolicy":
        """Return the policy after all updates. Each update's wish and run are kept in the folder."""
        features = Features.of(self.features)
        for number in range(self.updates):
            opened = open_agent(now.policy, trust=self.trust)
            alone = now.alone or record_alone(opened, self.env, self.seed, self.alone_steps)
            if number > 0:  # the record was made with an earlier policy, and is used for this one as well
                records = [*records[:-1], replace(records[-1], policy=fingerprint(opened.path))]
            wish = infer(records, opened, self.features, now.unit, now.wish, self.labels, self.length, alone=alone)
            path, run = folder / f"wish-{number}.safetensors", folder / f"run-{number}"
            if path.exists():
                tensors, header = read(path, "wish")
                theta = tensors["theta"].numpy()
                is_same = theta.shape == wish.theta.shape and np.allclose(theta, wish.theta, rtol=1e-9, atol=0.0)
                if header["features"] != features.reference or not is_same:  # other processors differ in the last bits
                    raise UsageError(
                        f"{path} was learnt of other features, records or settings: repeat those, or name another --out"
                    )
            wish.write(path)
            result = self.customizing(
                self.prior, wish_request(path, features.reference), residual(self.omega, self.alpha, self.states), run,
                dict(self.settings or {}), env=self.env, resume=True, trust=self.trust, progress=False,
            )  # fmt: skip
            if not result.finished:
                raise KeyboardInterrupt
            step = wish.theta if now.wish is None else wish.theta - now.wish.theta
            after = record_alone(open_agent(str(run), trust=self.trust), self.env, self.seed, self.alone_steps)
            followed = response(alone, after, step, features, now.unit, self.length)
            said = with_minus(f"{followed.mean:.0%} ± {followed.error:.0%}")
            say(f"{run}: the policy followed {said} of what was foretold")
            now = TaughtPolicy(str(run), wish, next_unit(now.unit, followed), after)
        return now


@dataclass(frozen=True)
class TaughtPolicy:
    """A policy, and the wish to which it was customized."""

    policy: str
    wish: LearntWish | None
    unit: float  # the temperature at which the next inference takes the policy to follow a wish
    alone: Record | None = None  # steps of the policy without a person


@dataclass(frozen=True)
class Round:
    """One round of `learn_wish`."""

    rate: float
    """The share of steps in which the person acted."""
    rate_error: float
    """Its standard error."""
    policy: str
    """The policy that acted otherwise."""


def round_to_take(rounds: Sequence[Round]) -> Round:
    """Return the round with the smallest share, or the first, the prior's, where that is not smaller by two errors."""
    prior, best = rounds[0], min(rounds, key=lambda each: each.rate)
    return best if prior.rate - best.rate > 2.0 * np.hypot(prior.rate_error, best.rate_error) else prior


def best_round(shares: Sequence[float]) -> int | None:
    """Return the round with the person's smallest share, or None if PATIENCE later rounds were no better."""
    best = int(np.argmin(shares))
    return best if len(shares) - 1 - best < PATIENCE else None


def _check_features(named: str, agent: Agent) -> None:
    """Raise for features that there are not, before a person acts for them."""
    features, size = Features.of(named), agent.observation_size
    if features.function is None:
        features(np.zeros((1, size)), np.zeros((1, agent.actions.width)), np.zeros((1, size)), {})


def learn_wish(
    teaching: Teaching,
    out: str | Path,
    person: Act,
    *,
    keys: Keys | None = None,
    steps: int = 2000,
    rounds: int = 5,
    rate: float = 0.05,
    say: Say = lambda sentence: None,
) -> list[Round]:
    """Record, infer and customize in rounds, until the person acts in less than `rate` of the steps.

    Work that is in the folder already is not repeated. Each round customizes the prior. The inference continues from
    the wish of the round in which the person acted least. Two rounds without improvement end the loop.

    Args:
        teaching: the prior, and the settings of inference and training.
        out: the folder, with a subfolder round-K for each round.
        person: returns the person's action for (observation, proposed action), as in `Takeover`.
        keys: the source of the person's keys.
        steps: the number of steps recorded in each round.
        rounds: the largest number of rounds.
        rate: the share of the person's steps below which the loop ends.
        say: is called with messages about the progress.
    """
    check_counts(rounds=rounds)
    out = Path(out)
    now = teaching.untaught
    records, policies = list[Record](), list[TaughtPolicy]()  # of each round
    for number in range(rounds):
        folder, seed = out / f"round-{number}", teaching.seed + 1000 * number
        opened = open_agent(now.policy, trust=teaching.trust)
        _check_features(teaching.features, opened.agent)
        # What is learnt depends on all steps of a record, so one that was learnt from is not continued.
        enough = 1 if (folder / "wish-0.safetensors").exists() else steps
        last = record(opened, teaching.env, folder / "record.jsonl", enough, person, keys, seed, resume=True)
        if len(last.person) < enough:
            say(f"round {number}: {len(last.person):,} of {steps:,} steps are recorded; the same command goes on")
            break
        share = f"{last.rate:.1%} ± {last.rate_error:.1%}"
        episodes = format_count(len(np.unique(last.episode)), "episode")
        say(f"round {number}: the person acted in {share} of {len(last.person):,} steps, in {episodes}")
        records.append(last)
        policies.append(now)
        write_rounds(out, teaching.features, records, [each.wish for each in policies], rate)
        if last.rate < rate or number == rounds - 1:
            break
        best = best_round([each.rate for each in records])
        if best is None:
            say(f"{PATIENCE} rounds needed the person no less: this is the end")
            break
        if best != number:
            say(f"round {number} was no better than round {best}, from which it goes on")
        others = [each for index, each in enumerate(records) if index != best]
        now = teaching.taught([*others, records[best]], policies[best], folder, say)
    return [Round(each.rate, each.rate_error, now.policy) for each, now in zip(records, policies, strict=True)]
