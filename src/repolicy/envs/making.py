"""Batches of environments by name: EnvPool's where it knows the name, else Gymnasium's.

envs = make_envs("HalfCheetah-v4", count=32, seed=0)
observations = envs.reset()
step = envs.step(actions)
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from repolicy.envs import names
from repolicy.envs.batches import EnvPoolEnvs, GymnasiumEnvs
from repolicy.envs.step import Backend, Envs, HasSpaces
from repolicy.envs.wrapped import NoiseEnvs
from repolicy.errors import UsageError
from repolicy.policies import ActionSpace
from repolicy.priors import (
    DecoderSpec,
    MeanPrior,
    OpenedPolicy,
    check_generative_options,
    decoder_digest,
    load_decoder,
    open_agent,
)
from repolicy.readers.reading import Options
from repolicy.text import nearest

POLICY_KEYS = ("state", "policy", "obs", "actor")  # what a policy's part of an observation is called
CRITIC_KEYS = {"state": "privileged_state", "policy": "critic"}  # beside the policy's part, what the critic's is called


def make_envs(name: str, count: int, seed: int, backend: Backend = "auto", *, critic: bool = False) -> Envs:
    """Return N environments, the i-th seeded with seed + i: EnvPool's where it knows the name, else Gymnasium's.

    `name` is an id that either of them knows, or `module:callable` (or `file.py:callable`) that makes a Gymnasium
    environment. Options of the environment follow it as in an address: `HalfCheetah-v4?reset_noise_scale=0.2`, and
    those of each reset as `CartPole-v1?reset.high=0.2`. Of an
    observation that is a Dict, `?observe=KEY,KEY` takes these parts. For a `critic`, the numbers of those parts that
    `observe_critic=KEY,KEY` names follow in each observation. With `?decoder=FILE&noise=8&chunk=4` an action is the
    noise of a generative policy, and a step is a chunk of its actions.
    """
    plain, _ = names.parse_env_name(name)
    if backend == "envpool" and plain not in (pool := names.envpool_names()):
        known = f"has no {plain!r}{nearest(plain, pool)}" if pool else "is not installed"
        raise UsageError(f"EnvPool {known}; leave out --backend envpool to use Gymnasium")
    if backend == "envpool" and names.reset_options(name):
        raise UsageError(f"environment {name!r}: EnvPool's resets take no options; leave out --backend envpool")
    kind = EnvPoolEnvs if _in_envpool(name, backend) else GymnasiumEnvs
    return wrap_decoder(kind(name, count, seed, critic=critic), name)


def _in_envpool(name: str, backend: Backend) -> bool:
    if backend == "gymnasium" or names.reset_options(name) or names.import_target(name):
        return False
    return names.parse_env_name(name)[0] in names.envpool_names()


def wrap_decoder(envs: Envs, name: str, seen: Callable[[bool], None] | None = None) -> Envs:
    """Return environments of this name as they are or, where it has a decoder, acted in through its noise."""
    through = names.decoder_options(name)
    return envs if through is None else NoiseEnvs(envs, load_decoder(*through), name, seen)


def probe_env(name: str, backend: Backend = "auto", *, critic: bool = False) -> "Spaces":
    """Return what can be seen and done in an environment, from one that is closed again."""
    lasting = (
        _in_envpool(name, backend) and names.decoder_options(name) is None
    )  # files and registered functions may change
    return (_probe_env_once if lasting else _probe_env)(name, backend, critic)


@dataclass(frozen=True)
class Spaces:
    """What can be seen and done in an environment."""

    name: str
    observation_size: int
    actions: ActionSpace
    groups: dict[str, int] = field(default_factory=dict)
    limit: int | None = None


def _probe_env(name: str, backend: Backend, critic: bool) -> Spaces:
    with closing(make_envs(name, 1, 0, backend, critic=critic)) as probe:
        return Spaces(name, probe.observation_size, probe.actions, probe.groups, probe.limit)


_probe_env_once = cache(_probe_env)  # a robot with meshes takes half a second to make


def place_prior(prior: MeanPrior, name: str, backend: Backend = "auto") -> tuple[MeanPrior, str]:
    """Return the same prior for the spaces of an environment, and its name, with the part that the prior observes."""
    size = getattr(prior.mean, "observation_size", 0)
    name = match_observation(name, size, backend) if size else name
    probe = probe_env(name, backend)
    return prior.for_spaces(probe.observation_size, probe.actions), name


def open_policy_in_env(env: str | None, reference: str | Path, options: Options, trust: bool) -> OpenedPolicy:
    """Return a policy to run; of the decoder of the environment where it is to act, N(0, I) over the noise."""
    through = names.decoder_options(env or "")
    if through is None or not _is_decoder_of_env(str(reference), through):
        return open_agent(reference, options, trust)
    check_generative_options(str(reference), options)
    normal = MeanPrior(lambda observations: np.zeros((len(observations), through.noise)), 1.0, str(reference))
    return OpenedPolicy(str(reference), normal, Path(reference))


def _is_decoder_of_env(reference: str, through: DecoderSpec) -> bool:
    """Return whether a policy's name leads to an environment's decoder: it is the same, or that of the same file."""
    file = through.decoder
    if reference == file or not Path(reference).is_file():
        return bool(reference == file)
    known = through.sha256 or (decoder_digest(file) if Path(file).is_file() else None)
    return decoder_digest(reference) == known


def match_observation(name: str, size: int, backend: Backend = "auto") -> str:
    """Return the environment's name, with the part that has this size if its observation is a Dict that does not fit.

    Where several have it, the one with a customary name goes first.
    """
    return _fitting(name, size, probe_env(name, backend))


def _fitting(name: str, size: int, probe: HasSpaces) -> str:
    if probe.observation_size == size or names.observed_keys(name):
        return name
    fitting = sorted(
        (key for key, width in probe.groups.items() if width == size),
        key=lambda key: POLICY_KEYS.index(key) if key in POLICY_KEYS else len(POLICY_KEYS),
    )
    return names.with_observed_keys(name, fitting[0]) if fitting else name


def with_observation_roles(name: str, size: int = 0, backend: Backend = "auto") -> str:
    """Return the environment's name with the parts of a Dict that policy and critic observe, where it names none.

    The policy's part is the one of its `size`, where this is known; else the one that has a customary name beside the
    critic's. A name that tells the policy's parts alone means the same for the critic.
    """
    if names.observed_keys(name):
        return name
    probe = probe_env(name, backend)
    critic, known = names.critic_keys(name), probe.groups
    if size:
        name = _fitting(name, size, probe)
    else:
        usual = POLICY_KEYS if critic else [key for key in CRITIC_KEYS if CRITIC_KEYS[key] in known]
        present = [key for key in usual if key in known]
        if critic and known and not present:
            what = f"environment {name!r} does not say what the policy itself observes: add --observe KEY"
            raise UsageError(f"{what}, of {', '.join(known)}")
        name = names.with_observed_keys(name, *present[:1])
    other = CRITIC_KEYS.get(",".join(names.observed_keys(name)))
    return names.with_observed_keys(name, critic=other) if other in known and not critic else name


def critic_size(name: str, backend: Backend = "auto") -> int:
    """Return how many numbers the critic alone sees, behind the policy's; 0 where it sees what the policy sees."""
    keys = names.critic_keys(name)
    groups = probe_env(name, backend, critic=True).groups if keys else {}
    return sum(groups[key] for key in keys)
