"""Q-Adapter: its loss in TRL's loop, and the policy that generation really samples."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig
from tiny_language import PAIRS, REWARD, Build, first, load, weights
from torch.nn.functional import logsigmoid

from repolicy.errors import UsageError
from repolicy.llm import q_adapter_policy
from repolicy.llm.losses import implicit_reward, q_adapter_log_probs
from repolicy.llm.mixing import sample
from repolicy.llm.models import evaluate, generate
from repolicy.objective import residual

OBJECTIVE = residual(0.3, 0.2)
VIRTUAL_TOKENS = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)


@pytest.fixture
def trainer(build: Build) -> Build:
    def made(random: bool = True, **more: Any) -> Any:
        adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=not random)
        return build("q", **{"objective": OBJECTIVE, "peft_config": adapter, "train_dataset": PAIRS[:2] * 4, **more})

    return made


def policy(model: Any, ids: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """log policy and log prior after every token of `ids`, from two plain forward passes."""
    more |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        on = model(**more).logits[:, -ids.shape[1] :]  # without the virtual tokens of prompt tuning
        with model.disable_adapter():
            off = model(**more).logits
    log_prior = off.log_softmax(-1)
    return q_adapter_log_probs(OBJECTIVE, on - off, log_prior), log_prior


@pytest.mark.parametrize(
    ("adapter", "more"),
    [({}, {}), ({"peft_config": VIRTUAL_TOKENS}, {}), ({}, {"position_ids": torch.tensor([[0, 4, 1, 7, 2]])})],
)
def test_without_chi_the_loss_is_decomposed_dpo(
    trainer: Build, adapter: dict[str, Any], more: dict[str, torch.Tensor]
) -> None:
    """Also with virtual tokens, and with what else a processor gives the model, such as images."""
    ours = trainer(chi=0.0, **adapter)
    batch = first(ours, 2)
    batch |= {name: values[:, : batch["input_ids"].shape[1]] for name, values in more.items()}
    sums = {}
    for side in ("chosen", "rejected"):
        for i, pair in enumerate(PAIRS[:2]):
            ids = torch.tensor([ours.processing_class("." + pair[side] + ".")["input_ids"]])
            tables = policy(ours.model, ids, **{name: values[:, : ids.shape[1]] for name, values in more.items()})
            sums[side, i] = [table[0, :-1].gather(-1, ids[0, 1:, None]).sum() for table in tables]
    rewards = {row: implicit_reward(OBJECTIVE, *parts) for row, parts in sums.items()}
    margins = torch.stack([rewards["chosen", i] - rewards["rejected", i] for i in range(2)])
    expected = -logsigmoid(margins).mean().item()
    assert ours.compute_loss(ours.model, batch).item() == pytest.approx(expected, abs=1e-5)


def test_a_step_is_the_same_however_it_is_cut(trainer: Build) -> None:
    """Also where pairs differ in length: a token's square counts the same in every micro-batch."""

    def step(rows: int, times: int) -> torch.Tensor:
        plain = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 1e9}
        cut = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": times}
        torch.manual_seed(1)
        ours = trainer(chi=1.0, max_steps=1, train_dataset=[PAIRS[2], PAIRS[4]] * 2, **cut, **plain)
        before = weights(ours)
        ours.train()
        return weights(ours) - before

    whole = step(4, 1)
    assert torch.linalg.vector_norm(step(1, 4) - whole) < 1e-3 * torch.linalg.vector_norm(whole)


def test_training_prefers_the_chosen_and_leaves_the_model_alone(trainer: Build) -> None:
    ours = trainer(random=False, max_steps=15, learning_rate=2e-2)
    batch = first(ours, 2)
    frozen = {name: p.clone() for name, p in ours.model.named_parameters() if not p.requires_grad}
    before = ours.compute_loss(ours.model, batch).item()
    ours.train()
    assert ours.compute_loss(ours.model, batch).item() < before - 0.05
    assert all(torch.equal(p, frozen[name]) for name, p in ours.model.named_parameters() if name in frozen)


def test_generation_follows_the_policy(trainer: Build) -> None:
    """Token by token, through `generate` with its cache and padded prompts, against two plain forward passes."""
    model = trainer().model.eval()
    ids, attention = torch.tensor([[0, 0, 3], [0, 1, 2]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    generated = q_adapter_policy(model, OBJECTIVE).generate(
        ids, attention, do_sample=False, max_new_tokens=3, min_new_tokens=3, pad_token_id=0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    for row, start in ((0, 1), (1, 0)):
        whole = generated.sequences[row : row + 1, start:]
        expected = policy(model, whole)[0][0, -4:-1]
        found = torch.stack([scores[row] for scores in generated.scores])
        # Without the end token, which min_new_tokens forbids.
        assert torch.allclose(found[:, 1:].log_softmax(-1), expected[:, 1:].log_softmax(-1), atol=1e-5)


def test_beams_that_change_places(trainer: Build) -> None:
    model = trainer().model.eval()
    processor = q_adapter_policy(model, OBJECTIVE)
    scores = model(input_ids=torch.tensor([[0, 1], [0, 2]])).logits[:, -1]
    processor(torch.tensor([[0, 1], [0, 2]]), scores)
    swapped = torch.tensor([[0, 2, 3], [0, 1, 3]])
    with torch.no_grad():
        found = processor(swapped, model(input_ids=swapped).logits[:, -1])
    assert torch.allclose(found, policy(model, swapped)[0][:, -1], atol=1e-5)


def test_its_logits_are_not_taken_for_a_policys(trainer: Build, prior: Path, tmp_path: Path) -> None:
    """On the command line it writes what its policy writes, at its omega and, as Q_R stays, at another."""
    folder, prompts = str(tmp_path / "q"), tmp_path / "prompts.jsonl"
    ours = trainer()
    ours.save_model(folder)
    prompts.write_text('{"prompt": "."}\n')
    for omega in (0.3, 0.8):
        found = generate([folder], str(prior), ["."], omega=omega, count=32, tokens=4)
        torch.manual_seed(0)
        generator = q_adapter_policy(ours.model.eval(), residual(omega, OBJECTIVE.alpha))
        responses = sample(generator, ours.processing_class, [[0]] * 32, 4)
        expected = [ours.processing_class.decode(response, skip_special_tokens=True) for response in responses]
        assert [each["text"] for each in found] == expected
    with pytest.raises(UsageError, match="is a Q-adapter"):
        evaluate([folder], str(prior), prompts, REWARD)


def test_a_policy_needs_an_adapter(prior: Path) -> None:
    with pytest.raises(UsageError, match="PEFT model"):
        q_adapter_policy(load(prior), OBJECTIVE)
