"""What a nat of each shipped prior is worth: a line of the ledger, and from there onto the priors' cards.

    python -m experiments.nat_worth

With `--std 0.7` sampled actions have that share of the prior's std: a nat is still one of the prior's, and no card is
written. What is in the ledger is not measured again.
"""

import math
from dataclasses import asdict, replace
from functools import partial

from experiments import campaign
from experiments.ledger import Ledger, Row
from repolicy.envs.trust import env_from_card
from repolicy.policies.file import add_to_card
from repolicy.prepare.worth import measure_worth
from repolicy.priors.finding import find_policy, shipped_names
from repolicy.priors.opening import read_policy


def measure(name: str, episodes: int, std: float) -> Row:
    path = find_policy(name)
    saved = read_policy(path)
    env = env_from_card(saved.card, path)
    assert saved.policy.log_std is not None
    saved.policy.log_std.data += math.log(std)
    found = measure_worth(saved.policy, env, episodes)
    assert found is not None
    share = std**2  # a nat of the narrower policy is this share of one of the prior's
    found = replace(found, value=found.value / share, error=found.error / share)
    return {"env": env, "alpha": saved.card["request"]["objective"]["alpha"], "std": std, **asdict(found)}


@campaign.program("ledger", episodes=256, priors=tuple(shipped_names()), std=1.0)
def main(options: campaign.Options) -> None:
    narrower = "" if options.std == 1.0 else f" --std {options.std:g}"
    keys = {name + narrower: name for name in options.priors}
    campaign.measure_missing(
        options.ledger, {key: partial(measure, name, options.episodes, options.std) for key, name in keys.items()}
    )
    for key, row in Ledger(options.ledger).by_key().items():
        if key in keys and not narrower:
            add_to_card(find_policy(key), {"nat_worth": {part: row[part] for part in ("value", "error", "episodes")}})
