"""The bend of a trade-off, and sweeps that are refused before anything is written."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import noise_worlds
import numpy as np
import pytest
from compared import constant, point_jobs_replaced
from several import QUIET
from tiny_envs import tiny

from repolicy.cli.main import main
from repolicy.errors import FileError, RepolicyError, UsageError
from repolicy.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.files import write_bytes, write_json
from repolicy.many.pool import Job
from repolicy.many.sweep import sweep
from repolicy.many.sweep_folder import SweepFolder, sorted_omegas
from repolicy.many.tradeoff import Point, SweepResult, knee
from repolicy.objective import soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import read_policy
from repolicy.ranges import Range
from repolicy.report.sweep_page import tradeoff_note
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

XS = np.linspace(0.0, 1.0, 11)


@pytest.mark.parametrize(
    ("gains", "index"),
    [
        (1.0 - (1.0 - XS) ** 2, 5),  # gain − cost = x − x²
        (np.minimum(1.0, 5.0 * XS), 2),  # an elbow
        (XS**0.25, 2),  # x^¼ − x has its top at ¼^(4/3) = 0.157
    ],
)
def test_the_knee_of_a_curve_is_where_it_is_known_to_be(gains: np.ndarray, index: int) -> None:
    assert knee(XS, gains) == index
    assert knee(300.0 * XS - 40.0, 0.01 * gains + 7.0) == index
    assert knee(XS[::-1], gains[::-1]) == 10 - index


def test_a_trade_off_that_only_loses_has_its_knee_at_the_start() -> None:
    assert knee(np.array([0.0, 1.0, 2.0]), np.array([5.0, 4.0, 3.0])) == 0
    assert knee(np.array([1.0, 1.0]), np.array([2.0, 2.0])) == 0


def found(*points: tuple[float, ...], spread: float = 0.0, episodes: int = 2, shared: bool = False) -> SweepResult:
    """A sweep that found (ω′, basic, add-on) of each, in episodes around it; the first is the prior's."""
    waves = spread * np.random.default_rng(0).choice([-1.0, 1.0], (1 if shared else len(points), episodes))
    waves = np.broadcast_to(waves - waves.mean(1, keepdims=True), (len(points), episodes))
    nowhere, made = Path("nowhere"), []
    for (omega, basic, addon), wave in zip(points, waves, strict=True):
        made.append(Point(omega, nowhere, evaluation(basic + wave, addon + wave), None))
    return SweepResult({}, nowhere, made[0], made[1:], {})


def evaluation(basic: np.ndarray, addon: np.ndarray) -> Evaluation:
    one = np.ones(len(basic))
    return Evaluation("env", "gymnasium", True, 0, basic, addon, None, one, one, one)


def test_a_point_is_judged_by_sampled_noise_where_that_is_what_acts() -> None:
    mean, sampled = (evaluation(np.full(2, basic), np.full(2, addon)) for basic, addon in ((1.0, 2.0), (3.0, 4.0)))
    for env, judged in (("env", (1.0, 2.0)), (noise_worlds.named("same"), (3.0, 4.0))):
        point = Point(0.1, Path("nowhere"), *(dataclasses.replace(each, env=env) for each in (mean, sampled)))
        assert (point.basic, point.addon) == judged


# HalfCheetah's hind leg, as docs/results-customizing.md has it
SWEPT = [(np.inf, 7599.0, -3899.0), (0.1, -60.0, -22.0), (0.17, 3846.0, -757.0), (0.3, 6071.0, -1733.0)]
SWEPT += [(0.6, 7162.0, -2855.0), (1.0, 7427.0, -3319.0), (3.0, 7572.0, -3756.0)]


def test_no_point_has_the_best_total_where_that_is_the_priors() -> None:
    better = found((np.inf, 3.0, 0.0), (0.1, 0.0, 2.0), (1.0, 2.0, 2.0))
    assert (better.best, better.first_shown, dataclasses.replace(better, is_addon_dialed=True).best) == (1, 1, None)
    assert found((np.inf, 5.0, 0.0), (0.1, 0.0, 2.0), (1.0, 2.0, 2.0)).best is None
    assert found((np.inf, 5.0, 1.0), (0.1, 4.0, 1.0), (1.0, 1.0, 0.0)).first_shown == 0  # what a page opens at


