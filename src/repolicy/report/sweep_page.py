"""The page of a sweep: the trade-off curve, and a slider that switches table and film; a dial's page has the same."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from repolicy.many.tradeoff import Found, Point
from repolicy.report import charts, page
from repolicy.report.movie import Shot
from repolicy.report.run_page import by_action, caption, filmed, how_acted, rewards, tiles
from repolicy.report.verdict import action, basis, spread, verdict
from repolicy.text import capitalized, counted, number

MOST_LABELS = 7  # of a drawing: of more points only the ends and those with a ring have their names beside them
SCRIPT = """
// The sliders: of all that belongs to a point, what belongs to one is shown. Of several, the last one counts fastest.
const sliders = [...document.querySelectorAll(".slider input")];
const stops = (slider) => Number(slider.max) + 1;
function show(index) {
  let rest = index;
  for (const slider of [...sliders].reverse()) {
    slider.value = rest % stops(slider);
    rest = Math.floor(rest / stops(slider));
    const name = slider.dataset.names.split("|")[slider.value];
    slider.parentElement.querySelector("output").textContent = name;
    slider.setAttribute("aria-valuetext", name);
  }
  for (const part of document.querySelectorAll("[data-shown]")) part.hidden = part.dataset.shown !== String(index);
  for (const mark of document.querySelectorAll("[data-point]"))
    mark.classList.toggle("chosen", mark.dataset.point === String(index));
  cues();
  if (running || !still) begin();
}
const turned = () => sliders.reduce((index, slider) => index * stops(slider) + Number(slider.value), 0);
for (const slider of sliders) slider.addEventListener("input", () => show(turned()));
for (const mark of document.querySelectorAll("[data-point]"))
  mark.addEventListener("click", () => show(Number(mark.dataset.point)));
show(turned());
"""


def write_sweep_report(swept: Found, say: Callable[[str], None] = lambda _: None) -> Path:
    """Film the prior and every point, and write `report.html` into the sweep's folder."""
    env = swept.request["env"]
    files = [swept.prior.folder, *(point.policy for point in swept.points)]
    pictures, complaint = filmed([Shot(str(file), env) for file in files], say)
    wanted, states = " + ".join(swept.request["addons"]), swept.request["states"]
    price = f"a price of {states:.3g} for a nat of new states; " if states else ""
    alpha = swept.request["alpha"]
    lead = (
        f"{len(swept.points)} values of ω′, what a nat of the prior is worth; "
        f"α̂ {'the same' if alpha == 'omega' else f'{alpha:g}'}; {price}"
        f"{swept.request['settings']['steps']:,} environment steps each. {capitalized(swept.verdict)}."
    )
    parts = [
        page.section(
            "Choose ω′",
            slider(swept, "add-on first", "prior first"),
            *verdicts(swept),
            page.films(figures(swept, pictures), complaint),
            *tables(swept),
        ),
        page.section("The trade-off", tradeoff(swept), note=legend(swept)),
        page.section(
            "Every point",
            every_point(swept),
            *(f'<p class="complaint">ω′ {omega:g} failed: {escape(why)}</p>' for omega, why in swept.failed.items()),
            note=over(swept),
        ),
        page.section(
            "Train one for longer",
            *(at_stop(index, page.command(swept.longer(point))) for index, point in enumerate(swept.points)),
            page.settings(swept.request["settings"]),
        ),
    ]
    return page.write(swept.folder / "report.html", f"{env} with {wanted}: choosing ω′", lead, parts, SCRIPT)


# The pieces of a page with a slider -----------------------------------------------------------------------------------


def figures(swept: Found, pictures: Sequence[bytes]) -> list[str]:
    """Return the films of the prior and of each point, of which the slider shows one."""
    drawn = []
    for position, (point, picture) in enumerate(zip([swept.prior, *swept.points], pictures, strict=True)):
        words = caption("prior" if position == 0 else swept.name(point), point.judged)
        shown = "" if position == 0 else f'data-shown="{position - 1}"'
        drawn.append(page.film(picture, words, "prior" if position == 0 else "customized", shown))
    return drawn


def at_stop(index: int, content: str) -> str:
    """Return what is shown while the slider stands at this point."""
    return f'<div class="beneath" data-shown="{index}">{content}</div>'


def verdicts(swept: Found) -> list[str]:
    """Return the verdict on each point, and its numbers beside the prior's."""
    drawn, prior = [], swept.prior
    for index, point in enumerate(swept.points):
        before, after = prior.judged, point.judged
        pairs = sorted([(prior.mean, point.mean), (prior.sampled, point.sampled)], key=lambda pair: pair[1] != after)
        sentence = page.verdict(f"{swept.name(point)}: {verdict(pairs)}", basis([each for _, each in pairs]))
        drawn.append(at_stop(index, sentence + page.tiles(tiles({"prior": before, "customized": after}))))
    return drawn


def slider(swept: Found, left: str, right: str) -> str:
    names = [f"{swept.name(point)}{swept.marks(i)}" for i, point in enumerate(swept.points)]
    return one_slider("omega", swept.letter, names, swept.first, left, right)


def one_slider(name: str, label: str, stops: Sequence[str], first: int, left: str, right: str) -> str:
    """Return an input with a name for each of its stops."""
    return (
        f'<div class="slider"><label for="{name}">{escape(left)}</label>'
        f'<input type="range" id="{name}" min="0" max="{len(stops) - 1}" step="1" value="{first}" '
        f'aria-label="{escape(label)}" data-names="{escape("|".join(stops))}">'
        f'<label for="{name}">{escape(right)}</label><output for="{name}">{escape(stops[first])}</output></div>'
    )


