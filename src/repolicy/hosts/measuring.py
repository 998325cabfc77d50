"""Episodes of a prior in a host's environments: they set the weights that are not named, and they give the verdict."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from repolicy.differences import Column
from repolicy.errors import UsageError
from repolicy.evaluation import ACTIONS
from repolicy.hosts.method import Method
from repolicy.hosts.steering import Steering
from repolicy.learning.multipliers import MIN_LOST_SHARE
from repolicy.policies import ActionSpace, Density
from repolicy.prepare.decision import decide_weights
from repolicy.prepare.states import (
    MAX_OBSERVATIONS,
    MAX_STATE_SIZE,
    MAX_STEPS_RATIO,
    MIN_OBSERVATIONS,
    SKIPPED_STEPS,
    check_enough,
    density_of_states,
)
from repolicy.prepare.weights import Shape, WeightFinder
from repolicy.prepare.worth import MAX_EPISODE_STEPS, WORTH_EPISODES, Worths, worths_of
from repolicy.readers.reading import errors_in_python_terms, in_python_terms
from repolicy.report.host_page import host_verdict, to_evaluation
from repolicy.report.verdict import Pair
from repolicy.runs import Estimate
from repolicy.text import with_minus

MAX_WORTH_EPISODES = 4 * WORTH_EPISODES  # where fewer leave open whether a nat is worth anything
MAX_ROUNDS = 4  # of sampled episodes, in which there may be too few states for the best fit
STATE_ENVS = 64  # states are kept of this number of environments at most
MIN_SHARED_ENVS = 256  # with so many, actors share the environments: each still gets more than `WORTH_EPISODES`


class Sizes(NamedTuple):
    """The sizes of observations and actions, on which weights depend."""

    observation_size: int
    actions: ActionSpace


class EnvStep(NamedTuple):
    """What the environments returned for one step, each `[N, ...]`."""

    observations: Any
    basic: Tensor  # the environment's own reward; NaN where it is not given beside the add-on's
    addon: Tensor
    ended: Tensor  # bool
    terminated: Tensor  # bool: ended, and not at a time limit
    limit_values: Iterable[Tensor] = ()  # the quantities that have limits, each `[N]`


class HostEnvs(Protocol):
    """A host's environments."""

    @property
    def count(self) -> int: ...

    @property
    def sizes(self) -> Sizes: ...

    @property
    def wish_weight(self) -> float:
        """The weight of the wish in the add-on; 1 where it is unknown."""

    def reset(self) -> tuple[Any, bool]:
        """Return observations, and whether they begin episodes. Not all environments can be reset."""

    def step(self, actions: Tensor) -> EnvStep: ...

    @property
    def states(self) -> Tensor:
        """The present observations as flat vectors `[N, O]`."""


class HostEpisodes(NamedTuple):
    """Sums over one episode of each environment, or over its first thousand steps, each `[N]`."""

    basic: Tensor
    addon: Tensor
    squared_addon: Tensor  # of each step's add-on reward
    nats: Tensor  # as `HostPrior.act` returns them
    lengths: Tensor
    limit_values: Tensor  # `[L, N]`
    states: Tensor  # visited states `[M, O]`, in the order of time; empty where actions were not sampled
    last_states: Tensor = torch.empty(0)  # the states `[K, O]` before an episode was terminated
    ended: int = 0  # number of episodes in the environments of `states`


@torch.no_grad()
def run_episodes(envs: HostEnvs, actor: Any, sample: bool, state_envs: slice = slice(STATE_ENVS)) -> HostEpisodes:
    """Run one episode of an actor in each environment, and keep the states of sampled ones.

    An episode that was running before does not count. The next one does; or, where that episode does not end within a
    thousand steps, the thousand steps after these.
    """
    observations, begins = envs.reset()
    actor.reset()
    states, is_late, last_states = list[Tensor](), list[Tensor](), list[Tensor]()
    before, episodes, total = envs.states[state_envs], torch.zeros(()), torch.zeros(())
    ages = torch.zeros(envs.count, dtype=torch.long, device=before.device)
    finished = torch.zeros_like(ages, dtype=torch.bool)
    counts = torch.full_like(finished, begins)
    for step in range(MAX_EPISODE_STEPS if begins else 2 * MAX_EPISODE_STEPS):
        actions, nats = actor.act(observations, sample)
        observations, basic, addon, ended, terminated, limit_values = envs.step(actions)

        # sum what belongs to the episode that counts
        one = torch.ones_like(addon)
        row = torch.stack([basic, addon, addon.square(), nats.to(addon.device), one, *limit_values])
        total = total + torch.where(counts & ~finished, row.double(), 0.0)

        # states soon after an episode's start are left out, as they depend on how it was reset
        ages = torch.where(ended, 0, ages + 1)
        if sample:
            states.append(envs.states[state_envs])
            is_late.append(ages[state_envs] > SKIPPED_STEPS)
            last_states.append(before[terminated[state_envs]])
            before, episodes = states[-1], episodes + ended[state_envs]

        actor.reset(ended)
        finished = finished | (counts & ended)
        counts = counts | ended | (step + 1 == MAX_EPISODE_STEPS)
        if bool(finished.all()):
            break
    kept = torch.stack(states).transpose(0, 1)[torch.stack(is_late).T] if sample else torch.empty(0)
    ends = torch.cat(last_states) if sample else kept
    return HostEpisodes._make([*total[:5], total[5:], kept, ends, int(episodes.clamp(min=1).sum())])


