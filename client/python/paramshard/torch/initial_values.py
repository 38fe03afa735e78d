"""How a module that is not materialized says what its parameters begin with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import paramshard
from paramshard.spec import InitialValue


class Unknown:
    """Values that no rule of the daemon describes, and why."""

    def __init__(self, why: str):
        self.why = why


Rule = InitialValue | Unknown

_ATTRIBUTE = "_paramshard_initial_value"


def rule_of(parameter: torch.Tensor) -> Rule | None:
    """What meta_init() has seen; None for a parameter that has values, or was made outside of it."""
    rule, version = getattr(parameter, _ATTRIBUTE, (None, None))
    if rule is not None and parameter._version != version:
        return Unknown("it was written behind meta_init()")
    return rule


# The operations by which torch.nn.init.trunc_normal_ makes its values, up to its clamp.
_TRUNCATED = ["uniform_", "erfinv_", "mul_", "add_", "clamp_"]


class _History:
    """The operations that wrote a tensor, since the last one that left nothing of the values before."""

    def __init__(self, of: torch.Tensor) -> None:
        self._operations: list[tuple[str, list[Any]]] = []
        self._why: str | None = None
        # Keeps the storage's address, but not its memory: no other tensor is taken for this one when it is gone.
        self._of = StorageWeakRef(of.untyped_storage())

    def note(self, name: str, arguments: list[Any]) -> None:
        if name in ("normal_", "uniform_", "zero_", "fill_"):
            self._operations.clear()
            self._why = None
        self._operations.append((name, arguments))

    def note_unknown(self, why: str) -> None:
        self._why = why

    def rule(self) -> Rule:
        if self._why is not None:
            return Unknown(self._why)
        if not self._operations:
            return Unknown("nothing has written it")
        if len(self._operations) == 1:
            return self._simple(*self._operations[0])
        if [name for name, _ in self._operations] == _TRUNCATED:
            return self._truncated()
        return Unknown("written by " + ", ".join(name for name, _ in self._operations))

    @staticmethod
    def _simple(name: str, arguments: list[Any]) -> Rule:
        def argument(index: int, default: float) -> float:
            return float(arguments[index]) if len(arguments) > index else default
        if name == "zero_":
            return InitialValue("zeros")
        if name == "fill_":
            value = argument(0, 0.0)
            return {0.0: InitialValue("zeros"), 1.0: InitialValue("ones")}.get(value, InitialValue("constant", value))
        if name == "normal_":
            return InitialValue("normal", argument(0, 0.0), argument(1, 1.0))
        if name == "uniform_":
            return InitialValue("uniform", argument(0, 0.0), argument(1, 1.0))
        return Unknown(f"written by {name}")

    def _truncated(self) -> Rule:
        deviation = float(self._operations[2][1][0]) / math.sqrt(2.0)
        mean = float(self._operations[3][1][0])
        low, high = (float(bound) for bound in self._operations[4][1][:2])
        return InitialValue("truncated_normal", mean, deviation, low, high)


# What makes a new tensor, as the operation in place that would give it the same values. `empty` has none.
_FACTORIES = {"empty": None, "empty_like": None, "new_empty": None, "empty_strided": None, "zeros": "zero_",
              "ones": "ones", "full": "full", "randn": "normal_", "rand": "uniform_"}


class _WriteRecorder(TorchDispatchMode):
    """Notes what writes tensors that are made meanwhile. They are told apart by their storages, which views share."""

    def __init__(self) -> None:
        super().__init__()
        self._histories: dict[int, _History] = {}
        self._parameters: list[tuple[nn.Parameter, _History]] = []

    def move_to_meta(self, parameter: nn.Parameter) -> None:
        """Takes the memory of a parameter, unless it was computed: its values could not be made again then.

        It stays the same object, for whoever has it already: another module that ties it, or one that freezes it later.
        """
        history = self._histories.get(parameter.untyped_storage()._cdata)
        if history is None or parameter.is_meta:
            return
        with torch.utils._python_dispatch._disable_current_modes():
            bare = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            bare.__dict__.update(vars(parameter))
            torch.utils.swap_tensors(parameter, bare)
        self._histories[parameter.untyped_storage()._cdata] = history
        self._parameters.append((parameter, history))

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function._schema.is_mutable:
            self._note_writes(function, args, kwargs)
        elif isinstance(result, torch.Tensor) and result.layout == torch.strided:
            self._note_new(function, args, result)
        return result

    def _note_new(self, function: Any, args: tuple, result: torch.Tensor) -> None:
        storage = result.untyped_storage()._cdata
        read = {value.untyped_storage()._cdata for value in torch.utils._pytree.tree_leaves(args)
                if isinstance(value, torch.Tensor) and value.layout == torch.strided}
        if storage in read:
            return  # a view
        name = function._overloadpacket.__name__
        if name not in _FACTORIES:
            return
        self._histories[storage] = history = _History(result)
        as_write = _FACTORIES[name]
        if as_write == "ones":
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
        history = self._histories.get(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None
        if history is None:
            return
        if rest is None:
            history.note_unknown(f"{name} writes it with other tensors")
        elif value.numel() * value.element_size() != value.untyped_storage().nbytes():
            history.note_unknown(f"{name} writes a part of it")
        else:
            history.note(name, [each.item() if isinstance(each, torch.Tensor) and each.numel() == 1 and
                                not each.is_meta else each for each in rest])

    def rules(self) -> Iterator[tuple[torch.Tensor, Rule]]:
        for parameter, history in self._parameters:
            yield parameter, history.rule()


@contextlib.contextmanager
def meta_init() -> Iterator[None]:
    """Modules that are made inside have parameters without memory, on the `meta` device, and real buffers.

    The last operation that fills a parameter (`normal_`, `uniform_`, `zero_`, `fill_`, `trunc_normal_` of
    torch.nn.init) becomes its rule: the daemon makes values of the same distribution, from the seed that `shard` is
    given, and the same on any number of ranks. They are not the values that torch's generator would have given. A
    parameter that was computed, from other tensors say, keeps its memory, and its values are imported. One that is
    written in another way once it has none is refused by `shard`, which names it.
    """
    recorder = _WriteRecorder()
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            recorder.move_to_meta(parameter)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta
    try:
        with recorder:
            yield
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error).lower():
            raise
        raise paramshard.UnimplementedError(
            "meta_init: a module reads values of its parameters, which have none here: make that module without "
            f"meta_init(): {error}") from error
    finally:
        nn.Module.register_parameter = register
    for parameter, rule in recorder.rules():
        setattr(parameter, _ATTRIBUTE, (rule, parameter._version))
