"""A trainer's calls, with NumPy, on one rank and on several."""

import gc
import threading

import numpy as np
import pytest

import paramshard
from conftest import Daemon, fill, spec_of


def push(model: paramshard.Model, unit: str, value: float) -> None:
    with model.gradients(unit) as gradients:
        for name in ("w", "b"):
            fill(gradients[f"{unit}.{name}"], value)
        gradients.push()


def test_a_step_is_that_of_adamw(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        with model.gather("blocks.0") as unit:
            before = unit["blocks.0.w"].decode()
        push(model, "blocks.0", 0.5)
        result = model.commit(learning_rate=0.1, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01).wait()
        assert (result.commit_number, result.version, result.skipped) == (1, 1, False)
        assert result.gradient_norm == pytest.approx(0.5 * np.sqrt(96 * 64 + 64))
        with model.gather("blocks.0") as unit:
            after = unit["blocks.0.w"].data.copy()
        # The first step of AdamW with one sign everywhere: decay, then the learning rate.
        np.testing.assert_allclose(after, before * (1 - 0.1 * 0.01) - 0.1, rtol=1e-6, atol=1e-6)
        with model.gather("blocks.1") as unit:
            assert unit["blocks.1.b"].decode().tolist() == [[0.0] * 64], "what was not pushed does not move"


def test_encoded_data_and_scales_decode_to_what_the_library_decodes(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m", 130, 70, "MXFP8_2D")) as model:
        with model.gather("blocks.0") as unit:
            matrix = unit["blocks.0.w"]
            assert (matrix.rows, matrix.columns, matrix.format, matrix.element) == (130, 70, "MXFP8_2D", "E4M3")
            codes, scales, values = matrix.data, matrix.scales, matrix.decode()
            assert codes.dtype == np.uint8 and codes.shape == (130, 70) and not codes.flags.writeable
            assert scales.shape == (5, 3)
            blocks = np.exp2(scales.astype(np.float64) - 127).repeat(32, 0).repeat(32, 1)[:130, :70]
            table = e4m3_values()
            np.testing.assert_array_equal((table[codes] * blocks).astype(np.float32), values)
            out = np.empty((130, 70), np.float32)
            assert matrix.decode(out=out) is not None
            np.testing.assert_array_equal(out, values)
            np.testing.assert_array_equal(matrix.transpose(), codes.T)
            assert matrix.copy_scales("swizzled_128x4").size == 256 * 4


def e4m3_values() -> np.ndarray:
    """The 256 values of E4M3 (OCP 8-bit floating point, 1.0): bias 7, no infinities."""
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, fraction = (codes >> 3) & 0xF, codes & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * np.exp2(exponent - 7.0))
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * values)


def test_owned_matrices_train_as_those_that_are_cut(start):
    daemon = start(ranks=3)

    def spec(placement: str) -> paramshard.ModelSpec:
        experts = paramshard.ParameterSpec("experts", [5, 32, 48], paramshard.Encoding("MXFP8"), placement=placement,
                                           initial_value=paramshard.InitialValue("normal", 0.0, 1.0))
        return paramshard.ModelSpec(placement, [paramshard.UnitSpec("layer", [experts])], small_parameter_bytes=0)

    def train(rank: int) -> None:
        with daemon.client(rank) as client:
            for placement in ("cut", "owned"):
                with client.open_model(spec(placement)) as model:
                    assert model.spec.units[0].parameters[0].placement == placement
                    with model.gradients("layer") as gradients:
                        gradients["experts"][...] = np.arange(160 * 48, dtype=np.float32).reshape(160, 48) * (rank + 1)
                        gradients.push()
                    model.commit(learning_rate=0.1).wait()
                    with model.gather("layer") as unit:
                        weights[rank, placement] = unit["experts"].decode().copy()

    weights: dict[tuple[int, str], np.ndarray] = {}
    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(weights) == 6
    for gathered in weights.values():
        np.testing.assert_array_equal(gathered, weights[0, "cut"])
    rows = [line.split() for line in daemon.ctl("shards", "owned").splitlines()[1:]]
    assert sorted(int(row[6]) for row in rows) == [32, 64, 64], "rows of whole matrices"


def test_every_format_gives_its_own_type(daemon: Daemon):
    formats = {"FP32": "float32", "BF16": "uint16", "FP16": "float16", "FP8_TENSOR_CURRENT": "uint8",
               "FP8_TENSOR_DELAYED": "uint8", "FP8_BLOCK_128X128": "uint8", "MXFP8": "uint8", "MXFP8_2D": "uint8",
               "NVFP4_2D": "uint8"}
    with daemon.client() as client:
        for format, dtype in formats.items():
            with client.open_model(spec_of(format, format=format)) as model, model.gather("blocks.0") as unit:
                matrix = unit["blocks.0.w"]
                assert matrix.data.dtype == dtype, format
                assert matrix.data.shape == (96, 32 if format == "NVFP4_2D" else 64)
                assert hasattr(matrix.typed_data, "__dlpack__")
                assert (matrix.scales is None) == (format in ("FP32", "BF16", "FP16"))
                assert (matrix.amax is None) == (format != "NVFP4_2D")


