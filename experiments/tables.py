"""Write the tables (and pictures) of README and docs from `results/`: no figure is typed by hand.

python -m experiments.tables            # write
python -m experiments.tables --check    # exit 1 if a table is not what the results say
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
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
from experiments.paper.runs import TASKS as PAPERS
from experiments.readers import table as reader_table
from experiments.statistics import smooth_curve

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def rows(name: str) -> list[Row]:
    """Return the lines of a file that is no ledger of runs, or of one as it stands."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def ledger(name: str, of: str = "") -> dict[str, Row]:
    """Return the rows that ended well, by their keys; of those that end in `of`, so that other lengths stay out."""
    return {key: row for key, row in finished_rows(Ledger(RESULTS / name)).items() if key.endswith(of)}


def speed() -> str:
    headings = ["environment", "ranks", "physics alone", "training, end to end", "share", "slices", "memory a rank",
                "physics, acting, learning, sums"]  # fmt: skip
    lines = []
    for row in rows("speed.jsonl"):
        where = ", ".join(f"{share:.0%}" for share in row.get("training_is", {}).values())
        spread = row["slice_shares"]
        speeds = [f"{row[f'{what}_steps_per_second']:,.0f}" for what in ("physics", "training")]
        shares = [f"**{row['share']:.2f}**", f"{spread['min']:.2f} – {spread['max']:.2f}"]
        lines.append([row["env"], str(row["ranks"]), *speeds, *shares, f"{row['memory_mb_a_rank']:,.0f} MB", where])
    return markdown_table(headings, lines)


def peers() -> str:
    """Return the median of the turns' ratios, and their middle half."""
    lines = []
    for row in rows("peers.jsonl"):
        ratios = [row[f"{mine} is faster by"] for mine in ("repolicy", "repolicy, minibatches of 1024")]
        cells = [f"× {middle:.1f} ({low:.1f} – {high:.1f})" for middle, low, high in ratios]
        lines.append([row["contender"], f"{row['steps_per_second']:,.0f}", *cells])
    return markdown_table(["", "steps a second, median", "repolicy is faster by", "with minibatches of 1024"], lines)


def scores(runs: list[Row]) -> list[str]:
    """Return means of the last policies by the mean action, and the total with sampled ones."""
    ways = {"basic_reward": "{:,.0f}", "addon_reward": "{:,.0f}", "metric": "{:.3f}", "total_reward": "**{:,.0f}**"}
    cells = [form.format(mean(run["last"]["mean"][part][0] for run in runs)) for part, form in ways.items()]
    return [*cells, f"{mean(run['last']['sampled']['total_reward'][0] for run in runs):,.0f}"]


def by_default() -> str:
    """Return three rows a prior: itself, with the paper's weights, and with those that the command line finds."""
    headings = ["prior, wish", "policy", "steps", "old reward", "wish", "metric", "**total**", "total, sampled",
                "seeds"]  # fmt: skip
    found, lines = ledger("heavy.jsonl"), []
    for name in ("halfcheetah_10", "hopper", "ant"):
        task = heavy.TASKS[name]
        usual = by_default_runs(found, name)
        papers = [row for key, row in found.items() if key.startswith(f"{name}/paper/")]
        ours, theirs = "**by default**", f"the paper's ω′ {PAPERS[task.prior].omega}"
        for what, runs in {"prior": [found[f"{name}/prior/0"]], theirs: papers, ours: usual}.items():
            steps, seeds = (f"{runs[0]['steps'] / 1e6:.0f}M", f"{len(runs)}") if runs[0].get("steps") else ("", "")
            first = f"{task.prior}, {task.addon}" if what == "prior" else ""
            lines.append([first, what, steps, *scores(runs), seeds])
    return markdown_table(headings, lines)


def by_default_runs(found: dict[str, Row], name: str) -> list[Row]:
    """Return the longest runs of a task with the weights that the command line finds."""
    usual = [row for key, row in found.items() if re.fullmatch(rf"{name}/states(_5e6)?/\d+", key)]
    return [row for row in usual if row["steps"] == max(each["steps"] for each in usual)]


def few() -> str:
    """Return few steps, and what the longest runs reach."""
    longest = {name: by_default_runs(ledger("heavy.jsonl"), name) for name in few_steps.NAMES}
    return few_steps.table(ledger("few_steps.jsonl"), longest)


def sweeps() -> str:
    headings = ["prior, add-on", "states", "ω′", "basic", "add-on", "total", "total, sampled",
                "KL to the prior a step", ""]  # fmt: skip
    lines, before = [], ""
    for row in ledger("sweeps.jsonl").values():
        begins, before = row["task"] != before, row["task"]
        ways = [("mean", "basic"), ("mean", "addon"), ("mean", "total"), ("sampled", "total")]
        numbers = [f"{row[how][f'{part}_reward'][0]:,.0f}" for how, part in ways]
        first = [f"{row['task'].removesuffix('_plain')}, {row['addon']}", f"{row['states']:.3g}"]
        omega = "prior" if row["omega"] is None else f"{row['omega']:g}"
        kl = f"{round(row['kl'], 2) + 0.0:.2f}"  # no -0.00
        lines.append([*(first if begins else ["", ""]), omega, *numbers, kl, "knee" if row["knee"] else ""])
    return markdown_table(headings, lines)


