"""The command that looks at a prior before anything is trained."""

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from repolicy.cli.options import Positional, Repeated
from repolicy.cli.policy_commands import policy_and_env
from repolicy.errors import UsageError
from repolicy.readers.reading import Options

if TYPE_CHECKING:
    from repolicy.prepare.diagnosis import Diagnosis, Drive


@dataclass(frozen=True)
class Diagnose:
    """Look at a prior before training: does it act, what is a nat of it worth, and which weights to begin with.

    Example: repolicy diagnose theirs.zip --env HalfCheetah-v4 --addon hind_leg=10
    """

    prior: Annotated[str, Positional("PRIOR")]
    """The trained policy, as for customize: a name that ships, a policy's file, or a run's folder."""
    addon: Repeated = ()
    """The new requirement, as for customize. Repeatable."""
    env: str | None = None
    """Environment; by default the one that the prior was trained in."""
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """Whose environments."""
    trust: bool = False
    """Run code that the prior's file names as its environment."""
    json: bool = False
    """Print one JSON object on stdout."""
    reading: Options = field(default_factory=Options)

    def run(self) -> dict[str, Any]:
        from repolicy.envs.addons import at_one, at_one_in_words, check_env, combined
        from repolicy.envs.making import with_roles
        from repolicy.policies.file import notes_of
        from repolicy.prepare.diagnosis import ENVS, STEPS, check_addon, diagnose
        from repolicy.prepare.weights import worth_in
        from repolicy.priors.finding import find_policy
        from repolicy.priors.opening import read_policy
        from repolicy.runs.ranks import one_thread
        from repolicy.runs.terminal import Terminal

        if not self.addon:
            raise UsageError("a diagnosis needs the add-on that you wish for: --addon NAME, as for customize")
        find_policy(self.prior)  # which code has none of
        path, env = policy_and_env(self.prior, self.env, self.trust)
        saved, terminal = read_policy(path, self.reading), Terminal()
        check_env(self.addon, env)
        env = with_roles(env, saved.policy.observation_size, self.backend)
        worth = worth_in(saved.card)
        with one_thread(), terminal.status(f"{env}: thrice {STEPS:,} steps in {ENVS} environments"):
            diagnosis = diagnose(saved.policy, env, combined(at_one(self.addon)), nat_worth=worth, backend=self.backend)
        check_addon(diagnosis)
        command = ["repolicy", "customize", self.prior, "--env", env]
        command += [word for name in self.addon for word in ("--addon", name)] + diagnosis.first
        command += self._reading()
        _show(terminal, diagnosis, notes_of(saved.card), shlex.join(command), at_one_in_words(self.addon))
        return diagnosis.as_dict() | {"prior": str(path), "addons": list(self.addon), "command": shlex.join(command)}

    def _reading(self) -> list[str]:
        """Return the options without which the file could not be read, or another backend would be taken."""
        given = {name: value for name, value in vars(self.reading).items() if value is not None}
        given |= {"backend": self.backend} if self.backend != "auto" else {}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _show(terminal: Any, diagnosis: "Diagnosis", notes: list[str], command: str, wish: str) -> None:
    from repolicy.runs.terminal import laid_out

    terminal.say(diagnosis.verdict)
    for sentence in [*diagnosis.complaints[1:], *notes]:
        terminal.say(sentence)
    rows = _rows((diagnosis.by_mean, diagnosis.sampled, diagnosis.ignorant))
    terminal.say(laid_out(["", "mean action", "sampled", "untrained"], [[name, *rows[name]] for name in rows]))
    worths = diagnosis.worths
    for worth, what in ((worths.basic, "the environment's reward"), (worths.addon, wish)):
        if worth is not None:
            known = "" if worth.is_known else ": not above 0 by more than chance, as sampled actions bring as much"
            terminal.say(f"a nat of log prior is worth {worth.value:.2g} ± {worth.error:.1g} of {what}{known}")
    terminal.say("settings that customize takes:")
    for name, why in diagnosis.reasons.items():
        terminal.say(f"  {name.replace('_', ' ')} {_value(getattr(diagnosis.settings, name))}: {why}")
    advice, weights = "what a nat is worth cannot be told, so hold a distance", diagnosis.weights
    if weights is not None:
        advice = f"omega from {weights.omega / 3:.2g} (the wish first) to {3 * weights.omega:.2g} (the prior first)"
    terminal.say(f"{advice}; to begin with:")
    terminal.say(f"  {command}")


def _rows(drives: "tuple[Drive, ...]") -> dict[str, list[str]]:
    from repolicy.report.verdict import number

    rows = {
        "return": [_spread(drive.as_dict().get("basic")) for drive in drives],
        "add-on at weight 1": [_spread(drive.as_dict()["addon"]) for drive in drives],
        "steps an episode": [f"{drive.lengths.mean():,.0f}" for drive in drives],
        "ended before its time": [f"{drive.fell.mean():.0%}" for drive in drives],
        "std of an action": ["" if drive.std is None else number(drive.std) for drive in drives],
        "−log π a step, nats": [number(drive.entropy) for drive in drives],
        "observations beyond ±10": [*(f"{drive.far:.1%}" for drive in drives[:2]), ""],
    }
    return {name: cells for name, cells in rows.items() if any(cells)}


def _spread(values: list[float] | None) -> str:
    from repolicy.report.verdict import number

    return "" if values is None else f"{number(values[0])} ± {number(values[1], like=values[0])}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return " × ".join(map(str, value))
    return f"{value:.2g}" if isinstance(value, float) else f"{value:,}"
