"""Not a test: what `test_examples.py` calls, and what it starts in two processes.

python one_step.py PRIOR DATA OUT ROWS: a step of each example script, of GRPO on fixed responses, and on
labels; ROWS a process. Two processes read the libraries once: they are forks of a third, which does nothing else.
"""

# ruff: noqa: E402 - what needs the extra is imported after it has been asked for

import gc
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from datasets import Dataset
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


def main(prior: str, data: str, out: str, rows: str) -> None:
    import llm_decomposed_dpo
    import llm_residual_grpo

    torch.set_num_threads(1)
    shared = ["--bf16", "false", "--use_cpu", "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "true"]
    shared += ["--max_steps", "1", "--optim", "sgd", "--learning_rate", "0.5", "--gradient_checkpointing", "false"]
    shared += ["--per_device_train_batch_size", rows, "--dataloader_pin_memory", "false", "--logging_strategy", "no"]
    shared += ["--ddp_find_unused_parameters", "false"]  # no model here has any, and DDP warns about looking
    objective = ["--omega", "0.3", "--alpha", "0.2", "--model", prior, "--data", data]
    online = ["--num_generations", "4", "--max_completion_length", "4"]
    llm_decomposed_dpo.main([*shared, *objective, "--output_dir", f"{out}/dpo"])
    if "RANK" in os.environ:  # alone it is run by its page
        llm_residual_grpo.main([*shared, *objective, *online, "--output_dir", f"{out}/grpo"])

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
    labels.train()
    labels.save_model(f"{out}/labels")
    Path(f"{out}/labels/offset.txt").write_text(str(labels.offset))


if __name__ == "__main__":
    gc.freeze()  # as in tests/conftest.py
    ranks = []
    for rank in "01":
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            try:
                main(*sys.argv[1:])
                distributed.destroy_process_group()  # as the example scripts end
                os._exit(0)  # on a busy machine a thread of gloo's can outlive even that, and abort Python at its end
            finally:
                traceback.print_exc()
                os._exit(1)
    done, failed = os.wait()
    ranks.remove(done)
    if failed:
        os.kill(ranks[0], signal.SIGKILL)  # one that waits for another that has failed
    sys.exit(bool(failed or os.wait()[1]))
