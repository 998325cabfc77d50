"""Wishes learnt from a person who is a program: answers to pairs of clips, and take-overs, on HalfCheetah.

    python -m experiments.wishes                    # all rows that are not there yet
    python -m experiments.wishes --only prefer      # those whose key begins so

The person's hidden wish is to spare the hind leg, `hind_leg`. Who answers is wrong in one answer of ten. Who takes over
acts as the policy that was customized to the hidden wish does, when the leg has bent too far on average over the last
steps, and hands back when it bends little (hysteresis). A row says what the program was never told: the rank
correlation of the learnt wish with the hidden one, and what the customized policies have of the hidden wish's gain.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row
from experiments.pages import markdown
from repolicy.envs.addons import combined
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

ENV, PRIOR, HIDDEN, WEIGHT = "HalfCheetah-v4", "halfcheetah", "hind_leg", 10.0
OMEGA, ALPHA, STATES = 0.17, 0.13472, 0.348
TRAINING = {"steps": 300_000, "ranks": 1}
ANSWERS, WRONG, STEPS, LATEST, NOISE, POOL = 100, 0.1, 40, 40, 2.0, 300
FEATURES = {"joints": "next[2:8]^1", "all": "next^1", "networks": ""}
EPISODES = 20
LEG, LAST = 2, 20  # the leg's place in the observation; over so many steps its angle is averaged
ROUNDS, WATCHED, RATE = 3, 2000, 0.05
ARMS = {
    "mereq": (Labels(before=LAST), OMEGA, STATES),
    "no-pseudo-expert": (Labels(before=LAST, passed=0.0), OMEGA, STATES),
    "no-prior": (Labels(before=LAST), 0.0, 0.0),
    "cloning": (Labels(before=LAST), OMEGA, STATES),
}


def who(reference: str | Path) -> Acting:
    return acting(str(reference), Options(), False)


def hidden(pairs: Pairs) -> np.ndarray:
    """Return what the person finds each clip worth `[P, 2]`."""
    return combined([HIDDEN]).reward(Transitions(pairs.observations, pairs.actions, pairs.after, {})).sum(2)


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


def measured(reference: str | Path) -> dict[str, float]:
    """Return a policy's old reward and the hidden wish a step, with the mean action."""
    with one_thread():
        found = evaluate(who(reference).agent, ENV, EPISODES, addon=HIDDEN, seed=EVALUATION_SEED)
    assert found.addon is not None
    return {"basic": round(float(found.basic.mean()), 1), "hidden": round(float(found.addon.mean()), 2)}


def customized(addon: str, folder: Path, seed: int, omega: float = OMEGA) -> Path:
    """Customize the prior, or take what lies there."""
    objective = residual(omega, ALPHA, STATES if omega else 0.0)
    customize(PRIOR, addon, objective, folder, TRAINING | {"seed": seed}, resume=True, progress=False)
    return folder


def true_one(runs: Path, seed: int) -> Path:
    return customized(f"{HIDDEN}={WEIGHT:g}", runs / f"true-{seed}", seed)


def prefer(runs: Path, features: str, seed: int) -> Row:
    """Random and chosen pairs: what the learnt wishes are like, and what they make of the prior."""
    random = np.random.default_rng(seed)
    prior = who(PRIOR)
    with one_thread():
        pool = candidates(prior.agent, fingerprint(prior.path), ENV, POOL, STEPS, NOISE, LATEST, 10_000 * seed)
        fresh = candidates(prior.agent, fingerprint(prior.path), ENV, 200, STEPS, NOISE, LATEST, 900_000 + seed)
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
        scale = WEIGHT * float(hidden_steps(pool).std())
    row: Row = {"features": FEATURES[features], "versions": versions(), "answers": ANSWERS, "wrong": WRONG}
    row |= {"correlation": curve, "prior": measured(PRIOR), "true": measured(true_one(runs, seed))}
    path = runs / f"wish-{features}-{seed}.safetensors"
    at_random.write(path)
    weight = scale / spread_a_step([pool], at_random)
    row["learnt"] = measured(customized(f"{path}={weight!r}", runs / f"prefer-{features}-{seed}", seed))
    return row | shares(row["learnt"], row)


def hidden_steps(pairs: Pairs) -> np.ndarray:
    return combined([HIDDEN]).reward(Transitions(*pairs.steps, {}))


