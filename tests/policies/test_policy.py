"""Policies of every family: what they normalize, how they bound, copy and describe themselves."""

import json
import math
import pickle
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from shaken import shaken

from repolicy.envs.step import action_space
from repolicy.errors import UsageError
from repolicy.policies.distributions import ActionSpace, Categorical, Gaussian, SquashedGaussian
from repolicy.policies.export import MeanActionModule
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.normalizer import Normalizer, moment_sums
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.priors.dials import interpolate_policies
from repolicy.ranges import Dial

BOX = ActionSpace("continuous", (2,), (-1.0, 0.0), (1.0, 10.0))
CHOICES = ActionSpace("discrete", (2, 3))
SPECS = {
    "gaussian": PolicySpec(3, BOX, hidden=(8,)),
    "state_gaussian": PolicySpec(3, BOX, "state_gaussian", hidden=(8,)),
    "squashed": PolicySpec(3, BOX, "squashed", hidden=(8,)),
    "state_squashed": PolicySpec(3, BOX, "state_squashed", hidden=(8,)),
    "categorical": PolicySpec(3, CHOICES, "categorical", hidden=(8,)),
    "features_gaussian": PolicySpec(3, BOX, "features_gaussian", hidden=(8,), mean_clip=0.5),
    "features_squashed": PolicySpec(3, BOX, "features_squashed", hidden=(8,), std="expln"),
}
OTHERS = {  # what files of other libraries need besides
    "softplus": replace(SPECS["state_gaussian"], std="softplus", activation="swish"),
    "exp_tanh": replace(SPECS["state_squashed"], std="exp_tanh", std_bounds=(-5.0, 2.0), activation="gelu"),
    "identity": replace(SPECS["state_gaussian"], std="identity", std_bounds=(0.5, 2.0), activation="leaky_relu"),
    "expln": replace(SPECS["state_gaussian"], std="expln", norms=("before",), activation="gelu_tanh"),
    "linear": replace(SPECS["gaussian"], hidden=(), clips=True),
}


def wild(spec: PolicySpec) -> Policy:
    """A policy with large weights, which depends on what it sees, and a normalizer that has seen something."""
    policy = shaken(Policy(spec))
    policy.normalizer.update(moment_sums(np.random.default_rng(0).normal(3.0, 2.0, (100, 3)).astype(np.float32)))
    return policy


@pytest.mark.parametrize("family", list(SPECS))
def test_families(family: str) -> None:
    policy = wild(SPECS[family])
    observations = torch.randn(5, 4, 3)
    distribution = policy(observations)
    kind = SquashedGaussian if family.endswith("squashed") else Gaussian
    assert type(distribution) is (Categorical if family == "categorical" else kind)
    actions = distribution.sample(torch.Generator().manual_seed(0))
    assert actions.shape == distribution.mode().shape == (5, 4, 2)
    log_prob = policy.log_prob(observations, actions)
    assert log_prob.shape == (5, 4)
    assert not log_prob.requires_grad
    assert torch.equal(log_prob, distribution.log_prob(actions).detach())
    one = policy.log_prob(observations[2, 1], actions[2, 1])
    torch.testing.assert_close(one, log_prob[2, 1])


@pytest.mark.parametrize("observation", [{"a": np.zeros(3)}, np.zeros(2), 0.0])
def test_an_observation_that_is_not_laid_out_flat_is_refused(observation: Any) -> None:
    with pytest.raises(UsageError, match=f"laid out flat; got {type(observation).__name__} of shape"):
        wild(SPECS["gaussian"]).predict(observation)


