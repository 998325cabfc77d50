"""Compare copies of other libraries' policies with the libraries themselves, version by version.

    python -m experiments.readers

Each version is installed into a folder of its own. A process that imports it writes a policy's file, and its means and
log-probabilities (`experiments.written_elsewhere`). A row has the largest error over 256 observations, relative where
the number is above 1. The copy computes in double precision, as the library does for SAC.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from experiments import campaign
from experiments.ledger import Row
from experiments.pages import markdown_table
from repolicy.errors import RepolicyError
from repolicy.priors.opening import load_policy

KINDS = ("PPO", "TRPO", "SAC", "TD3")
SB3 = {"2.0.0": "2.0.0", "2.3.2": "2.3.0", "2.7.0": "2.7.0", "2.9.2": "2.9.2"}  # and sb3-contrib's of the same time
OLD_GYMNASIUM = ("2.0.0", "2.3.2")
OTHERS = {
    "rsl_rl": ("2.2.4", "2.3.3", "3.0.1", "5.0.1", "5.5.1"),
    "skrl": ("1.3.0", "1.4.3", "2.1.1"),
    "rl_games": ("1.6.1", "1.6.5"),
    "tianshou": ("0.5.1", "1.2.0", "2.0.1"),
    "torchrl": ("0.14.1",),
    "rllib": ("2.44.1", "2.60.0"),
}
NAMES = {"sb3": "Stable-Baselines3", "torchrl": "TorchRL", "rllib": "RLlib"}
PACKAGES = {"rsl_rl": "rsl-rl-lib", "rllib": "ray"}
TIANSHOU = ("h5py", "numba", "llvmlite", "pettingzoo")
NEW_TIANSHOU = (*TIANSHOU, "deepdiff", "orderly-set", "cachebox", "sensai-utils", "overrides")
HTTP = ("requests", "urllib3", "idna", "certifi", "charset-normalizer")
SCHEMA = ("jsonschema", "jsonschema-specifications", "referencing", "rpds-py")
RAY = ("dm-tree", "lz4", "ormsgpack", "scipy==1.17.1", "msgpack", "gymnasium==1.2.2", *HTTP, *SCHEMA)
EXTRA = {  # packages that a version imports and that are not installed here
    **dict.fromkeys(("skrl 1.3.0", "rl_games 1.6.1"), ("gym==0.26.2", "gym-notices==0.1.0")),
    "tianshou 0.5.1": (*TIANSHOU, "gymnasium==0.28.1", "jax-jumpy"),
    **dict.fromkeys(("tianshou 1.2.0", "tianshou 2.0.1"), NEW_TIANSHOU),
    "torchrl 0.14.1": ("tensordict==0.14.3", "pyvers", "orjson"),
    **dict.fromkeys(("rllib 2.44.1", "rllib 2.60.0"), RAY),
}


def required_packages(library: str, version: str) -> list[str]:
    """Return the packages to install: the version, and others that it needs in a version unlike ours."""
    if library == "sb3":
        own = [f"stable-baselines3=={version}", f"sb3-contrib=={SB3[version]}"]
        return [*own, "gymnasium==0.29.1"] if version in OLD_GYMNASIUM else own
    return [f"{PACKAGES.get(library, library)}=={version}", *EXTRA.get(f"{library} {version}", ())]


def install(library: str, version: str, folder: Path) -> Path:
    """Install a version into its folder, unless it exists, and return the folder."""
    place = folder / f"{library}-{version}"
    if not place.exists():
        words = ["-m", "pip", "install", "-q", "--no-deps", "--ignore-requires-python", "--target"]
        subprocess.run([sys.executable, *words, str(place), *required_packages(library, version)], check=True)
    return place


def measure(library: str, version: str, kind: str, folder: Path) -> Row:
    """Return the largest errors of the copy, or in one line why there is no copy."""
    row: Row = {"library": library, "version": version, "kind": kind}
    place = install(library, version, folder)
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-W", "ignore", "-m", "experiments.written_elsewhere", library, kind, out]
        paths = os.pathsep.join([str(place.resolve()), str(Path(__file__).parents[1])])
        environment = os.environ | {"PYTHONPATH": paths}
        process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            return row | {"failed": f"the library: {process.stderr.strip().splitlines()[-1]}"}
        [file] = [path for path in Path(out).iterdir() if path.name != "expected.npz"]
        expected = dict(np.load(Path(out, "expected.npz")))
        try:
            policy = load_policy(file, std=None if "log_prob" in expected else 0.1).double()
        except RepolicyError as error:
            return row | {"failed": f"the reader: {error}"}
    obs = torch.from_numpy(expected["observations"]).double()
    with torch.no_grad():
        mean = policy(obs).mode().numpy()
        if "log_prob" not in expected:  # a mean as the environment takes it
            return row | {"mean": largest_error(policy.to_environment(mean), expected["mean"])}
        log_prob = policy.log_prob(obs, torch.from_numpy(expected["actions"]).double()).numpy()
    row["mean"] = largest_error(mean, expected["mean"])
    return row | {"log_prob": largest_error(log_prob, expected["log_prob"])}


def largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error, relative where the expected number is above 1."""
    return float(f"{(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))).max():.2g}")


def table(found: list[Row]) -> str:
    """Return a table with one line per library: versions, kinds, and the largest errors over all of them."""
    cells = []
    for library in ("sb3", *OTHERS):
        rows = [row for row in found if row["library"] == library and "failed" not in row]
        kinds, versions = (", ".join(dict.fromkeys(row[key] for row in rows)) for key in ("kind", "version"))
        worst = [max(row[key] for row in rows if key in row) for key in ("mean", "log_prob")]
        cells.append([NAMES.get(library, library), versions, kinds, *(f"{each:.0e}" for each in worst)])
    return markdown_table(["library", "versions", "kinds", "mean", "log-probability"], cells)


@campaign.program("ledger", libraries=Path("runs/libraries"))
def main(options: campaign.Options) -> campaign.Measurements:
    ways = [("sb3", version, kind) for version in SB3 for kind in KINDS]
    ways += [(library, version, "PPO") for library, versions in OTHERS.items() for version in versions]
    ways += [("rllib", version, "SAC") for version in OTHERS["rllib"]]
    return {" ".join(way): partial(measure, *way, options.libraries) for way in ways}
