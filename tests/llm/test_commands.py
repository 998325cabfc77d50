"""`repolicy llm`: text with the dial turned, and what models are worth."""

import gc
import json
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tiny_language import REWARD, Build, load, perturbed
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from typed_commands import failed

from experiments.llm.toy import Toy, measure, policy_log_probs
from repolicy.cli import main as cli
from repolicy.errors import UsageError
from repolicy.llm.mixing import SAMPLING, sample
from repolicy.llm.mixins import checksum
from repolicy.llm.models import MEASURES, call_reward, evaluate, generate, load_tuned, render_page, with_intervals
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import residual

STRICT = """
def brevity(completions):
    return [-len(each) for each in completions]
def never(completions, **columns):
    return [None for each in completions]
def nan(completions, **columns):
    return [float("nan") for each in completions]
"""


@pytest.fixture(scope="session")
def tuned(prior: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models that differ from the prior, one of them an adapter."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("low", "high")}
    tokenizer, known = AutoTokenizer.from_pretrained(prior), load(prior)
    identity = {"alpha": 0.2, "prior": "/etc/passwd", "prior_checksum": checksum(known)}
    perturbed(known).save_pretrained(folders["low"])
    adapter = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    get_peft_model(load(prior), adapter).save_pretrained(folders["high"])
    for name, omega in (("low", 0.1), ("high", 0.4)):
        tokenizer.save_pretrained(folders[name])
        (folders[name] / "repolicy.json").write_text(json.dumps({"omega": omega, **identity}))
    return folders


def run(words: list[Any], capsys: pytest.CaptureFixture[str]) -> Any:
    cli.main(["llm", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_person_turns_the_dial(prior: Path, tuned: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", *tuned.values(), "--prior", prior, "--omega", 0.25, "--prompt", ".", ".a", "--count", 3]
    found = run([*words, "--tokens", 4], capsys)
    assert [response["prompt"] for response in found["responses"]] == ["."] * 3 + [".a"] * 3
    assert {len(response["text"]) <= 4 for response in found["responses"]} == {True}
    assert found == run([*words, "--tokens", 4], capsys)
    assert found != run([*words, "--tokens", 4, "--seed", 1], capsys)
    cli.main(["llm", *map(str, words), "--tokens", "4"])
    assert capsys.readouterr().out.count("\n") == 6


def test_a_trained_model_says_what_it_was_trained_for(
    build: Build, prior: Path, tuned: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = build("dpo", residual(0.1, 0.3), max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "tuned"))
    words = ["generate", tmp_path / "tuned", "--omega", 0.1, "--prompt", ".", "--tokens", 3]
    assert len(run([*words, "--prior", prior], capsys)["responses"]) == 1
    perturbed(load(prior)).save_pretrained(tmp_path / "other")
    named = f"was tuned from another prior than the one that was given: its repolicy.json names '{prior}'"
    AutoTokenizer.from_pretrained(prior).save_pretrained(tmp_path / "other")
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "one\u2028two"}, ensure_ascii=False) + "\n", "utf-8")
    compared = ["evaluate", tmp_path / "tuned", "--prompts", tmp_path / "p.jsonl", "--reward", REWARD]
    for asked in (words, compared):
        assert named in failed(capsys, "llm", *asked, "--prior", tmp_path / "other")
    words[1] = tuned["high"]
    assert "that adapter's folder is the prior" in failed(capsys, "llm", *words, "--prior", tmp_path / "other")


def test_a_chat_is_written_as_in_training(
    build: Build, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a template with a switch, which the training had off; where it is on the prompt is longer.

    The prior has no template, and another end token.
    """
    chat = AutoTokenizer.from_pretrained(prior)
    chat.eos_token, chat.chat_template = "a", "{{ '.' if thinking is defined and not thinking else '.a' }}"
    folders = []
    for name, omega, template in (("off", 0.3, {"thinking": False}), ("on", 0.4, None)):
        folders.append(str(tmp_path / name))
        build("grpo", residual(omega, 0.2), chat_template_kwargs=template).save_model(folders[-1])
        chat.save_pretrained(folders[-1])
    seen: list[list[int]] = []

    def write(_: Any, tokenizer: Any, prompts: list[list[int]], *__: Any, **___: Any) -> list[list[int]]:
        assert tokenizer.eos_token == "a"
        seen.extend(prompts)
        return [[0]] * len(prompts)

    monkeypatch.setattr("repolicy.llm.models.sample", write)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}]}) + "\n")
    for named in folders:
        generate([named], str(prior), ["a"], omega=0.3, chat=True)
        evaluate([named], str(prior), tmp_path / "p.jsonl", REWARD, responses=1)
    assert [len(ids) for ids in seen] == [1, 1, 1, 2, 2, 2]
    with pytest.raises(UsageError, match="different chat templates or chat_template_kwargs"):
        generate(folders, str(prior), ["a"], omega=0.3, chat=True)
    shutil.copy(Path(folders[0]) / "repolicy.json", folders[1])
    chat.chat_template = "{{ '.b' }}"
    chat.save_pretrained(folders[1])
    with pytest.raises(UsageError, match="different chat templates or chat_template_kwargs"):
        evaluate(folders, str(prior), tmp_path / "p.jsonl", REWARD, responses=1)


def test_estimates_are_near_the_exact_values(
    toy: Toy, prior: Path, tuned: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within two and a half standard errors (the toy has one prompt, so a bootstrap over responses)."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "."}) + "\n")
    words = ["evaluate", *tuned.values(), "--prior", prior, "--prompts", tmp_path / "p.jsonl", "--reward", REWARD]
    page = tmp_path / "page.html"
    found = run([*words, "--responses", 500, "--tokens", 4, "--out", page], capsys)["models"]
    log_prior = policy_log_probs(toy, load(prior))
    low = policy_log_probs(toy, load(tuned["low"]))
    for each, policy in zip(found, (log_prior, low), strict=False):
        exact = measure(toy, residual(0.1, 0.2), policy, log_prior)
        kl = float((policy.exp() * (policy - log_prior)).sum())
        pairs = {"addon": exact.addon, "log_prior": exact.log_prior, "entropy": exact.entropy, "kl": kl}
        for name, value in pairs.items():
            error = (each[name]["high"] - each[name]["low"]) / (2 * 1.96)
            assert abs(each[name]["mean"] - value) <= 2.5 * error + 1e-5, name
    assert [each.get("omega") for each in found] == [None, 0.1, 0.4]
    text = page.read_text()
    assert "Side by side" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_a_model_is_let_go_before_the_next_is_loaded(
    prior: Path, tuned: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "."}) + "\n")
    loaded, alive = [], []

    def load_another(*given: Any) -> tuple[Any, Any]:
        gc.collect()
        alive.append(sum(each() is not None for each in loaded))
        found = load_tuned(*given)
        loaded.append(weakref.ref(found[1]))
        return found

    monkeypatch.setattr("repolicy.llm.models.load_tuned", load_another)
    evaluate([str(tuned["low"])] * 3, str(prior), tmp_path / "p.jsonl", REWARD, responses=1, tokens=1)
    assert alive == [0, 0, 0]


def test_an_adapter_that_goes_on_from_an_adapter(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off it is not its prior. One that equals it is 0 nats from it, and is mixed as the same models merged."""
    model = get_peft_model(load(prior), LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    further = get_peft_model(load(prior), LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    for name, each in (("sft", model), ("same", model), ("further", further)):
        each.save_pretrained(tmp_path / name)
    for name, each in (("sft", model), ("further", further)):
        each.merge_and_unload().save_pretrained(tmp_path / f"{name} merged")
    for name in ("sft", "sft merged"):
        AutoTokenizer.from_pretrained(prior).save_pretrained(tmp_path / name)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "."}))
    words = ["evaluate", tmp_path / "same", "--prior", tmp_path / "sft", "--prompts", tmp_path / "p.jsonl"]
    _, same = run([*words, "--reward", REWARD, "--tokens", 4, "--out", tmp_path / "page.html"], capsys)["models"]
    assert same["kl"]["mean"] == pytest.approx(0, abs=1e-5)
    words = ["--omega", 0.5, "--trained-at", "0.1,0.2", "--prompt", ".", "--count", 16, "--tokens", 4]
    adapters, merged = (
        run(["generate", tmp_path / f"further{end}", "--prior", tmp_path / f"sft{end}", *words], capsys)
        for end in ("", " merged")
    )
    assert adapters == merged


def test_a_prior_that_was_rounded_before_it_was_tuned(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(prior).bfloat16().save_pretrained(tmp_path)
    identity = {"omega": 0.1, "alpha": 0.2, "prior_checksum": checksum(load(prior).bfloat16())}
    (tmp_path / "repolicy.json").write_text(json.dumps(identity))
    words = ["generate", tmp_path, "--prior", prior, "--omega", 0.1, "--prompt", ".", "--tokens", 2]
    assert len(run(words, capsys)["responses"]) == 1


@pytest.mark.filterwarnings("default:omega 0.9 is not")
def test_people_read_numbers_and_warnings_as_of_other_commands(
    prior: Path, tuned: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "."}))
    words = f"evaluate {tuned['low']} --prior {prior} --prompts {tmp_path / 'p.jsonl'} --responses 2 --tokens 2"
    cli.main(["llm", *words.split(), "--reward", REWARD, "--out", str(tmp_path / "page.html")])
    said = capsys.readouterr().err
    for word in ("KL from the prior", f"the prior, {prior}", "0.00 (0.00 to 0.00)", "page: "):
        assert word in said
    words = f"generate {tuned['low']} {tuned['high']} --prior {prior} --omega 0.9 --prompt . --tokens 2"
    cli.main(["llm", *words.split()])
    assert capsys.readouterr().err.startswith("warning: omega 0.9 is not between")


