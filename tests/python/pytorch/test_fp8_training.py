"""Sharded models that multiply in 8 bits, beside models that decode the same planes."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import paramshard
import paramshard.torch as pt
from models import DEVICE, assert_close

FORMAT = [("*.norm.*", "FP32"), ("*.bias", "FP32"), ("*", "FP8_BLOCK_128X128")]


class Residual(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Residuals(nn.Module):
    def __init__(self, checkpoints: bool = False):
        super().__init__()
        self.checkpoints = checkpoints
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return x


def _inputs(step: int) -> torch.Tensor:
    return torch.randn(6, 24, 128, generator=torch.Generator().manual_seed(step)).to(DEVICE, torch.bfloat16)


def _loss(model: nn.Module, step: int) -> torch.Tensor:
    x = _inputs(step)
    return (model(x).float() - x.float().roll(1, -1)).square().mean()


def _shard(daemon, model: nn.Module, name: str, format=FORMAT, **options) -> tuple[pt.ShardedModel, pt.AdamW]:
    sharded = pt.shard(model, name=name, units=list(model.blocks), socket_dir=str(daemon.socket_dir), format=format,
                       param_dtype=torch.bfloat16, seed=3, **options)
    return sharded, pt.AdamW(model.parameters(), lr=1e-3)


def _train(daemon, name: str, steps: int = 8, checkpoints: bool = False, **options) -> tuple[list[float], list[float]]:
    """Losses, and norms of gradients."""
    torch.manual_seed(0)
    with pt.meta_init():
        model = Residuals(checkpoints)
    sharded, optimizer = _shard(daemon, model, name, **options)
    losses, norms = [], []
    with sharded:
        for step in range(steps):
            loss = _loss(model, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            norms.append(optimizer.last_norm())
    return losses, norms


@pytest.mark.parametrize("format", ["FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT"])
def test_products_in_8_bits_train_as_decoded_planes_do(daemon, format):
    rules = [*FORMAT[:2], ("*", format)]
    expected, expected_norms = _train(daemon, "dense", format=rules)
    losses, norms = _train(daemon, "fp8", format=rules, compute="fp8")
    assert losses != expected, "nothing was multiplied in 8 bits"
    torch.testing.assert_close(losses, expected, rtol=0.02, atol=0)
    torch.testing.assert_close(norms, expected_norms, rtol=0.05, atol=0)
    assert losses[-1] < losses[0]


def test_recomputed_and_kept_weights_give_the_same_bits(daemon):
    expected = _train(daemon, "plain", compute="fp8")
    assert _train(daemon, "recomputed", compute="fp8", checkpoints=True) == expected
    assert _train(daemon, "kept", compute="fp8", reshard_after_forward=False) == expected


def test_weights_can_be_read_and_trained_with_where_all_are_gathered(daemon):
    with pt.meta_init():
        model = Residuals()
    sharded, optimizer = _shard(daemon, model, "m", compute="fp8")
    with sharded:
        _loss(model, 0).backward()
        optimizer.zero_grad()
        with sharded.unsharded():
            weight = model.blocks[1].up.weight.detach().clone()
            _loss(model, 0).backward()
        optimizer.step()
        norm = optimizer.last_norm()
        _loss(model, 0).backward()
        optimizer.zero_grad()
        assert norm > 0 and weight.abs().max() > 0
        assert_close(weight.float(), sharded.read("blocks.1.up.weight"), rtol=0.1, atol=0.02)


def test_a_backward_through_the_weights_of_the_step_before_is_refused(daemon):
    with pt.meta_init():
        model = Residuals()
    sharded, optimizer = _shard(daemon, model, "m", compute="fp8")
    with sharded:
        loss = _loss(model, 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_frozen_weight_passes_gradients_on(daemon):
    with pt.meta_init():
        model = Residuals()
    model.blocks[1].requires_grad_(False)
    sharded, optimizer = _shard(daemon, model, "m", compute="fp8")
    with sharded:
        before = sharded.read("blocks.0.up.weight"), sharded.read("blocks.1.up.weight")
        for step in range(2):
            _loss(model, step).backward()
            optimizer.step()
        after = sharded.read("blocks.0.up.weight"), sharded.read("blocks.1.up.weight")
        assert not torch.equal(after[0], before[0]) and torch.equal(after[1], before[1])


@pytest.mark.parametrize("format", [None, "BF16"])
def test_a_model_without_such_weights_is_refused(daemon, format):
    with pt.meta_init():
        model = Residuals()
    with pytest.raises(paramshard.InvalidArgumentError, match="multiples of 128"):
        _shard(daemon, model, "m", format=format, compute="fp8")
    with pytest.raises(paramshard.InvalidArgumentError, match="compute="):
        _shard(daemon, model, "m", compute="fp4")


def test_code_that_reads_such_a_weight_is_told(daemon):
    class Reads(Residual):
        read = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.read is not None:
                self.read(self.up)
            return super().forward(x)

    torch.manual_seed(0)
    with pt.meta_init():
        model = nn.Module()
        model.blocks = nn.ModuleList([Reads()])
    sharded, optimizer = _shard(daemon, model, "m", compute="fp8")
    block = model.blocks[0]
    for block.read in (lambda up: up.weight.square().sum(), lambda up: up.weight.data.norm(),
                       lambda up: up.weight.detach() + 1, lambda up: nn.functional.linear(_inputs(0), up.weight),
                       lambda up: up.weight.data.clamp_(0, 1)):
        with pytest.raises(paramshard.FailedPreconditionError, match="blocks.0.up.weight.*compute=.fp8"):
            block(_inputs(0))
    block.read = lambda up: (up.weight.shape, up.weight.dtype, up.bias.sum())
    block(_inputs(0)).sum().backward()
    optimizer.step()
    assert optimizer.last_norm() > 0
    with sharded.unsharded():
        assert block.up.weight.square().sum() > 0
    sharded.close()
