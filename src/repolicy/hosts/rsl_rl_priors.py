"""Priors inside rsl_rl: a checkpoint of the runner's own, or any other prior."""

import copy
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from repolicy.errors import FileError, UsageError
from repolicy.files import read_bytes
from repolicy.hosts import priors
from repolicy.hosts.priors import FlatPrior, HostPrior
from repolicy.hosts.rsl_rl_networks import PolicyActor, flattened, from_repolicy
from repolicy.policies import Policy
from repolicy.policies.metadata import POLICY
from repolicy.priors import find_policy, is_code
from repolicy.readers.context import agent_settings, observed_groups, parse_numbers
from repolicy.readers.pickles import load, short_repr
from repolicy.readers.rsl_rl_checkpoint import STD_RANGE

from rsl_rl.utils import resolve_nn_activation  # isort: skip  # after ours, which say what to install where it is missing

NAMES_SINCE_5 = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}  # by those of rsl_rl 4
DEFAULT_RANGES = {"std_range": STD_RANGE, "action_range": "-1.0, 1.0"}  # rsl_rl's, for settings of a distribution


class RunnerPrior(HostPrior):
    """A copy of the runner's actor with a checkpoint's weights: its normalizer, memory and images included."""

    def __init__(self, actor: Any, weights: Mapping[str, Tensor], path: Path, env_steps: int = 0) -> None:
        """Copy the actor; `env_steps` is how long the prior was trained in each environment, 0 where unknown."""
        super().__init__()
        # After an update the actor's last distribution is part of a graph, which cannot be copied: leave it out.
        last = vars(actor.distribution).values()
        left_out = {id(x): None for x in last if isinstance(x, Distribution) or getattr(x, "grad_fn", None)}
        self.model, self.has_memory = copy.deepcopy(actor, left_out), actor.is_recurrent
        self.env_steps = env_steps
        self.model.reset()
        priors.load_weights(self.model, weights, f"the prior {path}")
        self.requires_grad_(False).eval()

    def distribution(self, observations: Any) -> "RunnerDistribution":
        """Return the distribution. It draws no sample, which would change the actor's random numbers."""
        outputs = self.model.mlp(self.model.get_latent(observations))
        self.model.distribution.update(outputs)
        return RunnerDistribution(self.model.distribution, outputs)

    def reset(self, ended: Tensor | None = None) -> None:
        """Reset the memory where an episode ended. rsl_rl's own reset of some rows would wait for the device."""
        if ended is None or not self.has_memory:
            self.model.reset()
            return
        state, keep = self.model.get_hidden_state(), ~ended.unsqueeze(-1)
        parts = tuple(part * keep for part in (state if isinstance(state, tuple) else (state,)))
        self.model.reset(hidden_state=parts if isinstance(state, tuple) else parts[0])


class RunnerDistribution(NamedTuple):
    """rsl_rl's distribution at a network's outputs, with the methods of our distributions."""

    distribution: Any
    outputs: Tensor

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.distribution.log_prob(actions)

    def entropy(self) -> Tensor:
        # rsl_rl's Beta has an entropy of actions in [0, 1] beside a log_prob of those in its range
        scale = getattr(self.distribution, "_log_range_scale", 0.0)
        return self.distribution.entropy + scale * self.distribution.output_dim

    def sample(self) -> Tensor:
        return self.distribution.sample()

    def mode(self) -> Tensor:
        return self.distribution.deterministic_output(self.outputs)


