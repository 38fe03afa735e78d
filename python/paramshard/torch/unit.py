"""One unit of a sharded model: when it is gathered, pushed and resharded."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn

import paramshard
from paramshard._core import may_gather, put_back, put_unsharded, take_gradients
from paramshard.torch.gathered_parameter import GRADIENT, GatheredParameter, set_autograd_version
from paramshard.torch.module_values import are_tensors, cast, is_without_gradient, tensors_of
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.torch_internals import (allow_changes_in_place, base_of, call_with_gradient, gets_gradient,
                                              in_backward, is_plain, not_compiled, own_parameters, profiler_range, pytree,
                                              storage_of, transforms_inputs, without_torch_function)
from paramshard.torch.unit_memory import Representations, UnitMemory
from paramshard.torch.unit_parameter import ParameterRow, UnitParameter
from paramshard.torch.weak_method import weak_method


# The one representation of a unit without products in 8 bits.
_DECODED = Representations(transposed=False, decoded=True)


class Step(Protocol):
    """Training step of the units, which TrainingStep keeps."""

    @property
    def model(self) -> paramshard.Model:
        """The open model. Raises FailedPreconditionError without one."""

    values_version: int  # counts the values that the parameters have had

    @property
    def checks_contents(self) -> bool:
        """True if contents of gathered parameters are compared at this version."""

    def begin_forward(self) -> None:
        """Begins the forward of a module."""

    def begin_backward(self) -> None:
        """Begins a backward. Every hook of a unit calls this; the first call counts."""

    def note_push(self) -> None:
        """Notes that gradients of a unit are pushed."""

    def note_written(self, name: str) -> None:
        """Notes that a gathered parameter was written."""

    def check_written(self) -> None:
        """Raises FailedPreconditionError if gathered parameters were written since the last call."""


class _InputGradient(torch.autograd.Function):
    """An identity on a unit's inputs: when their gradients have been computed, the unit's backward is done."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        ctx.unit.after_backward(*gradients)
        return None, *gradients


