"""Training of a Llama-style model through paramshard, beside FSDP2 and plain torch: python3 torch_llama.py --help

Each arm has processes of its own, one a GPU, and, if it is one of paramshard's, a daemon that lives as long as they do.
Rounds run the arms in turns. What is printed: the median of a step over windows of back-to-back steps between two
synchronizations, and its extremes; tokens a second and GPU; what the GPU has in use more than before the arm, daemon
and contexts included; what torch allocated of that, and reserved; the host's time for a step by itself; the mean loss
of the last steps, which were made on the same data in every arm; and ratios to the best arm of torch's with moments of
the same type. Then host times of paramshard's hooks. An arm that fails or takes too long is named, and the others go
on.

    python3 torch_llama.py --arms A,P16,F --size 1.1b --rounds 2 --json llama.json
    python3 torch_llama.py --arms F,P32 --size tiny --device cpu --no-compile --sequence 128 --batch 1 \\
        --warmup 1 --windows 1 --steps 2                               # a dry run
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VOCABULARY = 32000
GIB = 1 << 30
NAP = 0.05  # seconds between two looks at processes
GRACE = 15.0  # seconds that ranks have to end when another has failed
DRAIN = 30.0  # seconds that a daemon has
RANK_PROGRAM = pathlib.Path(__file__).with_name("torch_llama_rank.py")


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int

    def parameters(self) -> int:
        attention = 2 * self.width * self.width * (self.heads + self.kv_heads) // self.heads
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * block + 2 * VOCABULARY * self.width + self.width


SIZES = {
    "tiny": Size(2, 256, 512, 4, 2),
    "1.1b": Size(16, 2048, 8192, 16, 8),
    "3.8b": Size(16, 4096, 14336, 32, 8),
}


@dataclass(frozen=True)
class Arm:
    what: str
    engine: str  # fsdp2, plain or paramshard
    moments: str = "FP32"
    reduce: str = "FP32"
    compiled_optimizer: bool = False
    products: str = "bf16"  # or torchao, scaled_mm: library of FSDP2's FP8 products
    compute: str = "dense"  # of paramshard.torch.shard
    optimizer: str = "AdamW"  # or SGD, Lion, Muon

    @property
    def is_yardstick(self) -> bool:
        return self.engine != "paramshard" and self.products == "bf16" and self.optimizer == "AdamW"


ARMS = {
    "A": Arm("FSDP2, reduce FP32", "fsdp2"),
    "B": Arm("FSDP2, reduce BF16", "fsdp2", reduce="BF16"),
    "C": Arm("B, clip and AdamW compiled, BF16 moments", "fsdp2", "BF16", "BF16", compiled_optimizer=True),
    "C32": Arm("C with FP32 moments", "fsdp2", "FP32", "BF16", compiled_optimizer=True),
    "D": Arm("A with torchao's tensorwise FP8, all-gather too", "fsdp2", products="torchao"),
    "S": Arm("A with tensorwise FP8 by hand, all-gather BF16", "fsdp2", products="scaled_mm"),
    "F": Arm("torch on one GPU", "plain"),
    "F16": Arm("F, clip and AdamW compiled, BF16 moments", "plain", "BF16", compiled_optimizer=True),
    "P32": Arm("paramshard, FP8_BLOCK_128X128, dense", "paramshard"),
    "P16": Arm("P32 with BF16 moments", "paramshard", "BF16"),
    "P8": Arm("paramshard, FP8 products", "paramshard", compute="fp8"),
    "P816": Arm("P8 with BF16 moments", "paramshard", "BF16", compute="fp8"),
    "FM": Arm("F with torch.optim.Muon for the blocks' matrices", "plain", optimizer="Muon"),
    "PM": Arm("P32 with Muon", "paramshard", optimizer="Muon"),
    "FS": Arm("F with SGD, momentum 0.9", "plain", optimizer="SGD"),
    "PS": Arm("P32 with SGD", "paramshard", optimizer="SGD"),
    "PL": Arm("P32 with Lion", "paramshard", optimizer="Lion"),
}


Results = dict[str, list[dict[str, Any]]]  # by arm, of each round
Failures = dict[str, Exception]  # by arm


class ArmFailed(Exception):
    """Why an arm has no result."""


class ArmSkipped(ArmFailed):
    """It was not tried, which is no failure of this program."""


# --- Processes ---


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def used_before(device: str, world_size: int) -> list[int]:
    """Bytes that each GPU has in use without a context of ours, which would count itself."""
    if device == "cpu":
        return [0] * world_size
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    asked = subprocess.run(["nvidia-smi", *([f"--id={visible}"] if visible else []), "--query-gpu=memory.used",
                            "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60)
    used = [int(word) << 20 for word in asked.stdout.split() if word.isdigit()]
    return used[:world_size] if len(used) >= world_size else [0] * world_size


def end_group(process: subprocess.Popen, number: int) -> None:
    """Compilers that a rank has started go with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def daemon(options: argparse.Namespace, folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Its socket directory, while it serves."""
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700)
    log = folder / "daemon.log"
    devices = [f"--device={options.device}:{index}" for index in range(options.world)]
    with log.open("w") as out:
        process = subprocess.Popen([daemon_program(options), f"--socket-dir={sockets}", *devices, *options.daemon_flag],
                                   stdout=out, stderr=out, start_new_session=True)
    try:
        await_daemon(process, sockets, log)
        yield sockets
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DRAIN)
        end_group(process, signal.SIGKILL)  # what is left of it
        process.wait()


def daemon_program(options: argparse.Namespace) -> str:
    if options.programs:
        return str(pathlib.Path(options.programs, "paramshardd"))
    from paramshard import programs
    return str(programs.path_of("paramshardd"))


def await_daemon(process: subprocess.Popen, sockets: pathlib.Path, log: pathlib.Path) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(sockets / "grpc.sock")) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(NAP)
    raise ArmFailed(f"paramshardd does not serve: {end_of(log)}")


def end_of(log: pathlib.Path, lines: int = 12) -> str:
    return "\n    ".join(log.read_text(errors="replace").strip().splitlines()[-lines:])


def start_ranks(arm: str, options: argparse.Namespace, folder: pathlib.Path,
                sockets: pathlib.Path | None) -> list[subprocess.Popen]:
    common = {"WORLD_SIZE": options.world, "LOCAL_WORLD_SIZE": options.world, "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": free_port()}
    defaults = {"OMP_NUM_THREADS": 1, "NCCL_NVLS_ENABLE": 0, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    command = [sys.executable, str(RANK_PROGRAM), arm, json.dumps(vars(options)), str(folder)]
    command += [str(sockets)] if sockets is not None else []
    ranks = []
    for rank in range(options.world):
        environment = defaults | dict(os.environ) | common | {"RANK": rank, "LOCAL_RANK": rank}
        with (folder / f"rank-{rank}.log").open("w") as log:
            ranks.append(subprocess.Popen(command, env={key: str(value) for key, value in environment.items()},
                                          stdout=log, stderr=log, start_new_session=True))
    return ranks


def await_ranks(ranks: list[subprocess.Popen], folder: pathlib.Path, limit: float) -> None:
    """Until all have ended well. When one has not, the others wait for it, so they are not waited for much longer."""
    deadline = time.monotonic() + limit
    failed = None
    try:
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            if failed is None and any(rank.poll() for rank in ranks):
                failed = next(index for index, rank in enumerate(ranks) if rank.poll())
                deadline = min(deadline, time.monotonic() + GRACE)
            time.sleep(NAP)
        if failed is None:
            failed = next((index for index, rank in enumerate(ranks) if rank.poll() != 0), None)
        if failed is None:
            return
        ended = ranks[failed].poll()
        why = f"has ended with {ended}" if ended is not None else f"has not ended after {limit:.0f} s"
        raise ArmFailed(f"rank {failed} {why}: {end_of(folder / f'rank-{failed}.log')}")
    finally:
        for rank in ranks:
            end_group(rank, signal.SIGKILL)
            rank.wait()


def run_arm(name: str, turn: int, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Starts the arm's processes, and combines the measurements of its ranks."""
    arm = ARMS[name]
    if arm.engine == "plain" and options.world > 1:
        raise ArmSkipped("skipped: it is for one GPU")
    if arm.products == "torchao" and importlib.util.find_spec("torchao") is None:
        raise ArmSkipped("skipped: torchao is not installed")
    before = used_before(options.device, options.world)
    with tempfile.TemporaryDirectory(prefix="torch-llama-") as made, contextlib.ExitStack() as stack:
        folder = pathlib.Path(made)
        stack.callback(keep_logs, folder, options.logs, f"{name}-{turn}")
        sockets = stack.enter_context(daemon(options, folder)) if arm.engine == "paramshard" else None
        await_ranks(start_ranks(name, options, folder, sockets), folder, limit)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(options.world)]
    return joined(ranks, before)


