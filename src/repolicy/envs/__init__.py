"""Batches of environments behind one `Step`, and rollouts."""

# The door: other rooms import these names.
from repolicy.envs.batches import EnvPoolEnvs, GymnasiumEnvs, check_copies, copy_env, merge_infos, stack_observations
from repolicy.envs.episode_sums import EpisodeSums
from repolicy.envs.making import (
    Spaces,
    check_fit,
    check_observed_alike,
    critic_size,
    evaluation_backend,
    make_envs,
    match_observation,
    open_policy_in_env,
    place_prior,
    probe_env,
    resolve_backend,
    with_observation_roles,
    wrap_decoder,
)
from repolicy.envs.names import (
    RESET_PREFIX,
    EnvLike,
    check_plain,
    env_maker,
    env_name,
    envpool_names,
    find_session_only,
    make_one_env,
    parse_env_name,
    why_no_envpool,
    with_decoder,
    with_observed_keys,
    with_observed_keys_of,
    with_option,
)
from repolicy.envs.rollout import AddonState, Collector, Rollout, StatefulAddon, Transitions, staggered_cuts
from repolicy.envs.step import (
    Backend,
    Envs,
    HasSpaces,
    Info,
    PartialInfo,
    action_space,
    check_reward,
    flatten_observations,
    group_sizes,
    observation_size,
    observed_parts,
    stack_infos,
    to_env_actions,
    to_env_numbers,
)
from repolicy.envs.watchdog import ENV_CALL, Watchdog
from repolicy.envs.wrapped import DialedEnvs, DialPositions

__all__: list[str] = []