def test_what_was_not_judged_does_not_count() -> None:
    found = with_intervals({"addon": np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, 4.0]])})["addon"]
    assert found == {"mean": 2.0, "low": pytest.approx(2 - 12.7062), "high": pytest.approx(2 + 12.7062)}


@pytest.mark.parametrize(("rows", "reach"), [([[1.0], [2.0], [3.0]], 4.3027 / 3**0.5), ([[5.0]], np.inf)])
def test_an_interval_of_few_prompts_is_students(rows: list[list[float]], reach: float) -> None:
    """To draw three prompts again and again would hold the mean in three of four runs only, and one never."""
    found = with_intervals({"addon": np.array(rows)})["addon"]
    assert found["high"] - found["mean"] == pytest.approx(reach, rel=1e-4)
    assert found["mean"] - found["low"] == pytest.approx(reach, rel=1e-4)


def test_one_response_has_an_unknown_interval() -> None:
    model = {"model": "mine"} | with_intervals({name: np.ones((1, 1)) for name in MEASURES})
    page = render_page("", [model], [{"prompt": "Say it."}], [["it"]])
    assert "1.00 (unknown)" in page
    assert "inf" not in page.partition("What each is worth")[2].partition("Side by side")[0]


def test_a_reward_is_called_as_trl_calls_it() -> None:
    """It gets the dataset's own columns, but TRL's prompts, responses, ids, state and logs; it may be awaited."""

    async def lengths(prompts, completions, completion_ids, hint, trainer_state, log_extra, log_metric):  # type: ignore
        assert (prompts, hint, completion_ids) == (["a", "b"], ["x", "y"], [[1], [2, 3]])
        log_extra("hint", hint)
        log_metric("step", trainer_state.global_step)
        return [float(len(each)) for each in completions]

    rows = [{"prompt": p, "hint": h, "completion": "no", "completion_ids": [9]} for p, h in ("ax", "by")]
    assert call_reward(lengths, rows, ["c", "dd"], [[1], [2, 3]]).tolist() == [1.0, 2.0]


