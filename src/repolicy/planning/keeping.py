"""Save a planner, as a folder or as a policy.

A folder holds the planner's settings as JSON, with the checksum of its prior's file, and that file. A planner made from
them gives the same numbers.

A policy is a student that begins as the prior and is fitted to the planner's actions. In the first round the planner
acts. In later rounds the student acts and the planner labels its states, so that the student learns to correct its own
mistakes (DAgger). The planner continues from its previous plan in either case.
"""

import hashlib
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repolicy.addons import TRUST_HINT, check_trust, env_from_card
from repolicy.envs import Envs, find_session_only, make_envs
from repolicy.errors import FileError, UsageError
from repolicy.files import check_shape, check_writable, file_sum, read_json, write_bytes, write_json
from repolicy.planning.asking import Planned, plan
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.planner import Planner, Search, spread_of
from repolicy.policies import Policy, frozen, one_thread, read_card, save_policy, trainable_copy
from repolicy.priors import PLAN_FILE, OpenedPolicy, Samples, fit, is_plan, saved_policy_bytes
from repolicy.runs import versions
from repolicy.text import Say

FORMAT, PRIOR = 1, "prior.safetensors"
SEARCH = {
    "samples": int, "horizon": int, "knots": int, "noise": float, "share": float, "temperature?": float,
    "closed": bool, "warm": bool, "discount": float, "seed": int,
}  # fmt: skip
SHAPE = {
    "format": int, "prior": str, "request": {"env": str, "addons": [str]}, "omega": float, "states": float,
    "value": bool, "learned?": bool, "search": SEARCH,
}  # fmt: skip


def check_free(folder: Path, env: str, addons: tuple[str, ...]) -> None:
    """Raise UsageError if the folder cannot be written, or holds something other than a planner for this request."""
    check_writable(folder / PLAN_FILE)
    if is_plan(folder):
        _check_same_request(folder, read_plan(folder)["request"], env, addons)
    elif others := [name for name in (PRIOR, "run.json") if (folder / name).exists()]:
        raise UsageError(f"{folder / others[0]} is there already, and of no planner: choose another --out")


def _check_same_request(out: Path, request: dict[str, Any], env: str, addons: tuple[str, ...]) -> None:
    """Raise UsageError if what is at `out` was made for another environment or wish."""
    if (request["env"], tuple(request["addons"])) != (env, addons):
        wish = f"{' + '.join(request['addons'])} in {request['env']}"
        raise UsageError(f"{out} is there already, for {wish}: choose another --out")


def save_planner(made: Planned, folder: Path) -> None:
    """Write a planner's folder."""
    if unsaved := find_session_only([made.env, *made.addons]):
        raise UsageError(f"{unsaved} lives in this Python session alone: write it into a file")
    prior = saved_policy_bytes(made.saved)
    values = {
        "format": FORMAT,
        "prior": hashlib.sha256(prior).hexdigest(),
        "request": {"env": made.env, "addons": list(made.addons)},
        "omega": made.score.omega,
        "states": made.score.states,
        "value": made.score.value is not None,
        "learned": isinstance(made.model, LearnedModel),
        "search": {name: value for name, value in asdict(made.search).items() if value is not None},
    }
    write_bytes(folder / PRIOR, prior)
    write_json(folder / PLAN_FILE, values)


def read_plan(folder: Path) -> dict[str, Any]:
    """Return what a planner's folder tells of it; raise if it is damaged or of a later format."""
    path = folder / PLAN_FILE
    values: dict[str, Any] = read_json(path)
    check_shape(values, SHAPE, str(path))
    if values["format"] > FORMAT:
        raise FileError(f"{path} has format {values['format']}; this version reads up to {FORMAT}: upgrade repolicy")
    return values


def open_planner(folder: Path, trust: bool) -> OpenedPolicy:
    """Return the planner in a folder. Raise if the folder names code that the user does not trust."""
    path, values = folder / PLAN_FILE, read_plan(folder)
    if values["prior"] != file_sum(folder / PRIOR):
        raise FileError(f"{folder / PRIOR} is not the prior of this planner: save the planner again")
    addons = values["request"]["addons"]
    # A user cannot name the environment and the add-ons in another way here, so the remedy is to trust the folder.
    check_trust(path, trust, env=values["request"]["env"], addons=addons, remedy=TRUST_HINT)
    search = Search(**{field.name: values["search"].get(field.name) for field in fields(Search)})
    env = env_from_card(values, path, trust=True)
    made = plan(
        folder / PRIOR, addons, env=env, omega=values["omega"], states=values["states"], value=values["value"],
        search=search, learned=values.get("learned", False),
    )  # fmt: skip
    return OpenedPolicy(str(folder), made, folder, made.saved.policy, values, made.notes)


