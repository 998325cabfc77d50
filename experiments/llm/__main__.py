"""What the trainers are worth: `python -m experiments.llm PROGRAM`, or a tiny model to try commands with (`tiny`)."""

import argparse
from importlib import import_module

from experiments.campaign import run_main

PROGRAMS = ("frontier", "sharp", "dial", "budget", "labels", "spelling", "gradients", "overhead")


def main(words: list[str] | None = None) -> None:
    """Run one program; its settings are its own."""
    parser = argparse.ArgumentParser(prog="python -m experiments.llm", description=__doc__)
    parser.add_argument("program", choices=[*PROGRAMS, "tiny"])
    parser.add_argument("settings", nargs=argparse.REMAINDER, help="PROGRAM --help names them")
    options = parser.parse_args(words)
    import_module(f"experiments.llm.{options.program}").main(options.settings)


if __name__ == "__main__":
    run_main(main)
