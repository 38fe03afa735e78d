"""Small models, and the plain torch training that a sharded one is compared with."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import paramshard.torch as pt

# Device of modules and daemons: cpu or cuda.
DEVICE = os.environ.get("PARAMSHARD_TEST_DEVICE", "cpu")
VOCABULARY = 48
LENGTH = 12


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int = 3, width: int = 32, tied: bool = False, checkpoints: bool = False):
        super().__init__()
        self.checkpoints = checkpoints
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)  # as GPTs have it; of weights of 1 a step's rounding is 1e-7
        self.register_buffer("positions", torch.sin(torch.arange(LENGTH * width).view(LENGTH, width) / width))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions[:tokens.shape[1]]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(self.norm(x))

    def units(self) -> list[nn.Module | list[nn.Module]]:
        return [self.embed, *self.layers, [self.norm, self.head]]


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def units(self) -> list[nn.Module]:
        return list(self.blocks)


def batch_of(step: int, size: int = 4, device: str = DEVICE) -> torch.Tensor:
    tokens = torch.randint(0, VOCABULARY, (size, LENGTH), generator=torch.Generator().manual_seed(1000 + step))
    return tokens.to(device)


def assert_close(actual: Any, expected: Any, **options: Any) -> None:
    """Compares tensors on any devices: values from the daemon lie in host memory."""
    torch.testing.assert_close(actual, expected, check_device=False, **options)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Pair:
    """A model that torch trains, and one of the same values that the daemon has."""

    def __init__(self, daemon, model: nn.Module, *, name: str = "m", lr: float = 1e-3, max_grad_norm: float = 0.5,
                 groups: Callable[[nn.Module], list] | None = None,
                 units: Callable[[nn.Module], list] = lambda module: module.units(),
                 optimizers: tuple[Callable, Callable] = (torch.optim.AdamW, pt.AdamW), **options):
        """`optimizers`: torch's and ours, which take parameters and `lr`; ours also `max_grad_norm`."""
        self.plain = model.to(DEVICE)
        self.module = copy.deepcopy(model)
        self.sharded = pt.shard(self.module, name=name, units=units(self.module), socket_dir=str(daemon.socket_dir),
                                **options)
        groups = groups or (lambda module: [each for each in module.parameters() if each.requires_grad])
        self.max_grad_norm = max_grad_norm
        self.torch_optimizer = optimizers[0](groups(self.plain), lr=lr)
        self.optimizer = optimizers[1](groups(self.module), lr=lr, max_grad_norm=max_grad_norm)

    def both(self) -> Iterator[nn.Module]:
        yield self.plain
        yield self.module

    def step(self) -> float:
        """Steps both, and compares their norms."""
        norm = nn.utils.clip_grad_norm_(self.plain.parameters(), self.max_grad_norm)
        self.torch_optimizer.step()
        self.torch_optimizer.zero_grad()
        self.optimizer.step()
        self.optimizer.zero_grad()
        assert_close(self.optimizer.last_norm(), norm.item(), rtol=1e-5, atol=1e-6)
        return norm.item()

    def train(self, steps: int, loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = loss_of) -> None:
        for step in range(steps):
            losses = []
            for model in self.both():
                losses.append(loss(model, batch_of(step)))
                losses[-1].backward()
            assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
            self.step()

    def check(self, tolerance: float = 1e-6) -> None:
        """Every weight is that of torch, whose rounding of weights near 1 is 2.4e-6 in 50 steps, five times ours."""
        for name, parameter in self.plain.named_parameters():
            assert_close(self.sharded.read(name), parameter.detach(), rtol=3e-6, atol=tolerance,
                         msg=lambda text, name=name: f"{name}: {text}")
