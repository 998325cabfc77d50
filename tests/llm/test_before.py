"""Before a run: pairs whose gradients would vanish, and one batch that changes nothing."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from tiny_language import PAIRS, load, weights

from repolicy.errors import UsageError
from repolicy.llm.dpo import margins_warning
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import kl, residual

FEW = PAIRS[:2] * 4
ADAPTER = LoraConfig(r=2, target_modules=["q_proj"])
BUDGET = {"budget": 1.0, "budget_samples": 16}


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


def test_pairs_far_out_are_told_before_the_first_step(build: Callable[..., Any], prior: Path) -> None:
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
    ("kind", "more"), [("dpo", {}), ("labels", {}), ("q", {"peft_config": ADAPTER}), ("grpo", BUDGET)]
)
def test_a_dry_run_changes_nothing(
    build: Callable[..., Any], kind: str, more: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    more |= {"per_device_train_batch_size": 4, "max_steps": 1}
    dry, plain = (build(kind, **more) for _ in range(2))
    found = dry.dry_run()
    assert found["gradient_norm"] > 0
    printed = capsys.readouterr().out
    assert dry.dry_run() == found
    for name in ("loss", "gradient_norm", {"grpo": "residual/addon", "labels": "prior_logps/chosen"}.get(
        kind, "rewards/chosen")):  # fmt: skip
        assert f"{name} " in printed
    assert ("residual/spent" in found) == ("budget" in more)
    torch.manual_seed(5)
    dry.train()
    torch.manual_seed(5)
    plain.train()
    assert torch.equal(weights(dry), weights(plain))


@pytest.mark.parametrize("kind", ["dpo", "labels", "grpo"])
@pytest.mark.parametrize(("batches", "how"), [(1, {}), (2, {}), (1, {"bf16": True})])
def test_a_dry_run_is_what_the_first_step_logs(
    build: Callable[..., Any], kind: str, batches: int, how: dict[str, Any]
) -> None:
    """However many batches a step is made of, and in bfloat16, too."""
    more = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": batches, "max_steps": 1, **how}
    ours = build(kind, **more, logging_steps=1, logging_strategy="steps")
    torch.manual_seed(5)
    found = ours.dry_run()
    torch.manual_seed(5)
    ours.train()
    logged = ours.state.log_history[0]
    assert found["gradient_norm"] == pytest.approx(logged["grad_norm"], rel=1e-5)
    assert found["loss"] == pytest.approx(logged["loss"], rel=1e-5, abs=1e-6)
    shared = found.keys() & logged.keys() - {"loss"}
    assert len(shared) > 5
    for name in shared:
        assert found[name] == pytest.approx(logged[name], rel=1e-5, abs=1e-6), name


def test_a_dry_run_tells_the_gradient_without_the_scale_of_fp16(build: Callable[..., Any]) -> None:
    plain, scaled = build("labels"), build("labels")
    scaled.accelerator.scaler = torch.amp.GradScaler("cpu")
    scaled.accelerator.scaler.scale(torch.zeros(1))  # which begins it
    assert scaled.accelerator.scaler.get_scale() == 65536
    assert scaled.dry_run() == pytest.approx(plain.dry_run(), rel=1e-5)


def test_a_dry_run_takes_no_more_memory_than_a_step(build: Callable[..., Any]) -> None:
    ours, seen = build("dpo", max_steps=1, gradient_checkpointing=True), list[bool]()
    ours.model.model.register_forward_hook(lambda model, *_: seen.append(model.layers[0].gradient_checkpointing))
    ours.dry_run()
    assert seen == [True]
    assert not ours.model.model.layers[0].gradient_checkpointing
    ours.train()
    assert seen == [True, True]


def test_a_dry_run_under_deepspeed_is_refused(build: Callable[..., Any]) -> None:
    ours = build("dpo")
    ours.is_deepspeed_enabled = True
    with pytest.raises(UsageError, match="DeepSpeed"):
        ours.dry_run()
