"""Damaged files and odd command lines: no traceback, no hang, no code that a file names, no silently other policy.

    python -m benchmarks.fuzz      # 1,000 files, 2,000 command lines, 200 answers of a hub, always the same; bombs
    python -m benchmarks.fuzz --files 100 --lines 200 --answers 20 --seed 1

Everything runs in this process and in a folder that is deleted afterwards. What takes long, and comes after all that is
read and checked, is left out: training itself, episodes, films, the processes of a sweep. So is --wandb, which would go
to the network.
"""

import contextlib
import io
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
from torch import Tensor

import repolicy
from benchmarks.bombs import laid, odd_answer
from benchmarks.damage import a_name, forge, lay, rename, replace_by_something_else, spoil
from benchmarks.odd_lines import odd_line
from benchmarks.pretended_hub import Hub, serving
from experiments import campaign
from repolicy.cli import main as cli
from repolicy.errors import RepolicyError
from repolicy.objective import soft
from repolicy.policies.export import export
from repolicy.policies.file import save_policy
from repolicy.policies.storage import read
from repolicy.priors.opening import load_policy, read_policy
from repolicy.rql.hyperparameters import train_defaults as rql_defaults
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank

SECONDS = 20  # after which a case counts as hanging
MOST_MB = 500  # that a file may add to the memory
ENV = "Hopper-v4"
TINY = repolicy.Settings(
    steps=64, envs=2, n_steps=16, minibatch=16, checkpoint_every=1, ranks=1, evaluation_episodes=1, hidden=(4,),
    epochs=1,
)  # fmt: skip


LAID, OPENED = set[str](), set[str]()  # files that a name could mean, and those of them that were opened
MARK = "from pathlib import Path\nPath('owned').touch()\ndef f(*_): return 0.0\n"


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if LAID and event == "open" and isinstance(arguments[0], str | bytes | Path):
        OPENED.update({os.path.realpath(os.fsdecode(arguments[0]))} & LAID)


class _HangError(BaseException):
    """Not an Exception: nothing on the way catches it."""


class Case:
    """One thing that was tried, and what came of it."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.reached, self.fault = words, [], ""
        out, said = io.StringIO(), io.StringIO()
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), reaching(self.reached):
                cli.main(words)
            self.code: Any = 0
        except SystemExit as ended:
            self.code = ended.code or 0
        except _HangError:
            self.code, self.fault = None, f"hangs for more than {SECONDS} s"
        except BaseException:
            self.code, self.fault = None, traceback.format_exc()
        finally:
            signal.alarm(0)
        self.out, self.said = out.getvalue(), said.getvalue()
        self.fault = self.fault or self._complaint()

    def _complaint(self) -> str:
        if self.code not in (0, 1, 2):
            return f"ends with exit code {self.code!r}"
        if "Traceback" in self.said:
            return "shows a traceback"
        if self.code and not self.said:
            return "fails without a word"
        message = self.said[self.said.rfind("repolicy: ") :] if "repolicy: " in self.said else ""
        if message.count("\n") > 3:
            return f"says more than three lines: {message}"
        if os.path.exists("owned"):
            return "ran code that a file names"
        if OPENED:
            return f"opened what a file names: {OPENED.pop()}"
        return ""


@contextlib.contextmanager
def reaching(reached: list[Any]) -> Iterator[None]:
    """The long parts of every command, replaced by a note that they were reached, and with what."""

    def remaining(segments: Any, *_: Any) -> Any:
        reached.append((segments.worker.request, segments.worker.learner.parameters))
        raise RepolicyError("as far as training")

    def note(what: str) -> Callable[..., Any]:
        def stop(*_: Any, **__: Any) -> Any:
            raise RepolicyError(f"as far as {what}")

        return stop

    def surprise(error: BaseException) -> str:
        raise error  # the command line would make a sentence of it, but it is a mistake all the same

    @contextlib.contextmanager
    def alone(*_: Any) -> Iterator[SingleRank]:
        yield SingleRank()

    replaced = {
        "cli.main._unexpected_error_sentence": surprise, "learning.segments.Segments.remaining": remaining,
        "prepare.checks.try_addon": lambda *_: ([], 1.0),
        "runs.ranks.launch_ranks": alone, "learning.bench.bench": note("a benchmark"),
        "evaluation.run_episodes": note("episodes"), "report.movie._render_in_process": note("films"),
        "many.sweep._train": note("a sweep's points"), "many.sweep.try_addon": lambda *_: ([], 1.0),
        "many.pool.connect_to_ray": note("Ray"), "cli.about.renderer": lambda: "egl",
        "rql.customizing._make_algorithm": note("Q-learning"), "report.publish.import_hub": mock.MagicMock,
        "prepare.diagnosis.diagnose": note("a diagnosis"), "prepare.imitation.fit": note("an imitation"),
        "prepare.beginning.clone": note("a clone"),
        "evaluation.MAX_ENVS": 2, "prepare.weights.collect_trial.__defaults__": (32,),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for place in replaced:  # a module that is imported later would keep another's replacement
            pkgutil.resolve_name(f"repolicy.{place}")
        for place, function in replaced.items():
            stack.enter_context(mock.patch(f"repolicy.{place}", function))
        yield


# Damaged files --------------------------------------------------------------------------------------------------------


def prepared(folder: Path) -> None:
    """A run, a sweep's story, settings and a policy with its prior inside."""
    repolicy.train(ENV, soft(0.1), folder / "run", TINY)
    policy = load_policy(folder / "run")
    card = read_policy(folder / "run" / "policy.safetensors").card
    card["request"]["addons"] = ["height"]
    save_policy(folder / "policy.safetensors", policy, card, policy)
    objective = repolicy.residual(0.1, 0.1)
    repolicy.customize(folder / "policy.safetensors", "height", objective, folder / "customized", TINY)
    request: dict[str, Any] = {"env": ENV, "addons": ["height"], "alpha": 0.1, "states": 0.0, "sparse": False}
    request["settings"] = TINY.as_dict()
    export(policy, folder / "exported.onnx", "onnx")
    model = onnx.load(folder / "exported.onnx")
    del model.metadata_props[:]  # a graph like another library's
    onnx.save(model, folder / "theirs.onnx")
    rows = np.random.default_rng(0).normal(size=(120, 14))
    np.savez(folder / "demonstrations.npz", observations=rows[:, :11], actions=rows[:, 11:], ended=rows[:, 0] > 0)
    (folder / "sweep").mkdir()
    shutil.copy(folder / "policy.safetensors", folder / "sweep" / "prior.safetensors")
    (folder / "sweep" / "sweep.json").write_text(json.dumps({"request": request, "omegas": [0.1]}))
    (folder / "settings.json").write_text(json.dumps(TINY.as_dict()))
    (folder / "rql.json").write_text(json.dumps(rql_defaults(ENV).as_dict()))


