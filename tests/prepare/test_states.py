"""The states that a prior knows: their density, what customizing makes of it, and the steps that this takes."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import Log
from tiny_envs import Tiny, tiny

from repolicy.envs.batches import GymnasiumEnvs
from repolicy.errors import FileError, UsageError
from repolicy.evaluation import BLOCK_STEPS
from repolicy.learning.training import customize
from repolicy.objective import Objective, residual
from repolicy.policies import density
from repolicy.policies.density import MAX_COST, QUANTILE, Density, fit_density
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.normalizer import Normalizer
from repolicy.policies.policy import Policy, PolicySpec, one_thread
from repolicy.prepare import states
from repolicy.prepare.spending import estimate_spending
from repolicy.prepare.states import (
    check_learnable,
    familiarity,
    fit_prior_density,
    observation_count,
    prior_rollouts,
    visited_states,
)
from repolicy.priors.opening import read_policy
from repolicy.report.learning_curves import learning_section
from repolicy.runs.folder import RunFolder
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings

SETTINGS = Settings(
    ranks=1, envs=4, n_steps=16, minibatch=32, checkpoint_every=2, steps=256, hidden=(8,), evaluation_episodes=2
)


def observations(count: int = 50_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return noise @ torch.tensor([[2.0, 1.0], [0.0, 0.5]]).double() + torch.tensor([1.0, -1.0])


def test_the_missing_nats_are_those_of_students_t(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against torch's own Gaussian with the moments of the sample, over widths that are Gamma's."""
    monkeypatch.setattr(density, "LIKELY_SHARE", 1.0)
    inputs = observations(4_000)
    found = fit_density(inputs, Normalizer(2))
    covariance = torch.cov(inputs.T, correction=0) + density.RIDGE * inputs.var(0, correction=0).diag()
    half = torch.tensor(0.5 * density.FREEDOM).double()
    logs = torch.linspace(-12.0, 4.0, 801).double()  # of the factor on the precision; its Jacobian is the factor
    gamma = torch.distributions.Gamma(half, half).log_prob(logs.exp()) + logs
    widths = covariance / logs.exp().view(-1, 1, 1)
    known = torch.distributions.MultivariateNormal(inputs.mean(0), widths)

    def score(states: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(known.log_prob(states.unsqueeze(1)) + gamma, -1)

    far = torch.tensor([[29.0, 3.0], [-5.0, -4.0], [1.0, -1.0], [4.0, -4.0]]).double()
    expected = (score(far) - score(inputs).quantile(QUANTILE)).clamp(-MAX_COST, 0.0)
    torch.testing.assert_close(found.familiarity(far), expected, rtol=1e-4, atol=1e-4)
    assert -MAX_COST < float(expected[0]) < 0 == float(found.familiarity(far)[2])
    assert float((found.familiarity(inputs) == 0).double().mean()) == pytest.approx(1 - QUANTILE, abs=1e-3)
    assert float(found.familiarity(torch.full((1, 2), 1e12))) == -MAX_COST


def test_stretches_in_which_the_prior_tumbles_change_no_price() -> None:
    """A tenth of them is elsewhere: what lies between costs as much as if they were not there."""
    inputs = observations(10_000)
    tumbles = inputs[:1_000] + torch.tensor([20.0, 20.0])
    between = torch.tensor([[11.0, 9.0], [8.0, -6.0], [1.0, 3.0]]).double()
    with_them = fit_density(torch.cat([inputs[:5_000], tumbles, inputs[5_000:]]), Normalizer(2)).familiarity(between)
    without = fit_density(inputs, Normalizer(2)).familiarity(between)
    assert without.max() < -3
    torch.testing.assert_close(with_them, without, rtol=0.1, atol=0.0)


def test_an_observation_that_seldom_changes_is_no_tumble() -> None:
    """Where the likeliest stretches all have the same number, every stretch tells how wide that number is."""
    flag = (torch.arange(10_000) < 1_000).double().unsqueeze(1)
    inputs = torch.cat([observations(10_000), flag], -1)
    assert float(fit_density(inputs, Normalizer(3)).familiarity(inputs[:1_000]).mean()) > -5


def test_what_never_changes_does_not_count() -> None:
    inputs = torch.cat([observations(2_000), torch.full((2_000, 1), 3.0)], -1)
    found, without = fit_density(inputs, Normalizer(3)), fit_density(inputs[:, :2], Normalizer(2))
    some = torch.tensor([[9.0, 3.0, -100.0]]).double()
    torch.testing.assert_close(found.familiarity(some), without.familiarity(some[:, :2]))
    with pytest.raises(UsageError, match="no observation changes under the prior"):
        fit_density(torch.ones(100, 2), Normalizer(2))


def prior_in(path: Path, size: int = 1) -> Path:
    spec = PolicySpec(size, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(8,), initial_std=0.5)
    torch.manual_seed(1)
    save_policy(path, Policy(spec), {})
    return path


@pytest.fixture
def prior(tmp_path: Path) -> Policy:
    return read_policy(prior_in(tmp_path / "prior.safetensors")).policy


def priced(env: str) -> Request:
    return Request(env, residual(0.1, 0.1, states=0.5), SETTINGS)


def asked(tmp_path: Path, out: str, objective: Objective, **options: Any) -> Any:
    prior = prior_in(tmp_path / "prior.safetensors")
    return customize(prior, tiny("stay_near"), objective, tmp_path / out, SETTINGS, env=tiny("Endless"), **options)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OBSERVATIONS_PER_ENV": 50,
        "MAX_OBSERVATIONS": 400,
        "MIN_OBSERVATIONS": 400,
        "MIN_FIT_OBSERVATIONS": 100,
    }.items():
        monkeypatch.setattr(states, name, value)
    monkeypatch.setattr("repolicy.evaluation.EPISODE_CAP", 50)


