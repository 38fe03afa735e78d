"""PyTorch's asynchronous save, beside saves_cuda_bench: python3 dcp_async_save.py [BLOCKS] [STEPS] [ROUNDS] [TOKENS]

fp32 masters and moments of Llama-3-8B blocks on GPU 0, the products of a step, and an update of all of them; every other
round begins with dcp.async_save of the whole state by way of pinned memory that is kept, into a folder of
$PARAMSHARD_BENCH_DIR. `stall` is what a step waits for: until async_save returns, which copies first. The first save, which
takes the pinned memory, is not counted. (PyTorch 2.11's DefaultStager, which copies beside the step, cannot be used twice:
pytorch/pytorch#183413.)
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

SHAPES = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096),
          "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336)}


def state_of(blocks):
    return {f"{kind}/block{block}.{name}": torch.randn(shape, device="cuda")
            for kind in ("master", "exp_avg", "exp_avg_sq") for block in range(blocks) for name, shape in SHAPES.items()}


class Trainer:
    def __init__(self, blocks, tokens):
        self.blocks = blocks
        self.inputs = {columns: torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
                       for columns in (4096, 14336)}
        self.weights = {name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name, shape in SHAPES.items()}
        self.state = state_of(blocks)

    def products(self):
        for _ in range(self.blocks):
            for rows, columns in SHAPES.values():
                self.inputs[columns] @ self.weights[next(n for n, s in SHAPES.items() if s == (rows, columns))].T
        for _ in range(self.blocks):
            for name, (rows, columns) in SHAPES.items():
                out = self.inputs[columns] @ self.weights[name].T
                out @ self.weights[name]
                out.T @ self.inputs[columns]

    def update(self):
        torch._foreach_mul_(list(self.state.values()), 1.0)


def run(trainer, steps):
    """Seconds of each step."""
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        trainer.products()
        trainer.update()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times


def main():
    blocks, steps, rounds, tokens = [int(a) for a in sys.argv[1:]] + [4, 20, 6, 32768][len(sys.argv) - 1:]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    folder = tempfile.mkdtemp(prefix="dcp-", dir=os.environ.get("PARAMSHARD_BENCH_DIR"))
    trainer = Trainer(blocks, tokens)
    size = sum(t.numel() * t.element_size() for t in trainer.state.values())
    stager = BlockingAsyncStager(cache_staged_state_dict=True)
    plain, saving, stalls, tooks = [], [], [], []
    run(trainer, 2)
    for i in range(rounds):
        plain += run(trainer, steps)
        path = os.path.join(folder, str(i))
        begin = time.perf_counter()
        response = dcp.async_save(trainer.state, storage_writer=dcp.FileSystemWriter(path, thread_count=4),
                                  async_stager=stager)
        returned = time.perf_counter() - begin
        times = run(trainer, steps)
        response.result()
        took = time.perf_counter() - begin
        shutil.rmtree(path)
        if i > 0:
            saving += [times[0] + returned] + times[1:]
            stalls.append(returned)
            tooks.append(took)
    quantile = lambda values, q: sorted(values)[int(q * (len(values) - 1))]
    print(f"torch {torch.__version__}: saved {size / 1e9:.2f} GB, step {statistics.median(plain) * 1e3:.1f} ms, "
          f"save {statistics.median(tooks):.2f} s")
    print(f"steps while saving, of steps without: median {statistics.median(saving) / statistics.median(plain):.3f}, "
          f"p99 {quantile(saving, 0.99) / quantile(plain, 0.99):.3f}")
    print(f"stall of a save: median {statistics.median(stalls) * 1e3:.1f} ms, most {max(stalls) * 1e3:.1f} ms; "
          f"of a step {100 * statistics.median(stalls) / statistics.median(plain):.1f} %")
    shutil.rmtree(folder)
    os._exit(0)  # threads of the stager stay


if __name__ == "__main__":
    main()
