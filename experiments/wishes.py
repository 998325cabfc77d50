"""Learn wishes from a simulated person: from answers to pairs of clips, and from take-overs.

    python -m experiments.wishes                    # all rows that the ledger lacks
    python -m experiments.wishes --only prefer      # those whose keys begin with prefer

One answer in ten is wrong. The person takes over when the hidden wish was met too badly over the last steps, acts as
the policy that was customized to the hidden wish, and hands back when it is met well. A row has numbers that learning
never uses: the learnt wish's rank correlation with the hidden one, and the learnt policy's share of the possible gain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row
from experiments.pages import blank_repeats, markdown_table
from experiments.statistics import spearman
from repolicy.addons.addon import Addon, combine_addons
from repolicy.addons.wish_file import LearntWish
from repolicy.envs.rollout import Transitions
from repolicy.envs.step import Info, to_env_numbers
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.learning.training import customize
from repolicy.objective import Objective, residual, soft
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, one_thread
from repolicy.priors.opening import open_agent
from repolicy.wishes.learning_loop import ALONE_STEPS, TaughtPolicy, Teaching, best_round, record
from repolicy.wishes.pairs import Pairs, candidates, choose_pairs, fingerprint, learn_from_answers, std_of_reward
from repolicy.wishes.record import Labels, Record


@dataclass(frozen=True)
class Task:
    """A prior, a hidden wish, the weights that customize the prior to it, and the settings of learning."""

    prior: str
    env: str
    hidden: str
    weight: float
    omega: float
    alpha: float
    states: float
    features: str
    last: int  # number of steps over which the person judges how the wish is met
    length: int  # of the windows whose features are compared
    bad: int = 20  # number of steps before a take-over that do not count
    watched: int = 2000  # steps of a round in which the person watches
    alone: int = ALONE_STEPS  # steps of the policy alone
    updates: int = 2
    rql: bool = False  # customized by Residual Q-learning, because its environment is slow

    @property
    def wish(self) -> Addon:
        return combine_addons([self.hidden])

    @property
    def customizing(self) -> Callable[..., Any]:
        return customize_by_rql if self.rql else customize

    @property
    def training(self) -> dict[str, Any]:
        return {} if self.rql else TRAINING


def customize_by_rql(
    prior: str, addon: str, objective: Objective, out: Path, settings: dict[str, Any], *,
    env: str, resume: bool, trust: bool = False, progress: bool = False,
) -> Any:  # fmt: skip
    """Customize by Residual Q-learning, which needs Stable-Baselines3."""
    from repolicy.rql.customizing import customize

    return customize(prior, objective, out, settings, addon=addon, env=env, resume=resume, trust=trust)


def right_lane(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: Info) -> np.ndarray:
    """Return the add-on of `repolicy.rql.tasks:Highway`, from the car's y in the observation."""
    reward: np.ndarray = 0.75 * after[:, 2]
    return reward


CHEETAH = Task("halfcheetah", "HalfCheetah-v4", "hind_leg", 10.0, 0.17, 0.13472, 0.348, "next[2:8]^1", 20, 10)
HOPPER = Task("hopper", "Hopper-v4", "height", 3.0, 0.33, 0.001, 0.33, "next[0:5]", 60, 60)
HIGHWAY = Task(
    "runs/wishes/highway", "repolicy.rql.tasks:Highway", "experiments.wishes:right_lane", 1.0, 0.1, 0.1, 0.0,
    "next[2],next[3]", 5, 5, bad=3, watched=500, alone=1000, updates=1, rql=True,
)  # fmt: skip
TAKEOVERS = {"takeover": CHEETAH, "hopper": HOPPER, "highway": HIGHWAY}  # first part of a key -> task
TRAINING = {"steps": 300_000, "ranks": 1}
ANSWERS, ERROR_RATE, STEPS, LATEST_START, NOISE, POOL = 100, 0.1, 40, 40, 2.0, 300
FEATURES = {"joints": CHEETAH.features, "all": "next^1", "networks": ""}
EPISODES = 20
ROUNDS, TARGET_RATE = 3, 0.05
# Weight of the steps that the person let pass, and whether the prior counts. `true-wish` watches the expert itself.
ARMS = {"mereq": (1.0, True), "no-pseudo-expert": (0.0, True), "no-prior": (1.0, False)}
ARMS |= {"cloning": (1.0, True), "true-wish": (1.0, True)}