def bf16(values: np.ndarray) -> np.ndarray:
    """The bit patterns that are nearest, even ones of two."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("format", ["FP32", "BF16", "MXFP8_2D"])
def test_a_reader_decodes_a_unit_by_one_call(daemon: Daemon, format: str):
    with daemon.client() as client, client.open_model(spec_of("m", 130, 70, format)) as model:
        with model.gather("blocks.0") as unit:
            expected, bias = unit["blocks.0.w"].decode(), unit["blocks.0.b"].decode()
        floats, halves = np.full(130 * 70 + bias.size + 1, -1, np.float32), np.zeros((130, 70), np.uint16)
        reader = model.reader("blocks.0", [("blocks.0.b", "FP32", 0, 4 * expected.size), ("blocks.0.w", "FP32", 0, 0)])
        for _ in range(5):  # more often than there are slots
            reader.read([floats.ctypes.data])
        np.testing.assert_array_equal(floats, [*expected.flat, *bias.flat, -1])
        model.reader("blocks.0", [("blocks.0.w", "BF16", 1, 0)]).read([0, halves.ctypes.data])
        np.testing.assert_array_equal(halves, bf16(expected))


def test_a_reader_copies_operands(daemon: Daemon):
    with daemon.client() as client:
        for format in ("FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT"):
            with client.open_model(spec_of(format, 256, 384, format)) as model:
                with model.gather("blocks.0") as unit:
                    codes, scales = unit["blocks.0.w"].data.copy(), unit["blocks.0.w"].scales.copy()
                spread = np.broadcast_to(scales, (2, 3))
                rows, columns = np.empty((256, 384), np.uint8), np.empty((384, 256), np.uint8)
                of_rows, of_columns = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
                model.reader("blocks.0", [], [("blocks.0.w", False, 0, 0, of_rows.ctypes.data, 4),
                                              ("blocks.0.w", True, 1, 0, of_columns.ctypes.data, 4)]).read(
                    [rows.ctypes.data, columns.ctypes.data])
                np.testing.assert_array_equal(rows, codes)
                np.testing.assert_array_equal(columns, codes.T)
                np.testing.assert_array_equal(of_rows, np.pad(spread, ((0, 0), (0, 1))))
                np.testing.assert_array_equal(of_columns, np.pad(spread.T, ((0, 0), (0, 2))))


def test_a_reader_refuses_what_it_cannot_read(daemon: Daemon):
    memory = np.empty(96 * 64, np.float32)
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        with pytest.raises(paramshard.InvalidArgumentError, match="FP32, BF16"):
            model.reader("blocks.0", [("blocks.0.w", "FP16", 0, 0)])
        with pytest.raises(paramshard.InvalidArgumentError, match="want 1 blocks of memory, got 0"):
            model.reader("blocks.0", [("blocks.0.w", "FP32", 0, 0)]).read([])
        with pytest.raises(paramshard.NotFoundError, match="blocks.1.w"):
            model.reader("blocks.0", [("blocks.1.w", "FP32", 0, 0)]).read([memory.ctypes.data])
        with pytest.raises(paramshard.NotFoundError):
            model.reader("blocks.9", []).read([])
        with pytest.raises(paramshard.UnimplementedError, match="FP8_BLOCK_128X128"):
            model.reader("blocks.0", [], [("blocks.0.w", False, 0, 0, memory.ctypes.data, 1)]).read([memory.ctypes.data])
        reader = model.reader("blocks.0", [("blocks.0.w", "FP32", 0, 0)])
        reader.read([memory.ctypes.data])
        assert model.can_gather("blocks.0"), "errors leave no slot behind"
    with pytest.raises(paramshard.FailedPreconditionError, match="closed"):
        reader.read([memory.ctypes.data])


def test_handles_that_were_given_back_raise(daemon: Daemon):
    with daemon.client() as client:
        model = client.open_model(spec_of("m"))
        unit = model.gather("blocks.0")
        with pytest.raises(paramshard.FailedPreconditionError, match="Wait"):
            unit["blocks.0.w"]
        unit.wait()
        matrix = unit["blocks.0.w"]
        unit.release()
        unit.release()
        for use in (lambda: matrix.data, matrix.decode, unit.wait, lambda: unit["blocks.0.w"]):
            with pytest.raises(paramshard.FailedPreconditionError):
                use()
        gradients = model.gradients("blocks.0")
        gradients.push()
        with pytest.raises(paramshard.FailedPreconditionError):
            gradients["blocks.0.w"]
        model.close()
        model.close()
        with pytest.raises(paramshard.FailedPreconditionError, match="closed"):
            model.gather("blocks.0")


def test_arrays_may_be_read_after_everything_is_gone(daemon: Daemon):
    client = daemon.client()
    model = client.open_model(spec_of("m"))
    unit = model.gather("blocks.0")
    unit.wait()
    data = unit["blocks.0.w"].data
    slot = model.gradients("blocks.0")["blocks.0.w"]
    del unit
    model.close()
    del model
    client.close()
    gc.collect()
    daemon.kill()
    assert data.sum() is not None  # what it shows has no meaning, but reading is no fault
    slot[...] = 1.0
    assert slot.sum() == slot.size


def test_dropped_handles_give_their_slots_back(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        for _ in range(20):  # of three gather slots, and two gradient slots
            model.gather("blocks.0").wait()
            model.gradients("blocks.0")["blocks.0.b"][...] = 1
        push(model, "blocks.0", 1.0)
        assert model.commit().wait().version == 1


def test_units_that_are_held_are_named(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        held = [model.gather("blocks.0") for _ in range(3)]
        assert not model.can_gather("blocks.1")
        with pytest.raises(paramshard.ResourceExhaustedError, match=r"blocks\.0.*gather_slots"):
            model.gather("blocks.1")
        with pytest.raises(paramshard.FailedPreconditionError, match=r"blocks\.0"):
            model.commit()
        del held


def test_groups_have_their_own_hyperparameters(daemon: Daemon):
    spec = spec_of("m")
    spec.groups = [paramshard.ParameterGroup("slow"), paramshard.ParameterGroup("fast")]
    spec.units[1].parameters[1].group = 1
    with daemon.client() as client, client.open_model(spec) as model:
        push(model, "blocks.1", 1.0)
        model.commit(groups=[{"learning_rate": 0.0}, {"learning_rate": 0.25}]).wait()
        with model.gather("blocks.1") as unit:
            np.testing.assert_allclose(unit["blocks.1.b"].data, -0.25, rtol=1e-6)
        with pytest.raises(paramshard.InvalidArgumentError, match="learning_rate, beta1"):
            model.commit(groups=[{"lr": 1.0}, {}])


def test_discarded_gradients_are_as_if_never_pushed(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        push(model, "blocks.0", np.inf)
        model.discard()
        push(model, "blocks.0", 1.0)
        assert not model.commit().wait().skipped


def test_non_finite_gradients_skip_the_step(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        push(model, "blocks.0", np.nan)
        result = model.commit().wait()
        assert (result.skipped, result.version, result.non_finite_count) == (True, 0, 96 * 64 + 64)


def test_client_state_comes_back(daemon: Daemon):
    state = bytes(range(256))
    with daemon.client() as client:
        with client.open_model(spec_of("m")) as model:
            push(model, "blocks.0", 1.0)
            model.commit(client_state=state).wait()
        with client.open_model(spec_of("m")) as model:
            assert (model.commit_number, model.version, model.client_state) == (1, 1, state)
            assert model.last_result.version == 1


def test_the_spec_comes_back_with_every_default(daemon: Daemon):
    spec = spec_of("m", format=None)
    spec.format_rules = [paramshard.FormatRule("*.w", paramshard.Encoding("FP8_TENSOR_DELAYED"), exp_avg_type="BF16"),
                         paramshard.FormatRule("*", paramshard.Encoding("FP32"))]
    for unit in spec.units:
        unit.parameters[1].encoding = paramshard.Encoding()
    with daemon.client() as client, client.open_model(spec) as model:
        weight = model.spec.units[0].parameters[0]
        assert weight.encoding == paramshard.Encoding("FP8_TENSOR_DELAYED", "E4M3", True, paramshard.DelayedScaling())
        assert (weight.exp_avg_type, weight.exp_avg_sq_type) == ("BF16", "FP32")
        checked = model.spec
    with daemon.client() as client:
        client.create_model(checked)  # the canonical spec describes the same model


def train(daemon: Daemon, rank: int, ranks: int, results: list) -> None:
    with daemon.client(rank) as client, client.open_model(spec_of("m")) as model:
        for _ in range(3):
            with model.gather("blocks.0") as unit:
                unit["blocks.0.w"].decode()
            push(model, "blocks.0", float(rank + 1))
            results[rank] = model.commit(learning_rate=0.1).wait()
        assert (model.rank, model.world_size) == (rank, ranks)


def test_ranks_on_threads_share_the_mean_of_their_gradients(start):
    daemon = start(ranks=3)
    results = [None] * 3
    threads = [threading.Thread(target=train, args=(daemon, rank, 3, results)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.version for result in results] == [3, 3, 3]
    assert results[0].gradient_norm == pytest.approx(2.0 * np.sqrt(96 * 64 + 64))


def test_a_model_that_is_used_by_two_threads_takes_turns(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        def gather():
            for _ in range(200):
                with model.gather("blocks.0") as unit:
                    unit["blocks.0.w"].decode()
        threads = [threading.Thread(target=gather) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        push(model, "blocks.0", 1.0)
        assert model.commit().wait().version == 1
