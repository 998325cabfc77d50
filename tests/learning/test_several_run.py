"""Learning over alpha, over the weights of add-ons, and over several of these at once."""

import math
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from known_optimum import SETTINGS, assert_found, of_both
from several import ALPHA, FAST, FEW, QUIET, WISH, worker
from threaded_ranks import customized as customized_by_ranks
from tiny_envs import tiny
from typed_commands import failed

from experiments.dial import other_positions, shuffled_rewards
from repolicy.cli import main as cli
from repolicy.envs.making import make_envs
from repolicy.envs.wrapped import END_SHARE, DialedEnvs, DialPositions
from repolicy.learning import ppo
from repolicy.learning.terms import TaskRewards, dial_warnings
from repolicy.learning.training import customize
from repolicy.objective import Objective, kl, residual
from repolicy.policies.distributions import ActionSpace, Gaussian
from repolicy.policies.modulated import ConditionedPolicy, exponents
from repolicy.priors.opening import load_policy, read_policy
from repolicy.ranges import Dial, Range
from repolicy.runs.folder import RunFolder
from repolicy.runs.request import Request, command_words
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings


def customized(
    prior: Path, addons: str | list[str], objective: Objective, out: Path, settings: Settings = FEW
) -> Result:
    return customize(prior, addons, objective, out, settings, env=tiny("WithoutReward"))


# What each environment is asked for -----------------------------------------------------------------------------------
def test_on_each_dial_every_environment_has_a_stratum_of_its_own() -> None:
    total, count = 40, 20
    batches = [DialedEnvs(make_envs(tiny("Counter"), count, 0), 7, first, total, 3) for first in (0, count)]
    places = np.concatenate([batch.reset()[:, -3:] for batch in batches])
    for shares in np.sort(places, axis=0).T:
        assert [(shares == end).sum() for end in (-1.0, 1.0)] == [END_SHARE * total, END_SHARE * total]
        inner = shares[int(END_SHARE * total) : -int(END_SHARE * total)]
        assert (np.floor((inner + 1.0) / 2.0 * len(inner)).clip(0, len(inner) - 1) == np.arange(len(inner))).all()
    assert np.abs(np.corrcoef(places.T)[np.triu_indices(3, 1)]).max() < 0.5  # which belong together is by chance


def test_places_on_two_dials_meet_everywhere_in_time() -> None:
    """Also of few environments, in one segment: else the policy would be a guess between the few pairs that it saw."""
    drawn = DialPositions(count=8, seed=3, dials=2)
    places = np.concatenate([drawn.draw() for _ in range(200)])
    assert (np.histogram2d(*places.T, bins=8)[0] > 0).all()


CASES = {
    "omega, and alpha with it": ((f"{QUIET}=0.5",), residual(Range(0.05, 1.6), "omega", 0.0), 3),
    "omega, and no entropy": ((f"{QUIET}=0.5",), residual(Range(0.05, 1.6), 0.0, 0.0), 2),
    "omega and an add-on": ((f"{FAST}=0.5", f"{QUIET}=0..2"), residual(Range(0.05, 1.6), 0.15, 0.0), 4),
    "two add-ons, one of them thrice": ((f"{FAST}=0..1", f"{QUIET}=0.5..3", f"{FAST}=2"), kl(0.2), 5),
    "alpha and an add-on": ((f"{QUIET}=0..2",), Objective("addon", alpha=Range(0.1, 0.4)), 2),
    "all of them": ((f"{FAST}=0..1", f"{QUIET}=0..2"), residual(Range(0.05, 1.0), Range(0.1, 0.4), 0.0), 4),
}


