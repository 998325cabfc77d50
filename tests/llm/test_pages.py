"""The pages about language models and the example scripts: every snippet and command is run, or understood."""

import importlib
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="the extra `llm` is not installed")

import json
import runpy
import socket

from pages import snippets
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from experiments.llm import toy
from experiments.llm.__main__ import PROGRAMS
from experiments.llm.__main__ import main as experiment
from repolicy.cli import main as cli
from repolicy.cli.group_commands import LLM
from repolicy.cli.options import parse
from repolicy.errors import UsageError
from repolicy.llm.losses import token_rewards
from repolicy.objective import residual

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*llm.md"))


def command_lines() -> list[str]:
    lines = [line.strip() for page in PAGES for line in page.read_text().splitlines() if line.startswith("    ")]
    return sorted({line for line in lines if line.startswith(("repolicy", "python"))})


@pytest.fixture
def folder(prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader stands, with models of those names."""
    for name in ("my-model", "runs/low", "runs/high"):
        shutil.copytree(prior, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")  # of a machine without a GPU
def test_snippets_run(folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "snippet"}
    for snippet in snippets("llm.md"):
        if not snippet.startswith(("from verl", "from openrlhf")):  # whose test is its own
            exec(snippet, names)
    assert (folder / "tuned" / "repolicy.json").exists()
    assert names["text"].shape[0] == 1
    assert names["trainer"].args.output_dir == "out-budget"


def test_the_commands_run_with_the_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that name it, as they stand there, with two steps; from its making to the page of its evaluation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])  # where Python puts a script's own folder
    pretrain = toy.pretrain
    monkeypatch.setattr(toy, "pretrain", lambda *given: pretrain(*given[:2], steps=20))
    lines = [line for line in (ROOT / "docs/llm.md").read_text().splitlines() if line.startswith("    ")]
    lines = [line.strip() for line in lines if "my-model" in line or line.endswith("experiments.llm tiny")]
    for line in [line for line in lines if line.startswith(("python", "repolicy"))]:
        words = shlex.split(line)
        if words[0] == "repolicy":
            cli.main(words[1:])
        elif words[1] == "-m":
            experiment(words[3:])
        else:
            few = "--max_steps 2 --use_cpu --bf16 false --report_to none --per_device_train_batch_size 8"
            importlib.import_module(Path(words[1]).stem).main([*words[2:], *few.split()])
    assert "evaluation.html" in {file.name for file in tmp_path.iterdir()}
    assert len(capsys.readouterr().out.splitlines()) >= 4


@pytest.mark.parametrize("name", ["llm_decomposed_dpo", "llm_residual_grpo"])
def test_the_examples_train_weights_in_float32_and_resume(
    name: str, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model in bfloat16, which would round small steps away."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    model, rows, run = (tmp_path / part for part in ("model", "rows.jsonl", "run"))
    shutil.copytree(prior, model)
    AutoModelForCausalLM.from_pretrained(prior).to(torch.bfloat16).save_pretrained(model)
    rows.write_text((json.dumps({"prompt": ".", "chosen": "a", "rejected": "b"}) + "\n") * 32)
    words = f"--model {model} --data {rows} --output_dir {run} --alpha 0.2 --max_steps 1 --save_steps 1 --use_cpu"
    words += " --bf16 false --report_to none --per_device_train_batch_size 8 --omega"
    main = importlib.import_module(name).main
    main([*words.split(), "0.3"])
    before, after = (load_file(folder / "model.safetensors") for folder in (model, run))
    moved = torch.cat([(after[each].float() != before[each].float()).flatten() for each in before])
    assert moved.double().mean() > 0.9
    with pytest.raises(UsageError, match=r"trained with omega 0\.3, and this run has 0\.4"):
        main([*words.split(), "0.4", "--resume_from_checkpoint", str(run / "checkpoint-1")])


@pytest.mark.parametrize("name", ["llm_decomposed_dpo", "llm_residual_grpo"])
def test_a_script_says_in_a_sentence_what_is_wrong(
    name: str, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelled file is not looked for on the hub; a misspelled option is the parser's, with its exit code."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": ".", "chosen": "e", "rejected": "b"}))
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    for model, data, sentence in (
        (prior, "promts.jsonl", "Unable to find .*promts.jsonl"),
        (prior, rows, "name omega and alpha"),
        ("missing", rows, "couldn't find them in the cached files"),
    ):
        words = ["--model", str(model), "--data", str(data), "--output_dir", "run"]
        monkeypatch.setattr(sys, "argv", [name, *words])
        with pytest.raises(SystemExit, match=sentence):
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(name).parse([*words, "--omga", "0.3"])


@pytest.mark.parametrize("line", command_lines())
def test_commands_are_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    if words[:2] == ["repolicy", "llm"]:
        command = parse(LLM[words[2]], words[3:], "repolicy")
        assert command.prior
    elif words[:3] == ["python", "-m", "experiments.llm"]:
        assert words[3:] in ([name] for name in (*PROGRAMS, "tiny"))
    else:
        assert words[1].startswith("examples/")
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        script, settings = importlib.import_module(Path(words[1]).stem).parse(words[2:])
        assert script.model
        assert settings.omega is not None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("verl.trainer.ppo.core_algos", "kl_penalty"),
        ("openrlhf.trainer.ppo_utils.experience_maker", "compute_approx_kl"),
    ],
)
def test_elsewhere_it_is_the_same_reward(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules; then `score − alpha · what the replacement gives`, as both libraries do it."""
    parts = module.split(".")
    for i in range(len(parts)):
        stand_in = types.ModuleType(".".join(parts[: i + 1]))
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
        if i:
            setattr(sys.modules[".".join(parts[:i])], parts[i], stand_in)
    names: dict[str, Any] = {}
    [snippet] = [each for each in snippets("llm.md") if each.startswith(f"from {parts[0]}")]
    exec(snippet, names)
    replaced = getattr(sys.modules[module], name)
    log_policy, log_prior = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    penalty = replaced(
        log_policy, log_prior, **({"kl_penalty": "kl"} if parts[0] == "verl" else {"kl_estimator": "k1"})
    )
    scores = torch.zeros(3, 5)
    scores[:, -1] = torch.tensor([1.0, 0.0, 2.0])
    expected = token_rewards(
        residual(names["OMEGA"], names["ALPHA"]), scores[:, -1], log_policy, log_prior, torch.ones(3, 5)
    )
    torch.testing.assert_close(scores - names["ALPHA"] * penalty, expected)


FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}


