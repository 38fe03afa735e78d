"""Weights of vLLM from a model of the daemon: the weight-transfer backend "paramshard".

    llm = vllm.LLM(checkpoint, weight_transfer_config={"backend": "paramshard"})
    llm.init_weight_transfer_engine({"init_info": {"model": "policy"}})
    version = paramshard.vllm.update(llm)                       # "HISTORY:COMMIT"; update_async for an AsyncLLM

vLLM finds the backend by the entry point of this package, in all of its processes. docs/train/vllm.md has the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.v1.worker.worker_base import WorkerBase

import paramshard

BACKEND = "paramshard"
_BLOCK = 128  # rows and columns with one scale
_SCALES = "weight_scale_inv"
_ENCODING = "FP8_BLOCK_128X128 of E4M3"  # of a quantized engine
_LISTED = 3  # most names in a message


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The model that an engine reads."""

    model: str
    socket_dir: str | None = None  # as for Client
    name: str = "vllm"  # shown by `paramshardctl readers`
    # Prefixes of the model's names, and what the engine's names have instead, such as {"policy.": ""}. None leaves the
    # parameters out: {"value_head.": None}. The first that fits counts; other names are the same in both.
    prefixes: dict[str, str | None] = field(default_factory=dict)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The least version to read, in the model's present history, and how long to wait for it."""

    min_version: int = 0
    timeout: float = 60.0  # seconds


@dataclass
class _Target:
    """A parameter of the engine: rows of one parameter of the model, or of several, one below the other."""

    name: str
    module: torch.nn.Module
    key: str
    shape: torch.Size  # without rows that only pad
    dtype: torch.dtype
    parts: dict[str, int]  # rows, by name
    tied: list[torch.nn.Module]  # other modules that have it

    @property
    def quantized(self) -> bool:
        """Returns true for codes and their scales, which are read as stored."""
        return self.key == _SCALES or self.dtype == torch.float8_e4m3fn

    def views(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip(self.parts, values.split(list(self.parts.values())), strict=True))

    def output(self, names: dict[str, str]) -> paramshard.Output:
        """Returns how it is made of the model's parameters, by the engine's names of these."""
        what = "scales" if self.key == _SCALES else "codes" if self.quantized else "decoded"
        return paramshard.Output(self.name, self.shape, str(self.dtype).removeprefix("torch."), [
            paramshard.Part(names[part.removesuffix("_scale_inv")], what=what) for part in self.parts])

    def read(self) -> Iterator[torch.Tensor]:
        """Yields what the engine has, once for each place from which it computes. FP8 kernels keep other layouts."""
        if self.quantized:
            return
        for module in (self.module, *self.tied):
            tensor = getattr(module, self.key)
            if tensor.numel() > 0:
                yield tensor[:self.shape[0]]
            # On CPUs vLLM multiplies by packed weights. The product with unit vectors is exact.
            if self.key == "weight" and hasattr(module, "cpu_linear"):
                columns = torch.eye(self.shape[1], dtype=self.dtype, device=tensor.device).split(1024)
                yield torch.cat([module.cpu_linear(each, tensor, None) for each in columns]).T[:self.shape[0]]


def _rows_of_parts(module: torch.nn.Module, path: str, key: str, rows: int,
                   packed: dict[str, list[str]]) -> dict[str, int]:
    """Returns rows by name: vLLM's fused layers are several layers in a model."""
    parent, _, last = path.rpartition(".")
    if last not in packed:
        return {f"{path}.{key}": getattr(module, "org_vocab_size", rows)}
    prefix = f"{parent}." if parent else ""
    block = _BLOCK if key == _SCALES else 1
    return {f"{prefix}{name}.{key}": size // block
            for name, size in zip(packed[last], module.output_sizes, strict=True)}


