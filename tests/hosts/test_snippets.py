"""The page's code does what the page says, on the real packages where they are installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import fenced, section

from repolicy import Policy, load_policy
from repolicy.hosts.prior_reward import prior_reward
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import PolicySpec


def code(heading: str) -> str:
    """The first block of code under a heading."""
    return fenced(section("adapters.md", heading))[0]


def pendulum_prior() -> Policy:
    return Policy(PolicySpec(3, ActionSpace("continuous", (1,), (-2.0,), (2.0,)), hidden=(8,)))


@pytest.mark.usefixtures("_few_episodes")
def test_rsl_rls_settings_are_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rsl_rl")
    from runners import runner

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code("rsl_rl, Isaac Lab and mjlab"), names)
    path = Path(names["algorithm"]["prior"])
    path.parent.mkdir(parents=True)
    runner().save(str(path))
    started = runner(algorithm=names["algorithm"])
    started.learn(1)
    assert started.alg.steering.objective.is_set, "all weights were measured"


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    exec(code("Stable-Baselines3"), {})
    assert load_policy("customized.safetensors").spec.observation_size == 17
    assert Path("customized.zip").exists()


def test_cleanrl() -> None:
    """The names and shapes of CleanRL's script; its package does not install on the Pythons that we support."""
    prior = pendulum_prior()
    obs, actions = torch.randn(16, 4, 3), torch.randn(16, 4, 1)
    names = {"rewards_of": prior_reward(prior, 0.2, 0.1), "obs": obs, "actions": actions}
    names |= {"rewards": torch.zeros(16, 4), "logprobs": torch.ones(16, 4)}
    exec(code("CleanRL"), names)
    torch.testing.assert_close(names["rewards"], 0.2 * prior.log_prob(obs, actions) - 0.1)


@pytest.mark.filterwarnings("ignore")
def test_torchrl() -> None:
    pytest.importorskip("torchrl", reason="torchrl is not installed; its lines of the page were not run")
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torch import nn
    from torchrl.envs import GymEnv
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, ValueOperator
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(
        TensorDictSequential(module),
        in_keys=["loc", "scale"],
        distribution_class=lambda loc, scale: torch.distributions.Independent(
            torch.distributions.Normal(loc, scale), 1
        ),
        return_log_prob=True,
    )
    data = GymEnv("Pendulum-v1").rollout(10, actor)
    critic = ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.0, lmbda=0.0, value_network=critic)
    prior, before = pendulum_prior(), data["next", "reward"].clone()
    names = {"rewards_of": prior_reward(prior, 0.2, 0.1), "data": data, "advantage": advantage}
    exec(code("TorchRL"), names)
    log_prior = prior.log_prob(data["observation"], data["action"])
    expected = before + (0.2 * log_prior - 0.1 * data["action_log_prob"]).unsqueeze(-1)
    torch.testing.assert_close(data["next", "reward"], expected)
    torch.testing.assert_close(data["advantage"] + data["state_value"], expected)


@pytest.mark.filterwarnings("ignore")
def test_skrl(tmp_path: Path) -> None:
    pytest.importorskip("skrl", reason="skrl is not installed; its lines of the page were not run")
    import gymnasium
    from skrl.agents.torch.ppo import PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer
    from torch import nn

    class Actor(GaussianMixin, Model):
        def __init__(self, observations: Any, actions: Any) -> None:
            Model.__init__(self, observation_space=observations, action_space=actions, device="cpu")
            GaussianMixin.__init__(self, clip_actions=False)
            self.net, self.log_std = nn.Linear(3, 1), nn.Parameter(torch.zeros(1))

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self, observations: Any, actions: Any) -> None:
            Model.__init__(self, observation_space=observations, action_space=actions, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = nn.Linear(3, 1)

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {}

    env = wrap_env(gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync"))
    prior = pendulum_prior()
    seen: list[torch.Tensor] = []
    rewards_of = prior_reward(prior, 0.2, 0.1)

    def noted(*parts: torch.Tensor) -> torch.Tensor:
        seen.extend([*parts, rewards_of(*parts)])
        return seen[-1]

    names: dict[str, Any] = {"rewards_of": noted}
    exec(code("skrl"), names)
    settings = PPO_CFG(rollouts=8, mini_batches=1, learning_epochs=1)
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    settings.experiment.directory = str(tmp_path)
    spaces = env.observation_space, env.action_space
    memory = RandomMemory(memory_size=8, num_envs=2, device="cpu")
    agent = names["ResidualPPO"](
        models={"policy": Actor(*spaces), "value": Critic(*spaces)},
        memory=memory,
        cfg=settings,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
    )
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 8, "disable_progressbar": True}).train()
    assert seen[0].shape == (8, 2, 3)
    torch.testing.assert_close(memory.get_tensor_by_name("rewards").squeeze(-1), seen[-1])


@pytest.mark.filterwarnings("ignore")
def test_brax() -> None:
    pytest.importorskip("brax", reason="brax is not installed; its lines of the page were not run")
    import jax
    from brax.training import types
    from brax.training.agents.ppo import losses, networks

    built = networks.make_ppo_networks(3, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    policy, value = built.policy_network.init(keys[0]), built.value_network.init(keys[1])
    names: dict[str, Any] = {}
    original = losses.compute_ppo_loss
    try:
        exec(code("Brax"), names)
        prior = names["BraxPrior"](built, None, policy)
        names["rewards_of"] = prior_reward(prior, 0.2, 0.1)
        observations, raw = jax.random.normal(keys[2], (4, 5, 3)), jax.random.normal(keys[3], (4, 5, 2))
        log_prob = prior.log_prob(observations, raw)
        ones = np.ones((4, 5), np.float32)
        logits = built.policy_network.apply(None, policy, observations)
        scored = {"raw_action": raw, "log_prob": log_prob, "distribution_params": logits}
        data = types.Transition(
            observation=observations,
            action=np.tanh(raw),
            reward=ones,
            discount=ones,
            next_observation=observations,
            extras={"policy_extras": scored, "state_extras": {"truncation": 0 * ones}},
        )
        params = losses.PPONetworkParams(policy=policy, value=value)
        changed, _ = jax.jit(lambda each: losses.compute_ppo_loss(params, None, each, keys[0], built))(data)
        by_hand = data._replace(reward=ones + 0.1 * log_prob)  # the policy is the prior here
        expected, _ = original(params, None, by_hand, keys[0], built)
        assert float(changed) == pytest.approx(float(expected), rel=1e-4)
    finally:
        losses.compute_ppo_loss = original
