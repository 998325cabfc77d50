"""What the hosts need of a prior: to open it, to score a rollout by it, and to say where it does not fit."""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repolicy.envs.evaluation import untold
from repolicy.errors import UsageError
from repolicy.loading import printable
from repolicy.objective import Objective
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import SavedPolicy, notes_of
from repolicy.policies.modulated import Conditioned
from repolicy.policies.policy import Policy, PolicySpec, Prior, check_scores, frozen
from repolicy.priors.code import opened
from repolicy.priors.kinds import MeanPrior
from repolicy.readers.reading import Options, as_in_python, told_in_python


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


BESIDE = "; give it beside the path: prior={'path': FILE, ...}"
READING = ("std", "temperature", "vecnormalize", "trust")  # what a mapping says of a file, beside its path


class Opened(NamedTuple):
    """A prior that was named: what scores, what to call it, and what its file tells of its training."""

    prior: Prior
    name: str
    card: dict[str, Any]


def path_of(given: Any) -> Any:
    """Return what a mapping `{path, std, temperature, vecnormalize, trust}` names, and anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    if "path" not in given or (unknown := {*given} - {"path", *READING}):
        what = f"has {', '.join(sorted(unknown))}" if "path" in given else "names no path"
        raise UsageError(f"the prior {what}; as a mapping it takes path, {', '.join(READING)}")
    return given["path"]


def open_prior(given: Any) -> Opened:
    """Return a file, a run's folder or a shipped name as a frozen policy or, where it cannot be copied, as it runs.

    Whatever has `log_prob` is returned as it is.
    """
    path, name = path_of(given), called(path_of(given))
    if isinstance(path, Policy):
        return Opened(_usable(frozen(path)), name, {})
    if not isinstance(path, str | Path):
        check_scores(path)
        return Opened(path, name, {})
    reading = dict(given) if isinstance(given, Mapping) else {}
    trust = bool(reading.pop("trust", False))
    reading.pop("path", None)
    with told_in_python(BESIDE):
        found = opened(path, Options(**reading), trust)
    prior, card = (found.policy, found.card) if isinstance(found, SavedPolicy) else (found, {})
    for note in notes_of(card) if isinstance(found, SavedPolicy) else getattr(found, "notes", ()):
        said = as_in_python(note)
        warnings.warn(said if said == note else said + BESIDE, stacklevel=3)
    return Opened(_usable(prior) if isinstance(prior, Policy) else prior, name, card)


def _usable(policy: Policy) -> Policy:
    """Raise where a policy of ours is none that a host can ask."""
    if isinstance(policy, Conditioned):
        raise UsageError(untold(policy, "the prior"))
    return policy


# Priors whose actions pass through tanh. A host stores actions as its policy drew them, before tanh, as ours do. ------


def squashes(prior: Any) -> bool:
    """Return whether a prior that was opened scores actions before tanh, by the density that they have behind it."""
    own = getattr(prior, "prior", None)
    return isinstance(own, Policy) and own.family.squashes


def check_squashed(prior: Any, env_squashes: bool, remedy: str) -> None:
    """Raise where a prior's actions pass through tanh, and the environment takes them as they are."""
    if squashes(prior) and not env_squashes:
        raise UsageError(
            f"the prior is squashed: its actions pass through tanh, and the environment's do not; {remedy}"
        )


def as_gaussian(policy: Policy) -> Policy:
    """Return the Gaussian before tanh, with which a host's actor begins; any other policy as it is."""
    if not policy.family.squashes:
        return policy
    found = Policy(replace(policy.spec, family=policy.spec.family.replace("squashed", "gaussian")))
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


@torch.no_grad()
def with_one_std(policy: Policy) -> Policy:
    """Return a Gaussian with one std for all states. Of all, it is nearest to the policy, in KL(it ‖ policy).

    The mean is over observations as the policy's normalizer knows them; the means of actions are the policy's own.
    """
    if policy.std is not None or policy.actions.kind == "discrete":
        return policy
    spec, width = policy.spec, policy.actions.width
    found = Policy(replace(spec, family="gaussian", std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf)))
    numbers = policy.network.state_dict()
    for name, part in found.network.state_dict().items():
        part.copy_(numbers[name] if part.shape == numbers[name].shape else numbers[name][:width])
    found.normalizer.load_state_dict(policy.normalizer.state_dict())
    inputs = torch.randn(ROWS, spec.observation_size, generator=torch.Generator().manual_seed(0))
    head: Any = policy.distribution(inputs.to(next(policy.parameters()).device))
    assert found.log_std is not None
    found.log_std.copy_(-0.5 * (-2.0 * head.log_std).exp().mean(0).log())
    return found.requires_grad_(False).eval()


