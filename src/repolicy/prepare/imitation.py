"""A policy with a std from recorded observations and actions, by maximum likelihood: a prior that only imitates."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from repolicy.envs import evaluate, observing, probed
from repolicy.errors import UsageError
from repolicy.loading import figures
from repolicy.policies import ActionSpace, Policy, PolicySpec, read_card, save_policy, seeded
from repolicy.policies.storage import check_place
from repolicy.prepare.cloning import begin_at
from repolicy.priors import Fitted, Samples, fit
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.runs.machine import versions

EPISODES = 10
IMITATION = "imitation"  # what the card of its file says that it is


@dataclass(frozen=True)
class Imitated:
    """What an imitation ended in: the policy's file, how likely it makes the actions, and what it earns."""

    file: Path
    policy: Policy
    fitted: Fitted
    env: str
    returns: tuple[float, float] | None  # mean and std with the mean action, where there is an environment to try


def imitate(
    data: str | Path | Demonstrations,
    out: str | Path,
    *,
    env: str | None = None,
    hidden: tuple[int, ...] = (256, 256),
    state_std: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, float], None] = lambda *_: None,
) -> Imitated:
    """Fit a policy to demonstrations until those that are held out gain no more, and write its file.

    The std is one for all states or, with `state_std`, depends on the state. With `env` the spaces are checked and the
    policy is tried; `customize` then goes on in that environment.
    """
    demonstrations = data if isinstance(data, Demonstrations) else read_demonstrations(data)
    env = None if env is None else observing(env, demonstrations.observations.shape[1])
    actions = space_of(demonstrations, env)
    check_place(Path(out))  # before the fit, which would be lost
    if Path(out).exists() and read_card(Path(out)).get("which") != IMITATION:
        raise UsageError(f"{out} is there already, and no imitation: choose another --out")
    policy = seeded(_spec(demonstrations, actions, hidden, state_std), seed)
    samples = Samples(demonstrations.observations, demonstrations.actions)
    begin_at(policy, samples)
    if policy.log_std is not None:
        policy.log_std.data.copy_(demonstrations.actions.std(0).clamp_min(1e-3).log())
    generator = torch.Generator().manual_seed(seed)
    fitted = fit(policy, samples, generator, progress)
    policy.requires_grad_(False)
    say(_sentence(fitted, demonstrations))
    narrow = policy.std is not None and float(policy.std.min()) <= 2.0 * policy.spec.min_std
    if narrow:
        say(
            "the std is at its lower bound: the recorded actions follow from the observations and tell no width, so "
            "customizing from here needs a small omega"
        )
    returns = None
    if env is not None:
        tried = evaluate(policy, env, EPISODES, seed=seed, longest=1_000)
        returns = (float(tried.basic.mean()), float(tried.basic.std()))
        if math.isfinite(returns[0]):
            earned = f"{figures(returns[0], 4)} ± {figures(returns[1], 2)}"
            say(f"it earns {earned} in {env} (mean action, {EPISODES} episodes)")
    card: dict[str, Any] = {"which": IMITATION, "versions": versions(), "imitation": asdict(fitted)}
    card |= {"request": {"env": env}} if env is not None else {}
    save_policy(out, policy, card)
    return Imitated(Path(out), policy, fitted, env or "", returns)


def space_of(data: Demonstrations, env: str | None) -> ActionSpace:
    """Return the actions of the environment, or of the data alone."""
    width = data.actions.shape[1]
    if env is None:
        if not data.discrete:
            return ActionSpace("continuous", (width,))
        return ActionSpace("discrete", tuple(int(most) + 1 for most in data.actions.max(0).values))
    probe = probed(env)
    if probe.observation_size != data.observations.shape[1]:
        raise UsageError(
            f"{data.name} has observations of {data.observations.shape[1]} numbers, but {env!r} gives "
            f"{probe.observation_size}"
        )
    if probe.actions.width != width or (probe.actions.kind == "discrete") != data.discrete:
        what = "choices" if data.discrete else "numbers"
        raise UsageError(f"{data.name} has actions of {width} {what}, but {env!r} takes {probe.actions}")
    most = data.actions.max(0).values.tolist()
    if data.discrete and any(choice >= size for choice, size in zip(most, probe.actions.sizes, strict=True)):
        raise UsageError(f"{data.name} has choices up to {most}, but {env!r} takes {probe.actions}, counted from 0")
    return probe.actions


def _spec(data: Demonstrations, actions: ActionSpace, hidden: tuple[int, ...], state_std: bool) -> PolicySpec:
    if data.discrete:
        if state_std:
            raise UsageError(f"{data.name} has choices, which have no std: leave --state-std out")
        return PolicySpec(data.observations.shape[1], actions, "categorical", hidden, "elu")
    std = max(float(data.actions.std(0).mean()), 1e-2)
    family = "state_gaussian" if state_std else "gaussian"
    return PolicySpec(data.observations.shape[1], actions, family, hidden, "elu", initial_std=std)


def _sentence(fitted: Fitted, data: Demonstrations) -> str:
    return (
        f"a log-likelihood of {fitted.held_out:.4g} nats a step on the tenth of {data.name} that was held out "
        f"({fitted.log_likelihood:.4g} on the rest), after {fitted.epochs} epochs over {fitted.rows:,} steps"
    )