class InterleavedActors:
    """Actors that act in one batch, each in every k-th environment. None of them may have a memory."""

    def __init__(self, actors: Sequence[tuple[Any, bool]], count: int) -> None:
        """Take pairs of an actor and whether it samples."""
        self.actors, self.actor_of_env = actors, torch.arange(count) % len(actors)

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        all_acted = [actor.act(observations, samples) for actor, samples in self.actors]
        actions = torch.stack([actions.reshape(len(nats), -1) for actions, nats in all_acted])  # one or more choices
        nats = torch.stack([nats for _, nats in all_acted])
        self.actor_of_env = self.actor_of_env.to(actions.device)
        chosen = self.actor_of_env, torch.arange(len(self.actor_of_env), device=actions.device)
        return actions[chosen], nats[chosen]

    def reset(self, ended: Tensor | None = None) -> None:
        for actor, _ in self.actors:
            actor.reset(ended)


def run_side_by_side(envs: HostEnvs, actors: Sequence[tuple[Any, bool]]) -> list[list[HostEpisodes]] | None:
    """Run episodes of each actor, sampled or not, in an equal share of the environments.

    On a GPU a step of many environments takes hardly longer than one of few. Returns None where there are too few
    environments, or an actor has a memory.
    """
    if envs.count < MIN_SHARED_ENVS or any(actor.has_memory for actor, _ in actors):
        return None
    count = len(actors)
    first_sampled = [samples for _, samples in actors].index(True)
    state_envs = slice(first_sampled, first_sampled + count * STATE_ENVS, count)
    found = run_episodes(envs, InterleavedActors(actors, envs.count), sample=True, state_envs=state_envs)
    *totals, states, last_states, ended = found
    shares = ([part[..., at::count] for part in totals] for at in range(count))
    return [[HostEpisodes._make([*share, states, last_states, ended])] for share in shares]


