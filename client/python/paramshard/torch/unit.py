"""One unit of a sharded model: when it is gathered, pushed and resharded.

Its parameters exist twice: as Placeholder, which the module has outside of the unit's own work, and as a parameter of
torch, whose memory is there while the unit is unsharded. Autograd knows the latter alone.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import paramshard
from paramshard.torch.placeholder import Placeholder

if TYPE_CHECKING:
    from paramshard.torch.passes import Passes


def in_backward() -> bool:
    """Whether this thread runs a part of autograd's backward, recomputation of a checkpoint included."""
    return torch._C._current_graph_task_id() != -1


class UnitParameter:
    """A parameter of a unit, and every place of the module that has it (tied parameters have several)."""

    def __init__(self, name: str, like: nn.Parameter, dtype: torch.dtype, device: torch.device):
        self.name = name
        self.places: list[tuple[nn.Module, str]] = []
        self.placeholder = Placeholder(like, name=name, dtype=dtype, device=device, owner=None)
        self.unsharded = nn.Parameter(torch.empty(like.shape, dtype=dtype, device=device))
        # What programs hang on a parameter stays reachable through both.
        self.placeholder.__dict__.update({key: value for key, value in vars(like).items()
                                          if not key.startswith("_paramshard")})
        self.trainable = like.requires_grad  # as the daemon has it, once the model is open; until then as it was
        self.set_memory(0)

    def set_memory(self, elements: int) -> None:
        self.unsharded.untyped_storage().resize_(elements * self.unsharded.element_size())

    def decode(self, matrix: paramshard.Matrix) -> None:
        """Writes the plane's values into the parameter's memory."""
        self.set_memory(self.unsharded.numel())
        # Autograd compares versions to find tensors that were changed since they were saved. These get the same values
        # again, as long as no step lies between.
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.unsharded):
            flat = self.unsharded.detach().view(matrix.rows, matrix.columns)
            if matrix.format in ("FP32", "BF16", "FP16"):
                flat.copy_(torch.from_dlpack(matrix.typed_data))
            elif flat.dtype == torch.float32:
                matrix.decode(out=flat)  # not flat.numpy(), which makes the memory one that cannot be given back
            else:
                flat.copy_(torch.from_numpy(matrix.decode()))

    def write_gradient(self, gradients: paramshard.UnitGradients) -> None:
        """Moves the gradient, if there is one, into the unit's slot."""
        gradient = self.unsharded.grad
        if gradient is None:
            if self.trainable:
                gradients.mark_absent(self.name)
            return
        if gradient.layout != torch.strided:
            raise paramshard.UnimplementedError(
                f"gradient of {self.name}: a dense one expected, got {gradient.layout}; make its module with sparse=False")
        slot = torch.from_dlpack(gradients.typed(self.name))
        slot.copy_(gradient.reshape(slot.shape))
        self.unsharded.grad = None

    def show(self, parameter: nn.Parameter) -> None:
        """Puts one of the two into the module."""
        for module, attribute in self.places:
            module._parameters[attribute] = parameter

    def follow_requires_grad(self) -> None:
        """A parameter may be frozen and thawed between steps; thawed only if the daemon has its moments."""
        wanted = self.placeholder.requires_grad
        if wanted and not self.trainable:
            raise paramshard.FailedPreconditionError(
                f"train {self.name}: it was frozen when its optimizer was made, so the daemon has no moments of it; "
                "set requires_grad before, and freeze later what is to begin frozen")
        if self.unsharded.requires_grad != wanted:
            self.unsharded.requires_grad_(wanted)


