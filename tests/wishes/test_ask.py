"""Pairs of clips, their page in a real browser by keys, and the wish that answers tell."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from quick_graphs import quick_graph
from tiny_envs import tiny
from typed_commands import failed

import repolicy
from repolicy.addons.addon import combine_addons
from repolicy.addons.wish_file import open_wish
from repolicy.cli.main import main
from repolicy.envs.rollout import Transitions
from repolicy.errors import RepolicyError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec, make_policy
from repolicy.priors.opening import open_agent
from repolicy.readers.reading import Options
from repolicy.report.filming import encode_film, render_pictures
from repolicy.report.movie import Shot
from repolicy.wishes import ask_page, preferences
from repolicy.wishes.pairs import Pairs, candidates, choose_pairs, learn_from_answers, read_answers

PENDULUM = "Pendulum-v1"


def pool(policy: Path, count: int = 40, seed: int = 0) -> Pairs:
    return candidates(open_agent(policy).agent, "p", PENDULUM, count, 6, 2.0, 4, seed)


def test_both_clips_begin_in_the_same_state_and_part(policy: Path) -> None:
    pairs = pool(policy)
    assert len(pairs.seeds) == 40
    assert np.array_equal(pairs.observations[:, 0, 0], pairs.observations[:, 1, 0])
    assert np.array_equal(pairs.after[:, :, :-1], pairs.observations[:, :, 1:])
    assert {*pairs.starts} <= {0, 1, 2, 3, 4}
    assert len({*pairs.starts}) > 1


def test_no_pair_shows_one_clip_twice(policy: Path) -> None:
    """As many do where both actions are beyond the same bound; nobody can say which of them is better."""
    agent = open_agent(policy).agent
    pairs = candidates(agent, "p", PENDULUM, 40, 6, 8.0, 4, 0)
    assert len(pairs.seeds) == 40
    assert (pairs.after[:, 0] != pairs.after[:, 1]).any((1, 2)).all()
    with pytest.raises(RepolicyError, match="both clips of each pair are the same"):
        candidates(agent, "p", PENDULUM, 2, 6, 1e-12, 4, 0)


def test_a_clip_keeps_its_distance_from_the_mean_action(policy: Path) -> None:
    pairs, agent = pool(policy, 8), open_agent(policy).agent
    observations, actions, _ = pairs.steps
    away = (actions - agent.actor(1, len(observations))(observations)).reshape(8, 2, 6)
    assert np.ptp(away, axis=-1) == pytest.approx(0, abs=1e-5)
    assert away.std() > 1.0  # twice a sample's


def test_a_clip_shows_the_steps_of_its_seconds_as_a_film_does() -> None:
    for env, rate in (
        ("CartpoleSwingup-v1", 30), ("Go1JoystickFlatTerrain-v1", 50),
        ("Hopper-v4", 125), ("Hopper-v4?healthy_z_min=0.5", 125),
    ):  # fmt: skip
        assert ask_page.steps_a_second(env) == pytest.approx(rate), env


def test_short_episodes_take_several_draws(policy: Path) -> None:
    short, agent = f"{PENDULUM}?max_episode_steps=10", open_agent(policy).agent
    pairs = candidates(agent, "p", short, 8, 6, 2.0, 30, 0)
    assert len(pairs.seeds) == len({*pairs.seeds}) == 8
    assert pairs.starts.max() <= 4


def test_what_was_played_gives_the_same_clip_again(policy: Path) -> None:
    """A film of these actions from this seed shows the clip."""
    from repolicy.envs.making import make_envs

    pairs = pool(policy, 3)
    for p, side in ((0, 0), (2, 1)):
        envs = make_envs(PENDULUM, 1, int(pairs.seeds[p]), "gymnasium")
        envs.reset()
        seen = [envs.step(pairs.played[p, side, t][None]).final[0] for t in range(int(pairs.starts[p]) + 6)]
        assert np.array_equal(np.stack(seen)[-6:], pairs.after[p, side])


def sums(pairs: Pairs, wish: str) -> np.ndarray:
    """What the wish pays for both clips of each pair, [P, 2]."""
    return combine_addons([wish]).reward(Transitions(pairs.observations, pairs.actions, pairs.after, {})).sum(2)


def synthetic(pairs: Pairs, wish: str, where: Path) -> Path:
    """A person who wants this, and is never wrong."""
    lines = [
        {"page": pairs.page, "pair": p, "answer": "left" if left > right else "right", "seconds": 1.0 + p}
        for p, (left, right) in enumerate(sums(pairs, wish))
    ]
    where.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where


def slow(observations: np.ndarray, actions: np.ndarray, after: np.ndarray, info: object) -> np.ndarray:
    return -np.abs(after[:, 2])


def test_answers_tell_the_wish_and_it_is_an_add_on(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = pool(policy, 80)
    pairs.write(tmp_path)
    answers, out = synthetic(pairs, f"{__file__}:slow", tmp_path / "a.jsonl"), tmp_path / "my wish.safetensors"
    words = ["--asked", str(tmp_path), "--features", "next[0]^1,next[2]^1", "--out"]
    assert "is there already, and runs may" in failed(capsys, "infer", str(answers), *words, str(policy))
    main(["infer", str(answers), *words, str(out), "--json"])
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert f"--addon '{out}'={1 / told['spread']:.3g} makes it 1" in said.err
    assert "mostly chance" not in said.err
    (tmp_path / "few.jsonl").write_text(answers.read_text().partition("\n")[0])
    main(["infer", str(tmp_path / "few.jsonl"), *words, str(tmp_path / "few.safetensors")])
    assert "no θ is larger than its error, so this is mostly chance" in capsys.readouterr().err
    assert told["answers"] == 80
    assert told["theta"]["next[2]^1"] < -2 * told["error"]["next[2]^1"]
    assert abs(told["theta"]["next[0]^1"]) < 0.5 * abs(told["theta"]["next[2]^1"])
    new = pool(policy, 80, 999)
    ranks = [np.argsort(np.argsort(sums(new, wish).ravel())) for wish in (str(out), f"{__file__}:slow")]
    assert np.corrcoef(*ranks)[0, 1] > 0.9
    assert repolicy.evaluate(policy, episodes=1, longest=20, addon=f"{out}=2").addon is not None


def test_what_several_people_answer_counts_all(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who says the opposite in a file of their own is a second person; in the same file it is a second thought."""
    pairs = pool(policy, 40)
    pairs.write(tmp_path)
    one = synthetic(pairs, f"{__file__}:slow", tmp_path / "one.jsonl")
    swapped = {"left": "right", "right": "left"}
    opposite = [line | {"answer": swapped[line["answer"]]} for line in map(json.loads, one.read_text().splitlines())]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, opposite)) + "\n\n")  # as an editor leaves it
    (tmp_path / "both.jsonl").write_text(one.read_text() + (tmp_path / "other.jsonl").read_text())

    def told(*names: str) -> tuple[float, str]:
        out = tmp_path / f"{'-'.join(names)}.safetensors"
        files = [str(tmp_path / f"{name}.jsonl") for name in names]
        main(["infer", *files, "--asked", str(tmp_path), "--features", "next[2]^1", "--out", str(out)])
        return float(open_wish(str(out)).theta[0]), capsys.readouterr().err

    alone, said = told("one")
    assert "40 answers to 40 pairs in 1 file (and 0 times “cannot tell”)" in said
    assert told("both")[0] == pytest.approx(-alone)
    (tmp_path / "again.jsonl").write_text(one.read_text().replace(".0}", ".5}"))
    twice, said = told("one", "again")
    assert twice < alone < -1.0  # who says it twice is believed more
    assert "80 answers to 40 pairs in 2 files" in said
    (tmp_path / "half.jsonl").write_text("".join(one.read_text().splitlines(True)[:20]))
    assert told("half", "one")[0] == alone  # the same page, saved in the middle and at the end
    files = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    for words in (["--features", "next[2]^1"], []):  # without features: networks
        assert "tell no difference" in failed(capsys, "infer", *files, "--asked", tmp_path, *words)


