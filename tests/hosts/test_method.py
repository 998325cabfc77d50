"""What is the same in every host: the unit of returns, ages of episodes, and when the actor moves."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small import Far
from torch import nn

from repolicy.hosts.method import HostRollout, Method, accelerate_std, episode_ages
from repolicy.hosts.steering import DEFAULT_WARMUP, WARMUP_EXPLAINED_VARIANCE, Steering
from repolicy.learning.ppo import STD_SPEED, STD_SPEED_MIN_SAMPLES
from repolicy.learning.worker import MAX_WARMUPS
from repolicy.objective import Objective, residual
from repolicy.prepare.states import SKIPPED_STEPS

ENDED = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 1], [0, 0]]).bool()


class Pushing:
    """A prior whose log-probability is the action, and whose entropy is 2."""

    def score(self, observations: torch.Tensor, actions: torch.Tensor, ended: torch.Tensor) -> tuple:
        return actions.squeeze(-1), torch.full(ended.shape, 2.0)


def seen(task: torch.Tensor) -> HostRollout:
    actions, log_policy = torch.full((*task.shape, 1), 3.0), torch.full_like(task, -1.0)
    no_limits = torch.zeros(0, *task.shape)
    return HostRollout(task, actions, log_policy, task, ENDED, ENDED, lambda: task, no_limits, gamma=0.99)


def test_the_age_of_a_state_is_its_steps_into_the_episode() -> None:
    assert episode_ages(ENDED, torch.tensor([7, 0])).tolist() == [[7, 0], [8, 1], [0, 2], [1, 3], [2, 0], [3, 1]]


def test_a_rollout_pays_its_parts_and_tells_their_means() -> None:
    method, task = Method(Steering(residual(0.5, 0.25), critic_warmup=0), Pushing()), torch.arange(10.0).view(5, 2)
    method.normalize_critic(nn.Linear(1, 1), nn.Linear(1, 1))
    assert torch.equal(method.reward(seen(task)), task + 0.5 * 3.0 + 0.25)
    method.credit(task.clone(), torch.zeros(5, 2))
    found = method.iteration_metrics()
    assert {name: found[name] for name in ("reward_task", "reward_prior", "reward_entropy", "prior_kl")} == {
        "reward_task": 4.5, "reward_prior": 1.5, "reward_entropy": 0.25, "prior_kl": -4.0,
    }  # fmt: skip
    assert method.spending == ({"prior_kl": -4.0, "below_prior": -5.0, "below_prior_squares": 25.0}, 10)
    assert found["explained_variance"] == pytest.approx(0.0)


def test_the_critic_learns_in_the_unit_of_its_returns_and_acts_in_rewards() -> None:
    critic, inputs = nn.Linear(3, 1), torch.randn(5, 2, 3)
    method = Method(Steering(residual(0.5, 0.25)), Pushing())
    method.normalize_critic(critic, critic)
    for spread in (1.0, 40.0, 3.0):
        with torch.no_grad():
            values = critic(inputs).squeeze(-1)
        raw, returns = values.clone(), 50.0 + spread * torch.randn(5, 2)
        target, unit = returns.clone(), values.clone()
        method.credit(target, unit)
        torch.testing.assert_close(method.scale.undo(target), returns, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(critic(inputs).squeeze(-1), unit, rtol=1e-4, atol=1e-4)  # with a gradient: its unit
        with torch.no_grad():
            if spread != 1.0:  # at first its outputs stay, and so it predicts the mean
                torch.testing.assert_close(critic(inputs).squeeze(-1), raw, rtol=1e-3, atol=1e-2)
    assert float(method.scale.std) > 10


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda critic: pickle.loads(pickle.dumps(critic))])
@torch.no_grad()
def test_a_copy_of_a_critic_keeps_its_unit_while_that_of_the_critic_moves(copied: Callable[..., Any]) -> None:
    critic, inputs = nn.Linear(3, 1), torch.randn(7, 3)
    method = Method(Steering(residual(0.5, 0.25)), Pushing())
    method.normalize_critic(critic, critic)
    method.credit(50.0 + 40.0 * torch.randn(5, 2), torch.zeros(5, 2))
    other, before = copied(critic), critic(inputs)
    assert torch.equal(other(inputs), before)
    method.credit(-9.0 + torch.randn(5, 2), torch.zeros(5, 2))
    assert torch.equal(other(inputs), before)


def test_without_weights_the_critic_is_the_hosts_own() -> None:
    method, critic = Method(Steering(Objective()), None), nn.Linear(1, 1)
    method.normalize_critic(critic, critic)
    returns, values = torch.randn(5, 2), torch.randn(5, 2)
    copies = returns.clone(), values.clone()
    method.credit(returns, values)
    assert torch.equal(returns, copies[0])
    assert torch.equal(values, copies[1])
    assert not critic._forward_hooks


@pytest.mark.parametrize(
    ("explained", "first"),
    [(WARMUP_EXPLAINED_VARIANCE, DEFAULT_WARMUP), (WARMUP_EXPLAINED_VARIANCE - 0.1, MAX_WARMUPS * DEFAULT_WARMUP)],
)
def test_the_usual_warm_up_waits_for_a_critic_that_explains_too_little(explained: float, first: int) -> None:
    steering = Steering(residual(0.5, 0.25), critic_warmup=None)
    while not steering.trains_actor:
        steering.explained_variance = explained
        if not steering.trains_actor:
            steering.steer({}, 1)
    assert steering.iterations == first


def test_a_budget_of_log_prior_moves_omega_alone() -> None:
    steering = Steering(residual(0.5, 0.25), log_prior_budget=1.0)
    steering.steer({"prior_kl": 0.0, "below_prior": 9.0, "below_prior_squares": 90.0}, 10_000)
    assert steering.objective.omega > 0.5
    assert steering.objective.alpha == 0.25


FOUND = Steering(residual(0.5, 0.5), kl_budget=2.0)  # a budget that nobody named
KEPT = Steering(residual(0.4, 0.2), keep=0.9)
KEPT_BOTH = Steering(residual(0.4, "omega"), keep=0.9)
BY_NATS = Steering(residual(0.4, 0.2), log_prior_budget=1.0)


@pytest.mark.parametrize(
    ("saved", "today", "weights", "kl_budget", "log_prior_budget"),
    [
        (FOUND, Steering(residual()), residual(0.5, 0.5), 2.0, None),
        (FOUND, Steering(residual(0.1, 0.5)), residual(0.1, 0.5), None, None),  # it would move what is named now
        (FOUND, Steering(residual(0.5, 0.5)), residual(0.5, 0.5), 2.0, None),  # nothing is named otherwise
        (FOUND, Steering(residual(alpha=0.5)), residual(0.5, 0.5), 2.0, None),
        (FOUND, Steering(residual(alpha=0.2)), residual(0.5, 0.5), 2.0, None),  # the budget moves alpha, too
        (KEPT, Steering(residual(0.3, 0.05), keep=0.9), residual(0.4, 0.05), None, None),  # a share moves omega alone
        (KEPT_BOTH, Steering(residual(0.3, "omega"), keep=0.9), residual(0.4, 0.4), None, None),
        (KEPT, Steering(residual(alpha=0.05), kl_budget=0.5), residual(0.4, 0.4), 0.5, None),  # omega was moved
        (BY_NATS, Steering(residual(alpha=0.05), kl_budget=0.5), residual(0.4, 0.4), 0.5, None),
        (BY_NATS, Steering(residual()), residual(0.4, 0.2), None, 1.0),
    ],
)
def test_what_was_found_goes_on_beside_what_is_named_today(
    saved: Steering, today: Steering, weights: Objective, kl_budget: Any, log_prior_budget: Any
) -> None:
    today.resume(saved.state(), today.objective, today.settings.budget)
    assert (today.objective.omega, today.objective.alpha) == (weights.omega, weights.alpha)
    assert (today.kl_budget, today.log_prior_budget) == (kl_budget, log_prior_budget)


def test_a_method_that_goes_on_has_its_curves_and_its_verdict() -> None:
    method, again = (Method(Steering(residual(0.5, 0.25)), Pushing()) for _ in range(2))
    critic = nn.Linear(1, 1)
    for each in (method, again):
        each.normalize_critic(critic, critic)
    method.curves, method.verdict_episodes = {"steps": [4], "entropy": [0.5]}, [{"who": "prior", "lengths": [3.0]}]
    again.update_kl_sums = torch.ones(2)  # of an update that came after what is loaded
    again.resume(method.state())
    assert again.state() == method.state()


def test_the_learning_rate_follows_each_update_of_the_actor_once() -> None:
    method, rates = Method(Steering(residual(0.5, 0.25), critic_warmup=1), Pushing()), list[float]()
    method.normalize_critic(nn.Linear(1, 1), nn.Linear(1, 1))
    actor, kept = nn.Parameter(torch.zeros(1)), 3e-4
    for kl in (0.0, 1.0, 1e-3, None, None):
        method.reward(seen(torch.zeros(5, 2)))
        method.credit(torch.zeros(5, 2), torch.zeros(5, 2))
        method.iteration_metrics()
        method.verdict_episodes = [{}]
        with method.policy_update([actor], kept, rates.append) as alone:
            assert actor.requires_grad != alone
        assert bool(method.verdict_episodes) == alone, "a verdict is of the policy before the update"
        kept = rates[-1]
        if kl is not None:
            method.update_kl_sums = torch.tensor([4.0 * kl, 4.0])
    slower = pytest.approx(3e-4 / 1.5)
    assert rates == [1e-3, 3e-4, 3e-4, 3e-4, slower, slower, 3e-4, 3e-4, 3e-4, 3e-4]


def test_a_quickened_std_moves_as_in_a_group_of_its_own() -> None:
    """Adam's steps go by the gradient's sign, so a group's learning rate is how far they go."""
    generator = torch.Generator().manual_seed(0)
    quick, others, alone, rest = (torch.nn.Parameter(torch.zeros(3)) for _ in range(4))
    together = torch.optim.Adam([quick, others], lr=1e-2)
    apart = torch.optim.Adam([{"params": [alone], "lr": 1e-2 * STD_SPEED}, {"params": [rest]}], lr=1e-2)
    accelerate_std(together, quick, STD_SPEED_MIN_SAMPLES)
    for _ in range(5):
        for first, second in ((quick, alone), (others, rest)):
            first.grad = torch.randn(3, generator=generator)
            second.grad = first.grad.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(quick, alone)
    torch.testing.assert_close(others, rest, rtol=0, atol=0)


