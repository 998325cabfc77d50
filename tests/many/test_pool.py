"""Many runs, here or on Ray: their order, what is tried again, and that nobody outlives the pool."""

import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import is_gone, until

from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import child_environment
from repolicy.many.pool import (
    MAX_ATTEMPTS,
    Job,
    LocalProcess,
    _run_in_ray,
    _stop_jobs,
    check_ray_address,
    connect_to_ray,
    run_jobs,
)


class Pretended:
    """Jobs that end after as many looks as told, with the codes that they are given in turn."""

    def __init__(self, codes: dict[str, list[int]]) -> None:
        self.codes, self.started, self.running, self.most = codes, list[str](), set[str](), 0

    def __call__(self, job: Job) -> "Pretended.One":
        self.started.append(job.name)
        self.running.add(job.name)
        self.most = max(self.most, len(self.running))
        return Pretended.One(self, job.name)

    class One:
        def __init__(self, pool: "Pretended", name: str) -> None:
            self.pool, self.name = pool, name

        def poll(self) -> int:
            self.pool.running.discard(self.name)
            return self.pool.codes.get(self.name, [0]).pop(0) if self.name in self.pool.codes else 0

        def interrupt(self) -> None: ...
        def kill(self) -> None: ...


def jobs(tmp_path: Path, *names: str) -> list[Job]:
    return [Job(name, (), tmp_path / f"{name}.log") for name in names]


def test_jobs_are_begun_in_order_and_as_soon_as_they_are_ready(tmp_path: Path) -> None:
    pool, ended = Pretended({}), list[str]()

    def ready(job: Job) -> bool:
        return {"needs c": "c" in ended, "never": False}.get(job.name, True)

    left = run_jobs(
        jobs(tmp_path, "a", "needs c", "never", "b", "c", "d"), pool, 2,
        on_end=lambda job, error: ended.append(job.name), is_ready=ready, pause=0.0,
    )  # fmt: skip
    assert pool.started == ["a", "b", "c", "d", "needs c"]
    assert pool.most == 2
    assert [job.name for job in left] == ["never"]


def test_what_was_killed_is_tried_again_and_what_failed_is_not(tmp_path: Path) -> None:
    pool = Pretended({"once": [-9, 0], "stopped": [130, 0], "always": [-9] * MAX_ATTEMPTS, "wrong": [2], "gone": [9]})
    (tmp_path / "wrong.log").write_text("something\nrepolicy: the sentence\na warning\n")
    (tmp_path / "gone.log").write_text("20% · 600 of 3,000 steps\n")
    found: dict[str, str] = {}
    run_jobs(
        jobs(tmp_path, "once", "stopped", "always", "wrong", "gone"), pool, 1,
        on_end=lambda job, error: found.update({job.name: error}), pause=0.0,
    )  # fmt: skip
    killed = "it was killed by signal 9, 3 times"
    gone = "it ended with exit code 9 and no reason: a library or the environment ended its process; see "
    assert found == {
        "once": "", "stopped": "", "always": killed, "wrong": "the sentence", "gone": f"{gone}{tmp_path / 'gone.log'}"
    }  # fmt: skip
    assert [pool.started.count(name) for name in found] == [2, 2, MAX_ATTEMPTS, 1, 1]


def errors_of(job: Job) -> list[str]:
    """What a job's ends say, in a process of its own."""
    found = list[str]()
    run_jobs([job], LocalProcess, 1, on_end=lambda job, error: found.append(error), pause=0.01)
    return found


def test_a_process_that_dies_goes_on_where_it_was(tmp_path: Path) -> None:
    code = f"import os, pathlib; p = pathlib.Path({str(tmp_path / 'begun')!r})\n"
    code += "p.exists() or (p.touch(), os.kill(os.getpid(), 9))"
    assert errors_of(Job("dies", (sys.executable, "-S", "-c", code), tmp_path / "log")) == [""]
    assert (tmp_path / "begun").exists()


