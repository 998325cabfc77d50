"""Draw a gif of two policies side by side, from the same start, with the power that each of them takes.

python -m experiments.robot_film --run runs/go1-energy --out docs/images/go1.gif

The averages are those of `results/real_robot.jsonl`, where both policies must have been measured.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from experiments import campaign
from experiments.tables import read_ledger
from repolicy.envs.making import make_envs
from repolicy.envs.rollout import Collector
from repolicy.errors import RepolicyError
from repolicy.files import file_sum
from repolicy.policies.policy import Policy
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.report.movie import FRAMES_A_SECOND, Shot, render_films

PRIOR = "playground:go1"
NAMES = ("the published policy", "with the wish for less power")
KEEP_EVERY = 2  # one of so many pictures is kept
COLORS = 64
TEXT_HEIGHT = 64  # pixels beneath a picture
MAX_WATTS = 200.0  # a bar of the full width
POWER_WINDOW = 25  # simulation steps (0.5 s) of the running mean, because a leg's power oscillates with its stride
ENERGY_SCALE = 0.001  # of the task's term, which is −0.001 · Σ |torque · joint velocity|
INK, PAPER, COLOR = (30, 30, 34), (255, 255, 255), ((120, 120, 128), (28, 126, 84))


@dataclass(frozen=True)
class Panel:
    """The pictures of one policy, and the numbers of the text below them."""

    name: str
    pictures: Sequence[Any]  # [H, W, 3]
    power: np.ndarray  # watts at each picture
    average: float
    kept: float  # share of the old return
    color: tuple[int, int, int]

    def draw(self, index: int) -> Image.Image:
        """Draw a picture with its text, a bar for the current power, and a line at the average."""
        picture = Image.fromarray(self.pictures[index])
        whole = Image.new("RGB", (picture.width, picture.height + TEXT_HEIGHT), PAPER)
        whole.paste(picture)
        canvas, top, scale = ImageDraw.Draw(whole), picture.height, (picture.width - 16) / MAX_WATTS
        canvas.text((8, top + 4), self.name, INK, ImageFont.load_default(14))
        words = f"power {self.power[index]:.0f} W · average {self.average:.0f} W · old reward {self.kept:.0%}"
        canvas.text((8, top + 23), words.replace("%", " %"), INK, ImageFont.load_default(13))
        canvas.rectangle((8, top + 46, 8 + scale * min(self.power[index], MAX_WATTS), top + 56), self.color)
        canvas.rectangle((8 + scale * self.average, top + 43, 10 + scale * self.average, top + 59), INK)
        return whole


def join_pictures(left: Panel, right: Panel, keep: int = KEEP_EVERY) -> list[Image.Image]:
    """Join every `keep`-th picture of both sides, in few colors."""
    joined = []
    for index in range(0, min(len(left.pictures), len(right.pictures)), keep):
        pair = [np.asarray(panel.draw(index)) for panel in (left, right)]
        joined.append(Image.fromarray(np.concatenate(pair, axis=1)).quantize(COLORS, dither=Image.Dither.NONE))
    return joined


def walk(policy: Policy, env: str, seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Walk with the mean action; return the actions `[T, A]` and the running mean of the power `[T]`, in watts."""
    collector = Collector(make_envs(env, 1, seed), steps, torch.Generator())
    rollout = collector.collect(policy, deterministic=True)
    watts = -rollout.info["reward_energy"][:, 0] / ENERGY_SCALE
    means = [watts[max(0, t + 1 - POWER_WINDOW) : t + 1].mean() for t in range(steps)]
    return rollout.env_actions[:, 0], np.array(means)


def find_row(file: Path) -> dict[str, Any]:
    """Return a policy's row with the mean action in the ledger."""
    checksum = file_sum(file)
    for row in read_ledger("real_robot.jsonl").values():
        if row["policy"] == checksum and row["key"].endswith("/mean"):
            return row
    raise RepolicyError(f"{file} is not in the ledger: measure it by python -m experiments.real_robot")


@campaign.program(run={"type": Path, "required": True}, out=Path("docs/images/go1.gif"), seconds=3.0, seed=3)
def main(options: campaign.Options) -> None:
    env = json.loads((options.run / "run.json").read_text())["request"]["env"]
    files = [options.run / "prior.safetensors", find_policy(options.run)]
    rows = [find_row(file) for file in (find_policy(PRIOR), files[1])]
    steps = round(options.seconds * 2 * FRAMES_A_SECOND)  # the robot has 50 a second
    walks = [walk(read_policy(file).policy, env, options.seed, steps) for file in files]
    shots = [
        Shot(
            str(file), env, seconds=options.seconds, seed=options.seed, width=300, height=220, actions=actions.tolist()
        )
        for file, (actions, _) in zip(files, walks, strict=True)
    ]
    films = render_films(shots, print)
    left, right = (
        Panel(
            name, imageio.mimread(film, format="mp4", memtest=False), watts[::2], -row["energy"][0] / ENERGY_SCALE,
            row["basic"][0] / rows[0]["basic"][0], color,
        )
        for name, film, (_, watts), row, color in zip(NAMES, films, walks, rows, COLOR, strict=True)
    )  # fmt: skip
    start, *rest = join_pictures(left, right)
    start.save(options.out, save_all=True, append_images=rest, duration=1000 * KEEP_EVERY // FRAMES_A_SECOND, loop=0)
