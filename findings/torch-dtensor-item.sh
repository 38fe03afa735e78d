#!/usr/bin/env bash
# torch 2.15.0: item(), float() and int() of a DTensor that is a sum still to be made give the process's own part,
# different in each process, without an error; cpu() keeps it so. (sum + 1).item(), bool() of a comparison, and
# full_tensor() make the sum first; tolist(), numpy() and format() refuse.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - "$folder" <<'END' 2>/dev/null
import sys

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


def read(rank):
    torch.distributed.init_process_group("gloo", f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    total = distribute_tensor(torch.tensor([1.0, 2, 3, 4]), init_device_mesh("cpu", (2,)), [Shard(0)]).sum()
    lines = [total.item(), float(total), total.cpu().item(), (total + 1).item(), bool(total == 10),
             total.full_tensor().item()]
    for refused in (total.tolist, total.numpy, lambda: format(total, ".1f")):
        try:
            refused()
        except (RuntimeError, TypeError) as error:
            lines.append(type(error).__name__)
    gathered = [None, None]
    torch.distributed.all_gather_object(gathered, lines)
    if rank == 0:
        print(*gathered, sep="\n", flush=True)
    torch.distributed.destroy_process_group()


torch.multiprocessing.start_processes(read, nprocs=2, start_method="fork")
END
)
seen="[3.0, 3.0, 3.0, 11.0, True, 10.0, 'RuntimeError', 'RuntimeError', 'TypeError']
[7.0, 7.0, 7.0, 11.0, True, 10.0, 'RuntimeError', 'RuntimeError', 'TypeError']"
conclude "$seen" "$now" \
  "torch 2.15.0: item() of a DTensor that is a sum still to be made gives each process its own part"
