"""Comparing two policies: verdicts, how often they err, and the command."""

import json
import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compared import BAD, GOOD, QUADRATIC, a_file
from tiny_envs import LinearQuadratic, constant, stay_near, tiny
from typed_commands import refused, typed

from benchmarks import comparing as simulated
from repolicy.errors import NumericError, UsageError
from repolicy.evaluation import evaluate
from repolicy.many import comparing
from repolicy.many.bets import Margin
from repolicy.many.comparing import (
    EPISODES_PER_ROUND,
    Comparison,
    QuantityComparison,
    compare,
    compare_quantity,
    open_policies,
)
from repolicy.many.varying import Place, VariedComparison
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.kinds import MeanPrior
from repolicy.report import compare_page
from repolicy.runs.result import Result

FIVE = Margin.parse("5%")


def judge(old: np.ndarray, new: np.ndarray, name: str = "basic_reward", margin: Margin = FIVE) -> QuantityComparison:
    return compare_quantity(name, old, new, margin, 0.05)


@pytest.mark.parametrize(
    "kind", ["normal, std 10 %", "lognormal", "1 in 20 falls at once", "tied: successes", "tied: won 1 or lost 1"]
)
def test_a_policy_at_the_margin_is_seldom_called_not_worse(kind: str) -> None:
    noise = np.random.default_rng(1)
    found = simulated.wrong(kind, 500, noise)
    assert found["not_worse"] <= 0.05
    assert found["worse"] <= 0.05


# Verdicts -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("new", "verdict"),
    [(1.1, "better"), (1.0, "not worse"), (0.98, "not worse"), (0.95, "cannot tell"), (0.9, "worse")],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])  # of a reward that is a cost
def test_verdicts(new: float, verdict: str, sign: float) -> None:
    old = sign * np.ones(400)
    row = judge(old, old + new - 1.0)
    assert row.verdict == verdict
    assert row.low <= new - 1.0 <= row.high
    assert judge(old, old + new - 1.0, margin=Margin.parse(0.05)).verdict == verdict


def test_a_loss_beyond_the_margin_may_be_as_large_as_the_return_and_the_margin() -> None:
    """With 0.05 lost beyond it, the largest stake makes 0.75 · 0.05 / 1.05: 20 in 86 bets, after 10 episodes."""
    assert [judge(np.ones(count), np.full(count, 0.9)).verdict for count in (95, 96)] == ["cannot tell", "worse"]


def test_an_interval_may_have_one_end() -> None:
    random = np.random.default_rng(0)
    old, new = random.normal(100.0, 1.0, 40), random.normal(10.0, 5.0, 40)
    for row, shown in ((judge(old, new), "below −"), (judge(-old, -new), "above +")):
        assert any(cell.startswith(shown) for cell in row.cells)


def test_early_ends_decide_nothing_and_their_bound_is_one() -> None:
    none, some = np.zeros(200, bool), np.arange(200) % 4 == 0
    row = compare_quantity("ended_early_share", none, some, None, 0.05)
    assert row.verdict is None
    assert 0.0 < row.low < 0.25 < row.high
    assert row.cells[:5] == ["ended early", "–", "0.0%", "25.0%", "+25.0%"]
    row = compare_quantity("ended_early_share", none, none, None, 0.05)
    assert 0.0 < row.high == -row.low < 0.05
    assert row.cells[4] == "+0.0%"


def test_the_numbers_of_a_row_have_the_same_digits() -> None:
    row = replace(judge(np.ones(400), np.ones(400)), old=7594.3, new=7594.3, low=-0.25, high=350.0)
    assert row.cells[2:] == ["7,594.3", "7,594.3", "+0.0", "−0.2 to +350.0"]


def test_the_worst_of_those_that_decide_is_the_verdict() -> None:
    rows = [judge(np.ones(400), np.full(400, new)) for new in (1.1, 1.0)]
    found = Comparison("", "", 400, 1, True, "5%", 0.05, 0, {"mean": rows, "sampled": []})
    assert found.verdict == "not worse"
    rows.append(judge(np.ones(400), np.full(400, 0.95)))
    assert found.verdict == "cannot tell"


def test_margins() -> None:
    for text, share in (("5%", 0.05), ("2.5 %", 0.025), ("0.0001%", 1e-6)):
        assert Margin.parse(text) == Margin.parse(str(Margin.parse(text))) == Margin(share, True)
    assert Margin.parse(100) == Margin.parse(str(Margin.parse(100))) == Margin(100.0, False)


