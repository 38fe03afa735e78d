"""Units that only some ranks run, against one torch model that sums what the ranks have."""

import random
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, VOCABULARY, Block, assert_close, loss_of
from test_absent_gradients import EXPERTS, Mixtures, Towers, losses_of_towers, tokens_of, train_as_plain
from test_ranks import run_ranks

WIDTH = 32


class DeepTowers(nn.Module):
    """Towers of several units before a trunk: a batch goes through one of them, or through none."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.towers = nn.ModuleList(nn.ModuleList(Block(WIDTH) for _ in range(4)) for _ in range(2))
        self.trunk = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, tower: int | None) -> torch.Tensor:
        x = self.embed(tokens)
        for block in [*(() if tower is None else self.towers[tower]), *self.trunk]:
            x = block(x)
        return self.head(x)

    def units(self) -> list[nn.Module]:
        return [self.embed, *self.towers[0], *self.towers[1], *self.trunk, self.head]


def _loss(model: DeepTowers, rank: int, step: int, tower: int | None) -> torch.Tensor:
    tokens = tokens_of(list(range(EXPERTS)), 10 * step + rank)
    return F.cross_entropy(model(tokens, tower)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("ranks", [2, 3])
def test_towers_that_are_units(start, ranks):
    """More units than gradient slots, which other ranks do not run."""
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        yield _loss(model, rank, step, [0, 1, None][(rank + step) % 3])

    train_as_plain(start(ranks=ranks), DeepTowers, DeepTowers.units, losses_of, ranks, steps=9)


def test_towers_of_some_micro_batches(start):
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        for part in range(3):
            yield _loss(model, rank, 10 * step + part, [0, 1, None][(rank + step + part) % 3]) / 3

    train_as_plain(start(ranks=2), DeepTowers, DeepTowers.units, losses_of, ranks=2, steps=6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_heads_and_towers_that_are_units(start, ranks):
    train_as_plain(start(ranks=ranks), Towers, lambda model: [*model.towers, *model.trunk, *model.heads],
                   losses_of_towers, ranks, steps=12)


class Dropped(nn.Module):
    """A stack whose blocks are left out at random: LayerDrop."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(6))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, kept: list[bool]) -> torch.Tensor:
        x = self.embed(tokens)
        for block, keeps in zip(self.blocks, kept):
            x = block(x) if keeps else x
        return self.head(x)


@pytest.mark.parametrize("ranks", [2, 3])
def test_layers_that_each_rank_drops(start, ranks):
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        chance = random.Random(100 * step + rank)
        tokens = tokens_of(list(range(EXPERTS)), 10 * step + rank)
        logits = model(tokens, [chance.random() < 0.6 for _ in range(6)])
        yield F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    train_as_plain(start(ranks=ranks), Dropped, lambda model: [model.embed, *model.blocks, model.head], losses_of,
                   ranks, steps=12)


@pytest.mark.parametrize("ranks", [2, 3])
def test_experts_that_are_units(start, ranks):
    choices = [[[0, 1], [1, 2], [3]], [[5], [4], [5, 4]], [[0, 1, 2], [3], [0, 1, 2]]]

    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        yield loss_of(model, tokens_of(choices[step % 3][rank], 10 * step + rank))

    def units(model: Mixtures) -> list[nn.Module]:
        experts = [expert for layer in model.layers for expert in layer.experts]
        return [model.embed, *experts, *model.layers, model]

    train_as_plain(start(ranks=ranks), Mixtures, units, losses_of, ranks, steps=9)


def _models(ranks: int) -> list[DeepTowers]:
    models = []
    for _ in range(ranks):
        torch.manual_seed(0)
        models.append(DeepTowers().to(DEVICE))
    return models


def test_gradients_that_only_some_ranks_have_are_dropped(start):
    """zero_grad() without a step: a rank has only computed a loss, or has run another tower."""
    daemon = start(ranks=2)
    plain, *models = _models(3)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, eps=1e-3)
    for step in range(4):
        for rank in range(2):
            (_loss(plain, rank, step, rank) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir),
                      local_rank=rank) as sharded:
            optimizer = pt.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
            for step in range(4):
                loss = _loss(model, rank, 100 + step, (rank + step) % 2)
                if rank == step % 2 or step > 1:
                    loss.backward()
                optimizer.zero_grad()
                loss = _loss(model, rank, step, rank)
                if step == 3:
                    optimizer.zero_grad()  # between forward and backward, as many programs do
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            for name, parameter in plain.named_parameters():
                assert_close(sharded.read(name), parameter.detach(), rtol=3e-6, atol=1e-6)

    run_ranks(2, train)


