"""HuggingFace's Trainer on a sharded model.

    from paramshard.torch.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        pass

    trainer = Trainer(model=model, args=arguments, train_dataset=data, sharded=sharded)
    trainer.train()
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import tempfile
import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers.trainer_callback import ExportableState, TrainerState

import paramshard
from paramshard.torch.messages import some
from paramshard.torch.optimizer import ShardedOptimizer
from paramshard.torch.optimizers import AdamW
from paramshard.torch.peft_adapters import has_adapters
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.sharded_model import ShardedModel
from paramshard.torch.tracked_state import RandomState, Schedule

_STATE_FILE = "trainer_state.json"  # in each of Trainer's checkpoints
_ADAMW = ("adamw_torch", "adamw_torch_fused")  # values of TrainingArguments.optim
_ADAMW_OPTIONS = ("lr", "betas", "eps", "weight_decay", "fused", "foreach", "capturable")

# Fields of TrainingArguments that would do nothing or harm, and what to do instead. docs/train/pytorch.md lists all
# fields.
REFUSED_ARGUMENTS = {
    "auto_find_batch_size": "it begins the loop anew after steps that the daemon has made; set "
                            "per_device_train_batch_size",
    "bf16_full_eval": "it converts the model, whose parameters the daemon has; give shard() param_dtype=torch.bfloat16",
    "ddp_broadcast_buffers": "every rank has buffers of its own",
    "debug": "it reads parameters where they are not gathered",
    "deepspeed": "the daemon shards the model",
    "fp16": "it has a GradScaler, which is not needed here; set bf16",
    "fp16_full_eval": "it converts the model, whose parameters the daemon has; give shard() param_dtype=torch.float16",
    "fsdp": "the daemon shards the model",
    "liger_kernel_config": "give the model its kernels before shard()",
    "parallelism_config": "tensor, context and sequence parallelism beside a sharded model are not supported",
    "use_liger_kernel": "give the model its kernels before shard()",
}


def _check_arguments(arguments: Any) -> None:
    for name, why in REFUSED_ARGUMENTS.items():
        value = getattr(arguments, name, None)
        if value:
            raise paramshard.UnimplementedError(f"Trainer: {name}={value}: {why}")


class _Progress:
    """Progress of a training by Trainer: its counters, schedule and generators. Recorded with every step.

    It is read when the daemon is told to step. Trainer counts that step and moves its schedule on afterwards, so the
    recorded state is one step ahead of the state that was read.
    """

    def __init__(self, trainer: TrainerMixin):
        self._trainer = weakref.proxy(trainer)
        self._random = RandomState()
        self.trainings = 0  # calls of train()
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        # The log grows with the training, but the record must not.
        trainer = self._trainer
        callbacks = [each for each in (*trainer.callback_handler.callbacks, trainer.control)
                     if isinstance(each, ExportableState)]
        state = dataclasses.replace(trainer.state, global_step=trainer.state.global_step + 1, log_history=[],
                                    stateful_callbacks=callbacks)
        return {"state": json.dumps(dataclasses.asdict(state)), "training": self.trainings,
                "schedule": Schedule(trainer.lr_scheduler).state_dict(), "random": self._random.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state

    def restore_schedule(self, scheduler: LRScheduler) -> None:
        Schedule(scheduler).load_state_dict(self.restored["schedule"])
        if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
            return  # these move on with evaluations
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that no step was made before: it was, in another process
            scheduler.step()

    def restore_random_state(self) -> None:
        self._random.load_state_dict(self.restored["random"])


class TrainerMixin:
    """Put before Trainer. It makes the optimizer, clips in the daemon, and saves full values on the first rank.

    TrainingArguments set rates, betas, decay and clipping. If the daemon has the model from a training by Trainer, and
    `shard` resumes, `train` goes on after the last step, with its schedule, its batches and its generators. An
    interrupted evaluation or checkpoint is not made again, and the log begins anew.

    UnimplementedError for optimizers that are not of this package, and for arguments of `REFUSED_ARGUMENTS`. A checkpoint of
    Trainer has no moments: `resume_from_checkpoint` takes True, or a folder of the daemon's step, whose log goes on.
    """

    def __init__(self, *arguments: Any, sharded: ShardedModel, moments: str = "FP32", **options: Any):
        self.sharded = sharded
        self._moments = moments
        self._progress: _Progress | None = None
        training_arguments = options.get("args") or next(iter(arguments[1:2]), None)
        if training_arguments is not None:
            _check_arguments(training_arguments)
            if training_arguments.n_gpu > 1:
                training_arguments._n_gpu = 1  # else Trainer spreads the model over several GPUs
        if options.get("model_init") is not None:
            raise paramshard.UnimplementedError(
                "Trainer: model_init makes models that are not sharded: give Trainer the model that shard() was given")
        super().__init__(*arguments, **options)
        self._check_model()
        if self.optimizer is None:
            self._adamw_options()
        else:
            self._check_optimizer()

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # Accelerate casts and compiles, but must not wrap the model: the daemon averages gradients.
        self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            decays = set(self.get_decay_parameter_names(self.sharded.module))
            named = [(name, each) for name, each in self.sharded.module.named_parameters() if each.requires_grad]
            groups = [{"params": [each for name, each in named if (name in decays) == decayed],
                       "weight_decay": self.args.weight_decay if decayed else 0.0} for decayed in (True, False)]
            self.optimizer = AdamW([group for group in groups if group["params"]], moments=self._moments,
                                   max_grad_norm=self.args.max_grad_norm, **self._adamw_options())
        return self.optimizer

    # --- Checks ---

    def _check_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise paramshard.UnimplementedError(
                "Trainer: accelerate shards the model by FSDP or DeepSpeed, but the daemon does that: start the "
                "script by torchrun, or by accelerate without them")
        if self.args.device.type != self.sharded.device.type:
            raise paramshard.InvalidArgumentError(
                f"Trainer: want TrainingArguments for {self.sharded.device}, which the daemon serves, got "
                f"{self.args.device}: use_cpu says which")
        backwards = self.args.gradient_accumulation_steps
        if self.sharded.accumulate is not None and backwards > self.sharded.accumulate:
            raise paramshard.InvalidArgumentError(
                f"Trainer: gradient_accumulation_steps={backwards}: give shard() accumulate={backwards}, got "
                f"{self.sharded.accumulate}")
        others = [name for name, each in self.model.named_parameters()
                  if each.requires_grad and each.numel() and not isinstance(each, Placeholder)]
        if others:
            raise paramshard.InvalidArgumentError(
                f"Trainer: want a model whose parameters are all in {self.sharded.name}, got "
                f"{some(others)} that shard() was not given")

    def _adamw_options(self) -> dict[str, Any]:
        """Returns the options of AdamW that Trainer would have set."""
        if self.optimizer_cls_and_kwargs is not None:
            source = "optimizer_cls_and_kwargs"
            kind, options = self.optimizer_cls_and_kwargs
        else:
            source = f"optim={getattr(self.args.optim, 'value', self.args.optim)}"
            if source.removeprefix("optim=") not in _ADAMW:
                raise paramshard.UnimplementedError(
                    f"Trainer: {source}: want optim to be {' or '.join(_ADAMW)}, or optimizers=(one of paramshard.torch, "
                    'None); for moments in 8 or 16 bits give Trainer moments="FP8" or "BF16"')
            if self.args.optim_args:
                raise paramshard.UnimplementedError(
                    f"Trainer: {source} with optim_args={self.args.optim_args}: AdamW takes learning_rate, "
                    "weight_decay, adam_beta1, adam_beta2 and adam_epsilon of TrainingArguments, and no others")
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.sharded.module)
        if kind is not torch.optim.AdamW:
            raise paramshard.UnimplementedError(
                f"Trainer: {source} is {getattr(kind, '__name__', kind)}: want torch.optim.AdamW, or optimizers=(one of "
                "paramshard.torch, None)")
        other = [key for key, value in options.items() if key not in _ADAMW_OPTIONS and value]
        if other:
            raise paramshard.UnimplementedError(
                f"Trainer: {source} with {', '.join(other)}: the daemon's AdamW has none")
        return {key: options[key] for key in ("lr", "betas", "eps") if key in options}

    def _check_optimizer(self) -> None:
        """Refuses another optimizer that was given to Trainer, or that a subclass makes."""
        optimizer = _unwrapped(self.optimizer)
        if not isinstance(optimizer, ShardedOptimizer) or optimizer.sharded is not self.sharded:
            raise paramshard.UnimplementedError(
                f"Trainer: {type(optimizer).__name__} as optimizer: want none, or a paramshard.torch.AdamW, SGD, Lion "
                f"or Muon of {self.sharded.name}")
        ours, theirs = optimizer.max_grad_norm, self.args.max_grad_norm
        if ours not in (None, theirs):
            raise paramshard.InvalidArgumentError(
                f"Trainer: want one max_grad_norm, got {ours} of the optimizer and {theirs} of TrainingArguments")
        optimizer.max_grad_norm = theirs

    def create_scheduler(self, *arguments: Any, **options: Any) -> Any:
        scheduler = super().create_scheduler(*arguments, **options)
        if _unwrapped(getattr(scheduler, "optimizer", self.optimizer)) is not _unwrapped(self.optimizer):
            raise paramshard.InvalidArgumentError(
                f"Trainer: optimizers= with a {type(scheduler).__name__} of another optimizer: make both, an "
                "optimizer of paramshard.torch and a scheduler of it, or leave the scheduler to Trainer")
        return scheduler

    # --- Going on ---

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        if not self.sharded.is_open:
            self.create_optimizer()  # opens it, for an evaluation before `train`
        return super().evaluation_loop(*arguments, **options)

    def train(self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *arguments: Any,
              **options: Any) -> Any:
        self.create_optimizer()  # opens the model, whose state gives the step to go on from
        self._check_optimizer()
        if self._progress is None:
            self._progress = _Progress(self)
            self.sharded.track(trainer=self._progress)
        with tempfile.TemporaryDirectory() as folder:
            goes_on = self._write_checkpoint(pathlib.Path(folder), resume_from_checkpoint)
            return super().train(folder if goes_on else None, *arguments, **options)

    def _write_checkpoint(self, folder: pathlib.Path, asked: str | os.PathLike[str] | bool | None) -> bool:
        """Writes the checkpoint file by which Trainer goes on from the daemon's state. Returns False to begin."""
        progress = self._progress
        progress.trainings += 1
        restored = progress.restored if progress.trainings == 1 else None
        if restored is None:
            if asked:
                raise paramshard.UnimplementedError(
                    f"Trainer: resume_from_checkpoint={asked}: a checkpoint of Trainer has no moments; leave it out to "
                    'begin anew, from its weights by load_pretrained(), or go on with a model that the daemon has '
                    'trained or restored (existing="resume")')
            return False
        if restored["training"] != 1:
            raise paramshard.FailedPreconditionError(
                f"Trainer: {self.sharded.name} is in call {restored['training']} of train() of its program, and only "
                "the first call can be resumed: save_pretrained() its values, and begin anew")
        state = json.loads(restored["state"])
        if asked and not isinstance(asked, bool):
            state["log_history"] = self._log_of(pathlib.Path(asked), state["global_step"])
        (folder / _STATE_FILE).write_text(json.dumps(state))
        return True

    def _log_of(self, checkpoint: pathlib.Path, step: int) -> list[dict[str, float]]:
        saved = TrainerState.load_from_json(str(checkpoint / _STATE_FILE))
        if saved.global_step != step:
            raise paramshard.FailedPreconditionError(
                f"Trainer: resume_from_checkpoint {checkpoint}: want a checkpoint of step {step}, where the daemon has "
                f"{self.sharded.name}, got one of step {saved.global_step}: leave it out to go on from step {step}, or "
                f"go back before by `paramshardctl restore {self.sharded.name}`")
        return saved.log_history

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Does nothing: weights are in the daemon."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._progress.restore_schedule(self.lr_scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._progress.restore_random_state()

    def _run_epoch(self, *arguments: Any, **options: Any) -> None:
        # Trainer checks for the end after each step, and would make one more step when it resumes an ended training.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*arguments, **options)

    # --- Values that are elsewhere than Trainer thinks ---

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        if "grad_norm" in logs:
            logs["grad_norm"] = self.sharded.last_result().gradient_norm
        super().log(logs, *arguments, **options)

    def _clip_grad_norm(self, model: nn.Module) -> float:
        # The norm is known when the daemon has stepped: `log` puts it in.
        return 0.0

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> float:
        return 0.0

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Does nothing: the daemon has the parameters, and buffers stay where the script has put them."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is None and self.args.should_save:
            state_dict = self._values_to_save()
        super()._save(output_dir, state_dict)

    def _values_to_save(self) -> dict[str, Any]:
        return self.sharded.adapter_state_dict() if has_adapters(self.model) else self.model.state_dict()


def _unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer that accelerate has wrapped, or the optimizer itself."""
    return getattr(optimizer, "optimizer", optimizer)
