"""A wish inferred from take-overs, and the loop of records, wishes and policies to the end."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from people import PENDULUM, SMALL, always, below_zero, never, person, push
from typed_commands import failed

from repolicy.addons.wish_file import Features, open_wish
from repolicy.cli.main import main
from repolicy.errors import RepolicyError
from repolicy.policies.file import save_policy
from repolicy.priors.opening import open_agent
from repolicy.runs.result import Estimate, Result
from repolicy.text import format_number
from repolicy.wishes.learning_loop import (
    Round,
    TaughtPolicy,
    Teaching,
    infer,
    learn_wish,
    next_unit,
    record,
    record_alone,
    response,
    round_to_take,
)
from repolicy.wishes.record import Labels, Record


def test_who_fails_at_once_may_try_again(policy: Path, tmp_path: Path) -> None:
    """No header without a step stays, which would ask for --resume."""
    for act, fails in ((lambda o, a: np.ones(3), True), (push, False)):
        told = open_agent(policy), PENDULUM, tmp_path / "r.jsonl", 5, person(always, act)
        if fails:
            with pytest.raises(RepolicyError, match="takes 1 finite number"):
                record(*told)
        else:
            assert len(record(*told).person) == 5


def test_short_take_overs_tell_the_wish_at_the_usual_length(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of the person's is followed by the policy's, which lead to the next: no ten steps in a row count."""
    turns = iter(range(1000))
    found, path = open_agent(policy), tmp_path / "r.jsonl"
    record(found, PENDULUM, path, 600, person(lambda o, a, acts: next(turns) % 3 == 0))
    words = ["infer", str(path), "--policy", str(policy), "--features", "action[0]", "--alpha", "0.1"]
    words += ["--alone", "4800"]
    main([*words, "--out", str(tmp_path / "w.safetensors")])
    assert "48 windows of 10 steps, of which a person began 48, with 192 of their 200 steps" in capsys.readouterr().err
    wish = open_wish(str(tmp_path / "w.safetensors"))
    assert wish.theta[0] > 5 * wish.covariance[0, 0] ** 0.5
    told = failed(capsys, *words, "--length", "100", "--out", str(tmp_path / "none.safetensors"))
    assert "3 windows of 100 steps, of which a person began 3, with 102 of their 200 steps; it takes 5" in told


def test_a_person_who_never_takes_over_leaves_theta_within_its_error(policy: Path, tmp_path: Path) -> None:
    """And a feature that never changes is not taken for a wish because the policy's own mean was fitted badly."""
    found = open_agent(policy)
    alone = [record_alone(found, PENDULUM, 5, 4800)]
    wish = infer(alone, found, "action[0]^1,next[2]", 0.1, steps=4800)
    assert (np.abs(wish.theta) < 3 * wish.covariance.diagonal() ** 0.5).all()
    (tmp_path / "my.py").write_text("def same(o, a, n, i): return n[:, :1] * 0 + 3.3\n")
    with pytest.raises(RepolicyError, match=r"same\[0\] is the same everywhere"):
        infer(alone, found, f"{tmp_path / 'my.py'}:same", 0.1, steps=1600)


def test_a_person_who_pushes_is_found_to_like_pushing(policy: Path, tmp_path: Path) -> None:
    found = open_agent(policy)
    beside = record(found, PENDULUM, tmp_path / "r.jsonl", 600, person(below_zero))
    wish = infer([beside], found, "action[0]", 0.1, labels=Labels(before=1), length=1, steps=1600)
    assert wish.theta[0] > 5 * wish.covariance[0, 0] ** 0.5
    later = infer([beside], found, "action[0]", 0.1, wish, Labels(before=1), 1, steps=1600)
    assert later.theta == pytest.approx(2 * wish.theta)  # what is inferred is what the policy's own wish lacks
    cut = infer([beside], found, "action[0]", 0.1, labels=Labels(passed=0.0), length=10, steps=1600)
    assert cut.source.endswith("ask for more than the policy alone can tell")
    assert wish.source.endswith("of their 291 steps")


