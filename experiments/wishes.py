"""Wishes learnt from a person who is a program: answers to pairs of clips, and take-overs.

    python -m experiments.wishes                    # all rows that are not there yet
    python -m experiments.wishes --only prefer      # those whose key begins so

The person's hidden wish is to spare HalfCheetah's hind leg, or that Hopper stays high. Who answers is wrong in one
answer of ten. Who takes over acts as the policy that was customized to the hidden wish does, when the wish was met too
badly on average over the last steps, and hands back when it is met well (hysteresis). A row says what the program was
never told: the rank correlation of the learnt wish with the hidden one, and what the customized policies have of the
hidden wish's gain.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row
from experiments.pages import markdown
from repolicy.envs.addons import Addon, combined
from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import own_numbers
from repolicy.envs.wish_file import LearntWish
from repolicy.learning.training import customize
from repolicy.objective import residual
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy
from repolicy.priors.code import Acting, acting
from repolicy.readers.reading import Options
from repolicy.runs.machine import versions
from repolicy.runs.ranks import one_thread
from repolicy.wishes.answers import learnt, spread_a_step
from repolicy.wishes.learning_loop import Taught, Teaching, record
from repolicy.wishes.pairs import Pairs, asked, candidates, fingerprint
from repolicy.wishes.record import Labels, Record


@dataclass(frozen=True)
class Task:
    """A prior, a wish that nobody tells, and with which weights the prior is customized to it."""

    prior: str
    env: str
    hidden: str
    weight: float
    omega: float
    alpha: float
    states: float
    features: str
    last: int  # over so many steps a person looks at how the wish is met
    length: int  # of the windows whose features are compared

    @property
    def wish(self) -> Addon:
        return combined([self.hidden])


CHEETAH = Task("halfcheetah", "HalfCheetah-v4", "hind_leg", 10.0, 0.17, 0.13472, 0.348, "next[2:8]^1", 20, 10)
HOPPER = Task("hopper", "Hopper-v4", "height", 3.0, 0.33, 0.001, 0.33, "next[0:5]", 60, 60)
TAKEOVERS = {"takeover": CHEETAH, "hopper": HOPPER}  # with which word the keys of their rows begin
TRAINING = {"steps": 300_000, "ranks": 1}
ANSWERS, WRONG, STEPS, LATEST, NOISE, POOL = 100, 0.1, 40, 40, 2.0, 300
FEATURES = {"joints": CHEETAH.features, "all": "next^1", "networks": ""}
EPISODES = 20
ROUNDS, WATCHED, RATE = 3, 2000, 0.05
BAD = Labels(before=20)  # steps before a take-over do not count
# How steps are labelled, and whether the prior counts.
ARMS = {
    "mereq": (BAD, True),
    "no-pseudo-expert": (replace(BAD, passed=0.0), True),
    "no-prior": (BAD, False),
    "cloning": (BAD, True),
}


def who(reference: str | Path) -> Acting:
    return acting(str(reference), Options(), False)


def hidden(pairs: Pairs) -> np.ndarray:
    """Return what the person finds each clip worth `[P, 2]`."""
    return CHEETAH.wish.reward(Transitions(pairs.observations, pairs.actions, pairs.after, {})).sum(2)


def answers_of(pairs: Pairs, random: np.random.Generator) -> np.ndarray:
    """Return 1 for left and 0 for right, some of them wrong."""
    worth = hidden(pairs)
    right = worth[:, 0] > worth[:, 1]
    return np.where(random.random(len(right)) < WRONG, ~right, right).astype(float)


def learnt_from(pairs: list[Pairs], told: list[np.ndarray], features: str) -> LearntWish:
    known = {(page, p): float(each) for page, values in enumerate(told) for p, each in enumerate(values)}
    return learnt(pairs, dict(known), features)


def correlation(wish: LearntWish, fresh: Pairs) -> float:
    """Return Spearman's rank correlation of a wish with the hidden one, over clips."""
    found = wish(*fresh.steps, {}).reshape(*fresh.after.shape[:3]).sum(2).ravel()
    ranks = [np.argsort(np.argsort(each)) for each in (found, hidden(fresh).ravel())]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0][1]), 4)


def measured(reference: str | Path, task: Task = CHEETAH) -> dict[str, float]:
    """Return a policy's old reward and the hidden wish an episode, with the mean action."""
    with one_thread():
        found = evaluate(who(reference).agent, task.env, EPISODES, addon=task.hidden, seed=EVALUATION_SEED)
    assert found.addon is not None
    return {"basic": round(float(found.basic.mean()), 1), "hidden": round(float(found.addon.mean()), 2)}