class AsFarAsTold(Far):
    """A density to which a state is as many nats away as its number says."""

    def familiarity(self, states: torch.Tensor) -> torch.Tensor:
        return -states.squeeze(-1)


def test_unfamiliar_states_cost_once_an_episode_is_under_way_and_at_its_end_as_if_they_lasted() -> None:
    """The first step ends an episode of both environments: of the first at a time limit."""
    method = Method(Steering(residual(0.0, 0.0, states=0.5)), None)
    method.density = AsFarAsTold()
    steps, zeros = SKIPPED_STEPS + 2, torch.zeros(SKIPPED_STEPS + 2, 2)
    ended, states = torch.zeros(steps, 2, dtype=torch.bool), 4.0 + torch.arange(steps + 1.0).repeat(2, 1).T[..., None]
    ended[0] = True
    terminated = ended & torch.tensor([False, True])
    rollout = HostRollout(zeros, zeros, zeros, zeros, ended, terminated, lambda: states, zeros[None][:0], gamma=0.9)
    cut, fallen = method.reward(rollout).T.tolist()
    unpriced, later = [0.0] * SKIPPED_STEPS, -0.5 * (4 + steps)
    assert cut == [0.0, *unpriced, later]
    assert fallen == pytest.approx([-0.5 * 4 * 10, *unpriced, later]), "a host shows no last state, but the one before"
    assert method.ages is not None
    assert method.ages.tolist() == [SKIPPED_STEPS + 1] * 2
