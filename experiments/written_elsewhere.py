"""Write one policy's file with the library that is installed, and what that library says of it.

    PYTHONPATH=FOLDER python -m experiments.written_elsewhere sb3 PPO OUT

`experiments.readers` runs it, with one version of a library after another. It imports nothing of Repolicy.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE, ACTIONS, COUNT = 5, 2, 256
Told = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # means, actions and their log-probabilities


def stirred(module: Any) -> Any:
    """Give all parameters values that matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def sb3(kind: str, out: Path, obs: torch.Tensor) -> Told:
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
    stirred(model.policy)
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


def rsl_rl(kind: str, out: Path, obs: torch.Tensor) -> Told:
    from importlib.metadata import version

    major, kept = int(version("rsl-rl-lib").partition(".")[0]), dict[str, Any](iter=3)
    if major < 3:
        from rsl_rl.modules import ActorCritic, EmpiricalNormalization

        normalizer = EmpiricalNormalization(SIZE).train()
        normalizer(obs)
        normalizer.eval()
        actor = stirred(ActorCritic(SIZE, SIZE, ACTIONS, [8, 7], [9], "elu", 0.7))
        kept |= {"model_state_dict": actor.state_dict(), "obs_norm_state_dict": normalizer.state_dict()}
        seen: Any = normalizer(obs)
    else:
        from tensordict import TensorDict

        seen, groups = TensorDict({"policy": obs}, batch_size=[COUNT]), {"policy": ["policy"], "critic": ["policy"]}
        if major > 3:
            return _rsl_rl_5(out, seen, kept)
        from rsl_rl.modules import ActorCritic

        actor = stirred(ActorCritic(seen, groups, ACTIONS, True, False, [8, 7], [9], "elu", 0.7)).train()
        actor.update_normalization(seen)
        actor.eval()
        kept |= {"model_state_dict": actor.state_dict()}
    torch.save(kept, out / "model_3.pt")
    actions = actor.act(seen)
    return actor.act_inference(seen), actions, actor.get_actions_log_prob(actions)


def _rsl_rl_5(out: Path, seen: Any, kept: dict[str, Any]) -> Told:
    from rsl_rl.models import MLPModel

    settings = {"class_name": "GaussianDistribution", "std_type": "scalar", "init_std": 0.7}
    actor: Any = MLPModel(
        seen, {"s": ["policy"]}, "s", ACTIONS, [8, 7], "elu", obs_normalization=True, distribution_cfg=settings
    )
    critic = MLPModel(seen, {"s": ["policy"]}, "s", 1, [9], "elu", obs_normalization=True)
    stirred(actor).train()
    actor.update_normalization(seen)
    actor.eval()
    kept |= {"actor_state_dict": actor.state_dict(), "critic_state_dict": critic.state_dict()}
    torch.save(kept, out / "model_3.pt")
    actions = actor(seen, stochastic_output=True)
    return actor(seen), actions, actor.get_output_log_prob(actions)


LIBRARIES = {"sb3": sb3, "rsl_rl": rsl_rl}


def main() -> None:
    library, kind, folder = sys.argv[1:]
    torch.manual_seed(0)
    obs, out = 3.0 * torch.randn(COUNT, SIZE) + 1.0, Path(folder)
    with torch.no_grad():
        mean, actions, log_prob = LIBRARIES[library](kind, out, obs)
    found: dict[str, Any] = {"observations": obs, "mean": mean}
    if actions is not None and log_prob is not None:
        found |= {"actions": actions, "log_prob": log_prob}
    np.savez(out / "told.npz", **{name: each.numpy() for name, each in found.items()})


if __name__ == "__main__":
    main()