def test_the_order_of_several_records_decides_nothing(policy: Path, tmp_path: Path) -> None:
    """One of them was made beside the policy; where none was, a wish would be inferred beside a stranger."""
    found = open_agent(policy)
    beside = record(found, PENDULUM, tmp_path / "r.jsonl", 300, person(below_zero))
    elsewhere = replace(beside, policy="another")
    one, same = (
        infer(records, found, "action[0]", 0.1, length=1, steps=1600)
        for records in ([beside, elsewhere], [elsewhere, beside])
    )
    assert one.theta == pytest.approx(same.theta)
    narrow = replace(beside, next=beside.next[:, :2])
    for records, why in (([elsewhere] * 2, "none of the records was made beside"), ([narrow], "other observations")):
        with pytest.raises(RepolicyError, match=why):
            infer(records, found, "action[0]", 0.1, length=1, steps=1600)


def teaching_of(policy: Path) -> Teaching:
    return Teaching(str(policy), PENDULUM, "action[0]", 0.1, 0.1, 0.0, Labels(before=1), 2, SMALL, alone_steps=480)


def test_the_loop_goes_on_where_it_was_left(policy: Path, tmp_path: Path) -> None:
    teaching, pushes = teaching_of(policy), person(below_zero)
    first = learn_wish(teaching, tmp_path, pushes, rounds=2, steps=120)
    assert [each.policy for each in first] == [str(policy), str(tmp_path / "round-0" / "run-1")]
    kept = (tmp_path / "round-0" / "record.jsonl").stat().st_mtime_ns
    wish = open_wish(str(file := tmp_path / "round-0" / "wish-1.safetensors"))
    replace(wish, theta=wish.theta * (1 + 1e-12)).write(file)  # as if on more threads
    spaced = replace(teaching, features=" action[0]")  # the same features
    assert learn_wish(spaced, tmp_path, pushes, rounds=3, steps=120)[:2] == first
    assert (tmp_path / "round-0" / "record.jsonl").stat().st_mtime_ns == kept
    assert (tmp_path / "round-1" / "run-1" / "policy.safetensors").exists()
    assert open_wish(str(tmp_path / "round-1" / "wish-1.safetensors")).theta.shape == (1,)
    page = (tmp_path / "report.html").read_text()
    records = [Record.read(tmp_path / f"round-{number}" / "record.jsonl") for number in range(3)]
    assert all(f"<td>{record.person.mean():.1%} ± {record.rate_error:.1%}</td>" in page for record in records)
    had = [open_wish(str(tmp_path / f"round-{number}" / "wish-1.safetensors")) for number in (0, 1)]
    cells = [f"{wish.theta[0]:.3g} ± {wish.covariance[0, 0] ** 0.5:.2g}".replace("-", "−") for wish in had]
    assert all(f"<td>{cell}</td>" in page for cell in cells)
    below = re.findall(r'<text class="tick" [^>]*"(?:middle|end)">(.*?)</text>', page.partition("What the wish is")[0])
    assert below[-5:] == ["0", "1", "2", "3", "4"]  # rounds, which are whole
    means = records[0].action[~records[0].person].mean(), records[2].action[~records[2].person].mean()
    assert all(
        f"{who}: mean {format_number(mean)}" in page for who, mean in zip(("prior", "customized"), means, strict=True)
    )
    with pytest.raises(RepolicyError, match="was learnt of other features"):
        learn_wish(replace(teaching, features="action[0]^1"), tmp_path, pushes, rounds=3, steps=120)
    assert open_wish(str(tmp_path / "round-0" / "wish-0.safetensors")).names == ("action[0]",)
    calm = learn_wish(teaching, tmp_path / "calm", person(never), rounds=2, steps=120)
    assert [(each.rate, each.policy) for each in calm] == [(0.0, str(policy))]


