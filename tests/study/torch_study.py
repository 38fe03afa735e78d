"""Trains the example's GPT by torch's AdamW and by paramshard.torch, with the same values and batches.

    build/torch/bin/python tests/study/torch_study.py        # when `./dev test-torch` has installed the wheel there

Runs go to OUT, one file of JSON lines each, and those that are there are not repeated. The table goes into
docs/pytorch.md, between its marks, and the curves into docs/training-torch.svg.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/pytorch.md"
PLOT = ROOT / "docs/training-torch.svg"
TEXT = ROOT / "client/examples/data/persuasion.txt.gz"

SEEDS = (1, 2, 3, 4, 5)
REFERENCE = "torch"
# Torch from values that differ by about their rounding: how far rounding alone takes two trainings apart.
NUDGED = "torch, nudged"
ARMS = (REFERENCE, NUDGED, "FP32", "FP8_BLOCK_128X128")
NUDGE = 1e-7  # of each value, in the standard deviation

STEPS = 1000
BATCH, LENGTH = 16, 64
LAYERS, WIDTH, HEADS = 2, 128, 4
RATE, LAST_RATE, DECAY, MAX_NORM = 3e-3, 0.05, 0.1, 1.0
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


def batches(tokens: Any, seed: int) -> Iterator[tuple[Any, Any]]:
    import torch
    generator = torch.Generator().manual_seed(seed)
    while True:
        begins = torch.randint(0, len(tokens) - LENGTH - 1, (BATCH,), generator=generator)
        pieces = torch.stack([tokens[begin:begin + LENGTH + 1] for begin in begins])
        yield pieces[:, :-1], pieces[:, 1:]


def validation_loss(model: Any, tokens: Any) -> float:
    import torch
    inputs, targets = tokens[:-1].view(-1, LENGTH), tokens[1:].view(-1, LENGTH)
    with torch.no_grad():
        losses = [model(*part).item() for part in zip(inputs.chunk(4), targets.chunk(4))]
    return statistics.mean(losses)


def make_model(arm: str, seed: int, characters: int) -> Any:
    import torch
    from train_gpt import GPT
    torch.manual_seed(seed)
    model = GPT(characters, LENGTH, LAYERS, WIDTH, HEADS)
    if arm == NUDGED:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + NUDGE * torch.randn_like(parameter))
    return model


def make_optimizer(arm: str, seed: int, model: Any) -> tuple[Any, Callable[[], float]]:
    """AdamW, and what steps it and returns the gradients' norm."""
    import torch
    import paramshard.torch as pt
    options = {"lr": RATE, "betas": (0.9, 0.95)}
    if arm in (REFERENCE, NUDGED):
        optimizer = torch.optim.AdamW(pt.decay_groups(model, DECAY), **options)

        def step() -> float:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            return norm.item()
    else:
        # The optimizer keeps what shard() has returned.
        pt.shard(model, name=f"{arm}-{seed}", units=[*model.layers, model], daemon="job",
                 format=[("*norm*", "FP32"), ("*", arm)])
        optimizer = pt.AdamW(pt.decay_groups(model, DECAY), max_grad_norm=MAX_NORM, **options)

        def step() -> float:
            optimizer.step()
            return optimizer.last_norm()
    return optimizer, step


def train(arm: str, seed: int, file: pathlib.Path) -> None:
    import torch
    characters, training, held_out = read_text()
    model = make_model(arm, seed, characters)
    optimizer, step_optimizer = make_optimizer(arm, seed, model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((1 + step) / (STEPS / 20), 1 - (1 - LAST_RATE) * step / STEPS))
    partial = file.with_suffix(".partial")
    losses: list[float] = []
    with partial.open("w") as report:
        for step, batch in zip(range(1, STEPS + 1), batches(training, seed)):
            loss = model(*batch)
            loss.backward()
            norm = step_optimizer()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step % REPORT_EVERY == 0:
                report.write(json.dumps({"step": step, "loss": statistics.mean(losses[-REPORT_EVERY:]), "norm": norm,
                                         "validation_loss": validation_loss(model, held_out)}) + "\n")
    partial.rename(file)


def file_of(out: pathlib.Path, arm: str, seed: int) -> pathlib.Path:
    return out / f"{arm.replace(', ', '-')}-seed{seed}.jsonl"


def train_all(out: pathlib.Path, arms: list[str]) -> None:
    import torch
    sys.path.insert(0, str(ROOT / "client/python/examples"))
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for arm in arms:
            if not file_of(out, arm, seed).exists():
                train(arm, seed, file_of(out, arm, seed))
                print(f"{arm}, seed {seed}", flush=True)


# --- Results


def load(out: pathlib.Path) -> dict[str, list[list[dict[str, float]]]]:
    """By arm, the curves of its seeds."""
    return {arm: [[json.loads(line) for line in file_of(out, arm, seed).read_text().splitlines()] for seed in SEEDS]
            for arm in ARMS}


def distances(curve: list[dict[str, float]], reference: list[dict[str, float]]) -> list[float]:
    """Of the validation loss from torch's with the same seed, in percent, at every report."""
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


def write_page(text: str) -> None:
    begin, end = "<!-- losses: begin -->\n", "<!-- losses: end -->"
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(head + begin + text + "\n" + end + rest.split(end)[1])


def plot(curves: dict[str, list[list[dict[str, float]]]]) -> None:
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
    figure.suptitle(f"the example's GPT, {len(SEEDS)} seeds each")
    figure.savefig(PLOT, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/torch-study", help="where runs are kept")
    parser.add_argument("--only", action="append", choices=ARMS, help="train this alone, and leave docs/ as it is")
    parser.add_argument("--no-report", action="store_true", help="leave docs/ as it is")
    options = parser.parse_args()
    train_all(options.out, options.only or list(ARMS))
    if not options.only and not options.no_report:
        curves = load(options.out)
        write_page(table(curves))
        plot(curves)


if __name__ == "__main__":
    main()
