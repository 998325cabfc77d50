"""The losses against literal answers, the update's guards."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from repolicy.errors import NumericError, UsageError
from repolicy.learning.ppo import (
    Batch,
    Learner,
    Losses,
    StepMetrics,
    adaptive_learning_rate,
    advantages,
    losses,
    update,
)
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.network import Mlp
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.runs.ranks import Ranks
from repolicy.runs.settings import Settings

# Losses ---------------------------------------------------------------------------------------------------------------
SETTINGS = Settings(minibatch=16, epochs=2, clip=0.2, value_coefficient=0.5, learning_rate=1e-2)


def learner(width: int = 2, std_speed: float = 1.0, **spec: Any) -> Learner:
    space = ActionSpace("continuous", (width,), (-1.0,) * width, (1.0,) * width)
    policy = Policy(PolicySpec(3, space, hidden=(8,), **spec))
    return Learner(policy, Mlp(3, (8,), 1), SETTINGS.learning_rate, std_speed)


def batch_of(made: Learner, size: int = 64, ratio: float = 1.0, advantage: float | None = None) -> Batch:
    """Samples whose probability is now `ratio` times what it was when they were drawn."""
    inputs = torch.randn(size, 3)
    with torch.no_grad():
        distribution = made.policy.distribution(inputs)
        actions = distribution.sample()
        log_probs = distribution.log_prob(actions) - math.log(ratio)
    gains = torch.randn(size) if advantage is None else torch.full((size,), advantage)
    return Batch(inputs, actions, log_probs, gains, torch.randn(size, 1))


def losses_of(made: Learner, batch: Batch) -> Losses:
    with torch.no_grad():
        log_probs = made.policy.distribution(batch.inputs).log_prob(batch.actions)
        return losses(log_probs, made.critic(batch.inputs), batch, SETTINGS)


def gradient_of(made: Learner, batch: Batch, bonus: float = 0.0, settings: Settings = SETTINGS) -> Tensor:
    """What the engine finds in one minibatch."""
    made.differentiate(batch, settings, bonus)
    return made.gradient.clone()


class Alike:
    """So many ranks, which all see the same."""

    index = 0

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.summed = 0  # times

    def sum(self, tensor: Tensor) -> Tensor:
        self.summed += 1
        return tensor.mul_(self.count)


ALONE = Alike()


def stepped(made: Learner, batch: Batch, limit: float, team: Ranks = ALONE, bonus: float = 0.0) -> StepMetrics:
    made.differentiate(batch, SETTINGS, bonus)
    return made.step(limit, team, fit_actor=True)


def gradient(made: Learner, loss: Tensor) -> Tensor:
    made.gradient.zero_()
    loss.backward()
    return made.gradient[: len(made.parameters)].clone()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "flat"),
    [
        (1.5, 1.0, -1.2, True),  # good and likelier already: no reason to go on
        (1.5, -1.0, 1.5, False),  # bad and likelier: back
        (0.5, 1.0, -0.5, False),  # good and less likely: back
        (0.5, -1.0, 0.8, True),  # bad and less likely already
        (1.1, 2.0, -2.2, False),
        (0.9, -2.0, 1.8, False),
    ],
)
def test_the_clipped_surrogate(ratio: float, advantage: float, loss: float, flat: bool) -> None:
    made = learner()
    batch = batch_of(made, ratio=ratio, advantage=advantage)
    found, by_policy = losses_of(made, batch), gradient_of(made, batch)[: made.actor_size]
    assert float(found.policy) == pytest.approx(loss, rel=1e-5)
    assert bool(by_policy.any()) is not flat
    assert float(found.clipped) == (1.0 if abs(ratio - 1.0) > 0.2 else 0.0)
    assert float(found.divergence) == pytest.approx(ratio - 1.0 - math.log(ratio), abs=1e-5)


def test_the_vanilla_gradient_knows_no_ratio() -> None:
    """Also for samples that are likelier now than when they were drawn, beyond any clip."""
    made = learner()
    batch = batch_of(made, ratio=2.0)
    found = gradient_of(made, batch, settings=replace(SETTINGS, surrogate="vanilla", epochs=1))[: made.actor_size]
    score = (batch.advantages * made.policy.distribution(batch.inputs).log_prob(batch.actions)).mean()
    torch.testing.assert_close(found, gradient(made, -score)[: made.actor_size], atol=1e-6, rtol=1e-4)
    with pytest.raises(UsageError, match="epochs is 5, and the vanilla .* add --epochs 1"):
        Settings(surrogate="vanilla").resolved()


def test_the_critics_loss() -> None:
    made = learner()
    batch = batch_of(made)
    with torch.no_grad():
        batch = replace(batch, returns=made.critic(batch.inputs) + 3.0)
    assert float(losses_of(made, batch).value) == pytest.approx(4.5, rel=1e-5)
    # The last number is the critic's last bias, whose gradient is the mean of V − return, times its weight in the loss.
    assert gradient_of(made, batch)[-1] == pytest.approx(-3.0 * SETTINGS.value_coefficient, rel=1e-5)


def test_the_bonus_pays_for_entropy() -> None:
    made = learner(min_std=0.0)
    batch = batch_of(made)
    difference = gradient_of(made, batch, 0.25) - gradient_of(made, batch)
    expected = torch.zeros_like(difference)
    start = made.policy.log_std.storage_offset()
    expected[start : start + 2] = -0.25  # dH/d log_std = 1 for each number
    torch.testing.assert_close(difference, expected, atol=1e-6, rtol=0)


# The step and the update ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1e-3, 1e6])
def test_long_gradients_are_shortened(limit: float) -> None:
    made = learner()
    batch = batch_of(made, ratio=1.5)
    expected, its_losses = gradient_of(made, batch), losses_of(made, batch)
    *metrics, norm = stepped(made, batch, limit)
    assert metrics == pytest.approx([float(each) for each in its_losses[:4]], rel=1e-5)
    assert norm == pytest.approx(float(expected.norm()), rel=1e-5)
    shortened = expected * min(1.0, limit / norm)
    torch.testing.assert_close(made.gradient[: len(made.parameters)], shortened, rtol=1e-4, atol=1e-9)


def test_the_sum_over_ranks_is_averaged() -> None:
    one, two = learner(), learner()
    two.parameters.data.copy_(one.parameters)
    batch = batch_of(one)
    alone = stepped(one, batch, 1e6, bonus=0.3)
    assert stepped(two, batch, 1e6, Alike(4), bonus=0.3) == alone
    assert torch.equal(one.parameters, two.parameters)


def test_an_actor_that_joins_later_takes_steps_of_its_own_first_size() -> None:
    """Adam's first step is the learning rate in each number, whatever the critic has done before."""
    made = learner()
    for _ in range(50):
        made.differentiate(batch_of(made), SETTINGS, 0.0)
        made.step(math.inf, ALONE, fit_actor=False)
    before = made.parameters.clone()
    stepped(made, batch_of(made), math.inf)
    moved = (made.parameters - before)[: made.actor_size].abs()
    assert float(moved.max()) == pytest.approx(made.learning_rate, rel=1e-2)


