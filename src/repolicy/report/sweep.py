"""The page of a sweep: the trade-off curve, and a slider that switches table and film; a dial's page has the same."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from repolicy.envs.evaluation import Column
from repolicy.envs.numbers import number, spread
from repolicy.envs.verdict import basis, verdict
from repolicy.many.tradeoff import Found, Point
from repolicy.policies.storage import write_bytes
from repolicy.report import charts, page
from repolicy.report.film import Shot
from repolicy.report.run import by_action, caption, filmed, rewards, tiles

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
  if (!still) begin();
}
const turned = () => sliders.reduce((index, slider) => index * stops(slider) + Number(slider.value), 0);
for (const slider of sliders) slider.addEventListener("input", () => show(turned()));
for (const mark of document.querySelectorAll("[data-point]"))
  mark.addEventListener("click", () => show(Number(mark.dataset.point)));
show(turned());
"""


def write_sweep_report(found: Found) -> Path:
    """Film the prior and every point, and write `report.html` into the sweep's folder."""
    env = found.request["env"]
    files = [found.prior.folder, *(point.best for point in found.points)]
    pictures, complaint = filmed([Shot(str(file), env) for file in files])
    index = found.knee if found.knee is not None else len(found.points) // 2
    wanted = " + ".join(found.request["addons"])
    lead = (
        f"{len(found.points)} values of ω′, what a nat of the prior is worth; α̂ {found.request['alpha']:g}; "
        f"{found.request['settings']['steps']:,} environment steps each. {found.verdict[0].upper()}{found.verdict[1:]}."
    )
    episodes = len(found.prior.mean.basic) if found.prior.mean is not None else 0
    parts = [
        page.section(
            "Choose ω′",
            slider(found, index, "add-on first", "prior first"),
            *verdicts(found),
            page.films(figures(found, pictures), complaint),
            *tables(found),
        ),
        page.section("The trade-off", tradeoff(found), note=legend(found)),
        page.section(
            "Every point",
            every_point(found),
            *(f'<p class="complaint">ω′ {p.omega:g} failed: {escape(p.error)}</p>' for p in found.failed),
            note=f"Mean ± std over {episodes} episodes with the mean action; log prior and KL(policy ‖ prior) over "
            f"{episodes} with sampled ones, at the states that the policy itself visits.",
        ),
        page.section(
            "Train one for longer",
            *(
                f'<div data-shown="{position}">{page.command(found.longer(point))}</div>'
                for position, point in enumerate(found.points)
            ),
            page.settings(found.request["settings"]),
        ),
    ]
    path = found.folder / "report.html"
    write_bytes(path, page.page(f"{env} with {wanted}: choosing ω′", lead, parts, SCRIPT).encode())
    return path


# The pieces of a page with a slider -----------------------------------------------------------------------------------


def figures(found: Found, pictures: Sequence[bytes | None]) -> list[str]:
    """The films of the prior and of each point, of which the slider shows one."""
    drawn = []
    for position, (point, picture) in enumerate(zip([found.prior, *found.points], pictures, strict=True)):
        assert point.mean is not None
        words = caption("prior" if position == 0 else found.name(point), point.mean)
        shown = "" if position == 0 else f'data-shown="{position - 1}"'
        drawn.append(page.film(picture, words, "prior" if position == 0 else "customized", shown))
    return drawn


def verdicts(found: Found) -> list[str]:
    """The verdict on each point, and its numbers beside the prior's."""
    drawn = []
    for index, point in enumerate(found.points):
        assert point.mean is not None
        assert found.prior.mean is not None
        said = page.verdict(f"{found.name(point)}: {verdict(found.prior.mean, point.mean)}", basis(point.mean))
        shown = page.tiles(tiles({"prior": found.prior.mean, "customized": point.mean}))
        drawn.append(f'<div class="beneath" data-shown="{index}">{said}{shown}</div>')
    return drawn


def slider(found: Found, first: int, left: str, right: str) -> str:
    names = [f"{found.name(point)}{' (knee)' if i == found.knee else ''}" for i, point in enumerate(found.points)]
    return one_slider("omega", found.letter, names, first, left, right)


def one_slider(name: str, said: str, stops: Sequence[str], first: int, left: str, right: str) -> str:
    """An input with a name for each of its stops."""
    return (
        f'<div class="slider"><label for="{name}">{escape(left)}</label>'
        f'<input type="range" id="{name}" min="0" max="{len(stops) - 1}" step="1" value="{first}" '
        f'aria-label="{escape(said)}" data-names="{escape("|".join(stops))}">'
        f'<label for="{name}">{escape(right)}</label><output for="{name}">{escape(stops[first])}</output></div>'
    )


def tables(found: Found) -> list[str]:
    """Prior and one point, as in the paper's Table 2, for each point."""
    drawn = []
    for index, point in enumerate(found.points):
        assert point.mean is not None
        assert found.prior.mean is not None
        assert point.sampled is not None
        assert found.prior.sampled is not None
        name = found.name(point)
        mean, sampled = (
            {"prior": found.prior.mean, name: point.mean},
            {"prior": found.prior.sampled, name: point.sampled},
        )
        drawn.append(
            f'<div class="beneath" data-shown="{index}">{page.table(*rewards(by_action(mean, sampled)))}</div>'
        )
    return drawn


def every_point(found: Found) -> str:
    return page.table(headings(found), rows(found), ["", *(f'data-point="{i}"' for i in range(len(found.points)))])