@pytest.mark.parametrize(("addons", "objective", "heads"), CASES.values(), ids=CASES)
def test_the_heads_times_their_weights_are_the_advantage_of_the_scalar_reward(
    prior: Path, tmp_path: Path, addons: tuple[str, ...], objective: Objective, heads: int
) -> None:
    made = worker(prior, tmp_path, objective, wishes=addons)
    made.learner.return_scale.statistics[2] = torch.linspace(0.25, 9.0, heads).double()
    rollout = made.collector.collect(made.learner.policy)
    log_prior, *values = made.score(rollout, made.learner.policy.normalizer(torch.from_numpy(rollout.observations)))
    task = made.terms.task(objective, rollout)
    reward = made.reward(rollout, task, log_prior)
    assert log_prior is not None
    chosen, bare = made.terms.values(task.places), rollout.observations[:-1, :, :1]
    assert [*chosen] == [dial.name for dial in made.terms.dials]
    for dial in made.terms.dials:
        assert float(chosen[dial.name].min()) == pytest.approx(dial.low)
        assert float(chosen[dial.name].max()) == pytest.approx(dial.high)
    after = torch.from_numpy(np.asarray(rollout.next_observations)[..., 0]).double()
    pay = {"fast": -after.square(), "quiet": -torch.from_numpy(np.abs(rollout.env_actions[..., 0])).double()}
    wanted = torch.zeros_like(reward.total)
    for request in addons:  # the scalar reward, from what was asked for
        name, weight = request.rpartition(":")[2].split("=")
        wanted = wanted + (chosen[name] if ".." in weight else float(weight)) * pay[name]
    omega = chosen.get("omega", objective.omega)
    alpha = omega if objective.alpha == "omega" else chosen.get("alpha", objective.alpha)
    wanted = wanted + omega * log_prior.double() - alpha * rollout.log_probs.double()
    assert bare.shape == rollout.env_actions.shape
    torch.testing.assert_close(reward.total, wanted, atol=1e-6, rtol=1e-6)

    terminated = torch.from_numpy(rollout.terminated)
    ended = terminated | torch.from_numpy(rollout.truncated)
    assert bool(ended.any())
    value, next_value = (each.double() for each in values)
    gains, targets = made.terms.credit(task, reward, value, next_value, terminated, ended)
    assert targets.shape == (*gains.shape, heads)
    whole, next_whole = ((made.terms.weights(task.places) * each).sum(-1) for each in (value, next_value))
    alone = ppo.advantages(wanted, whole, next_whole, terminated, ended, FEW.gamma, FEW.gae_lambda)
    torch.testing.assert_close(gains, alone, atol=1e-6, rtol=1e-6)


def test_advantages_are_of_one_size_in_every_cell_of_two_dials(prior: Path, tmp_path: Path) -> None:
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0), wishes=(f"{QUIET}=0..2",))
    shape = (64, 64)
    places = torch.rand(*shape, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    size = torch.exp(3.0 * places[..., 0] - 2.0 * places[..., 1])
    task = TaskRewards(torch.zeros(shape), {}, places, [])
    gains = made.terms.normalized(task, size * torch.randn(shape), torch.randn(*shape, 3), made.team).advantages
    thirds = ((places + 1.0) * 1.5).long()
    for first in range(3):
        for second in range(3):
            part = gains[(thirds[..., 0] == first) & (thirds[..., 1] == second)]
            assert float(part.mean()) == pytest.approx(0.0, abs=1e-5)
            assert float(part.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_a_dial_that_turns_nothing_is_named(prior: Path, tmp_path: Path) -> None:
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0), wishes=(f"{QUIET}=0..2",))
    film = made.learner.policy.network.film.data
    film[:] = torch.tensor([[1.0 if quiet == 0 else 0.0] for _, quiet in exponents(2)])  # nothing but omega's own
    found = made.policy_metrics(torch.randn(300, 3))
    assert found["dial_kl_omega"] > 1.0 > 1e-3 > found["dial_kl_quiet"] == found["dial_kl"]
    (said,) = dial_warnings(found, made.learner.policy)
    assert "the two ends of the dial quiet are only" in said
    chooses = SimpleNamespace(observation_size=1, actions=ActionSpace("discrete", (3,)))  # log 3 nats are all there is
    assert [len(dial_warnings({"dial_kl": nats}, chooses)) for nats in (0.1, 0.2)] == [1, 0]


# The run --------------------------------------------------------------------------------------------------------------
TWO = ([f"{FAST}=1", f"{QUIET}=0..2"], residual(Range(0.05, 1.6), 0.15, 0.0))


def test_before_its_first_step_it_is_the_prior_at_all_positions(prior: Path, tmp_path: Path) -> None:
    customized(prior, *TWO, tmp_path / "run", replace(FEW, critic_warmup=1.0))
    start = read_policy(prior).policy.state_dict()
    found = load_policy(tmp_path / "run")
    assert isinstance(found, ConditionedPolicy)
    for omega, quiet in ((0.05, 0.0), (0.3, 1.1), (1.6, 2.0)):
        at = found.at(omega=omega, quiet=quiet).state_dict()
        assert all(torch.equal(at[name], value) for name, value in start.items())


