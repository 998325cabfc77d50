"""Keeping a planner as a policy: a student, who begins as the prior, is fitted to what the planner would do.

At first the planner acts, and then the student does, so that it learns what to do where its own mistakes lead (DAgger).
The planner goes on from its plan of the step before all the while, whoever acts.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from repolicy.envs import Envs, make_envs
from repolicy.errors import UsageError
from repolicy.planning.asking import Planned
from repolicy.planning.planner import Planner, spread_of
from repolicy.policies import Policy, frozen, read_card, save_policy
from repolicy.policies.storage import check_place
from repolicy.priors import Samples, fit
from repolicy.runs import one_thread, versions

ENVS, ROUNDS, MOST_EPOCHS = 16, 4, 100
KEPT = "planned"  # what the card of its file says that it is

Say = Callable[[str], None]


class Lesson:
    """Environments in which a planner says what to do, and does it or has a student do what it thinks that is."""

    def __init__(self, planner: Planner, envs: Envs) -> None:
        self.planner, self.falls = planner, 0
        planner.watch(envs)
        self._envs, self._seen, self._planning = envs, envs.reset(), planner.actor(1, envs.count)

    @torch.no_grad()
    def labels(self, steps: int, student: Policy | None) -> Samples:
        """Return what the planner would have done in so many steps. Without a student it does that."""
        seen, wanted = list[np.ndarray](), list[np.ndarray]()
        for _ in range(steps):
            seen.append(self._seen)
            wanted.append(self._planning(self._seen))
            done = wanted[-1] if student is None else student.actor(1, len(self._seen))(self._seen)
            step = self._envs.step(self.planner.to_environment(done))
            self._planning.begin_anew(step.terminated | step.truncated)
            self.falls += int(step.terminated.sum())
            self._seen = step.observations
        observations, actions = np.concatenate(seen), np.concatenate(wanted)
        spread = np.ascontiguousarray(spread_of(self.planner.prior, observations))
        return Samples(*(torch.from_numpy(each) for each in (observations, actions, spread)))


def check_room(labels: int, out: Path) -> None:
    """Raise where so many labels make no policy, or its file would go over something else."""
    if labels < ROUNDS * ENVS:
        raise UsageError(f"{labels} decisions are too few to learn from; take {ROUNDS * ENVS} or more")
    check_place(out)
    if out.exists() and (out.is_dir() or read_card(out).get("which") != KEPT):
        raise UsageError(f"{out} is there already, and no policy that was kept of a planner: choose another --out")


def distilled(planner: Planner, env: str, labels: int, seed: int = 0, say: Say = lambda sentence: None) -> Policy:
    """Return a policy that is fitted to so many decisions of a planner. A std of all states stays the prior's."""
    prior, steps = planner.prior, labels // (ROUNDS * ENVS)
    student, generator = frozen(prior).requires_grad_(True), torch.Generator().manual_seed(seed)
    with one_thread(), closing(make_envs(env, ENVS, seed, planner.backend)) as envs:
        lesson = Lesson(planner, envs)
        samples = lesson.labels(steps, None)
        for round_ in range(ROUNDS):
            if round_:
                samples = samples + lesson.labels(steps, student)
            fitted = fit(student, samples, generator, most_epochs=MOST_EPOCHS)
            say(f"fitted to {fitted.rows:,} decisions; episodes that ended by themselves until now: {lesson.falls}")
    if student.log_std is not None:
        student.log_std.data.copy_(prior.state_dict()["log_std"])
    return frozen(student)


def keep_as_policy(made: Planned, labels: int, out: Path, say: Say) -> Policy:
    """Write the file of a policy that does what a planner does, and return it."""
    planner, prior = made.planner, made.saved.policy
    policy = distilled(planner, made.env, labels, planner.search.seed, say)
    weights = {"omega": planner.score.omega, "states": planner.score.states}
    request = {"env": made.env, "addons": list(made.addons), "objective": {"task": "addon"} | weights}
    card = {"which": KEPT, "request": request, "labels": labels, "versions": versions()}
    save_policy(out, policy, card, prior, planner.score.density)
    return policy
