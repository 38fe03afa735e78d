"""Saves, restores, and information on the daemon."""

import os
import pathlib
import time

import numpy as np
import pytest

import paramshard
from conftest import Daemon, spec_of
from test_transfers import masters
from test_waits import interrupt, run


@pytest.fixture
def saves(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "saves"
    folder.mkdir()
    return folder


@pytest.fixture
def saving(start, saves: pathlib.Path) -> Daemon:
    """A daemon of one rank that has a folder of checkpoints."""
    return start(flags=("--keeper=off", f"--save-dir={saves}"))


def train(client: paramshard.Client, client_state: bytes = b"") -> np.ndarray:
    """One step; returns a master after it."""
    with client.open_model(spec_of("m")) as model:
        with model.gradients("blocks.0") as gradients:
            gradients["blocks.0.w"][...] = 1.0
            gradients["blocks.0.b"][...] = 1.0
            gradients.push()
        model.commit(learning_rate=0.1, client_state=client_state).wait()
    return masters(client, "blocks.0.w")


def test_a_save_is_listed_and_restored(saving: Daemon, saves: pathlib.Path):
    with saving.client() as client:
        saved_values = train(client, b"one")
        before = time.time()
        saved = client.save("m")
        assert (saved.model, saved.step, saved.state, saved.reason) == ("m", 1, "published", "call")
        assert saved.over and saved.saved and saved.error is None
        assert pathlib.Path(saved.path).parent == saves / "m" and pathlib.Path(saved.path, "manifest.json").exists()
        assert saved.size_bytes >= saved.written_bytes > 3 * saved_values.nbytes
        assert saved.seconds >= saved.copy_seconds >= 0 and saved.stall_seconds >= 0
        assert abs(saved.begun_at - before) < 3600
        assert "published" in repr(saved) and saved.path in repr(saved)

        again = client.save("m")
        assert (again.state, again.saved, again.path) == ("already_saved", True, saved.path)
        assert [record.number for record in client.saves("m")] == [saved.number, again.number]
        assert [record.number for record in client.saves()] == [saved.number, again.number]

        assert not np.array_equal(train(client, b"two"), saved_values)
        restored = client.restore("m")
        assert (restored.path, restored.step, restored.version) == (saved.path, 1, 1)
        assert restored.parent_history_id == saved.history_id != restored.history_id
        assert (restored.saved_world_size, restored.saved_shard_size) == (1, 1)
        assert restored.size_bytes > 0 and restored.seconds >= 0
        np.testing.assert_array_equal(masters(client, "blocks.0.w"), saved_values)
        with client.open_model(spec_of("m")) as model:
            assert (model.commit_number, model.client_state) == (1, b"one")


def test_a_checkpoint_is_named_by_step_by_name_and_by_path(saving: Daemon, tmp_path, monkeypatch):
    with saving.client() as client:
        first = train(client)
        saved = pathlib.Path(client.save("m").path)
        second = train(client)
        assert client.save("m").step == 2
        monkeypatch.chdir(saved.parent)  # a path object may be relative
        for checkpoint in (1, "1", saved.name, str(saved), saved, pathlib.Path(saved.name)):
            assert client.restore("m", 2).step == 2
            np.testing.assert_array_equal(masters(client, "blocks.0.w"), second)
            assert client.restore("m", checkpoint).step == 1
            np.testing.assert_array_equal(masters(client, "blocks.0.w"), first)
        with pytest.raises(TypeError, match="checkpoint"):
            client.restore("m", 1.5)


def test_a_restore_that_fails_is_in_the_log(saving: Daemon, start, saves: pathlib.Path):
    with saving.client() as client:
        train(client)
        saved = pathlib.Path(client.save("m").path)
    saving.stop()
    file = next(saved.glob("rank-*.safetensors"))
    os.truncate(file, file.stat().st_size // 2)
    restoring = start(flags=("--keeper=off", f"--save-dir={saves}", "--restore=latest"))
    with restoring.client() as client, pytest.raises(paramshard.DataLossError, match=file.name):
        client.open_model(spec_of("m"))
    failed = [line for line in restoring.log.read_text().splitlines() if "failed to restore" in line]
    assert len(failed) == 1 and "model=m" in failed[0] and file.name in failed[0]


def test_models_are_created_from_a_save(saving: Daemon):
    with saving.client() as client:
        first = train(client, b"one")
        path = pathlib.Path(client.save("m").path)
        train(client, b"two")
        client.save("m")
        for restore in (1, path):
            client.delete_model("m")
            client.create_model(spec_of("m"), restore=restore)
            np.testing.assert_array_equal(masters(client, "blocks.0.w"), first)
        client.delete_model("m")
        with client.open_model(spec_of("m"), restore="latest") as model:
            assert (model.commit_number, model.client_state) == (2, b"two")
        client.delete_model("m")
        with pytest.raises(paramshard.NotFoundError, match="3"):
            client.create_model(spec_of("m"), restore=3)
        assert client.models() == []


def test_moments_of_another_type_are_converted_on_demand(saving: Daemon):
    with saving.client() as client:
        train(client)
        client.save("m")
        client.delete_model("m")
        spec = spec_of("m")
        for unit in spec.units:
            unit.parameters[0].exp_avg_type = "BF16"
        client.create_model(spec)
        with pytest.raises(paramshard.InvalidArgumentError, match="exp_avg"):
            client.restore("m")
        assert client.restore("m", convert_moments=True).step == 1


def test_a_save_of_a_commit_is_listed_as_the_trainers(saving: Daemon):
    with saving.client() as client, client.open_model(spec_of("m")) as model:
        model.commit(save=True).wait()
        record = client.saves("m")[0]
        while not record.over:
            record = client.saves("m")[0]
        assert (record.state, record.reason, record.step) == ("published", "trainer", 1)


def test_a_save_that_is_not_waited_for_goes_on(saving: Daemon):
    with saving.client() as client:
        train(client)
        begun = client.save("m", wait=False)
        record = begun
        while not record.over:
            [record] = client.saves("m")
        assert (record.number, record.state) == (begun.number, "published")


def test_a_save_that_comes_to_nothing_says_why(saving: Daemon, saves: pathlib.Path):
    with saving.client() as client:
        train(client)
        (saves / "m").rename(saves / "aside")
        (saves / "m").write_text("no folder")
        record = client.save("m")
        assert (record.state, record.over, record.saved, record.path) == ("abandoned", True, False, None)
        assert isinstance(record.error, paramshard.Error) and str(saves / "m") in str(record.error)
        assert str(record.error) in repr(record)
        (saves / "m").unlink()
        (saves / "aside").rename(saves / "m")
        assert client.save("m").saved


def test_without_a_folder_there_are_no_saves(daemon: Daemon):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        for call in (lambda: client.save("m"), lambda: client.restore("m")):
            with pytest.raises(paramshard.FailedPreconditionError, match="--save-dir"):
                call()
        assert client.saves("m") == client.saves() == []


def test_what_cannot_be_saved_or_restored_is_named(saving: Daemon):
    with saving.client() as client:
        for call in (lambda: client.save("m"), lambda: client.saves("m"), lambda: client.restore("m")):
            with pytest.raises(paramshard.NotFoundError, match="m"):
                call()
        train(client)
        client.save("m")
        with pytest.raises(paramshard.NotFoundError, match="step-000000000001-"):
            client.restore("m", 7)
        with pytest.raises(paramshard.InvalidArgumentError, match="newest"):
            client.restore("m", "newest")
        with client.open_model(spec_of("m")):
            with pytest.raises(paramshard.FailedPreconditionError, match=f"rank 0.*{os.getpid()}"):
                client.restore("m")
        assert client.restore("m").step == 1
    with pytest.raises(paramshard.FailedPreconditionError, match="closed"):
        client.save("m")


WAIT = """
    import sys
    import paramshard
    client = paramshard.Client(socket_dir=sys.argv[1])
    print("connected", flush=True)
    sys.stdin.readline()  # until the daemon stands still
    print("waits", flush=True)
    getattr(client, sys.argv[2])("m")
"""


@pytest.mark.parametrize("call", ["save", "restore"])
def test_ctrl_c_ends_the_wait_and_the_daemon_serves_on(saving: Daemon, call: str):
    with saving.client() as client:
        train(client)
        process = run(WAIT, str(saving.socket_dir), call)
        assert process.stdout.readline() == "connected\n", process.stderr.read()
        saving.pause()
        process.stdin.write("\n")
        process.stdin.flush()
        interrupt(process)
        saving.go_on()
        assert client.daemon_info().pid == saving.pid


def test_the_daemon_describes_itself_and_its_models(start):
    daemon = start(ranks=2)
    with daemon.client() as client:
        info = client.daemon_info()
        assert info.version == paramshard.__version__
        assert (info.devices, info.first_rank, info.world_size) == (["cpu:0", "cpu:1"], 0, 2)
        assert (info.node, info.nodes, info.pid) == (0, 1, daemon.pid)
        assert 0 <= time.time() - info.started_at < 3600
        assert "ranks 0..1 of 2" in repr(info)
        with pytest.raises(AttributeError):
            info.world_size = 3
        assert client.models() == []
        client.create_model(spec_of("b"))
        client.create_model(spec_of("a"))
        first, second = client.models()
        assert (first.name, second.name) == ("a", "b")
        assert (first.parameter_count, first.element_count) == (4, 2 * (96 * 64 + 64))
        assert (first.world_size, first.shard_size, first.commit_number, first.version) == (2, 2, 0, 0)
        assert (first.running, first.attached_ranks, first.epoch, first.unusable) == (False, 0, None, None)


def test_a_model_with_a_trainer_says_so(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        model.commit().wait()
        [summary] = client.models()
        assert (summary.running, summary.attached_ranks, summary.epoch) == (True, 1, model.epoch)
        assert (summary.commit_number, summary.version) == (1, 1)
