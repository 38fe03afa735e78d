"""Process that imports what workers need, and forks them. `zygote_process` starts it, as a file.

It has one thread and no CUDA, which a fork would break. Where an import starts threads, initializes CUDA or reads a
variable that differs by rank, it begins anew without that import, which workers then make themselves; where it cannot
do without, workers are new interpreters. The answer "ready" says so.

Requests: {"do": "fork", "id", "arguments", "environment", "stdout", "stderr", "spare"}, with the worker's end of its
channel, and {"do": "signal", "pid", "signal", "group"}. Answers: "ready", {"event": "forked", "id", "pid"} and {"event":
"exited", "pid", "code"}. It ends when the agent does, and its workers with it.
"""

from __future__ import annotations

import sys

_OF_PYTHON = frozenset(sys.modules)  # which a script cannot have of its own

if __name__ == "__main__":
    del sys.path[0]  # this folder; a script's own modules are not for this process either

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from paramshard.run import channel, messages, script_imports, worker

# Imports without which a fork is not worth it, and one that torch.compile and optimizers of torch.optim make.
_NEEDED = ("torch", "paramshard.torch")
_ALWAYS = tuple(map(script_imports.Import, (*_NEEDED, "torch._dynamo")))
# They differ by rank or by generation, and are not set here.
_OF_WORKERS = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"})
_CHECK_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_COMPUTED = "TORCHINDUCTOR_CACHE_DIR"  # an import sets it by TMPDIR, which a script may set first
_PR_SET_PDEATHSIG = 1
_CUDA_ERROR_NOT_INITIALIZED = 3


class Plan(NamedTuple):
    """Arguments of this process."""

    script: str
    is_module: bool
    without: dict[str, str]  # modules that are not imported here, each with the reason
    interpreter: str  # reason why workers are new interpreters; empty if they are forked with imports


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which has ended before
        os._exit(1)


# --- Imports ---


