"""Kill or stop a run at random instants, resume it each time, and compare its end with an uninterrupted run's.

python -m benchmarks.kill --kills 30 --ranks 2 --out results/kill.jsonl

A third of the instants lie in the first seconds of a process, a third in the last ones of a run. In turns the whole
run is killed, one of its processes alone, or it is told to stop by Ctrl-C, SIGTERM or a terminal that goes away.
Compared are the policies, to the bit, and every number of the log that is no time.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import campaign
from experiments.ledger import Ledger

TIMES = ("seconds", "steps_per_second", "share_physics", "share_policy", "share_update")
PATIENCE = 60.0  # seconds that a process has to end, whatever was sent


def one_process(pid: int, sent: signal.Signals) -> None:
    """One of the ranks alone, or the run itself where it has begun none."""
    ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(random.choice(ranks or [pid])), sent)


WAYS: dict[str, Callable[[int], None]] = {
    "killed": lambda pid: os.killpg(pid, signal.SIGKILL),
    "one process killed": lambda pid: one_process(pid, signal.SIGKILL),
    "Ctrl-C": lambda pid: os.killpg(pid, signal.SIGINT),
    "SIGTERM": lambda pid: os.kill(pid, signal.SIGTERM),
    "the terminal went away": lambda pid: os.killpg(pid, signal.SIGHUP),
}


def await_instant(
    which: int, process: subprocess.Popen[bytes], folder: Path, seconds: float, closing: float, lines: int
) -> None:
    """One of the first seconds, any, or one after the last line of the log."""
    if which < 2:
        until = time.time() + random.uniform(0.0, (3.0, seconds / 2)[which])
    else:
        while process.poll() is None and log_of(folder).count(b"\n") < lines:
            time.sleep(0.02)
        until = time.time() + random.uniform(0.0, closing)
    while process.poll() is None and time.time() < until:
        time.sleep(0.01)


def ended(process: subprocess.Popen[bytes]) -> str:
    try:
        return f"exit code {process.wait(PATIENCE)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not ended within {PATIENCE:.0f} s"


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "repolicy", *words, "--out", str(folder)]
    return subprocess.Popen(program, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


def log_of(folder: Path) -> bytes:
    path = folder / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def content(folder: Path) -> dict[str, Any]:
    """The sums of the policies, and the log without its times."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    rows = [json.loads(line) for line in log_of(folder).splitlines()]
    return sums | {"metrics.jsonl": [{key: row[key] for key in row if key not in TIMES} for row in rows]}


@campaign.program(kills=30, ranks=1, env="Hopper-v4", steps=50_000, seed=0, out=Path("results/kill.jsonl"))
def main(options: campaign.Options) -> None:
    words = ["train", options.env, "--alpha", "0.001", "--ranks", str(options.ranks), "--checkpoint-every", "2"]
    words += ["--steps", str(options.steps), "--resume", "--evaluation-episodes", "2"]
    random.seed(options.seed)
    for each in (signal.SIGINT, signal.SIGHUP):  # which under nohup, or behind &, the runs would ignore too
        signal.signal(each, signal.SIG_DFL)
    ends, differing, kills = Counter[str](), list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        whole, stopped = Path(folder) / "whole", Path(folder) / "stopped"
        began = time.time()
        start(words, whole).wait()
        seconds, wanted = time.time() - began, content(whole)
        closing = time.time() - (whole / "metrics.jsonl").stat().st_mtime  # after the last line of the log
        while kills < options.kills or stopped.exists():
            process = start(words, stopped)
            if kills < options.kills:
                await_instant(kills % 3, process, stopped, seconds, closing, lines=len(wanted["metrics.jsonl"]))
                if process.poll() is None:
                    way = [*WAYS][kills % len(WAYS)]
                    WAYS[way](process.pid)
                    kills += 1
                    ends[f"{way}: {ended(process)}"] += 1
                    continue
            if process.wait() != 0:
                ends[f"not finished: exit code {process.returncode}"] += 1
                break
            now = content(stopped)
            differing += [name for name in wanted | now if wanted.get(name) != now.get(name)]
            ends["finished"] += 1
            shutil.rmtree(stopped)
    row = {"ends": dict(ends), "differing": differing}
    Ledger(options.out).add(row)
    print(json.dumps(row, indent=2))
    sys.exit(1 if differing or any("not" in end for end in ends) else 0)
