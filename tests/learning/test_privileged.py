"""A critic that sees more than the policy: `--observe state --observe-critic privileged_state`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import same, weights
from threaded_ranks import customized
from torch import Tensor

from repolicy.cli import main as cli
from repolicy.envs.making import critic_size, make_envs, with_observation_roles
from repolicy.errors import UsageError
from repolicy.evaluation import evaluate
from repolicy.learning.segments import Segments
from repolicy.learning.terms import DialedTerms
from repolicy.learning.training import customize, train
from repolicy.objective import Objective, greedy, no_entropy, residual, soft
from repolicy.policies.file import save_policy
from repolicy.policies.normalizer import Normalizer
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.opening import load_policy
from repolicy.ranges import Range
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

LIMIT, GAMMA = 8, 0.9
SMALL = Settings(
    steps=3_072, ranks=1, envs=8, n_steps=32, minibatch=64, checkpoint_every=8, hidden=(16,), evaluation_episodes=2,
    gamma=GAMMA, learning_rate=1e-2, schedule="constant",
)  # fmt: skip
FEW = replace(SMALL, steps=1_024, checkpoint_every=2, hidden=(4,))


class Hidden(gymnasium.Env[Any, Any]):
    """Pays a number in every step of an episode, which a policy does not see: it sees noise.

    What is hidden is this number times `times`, the step, and the seed modulo 8.
    """

    observation_space = spaces.Dict(
        {"hidden": spaces.Box(-99.0, 99.0, (3,), np.float32), "seen": spaces.Box(-9.0, 9.0, (2,), np.float32)}
    )
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, times: float = 1.0) -> None:
        self._times = times

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._seed = self._seed if seed is None else seed % 8
        self._pay, self._t = self.np_random.uniform(-1.0, 1.0), 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._look(), self._pay, False, self._t == LIMIT, {"pay": self._pay}

    def _look(self) -> Any:
        hidden = np.array([self._pay * self._times, self._t, self._seed], np.float32)
        return {"hidden": hidden, "seen": self.np_random.normal(size=2).astype(np.float32)}


class Parts(Hidden):
    """The same under other names."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self._names = names.split(",")
        sizes = {name: spaces.Box(-99.0, 99.0, (2 + index,), np.float32) for index, name in enumerate(self._names)}
        self.observation_space = spaces.Dict(sizes)

    def _look(self) -> Any:
        return {name: np.full(2 + index, self._t, np.float32) for index, name in enumerate(self._names)}


