"""Compare a trained dial with points that are trained one by one, and with the two dials that need no training.

    python -m experiments.dial --tasks halfcheetah hopper --seeds 0 1 2
    python -m experiments.dial --tasks halfcheetah --seeds 0 --shuffled     # a control, which must lose

For each task, one run covers a range of ω′ with the default settings. It is evaluated at the values of
`experiments.sweeps` and at twenty others. The dials without training mix the prior and the sweep's first point, or
interpolate their weights. Missing sweeps are made. With --shuffled, rewards use other positions than the network sees.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from experiments import campaign, sweeps
from experiments.episodes import play_episodes
from experiments.ledger import Ledger, Row
from experiments.one import Run as Training
from experiments.one import train_run
from experiments.pages import blank_repeats, markdown_table
from experiments.statistics import spearman
from repolicy.addons.addon import combine_addons
from repolicy.envs.rollout import Rollout
from repolicy.envs.wrapped import positions_of
from repolicy.learning.terms import DialedTerms
from repolicy.objective import Objective, reformulated
from repolicy.policies.density import Density
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import Policy
from repolicy.priors.dials import interpolate_policies
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.runs.folder import RunFolder

EPISODES, FINE_POSITIONS, ACTIONS = 20, 20, ("mean", "sampled")
STEPS = {"trained": "2.5e6", "longer": "5e6", "shuffled": "2.5e6"}


@dataclass(frozen=True)
class Task:
    env: str
    addon: str
    low: float  # smallest ω′ of the range
    high: float
    omegas: tuple[float, ...]  # the sweep's values in the range


def make_task(name: str, env: str, low: float, high: float) -> Task:
    sweep = sweeps.SWEEPS[name]
    omegas = tuple(omega for each in sweep.omegas.split() if low <= (omega := float(each)) <= high)
    return Task(env, sweep.addon, low, high, omegas)


TASKS = {
    "halfcheetah": make_task("halfcheetah", "HalfCheetah-v4", 0.1, 3.0),
    "hopper": make_task("hopper", "Hopper-v4", 0.003, 3.0),
}


def sweep_point(swept: Path, omega: float) -> RunFolder:
    """Return the folder of a point of the sweep."""
    return RunFolder(swept / f"omega-{omega:.12g}")


def measure_points(name: str, swept: Path) -> Row:
    """Measure the prior, and the points that were trained one by one."""
    task = TASKS[name]
    first, request = read_policy(sweep_point(swept, task.low).policy), sweep_point(swept, task.low).load_request()
    assert first.prior is not None
    row: Row = {"task": name, "how": "alone", "episodes": EPISODES, "objective": request.objective.as_dict()}
    row |= {"prior": measure_position(name, first.prior, first.prior, first.density), "positions": []}
    for omega in task.omegas:
        saved = read_policy(sweep_point(swept, omega).policy)
        row["positions"].append({"at": omega} | measure_position(name, saved.policy, saved.prior, saved.density))
    return row


def measure_free_dial(name: str, how: str, swept: Path) -> Row:
    """Measure a dial without training between the prior and the sweep's first point, at as many positions."""
    task = TASKS[name]
    end = read_policy(sweep_point(swept, task.low).policy)
    assert end.prior is not None
    row: Row = {"task": name, "how": how, "episodes": EPISODES, "positions": []}
    for t in np.linspace(0.0, 1.0, len(task.omegas)):
        policy = interpolate_policies(end.prior, end.policy, float(t), "mixture" if how == "mixture" else "weights")
        row["positions"].append({"at": float(f"{t:.4g}")} | measure_position(name, policy, end.prior, end.density))
    return row


def measure_trained_dial(name: str, seed: int, runs: Path, how: str) -> Row:
    """Train a dial, and measure it at the sweep's values of ω′ and at many positions."""
    task, key = TASKS[name], f"{name}/{how}/{seed}"
    folder = runs / key.replace("/", "-")
    words = f"customize {name} --addon {task.addon} --omega {task.low:g}..{task.high:g} --steps {STEPS[how]} --ranks 1"
    arguments = (*words.split(), "--seed", str(seed), "--no-report")
    with shuffled_rewards() if how == "shuffled" else nullcontext():
        training = train_run(Training(key, arguments, task.env, task.addon), folder)
    saved = read_policy(find_policy(folder))
    policy = saved.policy
    assert isinstance(policy, ConditionedPolicy)
    (dial,) = policy.dials
    row: Row = {"task": name, "how": how, "seed": seed}
    row |= {
        part: training[part] for part in ("command", "request", "steps", "seconds", "steps_per_cpu_second", "curve")
    }
    row |= {"ends_apart": round(RunFolder(folder).read_metrics()["dial_kl"][-1], 3), "episodes": EPISODES}
    row["positions"] = [
        {"at": omega} | measure_position(name, policy.at(omega), saved.prior, saved.density) for omega in task.omegas
    ]
    row["many"] = [
        {"at": omega} | measure_position(name, policy.at(omega), saved.prior, None, ("mean",))
        for omega in dial.spread(FINE_POSITIONS)
    ]
    return row


