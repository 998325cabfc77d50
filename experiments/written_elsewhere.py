"""Write a policy's file with the installed library, and the library's own means and log-probabilities.

    PYTHONPATH=FOLDER python -m experiments.written_elsewhere sb3 PPO OUT

`experiments.readers` runs it for each version of each library. It imports nothing of Repolicy.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE, ACTIONS, COUNT = 5, 2, 256
Expected = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # means, actions and their log-probabilities


def perturb(module: Any) -> Any:
    """Add noise to all parameters, so that none is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def sb3(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    import gymnasium
    import sb3_contrib
    import stable_baselines3

    class Still(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,))
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, False, False, {}

    library: Any = stable_baselines3 if hasattr(stable_baselines3, kind) else sb3_contrib
    more: dict[str, Any] = {"buffer_size": 10} if kind in ("SAC", "TQC", "TD3") else {}
    model = getattr(library, kind)("MlpPolicy", Still(), device="cpu", seed=0, **more)
    perturb(model.policy)
    if kind in ("SAC", "TQC"):  # stds of some size: theirs may be e⁻²⁰, where single precision has no digits left
        model.policy.actor.log_std.weight.mul_(0.1)
    model.save(out / "policy.zip")
    model.policy.set_training_mode(False)
    if kind == "TD3":
        return torch.as_tensor(model.predict(obs.numpy(), deterministic=True)[0]), None, None
    if kind not in ("SAC", "TQC"):
        dist = model.policy.get_distribution(obs)
        actions = dist.sample()
        return dist.distribution.mean, actions, dist.log_prob(actions)
    # In double precision, and without the 1e-6 that the library adds inside of a logarithm, which is no probability.
    actor = model.policy.actor.double()
    actor.extract_features = lambda obs, *_: obs
    mean, log_std, extra = actor.get_action_dist_params(obs.double())
    dist = actor.action_dist.proba_distribution(mean, log_std, **extra)
    dist.epsilon = 0.0
    before = dist.distribution.sample().clamp(-5.0, 5.0).float().double()
    return mean, before, dist.log_prob(torch.tanh(before), before)