def customized(addon: str, folder: Path, seed: int, task: Task = CHEETAH) -> Path:
    """Customize the prior, or take what lies there."""
    objective = residual(task.omega, task.alpha, task.states)
    customize(task.prior, addon, objective, folder, TRAINING | {"seed": seed}, resume=True, progress=False)
    return folder


def true_one(runs: Path, seed: int, task: Task = CHEETAH) -> Path:
    return customized(f"{task.hidden}={task.weight:g}", runs / f"true-{task.prior}-{seed}", seed, task)


def prefer(runs: Path, features: str, seed: int) -> Row:
    """Random and chosen pairs: what the learnt wishes are like, and what they make of the prior."""
    random = np.random.default_rng(seed)
    prior = who(CHEETAH.prior)
    with one_thread():
        pool = candidates(prior.agent, fingerprint(prior.path), CHEETAH.env, POOL, STEPS, NOISE, LATEST, 10_000 * seed)
        fresh = candidates(prior.agent, fingerprint(prior.path), CHEETAH.env, 200, STEPS, NOISE, LATEST, 900_000 + seed)
        told = answers_of(pool, random)
        by_chance = pool.some([*range(ANSWERS)])
        curve: dict[str, list[float]] = {"random": [], "chosen": []}
        for count in range(20, ANSWERS + 1, 20):
            wish = learnt_from([by_chance.some([*range(count)])], [told[:count]], FEATURES[features])
            curve["random"].append(correlation(wish, fresh))
        at_random, shown, known = wish, [by_chance.some([*range(20)])], [told[:20]]
        left = [*range(20, len(pool.seeds))]
        for _ in range(20, ANSWERS + 1, 20):
            wish = learnt_from(shown, known, FEATURES[features])
            curve["chosen"].append(correlation(wish, fresh))
            rest = pool.some(left)
            chosen = asked(rest, 20, wish)
            places = [left[int(np.flatnonzero(rest.seeds == each)[0])] for each in chosen.seeds]
            left = [place for place in left if place not in places]
            shown.append(chosen)
            known.append(told[places])
        scale = CHEETAH.weight * float(hidden_steps(pool).std())
    row: Row = {"features": FEATURES[features], "versions": versions(), "answers": ANSWERS, "wrong": WRONG}
    row |= {"correlation": curve, "prior": measured(CHEETAH.prior), "true": measured(true_one(runs, seed))}
    path = runs / f"wish-{features}-{seed}.safetensors"
    at_random.write(path)
    weight = scale / spread_a_step([pool], at_random)
    row["learnt"] = measured(customized(f"{path}={weight!r}", runs / f"prefer-{features}-{seed}", seed))
    return row | shares(row["learnt"], row)


def hidden_steps(pairs: Pairs) -> np.ndarray:
    return CHEETAH.wish.reward(Transitions(*pairs.steps, {}))


def shares(found: dict[str, float], row: Row) -> Row:
    """Return what a policy has of the gain that the true wish makes, and of the old reward that this leaves."""
    gain = (found["hidden"] - row["prior"]["hidden"]) / (row["true"]["hidden"] - row["prior"]["hidden"])
    return {"gain": round(gain, 3), "kept": round(found["basic"] / row["true"]["basic"], 3)}


