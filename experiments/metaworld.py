"""Customize a robot arm through the noise of a flow, in three tasks of MetaWorld. Needs EnvPool.

    python -m experiments.metaworld [--only push]

A scripted arm records demonstrations: it reaches on the left or the right of the straight line, at various speeds, and
then picks and places, pushes, or opens a drawer. A flow is fitted to them and customized. Wishes are to reach on the
left (a choice between demonstrated modes), to use smaller actions (a matter of degree), and, with few demonstrations,
to succeed; no other run has a reward for success. A row has, over 100 episodes, the shares that succeed at any step and
that reach on the left, and the mean squared hand action.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row, group_by, key_without_seed
from experiments.pages import markdown_table
from repolicy.addons.addon import combine_addons
from repolicy.envs.making import make_envs
from repolicy.envs.step import Info
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.policies.policy import Policy
from repolicy.prepare.generative import noise_prior, with_noise_scale
from repolicy.priors.decoders import load_decoder

LENGTH, CHUNK, NOISE, EPISODES = 150, 8, 32, 100
STEPS, SECONDS = 20_000, 100.0  # decisions, and about the CPU time that they take
DEMONSTRATIONS, RECORDING_ENVS = 200, 25
WEAK_DEMONSTRATIONS = {"weak": 25, "weaker": 8, "weakest": 4}  # demonstrations
OMEGAS = (0.1, 0.3, 1.0, 3.0, 10.0)
DSRL = {"seconds": (20, SECONDS), "decisions": (4, math.inf)}  # gradient steps per four decisions, and a time limit
BUDGETS = (1.0, 3.0)  # nats per decision; an episode has 19 decisions, and the default is 0.25
HAND, OBJECT, GOAL = slice(0, 3), slice(4, 7), slice(36, 39)  # their coordinates in an observation
HAND_START, DETOUR, NEAR = np.array([0.005, 0.6]), 0.1, 0.04  # metres
TASKS = {"pickplace": "PickPlace", "push": "Push", "drawer": "DrawerOpen"}
WISHES = {name: f"experiments.metaworld:{name}" for name in ("left", "gentle", "success")}


def env_name(task: str) -> str:
    return f"MetaWorld/{TASKS[task]}-v3?partially_observable=false&max_episode_steps={LENGTH}"


def sides(observations: np.ndarray) -> np.ndarray:
    """Return 1 if the hand is on the left of the straight line, −1 on the right, and 0 if it is near the object."""
    hand, target = observations[..., HAND][..., :2], observations[..., OBJECT][..., :2]
    (x, y), (along_x, along_y) = np.moveaxis(hand - HAND_START, -1, 0), np.moveaxis(target - HAND_START, -1, 0)
    return np.sign(along_x * y - along_y * x) * (np.linalg.norm(target - hand, axis=-1) > NEAR)


def left(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Reward each step in which the hand is on the left, and punish one on the right as much."""
    return 0.05 * sides(next_observations)


def gentle(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Punish the squared hand action."""
    return -np.square(actions[:, :3].clip(-1.0, 1.0)).sum(1)


def success(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Reward each step in which the task is solved."""
    return 0.05 * info["success"]


class Arm:
    """The scripted arm. It follows waypoints (`legs`), each with a place and with open (-1) or closed fingers."""

    def __init__(self, task: str, observations: np.ndarray, generator: np.random.Generator) -> None:
        self.task, self.start, self.generator, count = task, observations, generator, len(observations)
        self.side, self.speed = generator.choice([-1.0, 1.0], count), generator.uniform(0.5, 1.0, (count, 1))
        self.leg, self.waited = np.zeros(count, int), np.zeros(count, int)

    def legs(self, observations: np.ndarray) -> list[tuple[np.ndarray, float, float]]:
        """Return each leg's place, finger action, and distance at which it ends (0: when the fingers have closed)."""
        target, goal = observations[:, OBJECT], observations[:, GOAL].copy()
        detour = (self.start[:, HAND] + self.start[:, OBJECT]) / 2
        detour[:, 0] += DETOUR * self.side
        detour[:, 2] = 0.15
        if self.task == "drawer":
            handle = target - [0.0, 0.0, 0.02]
            above = handle + np.array([0.0, 0.0, 0.15])
            return [(detour, -1, 0.03), (above, -1, 0.03), (handle, -1, 0.02), (handle - [0.0, 0.1, 0.0], -1, -1)]
        goal[:, 2] = np.maximum(goal[:, 2], 0.02)
        above = target + np.array([0.0, 0.0, 0.1])
        return [(detour, -1, 0.03), (above, -1, 0.02), (target, -1, 0.03), (target, 1, 0), (goal, 1, -1)]

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        legs, rows = self.legs(observations), np.arange(len(observations))
        places, fingers, near = (np.array([leg[part] for leg in legs]) for part in range(3))
        offset = places[self.leg, rows] - observations[:, HAND]
        move, distance = 10.0 * offset, np.linalg.norm(offset, axis=1)
        move *= np.minimum(1.0, self.speed / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9))
        move += self.generator.normal(0.0, 0.1, move.shape) * (self.leg < 2)[:, None]
        actions = np.column_stack([move, fingers[self.leg]]).clip(-1.0, 1.0).astype(np.float32)
        closing = near[self.leg] == 0
        self.waited += closing
        self.leg += np.where(closing, self.waited >= 8, distance < near[self.leg])
        return actions


