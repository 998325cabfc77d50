"""One rank's iteration, looked at from inside: which numbers meet which."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from workers import SETTINGS, segments, worker

from repolicy.envs.rollout import Rollout
from repolicy.errors import NumericError
from repolicy.learning import ppo
from repolicy.learning.ppo import ReturnScale, explained_share
from repolicy.learning.segments import derived_seed
from repolicy.learning.terms import FixedTerms, TaskRewards
from repolicy.learning.worker import Worker
from repolicy.objective import Objective, full, kl, no_entropy, reformulated, residual, soft
from repolicy.policies.modulated import FilmMlp
from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import moment_sums
from repolicy.runs.ranks import SingleRank
from repolicy.runs.request import Request


def scored(made: Worker) -> tuple[Rollout, Tensor | None, Tensor, Tensor]:
    """A rollout, the prior's log-probabilities, and the values before and after each step."""
    rollout = made.collector.collect(made.learner.policy)
    return rollout, *made.score(rollout, made.learner.policy.normalizer(torch.from_numpy(rollout.observations)))


def paid(made: Worker, rollout: Rollout) -> TaskRewards:
    return made.terms.task(made.objective, rollout)


# Scores ---------------------------------------------------------------------------------------------------------------
def test_how_an_episode_begins_is_not_priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of 3, 4, 5, ... steps, of which the first three are left out of the price on states.

    The last state of the first and third, which terminate, counts 1 / (1 − 0.9) times, beyond the 0.2 nats that the
    prior's own ends cost. The second is cut.
    """
    monkeypatch.setattr("repolicy.prepare.states.SKIPPED_STEPS", 3)
    made: Any = worker(tmp_path, "Counter", residual(0.1, 0.1, states=0.5), prior=True)
    made.density = SimpleNamespace(
        familiarity=lambda inputs: -inputs.new_ones(inputs.shape[:-1]),
        normalized=lambda observations: observations,
        usual_end=torch.tensor(-0.2),
    )
    rollout = made.collector.collect(made.learner.policy)
    ages = [1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5, 1]
    assert rollout.ages.T.tolist() == [ages] * 4
    priced = made.reward(rollout, paid(made, rollout), torch.zeros(13, 4)).states
    expected = [0, 0, -4.0, 0, 0, 0, -0.5, 0, 0, 0, -0.5, -4.0, 0]
    torch.testing.assert_close(priced.T.double(), torch.tensor([expected] * 4).double())


def test_values_are_those_of_the_observations_before_and_after_each_step(tmp_path: Path) -> None:
    """Also where a time limit cut the episode, and the next observation to act on is another episode's."""
    made = worker(tmp_path, "Counter", soft(0.1))
    rollout, log_prior, values, next_values = scored(made)
    assert log_prior is None
    assert rollout.next_observations is not None
    normalizer, alive = made.learner.policy.normalizer, ~torch.from_numpy(rollout.terminated)
    with torch.no_grad():
        before = made.learner.values(normalizer(torch.from_numpy(rollout.observations[:-1])))
        after = made.learner.values(normalizer(torch.from_numpy(rollout.next_observations)))
    assert float(after.std()) > 0.01
    assert rollout.truncated.sum() == 4
    torch.testing.assert_close(values, before)
    torch.testing.assert_close(next_values[alive], after[alive])
    at_once = made.learner.policy.log_prob(torch.from_numpy(rollout.observations[:-1]), rollout.actions)
    torch.testing.assert_close(rollout.log_probs, at_once)


