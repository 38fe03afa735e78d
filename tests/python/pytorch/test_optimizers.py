"""SGD and Lion beside torch and the paper: steps on one rank and several, schedulers, moments, refusals.

The optimizers of the daemon: adamw, adam, sgd, sgd_momentum, sgd_nesterov, lion; muon and muon_nesterov are in
test_muon.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, Pair, assert_close, batch_of, loss_of
from test_ranks import run_ranks


class PaperLion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:2302.06675, in the parameters' type."""

    def __init__(self, params, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                moment = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                update = torch.sign(beta1 * moment + (1 - beta1) * parameter.grad)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                moment.mul_(beta2).add_((1 - beta2) * parameter.grad)


SGD_OPTIONS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def _sgd(options: dict[str, Any]) -> tuple[Callable, Callable]:
    return functools.partial(torch.optim.SGD, **options), functools.partial(pt.SGD, **options)


@pytest.mark.parametrize("options", SGD_OPTIONS.values(), ids=SGD_OPTIONS)
def test_sgd_steps_as_torch_does(daemon, options):
    torch.manual_seed(20)
    pair = Pair(daemon, GPT(), lr=0.1, optimizers=_sgd(options))
    pair.train(50)
    pair.check()


def test_lion_steps_as_the_paper_does(daemon):
    """Each step begins with the daemon's weights: rounding turns the signs of directions that are nearly zero."""
    torch.manual_seed(21)
    pair = Pair(daemon, GPT(), optimizers=[functools.partial(each, weight_decay=0.1) for each in (PaperLion, pt.Lion)])
    for step in range(50):
        for model in pair.both():
            loss_of(model, batch_of(step)).backward()
        pair.step()
        differ = elements = 0
        for name, parameter in pair.plain.named_parameters():
            weights = pair.sharded.read(name).to(DEVICE)
            differ += ((weights - parameter.detach()).abs() > 1e-6).sum().item()
            elements += weights.numel()
            parameter.data.copy_(weights)
        assert differ <= 1e-3 * elements


class Weight(nn.Module):
    """Its gradient is what a step gives to it."""

    def __init__(self, rows: int = 6, columns: int = 5):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, rows * columns).reshape(rows, columns))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def _gradients(steps: int, rank: int = 0) -> torch.Tensor:
    """Multiples of 2^-6, whose sums over a few ranks are exact."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-128, 129, (steps, 6, 5), generator=generator) / 64


def _train(daemon, make: Callable, gradients: Callable[[int], torch.Tensor], ranks: int, name: str) -> torch.Tensor:
    """Trains a Weight on all ranks, without a clip, and returns its master."""
    results = []

    def work(rank: int) -> None:
        model = Weight()
        sharded = pt.shard(model, name=name, units=[model], socket_dir=str(daemon.socket_dir), local_rank=rank)
        optimizer = make(model.parameters())
        for gradient in gradients(rank):
            model(gradient.to(DEVICE)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            results.append(sharded.read("weight"))
        sharded.close()

    run_ranks(ranks, work)
    return results[0]


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98)])
def test_lion_is_the_formula_in_float64(daemon, betas):
    gradients = _gradients(20)
    weight, moment = Weight().weight.detach().double().numpy(), numpy.zeros((6, 5))
    for gradient in gradients.double().numpy():
        update = numpy.sign(betas[0] * moment + (1 - betas[0]) * gradient)
        weight = weight * (1 - 0.01 * 0.1) - 0.01 * update
        moment = betas[1] * moment + (1 - betas[1]) * gradient
    made = _train(daemon, lambda params: pt.Lion(params, lr=0.01, betas=betas, weight_decay=0.1), lambda _: gradients,
                  ranks=1, name="m")
    assert_close(made.double(), torch.from_numpy(weight), rtol=0, atol=1e-6)


MADE = {
    "sgd": lambda params: pt.SGD(params, lr=0.1, weight_decay=0.1),
    "sgd_momentum": lambda params: pt.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd_nesterov": lambda params: pt.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "lion": lambda params: pt.Lion(params, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_every_world_makes_the_same_bytes(start, make):
    """Rank 0 has the sum of all gradients, so that the mean is the same in every world."""
    gradients = _gradients(6)
    weights = []
    for ranks in (1, 2, 3, 5):
        daemon = start(ranks=ranks)
        weights.append(_train(daemon, make, lambda rank, ranks=ranks: gradients * (ranks if rank == 0 else 0), ranks,
                              f"m{ranks}"))
    for each in weights[1:]:
        assert torch.equal(each, weights[0])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("options", [SGD_OPTIONS["plain"], SGD_OPTIONS["dampening"], SGD_OPTIONS["nesterov"]],
                         ids=["plain", "dampening", "nesterov"])
def test_ranks_train_as_one_by_sgd(start, ranks, options):
    daemon = start(ranks=ranks)
    models = []
    for _ in range(1 + ranks):
        torch.manual_seed(22)
        models.append(GPT())
    plain = models.pop().to(DEVICE)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, **options)
    for step in range(50):
        for rank in range(ranks):
            (loss_of(plain, batch_of(10 * step + rank)) / ranks).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    def train(rank: int) -> None:
        model = models[rank]
        with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir),
                      local_rank=rank) as sharded:
            optimizer = pt.SGD(model.parameters(), lr=0.1, max_grad_norm=0.5, **options)
            for step in range(50):
                loss_of(model, batch_of(10 * step + rank)).backward()
                optimizer.step()
                optimizer.zero_grad()
            if rank == ranks - 1:
                for name, parameter in plain.named_parameters():
                    assert_close(sharded.read(name), parameter.detach(), rtol=3e-6, atol=1e-6)

    run_ranks(ranks, train)


def test_schedulers_change_rates_and_momentum(daemon):
    torch.manual_seed(23)
    pair = Pair(daemon, GPT(), optimizers=_sgd({"momentum": 0.9}))
    schedulers = [OneCycleLR(each, max_lr=0.2, total_steps=20, base_momentum=0.8, max_momentum=0.95)
                  for each in (pair.torch_optimizer, pair.optimizer)]
    for _ in range(15):
        pair.train(1)
        for scheduler in schedulers:
            scheduler.step()
    assert pair.optimizer.param_groups[0]["momentum"] == pair.torch_optimizer.param_groups[0]["momentum"] != 0.9
    pair.check()


def test_groups_have_their_own_momentum(daemon):
    torch.manual_seed(24)

    def groups(model: GPT) -> list[dict[str, Any]]:
        matrices, vectors = pt.decay_groups(model, 0.1)
        return [matrices | {"momentum": 0.9, "nesterov": True}, vectors | {"momentum": 0.0}]

    pair = Pair(daemon, GPT(), lr=0.1, groups=groups, optimizers=(torch.optim.SGD, pt.SGD))
    assert [group.optimizer for group in pair.sharded.model.spec.groups] == ["sgd_nesterov", "sgd"]
    pair.train(10)
    pair.check()


@pytest.mark.parametrize("make, classes", [
    (lambda params: pt.SGD(params, momentum=0.0), set()),
    (lambda params: pt.SGD(params, momentum=0.9), {"momentum_buffer"}),
    (lambda params: pt.Lion(params), {"exp_avg"})], ids=["sgd", "momentum", "lion"])
def test_memory_is_that_of_the_moments_that_are_kept(daemon, make, classes):
    model = GPT()
    with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir)):
        make(model.parameters())
        with daemon.client() as client:
            used = {use.memory_class for use in client.memory()}
    assert used & {"exp_avg", "exp_avg_sq", "momentum_buffer"} == classes


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_training_goes_on_in_the_bytes_of_one_that_never_ended(start, tmp_path, make):
    """The trainer ends, the server is killed in the middle of a step, and a checkpoint goes into a world of three."""
    saves = tmp_path / "saves"
    saves.mkdir()
    gradients = _gradients(9)
    whole = _train(start(), make, lambda _: gradients, 1, "m")
    daemon = start(flags=(f"--save-dir={saves}",))

    def some(daemon, ranks: int, first: int, last: int, **options) -> torch.Tensor:
        results = []

        def work(rank: int) -> None:
            model = Weight()
            sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), local_rank=rank,
                               existing="resume", **options)
            optimizer = make(model.parameters())
            assert sharded.start_step() == first
            for gradient in gradients[first:last] * (ranks if rank == 0 else 0):
                model(gradient.to(DEVICE)).backward()
                optimizer.step()
                optimizer.zero_grad()
            if rank == 0:
                optimizer.last_result()
                results.append(sharded.read("weight"))
            sharded.close()

        run_ranks(ranks, work)
        return results[0]

    some(daemon, 1, 0, 3)
    some(daemon, 1, 3, 6)
    with daemon.client() as client:
        assert client.save("m").saved
    assert torch.equal(some(daemon, 1, 6, 9), whole)
    daemon.stop()
    other = start(ranks=3, flags=(f"--save-dir={saves}", "--restore=6"))
    assert torch.equal(some(other, 3, 6, 9), whole)


def test_moments_in_other_formats_train(daemon):
    for index, moments in enumerate(("BF16", "FP16", "FP8")):
        torch.manual_seed(25)
        pair = Pair(daemon, GPT(), name=f"m{index}", lr=0.01, optimizers=(
            functools.partial(torch.optim.SGD, momentum=0.9), functools.partial(pt.SGD, momentum=0.9, moments=moments)))
        for step in range(10):
            for model in pair.both():
                loss_of(model, batch_of(step)).backward()
            pair.torch_optimizer.step()
            pair.torch_optimizer.zero_grad()
            pair.optimizer.step()
            pair.optimizer.zero_grad()
        for name, parameter in pair.plain.named_parameters():
            assert_close(pair.sharded.read(name), parameter.detach(), rtol=0, atol=5e-2)
        pair.sharded.close()


@pytest.mark.parametrize("change", [
    lambda group: group.update(momentum=0.0), lambda group: group.update(nesterov=True, dampening=0.0)])
def test_what_a_group_was_made_with_does_not_change(daemon, change):
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        optimizer = pt.SGD(model.parameters(), momentum=0.9, dampening=0.5)
        model(torch.ones(6, 5, device=DEVICE)).backward()
        change(optimizer.param_groups[0])
        with pytest.raises(paramshard.FailedPreconditionError,
                           match="parameters, nesterov and whether momentum is 0 of groups cannot change after SGD"):
            optimizer.step()


@pytest.mark.parametrize("options", [{"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}])
def test_nesterov_wants_momentum_without_dampening_as_in_torch(daemon, options):
    model = Weight()
    with pytest.raises(ValueError):
        torch.optim.SGD(model.parameters(), **options)
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        with pytest.raises(paramshard.InvalidArgumentError, match="nesterov: want momentum > 0 and dampening 0, got"):
            pt.SGD(model.parameters(), **options)
    with daemon.client() as client:
        assert client.models() == []


def test_options_that_the_daemon_does_not_have_are_refused(daemon):
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        with pytest.raises(paramshard.UnimplementedError, match="SGD: maximize=True is not supported"):
            pt.SGD(model.parameters(), maximize=True)
        with pytest.raises(paramshard.InvalidArgumentError, match="Lion: want betas of two numbers, got 0.9"):
            pt.Lion(model.parameters(), betas=0.9)
        with pytest.raises(paramshard.InvalidArgumentError, match="want one of"):
            pt.Lion(model.parameters(), moments="FP9")
        with pytest.raises(paramshard.InvalidArgumentError, match='moments: want "FP32", .*got torch.bfloat16'):
            pt.Lion(model.parameters(), moments=torch.bfloat16)


def test_a_model_is_not_opened_by_another_optimizer_than_it_was_trained_by(daemon):
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        optimizer = pt.Lion(model.parameters())
        model(torch.ones(6, 5, device=DEVICE)).backward()
        optimizer.step()
        optimizer.last_result()
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), existing="resume"):
        with pytest.raises(paramshard.Error, match="want optimizer Lion, got SGD_MOMENTUM"):
            pt.SGD(model.parameters(), momentum=0.9)


def test_the_state_of_another_optimizer_is_refused(daemon):
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        optimizer = pt.SGD(model.parameters(), momentum=0.9)
        parameter = nn.Parameter(torch.zeros(2))
        plain = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        parameter.sum().backward()
        plain.step()
        with pytest.raises(paramshard.UnimplementedError, match="paramshard.torch.SGD, got moments of another"):
            optimizer.load_state_dict(plain.state_dict())
        state = optimizer.state_dict()
        state["param_groups"][0]["lr"] = 0.25
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_closure_is_called(daemon):
    model = Weight()
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        optimizer = pt.SGD(model.parameters(), lr=1.0)

        def closure() -> torch.Tensor:
            loss = model(torch.ones(6, 5, device=DEVICE))
            loss.backward()
            return loss

        before = sharded.read("weight")
        assert optimizer.step(closure) is not None
        optimizer.last_result()
        assert_close(sharded.read("weight"), before - 1.0)
