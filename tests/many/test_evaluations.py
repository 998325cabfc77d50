"""A resumed sweep reuses evaluations that would come out the same, and no others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import constant
from tiny_envs import tiny

from repolicy.envs import Evaluation, evaluate
from repolicy.files import write_json
from repolicy.many import sweep as sweeps
from repolicy.many.evaluations import code_sums, read_evaluations, write_evaluations
from repolicy.many.pool import Job
from repolicy.many.sweep import sweep
from repolicy.policies import save_policy
from repolicy.runs.settings import Settings

BEYOND = "def beyond(observations, actions, next_observations, info):\n    return 1.0 * (actions[..., 0] > {limit})\n"


def same(one: Evaluation, other: Evaluation) -> bool:
    return json.dumps(one.as_dict()) == json.dumps(other.as_dict())


def test_evaluations_are_read_as_they_were_written(tmp_path: Path) -> None:
    """With every array, the parts of a wish in their order; what depends on something else is not read."""
    (tmp_path / "mine.py").write_text(BEYOND.format(limit=0.2))
    wish = [f"{tmp_path}/mine.py:beyond", f"{tmp_path}/mine.py:beyond=3"]
    found = [
        evaluate(constant(0.5), tiny("Counter"), 3, addon=wish, prior=constant(0.0), deterministic=each)
        for each in (True, False)
    ]
    path = tmp_path / "a.json"
    assert read_evaluations(path, {"policy": "a"}) is None
    write_evaluations(path, found, {"policy": "a"})
    assert read_evaluations(path, {"policy": "b"}) is None
    read = read_evaluations(path, {"policy": "a"})
    assert read is not None
    for before, after in zip(found, read, strict=True):
        assert same(before, after)
        assert list(before.wishes) == list(after.wishes)
        assert (before.terminated == after.terminated).all()
        assert after.terminated.dtype == bool
        assert before.basic.dtype == after.basic.dtype


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[str]]]:
    """Sweeps ω′ 0.25 and 0.5, each of which acts with its ω′, paid for actions beyond 0.4; returns what is said."""

    def train(jobs: list[Job], *_: object, on_end: Callable[[Job, str], None], **__: object) -> None:
        for job in jobs:
            folder = Path(job.program[job.program.index("--out") + 1])
            if not (folder / "policy.safetensors").exists():
                save_policy(folder / "policy.safetensors", constant(float(job.name.split()[1])), {})
                (folder / "metrics.jsonl").write_text(json.dumps({"iteration": Settings().iterations}) + "\n")
            on_end(job, "")

    monkeypatch.setattr(sweeps, "run_jobs", train)
    save_policy(tmp_path / "prior.safetensors", constant(-1.0), {})
    (tmp_path / "mine.py").write_text(BEYOND.format(limit=0.4))

    def call(*omegas: float, **options: Any) -> tuple[Any, list[str]]:
        said = list[str]()
        options |= {"states": 0.0, "env": tiny("Counter"), "sparse": True, "say": said.append}
        wish = f"{tmp_path}/mine.py:beyond"
        return sweep(tmp_path / "prior.safetensors", wish, omegas, 0.1, tmp_path / "out", **options), said

    before, said = call(0.25, 0.5, episodes=3, settings=Settings())
    assert [each for each in said if "train" in each or "check" in each] == [
        "training 2 points, 2 at a time", "ω′ 0.25 is trained", "ω′ 0.5 is trained"
    ]  # fmt: skip
    assert [point.addon > 0 for point in before.points] == [False, True]
    return lambda *omegas, **options: (*call(*omegas, resume=True, **options), before)


def evaluated(said: list[str]) -> list[str]:
    return [each.removeprefix("evaluating ") for each in said if each.startswith("evaluating ")]


THREE = "3 episodes with the mean action, 3 sampled"


def test_a_sweep_that_is_done_says_so_and_evaluates_its_prior_alone(resumed: Any, tmp_path: Path) -> None:
    content = (tmp_path / "out" / "sweep.json").read_bytes()
    _, said, _ = resumed()
    assert "checking ω′ 0.25 and ω′ 0.5, trained before" in said
    assert not any("is trained" in each for each in said)
    assert evaluated(said) == [f"the prior: {THREE}"]
    assert said[-1].startswith("reusing the evaluations of ω′ 0.25 and ω′ 0.5: ")
    assert (tmp_path / "out" / "sweep.json").read_bytes() == content


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"", lambda content: b"{}" * 99])
def test_a_damaged_file_of_evaluations_is_made_anew(resumed: Any, tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "out" / "omega-0.5.evaluations.json"
    content = file.read_bytes()
    file.write_bytes(damage(content))
    _, said, _ = resumed()
    assert evaluated(said) == [f"the prior: {THREE}", f"ω′ 0.5: {THREE}"]
    assert file.read_bytes() == content


def test_other_evaluations_in_the_file_are_made_anew(tmp_path: Path) -> None:
    for content in ({}, {"made_of": {}, "evaluations": [{"what": 1}]}, {"made_of": {}, "evaluations": 3}):
        write_json(tmp_path / "a.json", content)
        assert read_evaluations(tmp_path / "a.json", {}) is None


def test_built_in_code_has_no_file() -> None:
    assert code_sums("Pendulum-v1", ["sys:intern", "height"]) == {}


def test_a_new_value_alone_is_trained_and_evaluated(resumed: Any) -> None:
    after, said, before = resumed(0.75)
    assert "training 1 point, 1 at a time; checking ω′ 0.25 and ω′ 0.5, trained before" in said
    assert [each for each in said if "is trained" in each] == ["ω′ 0.75 is trained"]
    assert evaluated(said) == [f"the prior: {THREE}", f"ω′ 0.75: {THREE}"]
    assert all(same(one.sampled, other.sampled) for one, other in zip(before.points, after.points, strict=False))


def test_a_point_with_another_policy_is_evaluated_again(resumed: Any, tmp_path: Path) -> None:
    save_policy(tmp_path / "out" / "omega-0.25" / "policy.safetensors", constant(0.9), {})
    after, said, _ = resumed()
    assert evaluated(said) == [f"the prior: {THREE}", f"ω′ 0.25: {THREE}"]
    assert (after.points[0].mean.addon / after.points[0].mean.lengths).tolist() == [1.0] * 3


def test_other_episodes_are_evaluated_and_stay(resumed: Any) -> None:
    _, said, _ = resumed(episodes=4)
    assert len(evaluated(said)) == 3
    after, said, _ = resumed()
    assert len(after.points[0].mean.basic) == 4
    assert len(evaluated(said)) == 1


def test_a_wish_with_other_code_is_evaluated_again_though_the_prior_earns_the_same(
    resumed: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(BEYOND.format(limit=0.2))
    after, said, before = resumed()
    assert before.prior.addon == after.prior.addon == 0.0
    assert len(evaluated(said)) == 3
    assert np.all(after.points[0].mean.addon > 0)
