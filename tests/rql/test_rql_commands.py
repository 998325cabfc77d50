"""`repolicy rql`: what it does, and what it says where it cannot."""

import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.wrappers import TimeLimit
from known_problems import Bounded, Table, Walk, constant, wild_prior
from small_runs import Log
from typed_commands import answered, failed

import repolicy
from repolicy.errors import RepolicyError, UsageError
from repolicy.objective import full, kl, residual, soft
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.prepare.states import fit_prior_density
from repolicy.priors.opening import read_policy
from repolicy.readers.reading import Options
from repolicy.rql import ResidualDQN, ResidualSAC, Settings, customize, train
from repolicy.rql.customizing import Request
from repolicy.rql.hyperparameters import TASKS
from repolicy.runs.folder import RunFolder

PROBLEMS = ("Walk", "Bounded", "upright", "add_on")
WALK, BOUNDED, UPRIGHT, ADD_ON = (f"{Path(__file__).parent / 'known_problems.py'}:{name}" for name in PROBLEMS)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command prints with --json."""
    return answered(capsys, "rql", *map(str, words))


def test_from_nothing_to_a_customized_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior, out = tmp_path / "prior", tmp_path / "customized"
    (tmp_path / "settings.json").write_text('{"hidden": [8], "warmup": 50, "gamma": 0.5}')
    options = ["--steps", "2e2", "--seed", "3", "--gamma", 0.6, "--settings", tmp_path / "settings.json"]
    found = told(capsys, "train", WALK, "--alpha", 0.5, "--out", prior, *options)
    assert (found["folder"], found["steps"], found["finished"]) == (str(prior), 200, True)
    assert found["metrics"]["loss"] > 0
    card = read_policy(prior / "policy.safetensors").card
    assert card["request"]["objective"]["alpha"] == 0.5
    assert card["request"]["settings"] | {"hidden": [8], "seed": 3, "gamma": 0.6} == card["request"]["settings"]

    told(capsys, "customize", prior, "--trust", "--omega", 0.7, "--out", out, *options)
    request = read_policy(out / "policy.safetensors").card["request"]
    assert request["objective"] == {"task": "addon", "omega": 0.7, "alpha": 0.5, "bonus": 0.0}
    assert (request["env"], request["method"]) == (WALK, "Residual Q-learning")
    assert (out / "prior.safetensors").read_bytes() == (prior / "policy.safetensors").read_bytes()
    shutil.rmtree(prior)
    evaluated = answered(capsys, "evaluate", str(out), "--episodes", "2", "--backend", "gymnasium", "--trust")
    assert evaluated["episodes"] == 2
    told(capsys, "train", WALK, "--alpha", 0.5, "--objective", "full", "--out", tmp_path / "full", *options)
    resumed = ["train", WALK, "--trust", "--resume", "--out", tmp_path / "full", "--alpha"]
    assert told(capsys, *resumed[:-1])["finished"]
    assert told(capsys, *resumed, 0.5)["finished"]
    assert "alpha was 0.5 and is now 0.4" in failed(capsys, "rql", *resumed, 0.4)
    story = answered(capsys, "inspect", str(out))
    assert (story["method"], story["iterations logged"]) == ("Residual Q-learning", "2")


QUICK = Settings(steps=150, warmup=20, minibatch=16, hidden=(8,), seed=5)


def new_pendulum_prior() -> Policy:
    return Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)), hidden=(8,)))


@pytest.fixture
def _few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A density of the prior's states takes seconds else."""
    monkeypatch.setattr("repolicy.prepare.states.MIN_OBSERVATIONS", 800)
    monkeypatch.setattr("repolicy.prepare.states.MIN_FIT_OBSERVATIONS", 640)


