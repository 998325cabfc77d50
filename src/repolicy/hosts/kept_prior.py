"""What both hosts need: their version, the objective, how a budget moves it, and a prior that fits."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.envs.evaluation import untold
from repolicy.errors import NumericError, UsageError
from repolicy.learning.worker import FARTHEST, off_budget, steered
from repolicy.loading import printable
from repolicy.objective import Objective, plain
from repolicy.policies.file import notes_of
from repolicy.policies.modulated import Conditioned
from repolicy.policies.policy import Policy, PolicySpec, Prior, check_scores, frozen
from repolicy.priors.finding import find_policy
from repolicy.priors.opening import read_policy
from repolicy.readers.reading import as_in_python, told_in_python


def check_version(package: str, start: tuple[int, int], stop: tuple[int, int], extra: str) -> None:
    """Raise where `package` is of another version than from `start` up to, not including, `stop`."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        return  # the import that follows says what is missing
    if not start <= tuple(int(part) for part in installed.split(".")[:2]) < stop:
        wanted = f"{package}>={start[0]}.{start[1]},<{stop[0]}.{stop[1]}"
        raise UsageError(
            f"{package} {installed} is installed, and this version of Repolicy works with {wanted}: pip install "
            f"'repolicy[{extra}]' '{wanted}'"
        )


@dataclass
class Steering:
    """The objective in force, and what a warm-up and a budget make of it from iteration to iteration."""

    objective: Objective
    kl_budget: float | None = None
    critic_warmup: int = 0
    iterations: int = 0
    off_budget: float = -FARTHEST

    def __post_init__(self) -> None:
        plain(self.objective, "ResidualPPO")
        warmup, budget = self.critic_warmup, self.kl_budget
        if isinstance(warmup, bool) or not isinstance(warmup, Real) or not float(warmup).is_integer() or warmup < 0:
            raise UsageError(
                f"critic_warmup is {warmup!r}; here it counts iterations, so it must be a whole number, 0 or more"
            )
        if budget is not None and not (isinstance(budget, Real) and math.isfinite(budget) and budget > 0):
            raise UsageError(f"kl_budget is {budget!r}; it must be a number of nats greater than 0")
        if self.kl_budget is not None and not self.objective.reads_prior:
            raise UsageError("kl_budget adapts omega and alpha, so omega must start above 0")

    @property
    def fits_actor(self) -> bool:
        """Whether the actor learns in the iteration under way; the critic always does."""
        return self.iterations >= self.critic_warmup

    def steer(self, prior_kl: float, samples: int) -> None:
        """The end of an iteration in which the policy was so far from its prior, in nats a step, over so many steps."""
        if self.kl_budget is not None and self.fits_actor:
            before = self.off_budget
            self.off_budget = off_budget(prior_kl, self.kl_budget, before, samples)
            self.objective = steered(self.objective, before, self.off_budget)
        self.iterations += 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on from here; plain numbers and words."""
        return {"objective": asdict(self.objective), "iterations": self.iterations, "off_budget": self.off_budget}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Without a budget, the weights stay as they were asked for now."""
        self.iterations, self.off_budget = int(state["iterations"]), float(state["off_budget"])
        if self.kl_budget is not None:
            self.objective = Objective(**state["objective"])


LOAD = "; give such an option to repolicy.load_policy(FILE, ...), and the policy that it reads as the prior"


def read_prior(prior: str | Path | Prior) -> Prior:
    """Return a file, a run's folder or a shipped name as a frozen policy; whatever has `log_prob` as it is."""
    if isinstance(prior, str | Path):
        with told_in_python(LOAD):
            saved = read_policy(find_policy(prior))
        for note in notes_of(saved.card):
            said = as_in_python(note)
            warnings.warn(said if said == note else said + LOAD, stacklevel=3)
        policy = saved.policy
    elif isinstance(prior, Policy):
        policy = frozen(prior)
    else:
        check_scores(prior)
        return prior
    if isinstance(policy, Conditioned):
        raise UsageError(untold(policy, "the prior"))
    if policy.family.squashes:
        raise UsageError(
            "the prior is squashed: it scores actions before tanh, and here those are scored that the environment "
            "gets; choose a prior with a Gaussian, or give an object whose log_prob scores what you store"
        )
    return policy