def test_features_of_ones_own_are_named_in_the_add_on_to_type(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preferences, "GRADIENT_STEPS", 10)
    Path("own.py").write_text("def bend(o, a, n, i): return abs(n[:, 2:3])\n")
    pairs = pool(policy, 20)
    pairs.write(tmp_path)
    answers = synthetic(pairs, f"{__file__}:slow", Path("a.jsonl"))
    main(["infer", str(answers), "--asked", ".", "--features", "own.py:bend", "--json"])
    said = capsys.readouterr()
    addon = f"wish.safetensors(features=own.py:bend)={1 / json.loads(said.out)['spread']:.3g}"
    name, _, weight = addon.rpartition("=")
    assert f"--addon '{name}'={weight} makes it 1" in said.err
    main(["infer", str(answers), "--asked", ".", "--out", "networks.safetensors"])
    assert "--addon networks.safetensors=" in capsys.readouterr().err
    assert repolicy.evaluate(policy, episodes=1, longest=20, addon=addon).addon is not None


@pytest.mark.long
def test_networks_learn_it_without_features(policy: Path, tmp_path: Path) -> None:
    pairs = pool(policy, 80)
    pairs.write(tmp_path)
    answers = read_answers([synthetic(pairs, f"{__file__}:slow", tmp_path / "a.jsonl")], [pairs])
    learn_from_answers([pairs], answers).write(out := tmp_path / "w.safetensors")
    paid = open_wish(str(out))(*pairs.steps, {})
    assert paid.mean() == pytest.approx(0, abs=1e-4)  # answers tell nothing of what every step is paid
    found, wanted = (sums(pairs, wish) for wish in (str(out), f"{__file__}:slow"))
    assert ((found[:, 0] > found[:, 1]) == (wanted[:, 0] > wanted[:, 1])).mean() > 0.8


