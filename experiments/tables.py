"""Write the tables of README and docs from `results/`, so that no number is typed by hand.

python -m experiments.tables            # write
python -m experiments.tables --check    # exit 1 if a table is not what the results say
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import mean

import numpy as np

from experiments import (
    campaign,
    dial,
    few_steps,
    handed_out,
    heavy,
    learning,
    limits,
    metaworld,
    pillar,
    planning,
    real_robot,
    rql,
    wishes,
)
from experiments import found as found_settings
from experiments.campaign import finished_rows
from experiments.ledger import Ledger, Row, group_by
from experiments.llm.__main__ import PROGRAMS
from experiments.pages import Tables, blank_repeats, markdown_table, mean_and_each, update_page
from experiments.paper.results import Results
from experiments.paper.runs import TASKS as PAPERS
from experiments.paper.tables import page_tables
from experiments.readers import table as reader_table
from experiments.statistics import smooth_curve

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def read_rows(name: str) -> list[Row]:
    """Return all lines of a results file, without a check of keys or checksums."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def read_ledger(name: str, suffix: str = "") -> dict[str, Row]:
    """Return by key the rows of successful runs whose keys end with a suffix."""
    return {key: row for key, row in finished_rows(Ledger(RESULTS / name)).items() if key.endswith(suffix)}


def speed() -> str:
    """Return the table of training speed, beside that of the physics alone."""
    headings = ["environment", "ranks", "physics alone", "training, end to end", "share", "slices", "memory a rank"]
    lines = []
    for row in read_rows("speed.jsonl"):
        spread = row["slice_shares"]
        speeds = [f"{row[f'{kind}_steps_per_second']:,.0f}" for kind in ("physics", "training")]
        shares = [f"**{row['share']:.2f}**", f"{spread['min']:.2f} – {spread['max']:.2f}"]
        lines.append([row["env"], str(row["ranks"]), *speeds, *shares, f"{row['memory_mb_a_rank']:,.0f} MB"])
    return markdown_table(headings, lines)


def peers() -> str:
    """Return the table of peers: the median ratio of speeds over the turns, and the quartiles."""
    lines = []
    for row in read_rows("peers.jsonl"):
        ratios = [row[f"{name} is faster by"] for name in ("repolicy", "repolicy, minibatches of 1024")]
        cells = [f"× {middle:.1f} ({low:.1f} – {high:.1f})" for middle, low, high in ratios]
        lines.append([row["contender"], f"{row['steps_per_second']:,.0f}", *cells])
    return markdown_table(["", "steps a second, median", "repolicy is faster by", "with minibatches of 1024"], lines)


def score_cells(runs: list[Row]) -> list[str]:
    """Return means over the last policies: four quantities with the mean action, and the total with sampled actions."""
    formats = {"basic_reward": "{:,.0f}", "addon_reward": "{:,.0f}", "metric": "{:.3f}", "total_reward": "**{:,.0f}**"}
    cells = [form.format(mean(run["last"]["mean"][part][0] for run in runs)) for part, form in formats.items()]
    return [*cells, f"{mean(run['last']['sampled']['total_reward'][0] for run in runs):,.0f}"]


def by_default() -> str:
    """Return three lines per prior: itself, with the paper's weights, and with those that the command line finds."""
    headings = ["prior, wish", "policy", "steps", "old reward", "wish", "metric", "**total**", "total, sampled",
                "seeds"]  # fmt: skip
    rows, lines = read_ledger("heavy.jsonl"), []
    for name in ("halfcheetah_10", "hopper", "ant"):
        task = heavy.TASKS[name]
        policies = {"prior": [rows[f"{name}/prior/0"]]}
        paper_runs = [row for key, row in rows.items() if key.startswith(f"{name}/paper/")]
        policies |= {f"the paper's ω′ {PAPERS[task.prior].omega}": paper_runs}
        policies |= {"**by default**": longest_default_runs(rows, name)}
        for policy, runs in policies.items():
            steps, seeds = (f"{runs[0]['steps'] / 1e6:.0f}M", f"{len(runs)}") if runs[0].get("steps") else ("", "")
            title = f"{task.prior}, {task.addon}" if policy == "prior" else ""
            lines.append([title, policy, steps, *score_cells(runs), seeds])
    return markdown_table(headings, lines)


