"""Describe a file, and describe an environment for a robot's program.

That is names, units and order, and the control period. Nothing is guessed: a MuJoCo environment's numbers have names
only where they are found to be its joints' positions and velocities, those of the first observation.
"""

import math
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repolicy.envs import (
    decoder_options,
    env_maker,
    envpool_names,
    group_sizes,
    is_in_gymnasium,
    observed_parts,
    parse_env_name,
)
from repolicy.errors import FileError, UsageError, in_one_sentence
from repolicy.loading import read_json
from repolicy.policies import PROBE_COUNT, ConditionedPolicy, Gaussian, Policy, SquashedGaussian, fingerprint
from repolicy.policies.storage import is_repolicy_file, read
from repolicy.priors import (
    PLAN_FILE,
    check_own_file_options,
    check_reachable,
    describe_file,
    find_policy,
    is_plan,
    read_file,
    read_policy,
)
from repolicy.priors.hub import is_on_hub
from repolicy.ranges import Range
from repolicy.readers.reading import Options
from repolicy.readers.recognize import RUNNABLE_FORMATS, PolicyFile
from repolicy.runs import Request, RunFolder, Terminal, budget_of

FREE = tuple(f".{part}" for part in ("x", "y", "z", "qw", "qx", "qy", "qz"))  # what a joint's name is followed by
TURNING = tuple(f".w{axis}" for axis in "xyz")
KINDS = {  # of MuJoCo's joints, by their number: parts and units of position, and of velocity
    0: (FREE, ("m",) * 3 + ("",) * 4, (*FREE[:3], *TURNING), ("m/s",) * 3 + ("rad/s",) * 3),
    1: (FREE[3:], ("",) * 4, TURNING, ("rad/s",) * 3),
    2: (("",), ("m",), ("",), ("m/s",)),
    3: (("",), ("rad",), ("",), ("rad/s",)),
}


def contract(name: str) -> dict[str, Any]:
    """Return what is known of an environment: `control_period` in seconds, names and units in order; or nothing."""
    with (
        in_one_sentence(f"environment {name!r} does not tell what it is", UsageError),
        warnings.catch_warnings(action="ignore"),  # of what is out of date, and of bounds that are rounded
    ):
        found = _of_gymnasium(name) if is_in_gymnasium(name) else _of_envpool(name)
    if decoder_options(name):  # what acts are numbers of noise
        found.pop("actions", None)
    return {"env": name} | found


def _of_envpool(name: str) -> dict[str, Any]:
    plain, options = parse_env_name(name)
    if plain not in envpool_names():
        return {}
    import envpool

    spec = envpool.make_spec(plain, **options)
    found: dict[str, Any] = {}
    if hasattr(spec.config, "ctrl_dt"):
        found["control_period"] = float(spec.config.ctrl_dt)
    return found | _parts(spec.observation_space, name)


def _of_gymnasium(name: str) -> dict[str, Any]:
    with closing(env_maker(name)()) as env:
        own: Any = env.unwrapped
        found = _parts(env.observation_space, name)
        model: Any = getattr(own, "model", None)
        period = getattr(own, "dt", 0)
        if isinstance(period, float | int) and period > 0:
            found["control_period"] = float(period)
        if hasattr(model, "actuator_trnid") and model.nu == np.prod(env.action_space.shape or ()):
            joints = [model.joint(model.actuator_trnid[index, 0]).name for index in range(model.nu)]
            names = [model.actuator(index).name or joint for index, joint in enumerate(joints)]
            found["actions"] = {"names": names} if all(names) else {}
        if hasattr(model, "jnt_type") and "observations" not in found:
            found |= _of_joints(model, own.data, np.ravel(env.reset(seed=0)[0]), own)
    return found


def _parts(space: Any, name: str) -> dict[str, Any]:
    """Return the order of a Dict's parts, as the policy sees them."""
    sizes, keys = group_sizes(space, name), observed_parts(space, name, critic=False)[0]
    names = [f"{key}[{index}]" for key in keys or sizes for index in range(sizes[key])]
    return {"observations": {"names": names}} if names else {}


