"""The workers of one node: forks them, keeps those that can be resumed, and replaces the others."""

from __future__ import annotations

import logging
import signal
import time
from typing import Any

from paramshard.run import channel, messages
from paramshard.run.spares import Spares
from paramshard.run.torch_elastic import ProcessFailure, Processes, RunProcsResult
from paramshard.run.zygote_process import Worker, ZygoteProcess

_NOTICE_TIMEOUT = 0.3  # seconds until a worker has noticed another's death by itself; then it is interrupted
_STOP_TIMEOUT = 5.0  # seconds until it has left its training function
_POLL_INTERVAL = 0.01  # seconds
_MOST_MESSAGES = 100  # of a worker that are read at once
_KILL_TIMEOUT = 10.0  # seconds until a killed process has ended: it may be in the kernel
_log = logging.getLogger("paramshard.run")


class TrainingWorker:
    """A worker with a local rank, and what it has said."""

    def __init__(self, process: Worker):
        self.process = process
        self.is_inside = False  # of a function that can be called again
        self.has_left = False  # such a function: a new worker would be in the first one, and wait for this one there
        self.is_interruptible = False
        self.is_stopped = False  # has left that function, and waits for the next generation

    @property
    def is_running(self) -> bool:
        return self.process.code is None

    def listen(self) -> None:
        """Takes what it has said."""
        for _ in range(_MOST_MESSAGES):
            if not messages.is_readable(self.process.end, 0.0):
                return
            try:
                message, _ = messages.receive(self.process.end, 0.0)
            except ValueError:  # the script has written to its channel
                continue
            if message is None:  # or has closed it
                self.is_inside = False
                return
            event = message.get("event")
            if event in ("entered", "left"):
                self.has_left |= event == "left"
                self.is_inside = event == "entered" and not self.has_left
                self.is_interruptible = message.get("interruptible") is True
            elif event == "stopped":
                self.is_stopped = True

    def tell(self, message: dict[str, Any]) -> None:
        messages.send(self.process.end, message)


class Workers(Processes):
    """Workers between two rendezvous. A death ends it: `kept` go on in the next object, unless the job ends."""

    def __init__(self, *, zygote: ZygoteProcess, spares: Spares, last: bool, before: Workers | None, kept: set[int],
                 name: str, entrypoint: str, args: dict[int, tuple], envs: dict[int, dict[str, str]], **options: Any):
        """Takes the parameters of torch's start_processes, and `kept` workers of the object before.

        `last`: a death ends all workers, because there is no restart left.
        """
        super().__init__(name, entrypoint, args, envs, **options)
        self._zygote = zygote
        self._spares = spares
        self._last = last
        self._workers = {rank: before._workers[rank] for rank in kept}
        self._failures: dict[int, ProcessFailure] = {}
        if before is not None:
            self._take_logs_of(before)

    # --- Interface of torch's agent ---

    def _start(self) -> None:
        for rank, worker in self._workers.items():
            worker.is_stopped = False
            worker.tell({"do": "resume", "environment": self.envs[rank]})
        for rank in range(self.nprocs):
            if rank not in self._workers:
                self._fork(rank)
        self._spares.fill(self.envs)

    def pids(self) -> dict[int, int]:
        return {rank: self._workers[rank].process.pid for rank in range(self.nprocs)}

    def _poll(self) -> RunProcsResult | None:
        self._update()
        self._note_failures()
        if all(worker.is_running for worker in self._workers.values()):
            self._spares.fill(self.envs)
            return None
        if not self._failures and any(worker.is_running for worker in self._workers.values()):
            return None
        for failure in self._failures.values():
            _log.error("worker failed (exit code %d): local rank %d, pid %d", failure.exitcode, failure.local_rank,
                       failure.pid)
        if self._last or not self._failures:
            self.close()
            self._note_failures()  # the report has those that were ended as well, after the first
        return RunProcsResult({} if self._failures else dict.fromkeys(range(self.nprocs)), self._failures,
                              self.stdouts, self.stderrs)

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.stop(set(), death_sig, timeout)

    # --- Survivors ---

    def resumable(self) -> set[int]:
        """Returns the running workers, if each of them can call its training function again; else none."""
        self._update()
        running = {rank for rank, worker in self._workers.items() if worker.is_running}
        return running if all(self._workers[rank].is_inside for rank in running) else set()

    def stopped(self) -> tuple[int, int]:
        """Returns how many workers wait for the next generation, and how many run."""
        running = [worker for worker in self._workers.values() if worker.is_running]
        return sum(worker.is_stopped for worker in running), len(running)

    def stop_in_process(self, ranks: set[int]) -> set[int]:
        """Lets workers leave their training functions. Returns those that have; the others are to be replaced."""
        began = time.monotonic()
        to_interrupt = {rank for rank in ranks if self._workers[rank].is_interruptible}
        for rank in ranks:
            self._workers[rank].tell({"do": "stop"})
        while True:
            waited = time.monotonic() - began
            moving = {rank for rank in ranks if self._workers[rank].is_running and self._workers[rank].is_inside and
                      not self._workers[rank].is_stopped}
            if not moving or waited > _STOP_TIMEOUT:
                break
            if waited > _NOTICE_TIMEOUT:
                for rank in moving & to_interrupt:
                    self._zygote.signal(self._workers[rank].process, channel.INTERRUPTION, group=False)
                to_interrupt = set()
            self._zygote.update(_POLL_INTERVAL)
            self._update()
        for rank in moving:
            _log.warning("replacing worker %d (local rank %d): it has not left its training function in %.0f s",
                         self._workers[rank].process.pid, rank, _STOP_TIMEOUT)
            self._zygote.signal(self._workers[rank].process, signal.SIGKILL)
        return {rank for rank in ranks if self._workers[rank].is_running and self._workers[rank].is_stopped}

    def give_up(self) -> None:
        """Tells workers that wait that there is no next generation: they fail by the errors that they have."""
        for worker in self._workers.values():
            if worker.is_stopped:
                worker.is_stopped = False
                worker.tell({"do": "give up"})

    def stop(self, kept: set[int], death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30.0) -> None:
        """Ends the workers, except for `kept`: by SIGKILL after the timeout."""
        ended = [worker.process for rank, worker in self._workers.items() if rank not in kept]
        for process in ended:
            if process.code is None:
                _log.warning("sending %s to worker %d", death_sig.name, process.pid)
                self._zygote.signal(process, death_sig)
        self._await_ends(ended, timeout)
        for process in ended:
            if process.code is None:
                _log.warning("worker %d has not ended on %s; killing it", process.pid, death_sig.name)
                self._zygote.signal(process, signal.SIGKILL)
        self._await_ends(ended, _KILL_TIMEOUT)

    def _await_ends(self, processes: list[Worker], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while any(process.code is None for process in processes) and time.monotonic() < deadline:
            self._zygote.update(min(0.1, timeout))

    # --- Own ---

    def _fork(self, rank: int) -> None:
        _, *arguments = self.args[rank]  # -u
        if arguments[0] == "-m":
            arguments = arguments[1:]
        job = [str(each) for each in arguments], self.envs[rank], self.stdouts[rank], self.stderrs[rank]
        self._workers[rank] = TrainingWorker(self._spares.take(rank, *job) or self._zygote.fork(*job))

    def _update(self) -> None:
        self._zygote.update()
        for worker in self._workers.values():
            worker.listen()

    def _note_failures(self) -> None:
        for rank, worker in self._workers.items():
            if worker.process.code and rank not in self._failures:
                self._failures[rank] = ProcessFailure(rank, worker.process.pid, worker.process.code,
                                                      self.error_files[rank])
