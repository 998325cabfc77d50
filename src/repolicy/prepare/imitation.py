"""Fit a prior to recorded observations and actions by maximum likelihood: a policy with a std, or one of choices."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from repolicy.envs import match_observation, probe_env
from repolicy.errors import UsageError
from repolicy.evaluation import Evaluation, evaluate
from repolicy.files import check_writable
from repolicy.policies import ActionSpace, Policy, PolicySpec, check_policy_name, make_policy, read_card, save_policy
from repolicy.prepare.cloning import initialize_from_samples
from repolicy.priors import SMALL_STD, FitResult, Samples, fit
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.runs import versions
from repolicy.text import Say, with_minus

TRIAL_EPISODES = 10
IMITATION = "imitation"  # `which` in the card of the file


@dataclass(frozen=True)
class Imitation:
    """The result of an imitation: the policy, its file, the fit, and an evaluation."""

    file: Path
    policy: Policy
    fit_result: FitResult
    env: str
    evaluation: Evaluation | None  # of a few episodes with the mean action, where the environment is known


def imitate(
    data: str | Path | Demonstrations,
    out: str | Path,
    *,
    env: str | None = None,
    hidden: tuple[int, ...] = (256, 256),
    state_std: bool = False,
    seed: int = 0,
    say: Say = lambda _: None,
    progress: Callable[[int, float], None] = lambda *_: None,
) -> Imitation:
    """Fit a policy to demonstrations until the held-out likelihood stops rising, and write its file.

    The std is one for all states or, with `state_std`, depends on the state. With `env` the spaces are checked, the
    policy is evaluated, and the file names the environment for `customize`. Discrete actions begin at the numbers of
    the environment's action space, without one at 0.
    """
    demonstrations = data if isinstance(data, Demonstrations) else read_demonstrations(data)
    env = None if env is None else match_observation(env, demonstrations.observations.shape[1])
    actions = action_space_for(demonstrations, env)
    targets = stored_actions(demonstrations, actions, env)
    check_writable(Path(out))  # before the fit, which would be lost
    if Path(out).exists() and read_card(Path(out)).get("which") != IMITATION:
        raise UsageError(f"{out} is there already, and no imitation: choose another --out")
    check_policy_name(Path(out))
    policy = make_policy(_spec(demonstrations, actions, hidden, state_std), seed)
    samples = Samples(demonstrations.observations, targets)
    initialize_from_samples(policy, samples)
    if not demonstrations.discrete:
        log_std = demonstrations.actions.std(0).clamp_min(policy.spec.min_std).log()
        if policy.log_std is None:
            policy.network.biases[-1].data[policy.actions.width :] = log_std - math.log(policy.spec.initial_std)
        else:
            policy.log_std.data.copy_(log_std)
        if policy.spec.initial_std < SMALL_STD:  # the first means, too, are in the actions' own unit
            policy.network.weights[-1].data[: policy.actions.width] *= policy.spec.initial_std
    result = fit(policy, samples, torch.Generator().manual_seed(seed), progress)
    policy.requires_grad_(False)
    say(
        f"a log-likelihood of {with_minus(f'{result.held_out:.4g}')} nats a step on the tenth of {demonstrations.name} "
        f"that was held out ({with_minus(f'{result.log_likelihood:.4g}')} on the rest), after {result.epochs} epochs "
        f"over {result.rows:,} steps"
    )
    if policy.std is not None and float(policy.std.min()) <= 2.0 * policy.spec.min_std:
        problem = "the std is at its lower bound: the recorded actions follow from the observations and tell no width"
        say(f"{problem}, so customizing from here needs a small omega")

    card = {"which": IMITATION, "versions": versions(), "imitation": asdict(result)}
    if env is not None:
        card["request"] = {"env": env}
    save_policy(out, policy, card)
    evaluation = None
    if env is not None:
        evaluation = evaluate(policy, env, TRIAL_EPISODES, seed=seed, longest=1_000)
        say(repr(evaluation))
    return Imitation(Path(out), policy, result, env or "", evaluation)


def action_space_for(data: Demonstrations, env: str | None) -> ActionSpace:
    """Return the environment's action space, without `env` that of the data; raise where they do not fit."""
    size, width = data.observations.shape[1], data.actions.shape[1]
    if env is None:
        if not data.discrete:
            return ActionSpace("continuous", (width,))
        largest = data.actions.max(0).values - torch.tensor(data.first or 0, dtype=torch.int64)
        return ActionSpace("discrete", tuple((largest + 1).tolist()), data.first)
    probe = probe_env(env)
    if probe.observation_size != size:
        raise UsageError(f"{data.name} has observations of {size} numbers, but {env!r} gives {probe.observation_size}")
    if probe.actions.width != width or (probe.actions.kind == "discrete") != data.discrete:
        kind = "choices" if data.discrete else "numbers"
        raise UsageError(f"{data.name} has actions of {width} {kind}, but {env!r} takes {probe.actions}")
    return probe.actions


def stored_actions(data: Demonstrations, space: ActionSpace, env: str | None) -> Tensor:
    """Return the actions `[M, A]` as a policy stores them, choices from 0; raise where some are outside the space."""
    if not data.discrete:
        return data.actions
    first = torch.tensor(space.low or 0, dtype=torch.int64)
    sizes = torch.tensor(space.sizes, dtype=torch.int64)
    choices = data.actions - first
    if bool(((choices < 0) | (choices >= sizes)).any()):
        low, high = (bound.tolist() for bound in data.actions.aminmax(dim=0))
        rule = "without --env they count from 0"
        if env:
            lowest = [int(bound) for bound in space.low] or [0] * space.width
            rule = f"{env!r} takes {lowest} to {(sizes - 1 + first).tolist()}: record its own numbers"
        raise UsageError(f"{data.name} has choices from {low} to {high}, and {rule}")
    return choices


def _spec(data: Demonstrations, actions: ActionSpace, hidden: tuple[int, ...], state_std: bool) -> PolicySpec:
    size = data.observations.shape[1]
    if not data.discrete:
        family = "state_gaussian" if state_std else "gaussian"
        changes = bool((data.actions != data.actions[0]).any())
        std = float(data.actions.std(0).mean()) if changes else 1e-2
        min_std = 1e-3 if std >= SMALL_STD else 1e-3 * std
        return PolicySpec(size, actions, family, hidden, "elu", initial_std=std, min_std=min_std)
    if state_std:
        raise UsageError(f"{data.name} has choices, which have no std: leave --state-std out")
    return PolicySpec(size, actions, "categorical", hidden, "elu")
