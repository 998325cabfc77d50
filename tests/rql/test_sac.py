"""ResidualSAC against a problem whose optimum is known: one step, quadratic, beside a Gaussian prior, with tanh or not.

The optimum is proportional to (prior^ω · e^Q)^(1/α). With Q = −c·(u − goal)² + (ω − α)·log tanh′(u), whose last term
makes up for the Jacobians that do not cancel where ω and α differ, it is Gaussian before tanh. Without tanh there is no
such term. Then Q + ω·log prior − α·log policy is one number, the soft value, whatever the action.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import tiny_envs
import torch
from known_problems import ACTIONS, Bounded, constant
from tiny_envs import Told, tiny
from torch import Tensor, nn

from repolicy.errors import NumericError, RepolicyError, UsageError
from repolicy.evaluation import evaluate
from repolicy.objective import Objective, greedy, kl, residual, soft
from repolicy.policies.density import fit_density
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.normalizer import Normalizer, moment_sums
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.prepare.states import SKIPPED_STEPS
from repolicy.priors.opening import read_policy
from repolicy.rql import ResidualSAC, Settings
from repolicy.rql.algorithms import _noise
from repolicy.rql.wrapping import StatesPrice, TaskReward, WithAddon, normalizer_for, training_env

MEAN, STD = 0.3, 0.5  # of the prior, before tanh
CURVATURE, GOAL = 0.7, 0.9
FAMILIES = ("state_squashed", "state_gaussian")
OBJECTIVES = [kl(0.4), residual(0.5, 0.3), residual(0.2, 0.6)]


class Quadratic(nn.Module):
    """Two critics, the second of which is above the first: only the smaller one counts."""

    def __init__(self, objective: Objective, squashes: bool) -> None:
        super().__init__()
        self.excess, self.squashes = objective.omega - objective.alpha, squashes

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        if self.squashes:
            q = -CURVATURE * (torch.atanh(actions) - GOAL).square() + self.excess * torch.log1p(-actions.square())
        else:
            q = -CURVATURE * (2.0 + 4.0 * actions - GOAL).square()
        return q, q + 1.0


def optimum(objective: Objective) -> tuple[float, float, float]:
    """(mean, std, soft value) by completing the square, in plain numbers."""
    share = objective.omega / objective.alpha
    precision = share / STD**2 + 2 * CURVATURE / objective.alpha
    mean = (share * MEAN / STD**2 + 2 * CURVATURE * GOAL / objective.alpha) / precision
    peak = -share * (mean - MEAN) ** 2 / (2 * STD**2) - CURVATURE * (mean - GOAL) ** 2 / objective.alpha
    log_z = peak - share * math.log(STD * math.sqrt(2 * math.pi)) + 0.5 * math.log(2 * math.pi / precision)
    return mean, precision**-0.5, objective.alpha * log_z


def solved(objective: Objective, actor: Policy | None = None, family: str = "state_squashed") -> Any:
    """A model with the true Q, whose actor is the optimum or the one given."""
    mean, std, _ = optimum(objective)
    model = ResidualSAC(Bounded(), objective, constant(MEAN, STD, family))
    model.critic = model.critic_target = Quadratic(objective, squashes=family == "state_squashed")
    model.actor.policy = actor or constant(mean, std, family)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_at_the_optimum_target_and_loss_are_the_soft_value(objective: Objective, family: str) -> None:
    """Exactly, for every action that was drawn: there is no noise left."""
    model, (_, _, value) = solved(objective, family=family), optimum(objective)
    seen = torch.rand(500, 1)
    batch = SimpleNamespace(next_observations=seen, rewards=torch.full((500, 1), 2.0), dones=torch.zeros(500, 1))
    targets = model.targets(batch)
    torch.testing.assert_close(targets, torch.full((500, 1), 2.0 + model.gamma * value), atol=2e-3, rtol=0)
    torch.testing.assert_close(model.actor_loss(seen), torch.tensor(-value), atol=1e-3, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_actor_finds_the_optimum(family: str) -> None:
    """Which it would not if the gradient stopped at the action that the prior is asked about."""
    objective = OBJECTIVES[1]
    actor = constant(-0.5, 0.6, family)
    model = solved(objective, actor, family)
    optimizer = torch.optim.Adam(actor.parameters(), 0.02)
    for step in range(500):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 500)
        optimizer.zero_grad()
        model.actor_loss(torch.rand(256, 1)).backward()
        optimizer.step()
    mean, std, _ = optimum(objective)
    with torch.no_grad():
        found = actor(torch.zeros(1, 1))
    np.testing.assert_allclose([found.mean.item(), found.log_std.exp().item()], [mean, std], atol=0.02)


@pytest.mark.parametrize("family", ["gaussian", "state_gaussian", "squashed"])
def test_the_actor_begins_as_its_prior(family: str) -> None:
    prior = Policy(PolicySpec(1, ACTIONS, family, (8,), initial_std=0.4))
    begun = ResidualSAC(Bounded(), kl(0.4), prior).as_policy()
    seen, actions = torch.rand(20, 1), torch.randn(20, 1)
    assert torch.equal(begun.log_prob(seen, actions), prior.log_prob(seen, actions))


def test_a_prior_that_is_no_policy_needs_an_actor_and_stays_out_of_the_file(tmp_path: Path) -> None:
    class Mine:
        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            return -actions.square().sum(-1)

    with pytest.raises(UsageError, match="the actor cannot begin as a Mine"):
        ResidualSAC(Bounded(), kl(0.4), Mine())
    given = frozen(constant(MEAN, STD))  # as a file's is, too
    model = ResidualSAC(Bounded(), kl(0.4), Mine(), Settings(steps=8, warmup=4, hidden=(4,)), actor=given)
    model.learn(8)
    assert not torch.equal(model.as_policy()(torch.zeros(1, 1)).mode(), given(torch.zeros(1, 1)).mode())
    assert torch.equal(given(torch.zeros(1, 1)).mode(), constant(MEAN, STD)(torch.zeros(1, 1)).mode())
    model.save(tmp_path / "mine.safetensors")
    saved = read_policy(tmp_path / "mine.safetensors")
    assert saved.prior is None
    assert torch.equal(saved.policy(torch.zeros(1, 1)).mode(), model.as_policy()(torch.zeros(1, 1)).mode())


def test_actions_are_within_one_where_the_bounds_are() -> None:
    """Those of a Gaussian are cut; what is beyond a bound has no gradient from the critics."""
    env = Bounded()
    env.action_space = gymnasium.spaces.Box(np.array([[-2.0], [0.0]]), np.array([[6.0], [1.0]]), dtype=np.float64)
    space = ActionSpace("continuous", (2,), (-2.0, 0.0), (6.0, 1.0))
    model = ResidualSAC(env, kl(0.4), constant(1.0, 0.5, "state_gaussian", space))
    actions = torch.tensor([[2.0, 0.75], [6.0, 0.0], [7.0, -0.5]], requires_grad=True)
    within = model.actor.within(actions)
    torch.testing.assert_close(within, torch.tensor([[0.0, 0.5], [1.0, -1.0], [1.0, -1.0]]))
    within.sum().backward()
    torch.testing.assert_close(actions.grad[[0, 2]], torch.tensor([[0.25, 2.0], [0.0, 0.0]]))


@pytest.mark.parametrize("mode", [0.2, -3.0])
def test_a_squashed_prior_of_other_bounds_acts_as_itself(mode: float) -> None:
    env = Bounded()
    env.action_space = gymnasium.spaces.Box(-1.0, 3.0, (1,))
    model = ResidualSAC(env, kl(0.4), constant(mode, 0.5, actions=ActionSpace("continuous", (1,), (-2.0,), (2.0,))))
    seen = np.zeros(1, np.float32)
    sent = max(2.0 * math.tanh(mode), -1.0)  # the environment's own bound
    assert model.predict(seen, deterministic=True)[0] == pytest.approx(sent, abs=1e-6)
    assert model.as_policy().predict(seen)[0].clip(-1.0, 3.0) == pytest.approx(sent, abs=1e-6)


def test_a_policy_without_tanh_acts_as_it_learned_to(tmp_path: Path) -> None:
    """With actions that are cut to the environment's bounds, −2 and 6, also from its file; the prior cuts nothing."""
    prior = constant(9.0, 0.5, "state_gaussian", ActionSpace("continuous", (1,), (-10.0,), (10.0,)))
    model = ResidualSAC(Bounded(), kl(0.4), prior)
    model.save(tmp_path / "policy.safetensors")
    saved, seen = read_policy(tmp_path / "policy.safetensors").policy, np.zeros(1, np.float32)
    for policy, sent in ((prior, 9.0), (model, 6.0), (model.as_policy(), 6.0), (saved, 6.0)):
        assert policy.predict(seen, deterministic=True)[0] == pytest.approx(sent, abs=1e-6)
    assert saved(torch.zeros(1, 1)).mode().item() == pytest.approx(9.0)  # it is scored as sampled


