"""Episodes of a prior in a host's environments, before it trains: what a nat is worth, and which states it visits."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.hosts.method import Method
from repolicy.hosts.steering import Steering
from repolicy.learning.multipliers import MIN_LOST_SHARE
from repolicy.policies import ActionSpace, Density, Normalizer, moment_sums
from repolicy.policies.density import fit_density
from repolicy.prepare.decision import decide_weights
from repolicy.prepare.states import (
    MAX_OBSERVATIONS,
    MAX_STATE_SIZE,
    MAX_STEPS_RATIO,
    MIN_OBSERVATIONS,
    SKIPPED_STEPS,
    check_enough,
)
from repolicy.prepare.weights import Shape, WeightFinder
from repolicy.prepare.worth import MAX_EPISODE_STEPS, WORTH_EPISODES, EpisodeSums, Worth, Worths, worth_of
from repolicy.report.host_page import to_evaluation
from repolicy.report.verdict import Pair, action_words, mean_and_std, verdict

LOOKED_AT = 64  # environments whose states are kept, at most
SHARED = 256  # environments, from which on several who act run side by side: each still has more than `WORTH_EPISODES`


class Sizes(NamedTuple):
    """What weights depend on of a policy."""

    observation_size: int
    actions: ActionSpace


class Paid(NamedTuple):
    """What a step led to, each `[N, ...]`."""

    observations: Any
    basic: Tensor | None  # the environment's own reward, where it tells one beside the add-on's
    addon: Tensor
    ended: Tensor  # bool
    held: Iterable[Tensor] = ()  # what limits are on, each `[N]`


class Envs(Protocol):
    """A host's environments."""

    @property
    def count(self) -> int: ...

    @property
    def sizes(self) -> Sizes: ...

    @property
    def wish_weight(self) -> float:
        """What the wish weighs in the add-on; 1 where nobody tells it."""

    def begin(self) -> tuple[Any, bool]:
        """Return observations, and whether episodes begin with them."""

    def step(self, actions: Tensor) -> Paid: ...

    def states(self, observations: Any) -> Tensor:
        """Return the observations in rows of numbers `[N, O]`."""


class Episodes(NamedTuple):
    """One episode of each environment, or its first thousand steps: sums, each `[N]`, and the states `[M, O]`."""

    basic: Tensor
    addon: Tensor
    squares: Tensor  # of what the add-on paid in each step
    nats: Tensor
    lengths: Tensor
    held: Tensor  # what limits are on, `[L, N]`
    states: Tensor


@torch.no_grad()
def one_each(envs: Envs, prior: Any, sample: bool, looked_at: slice = slice(LOOKED_AT)) -> Episodes:
    """Run one episode of the prior in each environment. States are kept of sampled ones, in the order of time.

    An episode that was under way does not count: the next one does or, where it does not end within a thousand steps,
    the steps that follow these.
    """
    observations, begins = envs.begin()
    prior.forget()
    total: Any = 0.0
    states, late = list[Tensor](), list[Tensor]()
    counts = finished = ages = torch.zeros(())
    for step in range(MAX_EPISODE_STEPS if begins else 2 * MAX_EPISODE_STEPS):
        actions, nats = prior.act(observations, sample)
        observations, basic, addon, ended, held = envs.step(actions)
        if step == 0:
            finished, ages = torch.zeros_like(ended), torch.zeros_like(ended, dtype=torch.long)
            counts = torch.full_like(ended, begins)
        unknown = torch.full_like(addon, math.nan)
        nats, one = nats.to(addon.device), torch.ones_like(addon)
        row = torch.stack([unknown if basic is None else basic, addon, addon.square(), nats, one, *held])
        total = total + torch.where(counts & ~finished, row.double(), 0.0)
        ages = torch.where(ended, 0, ages + 1)
        if sample:
            states.append(envs.states(observations)[looked_at])
            late.append(ages[looked_at] > SKIPPED_STEPS)
        prior.forget(ended)
        finished = finished | (counts & ended)
        counts = counts | ended | (step + 1 == MAX_EPISODE_STEPS)
        if bool(finished.all()):
            break
    seen = torch.stack(states).transpose(0, 1)[torch.stack(late).T] if sample else torch.empty(0)
    basic, addon, squares, nats, lengths = total[:5]
    return Episodes(basic, addon, squares, nats, lengths, total[5:], seen)


class Together:
    """Several who act, sampled or not, in turn from environment to environment. None of them has a memory."""

    def __init__(self, who: Sequence[tuple[Any, bool]], count: int) -> None:
        self.who, self.turn = who, torch.arange(count) % len(who)

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        each = [acting.act(observations, sampled) for acting, sampled in self.who]
        actions, nats = (torch.stack(part) for part in zip(*each, strict=True))
        self.turn = self.turn.to(actions.device)
        at = self.turn, torch.arange(len(self.turn), device=actions.device)
        return actions[at], nats[at]

    def forget(self, ended: Tensor | None = None) -> None:
        for acting, _ in self.who:
            acting.forget(ended)


