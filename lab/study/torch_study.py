"""Trains the example's GPT by torch's optimizers and by paramshard.torch, with the same values and batches.

    build/torch/bin/python lab/study/torch_study.py        # when `./dev test-torch` has installed the wheel there
    build/torch/bin/python lab/study/torch_study.py --study muon   # or lion, by its formula: torch has none
    python lab/study/torch_study.py --study cuda           # a larger one, on a GPU; torch's arms are FSDP2 in BF16

Runs go to OUT, one file of JSON lines each, and those that are there are not repeated. The table goes into
lab/learning.md, between its marks, and the curves into lab/pictures/.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "lab/learning.md"
TEXT = ROOT / "python/examples/data/persuasion.txt.gz"

REFERENCE = "torch"
# Torch from values that differ by about their rounding: how far rounding alone takes two trainings apart.
NUDGED = "torch, nudged"
NUDGE = 1e-7  # of each value, in the standard deviation


@dataclass(frozen=True)
class Arm:
    format: str = "FP32"
    compute: str = "dense"


ARMS = {
    "FP32": Arm(),
    "FP8_BLOCK_128X128": Arm("FP8_BLOCK_128X128"),
    "FP8_BLOCK_128X128, products in FP8": Arm("FP8_BLOCK_128X128", compute="fp8"),
}


@dataclass(frozen=True)
class Study:
    name: str
    device: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    batch: int
    length: int
    layers: int
    width: int
    heads: int
    rate: float
    plot: str  # in lab/pictures/
    optimizer: str = "AdamW"
    others_rate: float = 3e-3  # AdamW's rate for what Muon does not step

    @property
    def marks(self) -> tuple[str, str]:
        """Between which the table stands in the page."""
        return f"<!-- {self.name}: begin -->\n", f"<!-- {self.name}: end -->"


STUDIES = {
    "cpu": Study("losses", "cpu", (REFERENCE, NUDGED, "FP32", "FP8_BLOCK_128X128"), (1, 2, 3, 4, 5), batch=16,
                 length=64, layers=2, width=128, heads=4, rate=3e-3, plot="training-torch.svg"),
    "lion": Study("losses-lion", "cpu", (REFERENCE, NUDGED, "FP32"), (1, 2, 3), batch=16, length=64, layers=2,
                  width=128, heads=4, rate=3e-4, plot="training-torch-lion.svg", optimizer="Lion"),
    "muon": Study("losses-muon", "cpu", (REFERENCE, NUDGED, "FP32"), (1, 2, 3), batch=16, length=64, layers=2,
                  width=128, heads=4, rate=3e-3, plot="training-torch-muon.svg", optimizer="Muon"),
    "cuda": Study("losses-cuda", "cuda", (REFERENCE, NUDGED, *list(ARMS)[1:]), (1, 2, 3, 4), batch=32, length=256,
                  layers=6, width=512, heads=8, rate=1e-3, plot="training-torch-cuda.svg"),
}

STEPS = 1000
LAST_RATE, DECAY, MAX_NORM = 0.05, 0.1, 1.0
HELD_OUT = 16_384  # characters
REPORT_EVERY = 50


# --- Runs


def read_text() -> tuple[int, Any, Any]:
    """The number of characters, and the text as numbers: of training, and of validation."""
    import torch
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        text = file.read()
    characters = sorted(set(text))
    number_of = {character: number for number, character in enumerate(characters)}
    tokens = torch.tensor([number_of[character] for character in text])
    return len(characters), tokens[:-HELD_OUT - 1], tokens[-HELD_OUT - 1:]


def batches(study: Study, tokens: Any, seed: int) -> Iterator[tuple[Any, Any]]:
    import torch
    generator = torch.Generator().manual_seed(seed)
    while True:
        begins = torch.randint(0, len(tokens) - study.length - 1, (study.batch,), generator=generator)
        pieces = torch.stack([tokens[begin:begin + study.length + 1] for begin in begins]).to(study.device)
        yield pieces[:, :-1], pieces[:, 1:]


def validation_loss(study: Study, model: Any, tokens: Any) -> float:
    import torch
    tokens = tokens.to(study.device)
    inputs, targets = tokens[:-1].view(-1, study.length), tokens[1:].view(-1, study.length)
    with torch.no_grad():
        losses = [model(*part).item() for part in zip(inputs.chunk(4), targets.chunk(4))]
    return statistics.mean(losses)


def make_model(study: Study, arm: str, seed: int, characters: int) -> Any:
    import torch
    from train_gpt import GPT
    torch.manual_seed(seed)
    model = GPT(characters, study.length, study.layers, study.width, study.heads)
    if arm == NUDGED:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + NUDGE * torch.randn_like(parameter))
    return model


def fully_shard(model: Any) -> None:
    """FSDP2 on one GPU: computes in BF16, with masters and reductions in FP32."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def shard(study: Study, arm: str, model: Any, name: str) -> Any:
    """Into a daemon that lives as long as this process."""
    import torch
    import paramshard.torch as pt
    # The head has as many rows as there are characters, which products in FP8 do not take.
    of_gpu = {"param_dtype": torch.bfloat16, "compute": ARMS[arm].compute,
              "format": [("*norm*", "FP32"), ("head.weight", "BF16"), ("*", ARMS[arm].format)]}
    of_cpu = {"format": [("*norm*", "FP32"), ("*", ARMS[arm].format)]}
    return pt.shard(model, name=name, units=[*model.layers, model], daemon="job",
                    **(of_gpu if study.device == "cuda" else of_cpu))


