"""A module whose parameters live in the daemon."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import paramshard
from paramshard.spec import Encoding, FormatRule, InitialValue, ModelSpec, ParameterGroup, ParameterSpec, UnitSpec
from paramshard.torch import pretrained, saved_folder, torchrun
from paramshard.torch.adapters import saved_by_peft
from paramshard.torch.former_parameter import make_former
from paramshard.torch.initial_values import Unknown, rule_of
from paramshard.torch.memory_report import MemoryReport
from paramshard.torch.moments import Moments
from paramshard.torch.opening import Opening, Verdict
from paramshard.torch.other_optimizers import mark_sharded
from paramshard.torch.passes import Passes
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.resizing import refuse_resizing
from paramshard.torch.state_dict import StateDicts
from paramshard.torch.torch_internals import own_parameters
from paramshard.torch.tracked_state import ClientState, RandomState, Stateful, TrackedState, unpack
from paramshard.torch.unit import Unit, UnitParameter

_PLAIN_FORMATS = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}
_GRADIENT_TYPES = {torch.float32: "FP32", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class OptimizerPlan:
    """An optimizer's description of the parameters, given before the model is made."""

    groups: list[ParameterGroup]
    group_of: dict[str, int]  # by parameter
    exp_avg_type: str
    exp_avg_sq_type: str


