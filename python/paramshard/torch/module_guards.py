"""Methods of a sharded module that refuse what its parameters in the daemon could not follow."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.placeholder import Placeholder

# Methods of transformers that give a model parameters of another size.
_RESIZING = ("resize_token_embeddings", "resize_position_embeddings", "resize_num_qa_labels")


def guard(module: nn.Module) -> None:
    """Replaces methods of one module, without its submodules, by methods that raise before they change anything.

    They copy or pickle the module, convert, add or resize its parameters, or move the weights of an RNN.
    """
    module.__reduce_ex__ = _refuse_copies
    module._apply = _checked_apply(module)
    module.register_parameter = _checked_register_parameter(module)
    for name in _RESIZING:
        if hasattr(type(module), name):
            setattr(module, name, _checked_resize(module, name))
    if isinstance(module, nn.RNNBase):
        # It would move weights into memory of its own, where the next gather does not write them.
        module.flatten_parameters = _do_nothing


def _do_nothing() -> None:
    pass


def _refuse_copies(protocol: Any) -> Any:
    """Replaces __reduce_ex__, which copies and pickles."""
    raise paramshard.FailedPreconditionError(
        "copy or pickle a sharded module: its parameters are in the daemon alone; save model.state_dict(), and copy "
        "modules before shard()")


def _checked_apply(module: nn.Module) -> Callable[..., nn.Module]:
    """Returns a replacement of _apply that refuses a conversion before it has converted any part."""
    reference = weakref.ref(module)

    def apply(function: Callable[[torch.Tensor], torch.Tensor], *arguments: Any, **options: Any) -> nn.Module:
        converted = reference()
        for parameter in converted.parameters():
            if isinstance(parameter, Placeholder):
                function(parameter)
        return type(converted)._apply(converted, function, *arguments, **options)

    return apply


def _checked_register_parameter(module: nn.Module) -> Callable[[str, nn.Parameter | None], None]:
    """Returns a replacement of register_parameter that refuses ties and masks, which are made by that call."""
    reference = weakref.ref(module)

    def register_parameter(name: str, param: nn.Parameter | None) -> None:
        registering = reference()
        if type(param) is Placeholder and not param.owner.has_place(param, registering, name):
            raise paramshard.FailedPreconditionError(
                f"register {name}: {param.parameter_name} stays where shard() has found it: tie, prune and parametrize "
                "modules before shard()")
        type(registering).register_parameter(registering, name, param)

    return register_parameter


def _checked_resize(module: nn.Module, name: str) -> Any:
    """Returns a replacement of a method of _RESIZING. resize_token_embeddings() to the present size does nothing."""
    method = getattr(type(module), name)
    reference = weakref.ref(module)

    @functools.wraps(method)
    def resize(*arguments: Any, **options: Any) -> Any:
        resized = reference()
        if name == "resize_token_embeddings" and _keeps_size(resized, *arguments, **options):
            return resized.get_input_embeddings()
        raise paramshard.FailedPreconditionError(
            f"{name} of a sharded {type(resized).__name__}: the daemon has parameters of the sizes at shard(): "
            "resize the model before shard()")

    return resize


def _keeps_size(model: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None,
                *_: Any, **__: Any) -> bool:
    rows = model.get_input_embeddings().weight.shape[0]
    wanted = rows if new_num_tokens is None else new_num_tokens
    if pad_to_multiple_of is not None:
        wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
    return wanted == rows
