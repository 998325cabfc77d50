"""Draw the picture of docs/index.md: a prior and its customized policy as strips of film.

    python -m experiments.picture --run runs/demo --out docs/images/customized.png

`make demo` makes the run.
"""

import json
from pathlib import Path

import imageio.v2 as imageio
import matplotlib.pyplot as plt

from experiments import campaign
from repolicy.evaluation import evaluate
from repolicy.report.movie import Shot, render_films

COLUMNS = 7


@campaign.program(run=Path("runs/demo"), out=Path("docs/images/customized.png"))
def main(options: campaign.Options) -> None:
    request = json.loads((options.run / "run.json").read_text())["request"]
    env, addon = request["env"], request["addons"][0]
    files = {"prior": options.run / "prior.safetensors", f"with {addon}": options.run / "policy.safetensors"}
    shots = [Shot(str(file), env, seconds=4.0, width=480, height=360, fine=True) for file in files.values()]
    figure, rows = plt.subplots(2, COLUMNS, figsize=(2 * COLUMNS, 3.3))
    figure.subplots_adjust(0.002, 0.002, 0.998, 0.92, wspace=0.02, hspace=0.18)
    for (name, file), film, row in zip(files.items(), render_films(shots), rows, strict=True):
        summary = evaluate(file, env, 100, addon=addon).as_dict()["summary"]
        scores = f"basic return {summary['basic_reward']['mean']:,.0f}, mean |angle| {summary['metric']['mean']:.2f}"
        row[0].set_title(f"{name}: {scores}", loc="left", fontsize=12)
        pictures = imageio.mimread(film, format="mp4", memtest=False)
        for column, axis in enumerate(row):
            axis.imshow(pictures[len(pictures) // 2 + 2 * column][140:320, 100:380])
            axis.set_axis_off()
    figure.savefig(options.out, dpi=80)