def keep_logs(folder: pathlib.Path, kept: str | None, prefix: str) -> None:
    """Copies the logs of ranks and daemon to the folder `kept`, if there is one."""
    if kept is None:
        return
    for log in folder.glob("*.log"):
        shutil.copy(log, pathlib.Path(kept, f"{prefix}-{log.name}"))


def joined(ranks: list[dict[str, Any]], before: list[int]) -> dict[str, Any]:
    """The slowest rank makes a window, and the fullest GPU the memory."""
    def most(key: str) -> float:
        return max(rank[key] for rank in ranks)
    return ranks[0] | {
        "step_seconds": [max(each) for each in zip(*(rank["step_seconds"] for rank in ranks))],
        "losses": [statistics.mean(each) for each in zip(*(rank["losses"] for rank in ranks))],
        "gpu_bytes": max(max(0, rank["gpu_bytes"] - used) for rank, used in zip(ranks, before)),
        "bytes_before": max(before),
        "allocated_bytes": most("allocated_bytes"), "reserved_bytes": most("reserved_bytes"),
        "host_seconds": most("host_seconds"),
    }


# --- Rounds ---


def run_rounds(options: argparse.Namespace, results: Results, failures: Failures) -> None:
    """Adds results of each arm, or the reason for having none. Does not retry arms that have failed."""
    deadline = time.monotonic() + options.budget
    for turn in range(1, options.rounds + 1):
        for name in options.arms:
            if name in failures:
                continue
            left = deadline - time.monotonic()
            try:
                if left < options.least:
                    raise ArmSkipped(f"left out from round {turn} on: the budget of {options.budget:.0f} s is spent")
                limit = min(options.limit, left)
                print(f"{name}: round {turn}: {ARMS[name].what}, at most {limit:.0f} s", flush=True)
                result = run_arm(name, turn, options, limit)
            except (ArmFailed, OSError, subprocess.SubprocessError, ValueError) as error:
                failures[name] = error
                print(f"{name}: no result in round {turn}: {error}", flush=True)
            else:
                results.setdefault(name, []).append(result)
                print(f"{name}: round {turn}: {statistics.median(result['step_seconds']) * 1e3:.1f} ms, set up in "
                      f"{result['setup_seconds']:.1f} s, first step {result['first_step_seconds']:.1f} s", flush=True)
            write_json(options, results, failures)