def equal(one: Policy, other: Policy) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize(("env", "loss"), [(WALK, "loss"), (BOUNDED, "critic_loss")])
def test_a_run_that_was_stopped_ends_in_the_bits_of_one_that_was_not(env: str, loss: str, tmp_path: Path) -> None:
    """Stopped within a segment, with a buffer that is full by then, steps that no interval divides, and noise."""
    noise = 0.3 if env == BOUNDED else 0.0
    settings = replace(QUICK, steps=390, checkpoint_every=150, buffer=120, train_every=7, noise=noise)
    whole = train(env, full(0.2), tmp_path / "whole", settings)
    for stop in (200, 300):
        stopped = train(env, full(0.2), tmp_path / "stopped", settings, resume=True, callbacks=[Interrupts(stop)])
        assert (stopped.finished, stop <= stopped.steps < 390) == (False, True)
    for _ in range(2):  # a run that is done is left as it is
        resumed = train(env, full(0.2), tmp_path / "stopped", settings, resume=True)
    assert (resumed.finished, resumed.steps, whole.steps) == (True, 390, 390)  # no round of steps is filled up
    assert resumed.last["iteration"] == whole.last["iteration"] == 4  # also where nothing was left to do
    assert [axis.get_ylabel() for axis in resumed.plot().axes] == ["task's reward of an episode"]
    assert equal(whole.policy, resumed.policy)
    one, two = (RunFolder(tmp_path / name).read_metrics() for name in ("whole", "stopped"))
    assert one.keys() == two.keys()
    assert all(one[name] == two[name] for name in one if not name.startswith(("seconds", "steps_per")))
    assert one["iteration"] == [1, 2, 3, 4]
    train(env, full(0.2), tmp_path / "2", replace(settings, seed=6), callbacks=[Interrupts(100)])
    assert RunFolder(tmp_path / "2").read_metrics()[loss][0] != one[loss][0]


def test_every_environment_of_a_run_is_closed(tmp_path: Path) -> None:
    made, closed = list[gymnasium.Env[Any, Any]](), list[gymnasium.Env[Any, Any]]()

    class Closing(Walk):
        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    train(Closing, full(0.2), tmp_path, replace(QUICK, checkpoint_every=60))
    assert len(made) == 3
    assert closed == made


@pytest.mark.usefixtures("_few_states")
def test_weights_are_found_as_elsewhere_and_what_they_price_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """A nat of this prior is worth .3. Interrupted after the first checkpoint, while the actor still waits."""
    card = {"request": {"env": "Pendulum-v1"}, "nat_worth": {"value": 0.3, "error": 0.01, "episodes": 50}}
    save_policy(tmp_path / "prior.safetensors", new_pendulum_prior(), card | {"evaluation": {"evaluation_length": 200}})
    settings = replace(
        QUICK, steps=200, checkpoint_every=80, critic_warmup=0.5, actor_learning_rate=1e-2, minibatch=8, train_every=4
    )
    ways, heard = [], Log()
    for name, callbacks in (("whole", [heard]), ("stopped", [Interrupts(100)]), ("stopped", [])):
        ways.append(
            customize(
                tmp_path / "prior.safetensors", residual(), tmp_path / name, settings, addon=UPRIGHT,
                resume=name == "stopped", callbacks=callbacks, trust=True,
            )
        )  # fmt: skip
    assert [way.finished for way in ways] == [True, False, True]
    assert equal(ways[0].policy, ways[2].policy)
    assert RunFolder(tmp_path / "whole", Request).request().objective == residual(0.3, 0.1, 0.3)
    assert "1,300 steps of the environment in all: 200 to train, 1,100 for the prior's states" in heard.said
    assert not any("may lose the old task" in said for said in heard.said)


@pytest.mark.usefixtures("_few_states")
def test_the_priors_states_are_the_same_in_an_environment_that_draws_from_numpys_own_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(PendulumEnv):
        def step(self, action: np.ndarray) -> Any:
            observation, *rest = super().step(action)
            return observation + np.random.normal(0.0, 0.1, 3).astype(np.float32), *rest

    densities = []

    def noted(*asked: Any) -> Any:
        densities.append(fit_prior_density(*asked))
        return densities[-1]

    monkeypatch.setattr("repolicy.rql.customizing.fit_prior_density", noted)
    prior, objective = new_pendulum_prior(), residual(0.3, 0.1, 0.3)
    for name in ("one", "other"):
        customize(prior, objective, tmp_path / name, QUICK, addon=UPRIGHT, env=lambda: TimeLimit(Noisy(), 100))
    assert densities[0].mean.tolist() == densities[1].mean.tolist()


