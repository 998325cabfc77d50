"""The command line. Each command is a dataclass whose fields are its options; the docstrings under them are its help.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.objective import named
from repolicy.settings import Settings, checked, defaults, read_settings

if TYPE_CHECKING:
    from repolicy.training import Result

ObjectiveName = Literal["no_entropy", "end_entropy", "repeat_entropy", "soft", "full"]


@dataclass(frozen=True)
class Train:
    """Train a policy from nothing, as a prior or a baseline.

    Example: repolicy train HalfCheetah-v4 --objective soft --alpha 0.13472 --steps 3e6 --out runs/cheetah
    """

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Environment: an id of EnvPool or Gymnasium, or module:callable that makes one."""
    objective: ObjectiveName = "soft"
    """What the return contains (see the docs, "The eight objectives")."""
    alpha: float | None = None
    """Weight of the entropy."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward for --objective full: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    out: Path | None = None
    """The run's folder; by default runs/ENV-OBJECTIVE-SEED."""
    resume: bool = False
    """Go on with the run in the folder, if there is one."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file of settings; options on the command line go before it."""
    wandb: str | None = None
    """Log to this Weights & Biases project too."""
    json: bool = False
    """Print one JSON object on stdout at the end."""
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)

    def run(self) -> dict[str, Any]:
        from repolicy.training import train

        objective = named(self.objective, alpha=self.alpha)
        out = self.out or Path("runs") / f"{self.env.replace(':', '.')}-{self.objective}-{self.settings.seed}"
        watchers = _watchers(out, self.wandb)
        return _ended(
            train(self.env, objective, out, self.settings, addon=self.addon, resume=self.resume, watchers=watchers)
        )


@dataclass(frozen=True)
class Evaluate:
    """Run a policy for whole episodes and report its returns: mean ± std, and each episode in a JSON file.

    Example: repolicy evaluate runs/cheetah/best.safetensors --episodes 500
    """

    policy: Positional[Annotated[Path, arg(metavar="POLICY")]]
    """A policy's file, or a run's folder (then its best policy)."""
    env: str | None = None
    """Environment; by default the one that the policy was trained in."""
    episodes: int = 100
    """How many episodes, shared out evenly over the environments."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """Add-on reward to report as well; by default the one that the policy was customised to. Repeatable."""
    stochastic: bool = False
    """Sample the actions instead of taking the mean."""
    seed: int = 0
    """Seed of environments and sampling."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments; --backend gymnasium is the referee."""
    out: Path | None = None
    """Where each episode goes; by default evaluation-….json beside the policy."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from rich.console import Console
        from rich.table import Table

        from repolicy.addons import combined
        from repolicy.checkpoint import read_policy, write_json
        from repolicy.evaluation import evaluate

        path = policy_path(self.policy)
        saved = read_policy(path)
        request = saved.card.get("request", {})
        env, addons = self.env or request.get("env"), self.addon or tuple(request.get("addons", ()))
        if env is None:
            raise UsageError(f"{path} does not say which environment it is for; add --env")
        console = Console(stderr=True)
        with console.status(f"{env}: running {self.episodes} episodes") as status:
            found = evaluate(
                saved.policy, env, self.episodes,
                addon=combined(addons) if addons else None, prior=saved.prior, stochastic=self.stochastic,
                seed=self.seed, backend=self.backend,
                progress=lambda done: status.update(f"{env}: {done} of {self.episodes} episodes"),
            )  # fmt: skip
        action = "sampled" if self.stochastic else "mean"
        out = self.out or path.with_name(f"evaluation-{path.stem}-{action}-{found.backend}.json")
        values = {"policy": str(path), "which": saved.card.get("which", "")} | found.as_dict()
        write_json(out, values)
        title = f"{path} in {env} ({found.backend}), {self.episodes} episodes, {action} action"
        table = Table("", "mean", "std", title=title, title_justify="left")
        for name, mean, std in found.rows():
            table.add_row(name.replace("_", " "), f"{mean:,.2f}", f"{std:,.2f}")
        console.print(table)
        console.print(f"each episode: {out}", highlight=False, soft_wrap=True)
        return {key: value for key, value in values.items() if key != "each"} | {"file": str(out)}


@dataclass(frozen=True)
class Bench:
    """Measure, in alternating slices of one run, the physics alone and training end to end, and print the share.

    Example: repolicy bench HalfCheetah-v4 --ranks 1
    """

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Environment."""
    slices: int = 3
    """Pairs of slices; the reported share is their median."""
    json: bool = False
    """Print one JSON object on stdout."""
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)

    def run(self) -> dict[str, Any]:
        from repolicy.bench import bench

        return bench(self.env, self.settings, self.slices)