def longest_default_runs(rows: dict[str, Row], name: str) -> list[Row]:
    """Return the longest runs of a task with the weights that the command line finds."""
    runs = [row for key, row in rows.items() if re.fullmatch(rf"{name}/states(_5e6)?/\d+", key)]
    most_steps = max(run["steps"] for run in runs)
    return [run for run in runs if run["steps"] == most_steps]


def few_steps_table() -> str:
    """Return the table of runs with few steps, beside the longest runs of each task."""
    longest = {name: longest_default_runs(read_ledger("heavy.jsonl"), name) for name in few_steps.NAMES}
    return few_steps.table(read_ledger("few_steps.jsonl"), longest)


def sweeps() -> str:
    """Return a table with a line for each point of each sweep over ω′."""
    headings = ["prior, add-on", "states", "ω′", "basic", "add-on", "total", "total, sampled",
                "KL to the prior a step", ""]  # fmt: skip
    lines, task = [], ""
    for row in read_ledger("sweeps.jsonl").values():
        titles = ["", ""]
        if row["task"] != task:
            task = row["task"]
            titles = [f"{task.removesuffix('_plain')}, {row['addon']}", f"{row['states']:.3g}"]
        columns = [("mean", "basic"), ("mean", "addon"), ("mean", "total"), ("sampled", "total")]
        numbers = [f"{row[action][f'{part}_reward'][0]:,.0f}" for action, part in columns]
        omega = "prior" if row["omega"] is None else f"{row['omega']:g}"
        kl = f"{round(row['kl'], 2) + 0.0:.2f}"  # no -0.00
        lines.append([*titles, omega, *numbers, kl, "knee" if row["knee"] else ""])
    return markdown_table(headings, lines)


def nat_worth() -> str:
    lines = []
    for row in sorted(read_rows("nat_worth.jsonl"), key=lambda row: str(row["key"])):
        cells = [f"{row['alpha']:g}", f"{row.get('std', 1.0):g}", f"**{row['value']:.3f}** ± {row['error']:.3f}"]
        lines.append([row["key"].split()[0], *cells, str(row["episodes"])])
    headings = ["prior", "trained at α", "std of the actions, as a share", "a nat is worth", "episodes"]
    return markdown_table(headings, lines)


def adapters() -> str:
    """Return the table of what ResidualPPO costs in a host, compared with the host's own PPO."""
    lines = []
    for row in read_rows("adapters.jsonl"):
        costs = [row[f"{clock}_overhead"] for clock in ("processor", "clock")]
        cells = [f"{100 * middle:.1f} % ({100 * low:.1f} to {100 * high:.1f})" for middle, low, high in costs]
        lines.append([row["host"], f"{row['processor_seconds']:.2f} s", *cells, str(row["rounds"])])
    headings = ["host", "iteration, processor", "cost, processor: median (quartiles)", "cost, clock", "rounds"]
    return markdown_table(headings, lines)


def large_prior() -> str:
    lines = []
    for row in read_rows("large_prior.jsonl"):
        low, high = row["shares"]
        seconds = ", ".join(f"{part} {value:.2f}" for part, value in row["seconds"].items())
        lines.append([row["env"], f"**{row['share']:.0%}** ({low:.0%} to {high:.0%})", seconds])
    return markdown_table(["environment", "speed, of what physics and networks allow", "seconds"], lines)


def prior_cost() -> str:
    headings, lines = ["prior", "an iteration without it", "with it", "costs", "its states cost", "a dial costs"], []
    for row in read_ledger("prior_cost.jsonl").values():
        without, with_prior = (1000 * row["seconds_an_iteration"][name] for name in ("greedy", "residual"))
        prices = ("overhead", "states_overhead", "dial_overhead")
        costs = [f"{100 * row[name]:.1f} %" if name in row else "–" for name in prices]
        lines.append([row["task"], f"{without:.0f} ms", f"{with_prior:.0f} ms", *costs])
    return markdown_table(headings, lines)


