"""Measure planners, which need no training: the old return, the wish and the time that they take.

    python -m experiments.planning
    python -m experiments.planning --only ant       # the rows whose keys begin so

The ledger has one row per planner, with its prior on episodes of the same seeds, cut off after `steps` steps. The speed
is one core's, for one robot: let nothing else run.
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
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.learning.training import customize
from repolicy.planning import asking
from repolicy.planning.keeping import save_distilled
from repolicy.planning.planner import Search

DISTILLED_EPISODES, FULL_EPISODE = 20, 1000
PARTS = ("basic_reward", "addon_reward", "total_reward")


@dataclass(frozen=True)
class Plan:
    """A planner's settings and the size of its evaluation. Without weights, they are found as for a user."""

    prior: str
    addon: str
    omega: float | None = None
    states: float | None = None
    value: bool | None = None
    learned: bool = False
    search: dict[str, Any] = field(default_factory=dict)
    episodes: int = 4
    steps: int = 1000
    seed: int = 0
    env: str | None = None


CHEETAH, ANT, HOPPER = ("halfcheetah", "hind_leg=10"), ("ant", "sideways"), ("hopper", "height")
CHEETAH_NAT_WORTH = 0.348  # reward that a nat of HalfCheetah's prior is worth
ANT_STATES = 0.0982  # weight on states that the trials choose for Ant, with a value function
OMEGAS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# The sampler of Residual-MPPI. Its covariance for HalfCheetah, .017, is about half a std of this prior.
PUBLISHED = {"knots": 0, "closed": False, "warm": False, "discount": 0.9}
PUBLISHED_SIZE = {"samples": 10_000, "horizon": 2, "temperature": 5e-5}
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
    **{f"omega/halfcheetah/{omega:g}": Plan(*CHEETAH, omega, CHEETAH_NAT_WORTH, steps=300) for omega in OMEGAS},
    **{
        f"omega/ant/{omega:g}": Plan(*ANT, omega, ANT_STATES, True, search={"horizon": 8}, episodes=3, steps=300)
        for omega in OMEGAS
    },
    "published/halfcheetah/32": Plan(*CHEETAH, 0.1, CHEETAH_NAT_WORTH, search=PUBLISHED, steps=300),
    "published/halfcheetah/10000": Plan(*CHEETAH, 1e-7, 0.0, search=PUBLISHED | PUBLISHED_SIZE, episodes=2, steps=150),
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

DISTILLED = {"kept/halfcheetah/20000": (Plan(*CHEETAH), 20_000), "kept/ant/6400": (Plan(*ANT), 6_400)}
CUSTOMIZED = {"init/halfcheetah/300000": ("kept/halfcheetah/20000", 300_000)}  # starts from the distilled policy


def measure_planner(plan: Plan) -> Row:
    """Evaluate a planner and its prior on episodes of the same seeds."""
    search, start = Search(seed=plan.seed, **plan.search), time.process_time()
    planner = asking.plan(
        plan.prior, plan.addon, env=plan.env, omega=plan.omega, states=plan.states, value=plan.value, search=search,
        learned=plan.learned,
    )  # fmt: skip
    setup_seconds = time.process_time() - start
    row = describe_planner(plan, planner) | {"search": plan.search, "seconds_to_begin": round(setup_seconds, 1)}
    for name, agent in (("before", planner.prior), ("after", planner)):
        seed = EVALUATION_SEED + 100 * plan.seed
        result = evaluate(agent, planner.env, plan.episodes, addon=plan.addon, seed=seed, longest=plan.steps)
        row[name] = summarize(result)
    tally = planner.tally
    row |= {"effective": tally.effective / tally.decisions, "prior_kept": tally.kept / tally.decisions}
    row["decisions_a_second"] = asking.decisions_per_second(planner)
    return row | {"real_time": row["decisions_a_second"] * planner.model.seconds}


def describe_planner(plan: Plan, planner: asking.Planned) -> Row:
    """Return what a row says of a planner, with the weights that were found."""
    score = planner.score
    row: Row = {"prior": plan.prior, "addon": plan.addon, "env": planner.env, "seed": plan.seed, "steps": plan.steps}
    row |= {"omega": score.omega, "states": score.states, "value": score.value is not None}
    return row | {"notes": list(planner.notes)}


def measure_distilled(plan: Plan, labels: int, file: Path) -> Row:
    """Fit a policy to `labels` decisions of a planner, and evaluate it beside its prior."""
    planner = asking.plan(
        plan.prior, plan.addon, omega=plan.omega, states=plan.states, value=plan.value, search=Search(seed=plan.seed)
    )
    start, messages = time.process_time(), list[str]()
    policy = save_distilled(planner, labels, file, messages.append)
    row = describe_planner(plan, planner) | {"labels": labels, "seconds": round(time.process_time() - start, 1)}
    row["notes"] += messages
    for name, agent in (("before", planner.prior), ("after", policy)):
        row[name] = summarize(evaluate(agent, planner.env, DISTILLED_EPISODES, addon=plan.addon, seed=EVALUATION_SEED))
    return row


def measure_customized(plan: Plan, file: Path, steps: int) -> Row:
    """Customize for `steps` steps from the prior, and from a policy that was distilled from a planner."""
    row: Row = {"prior": plan.prior, "addon": plan.addon, "seed": plan.seed, "steps": steps}
    for name, init in (("before", "auto"), ("after", file)):
        out = file.with_name(f"{file.stem}-{name}-{steps}")
        settings = {"steps": steps, "ranks": 1, "seed": plan.seed}
        start = time.perf_counter()
        result = customize(plan.prior, plan.addon, out=out, settings=settings, init=init, resume=True)
        campaign.require_finished(result)
        row[f"seconds_{name}"] = round(time.perf_counter() - start, 1)
        row[name] = summarize(result.evaluate(DISTILLED_EPISODES, seed=EVALUATION_SEED))
        row[f"{name}_sampled"] = summarize(
            result.evaluate(DISTILLED_EPISODES, seed=EVALUATION_SEED, deterministic=False)
        )
    return row