def _of_joints(model: Any, data: Any, seen: np.ndarray, env: Any) -> dict[str, Any]:
    """Return names of an observation that is positions (but the first few), velocities, and parts of a known size."""
    positions, velocities = [], []
    for index in range(model.njnt):
        parts, units, moving, speeds = KINDS[int(model.jnt_type[index])]
        joint = model.joint(index).name
        positions += [(f"position of {joint}{part}", unit) for part, unit in zip(parts, units, strict=True)]
        velocities += [(f"velocity of {joint}{part}", unit) for part, unit in zip(moving, speeds, strict=True)]
    for left_out in range(3):  # a world's x and y
        entries = positions[left_out:] + velocities
        state = np.concatenate([data.qpos[left_out:], data.qvel])
        if len(state) <= len(seen) and np.allclose(seen[: len(state)], state, rtol=0.0, atol=1e-12):
            sizes = getattr(env, "observation_structure", {})
            others = [key for key in sizes if key not in ("skipped_qpos", "qpos", "qvel")]
            entries += [(f"{key}[{index}]", "") for key in others for index in range(sizes[key])]
            names, units = zip(*entries, strict=True)
            return {"observations": {"names": names, "units": units}} if len(names) == len(seen) else {}
    return {}


MAX_ROWS = 64  # rows of a table on the screen
MAX_STDS = 8  # more do not fit into a line
DIAL = "{name} from {low:g} to {high:g}, {scale}; NaN counts as {if_nan:g}"
Story = tuple[dict[str, Any], dict[str, Any]]  # what is printed, and what --json tells besides


def inspect(path: Path, options: Options | None = None) -> dict[str, Any]:
    """Return the story of a policy, a checkpoint or a run's folder: printed, and returned."""
    if not is_on_hub(path):
        check_reachable(path)
    more: dict[str, Any] = {}
    if is_plan(path):
        check_own_file_options(path, options)
        facts = {"folder": str(path), "kind": "planner"} | read_json(path / PLAN_FILE)
    elif (path / "run.json").exists():
        check_own_file_options(path, options)
        facts, more = _of_run(path)
    else:
        facts, more = _of_file(PolicyFile(find_policy(path)), options or Options())
    Terminal().facts(facts)
    if "carries" in more:
        _print_contract(more["carries"])
    return facts | more


def _of_file(file: PolicyFile, options: Options) -> Story:
    if not is_repolicy_file(file.path, file.content):
        carries = {"carries": file.embedded.deployment_info} if file.embedded and file.embedded.deployment_info else {}
        if file.repolicy_bytes is None:
            return _of_foreign(file, options), carries
        facts, more = _of_policy(file, options, f", in a file of {file.format}")
        return facts, more | carries
    check_own_file_options(file.path, options)
    tensors, header = read(file.path, content=file.content)
    if header["kind"] == "policy":
        return _of_policy(file, options)
    # a checkpoint, or the batch that a run failed on
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return header | {"file": str(file.path), "tensors": shapes}, {}


def _of_policy(file: PolicyFile, options: Options, exported: str = "") -> Story:
    saved = read_file(file, options)
    spec, card = saved.policy.spec, saved.card
    request = card.get("request", {})
    facts = {
        "file": str(file.path),
        "kind": f"policy{exported}",
        "which": card.get("which", ""),
        "env": request.get("env", ""),
        "observations": f"{spec.observation_size} numbers",
        "actions": str(spec.actions),
        "family": spec.family,
        "network": _network(spec.activation, spec.hidden),
        "std": _std(saved.policy),
        "objective": _sentence(request),
        "add-ons": ", ".join(request.get("addons", [])) or "none",
        "prior": f"{'inside' if saved.prior is not None else 'not in'} this file",
        "steps": f"{card.get('steps', 0):,}",
        "normalizer": f"{float(saved.policy.normalizer.count):,.0f} observations seen",
        "made with": ", ".join(f"{name} {value}" for name, value in card.get("versions", {}).items()),
        "probes": f"{PROBE_COUNT} log-probabilities reproduced",
        "fingerprint": fingerprint(saved.policy),
    }
    facts |= _facts_of(card)
    if isinstance(saved.policy, ConditionedPolicy):
        inputs = " and ".join(f"{each.name} as an input, from {each.ends}" for each in saved.policy.dials)
        facts["dial"] = f"takes {inputs}"
    return facts, {"card": card}