class PriorEpisodes:
    """Episodes of the prior by its mean action and by sampled ones, run when a measurement needs them."""

    def __init__(self, envs: HostEnvs, prior: Any) -> None:
        self.envs, self.prior = envs, prior
        self.by_mean, self.sampled = list[HostEpisodes](), list[HostEpisodes]()

    def worths(self) -> Worths:
        """Return the worth of a nat by some 32 episodes; by up to 128 where they leave open whether it has any."""
        shared = run_side_by_side(self.envs, [(self.prior, False), (self.prior, True)])
        if shared is not None:
            self.by_mean, self.sampled = shared
        while self._needs_worths():
            self.by_mean.append(run_episodes(self.envs, self.prior, sample=False))
            self.sampled.append(run_episodes(self.envs, self.prior, sample=True))
        return self._worths_so_far()

    def _needs_worths(self) -> bool:
        """Return whether another round is to run: up to 32 episodes, or 128 while it is open what a nat is worth."""
        episodes = sum(len(each.nats) for each in self.by_mean)
        if episodes < WORTH_EPISODES:
            return True
        return episodes < MAX_WORTH_EPISODES and self._worths_so_far().is_open

    def _worths_so_far(self) -> Worths:
        """Return the worth of a nat in the environment's own reward and in the add-on.

        A wish that weighs more than 1 is measured at weight 1, as in the engine.
        """
        names = ("basic", "addon", "nats", "lengths")
        by_mean, sampled = ({name: _concatenate(each, name) for name in names} for each in (self.by_mean, self.sampled))
        for each in (by_mean, sampled):
            each["addon"] = each["addon"] / max(1.0, self.envs.wish_weight)
        is_first_look = sum(len(each.nats) for each in self.by_mean[:-1]) < WORTH_EPISODES
        return worths_of(by_mean, sampled, is_first_look)

    def typical_addon(self) -> np.ndarray:
        """Return the root mean square of the add-on over sampled steps."""
        if not self.sampled:
            self.sampled.append(run_episodes(self.envs, self.prior, sample=True))
        squares, lengths = (_concatenate(self.sampled, name).sum() for name in ("squared_addon", "lengths"))
        return np.sqrt(np.array([squares / lengths]))

    def earnings(self) -> tuple[list[float], list[Estimate]]:
        """Return what the prior earns of the environment's own reward.

        First what sampled actions earn at each age of an episode, as if all steps earned alike, or 0 where steps cost,
        because an early end loses nothing then. Then the mean a step, for the mean action and for sampled ones.
        """
        self.by_mean = _run_enough(self.envs, self.prior, False, self.by_mean)
        self.sampled = _run_enough(self.envs, self.prior, True, self.sampled)
        step_means = [_reward_per_step(episodes) for episodes in (self.by_mean, self.sampled)]
        lengths = _concatenate(self.sampled, "lengths")
        longest = int(lengths.max())
        is_running = lengths > np.arange(longest + (longest < MAX_EPISODE_STEPS))[:, None]  # [ages, episodes]
        by_age = max(0.0, step_means[-1].mean) * is_running.mean(1)
        return by_age.tolist(), step_means

    def density(self) -> Density:
        """Return the density of the prior's states. Raises where they are too few, or observations too large."""
        if self.envs.sizes.observation_size > MAX_STATE_SIZE:
            raise UsageError(f"states of over {MAX_STATE_SIZE:,} numbers or in a Dict are not learned: set states to 0")
        while self._needs_states():
            self.sampled.append(run_episodes(self.envs, self.prior, sample=True))
        states = torch.cat([each.states for each in self.sampled])[:MAX_OBSERVATIONS].float()
        check_enough(len(states), float(_concatenate(self.sampled, "lengths").mean()))
        last_states = torch.cat([each.last_states for each in self.sampled]).float()
        return density_of_states(states, last_states, sum(each.ended for each in self.sampled))

    def _needs_states(self) -> bool:
        """Return whether another round is to run: until states are enough, and four rounds at most.

        With few environments there are more rounds, as long as a quarter of the steps gives states.
        """
        states = sum(len(each.states) for each in self.sampled)
        steps = sum(float(each.lengths[:STATE_ENVS].sum()) for each in self.sampled)
        few = states < MIN_OBSERVATIONS and MAX_STEPS_RATIO * states >= steps
        return few or (states < MAX_OBSERVATIONS and len(self.sampled) < MAX_ROUNDS)


def _reward_per_step(episodes: list[HostEpisodes]) -> Estimate:
    """Return the mean of the environment's own reward in a step, with its standard error."""
    rewards, lengths = (_concatenate(episodes, name) for name in ("basic", "lengths"))
    return Estimate(float(rewards.sum() / lengths.sum()), Column("", rewards / lengths, lengths).error)


def compare_with_prior(method: Method, envs: HostEnvs, policy: Any) -> str:
    """Return a table of some 32 episodes of the prior and of the customized policy, and the engine's verdict on them.

    The method stores the episodes for the report.
    """
    if method.prior is None:
        raise UsageError("there is no prior to compare with")
    actors = [(method.prior, False), (policy, False), (method.prior, True), (policy, True)]
    episodes = run_side_by_side(envs, actors) or [_run_enough(envs, *each) for each in actors]
    names = ("prior", "customized")
    steering = method.steering
    records = [
        {"who": names[i % 2], "sampled": samples}
        | _plain_numbers(each, steering.priced_limits if samples else steering.all_limits)  # the mean action keeps
        for i, (each, (_, samples)) in enumerate(zip(episodes, actors, strict=True))
    ]
    pairs, lines = list[Pair](), list[str]()
    for before, after in (records[:2], records[2:]):
        pairs.append((to_evaluation(before), to_evaluation(after)))
        for name, found in zip(names, pairs[-1], strict=True):
            numbers = "; ".join(f"{column.title} {column.describe()}" for column in found.columns.values())
            lines.append(f"{name} {ACTIONS[found.action]}: {numbers}")
    envs.reset()
    method.reset_episodes()
    method.verdict_episodes = records
    return "\n".join([*lines, *host_verdict(pairs, steering.is_trained)])


def _run_enough(envs: HostEnvs, actor: Any, sample: bool, before: Iterable[HostEpisodes] = ()) -> list[HostEpisodes]:
    """Run rounds of episodes until there are `WORTH_EPISODES`, with those from before."""
    rounds = [*before]
    while sum(len(each.nats) for each in rounds) < WORTH_EPISODES:
        rounds.append(run_episodes(envs, actor, sample))
    return rounds


