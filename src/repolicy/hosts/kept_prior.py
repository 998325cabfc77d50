"""What the hosts need of a prior: to open it, to score a rollout by it, and to begin an actor as it."""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.objective import Objective
from repolicy.policies import (
    ActionSpace,
    ConditionedPolicy,
    Normalizer,
    Policy,
    PolicySpec,
    Prior,
    check_has_log_prob,
    frozen,
)
from repolicy.priors import MeanPrior, OpenedPolicy, open_policy
from repolicy.readers.reading import Options, errors_in_python_terms, in_python_terms
from repolicy.text import printable

BESIDE = "; give it beside the path: prior={'path': FILE, ...}"
READING = ("std", "temperature", "vecnormalize", "activation", "demonstrations", "layout", "trust")  # beside a path


def path_of(given: Any) -> Any:
    """Return what a mapping of a `path` and how to read it names, and anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    if "path" not in given or (unknown := {*given} - {"path", *READING}):
        what = f"has {', '.join(sorted(unknown))}" if "path" in given else "names no path"
        raise UsageError(f"the prior {what}; as a mapping it takes path, {', '.join(READING)}")
    return given["path"]


def open_in_host(given: Any) -> OpenedPolicy:
    """Return a file, a run's folder or a shipped name as a frozen policy or, where it cannot be copied, as it runs.

    Whatever has `log_prob` is returned as it is.
    """
    path = path_of(given)
    if isinstance(path, str | Path):
        reading = {name: value for name, value in given.items() if name != "path"} if path is not given else {}
        trust = reading.pop("trust", False) is True  # and no word, such as "false"
        if "activation" in reading:
            reading["file_activation"] = reading.pop("activation")
        with errors_in_python_terms("" if reading else BESIDE):  # who gave some knows where
            found = open_policy(path, Options(**reading), trust)
    else:
        check_has_log_prob(path)
        found = OpenedPolicy(called(path), frozen(path) if isinstance(path, Policy) else path)
    for note in found.notes:
        said = in_python_terms(note)
        warnings.warn(said if said == note else said + BESIDE, stacklevel=3)
    if isinstance(found.agent, ConditionedPolicy):
        raise UsageError(found.agent.missing_dials_message("the prior"))
    return found


def behind(prior: Any) -> Any:
    """Return the policy, the mean or the object that scores for a prior, opened or kept; None where it has none."""
    return prior.agent if isinstance(prior, OpenedPolicy) else getattr(prior, "prior", None)


# Priors whose actions pass through tanh. A host stores actions as its policy drew them, before tanh, as ours do. ------


def squashes(prior: Any) -> bool:
    """Return whether a prior that was opened scores actions before tanh, by the density that they have behind it."""
    own = behind(prior)
    return isinstance(own, Policy) and own.family.squashes


def check_squashed(prior: Any, env_squashes: bool, remedy: str) -> None:
    """Raise where a prior's actions pass through tanh, and the environment takes them as they are."""
    if squashes(prior) and not env_squashes:
        raise UsageError(f"the prior's actions pass through tanh, and the environment's do not; {remedy}")


def called(given: Any) -> str:
    """Return what to call a prior that was given, in a sentence and in a checkpoint."""
    prior = path_of(given)
    return str(prior) if isinstance(prior, str | Path) else f"a {type(prior).__name__}"


def check_same_prior(given: Mapping[str, Tensor], kept: Mapping[str, Tensor], name: str, theirs: object) -> None:
    """Raise where the prior that is named now has other numbers than the one that a checkpoint was made beside."""
    if given.keys() == kept.keys() and all(torch.equal(given[key].cpu(), kept[key].cpu()) for key in given):
        return
    its = printable(str(theirs or "in it"))
    another = f"{name} is another, or is read otherwise"
    if its == name:
        another = "today's has other numbers, or is read with another std"
    raise UsageError(f"the checkpoint's prior was {its}, and {another}: name its own, or begin a new run")


ROWS = 4096  # of a rollout that a prior scores at once
Scores = tuple[Tensor, Tensor | None]


