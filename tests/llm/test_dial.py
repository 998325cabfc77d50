"""The dial while text is generated: exact where the mixture is, and the same through caches, padding and adapters."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_language import load, perturbed
from transformers import AutoTokenizer, MambaConfig, MambaForCausalLM

from experiments.llm.toy import Toy, measure, optimum
from repolicy.errors import UsageError
from repolicy.llm import dial
from repolicy.llm.mixing import SAMPLING, mixed_log_probs, mixture, model_view, sample
from repolicy.objective import Objective, residual, soft

ANCHORS = residual(0.1, 0.2), residual(0.4, 0.2)


@pytest.mark.parametrize("target", [residual(0.25, 0.2), residual(0.3, 0.5), residual(0.1, 0.2)])
@pytest.mark.parametrize("anchors", [ANCHORS, ANCHORS[:1], (residual(0.1, 0.3), residual(0.4, 0.2))])
def test_of_exact_policies_the_mixture_is_the_optimum(
    toy: Toy, target: Objective, anchors: tuple[Objective, ...]
) -> None:
    """Response by response the coefficients are exact, whatever the anchors."""
    log_prior = toy.response_log_probs(toy.human)
    policies = [optimum(anchor, log_prior, toy.rewards) for anchor in anchors]
    found = mixed_log_probs(mixture(anchors, target.omega, target.alpha), [log_prior, *policies])
    assert measure(toy, target, found, log_prior).kl == pytest.approx(0, abs=1e-9)


def followed(found: Any, one: Any, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of what was generated, without its padding, and the scores that each new token was drawn from."""
    return found.sequences[one : one + 1, start:], torch.stack([scores[one] for scores in found.scores])


