"""What torchrun says of this process: whether it was started again, by which agent, and in which run."""

from __future__ import annotations

import os
import pathlib

# An agent gives these to its workers. Two that are alike in all of them were started as one worker.
_OF_WORKER = (b"TORCHELASTIC_RUN_ID", b"MASTER_PORT", b"RANK")


def is_worker() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_restart() -> bool:
    """Whether its agent has started workers before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def job_pid() -> int:
    """The process that outlives the workers of this node: their agent. Without torchrun it is this process.

    A worker may be a script that starts Python: its processes are workers, as their environments tell.
    """
    if not is_worker():
        return os.getpid()
    own = [os.environb.get(name) for name in _OF_WORKER]
    pid = os.getppid()
    while pid > 1 and [_environment(pid).get(name) for name in _OF_WORKER] == own:
        pid = int(_stat(pid)[1])
    return pid


def run_id() -> str:
    """The same for all attempts of a run on this node, and another one for the next run.

    It is the name that the run was given, or else that of its job's process: torchrun calls runs "none" by default.
    """
    given = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if given != "none":
        return given
    pid = job_pid()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {pid} {_stat(pid)[19]}"  # a number is given again, but not with the same time of its start


def _environment(pid: int) -> dict[bytes, bytes]:
    """That a process has begun with. Empty where it may not be read: no worker of this user is it then."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def _stat(pid: int) -> list[str]:
    """Fields of proc_pid_stat(5) from the third one on: behind the name, which may have anything in it."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
