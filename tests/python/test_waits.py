"""Ends of waits by signals, dead trainers and dead daemons; and calls in a forked child."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import paramshard
from conftest import TIMEOUT, Daemon, spec_of


def run(script: str, *arguments: str) -> subprocess.Popen:
    """A process of its own, which prints a line when it reaches the wait."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *arguments], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.path.dirname(__file__))


def interrupt(process: subprocess.Popen) -> str:
    assert process.stdout.readline() == "waits\n", process.stderr.read()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=TIMEOUT)
    assert errors.endswith("KeyboardInterrupt\n"), errors
    return output


ATTACH = """
    import sys
    import paramshard
    from conftest import spec_of
    client = paramshard.Client(rank=0, socket_dir=sys.argv[1])
    print("waits", flush=True)
    client.open_model(spec_of("m"))  # the other rank never comes
"""


def test_ctrl_c_ends_the_wait_for_other_ranks(start):
    interrupt(run(ATTACH, str(start(ranks=2).socket_dir)))


COMMIT = """
    import sys, threading
    import paramshard
    from conftest import spec_of
    def attach(rank):
        return paramshard.Client(rank=rank, socket_dir=sys.argv[1]).open_model(spec_of("m"))
    models = [None, None]
    def other():
        models[1] = attach(1)
    thread = threading.Thread(target=other)
    thread.start()
    models[0] = attach(0)
    thread.join()
    pending = models[0].commit()  # the other rank never commits
    try:
        print("waits", flush=True)
        pending.wait()
    except KeyboardInterrupt:
        models[1].commit()
        print("commit", pending.wait().commit_number, flush=True)  # the call may be repeated
        raise
"""


def test_ctrl_c_ends_the_wait_for_an_answer_which_may_be_repeated(start):
    assert interrupt(run(COMMIT, str(start(ranks=2).socket_dir))) == "commit 1\n"


def test_other_threads_run_while_one_waits(start):
    daemon = start(ranks=2)
    opened = []
    thread = threading.Thread(target=lambda: opened.append(daemon.client(0).open_model(spec_of("m"))))
    thread.start()
    opened.append(daemon.client(1).open_model(spec_of("m")))  # deadlocks if the other one kept the interpreter's lock
    thread.join(TIMEOUT)
    assert len(opened) == 2


def test_a_dead_daemon_ends_every_wait(start):
    daemon = start()
    model = daemon.client().open_model(spec_of("m"))
    daemon.kill()
    with pytest.raises(paramshard.UnavailableError, match="has died"):
        model.commit().wait()
    with pytest.raises(paramshard.UnavailableError):
        model.check()


DIE = """
    import os, signal, sys
    import paramshard
    from conftest import spec_of
    model = paramshard.Client(rank=1, socket_dir=sys.argv[1]).open_model(spec_of("m"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_dead_trainer_ends_the_epoch_of_the_others_and_the_next_one_goes_on(start):
    daemon = start(ranks=2)
    process = run(DIE, str(daemon.socket_dir))
    client = daemon.client(0)
    model = client.open_model(spec_of("m"))
    with pytest.raises(paramshard.AbortedError, match="rank 1"):
        model.commit().wait()
    process.communicate(timeout=TIMEOUT)
    models = [None, None]
    thread = threading.Thread(target=lambda: models.__setitem__(1, daemon.client(1).open_model(spec_of("m"))))
    thread.start()
    models[0] = client.open_model(spec_of("m"))
    thread.join(TIMEOUT)
    assert models[0].commit_number == 0
    pending = [model.commit() for model in models]
    assert [answer.wait().commit_number for answer in pending] == [1, 1]


def use_in_child(model: paramshard.Model) -> None:
    with pytest.raises(paramshard.FailedPreconditionError, match="forked"):
        model.gather("blocks.0")
    del model


def test_a_forked_child_uses_and_ends_nothing(daemon: Daemon):
    model = daemon.client().open_model(spec_of("m"))
    child = multiprocessing.get_context("fork").Process(target=use_in_child, args=(model,))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    assert model.commit().wait().commit_number == 1


def test_killed_servers_are_waited_for(start):
    daemon = start(flags=("--keeper=on",))
    client = daemon.client()
    model = client.open_model(spec_of("m"))
    model.commit(client_state=b"one").wait()
    server = int(daemon.ctl("-o", "json", "version").split('"pid":')[1].split('"')[1])
    os.kill(server, signal.SIGKILL)
    with pytest.raises(paramshard.UnavailableError):
        while True:
            model.commit().wait()
    del model
    model = client.open_model(spec_of("m"))
    assert model.commit_number >= 1


def test_errors_say_where_a_daemon_was_looked_for(tmp_path):
    with pytest.raises(paramshard.UnavailableError, match=str(tmp_path)) as caught:
        paramshard.Client(socket_dir=str(tmp_path))
    assert caught.value.code == "UNAVAILABLE" and isinstance(caught.value, ConnectionError)
    with pytest.raises(ValueError, match="rank"):
        paramshard.Client(rank=-1)
