"""Arguments that are wrong are refused before they change anything, and never end the process."""

import mmap
import types

import numpy as np
import pytest

import paramshard
from conftest import DEVICE, Daemon, spec_of

ROWS, COLUMNS = 96, 64
NAME = "blocks.0.w"

Invalid = paramshard.InvalidArgumentError
Closed = paramshard.FailedPreconditionError


class Subclass(np.ndarray):
    pass


def filled(array: np.ndarray) -> np.ndarray:
    array[...] = -7
    return array


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


SHAPE = (ROWS, COLUMNS)
WRONG_OUTPUTS = {
    "float64": np.zeros(SHAPE),
    "float16": np.zeros(SHAPE, np.float16),
    "int32": np.zeros(SHAPE, np.int32),
    "big-endian": np.zeros(SHAPE, ">f4"),
    "complex": np.zeros(SHAPE, np.complex64),
    "every second row": np.zeros((2 * ROWS, COLUMNS), np.float32)[::2],
    "every second column": np.zeros((ROWS, 2 * COLUMNS), np.float32)[:, ::2],
    "backwards": np.zeros(SHAPE, np.float32)[::-1],
    "Fortran order": np.zeros(SHAPE, np.float32, order="F"),
    "transposed": np.zeros((COLUMNS, ROWS), np.float32).T,
    "broadcast": np.broadcast_to(np.float32(0), SHAPE),
    "read-only": read_only(np.zeros(SHAPE, np.float32)),
    "masked": np.ma.zeros(SHAPE, np.float32),
    "swapped shape": np.zeros((COLUMNS, ROWS), np.float32),
    "flat": np.zeros(ROWS * COLUMNS, np.float32),
    "one more dimension": np.zeros((1, *SHAPE), np.float32),
    "too small": np.zeros((ROWS - 1, COLUMNS), np.float32),
    "empty": np.zeros((0, COLUMNS), np.float32),
    "0-d": np.zeros((), np.float32),
    "bytes": bytearray(4 * ROWS * COLUMNS),
}


