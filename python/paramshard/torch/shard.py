"""`shard()`, which moves the parameters of a module into the daemon."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterable, Sequence

import torch
from torch import nn

import paramshard
from paramshard._core import OPERAND_FORMATS
from paramshard.torch import torchrun
from paramshard.torch.dtypes import GRADIENT_DTYPES, PARAMETER_DTYPES, listing
from paramshard.torch.fp8 import Fp8Weight, can_compute_in_fp8, compute_in_fp8, why_not_fp8
from paramshard.torch.job_daemon import start_job_daemon
from paramshard.torch.messages import some
from paramshard.torch.model_description import ModelDescription
from paramshard.torch.opening import ATTACH_TIMEOUT
from paramshard.torch.partition import UnitModules, partition
from paramshard.torch.sharded_model import ShardedModel
from paramshard.torch.torch_internals import own_buffers, own_parameters
from paramshard.torch.unit import Unit
from paramshard.torch.unit_parameter import UnitParameter

_EXISTING = ("error", "resume", "fresh")
_DAEMONS = (None, "node", "job")
_COMPUTE = ("dense", "fp8")


@torch.inference_mode(False)  # tensors of inference mode have no versions, by which writes are noticed
def shard(module: nn.Module, *, name: str, units: Iterable[UnitModules], existing: str = "error",
          format: str | Sequence[tuple[str, str]] | None = None, param_dtype: torch.dtype | None = None,
          compute: str = "dense", grad_dtype: torch.dtype = torch.float32, accumulate: int | None = None,
          cast_inputs: bool = True, output_dtype: torch.dtype | None = None, reshard_after_forward: bool = True,
          daemon: str | None = None, socket_dir: str | None = None, local_rank: int | None = None,
          device: torch.device | str | None = None, seed: int | None = None, shard_size: int | None = None,
          gather_slots: int = 3, gradient_slots: int | None = None, step_timeout: float | None = None) -> ShardedModel:
    """Moves a module's parameters into the daemon of this node. The module stays what it is, and computes as before.

    The module is made in `meta_init()`, or has values, which are imported. An optimizer of this package, made of its
    parameters after this, creates the model in the daemon. If the daemon serves the rank from a GPU the module computes
    on the same one: it becomes torch's current device, and buffers go there.

    Args:
        module: The model. Its parameters are float32, bfloat16 or float16, dense and of any shape.
        name: Name of the model in the daemon.
        units: Modules, or lists of modules, whose parameters are gathered together: transformer blocks, usually. The
            innermost unit that has a parameter takes it, so that the model itself may be the last unit, with the rest.
        existing: What to do with a model of this name that the daemon has trained or restored: "error", "resume" to go
            on with it, or "fresh" to delete it, trained or not, and to begin anew whatever the daemon's --restore says.
            A worker that torchrun has started again resumes its own run's model in any case.
        format: One format for all parameters, or pairs of a glob of parameter names and a format, of which the first
            that matches counts. None: the format of `param_dtype`. `paramshard.Encoding` lists the formats.
        param_dtype: Type of the computation. None: each parameter's own type.
        compute: "dense" decodes all parameters. "fp8" multiplies the weights of every nn.Linear in 8 bits, without
            decoding, if they have FP8_BLOCK_128X128 or an FP8_TENSOR format and features in multiples of 128.
            Activations and gradients are quantized in blocks of 1 x 128. Outside of `unsharded()` a module cannot read
            values of such a weight.
        grad_dtype: Type of gradients that are sent, float32 or bfloat16. The daemon adds up in float32.
        accumulate: Most backwards of a step, usually its micro-batches. One more is refused, and nothing is lost. With
            1, a daemon of one rank keeps gradients in `grad_dtype`: with bfloat16 that takes half the memory, and
            changes no bit. None: any number of backwards, whose gradients are added up in float32.
        cast_inputs: Casts inputs of units to `param_dtype`.
        output_dtype: Type to which outputs of units are cast. None: they stay as they are.
        reshard_after_forward: False keeps the gathered parameters until the backward.
        daemon: None or "node": a running daemon (at `socket_dir`, else as paramshard.Client). "job": one that is
            started on this node, and ends with the job.
        socket_dir: Folder of the daemon's sockets.
        local_rank: Rank of this process on its node. None: LOCAL_RANK, else 0.
        device: torch's name of the GPU. None: the daemon's number of it, if torch sees so many GPUs, else the present
            GPU. Opening the model fails for another GPU than the daemon's.
        seed: Seed of the initial values that the daemon draws for a module made in `meta_init()`. None: made of `name`
            and, if all ranks have one daemon, of the number below 2**32 that `torch.manual_seed` was last given on
            rank 0. An existing model keeps its seed.
        shard_size: Number of ranks that share one copy of the state. None: the ranks of one daemon, so that every node
            has a copy.
        gather_slots: As in `paramshard.ModelSpec`, like `gradient_slots` and `step_timeout`, which is in seconds.
        gradient_slots: None: 2, or 1 on a GPU that has the whole model, where a push is summed in place and at once.

    Returns:
        The sharded model, which is to be kept as long as the module is used.

    Raises:
        InvalidArgumentError: An argument is invalid. Names units that overlap, and parameters in no unit.
        FailedPreconditionError: The daemon has GPUs and torch sees none, or it has another version.
        UnimplementedError: A module or parameter is of a kind that is not supported, or `compute` is "fp8" on a GPU
            without such products.
        UnavailableError: No daemon is running.
    """
    _check(existing, daemon, compute, param_dtype, grad_dtype, accumulate, seed)
    _check_format(format)
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if local_rank is None else local_rank
    if daemon == "job":
        socket_dir = _job_daemon(local_rank)
    try:
        with paramshard.Client(socket_dir=socket_dir) as probe:
            info = probe.daemon_info()
    except paramshard.UnavailableError as error:
        if daemon == "job":
            raise
        raise paramshard.UnavailableError(f'{error}; or use daemon="job"') from error
    _check_daemon(info, local_rank)
    device = _device_of(info.devices[local_rank], device)
    # The module is changed last, so that a refusal leaves it as it was.
    made = partition(module, units, param_dtype=param_dtype, device=device)
    buffers = _buffers_on(module, device)
    empty = _empty_parameters_on(module, param_dtype, device)
    multiplied = _to_multiply_in_fp8(made, format, device) if compute == "fp8" else []
    for unit in made:
        unit.reshards_after_forward = reshard_after_forward
        unit.casts_inputs_to = param_dtype if cast_inputs else None
        unit.casts_outputs_to = output_dtype
    rank = info.first_rank + local_rank
    def connect() -> paramshard.Client:
        return paramshard.Client(rank, socket_dir=socket_dir, attach_timeout=ATTACH_TIMEOUT,
                                 take_over=torchrun.is_restart())

    description = ModelDescription(name, made, format=format, grad_dtype=grad_dtype, options={
        "seed": _default_seed(name, info.nodes) if seed is None else seed, "shard_size": shard_size,
        "gather_slots": gather_slots, "step_timeout": step_timeout, "pushes_per_step": accumulate,
        "gradient_slots": _gradient_slots(device, shard_size or len(info.devices)) if gradient_slots is None
        else gradient_slots})
    sharded = ShardedModel(module, made, description, connect=connect, name=name, existing=existing, rank=rank,
                           local_rank=local_rank, device=device, takes_any_seed=seed is None)
    for owner, attribute, buffer in buffers:
        own_buffers(owner)[attribute] = buffer
    for owner, attribute, parameter in empty:
        own_parameters(owner)[attribute] = parameter
    for parameter in multiplied:
        compute_in_fp8(parameter.places[0][0], parameter.fp8_weight)
    return sharded


def _check(existing: str, daemon: str | None, compute: str, param_dtype: torch.dtype | None,
           grad_dtype: torch.dtype, accumulate: int | None, seed: int | None) -> None:
    if compute not in _COMPUTE:
        raise paramshard.InvalidArgumentError(f'shard: want compute="dense" or "fp8", got {compute!r}')
    if existing not in _EXISTING:
        raise paramshard.InvalidArgumentError(f'shard: want existing="error", "resume" or "fresh", got {existing!r}')
    if daemon not in _DAEMONS:
        raise paramshard.InvalidArgumentError(f'shard: want daemon=None, "node" or "job", got {daemon!r}')
    if param_dtype not in (None, *PARAMETER_DTYPES):
        raise paramshard.InvalidArgumentError(
            f"shard: want param_dtype {listing(PARAMETER_DTYPES)}, got {param_dtype}")
    if grad_dtype not in GRADIENT_DTYPES:
        raise paramshard.InvalidArgumentError(
            f"shard: want grad_dtype {listing(GRADIENT_DTYPES)}, got {grad_dtype}")
    if accumulate is not None and (type(accumulate) is not int or not 0 < accumulate < 2**31):
        raise paramshard.InvalidArgumentError(
            f"shard: want accumulate= the number of backwards of a step, or None, got {accumulate!r}")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise paramshard.InvalidArgumentError(f"shard: want seed= from 0 to 2**64 - 1, or None, got {seed!r}")


def _gradient_slots(device: torch.device, ranks: int) -> int:
    """Returns the number of slots that lets pushes overlap with the backward. `ranks`: that share the model."""
    return 1 if device.type == "cuda" and ranks == 1 else 2


def _default_seed(name: str, nodes: int) -> int:
    """Returns a seed by name: models of different names differ, like modules that torch makes one after another."""
    torch_seed = torch.initial_seed()
    # A process that has not called manual_seed has 64 random bits. Daemons of several nodes cannot agree on a number
    # that only one of them knows.
    is_given = nodes == 1 and torch_seed < 2**32
    digest = hashlib.sha256(f"{torch_seed if is_given else ''} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _check_format(format: str | Sequence[tuple[str, str]] | None) -> None:
    if format is None or isinstance(format, str):
        return
    if isinstance(format, (list, tuple)) and all(
            isinstance(rule, (list, tuple)) and len(rule) == 2 and all(isinstance(part, str) for part in rule)
            for rule in format):
        return
    raise paramshard.InvalidArgumentError(
        "shard: want format= the name of a format, or a list of pairs of a glob of parameter names and a format, "
        f"got {format!r}")


def _job_daemon(local_rank: int) -> str:
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if not 0 <= local_rank < local_world_size:
        raise paramshard.InvalidArgumentError(
            f"shard: want a local rank below {local_world_size} (LOCAL_WORLD_SIZE), got {local_rank}; "
            "start several ranks with python -m paramshard.run or torchrun")
    if local_world_size > 1 and not torchrun.is_worker():
        raise paramshard.InvalidArgumentError(
            'shard: daemon="job" with several ranks needs python -m paramshard.run or torchrun; without them start '
            'paramshardd, and use daemon=None')
    if int(os.environ.get("WORLD_SIZE", 1)) != local_world_size:
        raise paramshard.UnimplementedError(
            'shard: daemon="job" is not supported on several nodes; start paramshardd on each, and use daemon="node"')
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and torch.cuda.device_count() < local_world_size:
        raise paramshard.InvalidArgumentError(
            f'shard: daemon="job": want a GPU for each of {local_world_size} ranks, got '
            f"{torch.cuda.device_count()} GPUs; hide them (CUDA_VISIBLE_DEVICES=) to train on CPUs")
    return start_job_daemon(torchrun.job_pid(), local_rank, [f"{kind}:{index}" for index in range(local_world_size)])


def _check_daemon(info: paramshard.DaemonInfo, local_rank: int) -> None:
    if info.version != paramshard.__version__:
        raise paramshard.FailedPreconditionError(
            f"shard: want a daemon of version {paramshard.__version__}, as this package, got {info.version}")
    if not 0 <= local_rank < len(info.devices):
        raise paramshard.InvalidArgumentError(
            f"shard: want a local rank below {len(info.devices)}, the daemon's number of devices, got "
            f"{local_rank}; start as many trainers as it has devices")


def _device_of(served: str, wanted: torch.device | str | None) -> torch.device:
    """Returns the device on which a rank computes. `served`: the daemon's device that serves the rank."""
    kind, _, number = served.partition(":")
    wanted = None if wanted is None else torch.device(wanted)
    if wanted is not None and wanted.type != kind:
        raise paramshard.InvalidArgumentError(
            f"shard: want a {kind} device, as the daemon serves this rank from {served}, got device={wanted}")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise paramshard.FailedPreconditionError(
            f"shard: torch sees no GPU, and the daemon serves this rank from {served}: install torch with "
            "CUDA, or start the daemon with `--device cpu:0`")
    if wanted is None and int(number) < torch.cuda.device_count():
        wanted = torch.device(kind, int(number))
    if wanted is not None:
        torch.cuda.set_device(wanted)
    return torch.device(kind, torch.cuda.current_device())


