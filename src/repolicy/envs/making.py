"""Batches of environments by name: EnvPool's where it knows the name and its options, else Gymnasium's."""

import contextlib
import inspect
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator

from repolicy.envs import names
from repolicy.envs.batches import EnvPoolEnvs, GymnasiumEnvs
from repolicy.envs.step import Backend, Envs, HasSpaces
from repolicy.envs.wrapped import NoiseEnvs
from repolicy.errors import RepolicyError, UsageError
from repolicy.policies import ActionSpace, Agent, ConditionedPolicy, EnvAwareAgent, kept_modules
from repolicy.priors import (
    DecoderSpec,
    MeanPrior,
    OpenedPolicy,
    check_no_options,
    decoder_digest,
    load_decoder,
    open_agent,
)
from repolicy.readers.reading import Options
from repolicy.text import strip_version, suggest

POLICY_KEYS = ("state", "policy", "obs", "actor")  # usual keys of the policy's part in a Dict observation
CRITIC_KEYS = {"state": "privileged_state", "policy": "critic"}  # usual key of the critic's part, by the policy's key


def make_envs(name: str, count: int, seed: int, backend: Backend = "auto", *, critic: bool = False) -> Envs:
    """Make N environments, the i-th seeded with seed + i: EnvPool's where it knows the name, else Gymnasium's.

    The modules' random streams are seeded, too, from which a user's own environment or add-on may draw.

    `name` is an id that one of them knows, or `module:callable` (or `file.py:callable`), which makes a Gymnasium
    environment. Options follow as in a web address:

    - `HalfCheetah-v4?reset_noise_scale=0.2`: an option of the environment;
    - `CartPole-v1?reset.high=0.2`: an option of each reset;
    - `?observe=KEY,KEY`: the parts of a Dict observation that the policy sees;
    - `?observe_critic=KEY,KEY`: the parts that follow them in each observation, if `critic` is true;
    - `?decoder=FILE&noise=8&chunk=4`: an action is the noise of a generative policy, a step a chunk of its actions.
    """
    if backend == "envpool":
        parsed, envpool_ids = names.parse_env_name(name), names.envpool_names()
        if parsed.plain not in envpool_ids:
            hint = suggest(parsed.plain, envpool_ids)
            reason = f"has no {parsed.plain!r}{hint}" if envpool_ids else names.why_no_envpool()
            raise UsageError(f"EnvPool {reason}; leave out --backend envpool to use Gymnasium")
        if parsed.reset_options:
            raise UsageError(f"environment {name!r}: EnvPool's resets take no options; leave out --backend envpool")
    for seed_module in (random.seed, np.random.seed, torch.manual_seed):
        seed_module(seed % 2**32)
    kind = EnvPoolEnvs if _uses_envpool(name, backend) else GymnasiumEnvs
    return wrap_decoder(kind(name, count, seed, critic=critic), name)


def _uses_envpool(name: str, backend: Backend) -> bool:
    """Return whether EnvPool makes the environment; without a backend named, not where Gymnasium alone has an option.

    An option that neither has, and that looks like one of EnvPool's, is taken for a misspelt one.
    """
    parsed = names.parse_env_name(name)
    if backend == "gymnasium" or parsed.reset_options or parsed.import_target:
        return False
    if parsed.plain not in names.envpool_names():
        return False
    if backend == "envpool" or not parsed.options or parsed.plain not in gymnasium.registry:
        return True
    import envpool

    known = envpool.make_spec(parsed.plain).config._asdict()
    others = [key for key in parsed.options if key not in known]
    own = _gymnasium_options(parsed.plain) if others else ()
    return all(key not in own and suggest(key, known) for key in others)


def _gymnasium_options(plain: str) -> set[str]:
    """Return the options of the class that Gymnasium makes for an id, and of the classes that it is derived from."""
    entry_point, options = gymnasium.registry[plain].entry_point, set[str]()
    with contextlib.suppress(Exception):  # such as a package that the class needs, and that is not installed
        creator: Any = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        for each in getattr(creator, "__mro__", (creator,)):
            options.update(inspect.signature(each).parameters)
    return options


