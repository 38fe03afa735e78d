"""torch.optim.AdamW(fused=True) on the matrices that kernel_cuda_bench steps, beside a device copy of the same bytes.

It encodes nothing: 28 bytes per parameter, fp32 moments. Run with a Python that has PyTorch and a GPU.
"""

import statistics

import torch

BLOCK = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
BLOCKS = 4
REPETITIONS = 15


def microseconds(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def main():
    params = [torch.nn.Parameter(0.02 * torch.randn(shape, device="cuda")) for shape in BLOCK * BLOCKS]
    for param in params:
        param.grad = 1e-3 * torch.randn_like(param)
    moved = 28 * sum(param.numel() for param in params)
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    for options in ({"fused": True}, {"foreach": True}):
        optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **options)
        copies, steps = [], []
        for repetition in range(REPETITIONS + 2):
            copy, step = microseconds(lambda: target.copy_(source)), microseconds(optimizer.step)
            if repetition >= 2:
                copies.append(copy)
                steps.append(step)
        step = statistics.median(steps)
        share = statistics.median(copies) / step
        print(f"torch {torch.__version__} AdamW {next(iter(options))}: {step:.1f} us, "
              f"{moved / step / 1e3:.0f} GB/s, {100 * share:.1f} % of copy")
        del optimizer


if __name__ == "__main__":
    main()
