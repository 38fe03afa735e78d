"""Arguments and results of modules: the tensors in them, and their types."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from paramshard.torch.torch_internals import pytree


def tensors_of(output: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yields the tensors in a module's result, also in attributes of classes that pytree does not know."""
    seen = set() if seen is None else seen
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif not isinstance(leaf, (type, nn.Module)) and id(leaf) not in seen:
            attributes = _attributes_of(leaf)
            if attributes:
                seen.add(id(leaf))
                yield from tensors_of(attributes, seen)


def _attributes_of(value: Any) -> list[Any]:
    attributes = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, Mapping):
        attributes += value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        attributes += value
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for slot in vars(kind).values():
                if isinstance(slot, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # it has not been set
                        attributes.append(slot.__get__(value))
    return attributes


def are_tensors(values: tuple[Any, ...]) -> bool:
    """Returns True if each is a tensor: the usual arguments of a block, for which pytree takes time."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            return False
    return True


_WITHOUT_TENSORS = frozenset({types.NoneType, bool, int, float, str})


def is_without_gradient(value: Any) -> bool:
    """Returns True if a quick look shows that no tensor in it requires a gradient, as in most named arguments."""
    kind = type(value)
    if kind in _WITHOUT_TENSORS:
        return True
    if kind is torch.Tensor:
        return not value.requires_grad
    return kind is tuple and all(map(is_without_gradient, value))


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """Returns the tree with its floating-point tensors in another type."""
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype) if tree.dtype is not dtype and tree.is_floating_point() else tree
    if type(tree) is tuple and are_tensors(tree):
        return tuple([cast(each, dtype) for each in tree])
    return pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree)
