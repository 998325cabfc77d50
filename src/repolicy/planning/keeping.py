"""Keep a planner: as a folder, or as a policy.

A folder holds its settings as JSON, and its prior's file; the planner is made again from these, to the same numbers.

A policy is a student, who begins as the prior and is fitted to what the planner would do. At first the planner acts,
and then the student does, so that it learns what to do where its own mistakes lead (DAgger). The planner goes on from
its plan of the step before all the while, whoever acts.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from repolicy.envs import TRUST_IT, Envs, confirm, env_of, make_envs, only_here
from repolicy.errors import FileError, UsageError
from repolicy.loading import read_json
from repolicy.planning.asking import Planned, plan
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Planner, Search, spread_of
from repolicy.policies import Policy, copied, frozen, read_card, save_policy
from repolicy.policies.storage import check_place, check_shape, write_bytes, write_json
from repolicy.priors import PLAN, OpenedPolicy, Samples, fit, is_plan, own_bytes
from repolicy.runs import one_thread, versions

FORMAT, PRIOR = 1, "prior.safetensors"
SEARCH = {
    "samples": int, "horizon": int, "knots": int, "noise": float, "share": float, "temperature?": float, "base": str,
    "closed": bool, "warm": bool, "discount": float, "seed": int,
}  # fmt: skip
SHAPE = {
    "format": int, "request": {"env": str, "addons": [str]}, "omega": float, "states": float, "value": bool,
    "learned?": bool, "search": SEARCH,
}  # fmt: skip


def check_free(folder: Path) -> None:
    """Raise where a planner's folder cannot be written, or would go over another's files."""
    check_place(folder / PLAN)
    others = [name for name in (PRIOR, "run.json") if (folder / name).exists()]
    if others and not is_plan(folder):
        raise UsageError(f"{folder / others[0]} is there already, and of no planner: choose another --out")


def keep(made: Planned, folder: Path) -> None:
    """Write a planner's folder."""
    if alone := only_here([made.env, *made.addons]):
        raise UsageError(f"{alone} lives in this Python session alone: write it into a file")
    kept = {
        "format": FORMAT,
        "request": {"env": made.env, "addons": list(made.addons)},
        "omega": made.score.omega,
        "states": made.score.states,
        "value": made.score.value is not None,
        "learned": isinstance(made.model, LearnedModel),
        "search": {name: value for name, value in asdict(made.search).items() if value is not None},
    }
    write_bytes(folder / PRIOR, own_bytes(made.saved))
    write_json(folder / PLAN, kept)


def open_planner(folder: Path, trust: bool) -> OpenedPolicy:
    """Return the planner in a folder, ready to act. Names of code in it are refused, unless the user trusts it."""
    path = folder / PLAN
    values = read_json(path)
    check_shape(values, SHAPE, str(path))
    if values["format"] > FORMAT:
        raise FileError(f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    addons = values["request"]["addons"]
    # There is no other way to name them.
    confirm(path, trust, env=values["request"]["env"], addons=addons, remedy=TRUST_IT)
    search = Search(**{name.removesuffix("?"): values["search"].get(name.removesuffix("?")) for name in SEARCH})
    env = env_of(values, path, trust=True)
    made = plan(
        folder / PRIOR, addons, env=env, omega=values["omega"], states=values["states"], value=values["value"],
        search=search, learned=values.get("learned", False),
    )  # fmt: skip
    return OpenedPolicy(str(folder), made, folder, made.saved.policy, values, made.notes)


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
        return Samples(torch.from_numpy(observations), torch.from_numpy(actions), torch.from_numpy(spread))


def whole(labels: int) -> int:
    """Return as many labels, or the next number that fills all rounds in all environments."""
    return -(-labels // (ROUNDS * ENVS)) * ROUNDS * ENVS


def check_room(labels: int, out: Path) -> None:
    """Raise where so many labels make no policy, or its file would go over something else."""
    if labels < ROUNDS * ENVS:
        raise UsageError(f"{labels} decisions are too few to learn from; take {ROUNDS * ENVS} or more")
    if out.suffix != ".safetensors":
        raise UsageError(f"--out {out} does not end in .safetensors, as a policy's file does")
    check_place(out)
    if out.exists() and (out.is_dir() or read_card(out).get("which") != KEPT):
        raise UsageError(f"{out} is there already, and no policy that was kept of a planner: choose another --out")


def distilled(planner: Planner, env: str, labels: int, seed: int = 0, say: Say = lambda sentence: None) -> Policy:
    """Return a policy that is fitted to so many decisions of a planner, or a few more.

    A std of all states stays the prior's.
    """
    prior, steps = planner.prior, whole(labels) // (ROUNDS * ENVS)
    student = copied(prior)
    generator = torch.Generator().manual_seed(seed)
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
    policy = distilled(made, made.env, labels, made.search.seed, say)
    weights = {"omega": made.score.omega, "states": made.score.states}
    request = {"env": made.env, "addons": list(made.addons), "objective": {"task": "addon"} | weights}
    card = {"which": KEPT, "request": request, "labels": whole(labels), "versions": versions()}
    save_policy(out, policy, card, made.saved.policy, made.score.density)
    return policy
