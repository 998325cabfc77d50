"""The page of a sweep: the trade-off curve, and a slider that switches table and film; a dial's page has the same."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from repolicy.envs.evaluation import Column
from repolicy.envs.numbers import number, spread
from repolicy.many.tradeoff import Found, Point
from repolicy.policies.storage import write_bytes
from repolicy.report import charts, page
from repolicy.report.film import Shot
from repolicy.report.run import caption, filmed, rewards

SCRIPT = """
// The slider: one point is shown at a time.
const slider = document.querySelector("#omega");
function show(index) {
  slider.value = index;
  document.querySelector("#chosen").textContent = slider.dataset.names.split("|")[index];
  for (const part of document.querySelectorAll("[data-shown]")) part.hidden = part.dataset.shown !== String(index);
  for (const mark of document.querySelectorAll("[data-point]"))
    mark.classList.toggle("chosen", mark.dataset.point === String(index));
  for (const video of document.querySelectorAll("figure:not([hidden]) > video")) {
    video.currentTime = 0;
    video.play().catch(() => {});
  }
}
slider.addEventListener("input", () => show(slider.value));
for (const mark of document.querySelectorAll("[data-point]"))
  mark.addEventListener("click", () => show(mark.dataset.point));
show(slider.value);
"""


def write_sweep_report(found: Found) -> Path:
    """Film the prior and every point, and write `report.html` into the sweep's folder."""
    env = found.request["env"]
    files = [found.prior.folder, *(point.best for point in found.points)]
    pictures, complaint = filmed([Shot(str(file), env) for file in files])
    index = found.knee
    wanted = " + ".join(found.request["addons"])
    lead = (
        f"{len(found.points)} values of ω′, the weight of the prior's log-probability; α̂ {found.request['alpha']:g}; "
        f"{found.request['settings']['steps']:,} environment steps each. {found.verdict[0].upper()}{found.verdict[1:]}."
    )
    episodes = len(found.prior.mean.basic) if found.prior.mean is not None else 0
    parts = [
        page.section(
            "Choose ω′",
            slider(found, index, "add-on first", "prior first"),
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
            "" if index is None else page.command(found.longer(found.points[index])),
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


def slider(found: Found, index: int | None, left: str, right: str) -> str:
    names = [f"{found.name(point)}{' (knee)' if i == index else ''}" for i, point in enumerate(found.points)]
    first = index or 0
    return (
        f'<div class="slider"><label for="omega">{escape(left)}</label>'
        f'<input type="range" id="omega" min="0" max="{len(names) - 1}" step="1" value="{first}" '
        f'aria-label="{escape(found.letter)}" data-names="{escape("|".join(names))}">'
        f'<label for="omega">{escape(right)}</label><output id="chosen">{escape(names[first])}</output></div>'
    )


def tables(found: Found) -> list[str]:
    """Prior and one point, as in the paper's Table 2, for each point."""
    drawn = []
    for index, point in enumerate(found.points):
        assert point.mean is not None
        assert found.prior.mean is not None
        both = {"prior": found.prior.mean, found.name(point): point.mean}
        drawn.append(f'<div class="beneath" data-shown="{index}">{page.table(*rewards(both))}</div>')
    return drawn


def every_point(found: Found) -> str:
    return page.table(headings(found), rows(found), ["", *(f'data-point="{i}"' for i in range(len(found.points)))])


def legend(found: Found) -> str:
    cost = "the basic reward" if found.basic_known else "the KL to the prior"
    return (
        f"Up: the add-on reward of an episode. Across: {cost}{'' if found.basic_known else ', nats a step'}. "
        "The grey dot is the prior; the dotted ring marks the knee. A click on a point chooses it."
    )


class Beside(NamedTuple):
    """A point of another sweep, to compare with."""

    omega: float
    basic: float | None
    kl: float
    addon: float


def tradeoff(found: Found, beside: Sequence[Beside] = ()) -> str:
    everyone = [found.prior, *found.points]
    xs, ys = [_across(found, point) for point in everyone], [point.addon for point in everyone]
    others = [(other, (other.basic or 0.0) if found.basic_known else other.kl) for other in beside]
    axes = charts.Axes([*xs, *(x for _, x in others)], [*ys, *(other.addon for other, _ in others)], 560, 300)
    axes = axes.widened(0.08)
    drawn = axes.frame()
    for other, x in others:
        where = f'cx="{axes.x(x):.1f}" cy="{axes.y(other.addon):.1f}"'
        name = f"trained alone, {found.letter} {other.omega:g}"
        drawn += f'<circle class="beside" {where} r="6.5"><title>{name}</title></circle>'
    order = [*zip(xs[1:], ys[1:], strict=True)]
    if all(point.mean is not found.prior.mean for point in found.points):
        order.append((xs[0], ys[0]))  # the prior is what the largest ω′ leads to
    line = "L".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in order)
    drawn += f'<path class="path" d="M{line}"/>'
    labels: list[tuple[float, float]] = []
    for index, (point, x, y) in enumerate(zip(everyone, xs, ys, strict=True)):
        px, py = axes.x(x), axes.y(y)
        where = f'cx="{px:.1f}" cy="{py:.1f}"'
        name = "prior" if index == 0 else found.name(point)
        if index and index - 1 == found.knee:
            drawn += f'<circle class="knee" {where} r="13"/>'
        kind = 'class="prior"' if index == 0 else f'class="point" data-point="{index - 1}"'
        drawn += f'<circle {kind} {where} r="6.5"><title>{name}: {x:,.2f}, {y:,.2f}</title></circle>'
        away = next((away for away in (-18, 26, -32, 40) if py + away > 14 and not _taken(px, py + away, labels)), -18)
        labels.append((px, py + away))
        drawn += charts.text("label", px, py + away, name, "middle")
    return f'<figure class="chart tradeoff">{axes.svg(drawn, "the trade-off")}</figure>'


def _taken(x: float, y: float, labels: list[tuple[float, float]]) -> bool:
    """A label there would lie on another one."""
    return any(abs(x - other_x) < 52 and abs(y - other_y) < 14 for other_x, other_y in labels)


def _across(found: Found, point: Point) -> float:
    return (point.basic or 0.0) if found.basic_known else point.kl


# In words and numbers -------------------------------------------------------------------------------------------------


def headings(found: Found) -> list[str]:
    basic = ["basic reward", "kept"] if found.basic_known else []
    metric = [found.metric_name] if found.metric_name else []
    return [found.letter, *basic, *metric, "add-on reward", "gained", "log prior a step", "KL a step", ""]


def rows(found: Found, shown: Callable[[Column], str] = spread) -> list[list[str]]:
    """The trade-off, the prior first: what is kept of the basic reward, what the add-on gains, how far it is."""
    lines = []
    for index, point in enumerate([found.prior, *found.points]):
        assert point.mean is not None
        columns = point.mean.columns
        line = ["prior" if index == 0 else f"{point.omega:g}"]
        if found.basic_known:
            share = (point.basic or 0.0) / found.prior.basic if found.prior.basic else math.nan
            sensible = (found.prior.basic or 0.0) > 0  # of a negative reward, no share is kept
            line += [shown(columns["basic_reward"]), f"{share:.0%}" if sensible else "–"]
        if "metric" in columns:
            line.append(shown(columns["metric"]))
        gained = point.addon - found.prior.addon
        plus = "+" if gained >= 0 else ""
        line += [shown(columns["addon_reward"]), "–" if index == 0 else plus + number(gained, like=point.addon)]
        line += [
            number(point.log_prior),
            number(point.kl),
            "knee" if index - 1 == found.knee and index else "",
        ]
        lines.append(line)
    return lines