def evaluation_backend(name: str, backend: Backend = "auto") -> Backend:
    """Return Gymnasium where it makes the environment, because films are rendered there; else the named backend.

    It does not where EnvPool alone has the id or an option. (Importing EnvPool is slow: it is asked last.)
    """
    parsed = names.parse_env_name(name)
    if parsed.import_target:
        return "gymnasium"
    if parsed.is_in_gymnasium:
        try:
            probe_env(name, "gymnasium")
        except RepolicyError:
            return backend if parsed.plain in names.envpool_names() else "gymnasium"
        return "gymnasium"
    return backend


# Their observations of contact forces differ between EnvPool and Gymnasium.
OBSERVED_DIFFERENTLY = ("Humanoid", "HumanoidStandup")


def check_observed_alike(name: str, command: str) -> None:
    """Raise where a command plays Gymnasium's environment, and a run would train in EnvPool's, which differs."""
    plain = names.parse_env_name(name).plain
    if strip_version(plain) in OBSERVED_DIFFERENTLY and _uses_envpool(name, "auto"):
        raise UsageError(
            f"{command} is played in Gymnasium's {plain}, and a run trains in EnvPool's, whose observations differ: "
            "name a function of your own that makes Gymnasium's, FILE.py:FUNCTION"
        )


def wrap_decoder(envs: Envs, name: str, on_step: Callable[[bool], None] | None = None) -> Envs:
    """Return the environments, wrapped in `NoiseEnvs` if their name has a decoder."""
    decoder = names.parse_env_name(name).decoder
    return envs if decoder is None else NoiseEnvs(envs, load_decoder(*decoder), name, on_step)


@dataclass(frozen=True)
class Spaces:
    """The observation and action spaces of an environment."""

    name: str
    observation_size: int
    actions: ActionSpace
    groups: dict[str, int] = field(default_factory=dict)  # size of each part of a Dict observation
    limit: int | None = None  # steps after which an episode is truncated


def probe_env(name: str, backend: Backend = "auto", *, critic: bool = False) -> Spaces:
    """Make one environment, close it, and return its spaces."""
    # Results are cached for EnvPool only: files and registered functions may change.
    is_cacheable = _uses_envpool(name, backend) and names.parse_env_name(name).decoder is None
    return _cached_probe(name, backend, critic) if is_cacheable else _probe_env(name, backend, critic)


def _probe_env(name: str, backend: Backend, critic: bool) -> Spaces:
    with kept_modules(), closing(make_envs(name, 1, 0, backend, critic=critic)) as probe:
        return Spaces(name, probe.observation_size, probe.actions, probe.groups, probe.limit)


_cached_probe = cache(_probe_env)  # a robot with meshes takes half a second to make


def place_prior(prior: MeanPrior, name: str, backend: Backend = "auto") -> tuple[MeanPrior, str]:
    """Return the prior for an environment's spaces, and the environment's name with the part that it observes."""
    size = getattr(prior.mean, "observation_size", 0)
    name = match_observation(name, size, backend) if size else name
    probe = probe_env(name, backend)
    return prior.for_spaces(probe.observation_size, probe.actions), name


def open_policy_in_env(env: str | None, reference: str | Path, options: Options, trust: bool) -> OpenedPolicy:
    """Open a policy to run; if it is the environment's own decoder, return N(0, I) over the decoder's noise."""
    decoder = names.parse_env_name(env or "").decoder
    if decoder is None or not _is_same_decoder(str(reference), decoder):
        return open_agent(reference, options, trust)
    check_no_options(reference, options, "a generative policy, which runs as it is")
    load_decoder(*decoder, trust=trust)  # raises where it is a program that is not trusted
    normal = MeanPrior(lambda observations: np.zeros((len(observations), decoder.noise)), 1.0, str(reference))
    return OpenedPolicy(str(reference), normal, Path(reference))


def _is_same_decoder(reference: str, decoder: DecoderSpec) -> bool:
    """Return whether a policy's name is that of the decoder, or names a file with the same content."""
    file = decoder.decoder
    if reference == file or not Path(reference).is_file():
        return bool(reference == file)
    digest = decoder.sha256 or (decoder_digest(file) if Path(file).is_file() else None)
    return decoder_digest(reference) == digest


