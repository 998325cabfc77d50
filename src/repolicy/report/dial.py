"""The page of a dial: what eleven positions between prior and customized policy are worth, and a slider over them."""

import math
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from repolicy.engine import ranks
from repolicy.envs.addons import combined
from repolicy.envs.evaluation import EVALUATION_SEED, Evaluation, evaluate
from repolicy.loading import read_json
from repolicy.many.tradeoff import Found, Point
from repolicy.policies.conditioned import Conditioned
from repolicy.policies.dials import How, prior_of, story, turned
from repolicy.policies.file import SavedPolicy, save_policy
from repolicy.policies.policy import Policy
from repolicy.policies.storage import check_shape, finite, write_bytes, write_json
from repolicy.report import page
from repolicy.report.film import Shot
from repolicy.report.run import filmed
from repolicy.report.sweep import SCRIPT, Beside, every_point, figures, legend, slider, tables, tradeoff

POSITIONS = tuple(index / 10 for index in range(11))
TURNS = Literal["mixture", "weights", "trained"]
WORDS = {
    "trained": "one run trained a policy that takes ω′, the weight on the old behavior, as an input",
    "mixture": "the geometric mixture of both policies: each action's probability is multiplied, not averaged",
    "weights": "the networks' numbers, taken between their values before and after",
}


@dataclass(frozen=True)
class Dial:
    """A customized policy's file, and how to turn between its prior and it."""

    path: Path
    saved: SavedPolicy
    how: TURNS
    env: str
    addons: tuple[str, ...]
    out: Path
    beside: tuple[Beside, ...] = ()  # points that were trained one by one

    @property
    def positions(self) -> Sequence[float]:
        policy = self.saved.policy
        return policy.omegas.spread(len(POSITIONS)) if isinstance(policy, Conditioned) else POSITIONS

    def at(self, t: float) -> Policy:
        if isinstance(self.saved.policy, Conditioned):
            return self.saved.policy.placed(self.saved.policy.omegas.place(t))
        how: How = "weights" if self.how == "weights" else "mixture"
        return turned(prior_of(self.saved, self.path), self.saved.policy, t, how)

    def save(self, t: float, path: Path, checksum: str) -> None:
        """The policy at `t`, in a file that any command takes."""
        card = story(self.saved.card, t, self.how, str(self.path), checksum)
        save_policy(path, self.at(t), card, self.saved.prior)

    def command(self, t: float) -> str:
        """What exports a position."""
        how = ["--how", self.how] if self.how == "weights" else []
        target = self.path.with_name(f"{self.path.stem}-at-{t:g}.safetensors")
        return shlex.join(["repolicy", "dial", str(self.path), "--at", f"{t:g}", *how, "--out", str(target)])


def measured(dial: Dial, episodes: int, progress: Callable[[int], None] = lambda _: None) -> Found:
    """Every position's episodes: with the mean action, and sampled; the same seeds for all, in one thread."""
    addon, prior = combined(dial.addons), prior_of(dial.saved, dial.path)
    points = []

    def run(policy: Policy, stochastic: bool) -> Evaluation:
        return evaluate(
            policy, dial.env, episodes, addon=addon, prior=prior, stochastic=stochastic, seed=EVALUATION_SEED
        )

    with ranks.one_thread():
        if dial.how == "trained":
            points.append(Point(math.inf, dial.path, mean=run(prior, False), sampled=run(prior, True)))
        for done, t in enumerate(dial.positions):
            progress(done)
            policy = dial.at(t)
            points.append(Point(t, dial.path, mean=run(policy, False), sampled=run(policy, True)))
    request, metric = {"env": dial.env, "addons": list(dial.addons)}, addon.metric_name if addon.has_metric else ""
    if dial.how == "trained":
        return Found(request, dial.out, points[0], points[1:], [], metric)
    return Found(request, dial.out, points[0], points, [], metric, letter="t")


