"""Write the page of a dial: the rewards at positions between prior and customized policy, and sliders over them."""

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from repolicy.addons import addon_names, addons_from_card, backend_from_card, check_env, env_from_card
from repolicy.envs import parse_env_name
from repolicy.errors import UsageError
from repolicy.evaluation import fitting_limits
from repolicy.files import check_writable, write_json
from repolicy.many.positions import DialedPolicy, as_dict, evaluate_positions, exact_text, meaning
from repolicy.many.tradeoff import SweepResult
from repolicy.priors import output_folder
from repolicy.report import page, sweep_page
from repolicy.report.movie import Shot
from repolicy.report.pieces import films_for_page
from repolicy.runs import format_table
from repolicy.text import Say, capitalize

EPISODES = 10  # of each position, with either kind of action
METHOD_WORDS = {
    "mixture": "the geometric mixture of both policies: each action's probability is multiplied, not averaged",
    "weights": "the networks' numbers, taken between their values before and after",
}


def write_dial_report(
    dialed: DialedPolicy,
    env: str | None = None,
    addons: Sequence[str] = (),
    out: Path | None = None,
    episodes: int = EPISODES,
    trust: bool = False,
    say: Say = lambda _: None,
    show: Say = lambda _: None,
) -> tuple[SweepResult, Path]:
    """Evaluate and film all positions, write their page, and return the evaluations and the page's path.

    What is not named comes from the policy's file, which `trust` allows to name code. `out` is the page's folder, by
    default beside the policy. `show` is given what is being done. Raises before the work if the page cannot be written.
    """
    path, saved = dialed.path, dialed.saved
    env = env or env_from_card(saved.card, path, trust)
    is_own_wish = not addons
    addons = addons or addons_from_card(saved.card, path, trust)
    if not addons:
        raise UsageError(f"{path} does not say which add-on it was customized to; name one with --addon")
    check_env(addons, env)
    out = out or output_folder(path) / f"{path.stem}-dial"
    check_writable(out / "report.html")
    if (out / "report.html").exists() and not (out / "dial.json").exists():
        raise UsageError(f"{out / 'report.html'} is there already, and of no dial: choose another --out")
    backend, limits = backend_from_card(saved.card, env), tuple[str, ...]()
    if is_own_wish:  # as where the policy is evaluated
        limits = fitting_limits(saved.policy, saved.card, path, env, backend, trust, say)
    swept = evaluate_positions(
        dialed, env, addons, out, episodes, backend, limits,
        lambda done: show(f"{env}: {done} of {len(dialed.positions)} positions"),
    )  # fmt: skip
    write_json(out / "dial.json", as_dict(dialed, swept))  # before the films, which take long and may be stopped
    title = " and ".join(map(str, dialed.dials))
    title = title or f"from the prior (0) to the customized policy (1), {dialed.method}"
    if swept.is_curve:
        say(swept.verdict)
    say(f"{env}: {title}; {swept.basis}\n{format_table(*swept.table())}")
    show("films")
    return swept, _write_page(dialed, swept, addons, say)


def _film_positions(dialed: DialedPolicy, env: str, say: Say) -> tuple[list[bytes], str]:
    """Return a film of the prior and of each position; films need files, so positions are written to a folder."""
    with tempfile.TemporaryDirectory(prefix="repolicy-dial-") as folder:
        files = [Path(folder, f"{index}.safetensors") for index in range(len(dialed.positions))]
        for position, file in zip(dialed.positions, files, strict=True):
            dialed.save(position, file)
        shots = [Shot(str(file), env) for file in files]
        return films_for_page([Shot(str(files[0]), env, role="prior"), *shots], say)


def _lead(dialed: DialedPolicy, swept: SweepResult) -> str:
    """Return the lead of the page: what was turned or trained, and the verdict."""
    file, verdict = escape(str(dialed.path)), f"{escape(capitalize(swept.verdict))}."
    if not dialed.dials:
        words = METHOD_WORDS[dialed.method]
        return f"Between the prior (t = 0) and {file} (t = 1): {words}. Nothing was trained. {verdict}"
    weights = " and ".join(escape(meaning(each).weight) for each in dialed.dials)
    inputs = f"{weights}, as an input" if len(dialed.dials) == 1 else f"{weights} as inputs"
    return f"{file}: one run trained a policy that takes {inputs}. {verdict if swept.is_curve else ''}"


def _sliders(dialed: DialedPolicy, swept: SweepResult) -> list[str]:
    """Return a slider for each dial. A single one begins at the highest total, several in the middle."""
    if swept.is_curve:
        *_, left, right = meaning(dialed.dials[0]) if dialed.dials else ("prior", "customized")
        return [sweep_page.point_slider(swept, left, right)]
    sliders = []
    for index, (each, stops) in enumerate(zip(dialed.dials, dialed.stops, strict=True)):
        words = meaning(each)
        names = [f"{words.symbol} {exact_text(stop)}" for stop in stops]
        middle = len(stops) // 2
        sliders.append(sweep_page.slider(f"dial-{index}", words.weight, names, middle, words.low, words.high))
    return sliders


def _write_page(dialed: DialedPolicy, swept: SweepResult, addons: Sequence[str], say: Say) -> Path:
    """Film every position, and write `report.html` into the folder of the evaluated positions.

    `addons` have the ranges of weights that `swept` is without.
    """
    env, out = swept.request["env"], swept.folder
    films, complaint = _film_positions(dialed, env, say)
    word = "dials" if len(dialed.dials) > 1 else "dial"
    commands = [page.command(dialed.command(position)) for position in dialed.positions]
    commands = [sweep_page.at_stop(index, command) for index, command in enumerate(commands)]
    parts = [
        page.words(),
        page.section(
            f"Turn the {word}",
            *_sliders(dialed, swept),
            *([] if swept.is_addon_dialed else sweep_page.point_verdicts(swept)),
            page.films(sweep_page.film_figures(swept, films), complaint),
            *sweep_page.point_tables(swept),
        ),
        page.section("Keep this position", *commands, note="Writes it as a policy's file, which every command takes."),
    ]
    if swept.is_curve:
        chart = sweep_page.tradeoff_chart(swept)
        parts.append(page.section("The trade-off", chart, note=sweep_page.tradeoff_note(swept)))
    note = sweep_page.points_note(swept)
    if swept.is_addon_dialed:
        names = escape(" and of ".join(each.name for each in addon_names.dials(addons)))
        note += f" In the add-on reward the weight of {names} is 1 at every position."
    parts.append(page.section("Every position", sweep_page.points_table(swept), note=note))
    title = f"{parse_env_name(env).title} with {' + '.join(addons)}: the {word}"
    return page.write(out / "report.html", title, _lead(dialed, swept), parts, sweep_page.SCRIPT)
