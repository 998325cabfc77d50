"""Priors inside Stable-Baselines3: a model of its own, and what a saved model holds of its prior."""

import copy
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from torch import Tensor, nn

from repolicy.errors import UsageError
from repolicy.hosts.kept_prior import ByDistribution, Given, behind, open_in_host
from repolicy.policies import Density, Policy, policy_bytes, read_saved_policy
from repolicy.priors import OpenedPolicy

OURS, THEIRS = "prior.safetensors", "prior_of_sb3.safetensors"  # names in a saved model's zip
MARKS, STATES = "prior_that_runs.safetensors", "states.safetensors"


CRITICS = ("value_net.", "mlp_extractor.value_net.")  # how the names of a critic's own tensors begin
BUILT = (  # what the same tensors may stand for
    "activation_fn", "features_extractor_class", "features_extractor_kwargs", "share_features_extractor",
    "normalize_images", "use_sde", "dist_kwargs", "head",
)  # fmt: skip


class Weights(dict[str, Tensor]):
    """An actor of Stable-Baselines3 as its tensors. That of a model also tells how it was built, and what it saw."""

    policy: ActorCriticPolicy | None = None
    kwargs: dict[str, Any] | None = None  # the model's `policy_kwargs`
    statistics: Any = None  # by which its environment normalizes observations
    untold = False  # whether it was normalized by statistics that the model's file does not hold

    @classmethod
    def of(cls, policy: ActorCriticPolicy, model: BaseAlgorithm | None) -> "Weights":
        found = cls(of_actor({name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}))
        found.policy = policy
        if model is not None:
            others = ("optimizer_class", "optimizer_kwargs")  # A2C's own
            found.kwargs = {name: part for name, part in model.policy_kwargs.items() if name not in others}
            normalized = model.get_vec_normalize_env()
            found.statistics = statistics_of(normalized)
            found.untold = normalized is None and model._last_original_obs is not None  # which is kept with one alone
        return found

    def check_built(self, policy: ActorCriticPolicy, env: Any) -> None:
        """Raise where the same tensors would act otherwise in this policy, or would see other observations."""
        if self.policy is None:
            return
        mine, theirs = map(settings_of, (self.policy, policy))
        for name, part in mine.items():
            if part != theirs[name]:
                remedy = "leave policy_kwargs out, and it is built like its prior"
                raise UsageError(f"the prior's policy has {name} {part}, and the model's {theirs[name]}: {remedy}")
        now: Any = None if env is None else unwrap_vec_normalize(env)
        seen_alike = now is not None if self.untold else np.array_equal(self.statistics, statistics_of(now))
        if env is not None and not seen_alike:
            remedy = (
                "wrap it in VecNormalize.load(FILE, env), with that training's file; norm_obs=False, if it had none"
            )
            raise UsageError(
                f"the environment normalizes observations otherwise than the prior's training did: {remedy}"
            )


def settings_of(policy: ActorCriticPolicy) -> dict[str, str]:
    """Return what its tensors do not tell of a policy, in words."""
    told = {"class": type(policy)} | {name: getattr(policy, name, None) for name in BUILT}
    return {name: getattr(part, "__name__", str(part)) for name, part in told.items()}


def of_actor(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(CRITICS)}


def statistics_of(normalized: VecNormalize | None) -> Any:
    """Return all numbers by which observations are normalized, or None."""
    if normalized is None or not normalized.norm_obs:
        return None
    of = normalized.obs_rms
    each = of.values() if isinstance(of, dict) else [of]
    numbers = [np.ravel(part) for one in each for part in (one.mean, one.var)]
    return np.concatenate([*numbers, [normalized.clip_obs, normalized.epsilon]])


class SameKind(ByDistribution):
    """A policy of Stable-Baselines3 that is built like the model's own, and sees what that one sees."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def distribution(self, observations: Any) -> Any:
        return self.policy.get_distribution(observations)

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        if sample and self.policy.use_sde:  # whose noise would else be one draw for all
            rows = next(iter(observations.values())) if isinstance(observations, dict) else observations
            self.policy.reset_noise(len(rows))
        return super().act(observations, sample)

    def score_rows(self, observations: Any, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        one_choice = isinstance(self.policy.action_space, spaces.Discrete)
        return super().score_rows(observations, actions.long().flatten() if one_choice else actions.float())


def read(prior: Any) -> Any:
    """Return a prior of any kind; of a model of Stable-Baselines3, the weights."""
    if prior is None or isinstance(prior, Weights | SameKind | Given | OpenedPolicy):
        return prior
    policy = prior.policy if isinstance(prior, BaseAlgorithm) else prior
    if isinstance(policy, ActorCriticPolicy) and not hasattr(policy, "lstm_actor"):
        return Weights.of(policy, prior if isinstance(prior, BaseAlgorithm) else None)
    return open_in_host(prior)


def stored(prior: Any, density: Density | None) -> list[tuple[str, bytes]]:
    """Return a prior and the density of its states as names and bytes of files.

    What runs as it is must be named again; of a file, it is known by which.
    """
    found = [] if density is None else [(STATES, safetensors.torch.save(density.to("cpu").tensors()))]
    if isinstance(prior, Given) and isinstance(prior.prior, Policy):
        return [*found, (OURS, policy_bytes(copy.deepcopy(prior.prior).cpu(), {}))]
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(prior).items()}
    name = THEIRS if isinstance(prior, SameKind) else MARKS
    return [*found, (name, safetensors.torch.save(tensors))] if tensors else found


def tensors_of(prior: Any) -> Mapping[str, Tensor]:
    """Return the numbers of a prior; an object of the user's own has none that are known."""
    if isinstance(prior, Weights):
        return prior
    if isinstance(prior, SameKind):
        module: Any = prior.policy
    else:
        module = behind(prior) if isinstance(prior, Given | OpenedPolicy) else prior
    if not isinstance(module, nn.Module):
        return {}
    return of_actor(module.state_dict()) if isinstance(prior, SameKind) else module.state_dict()


class Kept(NamedTuple):
    """What a saved model holds of its prior, and its budget; nothing of no zip, or of Stable-Baselines3's own."""

    prior: Policy | Weights | None = None
    name: object = None
    density: Density | None = None
    tensors: Mapping[str, Tensor] = {}
    budget: float | None = None


def kept_in(path: Any) -> Kept:
    file = open_path(path, "r", verbose=0, suffix="zip")
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            prior: Policy | Weights | None = None
            if THEIRS in names:
                prior = Weights(of_actor(safetensors.torch.load(archive.read(THEIRS))))
            elif OURS in names:
                prior = read_saved_policy(Path(OURS), archive.read(OURS)).policy
            states = safetensors.torch.load(archive.read(STATES)) if STATES in names else None
            density = None if states is None else Density.from_tensors(states)
            tensors = safetensors.torch.load(archive.read(MARKS)) if MARKS in names else tensors_of(prior)
            data = json.loads(archive.read("data"))
            budget = data.get("kl_budget") or data.get("log_prior_budget")
            return Kept(prior, data.get("prior_name"), density, tensors, budget)
    except zipfile.BadZipFile:
        return Kept()
    finally:
        file.close() if isinstance(path, str | Path) else file.seek(0)
