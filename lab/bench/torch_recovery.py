"""Kills a rank of a training, and measures how long it stands still: python3 torch_recovery.py --help

Trainings of the GPT of train_gpt.py, in turns:

- torchrun: paramshard.torch under torchrun, which starts all ranks again.
- zygote: the same under `python -m paramshard.run`, which replaces all ranks.
- in-process: with `resume_in_process`, so that the rank that was killed is replaced alone.
- spare: with a process that waits to take its place as well.
- dcp: FSDP2 under torchrun, with DCP's async_save every 50 steps and a reload.

In each one the last rank kills itself (SIGKILL) in the backward of a step. What is printed, median and extremes: from
the kill until rank 0 has made a step again (of paramshard: until the daemon has answered its commit), with the parts of
that; how many finished steps were lost; and from the kill until the training has made the step in which it was killed.
The steps of the kills are spread evenly over the 50 between two checkpoints, the same ones in all arms.

    build/torch/bin/python lab/bench/torch_recovery.py           # when `./dev test-torch` has installed the wheel there
    build/torch/bin/python lab/bench/torch_recovery.py --device cuda --ranks 1 --arms torchrun,zygote,spare
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

RANK_PROGRAM = pathlib.Path(__file__).with_name("torch_recovery_rank.py")
TIMEOUT = 300.0  # seconds that one training has
ARMS = {"torchrun": "torchrun", "zygote": "paramshard.run", "in-process": "and resume_in_process",
        "spare": "and a spare", "dcp": "FSDP2, async_save"}
TORCHRUN = ("torchrun", "dcp")


@dataclass(frozen=True)
class Recovery:
    """Times are seconds since the kill."""

    started: float  # the new rank 0 begins, before it imports anything
    imported: float
    resumed: float  # it has its state, and begins with a step
    stepped: float  # that step is done
    caught_up: float  # the step is done in which the rank was killed
    lost_steps: int
    step: float  # a step before the kill, median


def run(arm: str, folder: pathlib.Path, kill_step: int, options: argparse.Namespace) -> Recovery:
    folder.mkdir()
    launcher = "torch.distributed.run" if arm in TORCHRUN else "paramshard.run"
    command = [sys.executable, "-m", launcher, "--standalone", f"--nproc-per-node={options.ranks}", "--max-restarts=1",
               *(["--spares=1"] if arm == "spare" else []), str(RANK_PROGRAM), "dcp" if arm == "dcp" else "paramshard",
               str(folder), str(kill_step), f"--every={options.every}", f"--layers={options.layers}",
               f"--width={options.width}", f"--device={options.device}",
               *(["--resume-in-process"] if arm in ("in-process", "spare") else [])]
    # Restarted workers would read the addresses of dead workers from torchrun's own store: pytorch#135712.
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1",
                                **({"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {})}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    if ended.returncode != 0:
        raise SystemExit(f"{arm}: {ended.stderr[-4000:]}")
    return recovery_of([json.loads(line) for line in (folder / "events").read_text().splitlines()],
                       float((folder / "killed").read_text()), kill_step)


def recovery_of(events: list[dict[str, Any]], killed: float, kill_step: int) -> Recovery:
    """`events` of rank 0: of the life that was ended, and of the one after it. Steps are numbered from 0."""
    before = [event for event in events if event["at"] < killed]
    after = [event for event in events if event["at"] >= killed]

    def first(what: str, **values: Any) -> dict[str, Any]:
        return next(event for event in after if event["what"] == what and values.items() <= event.items())

    # A rank may learn of the last step's end after the kill of the other: that is one of the first life.
    began = after.index(first("started"))
    finished = [event for event in before + after[:began] if event["what"] == "stepped"]
    after = after[began:]
    resumed = first("resumed")
    times = [later["at"] - event["at"] for event, later in zip(finished, finished[1:])]
    return Recovery(first("started")["at"] - killed, first("imported")["at"] - killed, resumed["at"] - killed,
                    first("stepped")["at"] - killed, first("stepped", step=kill_step)["at"] - killed,
                    finished[-1]["step"] + 1 - resumed["step"], statistics.median(times))


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(results: dict[str, list[Recovery]]) -> str:
    lines = [f"| median of {len(next(iter(results.values())))} kills, and extremes | "
             f"{' | '.join(ARMS[arm] for arm in results)} |", f"| --- |{' --- |' * len(results)}"]
    rows = [("kill to the next step that is done, s", "stepped", 2),
            ("- to the new rank 0's first line", "started", 2),
            ("- to its imports being done", "imported", 2),
            ("- to its state being there", "resumed", 2),
            ("steps lost", "lost_steps", 0),
            ("kill to the step in which it came being done, s", "caught_up", 2),
            ("a step before it, s", "step", 3)]
    for what, field, digits in rows:
        cells = (spread([getattr(recovery, field) for recovery in recoveries], digits)
                 for recoveries in results.values())
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="arms to run, of " + ", ".join(ARMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda with a GPU for each rank")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures of every kill")
    return parser.parse_args()


def main() -> None:
    options = parse()
    results: dict[str, list[Recovery]] = {arm: [] for arm in options.arms.split(",")}
    with tempfile.TemporaryDirectory(prefix="torch-recovery-") as folder:
        for number in range(options.rounds):
            # Behind the first checkpoint, so that there is one to come back to.
            kill_step = options.every + options.every * (2 * number + 1) // (2 * options.rounds)
            for arm, recoveries in results.items():
                recoveries.append(run(arm, pathlib.Path(folder, f"{arm}-{number}"), kill_step, options))
                print(f"{arm}, killed in step {kill_step}: next step after {recoveries[-1].stepped:.1f} s, "
                      f"{recoveries[-1].lost_steps} steps lost", flush=True)
    print(table(results))
    if options.json is not None:
        options.json.write_text(json.dumps({arm: [asdict(each) for each in recoveries]
                                            for arm, recoveries in results.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
