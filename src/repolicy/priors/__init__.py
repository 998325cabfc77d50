"""Whatever a user names as a prior: a name, a file, a place on the hub, an object, a function."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.priors.decoders import (
    Decoder,
    DecoderSpec,
    decoder_bytes,
    decoder_digest,
    export_composed,
    find_decoder_file,
    load_decoder,
    restore_decoder,
)
from repolicy.priors.dials import How, dial, extrapolation_warning, interpolate_policies, require_prior
from repolicy.priors.finding import (
    PLAN_FILE,
    SHIPPED_FOLDER,
    check_no_plan,
    check_not_overwriting,
    find_policy,
    is_plan,
    newest_checkpoint,
    output_folder,
    shelf_entry,
    shipped_names,
)
from repolicy.priors.fitting import SMALL_STD, FitResult, Samples, fit, fit_normalizer
from repolicy.priors.kinds import (
    MeanFunction,
    MeanPrior,
    ScoredPrior,
    Scorer,
    ScoringPrior,
    State,
    check_no_options,
    qualname_of,
)
from repolicy.priors.opening import (
    OpenedPolicy,
    PriorSource,
    describe_file,
    is_code,
    load_policy,
    open_agent,
    open_policy,
    prior_from_source,
    prior_source,
    read_file,
    read_policy,
    saved_policy_bytes,
)

__all__ = ["hub", "running"]
