"""Pairs of clips with the same start for a person to compare, and the wish that is fitted to the answers.

With an earlier wish, the most informative pairs of many candidates are chosen. A browser saves one JSON line per
answer.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from repolicy.addons import Features, LearntWish, Networks, network_inputs
from repolicy.envs import Envs, check_fit, evaluation_backend, make_envs, match_observation, to_env_numbers
from repolicy.errors import FileError, UsageError
from repolicy.files import check_shape, file_sum, read_bytes
from repolicy.policies import Agent
from repolicy.policies.storage import read, write
from repolicy.text import format_count, printable
from repolicy.wishes.inference import Theta
from repolicy.wishes.preferences import as_belief, bradley_terry, fit_networks, most_informative

FILE = "pairs.safetensors"
CANDIDATES = 5  # candidates per pair, if an earlier wish chooses among them
MAX_ROUNDS = 5  # of simulation, until there are enough clips in which no episode ends


@dataclass(frozen=True)
class Pairs:
    """P pairs of clips of T steps, left and right, as arrays `[P, 2, T, ...]`."""

    env: str
    policy: str  # its fingerprint
    observations: np.ndarray
    actions: np.ndarray  # as add-ons read them
    after: np.ndarray  # next observations
    seeds: np.ndarray  # [P] seeds of the environment
    starts: np.ndarray  # [P] the step at which the two clips begin to differ
    played: np.ndarray  # [P, 2, S, A] all actions since the reset, as the environment received them

    @property
    def page(self) -> str:
        """The id of these pairs, which the page writes into each answer."""
        return sha256(self.after.tobytes() + self.actions.tobytes()).hexdigest()[:16]

    def features(self, features: Features) -> np.ndarray:
        """Return the sums of features over each clip, `[P, 2, K]`."""
        observations, actions, after = self.steps
        return features(observations, actions, after, {}).reshape(*self.after.shape[:3], -1).sum(2)

    @property
    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations, actions and next observations of all steps, `[P·2·T, ...]`."""
        arrays = self.observations, self.actions, self.after
        observations, actions, after = (array.reshape(-1, array.shape[-1]) for array in arrays)
        return observations, actions, after

    @property
    def inputs(self) -> np.ndarray:
        """The inputs of reward networks, `[P, 2, T, I]`."""
        return network_inputs(self.observations, self.actions, self.after)

    def select(self, indices: Sequence[int] | np.ndarray) -> "Pairs":
        """Return the pairs with these indices."""
        return replace(self, **{name: getattr(self, name)[indices] for name in ARRAYS})

    def write(self, folder: str | Path) -> None:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in ARRAYS}
        write(Path(folder, FILE), "pairs", tensors, {"env": self.env, "policy": self.policy})

    @classmethod
    def read(cls, folder: str | Path) -> "Pairs":
        """Read the pairs of a folder that `ask` wrote."""
        folder = Path(folder)
        if not (folder / FILE).is_file():
            raise FileError(f"{folder} is no folder that `repolicy ask` wrote: it has no {FILE}")
        tensors, header = read(folder / FILE, "pairs")
        check_shape(header, {"env": str, "policy": str}, str(folder / FILE))
        if {*tensors} != {*ARRAYS} or any(len(each) != len(tensors["seeds"]) for each in tensors.values()):
            raise FileError(f"{folder / FILE} holds no pairs of clips")
        return cls(header["env"], header["policy"], **{name: tensor.numpy() for name, tensor in tensors.items()})


ARRAYS = ("observations", "actions", "after", "seeds", "starts", "played")


def fingerprint(path: Path) -> str:
    """Return the id of a policy's file or folder."""
    return file_sum(path)[:16] if path.is_file() else sha256(str(path).encode()).hexdigest()[:16]