def called(prior: object) -> str:
    """Return what to call a prior that was given, in a sentence and in a checkpoint."""
    return str(prior) if isinstance(prior, str | Path) else f"a {type(prior).__name__}"


def check_same_prior(given: Mapping[str, Tensor], kept: Mapping[str, Tensor], name: str, theirs: object) -> None:
    """Raise where the prior that is named now has other numbers than the one that a checkpoint was made beside."""
    if given.keys() == kept.keys() and all(torch.equal(given[key].cpu(), kept[key].cpu()) for key in given):
        return
    raise UsageError(
        f"the checkpoint was made beside the prior {printable(str(theirs or 'in it'))}, and {name} is another: name "
        "the checkpoint's own prior, or begin a run of its own"
    )


def scored(prior: Prior, observations: Any, actions: Tensor) -> Tensor:
    """Return the prior's log-probability of each action `[N]`. Raises where a user's `log_prob` gives another shape."""
    found: Any = prior.log_prob(observations, actions)
    if not isinstance(found, Tensor) or tuple(found.shape) != (len(actions),):
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UsageError(f"the prior's log_prob gave {what}; of {len(actions)} actions it must be a tensor, one each")
    return found


def check_sizes(prior: Policy, observations: int, actions: str, kind: str, sizes: tuple[int, ...]) -> None:
    """Raise unless the policy takes so many observations and acts so, with both sizes named."""
    spec = prior.spec
    if spec.observation_size != observations:
        raise UsageError(
            f"the prior takes observations of {spec.observation_size} numbers, but the environment gives {observations}"
        )
    if (spec.actions.kind, spec.actions.sizes) != (kind, sizes):
        raise UsageError(f"the prior acts with {spec.actions}, but the environment takes {actions}")


def check_same_network(prior: PolicySpec, host: PolicySpec, what: str, remedy: str) -> None:
    """Raise unless a prior's network is one of the host's, before its weights are copied."""
    for part, mine, theirs in (
        ("observations", prior.observation_size, host.observation_size),
        ("actions", str(prior.actions.sizes), str(host.actions.sizes)),
        ("hidden layers", list(prior.hidden), list(host.hidden)),
        ("activation", prior.activation, host.activation),
        ("LayerNorms", sum(map(bool, prior.norms)), sum(map(bool, host.norms))),
        ("means cut at", prior.mean_clip, host.mean_clip),
    ):
        if mine != theirs:
            raise UsageError(f"the prior has {part} {mine}, and the {what} has {theirs}: {remedy}")


def check_needs(objective: Objective, has_prior: bool, clips: str = "") -> None:
    """Raise where the objective cannot be had: no prior to weigh, or an entropy that nothing bounds."""
    if objective.reads_prior and not has_prior:
        raise UsageError(f"omega is {objective.omega:g}, which weighs a prior's log-probability, and there is no prior")
    if clips and objective.alpha and not objective.omega:
        raise UsageError(
            f"alpha is {objective.alpha:g} and omega is 0, and {clips}: the entropy is that of the unclipped actions, "
            "so nothing bounds the std; widen the bounds, or set omega above 0"
        )


def check_finite(parts: Mapping[str, float]) -> None:
    """Raise where a part of the reward stopped being finite, before anything learns from it."""
    for name, value in parts.items():
        if not math.isfinite(value):
            what = {"task": "reward", "prior": "prior's log-probability", "entropy": "policy's log-probability"}[name]
            raise NumericError(f"the {what} is not finite in this iteration; no update was made from it")


ALIKE = (
    "they must be the same, so give the actor the settings that the prior's had (Stable-Baselines3's policy_kwargs, "
    "rsl_rl's `actor`), in the environment that it was trained for"
)


def fill(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load the weights, or say which does not fit, and both sizes."""
    wanted = module.state_dict()
    for name in wanted:
        if name not in weights:
            raise UsageError(f"{what} has no {name}, which the actor has: {ALIKE}")
        if weights[name].shape != wanted[name].shape:
            raise UsageError(
                f"{what} has {name} of {list(weights[name].shape)}, and the actor of "
                f"{list(wanted[name].shape)}: {ALIKE}"
            )
    for name in weights:
        if name not in wanted:
            raise UsageError(f"{what} has {name}, which the actor has not: {ALIKE}")
    module.load_state_dict(dict(weights))


@contextmanager
def without_gradient(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """The parameters take no gradient meanwhile, so that an optimizer passes them by."""
    moving = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