def test_a_reward_judges_each_response() -> None:
    with pytest.raises(UsageError, match="the reward returned 1 number for 2 responses"):
        call_reward(lambda **_: [1.0], [{"prompt": "a"}] * 2, ["b", "c"], [[1], [2]])


# What a command gets unless its words say otherwise.
USUAL = {
    "generate": {"--prior": "{prior}", "--omega": "0.1", "--prompt": "."},
    "evaluate": {"--prior": "{prior}", "--prompts": "{good}", "--reward": "{reward}"},
}
FILES = {"odd": '{"question": 1}\n', "good": '{"prompt": "."}\n', "blank": '{"prompt": ""}', "strict.py": STRICT}
FILES |= {"torn": '{"prompt": "."}\n\n{"pro'}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # Before a model is loaded: there is no such prior.
        ("generate {low} --prior {missing} --omega nan", "omega is nan"),
        ("generate {low} --prior {missing} --alpha 0", "alpha is 0"),
        ("generate {low} {low} --prior {missing}", "omega must differ"),
        ("generate {low} --prior {missing} --trained-at 0.1", "not of the form omega,alpha"),
        ("generate {low} --prior {missing} --trained-at 0.1,0.2 0.3,0.2", "of 2 models, for 1 model to generate with"),
        ("generate runs/lo --prior {missing}", "there is no folder runs/lo;"),
        ("generate {low} --prior {missing}", "there is no folder {missing}, and from the hub"),
        ("generate {cut} --trained-at 0.1,0.2", "{cut} cannot be read as a"),
        ("generate {wide}", "PeftModel: size mismatch for"),
        ("generate {prior}", "is no folder with a repolicy.json; say --trained-at"),
        ("generate {low} --seed 18446744073709551616", "seed is 18446744073709551616; it must lie between"),
        ("generate {broken}", "is damaged"),
        ("generate {low} --chat", "chat template cannot write the prompt"),
        ("evaluate {low} --prompts {torn}", "as prompts: row 2 is not one JSON object"),
        ("evaluate {low} --prompts {missing}", "cannot be read as prompts"),
        ("evaluate {low} --prompts {odd}", "row 1 of"),
        ("evaluate {low} --prompts {blank}", "the prompt '' has no token"),
        ("evaluate {low} --prior {missing} --reward {strict}:brevity", "the reward failed: TypeError"),
        ("evaluate {low} --reward {strict}:never", "judged no response"),
        ("evaluate {low} --reward {strict}:nan", "a reward is nan, and no number: return None"),
        ("evaluate {low} --out {broken}", "could be written"),
        ("evaluate {larger}", "vocabulary of 4 tokens and"),
    ],
)
def test_refused(
    prior: Path, tuned: dict[str, Path], tmp_path: Path, words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "repolicy.json").write_text('{"omega": "x"}')
    places = {
        name.removesuffix(".py"): tmp_path / name for name in (*FILES, "missing", "broken", "larger", "cut", "wide")
    }
    places |= {"low": tuned["low"], "prior": prior, "reward": REWARD}
    if "{larger}" in words:
        larger = load(prior)
        larger.resize_token_embeddings(6, mean_resizing=False)
        larger.save_pretrained(places["larger"])
    if "{cut}" in words:
        places["cut"].mkdir()
        for name in ("config.json", "model.safetensors"):
            (places["cut"] / name).write_bytes((tuned["low"] / name).read_bytes()[:1000])
    if "{wide}" in words:
        shutil.copytree(tuned["high"], places["wide"])
        config = places["wide"] / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 8}))
    typed = words.split()
    for option, value in USUAL[typed[0]].items():
        typed += [] if option in typed else [option, value]
    assert sentence.format(**places) in failed(capsys, "llm", *(word.format(**places) for word in typed))


