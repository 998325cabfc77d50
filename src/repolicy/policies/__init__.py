"""Our network and our file: distributions, normalizer, checks of a file, export."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.policies.adam import Adam, adam_step
from repolicy.policies.carrying import fingerprint
from repolicy.policies.density import Density
from repolicy.policies.distributions import (
    ActionSpace,
    Categorical,
    Distribution,
    Gaussian,
    SquashedGaussian,
    log_tanh_slope,
)
from repolicy.policies.export import BY_SUFFIX, SUFFIXES, TOLERANCE
from repolicy.policies.families import FAMILIES, STDS, bounded
from repolicy.policies.file import (
    OBJECTIVE,
    PROBES,
    SavedPolicy,
    add_to_card,
    decoder_in,
    notes_of,
    policy_bytes,
    read_card,
    read_own,
    save_policy,
)
from repolicy.policies.modulated import Conditioned, FilmMlp
from repolicy.policies.network import ACTIVATIONS, MODULES, Mlp, flatten, layers_of, load_layers, scaled, side_by_side
from repolicy.policies.normalizer import BOUND, Normalizer, merged, sums
from repolicy.policies.policy import (
    Agent,
    Policy,
    PolicySpec,
    Prior,
    Recalling,
    Watching,
    check_scores,
    copied,
    frozen,
    seeded,
)

__all__ = ["carrying", "density", "export", "storage"]
