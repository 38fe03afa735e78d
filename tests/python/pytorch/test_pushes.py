"""Gradients as they are pushed: of either type, and as autograd may leave them."""

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, assert_close

ROWS, COLUMNS = 6, 4
STREAM = None if DEVICE == "cpu" else 0  # the default one


class Pushed:
    """A Linear in the daemon, whose SGD with rate 1 subtracts what is pushed."""

    def __init__(self, daemon, grad_dtype: torch.dtype):
        with pt.meta_init():
            self.module = nn.Linear(COLUMNS, ROWS)
        nn.init.zeros_(self.module.weight.data)
        self.sharded = pt.shard(self.module, name="m", units=[self.module], grad_dtype=grad_dtype, seed=1,
                                socket_dir=str(daemon.socket_dir))
        self.optimizer = pt.SGD(self.module.parameters(), lr=1.0)
        self.before = {name: self.sharded.read(name) for name in ("weight", "bias")}
        self.pusher = self.sharded.model.pusher(self.sharded._units[0].name, ["weight", "bias"], torch)

    def push(self, *gradients: torch.Tensor | None) -> bool:
        return self.pusher.push(list(gradients), STREAM)

    def check(self, **expected: torch.Tensor) -> None:
        """Commits, and compares what parameters have lost."""
        self.sharded.model.commit(learning_rate=1.0).wait()
        for name, gradient in expected.items():
            assert_close(self.before[name] - self.sharded.read(name), gradient.float().cpu())


def gradient_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_converted_to_the_type_of_the_slot(daemon, dtype, grad_dtype):
    pushed = Pushed(daemon, grad_dtype)
    weight, bias = gradient_of(ROWS, COLUMNS, dtype=dtype), gradient_of(ROWS, dtype=torch.float32)
    for _ in range(2):  # the first of a step lands elsewhere than the second
        assert pushed.push(weight, bias)
    pushed.check(weight=2 * weight.to(grad_dtype).float(), bias=2 * bias.to(grad_dtype).float())


def test_a_gradient_that_is_none_is_absent(daemon):
    pushed = Pushed(daemon, torch.float32)
    bias = gradient_of(ROWS)
    assert pushed.push(None, bias)
    pushed.check(weight=torch.zeros(ROWS, COLUMNS), bias=bias)


NOT_PLAIN = {
    "transposed": lambda: gradient_of(COLUMNS, ROWS).t(),
    "expanded": lambda: gradient_of(1, COLUMNS).expand(ROWS, COLUMNS),
    "half": lambda: gradient_of(ROWS, COLUMNS, dtype=torch.float16),
    "negated": lambda: torch._neg_view(gradient_of(ROWS, COLUMNS)),
    "zeros without memory": lambda: torch._efficientzerotensor((ROWS, COLUMNS), device=DEVICE),
    "sparse": lambda: gradient_of(ROWS, COLUMNS).to_sparse(),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_caller(daemon, name):
    pushed = Pushed(daemon, torch.float32)
    assert not pushed.push(NOT_PLAIN[name](), gradient_of(ROWS))
    bias = gradient_of(ROWS)
    assert pushed.push(None, bias)
    pushed.check(weight=torch.zeros(ROWS, COLUMNS), bias=bias)


@pytest.mark.parametrize("name", [name for name in NOT_PLAIN if name != "sparse"])
def test_units_push_what_is_not_plain(daemon, name):
    pushed = Pushed(daemon, torch.float32)
    weight, bias = NOT_PLAIN[name](), gradient_of(ROWS)
    pushed.sharded._units[0]._memory.push(pushed.sharded.model, [weight, bias])
    pushed.check(weight=weight + 0.0, bias=bias)


def test_wrong_gradients_and_names_are_refused(daemon):
    pushed = Pushed(daemon, torch.float32)
    unit, model = pushed.sharded._units[0].name, pushed.sharded.model
    for gradients in ([], [gradient_of(ROWS, COLUMNS)], [gradient_of(ROWS, COLUMNS + 1), None],
                      [gradient_of(ROWS), gradient_of(ROWS)]):
        with pytest.raises(paramshard.InvalidArgumentError, match=f"push {unit}: want gradients of"):
            pushed.push(*gradients)
    with pytest.raises(AttributeError):
        pushed.push(5, None)
    for names in ([], ["weight"], ["weight", "weight"], ["weight", "bias", "bias"]):
        with pytest.raises(paramshard.InvalidArgumentError, match="want each of its 2 parameters once"):
            model.pusher(unit, names, torch)
    with pytest.raises(paramshard.NotFoundError, match="parameter other: not found"):
        model.pusher(unit, ["weight", "other"], torch)
    with pytest.raises(paramshard.NotFoundError, match="unit other: not found"):
        model.pusher("other", ["weight"], torch)
    pushed.sharded.close()
    with pytest.raises(paramshard.FailedPreconditionError, match="model was closed"):
        pushed.push(None, gradient_of(ROWS))
