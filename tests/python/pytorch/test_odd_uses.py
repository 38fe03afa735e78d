"""Uses of modules beside training loops give the results of plain torch, or are refused by name."""

import copy
import dataclasses
import gc
import os
import pickle
import weakref

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, Pair, Stack, assert_close, batch_of, loss_of


def _inputs(tokens: torch.Tensor) -> torch.Tensor:
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(int(tokens[0, 0]))).to(DEVICE)


def _square(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(_inputs(tokens)).square().mean()


# --- Forwards and backwards ---


def test_a_unit_whose_only_parameters_are_tied_ones(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT(tied=True), units=lambda model: [model.embed, *model.layers, model.norm, model.head])
    pair.train(3)
    pair.check()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 32, num_layers=2)
        self.out = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


def test_recurrent_networks_train(daemon):
    """cuDNN is given weights that move from gather to gather."""
    torch.manual_seed(0)
    pair = Pair(daemon, Recurrent(), units=lambda model: [model.lstm, model.out])
    pair.module.lstm.flatten_parameters()
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


class Forces(nn.Module):
    """Asks for a gradient inside of its forward, and goes on with parameters of its own."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.scale = nn.Parameter(torch.full((32,), 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        force, = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force * self.scale


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
        x = torch.tanh(self.linear(x))
        return self(x, times - 1) if times else x


@pytest.mark.parametrize("make, units_of", [
    (Forces, lambda model: [model.energy, model]), (lambda: nn.Sequential(Recursive()), lambda model: [model[0]])],
    ids=["gradient", "itself"])
def test_a_unit_stays_until_its_own_forward_ends(daemon, make, units_of):
    torch.manual_seed(0)
    pair = Pair(daemon, make(), units=units_of)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


class Table(dict):
    """A class that torch's pytree does not know."""


def test_outputs_in_classes_of_dictionaries_are_found(daemon):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> Table:
            return Table(y=self.linear(x).square(), rest=[x])

    torch.manual_seed(0)
    pair = Pair(daemon, nn.Sequential(Named()), units=lambda model: [model[0]])
    pair.train(2, loss=lambda model, tokens: model(_inputs(tokens))["y"].mean())
    pair.check(tolerance=1e-5)


def test_freezing_what_is_gathered_freezes_it(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT())
    pair.train(1)
    with pair.sharded.unsharded():
        pair.module.head.weight.requires_grad_(False)
    pair.plain.head.weight.requires_grad_(False)
    assert not pair.module.head.weight.requires_grad
    before = pair.sharded.read("head.weight")
    pair.train(2)
    assert torch.equal(pair.sharded.read("head.weight"), before)
    pair.check()


def test_writing_what_is_gathered_is_refused(daemon):
    class Clamped(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.clamp_(-0.01, 0.01)
            return super().forward(x)

    pair = Pair(daemon, nn.Sequential(nn.Linear(32, 32), Clamped(32, 32)), units=list)
    with pytest.raises(paramshard.FailedPreconditionError, match="^1.weight: .*lost"):
        pair.module(_inputs(batch_of(0)))
    with pytest.raises(paramshard.FailedPreconditionError, match="^0.weight, 1.weight: .*lost"):
        with pair.sharded.unsharded():
            with torch.no_grad():
                pair.module[0].weight.zero_()
                pair.module[1].weight.zero_()
    assert all(isinstance(each, pt.Placeholder) for each in pair.module.parameters())
    with pair.sharded.unsharded():  # and an error is raised once only
        pass


def test_what_is_taken_out_or_kept_elsewhere_is_named(daemon):
    pair = Pair(daemon, nn.Sequential(nn.Linear(32, 32)), units=list)
    pair.module[0].bias = None
    with pytest.raises(paramshard.FailedPreconditionError, match="0.bias was removed"):
        pair.module(_inputs(batch_of(0)))
    other = nn.Sequential(nn.Linear(32, 32))
    other.all = list(other.parameters())
    with pytest.raises(paramshard.InvalidArgumentError, match="the model.all holds 0.weight"):
        pt.shard(other, name="other", units=[other], socket_dir=str(daemon.socket_dir))


def test_a_parameter_is_given_values_of_its_own_shape(daemon):
    pair = Pair(daemon, nn.Sequential(nn.Linear(32, 32)), units=list)
    with pytest.raises(paramshard.InvalidArgumentError, match=r"0.weight: want shape \[32, 32\], got \[1, 32\]"):
        pair.module[0].weight.data = torch.zeros(1, 32)


def test_inputs_of_a_unit_may_be_changed_in_place(daemon):
    torch.manual_seed(1)
    pair = Pair(daemon, Stack(nn.Linear(32, 32), *(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(32, 32))
                                                   for _ in range(2))))
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


