"""Two policies side by side in one film, from the same start: a gif that is small enough for a page.

python -m experiments.robot_film --run runs/go1-energy --out docs/images/go1.gif
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
from PIL import Image

from repolicy.priors.finding import find_policy
from repolicy.report.movie import FRAMES_A_SECOND, Shot, films

EVERY = 2  # pictures of which one is kept
COLORS = 48


def beside(left: Sequence[Any], right: Sequence[Any], keep: int = EVERY) -> list[Image.Image]:
    """Put every so many pictures `[H, W, 3]` of both, side by side, in few colors."""
    pairs = zip(left[::keep], right[::keep], strict=True)
    return [Image.fromarray(np.concatenate(pair, axis=1)).quantize(COLORS) for pair in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--policy", type=Path, help="a file beside the run's prior; by default the run's best")
    parser.add_argument("--out", type=Path, default=Path("docs/images/go1.gif"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    env = json.loads((options.run / "run.json").read_text())["request"]["env"]
    shots = [
        Shot(str(file), env, seconds=options.seconds, seed=options.seed, width=300, height=220)
        for file in (options.run / "prior.safetensors", options.policy or find_policy(options.run))
    ]
    first, second = ([*imageio.mimread(film, format="mp4", memtest=False)] for film in films(shots))
    start, *rest = beside(first, second)
    start.save(options.out, save_all=True, append_images=rest, duration=1000 * EVERY // FRAMES_A_SECOND, loop=0)


if __name__ == "__main__":
    main()
