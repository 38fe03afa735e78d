"""Readers of a model, beside trainers that step it."""

import collections.abc
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import paramshard
from conftest import DEVICE, TIMEOUT, Daemon, on_host, spec_of
from test_model import bf16, push
from test_waits import interrupt, run

NAME = "blocks.0.w"
SHAPE = (96, 64)
SEVERAL_RANKS = 3


def reader_of(daemon: Daemon, model: str = "m", **options) -> paramshard.Reader:
    return paramshard.Reader(model, socket_dir=str(daemon.socket_dir), **options)


@pytest.fixture
def model(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        yield model


@pytest.fixture
def reader(daemon: Daemon, model: paramshard.Model) -> paramshard.Reader:
    return reader_of(daemon)


def step(model: paramshard.Model) -> None:
    push(model, "blocks.0", 1.0)
    model.commit(learning_rate=0.1).wait()


# --- What a snapshot shows ---


@pytest.mark.parametrize("format", ["FP32", "BF16", "FP8_TENSOR_CURRENT", "FP8_BLOCK_128X128", "MXFP8", "NVFP4_2D"])
def test_a_snapshot_is_what_a_trainer_gathers(daemon: Daemon, format: str):
    with daemon.client() as client, client.open_model(spec_of("m", 130, 70, format)) as model:
        reader = reader_of(daemon)
        for commit in range(3):
            with reader.acquire(commit) as snapshot, model.gather("blocks.0") as unit:
                assert snapshot.version == commit
                gathered = unit[NAME]
                np.testing.assert_array_equal(snapshot[NAME], gathered.decode())
                [rows] = snapshot.map(NAME)
                assert (rows.first_row, rows.rows, rows.columns, rows.format) == (0, 130, 70, format)
                np.testing.assert_array_equal(on_host(rows.data), on_host(gathered.data))
                for one, other in ((rows.scales, gathered.scales), (rows.amax, gathered.amax)):
                    assert (one is None) == (other is None)
                    if one is not None:
                        np.testing.assert_array_equal(on_host(one), on_host(other))
            step(model)


def test_parameters_are_described(reader: paramshard.Reader):
    with reader.acquire() as snapshot:
        assert [parameter.name for parameter in snapshot.parameters()] == [
            "blocks.0.w", "blocks.0.b", "blocks.1.w", "blocks.1.b"]
        weight, bias, *_ = snapshot.parameters()
        assert (weight.shape, weight.rows, weight.columns, weight.format) == ([96, 64], 96, 64, "FP32")
        assert (bias.shape, bias.rows, bias.columns) == ([64], 1, 64)
        assert snapshot["blocks.0.b"].shape == (64,)
        with pytest.raises(paramshard.NotFoundError, match="blocks.0.w"):
            snapshot["blocks.0.wx"]
        with pytest.raises(paramshard.NotFoundError):
            snapshot.map("x")


def test_planes_of_several_ranks_lie_in_pieces(start):
    daemon = start(ranks=SEVERAL_RANKS)
    spec = paramshard.ModelSpec("m", small_parameter_bytes=0, units=[paramshard.UnitSpec("layer", [
        paramshard.ParameterSpec("w", [320, 64], paramshard.Encoding("MXFP8"),
                                 initial_value=paramshard.InitialValue("normal", 0.0, 1.0))])])
    with daemon.client() as client:
        client.create_model(spec)
        with reader_of(daemon).acquire() as snapshot:
            pieces = snapshot.map("w")
            assert len(pieces) == SEVERAL_RANKS
            assert [piece.first_row for piece in pieces] == list(np.cumsum([0] + [piece.rows for piece in pieces[:-1]]))
            assert sum(piece.rows for piece in pieces) == 320
            values = snapshot["w"]
            for piece in pieces:
                assert not piece.data.flags.writeable and piece.data.shape == (piece.rows, 64)
                assert hasattr(piece.typed_data, "__dlpack__") and hasattr(piece.typed_scales, "__dlpack__")
                assert piece.scales.shape == (piece.rows, 2)
        exported = client.export_tensors("m").extents
    masters = np.concatenate([extent.values for extent in sorted(exported, key=lambda extent: extent.first_row)])
    np.testing.assert_allclose(values, masters, rtol=0.07, atol=1e-2)


def test_versions_grow_with_commits(daemon: Daemon, model: paramshard.Model, reader: paramshard.Reader):
    with reader.acquire() as snapshot:
        history = snapshot.history
        assert snapshot.version == 0
    step(model)
    assert reader.wait_newer(0) == 1
    push(model, "blocks.0", np.inf)
    assert model.commit().wait().skipped
    assert reader.wait_newer(1) == 2
    with reader.acquire(min_version=2) as snapshot:
        assert (snapshot.history, snapshot.version) == (history, 2)
        assert "version 2" in repr(snapshot)
    with daemon.client() as client:
        assert client.models()[0].history_id == history
    assert reader.wait_newer(100, history="0" * 32) == 2, "of another history"
    assert reader_of(daemon).wait_newer(1) == 2, "of the present history"


def test_data_comes_with_its_version(daemon: Daemon, model: paramshard.Model, reader: paramshard.Reader):
    given = [b"", b"step 2\0", bytes(range(256)) * 16, b""]
    for version, data in enumerate(given, 1):
        push(model, "blocks.0", 1.0)
        (model.commit(reader_data=data) if data else model.commit()).wait()
        with reader.acquire(version) as snapshot:
            assert snapshot.data == data
    assert snapshot.data == given[-1], "after the release"
    with pytest.raises(paramshard.InvalidArgumentError, match="reader_data: want at most 4096 bytes, got 4097"):
        model.commit(reader_data=b"x" * 4097)
    with pytest.raises(TypeError):
        model.commit(reader_data="step")


# --- Copies ---


@pytest.mark.parametrize("format", ["FP32", "BF16", "FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT", "MXFP8", "NVFP4_2D"])
def test_codes_are_copied_as_they_lie(daemon: Daemon, format: str):
    with daemon.client() as client:
        client.create_model(spec_of("m", format=format))
        with reader_of(daemon).acquire() as snapshot:
            rows = snapshot.map(NAME)
            codes = np.concatenate([np.ascontiguousarray(on_host(each.data)).view(np.uint8).reshape(-1) for each in rows])
            out = np.zeros_like(codes)
            if rows[0].scales is None:
                snapshot.copy_into({NAME: out}, decoded=False)
            else:
                scales = np.ascontiguousarray(on_host(rows[0].scales)).view(np.uint8).reshape(-1)
                copied = np.zeros_like(scales)
                snapshot.copy_into({NAME: (out, copied)}, decoded=False)
                np.testing.assert_array_equal(copied, scales)
                with pytest.raises(TypeError, match="want a tuple of codes and scales, got dtype.'uint8'. .[0-9]+,.$"):
                    snapshot.copy_into({NAME: out}, decoded=False)
                with pytest.raises(paramshard.InvalidArgumentError,
                                   match=rf"want {scales.size} bytes of scales.*got .* \({scales.size + 1},\)$"):
                    snapshot.copy_into({NAME: (out, np.zeros(scales.size + 1, np.uint8))}, decoded=False)
            np.testing.assert_array_equal(out, codes)


def test_values_are_verified(daemon: Daemon):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        with reader_of(daemon).acquire() as snapshot:
            values = snapshot[NAME]
            snapshot.verify({NAME: values})
            values[3, 17] = np.nextafter(values[3, 17], 9, dtype=np.float32)
            with pytest.raises(paramshard.DataLossError, match=f"verify: {NAME} differs from commit 0 at row 3, column 17"):
                snapshot.verify({NAME: values})


@pytest.mark.skipif(DEVICE != "cpu", reason="gradients of host memory")
def test_values_are_copied_into_arrays(daemon: Daemon):
    spec = spec_of("m", format="MXFP8")
    spec.units[1].parameters[0].gradient_type = "BF16"  # whose slots are arrays of bfloat16 without a framework
    with daemon.client() as client, client.open_model(spec) as model, model.gradients("blocks.1") as gradients:
        with reader_of(daemon).acquire() as snapshot:
            floats, bias = np.full(SHAPE, -7, np.float32), np.full((1, 64), -7, np.float32)
            snapshot.copy_into({NAME: floats, "blocks.0.b": bias, "blocks.1.w": gradients.typed("blocks.1.w")})
            np.testing.assert_array_equal(floats, snapshot[NAME])
            assert not bias.any()
            np.testing.assert_array_equal(gradients["blocks.1.w"], bf16(snapshot["blocks.1.w"]))
            snapshot.copy_into({})


def read_only() -> np.ndarray:
    array = np.full(SHAPE, -7, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name, array, error, text", [
    ("blocks.0.x", np.full(SHAPE, -7, np.float32), paramshard.NotFoundError, "blocks.0.w"),
    (NAME, np.full((64, 96), -7, np.float32), paramshard.InvalidArgumentError, r"\(96, 64\), got .*\(64, 96\)"),
    (NAME, np.full(96 * 64, -7, np.float32), paramshard.InvalidArgumentError, r"\(6144,\)"),
    (NAME, np.full(SHAPE, -7, np.float64), paramshard.InvalidArgumentError, "float32 or bfloat16"),
    (NAME, np.full(SHAPE, -7, np.float16), paramshard.InvalidArgumentError, "float16"),
    (NAME, np.full(SHAPE, -7, np.int16), paramshard.InvalidArgumentError, "int16"),
    (NAME, np.full((64, 96), -7, np.float32).T, paramshard.InvalidArgumentError, "contiguous"),
    (NAME, read_only(), paramshard.InvalidArgumentError, "writable"),
    (NAME, np.ma.zeros(SHAPE, np.float32), paramshard.InvalidArgumentError, "mask"),
    (NAME, [1.0], TypeError, NAME),
    (NAME, None, TypeError, NAME),
    (5, np.full(SHAPE, -7, np.float32), TypeError, "names"),
], ids=str)
def test_nothing_is_written_if_one_array_is_wrong(reader: paramshard.Reader, name, array, error, text):
    good = np.full(SHAPE, -7, np.float32)
    with reader.acquire() as snapshot:
        for outputs in ({"blocks.1.w": good, name: array}, {name: array, "blocks.1.w": good}):
            with pytest.raises(error, match=text):
                snapshot.copy_into(outputs)
    assert (good == -7).all()
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
        assert (array == -7).all()


