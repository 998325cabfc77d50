"""`--std fit`: the std of a policy that has none, from recorded actions of its own, by maximum likelihood."""

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies.actions import ActionSpace
from repolicy.policies.policy import Policy
from repolicy.priors.kinds import MeanPrior
from repolicy.readers.demonstrations import Demonstrations, read_demonstrations
from repolicy.readers.reading import LEAST_STD, Options

EDGE = 1.0 - 1e-4  # actions are clipped to ± this before atanh


def wants_fit(options: Options) -> bool:
    """Whether a std is to be fitted; refused where there is nothing to fit it to, and the other way round."""
    if options.std == "fit" and options.demonstrations is None:
        raise UsageError(
            "--std fit needs recorded actions of this policy: --demonstrations FILE.npz, with observations and actions"
        )
    if options.std != "fit" and options.demonstrations is not None:
        raise UsageError("--demonstrations goes with --std fit")
    return options.std == "fit"


def fitted_to(prior: Policy | MeanPrior, options: Options) -> tuple[Tensor, str]:
    """The std `[A]` under which the recorded actions are likeliest, and what it means."""
    assert options.demonstrations is not None
    data = read_demonstrations(options.demonstrations)
    if data.discrete:
        raise UsageError(f"{data.name} holds choices, and choices have no std")
    width = data.actions.shape[1]
    if isinstance(prior, Policy):
        sizes = prior.observation_size, prior.actions.width
        if sizes != (data.observations.shape[1], width):
            raise UsageError(
                f"{data.name} has observations of {data.observations.shape[1]} numbers and actions of {width}; "
                f"the policy takes {sizes[0]} and gives {sizes[1]}"
            )
        with torch.no_grad():
            means = prior(data.observations).mode()
        actions = _before_tanh(prior, data) if prior.family.squashes else data.actions
    else:
        placed = prior.placed(data.observations.shape[1], ActionSpace("continuous", (width,)))
        if placed.remembers and data.ended is None:
            raise UsageError(
                f"{data.name} does not say where an episode ended, and {placed.name} has a memory, which begins anew "
                "there: save an array 'ended' with the observations and actions"
            )
        ended = torch.zeros(len(data.actions), dtype=torch.bool) if data.ended is None else data.ended
        means = placed.follow(data.observations[:, None], ended[:, None], None)[0].mode()[:, 0]
        actions = data.actions
    std = (actions - means).double().square().mean(0).sqrt().float()
    if not bool((std > LEAST_STD).all()):
        raise UsageError(
            f"the actions in {data.name} are the policy's own means, which tell no std: give one, such as --std 0.2"
        )
    return std, _sentence(std, data)


def _sentence(std: Tensor, data: Demonstrations) -> str:
    low, high = float(std.min()), float(std.max())
    width = f"{low:.3g}" if len(std) == 1 else f"{low:.3g} to {high:.3g}"
    return (
        f"the std, {width}, is fitted to the {len(data.actions):,} actions in {data.name}: how far these lie from the "
        f"mean costs {len(std) / 2:g} nats a step, and ω′ times that in reward; were the std half of it, it would cost "
        "four times as much"
    )


def _before_tanh(policy: Policy, data: Demonstrations) -> Tensor:
    low, high = torch.tensor(policy.actions.low), torch.tensor(policy.actions.high)
    return torch.atanh((2.0 * (data.actions - low) / (high - low) - 1.0).clamp(-EDGE, EDGE))