def test_no_point_has_the_best_total_where_chance_alone_could_lift_it_above_the_prior() -> None:
    random, named, starts = np.random.default_rng(1), 0, np.linspace(0.0, 5.0, 10)
    for noise in random.normal(0.0, 1.0, (200, 11, 10)):  # ten positions of ten episodes, drawn as the prior's
        points = [Point(0.1, Path("nowhere"), evaluation(starts + each, 0.0 * starts), None) for each in noise]
        swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
        named += swept.best is not None
    assert named <= 10
    shown = swept.best, swept.tied_points, swept.marks(0), "highest total" in tradeoff_note(swept)
    assert shown == (None, 0, "", False)


def test_a_total_that_is_as_good_in_the_same_episodes_is_counted() -> None:
    """Episodes that differ by 40 among themselves, and by less than 2 from point to point."""
    starts, none = np.array([60.0, 80.0, 100.0, 80.0]), np.zeros(4)
    noise = np.array([1.0, -1.0, 1.0, -1.0])
    totals = {np.inf: starts - 9.0, 0.1: starts + 2.0, 0.3: starts + 1.9 + noise, 1.0: starts + 0.5}
    points = [Point(omega, Path("nowhere"), evaluation(each, none), None) for omega, each in totals.items()]
    swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
    assert (swept.best, swept.tied_points, swept.marks(0)) == (0, 1, " (one of 2 best totals)")
    assert "the highest total, ω′ 0.1 (1 other cannot be told from it)" in tradeoff_note(swept)
    alone = SweepResult({}, Path("nowhere"), points[0], [points[1], points[3]], {})
    assert (alone.tied_points, alone.marks(0)) == (0, " (best total)")


def test_the_knee_of_a_sweep_does_not_move_for_a_point_that_lost_everything() -> None:
    assert found(*SWEPT).verdict == "the trade-off bends at ω′ 0.3"
    assert found(*SWEPT, (0.0, -1.9e6, -10.0)).verdict == "the trade-off bends at ω′ 0.3"


def test_a_sweeps_points_are_one_training_run_each_and_a_dials_are_one_network() -> None:
    dial = found(*SWEPT)
    sweep = dataclasses.replace(dial, request={"settings": {}})
    assert sweep.verdict == f"{dial.verdict}, of one training run a point: another --seed may move it"
    assert ["Each point is one training run" in tradeoff_note(each) for each in (sweep, dial)] == [True, False]


def test_a_line_has_no_knee_and_a_loss_is_called_one() -> None:
    assert "has no knee" in found(SWEPT[0], SWEPT[4]).verdict
    assert found((np.inf, 10.0, 5.0), (0.1, 9.0, 4.0)).verdict == "no value of ω′ gains on the prior"


def test_a_knee_is_named_only_where_it_is_larger_than_its_error() -> None:
    """At ω′ 0.3 and 0.6 the curve bends almost alike; with an error of 5,000 / √50 they cannot be told apart."""
    assert found(*SWEPT, spread=5.0, episodes=50).verdict == "the trade-off bends at ω′ 0.3"
    hidden = found(*SWEPT, spread=5000.0, episodes=50)
    assert hidden.knee is None
    assert hidden.verdict.startswith("no clear knee: the points' errors are too large; try more --episodes")
    # A start that is bad for all points alike tells nothing about the bend.
    assert found(*SWEPT, spread=5000.0, episodes=50, shared=True).verdict == "the trade-off bends at ω′ 0.3"
    assert found(*SWEPT, episodes=1).knee is None  # one episode says nothing of its error


def test_a_sweep_that_knows_no_basic_reward_is_bent_by_the_kl() -> None:
    """KL is a mean over steps: episodes are drawn with their lengths."""
    unknown, lengths = np.full(50, np.nan), np.tile([10.0, 90.0], 25)
    points = []
    for omega, kl, addon in ((np.inf, 0.0, 0.0), (1.0, 0.1, 8.0), (0.1, 1.0, 10.0)):
        mean, sampled = (evaluation(unknown, np.full(50, addon)) for _ in range(2))
        sampled = dataclasses.replace(sampled, deterministic=False, lengths=lengths, log_prior=-kl * lengths)
        points.append(Point(omega, Path("nowhere"), mean, dataclasses.replace(sampled, log_policy=0 * lengths)))
    swept = SweepResult({}, Path("nowhere"), points[0], points[1:], {})
    assert swept.cost_name == "kl_a_step"
    assert swept.knee == 0
    assert swept.table()[0][-2:] == ["log prior a step", "KL a step"]