class Person:
    """Acts as a policy does while the hidden wish is met worse than `low`, until it is met better than `high`."""

    def __init__(self, policy: Policy, task: Task, low: float, high: float, seed: int) -> None:
        self.policy, self.task, self.low, self.high, self.met = policy, task, low, high, list[float]()
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        act = self.policy.actor(1, 1, self.generator)
        sent = self.policy.to_environment(act(observation.astype(np.float32)[None]))
        return own_numbers(sent, self.policy.actions)[0]

    def wants(self, observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
        now, nothing = observation[None], proposed[None]
        self.met = [*self.met, float(self.task.wish.reward(Transitions(now, nothing, now, {}))[0])][-self.task.last :]
        mean = float(np.mean(self.met))
        return len(self.met) == self.task.last and mean < (self.high if acts else self.low)


def cloned(records: list[Record], path: Path, seed: int, task: Task) -> Path:
    """Go on from the prior by the likelihood of the person's actions, and write that policy."""
    prior = who(task.prior).agent
    assert isinstance(prior, Policy)
    policy = prior.alike()
    policy.load_state_dict(prior.state_dict())
    policy.requires_grad_(True)
    joined = Record.joined([*records])
    seen, done = (torch.from_numpy(each[joined.person]) for each in (joined.observation, joined.action))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(list(policy.network.parameters()), 3e-4)
    for _ in range(2000):
        some = torch.randint(len(seen), (256,), generator=generator)
        loss = -policy(seen[some]).log_prob(done[some]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_policy(path, policy.requires_grad_(False), {"request": {"env": task.env}})
    return path


def take_over(runs: Path, arm: str, seed: int, task: Task) -> Row:
    """Rounds of watching and learning: the rate of take-overs, and what came of it."""
    labels, with_prior = ARMS[arm]
    row: Row = {"features": task.features, "versions": versions(), "prior": measured(task.prior, task)}
    expert = true_one(runs, seed, task)
    row["true"] = measured(expert, task)
    before, after = (row[name]["hidden"] / 1000 for name in ("prior", "true"))
    low, high = (before + share * (after - before) for share in (0.5, 0.75))
    policy = who(expert).agent
    assert isinstance(policy, Policy)
    folder, now, records = (
        runs / f"{arm}-{task.prior}-{seed}",
        Taught(task.prior, None, max(task.omega, task.alpha)),
        list[Record](),
    )
    omega, states = (task.omega, task.states) if with_prior else (0.0, 0.0)
    teaching = Teaching(
        task.prior, task.env, task.features, omega, task.alpha, states, labels, task.length,
        TRAINING | {"seed": seed}, seed,
    )  # fmt: skip
    now = teaching.untaught
    row["updates"], row["rates"], row["person_steps"], row["theta"] = teaching.updates, [], [], []
    for number in range(ROUNDS + 1):
        person = Person(policy, task, low, high, seed)
        with one_thread():
            kept = folder / f"record-{number}.jsonl"
            kept.unlink(missing_ok=True)
            seeded = 100 * seed + number
            records.append(record(who(now.policy), task.env, kept, WATCHED, person, person.wants, seed=seeded))
        row["rates"].append(round(records[-1].rate, 4))
        row["person_steps"].append(int(records[-1].person.sum()))
        print(arm, seed, row["rates"], row["theta"][-1:], now.unit, flush=True)
        if records[-1].rate < RATE or number == ROUNDS:
            break
        if arm == "cloning":
            path = cloned(records, folder / f"cloned-{number}.safetensors", seed, task)
            now = Taught(str(path), None, task.alpha)
            continue
        now = teaching.taught(records, now, folder / f"round-{number}", print)
        assert now.wish is not None
        row["theta"].append([round(float(each), 3) for each in now.wish.theta])
    row["result"] = measured(now.policy, task)
    return row | shares(row["result"], row)


def preferences_table(rows: dict[str, Row]) -> str:
    """Return a row for each kind of features, with means over seeds."""
    headings = [
        "features",
        "seeds",
        "rank correlation, random pairs",
        "chosen pairs",
        "of the gain",
        "of the old reward",
    ]
    lines = []
    for name, features in FEATURES.items():
        if found := [row for key, row in rows.items() if key.startswith(f"prefer/{name}/")]:
            random, chosen = (
                "–".join(f"{value:.2f}" for value in sorted({min(last), max(last)}))
                for last in ([row["correlation"][how][-1] for row in found] for how in ("random", "chosen"))
            )
            shares = (f"{np.mean([row[key] for row in found]):.0%}" for key in ("gain", "kept"))
            lines.append([f"`{features}`" if features else "networks", str(len(found)), random, chosen, *shares])
    return markdown(headings, lines)


def takeover_table(rows: dict[str, Row]) -> str:
    """Return a row for each way and seed."""
    headings = [
        "prior",
        "way",
        "seed",
        "the person's share, by rounds",
        "their steps in all",
        "of the gain",
        "of the old reward",
    ]
    lines = []
    for key, row in sorted(rows.items()):
        kind, arm, seed = key.split("/")
        if kind in TAKEOVERS:
            rates = ", ".join(f"{rate:.0%}" for rate in row["rates"])
            shares = (f"{row[name]:.0%}" for name in ("gain", "kept"))
            lines.append([TAKEOVERS[kind].prior, arm, seed, rates, f"{sum(row['person_steps']):,}", *shares])
    return markdown(headings, lines)


def main() -> None:
    parser = campaign.parser("wishes", __doc__, ("runs",))
    parser.add_argument("--only", default="", help="how the keys of those rows begin")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds of each")
    options = parser.parse_args()
    wanted: dict[str, Callable[[], Row]] = {}
    for seed in range(options.seeds):
        wanted |= {f"prefer/{name}/{seed}": partial(prefer, options.runs, name, seed) for name in FEATURES}
        for kind, task in TAKEOVERS.items():
            wanted |= {f"{kind}/{arm}/{seed}": partial(take_over, options.runs, arm, seed, task) for arm in ARMS}
    campaign.measure(options.ledger, {key: each for key, each in wanted.items() if key.startswith(options.only)})


if __name__ == "__main__":
    campaign.run_main(main)