def record(task: str, file: Path, count: int) -> None:
    """Write that many demonstrations, of which about half reach on the left."""
    generator, steps = np.random.default_rng(0), list[tuple[np.ndarray, ...]]()
    with closing(make_envs(env_name(task), RECORDING_ENVS, 0)) as envs:
        observations = envs.reset()
        for _ in range(math.ceil(count / RECORDING_ENVS)):
            arm = Arm(task, observations, generator)
            for _ in range(LENGTH):
                actions = arm(observations)
                step = envs.step(actions)
                steps.append((observations, actions, step.truncated))
                observations = step.observations
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = (np.stack(part).reshape(-1, LENGTH, *part[0].shape).swapaxes(1, 2) for part in zip(*steps, strict=True))
    flat = [array.reshape(-1, *array.shape[3:])[: count * LENGTH] for array in arrays]  # episode after episode
    np.savez(file, observations=flat[0], actions=flat[1], ended=flat[2])


def make_flow(task: str, runs: Path, count: int = DEMONSTRATIONS) -> Path:
    """Fit a flow to that many demonstrations, which are recorded first if they are missing."""
    data = runs / f"{task}-{count}.npz"
    if not data.exists():
        record(task, data, count)
    return campaign.fit_flow(data, env_name(task), CHUNK)


def summarize(left: np.ndarray, gentle: np.ndarray, success: np.ndarray) -> Row:
    """Return the numbers of a row, from the returns of each wish in each episode."""
    means = {"success": (success > 0.0).mean(), "left": (left > 0.0).mean(), "square": -gentle.mean() / LENGTH}
    return {name: round(float(value), 4) for name, value in means.items()}


def measure(agent: Policy | Path, env: str, deterministic: bool, prior: Policy | None = None) -> Row:
    """Evaluate a policy; with sampled noise, the row also has the KL to the prior."""
    settings: Any = {"prior": prior, "deterministic": deterministic, "seed": EVALUATION_SEED, "trust": True}
    result = evaluate(agent, env, EPISODES, addon=list(WISHES.values()), **settings)
    row = summarize(**{name: result.wishes[name] for name in WISHES})
    return row if deterministic else row | {"nats_an_episode": round(result.columns["kl_an_episode"].mean, 3)}


def measure_noise_scale(task: str, runs: Path, count: int, scale: float) -> Row:
    """Evaluate the flow with noise of this scale."""
    prior, env = noise_prior(str(make_flow(task, runs, count)), NOISE, CHUNK, env_name(task))
    return {"noise": scale} | measure(with_noise_scale(prior, scale) if scale else prior, env, not scale, prior)


def measure_customized(task: str, runs: Path, count: int, options: str, folder: Path) -> Row:
    """Customize, and evaluate the policy with sampled noise and with its mean."""
    flow, env, policy = str(make_flow(task, runs, count)), env_name(task), folder / "policy.safetensors"
    words = f"--noise {NOISE} --chunk {CHUNK} --env {env} {options} --ranks 1"
    command = campaign.run_customize([flow, *words.split()], folder)
    _, name = noise_prior(flow, NOISE, CHUNK, env)
    return {"command": command} | measure(policy, name, False) | {"mean": measure(policy, name, True)}


