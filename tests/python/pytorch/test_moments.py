"""A state_dict of the optimizer has no moments: it loads if the daemon has the moments of its commit."""

import copy

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE

REFUSED = pytest.raises(paramshard.FailedPreconditionError, match="load_state_dict: want a state of m at commit")


class Counter:
    """Its state cannot be recorded once it is large."""

    def __init__(self):
        self.state = {"rest": list(range(100_000))}

    def state_dict(self) -> dict:
        return self.state

    def load_state_dict(self, state: dict) -> None:
        self.state = state


def _open(daemon, existing: str = "resume") -> tuple[nn.Module, pt.ShardedModel, pt.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), existing=existing)
    return model, sharded, pt.AdamW(model.parameters(), lr=1e-2)


def _train(model: nn.Module, optimizer: pt.AdamW, steps: int) -> None:
    for step in range(steps):
        inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _saved(path, model: nn.Module, optimizer: pt.AdamW) -> dict:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return torch.load(path)


def test_a_state_is_loaded_where_the_daemon_has_its_moments(daemon, tmp_path):
    model, sharded, optimizer = _open(daemon)
    _train(model, optimizer, 3)
    optimizer.param_groups[0]["lr"] = 0.25
    state = _saved(tmp_path / "state", model, optimizer)
    optimizer.load_state_dict(state["optimizer"])
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    optimizer.load_state_dict(state["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.25 and "paramshard" not in optimizer.param_groups[0]
    model.load_state_dict(state["model"])  # an import begins another history, and leaves moments alone
    optimizer.load_state_dict(state["optimizer"])
    both = _saved(tmp_path / "state", model, optimizer)
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    optimizer.load_state_dict(both["optimizer"])
    _train(model, optimizer, 1)
    for old in (state, both):
        with REFUSED:
            optimizer.load_state_dict(old["optimizer"])
    sharded.close()


def test_a_model_without_moments_does_not_take_a_state_that_had_some(daemon, tmp_path):
    model, sharded, optimizer = _open(daemon)
    untrained = optimizer.state_dict()
    _train(model, optimizer, 2)
    state = _saved(tmp_path / "state", model, optimizer)
    sharded.close()
    model, sharded, optimizer = _open(daemon, existing="fresh")
    model.load_state_dict(state["model"])
    with REFUSED as refused:
        optimizer.load_state_dict(state["optimizer"])
    assert "at commit 0," in str(refused.value) and "of commit 2" in str(refused.value)
    optimizer.load_state_dict(untrained)
    _train(model, optimizer, 2)
    with REFUSED:  # of another training
        optimizer.load_state_dict(state["optimizer"])
    sharded.close()


def test_a_model_that_has_gone_further_does_not_take_an_earlier_state(daemon):
    model, sharded, optimizer = _open(daemon)
    _train(model, optimizer, 2)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    _train(model, optimizer, 1)
    model.load_state_dict(state[0])
    with REFUSED:
        optimizer.load_state_dict(state[1])
    sharded.close()


def test_a_restored_model_takes_the_state_of_the_step_that_was_saved(start, tmp_path):
    (tmp_path / "saves").mkdir()
    daemon = start(flags=("--keeper=off", f"--save-dir={tmp_path / 'saves'}"))
    model, sharded, optimizer = _open(daemon)
    _train(model, optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.last_norm()
    with daemon.client() as client:
        assert client.save("m").saved
        _train(model, optimizer, 1)
        later = copy.deepcopy(optimizer.state_dict())
        sharded.close()
        client.restore("m", 2)
    model, sharded, optimizer = _open(daemon)
    optimizer.load_state_dict(state)
    _train(model, optimizer, 1)
    with REFUSED:  # commit 3 of what was given up
        optimizer.load_state_dict(later)
    sharded.close()


def test_a_state_that_does_not_say_its_commit_is_refused_once_there_are_moments(daemon):
    model, sharded, optimizer = _open(daemon)
    untrained = torch.optim.AdamW([nn.Parameter(torch.zeros(1)) for _ in model.parameters()], lr=0.5).state_dict()
    untrained["param_groups"][0] |= {"mode": "adamw", "bias_correction": True}
    optimizer.load_state_dict(untrained)
    assert optimizer.param_groups[0]["lr"] == 0.5
    _train(model, optimizer, 1)
    with REFUSED:
        optimizer.load_state_dict(untrained)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["paramshard"]
    with REFUSED:
        optimizer.load_state_dict(state)
    sharded.close()


@pytest.mark.parametrize("change", [lambda state: state.clear(),
                                    lambda state: next(iter(state.values())).update(step=0)], ids=["cleared", "written"])
def test_moments_that_are_set_by_hand_are_refused(daemon, change):
    model, sharded, optimizer = _open(daemon)
    _train(model, optimizer, 1)
    change(optimizer.state)
    with pytest.raises(paramshard.FailedPreconditionError, match="moments are in the daemon"):
        _train(model, optimizer, 1)
    sharded.close()


def test_a_step_that_failed_is_not_counted(daemon):
    model, sharded, optimizer = _open(daemon)
    counter = Counter()
    sharded.track(counter=counter)
    model(torch.ones(1, 8, device=DEVICE)).sum().backward()
    state = optimizer.state_dict()
    with pytest.raises(paramshard.ResourceExhaustedError):
        optimizer.step()
    optimizer.load_state_dict(state)
    counter.state = {}
    optimizer.step()
    with REFUSED:
        optimizer.load_state_dict(state)
    sharded.close()


def test_an_optimizer_that_is_tracked_comes_back(daemon):
    model, sharded, optimizer = _open(daemon)
    sharded.track(optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    _train(model, optimizer, 2)
    sharded.close()
    model, sharded, optimizer = _open(daemon)
    sharded.track(optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    sharded.close()


def test_a_distributed_checkpoint_keeps_the_commit(daemon, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    model, sharded, optimizer = _open(daemon)
    _train(model, optimizer, 1)
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=tmp_path, no_dist=True)

    def load() -> None:
        state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        set_optimizer_state_dict(model, optimizer, state["optimizer"])

    load()
    _train(model, optimizer, 1)
    with REFUSED:
        load()
    sharded.close()
