"""Why a training that was resumed in rsl_rl or Stable-Baselines3 broke: the usual causes, from its files alone."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.policies import SavedPolicy, origin_notes
from repolicy.readers.demonstrations import read_npz
from repolicy.readers.pickles import load
from repolicy.readers.recognize import PolicyFile
from repolicy.readers.zips import open_zip

FAR = 2.0  # times: by so much a learning rate or a std does not change in a few iterations
COLLAPSED = 0.01  # a std below this hardly tries anything
SHIFTED = 0.25  # of a std: by so much the mean of an observation moves only where statistics begin anew
NEAR = 0.05  # nats, in the mean: less is the rounding, and statistics that move within a rollout

Tensors = dict[str, np.ndarray]


class Checkpoint(NamedTuple):
    """What a checkpoint tells of a training; None where it does not."""

    rate: float | None
    remembers: bool  # whether the optimizer's state is there
    std: np.ndarray | None
    statistics: Tensors  # of observations: mean, var, count
    critic: Tensors
    entropy_bonus: float | None
    adapts: bool  # whether the learning rate moves by itself, as it does in ResidualPPO


def read_checkpoint(path: Path) -> Checkpoint:
    """Return what a checkpoint of rsl_rl (.pt) or a model of Stable-Baselines3 (.zip) tells; no code of it runs."""
    file = PolicyFile(path)
    if "policy.pth" in file.zip_names:
        return _of_sb3(open_zip(file.content, str(path)), str(path))
    loaded = file.unpickled
    actor = loaded.get("actor_state_dict", loaded.get("model_state_dict")) if isinstance(loaded, dict) else None
    if not isinstance(actor, dict):
        raise FileError(f"{path} is no checkpoint of rsl_rl and no model of Stable-Baselines3")
    critic = loaded.get("critic_state_dict") or {name: part for name, part in actor.items() if "critic" in name}
    adapts = (loaded.get("residual") or {}).get("moved") is not None
    return _checkpoint(actor, critic, loaded.get("optimizer_state_dict"), _bonus_beside(path), adapts)


def _of_sb3(archive: zipfile.ZipFile, where: str) -> Checkpoint:
    weights = load(archive.read("policy.pth"), where)
    kept = sorted(name for name in archive.namelist() if name.endswith("optimizer.pth"))  # SAC's actor has its own
    optimizer = load(archive.read(kept[0]), where) if kept else None
    critic = {name: part for name, part in weights.items() if "value_net" in name}
    data = json.loads(archive.read("data"))
    return _checkpoint(weights, critic, optimizer, data.get("ent_coef"), bool(data.get("adapts")))


def _checkpoint(actor: Tensors, critic: Tensors, optimizer: Any, bonus: Any, adapts: bool) -> Checkpoint:
    ends: tuple[Tensors, Tensors] = {}, {}  # by the end of their names: the normalizer's, and the others
    for name, part in actor.items():
        ends["normalizer" not in name][name.rpartition(".")[2].lstrip("_")] = np.asarray(part)
    found, last = ends
    std = next((last[name] for name in ("std", "std_param") if name in last), None)
    log = next((last[name] for name in ("log_std", "log_std_param") if name in last), None)
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    return Checkpoint(
        float(groups[0]["lr"]) if groups else None,
        bool(optimizer and optimizer.get("state")),
        std if log is None else np.exp(log),
        {name: found[name] for name in ("mean", "var", "count") if name in found},
        critic,
        bonus if isinstance(bonus, int | float) else None,
        adapts,
    )


def _bonus_beside(path: Path) -> float | None:
    """Return the entropy's coefficient by the settings that a runner writes beside its checkpoints."""
    for folder in (path.parent, path.parent / "params"):
        for file in sorted(folder.glob("agent.*")):
            if named := re.search(r"entropy_coef\W+([\d.eE+-]+)", file.read_text(errors="replace")):
                return float(named[1])
    return None


def causes(now: Checkpoint, before: Checkpoint | None = None) -> list[str]:
    """Return the usual causes that a checkpoint shows, a sentence each; `before` is the one that was resumed."""
    found = []
    if not now.remembers:
        found.append("the optimizer's state is missing, so its first steps are as large as they can be: load it, too")
    if now.std is not None and now.std.min() < COLLAPSED:
        found.append(f"the std has collapsed to {now.std.min():.2g}: nothing new is tried; begin with a larger one")
    if now.entropy_bonus:
        found.append(
            f"the entropy bonus is on ({now.entropy_bonus:g}), which widens a policy that was narrow: set it to 0"
        )
    if before is None:
        return found
    if (now.std is None) != (before.std is None):
        raise UsageError("--before is of another training: one of the two has a std, and the other has none")
    for a, b in ((now.std, before.std), (now.statistics.get("mean"), before.statistics.get("mean"))):
        if a is not None and b is not None and a.shape != b.shape:
            raise UsageError(f"--before is of another robot: numbers of the shape {b.shape}, and {a.shape} in this one")
    if now.rate and before.rate and now.rate > FAR * before.rate and not now.adapts:
        found.append(
            f"the learning rate is {now.rate:.2g}, and was {before.rate:.2g}: it is back at its start; set it to that"
        )
    if now.std is not None and before.std is not None and (now.std / before.std).max() > FAR:
        found.append(f"the std is {now.std.max():.2g}, and was {before.std.max():.2g}: it was reset; copy it as well")
    found += _of_statistics(now.statistics, before.statistics)
    same = now.critic and now.critic.keys() == before.critic.keys()
    if same and all(np.array_equal(now.critic[name], before.critic[name]) for name in now.critic):
        found.append("the critic is the one of before: where the reward is another, begin with a fresh one, alone")
    return found


def first_ratios(saved: SavedPolicy, batch: Path) -> list[str]:
    """Return a sentence where a batch's log-probabilities are not those of the policy that is to have sampled it.

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
        told = policy.log_prob(rows, actions).numpy()
    far = told - arrays["log_probs"].reshape(-1)
    if not np.isfinite(far).all():
        raise FileError(f"{batch}: log-probabilities are not finite, the first in row {np.argmin(np.isfinite(far))}")
    if np.abs(far).mean() < NEAR:
        return []
    low, high = np.exp(np.quantile(far, (0.05, 0.95)))
    found = (
        "the log-probabilities of the batch are not the checkpoint's: nine in ten ratios, 1 before an update, are "
        f"{low:.2g} to {high:.2g}, so what acted had other weights, statistics or std; load all of it before it acts"
    )
    notes = "; ".join(origin_notes(saved.card))
    return [f"{found}. First see whether the checkpoint is read as it was trained: {notes}" if notes else found]


def _of_statistics(now: Tensors, before: Tensors) -> list[str]:
    if not before:
        return []
    if not now:
        return ["the statistics of observations are missing, so the policy sees other numbers: copy the normalizer"]
    moved = np.abs(now["mean"] - before["mean"]) / np.sqrt(before["var"] + 1e-8)
    if float(now.get("count", 0.0)) < float(before.get("count", 0.0)) or moved.max() > SHIFTED:
        far = f"by up to {moved.max():.2g} of their std, and the policy with them"
        return [f"the statistics of observations moved {far}: keep them as they were"]
    return []
