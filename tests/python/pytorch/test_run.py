"""Trainings and other scripts that paramshard.run starts, beside torchrun where it has to do the same."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from conftest import DEVICE
from test_nodes import Node, start_nodes  # noqa: F401, a fixture

FOLDER = pathlib.Path(__file__).parent
TIMEOUT = 200.0
TORCHRUN, OURS = "torch.distributed.run", "paramshard.run"


def command_of(launcher: str, script: pathlib.Path, *arguments: object, ranks: int = 2, restarts: int = 0,
               options: tuple[str, ...] = ("--standalone",)) -> list[str]:
    return [sys.executable, "-m", launcher, *options, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
            str(script), *map(str, arguments)]


def run(launcher: str, script: pathlib.Path, *arguments: object, environment: dict[str, str] | None = None,
        **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(command_of(launcher, script, *arguments, **options), env=os.environ | (environment or {}),
                          capture_output=True, text=True, timeout=TIMEOUT)


# Workers write without buffers, and print() in pieces, between which others write.
_SAY = """import os
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Writes a script into a folder of its own."""
    def write(text: str, name: str = "script.py") -> pathlib.Path:
        file = tmp_path / "scripts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((_SAY if "say(" in text else "") + textwrap.dedent(text))
        return file

    return write


# --- Trainings ---


def train(folder: pathlib.Path, steps: int, deaths: list[tuple[int, int, str]], *, resume: bool = False,
          options: tuple[str, ...] = (), restarts: int | None = None, **environment: str) -> dict[str, torch.Tensor]:
    folder.mkdir()
    if resume:
        environment["PARAMSHARD_TEST_RESUME"] = "yes"
    ended = run(OURS, FOLDER / "trainer.py", folder, steps, *(word for death in deaths for word in death),
                restarts=len(deaths) if restarts is None else restarts, options=("--standalone", *options),
                environment=environment)
    (folder / "log").write_text(ended.stderr)
    assert ended.returncode == 0, ended.stderr[-8000:]
    return torch.load(folder / "weights.pt")


def numbers(folder: pathlib.Path, name: str, rank: int) -> list[int]:
    return [int(line) for line in (folder / f"{name}-{rank}").read_text().split()]


def assert_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


DEATHS = [(1, 0, "import"), (1, 1, "load"), (0, 2, "forward"), (1, 3, "backward"), (0, 4, "step"), (1, 5, "schedule")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("spares", [0, 2])
@pytest.mark.parametrize("resume", [False, True], ids=["replaced", "resumed"])
def test_deaths_at_every_phase_change_no_byte(start, tmp_path, resume, spares):
    daemons = [start(ranks=2), start(ranks=2)]
    expected = train(tmp_path / "whole", 7, [], PARAMSHARD_TEST_SOCKETS=str(daemons[0].socket_dir))
    killed = tmp_path / "killed"
    assert_equal(train(killed, 7, DEATHS, resume=resume, options=(f"--spares={spares}",),
                       PARAMSHARD_TEST_SOCKETS=str(daemons[1].socket_dir)), expected)
    begun = [numbers(killed, "begun", rank) for rank in range(2)]
    assert begun[0] == begun[1] == sorted(begun[0]) and len(begun[0]) == len(DEATHS)  # the first death is before
    processes = [len(set(numbers(killed, "pids", rank))) for rank in range(2)]
    # A worker changes with its own deaths alone, or with all.
    assert processes == ([3, 4] if resume else [6, 6])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("resume", [False, True], ids=["replaced", "resumed"])
def test_a_killed_server_is_one_restart(start, tmp_path, resume):
    """No worker has died: those that can be resumed stay."""
    daemons = [start(ranks=2, flags=()), start(ranks=2, flags=())]
    expected = train(tmp_path / "whole", 4, [], PARAMSHARD_TEST_SOCKETS=str(daemons[0].socket_dir))
    killed = tmp_path / "killed"
    assert_equal(train(killed, 4, [(0, 2, "server")], resume=resume,
                       PARAMSHARD_TEST_SOCKETS=str(daemons[1].socket_dir)), expected)
    assert len(set(numbers(killed, "pids", 0))) == (1 if resume else 2)


@pytest.mark.timeout(300)
def test_the_jobs_daemon_is_the_agents(tmp_path):
    weights = train(tmp_path / "killed", 4, [(1, 1, "backward"), (0, 2, "step")], resume=True,
                    PARAMSHARD_TEST_DAEMON="job", TMPDIR=str(tmp_path))
    assert weights and numbers(tmp_path / "killed", "begun", 0) == [0, 1, 2]
    await_none(tmp_path, "paramshard-job-*")


def await_none(folder: pathlib.Path, pattern: str) -> None:
    """The daemon exits after the job, and no event tells: waits until its folder is gone."""
    deadline = time.monotonic() + 60.0
    while list(folder.glob(pattern)):
        assert time.monotonic() < deadline, "the job's daemon is still there"
        time.sleep(0.05)


@pytest.mark.timeout(600)
@pytest.mark.skipif(DEVICE == "cuda", reason="daemons with a GPU each are not started here")
@pytest.mark.parametrize("resume", [False, True], ids=["replaced", "resumed"])
def test_two_agents_as_two_nodes(start_nodes, tmp_path, resume):  # noqa: F811
    expected = _on_nodes(start_nodes(), tmp_path / "whole", [], resume)
    deaths = [(0, 1, "forward"), (0, 3, "backward")]
    assert_equal(_on_nodes(start_nodes(), tmp_path / "killed", deaths, resume), expected)
    # Local rank 0 of the node that gets there first dies; that of the other node is interrupted.
    processes = sorted(len(set(numbers(tmp_path / "killed", "pids", rank))) for rank in range(2))
    assert sum(processes) == (4 if resume else 6)


def _on_nodes(nodes: list[Node], folder: pathlib.Path, deaths: list[tuple[int, int, str]],
              resume: bool) -> dict[str, torch.Tensor]:
    folder.mkdir()
    agents = []
    for number, node in enumerate(nodes):
        options = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={folder / 'rendezvous'}", "--rdzv-id=job",
                   "--rdzv-conf=store_type=file", f"--local-addr=127.0.0.{number + 1}")
        command = command_of(OURS, FOLDER / "trainer.py", folder, 5, *(word for death in deaths for word in death),
                             ranks=1, restarts=3, options=options)
        environment = {"PARAMSHARD_TEST_SOCKETS": str(node.socket_dir), "PARAMSHARD_TEST_EXISTING": "resume"}
        environment |= {"PARAMSHARD_TEST_RESUME": "yes"} if resume else {}
        with (folder / f"log{number}").open("w") as log:
            agents.append(subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log))
    try:
        for agent in agents:
            assert agent.wait(TIMEOUT) == 0, "".join(path.read_text() for path in folder.glob("log?"))
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    return torch.load(folder / "weights.pt")


@pytest.mark.timeout(300)
def test_process_groups_begin_anew_without_addresses_of_dead_workers(write, tmp_path):
    """Over one store a second generation finds what the first has left (pytorch#135712)."""
    script = write("""
        import os, pathlib, signal, sys
        import torch, torch.distributed as dist
        import paramshard.torch as pt

        @pt.resume_in_process
        def main():
            dist.init_process_group("gloo")
            group = dist.new_group([0, 1, 2])
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            for number in range(4):
                total = torch.ones(1)
                dist.all_reduce(total, group=group)
                if number == 2 and attempt == dist.get_rank() < 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            say("total", total.item(), "attempt", attempt, "of", os.getpid())
            dist.destroy_process_group()

        main()
    """)
    for options in (("--standalone",), (f"--master-port={_free_port()}",)):
        ended = run(OURS, script, ranks=3, restarts=2, options=options)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert ended.stdout.count("total 3.0 attempt 2") == 3


def _free_port() -> int:
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- Survivors ---


@pytest.mark.timeout(300)
def test_a_survivor_that_hangs_is_replaced(write, tmp_path):
    script = write("""
        import os, signal, sys, time
        import paramshard.torch as pt

        @pt.resume_in_process
        def main():
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            if attempt == "0" and rank == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if attempt == "0":
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                time.sleep(1000)  # hangs
            say("rank", rank, "attempt", attempt)

        main()
    """)
    ended = run(OURS, script, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(ended.stdout.splitlines()) == ["rank 0 attempt 1", "rank 1 attempt 1"]
    assert re.search(r"replacing worker \d+ \(local rank 0\): it has not left its training function in 5 s",
                     ended.stderr)


@pytest.mark.timeout(300)
def test_a_survivor_that_notices_nothing_is_interrupted(write):
    """It waits for the dead one, in a way that no daemon ends. Its own processes get no signal."""
    script = write("""
        import os, signal, subprocess, sys, time
        import paramshard.torch as pt

        @pt.resume_in_process
        def main(child):
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            if attempt == "0" and rank == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if attempt == "0":
                time.sleep(1000)
            say("rank", rank, "attempt", attempt, "first" if os.getpid() == pid else "", child.poll())

        pid = os.getpid()
        child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        main(child)
        child.kill()
    """)
    ended = run(OURS, script, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(ended.stdout.splitlines()) == ["rank 0 attempt 1 first None", "rank 1 attempt 1 first None"]
    assert "replacing" not in ended.stderr


@pytest.mark.timeout(300)
def test_an_error_of_a_training_function_is_a_death(write):
    script = write("""
        import os, sys
        import paramshard.torch as pt

        @pt.resume_in_process
        def main():
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise ValueError("a bug")
            print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])

        main()
    """)
    ended = run(OURS, script, ranks=1, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout == "attempt 1\n" and "ValueError: a bug" in ended.stderr


@pytest.mark.timeout(300)
def test_a_worker_that_always_dies_uses_up_the_restarts(write, tmp_path):
    """The others are resumed until then, and end with it."""
    script = write("""
        import os, pathlib, signal, sys, time
        import paramshard
        import paramshard.torch as pt

        @pt.resume_in_process
        def main(folder):
            (folder / "attempts").open("a").write(os.environ["RANK"])
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            raise paramshard.AbortedError("the epoch has ended")

        main(pathlib.Path(sys.argv[1]))
    """)
    ended = run(OURS, script, tmp_path, restarts=2)
    assert ended.returncode == 1
    assert sorted((tmp_path / "attempts").read_text()) == ["0"] * 3 + ["1"] * 3
    assert re.search(r"rank      : 1 \(local_rank: 1\)\n  exitcode  : -9", ended.stderr)


@pytest.mark.timeout(300)
def test_interruptions_without_deaths_use_up_the_restarts(write):
    script = write("""
        import paramshard
        import paramshard.torch as pt

        @pt.resume_in_process
        def main():
            say("called")
            raise paramshard.AbortedError("the epoch has ended")

        main()
    """)
    ended = run(OURS, script, restarts=2)
    assert ended.returncode == 1 and ended.stdout.count("called") == 6
    assert "the epoch has ended" in ended.stderr  # the error's name is another write, and the other worker writes too


@pytest.mark.timeout(300)
def test_a_death_in_a_second_function_replaces_all_workers(write):
    """A new worker begins with the first one, and would wait there for those that are kept in the second."""
    script = write("""
        import os, signal
        import paramshard.torch as pt

        @pt.resume_in_process
        def main(name):
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            say(name, "rank", rank, "attempt", attempt)
            if name == "second" and attempt == "0":
                if rank == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

        main("first")
        main("second")
    """)
    ended = run(OURS, script, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(ended.stdout.splitlines()) == sorted(
        f"{name} rank {rank} attempt {attempt}" for name in ("first", "second") for rank in range(2)
        for attempt in range(2))


def test_a_function_that_returns_before_it_trains_is_refused():
    import paramshard
    import paramshard.torch as pt

    def generator():
        yield

    async def coroutine():
        pass

    for function in (generator, coroutine):
        with pytest.raises(paramshard.InvalidArgumentError, match=f"{function.__name__}: want a function that trains"):
            pt.resume_in_process(function)


@pytest.mark.timeout(300)
def test_a_worker_that_has_finished_begins_again_with_the_others(write, tmp_path):
    """It had left its training function, or had exited: the one that died still needs it."""
    script = write("""
        import os, pathlib, signal, sys
        import paramshard.torch as pt

        @pt.resume_in_process
        def main(finished):
            attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
            if os.environ["RANK"] == "1" and attempt == "0":
                with finished.open("rb", buffering=0) as fifo:
                    fifo.read(1)
                os.kill(os.getpid(), signal.SIGKILL)
            say("rank", os.environ["RANK"], "attempt", attempt)

        finished = pathlib.Path(sys.argv[1])
        main(finished)
        if os.environ["RANK"] == "0":
            finished.open("r+b", buffering=0).write(b"!")
    """)
    finished = tmp_path / "finished"
    os.mkfifo(finished)
    with finished.open("r+b", buffering=0):  # keeps the byte
        ended = run(OURS, script, finished, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(ended.stdout.splitlines()) == ["rank 0 attempt 0", "rank 0 attempt 1", "rank 1 attempt 1"]


@pytest.mark.timeout(120)
def test_a_model_from_outside_of_the_function_is_refused(write, tmp_path):
    script = write("""
        import paramshard.torch as pt
        from torch import nn

        with pt.meta_init():
            model = nn.Linear(2, 2)
        sharded = pt.shard(model, name="outside", units=[model], daemon="job")

        @pt.resume_in_process
        def main():
            pass

        main()
    """)
    ended = run(OURS, script, ranks=1)
    assert ended.returncode == 1
    assert "FailedPreconditionError: resume_in_process: model outside was sharded before main() is called" in \
        ended.stderr


# --- As torchrun ---


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [("--standalone",), ("--standalone", "--virtual-local-rank"), ("--role=trainer",)],
                         ids=" ".join)
def test_environment_and_arguments_are_torchruns(write, tmp_path, options):
    script = write("""
        import json, os, pathlib, sys
        import torch
        import neighbour
        differing = ("PARAMSHARD_RUN", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
        facts = {
            "environment": {name: value for name, value in os.environ.items() if not name.startswith(differing)},
            "arguments": sys.argv, "path": sys.path, "folder": os.getcwd(), "neighbour": neighbour.__file__,
            "main": [__name__, __file__, __spec__, __package__, sys.modules["__main__"].__file__],
            "threads": torch.get_num_threads(), "session": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
            "unbuffered": [sys.stdout.write_through, sys.stderr.write_through], "flags": list(sys.flags)}
        pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(facts))
    """)
    write("import torch", "neighbour.py")
    found = []
    for launcher in (TORCHRUN, OURS):
        folder = tmp_path / "of" / launcher
        folder.mkdir(parents=True)
        (tmp_path / "of" / "here").unlink(missing_ok=True)
        (tmp_path / "of" / "here").symlink_to(folder)
        if "--standalone" not in options:
            options = (*options[:1], f"--master-port={_free_port()}")
        ended = run(launcher, script, tmp_path / "of" / "here", "--flag", "two words", options=options)
        assert ended.returncode == 0, ended.stderr[-4000:]
        found.append([json.loads((folder / str(rank)).read_text()) for rank in range(2)])
    for ours, theirs in zip(found[1], found[0]):
        ours |= ours.pop("environment")
        theirs |= theirs.pop("environment")
        assert ours.keys() == theirs.keys()
        assert {key: (ours[key], theirs[key]) for key in theirs if ours[key] != theirs[key]} == {}


@pytest.mark.timeout(300)
def test_a_script_may_set_its_folder_for_temporary_files(write, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # imports of torch set it, in this process too
    script = write("""
        import os, sys
        os.environ["TMPDIR"] = sys.argv[1]
        import tempfile
        from torch._inductor.runtime.cache_dir_utils import cache_dir
        say(tempfile.gettempdir() == sys.argv[1], cache_dir().startswith(sys.argv[1]))
    """)
    ended = run(OURS, script, tmp_path, ranks=1)
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended.stderr[-4000:]


@pytest.mark.timeout(300)
def test_modules_and_exit_codes_are_torchruns(write, tmp_path):
    write("import os, sys\nprint(__name__, sys.argv[1:], sys.path[0] == os.getcwd())\nsys.exit(int(sys.argv[1]))",
          "module.py")
    for launcher in (TORCHRUN, OURS):
        ended = subprocess.run([sys.executable, "-m", launcher, "--standalone", "-m", "module", "7"],
                               cwd=tmp_path / "scripts", capture_output=True, text=True, timeout=TIMEOUT)
        assert ended.returncode == 1 and ended.stdout == "__main__ ['7'] True\n"
        assert re.search(r"exitcode  : 7 ", ended.stderr), ended.stderr[-2000:]


@pytest.mark.timeout(300)
def test_logs_and_errors_are_torchruns(write, tmp_path):
    script = write("""
        import os, sys
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            print("out of", os.environ["RANK"])
            os.write(1, b"descriptor\\n")
            print("error of", os.environ["RANK"], file=sys.stderr)
            if os.environ["RANK"] == "1":
                raise ValueError("bad")

        main()
    """)
    found = []
    for launcher in (TORCHRUN, OURS):
        folder = tmp_path / launcher
        ended = run(launcher, script, restarts=1,
                    options=("--standalone", f"--log-dir={folder}", "--redirects=1:3", "--tee=0:1"))
        assert ended.returncode == 1 and "ValueError: bad" in ended.stderr
        (attempts,) = folder.iterdir()
        files = {str(path.relative_to(attempts)): path.read_text() for path in attempts.rglob("*.log")}
        errors = {str(path.relative_to(attempts)): json.loads(path.read_text())["message"]["message"]
                  for path in attempts.rglob("error.json")}
        found.append((sorted(files), files["attempt_1/1/stdout.log"], "error of 1" in files["attempt_1/1/stderr.log"],
                      errors, sorted(line for line in ended.stdout.splitlines())))
    assert found[1] == found[0]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen]]:
    processes = []

    def start(*command: object) -> subprocess.Popen:
        processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True, start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


_WAITING = """
    import os, signal, sys, time

    def leave(number, frame):
        say("signal", number)
        sys.exit(3)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    say("pid", os.getpid())
    time.sleep(1000)
"""


def _pids(agent: subprocess.Popen, number: int) -> list[int]:
    return [int(agent.stdout.readline().split()[1]) for _ in range(number)]


def _await_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor) as process:
        import select
        assert select.select([process], [], [], 60.0)[0], f"process {pid} is still there"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_go_to_the_workers_and_end_all(write, started, number):
    script = write(_WAITING)
    codes = []
    for launcher in (TORCHRUN, OURS):
        agent = started(*command_of(launcher, script, restarts=3))
        workers = _pids(agent, 2)
        agent.send_signal(number)
        out, _ = agent.communicate(timeout=100.0)
        assert out == ("" if number == signal.SIGHUP else f"signal {number}\n" * 2)
        codes.append(agent.returncode)
        for pid in workers:
            _await_end(pid)
    assert codes[0] == codes[1]


@pytest.mark.timeout(120)
def test_nothing_is_left_of_a_killed_agent(write, started):
    agent = started(*command_of(OURS, write(_WAITING), options=("--standalone", "--spares=1")))
    workers = _pids(agent, 2)
    agent.kill()
    for pid in workers:
        _await_end(pid)


@pytest.mark.timeout(120)
def test_a_zygote_that_dies_takes_its_workers_along_and_is_started_again(write, started, tmp_path):
    script = write(_WAITING.replace("time.sleep(1000)", """
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    """))
    ended = run(OURS, script, ranks=1, restarts=1)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout.count("pid") == 2 and "zygote" in ended.stderr


# --- Spares ---


def _children(pid: int) -> set[int]:
    return {int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _await_child(pid: int, others: set[int]) -> int:
    """The zygote says nothing of its spares: polls for a process that is none of the others."""
    deadline = time.monotonic() + 60.0
    while not (new := _children(pid) - others):
        assert time.monotonic() < deadline, "no spare is there"
        time.sleep(0.02)
    return new.pop()


@pytest.mark.timeout(120)
@pytest.mark.skipif(DEVICE == "cuda", reason="a spare of a GPU is ready later")
def test_a_spare_takes_a_dead_workers_place_and_one_that_dies_is_replaced(write, started):
    script = write("""
        import os, sys, time
        say("pid", os.getpid(), os.getppid(), os.environ["RANK"], sys.argv[1:])
        time.sleep(1000)
    """)
    agent = started(*command_of(OURS, script, "a b", ranks=1, restarts=1, options=("--standalone", "--spares=1")))
    _, worker, zygote, *_ = agent.stdout.readline().split()
    worker, zygote = int(worker), int(zygote)
    spare = _await_child(zygote, {worker})
    os.kill(spare, signal.SIGKILL)
    next_spare = _await_child(zygote, {worker, spare})
    assert agent.poll() is None
    os.kill(worker, signal.SIGKILL)
    _, place, _, rank, *arguments = agent.stdout.readline().split()
    assert (int(place), rank, " ".join(arguments)) == (next_spare, "0", "['a b']")
    _await_child(zygote, {worker, spare, next_spare})  # in place of the one that was used
    agent.send_signal(signal.SIGTERM)
    _, errors = agent.communicate(timeout=100.0)
    assert f"spare {spare} of the node exited with code -9" in errors


@pytest.mark.timeout(300)
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_a_spare_that_does_not_fit_the_gpu_is_given_up(write, started):
    held = torch.empty(torch.cuda.mem_get_info()[0] - (1 << 30), dtype=torch.uint8, device="cuda")
    script = write(_WAITING)
    agent = started(*command_of(OURS, script, ranks=1, options=("--standalone", "--spares=1")))
    assert held.numel() and any("one does not fit" in line and "give --spares=0" in line for line in agent.stderr)
    _pids(agent, 1)
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=100.0)


# --- Parts of torch ---


def test_this_torch_has_all_that_the_launcher_needs():
    from paramshard.run import torch_elastic
    assert torch_elastic.missing() == []


def test_parts_of_torch_that_are_gone_are_named(monkeypatch):
    from paramshard.run import torch_elastic
    monkeypatch.setattr(torch_elastic, "NEEDED", {"run.run": ("args", "absent"), "run.absent": (), "absent.run": ()})
    assert torch_elastic.missing() == ["torch.distributed.run.run(absent=)", "torch.distributed.run.absent",
                                       "torch.distributed.absent.run"]


def test_other_files_of_the_launcher_touch_no_private_parts_of_torch():
    package = FOLDER.parents[2] / "python/paramshard/run"
    sources = [path for path in package.glob("*.py") if path.name != "torch_elastic.py"]
    assert len(sources) > 5
    for source in sources:
        assert not re.findall(r"torch\.distributed\.(?:elastic\.agent|elastic\.multiprocessing\.api|launcher|run)\b",
                              source.read_text()), source.name


# --- The zygote's imports ---


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, str]]:
    """A folder that Python takes for one that packages are installed into, and the environment for that."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import site\nplain = site.getsitepackages\nsite.getsitepackages = lambda: [*plain(), {str(folder)!r}]\n")
    return folder, {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text, reason", [
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
     "it starts a thread"),
    ("import os\nrank = os.environ.get('RANK')", "it reads RANK"),
    ("import os\nif 'RANK' not in os.environ: raise RuntimeError('broken')", "it raises RuntimeError: broken")])
def test_an_import_that_cannot_be_forked_is_left_to_the_workers(write, installed, text, reason):
    folder, environment = installed
    (folder / "awkward.py").write_text(text)
    (folder / "fine.py").write_text("import os\nprocess = os.getpid()")
    write("import fine", "own.py")
    script = write("""
        import os
        import torch
        import awkward, own, fine
        say(os.environ["RANK"], hasattr(awkward, "os") or awkward.threading.active_count(), getattr(awkward, "rank", 0),
              fine.process == os.getppid())
    """)
    ended = run(OURS, script, environment=environment)
    assert ended.returncode == 0, ended.stderr[-4000:]
    rank = "{0}" if "reads" in reason else "0"
    count = 2 if "thread" in reason else True
    assert sorted(ended.stdout.splitlines()) == [f"{each} {count} {rank.format(each)} True" for each in range(2)]
    assert f"each worker imports awkward by itself, which takes its time after a death: {reason} when it is imported" \
        in ended.stderr


@pytest.mark.timeout(120)
def test_the_package_can_be_imported_before_a_fork():
    """Every question for GPUs may initialize CUDA, which needs no GPU to be seen here."""
    program = """if True:
        import torch
        from paramshard.run import zygote
        def refuse(*_): raise AssertionError("asks for GPUs")
        torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = refuse
        torch._C._cuda_getDeviceCount = torch._C._cuda_init = refuse
        import paramshard.torch
        print(repr(zygote.why_not_forkable()))
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.stdout == "''\n", ended.stderr


@pytest.mark.timeout(300)
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_an_import_that_initializes_cuda_is_left_to_the_workers(write, installed):
    folder, environment = installed
    (folder / "awkward.py").write_text("import torch\nvalue = torch.ones(1, device='cuda').item()")
    ended = run(OURS, write("import torch\nimport awkward\nsay(awkward.value)"), ranks=1, environment=environment)
    assert (ended.returncode, ended.stdout) == (0, "1.0\n"), ended.stderr[-4000:]
    assert "each worker imports awkward by itself, which takes its time after a death: it initializes CUDA when it is " \
        "imported" in ended.stderr


@pytest.mark.timeout(120)
def test_where_nothing_can_be_forked_workers_are_new_interpreters(write, installed):
    folder, environment = installed
    with (folder / "sitecustomize.py").open("a") as text:
        text.write("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n")
    script = write("""
        import os, signal, sys
        import paramshard.torch as pt

        @pt.resume_in_process
        def main():
            attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
            say(os.environ["RANK"], attempt, sys.argv[1:])
            if attempt == "0" and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

        main()
    """)
    ended = run(OURS, script, "a b", restarts=1, environment=environment)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "1 1 ['a b']" in ended.stdout
    assert "workers are new interpreters, and take longer to start: the start of Python starts a thread" in ended.stderr


def test_imports_are_found_without_running_a_script(write, installed, monkeypatch):
    from paramshard.run.script_imports import Import, installed_imports
    write("from .beside import x\nimport own.deep.deeper", "own/__init__.py")
    write("import json.decoder", "own/beside.py")
    write("import decimal", "own/deep/__init__.py")
    write("raise SystemExit\nfrom numbers import Number as N, Real\nfrom xml import *", "own/deep/deeper.py")
    write("import own, absent, paramshard.torch", "string.py")
    script = write("""
        from __future__ import annotations
        import own
        import string
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import uuid
        elif True:
            import wave
        if __name__ == "__main__":
            import calendar
        try:
            import queue
        except ImportError:
            import plistlib
        class A:
            import shelve
        def f():
            import pdb
        with open("x"): from csv import reader
        raise SystemExit
    """)
    found = installed_imports(script, script.parent)
    assert set(found) == {
        Import("__future__", ("annotations",)), Import("typing", ("TYPE_CHECKING",)), Import("calendar"), Import("queue"),
        Import("plistlib"), Import("shelve"), Import("csv", ("reader",)), Import("json.decoder"), Import("decimal"),
        Import("numbers", ("Number", "Real")), Import("xml")}


@pytest.mark.parametrize("setting", [
    "os.environ['A'] = 'b'", "environ.setdefault('A', 'b')", "os.putenv('A', 'b')", "sys.path.insert(0, 'own')",
    "sys.path += ['own']", "sys.modules['a'] = None", "if True:\n    sys.path = []"])
def test_imports_behind_a_setting_are_left_to_workers(write, setting):
    from paramshard.run.script_imports import Import, installed_imports
    write(f"import decimal\n{setting}\nimport wave", "own/__init__.py")
    script = write("import json\nimport own\nimport queue")
    assert installed_imports(script, script.parent) == [Import("json"), Import("decimal")]


@pytest.mark.timeout(120)
def test_archives_and_moved_scripts_run_as_under_python(write, tmp_path):
    import zipapp
    source = write("import os\nos.chdir('/')\nsay(os.path.isfile(__file__) or __file__.endswith('app.pyz/__main__.py'))",
                   "app/__main__.py")
    zipapp.create_archive(source.parent, tmp_path / "app.pyz")
    for script in (tmp_path / "app.pyz", source):
        ended = subprocess.run([*command_of(OURS, pathlib.Path(os.path.relpath(script, tmp_path)), ranks=1)],
                               cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
        assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr[-4000:]


@pytest.mark.timeout(120)
def test_a_command_without_python_may_name_python(write):
    script = write("import sys\nsay(sys.argv[1:])")
    ended = run(OURS, pathlib.Path(sys.executable), script, "--lr", 1, ranks=1, options=("--standalone", "--no-python"))
    assert (ended.returncode, ended.stdout) == (0, "['--lr', '1']\n"), ended.stderr[-4000:]


@pytest.mark.timeout(120)
def test_a_script_with_a_module_of_an_imported_name_gets_its_own(write):
    write("name = 'own'", "statistics.py")
    script = write("import torch\nimport statistics\nsay(statistics.name)")
    ended = run(OURS, script, ranks=1)
    assert (ended.returncode, ended.stdout) == (0, "own\n"), ended.stderr[-4000:]


def test_negative_spares_are_refused(write):
    ended = run(OURS, write(""), options=("--spares=-1",))
    assert ended.returncode == 2 and "--spares: want 0 or more, got -1" in ended.stderr