def test_a_prior_is_named_as_elsewhere(tmp_path: Path) -> None:
    """By a run's result, its file, or as a policy, with a function as the add-on; a function cannot be copied."""
    trained = train(BOUNDED, soft(0.2), tmp_path / "prior", replace(QUICK, steps=60))
    saved = [trained, tmp_path / "prior", trained.policy]
    runs = [
        customize(prior, residual(0.3, 0.2, 0.0), tmp_path / str(n), QUICK, addon=sparing, env=BOUNDED)
        for n, prior in enumerate(saved)
    ]
    assert equal(runs[0].policy, runs[1].policy)
    assert equal(runs[0].policy, runs[2].policy)
    with pytest.raises(UsageError, match="zeros cannot be copied, as Residual Q-learning needs"):
        customize(
            zeros, residual(0.3, 0.2), tmp_path / "no", QUICK, addon=sparing, env=BOUNDED, reading=Options(std=0.2),  # type: ignore[arg-type]
        )  # fmt: skip


def sparing(observations: Any, actions: np.ndarray, next_observations: Any, info: Any) -> np.ndarray:
    return -np.square(actions).sum(-1)


def zeros(observations: np.ndarray) -> np.ndarray:
    return np.zeros((len(observations), 1), np.float32)


def test_more_steps_than_were_seen_to_hold_are_said_before_they_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not of a task, which has settings of its own."""
    save_policy(tmp_path / "prior.safetensors", new_pendulum_prior(), {"request": {"env": "Pendulum-v1"}})
    settings = replace(QUICK, steps=30)
    monkeypatch.setattr("repolicy.rql.customizing.CUSTOMIZING", replace(settings, steps=29))
    said = []
    for task in (None, TASKS["parking"]):
        heard = Log()
        monkeypatch.setattr("repolicy.rql.customizing.task_of", lambda _, task=task: task)
        customize(
            tmp_path / "prior.safetensors", residual(0.3, 0.1), tmp_path / str(len(said)), settings, addon=UPRIGHT,
            callbacks=[heard], trust=True,
        )  # fmt: skip
        said.append("beyond 29 steps it may lose the old task: take `repolicy customize`" in heard.said)
    assert said == [True, False]


class Interrupts(Log):
    """Presses Ctrl-C."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def write(self, metrics: dict[str, float]) -> None:
        if metrics["steps"] >= self.at:
            signal.raise_signal(signal.SIGINT)


def test_a_folder_is_resumed_by_its_own_method_and_request_alone(tmp_path: Path) -> None:
    train(WALK, soft(0.2), tmp_path / "q", QUICK)
    cases: list[tuple[str, Any]] = [
        ("holds a run already; add --resume", lambda: train(WALK, soft(0.2), tmp_path / "q", QUICK)),
        ("seed was 5 and is now 6",
         lambda: train(WALK, soft(0.2), tmp_path / "q", replace(QUICK, seed=6), resume=True)),
        ("it is a run of Residual Q-learning; name another folder",
         lambda: repolicy.train("CartPole-v1", soft(0.2), tmp_path / "q", resume=True)),
    ]  # fmt: skip
    for sentence, call in cases:
        with pytest.raises(RepolicyError, match=re.escape(sentence)):
            call()
    folder = RunFolder(tmp_path / "q", Request)
    tensors, story, _ = folder.latest_checkpoint() or pytest.fail("there is no checkpoint")
    tensors["policy/q_net.q_net.0.weight"] = torch.zeros(3, 3)
    folder.begin(folder.request(), {}, resume=True)
    folder.save(story["segment"], tensors, {"iteration": 1, "steps": 100})
    with pytest.raises(RepolicyError, match="the last checkpoint in .*q is none of this run's"):
        train(WALK, soft(0.2), tmp_path / "q", QUICK, resume=True)


def test_an_old_folder_is_refused_before_weights_are_looked_for(tmp_path: Path) -> None:
    save_policy(tmp_path / "prior.safetensors", wild_prior(), {"request": {"env": WALK, "objective": {"alpha": 0.5}}})
    train(WALK, soft(0.2), tmp_path / "q", replace(QUICK, steps=60))
    heard = Log()
    with pytest.raises(UsageError, match="q holds a run already"):
        customize(
            tmp_path / "prior.safetensors", residual(), tmp_path / "q", QUICK, addon=UPRIGHT, callbacks=[heard],
            trust=True,
        )  # fmt: skip
    assert heard.said == []


