"""The group `repolicy llm`: text from tuned models with the dial turned, and what the models are worth.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from repolicy.cli.options import Command, Positional
from repolicy.loading import escaped
from repolicy.runs.terminal import Terminal


@dataclass(frozen=True)
class Generate(Command):
    """Text from one or two tuned models, at an omega between (or beside) those that they were trained at.

    Example: repolicy llm generate runs/low runs/high --prior runs/prior --omega 0.25 --prompt "Once"
    """

    models: Annotated[tuple[str, ...], Positional("MODEL")]
    """Folders of one or two tuned models, or of their adapters."""
    prior: str
    """The model that they were tuned from."""
    omega: float
    """Where to turn the dial: the weight of the prior's log-probability."""
    prompt: tuple[str, ...]
    """One or more prompts."""
    alpha: float | None = None
    """Weight of the entropy; by default that of the first model."""
    count: int = 1
    """Responses to every prompt."""
    tokens: int = 128
    """The most tokens in a response."""
    chat: bool = False
    """Write the prompts with the tokenizer's chat template."""
    trained_at: tuple[str, ...] = ()
    """omega,alpha of each model, for models without a repolicy.json; such as 0.1,0.2."""
    seed: int = 0
    """Seed of the sampling."""

    def run(self) -> dict[str, Any]:
        from repolicy.llm import require_trl

        require_trl()
        from repolicy.llm.models import generate

        given = {name: value for name, value in vars(self).items() if name not in ("models", "prior", "prompt", "json")}
        return {"omega": self.omega, "responses": generate(self.models, self.prior, self.prompt, **given)}

    def text(self, values: dict[str, Any]) -> str:
        text = "\n".join(f"{response['prompt']}{response['text']}" for response in values["responses"])
        return escaped(text, kept="\n\t")  # what a model writes could turn a terminal upside down


@dataclass(frozen=True)
class Evaluate(Command):
    """What models are worth beside their prior: add-on, log prior, KL, length and entropy, with intervals, on a page.

    Example: repolicy llm evaluate runs/low runs/high --prior runs/prior --prompts p.jsonl --reward my_rewards:brevity
    """

    models: Annotated[tuple[str, ...], Positional("MODEL")]
    """Folders of tuned models, or of their adapters."""
    prior: str
    """The model that they were tuned from; it is evaluated as well."""
    prompts: Path
    """A JSON-lines file with a column prompt (text, or a list of messages), and any columns that the reward reads."""
    reward: str
    """The add-on reward, as TRL calls it: module:function or file.py:function."""
    responses: int = 8
    """Responses of every model to every prompt."""
    tokens: int = 128
    """The most tokens in a response."""
    out: Path = Path("evaluation.html")
    """The page."""
    seed: int = 0
    """Seed of the sampling."""

    def run(self) -> dict[str, Any]:
        from repolicy.llm import require_trl
        from repolicy.policies.storage import check_place, write_bytes

        require_trl()
        from repolicy.llm.models import evaluate

        check_place(self.out)
        size = {"responses": self.responses, "tokens": self.tokens, "seed": self.seed}
        models, page = evaluate(self.models, self.prior, self.prompts, self.reward, **size)
        write_bytes(self.out, page.encode())
        Terminal().say(f"page: {self.out}")
        return {"page": str(self.out), "models": models}


COMMANDS: dict[str, Any] = {"generate": Generate, "evaluate": Evaluate}
