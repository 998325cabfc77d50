"""Cross-Entropy-DPO: the formula, the offset, labels and pairs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_language import LABELLED, Build, apart, first, load
from transformers import AutoTokenizer

from repolicy.errors import UsageError
from repolicy.llm.losses import cross_entropy_dpo_loss
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, greedy, kl, residual


@pytest.fixture
def trainer(build: Build, prior: Path) -> Build:
    """What makes a trainer whose policy is not its prior."""

    def made(objective: Objective, **more: Any) -> Any:
        return build("labels", objective, **{"per_device_train_batch_size": 6, **apart(prior), **more})

    return made


@pytest.mark.parametrize("objective", [residual(0.3, 0.2), greedy(0.2)])
def test_loss_is_the_formula(trainer: Build, prior: Path, objective: Objective) -> None:
    ours = trainer(objective)
    ours.memory.values["offset"] = 0.7
    ours.args.offset_rate = 1e-12
    tokenizer = AutoTokenizer.from_pretrained(prior)
    rows = [([0], tokenizer(row["completion"] + ".")["input_ids"]) for row in LABELLED[:6]]
    policy, reference = (
        torch.tensor(response_log_probs(model, rows), dtype=torch.float64) for model in (ours.model, load(prior))
    )
    label = torch.tensor([row["label"] for row in LABELLED[:6]])
    expected = cross_entropy_dpo_loss(objective, policy, reference, label, 0.7).mean().item()
    assert ours.compute_loss(ours.model, first(ours, 6)).item() == pytest.approx(expected, abs=1e-6)


def test_the_tokens_of_training_are_counted(trainer: Build) -> None:
    ours = trainer(residual(0.3, 0.2))
    batch = first(ours, 6)
    for is_training in (True, False, True):
        ours.model.train(is_training)
        ours.compute_loss(ours.model, batch)
    assert ours._metrics["train"]["num_tokens"] == [2 * int(batch["attention_mask"].sum())]


def test_precomputed_reference_and_adapter(trainer: Build) -> None:
    live, stored = trainer(residual(0.3, 0.2)), trainer(residual(0.3, 0.2), precompute_ref_log_probs=True)
    losses = [each.compute_loss(each.model, first(each, 6)).item() for each in (live, stored)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    base = trainer(residual(0.3, 0.2), ref_model=None, peft_config=adapter)
    batch = first(base, 6)
    assert torch.allclose(base._log_policy(base.model, batch)[0], base.log_prior(base.model, batch)[0], atol=1e-6)


def test_the_margin_is_logged_as_of_pairs(trainer: Build) -> None:
    logged = trainer(residual(0.3, 0.2)).dry_run()
    expected = logged["rewards/chosen"] - logged["rewards/rejected"]
    assert logged["rewards/margins"] == pytest.approx(expected, abs=1e-6)


def test_offset_finds_the_balance(trainer: Build) -> None:
    """With a policy that hardly moves, the offset goes where good responses are as frequent as the loss expects."""
    ours = trainer(
        residual(0.2, 0.2), learning_rate=1e-9, max_steps=20, offset_rate=0.5, per_device_train_batch_size=24
    )
    ours.train()
    batch = first(ours, len(LABELLED))
    reward = 0.2 * (ours._log_policy(ours.model, batch)[0] - ours.log_prior(ours.model, batch)[0]).detach()
    assert torch.sigmoid(reward + ours.offset).mean().item() == pytest.approx(0.5, abs=1e-3)
    assert ours.state.stateful_callbacks["Remembered"]["args"]["values"]["offset"] == ours.offset


def test_the_offset_moves_by_no_more_than_a_flat_loss_allows(trainer: Build) -> None:
    """Good responses that are all taken for bad tell the way and no length: a curvature of 0.05 each is assumed."""
    ours = trainer(residual(0.2, 0.2), offset_rate=0.1)
    ours._move_offset(torch.ones(6), torch.full((6,), -50.0))
    assert ours.offset == pytest.approx(0.1 / 0.05)


def test_the_best_weights_come_back_with_their_offset(build: Build) -> None:
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_rewards/margins", "greater_is_better": False}
    rows = Dataset.from_list(LABELLED[:6])
    ours = build("labels", residual(0.3, 0.2), eval_dataset=rows, offset_rate=1.0, **often, **best)
    ours.train()
    assert ours.state.best_global_step < 3
    found = [row["eval_offset"] for row in ours.state.log_history if "eval_offset" in row]
    assert ours.offset == found[ours.state.best_global_step - 1] != found[-1]
    ours.state.best_model_checkpoint = "moved"  # transformers then warns, and keeps the last weights
    ours.memory.values["offset"] = 0.5
    ours.memory.on_train_end(ours.args, ours.state, ours.control)
    assert ours.offset == 0.5


def test_nothing_is_recommended_that_is_refused(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in LABELLED if row["label"]] + LABELLED[:4]
    build("labels", residual(0.3, 0.2), train_dataset=rows)
    assert "desirable_weight" not in capsys.readouterr().err


def test_no_offset_stays_zero(trainer: Build) -> None:
    ours = trainer(residual(0.2, 0.2), offset=False, max_steps=1)
    ours.train()
    assert ours.offset == 0


def test_metrics_of_ones_own_get_logits(trainer: Build, prior: Path) -> None:
    def width(prediction: Any) -> dict[str, float]:
        return {"width": prediction.predictions.shape[-1]}

    ours = trainer(residual(0.3, 0.2), eval_dataset=Dataset.from_list(LABELLED[:6]))
    ours.compute_metrics = width
    assert ours.evaluate()["eval_width"] == load(prior).config.vocab_size


def test_pairs_become_labels(trainer: Build) -> None:
    pairs = [{"prompt": ".", "chosen": "ee", "rejected": "ab"}, {"prompt": ".", "chosen": "e", "rejected": "a"}]
    ours = trainer(residual(0.3, 0.2), train_dataset=pairs)
    assert sorted(zip(ours.train_dataset["completion"], ours.train_dataset["label"], strict=True)) == [
        ("a.", False),
        ("ab.", False),
        ("e.", True),
        ("ee.", True),
    ]


def test_rows_come_in_random_order(trainer: Build) -> None:
    """Good first and bad after would be one label a batch."""
    from torch.utils.data import RandomSampler

    assert isinstance(trainer(kl(0.1))._get_train_sampler(), RandomSampler)


def test_each_label_of_a_stream_is_checked(trainer: Build) -> None:
    rows = Dataset.from_list([row | {"label": 2 if i == 5 else 1} for i, row in enumerate(LABELLED)])
    with pytest.raises(UsageError, match="a label is 2"):
        trainer(residual(0.3, 0.2), train_dataset=rows.to_iterable_dataset(), max_steps=1).train()
