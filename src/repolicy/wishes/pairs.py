"""Pairs of clips from the same start, for a person to compare, and the wish that the answers tell.

Of many candidates those become pairs that are worth an answer. Answers are a JSON line each, as a browser saves them.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from repolicy.envs import (
    Envs,
    Features,
    LearntWish,
    Networks,
    check_fit,
    is_in_gymnasium,
    make_envs,
    match_observation,
    network_inputs,
    to_env_numbers,
)
from repolicy.errors import FileError, UsageError
from repolicy.loading import file_sum, read_bytes
from repolicy.policies import Agent
from repolicy.policies.storage import check_shape, read, write
from repolicy.text import counted, printable
from repolicy.wishes.inference import Theta
from repolicy.wishes.preferences import as_belief, bradley_terry, fitted_networks, most_telling

FILE = "pairs.safetensors"
CANDIDATES = 5  # for each pair that is asked about, where a wish says which
PATIENCE = 5  # draws until there are enough clips in which no episode ends


@dataclass(frozen=True)
class Pairs:
    """P pairs of clips of T steps, left and right, in arrays `[P, 2, T, ...]`."""

    env: str
    policy: str  # its fingerprint
    observations: np.ndarray
    actions: np.ndarray  # as add-ons read them
    after: np.ndarray
    seeds: np.ndarray  # [P] of the environment
    starts: np.ndarray  # [P] the step at which the two part
    played: np.ndarray  # [P, 2, S, A] all actions since the reset, as the environment got them

    @property
    def page(self) -> str:
        """What answers are known by."""
        return sha256(self.after.tobytes() + self.actions.tobytes()).hexdigest()[:16]

    def features(self, features: Features) -> np.ndarray:
        """Return the sums `[P, 2, K]` along the clips."""
        observations, actions, after = self.steps
        return features(observations, actions, after, {}).reshape(*self.after.shape[:3], -1).sum(2)

    @property
    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations, actions and next observations of all steps, `[P·2·T, ...]`."""
        one, two, three = (each.reshape(-1, each.shape[-1]) for each in (self.observations, self.actions, self.after))
        return one, two, three

    @property
    def inputs(self) -> np.ndarray:
        """What networks read, `[P, 2, T, I]`."""
        return network_inputs(self.observations, self.actions, self.after)

    def some(self, which: Sequence[int] | np.ndarray) -> "Pairs":
        """Return these pairs alone."""
        return replace(self, **{name: getattr(self, name)[which] for name in ARRAYS})

    def write(self, folder: Path) -> None:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in ARRAYS}
        write(folder / FILE, "pairs", tensors, {"env": self.env, "policy": self.policy})

    @classmethod
    def read(cls, folder: Path) -> "Pairs":
        """Return those of a folder that `ask` wrote."""
        tensors, header = read(folder / FILE, "pairs")
        check_shape(header, {"env": str, "policy": str}, str(folder / FILE))
        if {*tensors} != {*ARRAYS} or any(len(each) != len(tensors["seeds"]) for each in tensors.values()):
            raise FileError(f"{folder / FILE} holds no pairs of clips")
        return cls(header["env"], header["policy"], **{name: tensor.numpy() for name, tensor in tensors.items()})


ARRAYS = ("observations", "actions", "after", "seeds", "starts", "played")


def fingerprint(path: Path) -> str:
    """Return what a policy is known by, in a file that was made with it."""
    return file_sum(path)[:16] if path.is_file() else sha256(str(path).encode()).hexdigest()[:16]


