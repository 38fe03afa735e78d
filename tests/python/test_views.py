"""Views of a model and plans, beside trainers that step it."""

import os
import signal

import numpy as np
import pytest

import paramshard
from conftest import Daemon, spec_of
from paramshard import Output, Part, View
from test_model import bf16
from test_reader import reader_of, step

FORMATS = ["FP32", "BF16", "FP16", "FP8_TENSOR_CURRENT", "FP8_TENSOR_DELAYED", "FP8_BLOCK_128X128", "MXFP8", "MXFP8_2D",
           "NVFP4_2D"]
RANKS = 3
ROWS, COLUMNS = 300, 160  # of "w", "v" and each of the two matrices of "experts"


def spec_with(format: str) -> paramshard.ModelSpec:
    normal = paramshard.InitialValue("normal", 0.0, 1.0)
    def parameter(name: str, shape: list[int]) -> paramshard.ParameterSpec:
        return paramshard.ParameterSpec(name, shape, paramshard.Encoding(format), initial_value=normal)
    return paramshard.ModelSpec("m", seed=3, small_parameter_bytes=256, units=[paramshard.UnitSpec("layer", [
        parameter("w", [ROWS, COLUMNS]), parameter("v", [ROWS, COLUMNS]), parameter("experts", [2, 128, COLUMNS]),
        parameter("bias", [COLUMNS])])])


@pytest.fixture(params=FORMATS)
def snapshot(request: pytest.FixtureRequest, start):
    daemon = start(ranks=RANKS)
    with daemon.client() as client:
        client.create_model(spec_with(request.param))
    with reader_of(daemon).acquire() as snapshot:
        yield snapshot


@pytest.fixture
def matrix(daemon: Daemon):
    """A snapshot of a model of one rank, in FP8_BLOCK_128X128."""
    with daemon.client() as client:
        client.create_model(spec_with("FP8_BLOCK_128X128"))
    with reader_of(daemon).acquire() as snapshot:
        yield snapshot


def copied(snapshot: paramshard.Snapshot, *outputs: Output) -> list[np.ndarray]:
    view = View(snapshot.parameters(), outputs)
    arrays = view.allocate()
    plan = paramshard.Plan(view, arrays)
    snapshot.copy_into(plan)
    snapshot.verify(plan)
    return [arrays[output.name] for output in outputs]


# --- What a plan copies ---


@pytest.mark.parametrize("dtype, rounded", [("float32", lambda values: values), ("bfloat16", bf16),
                                            ("float16", lambda values: values.astype(np.float16))])
def test_hf_has_all_parameters_decoded(snapshot: paramshard.Snapshot, dtype: str, rounded):
    view = paramshard.views.hf(snapshot.parameters(), dtype)
    assert [output.name for output in view.outputs] == ["w", "v", "experts", "bias"]
    arrays = copied(snapshot, *view.outputs)
    for output, array in zip(view.outputs, arrays, strict=True):
        np.testing.assert_array_equal(array, rounded(snapshot[output.name]))


def test_parts_lie_one_below_the_other(snapshot: paramshard.Snapshot):
    values = {name: snapshot[name] for name in ("w", "v", "experts", "bias")}
    joined, stack, slices, vector, columns = copied(
        snapshot,
        Output("joined", (2 * ROWS, COLUMNS), "float32", [Part("v"), Part("w")]),
        Output("stack", (2, ROWS, COLUMNS), "float32", [Part("w"), Part("v")]),
        Output("slices", (137, COLUMNS), "float32", [Part("w", rows=(170, 300)), Part("experts", rows=(125, 132))]),
        Output("vector", (COLUMNS + 7,), "float32", [Part("bias", columns=(3, 10)), Part("bias")]),
        Output("columns", (ROWS, 57), "float32", [Part("w", columns=(33, 90))]))
    np.testing.assert_array_equal(joined, np.concatenate([values["v"], values["w"]]))
    np.testing.assert_array_equal(stack, np.stack([values["w"], values["v"]]))
    np.testing.assert_array_equal(slices[:130], values["w"][170:300])
    np.testing.assert_array_equal(slices[130:], values["experts"].reshape(-1, COLUMNS)[125:132])
    np.testing.assert_array_equal(vector, np.concatenate([values["bias"][3:10], values["bias"]]))
    np.testing.assert_array_equal(columns, values["w"][:, 33:90])


