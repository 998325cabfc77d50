"""Learning for every ω′ of a range at once: what each environment is asked for, and how it is paid."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from known_optimum import SETTINGS, WISH_CONTROL_COST, WISH_STATE_COST, customized, gain_and_std, optimum
from several import ALPHA, QUIET, WISH, prior_file, worker
from tiny_envs import CONTROL_COST, STATE_COST, tiny

import repolicy
from repolicy.cli import main as cli
from repolicy.envs.dialed import Dialed
from repolicy.envs.evaluation import evaluate
from repolicy.envs.making import make_envs
from repolicy.errors import FileError, UsageError
from repolicy.objective import kl, residual
from repolicy.policies.distributions import Gaussian
from repolicy.policies.file import save_policy
from repolicy.policies.modulated import Conditioned
from repolicy.policies.storage import packed, read
from repolicy.priors.opening import load_policy, read_policy
from repolicy.ranges import Dial, Range
from repolicy.runs.request import Request, words
from repolicy.runs.settings import Settings

FEW = Settings(
    **SETTINGS.as_dict() | {"steps": 1_024, "envs": 16, "checkpoint_every": 1, "minibatch": 128, "hidden": (8,)}
)


@pytest.fixture
def prior(tmp_path: Path) -> Path:
    return prior_file(tmp_path)


# What each environment is asked for -----------------------------------------------------------------------------------


def test_a_dial_over_one_wish_alone_has_one_head(prior: Path, tmp_path: Path) -> None:
    """A critic with a single head gives what one with several gives: a value for each head."""
    result = repolicy.customize(
        prior, f"{WISH}=0..2", residual(0.0, 0.0), tmp_path / "trained", FEW, env=tiny("WithoutReward")
    )
    assert result.finished
    made = worker(prior, tmp_path, residual(0.0, 0.0), wishes=(f"{WISH}=0..2",))
    rollout = made.collector.collect(made.learner.policy)
    _, critic_inputs = made.seen(rollout.observations)
    _, values, after = made.score(rollout, critic_inputs)
    assert values.shape == (*rollout.basic.shape, 1)
    reward, ended = made.reward(rollout, None), torch.from_numpy(rollout.terminated | rollout.truncated)
    gains, targets = made.terms.credit(reward, values, after, torch.from_numpy(rollout.terminated), ended)
    torch.testing.assert_close(gains, ((targets - values) * made.terms.weights()).sum(-1).float())


@pytest.mark.parametrize("env", ["Counter", "Mortal"])  # all end at once by a time limit; each ends by itself
def test_a_position_stays_until_its_episode_ends(env: str) -> None:
    envs = Dialed(make_envs(tiny(env), 6, 0), 3)
    before = envs.reset()[:, -1]
    moved = 0
    for _ in range(20):
        step = envs.step(np.zeros((6, 1), np.float32))
        ended, now = step.terminated | step.truncated, step.observations[:, -1]
        assert (step.final[:, -1] == before).all()  # what an episode ended in is still its own
        assert (now[~ended] == before[~ended]).all()
        moved += int((now[ended] != before[ended]).sum())
        before = now
    assert moved > 5
    assert envs.observation_size == step.observations.shape[1] == envs.envs.observation_size + 1


def test_an_environment_that_is_begun_anew_gets_a_new_position_and_the_others_keep_theirs() -> None:
    envs = Dialed(make_envs(tiny("Counter"), 4, 0), 3)
    envs.reset()
    before = envs.step(np.zeros((4, 1), np.float32)).observations
    after = envs.renew(np.array([False, True, False, True]), before)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert after[:, :-1].tolist() == [[1, 1], [2, 0], [1, 1], [2, 0]]  # episode, and its steps
    assert (after[[1, 3], -1] != before[[1, 3], -1]).all()
    np.testing.assert_array_equal(envs.step(np.zeros((4, 1), np.float32)).observations[:, -1], after[:, -1])


# How it is paid -------------------------------------------------------------------------------------------------------


def test_advantages_are_of_one_size_in_every_part_of_the_dial(prior: Path, tmp_path: Path) -> None:
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0))
    made.terms.places = made.terms.asked(made.collector.collect(made.learner.policy))
    gains, *_ = made.terms.normalized(
        torch.exp(3.0 * made.terms.places[..., 0]) * torch.randn(made.terms.places.shape[:2]),
        torch.randn(*made.terms.places.shape[:2], 3),
        made.team,
    )
    for low, high in ((-1.0, -0.75), (-0.25, 0.0), (0.75, 1.1)):
        part = gains[(made.terms.places[..., 0] >= low) & (made.terms.places[..., 0] < high)]
        assert float(part.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(part.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_what_the_critic_explains_is_of_the_returns_with_their_weights(prior: Path, tmp_path: Path) -> None:
    """Of ±2 weighed 0.5 and 1.5 in two parts of the dial, where their means do not count: variances of 1 and of 9."""
    made = worker(prior, tmp_path, residual(0.0, 0.0), wishes=(f"{QUIET}=0..2",))
    made.terms.places = torch.tensor([[-0.5, 0.5], [-0.5, 0.5]]).unsqueeze(-1)
    targets = torch.tensor([[12.0, 2.0], [8.0, -2.0]]).unsqueeze(-1)
    *_, explained = made.terms.normalized(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), targets, made.team)
    assert explained == pytest.approx(1.0 - 2.0 / 10.0)


def test_how_far_apart_the_ends_are_is_the_smaller_of_both_ways(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a std to one e times as large it is 1 nat and (e⁻² - 1) / 2, and the other way it is more."""
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0))
    by_place = staticmethod(lambda inputs: Gaussian(torch.zeros(len(inputs), 1), inputs[:, -1:] / 2))
    monkeypatch.setattr(Conditioned, "distribution", by_place)
    assert made.width(torch.zeros(3, 2))["dial_kl"] == pytest.approx(1.0 + 0.5 * (math.exp(-2.0) - 1.0))


