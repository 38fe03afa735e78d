"""A daemon that lives as long as a job: `daemon="job"` of shard.

Under torchrun a job is the agent, which outlives its workers and starts them again; else it is the process that
trains. A small process of its own waits for the job's end, because the worker that starts the daemon may be killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from typing import TextIO

import paramshard
from paramshard import programs

_START_TIMEOUT = 60.0  # seconds until the daemon serves
_DRAIN_TIMEOUT = 30.0  # seconds until it has ended
_POLL_INTERVAL = 0.02  # seconds
_SOCKETS = ("grpc.sock", "handoff.sock")
_LONGEST_PATH = 107  # bytes of a Unix socket's path


def start_job_daemon(job: int, local_rank: int, devices: list[str]) -> str:
    """Starts the daemon, on the node's first rank, unless an earlier worker has. Returns its socket directory.

    `job`: the process that it ends with.

    UnavailableError or DeadlineExceededError, with the log's last lines, if it does not serve.
    """
    folder = _folder_of(job)
    sockets = folder / "sockets"
    if local_rank == 0:
        _start(folder, sockets, job, devices)
    else:
        _await_sockets(folder, sockets)
    return str(sockets)


def _folder_of(job: int) -> pathlib.Path:
    """Returns the daemon's folder, alike on all ranks of the node: in $TMPDIR, unless the sockets' paths get too long.

    FailedPreconditionError if no folder with a short enough name can be written to.
    """
    tried = []
    for parent in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"):
        if not parent:
            continue
        folder = pathlib.Path(parent, f"paramshard-job-{os.getuid()}-{job}")
        length = max(len(os.fsencode(folder / "sockets" / name)) for name in _SOCKETS)
        if length <= _LONGEST_PATH and os.access(parent, os.W_OK | os.X_OK):
            return folder
        tried.append(f"{parent} ({length} bytes)" if length > _LONGEST_PATH else f"{parent} (not writable)")
    raise paramshard.FailedPreconditionError(
        f"shard: the job's daemon needs a folder for its sockets, whose paths have {_LONGEST_PATH} bytes at most; "
        f"tried {', '.join(tried)}; set TMPDIR to a shorter one")


def _start(folder: pathlib.Path, sockets: pathlib.Path, job: int, devices: list[str]) -> None:
    # Another user may have put something else in its place, such as a link to a folder of this user.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise paramshard.PermissionDeniedError(f"shard: {folder} belongs to another user, or is not a folder")
    sockets.mkdir(mode=0o700, exist_ok=True)
    with (folder / "log").open("a+", errors="replace") as log:
        started = None
        # A cleaner of temporary files may have removed the log, whose lock says whether a daemon is running.
        if _is_alone(log) and not any(_is_served(sockets / name) for name in _SOCKETS):
            # Sockets may be left by a job of the same number that was killed with its daemon.
            for name in _SOCKETS:
                (sockets / name).unlink(missing_ok=True)
            # Runs as a file, not as a module of this package: it needs no torch, which takes seconds and memory.
            started = subprocess.Popen(
                [sys.executable, __file__, str(job), str(folder), str(programs.path_of("paramshardd")),
                 f"--socket-dir={sockets}", *(f"--device={device}" for device in devices)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        _await_sockets(folder, sockets, started, log)


def _is_alone(log: TextIO) -> bool:
    """Locks the log. Returns False while the process that watches a running daemon holds the lock."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    log.truncate(0)
    return True


def _is_served(path: pathlib.Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # a server is there, but takes no connection of this type, or none now
            return True
    return True


def _await_sockets(folder: pathlib.Path, sockets: pathlib.Path, started: subprocess.Popen | None = None,
                   log: TextIO | None = None) -> None:
    """Polls until the sockets exist: a rank that has not started the daemon knows only its folder."""
    deadline = time.monotonic() + _START_TIMEOUT
    while not all((sockets / name).exists() for name in _SOCKETS):
        if started is not None and started.poll() is not None:
            raise paramshard.UnavailableError(
                f"shard: the job's daemon exited; its log says: {_end_of_log(folder, log)}")
        if time.monotonic() > deadline:
            raise paramshard.DeadlineExceededError(
                f"shard: timed out after {_START_TIMEOUT:.0f} s waiting for the job's daemon; its log says: "
                f"{_end_of_log(folder, log)}")
        time.sleep(_POLL_INTERVAL)


def _end_of_log(folder: pathlib.Path, log: TextIO | None) -> str:
    """Reads the open log if there is one, because the folder goes with the daemon."""
    if log is not None:
        log.seek(0)
        return log.read()[-2000:] or "nothing"
    path = folder / "log"
    return path.read_text(errors="replace")[-2000:] if path.exists() else "nothing"


def _supervise(job: int, folder: pathlib.Path, command: list[str]) -> int:
    """Runs the daemon until it ends, or the job does."""
    try:
        of_job = os.pidfd_open(job)
    except ProcessLookupError:
        return 1
    daemon = subprocess.Popen(command)
    of_daemon = os.pidfd_open(daemon.pid)
    ready, _, _ = select.select([of_job, of_daemon], [], [])
    if of_daemon not in ready:
        daemon.send_signal(signal.SIGTERM)
    try:
        status = daemon.wait(_DRAIN_TIMEOUT)
    except subprocess.TimeoutExpired:
        daemon.kill()
        status = daemon.wait()
    _remove(folder)
    return status


def _remove(folder: pathlib.Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    folder.rmdir()


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]))