WISH = "--addon height --omega 0.1"
AGAIN = f"train {ENV} --out run --resume"
THEIRS = f"theirs.onnx --env {ENV} --std"
TARGETS = {  # by the file that is damaged, commands that read it
    "policy.safetensors": [
        "inspect policy.safetensors", "inspect policy.safetensors --json", "evaluate policy.safetensors",
        "render policy.safetensors", "dial policy.safetensors", "dial policy.safetensors --at 0.5",
        "diagnose policy.safetensors --addon height", "push policy.safetensors hf://a/b",
        "export policy.safetensors --out policy.pt", f"customize policy.safetensors {WISH}",
        f"sweep policy.safetensors {WISH}", "rql customize policy.safetensors --omega 0.1",
    ],
    "run/run.json": ["inspect run", "evaluate run", f"customize run {WISH}", AGAIN],
    "run/policy.safetensors": ["evaluate run", "render run", "inspect run"],
    "customized/run.json": [
        "inspect customized", "evaluate customized", "dial customized",
        "customize policy.safetensors --out customized --resume --no-report",
    ],
    "customized/policy.safetensors": ["evaluate customized", "dial customized", f"sweep customized {WISH}"],
    "run/metrics.jsonl": ["inspect run", AGAIN],
    "run/checkpoints/*": ["inspect CHECKPOINT", "inspect run", AGAIN],
    "sweep/sweep.json": ["sweep policy.safetensors --out sweep --resume"],
    "theirs.onnx": ["inspect theirs.onnx", f"evaluate {THEIRS} 0.2", f"customize {THEIRS} 0.2 {WISH}"],
    "exported.onnx": ["inspect exported.onnx", f"evaluate exported.onnx --env {ENV}"],
    "demonstrations.npz": [
        "imitate demonstrations.npz --hidden 4", f"evaluate {THEIRS} fit --demonstrations demonstrations.npz"
    ],
    "settings.json": [f"train {ENV} --alpha 0.1 --settings settings.json"],
    "rql.json": [f"rql train {ENV} --alpha 0.1 --settings rql.json"],
}  # fmt: skip


def undamaged(whole: Path, folder: Path) -> list[str]:
    """The commands that do not get as far as the work with whole files: with them, damage would go unseen."""
    stuck = []
    for line in dict.fromkeys(line for lines in TARGETS.values() for line in lines):
        afresh(whole, folder)
        case = Case(line.replace("CHECKPOINT", "run/checkpoints/000001.safetensors").split())
        if case.fault or (case.code and "as far as" not in case.said):
            stuck.append(f"whole files: repolicy {line}\n{case.fault or case.said}\n")
    return stuck


def afresh(whole: Path, folder: Path) -> None:
    LAID.clear()  # before files are opened, each of which would be compared with these
    OPENED.clear()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    os.chdir(folder)


KINDS = ("bytes", "bytes", "forged", "forged", "forged", "odd", "named", "named", "named")


