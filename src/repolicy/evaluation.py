"""Evaluate a policy for whole episodes: the basic, add-on and total return of each, as in the paper."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.addons import (
    Addon,
    Limit,
    Wish,
    addons_from_card,
    backend_from_card,
    env_from_card,
    limits_from_card,
    load_addon,
    parse_limits,
)
from repolicy.differences import Column, Difference, difference
from repolicy.envs import (
    Backend,
    Collector,
    EnvLike,
    Envs,
    EpisodeSums,
    Rollout,
    check_fit,
    env_name,
    make_envs,
    match_observation,
    open_policy_in_env,
    parse_env_name,
    place_prior,
    resolve_backend,
)
from repolicy.errors import NumericError, UsageError, check_counts
from repolicy.policies import Agent, ConditionedPolicy, Policy, Prior, one_thread, with_torch_defaults
from repolicy.priors import MeanPrior, OpenedPolicy, Scorer
from repolicy.readers.reading import Options
from repolicy.text import Say, format_count

BLOCK_STEPS = 20  # steps between two batches of scoring (add-on, prior, metrics)
EVALUATION_SEED = 10_000  # far from the small seeds that runs are trained with
MAX_ENVS = 50  # environments that run side by side
EPISODE_CAP = 10_000  # steps after which an episode that does not end counts as one, unless its time limit is longer
LONGEST_LIMIT = 100_000  # steps; a longer time limit means that there is none
OF_ADDON = "of "  # before the name of one add-on of several
ACTIONS = {"mean": "with the mean action", "sampled": "with sampled actions"}  # the kinds of action, in words

# (next observations, ages of the episodes, whether they terminated) -> how much states look like the prior's, `[T, N]`
Familiarity = Callable[[np.ndarray, np.ndarray, np.ndarray], Tensor | None]


@dataclass(frozen=True)
class Steps:
    """The steps of N environments until each has ended its first episode; films replay them."""

    rewards: np.ndarray  # [T, N] basic reward plus add-on; the add-on alone where the basic reward is unknown
    env_actions: np.ndarray  # [T, N, A] the actions as the environment received them


@dataclass(frozen=True, repr=False, eq=False)  # `==` of arrays is no bool
class Evaluation:
    """The result of an evaluation: arrays `[E]` with a sum over each of E episodes, unless noted otherwise."""

    env: str
    backend: str
    deterministic: bool
    seed: int
    basic: np.ndarray
    addon: np.ndarray | None
    metric: np.ndarray | None  # the add-on's metric, as the mean over each episode
    lengths: np.ndarray
    log_policy: np.ndarray
    log_prior: np.ndarray | None
    metric_name: str = ""
    familiarity: np.ndarray | None = None  # how much the states look like the prior's
    terminated: np.ndarray | None = None  # bool: the environment ended the episode, not a time limit
    wishes: dict[str, np.ndarray] = field(default_factory=dict)  # the reward of each add-on, if there are several
    limits: dict[str, np.ndarray] = field(default_factory=dict)  # each limit's quantity, as the mean over each episode
    inner: np.ndarray | None = None  # steps of the environment; more than `lengths` where a decision is several steps
    entropy: np.ndarray | None = None  # only where actions are sampled
    noise_square: np.ndarray | None = None  # of a generative policy: the mean square of a decision's noise
    steps: Steps | None = None  # of each environment's first episode
    environment_steps: int = 0  # of all environments, also after an episode's end; of a generative policy decisions

    @property
    def action(self) -> str:
        """The kind of action, a key of `ACTIONS`."""
        return "mean" if self.deterministic else "sampled"

    @property
    def total(self) -> np.ndarray:
        return self.basic if self.addon is None else self.basic + self.addon

    @property
    def columns(self) -> dict[str, "Column"]:
        """All known quantities, in the order of the paper's tables. Raises where some basic returns are not finite."""
        basic = None if np.isnan(self.basic).all() else self.basic  # some environments do not report it
        if basic is not None and (broken := int((~np.isfinite(basic)).sum())):
            raise NumericError(f"the basic reward is not finite in {broken} of {len(basic)} episodes")
        decoder = parse_env_name(self.env).decoder  # with a decoder, a step is a decision
        sums = {
            "total_reward": ("total reward", None if basic is None or self.addon is None else self.total),
            "basic_reward": ("basic reward", basic),
            "metric": (self.metric_name, self.metric),
            "addon_reward": ("add-on reward", self.addon),
            **{f"addon_reward_{name}": (f"of it {name}", values) for name, values in self.wishes.items()},
            "length": ("length, steps" if decoder is None else "decisions", self.lengths),
        }
        known = {name: Column(title, values) for name, (title, values) in sums.items() if values is not None}
        steps = self.lengths if self.inner is None else self.inner
        known |= {f"limit_{name}": Column(name, values, steps) for name, values in self.limits.items()}
        if self.noise_square is not None:
            squares = self.noise_square / self.lengths
            known["noise_square"] = Column("square of the noise (N(0, I): 1)", squares, self.lengths)
        if self.log_prior is None:
            return known
        step = "step" if decoder is None else "decision"
        known["log_prior_a_step"] = Column(f"log prior a {step}, nats", self.log_prior / self.lengths, self.lengths)
        if not self.deterministic:  # samples of KL(policy ‖ prior), at the states that the policy itself visits
            kl = self.log_policy - self.log_prior
            known["kl_a_step"] = Column(f"KL a {step}, nats", kl / self.lengths, self.lengths)
            if decoder is not None:
                known["kl_an_episode"] = Column("KL an episode, nats", kl)
        return known

    @property
    def basis(self) -> str:
        """The episodes behind the numbers of a table, in words; a single one has no std."""
        count = len(self.basic)
        return f"{f'mean ± std over {count:,} episodes' if count > 1 else 'one episode'} {ACTIONS[self.action]}"

    def __repr__(self) -> str:
        episodes = f"{format_count(len(self.basic), 'episode')} {ACTIONS[self.action]}"
        lines = [f"{episodes} in {self.env} ({self.backend}){', mean ± std' * (len(self.basic) > 1)}:"]
        rows = {each.title: each.describe() for each in self.columns.values()}
        if self.terminated is not None:
            rows["ended early"] = f"{self.terminated.sum()} of {format_count(len(self.terminated), 'episode')}"
        if cut := int((self.lengths == EPISODE_CAP).sum()):  # what would follow is in no sum
            rows["cut"] = f"{cut} of {format_count(len(self.lengths), 'episode')}, after {EPISODE_CAP:,} steps"
        width = max(map(len, rows))
        return "\n".join([*lines, *(f"  {title:{width}s}  {value}" for title, value in rows.items())])

    def as_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "backend": self.backend,
            "action": self.action,
            "seed": self.seed,
            "episodes": len(self.basic),
            "ended_early": None if self.terminated is None else int(self.terminated.sum()),
            "summary": {"basic_reward": {"mean": None, "std": None}}  # unknown in this environment
            | {
                name: {"mean": column.mean, "std": column.std if len(column.values) > 1 else None}
                for name, column in self.columns.items()
            },
            "each": {name: column.values.tolist() for name, column in self.columns.items()},
        }


