"""HuggingFace's Trainer on a sharded model.

    from paramshard.torch.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        pass

    trainer = Trainer(model=model, args=arguments, train_dataset=data, sharded=sharded)
    trainer.train()
"""

from __future__ import annotations

import dataclasses
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
from paramshard.torch.adapters import has_adapters
from paramshard.torch.optimizer import AdamW
from paramshard.torch.sharded_model import ShardedModel
from paramshard.torch.tracked_state import RandomState, Schedule

_STATE_FILE = "trainer_state.json"  # in each of Trainer's checkpoints


class _Progress:
    """Where a training by Trainer is: what it counts, its schedule, and the generators. Recorded with every step.

    It is read when the daemon is told to step. Trainer counts that step and moves its schedule on behind that, so what
    comes back is one ahead of what was read.
    """

    def __init__(self, trainer: TrainerMixin):
        self._trainer = weakref.proxy(trainer)
        self._random = RandomState()
        self.trainings = 0  # calls of train()
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        # The log grows with the training, and what is recorded may not.
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
            warnings.simplefilter("ignore")  # that no step was made before, as was in another process
            scheduler.step()

    def restore_random_state(self) -> None:
        self._random.load_state_dict(self.restored["random"])


class TrainerMixin:
    """Put before Trainer. It makes the optimizer, clips in the daemon, and saves full values on the first rank.

    Rates, betas, decay and clipping are those of TrainingArguments. Where the daemon has the model from a training by
    Trainer, and `shard` resumes, `train` goes on behind the last step that was made, with its schedule, its batches and
    its generators. An evaluation or a checkpoint that was under way is not made again, and the log begins anew.

    Refused: other optimizers, fp16 with a GradScaler, and `resume_from_checkpoint` with a folder of another step than
    the daemon's, for a checkpoint of Trainer has no moments of the daemon's. One of the same step adds its log.
    """

    def __init__(self, *arguments: Any, sharded: ShardedModel, moments: str = "FP32", **options: Any):
        self.sharded = sharded
        self._moments = moments
        # Accelerate is not to wrap it for gradients that are averaged elsewhere, nor Trainer for several GPUs.
        sharded.module._is_accelerate_prepared = True
        training_arguments = options.get("args") or next(iter(arguments[1:2]), None)
        if training_arguments is not None and training_arguments.n_gpu > 1:
            training_arguments._n_gpu = 1
        super().__init__(*arguments, **options)
        if self.args.fp16:
            raise paramshard.UnimplementedError("Trainer: fp16 has a GradScaler, which is not needed here; set bf16")
        if self.optimizer is not None:
            raise paramshard.UnimplementedError("Trainer: no optimizer expected: the daemon has AdamW")

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            arguments = self.args
            decays = set(self.get_decay_parameter_names(self.sharded.module))
            named = [(name, each) for name, each in self.sharded.module.named_parameters() if each.requires_grad]
            groups = [{"params": [each for name, each in named if (name in decays) == decayed],
                       "weight_decay": arguments.weight_decay if decayed else 0.0} for decayed in (True, False)]
            self.optimizer = AdamW([group for group in groups if group["params"]], lr=arguments.learning_rate,
                                   betas=(arguments.adam_beta1, arguments.adam_beta2), eps=arguments.adam_epsilon,
                                   max_grad_norm=arguments.max_grad_norm, moments=self._moments)
            self._progress = _Progress(self)
            self.sharded.track(trainer=self._progress)
        return self.optimizer

    # --- Going on ---

    def train(self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *arguments: Any,
              **options: Any) -> Any:
        self.create_optimizer()  # opens the model, whose state says where to go on
        with tempfile.TemporaryDirectory() as folder:
            goes_on = self._write_checkpoint(pathlib.Path(folder), resume_from_checkpoint)
            return super().train(folder if goes_on else None, *arguments, **options)

    def _write_checkpoint(self, folder: pathlib.Path, asked: str | os.PathLike[str] | bool | None) -> bool:
        """Writes what Trainer reads of a checkpoint to go on from it, if the daemon's state is to be gone on from."""
        progress = self._progress
        progress.trainings += 1
        restored = progress.restored if progress.trainings == 1 else None
        if restored is None:
            if asked:
                raise paramshard.UnimplementedError(
                    f"Trainer: resume_from_checkpoint {asked}: it has no moments; go on with a model that the daemon "
                    'has, or has restored from a checkpoint of its own (existing="resume"), or begin anew with its '
                    "weights (load_pretrained)")
            return False
        if restored["training"] != 1:
            raise paramshard.FailedPreconditionError(
                f"Trainer: {self.sharded.name} in the first train() of its program expected, to go on with, got it in "
                f"call {restored['training']}: save_pretrained() what it has, and begin anew")
        state = json.loads(restored["state"])
        if asked and not isinstance(asked, bool):
            state["log_history"] = self._log_of(pathlib.Path(asked), state["global_step"])
        (folder / _STATE_FILE).write_text(json.dumps(state))
        return True

    def _log_of(self, checkpoint: pathlib.Path, step: int) -> list[dict[str, float]]:
        saved = TrainerState.load_from_json(str(checkpoint / _STATE_FILE))
        if saved.global_step != step:
            raise paramshard.FailedPreconditionError(
                f"Trainer: resume_from_checkpoint {checkpoint}: a checkpoint of step {step}, at which the daemon has "
                f"{self.sharded.name}, expected, got one of step {saved.global_step}: go on from there without it, or "
                f"go back before by `paramshardctl restore {self.sharded.name}`")
        return saved.log_history

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights are in the daemon."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._progress.restore_schedule(self.lr_scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._progress.restore_random_state()

    # --- What is elsewhere than Trainer thinks ---

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
        """Parameters are where the daemon has them, and buffers where the script has put them."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is None and self.args.should_save:
            state_dict = self._values_to_save()
        super()._save(output_dir, state_dict)

    def _values_to_save(self) -> dict[str, Any]:
        return self.sharded.adapter_state_dict() if has_adapters(self.model) else self.model.state_dict()
