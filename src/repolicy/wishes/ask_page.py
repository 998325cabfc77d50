"""An HTML file that asks which of two clips is better. It needs no server and no network."""

import base64
from contextlib import closing
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from repolicy.addons import check_same_env, open_wish
from repolicy.envs import (
    EnvLike,
    EnvPoolEnvs,
    GymnasiumEnvs,
    check_observed_alike,
    check_plain,
    env_name,
    evaluation_backend,
)
from repolicy.errors import UsageError
from repolicy.policies import Policy, save_policy
from repolicy.priors import OpenedPolicy
from repolicy.report import page
from repolicy.report.movie import Shot, render_films
from repolicy.text import Say, format_count
from repolicy.wishes.pairs import CANDIDATES, Pairs, candidates, choose_pairs, fingerprint

SCRIPT = (Path(__file__).parent / "ask.js").read_text()
STYLE = """<style>
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 6px; }
.pair[hidden] { display: none; }
.pair video { width: 100%; max-height: 45vh; border-radius: 6px; }
#keys { display: grid; grid-template-columns: 1fr 1fr; gap: 6px; margin: 12px 0; }
#keys button { min-height: 48px; font: inherit; }
</style>"""
BUTTONS = {"left": "← left is better", "right": "right is better →", "alike": "↑ alike", "unknown": "↓ cannot tell"}


def ask(
    opened: OpenedPolicy,
    env: EnvLike,
    out: str | Path,
    count: int = 20,
    seconds: float = 2.0,
    noise: float = 2.0,
    seed: int = 0,
    wish: str = "",
    question: str = "Which of the two is better?",
    width: int = 320,
    say: Say = lambda sentence: None,
) -> Pairs:
    """Write a page that asks about pairs of clips, and a file with the pairs, into a folder.

    Args:
        opened: the policy, as `priors.open_agent` returns it.
        env: an id, or a function that makes one environment.
        out: the folder.
        count: the number of pairs.
        seconds: the length of each clip.
        noise: the clips' deviation from the policy's mean action, in units of a sample's deviation.
        seed: the seed of environments and deviations.
        wish: the file of an earlier wish; the pairs are then the most informative ones about it.
        question: the title of the page.
        width: the width of each clip, in pixels.
        say: is called with messages about the progress of the films.
    """
    out, env = Path(out), env_name(env)
    if wish:
        check_same_env(wish, env)
    earlier = open_wish(wish) if wish else None
    check_plain(env, "a pair of clips")
    check_observed_alike(env, "a pair of clips")
    if not 0 < seconds <= 60:
        raise UsageError(f"a clip of {seconds} seconds cannot be shown: name more than 0, and at most 60")
    rate = steps_a_second(env)
    steps = max(2, round(seconds * rate))
    size = count if earlier is None else CANDIDATES * count
    pool = candidates(opened.agent, fingerprint(opened.path), env, size, steps, noise, 5 * steps, seed)
    pairs = choose_pairs(pool, count, earlier)
    if (found := len(pairs.seeds)) < count:
        say(f"{format_count(found, 'pair')}, not {count}: in the others an episode ends, or both clips are the same")
    with TemporaryDirectory(prefix="repolicy-ask-") as folder:
        file = opened.path
        if isinstance(opened.agent, Policy):  # the rendering process cannot read another library's file with options
            file = Path(folder, "policy.safetensors")
            save_policy(file, opened.agent, {})
        clips = render_films(_shots(pairs, str(file), rate, width), say)
    pairs.write(out)
    _write_page(out / "ask.html", pairs, clips, question)
    return pairs


def _shots(pairs: Pairs, policy: str, rate: float, width: int) -> list[Shot]:
    steps = pairs.after.shape[2]
    return [
        Shot(
            policy, pairs.env, seed=int(pairs.seeds[p]), seconds=steps / rate,
            actions=pairs.played[p, side, : pairs.starts[p] + steps].tolist(),
            center_step=int(pairs.starts[p]) + round(steps / 2), width=width, height=width * 2 // 3,
        )
        for p in range(len(pairs.seeds)) for side in range(2)
    ]  # fmt: skip


def steps_a_second(env: str) -> float:
    """Return the number of an environment's steps in one second of film."""
    batch = GymnasiumEnvs if evaluation_backend(env) == "gymnasium" else EnvPoolEnvs  # as a film does
    with closing(batch(env, 1, 0)) as envs:
        return envs.steps_a_second


def _write_page(path: Path, pairs: Pairs, clips: list[bytes], question: str) -> None:
    def video(index: int, side: str) -> str:
        source = f"data:video/mp4;base64,{base64.b64encode(clips[index]).decode()}"
        return f'<video muted playsinline preload="auto" aria-label="{side} clip" src="{source}"></video>'

    shown = "\n".join(
        f'<div class="pair" data-pair="{p}" hidden>{video(2 * p, "left")}{video(2 * p + 1, "right")}</div>'
        for p in range(len(pairs.seeds))
    )
    buttons = "".join(f'<button type="button" data-answer="{name}">{text}</button>' for name, text in BUTTONS.items())
    buttons += '<button type="button" id="back">⌫ back</button><button type="button" id="save">Save answers</button>'
    body = f'{STYLE}<section id="ask" data-page="{pairs.page}"><p id="told" aria-live="polite"></p>\n{shown}\n'
    lead = escape(f"{format_count(len(pairs.seeds), 'pair')} of clips in {pairs.env}, each from the same start. ")
    lead += "Answer by the arrow keys or by the buttons. Nothing leaves this page before you save it as a file."
    page.write(path, question, lead, [f'{body}<div id="keys">{buttons}</div></section>'], SCRIPT)
