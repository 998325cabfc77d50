"""Sentences at the end of a run: which of its constraints are broken."""

import math
from typing import Any

import numpy as np

from repolicy.addons import Limit
from repolicy.learning.multipliers import Multipliers
from repolicy.text import with_minus

OVERSPENT_RATIO = 1.25  # spent/budget from which a warning follows
LAST_ITERATIONS = 20  # number of iterations by which a limit is judged


def constraint_warnings(multipliers: Multipliers, logged: dict[str, list[Any]]) -> list[str]:
    """Return a sentence for a budget, a kept share and for each limit that is broken at the end of a run."""
    budget, violation, sentences = multipliers.settings.budget, multipliers.budget_violation, []
    if budget is not None and violation > math.log(OVERSPENT_RATIO):
        ends = f"the run ends beyond its budget: {budget.compare(logged[budget.metric][-1])}"
        sentences.append(f"{ends}; the weights follow slowly, and more --steps give them time")
    limits = {f"limit_{name}": (held.limit, held.unit) for name, held in multipliers.limits.items()}
    if multipliers.keep:
        limits["kept"] = Limit("kept", -1, multipliers.keep), multipliers.may_lose
    for column, (limit, unit) in limits.items():
        values = np.array(logged[column][-LAST_ITERATIONS:])
        broken_by = limit.excess(values)
        error = broken_by.std() / math.sqrt(len(values))
        # Broken by more than a little, and by more than two standard errors.
        if broken_by.mean() > unit * math.log(OVERSPENT_RATIO) + 2.0 * error:
            found = f"the last {len(values)} iterations have {with_minus(f'{values.mean():.3g}')}"
            sentences.append(f"limit {limit} is broken: {found}; more --steps may do, or a wish that weighs less")
    return sentences
