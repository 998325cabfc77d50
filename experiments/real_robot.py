"""Compare customized policies with a real robot's published policy: falls, power, feet and errors of the commands.

    python -m experiments.real_robot --policy prior=go1_policy.onnx --policy energy=runs/go1-energy

The ledger has one row per policy and kind of action. The errors of the velocities are computed from the task's own
terms in `info`, exp(−error² / 0.25), for this table alone.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row
from experiments.pages import markdown_table
from experiments.statistics import mean_and_error
from repolicy.envs.episode_sums import EpisodeSums
from repolicy.envs.making import check_fit, make_envs, match_observation
from repolicy.envs.rollout import Collector
from repolicy.errors import UsageError
from repolicy.evaluation import EPISODE_CAP, EVALUATION_SEED
from repolicy.files import file_sum
from repolicy.policies.policy import one_thread
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy

ENV, BLOCK, TRACKING_SIGMA = "Go1JoystickFlatTerrain-v1", 50, 0.25  # its tracking_sigma
TERMS = {"energy": "reward_energy", "clearance": "reward_feet_clearance", "slip": "reward_feet_slip"}
TRACKED = {"speed_error": "reward_tracking_lin_vel", "turning_error": "reward_tracking_ang_vel"}


@torch.no_grad()
def measure(path: Path, env: str, episodes: int, deterministic: bool) -> Row:
    """Evaluate a policy for an episode per environment: return, length, falls, terms and velocity errors."""
    policy = read_policy(path).policy
    env = match_observation(env, policy.observation_size)
    envs = make_envs(env, episodes, EVALUATION_SEED, "auto")
    check_fit(policy, envs)
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    collector = Collector(envs, BLOCK, generator, longest=EPISODE_CAP)
    sums = EpisodeSums(episodes, episodes)
    scales = {name: tracking_scale(envs.name, key) for name, key in TRACKED.items()}
    while sums.missing:
        with one_thread():
            rollout = collector.collect(policy, deterministic)
        steps = {"basic": rollout.basic, "length": np.ones_like(rollout.basic)}
        steps |= {name: rollout.info[key] for name, key in TERMS.items()}
        steps |= {name: velocity_error(rollout.info[key] / scales[name]) for name, key in TRACKED.items()}
        sums.add(steps, rollout)
    envs.close()
    each = sums.each()
    lengths, falls = each.pop("length"), int(each.pop("terminated").sum())
    row: Row = {name: mean_and_error(values if name == "basic" else values / lengths) for name, values in each.items()}
    row |= {"length": mean_and_error(lengths), "falls": falls, "episodes": episodes}
    return row | {"policy": file_sum(path), "env": env}


def velocity_error(term: np.ndarray) -> np.ndarray:
    """Return the error of a velocity from its tracking term, exp(−error² / 0.25)."""
    return np.sqrt(-TRACKING_SIGMA * np.log(np.clip(term, 1e-6, 1.0)))  # type: ignore[no-any-return]


def tracking_scale(env: str, key: str) -> float:
    """Return the task's weight of a tracking term, which is the term's value without an error."""
    import envpool

    from repolicy.envs.names import parse_env_name

    config: Any = envpool.make_spec(parse_env_name(env).plain).config
    return float(getattr(config, key.removeprefix("reward_") + "_scale"))


def table(rows: list[Row]) -> str:
    """Return a table with one line per policy and kind of action, compared with the prior."""
    headings = ["policy", "action", "old return (not trained on)", "energy cost a step", "clearance cost a step",
                "error of speed, m/s", "falls"]  # fmt: skip
    lines, by_key = [], {row["key"]: row for row in rows}
    for key, row in by_key.items():
        name, action = key.split("/")
        prior = by_key[f"prior/{action}"]
        kept = f"{row['basic'][0]:.2f} ± {row['basic'][1]:.2f} ({row['basic'][0] / prior['basic'][0]:.0%})"
        costs = [f"{-row[part][0]:.4f} ({row[part][0] / prior[part][0] - 1:+.0%})" for part in ("energy", "clearance")]
        lines.append([name, action, kept, *costs, f"{row['speed_error'][0]:.3f}", str(row["falls"])])
    return markdown_table(headings, lines)


@campaign.program(
    "ledger", policy={"action": "append", "default": [], "metavar": "NAME=FILE"}, episodes=100, env=ENV,
    actions=["mean", "sampled"],
)  # fmt: skip
def main(options: campaign.Options) -> campaign.Measurements:
    measurements = {}
    for argument in options.policy:
        name, equals, file = argument.partition("=")
        if not equals:
            raise UsageError(f"--policy is {argument!r}; write NAME=FILE")
        for action in options.actions:
            arguments = (find_policy(file), options.env, options.episodes, action == "mean")
            measurements[f"{name}/{action}"] = partial(measure, *arguments)
    return measurements
