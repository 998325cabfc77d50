"""Customize a generative prior that passes a pillar on either side, with the wish to pass it on the left.

    python -m experiments.pillar

A point walks from the left to a goal on the right, around a pillar. The demonstrations pass it on either side; a flow
is fitted to them (`repolicy imitate --flow`) and customized through its noise to the wish *left*. No run has a reward
for the goal. Other rows are the flow alone, the best of N chunks by the wish, and runs without a prior (`greedy`).
A row has, over 400 episodes of sampled noise, the shares that arrive and pass on the left, and the nats from N(0, I).
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row, group_by, key_without_seed
from experiments.pages import markdown_table
from repolicy.envs.making import make_envs
from repolicy.envs.step import Info
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.priors.decoders import load_decoder

START, GOAL, RADIUS, NEAR = np.array([-1.0, 0.0]), np.array([1.0, 0.0]), 0.3, 0.15
SPEED, STEPS = 0.05, 60
NOISE, CHUNK, EPISODES, DEMONSTRATIONS = 8, 4, 400, 500
ENV, WISH = "experiments.pillar:Pillar", "experiments.pillar:left"


class Pillar(gymnasium.Env):
    """A point whose action is its velocity. It gets a reward of 1 at the goal; goal and pillar end the episode."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.place, self.steps = START + self.np_random.normal(0.0, 0.05, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        self.place, self.steps = self.place + SPEED * np.clip(action, -1.0, 1.0), self.steps + 1
        arrived, hit = math.dist(self.place, GOAL) < NEAR, math.hypot(*self.place) < RADIUS
        return self.place.astype(np.float32), float(arrived), arrived or hit, self.steps >= STEPS, {}


def left(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Reward each step beside the pillar on its left, and punish one on its right as much."""
    x, y = next_observations[:, :2].T
    return 0.05 * np.sign(y) * (np.abs(x) < 0.5)


def record(file: Path) -> None:
    """Write demonstrations, of which half pass on the left."""
    generator, rows = np.random.default_rng(0), list[tuple[np.ndarray, np.ndarray, bool]]()
    env = Pillar()
    for episode in range(DEMONSTRATIONS):
        place, _ = env.reset(seed=episode)
        side, done = generator.choice([-0.55, 0.55]), False
        while not done:
            toward = (GOAL if place[0] > 0.0 else np.array([0.05, side])) - place
            action = np.clip(toward / np.linalg.norm(toward) + generator.normal(0.0, 0.2, 2), -1.0, 1.0)
            following, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            rows.append((place, action.astype(np.float32), done))
            place = following
    observations, actions, ends = map(np.array, zip(*rows, strict=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, observations=observations, actions=actions, ended=ends)


def summarize(basic: np.ndarray, wish: np.ndarray, nats: float) -> Row:
    """Return the numbers of a row; `nats` are per decision."""
    means = {"success": (basic > 0.5).mean(), "left": (wish > 0.0).mean(), "nats_a_decision": nats}
    return {name: round(float(value), 4) for name, value in means.items()} | {"episodes": len(basic)}


def measure_customized(options: str, flow: Path, folder: Path) -> Row:
    """Customize, and evaluate the policy."""
    words = f"--noise {NOISE} --chunk {CHUNK} --env {ENV} --addon {WISH} {options} --ranks 1"
    command = campaign.run_customize([str(flow), *words.split()], folder)
    settings: Any = {"deterministic": False, "seed": EVALUATION_SEED, "trust": True}
    result: Evaluation = evaluate(folder, episodes=EPISODES, addon=WISH, **settings)
    assert result.addon is not None
    return {"command": command} | summarize(result.basic, result.addon, result.columns["kl_a_step"].mean)


def measure_best_of(count: int, flow: Path) -> Row:
    """Evaluate the best of `count` sampled chunks by the reward of the wish."""
    decoder, generator = load_decoder(str(flow), NOISE, CHUNK), np.random.default_rng(EVALUATION_SEED)
    envs = make_envs(ENV, EPISODES, EVALUATION_SEED)
    places, running = envs.reset(), np.ones(EPISODES, bool)
    basic, wish = np.zeros(EPISODES), np.zeros(EPISODES)
    while running.any():
        noise = generator.standard_normal((EPISODES * count, NOISE)).astype(np.float32)
        chunks = decoder(places.repeat(count, 0), noise).reshape(EPISODES, count, CHUNK, 2)
        predicted = places[:, None, None] + SPEED * chunks.clip(-1.0, 1.0).cumsum(2)
        reward = left(places, chunks, predicted.reshape(-1, 2), {}).reshape(EPISODES, count, CHUNK).sum(2)
        height = predicted[:, :, -1, 1]  # breaks ties between equal rewards
        chosen = chunks[np.arange(EPISODES), np.argmax(reward + 1e-3 * height, 1)]
        for actions in chosen.swapaxes(0, 1):
            step = envs.step(actions)
            basic += running * step.rewards
            wish += running * left(places, actions, step.final, {})
            running &= ~(step.terminated | step.truncated)
            places = step.observations
    envs.close()
    return summarize(basic, wish, math.log(count) - (count - 1) / count)  # KL of the best of N, for any ranking


def customize_options() -> dict[str, str]:
    """Return the options of each run by key."""
    kinds = [("default", "--steps 1e5", 5)]
    for weight, seeds in {"0.02": 1, "0.1": 5, "0.3": 1, "1": 1, "10": 1}.items():
        kinds.append((f"omega {weight}", f"--omega {weight} --alpha {weight} --steps 1e5", seeds))
    kinds += [("omega 0.1, long", "--omega 0.1 --alpha 0.1 --steps 4e5", 3)]
    kinds += [("greedy", "--objective greedy --steps 1e5", 3), ("greedy, long", "--objective greedy --steps 4e5", 3)]
    return {f"{kind}/{seed}": f"{options} --seed {seed}" for kind, options, seeds in kinds for seed in range(seeds)}


def table(rows: dict[str, Row]) -> str:
    """Return a table with a line for each kind of agent: the mean of its seeds, and their range."""
    headings = ["agent", "seeds", "arrives", "on the left", "nats a decision"]
    kinds = group_by(rows.values(), key_without_seed).items()
    return markdown_table(headings, [[kind, str(len(found)), *mean_cells(found)] for kind, found in kinds])


def mean_cells(found: list[Row]) -> list[str]:
    cells = []
    for name, form in (("success", "{:.1%}"), ("left", "{:.1%}"), ("nats_a_decision", "{:.3g}")):
        values = [row[name] for row in found]
        several = f" ({form.format(min(values))} to {form.format(max(values))})" if len(values) > 1 else ""
        cells.append(form.format(np.mean(values)) + several)
    return cells


@campaign.program("ledger", "runs", "only")
def main(options: campaign.Options) -> campaign.Measurements:
    demonstrations = options.runs / "demonstrations.npz"
    torch.set_num_threads(1)
    if not demonstrations.exists():
        record(demonstrations)
    flow = campaign.fit_flow(demonstrations, ENV, CHUNK)
    work: campaign.Measurements = {
        f"best of {count}/0": partial(measure_best_of, count, flow) for count in (1, 4, 16, 64)
    }
    for key, arguments in customize_options().items():
        work[key] = partial(measure_customized, arguments, flow, options.runs / key.replace(" ", "-").replace("/", "-"))
    return work
