"""Jobs as Ray tasks of one core each, in a cluster or on this machine."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from repolicy.errors import RepolicyError, UsageError, first_line
from repolicy.many.pool import Job, Start, tied

ANSWER = 10.0  # seconds that a cluster has to answer
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # the first frame that each side sends in HTTP/2, which Ray speaks
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


def on_ray(address: str | None = None) -> Start:
    """Starts jobs in the cluster at `address`, else in the one that RAY_ADDRESS names, else on this machine.

    All machines of the cluster must see the folders that the jobs name.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs the package ray: pip install 'repolicy[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or None
    check_answers(address)
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="CRITICAL")
    except Exception as error:  # Ray raises many kinds
        where = f" at {address}" if address else ""
        raise RepolicyError(f"Ray could not be started{where}: {first_line(error)}") from None
    task = ray.remote(num_cpus=1, max_retries=0)(_work)
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


def _work(program: Sequence[str], log: str, place: str) -> int:
    """Runs in the cluster."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        return subprocess.run(
            tied(program), stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=place, check=False
        ).returncode


def check_answers(address: str | None) -> None:
    """Raise if nothing at HOST:PORT answers as Ray would. (Ray itself would try for minutes, and print pages.)"""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if address in (None, "auto", "local"):
        return
    if not colon or not port.isdigit():
        raise UsageError(f"the Ray address is {address!r}; it must be HOST:PORT, ray://HOST:PORT, auto or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as connection:
            connection.sendall(HELLO)
            if os.environ.get("RAY_USE_TLS", "0") == "0" and connection.recv(9)[3:4] != SETTINGS[3:4]:
                raise ConnectionError("something else listens there")
    except (OSError, OverflowError) as error:
        raise RepolicyError(
            f"no Ray cluster answers at {address}: {first_line(error)}; start one with `ray start --head`, "
            "or leave the address out to work on this machine"
        ) from None