def nat_worth() -> str:
    lines = []
    for row in sorted(rows("nat_worth.jsonl"), key=lambda row: str(row["key"])):
        cells = [f"{row['alpha']:g}", f"{row.get('std', 1.0):g}", f"**{row['value']:.3f}** ± {row['error']:.3f}"]
        lines.append([row["key"].split()[0], *cells, str(row["episodes"])])
    return markdown_table(
        ["prior", "trained at α", "std of the actions, as a share", "a nat is worth", "episodes"], lines
    )


def adapters() -> str:
    """Return what our class costs in a host's training, beside the host's own PPO."""
    lines = []
    for row in rows("adapters.jsonl"):
        costs = [row[f"{clock}_overhead"] for clock in ("processor", "clock")]
        shown = [f"{100 * middle:.1f} % ({100 * low:.1f} to {100 * high:.1f})" for middle, low, high in costs]
        lines.append([row["host"], f"{row['processor_seconds']:.2f} s", *shown, str(row["rounds"])])
    headings = ["host", "iteration, processor", "cost, processor: median (quartiles)", "cost, clock", "rounds"]
    return markdown_table(headings, lines)


def large_prior() -> str:
    lines = []
    for row in rows("large_prior.jsonl"):
        low, high = row["shares"]
        seconds = ", ".join(f"{part} {value:.2f}" for part, value in row["seconds"].items())
        lines.append([row["env"], f"**{row['share']:.0%}** ({low:.0%} to {high:.0%})", seconds])
    return markdown_table(["environment", "speed, of what physics and networks allow", "seconds"], lines)


def prior() -> str:
    headings, lines = ["prior", "an iteration without it", "with it", "costs", "its states cost", "a dial costs"], []
    for row in ledger("prior_cost.jsonl").values():
        without, with_it = (1000 * row["seconds_an_iteration"][name] for name in ("greedy", "residual"))
        prices = ("overhead", "states_overhead", "dial_overhead")
        costs = [f"{100 * row[name]:.1f} %" if name in row else "–" for name in prices]
        lines.append([row["task"], f"{without:.0f} ms", f"{with_it:.0f} ms", *costs])
    return markdown_table(headings, lines)


def llm_programs() -> str:
    lines = []
    for name in PROGRAMS:
        runs = rows(f"llm/{name}.jsonl")
        minutes = sum(row.get("cpu_seconds", 0.0) for row in runs) / 60
        lines.append([f"`python -m experiments.llm {name}`", str(len(runs)), f"{minutes:.1f}" if minutes else ""])
    return markdown_table(["command", "rows", "CPU minutes"], lines)


def through_hosts() -> str:
    """Return a row a task, its steps and a trainer: means over its seeds, and from which seed to which."""
    lines = []
    rows = ledger("through_hosts.jsonl").values()
    found = group_by(rows, lambda run: (run["prior"], run["key"].rpartition("/")[2], run["host"]))
    for (prior, steps, host), mine in sorted(found.items(), key=lambda item: (item[0][0], int(item[0][1]))):
        nats = [run["nats"] for run in mine]
        parts = [mean(run["mean"][f"{part}_reward"][0] for run in mine) for part in ("basic", "addon", "total")]
        totals = [run["mean"]["total_reward"][0] for run in mine]
        sampled = mean(run["sampled"]["total_reward"][0] for run in mine)
        cells = [f"{min(nats):.2f}–{max(nats):.2f}", *(f"{part:,.0f}" for part in parts[:2]), f"**{parts[2]:,.0f}**"]
        of_seeds = f"{min(totals):,.0f}–{max(totals):,.0f}"
        lines.append([f"{prior}, {int(steps):,} steps", host, *cells, of_seeds, f"{sampled:,.0f}"])
    head = ["prior", "trainer", "nats", "basic", "add-on", "total", "of seeds", "sampled"]
    return markdown_table(head, blank_repeats(lines))


# A task, and that of `heavy` with the same prior and wish. Go1's prior is a row of `real_robot`.
FINE_TUNED = {"halfcheetah": "halfcheetah_10", "hopper": "hopper"}


