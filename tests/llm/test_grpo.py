"""Online: advantages equal to the pure function, the optimum reached, RLOO's recipe, and what is refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_language import ONLINE, PROMPTS, Build, addon, load, log_probs, perturbed, weights, written
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from trl import RLOOConfig, RLOOTrainer
from trl.trainer.grpo_trainer import split_tensor_dict

from experiments.llm.toy import Toy, measure, policy_log_probs
from repolicy.errors import NumericError, UsageError
from repolicy.llm import dial, losses, prior_reward, rloo_settings
from repolicy.llm.budget import move_omega
from repolicy.llm.grpo import COMMON_DIVISOR_LOSSES
from repolicy.llm.mixing import SAMPLING, sample
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, greedy, kl, residual


def scored(trainer: Any, rows: int = 8) -> dict[str, Any]:
    """A generation batch, with its advantages."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    output: dict[str, Any] = trainer._generate_and_score_completions([{"prompt": "."}] * rows)
    return output


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        (residual(0.3, 0.2), {}),
        (residual(0.3, 0.2), {"returns": "onward", "gamma": 0.9}),
        (greedy(0.2), {}),
        (residual(0.3, 0.2), {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
        (residual(0.3, 0.2), {"num_iterations": 2}),
        (residual(0.3, 0.2), {"prior_share": 0.5}),
    ],
)
def test_advantages_are_the_pure_function(
    build: Build, prior: Path, objective: Objective, more: dict[str, Any]
) -> None:
    ours = build("grpo", objective, **more)
    perturbed(ours.model, 0.1)
    output = scored(ours)
    rows, mask = written(output), output["completion_mask"]
    assert output["advantages"].shape == mask.shape
    policy, reference = (
        torch.tensor([[sum(parts[: t + 1]) - sum(parts[:t]) for t in range(mask.shape[1])] for parts in table])
        for table in (
            [token_log_probs(model, ids, mask.shape[1]) for ids in rows] for model in (ours.model, load(prior))
        )
    )
    text = AutoTokenizer.from_pretrained(prior).batch_decode(rows, skip_special_tokens=True)
    each = losses.token_rewards(objective, torch.tensor(addon(text)), policy, reference, mask)
    if "returns" in more:
        expected = losses.leave_one_out(losses.returns_to_go(each, more["gamma"]), mask, 4)
    else:
        expected = losses.leave_one_out(losses.whole_returns(each), mask, 4)
    assert torch.allclose(output["advantages"], expected, atol=1e-5)


def token_log_probs(model: Any, ids: list[int], width: int) -> list[float]:
    """One token at a time, from the log-probabilities of ever longer responses."""
    sums = [0.0, *log_probs(model, [ids[: t + 1] for t in range(len(ids))]).tolist()]
    return [after - before for before, after in pairwise(sums)] + [0.0] * (width - len(ids))


def kept_scores(ours: Any) -> list[torch.Tensor]:
    """Return a list that will hold the log-probabilities of each scoring, with their gradients."""
    kept: list[torch.Tensor] = []
    original = ours._get_per_token_logps_and_entropies

    def keep(*arguments: Any, **named: Any) -> Any:
        kept.append((scored := original(*arguments, **named))[0])
        return scored

    ours._get_per_token_logps_and_entropies = keep
    return kept


def test_advantages_reach_the_loss_token_by_token(build: Build) -> None:
    """TRL takes `[B, T]`: the loss's gradient in the log-probabilities is the advantages, over B · max length."""
    ours = build("grpo")
    output = scored(ours)
    kept = kept_scores(ours)
    loss = ours.compute_loss(ours.model, output)
    (slope,) = torch.autograd.grad(loss, kept[0])
    mask = output["completion_mask"]
    assert torch.allclose(slope, -output["advantages"] * mask / (8 * 4), atol=1e-7)


def test_the_table_of_completions_shows_the_advantages_of_the_loss(build: Build) -> None:
    """Those of the first token, which every response has."""
    ours = build("grpo", residual(0.6, 0.2))
    perturbed(ours.model, 0.1)
    found = [scored(ours, rows)["advantages"][:, 0] for rows in (4, 8, 4)]
    assert [*ours._logs["advantages"]] == torch.cat(found)[-8:].tolist()