def test_views_that_a_unit_returns_may_be_changed_in_place(daemon):
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).transpose(0, 1)

    class Changed(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x).mul_(2.0).transpose(0, 1)
            return x

    torch.manual_seed(2)
    pair = Pair(daemon, Changed(Transposed(), Transposed(), Transposed()))
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


@pytest.mark.parametrize("attributes", [("__dict__",), ("output", "missing")], ids=["with attributes", "with slots"])
def test_units_may_return_objects_of_any_class(daemon, attributes):
    @dataclasses.dataclass
    class Output:
        hidden: torch.Tensor

    class Holder:
        __slots__ = attributes

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> Holder:
            holder = Holder()
            holder.output = Output(self.linear(x))
            return holder

    class Unwraps(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(torch.tanh(x)).output.hidden
            return x

    torch.manual_seed(3)
    pair = Pair(daemon, Unwraps(Wrapped(), Wrapped(), Wrapped()))
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


def test_a_penalty_on_gradients_of_inputs(daemon):
    def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        x = _inputs(tokens).requires_grad_()
        value = model(x).square().mean()
        gradient, = torch.autograd.grad(value, x, create_graph=True)
        return value + gradient.square().sum()

    torch.manual_seed(4)
    pair = Pair(daemon, Stack(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))))
    pair.train(3, loss=loss)
    pair.check(tolerance=1e-5)


def test_a_backward_through_the_weights_of_the_step_before_is_refused(daemon):
    pair = Pair(daemon, GPT())
    loss = loss_of(pair.module, batch_of(0))
    loss.backward(retain_graph=True)
    pair.optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_backward_that_nothing_gathers_weights_for_is_refused(daemon):
    """It begins inside of a unit, at a tensor that the unit has not returned."""
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = torch.tanh(self.first(x))
            return self.last(self.kept)

    torch.manual_seed(5)
    module = Stack(Keeps(), Keeps())
    pair = Pair(daemon, module)
    pair.module(_inputs(batch_of(0)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pair.module.blocks[1].kept.sum().backward()
    pair.optimizer.zero_grad()
    for model in pair.both():
        for block in model.blocks:
            block.kept = None
    pair.train(2, loss=_square)
    pair.check(tolerance=1e-5)


def test_a_backward_that_asks_for_parameters_computes_none_of_them(daemon):
    pair = Pair(daemon, GPT())
    loss_of(pair.module, batch_of(0)).backward(inputs=list(pair.module.parameters()))
    with pytest.raises(paramshard.FailedPreconditionError, match="inputs="):
        pair.optimizer.step()
    with pair.sharded.unsharded():
        loss_of(pair.module, batch_of(0)).backward(inputs=[pair.module.head.weight])
    pair.optimizer.step()
    loss_of(pair.plain, batch_of(0)).backward(inputs=[pair.plain.head.weight])
    assert_close(pair.optimizer.last_norm(), pair.plain.head.weight.grad.norm().item(), rtol=1e-5, atol=0)


def test_a_step_among_gathered_weights_is_refused(daemon):
    torch.manual_seed(5)
    pair = Pair(daemon, GPT())
    with pair.sharded.unsharded():
        loss_of(pair.module, batch_of(0)).backward()
        with pytest.raises(paramshard.FailedPreconditionError, match="outside of"):
            pair.optimizer.step()
        with pytest.raises(paramshard.FailedPreconditionError, match="outside of"):
            pair.module.load_state_dict(pair.plain.state_dict())
    pair.optimizer.zero_grad()
    pair.train(1)
    pair.check()


def test_attributes_of_parameters_are_there_in_the_forward(daemon):
    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(32))
            self.weight.scale = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight * self.weight.scale

    module = Stack(Marked())
    with pt.shard(module, name="m", units=module.units(), socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.open()
        assert module.blocks[0].weight.scale == 0.5
        assert_close(module(torch.ones(1, 32, device=DEVICE)), torch.full((1, 32), 0.5))


class Token(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 32))
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.token, x)


