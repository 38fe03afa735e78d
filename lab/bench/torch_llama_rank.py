"""One rank of one arm of torch_llama.py, which starts it: python3 torch_llama_rank.py ARM OPTIONS FOLDER [SOCKETS]

OPTIONS are those of torch_llama.py as JSON. Windows of back-to-back steps are timed between two synchronizations, which
are the same in every arm. FOLDER/rank-N.json gets what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from torch_llama import ARMS, SIZES, VOCABULARY, Arm, Size

BETAS, EPSILON, DECAY, MAX_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
TIMEOUT = 60.0  # seconds that the first rank waits at its end for the others


# --- The model, and its input ---


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Block(nn.Module):
    """A Llama block without rotary embeddings."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = size.heads, size.kv_heads, size.width // size.heads
        narrow = self.kv_heads * self.head_width
        self.norm1, self.norm2 = Norm(size.width), Norm(size.width)
        self.q, self.o = _linear(size.width, size.width), _linear(size.width, size.width)
        self.k, self.v = _linear(size.width, narrow), _linear(size.width, narrow)
        self.gate, self.up = _linear(size.width, size.hidden), _linear(size.width, size.hidden)
        self.down = _linear(size.hidden, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (product(h).view(batch, length, heads, self.head_width).transpose(1, 2) for product, heads in
                   ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, size: Size, recomputes: bool):
        super().__init__()
        self.recomputes = recomputes
        self.embed = nn.Embedding(VOCABULARY, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.width)
        self.head = _linear(size.width, VOCABULARY)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def _linear(columns: int, rows: int) -> nn.Linear:
    linear = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(linear.weight, std=0.02)
    return linear


class Batches:
    """Pairs of tokens: the first is drawn as 1 / its number, the second follows from it, which can be learned.

    Every arm sees the same, since they are a function of step, micro-batch and rank.
    """

    def __init__(self, options: SimpleNamespace, rank: int, device: torch.device):
        self._options, self._rank, self._device = options, rank, device
        self._generator = torch.Generator(device)

    def step(self, step: int) -> list[torch.Tensor]:
        return [self._micro_batch(step, micro) for micro in range(self._options.accumulate)]

    def _micro_batch(self, step: int, micro: int) -> torch.Tensor:
        self._generator.manual_seed(((step * 64 + micro) * 64 + self._rank) * 2 + 1)
        shape = self._options.batch, self._options.sequence // 2 + 1
        uniform = torch.rand(shape, generator=self._generator, device=self._device)
        half = VOCABULARY // 2
        first = (half ** uniform).long() - 1
        pairs = torch.stack([2 * first, 2 * ((first * 7919 + 13) % half) + 1], -1)
        return pairs.flatten(1)[:, :self._options.sequence + 1]


def materialized(options: SimpleNamespace, device: torch.device) -> Llama:
    """The same values in every arm and rank, in FP32."""
    torch.manual_seed(7)
    with torch.device(device):
        return Llama(SIZES[options.size], options.recompute)


def compile_blocks(model: Llama, options: SimpleNamespace) -> None:
    if options.compile:
        for layer in model.layers:
            layer.compile(fullgraph=True)


def backward(model: Llama, batches: Sequence[torch.Tensor],
             before: Callable[[bool], None] = lambda is_last: None) -> torch.Tensor:
    """Runs all micro-batches and returns the mean of their losses. Calls `before(is_last)` before each."""
    total = None
    for index, tokens in enumerate(batches):
        before(index == len(batches) - 1)
        loss = model(tokens[:, :-1], tokens[:, 1:]) / len(batches)
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    return total


# --- Clip and optimizer of torch ---


class FusedAdamW:
    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self._parameters = list(parameters)
        self._adamw = torch.optim.AdamW(self._parameters, lr=learning_rate, betas=BETAS, eps=EPSILON,
                                        weight_decay=DECAY, fused=True)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
        self._adamw.step()
        self._adamw.zero_grad()


class CompiledAdamW:
    """Written so that torch.compile makes two passes of clip and optimizer: one adds up squares, one does the rest.

    Tensors are flat, so that there is one kernel for each number of elements: one graph of all parameters would take
    minutes to compile.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float, moments: torch.dtype):
        torch._dynamo.config.recompile_limit = 64
        self._parameters, self._learning_rate = list(parameters), learning_rate
        local = [_flat(parameter.detach()) for parameter in self._parameters]
        self._averages, self._squares = ([torch.zeros_like(each, dtype=moments) for each in local] for _ in range(2))
        self._steps = torch.zeros((), device=local[0].device)
        self._add_up = torch.compile(_sum_of_squares, fullgraph=True, dynamic=False)
        self._update = torch.compile(_update, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def step(self) -> None:
        gradients = [_flat(parameter.grad) for parameter in self._parameters]
        total = torch.stack([self._add_up(gradient) for gradient in gradients]).sum()
        if dist.is_initialized():
            dist.all_reduce(total)
        scale = (MAX_NORM / (total.sqrt() + 1e-6)).clamp(max=1.0)
        self._steps += 1
        corrections = [1 - beta ** self._steps for beta in BETAS]
        for parameter, gradient, average, square in zip(self._parameters, gradients, self._averages, self._squares):
            self._update(_flat(parameter.detach()), gradient, average, square, scale, *corrections, self._learning_rate)
            parameter.grad = None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor as a vector; of a sharded tensor this rank's part."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).view(-1)


def _sum_of_squares(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float().square().sum()


def _update(parameter: torch.Tensor, gradient: torch.Tensor, average: torch.Tensor, square: torch.Tensor,
            scale: torch.Tensor, correction1: torch.Tensor, correction2: torch.Tensor, learning_rate: float) -> None:
    clipped = gradient.float() * scale
    new_average = BETAS[0] * average.float() + (1 - BETAS[0]) * clipped
    new_square = BETAS[1] * square.float() + (1 - BETAS[1]) * clipped * clipped
    change = new_average / correction1 / ((new_square / correction2).sqrt() + EPSILON)
    parameter.copy_(parameter * (1 - learning_rate * DECAY) - learning_rate * change)
    average.copy_(new_average)
    square.copy_(new_square)


class OtherOptimizer:
    """torch's SGD, or its Muon for matrices of the blocks and AdamW for the rest."""

    def __init__(self, arm: Arm, named: Sequence[tuple[str, nn.Parameter]], learning_rate: float):
        self._parameters = [parameter for _, parameter in named]
        matrices, others = split_for_muon(named)
        if arm.optimizer == "SGD":
            self._optimizers = [torch.optim.SGD(self._parameters, lr=learning_rate, momentum=0.9, weight_decay=DECAY,
                                                fused=True)]
        else:
            self._optimizers = [torch.optim.Muon(matrices, lr=learning_rate, adjust_lr_fn="match_rms_adamw"),
                                torch.optim.AdamW(others, lr=learning_rate, betas=BETAS, eps=EPSILON,
                                                  weight_decay=DECAY, fused=True)]

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()


def split_for_muon(named: Sequence[tuple[str, nn.Parameter]]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Returns the matrices of the blocks, and everything else."""
    is_matrix = [name.startswith("layers.") and parameter.dim() == 2 for name, parameter in named]
    return ([parameter for (_, parameter), chosen in zip(named, is_matrix) if chosen],
            [parameter for (_, parameter), chosen in zip(named, is_matrix) if not chosen])


def optimizer_of(arm: Arm, options: SimpleNamespace,
                 named: Sequence[tuple[str, nn.Parameter]]) -> FusedAdamW | CompiledAdamW | OtherOptimizer:
    parameters = [parameter for _, parameter in named]
    if arm.optimizer != "AdamW":
        return OtherOptimizer(arm, named, options.learning_rate)
    if arm.compiled_optimizer:
        return CompiledAdamW(parameters, options.learning_rate, TYPES[arm.moments])
    return FusedAdamW(parameters, options.learning_rate)


def optimizer_of_paramshard(arm: Arm, options: SimpleNamespace, model: Llama) -> Any:
    import paramshard.torch as pt
    common = {"lr": options.learning_rate, "max_grad_norm": MAX_NORM, "moments": arm.moments}
    if arm.optimizer == "SGD":
        return pt.SGD(model.parameters(), momentum=0.9, weight_decay=DECAY, **common)
    if arm.optimizer == "Lion":
        return pt.Lion(model.parameters(), weight_decay=DECAY, **common)
    if arm.optimizer == "Muon":
        matrices, others = split_for_muon(list(model.named_parameters()))
        return pt.Muon([{"params": matrices}, {"params": others, "use_muon": False, "betas": BETAS}],
                       adjust_lr_fn="match_rms_adamw", **common)
    return pt.AdamW(model.parameters(), betas=BETAS, eps=EPSILON, weight_decay=DECAY, **common)


# --- Products in FP8 for FSDP2 ---


def convert_by_torchao(model: Llama) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True),
                               module_filter_fn=lambda module, name: name.startswith("layers."))


def _quantized(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes with one scale for the whole tensor, from its current amax. Returns the codes and the inverse scale."""
    most = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / most
    return (x.float() / scale).clamp(-most, most).to(dtype), scale


class TensorwiseProduct(torch.autograd.Function):
    """x W^T and both of its gradients in FP8 with one scale per tensor: E4M3, and E5M2 for incoming gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        (x8, x_scale), (w8, w_scale) = _quantized(x), _quantized(weight)
        return torch._scaled_mm(x8, w8.t(), x_scale, w_scale, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        dy8, dy_scale = _quantized(dy, torch.float8_e5m2)
        (x8, x_scale), (w8, w_scale) = _quantized(x), _quantized(weight)
        # The second operand lies by columns on these GPUs.
        dx = torch._scaled_mm(dy8, w8.t().contiguous().t(), dy_scale, w_scale, out_dtype=x.dtype)
        dw = torch._scaled_mm(dy8.t().contiguous(), x8.t().contiguous().t(), dy_scale, x_scale, out_dtype=x.dtype)
        return dx, dw


class TensorwiseLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return TensorwiseProduct.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def convert_by_hand(model: Llama) -> None:
    for layer in model.layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.__class__ = TensorwiseLinear


# --- Trainers ---


class Trainer:
    """A trainer to measure: `step` enqueues one step on micro-batches, and returns its loss."""

    def finish(self) -> None:
        """Waits for work that is not on the device's streams."""

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Lets go of the other ranks, at the same point on each."""


class PlainTrainer(Trainer):
    """torch alone: bf16 parameters compute, gradients are added up in FP32, and FP32 masters are stepped."""

    def __init__(self, arm: Arm, options: SimpleNamespace, job: Job):
        self.model = materialized(options, job.device)
        named = [(name, nn.Parameter(parameter.detach())) for name, parameter in self.model.named_parameters()]
        self._masters = [master for _, master in named]
        self.model.bfloat16()
        self._parameters = list(self.model.parameters())
        for parameter in self._parameters:
            parameter.grad_dtype = torch.float32
        self._optimizer = optimizer_of(arm, options, named)
        compile_blocks(self.model, options)

    def step(self, batches: Sequence[torch.Tensor]) -> torch.Tensor:
        loss = backward(self.model, batches)
        for master, parameter in zip(self._masters, self._parameters):
            master.grad, parameter.grad = parameter.grad, None
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self._masters)
        return loss


class Fsdp2Trainer(Trainer):
    """fully_shard of each block and of the whole. Between steps gradients are kept whole, without communication."""

    def __init__(self, arm: Arm, options: SimpleNamespace, job: Job):
        backend = "nccl" if job.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.PrefixStore("group", job.store), rank=job.rank,
                                world_size=job.world_size,
                                device_id=job.device if job.device.type == "cuda" else None)
        self.model = materialized(options, job.device)
        if arm.products == "torchao":
            convert_by_torchao(self.model)
        elif arm.products == "scaled_mm":
            convert_by_hand(self.model)
        self._precomputes_scales = arm.products == "torchao"
        compile_blocks(self.model, options)
        self._shard(TYPES[arm.reduce], job)
        self._optimizer = optimizer_of(arm, options, list(self.model.named_parameters()))

    def _shard(self, reduce: torch.dtype, job: Job) -> None:
        mesh = dist.device_mesh.init_device_mesh(job.device.type, (job.world_size,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def step(self, batches: Sequence[torch.Tensor]) -> torch.Tensor:
        loss = backward(self.model, batches, self.model.set_requires_gradient_sync)
        self._optimizer.step()
        if self._precomputes_scales:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
            precompute_float8_dynamic_scale_for_fsdp(self.model)
        return loss

    def close(self) -> None:
        dist.destroy_process_group()


class ParamshardTrainer(Trainer):
    def __init__(self, arm: Arm, options: SimpleNamespace, job: Job):
        import paramshard.torch as pt
        if options.same_values:
            self.model = materialized(options, job.device)
        else:
            with pt.meta_init():
                self.model = Llama(SIZES[options.size], options.recompute)
        # torchao leaves the head alone as well.
        head = [("head.weight", "BF16")] if arm.compute == "fp8" else []
        self._sharded = pt.shard(
            self.model, name="llama", units=[self.model.embed, *self.model.layers, [self.model.norm, self.model.head]],
            format=[("*norm*", "FP32"), *head, ("*", "FP8_BLOCK_128X128")], param_dtype=torch.bfloat16,
            grad_dtype=TYPES[options.gradients], accumulate=options.accumulate, compute=arm.compute,
            socket_dir=job.sockets, seed=7)
        compile_blocks(self.model, options)
        self._optimizer = optimizer_of_paramshard(arm, options, self.model)

    def step(self, batches: Sequence[torch.Tensor]) -> torch.Tensor:
        loss = backward(self.model, batches)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def finish(self) -> None:
        """The daemon steps on streams of its own."""
        self._optimizer.last_result()

    def figures(self) -> dict[str, Any]:
        report = self._sharded.memory_report()
        return {"daemon_bytes": report.daemon, "shared_bytes": report.shared}

    def close(self) -> None:
        self._sharded.close()


TRAINERS = {"plain": PlainTrainer, "fsdp2": Fsdp2Trainer, "paramshard": ParamshardTrainer}


# --- Measuring ---


class Job:
    """This process among the ranks, and the synchronization of all arms."""

    def __init__(self, device: str, sockets: str | None):
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cpu")
        if device == "cuda":
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        self.sockets = sockets
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.world_size,
                                   is_master=self.rank == 0)
        self._barriers = 0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self) -> None:
        self._barriers += 1
        key = f"barrier {self._barriers}"
        if self.store.add(key, 1) == self.world_size:
            self.store.set(f"{key} passed", "")
        self.store.wait([f"{key} passed"])


class Measurement:
    def __init__(self, trainer: Trainer, options: SimpleNamespace, job: Job):
        self._trainer, self._options, self._job = trainer, options, job
        self._batches = Batches(options, job.rank, job.device)
        self._losses: list[torch.Tensor] = []
        self._step_seconds: list[float] = []  # of each window
        self._host_seconds: list[float] = []  # of steps by themselves
        self._gpu_bytes = 0

    def run(self, steps: int) -> tuple[float, float]:
        """Runs steps back to back between two synchronizations. Returns the seconds of all, and the host's part."""
        self._settle()
        self._job.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self._losses.append(self._trainer.step(self._batches.step(len(self._losses))))
        host = time.perf_counter() - begin
        self._settle()
        return time.perf_counter() - begin, host

    def _settle(self) -> None:
        self._trainer.finish()
        self._job.synchronize()

    def warm_up(self) -> None:
        begin = time.perf_counter()
        self._losses.append(self._trainer.step(self._batches.step(0)))
        self._settle()
        self._first_step_seconds = time.perf_counter() - begin
        self.run(max(1, self._options.warmup - 1))

    def measure(self) -> None:
        for _ in range(self._options.windows):
            seconds, _ = self.run(self._options.steps)
            self._step_seconds.append(seconds / self._options.steps)
            if self._job.device.type == "cuda":
                free, total = torch.cuda.mem_get_info()
                self._gpu_bytes = max(self._gpu_bytes, total - free)

    def measure_host(self, end_step: Callable[[], None] = lambda: None) -> None:
        """Measures the host's time of single steps: back to back, the host would wait for room in the GPU's queue."""
        for _ in range(self._options.profile_steps):
            self._host_seconds.append(self.run(1)[1])
            end_step()

    def result(self) -> dict[str, Any]:
        memory = torch.cuda.memory_stats() if self._job.device.type == "cuda" else {}
        return {
            "step_seconds": self._step_seconds,
            "host_seconds": statistics.median(self._host_seconds),
            "first_step_seconds": self._first_step_seconds,
            "losses": [loss.item() for loss in self._losses],
            "gpu_bytes": self._gpu_bytes,
            "allocated_bytes": memory.get("allocated_bytes.all.peak", 0),
            "reserved_bytes": memory.get("reserved_bytes.all.peak", 0),
            "parameters": SIZES[self._options.size].parameters(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self._job.device.type == "cuda" else "cpu",
        }


# --- Host time of hooks ---

HOOKS = ("before_forward", "after_forward", "before_backward", "after_backward", "take_gradient")


class HookTimes:
    """Host time of a unit's hooks in forward and backward, and of their gathers and pushes.

    The time that measuring takes is left out: a wrapper reports to the one around it how long it ran beside its method,
    and a call of an empty method shows what remains.
    """

    def __init__(self) -> None:
        self._step: dict[tuple[str, str], float] = {}  # by hook and unit, in the current step
        self._steps: dict[str, list[float]] = {}
        self._depth = 0
        self._measuring = [0]  # of the wrappers in progress, in nanoseconds: time of measuring inside of them
        self._inside = self._around = 0  # nanoseconds of measuring that a call counts as its method's, or nowhere

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        from paramshard.torch.torch_internals import in_backward
        from paramshard.torch.unit import Unit
        self._calibrate(in_backward)
        original = {name: getattr(Unit, name) for name in (*HOOKS, "_gather", "push")}
        for name, method in original.items():
            setattr(Unit, name, self._timed(method, name if name in ("_gather", "push") else "hooks", in_backward))
        try:
            yield
        finally:
            for name, method in original.items():
                setattr(Unit, name, method)

    def _calibrate(self, in_backward: Callable[[], bool]) -> None:
        empty = self._timed(lambda unit: None, "empty", in_backward)
        unit = SimpleNamespace(name="")
        key = "empty in forward", ""
        inside, around = [], []
        for _ in range(1000):
            self._step.clear()
            self._measuring = [0]
            begin = time.perf_counter_ns()
            empty(unit)
            seconds = time.perf_counter_ns() - begin
            inside.append(round(1e9 * self._step[key]))
            around.append(seconds - inside[-1] - self._measuring[0])
        self._inside, self._around = statistics.median_low(inside), statistics.median_low(around)
        self._step.clear()

    def _timed(self, method: Callable[..., Any], what: str, in_backward: Callable[[], bool]) -> Callable[..., Any]:
        clock = time.perf_counter_ns

        def call(unit: Any, *arguments: Any) -> Any:
            entered = clock()
            measuring = self._measuring
            measuring.append(0)
            is_hook = what == "hooks"
            self._depth += is_hook
            begin = clock()
            try:
                return method(unit, *arguments)
            finally:
                end = clock()
                of_others = measuring.pop()
                self._depth -= is_hook
                if not is_hook or self._depth == 0:
                    key = f"{what.strip('_')} in {'backward' if in_backward() else 'forward'}", unit.name
                    self._step[key] = self._step.get(key, 0.0) + (end - begin - of_others - self._inside) / 1e9
                measuring[-1] += of_others + self._inside + self._around + (begin - entered) + (clock() - end)
        return call

    def end_step(self) -> None:
        for (what, _), seconds in self._step.items():
            self._steps.setdefault(what, []).append(seconds)
        self._step.clear()

    def result(self) -> dict[str, dict[str, float]]:
        """Returns the times of a unit in a step, by hook."""
        return {what: {"median": statistics.median(each), "p10": sorted(each)[int(0.1 * (len(each) - 1))],
                       "p90": sorted(each)[int(0.9 * (len(each) - 1))], "most": max(each)}
                for what, each in self._steps.items()}


def measure_host(arm: Arm, measurement: Measurement) -> dict[str, Any]:
    if arm.engine != "paramshard":
        measurement.measure_host()
        return {}
    times = HookTimes()
    with times.watch():
        measurement.measure_host(times.end_step)
    return {"hooks": times.result()}


# --- The process ---


def await_others(folder: pathlib.Path, job: Job) -> None:
    """The first rank serves the store, which others may still use."""
    deadline = time.monotonic() + TIMEOUT
    while job.rank == 0 and time.monotonic() < deadline:
        if all((folder / f"rank-{rank}.json").exists() for rank in range(job.world_size)):
            return
        time.sleep(0.05)


def main() -> None:
    arm, options = ARMS[sys.argv[1]], SimpleNamespace(**json.loads(sys.argv[2]))
    folder, sockets = pathlib.Path(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None
    job = Job(options.device, sockets)
    begin = time.perf_counter()
    trainer = TRAINERS[arm.engine](arm, options, job)
    if job.device.type == "cuda":
        torch.cuda.empty_cache()  # releases memory of initial values
        torch.cuda.reset_peak_memory_stats()
    job.barrier()
    setup_seconds = time.perf_counter() - begin
    print(f"set up in {setup_seconds:.1f} s", flush=True)  # shows how far this rank was if others time out
    measurement = Measurement(trainer, options, job)
    measurement.warm_up()
    print("warm", flush=True)
    measurement.measure()
    print("measured", flush=True)
    result = {"setup_seconds": setup_seconds} | trainer.figures() | measure_host(arm, measurement)
    result |= measurement.result()
    job.barrier()
    trainer.close()
    written = folder / f"rank-{job.rank}.json.part"
    written.write_text(json.dumps(result))
    written.rename(folder / f"rank-{job.rank}.json")
    await_others(folder, job)


if __name__ == "__main__":
    main()
