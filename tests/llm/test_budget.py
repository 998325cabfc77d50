"""Omega from a budget on the expected log prior."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from tiny_language import PROMPTS, Build, addon, load, weights
from transformers import AutoTokenizer, TrainerState
from trl import RLOOConfig, RLOOTrainer

from experiments.llm.toy import Toy, measure, optimum, policy_log_probs
from repolicy.errors import UsageError
from repolicy.llm import PriorBudget, prior_reward, rloo_settings
from repolicy.llm.budget import move_omega, prior_mean_log_prob, spread_prompts
from repolicy.llm.mixing import ModelView
from repolicy.llm.rloo import response_log_probs
from repolicy.objective import Objective, residual

ONLINE = {"per_device_train_batch_size": 16, "num_generations": 16, "max_completion_length": 4}


@pytest.fixture
def grpo(build: Build) -> Build:
    def made(objective: Objective = residual(0.2, 0.2), **more: Any) -> Any:  # noqa: B008
        return build("grpo", objective, **{**ONLINE, "budget_samples": 64, **more})

    return made


@pytest.fixture
def rloo(prior: Path, settings: dict[str, Any]) -> Build:
    def made(**more: Any) -> tuple[Any, PriorBudget]:
        objective, tokenizer = residual(0.2, 0.2), AutoTokenizer.from_pretrained(prior)
        budget = PriorBudget(load(prior), tokenizer, objective, 1.0, samples=64)
        callbacks = more.pop("callbacks", lambda budget: budget.callbacks)(budget)
        rows = more.pop("train_dataset", Dataset.from_list(PROMPTS))
        args = RLOOConfig(**{**settings, **ONLINE, **rloo_settings(objective, budget=True), **more})
        trainer = RLOOTrainer(load(prior), [addon, budget], args, rows, processing_class=tokenizer, callbacks=callbacks)
        return trainer, budget

    return made


@pytest.mark.parametrize(("prompts", "responses", "steps"), [(4, 16, 300), (1, 2, 2000)])
def test_of_exact_policies_the_steps_find_the_multiplier(toy: Toy, prompts: int, responses: int, steps: int) -> None:
    """Samples of the optimum at each omega, on to the next: to the omega whose optimum meets the budget."""
    log_prior = toy.response_log_probs(toy.human)
    wanted = measure(toy, residual(0.25, 0.2), optimum(residual(0.25, 0.2), log_prior, toy.rewards), log_prior)
    generator, values = torch.Generator().manual_seed(0), {"omega": 0.1, "own": wanted.log_prior + 1.0}
    for step in range(steps):
        chances = optimum(residual(values["omega"], 0.2), log_prior, toy.rewards).exp()
        rows = torch.multinomial(chances, prompts * responses, replacement=True, generator=generator)
        now = SimpleNamespace(global_step=step, max_steps=steps)
        move_omega(values, 0.2, log_prior[rows].view(prompts, responses), 1.0, 0.1, now)
    assert values["omega"] == pytest.approx(0.25, abs=0.01)


FEW = {"omega": 0.3, "own": -4.0}  # log prior whose mean should be -5
KNOWN = FEW | {"squares": 40.0, "degrees": 20.0}  # ... and a variance of 2 that earlier steps told, of which 0.95 stay
WHOLE = 0.2 * 1 / 2  # the step of a mean that is 1 off, where the variance is 2


@pytest.mark.parametrize(
    ("values", "responses", "omega", "squares", "degrees"),
    [
        pytest.param(KNOWN, [[-5.0, -7.0]], 0.3 + 0.5 * WHOLE, 38 + 2, 19 + 1, id="too unlikely"),
        pytest.param(KNOWN, [[-3.0, -5.0]], 0.3 - 0.5 * WHOLE, 38 + 2, 19 + 1, id="too likely"),
        pytest.param(KNOWN | {"omega": 0.01}, [[-3.0, -5.0]], 0.0, 38 + 2, 19 + 1, id="never below 0"),
        pytest.param(KNOWN | {"squares": 0.0}, [[-6.0, -6.0]], 0.3 + 0.5 * 0.2 / 0.1, 0, 19 + 1, id="no variance"),
        pytest.param(KNOWN, [[4.0, -16.0]], 0.3 + 0.5 * WHOLE, 38 + 200, 19 + 1, id="the variance is of earlier steps"),
        pytest.param(FEW, [[-5.0, -7.0]], 0.3, 2, 1, id="too few to know a variance"),
        pytest.param(FEW, [[-4.0, -6.0], [-104.0, -106.0]], 0.3, 4, 2, id="how far apart prompts are is no variance"),
        pytest.param(
            KNOWN, [[-4.0, -8.0, torch.nan], [-6.0, torch.nan, torch.nan]], 0.3 + 0.5 * WHOLE, 38 + 8, 19 + 1,
            id="what nobody judged is as if it were not there",
        ),
    ],
)  # fmt: skip
def test_a_step_of_omega_by_hand(
    values: dict[str, float], responses: list[list[float]], omega: float, squares: float, degrees: float
) -> None:
    """The first of two steps, with a budget of 1 and a rate of a half."""
    after = dict(values)
    move_omega(after, 0.2, torch.tensor(responses), 1.0, 0.5, SimpleNamespace(global_step=0, max_steps=2))
    assert after == pytest.approx({"omega": omega, "own": -4.0, "squares": squares, "degrees": degrees})


@pytest.mark.parametrize(("step", "omega"), [(0, 0.35), (1, 0.325), (2, 0.3)])
def test_a_budget_of_nats_is_below_the_priors_own_and_steps_shorten_to_nothing(step: int, omega: float) -> None:
    values, state = dict(KNOWN), SimpleNamespace(global_step=step, max_steps=2)
    assert move_omega(values, 0.2, torch.tensor([[-5.0, -7.0]]), 1.0, 0.5, state) == 2.0
    assert values["omega"] == pytest.approx(omega)


def test_the_priors_own(toy: Toy, prior: Path) -> None:
    model, tokenizer = load(prior), AutoTokenizer.from_pretrained(prior)
    log_prior = policy_log_probs(toy, model)
    exact = float((log_prior.exp() * log_prior).sum())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert prior_mean_log_prob(ModelView(model), tokenizer, PROMPTS, 2000, 4) == pytest.approx(exact, abs=0.15)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_priors_own_needs_no_token_to_pad_with(prior: Path) -> None:
    """Of prompts of two lengths, which are padded; what fills them up does not count."""
    model, tokenizer = load(prior), AutoTokenizer.from_pretrained(prior)
    rows = [{"prompt": "."}, {"prompt": ".ab"}]
    with_padding = prior_mean_log_prob(ModelView(model), tokenizer, rows, 20, 4)
    tokenizer.pad_token = None
    assert prior_mean_log_prob(ModelView(model), tokenizer, rows, 20, 4) == pytest.approx(with_padding, rel=1e-5)


def test_the_priors_own_is_of_all_prompts_where_samples_are_fewer(prior: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of responses that end at once, half of them to each kind of prompt, as the data has them."""
    model, tokenizer = load(prior), AutoTokenizer.from_pretrained(prior)
    monkeypatch.setattr("repolicy.llm.budget.sample", lambda _, __, ids, *others, **named: [[0]] * len(ids))
    rows = [{"prompt": prompt} for prompt in ["."] * 4 + [".ab"] * 4]
    plain, longer = response_log_probs(model, [([0], [0]), ([0, 1, 2], [0])])
    found = prior_mean_log_prob(ModelView(model), tokenizer, rows, 4, 1)
    assert found == pytest.approx((plain + longer) / 2, abs=1e-5)


