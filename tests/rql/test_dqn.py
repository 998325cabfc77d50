"""ResidualDQN against residual soft value iteration, solved exactly."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from known_problems import Picture, Table, Walk, WithoutReward, add_on, wild_prior
from torch import Tensor, nn

from repolicy.errors import NumericError, RepolicyError, UsageError
from repolicy.exact import Solution, soft_optimal, solve_residual
from repolicy.objective import Objective, full, residual, soft
from repolicy.policies.file import save_policy
from repolicy.priors.opening import read_policy
from repolicy.rql import ResidualDQN, Settings, customize, customizing
from repolicy.rql.wrapping import TaskReward, training_env

STATES = torch.eye(3)
QUICK = Settings(
    steps=3_000, gamma=Walk.discount, learning_rate=1e-2, minibatch=64, warmup=100, train_every=4, tau=0.1, hidden=(16,)
)
RESIDUAL = residual(omega=0.7, alpha=0.3)


def exact(objective: Objective) -> tuple[Solution, Tensor]:
    """The optimum of an objective on the walk, and the prior that it starts from."""
    prior = soft_optimal(Walk.process(), alpha=0.5).log_policy
    return solve_residual(Walk.process(), objective, prior), prior


def with_q(model: Any, q: Tensor) -> Any:
    """The model with a table `[S, A]` in the place of both networks."""
    table = nn.Linear(3, 2, bias=False)
    table.weight.data = q.T.float()
    table.set_training_mode = table.train
    model.policy.q_net = model.policy.q_net_target = model.q_net = model.q_net_target = table
    return model


def moved(model: Any) -> Any:
    """The model, its Q_R being no longer 0."""
    nn.init.normal_(model.q_net.q_net[-1].weight)
    return model


def every_transition(reward: np.ndarray) -> SimpleNamespace:
    """The six transitions of the walk, as Stable-Baselines3 hands them out."""
    states, actions = np.divmod(np.arange(6), 2)
    return SimpleNamespace(
        observations=STATES[states],
        actions=torch.tensor(actions)[:, None],
        rewards=torch.tensor(reward[states, actions], dtype=torch.float32)[:, None],
        next_observations=STATES[Walk.goes[states, actions]],
        dones=torch.zeros(6, 1),
    )


# Targets and policy ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("objective", [RESIDUAL, residual(0.2, 1.5)])
def test_the_exact_residual_q_is_its_own_target(objective: Objective) -> None:
    solution, prior = exact(objective)
    model = with_q(ResidualDQN(Walk(), objective, Table(prior), QUICK), solution.q)
    batch = every_transition(Walk.addon)
    torch.testing.assert_close(model.targets(batch).view(3, 2), solution.q.float(), atol=1e-5, rtol=0)
    distribution = model.policy.distribution(STATES)
    torch.testing.assert_close(distribution.log_probs[0], solution.log_policy.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("objective", [soft(0.5), full(0.2)])
def test_without_omega_it_is_soft_q_learning(objective: Objective) -> None:
    process = Walk.process()
    reward = process.task(objective)
    solution = soft_optimal(process.with_reward(reward), objective.alpha)
    model = with_q(ResidualDQN(Walk(), objective, settings=QUICK), solution.q)
    targets = model.targets(every_transition(reward.numpy()))
    torch.testing.assert_close(targets.view(3, 2), solution.q.float(), atol=1e-5, rtol=0)


def test_nothing_follows_a_terminal_step() -> None:
    batch = every_transition(Walk.addon)
    batch.dones[:] = 1.0
    model = ResidualDQN(Walk(), RESIDUAL, Table(exact(RESIDUAL)[1]), QUICK)
    assert torch.equal(model.targets(batch), batch.rewards)


def test_it_acts_by_its_softmax_and_nothing_else() -> None:
    """Also at the very first step, also while learning: no ε, no greedy choice, no random warm-up."""
    solution, prior = exact(RESIDUAL)
    model = with_q(ResidualDQN(Walk(), RESIDUAL, Table(prior), QUICK), solution.q)
    seen = np.repeat(np.eye(3, dtype=np.float32), 4000, axis=0)
    model._last_obs = seen
    for acted in (model.predict(seen)[0], model._sample_action(learning_starts=1000, n_envs=len(seen))[0]):
        shares = acted.reshape(3, 4000).mean(1)
        np.testing.assert_allclose(shares, solution.policy[:, 1], atol=0.03)
    best, _ = model.predict(np.eye(3, dtype=np.float32), deterministic=True)
    assert best.tolist() == solution.policy.argmax(-1).tolist()


@pytest.mark.parametrize(("objective", "paid"), [(RESIDUAL, Walk.addon), (soft(0.5), Walk.basic)])
def test_another_environment_pays_the_objectives_task_too(objective: Objective, paid: np.ndarray) -> None:
    model = ResidualDQN(Walk(), objective, wild_prior(), replace(QUICK, hidden=(8, 8)))
    model.learn(20)
    model.set_env(Walk())
    model.learn(60, reset_num_timesteps=False)
    remembered = model.replay_buffer.rewards[: model.replay_buffer.size()]
    assert np.isin(remembered, paid.astype(np.float32)).all()


# Learning -------------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_what_it_learns_is_the_exact_residual_q() -> None:
    """From the add-on alone: customizing reads no basic reward."""
    solution, prior = exact(RESIDUAL)
    model = ResidualDQN(WithoutReward(), RESIDUAL, Table(prior), QUICK)
    model.learn(QUICK.steps)
    with torch.no_grad():
        torch.testing.assert_close(model.q_net(STATES), solution.q.float(), atol=0.02, rtol=0)
        found = model.policy.distribution(STATES).log_probs[0]
    torch.testing.assert_close(found, solution.log_policy.float(), atol=0.05, rtol=0)


def test_it_begins_as_the_prior_to_the_power_omega_over_alpha() -> None:
    """However small alpha is: a random Q_R, divided by it, would be another policy."""
    prior, seen = wild_prior(), torch.randn(50, 3)
    model = ResidualDQN(Walk(), residual(omega=0.01, alpha=0.005), prior, Settings(hidden=(8, 8)))
    with torch.no_grad():
        wanted = (2.0 * prior(seen).log_probs[0]).log_softmax(-1)
        torch.testing.assert_close(model.as_policy()(seen).log_probs[0], wanted, atol=1e-5, rtol=1e-5)
        assert not model.q_net_target(seen).any()


def test_a_rare_large_penalty_counts_as_its_mean() -> None:
    """Of a hundred steps two cost 200: their median is 0, and what they are worth is −4."""
    model = ResidualDQN(Walk(), RESIDUAL, Table(exact(RESIDUAL)[1]), replace(QUICK, warmup=10_000))
    model.learn(100)
    steps = model.replay_buffer
    steps.rewards[:100, 0] = np.where(np.arange(100) % 50 == 3, -200.0, 0.0)
    steps.dones[:100] = 1.0
    steps.observations[:100] = steps.observations[0]
    steps.actions[:100] = 1
    model.train(800, batch_size=64)
    with torch.no_grad():
        found = model.q_net(torch.as_tensor(steps.observations[0]))[0, 1]
    assert found == pytest.approx(-4.0, rel=0.25)


def test_an_image_is_seen_as_any_other_observation() -> None:
    """Stable-Baselines3 would move its axes and divide it by 255, and prior and policy take it as it is."""
    env = Picture(Walk())
    model = moved(ResidualDQN(env, soft(0.5), None, Settings(hidden=(8, 8), warmup=100)))
    model.learn(20)
    images = np.stack([env.observation(state) for state in np.eye(3)])
    remembered = model.replay_buffer.observations[:20, 0]
    assert all((images == image).all((1, 2, 3)).any() for image in remembered)
    seen, _ = model.policy.obs_to_tensor(images)
    saved = model.as_policy()(torch.from_numpy(images).flatten(1).float())
    torch.testing.assert_close(model.policy.distribution(seen).log_probs, saved.log_probs)
    assert TaskReward(env, soft(0.5)).observation_space == env.observation_space, "hosts have policies for images"


@pytest.mark.parametrize(
    ("broken", "what"), [("addon", "a reward"), ("step", "an observation"), ("reset", "an observation")]
)
def test_what_is_no_number_is_not_remembered(monkeypatch: pytest.MonkeyPatch, broken: str, what: str) -> None:
    right = getattr(Walk, broken)

    def wrong(*given: Any, **named: Any) -> Any:
        seen, *others = right(*given, **named)
        return seen * np.nan, *others

    model = ResidualDQN(Walk(), RESIDUAL, Table(exact(RESIDUAL)[1]), QUICK)
    monkeypatch.setattr(Walk, broken, np.full((3, 2), np.nan) if broken == "addon" else wrong)
    with pytest.raises(NumericError, match=f"^environment Walk returned {what} that is not finite$"):
        model.learn(20)


@pytest.mark.parametrize("objective", [soft(0.5), RESIDUAL])
def test_a_reward_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch, objective: Objective) -> None:
    right = Walk.step
    monkeypatch.setattr(Walk, "step", lambda self, action: (right(self, action)[0], None, *right(self, action)[2:]))
    with pytest.raises(RepolicyError, match=r"^environment 'Walk' returns the reward None, which is no real number$"):
        ResidualDQN(Walk(), objective, Table(exact(RESIDUAL)[1]), QUICK).learn(20)


def test_the_return_of_an_episode_is_not_rounded_to_nothing_where_rewards_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Walk, "addon", 1e-8 * Walk.addon)
    env = training_env(Walk(), residual(0.5, 0.5), 0.9)
    env.reset(seed=0)
    rewards, cut = [], False
    while not cut:
        _, reward, _, cut, info = env.step(0)
        rewards.append(reward)
    assert info["episode"]["r"] == pytest.approx(sum(rewards), rel=1e-12)
    assert sum(rewards) > 0.0


def test_a_loss_that_is_no_number_is_not_learnt_from() -> None:
    model = ResidualDQN(Walk(), RESIDUAL, Table(exact(RESIDUAL)[1]), QUICK)
    model.learn(QUICK.warmup)
    model.prior.log_probs *= torch.nan
    before = [parameter.clone() for parameter in model.q_net.parameters()]
    with pytest.raises(NumericError, match=r"^the loss of Q_R is not finite: lower the learning rate"):
        model.train(1)
    assert all(torch.equal(*pair) for pair in zip(before, model.q_net.parameters(), strict=True))


# Files ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_saved_policy_is_the_one_that_acted_and_needs_no_other_file(tmp_path: Path, activation: str) -> None:
    save_policy(tmp_path / "prior.safetensors", wild_prior(activation=activation), {})
    prior = read_policy(tmp_path / "prior.safetensors").policy
    model = ResidualDQN(Walk(), RESIDUAL, prior, Settings(steps=150, warmup=50, hidden=(16, 4)))
    model.learn(150)
    model.save(tmp_path / "policy.safetensors", {"seed": 3})
    (tmp_path / "prior.safetensors").unlink()
    saved = read_policy(tmp_path / "policy.safetensors")
    seen = torch.randn(50, 3)
    with torch.no_grad():
        wanted = model.policy.distribution(seen).log_probs[0]
        torch.testing.assert_close(saved.policy(seen).log_probs[0], wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - prior(seen).log_probs[0]).abs().max() > 0.05  # it is not the prior
    assert saved.card == {"seed": 3}
    actions = torch.randint(2, (50, 1))
    assert torch.equal(saved.prior.log_prob(seen, actions), prior.log_prob(seen, actions))


@pytest.mark.parametrize("changed", [{"activation": "gelu"}, {"norms": ("", "after")}, {"hidden": ()}])
def test_a_prior_that_cannot_stand_beside_its_residual_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ResidualDQN takes a prior with hidden layers of .* and without LayerNorms"):
        ResidualDQN(Walk(), RESIDUAL, wild_prior(**changed), Settings(hidden=(8, 8)))


def test_a_prior_that_sees_far_observations_is_saved_as_it_acts() -> None:
    model = moved(ResidualDQN(Walk(), RESIDUAL, wild_prior(observation_bound=None), Settings(hidden=(8, 8))))
    far = 100.0 * torch.randn(50, 3)
    with torch.no_grad():
        wanted = model.policy.distribution(far).log_probs[0]
        torch.testing.assert_close(model.as_policy()(far).log_probs[0], wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"hidden": (8,)}, "the prior has 2 hidden layers: name as many"),
        ({"noise": 0.3}, "noise is for actions that are numbers"),
        ({"warmup": 4_000}, "nothing would be learned"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_are_looked_for(
    changed: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(customizing, "decide", lambda *_: pytest.fail("weights were looked for"))
    settings = replace(QUICK, **{"hidden": (8, 8)} | changed)
    with pytest.raises(UsageError, match=sentence):
        customize(wild_prior(), residual(), tmp_path / "q", settings, addon=add_on, env=Walk)


def test_a_customization_resumed_with_other_settings_is_not_told_of_an_option_that_rql_does_not_have(
    tmp_path: Path,
) -> None:
    prior, settings = wild_prior(), replace(QUICK, steps=200, hidden=(8, 8))
    asked: dict[str, Any] = {"addon": add_on, "env": Walk}
    customize(prior, RESIDUAL, tmp_path / "q", settings, **asked)
    with pytest.raises(UsageError, match=r"cannot be resumed with other settings: steps was 200 and is now 300$"):
        customize(prior, RESIDUAL, tmp_path / "q", replace(settings, steps=300), resume=True, **asked)
