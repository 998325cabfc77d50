"""A tiny model and what goes with it, to try the commands of the pages: `python -m experiments.llm tiny`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.llm.records import prepare
from experiments.llm.toy import END, Toy, labelled_pairs, make_prior, sample_responses

REWARD = '''"""A reward for short responses."""


def brevity(completions, **columns):
    return [0.5 ** len(text) for text in completions]
'''


@dataclass(frozen=True)
class Tiny:
    """A tiny model in my-model/, and pairs.jsonl, prompts.jsonl and my_rewards.py beside it, to try commands with.

    Example: python -m experiments.llm tiny
    """

    folder: Path = Path()
    """Where to write them."""
    json: bool = False
    """Print one JSON object on stdout at the end."""

    def run(self) -> dict[str, Any]:
        toy = Toy(letters="abe", length=3)
        prepare(self.folder)
        make_prior(toy, self.folder / "my-model", steps=200, hidden=32, layers=1)
        first, second = (sample_responses(toy, toy.response_log_probs(toy.human), 256, seed) for seed in (0, 1))
        files = {"pairs.jsonl": labelled_pairs(first, second, seed=2), "prompts.jsonl": [{"prompt": END}] * 64}
        for name, rows in files.items():
            (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "my_rewards.py").write_text(REWARD)
        made = ["my-model", *files, "my_rewards.py"]
        print(f"written to {self.folder.resolve()}: {', '.join(made)}", file=sys.stderr)
        return {"written": made}