def pay(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    assert observations.shape[1] == next_observations.shape[1] == 2, "an add-on sees what the policy sees"
    return info["pay"]


HERE = Path(__file__)
PLAIN, WISH = f"{HERE}:Hidden", f"{HERE}:pay"
ENV = f"{PLAIN}?observe=seen&observe_critic=hidden"


def prior(folder: Path) -> Path:
    """A policy of noise that means nothing, with statistics of its own."""
    torch.manual_seed(3)
    policy = Policy(PolicySpec(2, make_envs(PLAIN, 1, 0).actions, hidden=(4,)))
    policy.normalizer.load_state_dict(
        {"mean": torch.tensor([0.5, -0.5]).double(), "var": torch.tensor([2.0, 0.5]).double(), "count": torch.tensor(9)}
    )
    save_policy(folder / "prior.safetensors", policy, {"request": {"env": f"{PLAIN}?observe=seen"}})
    return folder / "prior.safetensors"


def segments(folder: Path, env: str, objective: Objective, settings: Settings = FEW) -> Segments:
    """At the start of the first segment; the critic has statistics of its own."""
    run = RunFolder(folder / "run")
    wishes = (WISH,) if objective.reads_addon else ()
    if wishes:
        run.path.mkdir(exist_ok=True)
        shutil.copy(prior(folder), run.prior)
    made = Segments(Request(env, objective, settings, wishes, "a checksum" if wishes else ""), run, SingleRank())
    made.begin()
    state = {"mean": torch.tensor([0.1, 3.0, 2.0]).double(), "var": torch.tensor([0.3, 4.0, 2.0]).double()}
    made.worker.critic_normalizer.load_state_dict(state | {"count": torch.tensor(100.0).double()})
    return made


# Who sees what --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wanted", ["hidden", "seen,hidden", ""])
def test_the_critics_parts_stand_behind_those_of_the_policy(wanted: str) -> None:
    name = f"{PLAIN}?observe=seen" + f"&observe_critic={wanted}" * bool(wanted)
    plain, both = make_envs(name, 2, 0), make_envs(name, 2, 0, critic=True)
    extra = critic_size(name)
    assert extra == {"hidden": 3, "seen,hidden": 5, "": 0}[wanted]
    assert plain.observation_size == both.observation_size == 2
    first, whole = plain.reset(), both.reset()
    assert whole.shape == (2, 2 + extra)
    assert np.array_equal(whole[:, :2], first)
    step, wide = (envs.step(np.zeros((2, 1), np.float32)) for envs in (plain, both))
    for ours, theirs in ((step.observations, wide.observations), (step.final, wide.final)):
        assert np.array_equal(theirs[:, :2], ours)
        if wanted:
            assert theirs[:, -2:].tolist() == [[1.0, 0.0], [1.0, 1.0]]  # the step, and the seed
        if wanted == "seen,hidden":
            assert np.array_equal(theirs[:, 2:4], ours)


def test_the_policy_is_given_its_own_part_and_the_critic_the_privileged_one(tmp_path: Path) -> None:
    """What is hidden may be anything: actions, log-probabilities and the prior's stay the same bits; values do not."""
    found = []
    for times in (1, 5):
        made = segments(tmp_path, f"{ENV}&times={times}", residual(0.3, 0.1)).worker
        rollout = made.collector.collect(made.learner.policy)
        inputs, critic_inputs = made.network_inputs(rollout.observations)
        own, hidden = torch.from_numpy(rollout.observations).split([2, 3], -1)
        assert torch.equal(inputs, made.learner.policy.normalizer(own))
        assert torch.equal(critic_inputs, made.critic_normalizer(hidden))
        log_prior, values, _ = made.score(rollout, critic_inputs)
        assert log_prior is not None
        torch.testing.assert_close(log_prior, rollout.log_probs)  # the actor begins as the prior
        assert torch.equal(made.learner.values(critic_inputs[:-1]), values)
        found.append((rollout, log_prior, values, hidden))
    (one, log_prior, values, hidden), (other, *others) = found
    torch.testing.assert_close(5 * hidden[..., 0], others[2][..., 0])
    assert torch.equal(one.actions, other.actions)
    assert torch.equal(one.log_probs, other.log_probs)
    assert torch.equal(log_prior, others[0])
    assert float((values - others[1]).abs().max()) > 0.01


def test_where_a_time_limit_cuts_the_critic_values_what_is_hidden_in_the_last_observation(tmp_path: Path) -> None:
    made = segments(tmp_path, ENV, soft(0.1)).worker
    rollout = made.collector.collect(made.learner.policy)
    assert len(rollout.cut_indices) == 4 * FEW.envs
    assert (rollout.cut_observations[:, 3] == LIMIT).all()
    _, _, next_values = made.score(rollout, made.network_inputs(rollout.observations)[1])
    with torch.no_grad():
        hidden = torch.from_numpy(rollout.observations[:-1, :, 2:])
        after = made.learner.values(made.critic_normalizer(hidden + torch.tensor([0.0, 1.0, 0.0])))  # only time passes
    assert float(after.std()) > 0.01
    torch.testing.assert_close(next_values, after)


@pytest.mark.parametrize(("critic", "explains"), [("hidden", True), ("", False)])
def test_only_a_critic_that_sees_it_explains_what_hangs_on_a_hidden_number(
    tmp_path: Path, critic: str, explains: bool
) -> None:
    trained = train(PLAIN, no_entropy(), tmp_path / "run", SMALL, observe="seen", observe_critic=critic)
    alone = replace(SMALL, critic_warmup=1.0)
    later = customize(
        prior(tmp_path), WISH, greedy(0.0), tmp_path / "customized", alone, env=PLAIN, observe="seen",
        observe_critic=critic,
    )  # fmt: skip
    for result in (trained, later):
        explained = result.last["explained_variance"]
        assert explained > 0.98 if explains else explained < 0.1
        policy = load_policy(result.folder)  # needs nothing of the critic's
        assert policy.observation_size == 2
        assert len(evaluate(policy, f"{PLAIN}?observe=seen&observe_critic=missing", 3).basic) == 3


# The critic's statistics ----------------------------------------------------------------------------------------------
def test_the_same_part_for_both_is_the_ordinary_run_to_the_bit(tmp_path: Path) -> None:
    """Because the critic's statistics are then the policy's."""
    train(PLAIN, soft(0.1), tmp_path / "ordinary", FEW, observe="seen")
    train(PLAIN, soft(0.1), tmp_path / "twice", FEW, observe="seen", observe_critic="seen")
    ordinary, twice = weights(tmp_path / "ordinary"), weights(tmp_path / "twice")
    for name in ("mean", "var", "count"):
        assert torch.equal(twice.pop(f"critic_normalizer.{name}"), ordinary[f"normalizer.{name}"])
    assert same(ordinary, twice)


def test_all_ranks_fit_them_and_a_resumed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    """While customizing: the prior's own statistics stay, and the critic's take in every environment's numbers."""
    settings, start = replace(FEW, critic_explains=None), prior(tmp_path)

    def run(name: str, resume: bool) -> None:
        customize(start, WISH, residual(0.3, 0.1), tmp_path / name, settings, env=ENV, resume=resume)

    run("whole", False)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "checkpoints" / "000002.safetensors").unlink()
    run("again", True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "again"))
    two = Request(ENV, residual(0.3, 0.1), replace(settings, ranks=2), (WISH,), "a checksum")
    customized(two, start, tmp_path / "shared")
    for name in ("whole", "shared"):
        found = weights(tmp_path / name)
        assert torch.equal(found["normalizer.mean"], torch.tensor([0.5, -0.5]).double())
        assert float(found["critic_normalizer.count"]) == FEW.steps
        mean, var = found["critic_normalizer.mean"], found["critic_normalizer.var"]
        assert mean[1:].tolist() == [(LIMIT - 1) / 2, 3.5]  # the step before a limit, and eight seeds in a row
        torch.testing.assert_close(var[1:], torch.tensor([5.25, 5.25]).double())


