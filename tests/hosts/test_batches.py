"""The environments that the programs of experiments/ train on, and what those programs add to the hosts."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from experiments.batches import AddonEnvs, RslRlEnvs, Sb3Envs
from experiments.fine_tuning import WAYS, KlAnchoredPolicy, RepolicyActor
from repolicy.addons.addon import combine_addons
from repolicy.envs.rollout import Transitions
from repolicy.policies.policy import Policy, PolicySpec, frozen

ENV, ADDON = "HalfCheetah-v4", "hind_leg=10"


def test_both_hosts_are_paid_the_add_on_of_the_same_physics() -> None:
    first, second = Sb3Envs(AddonEnvs(ENV, ADDON, 2, 0)), RslRlEnvs(AddonEnvs(ENV, ADDON, 2, 0))
    rng = np.random.default_rng(0)
    for _ in range(5):
        actions = 2.0 * rng.normal(size=(2, 6)).astype(np.float32)  # beyond the bounds, and handed on as they are
        before = first.addon_envs.current
        observations, rewards, _, _ = first.step(actions)
        seen, paid, _, _ = second.step(torch.from_numpy(actions))
        np.testing.assert_array_equal(seen["policy"].numpy(), observations)
        np.testing.assert_array_equal(paid.numpy(), rewards)
        expected = combine_addons([ADDON]).reward(Transitions(before[None], actions[None], observations[None], {}))[0]
        np.testing.assert_allclose(rewards, expected, rtol=1e-6)
    log = first.addon_envs.pop_log()
    assert log["addon"] < 0
    assert log["basic"] != log["addon"]
    assert first.addon_envs.basic_rewards == []


def test_the_loss_of_one_way_has_the_kl_to_the_prior_for_its_entropy() -> None:
    model = PPO(KlAnchoredPolicy, Sb3Envs(AddonEnvs(ENV, ADDON, 2, 0)), n_steps=4, batch_size=8, device="cpu")
    object.__setattr__(model.policy, "anchor", copy.deepcopy(model.policy))
    observations: Any = torch.randn(7, 17)
    actions = torch.randn(7, 6)
    assert torch.equal(model.policy.evaluate_actions(observations, actions)[2], torch.zeros(7))
    with torch.no_grad():
        model.policy.action_net.bias.add_(0.5)  # std 1: a KL of 6 · 0.5² / 2
    torch.testing.assert_close(model.policy.evaluate_actions(observations, actions)[2], torch.full((7,), -0.75))


@pytest.mark.parametrize("way", ["ppo", "ppo, KL to the prior in the loss", "ppo, frozen std"])
def test_a_policy_whose_std_is_a_network_and_whose_actions_pass_through_tanh_learns_in_the_host(way: str) -> None:
    """It begins as the prior; after a step its mean has moved, and its std has, unless that is frozen."""
    paid = AddonEnvs(ENV, ADDON, 2, 0)
    torch.manual_seed(0)
    start = frozen(Policy(PolicySpec(17, paid.batch.actions, "state_squashed", (8,))))
    built = {"start": start, "how": WAYS[way], "net_arch": {"pi": [], "vf": [8]}}
    model: Any = PPO(
        RepolicyActor, Sb3Envs(paid), policy_kwargs=built, n_steps=4, batch_size=8, n_epochs=1, device="cpu"
    )
    observations, actions = torch.randn(7, 17), torch.randn(7, 6)
    values, log_probs, entropy = model.policy.evaluate_actions(observations, actions)
    assert values.shape == (7, 1)
    torch.testing.assert_close(log_probs, start.log_prob(observations, actions))
    expected = torch.zeros(7) if WAYS[way].kl_loss else start(observations).entropy()
    torch.testing.assert_close(entropy, expected)
    model.learn(8)
    before, after = start(observations), model.policy.distribution(observations)
    assert not torch.equal(after.mean, before.mean)
    assert torch.equal(after.log_std, before.log_std) == WAYS[way].frozen_std