def test_codes_and_scales_are_those_that_lie_there(snapshot: paramshard.Snapshot):
    rows = snapshot.map("w")

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1) for array in arrays])

    codes = joined([each.data for each in rows])
    outputs = [Output("codes", codes.shape, "uint8", [Part("w", what="codes")])]
    wanted = [codes]
    if rows[0].scales is not None:
        of_tensor = rows[0].format.startswith("FP8_TENSOR")
        scales = joined([each.scales for each in rows[:1 if of_tensor else None]])
        outputs.append(Output("scales", scales.shape, "uint8", [Part("w", what="scales")]))
        wanted.append(scales)
    if rows[0].amax is not None:
        outputs.append(Output("amax", (1,), "float32", [Part("w", what="amax")]))
        wanted.append(rows[0].amax)
    for array, expected in zip(copied(snapshot, *outputs), wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_rows_of_an_array_may_lie_apart(matrix: paramshard.Snapshot):
    view = View(matrix.parameters(), [Output(name, (ROWS, COLUMNS), "float32", [Part(name)]) for name in ("w", "v")])
    memory = np.full((ROWS, 2 * COLUMNS + 1), -7, np.float32)
    matrix.copy_into(paramshard.Plan(view, {"w": memory[:, :COLUMNS], "v": memory[:, COLUMNS + 1:]}))
    np.testing.assert_array_equal(memory[:, :COLUMNS], matrix["w"])
    np.testing.assert_array_equal(memory[:, COLUMNS + 1:], matrix["v"])
    assert (memory[:, COLUMNS] == -7).all()


def test_a_plan_serves_later_versions_and_restarted_servers(start):
    daemon = start(flags=("--keeper=on",))
    client = daemon.client()
    model = client.open_model(spec_of("m"))
    reader = reader_of(daemon)
    with reader.acquire() as snapshot:
        view = paramshard.views.hf(snapshot.parameters(), "float32")
    outputs = view.allocate()
    plan = paramshard.Plan(view, outputs)
    seen = []
    for commit in range(3):
        with reader.acquire(commit) as snapshot:
            snapshot.copy_into(plan)
            np.testing.assert_array_equal(outputs["blocks.0.w"], snapshot["blocks.0.w"])
        seen.append(outputs["blocks.0.w"].copy())
        if commit < 2:
            step(model)
    assert (seen[0] != seen[1]).any() and (seen[1] != seen[2]).any()
    os.kill(client.daemon_info().pid, signal.SIGKILL)
    outputs["blocks.0.w"][...] = 0
    with reader.acquire(2) as snapshot:
        snapshot.copy_into(plan)
    np.testing.assert_array_equal(outputs["blocks.0.w"], seen[-1])
    del model


def test_parts_without_elements_are_copied(snapshot: paramshard.Snapshot):
    outputs = [Output("columns", (ROWS, 0), "float32", [Part("w", columns=(64, 64))]),
               Output("stack", (2, ROWS, 0), "bfloat16", [Part("w", columns=(160, 160)), Part("v", columns=(0, 0))]),
               Output("rows", (0, COLUMNS), "float32", [Part("w", rows=(128, 128))]),
               Output("vector", (0,), "float32", [Part("bias", columns=(7, 7))]),
               Output("codes", (128, 0), "uint8", [Part("w", rows=(0, 128), columns=(128, 128), what="codes")]),
               Output("joined", (COLUMNS,), "float32", [Part("bias", columns=(0, 0)), Part("bias")])]
    if snapshot.map("w")[0].scales is not None:
        outputs.append(Output("scales", (3, 0), "uint8", [Part("w", columns=(0, 0), what="scales")]))
    arrays = dict(zip((output.name for output in outputs), copied(snapshot, *outputs), strict=True))
    np.testing.assert_array_equal(arrays["joined"], snapshot["bias"])


# --- Digests ---


def test_a_digest_is_that_of_the_same_bits(snapshot: paramshard.Snapshot):
    values = snapshot["experts"]
    for what, bits in (("float32", values), ("bfloat16", bf16(values)), ("float16", values.astype(np.float16)),
                       ("codes", np.concatenate([rows.data for rows in snapshot.map("experts")]))):
        digest = snapshot.digest("experts", what)
        assert digest == paramshard.digest(bits) and str(digest) == str(paramshard.digest(bits)), what
        assert hash(digest) == hash(paramshard.digest(bits)) and len(str(digest)) == 32
    other = values.copy()
    other[1, 100, 3] = -other[1, 100, 3]
    assert paramshard.digest(other) != snapshot.digest("experts")


def test_digests_of_parts_add_up(matrix: paramshard.Snapshot):
    values = matrix["w"]
    top, left, right = values[:100], np.ascontiguousarray(values[100:, :30]), np.ascontiguousarray(values[100:, 30:])
    whole = (paramshard.digest(right, 100 * COLUMNS + 30, row_stride=COLUMNS) + paramshard.digest(top)
             + paramshard.digest(left, 100 * COLUMNS, row_stride=COLUMNS))
    assert whole == matrix.digest("w")
    assert str(whole) in repr(whole)


def test_digests_of_what_is_not_there_are_refused(matrix: paramshard.Snapshot):
    with pytest.raises(paramshard.NotFoundError, match="ww"):
        matrix.digest("ww")
    with pytest.raises(paramshard.InvalidArgumentError, match="want float32, .* got bits"):
        matrix.digest("w", "bits")
    with pytest.raises(paramshard.InvalidArgumentError, match="has no amax"):
        matrix.digest("w", "amax")
    for wrong in (5, np.zeros(3), None):
        with pytest.raises(TypeError, match="digest"):
            paramshard.digest(wrong)
    with pytest.raises(paramshard.InvalidArgumentError, match="row_stride of at least 4, got 0 and 3"):
        paramshard.digest(np.zeros((2, 4), np.float32), row_stride=3)
    matrix.release()
    with pytest.raises(paramshard.FailedPreconditionError, match="released"):
        matrix.digest("w")


# --- FP8 ---


def test_hf_fp8_has_linear_weights_as_they_lie(daemon: Daemon):
    block = paramshard.Encoding("FP8_BLOCK_128X128")
    def parameter(name: str, shape: list[int], encoding: paramshard.Encoding = block) -> paramshard.ParameterSpec:
        return paramshard.ParameterSpec(name, shape, encoding, initial_value=paramshard.InitialValue("normal", 0.0, 1.0))
    with daemon.client() as client:
        client.create_model(paramshard.ModelSpec("m", units=[paramshard.UnitSpec("all", [
            parameter("embed_tokens.weight", [256, 128]), parameter("layers.0.q_proj.weight", [256, 128]),
            parameter("layers.0.k_proj.weight", [64, 128]), parameter("layers.0.o_proj.weight", [128, 256]),
            parameter("layers.0.o_proj.bias", [128]),
            parameter("layers.0.mlp.experts.0.up_proj.weight", [128, 128]),
            parameter("layers.0.mlp.experts.1.up_proj.weight", [128, 128], paramshard.Encoding("BF16")),
            parameter("value_head.weight", [1, 128])])]))
    with reader_of(daemon).acquire() as snapshot:
        view = paramshard.views.hf_fp8(
            snapshot.parameters(), rename=lambda name: None if name.startswith("value_head.") else f"model.{name}")
        outputs = view.allocate()
        snapshot.copy_into(paramshard.Plan(view, outputs))
        assert view.quantization_config == {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["model.embed_tokens", "model.layers.0.k_proj", "model.layers.0.mlp.experts"]}
        in_fp8 = {output.name for output in view.outputs if output.dtype == "float8_e4m3fn"}
        assert in_fp8 == {"model.layers.0.q_proj.weight", "model.layers.0.o_proj.weight"}
        assert len(view.outputs) == 7 + 2 and not any("value_head" in output.name for output in view.outputs)
        for name in in_fp8:
            [rows] = snapshot.map(name.removeprefix("model."))
            np.testing.assert_array_equal(outputs[name], rows.data)
            np.testing.assert_array_equal(outputs[f"{name}_scale_inv"], rows.scales)
        bias = "layers.0.o_proj.bias"
        np.testing.assert_array_equal(outputs[f"model.{bias}"], bf16(snapshot[bias]))


def test_experts_are_split(start):
    daemon = start(ranks=RANKS)
    normal, fp8 = paramshard.InitialValue("normal", 0.0, 1.0), paramshard.Encoding("FP8_BLOCK_128X128")
    with daemon.client() as client:
        client.create_model(paramshard.ModelSpec("m", units=[paramshard.UnitSpec("all", [
            paramshard.ParameterSpec("mlp.experts.gate_up_proj", [2, 256, 128], fp8, initial_value=normal),
            paramshard.ParameterSpec("mlp.experts.down_proj", [2, 128, 128], fp8, initial_value=normal)])]))
    with reader_of(daemon).acquire() as snapshot:
        joined = snapshot["mlp.experts.gate_up_proj"]
        view = paramshard.views.hf(snapshot.parameters(), "float32", split_experts=True)
        split = dict(zip((output.name for output in view.outputs), copied(snapshot, *view.outputs), strict=True))
        for expert in range(2):
            np.testing.assert_array_equal(split[f"mlp.experts.{expert}.gate_proj.weight"], joined[expert, :128])
            np.testing.assert_array_equal(split[f"mlp.experts.{expert}.up_proj.weight"], joined[expert, 128:])
            np.testing.assert_array_equal(split[f"mlp.experts.{expert}.down_proj.weight"],
                                          snapshot["mlp.experts.down_proj"][expert])
        view = paramshard.views.hf_fp8(snapshot.parameters(), split_experts=True)
        assert view.quantization_config["modules_to_not_convert"] == []
        assert {output.dtype for output in view.outputs} == {"float8_e4m3fn", "float32"}
        in_fp8 = dict(zip((output.name for output in view.outputs), copied(snapshot, *view.outputs), strict=True))
        codes = np.concatenate([rows.data for rows in snapshot.map("mlp.experts.gate_up_proj")])
        np.testing.assert_array_equal(in_fp8["mlp.experts.1.up_proj.weight"], codes[384:])
        fused = paramshard.views.hf_fp8(snapshot.parameters())
        assert fused.quantization_config["modules_to_not_convert"] == ["mlp.experts"]


# --- Bad input ---


SHAPE = (ROWS, COLUMNS)


@pytest.mark.parametrize("outputs, error, text", [
    ([Output("x", SHAPE, "float32", [Part("ww")])], paramshard.NotFoundError, "parameter ww: not found.*similar: w"),
    ([Output("x", SHAPE, "float32", [Part("w", rows=(0, 301))])], paramshard.InvalidArgumentError,
     r"w: want rows within \[0, 300\), got 301 from 0 on"),
    ([Output("x", SHAPE, "float32", [Part("w", rows=(20, 10))])], paramshard.InvalidArgumentError, "want rows within"),
    ([Output("x", (128, COLUMNS), "uint8", [Part("w", rows=(64, 192), what="codes")])],
     paramshard.InvalidArgumentError, r"w, rows \[64, 192\) .*: codes cut a scale block of 128 x 128"),
    ([Output("x", (3, 1), "float32", [Part("w", columns=(0, 100), what="scales")])], paramshard.InvalidArgumentError,
     r"w, .* columns \[0, 100\): scales cut a scale block of 128 x 128"),
    ([Output("x", (1,), "float32", [Part("w", what="amax")])], paramshard.InvalidArgumentError, "has no amax"),
    ([Output("x", SHAPE, "float32", [Part("w", what="bits")])], paramshard.InvalidArgumentError, "decoded, codes"),
    ([Output("x", SHAPE, "uint8", [Part("w")])], paramshard.InvalidArgumentError, "want float32, bfloat16 or float16 .*got uint8"),
    ([Output("x", SHAPE, "float8_e5m2", [Part("w", what="codes")])], paramshard.InvalidArgumentError,
     "want uint8 or float8_e4m3fn for codes of FP8_BLOCK_128X128, got float8_e5m2"),
    ([Output("x", (3, 2), "bfloat16", [Part("w", what="scales")])], paramshard.InvalidArgumentError,
     "want uint8 or float32 for scales"),
    ([Output("x", (2 * ROWS, COLUMNS), "float32", [Part("w")])], paramshard.InvalidArgumentError,
     "output x: want parts of 600 rows together, got 300"),
    ([Output("x", (ROWS, 2 * COLUMNS), "float32", [Part("w")])], paramshard.InvalidArgumentError,
     "output x: want parts of 320 columns, got 160 of w"),
    ([Output("x", (COLUMNS + 1,), "float32", [Part("bias")])], paramshard.InvalidArgumentError,
     "output x: want parts of 161 elements together, got 160"),
    ([Output("x", (ROWS, 0), "float32", [Part("w")])], paramshard.InvalidArgumentError,
     "output x: want parts of 0 elements together, got 48000"),
    ([Output("x", SHAPE, "float32", [Part("w", columns=(0, 0))])], paramshard.InvalidArgumentError,
     "output x: want parts of 160 columns, got 0"),
])
def test_views_of_what_is_not_there_are_refused(matrix: paramshard.Snapshot, outputs: list[Output], error, text: str):
    view = View(matrix.parameters(), outputs)
    with pytest.raises(error, match=text):
        paramshard.Plan(view, view.allocate())


def test_two_outputs_of_a_name_are_refused(matrix: paramshard.Snapshot):
    view = paramshard.views.hf(matrix.parameters(), "float32", rename=lambda name: "x" if name in "wv" else None)
    with pytest.raises(paramshard.InvalidArgumentError, match="the view has two outputs x"):
        paramshard.Plan(view, view.allocate())


def test_an_unknown_dtype_is_refused(matrix: paramshard.Snapshot):
    view = View(matrix.parameters(), [Output("x", SHAPE, "float31", [Part("w")])])
    with pytest.raises(paramshard.InvalidArgumentError, match="output x: unknown dtype float31"):
        paramshard.Plan(view, {"x": np.zeros(SHAPE, np.float32)})
    for framework in ("numpy", "torch"):
        with pytest.raises(paramshard.InvalidArgumentError, match="output x: want float32, .*, got float31"):
            view.allocate(framework)
    with pytest.raises(paramshard.InvalidArgumentError, match="want numpy or torch, got 'jax'"):
        view.allocate("jax")


@pytest.mark.parametrize("arrays, text", [
    ({}, "output x: want an array for it"),
    ({"x": np.zeros(SHAPE, np.float32), "y": 1}, "the view has no output y"),
    ({"x": np.zeros((COLUMNS, ROWS), np.float32)}, r"output x: want .* of shape \(300, 160\), got .*\(160, 300\)"),
    ({"x": np.zeros(SHAPE, np.float16)}, "want a writable array of float32.*got dtype.'float16'"),
    ({"x": np.zeros((COLUMNS, ROWS), np.float32).T}, "rows at equal distances"),
    ({"x": np.broadcast_to(np.zeros(SHAPE, np.float32), SHAPE)}, r"writable.*got .*\(300, 160\), read-only$"),
    ({"x": np.zeros((ROWS, COLUMNS, 2), np.float32)[..., 0]}, r"got .*\(300, 160\), not contiguous$"),
    ({"x": np.ma.zeros(SHAPE, np.float32)}, "mask"),
], ids=str)
def test_other_arrays_are_refused(matrix: paramshard.Snapshot, arrays, text: str):
    view = View(matrix.parameters(), [Output("x", SHAPE, "float32", [Part("w")])])
    with pytest.raises(paramshard.InvalidArgumentError, match=text):
        paramshard.Plan(view, arrays)


def test_memory_of_two_outputs_is_refused(matrix: paramshard.Snapshot):
    view = View(matrix.parameters(), [Output(name, SHAPE, "float32", [Part(name)]) for name in ("w", "v")])
    memory = np.zeros((2 * ROWS, COLUMNS), np.float32)
    with pytest.raises(paramshard.InvalidArgumentError, match="memory of w, .* and of v, .* overlaps"):
        paramshard.Plan(view, {"w": memory[:ROWS], "v": memory[ROWS - 1:-1]})


def test_objects_of_other_types_are_refused(matrix: paramshard.Snapshot):
    view = paramshard.views.hf(matrix.parameters(), "float32")
    for wrong_view, outputs in ((None, {}), (View(matrix.parameters(), [5]), {}), (View([5], []), {}), (view, None),
                                (View(matrix.parameters(), [Output("x", SHAPE, "float32", [5])]), {}),
                                (View(matrix.parameters(), [Output("x", SHAPE, "float32", [Part("w", rows=3)])]), {})):
        with pytest.raises(TypeError, match="plan: "):
            paramshard.Plan(wrong_view, outputs)
    with pytest.raises(ValueError, match="numpy or torch"):
        view.allocate("jax")


def test_a_plan_of_another_model_is_refused(daemon: Daemon, matrix: paramshard.Snapshot):
    with daemon.client() as client:
        client.create_model(spec_of("other"))
    with reader_of(daemon, "other").acquire() as other:
        view = paramshard.views.hf(other.parameters(), "float32")
    outputs = view.allocate()
    plan = paramshard.Plan(view, outputs)
    with pytest.raises(paramshard.NotFoundError, match="copy_into: .*blocks.0.w.*nothing was written"):
        matrix.copy_into(plan)


def test_a_snapshot_that_has_ended_copies_nothing(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        snapshot = reader_of(daemon).acquire()
        view = paramshard.views.hf(snapshot.parameters(), "float32")
        outputs = view.allocate()
        outputs["blocks.0.w"][...] = -7
        plan = paramshard.Plan(view, outputs)
        step(model)
        for call in (snapshot.copy_into, snapshot.verify):
            with pytest.raises(paramshard.AbortedError, match="commit 0: ended, the model is at commit 1"):
                call(plan)
        assert (outputs["blocks.0.w"] == -7).all()
        snapshot.release()
        for call in (snapshot.copy_into, snapshot.verify):
            with pytest.raises(paramshard.FailedPreconditionError, match="released"):
                call(plan)


def test_verification_names_what_differs(matrix: paramshard.Snapshot):
    view = View(matrix.parameters(), [Output("x", (2 * ROWS, COLUMNS), "float32", [Part("w"), Part("v")])])
    outputs = view.allocate()
    plan = paramshard.Plan(view, outputs)
    matrix.copy_into(plan)
    matrix.verify(plan)
    outputs["x"][ROWS + 5, 9] += 1
    with pytest.raises(paramshard.DataLossError, match="v differs from commit 0 at row 5, column 9"):
        matrix.verify(plan)