def candidates(
    agent: Agent, policy: str, env: str, count: int, steps: int, noise: float, latest: int, seed: int
) -> Pairs:
    """Return pairs of clips. Both follow the mean action up to a random step, at most `latest`, and differ from there.

    Each clip then adds a constant offset to the mean action: `noise` times the deviation of one sampled action from the
    mean. With discrete actions, each step is sampled instead. Clips in which an episode ends, and pairs of
    two equal clips, are dropped; further rounds then begin earlier in the episode.
    """
    if count < 1 or steps < 2 or not 0 < noise < np.inf:
        what = f"{count} pairs of {steps} steps with noise {noise} cannot be asked about"
        raise UsageError(f"{what}: name 1 or more, of 2 steps or more, and noise above 0")
    env = match_observation(env, agent)
    backend = evaluation_backend(env, "envpool")
    complete, has_whole = list[Pairs](), False
    for round_ in range(MAX_ROUNDS):
        random = np.random.default_rng([seed, round_])
        starts, first = random.integers(0, (latest >> round_) + 1, count), seed + round_ * count
        sides = list[dict[str, np.ndarray]]()
        for index in range(2):
            generator = torch.Generator().manual_seed(int(random.integers(2**31)) + index)
            with closing(make_envs(env, count, first, backend)) as envs:
                check_fit(agent, envs)
                sides.append(_clips(agent, envs, starts, steps, latest + steps, noise, generator))
        pairs = {name: np.stack([side[name] for side in sides], 1) for name in sides[0]}
        is_whole = pairs.pop("is_complete").all(1)
        has_whole |= bool(is_whole.any())
        seen = ["after", "actions"] if agent.actions.kind == "discrete" else ["after"]  # beyond bounds numbers are one
        differs = np.any([(pairs[name][:, 0] != pairs[name][:, 1]).any((1, 2)) for name in seen], 0)
        pairs |= {"seeds": first + np.arange(count), "starts": starts}
        complete.append(Pairs(env, policy, **pairs).select(np.flatnonzero(is_whole & differs)))
        if sum(len(each.seeds) for each in complete) >= count:
            break
    joined = {name: np.concatenate([getattr(each, name) for each in complete])[:count] for name in ARRAYS}
    if not len(joined["seeds"]) and has_whole:
        raise UsageError(f"in {env} both clips of each pair are the same: name more --seconds, or another --noise")
    if not len(joined["seeds"]):
        raise UsageError(f"in {env} episodes end before a clip of {steps} steps does: name fewer --seconds")
    return Pairs(env, policy, **joined)


def _clips(
    agent: Agent, envs: Envs, starts: np.ndarray, steps: int, total: int, noise: float, generator: torch.Generator
) -> dict[str, np.ndarray]:
    """Return one side of the arrays of `Pairs`, `[P, ...]`, and `is_complete`: whether no episode ends in the clip."""
    count, is_discrete = len(starts), agent.actions.kind == "discrete"
    mean_actor, sampling_actor = agent.actor(total, count), agent.actor(total, count, generator)
    observations = [envs.reset()]
    sent, after = list[np.ndarray](), list[np.ndarray]()
    offset = np.zeros(0)
    is_alive, is_complete = np.ones(count, bool), np.zeros(count, bool)
    for t in range(total):
        mode, sample = mean_actor(observations[t]), sampling_actor(observations[t])
        deviation = (sample - mode) * (1 if is_discrete else noise)
        offset = deviation if t == 0 else np.where((starts == t)[:, None] | is_discrete, deviation, offset)
        actions = np.where((t >= starts)[:, None], mode + offset, mode).astype(mode.dtype)
        sent.append(agent.to_environment(actions))
        step = envs.step(sent[t])
        observations.append(step.observations)
        after.append(step.final)
        is_alive &= ~(step.terminated | step.truncated) | (t >= starts + steps)
        is_complete |= is_alive & (t == starts + steps - 1)
    rows, clip = np.arange(count)[:, None], starts[:, None] + np.arange(steps)
    played = to_env_numbers(np.stack(sent, 1), envs.actions)
    return {
        "observations": np.stack(observations, 1)[rows, clip],
        "actions": played[rows, clip].astype(np.float32),
        "after": np.stack(after, 1)[rows, clip],
        "played": played,
        "is_complete": is_complete,
    }


def choose_pairs(pool: Pairs, count: int, wish: LearntWish | None) -> Pairs:
    """Return the pairs to ask about: the most informative ones for a wish, or without one the first ones."""
    if wish is None:
        return pool.select(range(min(count, len(pool.seeds))))
    if wish.networks is not None:
        rewards = wish.networks(torch.from_numpy(pool.inputs).reshape(-1, pool.inputs.shape[-1]))
        sums = rewards.reshape(-1, *pool.after.shape[:3]).sum(-1).numpy()
        rows, belief = as_belief(sums[..., 0] - sums[..., 1])
    else:
        assert wish.features is not None
        sums = pool.features(wish.features)
        rows, belief = sums[:, 0] - sums[:, 1], Theta(wish.theta, wish.covariance)
    return pool.select(most_informative(rows, belief, count))


VALUES = {"left": 1.0, "right": 0.0, "alike": 0.5, "unknown": None}
Answers = dict[tuple[int, int], float | None]  # of one person, by (page, pair)


