"""What happens to a sharded model between two steps: forwards, backwards, and what is left when one of them fails."""

from __future__ import annotations

import weakref

import paramshard
from paramshard.torch.torch_internals import at_end_of_backward, current_backward, in_backward
from paramshard.torch.unit import Unit


class Passes:
    """Knows which pass is under way, and what has been pushed since the last commit."""

    def __init__(self, units: list[Unit]):
        self._units = units
        self._model: paramshard.Model | None = None
        self._backward: int | None = None  # autograd's number of the one that is under way
        self._backwards = 0  # that were through, and had gradients to push, since the last commit
        self._pushes_now = False  # in this backward
        self.has_pushed = False  # since the last commit
        self._written: list[str] = []  # gathered parameters that somebody has written
        self._lost: str | None = None  # why gradients of this step are gone
        self.state = 0  # counts the states that parameters have been in: values are the same as long as it is
        self.send_step = lambda: None  # sends what a step has left to be sent
        self.bring_values = lambda: None  # brings what was copied into parameters to the daemon
        self.check_exported = lambda: None  # raises where values of a state_dict() were written

    @property
    def model(self) -> paramshard.Model:
        if self._model is None:
            raise paramshard.FailedPreconditionError(
                "the model is not open: make a paramshard.torch.AdamW of its parameters first, or call sharded.open() "
                "to compute without training; after close() make the module again, and shard it")
        return self._model

    @property
    def is_looked_at_closely(self) -> bool:
        """True in states 1, 2, 4, 8 and so on: contents of what is gathered are compared there, which takes time."""
        return self.state & (self.state - 1) == 0

    def open(self, model: paramshard.Model | None) -> None:
        self._model = model
        for unit in self._units:
            unit.forget_model()
        self._backward, self._backwards, self.has_pushed, self._lost = None, 0, False, None
        self.state += 1

    # --- Forwards ---

    def begin_model(self) -> None:
        """The whole model's forward begins: whatever an exception has left of the passes before goes."""
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
        """Called by whatever comes first in a backward, and again by all that follows."""
        task = current_backward()
        if task == self._backward:
            return
        if self._backward is not None:
            raise paramshard.FailedPreconditionError(
                "backward: one at a time expected, got one inside of another, or after one that failed; "
                "checkpoints are to be made with use_reentrant=False")
        self.send_step()
        self._backward = task
        this = weakref.proxy(self)
        at_end_of_backward(lambda: this._end_backward())

    def note_written(self, name: str) -> None:
        self._written.append(name)

    def check_written(self) -> None:
        """When all that is to be given back has been: who is told so finds nothing half done."""
        written, self._written = self._written, []
        if written:
            raise paramshard.FailedPreconditionError(
                f"{', '.join(dict.fromkeys(written))}: written or replaced while gathered, which is lost: set "
                "`parameter.data`, or call load_state_dict(), outside of forwards and of `with sharded.unsharded():`")

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
        """A backward that raised has pushed some of its gradients. They are dropped with those of its step."""
        if self._backward is None:
            return
        self._backward, self._pushes_now = None, False
        for unit in self._units:
            unit.drop_gradients()
            unit.end_passes()
        if self.has_pushed:
            self.model.discard()
        if self._backwards:
            self._lost = (f"a backward failed, and with its gradients those of {self._backwards} before it in this "
                          "step were dropped: call zero_grad() and repeat the step")
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
                "step: a backward since the last step expected, got none, and a commit without gradients would count "
                "as a step; backward(inputs=) of parameters computes none")
        self.reshard("step")

    def end_step(self) -> None:
        self.state += 1
        self._forget_pushes()

    def reshard(self, operation: str) -> None:
        """Before values change: nothing is to have old ones, or to be written where it is lost."""
        for unit in self._units:
            unit.end_passes()
            unit.end_transforms()
        self.check_written()
        held = next((unit.name for unit in self._units if unit.is_unsharded), None)
        if held is not None:
            raise paramshard.FailedPreconditionError(
                f"{operation}: no gathered parameters expected, got those of {held}: call it outside of "
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
