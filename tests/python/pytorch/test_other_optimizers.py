"""Optimizers that are not AdamW of this package are refused by name, and do not step without gradients."""

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, batch_of, loss_of


class Lion(torch.optim.Optimizer):
    """An optimizer as packages write them: parameters without gradients are skipped."""

    def __init__(self, params, lr: float = 1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class Bare:
    """One that does not derive from torch's."""

    def __init__(self, params):
        self.params = list(params)

    def step(self):
        for parameter in self.params:
            if parameter.grad is not None:
                parameter.data.sub_(parameter.grad)


OTHERS = {"SGD": lambda params: torch.optim.SGD(params, lr=0.1), "AdamW": torch.optim.AdamW,
          "Adafactor": torch.optim.Adafactor, "Lion": Lion}


def _shard(daemon, model: GPT) -> pt.ShardedModel:
    return pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_of_a_sharded_model_is_refused_when_it_is_made(daemon, name):
    model, other = GPT(), nn.Linear(2, 2)
    sharded = _shard(daemon, model)
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: embed.weight"):
        OTHERS[name](model.parameters())
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: embed.weight"):
        OTHERS[name]([*other.parameters(), *model.parameters()])
    optimizer = OTHERS[name](other.parameters())
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: head.weight"):
        optimizer.add_param_group({"params": [model.head.weight]})
    sharded.open()
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: embed.weight"):
        OTHERS[name](model.parameters())
    sharded.close()


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_that_was_made_before_is_refused_when_it_steps(daemon, name):
    model, other = GPT().to(DEVICE), nn.Linear(2, 2).to(DEVICE)
    before = OTHERS[name]([*other.parameters(), *model.parameters()])
    _shard(daemon, model)
    pt.AdamW(model.parameters())
    (loss_of(model, batch_of(0)) + other(torch.ones(2, device=DEVICE)).sum()).backward()
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: embed.weight"):
        before.step()


def test_an_optimizer_of_gathered_parameters_is_refused_when_it_steps(daemon):
    model = GPT()
    sharded = _shard(daemon, model)
    pt.AdamW(model.parameters())
    with sharded.unsharded():
        inside = Lion(model.parameters())
    loss_of(model, batch_of(0)).backward()
    with pytest.raises(paramshard.UnimplementedError, match="Lion: embed.weight"):
        inside.step()


def test_any_class_that_reads_a_gradient_is_told(daemon):
    model = GPT()
    _shard(daemon, model)
    optimizer = pt.AdamW(model.parameters())
    bare = Bare(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1.0)
    scaler.scale(loss_of(model, batch_of(0))).backward()
    with pytest.raises(paramshard.UnimplementedError, match="gradient of embed.weight"):
        bare.step()
    with pytest.raises(paramshard.UnimplementedError, match="gradient of embed.weight"):
        scaler.unscale_(optimizer)
    optimizer.step()


def test_optimizers_of_other_parameters_step_beside(daemon):
    model, other = GPT(), nn.Linear(2, 2).to(DEVICE)
    _shard(daemon, model)
    optimizer, beside = pt.AdamW(model.parameters()), torch.optim.SGD(other.parameters(), lr=0.5)
    before = other.bias.detach().clone()
    (loss_of(model, batch_of(0)) + other(torch.ones(2, device=DEVICE)).sum()).backward()
    optimizer.step()
    beside.step()
    assert torch.equal(other.bias, before - 0.5)
    assert optimizer.last_result().commit_number == 1