def test_the_actor_begins_as_its_prior_which_stays_as_it_is(tmp_path: Path) -> None:
    """So the kl objective pays for nothing but the task at first, and the actor keeps the prior's statistics."""
    made = worker(tmp_path, "LinearQuadratic", kl(0.5), prior=True)
    rollout, log_prior, *_ = scored(made)
    assert log_prior is not None
    assert float(rollout.log_probs.std()) > 0.1
    torch.testing.assert_close(log_prior, rollout.log_probs)
    reward = made.reward(rollout, paid(made, rollout), log_prior)
    torch.testing.assert_close(reward.total, reward.task, atol=1e-5, rtol=1e-5)
    before = {name: value.clone() for name, value in made.prior.state_dict().items()}
    started = made.learner.parameters.clone()
    made.iterate(stop=False)
    assert not torch.equal(made.learner.parameters, started)
    assert made.settings.normalize_observations
    for name, value in made.prior.state_dict().items():
        assert torch.equal(value, before[name])
        if name.startswith("normalizer"):
            assert torch.equal(made.learner.policy.state_dict()[name], before[name])


def test_without_a_prior_the_statistics_follow_what_was_seen(tmp_path: Path) -> None:
    made = worker(tmp_path, "LinearQuadratic", soft(0.1))
    before = float(made.learner.policy.normalizer.count)
    made.iterate(stop=False)
    assert float(made.learner.policy.normalizer.count) == before + 4 * 13
    fixed = worker(tmp_path, "LinearQuadratic", soft(0.1), settings=replace(SETTINGS, normalize_observations=False))
    fixed.iterate(stop=False)
    assert float(fixed.learner.policy.normalizer.count) == before
    assert float(fixed.learner.policy.normalizer(torch.full((1, 1), 1e3))) > 100.0  # nor are they cut


@pytest.mark.parametrize("objective", [soft(0.25), full(0.25), residual(0.5, 0.25)])
def test_the_reward_is_made_of_its_parts(tmp_path: Path, objective: Objective) -> None:
    made = worker(tmp_path, "LinearQuadratic", objective, prior=objective.reads_prior)
    rollout, log_prior, *_ = scored(made)
    reward = made.reward(rollout, paid(made, rollout), log_prior)
    addon = -np.square(rollout.next_observations[..., 0].astype(np.float64))
    task = {"basic": rollout.basic, "addon": addon, "both": rollout.basic + addon}[objective.task]
    np.testing.assert_allclose(reward.task, task, rtol=1e-6)
    expected = reformulated(objective, torch.from_numpy(task), log_prior, rollout.log_probs.double())
    torch.testing.assert_close(reward.total, expected.total)


