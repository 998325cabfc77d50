"""Priors in hosts: open one, score a rollout by it, and start an actor from it."""

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

READING_HINT = "; give it beside the path: prior={'path': FILE, ...}"
READING_OPTIONS = ("std", "temperature", "vecnormalize", "activation", "demonstrations", "layout", "trust")
SCORE_BATCH = 4096  # steps of a rollout that a prior scores at once


def prior_path(prior: Any) -> Any:
    """Return the `path` of a prior that is a mapping, and any other prior as it is."""
    if not isinstance(prior, Mapping):
        return prior
    if "path" not in prior or (unknown := {*prior} - {"path", *READING_OPTIONS}):
        what = f"has {', '.join(sorted(unknown))}" if "path" in prior else "names no path"
        raise UsageError(f"the prior {what}; as a mapping it takes path, {', '.join(READING_OPTIONS)}")
    return prior["path"]


def open_prior(prior: Any) -> OpenedPolicy:
    """Open a file, a run's folder or a shipped name as a frozen policy or, where that is impossible, as a program.

    An object with `log_prob` is wrapped as it is.
    """
    path = prior_path(prior)
    if isinstance(path, str | Path):
        options = {name: value for name, value in prior.items() if name != "path"} if path is not prior else {}
        trust = options.pop("trust", False) is True  # a word such as "false" is not trust
        if "activation" in options:
            options["file_activation"] = options.pop("activation")
        with errors_in_python_terms("" if options else READING_HINT):
            found = open_policy(path, Options(**options), trust)
    else:
        check_has_log_prob(path)
        found = OpenedPolicy(prior_label(path), frozen(path) if isinstance(path, Policy) else path)
    for note in found.notes:
        message = in_python_terms(note)
        message = message if message == note else message + READING_HINT
        warnings.warn(message, stacklevel=1)  # from here, so that a prior that is opened twice says it once
    if isinstance(found.agent, ConditionedPolicy):
        raise UsageError(found.agent.missing_dials_message("the prior"))
    return found


def unwrap_prior(prior: Any) -> Any:
    """Return the policy, mean or scoring object inside an opened or a host's prior; None where there is none."""
    return prior.agent if isinstance(prior, OpenedPolicy) else getattr(prior, "prior", None)


def prior_label(prior: Any) -> str:
    """Return a name for the prior of the settings, for messages and checkpoints."""
    path = prior_path(prior)
    return str(path) if isinstance(path, str | Path) else f"a {type(path).__name__}"


def check_same_prior(
    weights: Mapping[str, Tensor], saved_weights: Mapping[str, Tensor], label: str, saved_label: object
) -> None:
    """Raise where today's prior has other weights than the prior of the checkpoint."""
    same_keys = weights.keys() == saved_weights.keys()
    if same_keys and all(torch.equal(weights[key].cpu(), saved_weights[key].cpu()) for key in weights):
        return
    saved = printable(str(saved_label or "in it"))
    difference = f"{label} is another, or is read otherwise"
    if saved == label:
        difference = "today's has other numbers, or is read with another std"
    raise UsageError(f"the checkpoint's prior was {saved}, and {difference}: name its own, or begin a new run")


# Priors whose actions pass through tanh: a host stores actions as its policy sampled them, before tanh. ---------------


def squashes(prior: Any) -> bool:
    """Return whether a prior takes actions before tanh, and scores them by their density after tanh."""
    policy = unwrap_prior(prior)
    return isinstance(policy, Policy) and policy.family.squashes


def check_squashed(prior: Any, env_squashes: bool, remedy: str) -> None:
    """Raise where a prior's actions pass through tanh, and the environment takes actions as they are."""
    if squashes(prior) and not env_squashes:
        raise UsageError(f"the prior's actions pass through tanh, and the environment's do not; {remedy}")


# A prior that scores a rollout and acts -------------------------------------------------------------------------------


Scores = tuple[Tensor, Tensor | None]