def test_far_out_nothing_blows_up() -> None:
    """Where tanh is ±1 to the bit, policy and prior still agree on what was done."""
    model = ResidualSAC(Bounded(), kl(0.4), constant(12.0, 0.5))
    loss = model.actor_loss(torch.rand(100, 1))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.actor.parameters())
    seen, far = torch.rand(100, 1), torch.full((100, 1), 12.3)
    assert torch.equal(model.log_prior(seen, far), model.actor.policy.log_prob(seen, far))


def test_a_prior_of_ones_own_must_have_a_gradient_in_the_actions() -> None:
    """It gets actions before tanh, and then the loss is that with a policy."""

    class Mine:
        def __init__(self, stops: bool) -> None:
            self.policy, self.stops = constant(MEAN, STD), stops

        def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
            with torch.set_grad_enabled(not self.stops):
                return self.policy(observations).log_prob(actions)

    seen, losses = torch.rand(64, 1), []
    model = solved(OBJECTIVES[1], constant(-0.5, 1.0))
    for prior in (model.prior, Mine(stops=False)):
        model.prior = prior
        torch.manual_seed(1)
        losses.append(torch.autograd.grad(model.actor_loss(seen), [*model.actor.policy.network.parameters()]))
    for ours, own in zip(*losses, strict=True):
        torch.testing.assert_close(own, ours)
    model.prior = Mine(stops=True)
    model.targets(SimpleNamespace(next_observations=seen, rewards=torch.ones(64, 1), dones=torch.ones(64, 1)))
    with pytest.raises(UsageError, match=r"the prior's log_prob has no gradient in the actions, .* without no_grad"):
        model.actor_loss(seen)


