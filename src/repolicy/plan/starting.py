"""What a customization starts from: a copy of the prior, or the prior as it is with a policy that is fitted to it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from repolicy.envs.making import placed, with_roles
from repolicy.envs.step import Backend
from repolicy.envs.trust import env_of
from repolicy.errors import UsageError
from repolicy.plan.cloning import clone, spec_of
from repolicy.plan.defaults import customize_defaults
from repolicy.policies.dialed_policy import Conditioned
from repolicy.policies.file import SavedPolicy, notes_of, policy_bytes
from repolicy.policies.policy import Policy, frozen
from repolicy.priors.code import Source, opened, source_of
from repolicy.priors.kinds import Exact, MeanPrior, ScoredPrior, name_of
from repolicy.priors.opening import own_bytes
from repolicy.readers.reading import Options
from repolicy.runs.machine import torchrun_place
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings

Init = Literal["auto", "copy", "clone"]


@dataclass(frozen=True)
class Start:
    """saved, content: the policy that the actor starts as, and its file. exact: what scores, where that is no copy."""

    given: Any
    name: str
    saved: SavedPolicy | None
    content: bytes
    exact: Exact | None = None
    source: Source | None = None  # how other processes load `exact`

    def env(self, trust: bool) -> str:
        """Return the environment that the prior was made for, where it is known."""
        if self.saved is None:
            raise UsageError(f"{self.name} does not say which environment it is for; name one with --env")
        if isinstance(self.given, Policy):
            raise UsageError("a policy alone does not say which environment it is for; give env=...")
        session = isinstance(self.given, Result)  # the names in it come from this session
        return env_of(self.saved.card, Path(self.name), trust=session or trust)

    def settings(self, settings: Settings) -> Settings:
        """With as many ranks as can have the prior."""
        if self.exact is not None and settings.log_prior_budget is not None:
            raise UsageError(
                "a log-prior budget compares with how likely the prior's own actions are to it, which only a copied "
                "policy tells: take a KL budget"
            )
        if self.exact is None or self.source is not None or torchrun_place() is not None:
            return settings
        if settings.ranks > 1:
            raise UsageError(
                f"{self.name} is an object of this program, which the other ranks cannot import: take one rank, or "
                "put it into a module and name it as module:function"
            )
        return replace(settings, ranks=1)

    def usual(self, env: str) -> Settings:
        """Return the default settings."""
        if self.exact is None:
            assert self.saved is not None
            return customize_defaults(self.saved.policy)
        env = self.with_roles(env)
        exact, env = placed(self.exact, env) if isinstance(self.exact, MeanPrior) else (self.exact, env)
        return customize_defaults(Policy(spec_of(exact, env)))

    def with_roles(self, env: str, backend: Backend = "auto") -> str:
        """Return the environment's name with the parts that this prior and a critic observe."""
        who = self.exact.mean if isinstance(self.exact, MeanPrior) else self.exact
        who = who if self.saved is None else self.saved.policy
        return with_roles(env, getattr(who, "observation_size", 0), backend)

    @property
    def notes(self) -> list[str]:
        notes = [] if self.saved is None else notes_of(self.saved.card)
        return notes if self.exact is None or isinstance(self.exact, Policy) else [*notes, *self.exact.notes]

    def cloned(self, env: str, settings: Settings, file: Path, say: Callable[[str], None]) -> "Start":
        """With a policy to start from, fitted to the prior where it is no copy of it."""
        if self.exact is None:
            return self
        exact = self.exact
        if isinstance(exact, MeanPrior):
            exact, env = placed(exact, env, settings.backend)
        saved, content = clone(exact, env, settings, file, say)
        return replace(self, saved=saved, content=content, exact=exact)

    def check_not_fitted_to_another(self, kept: Path) -> None:
        """Raise where a run is resumed from its own copy of its prior, and that was only fitted to what scores."""
        if self.exact is None and self.saved is not None and "clone_of" in self.saved.card:
            named = Path(self.name)
            if named.is_file() and kept.is_file() and named.samefile(kept):
                raise UsageError(f"{kept} was only fitted to the prior of this run, which scores it: name that prior")


def open_prior(
    given: Any, reading: Options | None = None, init: Init = "auto", trust: bool = False, file: Path = Path()
) -> Start:
    """Read what a user gave as a prior, once; it is not fitted yet. `file` is the copy that a run keeps."""
    reference = given.folder if isinstance(given, Result) else given
    found = opened(reference, reading, trust)
    name = str(reference) if isinstance(reference, str | Path) else getattr(found, "name", "the prior")
    if isinstance(found, MeanPrior | ScoredPrior):
        if init == "copy":
            raise UsageError(f"{name} cannot be copied; leave --init out, and the actor is fitted to it")
        return Start(given, name, None, b"", found, source_of(reference, found, reading, trust))
    if isinstance(found, Policy):  # module:name may lead to one, too
        if reading not in (None, Options()):
            raise UsageError(
                f"{name} is a policy of Repolicy's, which has all that it needs: leave std and reading out"
            )
        saved, content = SavedPolicy(frozen(found), None, {}), policy_bytes(found, {})
    elif isinstance(found.policy, Conditioned):
        raise UsageError(f"a policy with {found.policy.words} is no prior; keep a position of it with `repolicy dial`")
    else:
        saved, content = found, b"" if init == "clone" else own_bytes(found, file)
    if init != "clone":
        return Start(given, name, saved, content)
    return Start(given, name, saved, content, saved.policy, source_of(reference, saved.policy, reading, trust))


def named_as(given: Any) -> Any:
    """Return what a run's folder is named after."""
    return given if isinstance(given, str | Path | Policy | Result) else name_of(given)