def fine_tuning() -> str:
    """Return a row a way: how much of the unseen reward is left at the end, and 100 episodes then."""
    headings = ["prior", "way", "kept", "mean action: basic", "add-on", "total", "sampled: basic", "total", "steps"]
    lines, runs = [], list(ledger("fine_tuning.jsonl", "/1000000").values())
    done = Counter((run["task"], run["seed"]) for run in runs)
    runs = [run for run in runs if done[run["task"], run["seed"]] == max(done.values())]  # seeds with all ways
    for task, way in dict.fromkeys((run["task"], run["way"]) for run in sorted(runs, key=lambda run: run["task"])):
        mine = [run for run in runs if (run["task"], run["way"]) == (task, way)]
        kept = f"{mean(map(of_the_prior, mine)):.0%}"
        parts = [("mean", "basic"), ("mean", "addon"), ("mean", "total"), ("sampled", "basic"), ("sampled", "total")]
        ends = [[run["end"][how][f"{part}_reward"][0] for run in mine] for how, part in parts]
        steps, digits = mean(run["end"]["sampled"]["length"][0] for run in mine), 0 if task in FINE_TUNED else 1
        rewards = [f"{mean(end):,.{digits}f}" for end in ends]
        rewards[2] = mean_and_each(ends[2], digits)
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
    """Return those of the ways of `fine_tuning` that people choose from."""
    headings = ["way", "HalfCheetah, `hind_leg=10`: kept", "total", "Hopper, `height`: total", "take it when"]
    runs, lines = ledger("fine_tuning.jsonl", "/1000000").values(), []
    for way, (name, when) in ALTERNATIVES.items():
        cheetah, hopper = ([run for run in runs if run["task"] == task and run["way"] == way] for task in FINE_TUNED)
        kept = mean(map(of_the_prior, cheetah))
        totals = [mean(run["end"]["mean"]["total_reward"][0] for run in each) for each in (cheetah, hopper)]
        lines.append([name, f"{kept:.0%}", *(f"{total:,.0f}" for total in totals), when])
    return markdown_table(headings, lines)


def of_the_prior(row: Row) -> float:
    """Return the old reward at the end of training, as a share of the prior's own."""
    if row["task"] in FINE_TUNED:
        kept = ledger("heavy.jsonl")[f"{FINE_TUNED[row['task']]}/prior/0"]["last"]["sampled"]
        own, length = kept["basic_reward"][0], kept["length"][0]
    else:
        kept = ledger("real_robot.jsonl")["prior/sampled"]
        own, length = kept["basic"][0], kept["length"][0]
    own /= length if row["curve"] == "basic" else 1.0
    curve = smooth_curve(row)
    return float(curve[~np.isnan(curve)][-1]) / own


def written(name: str, part: int | None = None) -> Callable[[], str]:
    """Return what a program wrote beside its results, without the sentence at its top; or one of its tables."""

    def read() -> str:
        _, *parts = (RESULTS / "llm" / f"{name}.md").read_text().strip().split("\n\n")
        return "\n\n".join(parts) if part is None else parts[part]

    return read


TABLES: Tables = {
    "learning": lambda: learning.table(ledger("learning.jsonl")),
    "speed": speed,
    "peers": peers,
    "heavy": lambda: heavy.table(ledger("heavy.jsonl")),
    "few_steps": few,
    "by_default": by_default,
    "alternatives": alternatives,
    "prior": prior,
    "sweeps": sweeps,
    "limits": lambda: limits.table(ledger("limits.jsonl")),
    "metaworld": lambda: metaworld.table(ledger("metaworld.jsonl")),
    "wishes_compared": lambda: wishes.preferences_table(ledger("wishes.jsonl")),
    "wishes_taken_over": lambda: wishes.takeover_table(ledger("wishes.jsonl")),
    "pillar": lambda: pillar.table(ledger("pillar.jsonl")),
    "planning": lambda: planning.table(ledger("planning.jsonl")),
    "planning_init": lambda: planning.begun_table(ledger("planning.jsonl")),
    "planning_kept": lambda: planning.policies(ledger("planning.jsonl")),
    "planning_omega": lambda: planning.curve(ledger("planning.jsonl"), "halfcheetah", "ant"),
    "dial": lambda: dial.table([*ledger("dial.jsonl").values()]),
    "dial_whole": lambda: dial.summary([*ledger("dial.jsonl").values()]),
    "free_dial": lambda: dial.free([*ledger("dial.jsonl").values()]),
    "nat_worth": nat_worth,
    "adapters": adapters,
    "large_prior": large_prior,
    "readers": lambda: reader_table(rows("readers.jsonl")),
    "rql": lambda: rql.table(ledger("rql.jsonl")),
    "through_hosts": through_hosts,
    "fine_tuning": fine_tuning,
    "handed_out": lambda: handed_out.table([*ledger("handed_out.jsonl").values()]),
    "found": lambda: found_settings.table([*ledger("found.jsonl").values()]),
    "real_robot": lambda: real_robot.table([*ledger("real_robot.jsonl").values()]),
    "llm_programs": llm_programs,
    "llm_optimum": written("frontier", 0),
    "llm_distance": written("frontier", 1),
    "llm_controls": written("frontier", 2),
    **{f"llm_{name}": written(name) for name in PROGRAMS if name != "frontier"},
}
PICTURES = ("frontier", "labels")  # of results/llm, which pages show


@campaign.program(check=False)
def main(options: campaign.Options) -> None:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if update_page(path, TABLES, options.check):
            stale.append(path.name)
    for name in PICTURES:
        made, shown = RESULTS / "llm" / f"{name}.png", ROOT / "docs" / "images" / f"llm-{name}.png"
        if shown.read_bytes() != made.read_bytes():
            stale.append(shown.name)
            if not options.check:
                shown.write_bytes(made.read_bytes())
    print(f"{'stale' if options.check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if options.check and stale else 0)
