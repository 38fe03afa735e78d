"""Transforms of torch.func and forward-mode AD give the losses and the gradients of plain torch."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, Stack


def _x() -> torch.Tensor:
    return torch.randn(3, 32, generator=torch.Generator().manual_seed(3)).to(DEVICE)


def _jvp(model: nn.Module) -> torch.Tensor:
    out, tangent = torch.func.jvp(lambda x: model(x), (_x(),), (torch.ones_like(_x()),))
    return out.square().mean() + tangent.square().mean()


def _jvp_whose_tangent_is_a_target(model: nn.Module) -> torch.Tensor:
    out, tangent = torch.func.jvp(lambda x: model(x), (_x(),), (torch.ones_like(_x()),))
    return (out - tangent.detach()).square().mean()


def _jacrev(model: nn.Module) -> torch.Tensor:
    return torch.func.jacrev(lambda x: model(x).sum(0))(_x()).square().mean()


def _jacfwd(model: nn.Module) -> torch.Tensor:
    return torch.func.jacfwd(lambda x: model(x).sum(0))(_x()).square().mean()


def _vmap(model: nn.Module) -> torch.Tensor:
    return torch.vmap(model)(_x()).square().mean()


def _vmap_of_grad(model: nn.Module) -> torch.Tensor:
    return torch.vmap(torch.func.grad(lambda point: model(point).sum()))(_x()).square().mean()


def _vjp(model: nn.Module) -> torch.Tensor:
    out, pull = torch.func.vjp(lambda x: model(x), _x())
    return out.square().mean() + pull(torch.ones_like(out))[0].square().mean()


def _hessian(model: nn.Module) -> torch.Tensor:
    return torch.func.hessian(lambda x: model(x).square().sum())(_x()[0]).square().mean()


def _dual(model: nn.Module) -> torch.Tensor:
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(_x().requires_grad_(), torch.ones_like(_x())))
        primal, tangent = forward_ad.unpack_dual(out)
        return primal.square().mean() + tangent.square().mean()


def _gradient_of_gradient(model: nn.Module) -> torch.Tensor:
    x = _x().requires_grad_()
    gradient, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return gradient.square().mean()


def _functional_jacobian(model: nn.Module) -> torch.Tensor:
    return torch.autograd.functional.jacobian(lambda x: model(x).sum(0), _x(), create_graph=True).square().mean()


LOSSES = [_jvp, _jvp_whose_tangent_is_a_target, _jacrev, _jacfwd, _vmap, _vmap_of_grad, _vjp, _hessian, _dual,
          _gradient_of_gradient, _functional_jacobian]
losses = pytest.mark.parametrize("loss", LOSSES, ids=[each.__name__[1:] for each in LOSSES])


def _pair(daemon, **options) -> Pair:
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    return Pair(daemon, Stack(block(), block()), **options)


@losses
@pytest.mark.parametrize("kept", [False, True], ids=["gathered again", "kept"])
def test_a_transform_trains_as_in_torch(daemon, loss, kept):
    pair = _pair(daemon, reshard_after_forward=not kept)
    pair.train(3, loss=lambda model, tokens: loss(model))
    pair.check(tolerance=1e-5)


def test_backwards_of_several_transforms_come_in_any_order(daemon):
    pair = _pair(daemon)
    for step in range(3):
        for model in pair.both():
            values = [_jvp(model), model(_x()).square().mean(), _vmap(model), _jacrev(model)]
            for value in reversed(values):
                value.backward()
        pair.step()
    pair.check(tolerance=1e-5)


def test_a_transform_without_gradients_leaves_nothing(daemon):
    pair = _pair(daemon)
    with torch.no_grad():
        for model in pair.both():
            model.out = torch.vmap(model)(_x())
    torch.testing.assert_close(pair.module.out, pair.plain.out)
    assert not any(unit.is_unsharded for unit in pair.sharded._units)
    pair.train(2, loss=lambda model, tokens: _vmap(model))
    pair.check(tolerance=1e-5)


def test_a_backward_through_a_transform_of_the_step_before_is_refused(daemon):
    pair = _pair(daemon)
    loss = _jvp(pair.module)
    loss.backward(retain_graph=True)
    pair.optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_transforms_of_parameters_are_refused(daemon):
    pair = _pair(daemon)
    parameters = dict(pair.module.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(pair.module, parameters, (_x(),)).square().mean()

    with pytest.raises(paramshard.Error, match="blocks.0.0.(weight|bias)"):
        torch.func.grad(loss)(parameters)
    with pytest.raises(paramshard.Error, match="blocks.0.0.(weight|bias)"):
        with forward_ad.dual_level():
            forward_ad.make_dual(parameters["blocks.0.0.weight"], torch.ones(32, 32))
            loss(parameters)
    pair.train(1, loss=lambda model, tokens: _vmap(model))


def test_transforms_of_products_in_8_bits_are_refused(daemon):
    module = Stack(nn.Linear(128, 128))
    with pt.shard(module, name="m", units=module.units(), socket_dir=str(daemon.socket_dir), compute="fp8",
                  format="FP8_BLOCK_128X128") as sharded:
        sharded.open()
        with pytest.raises(paramshard.UnimplementedError, match="blocks.0.*compute=.fp8"):
            torch.vmap(module)(torch.ones(2, 128))
