"""The agent's end of the zygote: it starts the process, asks it for workers, and learns of their ends."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from paramshard.run import messages, zygote

_IMPORT_TIMEOUT = 600.0  # seconds; packages may lie on a slow file system
_ANSWER_TIMEOUT = 60.0  # seconds until it has forked
_log = logging.getLogger("paramshard.run")


class Worker:
    """A process that the zygote has forked, and the agent's end of its channel."""

    def __init__(self, pid: int, end: socket.socket):
        self.pid = pid
        self.end = end
        self.code: int | None = None  # of its exit, as subprocess gives it; None while it runs


class ZygoteProcess:
    """Starts the zygote at once, and again when it has died. Not for several threads."""

    def __init__(self, script: str, is_module: bool):
        """`script`: the path of a script, or the name of a module."""
        self._script = script
        self._is_module = is_module
        self._process: subprocess.Popen | None = None
        self._end: socket.socket | None = None
        self._forks = 0
        self._forked: dict[int, int] = {}  # pids by request
        self._workers: dict[int, Worker] = {}  # by pid
        self._is_ready = False
        self._start()

    def fork(self, arguments: list[str], environment: dict[str, str], stdout: str = "", stderr: str = "", *,
             spare: bool = False) -> Worker:
        """Forks a worker. RuntimeError if the zygote does not answer.

        `arguments`: of Python's command line, from the script on. `environment`: what differs from the agent's.
        """
        if self._process is None:
            self._start()
        self._await(lambda: self._is_ready, _IMPORT_TIMEOUT, "import what the script needs")
        self._forks += 1
        own, theirs = messages.pair()
        with theirs:
            messages.send(self._end, {"do": "fork", "id": self._forks, "arguments": arguments, "stdout": stdout,
                                      "environment": environment, "stderr": stderr, "spare": spare},
                          (theirs.fileno(),))
        self._await(lambda: self._forks in self._forked, _ANSWER_TIMEOUT, "fork")
        worker = Worker(self._forked.pop(self._forks), own)
        self._workers[worker.pid] = worker
        return worker

    def signal(self, worker: Worker, number: int, *, group: bool = True) -> None:
        """Signals a worker, and the processes that it has started if `group`."""
        if worker.code is None and self._end is not None:
            messages.send(self._end, {"do": "signal", "pid": worker.pid, "signal": int(number), "group": group})

    def update(self, timeout: float = 0.0) -> None:
        """Waits for news of workers, and takes what is there: their `code`."""
        while self._end is not None and messages.is_readable(self._end, timeout):
            timeout = 0.0
            message, _ = messages.receive(self._end, 0.0)
            if message is None:
                self._end_all()
            elif message["event"] == "ready":
                self._is_ready = True
                _warn(message)
            elif message["event"] == "forked":
                self._forked[message["id"]] = message["pid"]
            elif message["pid"] in self._workers:
                self._workers.pop(message["pid"]).code = message["code"]

    def close(self) -> None:
        """Ends the zygote, which kills the workers that are left."""
        if self._process is None:
            return
        self._end.close()
        if not self._is_ready:  # it would notice when all imports are done
            self._process.kill()
        try:
            self._process.wait(_ANSWER_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._end = None

    def _start(self) -> None:
        self._end, theirs = messages.pair()
        self._is_ready = False
        with theirs:
            plan = zygote.Plan(self._script, self._is_module, {}, "")
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(pathlib.Path(zygote.__file__)), str(theirs.fileno()), str(os.getpid()),
                 json.dumps(plan)],
                pass_fds=[theirs.fileno()], start_new_session=True)

    def _await(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if self._end is None:
                raise RuntimeError(f"zygote: it died (see its last lines above) instead of having to {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"zygote: timed out after {timeout:.0f} s waiting for it to {what}")
            self.update(min(1.0, timeout))

    def _end_all(self) -> None:
        """Notes that the zygote has died, and all workers with it, as the kernel sees to."""
        self._end.close()
        code = self._process.wait()
        _log.error("zygote (pid %d) exited with code %d; its workers have died with it", self._process.pid, code)
        for worker in self._workers.values():
            worker.code = -signal.SIGKILL
        self._workers.clear()
        self._process = self._end = None


def _warn(ready: dict[str, Any]) -> None:
    if ready["interpreter"]:
        _log.warning("workers are new interpreters, and take longer to start: %s before workers can be forked; remove "
                     "that, or move it into the script", ready["interpreter"])
    for module, reason in ready["without"].items():
        _log.warning("each worker imports %s by itself, which takes its time after a death: it %s when it is imported; "
                     "import it inside of a function that does not run before the first step", module, reason)