class _InputGradient(torch.autograd.Function):
    """An identity on a unit's inputs: when their gradients have been computed, the unit's backward is through."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        ctx.unit.after_backward()
        return None, *gradients


class Unit:
    """Parameters that are gathered and pushed together, with the modules that compute with them."""

    def __init__(self, name: str, modules: list[nn.Module], parameters: list[UnitParameter]):
        self.name = name
        self.modules = modules
        self.parameters = parameters
        self.lenders: list[Unit] = []  # whose parameters these modules use, too: tied ones
        self.reshards_after_forward = True
        self.casts_inputs_to: torch.dtype | None = None
        self.casts_outputs_to: torch.dtype | None = None
        self._passes: Passes | None = None
        self._holders: set[object] = set()  # unsharded as long as there are any
        self._ran: set[nn.Module] = set()  # modules that the present forward has been through
        self._arrived: set[str] = set()  # parameters whose gradient has come in this backward

    # --- Wiring ---

    def attach(self, passes: Passes) -> None:
        """Hooks the modules, and leaves placeholders in them."""
        self._passes = passes
        for parameter in self.parameters:
            parameter.show(parameter.placeholder)
            self._hook_gradient(parameter)
        for module in self.modules:
            module.register_forward_pre_hook(_method(self, "before_forward"), prepend=True, with_kwargs=True)
            module.register_forward_hook(_method(self, "after_forward"))

    def _hook_gradient(self, parameter: UnitParameter) -> None:
        unit = weakref.proxy(self)
        parameter.unsharded.register_post_accumulate_grad_hook(lambda _: unit.take_gradient(parameter))

    # --- Memory ---

    @property
    def is_unsharded(self) -> bool:
        return bool(self._holders)

    def unshard(self, holder: object) -> None:
        """Gathers the unit, unless it is; it stays so until every holder has let go."""
        if not self._holders:
            self._gather()
        self._holders.add(holder)

    def reshard(self, holder: object) -> None:
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if not self._holders:
            self._drop_memory()

    def end_passes(self) -> None:
        """No pass is under way: memory that forwards and backwards have left is given back."""
        self._ran.clear()
        for holder in [holder for holder in self._holders if isinstance(holder, Unit)]:
            self.reshard(holder)

    def _gather(self) -> None:
        with torch.profiler.record_function(f"paramshard::gather {self.name}"):
            # The slot is given back behind the decode: a forward that is repeated before its backward needs no more
            # slots than one. Every pass reads the plane of the forward, for a recomputation must see the same values.
            with self._passes.model.gather(self.name, "forward") as gathered:
                for parameter in self.parameters:
                    parameter.follow_requires_grad()
                    parameter.decode(gathered[parameter.name])
        for parameter in self.parameters:
            parameter.show(parameter.unsharded)

    def _drop_memory(self) -> None:
        for parameter in self.parameters:
            parameter.show(parameter.placeholder)
            parameter.set_memory(0)

    def _hold(self) -> None:
        for unit in (self, *self.lenders):
            unit.unshard(self)

    def _let_go(self) -> None:
        for unit in (self, *self.lenders):
            unit.reshard(self)

    # --- Forward ---

    def before_forward(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if in_backward():
            # A checkpoint is recomputed: the unit stays for the backward that follows.
            self._hold()
        else:
            self._passes.begin_forward()
            is_first = not self._ran
            self._hold()
            if self.casts_inputs_to is not None:
                args, kwargs = _cast((args, kwargs), self.casts_inputs_to)
            if is_first and torch.is_grad_enabled():
                return self._watch_inputs(args, kwargs)
            return args, kwargs
        if self.casts_inputs_to is not None:
            args, kwargs = _cast((args, kwargs), self.casts_inputs_to)
        return args, kwargs

    def _watch_inputs(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        watched = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if watched:
            for index, tensor in zip(watched, _InputGradient.apply(self, *(leaves[index] for index in watched))):
                leaves[index] = tensor
        return pytree.tree_unflatten(leaves, structure)

    def after_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if in_backward():
            return output
        self._ran.add(module)
        if torch.is_grad_enabled():
            for tensor in pytree.tree_leaves(output):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(_method(self, "before_backward"))
        if len(self._ran) == len(self.modules):
            self._ran.clear()
            if self.reshards_after_forward or not torch.is_grad_enabled():
                self._let_go()
        if self.casts_outputs_to is not None:
            output = _cast(output, self.casts_outputs_to)
        return output

    def end_forward(self) -> None:
        """The whole model's forward is through: what only a part of the unit's modules was used for is given back."""
        if self._ran:
            self._ran.clear()
            self._let_go()

    # --- Backward ---

    def before_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        self._passes.begin_backward()
        self._hold()
        return gradient

    def after_backward(self) -> None:
        """The gradients of the inputs are there: nothing computes with the unit's weights any more."""
        self._let_go()

    def take_gradient(self, parameter: UnitParameter) -> None:
        """A parameter's gradient has come. The last one of the unit pushes them all.

        Until then they stay where autograd has put them: a slot that waited for a late one, of a tied embedding say,
        would be missed by other units.
        """
        self._passes.begin_backward()
        self._arrived.add(parameter.name)
        if all(each.name in self._arrived for each in self.parameters if each.unsharded.requires_grad):
            self.push()

    def push(self) -> None:
        """Pushes the gradients that have come, if any have; the others are absent in this push."""
        self._arrived.clear()
        if all(parameter.unsharded.grad is None for parameter in self.parameters):
            return
        with torch.profiler.record_function(f"paramshard::push {self.name}"):
            with self._passes.model.gradients(self.name) as gradients:
                for parameter in self.parameters:
                    parameter.write_gradient(gradients)
                gradients.push()
        self._passes.note_push()

    def drop_gradients(self) -> None:
        self._arrived.clear()
        for parameter in self.parameters:
            parameter.unsharded.grad = None


def _method(unit: Unit, name: str) -> Any:
    """A bound method that does not keep its unit, and that torch.compile leaves alone.

    A module's hooks would else hold the model that holds the module.
    """
    reference = weakref.ref(unit)

    @torch.compiler.disable
    def call(*arguments: Any, **options: Any) -> Any:
        of = reference()
        if of is None:
            raise paramshard.FailedPreconditionError(
                "a sharded model whose object is there expected: keep what shard() has returned")
        return getattr(of, name)(*arguments, **options)

    return call


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree)
