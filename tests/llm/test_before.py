"""Before a run: pairs whose gradients would vanish, and one batch that changes nothing."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from tiny_language import PAIRS, Build, load, weights

from repolicy.errors import UsageError
from repolicy.llm.dpo import margins_warning
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import kl, residual

FEW = PAIRS[:2] * 4
ADAPTER = LoraConfig(r=2, target_modules=["q_proj"])


def test_margins_in_words() -> None:
    objective = residual(0.2, 0.1)
    log_ratio = torch.tensor([-50.0] * 3 + [1.0] * 7)
    said = margins_warning(objective, log_ratio)
    assert said.startswith("30% of the pairs")
    assert "omega between 0.02 and 0.18" in said
    assert margins_warning(residual(0.17, 0.1), log_ratio) is None
    assert margins_warning(kl(0.1), log_ratio) is None
    assert margins_warning(objective, torch.tensor([-50.0] * 2 + [1.0] * 8)) is None


def test_what_the_sentence_says_of_omega_holds() -> None:
    log_ratio = 2.0 ** torch.arange(8)
    said = margins_warning(residual(0.5, 0.2), log_ratio)
    assert said is not None
    for omega in map(float, re.findall(r"omega between ([\d.]+) and ([\d.]+)", said)[0]):
        assert margins_warning(residual(omega, 0.2), log_ratio) is None


def test_pairs_far_out_are_told_before_the_first_step(build: Build, prior: Path) -> None:
    model = load(prior)
    ratios = []
    for pair in PAIRS[:2]:
        ids = {side: [*("abe".index(x) + 1 for x in pair[side]), 0] for side in ("chosen", "rejected")}
        chosen, rejected = response_log_probs(model, [([0], ids["chosen"]), ([0], ids["rejected"])])
        ratios.append(abs(chosen - rejected))
    gap = 4 / min(ratios)
    with pytest.warns(UserWarning, match="100% of the pairs begin with a margin beyond 4"):
        build("dpo", residual(0.2 + 1.05 * gap, 0.2), train_dataset=FEW, max_steps=1).train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*of the pairs begin.*")
        build("dpo", residual(0.2 + 0.95 * 4 / max(ratios), 0.2), train_dataset=FEW, max_steps=1).train()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("dpo", {"gradient_accumulation_steps": 2}),
        ("dpo", {"bf16": True}),
        ("labels", {"gradient_accumulation_steps": 2}),
        ("labels", {"bf16": True}),
        ("q", {"peft_config": ADAPTER}),
        ("grpo", {"gradient_accumulation_steps": 2}),
        ("grpo", {"bf16": True, "budget": 1.0, "budget_samples": 16}),
    ],
)
def test_a_dry_run_is_what_the_first_step_logs_and_changes_nothing(
    build: Build, kind: str, more: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """However many batches a step is made of, and in bfloat16, too."""
    more |= {"per_device_train_batch_size": 4, "max_steps": 1, "logging_steps": 1, "logging_strategy": "steps"}
    dry, plain = (build(kind, **more) for _ in range(2))
    torch.manual_seed(5)
    found = dry.dry_run()
    printed = capsys.readouterr().out
    assert dry.dry_run() == found
    for trainer in (dry, plain):
        torch.manual_seed(5)
        trainer.train()
    assert torch.equal(weights(dry), weights(plain))
    logged = dry.state.log_history[0]
    logged["gradient_norm"] = logged.pop("grad_norm")
    shared = found.keys() & logged.keys()
    assert len(shared) > 5
    assert shared > {"loss", "gradient_norm"}
    assert ("residual/spent" in shared) == ("budget" in more)
    for name in shared:
        assert found[name] == pytest.approx(logged[name], rel=1e-5, abs=1e-6), name
        assert f"{name} " in printed


def test_a_dry_run_tells_the_gradient_without_the_scale_of_fp16(build: Build) -> None:
    plain, scaled = build("labels"), build("labels")
    scaled.accelerator.scaler = torch.amp.GradScaler("cpu")
    scaled.accelerator.scaler.scale(torch.zeros(1))  # which begins it
    assert scaled.accelerator.scaler.get_scale() == 65536
    assert scaled.dry_run() == pytest.approx(plain.dry_run(), rel=1e-5)


def test_a_dry_run_takes_no_more_memory_than_a_step(build: Build) -> None:
    ours, seen = build("dpo", max_steps=1, gradient_checkpointing=True), list[bool]()
    ours.model.model.register_forward_hook(lambda model, *_: seen.append(model.layers[0].gradient_checkpointing))
    ours.dry_run()
    assert seen == [True]
    assert not ours.model.model.layers[0].gradient_checkpointing
    ours.train()
    assert seen == [True, True]


def test_a_dry_run_under_deepspeed_is_refused(build: Build) -> None:
    ours = build("dpo")
    ours.is_deepspeed_enabled = True
    with pytest.raises(UsageError, match="DeepSpeed"):
        ours.dry_run()
