"""The paper's runs as data, what they wait for, and which claims hold."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import campaign
from experiments.one import EPISODES
from experiments.paper import __main__ as program
from experiments.paper import printed, tables
from experiments.paper.__main__ import main
from experiments.paper.claims import Claim, examine
from experiments.paper.runs import plan_runs
from experiments.paper.tables import page_tables
from repolicy.cli.main import _parse_command
from repolicy.errors import UsageError
from repolicy.evaluation import EVALUATION_SEED
from repolicy.objective_names import objective_by_name
from repolicy.prepare.defaults import customize_defaults, train_defaults
from tests.experiments.rows import results, row


def test_every_run_is_the_papers() -> None:
    """The words, read by the command line itself, are the objective and the settings that the paper describes."""
    alphas = {"halfcheetah": 0.13472, "hopper": 0.001, "ant": 0.0001}
    omegas = {"halfcheetah": 0.17, "hopper": 0.01, "ant": 0.01}
    ends = {"halfcheetah": 0.01, "hopper": 0.0005, "ant": 0.001}
    plans = plan_runs()
    assert len({plan.key for plan in plans}) == len(plans) == 3 * 10 * 5
    usual: dict[str, dict[str, Any]] = {}
    once = ("residual", "end_entropy")  # whose coefficients no other variant has
    wanted_plans = [plan for plan in plans if plan.seed == 3 and (plan.task == "hopper" or plan.variant in once)]
    for plan in [plan for plan in wanted_plans if plan.variant != "prior"]:
        words = plan.run(Path("halfcheetah")).arguments
        command = _parse_command(list(words))
        alpha = ends[plan.task] if plan.variant == "end_entropy" else alphas[plan.task]
        options = {"omega": omegas[plan.task]} if plan.variant == "residual" else {}
        options |= {} if plan.variant == "no_entropy" else {"alpha": alpha}
        name = "soft" if plan.variant == "soft_state_std" else plan.variant
        assert command.parse_objective() == objective_by_name(name, **options), plan
        usual_ones = train_defaults(words[1]) if words[0] == "train" else customize_defaults("halfcheetah")
        settings = replace(usual_ones, **command.named_settings).as_dict()
        assert (settings["steps"], settings["seed"], settings["ranks"]) == (5_000_000, 3, 1)
        assert settings.pop("family") == ("state_gaussian" if plan.variant == "soft_state_std" else "auto")
        assert settings.pop("critic_warmup") == (0.05 if words[0] == "customize" else 0.0)
        assert settings == usual.setdefault(plan.task, settings), f"{plan} has settings of its own"


def test_every_run_has_its_environment_and_its_add_on() -> None:
    tasks = {"halfcheetah": ("HalfCheetah-v4", "hind_leg"), "hopper": ("Hopper-v4", "height")}
    tasks |= {"ant": ("Ant-v4", "sideways")}
    for plan in plan_runs():
        run = plan.run(Path("prior"))
        assert (run.env, run.addon) == tasks[plan.task]
        words = " ".join(run.arguments)
        assert f" {run.env} " in words or plan.variant == "prior"
        named = plan.variant in ("residual", "kl", "greedy", "full")
        assert (f"--addon {run.addon} " in words) == named, plan
    swimmer = plan_runs(("swimmer", "residual"), 1)[-1].run(Path("prior"))
    assert "--gamma 0.9999 --critic-warmup 0.05 --gae-lambda 0.98 " in " ".join(swimmer.arguments), "as in training"


def test_customizing_waits_for_all_seeds_of_the_prior(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the prior is looked for after each of them, but not where no run needs it."""
    looked: list[str] = []
    told: dict[str, Any] = {}
    monkeypatch.setattr(program, "keep_prior", lambda task, rows, options: looked.append(task))
    monkeypatch.setattr(campaign, "run_missing", lambda runs, options, **named: told.update(named, runs=runs))

    def run(*only: str) -> None:
        argv = ["paper", "--seeds", "2", "--ledger", str(tmp_path / "ledger.jsonl"), "--only", *only]
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
    recommended = {plan.variant: plan for plan in plan_runs(("recommended", "ant"), 1)}
    assert set(recommended) == {"shipped", "ours", "ours_budget", "by_default"}
    assert not {"--omega", "--alpha", "--states"} & set(recommended["by_default"].run(Path("prior")).arguments)
    assert plan_runs(("joints",), 1)[-1].run(Path("prior")).addon == "hind_leg(joint=ffoot)"
    assert {plan.task for plan in plan_runs(("joints",), 1)} == {"halfcheetah"}
    words = plan_runs(("sensitivity", "hopper"), 1)[-1].run(Path("prior")).arguments
    assert " ".join(words).endswith("--omega 0.01 --alpha 0.003 --addon height --steps 5e6 --ranks 1 --seed 0")
    for plan in [plan for plan in plan_runs(("recommended", "swimmer", "full", "ant"), 1) if plan.variant != "shipped"]:
        words = plan.run(Path("halfcheetah")).arguments
        assert _parse_command(list(words)).named_settings["ranks"] == 1
    assert {plan.task for plan in plan_runs(("walker2d",), 1)} == {"walker2d"}