def test_choices_count_from_0_when_they_are_scored_and_as_the_environment_does_when_they_are_taken() -> None:
    policy = wild(PolicySpec(3, ActionSpace("discrete", (4,), (1.0,)), "categorical", hidden=(8,)))
    observations = torch.randn(64, 3)
    taken, _ = policy.predict(observations.numpy())
    assert taken.min() >= 1
    likeliest = policy.log_prob(observations, torch.from_numpy(taken)[:, None] - 1)
    every = [policy.log_prob(observations, torch.full((64,), choice)) for choice in range(4)]
    assert torch.equal(likeliest, torch.stack(every).max(0).values)
    with pytest.raises(UsageError, match="go from 1 to 4; .* choices 0 to 3; the environment counts from 1"):
        policy.log_prob(observations[:4], torch.arange(1, 5)[:, None])
    with pytest.raises(UsageError, match="actions go from -1 to -1; the policy has choices 0 to 2$"):
        wild(SPECS["categorical"]).log_prob(torch.zeros(3), torch.tensor([0, -1]))


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_what_does_not_fit_is_not_broadcast(family: str) -> None:
    policy = wild(SPECS[family])
    for wrong in ((4, 1), (4, 3), (2,), (1, 2), (4, 4, 2), (4,), ()):
        with pytest.raises(UsageError, match=r"actions have the shape .*; of each step the policy takes 2 numbers as"):
            policy.log_prob(torch.ones(4, 3), torch.zeros(wrong))
    for wrong in ((4, 1), (4, 4), (3, 4), (1,), ()):
        with pytest.raises(UsageError, match=r"observations have the shape .*; of each step .* takes 3 numbers"):
            policy.log_prob(torch.ones(wrong), torch.zeros(4, 2))
    double = policy.log_prob(torch.ones(4, 3).double(), torch.zeros(4, 2).double())
    assert torch.equal(double.float(), policy.log_prob(torch.ones(4, 3), torch.zeros(4, 2)))


@pytest.mark.parametrize("family", list(SPECS))
def test_every_parameter_learns(family: str) -> None:
    policy = wild(SPECS[family])
    distribution = policy(torch.randn(32, 3))
    (distribution.log_prob(distribution.sample().detach()) * torch.randn(32)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in policy.parameters())


@pytest.mark.parametrize("family", list(SPECS))
def test_a_policy_can_be_pickled(family: str) -> None:
    policy, seen = wild(SPECS[family]), np.ones((2, 3))
    copied = pickle.loads(pickle.dumps(policy))
    copied.load_state_dict(policy.state_dict())  # which refreshes what it normalizes with
    np.testing.assert_array_equal(copied.predict(seen)[0], policy.predict(seen)[0])


@pytest.mark.parametrize("dials", [(), (Dial("omega", 0.1, 1.0),)])
def test_a_network_computes_with_the_weights_that_torch_puts_into_it(dials: tuple[Dial, ...]) -> None:
    made = [ConditionedPolicy(SPECS["gaussian"], dials) if dials else Policy(SPECS["gaussian"]) for _ in range(2)]
    policy, other = (shaken(each, seed=seed) for seed, each in enumerate(made))
    observations = torch.randn(5, 3 + len(dials))
    wanted, weights = other(observations).mode(), {name: value.detach() for name, value in policy.named_parameters()}

    def mean(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(policy, weights, (observations,)).mode()  # type: ignore[no-any-return]

    assert torch.equal(mean(other.state_dict()), wanted)
    gradients = torch.func.grad(lambda weights: mean(weights).sum())(weights)
    assert all(value.any() for name, value in gradients.items() if "std" not in name)
    policy.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(policy(observations).mode(), wanted)
    now, expected = (each.network.snapshot()(observations.numpy()) for each in (policy, other))
    assert np.array_equal(now, expected)


@pytest.mark.parametrize("family", ["gaussian", "state_gaussian", "squashed", "state_squashed"])
def test_stds_begin_as_asked_and_are_bounded_below(family: str) -> None:
    policy = Policy(replace(SPECS[family], initial_std=0.35, min_std=1e-3))
    distribution: Any = policy(torch.zeros(1, 3))
    torch.testing.assert_close(distribution.log_std.exp(), torch.full_like(distribution.log_std, 0.351))

    with torch.no_grad():  # far below the bound
        (policy.network.biases[-1][2:] if family.startswith("state_") else policy.log_std).fill_(-20.0)
    distribution = policy(torch.randn(9, 3))
    assert (distribution.log_std.exp() >= 1e-3 * (1 - 1e-6)).all()
    distribution.log_std.sum().backward()
    learning = policy.network.biases[-1].grad[2:] if family.startswith("state_") else policy.log_std.grad
    assert (learning > 0).all()  # it can come back


# The normalizer -------------------------------------------------------------------------------------------------------
def test_the_normalizer_has_seen_all_batches_as_one() -> None:
    generator = np.random.default_rng(0)
    batches = [generator.normal(generator.normal(size=3) * 50, 1 + index, (7 + index, 4, 3)) for index in range(5)]
    normalizer = Normalizer(3)
    for batch in batches:
        normalizer.update(moment_sums(batch))
    everything = np.concatenate([batch.reshape(-1, 3) for batch in batches])
    np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var, everything.var(0), rtol=1e-10)
    assert float(normalizer.count) == len(everything)
    seen = normalizer(torch.from_numpy(everything).float())
    np.testing.assert_allclose(seen.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(seen.numpy().std(0), 1.0, atol=1e-4)
    np.testing.assert_allclose(normalizer(normalizer.denormalized_noise(torch.ones(3))), 1.0, atol=1e-4)


def test_the_normalizer_has_no_smallest_std_but_that_of_a_constant() -> None:
    stds = torch.tensor([1.0, 1e-2, 1e-5, 1e-7, 1e-5, 0.0], dtype=torch.float64)
    means = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.3], dtype=torch.float64)
    seen = means + stds * torch.randn(2, 500, 6, dtype=torch.float64)
    normalizer = Normalizer(6)
    for batch in seen:
        normalizer.update(moment_sums(batch))
    torch.testing.assert_close(normalizer.variance[:-1], seen.var((0, 1), correction=0)[:-1], rtol=1e-4, atol=0.0)
    inputs = (seen - normalizer.shift) * normalizer.scale
    torch.testing.assert_close(inputs.std((0, 1))[:4].float(), torch.ones(4), atol=0.01, rtol=0.0)
    assert normalizer.scale[-1] == 1e4
    normalizer.keep_constants()
    assert [float(normalizer.variance[each]) == 1.0 for each in range(6)] == [False] * 5 + [True]