def test_a_job_imports_what_its_pool_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path, "elsewhere").mkdir()
    Path(tmp_path, "elsewhere", "only_of_a_notebook.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    job = Job("imports", (sys.executable, "-P", "-c", "import only_of_a_notebook"), tmp_path / "log")
    assert errors_of(job) == [""]
    assert _run_in_ray(job.program, str(job.log), str(tmp_path), child_environment()["PYTHONPATH"]) == 0


POOL = """
import sys
from pathlib import Path
from repolicy.many.pool import Job, LocalProcess, run_jobs
child = "import os, time, pathlib\\ntry:\\n pathlib.Path('pid').write_text(str(os.getpid()))\\n time.sleep(60)\\n" \\
        "except KeyboardInterrupt:\\n pathlib.Path('polite').touch()"
run_jobs([Job("sleeps", (sys.executable, "-S", "-c", child), Path("log"))], LocalProcess, 1, on_end=print, pause=0.01)
"""


@contextlib.contextmanager
def begun(tmp_path: Path, ignored: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A pool in a process of its own, with one job at work. What a script starts with `&` ignores SIGINT at first."""
    shell = ["sh", "-c", f'trap {"" if ignored else "-"!r} INT; exec "$@"', "sh"]
    words = [*shell, sys.executable, "-c", POOL]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent died")
def test_a_job_does_not_outlive_a_pool_that_was_killed(tmp_path: Path) -> None:
    with begun(tmp_path) as pool:
        pool.kill()
    until(lambda: is_gone(int((tmp_path / "pid").read_text())))
    assert not (tmp_path / "polite").exists()


@pytest.mark.parametrize(("sent", "ignored"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_pool_that_is_told_to_stop_tells_its_jobs(tmp_path: Path, sent: signal.Signals, ignored: bool) -> None:
    with begun(tmp_path, ignored=ignored) as pool:
        pool.send_signal(sent)
        assert b"KeyboardInterrupt" in pool.stderr.read()
        assert (tmp_path / "polite").exists()
        assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_job_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pool: it may live on, so that no tie ends the job."""
    monkeypatch.setattr("repolicy.many.pool.STOP_TIMEOUT", 0.2)
    code = "import os, signal, time; signal.signal(signal.SIGINT, lambda *_: None)\n"
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True: time.sleep(60)"

    def stop() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    job = Job("deaf", (sys.executable, "-S", "-c", code), tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], LocalProcess, 1, on_end=print, on_poll=stop)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_job_is_killed_also_where_the_interrupt_came_while_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may raise between taking Popen's lock and the `try` that gives it back."""
    monkeypatch.setattr("repolicy.many.pool.STOP_TIMEOUT", 0.2)
    job = LocalProcess(Job("sleeps", (sys.executable, "-S", "-c", "import time; time.sleep(60)"), tmp_path / "log"))
    job._process._waitpid_lock.acquire()
    stopping = threading.Thread(target=_stop_jobs, args=([job],), daemon=True)
    stopping.start()
    stopping.join(5.0)
    assert not stopping.is_alive()
    until(lambda: is_gone(job._process.pid))
    job._process._waitpid_lock.release()
    assert job.poll() is not None


def test_an_address_that_does_not_answer_or_is_none_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(RepolicyError, match=f"no Ray cluster answers at .*{port}"):
                check_ray_address(address)
        taken.listen()
        check_ray_address(f"127.0.0.1:{port}")
    for address in ("nonsense", "host:port"):
        with pytest.raises(UsageError, match="must be HOST:PORT"):
            check_ray_address(address)
    for here in (None, "auto", "local"):
        check_ray_address(here)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_sentence_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"pip install 'repolicy\[ray\]'"):
        connect_to_ray()


@pytest.mark.filterwarnings("ignore")
def test_jobs_on_ray_end_as_they_do_here(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    codes = {
        "good": "print('hello')",
        "bad": "import sys; sys.exit('repolicy: bad luck')",
        "dies": "import os; os.kill(os.getpid(), 9)",
    }
    jobs = [Job(name, (sys.executable, "-S", "-c", code), tmp_path / f"{name}.log") for name, code in codes.items()]
    found: dict[str, str] = {}
    run_jobs(jobs, connect_to_ray("local"), 3, on_end=lambda job, error: found.update({job.name: error}))
    ray.shutdown()
    assert found == {"good": "", "bad": "bad luck", "dies": "it was killed by signal 9, 3 times"}
