"""Steps, failures between them, and refusals."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, Pair, assert_close, batch_of, loss_of


def test_decay_groups_and_group_rates(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT(), groups=lambda model: pt.decay_groups(model, 0.1))
    pair.torch_optimizer.param_groups[1]["lr"] = pair.optimizer.param_groups[1]["lr"] = 3e-4
    schedulers = [LambdaLR(each, lambda step: 1 / (1 + step)) for each in (pair.torch_optimizer, pair.optimizer)]
    for _ in range(10):
        pair.train(1)
        for scheduler in schedulers:
            scheduler.step()
    assert pair.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 11)
    pair.check()


@pytest.mark.parametrize("most", [None, 0, 0.0, float("inf")])
def test_no_limit_does_not_clip(daemon, most):
    torch.manual_seed(1)
    pair = Pair(daemon, GPT(), max_grad_norm=1e9)
    pair.optimizer.max_grad_norm = most
    pair.train(2)
    pair.check()


def test_zero_grad_discards(daemon):
    torch.manual_seed(2)
    pair = Pair(daemon, GPT())
    for zero in (lambda: pair.optimizer.zero_grad(), lambda: pair.module.zero_grad()):
        loss_of(pair.module, batch_of(900)).backward()
        zero()
        pair.train(2)
    pair.check()


class Fails(torch.autograd.Function):
    """Raises in its backward, a given number of times."""

    times = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fails.times:
            Fails.times -= 1
            raise RuntimeError("out of memory, say")
        return gradient


class FailsAfterTheFirstBlock(GPT):
    def forward(self, tokens):
        x = self.embed(tokens) + self.positions
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 1:
                x = Fails.apply(x)
        return self.head(self.norm(x))


def _fail(model: nn.Module, tokens: torch.Tensor) -> None:
    Fails.times = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of(model, tokens).backward()


def test_exception_in_backward_then_step(daemon):
    torch.manual_seed(3)
    pair = Pair(daemon, FailsAfterTheFirstBlock())
    pair.train(1)
    _fail(pair.module, batch_of(7))
    with pytest.raises(paramshard.FailedPreconditionError, match="backward failed"):
        pair.optimizer.step()
    pair.optimizer.zero_grad()
    pair.train(2)
    pair.check()


def test_oom_retry_no_double_push(daemon):
    torch.manual_seed(4)
    pair = Pair(daemon, FailsAfterTheFirstBlock())
    for step in range(3):
        _fail(pair.module, batch_of(step))
        pair.train(1)
    pair.check()


def test_a_failed_micro_batch_takes_the_step_with_it(daemon):
    torch.manual_seed(5)
    pair = Pair(daemon, FailsAfterTheFirstBlock())
    loss_of(pair.module, batch_of(0)).backward()
    _fail(pair.module, batch_of(1))
    loss_of(pair.module, batch_of(1)).backward()
    with pytest.raises(paramshard.FailedPreconditionError, match="gradients of 1 before it"):
        pair.optimizer.step()
    pair.optimizer.zero_grad()
    pair.train(2)
    pair.check()


def test_an_exception_in_forward_leaves_nothing(daemon):
    torch.manual_seed(6)
    pair = Pair(daemon, GPT())
    handle = pair.module.layers[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyError("no")))
    with pytest.raises(KeyError):
        pair.module(batch_of(0))
    handle.remove()
    pair.train(2)
    pair.check()
    assert all(isinstance(each, pt.Placeholder) for each in pair.module.parameters())


def test_a_phantom_step_is_refused(daemon):
    pair = Pair(daemon, GPT())
    with pytest.raises(paramshard.FailedPreconditionError, match="no backward since the last step"):
        pair.optimizer.step()
    pair.train(1)
    with pytest.raises(paramshard.FailedPreconditionError, match="no backward since the last step"):
        pair.optimizer.step()
    pair.train(1)
    assert pair.optimizer.last_result().commit_number == 2


def test_tools_that_initialize_optimizers_do_not_step(daemon):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    pair = Pair(daemon, GPT())
    pair.train(1)
    assert pair.optimizer.state
    get_optimizer_state_dict(pair.module, pair.optimizer)
    assert pair.optimizer.last_result().commit_number == 1


def test_a_closure_is_called_with_gradients(daemon):
    torch.manual_seed(7)
    pair = Pair(daemon, GPT())

    def closure():
        loss = loss_of(pair.module, batch_of(0))
        loss.backward()
        return loss

    assert pair.optimizer.step(closure) > 0
    assert pair.optimizer.last_result().commit_number == 1


def test_a_step_that_is_not_finite_is_skipped(daemon):
    pair = Pair(daemon, GPT())
    before = pair.sharded.read("embed.weight")
    (loss_of(pair.module, batch_of(0)) * float("inf")).backward()
    pair.optimizer.step()
    assert pair.optimizer.last_result().skipped
    assert_close(pair.sharded.read("embed.weight"), before, rtol=0, atol=0)


def test_the_last_result_need_not_be_waited_for(daemon):
    pair = Pair(daemon, GPT())
    assert pair.optimizer.last_result() is None and pair.optimizer.last_norm(wait=False) is None
    pair.train(1)
    assert pair.optimizer.last_norm(wait=False) == pair.optimizer.last_norm()


def test_clipping_gradients_that_are_elsewhere_is_refused(daemon):
    pair = Pair(daemon, GPT())
    loss_of(pair.module, batch_of(0)).backward()
    with pytest.raises(paramshard.FailedPreconditionError, match="max_grad_norm"):
        nn.utils.clip_grad_norm_(pair.module.parameters(), 1.0)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_a_refused_optimizer_of_torch_leaves_the_training_as_it_was(daemon, make):
    torch.manual_seed(5)
    pair = Pair(daemon, GPT())
    pair.train(1)
    with pytest.raises(paramshard.UnimplementedError, match=f"{make.__name__}.*paramshard.torch.AdamW"):
        make(pair.module.parameters(), lr=1e-3)
    pair.train(1)
    pair.check()


def test_ctrl_c_behind_a_push_leaves_no_gradient(daemon, monkeypatch):
    """It comes when the daemon has the gradients, and before the push has returned."""
    torch.manual_seed(7)
    pair = Pair(daemon, GPT())
    unit = pair.sharded._units[-1]
    push = unit._memory.push

    def interrupted(model, gradients) -> None:
        push(model, gradients)
        raise KeyboardInterrupt

    monkeypatch.setattr(unit._memory, "push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loss_of(pair.module, batch_of(9)).backward()
    monkeypatch.undo()
    pair.optimizer.zero_grad()
    pair.train(2)
    pair.check()


class _Descent:
    """An optimizer of a package that does not derive from torch's class."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.1)