def lion_of_torch(groups: Any, **options: Any) -> Any:
    """The paper's Algorithm 2 (arXiv:2302.06675), since torch has no Lion."""
    import torch

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                beta1, beta2 = group["betas"]
                for parameter in group["params"]:
                    average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                    change = (beta1 * average + (1 - beta1) * parameter.grad).sign()
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * change)
                    average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)

    return Lion(groups, options)


def split_for_muon(model: Any) -> tuple[list[Any], list[Any]]:
    """The matrices of the blocks, and everything else."""
    matrices = [parameter for parameter in model.layers.parameters() if parameter.dim() == 2]
    chosen = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in model.parameters() if id(parameter) not in chosen]


def optimizers_of_torch(study: Study, model: Any) -> list[Any]:
    import torch
    import paramshard.torch as pt
    betas = (0.9, 0.95)
    if study.optimizer == "AdamW":
        return [torch.optim.AdamW(pt.decay_groups(model, DECAY), lr=study.rate, betas=betas)]
    if study.optimizer == "Lion":
        return [lion_of_torch(pt.decay_groups(model, DECAY), lr=study.rate, betas=(0.9, 0.99))]
    matrices, others = split_for_muon(model)
    return [torch.optim.Muon(matrices, lr=study.rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=study.others_rate, betas=betas, weight_decay=DECAY)]


def optimizer_of_paramshard(study: Study, model: Any) -> Any:
    import paramshard.torch as pt
    betas = (0.9, 0.95)
    if study.optimizer == "AdamW":
        return pt.AdamW(pt.decay_groups(model, DECAY), max_grad_norm=MAX_NORM, lr=study.rate, betas=betas)
    if study.optimizer == "Lion":
        return pt.Lion(pt.decay_groups(model, DECAY), max_grad_norm=MAX_NORM, lr=study.rate, betas=(0.9, 0.99))
    matrices, others = split_for_muon(model)
    return pt.Muon([{"params": matrices}, {"params": others, "use_muon": False, "lr": study.others_rate,
                                           "betas": betas, "eps": 1e-8}],
                   lr=study.rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw", max_grad_norm=MAX_NORM)


def make_optimizers(study: Study, arm: str, seed: int, model: Any) -> tuple[list[Any], Callable[[], float]]:
    """Returns the optimizers, and a function that steps them and returns the gradients' norm."""
    import torch
    if arm in (REFERENCE, NUDGED):
        if study.device == "cuda":
            model.cuda()
            fully_shard(model)
        optimizers = optimizers_of_torch(study, model)

        def step() -> float:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            for optimizer in optimizers:
                optimizer.step()
            return norm.item()
    else:
        # The optimizer keeps the result of shard() alive.
        shard(study, arm, model, f"{list(ARMS).index(arm)}-{seed}")
        optimizers = [optimizer_of_paramshard(study, model)]

        def step() -> float:
            optimizers[0].step()
            return optimizers[0].last_norm()
    return optimizers, step


def train(study: Study, arm: str, seed: int, file: pathlib.Path) -> None:
    import torch
    characters, training, held_out = read_text()
    model = make_model(study, arm, seed, characters)
    optimizers, step_optimizers = make_optimizers(study, arm, seed, model)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((1 + step) / (STEPS / 20), 1 - (1 - LAST_RATE) * step / STEPS))
        for optimizer in optimizers]
    partial = file.with_suffix(".partial")
    losses: list[float] = []
    with partial.open("w") as report:
        for step, batch in zip(range(1, STEPS + 1), batches(study, training, seed)):
            loss = model(*batch)
            loss.backward()
            norm = step_optimizers()
            for optimizer, scheduler in zip(optimizers, schedulers):
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if step % REPORT_EVERY == 0:
                report.write(json.dumps({"step": step, "loss": statistics.mean(losses[-REPORT_EVERY:]), "norm": norm,
                                         "validation_loss": validation_loss(study, model, held_out)}) + "\n")
    partial.rename(file)