def write_json(options: argparse.Namespace, results: Results, failures: Failures) -> None:
    """Writes all results. Called after every run, so that earlier results survive any end of this program."""
    if options.json:
        summary = {name: summary_of(runs) for name, runs in results.items()}
        pathlib.Path(options.json).write_text(json.dumps(
            {"options": vars(options), "summary": summary, "runs": results,
             "failures": {name: str(error) for name, error in failures.items()}}, indent=1))


# --- Tables ---


def summary_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    steps = [step for run in runs for step in run["step_seconds"]]
    return {
        "step": statistics.median(steps), "least": min(steps), "most": max(steps),
        "gpu_bytes": max(run["gpu_bytes"] for run in runs),
        "allocated_bytes": max(run["allocated_bytes"] for run in runs),
        "reserved_bytes": max(run["reserved_bytes"] for run in runs),
        "host": statistics.median(run["host_seconds"] for run in runs),
        "first_loss": runs[0]["losses"][0],
        "loss": statistics.mean(statistics.mean(run["losses"][-10:]) for run in runs),
    }


def best_of(summaries: dict[str, dict[str, float]], moments: str | None, key: str) -> float | None:
    """Returns the smallest value among torch's arms without FP8; None if none has run."""
    return min((summary[key] for name, summary in summaries.items()
                if ARMS[name].is_yardstick and moments in (None, ARMS[name].moments)), default=None)


def ratio(value: float, of: float | None) -> str:
    return f"{value / of:.3f}" if of else "-"


def print_tables(results: Results, options: argparse.Namespace) -> None:
    summaries = {name: summary_of(runs) for name, runs in results.items()}
    some = next(iter(results.values()))[0]
    tokens = options.batch * options.sequence * options.accumulate
    print(f"\n{some['parameters'] / 1e9:.3f} billion parameters, {options.world} x {some['device']}, torch "
          f"{some['torch']}; {tokens} tokens a step and rank, in {options.accumulate} micro-batches of {options.batch} "
          f"x {options.sequence}; blocks {'compiled' if options.compile else 'eager'}"
          f"{', recomputed' if options.recompute else ''}; {options.windows} windows of {options.steps} steps a round")
    head = ["arm", "what", "moments", "step ms", "least", "most", "tokens/s/GPU", "GPU GiB", "allocated", "reserved",
            "host ms", "first loss", "last 10", "time of best", "of any", "GPU of best"]
    rows = [row_of(name, summaries, tokens) for name in summaries]
    print_table(head, rows)
    compare_products(summaries)
    for name, runs in results.items():
        if "hooks" in runs[0]:
            print_hooks(name, runs)


