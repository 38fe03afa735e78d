"""Muon beside torch.optim.Muon: steps, groups, stacks, moments, restarts, refusals."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import signal
import threading
from typing import Any

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, assert_close, batch_of, loss_of
from test_ranks import run_ranks

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# Sums of BF16 products have another order in torch: an element of an orthogonal matrix rounds another way now and then.
UPDATE_TOLERANCE = 0.04


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Returns the matrices of the blocks, and the rest."""
    named = list(model.named_parameters())
    is_muon = [name.startswith("layers.") and each.dim() == 2 for name, each in named]
    return ([each for (_, each), muon in zip(named, is_muon, strict=True) if muon],
            [each for (_, each), muon in zip(named, is_muon, strict=True) if not muon])


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices, others = _split(model)
    return [{"params": matrices}, {"params": others, "use_muon": False, "lr": 1e-3, "weight_decay": 0.01}]


OPTIONS = {
    "defaults": {},
    "plain": {"nesterov": False, "weight_decay": 0.0},
    "moonlight": {"adjust_lr_fn": "match_rms_adamw", "lr": 2e-3},
    "steps": {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "momentum": 0.8, "eps": 1e-6},
}
if TORCH >= (2, 15):
    OPTIONS["spectral"] = {"adjust_lr_fn": "spectral_unclamped"}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_steps_as_torch_does(daemon, options):
    options = {"lr": 0.02} | options
    torch.manual_seed(30)
    plain = GPT().to(DEVICE)
    module = copy.deepcopy(plain)
    matrices, others = _split(plain)
    torch_optimizers = [torch.optim.Muon(matrices, **options), torch.optim.AdamW(others, lr=1e-3, weight_decay=0.01)]
    with pt.shard(module, name="m", units=module.units(), socket_dir=str(daemon.socket_dir)) as sharded:
        optimizer = pt.Muon(_groups(module), max_grad_norm=0.5, **options)
        start = {name: each.detach().clone() for name, each in plain.named_parameters()}
        steps = 50
        for step in range(steps):
            for model in (plain, module):
                loss_of(model, batch_of(step)).backward()
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            for each in torch_optimizers:
                each.step()
                each.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                assert_close(optimizer.last_norm(), norm.item(), rtol=1e-5, atol=1e-6)
                _assert_near(sharded, plain, start, UPDATE_TOLERANCE)
        # Weights part as steps magnify what was rounded another way.
        _assert_near(sharded, plain, start, 0.1)


def _assert_near(sharded: pt.ShardedModel, plain: nn.Module, start: dict[str, torch.Tensor], tolerance: float) -> None:
    """Compares the ways that the weights went, relative to their lengths."""
    for name, parameter in plain.named_parameters():
        way = parameter.detach().cpu() - start[name].cpu()
        difference = sharded.read(name) - parameter.detach().cpu()
        assert difference.norm() <= tolerance * way.norm() + 1e-6, (name, difference.norm() / way.norm())


class Weights(nn.Module):
    """Its gradients are what a step gives to it."""

    def __init__(self, *shapes: tuple[int, ...]):
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).reshape(shape)) for shape in shapes)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((weight * gradient.to(weight.device)).sum()
                   for weight, gradient in zip(self.weights, gradients, strict=True))


