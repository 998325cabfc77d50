"""The commands addons, report, bench and doctor."""

import os
import subprocess
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from repolicy.cli.options import Command, Positional, defaults_by_env
from repolicy.cli.policy_commands import warn_of_unfinished
from repolicy.errors import UsageError
from repolicy.loading import PYTHON
from repolicy.prepare.defaults import train_defaults
from repolicy.readers.reading import Options
from repolicy.runs import BUDGETS, Settings, Terminal, format_facts, physical_cores, versions
from repolicy.text import format_count


@dataclass(frozen=True)
class Addons(Command):
    """List the add-on rewards that ship, and what each of them rewards.

    Example: repolicy addons
    """

    def run(self) -> dict[str, Any]:
        from repolicy.addons.registered import describe_registered

        Terminal().say(
            "c is the environment's own weight of the term, below 0 for costs; --json names every environment",
            "your own: --addon module:function or --addon file.py:function",
        )
        return {"addons": describe_registered()}

    def text(self, values: dict[str, Any]) -> str:
        return "\n".join(map(_addon_line, values["addons"]))


def _addon_line(row: dict[str, Any]) -> str:
    """Return the line of an add-on, with the options that it takes in brackets."""
    name = row["name"] + "".join(f"({option}=…)" for option in row["options"])
    return f"{name}: {row['what']} [{row['short_env']}; reported as {row['metric']}]"


@dataclass(frozen=True)
class Report(Command):
    """Write a page about a run: from a folder of Repolicy or rsl_rl, or from one saved model or checkpoint.

    Example: repolicy report logs/rsl_rl/go1/2026-01-01
    """

    source: Annotated[Path, Positional("RUN")]
    """A run's folder, rsl_rl's folder with model_*.pt, one of these files, or a model of Stable-Baselines3 (.zip)."""
    trust: bool = False
    """Run code that a folder of Repolicy names as its environment or add-on."""

    def run(self) -> dict[str, Any]:
        from repolicy.report.host_page import write_host_report
        from repolicy.report.run_page import write_report

        terminal = Terminal()
        if (self.source / "run.json").exists():
            warn_of_unfinished(self.source)
            path = write_report(self.source, say=terminal.say, trust=self.trust)
        else:
            path, verdict = write_host_report(self.source)
            terminal.say(*verdict)
        terminal.say(f"report: {path}")
        return {"report": str(path)}


@dataclass(frozen=True)
class Bench(Command):
    """Measure the speed of the physics alone and of training end to end, in alternating slices of one run.

    Example: repolicy bench HalfCheetah-v4 --ranks 1
    """

    env: Annotated[str, Positional("ENV")]
    """Environment."""
    slices: int = 10
    """Number of pairs of slices; the median slices are reported."""
    named_settings: Settings = field(default_factory=Settings)
    UNUSED: ClassVar = (*BUDGETS, "steps")  # settings without effect here
    defaults = staticmethod(defaults_by_env)

    def run(self) -> dict[str, Any]:
        from repolicy.learning.bench import bench

        overrides: Any = self.named_settings
        if "steps" in overrides:
            raise UsageError("a bench has no --steps: how long it takes is --slices")
        figures = bench(self.env, replace(train_defaults(self.env), **overrides), self.slices)
        spread, terminal = figures["slice_shares"], Terminal()
        ranks = format_count(figures["ranks"], "rank")
        terminal.say(f"{figures['env']} ({figures['backend']}), {ranks}, {figures['steps']:,} steps")
        facts = {
            "physics alone": f"{figures['physics_steps_per_second']:,.0f} steps a second",
            "training, end to end": f"{figures['training_steps_per_second']:,.0f} steps a second",
            "share of the physics": f"{figures['share']:.3f}",
            "… of the slices": f"{spread['min']:.3f} – {spread['max']:.3f}",
            "memory": f"{figures['memory_mb_a_rank']:,.0f} MB a rank",
        }
        terminal.say(format_facts(facts))
        return figures