@with_torch_defaults()
def evaluate(
    agent: Agent | OpenedPolicy | str | Path,
    env: EnvLike | None = None,
    episodes: int = 100,
    *,
    addon: Addon | Wish | None = None,
    prior: Prior | None = None,
    deterministic: bool = True,
    seed: int = 0,
    backend: Backend = "auto",
    progress: Callable[[int], None] | None = None,
    longest: int = 0,
    trust: bool = False,
    limits: str | Sequence[str] | None = None,
    say: Say | None = None,
) -> Evaluation:
    """Run a policy for whole episodes, and return what each of them gave. One without an end is cut after 10,000 steps.

    Args:
        agent: a policy, or its file, its run's or its planner's folder, or the name of one that ships; then the
            environment, add-on, limits and prior are known.
        env: an id, or a function that makes one environment.
        episodes: how many.
        addon: the wish that is reported: a name, a function, or a list of them; () is none.
        prior: whose log-probabilities are reported.
        deterministic: take the mean action; else sample.
        seed: of environments and sampling.
        backend: whose environments: "envpool", "gymnasium", or "auto", that of the file's run if it names one.
        progress: is given the number of episodes that are done.
        longest: where above 0, an episode is over after so many steps.
        trust: run code that the policy's file names.
        limits: what else is reported, as a mean over all steps: `power<=0.07`, as for `customize`.
        say: is told what of the file's run does not fit and is left out; by default that raises.
    """
    env = None if env is None else env_name(env)
    if isinstance(agent, str | Path):
        agent = open_policy_in_env(env, agent, Options(), trust)
    opened, agent = (agent, agent.agent) if isinstance(agent, OpenedPolicy) else (None, agent)
    check_is_agent(agent, "the first argument")
    if isinstance(agent, ConditionedPolicy):
        raise UsageError(agent.missing_dials_message())
    if opened is not None:
        prior = prior or opened.prior
        env = env or env_from_card(opened.card, opened.path, trust)
        backend = backend_from_card(opened.card, env, backend)
        if limits is None and addon is None:  # all that the file's run was judged by
            limits = fitting_limits(agent, opened.card, opened.path, env, backend, trust, say)
        addon = fitting_addon(opened.card, opened.path, env, trust, say) if addon is None else addon
    if env is None:
        raise UsageError("a policy alone does not say which environment it is for; name one: evaluate(policy, ENV)")
    if isinstance(agent, MeanPrior):
        agent, env = place_prior(agent, env, backend)
    if addon is not None and not isinstance(addon, Addon):
        addon = load_addon(addon, env)
    check_counts(episodes=episodes)
    check_counts(0, seed=seed)
    backend = resolve_backend(backend, agent)
    env = match_observation(env, agent, backend)
    with closing(make_envs(env, min(episodes, MAX_ENVS), seed, backend)) as envs:
        check_fit(agent, envs)
        return run_episodes(
            agent, envs, episodes, addon=addon, prior=prior, deterministic=deterministic, seed=seed, progress=progress,
            longest=longest, limits=parse_limits(limits or (), env),
        )  # fmt: skip