def build_prior(prior: Any, actor: Any, storage: Any, copy_prior: bool) -> RunnerPrior | FlatPrior:
    """Open the prior of the settings; with `copy_prior`, also copy its weights into the actor."""
    path = priors.prior_path(prior)
    if isinstance(path, str | Path) and not is_code(path):
        path = find_policy(path)
    if isinstance(path, Path) and path.suffix == ".pt":
        weights, steps = _read_checkpoint(path)
        if weights is not None and not isinstance(actor, PolicyActor):
            if isinstance(prior, Mapping) and (unused := prior.keys() - {"path", "trust"}):
                raise UsageError(f"{path} is the runner's checkpoint, and has no use for {', '.join(sorted(unused))}")
            runner_prior = RunnerPrior(actor, weights, path, steps)
            check_trained_alike(actor, path)
            if copy_prior:
                actor.load_state_dict(weights)
                actor.obs_normalization = False  # moving statistics would change the policy without a gradient
            return runner_prior
    flatten = partial(flattened, groups=[*actor.obs_groups])
    actions = priors.unbounded_actions(storage.actions_shape[0])
    flat_prior = FlatPrior(priors.open_prior(prior), flatten(storage.observations).shape[-1], actions, flatten)
    if copy_prior and isinstance(flat_prior.prior, Policy) and not isinstance(actor, PolicyActor):
        gaussian = priors.as_gaussian(flat_prior.prior)
        initial = priors.with_one_std(gaussian)
        from_repolicy(initial, actor)
        remedy = "with actor={'class_name': 'repolicy.hosts.rsl_rl:PolicyActor'}"
        priors.warn_about_one_std(gaussian, initial, flat_prior.name, remedy)
        actor.obs_normalization = False
    return flat_prior


def check_trained_alike(actor: Any, path: Path) -> None:
    """Raise where the settings beside a checkpoint differ from the actor's in what its tensors do not show."""
    agent, distribution = agent_settings(path), actor.distribution
    module, groups = type(actor.mlp[1]), [*actor.obs_groups]
    if not agent:
        untold = "does not say which activation its network has, nor which observation groups it saw"
        inputs = ", ".join([*groups, *getattr(actor, "obs_groups_2d", [])])  # the latter are images
        print(f"ResidualPPO: {path} {untold}: {module.__name__} and {inputs}, the actor's, are assumed")
        return
    remedy = "give the actor the settings in the prior's params/agent.yaml"
    seen = observed_groups(agent)
    activation = agent.get("activation")
    if activation and type(resolve_nn_activation(activation)) is not module:
        raise UsageError(f"the prior has the activation {activation}, and the actor {module.__name__}: {remedy}")
    if seen and [group for group in seen if group in groups] != groups:
        raise UsageError(f"the prior saw the groups {', '.join(seen)}, and the actor {', '.join(groups)}: {remedy}")
    kind, kinds = type(distribution).__name__, re.findall(r"\w+Distribution\b", agent["class_names"])
    if kinds and kind not in kinds:
        raise UsageError(f"the prior has a {kinds[0]}, and the actor a {kind}: {remedy}")
    std_type = agent.get("std_type", agent.get("noise_std_type", "scalar"))
    if std_type != getattr(distribution, "std_type", std_type):
        raise UsageError(f"the prior has the std_type {std_type}, and the actor {distribution.std_type}: {remedy}")
    for name, default in DEFAULT_RANGES.items():
        trained = parse_numbers(agent, name, default)
        today = [*getattr(distribution, name, trained)]
        if not np.allclose(trained, today, atol=1e-5):
            raise UsageError(f"the prior has the {name} {trained}, and the actor {today}: {remedy}")


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor] | None, int]:
    """Return the actor's weights in a checkpoint of the runner's, and the steps that its environments had taken.

    No code in the file runs. The weights are None where the file is another one, or of a `PolicyActor`, which is read
    as any policy of ours. Only mjlab's checkpoints tell the steps.
    """
    loaded = load(read_bytes(path), str(path))
    is_theirs = isinstance(loaded, dict) and POLICY not in loaded
    actor = loaded.get("actor_state_dict", loaded.get("student_state_dict")) if is_theirs else None
    if not isinstance(actor, dict):
        return None, 0
    weights = {}
    for name, part in actor.items():
        if not isinstance(part, np.ndarray):
            raise FileError(f"{path} cannot be read: {name} is {short_repr(part)}, and no tensor")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise FileError(f"{path} cannot be used: {name} has numbers that are not finite")
        weights[NAMES_SINCE_5.get(str(name), str(name))] = torch.from_numpy(np.array(part))
    steps = ((loaded.get("infos") or {}).get("env_state") or {}).get("common_step_counter", 0)
    return weights, int(steps)