@contextmanager
def shuffled_rewards() -> Iterator[None]:
    """Let training compute rewards with other dial positions than those in the network's input."""
    original = DialedTerms.dial_places

    def dial_places(self: DialedTerms, rollout: Rollout) -> Tensor:
        return torch.from_numpy(other_positions(original(self, rollout).numpy()))

    DialedTerms.dial_places = dial_places  # type: ignore[method-assign]
    try:
        yield
    finally:
        DialedTerms.dial_places = original  # type: ignore[method-assign]


def other_positions(places: np.ndarray) -> np.ndarray:
    """Return random positions in place of the network's inputs `[T, N, dials]`, from the same distribution.

    The input and the environment's index seed the draw. So an episode keeps its position, also in a resumed run, and
    episodes with equal inputs get different positions, which the network cannot learn.
    """
    flat = places.reshape(-1, places.shape[-1])
    env_index = np.broadcast_to(np.arange(places.shape[1], dtype=np.uint32)[:, None], (*places.shape[:2], 1))
    seeds = np.concatenate([flat.view(np.uint32), env_index.reshape(-1, 1)], 1)
    unique, inverse = np.unique(seeds, axis=0, return_inverse=True)
    shares = np.stack([np.random.default_rng(seed.tolist()).random(places.shape[-1]) for seed in unique])
    return positions_of(shares)[inverse.reshape(-1)].reshape(places.shape).astype(np.float32)


def measure_position(
    name: str, policy: Policy, prior: Policy | None, density: Density | None, actions: tuple[str, ...] = ACTIONS
) -> Row:
    """Evaluate a policy with each kind of action; return the means over episodes of the objective's parts."""
    task, row = TASKS[name], Row()
    settings: dict[str, Any] = {"addon": combine_addons([task.addon]), "prior": prior, "density": density}
    for action in actions:
        episodes = play_episodes(policy, task.env, EPISODES, sampled=action == "sampled", **settings)
        parts = ("basic", "addon", "lengths", "log_prior", "log_policy", "familiarity")
        known = {part: getattr(episodes, part) for part in parts if getattr(episodes, part) is not None}
        row[action] = {part: float(f"{values.mean():.6g}") for part, values in known.items()}
    return row


def objective(measured: Row, request: dict[str, Any], omega: float) -> float:
    """Return the mean objective J(ω′) of an episode with sampled actions, which training maximizes."""
    addon, prior, policy, states = map(measured["sampled"].get, ("addon", "log_prior", "log_policy", "familiarity"))
    return float(reformulated(Objective(**request | {"omega": omega}), addon, prior, policy, states).total)


def hypervolume(points: Sequence[tuple[float, float]], worst: tuple[float, float]) -> float:
    """Return the area that the points dominate, above the worst value of each return."""
    area, best = 0.0, worst[1]
    for x, y in sorted(points, reverse=True):
        area += max(0.0, x - worst[0]) * max(0.0, y - best)
        best = max(best, y)
    return area


def mean_returns(measured: Row) -> tuple[float, float]:
    return float(measured["mean"]["basic"]), float(measured["mean"]["addon"])


def hypervolume_share(row: Row, points: Row) -> float:
    """Return a dial's hypervolume as a share of that of the points trained one by one."""
    worst = tuple(min(each) for each in zip(*map(mean_returns, [points["prior"], *points["positions"]]), strict=True))
    ours, theirs = (hypervolume([*map(mean_returns, each["positions"])], worst) for each in (row, points))  # type: ignore[arg-type]
    return ours / theirs


def turning_cells(row: Row) -> list[str]:
    """Return a dial's rank correlations over its many positions, its largest step, and the KL between its ends."""
    omegas = [found["at"] for found in row["many"]]
    basic, addon = map(np.array, zip(*map(mean_returns, row["many"]), strict=True))
    steps = np.hypot(*(np.diff(each) / (np.ptp(each) or 1.0) for each in (basic, addon)))
    order = [f"{spearman(omegas, basic):.3f}", f"{-spearman(omegas, addon):.3f}"]
    return [*order, f"{steps.max() / steps.mean():.1f} × the mean", f"{row['ends_apart']:.2g} nats"]


