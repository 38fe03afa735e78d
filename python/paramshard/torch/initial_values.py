"""Initial values of a module without memory, recorded as rules that the daemon draws by."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import paramshard
from paramshard.spec import InitialValue
from paramshard.torch.torch_internals import (Initializer, TorchDispatchMode, called_initializer, pytree,
                                              running_initializer, storage_of, version_of, without_modes,
                                              without_torch_function, without_torch_functions)
from paramshard.torch.write_history import History, Rule, Unknown, is_part

_ATTRIBUTE = "_paramshard_initial_value"
# Rules that give a copy the same values.
_CONSTANTS = frozenset({"zeros", "ones", "constant"})
# Initializers of torch.nn.init that end in an operation that fills the tensor, on `meta` only in some releases of
# torch.
_FILLING = frozenset({"uniform_", "normal_", "constant_", "ones_", "zeros_", "xavier_uniform_", "xavier_normal_",
                      "kaiming_uniform_", "kaiming_normal_"})
# Ways to write a tensor's memory without a function of torch.
_MEMORY_ACCESS = frozenset({torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__})
# In-place operations that give the values of factories, by factory. `empty` gives none.
_FACTORIES = {"empty": None, "empty_like": None, "new_empty": None, "empty_strided": None, "zeros": "zero_",
              "ones": "ones", "full": "full", "randn": "normal_", "rand": "uniform_"}


def rule_of(parameter: torch.Tensor) -> Rule | None:
    """Returns the rule that meta_init() found; None for a parameter that has values, or was made outside of it."""
    recorder, version = getattr(parameter, _ATTRIBUTE, (None, None))
    if recorder is None or not parameter.is_meta:
        return None
    if version is not None and version_of(parameter) != version:
        return Unknown("it was written after meta_init()")
    return recorder.rule_of(parameter)


class _WriteRecorder(TorchDispatchMode):
    """Records writes to tensors that are made meanwhile, by their storages, which views share."""

    def __init__(self) -> None:
        super().__init__()
        self._histories: dict[int, History] = {}
        self._parameters: list[nn.Parameter] = []
        self._is_paused = False

    def move_to_meta(self, parameter: nn.Parameter) -> None:
        """Takes the memory of a parameter, unless it was computed: its values could not be made again then.

        It stays the same object for code that has it already: a module that ties it, or one that freezes it later.
        """
        history = self._history_of(parameter)
        if history is None or parameter.is_meta or history.is_computed(parameter):
            return
        with without_modes():
            bare = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            bare.__dict__.update(vars(parameter))
            torch.utils.swap_tensors(parameter, bare)
        self._histories[storage_of(parameter)] = history
        self._parameters.append(parameter)

    def note_copy(self, source: nn.Parameter, copy: nn.Parameter) -> None:
        """Notes a deepcopy. A constant initializer stays; a drawn one becomes unknown: the daemon would draw others."""
        history = self._history_of(source)
        if history is None or not copy.is_meta:
            return
        self._histories[storage_of(copy)] = copied = History(copy)
        rule = history.rule_of(source)
        if isinstance(rule, InitialValue) and rule.kind in _CONSTANTS and rule.zero_begin == rule.zero_end:
            copied.note("fill_", [rule.a if rule.kind == "constant" else float(rule.kind == "ones")])
        else:
            copied.note_unknown("it is a copy.deepcopy() of a parameter whose values are drawn, which has none in "
                                "meta_init()")
        self._parameters.append(copy)
        if type(copy) is not nn.Parameter:
            setattr(copy, _ATTRIBUTE, (self, None))  # one that is watched already

    def end(self) -> None:
        """Gives the parameters a class that goes on to record: operations that fill them later count, too."""
        watched = _watched_class(self)
        for parameter in self._parameters:
            if type(parameter) is nn.Parameter:
                setattr(parameter, _ATTRIBUTE, (self, None))
                parameter.__class__ = watched
            else:
                setattr(parameter, _ATTRIBUTE, (self, version_of(parameter)))

    def rule_of(self, parameter: torch.Tensor) -> Rule:
        history = self._history_of(parameter)
        return history.rule_of(parameter) if history is not None else Unknown(
            "its .data was set to what was computed of other tensors, which have no values")

    def knows(self, value: Any) -> bool:
        return self._history_of(value) is not None

    def _history_of(self, value: Any) -> History | None:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        return self._histories.get(storage_of(value))

    # --- Operations, as torch dispatches them ---

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        # torch computes some of these on `meta` by functions in Python, which import torch._dynamo.
        result = args[0] if _fills_on_meta(function, args, kwargs) else function(*args, **kwargs)
        if self._is_paused:
            return result
        if function._schema.is_mutable:
            self._note_writes(function, args, kwargs)
        elif isinstance(result, torch.Tensor) and result.layout == torch.strided:
            self._note_new(function, args, result)
        return result

    def _note_new(self, function: Any, args: tuple, result: torch.Tensor) -> None:
        storage = storage_of(result)
        read = {storage_of(value) for value in pytree.tree_leaves(args)
                if isinstance(value, torch.Tensor) and value.layout == torch.strided}
        if storage in read:
            return  # a view
        name = function._overloadpacket.__name__
        converted = self._history_of(args[0]) if name == "_to_copy" else None
        if name not in _FACTORIES and converted is None:
            return
        self._histories[storage] = history = History(result)
        as_write = _FACTORIES.get(name)
        if converted is not None:
            history.note_conversion(converted, args[0], result)
        elif as_write == "ones":
            history.note("fill_", [1.0])
        elif as_write == "full":
            history.note("fill_", [args[1]])
        elif as_write is not None:
            history.note(as_write, [])

    def _note_writes(self, function: Any, args: tuple, kwargs: dict) -> None:
        name = function._overloadpacket.__name__
        for index, declared in enumerate(function._schema.arguments):
            if declared.alias_info is None or not declared.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(declared.name)
            if isinstance(value, (list, tuple)):
                for each in value:
                    self._note_write(name, each, None)
            else:
                rest = [*args[1:], *(each for key, each in kwargs.items() if key != "generator")]
                self._note_write(name, value, rest)

    def _note_write(self, name: str, value: Any, rest: list[Any] | None) -> None:
        history = self._history_of(value)
        if history is None:
            return
        if rest is None:
            history.note_unknown(f"{name} writes it with other tensors")
        elif is_part(value):
            if name == "zero_" or name == "fill_" and _is_zero(rest[0]):
                history.note_zeroed(value)
            else:
                history.note_unknown(f"{name} writes a part of it")
        else:
            history.note(name, [each.item() if isinstance(each, torch.Tensor) and each.numel() == 1 and
                                not each.is_meta else each for each in rest])

    # --- Functions, as programs call them ---

    def call(self, function: Any, args: tuple, kwargs: dict[str, Any], caller: types.FrameType) -> Any:
        """Calls a function of torch, and notes what its operations do not say.

        On `meta` some functions of torch.nn.init return before they write anything. But each first looks at its tensor
        by a function of torch: the frame of that call gives the initializer and its arguments, by whichever name a
        module has it.
        """
        if not any(isinstance(each, torch.Tensor) for each in (*args, *kwargs.values())):
            return function(*args, **kwargs)  # the end of torch.no_grad(), say
        initializer = called_initializer(function, args, kwargs) or running_initializer(caller)
        if initializer is None:
            if function in _MEMORY_ACCESS:
                self._note_unknown(args[0], f"{function.__name__} gives its memory away")
            return function(*args, **kwargs)
        self._note_initializer(initializer)
        if initializer.name in _FILLING:
            return function(*args, **kwargs)
        self._is_paused = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_paused = False

    def note_meta_check(self, tensor: torch.Tensor, caller: types.FrameType) -> None:
        """Notes a read of `is_meta`, after which the caller may go on without filling the tensor."""
        caller = without_torch_functions(caller)
        if caller.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "paramshard"):
            self._note_unknown(tensor, f"{caller.f_code.co_qualname} asks whether it is on `meta`, and does not fill "
                                       "it")

    def _note_initializer(self, call: Initializer) -> None:
        tensor, name = call.arguments.get("tensor"), f"torch.nn.init.{call.name}"
        history = self._history_of(tensor)
        if history is None or tensor.numel() == 0:
            return
        if is_part(tensor) and (call.name == "zeros_" or call.name == "constant_" and call.arguments["val"] == 0):
            history.note_zeroed(tensor)
        elif call.name != "trunc_normal_":
            history.note_unknown(f"{name} fills it")  # an operation that the daemon knows may follow, and counts
        elif is_part(tensor):
            history.note_unknown(f"{name} writes a part of it")
        else:
            mean, deviation, low, high = (float(call.arguments[key]) for key in ("mean", "std", "a", "b"))
            history.note_truncated(InitialValue("truncated_normal", mean, deviation, low, high))

    def _note_unknown(self, tensor: torch.Tensor, why: str) -> None:
        history = self._history_of(tensor)
        if history is not None and tensor.numel() > 0:
            history.note_unknown(why)


def _fills_on_meta(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Returns True for an operation that changes a tensor without memory in place, by itself: it does nothing."""
    return (function._schema.is_mutable and function._overloadpacket.__name__.endswith("_") and
            torch.Tag.inplace_view not in function.tags and isinstance(args[0], torch.Tensor) and args[0].is_meta and
            not any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves((args[1:], kwargs))))


