"""Sentences at the end of a run: whether its constraints held."""

import math
from typing import Any

import numpy as np

from repolicy.differences import Column
from repolicy.evaluation import ACTIONS
from repolicy.learning.multipliers import Multipliers, deployed_episodes
from repolicy.policies import Policy
from repolicy.priors import MeanPrior
from repolicy.runs import Estimate, Request
from repolicy.text import with_minus

OVERSPENT_RATIO = 1.25  # spent/budget from which a warning follows
LAST_ITERATIONS = 20  # number of iterations by which a limit is judged
MORE_STEPS = "the weights follow slowly, and more --steps give them time"


def kept_sentence(prior: MeanPrior | Policy, policy: Policy, request: Request, what: str = "the old return") -> str:
    """Return a sentence on the share of the prior's return, named `what`, that a finished run's policy keeps."""
    evaluations = [deployed_episodes(each, request) for each in (prior, policy)]
    before, after = (each.basic for each in evaluations)
    size = abs(float(before.mean())) or 1.0
    rest = after - after.mean() / (before.mean() or 1.0) * before  # of the same starts; beyond the ratio of both means
    kept = Estimate(1.0 + float(after.mean() - before.mean()) / size, Column("", rest).error / size)
    wanted = float(request.settings.keep or 0.0)
    sentence = (
        f"it keeps {with_minus(f'{kept.mean:.1%} ± {kept.error:.1%}')} of {what} {ACTIONS[evaluations[0].action]}"
    )
    sentence += f", and was to keep {100.0 * wanted:.6g}%"
    return f"{sentence}; {MORE_STEPS}" if wanted - kept.mean > 2.0 * kept.error else sentence


def constraint_warnings(multipliers: Multipliers, logged: dict[str, list[Any]]) -> list[str]:
    """Return a sentence for a budget and for each limit that is broken at the end of a run."""
    budget, violation, sentences = multipliers.settings.budget, multipliers.budget_violation, []
    if budget is not None and violation > math.log(OVERSPENT_RATIO):
        sentences.append(f"the run ends beyond its budget: {budget.compare(logged[budget.metric][-1])}; {MORE_STEPS}")
    for name, held in multipliers.limits.items():
        values = np.array(logged[f"limit_{name}"])
        count = min(LAST_ITERATIONS, len(values))
        broken_by = held.limit.excess(values[-count:])
        error = broken_by.std() / math.sqrt(count)
        # Broken by more than a little, and by more than two standard errors.
        if broken_by.mean() > held.unit * math.log(OVERSPENT_RATIO) + 2.0 * error:
            best = min(np.convolve(values, np.full(count, 1 / count), "valid"), key=held.limit.excess)
            sentences.append(
                f"limit {name} is broken: the last {count} iterations have "
                + with_minus(f"{values[-count:].mean():.3g}, the best {count} {best:.3g}")
                + "; more --steps may do, or a wish that weighs less"
            )
    return sentences
