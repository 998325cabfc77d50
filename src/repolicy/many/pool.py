"""Run many jobs, a limited number at a time, each in a process of its own.

A job is a program that resumes its work when it is started again. So a job that is killed (by a crash, or for lack of
memory) or interrupted is started again. A job that ends with an error of its own is not, because it would fail again.
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
from repolicy.loading import PYTHON, child_environment
from repolicy.runs import terminated_as_interrupted

MAX_ATTEMPTS = 3
INTERRUPTED = 130  # exit code of a `repolicy` command that was interrupted
STOP_TIMEOUT = 10.0  # seconds that a job has to stop after an interrupt
STREAMS: dict[str, Any] = {"stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}  # of a job's process


@dataclass(frozen=True)
class Job:
    """A program, and the file for its output."""

    name: str
    program: tuple[str, ...]
    log: Path


# A function that starts a job and returns an object with the methods of `LocalProcess`: poll, interrupt and kill.
StartJob = Callable[[Job], Any]


def run_jobs(
    jobs: Sequence[Job],
    start: StartJob,
    at_once: int,
    *,
    on_end: Callable[[Job, str], None],
    is_ready: Callable[[Job], bool] = lambda _: True,
    on_poll: Callable[[], None] = lambda: None,
    pause: float = 0.2,
) -> list[Job]:
    """Run the jobs in order, `at_once` at a time, each as soon as it is ready.

    `on_end` is called after each job with its error message, or "". `on_poll` is called regularly. Returns
    the jobs that never became ready. Ctrl-C and SIGTERM stop all jobs.
    """
    waiting = list(jobs)
    running, attempts = dict[Job, Any](), dict[Job, int]()
    with terminated_as_interrupted():
        try:
            while waiting or running:
                free_slots = max(0, at_once - len(running))
                for job in list(filter(is_ready, waiting))[:free_slots]:
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
                        on_end(job, "" if code == 0 else failure_message(job.log, code))
                on_poll()
        except BaseException:
            _stop_jobs(list(running.values()))
            raise
    return waiting


def _stop_jobs(running: Sequence[Any]) -> None:
    """Interrupt the jobs, and kill those that do not stop in time."""
    for process in running:
        process.interrupt()
    deadline = time.monotonic() + STOP_TIMEOUT
    while time.monotonic() < deadline and any(process.poll() is None for process in running):
        time.sleep(0.05)
    for process in running:
        if process.poll() is None:
            process.kill()


def failure_message(log: Path, code: int) -> str:
    """Return the last message of a job that failed."""
    if code < 0:
        return f"it was killed by signal {-code}, {MAX_ATTEMPTS} times"
    text = log.read_text(errors="replace") if log.is_file() else ""  # in a Ray cluster the file may be out of reach
    lines = [line for line in text.splitlines() if line.strip()]
    messages = [line.removeprefix("repolicy: ") for line in lines if line.startswith("repolicy: ")]
    if not lines:
        return f"it ended with exit code {code} and left no word in {log}; is the disk full?"
    ended = f"it ended with exit code {code} and no reason: a library or the environment ended its process; see {log}"
    return (messages or (lines if code == 1 else [ended]))[-1]  # code 1 is Python's, after a traceback


# On this machine ------------------------------------------------------------------------------------------------------


def bound_to_this_process(program: Sequence[str]) -> list[str]:
    """Return a program that runs `program` (an absolute path) and, on Linux, dies with this process."""
    guard = f"import os, sys; from repolicy.runs.machine import die_with; die_with({os.getpid()})"
    return [*PYTHON, "-c", f"{guard}; os.execv(sys.argv[1], sys.argv[1:])", *program]  # exec keeps the setting


class LocalProcess:
    """A job that runs as a process on this machine, in its own process group: only the pool forwards Ctrl-C to it."""

    def __init__(self, job: Job) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "wb") as file:
            program = bound_to_this_process(job.program)
            self._process = subprocess.Popen(program, stdout=file, env=child_environment(), process_group=0, **STREAMS)

    def poll(self) -> int | None:
        """Return the exit code, negative if a signal killed the process, or None while it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Ask the process to stop."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        # If Ctrl-C came within `poll`, Popen's lock stays taken, and waiting without a timeout would never end.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)


# Jobs as Ray tasks of one core each, in a cluster or on this machine --------------------------------------------------


CONNECT_TIMEOUT = 10.0  # seconds


def connect_to_ray(address: str | None = None) -> StartJob:
    """Connect to the cluster at `address` or RAY_ADDRESS, or start Ray here; return a function that starts jobs in it.

    All machines of the cluster must have access to the folders that the jobs name.
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
    folder, path = os.getcwd(), child_environment()["PYTHONPATH"]

    class RayJob:
        def __init__(self, job: Job) -> None:
            self._reference = task.remote(job.program, str(job.log.resolve()), folder, path)

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
            ray.cancel(self._reference, force=True)  # kills the worker, and the program dies with it

        def kill(self) -> None:
            pass

    return RayJob


def _run_in_ray(program: Sequence[str], log: str, folder: str, path: str) -> int:
    """Run one job as a Ray task in this folder, with this PYTHONPATH, and return its exit code."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        process = subprocess.run(
            bound_to_this_process(program),
            stdout=file,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
            **STREAMS,
        )
    return process.returncode


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
        problem = f"no Ray cluster answers at {address}: {first_line(error)}; start one with `ray start --head`"
        raise RepolicyError(f"{problem}, or leave the address out to work on this machine") from None
