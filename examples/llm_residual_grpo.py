"""Residual policy gradient on a model, prompts and a reward function of your own.

    python examples/llm_residual_grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data trl-lib/tldr \
        --reward my_rewards:brevity --omega 0.02 --alpha 0.02 --output_dir runs/grpo

    torchrun --nproc_per_node 8 examples/llm_residual_grpo.py ...              # the same arguments, on 8 GPUs
    accelerate launch --config_file fsdp2 examples/llm_residual_grpo.py ... --use_vllm --vllm_mode colocate
    accelerate launch --config_file deepspeed_zero3 examples/llm_residual_grpo.py ... --use_vllm --vllm_mode server

With vLLM, text is written by vLLM and scored by the model in training, as in TRL; the reward of the prior and of the
entropy uses the scores. The reward function takes `completions` (and the data set's columns) and returns numbers; it is
`module:function` or `file.py:function`, of a module in the folder where you stand.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from peft import LoraConfig
from torch import distributed
from transformers import AutoTokenizer, HfArgumentParser

from repolicy.errors import RepolicyError
from repolicy.llm import ResidualGRPOTrainer
from repolicy.llm.grpo import ResidualGRPOConfig
from repolicy.loading import load_object


@dataclass
class Script:
    """What the run needs beside the trainer's own settings."""

    model: str
    data: str
    reward: str = "llm_residual_grpo:brevity"
    split: str = "train"
    lora_rank: int = 0


def brevity(completions: list[Any], **_: Any) -> list[float]:
    """A reward to try this script with: 1 for an empty response, falling by half every 200 characters."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [0.5 ** (len(text) / 200) for text in texts]


def parse(arguments: list[str]) -> tuple[Script, ResidualGRPOConfig]:
    parser = HfArgumentParser((Script, ResidualGRPOConfig))
    parser.parse_args(arguments)  # which says in one sentence that an option is misspelled
    script, settings = parser.parse_args_into_dataclasses(arguments)
    return script, settings


def load_data(name: str, split: str) -> Dataset:
    """A data set by name, or a JSON-lines file of your own with the column prompt."""
    if Path(name).is_file() or name.endswith(".jsonl"):  # a misspelled one is not looked for on the hub
        return load_dataset("json", data_files=name, split=split)
    return load_dataset(name, split=split)


def main(arguments: list[str]) -> None:
    script, settings = parse(arguments)
    trainer = ResidualGRPOTrainer(
        script.model,  # as a name, because TRL then loads it in float32, whatever the file holds
        load_object(script.reward, "the reward"),
        settings,
        load_data(script.data, script.split),
        processing_class=AutoTokenizer.from_pretrained(script.model),
        peft_config=LoraConfig(r=script.lora_rank) if script.lora_rank else None,
    )
    trainer.train(resume_from_checkpoint=settings.resume_from_checkpoint)
    trainer.save_model(settings.output_dir)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (RepolicyError, OSError) as error:  # which say all that there is to say
        sys.exit(str(error))
    if distributed.is_initialized():  # its threads must be gone before Python is
        distributed.destroy_process_group()
