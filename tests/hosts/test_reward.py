"""A function for a training loop of one's own, and reward terms that pay what the engine pays."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small import sine

from repolicy import Policy, load_policy, save_policy
from repolicy.addons.addon import combine_addons
from repolicy.addons.gaits import ActionRate, Jerk
from repolicy.envs.rollout import AddonState, Transitions
from repolicy.errors import NumericError, UsageError
from repolicy.hosts.prior_reward import prior_reward
from repolicy.hosts.reward_terms import term
from repolicy.loading import load_object
from repolicy.objective import reformulated, residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.policy import PolicySpec
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.ranges import Dial
from repolicy.readers.reading import in_python_terms


def policy(discrete: bool = False) -> Policy:
    space = ActionSpace("discrete", (3,)) if discrete else ActionSpace("continuous", (2,), (-1.0,) * 2, (1.0,) * 2)
    return Policy(PolicySpec(4, space, "categorical" if discrete else "gaussian", (8,)))


def rollout() -> tuple[torch.Tensor, ...]:
    return torch.randn(5, 6, 4), torch.randn(5, 6, 2), torch.randn(5, 6), torch.randn(5, 6)


def test_tensors_and_arrays_give_the_objectives_reward_and_its_parts_are_told() -> None:
    prior, parts = policy(), rollout()
    observations, actions, rewards, log_policy = parts
    log_prior = prior.log_prob(observations, actions)
    expected = reformulated(residual(0.3, 0.2), rewards, log_prior, log_policy).total
    reward = prior_reward(prior, 0.3, 0.2)
    copies = [part.clone() for part in parts]
    torch.testing.assert_close(reward(*parts), expected, rtol=0, atol=1e-6)
    means = {
        "task": rewards.mean(), "prior": 0.3 * log_prior.mean(), "entropy": -0.2 * log_policy.mean(), "states": 0.0,
        "prior_kl": (log_policy - log_prior).mean(),
    }  # fmt: skip
    assert reward.parts == pytest.approx({name: float(mean) for name, mean in means.items()}, abs=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(parts, copies, strict=True)), "it changes nothing"
    arrays = [part.numpy() for part in parts]
    found = reward(*arrays)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)


def test_the_reward_has_no_gradient_and_without_weights_it_stays_as_it_is() -> None:
    observations, *parts = rollout()
    assert prior_reward(policy(), 0.0, 0.0)(observations, *parts) is parts[1]
    parts = [part.requires_grad_() for part in parts]
    scoring = SimpleNamespace(log_prob=lambda observations, actions: actions.sum(-1))
    for reward in (prior_reward(policy(), 0.3, 0.2), prior_reward(scoring, 0.3, 0.2), prior_reward(policy(), 0.0, 0.0)):
        assert not reward(observations, *parts).requires_grad


@pytest.mark.parametrize("as_arrays", [False, True])
@pytest.mark.parametrize(
    ("which", "said"),
    [(0, "prior's log-probability"), (2, "reward"), (3, "policy's log-probability"), (4, "price on states")],
)
def test_what_is_not_finite_is_no_reward(which: int, said: str, as_arrays: bool) -> None:
    parts = *rollout(), torch.zeros(5, 6, 4)
    parts[which].view(-1)[3] = torch.nan
    reward = prior_reward(policy(), 0.3, 0.2, states=0.5, visited=torch.randn(9_000, 4))
    with pytest.raises(NumericError, match=f"the {said} is not finite"):
        reward(*(part.numpy() if as_arrays else part for part in parts))


def test_a_budget_moves_both_weights_after_a_rollout() -> None:
    prior, parts = policy(), list(rollout())
    parts[3] = prior.log_prob(*parts[:2]) + 9.0  # far beyond
    reward = prior_reward(prior, 0.3, 0.3, kl_budget=0.5)
    total = reward(*parts)
    torch.testing.assert_close(total, reformulated(residual(0.3, 0.3), parts[2], parts[3] - 9.0, parts[3]).total)
    assert reward.objective.omega > 0.3
    assert reward.objective.omega == reward.objective.alpha
    with pytest.raises(UsageError, match="a KL budget moves omega and alpha together"):
        prior_reward(prior, 0.3, 0.2, kl_budget=0.5)


def test_a_function_that_a_checkpoint_holds_goes_on_with_its_weights(tmp_path: Path) -> None:
    reward = prior_reward(policy(), 0.3, 0.3, kl_budget=0.5)
    reward(*rollout())
    torch.save(reward, tmp_path / "reward.pt")
    again, parts = torch.load(tmp_path / "reward.pt", weights_only=False), rollout()
    assert again.objective.omega != 0.3
    for _ in range(2):
        assert torch.equal(again(*parts), reward(*parts))
    assert again.steering == reward.steering


def test_what_a_nat_is_worth_stands_in_the_priors_file(capsys: pytest.CaptureFixture[str]) -> None:
    reward, card = prior_reward("halfcheetah"), read_policy(find_policy("halfcheetah")).card
    assert reward.objective.omega == card["nat_worth"]["value"]
    assert reward.objective.alpha == card["request"]["objective"]["alpha"]
    assert reward.objective.states == 0.0, "a price on states needs states that the prior visited"
    with pytest.raises(UsageError, match="a function has no environment to measure it in: name omega and alpha"):
        prior_reward(policy())
    assert "measuring" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="or beside kl_budget alpha alone$"):
        prior_reward(policy(), kl_budget=1.0)
    with pytest.raises(UsageError, match="so it has no states to learn: states 0 goes on$"):
        prior_reward(policy(), 0.1, 0.1, states=0.1, visited=np.zeros((9_000, 4)))


@pytest.mark.parametrize("as_arrays", [False, True])
def test_states_that_the_prior_does_not_visit_cost(as_arrays: bool) -> None:
    reward = prior_reward(policy(), 0.0, 0.0, states=0.5, visited=np.random.default_rng(0).normal(size=(9_000, 4)))
    near, far = torch.zeros(5, 6, 4), torch.full((5, 6, 4), 9.0)
    parts = [part.numpy() if as_arrays else part for part in (*rollout(), near, far)]
    np.testing.assert_array_equal(reward(*parts[:4], parts[4]), parts[2])
    price = reward(*parts[:4], parts[5]) - parts[2]
    assert float(price.max()) < -1.0
    assert reward(*parts[:4], parts[5]).dtype == parts[2].dtype
    ages = np.arange(49, 54).repeat(6).reshape(5, 6) if as_arrays else torch.arange(49, 54).repeat(6, 1).T
    later = reward(*parts[:4], parts[5], ages) - parts[2]
    np.testing.assert_array_equal(later[:2], 0.0 * price[:2])  # until age 50 a state is where the episode began
    np.testing.assert_array_equal(later[2:], price[2:])
    ends = ages == 50
    fallen = reward(*parts[:4], parts[5], ages, ends) - parts[2]
    np.testing.assert_allclose(fallen, later + 100.0 * ends * price, rtol=1e-5)  # a last state, as if it lasted
    whole = np.ones((5, 6), int) if as_arrays else torch.ones(5, 6, dtype=torch.int)
    np.testing.assert_allclose(reward(*parts[:2], whole, parts[3], parts[5]) - 1.0, price, atol=1e-6)
    with pytest.raises(UsageError, match="the function takes next_observations as well"):
        reward(*parts[:4])
    with pytest.raises(UsageError, match="visited is missing"):
        prior_reward(policy(), 0.1, 0.1, states=0.5)


SHORT = {0: torch.zeros(5, 4), 1: torch.zeros(5, 2), 4: torch.zeros(5, 4)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: torch.randn(5, 6, 1)}, r"observations have the shape \(5, 6, 1\); of each step the policy takes 4"),
        ({4: torch.zeros(6, 4)}, r"next_observations have the shape \(6, 4\) and observations \(5, 6, 4\)"),
        ({4: torch.zeros(5, 6, 1)}, "next_observations have the shape"),
        ({3: torch.zeros(5, 6, 1)}, r"log-probabilities have the shape \(5, 6, 1\) and rewards \(5, 6\)"),
        ({1: torch.zeros(5, 6, 1)}, r"actions have the shape \(5, 6, 1\) .* the policy takes 2 numbers as the action"),
        ({1: torch.zeros(5, 1, 2)}, r"actions have the shape \(5, 1, 2\)"),
        (SHORT, r"the prior's log-probabilities have the shape \(5,\) and rewards \(5, 6\)"),
    ],
)
def test_what_would_be_broadcast_is_refused(change: dict[int, Any], said: str) -> None:
    prior = policy()
    reward = prior_reward(prior, 0.3, 0.1, states=0.5, visited=torch.randn(9_000, 4))
    parts = dict(enumerate((*rollout(), torch.zeros(5, 6, 4))))
    assert reward(*parts.values()).shape == (5, 6)
    reward(*(parts | {2: torch.ones(5, 6, dtype=torch.long)}).values())
    assert reward.parts["task"] == 1.0
    with pytest.raises(UsageError, match=said):
        reward(*(parts | change).values())


@pytest.mark.parametrize("visited", [torch.randn(10, 4), torch.randn(9_000, 3), torch.full((9_000, 4), torch.nan)])
def test_of_states_that_cannot_be_learned_from_the_wanted_shape_is_told(visited: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"visited .* it must be finite observations \[M, 4\], 6,400 or more"):
        prior_reward(policy(), 0.3, 0.1, states=0.5, visited=visited)


def test_choices_may_come_without_an_axis_of_their_own() -> None:
    prior = policy(discrete=True)
    observations, _, rewards, log_policy = rollout()
    actions = torch.randint(0, 3, (5, 6))
    found = prior_reward(prior, 1.0, 0.0)(observations, actions, rewards, log_policy)
    torch.testing.assert_close(found, rewards + prior.log_prob(observations, actions[..., None]))


def test_choices_that_the_prior_does_not_have_are_one_sentence() -> None:
    observations, _, rewards, log_policy = rollout()
    reward = prior_reward(policy(discrete=True), 1.0, 0.0)
    for wrong in (3, -1):
        actions = torch.randint(0, 3, (5, 6))
        actions[2, 3] = wrong
        for given in (actions, actions.numpy()):
            with pytest.raises(UsageError, match=rf"actions go from .*{wrong}.*; the policy has choices 0 to 2"):
                reward(observations, given, rewards, log_policy)


def test_a_prior_of_ones_own_gets_what_is_given() -> None:
    mine = SimpleNamespace(log_prob=lambda observations, actions: -(actions**2).sum(-1))
    _, actions, rewards, log_policy = (part.numpy() for part in rollout())
    found = prior_reward(mine, 2.0, 1.0)("any observations", actions, rewards, log_policy)
    np.testing.assert_allclose(found, rewards - 2.0 * (actions**2).sum(-1) - log_policy, rtol=1e-6)


@pytest.mark.parametrize("named", [True, False])
def test_a_policy_with_a_dial_is_no_prior(tmp_path: Path, named: bool) -> None:
    prior = ConditionedPolicy(policy().spec, [Dial("omega", 0.1, 1.0)])
    save_policy(tmp_path / "dialed.safetensors", prior, {})
    with pytest.raises(UsageError, match="the prior is one for every omega from 0.1 to 1, so it must be told which"):
        prior_reward(str(tmp_path / "dialed.safetensors") if named else prior, 0.3, 0.2)


def test_a_squashed_policy_is_no_prior_of_actions_that_an_environment_gets() -> None:
    squashed = Policy(replace(policy().spec, family="squashed"))
    with pytest.raises(UsageError, match="the prior's actions pass through tanh"):
        prior_reward(squashed, 0.3, 0.2)
    *parts, rewards, log_policy = rollout()
    found = prior_reward(SimpleNamespace(log_prob=squashed.log_prob), 0.3, 0.2)(*parts, rewards, log_policy)
    torch.testing.assert_close(found, rewards + 0.3 * squashed.log_prob(*parts) - 0.2 * log_policy)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_another_librarys_file_lacks_is_asked_for_as_python_gives_it(tmp_path: Path) -> None:
    """`--temperature` would be of the command line; here it stands beside the path, as YAML can write it."""
    sb3, gymnasium = pytest.importorskip("stable_baselines3"), pytest.importorskip("gymnasium")
    sb3.DQN("MlpPolicy", gymnasium.make("CartPole-v1"), buffer_size=10, device="cpu").save(tmp_path / "dqn.zip")
    with pytest.raises(UsageError, match=r"give a temperature; give it beside the path: prior={'path': FILE, "):
        prior_reward(tmp_path / "dqn.zip", 0.3, 0.2)
    with pytest.raises(UsageError, match="no probabilities: give a temperature$"):
        load_policy(tmp_path / "dqn.zip")
    with pytest.raises(UsageError, match="leave std out$"):
        prior_reward({"path": tmp_path / "dqn.zip", "temperature": 0.5, "std": 0.2, "vecnormalize": "none"}, 0.3, 0.2)
    reading: Any = {"temperature": 0.5, "vecnormalize": "none"}
    with pytest.warns(UserWarning, match=r"observations are not normalized \(vecnormalize is none\)"):
        found = prior_reward({"path": tmp_path / "dqn.zip"} | reading, 0.3, 0.2)
    same = prior_reward(load_policy(tmp_path / "dqn.zip", **reading), 0.3, 0.2)
    parts = torch.randn(5, 4), torch.randint(0, 2, (5,)), torch.randn(5), torch.randn(5)
    assert torch.equal(found(*parts), same(*parts))
    for wrong, said in (({"std": 0.2}, "names no path"), ({"path": "x", "sdt": 1}, "has sdt; as a mapping it takes")):
        with pytest.raises(UsageError, match=said):
            prior_reward(wrong, 0.3, 0.2)
    assert in_python_terms("such as --std 0.2, or --vecnormalize none") == "such as std=0.2, or vecnormalize='none'"


def test_a_graph_that_gives_a_mean_is_a_prior(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="it runs as it is"):
        reward = prior_reward({"path": sine(tmp_path / "a.pt", 1.0, 4), "std": 0.5, "trust": True}, 0.3, 0.2)
    parts = observations, actions, rewards, log_policy = rollout()
    log_prior = torch.distributions.Normal(torch.sin(observations[..., :2]), 0.5).log_prob(actions).sum(-1)
    expected = rewards + 0.3 * log_prior - 0.2 * log_policy
    torch.testing.assert_close(reward(*parts), expected)
    np.testing.assert_allclose(reward(*(part.numpy() for part in parts)), expected.numpy(), rtol=1e-5)


class Robots(SimpleNamespace):
    """What a term sees of an environment; an environment of Isaac Lab can be a key, too."""

    __hash__ = object.__hash__


@pytest.mark.parametrize(("wish", "name"), [(ActionRate, "action_rate"), (Jerk, "jerk")])
def test_a_term_pays_what_the_engine_pays(wish: Any, name: str) -> None:
    actions = np.random.default_rng(0).normal(size=(12, 3, 2)).astype(np.float32)
    lengths = np.arange(1, 13)[:, None] - np.array([0, 4, 7])  # in the middle of an episode the first steps are, too
    lengths = np.where(lengths > 0, lengths, lengths + 20)
    pays, sent = term(wish, lambda env: (env.action_manager.action,)), torch.empty(3, 2)
    for _ in range(2):  # another environment begins anew
        env = Robots(action_manager=SimpleNamespace(action=sent), common_step_counter=0)
        found = []
        for t in range(12):
            sent.copy_(torch.from_numpy(actions[t]))  # in place, as both do it
            env.episode_length_buf = torch.from_numpy(lengths[t])
            env.common_step_counter += 1
            found.append(pays(env))
            assert torch.equal(pays(env), found[-1]), "a limit may read it after the reward did"
        nothing = np.zeros((12, 3, 1), np.float32)
        steps = Transitions(nothing, actions, nothing, {}, AddonState(lengths == 1, {}))
        expected = combine_addons([name]).reward(steps)
        np.testing.assert_allclose(torch.stack(found), expected, rtol=1e-5)
        assert np.count_nonzero(expected[0]) == 0


def test_a_term_with_two_settings_remembers_the_steps_of_each() -> None:
    pays = term(ActionRate, lambda env, joint: (env.angles[:, [joint]],))
    first, second = 0, 1  # as the params of two terms in a manager
    env = Robots(angles=torch.zeros(1, 2), episode_length_buf=torch.tensor([1]), common_step_counter=0)
    found = []
    for angles in ([1.0, 5.0], [2.0, 8.0]):
        env.angles = torch.tensor([angles])
        env.common_step_counter += 1
        found.append([pays(env, joint=first).item(), pays(env, joint=second).item()])
        env.episode_length_buf = torch.tensor([2])
    assert found == [[0.0, 0.0], [-1.0, -9.0]]


class Traced(np.ndarray):
    """Stands for an array whose numbers JAX does not know while it compiles."""


def test_while_jax_compiles_a_budget_is_refused_and_outside_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(core=SimpleNamespace(Tracer=Traced)))
    prior = SimpleNamespace(log_prob=lambda observations, actions: -np.square(actions).sum(-1))
    parts = [part.numpy() for part in rollout()]
    traced = [part.view(Traced) for part in parts]
    plain, moved = prior_reward(prior, 0.3, 0.3), prior_reward(prior, 0.3, 0.3, kl_budget=0.2)
    np.testing.assert_array_equal(plain(*traced), plain(*parts))
    for refused in (moved, prior_reward(policy(), 0.3, 0.3)):
        with pytest.raises(UsageError, match="inside jax.jit or vmap the prior must be a function in JAX, without kl_"):
            refused(*traced)
    moved(*parts)
    assert moved.objective.omega != 0.3


@partial(term, Jerk)
def jerk(env: Any) -> tuple[torch.Tensor]:
    return (env.action_manager.action,)


def test_a_term_is_found_by_the_name_that_isaac_lab_writes() -> None:
    assert load_object(f"{jerk.__module__}:{jerk.__qualname__}", "term") is jerk
