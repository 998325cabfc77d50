"""Open the prior of a customization, and choose the policy that the actor starts as."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repolicy.addons import env_from_card
from repolicy.envs import Backend, place_prior, probe_env, with_observation_roles
from repolicy.errors import UsageError
from repolicy.policies import ConditionedPolicy, Policy, SavedPolicy, frozen, make_policy, policy_bytes
from repolicy.prepare.cloning import clone, clone_spec
from repolicy.prepare.defaults import DEFAULT_STEPS, customize_defaults
from repolicy.priors import (
    MeanPrior,
    PriorSource,
    ScoredPrior,
    ScoringPrior,
    check_no_options,
    find_policy,
    open_policy,
    prior_source,
    read_policy,
    saved_policy_bytes,
)
from repolicy.readers.reading import Options
from repolicy.runs import Result, Settings, command_options, validate_settings
from repolicy.text import Say

INITS = ("auto", "copy", "clone")  # any other value of `init` is the file of the policy that the actor starts as


@dataclass(frozen=True)
class Start:
    """An opened prior, and the policy that the actor starts as."""

    reference: Any  # the prior as the user gave it
    name: str
    notes: tuple[str, ...]  # messages for the user about the prior
    saved: SavedPolicy | None  # the policy that the actor starts as; None until a clone is fitted
    content: bytes  # the file of `saved`
    scoring_prior: ScoringPrior | None = None  # the prior itself, where `saved` is only fitted to it
    source: PriorSource | None = None  # from which other processes load `scoring_prior`
    init: bytes | None = None  # the file of the actor's first policy, where it is not `saved`

    def env(self, trust: bool) -> str:
        """Return the environment that the prior was made for; raise where it is not known."""
        if self.saved is None:
            raise UsageError(f"{self.name} does not say which environment it is for; name one with --env")
        if isinstance(self.reference, Policy):
            raise UsageError("a policy alone does not say which environment it is for; give env=...")
        session = isinstance(self.reference, Result)  # its names come from this session, so they are trusted
        return env_from_card(self.saved.card, Path(self.name), trust=session or trust)

    @property
    def session_only(self) -> str:
        """The name of a prior that other processes cannot load, or an empty string."""
        return self.name if self.scoring_prior is not None and self.source is None else ""

    def default_settings(self, env: str, settings: Settings | Mapping[str, Any] | None) -> Settings:
        """Return the default settings for the number of steps in `settings`."""
        steps = settings.get("steps") if isinstance(settings, Mapping) else None
        steps = DEFAULT_STEPS if steps is None else validate_settings({"steps": steps}, "settings")["steps"]
        if self.scoring_prior is None:
            assert self.saved is not None
            return customize_defaults(self.saved.policy, steps)
        prior, env = self.scoring_prior, self.with_roles(env)
        if isinstance(prior, MeanPrior):
            prior, env = place_prior(prior, env)
        return customize_defaults(make_policy(clone_spec(prior, probe_env(env)), 0), steps)

    def with_roles(self, env: str, backend: Backend = "auto") -> str:
        """Return the environment's name, extended by the observation groups of this prior and of a critic."""
        if self.saved is not None:
            return with_observation_roles(env, self.saved.policy, backend)
        prior = self.scoring_prior
        scoring: object = prior.mean if isinstance(prior, MeanPrior) else prior
        return with_observation_roles(env, getattr(scoring, "observation_size", 0), backend)

    def fit_clone(self, env: str, settings: Settings, file: Path, say: Say) -> "Start":
        """Return a start whose actor is fitted to the prior, where the prior cannot be copied."""
        prior = self.scoring_prior
        if prior is None:
            return self
        if settings.log_prior_budget is not None:
            what = "a log-prior budget asks how likely the prior's own actions are, which only a copied policy tells"
            raise UsageError(f"{what}: take a KL budget")
        if isinstance(prior, MeanPrior):
            prior, env = place_prior(prior, env, settings.backend)
        saved, content = clone(prior, env, settings, file, say)
        return replace(self, saved=saved, content=content, scoring_prior=prior)

    def command_words(self) -> list[str]:
        """Return the words that name a prior that is run on a command line; none where it is copied."""
        if self.source is None:
            return []
        trust = ["--trust"] if self.source["trust"] else []
        return [self.source["prior"], *trust, *command_options(Options(**self.source["options"]), Options())]

    @property
    def checksums(self) -> tuple[str, str]:
        """SHA-256 of the prior's file, and of the actor's first policy where that is another file; else empty."""
        prior, init = (hashlib.sha256(each).hexdigest() if each else "" for each in (self.content, self.init))
        return prior, init

    def with_initial_policy(self, file: str | Path) -> "Start":
        """Return a start whose actor begins as another policy of the prior's shape; the prior scores its actions."""
        first, prior = read_policy(find_policy(file)), self.saved
        assert prior is not None
        if isinstance(first.policy, ConditionedPolicy):
            raise UsageError(first.policy.missing_dials_message(str(file)))
        for name in ("observation_size", "actions", "family", "clips"):
            ours, theirs = (getattr(each.policy.spec, name) for each in (first, prior))
            if ours != theirs:
                raise UsageError(
                    f"the actor cannot begin as {file}: its {name.replace('_', ' ')} ({ours}) and the prior's "
                    f"({theirs}) are not the same; take a policy that was made of {self.name}"
                )
        return replace(self, init=saved_policy_bytes(first))


def open_prior(
    prior: Any, reading: Options | None = None, init: str | Path = "auto", trust: bool = False, file: Path = Path()
) -> Start:
    """Open a prior in any form; a clone is not fitted yet. `file` is the copy that a run keeps.

    A `Start` is returned unchanged, so the prior is read only once.
    """
    if isinstance(prior, Start):
        return prior
    reference = prior.folder if isinstance(prior, Result) else prior
    found = open_policy(reference, reading, trust)
    name, notes, agent = found.name, found.notes, found.agent
    if isinstance(agent, MeanPrior | ScoredPrior):
        if init == "copy":
            raise UsageError(f"{name} cannot be copied; leave --init out, and the actor is fitted to it")
        return Start(prior, name, notes, None, b"", agent, prior_source(reference, agent, reading, trust))
    if found.saved is None:  # module:name may lead to one, too
        check_no_options(name, reading, "a policy of Repolicy's, which has all that it needs")
        saved, content = SavedPolicy(frozen(agent), None, {}), b"" if init == "clone" else policy_bytes(agent, {})
    elif isinstance(agent, ConditionedPolicy):
        raise UsageError(
            f"a policy with {agent.dials_description} is no prior; keep a position of it with `repolicy dial`"
        )
    else:
        saved, content = found.saved, b"" if init == "clone" else saved_policy_bytes(found.saved, file)
    start = Start(prior, name, notes, saved, content)
    if init != "clone":
        return start
    return replace(start, scoring_prior=saved.policy, source=prior_source(reference, saved.policy, reading, trust))