def llm_programs() -> str:
    lines = []
    for name in PROGRAMS:
        runs = read_rows(f"llm/{name}.jsonl")
        minutes = sum(row.get("cpu_seconds", 0.0) for row in runs) / 60
        lines.append([f"`python -m experiments.llm {name}`", str(len(runs)), f"{minutes:.1f}" if minutes else ""])
    return markdown_table(["command", "rows", "CPU minutes"], lines)


def through_hosts() -> str:
    """Return a table with a line per prior, number of steps and trainer: means over seeds, and their range."""
    lines = []
    rows = read_ledger("through_hosts.jsonl").values()
    groups = group_by(rows, lambda run: (run["prior"], int(run["key"].rpartition("/")[2]), run["host"]))
    for (prior, steps, host), runs in sorted(groups.items(), key=lambda item: item[0][:2]):
        nats = [run["nats"] for run in runs]
        basic, addon = (mean(run["mean"][f"{part}_reward"][0] for run in runs) for part in ("basic", "addon"))
        totals = [run["mean"]["total_reward"][0] for run in runs]
        sampled = mean(run["sampled"]["total_reward"][0] for run in runs)
        cells = [f"{min(nats):.2f}–{max(nats):.2f}", f"{basic:,.0f}", f"{addon:,.0f}", f"**{mean(totals):,.0f}**"]
        total_range = f"{min(totals):,.0f}–{max(totals):,.0f}"
        lines.append([f"{prior}, {steps:,} steps", host, *cells, total_range, f"{sampled:,.0f}"])
    head = ["prior", "trainer", "nats", "basic", "add-on", "total", "of seeds", "sampled"]
    return markdown_table(head, blank_repeats(lines))


# Task of `fine_tuning` -> task of `heavy` with the same prior and wish. Go1's prior is a row of `real_robot`.
FINE_TUNED = {"halfcheetah": "halfcheetah_10", "hopper": "hopper"}


def fine_tuning() -> str:
    """Return a table with a line per task and way: the share of the old reward that is left, and the last policy."""
    headings = ["prior", "way", "kept", "mean action: basic", "add-on", "total", "sampled: basic", "total", "steps"]
    lines, rows = [], list(read_ledger("fine_tuning.jsonl", "/1000000").values())
    counts = Counter((row["task"], row["seed"]) for row in rows)
    rows = [row for row in rows if counts[row["task"], row["seed"]] == max(counts.values())]  # seeds with all ways
    rows.sort(key=lambda row: row["task"])
    for (task, way), runs in group_by(rows, lambda row: (row["task"], row["way"])).items():
        kept = f"{mean(map(kept_share, runs)):.0%}"
        columns = [("mean", "basic"), ("mean", "addon"), ("mean", "total"), ("sampled", "basic"), ("sampled", "total")]
        returns = [[run["end"][action][f"{part}_reward"][0] for run in runs] for action, part in columns]
        steps, digits = mean(run["end"]["sampled"]["length"][0] for run in runs), 0 if task in FINE_TUNED else 1
        rewards = [f"{mean(values):,.{digits}f}" for values in returns]
        rewards[2] = mean_and_each(returns[2], digits)  # the total
        lines.append([task, way, kept, *rewards, f"{steps:,.0f}"])
    return markdown_table(headings, blank_repeats(lines))


ALTERNATIVES = {
    "ppo": ("plain fine-tuning (PPO on the wish)", "the old behavior may go"),
    "ppo, a tenth of the learning rate": ("a tenth of the learning rate", "never for this"),
    "ppo, KL to the prior in the loss": ("KL to the prior in the loss", "your library has it and the wish is light"),
    "KL in the reward (tied weights)": ("KL in the reward (`--objective kl`)", "one number must do"),
    "residual": ("**residual** (ω′ and α̂ apart)", "the old behavior counts, and its reward is unknown"),
    "residual, KL budget": ("a KL budget of 2 nats (Hopper: 1)", "you know the distance, not the weight"),
}


