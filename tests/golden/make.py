"""Make the files that every later version must load: one of each kind, and what each policy told when it was made.

    python tests/golden/make.py tests/golden/v1 tests/golden/later

`v1` stays as it is, and so does `later`, which has the kinds of files that came after it. A kind of file, or a format,
that is new gets a folder of its own beside them.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import repolicy
from repolicy import rql
from repolicy.addons.wish_file import Features, LearntWish, Networks, open_wish
from repolicy.objective import soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export
from repolicy.policies.families import FAMILIES
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import read_policy
from repolicy.ranges import Dial
from repolicy.runs.settings import Settings

ENV = "HalfCheetah-v4"
BOX, CHOICES = ActionSpace("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)), ActionSpace("discrete", (2, 3))
CHEETAH = PolicySpec(17, ActionSpace("continuous", (6,), (-1.0,) * 6, (1.0,) * 6), hidden=(4,))
SMALL = Settings(
    steps=64, envs=4, n_steps=8, minibatch=16, checkpoint_every=1, ranks=1, evaluation_episodes=1, hidden=(4,)
)
RUNS = ("trained", "held", "dialed")
EXPORTED, WISHES = "exported.onnx", ("wish.safetensors", "networks.safetensors")


def told(path: Path) -> dict[str, list[Any]]:
    """Return what the policy in a file says of three observations: its modes, how likely they are, its entropy."""
    policy = read_policy(path).policy
    seen = torch.linspace(-2.0, 2.0, 3)[:, None] * torch.linspace(0.5, 1.5, policy.observation_size)
    with torch.no_grad():
        found = policy(seen)
        each = {"mode": found.mode(), "log_prob": found.log_prob(found.mode()), "entropy": found.entropy()}
    return {name: values.tolist() for name, values in each.items()}


def policy(spec: PolicySpec) -> Policy:
    """Return a policy as training leaves it."""
    torch.manual_seed(0)
    made = Policy(spec)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    seen = np.random.default_rng(0).normal(1.0, 3.0, (100, spec.observation_size))
    made.normalizer.update(moment_sums(seen.astype(np.float32)))
    return made


def make(folder: Path) -> None:
    """Write a file or a folder of each kind."""
    for family in FAMILIES:
        spec = PolicySpec(3, CHOICES if family == "categorical" else BOX, family, hidden=(8,))
        repolicy.save_policy(folder / f"{family}.safetensors", policy(spec), {"request": {"env": "Pendulum-v1"}})
    dialed = ConditionedPolicy.from_prior(policy(PolicySpec(3, BOX, hidden=(8,))), (Dial("omega", 0.03, 3.0),))
    repolicy.save_policy(folder / "dial.safetensors", dialed, {})
    prior = folder / "prior.safetensors"
    repolicy.save_policy(prior, policy(CHEETAH), {"request": {"env": ENV, "objective": {"alpha": 0.1}}})

    def customize(name: str, objective: repolicy.Objective, settings: Settings = SMALL, **more: Any) -> None:
        repolicy.customize(prior, "hind_leg", objective, folder / name, settings, progress=False, **more)

    repolicy.train("CartPole-v1", soft(0.1), folder / "trained", SMALL, progress=False)
    limits = ("hind_leg<=0.3", "x_velocity>=-9")
    customize("held", repolicy.residual(0.2, 0.1, 0.2), replace(SMALL, keep=0.9), limits=limits)
    customize("dialed", repolicy.residual((0.1, 1.0), 0.1, 0.0))
    rql.train("repolicy.rql.tasks:CartPole", soft(0.5), folder / "rql", {"steps": 200, "hidden": (4,), "warmup": 50})
    repolicy.sweep(prior, "hind_leg", [0.1, 1.0], 0.1, folder / "swept", SMALL, states=0.0, jobs=1, episodes=1)
    for run in (folder / name for name in RUNS):
        max((run / "checkpoints").iterdir()).unlink()  # as if it had stopped in its last segment
    spare = [*folder.rglob("events*"), *folder.rglob("*.log"), *folder.rglob(".lock")]
    spare += [*folder.glob("dialed/trial*"), *folder.glob("swept/*/trial*"), *folder.glob("swept/*/checkpoints/*1.*")]
    for file in spare:
        file.unlink()
    found = {
        str(path.relative_to(folder)): told(path) for path in sorted(folder.rglob("*.safetensors")) if is_policy(path)
    }
    (folder / "told.json").write_text(json.dumps(found) + "\n")


def make_later(folder: Path) -> None:
    """Write wishes that were learnt, by features and by networks, and an exported graph."""
    folder.mkdir(exist_ok=True)
    linear = Features.of("next[2:4]^1,action^2"), ("a", "b", *"cdefgh"), np.linspace(-1.0, 1.0, 8), np.eye(8)
    LearntWish(ENV, "", "a test", (17, 6), *linear).write(folder / "wish.safetensors")
    torch.manual_seed(0)
    sizes = (40,), (40,), (2, 40, 3), (2, 3), (2, 3)
    networks = Networks(*(torch.rand(size) + 0.5 for size in sizes))
    LearntWish(ENV, "", "a test", (17, 6), None, networks=networks).write(folder / "networks.safetensors")
    export(policy(PolicySpec(3, BOX, hidden=(2,))), folder / EXPORTED, "onnx")
    found = {EXPORTED: told(folder / EXPORTED)} | {name: paid(folder / name) for name in WISHES}
    (folder / "told.json").write_text(json.dumps(found) + "\n")


def paid(path: Path) -> dict[str, list[Any]]:
    """Return what a wish in a file pays for three steps."""
    before, actions, after = (np.linspace(-1.0, 1.0, 3 * size).reshape(3, size) for size in (17, 6, 17))
    return {"paid": open_wish(str(path))(before, actions, after, {}).tolist()}


def is_policy(path: Path) -> bool:
    return path.parent.name != "checkpoints" and path.name != "trial.safetensors"


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    make_later(Path(sys.argv[2]))
