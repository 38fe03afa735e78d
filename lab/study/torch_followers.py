"""How far rollouts are from their trainer: those that follow its bits, and those that quantize its BF16 weights again.

    build/torch/bin/python lab/study/torch_followers.py    # when `./dev test-torch` has installed the wheel there

A small Llama learns a novel's characters, with matrices of its blocks in FP8_BLOCK_128X128, and computes in BF16. Each
of its first 50 versions is compared on the same prompts: KL(trainer || rollouts), in nats a token. The trainer computes
whole sequences. Rollouts compute token by token with cached keys, as `generate` does, so that rounding differs, and
whole sequences besides. The table goes into lab/learning.md, between its marks.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

import torch
import transformers

import paramshard
import paramshard.torch as pt
from torch_study import PAGE, ROOT, STUDIES, batches, read_text

sys.path.insert(0, str(ROOT / "python/examples"))
from rl_grpo import daemon  # noqa: E402

VERSIONS = 50
PROMPTS, LENGTH = 16, 32
BLOCK, LARGEST = 128, 448.0  # of a scale; of E4M3
QUANTIZED = "_proj.weight"
MARKS = "<!-- followers: begin -->\n", "<!-- followers: end -->"

Weights = dict[str, torch.Tensor]


def make_model(characters: int, seed: int) -> transformers.LlamaForCausalLM:
    """Returns values that BF16 has, as a checkpoint's."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=characters, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=False))
    return model.bfloat16().float()


def quantized(weight: torch.Tensor, power_of_two: bool) -> torch.Tensor:
    """Returns BF16 values after a way through E4M3, with a scale for each block of their own."""
    rows, columns = weight.shape
    blocks = weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = LARGEST / blocks.abs().amax((1, 3), keepdim=True)
    if power_of_two:
        scales = scales.log2().floor().exp2()
    codes = (blocks * scales).to(torch.float8_e4m3fn).float()
    return (codes / scales).view(rows, columns).bfloat16()


class Rollouts:
    """A model in BF16 that is brought to each version."""

    def __init__(self, characters: int):
        self.model = make_model(characters, seed=-1).bfloat16()

    def update(self) -> None:
        raise NotImplementedError

    def log_probabilities(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token by token, as the trainer's below."""
        cache, logits = None, []
        for position in range(tokens.shape[1]):
            output = self.model(tokens[:, position:position + 1], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
        return torch.cat(logits, 1).double().log_softmax(-1)


class Following(Rollouts):
    def __init__(self, characters: int, reader: paramshard.Reader):
        super().__init__(characters)
        self._follower = pt.follow(self.model, reader)

    def update(self) -> None:
        self._follower.update()


class Quantizing(Rollouts):
    """Takes the trainer's full-precision weights in BF16, as they are sent to rollouts, and quantizes them."""

    def __init__(self, characters: int, trained: torch.nn.Module, power_of_two: bool):
        super().__init__(characters)
        self._trained, self._power_of_two = trained, power_of_two

    def update(self) -> None:
        sent = {name: value.bfloat16() for name, value in self._trained.state_dict().items()}
        self.model.load_state_dict({
            name: quantized(value, self._power_of_two) if name.endswith(QUANTIZED) else value
            for name, value in sent.items()})


def other_values(rollouts: Rollouts, wanted: Weights) -> float:
    """Returns the share of quantized weights that are not the trainer's."""
    own = rollouts.model.state_dict()
    names = [name for name in wanted if name.endswith(QUANTIZED)]
    other = sum((own[name] != wanted[name]).sum().item() for name in names)
    return other / sum(wanted[name].numel() for name in names)


@torch.no_grad()
def measure(model: Any, sharded: pt.ShardedModel, all_rollouts: dict[str, Rollouts], prompts: torch.Tensor
            ) -> dict[str, dict[str, float]]:
    def divergence(log_probabilities: torch.Tensor) -> float:
        return (expected.exp() * (expected - log_probabilities)).sum(-1).mean().item()

    expected = model(prompts).logits.double().log_softmax(-1)
    with sharded.unsharded() as whole:
        wanted = {name: parameter.detach().clone() for name, parameter in whole.named_parameters()}
    figures = {}
    for name, rollouts in all_rollouts.items():
        rollouts.update()
        figures[name] = {"kl": divergence(rollouts.log_probabilities(prompts)),
                         "whole": divergence(rollouts.model(prompts).logits.double().log_softmax(-1)),
                         "other": other_values(rollouts, wanted)}
    return figures


def run(socket_dir: str, seed: int, rate: float) -> list[dict[str, dict[str, float]]]:
    """Returns the figures of each version, by rollouts."""
    characters, training, held_out = read_text()
    name = f"followers-{seed}"
    model = make_model(characters, seed)
    sharded = pt.shard(model, name=name, units=[*model.model.layers, model], param_dtype=torch.bfloat16,
                       format=[(f"*{QUANTIZED}", "FP8_BLOCK_128X128"), ("*", "BF16")], socket_dir=socket_dir)
    optimizer = pt.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), max_grad_norm=1.0)
    all_rollouts = {
        "`pt.follow`": Following(characters, paramshard.Reader(name, socket_dir=socket_dir)),
        "BF16 weights, quantized with scales of powers of two, as the trainer's": Quantizing(characters, model, True),
        "BF16 weights, quantized with FP32 scales": Quantizing(characters, model, False),
    }
    prompts = held_out[:PROMPTS * LENGTH].view(PROMPTS, LENGTH)
    following = batches(STUDIES["cpu"], training, seed)
    figures = []
    for _ in range(VERSIONS):
        figures.append(measure(model, sharded, all_rollouts, prompts))
        inputs, targets = next(following)
        logits = model(inputs).logits.float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    sharded.close()
    return figures


def table(runs: list[list[dict[str, dict[str, float]]]]) -> str:
    rows = ["| rollouts | KL of step 1 | of step 2 | step 2 / step 1 | steps 2 to 50, mean | largest | "
            "largest, of whole sequences | weights that differ in steps 1, 2, 50, % |", "| --- " * 8 + "|"]

    def cell(values: list[float], form: str) -> str:
        return ", ".join(format(value, form) for value in values)

    for name in runs[0][0]:
        of_runs = [[version[name]["kl"] for version in versions] for versions in runs]
        other = [statistics.mean(100 * versions[step][name]["other"] for versions in runs) for step in (0, 1, -1)]
        rows.append("| " + " | ".join([
            name, cell([each[0] for each in of_runs], ".2e"), cell([each[1] for each in of_runs], ".2e"),
            cell([each[1] / each[0] for each in of_runs], ".2f"),
            cell([statistics.mean(each[1:]) for each in of_runs], ".2e"),
            cell([max(each) for each in of_runs], ".2e"),
            cell([max(version[name]["whole"] for version in versions) for versions in runs], ".2g"),
            cell(other, ".2g")]) + " |")
    return "\n".join(rows)


def write_page(text: str) -> None:
    head, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(head + MARKS[0] + text + "\n" + MARKS[1] + rest.split(MARKS[1])[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures, as JSON")
    parser.add_argument("--no-report", action="store_true", help="print the table, and do not update lab/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with daemon(None) as socket_dir:
        runs = [run(socket_dir, seed, options.rate) for seed in options.seeds]
    if options.json:
        options.json.write_text(json.dumps(runs))
    print(table(runs))
    if not options.no_report:
        write_page(table(runs))


if __name__ == "__main__":
    main()