def test_the_actor_waits_for_its_critics_and_its_steps_fall_to_nothing() -> None:
    prior = constant(MEAN, STD)
    settings = Settings(steps=100, warmup=20, minibatch=16, critic_warmup=0.6, actor_learning_rate=1e-2)
    model = ResidualSAC(Bounded(), residual(0.5, 0.3), prior, settings)
    before = [parameter.clone() for parameter in model.critic.parameters()]
    model.learn(60)
    assert all(torch.equal(value, prior.state_dict()[name]) for name, value in model.as_policy().state_dict().items())
    assert not all(torch.equal(*pair) for pair in zip(before, model.critic.parameters(), strict=True))
    model.learn(20, reset_num_timesteps=False)
    assert model.actor.optimizer.param_groups[0]["lr"] == pytest.approx(2e-3)
    model.learn(20, reset_num_timesteps=False)
    assert model.actor.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert not torch.equal(model.actor.policy.network.biases[-1], prior.network.biases[-1])


def test_states_that_the_prior_does_not_know_have_their_price_unless_an_episode_begins_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prior's lie within some hundredths of 0; what `Bounded` shows lies between −1 and 1."""
    normalizer = Policy(PolicySpec(1, ACTIONS)).normalizer
    density, objective = fit_density(0.01 * torch.randn(5000, 1), normalizer), residual(0.5, 0.3, states=2.0)
    envs = TaskReward(Bounded(), objective), StatesPrice(TaskReward(Bounded(), objective), 2.0, density, 0.9)
    for env in envs:
        env.reset(seed=0)
    prices = []
    for age in range(1, 3 * SKIPPED_STEPS):
        (seen, free, *_), (other, paid, *_) = (env.step(np.ones(1)) for env in envs)
        assert seen == other
        price = 2.0 * float(density.familiarity(density.normalized(torch.from_numpy(seen)[None])))
        assert paid - free == pytest.approx(price if age > SKIPPED_STEPS else 0.0, abs=1e-5)
        prices.append(price)
    assert min(prices) < -1.0
    for env in envs:
        env.reset(seed=1)
    for _ in range(SKIPPED_STEPS - 1):
        assert len({env.step(np.ones(1))[1] for env in envs}) == 1
    monkeypatch.setattr(Bounded, "step", lambda *_: (np.ones(1, np.float32), 0.0, True, False, {"addon_reward": 0.0}))
    (seen, free, *_), (_, paid, *_) = (env.step(np.ones(1)) for env in envs)
    price = 2.0 * float(density.familiarity(density.normalized(torch.from_numpy(seen)[None])))
    assert paid - free == pytest.approx(10.0 * price), "a last state is priced as if it lasted"
    with pytest.raises(UsageError, match=r"no density of the prior's states .* repolicy\.rql\.customize"):
        ResidualSAC(Bounded(), objective, constant(MEAN, STD))


