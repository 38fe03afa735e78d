"""A program that ends while its threads wait in the client ends with its own exit code."""

import subprocess
import sys

import pytest

from conftest import TIMEOUT, Daemon

_BEGIN = """
import atexit, os, sys, threading
import paramshard as ps

client = ps.Client(socket_dir=sys.argv[1], restart_timeout=600.0)
spec = ps.ModelSpec("m", units=[ps.UnitSpec("u", [ps.ParameterSpec("w", [64, 64])])])
begun = threading.Event()

def train(model):
    while True:
        model.gradients("u").push()
        model.commit(learning_rate=1e-3).wait()
        begun.set()

def ask(client):
    while True:
        client.models()
        begun.set()

def start(target, argument):
    threading.Thread(target=target, args=(argument,), daemon=True).start()
    begun.wait()
"""
_ENDS = {
    "returns": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("raise ValueError", 1),
}
_WAITS = {
    "commits": "start(train, client.open_model(spec))",
    "calls": "start(ask, client)",
    "both": "start(train, client.open_model(spec)); begun.clear(); start(ask, client)",
    "threads": "client.create_model(spec)\nfor _ in range(8): start(ask, client); begun.clear()",
}


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("wait", _WAITS)
def test_it_ends_with_its_own_code(daemon: Daemon, wait: str, end: str):
    text, code = _ENDS[end]
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", f"{_BEGIN}\n{_WAITS[wait]}\n{text}\n", str(daemon.socket_dir)],
                               capture_output=True, text=True, timeout=TIMEOUT)
        assert ended.returncode == code, ended.stderr


def test_it_ends_while_a_thread_waits_for_a_daemon(daemon: Daemon):
    script = _BEGIN + """
model = client.open_model(spec)
start(train, model)
os.kill(int(sys.argv[2]), 9)
waits = threading.Event()
def ask_once():
    waits.set()
    client.open_model(spec)  # waits for a daemon that is being started again
threading.Thread(target=ask_once, daemon=True).start()
waits.wait()
sys.exit(5)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(daemon.socket_dir), str(daemon.pid)],
                           capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 5, ended.stderr
