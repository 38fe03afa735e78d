"""Tracked objects come back with the model."""

import random

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import paramshard
import paramshard.torch as pt
from models import GPT, assert_close, batch_of, loss_of


class Counter:
    def __init__(self, size: int = 1):
        self.state = {"count": 0, "rest": list(range(size))}

    def state_dict(self) -> dict:
        return dict(self.state)

    def load_state_dict(self, state: dict) -> None:
        self.state = state


def _open(daemon, existing: str = "resume") -> tuple[GPT, pt.ShardedModel, pt.AdamW]:
    torch.manual_seed(0)
    model = GPT()
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir), existing=existing)
    return model, sharded, pt.AdamW(model.parameters(), lr=1e-2)


def _draw() -> list[float]:
    return [torch.rand(1).item(), random.random(), np.random.random()]


def test_schedulers_generators_and_others_come_back(daemon):
    model, sharded, optimizer = _open(daemon)
    scheduler, counter = CosineAnnealingLR(optimizer, 10), Counter()
    sharded.track(scheduler=scheduler, counter=counter, rng=True)
    for step in range(3):
        loss_of(model, batch_of(step)).backward()
        counter.state["count"] += 1
        optimizer.step()
        counter.state["count"] += 100  # of the next step already
        drawn = _draw()
        counter.state["count"] -= 100
        optimizer.zero_grad()
        scheduler.step()
    sharded.close()
    rates, epoch = optimizer.param_groups[0]["lr"], scheduler.last_epoch

    model, sharded, optimizer = _open(daemon)
    assert sharded.start_step() == 3
    scheduler, counter = CosineAnnealingLR(optimizer, 10), Counter()
    sharded.track(scheduler=scheduler, counter=counter, rng=True)
    assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch, counter.state["count"]) == (rates, epoch, 3)
    assert _draw() == drawn
    sharded.close()


def test_a_step_is_sent_when_its_schedulers_have_stepped(daemon):
    model, sharded, optimizer = _open(daemon)
    schedulers = [LambdaLR(optimizer, lambda step: 1.0), LambdaLR(optimizer, lambda step: 1.0)]
    sharded.track(a=schedulers[0], b=schedulers[1])
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    assert sharded._commits._to_send is not None
    schedulers[0].step()
    assert sharded._commits._to_send is not None
    schedulers[1].step()
    assert sharded._commits._to_send is None
    # Without its schedulers it goes with the next forward, or when its result is asked for.
    loss_of(model, batch_of(1)).backward()
    optimizer.step()
    loss_of(model, batch_of(2)).backward()
    assert sharded._commits._to_send is None
    optimizer.step()
    assert optimizer.last_result().commit_number == 3
    sharded.close()


def test_a_look_at_the_last_norm_does_not_send_a_step(daemon):
    model, sharded, optimizer = _open(daemon)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    sharded.track(scheduler=scheduler)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    assert optimizer.last_norm(wait=False) is None
    scheduler.step()
    assert optimizer.last_norm() > 0
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    sharded.track(scheduler=scheduler)
    assert scheduler.last_epoch == 1
    sharded.close()


def test_a_step_goes_before_gradients_of_the_next_one(daemon):
    model, sharded, optimizer = _open(daemon)
    sharded.track(scheduler=LambdaLR(optimizer, lambda step: 1.0))
    losses = [loss_of(model, batch_of(step)) for step in range(2)]
    losses[0].backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses[1].backward()
    assert sharded._commits._to_send is None
    sharded.close()


def test_the_last_step_is_sent_by_close(daemon):
    model, sharded, optimizer = _open(daemon)
    sharded.track(scheduler=LambdaLR(optimizer, lambda step: 1.0))
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    assert sharded.start_step() == 1
    sharded.close()


def test_what_is_too_large_is_named(daemon):
    model, sharded, optimizer = _open(daemon)
    sharded.track(loader=Counter(100_000), other=Counter())
    loss_of(model, batch_of(0)).backward()
    with pytest.raises(paramshard.ResourceExhaustedError, match=r"loader: \d{6}, other: \d+\); save what"):
        optimizer.step()
    sharded.close()


def test_a_step_that_could_not_be_sent_is_not_forgotten(daemon):
    model, sharded, optimizer = _open(daemon)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    sharded.track(loader=Counter(100_000), scheduler=scheduler)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    for use in (scheduler.step, lambda: model(batch_of(1)), optimizer.step, sharded.close):
        with pytest.raises(paramshard.ResourceExhaustedError, match=r"loader: \d{6}"):
            use()


