"""Describe a file for `inspect`: a policy, a checkpoint or a run's folder."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repolicy.errors import FileError
from repolicy.policies import PROBE_COUNT, ConditionedPolicy, Gaussian, Policy, SquashedGaussian, fingerprint
from repolicy.policies.storage import is_repolicy_file, read
from repolicy.priors import check_no_options, describe_file, find_policy, is_plan, read_file, read_policy
from repolicy.priors.running import NeedsNoiseError, graph_signature
from repolicy.ranges import Range
from repolicy.readers.context import NoTemperatureError
from repolicy.readers.copying import policy_from
from repolicy.readers.description import CannotCopyError
from repolicy.readers.reading import Options
from repolicy.readers.recognize import RUNNABLE_FORMATS, PolicyFile
from repolicy.runs import Request, RunFolder, Settings, budget_of, format_facts, format_table
from repolicy.text import format_count, format_number, printable, with_minus

PLANNER = "planner"
MAX_ROWS = 64  # of a table on the screen
MAX_STDS = 8  # on one line
FOR_JSON = ("card", "request", "carries")  # entries that are not among the facts of the text
EARLIER = "an earlier policy of its run, which was better"
EVALUATION_PARTS = {
    "evaluation_objective": "objective {}",
    "evaluation_basic": "basic reward {}",
    "evaluation_addon": "add-on reward {}",
    "evaluation_length": "length {} steps",
    "evaluation_ended_early": "{} ended early",
}
WHOLE_NUMBERS = ("evaluation_length", "evaluation_ended_early")
WHICH_WORDS = {"last": "the last policy of its run", "earlier": EARLIER, "best": EARLIER}  # best: of those that ship
Description = tuple[dict[str, Any], dict[str, Any]]  # the facts of the text, and the entries of FOR_JSON


def inspect(path: Path, options: Options | None = None) -> dict[str, Any]:
    """Return a description of a policy, a checkpoint, a planner or a run's folder."""
    more: dict[str, Any] = {}
    if is_plan(path):
        from repolicy.planning.keeping import read_plan

        check_no_options(path, options)
        facts = {"folder": str(path), "kind": PLANNER} | read_plan(path)
    elif os.path.isfile(path / "run.json"):  # False for a name too long, which `find_policy` refuses
        check_no_options(path, options)
        facts, more = _describe_run(path)
    else:
        facts, more = _describe_file(PolicyFile(find_policy(path)), options or Options())
    return facts | more


def format_inspection(values: dict[str, Any]) -> str:
    """Return what `inspect` found as lines for people."""
    facts = _planner_facts(values) if values["kind"] == PLANNER else values
    lines = format_facts({name: value for name, value in facts.items() if name not in FOR_JSON})
    return f"{lines}\n{_format_deployment_info(values['carries'])}" if "carries" in values else lines


def _planner_facts(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "folder": values["folder"],
        "kind": values["kind"],
        "env": values["request"]["env"],
        "add-ons": ", ".join(values["request"]["addons"]) or "none",
        "ω′": f"{values['omega']:.3g}",
        "states": f"{values['states']:.3g}",
        "search": "{samples} samples of {horizon} steps".format_map(values["search"]),
    }


def _describe_file(file: PolicyFile, options: Options) -> Description:
    if not is_repolicy_file(file.path, file.content):
        info = file.embedded and file.embedded.deployment_info
        carries = {"carries": info} if info else {}
        if file.repolicy_bytes is None:
            return _describe_foreign(file, options), carries
        facts, more = _describe_policy(file, options, f", in a file of {file.format}")
        return facts, more | carries
    check_no_options(file.path, options)
    tensors, header = read(file.path, content=file.content)
    if header["kind"] == "policy":
        return _describe_policy(file, options)
    # a checkpoint, or the batch that a run failed on
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return header | {"file": str(file.path), "tensors": shapes}, {}


def _describe_policy(file: PolicyFile, options: Options, exported: str = "") -> Description:
    saved = read_file(file, options)
    spec, normalizer, card = saved.policy.spec, saved.policy.normalizer, saved.card
    request, which = card.get("request", {}), card.get("which", "")
    facts = {
        "file": str(file.path),
        "kind": f"policy{exported}",
        "which": WHICH_WORDS.get(which, which),
        "env": request.get("env", ""),
        "observations": f"{spec.observation_size} numbers",
        "actions": str(spec.actions),
        "family": spec.family,
        "network": _network_words(spec.activation, spec.hidden),
        "std": _std_words(saved.policy),
        "objective": _objective_words(request),
        "add-ons": (", ".join(request["addons"]) or "none") if "addons" in request else "unknown",
        "prior": f"{'inside' if saved.prior is not None else 'not in'} this file",
        "steps": f"{card['steps']:,}" if "steps" in card else "",
        "normalizer": _normalizer_words(normalizer.bound, float(normalizer.count)),
        "made with": ", ".join(f"{name} {value}" for name, value in card.get("versions", {}).items()),
        "probes": f"{PROBE_COUNT} log-probabilities reproduced",
        "fingerprint": fingerprint(saved.policy),
    }
    facts |= _optional_facts(card)
    if isinstance(saved.policy, ConditionedPolicy):
        facts["dial"] = f"takes as inputs, in this order: {', '.join(map(str, saved.policy.dials))}"
    return facts, {"card": card}