def test_codes_are_not_copied_to_a_copy(reader: paramshard.Reader):
    array = np.zeros((96, 128), np.float32)[:, ::2]
    with reader.acquire() as snapshot, pytest.raises(paramshard.InvalidArgumentError, match="C-contiguous"):
        snapshot.copy_into({NAME: array}, decoded=False)


@pytest.mark.parametrize("call", ["acquire(timeout=float('nan'))", "wait_newer(0, timeout=float('nan'))"])
def test_waits_have_an_end(reader: paramshard.Reader, call: str):
    with pytest.raises(paramshard.InvalidArgumentError, match="want seconds, got nan"):
        eval(f"reader.{call}", {"reader": reader})


def test_arrays_that_overlap_are_refused(reader: paramshard.Reader):
    memory = np.full((2 * 96, 64), -7, np.float32)
    with reader.acquire() as snapshot:
        with pytest.raises(paramshard.InvalidArgumentError, match="overlap"):
            snapshot.copy_into({NAME: memory[:96], "blocks.1.w": memory[95:-1]})
        for outputs in (5, None, [NAME], [(NAME, memory[:96])]):
            with pytest.raises(TypeError, match="(?i)mapping"):
                snapshot.copy_into(outputs)
    assert (memory == -7).all()


class WritesMeanwhile(collections.abc.Mapping):
    """Outputs of a copy, the last of which calls `meanwhile` when it is looked up."""

    def __init__(self, outputs: dict, meanwhile):
        self.outputs, self.meanwhile = outputs, meanwhile

    def __getitem__(self, name: str):
        if name == list(self.outputs)[-1]:
            self.meanwhile()
        return self.outputs[name]

    def __iter__(self):
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


