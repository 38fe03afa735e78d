"""A rank of torch_recovery.py, which kills itself once: torch_recovery_rank.py ARM FOLDER KILL_STEP

The training is over when the step is done in which the last rank was killed, and one more. Rank 0 writes what happens
when to FOLDER/events, and the last rank the time of its death to FOLDER/killed, by the clock that all processes share.
"""

from __future__ import annotations

import time

started = time.monotonic()

import argparse
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/examples"))
from train_gpt import GPT  # noqa: E402

CHARACTERS, LENGTH, BATCH, HEADS = 96, 64, 8, 4
OPTIONS = {"lr": 1e-3, "weight_decay": 0.1}
MAX_NORM = 1.0
RANK = int(os.environ["LOCAL_RANK"])
LAST_RANK = int(os.environ["LOCAL_WORLD_SIZE"]) - 1


class Events:
    def __init__(self, folder: pathlib.Path):
        self._file = (folder / "events").open("a") if RANK == 0 else None

    def note(self, what: str, at: float | None = None, **values: int) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"at": time.monotonic() if at is None else at, "what": what} | values) + "\n")
            self._file.flush()


class Paramshard:
    """Goes on from the last step: its state is in the daemon."""

    def __init__(self, options: argparse.Namespace):
        import paramshard.torch as pt
        with pt.meta_init():
            self.model = make_model(options)
        self._sharded = pt.shard(self.model, name="recovery", units=[*self.model.layers, self.model], daemon="job")
        self._optimizer = pt.AdamW(self.model.parameters(), max_grad_norm=MAX_NORM, **OPTIONS)
        self.device = self._sharded.device
        self.first_step = self._sharded.start_step()

    def step(self, number: int) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._optimizer.last_norm()  # waits until the step is committed

    def await_checkpoint(self) -> None:
        """Does nothing: every step is kept."""

    def close(self) -> None:
        self._sharded.close()


class Checkpoints:
    """FSDP2, which goes on from the newest checkpoint that is whole."""

    def __init__(self, options: argparse.Namespace):
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
        self.device = torch.device(options.device, RANK) if options.device == "cuda" else torch.device("cpu")
        if options.device == "cuda":
            torch.cuda.set_device(self.device)
        self.model = make_model(options).to(self.device)
        mesh = dist.init_device_mesh(options.device, (dist.get_world_size(),))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), **OPTIONS)
        self._folder, self._every = options.folder / "checkpoints", options.every
        self._saving = None
        # The thread that saves talks beside the training, which has the other group.
        self._savers = dist.new_group(backend="gloo")
        self.first_step = self._load()

    def _state(self) -> dict:
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model, optimizer = get_state_dict(self.model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _load(self) -> int:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict
        # The file with the names is written last.
        whole = max((int(path.parent.name) for path in self._folder.glob("*/.metadata")), default=0)
        if whole:
            state = self._state()
            dcp.load(state, checkpoint_id=self._folder / str(whole))
            set_state_dict(self.model, self._optimizer, model_state_dict=state["model"],
                           optim_state_dict=state["optimizer"])
        return whole

    def step(self, number: int) -> None:
        import torch.distributed.checkpoint as dcp
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if (number + 1) % self._every == 0:
            self.await_checkpoint()
            self._saving = dcp.async_save(self._state(), checkpoint_id=self._folder / str(number + 1),
                                          process_group=self._savers)

    def await_checkpoint(self) -> None:
        """Until the last one is whole."""
        if self._saving is not None:
            self._saving.result()

    def close(self) -> None:
        self.await_checkpoint()
        dist.destroy_process_group()


ARMS: dict[str, Callable[[argparse.Namespace], Paramshard | Checkpoints]] = {
    "paramshard": Paramshard, "dcp": Checkpoints}


def make_model(options: argparse.Namespace) -> GPT:
    torch.manual_seed(1)
    return GPT(CHARACTERS, LENGTH, options.layers, options.width, HEADS)


def die_once(folder: pathlib.Path) -> None:
    file = folder / "killed"
    if RANK == LAST_RANK and not file.exists():
        file.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("kill_step", type=int)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--resume-in-process", action="store_true")
    return parser.parse_args()


def train(options: argparse.Namespace, began: list[float]) -> None:
    """`began`: the time at which the process began, in its first call."""
    events = Events(options.folder)
    events.note("started", began.pop() if began else time.monotonic())
    events.note("imported")
    torch.set_num_threads(1)
    training = ARMS[options.arm](options)
    tokens = torch.randint(0, CHARACTERS, (BATCH, LENGTH + 1), device=training.device)
    events.note("resumed", step=training.first_step)
    for step in range(training.first_step, options.kill_step + 2):
        if step == options.kill_step:
            # Otherwise the step that a rank comes back to would depend on the load of the machine.
            training.await_checkpoint()
            # Behind the backward of the other blocks.
            training.model.layers[0].register_full_backward_hook(lambda *_: die_once(options.folder))
        training.model(tokens[:, :-1], tokens[:, 1:]).backward()
        training.step(step)
        events.note("stepped", step=step)
    training.close()


def main() -> None:
    options = parse()
    run = train
    if options.resume_in_process:
        import paramshard.torch as pt
        run = pt.resume_in_process(train)
    run(options, [started])


if __name__ == "__main__":
    main()
