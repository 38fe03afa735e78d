"""Adapters of PEFT that read weights, or write them, beside the same training without a daemon."""

import copy

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, batch_of

peft = pytest.importorskip("peft")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 32, 24) * 0.2)
        self.down = nn.Parameter(torch.randn(4, 24, 32) * 0.2)

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("bi,bio->bo", x, self.up[which]).relu()
        return torch.einsum("bi,bio->bo", hidden, self.down[which])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(32, 4), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.experts(x, self.router(x).argmax(-1))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Layers(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _square(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(int(tokens[0, 0]))).to(DEVICE)
    return model(x).square().mean()


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [*model.base_model.model.layers, model]


@pytest.mark.parametrize("units", [_blocks, lambda model: [
    *(layer.experts for layer in model.base_model.model.layers), model]], ids=["blocks", "experts"])
def test_adapters_of_experts_train(daemon, units):
    """PEFT parametrizes them in each forward, and sets the memory that they have already."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["router"], target_parameters=["experts.up", "experts.down"],
                             init_lora_weights=False)
    pair = Pair(daemon, peft.get_peft_model(Mixture(), config), units=units)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_that_read_weights_train(daemon, dora):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["layers.0", "layers.1"], use_dora=dora, init_lora_weights=False)
    pair = Pair(daemon, peft.get_peft_model(Layers(), config), units=_blocks)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


def test_adapters_that_read_weights_in_8_bits_are_told(daemon):
    model = peft.get_peft_model(Layers(128), peft.LoraConfig(r=2, target_modules=["layers.0"], use_dora=True))
    sharded = pt.shard(model, name="m", units=_blocks(model), socket_dir=str(daemon.socket_dir), compute="fp8",
                       format="FP8_BLOCK_128X128")
    pt.AdamW([each for each in model.parameters() if each.requires_grad])
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.0.base_layer.weight.*compute=.fp8"):
        model(torch.ones(2, 128, device=DEVICE))
    sharded.close()


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_a_merge_is_told(daemon, dora, safe):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["layers.0", "layers.1"], use_dora=dora, init_lora_weights=False)
    model = peft.get_peft_model(Layers(), config)
    plain = copy.deepcopy(model).to(DEVICE)
    sharded = pt.shard(model, name="m", units=_blocks(model), socket_dir=str(daemon.socket_dir))
    pt.AdamW([each for each in model.parameters() if each.requires_grad])
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.*base_layer.weight.*lost"):
        with sharded.unsharded():
            model.merge_adapter(safe_merge=safe)
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.0"):
        model.base_model.model.layers[0].merged_adapters.clear()
        model.merge_adapter(safe_merge=safe)
    for layer in model.base_model.model.layers:
        layer.merged_adapters.clear()
    torch.testing.assert_close(_square(model, batch_of(0)), _square(plain, batch_of(0)))
    sharded.close()
