"""Bound methods that hold their object weakly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import paramshard


def weak_method(owner: Any, name: str, *, gone: str | None = None) -> Callable[..., Any]:
    """Returns a bound method that does not keep its object, which a hook of a module would hold in a cycle.

    When the object is gone it does nothing, or raises FailedPreconditionError with the message `gone`.
    """
    reference = weakref.ref(owner)

    def call(*arguments: Any, **options: Any) -> Any:
        target = reference()
        if target is not None:
            return getattr(target, name)(*arguments, **options)
        if gone is not None:
            raise paramshard.FailedPreconditionError(gone)
        return None

    return call
