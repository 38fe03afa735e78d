"""Passes of a sharded model between two steps: forwards, backwards, and cleaning up after failed ones."""

from __future__ import annotations

import weakref

import paramshard
from paramshard.torch.torch_internals import at_end_of_backward, current_backward, in_backward
from paramshard.torch.unit import Unit


class Passes:
    """State of the present pass, and of pushes since the last commit."""

    def __init__(self, units: list[Unit]):
        self._units = units
        self._model: paramshard.Model | None = None
        self._backward: int | None = None  # autograd's number of the backward in progress
        self._backwards = 0  # finished ones with gradients to push, since the last commit
        self._pushes_now = False  # in this backward
        self.has_pushed = False  # since the last commit
        self._written: list[str] = []  # gathered parameters that were written
        self._lost: str | None = None  # why gradients of this step are gone
        self.state = 0  # number of the present values of the parameters
        self.send_step = lambda: None  # sends a commit that a step has left to be sent
        self.bring_values = lambda: None  # imports values that were copied into parameters
        self.check_exported = lambda: None  # raises if values of a state_dict() were written

    @property
    def model(self) -> paramshard.Model:
        if self._model is None:
            raise paramshard.FailedPreconditionError(
                "the model is not open: make a paramshard.torch.AdamW of its parameters first, or call sharded.open() "
                "to compute without training; after close() make the module again, and shard it")
        return self._model

    @property
    def is_looked_at_closely(self) -> bool:
        """True in states 1, 2, 4, 8 and so on, where contents of gathered parameters are compared, which takes time."""
        return self.state & (self.state - 1) == 0

    def open(self, model: paramshard.Model | None) -> None:
        self._model = model
        for unit in self._units:
            unit.forget_model()
        self._backward, self._backwards, self.has_pushed, self._lost = None, 0, False, None
        self.state += 1

    # --- Forwards ---

    def begin_model(self) -> None:
        """Begins the whole model's forward, and drops the remains of passes that an exception has ended."""
        if in_backward():
            return  # a checkpoint around the model is recomputed
        self.check_exported()
        self.begin_forward()
        for unit in self._units:
            unit.end_passes()

    def begin_forward(self) -> None:
        self._drop_failed_backward()
        self.send_step()
        self.bring_values()

    def end_forward(self) -> None:
        for unit in self._units:
            unit.end_forward()
        if not in_backward():
            self.check_written()

    # --- Backwards ---

    def begin_backward(self) -> None:
        """Begins a backward. Every hook calls this; the first one counts."""
        task = current_backward()
        if task == self._backward:
            return
        if self._backward is not None:
            raise paramshard.FailedPreconditionError(
                "backward: another backward is in progress, or has failed; make checkpoints with "
                "use_reentrant=False")
        self.send_step()
        self._backward = task
        this = weakref.proxy(self)
        at_end_of_backward(lambda: this._end_backward())

    def note_written(self, name: str) -> None:
        self._written.append(name)

    def check_written(self) -> None:
        """Raises if gathered parameters were written. Called when memory was given back: nothing is left half done."""
        written, self._written = self._written, []
        if written:
            raise paramshard.FailedPreconditionError(
                f"{', '.join(dict.fromkeys(written))}: written or replaced while gathered, and the writes are lost: "
                "set `parameter.data`, or call load_state_dict(), outside of forwards and of `with "
                "sharded.unsharded():`")

    def note_push(self) -> None:
        self.has_pushed = self._pushes_now = True

    def _end_backward(self) -> None:
        for unit in self._units:
            unit.push()
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
        if self.has_pushed:
            self.model.discard()
        if self._backwards:
            self._lost = (f"a backward failed; its gradients were dropped, and so were the gradients of "
                          f"{self._backwards} before it in this step: call zero_grad() and repeat the step")
        self._forget_pushes()

    # --- Steps ---

    def begin_step(self) -> None:
        """Refuses a step that would commit nothing, or a part."""
        self.check_exported()
        if self._backward is not None:
            self._drop_failed_backward()
            self._lost = self._lost or "the last backward failed: call zero_grad() and repeat the step"
        if self._lost is not None:
            raise paramshard.FailedPreconditionError(f"step: {self._lost}")
        if not self.has_pushed:
            raise paramshard.FailedPreconditionError(
                "step: no backward since the last step, and a commit without gradients would count as a step; "
                "backward(inputs=) of parameters computes none")
        self.reshard("step")

    def end_step(self) -> None:
        self.state += 1
        self._forget_pushes()

    def reshard(self, operation: str) -> None:
        """Gives back gathered memory before values change. Raises if parameters were written or are still held."""
        for unit in self._units:
            unit.end_passes()
            unit.end_transforms()
        self.check_written()
        held = next((unit.name for unit in self._units if unit.is_unsharded), None)
        if held is not None:
            raise paramshard.FailedPreconditionError(
                f"{operation}: unit {held} is gathered: call it outside of "
                "`with sharded.unsharded():`")

    def _forget_pushes(self) -> None:
        self.has_pushed, self._backwards = False, 0

    def discard(self) -> None:
        """Drops the gradients since the last step, on all ranks alike."""
        self._drop_failed_backward()
        self._lost = None
        if self.has_pushed:
            self.model.discard()
        self._forget_pushes()
