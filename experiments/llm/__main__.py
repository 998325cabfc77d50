"""python -m experiments.llm COMMAND: one command for each measurement of the trainers, and one for a tiny model."""

import json
import sys
from typing import Any

import tyro

from experiments.llm.budgets import Budget
from experiments.llm.frontier import Frontier
from experiments.llm.gradients import Gradients
from experiments.llm.labels import Labels
from experiments.llm.overhead import Overhead
from experiments.llm.sharp import Sharp
from experiments.llm.spelling import Spelling
from experiments.llm.tiny import Tiny
from experiments.llm.turning import Dial
from repolicy.errors import RepolicyError

COMMANDS: dict[str, Any] = {
    command.__name__.lower(): command
    for command in (Frontier, Sharp, Dial, Budget, Labels, Spelling, Gradients, Overhead, Tiny)
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exit with 0, 1 for a failure or 2 for a request that cannot be met."""
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, args=arguments, prog="python -m experiments.llm", description=__doc__
        )
        found = command.run()
    except RepolicyError as error:
        print(f"experiments.llm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if command.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
