"""Decomposed-DPO against stock DPO, against the formula, and in every form that a reference can have."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from tiny_language import PAIRS, Build, apart, first, load, weights
from torch.nn.functional import logsigmoid
from transformers import AutoTokenizer

from repolicy import llm
from repolicy.errors import UsageError
from repolicy.llm.dpo import COVERED_LOSSES
from repolicy.llm.losses import implicit_reward
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, greedy, kl, residual

STALE = {"ref_chosen_logps": -100.0, "ref_rejected_logps": 0.0}


@pytest.mark.parametrize("loss", COVERED_LOSSES)
def test_equal_weights_are_stock_dpo_to_the_bit(build: Build, loss: str) -> None:
    more = {"max_steps": 2, "loss_type": loss, "label_smoothing": 0.1 if loss in ("robust", "exo_pair") else 0.0}
    stock = build("stock dpo", None, beta=0.3, **more)
    ours = build("dpo", kl(0.3), **more)
    start = weights(stock)
    assert torch.equal(start, weights(ours))
    stock.train()
    ours.train()
    assert not torch.equal(start, weights(stock))
    assert torch.equal(weights(stock), weights(ours))


@pytest.mark.parametrize("objective", [residual(0.3, 0.2), greedy(0.4)])
def test_loss_is_the_formula(build: Build, prior: Path, objective: Objective) -> None:
    """From text and two models to the loss, by another way than TRL's."""
    ours = build("dpo", objective, **apart(prior))
    tokenizer = AutoTokenizer.from_pretrained(prior)
    rows = {
        side: [(tokenizer("."), tokenizer(pair[side] + ".")) for pair in PAIRS[:4]] for side in ("chosen", "rejected")
    }
    scored = {
        (who, side): torch.tensor(
            response_log_probs(model, [(p["input_ids"], r["input_ids"]) for p, r in rows[side]]), dtype=torch.float64
        )
        for who, model in (("policy", ours.model), ("prior", load(prior)))
        for side in rows
    }
    chosen, rejected = (implicit_reward(objective, scored["policy", side], scored["prior", side]) for side in rows)
    expected = -logsigmoid(chosen - rejected).mean()
    batch = first(ours, 4)
    assert ours.compute_loss(ours.model, batch).item() == pytest.approx(expected.item(), abs=1e-6)


def test_with_another_objective_beside_it_the_dial_is_not_exact(build: Build) -> None:
    with pytest.warns(UserWarning, match="'sft' beside another is a second objective"):
        build("dpo", loss_type=["sigmoid", "sft"])


def test_precomputed_reference_serves_every_omega(build: Build, prior: Path) -> None:
    """The cache is made at one omega and used at another: it holds what the reference said, unscaled."""
    live = build("dpo", **apart(prior))
    stored = build("dpo", **apart(prior), precompute_ref_log_probs=True)
    for objective in (residual(0.3, 0.2), residual(0.1, 0.2)):
        live.objective = stored.objective = objective
        losses = [each.compute_loss(each.model, first(each, 4)).item() for each in (live, stored)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_columns_that_a_dataset_carries_are_no_reference(build: Build, prior: Path) -> None:
    """As of another model's cache: TRL, too, reads them only where the settings say so."""
    plain = build("dpo", **apart(prior))
    stale = build("dpo", **apart(prior), train_dataset=[pair | STALE for pair in PAIRS])
    batches = [first(each, 4) for each in (plain, stale)]
    assert {*STALE} <= batches[1].keys()
    losses = [each.compute_loss(each.model, batch) for each, batch in zip((plain, stale), batches, strict=True)]
    assert torch.equal(*losses)


def test_adapter_off_is_the_reference(build: Build, prior: Path) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    ours = build("dpo", peft_config=adapter)
    same = build("dpo", ref_model=load(prior), peft_config=adapter)
    batch = first(ours, 4)
    assert torch.equal(ours.compute_loss(ours.model, batch), same.compute_loss(same.model, batch))


@pytest.mark.parametrize("found", ["1.15.2", "1.17.0"])
def test_other_versions_of_trl_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: found)
    with pytest.raises(UsageError, match=f"trl {found} is installed"):
        llm.require_trl()
