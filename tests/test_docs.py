"""The pages' code does what the pages say."""

import importlib
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from pages import DOCS, code, section
from shaken import shaken

from experiments import campaign
from experiments.ledger import Ledger
from experiments.pages import update_page
from experiments.paper import __main__ as paper
from experiments.paper import curves
from experiments.paper.runs import ALL_VARIANTS, OWN_TASKS, TASKS, plan_runs
from experiments.tables import TABLES
from repolicy import load_policy
from repolicy.files import file_sum
from tests.experiments.rows import row


def test_a_policy_of_stable_baselines3_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    theirs = sb3.PPO("MlpPolicy", gymnasium.make("HalfCheetah-v5"), seed=3)
    shaken(theirs.policy)
    theirs.save("theirs.zip")
    exec("".join(code(section("your-policy.md", "Keep a copy of it"))), {})  # as a reader types it
    ours = load_policy("theirs.safetensors")
    observations = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 17)).astype(np.float32))
    actions = torch.linspace(-3.0, 3.0, 300).reshape(50, 6)
    with torch.no_grad():
        _, expected, _ = theirs.policy.evaluate_actions(observations, actions)
    torch.testing.assert_close(ours.log_prob(observations, actions), expected, rtol=1e-4, atol=1e-4)


PROGRAMS = re.compile(r"python(?: -m)? ((?:experiments|benchmarks)[./]\w+)")
PAGES = [*DOCS.glob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_that_pages_name_can_be_started(page: Path) -> None:
    """As modules: a script does not find the other folders."""
    for module in {*PROGRAMS.findall(page.read_text())} - {"experiments.NAME"}:
        importlib.import_module(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_pages_name_are_there(page: Path) -> None:
    for test in re.findall(r"`(?:pytest )?(tests/[\w/.]+)`", page.read_text()):
        assert (DOCS.parent / test).exists(), f"{page.name}: {test}"


def commands(page: str) -> list[str]:
    """The command lines of a page that call an experiment, without what is said beside them."""
    lines = (line.partition("#")[0].strip() for line in (DOCS / page).read_text().splitlines())
    return [line for line in lines if line.startswith("python -m experiments.paper")]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Of a campaign that is done."""
    found = Ledger(tmp_path_factory.mktemp("done") / "ledger.jsonl")
    everything = [*plan_runs(), *plan_runs((*ALL_VARIANTS, *OWN_TASKS, *TASKS))]
    for plan in {plan.key: plan for plan in everything}.values():
        prior = found.path.parent / f"{plan.task}.safetensors"
        prior.touch()
        found.add(row(plan.key, 100.0 + plan.seed, policies=dict.fromkeys(("last", "best"), file_sum(prior))))
    return found


@pytest.mark.parametrize("line", commands("results-paper.md"))
def test_the_commands_of_the_paper_page_run(
    line: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every run in the ledger already, so that there is nothing to train."""
    places = ["--ledger", str(ledger.path), "--runs", str(tmp_path / "runs"), "--priors", str(ledger.path.parent)]
    places += ["--picture", str(tmp_path / "paper.png")] if "--picture" in line else []
    monkeypatch.setattr(curves, "RESAMPLES", 20)
    monkeypatch.setattr(campaign, "run_jobs", lambda *jobs, **options: pytest.fail("there is nothing to train"))
    before = len(ledger.rows())
    monkeypatch.setattr(sys, "argv", ["paper", *line.split()[3:], *places])
    paper.main()
    assert len(ledger.rows()) == before
    assert (tmp_path / "paper.png").exists() == ("--picture" in line)


def test_tables_are_what_the_results_say() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    assert not [page.name for page in pages if update_page(page, TABLES, check=True)]


def test_each_promise_names_a_test_that_exists() -> None:
    promised = re.findall(r"`(tests/[^`]+\.py)::(\w+)`", (DOCS / "comparing.md").read_text())
    assert len(promised) >= 10
    for file, name in promised:
        assert re.search(rf"^def {name}\(", (DOCS.parent / file).read_text(), re.MULTILINE), f"{file} has no {name}"
