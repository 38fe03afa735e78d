"""Training step in progress: its forwards and backwards, and what a failed one leaves behind."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

import paramshard
from paramshard.torch.torch_internals import at_end_of_backward, current_backward, in_backward
from paramshard.torch.unit import Unit


class TrainingStep:
    """Runs the units through the forwards and backwards between two steps of the optimizer."""

    def __init__(self, units: Sequence[Unit], *, most_pushes: int | None, values: Mapping[str, torch.Tensor],
                 send_commit: Callable[[], None], import_values: Callable[[], None],
                 check_exported: Callable[[], None]):
        """Takes what has to be done before a forward.

        `most_pushes`: of a unit in a step, and so backwards; None: any number. `values`: were copied into parameters,
        and `import_values` imports them. `send_commit`: sends the commit of the last step, if that waits for
        schedulers.
        `check_exported`: raises if values of a state_dict() were written.
        """
        self._units = units
        self._most_pushes = most_pushes
        self._values = values
        self._send_commit = send_commit
        self._import_values = import_values
        self._check_exported = check_exported
        self._model: paramshard.Model | None = None
        self._backward: int | None = None  # autograd's number of the backward in progress
        self._backwards = 0  # finished ones with gradients to push, since the last commit
        self._pushes_now = False  # in this backward
        self._written: list[str] = []  # gathered parameters that were written
        self._lost: str | None = None  # why gradients of this step are gone
        self.commit_waits = False  # the last step's commit is not sent yet
        self.has_pushed = False  # since the last commit
        self.has_run = False  # a forward that computes gradients, since the last commit
        self.values_version = 0  # counts the values that the parameters have had

    @property
    def model(self) -> paramshard.Model:
        """The open model. Raises FailedPreconditionError without one."""
        if self._model is None:
            raise paramshard.FailedPreconditionError(
                "the model is not open: make an optimizer of paramshard.torch first, or call sharded.open() "
                "to compute without training; after close() make the module again, and shard it")
        return self._model

    @property
    def checks_contents(self) -> bool:
        """True at versions 1, 2, 4, 8 and so on: comparing the contents of gathered parameters takes time."""
        return self.values_version & (self.values_version - 1) == 0

    def set_model(self, model: paramshard.Model | None) -> None:
        """Begins anew with a model that was opened; None after it was closed."""
        self._model = model
        for unit in self._units:
            unit.forget_model()
        self._backward, self._lost = None, None
        self._forget_pushes()
        self.values_version += 1

    # --- Forwards ---

    def begin_model_forward(self) -> None:
        """Begins the whole model's forward, and cleans up after passes that an exception has ended."""
        if in_backward():
            return  # a checkpoint around the model is recomputed
        self._check_exported()
        self.begin_forward()
        for unit in self._units:
            unit.end_passes()

    def begin_forward(self) -> None:
        """Begins the forward of a module."""
        # Units call this in every forward, and there is hardly ever anything to do.
        if self._backward is not None:
            self._drop_failed_backward()
        if self.commit_waits:
            self._send_commit()
        if self._values:
            self._import_values()
        self.has_run = self.has_run or torch.is_grad_enabled()

    def end_model_forward(self) -> None:
        """Ends the whole model's forward."""
        for unit in self._units:
            unit.end_forward()
        if not in_backward():
            self.check_written()

    # --- Backwards ---

    def begin_backward(self) -> None:
        """Begins a backward. Every hook of a unit calls this; the first call counts.

        Raises FailedPreconditionError if the step has had all its backwards. The gradients so far stay: nothing of this
        backward has been pushed.
        """
        task = current_backward()
        if task == self._backward:
            return
        is_full = self._most_pushes is not None and self._backward is None and self._backwards >= self._most_pushes
        if is_full and any(unit.gets_gradients() for unit in self._units):
            raise paramshard.FailedPreconditionError(
                f"backward: the step has had as many backwards as shard(accumulate={self._most_pushes}) allows: raise "
                "accumulate=, or step before this backward; the gradients of the backwards before it are kept")
        if self._backward is not None:
            raise paramshard.FailedPreconditionError(
                "backward: another backward is in progress, or has failed; make checkpoints with "
                "use_reentrant=False")
        self._send_commit()
        self._backward = task
        this = weakref.proxy(self)
        at_end_of_backward(lambda: this._end_backward())

    def note_written(self, name: str) -> None:
        """Notes that a gathered parameter was written."""
        self._written.append(name)

    def check_written(self) -> None:
        """Raises FailedPreconditionError if gathered parameters were written since the last call.

        Called after gathered memory was released, so that an error leaves nothing half done.
        """
        written, self._written = self._written, []
        if written:
            raise paramshard.FailedPreconditionError(
                f"{', '.join(dict.fromkeys(written))}: written or replaced while gathered, and the writes are lost: "
                "set `parameter.data`, or call load_state_dict(), outside of forwards and of `with "
                "sharded.unsharded():`")

    def note_push(self) -> None:
        """Notes that gradients of a unit are pushed."""
        self.has_pushed = self._pushes_now = True

    def _end_backward(self) -> None:
        for unit in self._units:
            unit.end_backward()
        self._backward = None
        self._backwards += self._pushes_now
        self._pushes_now = False
        self.check_written()

    def _drop_failed_backward(self) -> None:
        """Drops the gradients that a failed backward has pushed, with all gradients of its step."""
        if self._backward is None:
            return
        self._backward, self._pushes_now = None, False
        for unit in self._units:
            unit.drop_gradients()
            unit.end_passes()
        self._send_discard()
        if self._backwards:
            self._lost = (f"a backward failed; its gradients were dropped, and so were the gradients of "
                          f"{self._backwards} before it in this step: call zero_grad() and repeat the step")
        self._forget_pushes()

    # --- Steps of the optimizer ---

    def begin_optimizer_step(self) -> None:
        """Refuses a step that would commit nothing, or a part."""
        self._check_exported()
        if self._backward is not None:
            self._drop_failed_backward()
            self._lost = self._lost or "the last backward failed: call zero_grad() and repeat the step"
        if self._lost is not None:
            raise paramshard.FailedPreconditionError(f"step: {self._lost}")
        # A rank of several may have nothing to do in a step: it is absent from what the others push.
        if not self.has_pushed and self.model.world_size == 1:
            raise paramshard.FailedPreconditionError(
                "step: no backward since the last step: call backward() before step(), and without inputs=, which "
                "computes no gradients of parameters")
        self.reshard("step")

    def end_optimizer_step(self) -> None:
        """Notes that the gradients are committed: parameters have other values from now on."""
        self.values_version += 1
        self._forget_pushes()

    def reshard(self, operation: str) -> None:
        """Releases gathered memory before values change. Raises if parameters were written or are still gathered."""
        for unit in self._units:
            unit.end_passes()
            unit.end_transforms()
        self.check_written()
        gathered = next((unit.name for unit in self._units if unit.is_unsharded), None)
        if gathered is not None:
            raise paramshard.FailedPreconditionError(
                f"{operation}: unit {gathered} is gathered: call it outside of "
                "`with sharded.unsharded():`")

    def discard(self) -> None:
        """Drops the gradients since the last step, on all ranks alike."""
        self._drop_failed_backward()
        self._lost = None
        self._send_discard()
        self._forget_pushes()

    def _send_discard(self) -> None:
        """Sends a discard if a rank may have pushed: one that runs other units has, where this one has run some."""
        if self.has_pushed or self.has_run and self.model.world_size > 1:
            self.model.discard()

    def refuse_partial_discard(self, set_to_none: bool = True) -> None:
        """Replaces zero_grad() of modules inside of the sharded one."""
        if self.has_pushed:
            raise paramshard.UnimplementedError(
                "zero_grad of a part of a sharded model: the daemon drops the gradients of all parameters together; "
                "call zero_grad() of the optimizer, or of the whole model")

    def _forget_pushes(self) -> None:
        self.has_pushed = self.has_run = False
        self._backwards = 0
