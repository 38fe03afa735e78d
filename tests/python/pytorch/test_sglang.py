"""SGLang's loader, with a module that loads weights as SGLang's models do: fused layers, and names of a checkpoint."""

from __future__ import annotations

import types
from collections.abc import Iterable

import pytest
import torch
from torch import nn

import paramshard
from conftest import Daemon
from paramshard import sglang

SHAPES = {"q.weight": [8, 16], "k.weight": [4, 16], "norm.weight": [16]}


class Engine(nn.Module):
    """Has q and k as one parameter."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.qk = nn.Linear(16, 12, bias=False, dtype=dtype)
        self.norm = nn.RMSNorm(16, dtype=dtype)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        rows = {"q.weight": slice(0, 8), "k.weight": slice(8, 12)}
        loaded = set()
        for name, value in weights:
            place = self.qk.weight.data[rows[name]] if name in rows else self.get_parameter(name).data
            place.copy_(value)
            loaded.add("qk.weight" if name in rows else name)
        return loaded


class Model:
    """The model "policy" of a daemon."""

    def __init__(self, daemon: Daemon, shapes: dict[str, list[int]] = SHAPES):
        spec = paramshard.ModelSpec("policy", [paramshard.UnitSpec("all", [
            paramshard.ParameterSpec(name, shape, initial_value=paramshard.InitialValue("normal", 0.0, 1.0))
            for name, shape in shapes.items()])])
        self._client = daemon.client()
        self._model = self._client.open_model(spec)

    def step(self) -> None:
        with self._model.gradients("all") as gradients:
            for name in SHAPES:
                gradients[name][...] = 1.0
            gradients.push()
        self._model.commit(learning_rate=0.1).wait()


@pytest.fixture
def daemon(daemon: Daemon, monkeypatch) -> Daemon:
    monkeypatch.setenv("PARAMSHARD_SOCKET_DIR", str(daemon.socket_dir))
    sglang._reader_of.cache_clear()
    return daemon


def check_values(engine: Engine, daemon: Daemon, version: int) -> None:
    with paramshard.Reader("policy", socket_dir=str(daemon.socket_dir)).acquire() as snapshot:
        assert engine.paramshard_version == f"{snapshot.history}:{version}"
        values = {name: torch.from_numpy(snapshot[name]).to(engine.qk.weight.dtype) for name in SHAPES}
    assert torch.equal(engine.qk.weight, torch.cat([values["q.weight"], values["k.weight"]]))
    assert torch.equal(engine.norm.weight, values["norm.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_versions_are_loaded(daemon: Daemon, dtype: torch.dtype):
    model, engine = Model(daemon), Engine(dtype)
    for version in range(3):
        sglang.load(engine, sglang.request("policy", min_version=version))
        check_values(engine, daemon, version)
        model.step()


def test_a_version_that_ends_is_given_up_for_the_next(daemon: Daemon, monkeypatch):
    model, engine = Model(daemon), Engine()
    reader = sglang._reader_of("policy")
    acquire, copies = reader.acquire, []

    def overtaken(min_version: int | None = None, timeout: float = 60.0) -> paramshard.Snapshot:
        snapshot = acquire(min_version, timeout)
        if min_version is not None:  # for a copy
            copies.append(snapshot.version)
            if len(copies) in (1, 3):
                model.step()
        return snapshot

    reader.acquire = overtaken
    sglang.load(engine, sglang.request("policy"))
    assert copies == [0, 1] and engine.paramshard_version.endswith(":1")
    # Its time has passed with the step.
    monkeypatch.setattr(paramshard.reader, "time", types.SimpleNamespace(monotonic=lambda: 60.0 * (len(copies) == 3)))
    with pytest.raises(paramshard.AbortedError, match="load: .*every version ended.*commit 1.*nothing was loaded"):
        sglang.load(engine, sglang.request("policy"))
    assert engine.paramshard_version.endswith(":1")


@pytest.mark.parametrize("tensors", [[], [("q.weight", torch.zeros(8, 16))], [("a", torch.tensor(1))] * 2], ids=len)
def test_other_tensors_are_refused(tensors: list[tuple[str, torch.Tensor]]):
    with pytest.raises(paramshard.InvalidArgumentError, match="want the tensors of paramshard.sglang.request"):
        sglang.load(Engine(), tensors)


def test_an_engine_of_several_processes_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(paramshard.UnimplementedError, match="one process, got 2"):
        sglang.load(Engine(), sglang.request("policy"))


def test_a_quantized_engine_is_refused():
    engine = Engine()
    engine.qk.weight = nn.Parameter(torch.zeros(12, 16, dtype=torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(paramshard.UnimplementedError, match="qk.weight of the engine: .*float8_e4m3fn"):
        sglang.load(engine, sglang.request("policy"))


def test_a_parameter_that_was_not_loaded_is_named(daemon: Daemon):
    Model(daemon, {name: shape for name, shape in SHAPES.items() if name != "norm.weight"})
    engine = Engine()
    with pytest.raises(paramshard.InternalError, match="norm.weight of the engine was not loaded"):
        sglang.load(engine, sglang.request("policy"))
    assert engine.paramshard_version is None


def test_a_parameter_that_differs_is_named(daemon: Daemon, monkeypatch):
    Model(daemon)
    monkeypatch.setattr(Engine, "load_weights", lambda *_: None)
    with pytest.raises(paramshard.InternalError, match="norm.weight of the engine differs from version"):
        sglang.load(Engine(), sglang.request("policy"))