class ByDistribution(nn.Module):
    """A prior as hosts ask it, by its distribution of actions: `log_prob`, `entropy`, `mode` and `sample`."""

    has_memory = False  # whether it has a memory, which runs along with episodes

    def __init__(self, card: dict[str, Any] | None = None) -> None:
        """Keep the card, what its file tells of its training; a host's own files tell nothing."""
        super().__init__()
        self.card = card or {}

    def distribution(self, observations: Any) -> Any:
        """Return the distribution at observations `[B, ...]`, and remember them."""
        raise NotImplementedError

    def forget(self, ended: Tensor | None = None) -> None:
        """Begin anew where an episode ended `[N]`; without `ended` everywhere."""

    @torch.no_grad()
    def score(self, observations: Any, actions: Tensor, ended: Tensor) -> Scores:
        """Return log prior and, where it is known, the prior's entropy, both `[T, N]`, of a rollout `[T, N, ...]`.

        ended `[T, N]`: after which steps an episode ended. A memory goes on where the last rollout stopped.
        """
        lead, found = actions.shape[:2], list[Scores]()
        if self.has_memory:
            for seen, acted, last in zip(observations, actions, ended, strict=True):
                found.append(self.score_rows(seen, acted))
                self.forget(last)
        else:
            observations, actions = of_each(observations, lambda part: part.flatten(0, 1)), actions.flatten(0, 1)
            for start in range(0, len(actions), ROWS):
                rows = slice(start, start + ROWS)
                found.append(self.score_rows(of_each(observations, operator.itemgetter(rows)), actions[rows]))
        log_prior, entropy = zip(*found, strict=True)
        return torch.cat(log_prior).reshape(lead), None if entropy[0] is None else torch.cat(entropy).reshape(lead)

    def score_rows(self, observations: Any, actions: Tensor) -> Scores:
        """Return both `[B]` of rows."""
        distribution = self.distribution(observations)
        return distribution.log_prob(actions), distribution.entropy()

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        """Return actions, and their nats `[N]`: the entropy of sampled ones, else −log π; log π of the likeliest."""
        distribution = self.distribution(observations)
        if not sample:
            likeliest = distribution.mode()
            return likeliest, distribution.log_prob(likeliest)
        actions, entropy = distribution.sample(), distribution.entropy()
        return actions, -distribution.log_prob(actions) if entropy is None else entropy


class Given(ByDistribution):
    """A prior of any kind, which takes observations as the rows of numbers that `rows` makes of the host's."""

    def __init__(
        self,
        given: OpenedPolicy,
        observations: int,
        actions: ActionSpace,
        rows: Callable[[Any], Tensor] = lambda seen: seen,
    ) -> None:
        super().__init__(given.card)
        self.name, prior = given.name, given.agent
        self.prior: Any = prior.for_spaces(observations, actions) if isinstance(prior, MeanPrior) else prior
        self.has_memory = isinstance(self.prior, MeanPrior) and self.prior.has_memory
        if isinstance(prior, Policy):
            check_sizes(prior, observations, actions)
        self.rows = rows
        self.memory: Any = None

    def distribution(self, observations: Any) -> Any:
        rows, prior = self.rows(observations), self.prior
        if isinstance(prior, Policy):
            return prior(rows)
        if not isinstance(prior, MeanPrior):
            unmeasured = "so nothing can be measured: name omega and alpha, and leave states out"
            raise UsageError(f"{self.name} scores actions and chooses none, {unmeasured}")
        if not self.has_memory:
            return prior.distribution(rows)
        mean, self.memory = prior.means(rows, prior.initial_state(len(rows)) if self.memory is None else self.memory)
        return prior.gaussian(mean)

    def forget(self, ended: Tensor | None = None) -> None:
        self.memory = self.prior.reset_state(self.memory, ended) if self.memory and ended is not None else None

    @torch.no_grad()
    def score(self, observations: Any, actions: Tensor, ended: Tensor) -> Scores:
        if not self.has_memory:
            return super().score(observations, actions, ended)
        distribution, self.memory = self.prior.follow(self.rows(observations), ended, self.memory)  # one wait for all
        return distribution.log_prob(actions), distribution.entropy()

    def score_rows(self, observations: Any, actions: Tensor) -> Scores:
        if isinstance(self.prior, Policy | MeanPrior):
            return super().score_rows(observations, actions)
        return scored(self.prior, self.rows(observations), actions), None


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


