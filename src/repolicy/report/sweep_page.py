"""Write the page of a sweep: a slider that selects verdict, film and table, and the trade-off chart; dials use both."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from repolicy.envs import parse_env_name
from repolicy.evaluation import ACTIONS, Evaluation
from repolicy.many.tradeoff import Point, SweepResult
from repolicy.report import charts, page
from repolicy.report.movie import Shot
from repolicy.report.pieces import by_action, deciding_first, films_for_page, prior_pairs, reward_table, reward_tiles
from repolicy.report.verdict import basis, verdict
from repolicy.text import Say, capitalize, format_count, format_number

SCRIPT = (Path(__file__).parent / "sliders.js").read_text()


def write_sweep_report(swept: SweepResult, say: Say = lambda _: None) -> Path:
    """Film the prior and every point, and write `report.html` into the sweep's folder."""
    env = swept.request["env"]
    files = [point.policy for point in (swept.prior, *swept.points)]
    pictures, complaint = films_for_page([Shot(str(file), env) for file in files], say)
    addons, states, alpha = " + ".join(swept.request["addons"]), swept.request["states"], swept.request["alpha"]
    price = f"a price of {states:.3g} for a nat of new states; " if states else ""
    alpha_words = "the same" if alpha == "omega" else f"{alpha:g}"
    lead = (
        f"{len(swept.points)} values of ω′, the reward for a nat of the prior; α̂ {alpha_words}; {price}"
        f"{swept.request['settings']['steps']:,} steps each. {capitalize(swept.verdict)}."
    )
    failures = [f'<p class="complaint">ω′ {omega:g} failed: {escape(why)}</p>' for omega, why in swept.failed.items()]
    parts = [
        page.words(),
        page.section(
            "Choose ω′",
            point_slider(swept, "add-on first", "prior first"),
            *point_verdicts(swept),
            page.films(film_figures(swept, pictures), complaint),
            *point_tables(swept),
        ),
        page.section("The trade-off", tradeoff_chart(swept), note=tradeoff_note(swept)),
        page.section("Every point", points_table(swept), *failures, note=points_note(swept)),
        page.section("How each was trained", page.settings(swept.request["settings"])),
    ]
    title = f"{parse_env_name(env).title} with {addons}: choosing ω′"
    return page.write(swept.folder / "report.html", title, lead, parts, SCRIPT)


# The pieces of a page with a slider -----------------------------------------------------------------------------------


def film_figures(swept: SweepResult, films: Sequence[bytes]) -> list[str]:
    """Return the prior's film, which is always shown, and each point's film, which the slider selects."""
    prior, *rest = films
    figures = [page.film(prior, "prior, mean action", "prior")]
    for index, (point, film) in enumerate(zip(swept.points, rest, strict=True)):
        figures.append(page.film(film, f"{swept.name(point)}, mean action", "customized", f'data-shown="{index}"'))
    return figures


def at_stop(index: int, content: str) -> str:
    """Return content that is only shown while the slider stands at this point."""
    return f'<div class="beneath" data-shown="{index}">{content}</div>'


def point_verdicts(swept: SweepResult) -> list[str]:
    """Return the verdict on each point, with its numbers beside the prior's."""
    contents, among = [], len(swept.points)
    for index, point in enumerate(swept.points):
        kinds = _beside_prior(swept, point, "customized")
        pairs = prior_pairs(*kinds)
        first, *rest = verdict(pairs, among=among)
        sentences = page.verdict([f"at {swept.name(point)}: {first}", *rest], basis([each for _, each in pairs]))
        contents.append(at_stop(index, sentences + page.tiles(reward_tiles(deciding_first(*kinds)[0], among))))
    return contents


def _beside_prior(swept: SweepResult, point: Point, name: str) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
    """Return the evaluations of the prior and a point, with the mean action and with sampled actions."""
    prior = swept.prior
    return {"prior": prior.mean, name: point.mean}, {"prior": prior.sampled, name: point.sampled}


def point_slider(swept: SweepResult, left: str, right: str) -> str:
    """Return the slider over all points of a sweep, or of a dial with one weight."""
    names = [f"{swept.name(point)}{swept.marks(index)}" for index, point in enumerate(swept.points)]
    return slider("omega", swept.symbol, names, swept.first_shown, left, right)


def slider(name: str, label: str, stops: Sequence[str], first: int, left: str, right: str) -> str:
    """Return a range input that shows the name of its stop, with words at both ends."""
    return (
        f'<div class="slider"><label for="{name}">{escape(left)}</label>'
        f'<input type="range" id="{name}" min="0" max="{len(stops) - 1}" step="1" value="{first}" '
        f'aria-label="{escape(label)}" data-names="{escape("|".join(stops))}">'
        f'<label for="{name}">{escape(right)}</label><output for="{name}">{escape(stops[first])}</output></div>'
    )


def point_tables(swept: SweepResult) -> list[str]:
    """Return for each point a table of prior and point, as in the paper's Table 2."""
    return [
        at_stop(index, page.table(*reward_table(by_action(*_beside_prior(swept, point, swept.name(point))))))
        for index, point in enumerate(swept.points)
    ]


