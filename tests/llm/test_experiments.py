"""The experiments with language models: the toy's own numbers, and a run of each."""

import shutil
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="the extra `llm` is not installed")

from experiments.campaign import run_main
from experiments.ledger import Ledger
from experiments.llm import dial, frontier, gradients, overhead, spelling, toy_training
from experiments.llm import toy as toys
from experiments.llm.__main__ import main
from experiments.llm.toy import Toy
from repolicy import llm
from repolicy.errors import UsageError
from repolicy.objective import residual


def test_gradients_tell_the_reward_from_the_loss() -> None:
    found = gradients.run({"vocabulary": 3, "length": 3, "draws": 3})
    cosine = found["cosine"]
    for name in ("KL: in the reward, returns onward", "entropy: in the reward, returns onward"):
        assert cosine[name] == pytest.approx(1, abs=1e-12)
        assert found["relative_norm"][name] == pytest.approx(1, abs=1e-12)
    assert cosine["KL: k3 in the loss, bias corrected"] < 0.99
    assert cosine["entropy: entropy_coef in the loss"] < 0.99


LITTLE = "--steps 2 --samples 4"


@pytest.mark.parametrize(
    ("line", "runs"),
    [
        (f"frontier --seeds 1 {LITTLE} --omegas 0.2 --pairs 8 --no-controls", 2),
        ("labels --seeds 1 --pairs 4", 4),
        (f"spelling {LITTLE} --pretraining 2 --omegas 0.1", 2),
        (f"sharp --seeds 1 {LITTLE} --omegas 0.6", 3),
        ("dial --seeds 1 --steps 1 --omegas 0.2 0.3", 4),
        (f"budget --seeds 1 {LITTLE} --drawn 8 --starts 0.1", 2),
        ("gradients --vocabulary 3 --length 2 --draws 1", 1),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_whole_experiments_in_little(
    line: str, runs: int, toy: Any, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to table and picture; the second time, nothing is trained again."""
    monkeypatch.setitem(toy_training.WORLDS, "standard", (toy, 1))
    whole, sample = dial.token_milliseconds, spelling.sample
    monkeypatch.setattr(dial, "token_milliseconds", lambda: whole(tokens=2, rows=1, rounds=1))
    monkeypatch.setattr(spelling, "sample", lambda model, count, seed: sample(model, 24, seed))
    shutil.copytree(prior, tmp_path / "priors" / "standard")
    name, *settings = line.split()
    ledger = Ledger(tmp_path / "rows.jsonl")
    words = [name, *settings, "--ledger", str(ledger.path)]
    words += [] if name == "gradients" else ["--priors", str(tmp_path / "priors")]
    main(words)
    found = ledger.rows()
    assert len(found) == runs
    distances = [kl for row in found for kl in [row.get("after")] if isinstance(kl, dict)]
    assert all(torch.tensor(each["kl"]).isfinite() for each in distances)
    assert import_module(f"experiments.llm.{name}").table(found).count("\n|") >= 2
    if name in ("frontier", "labels"):
        monkeypatch.setattr(frontier, "PRIORS", tmp_path / "priors")
        main([*words, "--picture", str(tmp_path / "drawn.png")])
        assert (tmp_path / "drawn.png").exists()
    if name == "dial":
        exact = [row for row in found if row["job"].get("seed", 0) is None]
        assert exact[0]["after"][0]["kl"] == pytest.approx(0, abs=1e-9)  # at the anchor itself
    main(words)
    assert ledger.rows() == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("budget --methods foo", "invalid choice: 'foo' (choose from 'whole', 'rloo')"),
        ("frontier --picture drawn.png", "no.jsonl has no row to draw: run the program without --picture first"),
    ],
)
def test_refused(line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_main(lambda: main([*line.split(), "--ledger", str(tmp_path / "no.jsonl")]))
    assert words in capsys.readouterr().err


def test_a_prior_of_other_pretraining_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = spelling.sample
    monkeypatch.setattr(spelling, "sample", lambda model, count, seed: sample(model, 8, seed))
    first, other = (spelling.run({"omega": None, "pretraining": steps}, tmp_path) for steps in (2, 3))
    assert first["log_prior"] != other["log_prior"]


def test_time_of_steps(prior: Path) -> None:
    for name, ours in (("KTO", False), ("GRPO", True)):
        [time] = overhead.step_times(name, ours, 5, prior, steps=3)
        assert time > 0
    row = {"parent": "GRPO", "tokens": 6, "parent_ms": 50.2, "child_ms": 51.0, "overhead_percent": 1.6}
    assert "| ResidualGRPOTrainer | GRPO | 6 | 50 | 51 | +1.6 % |" in overhead.table([row])


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.llm.spelling.find_spec", lambda name: None)
    words = ["spelling", "--ledger", str(tmp_path / "rows.jsonl"), "--priors", str(tmp_path / "none")]
    with pytest.raises(SystemExit) as end:
        run_main(lambda: main(words))
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said == "repolicy: the names come with the package `names`, which is not installed: pip install names\n"
    for absent in llm.EXTRA:
        monkeypatch.setattr(
            llm, "find_spec", lambda name, absent=absent: None if name == absent else ModuleSpec(name, None)
        )
        with pytest.raises(UsageError, match=f"this needs {absent}, not installed here: pip install"):
            llm.require_trl()


def test_response_log_probs_by_hand() -> None:
    toy = Toy(letters="ae", length=1)
    table = torch.tensor([[[0.1, 0.6, 0.3], [0.5, 0.3, 0.2]], [[0.1, 0.6, 0.3], [0.4, 0.4, 0.2]]]).double().log()
    chances = dict(zip(toy.responses, toy.response_log_probs(table).exp().tolist(), strict=True))
    assert chances == pytest.approx({"": 0.1, "a": 0.3, "e": 0.12, "aa": 0.18, "ae": 0.12, "ea": 0.12, "ee": 0.06})


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


def test_prior_speaks_the_language(toy: Toy, prior: Path) -> None:
    from transformers import AutoModelForCausalLM

    log_probs = toys.policy_log_probs(toy, AutoModelForCausalLM.from_pretrained(prior))
    human = toy.response_log_probs(toy.human)
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-6)
    assert float((human.exp() * (human - log_probs)).sum()) < 0.02


def test_judge_prefers_what_is_rewarded(toy: Toy) -> None:
    pairs = toys.labelled_pairs(["ee"] * 2000, ["a"] * 2000, seed=0)
    share = sum(pair["chosen"] == "ee" for pair in pairs) / 2000
    assert share == pytest.approx(1 / (1 + 2.718281828**-1), abs=0.03)
    good = sum(row["label"] for row in toys.labelled_responses(["ee"] * 2000, seed=0)) / 2000
    assert good == pytest.approx(1 / (1 + 2.718281828**-0.5), abs=0.03)