def rsl_rl(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    from importlib.metadata import version

    major, checkpoint = int(version("rsl-rl-lib").partition(".")[0]), dict[str, Any](iter=3)
    if major < 3:
        from rsl_rl.modules import ActorCritic, EmpiricalNormalization

        normalizer = EmpiricalNormalization(SIZE).train()
        normalizer(obs)
        normalizer.eval()
        actor = perturb(ActorCritic(SIZE, SIZE, ACTIONS, [8, 7], [9], "elu", 0.7))
        checkpoint |= {"model_state_dict": actor.state_dict(), "obs_norm_state_dict": normalizer.state_dict()}
        observations: Any = normalizer(obs)
    else:
        from tensordict import TensorDict

        observations, groups = (
            TensorDict({"policy": obs}, batch_size=[COUNT]),
            {"policy": ["policy"], "critic": ["policy"]},
        )
        if major > 3:
            return _rsl_rl_5(out, observations, checkpoint)
        from rsl_rl.modules import ActorCritic

        actor = perturb(ActorCritic(observations, groups, ACTIONS, True, False, [8, 7], [9], "elu", 0.7)).train()
        actor.update_normalization(observations)
        actor.eval()
        checkpoint |= {"model_state_dict": actor.state_dict()}
    torch.save(checkpoint, out / "model_3.pt")
    actions = actor.act(observations)
    return actor.act_inference(observations), actions, actor.get_actions_log_prob(actions)


def _rsl_rl_5(out: Path, observations: Any, checkpoint: dict[str, Any]) -> Expected:
    from rsl_rl.models import MLPModel

    settings = {"class_name": "GaussianDistribution", "std_type": "scalar", "init_std": 0.7}
    actor: Any = MLPModel(
        observations, {"s": ["policy"]}, "s", ACTIONS, [8, 7], "elu", obs_normalization=True, distribution_cfg=settings
    )
    critic = MLPModel(observations, {"s": ["policy"]}, "s", 1, [9], "elu", obs_normalization=True)
    perturb(actor).train()
    actor.update_normalization(observations)
    actor.eval()
    checkpoint |= {"actor_state_dict": actor.state_dict(), "critic_state_dict": critic.state_dict()}
    torch.save(checkpoint, out / "model_3.pt")
    actions = actor(observations, stochastic_output=True)
    return actor(observations), actions, actor.get_output_log_prob(actions)


def rl_games(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    from rl_games.algos_torch.models import ModelA2CContinuousLogStd
    from rl_games.algos_torch.network_builder import A2CBuilder

    plain, builder = {"name": "default"}, A2CBuilder()
    stds = {"mu_activation": "None", "sigma_activation": "None", "mu_init": plain, "fixed_sigma": True}
    stds["sigma_init"] = {"name": "const_initializer", "val": -0.3}
    layers = {"units": [8, 7], "activation": "elu", "d2rl": False, "initializer": plain}
    layers["regularizer"] = {"name": "None"}
    builder.load({"separate": False, "space": {"continuous": stds}, "mlp": layers})
    shapes = {"actions_num": ACTIONS, "input_shape": (SIZE,), "num_seqs": 1, "value_size": 1}
    model = ModelA2CContinuousLogStd(builder).build(shapes | {"normalize_value": True, "normalize_input": True})
    perturb(model).train()
    model.norm_obs(obs)
    model.eval()
    torch.save({"model": model.state_dict(), "epoch": 3, "frame": 9, "env_state": None}, out / "Still.pth")
    acted = model({"is_train": False, "obs": obs})  # it writes what it makes of obs into the dict
    return acted["mus"], acted["actions"], -acted["neglogpacs"]


def tianshou(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    import gymnasium
    from tianshou.utils import RunningMeanStd
    from tianshou.utils.net import continuous
    from tianshou.utils.net.common import Net

    def body() -> Any:
        return Net(state_shape=(SIZE,), hidden_sizes=[8, 7], activation=torch.nn.Tanh)

    def normal(*mean_and_std: Any) -> Any:
        mean, std = mean_and_std[0] if len(mean_and_std) == 1 else mean_and_std
        return torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)

    space, is_new = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,)), hasattr(continuous, "ContinuousActorProbabilistic")
    make = continuous.ContinuousActorProbabilistic if is_new else continuous.ActorProb
    actor = make(preprocess_net=body(), action_shape=(ACTIONS,), unbounded=True)
    critic = (continuous.ContinuousCritic if is_new else continuous.Critic)(preprocess_net=body())
    if is_new:
        from tianshou.algorithm import PPO
        from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
        from tianshou.algorithm.optim import AdamOptimizerFactory

        policy = ProbabilisticActorPolicy(actor=actor, dist_fn=normal, action_space=space)
        whole: Any = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory())
    else:
        from tianshou.policy import PPOPolicy

        optim = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
        whole = PPOPolicy(actor=actor, critic=critic, optim=optim, dist_fn=normal, action_space=space)
    perturb(actor)
    statistics = RunningMeanStd()
    statistics.update(obs.numpy())
    torch.save({"model": whole.state_dict(), "obs_rms": statistics}, out / "policy.pth")
    found = normal(actor(torch.as_tensor(statistics.norm(obs.numpy())).float())[0])
    actions = found.sample()
    return found.mean, actions, found.log_prob(actions)


def skrl(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    from importlib.metadata import version

    import gymnasium
    from skrl.agents.torch.ppo import PPO
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.preprocessors.torch import RunningStandardScaler

    is_new = int(version("skrl").partition(".")[0]) > 1
    spaces = {"observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,))}
    spaces["action_space"] = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,))
    input_name = "observations" if is_new else "states"

    def layers(size: int) -> Any:
        nn = torch.nn
        return nn.Sequential(nn.Linear(SIZE, 8), nn.ELU(), nn.Linear(8, 7), nn.ELU(), nn.Linear(7, size))

    class Actor(GaussianMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces, device="cpu")
            GaussianMixin.__init__(self)
            self.net, self.log_std_parameter = layers(ACTIONS), torch.nn.Parameter(torch.full((ACTIONS,), -0.3))

        def compute(self, inputs: Any, role: str = "") -> Any:
            mean = self.net(inputs[input_name])
            return (mean, {"log_std": self.log_std_parameter}) if is_new else (mean, self.log_std_parameter, {})

    class Critic(DeterministicMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = layers(1)

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs[input_name]), {}

    scaler = "observation_preprocessor" if is_new else "state_preprocessor"
    settings: Any = {scaler: RunningStandardScaler, f"{scaler}_kwargs": {"size": SIZE, "device": "cpu"}}
    actor = perturb(Actor())
    agent = PPO(models={"policy": actor, "value": Critic()}, cfg=settings, device="cpu", **spaces)
    scaled: Any = getattr(agent, f"_{scaler}")
    scaled(obs, train=True)
    agent.save(str(out / "agent_3.pt"))
    acted = actor.act({input_name: scaled(obs)}, role="policy")
    return acted[-1]["mean_actions"], acted[0], (acted[-1]["log_prob"] if is_new else acted[1]).squeeze(-1)