def _format_deployment_info(info: dict[str, Any]) -> str:
    """Return the inputs and outputs of an exported graph, one line for each number."""
    unknown = "unknown"
    observations, actions, period = info["observations"], info["actions"], info.get("control_period")
    dials = map("{name} from {low:g} to {high:g}, {scale}; NaN counts as {if_nan:g}".format_map, info["dials"])
    parts = [
        format_facts(
            {
                "environment": info["env"],
                "control period": unknown if period is None else f"{period:g} s",
                "actions stay within their range": "yes" if actions["stay_within"] else "no: clip them",
                "dials": "; ".join(dials) or "none",
                "fingerprint of its prior": info.get("prior", "none"),
            }
        )
    ]
    for title, space, size in (
        ("observation", observations, observations["size"]),
        ("action", actions, actions["sizes"][0] if actions["kind"] == "continuous" else len(actions["sizes"])),
    ):
        names = space.get("names") or [unknown] * size
        columns = [names, *(space.get(key) or [""] * size for key in ("units", "low", "high"))]
        rows = [[str(index), *map(printable, map(str, row))] for index, row in enumerate(zip(*columns, strict=False))]
        parts += ["", format_table([title, "name", "unit", "from", "to"], rows[:MAX_ROWS])]
        if len(rows) > MAX_ROWS:
            parts.append(f"and {len(rows) - MAX_ROWS} more, which --json tells")
    return "\n".join(parts)


def _optional_facts(card: dict[str, Any]) -> dict[str, str]:
    """Return the facts that only some policies' cards contain."""
    facts = {}
    if origin := card.get("origin"):
        facts["copied from"] = f"{origin['file']}, {origin['kind']} of {origin['library']}, sha256 {origin['sha256']}"
    if card.get("evaluation"):
        facts["short evaluation"] = _evaluation_words(card)
    if dial := card.get("dial"):
        name, relation = ("omega", "of") if dial["how"] == "trained" else ("t", "between the prior and")
        values = dial.get("values") or {name: dial.get("at", math.nan)}
        position = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        facts["dial"] = f"{dial['how']} at {position} {relation} {dial['of']}"
    if worth := card.get("nat_worth"):
        facts["a nat is worth"] = with_minus(f"{worth['value']:.3g} ± {worth['error']:.2g} of the reward")
    if "scores" in card:
        # The schema of cards allows any number of scores, also none.
        mean, std = (*card["scores"]["mean action"], math.nan, math.nan)[:2]
        score = f"{format_number(mean)} ± {format_number(std, mean)}"
        facts["score"] = f"{score} (mean ± std), mean action, {card['scores']['episodes']} episodes"
        facts["made by"] = card.get("command", "")
    return facts


def _evaluation_words(card: dict[str, Any]) -> str:
    """Return the short evaluation of a card: of how many episodes, and the means that are known."""
    evaluation, settings = card["evaluation"], card.get("request", {}).get("settings", {})
    episodes = "episodes"
    if card.get("which") == "last" and "evaluation_episodes" in settings:  # an earlier policy was compared in more
        counts = {name: settings[name] for name in ("evaluation_episodes", "ranks") if name in settings}
        episodes = format_count(Settings(**counts).evaluated_episodes, "episode")
    words = {name: format_number(value) for name, value in evaluation.items()}
    words |= {name: f"{evaluation[name]:,.0f}" for name in WHOLE_NUMBERS if name in evaluation}
    if {"evaluation_objective", "evaluation_error"} <= evaluation.keys():
        error = format_number(evaluation["evaluation_error"], evaluation["evaluation_objective"])
        words["evaluation_objective"] += f" ± {error} (standard error)"
    parts = [text.format(words[name]) for name, text in EVALUATION_PARTS.items() if name in words]
    return f"{episodes} with sampled actions: {', '.join(parts)}"


def _network_words(activation: str, hidden: Sequence[int]) -> str:
    return f"{activation}, {' × '.join(map(str, hidden))}" if hidden else "one linear layer"


