"""Break the mathematics and the checks on purpose, one place at a time: every break must turn a test red.

    python -m benchmarks.mutate
    python -m benchmarks.mutate learning/worker sign      # those whose file or description holds one of these

Each mutant is a copy of the package with one piece of text replaced; the tests named beside it run against that copy.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.mutants import ROOMS, Mutant
from benchmarks.mutants_of_wings import WINGS

MUTANTS = ROOMS + WINGS
ROOT = Path(__file__).parent.parent


def main() -> None:
    """Break all, or what the words on the command line name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*", default=[""], help="parts of a file's name or of a description")
    words = parser.parse_args().words
    chosen = [mutant for mutant in MUTANTS if any(word in f"{mutant.file} {mutant.what}" for word in words)]
    for mutant in chosen:
        check(mutant)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        package = copied(Path(folder))
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            if passes(tests, package) != 0:
                raise SystemExit(f"{tests} must pass before anything is broken")
    counts = dict.fromkeys(OUTCOMES.values(), 0)
    for mutant in chosen:
        outcome = OUTCOMES[dies(mutant)]
        counts[outcome] += 1
        print(f"{outcome:9s}  {mutant.file:18s} {mutant.what}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{', '.join(f'{count} {outcome}' for outcome, count in counts.items())}, in {seconds:.0f} s")
    sys.exit(0 if counts["killed"] == len(chosen) else 1)


def check(mutant: Mutant) -> None:
    """The text to replace must be there exactly once, or the mutant itself is out of date."""
    found = (ROOT / "src" / "repolicy" / mutant.file).read_text().count(mutant.old)
    if found != 1:
        raise SystemExit(f"{mutant.file} contains {mutant.old!r} {found} times, not once: bring the mutant up to date")


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT / "src" / "repolicy", folder / "src" / "repolicy"))


OUTCOMES = {True: "killed", False: "SURVIVED", None: "UNDECIDED"}


def dies(mutant: Mutant) -> bool | None:
    """Return whether a test notices; None where the tests take too long, as on a busy machine or in an endless loop."""
    with tempfile.TemporaryDirectory() as folder:
        package = copied(Path(folder))
        path = package / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        try:
            return passes(mutant.tests, package) == 1
        except subprocess.TimeoutExpired:
            return None


def passes(tests: str, package: Path) -> int:
    """pytest's exit code (0: all passed, 1: some failed) of the tests against this copy of the package."""
    code = (
        "import sys, pytest, repolicy\n"
        "sys.exit(pytest.main(sys.argv[2:]) if repolicy.__file__.startswith(sys.argv[1]) else 9)"
    )
    words = [sys.executable, "-c", code, str(package), "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [*words, *tests.split()], cwd=ROOT, env=environment, capture_output=True, check=False, timeout=300
    )
    return done.returncode


if __name__ == "__main__":
    main()