def hidden_returns(pairs: Pairs) -> np.ndarray:
    """Return the hidden wish's return of each clip `[P, 2]`."""
    return CHEETAH.wish.reward(Transitions(pairs.observations, pairs.actions, pairs.after, {})).sum(2)


def answer_pairs(pairs: Pairs, random: np.random.Generator) -> np.ndarray:
    """Return the person's answers `[P]`, 1 for left and 0 for right; some are wrong."""
    right = np.greater(*hidden_returns(pairs).T)
    return np.where(random.random(len(right)) < ERROR_RATE, ~right, right).astype(float)


def learn_wish(pairs: list[Pairs], answers: list[np.ndarray], features: str) -> LearntWish:
    by_pair = {(page, p): float(answer) for page, batch in enumerate(answers) for p, answer in enumerate(batch)}
    return learn_from_answers(pairs, [dict(by_pair)], features)


def correlation(wish: LearntWish, fresh: Pairs) -> float:
    """Return Spearman's rank correlation of a wish with the hidden one, over clips."""
    returns = wish(*fresh.steps, {}).reshape(*fresh.after.shape[:3]).sum(2).ravel()
    return round(spearman(returns, hidden_returns(fresh).ravel()), 4)


@cache
def measure(reference: str | Path, task: Task = CHEETAH) -> dict[str, float]:
    """Return the means over episodes of old reward, hidden wish and length, with the mean action."""
    result = evaluate(open_agent(reference).agent, task.env, EPISODES, addon=task.hidden, seed=EVALUATION_SEED)
    assert result.addon is not None
    row = {"basic": round(float(result.basic.mean()), 1), "hidden": round(float(result.addon.mean()), 2)}
    return row | {"length": float(result.lengths.mean())}


def run_customize(addon: str, folder: Path, seed: int, task: Task = CHEETAH) -> Path:
    """Customize the prior in a folder, or resume the run there. Return the folder."""
    arguments = residual(task.omega, task.alpha, task.states), folder, task.training | {"seed": seed}
    task.customizing(task.prior, addon, *arguments, env=task.env, resume=True, progress=False)
    return folder


def customize_to_true_wish(runs: Path, seed: int, task: Task = CHEETAH) -> Path:
    """Customize the prior to the hidden wish. On the highway all seeds share one policy, as its seeds vary a lot."""
    seed = 0 if task.rql else seed
    return run_customize(f"{task.hidden}={task.weight:g}", runs / f"true-{Path(task.prior).name}-{seed}", seed, task)


def measure_preferences(runs: Path, features: str, seed: int) -> Row:
    """Learn wishes from random and from chosen pairs, and customize the prior to one of them."""
    random = np.random.default_rng(seed)
    prior = open_agent(CHEETAH.prior)
    with one_thread():
        source, clips = (prior.agent, fingerprint(prior.path), CHEETAH.env), (STEPS, NOISE, LATEST_START)
        pool = candidates(*source, POOL, *clips, 10_000 * seed)
        fresh = candidates(*source, 200, *clips, 900_000 + seed)
        answers = answer_pairs(pool, random)
        random_pairs = pool.select([*range(ANSWERS)])
        curve: dict[str, list[float]] = {"random": [], "chosen": []}
        for count in range(20, ANSWERS + 1, 20):
            wish = learn_wish([random_pairs.select([*range(count)])], [answers[:count]], FEATURES[features])
            curve["random"].append(correlation(wish, fresh))
        random_wish, asked, known = wish, [random_pairs.select([*range(20)])], [answers[:20]]
        remaining = [*range(20, len(pool.seeds))]
        for _ in range(20, ANSWERS + 1, 20):
            wish = learn_wish(asked, known, FEATURES[features])
            curve["chosen"].append(correlation(wish, fresh))
            rest = pool.select(remaining)
            chosen = choose_pairs(rest, 20, wish)
            indices = [remaining[int(np.flatnonzero(rest.seeds == seed)[0])] for seed in chosen.seeds]
            remaining = [index for index in remaining if index not in indices]
            asked.append(chosen)
            known.append(answers[indices])
        scale = CHEETAH.weight * float(CHEETAH.wish.reward(Transitions(*pool.steps, {})).std())
    row: Row = {"features": FEATURES[features], "answers": ANSWERS, "wrong": ERROR_RATE}
    row |= {"correlation": curve, "prior": measure(CHEETAH.prior), "true": measure(customize_to_true_wish(runs, seed))}
    path = runs / f"wish-{features}-{seed}.safetensors"
    random_wish.write(path)
    weight = scale / std_of_reward([pool], random_wish)
    row["learnt"] = measure(run_customize(f"{path}={weight!r}", runs / f"prefer-{features}-{seed}", seed))
    return row | relative_gains(row["learnt"], row)


