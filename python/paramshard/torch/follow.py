"""A plain module that follows a training: its parameters are brought, in place, to versions of the daemon's model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import paramshard
from paramshard.torch.dtypes import DECODED_DTYPES, PARAMETER_DTYPES, listing
from paramshard.torch.messages import some
from paramshard.torch.peft_adapters import BaseModel, depends_on_base, plain_name
from paramshard.torch.torch_internals import (forget_compiled, is_plain, non_persistent_buffers, not_compiled,
                                              own_buffers)

_BUFFERS = ("error", "keep")


def follow(module: nn.Module, reader: paramshard.Reader, *, buffers: str = "error") -> Follower:
    """Makes a plain module follow the model of a reader, which `shard()` trains in another place.

    The module's parameters and the model's have to be the same, by name and shape; `Follower.update` compares them. A
    tied parameter may have any of its names. Types may differ: values are float32 as `numerics.md` defines them,
    rounded to the nearest even value of the parameter's type. In the trainer's `param_dtype` they are what a dense
    forward of the trainer computes with, bit by bit.

    In a module with adapters of PEFT the parameters of the base model follow a model without adapters, and adapters
    stay as they are. A model that was trained with adapters is followed by a module with the same ones.

    Args:
        module: A module of plain parameters in memory, float32, bfloat16 or float16, on any device. It may not be
            sharded itself.
        reader: The reader of the model.
        buffers: The model has no buffers: they are the program's. "error" refuses a module with persistent ones, such
            as BatchNorm's; "keep" leaves them as they are. Others are computed by the module, and always stay.

    Returns:
        The follower. The module has its own values until the first `update`.

    Raises:
        InvalidArgumentError: `buffers` is wrong, or the module has persistent buffers, or a parameter of another type
            or without memory. Names the first.
        UnimplementedError: A parameter is sharded, or of another class or layout than a plain one.
    """
    if buffers not in _BUFFERS:
        raise paramshard.InvalidArgumentError(f'follow: want buffers="error" or "keep", got {buffers!r}')
    persistent = [f"{prefix}.{name}" if prefix else name for prefix, owner in module.named_modules()
                  for name, buffer in own_buffers(owner).items()
                  if buffer is not None and name not in non_persistent_buffers(owner)]
    if persistent and buffers == "error":
        raise paramshard.InvalidArgumentError(
            f"follow {reader.model}: the module has buffers {some(persistent)}, and the model has none: bring them up "
            'to date yourself, and set buffers="keep"')
    _names_in(module, f"follow {reader.model}")
    return Follower(module, reader)


class Follower:
    """Brings a module's parameters to the newest version of a model. Made by `follow`. One thread at a time uses it.

        follower = pt.follow(model, paramshard.Reader("run7"))
        while follower.update(timeout=600.0, newer=True) is not None:
            print(follower.version, evaluate(model))
    """

    def __init__(self, module: nn.Module, reader: paramshard.Reader):
        self._module = module
        self._reader = reader
        self._refusals: list[RemovableHandle] = []
        self._is_half_new = False  # since an update that broke off
        self._present: tuple[str, int] | None = None  # history and version
        self._data = b""
        # Compared once for a history, in which the model has the same parameters: a snapshot does not wait for it.
        self._compared: tuple[str, dict[nn.Parameter, list[str]]] | None = None
        self._parameters: dict[str, nn.Parameter] = {}

    @property
    def version(self) -> int | None:
        """The version of the module's parameters, as `Snapshot.version`. None before the first update, and after one
        that broke off."""
        return None if self._present is None else self._present[1]

    @property
    def history(self) -> str | None:
        """The history in which it counts, as `Snapshot.history`."""
        return None if self._present is None else self._present[0]

    @property
    def data(self) -> bytes:
        """The data that the trainer gave with the last version that was copied whole, as `Snapshot.data`."""
        return self._data

    def update(self, timeout: float = 60.0, newer: bool = False) -> int | None:
        """Brings the parameters to the newest version, in the memory that they have.

        A step of the trainers waits for the copy, for the daemon's --reader-hold at most. If it takes longer, the
        update begins again with the next version until `timeout` has passed. From the first byte that is written until
        an update has succeeded, calls of the module and of its parts raise FailedPreconditionError: parameters are
        half new.

        Args:
            timeout: How long to wait for a version that is readable, in seconds.
            newer: Waits for a version that is newer than the present one.

        Returns:
            The version, or None if the module has the newest one already: nothing was written.

        Raises:
            NotFoundError: A parameter of the module is not in the model. Nothing was written.
            InvalidArgumentError: A parameter of the model is not in the module, or has another shape. Nothing was
                written.
            FailedPreconditionError: Adapters are merged into the base model, or were computed from its values. Nothing
                was written. Also as `Reader.acquire`.
            AbortedError: No copy was whole within `timeout`: the parameters are half new. Call it again.
            DeadlineExceededError: There was no such version within `timeout`.
        """
        deadline = time.monotonic() + timeout
        if newer and self._present is not None:
            history, version = self._present
            self._reader.wait_newer(version, timeout=timeout, history=history)
        try:
            while True:
                try:
                    return self._copy_newest(max(deadline - time.monotonic(), 0.0))
                except paramshard.AbortedError:
                    if time.monotonic() >= deadline:
                        raise
        finally:
            # Compiled code does not see hooks that come or go.
            if self._is_half_new != bool(self._refusals):
                self._is_half_new = bool(self._refusals)
                forget_compiled()

    def _copy_newest(self, timeout: float) -> int | None:
        names = _names_in(self._module, self._what)
        merged = [name for name, each in self._module.named_modules() if getattr(each, "merged_adapters", None)]
        if merged:
            raise paramshard.FailedPreconditionError(
                f"{self._what}: adapters are merged into {some(merged)}: unmerge them")
        with self._reader.acquire(timeout=timeout) as snapshot:
            if (snapshot.history, snapshot.version) == self._present:
                return None
            if self._compared != (snapshot.history, names):
                self._parameters = self._match(names, snapshot.parameters())
                self._compared = snapshot.history, names
            self._begin_writing()
            with torch.no_grad():
                _copy(snapshot, self._parameters)
            self._end_writing(snapshot.history, snapshot.version)
            self._data = snapshot.data
            return snapshot.version

    # --- Names ---

    @property
    def _what(self) -> str:
        return f"follow {self._reader.model}"

    def _match(self, names_of: Mapping[nn.Parameter, list[str]],
               known: list[paramshard.ReadParameter]) -> dict[str, nn.Parameter]:
        """Returns the module's parameters by their names in the model."""
        what = self._what
        by_plain = {plain_name(parameter.name): parameter.name for parameter in known}
        base = BaseModel(self._module)
        places: dict[str, tuple[str, nn.Parameter]] = {}  # each with a name in the module
        missing: list[str] = []
        for parameter, names in names_of.items():
            own = {by_plain.get(plain_name(name)) for name in names} - {None}
            of_base = {base.name_of(name) for name in names} - {None}
            found = own or {by_plain.get(name) for name in of_base} - {None}
            if not found and of_base:
                missing.append(names[0])
            elif len(found) > 1:
                raise paramshard.InvalidArgumentError(
                    f"{what}: {some(names)} are one parameter of the module, and {some(sorted(found))} of the model "
                    "are not tied")
            elif found:
                name = found.pop()
                if name in places:
                    raise paramshard.InvalidArgumentError(
                        f"{what}: {places[name][0]} and {names[0]} of the module are both {name} of the model")
                places[name] = names[0], parameter
                if not own and (adapter := depends_on_base(self._module)) is not None:
                    raise paramshard.FailedPreconditionError(
                        f"{what}: adapter {adapter} was computed from other values of the base model")
        left = [parameter.name for parameter in known if parameter.name not in places]
        if missing:
            instead = f"; the model has {some(left)} instead" if left else ""
            raise paramshard.NotFoundError(f"{what}: {some(missing)} of the module not found in the model{instead}")
        if left:
            raise paramshard.InvalidArgumentError(f"{what}: the module has no place for {some(left)} of the model")
        for parameter in known:
            name, place = places[parameter.name]
            if list(place.shape) != parameter.shape:
                raise paramshard.InvalidArgumentError(
                    f"{what}: {name}: want shape {list(place.shape)}, as in the module, got {parameter.shape}")
        return {name: parameter for name, (_, parameter) in places.items()}

    # --- Writing ---

    def _begin_writing(self) -> None:
        self._present = None
        if not self._refusals:
            for each in self._module.modules():
                self._refusals.append(each.register_forward_pre_hook(_refuse_forward, prepend=True))
        # Memory is written where autograd does not see it.
        torch.autograd.graph.increment_version(
            [each for each in self._parameters.values() if not each.is_inference()])

    def _end_writing(self, history: str, version: int) -> None:
        for refusal in self._refusals:
            refusal.remove()
        self._refusals = []
        self._present = history, version


