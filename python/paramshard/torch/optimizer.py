"""The optimizer of a sharded model, whose steps the daemon makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.spec import ParameterGroup
from paramshard.torch.messages import some
from paramshard.torch.model_description import OptimizerPlan
from paramshard.torch.other_optimizers import steps_in_daemon
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.sharded_model import ShardedModel

_OPTIMIZERS = {"adamw": "adamw", "l2": "adam"}  # by mode
_NAMES = {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "weight_decay"}
# Options of torch.optim.AdamW that change what a step computes or how it may run, and that the daemon does not have.
_NOT_HERE = ("amsgrad", "capturable", "differentiable", "maximize")


@steps_in_daemon
class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), or L2 decay with mode="l2".

    Making it opens the model in the daemon, and waits for the other ranks. Schedulers change `param_groups` as they do
    anywhere; each group has its own lr, betas, eps and weight_decay. Gradients are in the daemon, which clips them, so
    torch.nn.utils.clip_grad_norm_ has nothing to clip, and says so.

    `step` returns before the daemon has stepped. A step whose gradients are not all finite is skipped on all ranks,
    and counted: `last_result().skipped`.
    """

    # With this GradScaler hands itself to `step`, which refuses it.
    _step_supports_amp_scaling = True

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 amsgrad: bool = False, *, max_grad_norm: float | None = None, moments: str = "FP32",
                 exp_avg: str | None = None, exp_avg_sq: str | None = None, mode: str = "adamw",
                 bias_correction: bool = True, foreach: bool | None = None, fused: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            lr: As in torch.optim.AdamW, for groups without their own; likewise `betas`, `eps` and `weight_decay`.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            moments: Format of both moments, of `paramshard.ParameterSpec.exp_avg_type`.
            exp_avg: Format of the first moment. None: `moments`.
            exp_avg_sq: Format of the second moment. None: `moments`.
            mode: "adamw", or "l2" to add the decay to the gradients, as torch.optim.Adam does.
            bias_correction: False steps by the moments without their correction for the first steps.
            foreach: Without effect, because the daemon has one kernel; likewise `fused`.
            amsgrad: False; likewise `maximize`, `capturable` and `differentiable`: the daemon has no such steps.

        Raises:
            UnimplementedError: An option is set that the daemon does not have.
            InvalidArgumentError: Parameters belong to no sharded model or to several, a trainable parameter is in no
                group, or the daemon has no such mode or format.
            Error: One of `ShardedModel.open`.
        """
        _refuse_options({"amsgrad": amsgrad, "maximize": maximize, "capturable": capturable,
                         "differentiable": differentiable})
        self._sharded: ShardedModel | None = None
        self.max_grad_norm = max_grad_norm
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "mode": mode,
                                  "bias_correction": bias_correction})
        sharded = self._owner()
        plan = OptimizerPlan([_group_of(index, group) for index, group in enumerate(self.param_groups)],
                             self._groups_by_parameter(sharded), exp_avg or moments, exp_avg_sq or moments)
        sharded.open(plan)
        self._sharded = sharded
        self._made = [_fixed_of(group) for group in self.param_groups]
        self._fill_state()

    def _owner(self) -> ShardedModel:
        # Parameters without elements are not in the daemon: there is nothing to step.
        parameters = [parameter for group in self.param_groups for parameter in group["params"] if parameter.numel()]
        others = [parameter for parameter in parameters
                  if not isinstance(parameter, Placeholder) or not isinstance(parameter.owner, ShardedModel)]
        if others:
            raise paramshard.InvalidArgumentError(
                f"AdamW: want parameters of a sharded model, got {len(others)} others, the first of shape "
                f"{list(others[0].shape)}: call paramshard.torch.shard() before")
        owners = {parameter.owner for parameter in parameters}
        if len(owners) != 1:
            raise paramshard.InvalidArgumentError(
                f"AdamW: want parameters of one sharded model, got parameters of {len(owners)}")
        return owners.pop()

    @property
    def sharded(self) -> ShardedModel | None:
        """The model that it steps."""
        return self._sharded

    def _groups_by_parameter(self, sharded: ShardedModel) -> dict[str, int]:
        group_of = {parameter.parameter_name: index for index, group in enumerate(self.param_groups)
                    for parameter in group["params"] if isinstance(parameter, Placeholder)}
        missing = [parameter.name for parameter in sharded.parameters()
                   if parameter.placeholder.requires_grad and parameter.name not in group_of]
        if missing:
            raise paramshard.InvalidArgumentError(
                f"AdamW: no group has the trainable parameters {some(missing)}; freeze what is not to be trained")
        return group_of

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._sharded is not None:
            raise paramshard.UnimplementedError(
                "add_param_group: the daemon made the model with the groups that it has; give all of them to AdamW")
        super().add_param_group(param_group)

    def _fill_state(self) -> None:
        """Gives every parameter a state, because some tools make a step to initialize an optimizer without state."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state.setdefault(parameter, {})

    def _check_state(self) -> None:
        """Raises if moments were written here or cleared: the daemon has the moments."""
        if any(self.state.values()) or not all(
                parameter in self.state for group in self.param_groups for parameter in group["params"]):
            raise paramshard.FailedPreconditionError(
                "step: optimizer.state was written or cleared: moments are in the daemon, and begin anew with a model "
                "of another name")

    def _check_groups(self) -> None:
        """Raises if a part of the groups was changed that the daemon knows since the model was made."""
        for group in self.param_groups:
            _refuse_options(group)
        if [_fixed_of(group) for group in self.param_groups] == self._made:
            return
        raise paramshard.FailedPreconditionError(
            "step: parameters, mode and bias_correction of groups cannot change after AdamW is made: only rates, "
            "betas, eps and weight_decay can")

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of an optimizer, with model and commit of the daemon's moments in place of moments."""
        state = super().state_dict()
        self._sharded.moments.add_to(state["param_groups"])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes rates and decay from a state_dict of the commit that the daemon's moments are at.

        FailedPreconditionError if the daemon has other moments or none; UnimplementedError for moments of another
        optimizer.
        """
        if any(state_dict["state"].values()):
            raise paramshard.UnimplementedError(
                "load_state_dict: want the state of a paramshard.torch.AdamW, got moments of another optimizer: the "
                'daemon has the moments of its model, and existing="resume" goes on with them')
        super().load_state_dict(self._sharded.moments.take_from(state_dict))
        self._fill_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, grad_scaler: Any = None) -> float | None:
        """Commits the gradients since the last step. FailedPreconditionError if there are none, or a backward failed.

        Every rank calls it at the same point.
        """
        if grad_scaler is not None:
            raise paramshard.UnimplementedError(
                "step: GradScaler is not supported: gradients are added up in float32, and a step with one that is not "
                "finite is skipped; train in bfloat16 without it")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        self._check_state()
        self._sharded.step({"groups": [_hyperparameters(group) for group in self.param_groups],
                            "max_grad_norm": _norm(self.max_grad_norm)})
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step, if there are any; every rank calls it at the same point."""
        # Optimizer's constructor may call it before there is a model.
        if self._sharded is not None:
            self._sharded.discard()

    def last_result(self, wait: bool = True) -> paramshard.StepResult | None:
        """Returns the result of the last step: its norm, and skipped or not. None if not there yet and `wait` is false.

        Waiting needs the step of every rank: ask after tracked schedulers have stepped on all of them.
        """
        return self._sharded.last_result(wait)

    def last_norm(self, wait: bool = True) -> float | None:
        """Returns the global norm of the last step's gradients before clipping, for logging. Waits as `last_result`."""
        result = self.last_result(wait)
        return None if result is None else result.gradient_norm


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Makes two groups for AdamW: matrices, which decay, and vectors and scalars (norms, biases), which do not.

    Frozen parameters are in none.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [{"name": "decay", "params": [each for each in parameters if each.dim() >= 2],
               "weight_decay": weight_decay},
              {"name": "no_decay", "params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _refuse_options(group: dict[str, Any]) -> None:
    for option in _NOT_HERE:
        if group.get(option):
            raise paramshard.UnimplementedError(f"AdamW: {option}={group[option]} is not supported; leave it out")


def _group_of(index: int, group: dict[str, Any]) -> ParameterGroup:
    _refuse_options(group)
    _betas_of(group)
    return ParameterGroup(str(group.get("name", f"group{index}")), _optimizer_of(group["mode"]),
                          group["bias_correction"])


def _optimizer_of(mode: str) -> str:
    if mode not in _OPTIMIZERS:
        raise paramshard.InvalidArgumentError(f"AdamW: mode: want one of {', '.join(_OPTIMIZERS)}, got {mode}")
    return _OPTIMIZERS[mode]


def _fixed_of(group: dict[str, Any]) -> tuple[list[int], str, bool]:
    """Returns the parts of a group that cannot change. Parameters go by identity: tensors compare by element."""
    return [id(parameter) for parameter in group["params"]], group["mode"], group["bias_correction"]


def _betas_of(group: dict[str, Any]) -> tuple[float, float]:
    try:
        beta1, beta2 = group["betas"]
        return float(beta1), float(beta2)
    except (TypeError, ValueError) as error:
        raise paramshard.InvalidArgumentError(
            f"AdamW: want betas of two numbers, got {group['betas']!r}") from error


def _hyperparameters(group: dict[str, Any]) -> dict[str, float]:
    beta1, beta2 = _betas_of(group)
    return {"beta1": beta1, "beta2": beta2} | {ours: float(group[theirs]) for theirs, ours in _NAMES.items()}


def _norm(most: float | None) -> float | None:
    return None if most is None or most == 0 or math.isinf(most) else float(most)
