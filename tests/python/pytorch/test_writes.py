"""Writes to parameters are kept or refused by name; after a refusal the parameter is as the daemon has it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, parameters_to_vector, vector_to_parameters

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, batch_of
from paramshard.torch.gathered_parameter import GatheredParameter, fingerprint


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


def _replace(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(torch.zeros(32, 32, device=DEVICE))


def _through_numpy(linear: nn.Linear) -> None:
    linear.weight.detach().numpy()[:] = 0


def _in_place(write):
    def apply(linear: nn.Linear) -> None:
        with torch.no_grad():
            write(linear.weight)
    return apply


WRITES = {
    "clamp_": _in_place(lambda weight: weight.clamp_(-0.05, 0.05)),
    "detach": _in_place(lambda weight: weight.detach().mul_(0.5)),
    "a view": _in_place(lambda weight: weight[3].zero_()),
    "foreach": _in_place(lambda weight: torch._foreach_mul_([weight], 0.5)),
    "init": lambda linear: nn.init.ones_(linear.weight),
    "data.clamp_": lambda linear: linear.weight.data.clamp_(-0.05, 0.05),
    "data.copy_": lambda linear: linear.weight.data.copy_(linear.weight.data * 2),
    "data of rows": lambda linear: linear.weight.data[1:3].zero_(),
    "data in another order": lambda linear: linear.weight.data.copy_(linear.weight.data.flip(0)),
    "data +=": lambda linear: setattr(linear.weight, "data", linear.weight.data.add_(1)),
    "data =": lambda linear: setattr(linear.weight, "data", linear.weight.data.clamp(-0.05, 0.05)),
    "data = of its descriptor": lambda linear: torch.Tensor.data.__set__(linear.weight, torch.zeros(32, 32)),
    "set_": _in_place(lambda weight: weight.set_(torch.zeros(32, 32))),
    "vector_to_parameters": lambda linear: vector_to_parameters(torch.zeros(32 * 32), [linear.weight]),
    "another parameter": _replace,
    "removed": lambda linear: setattr(linear, "weight", None),
    "swap_tensors": lambda linear: torch.utils.swap_tensors(linear.weight, nn.Parameter(torch.zeros(32, 32))),
    "numpy": _through_numpy,
}
ON_HOST = {"numpy", "data = of its descriptor", "set_", "vector_to_parameters", "swap_tensors"}


def _ways(*without: str):
    return pytest.mark.parametrize("write", [
        pytest.param(write, id=name, marks=pytest.mark.skipif(DEVICE != "cpu" and name in ON_HOST, reason="on the host"))
        for name, write in WRITES.items() if name not in without])


ways, in_forwards = _ways(), _ways("removed")


class Writes(nn.Linear):
    """Writes its weight in its forward."""

    write = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.write is not None:
            self.write(self)
        return super().forward(x)


def _inputs(tokens: torch.Tensor) -> torch.Tensor:
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(int(tokens[0, 0]))).to(DEVICE)


def _square(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(_inputs(tokens)).square().mean()


def _pair(daemon, **options) -> Pair:
    torch.manual_seed(0)
    pair = Pair(daemon, nn.Sequential(Writes(32, 32), nn.Tanh(), Writes(32, 32)),
                units=lambda model: [model[0], model[2]], **options)
    pair.train(1, loss=_square)
    return pair


def _train_as_torch(pair: Pair) -> None:
    pair.optimizer.zero_grad()
    pair.train(2, loss=_square)
    pair.check(tolerance=1e-5)


def _told(name: str):
    return pytest.raises(paramshard.FailedPreconditionError, match=f"{name}[ :].*lost")


@ways
def test_a_write_inside_of_unsharded_is_told(daemon, write):
    pair = _pair(daemon)
    with _told("2.weight"):
        with pair.sharded.unsharded():
            write(pair.module[2])
    assert all(isinstance(each, pt.Placeholder) for each in pair.module.parameters())
    _train_as_torch(pair)


@in_forwards
def test_a_write_in_the_forward_is_told(daemon, write):
    pair = _pair(daemon)
    pair.module[2].write = write
    with _told("2.weight"):
        _square(pair.module, batch_of(0)).backward()
    pair.module[2].write = None
    _train_as_torch(pair)


@in_forwards
def test_a_write_in_the_forward_of_kept_weights_is_told(daemon, write):
    pair = _pair(daemon, reshard_after_forward=False)
    pair.module[2].write = write
    with _told("2.weight"):
        _square(pair.module, batch_of(0)).backward()
    pair.module[2].write = None
    _train_as_torch(pair)


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_write_through_data_is_told_in_every_step(daemon, steps):
    pair = _pair(daemon)
    pair.train(steps, loss=_square)
    pair.module[0].write = WRITES["data.clamp_"]
    with _told("0.weight"):
        pair.module(_inputs(batch_of(0)))
    pair.module[0].write = None
    _train_as_torch(pair)


def test_writes_in_hooks_are_told(daemon):
    pair = _pair(daemon)
    linear = pair.module[2]

    def write(module: nn.Module, *_: object) -> None:
        module.weight.data.mul_(0.5)

    for register in (linear.register_forward_pre_hook, linear.register_full_backward_pre_hook):
        hook = register(write)
        with pytest.raises(paramshard.FailedPreconditionError, match="2.weight"):
            _square(pair.module, batch_of(0)).backward()
        hook.remove()
        _train_as_torch(pair)


def test_a_parametrization_that_stays_is_told_and_read_by_name(daemon):
    pair = _pair(daemon)
    with _told("2.weight"):
        with pair.sharded.unsharded():
            parametrize.register_parametrization(pair.module[2], "weight", Half())
    with pytest.raises(paramshard.FailedPreconditionError, match="2.weight"):
        pair.module(_inputs(batch_of(0)))


def test_a_parametrization_that_goes_again_is_no_write(daemon):
    def halved(linear: nn.Linear) -> None:
        parametrize.register_parametrization(linear, "weight", Half())
        linear.weight.sum()
        parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)

    pair = _pair(daemon)
    with pair.sharded.unsharded():
        halved(pair.module[2])
    pair.module[2].write = halved
    _train_as_torch(pair)


def test_reading_data_is_no_write(daemon):
    def reads(linear: nn.Linear) -> None:
        linear.weight.data.norm()
        linear.weight.data = linear.weight.data
        with torch.no_grad():
            linear.weight.set_(linear.weight)

    pair = _pair(daemon)
    with pair.sharded.unsharded():
        reads(pair.module[0])
    pair.module[0].write = reads
    _train_as_torch(pair)


def test_values_that_are_set_outside_of_forwards_are_kept(daemon):
    pair = _pair(daemon)
    values = torch.linspace(-1, 1, 32 * 32 * 2 + 64)
    for model in pair.both():
        vector_to_parameters(values.to(DEVICE), model.parameters())
    pair.train(1, loss=_square)
    pair.check(tolerance=1e-5)
    with pair.sharded.unsharded() as module:
        assert parameters_to_vector(module.parameters()).numel() == values.numel()


@pytest.mark.parametrize("write", ["clamp_", "detach", "foreach", "init", "data.clamp_", "data of rows", "set_"])
def test_writes_of_a_part_outside_of_forwards_are_told(daemon, write):
    pair = _pair(daemon)
    with pytest.raises(paramshard.FailedPreconditionError, match="2.weight"):
        WRITES[write](pair.module[2])
    _train_as_torch(pair)


def test_a_swapped_parameter_is_named(daemon):
    pair = _pair(daemon)
    torch.utils.swap_tensors(pair.module[2].weight, nn.Parameter(torch.zeros(32, 32)))
    with pytest.raises(paramshard.FailedPreconditionError, match="2.weight was replaced"):
        pair.module(_inputs(batch_of(0)))


def test_values_are_loaded_by_swapping(daemon):
    pair = _pair(daemon)
    values = {name: torch.full_like(value, 0.01) for name, value in pair.plain.state_dict().items()}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        pair.module.load_state_dict(values)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    pair.plain.load_state_dict(values)
    _train_as_torch(pair)


def test_a_compiled_write_is_told(daemon):
    pair = _pair(daemon)
    pair.module[2].write = WRITES["data.clamp_"]
    pair.module[2].compile(fullgraph=True, backend="aot_eager")
    with _told("2.weight"):
        pair.module(_inputs(batch_of(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (64, 96), (128, 4096)], ids=str)
def test_fingerprints_tell_values_and_their_order(shape, dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    same = fingerprint(values.clone())
    assert all(torch.equal(one, other) for one, other in zip(fingerprint(values), same))
    changes = [lambda matrix: matrix.flip(0), lambda matrix: matrix.flip(1), lambda matrix: matrix.roll(1)]
    if values.numel() > 1:
        values.view(-1)[-1] += 1
        assert not all(torch.equal(one, other) for one, other in zip(fingerprint(values), same))
    if values.dim() == 2:
        for change in changes:
            other = fingerprint(change(values).contiguous())
            assert not all(torch.equal(one, two) for one, two in zip(fingerprint(values), other))


@pytest.mark.skipif(DEVICE != "cpu", reason="on the host")
def test_arrays_of_gathered_parameters_stay(daemon):
    pair = _pair(daemon)
    with pair.sharded.unsharded():
        arrays = [each.detach().numpy() for each in pair.module.parameters()]
        copies = [each.copy() for each in arrays]
    _train_as_torch(pair)
    assert all((one == other).all() for one, other in zip(arrays, copies))


def test_copies_of_gathered_parameters_are_plain_ones(daemon, tmp_path):
    import copy
    pair = _pair(daemon)
    with pair.sharded.unsharded():
        weight = pair.module[0].weight
        assert isinstance(weight, GatheredParameter) and isinstance(weight, nn.Parameter)
        torch.save(weight, tmp_path / "weight")
        copies = [copy.deepcopy(weight), torch.load(tmp_path / "weight")]
        for each in copies:
            assert type(each) is nn.Parameter and torch.equal(each, weight)
    for each in copies:
        each.data.mul_(2)


# --- Dictionaries of state_dict() ---


INTO_STATE_DICTS = {
    "copy_": lambda value: value.copy_(torch.ones(32, 32)),
    "a view": lambda value: value[3].zero_(),
    "foreach": lambda value: torch._foreach_mul_([value], 0.5),
    "init": lambda value: nn.init.ones_(value),
}


def _write(model: nn.Module, write) -> None:
    """Writes into a state_dict, and drops the dictionary, as programs do that load a part of it."""
    write(model.state_dict()["2.weight"])


@pytest.mark.parametrize("write", INTO_STATE_DICTS.values(), ids=INTO_STATE_DICTS)
@pytest.mark.parametrize("use", [lambda pair: pair.module(_inputs(batch_of(0))), lambda pair: pair.optimizer.step(),
                                 lambda pair: pair.sharded.unsharded().__enter__()],
                         ids=["forward", "step", "unsharded"])
def test_writes_into_a_state_dict_are_told_once(daemon, write, use):
    pair = _pair(daemon)
    _write(pair.module, write)
    with pytest.raises(paramshard.FailedPreconditionError, match="^2.weight: .*load_state_dict"):
        use(pair)
    _train_as_torch(pair)


def test_a_state_dict_that_was_written_and_loaded_is_the_model(daemon):
    pair = _pair(daemon)
    for model in pair.both():
        values = model.state_dict()
        with torch.no_grad():
            for value in values.values():
                value.mul_(0.5)
        model.load_state_dict(values)
    _train_as_torch(pair)
    values["2.weight"].zero_()
    with pytest.raises(paramshard.FailedPreconditionError, match="^2.weight: "):
        pair.module(_inputs(batch_of(0)))


def test_copies_of_a_state_dict_may_be_written(daemon):
    pair = _pair(daemon)
    values = {name: value.clone() for name, value in pair.module.state_dict().items()}
    for value in values.values():
        value.mul_(0.5)
    _train_as_torch(pair)


def test_writes_into_a_state_dict_count_until_the_model_is_open(daemon):
    torch.manual_seed(0)
    model = nn.Linear(32, 32)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    values = model.state_dict()
    values["weight"].fill_(0.25)
    optimizer = pt.AdamW(model.parameters())
    assert torch.equal(sharded.read("weight"), torch.full((32, 32), 0.25))
    model(torch.ones(1, 32, device=DEVICE)).sum().backward()
    optimizer.step()
    values["weight"].fill_(0.5)
    with pytest.raises(paramshard.FailedPreconditionError, match="^weight: "):
        model(torch.ones(1, 32, device=DEVICE))


# --- Values that are set, and not computed with ---


SET = {
    "data": lambda linear: setattr(linear.weight, "data", torch.full((32, 32), 0.25)),
    "copy_": _in_place(lambda weight: weight.copy_(torch.full((32, 32), 0.25))),
    "a part's load_state_dict": lambda linear: linear.load_state_dict(
        {"weight": torch.full((32, 32), 0.25), "bias": torch.zeros(32)}),
}


@pytest.mark.parametrize("change", SET.values(), ids=SET)
def test_values_that_are_set_are_in_the_daemon_after_close(daemon, change):
    pair = _pair(daemon)
    change(pair.module[2])
    pair.sharded.close()
    with daemon.client() as client:
        rows = [extent.values for extent in client.export_tensors("m", parameters=["2.weight"]).extents]
    assert all((values == 0.25).all() for values in rows) and len(rows) == 1


IN_PLACE = {name: WRITES[name] for name in ("clamp_", "foreach", "init", "data.clamp_", "data of rows")} | {
    "a row": _in_place(lambda weight: weight.__setitem__(3, 0)),
    "orthogonal_": lambda linear: nn.init.orthogonal_(linear.weight),
    "out=": _in_place(lambda weight: torch.add(torch.ones(32, 32), 1, out=weight)),
}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
def test_writes_in_place_are_told_how_to_set_values(daemon, write):
    pair = _pair(daemon)
    with pytest.raises(paramshard.FailedPreconditionError, match="2.weight.*set `parameter.data = value`"):
        write(pair.module[2])
    read = _in_place(lambda weight: torch.add(weight, 1, out=torch.ones(32, 32)))
    with pytest.raises(paramshard.FailedPreconditionError, match=r"2.weight.*sharded\.read"):
        read(pair.module[2])
