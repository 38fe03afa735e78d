"""Facts from torchrun or `paramshard.run` about this process: its restarts, its agent and its run."""

from __future__ import annotations

import os
import pathlib

from paramshard.run import channel

# An agent sets these for its workers. Processes that agree in all of them were started as one worker.
_OF_WORKER = (b"TORCHELASTIC_RUN_ID", b"MASTER_PORT", b"RANK")


def is_worker() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_restart() -> bool:
    """Returns True if the agent has started workers before, or has resumed this one."""
    return any(int(os.environ.get(name, 0)) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", channel.GENERATION))


def job_pid() -> int:
    """Returns the process that outlives the workers of this node: their agent. Without torchrun it is this process.

    `paramshard.run` says its number. Of torchrun's workers one may be a script that starts Python: its processes are
    workers, as their environments tell.
    """
    if not is_worker():
        return os.getpid()
    if channel.JOB in os.environ:
        return int(os.environ[channel.JOB])
    own = [os.environb.get(name) for name in _OF_WORKER]
    pid = os.getppid()
    while pid > 1 and [_environment(pid).get(name) for name in _OF_WORKER] == own:
        pid = int(_stat(pid)[1])
    return pid


def run_id() -> str:
    """Returns an id that all attempts of a run on this node share, and the next run does not.

    It is the given name of the run, or else names its job's process: torchrun calls runs "none" by default.
    """
    given = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if given != "none":
        return given
    pid = job_pid()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {pid} {_stat(pid)[19]}"  # a pid is given again, but not with the same start time


def _environment(pid: int) -> dict[bytes, bytes]:
    """Returns the environment that a process began with; empty if unreadable, as for processes of other users."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def _stat(pid: int) -> list[str]:
    """Returns the fields of proc_pid_stat(5) from the third one on, after the name, which may have any characters."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