def test_an_episodes_return_is_the_tasks_without_the_price_on_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repolicy.prepare.states.SKIPPED_STEPS", 0)
    density = fit_density(0.01 * torch.randn(5000, 1), Normalizer(1))
    env = training_env(Bounded(), residual(0.5, 0.3, states=2.0), 0.9, density)
    env.reset(seed=0)
    rewards, truncated = [], False
    while not truncated:
        _, reward, _, truncated, info = env.step(np.ones(1))
        rewards.append(reward)
    assert sum(rewards) < 0 < info["episode"]["r"] == len(rewards)


@pytest.mark.parametrize(("broken", "said"), [("targets", "Q_R"), ("actor_loss", "the actor")])
def test_a_loss_that_is_no_number_is_not_learnt_from(monkeypatch: pytest.MonkeyPatch, broken: str, said: str) -> None:
    model = ResidualSAC(Bounded(), kl(0.4), constant(MEAN, STD), Settings(warmup=20, minibatch=16))
    model.learn(20)
    learner = model.critic if broken == "targets" else model.actor
    before, plain = [parameter.clone() for parameter in learner.parameters()], getattr(model, broken)
    monkeypatch.setattr(model, broken, lambda batch: plain(batch) * torch.nan)
    with pytest.raises(NumericError, match=f"^the loss of {said} is not finite"):
        model.train(1)
    assert all(torch.equal(*pair) for pair in zip(before, learner.parameters(), strict=True))


def test_without_a_prior_it_is_sac() -> None:
    """The same batch, the same noise: Stable-Baselines3's own formula, in terms of its own distribution."""
    from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution

    model = ResidualSAC(Bounded(), soft(0.3))
    seen = torch.rand(64, 1)
    torch.manual_seed(1)
    loss = model.actor_loss(seen)
    torch.manual_seed(1)
    found = model.actor.policy(seen)
    theirs = SquashedDiagGaussianDistribution(1).proba_distribution(found.mean, found.log_std)
    actions, log_prob = theirs.log_prob_from_params(found.mean, found.log_std)
    q = torch.cat(model.critic(seen, actions), 1).min(1).values
    torch.testing.assert_close(loss, (0.3 * log_prob - q).mean(), atol=1e-4, rtol=1e-4)