TIED = {"modules_to_save": ["lm_head"], "ensure_weight_tying": True}


@pytest.mark.filterwarnings("ignore:.*(ti(ed|e_word)|disabling adapter layers).*:UserWarning")
@pytest.mark.parametrize(
    "more", [{"bias": "all"}, {"init_lora_weights": "pissa"}, TIED, {}, {"trainable_token_indices": [1]}]
)
def test_an_adapter_that_leaves_another_prior_when_it_is_off(tmp_path: Path, more: dict[str, Any]) -> None:
    """GPT-2 has biases and a tied head; the folders are PEFT's, of any trainer."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, **ends)).save_pretrained(tmp_path / "base")
    adapter = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, **more)
    tuned = get_peft_model(load(tmp_path / "base"), adapter)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter += 0.5 * parameter.requires_grad * torch.randn_like(parameter)
    tuned.save_pretrained(tmp_path / "tuned")
    if more.keys() <= {"trainable_token_indices"}:
        load_tuned(str(tmp_path / "tuned"), load(tmp_path / "base"), 0)
        return
    with pytest.raises(UsageError, match=r"turned off, the prior is no longer what it was .* merge_and_unload"):
        load_tuned(str(tmp_path / "tuned"), load(tmp_path / "base"), 0)


def test_a_tuned_prompt_is_no_part_of_what_is_scored(prior: Path) -> None:
    """PEFT puts its own tokens before a row, and their logits before those of the row."""
    torch.manual_seed(3)
    tuned = get_peft_model(load(prior), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    table = tuned.get_input_embeddings()
    whole = torch.cat([tuned.get_prompt(1), table(torch.tensor([[0, 1, 2, 3]]))], 1)
    scores = tuned.base_model(inputs_embeds=whole).logits[0].log_softmax(-1)
    expected = scores[4, 2] + scores[5, 3]
    assert response_log_probs(tuned, [([0, 1], [2, 3]), ([0], [1])])[0] == pytest.approx(expected.item(), rel=1e-5)


def test_text_that_a_model_has_no_positions_for(tmp_path: Path) -> None:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, n_positions=4, **ends)).eval()
    tokenizer = SimpleNamespace(eos_token_id=None, pad_token_id=0)
    model.generation_config.eos_token_id = None
    with pytest.raises(UsageError, match="no position for a prompt of 2 tokens and 8 more: name fewer --tokens"):
        sample(model, tokenizer, [[1, 1]], 8, **SAMPLING)