def read_answers(paths: Sequence[Path], pages: Sequence[Pairs]) -> list[Answers]:
    """Read files of answers. Keys are (index in `pages`, pair); of several answers to a pair in a file the last counts.

    A line that an earlier file has as well is the same answer, saved twice, and counts once.
    """
    sizes = {page.page: (index, len(page.seeds)) for index, page in enumerate(pages)}
    answers, seen = list[Answers](), set[str]()
    for path in paths:
        lines = read_bytes(path).decode(errors="replace").splitlines()
        answers.append({})
        for number, line in enumerate(lines, 1):
            if line.strip() and line not in seen:
                key, value = _parse_answer(line, f"{path}, line {number}", sizes)
                answers[-1][key] = value
        seen |= {*lines}
    return answers


def _parse_answer(line: str, where: str, sizes: dict[str, tuple[int, int]]) -> tuple[tuple[int, int], float | None]:
    """Return an answer's key and value. `sizes` has the index and the number of pairs of each page."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise FileError(f"{where} is no answer as the page saves it: {printable(line, 60)}") from None
    if isinstance(answer, dict) and "record" in answer:
        raise UsageError(f"{where} begins a record of take-overs, and no answers: leave --asked out")
    check_shape(answer, {"page": str, "pair": int, "answer": str}, where)
    if answer["page"] not in sizes:
        remedy = "name the folder that `repolicy ask` wrote for it with --asked"
        raise UsageError(f"{where} answers a page that is none of those given; {remedy}")
    index, count = sizes[answer["page"]]
    if answer["answer"] not in VALUES or not 0 <= answer["pair"] < count:
        raise FileError(f"{where} is no answer to a pair of that page")
    return (index, answer["pair"]), VALUES[answer["answer"]]


def learn_from_answers(pages: Sequence[Pairs], answers: Sequence[Answers], features: str = "") -> LearntWish:
    """Fit a wish to answers: θ of the named features or, if none are named, an ensemble of small networks.

    `answers` has one entry per file. If two people answered the same pair, both answers count.
    """
    if len({(page.env, page.after.shape[2:]) for page in pages}) > 1:
        raise UsageError("the pages are of several environments, or their clips differ in length: learn from one kind")
    decided = [(key, value) for of_one in answers for key, value in of_one.items() if value is not None]
    if not decided:
        raise UsageError("no answer says which of two clips is better, or that they are alike: answer some more")
    leads = {pair: 0.0 for pair, _ in decided}  # how far the left clip of each pair is ahead of the right one
    for pair, value in decided:
        leads[pair] += value - 0.5
    if not any(leads.values()):  # the networks' random beginning would remain as a wish
        raise UsageError("the answers tell no difference between clips, so nothing can be learnt: answer some more")
    values = np.array([value for _, value in decided])
    first, source = pages[0], f"{format_count(len(decided), 'answer')} on pairs of clips"
    where = (first.env, first.policy, source, (first.observations.shape[-1], first.actions.shape[-1]))

    def of_answers(arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the rows of the pairs that were answered, from one array `[P, ...]` per page."""
        return np.stack([arrays[page][pair] for (page, pair), _ in decided])

    if not features:
        inputs = of_answers([page.inputs for page in pages])
        networks = fit_networks(inputs[:, 0], inputs[:, 1], values)
        means = networks(torch.from_numpy(inputs).reshape(-1, inputs.shape[-1])).mean(1)
        return LearntWish(*where, None, networks=_centered(networks, means))
    described = Features.of(features)
    sums = of_answers([page.features(described) for page in pages])
    names = described.names(sums.shape[-1], where[-1])
    theta = bradley_terry(sums[:, 0] - sums[:, 1], values, names=names)
    return LearntWish(*where, described, names, theta.value, theta.covariance)


def _centered(networks: Networks, means: torch.Tensor) -> Networks:
    """Return the networks with their mean rewards over the clips subtracted, so that the mean is 0.

    Answers contain nothing about a constant reward per step. A hidden unit whose output is always 1 subtracts it.
    """
    members, size, _ = networks.first.shape
    first = torch.cat([networks.first, torch.zeros(members, size, 1)], 2)
    bias = torch.cat([networks.bias, torch.full((members, 1), 20.0)], 1)  # tanh(20) is 1
    second = torch.cat([networks.second, -means[:, None]], 1)
    return Networks(networks.shift, networks.scale, first, bias, second)


def std_of_reward(pages: Sequence[Pairs], wish: LearntWish) -> float:
    """Return the std of a wish's reward over all steps of the clips."""
    return float(np.concatenate([wish(*page.steps, {}) for page in pages]).std())
