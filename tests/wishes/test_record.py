"""A record of take-overs: read from its own and from other files, and which of its steps and windows count."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from people import PENDULUM, person, push

from repolicy.addons.wish_file import Features
from repolicy.errors import FileError, RepolicyError
from repolicy.priors.opening import open_agent
from repolicy.wishes.learning_loop import Teaching, record
from repolicy.wishes.record import Labels, Record, RecordFile, Step, windows


def made(person: list[int], episode: list[int] | None = None) -> Record:
    zeros, steps = np.zeros(len(person)), np.arange(len(person))
    columns = {"action": zeros, "observation": steps, "next": 2.0**steps}
    return Record.of(columns | {"person": person, "episode": zeros if episode is None else episode}, "X-v0")


def test_the_rule_labels_steps() -> None:
    taken = made([0, 0, 0, 0, 1, 1, 1, 0, 0])
    assert Labels(before=2, passed=0.5).weights(taken).tolist() == [0.5, 0.5, 0, 0, 1, 1, 1, 0.5, 0.5]
    begun = made([1, 1, 1, 1, 0, 0, 0, 1, 1, 1], [0] * 8 + [1] * 2)  # two take-overs begin with their episode
    assert Labels(before=1).weights(begun).tolist() == [1, 1, 1, 1, 1, 1, 0, 1, 1, 1]
    two = made([0, 0, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1])
    assert Labels(before=5, passed=1.0).weights(two).tolist() == [1, 1, 0, 1, 0, 1]  # not into another episode
    assert Labels(before=0, passed=0.0).weights(two).tolist() == [0, 0, 0, 1, 0, 1]


def test_windows_lie_in_one_episode_and_have_no_bad_step() -> None:
    taken = made([0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1])
    sums, means, firsts, _ = windows(taken, Features.of("next"), 2, np.array([1, 1, 1, 1, 0, 1, 1, 0.5]))
    assert sums.ravel().tolist() == [1 + 2, 32 + 64]
    assert means.tolist() == [1, 1]
    assert firsts.tolist() == [0, 5]


def test_a_window_that_a_person_begins_goes_on_to_its_end() -> None:
    """Their take-overs are shorter than the window, and the policy's steps between them led to the next one."""
    taken = made([0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0], [0] * 8 + [1] * 5)
    weights = Labels(before=2, passed=0.5).weights(taken)
    sums, found, firsts, _ = windows(taken, Features.of("next"), 3, weights)
    assert firsts.tolist() == [2, 5, 8]
    assert found.tolist() == [1, 0.5, 1]  # what the first step weighs
    assert sums.ravel().tolist() == [4 + 8 + 16, 32 + 64 + 128, 256 + 512 + 1024]
    assert windows(taken, Features.of("next"), 4, weights)[2].tolist() == [2, 8]  # not into another episode


def test_each_of_eight_episodes_is_a_group() -> None:
    """The ninth is too short for a window."""
    episodes = [*np.repeat(np.arange(9), [8] * 8 + [1])]
    of_eight = windows(made([0] * 65, episodes), Features.of("next"), 2, np.ones(65))
    assert of_eight.groups.tolist() == [*np.repeat(np.arange(8), 4)]
    of_seven = windows(made([0] * 57, episodes[8:]), Features.of("next"), 2, np.ones(57))
    assert len({*of_seven.groups.tolist()}) == 14, "groups of three, and of what is left"


def test_neighbors_in_few_episodes_are_a_group_and_there_are_eight() -> None:
    of_two = made([0] * 48, [0] * 20 + [1] * 28)
    assert windows(of_two, Features.of("next"), 2, np.ones(48)).groups.tolist() == [
        *np.repeat([1, 2, 3, 4], [3, 3, 3, 1]), *np.repeat([5, 6, 7, 8, 9], [3, 3, 3, 3, 2]),
    ]  # fmt: skip
    long = Record.joined([made([0] * 100)] * 2)
    assert windows(long, Features.of("next"), 1, np.ones(200)).groups.tolist()[:17] == [1] * 16 + [2]