# Acting ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", list(SPECS | OTHERS))
def test_an_actor_acts_as_the_distribution_says(family: str) -> None:
    """Its mode is the distribution's; its samples, over many copies of one observation, have the mean and the std."""
    policy = wild((SPECS | OTHERS)[family])
    observations = torch.tensor([[100.0, -100.0, 2.0]])  # beyond the clip at both ends
    with torch.no_grad():
        distribution = policy(observations)
        mode = policy.actor(1, 1)(observations.numpy())
        np.testing.assert_allclose(mode, distribution.mode().numpy(), rtol=1e-5, atol=1e-6)

        many, generator = 20_000, torch.Generator().manual_seed(0)
        act = policy.actor(2, many, generator)
        one, other = (act(observations.expand(many, 3).numpy()) for _ in range(2))
        reference = policy(observations.expand(many, 3)).sample(generator).numpy()
    assert not np.array_equal(one, other)
    assert one.dtype == reference.dtype
    for sampled in (one, other):
        np.testing.assert_allclose(sampled.mean(0), reference.mean(0), atol=0.04 * reference.std(0).max())
        np.testing.assert_allclose(sampled.std(0), reference.std(0), rtol=0.03)


# Copies ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", list(SPECS))
def test_a_frozen_copy_is_the_same_and_stays_so(family: str) -> None:
    policy = wild(SPECS[family])
    observations = torch.randn(5, 3)
    actions = policy(observations).sample()
    prior = frozen(policy)
    before = prior.log_prob(observations, actions)
    assert torch.equal(before, policy.log_prob(observations, actions))
    assert not any(parameter.requires_grad for parameter in prior.parameters())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    policy.normalizer.update(moment_sums(np.full((10, 3), 100.0, np.float32)))
    assert torch.equal(prior.log_prob(observations, actions), before)
    assert not torch.equal(policy.log_prob(observations, actions), before)


@pytest.mark.parametrize("spec", [*SPECS.values(), *OTHERS.values()])
def test_a_spec_survives_json(spec: PolicySpec) -> None:
    assert PolicySpec.from_dict(json.loads(json.dumps(asdict(spec)))) == spec


# What the environment gets --------------------------------------------------------------------------------------------
ATANH = math.atanh(0.5)
BEFORE, WITHIN = [[0.0, 0.0], [100.0, -100.0], [ATANH, -ATANH]], [[0.0, 5.0], [1.0, 0.0], [0.5, 2.5]]


