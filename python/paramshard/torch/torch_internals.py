"""Private parts of torch that this package needs, each under one name. No other file of it touches any.

A release of torch may move or drop them: importing this file then raises ImportError, which names them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.multiprocessing.reductions
import torch.utils._python_dispatch
import torch.utils._pytree
from torch import nn
from torch.utils.hooks import RemovableHandle

# Paths from torch. Attributes of an nn.Module exist in its instances alone.
NEEDED = (
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C._are_functorch_transforms_active",
    "torch._C._FunctionBase._register_hook_dict",
    "torch._C._autograd.CreationMeta.DEFAULT",
    "torch._C._autograd._set_creation_meta",
    "torch._C._autograd._unsafe_set_version_counter",
    "torch._C._current_graph_task_id",
    "torch._C._profiler._RecordFunctionFast",
    "torch._C._will_engine_execute_node",
    "torch._VF._make_dual",
    "torch.Tensor._backward_hooks",
    "torch.Tensor._base",
    "torch.Tensor._is_view",
    "torch.Tensor._make_wrapper_subclass",
    "torch.Tensor._post_accumulate_grad_hooks",
    "torch.Tensor._version",
    "torch.UntypedStorage._cdata",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed.distributed_c10d._abort_process_group",
    "torch.multiprocessing.reductions.StorageWeakRef",
    "torch.ops.aten.detach.default._schema",
    "torch.utils._python_dispatch.TorchDispatchMode._should_skip_dynamo",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.utils._pytree.tree_unflatten",
)
NEEDED_OF_MODULES = ("_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules", "_non_persistent_buffers_set",
                     "_parameters", "_state_dict_hooks")
NEEDED_ON_GPUS = ("torch._C._cuda_getCurrentRawStream",)


def missing() -> list[str]:
    """Names the parts that this torch lacks."""
    needed = NEEDED + (NEEDED_ON_GPUS if torch.version.cuda else ())  # is_available() would initialize CUDA
    module = nn.Module()
    return ([path for path in needed if not _exists(path)] +
            [f"torch.nn.Module.{name}" for name in NEEDED_OF_MODULES if not hasattr(module, name)])


def _exists(path: str) -> bool:
    try:
        functools.reduce(getattr, path.split(".")[1:], torch)
    except AttributeError:
        return False
    return True


if missing():
    raise ImportError(f"paramshard.torch: torch {torch.__version__} has no {', '.join(missing())}: install a release "
                      "of paramshard that is made for it, or torch 2.11 or 2.15")

# --- Autograd ---

# Autograd's number of the backward that this thread runs, -1 outside of one.
current_backward: Callable[[], int] = torch._C._current_graph_task_id


def in_backward() -> bool:
    """Returns True inside of autograd's backward on this thread, including recomputation of a checkpoint."""
    return current_backward() != -1


def transforms_inputs() -> bool:
    """Returns True inside of a transform of torch.func (jvp, vmap, jacrev, ...) and of forward-mode AD."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Runs `call` when the backward that this thread runs ends."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def gets_gradient(parameter: torch.Tensor) -> bool:
    """Returns True if the backward that this thread runs computes, or has computed, a gradient of the parameter."""
    if not parameter.requires_grad:
        return False
    with without_torch_function():
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(parameter).node)


def allow_changes_in_place(output: torch.Tensor) -> None:
    """Lets an output of a torch.autograd.Function be changed in place, though that passes over its backward."""
    torch._C._autograd._set_creation_meta(output, torch._C._autograd.CreationMeta.DEFAULT)


# --- Tensors ---

_PLAIN = (torch.Tensor, nn.Parameter)
_OWN_HOOK = -1  # no handle of torch has this number

without_torch_function = torch._C.DisableTorchFunctionSubclass
without_modes = torch.utils._python_dispatch._disable_current_modes
StorageWeakRef = torch.multiprocessing.reductions.StorageWeakRef
pytree = torch.utils._pytree
make_dual: Callable[..., Any] = torch._VF._make_dual
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass


class TorchDispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    """torch's mode, without an import of torch._dynamo, which takes seconds, by the first operation.

    torch wraps `__torch_dispatch__` so that it is not compiled, if it may be. It never is: nothing compiles a function
    while a mode sees its operations.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns True for a tensor of no subclass that has memory with strides."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided


def version_of(tensor: torch.Tensor) -> int:
    """Returns how often it was changed in place."""
    return tensor._version


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Makes autograd believe that each was changed so often."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor that it is a view of, as autograd has it; None if it is no view."""
    return tensor._base if tensor._is_view() else None


def storage_of(tensor: torch.Tensor) -> int:
    """Returns an id of the storage, also for storages without memory."""
    return tensor.untyped_storage()._cdata


