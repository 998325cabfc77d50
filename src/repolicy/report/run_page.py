"""Write a run's report.html: what the run changed, as one file that needs no other file and no network."""

import contextlib
import math
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from repolicy.addons import TRUST_HINT, Addon, Limit, check_trust, combine_addons
from repolicy.addons.addon_names import with_weights
from repolicy.envs import Backend, evaluation_backend, parse_env_name
from repolicy.errors import RepolicyError
from repolicy.evaluation import ACTIONS, EVALUATION_SEED, Evaluation, evaluate
from repolicy.files import check_writable, file_sum
from repolicy.many.positions import DialedPolicy
from repolicy.policies import ConditionedPolicy, SavedPolicy, read_card, with_torch_defaults
from repolicy.prepare.defaults import implied_settings, train_defaults
from repolicy.priors import SHIPPED_FOLDER, find_policy, read_policy, restore_decoder, shipped_names
from repolicy.report import dial_page, page
from repolicy.report.learning_curves import learning_section
from repolicy.report.pieces import by_action, deciding_first, films_for_page, prior_pairs, reward_table, reward_tiles
from repolicy.report.scenes import choose_scenes
from repolicy.report.verdict import Pair, advice, basis, early_ends, name_of_prior, verdict
from repolicy.runs import Request, Result, RunFolder, command_options, command_words, format_table, recipe
from repolicy.text import Say, capitalize

EPISODES = 50


@with_torch_defaults()
def write_report(
    out: str | Path | Result, episodes: int | None = None, say: Say = lambda _: None, trust: bool = False
) -> Path:
    """Evaluate a run's policy, and its prior if it has one, film both, write `report.html`, and return its path.

    Of a run with a dial it is the page of `repolicy dial`, with all positions.

    Args:
        out: the run's folder, or its result, which is trusted.
        episodes: number of episodes in each evaluation; by default 50, and 10 at each position of a dial.
        say: a function that prints each progress sentence.
        trust: whether to run code that the folder names, such as an environment in a file.
    """
    if isinstance(out, Result):
        out, trust = out.folder, True
    folder = RunFolder(out)
    request = folder.load_request()
    code = [*request.addons, *(Limit.of(each).name for each in request.limits)]
    check_trust(folder.path, trust, env=request.env, addons=code, remedy=TRUST_HINT)
    restore_decoder(find_policy(folder.path), parse_env_name(request.env).decoder)
    saved = read_policy(folder.policy)
    if isinstance(saved.policy, ConditionedPolicy):
        count, dialed = dial_page.EPISODES if episodes is None else episodes, DialedPolicy(folder.policy, saved)
        return dial_page.write_dial_report(dialed, episodes=count, trust=True, say=say)[1]
    check_writable(folder.path / "report.html")  # before the work, which would be lost
    episodes = EPISODES if episodes is None else episodes
    addon = combine_addons(with_weights(request.addons)) if request.addons else None
    say(f"evaluating for the report: {episodes} episodes each with the mean action and sampled ones")
    backend = _fitting_backend(saved, request, addon)
    mean, sampled = (
        evaluate_with_prior(saved, request.env, addon, episodes, deterministic, backend, request.limits)
        for deterministic in (True, False)
    )
    pairs = prior_pairs(mean, sampled)
    headline = hint = ""
    if pairs:
        hint = next_step_hint(folder, request, pairs)
        sentences = verdict(pairs, name_of_prior(saved.card), request.settings.keep)
        evidence = basis([customized for _, customized in pairs])
        say("\n".join([f"{sentences[0]} ({evidence})", *sentences[1:]]))
        headline = page.verdict(sentences, evidence, hint)
    elif ends := early_ends(mean["policy"]):
        headline = page.verdict([ends], capitalize(ACTIONS["mean"]))
    say(format_table(*reward_table(by_action(mean, sampled))))
    if hint:
        say(hint)
    scenes = choose_scenes(folder.policy, mean)
    films, complaint = films_for_page([scene.shot for scene in scenes], say)
    figures = [page.film(film, scene.caption, scene.kind) for scene, film in zip(scenes, films, strict=True)]
    words = page.words(addon.descriptions) if addon else ""
    parts = [headline, words, *_sections(folder, request, saved, mean, sampled, page.films(figures, complaint))]
    title = parse_env_name(request.env).title
    if request.addons:
        title += f" with {' + '.join(request.addons)}"
    return page.write(folder.path / "report.html", title, _lead(folder, request, saved), parts)


def evaluate_with_prior(
    saved: SavedPolicy,
    env: str,
    addon: Addon | None,
    episodes: int,
    deterministic: bool = True,
    backend: Backend = "auto",
    limits: Sequence[str] = (),
) -> dict[str, Evaluation]:
    """Evaluate prior and customized policy from the same seeds, or the policy alone where it has no prior."""
    agents = {"policy": saved.policy} if saved.prior is None else {"prior": saved.prior, "customized": saved.policy}
    return {
        name: evaluate(
            policy, env, episodes,
            addon=addon, prior=saved.prior, deterministic=deterministic, seed=EVALUATION_SEED,
            backend=backend, limits=limits,
        )
        for name, policy in agents.items()
    }  # fmt: skip


