"""States that come back after a crash besides the model: schedulers, loaders, random number generators."""

from __future__ import annotations

import copy
import io
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim.lr_scheduler import LRScheduler

import paramshard
from paramshard._core import MAX_CLIENT_STATE_BYTES
from paramshard.torch.torch_internals import pytree

_RUN = "the run"  # not an identifier, so that no tracked object has this name
_HISTORY = "the history"  # likewise


class Stateful(Protocol):
    """Interface of schedulers, StatefulDataLoader and many others."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class RandomState:
    """Random number generators: of torch, of the GPU in use, of Python, and of NumPy if it is loaded."""

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = random.getstate()
        state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, torch.tensor(words), gauss]}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        if "numpy.random" in sys.modules:
            kind, keys, position, has_gauss, cached = sys.modules["numpy.random"].get_state()
            state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), position, has_gauss, cached]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])
        if "numpy" in state:
            import numpy.random
            kind, keys, *rest = state["numpy"]
            numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))


class Schedule:
    """A scheduler with the rates that it has set: it computes the next rates from them, but does not record them."""

    def __init__(self, scheduler: LRScheduler):
        self._scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        groups = [{key: value for key, value in group.items() if key not in ("params", "param_names")}
                  for group in self._scheduler.optimizer.param_groups]
        return {"scheduler": self._scheduler.state_dict(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state["scheduler"])
        for group, saved in zip(self._scheduler.optimizer.param_groups, state["groups"]):
            group.update(saved)


class TrackedState:
    """Objects whose states are recorded with every commit.

    A commit takes the learning rates of its own step, but records schedulers that have moved on. So other objects are
    read in `step`, and the commit is sent when all schedulers have stepped, or else when the next forward begins.
    """

    def __init__(self, send: Callable[[], None], run: str):
        self._send = send
        self._run = run
        self._untracked: tuple[str, bytes] | None = None  # a history, and the client state of its steps
        self._objects: dict[str, Stateful] = {}
        self._schedules: dict[str, Schedule] = {}
        self._to_step: set[str] = set()
        self._read: dict[str, Any] = {}
        self._have_loaded: set[str] = set()

    def add(self, name: str, tracked: Stateful, restored: dict[str, Any] | None) -> None:
        """Tracks an object. `restored`: its state at the commit that training goes on from; None at the beginning."""
        if not (hasattr(tracked, "state_dict") and hasattr(tracked, "load_state_dict")):
            raise paramshard.InvalidArgumentError(
                f"track {name}: want an object with state_dict and load_state_dict, got {type(tracked).__name__}")
        if name in self._objects or name in self._schedules:
            raise paramshard.InvalidArgumentError(f"track {name}: already tracked")
        if isinstance(tracked, LRScheduler):
            self._note_steps(name, tracked)
            tracked = self._schedules[name] = Schedule(tracked)
        else:
            self._objects[name] = tracked
        if restored is not None:
            tracked.load_state_dict(restored)

    def _note_steps(self, name: str, scheduler: LRScheduler) -> None:
        kind, to_step, send = type(scheduler), self._to_step, self._send

        def step(self: LRScheduler, *arguments: Any, **options: Any) -> None:
            kind.step(self, *arguments, **options)
            if name in to_step:
                to_step.discard(name)
                if not to_step:
                    send()

        # A class of its own, because attributes of the object are part of a scheduler's state.
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})

    @property
    def waits_for_schedulers(self) -> bool:
        return bool(self._schedules)

    def read(self) -> None:
        """Reads states at the end of a step, before anything of the next step is drawn or loaded."""
        self._read = {name: tracked.state_dict() for name, tracked in self._objects.items()}
        if self._schedules:
            # Live objects in a state go on changing until the schedulers have stepped.
            self._check_loads(self._read)
            self._read = pytree.tree_map(_copy, self._read)
        self._to_step.update(self._schedules)

    def take(self, history: str) -> bytes:
        """Returns the client state of the step that was read. `history`: the history that counts the step.

        ResourceExhaustedError gives the sizes of states that are too large; InvalidArgumentError names one that could
        not be loaded again.
        """
        self._to_step.clear()
        states = self._read | {name: schedule.state_dict() for name, schedule in self._schedules.items()}
        if not states:
            if self._untracked is None or self._untracked[0] != history:
                self._untracked = history, pack({_RUN: self._run, _HISTORY: history})
            return self._untracked[1]
        self._check_loads(states)
        packed = pack(states | {_RUN: self._run, _HISTORY: history})
        if len(packed) > MAX_CLIENT_STATE_BYTES:
            sizes = ", ".join(f"{name}: {len(pack(state))}" for name, state in states.items())
            raise paramshard.ResourceExhaustedError(
                f"track: want at most {MAX_CLIENT_STATE_BYTES} bytes of state in all, got {len(packed)} ({sizes}); "
                "save what is larger in a file, and track its name")
        return packed

    def _check_loads(self, states: dict[str, Any]) -> None:
        """Refuses, at the first step, states that could not be loaded after a crash."""
        for name in states.keys() - self._have_loaded:
            try:
                torch.load(io.BytesIO(pack(states[name])), weights_only=True)
            except Exception as error:  # any error that pickling an unknown object raises
                raise paramshard.InvalidArgumentError(
                    f"track {name}: want a state of tensors, numbers, strings, lists and dicts, got one that cannot "
                    f"be written, or loaded without running code of its own: {error.__cause__ or error}") from error
            self._have_loaded.add(name)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def pack(state: Any) -> bytes:
    """Serializes a state. unpack() reads it without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


class ClientState(NamedTuple):
    """Tracked states that a commit carries, and the training that they belong to."""

    states: dict[str, Any]  # by tracked name
    run: str | None  # None, like history: values were imported since, and nothing is recorded
    history: str | None  # of the commit; a restored commit has one of an earlier history


def unpack(packed: bytes) -> ClientState:
    """Reads a result of `TrackedState.take`. DataLossError for other bytes."""
    try:
        states = torch.load(io.BytesIO(packed), weights_only=True, map_location="cpu") if packed else {}
        return ClientState(run=states.pop(_RUN, None), history=states.pop(_HISTORY, None), states=states)
    except Exception as error:
        raise paramshard.DataLossError(
            f"client state: want a record of this package, got {len(packed)} other bytes: {error}") from error