def match_observation(name: str, agent: Agent | int, backend: Backend = "auto") -> str:
    """Return the environment's name; if its observation is a Dict, select the parts that the agent takes.

    They are those that the agent's file names, or else the one of its size, which may stand in its place.
    """
    return _with_fitting_keys(name, agent, probe_env(name, backend))


def _with_fitting_keys(name: str, agent: Agent | int, spaces: Spaces) -> str:
    """Return the name as it is if it selects parts already or the whole fits. Of several parts a usual one is taken."""
    if names.parse_env_name(name).observed_keys:
        return name
    size = agent if isinstance(agent, int) else agent.observation_size
    named = getattr(agent, "groups", ())
    if spaces.groups.keys() >= {*named} and sum(spaces.groups[key] for key in named) == size:
        return name if named == (*spaces.groups,) else names.with_observed_keys(name, ",".join(named))
    if spaces.observation_size == size:
        return name
    fitting = [key for key, width in spaces.groups.items() if width == size]
    usual = [key for key in POLICY_KEYS if key in fitting]
    return names.with_observed_keys(name, [*usual, *fitting][0]) if fitting else name


def with_observation_roles(name: str, agent: Agent | int = 0, backend: Backend = "auto") -> str:
    """Return the environment's name with the parts of a Dict observation for policy and critic, if it selects none.

    The policy's parts are those of an agent, as for `match_observation`. Without one it is a part with a usual key,
    beside the critic's. A name that selects parts for the policy alone means the same parts for the critic.
    """
    parsed = names.parse_env_name(name)
    if parsed.observed_keys:
        return name
    spaces = probe_env(name, backend)
    critic, groups = parsed.critic_keys, spaces.groups
    if agent:
        name = _with_fitting_keys(name, agent, spaces)
    else:
        usual = POLICY_KEYS if critic else [key for key in CRITIC_KEYS if CRITIC_KEYS[key] in groups]
        present = next((key for key in usual if key in groups), "")
        if critic and groups and not present:
            remedy = f"add --observe KEY, of {', '.join(groups)}"
            raise UsageError(f"environment {name!r} does not say what the policy itself observes: {remedy}")
        name = names.with_observed_keys(name, present)
    critic_key = CRITIC_KEYS.get(",".join(names.parse_env_name(name).observed_keys))
    return names.with_observed_keys(name, critic=critic_key) if critic_key in groups and not critic else name


def critic_size(name: str, backend: Backend = "auto") -> int:
    """Return the number of observation entries for the critic; 0 if it sees what the policy sees."""
    keys = names.parse_env_name(name).critic_keys
    groups = probe_env(name, backend, critic=True).groups if keys else {}
    return sum(groups[key] for key in keys)


def check_fit(agent: Agent, envs: HasSpaces, what: str = "the policy") -> None:
    """Raise unless the agent's observations and actions fit the environment."""
    if isinstance(agent, ConditionedPolicy) and agent.observation_size == envs.observation_size + len(agent.dials):
        raise UsageError(agent.missing_dials_message(what))
    if not agent.observation_size:  # a `MeanPrior` that was not placed
        raise UsageError(f"{what} runs as it is, and this needs one that can be copied: customize it, and name the run")
    if agent.observation_size != envs.observation_size:
        parts = ", ".join(f"{key} {size}" for key, size in envs.groups.items())
        hint = f" ({parts}; NAME?observe=KEY,KEY takes some of them)" if parts else ""
        gives = f"{envs.name!r} gives {envs.observation_size}{hint}"
        raise UsageError(f"{what} takes observations of {agent.observation_size} numbers, but {gives}")
    if (agent.actions.kind, agent.actions.sizes) != (envs.actions.kind, envs.actions.sizes):
        raise UsageError(f"{what} acts with {agent.actions}, but {envs.name!r} takes {envs.actions}")


def resolve_backend(backend: Backend, *agents: Agent) -> Backend:
    """Return the backend; for "auto", that of the environments that a planner among the agents copies."""
    planners = (agent.backend for agent in agents if isinstance(agent, EnvAwareAgent))
    return next(planners, backend) if backend == "auto" else backend