def test_gradients_are_not_read(daemon):
    """A read raises while the daemon has gradients, and gives None otherwise."""
    torch.manual_seed(6)
    pair = Pair(daemon, GPT())
    descent = _Descent(pair.module.parameters())
    descent.step()
    loss_of(pair.module, batch_of(0)).backward()
    with pytest.raises(paramshard.UnimplementedError, match="read the gradient of embed.weight in test_steps: it is in"):
        descent.step()
    for drop in (pair.module.layers[0].zero_grad, lambda: setattr(pair.module.head.weight, "grad", None)):
        with pytest.raises(paramshard.UnimplementedError, match="call zero_grad\\(\\) of the optimizer"):
            drop()
    pair.optimizer.zero_grad()
    pair.module.layers[0].zero_grad()
    pair.module.head.weight.grad = None
    descent.step()
    pair.train(1)
    descent.step()
    pair.check()


@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are captured of a GPU's work")
def test_a_gather_in_a_graph_is_refused(daemon):
    pair = Pair(daemon, GPT())
    pair.train(1)
    tokens = batch_of(0)
    with pytest.raises(paramshard.UnimplementedError, match="gather embed: CUDA graph capture"):
        with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
            pair.module(tokens)
    pair.train(1)
    pair.check()


def test_other_ways_to_share_parameters_are_refused(daemon, tmp_path):
    pair = Pair(daemon, GPT())
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(paramshard.UnimplementedError, match="wrap a sharded model in DistributedDataParallel"):
            nn.parallel.DistributedDataParallel(pair.module)
    finally:
        torch.distributed.destroy_process_group()


def test_a_grad_scaler_is_refused(daemon):
    pair = Pair(daemon, GPT())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(pair.module, batch_of(0))).backward()
    with pytest.raises((paramshard.UnimplementedError, AssertionError), match="GradScaler|No inf checks"):
        scaler.step(pair.optimizer)