def test_an_add_on_is_a_function_or_the_environments_word(tmp_path: Path) -> None:
    """Walk tells its add-on; the same as a function gives the same weights."""
    settings, named = replace(QUICK, steps=60), ADD_ON
    told, function, doubled = (
        train(WALK, full(0.2), tmp_path / str(run), settings, addon=addon).policy.state_dict()
        for run, addon in enumerate([(), named, f"{named}=2"])
    )
    assert all(torch.equal(value, function[name]) for name, value in told.items())
    assert not all(torch.equal(value, doubled[name]) for name, value in told.items())
    assert read_policy(tmp_path / "1" / "policy.safetensors").card["request"]["addons"] == [named]
    in_hand = train(Walk, full(0.2), tmp_path / "4", settings).policy.state_dict()
    assert all(torch.equal(value, in_hand[name]) for name, value in told.items())
    with pytest.raises(UsageError, match="an add-on goes with full or greedy"):
        train(WALK, soft(0.2), tmp_path / "3", settings, addon=named)


# What cannot be, from the command line --------------------------------------------------------------------------------
def test_bad_words_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior, box = tmp_path / "prior.safetensors", tmp_path / "box.safetensors"
    save_policy(prior, wild_prior(), {"request": {"env": WALK, "objective": {"alpha": 0.5}}})
    save_policy(box, constant(0.0, 1.0), {"request": {"env": BOUNDED}})
    odd = tmp_path / "settings.json"
    odd.write_text('{"learning_rat": 0.1}')
    customized = ["customize", prior, "--omega", 1, "--trust"]
    cases: list[tuple[int, str, list[object]]] = [
        (2, "there is no task or environment 'cartpol'; did you mean", ["train", "cartpol", "--alpha", 1]),
        (2, "is no task", ["train", WALK]),
        (2, "cartpol is no task, so it needs an --alpha; did you mean cartpole?", ["train", "cartpol"]),
        (2, "alpha is 0; soft Q-learning needs a temperature above 0", ["train", "cartpole", "--alpha", 0]),
        (2, "unknown field 'learning_rat'; did you mean learning_rate or", ["train", "cartpole", "--settings", odd]),
        (2, "does not tell the alpha that it was trained with", ["customize", box, "--omega", 1, "--trust"]),
        (2, "observations of 3 numbers, but 'CartPoleEnv' gives 4", [*customized, "--env", "cartpole"]),
        (1, "there is no file", ["customize", tmp_path / "nothing.safetensors", "--omega", 1]),
        (1, "run.json cannot be written: Not a directory", [*customized, "--out", box]),
        (2, "objective residual needs omega", ["customize", prior, "--trust"]),
    ]  # fmt: skip
    for code, sentence, words in cases:
        out = [] if "--out" in words else ["--out", tmp_path / "out"]
        assert sentence in failed(capsys, "rql", *words, *out, codes=(code,))
        assert not (tmp_path / "out").exists()


def test_a_deterministic_policy_is_no_prior_without_a_temperature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stable_baselines3 import DQN

    stock = DQN("MlpPolicy", Walk(), buffer_size=10, device="cpu")
    stock.save(tmp_path / "dqn.zip")
    asked = ["customize", tmp_path / "dqn.zip", "--omega", 1, "--alpha", 1, "--env", WALK, "--out", tmp_path / "out"]
    assert "no probabilities: give a --temperature" in failed(capsys, "rql", *asked, codes=(2,))
    told(capsys, *asked, "--temperature", 0.5, "--steps", 60, "--warmup", 20, "--hidden", 64, 64)
    kept = read_policy(tmp_path / "out" / "prior.safetensors").policy
    with torch.no_grad():
        torch.testing.assert_close(kept(torch.eye(3)).log_probs[0], (stock.q_net(torch.eye(3)) / 0.5).log_softmax(-1))
    with pytest.raises(UsageError, match=r"this DQN cannot be a prior: it has no log_prob\(observations, actions\)"):
        ResidualDQN(Walk(), residual(1.0, 1.0), stock)


def test_without_stable_baselines3_one_sentence_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.torch_layers", None)
    for name in ("algorithms", "wrapping"):
        monkeypatch.delitem(sys.modules, f"repolicy.rql.{name}")
    said = failed(capsys, "rql", "train", "cartpole", codes=(2,))
    assert "which is not installed: pip install 'repolicy[sb3]'" in said


# What cannot be, from Python ------------------------------------------------------------------------------------------
class OtherSpaces(Walk):
    def __init__(self, **spaces: Any) -> None:
        self.__dict__ |= spaces


