"""Trainings that real torchrun starts, and starts again."""

import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

from models import DEVICE

FOLDER = pathlib.Path(__file__).parent
TIMEOUT = 300.0


def _run(script: str, folder: pathlib.Path, *arguments: int | str, restarts: int,
         launcher: str = "torch.distributed.run", **environment: str) -> dict[str, torch.Tensor]:
    folder.mkdir()
    command = [sys.executable, "-m", launcher, "--standalone", "--nproc-per-node=2",
               f"--max-restarts={restarts}", "--monitor-interval=0.1", str(FOLDER / script), str(folder)]
    command += [str(argument) for argument in arguments]
    if environment.pop("PARAMSHARD_TEST_WRAPPER", None):
        # A script that workers are started by, as for numactl: not replaced by Python, but waiting for it.
        script_at = command.index(str(FOLDER / script))
        command[script_at:script_at] = ["--no-python", "sh", "-c", f'{sys.executable} "$@"; exit $?', "sh"]
    # The store that agents share by default outlives workers, and new workers find addresses of dead ones in it:
    # https://github.com/pytorch/pytorch/issues/135712
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr[-8000:]
    return torch.load(folder / "weights.pt")


def _torchrun(folder: pathlib.Path, steps: int, deaths: list[tuple[int, int, str]],
              **environment: str) -> dict[str, torch.Tensor]:
    return _run("trainer.py", folder, steps, *(word for death in deaths for word in death), restarts=len(deaths),
                **environment)


def _begun(folder: pathlib.Path, rank: int) -> list[int]:
    return [int(line) for line in (folder / f"begun-{rank}").read_text().split()]


def _assert_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.timeout(600)
def test_resume_lr_dropout_loader_bit_equal(start, tmp_path):
    """Killed at every phase, in steps of their own, a training ends in the bytes of one that was not."""
    daemons = [start(ranks=2), start(ranks=2)]
    expected = _torchrun(tmp_path / "whole", 7, [], PARAMSHARD_TEST_SOCKETS=str(daemons[0].socket_dir))
    deaths = [(1, 1, "load"), (0, 2, "forward"), (1, 3, "backward"), (0, 4, "step"), (1, 5, "schedule")]
    killed = _torchrun(tmp_path / "killed", 7, deaths, PARAMSHARD_TEST_SOCKETS=str(daemons[1].socket_dir))
    _assert_equal(killed, expected)
    begun = _begun(tmp_path / "killed", 0)
    assert len(begun) == len(deaths) + 1 and begun == sorted(begun) and begun == _begun(tmp_path / "killed", 1)


@pytest.mark.timeout(300)
def test_a_killed_server_costs_no_step(start, tmp_path):
    """Its keeper starts the next one with the model in it; torchrun starts the workers, which wait for it."""
    daemons = [start(ranks=2, flags=()), start(ranks=2, flags=())]
    expected = _torchrun(tmp_path / "whole", 4, [], PARAMSHARD_TEST_SOCKETS=str(daemons[0].socket_dir))
    killed = _torchrun(tmp_path / "killed", 4, [(0, 2, "server")], PARAMSHARD_TEST_SOCKETS=str(daemons[1].socket_dir))
    _assert_equal(killed, expected)
    # A GPU's host is ahead of its steps: the one before may not have been answered when the server dies.
    assert _begun(tmp_path / "killed", 0) in ([[0, 2]] if DEVICE == "cpu" else [[0, 1], [0, 2]])


def _await_no_job(folder: pathlib.Path) -> None:
    """A job's daemon exits after the job. No event tells, so the test waits until its folder is gone."""
    deadline = time.monotonic() + 60.0
    while list(folder.glob("paramshard-job-*")):
        assert time.monotonic() < deadline, "the job's daemon is still there"
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_job_daemon_outlives_workers_and_is_gone_after_the_job(start, tmp_path):
    daemon = start(ranks=2)
    expected = _torchrun(tmp_path / "whole", 3, [], PARAMSHARD_TEST_SOCKETS=str(daemon.socket_dir))
    killed = _torchrun(tmp_path / "killed", 3, [(0, 1, "backward")], PARAMSHARD_TEST_DAEMON="job",
                       TMPDIR=str(tmp_path))
    _assert_equal(killed, expected)
    assert _begun(tmp_path / "killed", 1) == [0, 1]
    _await_no_job(tmp_path)


@pytest.mark.timeout(300)
def test_job_daemon_of_workers_behind_a_script(tmp_path):
    """Every rank finds the one agent, whoever has started it, and a restarted one the same daemon."""
    weights = _torchrun(tmp_path / "killed", 3, [(1, 1, "backward")], PARAMSHARD_TEST_DAEMON="job",
                        PARAMSHARD_TEST_WRAPPER="yes", TMPDIR=str(tmp_path))
    assert weights and _begun(tmp_path / "killed", 0) == [0, 1]
    _await_no_job(tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("existing", ["error", "fresh", "resume"])
def test_a_restart_goes_on_with_its_own_run_alone(start, tmp_path, existing):
    """Workers that die before they make the model have trained nothing that those after them could go on with."""
    daemon = start(ranks=2)
    sockets = {"PARAMSHARD_TEST_SOCKETS": str(daemon.socket_dir)}
    first = _torchrun(tmp_path / "first", 2, [], **sockets)
    deaths = [(0, 0, "import"), (1, 1 if existing == "fresh" else 3, "backward")]
    if existing == "error":
        with pytest.raises(AssertionError, match='AlreadyExistsError: shard trained: .* at commit 2'):
            _torchrun(tmp_path / "second", 2, deaths, PARAMSHARD_TEST_EXISTING=existing, **sockets)
        return
    second = _torchrun(tmp_path / "second", 2 if existing == "fresh" else 4, deaths, PARAMSHARD_TEST_EXISTING=existing,
                       **sockets)
    assert _begun(tmp_path / "second", 0) == ([0, 1] if existing == "fresh" else [2, 3])
    if existing == "fresh":
        _assert_equal(second, first)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["torch.distributed.run", "paramshard.run"])
def test_trainer_save_rank0_2_ranks(start, tmp_path, launcher):
    """Rank 0 saves while rank 1 is in the next step. Ranks that die, before that and behind it, change nothing."""
    transformers = pytest.importorskip("transformers")
    daemons = [start(ranks=2), start(ranks=2)]
    # Trainer's processes meet at a port that was free a while ago: a start may fail before it begins.
    whole = _run("hf_trainer.py", tmp_path / "whole", restarts=2, launcher=launcher,
                 PARAMSHARD_TEST_SOCKETS=str(daemons[0].socket_dir))
    killed = _run("hf_trainer.py", tmp_path / "killed", 1, 1, 0, 4, restarts=4, launcher=launcher,
                  PARAMSHARD_TEST_SOCKETS=str(daemons[1].socket_dir))
    _assert_equal(killed, whole)
    assert _begun(tmp_path / "killed", 0) == [0, 1, 4] == _begun(tmp_path / "killed", 1)
    for folder in (tmp_path / "whole", tmp_path / "killed"):
        read = torch.load(folder / "read.pt")
        saved = transformers.LlamaForCausalLM.from_pretrained(folder / "saved")
        _assert_equal(dict(saved.named_parameters()), read)
        assert not any(torch.equal(value, whole[name]) for name, value in read.items())
