"""Run many jobs, a limited number at a time, each in a process of its own.

A job is a program that resumes its work when it is started again. A job that is killed (a crash, no memory left) or
interrupted is started again; one that ends with an error of its own is not, because it would fail again.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repolicy.errors import RepolicyError, UsageError, first_line
from repolicy.loading import PYTHON
from repolicy.runs import terminated_as_interrupted

MAX_ATTEMPTS = 3
INTERRUPTED = 130  # exit code of a run of ours that was interrupted
STOP_TIMEOUT = 10.0  # seconds that a job has to stop after an interrupt


@dataclass(frozen=True)
class Job:
    """A program, and the file for its output."""

    name: str
    program: tuple[str, ...]
    log: Path


StartJob = Callable[
    [Job], Any
]  # starts a job, and returns an object with `poll`, `interrupt` and `kill`, as `Here` has


def run_jobs(
    jobs: Sequence[Job],
    start: StartJob,
    at_once: int,
    *,
    ended: Callable[[Job, str], None],
    ready: Callable[[Job], bool] = lambda _: True,
    watch: Callable[[list[Job]], None] = lambda _: None,
    pause: float = 0.2,
) -> list[Job]:
    """Run the jobs in order, `at_once` at a time, each as soon as it is ready.

    `ended` is called after each job with its error message, or "". `watch` is called regularly with the running jobs.
    Returns the jobs that never became ready. Ctrl-C and SIGTERM stop all jobs.
    """
    waiting = list(jobs)
    running, attempts = dict[Job, Any](), dict[Job, int]()
    with terminated_as_interrupted():
        try:
            while waiting or running:
                free = max(0, at_once - len(running))
                for job in list(filter(ready, waiting))[:free]:
                    waiting.remove(job)
                    attempts[job] = attempts.get(job, 0) + 1
                    running[job] = start(job)
                if not running:
                    break
                time.sleep(pause)
                for job, process in list(running.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del running[job]
                    if (code < 0 or code == INTERRUPTED) and attempts[job] < MAX_ATTEMPTS:
                        waiting.insert(0, job)
                    else:
                        ended(job, "" if code == 0 else failure_message(job.log, code))
                watch(list(running))
        except BaseException:
            _stop_jobs(list(running.values()))
            raise
    return waiting


def _stop_jobs(running: Sequence[Any]) -> None:
    for process in running:
        process.interrupt()
    until = time.monotonic() + STOP_TIMEOUT
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(0.05)
    for process in running:
        if process.poll() is None:
            process.kill()


def failure_message(log: Path, code: int) -> str:
    """Return the last message of a job that failed."""
    if code < 0:
        return f"it was killed by signal {-code}, {MAX_ATTEMPTS} times"
    text = log.read_text(errors="replace") if log.is_file() else ""  # a machine of Ray's may not see this folder
    lines = [line for line in text.splitlines() if line.strip()]
    sentences = [line.removeprefix("repolicy: ") for line in lines if line.startswith("repolicy: ")]
    return (sentences or lines or [f"it ended with exit code {code}"])[-1]


# On this machine ------------------------------------------------------------------------------------------------------


def bound_to_this_process(program: Sequence[str]) -> list[str]:
    """Return a program that runs `program` (an absolute path) and dies with this process (on Linux)."""
    guard = f"import os, sys; from repolicy.runs.machine import die_with; die_with({os.getpid()})"
    return [*PYTHON, "-c", f"{guard}; os.execv(sys.argv[1], sys.argv[1:])", *program]  # exec keeps the setting


class LocalProcess:
    """A job as a process on this machine, in a process group of its own: Ctrl-C reaches it only through the pool."""

    def __init__(self, job: Job) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "wb") as file:
            self._process = subprocess.Popen(
                bound_to_this_process(job.program),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )

    def poll(self) -> int | None:
        """Return its exit code, negative where a signal killed it, or None while it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask it to stop."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it. (Where Ctrl-C struck within `poll`, Popen's lock stays taken, and waiting has no end of its own.)"""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)


# Jobs as Ray tasks of one core each, in a cluster or on this machine --------------------------------------------------


CONNECT_TIMEOUT = 10.0  # seconds


def connect_to_ray(address: str | None = None) -> StartJob:
    """Connect to the cluster at `address`, else at RAY_ADDRESS, else start Ray here; return what starts jobs in it.

    All machines of the cluster must see the folders that the jobs name.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs the package ray: pip install 'repolicy[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or None
    check_ray_address(address)
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="CRITICAL")
    except Exception as error:  # Ray raises many kinds
        where = f" at {address}" if address else ""
        raise RepolicyError(f"Ray could not be started{where}: {first_line(error)}") from None
    task = ray.remote(num_cpus=1, max_retries=0)(_run_in_ray)
    place = os.getcwd()

    class OnRay:
        def __init__(self, job: Job) -> None:
            self._reference = task.remote(job.program, str(job.log.resolve()), place)

        def poll(self) -> int | None:
            done, _ = ray.wait([self._reference], timeout=0)
            if not done:
                return None
            try:
                return int(ray.get(done[0]))
            except (ray.exceptions.RayTaskError, ray.exceptions.TaskCancelledError):
                return 1
            except ray.exceptions.RayError:  # the worker or its machine is gone
                return -signal.SIGKILL

        def interrupt(self) -> None:
            ray.cancel(self._reference, force=True)  # the program is tied to the worker, which this kills

        def kill(self) -> None:
            pass

    return OnRay


def _run_in_ray(program: Sequence[str], log: str, place: str) -> int:
    """Run one job as a Ray task, and return its exit code."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        return subprocess.run(
            bound_to_this_process(program),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=place,
            check=False,
        ).returncode


def check_ray_address(address: str | None) -> None:
    """Raise if nothing answers at HOST:PORT. (Ray itself would try for minutes and print a long error.)"""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if address in (None, "auto", "local"):
        return
    if not colon or not port.isdigit():
        raise UsageError(f"the Ray address is {address!r}; it must be HOST:PORT, ray://HOST:PORT, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        what = f"no Ray cluster answers at {address}: {first_line(error)}; start one with `ray start --head`"
        raise RepolicyError(f"{what}, or leave the address out to work on this machine") from None
