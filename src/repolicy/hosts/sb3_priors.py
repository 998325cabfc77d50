"""Priors inside Stable-Baselines3: models of its own, and the prior in a saved model."""

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
from repolicy.hosts.priors import FlatPrior, HostPrior, open_prior, unwrap_prior
from repolicy.policies import Density, Policy, policy_bytes, read_saved_policy
from repolicy.priors import OpenedPolicy
from repolicy.readers.description import CannotCopyError
from repolicy.runs import BUDGETS

# files in a saved model's zip: a policy of ours, a model's actor, tensors of a prior that runs as it is, the density
POLICY_FILE, ACTOR_FILE = "prior.safetensors", "prior_of_sb3.safetensors"
TENSORS_FILE, DENSITY_FILE = "prior_that_runs.safetensors", "states.safetensors"

CRITICS = ("value_net.", "mlp_extractor.value_net.")  # prefixes of a critic's own tensors
BUILD_SETTINGS = (  # settings of a policy that its tensors do not show
    "activation_fn", "features_extractor_class", "features_extractor_kwargs", "share_features_extractor",
    "normalize_images", "use_sde", "dist_kwargs", "head",
)  # fmt: skip


class ActorWeights(dict[str, Tensor]):
    """The tensors of an actor of Stable-Baselines3; those of a model also have its settings and statistics."""

    policy: ActorCriticPolicy | None = None
    kwargs: dict[str, Any] | None = None  # the model's `policy_kwargs`
    statistics: Any = None  # that normalized its observations
    has_unknown_statistics = False  # whether its observations were normalized by statistics that nobody gave

    @classmethod
    def of(cls, policy: ActorCriticPolicy, model: BaseAlgorithm | None) -> "ActorWeights":
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
        found = cls(without_critic(tensors))
        found.policy = policy
        if model is not None:
            of_a2c = ("optimizer_class", "optimizer_kwargs")
            found.kwargs = {name: part for name, part in model.policy_kwargs.items() if name not in of_a2c}
            normalized = model.get_vec_normalize_env()
            found.statistics = normalization_statistics(normalized)
            # Stable-Baselines3 saves the last original observation only beside a VecNormalize.
            found.has_unknown_statistics = normalized is None and model._last_original_obs is not None
        return found

    def check_built(self, policy: ActorCriticPolicy, env: Any) -> None:
        """Raise where the tensors would act differently in this policy, or observations are normalized differently."""
        if self.policy is None:
            return
        settings, model_settings = build_settings(self.policy), build_settings(policy)
        for name, value in settings.items():
            if value != model_settings[name]:
                remedy = "leave policy_kwargs out, and it is built like its prior"
                raise UsageError(
                    f"the prior's policy has {name} {value}, and the model's {model_settings[name]}: {remedy}"
                )
        if env is None:
            return
        normalized: Any = unwrap_vec_normalize(env)
        if self.has_unknown_statistics:
            seen_alike = normalized is not None
        else:
            seen_alike = np.array_equal(self.statistics, normalization_statistics(normalized))
        if not seen_alike:
            what = "the environment normalizes observations otherwise than the prior's training did"
            remedy = "with that training's file; norm_obs=False, if it had none"
            raise UsageError(f"{what}: wrap it in VecNormalize.load(FILE, env), {remedy}")


def build_settings(policy: ActorCriticPolicy) -> dict[str, str]:
    """Return the settings of a policy that its tensors do not show, in words."""
    settings = {"class": type(policy)} | {name: getattr(policy, name, None) for name in BUILD_SETTINGS}
    return {name: getattr(value, "__name__", str(value)) for name, value in settings.items()}


def without_critic(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(CRITICS)}


def normalization_statistics(normalized: VecNormalize | None) -> Any:
    """Return all numbers that normalize observations in one array, or None where none do."""
    if normalized is None or not normalized.norm_obs:
        return None
    statistics = normalized.obs_rms
    parts = statistics.values() if isinstance(statistics, dict) else [statistics]
    numbers = [np.ravel(array) for part in parts for array in (part.mean, part.var)]
    return np.concatenate([*numbers, [normalized.clip_obs, normalized.epsilon]])