# Policies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "verdict"), [(GOOD, BAD, "worse"), (BAD, GOOD, "better")])
def test_one_policy_is_better_than_the_other(old: MeanPrior, new: MeanPrior, verdict: str) -> None:
    found = compare(old, new, QUADRATIC, "1e-6", progress=(seen := []).append)
    assert found.verdict == verdict
    assert found.is_paired
    assert seen == [EPISODES_PER_ROUND * (round + 1) for round in range(found.rounds)]
    assert found.episodes == seen[-1] < 200
    rows = {row.name: row for row in found.rows["mean"]}
    assert [*rows] == [row.name for row in found.rows["sampled"]] == ["basic_reward", "length", "ended_early_share"]
    assert rows["length"].old == rows["length"].new == 8.0


@pytest.mark.parametrize("sampled", [False, True])
def test_a_policy_beside_itself_acts_the_same_with_the_same_noise(sampled: bool) -> None:
    found = compare(GOOD, GOOD, QUADRATIC, "0.01", episodes=30, sampled=sampled)
    assert (found.episodes, found.rounds) == (30, 2)
    assert [*found.rows] == (["sampled", "mean"] if sampled else ["mean", "sampled"])
    assert {row.new - row.old for rows in found.rows.values() for row in rows} == {0.0}
    assert json.loads(json.dumps(found.as_dict()))["verdict"] == found.verdict == "cannot tell"


def test_so_few_episodes_that_equal_policies_cannot_be_told_are_called_so() -> None:
    few, more = (compare(GOOD, GOOD, QUADRATIC, each, episodes=count) for each, count in (("5%", 5), (1e3, 92)))
    taken = few.equal_episodes
    assert taken > 92  # as many as equal episodes take
    told = f"--episodes may be too low: two equal policies take about {taken}, clear differences fewer"
    assert (few.sentences()[2:], more.sentences()[2:]) == ([told], [])
    assert ["wrong with a probability" in found.sentences()[1] for found in (few, more)] == [False, True]


def test_how_many_episodes_equal_policies_take_is_foreseen_from_their_spread() -> None:
    returns = np.random.default_rng(0).normal(100.0, 30.0, 400)
    taken = judge(returns, returns).equal_episodes
    before, after = (judge(returns[:last], returns[:last]).verdict for last in (taken - 1, taken))
    assert (before, after) == ("cannot tell", "not worse")
    for known in (25, 50, 75, 100):
        assert judge(returns[:known], returns[:known]).equal_episodes == pytest.approx(taken, rel=0.1)


def test_every_episode_has_a_start_of_its_own() -> None:
    """Two rounds are 50 starts, those of 50 environments with the seeds from the first on."""
    found = compare(GOOD, GOOD, QUADRATIC, "1e-6", episodes=50, seed=4)
    assert (found.episodes, found.rounds) == (50, 2)
    whole = evaluate(GOOD, QUADRATIC, found.episodes, seed=4)
    assert found.rows["mean"][0].old == pytest.approx(whole.basic.mean(), rel=1e-12)


def test_wishes_decide_too() -> None:
    found = compare(GOOD, BAD, QUADRATIC, "1e9", addon=[stay_near, constant], episodes=50)
    rows = {row.name: row for row in found.rows["mean"]}
    assert [row.title for row in found.deciding_rows] == ["basic reward", "stay_near"]  # the other wish is 0 always
    assert len(rows) == 5
    told = [replace(row, verdict="worse" if row.name == "basic_reward" else "better") for row in rows.values()]
    around = VariedComparison([Place({}, replace(found, rows={"mean": told}))])
    assert around.sentences[0] == "worse, with the mean action, by basic reward; the margin is 1e+09"
    assert not [cell for row in around.tables[0][1] for cell in row[1:] if "-" in cell]  # each minus is one


def test_the_wishes_of_both_files_decide_and_a_shared_one_weighs_as_in_the_new_file(tmp_path: Path) -> None:
    near, same = "tiny_envs:stay_near", "tiny_envs:first"
    old = a_file(tmp_path / "old", addons=[f"{near}=2", same])
    new = a_file(tmp_path / "new", addons=[f"{near}=3"])
    for files, weight in (((old, new), 3.0), ((new, old), 2.0)):
        found = compare(*files, episodes=5, trust=True)
        rows = {row.title: row for row in found.deciding_rows}
        assert {*rows} == {"basic reward", "stay_near", "first"}
        alone = compare(*files, addon=f"{near}={weight}", episodes=5, trust=True).deciding_rows[1]
        assert rows["stay_near"].old == alone.old