def test_a_stream_is_read_no_further_than_samples_are_asked_for(grpo: Build, rloo: Build) -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, str]]:
        for number in count():
            read.append(number)
            assert number < 3000  # TRL shuffles the first thousand
            yield {"prompt": "."}

    of_rows = grpo(budget=1.0)
    of_rows.before_first_step()
    stream = IterableDataset.from_generator(endless)
    streamed = grpo(budget=1.0, train_dataset=stream, max_steps=1)
    streamed.before_first_step()
    assert streamed.memory.values == of_rows.memory.values
    assert max(read) == 63
    trainer, budget = rloo(train_dataset=stream, max_steps=1)
    budget.on_train_begin(trainer.args, trainer.state, None, trainer.get_train_dataloader())
    assert budget.values["own"] == of_rows.memory.values["own"]
    few = IterableDataset.from_generator(lambda: iter([{"prompt": "."}, {"prompt": ".ab"}]))
    assert spread_prompts(few, 3) == [".", ".ab", "."]


def test_the_prior_is_measured_without_its_wrapper(grpo: Build) -> None:
    """DeepSpeed's engine, as that of DataParallel, has no `config` of the model inside."""
    ours, wrapped = (grpo(budget=1.0) for _ in range(2))
    wrapped.ref_model = torch.nn.DataParallel(wrapped.ref_model)
    for trainer in (ours, wrapped):
        trainer.before_first_step()
    assert ours.memory.values == wrapped.memory.values


