"""Models with adapters of PEFT, and wrappers of torch.compile: names in the base model, and what is saved."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from torch import nn

import paramshard
from paramshard.torch.state_dict import StateDicts
from paramshard.torch.torch_internals import own_modules

# Parts that PEFT, and torch.compile, insert into the names of existing parameters.
_WRAPPED = re.compile(r"(?:^|(?<=\.))(?:base_layer|original_module|modules_to_save\.[^.]+|token_adapter)\.")
_COMPILED = re.compile(r"(?:^|(?<=\.))_orig_mod\.")


# Kinds of PEFT whose first values do not depend on values of the base model.
_INDEPENDENT = frozenset({"LORA", "ADALORA", "IA3", "OFT", "BOFT", "VERA", "LOHA", "LOKR", "PROMPT_TUNING", "P_TUNING",
                          "PREFIX_TUNING"})


def uncompiled(module: nn.Module) -> nn.Module:
    """Returns the module that torch.compile() was given, or `module` itself if it is not compiled."""
    while "_orig_mod" in own_modules(module):
        module = own_modules(module)["_orig_mod"]
    return module


def plain_name(name: str) -> str:
    """Returns a key or a module's path without the parts that torch.compile inserts."""
    return _COMPILED.sub("", name)


def is_of_transformers(module: nn.Module) -> bool:
    return hasattr(module, "base_model_prefix") and hasattr(module, "save_pretrained")


def has_adapters(module: nn.Module) -> bool:
    return bool(getattr(module, "peft_config", None))


def depends_on_base(module: nn.Module) -> str | None:
    """Names an adapter that was computed from the base model's values when it was made."""
    for name, config in (getattr(module, "peft_config", None) or {}).items():
        initial = getattr(config, "init_lora_weights", True)
        if (config.peft_type.value not in _INDEPENDENT or getattr(config, "use_dora", False) or
                getattr(config, "trainable_token_indices", None) is not None or
                isinstance(initial, str) and initial not in ("gaussian", "orthogonal") or
                getattr(config, "prompt_tuning_init", "RANDOM") != "RANDOM"):
            return f"{name} ({config.peft_type.value})"
    return None


class BaseModel:
    """The base model of a module with adapters; without adapters, the module itself."""

    def __init__(self, module: nn.Module):
        module = uncompiled(module)
        self.module = module
        self._prefix = ""
        self._adapters: re.Pattern[str] | None = None
        if has_adapters(module):
            from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
            prefixes = {PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type] for config in module.peft_config.values()}
            prefixes.add("trainable_tokens_")  # of LoRA, too
            self._adapters = re.compile(rf"(^|\.)({'|'.join(map(re.escape, sorted(prefixes)))})")
        if hasattr(module, "get_base_model"):  # otherwise adapters are in a model of transformers itself
            self.module = uncompiled(module.get_base_model())
            self._prefix = next(plain_name(f"{name}.") for name, each in module.named_modules() if each is self.module)

    def name_of(self, name: str) -> str | None:
        """Returns a parameter's or a buffer's name in this model; None for names of adapters."""
        plain = plain_name(name)
        if not plain.startswith(self._prefix) or self._adapters is not None and self._adapters.search(plain):
            return None
        plain = plain.removeprefix(self._prefix)
        return plain if self._adapters is None else _WRAPPED.sub("", plain)


def saved_by_peft(module: nn.Module, dictionaries: StateDicts) -> dict[str, Any]:
    """Returns the part of `state_dict()` that PEFT saves. The rest is not read, unless PEFT computes with it."""
    from peft import get_peft_model_state_dict
    module = uncompiled(module)
    try:
        with dictionaries.without_values(), materialized_prompts(module, dictionaries):
            unread = module.state_dict()
            saved = {id(value) for adapter in module.peft_config
                     for value in get_peft_model_state_dict(module, dict(unread), adapter_name=adapter).values()}
    except paramshard.FailedPreconditionError:
        return module.state_dict()
    return {key: dictionaries.value_of(value) for key, value in unread.items() if id(value) in saved}


def materialized_prompts(module: nn.Module, dictionaries: StateDicts) -> contextlib.AbstractContextManager[None]:
    """Gives prompt encoders their values inside: PEFT computes saved prompts with them, on one rank alone."""
    prompts = getattr(module, "prompt_encoder", None)
    return contextlib.nullcontext() if prompts is None else dictionaries.materialized(prompts)