def test_the_limits_of_the_new_file_are_shown_and_decide_nothing(tmp_path: Path) -> None:
    low, high = "tiny_envs:first<=-9", "tiny_envs:first>=9"
    old, new = a_file(tmp_path / "old", limits=[low]), a_file(tmp_path / "new", limits=[high])
    plain = a_file(tmp_path / "plain")
    for files, title in (((old, new), "first>=9"), ((old, plain), "first<=-9")):
        found = compare(*files, episodes=5, trust=True)
        row = {row.title: row for row in found.rows["mean"]}[title]
        assert row.old == evaluate(old, episodes=5, trust=True).limits["first<=-9"].mean()
        assert [row.title for row in found.deciding_rows] == ["basic reward"]
    named = compare(*files, addon=(), episodes=5, trust=True)  # as in `evaluate`, a named wish leaves the limits out
    assert title not in {row.title for row in named.rows["mean"]}


def test_without_a_reward_a_wish_decides_alone() -> None:
    env = tiny("WithoutReward")
    found = compare(GOOD, BAD, env, addon=stay_near)
    assert found.verdict == "worse"
    assert "basic_reward" not in {row.name for row in found.rows["mean"]}
    with pytest.raises(UsageError, match=r"tells no reward.*--addon"):
        compare(GOOD, BAD, env)


def test_a_reward_that_is_lost_in_some_episodes_is_no_verdict_by_the_wish_alone() -> None:
    said = "the basic reward is not finite in .* of the old policy's 25 episodes and .*new"
    with pytest.raises(NumericError, match=said):
        compare(GOOD, BAD, tiny("SometimesWithoutReward"), addon=stay_near)


def test_a_share_of_nothing_is_no_margin_and_that_is_told() -> None:
    row = replace(judge(np.zeros(400), np.zeros(400)), low=-0.1)
    found = Comparison("", "", 400, 1, True, "5%", 0.05, 0, {"mean": [row]}).sentences()[-1]
    assert found == "basic reward has a mean of 0, of which no share is a margin: name a number, as --not-worse 0.1"


@pytest.mark.parametrize("margin", ["5%", 0.1])
def test_a_reward_that_is_always_0_decides_nothing_beside_another(margin: str | float) -> None:
    """Nothing shows how much of it an episode can lose."""
    found = compare(GOOD, GOOD, QUADRATIC, margin, addon=constant, episodes=25)
    assert [row.name for row in found.deciding_rows] == ["basic_reward"]
    assert next(row.cells[1] for row in found.rows["mean"] if row.name == "addon_reward") == "–"
    alone = compare(GOOD, GOOD, tiny("WithoutReward"), margin, addon=constant, episodes=25)
    assert alone.verdict == "cannot tell"
    assert "add-on reward is 0 in every episode, and nothing else decides" in alone.sentences()[-1]


OTHERS = count()


class Unseeded(LinearQuadratic):
    """Whatever the seed, each start is another."""

    def reset(self, *, seed: int | None = None, options: object = None) -> object:
        return super().reset(seed=next(OTHERS))


def test_an_environment_without_seeds_is_told() -> None:
    found = compare(GOOD, BAD, Unseeded, episodes=100)
    assert not found.is_paired
    assert found.verdict == "worse"
    assert "from starts of their own" in VariedComparison([Place({}, found)]).sentences[1]


