"""The paper's runs as data, and what they wait for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import campaign
from experiments.one import EPISODES
from experiments.paper import __main__ as program
from experiments.paper.__main__ import main
from experiments.paper.runs import planned
from repolicy.cli.main import _parsed
from repolicy.envs.evaluation import EVALUATION_SEED
from repolicy.errors import UsageError
from repolicy.objective import named
from repolicy.prepare.defaults import customize_defaults, train_defaults
from tests.experiments.rows import row


def test_every_run_is_the_papers() -> None:
    """The words, read by the command line itself, are the objective and the settings that the paper describes."""
    alphas = {"halfcheetah": 0.13472, "hopper": 0.001, "ant": 0.0001}
    omegas = {"halfcheetah": 0.17, "hopper": 0.01, "ant": 0.01}
    ends = {"halfcheetah": 0.01, "hopper": 0.0005, "ant": 0.001}
    plans = planned()
    assert len({plan.key for plan in plans}) == len(plans) == 3 * 10 * 5
    usual: dict[str, dict[str, Any]] = {}
    once = ("residual", "end_entropy")  # whose coefficients no other variant has
    wanted_plans = [plan for plan in plans if plan.seed == 3 and (plan.task == "hopper" or plan.variant in once)]
    for plan in [plan for plan in wanted_plans if plan.variant != "prior"]:
        words = plan.run(Path("halfcheetah")).words
        command = _parsed(words[0], list(words[1:]))
        alpha = ends[plan.task] if plan.variant == "end_entropy" else alphas[plan.task]
        options = {"omega": omegas[plan.task]} if plan.variant == "residual" else {}
        options |= {} if plan.variant == "no_entropy" else {"alpha": alpha}
        name = "soft" if plan.variant == "soft_state_std" else plan.variant
        assert command.wanted() == named(name, **options), plan
        usual_ones = train_defaults(words[1]) if words[0] == "train" else customize_defaults("halfcheetah")
        settings = replace(usual_ones, **command.settings).as_dict()
        assert (settings["steps"], settings["seed"], settings["ranks"]) == (5_000_000, 3, 1)
        assert settings.pop("family") == ("state_gaussian" if plan.variant == "soft_state_std" else "auto")
        assert settings.pop("critic_warmup") == (0.05 if words[0] == "customize" else 0.0)
        assert settings == usual.setdefault(plan.task, settings), f"{plan} has settings of its own"


def test_every_run_has_its_environment_and_its_add_on() -> None:
    tasks = {
        "halfcheetah": ("HalfCheetah-v4", "hind_leg"),
        "hopper": ("Hopper-v4", "height"),
        "ant": ("Ant-v4", "sideways"),
    }
    for plan in planned():
        run = plan.run(Path("prior"))
        assert (run.env, run.addon) == tasks[plan.task]
        words = " ".join(run.words)
        assert f" {run.env} " in words or plan.variant == "prior"
        named = plan.variant in ("residual", "kl", "greedy", "full")
        assert (f"--addon {run.addon} " in words) == named, plan
    swimmer = planned(("swimmer", "residual"), 1)[-1].run(Path("prior"))
    assert "--gamma 0.9999 --critic-warmup 0.05 --gae-lambda 0.98 " in " ".join(swimmer.words), "as in training"


def test_customizing_waits_for_all_seeds_of_the_prior(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the prior is looked for after each of them, but not where no run needs it."""
    looked: list[str] = []
    told: dict[str, Any] = {}
    monkeypatch.setattr(program, "keep_prior", lambda task, rows, options: looked.append(task))
    monkeypatch.setattr(campaign, "fill", lambda runs, options, **named: told.update(named, runs=runs))

    def run(*only: str) -> None:
        argv = ["paper", "run", "--seeds", "2", "--ledger", str(tmp_path / "ledger.jsonl"), "--only", *only]
        monkeypatch.setattr("sys.argv", argv)
        main()

    run("hopper", "kl", "no_entropy")
    assert looked == ["hopper"]
    runs = {run.key: run for run in told["runs"]}
    rows = {"hopper/soft/0": row("hopper/soft/0", 1.0)}
    assert not told["ready"](runs["hopper/kl/0"], rows)
    assert told["ready"](runs["hopper/no_entropy/0"], rows)
    rows["hopper/soft/1"] = row("hopper/soft/1", 1.0)
    assert told["ready"](runs["hopper/kl/0"], rows)
    told["done"](runs["hopper/soft/1"], rows)
    told["done"](runs["hopper/no_entropy/0"], rows)
    assert looked == ["hopper"] * 2
    run("ant", "no_entropy")
    assert looked == ["hopper"] * 2


def test_what_is_beyond_the_paper_is_made_only_where_it_is_named() -> None:
    recommended = {plan.variant: plan for plan in planned(("recommended", "ant"), 1)}
    assert set(recommended) == {"shipped", "ours", "ours_budget", "by_default"}
    assert not {"--omega", "--alpha", "--states"} & set(recommended["by_default"].run(Path("prior")).words)
    assert planned(("joints",), 1)[-1].run(Path("prior")).addon == "hind_leg(joint=ffoot)"
    assert {plan.task for plan in planned(("joints",), 1)} == {"halfcheetah"}
    words = planned(("sensitivity", "hopper"), 1)[-1].run(Path("prior")).words
    assert " ".join(words).endswith("--omega 0.01 --alpha 0.003 --addon height --steps 5e6 --ranks 1 --seed 0")
    for plan in [plan for plan in planned(("recommended", "swimmer", "full", "ant"), 1) if plan.variant != "shipped"]:
        words = plan.run(Path("halfcheetah")).words
        assert _parsed(words[0], list(words[1:])).settings["ranks"] == 1
    assert {plan.task for plan in planned(("walker2d",), 1)} == {"walker2d"}


def test_soft_comes_first_and_then_a_seed_at_a_time() -> None:
    keys = [plan.key for plan in planned(("hopper", "table2"), 2)]
    assert keys[:4] == ["hopper/soft/0", "hopper/soft/1", "hopper/prior/0", "hopper/residual/0"]
    assert [key[-1] for key in keys[2:]] == ["0"] * 5 + ["1"] * 5
    assert {plan.variant for plan in planned(("table5",), 1)} == {"soft", "soft_state_std"}


@pytest.mark.parametrize(
    ("only", "seeds", "said"),
    [
        (("table3",), 5, "there is no table.*'table3'"),
        (("hoper",), 5, "hopper"),
        ((), 0, "seeds"),
        (("joints", "hopper"), 5, "joints hopper names no run: joint_bthigh"),
    ],
)
def test_what_is_not_in_the_paper_is_refused(only: tuple[str, ...], seeds: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned(only, seeds)


def test_a_prior_is_evaluated_on_episodes_of_its_own() -> None:
    """Each episode has the seed of its row and its number: none twice, and none of those that it was chosen by."""
    rows = [plan.run(Path()) for plan in planned(("prior", "ant"), 5) if plan.variant == "prior"]
    seeds = {run.evaluation_seed + episode for run in rows for episode in range(run.episodes)}
    assert len(seeds) == 500
    assert not seeds & set(range(EVALUATION_SEED, EVALUATION_SEED + EPISODES))