class Adds(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.token, self.linear = Token(use), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + self.token(x))


@pytest.mark.parametrize("use", [lambda token, x: token, lambda token, x: token.expand(len(x), -1),
                                 lambda token, x: {"a": [token[0, 3:]]}], ids=["itself", "a view", "inside"])
def test_a_unit_that_returns_its_parameter_is_refused(daemon, use):
    module = Adds(use)
    sharded = pt.shard(module, name="m", units=[module.token, module], socket_dir=str(daemon.socket_dir))
    pt.AdamW(module.parameters())
    for context in (torch.enable_grad(), torch.no_grad()):
        with context, pytest.raises(paramshard.InvalidArgumentError, match=r"forward token: .*return a clone\(\)"):
            module(torch.ones(5, 32, device=DEVICE))
    with sharded.unsharded():
        module.token(torch.ones(5, 32, device=DEVICE))
    sharded.close()


def test_a_unit_may_return_a_copy_of_its_parameter(daemon):
    torch.manual_seed(5)
    pair = Pair(daemon, Adds(lambda token, x: token.expand(len(x), -1).clone()),
                units=lambda model: [model.token, model])
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


def test_a_parameter_that_is_returned_and_kept_has_one_hook(daemon):
    torch.manual_seed(5)
    pair = Pair(daemon, Adds(lambda token, x: token), units=lambda model: [model.token, model],
                reshard_after_forward=False)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)
    with pair.sharded.unsharded():
        assert not pair.module.token.token._backward_hooks


# --- Values ---


def test_values_are_copied_into_parts_of_the_model(daemon):
    torch.manual_seed(6)
    pair = Pair(daemon, GPT())
    pair.train(1)
    values = GPT().layers[0].state_dict()
    for model in pair.both():
        model.layers[0].load_state_dict(values)
        model.layers[1].up.bias.data = torch.ones(128, device=DEVICE)
        with torch.no_grad():
            model.layers[2].up.bias.copy_(torch.tensor(0.5))
    for name in ("layers.0.up.weight", "layers.1.up.bias", "layers.2.up.bias"):
        assert_close(pair.sharded.read(name), pair.plain.get_parameter(name).detach(), rtol=0, atol=0)
    pair.train(2)
    pair.check()


@pytest.mark.parametrize("change", [{"assign": True}, {"strict": False}])
def test_values_are_loaded_in_every_way(daemon, change):
    torch.manual_seed(7)
    pair = Pair(daemon, GPT(), reshard_after_forward=False)
    pair.train(1)
    values = {name: value.to(DEVICE).double() for name, value in GPT().state_dict().items()}
    if "strict" in change:
        values = {"layers.1.up.weight": values["layers.1.up.weight"], "unknown": torch.zeros(1)}
    pair.module(batch_of(0))  # without a backward, which leaves its weights gathered
    pair.module.load_state_dict({name: value.clone() for name, value in values.items()}, **change)
    pair.plain.load_state_dict(values, strict=change.get("strict", True))
    if "assign" in change:
        pair.module.float()
    pair.train(2)
    pair.check()


def test_values_between_backward_and_step_are_refused(daemon):
    pair = Pair(daemon, GPT())
    loss_of(pair.module, batch_of(0)).backward()
    pair.module.head.weight.data = torch.ones(48, 32)
    with pytest.raises(paramshard.FailedPreconditionError, match="copied into head.weight"):
        pair.optimizer.step()


