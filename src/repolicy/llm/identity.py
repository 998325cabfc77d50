"""What a run is: its objective and its prior, beside its weights, and in its checkpoints; and what must hold before it.

Every trainer here is `WithObjective` and its settings are `ObjectiveSettings`. A checkpoint holds the objective and the
prior's checksum, and to resume it with others is refused.
"""

import hashlib
import json
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from repolicy.errors import UsageError, check_counts
from repolicy.llm.rloo import prompt_ids
from repolicy.objective import Objective
from repolicy.objective_names import given_objective, plain

BESIDE_THE_BASE = (True, False, "gaussian", "orthogonal", "eva")  # `init_lora_weights` that leave the base as it is
MOVING_PRIOR = (False, "the prior must stay what it is; with True it follows the policy")


@dataclass
class ObjectiveSettings:
    """What is in the settings of all trainers here.

    omega: weight of the prior's log-probability; ω′ in the paper.
    alpha: weight of the policy's own −log-probability; α̂ in the paper.

    Without a GPU, `use_cpu` is on, and `bf16` is off unless it is set.
    """

    omega: float | None = field(default=None, metadata={"help": "Weight of the prior's log-probability."})
    alpha: float | None = field(default=None, metadata={"help": "Weight of the policy's entropy."})

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # without which every process of torchrun would take itself for the first
            self.bf16 = bool(getattr(self, "bf16", False))
        super().__post_init__()  # type: ignore[misc]  # TRL's


@dataclass
class PreferenceSettings(ObjectiveSettings):
    """The same where TRL has `beta`."""

    beta: float | None = field(default=None, metadata={"help": "Leave it out: omega and alpha stand in its place."})


class Remembered(TrainerCallback, ExportableState):  # type: ignore[misc]
    """What a checkpoint holds beside weights: `fixed` must be the same when it is resumed, `values` come back.

    As a callback it is saved with the trainer's state. transformers restores callbacks only on request, and then as
    new objects, so the state is read here.
    """

    def __init__(self, fixed: dict[str, Any] | None = None, values: dict[str, float] | None = None) -> None:
        self.fixed, self.values = fixed or {}, values or {}

    def state(self) -> dict[str, Any]:
        return {"args": {"fixed": dict(self.fixed), "values": dict(self.values)}, "attributes": {}}

    def resume(self, state: Any) -> None:
        """Compare with what the state came with, and take its values over."""
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if not isinstance(saved, dict):
            return
        for name, now in self.fixed.items():
            before = saved["args"]["fixed"].get(name)
            if before != now:
                remedy = "resume it with the same objective and prior, or start a new run in another folder"
                raise UsageError(f"the checkpoint was trained with {name} {before}, and this run has {now}; {remedy}")
        self.values.update(saved["args"]["values"])