def _print_contract(about: dict[str, Any]) -> None:
    """Say what an exported graph takes and gives, a line for each number."""
    terminal, unknown = Terminal(), "unknown"
    observations, actions, period = about["observations"], about["actions"], about.get("control_period")
    terminal.facts(
        {
            "environment": about["env"] or unknown,
            "control period": unknown if period is None else f"{period:g} s",
            "actions stay within their range": "yes" if actions["stay_within"] else "no: clip them",
            "dials": "; ".join(map(DIAL.format_map, about["dials"])) or "none",
            "fingerprint of its prior": about.get("prior", "none"),
        }
    )
    for title, told, size in (
        ("observation", observations, observations["size"]),
        ("action", actions, actions["sizes"][0] if actions["kind"] == "continuous" else len(actions["sizes"])),
    ):
        names = told.get("names") or [unknown] * size
        columns = [names, *(told.get(key) or [""] * size for key in ("units", "low", "high"))]
        rows = [[str(index), *map(str, row)] for index, row in enumerate(zip(*columns, strict=False))]
        terminal.numbers("", [title, "name", "unit", "from", "to"], rows[:MAX_ROWS])
        if len(rows) > MAX_ROWS:
            terminal.say(f"and {len(rows) - MAX_ROWS} more, which --json tells")


def _facts_of(card: dict[str, Any]) -> dict[str, str]:
    """Return what not every policy's card tells."""
    facts = {}
    if origin := card.get("origin"):
        facts["copied from"] = f"{origin['file']}, {origin['kind']} of {origin['library']}, sha256 {origin['sha256']}"
    facts |= {name.replace("_", " "): f"{value:,.2f}" for name, value in card.get("evaluation", {}).items()}
    if dial := card.get("dial"):
        trained = dial["how"] == "trained"
        values = dial.get("values") or {"omega" if trained else "t": dial.get("at", math.nan)}
        place = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        of_what = "of" if trained else "between the prior and"
        facts["dial"] = f"{dial['how']} at {place} {of_what} {dial['of']}"
    if worth := card.get("nat_worth"):
        facts["a nat is worth"] = f"{worth['value']:.3g} ± {worth['error']:.2g} of the reward"
    if "scores" in card:
        mean, std = (*card["scores"]["mean action"], math.nan, math.nan)[:2]
        facts["score"] = f"{mean:,.0f} ± {std:,.0f}, mean action, {card['scores']['episodes']} episodes"
        facts["made by"] = card.get("command", "")
    return facts


def _network(activation: str, hidden: Sequence[int]) -> str:
    return f"{activation}, {' × '.join(map(str, hidden))}" if hidden else "one linear layer"


def _std(policy: Policy) -> str:
    """Return the std that each number of an action has: in all states, or where the observations are at their mean."""
    dist = policy(policy.normalizer.mean.float()[None])
    if not isinstance(dist, Gaussian | SquashedGaussian):
        return "none: its choices have probabilities"
    parts = [f"{std:.3g}" for std in dist.log_std.exp().reshape(-1).tolist()[:MAX_STDS]]
    if policy.spec.actions.width > MAX_STDS:
        parts.append("…")
    if isinstance(dist, SquashedGaussian):
        parts.append("before tanh")
    if dist.log_std.dim() > 1:
        parts.append("where observations are at their mean")
    return ", ".join(parts)