def test_a_snapshot_that_ends_before_its_copy_writes_nothing(model: paramshard.Model, reader: paramshard.Reader):
    outputs = {name: np.zeros(SHAPE, np.float32) for name in (NAME, "blocks.1.w")}
    with reader.acquire() as snapshot, pytest.raises(paramshard.AbortedError, match="commit 0.*commit 1"):
        snapshot.copy_into(WritesMeanwhile(outputs, lambda: step(model)))
    assert not any(output.any() for output in outputs.values()), "nothing was written"
    with reader.acquire(1) as snapshot:
        snapshot.copy_into(outputs)
        np.testing.assert_array_equal(outputs[NAME], snapshot[NAME])


def constant_spec() -> paramshard.ModelSpec:
    """Every element of a version has the same value, which is another one in each version."""
    ones = paramshard.InitialValue("ones")
    return paramshard.ModelSpec("m", groups=[paramshard.ParameterGroup(optimizer="sgd")], units=[paramshard.UnitSpec(
        "layer", [paramshard.ParameterSpec(f"w{each}", [512, 256], initial_value=ones) for each in range(4)])])


def test_copies_that_succeed_are_of_one_version(daemon: Daemon):
    steps = 60
    values: dict[int, float] = {}
    def train() -> None:
        for number in range(1, steps + 1):
            with model.gradients("layer") as gradients:
                for each in range(4):
                    gradients[f"w{each}"][...] = 1.0
                gradients.push()
            values[number] = values[number - 1] - 2.0**-10
            model.commit(learning_rate=2.0**-10).wait()

    with daemon.client() as client, client.open_model(constant_spec()) as model:
        values[0] = 1.0
        reader = reader_of(daemon)
        outputs = {f"w{each}": np.zeros((512, 256), np.float32) for each in range(4)}
        thread = threading.Thread(target=train)
        thread.start()
        seen = []
        while not seen or seen[-1] < steps:
            with reader.acquire() as snapshot:
                try:
                    snapshot.copy_into(outputs)
                except paramshard.AbortedError:
                    continue
                number = snapshot.version
            for array in outputs.values():
                assert (array == values[number]).all()
            seen.append(number)
        thread.join(TIMEOUT)
    assert seen == sorted(seen)