# What the update gets -------------------------------------------------------------------------------------------------
def test_what_the_update_learns_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardized advantages, and returns that are advantages plus values, of the scaled reward."""
    made = worker(tmp_path, "Counter", soft(0.1))
    caught: list[ppo.Batch] = []
    update = ppo.update

    def watched(learner: ppo.Learner, batch: ppo.Batch, *rest: object) -> dict[str, float]:
        caught.append(batch)
        return update(learner, batch, *rest)

    monkeypatch.setattr(ppo, "update", watched)
    metrics = made.iterate(stop=False)
    (batch,) = caught
    assert float(batch.advantages.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(batch.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    # What the critic is to predict has mean 0 and variance 1, too. Episodes 1 and 3 terminate within the 13 steps. In
    # their last step the return is the reward itself: nothing follows.
    assert batch.returns.shape == (52, 1)
    assert float(batch.returns.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(batch.returns.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    shaped = made.learner.return_scale.undo(batch.returns).view(13, 4)
    reward = torch.tensor([[13.0], [35.0]]) - 0.1 * batch.log_probs.view(13, 4)[[2, 11]]
    torch.testing.assert_close(shaped[[2, 11]], reward.float(), rtol=1e-4, atol=1e-4)
    assert metrics["return_scale"] == pytest.approx(float(made.learner.return_scale.std))


def test_a_time_limit_is_followed_by_a_value_and_an_end_by_nothing(tmp_path: Path) -> None:
    """Where an episode ends, λ plays no part: the return is the reward and what the next value is worth."""
    made = worker(tmp_path, "Counter", soft(0.1))
    rollout, log_prior, _, next_values = scored(made)
    reward = made.reward(rollout, paid(made, rollout), log_prior).total
    batch, _ = made.prepare_batch(rollout, stop=False)
    returns = made.learner.return_scale.undo(batch.returns).view(13, 4)
    for mask, worth in ((rollout.terminated, 0.0), (rollout.truncated, made.settings.gamma * next_values.squeeze(-1))):
        assert mask.any()
        expected = (reward + worth).float()[torch.from_numpy(mask)]
        torch.testing.assert_close(returns[torch.from_numpy(mask)], expected, rtol=1e-4, atol=1e-4)


# Chance ---------------------------------------------------------------------------------------------------------------
def test_segments_have_random_numbers_of_their_own(tmp_path: Path) -> None:
    chain = segments(tmp_path, "LinearQuadratic", soft(0.1))
    made = chain.worker

    def segment(number: int) -> tuple[Tensor, np.ndarray]:
        chain.segment = number
        chain.begin()
        rollout = made.collector.collect(made.learner.policy)
        noise = rollout.actions - made.learner.policy(torch.from_numpy(rollout.observations[:-1])).mode()
        return noise, rollout.observations[0]

    (noise, starts), (again, starts_again), (other, other_starts) = segment(0), segment(0), segment(1)
    assert torch.equal(noise, again)
    assert np.array_equal(starts, starts_again)
    assert not torch.allclose(noise, other, atol=1e-3)
    assert not np.isin(starts, other_starts).any()


def test_derived_seeds_differ() -> None:
    seeds = {derived_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert derived_seed(1, 2, 3) == derived_seed(1, 2, 3)
    assert max(seeds) < 2**30  # envs add their index, and take 31 bits


# Scales and budgets ---------------------------------------------------------------------------------------------------
def test_the_unit_of_returns_is_their_mean_and_std_and_a_new_rollout_counts_half() -> None:
    scale = ReturnScale(2)
    first, second = torch.randn(2, 500, 2, dtype=torch.float64) * torch.tensor([3.0, 0.1]) + torch.tensor([50.0, -2.0])
    scale.update(moment_sums(first))
    torch.testing.assert_close(scale.mean, first.mean(0))
    torch.testing.assert_close(scale.std, first.std(0, correction=0), rtol=1e-4, atol=0)
    for _ in range(20):  # a count that only grows would weigh the next one with a twentieth
        scale.update(moment_sums(first))
    scale.update(moment_sums(second + 100.0))
    torch.testing.assert_close(scale.mean, 0.5 * first.mean(0) + 0.5 * (second.mean(0) + 100.0))
    torch.testing.assert_close(scale.undo(scale.apply(second)), second)


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_returns_have_no_smallest_unit(unit: float) -> None:
    scale, returns = ReturnScale(2), unit * torch.randn(500, 2, dtype=torch.float64)
    returns[:, 1] = 0.0
    scale.update(moment_sums(returns))
    assert float(scale.std[0]) == pytest.approx(float(returns[:, 0].std()), rel=0.01)
    assert float(scale.std[1]) == pytest.approx(1e-4)  # of returns that never change
    assert explained_share(0.5 * unit**2, unit**2) == 0.5
    assert explained_share(0.0, 0.0) == 0.0


def test_the_first_outputs_of_a_critic_do_not_drown_small_rewards(tmp_path: Path) -> None:
    made = worker(tmp_path, "LinearQuadratic", no_entropy())
    rollout = made.collector.collect(made.learner.policy)
    _, usual = made.prepare_batch(rollout, stop=False)
    made.learner.return_scale = ReturnScale()
    rollout.basic *= 1e-6
    _, small = made.prepare_batch(rollout, stop=False)
    assert usual["return_scale"] > 0.1
    assert small["return_scale"] < 1e-4


@pytest.mark.parametrize("dials", [0, 2])
def test_what_the_critic_predicts_stays_when_its_unit_moves(dials: int) -> None:
    critic = FilmMlp(3, (8,), 2, dials=dials) if dials else Mlp(3, (8,), 2)
    for parameter in critic.parameters():
        torch.nn.init.normal_(parameter)
    scale, inputs = ReturnScale(2), torch.rand(20, 3 + dials)
    outputs = critic(inputs)
    critic.rescale(*scale.update(moment_sums(torch.randn(100, 2) * 4.0 - 30.0)))
    assert torch.equal(critic(inputs), outputs)  # at first the network stays as it is
    before = scale.undo(critic(inputs))
    critic.rescale(*scale.update(moment_sums(torch.randn(100, 2) * 9.0 + 70.0)))
    assert not torch.allclose(critic(inputs), outputs)
    torch.testing.assert_close(scale.undo(critic(inputs)), before, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("budget", [None, 0.1])
def test_no_earlier_policy_is_kept_where_a_budget_moves_the_objective(tmp_path: Path, budget: float | None) -> None:
    made = segments(
        tmp_path, "LinearQuadratic", residual(0.2, 0.1), prior=True, settings=replace(SETTINGS, kl_budget=budget)
    )
    made.end()
    assert made.folder.policy.exists()
    assert (made.candidate is None) == (budget is not None)


def test_a_snapshot_that_is_not_the_policy_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What acted is compared with what learns: log-probabilities are recorded from what the actor itself computed."""
    made = worker(tmp_path, "LinearQuadratic", soft(0.1))
    snapshot = Mlp.snapshot
    monkeypatch.setattr(Mlp, "snapshot", lambda network: lambda inputs: snapshot(network)(inputs) + np.float32(0.1))
    with pytest.raises(NumericError, match="differ from those recorded while acting .* single precision"):
        made.iterate(stop=False)


