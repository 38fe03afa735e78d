"""Refits of a reader's weights from a trainer, beside buckets over CUDA IPC: python3 torch_refit.py --help

Trainer, daemon and reader share one GPU. Rows of the first table, a refit each, after a step and with the GPU otherwise
idle:

    follow      BF16 parameters of a plain module in place, decoded from FP8_BLOCK_128X128 planes
    plan        the same memory by Snapshot.copy_into alone
    codes       codes and scales of the same planes as stored, into tensors of the reader
    buckets N   BF16 parameters are concatenated to buckets of N GiB, whose CUDA IPC handles the receiver opens, and
                copied into its parameters
    quantized N the same with 128 x 128 blocks that torch's operators quantize first, codes and scales of FP8

Then steps of the trainer: alone, and with `follow` after every step. Ratios are of medians of one run.

    python3 torch_refit.py --size 1.1b --json refit.json
    python3 torch_refit.py --size tiny --device cpu --refits 3 --steps 3        # a dry run
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing as mp

from torch_llama import GIB, SIZES, daemon
from torch_llama_rank import ARMS, Batches, Job, Llama, ParamshardTrainer

MODEL = "llama"  # as ParamshardTrainer names it
BLOCK = 128
LIMIT = 300.0  # longest wait for a process's answer, in seconds


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def module_of(options: SimpleNamespace) -> Llama:
    with torch.device(options.device):
        return Llama(SIZES[options.size], False).bfloat16().requires_grad_(False)


def as_stored(parameters: list[Any]) -> Any:
    from paramshard import Output, Part, View
    outputs = []
    for each in parameters:
        if each.format != "FP8_BLOCK_128X128":
            outputs.append(Output(each.name, each.shape, "float32", [Part(each.name)]))
            continue
        blocks = (-(-each.rows // BLOCK), -(-each.columns // BLOCK))
        outputs.append(Output(each.name, (each.rows, each.columns), "float8_e4m3fn", [Part(each.name, what="codes")]))
        outputs.append(Output(f"{each.name} scales", blocks, "float32", [Part(each.name, what="scales")]))
    return View(parameters, outputs)


class Child:
    """A process that answers one command at a time."""

    def __init__(self, role: Callable[..., None], options: SimpleNamespace, *more: Any):
        self.pipe, theirs = mp.Pipe()
        self.process = mp.Process(target=role, args=(theirs, options, *more), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, command: str, *arguments: Any) -> Any:
        self.pipe.send((command, *arguments))
        return self.answer()

    def answer(self) -> Any:
        return receive_from(self.pipe)

    def end(self) -> None:
        self.pipe.send(("end",))
        self.process.join(30.0)
        self.process.kill()


def receive_from(pipe: Connection) -> Any:
    if not pipe.poll(LIMIT):
        raise SystemExit(f"no answer within {LIMIT:.0f} s")
    return pipe.recv()


def serve(pipe: Connection, commands: dict[str, Callable[..., Any]]) -> None:
    faulthandler.enable()
    pipe.send("ready")
    while True:
        command, *arguments = pipe.recv()
        if command == "end":
            return
        pipe.send(commands[command](*arguments))


# --- Roles ---


def trainer(pipe: Connection, options: SimpleNamespace) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    job = Job(options.device, options.sockets)
    made = ParamshardTrainer(ARMS["P32"], options, job)
    batches = Batches(options, 0, job.device)
    number = 0

    def step() -> float:
        nonlocal number
        begin = time.perf_counter()
        made.step(batches.step(number))
        made.finish()
        job.synchronize()
        number += 1
        return time.perf_counter() - begin

    serve(pipe, {"step": step, "steps": lambda count: [step() for _ in range(count)]})
    made.close()


def reader(pipe: Connection, options: SimpleNamespace) -> None:
    import paramshard
    import paramshard.torch as pt
    if options.device == "cuda":
        torch.cuda.set_device(0)
    module = module_of(options)
    synchronize(options.device)
    source = paramshard.Reader(MODEL, socket_dir=options.sockets, name="refit")
    follower = pt.follow(module, source)
    plans: list[Any] = []
    codes: list[Any] = []  # the plan, and tensors of its memory

    def available() -> int:
        return torch.cuda.mem_get_info()[0] if options.device == "cuda" else 0

    def first_follow() -> int:
        """Returns the memory that the GPU has less afterwards: nothing else runs on it."""
        before = available()
        follow()
        return before - available()

    def follow(newer: bool = False) -> float:
        begin = time.perf_counter()
        assert follower.update(newer=newer) is not None
        return time.perf_counter() - begin

    def copy_plans() -> float:
        """Copies as `follow` does, without what it does besides."""
        begin = time.perf_counter()
        with source.acquire() as snapshot:
            if not plans:
                plans.append(paramshard.Plan(paramshard.views.hf(snapshot.parameters()), {
                    name: parameter.detach() for name, parameter in module.named_parameters()}))
            snapshot.copy_into(plans[0])
        return time.perf_counter() - begin

    def copy_codes() -> float:
        begin = time.perf_counter()
        with source.acquire() as snapshot:
            if not codes:
                view = as_stored(snapshot.parameters())
                tensors = view.allocate("torch", device=options.device)
                codes.extend((paramshard.Plan(view, tensors), tensors))
            snapshot.copy_into(codes[0])
        return time.perf_counter() - begin

    found: list[float] = []
    follower_thread = threading.Thread()

    def begin(commits: int) -> None:
        """Follows every version it can until the model has made so many commits."""
        def run() -> None:
            while follower.version < commits:
                found.append(follow(newer=True))
        nonlocal follower_thread
        follower_thread = threading.Thread(target=run)
        follower_thread.start()

    def join() -> list[float]:
        follower_thread.join()
        return found

    def verify() -> None:
        follower.update()
        with source.acquire() as snapshot:
            for name, parameter in module.named_parameters():
                expected = torch.from_numpy(snapshot[name]).bfloat16()
                assert torch.equal(parameter.cpu().view(torch.int16), expected.view(torch.int16)), name

    serve(pipe, {"follow": follow, "first": first_follow, "plan": copy_plans, "codes": copy_codes, "begin": begin,
                 "join": join, "verify": verify})


def sender(pipe: Connection, options: SimpleNamespace) -> None:
    module = module_of(options)
    parameters = [parameter.detach() for parameter in module.parameters()]

    def quantized() -> Iterator[torch.Tensor]:
        for parameter in parameters:
            if parameter.dim() < 2:
                yield parameter
                continue
            rows, columns = parameter.shape
            blocks = torch.nn.functional.pad(parameter, (0, -columns % BLOCK, 0, -rows % BLOCK)).unflatten(
                1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).float()
            scales = blocks.abs().amax((1, 3), keepdim=True).clamp_(min=1e-12) / 448.0
            codes = (blocks / scales).to(torch.float8_e4m3fn).flatten(2).flatten(0, 1)[:rows, :columns]
            yield codes.contiguous()
            yield scales

    def send(limit: int, quantizes: bool) -> None:
        bucket: list[torch.Tensor] = []
        size = 0

        def flush() -> None:
            nonlocal bucket, size
            if not bucket:
                return
            flat = torch.cat([each.view(-1).view(torch.uint8) for each in bucket])
            synchronize(options.device)
            pipe.send((flat, [each.numel() * each.element_size() for each in bucket]))
            assert pipe.recv() == "copied"
            bucket, size = [], 0

        for each in quantized() if quantizes else parameters:
            if size + each.numel() * each.element_size() > limit:
                flush()
            bucket.append(each)
            size += each.numel() * each.element_size()
        flush()
        pipe.send(None)

    serve(pipe, {"send": send})


def receiver(pipe: Connection, options: SimpleNamespace, sends: Connection) -> None:
    if options.device == "cuda":
        torch.cuda.set_device(0)
    module = module_of(options)
    memory: dict[bool, list[torch.Tensor]] = {
        False: [parameter.detach().view(-1).view(torch.uint8) for parameter in module.parameters()], True: []}

    def receive(limit: int, quantizes: bool) -> float:
        synchronize(options.device)
        begin = time.perf_counter()
        sends.send(("send", limit, quantizes))
        targets, index = memory[quantizes], 0
        while (message := receive_from(sends)) is not None:
            flat, sizes = message
            for each in flat.split(sizes):
                if index == len(targets):
                    targets.append(torch.empty_like(each))
                targets[index].copy_(each)
                index += 1
            synchronize(options.device)
            del message, flat, each
            sends.send("copied")
        taken = time.perf_counter() - begin
        receive_from(sends)  # the command's answer
        return taken

    receive_from(sends)  # it is ready
    serve(pipe, {"receive": receive})
    sends.send(("end",))


# --- Runs ---


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written."""
    source = torch.empty(GIB if device == "cuda" else GIB // 16, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return 2 * source.numel() / statistics.median(times)


def measure(options: SimpleNamespace) -> dict[str, Any]:
    refits: dict[str, list[float]] = {}
    receives, sends = mp.Pipe()
    sending = mp.Process(target=sender, args=(receives, options), daemon=True)
    sending.start()
    train, read, receive = Child(trainer, options), Child(reader, options), Child(receiver, options, sends)
    for child in (train, read, receive):
        child.answer()
    print("ready", flush=True)
    train("step")
    memory = read("first")
    buckets = [int(float(size) * GIB) for size in options.buckets.split(",")]
    for _ in range(options.refits + 1):
        for arm in ("follow", "plan", "codes"):
            train("step")
            refits.setdefault(arm, []).append(read(arm))
        for limit in buckets:
            refits.setdefault(f"buckets {limit / GIB:g}", []).append(receive("receive", limit, False))
            refits.setdefault(f"quantized {limit / GIB:g}", []).append(receive("receive", limit, True))
    read("verify")
    receive.end()
    sending.join(30.0)
    train("steps", 3)
    steps = {"alone": [], "followed": []}
    commits = 3 * (options.refits + 1) + 1 + 3
    followed: list[float] = []
    for _ in range(options.rounds):
        steps["alone"] += train("steps", options.steps)
        commits += 2 * options.steps
        read("begin", commits)
        steps["followed"] += train("steps", options.steps)
        followed = read("join")
    read("verify")
    for child in (train, read):
        child.end()
    return {"refits": {name: times[1:] for name, times in refits.items()}, "first": {name: times[0] for name, times in
            refits.items()}, "steps": steps, "followed": followed, "reader_bytes": memory,
            "copy_bandwidth": copy_bandwidth(options.device), "parameters": SIZES[options.size].parameters()}


def show(result: dict[str, Any]) -> None:
    print(f"{result['parameters'] / 1e9:.2f} billion parameters, copies {result['copy_bandwidth'] / 1e12:.2f} TB/s, "
          f"the reader took {result['reader_bytes'] / (1 << 20):.0f} MiB of the GPU for it")
    median = {name: statistics.median(times) for name, times in result["refits"].items()}
    for name, times in result["refits"].items():
        ratios = ", ".join(f"{median[name] / median[other]:.3f} of {other}" for other in median if other != name)
        print(f"{name:14s} {median[name] * 1e3:8.2f} ms ({min(times) * 1e3:.2f} to {max(times) * 1e3:.2f}; first "
              f"{result['first'][name] * 1e3:.0f}); {ratios}")
    print(f"follow moves {3 * result['parameters'] / median['follow'] / result['copy_bandwidth']:.2f} of a copy's "
          "bytes a second, at 3 bytes a parameter")
    steps = {name: statistics.median(times) for name, times in result["steps"].items()}
    print(f"step alone {steps['alone'] * 1e3:.1f} ms, followed {steps['followed'] * 1e3:.1f} ms: "
          f"{steps['followed'] / steps['alone']:.4f}; refits meanwhile "
          f"{statistics.median(result['followed']) * 1e3:.2f} ms with the wait")


def main() -> None:
    parser = argparse.ArgumentParser(description="refits beside buckets over CUDA IPC")
    add = parser.add_argument
    add("--size", choices=SIZES, default="1.1b")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--buckets", default="0.5,2", help="GiB")
    add("--refits", type=int, default=10)
    add("--rounds", type=int, default=2)
    add("--steps", type=int, default=10, help="steps of a round, alone and followed")
    add("--sequence", type=int, default=4096)
    add("--batch", type=int, default=2)
    add("--programs", help="folder of paramshardd; default: the package's")
    add("--daemon-flag", action="append", default=[])
    add("--json")
    options = parser.parse_args()
    # ParamshardTrainer wants these too.
    options.world, options.accumulate, options.recompute, options.compile = 1, 1, False, False
    options.same_values, options.gradients, options.learning_rate = False, "BF16", 3e-5
    mp.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="torch-refit-") as made, daemon(options, pathlib.Path(made)) as sockets:
        options.sockets = str(sockets)
        result = measure(SimpleNamespace(**vars(options)))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"options": vars(options)} | result, indent=1))
    show(result)


if __name__ == "__main__":
    main()
