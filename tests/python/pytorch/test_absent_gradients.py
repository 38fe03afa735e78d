"""Parameters with a gradient on some ranks only, against one torch model that sums what the ranks have."""

import importlib.util
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import paramshard.torch as pt
from models import DEVICE, VOCABULARY, Block, assert_close, loss_of
from test_ranks import run_ranks

WIDTH = 32
EXPERTS = 6
EPSILON = 1e-3  # gradients that nearly cancel out are rounding, which a small one makes as large as any other


class Mixture(nn.Module):
    """A block whose experts are chosen by the token: the same on all ranks, whatever is rounded."""

    def __init__(self):
        super().__init__()
        self.attention = Block(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
                                     for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        weights = self.router(x).softmax(-1).gather(-1, chosen[..., None])
        added = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            tokens = chosen == index
            if tokens.any():
                added[tokens] = expert(x[tokens]) * weights[tokens]
        return x + added


class Mixtures(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Mixture() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, tokens % EXPERTS)
        return self.head(self.norm(x))


def tokens_of(experts: list[int], seed: int) -> torch.Tensor:
    """Returns tokens that choose these experts alone."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.tensor(experts)[torch.randint(len(experts), (2, 10), generator=generator)]
    multiples = torch.randint(VOCABULARY // EXPERTS, (2, 10), generator=generator)
    return (multiples * EXPERTS + chosen).to(DEVICE)


# Experts of the ranks by step: one that only some ranks choose, all of them, one that no rank chooses.
CHOICES = [[[0, 1], [1, 2], [3]], [[0, 1, 2], [0, 1, 2], [0, 1, 2]], [list(range(EXPERTS))] * 3, [[5], [4], [5, 4]],
           [[1], [2], [1]]]


def train_plain(model: nn.Module, losses_of: Callable[[nn.Module, int, int], Iterator[torch.Tensor]], ranks: int,
                steps: int) -> list[float]:
    """Trains with what all ranks have, and returns the norms."""
    model.to(DEVICE)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPSILON)
    norms = []
    for step in range(steps):
        for rank in range(ranks):
            for loss in losses_of(model, rank, step):
                (loss / ranks).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        adamw.step()
        adamw.zero_grad()
    return norms


def train_as_plain(daemon, make: Callable[[], nn.Module], units: Callable[[nn.Module], list],
                   losses_of: Callable[[nn.Module, int, int], Iterator[torch.Tensor]], ranks: int, steps: int,
                   **options) -> None:
    models = []
    for _ in range(1 + ranks):
        torch.manual_seed(0)
        models.append(make())
    plain = models.pop()
    norms = train_plain(plain, losses_of, ranks, steps)

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=units(model), socket_dir=str(daemon.socket_dir), local_rank=rank,
                      **options) as sharded:
            optimizer = pt.AdamW(model.parameters(), lr=1e-3, eps=EPSILON, max_grad_norm=0.5)
            for step in range(steps):
                for loss in losses_of(model, rank, step):
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                assert_close(optimizer.last_norm(), norms[step], rtol=1e-5, atol=1e-6)
            if rank == ranks - 1:
                for name, parameter in plain.named_parameters():
                    # Torch's own rounding of weights near 1, as in Pair.check().
                    assert_close(sharded.read(name), parameter.detach(), rtol=3e-6, atol=1e-6,
                                 msg=lambda text, name=name: f"{name}: {text}")

    run_ranks(ranks, train)


@pytest.mark.parametrize("ranks, in_one_unit, steps", [(2, False, 50), (3, False, 15), (2, True, 15), (3, True, 15)])
def test_experts_without_tokens_on_some_ranks(start, ranks, in_one_unit, steps):
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        yield loss_of(model, tokens_of(CHOICES[step % len(CHOICES)][rank], 10 * step + rank))

    def units(model: Mixtures) -> list[nn.Module | list[nn.Module]]:
        return [model] if in_one_unit else [model.embed, *model.layers, [model.norm, model.head]]

    train_as_plain(start(ranks=ranks), Mixtures, units, losses_of, ranks, steps)


def test_experts_of_some_micro_batches(start):
    """An expert that one micro-batch chooses on one rank, and another one elsewhere."""
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        for part in range(2):
            choice = CHOICES[(step + part) % len(CHOICES)][(rank + part) % 2]
            yield loss_of(model, tokens_of(choice, 100 * step + 10 * part + rank)) / 2

    train_as_plain(start(ranks=2), Mixtures, lambda model: [model.embed, *model.layers, model], losses_of, ranks=2,
                   steps=10)


class Towers(nn.Module):
    """Towers of two modalities before a trunk, and two heads behind it; each batch has one of each."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
                                    for _ in range(2))
        self.trunk = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 8) for _ in range(2))

    def forward(self, x: torch.Tensor, tower: int, head: int) -> torch.Tensor:
        x = self.towers[tower](x)
        for block in self.trunk:
            x = block(x)
        return self.heads[head](x)


def losses_of_towers(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = (torch.randn(2, 10, 8, generator=generator).to(DEVICE) for _ in range(2))
    tower, head = (0, 1) if step % 4 == 3 else ((rank + step) % 2, rank % 2)
    yield F.mse_loss(model(x, tower, head), y)


@pytest.mark.parametrize("ranks", [2, 3])
def test_towers_of_one_unit(start, ranks):
    """Ranks whose batches have different modalities, in units that have both."""
    train_as_plain(start(ranks=ranks), Towers, lambda model: [[*model.towers], *model.trunk, [*model.heads]],
                   losses_of_towers, ranks, steps=12)


def test_towers_of_the_whole_model(start):
    """The last unit has the towers and the heads: its gradients come at both ends of a backward."""
    train_as_plain(start(ranks=2), Towers, lambda model: [*model.trunk, model], losses_of_towers, ranks=2, steps=12)


class Branched(nn.Module):
    """A block with a branch that is taken or not, and a tied weight that gets its gradient late."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.branch = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, branches: bool) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x + self.branch(x) if branches else x)


def test_a_branch_beside_a_tied_weight(start):
    def losses_of(model: nn.Module, rank: int, step: int) -> Iterator[torch.Tensor]:
        tokens = tokens_of(list(range(EXPERTS)), 10 * step + rank)
        logits = model(tokens, (rank + step) % 3 == 0)
        yield F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    train_as_plain(start(ranks=2), Branched, lambda model: [*model.blocks, model], losses_of, ranks=2, steps=12)


def test_a_parameter_without_a_gradient_on_any_rank_keeps_its_bytes(start):
    """Weight decay would move it, and a step would be counted."""
    daemon = start(ranks=2)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Mixtures())

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=[model.embed, *model.layers, model], socket_dir=str(daemon.socket_dir),
                      local_rank=rank) as sharded:
            optimizer = pt.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
            name = "layers.0.experts.5.0.weight"
            values = []
            for step, choice in enumerate([[0, 1], [5], [0, 1], [rank, 5 - rank]]):
                loss_of(model, tokens_of(choice, 10 * step + rank)).backward()
                optimizer.step()
                optimizer.last_result()
                values.append(sharded.read(name))
            assert not torch.equal(values[0], values[1])
            assert torch.equal(values[1], values[2])
            assert not torch.equal(values[2], values[3])

    run_ranks(2, train)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_mixtures_of_transformers_beside_ddp(start, ranks):
    """Experts in lists and in stacks, where every rank routes nothing to some of them."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
               str(pathlib.Path(__file__).with_name("mixtures_beside_ddp.py")), str(start(ranks=ranks).socket_dir),
               "50"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr[-8000:]