def measure_best_of(task: str, runs: Path, wish: str, count: int) -> Row:
    """Evaluate the best of `count` sampled chunks by the predicted reward of the wish.

    For `left`, the prediction moves the hand by 0.01 m per step and unit of action.
    """
    decoder, generator = load_decoder(str(make_flow(task, runs)), NOISE, CHUNK), np.random.default_rng(EVALUATION_SEED)
    with closing(make_envs(env_name(task), EPISODES, EVALUATION_SEED)) as envs:
        observations, rows = envs.reset(), np.arange(EPISODES)
        returns = np.zeros((3, EPISODES))
        for decision in range(math.ceil(LENGTH / CHUNK)):
            noise = generator.standard_normal((EPISODES * count, NOISE)).astype(np.float32)
            chunks = decoder(observations.repeat(count, 0), noise).reshape(EPISODES, count, CHUNK, 4).clip(-1.0, 1.0)
            if wish == "gentle":
                worth = -np.square(chunks[..., :3]).sum((2, 3))
            else:
                shape = (*chunks.shape[:3], observations.shape[1])
                predicted = np.broadcast_to(observations[:, None, None], shape).copy()
                predicted[..., HAND] += 0.01 * chunks[..., :3].cumsum(2)
                to_object = observations[:, OBJECT][:, :2] - observations[:, HAND][:, :2]
                is_far = np.linalg.norm(to_object, axis=1) > NEAR
                tie_break = -is_far[:, None] * predicted[:, :, -1, 0]  # further left
                worth = sides(predicted).sum(2) + tie_break
            for actions in chunks[rows, worth.argmax(1)].swapaxes(0, 1)[: LENGTH - CHUNK * decision]:
                step = envs.step(actions)
                for row, reward in enumerate((left, gentle, success)):
                    returns[row] += reward(observations, actions, step.final, step.info)
                observations = step.observations
    nats = math.ceil(LENGTH / CHUNK) * (math.log(count) - (count - 1) / count)
    return summarize(*returns) | {"nats_an_episode": round(nats, 3)}


def measure_dsrl(task: str, runs: Path, wish: str, seed: int, gradients: int, seconds: float) -> Row:
    """Train and evaluate SAC over the noise; training stops after `STEPS` decisions or so many seconds."""
    from experiments.steered import DSRL_ENVS, NoiseActor, train_dsrl  # needs Stable-Baselines3

    _, name = noise_prior(str(make_flow(task, runs)), NOISE, CHUNK, env_name(task))
    start = time.process_time()
    envs, addon = make_envs(name, DSRL_ENVS, seed), combine_addons([WISHES[wish]])
    model, decisions = train_dsrl(envs, addon, seed, STEPS, gradients, seconds)
    seconds, acts = time.process_time() - start, [NoiseActor(model, by_mean) for by_mean in (False, True)]
    row = play_both_ways(acts, lambda: make_envs(name, EPISODES, EVALUATION_SEED))
    nats = {"nats_an_episode": round(acts[0].nats, 3)}
    return {"decisions": decisions, "training_seconds": round(seconds, 1)} | row | nats


def measure_residual(task: str, runs: Path, wish: str, seed: int, scale: float) -> Row:
    """Train and evaluate PPO of corrections to the flow's actions, for the steps of as many decisions."""
    from experiments.steered import RESIDUAL_ENVS, ResidualEnvs, predict_corrections, train_residual

    decoder, start = load_decoder(str(make_flow(task, runs)), NOISE, CHUNK), time.process_time()
    envs = ResidualEnvs(make_envs(env_name(task), RESIDUAL_ENVS, seed), decoder, seed)
    model = train_residual(envs, combine_addons([WISHES[wish]]), seed, STEPS * CHUNK, scale)
    seconds = time.process_time() - start
    acts = [partial(predict_corrections, model, by_mean) for by_mean in (False, True)]
    return {"training_seconds": round(seconds, 1)} | play_both_ways(
        acts, lambda: ResidualEnvs(make_envs(env_name(task), EPISODES, EVALUATION_SEED), decoder, EVALUATION_SEED)
    )


