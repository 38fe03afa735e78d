"""How far gradients of FP8 planes and products are from FP32's: cosines, parameter by parameter.

    python lab/study/torch_gradients.py                    # on a GPU, where paramshard and torch are installed

The GPT of torch_study.py's study of GPUs is trained in FP32 by torch alone for some steps. From its values every arm
computes the gradients of one batch. Those of paramshard come out of the daemon: with beta1 = 0 the first moment is the
gradient of the last step. What is printed is a row for each kind of parameter: the cosine to FP32's gradient, median
and least of the layers.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import paramshard.torch as pt
from torch_study import ARMS, MAX_NORM, ROOT, STUDIES, Study, batches, make_model, read_text, shard

sys.path.insert(0, str(ROOT / "python/examples"))

Gradients = dict[str, torch.Tensor]  # by parameter, on the host, in FP32


def trained(study: Study, steps: int, seed: int) -> tuple[torch.nn.Module, Any]:
    """The model on the GPU, and the batches that follow."""
    characters, training, _ = read_text()
    model = make_model(study, "torch", seed, characters).to(study.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=study.rate, betas=(0.9, 0.95))
    following = batches(study, training, seed)
    for _ in range(steps):
        model(*next(following)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return model, following


def gradients_of_torch(model: torch.nn.Module, batch: Any, dtype: torch.dtype) -> Gradients:
    model = copy.deepcopy(model).to(dtype)
    model.zero_grad()
    model(*batch).backward()
    return {name: parameter.grad.float().cpu() for name, parameter in model.named_parameters()}


def gradients_of_paramshard(study: Study, arm: str, model: torch.nn.Module, batch: Any) -> Gradients:
    model = copy.deepcopy(model).cpu()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    name = f"gradients-{list(ARMS).index(arm)}"
    sharded = shard(study, arm, model, name)
    optimizer = pt.AdamW(model.parameters(), lr=0.0, betas=(0.0, 0.95))
    model(*batch).backward()
    optimizer.step()
    optimizer.last_norm()  # the step is done
    gradients = {parameter: torch.empty(shape).flatten(1) if len(shape) > 1 else torch.empty(1, *shape)
                 for parameter, shape in shapes.items()}
    for extent in sharded._client.export_tensors(name, kinds=["exp_avg"]).extents:
        rows = slice(extent.first_row, extent.first_row + extent.rows)
        gradients[extent.parameter][rows] = torch.from_numpy(extent.values)
    return {parameter: gradient.view(shapes[parameter]) for parameter, gradient in gradients.items()}


def cosines(gradients: Gradients, reference: Gradients) -> dict[str, list[float]]:
    """Returns the cosines of all layers, by the parameter's name within a layer."""
    kinds: dict[str, list[float]] = {}
    for name, gradient in gradients.items():
        kind = re.sub(r"^layers\.\d+\.", "", name)
        both = gradient.flatten().double(), reference[name].flatten().double()
        kinds.setdefault(kind, []).append(torch.nn.functional.cosine_similarity(*both, dim=0).item())
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=STUDIES, default="cuda")
    parser.add_argument("--steps", type=int, default=300, help="training steps before the gradients")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures, as JSON")
    options = parser.parse_args()
    study = STUDIES[options.study]
    model, following = trained(study, options.steps, options.seed)
    batch = next(following)
    reference = gradients_of_torch(model, batch, torch.float32)
    arms: dict[str, Callable[[], Gradients]] = {"torch, BF16": lambda: gradients_of_torch(model, batch, torch.bfloat16)}
    for arm in study.arms:
        if arm in ARMS:
            arms[arm] = lambda arm=arm: gradients_of_paramshard(study, arm, model, batch)
    results = {arm: cosines(gradients(), reference) for arm, gradients in arms.items()}
    print("| | " + " | ".join(results) + " |\n| --- |" + " --- |" * len(results))
    for kind in next(iter(results.values())):
        cells = [f"{statistics.median(kinds[kind]):.5f}, {min(kinds[kind]):.5f}" for kinds in results.values()]
        print(f"| `{kind}` | " + " | ".join(cells) + " |")
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
