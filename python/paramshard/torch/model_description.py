"""Description of a module's parameters for the daemon."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import paramshard
from paramshard.spec import Encoding, FormatRule, InitialValue, ModelSpec, ParameterGroup, ParameterSpec, UnitSpec
from paramshard.torch.dtypes import NAMES
from paramshard.torch.unit import Unit
from paramshard.torch.unit_parameter import UnitParameter
from paramshard.torch.write_history import Rule


@dataclass(frozen=True)
class Matrices:
    """The matrices in a group's parameters, of `paramshard.ParameterSpec.transposed` and `split_rows`."""

    transposed: bool = False
    split_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class OptimizerPlan:
    """An optimizer's description of the parameters, given before the model is made."""

    groups: list[ParameterGroup]
    group_of: dict[str, int]  # by parameter
    exp_avg_type: str | None
    exp_avg_sq_type: str | None
    matrices: list[Matrices]  # by group


class ModelDescription:
    """Makes the paramshard.ModelSpec of a sharded module, which is complete once it has the optimizer's plan."""

    def __init__(self, name: str, units: Sequence[Unit], *, format: str | Sequence[tuple[str, str]] | None,
                 grad_dtype: torch.dtype, options: dict[str, Any]):
        """`format` and `grad_dtype`: as in `shard`. `options`: further fields of ModelSpec."""
        self._name = name
        self._units = units
        self._format = format
        self._gradient_type = NAMES[grad_dtype]
        self._options = options
        self.plan: OptimizerPlan | None = None  # None: a model that is not trained
        self.initial: dict[str, Rule] = {}  # rules of meta_init(), by parameter
        self.is_made = False  # the daemon has made the model

    @property
    def most_pushes(self) -> int | None:
        """Largest number of pushes of a unit in a step; None: any."""
        return self._options["pushes_per_step"]

    def spec(self) -> ModelSpec:
        """Returns the specification as it is known now."""
        rules = [] if self._format is None or isinstance(self._format, str) else [
            FormatRule(pattern, Encoding(format)) for pattern, format in self._format]
        units = [UnitSpec(unit.name, [self._parameter_spec(parameter) for parameter in unit.parameters])
                 for unit in self._units if unit.parameters]
        groups = self.plan.groups if self.plan is not None else []
        return ModelSpec(self._name, units, groups, format_rules=rules, **self._options)

    def _parameter_spec(self, parameter: UnitParameter) -> ParameterSpec:
        placeholder = parameter.placeholder
        # The daemon keeps moments of the parameters that were trained at first, even if they are frozen now.
        trainable = parameter.trainable if self.is_made else self.plan is not None and placeholder.requires_grad
        rule = self.initial.get(parameter.name)
        if isinstance(self._format, str):
            encoding = Encoding(self._format)
        else:
            encoding = Encoding(None if self._format is not None else NAMES[placeholder.dtype])
        spec = ParameterSpec(parameter.name, list(placeholder.shape), encoding, trainable=trainable,
                             gradient_type=self._gradient_type,
                             initial_value=rule if isinstance(rule, InitialValue) else InitialValue())
        if trainable:
            spec.group = self.plan.group_of[parameter.name]
            spec.exp_avg_type, spec.exp_avg_sq_type = self.plan.exp_avg_type, self.plan.exp_avg_sq_type
            matrices = self.plan.matrices[spec.group]
            spec.transposed, spec.split_rows = matrices.transposed, list(matrices.split_rows)
        return spec

    def missing_value(self, values: Collection[str]) -> paramshard.Error | None:
        """Returns an error that names a parameter without a value and a rule, if there is one.

        `values`: names of parameters that have values.
        """
        for parameter in (each for unit in self._units for each in unit.parameters):
            rule = self.initial.get(parameter.name)
            if parameter.name in values or isinstance(rule, InitialValue):
                continue
            why = (f"the daemon cannot draw its initial values ({rule.why}): make the model without meta_init()"
                   if rule is not None else "it lies on `meta` and has no initial values: make its module in "
                   "meta_init(), or without meta_init() if it is computed from other parameters")
            return paramshard.InvalidArgumentError(f"shard {self._name}: {parameter.name}: {why}, or call "
                                                   "load_pretrained() before the optimizer is made")
        return None

    def advice(self, existing: paramshard.ModelSummary | None) -> str:
        """Returns advice for an error: how this description differs from the daemon's model."""
        if existing is None or existing.commit_number == 0:
            return ("the daemon has another model of this name: take another name=, or delete it by "
                    f"`paramshardctl delete {self._name}`")
        how = ("make the optimizer that it was trained with, which need not step, instead of calling open()"
               if self.plan is None else ("describe it as it was trained, with the same units, "
                                          "formats, optimizer, groups and accumulate="))
        return (f"the daemon has trained it up to commit {existing.commit_number}: {how}, or take another name= "
                "(sharded.save_pretrained() and load_pretrained() carry values there)")