SHORT = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "logging_strategy": "steps", "logging_steps": 1}


def test_a_resumed_run_ends_in_the_same_numbers(grpo: Build) -> None:
    ours = grpo(budget=1.0, prior_share=0.25, **SHORT)
    ours.train()
    logged = [entry["residual/omega"] for entry in ours.state.log_history if "residual/omega" in entry]
    assert logged[0] == 0.2
    assert len(set(logged)) == 2
    again = grpo(budget=1.0, prior_share=0.25, **SHORT)
    again.train(resume_from_checkpoint=f"{ours.args.output_dir}/checkpoint-1")
    assert again.memory.values == ours.memory.values
    assert torch.equal(weights(again), weights(ours))
    with pytest.raises(UsageError, match="trained with budget 1.0, and this run has 2.0"):
        grpo(budget=2.0, prior_share=0.25, **SHORT).train(resume_from_checkpoint=f"{ours.args.output_dir}/checkpoint-1")


def test_through_rloo_also_resumed(rloo: Build) -> None:
    trainer, budget = rloo(**SHORT)
    trainer.train()
    logged = [entry["budget/omega"] for entry in trainer.state.log_history if "budget/omega" in entry]
    assert logged[0] == pytest.approx(0.2)
    assert len(set(logged)) == 2
    again, same = rloo(**SHORT)
    again.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-1")
    assert same.values == budget.values
    assert torch.equal(weights(again), weights(trainer))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (rloo_settings(residual(0.2, 0.2)), r"reward_weights ends in 0, .* rloo_settings\(objective, budget=True\)"),
        ({"beta": 0.1}, "beta is 0.1; it must be 0.2"),
        ({"temperature": 0.7}, "temperature is 0.7; it must be 1.0"),
        ({"reward_clip_range": [-1.0, 1.0]}, r"reward_clip_range is \[-1.0, 1.0\]; it must be None"),
        ({"sync_ref_model": True}, "sync_ref_model is True; it must be False"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions is True; it must be False"),
        ({"top_p": 0.9}, "top_p is 0.9; it must be 1.0"),
        ({"top_k": 2}, "top_k is 2; it must be 0"),
        ({"min_p": 0.1}, "min_p is 0.1; it must be None"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1; it must be 1.0"),
    ],
)
def test_an_rloo_that_would_not_follow_the_budget_is_refused(
    settings: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    objective = residual(0.2, 0.2)
    args = RLOOConfig(**{**settings, **ONLINE, **rloo_settings(objective, budget=True), **more})
    with pytest.raises(UsageError, match=words):
        PriorBudget(None, None, objective, 1.0).on_train_begin(args, TrainerState(), None)


def test_a_budget_that_is_no_callback_is_refused(rloo: Build) -> None:
    trainer, _ = rloo(max_steps=1, callbacks=lambda _: None)
    with pytest.raises(UsageError, match="give the trainer callbacks=budget.callbacks"):
        trainer.train()


@pytest.mark.parametrize(("name", "value"), [("samples", 0), ("nats", float("nan"))])
def test_a_budget_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f" is {value}"):
        PriorBudget(None, None, residual(0.2, 0.2), **{"nats": 1.0, name: value})