def tables(swept: Found) -> list[str]:
    """Return prior and one point, as in the paper's Table 2, for each point."""
    drawn = []
    for index, point in enumerate(swept.points):
        mean = {"prior": swept.prior.mean, swept.name(point): point.mean}
        sampled = {"prior": swept.prior.sampled, swept.name(point): point.sampled}
        drawn.append(at_stop(index, page.table(*rewards(by_action(mean, sampled)))))
    return drawn


def every_point(swept: Found) -> str:
    places = ["", *(f'data-point="{index}"' for index in range(len(swept.points)))]
    return page.table(*swept.table(spread), places)


def over(swept: Found) -> str:
    """Return what the numbers of every point are."""
    episodes = counted(len(swept.prior.mean.basic), "episode")
    return (
        f"Mean ± std over {episodes} with {action(swept.prior.judged)}; log prior and KL(policy ‖ prior) over as many "
        "with sampled ones, at the states that the policy itself visits."
    )


def legend(swept: Found) -> str:
    knee = "the dotted ring marks the knee" if swept.knee is not None else escape(swept.verdict)
    best = ""
    if swept.best is not None:
        others = f" ({counted(swept.as_good, 'other')} within its error)" if swept.as_good else ""
        best = f"the solid ring marks the highest total, {swept.name(swept.points[swept.best])}{others}; "
    return (
        "Rewards are of an episode; bars are two standard errors to each side. "
        f"The grey dot is the prior; {escape(best)}{knee}. A click on a point chooses it."
    )


class Beside(NamedTuple):
    """A point of another sweep, to compare with."""

    omega: float
    basic: float | None
    kl: float
    addon: float


def tradeoff(swept: Found, beside: Sequence[Beside] = ()) -> str:
    """Return what each point keeps, across, and what it gains, up, with the errors of both."""
    everyone = [swept.prior, *swept.points]
    costs = [_with_error(point, swept.cost) for point in everyone]
    gains = [_with_error(point, "addon_reward") for point in everyone]
    spots = list(zip(costs, gains, strict=True))
    places = [(other, other.basic if swept.basic_known else other.kl) for other in beside]
    others = [(other.omega, x, other.addon) for other, x in places if x is not None]
    xs = [end for x, bar in costs for end in (x - bar, x + bar)] + [x for _, x, _ in others]
    ys = [end for y, bar in gains for end in (y - bar, y + bar)] + [y for _, _, y in others]
    axes = charts.Axes(xs, ys, 400, 300)
    how = how_acted(swept.prior.judged)
    a_step = swept.prior.sampled.columns["kl_a_step"].title.removeprefix("KL ")  # or a decision
    across = f"basic reward, {how}" if swept.basic_known else f"KL to the prior, nats {a_step}, sampled"
    drawn = axes.named(across, f"add-on reward, {how}")
    axes.widened(0.08)
    drawn += axes.frame()
    for omega, x, y in others:
        tip = f"trained alone, {swept.letter} {omega:g}: {charts.read_out(x)}, {charts.read_out(y)}"
        drawn += charts.circle("beside", axes.x(x), axes.y(y), 6.5, tip)
    at = [(axes.x(x), axes.y(y)) for (x, _), (y, _) in spots]
    # The prior is what t = 0 is, and what the largest ω′ leads to.
    path = {"t": at, "ω′": [*at[1:], at[0]]}.get(swept.letter, at[1:])
    drawn += f'<path class="path" d="M{"L".join(f"{x:.1f},{y:.1f}" for x, y in path)}"/>'
    names = ["prior", *(swept.name(point) for point in swept.points)]
    for index, (name, (px, py), ((x, dx), (y, dy))) in enumerate(zip(names, at, spots, strict=True)):
        drawn += charts.line("error", axes.x(x - dx), py, axes.x(x + dx), py)
        drawn += charts.line("error", px, axes.y(y - dy), px, axes.y(y + dy))
        if index and index - 1 == swept.knee:
            drawn += charts.circle("knee", px, py, 13)
        if index and index - 1 == swept.best:
            drawn += charts.circle("best", px, py, 10)
        tip = f"{name}: {_with_bar(x, dx)}, {_with_bar(y, dy)}"
        chooses = f'data-point="{index - 1}"' if index else ""
        drawn += charts.circle("point" if index else "prior", px, py, 6.5, tip, chooses)
    marked = {0, 1, len(names) - 1, *(place + 1 for place in (swept.knee, swept.best) if place is not None)}
    labelled = sorted(marked) if len(names) > MOST_LABELS else range(len(names))
    labels = [names[index] for index in labelled]
    feet = charts.beside(labels, [at[index] for index in labelled], path, axes)
    drawn += "".join(charts.text("label", x, y, name, "middle") for name, (x, y) in zip(labels, feet, strict=True))
    numbers = "; ".join(f"{name} {number(x)}, {number(y)}" for name, ((x, _), (y, _)) in zip(names, spots, strict=True))
    heading = f"the trade-off, {across} and add-on reward: {numbers}"
    return f'<figure class="chart tradeoff">{axes.svg(drawn, heading)}</figure>'


def _with_error(point: Point, name: str) -> tuple[float, float]:
    """Return a quantity and two of its standard errors; no error where there is one episode."""
    column = point.column(name)
    return column.mean, 0.0 if math.isnan(column.error) else 2 * column.error


def _with_bar(value: float, bar: float) -> str:
    return charts.read_out(value) + (f" ± {charts.read_out(bar)}" if bar else "")
