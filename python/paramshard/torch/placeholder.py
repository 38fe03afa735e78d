"""Stand-in for a parameter of a module while its values are in the daemon alone."""

from __future__ import annotations

import sys
from typing import Any

import torch

import paramshard
from paramshard.torch.gradient_access import check_read, check_set, module_of
from paramshard.torch.other_optimizers import refuse_made_by
from paramshard.torch.parameter_owner import ParameterOwner
from paramshard.torch.torch_internals import (aliased_by, make_dual, make_wrapper, pytree, running_initializer,
                                              without_torch_function, without_torch_functions)
from paramshard.torch.wrappers import wrapper_of

_aten = torch.ops.aten
# Operations of modules, optimizers and `state_dict` on parameters that do not look at values. Each gives the same
# parameter again: shard() has chosen its device and its type.
_WITHOUT_VALUES = frozenset({
    _aten.detach.default, _aten.alias.default, _aten._to_copy.default, _aten.to.dtype_layout, _aten.lift_fresh.default})

# Refused operations, which would silently do nothing or worse, and what to do instead.
_REFUSED = {
    torch.Tensor.register_hook: "gradients go to the daemon as they come, and hooks on them would not be called",
    torch.Tensor.register_post_accumulate_grad_hook:
        "gradients go to the daemon as they come, and hooks on them would not be called",
    torch.Tensor.share_memory_: "it has no memory to be shared; processes share what is in the daemon",
    make_dual: "forward-mode AD differentiates by inputs of the model",
    torch.autograd.grad: "its gradient goes to the daemon; call backward(), or differentiate by inputs of the model",
}

_SET_GRADIENT = (torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__)

_TO_CHANGE = ("to change them set `parameter.data = value` outside of forwards and of `with sharded.unsharded():`, or "
              "call load_state_dict()")


class Placeholder(torch.Tensor):
    """A parameter that is not gathered: it has a name, a shape, a type and a device, and no memory.

    Optimizers group it, `requires_grad` may be set, and load_state_dict may copy a value into it, which is brought to
    the daemon. Operations that read it raise FailedPreconditionError.
    """

    _is_param = True  # makes isinstance(self, nn.Parameter) true

    parameter_name: str
    owner: ParameterOwner | None
    is_fp8_operand = False  # in 8 bits, without decoding: it has no values then, even while it is gathered

    @staticmethod
    def __new__(cls, like: torch.Tensor, *, name: str, dtype: torch.dtype, device: torch.device,
                owner: ParameterOwner | None) -> Placeholder:
        # Tensors of inference mode have no version, but views that torch makes of a parameter share its version.
        with torch.inference_mode(False):
            placeholder = make_wrapper(
                cls, like.shape, dtype=dtype, device=device, requires_grad=like.requires_grad)
        placeholder.parameter_name = name
        placeholder.owner = owner
        return placeholder

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Everything is done by __new__, for which torch has no constructor that this could call."""

    def __repr__(self, *, tensor_contents: None = None) -> str:
        return f"<{self.parameter_name}: {self.dtype} {list(self.shape)}, not gathered>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Placeholder:
        raise paramshard.FailedPreconditionError(
            f"copy {self.parameter_name}: a sharded model has one copy, in the daemon; copy modules before shard()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise paramshard.FailedPreconditionError(
            f"pickle {self.parameter_name}: its values are in the daemon; save model.state_dict() instead")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function == torch.Tensor.grad.__get__:
            check_read(args[0], args[0].parameter_name, args[0].owner, without_torch_functions(sys._getframe(1)))
            return None
        if function == torch.Tensor.is_leaf.__get__:
            refuse_made_by(without_torch_functions(sys._getframe(1)), args[0].parameter_name)
        if function in _SET_GRADIENT and isinstance(args[0], Placeholder):
            check_set(args[0], args[0].parameter_name, args[0].owner, args[1] if len(args) > 1 else None)
        if function == torch.Tensor.data.__set__ and isinstance(args[0], Placeholder):
            # Modules that are moved set the result of a conversion, which is the same parameter.
            if not isinstance(args[1], Placeholder):
                if args[1].shape != args[0].shape:
                    raise paramshard.InvalidArgumentError(
                        f"set the values of {args[0].parameter_name}: want shape {list(args[0].shape)}, got "
                        f"{list(args[1].shape)}")
                args[0].owner.set_value(args[0].parameter_name, args[1])
            return None
        if function in _REFUSED:
            placeholders = [value for value in pytree.tree_leaves((args, kwargs))
                            if isinstance(value, Placeholder)]
            raise placeholders[0].refusal_of(function)
        # The result keeps its class: torch's own __torch_function__ would make placeholders of plain tensors.
        with without_torch_function():
            return function(*args, **(kwargs or {}))

    def refusal_of(self, function: Any) -> paramshard.UnimplementedError:
        """Returns the error for a function of _REFUSED."""
        return paramshard.UnimplementedError(f"{function.__name__} {self.parameter_name}: {_REFUSED[function]}")

    def _check_conversion(self, dtype: torch.dtype | None = None, device: torch.device | None = None,
                          **rest: Any) -> None:
        if dtype not in (None, self.dtype) or device is not None and not self._lies_on(torch.device(device)):
            raise paramshard.FailedPreconditionError(
                f"convert {self.parameter_name}: want {self.dtype} on {self.device}, as shard() was told, got "
                f"{dtype or self.dtype} on {device or self.device}; give shard() another param_dtype, or convert "
                "before it")

    def _lies_on(self, device: torch.device) -> bool:
        """Returns True for its own device, and for `cuda` without a number, which means the same GPU."""
        return device.type == self.device.type and (
            self.device.index is None or device.index in (None, self.device.index))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in _WITHOUT_VALUES and isinstance(args[0], Placeholder):
            parameter = args[0]
            parameter._check_conversion(**(kwargs or {}))
            same = cls(parameter, name=parameter.parameter_name, dtype=parameter.dtype, device=parameter.device,
                       owner=parameter.owner)
            same.is_fp8_operand = parameter.is_fp8_operand
            return same
        if function is _aten.copy_.default and isinstance(args[0], Placeholder) and args[0].owner is not None:
            args[0].owner.set_value(args[0].parameter_name, args[1])
            return args[0]
        found = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Placeholder)]
        names = [value.parameter_name for value in found]
        wrapper = _running_wrapper()
        if wrapper is not None:
            raise paramshard.UnimplementedError(
                f"wrap a sharded model in {wrapper}: ranks share parameters and gradients through the daemon already; "
                "train the module as shard() has left it")
        why = "outside of its unit's forward its values are in the daemon: "
        aliases = [is_written for value, is_written in aliased_by(function, args, kwargs)
                   if any(isinstance(leaf, Placeholder) for leaf in pytree.tree_leaves(value))]
        if any(aliases) or running_initializer(sys._getframe(1)) is not None:
            why += _TO_CHANGE
        else:
            why += "use `with sharded.unsharded():` or sharded.read(name)"
            if aliases:  # a view, which may be about to be written
                why += f", and {_TO_CHANGE}"
        if found[0].is_fp8_operand:
            why += '; with compute="fp8" a forward that reads it needs another format= for it'
        raise paramshard.FailedPreconditionError(f"{', '.join(names)}: {function} needs a gathered parameter; {why}")


def _running_wrapper() -> str | None:
    """Returns the wrapper of torch that reads a parameter now to share it between ranks, if any."""
    frame = sys._getframe(1)
    while frame is not None:
        wrapper = wrapper_of(module_of(frame))
        if wrapper is not None:
            return wrapper
        frame = frame.f_back
    return None
