"""Upload a policy to the Hugging Face Hub: its file, a model card, and its film if there is one."""

import hashlib
import shlex
from pathlib import Path
from typing import Any

from repolicy.addons import backend_from_card, env_from_card
from repolicy.envs import parse_env_name
from repolicy.errors import UsageError, check_counts
from repolicy.evaluation import Evaluation, fitting_addon, fitting_limits
from repolicy.policies import ConditionedPolicy, SavedPolicy
from repolicy.prepare.defaults import implied_settings, train_defaults
from repolicy.priors import find_policy, read_policy, saved_policy_bytes
from repolicy.priors.hub import FILE, Repository, import_hub, repository_of, translate_hub_errors
from repolicy.readers.reading import Options
from repolicy.report.pieces import reward_table
from repolicy.report.run_page import evaluate_with_prior, repeat_command
from repolicy.report.verdict import basis, name_of_prior, verdict
from repolicy.runs import Request, RunFolder, command_options, command_words
from repolicy.text import Say, capitalize, format_count, printable

EPISODES = 20
FILM_SUFFIXES = (".mp4", ".gif")


def push(
    policy: str | Path,
    target: str,
    *,
    license: str | None = None,
    private: bool = False,
    env: str | None = None,
    episodes: int = EPISODES,
    trust: bool = False,
    reading: Options | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Upload a policy, or that of a run, with a model card, and return its address, revision and files.

    The hub's own login is used (`hf auth login`). The arguments are the options of `repolicy push`.
    """
    check_counts(episodes=episodes)
    repository, path = repository_of(target), find_policy(policy)
    saved = read_policy(path, reading)
    if isinstance(saved.policy, ConditionedPolicy):
        raise UsageError(saved.policy.missing_dials_message())
    content = saved_policy_bytes(saved)
    hub = import_hub()
    env = env or env_from_card(saved.card, path, trust)
    addon = fitting_addon(saved.card, path, env, trust, say)
    backend = backend_from_card(saved.card, env)
    limits = fitting_limits(saved.policy, saved.card, path, env, backend, trust, say)
    with translate_hub_errors(repository):  # before the evaluation, which takes a while
        api = hub.HfApi(endpoint=hub.constants.ENDPOINT)
        api.create_repo(repository.name, exist_ok=True, private=private)
    say(f"evaluating: {format_count(episodes, 'episode')}")
    deterministic = parse_env_name(env).is_judged_by_mean
    evaluations = evaluate_with_prior(saved, env, addon, episodes, deterministic, backend, limits)
    films = (path.with_suffix(suffix) for suffix in FILM_SUFFIXES)
    film = next((file for file in films if file.is_file()), None)
    card = model_card(saved, path, repository, evaluations, film, license, hashlib.sha256(content).hexdigest())
    files = {FILE: content, "README.md": card.encode()}
    if film:
        files[film.name] = film.read_bytes()
    with translate_hub_errors(repository):
        added = [hub.CommitOperationAdd(*file) for file in files.items()]
        message = "A policy, by repolicy push"
        commit = api.create_commit(repository.name, added, commit_message=message, revision=repository.revision)
    if license is None:
        say("its card names no license: others may not use it; --license mit says that they may")
    say(f"pushed: {repository}, {', '.join(files)}, revision {commit.oid}")
    return {"place": str(repository), "revision": commit.oid, "files": list(files)}


def model_card(
    saved: SavedPolicy,
    path: Path,
    repository: Repository,
    evaluations: dict[str, Evaluation],
    film: Path | None,
    license: str | None,
    checksum: str,
) -> str:
    """Return the model card, in Markdown with the header that the hub reads."""
    request = saved.card.get("request", {})
    name, first = repository.name.partition("/")[2], next(iter(evaluations.values()))
    env, addons = first.env, _code_safe(" + ".join(request.get("addons", [])))
    title = f"a policy for {parse_env_name(env).title}" + (f", customized to `{addons}`" if saved.prior else "")
    task = "reinforcement-learning"
    kind = {"library_name": "repolicy", "pipeline_tag": task, "tags": [task, "repolicy"]}
    header = import_hub().ModelCardData(license=license or "unknown", **kind)
    lines = ["---", header.to_yaml(), "---", "", f"# {name}: {title}", ""]
    if saved.prior:
        keep = request.get("settings", {}).get("keep")
        judged = verdict([(evaluations["prior"], evaluations["customized"])], name_of_prior(saved.card), keep)
        sentence, *rest = map(capitalize, judged)
        lines += [". ".join([f"{sentence} ({basis([evaluations['customized']])})", *rest]) + ".", ""]
    if film:
        tag = f"![film]({film.name})" if film.suffix == ".gif" else f'<video src="{film.name}" controls></video>'
        lines += [tag, ""]
    headings, rows = reward_table(evaluations)
    lines += [_row(headings), _row(["---"] * len(headings)), *map(_row, rows), ""]
    lines += [f"{capitalize(first.basis)}.", "", "## Use it", ""]
    options = ""
    if ":" in env:
        options = " --env ENV"  # code does not travel with a policy, so the reader must name such an environment
    elif not request.get("env"):
        options = f" --env {shlex.quote(env)}"
    elif parse_env_name(env).decoder is not None:
        options = " --trust"  # the decoder is stored in the policy's file
    evaluate = f"repolicy evaluate {repository}{options}"
    customize = f"repolicy customize {repository}{options} --addon NAME"
    lines += _code("pip install 'repolicy[hub]'", evaluate, customize)
    if command := _repeat_command(path, saved, f"runs/{name}"):
        lines += ["## Make it again", "", *_code(command)]
    versions = _code_safe(", ".join(f"{name} {version}" for name, version in saved.card.get("versions", {}).items()))
    lines += [f"Made with `{versions}`." if versions else "", f"The file's sha256 is {checksum}."]
    return "\n".join(lines) + "\n"


def _repeat_command(path: Path, saved: SavedPolicy, out: str) -> str:
    """Return the command that makes the policy again: exact from a run's folder, else as far as the file says."""
    folder, card = RunFolder(path.resolve().parent), saved.card
    stored = card.get("request", {})
    if "dial" in card:  # a position of a dial, which is not the result of a run
        return ""
    if "method" in stored:  # Residual Q-learning, which has other settings
        return _code_safe(str(card.get("command", "")))
    request = folder.request() if path.name in (folder.policy.name, folder.replaced.name) else None
    if request is not None:
        return repeat_command(folder, request, "PRIOR", "INIT", out)
    if "prior" not in stored or "sparse" not in stored:
        return _code_safe(str(card.get("command", "")))
    request = Request.from_dict(stored)
    arguments = command_words(request, "PRIOR" if saved.prior else "")
    usual = implied_settings(saved.prior, request.settings.steps) if saved.prior else train_defaults(request.env)
    return shlex.join(["repolicy", *arguments, *command_options(request.settings, usual)]) if arguments else ""


def _code_safe(text: str) -> str:
    """Return text of a file that cannot end the code span or block around it."""
    return printable(text).replace("`", "'")


def _row(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _code(*lines: str) -> list[str]:
    return ["```", *lines, "```", ""]
