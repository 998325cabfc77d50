"""What this installation can do."""

import os
import re
import subprocess
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repolicy.envs.names import envpool_names
from repolicy.loading import PYTHON
from repolicy.report.movie import libraries
from repolicy.runs.machine import physical_cores, versions
from repolicy.runs.terminal import Terminal

EXTRAS = {
    "engine": ["mujoco", "tensorboard", "imageio"],
    "sb3": ["stable_baselines3", "sb3_contrib", "highway_env"],
    "rsl-rl": ["rsl_rl", "tensordict"],
    "llm": ["trl", "peft", "transformers", "datasets", "packaging"],
    "ray": ["ray"],
    "wandb": ["wandb"],
    "hub": ["huggingface_hub"],
    "film": ["pygame"],
    "onnx": ["onnx", "onnxruntime", "onnxscript"],
}


def doctor() -> dict[str, Any]:
    """Print and return versions, backends, rendering and cores."""
    facts: dict[str, Any] = dict(versions())
    facts["torch"] += idle_cuda()
    facts["cores"] = physical_cores()
    facts["environments"] = _environments()
    library = renderer()
    facts["rendering"] = (
        f"works off-screen with MUJOCO_GL={library}"
        if library
        else "does not work: install libegl1 or libosmesa6 for films"
    )
    for extra, packages in EXTRAS.items():
        missing = ", ".join(name for name in packages if find_spec(name) is None)
        facts[f"extra {extra}"] = f"missing {missing}: pip install 'repolicy[{extra}]'" if missing else "installed"
    Terminal().facts(facts)
    return facts


def _environments() -> str:
    names = envpool_names()
    return f"EnvPool's {len(names):,}, and Gymnasium's" if names else "Gymnasium's only (no EnvPool here: slower)"


def idle_cuda() -> str:
    """Return what torch's CUDA build takes on the disk, or nothing where torch has none or finds a GPU to use it on."""
    import torch

    if torch.version.cuda is None or torch.cuda.is_available():
        return ""
    files = (
        path.locate()
        for found in distributions()
        if re.match(r"(torch|triton|(nvidia|cuda)-.*)$", found.name or "")
        for path in found.files or ()
    )
    size = sum(Path(path).stat().st_size for path in files if Path(path).is_file())
    return f", CUDA build, {size / 1e9:.1f} GB: no GPU here needs it, and the quickstart page has the smaller build"


def renderer() -> str:
    """Return the first graphics library that draws off-screen here, or nothing."""
    return next((library for library in libraries() if _renders(library)), "")


def _renders(backend: str) -> bool:
    """Try it: one frame of a small scene."""
    code = (
        "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco/>'); r = mujoco.Renderer(m, 16, 16); "
        "r.update_scene(mujoco.MjData(m)); r.render()"
    )
    environment = os.environ | {"MUJOCO_GL": backend}
    done = subprocess.run([*PYTHON, "-c", code], env=environment, capture_output=True, check=False)
    return done.returncode == 0
