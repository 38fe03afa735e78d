"""Values that are set after the last forward are in the daemon when the model has been closed, or are told."""

import gc
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, batch_of
from test_ranks import TIMEOUT, run_ranks


def _shard(daemon, name: str = "m", rank: int = 0, trains: bool = True) -> tuple[nn.Sequential, pt.ShardedModel]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    sharded = pt.shard(module, name=name, units=[module[0], module], socket_dir=str(daemon.socket_dir),
                       local_rank=rank)
    if not trains:
        sharded.open()
        return module, sharded
    optimizer = pt.AdamW(module.parameters())
    module(batch_of(0)[:, :8].float()).square().mean().backward()
    optimizer.step()
    return module, sharded


def _bias(daemon, name: str = "m") -> list[float]:
    with daemon.client() as client:
        extents = client.export_tensors(name, parameters=["1.bias"]).extents
        return torch.cat([torch.from_numpy(each.values.copy()) for each in extents]).flatten().tolist()


def _copy(module: nn.Linear, value: torch.Tensor) -> None:
    with torch.no_grad():
        module.bias.copy_(value)


def _load(module: nn.Linear, value: torch.Tensor) -> None:
    module.load_state_dict({"bias": value}, strict=False)


WAYS = {"data": lambda module, value: setattr(module.bias, "data", value), "copy_": _copy, "load_state_dict": _load}
ways = pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in WAYS.items()])
VALUE = [1.0, 2.0, 3.0, 4.0]


@ways
@pytest.mark.parametrize("trains", [True, False], ids=["trained", "opened"])
def test_values_that_are_set_before_the_end_are_imported(daemon, write, trains):
    module, sharded = _shard(daemon, trains=trains)
    with sharded:
        write(module[1], torch.tensor(VALUE, device=DEVICE))
    assert _bias(daemon) == VALUE
    sharded.close()
    assert sharded.read("1.bias").tolist() == VALUE


def test_values_are_imported_behind_a_folder(daemon, tmp_path):
    module, sharded = _shard(daemon)
    WAYS["data"](module[1], torch.tensor(VALUE, device=DEVICE))
    sharded.save_pretrained(tmp_path)
    sharded.close()
    assert _bias(daemon) == VALUE


def test_every_rank_closes_with_its_values(start):
    daemon = start(ranks=2)
    closed = threading.Barrier(2)

    def work(rank: int) -> None:
        module, sharded = _shard(daemon, rank=rank)
        WAYS["data"](module[1], torch.tensor(VALUE, device=sharded.device))
        sharded.close()
        assert _bias(daemon) == VALUE  # for no rank returns before the import
        closed.wait(TIMEOUT)

    run_ranks(2, work)


def test_values_that_are_set_after_the_end_are_refused(daemon):
    module, sharded = _shard(daemon)
    sharded.close()
    for name in ("data", "copy_"):
        with pytest.raises(paramshard.FailedPreconditionError, match="1.bias.*closed"):
            WAYS[name](module[1], torch.tensor(VALUE))


def test_a_model_that_is_dropped_tells_what_is_lost(daemon):
    module, sharded = _shard(daemon)
    WAYS["data"](module[1], torch.tensor(VALUE))
    with pytest.warns(UserWarning, match="1.bias.*lost"):
        del sharded, module
        gc.collect()
    module, sharded = _shard(daemon, "n")
    WAYS["data"](module[1], torch.tensor(VALUE))
    sharded.close()


def test_a_parameter_in_the_place_of_another_is_told_at_the_end(daemon):
    module, sharded = _shard(daemon)
    before = sharded.read("1.bias").tolist()
    module[1].bias = nn.Parameter(torch.tensor(VALUE))
    with pytest.warns(UserWarning, match="1.bias"):
        sharded.close()
    assert _bias(daemon) == before


def test_writes_into_a_state_dict_are_told_at_the_end(daemon):
    module, sharded = _shard(daemon)
    module.state_dict()["1.bias"].zero_()
    with pytest.warns(UserWarning, match="1.bias"):
        sharded.close()


_SCRIPT = """
import sys, torch
from torch import nn
import paramshard.torch as pt

def main():
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    sharded = pt.shard(module, name="m", units=[module], socket_dir=sys.argv[1])
    sharded.open()
    module[1].bias.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return sharded

"""
_ENDS = {"returns": "kept = main()", "exits": "kept = main(); sys.exit(0)", "raises": "kept = main(); raise ValueError",
         "drops": "main(); import gc; gc.collect()"}


@pytest.mark.parametrize("end", _ENDS)
def test_a_script_that_does_not_close_loses_nothing_in_silence(daemon, end):
    ended = subprocess.run([sys.executable, "-c", _SCRIPT + _ENDS[end], str(daemon.socket_dir)], capture_output=True,
                           text=True, timeout=TIMEOUT)
    assert ended.returncode == (end == "raises"), ended.stderr
    if end in ("returns", "exits"):
        assert _bias(daemon) == VALUE, ended.stderr
        assert "lost" not in ended.stderr
    else:
        assert "1.bias" in ended.stderr and "lost" in ended.stderr
