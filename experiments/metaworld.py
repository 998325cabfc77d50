"""A robot arm that is customized through the noise of a flow, in three tasks of MetaWorld. Needs EnvPool.

    python -m experiments.metaworld [--only push]

A scripted arm records demonstrations: it reaches past the left or the right of the straight line, faster or slower, and
then picks and places, pushes, or opens a drawer. A flow is fitted to them and customized: to reach on the left (a wish
between ways that were demonstrated), to move with smaller actions (a wish of degree), or, where the demonstrations were
few, to succeed, which else nobody tells. A row has of 100 episodes the shares that succeed at any step and that reach
on the left, and the mean square of the three numbers that move the hand.
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
from repolicy.envs.addons import combine_addons
from repolicy.envs.evaluation import EVALUATION_SEED, evaluate
from repolicy.envs.making import make_envs
from repolicy.envs.step import Info
from repolicy.policies.policy import Policy
from repolicy.prepare.generative import noise_prior, with_noise_scale
from repolicy.priors.decoders import load_decoder
from repolicy.runs.ranks import one_thread

LENGTH, CHUNK, NOISE, EPISODES = 150, 8, 32, 100
STEPS, SECONDS = 20_000, 100.0  # decisions, and about what they take of a core
DEMONSTRATIONS, RECORDING_ENVS = 200, 25
WEAK_DEMONSTRATIONS = {"weak": 25, "weaker": 8, "weakest": 4}  # demonstrations
OMEGAS = (0.1, 0.3, 1.0, 3.0, 10.0)
DSRL = {"seconds": (20, SECONDS), "decisions": (4, math.inf)}  # gradient steps for four decisions
BUDGETS = (1.0, 3.0)  # nats a decision, of which an episode has 19; by default a quarter of one
HAND, OBJECT, GOAL = slice(0, 3), slice(4, 7), slice(36, 39)  # where they stand in an observation
HAND_START, DETOUR, NEAR = np.array([0.005, 0.6]), 0.1, 0.04  # metres
TASKS = {"pickplace": "PickPlace", "push": "Push", "drawer": "DrawerOpen"}
WISHES = {name: f"experiments.metaworld:{name}" for name in ("left", "gentle", "success")}


def env_name(task: str) -> str:
    return f"MetaWorld/{TASKS[task]}-v3?partially_observable=false&max_episode_steps={LENGTH}"


def sides(observations: np.ndarray) -> np.ndarray:
    """Return 1 where the hand reaches on the left of its straight line, −1 on the right, 0 beside the thing."""
    hand, thing = observations[..., HAND][..., :2], observations[..., OBJECT][..., :2]
    (x, y), (along_x, along_y) = np.moveaxis(hand - HAND_START, -1, 0), np.moveaxis(thing - HAND_START, -1, 0)
    return np.sign(along_x * y - along_y * x) * (np.linalg.norm(thing - hand, axis=-1) > NEAR)


def left(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Pay for each step on which the hand reaches on the left, and take as much for one on the right."""
    return 0.05 * sides(next_observations)


