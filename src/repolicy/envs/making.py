"""Batches of environments by name: EnvPool's where it knows the name, else Gymnasium's.

envs = make_envs("HalfCheetah-v4", count=32, seed=0)
observations = envs.reset()
step = envs.step(actions)
"""

from repolicy.envs.envpool import EnvPoolEnvs
from repolicy.envs.gymnasium import GymnasiumEnvs
from repolicy.envs.names import envpool_names, parsed
from repolicy.envs.step import Backend, Envs
from repolicy.errors import UsageError
from repolicy.loading import nearest


def make_envs(name: str, count: int, seed: int, backend: Backend = "auto") -> Envs:
    """N environments, the i-th seeded with seed + i: EnvPool's where it knows the name, else Gymnasium's.

    `name` is an id that either of them knows, or `module:callable` (or `file.py:callable`) that makes a Gymnasium
    environment. Options of the environment follow it as in an address: `HalfCheetah-v4?reset_noise_scale=0.2`.
    """
    plain, _ = parsed(name)
    if backend == "envpool" and plain not in envpool_names():
        known = "is not installed" if not envpool_names() else f"has no {plain!r}{nearest(plain, envpool_names())}"
        raise UsageError(f"EnvPool {known}; leave out --backend envpool to use Gymnasium")
    if backend == "gymnasium" or plain not in envpool_names():
        return GymnasiumEnvs(name, count, seed)
    return EnvPoolEnvs(name, count, seed)
