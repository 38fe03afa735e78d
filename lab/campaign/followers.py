"""Kills and stops processes that follow a training, and checks every version they get: python3 followers.py --help

A trainer steps a model in which every element of a parameter has one value, another in each version. Followers copy the
newest version again and again, in place, and check every element of it: FP32 parameters have the version's exact value,
others one value for all elements, which is near. One after another is killed with SIGKILL or stopped with SIGSTOP for a
while, at random times. Afterwards the trainer's steps are those of a run without followers, and the daemon has as many
threads and descriptors as before.

    python3 followers.py --device cuda --snapshots 10000 --json followers.json
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn

import paramshard
import paramshard.torch as pt

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "bench"))
from torch_llama import daemon  # noqa: E402

FORMATS = ("FP32", "BF16", "MXFP8", "FP8_BLOCK_128X128", "FP32")
RATE = 2.0 ** -16  # exact: values begin at 1
COUNTERS = 3  # of a follower's board: versions checked, copies that broke off, wrong versions
LIMIT = 600.0  # seconds


def model_of(options: argparse.Namespace) -> nn.Sequential:
    layers = nn.Sequential(*(nn.Linear(options.width, options.width, bias=False) for _ in FORMATS))
    for layer in layers:
        nn.init.ones_(layer.weight)
    return layers.to(options.device)


def train(pipe: Connection, options: argparse.Namespace, name: str) -> None:
    model = model_of(options)
    sharded = pt.shard(model, name=name, units=list(model), socket_dir=options.sockets, param_dtype=torch.float32,
                       format=[(f"{index}.weight", each) for index, each in enumerate(FORMATS)])
    optimizer = pt.SGD(model.parameters(), lr=RATE)
    ones = torch.ones(1, options.width, device=options.device)

    def step() -> float:
        begin = time.perf_counter()
        # Each row's product with ones has a gradient of one for each element.
        sum(layer(ones).sum() for layer in model).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.last_result()
        return time.perf_counter() - begin

    step()
    pipe.send("ready")
    while (steps := pipe.recv()) > 0:
        taken = []
        for _ in range(steps):
            taken.append(step())
            if pipe.poll():
                break
        pipe.send(taken)
    sharded.close()


def follow(board: torch.Tensor, options: argparse.Namespace, name: str) -> None:
    module = model_of(options)
    follower = pt.follow(module, paramshard.Reader(name, socket_dir=options.sockets, name="campaign"))
    while True:
        try:
            version = follower.update(timeout=LIMIT, newer=True)
        except paramshard.AbortedError:
            board[1] += 1
            continue
        exact = 1.0 - version * RATE
        for layer, each in zip(module, FORMATS):
            least, most = layer.weight.aminmax()
            if not (least == most and abs(least.item() - exact) <= (0.0 if each == "FP32" else exact / 16)):
                board[2] += 1
                print(f"version {version}, {each}: want {exact}, got {least.item()} to {most.item()}", flush=True)
        board[0] += 1


def levels(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


def servers() -> list[int]:
    """The daemon's processes, which descend from this one."""
    parents, names = {}, {}
    for each in pathlib.Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                name, rest = (each / "stat").read_text().split(" (", 1)[1].rsplit(") ", 1)
            except OSError:  # it has ended
                continue
            parents[int(each.name)], names[int(each.name)] = int(rest.split()[1]), name
    def descends(pid: int) -> bool:
        while pid in parents:
            if (pid := parents[pid]) == os.getpid():
                return True
        return False
    return sorted(pid for pid, name in names.items() if name.startswith("paramshard") and descends(pid))


def run(options: argparse.Namespace) -> dict[str, Any]:
    choose = random.Random(options.seed)
    pipe, theirs = mp.Pipe()
    trainer = mp.Process(target=train, args=(theirs, options, "followed"), daemon=True)
    trainer.start()
    if not pipe.poll(LIMIT) or pipe.recv() != "ready":
        raise SystemExit("the trainer does not begin")
    pipe.send(200)
    calm = pipe.recv()
    before = {pid: levels(pid) for pid in servers()}

    boards = [torch.zeros(COUNTERS, dtype=torch.int64).share_memory_() for _ in range(options.followers)]
    def start(index: int) -> mp.Process:
        process = mp.Process(target=follow, args=(boards[index], options, "followed"), daemon=True)
        process.start()
        return process
    processes = [start(index) for index in range(options.followers)]
    kills = stops = 0
    pipe.send(10 ** 9)
    deadline = time.monotonic() + options.seconds
    while sum(int(board[0]) for board in boards) < options.snapshots and time.monotonic() < deadline:
        time.sleep(choose.uniform(0.0, 2 * options.pause))
        index = choose.randrange(options.followers)
        if not processes[index].is_alive():
            raise SystemExit(f"follower {index} has ended with {processes[index].exitcode}")
        if choose.random() < 0.5:
            processes[index].kill()
            processes[index].join()
            processes[index] = start(index)
            kills += 1
        else:
            os.kill(processes[index].pid, signal.SIGSTOP)
            time.sleep(choose.uniform(0.0, 0.5))
            os.kill(processes[index].pid, signal.SIGCONT)
            stops += 1
    for process in processes:
        process.kill()
        process.join()
    pipe.send(200)
    followed = pipe.recv()
    after = pipe.recv()
    level_deadline = time.monotonic() + 30.0
    while (now := {pid: levels(pid) for pid in servers()}) != before and time.monotonic() < level_deadline:
        time.sleep(0.1)
    pipe.send(0)
    trainer.join(30.0)
    checked, aborted, wrong = (sum(int(board[counter]) for board in boards) for counter in range(COUNTERS))
    return {"checked": checked, "aborted": aborted, "wrong": wrong, "kills": kills, "stops": stops, "steps":
            len(followed), "calm_ms": statistics.median(calm) * 1e3, "followed_ms": statistics.median(followed) * 1e3,
            "after_ms": statistics.median(after) * 1e3, "longest_ms": max(followed) * 1e3, "processes": len(before), "levels": now == before,
            "held": wrong == 0 and now == before}


def main() -> int:
    parser = argparse.ArgumentParser(description="kills processes that follow a training")
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--width", type=int, default=512)
    add("--followers", type=int, default=4)
    add("--snapshots", type=int, default=10000, help="versions to check, of all followers")
    add("--seconds", type=float, default=300.0, help="longest time")
    add("--pause", type=float, default=1.5, help="mean time between two events, in seconds")
    add("--seed", type=int, default=1)
    add("--programs", help="folder of paramshardd; default: the package's")
    add("--json")
    options = parser.parse_args()
    options.world, options.daemon_flag = 1, []
    mp.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="followers-") as made, daemon(options, pathlib.Path(made)) as sockets:
        options.sockets = str(sockets)
        result = run(options)
    print(json.dumps(result, indent=1))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"options": vars(options)} | result, indent=1))
    return 0 if result["held"] and result["checked"] >= options.snapshots else 1


if __name__ == "__main__":
    sys.exit(main())