def test_a_step_that_was_refused_may_be_repeated(daemon):
    model, sharded, optimizer = _open(daemon)
    counter = Counter(100_000)
    sharded.track(counter=counter)
    loss_of(model, batch_of(0)).backward()
    with pytest.raises(paramshard.ResourceExhaustedError):
        optimizer.step()
    counter.state = {"count": 0}
    optimizer.step()
    assert optimizer.last_result().commit_number == 1
    sharded.close()


@pytest.mark.parametrize("state", [Counter(), lambda: 0], ids=["needs code", "cannot be written"])
def test_a_state_that_could_not_be_loaded_again_is_named(daemon, state):
    class Odd(Counter):
        def state_dict(self) -> dict[str, object]:
            return {"state": state}

    model, sharded, optimizer = _open(daemon)
    sharded.track(good=Counter(), odd=Odd())
    loss_of(model, batch_of(0)).backward()
    with pytest.raises(paramshard.InvalidArgumentError, match="track odd: want a state of tensors, numbers"):
        optimizer.step()
    sharded.close()


def test_names_of_parameters_are_no_part_of_a_schedule(daemon):
    """They may be many, and come with the optimizer."""
    model = torch.nn.Linear(4, 4)
    model.register_module("long" * 50, torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1)) for _ in range(400)))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW(model.named_parameters())
    assert len(optimizer.param_groups[0]["param_names"]) == 402
    scheduler = CosineAnnealingLR(optimizer, 10)
    sharded.track(scheduler=scheduler)
    model(torch.ones(1, 4, device=sharded.device)).sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.last_result() is not None
    sharded.close()


def test_what_was_not_tracked_before_is_named(daemon):
    model, sharded, optimizer = _open(daemon)
    sharded.track(counter=Counter())
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    with pytest.raises(paramshard.FailedPreconditionError, match="track loader: no state .* commit 1, .* of counter"):
        sharded.track(loader=Counter())
    with pytest.raises(paramshard.InvalidArgumentError, match="state_dict and load_state_dict, got int"):
        sharded.track(counter=3)
    sharded.close()


def test_a_state_of_another_program_is_named(daemon):
    with daemon.client() as client:
        spec = paramshard.ModelSpec("m", [paramshard.UnitSpec("model", [paramshard.ParameterSpec("weight", [2, 2])])])
        with client.open_model(spec) as model:
            with model.gradients("model") as gradients:
                gradients.push()
            model.commit(client_state=b"mine").wait()
    module = torch.nn.Linear(2, 2, bias=False)
    sharded = pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir), existing="resume")
    with pytest.raises(paramshard.Error):
        pt.AdamW(module.parameters())
        raise AssertionError("another program's model was opened")


def test_a_trained_model_is_evaluated_with_its_optimizer(daemon):
    model, sharded, optimizer = _open(daemon)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    trained = model.state_dict()
    sharded.close()

    model = GPT()
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir), existing="resume")
    with pytest.raises(paramshard.AlreadyExistsError, match="make the optimizer that it was trained with") as refused:
        sharded.open()
    assert "paramshardctl delete" not in str(refused.value)
    pt.AdamW(model.parameters(), lr=1e-2)
    model.eval()
    with torch.no_grad():
        loss_of(model, batch_of(0))
    assert_close(model.state_dict(), trained, rtol=0, atol=0)
    assert sharded.start_step() == 1
    sharded.close()


def test_a_checkpoint_of_torch_is_written_and_read(daemon, tmp_path):
    import torch.distributed.checkpoint as dcp
    model, sharded, optimizer = _open(daemon)
    before = model.state_dict()
    dcp.save({"model": before}, checkpoint_id=tmp_path, no_dist=True)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    model.load_state_dict(state["model"])
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    sharded.close()


class Live(Counter):
    """Its state is the one that goes on."""

    def __init__(self):
        super().__init__()
        self.state |= {"sum": torch.zeros(2), "mean": torch.ones(2, requires_grad=True) * 2}  # no leaf of autograd

    def state_dict(self) -> dict:
        return self.state


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_a_state_is_that_of_the_call_of_step(daemon, with_scheduler):
    for expected in (None, 1):
        model, sharded, optimizer = _open(daemon)
        tracked = {"scheduler": LambdaLR(optimizer, lambda step: 1.0)} if with_scheduler else {}
        counter = Live()
        sharded.track(counter=counter, **tracked)
        if expected is not None:
            assert counter.state["count"] == expected and counter.state["rest"] == [0]
            assert counter.state["sum"].tolist() == [0, 0] and counter.state["mean"].tolist() == [2, 2]
            sharded.close()
            return
        loss_of(model, batch_of(0)).backward()
        counter.state["count"] += 1
        optimizer.step()
        counter.state["count"] += 100
        counter.state["rest"].append(1)
        counter.state["sum"] += 1
        for scheduler in tracked.values():
            scheduler.step()
        sharded.close()