class Unit:
    """Parameters that are gathered and pushed together, with the modules that compute with them."""

    def __init__(self, name: str, modules: list[nn.Module]):
        self.name = name
        self.modules = modules
        self.parameters: list[UnitParameter] = []
        self.tied_units: list[Unit] = []  # which have tied parameters that these modules use, too
        self.reshards_after_forward = True
        self.casts_inputs_to: torch.dtype | None = None
        self.casts_outputs_to: torch.dtype | None = None
        self._gather_range = profiler_range(f"paramshard::gather {name}")
        self._push_range = profiler_range(f"paramshard::push {name}")
        self._backward_hook = _hook(self, "before_backward")  # of tensors
        self._input_hook = _hook(self, "after_backward")
        self._step: Step | None = None
        self._memory: UnitMemory | None = None
        self._holders: set[object] = set()  # unsharded while there are any
        self._transforms = object()  # a holder, for transforms of torch.func
        self._ran: set[nn.Module] = set()  # modules that the present forward has been through
        self._running = 0  # forwards of modules that have begun and not ended
        self._arrived: set[str] = set()  # parameters whose gradient has come in this backward
        self._trained: set[str] = set()  # parameters with requires_grad at the last gather
        self._expected: set[str] = set()  # parameters of which this backward brings a gradient, as far as it is known
        self._watches_inputs = False  # gradients of inputs tell when the present backward is done
        self._is_on_gpu = False
        self._multiplies_in_fp8 = False  # some of its weights, which makes representations differ
        self._rows: tuple[ParameterRow, ...] = ()
        self._dense_rows: tuple[ParameterRow, ...] = ()  # without weights that are multiplied in 8 bits
        self._unsharded: tuple[GatheredParameter, ...] = ()
        self._requires_grad: tuple[bool, ...] = ()  # of the parameters at the last gather
        self._version = 1  # counts the values that its parameters have had
        self._has_transposed = False  # transposed planes are there, for products in 8 bits in the backward
        self._values_version: int | None = None  # of the step, when values were gathered last

    # --- Wiring ---

    @property
    def storages(self) -> tuple[int, int]:
        """Storages of the parameters, by the ids of storage_of."""
        return self._memory.storages

    def allocate(self, device: torch.device) -> None:
        """Gives the parameters their memory. The modules stay as they are."""
        self._is_on_gpu = device.type == "cuda"
        self._memory = UnitMemory(self.name, self.parameters, device)
        for parameter in self.parameters:
            parameter.own_memory()
        self._find_rows()
        set_autograd_version(self._unsharded, None)

    def _find_rows(self) -> None:
        self._rows = tuple(parameter.row() for parameter in self.parameters)
        self._dense_rows = tuple(row for row, parameter in zip(self._rows, self.parameters)
                                 if parameter.fp8_weight is None)
        self._unsharded = tuple(row.unsharded for row in self._rows)
        self._multiplies_in_fp8 = any(parameter.fp8_weight is not None for parameter in self.parameters)

    def attach(self, step: Step) -> None:
        """Hooks the modules, and leaves placeholders in them."""
        self._step = step
        for parameter in self.parameters:
            parameter.put_into_module(parameter.placeholder)
            self._hook_gradient(parameter)
        for module in self.modules:
            module.register_forward_pre_hook(_hook(self, "before_forward"), prepend=True, with_kwargs=True)
            module.register_forward_hook(_hook(self, "after_forward"))

    def _hook_gradient(self, parameter: UnitParameter) -> None:
        # The garbage collector does not see references of a tensor's hook.
        unit, name = weakref.proxy(self), parameter.name
        torch.Tensor.register_post_accumulate_grad_hook(parameter.unsharded, lambda _: unit.take_gradient(name))

    # --- Memory ---

    @property
    def is_unsharded(self) -> bool:
        return bool(self._holders)

    def unshard(self, holder: object) -> None:
        """Gathers the unit, unless it is gathered; it stays so until every holder has called reshard()."""
        is_program = not isinstance(holder, Unit)
        if not self._multiplies_in_fp8:
            if not self._holders:
                self._gather(_DECODED)
        else:
            wanted = Representations(transposed=in_backward() or not self.reshards_after_forward, decoded=is_program)
            if not self._holders or self._lacks(wanted):
                self._gather(wanted)
        self._holders.add(holder)
        if is_program:
            for parameter in self.parameters:
                parameter.unsharded.watch()

    def _lacks(self, wanted: Representations) -> bool:
        """Returns True if an unsharded unit was gathered for less."""
        return wanted.transposed and not self._has_transposed or wanted.decoded

    def reshard(self, holder: object) -> None:
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if not self._holders:
            self._drop_memory()

    def end_passes(self) -> None:
        """Gives back the memory that forwards and backwards have left: no pass is in progress."""
        self._ran.clear()
        self._running = 0
        for holder in [holder for holder in self._holders if isinstance(holder, Unit)]:
            self.reshard(holder)

    def end_backward(self) -> None:
        """Pushes gradients that have come and wait for others, and gives back memory.

        Not for forwards around the backward, which have asked for gradients of activations.
        """
        if self._arrived:
            self.push()
        if not self._holders:
            return
        for holder in [holder for holder in self._holders if isinstance(holder, Unit) and not holder._running]:
            self.reshard(holder)

    def end_transforms(self) -> None:
        """Gives back memory held for transforms before values change. Later backwards through them raise."""
        self.reshard(self._transforms)

    def forget_model(self) -> None:
        """Forgets the model, which was closed."""
        self._memory.forget_model()

    def _gather(self, wanted: Representations) -> None:
        if not self.parameters:
            return  # its modules use parameters of its tied units alone
        if self._holders:
            self.check_places()
            self._put_placeholders()
        # Without this, reads of a placeholder's attributes go through Python.
        with without_torch_function():
            if not may_gather(self._rows, self._requires_grad, Placeholder):
                self._follow_modules()
        if self._is_on_gpu and torch.cuda.is_current_stream_capturing():
            raise paramshard.UnimplementedError(
                f"gather {self.name}: CUDA graph capture is not supported: it would not see the daemon's gathers")
        with self._gather_range:
            is_new = self._note_new_values()
            self._memory.gather(self._step.model, wanted)
        self._has_transposed = wanted.transposed
        self._version += is_new
        set_autograd_version(self._unsharded, self._version)
        # A weight that is multiplied in 8 bits has no values: its placeholder raises when it is read.
        put_unsharded(self._rows if wanted.decoded else self._dense_rows)
        if is_new and self._step.checks_contents:
            for row in self._rows if wanted.decoded else self._dense_rows:
                row.unsharded.watch()

    def _follow_modules(self) -> None:
        """Raises for parameters that are missing or replaced, and follows what was frozen or thawed."""
        self.check_places()
        self._trained = {parameter.name for parameter in self.parameters if parameter.follow_requires_grad()}
        self._expected = self._trained
        self._requires_grad = tuple(parameter.was_trained for parameter in self.parameters)

    def _note_new_values(self) -> bool:
        """Returns True if the values differ from the ones that were gathered last, and renews FP8 weights then."""
        if self._values_version == self._step.values_version:
            return False
        for parameter in self.parameters:
            if parameter.fp8_weight is not None:
                parameter.fp8_weight.renew()
        self._values_version = self._step.values_version
        return True

    def check_places(self) -> None:
        """Raises FailedPreconditionError for a parameter that was taken out of its module, or replaced there."""
        for parameter in self.parameters:
            if parameter.is_removed():
                raise paramshard.FailedPreconditionError(
                    f"gather {self.name}: {parameter.name} was removed: a parameter cannot be taken out of a sharded "
                    "module")
            replaced = parameter.replaced()
            if type(replaced) is Placeholder:
                raise paramshard.FailedPreconditionError(
                    f"gather {self.name}: want {parameter.name} as shard() has left it, got {replaced.parameter_name} "
                    "in its place: tie parameters before shard()")
            if replaced is not None:
                raise paramshard.FailedPreconditionError(
                    f"gather {self.name}: {parameter.name} was replaced by another parameter, whose values the daemon "
                    "does not have: copy values into the parameter, or use load_state_dict")

    def _drop_memory(self) -> None:
        self._put_placeholders()
        set_autograd_version(self._unsharded, None)
        if self._memory.release():
            self._find_rows()
        self._has_transposed = False

    def _put_placeholders(self) -> None:
        """Leaves placeholders in the modules, and notes what was written."""
        with without_torch_function():
            if put_back(self._rows, self._version, self._requires_grad):
                return
        for parameter in self.parameters:
            if parameter.is_touched(self._version):
                before = parameter.unsharded
                if parameter.is_written(self._version):
                    self._step.note_written(parameter.name)
                    self._put_placeholder_back(before, parameter)
            parameter.keep_requires_grad()
            parameter.put_into_module(parameter.placeholder)

    def _put_placeholder_back(self, before: nn.Parameter, parameter: UnitParameter) -> None:
        """Puts the placeholder wherever a program has put the parameter, such as into a parametrization."""
        if parameter.unsharded is not before:
            self._hook_gradient(parameter)
            self._find_rows()
        for module in self.modules:
            for each in module.modules():
                for attribute, found in own_parameters(each).items():
                    if found is before:
                        own_parameters(each)[attribute] = parameter.placeholder

    def _unshard_with_tied(self) -> None:
        self.unshard(self)
        for unit in self.tied_units:
            unit.unshard(self)

    def _reshard_with_tied(self) -> None:
        if self._running:
            return
        self.reshard(self)
        for unit in self.tied_units:
            unit.reshard(self)

    # --- Forward ---

    def before_forward(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        # A checkpoint is recomputed in the backward: the unit stays gathered for the rest of the backward.
        recomputes = in_backward()
        if not recomputes:
            self._step.begin_forward()
            self._running += 1
        is_first = not self._ran and self._running == 1  # it may call itself
        is_transformed = transforms_inputs()
        if is_transformed:
            self._hold_for_transforms()
        self._unshard_with_tied()
        if self.casts_inputs_to is not None:
            args = cast(args, self.casts_inputs_to)
            kwargs = cast(kwargs, self.casts_inputs_to) if kwargs else kwargs
        if is_first and not recomputes and torch.is_grad_enabled() and not is_transformed:
            args, kwargs = self._watch_inputs(args, kwargs)
        return args, kwargs

    def _hold_for_transforms(self) -> None:
        """Hooks on tensors are not called at each level of a transform, so the unit stays until values change."""
        for unit in (self, *self.tied_units):
            if any(parameter.fp8_weight is not None for parameter in unit.parameters):
                raise paramshard.UnimplementedError(
                    f'forward {self.name}: transforms of torch.func and forward-mode AD are not supported with '
                    'compute="fp8"')
            if torch.is_grad_enabled():
                unit.unshard(unit._transforms)

    def _watch_inputs(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if are_tensors(args) and all(map(is_without_gradient, kwargs.values())):
            leaves, structure = list(args), None
        else:
            leaves, structure = pytree.tree_flatten((args, kwargs))
        watched = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        self._watches_inputs = bool(watched)
        if len(watched) == 1 and is_plain(leaves[watched[0]]):
            # The same as _InputGradient, in less time.
            leaves[watched[0]] = alias = leaves[watched[0]].view_as(leaves[watched[0]])
            call_with_gradient(alias, self._input_hook)
        elif watched:
            for index, tensor in zip(watched, _InputGradient.apply(self, *(leaves[index] for index in watched))):
                # Outputs of a function may not be changed in place, because that passes over its backward. Outputs of
                # this one may: the unit then stays until the end of the backward.
                allow_changes_in_place(tensor)
                leaves[index] = tensor
        return (tuple(leaves), kwargs) if structure is None else pytree.tree_unflatten(leaves, structure)

    def after_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if in_backward():
            return output
        self._ran.add(module)
        self._running = max(0, self._running - 1)
        # pytree takes time to find out that a tensor is one.
        tensors = (output,) if type(output) is torch.Tensor else tuple(tensors_of(output))
        is_transformed = transforms_inputs()
        if torch.is_grad_enabled() and not is_transformed:
            for tensor in tensors:
                self._hook_output(tensor)
        if len(self._ran) == len(self.modules) and not self._running:
            self._ran.clear()
            if self.reshards_after_forward or not torch.is_grad_enabled():
                self._reshard_with_tied()
                self._step.check_written()
                if not is_transformed:
                    self._check_memory_of(tensors)
        if self.casts_outputs_to is not None:
            output = cast(output, self.casts_outputs_to)
        return output

    def _check_memory_of(self, outputs: Iterable[torch.Tensor]) -> None:
        """Refuses outputs that are parameters, or views of them: reading one without memory would end the process."""
        for unit in (self, *self.tied_units):
            if not unit._holders and any(tensor.layout is torch.strided and storage_of(tensor) in unit.storages
                                         for tensor in outputs):
                raise paramshard.InvalidArgumentError(
                    f"forward {self.name}: an output is a parameter of {unit.name}, or a view of one, whose memory goes "
                    "with the forward: return a clone() of it")

    def _hook_output(self, tensor: torch.Tensor) -> None:
        if not tensor.requires_grad or tensor.is_leaf:
            return
        call_with_gradient(tensor, self._backward_hook)
        # When a view is changed in place, autograd goes to what it is a view of, and not through the view.
        base = base_of(tensor)
        if base is not None and base.grad_fn is not None:
            call_with_gradient(base, self._backward_hook)

    def end_forward(self) -> None:
        """Gives back a unit of which only some modules were called, at the end of the model's forward."""
        if self._ran:
            self._ran.clear()
            self._reshard_with_tied()

    # --- Backward ---

    def before_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        self._step.begin_backward()
        self._unshard_with_tied()
        return gradient

    def after_backward(self, *gradients: torch.Tensor | None) -> None:
        """Gives the unit back: the gradients of its inputs are there, and its weights are not needed any more."""
        if self._arrived:
            self._forgo_missing()
            self._push_if_complete()
        self._reshard_with_tied()
        for gradient in gradients:
            # With create_graph, a backward through this one comes here first, and needs the weights again.
            if gradient is not None and gradient.requires_grad:
                gradient.register_hook(self._backward_hook)

    def take_gradient(self, name: str) -> None:
        """Notes a parameter's gradient. The last gradient that this backward brings pushes them all.

        Until then they stay where autograd has put them: a slot that waits for a late gradient, such as of a tied
        embedding, would be missing for other units.
        """
        try:
            self._step.begin_backward()
        except BaseException:
            self.drop_gradients()  # a backward that is refused leaves nothing to the next push
            raise
        is_first = not self._arrived
        self._arrived.add(name)
        if is_first and not self._watches_inputs:
            self._forgo_missing()
        self._push_if_complete()

    def _forgo_missing(self) -> None:
        """Expects no gradients of parameters that this backward does not reach, such as of experts without tokens.

        So a rank without them pushes the unit where ranks with them do. It takes time, and is for backwards that lack
        some, and for units of which nothing tells when they are done.
        """
        missing = self._trained - self._arrived
        if missing:
            self._expected = self._arrived.union(
                parameter.name for parameter in self.parameters
                if parameter.name in missing and gets_gradient(parameter.unsharded))

    def gets_gradients(self) -> bool:
        """Returns True if the backward in progress computes the gradient of a parameter, to be pushed."""
        try:
            return any(gets_gradient(parameter.unsharded) for parameter in self.parameters
                       if parameter.name in self._trained)
        except RuntimeError:
            return False  # torch.autograd.grad of parameters

    def _push_if_complete(self) -> None:
        # Gradients come one by one, and sets are compared when there are enough.
        if len(self._arrived) >= len(self._expected) and self._arrived >= self._expected:
            self.push()

    def push(self) -> None:
        """Pushes the gradients that have come, if any have; the others are absent in this push."""
        self._forget_arrived()
        with without_torch_function():
            gradients = take_gradients(self._rows, GRADIENT)
        present = [gradient for gradient in gradients if gradient is not None]
        if not present:
            return
        for gradient in present:
            if gradient.layout is not torch.strided:
                self._refuse_sparse(gradients)
        # Before the push, because Ctrl-C may come in between: a push that may have happened is dropped, too.
        self._step.note_push()
        with self._push_range:
            self._memory.push(self._step.model, gradients)

    def _refuse_sparse(self, gradients: list[torch.Tensor | None]) -> None:
        name, layout = next((parameter.name, gradient.layout) for parameter, gradient in zip(self.parameters, gradients)
                            if gradient is not None and gradient.layout is not torch.strided)
        raise paramshard.UnimplementedError(
            f"gradient of {name}: want a dense gradient, got {layout}; make its module with sparse=False")

    def drop_gradients(self) -> None:
        self._forget_arrived()
        for parameter in self.parameters:
            parameter.drop_gradient()

    def _forget_arrived(self) -> None:
        self._arrived.clear()
        self._expected = self._trained


def _hook(unit: Unit, name: str) -> Any:
    """Returns a method of the unit as a hook that torch.compile leaves alone."""
    return not_compiled(weak_method(
        unit, name, gone="the ShardedModel of this module was freed: keep the result of shard()"))