def _plain_numbers(episodes: list[HostEpisodes], limits: Iterable[str]) -> dict[str, Any]:
    """Return episodes in plain numbers for a checkpoint; None is what the environment does not give."""
    found = dict[str, Any]()
    for name in ("basic", "addon", "lengths"):
        found[name] = [value if math.isfinite(value) else None for value in _concatenate(episodes, name).tolist()]
    means = _concatenate(episodes, "limit_values") / _concatenate(episodes, "lengths")
    # There is one quantity more where a share is to be kept and is not measured yet: no limit is on it.
    return found | {"limits": dict(zip(limits, means.tolist(), strict=False))}


def _concatenate(episodes: list[HostEpisodes], name: str) -> np.ndarray:
    return torch.cat([getattr(each, name) for each in episodes], -1).cpu().numpy()


@dataclass
class HostWeightFinder(WeightFinder):
    """Finds weights by episodes in a host's environments; the function `prior_reward` has none."""

    prior_episodes: PriorEpisodes | None  # None without environments
    if_scaled: ClassVar[str] = " (where yours is scaled otherwise, name omega and alpha)"

    @property
    def wish(self) -> str:
        if self.prior_episodes is not None and self.prior_episodes.envs.wish_weight > 1.0:
            return "the add-on at weight 1"
        return "the add-on as it is paid"

    def require_episodes(self) -> PriorEpisodes:
        """Return the episodes; raise where none can be run."""
        if self.prior_episodes is None:
            untold = "the prior's file does not tell what a nat of it is worth"
            unmeasured = "and a function has no environment to measure it in: name omega and alpha"
            raise UsageError(f"{untold}, {unmeasured}, or beside kl_budget alpha alone")
        return self.prior_episodes

    def measure_worths(self) -> Worths:
        return self.require_episodes().worths()

    def addon_rewards(self) -> np.ndarray:
        return self.require_episodes().typical_addon()


def set_weights(
    steering: Steering,
    card: dict[str, Any],
    prior: Shape,
    episodes: PriorEpisodes | None,
    who: str,
) -> Steering:
    """Return the steering with all weights set: those not named come from the prior's card, else from `episodes`.

    A sentence for each choice is printed, behind the name of `who` chose.
    """
    if steering.objective.is_set:
        return steering

    def say(sentence: str) -> None:
        print(f"{who}: {in_python_terms(sentence)}")

    announce = say if episodes else lambda _: None  # without environments nothing is measured
    found = decide_weights(steering.objective, HostWeightFinder(card, prior, steering.settings, announce, episodes))
    for note in found.notes:
        say(note)
    found_steering = replace(steering, objective=found.objective, kl_budget=found.settings.kl_budget)
    found_steering.priced_limits.restore(steering.priced_limits.state())
    return found_steering


@errors_in_python_terms()
def measure_unset(method: Method, envs: HostEnvs) -> None:
    """Set all weights that are not named, print each choice, and learn the prior's states where they have a price."""
    episodes = PriorEpisodes(envs, method.prior)
    method.steering = set_weights(method.steering, method.prior.card, envs.sizes, episodes, "ResidualPPO")
    if method.steering.keep and not method.steering.kept_limit:
        print(f"ResidualPPO: {_hold_kept_share(method.steering, method.steering.keep, episodes)}")
    if method.steering.objective.states and method.density is None:
        method.density = episodes.density()
    envs.reset()
    method.reset_episodes()


def _hold_kept_share(steering: Steering, keep: float, episodes: PriorEpisodes) -> str:
    """Turn `keep` into a limit on the old reward, and return a sentence about it."""
    by_age, ((earned, error), (sampled, sampled_error)) = episodes.earnings()
    if not math.isfinite(earned):
        raise UsageError("keep goes by basic_reward, and the environment tells one that is no finite number")
    size = abs(earned)
    bound = f"basic_reward>={earned - (1.0 - keep) * size:.6g}"
    steering.hold_share(bound, max(1.0 - keep, MIN_LOST_SHARE) * size, earned - sampled, by_age)
    earns = with_minus(f"{earned:.3g} ± {error:.1g}")
    sentence = f"keep is {keep:g} of {earns}, what the prior's mean action earns a step: {steering.kept_limit}"
    if max(error, sampled_error) > (1.0 - keep) * size:
        sentence += "; errors are larger than what may be lost: take more environments"
    return sentence