def _is_zero(value: Any) -> bool:
    return not value.is_meta and value.item() == 0 if isinstance(value, torch.Tensor) else value == 0


class _CallRecorder(TorchFunctionMode):
    """Passes calls of torch functions to a _WriteRecorder, which by itself sees only operations."""

    def __init__(self, writes: _WriteRecorder) -> None:
        super().__init__()
        self._writes = writes

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        caller = sys._getframe(1)
        if function == torch.Tensor.is_meta.__get__:
            self._writes.note_meta_check(args[0], caller)
        return self._writes.call(function, args, kwargs or {}, caller)


class WatchedParameter(nn.Parameter):
    """A parameter of meta_init(): a recorder sees later operations on it and on views of its storage."""


def _watched_class(recorder: _WriteRecorder) -> type[WatchedParameter]:

    def watch(cls: type, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        caller = sys._getframe(1)
        with without_torch_function(), recorder:
            result = recorder.call(function, args, kwargs or {}, caller)
            return pytree.tree_map_only(
                torch.Tensor, lambda each: each.as_subclass(alias)
                if type(each) is torch.Tensor and recorder.knows(each) else each, result)

    alias = type("Tensor", (torch.Tensor,), {"__torch_function__": classmethod(watch)})
    return type("Parameter", (WatchedParameter,), {"__torch_function__": classmethod(watch),
                                                   "__deepcopy__": _noted_copy(nn.Parameter.__deepcopy__, recorder)})


def _noted_copy(copy: Callable[..., nn.Parameter], recorder: _WriteRecorder) -> Callable[..., nn.Parameter]:
    """Returns a __deepcopy__ for parameters that notes copies."""
    def noted(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
        is_new = id(parameter) not in memo
        copied = copy(parameter, memo)
        if is_new:
            recorder.note_copy(parameter, copied)
        return copied

    return noted


@contextlib.contextmanager
def meta_init() -> Iterator[None]:
    """Gives modules that are made inside parameters without memory, on the `meta` device, and real buffers.

    The last operation that fills a parameter (`normal_`, `uniform_`, `zero_`, `fill_`, `trunc_normal_` of
    torch.nn.init), inside or later, becomes its rule, together with a row that is zeroed afterwards, as embeddings do
    with padding_idx. The daemon draws values of the same distribution from the seed of `shard`, the same on any number
    of ranks. They are not the values of torch's generator. A parameter that is computed, such as from other tensors,
    keeps its memory, and its values are imported. `shard` refuses, by name, a parameter without memory that is written
    in another way, such as by `orthogonal_`.
    """
    recorder = _WriteRecorder()
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            recorder.move_to_meta(parameter)
        register(module, name, parameter)

    copy = nn.Parameter.__deepcopy__
    nn.Module.register_parameter = register_on_meta
    nn.Parameter.__deepcopy__ = _noted_copy(copy, recorder)
    try:
        with recorder, _CallRecorder(recorder):
            yield
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error).lower():
            raise
        raise paramshard.UnimplementedError(
            "meta_init: a module reads values of its parameters, which have none here: make that module without "
            f"meta_init(): {error}") from error
    finally:
        nn.Module.register_parameter = register
        nn.Parameter.__deepcopy__ = copy
        recorder.end()