def _fitting_backend(saved: SavedPolicy, request: Request, addon: Addon | None) -> Backend:
    """Return the backend of `evaluation_backend` if wish and limits find there what they read, else the run's."""
    backend = evaluation_backend(request.env, request.settings.backend)
    with contextlib.suppress(RepolicyError):  # such as an entry of info that EnvPool alone has
        evaluate(saved.policy, request.env, 1, addon=addon, limits=request.limits, backend=backend, longest=1)
        return backend
    return request.settings.backend


def _sections(
    folder: RunFolder,
    request: Request,
    saved: SavedPolicy,
    mean: dict[str, Evaluation],
    sampled: dict[str, Evaluation],
    films: str,
) -> list[str]:
    """Return the sections of the page below the verdict."""
    command, judged = repeat_command(folder, request), deciding_first(mean, sampled)[0]
    episodes = len(next(iter(judged.values())).basic)
    rows = f"Mean ± std over {episodes} episodes a row" if episodes > 1 else "One episode a row"
    note = f"{rows}, in {escape(request.env)}."
    if "prior" in mean:
        note += " “Log prior” is the prior's log-probability of the actions that were taken."
    objective = {f"objective: {name}": value for name, value in request.objective.as_dict().items()}
    return [
        page.tiles(reward_tiles(judged)),
        page.section(
            "How it moves", films, note="In real time, with the mean action; what an episode earns is its total reward."
        ),
        page.section("What it earns", page.table(*reward_table(by_action(mean, sampled))), note=note),
        learning_section(folder, request, sampled, has_clone="prior_is" in saved.card),
        page.section(
            "The same again",
            page.command(command) if command else "",
            page.settings(request.settings.as_dict() | objective),
            page.settings(saved.card.get("versions", {}), "versions"),
        ),
    ]


def _lead(folder: RunFolder, request: Request, saved: SavedPolicy) -> str:
    steps = saved.card.get("steps", 0)
    is_last = folder.last_policy == folder.policy
    beside = f", beside {name_of_prior(saved.card)}" if saved.prior is not None else ""
    policy = "last policy" if is_last else "policy"
    lead = f"{escape(recipe(request))}. Shown is the {policy}, after {steps:,} steps{beside}."
    if not is_last:
        lead += " By the run's own objective it was clearly better than the last one."
    if (budget := request.settings.budget) and not request.settings.keep:
        spent = _logged(folder, budget.metric)
        lead += f" At its end: {budget.compare(spent[-1])}." if spent else ""
    if warning := folder.unfinished_notice(request):
        lead += f" <strong>{capitalize(warning)}.</strong>"
    return lead


def next_step_hint(folder: RunFolder, request: Request, pairs: Sequence[Pair]) -> str:
    """Return what to try after a run, from its verdict and its last logged metrics; empty where it gained."""
    if folder.unfinished_notice(request):
        return "go on with it (--resume): only a run that is finished tells what to change"
    is_weight_fixed = request.objective.omega and request.settings.budget is None  # a budget moves it
    prior_kl = [math.inf, *_logged(folder, "prior_kl")][-1]
    return advice(pairs, request.settings, prior_kl, "--omega" if is_weight_fixed else "")


def _logged(folder: RunFolder, name: str) -> list[float]:
    """Return the values of a metric in the iterations that have it."""
    return [value for value in folder.read_metrics().get(name, []) if value is not None]


# The command ----------------------------------------------------------------------------------------------------------


def repeat_command(folder: RunFolder, request: Request, prior: str = "", init: str = "", out: str | Path = "") -> str:
    """Return the command that repeats the run bit by bit; empty where no command can.

    `prior`, `init` and `out` stand for the folder's own files and its path, which other readers have not. A prior that
    ships has its name.

    There is none for options that exist only in Python, or for a folder that was copied without its prior. There is
    none for a prior that could not be copied: the folder holds its clone, but the run was scored by the prior itself.
    """
    is_customized = bool(request.prior)
    if is_customized and (not folder.prior.exists() or "clone_of" in read_card(folder.prior)):
        return ""
    prior_argument = _shipped_name(request.prior) or prior or folder.prior
    arguments = command_words(request, prior_argument if is_customized else "", init or folder.init)
    usual = implied_settings(folder.prior, request.settings.steps) if is_customized else train_defaults(request.env)
    parts = ["repolicy", *arguments, *command_options(request.settings, usual), "--out", f"{out or folder.path}-again"]
    return shlex.join(parts) if arguments else ""


def _shipped_name(checksum: str) -> str:
    """Return the name of the shipped policy with this checksum, or nothing."""
    names = (name for name in shipped_names() if file_sum(SHIPPED_FOLDER / f"{name}.safetensors") == checksum)
    return next(names, "")
