"""Decomposed-DPO on a model and a preference set of your own.

    python examples/llm_decomposed_dpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data trl-lib/ultrafeedback_binarized \
        --omega 0.05 --alpha 0.1 --output_dir runs/dpo

    torchrun --nproc_per_node 8 examples/llm_decomposed_dpo.py ...             # the same arguments, on 8 GPUs
    accelerate launch --config_file fsdp2 examples/llm_decomposed_dpo.py ...   # sharded; your own accelerate file
    accelerate launch --config_file deepspeed_zero3 examples/llm_decomposed_dpo.py ...

`--lora_rank 16` trains an adapter instead of all weights: then the prior is the model with its adapter off, and there
is no second model in memory. `--precompute_ref_log_probs` spares it as well. Options of TRL's DPOConfig
work, too; those that would change the objective are refused with the reason.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, load_dataset
from peft import LoraConfig
from torch import distributed
from transformers import AutoTokenizer, HfArgumentParser

from repolicy.errors import RepolicyError
from repolicy.llm import DecomposedDPOTrainer
from repolicy.llm.dpo import DecomposedDPOConfig


@dataclass
class Script:
    """What the run needs beside the trainer's own settings."""

    model: str
    data: str
    split: str = "train"
    lora_rank: int = 0


def parse(arguments: list[str]) -> tuple[Script, DecomposedDPOConfig]:
    parser = HfArgumentParser((Script, DecomposedDPOConfig))
    parser.parse_args(arguments)  # which says in one sentence that an option is misspelled
    script, settings = parser.parse_args_into_dataclasses(arguments)
    return script, settings


def load_data(name: str, split: str) -> Dataset:
    """A data set by name, or a JSON-lines file of your own with the columns prompt, chosen and rejected."""
    if Path(name).is_file() or name.endswith(".jsonl"):  # a misspelled one is not looked for on the hub
        return load_dataset("json", data_files=name, split=split)
    return load_dataset(name, split=split)


def main(arguments: list[str]) -> None:
    script, settings = parse(arguments)
    trainer = DecomposedDPOTrainer(
        script.model,  # as a name, because TRL then loads it in float32, whatever the file holds
        args=settings,
        train_dataset=load_data(script.data, script.split),
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
