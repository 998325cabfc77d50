"""A dial that was trained, beside points trained one by one, and beside the two dials that cost no training.

    python -m experiments.dial --tasks halfcheetah hopper --seeds 0
    python -m experiments.dial --tasks halfcheetah --seeds 0 --shuffled     # a control, which must lose
    python -m experiments.dial --tasks halfcheetah --seeds 0 --states       # states that the prior would not be in cost

For each task: one run over a range of ω′ (2.5 times the steps of one point of `experiments.sweeps`), evaluated at the
sweep's values and at twenty others; and the mixture and the weights between the prior and one point. What is in the
ledger is not repeated, and a run that was cut off goes on. With --shuffled, the run over the range is paid by other
positions than those that its network is shown, which then say nothing.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import campaign
from experiments.heavy import worth
from experiments.one import Run as Training
from experiments.one import machine, trained
from repolicy.engine.conditioned import ConditionedWorker
from repolicy.engine.folder import RunFolder
from repolicy.engine.machine import commit, versions
from repolicy.engine.ranks import one_thread
from repolicy.engine.settings import Settings
from repolicy.envs.dialed import placed
from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
from repolicy.envs.rollout import Rollout
from repolicy.many.ledger import Ledger, Row
from repolicy.policies.conditioned import Conditioned
from repolicy.policies.dials import prior_of, turned
from repolicy.policies.file import find_policy, read_policy
from repolicy.policies.policy import Policy
from repolicy.policies.storage import write_json

EPISODES, MANY = 10, 20
STEPS = "2.5e6"
GAINS = "J of prior, alone, dial, and the share of the gain"


@dataclass(frozen=True)
class Task:
    env: str
    addon: str
    alpha: float
    omegas: str  # the range
    end: float  # the omega of the point that the free dials turn to
    settings: Settings  # those that the sweep was trained with


CHEETAH = Settings(initial_std=0.35, envs=128, minibatch=2048, learning_rate=1e-3, gamma=0.9, critic_warmup=0.05)
HOPPER = Settings(envs=32, horizon=128, minibatch=512, learning_rate=5e-4, critic_warmup=0.05)
TASKS = {
    "halfcheetah": Task("HalfCheetah-v4", "hind_leg=10", 0.13472, "0.1..3", 0.17, CHEETAH),
    "hopper": Task("Hopper-v4", "height", 0.001, "0.003..3", 0.003, HOPPER),
}


def main() -> None:
    parser = campaign.parser("dial", __doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--shuffled", action="store_true", help="the control: no free dials, and shuffled positions")
    parser.add_argument("--states", action="store_true", help="no free dials, and the default price of new states")
    parser.add_argument("--show", action="store_true", help="say what the ledger holds, and run nothing")
    options = parser.parse_args()
    ledger, how = Ledger(options.ledger), "shuffled" if options.shuffled else "states" if options.states else "trained"
    if not options.show:
        with ledger.claimed():
            known = {row["key"] for row in ledger.rows()}
            for task in options.tasks:
                for seed in options.seeds:
                    if f"{task}/{how}/{seed}" not in known:
                        ledger.add(trained_dial(task, seed, options.runs, how))
                for free in ("mixture", "weights") if how == "trained" else ():
                    if f"{task}/{free}" not in known:
                        ledger.add(free_dial(task, free, options.runs))
    for row in ledger.rows():
        print(row["key"], json.dumps(compared(row, swept(row["task"]))))


def words(name: str, omega: str, steps: str, seed: int, runs: Path) -> tuple[str, ...]:
    task, settings = TASKS[name], runs / f"{name}.json"
    write_json(settings, task.settings.as_dict())
    asked = ["customize", name, "--env", task.env, "--addon", task.addon, "--omega", omega, "--alpha", f"{task.alpha}"]
    return (*asked, "--steps", steps, "--ranks", "1", "--seed", str(seed), "--settings", str(settings), "--no-report")


@contextmanager
def shuffled() -> Iterator[None]:
    """Meanwhile episodes are paid by other positions than those that the network is shown."""
    shown = ConditionedWorker.asked

    def asked(self: ConditionedWorker, rollout: Rollout) -> Tensor:
        return torch.from_numpy(others(shown(self, rollout).numpy()))

    ConditionedWorker.asked = asked  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConditionedWorker.asked = shown  # type: ignore[method-assign]


def others(places: np.ndarray) -> np.ndarray:
    """For the positions `[T, N, dials]` that episodes are shown, others, drawn in the same way.

    What an episode is shown, and in which environment, seeds its draw: so it keeps its own, also in the next rollout
    and in a run that goes on. The network does not know its environment, so even at the ends of a dial, where many
    episodes are shown the same, it cannot learn what they are paid by.
    """
    flat = places.reshape(-1, places.shape[-1])
    where = np.broadcast_to(np.arange(places.shape[1], dtype=np.uint32)[:, None], (*places.shape[:2], 1))
    seeds = np.concatenate([flat.view(np.uint32), where.reshape(-1, 1)], 1)
    unique, which = np.unique(seeds, axis=0, return_inverse=True)
    shares = np.stack([np.random.default_rng(seed.tolist()).random(places.shape[-1]) for seed in unique])
    return placed(shares)[which.reshape(-1)].reshape(places.shape).astype(np.float32)


def trained_dial(name: str, seed: int, runs: Path, how: str = "trained") -> Row:
    task, key = TASKS[name], f"{name}/{how}/{seed}"
    folder = runs / (f"{name}-{seed}" if how == "trained" else f"{name}-{how}-{seed}")
    asked = words(name, task.omegas, STEPS, seed, runs)
    asked += ("--states", f"{worth(name):.3g}") if how == "states" else ()
    with shuffled() if how == "shuffled" else nullcontext():
        story = trained(Training(key, asked, task.env, task.addon), folder)
    policy = read_policy(find_policy(folder)).policy
    assert isinstance(policy, Conditioned)
    apart = RunFolder(folder).logged()["dial_kl"][-1]
    (dial,) = policy.dials
    values = [row["omega"] for row in swept(name)[1:] if dial.low <= row["omega"] <= dial.high]
    positions = [position(name, folder, policy.at(omega), omega, EPISODES) for omega in values]
    many = [position(name, folder, policy.at(omega), omega, EPISODES // 2, ("mean",)) for omega in dial.spread(MANY)]
    story = {part: story[part] for part in ("command", "request", "steps", "seconds", "steps_per_cpu_second", "curve")}
    row: Row = {"key": key, "task": name, "how": how, "seed": seed} | story
    row |= {"ends_apart": round(apart, 3), "episodes": EPISODES, "positions": positions, "many": many}
    return row | {"versions": versions(), "machine": machine(), "commit": commit()}


def free_dial(name: str, how: str, runs: Path) -> Row:
    """Between the prior and one point; as many positions as the sweep has in the range."""
    task, folder = TASKS[name], runs / f"{name}-end-0"
    asked = Training(f"{name}/end/0", words(name, f"{task.end}", "1e6", 0, runs), task.env, task.addon)
    story = trained(asked, folder)
    saved = read_policy(find_policy(folder))
    prior = prior_of(saved, folder)
    count = len([row for row in swept(name)[1:] if row["omega"] >= float(task.omegas.split("..")[0])])
    positions = []
    for t in np.linspace(0.0, 1.0, count):
        policy = turned(prior, saved.policy, float(t), "mixture" if how == "mixture" else "weights")
        positions.append(position(name, folder, policy, float(f"{t:.4g}"), EPISODES))
    row: Row = {"key": f"{name}/{how}", "task": name, "how": how, "command": story["command"]}
    return row | {"episodes": EPISODES, "positions": positions, "commit": commit()}


def position(
    name: str, folder: Path, policy: Policy, place: float, episodes: int, actions: tuple[str, ...] = ("mean", "sampled")
) -> Row:
    """What a position is worth, with the mean action and with sampled ones."""
    task, prior = TASKS[name], prior_of(read_policy(find_policy(folder)), folder)
    found: Row = {"at": place}
    for action in actions:
        with one_thread():
            result = evaluate(
                policy, task.env, episodes, addon=task.addon, prior=prior,
                stochastic=action == "sampled", seed=EVALUATION_SEED,
            )  # fmt: skip
        found[action] = {quantity: [float(f"{part:.6g}") for part in parts] for quantity, *parts in result.rows()}
    return found


def swept(name: str) -> list[Row]:
    """The prior and the separately trained points, as `experiments.sweeps` left them."""
    return [row for row in Ledger(Path("results/sweeps.jsonl")).rows() if row["task"] == name]


# What it comes to -----------------------------------------------------------------------------------------------------


def objective(found: Row, omega: float, alpha: float) -> float:
    """J(ω′) of an episode with sampled actions: add-on + ω′ · Σ log prior − α̂ · Σ log policy.

    Rows of a sweep keep the KL beside the sampled quantities, those of a dial among them.
    """
    sampled = {name: parts[0] for name, parts in found["sampled"].items()}
    kl = sampled["kl_a_step"] if "kl_a_step" in sampled else found["kl"]
    length, log_prior = sampled["length"], sampled["log_prior_a_step"]
    return float(sampled["addon_reward"] + length * (omega * log_prior - alpha * (log_prior + kl)))


def hypervolume(points: Sequence[tuple[float, float]], worst: tuple[float, float]) -> float:
    """The area that the points dominate, above the worst that one can have of each."""
    area, best = 0.0, worst[1]
    for x, y in sorted(points, reverse=True):
        area += max(0.0, x - worst[0]) * max(0.0, y - best)
        best = max(best, y)
    return area


def ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def of(found: Row, name: str) -> float:
    return float(found["mean"][name][0])


def outcome(found: Row) -> tuple[float, float]:
    return of(found, "basic_reward"), of(found, "addon_reward")


def compared(row: Row, points: list[Row]) -> dict[str, Any]:
    """A row of the ledger beside the sweep: shares of J's gain, hypervolumes, order, and the largest gap."""
    task, (prior, *alone) = TASKS[row["task"]], points
    low = float(task.omegas.split("..")[0])
    alone = [point for point in alone if point["omega"] >= low]
    worst = tuple(min(each) for each in zip(*(outcome(point) for point in [prior, *alone]), strict=True))
    volume = hypervolume([outcome(point) for point in alone], worst)  # type: ignore[arg-type]
    ours = hypervolume([outcome(found) for found in row["positions"]], worst)  # type: ignore[arg-type]
    story: dict[str, Any] = {"hypervolume": round(ours / volume, 4)}
    if "many" not in row:  # a free dial
        return story
    gains = {}
    for point, found in zip(alone, row["positions"], strict=True):
        omega = point["omega"]
        start, theirs, mine = (objective(each, omega, task.alpha) for each in (prior, point, found))
        gains[f"{omega:g}"] = [round(start), round(theirs), round(mine), round((mine - start) / (theirs - start), 3)]
    places = [found["at"] for found in row["many"]]
    basic, addon = zip(*(outcome(found) for found in row["many"]), strict=True)
    steps = np.hypot(*(np.diff(each) / (np.ptp(each) or 1.0) for each in (np.array(basic), np.array(addon))))
    return story | {
        GAINS: gains,
        "spearman with basic": round(spearman(places, basic), 3),
        "spearman with add-on": round(-spearman(places, addon), 3),
        "largest step over mean": round(float(steps.max() / steps.mean()), 2),
        "ends apart": row["ends_apart"],
    }


