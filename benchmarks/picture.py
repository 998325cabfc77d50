"""The picture of the README: the priors that ship, as strips of film.

python benchmarks/picture.py --out docs/images/priors.png
"""

import argparse
from pathlib import Path

import imageio.v2 as imageio
import matplotlib.pyplot as plt

from repolicy.checkpoint import find_policy, read_policy, shipped
from repolicy.film import Shot, films


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("docs/images/priors.png"))
    parser.add_argument("--columns", type=int, default=6)
    options = parser.parse_args()
    names = shipped()
    figure, rows = plt.subplots(len(names), options.columns, figsize=(12, 2 * len(names)), squeeze=False)
    for name, row in zip(names, rows, strict=True):
        saved = read_policy(find_policy(name))
        shot = Shot(name, saved.card["request"]["env"], seconds=4.0, width=320, height=240, format="mp4", fine=True)
        film = imageio.mimread(films([shot])[0], format="mp4", memtest=False)
        mean, std = saved.card["scores"]["mean action"]
        row[0].set_title(f"{name}: {mean:,.0f} ± {std:,.0f}", loc="left", fontsize=11)
        start = len(film) // 2
        for column, axis in enumerate(row):
            axis.imshow(film[start + 3 * column])
            axis.set_axis_off()
    figure.tight_layout(pad=0.4)
    figure.savefig(options.out, dpi=70)


if __name__ == "__main__":
    main()
