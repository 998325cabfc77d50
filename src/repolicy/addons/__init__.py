"""Add-ons and limits: what a policy is to do besides, by name, function or file of a learnt wish."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.addons.addon import Addon, check_env, combine_addons, load_addon, weighted_wish
from repolicy.addons.addon_names import Wish
from repolicy.addons.limits import Limit, parse_limits
from repolicy.addons.trust import (
    TRUST_HINT,
    addons_from_card,
    backend_from_card,
    check_trust,
    env_from_card,
    limits_from_card,
)
from repolicy.addons.wish_file import (
    Features,
    LearntWish,
    Networks,
    are_same_env,
    check_same_env,
    network_inputs,
    open_wish,
    wish_request,
)

__all__ = ["addon_names", "registered"]