def as_squashed(policy: Policy, prior: Policy) -> Policy:
    """Return a Gaussian that has acted through tanh as the policy that it is, with its prior's bounds."""
    family = policy.spec.family.replace("gaussian", "squashed")
    spec = replace(policy.spec, family=family, actions=prior.actions, clips=False)
    found = Conditioned(spec, policy.dials) if isinstance(policy, Conditioned) else Policy(spec)
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


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


ROWS = 4096  # of a rollout that a prior scores at once


class Given(nn.Module):
    """A prior of any kind, which takes observations as rows of numbers. One with a memory runs along with episodes."""

    def __init__(self, opened: Opened, observations: int, actions: ActionSpace) -> None:
        super().__init__()
        prior, self.name, self.card = opened
        self.prior = prior.placed(observations, actions) if isinstance(prior, MeanPrior) else prior
        if isinstance(prior, Policy):
            check_sizes(prior, observations, str(actions), actions.kind, actions.sizes)
        self.memory: Any = None

    @torch.no_grad()
    def score(self, observations: Tensor, actions: Tensor, ended: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log prior and, where it is known, the prior's entropy, both `[T, N]`."""
        if isinstance(self.prior, MeanPrior) and self.prior.remembers:
            distribution, self.memory = self.prior.follow(observations, ended, self.memory)
            return distribution.log_prob(actions), distribution.entropy()
        return in_rows(self._score, observations, actions)

    def act(self, observations: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        """Return actions, and their nats `[N]`: the entropy of sampled ones, log π of the likeliest."""
        if isinstance(self.prior, Policy):
            return nats_of(self.prior(observations), sample)
        if not isinstance(self.prior, MeanPrior):
            raise UsageError(
                f"{self.name} scores actions and chooses none, so nothing can be measured: name omega and alpha, and "
                "leave states out"
            )
        ended = torch.zeros(1, len(observations), dtype=torch.bool, device=observations.device)
        distribution, self.memory = self.prior.follow(observations.unsqueeze(0), ended, self.memory)
        actions, nats = nats_of(distribution, sample)
        return actions[0], nats[0]

    def forget(self, ended: Tensor | None = None) -> None:
        """Begin anew where an episode ended `[N]`; without `ended` everywhere."""
        if ended is None or not isinstance(self.prior, MeanPrior):
            self.memory = None
        elif self.memory:
            self.memory = self.prior.forgotten(self.memory, ended)

    def _score(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        if not isinstance(self.prior, Policy | MeanPrior):
            return scored(self.prior, observations, actions), None
        distribution = (self.prior if isinstance(self.prior, Policy) else self.prior.distribution)(observations)
        return distribution.log_prob(actions), distribution.entropy()


def nats_of(distribution: Any, sample: bool) -> tuple[Tensor, Tensor]:
    """Return sampled actions with their entropy, where it is known, else −log π; or the likeliest with log π."""
    if not sample:
        likeliest = distribution.mode()
        return likeliest, distribution.log_prob(likeliest)
    actions, entropy = distribution.sample(), distribution.entropy()
    return actions, -distribution.log_prob(actions) if entropy is None else entropy


def in_rows(
    score: Callable[[Any, Tensor], tuple[Tensor, Tensor | None]], observations: Any, actions: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return what `score` makes of a rollout `[T, N, ...]`, some thousand rows at a time, `[T, N]` each."""
    lead = actions.shape[:2]
    flat, actions = of_each(observations, lambda part: part.flatten(0, 1)), actions.flatten(0, 1)
    blocks = [slice(start, start + ROWS) for start in range(0, len(actions), ROWS)]
    found = [score(of_each(flat, operator.itemgetter(rows)), actions[rows]) for rows in blocks]
    whole = (None if parts[0] is None else torch.cat(parts).reshape(lead) for parts in zip(*found, strict=True))
    return tuple(whole)  # type: ignore[return-value]


def of_each(observations: Any, change: Callable[[Any], Any]) -> Any:
    """Return what becomes of observations, or of each of several in a dictionary."""
    if isinstance(observations, dict):
        return {name: change(part) for name, part in observations.items()}
    return change(observations)


def scored(prior: Prior, observations: Any, actions: Tensor) -> Tensor:
    """Return the prior's log-probability of each action `[B]`. Raises where a user's `log_prob` gives another shape."""
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
    if not objective.is_set and not has_prior:
        raise UsageError("omega and alpha are measured by a prior, and there is none: name a prior, or both weights")
    if objective.reads_prior and not has_prior:
        raise UsageError(f"omega is {objective.omega:g}, which weighs a prior's log-probability, and there is no prior")
    if clips and objective.alpha and not objective.omega:
        raise UsageError(
            f"alpha is {objective.alpha:g} and omega is 0, and {clips}: the entropy is that of the unclipped actions, "
            "so nothing bounds the std; widen the bounds, or set omega above 0"
        )


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
    """Let the parameters take no gradient meanwhile, so that an optimizer passes them by."""
    moving = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