def test_reentrant_checkpoints_are_refused(daemon):
    pair = Pair(daemon, GPT())

    def compute(tokens):
        x = pair.module.embed(tokens) + pair.module.positions
        for layer in pair.module.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return pair.module.head(pair.module.norm(x))

    with pytest.raises(paramshard.FailedPreconditionError, match="use_reentrant=False"):
        compute(batch_of(0)).sum().backward()


def test_what_is_not_gathered_is_named(daemon):
    pair = Pair(daemon, GPT())
    weight = pair.module.layers[0].up.weight
    assert "layers.0.up.weight" in repr(weight) and weight.shape == (128, 32)
    for use in (lambda: weight.sum(), lambda: weight + 1, lambda: weight[0]):
        with pytest.raises(paramshard.FailedPreconditionError, match="layers.0.up.weight: .*gathered"):
            use()
    with pytest.raises(paramshard.FailedPreconditionError, match="state_dict"):
        torch.save(weight, "/dev/null")


def test_unfreezing_what_the_daemon_has_frozen_is_refused(daemon):
    model = GPT()
    model.layers[0].requires_grad_(False)
    pair = Pair(daemon, model)
    pair.module.layers[0].up.weight.requires_grad_(True)
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.0.up.weight.*frozen"):
        pair.module(batch_of(0))


@pytest.mark.parametrize("option", ["amsgrad", "capturable", "differentiable", "maximize"])
def test_options_of_torch_that_the_daemon_does_not_have_are_refused(daemon, option):
    torch.manual_seed(5)
    module = GPT()
    pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.UnimplementedError, match=option):
        pt.AdamW([{"params": list(module.parameters()), option: True}], lr=1e-3)
    with pytest.raises(paramshard.UnimplementedError, match=option):
        pt.AdamW(module.parameters(), **{option: True})
    optimizer = pt.AdamW([{"params": list(module.parameters()), option: False, "fused": True}], lr=1e-3,
                         **{option: False})
    loss_of(module, batch_of(0)).backward()
    optimizer.param_groups[0][option] = True
    with pytest.raises(paramshard.UnimplementedError, match=option):
        optimizer.step()
    optimizer.param_groups[0][option] = False
    optimizer.step()
    assert not optimizer.last_result().skipped


def test_arguments_of_torch_are_taken_in_its_order(daemon):
    """Options that choose among torch's kernels change nothing."""
    arguments, options = (1e-2, (0.8, 0.95), 1e-6, 0.1, False), {"fused": True, "foreach": False, "maximize": False}
    torch.manual_seed(5)
    module = GPT()
    plain = copy.deepcopy(module).to(DEVICE)
    adamw = torch.optim.AdamW(plain.parameters(), *arguments, foreach=False)
    sharded = pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW(module.parameters(), *arguments, **options)
    for model, steps in ((plain, adamw), (module, optimizer)):
        loss_of(model, batch_of(0)).backward()
        steps.step()
    assert_close(sharded.read("head.weight"), plain.head.weight.detach(), rtol=1e-5, atol=1e-6)


def test_groups_that_come_later_are_refused(daemon):
    pair = Pair(daemon, GPT())
    with pytest.raises(paramshard.UnimplementedError, match="add_param_group"):
        pair.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


@pytest.mark.parametrize("change", [
    lambda groups: groups[1]["params"].append(groups[0]["params"].pop()),
    lambda groups: groups.pop(),
    lambda groups: groups[0].update(mode="l2"),
    lambda groups: groups[0].update(bias_correction=False)])
def test_what_a_group_was_made_with_does_not_change(daemon, change):
    pair = Pair(daemon, GPT(), groups=lambda model: pt.decay_groups(model, 0.1))
    loss_of(pair.module, batch_of(0)).backward()
    change(pair.optimizer.param_groups)
    with pytest.raises(paramshard.FailedPreconditionError, match="only rates, betas, eps and weight_decay can"):
        pair.optimizer.step()


def test_moments_of_another_optimizer_are_refused(daemon):
    pair = Pair(daemon, GPT())
    pair.train(1)
    with pytest.raises(paramshard.UnimplementedError, match="the daemon has the moments of its model"):
        pair.optimizer.load_state_dict(pair.torch_optimizer.state_dict())
    state = pair.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    pair.optimizer.load_state_dict(state)
    assert pair.optimizer.param_groups[0]["lr"] == 0.25
    pair.train(1)