def check_needs(objective: Objective, has_prior: bool, clips: str = "") -> None:
    """Raise where the objective cannot be had: no prior to weigh, or an entropy that nothing bounds."""
    if not objective.is_set and not has_prior:
        raise UsageError("omega and alpha are measured by a prior, and there is none: name a prior, or both weights")
    if objective.reads_prior and not has_prior:
        raise UsageError(f"omega is {objective.omega:g}, which weighs a prior's log-probability, and there is no prior")
    if clips and objective.alpha and not objective.omega:
        why = f"{clips}, so nothing bounds the std; widen the bounds, or set omega above 0"
        raise UsageError(f"alpha is {objective.alpha:g} and omega is 0, and {why}")


# How an actor begins as its prior: as which policy, what must fit, and what is copied ---------------------------------

DRAWN = 4096  # normalized observations, over which a std is averaged


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
    inputs = torch.randn(DRAWN, spec.observation_size, generator=torch.Generator().manual_seed(0))
    head: Any = policy.distribution(inputs.to(next(policy.parameters()).device))
    assert found.log_std is not None
    found.log_std.copy_(-0.5 * (-2.0 * head.log_std).exp().mean(0).log())
    return found.requires_grad_(False).eval()


def say_of_one_std(prior: Policy, begun: Policy, name: str, remedy: str) -> None:
    """Print that an actor begins elsewhere than its prior, where it has one std and the prior one for each state."""
    if begun.std is not None and prior.std is None:
        away = f"{name} has a std for each state and the actor one for all, so it begins some nats away"
        print(f"ResidualPPO: {away}; {remedy} it begins as the prior")


def as_squashed(policy: Policy, actions: ActionSpace) -> Policy:
    """Return a Gaussian that has acted through tanh as the policy that it is, within the bounds of these actions."""
    family = policy.spec.family.replace("gaussian", "squashed")
    spec = replace(policy.spec, family=family, actions=actions, clips=False)
    found = ConditionedPolicy(spec, policy.dials) if isinstance(policy, ConditionedPolicy) else Policy(spec)
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


def check_sizes(prior: Policy, observations: int, actions: ActionSpace) -> None:
    """Raise unless the policy takes so many observations and acts so, with both sizes named."""
    spec = prior.spec
    if spec.observation_size != observations:
        takes = f"the prior takes observations of {spec.observation_size} numbers"
        raise UsageError(f"{takes}, but the environment gives {observations}")
    if (spec.actions.kind, spec.actions.sizes) != (actions.kind, actions.sizes):
        raise UsageError(f"the prior acts with {spec.actions}, but the environment takes {actions}")


def unbounded(width: int) -> ActionSpace:
    """Return actions of so many numbers without bounds."""
    return ActionSpace("continuous", (width,), (-math.inf,) * width, (math.inf,) * width)


def paired(policy: Policy, layers: Iterable[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a policy's weights and biases, each beside that of the same layer of a host's network."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer, weight, bias in zip(linear, policy.network.weights, policy.network.biases, strict=True):
        yield weight, layer.weight
        yield bias, layer.bias


def set_statistics(normalizer: Normalizer, mean: Any, var: Any, count: Any) -> None:
    numbers = {"mean": mean, "var": var, "count": count}
    normalizer.load_state_dict({name: torch.as_tensor(part).double() for name, part in numbers.items()})


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


def fill(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load the weights, or say which is missing, is one too many, or has another size."""
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        *_, last = str(error).splitlines()  # of several complaints, one about sizes where there is one
        remedy = "Give the actor the settings that the prior's had (policy_kwargs, or `actor`), in its environment"
        raise UsageError(f"{what} does not fit the actor: {last.strip()} {remedy}") from None