def write_dial_report(dial: Dial, found: Found, checksum: str) -> Path:
    """Film every position, and write `report.html` and `dial.json` into the dial's folder."""
    pictures, complaint = _filmed(dial, checksum)
    write_json(dial.out / "dial.json", as_dict(dial, found, checksum))
    path = dial.out / "report.html"
    write_bytes(path, _html(dial, found, pictures, complaint).encode())
    return path


def as_dict(dial: Dial, found: Found, checksum: str) -> dict[str, Any]:
    """What `dial.json` holds; numbers that are not finite become null."""

    def described(point: Point) -> dict[str, Any]:
        assert point.mean is not None
        assert point.sampled is not None
        distance = {"at": point.omega, "kl": point.kl, "log_prior": point.log_prior}
        return distance | {"mean_action": point.mean.as_dict(), "sampled_action": point.sampled.as_dict()}

    whose: dict[str, Any] = {"of": str(dial.path), "sha256": checksum, "how": dial.how}
    whose |= {"prior": described(found.prior)} if dial.how == "trained" else {}
    return dict(finite(whose | found.request | {"positions": [described(point) for point in found.points]}))


def points_of(sweep: Path) -> tuple[Beside, ...]:
    """The points of a sweep, from its folder."""
    path = sweep / "sweep.json"
    found = read_json(path)
    summary = {"summary": {str: {"mean?": float}}}
    check_shape(found, {"points": [{"omega": float, "kl": float, "mean_action": summary}]}, str(path))
    return tuple(
        Beside(point["omega"], means.get("basic_reward", {}).get("mean"), point["kl"], means["addon_reward"]["mean"])
        for point in found["points"]
        if (means := point["mean_action"]["summary"]).get("addon_reward", {}).get("mean") is not None
    )


def beside_words(points: Sequence[Beside]) -> str:
    return f"Beside it, hollow: {len(points)} points of a sweep, each trained for itself." if points else ""


def _filmed(dial: Dial, checksum: str) -> tuple[list[bytes | None], str]:
    """A film of each position, from files, because films are made from files."""
    with tempfile.TemporaryDirectory(prefix="repolicy-dial-") as folder:
        files = [Path(folder, f"{t:g}.safetensors") for t in dial.positions]
        for t, file in zip(dial.positions, files, strict=True):
            dial.save(t, file, checksum)
        shots = [Shot(str(file), dial.env) for file in files]
        return filmed([Shot(str(files[0]), dial.env, which="prior"), *shots] if dial.how == "trained" else shots)


def _html(dial: Dial, found: Found, pictures: Sequence[bytes | None], complaint: str) -> str:
    assert found.prior.mean is not None
    episodes, middle, trained = len(found.prior.mean.basic), len(POSITIONS) // 2, dial.how == "trained"
    index = middle if found.knee is None else found.knee
    ends = f"Between the prior (t = 0) and {escape(str(dial.path))} (t = 1): {WORDS[dial.how]}. Nothing was trained."
    if trained:
        ends = f"{escape(str(dial.path))}: {WORDS[dial.how]}. {beside_words(dial.beside)}"
    lead = f"{ends} {escape(found.verdict[0].upper() + found.verdict[1:])}."
    commands = [
        f'<div class="beneath" data-shown="{position}">{page.command(dial.command(t))}</div>'
        for position, t in enumerate(dial.positions)
    ]
    parts = [
        page.section(
            "Turn the dial",
            slider(found, index, "more of the wish" if trained else "prior", "prior" if trained else "customized"),
            page.films(figures(found, pictures if trained else [pictures[0], *pictures]), complaint),
            *tables(found),
        ),
        page.section("Keep this position", *commands, note="Writes it as a policy's file, which every command takes."),
        page.section("The trade-off", tradeoff(found, dial.beside), note=legend(found)),
        page.section(
            "Every position",
            every_point(found),
            note=f"Mean ± std over {episodes} episodes with the mean action; log prior and KL(policy ‖ prior) over "
            f"{episodes} with sampled ones, at the states that the policy itself visits.",
        ),
    ]
    wanted = " + ".join(dial.addons)
    return page.page(f"{dial.env} with {wanted}: the dial", lead, parts, SCRIPT)