# The critic first -----------------------------------------------------------------------------------------------------
def test_the_actor_waits_for_its_critic_but_not_for_ever(tmp_path: Path) -> None:
    made = worker(tmp_path, "Counter", soft(0.1), settings=replace(SETTINGS, critic_warmup=0.1, critic_explains=0.3))
    alone = round(0.1 * made.settings.iterations)

    def moves(iteration: int, explained: float) -> bool:
        made.iteration = iteration
        return made.should_fit_actor(explained)

    assert not moves(alone - 1, 0.9)
    assert moves(alone + 1, 0.3)
    assert not moves(alone + 1, 0.29)
    assert moves(3 * alone + 1, -5.0)
    made.settings = replace(made.settings, critic_explains=None)
    assert moves(alone + 1, -5.0)


@pytest.mark.parametrize("explained", [-3.0, 0.5])
def test_the_weights_of_a_budget_stay_where_the_critic_cannot_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explained: float
) -> None:
    made = worker(tmp_path, "LinearQuadratic", kl(0.1), prior=True, settings=replace(SETTINGS, kl_budget=0.5))
    prepare_batch = made.prepare_batch

    def changed(rollout: Rollout, stop: bool) -> tuple[ppo.Batch, object]:
        batch, metrics = prepare_batch(rollout, stop)
        metrics["explained_variance"] = explained
        return batch, metrics

    monkeypatch.setattr(made, "prepare_batch", changed)
    made.iterate(stop=False)
    assert made.objective.omega == 0.1, "a segment's first rollout shows how episodes begin"
    made.iterate(stop=False)
    assert (made.objective.omega == 0.1) == (explained < 0)


def test_what_the_critic_explains() -> None:
    """Of the returns' variance, the share that is not left over; with or without advantages that are normalized."""
    gains, targets = torch.tensor([[1.0, -1.0], [3.0, -3.0]]), torch.tensor([[10.0, -10.0], [0.0, 0.0]])
    for standardize in (True, False):
        settings = replace(SETTINGS, normalize_advantages=standardize)
        terms = FixedTerms(Request("LinearQuadratic", no_entropy(), settings))
        found = terms.normalized(None, gains, targets.unsqueeze(-1), SingleRank())
        assert found.target_sums.tolist() == [[4.0], [0.0], [200.0]]
        assert found.explained_variance == pytest.approx(1.0 - float(gains.var() / targets.var()))
        assert float(found.advantages.std(correction=0)) == pytest.approx(1.0 if standardize else 5.0**0.5)
