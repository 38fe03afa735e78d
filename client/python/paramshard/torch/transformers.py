"""HuggingFace's Trainer on a sharded model.

    from paramshard.torch.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        pass

    trainer = Trainer(model=model, args=arguments, train_dataset=data, sharded=sharded)
    trainer.train()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.optimizer import AdamW
from paramshard.torch.sharded_model import ShardedModel


class TrainerMixin:
    """Put before Trainer. It makes the optimizer, clips in the daemon, and saves full values on the first rank.

    Rates, betas, decay and clipping are those of TrainingArguments. Refused: other optimizers, fp16 with a GradScaler,
    and `resume_from_checkpoint`, for a checkpoint of Trainer has no moments of the daemon's.
    """

    def __init__(self, *arguments: Any, sharded: ShardedModel, moments: str = "FP32", **options: Any):
        self.sharded = sharded
        self._moments = moments
        # Accelerate is not to wrap it for gradients that are averaged elsewhere.
        sharded.module._is_accelerate_prepared = True
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
        return self.optimizer

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
            state_dict = self.model.state_dict()
        super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        raise paramshard.UnimplementedError(
            f"Trainer: resume_from_checkpoint {resume_from_checkpoint}: it has no moments; go on with the model in the "
            'daemon (existing="resume"), or restore one that the daemon has saved')
