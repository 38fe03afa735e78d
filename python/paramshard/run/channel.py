"""Connection of a worker to the agent that has started it.

A worker says when its training function begins and ends. When another worker has died the agent says "stop", and by the
signal INTERRUPTION to those that do not notice. A worker that has left its function says "stopped"; when all have, they
get the environment of the next generation: otherwise one could meet others that are about to leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

from paramshard.run import messages

# The pid and the descriptor: processes that a worker starts inherit the variable, and are no workers.
VARIABLE = "PARAMSHARD_RUN_CHANNEL"
JOB = "PARAMSHARD_RUN_JOB"  # pid of the agent, which the job's daemon ends with
GENERATION = "PARAMSHARD_RUN_GENERATION"  # number of times that the agent has started or resumed workers before
# Sent to a worker that goes on as if nothing had happened: it waits for one that is dead, say.
INTERRUPTION = signal.SIGRTMIN + 7
_RESUME_TIMEOUT = 1800.0  # seconds; the agent waits for other nodes, with timeouts of its own


class OtherWorkerDied(BaseException):
    """Raised in a training function that has to be left, though nothing in it has failed. For no other to catch."""


class Channel:
    """The worker's end."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._is_calling = False  # the training function

    @staticmethod
    def of_process() -> Channel | None:
        """Returns the channel of this process; None if `paramshard.run` has not started it."""
        pid, _, descriptor = os.environ.get(VARIABLE, "").partition(":")
        if pid != str(os.getpid()):
            return None
        return Channel(socket.socket(fileno=os.dup(int(descriptor))))

    def enter(self) -> None:
        """Says that a training function begins that can be called again."""
        is_main = threading.current_thread() is threading.main_thread()  # others have no handlers
        if is_main:
            signal.signal(INTERRUPTION, self._interrupt)
        messages.send(self._end, {"event": "entered", "interruptible": is_main})

    def leave(self) -> None:
        """Says that the training function has ended, and closes the channel."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(INTERRUPTION, signal.SIG_IGN)
        messages.send(self._end, {"event": "left"})
        self._end.close()

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Lets the agent interrupt the block, which then raises OtherWorkerDied."""
        self._is_calling = True
        try:
            yield
        finally:
            self._is_calling = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_calling and self.has_news(0.0):  # unless they were taken meanwhile
            self._is_calling = False  # once
            raise OtherWorkerDied

    def has_news(self, timeout: float) -> bool:
        """Waits for the agent to say that another worker has died."""
        return messages.is_readable(self._end, timeout)

    def take_generation(self) -> bool:
        """Says that this worker has left its training function. Waits for the environment of the next generation, and
        sets it.

        Returns False if there is none: the agent has no restarts left, or has ended.
        """
        messages.send(self._end, {"event": "stopped"})
        deadline = time.monotonic() + _RESUME_TIMEOUT
        while True:
            try:
                message, _ = messages.receive(self._end, max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if message is None or message.get("do") == "give up":
                return False
            if message.get("do") == "resume":
                os.environ.update(message["environment"])
                return True
