"""Measure what a nat of each shipped prior is worth.

    python -m experiments.nat_worth
    python -m experiments.nat_worth --ship      # write what the ledger has into the shipped priors' cards

With `--std 0.7`, sampled actions have 0.7 of the prior's std. A nat is still one of the prior.
Priors in the ledger are not measured again.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial

from experiments import campaign
from experiments.ledger import Ledger, Row
from repolicy.addons.trust import env_from_card
from repolicy.policies.file import add_to_card
from repolicy.prepare.worth import measure_worth
from repolicy.priors.finding import find_policy, shipped_names
from repolicy.priors.opening import read_policy


def measure(name: str, episodes: int, std: float) -> Row:
    """Return the worth of a nat of a prior whose std is multiplied by `std`."""
    path = find_policy(name)
    saved = read_policy(path)
    env = env_from_card(saved.card, path)
    assert saved.policy.log_std is not None
    saved.policy.log_std.data += math.log(std)
    worth = measure_worth(saved.policy, env, episodes)
    assert worth is not None
    share = std**2  # one nat of the narrower policy is this share of a nat of the prior
    worth = replace(worth, value=worth.value / share, error=worth.error / share)
    return {"env": env, "alpha": saved.card["request"]["objective"]["alpha"], "std": std, **asdict(worth)}


def ship(rows: campaign.Rows, names: Iterable[str]) -> None:
    """Write the worths that were measured into the cards of the shipped priors."""
    for name in names:
        worth = {part: rows[name][part] for part in ("value", "error", "episodes")}
        add_to_card(find_policy(name), {"nat_worth": worth})


@campaign.program("ledger", episodes=256, priors=tuple(shipped_names()), std=1.0, ship=False)
def main(options: campaign.Options) -> campaign.Measurements:
    if options.ship:
        ship(Ledger(options.ledger).by_key(), options.priors)
        return {}
    narrower = "" if options.std == 1.0 else f" --std {options.std:g}"
    return {name + narrower: partial(measure, name, options.episodes, options.std) for name in options.priors}