def legend(found: Found) -> str:
    knee = "the dotted ring marks the knee" if found.knee is not None else escape(found.verdict)
    return (
        "Rewards are of an episode; bars are two standard errors to each side. "
        f"The grey dot is the prior; {knee}. A click on a point chooses it."
    )


NAMES = {
    "basic_reward": "basic reward, mean action",
    "kl_a_step": "KL to the prior, nats a step, sampled",
}


class Beside(NamedTuple):
    """A point of another sweep, to compare with."""

    omega: float
    basic: float | None
    kl: float
    addon: float


def tradeoff(found: Found, beside: Sequence[Beside] = ()) -> str:
    """What each point keeps, across, and what it gains, up, with the errors of both."""
    everyone = [found.prior, *found.points]
    spots = [(_with_error(point, found.cost), _with_error(point, "addon_reward")) for point in everyone]
    others = [((other.basic or 0.0) if found.basic_known else other.kl, other.addon) for other in beside]
    ends = [
        [value + sign * error for spot in spots for value, error in [spot[side]] for sign in (-1, 1)]
        + [other[side] for other in others]
        for side in (0, 1)
    ]
    axes = charts.Axes(ends[0], ends[1], 400, 300)
    drawn = axes.named(NAMES[found.cost], "add-on reward, mean action")
    axes.widened(0.08)
    drawn += axes.frame()
    for other, (x, y) in zip(beside, others, strict=True):
        said = f"trained alone, {found.letter} {other.omega:g}: {x:,.2f}, {y:,.2f}"
        where = f'cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}"'
        drawn += f'<circle class="beside" {where} r="6.5"><title>{escape(said)}</title></circle>'
    at = [(axes.x(x), axes.y(y)) for (x, _), (y, _) in spots]
    order = at[1:]
    if found.letter == "ω′" and all(point.mean is not found.prior.mean for point in found.points):
        order.append(at[0])  # the prior is what the largest ω′ leads to
    drawn += f'<path class="path" d="M{"L".join(f"{x:.1f},{y:.1f}" for x, y in order)}"/>'
    names = ["prior", *(found.name(point) for point in found.points)]
    for index, (name, (px, py), ((x, dx), (y, dy))) in enumerate(zip(names, at, spots, strict=True)):
        drawn += charts.line("error", axes.x(x - dx), py, axes.x(x + dx), py)
        drawn += charts.line("error", px, axes.y(y - dy), px, axes.y(y + dy))
        where = f'cx="{px:.1f}" cy="{py:.1f}"'
        if index and index - 1 == found.knee:
            drawn += f'<circle class="knee" {where} r="13"/>'
        kind = 'class="prior"' if index == 0 else f'class="point" data-point="{index - 1}"'
        said = f"{name}: {x:,.2f} ± {dx:,.2f}, {y:,.2f} ± {dy:,.2f}"
        drawn += f'<circle {kind} {where} r="6.5"><title>{escape(said)}</title></circle>'
    drawn += "".join(
        charts.text("label", x, y, name, "middle")
        for name, (x, y) in zip(names, charts.beside(names, at, order, axes), strict=True)
    )
    said = "; ".join(f"{name} {number(x)}, {number(y)}" for name, ((x, _), (y, _)) in zip(names, spots, strict=True))
    heading = f"the trade-off, {NAMES[found.cost]} and add-on reward: {said}"
    return f'<figure class="chart tradeoff">{axes.svg(drawn, heading)}</figure>'


def _with_error(point: Point, name: str) -> tuple[float, float]:
    """A quantity and two of its standard errors; no error where there is one episode."""
    column = point.column(name)
    assert column is not None
    return column.mean, 0.0 if math.isnan(column.error) else 2 * column.error


# In words and numbers -------------------------------------------------------------------------------------------------


def headings(found: Found) -> list[str]:
    basic = ["basic reward", "kept"] if found.basic_known else []
    metric = [found.metric_name] if found.metric_name else []
    assert found.prior.mean is not None
    wishes = [found.prior.mean.columns[name].title for name in found.wishes]
    return [found.letter, *basic, *metric, "add-on reward", "gained", *wishes, "log prior a step", "KL a step", ""]


def rows(found: Found, shown: Callable[[Column], str] = spread) -> list[list[str]]:
    """The trade-off, the prior first: what is kept of the basic reward, what the add-on gains, how far it is."""
    lines = []
    for index, point in enumerate([found.prior, *found.points]):
        assert point.mean is not None
        columns = point.mean.columns
        line = ["prior" if index == 0 else point.label or f"{point.omega:g}"]
        if found.basic_known:
            share = (point.basic or 0.0) / found.prior.basic if found.prior.basic else math.nan
            sensible = (found.prior.basic or 0.0) > 0  # of a negative reward, no share is kept
            line += [shown(columns["basic_reward"]), f"{share:.0%}" if sensible else "–"]
        if "metric" in columns:
            line.append(shown(columns["metric"]))
        gained = point.addon - found.prior.addon
        plus = "+" if gained >= 0 else ""
        line += [shown(columns["addon_reward"]), "–" if index == 0 else plus + number(gained, like=point.addon)]
        line += [shown(columns[name]) for name in found.wishes]
        line += [
            number(point.log_prior),
            number(point.kl),
            "knee" if index - 1 == found.knee and index else "",
        ]
        lines.append(line)
    return lines
