"""Tensors of torch whose memory alone is not their values."""

import pytest
import torch

import paramshard
from conftest import spec_of

SHAPE = (96, 64)


def test_a_negation_that_is_still_to_be_made_is_refused(daemon):
    """DLPack has no bit for it, and torch exports the tensor as if it were not set."""
    values = torch.complex(torch.ones(SHAPE), torch.ones(SHAPE)).conj().imag
    assert values.is_neg()
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        with model.gradients("blocks.0") as gradients:
            with pytest.raises(paramshard.InvalidArgumentError):
                gradients.write("blocks.0.w", values)
            gradients.write("blocks.0.w", values.resolve_neg())
            assert (torch.from_dlpack(gradients["blocks.0.w"]) == -1).all()
    with daemon.client() as client, pytest.raises(paramshard.InvalidArgumentError):
        client.import_tensors("m", {"blocks.0.w": values})


@pytest.mark.parametrize("dtype", (torch.float64, torch.float16, torch.bfloat16), ids=str)
def test_gradients_of_other_floating_types_are_rounded(daemon, dtype):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        with model.gradients("blocks.0") as gradients:
            gradients.write("blocks.0.w", torch.full(SHAPE, 0.5, dtype=dtype))
            assert (torch.from_dlpack(gradients["blocks.0.w"]) == 0.5).all()


@pytest.mark.parametrize("out", (torch.zeros(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.bfloat16),
                                 torch.zeros(64, 96).t()), ids=("float64", "bfloat16", "transposed"))
def test_tensors_that_cannot_be_filled_are_refused(daemon, out):
    with daemon.client() as client, client.open_model(spec_of("m")) as model:
        with model.gather("blocks.0") as unit, pytest.raises(paramshard.InvalidArgumentError):
            unit["blocks.0.w"].decode(out)
    assert not out.any()


@pytest.mark.parametrize("out", (torch.empty(SHAPE), torch.empty(SHAPE, requires_grad=True), torch.empty(2, *SHAPE)[1]),
                         ids=("tensor", "requires_grad", "view"))
def test_a_tensor_is_filled(daemon, out):
    with daemon.client() as client, client.open_model(spec_of("m")) as model, model.gather("blocks.0") as unit:
        assert unit["blocks.0.w"].decode(out) is out
        assert torch.equal(out.detach(), torch.from_numpy(unit["blocks.0.w"].decode()))