class ModelPrior(HostPrior):
    """A policy of Stable-Baselines3 that is built like the model's own, and gets the same observations."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def distribution(self, observations: Any) -> Any:
        return self.policy.get_distribution(observations)

    def act(self, observations: Any, sample: bool) -> tuple[Tensor, Tensor]:
        if sample and self.policy.use_sde:  # without this, all environments would share one noise
            rows = next(iter(observations.values())) if isinstance(observations, dict) else observations
            self.policy.reset_noise(len(rows))
        return super().act(observations, sample)

    def score_batch(self, observations: Any, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        is_discrete = isinstance(self.policy.action_space, spaces.Discrete)
        return super().score_batch(observations, actions.long().flatten() if is_discrete else actions.float())


def read(prior: Any) -> Any:
    """Open a prior of the settings. A model of Stable-Baselines3 becomes its weights."""
    if prior is None or isinstance(prior, ActorWeights | ModelPrior | FlatPrior | OpenedPolicy):
        return prior
    policy = prior.policy if isinstance(prior, BaseAlgorithm) else prior
    if isinstance(policy, ActorCriticPolicy) and not hasattr(policy, "lstm_actor"):
        return ActorWeights.of(policy, prior if isinstance(prior, BaseAlgorithm) else None)
    try:
        return open_prior(prior)
    except CannotCopyError as error:
        raise CannotCopyError(f"{error}; if PPO trained it, its model is a prior, too: prior=PPO.load(FILE)") from None


def prior_files(prior: Any, density: Density | None) -> list[tuple[str, bytes]]:
    """Return names and contents of the files that hold a prior and the density of its states.

    A prior that runs as it is must be named again at loading. Its tensors, such as a file's hash, then identify it.
    """
    found = [] if density is None else [(DENSITY_FILE, safetensors.torch.save(density.to("cpu").tensors()))]
    if isinstance(prior, FlatPrior) and isinstance(prior.prior, Policy):
        return [*found, (POLICY_FILE, policy_bytes(copy.deepcopy(prior.prior).cpu(), {}))]
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in prior_tensors(prior).items()}
    name = ACTOR_FILE if isinstance(prior, ModelPrior) else TENSORS_FILE
    return [*found, (name, safetensors.torch.save(tensors))] if tensors else found


def prior_tensors(prior: Any) -> Mapping[str, Tensor]:
    """Return the tensors of a prior; none of a user's object that is no module."""
    if isinstance(prior, ActorWeights):
        return prior
    if isinstance(prior, ModelPrior):
        return without_critic(prior.policy.state_dict())
    module: Any = unwrap_prior(prior) if isinstance(prior, FlatPrior | OpenedPolicy) else prior
    return module.state_dict() if isinstance(module, nn.Module) else {}


class SavedModel(NamedTuple):
    """What is ours in a saved model; empty for Stable-Baselines3's own PPO."""

    prior: Policy | ActorWeights | None = None
    prior_name: object = None
    density: Density | None = None
    tensors: Mapping[str, Tensor] = {}
    steered_by: str | None = None  # of `BUDGETS`
    position: dict[str, Any] | None = None  # the method's state


def read_saved(path: Any) -> SavedModel:
    """Read what is ours in a saved model. A file that is no zip has none; loading it raises later."""
    file = open_path(path, "r", verbose=0, suffix="zip")
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            prior: Policy | ActorWeights | None = None
            if ACTOR_FILE in names:
                prior = ActorWeights(without_critic(safetensors.torch.load(archive.read(ACTOR_FILE))))
            elif POLICY_FILE in names:
                prior = read_saved_policy(Path(POLICY_FILE), archive.read(POLICY_FILE)).policy
            states = safetensors.torch.load(archive.read(DENSITY_FILE)) if DENSITY_FILE in names else None
            density = None if states is None else Density.from_tensors(states)
            tensors = (
                safetensors.torch.load(archive.read(TENSORS_FILE)) if TENSORS_FILE in names else prior_tensors(prior)
            )
            data = json.loads(archive.read("data"))
            steered_by = next((name for name in BUDGETS if data.get(name)), None)
            return SavedModel(prior, data.get("prior_name"), density, tensors, steered_by, data.get("position"))
    except zipfile.BadZipFile:
        return SavedModel()
    finally:
        file.close() if isinstance(path, str | Path) else file.seek(0)
