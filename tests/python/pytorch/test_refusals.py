"""Modules that cannot be sharded are refused by name, and stay as they were."""

import warnings

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, assert_close


def _state_of(module: nn.Module) -> list:
    """Returns everything that shard() could have changed."""
    return [(name, type(each), {key: id(value) for key, value in vars(each).items()},
             {key: id(value) for kind in (each._parameters, each._buffers, each._modules)
              for key, value in kind.items()},
             [len(hooks) for key, hooks in vars(each).items() if key.endswith("_hooks")])
            for name, each in module.named_modules()]


class Subclass(nn.Parameter):
    pass


def _wrapped(kind: type) -> nn.Module:
    """Makes an object like kind(nn.Linear), without the devices or the process group that its constructor needs."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.module = nn.Linear(32, 32)
    return module


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(32, 32))


def _traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Linear(32, 32), torch.ones(1, 32))


def _with(change) -> nn.Module:
    linear = nn.Linear(32, 32)
    change(linear)
    return linear


def _setter(name, value):
    return lambda linear: setattr(linear, name, value(linear))


REFUSED = {
    "scripted": (_scripted, "part"),
    "traced": (_traced, "part"),
    "DataParallel": (lambda: _wrapped(nn.DataParallel), "part.*DataParallel"),
    "DistributedDataParallel": (lambda: _wrapped(nn.parallel.DistributedDataParallel), "part.*DistributedDataParallel"),
    "FSDP": (lambda: _wrapped(torch.distributed.fsdp.FullyShardedDataParallel), "part.*FSDP"),
    "a subclass": (lambda: _with(_setter("weight", lambda linear: Subclass(linear.weight.detach()))),
                   "part.weight is a Subclass"),
    "8 bits": (lambda: _with(_setter("weight", lambda linear: nn.Parameter(
        torch.zeros(32, 32, dtype=torch.int8), requires_grad=False))), "part.weight.*int8"),
    "double": (lambda: nn.Linear(32, 32, dtype=torch.float64), "part.weight.*float64"),
    "sparse": (lambda: _with(_setter("weight", lambda linear: nn.Parameter(linear.weight.detach().to_sparse()))),
               "part.weight.*layout"),
    "lazy": (lambda: nn.LazyLinear(32), "part.weight.*shape"),
    "max_norm": (lambda: nn.Embedding(4, 32, max_norm=1.0), "part.weight.*max_norm"),
    "one memory": (lambda: _with(_setter("other", lambda linear: nn.Parameter(linear.weight.data))),
                   "part.(other|weight) and part.(weight|other) share memory"),
    "a view of another": (lambda: _with(_setter("other", lambda linear: nn.Parameter(linear.weight.data[3:5, ::2]))),
                          "part.other and part.weight share memory"),
    "a buffer": (lambda: _with(lambda linear: linear.register_buffer("view", linear.weight.data[0])),
                 "part.view holds part.weight"),
    "an attribute": (lambda: _with(_setter("view", lambda linear: linear.weight.data.t())),
                     "part.view holds part.weight"),
    "a list": (lambda: _with(_setter("all", lambda linear: list(linear.parameters()))), "part.all holds part.weight"),
    "on meta": (lambda: _with(lambda linear: linear.register_buffer("b", torch.empty(2, device="meta"))), "part.b"),
}


class Parts(nn.Module):
    def __init__(self, part: nn.Module):
        super().__init__()
        self.norm = nn.BatchNorm1d(32)
        self.first = nn.Linear(128, 128)
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.norm(x))


@pytest.mark.parametrize("arguments", [{"name": "a/b"}, {"name": "-x"}, {"format": "FP8_TENSOR"}, {"gather_slots": 0},
                                       {"accumulate": 0}, {"accumulate": 1.0}, {"accumulate": True},
                                       {"seed": -1}, {"seed": 2**64}, {"seed": 1.0},
                                       {"format": [("*.weight", "FP32"), ("*", "FP7")]}])
def test_a_description_that_no_daemon_takes_is_refused_before_anything_changes(daemon, arguments):
    model = nn.Sequential(nn.Linear(4, 4))
    before = _state_of(model)
    sockets = {"socket_dir": str(daemon.socket_dir)}
    with pytest.raises(paramshard.InvalidArgumentError):
        pt.shard(model, units=[model], **({"name": "m"} | arguments), **sockets)
    assert _state_of(model) == before
    pt.AdamW(pt.shard(model, name="m", units=[model], **sockets).module.parameters())


@pytest.mark.parametrize("make, words", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("compute", ["dense", "fp8"])
def test_a_part_that_cannot_be_sharded_is_named_before_anything_changes(daemon, make, words, compute):
    module = Parts(make())
    before = _state_of(module)
    with pytest.raises((paramshard.UnimplementedError, paramshard.InvalidArgumentError), match=f"shard: .*{words}"):
        pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir), compute=compute,
                 format="FP8_BLOCK_128X128")
    assert _state_of(module) == before


@pytest.mark.parametrize("options, error", [
    ({"compute": "fp8", "format": "BF16"}, paramshard.InvalidArgumentError),
    ({"units": lambda module: [module.first]}, paramshard.InvalidArgumentError),
    ({"units": lambda module: [module, module]}, paramshard.InvalidArgumentError),
    ({"units": lambda module: [module, nn.Linear(2, 2)]}, paramshard.InvalidArgumentError),
    ({"local_rank": 5}, paramshard.InvalidArgumentError)],
    ids=["no weights in 8 bits", "a parameter without a unit", "twice", "a stranger", "no such rank"])
def test_a_refusal_leaves_the_module_as_it_was(daemon, options, error):
    module = Parts(nn.Linear(32, 32))
    before = _state_of(module)
    units = options.pop("units", lambda module: [module])(module)
    with pytest.raises(error):
        pt.shard(module, name="m", units=units, socket_dir=str(daemon.socket_dir), **options)
    assert _state_of(module) == before
    torch.manual_seed(0)
    with pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir)) as sharded:
        pt.AdamW(module.parameters())
        module(torch.randn(4, 32, device=DEVICE)).sum().backward()
        sharded.module.zero_grad()


def test_parameters_beside_each_other_in_one_storage_are_no_ties(daemon):
    torch.manual_seed(0)
    module = nn.Linear(32, 32)
    flat = torch.randn(32 * 33)
    module.weight = nn.Parameter(flat[:32 * 32].view(32, 32))
    module.bias = nn.Parameter(flat[32 * 32:])
    chunks = nn.ParameterList(nn.Parameter(each) for each in torch.randn(32, 6).chunk(3, 1))
    module.chunks = chunks
    values = [each.detach().clone() for each in chunks]
    with pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.open()
        for index, value in enumerate(values):
            assert_close(sharded.read(f"chunks.{index}"), value, rtol=0, atol=0)


# --- Units ---


def test_one_module_in_place_of_a_list_is_named(daemon):
    module = nn.Linear(4, 4)
    with pytest.raises(paramshard.InvalidArgumentError, match="Linear"):
        pt.shard(module, name="m", units=module, socket_dir=str(daemon.socket_dir))
    assert all(type(each) is nn.Parameter for each in module.parameters())


def test_a_unit_without_parameters_is_passed_over(daemon):
    torch.manual_seed(1)
    pair = Pair(daemon, nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)),
                units=lambda model: [*model, model])
    pair.train(3, loss=lambda model, tokens: model(torch.ones(4, 32, device=DEVICE)).square().mean())
    pair.check()
    with pytest.raises(paramshard.InvalidArgumentError, match="no parameters"):
        pt.shard(nn.Tanh(), name="none", units=[], socket_dir=str(daemon.socket_dir))


def test_a_last_unit_without_parameters_casts_outputs(daemon):
    module = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    with pt.shard(module, name="m", units=[*module, module], socket_dir=str(daemon.socket_dir),
                  param_dtype=torch.bfloat16, output_dtype=torch.float32) as sharded:
        sharded.open()
        assert module(torch.ones(1, 32, device=DEVICE)).dtype == torch.float32


# --- What changes afterwards ---


@pytest.mark.parametrize("convert", [lambda module: module.to(torch.bfloat16), lambda module: module.double(),
                                     lambda module: module.to("meta"), lambda module: module.to_empty(device="meta"),
                                     lambda module: module.share_memory()],
                         ids=["bfloat16", "double", "meta", "to_empty", "share_memory"])
def test_a_conversion_that_is_refused_converts_nothing(daemon, convert):
    module = nn.Sequential(nn.BatchNorm1d(32, affine=False), nn.Linear(32, 32))
    sharded = pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir))
    before = _state_of(module)
    with pytest.raises(paramshard.Error, match="1.weight"):
        convert(module)
    assert _state_of(module) == before
    sharded.close()