def table(found: list[Row]) -> str:
    """A line a task and ω′: the point that was trained alone, the mean of the dials there, and each dial's share."""
    lines = [
        "| task | ω′ | basic: alone | dial | add-on: alone | dial | J: prior | alone | dial | share of gain, a seed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        dials = [row for row in found if (row["task"], row["how"]) == (task, "trained")]
        gains: list[dict[str, list[float]]] = [compared(row, swept(task))[GAINS] for row in dials]
        for number, places in enumerate(zip(*(row["positions"] for row in dials), strict=True)):
            name = f"{places[0]['at']:g}"
            (alone,) = [point for point in swept(task) if point["omega"] == places[0]["at"]]
            pairs = [(outcome(alone)[part], np.mean([outcome(each)[part] for each in places])) for part in (0, 1)]
            starts, theirs, mine, shares = zip(*(gain[name] for gain in gains), strict=True)
            numbers = [*pairs[0], *pairs[1], starts[0], theirs[0], np.mean(mine)]
            cells = [task * (number == 0), name, *(f"{value:,.0f}" for value in numbers)]
            lines.append(f"| {' | '.join(cells)} | {', '.join(f'{share:.0%}' for share in shares)} |")
    return "\n".join(lines)


def summary(found: list[Row]) -> str:
    lines = [
        "| task | dial | hypervolume, share of the sweep's | Spearman: basic | add-on | largest step | ends apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: [*TASKS].index(row["task"])):
        told = compared(row, swept(row["task"]))
        name = f"{row['how']}, seed {row['seed']}" if "seed" in row else row["how"]
        cells = [f"{told['hypervolume']:.0%}"]
        cells += [f"{told[each]}" if each in told else "" for each in ("spearman with basic", "spearman with add-on")]
        cells += (
            [f"{told['largest step over mean']} × the mean", f"{told['ends apart']:.0f} nats"]
            if len(told) > 1
            else ["", ""]
        )
        lines.append(f"| {row['task']} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    campaign.run_main(main)
