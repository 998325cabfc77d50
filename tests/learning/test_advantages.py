"""Advantages against the definition of the λ-return."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from repolicy.learning.ppo import advantages


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


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool)[:, None]


@pytest.mark.parametrize(
    ("terminated", "ended", "expected"),
    [
        ((0, 0, 0), (0, 0, 0), (1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 64)) - 8, 2 + 0.5 * (4 + 0.5 * 64) - 16, 4 + 32 - 32)),
        ((0, 1, 0), (0, 1, 0), (1 + 0.5 * 2 - 8, 2 - 16, 4 + 32 - 32)),  # nothing follows the second step
        ((0, 0, 0), (0, 1, 0), (1 + 0.5 * (2 + 0.5 * 32) - 8, 2 + 16 - 16, 4 + 32 - 32)),  # its value goes on
    ],
)
def test_literal_monte_carlo_advantages(terminated: Any, ended: Any, expected: Any) -> None:
    found = advantages(
        column(1, 2, 4), column(8, 16, 32), column(16, 32, 64), flags(*terminated), flags(*ended), 0.5, 1.0
    )
    assert found[:, 0].tolist() == list(expected)


def test_literal_one_step_advantages() -> None:
    found = advantages(column(1, 2), column(8, 16), column(16, 32), flags(0, 1), flags(0, 1), 0.5, 0.0)
    assert found[:, 0].tolist() == [1 + 8 - 8, 2 - 16]
