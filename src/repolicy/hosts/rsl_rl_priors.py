"""Priors inside rsl_rl: a checkpoint of the runner's, or any other in the form that the runner asks."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from repolicy.errors import FileError, UsageError
from repolicy.hosts import kept_prior
from repolicy.hosts.kept_prior import ByDistribution, Given
from repolicy.hosts.rsl_rl_networks import PolicyActor, from_repolicy
from repolicy.loading import read_bytes
from repolicy.policies import Policy
from repolicy.policies.metadata import POLICY
from repolicy.readers.context import agent_settings, parse_list, parse_numbers
from repolicy.readers.pickles import load, short_repr
from repolicy.readers.rsl_rl_checkpoint import STD_RANGE

from rsl_rl.utils import resolve_nn_activation  # isort: skip  # after ours, which say what to install where it is missing

RANGES = {"std_range": STD_RANGE, "action_range": "-1.0, 1.0"}  # settings of a distribution, with rsl_rl's defaults


class RunnersPrior(ByDistribution):
    """A copy of the runner's actor with a checkpoint's weights: its normalizer, memory and images included."""

    def __init__(self, actor: Any, weights: Mapping[str, Tensor], path: Path, env_steps: int = 0) -> None:
        """Copy the actor; `env_steps` is how long it was trained in each environment, where that is told."""
        super().__init__()
        last = vars(actor.distribution).values()  # after an update it hangs on a graph, which has no copy
        graph = {id(x): None for x in last if isinstance(x, Distribution) or getattr(x, "grad_fn", None)}
        self.model, self.has_memory = copy.deepcopy(actor, graph), actor.is_recurrent
        self.env_steps = env_steps
        self.model.reset()
        kept_prior.fill(self.model, weights, f"the prior {path}")
        self.requires_grad_(False).eval()

    def distribution(self, observations: Any) -> "Shown":
        """Return the distribution, without a sample, which would take random numbers from the actor."""
        outputs = self.model.mlp(self.model.get_latent(observations))
        self.model.distribution.update(outputs)
        return Shown(self.model.distribution, outputs)

    def forget(self, ended: Tensor | None = None) -> None:
        """Begin anew where an episode ended. (rsl_rl's own reset of some rows waits for the device.)"""
        if ended is None or not self.has_memory:
            self.model.reset()
            return
        state, keep = self.model.get_hidden_state(), ~ended.unsqueeze(-1)
        parts = tuple(part * keep for part in (state if isinstance(state, tuple) else (state,)))
        self.model.reset(hidden_state=parts if isinstance(state, tuple) else parts[0])


class Shown(NamedTuple):
    """rsl_rl's distribution by a network's outputs, with the names that ours have."""

    theirs: Any
    outputs: Tensor

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.theirs.log_prob(actions)

    def entropy(self) -> Tensor:
        return self.theirs.entropy

    def sample(self) -> Tensor:
        return self.theirs.sample()

    def mode(self) -> Tensor:
        return self.theirs.deterministic_output(self.outputs)


def prior_for(given: Any, actor: Any, storage: Any, copied: bool) -> RunnersPrior | Given:
    """Return the prior in the form that the runner asks, and the actor begun as it."""
    path = kept_prior.path_of(given)
    if isinstance(path, str | Path) and Path(path).suffix == ".pt":
        weights, steps = _read_checkpoint(Path(path))
        if weights is not None and not isinstance(actor, PolicyActor):
            if isinstance(given, Mapping) and (idle := given.keys() - {"path", "trust"}):
                raise UsageError(f"{path} is the runner's checkpoint, and has no use for {', '.join(sorted(idle))}")
            own = RunnersPrior(actor, weights, Path(path), steps)
            check_trained_alike(actor, Path(path))
            if copied:
                actor.load_state_dict(weights)
                actor.obs_normalization = False  # its statistics would move the policy without a gradient
            return own
    groups = [*actor.obs_groups]

    def side_by_side(seen: Any) -> Tensor:
        return torch.cat([seen[group] for group in groups], dim=-1)

    width = side_by_side(storage.observations).shape[-1]
    prior = Given(kept_prior.open_in_host(given), width, kept_prior.unbounded(storage.actions_shape[0]), side_by_side)
    if copied and isinstance(prior.prior, Policy) and not isinstance(actor, PolicyActor):
        begun = kept_prior.with_one_std(gaussian := kept_prior.as_gaussian(prior.prior))
        from_repolicy(begun, actor)
        remedy = "with actor={'class_name': 'repolicy.hosts.rsl_rl:PolicyActor'}"
        kept_prior.say_of_one_std(gaussian, begun, prior.name, remedy)
        actor.obs_normalization = False
    return prior


def check_trained_alike(actor: Any, path: Path) -> None:
    """Raise where the settings beside a checkpoint are of another actor than this one, whose tensors fit as well."""
    agent, own, groups = agent_settings(path), type(actor.mlp[1]), [*actor.obs_groups]
    if not agent:
        untold = "does not say which activation its network has, nor which observation groups it saw"
        print(f"ResidualPPO: {path} {untold}: {own.__name__} and {', '.join(groups)}, the actor's, are assumed")
    activation, told = agent.get("activation"), parse_list(agent.get("actor", ""))
    remedy = "give the actor the settings in the prior's params/agent.yaml"
    if activation and not hasattr(actor, "cnns") and type(resolve_nn_activation(activation)) is not own:
        raise UsageError(f"the prior has the activation {activation}, and the actor {own.__name__}: {remedy}")
    if "actor" in agent and [group for group in told if group in groups] != groups:
        raise UsageError(f"the prior saw the groups {', '.join(told)}, and the actor {', '.join(groups)}: {remedy}")
    for name, usual in RANGES.items():
        today = getattr(actor.distribution, name, None)
        if not agent or today is None:
            continue
        before = parse_numbers(agent, name, usual)
        if not np.allclose(before, today, atol=1e-5):
            raise UsageError(f"the prior has the {name} {before}, and the actor {[*today]}: {remedy}")


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor] | None, int]:
    """Return the actor in one of the runner's checkpoints, without running anything.

    None where it is no such file, or of a `PolicyActor`, which is read as any policy of ours.

    And how many steps its environments had taken, which mjlab's checkpoints tell.
    """
    loaded = load(read_bytes(path), str(path))
    actor = loaded.get("actor_state_dict") if isinstance(loaded, dict) and POLICY not in loaded else None
    if not isinstance(actor, dict):
        return None, 0
    for name, part in actor.items():
        if not isinstance(part, np.ndarray):
            raise FileError(f"{path} cannot be read: {name} is {short_repr(part)}, and no tensor")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise FileError(f"{path} cannot be used: {name} has numbers that are not finite")
    told = ((loaded.get("infos") or {}).get("env_state") or {}).get("common_step_counter", 0)
    return {name: torch.from_numpy(np.array(part)) for name, part in actor.items()}, int(told)