def test_a_part_of_the_model_has_a_state_dict(daemon):
    torch.manual_seed(8)
    pair = Pair(daemon, GPT())
    pair.train(1)
    assert_close(pair.module.layers[0].state_dict(), pair.plain.layers[0].state_dict(), rtol=0, atol=1e-6)
    whole = nn.Sequential(pair.module).state_dict()
    assert_close(whole["0.head.weight"], pair.plain.head.weight.detach(), rtol=0, atol=1e-6)
    for state_of in (lambda model: nn.Sequential(model.layers[0], model.layers[1], nn.Linear(1, 1)).state_dict(),
                     lambda model: model.layers[0].state_dict(prefix="x."),
                     lambda model: model.layers.state_dict(prefix="a.b.")):
        state, expected = (state_of(model) for model in (pair.module, pair.plain))
        assert list(state) == list(expected)
        for key in expected:
            if not key.startswith("2."):
                assert_close(state[key], expected[key], rtol=0, atol=1e-6)


def test_a_state_dict_that_failed_leaves_the_next_one_whole(daemon):
    pair = Pair(daemon, GPT())

    def fail(*_: object) -> None:
        raise RuntimeError("no disk, say")

    failing = pair.module.layers[1].up.register_state_dict_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no disk"):
        pair.module.state_dict()
    failing.remove()
    for module, plain in ((pair.module, pair.plain), (pair.module.layers[1], pair.plain.layers[1])):
        assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=0)


# --- What is refused ---


def test_copies_are_refused(daemon):
    pair = Pair(daemon, GPT())
    for module in (pair.module, pair.module.layers[0]):
        for make in (copy.deepcopy, pickle.dumps):
            with pytest.raises(paramshard.FailedPreconditionError, match="model.state_dict"):
                make(module)


def test_what_would_do_nothing_is_refused(daemon):
    pair = Pair(daemon, GPT())
    weight = pair.module.head.weight
    for use in (lambda: weight.register_hook(lambda gradient: gradient), lambda: weight.share_memory_(),
                lambda: setattr(weight, "grad", torch.ones(48, 32)),
                lambda: torch.autograd.grad(loss_of(pair.module, batch_of(0)), weight)):
        with pytest.raises(paramshard.UnimplementedError, match="head.weight"):
            use()
    for convert in (lambda: pair.module.to(torch.bfloat16), lambda: pair.module.to("meta")):
        with pytest.raises(paramshard.FailedPreconditionError, match="another param_dtype"):
            convert()
    pair.module.head.weight = nn.Parameter(torch.ones(48, 32))
    with pytest.raises(paramshard.FailedPreconditionError, match="head.weight was replaced"):
        pair.module(batch_of(0))


def test_gradients_of_gathered_parameters_are_the_daemons(daemon):
    """Inside of unsharded(), and of parameters that were kept from there."""
    pair = Pair(daemon, GPT())
    with pair.sharded.unsharded():
        weight = pair.module.head.weight
        assert weight.grad is None
        loss_of(pair.module, batch_of(0)).backward()
        kept = list(pair.module.parameters())
        with pytest.raises(paramshard.FailedPreconditionError, match="clip gradients"):
            nn.utils.clip_grad_norm_(kept, 1.0)
    with pytest.raises(paramshard.FailedPreconditionError, match="clip gradients"):
        nn.utils.clip_grad_norm_(kept, 1.0)
    for parameter in (weight, pair.module.head.weight):
        for use in (lambda: parameter.grad, lambda: setattr(parameter, "grad", None), lambda: delattr(parameter, "grad"),
                    lambda: setattr(parameter, "grad", torch.ones(48, 32)),
                    lambda: parameter.register_post_accumulate_grad_hook(lambda _: None)):
            with pytest.raises(paramshard.UnimplementedError, match="head.weight"):
                use()
    pair.optimizer.zero_grad()
    assert weight.grad is None
    pair.train(2)
    pair.check()


