"""accelerate's Accelerator around a sharded model: as without a daemon, or refused by name."""

import copy

import pytest
import torch

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, assert_close, batch_of, loss_of

accelerate = pytest.importorskip("accelerate")


@pytest.fixture
def accelerator_of():
    """Makes Accelerators, whose state is one for the process."""
    def make(**options):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=DEVICE == "cpu", **options)

    yield make
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def _train(accelerator, model, optimizer) -> list[float]:
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = torch.cat([batch_of(step, device="cpu") for step in range(6)])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batches), 4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    for tokens, in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, tokens)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# Gradients near 0 that are computed in bfloat16 differ in sign, and so do the first steps of Adam.
@pytest.mark.parametrize("options, tolerance", [
    ({}, 1e-4), ({"gradient_accumulation_steps": 2}, 1e-4), ({"mixed_precision": "bf16"}, 1e-2)], ids=str)
def test_an_accelerator_trains_as_without_a_daemon(daemon, accelerator_of, options, tolerance):
    torch.manual_seed(0)
    plain = GPT()
    module = copy.deepcopy(plain)
    sharded = pt.shard(module, name="m", units=module.units(), socket_dir=str(daemon.socket_dir))
    expected = _train(accelerator_of(**options), plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
    found = _train(accelerator_of(**options), module, pt.AdamW(module.parameters(), lr=1e-3))
    assert found == pytest.approx(expected, rel=min(tolerance, 1e-3))
    for name, parameter in plain.named_parameters():
        assert_close(sharded.read(name), parameter.detach().cpu(), rtol=tolerance, atol=tolerance)


def test_what_an_accelerator_would_do_in_vain_is_refused(daemon, accelerator_of):
    accelerator = accelerator_of()
    model = GPT()
    sharded = pt.shard(model, name="m", units=model.units(), socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.UnimplementedError, match="SGD: embed.weight"):
        accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    prepared, optimizer = accelerator.prepare(model, pt.AdamW(model.parameters()))
    accelerator.backward(loss_of(prepared, batch_of(0)))
    for clip in (accelerator.clip_grad_norm_, accelerator.clip_grad_value_):
        with pytest.raises(paramshard.Error, match="clip gradients|gradient of embed.weight"):
            clip(model.parameters(), 1.0)
    optimizer.step()
    state = accelerator.get_state_dict(prepared)
    assert torch.equal(state["head.weight"].cpu(), sharded.read("head.weight"))


def test_a_state_of_an_accelerator_is_loaded_at_its_step(daemon, accelerator_of, tmp_path):
    """A saved state has no moments: it loads at the commit that the daemon has, and is refused at others."""
    def begin(name: str) -> tuple:
        torch.manual_seed(0)
        model = GPT()
        sharded = pt.shard(model, name=name, units=model.units(), socket_dir=str(daemon.socket_dir), existing="resume")
        accelerator = accelerator_of()
        return sharded, accelerator, *accelerator.prepare(model, pt.AdamW(model.parameters(), lr=1e-3))

    def step(accelerator, model, optimizer) -> None:
        accelerator.backward(loss_of(model, batch_of(0)))
        optimizer.step()
        optimizer.zero_grad()

    sharded, *others = begin("m")
    step(*others)
    others[0].save_state(str(tmp_path))
    expected = sharded.read("head.weight")
    sharded.close()
    sharded, *others = begin("m")
    others[0].load_state(str(tmp_path))
    assert torch.equal(sharded.read("head.weight"), expected) and sharded.start_step() == 1
    step(*others)
    with pytest.raises(paramshard.FailedPreconditionError, match="want a state of m at commit 2"):
        others[0].load_state(str(tmp_path))
    sharded.close()
    sharded, *others = begin("other")
    with pytest.raises(paramshard.FailedPreconditionError, match="want a state of other at commit 0"):
        others[0].load_state(str(tmp_path))
    sharded.close()
