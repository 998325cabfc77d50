"""The names that a file gives: its environment, and its add-ons.

A name comes from the user, who typed it or wrote it in Python, or out of a file. What the user names is imported. What
a file names is imported only where the user says that they trust the file. `confirm` is that rule, and whatever takes a
name out of a file asks it first. It asks the functions that imports go by, so no name means one thing here and another
where it is used.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from repolicy.envs import addons as wishes
from repolicy.envs import names
from repolicy.errors import UsageError
from repolicy.priors import restore_decoder, shelf_entry
from repolicy.text import printable

# The package's own environments and add-on, which policies of Residual Q-learning name in their files.
PACKAGE_CODE = frozenset(
    f"repolicy.rql.tasks:{name}" for name in ("CartPole", "MountainCar", "Highway", "Parking", "addon")
)

TRUST_HINT = "if you trust it, add --trust (in Python, trust=True)"
TYPE_HINT = "if you trust it, add --trust, or type the name yourself with --{option} (in Python, {option}=...)"


def check_trust(
    path: Path | str, trust: bool, *, env: str | None = None, addons: Iterable[str] = (), remedy: str = TYPE_HINT
) -> None:
    """Refuse the names out of the file `path` that would run code, unless the user trusts the file."""
    if trust:
        return
    code = {"env": [env] if env is not None and _makes_more(env) else []}
    code["addon"] = [name for name in addons if wishes.import_target(name) not in ("", *PACKAGE_CODE)]
    if found := [name for named in code.values() for name in named]:
        option = "env" if code["env"] else "addon"
        opened = all(":" not in wishes.import_target(name) for name in found)
        what = "a file that would be opened" if opened else "code that would be run"
        said = f"{path} names {what}: {' and '.join(printable(name, 200) for name in found)}"
        raise UsageError(f"{said}; {remedy.format(option=option)}")


def _makes_more(env: str) -> bool:
    """Return whether an environment is imported, or takes an option that is no number and so could be a path."""
    options = [
        *names.parse_env_name(env)[1].values(),
        *names.reset_options(env).values(),
        *(names.decoder_options(env) or ()),
    ]
    return names.import_target(env) not in ("", *PACKAGE_CODE) or not all(
        isinstance(value, int | float | None) for value in options
    )


def env_from_card(card: dict[str, Any], path: Path, trust: bool = False) -> str:
    """Return the environment of the policy in a file. Raises where it is code, unless the file is trusted."""
    env = card.get("request", {}).get("env")
    if env is None:
        if (published := shelf_entry(path)) is not None:
            return published.env
        raise UsageError(f"{path} does not say which environment it is for; name one with --env")
    check_trust(path, trust, env=env)
    restore_decoder(path, names.decoder_options(env))
    return str(env)


def addons_from_card(card: dict[str, Any], path: Path, trust: bool = False) -> tuple[str, ...]:
    """Return the add-ons that the policy in a file was customized to; refused in the same way."""
    addons = tuple(card.get("request", {}).get("addons", ()))
    check_trust(path, trust, addons=addons)
    return addons
