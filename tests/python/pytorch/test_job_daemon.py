"""Daemons that jobs start: each script is a job of its own."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

TIMEOUT = 100.0

_START = """
import os
from paramshard.torch.job_daemon import start_job_daemon
import paramshard
for _ in range(2):
    with paramshard.Client(socket_dir=start_job_daemon(os.getpid(), 0, ["cpu:0"])) as client:
        print(client.daemon_info().pid)
"""


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder with a short path, so that paths of a job's sockets fit."""
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


def _job(tmp_path: pathlib.Path, script: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(tmp_path)},
                          capture_output=True, text=True, timeout=TIMEOUT)


def test_sockets_of_a_killed_job_are_no_daemon(folder):
    """Pids are reused, in containers soon."""
    ended = _job(folder, f"""
import os, pathlib, socket
folder = pathlib.Path({str(folder)!r}, f"paramshard-job-{{os.getuid()}}-{{os.getpid()}}", "sockets")
folder.mkdir(parents=True)
for name in ("grpc.sock", "handoff.sock"):
    socket.socket(socket.AF_UNIX).bind(str(folder / name))
{_START}""")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.split()
    assert len(lines) == 2 and lines[0] == lines[1]


def test_a_link_in_place_of_the_folder_is_refused(folder):
    ended = _job(folder, f"""
import os, pathlib
folder = pathlib.Path({str(folder)!r}, "elsewhere")
folder.mkdir()
pathlib.Path({str(folder)!r}, f"paramshard-job-{{os.getuid()}}-{{os.getpid()}}").symlink_to(folder)
{_START}""")
    assert "PermissionDeniedError" in ended.stderr and "is not a folder" in ended.stderr
    assert not list((folder / "elsewhere").iterdir())


def test_a_daemon_that_does_not_start_says_why(tmp_path):
    program = tmp_path / "paramshardd"
    program.write_text("#!/bin/sh\necho there is no such thing\nexit 7\n")
    program.chmod(0o700)
    ended = _job(tmp_path, f"""
import pathlib
from paramshard import programs
programs.path_of = lambda name: pathlib.Path({str(program)!r})
{_START}""")
    assert "UnavailableError: shard: the job's daemon exited; its log says: there is no such thing" in ended.stderr


def test_long_names_of_temporary_folders_lead_elsewhere(tmp_path):
    """A socket's path has 107 bytes at most."""
    folder = tmp_path / ("t" * 120)
    folder.mkdir()
    ended = _job(folder, _START)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.split()
    assert len(lines) == 2 and lines[0] == lines[1]
    assert not list(folder.iterdir())


def test_where_every_folder_is_too_long_it_says_what_to_set(tmp_path):
    folder = tmp_path / ("t" * 120)
    folder.mkdir()
    ended = _job(folder, "import os\nos.access = lambda *_: False\n" + _START)
    assert "FailedPreconditionError" in ended.stderr and "TMPDIR" in ended.stderr
    assert "--socket-dir" not in ended.stderr


def test_a_daemon_whose_log_was_cleaned_away_stays(tmp_path):
    ended = _job(tmp_path, """
import os, pathlib
from paramshard.torch.job_daemon import start_job_daemon
import paramshard
for _ in range(2):
    sockets = pathlib.Path(start_job_daemon(os.getpid(), 0, ["cpu:0"]))
    (sockets.parent / "log").unlink()
    with paramshard.Client(socket_dir=str(sockets)) as client:
        print(client.daemon_info().pid)
""")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.split()
    assert len(lines) == 2 and lines[0] == lines[1]