@pytest.mark.parametrize(
    ("spec", "stored", "sent"),
    [
        (SPECS["squashed"], BEFORE, WITHIN),
        (SPECS["state_squashed"], BEFORE, WITHIN),
        (OTHERS["linear"], [[2.0, 5.0], [-3.0, -1.0]], [[1.0, 5.0], [-1.0, 0.0]]),  # which clips
        *((SPECS[family], BEFORE, BEFORE) for family in ("gaussian", "state_gaussian", "categorical")),
    ],
)
def test_actions_reach_the_environment_within_its_bounds_where_a_policy_has_some(
    spec: PolicySpec, stored: Any, sent: Any
) -> None:
    np.testing.assert_allclose(wild(spec).to_environment(np.float32(stored)), np.float32(sent), atol=1e-6)


@pytest.mark.parametrize("bounded", [{"clips": True}, {"family": "squashed"}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_in_a_space_of_any_precision(bounded: dict[str, Any], dtype: Any) -> None:
    """Also far outside, where a rounding would leave it; so are those that an exported policy clips."""
    low, high = np.sort(np.random.default_rng(0).normal(size=(2, 200)).astype(dtype), axis=0)
    space = Box(low, high, dtype=dtype)
    policy = Policy(PolicySpec(3, action_space(space, "of a test"), **bounded))
    stored = np.repeat(np.float32([[100.0], [-100.0]]), 200, axis=1)
    for sent in policy.to_environment(stored):
        assert space.contains(sent.astype(dtype))
    for each in stored if policy.spec.clips else ():
        with torch.no_grad():
            policy.network.biases[-1].copy_(torch.from_numpy(each))
            sent = MeanActionModule(policy)(torch.zeros(1, 3))[0].numpy()
        assert space.contains(sent.astype(dtype))


def test_a_mixtures_std_is_its_own_and_not_bounded_as_the_priors_is() -> None:
    bounded = replace(SPECS["gaussian"], std_bounds=(-0.1, 0.1))
    prior, other = wild(bounded), wild(bounded)
    other.normalizer.load_state_dict(prior.normalizer.state_dict())
    with torch.no_grad():
        prior.log_std.fill_(0.1)
        other.log_std.fill_(-0.1)
    observations, actions = torch.randn(1, 3).expand(50, 3), torch.randn(50, 2)
    policies = (prior, other, interpolate_policies(prior, other, 1.5))
    one, two, mixed = (each.log_prob(observations, actions) for each in policies)
    spread = mixed + 0.5 * one - 1.5 * two  # the logarithm of what the product is divided by, the same for all actions
    assert float(spread.max() - spread.min()) < 1e-4


# What cannot be -------------------------------------------------------------------------------------------------------
def within(low: float, high: float) -> ActionSpace:
    return ActionSpace("continuous", (1,), (low,), (high,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "categorical"}, "a categorical policy cannot act with continuous actions .2 numbers."),
        ({"actions": CHOICES}, "a gaussian policy cannot act with discrete actions .choices of 2, 3."),
        ({"family": "squashed", "actions": within(-1.0, math.inf)}, "squashed policy needs bounded actions"),
        ({"family": "squashed", "actions": ActionSpace("continuous", (1,))}, "squashed policy needs bounded actions"),
        ({"family": "squashed", "clips": True}, "a squashed policy's actions are within their bounds"),
        ({"clips": True, "actions": ActionSpace("continuous", (1,))}, "the bounds of 1 number are .. and .."),
        ({"clips": True, "actions": within(2.0, -2.0)}, "a lower and a higher one"),
        ({"family": "squashed", "actions": within(2.0, -2.0)}, "a lower and a higher one"),
        ({"clips": True, "actions": within(math.nan, 2.0)}, "a lower and a higher one"),
        ({"activation": "sine"}, "no activation 'sine'; choose from tanh, relu, elu"),
        ({"hidden": (64, 0)}, "hidden is .*; it must be layer sizes"),
        ({"initial_std": 1e-4}, "0 <= min_std < initial_std, not 0.001 and 0.0001"),
        ({"min_std": -1.0}, "0 <= min_std < initial_std"),
        ({"initial_std": math.nan}, "0 <= min_std < initial_std"),
    ],
)
def test_specs_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(SPECS["gaussian"], **changes)
