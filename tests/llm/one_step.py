"""Not a test: what `test_pages.py` calls in its own process, and in two forks of it.

A step of each example script, of GRPO on fixed responses, and on labels; `rows` a process.
"""

# ruff: noqa: E402 - what needs the extra is imported after it has been asked for

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset, fingerprint
from torch import distributed
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser

from repolicy.llm import CrossEntropyDPOConfig, CrossEntropyDPOTrainer, ResidualGRPOConfig, ResidualGRPOTrainer
from repolicy.objective import residual

TEXTS = ["ae", "bb", "e", "eab"]
RESPONSES = [[1, 3, 0], [3, 3, 2, 0], [2, 0], [1, 2, 3, 3]]


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """The same four responses whichever rank holds which: a group that lies on two ranks."""
    first = trainer.accelerator.process_index * len(prompts)
    mine = [RESPONSES[(first + i) % 4] for i in range(len(prompts))]
    return {"prompt_ids": [[0]] * len(mine), "completion_ids": mine, "logprobs": [[0.0] * len(ids) for ids in mine]}


def addon(completions: list[str], **_: Any) -> list[float]:
    return [float(text.count("e")) for text in completions]


def shard_on_cpus() -> None:
    """Let Accelerate use FSDP on CPUs, too, where its plugin is given."""
    begin = AcceleratorState.__init__

    def patched(self: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = patched


def main(prior: str, data: str, out: str, rows: str) -> None:
    import llm_decomposed_dpo
    import llm_residual_grpo

    torch.set_num_threads(1)
    if "ACCELERATE_USE_FSDP" in os.environ:
        shard_on_cpus()
    shared = ["--bf16", "false", "--use_cpu", "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "true"]
    shared += ["--max_steps", "1", "--optim", "sgd", "--learning_rate", "0.5", "--gradient_checkpointing", "false"]
    shared += ["--per_device_train_batch_size", rows, "--dataloader_pin_memory", "false", "--logging_strategy", "no"]
    shared += ["--ddp_find_unused_parameters", "false"]  # no model here has any, and DDP warns about looking
    objective = ["--omega", "0.3", "--alpha", "0.2", "--model", prior, "--data", data]
    online = ["--num_generations", "4", "--max_completion_length", "4"]
    llm_decomposed_dpo.main([*shared, *objective, "--output_dir", f"{out}/dpo"])
    if "RANK" in os.environ:  # alone it is run by its page
        mixed = ["--prior_share", "0.5"]  # all of it is the first rank's
        llm_residual_grpo.main([*shared, *objective, *online, *mixed, "--output_dir", f"{out}/grpo"])

    def settings(kind: type[Any], *words: str) -> Any:
        return HfArgumentParser(kind).parse_args_into_dataclasses([*shared, *words])[0]

    def model() -> Any:
        return AutoModelForCausalLM.from_pretrained(prior)

    common = {"objective": residual(0.3, 0.2), "processing_class": AutoTokenizer.from_pretrained(prior)}
    fixed = ResidualGRPOTrainer(
        model(), addon, settings(ResidualGRPOConfig, *online, "--output_dir", f"{out}/fixed"),
        Dataset.from_list([{"prompt": "."}] * 8), rollout_func=rollout, **common,
    )  # fmt: skip
    fixed.train()
    fixed.save_model(f"{out}/fixed")
    labelled = [
        {"prompt": ".", "completion": text, "label": label} for text, label in zip(TEXTS, [1, 0, 1, 1], strict=True)
    ]
    by_label = settings(CrossEntropyDPOConfig, "--output_dir", f"{out}/labels")
    labels = CrossEntropyDPOTrainer(model(), model(), by_label, Dataset.from_list(labelled), **common)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        dry = labels.dry_run()
    rank = os.environ.get("RANK", "0")
    Path(f"{out}/dry-{rank}.json").write_text(json.dumps({"metrics": dry, "printed": printed.getvalue()}))
    labels.train()
    labels.save_model(f"{out}/labels")
    Path(f"{out}/labels/offset.txt").write_text(str(labels.offset))


def fork(words: list[str], meeting: dict[str, str], said: Path) -> list[int]:
    """Start two ranks, as forks that have read the libraries, and give their ids; what they say is in a file."""
    ranks = []
    for rank in "01":
        ranks.append(os.fork())
        if not ranks[-1]:
            try:
                os.environ |= {**meeting, "RANK": rank, "LOCAL_RANK": rank}
                fingerprint.fingerprint_rng.seed()  # else forks would give the files of their rows the same names
                sys.stderr = said.open("a", buffering=1)
                os.dup2(sys.stderr.fileno(), 2)
                warnings.resetwarnings()  # what a test takes for an error, a process says
                warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)
                main(*words)
                distributed.destroy_process_group()  # as the example scripts end
                os._exit(0)  # on a busy machine a thread of gloo's can outlive even that, and abort Python at its end
            finally:
                traceback.print_exc()
                os._exit(1)
    return ranks


def ended(ranks: list[int]) -> bool:
    """Wait for both ranks, and tell whether they ended well; one that waits for another that has failed is stopped."""
    left, well = {*ranks}, True
    while left:
        time.sleep(0.05)
        for rank in [*left]:
            done, failed = os.waitpid(rank, os.WNOHANG)
            left -= {done}
            if done and failed:
                well = False
                for other in left:
                    os.kill(other, signal.SIGKILL)
    return well