def torchrl(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from tensordict.nn.distributions import NormalParamExtractor
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal

    mlp = MLP(in_features=SIZE, out_features=2 * ACTIONS, num_cells=[8, 7], activation_class=torch.nn.Tanh)
    net = torch.nn.Sequential(mlp, NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(module=module, in_keys=["loc", "scale"], distribution_class=TanhNormal)
    perturb(actor)
    torch.save(actor.state_dict(), out / "actor.pt")
    dist = actor.get_dist(TensorDict({"observation": obs}, batch_size=[COUNT]))
    before = dist.root_dist.sample().clamp(-3.0, 3.0)
    return dist.loc, before, dist.log_prob(torch.tanh(before))


def rllib(kind: str, out: Path, obs: torch.Tensor) -> Expected:
    import gymnasium
    from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
    from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
    from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
    from ray.rllib.connectors.env_to_module import EnvToModulePipeline, MeanStdFilter
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    obs[:, -1] *= 1e-4  # in place, and so small that it matters what RLlib adds to a std
    spaces = {"observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,))}
    spaces["action_space"] = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,))
    classes = {"PPO": (DefaultPPOTorchRLModule, PPOCatalog), "SAC": (DefaultSACTorchRLModule, SACCatalog)}
    settings = {"fcnet_hiddens": [8, 7], "fcnet_activation": "tanh"} | ({"twin_q": True} if kind == "SAC" else {})
    module_class, catalog = classes[kind]
    module: Any = RLModuleSpec(
        module_class=module_class, catalog_class=catalog, model_config=settings, **spaces
    ).build()
    checkpoint = out.resolve() / "checkpoint"
    perturb(module).save_to_path(checkpoint / "learner_group/learner/rl_module/default_policy")
    connector: Any = MeanStdFilter(clip_by_value=1.5)
    pipeline = EnvToModulePipeline(*spaces.values(), connectors=[connector])
    connector.reset_state()
    normalize = connector._filters[None]
    for row in obs.double().numpy():
        normalize(row)
    pipeline.save_to_path(checkpoint / "env_runner/env_to_module_connector")
    normalized = torch.stack([torch.from_numpy(normalize(row, update=False)) for row in obs.double().numpy()])
    inputs = module.double().forward_inference({"obs": normalized})["action_dist_inputs"]
    dist = module.get_inference_action_dist_cls().from_logits(inputs)
    if kind == "PPO":
        actions = dist.sample()
        return dist.loc, actions, dist.logp(actions)
    # Older versions add this inside of a logarithm, which is no probability.
    sys.modules[type(dist).__module__].SMALL_NUMBER = 0.0  # type: ignore[attr-defined]
    before = torch.distributions.Normal(dist.loc, dist._dist.scale).sample().clamp(-3.0, 3.0)
    return dist.loc, before, dist.logp(torch.tanh(before))


LIBRARIES = {"sb3": sb3, "rsl_rl": rsl_rl, "rl_games": rl_games, "tianshou": tianshou, "skrl": skrl, "torchrl": torchrl}
LIBRARIES |= {"rllib": rllib}


def main() -> None:
    library, kind, folder = sys.argv[1:]
    torch.manual_seed(0)
    obs, out = 3.0 * torch.randn(COUNT, SIZE) + 1.0, Path(folder)
    with torch.no_grad():
        mean, actions, log_prob = LIBRARIES[library](kind, out, obs)
    found: dict[str, Any] = {"observations": obs, "mean": mean, "actions": actions, "log_prob": log_prob}
    np.savez(out / "expected.npz", **{name: each.numpy() for name, each in found.items() if each is not None})


if __name__ == "__main__":
    main()
