"""Jobs on Ray, and addresses that do not answer."""

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

from repolicy.errors import RepolicyError, UsageError
from repolicy.many.pool import Job, check_answers, on_ray, work


def test_an_address_that_does_not_answer_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(RepolicyError, match=f"no Ray cluster answers at .*{port}"):
                check_answers(address)
        taken.listen()
        check_answers(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port", ":"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        check_answers(address)


def test_without_an_address_ray_starts_here() -> None:
    for address in (None, "auto", "local"):
        check_answers(address)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_sentence_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"pip install 'repolicy\[ray\]'"):
        on_ray()


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
    work(jobs, on_ray("local"), 3, ended=lambda job, error: found.update({job.name: error}))
    ray.shutdown()
    assert found == {"good": "", "bad": "bad luck", "dies": "it was killed by signal 9, 3 times"}