def test_soft_comes_first_and_then_a_seed_at_a_time() -> None:
    keys = [plan.key for plan in plan_runs(("hopper", "table2"), 2)]
    assert keys[:4] == ["hopper/soft/0", "hopper/soft/1", "hopper/prior/0", "hopper/residual/0"]
    assert [key[-1] for key in keys[2:]] == ["0"] * 5 + ["1"] * 5
    assert {plan.variant for plan in plan_runs(("table5",), 1)} == {"soft", "soft_state_std"}


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
        plan_runs(only, seeds)


def test_a_prior_is_evaluated_on_episodes_of_its_own() -> None:
    """Each episode has the seed of its row and its number: none twice, and none of those that it was chosen by."""
    rows = [plan.run(Path()) for plan in plan_runs(("prior", "ant"), 5) if plan.variant == "prior"]
    seeds = {run.evaluation_seed + episode for run in rows for episode in range(run.episodes)}
    assert len(seeds) == 500
    assert not seeds & set(range(EVALUATION_SEED, EVALUATION_SEED + EPISODES))


def test_a_claim_holds_or_does_not_or_cannot_be_told() -> None:
    claim = Claim("soft is better", "soft", "no_entropy", "basic_reward", ("halfcheetah",))

    def verdict(soft: list[float], none: list[float], claim: Claim = claim) -> str:
        return examine(results(soft=soft, no_entropy=none), claim, "halfcheetah").verdict

    assert verdict([9.0, 10.0, 11.0], [1.0, 2.0, 3.0]) == "holds here"
    assert verdict([1.0, 2.0, 3.0], [9.0, 10.0, 11.0]) == "does not"
    assert verdict([1.0, 20.0, 3.0], [9.0, 10.0, 1.0]) == "cannot tell"
    assert verdict([9.0, 10.0], [1.0, 2.0, 3.0]) == "cannot tell"  # one of ten deals is like that
    assert verdict([9.0, 9.1, 9.2, 9.3, 9.4], [1.0]) == "cannot tell"  # one of six
    assert verdict([7.0, 9.0, 10.0], [1.0, 2.0, 3.0, 8.0]) == "cannot tell"  # two of 35, which is 0.057
    assert verdict([9.0, 10.0], []) == "not measured yet"
    near = Claim("up to a tenth", "soft", "no_entropy", "basic_reward", ("halfcheetah",), margin=0.1)
    assert verdict([95.0, 96.0, 97.0], [100.0, 99.0, 98.0], near) == "holds here"
    assert verdict([85.0, 86.0, 87.0], [100.0, 99.0, 98.0], near) == "does not"
    half = Claim("under a half", "soft", "no_entropy", "basic_reward", ("halfcheetah",), share=0.5)
    assert verdict([100.0, 101.0, 102.0], [45.0, 46.0, 47.0], half) == "holds here"
    assert verdict([100.0, 101.0, 102.0], [55.0, 56.0, 57.0], half) == "does not"