@dataclass(frozen=True)
class Inspect:
    """Tell the story of a file: a policy, a checkpoint, or a run's folder.

    Example: repolicy inspect runs/cheetah/best.safetensors
    """

    file: Positional[Annotated[Path, arg(metavar="FILE")]]
    """A policy's file, a checkpoint, or a run's folder."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.inspection import inspect

        return inspect(self.file)


@dataclass(frozen=True)
class Doctor:
    """Say what this installation can do: versions, backends, rendering, cores.

    Example: repolicy doctor
    """

    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.inspection import doctor

        return doctor()


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train,
    "evaluate": Evaluate,
    "bench": Bench,
    "inspect": Inspect,
    "doctor": Doctor,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit with 0, 1 for a failure or 2 for a request that cannot be met."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        from repolicy import __version__

        print(__version__)
        return
    try:
        command = _parsed(arguments[0], [_underscored(word) for word in arguments[1:]])
        values = command.run()
    except RepolicyError as error:
        print(f"repolicy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("repolicy: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    if command.json:
        print(json.dumps(values))
    if values.get("finished") is False:
        sys.exit(130)


def _parsed(name: str, arguments: list[str]) -> Any:
    """The command with its options. Settings start from the environment's own, or from the run that is resumed."""
    if name not in COMMANDS:
        from repolicy.loading import nearest

        raise UsageError(f"there is no command {name!r}{nearest(name, COMMANDS)}; repolicy --help lists them")
    command = COMMANDS[name]
    fields = {entry.name for entry in dataclasses.fields(command)}
    default: Any = dataclasses.MISSING
    if "settings" in fields and arguments and not arguments[0].startswith("-"):
        settings = _starting_settings(arguments)
        default = command(**{next(iter(dataclasses.fields(command))).name: arguments[0], "settings": settings})
    arguments = [_whole(word, previous) for previous, word in zip(["", *arguments], arguments, strict=False)]
    kwargs = {} if default is dataclasses.MISSING else {"default": default}
    return tyro.cli(command, args=arguments, prog=f"repolicy {name}", **kwargs)


def _starting_settings(arguments: list[str]) -> Settings:
    env = arguments[0]
    settings = defaults(env)
    options = dict(zip(arguments, arguments[1:], strict=False))
    if "--resume" in arguments and "--out" in options:
        from repolicy.checkpoint import RunFolder

        before = RunFolder(options["--out"]).request()
        if before is not None:
            return Settings(**checked(before["settings"], f"the run in {options['--out']}"))
    if "--settings" in options:
        settings = read_settings(Path(options["--settings"]), settings)
    return settings


def _underscored(word: str) -> str:
    """`--critic_warmup` is `--critic-warmup`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _whole(word: str, option: str) -> str:
    """`3e6` is a whole number where one is wanted."""
    if option in ("--steps", "--segment", "--minibatch", "--episodes") and "e" in word.lower():
        try:
            return str(int(float(word)))
        except ValueError:
            return word
    return word


def _overview() -> str:
    lines = ["usage: repolicy COMMAND ...", "", "Give a trained policy a new requirement, without its old reward.", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  {name:10s} {(command.__doc__ or '').splitlines()[0]}")
    lines += ["", "repolicy COMMAND --help lists a command's options. All take --json."]
    return "\n".join(lines)


def policy_path(path: Path) -> Path:
    """A policy's file; of a run's folder, its best policy."""
    if not path.is_dir():
        return path
    from repolicy.checkpoint import RunFolder

    best = RunFolder(path).best_policy
    if not best.exists():
        raise FileError(f"{path} has no policy yet: its first segment is not done")
    return best


def _watchers(out: Path, wandb: str | None) -> list[Any]:
    """Who watches a run that the command line started; under torchrun, only the first process has any."""
    from repolicy.checkpoint import RunFolder
    from repolicy.display import Display
    from repolicy.watch import JsonLines, TensorBoard, Wandb

    if int(os.environ.get("RANK", "0")) > 0:
        return []
    folder = RunFolder(out)
    return [Display(), JsonLines(folder), TensorBoard(folder), *([Wandb(folder, wandb)] if wandb is not None else [])]


def _ended(result: "Result") -> dict[str, Any]:
    folder = result.folder
    if result.finished:
        said = f"done: {folder}/best.safetensors is the best policy by the run's own objective, policy.safetensors the last"
    else:
        said = f"stopped after {result.steps:,} steps; the same command with --resume goes on from the last checkpoint in {folder}"
    print(said, file=sys.stderr)
    return {"folder": str(folder), "steps": result.steps, "finished": result.finished, "metrics": result.metrics}
