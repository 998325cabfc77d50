"""Batches of environments behind one `Step`, add-ons, rollouts and evaluations."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.envs.addons import Addon, Limit, Wish, check_env, combined, limits, wished
from repolicy.envs.batches import EnvPoolEnvs, GymnasiumEnvs, check_copied, copied_env, together
from repolicy.envs.evaluation import (
    BLOCK,
    EPISODE_CAP,
    EVALUATION_SEED,
    MOST_ENVS,
    Column,
    Evaluation,
    backend_of,
    check_fit,
    evaluate,
    run_episodes,
)
from repolicy.envs.making import (
    Spaces,
    acting_in,
    critic_size,
    make_envs,
    observing,
    placed,
    probed,
    through_noise,
    with_roles,
)
from repolicy.envs.names import (
    RESET,
    EnvLike,
    check_plain,
    chunk_of,
    decoder,
    env_name,
    envpool_names,
    in_gymnasium,
    maker,
    observed,
    observed_by_critic,
    of_reset,
    one_env,
    only_here,
    parsed,
    with_decoder,
    with_observed,
    with_observed_of,
)
from repolicy.envs.rollout import Collector, Past, Rollout, Transitions, staggered
from repolicy.envs.step import (
    Backend,
    Envs,
    HasSpaces,
    Info,
    action_space,
    check_reward,
    flat,
    group_sizes,
    native,
    observation_size,
    own_numbers,
    shown,
    stacked,
)
from repolicy.envs.trust import TRUST_IT, addons_of, confirm, env_of
from repolicy.envs.watchdog import NOTE, Watchdog
from repolicy.envs.wish_file import Features, LearntWish, Networks, check_same_env, inputs_of, open_wish
from repolicy.envs.wrapped import Dialed, Places

__all__ = ["addons", "registered"]
