"""Modules that compute their weights train as in torch; meta_init() refuses those whose parameters it cannot leave out."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, Stack


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def _doubled() -> nn.Module:
    linear = nn.Linear(32, 32)
    parametrize.register_parametrization(linear, "weight", Doubled())
    return linear


def _old(wrap) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return wrap(nn.Linear(32, 32))


KINDS = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(32, 32)),
    "old weight_norm": lambda: _old(nn.utils.weight_norm),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(32, 32)),
    "old spectral_norm": lambda: _old(nn.utils.spectral_norm),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(32, 32), orthogonal_map="cayley"),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(32, 32), "weight", amount=0.3),
    "own": _doubled,
}


def _square(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(torch.randn(5, 32, generator=torch.Generator().manual_seed(int(tokens[0, 0]))).to(DEVICE)).square().mean()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("units", [lambda model: list(model.blocks), lambda model: [model]], ids=["each", "one"])
def test_computed_weights_train(daemon, make, units):
    torch.manual_seed(0)
    model = Stack(make(), nn.Tanh(), nn.Linear(32, 32)).to(DEVICE)
    _square(model, torch.zeros(1, 1)).backward()  # old ones keep what they have computed, which is not to be copied
    model.zero_grad()
    if any(isinstance(value, torch.Tensor) and not value.is_leaf for value in vars(model.blocks[0]).values()):
        model.blocks[0].weight = model.blocks[0].weight.detach()
    pair = Pair(daemon, model, units=units)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_meta_init_they_are_loaded_or_refused(daemon, tmp_path, kind):
    """Each is loaded and computes as it was saved, or the message says how to make it."""
    torch.manual_seed(0)
    saved = Stack(KINDS[kind]())
    save_file({name: value.contiguous().clone() for name, value in saved.state_dict().items()},
              tmp_path / "model.safetensors")
    try:
        with pt.meta_init():
            model = Stack(KINDS[kind]())
        sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))
    except paramshard.Error as error:
        assert "without meta_init" in str(error)
        return
    sharded.load_pretrained(tmp_path)
    pt.AdamW(model.parameters())
    torch.testing.assert_close(_square(model, torch.zeros(1, 1)), _square(saved.to(DEVICE), torch.zeros(1, 1)))
    sharded.close()


@pytest.mark.parametrize("kind", KINDS)
def test_in_meta_init_without_values_they_are_refused_unless_they_have_rules(daemon, kind):
    try:
        with pt.meta_init():
            model = Stack(KINDS[kind]())
        sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))
        pt.AdamW(model.parameters())
    except paramshard.Error as error:
        assert "without meta_init" in str(error)
    else:
        assert kind == "own"
        assert sharded.read("blocks.0.parametrizations.weight.original").std() > 0.05
        sharded.close()