class WithObjective:
    """Before TRL's trainer in the list of bases: the objective and the prior beside the weights and in checkpoints."""

    SETTINGS: type[Any]  # the class of its settings
    FIXED: tuple[str, ...] = ()  # settings besides the objective that a run keeps when it is resumed
    COLUMNS: tuple[str, ...]  # of a dataset
    objective: Objective
    identity: dict[str, Any]  # what `repolicy.json` says
    memory: Remembered
    model: Any
    ref_model: Any
    args: Any

    def settled(self, objective: Objective | None, args: Any) -> Any:
        """Take the objective from where it was given; returns the trainer's own copy of the settings."""
        if args is not None and not isinstance(args, self.SETTINGS):
            raise UsageError(f"args is a {type(args).__name__}; it must be a {self.SETTINGS.__name__}, which has more")
        args = self.SETTINGS() if args is None else copy(args)  # those of the caller can serve another run
        objective = given_objective(objective, args.omega, args.alpha)
        if objective.reads_basic:
            raise UsageError(f"an objective on {objective.task!r} reads a basic reward, and a language model has none")
        self.objective = plain(objective, "a language model's trainer")
        args.omega, args.alpha = self.objective.omega, self.objective.alpha
        return args

    def check_datasets(self, train: Any, evaluation: Any) -> None:
        """Raise where there is nothing to train on, or one of the two has not what the trainer needs."""
        self.check_rows(train)
        if evaluation is not None:
            self.check_rows(evaluation)

    def check_rows(self, dataset: Any) -> None:
        """Raise where a dataset is missing, or lacks a column that the trainer needs."""
        if dataset is None:
            raise UsageError("there is no training dataset")
        for name, part in datasets_in(dataset).items():
            if not hasattr(part, "column_names"):
                kind = type(part).__name__
                raise UsageError(f"the dataset is a {kind}; of a list of rows, datasets.Dataset.from_list makes one")
            columns = columns_of(part)
            if missing := [column for column in self.COLUMNS if column not in columns]:
                where = f"the dataset {name!r}" if name else "the dataset"
                raise UsageError(f"{where} has no column {', '.join(missing)}, and there is {columns}")

    def introduce(self, reference_given: bool) -> None:
        """Tell what the run is; called after TRL's own `__init__`, while the model still is the prior."""
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise UsageError("no weight of the model is trained; an adapter must be loaded with is_trainable=True")
        require_no_adapter_inside(self.model)
        sharded = getattr(self, "is_deepspeed_enabled", False) or getattr(self, "is_fsdp_enabled", False)
        if self.ref_model is not None and not reference_given and not sharded:
            require_same_weights(self.model, self.ref_model)
        stored = getattr(self.args, "precompute_ref_log_probs", False)
        if self.ref_model is None and isinstance(self.model, PeftModel):
            require_prior_when_off(self.model)
        if self.ref_model is None and isinstance(self.model, PeftModel) and not stored:
            require_settings(self.args, {"neftune_noise_alpha": (None, "the prior would get the noise, too")})
        prior = self.model if self.ref_model is None else self.ref_model
        reads = self.objective.reads_prior
        name = getattr(prior.config, "_name_or_path", "") or "a model built in memory"
        if "ref" in getattr(prior, "peft_config", {}) and not copied_as_new(prior):
            name += " with the adapter that training went on from"
        self.identity = {
            "omega": self.objective.omega,
            "alpha": self.objective.alpha,
            "prior": name if reads else None,
            "prior_checksum": checksum(prior) if reads and not sharded else None,
            "method": type(self).__name__,
        }
        fixed = {name: self.identity[name] for name in ("omega", "alpha", "prior_checksum")}
        self.memory = Remembered(fixed | {name: getattr(self.args, name) for name in self.FIXED})
        self.add_callback(self.memory)  # type: ignore[attr-defined]  # transformers'
        self.add_callback(_Resume(self))  # type: ignore[attr-defined]

    @property
    def metrics(self) -> Any:
        """Lists of numbers by name, which TRL logs as means."""
        return self._metrics["train" if self.model.training else "eval"]  # type: ignore[attr-defined]  # TRL's

    @property
    def trained_omega(self) -> float:
        """Return the omega that the weights, as they are, were trained for."""
        return self.objective.omega

    def look_before_the_first_step(self) -> None:
        """Check or warn, when all is loaded; by default nothing."""

    def dry_run(self) -> dict[str, float]:
        """Print what one batch of training would log, and take no step: `before.dry_run`."""
        from repolicy.llm.before import dry_run

        return dry_run(self)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as transformers does, and beside the weights what they were trained for."""
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]  # transformers'
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save and folder.is_dir():
            identity = self.identity | {"omega": self.trained_omega}
            (folder / "repolicy.json").write_text(json.dumps(identity) + "\n")


class WithReference(WithObjective):
    """Of the trainers whose prior is TRL's reference, which they ask for whole responses."""

    NEEDED: dict[str, tuple[Any, str]]  # settings at any other value of which the objective would be another

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        *,
        objective: Objective | None = None,
        **others: Any,
    ) -> None:
        args = self.settled(objective, args)
        require_positive_alpha(self.objective, "the loss is a function of alpha · log policy")
        if args.beta not in (None, self.objective.alpha):
            raise UsageError(f"beta is {args.beta}; here omega and alpha stand in its place, so leave it out")
        args.beta = self.objective.alpha
        require_settings(args, self.NEEDED)
        self.check_datasets(train_dataset, others.get("eval_dataset"))
        reads = self.objective.reads_prior
        ref_model = ref_model if reads else None
        if not reads:
            args.precompute_ref_log_probs = True  # so that TRL loads none; and it computes none, below
        elif ref_model is None and others.get("peft_config") is None and not args.precompute_ref_log_probs:
            require_saved_path(model, type(self).__name__)
        super().__init__(model, ref_model, args, train_dataset=train_dataset, **others)  # type: ignore[call-arg]
        self.precompute_ref_logps = args.precompute_ref_log_probs and reads
        self.introduce(reference_given=ref_model is not None)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Compute them as TRL does, and none where the objective never asks the prior."""
        if not self.objective.reads_prior:
            return dataset
        return super()._precompute_ref_logps(dataset, name, batch_size)  # type: ignore[misc]  # TRL's

    def reference_log_probs(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Log prior as TRL computes it; without a reference model it is the model with its adapter off."""
        return self.compute_ref_log_probs(self.ref_model or model, inputs)  # type: ignore[attr-defined]