def test_the_prior_and_its_normalizer_do_not_move() -> None:
    prior = constant(MEAN, STD)
    prior.normalizer.update(moment_sums(np.random.default_rng(0).normal(0.5, 0.4, (100, 1)).astype(np.float32)))
    before = frozen(prior).state_dict()
    model = ResidualSAC(Bounded(), residual(0.5, 0.3), prior, Settings(steps=60, warmup=20, minibatch=32))
    model.learn(60)
    for policy in (prior, model.prior):
        assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.prior.parameters())
    assert all(parameter.requires_grad for parameter in prior.parameters())  # the caller's own is left alone
    moved = {name for name, value in model.as_policy().state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not any(name.startswith("normalizer") for name in moved)


def test_bounds_of_an_observation_are_seen_as_one_and_what_has_none_as_it_is() -> None:
    largest = np.finfo(np.float32).max  # is no bound, though it is finite
    low, high = np.float32([-4.0, 2.0, -np.inf, -largest]), np.float32([4.0, 3.0, 5.0, largest])
    normalizer = normalizer_for(gymnasium.spaces.Box(low, high), None)
    seen = torch.tensor([[4.0, 2.0, 5.0, 3.0], [-4.0, 3.0, -70.0, -2.0], [2.0, 2.5, 0.0, 0.0]])
    expected = torch.tensor([[1.0, -1.0, 5.0, 3.0], [-1.0, 1.0, -70.0, -2.0], [0.5, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(normalizer(seen), expected)


def test_exploration_noise_has_the_std_that_was_asked_for_and_keeps_its_direction() -> None:
    """Of many numbers, long after they began at 0; in a step each forgets a twentieth."""
    np.random.seed(0)  # Stable-Baselines3 draws from NumPy's global generator
    noise = _noise(0.3, 100_000)
    for _ in range(200):
        before = noise()
    after = noise()
    assert after.std() == pytest.approx(0.3, rel=0.006)
    assert np.corrcoef(before, after)[0, 1] == pytest.approx(0.95, abs=0.01)


def test_a_saved_policy_is_the_one_that_acted_and_needs_no_other_file(tmp_path: Path) -> None:
    save_policy(tmp_path / "prior.safetensors", constant(MEAN, STD), {})
    prior = read_policy(tmp_path / "prior.safetensors").policy
    model = ResidualSAC(Bounded(), residual(0.5, 0.3), prior, Settings(warmup=20, minibatch=32, noise=0.3))
    model.learn(40)
    model.save(tmp_path / "policy.zip")  # as Stable-Baselines3's callbacks name it
    (tmp_path / "prior.safetensors").unlink()
    with pytest.raises(UsageError, match="load_policy"):
        ResidualSAC.load(tmp_path / "policy.safetensors")
    saved = read_policy(tmp_path / "policy.safetensors")
    seen = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    mine = saved.policy.to_environment(saved.policy(torch.from_numpy(seen)).mode().detach().numpy())
    np.testing.assert_allclose(mine, model.predict(seen, deterministic=True)[0], atol=1e-5)
    actions = torch.linspace(-3, 3, 20)[:, None]
    torch.testing.assert_close(
        saved.prior.log_prob(torch.from_numpy(seen), actions), prior.log_prob(torch.from_numpy(seen), actions)
    )
    assert evaluate(saved.policy, f"{Path(__file__).parent / 'known_problems.py'}:Bounded", 2).lengths.sum() > 0


# Add-ons are told the actions that the environment got, as by every other way to train --------------------------------
SETTINGS = Settings(steps=20, warmup=5, hidden=(4,), minibatch=4, gradient_steps=1)


@pytest.mark.parametrize(("actions", "noise"), [("double", 0.0), ("matrix", 0.0), ("matrix", 0.3)])
def test_add_ons_see_the_actions_that_the_environment_got(actions: str, noise: float) -> None:
    settings = replace(SETTINGS, noise=noise)
    ResidualSAC(WithAddon(Told(actions), tiny("was_told")), greedy(0.1), None, settings).learn(20)


def test_an_environment_may_change_its_arrays_in_place() -> None:
    class OneBuffer(Bounded):
        seen = np.zeros(1, np.float32)

        def reset(self, **options: Any) -> Any:
            self.seen[:] = 0.0
            return self.seen, {}

        def step(self, action: Any) -> Any:
            self.seen += 0.25
            action += 9.0
            return self.seen, 0.0, False, self.seen[0] >= 1.0, {}

    for addon in (f"{Path(__file__)}:gained", gained):
        env = WithAddon(OneBuffer(), addon)
        env.reset()
        assert [env.step(np.zeros(1))[-1]["addon_reward"] for _ in range(3)] == [0.25] * 3
    env = WithAddon(OneBuffer(), lambda observations, actions, next_observations, info: actions[:, 0])
    env.reset()
    assert env.step(np.zeros(1))[-1]["addon_reward"] == 0.0
    model = ResidualSAC(OneBuffer(), soft(0.1), None, SETTINGS)
    model.learn(8)
    assert model.replay_buffer.next_observations[:8].ravel().tolist() == [0.25, 0.5, 0.75, 1.0] * 2


def test_switches_are_whole_numbers_that_do_not_overflow() -> None:
    env = WithAddon(Bounded(), lambda observations, actions, next_observations, info: (100 * actions * 2)[:, 0])
    env.reset()
    assert env.step(np.ones(1, np.int8))[-1]["addon_reward"] == 200.0


def test_an_add_on_beside_a_dict_is_one_sentence() -> None:
    env = Bounded()
    env.observation_space = gymnasium.spaces.Dict({"seen": env.observation_space})
    with pytest.raises(UsageError, match="observations have parts, and an add-on takes rows of numbers"):
        WithAddon(env, gained)


def gained(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    return (next_observations - observations)[:, 0]


def test_an_environment_that_ends_the_program_is_a_failure() -> None:
    env = WithAddon(tiny_envs.Quits(), tiny("first"))
    with pytest.raises(RepolicyError, match=r"^environment .* failed: it called sys.exit\(0\)$"):
        ResidualSAC(env, greedy(0.1), None, SETTINGS).learn(20)
