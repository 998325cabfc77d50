"""What all trainers share. Each derives from `ObjectiveMixin`, and its settings from `ObjectiveSettings`.

A checkpoint stores the objective and the prior's checksum. A run with another objective or prior cannot resume it.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import TrainerCallback

from repolicy.errors import UsageError
from repolicy.files import read_json, write_json
from repolicy.llm.requirements import (
    require_columns,
    require_no_adapter_inside,
    require_one_adapter,
    require_positive_alpha,
    require_prior_when_off,
    require_same_vocabulary,
    require_same_weights,
    require_saved_path,
    require_settings,
    require_tokens,
)
from repolicy.objective import Objective
from repolicy.objective_names import check_supported, resolve_objective
from repolicy.text import with_minus

IDENTITY = "repolicy.json"  # the file beside a model that describes its training
PAPER = {"title": "Residual Policy Gradient: A Reward View of KL-regularized Objective", "id": "2503.11019"}
STORED_AS = "Remembered"  # the name of a `Memory` in a trainer's state


@dataclass
class ObjectiveSettings:
    """Settings that all trainers have.

    omega: weight of the prior's log-probability; ω′ in the paper.
    alpha: weight of the policy's own −log-probability; α̂ in the paper.

    Without a GPU, `use_cpu` is on, and `bf16` is off unless it is set.
    """

    omega: float | None = field(default=None, metadata={"help": "Weight of the prior's log-probability."})
    alpha: float | None = field(default=None, metadata={"help": "Weight of the policy's entropy."})

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise every process of torchrun would have rank 0
            self.bf16 = bool(getattr(self, "bf16", False))
        super().__post_init__()  # type: ignore[misc]  # TRL's


@dataclass
class PreferenceSettings(ObjectiveSettings):
    """Settings of the trainers whose TRL parent has `beta`, which omega and alpha replace."""

    beta: float | None = field(default=None, metadata={"help": "Leave it out: omega and alpha stand in its place."})


class Memory(TrainerCallback):  # type: ignore[misc]
    """Numbers that checkpoints store: `fixed` must be equal in a resumed run, `values` are restored.

    It writes into the part of the trainer's state where transformers stores callbacks. It is none that transformers
    would store: those are restored only on request, and then as new objects.
    """

    def __init__(
        self, fixed: dict[str, Any], values: dict[str, float], before_first_step: Callable[[], None] = lambda: None
    ) -> None:
        self.fixed, self.values, self._before_first_step = fixed, values, before_first_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if STORED_AS in state.stateful_callbacks:
            self._resume(**state.stateful_callbacks[STORED_AS]["args"])
        self._before_first_step()

    def _resume(self, fixed: dict[str, Any], values: dict[str, float]) -> None:
        """Restore the values of a checkpoint; raise if its fixed entries differ from those of this run."""
        for name, value in self.fixed.items():
            stored = fixed.get(name)
            if stored != value:
                remedy = "resume it with the same objective and prior, or start a new run in another folder"
                raise UsageError(f"the checkpoint was trained with {name} {stored}, and this run has {value}; {remedy}")
        self.values.update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the values of the best checkpoint, where its weights were loaded."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = Path(state.best_model_checkpoint) / "trainer_state.json"
            if best.is_file():  # else transformers warned, and kept the last weights
                self.values.update(read_json(best)["stateful_callbacks"][STORED_AS]["args"]["values"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.stateful_callbacks[STORED_AS] = {"args": {"fixed": self.fixed, "values": dict(self.values)}}


def turn_off_dropout(*models: Any) -> None:
    """Set shares of dropout that modules hold as a number to 0: TRL's `disable_dropout` finds only `nn.Dropout`."""
    for module in [module for model in models if model is not None for module in model.modules()]:
        held = vars(module)
        held.update({name: 0.0 for name in held if "drop" in name and isinstance(held[name], float)})


