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
from paramshard.torch.module_tree import ModuleTree
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
    if not isinstance(module, nn.Module):
        raise TypeError(f"follow: want a module, got {type(module).__name__}")
    if not hasattr(reader, "acquire"):
        raise TypeError(f"follow: want a paramshard.Reader, got {type(reader).__name__}")
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
        while True:
            follower.update(newer=True, timeout=600.0)  # DeadlineExceededError: no new version for 10 minutes
            print(follower.version, evaluate(model))
    """

    def __init__(self, module: nn.Module, reader: paramshard.Reader):
        self._module = module
        self._reader = reader
        self._refusals: list[RemovableHandle] = []
        self._present: tuple[str, int] | None = None  # history and version
        self._data = b""
        self._refused_meanwhile: RemovableHandle | None = None
        # Looked at once, until something is replaced.
        self._tree: ModuleTree | None = None
        self._names: dict[nn.Parameter, list[str]] = {}
        self._adapted: dict[str, nn.Module] = {}  # layers with adapters of PEFT
        # Compared once for a history, in which the model has the same parameters: a snapshot does not wait for it.
        self._compared: str | None = None
        self._destination: _Destination | None = None

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
            The version, or None if the module has the newest one already: nothing was written. A module whose
            parameters were replaced, or have got other memory, has none; values that the program writes into them in
            place are not noticed.

        Raises:
            NotFoundError: A parameter of the module is not in the model. Nothing was written.
            InvalidArgumentError: A parameter of the model is not in the module, or has another shape. Nothing was
                written.
            FailedPreconditionError: Adapters are merged into the base model, or were computed from its values. Nothing
                was written. Also as `Reader.acquire`.
            AbortedError: No copy was whole within `timeout`: the parameters are half new. Call it again.
            UnavailableError: The daemon died during the copy, and did not come back within `timeout`: likewise.
            DeadlineExceededError: There was no such version within `timeout`. If a copy had begun, `version` is None, and
                the parameters are half new.
        """
        deadline = time.monotonic() + timeout
        refused = bool(self._refusals)
        self._look_at_module()
        if newer and self._present is not None:
            history, version = self._present
            self._reader.wait_newer(version, timeout=timeout, history=history)
        try:
            copied = self._reader.read(self._copy, timeout=max(deadline - time.monotonic(), 0.0))
            if copied is None:
                return None
            self._end_writing(copied)
            return copied.version
        finally:
            self._end_meanwhile()
            # Compiled code does not see hooks that come or go.
            if refused != bool(self._refusals):
                forget_compiled()

    def _copy(self, snapshot: paramshard.Snapshot) -> paramshard.Copied | None:
        if (snapshot.history, snapshot.version) == self._present:
            return None
        if self._compared != snapshot.history:
            parameters = self._match(self._names, snapshot.parameters())
            self._destination = _Destination(snapshot.parameters(), parameters)
            self._compared = snapshot.history
        self._begin_writing()
        with torch.no_grad():
            self._destination.copy(snapshot)
        return paramshard.Copied(snapshot.history, snapshot.version, snapshot.data)

    def _look_at_module(self) -> None:
        is_known = (self._tree is not None and self._tree.is_present() and
                    (self._destination is None or self._destination.is_present()))
        if not is_known:
            self._compared = self._present = None
            self._names = _names_in(self._module, self._what)
            self._tree = ModuleTree(self._module)
            self._adapted = {name: each for name, each in self._module.named_modules()
                             if hasattr(each, "merged_adapters")}
        merged = [name for name, each in self._adapted.items() if each.merged_adapters]
        if merged:
            raise paramshard.FailedPreconditionError(
                f"{self._what}: adapters are merged into {some(merged)}: unmerge them")

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
        # One hook of all modules: those of each take longer than a copy.
        if not self._refusals and self._refused_meanwhile is None:
            self._refused_meanwhile = nn.modules.module.register_module_forward_pre_hook(self._refuse_own)
        # Memory is written where autograd does not see it.
        torch.autograd.graph.increment_version(self._destination.tracked)

    def _end_writing(self, copied: paramshard.Copied) -> None:
        for refusal in self._refusals:
            refusal.remove()
        self._refusals = []
        self._present = copied.history, copied.version
        self._data = copied.data

    def _end_meanwhile(self) -> None:
        if self._refused_meanwhile is None:
            return
        if self._present is None:
            for each in self._tree.modules:
                self._refusals.append(each.register_forward_pre_hook(_refuse_forward, prepend=True))
        self._refused_meanwhile.remove()
        self._refused_meanwhile = None

    def _refuse_own(self, module: nn.Module, _: Any) -> None:
        if module in self._tree.modules:
            _refuse_forward()


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
    if any(stride == 0 and size > 1 for stride, size in zip(parameter.stride(), parameter.shape)):
        raise paramshard.InvalidArgumentError(f"{what} has elements that share memory: want one of its own for each")
    if parameter.dtype not in PARAMETER_DTYPES:
        raise paramshard.InvalidArgumentError(f"{what}: want {listing(PARAMETER_DTYPES)}, got {parameter.dtype}")


class _Destination:
    """The memory of a module's parameters: of each device by a plan, and what no plan can write one by one."""

    def __init__(self, model: list[paramshard.ReadParameter], parameters: Mapping[str, nn.Parameter]):
        self._parameters = list(parameters.values())
        self._memory = self._present_memory()
        # Parameters whose versions autograd counts.
        self.tracked = [each for each in self._parameters if not each.is_inference()]
        self._plans: list[tuple[torch.device, paramshard.Plan]] = []
        self._others: dict[str, nn.Parameter] = {}
        by_device: dict[torch.device, dict[str, nn.Parameter]] = {}
        for name, parameter in parameters.items():
            if _is_plannable(parameter):
                by_device.setdefault(parameter.device, {})[name] = parameter
            else:
                self._others[name] = parameter
        for device, some in by_device.items():
            view = paramshard.View(model, [
                paramshard.Output(name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."),
                                  [paramshard.Part(name)]) for name, parameter in some.items()])
            plan = paramshard.Plan(view, {name: parameter.detach() for name, parameter in some.items()})
            self._plans.append((device, plan))

    def is_present(self) -> bool:
        """Returns False after the module was moved, or a parameter has got other memory."""
        return self._memory == self._present_memory()

    def _present_memory(self) -> list[tuple[int, torch.dtype, torch.Size, tuple[int, ...]]]:
        return [(each.data_ptr(), each.dtype, each.shape, each.stride()) for each in self._parameters]

    def copy(self, snapshot: paramshard.Snapshot) -> None:
        for device, plan in self._plans:
            if device.type == "cuda":
                snapshot.copy_into(plan, stream=torch.cuda.current_stream(device).cuda_stream)
            else:
                snapshot.copy_into(plan)
        for name, parameter in self._others.items():
            parameter.copy_(torch.from_numpy(snapshot[name]))


def _is_plannable(parameter: nn.Parameter) -> bool:
    if not parameter.is_contiguous():
        return False
    return parameter.device.type == "cpu" or (parameter.device.type == "cuda" and parameter.dtype in DECODED_DTYPES)