def summarize(result: Evaluation) -> Row:
    """Return means with their standard errors, and the number of episodes that terminated."""
    assert result.terminated is not None
    columns = {name: result.columns[name] for name in ("total_reward", "basic_reward", "addon_reward")}
    parts = {name: [column.mean, column.error] for name, column in columns.items()}
    return {**parts, "episodes": len(result.basic), "ended_early": int(result.terminated.sum())}


def table(rows: dict[str, Row]) -> str:
    """Return a table with one line per planner; the curve of ω′ and distilled policies have tables of their own."""
    headings = ["prior, wish", "planner", "ω′, states", "total: prior", "planned", "episodes", "falls",
                "times real time"]  # fmt: skip
    lines = list[list[str]]()
    for key, row in pool_seeds(rows).items():
        if key.startswith(("omega/", "kept/", "init/")):
            continue
        tree = key.startswith("tree/")
        name = "as published, " if "closed" in row["search"] else "tree, " * tree
        name += "learned model, " * key.startswith("learned/")
        name += "greedy, " * key.startswith("greedy/")
        name += f"K {row['search'].get('samples', 150 if tree else 32):,}"
        weights = f"{row['omega']:.3g}, {row['states']:.3g}" + ", value" * row["value"]
        totals = [with_error(row[when]["total_reward"]) for when in ("before", "after")]
        after = row["after"]
        episodes = f"{after['episodes']}" + f" of {row['steps']} steps" * (row["steps"] < FULL_EPISODE)
        speed = f"{row['real_time']:.2g}" if row["real_time"] else f"{row['decisions_a_second']:.0f} a second"
        task = f"{Path(row['prior']).stem}, {row['addon'].rpartition(':')[2]}"
        cells = [task, name, weights, totals[0], f"**{totals[1]}**", episodes, f"{after['ended_early']}", speed]
        lines.append(cells)
    return markdown_table(headings, blank_repeats(sorted(lines, key=lambda line: line[0])))


def pool_seeds(rows: dict[str, Row]) -> dict[str, Row]:
    """Return the rows, with those of the key `twenty/` that differ only in their seed pooled into one."""

    def pool_key(row: Row) -> str:
        if not row["key"].startswith("twenty/"):
            return str(row["key"])
        return f"{key_without_seed(row)}/{row['omega']:.3g}/{row['states']:.3g}"

    pools = group_by(rows.values(), pool_key)
    return {
        key: pool[0] | {when: pool_summaries([row[when] for row in pool]) for when in ("before", "after")}
        for key, pool in pools.items()
    }


def pool_summaries(summaries: list[Row]) -> Row:
    """Return one summary of several that have the same number of episodes."""
    means, errors = (np.array([row["total_reward"][part] for row in summaries]) for part in range(2))
    sums = {name: sum(row[name] for row in summaries) for name in ("episodes", "ended_early")}
    return {"total_reward": [means.mean(), np.sqrt(np.square(errors).sum()) / len(summaries)]} | sums


def omega_table(rows: dict[str, Row], prior: str, *others: str) -> str:
    """Return a table with one line per ω′ of a prior, and rank correlations with ω′ for it and other priors."""
    lines = list[list[str]]()
    for name in (prior, *others):
        points = [row for key, row in rows.items() if key.startswith(f"omega/{name}/")]
        columns = [[row["after"][part][0] for row in points] for part in PARTS]
        omegas = [row["omega"] for row in points]
        if name == prior:
            for omega, *parts in zip(omegas, *columns, strict=True):
                lines.append([f"{omega:g}", *(f"{part:,.0f}" for part in parts)])
        correlations = [f"{spearman(omegas, column):.2f}" for column in columns[:2]]
        lines.append([f"Spearman, {name}", *correlations, ""])
    return markdown_table(["ω′", "old reward", "wish", "total"], lines)


def distilled_table(rows: dict[str, Row]) -> str:
    """Return a table with one line per policy that was distilled from a planner."""
    headings = ["prior, wish", "decisions", "seconds, one core", "total: prior", "kept", "falls"]
    lines = list[list[str]]()
    for row in (row for key, row in rows.items() if key.startswith("kept/")):
        after = row["after"]
        cells = [f"{row['labels']:,}", f"{row['seconds']:.0f}", with_error(row["before"]["total_reward"])]
        cells += [f"**{with_error(after['total_reward'])}**", f"{after['ended_early']} of {after['episodes']}"]
        lines.append([f"{row['prior']}, {row['addon']}", *cells])
    return markdown_table(headings, lines)


def customized_table(rows: dict[str, Row]) -> str:
    """Return a table with one line per customizing run that started from a distilled policy."""
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
    files = {key: options.runs / f"{key.replace('/', '-')}.safetensors" for key in DISTILLED}
    work = {key: partial(measure_distilled, *plan, files[key]) for key, plan in DISTILLED.items()}
    for key, (start, steps) in CUSTOMIZED.items():
        work[key] = partial(measure_customized, DISTILLED[start][0], files[start], steps)
    return work | {key: partial(measure_planner, settings) for key, settings in PLANS.items()}
