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
from dataclasses import dataclass, replace
from typing import Any

from paramshard._core import ReadParameter
from paramshard.errors import InvalidArgumentError

_BLOCK = 128  # rows and columns with one scale, in engines of FP8
# Names of linear layers in models of transformers that do not end in "proj".
_LINEAR_NAMES = frozenset(("dense", "dense_4h_to_h", "dense_h_to_4h", "fc1", "fc2", "fc_in", "fc_out", "k", "key", "o",
                           "q", "qkv", "query", "query_key_value", "v", "value", "w1", "w2", "w3", "wi", "wi_0", "wi_1",
                           "wo"))
_EXPERTS = ".experts."
# Layers of each expert, by the last name of the parameter that has those of all experts.
_LAYERS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
# Dtypes that NumPy does not have.
_BIT_PATTERNS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8",
                 "float4_e2m1fn_x2": "uint8"}
_DTYPES = ("float32", "float16", "uint8", *_BIT_PATTERNS)  # of outputs


@dataclass(frozen=True)
class Part:
    """Rows and columns of a parameter, seen as a matrix: its last dimension gives the columns, all others the rows.

    `rows` and `columns` are (begin, end) in elements, None: all. `what`: "decoded" values, or "codes", "scales" or the
    "amax" of the plane as stored. Codes and scales are of whole blocks; a scale of the whole tensor goes with any part.
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
    # For config.json, where outputs are codes and scales that transformers and vLLM read.
    quantization_config: dict[str, Any] | None = None

    def allocate(self, framework: str = "numpy", device: Any = None) -> dict[str, Any]:
        """Returns memory for all outputs, by name, uninitialized.

        Args:
            framework: "numpy", with bit patterns where NumPy has no such dtype, or "torch".
            device: Of torch's tensors; None: torch's default.

        Raises:
            InvalidArgumentError: Another framework, or an output of an unknown dtype.
        """
        if framework not in ("numpy", "torch"):
            raise InvalidArgumentError(f"allocate: want numpy or torch, got {framework!r}")
        for each in self.outputs:
            if each.dtype not in _DTYPES:
                raise InvalidArgumentError(f"allocate: output {each.name}: want {', '.join(_DTYPES)}, got {each.dtype}")
        if framework == "numpy":
            import numpy as np
            return {each.name: np.empty(tuple(each.shape), _BIT_PATTERNS.get(each.dtype, each.dtype))
                    for each in self.outputs}
        import torch
        return {each.name: torch.empty(tuple(each.shape), dtype=getattr(torch, each.dtype), device=device)
                for each in self.outputs}


def hf(parameters: Sequence[ReadParameter], dtype: str = "bfloat16", *, split_experts: bool = False,
       rename: Callable[[str], str | None] | None = None) -> View:
    """Returns the view of all parameters, decoded, with names and shapes of a checkpoint of transformers.

    Names are those of the trainer's module, which are those of its checkpoint. Some modules keep all experts of a layer
    in one parameter, `experts.gate_up_proj` and `experts.down_proj`, where their checkpoints have `gate_proj`, `up_proj`
    and `down_proj` of each: `split_experts` makes these (Qwen3-MoE and DeepSeek need it, GPT-OSS and Llama 4 do not).
    `rename` makes the last changes to names; it returns None for a tensor to be left out.
    """
    return View(parameters, [_decoded(each, dtype) for each in _tensors(parameters, split_experts, rename)])


def hf_fp8(parameters: Sequence[ReadParameter], dtype: str = "bfloat16", *, split_experts: bool = False,
           rename: Callable[[str], str | None] | None = None) -> View:
    """Returns the view of a checkpoint that transformers and vLLM open as `fp8` with blocks of 128 x 128.

    Weights of linear layers in FP8_BLOCK_128X128 of E4M3, with whole blocks, are codes and `weight_scale_inv` as
    stored: nothing is quantized again. All others are decoded. `quantization_config` names the modules of these. Other
    arguments as for `hf`.
    """
    tensors = _tensors(parameters, split_experts, rename)
    decoded_modules = {_module_of(each.name) for each in tensors if len(each.shape) >= 2 and not _is_fp8(each)}
    outputs: list[Output] = []
    for each in tensors:
        if not _is_fp8(each) or _module_of(each.name) in decoded_modules:
            outputs.append(_decoded(each, dtype))
            continue
        codes, scales = (Part(each.parameter.name, each.rows, what=what) for what in ("codes", "scales"))
        rows, columns = each.shape
        outputs.append(Output(each.name, each.shape, "float8_e4m3fn", [codes]))
        outputs.append(Output(f"{each.name}_scale_inv", (rows // _BLOCK, columns // _BLOCK), "float32", [scales]))
    return View(parameters, outputs, {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [_BLOCK, _BLOCK],
        "modules_to_not_convert": sorted(decoded_modules),
    })


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a checkpoint: rows of one parameter, None: all."""

    name: str
    parameter: ReadParameter
    rows: tuple[int, int] | None
    shape: tuple[int, ...]


def _tensors(parameters: Sequence[ReadParameter], split_experts: bool,
             rename: Callable[[str], str | None] | None) -> list[_Tensor]:
    tensors: list[_Tensor] = []
    for parameter in parameters:
        name = _plain(parameter.name)
        prefix, _, last = name.rpartition(_EXPERTS)
        if split_experts and prefix and last in _LAYERS and len(parameter.shape) == 3:
            tensors += _of_experts(parameter, prefix + _EXPERTS, _LAYERS[last])
        else:
            tensors.append(_Tensor(name, parameter, None, tuple(parameter.shape)))
    if rename is None:
        return tensors
    return [replace(each, name=name) for each in tensors if (name := rename(each.name)) is not None]


def _of_experts(parameter: ReadParameter, prefix: str, layers: Sequence[str]) -> list[_Tensor]:
    experts, rows, columns = parameter.shape
    if rows % len(layers):
        raise ValueError(f"{parameter.name}: want {len(layers)} layers of equal size for each expert, got {rows} rows")
    size = rows // len(layers)
    names = [f"{prefix}{expert}.{layer}.weight" for expert in range(experts) for layer in layers]
    return [_Tensor(name, parameter, (i * size, (i + 1) * size), (size, columns)) for i, name in enumerate(names)]


def _plain(name: str) -> str:
    """Returns a name without the parts that torch.compile inserts."""
    return name.replace("_orig_mod.", "")


def _decoded(tensor: _Tensor, dtype: str) -> Output:
    return Output(tensor.name, tensor.shape, dtype, [Part(tensor.parameter.name, tensor.rows)])


def _is_fp8(tensor: _Tensor) -> bool:
    """Returns True for what the fp8 quantizer of transformers takes for codes: it replaces linear layers alone, and
    derives the height of a block from the rows of scales."""
    return (tensor.parameter.format == "FP8_BLOCK_128X128" and tensor.parameter.element == "E4M3"
            and len(tensor.shape) == 2 and all(size % _BLOCK == 0 for size in tensor.shape) and _is_linear(tensor.name))


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