@pytest.mark.usefixtures("quick")
def test_a_run_stores_its_density_and_is_resumed_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.prepare.states.SKIPPED_STEPS", 3)  # a rollout is shorter than what is left out
    whole = asked(tmp_path, "whole", residual(0.1, 0.1, states=0.5))
    assert whole.last["reward_states"] < 0
    parts = [whole.last[f"reward_{part}"] for part in ("task", "prior", "entropy", "states")]
    assert sum(parts) == pytest.approx(whole.last["reward_total"])
    request = RunFolder(whole.folder).load_request()
    assert "Price of states unlike the prior" in learning_section(RunFolder(whole.folder), request, {})
    saved = read_policy(RunFolder(whole.folder).last_policy)
    assert saved.prior is not None
    with one_thread():  # as runs have it
        again = fit_prior_density(saved.prior, request, SingleRank())
    assert all(
        torch.equal(a, b) for a, b in zip(saved.density.tensors().values(), again.tensors().values(), strict=True)
    )

    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    max((tmp_path / "stopped" / "checkpoints").iterdir()).unlink()
    resumed = asked(tmp_path, "stopped", residual(0.1, 0.1, states=0.5), resume=True)
    ours, theirs = whole.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    without = asked(tmp_path, "without", residual(0.1, 0.1))
    assert "reward_states" not in without.last
    assert not all(torch.equal(ours[name], value) for name, value in without.policy.state_dict().items())


def test_a_short_run_learns_its_states_from_fewer() -> None:
    found = [states.observation_count(steps) for steps in (3_000, 100_000, 256_000, 5_000_000)]
    assert found == [8_000, 25_000, 64_000, 64_000]