# --- The next version where one ends ---


def test_a_version_is_copied(model: paramshard.Model, reader: paramshard.Reader):
    step(model)
    push(model, "blocks.0", 1.0)
    model.commit(reader_data=b"two").wait()
    with reader.acquire(2) as snapshot:
        wanted = paramshard.Copied(snapshot.history, 2, b"two")
        view = paramshard.views.hf(snapshot.parameters(), "float32")
        values = snapshot[NAME]
        [rows] = snapshot.map(NAME)
        codes = on_host(rows.data).copy()
    outputs, values_alone, codes_alone = view.allocate(), np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    assert reader.copy(paramshard.Plan(view, outputs), min_version=2) == wanted
    assert reader.copy({NAME: values_alone}) == wanted
    assert reader.copy({NAME: codes_alone}, decoded=False) == wanted
    np.testing.assert_array_equal(outputs[NAME], values)
    np.testing.assert_array_equal(values_alone, values)
    np.testing.assert_array_equal(codes_alone, codes)
    step(model)  # waits for nobody
    with pytest.raises(TypeError, match="mapping"):
        reader.copy(5)


def test_the_next_version_is_read_if_one_ends(model: paramshard.Model, reader: paramshard.Reader):
    seen: list[int] = []

    def read(snapshot: paramshard.Snapshot) -> tuple[int, np.ndarray]:
        seen.append(snapshot.version)
        values = snapshot[NAME]
        if len(seen) < 3:
            step(model)
        return snapshot.version, values

    version, values = reader.read(read)
    assert seen == [0, 1, 2] and version == 2
    with reader.acquire() as snapshot:
        np.testing.assert_array_equal(values, snapshot[NAME])


def test_reading_ends_where_every_version_ends(model: paramshard.Model, reader: paramshard.Reader, monkeypatch):
    out = np.zeros(SHAPE, np.float32)
    steps: list[None] = []
    outputs = WritesMeanwhile({NAME: out}, lambda: steps.append(step(model)))
    with monkeypatch.context() as patch, pytest.raises(
            paramshard.AbortedError, match="read m: every version ended before it was read, for 60s: raise "
            "--reader-hold of the daemon: .*commit 1: ended, "):
        patch.setattr(paramshard.reader, "time", types.SimpleNamespace(monotonic=lambda: 30.0 * len(steps)))
        reader.copy(outputs)
    assert len(steps) == 2
    with pytest.raises(paramshard.DeadlineExceededError, match="acquire m: timed out"):
        reader.copy({NAME: out}, min_version=7, timeout=0.1)
    assert not out.any()

    def fail(snapshot: paramshard.Snapshot) -> None:
        raise KeyError(snapshot.version)

    with pytest.raises(KeyError, match="2"):
        reader.read(fail)
    step(model)  # waits for nobody


# --- Ends ---


