"""Methods of transformers that give a model parameters of another size."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch import nn

import paramshard

_METHODS = ("resize_token_embeddings", "resize_position_embeddings", "resize_num_qa_labels")


def refuse_resizing(module: nn.Module) -> None:
    """Makes a sharded module's methods that resize its parameters raise, before they change anything.

    resize_token_embeddings() to the present size does nothing, and may be called.
    """
    for name in _METHODS:
        if hasattr(type(module), name):
            setattr(module, name, _refusing(module, name))


def _refusing(module: nn.Module, name: str) -> Any:
    method = getattr(type(module), name)
    reference = weakref.ref(module)

    @functools.wraps(method)
    def resize(*arguments: Any, **options: Any) -> Any:
        of = reference()
        if name == "resize_token_embeddings" and _keeps_size(of, *arguments, **options):
            return of.get_input_embeddings()
        raise paramshard.FailedPreconditionError(
            f"{name} of a sharded {type(of).__name__}: the daemon has parameters of the sizes at shard(): "
            "resize the model before shard()")

    return resize


def _keeps_size(model: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None,
                *_: Any, **__: Any) -> bool:
    rows = model.get_input_embeddings().weight.shape[0]
    wanted = rows if new_num_tokens is None else new_num_tokens
    if pad_to_multiple_of is not None:
        wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
    return wanted == rows