def candidates(
    agent: Agent, policy: str, env: str, count: int, steps: int, noise: float, latest: int, seed: int
) -> Pairs:
    """Return pairs in which the policy acts alike up to a step of its own, at most `latest`, and then in two ways.

    Where episodes end too soon for that, further draws part earlier. Each way adds to the mean action one sample's
    distance from it, times `noise`, all along the clip. A policy that makes choices samples each of them.
    """
    if count < 1 or steps < 2 or not 0 < noise < np.inf:
        asked = f"{count} pairs of {steps} steps with noise {noise} cannot be asked about"
        raise UsageError(f"{asked}: name 1 or more, of 2 steps or more, and noise above 0")
    env = match_observation(env, agent.observation_size)
    backend = "gymnasium" if is_in_gymnasium(env) else "envpool"  # the one that films
    found = list[Pairs]()
    for round_ in range(PATIENCE):
        random = np.random.default_rng([seed, round_])
        starts, first = random.integers(0, (latest >> round_) + 1, count), seed + round_ * count
        sides = list[dict[str, np.ndarray]]()
        for side in range(2):
            generator = torch.Generator().manual_seed(int(random.integers(2**31)) + side)
            with closing(make_envs(env, count, first, backend)) as envs:  # type: ignore[arg-type]
                check_fit(agent, envs)
                sides.append(_played(agent, envs, starts, steps, latest + steps, noise, generator))
        pairs = {name: np.stack([played[name] for played in sides], 1) for name in sides[0]}
        whole = np.flatnonzero(pairs.pop("whole").all(1))
        pairs |= {"seeds": first + np.arange(count), "starts": starts}
        found.append(Pairs(env, policy, **pairs).some(whole))
        if sum(len(each.seeds) for each in found) >= count:
            break
    joined = {name: np.concatenate([getattr(each, name) for each in found])[:count] for name in ARRAYS}
    if not len(joined["seeds"]):
        raise UsageError(f"in {env} episodes end before a clip of {steps} steps does: name fewer --seconds")
    return Pairs(env, policy, **joined)


def _played(
    agent: Agent, envs: Envs, starts: np.ndarray, steps: int, total: int, noise: float, generator: torch.Generator
) -> dict[str, np.ndarray]:
    """Return one side of the arrays of `Pairs`, `[P, ...]` each, and as `whole` whether no episode ends in the clip."""
    count, chooses = len(starts), agent.actions.kind == "discrete"
    mean_actor, sampling_actor = agent.actor(total, count), agent.actor(total, count, generator)
    observations = [envs.reset()]
    sent, after = list[np.ndarray](), list[np.ndarray]()
    held = np.zeros(0)
    alive, whole = np.ones(count, bool), np.zeros(count, bool)
    for t in range(total):
        mode, sample = mean_actor(observations[t]), sampling_actor(observations[t])
        away = (sample - mode) * (1 if chooses else noise)
        held = away if t == 0 else np.where((starts == t)[:, None] | chooses, away, held)
        actions = np.where((t >= starts)[:, None], mode + held, mode).astype(mode.dtype)
        sent.append(agent.to_environment(actions))
        step = envs.step(sent[t])
        observations.append(step.observations)
        after.append(step.final)
        alive &= ~(step.terminated | step.truncated) | (t >= starts + steps)
        whole |= alive & (t == starts + steps - 1)
    rows, clip = np.arange(count)[:, None], starts[:, None] + np.arange(steps)
    played = np.stack(sent, 1)
    return {
        "observations": np.stack(observations, 1)[rows, clip],
        "actions": to_env_numbers(played[rows, clip], agent.actions).astype(np.float32),
        "after": np.stack(after, 1)[rows, clip],
        "played": played,
        "whole": whole,
    }


def asked(pool: Pairs, count: int, wish: LearntWish | None) -> Pairs:
    """Return the pairs to ask about: those whose answers would tell most about a wish; else the first ones."""
    if wish is None:
        return pool.some(range(min(count, len(pool.seeds))))
    if wish.networks is not None:
        rewards = wish.networks(torch.from_numpy(pool.inputs).reshape(-1, pool.inputs.shape[-1]))
        sums = rewards.reshape(-1, *pool.after.shape[:3]).sum(-1).numpy()
        rows, belief = as_belief(sums[..., 0] - sums[..., 1])
    else:
        assert wish.features is not None
        sums = pool.features(wish.features)
        rows, belief = sums[:, 0] - sums[:, 1], Theta(wish.theta, wish.covariance)
    return pool.some(most_telling(rows, belief, count))


