"""Settings that would change the objective without a word, and what a run says about itself."""

import copy
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from tiny_language import KINDS, Build, first, load, perturbed, weights
from transformers import (
    AutoTokenizer,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from experiments.llm.toy import new_model
from repolicy.errors import UsageError
from repolicy.llm import prior_reward
from repolicy.llm.mixins import checksum
from repolicy.llm.requirements import BASE_PRESERVING_INITS
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import greedy, kl, residual, soft

BOTH = residual(0.3, 0.2)


def test_a_step_is_the_same_however_it_is_cut(build: Build) -> None:
    def step(rows: int, times: int) -> tuple[torch.Tensor, float]:
        cut = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": times}
        plain = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 1e9}
        ours = build("labels", max_steps=2, offset_rate=1.0, train_sampling_strategy="sequential", **cut, **plain)
        ours.train()
        return weights(ours), ours.offset

    (whole, offset), (parts, other) = step(8, 1), step(2, 4)
    assert abs(offset) > 0.05
    assert other == pytest.approx(offset, rel=1e-5)
    assert torch.allclose(parts, whole, atol=1e-6)


ADAPTER = LoraConfig(target_modules=["q_proj"])
VIRTUAL_TOKENS = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
MASKED = {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}
ONWARD, FEW = {"returns": "onward"}, {"prior_share": 0.25}
CUT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 1}
BEST = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
BEST |= {"load_best_model_at_end": True}
NOISE = {"neftune_noise_alpha": 5.0, "peft_config": ADAPTER}
PAIR = {"prompt": ".", "chosen": "e", "rejected": "a"}
PICTURE = {"train_dataset": [{"prompt": ".", "image": "a.png"}] * 8}
NO_PAIR, NO_LABEL = {"prompt": ".", "chosen": "e"}, {"prompt": ".", "completion": "e"}