def test_the_figures_of_a_claim() -> None:
    """Half of Soft's 20, 24 and 28 is 12 in the mean; Full has 4, 8 and 9."""
    claim = Claim("under a half", "soft", "full", "basic_reward", ("halfcheetah",), share=0.5)
    found = examine(results(soft=[20.0, 24.0, 28.0], full=[4.0, 8.0, 9.0]), claim, "halfcheetah")
    assert found.difference == pytest.approx(5.0)
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low < 5.0 < found.high <= 10.0
    assert found.printed == pytest.approx(0.5 * 4993.7 - 6011.4)


def test_a_claim_is_examined_by_the_best_policies_and_by_sampled_actions() -> None:
    claim = Claim("soft is better", "soft", "no_entropy", "basic_reward", ("halfcheetah",))
    found = results(soft=[9.0, 10.0, 11.0], no_entropy=[1.0, 2.0, 3.0])
    first = examine(found, claim, "halfcheetah")
    assert (first.p, first.others) == (1 / 20, ("holds here", "holds here"))  # of 20 ways to deal three and three
    other_way = examine(results(soft=[1.0], no_entropy=[2.0]), claim, "halfcheetah")
    assert (other_way.verdict, other_way.p) == ("cannot tell", 1 / 2)
    unknown = examine(results(), claim, "halfcheetah")
    assert unknown.p is None
    assert "| not measured yet | – |" in tables.claims([unknown])
    for seed in range(3):
        of = found.rows[f"halfcheetah/soft/{seed}"]
        of["best"]["mean"]["basic_reward"] = [-5.0 - seed, 1.0]
        of["last"]["sampled"]["basic_reward"] = [2.0 + seed, 1.0]  # the other's are 2, 3 and 4
    seen = examine(found, claim, "halfcheetah")
    assert (seen.verdict, *seen.others) == ("holds here", "does not", "cannot tell")
    line = next(line for line in page_tables(found)["paper_claims"]().splitlines() if "or better" in line)
    assert "| HalfCheetah | holds here | 0.050 | does not | cannot tell | 8.00 |" in line


def test_a_prior_is_one_policy_however_often_it_was_evaluated() -> None:
    found = results(residual=[110.0, 112.0, 109.0, 111.0, 113.0], prior=[100.0, 101.0, 100.0, 99.0, 100.0])
    claim = Claim("more", "residual", "prior", "basic_reward", ("halfcheetah",))
    assert examine(found, claim, "halfcheetah").verdict == "holds here"  # one of 2^5 = 32 ways
    assert "| HalfCheetah | Prior | one policy |" in page_tables(found)["paper_table2"]()
    for seed in (3, 4):
        del found.rows[f"halfcheetah/residual/{seed}"]
    assert examine(found, claim, "halfcheetah").verdict == "cannot tell"  # one of 8
    alone = results(residual=[110.0, 112.0, 109.0, 111.0, 113.0], prior=[100.0])
    assert examine(alone, claim, "halfcheetah").verdict == "holds here", "evaluated once, it is one policy, too"


def test_one_seed_and_a_best_seed_have_no_interval() -> None:
    """And a claim says whether the paper's own numbers are as it says: the best of Soft 5,896, without 4,137."""
    claim = Claim("near", "no_entropy", "soft", "basic_reward", ("halfcheetah",), margin=0.1, whose="best seed")
    one = examine(results(no_entropy=[1.0], soft=[2.0, 3.0]), replace(claim, whose="average"), "halfcheetah")
    best = examine(results(no_entropy=[1.0, 4.0], soft=[2.0, 3.0]), claim, "halfcheetah")
    assert best.difference == 4.0 - 3.0
    assert one.difference is not None
    assert [one.low, one.high, best.low, best.high] == [None] * 4
    assert not examine(results(), claim, "halfcheetah").holds_in_print
    assert examine(results(), replace(claim, margin=0.3), "halfcheetah").holds_in_print


def test_what_is_printed_is_what_was_compared_with_the_papers_source() -> None:
    """All 90 pairs stand in it, as a program found; a number that is changed by accident since then is noticed."""
    everything = json.dumps([printed.AVERAGE, printed.BEST, printed.CUSTOMIZED])
    assert sum(everything.count(mark) for mark in "[") == 1 + 2 * 15 + 15 * (1 + 4)
    assert hashlib.sha256(everything.encode()).hexdigest()[:16] == "e91beed5dd79e348"