def why_not_forkable() -> str:
    """Returns why a fork of this process would not work; "" if it would."""
    if _is_cuda_initialized():  # which starts threads as well
        return "initializes CUDA"
    # A thread pool that takes part in forks, such as OpenBLAS's, ends its threads before one.
    has_threads = threading.active_count() > 1 or _threads() > 1 and (_fork_nothing(), _threads())[1] > 1
    return "starts a thread" if has_threads else ""


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _fork_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _is_cuda_initialized() -> bool:
    """Asks the driver, if it is loaded: torch knows of its own use alone."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_ERROR_NOT_INITIALIZED


@contextlib.contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """Notes which variables of workers are read in the block, in Python."""
    read: set[str] = set()
    plain = type(os.environ)

    class Noting(plain):
        def __getitem__(self, name: str) -> str:
            if name in _OF_WORKERS:
                read.add(name)
            return super().__getitem__(name)

    os.environ.__class__ = Noting
    try:
        yield read
    finally:
        os.environ.__class__ = plain


def _import(each: script_imports.Import) -> str:
    """Imports a module, and what a script takes from it. Returns why workers have to do so themselves, or ""."""
    with _noting_reads() as read:
        try:
            module = importlib.import_module(each.module)
            for name in each.names:  # a module may import others when it is asked for a name
                if not hasattr(module, name):
                    importlib.import_module(f"{each.module}.{name}")
        except (Exception, SystemExit) as error:
            return f"raises {type(error).__name__}: {error}"
    return f"reads {', '.join(sorted(read))}" if read else why_not_forkable()


def _shadowed(folder: pathlib.Path) -> str:
    """Names an imported module that a script finds in its folder instead; "" if there is none."""
    names = {name.partition(".")[0] for name in sys.modules.keys() - _OF_PYTHON}
    found = script_imports.shadowed_by(folder, names)
    return f"imports {found[0]}, and the script's folder has a module of that name" if found else ""


def _prepare(plan: Plan) -> tuple[str, str] | None:
    """Imports what workers need. Returns a module, and why this process is of no use with it."""
    folder = worker.folder_of(plan.script, plan.is_module)
    fault = why_not_forkable() or _shadowed(folder)
    if fault:
        return "", fault
    source = worker.source_of(plan.script, plan.is_module)
    found = script_imports.installed_imports(source, folder) if source is not None else []
    for each in (*_ALWAYS, *found):
        if each.module in plan.without:
            continue
        fault = _import(each) or _shadowed(folder)
        if fault:
            return each.module, fault
    return None


def _begin_anew(plan: Plan, arguments: list[str], module: str, reason: str) -> None:
    """Becomes this program without an import that it cannot have."""
    if module in ("", *_NEEDED):
        plan = plan._replace(interpreter=f"{module or 'the start of Python'} {reason}")
    else:
        plan = plan._replace(without=plan.without | {module: reason})
    os.execv(sys.executable, [sys.executable, "-u", __file__, *arguments, json.dumps(plan)])


# --- Workers ---


class Zygote:
    """Forks workers, and waits for their ends."""

    def __init__(self, agent: socket.socket, plan: Plan):
        self._agent = agent
        self._plan = plan
        self._workers: dict[int, int] = {}  # descriptors of processes, by pid
        self._environment = dict(os.environ)

    def serve(self) -> worker.Job | None:
        """Returns a job in each forked process, and None here when the agent has ended."""
        messages.send(self._agent, {"event": "ready", "without": self._plan.without,
                                    "interpreter": self._plan.interpreter})
        while True:
            waiter = select.poll()
            for descriptor in (self._agent.fileno(), *self._workers.values()):
                waiter.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in waiter.poll()}
            for pid, descriptor in list(self._workers.items()):
                if descriptor in ready:
                    self._reap(pid)
            if self._agent.fileno() in ready:
                request, descriptors = messages.receive(self._agent, None)
                if request is None:
                    self._kill_all()
                    return None
                if request["do"] == "signal":
                    self._signal(request["pid"], request["signal"], request["group"])
                elif (job := self._fork(request, descriptors)) is not None:
                    return job

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> worker.Job | None:
        own = os.getpid()
        pid = os.fork()
        if pid:
            self._workers[pid] = os.pidfd_open(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            messages.send(self._agent, {"event": "forked", "id": request["id"], "pid": pid})
            return None
        die_with(own)
        self._agent.close()
        for descriptor in self._workers.values():
            os.close(descriptor)
        os.setsid()  # signals of the terminal are the agent's, which passes them on
        os.environ.clear()
        os.environ.update(self._environment | request["environment"])
        os.environ[channel.VARIABLE] = f"{os.getpid()}:{descriptors[0]}"
        return worker.Job(self._plan.script, self._plan.is_module, request["arguments"], request["stdout"],
                          request["stderr"], descriptors[0], bool(self._plan.interpreter), request["spare"])

    def _reap(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        os.close(self._workers.pop(pid))
        messages.send(self._agent, {"event": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _signal(self, pid: int, number: int, group: bool) -> None:
        """Signals a worker, and its group with it. Here its number cannot be another process's, for it is not reaped.
        """
        if pid not in self._workers:
            return
        try:
            (os.killpg if group else os.kill)(pid, number)
        except ProcessLookupError:  # it has not made its session yet
            os.kill(pid, number)

    def _kill_all(self) -> None:
        for pid in self._workers:
            self._signal(pid, signal.SIGKILL, True)


def main() -> None:
    *arguments, packed = sys.argv[1:]
    descriptor, parent = map(int, arguments)
    plan = Plan(*json.loads(packed))
    die_with(parent)
    os.environ[_CHECK_BY_NVML] = "1"  # torch.cuda.is_available() would initialize the driver
    is_computed = _COMPUTED not in os.environ
    fault = None if plan.interpreter else _prepare(plan)
    if is_computed:
        os.environ.pop(_COMPUTED, None)
    tempfile.tempdir = None  # likewise
    if fault is not None:
        _begin_anew(plan, arguments, *fault)
    os.environ.pop(_CHECK_BY_NVML)
    os.set_inheritable(descriptor, False)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    job = Zygote(socket.socket(fileno=descriptor), plan).serve()
    if job is None:
        os._exit(0)  # nothing is to be cleaned up, and torch takes a second for it
    worker.run(job)


if __name__ == "__main__":
    main()