@pytest.fixture
def model(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        yield model


@pytest.mark.parametrize("name", WRONG_OUTPUTS)
def test_decode_fills_its_output_or_refuses_it(model, name: str):
    out = WRONG_OUTPUTS[name]
    before = bytes(out) if isinstance(out, bytearray) else out.tobytes()
    with model.gather("blocks.0") as unit, pytest.raises(Invalid):
        unit[NAME].decode(out)
    assert (bytes(out) if isinstance(out, bytearray) else out.tobytes()) == before


@pytest.mark.parametrize("out", ([1.0], "text", 5, object()), ids=repr)
def test_decode_wants_an_array(model, out):
    with model.gather("blocks.0") as unit, pytest.raises(TypeError):
        unit[NAME].decode(out)


def test_decode_takes_what_it_can_fill(model):
    with model.gather("blocks.0") as unit:
        values = unit[NAME].decode()
        for out in (filled(np.empty(SHAPE, np.float32)), filled(np.empty(SHAPE, np.float32).view(Subclass)),
                    filled(np.empty((3, *SHAPE), np.float32))[1]):
            assert unit[NAME].decode(out) is out
            np.testing.assert_array_equal(out, values)
        bias = np.empty(COLUMNS, np.float32)
        np.testing.assert_array_equal(unit["blocks.0.b"].decode(bias), [0.0] * COLUMNS)
        assert unit["blocks.0.b"].decode(np.empty((1, COLUMNS), np.float32)).shape == (1, COLUMNS)


@pytest.mark.parametrize("values", (
    np.ones((COLUMNS, ROWS), np.float32), np.ones((1, ROWS * COLUMNS), np.float32), np.ones(ROWS * COLUMNS, np.float32),
    np.ones((ROWS, COLUMNS, 1), np.float32), np.ones((), np.float32), np.ones(SHAPE, np.int64),
    np.ones(SHAPE, np.uint16), np.ones(SHAPE, bool), np.ones(SHAPE, np.complex64), np.ones(SHAPE, object),
    np.ma.masked_equal(np.ones(SHAPE, np.float32), 1)), ids=lambda values: f"{values.dtype} {values.shape}")
def test_gradients_of_another_shape_or_type_are_refused(model, values):
    with model.gradients("blocks.0") as gradients:
        with pytest.raises(Invalid):
            gradients.write(NAME, values)
        assert not gradients[NAME].any()


@pytest.mark.parametrize("values", (np.full(SHAPE, 0.5), np.full(SHAPE, 0.5, np.float16),
                                    np.full((COLUMNS, ROWS), 0.5, np.float32).T, np.full(SHAPE, 0.5, ">f4"),
                                    read_only(np.full(SHAPE, 0.5, np.float32))), ids=lambda values: str(values.dtype))
def test_gradients_are_taken_as_numbers_or_refused(model, values):
    with model.gradients("blocks.0") as gradients:
        try:
            gradients.write(NAME, values)
        except Invalid:
            assert values.dtype.byteorder == ">" and not gradients[NAME].any()
        else:
            assert (gradients[NAME] == 0.5).all()


@pytest.mark.parametrize("place", ((0, -4), (0, 2**62), (0, -2**63), (2**40, 0), (2**64 - 1, 0)), ids=str)
def test_a_reader_refuses_places_that_cannot_be(model, place):
    with pytest.raises((Invalid, TypeError)):
        model.reader("blocks.0", [(NAME, "FP32", *place)])
    with pytest.raises((Invalid, TypeError)):
        model.reader("blocks.0", [], [(NAME, False, *place, 0, 1)])


@pytest.mark.skipif(DEVICE != "cpu", reason="host memory")
def test_a_reader_touches_no_memory_that_is_none(model):
    memory = np.zeros(2 * ROWS * COLUMNS + 1, np.float32)
    address = memory.ctypes.data
    reader = model.reader("blocks.0", [(NAME, "FP32", 0, 0)])
    for wrong in (0, 1, 8, 4095, 2**47 - 4, 2**48, 2**63, 2**64 - 4, address + 1, address + 2):
        with pytest.raises(Invalid):
            reader.read([wrong])
    for wrong in (-1, 2**64, 1.5, None, "x"):
        with pytest.raises(TypeError):
            reader.read([wrong])
    with pytest.raises(Invalid):
        model.reader("blocks.0", [(NAME, "FP32", 0, 8)]).read([2**64 - 8])
    twice = model.reader("blocks.0", [(NAME, "FP32", 0, 0), ("blocks.0.b", "FP32", 0, 4)])
    with pytest.raises(Invalid, match="overlap"):
        twice.read([address])
    apart = model.reader("blocks.0", [(NAME, "FP32", 0, 0), ("blocks.0.b", "FP32", 1, 0)])
    with pytest.raises(Invalid, match="overlap"):
        apart.read([address, address + 4 * (ROWS * COLUMNS - 1)])
    assert not memory.any()
    apart.read([address, address + 4 * ROWS * COLUMNS])
    assert memory.any()


@pytest.mark.skipif(DEVICE != "cpu", reason="host memory")
def test_a_reader_refuses_memory_that_may_not_be_written(model):
    frozen = np.frombuffer(mmap.mmap(-1, 4 * ROWS * COLUMNS, prot=mmap.PROT_READ), np.uint8)
    with pytest.raises(Invalid):
        model.reader("blocks.0", [(NAME, "FP32", 0, 0)]).read([frozen.ctypes.data])


def test_a_reader_checks_scales(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m", 256, 384, "FP8_BLOCK_128X128")) as model:
        data, scales = np.zeros((256, 384), np.uint8), np.zeros((2, 3), np.float32)
        for address, pitch in ((0, 3), (scales.ctypes.data + 1, 3), (scales.ctypes.data, 2), (scales.ctypes.data, -3),
                               (scales.ctypes.data, 2**62), (data.ctypes.data, 3)):
            reader = model.reader("blocks.0", [], [(NAME, False, 0, 0, address, pitch)])
            with pytest.raises(Invalid):
                reader.read([data.ctypes.data])
        assert not data.any() and not scales.any()


def test_closed_objects_refuse(daemon: Daemon):
    with daemon.client() as client:
        model = client.open_model(spec_of("m", format="MXFP8_2D"))
        unit, gradients = model.gather("blocks.0"), model.gradients("blocks.0")
        unit.wait()
        matrix, reader = unit[NAME], model.reader("blocks.0", [(NAME, "FP32", 0, 0)])
        data = matrix.data
        before = data.copy()
        model.close()
        memory = np.zeros(SHAPE, np.float32)
        for call in (matrix.decode, lambda: matrix.decode(memory), matrix.transpose, lambda: matrix.data,
                     lambda: matrix.typed_data, lambda: matrix.scales, lambda: matrix.typed_scales,
                     lambda: matrix.copy_scales("compact"), lambda: unit[NAME], unit.wait, lambda: unit.ready,
                     lambda: gradients[NAME], lambda: gradients.typed(NAME), lambda: gradients.address(NAME),
                     lambda: gradients.write(NAME, memory), lambda: gradients.mark_absent(NAME), gradients.push,
                     lambda: reader.read([memory.ctypes.data]), lambda: model.reader("blocks.0", []),
                     lambda: model.gather("blocks.0"), model.commit, model.discard, lambda: model.spec):
            with pytest.raises(Closed):
                call()
        assert not memory.any()
        np.testing.assert_array_equal(data, before), "memory that an array shows stays"
        unit.release(), gradients.release(), model.close()
    for call in (client.models, lambda: client.open_model(spec_of("m")), lambda: client.delete_model("m")):
        with pytest.raises(Closed):
            call()


def test_a_released_matrix_refuses(model):
    unit = model.gather("blocks.0")
    unit.wait()
    matrix = unit[NAME]
    unit.release()
    for call in (matrix.decode, lambda: matrix.data, lambda: matrix.scales, lambda: matrix.amax):
        with pytest.raises(Closed):
            call()


@pytest.mark.parametrize("tensors", ({5: np.ones(SHAPE, np.float32)}, {None: np.ones(SHAPE, np.float32)},
                                     {NAME: "text"}, {NAME: None}, {NAME: [1.0]}, 5, "text", [5], [NAME],
                                     [paramshard.ImportTensor(5, np.ones(SHAPE, np.float32))],
                                     [paramshard.ImportTensor(NAME, np.ones(SHAPE, np.float32), first_row="x")],
                                     [paramshard.ImportTensor(NAME, np.ones(SHAPE, np.float32), step=1.5)]))
def test_imports_of_other_types_are_type_errors(daemon: Daemon, tensors):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        with pytest.raises(TypeError):
            client.import_tensors("m", tensors)


def test_imports_compare_shapes(daemon: Daemon):
    spec = paramshard.ModelSpec("m", units=[paramshard.UnitSpec("u", [paramshard.ParameterSpec("t", [4, 6, 8])])])
    ones = np.ones(4 * 6 * 8, np.float32)
    with daemon.client() as client:
        client.create_model(spec)
        for shape in ((6, 4, 8), (3, 8, 8), (8, 6, 4), (192,), (1, 192), (4, 48), (4, 6, 8, 1), (24, 2, 4)):
            with pytest.raises(Invalid):
                client.import_tensors("m", {"t": ones.reshape(shape)})
        with pytest.raises(Invalid):
            client.import_tensors("m", {"t": np.ma.masked_equal(ones.reshape(4, 6, 8), 1)})
        for shape in ((4, 6, 8), (24, 8)):
            client.import_tensors("m", types.MappingProxyType({"t": ones.reshape(shape)}))
        halves = [paramshard.ImportTensor("t", ones.reshape(4, 6, 8)[part:part + 2], first_row=6 * part) for part in (0, 2)]
        client.import_tensors("m", halves)


def test_texts_and_numbers_of_other_types_are_type_errors(model, daemon: Daemon):
    for groups in ([{"learning_rate": "x"}], [{5: 1.0}], [{"learning_rate": None}]):
        with pytest.raises(TypeError):
            model.commit(groups=groups)
    with daemon.client() as client:
        for checkpoint in (2**70, 1.5, object(), True, b"x"):
            with pytest.raises(TypeError):
                client.restore("m", checkpoint)
        with pytest.raises(Invalid):
            client.saves("")