def gentle(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Take the square of what moves the hand."""
    return -np.square(actions[:, :3].clip(-1.0, 1.0)).sum(1)


def success(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: Info) -> np.ndarray:
    """Pay for each step in which the task is solved."""
    return 0.05 * info["success"]


class Arm:
    """The scripted arm: legs of a way, one after the other, each to a place and with the fingers open (-1) or shut."""

    def __init__(self, task: str, observations: np.ndarray, generator: np.random.Generator) -> None:
        self.task, self.begun, self.generator, count = task, observations, generator, len(observations)
        self.side, self.speed = generator.choice([-1.0, 1.0], count), generator.uniform(0.5, 1.0, (count, 1))
        self.leg, self.waited = np.zeros(count, int), np.zeros(count, int)

    def legs(self, observations: np.ndarray) -> list[tuple[np.ndarray, float, float]]:
        """Return of each leg where it leads, what the fingers do, how near it ends; 0 waits until they are shut."""
        thing, goal = observations[:, OBJECT], observations[:, GOAL].copy()
        aside = (self.begun[:, HAND] + self.begun[:, OBJECT]) / 2
        aside[:, 0] += DETOUR * self.side
        aside[:, 2] = 0.15
        if self.task == "drawer":
            handle = thing - [0.0, 0.0, 0.02]
            above = handle + np.array([0.0, 0.0, 0.15])
            return [(aside, -1, 0.03), (above, -1, 0.03), (handle, -1, 0.02), (handle - [0.0, 0.1, 0.0], -1, -1)]
        goal[:, 2] = np.maximum(goal[:, 2], 0.02)
        above = thing + np.array([0.0, 0.0, 0.1])
        return [(aside, -1, 0.03), (above, -1, 0.02), (thing, -1, 0.03), (thing, 1, 0), (goal, 1, -1)]

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        legs, rows = self.legs(observations), np.arange(len(observations))
        places, fingers, near = (np.array([leg[part] for leg in legs]) for part in range(3))
        far = places[self.leg, rows] - observations[:, HAND]
        move, distance = 10.0 * far, np.linalg.norm(far, axis=1)
        move *= np.minimum(1.0, self.speed / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9))
        move += self.generator.normal(0.0, 0.1, move.shape) * (self.leg < 2)[:, None]
        actions = np.column_stack([move, fingers[self.leg]]).clip(-1.0, 1.0).astype(np.float32)
        shutting = near[self.leg] == 0
        self.waited += shutting
        self.leg += np.where(shutting, self.waited >= 8, distance < near[self.leg])
        return actions


def record(task: str, file: Path, count: int) -> None:
    """Write that many demonstrations, of which about half reach on the left."""
    generator, found = np.random.default_rng(0), list[tuple[np.ndarray, ...]]()
    with closing(make_envs(env_name(task), RECORDING_ENVS, 0)) as envs:
        observations = envs.reset()
        for _ in range(math.ceil(count / RECORDING_ENVS)):
            arm = Arm(task, observations, generator)
            for _ in range(LENGTH):
                actions = arm(observations)
                step = envs.step(actions)
                found.append((observations, actions, step.truncated))
                observations = step.observations
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = (np.stack(part).reshape(-1, LENGTH, *part[0].shape).swapaxes(1, 2) for part in zip(*found, strict=True))
    seen, done, ended = (array.reshape(-1, *array.shape[3:]) for array in arrays)  # episode after episode
    kept = count * LENGTH
    np.savez(file, observations=seen[:kept], actions=done[:kept], ended=ended[:kept])


def make_flow(task: str, runs: Path, count: int = DEMONSTRATIONS) -> Path:
    """Return a flow that is fitted to that many demonstrations; they are recorded where they are missing."""
    data = runs / f"{task}-{count}.npz"
    if not data.exists():
        record(task, data, count)
    return campaign.fit_flow(data, env_name(task), CHUNK)


def summarize(left: np.ndarray, gentle: np.ndarray, success: np.ndarray) -> Row:
    """Return a line's numbers, from what each wish paid in each episode."""
    found = {"success": (success > 0.0).mean(), "left": (left > 0.0).mean(), "square": -gentle.mean() / LENGTH}
    return {name: round(float(value), 4) for name, value in found.items()}


def measure(agent: Policy | Path, env: str, deterministic: bool, prior: Policy | None = None) -> Row:
    how: Any = {"prior": prior, "deterministic": deterministic, "seed": EVALUATION_SEED, "trust": True}
    with one_thread():
        found = evaluate(agent, env, EPISODES, addon=list(WISHES.values()), **how)
    row = summarize(**{name: found.wishes[name] for name in WISHES})
    return row if deterministic else row | {"nats_an_episode": round(found.columns["kl_an_episode"].mean, 3)}


def measure_noise_scale(task: str, runs: Path, count: int, scale: float) -> Row:
    """Return what the flow does with noise of this scale."""
    prior, env = noise_prior(str(make_flow(task, runs, count)), NOISE, CHUNK, env_name(task))
    return {"noise": scale} | measure(with_noise_scale(prior, scale) if scale else prior, env, not scale, prior)


def measure_customized(task: str, runs: Path, count: int, told: str, folder: Path) -> Row:
    """Return what a run ends in, by sampled noise and by its mean."""
    flow, env, policy = str(make_flow(task, runs, count)), env_name(task), folder / "policy.safetensors"
    words = f"--noise {NOISE} --chunk {CHUNK} --env {env} {told} --ranks 1"
    command = campaign.run_customize([flow, *words.split()], folder)
    _, name = noise_prior(flow, NOISE, CHUNK, env)
    return {"command": command} | measure(policy, name, False) | {"mean": measure(policy, name, True)}


def measure_best_of(task: str, runs: Path, wish: str, count: int) -> Row:
    """Return what comes of drawing so many chunks and taking the one that the wish is going to pay most.

    For `left` the hand is taken to go where it is told, a hundredth of a metre a step for each 1 of an action.
    """
    decoder, generator = load_decoder(str(make_flow(task, runs)), NOISE, CHUNK), np.random.default_rng(EVALUATION_SEED)
    with closing(make_envs(env_name(task), EPISODES, EVALUATION_SEED)) as envs:
        seen, rows = envs.reset(), np.arange(EPISODES)
        sums = np.zeros((3, EPISODES))
        for decision in range(math.ceil(LENGTH / CHUNK)):
            noise = generator.standard_normal((EPISODES * count, NOISE)).astype(np.float32)
            chunks = decoder(seen.repeat(count, 0), noise).reshape(EPISODES, count, CHUNK, 4).clip(-1.0, 1.0)
            if wish == "gentle":
                worth = -np.square(chunks[..., :3]).sum((2, 3))
            else:
                ahead = np.broadcast_to(seen[:, None, None], (*chunks.shape[:3], seen.shape[1])).copy()
                ahead[..., HAND] += 0.01 * chunks[..., :3].cumsum(2)
                away = np.linalg.norm(seen[:, OBJECT][:, :2] - seen[:, HAND][:, :2], axis=1) > NEAR
                worth = sides(ahead).sum(2) - away[:, None] * ahead[:, :, -1, 0]  # where all are alike, further left
            for taken in chunks[rows, worth.argmax(1)].swapaxes(0, 1)[: LENGTH - CHUNK * decision]:
                step = envs.step(taken)
                for row, pays in enumerate((left, gentle, success)):
                    sums[row] += pays(seen, taken, step.final, step.info)
                seen = step.observations
    nats = math.ceil(LENGTH / CHUNK) * (math.log(count) - (count - 1) / count)
    return summarize(*sums) | {"nats_an_episode": round(nats, 3)}


def measure_dsrl(task: str, runs: Path, wish: str, seed: int, gradients: int, seconds: float) -> Row:
    """Return what SAC over the noise ends in, after as many decisions or, if that is sooner, so many seconds."""
    from experiments.steered import DSRL_ENVS, NoiseActor, train_dsrl  # needs Stable-Baselines3

    _, name = noise_prior(str(make_flow(task, runs)), NOISE, CHUNK, env_name(task))
    began = time.process_time()
    model, taken = train_dsrl(
        make_envs(name, DSRL_ENVS, seed), combine_addons([WISHES[wish]]), seed, STEPS, gradients, seconds
    )
    took, acts = time.process_time() - began, [NoiseActor(model, by_mean) for by_mean in (False, True)]
    row = play_both_ways(acts, lambda: make_envs(name, EPISODES, EVALUATION_SEED))
    nats = {"nats_an_episode": round(acts[0].nats, 3)}
    return {"decisions": taken, "training_seconds": round(took, 1)} | row | nats


def measure_residual(task: str, runs: Path, wish: str, seed: int, scale: float) -> Row:
    """Return what adding to the flow's actions ends in, after the steps of as many decisions."""
    from experiments.steered import RESIDUAL_ENVS, ResidualEnvs, predict_corrections, train_residual

    decoder, began = load_decoder(str(make_flow(task, runs)), NOISE, CHUNK), time.process_time()
    envs = ResidualEnvs(make_envs(env_name(task), RESIDUAL_ENVS, seed), decoder, seed)
    model = train_residual(envs, combine_addons([WISHES[wish]]), seed, STEPS * CHUNK, scale)
    took, acts = (
        time.process_time() - began,
        [partial(predict_corrections, model, by_mean) for by_mean in (False, True)],
    )
    return {"training_seconds": round(took, 1)} | play_both_ways(
        acts, lambda: ResidualEnvs(make_envs(env_name(task), EPISODES, EVALUATION_SEED), decoder, EVALUATION_SEED)
    )


def play_both_ways(acts: Sequence[Any], make: Callable[[], Any]) -> Row:
    """Return a line's numbers by sampled noise, and in it those by its mean."""
    from experiments.steered import play_first_episodes

    rows = []
    for act in acts:
        with closing(make()) as envs:
            rows.append(summarize(*play_first_episodes(envs, act, combine_addons([*WISHES.values()]))))
    return rows[0] | {"mean": rows[1]}


def measurements(runs: Path) -> campaign.Measurements:
    """Return what is measured, by its key: the first seed of each run first."""
    found: campaign.Measurements = {}

    def run(key: str, told: str, count: int = DEMONSTRATIONS) -> None:
        folder, seed = runs / key.replace("/", "-").replace(" ", "-"), key.rpartition("/")[2]
        task = key.partition("/")[0]
        found[key] = partial(measure_customized, task, runs, count, f"{told} --steps {STEPS} --seed {seed}", folder)

    for seed in range(3):
        for task, wish in product(TASKS, ("left", "gentle")):
            run(f"{task}/{wish}/{seed}", f"--addon {WISHES[wish]}")
        if seed > 0:
            continue
        for task in TASKS:
            for scale in (1.0, 0.5, 0.0):
                found[f"{task}/noise {scale:g}/0"] = partial(measure_noise_scale, task, runs, DEMONSTRATIONS, scale)
            for wish in ("left", "gentle"):
                found[f"{task}/{wish}, best of 16/0"] = partial(measure_best_of, task, runs, wish, 16)
        for task in TASKS:
            run(f"{task}/left, greedy/0", f"--addon {WISHES['left']} --objective greedy")
        for budget in BUDGETS:
            run(f"pickplace/gentle, {budget:g} nats a decision/0", f"--addon {WISHES['gentle']} --kl-budget {budget:g}")
        for omega in OMEGAS:
            run(f"push/left, omega {omega:g}/0", f"--addon {WISHES['left']} --omega {omega:g}")
    for seed in range(2):
        for name, how in DSRL.items():
            found[f"push/left, DSRL, equal {name}/{seed}"] = partial(measure_dsrl, "push", runs, "left", seed, *how)
        for scale in (0.1, 0.5):
            found[f"push/left, residual {scale:g}/{seed}"] = partial(
                measure_residual, "push", runs, "left", seed, scale
            )
    for (name, count), task in product(WEAK_DEMONSTRATIONS.items(), TASKS):
        for scale in (1.0, 0.5, 0.0):
            found[f"{task}/{name}, noise {scale:g}/0"] = partial(measure_noise_scale, task, runs, count, scale)
        for seed in range(3):
            run(f"{task}/{name}, success/{seed}", f"--addon {WISHES['success']}", count)
    return found


def table(rows: dict[str, Row]) -> str:
    """Return a row for each kind of agent: the mean of its seeds."""
    headings = ["agent", "seeds", "succeeds", "on the left", "square of an action", "nats an episode"]
    order = sorted(rows, key=lambda key: (list(TASKS).index(key.partition("/")[0]), key))
    # Of the weak flows one is neither sure nor lost; half the noise is in between, too.
    told = [key for key in order if "/weaker," in key or not ("/weak" in key or "noise 0.5" in key)]
    kinds = group_by((rows[key] for key in told), key_without_seed).items()
    return markdown_table(headings, [[kind, str(len(found)), *_cells(found)] for kind, found in kinds])


def _cells(found: list[Row]) -> list[str]:
    """Return the means by sampled noise and, in brackets, by its mean."""
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