# The command ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("words", "code"), [(["--not-worse", "1e3"], 0), (["--not-worse", "1e-9"], 3)])
def test_the_exit_code_tells(words: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_file(tmp_path / "a.safetensors")
    found, out, said = typed(capsys, "compare", path, path, "--trust", "--json", "--episodes", "50", *words)
    values = json.loads(out)
    assert found == code == (0 if values["verdict"] == "not worse" else 3)
    assert said.startswith(f"{values['verdict']}, with the mean action, by basic reward; the margin is ")
    assert values["rows"]["mean"]["basic_reward"]["verdict"] == values["verdict"]
    assert said == f"{compare(path, path, not_worse=words[1], episodes=50, trust=True)}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "other"], "the old policy was made for .* and the new one for Pendulum-v1; .* --env"),
        (["a", "wide"], "the new policy, .*wide, takes observations of 3 numbers, but .* gives 1"),
        (["a", "a", "--not-worse", "little"], "--not-worse is 'little'; it must be a share"),
        (["a", "a", "--not-worse", "0%"], "--not-worse is '0%'"),
        (["a", "a", "--error", "0.7"], "error is 0.7; it must be above 0 and below 0.5"),
        (["bare", "bare"], "does not say which environment it is for; name one with --env"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a_file(Path("a"))
    a_file(Path("other"), "Pendulum-v1")
    a_file(Path("wide"), size=3)
    a_file(Path("bare"), None)
    assert re.search(said, refused(capsys, 2, "compare", *words, "--trust"))


def test_a_file_that_names_its_part_of_an_observation_is_for_the_same_environment(tmp_path: Path) -> None:
    whole, part = a_file(tmp_path / "whole", "Pendulum-v1"), a_file(tmp_path / "part", "Pendulum-v1?observe=state")
    for files in ((whole, part), (part, whole)):
        assert open_policies(*files, None, None, None, False)[1] == "Pendulum-v1?observe=state"


def test_a_runs_result_is_no_policy_and_two_objects_need_an_environment() -> None:
    with pytest.raises(UsageError, match=r"^the new policy is a Result, and no policy; take its .folder"):
        compare("hopper", Result(Path("run"), 0, True, {}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name one: compare"):
        compare(GOOD, BAD)


# The page and the new policy's options --------------------------------------------------------------------------------
@pytest.mark.parametrize("vary", [[], ["--vary", "g=1..10"]])
def test_the_page_shows_the_map_and_films_the_worst_place(
    vary: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shots: list[Any] = []
    monkeypatch.setattr(
        compare_page, "films_for_page", lambda wanted, say: (shots.extend(wanted), ([b"one", b"two"], ""))[1]
    )
    policy = Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)), hidden=(4,)))
    path = tmp_path / "a:b.safetensors"  # a file, though code has a colon, too
    save_policy(path, policy, {"request": {"env": "Pendulum-v1"}})
    words = [str(path), str(path), "--backend", "gymnasium", "--episodes", "2", "--json", *vary]
    code, out, _ = typed(capsys, "compare", *words, "--out", str(tmp_path / "page"))
    assert code == 3  # two episodes tell nothing
    assert "has a report already" in typed(capsys, "compare", *words, "--out", str(tmp_path / "page"))[2]
    values = json.loads(out)
    page = (tmp_path / "page" / "report.html").read_text()
    assert values["report"] == str(tmp_path / "page" / "report.html")
    worst = f"?g={values['worst']['g']:g}" if vary else ""
    assert [shot.env for shot in shots] == [f"Pendulum-v1{worst}"] * 2
    assert ("Where it was tried" in page) == bool(vary)
    assert '<p class="verdict">Not shown: cannot tell' in page
    assert "what the words mean" in page
    assert page.count("g = ") >= 6 * bool(vary)
    assert len(values.get("places", [])) == (5 if vary else 0)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("stdd=1", "there is no option --stdd; did you mean --std"),
        ("file_activation=relu", "a is Repolicy's own file: leave out --of-new file-activation, for"),
        ("std=x", "--std is 'x'; it must be a number"),
        ("std=0.2", "a is Repolicy's own file: leave out --of-new std, for files of other libraries\n"),
    ],
)
def test_options_for_the_new_policys_file(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = a_file(tmp_path / "a")
    assert said in refused(capsys, 2, "compare", path, path, "--of-new", word)


def test_it_is_said_which_policy_lacks_a_std(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, code = str(a_file(tmp_path / "a")), tmp_path / "mine.py"
    code.write_text("def act(observations):\n    return observations[:, :1]\n")
    said = refused(capsys, 2, "compare", own, f"{code}:act", "--env", "Pendulum-v1")
    assert "the new policy: " in said
    assert "act gives a mean and no std: give one, such as --of-new std=0.2 (in Python" in said
    said = refused(capsys, 2, "compare", own, f"{code}:act", "--env", "Pendulum-v1", "--of-new", "std=fit")
    assert "--of-new std=fit needs recorded actions of this policy: --of-new demonstrations=FILE.npz" in said
    said = refused(capsys, 2, "compare", f"{code}:act", own, "--env", "Pendulum-v1")
    assert "the old policy: " in said
    assert "--of-new" not in said


def test_a_planner_is_compared_in_the_environments_that_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = SimpleNamespace(backend="gymnasium", watch=lambda envs: None)
    sides = [
        SimpleNamespace(agent=agent, card={}, path=Path())
        for agent in (Policy(PolicySpec(3, ActionSpace("continuous", (1,)))), planner)
    ]
    monkeypatch.setattr(comparing, "open_policies", lambda *_: (sides, "Pendulum-v1"))
    seen: list[str] = []

    def placed(side: Any, env: str, backend: str) -> None:
        seen.append(backend)
        raise UsageError("enough")

    monkeypatch.setattr(comparing, "_fit_to_env", placed)
    for given in ("auto", "envpool"):
        with pytest.raises(UsageError, match="enough"):
            compare("old", "new", "Pendulum-v1", addon=(), backend=given)
    assert seen == ["gymnasium", "envpool"]
