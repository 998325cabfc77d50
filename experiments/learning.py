"""Train the priors' tasks without a prior, over seeds, and evaluate them. The ledger has one row per run.

    python -m experiments.learning --jobs 2
    python -m experiments.learning --ship       # turn the best seeds in the ledger into the shipped priors

Runs in the ledger are not repeated; an interrupted run resumes from its last checkpoint.
"""

import re
from pathlib import Path

from experiments import campaign
from experiments.ledger import Ledger, Row, group_by, key_without_seed
from experiments.one import Run
from experiments.pages import markdown_table, mean_and_each
from repolicy.policies.file import save_policy
from repolicy.priors.finding import SHIPPED_FOLDER
from repolicy.priors.opening import read_policy

VARIED = "HalfCheetah-v4?reset_noise_scale=0.3"  # from varied starts, for a prior that knows how to get up
SHIPPED = {VARIED: "halfcheetah", "Hopper-v4": "hopper", "Ant-v4": "ant"}
WALKER = "--objective soft --alpha 0.001 --steps 3e6"
SWIMMER = "--objective soft --alpha 0.0001 --steps 1e6"
USUAL = "--learning-rate 3e-4 --envs 64 --n-steps 64 --minibatch 1024"
AS_HOPPER = "--learning-rate 5e-4 --envs 32 --n-steps 128 --minibatch 512"
LONG = "--gamma 0.9999 --gae-lambda 0.98 --learning-rate 6e-4 --envs 8 --n-steps 512 --minibatch 256"
RUNS = {  # environment, and a name for its settings if several are tried -> options
    "HalfCheetah-v4": "--objective soft --alpha 0.13472 --steps 3e6",
    VARIED: "--objective soft --alpha 0.13472 --steps 3e6",
    "Hopper-v4": "--objective soft --alpha 0.001 --steps 3e6",
    "Ant-v4": "--objective soft --alpha 0.0001 --steps 3e6",
    "CartPole-v1": "--objective no_entropy",
    "Pendulum-v1": "--objective no_entropy",
    # Candidates for the rows of Walker2d and Swimmer in the table of settings.
    "Walker2d-v4/usual": f"{WALKER} {USUAL}",
    "Walker2d-v4/as_hopper": f"{WALKER} {AS_HOPPER}",
    "Walker2d-v4/narrow": f"{WALKER} {AS_HOPPER} --initial-std 0.35",
    "Swimmer-v4/gamma_0.99": f"{SWIMMER} {USUAL} --gae-lambda 0.95 --gamma 0.99",
    "Swimmer-v4/gamma_0.999": f"{SWIMMER} {USUAL} --gae-lambda 0.95 --gamma 0.999",
    "Swimmer-v4/gamma_0.9999": f"{SWIMMER} {USUAL} --gae-lambda 0.95 --gamma 0.9999",
    "Swimmer-v4/long": f"{SWIMMER} {LONG}",
}


def make_run(name: str, seed: int) -> Run:
    """Return a run of an entry of `RUNS`, evaluated in the environment without its options."""
    env = name.partition("/")[0]
    words = ("train", env, *RUNS[name].split(), "--seed", str(seed), "--ranks", "1")
    return Run(f"{name}/{seed}", words, env.partition("?")[0])


def table(runs_by_key: dict[str, Row]) -> str:
    """Return a table with one line per environment: the mean over seeds, and each seed."""
    lines = list[list[str]]()
    by_seed = sorted(runs_by_key.values(), key=lambda row: row["key"].rpartition("/")[2])
    for env, runs in group_by(by_seed, key_without_seed).items():
        returns = [[row["last"][action]["basic_reward"][0] for row in runs] for action in ("mean", "sampled")]
        cells = map(mean_and_each, returns)
        options = re.sub(r"^repolicy train \S+ | --seed \d+| --ranks 1", "", runs[0]["command"])
        lines.append([env, str(len(runs)), *cells, f"`{options}`"])
    return markdown_table(["environment", "seeds", "mean action", "sampled", "options"], lines)


def ship_best(found: dict[str, Row], runs: Path) -> None:
    """Write the best seed's policy of each environment as a shipped prior, with its scores on its card."""
    for env, name in SHIPPED.items():
        candidates = group_by(found.values(), key_without_seed)[env]
        row = max(candidates, key=lambda row: row["best"]["mean"]["basic_reward"][0])
        seed, best = int(row["key"].rpartition("/")[2]), row["best"]
        saved = read_policy(runs / make_run(env, seed).folder / "policy.safetensors")
        scores = {"episodes": 100, "mean action": best["mean"]["basic_reward"]}
        scores |= {"sampled": best["sampled"]["basic_reward"]}
        request = saved.card["request"] | {"env": env.partition("?")[0]}  # without the options of training
        card = saved.card | {"name": name, "request": request, "command": row["command"], "scores": scores}
        save_policy(SHIPPED_FOLDER / f"{name}.safetensors", saved.policy, card)


@campaign.program("ledger", "runs", "jobs", "ray", seeds=3, only=[*RUNS], ship=False)
def main(options: campaign.Options) -> list[Run]:
    if options.ship:
        ship_best(campaign.finished_rows(Ledger(options.ledger)), options.runs)
        return []
    return [make_run(name, seed) for seed in range(options.seeds) for name in options.only]