def test_what_ranks_exchange_lies_on_their_device() -> None:
    """An accelerator on another device than the CPU, which hands over what all ranks have: a mean of -6."""
    devices: list[str] = []

    def gather(values: torch.Tensor) -> torch.Tensor:
        devices.append(values.device.type)
        return torch.tensor([-5.0, -7.0])

    class Trainer:
        model = SimpleNamespace(training=True)
        accelerator = SimpleNamespace(device=torch.device("meta"), gather=gather)

        def log(self, *_: Any) -> None: ...

    budget = PriorBudget(None, None, residual(0.2, 0.2), 1.0, rate=0.5)
    budget.log_prior = lambda **_: [-5.0]
    budget.group_size = 2
    budget.values |= KNOWN | {"omega": 0.2}
    told = {"log_extra": Trainer().log, "log_metric": Trainer().log}
    budget(["."], [[1, 0]], trainer_state=SimpleNamespace(global_step=0, max_steps=1), **told)
    assert devices == ["meta"]
    assert budget.omega == pytest.approx(0.2 + 0.5 * WHOLE)


def test_a_prior_goes_from_the_cpu_to_the_trainers_device(
    prior: Path, rloo: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device `meta` stands for a GPU."""
    devices: list[str] = []

    def seen(view: Any, *_: Any) -> Any:
        devices.append(getattr(view, "model", view).device.type)
        return -1.0

    monkeypatch.setattr("repolicy.llm.budget.prior_mean_log_prob", seen)
    monkeypatch.setattr("repolicy.llm.rloo.response_log_probs", seen)
    trainer, budget = rloo()
    device = {"device": torch.device("meta")}
    budget.on_train_begin(
        SimpleNamespace(**vars(trainer.args) | device), trainer.state, None, trainer.get_train_dataloader()
    )
    log_prior = prior_reward(load(prior), AutoTokenizer.from_pretrained(prior))
    log_extra = MethodType(print, SimpleNamespace(accelerator=SimpleNamespace(**device)))
    log_prior(prompts=["."], completion_ids=[[1, 0]], log_extra=log_extra)
    assert devices == ["meta", "meta"]
    with pytest.raises(UsageError, match="the rows have images"):
        log_prior(prompts=["."], completion_ids=[[1, 0]], images=["a.png"])


def test_the_prior_answers_prompts_as_the_trainer_writes_them(
    prior: Path, grpo: Build, rloo: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, off, seen = load(prior), {"enable_thinking": False}, list[Any]()
    chat = AutoTokenizer.from_pretrained(prior)
    chat.apply_chat_template = lambda *_, add_generation_prompt, return_dict, **switches: (
        seen.append(switches) or {"input_ids": [0]}
    )
    prior_mean_log_prob(ModelView(model), chat, [{"prompt": [{"role": "user", "content": "a"}]}], 2, 1, off)
    assert seen == [off] * 2

    handed: list[Any] = []
    for module in ("grpo", "budget"):
        monkeypatch.setattr(
            f"repolicy.llm.{module}.prior_mean_log_prob", lambda *given: handed.append(given[-1]) or -1.0
        )
    grpo(budget=1.0, chat_template_kwargs=off).before_first_step()
    trainer, budget = rloo(chat_template_kwargs=off)
    budget.on_train_begin(trainer.args, trainer.state, None, trainer.get_train_dataloader())
    assert handed == [off, off]


def test_a_generation_moves_omega_once(grpo: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a step uses it twice."""
    moves: list[int] = []
    monkeypatch.setattr("repolicy.llm.grpo.move_omega", lambda *given: moves.append(given[-1].global_step) or 0.0)
    twice = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_iterations": 2}
    grpo(budget=1.0, budget_samples=2, max_steps=2, **twice).train()
    assert moves == [0, 1]


def test_an_evaluation_moves_no_weight(rloo: Build) -> None:
    trainer, budget = rloo()
    trainer.model.eval()
    answers = {"prompts": ["."] * 3, "completion_ids": [[1, 0], [2, 0], [3, 0]]}  # no whole number of groups
    told = {"log_extra": trainer._log_completion_extra, "log_metric": None, "trainer_state": None}
    assert len(budget(**answers, **told)) == 3
    assert budget.omega == 0.2