@pytest.mark.usefixtures("quick")
def test_how_an_episode_begins_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of episodes of 3, 4, 5, ... steps that show their number, with the first three left out."""
    monkeypatch.setattr("repolicy.prepare.states.SKIPPED_STEPS", 3)
    prior = read_policy(prior_in(tmp_path / "prior.safetensors", size=2)).policy
    seen, ends, episodes = visited_states(prior_rollouts(prior, priced(tiny("Counter"))), observation_count(256))
    assert sorted(map(tuple, seen[seen[:, 0] < 4].unique(dim=0).tolist())) == [(2, 4), (3, 4), (3, 5)]
    assert sorted(map(tuple, ends[ends[:, 0] < 5].unique(dim=0).tolist())) == [(1, 3), (3, 5)], "the others are cut"
    of_each = episodes // 8
    assert len(ends) == 8 * (of_each - of_each // 2)


@pytest.mark.usefixtures("quick")
def test_an_episode_that_does_not_end_counts_as_one_that_is_cut(prior: Policy) -> None:
    _, ends, episodes = visited_states(prior_rollouts(prior, priced(tiny("Endless"))), observation_count(256))
    assert (len(ends), episodes) == (0, 8)


class Ages(Tiny):
    """Shows how long its episode is under way, in hundreds of steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.array([self._steps / 100], np.float32), 0.0, False, False, {}


def ages_within_a_limit() -> Any:
    return gymnasium.wrappers.TimeLimit(Ages(), 200)


@pytest.mark.usefixtures("quick")
def test_the_last_states_of_a_long_episode_are_the_priors_too(prior: Policy) -> None:
    found = fit_prior_density(prior, priced(f"{__file__}:ages_within_a_limit"), SingleRank())
    early, late = found.familiarity(found.normalized(torch.tensor([[0.6], [1.95]]))).tolist()
    assert early == 0.0
    assert late > -3.0, "by the first 100 steps alone it would be 7 nats less likely"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("env", "limit"), [(f"{__file__}:ages_within_a_limit", 200), (tiny("Endless"), None)])
def test_as_many_steps_collect_the_states_as_were_announced(prior: Policy, env: str, limit: int | None) -> None:
    taken = []

    def counted() -> Any:
        for rollout in prior_rollouts(prior, priced(env), limit):
            taken.append(rollout.ages.size)
            yield rollout

    visited_states(counted(), observation_count(256))
    assert sum(taken) == states.steps_to_collect(256, limit)


def test_where_nearly_all_of_the_priors_episodes_end_its_ends_are_free() -> None:
    inputs = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0)).double()
    ends = torch.tensor([[9.0, 9.0], [5.0, -5.0]]).double()
    found = fit_density(inputs, Normalizer(2), ends, episodes=2)
    assert float(found.usual_end) == float(found.familiarity(ends).min())
    many = 4.0 + 2.0 * torch.rand(80, 2, generator=torch.Generator().manual_seed(1)).double()
    many[:8] *= 1.6  # a tenth, far beyond the others
    paid = familiarity(
        fit_density(inputs, Normalizer(2), many, 80), many.float(), torch.full((80,), 60), torch.ones(80).bool(), 0.9
    )
    assert not paid[8:].any(), "nine tenths of its ends are free"
    assert (paid < -0.1).sum() == 7
    assert float(found.usual_end) < -1.0
    for some in (fit_density(inputs, Normalizer(2), ends, episodes=3), fit_density(inputs, Normalizer(2), ends[:0], 0)):
        assert float(some.usual_end) == 0.0, "a prior that falls now and then: else its own falls would be free"
    older = {name: value for name, value in found.tensors().items() if name != "states.usual_end"}
    assert float(Density.from_tensors(older).usual_end) == 0.0, "an older file does not have it"


@pytest.mark.usefixtures("quick")
def test_a_prior_that_falls_at_once_teaches_no_states(tmp_path: Path) -> None:
    prior = prior_in(tmp_path / "prior.safetensors")
    with pytest.raises(UsageError, match="episodes end after 5 steps on average, too soon to learn its states"):
        customize(prior, tiny("stay_near"), residual(0.1, 0.1, 0.5), tmp_path / "run", SETTINGS, env=tiny("Mortal"))
    assert not (tmp_path / "run").exists(), "the folder is free for a run without that price"


def test_states_of_too_many_numbers_are_refused() -> None:
    space = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    with pytest.raises(UsageError, match=r"sees 1,001 numbers, and states of more than 1,000 are not learned"):
        check_learnable(Policy(PolicySpec(1_001, space)))


