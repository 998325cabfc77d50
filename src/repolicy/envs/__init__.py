"""Batches of environments behind one `Step`, add-ons, rollouts and evaluations."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.envs.addon_names import Wish
from repolicy.envs.addons import Addon, check_env, combine_addons, load_addon
from repolicy.envs.batches import EnvPoolEnvs, GymnasiumEnvs, check_copies, copy_env, merge_infos, stack_observations
from repolicy.envs.evaluation import (
    ACTIONS,
    BLOCK_STEPS,
    EPISODE_CAP,
    EVALUATION_SEED,
    MAX_ENVS,
    Column,
    Evaluation,
    check_fit,
    check_is_agent,
    evaluate,
    resolve_backend,
    run_episodes,
)
from repolicy.envs.limits import Limit, parse_limits
from repolicy.envs.making import (
    Spaces,
    critic_size,
    make_envs,
    match_observation,
    open_policy_in_env,
    place_prior,
    probe_env,
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
    with_decoder,
    with_observed_keys,
    with_observed_keys_of,
)
from repolicy.envs.rollout import AddonState, Collector, Rollout, Transitions, staggered_cuts
from repolicy.envs.step import (
    Backend,
    Envs,
    HasSpaces,
    Info,
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
from repolicy.envs.trust import TRUST_HINT, addons_from_card, check_trust, env_from_card, limits_from_card
from repolicy.envs.watchdog import ENV_CALL, Watchdog
from repolicy.envs.wish_file import (
    Features,
    LearntWish,
    Networks,
    check_same_env,
    network_inputs,
    open_wish,
    wish_request,
)
from repolicy.envs.wrapped import DialedEnvs, DialPositions

__all__ = ["addon_names", "registered"]
