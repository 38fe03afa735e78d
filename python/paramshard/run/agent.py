"""torchrun's agent, with workers from a zygote, of which it replaces as few as it can."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from torch.distributed import TCPStore

from paramshard.run import channel
from paramshard.run.spares import Spares
from paramshard.run.torch_elastic import (LocalElasticAgent, PContext, RunResult, WorkerGroup, WorkerState,
                                          start_processes, starting_by)
from paramshard.run.workers import Workers
from paramshard.run.zygote_process import ZygoteProcess

_STORE_PORT = "paramshard/run/port"  # key of the agents' store
# Seconds until workers that have left their training functions are resumed though none is known to have died: it may
# have on another node, whose agent then asks for a rendezvous.
_DEATH_TIMEOUT = 2.0


class Agent(LocalElasticAgent):
    """Agent of one node.

    A death is answered by a rendezvous, as in torchrun. But where each worker that is left can be resumed, it stays,
    and is told the environment that a new worker would get.
    """

    def __init__(self, spares: int, **options: Any):
        super().__init__(**options)
        self._spares_wanted = spares
        self._zygote: ZygoteProcess | None = None
        self._spares: Spares | None = None
        self._kept: set[int] = set()
        self._is_restarting = False
        self._generation = -1
        self._workers_store: TCPStore | None = None
        self._stopped_since: float | None = None
        os.environ[channel.JOB] = str(os.getpid())

    # --- Restarts ---

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        workers = self._pcontext
        self._kept = workers.stop_in_process(workers.resumable()) if isinstance(workers, Workers) else set()
        self._stopped_since = None
        self._is_restarting = True
        try:
            super()._restart_workers(worker_group)
        finally:
            self._is_restarting = False

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        if self._is_restarting and self._kept:
            self._pcontext.stop(self._kept)
        else:
            super()._stop_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self._pcontext
        if not isinstance(workers, Workers):
            return super()._monitor_workers(worker_group)
        result = super()._monitor_workers(worker_group)
        if result.state != WorkerState.HEALTHY or not self._has_to_resume(workers, worker_group.group_world_size):
            return result
        if self._remaining_restarts > 0:
            return RunResult(state=WorkerState.UNHEALTHY)
        workers.give_up()
        return result

    def _has_to_resume(self, workers: Workers, nodes: int) -> bool:
        """Returns True if workers wait for the next generation though none has died: the daemon was restarted, say."""
        stopped, running = workers.stopped()
        if stopped == 0:
            self._stopped_since = None
            return False
        if nodes == 1 and stopped == running:
            return True
        if self._stopped_since is None:
            self._stopped_since = time.monotonic()
        return time.monotonic() - self._stopped_since > _DEATH_TIMEOUT

    # --- Starts ---

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        self._generation += 1
        is_static = worker_group.spec.rdzv_handler.get_backend() == "static"
        if is_static and (self._generation == 0 or worker_group.group_world_size > 1):
            return  # the store of the given address
        # torchrun's own store outlives workers: new ones would find addresses of dead ones in it (pytorch#135712).
        self._workers_store = None
        if worker_group.group_rank == 0:
            self._workers_store = TCPStore(worker_group.master_addr, 0, is_master=True, wait_for_workers=False)
            worker_group.store.set(_STORE_PORT, str(self._workers_store.port))
        worker_group.master_port = int(worker_group.store.get(_STORE_PORT))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with starting_by(self._make_workers):
            return super()._start_workers(worker_group)

    def _make_workers(self, *, name: str, entrypoint: Any, args: dict[int, tuple], envs: dict[int, dict[str, str]],
                      start_method: str, numa_options: Any, **options: Any) -> PContext:
        for environment in envs.values():
            environment[channel.GENERATION] = str(self._generation)
            environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # an agent has it, whatever the rendezvous is
        is_script = entrypoint == sys.executable and args[0][:1] == ("-u",)  # --no-python may name Python, too
        if not is_script or numa_options is not None:
            return start_processes(name=name, entrypoint=entrypoint, args=args, envs=envs, start_method=start_method,
                                   numa_options=numa_options, **options)
        if self._zygote is None:
            is_module = args[0][1] == "-m"
            self._zygote = ZygoteProcess(args[0][2 if is_module else 1], is_module)
            self._spares = Spares(self._zygote, self._spares_wanted)
        before = self._pcontext if self._kept else None
        workers = Workers(zygote=self._zygote, spares=self._spares, last=self._remaining_restarts == 0, before=before,
                          kept=self._kept, name=name, entrypoint=entrypoint, args=args, envs=envs, **options)
        workers.start()
        self._kept = set()
        return workers

    # --- The end ---

    def _shutdown(self, *arguments: Any, **options: Any) -> None:
        super()._shutdown(*arguments, **options)
        if self._zygote is not None and not self._is_restarting:
            self._zygote.close()
            self._zygote = None
