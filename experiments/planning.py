"""Without training: what a planner has of the old return and of the wish, and what it takes.

    python -m experiments.planning
    python -m experiments.planning --only ant       # the rows whose keys begin so

A line of the ledger a planner, and its prior in episodes of the same seeds, cut after so many steps as the row says.
The speed is by the processor's time, whatever else the machine did.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments import campaign
from experiments.ledger import Row, group_by, key_without_seed
from experiments.pages import blank_repeats, markdown_table
from experiments.statistics import spearman
from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.learning.training import customize
from repolicy.planning import asking
from repolicy.planning.keeping import save_distilled
from repolicy.planning.planner import Planner, Search
from repolicy.runs.machine import versions
from repolicy.runs.ranks import one_thread

DECISIONS = 50  # by which the speed is measured, one at a time
KEPT_EPISODES, WHOLE = 20, 1000
PARTS = ("basic_reward", "addon_reward", "total_reward")


@dataclass(frozen=True)
class Plan:
    """A planner, and how much of it is measured. Without weights it is what a user gets by default."""

    prior: str
    addon: str
    omega: float | None = None
    states: float | None = None
    value: bool = False
    learned: bool = False
    search: dict[str, Any] = field(default_factory=dict)
    episodes: int = 4
    steps: int = 1000
    seed: int = 0
    env: str | None = None


CHEETAH, ANT, HOPPER = ("halfcheetah", "hind_leg=10"), ("ant", "sideways"), ("hopper", "height")
WORTH = 0.348  # of a nat of HalfCheetah's prior
LIGHT = 0.0982  # the price on states, with a value, that the trials choose for Ant
OMEGAS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# The sampler of Residual-MPPI. Its covariance for HalfCheetah, .017, is about half a std of this prior.
PUBLISHED = {"knots": 0, "closed": False, "warm": False, "discount": 0.9}
THEIRS = {"samples": 10_000, "horizon": 2, "temperature": 5e-5}
# After `repolicy rql train cartpole --seed 0 --out runs/rql/cartpole-prior-0.safetensors`; the weights are those of
# Residual Q-learning in results-rql.md.
CARTPOLE, TASKS = "runs/rql/cartpole-prior-0.safetensors", "repolicy.rql.tasks"
SWIMMER = "runs/planning/swimmer"  # after `repolicy train Swimmer-v4 --out runs/planning/swimmer`, at alpha 0.0016
PLANS = {
    **{
        f"twenty/{task[0]}/32/{seed}": Plan(*task, episodes=20, seed=seed)
        for task in (CHEETAH, ANT, HOPPER)
        for seed in range(3)
    },
    "twenty/halfcheetah/128/0": Plan(*CHEETAH, search={"samples": 128}, episodes=20),
    **{f"omega/halfcheetah/{omega:g}": Plan(*CHEETAH, omega, WORTH, steps=300) for omega in OMEGAS},
    **{
        f"omega/ant/{omega:g}": Plan(*ANT, omega, LIGHT, True, search={"horizon": 8}, episodes=3, steps=300)
        for omega in OMEGAS
    },
    "published/halfcheetah/32": Plan(*CHEETAH, 0.1, WORTH, search=PUBLISHED, steps=300),
    "published/halfcheetah/10000": Plan(*CHEETAH, 1e-7, 0.0, search=PUBLISHED | THEIRS, episodes=2, steps=150),
    **{
        f"{way}/{name}": Plan(name, f"mppi_{addon}", weight, weight, episodes=2)
        for way, weight in (("wish", None), ("greedy", 0.0))
        for name, addon in (("halfcheetah", "front_foot"), ("hopper", "height"), ("ant", "sideways"))
    },
    **{
        f"{way}/swimmer": Plan(SWIMMER, "mppi_joint", weight, weight, episodes=2)
        for way, weight in (("wish", 0.0016), ("greedy", 0.0))
    },
    "learned/halfcheetah": Plan(*CHEETAH, learned=True),
    "learned/ant": Plan(*ANT, learned=True, episodes=2),
    "learned/hopper": Plan(*HOPPER, learned=True),
    "tree/cartpole": Plan(CARTPOLE, f"{TASKS}:addon", 0.5, 0.0, episodes=4, steps=500, env=f"{TASKS}:CartPole"),
}  # fmt: skip

KEPT = {"kept/halfcheetah/20000": (Plan(*CHEETAH), 20_000), "kept/ant/6400": (Plan(*ANT), 6_400)}
BEGUN = {"init/halfcheetah/300000": ("kept/halfcheetah/20000", 300_000)}  # customizing goes on from what was kept


def measured(plan: Plan) -> Row:
    """Return what a planner earns, beside its prior by the same seeds."""
    search, began = Search(seed=plan.seed, **plan.search), time.process_time()
    planner = asking.plan(
        plan.prior, plan.addon, env=plan.env, omega=plan.omega, states=plan.states, value=plan.value, search=search,
        learned=plan.learned,
    )  # fmt: skip
    to_begin, score = time.process_time() - began, planner.score
    row: Row = {"versions": versions(), "prior": plan.prior, "addon": plan.addon, "env": planner.env, "seed": plan.seed}
    row |= {"omega": score.omega, "states": score.states, "value": score.value is not None, "search": plan.search}
    row |= {"notes": list(planner.notes), "seconds_to_begin": round(to_begin, 1), "steps": plan.steps}
    with one_thread():
        for name, agent in (("before", planner.prior), ("after", planner)):
            seed = EVALUATION_SEED + 100 * plan.seed
            found = evaluate(agent, planner.env, plan.episodes, addon=plan.addon, seed=seed, longest=plan.steps)
            row[name] = summary(found)
        tally = planner.tally
        row |= {"effective": tally.effective / tally.decisions, "prior_kept": tally.kept / tally.decisions}
        seen = np.zeros((1, planner.observation_size), np.float32)
        row["decisions_a_second"] = tally.rate if planner.actions.kind == "discrete" else rate(planner, seen)
    return row | {"real_time": row["decisions_a_second"] * planner.model.seconds}


def kept(plan: Plan, labels: int, file: Path) -> Row:
    """Return what a policy earns that is fitted to so many decisions of a planner, and how long that takes."""
    made = asking.plan(
        plan.prior, plan.addon, omega=plan.omega, states=plan.states, value=plan.value, search=Search(seed=plan.seed)
    )
    began, said = time.process_time(), list[str]()
    policy = save_distilled(made, labels, file, said.append)
    took, score = time.process_time() - began, made.score
    row: Row = {"versions": versions(), "prior": plan.prior, "addon": plan.addon, "env": made.env, "seed": plan.seed}
    row |= {"omega": score.omega, "states": score.states, "value": score.value is not None, "labels": labels}
    row |= {"notes": [*made.notes, *said], "seconds": round(took, 1), "steps": plan.steps}
    for name, agent in (("before", made.prior), ("after", policy)):
        row[name] = summary(evaluate(agent, made.env, KEPT_EPISODES, addon=plan.addon, seed=EVALUATION_SEED))
    return row


def begun(plan: Plan, file: Path, steps: int) -> Row:
    """Return what so many steps of customizing come to from the prior, and from a policy that was kept of a planner."""
    row: Row = {"versions": versions(), "prior": plan.prior, "addon": plan.addon, "seed": plan.seed, "steps": steps}
    for name, init in (("before", "auto"), ("after", file)):
        out = file.with_name(f"{file.stem}-{name}-{steps}")
        settings = {"steps": steps, "ranks": 1, "seed": plan.seed}
        began = time.perf_counter()
        done = campaign.require_finished(
            customize(plan.prior, plan.addon, out=out, settings=settings, init=init, resume=True)
        )
        row[f"seconds_{name}"] = round(time.perf_counter() - began, 1)
        row[name] = summary(done.evaluate(KEPT_EPISODES, seed=EVALUATION_SEED))
        row[f"{name}_sampled"] = summary(done.evaluate(KEPT_EPISODES, seed=EVALUATION_SEED, deterministic=False))
    return row


def summary(found: Evaluation) -> Row:
    """Return means with their standard errors, and how many episodes ended by themselves."""
    assert found.terminated is not None
    columns = {name: found.columns[name] for name in ("total_reward", "basic_reward", "addon_reward")}
    parts = {name: [column.mean, column.error] for name, column in columns.items()}
    return {**parts, "episodes": len(found.basic), "ended_early": int(found.terminated.sum())}


def rate(planner: Planner, observation: np.ndarray) -> float:
    """Return decisions a second of one core, one decision at a time."""
    act = planner.actor(1, 1)
    act(observation)
    began = time.process_time()
    for _ in range(DECISIONS):
        act(observation)
    return DECISIONS / (time.process_time() - began)


def table(rows: dict[str, Row]) -> str:
    """Return a row a planner, but for the curve of ω′ and what was kept."""
    headings = ["prior, wish", "planner", "ω′, states", "total: prior", "planned", "episodes", "falls",
                "times real time"]  # fmt: skip
    lines = list[list[str]]()
    for key, row in pooled(rows).items():
        if key.startswith(("omega/", "kept/", "init/")):
            continue
        tree = key.startswith("tree/")
        how = "as published, " if "closed" in row["search"] else "tree, " * tree
        how += "learned model, " * key.startswith("learned/")
        how += "greedy, " * key.startswith("greedy/")
        how += f"K {row['search'].get('samples', 150 if tree else 32):,}"
        weights = f"{row['omega']:.3g}, {row['states']:.3g}" + ", value" * row["value"]
        totals = [with_error(row[when]["total_reward"]) for when in ("before", "after")]
        after = row["after"]
        episodes = f"{after['episodes']}" + f" of {row['steps']} steps" * (row["steps"] < WHOLE)
        speed = f"{row['real_time']:.2g}" if row["real_time"] else f"{row['decisions_a_second']:.0f} a second"
        first = f"{Path(row['prior']).stem}, {row['addon'].rpartition(':')[2]}"
        cells = [first, how, weights, totals[0], f"**{totals[1]}**", episodes, f"{after['ended_early']}", speed]
        lines.append(cells)
    return markdown_table(headings, blank_repeats(sorted(lines, key=lambda line: line[0])))


def pooled(rows: dict[str, Row]) -> dict[str, Row]:
    """Return the rows, those that differ in their seed alone as one: of as many episodes each."""
    weighed = "{}/{omega:.3g}/{states:.3g}"
    kinds = group_by(
        rows.values(),
        lambda row: weighed.format(key_without_seed(row), **row) if row["key"].startswith("twenty/") else row["key"],
    )
    return {
        kind: found[0] | {when: together([row[when] for row in found]) for when in ("before", "after")}
        for kind, found in kinds.items()
    }


def together(found: list[Row]) -> Row:
    """Return the summary of episodes that were summed up in groups of as many each."""
    means, errors = (np.array([row["total_reward"][part] for row in found]) for part in range(2))
    sums = {name: sum(row[name] for row in found) for name in ("episodes", "ended_early")}
    return {"total_reward": [means.mean(), np.sqrt(np.square(errors).sum()) / len(found)]} | sums


def curve(rows: dict[str, Row], prior: str, *others: str) -> str:
    """Return a row a value of ω′, and how well each part follows its order, with other priors, too."""
    lines = list[list[str]]()
    for each in (prior, *others):
        found = [row for key, row in rows.items() if key.startswith(f"omega/{each}/")]
        columns = [[row["after"][name][0] for row in found] for name in PARTS]
        omegas = [row["omega"] for row in found]
        if each == prior:
            points = zip(omegas, *columns, strict=True)
            lines += [[f"{omega:g}", *(f"{part:,.0f}" for part in parts)] for omega, *parts in points]
        order = [f"{spearman(omegas, column):.2f}" for column in columns[:2]]
        lines.append([f"Spearman, {each}", *order, ""])
    return markdown_table(["ω′", "old reward", "wish", "total"], lines)


def policies(rows: dict[str, Row]) -> str:
    """Return a row a policy that was kept of a planner."""
    headings = ["prior, wish", "decisions", "seconds, one core", "total: prior", "kept", "falls"]
    lines = list[list[str]]()
    for row in (row for key, row in rows.items() if key.startswith("kept/")):
        after = row["after"]
        cells = [f"{row['labels']:,}", f"{row['seconds']:.0f}", with_error(row["before"]["total_reward"])]
        cells += [f"**{with_error(after['total_reward'])}**", f"{after['ended_early']} of {after['episodes']}"]
        lines.append([f"{row['prior']}, {row['addon']}", *cells])
    return markdown_table(headings, lines)


def begun_table(rows: dict[str, Row]) -> str:
    """Return a row a policy from which customizing went on."""
    headings = ["prior, wish", "steps", "total from the prior", "from what was kept", "the same sampled", ""]
    names, lines = ("before", "after", "before_sampled", "after_sampled"), list[list[str]]()
    for row in (row for key, row in rows.items() if key.startswith("init/")):
        before, after, *sampled = [with_error(row[name]["total_reward"]) for name in names]
        lines.append([f"{row['prior']}, {row['addon']}", f"{row['steps']:,}", before, f"**{after}**", *sampled])
    return markdown_table(headings, lines)


def with_error(number: list[float]) -> str:
    return f"{number[0]:,.0f} ± {number[1]:,.0f}"


@campaign.program("ledger", "runs", "only")
def main(options: campaign.Options) -> campaign.Measurements:
    files = {key: options.runs / f"{key.replace('/', '-')}.safetensors" for key in KEPT}
    wanted = {key: partial(kept, *asked, files[key]) for key, asked in KEPT.items()}
    wanted |= {key: partial(begun, KEPT[of][0], files[of], steps) for key, (of, steps) in BEGUN.items()}
    return wanted | {key: partial(measured, plan) for key, plan in PLANS.items()}