def _to_multiply_in_fp8(units: list[Unit], format: str | Sequence[tuple[str, str]] | None,
                        device: torch.device) -> list[UnitParameter]:
    """Gives FP8 operands to the weights that are multiplied in 8 bits. Their modules stay as they are."""
    missing = why_not_fp8(device)
    if missing is not None:
        raise paramshard.UnimplementedError(f'shard: compute="fp8": want {missing}')
    found = []
    for parameter in (parameter for unit in units for parameter in unit.parameters):
        owner, attribute = parameter.places[0]
        stored = _format_of(parameter.name, format)
        if (len(parameter.places) == 1 and attribute == "weight" and can_compute_in_fp8(owner) and
                stored in OPERAND_FORMATS):
            parameter.fp8_weight = Fp8Weight(tuple(parameter.placeholder.shape), device=device)
            parameter.fp8_weight.parameter = parameter.unsharded
            parameter.placeholder.is_fp8_operand = True
            found.append(parameter)
    if not found:
        raise paramshard.InvalidArgumentError(
            f'shard: compute="fp8": no nn.Linear has features in multiples of 128 and a weight with format= '
            f"one of {', '.join(OPERAND_FORMATS)}")
    return found


def _format_of(name: str, format: str | Sequence[tuple[str, str]] | None) -> str | None:
    if format is None or isinstance(format, str):
        return format
    return next((stored for pattern, stored in format if fnmatch.fnmatchcase(name, pattern)), None)


def _buffers_on(module: nn.Module, device: torch.device) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Returns the buffers, copied to the device, each with its owner and name."""
    missing = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if missing:
        raise paramshard.InvalidArgumentError(
            f"shard: buffers {some(missing)} lie on `meta` and have no values: make their modules without "
            "meta_init() if they compute buffers from parameters, and never on the device `meta`")
    return [(owner, name, buffer.to(device)) for owner in module.modules()
            for name, buffer in own_buffers(owner).items() if buffer is not None]


def _empty_parameters_on(module: nn.Module, dtype: torch.dtype | None,
                         device: torch.device) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Returns replacements of empty parameters that have another type or device, each with owner and name."""
    made: dict[nn.Parameter, nn.Parameter] = {}  # ties stay ties
    found = []
    for owner in module.modules():
        for attribute, parameter in own_parameters(owner).items():
            if parameter is None or parameter.numel() or (
                    parameter.device == device and parameter.dtype == (dtype or parameter.dtype)):
                continue
            if parameter not in made:
                like = torch.empty(parameter.shape, dtype=dtype or parameter.dtype, device=device)
                made[parameter] = nn.Parameter(like, requires_grad=parameter.requires_grad)
            found.append((owner, attribute, made[parameter]))
    return found
