"""A module whose parameters live in the daemon."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch import pretrained, saved_folder, torchrun
from paramshard.torch.commits import Commits
from paramshard.torch.initial_values import rule_of
from paramshard.torch.master_values import given_values, read_masters, to_import
from paramshard.torch.memory_report import MemoryReport
from paramshard.torch.model_description import ModelDescription, OptimizerPlan
from paramshard.torch.module_guards import guard
from paramshard.torch.moments import Moments
from paramshard.torch.opening import ATTACH_TIMEOUT, Decision, Opening, ScriptValues
from paramshard.torch.other_optimizers import mark_sharded
from paramshard.torch.peft_adapters import saved_by_peft
from paramshard.torch.stale_parameter import make_stale
from paramshard.torch.state_dict import StateDicts
from paramshard.torch.torch_internals import not_compiled, own_parameters
from paramshard.torch.tracked_state import ClientState, RandomState, Stateful, unpack
from paramshard.torch.training_step import TrainingStep
from paramshard.torch.unit import Unit
from paramshard.torch.unit_parameter import UnitParameter
from paramshard.torch.weak_method import weak_method


class ShardedModel:
    """Result of `shard`. Keep it as long as the module is used. Inputs belong on `device`.

    Collective calls, which every rank makes at the same point: calls of the module, `open`, `unsharded`,
    `load_state_dict` of the module after `open`, and calls of the optimizer. `read`, `state_dict` of the module, and
    `last_result` ask the daemon alone, and any rank may call them; but they wait for the last step, which every rank
    must have sent. With tracked schedulers a rank sends it after they have stepped, or when it calls
    `save_pretrained`.
    """

    all_of_process: weakref.WeakSet[ShardedModel] = weakref.WeakSet()  # those that were not abandoned

    def __init__(self, module: nn.Module, units: list[Unit], description: ModelDescription, *,
                 connect: Callable[[], paramshard.Client], name: str, existing: str, rank: int, local_rank: int,
                 device: torch.device, takes_any_seed: bool):
        self.module = module
        self.name = name
        self.rank = rank
        self._local_rank = local_rank
        self.device = device
        self.accumulate = description.most_pushes  # largest number of backwards of a step; None: any
        self._existing = existing
        self._description = description
        self._takes_any_seed = takes_any_seed
        self._units = units
        self._by_name = {name: parameter for unit in units for parameter in unit.parameters for name in parameter.names}
        self._connect = connect
        self._client = connect()
        self._model: paramshard.Model | None = None
        self._run = torchrun.run_id()
        self._values: dict[str, torch.Tensor] = {}  # to be imported
        self._step = TrainingStep(units, most_pushes=self.accumulate, values=self._values,
                                  send_commit=weak_method(self, "_send_commit"),
                                  import_values=weak_method(self, "_import_values"),
                                  check_exported=weak_method(self, "_check_exported"))
        self._commits = Commits(name, self._run, self._step)
        self._restored: dict[str, Any] = {}  # states of tracked objects at the commit that training goes on from
        self._lost_values: weakref.finalize | None = None
        self._process = os.getpid()
        self._client.check_spec(description.spec())  # while the module is as it was
        self._attach()
        atexit.register(weak_method(self, "_close_at_exit"))
        self.all_of_process.add(self)

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
                self._description.initial[parameter.name] = rule
            elif not like.is_meta:
                self._values[parameter.name] = like.detach()
        for unit in self._units:
            unit.allocate(self.device)
        # Nothing below fails: a module that is refused stays as it was.
        for unit in self._units:
            unit.attach(self._step)
        for like, name in before:
            make_stale(like, name, self)
        self._state_dicts = StateDicts(self._units, weak_method(self, "_values_of"))
        self._state_dicts.attach(self.module, lambda name: weak_method(self._state_dicts, name))
        saved_folder.patch_save_pretrained(self.module, self._state_dicts)
        module = self.module
        begin, end = weak_method(self._step, "begin_model_forward"), weak_method(self._step, "end_model_forward")
        module.register_forward_pre_hook(not_compiled(lambda *_: begin()), prepend=True)
        module.register_forward_hook(not_compiled(lambda *_: end()))
        for each in module.modules():
            each.register_load_state_dict_pre_hook(weak_method(self, "_begin_loading"))
            each.zero_grad = not_compiled(weak_method(self._step, "refuse_partial_discard"))
            guard(each)
        module.register_load_state_dict_post_hook(weak_method(self, "_import_loaded"))
        module.zero_grad = not_compiled(weak_method(self, "discard"))

    def has_place(self, placeholder: torch.Tensor, module: nn.Module, attribute: str) -> bool:
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
        return self._step.model

    def open(self, plan: OptimizerPlan | None = None) -> None:
        """Creates the model in the daemon or joins it, and waits for every rank. An optimizer calls this.

        A program that does not train calls it itself, for a model that is new or comes from such a program: a trained
        model has moments and groups, and is opened by the AdamW that it was trained with, which need not step.

        Raises:
            InvalidArgumentError: The daemon refuses the description, a parameter has no initial value, or the daemon
                serves this rank from another GPU than `device`.
            AlreadyExistsError: The model was trained or restored, and `existing` of `shard` does not decide; or it has
                another description, or imported values that the script's values would replace.
            FailedPreconditionError: The model is open or was closed, or waits for values that nobody imports.
            DataLossError: Values of the daemon's model are lost.
            DeadlineExceededError: Other ranks have not come.
        """
        if self._model is not None:
            raise paramshard.FailedPreconditionError(
                f"open {self.name}: model is already open; it has one optimizer, which is made once")
        if self._was_open:
            raise paramshard.FailedPreconditionError(
                f'open {self.name}: model was closed; make the module again, and shard it with existing="resume"')
        self._check_exported()
        self._description.plan = plan
        spec = self._description.spec()
        self._client.check_spec(spec)  # before an existing model is deleted
        values = ScriptValues(bool(self._values), all(each.name in self._values for each in self.parameters()),
                              self._description.missing_value(self._values))
        opening = self._opening()
        if opening.create_or_join(spec, values) is Decision.FILL:
            opening.import_values(lambda: to_import(self._values))
        recorded = self._join()
        opening.log_notes()
        self._restored = recorded.states
        self._values.clear()
        self._lost_values = weakref.finalize(self, _warn_of_lost, self.name, self._values, self._process)
        self._lost_values.atexit = False  # _close_at_exit calls it

    def _opening(self) -> Opening:
        return Opening(self._client, self._connect, self.name, existing=self._existing, local_rank=self._local_rank,
                       run=self._run, takes_any_seed=self._takes_any_seed, advice=self._description.advice)

    def _join(self) -> ClientState:
        spec = self._description.spec()
        opening = self._opening()
        with opening.log_if_slow(lambda: _missing_ranks(opening.find())):
            model = self._client.open_model(spec, takes_any_seed=self._takes_any_seed)
        _check_gpu(model, self.device, self.name)
        self._model = model
        for parameter, described in zip(self.parameters(), (each for unit in spec.units for each in unit.parameters)):
            parameter.trainable = described.trainable
            if self._description.plan is None:
                parameter.placeholder.requires_grad_(False)
        self._description.is_made = True
        self._step.set_model(self._model)
        recorded = unpack(self._model.client_state)
        existing = opening.find()
        if existing is None:
            raise opening.deleted()
        self._commits.moments.open(existing.history_id, self._model.commit_number, recorded.history)
        return recorded

    # --- Steps ---

    @property
    def moments(self) -> Moments:
        """Names the daemon's moments for `state_dict` of the optimizer."""
        return self._commits.moments

    def step(self, hyperparameters: dict[str, Any]) -> None:
        """Commits the gradients that were pushed since the last step; AdamW calls this."""
        self._commits.send()
        if self._model is None:
            raise paramshard.FailedPreconditionError(f"step: {self.name} was closed")
        if self._values and not self._step.has_run:
            self._import_values()  # together with the forwards of ranks that run something in this step
        if self._values:
            raise paramshard.FailedPreconditionError(
                f"step: values were copied into {', '.join(self._values)} since the last forward: "
                "call zero_grad() and repeat the step")
        self._step.begin_optimizer_step()
        self._commits.add(hyperparameters)
        self._step.end_optimizer_step()

    def _send_commit(self) -> None:
        self._commits.send()

    def publish(self, data: bytes) -> None:
        """Gives the next step's commit data for readers, as `ShardedOptimizer.publish` says."""
        self._commits.publish(data)

    def discard(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step, on all ranks alike, as `zero_grad` does."""
        if self._model is not None:
            self._step.discard()

    def last_result(self, wait: bool = True) -> paramshard.StepResult | None:
        """Returns the result of the last step. None before the first, and without `wait` until it is there.

        Waiting sends the step, with the present states of tracked schedulers: ask when they have stepped.
        """
        return self._commits.last_result(self._model, wait)

    def has_gradients(self, parameter: torch.Tensor) -> bool:
        """Returns True if a plain parameter of torch would have a gradient now."""
        return parameter.requires_grad and self._step.has_pushed

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

        Call it after the optimizer is made, as the last call before the first batch is loaded. All states together
        have at most 64 KiB. Buffers of the module are not recorded, unless a tracked object has them in its state.

        Args:
            rng: Tracks the generators of torch, Python and NumPy.
            **stateful: Objects with `state_dict` and `load_state_dict`, such as a scheduler or a StatefulDataLoader.

        Raises:
            InvalidArgumentError: An object has no such methods, or its name is tracked already.
            FailedPreconditionError: The training that goes on has not tracked the same.
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
            self._commits.tracked.add(name, each, None if begins else self._restored[name])

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: every backward pushes, and the daemon adds up, in float32."""
        yield

    # --- Values ---

    @contextlib.contextmanager
    def unsharded(self) -> Iterator[nn.Module]:
        """Gathers all parameters inside: for generation, or for code that reads weights.

        Raises:
            FailedPreconditionError: At the end: parameters were written, and these writes are lost.
        """
        self._check_exported()
        self._step.begin_forward()
        holder = object()
        try:
            for unit in self._units:
                unit.unshard(holder)
            yield self.module
        finally:
            for unit in self._units:
                unit.reshard(holder)
            self._step.check_written()

    def read(self, name: str) -> torch.Tensor:
        """Returns a parameter's values in full precision, after the last step of this rank.

        Waits for that step, which other ranks send when their tracked schedulers have stepped.

        Args:
            name: Name of the parameter in the module. A tied parameter has several.

        Returns:
            A float32 tensor of the parameter's shape in host memory.

        Raises:
            NotFoundError: The model has no such parameter.
            FailedPreconditionError: Daemons of other nodes have a part of it.
        """
        if name not in self._by_name:
            raise paramshard.NotFoundError(f"read {name}: not found among the parameters of {self.name}")
        parameter = self._by_name[name]
        return self._masters([parameter])[parameter.name]

    def _masters(self, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
        self._commits.wait()
        copied = {parameter.name: self._values[parameter.name].float().cpu() for parameter in parameters
                  if parameter.name in self._values}
        return copied | read_masters(self._client, self.name, [parameter for parameter in parameters
                                                               if parameter.name not in copied])

    @property
    def _was_open(self) -> bool:
        return self._description.is_made

    @property
    def is_closed(self) -> bool:
        return self._was_open and self._model is None

    def _values_of(self, parameters: Sequence[UnitParameter]) -> dict[str, torch.Tensor]:
        return self._masters(parameters) if self._was_open else given_values(self._values, parameters)

    def set_value(self, name: str, value: torch.Tensor) -> None:
        """Sets the values of a parameter that is not gathered: from load_state_dict, mostly.

        They go to the daemon at the end of the model's load_state_dict, or else when the next forward begins or the
        model is closed.
        """
        if self.is_closed:
            raise paramshard.FailedPreconditionError(f"set the values of {name}: {self.name} was closed")
        self._values[name] = value.detach().expand(self._by_name[name].placeholder.shape).clone()
        self._state_dicts.exported.accept(self._by_name[name].name)

    def _check_exported(self) -> None:
        self._state_dicts.exported.check(self._values)

    def _begin_loading(self, *_: Any) -> None:
        if self.is_closed:
            raise paramshard.FailedPreconditionError(
                f"load_state_dict: {self.name} was closed")
        self._step.reshard("load_state_dict")

    def _import_loaded(self, module: nn.Module, incompatible: Any) -> None:
        for parameter in self.parameters():
            assigned = parameter.replaced()  # by assign=True
            if assigned is not None:
                self.set_value(parameter.name, assigned)
                parameter.put_into_module(parameter.placeholder)
        self._import_values()

    def _import_values(self) -> None:
        """Imports values that were copied into parameters; all ranks call it together, once the model is open."""
        if self._model is None or not self._values:
            return
        self._replace_values()
        self._join()

    def _replace_values(self) -> None:
        """Closes the model, and imports the values."""
        self._check_exported()
        self._commits.wait()
        opening = self._opening()
        existing = opening.find()
        if existing is None:
            raise opening.deleted()
        self._close_model()
        opening.replace_values(existing.history_id, lambda: to_import(self._values))
        self._values.clear()

    def load_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Takes initial values from a folder of weights, before the optimizer is made: HuggingFace's, or plain files.

        A model of transformers is read by its own from_pretrained, on the first rank of each daemon: its renamings
        and merged experts come out right. Where the model has persistent buffers, as BatchNorm's means, every rank
        reads the folder, because they stay in the module. Quantized weights are decoded. A warning names keys that
        nothing takes.

        Raises:
            NotFoundError: The files lack parameters.
            InvalidArgumentError: Parameters have other shapes or unknown encodings.
            FailedPreconditionError: The model is open.
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

        Args:
            directory: Folder to write, which is made if it is missing.
            dtype: Type of floating-point values. None: float32.
        """
        self._commits.send()
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
        """Waits for the last step's result, and detaches from the model, which stays in the daemon. Idempotent.

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
            self._close_model()

    def _warn_of_misplaced(self) -> None:
        try:
            self._check_exported()
            for unit in self._units:
                unit.check_places()
        except paramshard.FailedPreconditionError as error:
            warnings.warn(f"paramshard: close {self.name}: the daemon does not have what was written: {error}",
                          stacklevel=3)

    def _close_model(self) -> None:
        if self._model is None:
            return
        try:
            self._commits.wait()
        finally:
            self._step.set_model(None)
            model, self._model = self._model, None
            model.close()

    def abandon(self) -> None:
        """Detaches from the daemon after the end of an epoch. The module is of no use afterwards."""
        self.all_of_process.discard(self)
        self._values.clear()
        self._step.set_model(None)
        model, self._model = self._model, None
        with contextlib.suppress(paramshard.Error):
            if model is not None:
                model.close()
        with contextlib.suppress(paramshard.Error):
            self._client.close()

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


def _check_gpu(model: paramshard.Model, device: torch.device, name: str) -> None:
    """Checks the GPU by its UUID, which both sides see, once the daemon has handed over its memory."""
    gpu, rank = model.gpu, model.rank
    if gpu != (-1 if device.index is None else device.index):
        with contextlib.suppress(paramshard.Error):  # the error below says what to do
            model.close()
        raise paramshard.InvalidArgumentError(
            f"open {name}: want cuda:{gpu} of this process, from which the daemon serves rank {rank}, got {device}: "
            f'call shard() with device="cuda:{gpu}"')


def _missing_ranks(model: paramshard.ModelSummary | None) -> str:
    """Returns a line for the log about the ranks that `open` waits for."""
    if model is None or model.attached_ranks >= model.world_size:
        return f"waiting up to {ATTACH_TIMEOUT:.0f} s (attach_timeout) for the daemon to begin an epoch"
    return (f"{model.attached_ranks} of {model.world_size} ranks are attached; waiting up to {ATTACH_TIMEOUT:.0f} s "
            "(attach_timeout) for the others: a training has a worker for each device of its daemons "
            "(--nproc-per-node)")


def _warn_of_lost(model: str, values: dict[str, torch.Tensor], process: int) -> None:
    """Warns of values that were to be imported, of a model that is gone."""
    if values and os.getpid() == process:
        warnings.warn(f"paramshard: {', '.join(values)}: values that were set after the last forward of {model} are "
                      "lost: call sharded.close(), which imports them", stacklevel=1)
