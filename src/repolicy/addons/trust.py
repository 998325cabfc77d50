"""Names of environments and add-ons that stand in files: they may be code, which runs only with the user's trust.

What the user names, on the command line or in Python, is imported. What a file names is imported only if the user
trusts the file. `check_trust` is that rule; everything that takes a name from a file calls it first. It parses names
with the functions that later import them, so that both always agree on what a name means.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from repolicy.addons.addon_names import import_target
from repolicy.addons.limits import Limit
from repolicy.envs import Backend, parse_env_name, probe_env
from repolicy.errors import RepolicyError, UsageError
from repolicy.priors import restore_decoder, shelf_entry
from repolicy.text import printable

# The package's own environments and add-on, named in the files of policies of Residual Q-learning.
PACKAGE_CODE = frozenset(
    f"repolicy.rql.tasks:{name}" for name in ("CartPole", "MountainCar", "Highway", "Parking", "addon")
)

TRUST_HINT = "if you trust it, add --trust (in Python, trust=True)"
TYPE_HINT = "if you trust it, add --trust, or type the name yourself with --{option} (in Python, {option}=...)"


def check_trust(
    path: Path | str, trust: bool, *, env: str | None = None, addons: Iterable[str] = (), remedy: str = TYPE_HINT
) -> None:
    """Raise if names in the file `path` would run code or open files, unless the user trusts the file.

    `remedy` ends the message: it tells the user what to do. Raises, too, if code of a trusted file lies elsewhere.
    """
    if trust:
        _check_code_is_here(path, env, addons, remedy)
        return
    refused_env = [env] if env is not None and _needs_trust(env) else []
    refused_addons = [name for name in addons if import_target(name) not in ("", *PACKAGE_CODE)]
    if refused := refused_env + refused_addons:
        opens_files_only = all(":" not in import_target(name) for name in refused)
        what = "a file that would be opened" if opens_files_only else "code that would be run"
        message = f"{path} names {what}: {' and '.join(printable(name, 200) for name in refused)}"
        raise UsageError(f"{message}; {remedy.format(option='env' if refused_env else 'addon')}")


def _check_code_is_here(path: Path | str, env: str | None, addons: Iterable[str], remedy: str) -> None:
    """Raise if a name such as `my.py:walk`, which counts from where it was typed, leads to no file from here."""
    targets = {
        "addon": [*map(import_target, addons)],
        "env": [] if env is None else [parse_env_name(env).import_target],
    }
    for option, target in ((option, target) for option, each in targets.items() for target in each):
        source = Path(target.rpartition(":")[0])
        if source.suffix == ".py" and not source.is_absolute() and not source.is_file():
            problem = (
                f"{path} names {printable(target, 200)!r}, and there is no file {printable(str(source.absolute()))}"
            )
            way = f", or name it with --{option} (in Python, {option}=...)" if remedy == TYPE_HINT else ""
            raise UsageError(f"{problem}; it is remembered as it was typed: go to that folder{way}")


def _needs_trust(env: str) -> bool:
    """Return whether an environment is the user's code, or has an option that is no number and so could be a path."""
    parsed = parse_env_name(env)
    values = [*parsed.options.values(), *parsed.reset_options.values(), *(parsed.decoder or ())]
    if parsed.import_target not in ("", *PACKAGE_CODE):
        return True
    return not all(isinstance(value, int | float | None) for value in values)


def env_from_card(card: dict[str, Any], path: Path, trust: bool = False) -> str:
    """Return the environment of the policy in a file. Raises if it is code, unless the file is trusted."""
    env = card.get("request", {}).get("env")
    if env is None:
        if (entry := shelf_entry(path)) is not None:
            return entry.env
        raise UsageError(f"{path} does not say which environment it is for; name one with --env")
    check_trust(path, trust, env=env)
    restore_decoder(path, parse_env_name(env).decoder)
    return str(env)


def backend_from_card(card: dict[str, Any], env: str, backend: Backend = "auto") -> Backend:
    """Return the backend; for "auto", that of the run that made a policy, where `env` is the run's and it makes it."""
    request = card.get("request", {})
    known: Backend = request.get("settings", {}).get("backend", "auto")
    if backend == "auto" and known != "auto" and env == request.get("env"):
        with suppress(RepolicyError):  # such as EnvPool that is not installed here
            probe_env(env, known)
            return known
    return backend


def limits_from_card(card: dict[str, Any], path: Path, trust: bool = False) -> tuple[str, ...]:
    """Return the limits that the policy was held to. Raises if one is code, unless the file is trusted."""
    limits = tuple(card.get("request", {}).get("limits", ()))
    check_trust(path, trust, addons=[Limit.of(limit).name for limit in limits], remedy=TRUST_HINT)
    return limits


def addons_from_card(card: dict[str, Any], path: Path, trust: bool = False) -> tuple[str, ...]:
    """Return the add-ons that the policy was customized to. Raises if one is code, unless the file is trusted."""
    addons = tuple(card.get("request", {}).get("addons", ()))
    check_trust(path, trust, addons=addons)
    return addons
