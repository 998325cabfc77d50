"""Find usual causes why a resumed training in rsl_rl or Stable-Baselines3 broke, from its checkpoints alone."""

import json
import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.policies import SavedPolicy, origin_notes
from repolicy.readers.context import agent_settings, parse_numbers
from repolicy.readers.demonstrations import read_npz
from repolicy.readers.pickles import load, open_zip
from repolicy.readers.recognize import PolicyFile

MAX_CHANGE = 2.0  # factor by which a learning rate or a std may change in a few iterations
COLLAPSED_STD = 0.01  # a smaller std hardly explores
MAX_SHIFT = 0.25  # of a std, by which the mean of an observation may move; it moves more where statistics are reset
MAX_GROWTH = 2.0  # factor of the observations counted, above which they were few and their mean moves by itself
MAX_LOG_PROB_ERROR = 0.05  # mean in nats, from rounding and from statistics that move within a rollout

Tensors = dict[str, np.ndarray]


class Checkpoint(NamedTuple):
    """What a checkpoint contains of a training; None where it has no such part."""

    learning_rate: float | None
    has_optimizer_state: bool
    std: np.ndarray | None
    statistics: Tensors  # of the observations' normalizer: mean, var, count
    critic: Tensors
    entropy_bonus: float | None
    adapts: bool  # whether the learning rate adapts to the KL


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of rsl_rl (.pt) or a model of Stable-Baselines3 (.zip), without running code in it."""
    file = PolicyFile(path)
    if "policy.pth" in file.zip_names:
        return _of_sb3(open_zip(file.content, str(path)), str(path))
    loaded = file.unpickled
    states = ("actor_state_dict", "model_state_dict", "student_state_dict")
    actor = next((loaded[name] for name in states if name in loaded), None) if isinstance(loaded, dict) else None
    if not isinstance(actor, dict):
        raise FileError(f"{path} is no checkpoint of rsl_rl and no model of Stable-Baselines3")
    critic = loaded.get("critic_state_dict") or {name: part for name, part in actor.items() if "critic" in name}
    beside = loaded.get("obs_norm_state_dict") or {}  # before rsl_rl 3
    actor = {**actor, **{f"normalizer.{name}": part for name, part in beside.items()}}
    agent = agent_settings(path)
    [bonus] = parse_numbers(agent, "entropy_coef", "0")
    adapts = (loaded.get("residual") or {}).get("moved") is not None or agent.get("schedule") == "adaptive"
    return _checkpoint(actor, critic, loaded.get("optimizer_state_dict"), bonus, adapts)


def _of_sb3(archive: zipfile.ZipFile, where: str) -> Checkpoint:
    weights = load(archive.read("policy.pth"), where)
    names = sorted(name for name in archive.namelist() if name.endswith("optimizer.pth"))  # SAC's actor has its own
    optimizer = load(archive.read(names[0]), where) if names else None
    critic = {name: part for name, part in weights.items() if "value_net" in name}
    data = json.loads(archive.read("data"))
    return _checkpoint(weights, critic, optimizer, data.get("ent_coef"), bool(data.get("adapts")))


def _checkpoint(actor: Tensors, critic: Tensors, optimizer: Any, bonus: Any, adapts: bool) -> Checkpoint:
    normalizer, others = Tensors(), Tensors()  # by the last part of their names
    for name, part in actor.items():
        tensors = normalizer if "normalizer" in name else others
        tensors.setdefault(name.rpartition(".")[2].lstrip("_"), np.asarray(part))  # a critic's come after the actor's
    std = next((others[name] for name in ("std", "std_param") if name in others), None)
    log_std = next((others[name] for name in ("log_std", "log_std_param") if name in others), None)
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    return Checkpoint(
        float(groups[0]["lr"]) if groups else None,
        bool(optimizer and optimizer.get("state")),
        std if log_std is None else np.exp(log_std),
        {name: normalizer[name] for name in ("mean", "var", "count") if name in normalizer},
        critic,
        bonus if isinstance(bonus, int | float) else None,
        adapts,
    )


def causes(now: Checkpoint, before: Checkpoint | None = None) -> list[str]:
    """Return a sentence for each usual cause that a checkpoint shows. `before` is the checkpoint that was resumed."""
    found = []
    if not now.has_optimizer_state:
        found.append("the optimizer's state is missing, so its first steps are as large as they can be: load it, too")
    if now.std is not None and now.std.min() < COLLAPSED_STD:
        found.append(f"the std has collapsed to {now.std.min():.2g}: nothing new is tried; begin with a larger one")
    if now.entropy_bonus and (before is None or now.entropy_bonus != before.entropy_bonus):
        found.append(
            f"the entropy bonus is on ({now.entropy_bonus:g}), which widens a policy that was narrow: set it to 0"
        )
    if before is None:
        return found
    for a, b in ((now.std, before.std), (now.statistics.get("mean"), before.statistics.get("mean"))):
        if a is not None and b is not None and a.shape != b.shape:
            raise UsageError(f"--before is of another robot: numbers of the shape {b.shape}, and {a.shape} in this one")
    rate, rate_before = now.learning_rate or 0.0, before.learning_rate or math.inf
    if rate > MAX_CHANGE * rate_before and not now.adapts:
        rates = f"is {rate:.2g}, and was {rate_before:.2g}"
        found.append(f"the learning rate {rates}: it is back at its start, if no schedule moved it; set it to that")
    if now.std is not None and before.std is not None and (now.std / before.std).max() > MAX_CHANGE:
        found.append(f"the std is {now.std.max():.2g}, and was {before.std.max():.2g}: it was reset; copy it as well")
    found += _statistics_causes(now.statistics, before.statistics)
    same = now.critic and now.critic.keys() == before.critic.keys()
    if same and all(np.array_equal(now.critic[name], before.critic[name]) for name in now.critic):
        found.append("the critic is the one of before: where the reward is another, begin with a fresh one, alone")
    return found


def first_ratios(saved: SavedPolicy, batch: Path) -> list[str]:
    """Return a sentence where a batch's log-probabilities differ from those of the policy that should have sampled it.

    The batch is an .npz of a first rollout: `observations` `[..., O]`, `actions` `[..., A]`, `log_probs` `[...]`.
    """
    policy = saved.policy
    arrays = read_npz(batch, ("observations", "actions", "log_probs"))
    sizes = {"observations": policy.observation_size, "actions": policy.actions.width, "log_probs": 1}
    steps = arrays["log_probs"].size
    for name, size in sizes.items():
        if arrays[name].dtype.kind not in "fiu" or arrays[name].size != steps * size:
            wanted = f"where {steps:,} steps of this policy have {size} numbers each"
            raise FileError(f"{batch}: {name} have the shape {arrays[name].shape}, {wanted}")
    rows, actions = (torch.from_numpy(arrays[name].reshape(steps, -1)).float() for name in ("observations", "actions"))
    with in_one_sentence(f"{batch}: the actions are not this policy's", FileError):
        log_probs = policy.log_prob(rows, actions).numpy()
    error = log_probs - arrays["log_probs"].reshape(-1)
    if not np.isfinite(error).all():
        raise FileError(f"{batch}: log-probabilities are not finite, the first in row {np.argmin(np.isfinite(error))}")
    if np.abs(error).mean() < MAX_LOG_PROB_ERROR:
        return []
    low, high = np.exp(np.quantile(error, (0.05, 0.95)))
    found = (
        "the log-probabilities of the batch are not the checkpoint's: nine in ten ratios, 1 before an update, are "
        f"{low:.2g} to {high:.2g}, so what acted had other weights, statistics or std: load all of it before it acts; "
        "or the batch has its actions, or their log-probabilities, after a tanh or a clip"
    )
    notes = "; ".join(origin_notes(saved.card))
    return [f"{found}. First see whether the checkpoint is read as it was trained: {notes}" if notes else found]


def _statistics_causes(now: Tensors, before: Tensors) -> list[str]:
    if not before:
        return []
    if not now:
        return ["the statistics of observations are missing, so the policy sees other numbers: copy the normalizer"]
    moved = np.abs(now["mean"] - before["mean"]) / np.sqrt(before["var"] + 1e-8)
    count, count_before = (float(each.get("count", 0.0)) for each in (now, before))
    if count < count_before or (count <= MAX_GROWTH * count_before and moved.max() > MAX_SHIFT):
        far = f"by up to {moved.max():.2g} of their std, and the policy with them"
        return [f"the statistics of observations moved {far}: keep them as they were"]
    return []
