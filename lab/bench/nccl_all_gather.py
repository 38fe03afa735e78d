"""NCCL's all-gather in the trainers' own processes, beside gather_cuda_bench: python3 nccl_all_gather.py [GPUS] [ITERATIONS]

In place, on bytes, with PyTorch's NCCL; times are between events on the stream, the slowest rank's of every iteration. Two
kinds: ordinary kernels, and zero-CTA (copy engines; symmetric windows and NCCL_CTA_POLICY=2), where this NCCL offers it.
"""

import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES_KIB = [256, 1024, 4096, 16384, 65536, 262144, 1048576]
LLAMA_BLOCK_KIB = (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) // 1024
WARMUP = 10


def allocate(size, group, zero_cta):
    if not zero_cta:
        return torch.empty(size, dtype=torch.uint8, device="cuda"), None
    backend = group._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
    backend.register_mem_pool(pool, symm=True)
    return buffer, pool


def measure(rank, gpus, iterations, zero_cta):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD
    rows = []
    pools = []
    for kib in SIZES_KIB + [LLAMA_BLOCK_KIB]:
        size = kib * 1024 // gpus * gpus
        buffer, pool = allocate(size, group, zero_cta)
        pools.append(pool)
        own = buffer[rank * (size // gpus):(rank + 1) * (size // gpus)]
        own.random_(0, 255)
        times = []
        for i in range(-WARMUP, iterations):
            dist.barrier()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            dist.all_gather_into_tensor(buffer, own)
            end.record()
            end.synchronize()
            if i >= 0:
                times.append(begin.elapsed_time(end) * 1e3)
        slowest = torch.tensor(times, device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        rows.append((kib, size, statistics.median(slowest.tolist())))
    if rank == 0:
        kind = "zero-CTA" if zero_cta else "kernels"
        print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))} {kind}, {gpus} GPUs")
        for kib, size, median in rows:
            print(f"{kib:10d} KiB {median:10.1f} us {size * (gpus - 1) / gpus / median / 1e3:8.1f} GB/s", flush=True)
    dist.destroy_process_group()


def main():
    gpus = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    for port, zero_cta in ((29511, False), (29512, True)):
        os.environ["MASTER_PORT"] = str(port)
        if zero_cta:
            os.environ["NCCL_CTA_POLICY"] = "2"
        try:
            mp.spawn(measure, (gpus, iterations, zero_cta), nprocs=gpus)
        except Exception as error:  # another NCCL or PyTorch
            print("not measured:", "zero-CTA" if zero_cta else "kernels", str(error).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