def test_it_goes_on_to_the_same_bits(prior: Path, tmp_path: Path) -> None:
    objective = residual(Range(0.05, 1.6), Range(0.1, 0.3), 0.0)
    for name in ("whole", "cut"):
        found = customized(prior, TWO[0], objective, tmp_path / name)
        assert {name for name in found.last if "dial" in name} == {
            "dial_kl", "dial_kl_omega", "dial_kl_alpha", "dial_kl_quiet"
        }  # fmt: skip
    for path in (tmp_path / "cut").glob("checkpoints/*"):
        if int(path.stem) > 1:
            path.unlink()
    cli.main(["customize", str(prior), "--resume", "--out", str(tmp_path / "cut"), "--no-report", "--trust"])
    ours, theirs = (load_policy(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert float(ours["network.film"].abs().max()) > 0


def test_two_ranks_end_in_one_policy(prior: Path, tmp_path: Path) -> None:
    two = replace(FEW, ranks=2, steps=2 * FEW.iteration_steps)
    request = Request(tiny("WithoutReward"), TWO[1], two, tuple(TWO[0]), "a checksum")
    (one, _), (other, _) = customized_by_ranks(request, prior, tmp_path / "run")
    assert torch.equal(one.learner.parameters, other.learner.parameters)
    assert one.learner.policy.dials == (Dial("omega", 0.05, 1.6), Dial("quiet", 0.0, 2.0, "linear"))


def test_the_command_line_asks_for_it_and_says_it_again(prior: Path, tmp_path: Path) -> None:
    asked = f"--alpha 0.05..0.4 --omega 0.1 --addon '{FAST}' --addon '{QUIET}=0..2' --steps 256 --envs 16 --n-steps 16"
    cli.main(["customize", str(prior), *shlex.split(f"{asked} --ranks 1 --no-report --trust --out {tmp_path}/run")])
    request = RunFolder(tmp_path / "run").request()
    assert request.dials == (Dial("alpha", 0.05, 0.4), Dial("quiet", 0.0, 2.0, "linear"))
    said = command_words(request, prior)
    assert said[said.index("--alpha") + 1] == "0.05..0.4"
    assert f"{QUIET}=0..2" in said
    range_of_omega = Request("Hopper-v4", residual(Range(0.003, 3.0), 0.001, 0.0), Settings(ranks=1), ("height",))
    said = " ".join(command_words(range_of_omega, "hopper"))
    assert "--omega 0.003..3.0" in said
    assert "--states 0.0" in said  # for a range has a price by default


# What is refused ------------------------------------------------------------------------------------------------------
RANGES = [
    (f"--addon '{QUIET}=2..0' --omega 0.1", "quiet from 2 to 0 is no range: it must begin at 0 or above"),
    (f"--addon '{QUIET}=1..1' --omega 0.1", "begin at 0 or above, and end above where it begins"),
    (f"--addon '{QUIET}=0...2' --omega 0.1", "'0...2' is no weight; write NAME=10, or NAME=0..2 for a range"),
    *[(f"--addon '{QUIET}' --omega={text}", "range") for text in ("3..0.03", "..3", "0.1..inf")],
    (f"--addon '{QUIET}' --omega 0.1...3", "--omega is '0.1...3'; it must be a number, a range such as 0.03..3"),
    (f"--addon '{QUIET}=0..1' --addon '{QUIET}=0..2' --omega 0.1", "cannot be called 'quiet'"),
    *[
        (f"--addon '{QUIET.removesuffix('quiet')}{name}=0..1' --omega 0.1", f"cannot be called '{name}'")
        for name in ("omega", "how")
    ],
    (f"--addon '{QUIET}=0..1' --kl-budget 1", "a budget or limit moves one"),
    (f"--addon '{QUIET}' --omega 0.1 --alpha 1..x", "--alpha is '1..x'; it must be a number, a range"),
    (f"--addon '{QUIET}' --objective kl --alpha 0.1..1", "one weight for both terms"),
    (f"--addon '{QUIET}' --objective kl --alpha 0.1 --omega 0.1..1", "objective kl has no omega"),
    (
        f"--addon '{QUIET}=0..1' --addon '{FAST}=0..1' --addon '{WISH}=0..1' --omega 0.1..1 --alpha 0.1..1",
        "take 4 at most",
    ),
]


@pytest.mark.parametrize(("asked", "said"), RANGES, ids=[said for _, said in RANGES])
def test_bad_ranges_are_refused_in_a_sentence(
    prior: Path, tmp_path: Path, asked: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["customize", str(prior), *shlex.split(asked), "--out", str(tmp_path / "run"), "--trust", "--steps", "2048"]
    told = failed(capsys, *words, codes=(2,))
    assert said in told
    assert "measuring" not in told
    assert not (tmp_path / "run").exists()


# The control of the experiment ----------------------------------------------------------------------------------------
def test_shuffled_positions_pay_for_others_than_those_that_are_shown(prior: Path, tmp_path: Path) -> None:
    made = worker(prior, tmp_path, TWO[1], wishes=TWO[0])
    rollouts = [made.collector.collect(made.learner.policy) for _ in range(40)]
    shown = np.concatenate([made.terms.dial_places(rollout).numpy() for rollout in rollouts])
    with shuffled_rewards():
        paid = np.concatenate([made.terms.dial_places(rollout).numpy() for rollout in rollouts])
    assert np.array_equal(made.terms.dial_places(rollouts[0]).numpy(), shown[: len(rollouts[0].observations) - 1])
    steady = (shown[1:] == shown[:-1]).all(-1)
    assert np.array_equal(paid[1:][steady], paid[:-1][steady])  # within an episode
    for dial in range(2):
        assert abs(np.corrcoef(shown[..., dial].ravel(), paid[..., dial].ravel())[0, 1]) < 0.1
        assert abs(float(np.mean(paid[..., dial] == 1.0)) - END_SHARE) < 0.03
    assert np.array_equal(other_positions(shown), paid)


def test_a_dial_over_one_wish_alone_has_one_head(prior: Path, tmp_path: Path) -> None:
    """A critic with a single head gives what one with several gives: a value for each head."""
    assert customized(prior, f"{WISH}=0..2", residual(0.0, 0.0), tmp_path / "trained").finished
    made = worker(prior, tmp_path, residual(0.0, 0.0), wishes=(f"{WISH}=0..2",))
    rollout = made.collector.collect(made.learner.policy)
    _, critic_inputs = made.network_inputs(rollout.observations)
    _, values, after = made.score(rollout, critic_inputs)
    assert values.shape == (*rollout.basic.shape, 1)
    task = made.terms.task(made.objective, rollout)
    reward, ended = made.reward(rollout, task, None), torch.from_numpy(rollout.terminated | rollout.truncated)
    gains, targets = made.terms.credit(task, reward, values, after, torch.from_numpy(rollout.terminated), ended)
    torch.testing.assert_close(gains, ((targets - values) * made.terms.weights(task.places)).sum(-1).float())


@pytest.mark.parametrize("env", ["Counter", "Mortal"])  # all end at once by a time limit; each ends by itself
def test_a_position_stays_until_its_episode_ends(env: str) -> None:
    envs = DialedEnvs(make_envs(tiny(env), 6, 0), 3)
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
    envs = DialedEnvs(make_envs(tiny("Counter"), 4, 0), 3)
    envs.reset()
    before = envs.step(np.zeros((4, 1), np.float32)).observations
    after = envs.renew(np.array([False, True, False, True]), before)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert after[:, :-1].tolist() == [[1, 1], [2, 0], [1, 1], [2, 0]]  # episode, and its steps
    assert (after[[1, 3], -1] != before[[1, 3], -1]).all()
    np.testing.assert_array_equal(envs.step(np.zeros((4, 1), np.float32)).observations[:, -1], after[:, -1])


def test_what_the_critic_explains_is_of_the_returns_with_their_weights(prior: Path, tmp_path: Path) -> None:
    """Of ±2 weighed 0.5 and 1.5 in two parts of the dial, where their means do not count: variances of 1 and of 9."""
    made = worker(prior, tmp_path, residual(0.0, 0.0), wishes=(f"{QUIET}=0..2",))
    places = torch.tensor([[-0.5, 0.5], [-0.5, 0.5]]).unsqueeze(-1)
    targets = torch.tensor([[12.0, 2.0], [8.0, -2.0]]).unsqueeze(-1)
    task = TaskRewards(torch.zeros(2, 2), {}, places, [])
    gains = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert made.terms.normalized(task, gains, targets, made.team).explained_variance == pytest.approx(1.0 - 2.0 / 10.0)


def test_how_far_apart_the_ends_are_is_the_smaller_of_both_ways(
    prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a std to one e times as large it is 1 nat and (e⁻² - 1) / 2, and the other way it is more."""
    made = worker(prior, tmp_path, residual(Range(0.05, 1.6), 0.15, 0.0))
    by_place = staticmethod(lambda inputs: Gaussian(torch.zeros(len(inputs), 1), inputs[:, -1:] / 2))
    monkeypatch.setattr(ConditionedPolicy, "distribution", by_place)
    assert made.policy_metrics(torch.zeros(3, 2))["dial_kl"] == pytest.approx(1.0 + 0.5 * (math.exp(-2.0) - 1.0))


@pytest.mark.long
def test_one_run_finds_the_optimum_for_omegas_that_it_was_not_told_of(prior: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=100_000, learning_rate=8e-3)
    found = customized(prior, WISH, residual(Range(0.25 * ALPHA, 8.0 * ALPHA), 0.15, 0.0), tmp_path / "run", settings)
    assert found.last["dial_kl"] > 0.5  # nats, at states all along the episodes, which are near 0 at their ends
    for omega in (0.37, 0.6, 1.0, 1.9, 3.0, 5.0):
        assert_found(found.at(omega * ALPHA), of_both(omega, 0.15))


@pytest.mark.long
def test_one_run_finds_the_optimum_for_weights_of_the_wish_that_it_was_not_told_of(prior: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=100_000, learning_rate=8e-3)
    found = customized(prior, f"{WISH}=0..4", residual(ALPHA, 0.15, 0.0), tmp_path / "run", settings)
    for weight in (0.0, 0.5, 1.3, 2.2, 4.0):
        assert_found(found.policy.at(weight), of_both(1.0, 0.15, weight))