def test_a_rank_without_a_batch_steps_with_the_others(start):
    daemon = start(ranks=2)
    plain, *models = _models(3)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, eps=1e-3)
    for step in range(3):
        (_loss(plain, step % 2, step, 0) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir),
                      local_rank=rank) as sharded:
            optimizer = pt.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
            for step in range(3):
                if rank == step % 2:
                    _loss(model, rank, step, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
            if rank == 1:
                for name, parameter in plain.named_parameters():
                    assert_close(sharded.read(name), parameter.detach(), rtol=3e-6, atol=1e-6)

    run_ranks(2, train)


def test_a_rank_evaluates_alone(start):
    """Gathers are each rank's own."""
    daemon = start(ranks=2)
    models = _models(2)

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir), local_rank=rank):
            optimizer = pt.AdamW(model.parameters(), lr=1e-3)
            for step in range(2):
                if rank == 1:
                    model.eval()
                    with torch.no_grad():
                        _loss(model, rank, 50, 1)
                    model.train()
                _loss(model, rank, step, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert optimizer.last_norm() > 0

    run_ranks(2, train)


@pytest.mark.skipif(DEVICE == "cuda", reason="needs NCCL")
def test_engines_that_move_bytes_together_refuse_units_by_name(start):
    """Gloo and NCCL, as between daemons, make the same calls on all ranks."""
    daemon = start(ranks=2, flags=("--keeper=off", "--local-engine=mesh"))
    models = _models(2)

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir), local_rank=rank):
            optimizer = pt.AdamW(model.parameters(), lr=1e-3)
            _loss(model, rank, 0, 0).backward()
            optimizer.step()
            with pytest.raises(paramshard.FailedPreconditionError,
                               match=r"gather towers\.[01]\.0 forward.*run each unit on every rank"):
                _loss(model, rank, 1, rank).backward()
                optimizer.step()
                optimizer.last_result()

    run_ranks(2, train)


def test_a_step_of_one_rank_needs_a_backward(start):
    model = _models(1)[0]
    with pt.shard(model, name="m", units=model.units(), socket_dir=str(start().socket_dir)):
        optimizer = pt.AdamW(model.parameters(), lr=1e-3)
        with pytest.raises(paramshard.FailedPreconditionError, match="no backward since the last step"):
            optimizer.step()


def test_a_backward_through_frozen_units_alone_is_none(start):
    """A rank whose batch passes through frozen units alone, with an input that has a gradient, pushes nothing."""
    daemon = start(ranks=2)
    models = [nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2)]

    def work(rank: int) -> None:
        model = models[rank]
        model[1].requires_grad_(False)
        with pt.shard(model, name="m", units=list(model), socket_dir=str(daemon.socket_dir), local_rank=rank) as sharded:
            optimizer = pt.SGD(list(model[0].parameters()), lr=1.0)
            before = sharded.read("0.bias")
            x = torch.ones(2, 4, device=DEVICE, requires_grad=True)
            model[rank](x).sum().backward()
            optimizer.step()
            optimizer.last_result()
            assert_close(sharded.read("0.bias"), before - 1.0)  # 2 of one rank, divided by two

    run_ranks(2, work)


def test_values_are_written_before_a_step_of_a_rank_that_runs_nothing(start):
    daemon = start(ranks=2)
    models = [nn.Linear(4, 4) for _ in range(2)]

    def work(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), local_rank=rank) as sharded:
            optimizer = pt.SGD(model.parameters(), lr=1.0)
            model.bias.data = torch.full((4,), 3.0)
            if rank == 0:
                model(torch.ones(2, 4, device=DEVICE)).sum().backward()
            optimizer.step()
            optimizer.last_result()
            assert_close(sharded.read("bias"), torch.full((4,), 2.0))

    run_ranks(2, work)