def test_a_step_ends_a_snapshot(model: paramshard.Model, reader: paramshard.Reader):
    snapshot = reader.acquire()
    snapshot.check()
    [rows] = snapshot.map(NAME)
    data = rows.data
    step(model)  # waits for the snapshot, and not for ever
    out = np.full(SHAPE, -7, np.float32)
    for call in (snapshot.check, lambda: snapshot[NAME], lambda: snapshot.map(NAME), lambda: rows.data,
                 lambda: rows.typed_data, lambda: rows.scales, lambda: snapshot.copy_into({NAME: out})):
        with pytest.raises(paramshard.AbortedError, match="commit 0"):
            call()
    assert (out == -7).all()
    assert data.shape == SHAPE and data.sum() is not None, "reading it is no fault"
    assert snapshot.version == 0 and len(snapshot.parameters()) == 4
    snapshot.release()


def test_a_released_snapshot_raises(model: paramshard.Model, reader: paramshard.Reader):
    with reader.acquire() as snapshot:
        [rows] = snapshot.map(NAME)
    snapshot.release()
    for call in (snapshot.check, lambda: snapshot[NAME], lambda: snapshot.map(NAME), lambda: rows.data,
                 lambda: rows.amax, lambda: snapshot.copy_into({})):
        with pytest.raises(paramshard.FailedPreconditionError, match="released"):
            call()


def test_arrays_may_be_read_after_everything_is_gone(daemon: Daemon, model: paramshard.Model):
    reader = reader_of(daemon)
    snapshot = reader.acquire()
    data = snapshot.map(NAME)[0].data
    before = data.copy()
    del snapshot, reader
    gc.collect()
    np.testing.assert_array_equal(data, before)
    model.close()
    daemon.kill()
    assert data.sum() is not None


def test_a_dropped_snapshot_is_released(daemon: Daemon, model: paramshard.Model, reader: paramshard.Reader):
    snapshot = reader.acquire()
    data = snapshot.map(NAME)[0].data  # keeps the memory, and not the lease
    del snapshot
    step(model)
    assert data.shape == SHAPE
    with reader.acquire(1) as snapshot:
        snapshot.check()


def test_a_dead_daemon_is_told(start):
    daemon = start()
    model = daemon.client().open_model(spec_of("m"))
    reader = reader_of(daemon)
    snapshot = reader.acquire()
    daemon.kill()
    with pytest.raises(paramshard.UnavailableError):
        snapshot.check()
    with pytest.raises(paramshard.UnavailableError):
        snapshot[NAME]
    with pytest.raises(paramshard.DeadlineExceededError):
        reader.acquire(timeout=0.1)
    del model


def test_a_server_that_is_started_again_is_read_again(start):
    daemon = start(flags=("--keeper=on",))
    client = daemon.client()
    model = client.open_model(spec_of("m"))
    reader = reader_of(daemon)
    step(model)
    with reader.acquire(1) as snapshot:
        before = snapshot[NAME]
    os.kill(client.daemon_info().pid, signal.SIGKILL)
    with reader.acquire(1) as snapshot:
        np.testing.assert_array_equal(snapshot[NAME], before)
    del model


READER = """
import sys
import numpy as np
import paramshard
reader = paramshard.Reader("m", socket_dir=sys.argv[1])
snapshot = reader.acquire(1)
[rows] = snapshot.map("blocks.0.w")
mapped = rows.data
before = mapped.copy()
print("holds", flush=True)
sys.stdin.readline()
try:
    snapshot.check()
except paramshard.UnavailableError:
    print("the server has died")
np.testing.assert_array_equal(mapped, before)
with reader.acquire(2) as newer:
    print("reads", newer.version)
"""


