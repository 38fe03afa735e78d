"""Commits of a model: the one that is to be sent, and the result of the last one."""

from __future__ import annotations

from typing import Any

import paramshard
from paramshard._core import MAX_READER_DATA_BYTES
from paramshard.torch.moments import Moments
from paramshard.torch.tracked_state import TrackedState
from paramshard.torch.training_step import TrainingStep
from paramshard.torch.weak_method import weak_method


class Commits:
    """Sends a step's commit at once, or after the tracked schedulers have stepped, whose states it records."""

    def __init__(self, name: str, run: str, step: TrainingStep):
        self._step = step
        self._to_send: dict[str, Any] | None = None
        self._reader_data = b""  # of the next commit
        self._last: paramshard.PendingCommit | None = None
        self.moments = Moments(name)
        self.tracked = TrackedState(weak_method(self, "send"), run)

    def add(self, hyperparameters: dict[str, Any]) -> None:
        """Adds the commit of a step. Arguments of `paramshard.Model.commit`."""
        before = self.moments.step()
        try:
            self.tracked.read()
            self._set_to_send(hyperparameters | {"reader_data": self._reader_data})
            if not self.tracked.waits_for_schedulers:
                self.send()
        except BaseException:
            self._set_to_send(None)  # the caller gets the error, and may repeat the step
            self.moments.undo(before)
            raise
        self._reader_data = b""

    def publish(self, data: bytes) -> None:
        """Sets the data for readers of the next commit."""
        if not isinstance(data, bytes):
            raise TypeError(f"publish: want bytes, got {type(data).__name__}")
        if len(data) > MAX_READER_DATA_BYTES:
            raise paramshard.InvalidArgumentError(
                f"publish: want at most {MAX_READER_DATA_BYTES} bytes, got {len(data)}")
        self._reader_data = data

    def send(self) -> None:
        """Sends the commit that has not been sent, if there is one. Keeps it if that fails."""
        if self._to_send is None:
            return
        state = self.tracked.take(self.moments.history)
        self._last = self._step.model.commit(**self._to_send, client_state=state)
        self._set_to_send(None)

    def _set_to_send(self, hyperparameters: dict[str, Any] | None) -> None:
        self._to_send = hyperparameters
        self._step.commit_waits = hyperparameters is not None

    def wait(self) -> None:
        """Sends the last commit, and waits for its result."""
        self.send()
        if self._last is not None:
            self._last.wait()

    def last_result(self, model: paramshard.Model | None, wait: bool) -> paramshard.StepResult | None:
        """Returns the result of the last commit of this process, else of the open model, else None.

        None also if it is not there yet, without `wait`.
        """
        if wait:
            self.send()
        elif self._to_send is not None:
            return None
        if self._last is None:
            return None if model is None else model.last_result
        return self._last.wait() if wait or self._last.ready else None