def damaged(random_: random.Random, whole: Path, folder: Path) -> tuple[Case, str]:
    """One file of a fresh copy is damaged or forged, and a command reads it."""
    afresh(whole, folder)
    target, commands = random_.choice(list(TARGETS.items()))
    path = random_.choice(sorted(Path().glob(target)))
    known = [(path, load_policy(path).state_dict()) for path in Path().glob("*.safetensors")]
    kind = random_.choice(KINDS)
    {"bytes": spoil, "forged": forge, "odd": replace_by_something_else, "named": named}[kind](random_, path)
    words = random_.choice(commands).replace("CHECKPOINT", str(path)).split()
    case = Case(words)
    case.fault = case.fault or ("sends control characters" if "\x1b" in case.said + case.out else "")
    if kind == "bytes":
        case.fault = case.fault or _other_policy(known)
    for request, parameters in case.reached if words[:2] == ["train", ENV] and "--resume" in words else []:
        case.fault = case.fault or _other_run(whole, request, parameters)
    return case, f"{path} ({kind})"


def named(random_: random.Random, path: Path) -> None:
    """One text of the file becomes a name, and whatever it could mean lies in this folder."""
    name = a_name(random_)
    LAID.update(lay(name, MARK))
    rename(random_, path, name)


def _other_policy(known: list[tuple[Path, dict[str, Tensor]]]) -> str:
    for path, before in known:
        with contextlib.suppress(RepolicyError):
            after = load_policy(path).state_dict()
            if not all(torch.equal(before[name], after[name]) for name in before):
                return f"{path} is silently another policy"
    return ""


def _other_run(whole: Path, request: Any, parameters: Tensor) -> str:
    """A run that was resumed must be the one that began, at one of its checkpoints or at the start."""
    if request != RunFolder(whole / "run").request():
        return f"goes on silently with another request: {request}"
    known = [read(path)[0]["parameters"] for path in (whole / "run" / "checkpoints").iterdir()]
    return "" if any(torch.equal(parameters, each) for each in known) else "goes on silently with other weights"


# Odd command lines, odd answers ---------------------------------------------------------------------------------------


def odd(random_: random.Random, whole: Path, folder: Path) -> tuple[Case, str]:
    afresh(whole, folder)
    return Case(odd_line(random_)), "command line"


def answered(random_: random.Random, whole: Path, folder: Path) -> tuple[Case, str]:
    """A hub's answer makes no sense."""
    afresh(whole, folder)
    before = {*folder.parent.rglob("*")}
    case = Case(odd_answer(random_, (whole / "policy.safetensors").read_bytes()))
    others = {path for path in folder.parent.rglob("*") if folder / "cache" not in (path, *path.parents)} - before
    case.fault = case.fault or (f"writes {others.pop()} as the hub says" if others else "")
    return case, f"{Hub.status} {Hub.headers_of_files}"


def bombs(whole: Path, folder: Path) -> Iterator[tuple[Case, str]]:
    afresh(whole, folder)
    for path, commands in laid():
        for words in commands:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            case = Case(words)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            case.fault = case.fault or (f"takes {grown:,} MB" if grown > MOST_MB else "")
            case.fault = case.fault or ("" if case.code or words[0] == "inspect" else "takes it for whole")
            yield case, f"{path} (bomb)"


# ----------------------------------------------------------------------------------------------------------------------


def fuzz(files: int, lines: int, answers: int, seed: int = 0) -> tuple[list[str], dict[str, int]]:
    """Every fault that was found, and how often the cases ended with which exit code."""
    random_, here = random.Random(seed), Path.cwd()
    codes = Counter[str]()
    sys.addaudithook(note_opened)
    before = signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory(prefix="repolicy-fuzz-") as place:
        whole, folder = Path(place, "whole"), Path(place, "now")
        whole.mkdir()
        prepared(whole)

        def cases() -> Iterator[tuple[str, Case, str]]:
            for kind in [damaged] * files + [odd] * lines + [answered] * answers:
                yield kind.__name__, *kind(random_, whole, folder)
            for case, what in bombs(whole, folder):
                yield "bomb", case, what

        try:
            faults = undamaged(whole, folder)
            with serving(folder / "cache"):
                for index, (kind, case, what) in enumerate(cases()):
                    codes[f"{kind}, exit code {case.code}"] += 1
                    if case.fault:
                        faults.append(f"case {index}, {what}: repolicy {' '.join(case.words)[:300]}\n{case.fault}\n")
        finally:
            os.chdir(here)
            signal.signal(signal.SIGALRM, before)
    return faults, codes


def _hang(*_: Any) -> None:
    raise _HangError


@campaign.program(files=1000, lines=2000, answers=200, seed=0)
def main(options: campaign.Options) -> None:
    began = time.perf_counter()
    faults, codes = fuzz(options.files, options.lines, options.answers, options.seed)
    for fault in faults:
        print(fault)
    for name, count in sorted(codes.items()):
        print(f"{count:6,}  {name}")
    print(
        f"{len(faults)} faults in {options.files:,} files, {options.lines:,} lines, {options.answers:,} answers of a "
        f"hub and the bombs, {time.perf_counter() - began:.0f} s"
    )
    sys.exit(bool(faults))