def _gradients(step: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Multiples of 2^-6, whose sums over a few ranks are exact."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(-128, 129, shape, generator=generator) / 64 for shape in shapes]


def _train(daemon, shapes, make, steps: int, ranks: int = 1, name: str = "m", first: int = 0,
           **options: Any) -> list[torch.Tensor]:
    results: list[list[torch.Tensor]] = []

    def work(rank: int) -> None:
        model = Weights(*shapes)
        sharded = pt.shard(model, name=name, units=[model], socket_dir=str(daemon.socket_dir), local_rank=rank,
                           **options)
        optimizer = make(list(model.weights))
        for step in range(first, first + steps):
            factor = ranks if rank == 0 else 0
            model([each * factor for each in _gradients(step, *shapes)]).backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            optimizer.last_result()
            results.append([sharded.read(f"weights.{i}") for i in range(len(shapes))])
        sharded.close()

    run_ranks(ranks, work)
    return results[0]


def test_a_stack_is_its_matrices(daemon):
    shapes = [(4, 24, 40)]
    stack, = _train(daemon, shapes, lambda params: pt.Muon(params, lr=0.1), 3, name="stack")
    model = Weights(*[(24, 40)] * 4)
    with pt.shard(model, name="four", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        optimizer = pt.Muon(model.parameters(), lr=0.1)
        for step in range(3):
            model(list(_gradients(step, *shapes)[0])).backward()
            optimizer.step()
            optimizer.zero_grad()
        # They start elsewhere, and a decay is a factor.
        kept = (1 - 0.1 * 0.1) ** 3
        start = Weights((24, 40)).weights[0].detach()
        stack_start = Weights(*shapes).weights[0].detach()
        for i in range(4):
            assert_close(stack[i] - kept * stack_start[i], sharded.read(f"weights.{i}") - kept * start, rtol=0,
                         atol=1e-5)


def test_split_rows_and_transposed_matrices_step_as_the_matrices_do(daemon):
    whole = _train(daemon, [(24, 40), (12, 40), (12, 40)], lambda params: pt.Muon(params, lr=0.1, weight_decay=0.0), 1,
                   name="three")
    starts = [each.detach() for each in Weights((24, 40), (12, 40), (12, 40)).weights]
    ways = [after - before for after, before in zip(whole, starts, strict=True)]
    gradients = _gradients(0, (24, 40), (12, 40), (12, 40))
    for transposed in (False, True):
        gradient = torch.cat(gradients)
        shape = (48, 40)
        if transposed:
            gradient, shape = gradient.T.contiguous(), (40, 48)
        model = Weights(shape)
        start = model.weights[0].detach().clone()
        with pt.shard(model, name=f"one{transposed}", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
            optimizer = pt.Muon([{"params": list(model.parameters()), "split_rows": (24, 12, 12),
                                  "transposed": transposed}], lr=0.1, weight_decay=0.0)
            model([gradient]).backward()
            optimizer.step()
            optimizer.last_result()
            way = sharded.read("weights.0") - start.cpu()
        assert_close(way.T if transposed else way, torch.cat(ways), rtol=0, atol=1e-5)


MADE = {
    "nesterov": lambda params: pt.Muon(params, lr=0.1),
    "plain": lambda params: pt.Muon(params, lr=0.1, nesterov=False, adjust_lr_fn="match_rms_adamw"),
    "bf16": lambda params: pt.Muon(params, lr=0.1, moments="BF16"),
}
if DEVICE == "cpu":  # GPUs keep momentum as FP32 or BF16
    MADE["fp8"] = lambda params: pt.Muon(params, lr=0.1, moments="FP8")
SHAPES = [(40, 24), (24, 130), (3, 16, 20)]


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_every_world_makes_the_same_bytes(start, make):
    """Rank 0 has the sum of all gradients, so that the mean is the same in every world."""
    weights = [_train(start(ranks=ranks), SHAPES, make, 4, ranks, f"m{ranks}") for ranks in (1, 2, 3, 5)]
    for each in weights[1:]:
        for one, other in zip(each, weights[0], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_training_goes_on_in_the_bytes_of_one_that_never_ended(start, tmp_path, make):
    """The trainer ends, and a checkpoint goes into a world of three."""
    saves = tmp_path / "saves"
    saves.mkdir()
    whole = _train(start(), SHAPES, make, 9)
    daemon = start(flags=(f"--save-dir={saves}",))
    _train(daemon, SHAPES, make, 3, existing="resume")
    _train(daemon, SHAPES, make, 3, first=3, existing="resume")
    with daemon.client() as client:
        assert client.save("m").saved
    for one, other in zip(_train(daemon, SHAPES, make, 3, first=6, existing="resume"), whole, strict=True):
        assert torch.equal(one, other)
    daemon.stop()
    restored = start(ranks=3, flags=(f"--save-dir={saves}", "--restore=6"))
    for one, other in zip(_train(restored, SHAPES, make, 3, 3, first=6, existing="resume"), whole, strict=True):
        assert torch.equal(one, other)


def test_a_server_that_is_killed_again_and_again_leaves_the_same_bytes(start):
    """Its keeper starts it anew, which finishes the step that was cut off."""
    shapes, steps, seed = [(192, 320), (256, 128), (2, 96, 64)], 12, 5
    whole = _train(start(), shapes, MADE["nesterov"], steps)
    daemon = start(flags=())
    generator = random.Random(seed)
    for attempt in range(steps + 1):
        model = Weights(*shapes)
        sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), existing="resume")
        killer = None
        try:
            optimizer = MADE["nesterov"](list(model.weights))
            if attempt < steps:
                killer = threading.Timer(generator.uniform(0, 0.1), os.kill,
                                         (sharded.daemon_info().pid, signal.SIGKILL))
                killer.start()
            for step in range(sharded.start_step(), steps):
                model(_gradients(step, *shapes)).backward()
                optimizer.step()
                optimizer.zero_grad()
                optimizer.last_result()
            for i, weight in enumerate(whole):
                assert torch.equal(sharded.read(f"weights.{i}"), weight), seed
            if attempt == steps:
                return
        except paramshard.Error:
            assert attempt < steps
        finally:
            if killer is not None:
                killer.join()
            with contextlib.suppress(paramshard.Error):
                sharded.close()


def test_groups_are_what_the_daemon_has(daemon):
    model = GPT()
    with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir)) as sharded:
        optimizer = pt.Muon(_groups(model), lr=0.02)
        spec = sharded.model.spec
        assert [group.optimizer for group in spec.groups] == ["muon_nesterov", "adamw"]
        assert spec.groups[0].muon.rate == "original" and len(spec.groups[0].muon.steps) == 5
        assert optimizer.param_groups[1]["eps"] == 1e-8
        assert optimizer.param_groups[0]["eps"] == 1e-7