@torch.no_grad()
def checksum(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return the sha256 of a model's weights in order; of a PEFT model, without the weights that are trained.

    The checksum does not depend on the dtype: bfloat16 weights that were loaded as float32 have the same one. With a
    `dtype`, weights are rounded to it first.
    """
    digest, is_peft = hashlib.sha256(), isinstance(model, PeftModel)
    skip_ref = is_peft and is_ref_adapter_unused(model)
    for name, parameter in model.named_parameters():
        if is_peft and (parameter.requires_grad or (skip_ref and ".ref." in name)):
            continue
        weights = parameter.to(dtype or torch.float32).float() if parameter.is_floating_point() else parameter
        digest.update(f"{weights.dtype}{tuple(weights.shape)}".encode())
        digest.update(weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_ref_adapter_unused(model: PeftModel) -> bool:
    """Return whether TRL's copy `ref` of the initial adapter has no effect: its B matrices are 0, as in a new LoRA."""
    b_matrices = [parameter for name, parameter in model.named_parameters() if ".lora_B.ref." in name]
    return bool(b_matrices) and not any(matrix.any() for matrix in b_matrices)


def parts(*datasets: Any) -> list[Any]:
    """Return the datasets that are not None, and in place of a dictionary of datasets those in it."""
    flat = [part for each in datasets for part in (each.values() if isinstance(each, dict) else [each])]
    return [part for part in flat if part is not None]


class ObjectiveMixin:
    """Adds the objective and the prior's identity to a TRL trainer; comes before it in the list of bases."""

    SETTINGS_CLASS: type[Any]
    FIXED_SETTINGS: tuple[str, ...] = ()  # settings that a resumed run must have unchanged, besides the objective
    REQUIRED_COLUMNS: tuple[str, ...]  # of a dataset
    _paper = PAPER
    objective: Objective
    identity: dict[str, Any]  # content of the file `IDENTITY`
    memory: Memory
    model: Any
    ref_model: Any
    args: Any
    train_dataset: Any
    eval_dataset: Any
    _tokenizer: Any  # set by TRL

    def resolve_settings(self, objective: Objective | None, args: Any) -> Any:
        """Set the objective from the argument or from `args`; return a copy of the settings with its weights."""
        if args is not None and not isinstance(args, self.SETTINGS_CLASS):
            raise UsageError(f"args is a {type(args).__name__}; it must be a {self.SETTINGS_CLASS.__name__}")
        args = self.SETTINGS_CLASS() if args is None else copy(args)
        objective = resolve_objective(objective, args.omega, args.alpha)
        if objective.reads_basic:
            raise UsageError(f"an objective on {objective.task!r} reads a basic reward, and a language model has none")
        self.objective = check_supported(objective, "a language model's trainer")
        args.omega, args.alpha = self.objective.omega, self.objective.alpha
        return args

    def check_inputs(self, model: Any, *datasets: Any) -> None:
        """Raise if the model has adapters that TRL would mix up, or if a dataset lacks something."""
        require_one_adapter(model)
        for part in parts(*datasets):
            self.check_rows(part)

    def check_rows(self, dataset: Any) -> None:
        """Raise if a dataset lacks a required column, or if a text in it is null."""
        require_columns(dataset, self.REQUIRED_COLUMNS)

    def record_identity(self, reference_given: bool) -> None:
        """Check the model, then set the run's identity and callbacks; called when the model still equals the prior."""
        require_no_adapter_inside(self.model)
        for part in parts(self.train_dataset, self.eval_dataset):
            require_tokens(part, self._tokenizer)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise UsageError("no weight of the model is trained; an adapter must be loaded with is_trainable=True")
        if self.model.config.is_encoder_decoder:
            raise UsageError(f"the model is an encoder-decoder ({self.model.config.model_type}), and no causal model")
        if self.args.disable_dropout:
            turn_off_dropout(self.model, self.ref_model)
        prior, reads_prior = self.model, self.objective.reads_prior
        if self.ref_model is not None:
            prior = self.accelerator.unwrap_model(self.ref_model, keep_torch_compile=False)  # type: ignore[attr-defined]
            if not reference_given and not self.is_sharded:
                require_same_weights(self.model, prior)
            require_same_vocabulary(prior.config, self.model.config, "the model")
        elif isinstance(self.model, PeftModel):
            require_prior_when_off(self.model)
            if not getattr(self.args, "precompute_ref_log_probs", False):
                require_settings(self.args, {"neftune_noise_alpha": (None, "the prior would get the noise, too")})
        prior_name = getattr(prior.config, "_name_or_path", "") or "a model built in memory"
        if "ref" in getattr(prior, "peft_config", {}) and not is_ref_adapter_unused(prior):
            prior_name += " with the adapter that training went on from"
        # Packed weights are other numbers than those of the model that they stand for.
        is_whole = not self.is_sharded and not getattr(prior, "is_quantized", False)
        self.identity = {
            "omega": self.objective.omega,
            "alpha": self.objective.alpha,
            "prior": prior_name if reads_prior else None,
            "prior_checksum": checksum(prior) if reads_prior and is_whole else None,
            "method": type(self).__name__,
        }
        if getattr(self.args, "chat_template_kwargs", None):
            self.identity["chat_template_kwargs"] = self.args.chat_template_kwargs
        fixed = {name: self.identity[name] for name in ("omega", "alpha", "prior_checksum")}
        fixed |= {name: getattr(self.args, name) for name in self.FIXED_SETTINGS}
        self.memory = Memory(fixed, {}, self.before_first_step)
        self.add_callback(self.memory)  # type: ignore[attr-defined]  # of transformers

    @property
    def _name(self) -> str:
        """The method's name, on the card that TRL writes beside the model."""
        return type(self).__name__

    @property
    def metrics(self) -> Any:
        """Lists of numbers by name, whose means TRL logs."""
        return self._metrics["train" if self.model.training else "eval"]  # type: ignore[attr-defined]  # of TRL

    @property
    def is_sharded(self) -> bool:
        """Whether each rank may hold a part of the weights only, so that all must compute together."""
        return bool(getattr(self, "is_deepspeed_enabled", False) or getattr(self, "is_fsdp_enabled", False))

    @property
    def trained_omega(self) -> float:
        """The omega for which the present weights were trained."""
        return self.objective.omega

    def before_first_step(self) -> None:
        """Run checks that need the loaded model and data. A subclass may override it; the default does nothing."""

    def dry_run(self) -> dict[str, float]:
        """Return metrics, loss and gradient norm of the first training step; print them once; then restore all state.

        With a budget, the prior's own responses are sampled first, as in a run. Loss and gradient are of all ranks.
        """
        trainer: Any = self
        if trainer.is_deepspeed_enabled:
            raise UsageError("DeepSpeed begins with the training: make the dry run without it")
        with _state_preserved(trainer), trainer.accelerator.autocast():  # a step has its forward pass in autocast
            trainer.before_first_step()
            if trainer.args.gradient_checkpointing:
                trainer.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)
            steps = trainer.args.gradient_accumulation_steps
            trainer.current_gradient_accumulation_steps = steps
            batches, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), steps, trainer.args.device)
            loss = 0.0
            for number, batch in enumerate(batches, 1):
                trainer.accelerator.sync_gradients = number == len(batches)  # as in a run: whether the step ends here
                loss += trainer.training_step(trainer.model, batch, items).item()
            scale = 1.0 if trainer.accelerator.scaler is None else trainer.accelerator.scaler.get_scale()  # of fp16
            mean = partial(trainer.accelerator.reduce, reduction="mean")  # over ranks
            norms = [mean(p.grad.float()).norm() / scale for p in trainer.model.parameters() if p.grad is not None]
            loss = mean(torch.tensor(loss, device=trainer.accelerator.device)).item()
            logged = trainer._metrics["train"]
            metrics = {name: float(np.mean(logged[name])) for name in logged if logged[name] and name != "step_time"}
            metrics |= {"loss": loss, "gradient_norm": torch.stack(norms).norm().item()}
        if trainer.accelerator.is_main_process:
            print("\n".join(f"{name:48s} {with_minus(f'{value:.6g}')}" for name, value in metrics.items()))
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does, and write its identity to `repolicy.json` in the same folder.

        Under FSDP it is saved whole, also where checkpoints are sharded: transformers then would save nothing.
        """
        fsdp: Any = getattr(self.accelerator.state, "fsdp_plugin", None)  # type: ignore[attr-defined]  # of transformers
        writes_shards = fsdp is not None and "SHARDED" in str(fsdp.state_dict_type) and not _internal_call
        if writes_shards:
            fsdp.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]  # of transformers
        if writes_shards:
            fsdp.set_state_dict_type("SHARDED_STATE_DICT")
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save and folder.is_dir():
            write_json(folder / IDENTITY, self.identity | {"omega": self.trained_omega})


class ReferenceMixin(ObjectiveMixin):
    """Base of the preference trainers, whose prior is the reference model of TRL's trainer."""

    REQUIRED_SETTINGS: dict[str, tuple[Any, str]]  # setting -> (required value, reason)
    STORED: tuple[str, ...]  # names of the inputs that hold precomputed log-probabilities of the reference

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
        args = self.resolve_settings(objective, args)
        require_positive_alpha(self.objective, "the loss is a function of alpha · log policy")
        if args.beta not in (None, self.objective.alpha):
            raise UsageError(f"beta is {args.beta}; omega and alpha replace it here, so leave it out")
        args.beta = self.objective.alpha
        require_settings(args, self.REQUIRED_SETTINGS)
        self.check_inputs(model, train_dataset, others.get("eval_dataset"))
        reads_prior = self.objective.reads_prior
        if not reads_prior:
            ref_model = None
            args.precompute_ref_log_probs = True  # TRL then loads no reference; `_precompute_ref_logps` does nothing
        elif ref_model is None and others.get("peft_config") is None and not args.precompute_ref_log_probs:
            require_saved_path(model, type(self).__name__)
        super().__init__(model, ref_model, args, train_dataset=train_dataset, **others)  # type: ignore[call-arg]
        if any(hasattr(part, "__len__") and not len(part) for part in parts(self.train_dataset, self.eval_dataset)):
            problem = f"no prompt is shorter than max_length, which is {args.max_length}, and TRL leaves out all others"
            raise UsageError(f"{problem}: raise max_length, or shorten the prompts")
        self.precompute_ref_logps = args.precompute_ref_log_probs and reads_prior
        self.record_identity(reference_given=ref_model is not None)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Add reference log-probabilities to a dataset as TRL does, unless the objective has no prior."""
        if not self.objective.reads_prior:
            return dataset
        return super()._precompute_ref_logps(dataset, name, batch_size)  # type: ignore[misc]  # of TRL

    def log_prior(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Return log prior of responses, one `[B]` for each name in STORED: precomputed, or as TRL computes it.

        Without a reference model, TRL turns the adapter off.
        """
        if self.precompute_ref_logps:
            return [inputs[name] for name in self.STORED]
        prior = model if self.ref_model is None else self.ref_model
        return self.compute_ref_log_probs(prior, inputs)  # type: ignore[attr-defined]


@contextmanager
def _state_preserved(trainer: Any) -> Iterator[None]:
    """Restore everything that a batch changes in a trainer: gradients, counters, logs, and all random streams."""
    names = (
        "_metrics", "_step", "_buffered_inputs", "_total_train_tokens", "_logs", "_sums", "_rewards",
        "_current_train_step_time",
    )  # fmt: skip
    attributes = {name: deepcopy(getattr(trainer, name)) for name in names if hasattr(trainer, name)}
    memory_values, is_training = dict(trainer.memory.values), trainer.model.training
    python_rng, numpy_rng = random.getstate(), np.random.get_state()
    tokens = trainer.state.num_input_tokens_seen
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_rng)
        np.random.set_state(numpy_rng)
        trainer.state.num_input_tokens_seen = tokens
        for name, value in attributes.items():
            setattr(trainer, name, value)
        trainer.memory.values.clear()
        trainer.memory.values.update(memory_values)
        trainer.model.zero_grad(set_to_none=True)
        trainer.model.train(is_training)
        if trainer.args.gradient_checkpointing:
            trainer.model.gradient_checkpointing_disable()