def test_a_wish_chooses_the_pairs_that_it_is_unsure_of(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "GRADIENT_STEPS", 10)
    pairs = pool(policy, 60)
    answers = read_answers([synthetic(pairs, f"{__file__}:slow", tmp_path / "a.jsonl")], [pairs])
    few = {key: value for key, value in answers[0].items() if key[1] < 20}
    wish = learn_from_answers([pairs], [few], "next^1")
    chosen = choose_pairs(pairs, 10, wish)

    def known(some: Pairs) -> float:
        """How far the wish tells the clips apart already."""
        sums = wish(*some.steps, {}).reshape(*some.after.shape[:3]).sum(2)
        return float(np.abs(sums[:, 0] - sums[:, 1]).mean())

    assert known(chosen) < known(pairs)
    assert choose_pairs(pairs, 5, None).page == pairs.select([0, 1, 2, 3, 4]).page
    assert len(choose_pairs(pairs, 5, learn_from_answers([pairs], [few])).seeds) == 5


def pendulum() -> Any:
    return gymnasium.make(PENDULUM)


def page(policy: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Pairs:
    """Four pairs, with films of two pictures."""
    pictures = [np.full((32, 48, 3), shade, np.uint8) for shade in (60, 200)]
    monkeypatch.setattr(ask_page, "render_films", lambda shots, say: [encode_film(pictures, 10, "mp4")] * len(shots))
    return ask_page.ask(open_agent(policy), pendulum, str(out), 4, 0.2)


def test_a_person_answers_by_keys_on_a_phone_and_saves(
    policy: Path, tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    pairs = page(policy, tmp_path, monkeypatch)
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser.get(f"file://{tmp_path / 'ask.html'}")
    body, told = browser.find_element(By.TAG_NAME, "body"), browser.find_element(By.ID, "told")
    left, right = [each for each in browser.find_elements(By.TAG_NAME, "video") if each.is_displayed()]
    assert left.location["y"] == right.location["y"]
    assert right.location["x"] + right.size["width"] <= 390
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    for key in (Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.BACKSPACE, Keys.ARROW_RIGHT, Keys.ARROW_UP):
        body.send_keys(key)
    browser.execute_script(
        "for (const how of [{repeat: true}, {altKey: true}, {ctrlKey: true}, {metaKey: true}])"
        "dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', ...how}))"
    )  # a key that stays down, and the browser's own, answer nothing
    assert told.text == "Pair 4 of 4; 3 answered"
    low = {"width": 1100, "height": 640, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", low)
    save = browser.find_element(By.ID, "save")
    assert save.location["y"] + save.size["height"] <= 640  # nobody scrolls to the buttons

    def goes_on() -> bool:
        browser.refresh()
        return str(browser.find_element(By.ID, "told").text) == "Pair 4 of 4; 3 answered"

    WebDriverWait(browser, 10).until(lambda _: goes_on())  # a busy browser writes a moment later
    told = browser.find_element(By.ID, "told")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_DOWN)
    assert told.text == "All 4 are answered. Save them."
    browser.find_element(By.ID, "save").click()
    saved = tmp_path / f"answers-{pairs.page}.jsonl"
    WebDriverWait(browser, 10).until(lambda _: saved.exists())
    assert told.text == f"Saved as {saved.name}, for repolicy infer."
    assert read_answers([saved], [Pairs.read(tmp_path)]) == [{(0, 0): 1.0, (0, 1): 0.0, (0, 2): 0.5, (0, 3): None}]
    assert [json.loads(line)["seconds"] > 0 for line in saved.read_text().splitlines()] == [True] * 4
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_page_is_made_with_films(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both clips, each with all that was done since the reset; how a film is drawn is tested elsewhere."""
    shots = list[Shot]()
    monkeypatch.setattr(ask_page, "render_films", lambda given, say: shots.extend(given) or [b"film"] * len(given))
    words = ["--pairs", "1", "--seconds", "0.2", "--width", "64", "--out", str(tmp_path / "my pairs"), "--json"]
    main(["ask", str(policy), *words])
    said = capsys.readouterr()
    assert json.loads(said.out)["pairs"] == 1
    assert f"repolicy infer ANSWERS --asked '{tmp_path / 'my pairs'}'" in said.err
    assert (tmp_path / "my pairs" / "ask.html").read_text().count("data:video/mp4") == 2
    pairs = Pairs.read(tmp_path / "my pairs")
    for shot, played in zip(shots, pairs.played[0], strict=True):
        assert (shot.seed, shot.env, shot.width) == (pairs.seeds[0], PENDULUM, 64)
        assert np.array_equal(shot.actions, played[: pairs.starts[0] + pairs.after.shape[2]])
    assert "has a page already" in failed(capsys, "ask", str(policy), *words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"page": "other", "pair": 0, "answer": "left"}', "answers a page that is none of those given"),
        ("left", "is no answer as the page saves it"),
        ('{"record": 1, "env": "Pendulum-v1"}', "begins a record of take-overs, and no answers: leave --asked out"),
        ('{"page": "PAGE", "pair": 99, "answer": "left"}', "is no answer to a pair of that page"),
        ('{"page": "PAGE", "pair": 0, "answer": "both"}', "is no answer to a pair of that page"),
        ('{"page": "PAGE", "pair": "0", "answer": "left"}', "not a whole number"),
        ('{"page": "PAGE", "pair": 0, "answer": "unknown"}', "answer some more"),
        ('{"page": "PAGE", "pair": 0, "answer": "alike"}', "tell no difference"),
        ("", "answer some more"),
    ],
)
def test_answers_that_cannot_be_are_one_sentence(
    line: str, why: str, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = pool(policy, 2)
    pairs.write(tmp_path)
    (tmp_path / "a.jsonl").write_text(line.replace("PAGE", pairs.page))
    assert why in failed(capsys, "infer", str(tmp_path / "a.jsonl"), "--asked", str(tmp_path), "--features", "next^1")


def test_another_librarys_mean_is_filmed_as_it_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that renders reads no options."""
    file, read = tmp_path / "mean.onnx", list[Policy]()
    file.write_bytes(quick_graph(torch.nn.Linear(3, 1), (torch.zeros(2, 3),)))

    def filmed(shots: list[Shot], say: object) -> list[bytes]:
        read.extend(open_agent(shot.policy, Options(), False).agent for shot in shots)
        return [b""] * len(shots)

    monkeypatch.setattr(ask_page, "render_films", filmed)
    ask_page.ask(open_agent(file, Options(std=0.3), False), PENDULUM, tmp_path / "asked", 1, 0.2)
    assert [policy.std.item() for policy in read] == [pytest.approx(0.3)] * 2


@pytest.mark.parametrize("start", [(7.0,), ()])
def test_choices_are_filmed_as_they_were_taken(
    start: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment counts them from 7 on, which a policy's file may not tell."""
    file, films = tmp_path / "p.safetensors", list[list[int]]()
    save_policy(file, make_policy(PolicySpec(1, ActionSpace("discrete", (3,), start), "categorical"), 0), {})

    def filmed(shots: list[Shot], say: object) -> list[bytes]:
        films.extend([picture.min() for picture in render_pictures(shot)[0]] for shot in shots)
        return [b""] * len(shots)

    monkeypatch.setattr(ask_page, "render_films", filmed)
    env = tiny("Told") + "?actions=choice"
    pairs = ask_page.ask(open_agent(file, Options(), False), env, tmp_path / "asked", 2, 0.3)
    taken = pairs.actions[..., 0].reshape(4, 9).astype(int)
    assert {*taken.ravel()} == {7, 8, 9}
    assert [film[1:] for film in films] == taken[:, :-1].tolist()  # the first picture is before a step


def test_a_page_with_fewer_pairs_than_named_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, said = tmp_path / "p.safetensors", list[str]()
    save_policy(file, make_policy(PolicySpec(4, ActionSpace("discrete", (2,)), "categorical"), 0), {})
    monkeypatch.setattr(ask_page, "render_films", lambda given, say: [b""] * len(given))
    prior = open_agent(file, Options(), False)
    pairs = ask_page.ask(prior, "CartPole-v1", tmp_path / "asked", 20, 0.3, say=said.append)
    assert 0 < len(pairs.seeds) < 20
    assert said[0].startswith(f"{len(pairs.seeds)} pair")
    assert "not 20: in the others an episode ends" in said[0]


def _push(observations: np.ndarray) -> np.ndarray:
    return observations[:, :1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["ask", "hopper", "--pairs", "0"], "0 pairs"),
        (["ask", "hopper", "--seconds", "-1"], "a clip of -1.0 seconds"),
        (["ask", "hopper", "--seconds", "1e9"], "name more than 0, and at most 60"),
        (["ask", "hopper", "--noise", "nan"], "with noise nan"),
        (["ask", "hopper", "--wish", "none.safetensors"], "there is no file none.safetensors"),
        (["ask", "hopper", "--seconds", "60", "--pairs", "2", "--env", PENDULUM], "observations of 11 numbers"),
        (["ask", f"{__file__}:{_push.__name__}", "--std", "0.2", "--env", PENDULUM], "runs as it is, and this needs"),
        (["infer", "none.jsonl", "--asked", "nowhere"], "nowhere is no folder that `repolicy ask` wrote"),
        (["infer", "none.jsonl", "--asked", "nowhere", "--policy", "hopper"], "leave out one of them"),
        (["infer", "none.jsonl", "--asked", "nowhere", "--env", PENDULUM], "--env is for a record of take-overs"),
        (["infer", "none.jsonl", "--asked", "nowhere", "--passed", "0"], "--passed is for a record of take-overs"),
        (
            ["ask", "hopper", "--env", "Hopper-v5?max_episode_steps=9", "--pairs", "2", "--seconds", "0.1"],
            "of 12 steps does: name fewer --seconds",
        ),
        (["infer", "none.jsonl", "--out", "wish.pt"], "does not end in .safetensors"),
    ],
)
@pytest.mark.usefixtures("_elsewhere")
def test_what_cannot_be_asked_is_one_sentence(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in failed(capsys, *words)