def new_mamba() -> Any:
    """Return a small model that has a state in place of a key-value cache."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 4, "hidden_size": 8, "state_size": 2, "num_hidden_layers": 1}
    return MambaForCausalLM(MambaConfig(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)).eval()


@pytest.mark.parametrize(("count", "mamba"), [(1, False), (2, False), (1, True)])
def test_generation_follows_the_mixture(prior: Path, count: int, mamba: bool) -> None:
    """With caches and padded prompts, against plain forward passes of whole texts."""
    reference = new_mamba() if mamba else load(prior)
    models = [perturbed(copy.deepcopy(reference), 0.1, seed) for seed in range(count)]
    anchors = ANCHORS[:count]
    ids, attention = torch.tensor([[0, 0, 3], [0, 1, 2]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    found = dial(reference, *zip(models, anchors, strict=True), omega=0.25).generate(
        ids, attention, max_new_tokens=4, eos_token_id=-1, pad_token_id=0, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    for row, start in ((0, 1), (1, 0)):
        whole, scores = followed(found, row, start)
        with torch.no_grad():
            each = [model(input_ids=whole).logits[0, -5:-1].log_softmax(-1) for model in (reference, *models)]
        assert torch.allclose(scores, mixed_log_probs(mixture(anchors, 0.25), each), atol=1e-4)


def test_models_of_other_tokens_are_not_mixed() -> None:
    with pytest.raises(UsageError, match=r"vocabularies of \[4, 5\] tokens"):
        mixed_log_probs([1.0, 1.0], [torch.zeros(1, 4), torch.zeros(1, 5)])


def test_the_prior_is_not_asked_between_two_models(prior: Path) -> None:
    ids = torch.tensor([[0, 1]])
    models = [(perturbed(load(prior), 0.1, seed), anchor) for seed, anchor in enumerate(ANCHORS)]
    found = dial(None, *models, omega=0.2).generate(ids, max_new_tokens=2, pad_token_id=0)
    assert found.shape[0] == 1


def test_adapters_are_models(prior: Path) -> None:
    """Adapter off is the prior; adapters, by name, are the tuned models; and the active one stays active."""
    adapter = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    model = get_peft_model(load(prior), adapter, adapter_name="one")
    model.add_adapter("two", adapter)
    model.eval()
    ids = torch.tensor([[0, 1, 2]])
    found = dial(model, ("two", ANCHORS[0]), omega=0.3).generate(
        ids, max_new_tokens=3, eos_token_id=-1, pad_token_id=0, output_scores=True, return_dict_in_generate=True
    )
    assert model.active_adapter == "one"
    whole, scores = followed(found, 0, 0)
    with torch.no_grad():
        model.set_adapter("two")
        tuned = model(input_ids=whole).logits[0, -4:-1].log_softmax(-1)
        with model.disable_adapter():
            reference = model(input_ids=whole).logits[0, -4:-1].log_softmax(-1)
    expected = mixed_log_probs(mixture(ANCHORS[:1], 0.3), [reference, tuned])
    assert torch.allclose(scores, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*(PEFT for a second time|`peft_config` attribute).*:UserWarning")
def test_off_is_the_adapter_that_training_went_on_from(prior: Path, tmp_path: Path) -> None:
    """TRL keeps a copy of it, named ref. Where transformers has taken it into the model, it cannot be told apart."""
    adapter = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    model = get_peft_model(load(prior), adapter).eval()
    model.add_adapter("ref", adapter)
    model.set_adapter("ref")
    ids = torch.tensor([[0, 1, 2]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits[:, -1]
    model.set_adapter("default")
    assert torch.allclose(model_view(model, None).logits(ids, None), expected, atol=1e-6)
    model.save_pretrained(tmp_path)
    within = get_peft_model(load(tmp_path), adapter, adapter_name="tuned")
    with pytest.raises(UsageError, match="came from an adapter's folder, so adapters off would change it"):
        dial(within, ("tuned", ANCHORS[0]), omega=0.3)


def test_samples_are_the_models_own_whatever_its_generation_config_says(toy: Toy, prior: Path) -> None:
    model, tokenizer = load(prior), AutoTokenizer.from_pretrained(prior)

    def written() -> list[list[int]]:
        torch.manual_seed(0)
        return sample(model, tokenizer, [[0]] * 64, toy.length, **SAMPLING)

    plain = written()
    model.generation_config.top_k = 1
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.num_beams = 3
    assert written() == plain


def test_a_token_that_one_model_cannot_write() -> None:
    one = torch.tensor([0.5, 0.5, 0.0]).log()
    other = torch.tensor([0.2, 0.3, 0.5]).log()
    assert mixed_log_probs([-1.0, 2.0], [one, other])[2] == -torch.inf
    assert mixed_log_probs([0.0, 1.0], [one, other])[:2].isfinite().all()


@pytest.mark.parametrize(
    ("tuned", "omega", "words"),
    [
        ((), 0.1, "one or two tuned models"),
        ((("a", residual(0.1, 0.1)),), 0.1, "'a' is the name of an adapter"),
        ((("a", residual(0.1, 0.1)), ("b", residual(0.1, 0.2))), 0.1, "omega must differ"),
        ((("a", residual(0.1, 0.0)),), 0.1, "alpha is 0"),
        ((("a", residual(0.1, 0.2, states=0.5)),), 0.1, "states is 0.5, and the dial knows no price"),
        ((("a", soft(0.2)),), 0.1, "objectives with a prior"),
        ((("a", residual(0.1, 0.2)),), "auto", "the dial sets no weight by itself: name omega and alpha"),
    ],
)
def test_refused(tuned: Any, omega: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dial(None, *tuned, omega=omega)


def test_an_adapter_that_is_not_there_is_named(prior: Path) -> None:
    model = get_peft_model(load(prior), LoraConfig(target_modules=["q_proj"]), adapter_name="one")
    with pytest.raises(UsageError, match="has no adapter 'two'; it has one"):
        dial(model, ("two", ANCHORS[0]), omega=0.3)


def test_beyond_the_anchors_there_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="not between"):
        mixture(ANCHORS, 0.5)