class HostPrior(nn.Module):
    """A prior in the form that hosts use: its distribution has `log_prob`, `entropy`, `mode` and `sample`."""

    has_memory = False  # whether its actions depend on earlier steps of the episode
    can_act = True  # whether it chooses actions, or only scores them

    def __init__(self, card: dict[str, Any] | None = None) -> None:
        """Store the card, which describes the prior's training; a host's own files have none."""
        super().__init__()
        self.card = card or {}

    def distribution(self, observations: Any) -> Any:
        """Return the distribution at observations `[B, ...]`, and update the memory."""
        raise NotImplementedError

    def reset(self, ended: Tensor | None = None) -> None:
        """Reset the memory where an episode ended `[N]`; without `ended`, everywhere."""

    @torch.no_grad()
    def score(self, observations: Any, actions: Tensor, ended: Tensor) -> Scores:
        """Return log prior and the prior's entropy (None where unknown), both `[T, N]`, of a rollout `[T, N, ...]`.

        ended `[T, N]`: the steps that ended an episode. A memory continues from the rollout before.
        """
        lead, scores = actions.shape[:2], list[Scores]()
        if self.has_memory:
            for step_observations, step_actions, step_ended in zip(observations, actions, ended, strict=True):
                scores.append(self.score_batch(step_observations, step_actions))
                self.reset(step_ended)
        else:
            observations = map_observations(observations, lambda part: part.flatten(0, 1))
            actions = actions.flatten(0, 1)
            for start in range(0, len(actions), SCORE_BATCH):
                rows = slice(start, start + SCORE_BATCH)
                batch = map_observations(observations, operator.itemgetter(rows))
                scores.append(self.score_batch(batch, actions[rows]))
        log_prior, entropy = zip(*scores, strict=True)
        return torch.cat(log_prior).reshape(lead), None if entropy[0] is None else torch.cat(entropy).reshape(lead)

    def score_batch(self, observations: Any, actions: Tensor) -> Scores:
        """Return log prior and entropy of a batch, both `[B]`."""
        distribution = self.distribution(observations)
        return distribution.log_prob(actions), distribution.entropy()

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        """Return actions and nats `[N]`: of the mode its log-probability, of samples the entropy (or −log prob)."""
        distribution = self.distribution(observations)
        if not sample:
            mode = distribution.mode()
            return mode, distribution.log_prob(mode)
        actions, entropy = distribution.sample(), distribution.entropy()
        return actions, -distribution.log_prob(actions) if entropy is None else entropy


class FlatPrior(HostPrior):
    """A prior from any source that takes flat observations, which `flatten` makes of the host's."""

    def __init__(
        self,
        source: OpenedPolicy,
        observation_size: int,
        actions: ActionSpace,
        flatten: Callable[[Any], Tensor] = lambda observations: observations,
    ) -> None:
        super().__init__(source.card)
        self.name, agent = source.name, source.agent
        self.prior: Any = agent.for_spaces(observation_size, actions) if isinstance(agent, MeanPrior) else agent
        self.has_memory = isinstance(self.prior, MeanPrior) and self.prior.has_memory
        self.can_act = isinstance(self.prior, Policy | MeanPrior)
        if isinstance(agent, Policy):
            check_sizes(agent, observation_size, actions)
        self.flatten = flatten
        self.memory: Any = None

    def distribution(self, observations: Any) -> Any:
        flat, prior = self.flatten(observations), self.prior
        if isinstance(prior, Policy):
            return prior(flat)
        if not isinstance(prior, MeanPrior):
            unmeasured = "so nothing can be measured: name omega and alpha, and leave states, keep and the verdict out"
            raise UsageError(f"{self.name} scores actions and chooses none, {unmeasured}")
        if not self.has_memory:
            return prior.distribution(flat)
        mean, self.memory = prior.means(flat, prior.initial_state(len(flat)) if self.memory is None else self.memory)
        return prior.gaussian(mean)

    def reset(self, ended: Tensor | None = None) -> None:
        self.memory = self.prior.reset_state(self.memory, ended) if self.memory and ended is not None else None

    def score_batch(self, observations: Any, actions: Tensor) -> Scores:
        if self.can_act:
            return super().score_batch(observations, actions)
        return checked_log_prob(self.prior, self.flatten(observations), actions), None