@pytest.mark.parametrize(
    ("kind", "objective", "more", "words"),
    [
        ("dpo", residual(0.3, 0.0), {}, "alpha is 0.0"),
        ("dpo", soft(0.2), {}, "reads a basic reward"),
        ("dpo", None, {"omega": 0.1}, "sets no weight by itself: name omega and alpha"),
        ("dpo", kl(0.1), {"alpha": 0.1}, "one or the other"),
        ("dpo", kl(0.1), {"f_divergence_type": "js_divergence"}, "must be 'reverse_kl'"),
        ("dpo", kl(0.1), {"loss_type": "ipo"}, "no decomposed form"),
        ("dpo", BOTH, {"loss_type": "sft"}, "no decomposed form"),
        ("dpo", BOTH, {"sync_ref_model": True}, "the prior must not change"),
        ("dpo", BOTH, {"beta": 0.7}, "beta is 0.7; omega and alpha replace it"),
        ("dpo", BOTH, {"train_dataset": [NO_PAIR]}, "no column rejected"),
        ("dpo", BOTH, {"train_dataset": []}, "the dataset has no row"),
        ("dpo", BOTH, {"train_dataset": [PAIR, PAIR | {"prompt": None}]}, r"prompt is null in row 1 \(the first is 0"),
        ("dpo", BOTH, {"train_dataset": [PAIR, PAIR | {"prompt": ""}]}, r"prompt is empty in row 1 \(the first is 0"),
        ("grpo", BOTH, {"eval_dataset": Dataset.from_list([{"prompt": ""}])}, "a model needs a token to begin from"),
        ("labels", BOTH, {"max_length": 1}, "no prompt is shorter than max_length, which is 1,"),
        ("labels", BOTH, {"train_dataset": [PAIR | {"chosen": None}]}, "chosen is null in row 0"),
        ("labels", BOTH, {"train_dataset": [NO_LABEL]}, "no column label"),
        ("labels", BOTH, {"train_dataset": [NO_LABEL | {"label": 2}]}, "a label is 2"),
        ("labels", BOTH, {"desirable_weight": 2.0}, "offset=True"),
        ("labels", BOTH, {"loss_type": "kto"}, "the loss is always Eq. 32"),
        ("q", BOTH, {"peft_config": None}, "give a peft_config"),
        ("q", BOTH, {"ref_model": new_model("abe", 3, 32, 1), "peft_config": ADAPTER}, "no ref_model"),
        ("q", BOTH, {"precompute_ref_log_probs": True, "peft_config": ADAPTER}, "whole distribution"),
        ("grpo", BOTH, {"temperature": 0.7}, "temperature is 0.7; it must be 1.0"),
        ("grpo", BOTH, {"scale_rewards": "group"}, "scale_rewards is 'group'"),
        ("grpo", BOTH, {"beta": 0.1}, "beta is 0.1"),
        ("grpo", BOTH, MASKED, "'token_mask'; a masked response is missing from the objective"),
        ("grpo", BOTH, {"loss_type": "grpo"}, "divide every token by the same number"),
        ("grpo", BOTH, {"loss_type": "dapo", **CUT}, "would not divide every token of a step by the same number"),
        ("grpo", BOTH, {"returns": "both"}, "'onward' or 'whole'"),
        ("grpo", BOTH, {"gamma": 0.9}, "set returns='onward'"),
        ("dpo", BOTH, {"ref_model": new_model("abcde", 3, 32, 1)}, "prior has a vocabulary of 6 tokens and the model"),
        ("grpo", BOTH, {"omega_schedule": 1.0}, "it is a share"),
        ("grpo", BOTH, {"prior_share": 0.05}, "neither none nor all"),
        ("grpo", BOTH, ONWARD | FEW, "needs returns='whole'"),
        ("grpo", BOTH, FEW | {"use_transformers_continuous_batching": True}, "transformers' generation: no use_vllm"),
        ("grpo", BOTH, FEW | {"rollout_func": print}, "continuous batching, rollout_func"),
        ("grpo", BOTH, FEW | PICTURE, "the prior would read the prompts without them"),
        ("grpo", BOTH, {"budget": 1.0, **PICTURE}, "the rows have images"),
        ("grpo", BOTH, FEW | {"tools": [print]}, "with tools or environments the prior writes in turns"),
        ("grpo", BOTH, {"generation_kwargs": {"top_p": 0.5, "temperature": 2.0}}, "temperature is 2.0"),
        ("grpo", BOTH, {"eval_dataset": Dataset.from_list([{"question": "."}])}, "no column prompt"),
        ("q", BOTH, NOISE, "the prior would get the noise, too"),
        ("grpo", BOTH, {"peft_config": VIRTUAL_TOKENS}, "PREFIX_TUNING puts virtual tokens before a shorter prompt's"),
        ("grpo", BOTH, {"per_device_train_batch_size": 64}, "has 8 prompts, and each generation takes 16"),
        ("grpo", BOTH, {"args": trl.GRPOConfig}, "args is a GRPOConfig; it must be a ResidualGRPOConfig"),
        ("grpo", BOTH, {"budget": 0.0}, "budget is 0.0"),
        ("grpo", BOTH, {"budget": 1.0, "budget_samples": 0}, "budget_samples is 0; it must be 1 or more"),
        ("grpo", residual(0.0, 0.2), {"budget": 1.0}, "where the search for omega starts"),
        ("grpo", BOTH, {"budget": 1.0, **BEST}, "load_best_model_at_end would compare different aims"),
        ("grpo", BOTH, {"omega_schedule": 0.5, **BEST}, "omega moves in the run"),
        ("grpo", BOTH, {"budget": 1.0, "omega_schedule": 0.5}, "both omega_schedule and budget"),
    ],
)
def test_refused(
    build: Build, settings: dict[str, Any], kind: str, objective: Any, more: dict[str, Any], words: str
) -> None:
    if "args" in more:
        more = {"args": more["args"](**settings)}
    with pytest.raises(UsageError, match=words):
        build(kind, objective, **more)