def fitting_addon(card: dict[str, Any], path: Path, env: str, trust: bool, say: Say | None = None) -> Addon | None:
    """Return the add-on of a file's run, or None where it does not fit; what raises is as in `fitting_limits`."""
    addons = tuple[str, ...]()
    try:
        addons = addons_from_card(card, path, trust)
        return load_addon(addons, env)
    except UsageError as error:  # such as an add-on in a file that has been moved since the training
        if say is not None:
            say(f"the policy's own add-on is left out: {error}")
        elif not addons or env == card["request"].get("env"):  # they are code that is not trusted, or do not fit at all
            raise
        return None


def fitting_limits(
    agent: Agent,
    card: dict[str, Any],
    path: Path,
    env: str,
    backend: Backend = "auto",
    trust: bool = False,
    say: Say | None = None,
) -> tuple[str, ...]:
    """Return the limits that a file's run was held to, or none where they do not fit an environment, and `say` why.

    Without `say`, those that do not fit the run's own environment are returned, too, so that they raise there.
    """
    limits = tuple[str, ...]()
    try:
        limits = limits_from_card(card, path, trust)
        if limits and (say is not None or env != card["request"].get("env")):
            evaluate(agent, env, 1, limits=limits, backend=backend, longest=1)
    except UsageError as error:  # such as an entry of info that another environment has not
        if say is not None:
            say(f"the policy's own limits are left out: {error}")
        elif not limits:  # they are code that is not trusted
            raise
        return ()
    return limits


def differences(prior: Evaluation, customized: Evaluation, comparisons: int = 1) -> dict[str, Difference]:
    """Compare every quantity that both evaluations have. With the same seed, their episodes are pairs."""
    before, after = prior.columns, customized.columns
    setups = [(each.env, each.backend, each.seed, len(each.basic)) for each in (prior, customized)]
    paired = setups[0] == setups[1]
    return {name: difference(before[name], after[name], paired, comparisons) for name in before if name in after}


def check_is_agent(thing: object, what: str) -> None:
    """Raise unless a thing has what acts in environments."""
    if not hasattr(thing, "observation_size"):
        remedy = "a function or a module is one beside a std: MeanPrior(it, 0.2) of repolicy.priors.kinds"
        if hasattr(thing, "folder"):  # a run's result
            remedy = "take its .folder, which names environment and add-on too, or its .policy"
        raise UsageError(f"{what} is a {type(thing).__name__}, and no policy; {remedy}")


def episode_cap(limit: int | None) -> int:
    """Return the steps after which an episode counts as one; the environment's time limit may be longer than usual."""
    return limit if limit and EPISODE_CAP < limit <= LONGEST_LIMIT else EPISODE_CAP