MEANS = {"left": 1.0, "right": 0.0, "alike": 0.5, "unknown": None}


Answers = dict[tuple[int, int], float | None]  # of one person, by (page, pair)


def read_answers(path: Path, pages: Sequence[Pairs]) -> Answers:
    """Return the answers of a file, where pages count in the order of `pages`; of one given twice, the last."""
    places = {page.page: index for index, page in enumerate(pages)}
    found: Answers = {}
    for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise FileError(f"{where} is no answer as the page saves it: {printable(line, 60)}") from None
        check_shape(answer, {"page": str, "pair": int, "answer": str}, where)
        if answer["page"] not in places:
            named = "name the folder that `repolicy ask` wrote for it with --asked"
            raise UsageError(f"{where} answers a page that is none of those given; {named}")
        place = places[answer["page"]]
        if answer["answer"] not in MEANS or not 0 <= answer["pair"] < len(pages[place].seeds):
            raise FileError(f"{where} is no answer to a pair of that page")
        found[place, answer["pair"]] = MEANS[answer["answer"]]
    return found


def learnt(pages: Sequence[Pairs], answers: Sequence[Answers], features: str = "") -> LearntWish:
    """Return the wish that answers tell: θ of features or, where none are named, an ensemble of small networks.

    All of `answers` count, of a pair that two people answered both.
    """
    if not pages:
        raise UsageError("answers need the folder that `repolicy ask` wrote: name it with --asked")
    if len({(page.env, page.after.shape[2:]) for page in pages}) > 1:
        raise UsageError("the pages are of several environments, or their clips differ in length: learn from one kind")
    known = [(key, value) for of_one in answers for key, value in of_one.items() if value is not None]
    values = np.array([value for _, value in known])
    first, source = pages[0], f"{counted(len(known), 'answer')} on pairs of clips"
    where = (first.env, first.policy, source, (first.observations.shape[-1], first.actions.shape[-1]))

    def answered(arrays: Sequence[np.ndarray]) -> np.ndarray:
        rows = [arrays[page][pair] for (page, pair), _ in known]
        return np.stack(rows) if rows else np.empty((0, *arrays[0].shape[1:]))

    if not features:
        inputs = answered([page.inputs for page in pages])
        made = fitted_networks(inputs[:, 0], inputs[:, 1], values)
        centre = made(torch.from_numpy(inputs).reshape(-1, inputs.shape[-1])).mean(1)
        return LearntWish(*where, None, networks=_centred(made, centre))
    described = Features.of(features)
    sums = answered([page.features(described) for page in pages])
    names = described.names(sums.shape[-1], where[-1])
    theta = bradley_terry(sums[:, 0] - sums[:, 1], values, names=names)
    return LearntWish(*where, described, names, theta.value, theta.covariance)


def _centred(made: Networks, centre: torch.Tensor) -> Networks:
    """Return networks whose mean reward over the clips is 0: answers tell nothing of a reward for each step alike.

    A unit whose input is always 1 takes it off.
    """
    members, size, _ = made.first.shape
    first = torch.cat([made.first, torch.zeros(members, size, 1)], 2)
    bias = torch.cat([made.bias, torch.full((members, 1), 20.0)], 1)  # tanh(20) is 1
    return Networks(made.shift, made.scale, first, bias, torch.cat([made.second, -centre[:, None]], 1))


def spread_a_step(pages: Sequence[Pairs], wish: LearntWish) -> float:
    """Return the standard deviation of a wish's reward over the steps of the clips."""
    return float(np.concatenate([wish(*page.steps, {}) for page in pages]).std())
