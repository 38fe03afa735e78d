"""Kills ranks of a training under paramshard.run at random times, and compares it with one that nobody kills.

Two ranks train a small GPT with dropout, a schedule and a loader, by the launcher that --help describes. Most kills end
one rank, some both, and some hit a spare; the next one comes up to --pause seconds later, so that many hit a rank that
is starting, or the other one while it resumes. After the last kill the training makes 20 more steps; then another one
makes as many without kills. Their weights have to be the same bytes. Prints a line for every 10 kills, and the outcome.

    build/torch/bin/python lab/campaign/killed_ranks.py --kills 500 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 2
MORE_STEPS = 20  # after the last kill
TIMEOUT = 300.0  # seconds in which a killed training makes a step again, and an unkilled one ends

# --- A rank: killed_ranks.py rank FOLDER STEPS ---


def rank(folder: pathlib.Path, steps: int | None) -> None:
    """Trains for a number of steps, or until FOLDER/stop names it."""
    import torch
    from torch import nn

    import paramshard.torch as pt
    sys.path.insert(0, str(ROOT / "python/examples"))
    from train_gpt import GPT

    local_rank = int(os.environ["LOCAL_RANK"])
    (folder / f"pid-{local_rank}").write_text(str(os.getpid()))
    stop = folder / "stop"
    steps_made = os.open(folder / "steps", os.O_WRONLY)

    class Loader:
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(local_rank)

        def __next__(self) -> torch.Tensor:
            return torch.randint(0, 32, (2, 17), generator=self.generator)

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"generator": self.generator.get_state()}

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            self.generator.set_state(state["generator"])

    def train() -> None:
        torch.manual_seed(7 + local_rank)
        with pt.meta_init():
            model = GPT(32, 16, 2, 32, 2)
            model.norm = nn.Sequential(model.norm, nn.Dropout(0.1))
        sharded = pt.shard(model, name="killed", units=[*model.layers, model], daemon="job", seed=3)
        optimizer = pt.AdamW(model.parameters(), lr=1e-2, max_grad_norm=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.97)
        loader = Loader()
        sharded.track(scheduler=scheduler, loader=loader, rng=True)
        step = sharded.start_step()
        while step < (steps or (int(stop.read_text()) if stop.exists() else step + 1)):
            tokens = next(loader).to(sharded.device)
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            os.write(steps_made, f"{step}\n".encode())
        with sharded.unsharded():
            weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
        if sharded.rank == 0:
            torch.save(weights, folder / "weights.pt")
        sharded.close()

    (pt.resume_in_process(train) if os.environ.get("RESUME_IN_PROCESS") else train)()


# --- The campaign ---


class Training:
    """A training under the launcher, until the end of the block. Its ranks write the steps that they make to a FIFO."""

    def __init__(self, folder: pathlib.Path, options: argparse.Namespace, restarts: int, steps: int):
        folder.mkdir()
        os.mkfifo(folder / "steps")
        self.folder = folder
        self.step = 0  # the last one that a rank has made
        self._rest = b""
        command = [sys.executable, "-m", "paramshard.run", "--standalone", f"--nproc-per-node={RANKS}",
                   f"--max-restarts={restarts}", f"--spares={options.spares}", __file__, "rank", str(folder), str(steps)]
        environment = os.environ | ({"RESUME_IN_PROCESS": "1"} if options.resume_in_process else {})
        with (folder / "log").open("w") as log:
            self._agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._end = os.pidfd_open(self._agent.pid)
        self._steps = os.open(folder / "steps", os.O_RDWR)  # no end of file while no rank has it open
        self._waiter = select.poll()
        self._waiter.register(self._end, select.POLLIN)
        self._waiter.register(self._steps, select.POLLIN)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.kill()
        self._agent.wait()
        os.close(self._end)
        os.close(self._steps)

    def await_step(self, step: int) -> None:
        if not self._listen(TIMEOUT, step) or self.step < step:
            raise SystemExit(f"no step {step} in {TIMEOUT:.0f} s: {self._end_of_log()}")

    def go_on(self, seconds: float) -> None:
        """Lets it train for some time."""
        if not self._listen(seconds):
            raise SystemExit(f"exited with {self._agent.wait()}: {self._end_of_log()}")

    def await_end(self, timeout: float) -> None:
        if self._listen(timeout) or self._agent.wait() != 0:
            raise SystemExit(f"exited with {self._agent.poll()} in {timeout:.0f} s: {self._end_of_log()}")

    def _listen(self, seconds: float, step: float = float("inf")) -> bool:
        """Reads what steps are made, for some time or until `step` is. Returns False if the training ends before."""
        deadline = time.monotonic() + seconds
        while self.step < step:
            ready = dict(self._waiter.poll(1000.0 * max(0.0, deadline - time.monotonic())))
            if self._steps in ready:
                # A short write to a FIFO is not cut, but the end of a read may be within a line.
                *lines, self._rest = (self._rest + os.read(self._steps, 1 << 16)).split(b"\n")
                self.step = max([self.step, *map(int, lines)])
            elif ready:
                return False
            elif time.monotonic() >= deadline:
                break
        return True

    def _end_of_log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def kill_some(folder: pathlib.Path, draw: random.Random) -> str:
    kind = draw.choices(["one", "both", "spare"], [8, 1, 1])[0]
    pids = [int(path.read_text() or 0) for path in sorted(folder.glob("pid-*"))]
    if kind == "one":
        pids = [draw.choice(pids)]
    elif kind == "spare":
        # Others that the zygote has forked.
        with contextlib.suppress(OSError):
            zygote = int(pathlib.Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
            children = pathlib.Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
            pids = [int(pid) for pid in children if int(pid) not in pids][:1]
    for pid in filter(None, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return kind


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends with fewer kills after this time")
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--resume-in-process", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=pathlib.Path, help="file for the outcome")
    return parser.parse_args()


def main() -> None:
    import torch
    options = parse()
    draw = random.Random(options.seed)
    kinds = {"one": 0, "both": 0, "spare": 0}
    with tempfile.TemporaryDirectory(prefix="killed-ranks-") as base:
        killed, whole = pathlib.Path(base, "killed"), pathlib.Path(base, "whole")
        with Training(killed, options, 3 * options.kills + 10, 0) as training:
            training.await_step(1)
            began = time.monotonic()
            while sum(kinds.values()) < options.kills and time.monotonic() - began < options.seconds:
                training.go_on(draw.uniform(0.0, options.pause))
                kinds[kill_some(killed, draw)] += 1
                if sum(kinds.values()) % 10 == 0:
                    print(f"{sum(kinds.values())} kills, step {training.step}", flush=True)
            training.await_step(training.step + 2)
            steps = training.step + MORE_STEPS
            (killed / "stop.tmp").write_text(str(steps))
            (killed / "stop.tmp").rename(killed / "stop")
            training.await_end(TIMEOUT)
        with Training(whole, options, 0, steps) as training:
            training.await_end(TIMEOUT + steps)
        ours, theirs = torch.load(killed / "weights.pt"), torch.load(whole / "weights.pt")
        different = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
        log = (killed / "log").read_text()
    outcome = {"seed": options.seed, "kills": kinds, "steps": steps, "resumed": log.count("waiting to resume"),
               "replaced late": log.count("replacing worker"), "different": different, "held": not different}
    print(json.dumps(outcome))
    if options.json is not None:
        options.json.write_text(json.dumps(outcome, indent=1) + "\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(pathlib.Path(sys.argv[2]), int(sys.argv[3]) or None)
    else:
        main()