class _Resume(TrainerCallback):  # type: ignore[misc]
    """Resumes before the first step, when the state of a resumed checkpoint has been read."""

    def __init__(self, trainer: WithObjective) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        memory = self.trainer.memory
        memory.resume(state)
        for callback in self.trainer.callback_handler.callbacks:  # type: ignore[attr-defined]  # transformers'
            if type(callback) is Remembered:  # transformers may have put a new one in its place
                callback.fixed, callback.values = memory.fixed, memory.values
        self.trainer.look_before_the_first_step()


@torch.no_grad()
def checksum(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return the sha256 of a model's weights, in their order. Of a PEFT model, those that its adapter leaves alone.

    Weights count as numbers: of a file in bfloat16 they have the same checksum loaded as such or in float32. With a
    `dtype` they count as rounded to it.
    """
    digest, peft = hashlib.sha256(), isinstance(model, PeftModel)
    new = peft and copied_as_new(model)
    for name, parameter in model.named_parameters():
        if peft and (parameter.requires_grad or (new and ".ref." in name)):
            continue
        weights = parameter.to(dtype or torch.float32).float() if parameter.is_floating_point() else parameter
        digest.update(f"{weights.dtype}{tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def copied_as_new(model: PeftModel) -> bool:
    """Say whether TRL's copy of an adapter that was given changes nothing of the model: its B is 0, as of a new one."""
    copied = [parameter for name, parameter in model.named_parameters() if ".lora_B.ref." in name]
    return bool(copied) and not any(parameter.any() for parameter in copied)


@torch.no_grad()
def require_same_weights(model: Any, reference: Any) -> None:
    """Refuse a model that is not what lies at its path: a reference loaded from there would be another prior."""
    loaded = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        other = loaded.get(name)
        same = other is not None and other.shape == parameter.shape and torch.equal(other.to(parameter), parameter)
        if not same:
            changed = f"{name} is not what {reference.config._name_or_path} has"
            remedy = "save_pretrained it and load it from there, or give the prior (ref_model or peft_config)"
            raise UsageError(f"the model was changed after it was loaded ({changed}): {remedy}")


# What must hold before a trainer starts, and the sentence that says so when it does not -------------------------------


def check_sampling_counts(seed: int, **counts: int) -> None:
    """Raise where a count is below 1, or the seed is not between 0 and 2³¹ − 1."""
    if not 0 <= seed < 2**31:
        raise UsageError(f"seed is {seed}; it must lie between 0 and {2**31 - 1}")
    check_counts(**counts)


def require_no_adapter_inside(model: Any) -> None:
    """Raise where a model has taken in an adapter when it was loaded, with which it would be turned off."""
    if getattr(model, "_hf_peft_config_loaded", False):
        remedy = "merge_and_unload the adapter, or load it on its base with PeftModel.from_pretrained"
        raise UsageError(f"the model came from an adapter's folder, and with adapters off it is no longer it: {remedy}")


def require_prior_when_off(model: PeftModel) -> None:
    """Raise where a PEFT model with its adapters off is not what it was before it had them, or will not stay it."""
    off = "with PEFT the prior is the model with its adapter off"
    for config in model.peft_config.values():
        begin = getattr(config, "init_lora_weights", True)
        if (begin.lower() if isinstance(begin, str) else begin) not in BESIDE_THE_BASE:
            known = ", ".join(map(repr, BESIDE_THE_BASE))
            moved = f"init_lora_weights is {begin!r}, which may move a part of the model's weights into the adapter"
            raise UsageError(f"{moved}, and {off}: set it to one of {known}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not model.peft_config.keys() & set(name.split(".")):
            trained = f"{name} is trained and belongs to no adapter, so that it is not turned off"
            raise UsageError(f"{trained}, and {off}: set bias='none' in the peft_config, and unfreeze nothing else")


def require_settings(args: Any, needed: dict[str, tuple[Any, str]]) -> None:
    """Raise where a setting has not the value it needs, with the reason: the objective would be another."""
    for name, (value, why) in needed.items():
        if getattr(args, name) != value:
            raise UsageError(f"{name} is {getattr(args, name)!r}; it must be {value!r}, because {why}")


def require_enough_prompts(dataset: Any, args: Any) -> None:
    """Raise where prompts do not fill a batch: TRL drops them, and would train no step at all, and succeed."""
    wanted = args.generation_batch_size // args.num_generations
    if hasattr(dataset, "__len__") and not isinstance(dataset, dict) and len(dataset) < wanted:
        remedy = "make the batch smaller, num_generations larger, or give more prompts"
        raise UsageError(f"the dataset has {len(dataset)} prompts, and each generation takes {wanted}: {remedy}")


def require_first_tokens(dataset: Any, tokenizer: Any) -> None:
    """Raise where a prompt has no token."""
    if dataset is not None and "" in _column(dataset, "prompt"):
        prompt_ids(tokenizer, "")


def require_positive_alpha(objective: Objective, why: str) -> None:
    """Raise where alpha is 0, which it must not be because `why`."""
    if objective.alpha <= 0:
        raise UsageError(f"alpha is {objective.alpha}; it must be greater than 0, because {why}")


def datasets_in(dataset: Any) -> dict[str, Any]:
    """Return datasets by name; a single one has none."""
    return dataset if isinstance(dataset, dict) else {"": dataset}


def columns_of(dataset: Any) -> list[str]:
    """Return the names of the columns, which a streamed dataset may tell only by its first row."""
    return list(dataset.column_names or next(iter(dataset)))


def _column(dataset: Any, name: str) -> Iterator[Any]:
    """Return a column of all datasets; of one that is streamed, its first row alone."""
    for part in datasets_in(dataset).values():
        yield from part[name] if hasattr(part, "__getitem__") else [next(iter(part))[name]]


def require_labels(dataset: Any) -> None:
    """Raise where a label is not 0 or 1, true or false."""
    for value in _column(dataset, "label"):
        if value not in (0, 1):
            raise UsageError(f"a label is {value!r}; every label must be 0 or 1 (false or true)")


def require_saved_path(model: Any, what: str) -> None:
    """Raise where the model did not come from a place, from which TRL would load its reference."""
    if isinstance(model, str) or "peft" in type(model).__module__:
        return
    if not getattr(model.config, "_name_or_path", ""):
        built = "loads its reference from the model's own path, and this model was built in memory"
        raise UsageError(f"{what} {built}: save_pretrained it first and load it from there")
