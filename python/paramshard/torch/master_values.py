"""Values of parameters in full precision: read from the daemon, and prepared for an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

import paramshard
from paramshard.torch.dtypes import PARAMETER_DTYPES
from paramshard.torch.unit_parameter import UnitParameter


def read_masters(client: paramshard.Client, model: str, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
    """Returns values by parameter: float32, in host memory, each of its parameter's shape.

    FailedPreconditionError if daemons of other nodes have some of them.
    """
    if not parameters:
        return {}
    exported = client.export_tensors(model, parameters=[parameter.name for parameter in parameters])
    masters = {parameter.name: np.empty(_matrix_shape(parameter.placeholder.shape), np.float32)
               for parameter in parameters}
    missing = {name: np.ones(len(values), bool) for name, values in masters.items()}
    for extent in exported.extents:
        rows = slice(extent.first_row, extent.first_row + extent.rows)
        masters[extent.parameter][rows] = extent.values
        missing[extent.parameter][rows] = False
    for name, rows in missing.items():
        if rows.any():
            raise paramshard.FailedPreconditionError(
                f"read {name}: {rows.sum()} of {len(rows)} rows are in daemons of other nodes: all ranks can read "
                "it inside of `with sharded.unsharded():`, or save the model instead")
    return {parameter.name: torch.from_numpy(masters[parameter.name]).view(parameter.placeholder.shape)
            for parameter in parameters}


def given_values(values: Mapping[str, torch.Tensor], parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
    """Returns values of parameters that this process will import. FailedPreconditionError if it lacks one."""
    for parameter in parameters:
        value = values.get(parameter.name)
        # Values from a folder that another rank reads are empty here.
        if value is None or value.shape != parameter.placeholder.shape:
            raise paramshard.FailedPreconditionError(
                f"state_dict: {parameter.name} has no values on this rank before the model is open; make the "
                "optimizer first")
    return {parameter.name: values[parameter.name] for parameter in parameters}


def to_import(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the values as matrices in host memory, which `paramshard.Client.import_tensors` takes."""
    return {name: value.detach().to("cpu", value.dtype if value.dtype in PARAMETER_DTYPES else torch.float32)
            .reshape(-1, value.shape[-1] if value.dim() else 1).contiguous() for name, value in values.items()}


def _matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """Returns [product of all dimensions but the last, last], of a parameter with elements."""
    columns = shape[-1] if shape else 1
    return shape.numel() // columns, columns