def side_by_side(envs: Envs, who: Sequence[tuple[Any, bool]]) -> list[list[Episodes]] | None:
    """Run episodes of each who acts, sampled or not, in an equal share of the environments.

    A step of many takes a GPU hardly longer than one of few. None where they are few, or somebody has a memory.
    """
    if envs.count < SHARED or any(acting.has_memory for acting, _ in who):
        return None
    each, kinds, together = len(who), [sampled for _, sampled in who], Together(who, envs.count)
    first = kinds.index(True)
    *sums_of, states = one_each(envs, together, sample=True, looked_at=slice(first, first + each * LOOKED_AT, each))
    return [[Episodes._make([*(part[..., at::each] for part in sums_of), states])] for at in range(each)]


class Look:
    """Episodes by the mean action and sampled ones, run when somebody asks for what they tell."""

    def __init__(self, envs: Envs, prior: Any) -> None:
        self.envs, self.prior = envs, prior
        self.by_mean, self.sampled = list[Episodes](), list[Episodes]()

    def worths(self) -> Worths:
        """Return what a nat is worth in the environment's own reward, and in the add-on, by some 32 episodes.

        A wish that weighs more than 1 is measured at weight 1, as in the engine.
        """
        shared = side_by_side(self.envs, [(self.prior, False), (self.prior, True)])
        self.by_mean, self.sampled = shared or (self.by_mean, self.sampled)
        while sum(len(each.nats) for each in self.by_mean) < WORTH_EPISODES:
            self.by_mean.append(one_each(self.envs, self.prior, sample=False))
            self.sampled.append(one_each(self.envs, self.prior, sample=True))

        def worth(name: str, unit: float = 1.0) -> Worth | None:
            both = (
                EpisodeSums(_joined(each, name) / unit, _joined(each, "nats")) for each in (self.by_mean, self.sampled)
            )
            return worth_of(*both)

        of_addon = worth("addon", max(1.0, self.envs.wish_weight))
        return Worths(worth("basic"), of_addon, float(_joined(self.sampled, "lengths").mean()))

    def paid(self) -> np.ndarray:
        """Return the usual size of what the add-on pays for a sampled step."""
        self._sample()
        squares, lengths = (_joined(self.sampled, name).sum() for name in ("squares", "lengths"))
        return np.sqrt(np.array([squares / lengths]))

    def earned(self) -> tuple[list[float], list[tuple[float, float]]]:
        """Return what the prior earns of the environment's own reward: a step of the mean action, a sampled one.

        Each with its error; and before them, what sampled actions earn at each age, as if all steps earned alike.
        """
        self.by_mean = _episodes(self.envs, self.prior, False, self.by_mean)
        self.sampled = _episodes(self.envs, self.prior, True, self.sampled)
        found, by_age = list[tuple[float, float]](), list[float]()
        for each in (self.by_mean, self.sampled):
            paid, steps = (_joined(each, name) for name in ("basic", "lengths"))
            mean, count, longest = paid.sum() / steps.sum(), len(paid), int(steps.max())
            off = np.square(paid - mean * steps).sum() * count / max(count - 1, 1)
            found.append((float(mean), float(np.sqrt(off) / steps.sum())))
            goes_on = steps > np.arange(longest + (longest < MAX_EPISODE_STEPS))[:, None]
            by_age = (mean * goes_on.mean(1)).tolist()
        return by_age, found

    def density(self) -> Density:
        """Return the density of the prior's states. Raises where these are too few, or too wide."""
        if self.envs.sizes.observation_size > MAX_STATE_SIZE:
            raise UsageError(f"states of more than {MAX_STATE_SIZE:,} numbers are not learned: set states to 0")
        self._sample()
        while self._more_states():
            self.sampled.append(one_each(self.envs, self.prior, sample=True))
        states = torch.cat([each.states for each in self.sampled])[:MAX_OBSERVATIONS].float()
        try:
            check_enough(len(states), float(_joined(self.sampled, "lengths").mean()))
        except UsageError as error:
            raise UsageError(in_hosts_words(str(error))) from None
        return density_of_states(states)

    def _more_states(self) -> bool:
        """Return whether another round is to run: until states are enough, and four rounds at most.

        Where environments are few there are more rounds, as long as a quarter of the steps count.
        """
        states = sum(len(each.states) for each in self.sampled)
        steps = sum(float(each.lengths[:LOOKED_AT].sum()) for each in self.sampled)
        few = states < MIN_OBSERVATIONS and MAX_STEPS_RATIO * states >= steps
        return few or (states < MAX_OBSERVATIONS and len(self.sampled) < MAX_STEPS_RATIO)

    def _sample(self) -> None:
        if not self.sampled:
            self.sampled.append(one_each(self.envs, self.prior, sample=True))


def density_of_states(states: Tensor) -> Density:
    """Return the density of raw observations `[M, O]` that a prior has visited, in the order of time."""
    normalizer = Normalizer(states.shape[-1]).to(states.device)
    normalizer.update(moment_sums(states))
    return fit_density(normalizer(states), normalizer)


