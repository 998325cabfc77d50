"""Two policies side by side in one film, from the same start, and how much power each of them takes: a gif for a page.

python -m experiments.robot_film --run runs/go1-energy --out docs/images/go1.gif

The averages in it are those of `results/real_robot.jsonl`, where both policies must have been measured.
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
from repolicy.loading import file_sum
from repolicy.policies.policy import Policy
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.report.movie import FRAMES_A_SECOND, Shot, render_films

PRIOR = "playground:go1"
NAMES = ("the published policy", "with the wish for less power")
KEEP_EVERY = 2  # pictures of which one is kept
COLORS = 64
TEXT_HEIGHT = 64  # pixels beneath a picture
MAX_WATTS = 200.0  # watts that fill the width
POWER_WINDOW = 25  # steps, half a second: a leg's power comes and goes with each of its steps
ENERGY_SCALE = 0.001  # of the task's term, which is −0.001 · Σ |torque · joint velocity|
INK, PAPER, COLOR = (30, 30, 34), (255, 255, 255), ((120, 120, 128), (28, 126, 84))


@dataclass(frozen=True)
class Panel:
    """Whose pictures these are, and what stands beneath them."""

    name: str
    pictures: Sequence[Any]  # [H, W, 3]
    power: np.ndarray  # watts at each picture
    average: float
    kept: float  # of the old return
    color: tuple[int, int, int]

    def drawn(self, index: int) -> Image.Image:
        """Draw the picture with its words and two bars: the power now, and a line at the average."""
        picture = Image.fromarray(self.pictures[index])
        whole = Image.new("RGB", (picture.width, picture.height + TEXT_HEIGHT), PAPER)
        whole.paste(picture)
        draw, top, scale = ImageDraw.Draw(whole), picture.height, (picture.width - 16) / MAX_WATTS
        draw.text((8, top + 4), self.name, INK, ImageFont.load_default(14))
        words = f"power {self.power[index]:.0f} W · average {self.average:.0f} W · old reward {self.kept:.0%}"
        draw.text((8, top + 23), words.replace("%", " %"), INK, ImageFont.load_default(13))
        draw.rectangle((8, top + 46, 8 + scale * min(self.power[index], MAX_WATTS), top + 56), self.color)
        draw.rectangle((8 + scale * self.average, top + 43, 10 + scale * self.average, top + 59), INK)
        return whole


def join_pictures(left: Panel, right: Panel, keep: int = KEEP_EVERY) -> list[Image.Image]:
    """Put every so many pictures of both side by side, in few colors."""
    both = []
    for index in range(0, min(len(left.pictures), len(right.pictures)), keep):
        pair = [np.asarray(side.drawn(index)) for side in (left, right)]
        both.append(Image.fromarray(np.concatenate(pair, axis=1)).quantize(COLORS, dither=Image.Dither.NONE))
    return both


def walk(policy: Policy, env: str, seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Walk by the mean action; return what was done `[T, A]`, and the watts `[T]`, over the half second before."""
    collector = Collector(make_envs(env, 1, seed), steps, torch.Generator(), keep_transitions=True)
    rollout = collector.collect(policy, deterministic=True)
    watts = -rollout.info["reward_energy"][:, 0] / ENERGY_SCALE
    return rollout.env_actions[:, 0], np.array(
        [watts[max(0, t + 1 - POWER_WINDOW) : t + 1].mean() for t in range(steps)]
    )


def find_row(file: Path) -> dict[str, Any]:
    """Find the row of a policy with its mean action in the ledger."""
    wanted = file_sum(file)
    for row in read_ledger("real_robot.jsonl").values():
        if row["policy"] == wanted and row["key"].endswith("/mean"):
            return row
    raise RepolicyError(f"{file} is not in the ledger: measure it by python -m experiments.real_robot")


@campaign.program(run={"type": Path, "required": True}, out=Path("docs/images/go1.gif"), seconds=3.0, seed=3)
def main(options: campaign.Options) -> None:
    env = json.loads((options.run / "run.json").read_text())["request"]["env"]
    files = [options.run / "prior.safetensors", find_policy(options.run)]
    rows = [find_row(file) for file in (find_policy(PRIOR), files[1])]
    steps = round(options.seconds * 2 * FRAMES_A_SECOND)  # the robot has 50 a second
    did = [walk(read_policy(file).policy, env, options.seed, steps) for file in files]
    shots = [
        Shot(str(file), env, seconds=options.seconds, seed=options.seed, width=300, height=220, actions=sent.tolist())
        for file, (sent, _) in zip(files, did, strict=True)
    ]
    left, right = (
        Panel(
            name, imageio.mimread(film, format="mp4", memtest=False), watts[::2], -row["energy"][0] / ENERGY_SCALE,
            row["basic"][0] / rows[0]["basic"][0], color,
        )
        for name, film, (_, watts), row, color in zip(NAMES, render_films(shots, print), did, rows, COLOR, strict=True)
    )  # fmt: skip
    start, *rest = join_pictures(left, right)
    start.save(options.out, save_all=True, append_images=rest, duration=1000 * KEEP_EVERY // FRAMES_A_SECOND, loop=0)
