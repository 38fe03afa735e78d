#!/usr/bin/env bash
# torch 2.15.0: mse_loss, huber_loss, smooth_l1_loss and soft_margin_loss of DTensors that are sharded over two
# processes by rows give gradients twice as large as those of plain tensors, and of 7 rows another loss: the mean of the
# shards' means. l1_loss, and reduction="sum" for all, have loss and gradients right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - "$folder" <<'END' 2>/dev/null
import sys

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn import functional


def compare(rank):
    torch.distributed.init_process_group("gloo", f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for rows in (8, 7):
        whole = torch.arange(float(rows)), torch.ones(rows)
        shards = [distribute_tensor(part, mesh, [Shard(0)]) for part in whole]
        for loss, reduction in (("mse_loss", "mean"), ("huber_loss", "mean"), ("smooth_l1_loss", "mean"),
                                ("soft_margin_loss", "mean"), ("l1_loss", "mean"), ("mse_loss", "sum")):
            results = []
            for inputs, targets in (whole, shards):
                inputs = inputs.detach().requires_grad_()
                result = getattr(functional, loss)(inputs, targets, reduction=reduction)
                result.backward()
                results += [result, inputs.grad]
            right, right_gradient, wrong, wrong_gradient = results
            loss_ratio = (wrong.full_tensor() / right).item()
            gradient_ratio = (wrong_gradient.full_tensor()[0] / right_gradient[0]).item()
            if rank == 0:
                print(rows, loss, reduction, f"{loss_ratio:.3f} {gradient_ratio:.3f}", flush=True)
    torch.distributed.destroy_process_group()


torch.multiprocessing.start_processes(compare, nprocs=2, start_method="fork")
END
)
seen='8 mse_loss mean 1.000 2.000
8 huber_loss mean 1.000 2.000
8 smooth_l1_loss mean 1.000 2.000
8 soft_margin_loss mean 1.000 2.000
8 l1_loss mean 1.000 1.000
8 mse_loss sum 1.000 1.000
7 mse_loss mean 1.135 1.750
7 huber_loss mean 1.111 1.750
7 smooth_l1_loss mean 1.111 1.750
7 soft_margin_loss mean 0.882 1.750
7 l1_loss mean 1.000 1.000
7 mse_loss sum 1.000 1.000'
conclude "$seen" "$now" "torch 2.15.0: mse_loss of DTensors in two shards has gradients twice as large as it should"