def _targets_of(model: torch.nn.Module) -> list[_Target]:
    """Returns all parameters of an engine's model, as they are before its kernels repack them."""
    packed = getattr(model, "packed_modules_mapping", {})
    targets: list[_Target] = []
    first_of: dict[int, _Target] = {}
    for path, module in model.named_modules():
        before = get_layerwise_info(module).restore_metadata[0]
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in first_of:
                first_of[id(parameter)].tied.append(module)
                continue
            loaded = before.get(key, parameter)
            parts = _rows_of_parts(module, path, key, loaded.shape[0], packed)
            shape = torch.Size([sum(parts.values()), *loaded.shape[1:]])
            targets.append(_Target(f"{path}.{key}", module, key, shape, loaded.dtype, parts, []))
            first_of[id(parameter)] = targets[-1]
    return targets


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads versions of a model into vLLM's, all of it or nothing.

    An update copies a version into host memory and checks that it is whole, and that names and shapes are the engine's.
    Until then the engine's weights are not touched. Then vLLM loads the copy as it reloads a checkpoint, and what the
    engine has is compared with it.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Version of the weights; vLLM calls those that it has started with "default". None: not whole.
        self.version: str | None = "default"
        self._reader: paramshard.Reader | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._check_engine()
        self._info = init_info
        self._reader = paramshard.Reader(init_info.model, socket_dir=init_info.socket_dir, name=init_info.name)

    def start_weight_update(self) -> None:
        if self._reader is None:
            raise paramshard.FailedPreconditionError("call init_weight_transfer_engine before start_weight_update")
        if self.version is None:
            raise paramshard.FailedPreconditionError("an earlier update failed while weights were loaded: start a new "
                                                     "engine")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":  # where synchronize() fails if PyTorch has been built with CUDA
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        targets = _targets_of(self.model)
        values, version = self._copy(targets, update_info)
        self.version = None
        try:
            self._load(targets, values)
            self._check_loaded(targets, values, version)
        except BaseException:
            initialize_layerwise_reload(self.model)  # takes all weights away: rather no answers than wrong ones
            raise
        self.version = version

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        self._reader = None

    def _check_engine(self) -> None:
        """Raises for engines into which this backend does not load."""
        sizes = self.parallel_config
        limits = [("tensor_parallel_size", sizes.tensor_parallel_size, 1),
                  ("pipeline_parallel_size", sizes.pipeline_parallel_size, 1),
                  ("data_parallel_size", sizes.data_parallel_size, 1),
                  ("lora_config", self.vllm_config.lora_config, None)]
        if self.model_config.quantization is not None:
            limits += [("quantization", self.model_config.quantization, "fp8"),
                       ("weight_block_size", getattr(self.vllm_config.quant_config, "weight_block_size", None),
                        [_BLOCK, _BLOCK])]
        for name, value, wanted in limits:
            if value != wanted:
                raise paramshard.UnimplementedError(f"backend {BACKEND}: {name}: want {wanted}, got {value}")
        for target in _targets_of(self.model):
            if not target.quantized and target.dtype not in (torch.float32, torch.bfloat16):
                raise paramshard.UnimplementedError(
                    f"backend {BACKEND}: {target.name}: want float32 or bfloat16, got {target.dtype}")

    def _engine_name(self, name: str) -> str | None:
        for prefix, replacement in self._info.prefixes.items():
            if name.startswith(prefix):
                return None if replacement is None else replacement + name[len(prefix):]
        return name

    def _outputs(self, targets: list[_Target],
                 parameters: list[paramshard.ReadParameter]) -> list[paramshard.Output]:
        """Returns what is read for each target. Raises unless the parameters of engine and model are the same."""
        model = f"model {self._info.model}"

        def refusal(text: str) -> paramshard.FailedPreconditionError:
            return paramshard.FailedPreconditionError(f"{text}: nothing was loaded")

        found: dict[str, paramshard.ReadParameter] = {}
        for parameter in parameters:
            name = self._engine_name(parameter.name)
            if name in found:
                raise refusal(f"{model}: prefixes give {found[name].name} and {parameter.name} the same name, {name}")
            if name is not None:
                found[name] = parameter
        wanted = {name: (target, rows) for target in targets if target.key != _SCALES
                  for name, rows in target.parts.items()}
        if missing := [name for name in wanted if name not in found]:
            raise refusal(f"{model} has no {_listed(missing)}, which the engine needs")
        if unknown := [parameter.name for name, parameter in found.items() if name not in wanted]:
            raise refusal(f"the engine has no {_listed(unknown)} of {model}")
        for name, (target, rows) in wanted.items():
            parameter = found[name]
            shape, encoding = [rows, *target.shape[1:]], f"{parameter.format} of {parameter.element}"
            if list(parameter.shape) != shape:
                raise refusal(f"{model}: {parameter.name}: want {shape}, got {list(parameter.shape)}")
            if target.quantized and encoding != _ENCODING:
                raise refusal(f"{model}: {parameter.name}: want {_ENCODING} for a quantized engine, got {encoding}")
        names = {name: parameter.name for name, parameter in found.items()}
        return [target.output(names) for target in targets]

    def _copy(self, targets: list[_Target], info: UpdateInfo) -> tuple[list[torch.Tensor], str]:
        """Returns a version's values, by target, and its label."""
        assert self._reader is not None
        values = {target.name: torch.zeros(target.shape, dtype=target.dtype, device="cpu") for target in targets}

        def copy(snapshot: paramshard.Snapshot) -> str:
            view = paramshard.View(snapshot.parameters(), self._outputs(targets, snapshot.parameters()))
            snapshot.copy_into(paramshard.Plan(view, values))
            return f"{snapshot.history}:{snapshot.version}"

        try:
            version = self._reader.read(copy, min_version=info.min_version, timeout=info.timeout)
        except (paramshard.AbortedError, paramshard.DeadlineExceededError, paramshard.UnavailableError) as error:
            raise type(error)(f"{error}: nothing was loaded") from error
        return list(values.values()), version

    def _load(self, targets: list[_Target], values: list[torch.Tensor]) -> None:
        initialize_layerwise_reload(self.model)
        self.model.load_weights(item for target, each in zip(targets, values, strict=True)
                                for item in target.views(each).items())
        finalize_layerwise_reload(self.model, self.model_config)
        for target in targets:
            for module in target.tied:  # vLLM repacks in one of the modules alone
                module.quant_method.process_weights_after_loading(module)

    def _check_loaded(self, targets: list[_Target], values: list[torch.Tensor], version: str) -> None:
        for target, each in zip(targets, values, strict=True):
            for present in target.read():
                views = target.views(present.to("cpu"))
                for name, wanted in target.views(each).items():
                    if not torch.equal(views[name], wanted):
                        raise paramshard.InternalError(f"{name}: what was loaded differs from version {version}: start "
                                                       "a new engine")