@pytest.mark.parametrize("loss", COMMON_DIVISOR_LOSSES)
def test_every_micro_batch_divides_a_token_by_the_same_number(build: Build, loss: str) -> None:
    ours = build("grpo", loss_type=loss, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    ours.model.train()
    ours.current_gradient_accumulation_steps = 4
    output = ours._generate_and_score_completions([{"prompt": "."}] * 8)
    kept = kept_scores(ours)
    output["completion_mask"][:2, 1:] = 0  # else all could happen to be of one length
    divisors = []
    for batch in split_tensor_dict(output, 4):
        batch["advantages"] = torch.ones_like(batch["advantages"])
        (slope,) = torch.autograd.grad(ours.compute_loss(ours.model, batch), kept[-1])
        divisors += (-1 / slope[batch["completion_mask"] > 0]).tolist()
    assert divisors == pytest.approx([divisors[0]] * len(divisors), rel=1e-5)


def test_no_kl_in_the_loss_and_a_reference_all_the_same(build: Build) -> None:
    ours = build("grpo")
    assert ours.ref_model is not None
    assert ours.beta == 0
    ours.model.train()
    ours._generate_and_score_completions([{"prompt": "."}] * 8)
    assert ours.beta == 0
    assert build("grpo", greedy(0.2)).ref_model is None


def test_adapter_off_is_the_prior(build: Build) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    ours = build("grpo", kl(0.2), reward_funcs=lambda completions, **_: [0.0] * len(completions), peft_config=adapter)
    output = scored(ours)
    assert output["advantages"].abs().max() < 1e-5  # a fresh adapter is its own prior, so the reward is 0


def test_a_share_of_every_group_is_the_priors(build: Build) -> None:
    """The policy has come to write nothing but `b`; the first row of every four is the prior's, which never does."""

    def only_b(_: Any, __: Any, output: Any) -> Any:
        output.logits = output.logits.clone()
        output.logits[..., 3] += 100
        return output

    ours = build("grpo", residual(0.6, 0.2), prior_share=0.25, per_device_train_batch_size=32)
    ours.model.register_forward_hook(only_b)
    ours.model.train()
    found, _ = ours._generate_single_turn([[0]] * 32, None, {}, 4)
    assert [set(row) == {3} for row in found] == [False, True, True, True] * 8
    assert ours.model_wrapped is ours.model
    ours.model.eval()
    assert all(set(row) == {3} for row in ours._generate_single_turn([[0]] * 4, None, {}, 4)[0])
    ours.model.train()
    with pytest.raises(UsageError, match="adds token_type_ids to prompts"):
        ours._generate_single_turn([[0]] * 8, None, {"token_type_ids": [[0]] * 8}, 4)


@pytest.mark.parametrize(("training", "own"), [(True, [1, 2, 3, 5, 6, 7]), (False, range(8))])
def test_what_is_logged_is_of_the_policys_own_responses(
    build: Build, prior: Path, training: bool, own: list[int]
) -> None:
    """In training the first row of every four is the prior's."""
    ours = build("grpo", residual(0.6, 0.2), prior_share=0.25)
    perturbed(ours.model, 0.1)
    ours.model.train(training)
    ours.current_gradient_accumulation_steps = 1
    output = ours._generate_and_score_completions([{"prompt": "."}] * 8)
    ids = [written(output)[row] for row in own]
    text = AutoTokenizer.from_pretrained(prior).batch_decode(ids, skip_special_tokens=True)
    policy, reference = (log_probs(model, ids).mean().item() for model in (ours.model, load(prior)))
    expected = {"kl": policy - reference, "prior": 0.6 * reference, "entropy": -0.2 * policy}
    expected["addon"] = sum(addon(text)) / len(own)
    assert {name: ours.metrics[f"residual/{name}"] for name in expected} == {
        name: [pytest.approx(value, abs=1e-5)] for name, value in expected.items()
    }


def test_responses_end_where_training_ends_them(build: Build, prior: Path, tmp_path: Path) -> None:
    """At the tokenizer's end token, and at `e`, which the model's generation config names: draw by draw as TRL."""
    model = load(prior)
    model.generation_config.eos_token_id = [0, 3]
    model.save_pretrained(tmp_path / "two")
    objective, tokenizer = residual(0.3, 0.2), AutoTokenizer.from_pretrained(prior)
    ours = build("grpo", objective, model=load(tmp_path / "two"))
    torch.manual_seed(0)
    trained, _ = ours._generate_single_turn([[0]] * 64, None, {}, 4)
    assert {row[-1] for row in trained if len(row) < 4} == {0, 3}
    for writer in (ours.ref_model, dial(ours.ref_model, (ours.model, objective), omega=objective.omega)):
        torch.manual_seed(0)
        assert sample(writer, tokenizer, [[0]] * 64, 4, **SAMPLING) == trained


def test_with_an_adapter_the_priors_share_is_written_without_it(build: Build) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj"])
    ours = build("grpo", residual(0.6, 0.2), prior_share=0.25, peft_config=adapter)
    layer = ours.model.base_model.model.model.layers[0].self_attn.q_proj
    seen: list[tuple[int, bool]] = []
    layer.register_forward_hook(lambda _, given, __: seen.append((len(given[0]), layer.disable_adapters)))
    ours.model.train()
    ours._generate_single_turn([[0]] * 8, None, {}, 4)
    assert set(seen) == {(6, False), (2, True)}


@pytest.mark.parametrize(("times", "omegas"), [(1, [0.2, 0.4, 0.6, 0.6]), (3, [0.2, 0.2, 0.2, 0.6])])
def test_omega_leaves_alpha_on_schedule_and_a_checkpoint_says_how_far(
    build: Build, times: int, omegas: list[float]
) -> None:
    """In four steps; a generation's rewards stay what they are, however often it is used."""
    every = {"save_strategy": "steps", "save_steps": 1, "logging_strategy": "steps", "logging_steps": 1}
    ours = build("grpo", residual(0.6, 0.2), omega_schedule=0.5, max_steps=4, num_iterations=times, **every)
    ours.train()
    logged = [entry["residual/omega"] for entry in ours.state.log_history if "residual/omega" in entry]
    assert logged == pytest.approx(omegas[::times])
    folder = Path(ours.args.output_dir)
    said = [json.loads((folder / f"checkpoint-{step}" / "repolicy.json").read_text())["omega"] for step in (1, 2, 3, 4)]
    assert said == pytest.approx(omegas)
    ours.model.eval()
    ours.state.global_step = 0
    assert ours.current_objective == residual(0.6, 0.2)


def test_unscorable_responses_teach_nothing_and_count_nowhere(build: Build, prior: Path) -> None:
    """Neither in the log nor in the budget: there the first prompt has three responses, and the second four."""

    def partly(completions: list[str], **_: Any) -> list[float | None]:
        return [None, *addon(completions[1:])]

    ours = build("grpo", reward_funcs=partly, budget=1.0)
    known = {"own": -2.0, "omega": 0.3, "squares": 60.0, "degrees": 30.0}
    ours.memory.values |= known
    perturbed(ours.model, 0.1)
    output = scored(ours)
    ids = written(output)
    text = AutoTokenizer.from_pretrained(prior).batch_decode(ids, skip_special_tokens=True)
    policy, reference = (log_probs(model, ids) for model in (ours.model, load(prior)))
    each = {"kl": policy - reference, "prior": 0.3 * reference, "entropy": -0.2 * policy, "spent": -2.0 - reference}
    for name, values in (each | {"addon": torch.tensor(addon(text))}).items():
        mean = (values[1:4].mean() + values[4:].mean()) / 2
        assert ours.metrics[f"residual/{name}"] == [pytest.approx(mean.item(), abs=1e-5)], name
    judged = torch.stack([reference[:4].where(torch.arange(4) > 0, torch.nan), reference[4:]])
    move_omega(known, 0.2, judged, 1.0, ours.args.budget_rate, ours.state)
    assert ours.memory.values == pytest.approx(known, abs=1e-5)
    assert known["omega"] != 0.3
    assert not output["advantages"][0].any()
    assert output["advantages"][1:].abs().sum() > 0
    assert output["advantages"].isfinite().all()


def test_a_budget_rests_where_no_response_could_be_judged(build: Build) -> None:
    ours = build("grpo", reward_funcs=lambda completions, **_: [None] * len(completions), budget=1.0)
    ours.memory.values |= {"own": -2.0, "omega": 0.3}
    assert not scored(ours)["advantages"].any()
    assert ours.memory.values["omega"] == 0.3


async def judge(completions: list[str], **_: Any) -> list[float]:
    return [torch.nan] * len(completions)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda completions, **_: [-torch.inf] * len(completions), "infinite"),
        (lambda completions, **_: [None, torch.nan] * (len(completions) // 2), "a reward is nan, and no number"),
        (lambda completions, **_: [None, "good"] * (len(completions) // 2), "a reward is 'good', and no number"),
        (lambda **_: None, "the reward returned None, and no list"),
        (judge, "a reward is nan, and no number"),
    ],
)
def test_a_reward_that_is_no_number_is_refused(build: Build, reward: Any, words: str) -> None:
    """TRL makes NaN of None, so a mistake of the reward would end a run with success, and nothing learned."""
    with pytest.raises(NumericError, match=words):
        scored(build("grpo", reward_funcs=reward))


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it compiles
def test_learned_positions_are_counted_as_when_text_is_written(build: Build, prior: Path, tmp_path: Path) -> None:
    """Of GPT-2: TRL pads shorter prompts on the left, and scores them as if the padding were text."""
    tokenizer = AutoTokenizer.from_pretrained(prior)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 1, "n_positions": 16, "eos_token_id": 0, "bos_token_id": 0}
    perturbed(GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)), 0.5).save_pretrained(tmp_path / "gpt2")
    expected = response_log_probs(load(tmp_path / "gpt2"), [([0], [1, 3]), ([0, 1, 2], [3, 3])])
    lora = {"peft_config": LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)}
    for more in ({}, lora, {"torch_compile": True, "torch_compile_backend": "eager"}):
        ours = build("grpo", model=load(tmp_path / "gpt2"), **more)
        ids, attention = torch.tensor([[0, 0, 0, 1, 3], [0, 1, 2, 3, 3]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
        for each in (ours.model, *([] if ours.ref_model is None else [ours.ref_model])):
            found = ours._get_per_token_logps_and_entropies(each, ids, attention, 2)[0].sum(1).tolist()
            assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("error", "weight"), [(0.0, 1.0), (2.0, 3.0)])
def test_what_vllm_writes_teaches_the_same(
    build: Build, prior: Path, monkeypatch: pytest.MonkeyPatch, error: float, weight: float
) -> None:
    """A stand-in for vLLM, which writes the responses that a rollout function gives, and says how likely they are.

    Where it errs far, responses still count, each three times: no more than TRL's clip_max.
    """
    responses = [[1, 3, 0], [3, 3, 2, 0], [2, 0], [1, 2, 3, 3]] * 2

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        zeros = [[0.0] * len(ids) for ids in responses]
        return {"prompt_ids": [[0]] * 8, "completion_ids": responses, "logprobs": zeros}

    class StandIn:
        def __init__(self, **_: Any) -> None: ...

        def sync_weights(self) -> None: ...

        def generate(self, prompts: list[list[int]], **_: Any) -> tuple[Any, ...]:
            likely = [token_log_probs(load(prior), ids, len(ids)) for ids in responses]
            return prompts, responses, [[[value - error] for value in row] for row in likely], None

    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", StandIn)
    plain = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 1e9}  # steps like their gradients
    ours, by_vllm = build("grpo", rollout_func=rollout, **plain), build("grpo", use_vllm=True, **plain)
    for trainer in (ours, by_vllm):
        trainer.train()
    start = weights(build("grpo"))
    assert not torch.equal(weights(ours), start)
    assert torch.allclose(weights(by_vllm) - start, weight * (weights(ours) - start), atol=1e-6)