def aliased_by(operator: Any, args: tuple, kwargs: dict[str, Any] | None) -> list[tuple[Any, bool]]:
    """Returns the arguments that an operator of torch.ops changes in place (True) or returns a view of (False).

    Arguments are tensors, or lists of them.
    """
    return [(args[index] if index < len(args) else (kwargs or {}).get(argument.name), argument.alias_info.is_write)
            for index, argument in enumerate(operator._schema.arguments) if argument.alias_info is not None]


def call_with_gradient(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> None:
    """Calls the hook with the tensor's gradient, as Tensor.register_hook() does, but without a handle to remove it."""
    node = tensor.grad_fn
    if node is None or tensor._backward_hooks is not None:
        tensor.register_hook(hook)
        return
    tensor._backward_hooks = OrderedDict(((_OWN_HOOK, hook),))
    node._register_hook_dict(tensor)


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Returns True if hooks are registered for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


# --- Own members of modules, without their submodules ---


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return module._buffers


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    return module._modules


def non_persistent_buffers(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set


def forward_pre_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """Returns the hooks in the order of their calls."""
    return list(module._forward_pre_hooks.values())


def call_state_dict_hook_first(module: nn.Module, hook: RemovableHandle) -> None:
    """Moves a hook before hooks that were registered earlier."""
    module._state_dict_hooks.move_to_end(hook.id, last=False)


@contextlib.contextmanager
def without_forward_hooks(module: nn.Module) -> Iterator[None]:
    """Disables the forward hooks of the module and its submodules in the block."""
    before = [(each, each._forward_pre_hooks, each._forward_hooks) for each in module.modules()]
    try:
        for each, pre_hooks, hooks in before:
            each._forward_pre_hooks, each._forward_hooks = type(pre_hooks)(), type(hooks)()
        yield
    finally:
        for each, pre_hooks, hooks in before:
            each._forward_pre_hooks, each._forward_hooks = pre_hooks, hooks


# --- Initializers ---


class Initializer(NamedTuple):
    """A call of a function of torch.nn.init."""

    name: str
    arguments: dict[str, Any]


_OF_INITIALIZERS = nn.init.normal_.__code__.co_filename


def running_initializer(frame: types.FrameType | None) -> Initializer | None:
    """Returns the call of an initializer that a frame is a part of; None outside of torch.nn.init.

    Other frames may lie in between, such as of `with torch.device(...)`, which sees every function.
    """
    found = None
    while frame is not None and frame.f_code.co_filename != _OF_INITIALIZERS:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename == _OF_INITIALIZERS:
        if frame.f_code.co_name.endswith("_"):
            found = frame
        frame = frame.f_back
    return found and Initializer(found.f_code.co_name.removeprefix("_no_grad_"), found.f_locals)


def without_torch_functions(frame: types.FrameType) -> types.FrameType:
    """Returns the first frame, from this one outwards, that is no __torch_function__ of a class or a mode."""
    while frame.f_back is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame


def called_initializer(function: Any, args: tuple, kwargs: dict[str, Any]) -> Initializer | None:
    """Returns the call of an initializer that torch hands to a __torch_function__; None for other functions."""
    if getattr(function, "__module__", None) != nn.init.__name__:
        return None
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return Initializer(function.__name__, bound.arguments)


# --- Process groups ---


def abort_process_groups() -> None:
    """Ends all process groups at once, whose other ranks may be gone. They can be made anew."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.distributed_c10d._abort_process_group()


# --- Compiled code ---

_eval_frame = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_can_skip_frames = all(hasattr(_eval_frame, name) for name in (
    "set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction"))


def not_compiled(function: types.FunctionType) -> Callable[..., Any]:
    """Returns the function as one that torch.compile leaves alone, with all that it calls.

    So does torch.compiler.disable, but it imports torch._dynamo, which takes a second, and slows down every call. This
    one marks the function, and all functions that have the same code.
    """
    if not _can_skip_frames:
        return torch.compiler.disable(function)
    # Tracing stops at the first mark, frames that run at the second.
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = None
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(skip, skip))
    return function


def forget_compiled() -> None:
    """Drops what torch.compile has compiled. Nothing is there before torch._dynamo is imported."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


# --- Optimizers ---

# The method without torch's wrapper, which imports torch._dynamo to keep torch.compile out of it.
add_param_group: Callable[[torch.optim.Optimizer, dict[str, Any]], None] = getattr(
    torch.optim.Optimizer.add_param_group, "__wrapped__", torch.optim.Optimizer.add_param_group)


# --- Profiler ---


def profiler_range(name: str) -> Any:
    """Makes a range of torch's profiler. record_function would add operators, which take time without a profiler."""
    return torch._C._profiler._RecordFunctionFast(name)


def raw_stream(device: torch.device) -> int:
    """Returns the handle of the device's current stream, without the object of torch.cuda.current_stream()."""
    return torch._C._cuda_getCurrentRawStream(device.index)