def test_other_files_are_read_as_well(tmp_path: Path) -> None:
    wanted = made([0, 1, 1, 0], [0, 0, 1, 1])
    arrays = {name: getattr(wanted, name) for name in ("observation", "action", "next", "person", "episode")}
    np.savez(tmp_path / "r.npz", **arrays)
    found = Record.read(tmp_path / "r.npz", "X-v0")
    assert np.array_equal(found.next, wanted.next)
    assert found.person.tolist() == [False, True, True, False]
    with pytest.raises(RepolicyError, match="name it with --env"):
        Record.read(tmp_path / "r.npz")
    # One number an action without a dimension of its own, one truth value a step with one.
    np.savez(tmp_path / "flat.npz", **arrays | {"action": wanted.action[:, 0], "person": wanted.person[:, None]})
    assert np.array_equal(Record.read(tmp_path / "flat.npz", "X-v0").action, wanted.action)
    assert np.array_equal(Record.read(tmp_path / "flat.npz", "X-v0").person, wanted.person)
    np.savez(tmp_path / "flat.npz", **arrays | {"observation": np.full_like(wanted.observation, np.nan)})
    with pytest.raises(RepolicyError, match="an observation that is no finite number"):
        Record.read(tmp_path / "flat.npz", "X-v0")
    np.savez(tmp_path / "flat.npz", **arrays | {"person": True})
    with pytest.raises(FileError, match="arrays of several lengths"):
        Record.read(tmp_path / "flat.npz", "X-v0")
    (tmp_path / "r.npz").write_bytes((tmp_path / "r.npz").read_bytes()[:300])
    with pytest.raises(FileError, match="no whole .npz file"):
        Record.read(tmp_path / "r.npz", "X-v0")


def test_a_dataset_of_lerobot_is_read(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    frames = {
        "observation.state": [[0.0], [1.0], [2.0], [5.0], [6.0]],
        "action": [[0.1]] * 5,
        "episode_index": [0, 0, 0, 1, 1],
        "timestamp": [0.0, 0.1, 0.2, 0.0, 0.1],
        "complementary_info.is_intervention": [[False], [True], [True], [True], [False]],
    }
    parquet.write_table(arrow.table(frames), tmp_path / "d.parquet")
    found = Record.read(tmp_path / "d.parquet", "X-v0")
    assert found.observation.ravel().tolist() == [0, 1, 5]
    assert found.next.ravel().tolist() == [1, 2, 6]
    assert found.person.tolist() == [False, True, True]
    assert found.episode.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no line of a record"),
        ("{}\n", "has no 'record'"),
        ('{"record": 9, "env": "X", "policy": "p", "sizes": [1, 1]}\n', "upgrade repolicy"),
        ('{"record": 1, "env": "X", "policy": "p", "sizes": [1, 1]}\n', "the record has no steps"),
        ('{"record": 1, "env": "X", "policy": "p", "sizes": [1, 1]}\n{"episode": 0}\n', "has no 'observation'"),
        ('{"record": 1, "env": "X", "policy": "p", "sizes": [1, 1]}\nnone}\n{"episode": 0}\n', "line 2 is no line"),
        ('{"record": 1, "env": "X", "policy": "p", "sizes": [1, 1]}\n{"dropped": [0]}\n', "'dropped' is a list"),
    ],
)
def test_a_record_that_cannot_be_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(RepolicyError, match=why):
        Record.read(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("header", "named", "is_same"),
    [
        ("mine.py:Env?speed=2", "../mine.py:Env?speed=2", True),
        ("/a/mine.py:Env", "mine.py:Env", True),
        ("mine.py:Env", "../mine.py:Other", False),
        ("mine.py:Env", "mine.py:Env?speed=2", False),
        ("X-v0", "X-v1", False),
    ],
)
def test_a_record_in_code_is_read_from_any_folder(tmp_path: Path, header: str, named: str, is_same: bool) -> None:
    """The code is then found where it was named."""
    file = RecordFile(tmp_path / "r.jsonl", header, "p", (1, 1))
    file.add(Step(0, np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), True))
    file.close()
    if is_same:
        assert Record.read(tmp_path / "r.jsonl", named).env == named
    else:
        with pytest.raises(RepolicyError, match="is a record of .*, not of"):
            Record.read(tmp_path / "r.jsonl", named)


