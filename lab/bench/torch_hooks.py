"""Host time that paramshard.torch adds to a unit's forward and backward: python3 torch_hooks.py --help

A stack of small Llama blocks, each a unit of nine parameters, runs with and without paramshard in turns, in one process
on one device. What is printed, in microseconds for a unit and a step: the medians of the hooks by themselves, with the
gathers and pushes in them; and the medians of what a pass of the host takes longer than the same pass of plain torch,
which has what torch does around hooks besides. A GPU is synchronized between passes, and not timed. Beside medians are
the tenth percentiles, for a machine that is busy.

    python3 torch_hooks.py --device cpu --steps 200
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator

import torch
from torch import nn

import paramshard.torch as pt
import torch_llama
from torch_llama_rank import Block, HookTimes

TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}


class Stack(nn.Module):
    def __init__(self, options: argparse.Namespace):
        super().__init__()
        size = torch_llama.Size(options.units, options.width, 2 * options.width, 2, 1)
        self.layers = nn.ModuleList(Block(size) for _ in range(options.units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Passes:
    """Times the host's part of forwards and backwards."""

    def __init__(self, model: nn.Module, options: argparse.Namespace, device: torch.device):
        self._model, self._units, self._device = model, options.units, device
        self._x = torch.randn(1, options.length, options.width, device=device, dtype=TYPES[options.type])
        self.forward: list[float] = []  # of a unit, in seconds
        self.backward: list[float] = []

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def step(self) -> None:
        x = self._x.detach().requires_grad_()
        self._settle()
        begin = time.perf_counter()
        y = self._model(x)
        self.forward.append((time.perf_counter() - begin) / self._units)
        loss = y.float().square().mean()
        self._settle()
        begin = time.perf_counter()
        loss.backward()
        self.backward.append((time.perf_counter() - begin) / self._units)
        self._settle()


@contextlib.contextmanager
def optimizer_of(model: nn.Module, options: argparse.Namespace, sockets: pathlib.Path) -> Iterator[pt.AdamW]:
    sharded = pt.shard(model, name="hooks", units=list(model.layers), param_dtype=TYPES[options.type],
                       grad_dtype=TYPES[options.type], format=options.format, compute=options.compute,
                       socket_dir=str(sockets))
    try:
        yield pt.AdamW(model.parameters(), lr=1e-4)
    finally:
        sharded.close()


def show(figures: dict[str, float]) -> str:
    return f"{1e6 * figures['median']:.0f} ({1e6 * figures['p10']:.0f})"


def longer(ours: list[float], theirs: list[float]) -> dict[str, float]:
    def p10(seconds: list[float]) -> float:
        return sorted(seconds)[len(seconds) // 10]
    return {"median": statistics.median(ours) - statistics.median(theirs), "p10": p10(ours) - p10(theirs)}


def measure(options: argparse.Namespace, sockets: pathlib.Path) -> None:
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    with device:
        plain = Stack(options).to(TYPES[options.type])
    with pt.meta_init():
        model = Stack(options)
    with optimizer_of(model, options, sockets) as optimizer:
        ours, theirs, times = Passes(model, options, device), Passes(plain, options, device), HookTimes()
        for step in range(options.warmup + options.steps):
            if step == options.warmup:
                for passes in (ours, theirs):
                    passes.forward.clear()
                    passes.backward.clear()
            theirs.step()
            plain.zero_grad()
            ours.step()
            optimizer.step()
            optimizer.last_result()
        with times.watch():
            for _ in range(options.steps):
                ours.step()
                times.end_step()
                optimizer.step()
                optimizer.last_result()
    for name in ("forward", "backward"):
        parts = [f"{what.removesuffix(f' in {name}')} {show(each)}" for what, each in sorted(times.result().items())
                 if what.endswith(name)]
        more = longer(getattr(ours, name)[:options.steps], getattr(theirs, name))
        print(f"{name}: {', '.join(parts)}; a pass takes {show(more)} more than plain torch", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--type", choices=TYPES, default="BF16", help="of the computation and of gradients")
    parser.add_argument("--format", default="BF16")
    parser.add_argument("--compute", choices=["dense", "fp8"], default="dense")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--programs", help="folder with paramshardd; default: the package's")
    options = parser.parse_args()
    options.world, options.daemon_flag = 1, []
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", "0")
    with tempfile.TemporaryDirectory() as folder, torch_llama.daemon(options, pathlib.Path(folder)) as sockets:
        measure(options, sockets)


if __name__ == "__main__":
    main()