def test_a_critic_of_a_prior_has_statistics_from_its_first_rollout_on(tmp_path: Path) -> None:
    """Or it would learn from raw numbers first, while the policy's are normalized from the start."""
    made = segments(tmp_path, ENV, residual(0.3, 0.1)).worker
    made.critic_normalizer = Normalizer(3)
    told: list[Tensor] = []
    values = made.learner.values
    made.learner.values = lambda inputs: [told.append(inputs), values(inputs)][1]
    made.iterate(stop=False)
    seen = told[0][:-1].flatten(0, 1)
    torch.testing.assert_close(seen.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(3))
    assert float(made.critic_normalizer.count) == FEW.iteration_steps  # once


def test_a_critic_whose_numbers_stay_as_they_are_sees_large_ones(tmp_path: Path) -> None:
    made = segments(tmp_path, ENV, soft(0.1), replace(FEW, normalize_observations=False)).worker
    assert float(made.critic_normalizer(torch.full((1, 3), 1e3)).min()) > 100.0


# By default, and by name ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "size", "observe", "critic"),
    [
        ("privileged_state,state", 0, "state", "privileged_state"),
        ("critic,policy", 0, "policy", "critic"),
        ("critic,policy", 3, "policy", "critic"),
        ("critic,policy", 2, "critic", ""),  # a prior that sees the critic's part
        ("critic,policy", 5, "", ""),  # one that sees both
        ("state,privileged", 0, "", ""),  # no customary pair: all of it, for both
        ("state,privileged", 2, "state", ""),
    ],
)
def test_customary_names_say_who_sees_what(names: str, size: int, observe: str, critic: str) -> None:
    plain = f"{HERE}:Parts?names={names}"
    expected = plain + f"&observe={observe}" * bool(observe) + f"&observe_critic={critic}" * bool(critic)
    found = with_observation_roles(plain, size)
    assert found == expected
    assert with_observation_roles(found, size) == found
    assert with_observation_roles(f"{plain}&observe={names}", size) == f"{plain}&observe={names}"  # it says so itself
    named = f"{HERE}:Parts?names=state,more&observe_critic=more"
    assert with_observation_roles(named) == with_observation_roles(named, 2) == f"{named}&observe=state"


def test_playgrounds_go1_is_trained_with_a_privileged_critic() -> None:
    pytest.importorskip("envpool")
    name = "Go1JoystickFlatTerrain-v1"
    roles = f"{name}?observe=state&observe_critic=privileged_state"
    assert with_observation_roles(name) == with_observation_roles(name, 48) == roles
    plain, both = make_envs(name, 1, 0), make_envs(roles, 1, 0, critic=True)
    whole = both.reset()
    assert plain.groups == {"state": both.observation_size, "privileged_state": whole.shape[1] - 48}
    assert np.array_equal(np.sort(whole), np.sort(plain.reset()))