class Silent(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


def from_five() -> Any:
    return OtherSpaces(action_space=spaces.Discrete(2, start=5))


SEES_ONE = OtherSpaces(observation_space=Bounded.observation_space)
SEES_A_DICT = OtherSpaces(observation_space=spaces.Dict({"a": Walk.observation_space}))
ACTS_WITHOUT_BOUNDS = OtherSpaces(action_space=spaces.Box(-np.inf, np.inf, (1,)))
RESIDUAL = residual(0.5, 0.5)


@pytest.mark.parametrize(
    ("sentence", "algorithm", "arguments"),
    [
        ("acts with choices of 3, but 'Walk' takes choices of 2", ResidualDQN, (Walk(), RESIDUAL, "three")),
        ("takes observations of 3 numbers, but 'OtherSpaces' gives 1", ResidualDQN, (SEES_ONE, RESIDUAL, "two")),
        ("has 2 hidden layers", ResidualDQN, (Walk(), RESIDUAL, "two", Settings(hidden=(4,)))),
        ("the environment takes 1 number: use ResidualSAC", ResidualDQN, (Bounded(), full(0.5))),
        ("the environment takes choices of 2: use ResidualDQN", ResidualSAC, (Walk(), full(0.5))),
        ("noise is for actions that are numbers", ResidualDQN, (Walk(), full(0.5), None, Settings(noise=0.3))),
        ("omega is 0.5, which weighs a prior's log-prob", ResidualDQN, (Walk(), RESIDUAL)),
        ("states is 3", ResidualDQN, (Walk(), residual(0.5, 0.5, states=3.0), "two")),
        ("alpha is 0", ResidualSAC, (Bounded(), full(0.0))),
        ("observations are of kind Dict", ResidualDQN, (SEES_A_DICT, full(0.5))),
        ("takes observations of 3 numbers", ResidualSAC, (Bounded(), kl(0.5), Table(torch.zeros(3, 2)), None, "two")),
        ("or a bounded Box", ResidualSAC, (ACTS_WITHOUT_BOUNDS, full(0.5))),
    ],
)
def test_what_does_not_fit_is_one_sentence(sentence: str, algorithm: Any, arguments: tuple[Any, ...]) -> None:
    priors = {"two": wild_prior(), "three": wild_prior(actions=ActionSpace("discrete", (3,)))}
    with pytest.raises(UsageError, match=re.escape(sentence)):
        algorithm(*(priors.get(value, value) if isinstance(value, str) else value for value in arguments))


def test_what_cannot_be_done_is_one_sentence(tmp_path: Path) -> None:
    out, saved = tmp_path / "out", tmp_path / "prior.safetensors"
    save_policy(saved, wild_prior(), {})
    cases: list[tuple[str, Any]] = [
        ("needs a prior: use customize", lambda: train(WALK, RESIDUAL, out)),
        ("needs an objective whose task is the add-on", lambda: customize(saved, full(0.5), out, env=WALK)),
        ("does not say which environment it is for", lambda: customize(saved, RESIDUAL, out)),
        ("they must be Discrete from 0", lambda: customize(saved, residual(), out, env=f"{__file__}:from_five")),
        ("does not say which environment it is for; give env=", lambda: customize(wild_prior(), RESIDUAL, out)),
        ("name your own with --addon (in Python, addon=...)",
         lambda: customize(saved, RESIDUAL, out, replace(QUICK, hidden=(8, 8)), env=f"{__file__}:Silent")),
        ("the first gradient step comes after 151 steps, so nothing would be learned in 150",
         lambda: train(WALK, full(0.5), out, replace(QUICK, steps=150, warmup=150))),
        ("the first gradient step comes after 32 steps, so nothing would be learned in 30",
         lambda: train(WALK, full(0.5), out, replace(QUICK, steps=30, train_every=16))),
        ("a segment of 60 steps is shorter than a round of 61, so nothing would be learned",
         lambda: train(WALK, full(0.5), out, replace(QUICK, train_every=61, checkpoint_every=60))),
        ("can hold no Table: act with model.predict",
         lambda: ResidualDQN(Walk(), RESIDUAL, Table(torch.zeros(3, 2))).save(out)),
        ("needs info['addon_reward'], and the environment's info has nothing: wrap it in repolicy.rql.WithAddon",
         lambda: ResidualDQN(Silent(), full(0.5)).learn(2)),
    ]  # fmt: skip
    for sentence, call in cases:
        with pytest.raises(UsageError, match=re.escape(sentence)):
            call()
    assert not out.exists()
