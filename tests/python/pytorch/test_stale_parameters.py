"""Parameters from before shard() are refused by name when they are used: nothing trains them any more."""

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE

TOLD = pytest.raises(paramshard.FailedPreconditionError, match="0.weight.*before shard")


class Tied(nn.Module):
    """Its decoder is outside of the module that is sharded, and has a weight of it."""

    def __init__(self):
        super().__init__()
        self.body = _module()
        self.decoder = nn.Linear(8, 8, bias=False)
        self.decoder.weight = self.body[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.body(x))


def _module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh())


def _shard(daemon, module: nn.Module, name: str = "m") -> tuple[pt.ShardedModel, pt.AdamW]:
    sharded = pt.shard(module, name=name, units=[module], socket_dir=str(daemon.socket_dir))
    return sharded, pt.AdamW(module.parameters())


def _loss(module: nn.Module) -> torch.Tensor:
    return module(torch.ones(2, 8, device=DEVICE)).square().mean()


VIEWS = {
    "a view": lambda weight: weight.t(),
    "a graph": lambda weight: weight.square(),
    "an alias": lambda weight: weight.view_as(weight),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("is_with_model", [False, True])
def test_gradients_of_what_was_computed_before_are_told(daemon, make, is_with_model):
    module = _module().to(DEVICE)
    before = make(module[0].weight)
    sharded, optimizer = _shard(daemon, module)
    with TOLD:
        (before.sum() + (_loss(module) if is_with_model else 0)).backward()
    _loss(module).backward()
    optimizer.step()
    sharded.close()


def test_a_penalty_on_parameters_from_before_is_told(daemon):
    module = _module()
    held = list(module.parameters())
    sharded, _ = _shard(daemon, module)
    with TOLD:
        sum(each.square().sum() for each in held)
    sharded.close()


@pytest.mark.parametrize("use", [lambda model: _loss(model), lambda model: model.state_dict(),
                                 lambda model: model.load_state_dict({"decoder.weight": torch.ones(8, 8)}, strict=False),
                                 lambda model: model.requires_grad_(False)],
                         ids=["forward", "state_dict", "load_state_dict", "freezes"])
def test_a_tie_to_a_module_outside_is_told(daemon, use):
    model = Tied()
    sharded, _ = _shard(daemon, model.body)
    with pytest.raises((paramshard.Error, RuntimeError), match="0.weight.*before shard"):  # load_state_dict rewraps it
        use(model)
    sharded.close()


def test_a_tie_is_not_sharded_twice(daemon):
    model = Tied()
    sharded, _ = _shard(daemon, model.body)
    with pytest.raises(paramshard.InvalidArgumentError, match="weight"):
        _shard(daemon, model.decoder, "n")
    sharded.close()