@pytest.mark.parametrize("sharding", [{}, FSDP2], ids=["DDP", "FSDP2"])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.12
def test_two_processes_take_the_same_step(sharding: dict[str, str], prior: Path, tmp_path: Path) -> None:
    """One step of four rows: all in one process, or two in each of two, with a group of responses across both."""
    data = tmp_path / "data.jsonl"
    rows = [("ee", "ab"), ("aeb", ""), ("e", "bbb"), ("ae", "a")]
    data.write_text("\n".join(json.dumps({"prompt": ".", "chosen": c, "rejected": r}) for c, r in rows))
    called = runpy.run_path(str(Path(__file__).with_name("one_step.py")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"} | sharding
    words, said = [str(prior), str(data)], tmp_path / "said"
    ranks = called["fork"]([*words, str(tmp_path / "two"), "2"], meeting, said)
    try:
        called["main"](*words, str(tmp_path / "one"), "4")
    finally:
        well = called["ended"](ranks)
    assert well, said.read_text()[-3000:]
    assert "find_unused_parameters" not in said.read_text()
    before = load_file(prior / "model.safetensors")
    for kind in ("dpo", "fixed", "labels"):
        one, two = (load_file(tmp_path / name / kind / "model.safetensors") for name in ("one", "two"))
        assert max((one[key] - before[key]).abs().max() for key in one) > 1e-3
        for key in one:
            torch.testing.assert_close(one[key], two[key], atol=1e-5, rtol=0)
    one, two = (float((tmp_path / name / "labels" / "offset.txt").read_text()) for name in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-5)
    assert abs(one) > 1e-3
    alone, first, second = (
        json.loads((tmp_path / f).read_text()) for f in ("one/dry-0.json", "two/dry-0.json", "two/dry-1.json")
    )
    assert alone["metrics"] == pytest.approx(first["metrics"], abs=1e-4)
    assert first["metrics"] == second["metrics"]
    assert "gradient_norm" in first["printed"]
    assert not second["printed"]
    assert (tmp_path / "two" / "grpo" / "model.safetensors").exists()
