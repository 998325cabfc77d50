"""Command lines that make sense but for some words."""

import dataclasses
import random

import repolicy
from repolicy.cli import main as cli

WORDS = [
    "", "-", "--", "-1", "0", "1", "3", "0.1", "1e400", "nan", "inf", "-inf", "1e9", "99999999999999999999", "x", "=",
    ":", "?", "a:b", "os:system", "math:pi", "math:hypot", "height", "height=", "height=nan", "height(", "height(x=1)",
    "hind_leg(joint=bshin)=2", "Hopper-v4", "Hopper-v4?x=1", "Hopper-v4?", "CartPole-v1", "halfcheetah", "hopper",
    "run", "policy.safetensors", "settings.json", "sweep", "nowhere", "nowhere/x", ".", "..", "/dev/full", "/dev/null",
    "/proc/nowhere/x", "auto", "soft", "full", "greedy", "kl", "residual", "gymnasium", "envpool", "é", "\x1b[2J",
    "\u202e", "a" * 5000, "a/" * 3000, "x.mp4", "x.gif", "onnx", "64 64", "None", "True", "[]", "{}", "'", '"', "\n",
    "--help", "--json", "--resume", "--trust", "--no-report", "--sparse",
]  # fmt: skip
LINES = [
    "train Pendulum-v1 --alpha 0.1 --steps 64 --envs 2 --n-steps 16 --ranks 1 --out new",
    "train CartPole-v1 --objective full --addon math:hypot --alpha 0.1 --hidden 8 8 --out new",
    "train Pendulum-v1 --out run --resume",
    "customize hopper --addon height --omega 0.1 --steps 64 --no-report --out new",
    "customize halfcheetah --addon hind_leg=10 --omega auto --kl-budget 2 --out new",
    "customize policy.safetensors --addon height --env Hopper-v4 --objective kl --alpha 0.1",
    "sweep hopper --addon height --omega 0 0.1 0.3 --jobs 1 --episodes 1 --out new",
    "evaluate hopper --episodes 1 --addon height --sampled --seed 3 --out e.json",
    "evaluate run --env Pendulum-v1 --backend gymnasium",
    "render hopper --seconds 1 --width 64 --out x.gif",
    "export policy.safetensors --out x.pt",
    "inspect run", "inspect policy.safetensors --json", "addons --json", "bench Pendulum-v1 --slices 1", "doctor",
    "rql train cartpole --steps 10 --out new",
    "rql customize policy.safetensors --omega 1 --alpha 1 --addon height --out new",
]  # fmt: skip


def odd_line(random_: random.Random) -> list[str]:
    """A line that makes sense, with some words replaced, dropped, doubled or added."""
    words = random_.choice(LINES).split()
    options = [*_options(words[0]), *_options(words[1] if words[0] == "rql" else words[0])]
    for _ in range(random_.choice([1, 1, 2, 3, 8])):
        index = random_.randrange(len(words)) if random_.random() < 0.1 else random_.randrange(1, len(words) + 1)
        added = [random_.choice(WORDS)] if random_.random() < 0.5 or not options else [random_.choice(options)]
        if added[0] in options and random_.random() < 0.8:
            added.append(random_.choice(WORDS))
        words[index : index + random_.choice([0, 0, 1, 1, 2])] = added if random_.random() < 0.85 else []
        words = words or ["train"]
    return words


def _options(command: str) -> list[str]:
    if command not in cli.COMMANDS:
        return []
    names = [
        field.name for field in dataclasses.fields(cli.COMMANDS[command]) if field.name not in ("wandb", "settings")
    ]
    names += [field.name for field in dataclasses.fields(repolicy.Settings)]
    return [f"--{name.replace('_', '-')}" for name in names]