def test_the_loop_learns_features_of_ones_own(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("def pushed(o, a, n, i): return a[:, :1]\n")
    own = f"{tmp_path / 'my.py'}:pushed"
    teaching = replace(teaching_of(policy), features=own, updates=1)
    done = learn_wish(teaching, tmp_path / "out", person(below_zero), rounds=2, steps=120)
    assert done[1].policy == str(tmp_path / "out" / "round-0" / "run-0")


def test_a_stop_while_it_customizes_stops_the_loop(policy: Path, tmp_path: Path) -> None:
    """The run stops where it can go on, so what it has learnt by then is no round's policy."""

    def stopped(*given: Any, **options: Any) -> Result:
        return Result(given[3], 0, False, {})

    teaching = replace(teaching_of(policy), customizing=stopped)
    with pytest.raises(KeyboardInterrupt):
        learn_wish(teaching, tmp_path, person(below_zero), steps=120, rounds=2)


def test_the_loop_goes_on_from_the_best_round_and_ends(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person wants to act in more steps by each round, but for round 1."""
    asked, said = list[tuple[list[float], str]](), list[str]()

    def taught(self: Teaching, records: list[Record], now: TaughtPolicy, folder: Path, say: Any) -> TaughtPolicy:
        asked.append(([record.rate for record in records], now.policy))
        copy = folder / "policy.safetensors"
        shutil.copy(policy, copy)
        return TaughtPolicy(str(copy), None, 1.0)

    monkeypatch.setattr(Teaching, "taught", taught)
    shares = iter(each for count in (5, 2, 7, 9, 1) for each in [True] * count + [False] * (10 - count))
    done = learn_wish(
        Teaching(str(policy), PENDULUM, "action[0]", 0.1, 0.1), tmp_path,
        person(lambda o, a, acts: next(shares)), steps=10, rounds=9, say=said.append,
    )  # fmt: skip
    assert [each.rate for each in done] == [0.5, 0.2, 0.7, 0.9]
    first, second = str(policy), str(tmp_path / "round-0" / "policy.safetensors")
    assert asked == [([0.5], first), ([0.5, 0.2], second), ([0.5, 0.7, 0.2], second)]
    assert "round 2 was no better than round 1, from which it goes on" in said
    assert said[-1] == "2 rounds needed the person no less: this is the end"


def test_another_policy_takes_the_priors_place_where_it_needs_the_person_less_beyond_chance() -> None:
    one, near, far = Round(0.7, 0.06, "prior"), Round(0.6, 0.06, "a"), Round(0.4, 0.06, "b")
    assert round_to_take([one, near]) is one
    assert round_to_take([one, near, far]) is far
    assert round_to_take([near, one]) is near


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        ((0.7, 0.65), "0 came nearest: 70.0% of its steps were yours; no other share is smaller by two errors"),
        ((0.7, 0.4, 0.5), "1 came nearest: 40.0% of its steps were yours\n"),
        ((0.06, 0.04), "1 does as you wish"),
    ],
)
def test_the_command_names_the_policy_to_take(
    shares: tuple[float, ...], taken: str, policy: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rounds = [Round(share, 0.03, f"{number}") for number, share in enumerate(shares)]
    monkeypatch.setattr("repolicy.wishes.learning_loop.learn_wish", lambda *_, **__: rounds)
    (tmp_path / "me.py").write_text("def act(o, a): return a\nact.wants = lambda o, a, acts: True\n")
    words = ["--person", f"{tmp_path / 'me.py'}:act", "--features", "next", "--omega", "0.1", "--alpha", "0.1"]
    main(["learn-wish", str(policy), *words, "--out", str(tmp_path), "--json"])
    said = capsys.readouterr()
    assert taken in said.err
    assert json.loads(said.out)["policy"] == taken[0]


@pytest.mark.parametrize("features", ["next[9]", "nxt[0]", "action[0],action[1]"])
def test_features_that_there_are_not_are_refused_before_anybody_acts(
    features: str, policy: Path, tmp_path: Path
) -> None:
    with pytest.raises(RepolicyError, match="is no range of|are none"):
        learn_wish(replace(teaching_of(policy), features=features), tmp_path, person(always), steps=120)
    assert not (tmp_path / "round-0").exists()


def test_a_round_that_was_learnt_from_keeps_its_record_where_later_ones_are_longer(
    policy: Path, tmp_path: Path
) -> None:
    """With more steps its wish would be another one, and the folder could not go on, with any number of steps."""
    teaching, said = replace(teaching_of(policy), updates=1), list[str]()
    learn_wish(teaching, tmp_path, person(below_zero), rounds=2, steps=120)
    learn_wish(teaching, tmp_path, person(below_zero), rounds=2, steps=150, say=said.append)
    counts = [re.findall(r"of (\d+) steps, in (\d) episode", line) for line in said if line.startswith("round")]
    assert counts == [[("120", "1")], [("150", "2")]]


def test_how_far_a_policy_follows_its_wish() -> None:
    """exp(θ·f/α) moves a Gaussian of variance 4 by 4·θ/α; the policy has gone a quarter of that way."""
    random = np.random.default_rng(0)

    def of(mean: float, between: float, steps: int) -> Record:
        episode, zeros = np.arange(20 * steps) // steps, np.zeros(20 * steps)
        columns = {"episode": episode} | dict.fromkeys(("observation", "action", "person"), zeros)
        means = mean + between * random.normal(size=20)[episode]
        return Record.of(columns | {"next": means + 2.0 * random.normal(size=20 * steps)}, "X-v0")

    def found(between: float, steps: int) -> Estimate:
        wish = np.array([0.05]), Features.of("next"), 0.2, 1
        return response(of(1.0, between, steps), of(1.0 + 0.25 * 4 * 0.05 / 0.2, between, steps), *wish)

    assert found(0.0, 1000).mean == pytest.approx(0.25, abs=0.03)
    several = [found(1.0, 100) for _ in range(100)]  # episodes differ
    assert np.mean([each.error for each in several]) == pytest.approx(np.std([each.mean for each in several]), rel=0.2)
    assert next_unit(0.2, Estimate(0.5, 0.1)) == 0.4
    assert next_unit(0.2, Estimate(1.5, 0.3)) == 0.2, "what may be chance moves nothing"


def test_the_commands_that_record_and_that_go_through_the_loop(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me.py").write_text(
        "import numpy as np\ndef act(o, a): return np.array([1.5])\nact.wants = lambda o, a, acts: a[0] < 0\n"
    )
    main(["takeover", str(policy), "--person", "me.py:act", "--steps", "200", "--out", "r.jsonl", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert 0.2 < told["rate"] < 0.8
    words = ["--features", "action[0]", "--omega", "0.1", "--alpha", "0.1", "--record-steps", "50", "--rounds", "1"]
    main(["learn-wish", str(policy), "--person", "me.py:act", *words, "--out", "w", "--json"])
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["policy"], told["reached"]) == (str(policy), False)
    assert f"came nearest: {told['rates'][0]:.1%} of its steps were yours" in said.err


def test_all_that_a_loop_computes_is_computed_on_one_thread(policy: Path, tmp_path: Path) -> None:
    """So the same command goes on from another shell, whatever number of threads it allows."""
    (tmp_path / "me.py").write_text(
        "import numpy as np\nimport torch\n"
        "def act(o, a):\n    assert torch.get_num_threads() == 1\n    return np.array([1.5])\n"
        "act.wants = lambda o, a, acts: True\n"
    )
    words = ["--features", "action[0]", "--omega", "0.1", "--alpha", "0.1", "--record-steps", "5", "--rounds", "1"]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        main(["learn-wish", str(policy), "--person", f"{tmp_path / 'me.py'}:act", *words, "--out", str(tmp_path / "w")])
    finally:
        torch.set_num_threads(before)


def test_an_earlier_wish_is_where_inference_starts_and_counts_with_its_weight(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_policy(
        Path("p.safetensors"), open_agent(policy).agent, {"request": {"env": PENDULUM, "addons": ["w.safetensors=3"]}}
    )
    record(open_agent(Path("p.safetensors")), PENDULUM, Path("r.jsonl"), 100, person(below_zero))
    words = ["r.jsonl", "--policy", "p.safetensors", "--features", "action[0]", "--alpha", "0.1", "--length", "1"]
    words += ["--alone", "320", "--json"]
    main(["infer", *words, "--out", "more.safetensors"])
    said = capsys.readouterr()
    assert "without --wish w.safetensors=3, what is inferred comes on top of it" in said.err
    one = replace(open_wish("more.safetensors"), theta=np.array([2.0]))
    one.write("w.safetensors")
    main(["infer", *words, "--out", "all.safetensors", "--wish", "w.safetensors=3"])
    told = json.loads(capsys.readouterr().out)["theta"]["action[0]"]
    assert told == open_wish("all.safetensors").theta[0]
    assert told == pytest.approx(6.0 + json.loads(said.out)["theta"]["action[0]"])
    replace(one, features=Features("next[0]"), names=("next[0]",)).write("next.safetensors")
    for other, why in (
        ("next.safetensors", "is of other features: next[0]"), ("w.safetensors=many", "'many' is not a weight")
    ):  # fmt: skip
        assert why in failed(capsys, "infer", *words, "--out", "b.safetensors", "--wish", other)


def test_what_cannot_be_inferred_is_one_sentence(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(open_agent(policy), PENDULUM, Path("r.jsonl"), 20, push)
    text = Path("r.jsonl").read_text()
    Path("all.jsonl").write_text(all_mine := text.replace('"person": false', '"person": true'))
    Path("cart.jsonl").write_text(all_mine.replace(PENDULUM, "CartPole-v1"))
    Path("other.jsonl").write_text(all_mine.replace('"policy": "', '"policy": "x'))
    mine = ["--policy", str(policy), "--features", "action[0]", "--alpha", "0.1"]
    for words, why in (
        (["r.jsonl", *mine], "nobody took over"),
        (["other.jsonl", *mine], "none of the records was made beside"),
        (["other.jsonl", *mine[:4]], "name --alpha"),
        (["other.jsonl", *mine[2:]], "name --policy"),
        (["other.jsonl", *mine[:2]], "name --features"),
        (["all.jsonl", *mine, "--length", "0"], "a length of 0 are too few"),
        (["all.jsonl", *mine, "--alone", "300"], "300 steps of the policy alone"),
        (["all.jsonl", *mine, "--before", "-3"], "before is -3; it must be 0 or more"),
        (["all.jsonl", *mine[:-1], "nan"], "alpha is nan"),
        (["all.jsonl", *mine, "--features", "next[2:2]"], "'next[2:2]' is no range of the 3 numbers"),
        (["all.jsonl", *mine, "--wish", "r.jsonl"], "r.jsonl does not end in .safetensors, and a wish is known"),
        (["all.jsonl", *mine, "--out", str(policy)], "is there already, and runs may have it"),
        (["all.jsonl", *mine, "--env", "X-v0"], "a record of Pendulum-v1, not of X-v0"),
        (["cart.jsonl", *mine], "'CartPole-v1' gives 4"),
    ):
        assert why in failed(capsys, "infer", *words)
    with pytest.raises(RepolicyError, match="'CartPole-v1' gives 4"):
        record_alone(open_agent(policy), "CartPole-v1")
    Path("code.jsonl").write_text(all_mine.replace(PENDULUM, "os:system?command=touch owned"))
    assert "code.jsonl names code that would be run: os:system" in failed(capsys, "infer", "code.jsonl", *mine)
    assert not Path("owned").exists()
    assert "need a terminal or a window" in failed(capsys, "takeover", policy, "--keys", "terminal", "--steps", "5")