def points_table(swept: SweepResult) -> str:
    """Return the table of all points, whose rows select a point."""
    attributes = ["", *(f'data-point="{index}"' for index in range(len(swept.points)))]
    return page.table(*swept.table(), attributes)


def points_note(swept: SweepResult) -> str:
    return (
        f"{capitalize(swept.prior.main_evaluation.basis)}; log prior and KL(policy ‖ prior) over as many with sampled "
        "ones, at the states that the policy itself visits."
    )


def tradeoff_note(swept: SweepResult) -> str:
    knee = escape(swept.verdict)
    if swept.knee is not None:
        knee = "the dotted ring marks the knee, beyond which more of the wish costs much more of the old task"
    best = ""
    if swept.best is not None:
        others = f" ({format_count(swept.tied_points, 'other')} cannot be told from it)" if swept.tied_points else ""
        best = f"the solid ring marks the highest total, {swept.name(swept.points[swept.best])}{others}; "
    one_run = ""
    if swept.has_a_run_a_point:
        one_run = " Each point is one training run, and all this covers its episodes only: another --seed may move it."
    return (
        "Rewards are of an episode; bars are two standard errors to each side. "
        f"The grey dot is the prior; {escape(best)}{knee}.{one_run} A click on a point chooses it."
    )


def tradeoff_chart(swept: SweepResult) -> str:
    """Return a chart of all points: horizontal what a point keeps, vertical what it gains, with error bars."""
    points = [swept.prior, *swept.points]
    names = ["prior", *(swept.name(point) for point in swept.points)]
    costs = [_mean_and_bar(point, swept.cost_name) for point in points]
    gains = [_mean_and_bar(point, "addon_reward") for point in points]

    # The axes, which must hold all error bars.
    xs = [end for x, bar in costs for end in (x - bar, x + bar)]
    ys = [end for y, bar in gains for end in (y - bar, y + bar)]
    axes = charts.Axes(xs, ys, 400, 300)
    action = ACTIONS[swept.prior.main_evaluation.action]
    a_step = swept.prior.sampled.columns["kl_a_step"].title.removeprefix("KL ")  # such as "a step, nats"
    horizontal = f"basic reward {action}" if swept.has_basic_reward else f"KL to the prior {a_step}, sampled"
    content = axes.name_axes(horizontal, f"add-on reward {action}")
    axes.widen(0.08)
    content += axes.frame()

    # The points, and the path from one to the next. The prior is the position t = 0, and the limit of a large ω′.
    places = [(axes.x(x), axes.y(y)) for (x, _), (y, _) in zip(costs, gains, strict=True)]
    path = {"t": places, "ω′": [*places[1:], places[0]]}.get(swept.symbol, places[1:])
    content += f'<path class="path" d="M{"L".join(f"{x:.1f},{y:.1f}" for x, y in path)}"/>'
    for index, (name, (px, py), (x, dx), (y, dy)) in enumerate(zip(names, places, costs, gains, strict=True)):
        content += charts.line("error", axes.x(x - dx), py, axes.x(x + dx), py)
        content += charts.line("error", px, axes.y(y - dy), px, axes.y(y + dy))
        if index and index - 1 == swept.knee:
            content += charts.circle("knee", px, py, 13)
        if index and index - 1 == swept.best:
            content += charts.circle("best", px, py, 10)
        tip = f"{name}: {_format_with_bar(x, dx)}, {_format_with_bar(y, dy)}"
        attributes = f'data-point="{index - 1}"' if index else ""
        content += charts.circle("point" if index else "prior", px, py, 6.5, tip, attributes)

    # The prior's name stands beside it, because a point is often above. Points between the ends show theirs on a hover.
    x, y = places[0]
    is_right = x > 0.5 * axes.width
    content += charts.text("label", x - 12 if is_right else x + 12, y + 5, "prior", "end" if is_right else "start")
    ringed = [index + 1 for index in (swept.knee, swept.best) if index is not None]
    for index in sorted({1, len(names) - 1, *ringed}):
        x, y = places[index]
        content += charts.text("label", x, y - 16, names[index], "middle")
    numbers = [
        f"{name} {format_number(x)}, {format_number(y)}"
        for name, (x, _), (y, _) in zip(names, costs, gains, strict=True)
    ]
    label = f"the trade-off, {horizontal} and add-on reward: {'; '.join(numbers)}"
    return f'<figure class="chart tradeoff">{axes.svg(content, label)}</figure>'


def _mean_and_bar(point: Point, name: str) -> tuple[float, float]:
    """Return a quantity's mean and its error bar, two standard errors; one episode has no bar."""
    column = point.column(name)
    return column.mean, 0.0 if math.isnan(column.error) else 2 * column.error


def _format_with_bar(value: float, bar: float) -> str:
    return charts.format_value(value) + (f" ± {charts.format_value(bar)}" if bar else "")
