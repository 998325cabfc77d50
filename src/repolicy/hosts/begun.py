"""How a host's actor begins as its prior: as which policy, what must fit, and what is copied."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.policies import ActionSpace, Conditioned, Normalizer, Policy, PolicySpec

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
        print(
            f"ResidualPPO: {name} has a std for each state and the actor one for all, so it begins some nats away; "
            f"{remedy} it begins as the prior"
        )


def as_squashed(policy: Policy, prior: Policy) -> Policy:
    """Return a Gaussian that has acted through tanh as the policy that it is, with its prior's bounds."""
    family = policy.spec.family.replace("gaussian", "squashed")
    spec = replace(policy.spec, family=family, actions=prior.actions, clips=False)
    found = Conditioned(spec, policy.dials) if isinstance(policy, Conditioned) else Policy(spec)
    found.load_state_dict(policy.state_dict())
    return found.requires_grad_(False).eval()


def check_sizes(prior: Policy, observations: int, actions: ActionSpace) -> None:
    """Raise unless the policy takes so many observations and acts so, with both sizes named."""
    spec = prior.spec
    if spec.observation_size != observations:
        raise UsageError(
            f"the prior takes observations of {spec.observation_size} numbers, but the environment gives {observations}"
        )
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
    """Load the weights, or say which does not fit, and both sizes."""
    wanted, wrong = module.state_dict(), ""
    for name in [*wanted, *weights]:
        if name not in weights:
            wrong = f"no {name}, which the actor has"
        elif name not in wanted:
            wrong = f"{name}, which the actor has not"
        elif weights[name].shape != wanted[name].shape:
            wrong = f"{name} of {list(weights[name].shape)}, and the actor of {list(wanted[name].shape)}"
        if wrong:
            raise UsageError(
                f"{what} has {wrong}: they must be the same, so give the actor the settings that the prior's had "
                "(Stable-Baselines3's policy_kwargs, rsl_rl's `actor`), in the environment that it was trained for"
            )
    module.load_state_dict(dict(weights))