def test_the_command_line_names_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--steps", "256", "--envs", "8", "--n-steps", "32", "--ranks", "1", "--hidden", "4"]
    words = ["train", PLAIN, "--observe", "seen", "--observe-critic", "hidden", "--alpha", "0.1", *few]
    out = ["--evaluation-episodes", "1", "--out", str(tmp_path / "run")]
    cli.main([*words, *out])
    cli.main(["train", PLAIN, *out, "--resume", "--trust"])  # who sees what need not be typed again
    parts = ["--env", PLAIN, "--observe-critic", "seen,hidden", "--addon", WISH]
    few += ["--omega", "1", *out[:2], "--no-report", "--out", str(tmp_path / "customized")]
    cli.main(["customize", str(prior(tmp_path)), *parts, *few])
    resumed = ["--addon", WISH, "--no-report", "--resume", "--out", str(tmp_path / "customized")]
    cli.main(["customize", str(prior(tmp_path)), *parts[:2], *resumed])
    asked = [json.loads((tmp_path / run / "run.json").read_text())["request"]["env"] for run in ("run", "customized")]
    assert asked == [ENV, f"{PLAIN}?observe_critic=seen,hidden&observe=seen"]
    assert "critic_normalizer.mean" in weights(tmp_path / "run")
    assert len(weights(tmp_path / "customized")["critic_normalizer.mean"]) == 5


@pytest.mark.parametrize(
    ("env", "observe", "critic", "said"),
    [
        (PLAIN, "seen", "hiden", r"has no observation 'hiden'; did you mean hidden\?; it has hidden, seen"),
        (PLAIN, "sen", "hidden", r"has no observation 'sen'; did you mean seen\?; it has hidden, seen"),
        ("Pendulum-v1", "", "hidden", "no observation 'hidden'; its observation is no Dict: leave observe_critic out"),
        ("Pendulum-v1", "seen", "", "has no observation 'seen'; its observation is no Dict: leave observe out"),
        (f"{PLAIN}?observe=seen", "hidden", "", "is to have observe=hidden too: name these parts only once"),
        (PLAIN, "", "hidden", "does not say what the policy itself observes: add --observe KEY, of hidden, seen"),
    ],
)
def test_what_cannot_be_seen_is_refused(tmp_path: Path, env: str, observe: str, critic: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(env, soft(0.1), tmp_path / "run", FEW, observe=observe, observe_critic=critic)
    assert not (tmp_path / "run").exists()


def test_a_part_that_does_not_fit_the_prior_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"takes observations of 2 numbers, but .* gives 3 \(hidden 3, seen 2; "):
        customize(prior(tmp_path), WISH, residual(1, 1), tmp_path / "run", FEW, observe="hidden", env=PLAIN)


# With a dial ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "objective", [residual(Range(0.05, 1.6), 0.1, 0.0), residual(Range(0.05, 1.6), Range(0.1, 0.4), 0.0)]
)
def test_with_dials_both_see_the_positions_last(tmp_path: Path, objective: Objective) -> None:
    """And the prior and the add-on still see the policy's part alone."""
    made = segments(tmp_path, ENV, objective).worker
    assert isinstance(made.terms, DialedTerms)
    rollout = made.collector.collect(made.learner.policy)
    own, place, hidden = torch.from_numpy(rollout.observations).split([2, len(objective.dials), 3], -1)
    assert float(place.min()) == -1.0
    inputs, critic_inputs = made.network_inputs(rollout.observations)
    assert torch.equal(inputs, torch.cat([made.prior.normalizer(own), place], -1))
    assert torch.equal(critic_inputs, torch.cat([made.critic_normalizer(hidden), place], -1))
    log_prior, *_ = made.score(rollout, critic_inputs)
    assert log_prior is not None
    torch.testing.assert_close(log_prior, rollout.log_probs, atol=1e-5, rtol=1e-5)
    assert torch.equal(made.terms.dial_places(rollout), place[:-1])
    before = made.learner.parameters.clone()
    made.iterate(stop=False)
    assert not torch.equal(made.learner.parameters, before)
    assert float(made.critic_normalizer.count) == 100 + FEW.iteration_steps
