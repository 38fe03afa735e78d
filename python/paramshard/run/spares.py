"""Processes that wait to take a dead worker's place."""

from __future__ import annotations

import logging
import os
import pathlib
from dataclasses import dataclass

from paramshard.run import messages
from paramshard.run.zygote_process import Worker, ZygoteProcess

_MOST_FAILURES = 3  # one after another, of a place
_log = logging.getLogger("paramshard.run")


@dataclass
class _Place:
    """Spares of a GPU, by the local rank that trains on it, or of the node."""

    rank: int | None
    spares: list[Worker]
    ready: set[int]  # pids
    failures: int = 0

    @property
    def name(self) -> str:
        return "the node" if self.rank is None else f"the GPU of local rank {self.rank}"


class Spares:
    """Keeps a number of spares: for each GPU, or for a node that trains on the CPU."""

    def __init__(self, zygote: ZygoteProcess, number: int):
        self._zygote = zygote
        self._number = number
        self._places: dict[int | None, _Place] = {}
        self._has_gpus = bool(number) and has_gpus()

    def fill(self, environments: dict[int, dict[str, str]]) -> None:
        """Forks what is missing. `environments`: of the workers, by local rank."""
        for rank in environments if self._has_gpus else [None]:
            place = self._places.setdefault(rank, _Place(rank, [], set()))
            self._update(place)
            while len(place.spares) < self._number and place.failures < _MOST_FAILURES:
                environment = {} if rank is None else {
                    name: environments[rank][name] for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
                    if name in environments[rank]}
                place.spares.append(self._zygote.fork([], environment, spare=True))

    def take(self, rank: int, arguments: list[str], environment: dict[str, str], stdout: str,
             stderr: str) -> Worker | None:
        """Returns a spare that becomes the worker of a local rank; None if none is ready."""
        place = self._places.get(rank if self._has_gpus else None)
        if place is None:
            return None
        self._update(place)
        for spare in place.spares:
            if spare.pid in place.ready and messages.send(spare.end, {
                    "do": "run", "arguments": arguments, "environment": environment, "stdout": stdout,
                    "stderr": stderr}):
                place.spares.remove(spare)
                return spare
        return None

    def _update(self, place: _Place) -> None:
        """Takes what spares have said, and forgets those that have died."""
        for spare in list(place.spares):
            if spare.pid not in place.ready and messages.is_readable(spare.end, 0.0):
                self._take_news(place, spare)
            if spare.code is not None and spare in place.spares:
                _log.warning("spare %d of %s exited with code %d", spare.pid, place.name, spare.code)
                place.spares.remove(spare)
                place.failures += spare.pid not in place.ready
                if place.failures == _MOST_FAILURES:
                    _log.warning("%s gets no more spares: %d have failed to start; see their last lines above",
                                 place.name, _MOST_FAILURES)

    def _take_news(self, place: _Place, spare: Worker) -> None:
        message, _ = messages.receive(spare.end, 0.0)
        if message is None:
            return
        if message["event"] == "ready":
            place.ready.add(spare.pid)
            place.failures = 0
            if place.rank is not None:
                size = "an unknown part" if message["bytes"] is None else f"about {message['bytes'] / 2**20:.0f} MiB"
                _log.warning("spare %d takes %s of %s", spare.pid, size, place.name)
        else:
            place.failures = _MOST_FAILURES
            place.spares.remove(spare)
            _log.warning("%s gets no more spares, because one does not fit: %s; give --spares=%d, or leave the GPU "
                         "more memory by a smaller model or batch", place.name, message["reason"], len(place.spares))


def has_gpus() -> bool:
    """Returns True if the driver has GPUs that workers see, without making this process use any."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1") and any(
        pathlib.Path("/dev").glob("nvidia[0-9]*"))