def play_both_ways(acts: Sequence[Any], make: Callable[[], Any]) -> Row:
    """Return the numbers of a row with sampled noise, and under `mean` those with its mean."""
    from experiments.steered import play_first_episodes

    rows = []
    for act in acts:
        with closing(make()) as envs:
            rows.append(summarize(*play_first_episodes(envs, act, combine_addons([*WISHES.values()]))))
    return rows[0] | {"mean": rows[1]}


def measurements(runs: Path) -> campaign.Measurements:
    """Return all measurements by key; the first seed of each run comes first."""
    found: campaign.Measurements = {}

    def add_run(key: str, options: str, count: int = DEMONSTRATIONS) -> None:
        folder, seed = runs / key.replace("/", "-").replace(" ", "-"), key.rpartition("/")[2]
        task = key.partition("/")[0]
        found[key] = partial(measure_customized, task, runs, count, f"{options} --steps {STEPS} --seed {seed}", folder)

    for seed in range(3):
        for task, wish in product(TASKS, ("left", "gentle")):
            add_run(f"{task}/{wish}/{seed}", f"--addon {WISHES[wish]}")
        if seed > 0:
            continue
        for task in TASKS:
            for scale in (1.0, 0.5, 0.0):
                found[f"{task}/noise {scale:g}/0"] = partial(measure_noise_scale, task, runs, DEMONSTRATIONS, scale)
            for wish in ("left", "gentle"):
                found[f"{task}/{wish}, best of 16/0"] = partial(measure_best_of, task, runs, wish, 16)
        for task in TASKS:
            add_run(f"{task}/left, greedy/0", f"--addon {WISHES['left']} --objective greedy")
        for budget in BUDGETS:
            wish = f"--addon {WISHES['gentle']} --kl-budget {budget:g}"
            add_run(f"pickplace/gentle, {budget:g} nats a decision/0", wish)
        for omega in OMEGAS:
            add_run(f"push/left, omega {omega:g}/0", f"--addon {WISHES['left']} --omega {omega:g}")
    for seed in range(2):
        for name, how in DSRL.items():
            found[f"push/left, DSRL, equal {name}/{seed}"] = partial(measure_dsrl, "push", runs, "left", seed, *how)
        for scale in (0.1, 0.5):
            key = f"push/left, residual {scale:g}/{seed}"
            found[key] = partial(measure_residual, "push", runs, "left", seed, scale)
    for (name, count), task in product(WEAK_DEMONSTRATIONS.items(), TASKS):
        for scale in (1.0, 0.5, 0.0):
            found[f"{task}/{name}, noise {scale:g}/0"] = partial(measure_noise_scale, task, runs, count, scale)
        for seed in range(3):
            add_run(f"{task}/{name}, success/{seed}", f"--addon {WISHES['success']}", count)
    return found


def table(rows: dict[str, Row]) -> str:
    """Return a table with a line for each kind of agent: the means of its seeds."""
    headings = ["agent", "seeds", "succeeds", "on the left", "square of an action", "nats an episode"]
    order = sorted(rows, key=lambda key: (list(TASKS).index(key.partition("/")[0]), key))
    # Of the weak flows only the middle one is shown, and no half noise: it is in between.
    shown = [key for key in order if "/weaker," in key or not ("/weak" in key or "noise 0.5" in key)]
    kinds = group_by((rows[key] for key in shown), key_without_seed).items()
    return markdown_table(headings, [[kind, str(len(found)), *_cells(found)] for kind, found in kinds])


def _cells(found: list[Row]) -> list[str]:
    """Return the means with sampled noise and, in brackets, with its mean."""
    cells, both = [], (found, [row.get("mean", {}) for row in found])
    for name, form in (("success", "{:.0%}"), ("left", "{:.0%}"), ("square", "{:.3f}"), ("nats_an_episode", "{:.1f}")):
        numbers = [[row[name] for row in rows if name in row] for rows in both]
        sampled, by_mean = (form.format(np.mean(values)) if values else "" for values in numbers)
        cells.append(sampled + (f" ({by_mean})" if by_mean else ""))
    return cells


@campaign.program("ledger", "runs", "only")
def main(options: campaign.Options) -> campaign.Measurements:
    torch.set_num_threads(1)
    return measurements(options.runs)
