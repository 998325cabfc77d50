"""The group `repolicy llm`: one command for each measurement of the language-model wing.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from repolicy.errors import FileError, UsageError


@dataclass(frozen=True)
class Frontier:
    """Trade-off that omega buys on a toy whose best policy is known: trained against exact, over seeds.

    Example: repolicy llm frontier --seeds 1 --omegas 0.1 0.2 0.3
    """

    omegas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)
    """Weights of the prior's log-probability."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    seeds: int = 3
    """How often every main run is repeated."""
    steps: int = 300
    """Online steps."""
    samples: int = 64
    """Responses in an online step."""
    rate: float = 1e-3
    """Learning rate online; it falls to 0 in a line."""
    pairs: int = 8192
    """Preferences for the offline method."""
    controls: bool = True
    """Run the controls as well."""
    train: bool = True
    """Run what is missing. Without it, only the table and the picture are made anew."""
    output: Path = Path("results/llm")
    """Folder of frontier.jsonl, its table and its picture. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the priors, which are made where they are missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise UsageError(f"alpha is {self.alpha}; the optimum divides by it, so it must be greater than 0")
        if not self.omegas or min(self.omegas) < 0:
            raise UsageError("omegas must name one or more numbers, each 0 or greater")
        if min(self.seeds, self.steps, self.samples - 1, self.pairs) < 1 or self.rate <= 0:
            raise UsageError("seeds, steps and pairs must be 1 or more, samples 2 or more, rate greater than 0")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        from repolicy.llm.frontier import frontier

        return done(frontier(self), self.output / "frontier.md")


@dataclass(frozen=True)
class Labels:
    """Cross-Entropy-DPO on labels against DPO on pairs, from few preferences to many, on the toy.

    Example: repolicy llm labels --pairs 64 256 --seeds 2
    """

    pairs: tuple[int, ...] = (64, 256, 1024, 4096)
    """Sizes of the preference set."""
    seeds: int = 5
    """How often every run is repeated, with other data."""
    omega: float = 0.2
    """Weight of the prior's log-probability."""
    alpha: float = 0.2
    """Weight of the policy's entropy."""
    rate: float = 3e-4
    """Learning rate; it falls to 0 in a line."""
    train: bool = True
    """Run what is missing. Without it, only the table and the picture are made anew."""
    output: Path = Path("results/llm")
    """Folder of labels.jsonl, its table and its picture. Runs that have a line there are not run again."""
    priors: Path = Path("runs/llm-toy")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if not self.pairs or min(self.pairs) < 8 or self.seeds < 1:
            raise UsageError("pairs must be 8 or more, and seeds 1 or more")
        if self.alpha <= 0 or self.omega < 0 or self.rate <= 0:
            raise UsageError("alpha and rate must be greater than 0, and omega 0 or greater")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        from repolicy.llm.labels import labels

        return done(labels(self), self.output / "labels.md")


@dataclass(frozen=True)
class Spelling:
    """Sampled names before and after a model of them is asked for doubled letters, at three omegas.

    Example: repolicy llm spelling --omegas 0.02 0.1 0.2
    """

    omegas: tuple[float, ...] = (0.02, 0.1, 0.2)
    """Weights of the prior's log-probability."""
    alpha: float = 0.1
    """Weight of the policy's entropy."""
    seed: int = 0
    """Seed of the training."""
    steps: int = 150
    """Online steps."""
    samples: int = 64
    """Responses in an online step."""
    rate: float = 1e-3
    """Learning rate; it falls to 0 in a line."""
    pretraining: int = 1000
    """Steps in which the prior learns names."""
    train: bool = True
    """Run what is missing. Without it, only the samples are made anew."""
    output: Path = Path("results/llm")
    """Folder of spelling.jsonl and the samples. Runs that have a line there are not run again."""
    prior: Path = Path("runs/llm-names")
    """Folder of the prior, which is made where it is missing."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise UsageError(f"alpha is {self.alpha}; the optimum divides by it, so it must be greater than 0")
        if not self.omegas or min(self.omegas) < 0:
            raise UsageError("omegas must name one or more numbers, each 0 or greater")
        if min(self.steps, self.samples - 1, self.pretraining) < 1 or self.rate <= 0:
            raise UsageError("steps and pretraining must be 1 or more, samples 2 or more, rate greater than 0")

    def run(self) -> dict[str, Any]:
        prepare(self.output, "names")
        from repolicy.llm.spelling import spelling

        return done(spelling(self), self.output / "spelling.md")


@dataclass(frozen=True)
class Gradients:
    """Direction and length of GRPO's KL and entropy terms beside the exact gradient, every response listed.

    Example: repolicy llm gradients --draws 50
    """

    vocabulary: int = 4
    """Tokens, of which the first ends a response."""
    length: int = 4
    """The most tokens in a response."""
    draws: int = 20
    """Random pairs of a policy and a reference."""
    output: Path = Path("results/llm")
    """Folder of gradients.jsonl and its table."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.vocabulary < 2 or self.length < 1 or self.draws < 1:
            raise UsageError("vocabulary must be 2 or more, length and draws 1 or more")
        if self.vocabulary**self.length > 10**6:
            raise UsageError(f"{self.vocabulary} tokens at length {self.length} make too many responses to list")

    def run(self) -> dict[str, Any]:
        make_folder(self.output)
        from repolicy.llm.gradients import gradients

        return done([gradients(self)], self.output / "gradients.md")


@dataclass(frozen=True)
class Overhead:
    """Time of a training step of each trainer beside its TRL parent's.

    Example: repolicy llm overhead --turns 6
    """

    steps: int = 12
    """Steps of a run; the first two are not counted."""
    turns: int = 6
    """How often each trainer runs."""
    output: Path = Path("results/llm")
    """Folder of overhead.jsonl and its table, which are written anew."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def __post_init__(self) -> None:
        if self.steps < 3 or self.turns < 1:
            raise UsageError("steps must be 3 or more, because two are not counted, and turns 1 or more")

    def run(self) -> dict[str, Any]:
        prepare(self.output)
        from repolicy.llm.overhead import overhead

        return done(overhead(self), self.output / "overhead.md")


COMMANDS: dict[str, Any] = {
    "frontier": Frontier,
    "labels": Labels,
    "spelling": Spelling,
    "gradients": Gradients,
    "overhead": Overhead,
}


def prepare(folder: Path, *packages: str) -> None:
    """The extra is there, and so is the folder: better found out before the work than after it."""
    from repolicy.llm.requirements import require_trl

    require_trl(*packages)
    make_folder(folder)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be made a folder for the results: {error.strerror}") from error


def done(records: list[dict[str, Any]], page: Path) -> dict[str, Any]:
    print(f"table: {page}", file=sys.stderr)
    return {"table": str(page), "records": records}


def command_line(options: Any) -> str:
    """The command that these options came from: those that change a result, where they are not the usual ones."""
    words = ["repolicy", "llm", type(options).__name__.lower()]
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Path) or field.name in ("train", "json") or value == field.default:
            continue
        name = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
    return " ".join(words)