@pytest.mark.parametrize("wrap", [nn.Sequential, torch.compile], ids=["a module", "torch.compile"])
def test_a_module_around_drops_gradients(daemon, wrap):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT())
    for model in pair.both():
        loss_of(model, batch_of(7)).backward()
        wrap(model).zero_grad()
    pair.train(2)
    pair.check()


def test_torch_modes_hide_nobody_who_asks_for_gradients(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT())
    with torch.device(DEVICE):
        for model in pair.both():
            loss_of(model, batch_of(7)).backward()
            nn.Sequential(model).zero_grad()
        loss_of(pair.module, batch_of(7)).backward()
        with pytest.raises(paramshard.FailedPreconditionError, match="clip gradients"):
            nn.utils.clip_grad_norm_(pair.module.parameters(), 1.0)
        with pytest.raises(paramshard.UnimplementedError, match="embed.weight is sharded"):
            torch.optim.SGD(pair.module.parameters(), lr=0.1)
        pair.optimizer.zero_grad()
    pair.train(2)
    pair.check()


def test_other_optimizers_and_lists_of_modules_drop_no_gradients(daemon):
    pair = Pair(daemon, GPT())
    loss_of(pair.module, batch_of(0)).backward()
    with pytest.raises(paramshard.UnimplementedError, match="gradient of embed.weight"):
        nn.ModuleList([pair.module.embed, nn.Linear(2, 2)]).zero_grad()
    pair.optimizer.step()


FORMER = {
    "computes": lambda weight: weight.square().sum(),
    "data": lambda weight: weight.data,
    "data = ": lambda weight: setattr(weight, "data", torch.zeros(48, 32)),
    "freezes": lambda weight: weight.requires_grad_(False),
    "freezes by assignment": lambda weight: setattr(weight, "requires_grad", False),
    "hooks": lambda weight: weight.register_hook(lambda gradient: gradient),
    "a module": lambda weight: nn.functional.linear(torch.ones(1, 32), weight),
    "writes": lambda weight: nn.init.zeros_(weight),
    "transposes": lambda weight: weight.T,
    "copies": copy.deepcopy,
    "pickles": pickle.dumps,
}


@pytest.mark.parametrize("use", FORMER.values(), ids=FORMER)
@pytest.mark.parametrize("make", [GPT, lambda: _in_meta_init(GPT)], ids=["values", "meta_init"])
def test_parameters_from_before_are_named(daemon, use, make):
    model = make()
    before = model.head.weight
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.FailedPreconditionError, match="head.weight: .* from before shard"):
        use(before)
    assert (before.shape, before.dtype, before.requires_grad) == ((48, 32), torch.float32, True)
    optimizer = pt.AdamW(model.parameters())
    loss_of(model, batch_of(0)).backward()
    with pytest.raises(paramshard.FailedPreconditionError, match="clip gradients"):
        nn.utils.clip_grad_norm_([before], 1.0)
    with pytest.raises(paramshard.UnimplementedError, match="gradient of head.weight"):
        before.grad
    optimizer.step()
    sharded.close()


def _in_meta_init(make) -> nn.Module:
    with pt.meta_init():
        return make()


def test_hooks_after_accumulation_are_refused_in_a_forward(daemon):
    class Hooks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())
            return super().forward(x)

    pair = Pair(daemon, Stack(Hooks(32, 32)))
    with pytest.raises(paramshard.UnimplementedError, match="register_post_accumulate_grad_hook blocks.0.weight"):
        pair.module(torch.ones(1, 32, device=DEVICE))


def test_parameters_stay_in_their_places(daemon):
    """Moving a parameter to another place is refused, and the module stays as it is."""
    from torch.nn.utils import prune
    torch.manual_seed(0)
    pair = Pair(daemon, Stack(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8)))
    keys = list(pair.module.state_dict())
    first, second, _ = pair.module.blocks
    for change in (lambda: setattr(second, "weight", first.weight), lambda: setattr(first, "other", first.weight),
                   lambda: second.register_parameter("weight", first.weight),
                   lambda: prune.l1_unstructured(second, "weight", 0.5), lambda: prune.identity(second, "weight")):
        with pytest.raises(paramshard.FailedPreconditionError, match=r"blocks\.[01]\.weight stays where"):
            change()
    assert list(pair.module.state_dict()) == keys
    pair.train(2, loss=_square)
    pair.check(tolerance=1e-5)
    second._parameters["weight"] = first.weight  # as some programs do
    with pytest.raises(paramshard.FailedPreconditionError, match=r"blocks\.1\.weight .*got blocks\.0\.weight in its place"):
        pair.module(_inputs(batch_of(0)))