def table(found: list[Row]) -> str:
    """Return a line per task and ω′: the point trained alone, the dials' mean, and each dial's share of the gain."""
    headings = ["task", "ω′", "basic: alone", "dial", "add-on: alone", "dial", "J: prior", "alone", "dial",
                "share of gain, a seed", "with 5M steps"]  # fmt: skip
    lines = []
    for points in (row for row in found if row["how"] == "alone"):
        of_task = [row for row in found if row["task"] == points["task"]]
        dials, longer = ([row for row in of_task if row["how"] == how] for how in ("trained", "longer"))
        for number, one in enumerate(points["positions"] if dials else ()):
            value = partial(objective, request=points["objective"], omega=one["at"])
            start, alone = value(points["prior"]), value(one)
            positions = [row["positions"][number] for row in dials]
            pairs = zip(mean_returns(one), np.mean([*map(mean_returns, positions)], axis=0), strict=True)
            numbers = [*chain(*pairs), start, alone, np.mean([*map(value, positions)])]
            shares = [
                [f"{(value(row['positions'][number]) - start) / (alone - start):.0%}" for row in rows]
                for rows in (dials, longer)
            ]
            more = [f"seed {row['seed']}: {share}" for row, share in zip(longer, shares[1], strict=True)]
            cells = [points["task"] * (number == 0), f"{one['at']:g}", *(f"{each:,.0f}" for each in numbers)]
            lines.append([*cells, ", ".join(shares[0]), ", ".join(more)])
    return markdown_table(headings, lines)


def summary(found: list[Row]) -> str:
    """Return a table with one line per dial: its hypervolume, and how evenly it turns."""
    headings = ["task", "dial", "hypervolume, share of the sweep's", "Spearman: basic", "add-on", "largest step",
                "ends apart"]  # fmt: skip
    lines = []
    for points in (row for row in found if row["how"] == "alone"):
        for row in found:
            if row["task"] == points["task"] and row["how"] != "alone":
                name = f"{row['how']}, seed {row['seed']}" if "seed" in row else row["how"]
                more = turning_cells(row) if "many" in row else [""] * 4
                lines.append([row["task"], name, f"{hypervolume_share(row, points):.0%}", *more])
    return markdown_table(headings, blank_repeats(lines))


def free_table(found: list[Row]) -> str:
    """Return a table of the dials without training: returns of the mean action, and KL to the prior."""
    parts = ("old reward", "wish", "drift, nats a step")
    lines = []
    for task in dict.fromkeys(row["task"] for row in found):
        ways = [row["positions"] for how in ("mixture", "weights") for row in found if row["key"] == f"{task}/{how}"]
        for number, places in enumerate(zip(*ways, strict=True)):
            cells = [task * (number == 0), f"{places[0]['at']:g}"]
            for place in places:
                acts = place["sampled"]
                drift = (acts["log_policy"] - acts["log_prior"]) / acts["lengths"]
                cells += [*(f"{value:,.0f}" for value in mean_returns(place)), f"{round(drift, 2) + 0.0:.2f}"]
            lines.append(cells)
    return markdown_table(["task", "t", *(f"{how}: {part}" for how in ("mixture", "weights") for part in parts)], lines)


def draw(found: list[Row], path: Path) -> None:
    """Draw twenty positions of each trained dial, and the points that were trained one by one."""
    tasks = [row for row in found if row["how"] == "alone"]
    figure, axes = plt.subplots(1, len(tasks), figsize=(6 * len(tasks), 4.2), squeeze=False)
    for points, axis in zip(tasks, axes[0], strict=True):
        dials = [row for row in found if (row["task"], row["how"]) == (points["task"], "trained")]
        for row in dials:
            basic, addon = zip(*map(mean_returns, row["many"]), strict=True)
            label = "a dial, twenty positions" if row is dials[0] else None
            axis.plot(basic, addon, ".-", color="#0b6e99", linewidth=1, label=label)
        basic, addon = zip(*map(mean_returns, points["positions"]), strict=True)
        axis.plot(basic, addon, "o", color="#b5532a", fillstyle="none", label="trained alone")
        for each in points["positions"]:
            place = {"textcoords": "offset points", "xytext": (-22, -10)}
            axis.annotate(f"{each['at']:g}", mean_returns(each), fontsize=8, **place)
        axis.plot(*mean_returns(points["prior"]), "s", color="#777777", label="prior")
        task = TASKS[points["task"]]
        axis.set(xlabel="old reward, of an episode (never read)", ylabel=f"the wish: {task.addon}")
        axis.set_title(f"{points['task']}, ω′ from {task.low:g} to {task.high:g}", loc="left")
        axis.legend(frameon=False, loc="lower left")
        axis.margins(0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


@campaign.program(
    "ledger", "runs", "jobs", tasks=[*TASKS], seeds=(0, 1, 2), shuffled=False, picture=Path("docs/images/dial.png"),
    longer=False,
)  # fmt: skip
def main(options: campaign.Options) -> None:
    how = "shuffled" if options.shuffled else "longer" if options.longer else "trained"
    for name in options.tasks:
        swept = sweeps.make_sweep(name, options.runs.parent / "sweeps", options.jobs)
        wanted = {f"{name}/alone": partial(measure_points, name, swept)}
        wanted |= {f"{name}/{free}": partial(measure_free_dial, name, free, swept) for free in ("mixture", "weights")}
        dials = {
            f"{name}/{how}/{seed}": partial(measure_trained_dial, name, seed, options.runs, how)
            for seed in options.seeds
        }
        campaign.measure_missing(options.ledger, wanted | dials)
    rows = Ledger(options.ledger).rows()
    print(summary(rows))
    draw(rows, options.picture)
