"""Views: the tensors that a reader wants, and how each is made of a model's parameters.

    with reader.acquire() as snapshot:
        view = paramshard.views.hf(snapshot.parameters())
    outputs = view.allocate()
    plan = paramshard.Plan(view, outputs)        # checks everything, once
    with reader.acquire() as snapshot:
        snapshot.copy_into(plan)                 # of every version from now on
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paramshard._core import ReadParameter

_BLOCK = 128  # rows and columns with one scale, in engines of FP8
# Names of linear layers in models of transformers that do not end in "proj".
_LINEAR_NAMES = frozenset(("dense", "dense_4h_to_h", "dense_h_to_4h", "fc1", "fc2", "fc_in", "fc_out", "k", "key", "o",
                           "q", "qkv", "query", "query_key_value", "v", "value", "w1", "w2", "w3", "wi", "wi_0", "wi_1",
                           "wo"))
_EXPERTS = ".experts."
# Dtypes that NumPy does not have.
_BIT_PATTERNS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8",
                 "float4_e2m1fn_x2": "uint8"}


@dataclass(frozen=True)
class Part:
    """Rows and columns of a parameter, which is seen as a matrix of its last dimension by all others.

    `rows` and `columns` are (begin, end) in elements, None: all. `what`: "decoded" values, or "codes", "scales" or the
    "amax" of the plane as they lie. Codes and scales are of whole blocks; a scale of the whole tensor goes with any part.
    """

    parameter: str
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    what: str = "decoded"


@dataclass(frozen=True)
class Output:
    """A tensor, which parts fill from its first row to its last: layers one below the other, or a stack of experts.

    `dtype` has torch's name: float32, bfloat16 or float16 of decoded values; of codes and scales their own, or uint8.
    A vector's parts follow each other.
    """

    name: str
    shape: Sequence[int]
    dtype: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class View:
    """Outputs of a model with these parameters, as `Snapshot.parameters` returns them. `Plan` checks it."""

    parameters: Sequence[ReadParameter]
    outputs: Sequence[Output]
    # As config.json of transformers and vLLM have it, of outputs that are codes and scales in FP8. None: nothing is.
    quantization_config: dict[str, Any] | None = None

    def allocate(self, framework: str = "numpy") -> dict[str, Any]:
        """Returns memory for all outputs, by name: of "numpy", bit patterns where it has no such dtype, or "torch"."""
        if framework == "numpy":
            import numpy as np
            return {each.name: np.empty(tuple(each.shape), _BIT_PATTERNS.get(each.dtype, each.dtype))
                    for each in self.outputs}
        if framework != "torch":
            raise ValueError(f"allocate: want numpy or torch, got {framework!r}")
        import torch
        return {each.name: torch.empty(tuple(each.shape), dtype=getattr(torch, each.dtype)) for each in self.outputs}


def hf(parameters: Sequence[ReadParameter], dtype: str = "bfloat16", *,
       rename: Callable[[str], str | None] | None = None) -> View:
    """Returns the view of all parameters, decoded, with the names and shapes of a checkpoint of transformers.

    These are the module's own, so that `load_state_dict` and `load_weights` of engines take it. `rename` makes other
    names of them; it returns None for a parameter to be left out.
    """
    return View(parameters, [_decoded(parameter, name, dtype) for parameter, name in _named(parameters, rename)])


def hf_fp8(parameters: Sequence[ReadParameter], dtype: str = "bfloat16", *,
           rename: Callable[[str], str | None] | None = None) -> View:
    """Returns the view of a checkpoint that transformers and vLLM open as `fp8` with blocks of 128 x 128.

    Weights of linear layers in FP8_BLOCK_128X128 of E4M3, with whole blocks, are codes and `weight_scale_inv` as they
    lie: nothing is quantized again. All others are decoded. `quantization_config` names the modules of these.
    """
    named = _named(parameters, rename)
    decoded_modules = {_module_of(name) for parameter, name in named
                       if len(parameter.shape) >= 2 and not _is_fp8(parameter, name)}
    outputs: list[Output] = []
    for parameter, name in named:
        if not _is_fp8(parameter, name) or _module_of(name) in decoded_modules:
            outputs.append(_decoded(parameter, name, dtype))
            continue
        rows, columns = parameter.shape
        outputs.append(Output(name, (rows, columns), "float8_e4m3fn", [Part(parameter.name, what="codes")]))
        outputs.append(Output(f"{name}_scale_inv", (rows // _BLOCK, columns // _BLOCK), "float32",
                              [Part(parameter.name, what="scales")]))
    return View(parameters, outputs, {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [_BLOCK, _BLOCK],
        "modules_to_not_convert": sorted(decoded_modules),
    })


def _named(parameters: Sequence[ReadParameter],
           rename: Callable[[str], str | None] | None) -> list[tuple[ReadParameter, str]]:
    """Returns the parameters that are not left out, each with its output's name."""
    named = ((parameter, rename(parameter.name) if rename else parameter.name) for parameter in parameters)
    return [(parameter, name) for parameter, name in named if name is not None]


def _decoded(parameter: ReadParameter, name: str, dtype: str) -> Output:
    return Output(name, tuple(parameter.shape), dtype, [Part(parameter.name)])


def _is_fp8(parameter: ReadParameter, name: str) -> bool:
    """Returns True for what the fp8 quantizer of transformers takes for codes: it replaces linear layers alone, and
    derives the height of a block from the rows of scales."""
    return (parameter.format == "FP8_BLOCK_128X128" and parameter.element == "E4M3" and len(parameter.shape) == 2
            and all(size % _BLOCK == 0 for size in parameter.shape) and _is_linear(name))


def _is_linear(name: str) -> bool:
    if not name.endswith(".weight"):
        return False
    module = name.removesuffix(".weight").rpartition(".")[2]
    # "c_proj" is a Conv1D of GPT-2, whose matrix is the transpose of a linear layer's.
    return (module.endswith("proj") and module != "c_proj") or module in _LINEAR_NAMES


def _module_of(name: str) -> str:
    """Returns the module that transformers converts or not: all experts of a layer are one."""
    if _EXPERTS in name:
        return name[:name.index(_EXPERTS) + len(_EXPERTS) - 1]
    return name.removesuffix(".weight")