def test_a_parameter_that_is_made_anew_to_be_frozen_is_frozen(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, Stack(nn.Linear(32, 32), nn.Linear(32, 8)))
    for model in pair.both():
        model.blocks[1].weight = nn.Parameter(model.blocks[1].weight, requires_grad=False)
    pair.train(2, loss=_square)
    pair.check(tolerance=1e-5)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_from_before_are_refused(daemon, register):
    model = GPT()
    getattr(model.head.weight, register)(lambda _: None)
    with pytest.raises(paramshard.UnimplementedError, match="head.weight has hooks"):
        pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))


def test_another_gpu_is_refused_and_the_same_one_is_not():
    def on(device: str) -> pt.Placeholder:
        return pt.Placeholder(torch.empty(2), name="w", dtype=torch.float32, device=torch.device(device), owner=None)

    placeholder = on("cuda:0")
    for same in ("cuda", "cuda:0"):
        placeholder._check_conversion(device=torch.device(same))
    with pytest.raises(paramshard.FailedPreconditionError, match="convert w: want .*cuda:0.*on cuda:1"):
        placeholder._check_conversion(device=torch.device("cuda:1"))
    on("cpu")._check_conversion(device=torch.device("cpu:0"))


@pytest.mark.parametrize("format", [{}, {"*": "FP32"}, ["FP32"], ["it"], [("*", "FP32", 1)], 8], ids=repr)
def test_a_format_that_is_neither_a_name_nor_pairs_is_refused(format):
    with pytest.raises(paramshard.InvalidArgumentError, match="list of pairs of a glob of parameter names and a format"):
        pt.shard(nn.Linear(2, 2), name="m", units=[], format=format, socket_dir="/nowhere")


@pytest.mark.parametrize("betas", [0.9, (0.9,), (0.9, None)], ids=repr)
def test_betas_that_are_not_two_numbers_are_refused(daemon, betas):
    module = nn.Linear(2, 2)
    sharded = pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="want betas of two numbers"):
        pt.AdamW(module.parameters(), betas=betas)
    sharded.close()


def test_a_local_rank_that_no_job_has_is_refused_at_once(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    module = nn.Linear(2, 2)
    with pytest.raises(paramshard.InvalidArgumentError, match="a local rank below 1 .*LOCAL_WORLD_SIZE"):
        pt.shard(module, name="m", units=[module], daemon="job", local_rank=1)


# --- The end ---


def test_a_closed_model_says_so(daemon):
    torch.manual_seed(9)
    pair = Pair(daemon, GPT())
    pair.train(1)
    pair.sharded.close()
    assert_close(pair.module.state_dict()["head.weight"], pair.plain.head.weight.detach(), rtol=0,
                               atol=1e-6)
    for use in (pair.sharded.open, pair.optimizer.step, lambda: pair.module(batch_of(0)),
                lambda: pair.module.load_state_dict(pair.plain.state_dict())):
        with pytest.raises(paramshard.FailedPreconditionError, match="close"):
            use()


def test_a_model_that_is_dropped_goes(daemon):
    model = GPT()
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW(model.parameters())
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    dropped = weakref.ref(sharded)
    del model, sharded, optimizer
    gc.collect()
    assert dropped() is None
    with daemon.client() as client:
        assert [known.attached_ranks for known in client.models()] == [0]


def test_a_forked_child_has_nothing_to_close(daemon, monkeypatch, recwarn):
    pair = Pair(daemon, GPT())
    pair.train(1)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    pair.sharded._close_at_exit()
    monkeypatch.undo()
    assert pair.sharded._model is not None and not recwarn.list