@pytest.mark.parametrize("kind", ["dpo", "labels", "grpo", "q"])
def test_an_encoder_and_decoder_is_refused(build: Build, prior: Path, tmp_path: Path, kind: str) -> None:
    size = len(AutoTokenizer.from_pretrained(prior))
    sizes = {"vocab_size": size, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    model = T5ForConditionalGeneration.from_pretrained(tmp_path / "t5")
    with pytest.raises(UsageError, match=r"an encoder-decoder \(t5\), and no causal model"):
        build(kind, model=model, peft_config=LoraConfig(target_modules=["q"]))


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_dropout_is_off_where_a_module_holds_its_share(build: Build, prior: Path, kind: str) -> None:
    """As the attention of OPT, Granite and Seed-OSS does: TRL turns only the modules of torch off."""
    model, ids = load(prior), torch.tensor([[0, 1, 2, 3]])
    model.model.layers[0].self_attn.attention_dropout = 0.9
    ours = build(kind, model=model, peft_config=ADAPTER).model
    with torch.no_grad():
        assert torch.equal(ours.train()(input_ids=ids).logits, ours.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("kind", ["labels", "q"])
def test_the_loss_that_balances_experts_is_added_as_trl_adds_it(build: Build, prior: Path, kind: str) -> None:
    """By its coefficient: the loss is a line whose slope is what the model's experts lack in balance."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = len(AutoTokenizer.from_pretrained(prior))
    model = MixtralForCausalLM(MixtralConfig(vocab_size=size, num_key_value_heads=1, num_local_experts=2, **sizes))
    losses = []
    for weight in (0.0, 1.0, 2.0):
        given = {"model": copy.deepcopy(model), "peft_config": LoraConfig(target_modules=["q_proj"])}
        ours = build(kind, **given, router_aux_loss_coef=weight)
        batch = first(ours, 4)
        losses.append(ours.compute_loss(ours.model, batch).item())
        assert not weight or ours.metrics["aux_loss"][-1] > 0.5
    one, two = losses[1] - losses[0], losses[2] - losses[0]
    assert one > 0.5
    assert two == pytest.approx(2 * one, rel=1e-4)


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_a_reference_is_loaded_from_a_path(build: Build, toy: Any, kind: str) -> None:
    with pytest.raises(UsageError, match="loads its reference .* built in memory"):
        build(kind, model=new_model(toy.letters, toy.length, 32, 1))


def test_what_a_models_own_file_says_about_generation_counts(build: Build, prior: Path) -> None:
    model = load(prior)
    model.generation_config.no_repeat_ngram_size = 2
    with pytest.raises(UsageError, match=r"no_repeat_ngram_size is 2 .* model's generation config"):
        build("grpo", model=model)


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it compiles
@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_a_compiled_model_is_the_same_model(build: Build, kind: str) -> None:
    """Of a compiled reference, `bool` raises, and the names of its weights have a prefix, though nothing is traced."""
    runs = []
    with torch.compiler.set_stance("force_eager"):
        for how in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
            runs.append(build(kind, max_steps=1, optim="sgd", learning_rate=0.5, **how))
            runs[-1].train()  # at once, with the random numbers of its seed
    plain, compiled = runs
    assert compiled.identity == plain.identity
    assert torch.allclose(weights(compiled), weights(plain), atol=1e-5)


@pytest.mark.parametrize("kind", ["dpo", "labels"])
def test_greedy_loads_no_reference(build: Build, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"trl.trainer.{ {'dpo': 'dpo', 'labels': 'kto'}[kind] }_trainer.create_model_from_path", None)
    ours = build(kind, greedy(0.2), max_steps=1)
    assert ours.ref_model is None
    ours.train()
    assert ours.identity["prior"] is None


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_a_model_changed_in_memory_is_not_its_folder(build: Build, prior: Path, tmp_path: Path, kind: str) -> None:
    def changed() -> Any:
        model = load(prior)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
        return model

    with pytest.raises(UsageError, match=r"changed after it was loaded \(model.layers.0.mlp.up_proj.weight"):
        build(kind, model=changed())
    resized = load(prior)
    resized.resize_token_embeddings(7)
    with pytest.raises(UsageError, match=r"changed after it was loaded \(model.embed_tokens.weight"):
        build(kind, model=resized)
    changed().save_pretrained(tmp_path / "saved")  # the first way out
    assert build(kind, model=load(tmp_path / "saved")).ref_model is not None
    adapter = LoraConfig(r=2, target_modules=["q_proj"])  # the second
    assert build(kind, model=changed(), peft_config=adapter).identity["prior_checksum"] == checksum(changed())
    if kind != "grpo":
        assert build(kind, model=changed(), ref_model=load(prior))


@pytest.mark.filterwarnings("ignore:.*(PEFT for a second time|`peft_config` attribute).*:UserWarning")
@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_an_adapter_that_was_given_begins_at_the_prior(build: Build, prior: Path, tmp_path: Path, kind: str) -> None:
    """TRL copies it: a new one changes nothing, a trained one is a part of the prior, a frozen one learns nothing."""
    known, adapter = checksum(load(prior)), LoraConfig(r=2, target_modules=["q_proj"])
    assert build(kind, model=get_peft_model(load(prior), adapter)).identity["prior_checksum"] == known
    assert build(kind, model=get_peft_model(load(prior), adapter)).identity["prior"] == str(prior)
    trained = get_peft_model(load(prior), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    trained.save_pretrained(tmp_path)
    found = build(kind, model=trained).identity
    assert found["prior_checksum"] != known
    assert found["prior"] == f"{prior} with the adapter that training went on from"
    with pytest.raises(UsageError, match="is_trainable=True"):
        build(kind, model=get_peft_model(load(prior), adapter).requires_grad_(False))
    for names in (["mine"], ["default", "second"]):
        several = PeftModel.from_pretrained(load(prior), tmp_path, adapter_name=names[0], is_trainable=True)
        for name in names[1:]:
            several.load_adapter(tmp_path, adapter_name=name, is_trainable=True)
        with pytest.raises(UsageError, match=f"has the adapter {' and '.join(names)}, and TRL goes on from a single"):
            build(kind, model=several)
    for peft_config in (adapter, None):
        with pytest.raises(UsageError, match="came from an adapter's folder"):
            build(kind, model=load(tmp_path), peft_config=peft_config)


@pytest.mark.parametrize(("kind", "begin"), [("dpo", "pissa"), ("grpo", "olora")])
def test_an_adapter_that_takes_from_the_base_is_refused(build: Build, kind: str, begin: str) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=begin)
    with pytest.raises(UsageError, match=f"init_lora_weights is '{begin}', .* the model with its adapter off"):
        build(kind, peft_config=adapter)


@pytest.mark.parametrize("begin", BASE_PRESERVING_INITS)
def test_the_others_leave_the_prior_as_it_was(build: Build, prior: Path, begin: bool | str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(eva|EVA).*")
        adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=begin)
        ours = build("dpo", peft_config=adapter)
    assert ours.identity["prior_checksum"] == checksum(load(prior))


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_biases_that_would_move_the_prior_are_refused(build: Build, prior: Path, tmp_path: Path, kind: str) -> None:
    """A Qwen2 has biases in its queries, and PEFT does not turn trained ones off."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = len(AutoTokenizer.from_pretrained(prior))
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=size, num_key_value_heads=1, **sizes))
    model.save_pretrained(tmp_path / "qwen")
    for bias in ("all", "lora_only"):
        with pytest.raises(UsageError, match=r"q_proj\.base_layer\.bias is trained .* set bias='none'"):
            build(kind, model=load(tmp_path / "qwen"), peft_config=LoraConfig(target_modules=["q_proj"], bias=bias))
    more = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"], trainable_token_indices=[1])
    assert build(kind, model=load(tmp_path / "qwen"), peft_config=more).identity["prior_checksum"]


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_a_packed_prior_has_no_checksum(build: Build, prior: Path, kind: str) -> None:
    """QLoRA's: the adapter is used with the prior's own weights, whose checksum is another."""
    model = load(prior)
    model.is_quantized, model.hf_quantizer = True, SimpleNamespace(is_trainable=True)
    assert build(kind, model=model, peft_config=ADAPTER).identity["prior_checksum"] is None