def map_observations(observations: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to observations, or to each part of a dictionary of observations."""
    if isinstance(observations, dict):
        return {name: change(part) for name, part in observations.items()}
    return change(observations)


def checked_log_prob(prior: Prior, observations: Any, actions: Tensor) -> Tensor:
    """Return the prior's log-probability of each action `[B]`. Raises where a user's `log_prob` has another shape."""
    found: Any = prior.log_prob(observations, actions)
    if not isinstance(found, Tensor) or tuple(found.shape) != (len(actions),):
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UsageError(f"the prior's log_prob gave {what}; of {len(actions)} actions it must be a tensor, one each")
    return found


def check_objective(objective: Objective, has_prior: bool, clipping: str = "") -> None:
    """Raise where the objective cannot be trained: there is no prior to weigh, or nothing bounds the entropy.

    `clipping` says how the host clips actions, and is empty where it does not.
    """
    if not objective.is_set and not has_prior:
        raise UsageError("omega and alpha are measured by a prior, and there is none: name a prior, or both weights")
    if objective.reads_prior and not has_prior:
        raise UsageError(f"omega is {objective.omega:g}, which weighs a prior's log-probability, and there is no prior")
    if clipping and objective.alpha and objective.omega == 0:
        why = f"{clipping}, so nothing bounds the std; widen the bounds, or set omega above 0"
        raise UsageError(f"alpha is {objective.alpha:g} and omega is 0, and {why}")


# Actors that begin as their prior: the policy to copy, what must fit, and the copying ---------------------------------

STD_SAMPLES = 4096  # normalized observations over which a std is averaged


def as_gaussian(policy: Policy) -> Policy:
    """Return a squashed policy as the Gaussian before its tanh, which a host's actor copies; any other as it is."""
    if not policy.family.squashes:
        return policy
    found = Policy(replace(policy.spec, family=policy.spec.family.replace("squashed", "gaussian")))
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


@torch.no_grad()
def with_one_std(policy: Policy) -> Policy:
    """Return the Gaussian with one std for all states that is nearest to the policy, in KL(Gaussian ‖ policy).

    It has the policy's means. The KL is averaged over observations drawn from the policy's normalizer.
    """
    if policy.std is not None or policy.actions.kind == "discrete":
        return policy
    spec, width = policy.spec, policy.actions.width
    found = Policy(replace(spec, family="gaussian", std="exp", min_std=0.0, std_bounds=(-math.inf, math.inf)))
    weights = policy.network.state_dict()
    for name, tensor in found.network.state_dict().items():  # the last layer's outputs are means, then log stds
        tensor.copy_(weights[name] if tensor.shape == weights[name].shape else weights[name][:width])
    found.normalizer.load_state_dict(policy.normalizer.state_dict())
    inputs = torch.randn(STD_SAMPLES, spec.observation_size, generator=torch.Generator().manual_seed(0))
    head: Any = policy.distribution(inputs.to(next(policy.parameters()).device))
    assert found.log_std is not None
    found.log_std.copy_(-0.5 * (-2.0 * head.log_std).exp().mean(0).log())
    return found.requires_grad_(False).eval()


def warn_about_one_std(prior: Policy, actor: Policy, name: str, remedy: str) -> None:
    """Print that an actor with one std cannot begin as its prior, if that has a std for each state."""
    if actor.std is not None and prior.std is None:
        away = f"{name} has a std for each state and the actor one for all, so it begins some nats away"
        print(f"ResidualPPO: {away}; {remedy} it begins as the prior")


def as_squashed(policy: Policy, actions: ActionSpace) -> Policy:
    """Return a Gaussian whose actions pass through tanh as a squashed policy with the bounds of these actions."""
    family = policy.spec.family.replace("gaussian", "squashed")
    spec = replace(policy.spec, family=family, actions=actions, clips=False)
    found = ConditionedPolicy(spec, policy.dials) if isinstance(policy, ConditionedPolicy) else Policy(spec)
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


def check_sizes(prior: Policy, observation_size: int, actions: ActionSpace) -> None:
    """Raise unless the policy takes observations of this size and has these actions; the message names both."""
    spec = prior.spec
    if spec.observation_size != observation_size:
        takes = f"the prior takes observations of {spec.observation_size} numbers"
        raise UsageError(f"{takes}, but the environment gives {observation_size}")
    if (spec.actions.kind, spec.actions.sizes) != (actions.kind, actions.sizes):
        raise UsageError(f"the prior acts with {spec.actions}, but the environment takes {actions}")


def unbounded_actions(width: int) -> ActionSpace:
    """Return a continuous action space of this width without bounds."""
    return ActionSpace("continuous", (width,), (-math.inf,) * width, (math.inf,) * width)


def layer_pairs(policy: Policy, layers: Iterable[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters: a policy's, and that of the same layer of a host's network."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer, weight, bias in zip(linear, policy.network.weights, policy.network.biases, strict=True):
        yield weight, layer.weight
        yield bias, layer.bias


def set_statistics(normalizer: Normalizer, mean: Any, var: Any, count: Any) -> None:
    statistics = {"mean": mean, "var": var, "count": count}
    normalizer.load_state_dict({name: torch.as_tensor(part).double() for name, part in statistics.items()})


def check_same_network(prior: PolicySpec, host: PolicySpec, what: str, remedy: str) -> None:
    """Raise unless a prior's network has the architecture of the host's, before its weights are copied."""
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


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load the weights; raise with the name of one that is missing, unexpected, or of another size."""
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        *_, last = str(error).splitlines()  # torch lists wrong sizes last
        remedy = "Give the actor the settings that the prior's had (policy_kwargs, or `actor`), in its environment"
        raise UsageError(f"{what} does not fit the actor: {last.strip()} {remedy}") from None