def relative_gains(measured: dict[str, float], row: Row) -> Row:
    """Return a policy's gain in the hidden wish and its old reward, relative to customizing to the hidden wish."""
    gain = (measured["hidden"] - row["prior"]["hidden"]) / (row["true"]["hidden"] - row["prior"]["hidden"])
    return {"gain": round(gain, 3), "kept": round(measured["basic"] / row["true"]["basic"], 3)}


class Person:
    """A person who acts when the hidden wish is met worse than `low`, until it is met better than `high`."""

    def __init__(self, policy: Policy, task: Task, low: float, high: float, seed: int) -> None:
        self.policy, self.task, self.low, self.high = policy, task, low, high
        self.rewards: list[float] = []  # hidden rewards of the last steps
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, observation: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        act = self.policy.actor(1, 1, self.generator)
        action = self.policy.to_environment(act(observation.astype(np.float32)[None]))
        return to_env_numbers(action, self.policy.actions)[0]

    def wants(self, observation: np.ndarray, proposed: np.ndarray, acts: bool) -> bool:
        """Return whether the person takes over or, if `acts`, goes on acting."""
        transition = Transitions(observation[None], proposed[None], observation[None], {})
        self.rewards = [*self.rewards, float(self.task.wish.reward(transition)[0])][-self.task.last :]
        mean = float(np.mean(self.rewards))
        return len(self.rewards) == self.task.last and mean < (self.high if acts else self.low)


