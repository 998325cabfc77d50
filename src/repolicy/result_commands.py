"""The commands that come after training: a film, a file for other programs, and a sweep over ω′."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from repolicy.commands import alpha_of, env_of, starting_settings
from repolicy.errors import UsageError
from repolicy.settings import Settings, customizing


@dataclass(frozen=True)
class Render:
    """Film a policy that takes its mean action: an mp4, or a gif.

    Example: repolicy render runs/cheetah --seconds 10 --out cheetah.mp4
    """

    policy: Positional[Annotated[str, arg(metavar="POLICY")]]
    """A policy's file, a run's folder (then its best policy), or a name that ships."""
    env: str | None = None
    """Environment; by default the one that the policy was trained in."""
    seed: int = 0
    """Seed of the environment."""
    seconds: float = 10.0
    """How long the film is; after an episode, the next one begins."""
    width: int = 640
    """Width of the picture; its height is two thirds of that."""
    out: Path | None = None
    """Where the film goes, an .mp4 or a .gif; by default an mp4 beside the policy."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.checkpoint import find_policy, write_bytes
        from repolicy.film import FORMATS, Shot, films

        path, env = _policy_and_env(self.policy, self.env)
        out = self.out or _beside(path, ".mp4")
        format = out.suffix.removeprefix(".").lower()
        if format not in FORMATS:
            raise UsageError(f"--out {out} does not end in .mp4 or .gif")
        shot = Shot(
            str(find_policy(path)), env, seconds=self.seconds, seed=self.seed, width=self.width,
            height=round(self.width * 2 / 3), format=format, fine=True,
        )  # fmt: skip
        [content] = films([shot])
        write_bytes(out, content)
        print(f"film: {out}", file=sys.stderr)
        return {"file": str(out), "env": env, "seconds": self.seconds}


@dataclass(frozen=True)
class Export:
    """Write a policy for other programs: raw observations in, the mean action out, checked against the original.

    Example: repolicy export runs/cheetah --format onnx --out cheetah.onnx
    """

    policy: Positional[Annotated[str, arg(metavar="POLICY")]]
    """A policy's file, a run's folder (then its best policy), or a name that ships."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """onnx: for ONNX Runtime and whatever reads ONNX; torchscript: for C++ programs with libtorch."""
    out: Path | None = None
    """Where it goes; by default beside the policy."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> dict[str, Any]:
        from repolicy.checkpoint import find_policy, load_policy
        from repolicy.export import SUFFIXES, export

        path = find_policy(self.policy)
        out = self.out or _beside(path, SUFFIXES[self.format])
        difference = export(load_policy(path), out, self.format)
        print(f"exported: {out}, equal to the policy within {max(difference, 1e-9):.1g}", file=sys.stderr)
        return {"file": str(out), "format": self.format, "difference": difference}


@dataclass(frozen=True)
class Sweep:
    """Choose ω′: customise at several values side by side, and see what each keeps and gains.

    Example: repolicy sweep halfcheetah --addon hind_leg=10 --omega 0.1 0.3 0.6 1 --steps 1e6 --out runs/sweep
    """

    prior: Positional[Annotated[str, arg(metavar="PRIOR")]]
    """The trained policy: a name that ships (halfcheetah, hopper, ant), a policy's file, or a run's folder."""
    addon: UseAppendAction[tuple[str, ...]] = ()
    """The new requirement: NAME, NAME=WEIGHT, module:function or file.py:function. Repeatable."""
    omega: tuple[float, ...] = ()
    """The values of ω′; 0 is the add-on alone."""
    alpha: float | None = None
    """α̂, the weight of the entropy; by default the prior's own α, where its file tells it."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    jobs: int = 0
    """How many points are trained at a time, each on one core; 0 means one a physical core."""
    ray: bool = False
    """Train the points as Ray tasks, in the cluster that RAY_ADDRESS names (all of it must see the folder)."""
    sparse: bool = False
    """Accept an add-on that is constant over some thousand trial steps."""
    episodes: int = 50
    """Episodes of each evaluation afterwards."""
    out: Path | None = None
    """The sweep's folder; by default runs/PRIOR-sweep."""
    resume: bool = False
    """Go on with the sweep in the folder; values of --omega that are new are added to it."""
    settings_file: Annotated[Path | None, arg(name="settings")] = None
    """A JSON file of settings; options on the command line go before it."""
    json: bool = False
    """Print one JSON object on stdout."""
    settings: OmitArgPrefixes[Settings] = field(default_factory=Settings)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{Path(self.prior).stem}-sweep"

    def beginning(self) -> "Sweep":
        """What the options are options of: the environment's own settings, or the sweep that is resumed."""
        from repolicy.sweep import claimed

        found = claimed(self.folder) if self.resume else None
        before = found["request"] if found else None
        start = Sweep(self.prior, settings=starting_settings(self, before, customizing(env_of(self))))
        if found is None or before is None:
            return start
        return replace(
            start, env=before["env"], alpha=before["alpha"], omega=tuple(found["omegas"]),
            sparse=before.get("sparse", False), addon=() if self.addon else tuple(before["addons"]),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        from rich.table import Table

        from repolicy.page import number
        from repolicy.sweep import checked, sweep
        from repolicy.sweep_report import write_sweep_report
        from repolicy.terminal import Terminal
        from repolicy.tradeoff import as_dict, headings, rows

        omegas = checked(self.omega)
        alpha = self.alpha if self.alpha is not None else alpha_of(self.prior)
        terminal = Terminal()
        with terminal.status("training") as status:
            found = sweep(
                self.prior, self.addon, omegas, alpha, self.folder, self.settings,
                env=self.env, sparse=self.sparse, jobs=self.jobs, on_ray=self.ray, resume=self.resume,
                episodes=self.episodes, say=terminal.say,
                progress=lambda shares: status.update(
                    "trained: " + " · ".join(f"ω′ {omega:g} {share:.0%}" for omega, share in shares.items())
                ),
            )  # fmt: skip
            status.update("films")
            report = write_sweep_report(found)
        table = Table(*headings(found), title=f"{found.request['env']}: what each ω′ keeps and gains")
        for row in rows(found, shown=lambda values: number(float(values.mean()))):
            table.add_row(*row)
        terminal.print(table)
        terminal.say(found.verdict)
        if found.knee is not None:
            point = found.points[found.knee]
            terminal.say(f"its policy: {point.best}; to train it for longer: {found.longer(point)}")
        terminal.say(f"report: {report}")
        return as_dict(found) | {"folder": str(self.folder), "report": str(report)}


def _policy_and_env(reference: str, env: str | None) -> tuple[Path, str]:
    from repolicy.checkpoint import env_of, find_policy, read_card

    path = find_policy(reference)
    return path, env or env_of(read_card(path), path)


def _beside(path: Path, suffix: str) -> Path:
    """The policy's name with another suffix, beside it; in this folder for a policy that ships."""
    from repolicy.checkpoint import PRIORS

    return Path(path.stem + suffix) if path.parent == PRIORS else path.with_suffix(suffix)
