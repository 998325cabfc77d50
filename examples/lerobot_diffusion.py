"""Customize a diffusion policy of LeRobot through its noise.

    pip install lerobot                                 # with Python 3.12, beside Repolicy
    python -m examples.lerobot_diffusion                # trains a small one: it passes a pillar on either side
    repolicy customize examples/lerobot_diffusion.py:decode --noise 8 --chunk 4 --steps 5e4 --ranks 1 \
        --env experiments.pillar:Pillar --addon experiments.pillar:left --no-report --out runs/lerobot-left
    python -m examples.lerobot_diffusion measure        # the share that arrives, and that passes on the left

For a policy of your own change `FOLDER`, and in `decode` what the environment's observation becomes in LeRobot's names.
`--noise` is the horizon times the numbers of an action, and `--chunk` is `n_action_steps`.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors

from experiments.pillar import CHUNK, EPISODES, WISH, record, summarize
from repolicy.evaluation import EVALUATION_SEED, evaluate

FOLDER = Path("runs/lerobot")
SEEN = ("observation.state", "observation.environment_state")  # of a policy without cameras, LeRobot wants both
STEPS, BATCH = 1500, 256


# The adapter ----------------------------------------------------------------------------------------------------------


@cache
def loaded() -> tuple[Any, Any, Any]:
    """Return the policy, and what stands before and behind it: its normalization."""
    policy = DiffusionPolicy.from_pretrained(FOLDER).eval()
    return policy, *make_pre_post_processors(policy.config, pretrained_path=str(FOLDER))


@torch.no_grad()
def decode(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the chunk of actions `[N, C · A]` that noise `[N, horizon · A]` becomes."""
    policy, before, after = loaded()
    batch = before(dict.fromkeys(SEEN, torch.from_numpy(observations)))
    batch = {name: batch[name].unsqueeze(1) for name in SEEN}  # the newest of n_obs_steps = 1
    start = torch.from_numpy(noise).reshape(len(noise), policy.config.horizon, -1)
    actions: np.ndarray = after(policy.diffusion.generate_actions(batch, noise=start)).numpy()
    return actions


# A small policy to try it with ----------------------------------------------------------------------------------------


def measure() -> None:
    """Print what the policy does before and after, in the same 400 episodes of sampled noise."""
    run = Path("runs/lerobot-left")
    env = json.loads((run / "run.json").read_text())["request"]["env"]
    for policy in (run / "prior.safetensors", run / "policy.safetensors"):
        found = evaluate(policy, env, EPISODES, addon=WISH, deterministic=False, seed=EVALUATION_SEED, trust=True)
        assert found.addon is not None
        kl = found.columns.get("kl_a_step")
        print(policy, summarize(found.basic, found.addon, 0.0 if kl is None else kl.mean))


def train() -> None:
    """Fit a diffusion policy to demonstrations that pass the pillar on either side."""
    demonstrations = FOLDER / "demonstrations.npz"
    record(demonstrations)
    arrays = np.load(demonstrations)
    whole = np.flatnonzero(~np.lib.stride_tricks.sliding_window_view(arrays["ended"][:-1], CHUNK - 1).any(1))
    actions = arrays["actions"][whole[:, None] + np.arange(CHUNK)]
    data = {name: torch.from_numpy(arrays["observations"][whole]).float() for name in SEEN}
    shapes = {name: PolicyFeature(FeatureType.STATE, (2,)) for name in SEEN[:1]}
    shapes |= {name: PolicyFeature(FeatureType.ENV, (2,)) for name in SEEN[1:]}
    config = DiffusionConfig(
        input_features=shapes, output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))}, device="cpu",
        n_obs_steps=1, horizon=CHUNK, n_action_steps=CHUNK, down_dims=(32, 64), diffusion_step_embed_dim=32,
        noise_scheduler_type="DDIM", num_inference_steps=5, drop_n_last_frames=0,
    )  # fmt: skip
    data["action"] = torch.from_numpy(actions)
    rows = {name: each.reshape(-1, 2) for name, each in data.items()}
    stats = {name: {"min": each.amin(0), "max": each.amax(0)} for name, each in rows.items()}
    policy = DiffusionPolicy(config)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        some = torch.randint(len(whole), (BATCH,))
        batch = before({name: each[some] for name, each in data.items()})
        batch = batch | {name: batch[name].unsqueeze(1) for name in SEEN}
        batch["action_is_pad"] = torch.zeros(BATCH, CHUNK, dtype=torch.bool)
        loss, _ = policy(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    for part in (policy, before, after):
        part.save_pretrained(FOLDER)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else train()