def test_of_a_generative_policy_the_distance_is_that_of_a_decision() -> None:
    ones = np.ones(2)
    made = dataclasses.replace(evaluation(ones, ones), env="X?decoder=d.pt&noise=8&chunk=4", log_prior=-ones)
    point = Point(np.inf, Path("nowhere"), made, dataclasses.replace(made, deterministic=False, log_policy=ones))
    swept = SweepResult({}, Path("nowhere"), point, [point], {})
    assert swept.table()[0][-2:] == ["log prior a decision", "KL a decision"]


def test_a_table_shows_what_episodes_vary_by() -> None:
    made = dataclasses.replace(evaluation(np.array([1.0, 3.0]), np.zeros(2)), deterministic=False)
    lost = dataclasses.replace(evaluation(np.array([-1.0, 0.0]), np.zeros(2)), deterministic=False)
    first, point = (Point(np.inf, Path("nowhere"), each, each) for each in (made, lost))
    _, rows = SweepResult({}, Path("nowhere"), first, [point], {}).table()
    assert [row[1:3] for row in rows] == [["2.00 ± 1.41", "100%"], ["−0.50 ± 0.71", "−25%"]]


@pytest.mark.parametrize(
    ("omegas", "said"),
    [
        ([], "--omega 0 0.05"),
        ([0.1, 0.2, 0.1], "0.1 more than once"),
        ([0.1, -0.2], "omega is -0.2"),
        ([float("nan")], "omega is nan"),
        ([0.1 + 0.2, 0.3], "has 0.3 more than once"),
        ([0.0, -0.0], "has 0 more than once"),
        (["a"], "omega is 'a'; it must be a finite number"),
        ("0.1", "omega is '0.1'"),
        (-1.5, "omega is -1.5"),
        (np.array([0.1, 0.1]), "has 0.1 more than once"),
    ],
)
def test_values_that_make_no_sweep_are_refused(omegas: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sweep("hopper", "height", omegas)


def test_a_policy_that_is_no_file_is_refused_without_showing_all_of_it() -> None:
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,))))
    with pytest.raises(UsageError, match="not a Policy: save it and name it$"):
        sweep(policy, "none", [0.1])


def test_values_come_in_order() -> None:
    assert sorted_omegas([0.2, 0, 0.1]) == [0.0, 0.1, 0.2]


@pytest.fixture
def prior(tmp_path: Path) -> Path:
    path = tmp_path / "prior.safetensors"
    space = ActionSpace("continuous", (1,), (-3.0,), (3.0,))
    save_policy(path, Policy(PolicySpec(4, space)), {"request": {"env": "InvertedPendulum-v4"}})
    return path


def refused(prior: Path, out: Path, resume: bool = False, alpha: Any = 0.01, **options: Any) -> None:
    sweep(prior, [QUIET], [0.1], alpha, out, options.pop("settings", Settings()), resume=resume, **options)


