"""Imports and exports."""

import numpy as np
import pytest

import paramshard
from conftest import Daemon, spec_of


def masters(client: paramshard.Client, parameter: str) -> np.ndarray:
    exported = client.export_tensors("m", parameters=[parameter])
    return np.concatenate([extent.values for extent in sorted(exported.extents, key=lambda e: e.first_row)])


def test_what_is_imported_is_exported(start):
    daemon = start(ranks=2)
    values = np.random.default_rng(1).standard_normal((96, 64), np.float32)
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        client.import_tensors("m", {"blocks.0.w": values})
        np.testing.assert_array_equal(masters(client, "blocks.0.w"), values)


def test_arrays_that_are_not_contiguous_are_taken(daemon: Daemon):
    values = np.random.default_rng(1).standard_normal((64, 96), np.float32).T
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        client.import_tensors("m", {"blocks.0.w": values})
        np.testing.assert_array_equal(masters(client, "blocks.0.w"), values)


def test_half_precision_is_imported_by_type_or_as_bit_patterns(daemon: Daemon):
    values = np.random.default_rng(1).standard_normal((96, 64), np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)  # BF16, rounded towards zero
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        client.import_tensors("m", [paramshard.ImportTensor("blocks.0.w", bits, type="BF16"),
                                    paramshard.ImportTensor("blocks.1.w", values.astype(np.float16))])
        expected = (bits.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(masters(client, "blocks.0.w"), expected)
        np.testing.assert_array_equal(masters(client, "blocks.1.w"), values.astype(np.float16).astype(np.float32))


def test_rows_and_moments_are_imported(daemon: Daemon):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        before = masters(client, "blocks.0.w")
        rows = np.full((2, 64), 3.0, np.float32)
        moment = np.full((96, 64), 0.5, np.float32)
        client.import_tensors("m", [paramshard.ImportTensor("blocks.0.w", rows, first_row=10),
                                    paramshard.ImportTensor("blocks.0.w", moment, kind="exp_avg", step=4)],
                              commit_number=17, version=16)
        after = masters(client, "blocks.0.w")
        np.testing.assert_array_equal(after[10:12], rows)
        np.testing.assert_array_equal(np.delete(after, [10, 11], 0), np.delete(before, [10, 11], 0))
        exported = client.export_tensors("m", parameters=["blocks.0.w"], kinds=["exp_avg"])
        assert (exported.commit_number, exported.version, exported.extents[0].step) == (17, 16, 4)
        np.testing.assert_array_equal(exported.extents[0].values, moment)


def test_a_stored_state_goes_from_daemon_to_daemon(start):
    kinds = ["master_elements", "master_remainders", "exp_avg_elements", "exp_avg_scales", "exp_avg_sq_elements",
             "exp_avg_sq_scales"]
    spec = spec_of("m", format="BF16")
    for unit in spec.units:
        unit.parameters[0].master_type, unit.parameters[0].exp_avg_type = "BF16_REMAINDER", "FP8"
    states = []
    for _ in range(2):
        with start().client() as client:
            client.create_model(spec)
            if states:
                client.import_tensors("m", [paramshard.ImportTensor(e.parameter, e.values, e.kind, e.first_row, e.step,
                                                                    e.type) for e in states[0].extents])
            else:
                client.import_tensors("m", {"blocks.0.w": np.full((96, 64), 0.1, np.float32)})
            states.append(client.export_tensors("m", kinds=kinds))
    assert len(states[0].extents) == len(states[1].extents) > 0
    for a, b in zip(states[0].extents, states[1].extents):
        assert (a.parameter, a.kind, a.type) == (b.parameter, b.kind, b.type)
        np.testing.assert_array_equal(a.values, b.values)


@pytest.mark.parametrize("tensors, error, text", [
    ({"nobody": np.zeros(3, np.float32)}, paramshard.NotFoundError, "nobody"),
    ({"blocks.0.w": np.zeros((3, 3), np.float32)}, paramshard.InvalidArgumentError, r"blocks\.0\.w"),
    ({"blocks.0.w": np.zeros((96, 64), np.float64)}, paramshard.InvalidArgumentError, "float32"),
    ({"blocks.0.w": "text"}, TypeError, "got 'text'"),
    ([paramshard.ImportTensor("blocks.0.w", np.zeros((96, 64), np.float32), kind="weight")],
     paramshard.InvalidArgumentError, "exp_avg"),
])
def test_what_cannot_be_imported_is_named_and_changes_nothing(daemon: Daemon, tensors, error, text):
    with daemon.client() as client:
        client.create_model(spec_of("m"))
        before = client.export_tensors("m")
        with pytest.raises(error, match=text):
            client.import_tensors("m", tensors)
        after = client.export_tensors("m")
        assert after.history_id == before.history_id