@dataclass(frozen=True)
class Doctor(Command):
    """Report what this installation can do; or look for the causes when a resumed training broke.

    Example: repolicy doctor model_200.pt --before model_150.pt
    """

    checkpoint: Annotated[Path | None, Positional("RUN")] = None
    """A checkpoint of rsl_rl or Stable-Baselines3 from soon after the training was resumed, or rsl_rl's folder."""
    before: Path | None = None
    """The checkpoint from which the training was resumed, or rsl_rl's folder."""
    batch: Path | None = None
    """Observations, actions and log_probs (.npz) that RUN's policy sampled before its next update."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        if self.checkpoint is None:
            if self.before is not None or self.batch is not None:
                raise UsageError("--before and --batch go with the checkpoint of the training that went on")
            return installation()
        if self.batch is None and self.reading != Options():
            raise UsageError("how to read the checkpoint's policy goes with --batch")
        from repolicy.hosts.resuming import causes, first_ratios, read_checkpoint
        from repolicy.priors import read_policy
        from repolicy.report.host_page import checkpoint_in

        path = checkpoint_in(self.checkpoint)
        before = None if self.before is None else read_checkpoint(checkpoint_in(self.before))
        sentences = causes(read_checkpoint(path), before)
        if self.batch is not None:
            reading = self.reading
            if path.suffix == ".zip" and reading.vecnormalize is None:
                reading = replace(reading, vecnormalize="none")  # SB3's buffer holds normalized observations
            sentences += first_ratios(read_policy(path, reading), self.batch)
        return {"causes": sentences}

    def text(self, values: dict[str, Any]) -> str:
        if "causes" in values:
            return "\n".join(values["causes"]) or "none of the usual causes is there"
        return format_facts(values)


EXTRAS = {  # the modules that each extra of the package installs
    "engine": ["mujoco", "tensorboard", "imageio"],
    "sb3": ["stable_baselines3", "sb3_contrib", "highway_env"],
    "rsl-rl": ["rsl_rl", "tensordict"],
    "llm": ["trl", "peft", "transformers", "datasets"],
    "ray": ["ray"],
    "wandb": ["wandb"],
    "hub": ["huggingface_hub"],
    "film": ["pygame"],
    "onnx": ["onnx", "onnxruntime", "onnxscript"],
}


def installation() -> dict[str, Any]:
    """Return the versions, cores, environments, rendering and extras of this installation."""
    from repolicy.envs import envpool_names, why_no_envpool

    facts: dict[str, Any] = {**versions(), "cores": physical_cores()}
    names, library = envpool_names(), renderer()
    no_envpool = f"Gymnasium's only, which are slower: EnvPool {why_no_envpool()}"
    facts["environments"] = f"EnvPool's {len(names):,}, and Gymnasium's" if names else no_envpool
    needed = "libegl1 or libosmesa6 for films" if find_spec("mujoco") else "the extra engine"
    facts["rendering"] = f"works off-screen with MUJOCO_GL={library}" if library else f"does not work: install {needed}"
    for extra, packages in EXTRAS.items():
        missing = ", ".join(name for name in packages if find_spec(name) is None)
        facts[f"extra {extra}"] = f"missing {missing}: pip install 'repolicy[{extra}]'" if missing else "installed"
    return facts


def renderer() -> str:
    """Return the first graphics library that can draw a frame off-screen here; empty if none can.

    Each is tried in a process, because it may crash.
    """
    from repolicy.report.movie import libraries

    code = (
        "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco/>'); r = mujoco.Renderer(m, 16, 16); "
        "r.update_scene(mujoco.MjData(m)); r.render()"
    )
    for library in libraries():
        environment = os.environ | {"MUJOCO_GL": library}
        process = subprocess.run([*PYTHON, "-c", code], env=environment, capture_output=True, check=False)
        if process.returncode == 0:
            return library
    return ""