@not_compiled
def _refuse_forward(*_: Any) -> None:
    raise paramshard.FailedPreconditionError(
        "forward of a module that follows a training: its last update broke off, and its parameters are half new: call "
        "update() until it succeeds")


def _names_in(module: nn.Module, what: str) -> dict[nn.Parameter, list[str]]:
    """Returns the parameters that have elements, which are those of a model, each with its name by every path to it."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel():
            _check(f"{what}: {name}", parameter)
            names.setdefault(parameter, []).append(name)
    return names


def _check(what: str, parameter: nn.Parameter) -> None:
    if not is_plain(parameter):
        raise paramshard.UnimplementedError(
            f"{what} is a {type(parameter).__name__} of layout {parameter.layout}: want a plain nn.Parameter, in a "
            "module of its own that is not sharded")
    if parameter.is_meta:
        raise paramshard.InvalidArgumentError(f"{what} lies on `meta`: want a parameter in memory")
    if parameter.dtype not in PARAMETER_DTYPES:
        raise paramshard.InvalidArgumentError(f"{what}: want {listing(PARAMETER_DTYPES)}, got {parameter.dtype}")


def _copy(snapshot: paramshard.Snapshot, parameters: Mapping[str, nn.Parameter]) -> None:
    decoded = {name: parameter for name, parameter in parameters.items()
               if parameter.device.type == "cpu" and parameter.is_contiguous() and parameter.dtype in DECODED_DTYPES}
    snapshot.copy_into({name: parameter.detach() for name, parameter in decoded.items()})
    for name, parameter in parameters.items():
        if name not in decoded:
            parameter.copy_(torch.from_numpy(snapshot[name]))
    snapshot.check()