def row_of(name: str, summaries: dict[str, dict[str, float]], tokens: int) -> list[str]:
    arm, summary = ARMS[name], summaries[name]
    return [name, arm.what, arm.moments, *(f"{summary[key] * 1e3:.1f}" for key in ("step", "least", "most")),
            f"{tokens / summary['step']:.0f}",
            *(f"{summary[key] / GIB:.2f}" for key in ("gpu_bytes", "allocated_bytes", "reserved_bytes")),
            f"{summary['host'] * 1e3:.1f}", f"{summary['first_loss']:.4f}", f"{summary['loss']:.4f}",
            ratio(summary["step"], best_of(summaries, arm.moments, "step")),
            ratio(summary["step"], best_of(summaries, None, "step")),
            ratio(summary["gpu_bytes"], best_of(summaries, arm.moments, "gpu_bytes"))]


def compare_products(summaries: dict[str, dict[str, float]]) -> None:
    for ours in ("P8", "P816"):
        for theirs in ("D", "S"):
            if ours in summaries and theirs in summaries:
                print(f"{ours} of {theirs}: time {ratio(summaries[ours]['step'], summaries[theirs]['step'])}, GPU "
                      f"{ratio(summaries[ours]['gpu_bytes'], summaries[theirs]['gpu_bytes'])}, loss "
                      f"{summaries[ours]['loss'] - summaries[theirs]['loss']:+.4f}")


def print_hooks(name: str, runs: list[dict[str, Any]]) -> None:
    """Prints the times of the last round. Hooks include the gathers and pushes that they make."""
    for what, micros in sorted(runs[-1]["hooks"].items()):
        print(f"{name}: host time of a unit in a step, {what}: median {micros['median'] * 1e6:.0f} us, p90 "
              f"{micros['p90'] * 1e6:.0f} us, most {micros['most'] * 1e6:.0f} us")


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
    sys.stdout.flush()


# --- Options ---


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="; ".join(f"{name}: {arm.what}" for name, arm in ARMS.items()))
    add = parser.add_argument
    add("--arms", default="A,B,C,F,P32,P16", help="arms, in the order of a round")
    add("--size", choices=SIZES, default="1.1b")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--world", type=int, default=1, help="number of GPUs and processes")
    add("--sequence", type=int, default=4096)
    add("--batch", type=int, default=2, help="sequences per micro-batch and rank: 8 for 32k tokens")
    add("--accumulate", type=int, default=1, help="micro-batches per step")
    add("--compile", action=argparse.BooleanOptionalAction, default=True, help="compile the blocks, one by one")
    add("--recompute", action="store_true", help="recompute blocks in the backward pass (checkpointing), in every arm")
    add("--gradients", choices=("FP32", "BF16"), default="BF16", help="type of gradients that paramshard pushes")
    add("--same-values", action="store_true",
        help="import the other arms' initial values into paramshard; default: draw from the same distribution")
    add("--learning-rate", type=float, default=3e-5, help="small enough for smooth losses without warm-up")
    add("--warmup", type=int, default=5, help="steps before the windows")
    add("--windows", type=int, default=5)
    add("--steps", type=int, default=10, help="steps per window")
    add("--profile-steps", type=int, default=5, help="steps after the windows, in which hooks are timed")
    add("--rounds", type=int, default=1)
    add("--limit", type=float, default=240.0, help="longest time of an arm, in seconds")
    add("--budget", type=float, default=3600.0, help="longest time of all arms, in seconds")
    add("--least", type=float, default=20.0, help="seconds of the budget that must be left for an arm to begin")
    add("--programs", help="folder of paramshardd; default: the package's")
    add("--daemon-flag", action="append", default=[], help="flag for paramshardd, such as --daemon-flag=--keeper=off")
    add("--json", help="file for all figures")
    add("--logs", help="folder for the logs of ranks and daemons")
    options = parser.parse_args(arguments)
    options.arms = options.arms.split(",")
    for name in options.arms:
        if name not in ARMS:
            parser.error(f"--arms: want some of {', '.join(ARMS)}, got {name}")
    return options


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes of an arm are ended
    options = options_of(sys.argv[1:])
    if options.logs:
        pathlib.Path(options.logs).mkdir(parents=True, exist_ok=True)
    results: Results = {}
    failures: Failures = {}
    try:
        run_rounds(options, results, failures)
    finally:
        if results:
            print_tables(results, options)
        for name, why in failures.items():
            print(f"no result: {name}: {why}", flush=True)
    return 1 if any(not isinstance(error, ArmSkipped) for error in failures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
