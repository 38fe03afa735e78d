"""GPU memory of PyTorch's FSDP2, beside memory_cuda_bench: python3 fsdp2_memory.py [GPUS] [BLOCKS]

Llama-3-8B blocks, fully_shard on each and on the whole, mixed precision (bf16 weights and gradients on the wire, fp32 shards),
AdamW(fused=True); one step on a short sequence, so that activations are small. Of GPU 0: what a context and NCCL take, and
bytes by class.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SHAPES = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096),
          "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336)}
MIB = 1 << 20


class Block(nn.Module):
    """The products of a block, without attention: memory is about the weights."""

    def __init__(self):
        super().__init__()
        for name, (rows, columns) in SHAPES.items():
            setattr(self, name, nn.Linear(columns, rows, bias=False))

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        x = x + self.o(self.q(x) + torch.cat([k, v, k, v], -1))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def used():
    available, total = torch.cuda.mem_get_info()
    return total - available


def line(what, size, parameters=0):
    per_parameter = f" {size / parameters:7.2f} bytes a parameter" if parameters else ""
    print(f"{what:44s} {size / MIB:10.1f} MiB{per_parameter}", flush=True)


def local_bytes(tensors):
    return sum(t.to_local().numel() * t.element_size() for t in tensors)


def run(rank, gpus, blocks):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    dist.barrier()
    fixed = used() - torch.cuda.memory_reserved()
    with torch.device("meta"):
        model = nn.Sequential(*[Block() for _ in range(blocks)])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        model(torch.randn(1, 128, 4096, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = local_bytes(p.grad for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    if rank == 0:
        shard = sum(p.to_local().numel() for p in model.parameters())
        moments = {name: local_bytes(state[name] for state in optimizer.state.values()) for name in ("exp_avg", "exp_avg_sq")}
        print(f"PyTorch {torch.__version__}, FSDP2, {gpus} GPUs, {blocks} blocks: {shard * gpus / 1e9:.2f} billion parameters; of GPU 0")
        line("context and NCCL", fixed)
        line("parameters", local_bytes(model.parameters()), shard)
        line("gradients", gradients, shard)
        for name, size in moments.items():
            line(name, size, shard)
        line("most allocated at once (gathered units too)", torch.cuda.max_memory_allocated(), shard)
        line("most reserved by PyTorch", torch.cuda.max_memory_reserved(), shard)
        line("used on the GPU", used())
    dist.destroy_process_group()


def main():
    gpus = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29521")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    mp.spawn(run, (gpus, blocks), nprocs=gpus)


if __name__ == "__main__":
    main()