def file_of(out: pathlib.Path, arm: str, seed: int) -> pathlib.Path:
    return out / f"{arm.replace(', ', '-').replace(' ', '-')}-seed{seed}.jsonl"


def train_all(study: Study, out: pathlib.Path, arms: list[str]) -> None:
    import torch
    sys.path.insert(0, str(ROOT / "python/examples"))
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for seed in study.seeds:
        for arm in arms:
            if not file_of(out, arm, seed).exists():
                train(study, arm, seed, file_of(out, arm, seed))
                print(f"{arm}, seed {seed}", flush=True)


# --- Results


def load(study: Study, out: pathlib.Path) -> dict[str, list[list[dict[str, float]]]]:
    """By arm, the curves of its seeds."""
    return {arm: [[json.loads(line) for line in file_of(out, arm, seed).read_text().splitlines()]
                  for seed in study.seeds] for arm in study.arms}


def distances(curve: list[dict[str, float]], reference: list[dict[str, float]]) -> list[float]:
    """Returns the validation loss's difference from torch's with the same seed, in percent, at every report."""
    return [100 * (mine["validation_loss"] / other["validation_loss"] - 1) for mine, other in zip(curve, reference)]


def mean_and_spread(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.lstrip('+')}}"


def table(curves: dict[str, list[list[dict[str, float]]]]) -> str:
    rows = ["| | validation loss | from torch, %, at the end, each seed | mean | farthest at any report |",
            "| --- | --- | --- | --- | --- |"]
    for arm, of_arm in curves.items():
        cells = [arm, mean_and_spread([curve[-1]["validation_loss"] for curve in of_arm], ".4f"), "", "", ""]
        if arm != REFERENCE:
            from_torch = [distances(curve, reference) for curve, reference in zip(of_arm, curves[REFERENCE])]
            ends = [each[-1] for each in from_torch]
            cells[2:] = [", ".join(f"{each:+.2g}" for each in ends), mean_and_spread(ends, "+.2g"),
                         f"{max(abs(each) for one in from_torch for each in one):.2g}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write_page(study: Study, text: str) -> None:
    begin, end = study.marks
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(head + begin + text + "\n" + end + rest.split(end)[1])


def plot(study: Study, curves: dict[str, list[list[dict[str, float]]]]) -> None:
    """Left the curves themselves, right how far they are from torch's of the same seed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "paramshard", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for index, (arm, of_arm) in enumerate(curves.items()):
        for seed, (curve, reference) in enumerate(zip(of_arm, curves[REFERENCE])):
            style = {"color": "black" if arm == REFERENCE else f"C{index - 1}", "linewidth": 0.9,
                     "linestyle": ("-", ":", "--", "-")[index], "label": arm if seed == 0 else None}
            steps = [event["step"] for event in curve]
            left.plot(steps, [event["validation_loss"] for event in curve], **style)
            if arm != REFERENCE:
                right.plot(steps, distances(curve, reference), **style)
    right.axhline(0, color="black", linewidth=0.8)
    left.set_ylabel("validation loss, nats")
    right.set_ylabel("from torch with the same seed, %")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.legend()
    figure.suptitle(f"the example's GPT, {study.optimizer}, {len(study.seeds)} seeds each")
    figure.savefig(PAGE.parent / "pictures" / study.plot, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=STUDIES, default="cpu")
    parser.add_argument("--out", type=pathlib.Path, help="folder that keeps runs")
    parser.add_argument("--only", action="append", help="train only this arm, and do not update lab/")
    parser.add_argument("--no-report", action="store_true", help="do not update lab/")
    options = parser.parse_args()
    study = STUDIES[options.study]
    unknown = set(options.only or ()) - set(study.arms)
    if unknown:
        parser.error(f"--only: want some of {study.arms}, got {sorted(unknown)}")
    out = options.out or ROOT / "build/torch-study" / study.name
    train_all(study, out, options.only or list(study.arms))
    if not options.only and not options.no_report:
        curves = load(study, out)
        write_page(study, table(curves))
        plot(study, curves)


if __name__ == "__main__":
    main()