def test_schedulers_change_rates_and_momentum(daemon):
    model = Weights((24, 40))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        optimizer = pt.Muon(model.parameters(), lr=0.1, weight_decay=0.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
        model(_gradients(0, (24, 40))).backward()
        optimizer.step()
        optimizer.last_result()
        scheduler.step()
        optimizer.param_groups[0]["momentum"] = 0.5
        before = sharded.read("weights.0")
        optimizer.zero_grad()
        model(_gradients(1, (24, 40))).backward()
        optimizer.step()
        optimizer.last_result()
        assert torch.equal(sharded.read("weights.0"), before)


def test_a_cycle_of_the_momentum_is_the_momentums(daemon):
    """OneCycleLR would take beta1 in its place, if betas were among the optimizer's defaults."""
    model = GPT()
    with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir)):
        optimizer = pt.Muon(_groups(model), lr=0.02, betas=(0.8, 0.9))
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=10, base_momentum=0.6, max_momentum=0.7)
        assert optimizer.param_groups[0]["momentum"] == 0.7
        assert optimizer.param_groups[1]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize("change", [
    lambda group: group.update(nesterov=False), lambda group: group.update(ns_steps=4),
    lambda group: group.update(adjust_lr_fn="match_rms_adamw"), lambda group: group.update(use_muon=False)])
def test_what_a_group_was_made_with_does_not_change(daemon, change):
    model = Weights((6, 5))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        optimizer = pt.Muon(model.parameters())
        model(_gradients(0, (6, 5))).backward()
        change(optimizer.param_groups[0])
        with pytest.raises(paramshard.FailedPreconditionError, match="of groups cannot change after Muon is made"):
            optimizer.step()


def test_a_parameter_that_is_no_matrix_is_refused_by_name(daemon):
    model = GPT()
    with pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir)):
        with pytest.raises(paramshard.InvalidArgumentError,
                           match=r"Muon: .*norm.*: want a matrix .*put it into a group with use_muon=False"):
            pt.Muon(model.parameters())
    with daemon.client() as client:
        assert client.models() == []


def test_stacked_biases_among_matrices_are_named(daemon):
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 6, 5))
    model.experts_bias = nn.Parameter(torch.zeros(3, 6))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        with pytest.warns(UserWarning, match="Muon: experts_bias: .*group with use_muon=False") as caught:
            pt.Muon(model.parameters())
        assert [each.filename for each in caught] == [__file__]


def test_overlapping_groups_are_refused(daemon):
    model = Weights((6, 5))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        parameters = list(model.parameters())
        with pytest.raises(ValueError, match="more than one parameter group"):
            pt.Muon([{"params": parameters}, {"params": parameters, "use_muon": False}])


@pytest.mark.parametrize("options, message", [
    ({"adjust_lr_fn": "mine"}, "rate: want one of original, match_rms_adamw, spectral_unclamped, got mine"),
    ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients: want three numbers"),
    ({"ns_coefficients": [(1.0, 2.0, 3.0)] * 2}, "ns_steps: want 1 to 99, as many as ns_coefficients has, got 5 and 2"),
    ({"ns_steps": 0}, "ns_steps: want 1 to 99"),
    ({"ns_steps": 100}, "ns_steps: want 1 to 99")])
def test_wrong_options_are_refused(daemon, options, message):
    model = Weights((6, 5))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        with pytest.raises(paramshard.InvalidArgumentError, match=message):
            pt.Muon(model.parameters(), **options)


@pytest.mark.parametrize("split_rows, message", [((3, 2), r"weights.0: .*add up to 6 outputs, got \[3, 2\]"),
                                                 (6, "split_rows: want a tuple of numbers of outputs, got 6")])
def test_wrong_split_rows_are_refused(daemon, split_rows, message):
    model = Weights((6, 5))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)):
        with pytest.raises(paramshard.InvalidArgumentError, match=message):
            pt.Muon([{"params": list(model.parameters()), "split_rows": split_rows}])


def test_matrices_have_owners(start):
    daemon = start(ranks=2)

    def work(rank: int) -> None:
        model = Weights((512, 512), (512, 512))
        with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), local_rank=rank) as sharded:
            pt.Muon(model.parameters())
            assert [each.placement for each in sharded.model.spec.units[0].parameters] == ["owned", "owned"]

    run_ranks(2, work)