ENVS, ROUNDS, MAX_EPOCHS = 16, 4, 100
WHICH = "planned"  # the entry `which` in the card of a distilled policy


class Labeler:
    """Environments in which the planner labels each state with its action, while it or a student acts."""

    def __init__(self, planner: Planner, envs: Envs) -> None:
        self.planner, self.falls = planner, 0  # episodes that terminated
        planner.watch(envs)
        self._envs, self._observations, self._actor = envs, envs.reset(), planner.actor(1, envs.count)

    @torch.no_grad()
    def labels(self, steps: int, student: Policy | None) -> Samples:
        """Return the planner's actions in so many steps. The student acts or, without one, the planner itself."""
        visited, labels = list[np.ndarray](), list[np.ndarray]()
        for _ in range(steps):
            observations = self._observations
            visited.append(observations)
            labels.append(self._actor(observations))
            actions = labels[-1] if student is None else student.actor(1, len(observations))(observations)
            step = self._envs.step(self.planner.to_environment(actions))
            self._actor.reset_memory(step.terminated | step.truncated)
            self.falls += int(step.terminated.sum())
            self._observations = step.observations
        observations = np.concatenate(visited)
        std = np.ascontiguousarray(spread_of(self.planner.prior, observations))
        return Samples(torch.from_numpy(observations), torch.from_numpy(np.concatenate(labels)), torch.from_numpy(std))


def rounded_up(labels: int) -> int:
    """Return the number of labels, rounded up to whole steps of all environments in all rounds."""
    return -(-labels // (ROUNDS * ENVS)) * ROUNDS * ENVS


def check_room(labels: int, out: Path, env: str, addons: tuple[str, ...]) -> None:
    """Raise UsageError if the labels are too few, or if `out` cannot be written or was not made for this request."""
    if labels < ROUNDS * ENVS:
        raise UsageError(f"{labels} decisions are too few to learn from; take {ROUNDS * ENVS} or more")
    if out.suffix != ".safetensors":
        raise UsageError(f"--out {out} does not end in .safetensors, as a policy's file does")
    check_writable(out)
    if out.exists():
        card = {} if out.is_dir() else read_card(out)
        if card.get("which") != WHICH:
            raise UsageError(f"{out} is there already, and no policy that was kept of a planner: choose another --out")
        _check_same_request(out, card["request"], env, addons)


def distill(planner: Planner, env: str, labels: int, seed: int = 0, say: Say = lambda sentence: None) -> Policy:
    """Return a policy fitted to at least so many decisions of a planner.

    A std that does not depend on the state stays the prior's.
    """
    prior, steps = planner.prior, rounded_up(labels) // (ROUNDS * ENVS)
    student = trainable_copy(prior)
    generator = torch.Generator().manual_seed(seed)
    with one_thread(), closing(make_envs(env, ENVS, seed, planner.backend)) as envs:
        labeler = Labeler(planner, envs)
        samples = labeler.labels(steps, None)
        for round_ in range(ROUNDS):
            if round_:
                samples = samples + labeler.labels(steps, student)
            fitted = fit(student, samples, generator, max_epochs=MAX_EPOCHS)
            say(f"fitted to {fitted.rows:,} decisions; episodes that ended by themselves until now: {labeler.falls}")
    if student.log_std is not None:
        student.log_std.data.copy_(prior.state_dict()["log_std"])
    return frozen(student)


def save_distilled(made: Planned, labels: int, out: Path, say: Say) -> Policy:
    """Distill a planner into a policy, write its file, and return it."""
    policy = distill(made, made.env, labels, made.search.seed, say)
    weights = {"omega": made.score.omega, "states": made.score.states}
    request = {"env": made.env, "addons": list(made.addons), "objective": {"task": "addon"} | weights}
    card = {"which": WHICH, "request": request, "labels": rounded_up(labels), "versions": versions()}
    save_policy(out, policy, card, made.saved.policy, made.score.density)
    return policy
