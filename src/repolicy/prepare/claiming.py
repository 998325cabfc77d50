"""Claim a run's folder, and see by trial steps whether what it runs is what it was when the run began."""

import contextlib

import torch
from torch import Tensor

from repolicy.addons import addon_names, combine_addons, parse_limits
from repolicy.errors import RepolicyError, UsageError
from repolicy.policies.storage import read, write
from repolicy.prepare.beginning import Start
from repolicy.prepare.weights import collect_trial, untrained_policy
from repolicy.priors import Scorer, ScoringPrior, read_policy
from repolicy.runs import Request, RunFolder, versions

COMPARED_STEPS = 32  # trial steps of each environment, compared when a run is resumed
COMPARED_TOLERANCE = 1e-3  # share of a number's span; processors round differently, and robots amplify it


def claim_folder(request: Request, folder: RunFolder, resume: bool, start: Start | None) -> list[str]:
    """Claim the folder for a run and return messages for the user.

    Raises where an environment, a limit, an add-on or a prior that runs as it is gives other numbers than when the run
    began, although it is reproducible and the versions are the same. Then its source, or something that it imports,
    has changed.
    """
    prior, init = (None, None) if start is None else (start.content, start.init)
    notes = folder.begin(request, versions(), resume, prior, init)
    scoring_prior = None if start is None else start.scoring_prior
    numbers = _trial_numbers(request, folder, scoring_prior)
    if not folder.trial.exists():
        write(folder.trial, "trial", numbers, {})
        return notes
    stored_numbers, _ = read(folder.trial, "trial")
    changed = _first_difference(stored_numbers, numbers)
    if changed is None:
        return notes
    sentence = f"{changed} is not what it was when the run in {folder.path} began: the same trial steps differ"
    if _first_difference(numbers, _trial_numbers(request, folder, scoring_prior)) is not None:
        return [*notes, f"{sentence}, and they do not repeat themselves: no run of it ends in the same bits"]
    if any("other versions" in note for note in notes):
        return [*notes, sentence]
    raise UsageError(f"{sentence}; put its source back, or begin a run of its own in another --out")


def _trial_numbers(request: Request, folder: RunFolder, scoring_prior: ScoringPrior | None) -> dict[str, Tensor]:
    """Return the numbers of environment, limits, add-ons and scoring prior in trial steps, up to the first error."""
    settings, numbers = request.settings, dict[str, Tensor]()
    with contextlib.suppress(RepolicyError):
        agent = read_policy(folder.prior).policy if request.prior else untrained_policy(request.env, settings)
        rollout = collect_trial(agent, request.env, settings, COMPARED_STEPS)
        numbers[f"environment {request.env!r}"] = torch.from_numpy(rollout.observations)
        if request.objective.reads_basic or settings.keep is not None:
            numbers[f"the reward of {request.env!r}"] = torch.from_numpy(rollout.basic)
        for limit in parse_limits(request.limits, request.env):
            numbers[f"limit {limit}"] = torch.from_numpy(limit.values(rollout))
        for name in addon_names.with_weights(request.addons):
            reward = combine_addons([name]).reward(rollout.transitions)
            numbers[f"add-on {name!r}"] = torch.as_tensor(reward, dtype=torch.float64)
        if scoring_prior is not None:
            numbers["the prior (or its std)"] = Scorer(scoring_prior)(*rollout.prior_inputs)
    return numbers


def _first_difference(stored: dict[str, Tensor], current: dict[str, Tensor]) -> str | None:
    """Return the name of the first entry whose numbers `[T, N, ...]` differ; the environment comes first."""
    for name in sorted(stored, key=lambda name: (name.startswith(("limit", "add-on", "the prior")), name)):
        before, after = stored[name], current.get(name)
        if after is None or after.shape != before.shape:
            return name
        finite = before.nan_to_num()
        largest, span = finite.abs().amax((0, 1)), finite.amax((0, 1)) - finite.amin((0, 1))
        # Of each number; a tiny span may be rounding. Where the scale is 0, what stays 0 is 0 / 0.
        scale = torch.where(span > 0, torch.maximum(span, COMPARED_TOLERANCE * largest), largest)
        if not torch.allclose(after / scale, before / scale, rtol=0.0, atol=COMPARED_TOLERANCE, equal_nan=True):
            return name
    return None