def _of_foreign(file: PolicyFile, options: Options) -> dict[str, Any]:
    """Return another library's policy: what is in its file, and what is missing."""
    from repolicy.readers.context import NoTemperatureError
    from repolicy.readers.copying import policy_from
    from repolicy.readers.description import CannotCopyError

    missing = ["the environment (--env)"]
    try:
        foreign = describe_file(file, options)
    except NoTemperatureError:
        foreign = describe_file(file, replace(options, temperature=1.0))
        missing.append("a temperature (--temperature)")
    except CannotCopyError as error:
        return _of_uncopied(file, error)
    actor = foreign.actor
    network = _network(actor.activation, [len(hidden.linear.bias) for hidden in actor.hidden])
    norms = sum(hidden.norm is not None for hidden in actor.hidden)
    if norms:
        network += f", {norms} LayerNorms"
    if foreign.std is not None:
        std = _std(policy_from(foreign))
    elif foreign.actions.kind == "discrete":
        std = "none: its choices have probabilities"
    else:
        std = "none"
        missing.append("a std (--std)")
    normalizer = "none"
    if foreign.normalizer is not None:
        clip, count = foreign.normalizer.clip, foreign.normalizer.count
        normalizer = f"clips at {clip:g}" if clip else "clips nothing"
        normalizer += f", {count:,.0f} observations seen" if count else ""
    return {
        "file": str(file.path),
        "kind": f"{foreign.kind} of {foreign.library} {foreign.version}".strip(),
        "observations": ", ".join([f"{actor.width} numbers", *(f"{key} {size}" for key, size in foreign.groups)]),
        "actions": str(foreign.actions) + (", through tanh" if foreign.squashed else ""),
        "family": foreign.family,
        "network": network,
        "std": std,
        "normalizer": normalizer,
        "missing": ", ".join(missing),
        "notes": "; ".join(foreign.notes) or "none",
    }


def _of_uncopied(file: PolicyFile, why: FileError) -> dict[str, Any]:
    """Return another library's policy that can only run as it is; the reason again, where it cannot even do that."""
    from repolicy.priors.running import graph_signature

    if file.format not in RUNNABLE_FORMATS:
        raise why
    kind, runs = "TorchScript", "in PyTorch, as a program: with --trust"
    missing = "the environment (--env), a std (--std)"
    if file.format == "onnx":
        kind, runs = "an ONNX graph", "in onnxruntime"
        try:
            graph_signature(file.reader_input.graph, file.path)
        except FileError as error:
            runs = f"no: it {str(error).removeprefix(f'{file.path} ')}"
            missing = f"a function that runs it (file.py:act), {missing}"
    return {
        "file": str(file.path),
        "kind": kind,
        "can be copied": f"no: {str(why).partition(' cannot be copied: ')[2] or why}",
        "runs as it is": runs,
        "missing": missing,
    }


def _of_run(path: Path) -> Story:
    from repolicy.rql.customizing import Request as ResidualQLearning

    folder = RunFolder(path, Request, ResidualQLearning)
    request, latest = folder.load_request(), folder.latest_checkpoint()
    done = latest[1].get("steps", 0) if latest else 0  # the last iteration may go a little further than was asked for
    iterations = len(folder.read_metrics().get("iteration", []))
    facts = {
        "folder": str(path),
        "kind": "run",
        "env": request.env,
        "objective": _sentence(request.as_dict()),
        "add-ons": ", ".join(request.addons) or "none",
        "steps": f"{done:,} in the last checkpoint, of {request.settings.steps:,}",
        "iterations logged": f"{iterations:,}",
        "method": request.method or "PPO",
        "policy": str(folder.policy) if folder.policy.exists() else "none yet",
        "last policy": str(folder.last_policy) if folder.last_policy.exists() else "none yet",
    }
    if folder.policy.exists() and not isinstance(made := read_policy(folder.policy).policy, ConditionedPolicy):
        facts["std"] = _std(made)
    return facts, {"request": request.as_dict()}


def _sentence(request: dict[str, Any]) -> str:
    """Return the objective in words: `addon + 0.17 log prior − 0.13472 log policy`."""
    objective, settings = request.get("objective"), request.get("settings", {})
    if not objective:
        return "unknown"
    task = objective.get("task", "unknown")
    parts = [{"both": "basic + addon"}.get(task, task)]
    for name, sign, term in (("omega", "+", "prior"), ("alpha", "−", "policy")):
        if weight := objective.get(name):
            weight = Range(*weight) if isinstance(weight, list) else weight
            words = weight if weight == "omega" else f"{weight:g}"
            parts.append(f"{sign} {words} log {term}")
    if objective.get("bonus"):
        parts.append(f"(and {objective['bonus']:g} · entropy in the loss)")
    if objective.get("states"):
        parts.append(f"+ {objective['states']:g} familiar states")
    if (budget := budget_of(settings)) is not None:
        parts.append(f"at first; {budget.words}")
    return " ".join(parts)