def alternatives() -> str:
    """Return the short table of `fine_tuning`, with advice when to take which way."""
    headings = ["way", "HalfCheetah, `hind_leg=10`: kept", "total", "Hopper, `height`: total", "take it when"]
    runs, lines = read_ledger("fine_tuning.jsonl", "/1000000").values(), []
    for way, (name, when) in ALTERNATIVES.items():
        cheetah, hopper = ([run for run in runs if run["task"] == task and run["way"] == way] for task in FINE_TUNED)
        kept = mean(map(kept_share, cheetah))
        totals = [mean(run["end"]["mean"]["total_reward"][0] for run in each) for each in (cheetah, hopper)]
        lines.append([name, f"{kept:.0%}", *(f"{total:,.0f}" for total in totals), when])
    return markdown_table(headings, lines)


def kept_share(row: Row) -> float:
    """Return the basic reward at the end of a run of `fine_tuning`, as a share of the prior's."""
    if row["task"] in FINE_TUNED:
        prior = read_ledger("heavy.jsonl")[f"{FINE_TUNED[row['task']]}/prior/0"]["last"]["sampled"]
        reference = prior["basic_reward"][0]
    else:
        prior = read_ledger("real_robot.jsonl")["prior/sampled"]
        reference = prior["basic"][0]
    if row["curve"] == "basic":  # per step, not per episode
        reference /= prior["length"][0]
    curve = smooth_curve(row)
    return float(curve[~np.isnan(curve)][-1]) / reference


def llm_table(program: str, index: int | None = None) -> Callable[[], str]:
    """Return a function that writes the tables of a program of `experiments.llm`, or one of them."""

    def write() -> str:
        module = import_module(f"experiments.llm.{program}")  # it needs the extra `llm`
        text: str = module.table([*read_ledger(f"llm/{program}.jsonl").values()])
        return text if index is None else text.split("\n\n")[index]

    return write


TABLES: Tables = page_tables(Results(read_ledger("paper.jsonl"))) | {
    "learning": lambda: learning.table(read_ledger("learning.jsonl")),
    "speed": speed,
    "peers": peers,
    "heavy": lambda: heavy.table(read_ledger("heavy.jsonl")),
    "few_steps": few_steps_table,
    "by_default": by_default,
    "alternatives": alternatives,
    "prior": prior_cost,
    "sweeps": sweeps,
    "limits": lambda: limits.table(read_ledger("limits.jsonl")),
    "metaworld": lambda: metaworld.table(read_ledger("metaworld.jsonl")),
    "wishes_compared": lambda: wishes.preferences_table(read_ledger("wishes.jsonl")),
    "wishes_taken_over": lambda: wishes.takeover_table(read_ledger("wishes.jsonl")),
    "pillar": lambda: pillar.table(read_ledger("pillar.jsonl")),
    "planning": lambda: planning.table(read_ledger("planning.jsonl")),
    "planning_init": lambda: planning.customized_table(read_ledger("planning.jsonl")),
    "planning_kept": lambda: planning.distilled_table(read_ledger("planning.jsonl")),
    "planning_omega": lambda: planning.omega_table(read_ledger("planning.jsonl"), "halfcheetah", "ant"),
    "dial": lambda: dial.table([*read_ledger("dial.jsonl").values()]),
    "dial_whole": lambda: dial.summary([*read_ledger("dial.jsonl").values()]),
    "free_dial": lambda: dial.free_table([*read_ledger("dial.jsonl").values()]),
    "nat_worth": nat_worth,
    "adapters": adapters,
    "large_prior": large_prior,
    "readers": lambda: reader_table(read_rows("readers.jsonl")),
    "rql": lambda: rql.table(read_ledger("rql.jsonl")),
    "through_hosts": through_hosts,
    "fine_tuning": fine_tuning,
    "handed_out": lambda: handed_out.table([*read_ledger("handed_out.jsonl").values()]),
    "found": lambda: found_settings.table([*read_ledger("found.jsonl").values()]),
    "real_robot": lambda: real_robot.table([*read_ledger("real_robot.jsonl").values()]),
    "llm_programs": llm_programs,
    "llm_optimum": llm_table("frontier", 0),
    "llm_distance": llm_table("frontier", 1),
    "llm_controls": llm_table("frontier", 2),
    **{f"llm_{name}": llm_table(name) for name in PROGRAMS if name != "frontier"},
}


@campaign.program(check=False)
def main(options: campaign.Options) -> None:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if update_page(path, TABLES, options.check):
            stale.append(path.name)
    print(f"{'stale' if options.check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if options.check and stale else 0)
