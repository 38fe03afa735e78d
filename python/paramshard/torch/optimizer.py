"""The parts that all optimizers of sharded models share. The daemon makes their steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.spec import ParameterGroup
from paramshard.torch.messages import some
from paramshard.torch.model_description import Matrices, OptimizerPlan
from paramshard.torch.other_optimizers import steps_in_daemon
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.sharded_model import ShardedModel
from paramshard.torch.torch_internals import add_param_group

# Options of torch's optimizers that change what a step computes or how it may run, and that the daemon does not have.
_NOT_HERE = ("amsgrad", "capturable", "differentiable", "maximize")


@dataclass(frozen=True)
class Moments:
    """The formats in which an optimizer's moments are stored, of `paramshard.ParameterSpec.exp_avg_type`."""

    first: str | None = None
    second: str | None = None

    def __post_init__(self) -> None:
        for each in (self.first, self.second):
            if each is not None and not isinstance(each, str):
                raise paramshard.InvalidArgumentError(
                    f'moments: want "FP32", "BF16", "FP16" or "FP8", got {each!r}')


@steps_in_daemon
class ShardedOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer of a sharded model: the daemon has gradients and moments, and makes the steps.

    A subclass says what its groups are to the daemon.
    """

    # With this GradScaler hands itself to `step`, which refuses it.
    _step_supports_amp_scaling = True

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], defaults: dict[str, Any],
                 moments: Moments, max_grad_norm: float | None, **options: bool):
        """Opens the sharded model of the parameters; all ranks make it alike.

        Args:
            params: The trainable parameters of one sharded model, or groups of them.
            defaults: Options of groups without their own.
            moments: Formats of the moments.
            max_grad_norm: Global norm to which the daemon clips the gradients. 0, infinity and None: no clipping.
            options: Options that the daemon does not have: refused if set.

        Raises:
            UnimplementedError: An option is set that the daemon does not have.
            InvalidArgumentError: Parameters belong to no sharded model or to several, a trainable parameter is in no
                group, or the daemon has no such option or format.
            Error: One of `ShardedModel.open`.
        """
        self._refuse_options(options)
        self._sharded: ShardedModel | None = None
        self.max_grad_norm = max_grad_norm
        super().__init__(params, defaults)
        sharded = self._owner()
        groups = []
        for index, group in enumerate(self.param_groups):
            self._refuse_options(group)
            self._hyperparameters(group)
            groups.append(ParameterGroup(str(group.get("name", f"group{index}")), *self._fixed_options(group)))
        sharded.open(OptimizerPlan(groups, self._groups_by_parameter(sharded), moments.first, moments.second,
                                   [self._matrices(group) for group in self.param_groups]))
        self._sharded = sharded
        self._made = self._fixed_groups()
        self._fill_state()

    @abstractmethod
    def _fixed_options(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the fields of the group's `paramshard.ParameterGroup` that follow its name: optimizer first."""

    def _matrices(self, group: dict[str, Any]) -> Matrices:
        """Returns the matrices that the group's parameters are made of, for optimizers that step matrices."""
        return Matrices()

    @abstractmethod
    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, float]:
        """Returns the group's hyper-parameters by the names of `Model.commit`. InvalidArgumentError for wrong ones."""

    # The options of a group that cannot change, in the words of messages.
    _FIXED: str
    # The options that can.
    _FREE: str

    def _owner(self) -> ShardedModel:
        # Parameters without elements are not in the daemon: there is nothing to step.
        parameters = [parameter for group in self.param_groups for parameter in group["params"] if parameter.numel()]
        others = [parameter for parameter in parameters
                  if not isinstance(parameter, Placeholder) or not isinstance(parameter.owner, ShardedModel)]
        if others:
            raise paramshard.InvalidArgumentError(
                f"{self._name}: want parameters of a sharded model, got {len(others)} others, the first of shape "
                f"{list(others[0].shape)}: call paramshard.torch.shard() before")
        owners = {parameter.owner for parameter in parameters}
        if len(owners) != 1:
            raise paramshard.InvalidArgumentError(
                f"{self._name}: want parameters of one sharded model, got parameters of {len(owners)}")
        return owners.pop()

    @property
    def _name(self) -> str:
        return type(self).__name__

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
                f"{self._name}: no group has the trainable parameters {some(missing)}; freeze what is not to be "
                "trained")
        return group_of

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._sharded is not None:
            raise paramshard.UnimplementedError(
                "add_param_group: the daemon made the model with the groups that it has; give all of them to "
                f"{self._name}")
        add_param_group(self, param_group)

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
            self._refuse_options(group)
        if self._fixed_groups() == self._made:
            return
        raise paramshard.FailedPreconditionError(
            f"step: parameters{self._FIXED} of groups cannot change after {self._name} is made: only {self._FREE} can")

    def _fixed_groups(self) -> list[tuple[list[int], tuple[Any, ...], Matrices]]:
        """Returns the parts of groups that cannot change. Parameters go by identity: tensors compare by element."""
        return [([id(parameter) for parameter in group["params"]], self._fixed_options(group), self._matrices(group))
                for group in self.param_groups]

    def _refuse_options(self, group: dict[str, Any]) -> None:
        for option in _NOT_HERE:
            if group.get(option):
                raise paramshard.UnimplementedError(
                    f"{self._name}: {option}={group[option]} is not supported; leave it out")

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
                f"load_state_dict: want the state of a paramshard.torch.{self._name}, got moments of another optimizer"
                ': the daemon has the moments of its model, and existing="resume" goes on with them')
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
        self._sharded.step({"groups": [self._hyperparameters(group) for group in self.param_groups],
                            "max_grad_norm": _norm(self.max_grad_norm)})
        return loss

    def publish(self, data: bytes) -> None:
        """Gives readers data with the version that the next step leaves: `Snapshot.data`, at most 4096 bytes.

        Every rank gives the same before the same step. Later steps without a call leave it empty.
        """
        self._sharded.publish(data)

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
    """Makes two groups: matrices, which decay, and vectors and scalars (norms, biases), which do not.

    Frozen parameters are in none.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [{"name": "decay", "params": [each for each in parameters if each.dim() >= 2],
               "weight_decay": weight_decay},
              {"name": "no_decay", "params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def betas_of(name: str, group: dict[str, Any]) -> dict[str, float]:
    """Returns the two betas of a group as hyper-parameters. `name`: of the optimizer, for messages."""
    try:
        beta1, beta2 = group["betas"]
        return {"beta1": float(beta1), "beta2": float(beta2)}
    except (TypeError, ValueError) as error:
        raise paramshard.InvalidArgumentError(
            f"{name}: want betas of two numbers, got {group['betas']!r}") from error


def _norm(most: float | None) -> float | None:
    return None if most is None or most == 0 or math.isinf(most) else float(most)
