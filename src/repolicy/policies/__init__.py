"""Our network and our file: distributions, normalizer, checks of a file, export."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.policies.density import Density
from repolicy.policies.distributions import (
    WIDE,
    ActionSpace,
    Categorical,
    Distribution,
    Gaussian,
    SquashedGaussian,
    log_tanh_slope,
)
from repolicy.policies.export import FORMAT_BY_SUFFIX, TOLERANCE
from repolicy.policies.families import FAMILIES, STDS, bound_raw_std
from repolicy.policies.file import (
    OBJECTIVE_SHAPE,
    PROBE_COUNT,
    SavedPolicy,
    add_to_card,
    check_policy_name,
    origin_notes,
    policy_bytes,
    read_card,
    read_decoder,
    read_saved_policy,
    save_policy,
)
from repolicy.policies.metadata import fingerprint
from repolicy.policies.modulated import ConditionedPolicy, FilmMlp
from repolicy.policies.network import (
    ACTIVATION_MODULES,
    ACTIVATIONS,
    Adam,
    Mlp,
    adam_step,
    add_networks,
    flatten,
    layers_of,
    load_layers,
    scale_outputs,
)
from repolicy.policies.normalizer import (
    CONSTANT_VARIANCE,
    OBSERVATION_BOUND,
    Normalizer,
    epsilon_for,
    merge_moments,
    moment_sums,
)
from repolicy.policies.policy import (
    Agent,
    EnvAwareAgent,
    Policy,
    PolicySpec,
    Prior,
    RecurrentActor,
    check_has_log_prob,
    frozen,
    kept_modules,
    make_policy,
    one_thread,
    trainable_copy,
    with_torch_defaults,
)

__all__ = ["density", "export", "metadata", "storage"]