def test_a_folder_in_use_is_left_as_it_is(prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that is said before anything is measured."""
    monkeypatch.setattr("repolicy.many.sweep.choose_weights", lambda *_: pytest.fail("measured"))
    out = tmp_path / "out"
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="sweep.json cannot be written: Not a directory"):
        refused(prior, tmp_path / "file" / "out")
    kept = {"env": "InvertedPendulum-v4", "addons": [QUIET], "alpha": 1.0, "states": 0.0}
    kept |= {"settings": {}, "sparse": False}
    write_json(out / "sweep.json", {"request": kept, "omegas": [0.2]})
    before = (out / "sweep.json").read_bytes()
    (out / "prior.safetensors").write_bytes(b"another")
    with pytest.raises(UsageError, match="holds a sweep already"):
        refused(prior, out)
    monkeypatch.undo()
    with pytest.raises(UsageError, match=r"other settings: alpha was 1.0 and is now 0.01; .*the prior is another"):
        refused(prior, out, resume=True)
    assert (out / "sweep.json").read_bytes() == before
    (out / "sweep.json").write_text("no JSON")
    with pytest.raises(FileError, match="cannot be read"):
        refused(prior, out, resume=True)


def test_a_runs_folder_is_no_sweeps_folder(prior: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "run" / "run.json", {"request": Request("Hopper-v4", soft(0.1), Settings()).as_dict()})
    with pytest.raises(UsageError, match="holds a run, not a sweep"):
        refused(prior, tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": -1}, "jobs is -1"), ({"episodes": 0}, "episodes is 0"), ({"states": -1}, "states is -1"),
        ({"alpha": Range(0.1, 0.4)}, "alpha is 0.1..0.4; a sweep needs one"),
        ({"settings": {"kl_budget": 1.0}}, "a budget moves omega by itself"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(prior: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        refused(prior, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_missing_wish_is_told_before_anything_slow(prior: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a sweep needs an add-on, the new requirement: --addon NAME"):
        sweep(prior, (), [0.1], out=tmp_path / "out", say=lambda sentence: pytest.fail(sentence))


def test_a_missing_ray_is_told_before_the_add_on_is_tried(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("repolicy.many.sweep.try_addon", lambda *_: pytest.fail("tried"))
    with pytest.raises(UsageError, match="--ray needs the package ray: pip install"):
        refused(prior, tmp_path / "out", on_ray=True)


@pytest.mark.parametrize("name", ["settings.json", "prior.safetensors", "report.html"])
def test_a_sweep_writes_over_nobodys_files(prior: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} is there already, and of no sweep"):
        refused(prior, tmp_path / "mine")
    assert (tmp_path / "mine" / name).read_text() == "mine"


def test_a_sweep_that_was_killed_before_its_first_word_begins_anew(tmp_path: Path) -> None:
    """The copy of the prior is written first; another prior's is somebody's."""
    write_bytes((folder := SweepFolder(tmp_path)).prior, b"prior")
    with pytest.raises(UsageError, match="prior.safetensors is there already"):
        folder.claim({"settings": {}}, [0.1], b"another", 1)
    assert folder.claim({"settings": {}}, [0.1], b"prior", 1) == [0.1]
    assert folder.content.exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The programs of the points, none of which runs."""
    found = list[tuple[str, ...]]()
    point_jobs_replaced(monkeypatch, lambda job: found.append(job.program) or "not today")
    return found


def chosen(observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray, info: object) -> np.ndarray:
    """Pays the action itself."""
    return np.asarray(actions[..., 0], dtype=float)


def test_each_point_is_evaluated_with_its_own_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's action is ω′, and a step pays the action; the prior's log-probabilities stand beside it."""

    def trained(job: Job) -> None:
        save_policy(Path(told(job.program, "--out"), "policy.safetensors"), constant(omega_of(job.program)), {})

    point_jobs_replaced(monkeypatch, trained)
    path, wish = tmp_path / "prior.safetensors", [f"{__file__}:chosen"]
    save_policy(path, constant(-1.0), {})
    given: dict[str, Any] = {"env": tiny("Counter"), "episodes": 3}
    swept = sweep(path, wish, [0.0, 0.25, 0.5], 0.1, tmp_path / "out", Settings(), states=0.0, **given)
    assert [point.omega for point in swept.points] == [0.0, 0.25, 0.5]
    given |= {"addon": wish, "prior": constant(-1.0), "seed": EVALUATION_SEED}
    for point, action in [(swept.prior, -1.0), *((point, point.omega) for point in swept.points)]:
        assert (point.mean.addon / point.mean.lengths).tolist() == [action] * 3
        assert point.sampled.as_dict() == evaluate(constant(action), **given, deterministic=False).as_dict()


def omega_of(program: tuple[str, ...]) -> float:
    return float(told(program, "--omega") or 0.0)


def told(program: tuple[str, ...], option: str) -> str:
    return program[program.index(option) + 1] if option in program else ""


@pytest.mark.parametrize(("states", "price"), [(None, "0.25"), (0.0, "")])
def test_every_point_prices_states_at_what_a_nat_is_worth(
    tmp_path: Path, started: list[tuple[str, ...]], states: float | None, price: str
) -> None:
    """As a range of omega does, for the small values of both stand still without it."""
    card = {"nat_worth": {"value": 0.25, "error": 0.01, "episodes": 32}, "evaluation": {"evaluation_length": 1000.0}}
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,), (-3.0,), (3.0,))))
    path, wish = tmp_path / "prior.safetensors", [QUIET]
    save_policy(path, policy, {"request": {"env": "InvertedPendulum-v4"}} | card)
    with pytest.raises(RepolicyError, match="not today"):
        sweep(path, wish, [0.0, 0.3], None, tmp_path / "out", Settings(), states=states)
    assert [told(program, "--states") for program in started] == [price, price]
    assert [told(program, "--alpha") for program in started] == ["0.1", "0.1"]  # a third of the smallest above 0
    started.clear()
    with pytest.raises(RepolicyError, match="not today"):  # with another smallest, alpha stays; so do the settings
        sweep(path, wish, [0.03], None, tmp_path / "out", resume=True)
    assert [told(program, "--omega") for program in started] == ["", "0.03", "0.3"]
    assert {(told(program, "--states"), told(program, "--alpha")) for program in started} == {(price, "0.1")}
    started.clear()
    with pytest.raises(UsageError, match="has 0.3 more than once"):  # it would take the folder of 0.3
        sweep(path, wish, [0.3 + 1e-14], None, tmp_path / "out", resume=True)
    assert started == []


@pytest.mark.parametrize(("options", "last"), [({}, ["kl", "2.0"]), ({"alpha": 0.3}, ["residual", "0.3"])])
def test_the_noise_of_every_point_is_held_at_both_its_mean_and_its_width(
    tmp_path: Path, started: list[tuple[str, ...]], options: dict[str, float], last: list[str]
) -> None:
    """At a fixed alpha the points of a large omega would narrow the noise, away from the prior."""
    asked: dict[str, Any] = {"settings": {"backend": "gymnasium"}, "trust": True} | options
    decoder = f"{noise_worlds.HERE}:three"
    with pytest.raises(RepolicyError, match="not today"):
        sweep(
            decoder, [noise_worlds.RIGHT], [0.0, 0.3, 2.0], out=tmp_path / "out", noise=2, chunk=3,
            env=noise_worlds.WALK, **asked,
        )  # fmt: skip
    assert told(started[0], "--objective") == "greedy"
    assert [told(started[2], "--objective"), told(started[2], "--alpha")] == last
    assert all("noise=2&chunk=3" in told(program, "--env") for program in started)
    if options:
        return  # a number stays as it was in the test before
    started.clear()
    with pytest.raises(RepolicyError, match="not today"):
        sweep(decoder, out=tmp_path / "out", resume=True, trust=True)
    assert [told(started[2], "--objective"), told(started[2], "--alpha")] == last


@pytest.mark.parametrize(("jobs", "at_once"), [(0, 3), (2, 2)])
def test_ray_is_given_as_many_points_at_a_time_as_are_asked_for(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, at_once: int
) -> None:
    counts = point_jobs_replaced(monkeypatch, lambda job: "not today")
    monkeypatch.setattr("repolicy.many.pool.connect_to_ray", lambda: None)
    wish, asked = [QUIET], {"states": 0.0, "jobs": jobs, "on_ray": True}
    with pytest.raises(RepolicyError, match="not today"):
        sweep(prior, wish, [0.1, 0.2, 0.3], 0.01, tmp_path / "out", Settings(), **asked)
    assert counts == [at_once]


def test_a_sweep_with_a_failed_point_ends_in_exit_code_1_and_names_it(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(job: Job) -> str:
        save_policy(Path(told(job.program, "--out"), "policy.safetensors"), read_policy(prior).policy, {})
        return "not today" if "0.2" in job.name else ""

    point_jobs_replaced(monkeypatch, trained)
    swept = list[SweepResult]()

    def reported(found: SweepResult, say: object) -> Path:
        swept.append(found)
        return tmp_path / "report.html"

    monkeypatch.setattr("repolicy.report.sweep_page.write_sweep_report", reported)
    words = ["sweep", prior, "--addon", QUIET, "--omega", 0.1, 0.2, "--alpha", 0.01, "--states", 0]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--trust", "--episodes", "1", "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.endswith("repolicy: ω′ 0.2 failed; the same command with --resume tries again\n")
    assert f"\n{swept[0]}\nreport: {tmp_path / 'report.html'}\n" in f"\n{said}"  # as `print` shows it in Python