def test_a_prior_that_does_not_clip_sees_its_states_as_in_the_fit(tmp_path: Path) -> None:
    prior = Policy(PolicySpec(1, ActionSpace("continuous", (1,)), hidden=(4,), observation_bound=None))
    found = fit_prior_density(prior, Request(tiny("Endless"), Objective("basic"), Settings(steps=100)), SingleRank())
    save_policy(tmp_path / "policy", prior, {}, prior, found)
    for each in (found, found.to("cpu"), read_policy(tmp_path / "policy").density):
        assert torch.equal(each.normalized(torch.tensor([[50.0]])), torch.tensor([[50.0]]))


def test_a_density_of_another_normalizer_is_refused(tmp_path: Path, prior: Policy) -> None:
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 1)))
    mine = fit_density(inputs, prior.normalizer)
    save_policy(tmp_path / "right.safetensors", prior, {}, prior, mine)
    assert torch.equal(read_policy(tmp_path / "right.safetensors").density.whitening, mine.whitening)
    save_policy(tmp_path / "wrong.safetensors", prior, {}, prior, replace(mine, shift=mine.shift + 1.0))
    with pytest.raises(FileError, match="fitted with another normalizer"):
        read_policy(tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match="states.mean"):
        Density.from_tensors({name: value.float() for name, value in mine.tensors().items()})


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("init", "evaluated", "price", "keep", "limits"),
    [
        ("copy", 2, 0.5, None, []),
        ("copy", 2, 0.0, 0.9, [f"{tiny('stay_near')}>=-9"]),
        ("copy", 0, 0.5, None, [f"{tiny('stay_near')}>=-9"]),
        ("clone", 2, 0.0, None, []),
    ],
)
def test_every_step_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, evaluated: int, price: float, keep: Any, limits: Any
) -> None:
    """By how often environments whose episodes have one length were stepped."""
    taken, step = [], GymnasiumEnvs.step

    def counted(self: GymnasiumEnvs, actions: np.ndarray) -> Any:
        taken.append(self.count)
        return step(self, actions)

    monkeypatch.setattr(GymnasiumEnvs, "step", counted)
    monkeypatch.setattr("repolicy.prepare.cloning.FIT_EPOCHS", 1)  # which take no steps of the environment
    monkeypatch.setattr("repolicy.learning.training.EPISODE_CAP", 100)
    monkeypatch.setattr("repolicy.evaluation.EPISODE_CAP", 100)
    settings = replace(SETTINGS, steps=200, evaluation_episodes=evaluated, keep=keep)
    space = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    prior, heard = Policy(PolicySpec(1, space, hidden=(8,), initial_std=0.5)), Log()
    customize(
        prior, tiny("stay_near"), residual(0.1, 0.1, states=price), tmp_path / "run", settings, env=tiny("Endless"),
        callbacks=[heard], limits=limits, init=init,
    )  # fmt: skip
    [sentence] = [each for each in heard.said if "in all" in each]
    numbers = re.findall(r"^[\d,]+|[\d,]+(?= to compare)", sentence)
    total, *compared = [int(number.replace(",", "")) for number in numbers]
    assert compared == ([2 * 4 * 2 * 100] if evaluated and not (keep or limits) else [])
    assert total - sum(taken) in (0, *compared)  # it is done where an earlier policy seems better
    assert "256 to train" in sentence
    assert ("for evaluations" in sentence) == (evaluated > 0)
    assert ("to measure what is held" in sentence) == bool(keep or limits)
    assert ("for the prior's states" in sentence) == (price > 0)
    assert ("to fit the actor" in sentence) == (init == "clone")


def test_an_episode_whose_limit_nobody_tells_is_as_long_as_it_was() -> None:
    """One before the run, one after each of two segments, of two episodes each, in whole blocks of steps."""
    settings = Settings(steps=256, ranks=1, envs=4, n_steps=32, minibatch=32, checkpoint_every=1, evaluation_episodes=2)
    found = [
        estimate_spending(Request(env, residual(0.1, 0.1), settings), length=79.5)["for evaluations"]
        for env in (tiny("Endless"), tiny("endless_with_time_limit"))
    ]
    assert found == [3 * 2 * 80, 3 * 2 * BLOCK_STEPS]