def test_an_environment_may_own_the_prompts(build: Build) -> None:
    """TRL then gets as far as the chat template, which the tiny tokenizer lacks."""
    with pytest.raises(ValueError, match="chat template does not support tool calling"):
        build("grpo", environment_factory=object, train_dataset=[{"number": 1}] * 8)


def test_nothing_is_dropped_out_between_sampling_and_scoring(build: Build) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)
    modules = build("grpo", peft_config=adapter).model.modules()
    assert [module.p for module in modules if isinstance(module, torch.nn.Dropout)] == [0]
    assert rloo_settings(residual(0.3, 0.2))["disable_dropout"]


@pytest.mark.long
def test_reaches_the_known_optimum(build: Build, toy: Toy, prior: Path) -> None:
    objective = residual(0.3, 0.2)
    log_prior = policy_log_probs(toy, load(prior))
    before = measure(toy, objective, log_prior, log_prior).kl
    ours = build(
        "grpo", objective, per_device_train_batch_size=32, num_generations=32, max_steps=50, learning_rate=5e-3
    )
    ours.train()
    after = measure(toy, objective, policy_log_probs(toy, ours.model), log_prior).kl
    assert before > 0.3
    assert after < 0.1  # the experiment, with six times the steps, goes far below


def test_rloo_recipe_is_the_same_reward(prior: Path, settings: dict[str, Any]) -> None:
    """TRL's own reward with the recipe: add-on + omega · log prior − alpha · log policy, minus the others' mean."""
    objective = residual(0.3, 0.2)
    tokenizer = AutoTokenizer.from_pretrained(prior)
    frozen = load(prior)
    online = {**ONLINE, "per_device_train_batch_size": 4}
    trainer = RLOOTrainer(
        load(prior),
        [addon, prior_reward(frozen, tokenizer)],
        RLOOConfig(**{**settings, **online, **rloo_settings(objective)}),
        Dataset.from_list(PROMPTS),
        processing_class=tokenizer,
    )
    perturbed(trainer.model, 0.1)
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": "."}] * 4)
    rows = written(output)
    text = tokenizer.batch_decode(rows, skip_special_tokens=True)
    policy, reference = (log_probs(each, rows) for each in (trainer.model, frozen))
    reward = torch.tensor(addon(text)) + 0.3 * reference - 0.2 * policy
    expected = reward - (reward.sum() - reward) / 3
    assert torch.allclose(output["advantages"], expected, atol=1e-5)