def shares(found: dict[str, float], row: Row) -> Row:
    """Return what a policy has of the gain that the true wish makes, and of the old reward that this leaves."""
    gain = (found["hidden"] - row["prior"]["hidden"]) / (row["true"]["hidden"] - row["prior"]["hidden"])
    return {"gain": round(gain, 3), "kept": round(found["basic"] / row["true"]["basic"], 3)}


class Person:
    """Acts as a policy does, while the leg bends too far."""

    def __init__(self, policy: Policy, high: float, low: float, seed: int) -> None:
        self.policy, self.high, self.low, self.angles = policy, high, low, list[float]()
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        act = self.policy.actor(1, 1, self.generator)
        sent = self.policy.to_environment(act(observation.astype(np.float32)[None]))
        return own_numbers(sent, self.policy.actions)[0]

    def wants(self, observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
        self.angles = [*self.angles[1 - LAST :], abs(float(observation[LEG]))]
        mean = float(np.mean(self.angles))
        return len(self.angles) == LAST and mean > (self.low if acts else self.high)


def cloned(records: list[Record], path: Path, seed: int) -> Path:
    """Go on from the prior by the likelihood of the person's actions, and write that policy."""
    prior = who(PRIOR).agent
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
    save_policy(path, policy.requires_grad_(False), {"request": {"env": ENV}})
    return path


def take_over(runs: Path, arm: str, seed: int) -> Row:
    """Rounds of watching and learning: the rate of take-overs, and what came of it."""
    labels, omega, states = ARMS[arm]
    row: Row = {"features": FEATURES["joints"], "versions": versions(), "prior": measured(PRIOR)}
    expert = true_one(runs, seed)
    row["true"] = measured(expert)
    before, after = (-row[name]["hidden"] / 1000 for name in ("prior", "true"))
    high, low = after + 0.5 * (before - after), after + 0.25 * (before - after)
    policy = who(expert).agent
    assert isinstance(policy, Policy)
    folder, now, records = runs / f"{arm}-{seed}", Taught(PRIOR, None, ALPHA), list[Record]()
    teaching = Teaching(
        PRIOR, ENV, FEATURES["joints"], omega, ALPHA, states, labels, settings=TRAINING | {"seed": seed}, seed=seed
    )
    row["rates"], row["person_steps"], row["theta"] = [], [], []
    for number in range(ROUNDS + 1):
        person = Person(policy, high, low, seed)
        with one_thread():
            kept = folder / f"record-{number}.jsonl"
            kept.unlink(missing_ok=True)
            seeded = 100 * seed + number
            records.append(record(who(now.policy), ENV, kept, WATCHED, person, person.wants, seed=seeded))
        row["rates"].append(round(records[-1].rate, 4))
        row["person_steps"].append(int(records[-1].person.sum()))
        print(arm, seed, row["rates"], row["theta"][-1:], now.unit, flush=True)
        if records[-1].rate < RATE or number == ROUNDS:
            break
        if arm == "cloning":
            now = Taught(str(cloned(records, folder / f"cloned-{number}.safetensors", seed)), None, ALPHA)
            continue
        now = teaching.taught(records, now, folder / f"round-{number}", print)
        assert now.wish is not None
        row["theta"].append([round(float(each), 3) for each in now.wish.theta])
    row["result"] = measured(now.policy)
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
        "way",
        "seed",
        "the person's share, by rounds",
        "their steps in all",
        "of the gain",
        "of the old reward",
    ]
    lines = []
    for key, row in rows.items():
        if key.startswith("takeover/"):
            _, arm, seed = key.split("/")
            rates = ", ".join(f"{rate:.0%}" for rate in row["rates"])
            shares = (f"{row[name]:.0%}" for name in ("gain", "kept"))
            lines.append([arm, seed, rates, f"{sum(row['person_steps']):,}", *shares])
    return markdown(headings, lines)


def main() -> None:
    parser = campaign.parser("wishes", __doc__, ("runs",))
    parser.add_argument("--only", default="", help="how the keys of those rows begin")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds of each")
    options = parser.parse_args()
    wanted: dict[str, Callable[[], Row]] = {}
    for seed in range(options.seeds):
        wanted |= {f"prefer/{name}/{seed}": partial(prefer, options.runs, name, seed) for name in FEATURES}
        wanted |= {f"takeover/{arm}/{seed}": partial(take_over, options.runs, arm, seed) for arm in ARMS}
    campaign.measure(options.ledger, {key: each for key, each in wanted.items() if key.startswith(options.only)})


if __name__ == "__main__":
    campaign.run_main(main)
