"""What a nat is worth to a soft optimum: its temperature, exactly, in processes that can be enumerated."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from random_problems import examples, numbers, probabilities, temperatures
from torch import Tensor

from repolicy.exact import MDP, soft_optimal
from repolicy.exact.solve import Trajectories, enumerate_trajectories
from repolicy.prepare.worth import Sums, worth_of

END = 0  # the state of an episode that is over: it pays nothing and has no nats


@st.composite
def mortal(draw: st.DrawFn) -> tuple[MDP, float]:
    """A process whose steps can end an episode, and a temperature at which being over is worth 0."""
    states, actions, alpha = draw(st.integers(2, 3)), draw(st.integers(2, 3)), draw(temperatures)
    transitions, reward = draw(probabilities(states, actions, states)), draw(numbers(states, actions))
    transitions[END] = torch.eye(states, dtype=torch.float64)[END]
    reward[END] = -alpha * torch.log(torch.tensor(actions, dtype=torch.float64))  # what the entropy of being over pays
    start = draw(probabilities(states - 1))
    start = torch.cat([torch.zeros(1, dtype=torch.float64), start])
    return MDP(transitions, reward, start, discount=1.0, horizon=draw(st.integers(1, 4 if states == 2 else 3))), alpha


def expected(each: Trajectories, probability: Tensor, reward: Tensor, nats: Tensor) -> Sums:
    """Sums over the steps before the end whose plain mean, over all trajectories, is their expectation."""
    alive, weights = (each.states != END).double(), len(each.states) * probability
    returns, told = ((each.along(table) * alive).sum(-1) * weights for table in (reward, nats))
    return Sums(returns.numpy(), told.numpy())


@examples
@given(mortal())
def test_a_nat_is_worth_the_temperature_exactly_whoever_falls(process: tuple[MDP, float]) -> None:
    mdp, alpha = process
    log_policy = soft_optimal(mdp, alpha).log_policy
    each, reward = enumerate_trajectories(mdp), mdp.per_step("reward", mdp.reward)
    mode = torch.nn.functional.one_hot(log_policy.argmax(-1), mdp.actions).double()
    entropy = -(log_policy.exp() * log_policy).sum(-1, keepdim=True).expand_as(log_policy)
    by_mode = expected(each, each.chance * each.along(mode).prod(-1), reward, log_policy)
    sampled = expected(each, each.probability(log_policy), reward, entropy)
    nats = by_mode.nats.mean() + sampled.nats.mean()
    assume(nats > 0.01)  # else both act alike
    found = worth_of(by_mode, sampled)
    assert abs(found.value - alpha) < 1e-11 / nats
