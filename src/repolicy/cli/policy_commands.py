"""The commands that use a policy without changing it: evaluate, render, export, inspect, push.

Each command is a dataclass whose fields are its options; the docstrings under them are its help. Nothing heavy is
imported before a command runs, so that `--help` answers at once.
"""

import contextlib
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from repolicy.cli.options import Command, OpensPolicy, Positional, Repeated, RunsPolicy
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.files import check_writable, read_json, write_bytes, write_json
from repolicy.readers.reading import Options
from repolicy.runs import Terminal
from repolicy.text import as_file_name, format_count


@dataclass(frozen=True)
class Evaluate(RunsPolicy):
    """Run a policy for whole episodes and report its returns: mean ± std, and each episode in a JSON file.

    Example: repolicy evaluate runs/cheetah/policy.safetensors --episodes 500
    """

    policy: Annotated[Path, Positional("POLICY")]
    """A policy's file, a run's folder, a name that ships, or code, as customize takes it."""
    episodes: int = 100
    """Number of episodes, divided evenly between the environments."""
    addon: Repeated = ()
    """Add-on reward to report too; by default that which the policy was customized to, with its limits. Repeatable."""
    sampled: bool = False
    """Sample the actions instead of taking the mean."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Library that runs the environment, by default the run's own; gymnasium is the reference."""
    out: Path | None = None
    """A JSON file with all episodes; by default beside the policy, or here if it is shipped or another library's."""

    def run(self) -> dict[str, Any]:
        from repolicy.evaluation import evaluate
        from repolicy.priors import check_not_overwriting, output_folder

        opened, env = self.open_policy(self.policy)
        path = opened.path
        warn_of_unfinished(self.policy)
        if self.out is not None:
            check_not_overwriting(self.out, path, ".json")
            check_writable(self.out)
        terminal, episodes = Terminal(), format_count(self.episodes, "episode")
        terminal.say(*opened.notes)
        with terminal.progress(f"{env}: running {episodes}") as show:
            evaluation = evaluate(
                opened, env, self.episodes,
                addon=self.addon or None, deterministic=not self.sampled, seed=self.seed, backend=self.backend,
                trust=self.trust, say=terminal.say,
                progress=lambda done: show(f"{env}: {done} of {episodes}"),
            )  # fmt: skip
        terminal.say(f"{path}: {evaluation}")  # before the file, which may turn out not to be writable
        env_prefix = "" if self.env is None else f"{as_file_name(env)}-"
        seed_prefix = f"seed-{self.seed}-" if self.seed else ""
        ending = f"{env_prefix}{seed_prefix}{evaluation.action}-{evaluation.backend}.json"
        out = self.out or _episodes_file(path, output_folder(path), ending)
        values = {"policy": str(path), "which": opened.card.get("which", "")} | evaluation.as_dict()
        try:
            write_json(out, values)
            terminal.say(f"each episode: {out}")
        except FileError as error:
            if self.out is not None:
                raise
            terminal.say(f"warning: the episodes are not kept: {error}")
        return {key: value for key, value in values.items() if key != "each"} | {"file": str(out)}


