"""A training that dies where it is told to, once at each place, and goes on when torchrun starts it again.

    torchrun ... trainer.py FOLDER STEPS [RANK STEP PHASE ...]

PHASE "import", in step 0, is before the model is made. PHASE "server" kills the daemon's server instead, in the middle
of the step, and "node" torchrun's agent as well. It draws random numbers for dropout, loads batches from a loader with a
state, and changes its rate by a scheduler, so that a step which is repeated with anything of these off by one ends in
other weights. Rank 0 writes them to FOLDER/weights.pt at the end. Every rank writes the steps that it has begun with to
FOLDER/begun-RANK, its processes to FOLDER/pids-RANK, and the ranks that torchrun has given it to FOLDER/given-RANK,
where RANK is that of the daemon.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn

import paramshard.torch as pt
from models import DEVICE, VOCABULARY, Block


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = self.dropout(layer(x))
        return self.head(x)


class Loader:
    """Batches of a shuffled data set, another order in each epoch; every rank has its own."""

    def __init__(self, rank: int):
        self.generator = torch.Generator().manual_seed(100 + rank)
        self.data = torch.randint(0, VOCABULARY, (12, 10), generator=self.generator)
        self.order: list[int] = []

    def __next__(self) -> torch.Tensor:
        if not self.order:
            self.order = torch.randperm(len(self.data), generator=self.generator).tolist()
        return self.data[[self.order.pop() for _ in range(2)]]

    def state_dict(self) -> dict:
        return {"order": list(self.order), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.order = list(state["order"])
        self.generator.set_state(state["generator"])


def main(folder: pathlib.Path, steps: int, deaths: set[tuple[str, ...]]) -> None:
    def may_die(phase: str) -> None:
        death = (os.environ["LOCAL_RANK"], str(step), phase)
        marker = folder / "-".join(death)
        if death in deaths and not marker.exists():
            marker.touch()
            if phase == "node":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(sharded.daemon_info().pid if phase == "server" else os.getpid(), signal.SIGKILL)

    step = 0
    may_die("import")
    device = torch.device(DEVICE)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    torch.manual_seed(7 + int(os.environ["LOCAL_RANK"]))
    with contextlib.nullcontext() if os.environ.get("PARAMSHARD_TEST_VALUES") == "brought" else pt.meta_init():
        model = Dropped()
    sharded = pt.shard(model, name="trained", units=[*model.layers, model],
                       socket_dir=os.environ.get("PARAMSHARD_TEST_SOCKETS"),
                       daemon=os.environ.get("PARAMSHARD_TEST_DAEMON"),
                       existing=os.environ.get("PARAMSHARD_TEST_EXISTING", "error"))
    optimizer = pt.AdamW(model.parameters(), lr=1e-2, max_grad_norm=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    loader = Loader(sharded.rank)
    sharded.track(scheduler=scheduler, loader=loader, rng=True)
    with (folder / f"begun-{sharded.rank}").open("a") as begun:
        begun.write(f"{sharded.start_step()}\n")
    with (folder / f"pids-{sharded.rank}").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    with (folder / f"given-{sharded.rank}").open("a") as given:
        given.write(f"{os.environ['RANK']}\n")
    for step in range(sharded.start_step(), steps):
        tokens = next(loader).to(device)
        may_die("load")
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        may_die("forward")
        may_die("server")
        may_die("node")
        loss.backward()
        may_die("backward")
        optimizer.step()
        may_die("step")
        scheduler.step()
        may_die("schedule")
        optimizer.zero_grad()
    with sharded.unsharded():
        weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    if sharded.rank == 0:
        torch.save(weights, folder / "weights.pt")
    sharded.close()


if __name__ == "__main__":
    words = sys.argv[3:]
    train = pt.resume_in_process(main) if os.environ.get("PARAMSHARD_TEST_RESUME") else main
    train(pathlib.Path(sys.argv[1]), int(sys.argv[2]), set(zip(words[::3], words[1::3], words[2::3])))
