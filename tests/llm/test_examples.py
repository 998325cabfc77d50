"""The example scripts: their arguments, and a run of each alone and on two processes."""

import json
import os
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.usefixtures("scripts")
def test_arguments_reach_the_trainer() -> None:
    import llm_decomposed_dpo
    import llm_residual_grpo

    common = ["--model", "m", "--data", "d", "--omega", "0.05", "--alpha", "0.1", "--bf16", "false", "--use_cpu"]
    script, settings = llm_decomposed_dpo.parse([*common, "--lora_rank", "8", "--precompute_ref_log_probs"])
    assert (script.model, script.lora_rank) == ("m", 8)
    assert (settings.omega, settings.alpha, settings.precompute_ref_log_probs) == (0.05, 0.1, True)
    online, more = llm_residual_grpo.parse(
        [*common, "--gamma", "0.99", "--returns", "onward", "--vllm_mode", "colocate", "--reward", "a:b"]
    )
    assert (more.omega, more.alpha, more.gamma, more.vllm_mode) == (0.05, 0.1, 0.99, "colocate")
    assert online.reward == "a:b"


@pytest.mark.usefixtures("scripts")
def test_the_reward_to_try_the_script_with() -> None:
    from llm_residual_grpo import brevity

    assert brevity(completions=["", "x" * 200, [{"role": "assistant", "content": "x" * 400}]]) == [1.0, 0.5, 0.25]


@pytest.mark.usefixtures("scripts")
def test_two_processes_take_the_same_step(prior: Path, tmp_path: Path) -> None:
    """One step of four rows: all in one process, or two in each of two, with a group of responses across both."""
    data = tmp_path / "data.jsonl"
    rows = [("ee", "ab"), ("aeb", ""), ("e", "bbb"), ("ae", "a")]
    data.write_text("\n".join(json.dumps({"prompt": ".", "chosen": c, "rejected": r}) for c, r in rows))
    script = Path(__file__).with_name("one_step.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    meeting |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(tmp_path / "hf")}
    words = [str(prior), str(data)]
    command = [sys.executable, str(script), *words, str(tmp_path / "two"), "2"]
    ranks = []
    for rank in "01":
        place = {**os.environ, **meeting, "RANK": rank, "LOCAL_RANK": rank}
        with (tmp_path / f"said-{rank}").open("w") as errors:
            ranks.append(subprocess.Popen(command, env=place, stderr=errors))
    runpy.run_path(str(script))["main"](*words, str(tmp_path / "one"), "4")
    while None in (ends := [rank.poll() for rank in ranks]) and not any(ends):
        time.sleep(0.1)
    for rank in ranks:
        rank.kill()  # one that waits for another that has failed
    said = "".join((tmp_path / f"said-{rank}").read_text() for rank in "01")
    assert ends == [0, 0], said[-3000:]
    assert "find_unused_parameters" not in said
    before = load_file(prior / "model.safetensors")
    for kind in ("dpo", "fixed", "labels"):
        one, two = (load_file(tmp_path / name / kind / "model.safetensors") for name in ("one", "two"))
        assert max((one[key] - before[key]).abs().max() for key in one) > 1e-3
        for key in one:
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=0)
    one, two = (float((tmp_path / name / "labels" / "offset.txt").read_text()) for name in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-5)
    assert abs(one) > 1e-3
    assert (tmp_path / "two" / "grpo" / "model.safetensors").exists()