def test_a_stopped_reader_beside_a_server_that_is_killed(start):
    """Nobody waits for it, and what it has mapped stays. Then it lets go, and maps the next server's planes."""
    daemon = start(flags=("--keeper=on",))
    with daemon.client() as client:
        step(client.open_model(spec_of("m")))
        process = subprocess.Popen([sys.executable, "-c", READER, str(daemon.socket_dir)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "holds\n"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            os.kill(client.daemon_info().pid, signal.SIGKILL)
            model = client.open_model(spec_of("m"))
            assert model.commit_number == 1
            step(model)
            readers = json.loads(daemon.ctl("-o", "json", "readers"))["readers"]
            assert all(reader["ofEarlierServer"] for reader in readers), "it has not come back"
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate("\n", timeout=TIMEOUT)
        finally:
            process.kill()
        assert output.splitlines() == ["the server has died", "reads 2"]
        del model


# --- Waits ---


def test_a_model_is_waited_for(daemon: Daemon):
    acquired = []

    def read() -> None:
        with reader_of(daemon).acquire(1) as snapshot:
            acquired.append(snapshot.version)

    thread = threading.Thread(target=read)
    thread.start()
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        step(model)  # would never return if the other thread kept the interpreter's lock
        thread.join(TIMEOUT)
    assert acquired == [1]


def test_waits_that_time_out_say_for_what(daemon: Daemon, tmp_path):
    with pytest.raises(paramshard.DeadlineExceededError, match="missing"):
        reader_of(daemon, "missing").acquire(timeout=0.05)
    with pytest.raises(paramshard.DeadlineExceededError, match=str(tmp_path)):
        paramshard.Reader("m", socket_dir=str(tmp_path)).acquire(timeout=0.05)
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        reader = reader_of(daemon)
        with reader.acquire() as snapshot:
            version = snapshot.version
        with pytest.raises(paramshard.DeadlineExceededError, match="commit 7"):
            reader.acquire(7, timeout=0.05)
        with pytest.raises(paramshard.DeadlineExceededError, match="newer than commit 0"):
            reader.wait_newer(version, timeout=0.05)
        with pytest.raises(paramshard.DeadlineExceededError, match="timed out after 50ms:"):
            reader.read(lambda snapshot: None, min_version=7, timeout=0.05)  # less some microseconds


WAIT = """
    import sys
    import paramshard
    reader = paramshard.Reader("m", socket_dir=sys.argv[1])
    print("waits", flush=True)
    {call}
"""


@pytest.mark.parametrize("call", ["reader.acquire(7)", "reader.wait_newer(reader.acquire().version)"])
def test_ctrl_c_ends_a_wait(daemon: Daemon, call: str):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        interrupt(run(WAIT.format(call=call), str(daemon.socket_dir)))


def use_in_child(reader: paramshard.Reader, snapshot: paramshard.Snapshot) -> None:
    for call in (reader.acquire, snapshot.check, lambda: snapshot[NAME]):
        with pytest.raises(paramshard.FailedPreconditionError, match="forked"):
            call()
    snapshot.release()


def test_a_forked_child_reads_and_releases_nothing(reader: paramshard.Reader):
    with reader.acquire() as snapshot:
        child = multiprocessing.get_context("fork").Process(target=use_in_child, args=(reader, snapshot))
        child.start()
        child.join(TIMEOUT)
        assert child.exitcode == 0
        snapshot.check()


def test_arguments_are_checked(daemon: Daemon, reader: paramshard.Reader):
    with pytest.raises(paramshard.InvalidArgumentError, match="name"):
        paramshard.Reader("")
    with pytest.raises(paramshard.InvalidArgumentError, match="64"):
        reader_of(daemon, name="x" * 65)
    with pytest.raises(paramshard.InvalidArgumentError, match="connect_timeout"):
        reader_of(daemon, connect_timeout=0)
    for call in (lambda: paramshard.Reader(5), lambda: reader.wait_newer("5"), lambda: reader.wait_newer(None),
                 lambda: reader.acquire("1")):
        with pytest.raises(TypeError):
            call()
    assert reader.model == "m" and "m" in repr(reader)
    with reader.acquire() as snapshot:
        with pytest.raises(paramshard.InvalidArgumentError, match="digest: blocks.0.w: .* has no amax"):
            snapshot.digest(NAME, "amax")
        with pytest.raises(TypeError, match=r"1, 2 or 4 bytes, got dtype\('float64'\) \(2,\)"):
            paramshard.digest(np.zeros(2))


@pytest.mark.parametrize("arguments, name", [(["some/eval.py"], "eval.py"), ([], "python"), (["-c"], "python"),
                                             (["x" * 65], "python"), (["\udc80"], "python")])
def test_a_reader_is_listed_by_its_script(daemon: Daemon, model: paramshard.Model, monkeypatch, arguments, name):
    monkeypatch.setattr(sys, "argv", arguments)
    with reader_of(daemon).acquire():
        [listed] = json.loads(daemon.ctl("-o", "json", "readers"))["readers"]
    assert listed["name"].startswith(name)


def test_threads_share_a_snapshot(reader: paramshard.Reader):
    def read() -> None:
        for _ in range(50):
            results.append(snapshot[NAME].tobytes())

    results: list[bytes] = []
    with reader.acquire() as snapshot:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 150 and len(set(results)) == 1
