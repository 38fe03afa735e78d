"""History of the writes to a parameter of meta_init(), and the rule of the daemon that gives the same values."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from paramshard.spec import InitialValue
from paramshard.torch.torch_internals import StorageWeakRef


class Unknown:
    """Values that no rule of the daemon describes, and why."""

    def __init__(self, why: str):
        self.why = why


Rule = InitialValue | Unknown

# Operations that overwrite the whole tensor.
_FILLS = frozenset({"normal_", "uniform_", "zero_", "fill_"})


class History:
    """The operations that wrote a tensor, from the last one on that overwrote all of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._operations: list[tuple[str, Any]] = []
        self._zeroed: range | None = None  # elements that were zeroed afterwards, by their places in the storage
        self._why: str | None = None
        # Keeps the storage's address, but not its memory: no other tensor is taken for this one when it is gone.
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._dtype = tensor.dtype

    def note(self, name: str, arguments: list[Any]) -> None:
        if name in _FILLS:
            self._operations.clear()
            self._zeroed = self._why = None
        self._operations.append((name, arguments))

    def note_truncated(self, rule: InitialValue) -> None:
        self._operations, self._zeroed, self._why = [("trunc_normal_", rule)], None, None

    def note_zeroed(self, part: torch.Tensor) -> None:
        zeroed = range(part.storage_offset(), part.storage_offset() + part.numel())
        if not part.is_contiguous() or part.dtype != self._dtype or self._zeroed not in (None, zeroed):
            self.note_unknown("several parts of it are zeroed, or one that is not contiguous")
        self._zeroed = zeroed

    def note_unknown(self, why: str) -> None:
        self._why = why

    def note_conversion(self, other: History, source: torch.Tensor, result: torch.Tensor) -> None:
        self._operations, self._zeroed, self._why = list(other._operations), other._zeroed, other._why
        if self._zeroed is not None and (is_part(source) or not source.is_contiguous() or not result.is_contiguous()):
            self.note_unknown("it is converted from another of which a part was zeroed")

    def is_computed(self, parameter: torch.Tensor) -> bool:
        """Returns True if its values cannot be expressed as an initializer."""
        return ((self._why is not None or self._zeroed is not None or bool(self._operations)) and
                isinstance(self.rule_of(parameter), Unknown))

    def rule_of(self, parameter: torch.Tensor) -> Rule:
        """Returns the rule that makes a parameter's values, or Unknown with the reason."""
        rule = self.rule()
        if self._zeroed is None or isinstance(rule, Unknown):
            return rule
        if not parameter.is_contiguous():
            return Unknown("a part of it is zeroed, and it is not contiguous")
        return dataclasses.replace(rule, zero_begin=self._zeroed.start, zero_end=self._zeroed.stop)

    def rule(self) -> Rule:
        """Returns the rule of all elements but the zeroed ones."""
        if self._why is not None:
            return Unknown(self._why)
        if not self._operations:
            return Unknown("nothing has written it")
        if len(self._operations) == 1:
            return self._rule_of(*self._operations[0])
        return Unknown("written by " + ", ".join(name for name, _ in self._operations))

    @staticmethod
    def _rule_of(name: str, arguments: Any) -> Rule:
        def argument(index: int, default: float) -> float:
            return float(arguments[index]) if len(arguments) > index else default
        if name == "trunc_normal_":
            return arguments
        if any(isinstance(each, torch.Tensor) for each in arguments):
            return Unknown(f"{name} writes it with other tensors")
        if name == "zero_":
            return InitialValue("zeros")
        if name == "fill_":
            return _constant(argument(0, 0.0))
        if name == "normal_":
            return InitialValue("normal", argument(0, 0.0), argument(1, 1.0))
        if name == "uniform_":
            low, high = argument(0, 0.0), argument(1, 1.0)
            # The bias of an nn.Linear without inputs is uniform from 0 to 0.
            return InitialValue("uniform", low, high) if low != high else _constant(low)
        return Unknown(f"written by {name}")


def _constant(value: float) -> InitialValue:
    return {0.0: InitialValue("zeros"), 1.0: InitialValue("ones")}.get(value, InitialValue("constant", value))


def is_part(tensor: torch.Tensor) -> bool:
    """Returns True for a view of some elements of a storage."""
    return tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes()
