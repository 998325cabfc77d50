"""Sweeps: what is refused before anything is written, and what each point is trained and evaluated with."""

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
from repolicy.evaluation import EVALUATION_SEED, evaluate
from repolicy.files import write_bytes, write_json
from repolicy.many.pool import Job
from repolicy.many.sweep import sweep
from repolicy.many.sweep_folder import SweepFolder
from repolicy.many.tradeoff import SweepResult
from repolicy.objective import soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import read_policy
from repolicy.ranges import Range
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings


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


def prior_file(folder: Path, **card: Any) -> Path:
    policy = Policy(PolicySpec(4, ActionSpace("continuous", (1,), (-3.0,), (3.0,))))
    save_policy(folder / "prior.safetensors", policy, {"request": {"env": "InvertedPendulum-v4"}} | card)
    return folder / "prior.safetensors"


@pytest.fixture
def prior(tmp_path: Path) -> Path:
    return prior_file(tmp_path)


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


def test_a_missing_wish_and_a_missing_ray_are_told_before_anything_slow(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="a sweep needs an add-on, the new requirement: --addon NAME"):
        sweep(prior, (), [0.1], out=tmp_path / "out", say=lambda sentence: pytest.fail(sentence))
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


def test_a_folder_that_looks_like_an_option_is_handed_on_whole(
    prior: Path, tmp_path: Path, started: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RepolicyError, match="not today"):
        sweep(prior, [QUIET], [0.1], 0.01, Path("-sw"), Settings(), states=0.0)
    told_paths = [told(started[0], option) for option in ("--settings", "--out", "customize")]
    folder = tmp_path / "-sw"
    assert told_paths == [str(folder / name) for name in ("settings.json", "omega-0.1", "prior.safetensors")]


def test_a_second_sweep_is_refused_before_anything_is_measured(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> None:
        RunFolder(tmp_path / "out").locked().__enter__()

    monkeypatch.setattr("repolicy.many.sweep._choose_for_all", measured)
    with pytest.raises(FileError, match="another run is at work"):
        refused(prior, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    swept = sweep(path, wish, [0.5, 0.0, 0.25], 0.1, tmp_path / "out", Settings(), states=0.0, **given)
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
    path, wish = prior_file(tmp_path, **card), [QUIET]
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
