"""One of two processes that train together over gloo, as rsl_rl's processes do over GPUs."""

import hashlib
from datetime import timedelta

import torch
from runner_envs import OURS, Drift, settings
from small import small_policy

from repolicy.hosts.rsl_rl import ResidualPPO


class Push:
    """A prior that would rather push than not."""

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return -(actions - 0.5).square().sum(-1)


def main(rank: int, meeting: str) -> str:
    """Train as that rank; the two find each other by a file that is not there yet."""
    torch.set_num_threads(1)
    place = {"init_method": f"file://{meeting}", "timeout": timedelta(minutes=2)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, **place)
    torch.manual_seed(0)  # one prior for both
    measured = {"prior": small_policy(hidden=(16, 16)), "addon": "addon", "keep": 0.9}  # by the first rank alone
    config = settings(algorithm={"class_name": OURS, "critic_warmup": 1} | measured)
    config["multi_gpu"] = {"global_rank": rank, "local_rank": rank, "world_size": 2}
    env = Drift(count=32, seed=rank)
    torch.manual_seed(rank)
    algorithm = ResidualPPO.construct_algorithm(env.get_observations(), env, config, "cpu")
    algorithm.broadcast_parameters()
    observations = env.get_observations()
    algorithm.train_mode()
    for _ in range(3):
        with torch.inference_mode():
            for _ in range(6):
                observations, *rest = env.step(algorithm.act(observations))
                algorithm.process_env_step(observations, *rest)
            algorithm.compute_returns(observations)
        algorithm.update()
    tensors = [parameter.detach().numpy().tobytes() for parameter in algorithm.actor.parameters()]
    torch.distributed.destroy_process_group()
    return f"{hashlib.sha256(b''.join(tensors)).hexdigest()} {algorithm.steering}"
