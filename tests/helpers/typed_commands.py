"""Commands, typed as a user does."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from repolicy.cli import main as cli
from repolicy.many.pool import Job
from repolicy.planning import value
from repolicy.prepare import states

SMALL = ["--steps=512", "--envs=8", "--n-steps=16", "--minibatch=64", "--checkpoint-every=2", "--ranks=1"]


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    code = 0
    try:
        cli.main(list(words))
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What `--json` prints: one object, and nothing else on stdout."""
    code, out, err = typed(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def failed(capsys: pytest.CaptureFixture[str], *words: object, codes: tuple[int, ...] = (1, 2)) -> str:
    """What a command says that cannot work, on however many lines."""
    code, _, err = typed(capsys, *map(str, words))
    assert code in codes, err
    assert "Traceback" not in err
    return " ".join(err.split())


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one sentence on stderr of a command that must fail with `code`."""
    found, out, err = typed(capsys, *words)
    assert (found, out) == (code, ""), err
    assert "Traceback" not in err
    assert err.startswith("repolicy: ")
    assert err.count("\n") == 1, err
    return err


def with_few_states(patch: pytest.MonkeyPatch) -> None:
    """What the prior visits is learnt from few steps."""
    for name, few in (
        ("MAX_OBSERVATIONS", 256),
        ("MIN_OBSERVATIONS", 256),
        ("MIN_FIT_OBSERVATIONS", 256),
        ("SKIPPED_STEPS", 0),
        ("OBSERVATIONS_PER_ENV", 32),
    ):
        patch.setattr(states, name, few)
    patch.setattr(value, "BLOCKS", 3)


def worked(jobs: Sequence[Job], start: Any, at_once: int, on_end: Callable[[Job, str], None], on_poll: Any) -> None:
    """Train a sweep's points here, one after the other, in place of other processes."""
    for job in jobs:
        cli.main([*job.program[job.program.index("repolicy") + 1 :]])
        on_end(job, "")