def _paramshard_version(worker: WorkerBase) -> str | None:
    return worker.weight_transfer_engine.version


def register() -> None:
    """Registers the backend; vLLM calls it in each of its processes, by the entry point."""
    with contextlib.suppress(ValueError):  # it is registered already
        WeightTransferEngineFactory.register_engine(BACKEND, Engine)
    WorkerBase.paramshard_version = _paramshard_version  # for collective_rpc


def update(llm: Any, *, min_version: int = 0, timeout: float = 60.0) -> str:
    """Loads the newest version of the model into a vllm.LLM, and returns its label, "HISTORY:COMMIT".

    Outputs have it as `weight_versions`. Waits `timeout` seconds at most for `min_version`. No request may be running.
    If it raises, the engine has the weights that it had before, or, after InternalError, none.
    """
    if llm.llm_engine.has_unfinished_requests():
        raise paramshard.FailedPreconditionError("requests are running: wait for them or abort them, nothing was "
                                                 "loaded")
    llm.start_weight_update()
    llm.update_weights({"update_info": {"min_version": min_version, "timeout": timeout}})
    [version] = llm.collective_rpc("paramshard_version")
    llm.finish_weight_update(weight_version=version)
    llm.reset_prefix_cache()
    return version


async def update_async(llm: Any, *, min_version: int = 0, timeout: float = 60.0, mode: str = "keep") -> str:
    """Does the same for a vllm.AsyncLLM, which it pauses.

    `mode` is what becomes of running requests, as for `pause_generation`: "keep" goes on with the new weights, and
    computes keys and values of earlier tokens anew. If the new weights are not whole, it leaves the engine paused.
    """
    await llm.pause_generation(mode=mode, clear_cache=True)
    try:
        await llm.start_weight_update()
        await llm.update_weights(WeightTransferUpdateRequest({"min_version": min_version, "timeout": timeout}))
        [version] = await llm.collective_rpc("paramshard_version")
        await llm.finish_weight_update(weight_version=version)
    finally:
        [whole] = await llm.collective_rpc("paramshard_version")
        if whole is not None:
            await llm.resume_generation()
    return version