def compared(method: Method, envs: Envs, policy: Any) -> str:
    """Return a table of some 32 episodes of the prior and of what became of it, and the engine's verdict on them.

    The method keeps the episodes, for the report.
    """
    if method.prior is None:
        raise UsageError("there is no prior to compare with")
    pairs, lines, told = list[Pair](), list[str](), list[dict[str, Any]]()
    both = [(acting, sample) for sample in (False, True) for acting in (method.prior, policy)]
    episodes = iter(side_by_side(envs, both) or [_episodes(envs, *each) for each in both])
    for sample in (False, True):
        told += [
            {"who": name, "sampled": sample} | _told(next(episodes), method.steering.limited)
            for name in ("prior", "customized")
        ]
        before, after = map(to_evaluation, told[-2:])
        for who, found in (("prior", before), ("customized", after)):
            numbers = ", ".join(f"{column.title} {mean_and_std(column)}" for column in found.columns.values())
            lines.append(f"{who} with {action_words(found)}: {numbers}")
        pairs.append((before, after))
    envs.begin()
    method.forget()
    method.compared = told
    return "\n".join([*lines, verdict(pairs)])


def _episodes(envs: Envs, acting: Any, sample: bool, before: Iterable[Episodes] = ()) -> list[Episodes]:
    found = [*before]
    while sum(len(each.nats) for each in found) < WORTH_EPISODES:
        found.append(one_each(envs, acting, sample))
    return found


def _told(found: list[Episodes], limits: Iterable[str]) -> dict[str, Any]:
    """Return what episodes gave, in plain numbers; None is what the environment does not tell."""
    names = ("basic", "addon", "lengths")
    means = _joined(found, "held") / _joined(found, "lengths")
    return {
        name: [value if math.isfinite(value) else None for value in _joined(found, name).tolist()] for name in names
    } | {"limits": dict(zip(limits, means.tolist(), strict=True))}


def _joined(episodes: list[Episodes], name: str) -> np.ndarray:
    return torch.cat([getattr(each, name) for each in episodes], -1).cpu().numpy()


@dataclass
class InHost(WeightFinder):
    """What weights are found for in a host, whose own environments run the episodes; a function has none."""

    look: Look | None

    @property
    def wish(self) -> str:
        weighs_more = self.look is not None and self.look.envs.wish_weight > 1.0
        return "the add-on at weight 1" if weighs_more else "the add-on as it is paid"

    @property
    def episodes(self) -> Look:
        if self.look is None:
            untold = "the prior's file does not tell what a nat of it is worth"
            raise UsageError(f"{untold}, and a function has no environment to measure it in: name omega and alpha")
        return self.look

    def measure_worths(self) -> Worths:
        return self.episodes.worths()

    def addon_rewards(self) -> np.ndarray:
        return self.episodes.paid()


def weighed(
    steering: Steering, card: dict[str, Any], prior: Shape, look: Look | None, say: Callable[[str], None]
) -> Steering:
    """Return the same with all weights that are not named: by the prior's card, else by what `look` measures.

    `say` hears each choice in a sentence, with the command line's options.
    """
    if steering.objective.is_set:
        return steering
    task = InHost(card, prior, steering.settings, say, look)
    try:
        found = decide_weights(steering.objective, task)
    except UsageError as error:
        raise UsageError(in_hosts_words(str(error))) from None
    for note in found.notes:
        say(note)
    return replace(steering, objective=found.objective, kl_budget=found.settings.kl_budget)


def in_hosts_words(sentence: str) -> str:
    """Return a sentence with a host's settings in the place of the command line's options: kl_budget of --kl-budget."""
    return re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", "_"), sentence)


def decide_in(method: Method, envs: Envs) -> None:
    """Set all weights of a method that are not named, saying each choice; learn states where they have a price."""
    look = Look(envs, method.prior)

    def say(sentence: str) -> None:
        print(f"ResidualPPO: {in_hosts_words(sentence)}")

    method.steering = weighed(method.steering, method.prior.card, envs.sizes, look, say)
    if (keep := method.steering.keep) and not method.steering.kept:
        by_age, ((earned, error), (sampled, beside)) = look.earned()
        if not math.isfinite(earned):
            raise UsageError("keep goes by basic_reward, and the environment tells one that is no finite number")
        size = abs(earned)
        bound = f"basic_reward>={earned - (1.0 - keep) * size:.6g}"
        method.steering.hold(bound, max(1.0 - keep, MIN_LOST_SHARE) * size, earned - sampled, by_age)
        coarse = "; errors are larger than what may be lost: take more environments"
        say(
            f"keep is {keep:g} of {earned:.3g} ± {error:.1g}, what the prior's mean action earns a step: "
            f"{method.steering.kept}{coarse * (max(error, beside) > (1.0 - keep) * size)}"
        )
    if method.steering.objective.states and method.density is None:
        method.density = look.density()
    envs.begin()
    method.forget()
