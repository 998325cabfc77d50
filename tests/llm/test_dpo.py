"""Decomposed-DPO against stock DPO, against the formula, and in every form that a reference can have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from repolicy.errors import UsageError
from repolicy.llm import DecomposedDPOConfig, DecomposedDPOTrainer
from repolicy.llm.losses import implicit_reward
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, greedy, kl, residual, soft

PAIRS = [
    {"prompt": ".", "chosen": chosen, "rejected": rejected}
    for chosen, rejected in [("ee", "ab"), ("aeb", ""), ("e", "bbb"), ("ae", "a"), ("eee", "aa"), ("be", "b")] * 4
]


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def trainer(prior: Path, settings: dict[str, Any]) -> Callable[..., Any]:
    def build(
        objective: Objective | None,
        kind: Any = DecomposedDPOTrainer,
        reference: bool = True,
        rows: Any = None,
        **more: Any,
    ) -> Any:
        config = DPOConfig if kind is DPOTrainer else DecomposedDPOConfig
        others = {name: more.pop(name) for name in ("peft_config", "model", "eval_dataset") if name in more}
        if objective is not None:
            others["objective"] = objective
        return kind(
            others.pop("model", None) or load(prior),
            load(prior) if reference else None,
            config(**{**settings, "per_device_train_batch_size": 4, **more}),
            train_dataset=Dataset.from_list(rows or PAIRS),
            processing_class=AutoTokenizer.from_pretrained(prior),
            **others,
        )

    return build


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def perturbed(folder: Path) -> Any:
    """A model that is not its reference, so that a wrong weight on either shows."""
    model = load(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def test_equal_weights_are_stock_dpo_to_the_bit(trainer: Callable[..., Any]) -> None:
    stock = trainer(None, DPOTrainer, beta=0.3, max_steps=20)
    ours = trainer(kl(0.3), max_steps=20)
    start = weights(stock)
    assert torch.equal(start, weights(ours))
    stock.train()
    ours.train()
    assert not torch.equal(start, weights(stock))
    assert torch.equal(weights(stock), weights(ours))


@pytest.mark.parametrize("objective", [residual(0.3, 0.2), residual(0.1, 0.5), greedy(0.4), kl(0.2)])
def test_loss_is_the_formula(trainer: Callable[..., Any], prior: Path, objective: Objective) -> None:
    """From text and two models to the loss, by another way than TRL's."""
    ours = trainer(objective, model=perturbed(prior))
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
    batch = ours.data_collator([ours.train_dataset[i] for i in range(4)])
    assert ours.compute_loss(ours.model, batch).item() == pytest.approx(expected.item(), abs=1e-6)


def test_settings_and_objective_say_the_same(trainer: Callable[..., Any], prior: Path) -> None:
    one = trainer(residual(0.3, 0.2), model=perturbed(prior))
    other = trainer(None, model=perturbed(prior), omega=0.3, alpha=0.2)
    batch = one.data_collator([one.train_dataset[i] for i in range(4)])
    assert torch.equal(one.compute_loss(one.model, batch), other.compute_loss(other.model, batch))


def test_precomputed_reference_serves_every_omega(trainer: Callable[..., Any], prior: Path) -> None:
    """The cache is made at one omega and used at another: it holds what the reference said, unscaled."""
    for objective in (residual(0.3, 0.2), residual(0.1, 0.2)):
        live = trainer(objective, model=perturbed(prior))
        stored = trainer(objective, model=perturbed(prior), precompute_ref_log_probs=True)
        batches = [each.data_collator([each.train_dataset[i] for i in range(4)]) for each in (live, stored)]
        losses = [
            each.compute_loss(each.model, batch).item() for each, batch in zip((live, stored), batches, strict=True)
        ]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_adapter_off_is_the_reference(trainer: Callable[..., Any]) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    ours = trainer(residual(0.3, 0.2), reference=False, peft_config=adapter)
    same = trainer(residual(0.3, 0.2), reference=True, peft_config=adapter)
    batch = ours.data_collator([ours.train_dataset[i] for i in range(4)])
    assert torch.equal(ours.compute_loss(ours.model, batch), same.compute_loss(same.model, batch))
    frozen = {name: p.clone() for name, p in ours.model.named_parameters() if not p.requires_grad}
    ours.args.max_steps = 2
    ours.train()
    assert all(torch.equal(p, frozen[name]) for name, p in ours.model.named_parameters() if name in frozen)


def test_own_copy_of_the_reference(trainer: Callable[..., Any]) -> None:
    """TRL loads the reference from the model's path."""
    own, given = (trainer(residual(0.3, 0.2), reference=reference) for reference in (False, True))
    batch = own.data_collator([own.train_dataset[i] for i in range(4)])
    assert torch.equal(own.compute_loss(own.model, batch), given.compute_loss(given.model, batch))


def test_without_omega_another_dataset_is_evaluated_after_training(trainer: Callable[..., Any]) -> None:
    ours = trainer(greedy(0.4), reference=False, max_steps=1)
    ours.train()
    assert ours.evaluate(Dataset.from_list(PAIRS[:4]))["eval_loss"] > 0


class TestRefused:
    @pytest.mark.parametrize(
        ("objective", "more", "words"),
        [
            (residual(0.3, 0.0), {}, "alpha is 0.0"),
            (soft(0.2), {}, "reads a basic reward"),
            (Objective("addon", 0.1, 0.1, bonus=0.1), {}, "bonus is 0.1"),
            (residual(0.1, 0.1, states=0.5), {}, "states is 0.5, and a language model's trainer knows no price"),
            (None, {"omega": 0.1}, "sets no weight by itself: name omega and alpha"),
            (kl(0.1), {"alpha": 0.1}, "one or the other"),
            (kl(0.1), {"f_divergence_type": "js_divergence"}, "must be 'reverse_kl'"),
            (kl(0.1), {"loss_type": "ipo"}, "no decomposed form"),
            (kl(0.1), {"rows": [{"prompt": ".", "chosen": "e"}]}, "no column rejected"),
        ],
    )
    def test_bad_input(
        self, trainer: Callable[..., Any], objective: Objective | None, more: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UsageError, match=words):
            trainer(objective, **more)

    def test_model_without_a_path(self, trainer: Callable[..., Any], toy: Any) -> None:
        from experiments.llm.toy import new_model

        with pytest.raises(UsageError, match="built in memory"):
            trainer(kl(0.1), model=new_model(toy.letters, toy.length, 32, 1), reference=False)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from repolicy.llm import requirements

    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"this needs trl and peft and datasets, .* 'repolicy\[llm\]'"):
        requirements.require_trl()


@pytest.mark.parametrize("found", ["1.15.2", "1.17.0", "2.0.0"])
def test_other_versions_of_trl_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    from repolicy.llm import requirements

    monkeypatch.setattr(requirements, "version", lambda _: found)
    with pytest.raises(UsageError, match=f"TRL {found} is installed"):
        requirements.require_trl()