class ShardedModel:
    """Result of `shard`. Keep it as long as the module is used. Inputs belong on `device`.

    Collective calls, which every rank makes at the same point: calls of the module, `open`, `unsharded`,
    `load_state_dict` of the module after `open`, and calls of the optimizer. `read`, `state_dict` of the module, and
    `last_result` ask the daemon alone, and any rank may call them; but they wait for the last step, which every rank
    must have sent: with tracked schedulers, after these have stepped. `save_pretrained` sends it on all ranks that call
    it.
    """

    def __init__(self, module: nn.Module, units: list[Unit], *, connect: Callable[[], paramshard.Client], name: str,
                 existing: str, rank: int, local_rank: int, device: torch.device, spec: dict[str, Any],
                 takes_any_seed: bool,
                 format: str | Sequence[tuple[str, str]] | None, grad_dtype: torch.dtype):
        self.module = module
        self.name = name
        self.rank = rank
        self._local_rank = local_rank
        self.device = device
        self._existing = existing
        self._spec_options = spec
        self._takes_any_seed = takes_any_seed
        self._format = format
        self._grad_dtype = grad_dtype
        self._units = units
        self._by_name = {name: parameter for unit in units for parameter in unit.parameters for name in parameter.names}
        self._connect = connect
        self._client = connect()
        self._model: paramshard.Model | None = None
        self._passes = Passes(units)
        self._passes.send_step = _weakly(self, "_send_commit")
        self._passes.bring_values = _weakly(self, "_import_values")
        self._passes.check_exported = _weakly(self, "_check_exported")
        self._run = torchrun.run_id()
        self._tracked = TrackedState(_weakly(self, "_send_commit"), self._run)
        self.moments = Moments(name)
        self._commit_to_send: dict[str, Any] | None = None
        self._last_commit: paramshard.PendingCommit | None = None
        self._restored: dict[str, Any] = {}
        self._initial: dict[str, InitialValue | Unknown] = {}
        self._values: dict[str, torch.Tensor] = {}  # to be imported
        self._plan: OptimizerPlan | None = None
        self._was_open = False
        self._lost_values: weakref.finalize | None = None
        self._process = os.getpid()
        self._client.check_spec(self._spec())  # while the module is as it was
        self._attach()
        atexit.register(_weakly(self, "_close_at_exit"))

    # --- Wiring ---

    def _attach(self) -> None:
        before = []
        for parameter in self.parameters():
            module, attribute = parameter.places[0]
            like = own_parameters(module)[attribute]
            before.append((like, parameter.name))
            parameter.placeholder.owner = self
            for each in (like, parameter.placeholder):
                mark_sharded(each, parameter.name)
            rule = rule_of(like)
            if rule is not None:
                self._initial[parameter.name] = rule
            elif not like.is_meta:
                self._values[parameter.name] = like.detach()
        for unit in self._units:
            unit.settle(self.device)
        # Nothing below fails: a module that is refused stays as it was.
        for unit in self._units:
            unit.attach(self._passes)
        for like, name in before:
            make_former(like, name, self)
        self._state_dicts = StateDicts(self._units, _weakly(self, "_values_of"))
        self._state_dicts.attach(self.module, lambda name: _weakly(self._state_dicts, name))
        saved_folder.correct_saving(self.module, self._state_dicts)
        passes = self._passes
        module = self.module
        module.register_forward_pre_hook(_hook(passes, "begin_model"), prepend=True)
        module.register_forward_hook(_hook(passes, "end_forward"))
        for each in module.modules():
            each.register_load_state_dict_pre_hook(_weakly(self, "_begin_loading"))
            each.__reduce_ex__ = _refuse_copies
            each._apply = _checked_apply(each)
            refuse_resizing(each)
            each.register_parameter = _checked_register_parameter(each)
            each.zero_grad = torch.compiler.disable(_weakly(self, "_refuse_partial_discard"))
            if isinstance(each, nn.RNNBase):
                # It would move weights into memory of its own, where the next gather does not write them.
                each.flatten_parameters = _do_nothing
        module.register_load_state_dict_post_hook(_weakly(self, "_import_loaded"))
        module.zero_grad = torch.compiler.disable(_weakly(self, "discard"))

    def has_place(self, placeholder: Placeholder, module: nn.Module, attribute: str) -> bool:
        """Returns True if shard() has found the parameter there."""
        return any(owner is module and name == attribute
                   for owner, name in self._by_name[placeholder.parameter_name].places)

    def parameters(self) -> Iterator[UnitParameter]:
        for unit in self._units:
            yield from unit.parameters

    # --- Opening ---

    @property
    def world_size(self) -> int:
        """Size of the daemons' world; `rank` is this process's rank in it. Both outlive restarts, unlike RANK of
        torchrun."""
        return self.model.world_size

    @property
    def active_rank(self) -> int:
        """Rank of this process among the ranks of the epoch, by which batches are dealt. The same as `rank`, unless
        replicas go on without a lost daemon, whose ranks are left out until it is back."""
        return self.model.active_rank

    @property
    def active_world_size(self) -> int:
        """Number of ranks of the epoch: `world_size`, unless replicas go on without a lost daemon."""
        return self.model.active_world_size

    @property
    def is_open(self) -> bool:
        """True from `open` to `close`."""
        return self._model is not None

    @property
    def model(self) -> paramshard.Model:
        """The open model of the daemon."""
        return self._passes.model

    def open(self, plan: OptimizerPlan | None = None) -> None:
        """Creates the model in the daemon or joins it, and waits for every rank. An optimizer calls this.

        A program that does not train calls it itself, for a model that is new or comes from such a program: a trained
        model has moments and groups, and is opened by the AdamW that it was trained with, which need not step.
        AlreadyExistsError for a model that has been trained or restored, unless `existing` of `shard` decides, for a
        model of another description, and for imported values that the script's values would replace.
        """
        if self._model is not None:
            raise paramshard.FailedPreconditionError(
                f"open {self.name}: model is already open; it has one optimizer, which is made once")
        if self._was_open:
            raise paramshard.FailedPreconditionError(
                f'open {self.name}: model was closed; make the module again, and shard it with existing="resume"')
        self._check_exported()
        self._plan = plan
        missing = self._missing_values()
        opening = self._opening()
        brings_all = all(parameter.name in self._values for parameter in self.parameters())
        verdict = opening.settle(self._spec(), brings=bool(self._values), brings_all=brings_all, missing=missing)
        if verdict is Verdict.FILL:
            opening.fill(self._import_tensors)
        recorded = self._join()
        opening.log_notes()
        self._restored = recorded.states
        self._values.clear()
        self._lost_values = weakref.finalize(self, _warn_of_lost, self.name, self._values, self._process)
        self._lost_values.atexit = False  # _close_at_exit calls it

    def _opening(self) -> Opening:
        return Opening(self._client, self._connect, self.name, existing=self._existing, local_rank=self._local_rank,
                       run=self._run, takes_any_seed=self._takes_any_seed, advise=self._advice)

    def _join(self) -> ClientState:
        spec = self._spec()
        opening = self._opening()
        with opening.telling(lambda: _missing_ranks(opening.known())):
            self._model = self._client.open_model(spec, takes_any_seed=self._takes_any_seed)
        self._check_gpu()
        for parameter, described in zip(self.parameters(), (each for unit in spec.units for each in unit.parameters)):
            parameter.trainable = described.trainable
            if self._plan is None:
                parameter.placeholder.requires_grad_(False)
        self._was_open = True
        self._passes.open(self._model)
        recorded = unpack(self._model.client_state)
        known = opening.known()
        if known is None:
            raise opening.deleted()
        self.moments.open(known.history_id, self._model.commit_number, recorded.history)
        return recorded

    def _advice(self, known: paramshard.ModelSummary | None) -> str:
        """Advice for an error: how this description differs from the daemon's model."""
        if known is None or known.commit_number == 0:
            return ("the daemon has another model of this name: take another name=, or delete it by "
                    f"`paramshardctl delete {self.name}`")
        how = ("make the AdamW that it was trained with, which need not step, instead of calling open()"
               if self._plan is None else "describe it as it was trained, with the same units, formats and groups")
        return f"the daemon has trained it up to commit {known.commit_number}: {how}, or take another name="

    def _check_gpu(self) -> None:
        """Checks the GPU by its UUID, which both sides see, once the daemon has handed over its memory."""
        index = -1 if self.device.index is None else self.device.index
        if self._model.gpu != index:
            gpu, self._model = self._model.gpu, None
            raise paramshard.InvalidArgumentError(
                f"open {self.name}: want cuda:{gpu} of this process, from which the daemon serves rank {self.rank}, "
                f'got {self.device}: call shard() with device="cuda:{gpu}"')

    def _missing_values(self) -> paramshard.Error | None:
        """Returns an error that names a parameter without a value and a rule, if there is one."""
        for parameter in self.parameters():
            rule = self._initial.get(parameter.name)
            if parameter.name in self._values or isinstance(rule, InitialValue):
                continue
            why = (f"the daemon cannot draw its initial values ({rule.why}): make the model without meta_init()"
                   if rule is not None else "it lies on `meta` and has no initial values: make its module in "
                   "meta_init(), or without meta_init() if it is computed from other parameters")
            return paramshard.InvalidArgumentError(f"shard {self.name}: {parameter.name}: {why}, or call "
                                                   "load_pretrained() before the optimizer is made")
        return None

    def _import_tensors(self) -> dict[str, Any]:
        tensors = {}
        for name, value in self._values.items():
            value = value.detach().to("cpu", value.dtype if value.dtype in _PLAIN_FORMATS else torch.float32)
            tensors[name] = value.reshape(-1, value.shape[-1] if value.dim() else 1).contiguous()
        return tensors

    def _spec(self) -> ModelSpec:
        rules = [] if self._format is None or isinstance(self._format, str) else [
            FormatRule(pattern, Encoding(format)) for pattern, format in self._format]
        units = [UnitSpec(unit.name, [self._parameter_spec(parameter) for parameter in unit.parameters])
                 for unit in self._units if unit.parameters]
        groups = self._plan.groups if self._plan is not None else []
        return ModelSpec(self.name, units, groups, format_rules=rules, **self._spec_options)

    def _parameter_spec(self, parameter: UnitParameter) -> ParameterSpec:
        placeholder = parameter.placeholder
        # Once it is open the daemon has moments of the parameters that were trained then, even if they are frozen now.
        trainable = parameter.trainable if self._was_open else self._plan is not None and placeholder.requires_grad
        rule = self._initial.get(parameter.name)
        if isinstance(self._format, str):
            encoding = Encoding(self._format)
        else:
            encoding = Encoding(None if self._format is not None else _PLAIN_FORMATS[placeholder.dtype])
        spec = ParameterSpec(parameter.name, list(placeholder.shape), encoding, trainable=trainable,
                             gradient_type=_GRADIENT_TYPES[self._grad_dtype],
                             initial_value=rule if isinstance(rule, InitialValue) else InitialValue())
        if trainable:
            spec.group = self._plan.group_of[parameter.name]
            spec.exp_avg_type, spec.exp_avg_sq_type = self._plan.exp_avg_type, self._plan.exp_avg_sq_type
        return spec

    # --- Steps ---

    def step(self, hyperparameters: dict[str, Any]) -> None:
        """Commits the gradients that were pushed since the last step; AdamW calls this."""
        self._send_commit()
        if self._model is None:
            raise paramshard.FailedPreconditionError(f"step: {self.name} was closed")
        if self._values:
            raise paramshard.FailedPreconditionError(
                f"step: values were copied into {', '.join(self._values)} since the last forward: "
                "call zero_grad() and repeat the step")
        self._passes.begin_step()
        before = self.moments.step()
        try:
            self._tracked.read()
            self._commit_to_send = hyperparameters
            if not self._tracked.waits_for_schedulers:
                self._send_commit()
        except BaseException:
            self._commit_to_send = None  # the caller gets the error, and may repeat the step
            self.moments.undo(before)
            raise
        self._passes.end_step()

    def _send_commit(self) -> None:
        if self._commit_to_send is None:
            return
        # The commit is kept until it has been sent: the next forward would else go on without it.
        state = self._tracked.take(self.moments.history)
        self._last_commit = self.model.commit(**self._commit_to_send, client_state=state)
        self._commit_to_send = None

    def _refuse_partial_discard(self, set_to_none: bool = True) -> None:
        if self._passes.has_pushed:
            raise paramshard.UnimplementedError(
                "zero_grad of a part of a sharded model: the daemon drops the gradients of all parameters together; "
                "call zero_grad() of the optimizer, or of the whole model")

    def discard(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step, on all ranks alike, as `zero_grad` does."""
        if self._model is not None:
            self._passes.discard()

    def last_result(self, wait: bool = True) -> paramshard.StepResult | None:
        """Returns the answer of the last step. None before the first, and without `wait` until it is there.

        Waiting sends the step, with the present states of tracked schedulers: ask when they have stepped.
        """
        if wait:
            self._send_commit()
        elif self._commit_to_send is not None:
            return None
        if self._last_commit is None or not (wait or self._last_commit.ready):
            return self._model.last_result if self._last_commit is None and self._model is not None else None
        return self._last_commit.wait()

    def has_gradients(self, parameter: Placeholder) -> bool:
        """Returns True if a plain parameter of torch would have a gradient now."""
        return parameter.requires_grad and self._passes.has_pushed

    def daemon_info(self) -> paramshard.DaemonInfo:
        """Returns version, devices and process of the daemon."""
        return self._client.daemon_info()

    def gathered_bytes(self) -> int:
        """Returns the bytes that this process has gathered since the model was opened."""
        return self.model.gathered_bytes

    def memory_report(self) -> MemoryReport:
        """Returns the training's memory on this rank's device: torch's part, and the daemon's for this model."""
        return MemoryReport.of(self.device, self.daemon_info().devices[self._local_rank],
                               [use for use in self._client.memory() if use.model == self.name])

    def start_step(self) -> int:
        """Returns the number of steps that the state has made: 0 for a new model."""
        return self.model.commit_number

    def track(self, *, rng: bool = False, **stateful: Stateful) -> None:
        """Records the states of objects with every step, and after a crash loads the states of the last step.

        `rng`: the generators of torch, Python and NumPy. `stateful`: objects with `state_dict` and `load_state_dict`,
        such as a scheduler or a StatefulDataLoader. All states together have at most 64 KiB. Call it after the
        optimizer is made, as the last call before the first batch is loaded. FailedPreconditionError if the training
        that goes on has not tracked the same.

        Buffers of the module are not recorded, unless a tracked object has them in its state.
        """
        tracked = dict(stateful)
        if rng:
            tracked["rng"] = RandomState()
        begins = self.model.commit_number == 0
        for name, each in tracked.items():
            if not begins and name not in self._restored:
                raise paramshard.FailedPreconditionError(
                    f"track {name}: no state of it at commit {self.model.commit_number}, which has states of "
                    f"{', '.join(self._restored) or 'nothing'}; track the same objects as before, and note that "
                    "load_state_dict() drops all states until the next step")
            self._tracked.add(name, each, None if begins else self._restored[name])

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: every backward pushes, and the daemon adds up, in float32."""
        yield

    # --- Values ---

    @contextlib.contextmanager
    def unsharded(self) -> Iterator[nn.Module]:
        """Gathers all parameters inside: for generation, or for code that reads weights.

        FailedPreconditionError at the end if some were written: these writes are lost.
        """
        self._check_exported()
        self._passes.begin_forward()
        holder = object()
        try:
            for unit in self._units:
                unit.unshard(holder)
            yield self.module
        finally:
            for unit in self._units:
                unit.reshard(holder)
            self._passes.check_written()

    def read(self, name: str) -> torch.Tensor:
        """Returns a parameter's values in full precision, float32 in host memory, after the last step of this rank.

        Waits for that step, which other ranks send when their tracked schedulers have stepped. A tied parameter has
        several names.
        """
        if name not in self._by_name:
            raise paramshard.NotFoundError(f"read {name}: not found among the parameters of {self.name}")
        parameter = self._by_name[name]
        return self._masters([parameter])[parameter.name]

    def _masters(self, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
        self._await_last_commit()
        copied = {parameter.name: self._values[parameter.name].float().cpu() for parameter in parameters
                  if parameter.name in self._values}
        by_name = {parameter.name: parameter for parameter in parameters if parameter.name not in copied}
        if not by_name:
            return copied
        exported = self._client.export_tensors(self.name, parameters=list(by_name))
        masters = {name: np.empty((_rows(parameter), _columns(parameter)), np.float32)
                   for name, parameter in by_name.items()}
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
        return copied | {name: torch.from_numpy(values).view(by_name[name].placeholder.shape)
                         for name, values in masters.items()}

    def _await_last_commit(self) -> None:
        self._send_commit()
        if self._last_commit is not None:
            self._last_commit.wait()

    def _values_of(self, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
        return self._masters(parameters) if self._was_open else self._unopened(parameters)

    def _unopened(self, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
        for parameter in parameters:
            value = self._values.get(parameter.name)
            # Values from a folder that another rank reads are empty here.
            if value is None or value.shape != parameter.placeholder.shape:
                raise paramshard.FailedPreconditionError(
                    f"state_dict: {parameter.name} has no values on this rank before the model is open; make the "
                    "optimizer first")
        return {parameter.name: self._values[parameter.name] for parameter in parameters}

    def take_value(self, name: str, value: torch.Tensor) -> None:
        """Takes a value for a parameter that is not gathered: from load_state_dict, mostly.

        It goes to the daemon at the end of the model's load_state_dict, or else when the next forward begins or the
        model is closed.
        """
        if self._was_open and self._model is None:
            raise paramshard.FailedPreconditionError(f"set the values of {name}: {self.name} was closed")
        self._values[name] = value.detach().expand(self._by_name[name].placeholder.shape).clone()
        self._state_dicts.exported.accept(self._by_name[name].name)

    def _check_exported(self) -> None:
        self._state_dicts.exported.check(self._values)

    def _begin_loading(self, *_: Any) -> None:
        if self._was_open and self._model is None:
            raise paramshard.FailedPreconditionError(
                f"load_state_dict: {self.name} was closed")
        self._passes.reshard("load_state_dict")

    def _import_loaded(self, module: nn.Module, incompatible: Any) -> None:
        for parameter in self.parameters():
            assigned = parameter.replaced()  # by assign=True
            if assigned is not None:
                self.take_value(parameter.name, assigned)
                parameter.show(parameter.placeholder)
        self._import_values()

    def _import_values(self) -> None:
        """Imports values that were copied into parameters; all ranks call it together, once the model is open."""
        if self._model is None or not self._values:
            return
        self._replace_values()
        self._join()

    def _replace_values(self) -> None:
        """Imports the values, and lets go of the model."""
        self._check_exported()
        self._await_last_commit()
        opening = self._opening()
        known = opening.known()
        if known is None:
            raise opening.deleted()
        self._let_go()
        opening.replace(known.history_id, self._import_tensors)
        self._values.clear()

    def load_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Takes initial values from a folder of weights, before the optimizer is made: HuggingFace's, or plain files.

        A model of transformers is read by its own from_pretrained, on the first rank of each daemon: its renamings
        and merged experts come out right. Where the model has persistent buffers, as BatchNorm's means, every rank
        reads the folder, because they stay in the module. Quantized weights are decoded. NotFoundError names
        parameters that the files lack, InvalidArgumentError parameters of other shapes or unknown encodings. A warning
        names keys that nothing takes.
        """
        if self._model is not None:
            raise paramshard.FailedPreconditionError(
                "load_pretrained: the model is already open; call it before the optimizer is made")
        self._values |= pretrained.read(self.module, directory, list(self.parameters()), reads=self._local_rank == 0)

    def adapter_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the part of the module's `state_dict()` that PEFT saves. The rest is not read."""
        return saved_by_peft(self.module, self._state_dicts)

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        """Writes a folder for transformers or safetensors, in full precision unless `dtype` is given.

        The first rank of the epoch writes. The others send the last step, for which it waits, and return at once.
        """
        self._send_commit()
        if (self.rank if self._model is None else self.active_rank) != 0:
            return
        state = self._state_dicts.masters_of(self.module)
        if dtype is not None:
            converted = {id(value): value.to(dtype) for value in state.values()
                         if isinstance(value, torch.Tensor) and value.is_floating_point()}
            state = {key: converted.get(id(value), value) for key, value in state.items()}
        saved_folder.write(self.module, directory, state)

    # --- The end ---

    def close(self) -> None:
        """Waits for the last step's answer, and lets go of the model, which stays in the daemon. Idempotent.

        Values that were set since the last forward are imported, so all ranks close the model. A warning names values
        that were put where nothing imports them.
        """
        if self._model is None:
            return
        self._warn_of_misplaced()
        try:
            if self._values:
                self._replace_values()
        finally:
            self._let_go()

    def _warn_of_misplaced(self) -> None:
        try:
            self._check_exported()
            for unit in self._units:
                unit.check_places()
        except paramshard.FailedPreconditionError as error:
            warnings.warn(f"paramshard: close {self.name}: the daemon does not have what was written: {error}",
                          stacklevel=3)

    def _let_go(self) -> None:
        if self._model is None:
            return
        try:
            self._await_last_commit()
        finally:
            self._passes.open(None)
            model, self._model = self._model, None
            model.close()

    def _close_at_exit(self) -> None:
        # A forked child has nothing to close.
        if os.getpid() != self._process:
            return
        # After an exception this rank does not wait for the others: its exit tells them of it.
        if getattr(sys, "last_value", None) is None:
            try:
                self.close()
            except paramshard.Error as error:
                warnings.warn(f"paramshard: failed to close {self.name}: {error}", stacklevel=1)
        if self._lost_values is not None:
            self._lost_values()

    def __enter__(self) -> ShardedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self.close()


def _missing_ranks(known: paramshard.ModelSummary | None) -> str:
    if known is None or known.attached_ranks >= known.world_size:
        return "waiting up to 600 s (attach_timeout) for the daemon to begin an epoch"
    return (f"{known.attached_ranks} of {known.world_size} ranks are attached; waiting up to 600 s (attach_timeout) "
            "for the others")


def _rows(parameter: UnitParameter) -> int:
    shape = parameter.placeholder.shape
    return parameter.placeholder.numel() // shape[-1] if len(shape) and shape[-1] else 1


def _columns(parameter: UnitParameter) -> int:
    return parameter.placeholder.shape[-1] if parameter.placeholder.dim() else 1


def _warn_of_lost(model: str, values: dict[str, torch.Tensor], process: int) -> None:
    """Warns of values that were to be imported, of a model that is gone."""
    if values and os.getpid() == process:
        warnings.warn(f"paramshard: {', '.join(values)}: values that were set after the last forward of {model} are "
                      "lost: call sharded.close(), which imports them", stacklevel=1)


def _do_nothing() -> None:
    pass


def _refuse_copies(protocol: Any) -> Any:
    """Replaces a module's __reduce_ex__, which copies and pickles it."""
    raise paramshard.FailedPreconditionError(
        "copy or pickle a sharded module: its parameters are in the daemon alone; save model.state_dict(), and copy "
        "modules before shard()")


def _checked_apply(module: nn.Module) -> Callable[..., nn.Module]:
    """Returns a replacement of a module's _apply, which converts part by part: it refuses before the first part."""
    reference = weakref.ref(module)

    def apply(function: Callable[[torch.Tensor], torch.Tensor], *arguments: Any, **options: Any) -> nn.Module:
        converted = reference()
        for parameter in converted.parameters():
            if isinstance(parameter, Placeholder):
                function(parameter)
        return type(converted)._apply(converted, function, *arguments, **options)

    return apply


def _checked_register_parameter(module: nn.Module) -> Callable[[str, nn.Parameter | None], None]:
    """Returns a replacement of a module's register_parameter, by which ties and masks come, that refuses them."""
    reference = weakref.ref(module)

    def register_parameter(name: str, param: nn.Parameter | None) -> None:
        registering = reference()
        if type(param) is Placeholder and not param.owner.has_place(param, registering, name):
            raise paramshard.FailedPreconditionError(
                f"register {name}: {param.parameter_name} stays where shard() has found it: tie, prune and parametrize "
                "modules before shard()")
        type(registering).register_parameter(registering, name, param)

    return register_parameter


def _weakly(owner: Any, name: str) -> Callable[..., Any]:
    """Returns a bound method that does not keep its object, which hooks of a module would hold in a cycle."""
    reference = weakref.ref(owner)

    def call(*arguments: Any, **options: Any) -> Any:
        of = reference()
        return getattr(of, name)(*arguments, **options) if of is not None else None

    return call


def _hook(passes: Passes, name: str) -> Callable[..., None]:
    call = _weakly(passes, name)
    return torch.compiler.disable(lambda *_: call())
