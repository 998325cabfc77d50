"""A policy goes to the Hugging Face Hub: its file, a card that tells what it is, and its film where there is one."""

import hashlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repolicy.envs import Evaluation, addons_from_card, decoder_options, env_from_card, load_addon
from repolicy.policies import SavedPolicy
from repolicy.prepare.defaults import implied_settings, train_defaults
from repolicy.priors import find_policy, read_policy, saved_policy_bytes
from repolicy.priors.hub import FILE, Repository, import_hub, repository_of, translate_hub_errors
from repolicy.readers.reading import Options
from repolicy.report.run_page import evaluations, repeat, rewards
from repolicy.report.verdict import action, basis, name_of_prior, verdict
from repolicy.runs import Request, RunFolder, command_options, command_words, one_thread
from repolicy.text import capitalized, counted, printable

EPISODES = 20
FILMS = (".mp4", ".gif")


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
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Upload a policy, or that of a run, with a card, and return its place, revision and files.

    The hub's own login is used (`hf auth login`). The arguments are the options of `repolicy push`.
    """
    at, path = repository_of(target), find_policy(policy)
    saved = read_policy(path, reading)
    content = saved_policy_bytes(saved)
    hub = import_hub()
    env = env or env_from_card(saved.card, path, trust)
    addon = load_addon(addons_from_card(saved.card, path, trust), env)
    with translate_hub_errors(at):  # before the evaluation, which takes a while
        api = hub.HfApi(endpoint=hub.constants.ENDPOINT)
        api.create_repo(at.repository, exist_ok=True, private=private)
    say(f"evaluating: {counted(episodes, 'episode')}")
    with one_thread():
        found = evaluations(saved, env, addon, episodes, deterministic=decoder_options(env) is None)  # as `judged_by`
    films = (path.with_suffix(suffix) for suffix in FILMS)
    film = next((file for file in films if file.is_file()), None)
    page = card(saved, path, at, found, film, license, hashlib.sha256(content).hexdigest())
    files = {FILE: content, "README.md": page.encode()}
    if film:
        files[film.name] = film.read_bytes()
    with translate_hub_errors(at):
        added = [hub.CommitOperationAdd(*file) for file in files.items()]
        message = "A policy, by repolicy push"
        done = api.create_commit(at.repository, added, commit_message=message, revision=at.revision)
    if license is None:
        say("its card names no license: others may not use it; --license mit says that they may")
    say(f"pushed: {at}, {', '.join(files)}, revision {done.oid}")
    return {"place": str(at), "revision": done.oid, "files": list(files)}


def card(
    saved: SavedPolicy,
    path: Path,
    at: Repository,
    by: dict[str, Evaluation],
    film: Path | None,
    license: str | None,
    checksum: str,
) -> str:
    """Return the model card, in Markdown with the header that the hub reads."""
    request = saved.card.get("request", {})
    env, wishes = next(iter(by.values())).env, _quoted(" + ".join(request.get("addons", [])))
    episodes = len(next(iter(by.values())).basic)
    title = f"a policy for {env}" + (f", customized to `{wishes}`" if saved.prior else "")
    task = "reinforcement-learning"
    kind = {"library_name": "repolicy", "pipeline_tag": task, "tags": [task, "repolicy"]}
    header = import_hub().ModelCardData(license=license or "unknown", **kind)
    lines = ["---", header.to_yaml(), "---", "", f"# {at.repository.partition('/')[2]}: {title}", ""]
    if saved.prior:
        sentence = verdict([(by["prior"], by["customized"])], name_of_prior(saved.card))
        lines += [f"{capitalized(sentence)} ({basis([by['customized']])}).", ""]
    if film:
        tag = f"![film]({film.name})" if film.suffix == ".gif" else f'<video src="{film.name}" controls></video>'
        lines += [tag, ""]
    headings, rows = rewards(by)
    lines += [_row(headings), _row(["---"] * len(headings)), *map(_row, rows), ""]
    how = action(next(iter(by.values())))
    lines += [f"Mean ± std over {counted(episodes, 'episode')} with {how}.", "", "## Use it", ""]
    lines += _code(
        "pip install 'repolicy[hub]'",
        f"repolicy evaluate {at}{_env(env, request)}",
        f"repolicy customize {at}{_env(env, request)} --addon NAME",
    )
    if again := _repeat(path, saved, f"runs/{at.repository.partition('/')[2]}"):
        lines += ["## Make it again", "", *_code(again)]
    made = _quoted(", ".join(f"{name} {version}" for name, version in saved.card.get("versions", {}).items()))
    lines += [f"Made with `{made}`." if made else "", f"The file's sha256 is {checksum}."]
    return "\n".join(lines) + "\n"


def _env(env: str, request: dict[str, Any]) -> str:
    """Return ` --env ENV` where the environment is code, which does not travel with a policy, or is not known."""
    return " --env ENV" if ":" in env or not request.get("env") else ""


def _repeat(path: Path, saved: SavedPolicy, elsewhere: str) -> str:
    """Return the command that makes the policy again: a run's own to the bit, else as far as the card tells."""
    folder, card = RunFolder(path.resolve().parent), saved.card
    asked = card.get("request", {})
    if "dial" in card:  # a position of a dial, which no run ends with
        return ""
    if "method" in asked:  # residual Q-learning's, whose settings are of another kind
        return _quoted(str(card.get("command", "")))
    request = folder.request() if path.name in (folder.policy.name, folder.replaced.name) else None
    if request is not None:
        return repeat(folder, request).replace(str(folder.path), elsewhere)
    if "prior" not in asked or "sparse" not in asked:
        return _quoted(str(card.get("command", "")))
    whole = Request.from_dict(asked)
    arguments = command_words(whole, "PRIOR" if saved.prior else "")
    usual = implied_settings(saved.prior, whole.settings.steps) if saved.prior else train_defaults(whole.env)
    return shlex.join(["repolicy", *arguments, *command_options(whole.settings, usual)]) if arguments else ""


def _quoted(text: str) -> str:
    """Return what a file says, to stand in a code span or block and not to leave it."""
    return printable(text).replace("`", "'")


def _row(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _code(*lines: str) -> list[str]:
    return ["```", *lines, "```", ""]