def _shard(daemon, model: nn.Module, units: list, **options) -> pt.ShardedModel:
    return pt.shard(model, name="m", units=units, socket_dir=str(daemon.socket_dir), **options)


def test_wrong_units_are_named(daemon):
    model = GPT()
    with pytest.raises(paramshard.InvalidArgumentError, match="in no unit: embed.weight, norm.weight"):
        _shard(daemon, model, [*model.layers])
    with pytest.raises(paramshard.InvalidArgumentError, match="layers.0 is in two units"):
        _shard(daemon, model, [model.layers[0], [model.layers[0], model.norm], model])
    with pytest.raises(paramshard.InvalidArgumentError, match="unit 1 has a Linear"):
        _shard(daemon, model, [model, nn.Linear(2, 2)])
    with pytest.raises(paramshard.InvalidArgumentError, match="ModuleList layers has no forward"):
        _shard(daemon, model, [model.layers, model])


def test_weights_that_a_forward_writes_are_refused(daemon):
    model = nn.Sequential(nn.Embedding(4, 8, max_norm=1.0))
    with pytest.raises(paramshard.UnimplementedError, match="0.weight: max_norm"):
        _shard(daemon, model, [model])


def test_a_model_is_sharded_once(daemon):
    model = GPT()
    sharded = _shard(daemon, model, model.units())
    with pytest.raises(paramshard.InvalidArgumentError, match="already sharded"):
        _shard(daemon, model, model.units())
    pt.AdamW(model.parameters())
    with pytest.raises(paramshard.FailedPreconditionError, match="already open"):
        pt.AdamW(model.parameters())
    sharded.close()


def test_optimizers_of_other_parameters_are_refused(daemon):
    model = GPT()
    sharded = _shard(daemon, model, model.units())
    with pytest.raises(paramshard.InvalidArgumentError, match=r"got 1 others.*\[2, 2\]"):
        pt.AdamW([nn.Parameter(torch.zeros(2, 2)), *model.parameters()])
    with pytest.raises(paramshard.InvalidArgumentError, match="no group has .* embed.weight"):
        pt.AdamW(model.head.parameters())
    with pytest.raises(paramshard.InvalidArgumentError, match="mode: want one of adamw, l2, got sgd"):
        pt.AdamW(model.parameters(), mode="sgd")
    with pytest.raises(paramshard.FailedPreconditionError, match="not open"):
        model(batch_of(0))
    sharded.close()


def test_formats_and_types_that_do_not_exist_are_refused(daemon):
    model = GPT()
    with pytest.raises(paramshard.InvalidArgumentError, match="existing="):
        _shard(daemon, model, model.units(), existing="maybe")
    with pytest.raises(paramshard.InvalidArgumentError, match="grad_dtype"):
        _shard(daemon, model, model.units(), grad_dtype=torch.float16)
    with pytest.raises(paramshard.InvalidArgumentError, match="local rank below 1"):
        _shard(daemon, model, model.units(), local_rank=1)
    with pytest.raises(paramshard.InvalidArgumentError, match="FP7"):
        _shard(daemon, model, model.units(), format="FP7")


def test_an_optimizer_that_is_refused_deletes_nothing(daemon):
    pair = Pair(daemon, GPT(), name="m")
    pair.train(1)
    pair.sharded.close()
    model = GPT()
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir), existing="fresh")
    for options in ({"mode": "sgd"}, {"moments": "FP9"}):
        with pytest.raises(paramshard.InvalidArgumentError, match="want one of"):
            pt.AdamW(model.parameters(), **options)
    with daemon.client() as client:
        assert [(known.name, known.commit_number) for known in client.models()] == [("m", 1)]
    sharded.close()


# --- What programs see ---


def test_a_profile_names_gathers_and_pushes(daemon):
    pair = Pair(daemon, GPT())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pair.train(1)
    names = {event.name for event in profile.events()}
    assert {"paramshard::gather layers.1", "paramshard::push layers.1"} <= names


def test_a_training_that_is_made_again_ends_in_the_same_bytes(daemon):
    def train(name: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(11)
        pair = Pair(daemon, GPT(tied=True), name=name)
        pair.train(5)
        return pair.module.state_dict()

    first, second = train("first"), train("second")
    for name, value in first.items():
        assert torch.equal(second[name], value), name