def test_the_critic_can_be_fitted_alone() -> None:
    made = learner()
    before = made.parameters.clone()
    update(made, batch_of(made), SETTINGS, torch.Generator(), ALONE, bonus=0.1, fit_actor=False)
    same = made.parameters == before
    assert same[: made.actor_size].all()
    assert not same[made.actor_size :].any()


def test_minibatches_hold_every_sample_once() -> None:
    batch = batch_of(learner(), 50)
    batch = replace(batch, returns=torch.arange(50.0).unsqueeze(-1))
    parts = list(batch.minibatches(16, torch.Generator().manual_seed(0)))
    assert [len(part.inputs) for part in parts] == [17, 17, 16]  # what is left over is spread
    rows = torch.cat([part.returns for part in parts]).squeeze(-1).long()
    assert sorted(rows.tolist()) == list(range(50))
    assert rows.tolist() != list(range(50))
    for name in ("inputs", "actions", "log_probs", "advantages"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name)[rows])


@pytest.mark.parametrize("speed", [1.0, 5.0])
def test_the_steps_are_those_of_torchs_adam(speed: float) -> None:
    """Where the std learns faster, those of one that has its logarithm in a group of its own."""
    made, reference = learner(std_speed=speed), learner()
    reference.restore(made.state())
    *rest, log_std = sorted(
        [*reference.policy.parameters(), *reference.critic.parameters()],
        key=lambda each: each is reference.policy.log_std,
    )
    groups = [{"params": rest}, {"params": [log_std], "lr": 1e-2 * speed}]
    adam = torch.optim.Adam(groups, lr=1e-2, eps=1e-5)
    made.learning_rate = 1e-2
    batch = batch_of(made, 64)
    for _ in range(20):
        stepped(made, batch, math.inf)
        reference.differentiate(batch, SETTINGS, 0.0)
        adam.step()
    torch.testing.assert_close(made.parameters, reference.parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 8), (2, 16), (1000, 128)])
def test_a_minibatch_is_shared_by_the_ranks(ranks: int, steps: int) -> None:
    made, team = learner(), Alike(ranks)
    update(made, batch_of(made, 64), SETTINGS, torch.Generator(), team)
    assert made.state()["adam_steps"].tolist() == [steps, steps]
    assert team.summed == (steps if ranks > 1 else 0)


def test_the_adaptive_learning_rate() -> None:
    found = [adaptive_learning_rate(3e-4, kl, desired=0.01) for kl in (0.03, 0.01, 0.001, 0.0)]
    assert found == pytest.approx([2e-4, 3e-4, 4.5e-4, 3e-4])
    assert adaptive_learning_rate(1e-5, 1.0, desired=0.01) == 1e-5
    assert adaptive_learning_rate(9e-3, 0.001, desired=0.01) == 1e-2