@one_thread()
@torch.no_grad()
def run_episodes(
    agent: Agent,
    envs: Envs,
    episodes: int,
    *,
    addon: Addon | None = None,
    prior: Prior | None = None,
    deterministic: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    familiarity: Familiarity | None = None,
    longest: int = 0,
    limits: Sequence[Limit] = (),
) -> Evaluation:
    """Run whole episodes, and return their sums.

    Each environment runs a fixed share of the episodes: taking the first to end would favour short ones. Results are
    in the order of the environments, so episode i of two policies with the same seed began in the same state.
    """
    generator, longest = torch.Generator().manual_seed(seed), longest or episode_cap(envs.limit)
    collector = Collector(envs, BLOCK_STEPS, generator, longest=longest)
    scorer = None if prior is None else Scorer(prior)
    entropy_of = agent if isinstance(agent, Policy) and not deterministic else None
    sums, rewards, env_actions = EpisodeSums(envs.count, episodes), list[np.ndarray](), list[np.ndarray]()
    environment_steps = 0
    while sums.missing > 0:
        rollout = collector.collect(agent, deterministic)
        environment_steps += rollout.basic.size
        scores = step_quantities(rollout, addon, scorer, familiarity, limits, entropy_of)
        if sums.has_first_episodes:
            addon_reward = scores.get("addon", 0.0)
            rewards.append(np.where(np.isfinite(rollout.basic), rollout.basic + addon_reward, addon_reward))
            env_actions.append(rollout.env_actions)
        sums.add(scores, rollout, progress)
    each = sums.each()
    inner = each.get("inner", each["length"])
    return Evaluation(
        env=envs.name,
        backend=envs.backend,
        deterministic=deterministic,
        seed=seed,
        basic=each["basic"],
        addon=each.get("addon"),
        metric=each["metric"] / inner if "metric" in each else None,
        metric_name="" if addon is None else addon.metric_name,
        lengths=each["length"],
        log_policy=each["log_policy"],
        log_prior=each.get("log_prior"),
        entropy=each.get("entropy"),
        noise_square=each.get("noise_square"),
        familiarity=each.get("familiarity"),
        terminated=each["terminated"].astype(bool),
        wishes={name.removeprefix(OF_ADDON): values for name, values in each.items() if name.startswith(OF_ADDON)},
        limits={str(limit): each[f"limit {limit}"] / inner for limit in limits},
        inner=inner,
        steps=Steps(np.concatenate(rewards), np.concatenate(env_actions)),
        environment_steps=environment_steps,
    )


def step_quantities(
    rollout: Rollout,
    addon: Addon | None,
    scorer: Scorer | None,
    familiarity: Familiarity | None,
    limits: Sequence[Limit],
    entropy_of: Policy | None,
) -> dict[str, np.ndarray]:
    """Return the quantities to sum over episodes, by name, for each step `[T, N]`."""
    quantities = {"basic": rollout.basic, "length": np.ones_like(rollout.basic)}
    quantities["log_policy"] = rollout.log_probs.numpy()
    if scorer is not None:
        quantities["log_prior"] = scorer(*rollout.prior_inputs).numpy()
    if entropy_of is not None:
        quantities["entropy"] = entropy_of(torch.from_numpy(rollout.observations[:-1])).entropy().numpy()
    if addon is not None:
        rewards = [rollout.per_decision(reward) for reward in addon.weighted_rewards(rollout.transitions)]
        quantities["addon"] = sum(rewards, np.zeros_like(rollout.basic))
        if addon.metric:
            quantities["metric"] = rollout.per_decision(addon.metric_values(rollout.transitions))
        if len(rewards) > 1:
            for title, reward in zip(addon.titles, rewards, strict=True):
                quantities[OF_ADDON + title] = quantities.get(OF_ADDON + title, 0.0) + reward
    quantities |= {f"limit {limit}": limit.values(rollout, mean=False) for limit in limits}
    if rollout.chunks:  # actions are a generative policy's noise
        quantities["noise_square"] = rollout.actions.square().mean(-1).numpy()
        quantities["inner"] = np.stack([chunk.counts.sum(0) for chunk in rollout.chunks])
    if familiarity is not None:
        quantities["familiarity"] = np.asarray(familiarity(rollout.next_observations, rollout.ages, rollout.terminated))
    return quantities
