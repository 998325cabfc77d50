"""Train and customize with Residual Q-learning, from names to a file."""

import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import torch

from repolicy.envs.addons import check_env
from repolicy.envs.names import in_gymnasium, maker
from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.loading import nearest
from repolicy.objective import Objective
from repolicy.policies.file import env_of, find_policy, read_card, read_policy
from repolicy.policies.policy import Policy
from repolicy.rql.settings import TASKS, Settings, customizing, defaults

Progress = Callable[[int, float | None], None]


def train(
    env: str,
    objective: Objective,
    out: str | Path,
    settings: Settings | None = None,
    *,
    addon: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Policy:
    """Train a policy from nothing and write it to the file `out`: a prior, or a baseline."""
    if objective.reads_prior:
        raise UsageError("an objective with omega above 0 needs a prior: use customize")
    return _run(env, objective, None, Path(out), settings or defaults(env), addon, progress)


def customize(
    prior: str | Path,
    objective: Objective,
    out: str | Path,
    settings: Settings | None = None,
    *,
    addon: str | Sequence[str] = (),
    env: str | None = None,
    progress: Progress | None = None,
) -> Policy:
    """Give the policy in a file a new requirement, without the reward that trained it; write the result to `out`.

    The requirement is `addon`, or what the environment itself tells in `info["addon_reward"]`, as the four tasks do.
    """
    path = _policy_file(prior)
    saved = read_policy(path)
    env = env or env_of(saved.card, path)
    if objective.reads_basic:
        raise UsageError("customizing needs an objective whose task is the add-on: residual, kl or greedy")
    return _run(env, objective, saved.policy, Path(out), settings or customizing(env), addon, progress)


def story_of(prior: str | Path) -> dict[str, Any]:
    """What the file of a prior tells of its training."""
    return dict(read_card(_policy_file(prior)).get("request", {}))


def make(env: str) -> gymnasium.Env[Any, Any]:
    """The environment of a task, of `module:callable`, or of a Gymnasium id."""
    reference = TASKS[env].env if env in TASKS else env
    if not in_gymnasium(reference):
        raise UsageError(f"there is no task or environment {env!r}{nearest(env, {*TASKS, *gymnasium.registry})}")
    make_one = maker(reference)
    with in_one_sentence(f"environment {env!r} cannot be made", UsageError):
        return make_one()


def _run(
    env: str,
    objective: Objective,
    prior: Policy | None,
    out: Path,
    settings: Settings,
    addon: str | Sequence[str],
    progress: Progress | None,
) -> Policy:
    if out.exists():
        raise FileError(f"{out} exists already; choose another --out")
    addons = (addon,) if isinstance(addon, str) else tuple(addon)
    check_env(addons, env)
    if addons and not objective.reads_addon:
        raise UsageError("a soft objective is about the environment's own reward; an add-on goes with full or greedy")
    torch.set_num_threads(1)  # layers this small are slower on more
    model = _algorithm(env, objective, prior, settings, addons)
    callback = None if progress is None else _callback(progress)
    model.learn(settings.steps, callback=callback, log_interval=None)
    request = {
        "env": TASKS[env].env if env in TASKS else env,
        "addons": list(addons or ["repolicy.rql.tasks:addon"]) if objective.reads_addon else [],
        "objective": objective.as_dict(),
        "method": type(model).__name__,
        "settings": settings.as_dict(),
    }
    versions = {name: version(name) for name in ("repolicy", "stable_baselines3", "torch", "gymnasium")}
    model.save(out, {"request": request, "steps": settings.steps, "versions": versions})
    return read_policy(out).policy


def _policy_file(reference: str | Path) -> Path:
    path = find_policy(reference)
    if zipfile.is_zipfile(path):
        raise UsageError(
            f"{path} is a zip, as Stable-Baselines3 saves its models, and no prior yet: a DQN or TD3 in it is "
            "deterministic and has no log-probabilities; another policy must be converted to a Repolicy file first"
        )
    return path


def _algorithm(
    env: str, objective: Objective, prior: Policy | None, settings: Settings, addons: tuple[str, ...]
) -> Any:
    """ResidualDQN where actions are choices, ResidualSAC where they are numbers."""
    from repolicy.rql.common import WithAddon
    from repolicy.rql.dqn import ResidualDQN
    from repolicy.rql.sac import ResidualSAC

    made = make(env)
    if addons:
        made = WithAddon(made, *addons)
    algorithm = ResidualDQN if isinstance(made.action_space, gymnasium.spaces.Discrete) else ResidualSAC
    return algorithm(made, objective, prior, settings)


def _callback(progress: Progress) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    """Stable-Baselines3's kind of callback: every 100 steps, the steps so far and the mean return of late episodes."""

    def call(local: dict[str, Any], _: dict[str, Any]) -> bool:
        model = local["self"]
        if model.num_timesteps % 100 == 0:
            returns = [episode["r"] for episode in list(model.ep_info_buffer)[-20:]]
            progress(model.num_timesteps, sum(returns) / len(returns) if returns else None)
        return True

    return call