@pytest.mark.parametrize("kind", ["dpo", "q"])
def test_a_card_says_how_the_model_was_trained(build: Build, kind: str) -> None:
    ours = build(kind, peft_config=ADAPTER)
    ours.create_model_card(model_name="mine")
    card = (Path(ours.args.output_dir) / "README.md").read_text()
    assert f"This model was trained with {type(ours).__name__}" in card
    assert ("introduced in [Residual Policy Gradient" in card) == (kind != "q")


def test_checksum_is_of_the_weights(prior: Path) -> None:
    model = load(prior)
    before = checksum(model)
    assert checksum(load(prior)) == before
    assert checksum(get_peft_model(load(prior), LoraConfig(r=2))) == before
    assert checksum(model.bfloat16()) != before
    rounded = checksum(model)
    assert checksum(model.float()) == rounded  # the same numbers
    assert checksum(load(prior), torch.bfloat16) == rounded
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-4
    assert checksum(model) != before


@pytest.mark.parametrize("kind", ["dpo", "labels", "grpo"])
def test_a_run_says_what_it_is_and_resumes_as_nothing_else(build: Build, prior: Path, kind: str) -> None:
    short = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "logging_strategy": "steps", "logging_steps": 1}
    ours = build(kind, **short)
    ours.train()
    known = {"omega": 0.3, "alpha": 0.2, "prior": str(prior), "prior_checksum": checksum(ours.ref_model)}
    folder = Path(ours.args.output_dir)
    saved = torch.load(folder / "checkpoint-1" / "training_args.bin", weights_only=False)
    assert (saved.omega, saved.alpha) == (0.3, 0.2)
    beside = json.loads((folder / "checkpoint-1" / "repolicy.json").read_text())
    assert beside == {**known, "method": type(ours).__name__}
    state = json.loads((folder / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["Remembered"]["args"]["fixed"]["omega"] == 0.3
    logged = "residual/kl" if kind == "grpo" else "prior_logps/chosen"
    assert sum(logged in entry for entry in ours.state.log_history) == 2
    checkpoint = str(folder / "checkpoint-1")
    with pytest.raises(UsageError, match=r"trained with omega 0\.3, and this run has 0\.4"):
        build(kind, residual(0.4, 0.2), **short).train(resume_from_checkpoint=checkpoint)
    perturbed(load(prior)).save_pretrained(folder / "other")
    with pytest.raises(UsageError, match="trained with prior_checksum"):
        build(kind, model=load(folder / "other"), **short).train(resume_from_checkpoint=checkpoint)
    again = build(kind, **short)
    again.train(resume_from_checkpoint=checkpoint)
    assert torch.equal(weights(again), weights(ours))


def test_the_offset_comes_back(build: Build) -> None:
    short = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "offset_rate": 1.0}
    ours = build("labels", **short)
    ours.train()
    assert abs(ours.offset) > 0.05
    for restored in (False, True):
        again = build("labels", **short, restore_callback_states_from_checkpoint=restored)
        again.train(resume_from_checkpoint=f"{ours.args.output_dir}/checkpoint-1")
        assert again.offset == ours.offset


def test_the_prior_reads_what_the_policy_read(prior: Path) -> None:
    """Of a chat template with a switch, which a trainer has off."""
    model, chat = load(prior), AutoTokenizer.from_pretrained(prior)
    chat.apply_chat_template = lambda *_, enable_thinking=True, **__: {"input_ids": [0, 3] if enable_thinking else [0]}

    class Trainer:
        chat_template_kwargs = {"enable_thinking": False}  # noqa: RUF012
        accelerator = SimpleNamespace(device=torch.device("cpu"))

        def log(self) -> None: ...

    found = prior_reward(model, chat)([[{"role": "user", "content": "a"}]], [[1, 0]], log_extra=Trainer().log)
    assert found == pytest.approx(response_log_probs(model, [([0], [1, 0])]))


def test_few_logits_at_once(prior: Path) -> None:
    model = load(prior)
    rows = [([0], [1, 2, 3, 0][: 1 + i % 4]) for i in range(10)]
    sizes = []
    model.register_forward_hook(lambda _, __, output: sizes.append(output.logits.numel()))
    whole = response_log_probs(model, rows)
    assert sizes == [10 * 5 * 4]
    assert response_log_probs(model, rows, max_logits=60) == pytest.approx(whole, abs=1e-5)
    assert max(sizes[1:]) <= 60
    assert response_log_probs(model, rows, max_logits=1) == pytest.approx(whole, abs=1e-5)


def test_settings_for_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for kind in ("dpo", "labels", "grpo", "q"):
        config = KINDS[kind][1]
        made = config(str(tmp_path))
        assert (made.bf16, made.use_cpu) == (False, True)
