"""Daemons, and models on them: on `cpu` devices, or on GPUs if PARAMSHARD_TEST_DEVICE is cuda."""

import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

import paramshard
from paramshard import programs

TIMEOUT = 60.0  # seconds
DEVICE = os.environ.get("PARAMSHARD_TEST_DEVICE", "cpu")
GPUS = int(os.environ.get("PARAMSHARD_TEST_GPUS", "1"))  # number of GPUs, if DEVICE is cuda

# A program in the background of a shell ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def program(name: str) -> str:
    """Returns the path of a program: in the tested folder if one is set, else in the package."""
    folder = os.environ.get("PARAMSHARD_TEST_PROGRAMS")
    return str(pathlib.Path(folder, name) if folder else programs.path_of(name))


class Daemon:
    """A daemon with one device for each rank."""

    def __init__(self, folder: pathlib.Path, ranks: int, flags: tuple[str, ...]):
        self.socket_dir = folder / "sockets"
        self.socket_dir.mkdir(mode=0o700)
        self.log = folder / "log"
        devices = [f"--device={DEVICE}:{rank}" for rank in range(ranks)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [program("paramshardd"), f"--socket-dir={self.socket_dir}", *devices, *flags], stdout=log, stderr=log)
        self._await_ready()

    def _await_ready(self) -> None:
        """Connects until it succeeds: no event tells that the sockets are there."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.socket_dir / "grpc.sock")) == 0:
                    return
            try:
                self._process.wait(0.01)
            except subprocess.TimeoutExpired:
                pass
        raise AssertionError(f"the daemon does not answer: {self.log.read_text()}")

    def client(self, rank: int = 0, **options) -> paramshard.Client:
        return paramshard.Client(rank=rank, socket_dir=str(self.socket_dir), **options)

    def ctl(self, *arguments: str) -> str:
        return subprocess.run([program("paramshardctl"), f"--socket-dir={self.socket_dir}", *arguments], check=True,
                              capture_output=True, text=True, timeout=TIMEOUT).stdout

    @property
    def pid(self) -> int:
        """Process of the keeper, if it has one, else of the daemon."""
        return self._process.pid

    def pause(self) -> None:
        """Stops the server, or without a keeper the whole daemon, and returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self.go_on()
        try:
            self._process.wait(TIMEOUT)
        finally:
            if self._process.poll() is None:
                self.kill()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons that end with the test."""
    daemons: list[Daemon] = []

    def start_daemon(ranks: int = 1, flags: tuple[str, ...] = ("--keeper=off",)) -> Daemon:
        if DEVICE == "cuda" and ranks > GPUS:
            pytest.skip(f"{ranks} GPUs are needed, and there are {GPUS}")
        folder = tmp_path / f"daemon{len(daemons)}"
        folder.mkdir()
        daemons.append(Daemon(folder, ranks, flags))
        return daemons[-1]

    yield start_daemon
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    """A daemon of one rank."""
    return start()


def fill(array, value: float) -> None:
    """Fills an array of a client, in host memory or on a GPU, with a value."""
    if DEVICE == "cpu":
        array[...] = value
        return
    import torch
    torch.from_dlpack(array).fill_(value)
    torch.cuda.synchronize()


def on_host(array):
    """Returns an array of a client as one of NumPy, of integers where it has codes."""
    if DEVICE == "cpu" or array is None:
        return array
    import torch
    return torch.from_dlpack(array).cpu().numpy()


def spec_of(name: str, rows: int = 96, columns: int = 64, format: str = "FP32") -> paramshard.ModelSpec:
    """Two units; the matrices are normal, the vectors zero."""
    def unit(index: int) -> paramshard.UnitSpec:
        normal = paramshard.InitialValue("normal", 0.0, 1.0)
        return paramshard.UnitSpec(f"blocks.{index}", [
            paramshard.ParameterSpec(f"blocks.{index}.w", [rows, columns], paramshard.Encoding(format),
                                     initial_value=normal),
            paramshard.ParameterSpec(f"blocks.{index}.b", [columns]),
        ])
    return paramshard.ModelSpec(name, [unit(0), unit(1)], seed=7)
