"""Processes that wait to take a dead worker's place."""

from __future__ import annotations

from paramshard.run.zygote_process import Worker, ZygoteProcess


class Spares:
    """Keeps a number of spares ready: for each GPU, or for a node that trains on the CPU."""

    def __init__(self, zygote: ZygoteProcess, number: int):
        self._zygote = zygote
        self._number = number

    def fill(self, environments: dict[int, dict[str, str]]) -> None:
        """Forks what is missing. `environments`: of the workers, by local rank."""

    def take(self, rank: int, arguments: list[str], environment: dict[str, str], stdout: str,
             stderr: str) -> Worker | None:
        """Returns a spare that has become the worker of a local rank; None if none is ready."""
        return None