def test_the_wish_and_the_prior_see_what_the_environment_shows(prior: Path, tmp_path: Path) -> None:
    """Not the position behind it: at the start the policy is the prior, so no step brings it nearer or farther."""
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0))
    made.learner.policy.load_state_dict(Conditioned.begun(read_policy(prior).policy, made.terms.dials).state_dict())
    rollout = made.collector.collect(made.learner.policy)
    log_prior, *_ = made.score(rollout, made.learner.policy.normalizer(torch.from_numpy(rollout.observations)))
    assert log_prior is not None
    torch.testing.assert_close(log_prior, rollout.log_probs, atol=1e-4, rtol=1e-4)
    states = rollout.observations[:-1, :, 0]
    wanted = -(WISH_STATE_COST * states**2 + WISH_CONTROL_COST * rollout.sent[..., 0] ** 2)
    np.testing.assert_allclose(made.reward(rollout, log_prior).task.numpy(), wanted, rtol=1e-5)


def test_one_run_finds_the_optimum_for_omegas_that_it_was_not_told_of(prior: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=100_000, learning_rate=8e-3)
    found = customized(prior, residual(Range(0.25 * ALPHA, 8.0 * ALPHA), 0.15, 0.0), tmp_path / "run", settings)
    assert found.last["dial_kl"] > 0.5  # nats, at states all along the episodes, which are near 0 at their ends
    for omega in (0.37, 0.6, 1.0, 1.9, 3.0, 5.0):
        wanted = optimum(omega * STATE_COST + WISH_STATE_COST, omega * CONTROL_COST + WISH_CONTROL_COST, 0.15)
        gain, std = gain_and_std(found.at(omega * ALPHA))
        assert gain == pytest.approx(float(wanted.gain), rel=0.05), omega
        assert std == pytest.approx(math.sqrt(float(wanted.covariance)), rel=0.05), omega


def test_it_goes_on_to_the_same_bits(prior: Path, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        customized(prior, residual(Range(0.05, 1.6), "omega", 0.0), tmp_path / name, FEW)
    for path in (tmp_path / "cut").glob("checkpoints/*"):
        if int(path.stem) > 1:
            path.unlink()
    cli.main(
        ["customize", str(prior), "--addon", WISH, "--resume", "--out", str(tmp_path / "cut"), "--no-report", "--trust"]
    )
    ours, theirs = (load_policy(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert float(ours["network.film"].abs().max()) > 0
    cli.main(["dial", str(tmp_path / "cut"), "--at", "0.7", "--out", str(tmp_path / "at.safetensors")])
    assert read_policy(tmp_path / "at.safetensors").card["request"]["objective"]["omega"] == 0.7


# Files, and what is refused -------------------------------------------------------------------------------------------


@pytest.fixture
def dialed(prior: Path, tmp_path: Path) -> Path:
    made = Conditioned.begun(read_policy(prior).policy, [Dial("omega", 0.05, 1.6)])
    made.network.film.data.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "dialed.safetensors"
    save_policy(path, made, {"request": {"env": tiny("WithoutReward")}}, read_policy(prior).policy)
    return path


def test_a_file_holds_the_range(dialed: Path) -> None:
    found = read_policy(dialed).policy
    assert isinstance(found, Conditioned)
    assert found.dials == (Dial("omega", 0.05, 1.6),)
    assert float(found.network.film.abs().max()) > 0.1


def test_a_file_whose_tensors_are_not_its_networks_is_refused(dialed: Path) -> None:
    tensors, header = read(dialed, "policy")
    dialed.write_bytes(packed("policy", tensors | {"policy.network.film": torch.zeros(4, 3)}, header))
    with pytest.raises(FileError, match=r"network\.film is \[4, 3\]"):
        read_policy(dialed)


def test_where_one_policy_is_wanted_it_says_how_to_keep_one(dialed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one for every omega from 0\.05 to 1\.6.*--at 0\.283 --out"):
        evaluate(dialed, tiny("WithoutReward"), 1)
    with pytest.raises(UsageError, match="the dial omega from 0.05 to 1.6 is no prior"):
        customized(dialed, kl(0.1), tmp_path / "run", FEW)


def test_a_range_goes_with_no_budget_and_no_other_objective(prior: Path, tmp_path: Path) -> None:
    held = Settings(**FEW.as_dict() | {"log_prior_budget": 1.0})
    with pytest.raises(UsageError, match="a budget or limit moves one"):
        customized(prior, residual(Range(0.05, 1.6), 0.15, 0.0), tmp_path / "run", held)
    with pytest.raises(UsageError, match="no range: it must begin above 0"):
        residual(Range(0.0, 1.0), 0.15, 0.0)


def test_the_command_line_says_the_range_again() -> None:
    asked = Request("Hopper-v4", residual(Range(0.003, 3.0), 0.001, 0.0), Settings(ranks=1), ("height",))
    said = " ".join(words(asked, "hopper"))
    assert "--omega 0.003..3.0" in said
    assert "--states 0.0" in said  # for a range has a price by default
