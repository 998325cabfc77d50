"""The toy's own numbers, without which no answer of it is known."""

import pytest
import torch

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from pathlib import Path

from experiments.llm import toy as toys
from experiments.llm.toy import Toy
from repolicy.objective import kl, residual


def test_every_response_is_listed_once() -> None:
    assert len(Toy().responses) == 19_531
    assert len(set(Toy().responses)) == 19_531


@pytest.mark.parametrize("fixed", [False, True])
def test_human_text_is_a_distribution(fixed: bool) -> None:
    toy = Toy(fixed=fixed)
    chances = toy.response_log_probs(toy.human).exp()
    assert chances.sum().item() == pytest.approx(1, abs=1e-9)
    assert chances[toy.lengths > toy.length].sum().item() < 1e-9
    if fixed:
        assert chances[toy.lengths == toy.length].sum().item() == pytest.approx(1, abs=1e-9)


def test_response_log_probs_by_hand() -> None:
    toy = Toy(letters="ae", length=1)
    table = torch.tensor([[[0.1, 0.6, 0.3], [0.5, 0.3, 0.2]], [[0.1, 0.6, 0.3], [0.4, 0.4, 0.2]]]).double().log()
    chances = dict(zip(toy.responses, toy.response_log_probs(table).exp().tolist(), strict=True))
    assert chances == pytest.approx({"": 0.1, "a": 0.3, "e": 0.12, "aa": 0.18, "ae": 0.12, "ea": 0.12, "ee": 0.06})


def test_next_tokens_of_any_policy(toy: Toy) -> None:
    log_probs = torch.randn(len(toy.responses), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_probs = log_probs.log_softmax(0)
    assert torch.allclose(toy.response_log_probs(toys.next_token(toy, log_probs)), log_probs)
    human = toys.next_token(toy, toy.response_log_probs(toy.human))
    assert torch.allclose(human.exp(), toy.human.exp(), atol=1e-9)


def test_no_policy_is_better_than_the_optimum(toy: Toy) -> None:
    generator = torch.Generator().manual_seed(0)
    objective, prior = residual(0.1, 0.2), toy.response_log_probs(toy.human)
    best = toys.optimum(objective, prior, toy.rewards)
    at_best = toys.measure(toy, objective, best, prior)
    assert at_best.kl == pytest.approx(0, abs=1e-12)
    for _ in range(5):
        other = (best + 0.1 * torch.randn(len(best), generator=generator, dtype=torch.float64)).log_softmax(-1)
        measures = toys.measure(toy, objective, other, prior)
        assert measures.kl > 0
        assert at_best.objective - measures.objective == pytest.approx(0.2 * measures.kl, rel=1e-9)


def test_with_equal_weights_the_optimum_is_the_prior_reweighted(toy: Toy) -> None:
    prior = toy.response_log_probs(toy.human)
    assert torch.allclose(toys.optimum(kl(0.5), prior, toy.rewards), (prior + toy.rewards / 0.5).log_softmax(-1))


def test_prior_speaks_the_language(toy: Toy, prior: Path) -> None:
    from transformers import AutoModelForCausalLM

    log_probs = toys.policy_log_probs(toy, AutoModelForCausalLM.from_pretrained(prior))
    human = toy.response_log_probs(toy.human)
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-6)
    assert float((human.exp() * (human - log_probs)).sum()) < 0.02


def test_letters_and_tokens_agree(toy: Toy, prior: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prior)
    assert tokenizer(".abe.")["input_ids"] == [0, 1, 2, 3, 0]
    assert tokenizer.decode([1, 3, 3, 0], skip_special_tokens=True) == "aee"


def test_judge_prefers_what_is_rewarded(toy: Toy) -> None:
    pairs = toys.labelled_pairs(["ee"] * 2000, ["a"] * 2000, seed=0)
    share = sum(pair["chosen"] == "ee" for pair in pairs) / 2000
    assert share == pytest.approx(1 / (1 + 2.718281828**-1), abs=0.03)
    good = sum(row["label"] for row in toys.labelled_responses(["ee"] * 2000, seed=0)) / 2000
    assert good == pytest.approx(1 / (1 + 2.718281828**-0.5), abs=0.03)