@dataclass(frozen=True)
class Render(RunsPolicy):
    """Film a policy that takes its mean action: an mp4, or a gif.

    Example: repolicy render runs/cheetah --seconds 10 --out cheetah.mp4
    """

    policy: Annotated[str, Positional("POLICY")]
    """A policy's file, a run's folder, or a name that ships."""
    seconds: float = 10.0
    """Length of the film; it contains as many episodes as fit."""
    width: int = 640
    """Width of the picture; its height is two thirds of that."""
    out: Path | None = None
    """The film, .mp4 or .gif; by default an mp4 beside the policy, or here if it is shipped or another library's."""

    def run(self) -> dict[str, Any]:
        from repolicy.addons import env_from_card
        from repolicy.policies import read_card
        from repolicy.policies.storage import is_repolicy_file
        from repolicy.priors import PLAN_FILE, check_no_options, is_plan, read_policy, saved_policy_bytes
        from repolicy.report.movie import FORMATS, Shot, policy_path, render_films

        warn_of_unfinished(self.policy)
        is_planner, path = is_plan(self.policy), policy_path(self.policy)
        card = read_json(path / PLAN_FILE) if is_planner else read_card(path)
        env = self.env or env_from_card(card, path, self.trust)
        suffix = ".mp4" if self.out is None else self.out.suffix.lower()
        format = suffix.removeprefix(".")
        if format not in FORMATS:
            raise UsageError(f"--out {self.out} does not end in .mp4 or .gif")
        out = _output_file(self.out, path, suffix)
        shot = Shot(
            str(path), env, seconds=self.seconds, seed=self.seed, width=self.width,
            height=round(self.width * 2 / 3), format=format, fine=True, trust=self.trust,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="repolicy-render-") as folder:
            if is_planner or is_repolicy_file(path):
                check_no_options(path, self.reading)
            else:  # the process that renders reads only Repolicy's own files
                converted = Path(folder, "policy.safetensors")
                write_bytes(converted, saved_policy_bytes(read_policy(path, self.reading)))
                shot = replace(shot, policy=str(converted))
            [content] = render_films([shot], Terminal().say)
        write_bytes(out, content)
        Terminal().say(f"film: {out}")
        return {"file": str(out), "env": env, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class Export(OpensPolicy):
    """Write a policy for other programs: raw observations in, the mean action out, checked against the original.

    The file describes its inputs and outputs; repolicy inspect shows them.

    Example: repolicy export runs/cheetah --out cheetah.onnx
    """

    policy: Annotated[str, Positional("POLICY")]
    """A policy's file, a run's folder, or a name that ships."""
    out: Path | None = None
    """The file to write: .onnx, for ONNX Runtime and whatever reads ONNX; or .pt, TorchScript for C++ programs with
    libtorch. By default an .onnx beside the policy, or here if it is shipped or another library's."""
    env: str | None = None
    """Environment whose names, ranges and control period the file gets; by default the policy's own."""
    trust: bool = False
    """Run code that the policy's file names as environment, or open a generative policy's decoder, to write both as
    one graph."""

    def run(self) -> dict[str, Any]:
        from repolicy.addons import env_from_card
        from repolicy.cli.environment_info import environment_info
        from repolicy.envs import match_observation, parse_env_name
        from repolicy.policies import FORMAT_BY_SUFFIX, ConditionedPolicy
        from repolicy.policies.export import export
        from repolicy.priors import export_composed, find_decoder_file, find_policy, read_policy

        warn_of_unfinished(self.policy)
        say, path = Terminal().say, find_policy(self.policy)
        suffix = ".onnx" if self.out is None else self.out.suffix.lower()
        if suffix not in FORMAT_BY_SUFFIX:
            raise UsageError(f"--out {self.out} does not end in .onnx or .pt")
        format, out = FORMAT_BY_SUFFIX[suffix], _output_file(self.out, path, suffix)
        saved = read_policy(path, self.reading)
        decoder = parse_env_name(self.env or saved.card.get("request", {}).get("env", "")).decoder
        if format == "onnx" and decoder is not None and str(decoder.decoder).endswith(".onnx"):
            if self.env is None:
                env_from_card(saved.card, path, self.trust)  # raises for a path that the user neither typed nor trusts
            if isinstance(saved.policy, ConditionedPolicy):
                raise UsageError(saved.policy.missing_dials_message())
            decoder_file = find_decoder_file(decoder.decoder, decoder.sha256).path
            difference = export_composed(saved.policy, decoder_file, decoder.noise, decoder.chunk, out)
            say(f"exported: {out}, onnx, observations and noise to actions, equal within {difference:.1g}")
            return {"file": str(out), "format": format, "difference": difference}
        env_info: dict[str, Any] = {}
        try:
            env = self.env or env_from_card(saved.card, path, self.trust)
            env_info = environment_info(match_observation(env, saved.policy))
        except UsageError as error:
            if self.env is not None:
                raise
            say(f"without names, ranges and control period: {error}")
        difference = export(saved.policy, out, format, prior=saved.prior, card=saved.card, env_info=env_info)
        if decoder is not None:
            say("what comes out is a generative policy's noise, and no action: decode it")
        say(f"exported: {out}, {format}, equal to the policy within {max(difference, 1e-9):.1g}")
        return {"file": str(out), "format": format, "difference": difference}


@dataclass(frozen=True)
class Inspect(Command):
    """Show what is in a file: a policy, a checkpoint, or a run's folder.

    Example: repolicy inspect runs/cheetah/policy.safetensors
    """

    file: Annotated[Path, Positional("FILE")]
    """A policy's file, a checkpoint, or a run's folder."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.cli.inspection import inspect

        return inspect(self.file, self.reading)

    def text(self, values: dict[str, Any]) -> str:
        from repolicy.cli.inspection import format_inspection

        return format_inspection(values)


def _episodes_file(path: Path, folder: Path, ending: str) -> Path:
    """Return the file for a policy's episodes, named by the policy's name.

    If that file holds the episodes of another policy, the name is made of the policy's whole path.
    """
    from repolicy.policies.storage import is_repolicy_file

    name = as_file_name(path.name) if ":" in path.name else path.stem  # file.py:function, for a policy that is code
    out = folder / f"evaluation-{name}-{ending}"
    with contextlib.suppress(FileError, AttributeError):  # no file there, or one that is no evaluation
        known = Path(str(read_json(out).get("policy")))  # as it was typed, maybe in another working folder
        is_beside = is_repolicy_file(path) and not known.is_absolute() and known.name == path.name
        if is_beside or known.resolve() == path.resolve():
            return out
    return folder / f"evaluation-{as_file_name(str(path))}-{ending}" if out.exists() else out


def warn_of_unfinished(reference: str | Path) -> None:
    """Print a warning if the policy is that of an unfinished run, because resuming the run replaces its policy."""
    from repolicy.runs import RunFolder

    folder = RunFolder(Path(reference))
    with contextlib.suppress(RepolicyError):  # a run that cannot be read, or is of another method, gets no warning
        request = folder.request()
        if request is not None and (notice := folder.unfinished_notice(request)):
            Terminal().say(f"{folder.path}: {notice}")


def _output_file(out: Path | None, path: Path, suffix: str) -> Path:
    """Return the file to write: `out`, or the policy's name with this suffix. Raise before the work if it cannot be."""
    from repolicy.priors import check_not_overwriting, output_folder

    out = out or output_folder(path) / f"{path.stem}{suffix}"
    check_not_overwriting(out, path)
    check_writable(out)
    return out


@dataclass(frozen=True, kw_only=True)
class Push(OpensPolicy):
    """Share a policy on the Hugging Face Hub: its file, a card with a table, and its film if there is one.

    Example: repolicy push runs/spare-leg hf://USER/spare-leg --license mit
    """

    policy: Annotated[str, Positional("POLICY")]
    """A run's folder, or a policy's file; an .mp4 or .gif with the same name beside it is its film."""
    target: Annotated[str, Positional("hf://USER/NAME")]
    """The repository, created if it does not exist; log in first with hf auth login."""
    license: str | None = None
    """The license: an identifier of the hub, such as mit or cc-by-4.0."""
    private: bool = False
    """Create a new repository as a private one."""
    episodes: int = 20
    """Episodes of the evaluation for the card's table."""

    def run(self) -> dict[str, Any]:
        from repolicy.report.publish import push

        warn_of_unfinished(self.policy)
        return push(
            self.policy, self.target, license=self.license, private=self.private, env=self.env,
            episodes=self.episodes, trust=self.trust, reading=self.reading, say=Terminal().say,
        )  # fmt: skip