def test_a_record_that_was_cut_short_goes_on(policy: Path, tmp_path: Path) -> None:
    path, found = tmp_path / "r.jsonl", open_agent(policy)
    whole = record(found, PENDULUM, path, 30, person(lambda o, a, acts: bool(o[0] > 0)))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:21]) + "\n" + lines[21][:40])
    with pytest.raises(RepolicyError, match="add --resume"):
        record(found, PENDULUM, path, 30, push)
    assert len(Record.read(path).person) == 20
    record(found, PENDULUM, path, 25, push, resume=True)
    path.write_text(path.read_text().removesuffix("\n"))  # killed between a step's last character and its line's end
    again = record(found, PENDULUM, path, 30, push, resume=True)
    assert len(again.person) == len(whole.person) == 30
    assert np.array_equal(again.observation[:20], whole.observation[:20])
    assert again.episode.tolist() == [0] * 20 + [1] * 5 + [2] * 5
    with pytest.raises(RepolicyError, match="another policy or environment"):
        RecordFile(path, PENDULUM, "other", (3, 1), resume=True)


def test_an_environment_may_be_a_function_that_makes_one(policy: Path, tmp_path: Path) -> None:
    found, taught = open_agent(policy), [Teaching(str(policy), env, "next[0]", 0.1, 0.1) for env in (make, PENDULUM)]
    ours, theirs = (record(found, each.env, tmp_path / f"{n}.jsonl", 30, push) for n, each in enumerate(taught))
    assert np.array_equal(ours.observation, theirs.observation)
    assert np.array_equal(record(found, make, tmp_path / "2.jsonl", 30, push).observation, theirs.observation)


def make() -> Any:
    return gymnasium.make(PENDULUM)


def test_a_damaged_line_within_a_record_is_told_and_not_dropped(policy: Path, tmp_path: Path) -> None:
    path, found = tmp_path / "r.jsonl", open_agent(policy)
    record(found, PENDULUM, path, 3, push)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:40], *lines[2:]]) + "\n")
    damaged = path.read_bytes()
    with pytest.raises(FileError, match="line 2 is no line of a record"):
        record(found, PENDULUM, path, 5, push, resume=True)
    assert path.read_bytes() == damaged


def test_a_share_of_few_long_take_overs_is_uncertain() -> None:
    """Take-overs of 30 steps that come by chance; one that an episode ends is another one in the next."""
    random, zeros = np.random.default_rng(0), np.zeros(2000)

    def recorded() -> Record:
        person = np.convolve(random.random(2000) < 0.002, np.ones(30))[:2000] > 0
        return Record.of(
            {"episode": zeros, "observation": zeros, "action": zeros, "next": zeros, "person": person}, "X-v0"
        )

    found = [recorded() for _ in range(300)]
    errors = np.sqrt(np.mean([np.square(each.rate_error) for each in found]))
    assert errors == pytest.approx(np.std([each.rate for each in found]), rel=0.15)
    whole = dict.fromkeys(("observation", "action", "next"), zeros[:4]) | {"person": np.array([0, 1, 1, 1])}
    split = Record.of(whole | {"episode": np.arange(4) // 2}, "X-v0")
    assert (split.rate, split.rate_error) == (0.75, pytest.approx(5**0.5 / 4 * 0.25))


def test_a_share_of_much_is_as_certain_as_the_pauses_are_many() -> None:
    """A person who acts most of the time, with pauses as short as chance makes them; one who always acts is certain."""
    random, zeros = np.random.default_rng(0), np.zeros(2000)

    def recorded() -> Record:
        durations = random.geometric([[0.01, 0.03]] * 200).ravel()  # of take-overs and pauses
        person = np.repeat(np.arange(400) % 2 == 0, durations)[:2000]
        return Record.of(
            dict.fromkeys(("episode", "observation", "action", "next"), zeros) | {"person": person}, "X-v0"
        )

    found = [recorded() for _ in range(300)]
    errors = np.sqrt(np.mean([np.square(each.rate_error) for each in found]))
    assert errors == pytest.approx(np.std([each.rate for each in found]), rel=0.15)
    always = replace(found[0], person=np.ones(2000, bool))
    assert (always.rate, always.rate_error) == (1.0, 0.0)


def test_a_column_that_does_not_tell_who_acted_is_refused() -> None:
    """As truth values, the word no and a number that is none would be a person's steps."""
    columns: dict[str, Any] = dict.fromkeys(("episode", "observation", "action", "next"), np.zeros(3))
    assert not Record.of(columns | {"person": np.zeros((3, 1))}, "X-v0").person.any()
    for acted in (["no", "no", "yes"], [0.0, np.nan, 1.0], [None, True, True]):
        with pytest.raises(RepolicyError, match="not true or false in each step"):
            Record.of(columns | {"person": acted}, "X-v0")
