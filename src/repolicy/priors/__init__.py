"""Whatever a user names as a prior: a name, a file, a place on the hub, an object, a function."""

# The door: other rooms import these names, and the files in `__all__`.
from repolicy.priors.decoders import Decoder, Through, decoder_of, export_composed, found_file, held, sum_of, take_out
from repolicy.priors.dials import How, beyond, dial, prior_in, turned
from repolicy.priors.finding import (
    PLAN,
    PRIORS,
    beside,
    check_no_plan,
    check_reachable,
    check_writes_over_none,
    find_policy,
    is_plan,
    on_shelf,
    shipped,
)
from repolicy.priors.fitting import Fitted, Samples, fit, fit_normalizer
from repolicy.priors.kinds import Function, MeanPrior, ScoredPrior, Scorer, Scoring, State, check_unread, qualname_of
from repolicy.priors.opening import (
    OpenedPolicy,
    Source,
    acting,
    check_own,
    described_with,
    from_source,
    is_code,
    load_policy,
    opened,
    own_bytes,
    read_file,
    read_policy,
    source_of,
)

__all__ = ["hub", "running"]