def clone_behavior(records: list[Record], path: Path, seed: int, task: Task) -> Path:
    """Fine-tune the prior by maximum likelihood of the person's actions, and write that policy."""
    prior = open_agent(task.prior).agent
    assert isinstance(prior, Policy)
    policy = prior.reinitialized()
    policy.load_state_dict(prior.state_dict())
    policy.requires_grad_(True)
    joined = Record.joined([*records])
    observations, actions = (torch.from_numpy(each[joined.person]) for each in (joined.observation, joined.action))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(list(policy.network.parameters()), 3e-4)
    for _ in range(2000):
        batch = torch.randint(len(observations), (256,), generator=generator)
        loss = -policy(observations[batch]).log_prob(actions[batch]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_policy(path, policy.requires_grad_(False), {"request": {"env": task.env}})
    return path


def measure_takeovers(runs: Path, arm: str, seed: int, task: Task) -> Row:
    """Alternate watching and learning; return the rates of take-overs and the best policy's evaluation."""
    passed, with_prior = ARMS[arm]
    if task.rql:
        from repolicy.rql.customizing import train

        train(task.env, soft(task.alpha), task.prior, {"seed": 0}, resume=True)
    row: Row = {"features": task.features, "prior": measure(task.prior, task)}
    expert = customize_to_true_wish(runs, seed, task)
    row["true"] = measure(expert, task)
    before, after = (row[name]["hidden"] / row[name]["length"] for name in ("prior", "true"))
    low, high = (before + share * (after - before) for share in (0.5, 0.75))
    policy = open_agent(expert).agent
    assert isinstance(policy, Policy)
    folder, records = runs / f"{arm}-{Path(task.prior).name}-{seed}", list[Record]()
    omega, states = (task.omega, task.states) if with_prior else (0.0, 0.0)
    teaching = Teaching(
        task.prior, task.env, task.features, omega, task.alpha, states, Labels(task.bad, passed=passed), task.length,
        task.training | {"seed": seed}, seed, updates=task.updates, alone_steps=task.alone,
        customizing=task.customizing,
    )  # fmt: skip
    policies = [teaching.untaught if arm != "true-wish" else TaughtPolicy(str(expert), None, task.alpha)]
    row["updates"], row["rates"], row["person_steps"], row["theta"] = teaching.updates, [], [], []
    for number in range(ROUNDS + 1):
        person = Person(policy, task, low, high, seed)
        with one_thread():
            file, current = folder / f"record-{number}.jsonl", policies[-1]
            file.unlink(missing_ok=True)
            agent = open_agent(current.policy)
            records.append(record(agent, task.env, file, task.watched, person, seed=100 * seed + number))
        row["rates"].append(round(records[-1].rate, 4))
        row["person_steps"].append(int(records[-1].person.sum()))
        print(arm, seed, row["rates"], row["theta"][-1:], current.unit, flush=True)
        best = best_round(row["rates"])
        if records[-1].rate < TARGET_RATE or number == ROUNDS or best is None or arm == "true-wish":
            break
        if arm == "cloning":
            path = clone_behavior(records, folder / f"cloned-{number}.safetensors", seed, task)
            policies.append(TaughtPolicy(str(path), None, task.alpha))
            continue
        others = [each for place, each in enumerate(records) if place != best]
        policies.append(teaching.taught([*others, records[best]], policies[best], folder / f"round-{number}", print))
        wish = policies[-1].wish
        assert wish is not None
        row["theta"].append([round(float(each), 3) for each in wish.theta])
    row["result"] = measure(policies[int(np.argmin(row["rates"]))].policy, task)
    return row | relative_gains(row["result"], row)


SHARES = ("of the gain", "of the old reward")


def preferences_table(rows: dict[str, Row]) -> str:
    """Return a table with one line per kind of features: means over seeds."""
    headings = ["features", "seeds", "rank correlation, random pairs", "chosen pairs", *SHARES]
    lines = []
    for name, features in FEATURES.items():
        runs = [row for key, row in rows.items() if key.startswith(f"prefer/{name}/")]
        if runs:
            last = [[row["correlation"][kind][-1] for row in runs] for kind in ("random", "chosen")]
            ranges = ["–".join(f"{value:.2f}" for value in sorted({min(seeds), max(seeds)})) for seeds in last]
            shares = (f"{np.mean([row[key] for row in runs]):.0%}" for key in ("gain", "kept"))
            lines.append([f"`{features}`" if features else "networks", str(len(runs)), *ranges, *shares])
    return markdown_table(headings, lines)


def takeover_table(rows: dict[str, Row]) -> str:
    """Return a table with one line per prior, way of learning and seed."""
    headings = ["prior", "way", "seed", "the person's share, by rounds", "their steps in all", *SHARES]
    lines = []
    for key, row in sorted(rows.items()):
        kind, arm, seed = key.split("/")
        if kind in TAKEOVERS:
            rates = ", ".join(f"{rate:.0%}" for rate in row["rates"])
            shares = (f"{row[name]:.0%}" for name in ("gain", "kept"))
            lines.append([Path(TAKEOVERS[kind].prior).name, arm, seed, rates, f"{sum(row['person_steps']):,}", *shares])
    return markdown_table(headings, blank_repeats(lines))


@campaign.program("ledger", "runs", "only", seeds=3)
def main(options: campaign.Options) -> campaign.Measurements:
    work: campaign.Measurements = {}
    for seed in range(options.seeds):
        work |= {f"prefer/{name}/{seed}": partial(measure_preferences, options.runs, name, seed) for name in FEATURES}
        for kind, task in TAKEOVERS.items():
            if kind != "highway" or options.only != [""]:  # its simulator is slow: only if it is named
                for arm in ARMS:
                    work[f"{kind}/{arm}/{seed}"] = partial(measure_takeovers, options.runs, arm, seed, task)
    return work
