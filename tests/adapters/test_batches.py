"""The environments that the programs of experiments/ train on, and what those programs add to the hosts."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
pytest.importorskip("rsl_rl")
from stable_baselines3 import PPO

from experiments.batches import ForRslRl, ForSb3, Paid
from experiments.fine_tuning import WAYS, NearPrior
from repolicy.envs.addons import combined

ENV, ADDON = "HalfCheetah-v4", "hind_leg=10"


def test_both_hosts_are_paid_the_add_on_of_the_same_physics() -> None:
    first, second = ForSb3(Paid(ENV, ADDON, 2, 0)), ForRslRl(Paid(ENV, ADDON, 2, 0))
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = 2.0 * rng.normal(size=(2, 6)).astype(np.float32)  # beyond the bounds, and handed on as they are
        before = first.paid.current
        observations, rewards, _, _ = first.step(actions)
        seen, paid, _, _ = second.step(torch.from_numpy(actions))
        np.testing.assert_array_equal(seen["policy"].numpy(), observations)
        np.testing.assert_array_equal(paid.numpy(), rewards)
        expected = combined([ADDON]).reward(before[None], actions[None], observations[None], {})[0]
        np.testing.assert_allclose(rewards, expected, rtol=1e-6)
    noted = first.paid.noted()
    assert noted["addon"] < 0
    assert noted["basic"] != noted["addon"]
    assert first.paid.basic == []


def test_the_loss_of_one_way_has_the_kl_to_the_prior_for_its_entropy() -> None:
    model = PPO(NearPrior, ForSb3(Paid(ENV, ADDON, 2, 0)), n_steps=4, batch_size=8, device="cpu")
    object.__setattr__(model.policy, "anchor", copy.deepcopy(model.policy))
    observations: Any = torch.randn(7, 17)
    actions = torch.randn(7, 6)
    assert torch.equal(model.policy.evaluate_actions(observations, actions)[2], torch.zeros(7))
    with torch.no_grad():
        model.policy.action_net.bias.add_(0.5)  # std 1: a KL of 6 · 0.5² / 2
    torch.testing.assert_close(model.policy.evaluate_actions(observations, actions)[2], torch.full((7,), -0.75))


def test_a_way_differs_from_plain_ppo_by_what_its_row_says() -> None:
    assert len({repr(way) for way in WAYS.values()}) == len(WAYS) == 8