def _normalizer_words(bound: float, count: float) -> str:
    """Return where a normalizer clips, and how many observations it has seen unless that is unknown, 0."""
    clips = "clips nothing" if math.isinf(bound) else f"clips at {bound:g}"
    return f"{clips}, {count:,.0f} observations seen" if count else clips


def _std_words(policy: Policy) -> str:
    """Return the std of each number of an action; if it depends on the state, that for the mean observation."""
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


def _describe_foreign(file: PolicyFile, options: Options) -> dict[str, Any]:
    """Describe another library's policy: what its file contains, and which options are needed to open it."""
    missing = ["the environment (--env)"]
    try:
        foreign = describe_file(file, options)
    except NoTemperatureError:
        foreign = describe_file(file, replace(options, temperature=1.0))
        missing.append("a temperature (--temperature)")
    except CannotCopyError as error:
        return _describe_uncopied(file, error)
    actor, normalizer = foreign.actor, foreign.normalizer
    network = _network_words(actor.activation, [len(hidden.linear.bias) for hidden in actor.hidden])
    norms = sum(hidden.norm is not None for hidden in actor.hidden)
    if norms:
        network += f", {norms} LayerNorms"
    if foreign.std is not None:
        std = _std_words(policy_from(foreign))
    elif foreign.actions.kind == "discrete":
        std = "none: its choices have probabilities"
    else:
        std = "none"
        missing.append("a std (--std)")
    groups = (f"{key} {size}" if size else key for key, size in foreign.groups)
    return {
        "file": str(file.path),
        "kind": f"{foreign.kind} of {foreign.library} {foreign.version}".strip(),
        "observations": ", ".join([f"{actor.width} numbers", *groups]),
        "actions": str(foreign.actions) + (", through tanh" if foreign.squashed else ""),
        "family": foreign.family,
        "network": network,
        "std": std,
        "normalizer": _normalizer_words(normalizer.clip or math.inf, normalizer.count) if normalizer else "none",
        "missing": ", ".join(missing),
        "notes": "; ".join(foreign.notes) or "none",
    }


def _describe_uncopied(file: PolicyFile, reason: FileError) -> dict[str, Any]:
    """Describe another library's policy that cannot be copied but may be run; raise the reason if it cannot be run."""
    if file.format not in RUNNABLE_FORMATS:
        raise reason
    kind, runs = "TorchScript", "in PyTorch, as a program: with --trust"
    missing = "the environment (--env), a std (--std)"
    if file.format == "onnx":
        kind, runs = "an ONNX graph", "in onnxruntime"
        try:
            graph_signature(file.reader_input.graph, file.path)
        except FileError as error:
            runs = f"no: it {str(error).removeprefix(f'{file.path} ')}"
            missing = f"a function that runs it (file.py:act), {missing}"
            if isinstance(error, NeedsNoiseError):
                kind = "a generative policy as an ONNX graph"
                missing = "the environment (--env), the size of its noise (--noise), its actions in a row (--chunk)"
    return {
        "file": str(file.path),
        "kind": kind,
        "can be copied": f"no: {str(reason).partition(' cannot be copied: ')[2] or reason}",
        "runs as it is": runs,
        "missing": missing,
    }


def _describe_run(path: Path) -> Description:
    from repolicy.rql.customizing import Request as ResidualQLearning

    folder = RunFolder(path, Request, ResidualQLearning)
    request, latest = folder.load_request(), folder.latest_checkpoint()
    steps = latest[1].get("steps", 0) if latest else 0  # can exceed the setting, because an iteration is not cut
    iterations = len(folder.read_metrics().get("iteration", []))
    facts = {
        "folder": str(path),
        "kind": "run",
        "env": request.env,
        "objective": _objective_words(request.as_dict()),
        "add-ons": ", ".join(request.addons) or "none",
        "steps": f"{steps:,} in the last checkpoint, of {request.settings.steps:,}",
        "iterations logged": f"{iterations:,}",
        "method": request.method or "PPO",
        "policy": str(folder.policy) if folder.policy.exists() else "none yet",
    }
    if folder.replaced.exists():  # else the policy is the last one
        facts["last policy"] = str(folder.replaced)
    if folder.policy.exists():
        policy = read_policy(folder.policy).policy
        if not isinstance(policy, ConditionedPolicy):
            facts["std"] = _std_words(policy)
    return facts, {"request": request.as_dict()}


def _objective_words(request: dict[str, Any]) -> str:
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
        parts.append(f"− {objective['states']:g} price on states")
    if (budget := budget_of(settings)) is not None:
        parts.append(f"at first; {budget.words}")
    return " ".join(parts)