def test_the_adaptive_schedule_is_used() -> None:
    made, settings = learner(), replace(SETTINGS, schedule="adaptive", desired_kl=10.0)
    report = update(made, batch_of(made), settings, torch.Generator(), ALONE)
    assert report["learning_rate"] == made.learning_rate == 1e-2  # raised to its bound
    made.learning_rate = 1e-3
    assert update(made, batch_of(made), settings, torch.Generator(), ALONE)["learning_rate"] > 1e-3


def test_a_learner_goes_on_to_the_bit_from_its_state() -> None:
    one = learner()
    batch = batch_of(one)
    update(one, batch, SETTINGS, torch.Generator().manual_seed(0), ALONE)
    one.learning_rate = 3e-3
    state = {name: value.clone() for name, value in one.state().items()}
    two = learner()
    two.restore(state)
    assert two.learning_rate == 3e-3
    batch = batch_of(one)
    for made in (one, two):
        update(made, batch, SETTINGS, torch.Generator().manual_seed(1), ALONE)
    assert torch.equal(one.parameters, two.parameters)
    assert not torch.equal(one.parameters, state["parameters"])


# Guards ---------------------------------------------------------------------------------------------------------------
def test_stale_log_probabilities_are_noticed() -> None:
    made = learner()
    batch = batch_of(made)
    update(made, batch, SETTINGS, torch.Generator(), ALONE)
    with pytest.raises(NumericError, match="they are stale"):
        update(made, batch, SETTINGS, torch.Generator(), ALONE)


def test_a_loss_that_is_not_finite_is_noticed() -> None:
    made = learner()
    batch = batch_of(made)
    batch.advantages[3] = math.nan
    with pytest.raises(NumericError, match="the loss is not finite"):
        update(made, batch, replace(SETTINGS, minibatch=64), torch.Generator(), ALONE)
    assert torch.isfinite(made.parameters).all()


def test_a_gradient_that_is_not_finite_is_noticed() -> None:
    made = learner()
    before = made.parameters.clone()
    made.gradient[3] = math.inf
    with pytest.raises(NumericError, match="the gradient is not finite"):
        made.step(1.0, ALONE, fit_actor=True)
    assert torch.equal(made.parameters, before)


def test_an_update_ends_in_the_very_step_that_went_too_far() -> None:
    made = learner()
    settings = replace(SETTINGS, epochs=50, learning_rate=0.3, target_kl=1e-3, minibatch=16)
    assert update(made, batch_of(made), settings, torch.Generator().manual_seed(0), ALONE)["epochs"] == 1
    assert made.state()["adam_steps"].tolist() == [2, 2]  # the second minibatch sees what the first step did
    other, calm = learner(), replace(settings, target_kl=None, learning_rate=1e-3)
    assert update(other, batch_of(other), calm, torch.Generator(), ALONE)["epochs"] == 50


def test_a_policy_that_stands_still_steers_no_step() -> None:
    """Its KL is rounding."""
    made = learner()
    made.learning_rate = 1e-4
    batch = batch_of(made)
    batch.log_probs.add_(5e-4)
    update(made, batch, replace(SETTINGS, schedule="adaptive"), torch.Generator(), ALONE, fit_actor=False)
    assert made.learning_rate == 1e-4


@st.composite
def rollouts(draw: st.DrawFn) -> Any:
    """Rewards, V(s_t), V(s_{t+1}) as one learns them from a rollout, terminations and truncations; `[T, N]` each."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    rewards, values, ends_in = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    kinds = torch.tensor(
        draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=rewards.numel(), max_size=rewards.numel()))
    ).view(shape)
    terminated, truncated = kinds == 1, kinds == 2
    following = torch.cat([values[1:], ends_in[-1:]])
    # What follows an end is another episode's value: the true one is that of the observation the episode ended in.
    next_values = torch.where(truncated, ends_in, following)
    return rewards, values, next_values, terminated, terminated | truncated


def brute_force(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, g: float, lam: float
) -> Tensor:
    """The λ-return as it is defined: the weighted mean of all k-step returns, of which the last gets what is left."""
    result = torch.empty_like(rewards)
    for n in range(rewards.shape[1]):
        for t in range(len(rewards)):
            stop = next((s for s in range(t, len(rewards)) if ended[s, n]), len(rewards) - 1)
            returns = []
            for last in range(t, stop + 1):
                sum_of_rewards = sum(g ** (s - t) * rewards[s, n] for s in range(t, last + 1))
                rest = 0.0 if terminated[last, n] else g ** (last + 1 - t) * next_values[last, n]
                returns.append(sum_of_rewards + rest)
            weights = [(1 - lam) * lam**k for k in range(len(returns) - 1)] + [lam ** (len(returns) - 1)]
            result[t, n] = sum(w * r for w, r in zip(weights, returns, strict=True)) - values[t, n]
    return result


@given(rollouts(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_advantages_are_lambda_returns_minus_values(rollout: Any, gamma: float, lam: float) -> None:
    torch.testing.assert_close(
        advantages(*rollout, gamma, lam), brute_force(*rollout, gamma, lam), rtol=1e-10, atol=1e-10
    )
