"""A tiny model and what goes with it, to try the commands of the pages: `python -m experiments.llm tiny`."""

import json
from pathlib import Path

from experiments import campaign
from experiments.llm.toy import END, Toy, labelled_pairs, make_prior, sample_responses

REWARD = '''"""A reward for short responses."""


def brevity(completions, **columns):
    return [0.5 ** len(text) for text in completions]
'''


@campaign.program()
def main(options: campaign.Options) -> None:
    """Write my-model/, pairs.jsonl, prompts.jsonl and my_rewards.py here."""
    toy, here = Toy(letters="abe", length=3), Path()
    make_prior(toy, here / "my-model", steps=200, hidden=32, layers=1)
    first, second = (sample_responses(toy, toy.response_log_probs(toy.human), 256, seed) for seed in (0, 1))
    files = {"pairs.jsonl": labelled_pairs(first, second, seed=2), "prompts.jsonl": [{"prompt": END}] * 64}
    for name, rows in files.items():
        (here / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "my_rewards.py").write_text(REWARD)
    print(f"written to {here.resolve()}: my-model, {', '.join(files)}, my_rewards.py")
