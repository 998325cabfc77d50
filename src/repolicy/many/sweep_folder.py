"""The folder of a sweep: the prior, what all points share, and for each value of ω′ a run and a log."""

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from repolicy.errors import UsageError
from repolicy.files import check_shape, read_bytes, read_json, write_bytes, write_json
from repolicy.objective import residual
from repolicy.policies import OBJECTIVE_SHAPE
from repolicy.policies.storage import FORMAT
from repolicy.runs import Request, RunFolder, Settings, command_words, describe_changes, validate_settings

# The parts of sweep.json that a resumed sweep reads.
SHAPE = {
    "request": {
        "prior?": [str], "env": str, "addons": [str], "alpha": OBJECTIVE_SHAPE["alpha"], "states": float,
        "settings": {}, "sparse": bool,
    },
    "omegas": [float],
    "episodes?": int,
}  # fmt: skip


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep."""

    path: Path

    @property
    def content(self) -> Path:
        return self.path / "sweep.json"

    @property
    def prior(self) -> Path:
        return self.path / "prior.safetensors"

    @property
    def settings(self) -> Path:
        """The file of settings that each point's command reads."""
        return self.path / "settings.json"

    def run(self, omega: float) -> RunFolder:
        """Return the run's folder of a point."""
        return RunFolder(self.path / f"omega-{_omega_text(omega)}")

    def log(self, omega: float) -> Path:
        return self.path / f"omega-{_omega_text(omega)}.log"

    def check_new(self) -> None:
        """Raise where the folder holds a sweep or a run already."""
        if os.path.lexists(self.content):
            raise UsageError(f"{self.path} holds a sweep already; add --resume to go on, or choose another --out")
        if RunFolder(self.path).request() is not None:
            raise UsageError(f"{self.path} holds a run, not a sweep; choose another --out")

    def read(self) -> dict[str, Any]:
        """Return the content of sweep.json, empty where there is no sweep."""
        if not os.path.lexists(self.content):
            return {}
        content = read_json(self.content)
        check_shape(content, SHAPE, f"{self.content} cannot be used: its story")
        return dict(content)

    def point_request(self, shared: dict[str, Any], omega: float | None = None) -> Request:
        """Return the request of a point, from what all points share; without an omega that of all of them."""
        settings = Settings(**validate_settings(shared["settings"], f"the sweep in {self.path}"))
        objective = residual(omega, shared["alpha"], shared["states"])
        return Request(shared["env"], objective, settings, tuple(shared["addons"]), sparse=shared["sparse"])

    def point_arguments(self, shared: dict[str, Any], omega: float) -> list[str]:
        """Return the arguments of the `repolicy` command that trains one point."""
        prior, *reading = shared["prior"] or [str(self.prior.absolute())]
        words = command_words(self.point_request(shared, omega), prior)
        return [*words, *reading, "--settings", str(self.settings.absolute())]

    def claim(self, request: dict[str, Any], omegas: list[float], prior: bytes, episodes: int) -> list[float]:
        """Claim the folder for a new sweep, or for a resumed one with more values of ω′. Returns all values."""
        content = self.read()
        if content:
            omegas = sorted_omegas({*content["omegas"], *omegas})
            stored, wanted = content["request"], json.loads(json.dumps(request))
            changes = list(describe_changes(_with_prior_in_words(stored), _with_prior_in_words(wanted)))
            if read_bytes(self.prior) != prior:
                changes.append("the prior is another")
            if changes:
                raise UsageError(f"{self.path} cannot be resumed with other settings: {'; '.join(changes)}")
            content["omegas"] = omegas
        else:
            for file in (self.settings, self.path / "report.html", self.prior):
                if file.exists() and (file != self.prior or read_bytes(file) != prior):
                    raise UsageError(f"{file} is there already, and of no sweep; choose another --out")
            write_bytes(self.prior, prior)
            content = {"format": FORMAT, "request": request, "omegas": omegas}
        write_json(self.content, content | {"episodes": episodes})
        write_json(self.settings, request["settings"])  # each time, as the user may have edited it
        return omegas


def _with_prior_in_words(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its prior as one text, without `--trust`, which makes no other prior."""
    return request | {"prior": " ".join(word for word in request.get("prior", []) if word != "--trust")}


def sorted_omegas(omegas: Collection[float]) -> list[float]:
    """Return the values in ascending order; raise where one is not a weight, or occurs twice."""
    if not len(omegas):
        raise UsageError("a sweep needs values: --omega 0 0.05 0.1 0.2 0.4")
    for omega in omegas:
        if not isinstance(omega, Real) or not math.isfinite(omega) or omega < 0:
            raise UsageError(f"omega is {omega!r}; it must be a finite number, 0 or greater")
    values = [float(omega) + 0.0 for omega in omegas]  # −0 becomes 0
    texts = [_omega_text(omega) for omega in values]
    duplicates = sorted({text for text in texts if texts.count(text) > 1}, key=float)
    if duplicates:
        raise UsageError(f"--omega has {' and '.join(duplicates)} more than once")
    return sorted(values)


def _omega_text(omega: float) -> str:
    return f"{omega:.12g}"
