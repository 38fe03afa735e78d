"""Trains a small GPT on the characters of a text, with its weights and optimizer in a paramshard daemon.

    python train_gpt.py --text FILE                              # starts a daemon for itself
    python -m paramshard.run --nproc-per-node 2 --max-restarts 3 train_gpt.py --text FILE

When a worker is killed another one takes its place, and all go on from the step that the daemon has. Progress goes
to standard output; at the end the losses are drawn into --plot if matplotlib is installed.
"""

from __future__ import annotations

import argparse
import gzip
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import nn

import paramshard
import paramshard.torch as pt


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, layers: int, width: int, heads: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Text:
    """Random pieces of a text, as numbers of its characters. Every rank draws its own, from seed(rank) on."""

    def __init__(self, path: pathlib.Path, length: int):
        opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
        with opened as file:
            text = file.read()
        self.characters = sorted(set(text))
        number_of = {character: number for number, character in enumerate(self.characters)}
        self._tokens = torch.tensor([number_of[character] for character in text])
        self._length = length
        self._generator = torch.Generator()

    def seed(self, rank: int) -> None:
        self._generator.manual_seed(rank)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        begins = torch.randint(0, len(self._tokens) - self._length - 1, (size,), generator=self._generator)
        pieces = torch.stack([self._tokens[begin:begin + self._length + 1] for begin in begins])
        return pieces[:, :-1], pieces[:, 1:]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._generator.set_state(state["generator"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a text file, or one packed by gzip")
    parser.add_argument("--name", default="train-gpt", help="name of the model in the daemon")
    parser.add_argument("--existing", default="error", help='"resume" or "fresh", if the daemon has the model')
    parser.add_argument("--daemon", default="job", help='"job", which starts one, or "node": a running one')
    parser.add_argument("--format", default="FP8_BLOCK_128X128", help="format of matrices; norms stay FP32")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--report-every", type=int, default=20)
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("losses.png"), help="PNG of the losses")
    return parser.parse_args()


def draw(path: pathlib.Path, losses: list[tuple[int, float]]) -> None:
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.plot(*zip(*losses))
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(path)
    print(f"losses are drawn in {path}")


@pt.resume_in_process
def main() -> None:
    options = parse()
    text = Text(options.text, options.length)
    with pt.meta_init():
        model = GPT(len(text.characters), options.length, options.layers, options.width, options.heads)
    sharded = pt.shard(model, name=options.name, units=[*model.layers, model], existing=options.existing,
                       format=[("*norm*", "FP32"), ("*", options.format)], accumulate=1, daemon=options.daemon)
    text.seed(sharded.rank)
    optimizer = pt.AdamW(pt.decay_groups(model, 0.1), lr=options.rate, betas=(0.9, 0.95), max_grad_norm=1.0)
    warmup = max(1, options.steps // 20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (1 + step) / warmup))
    sharded.track(scheduler=scheduler, text=text)

    losses = []
    begun, begun_step = time.monotonic(), sharded.start_step()
    if sharded.rank == 0 and begun_step > 0:
        print(f"continuing from step {begun_step}", flush=True)
    for step in range(begun_step, options.steps):
        loss = model(*(tokens.to(sharded.device) for tokens in text.batch(options.batch)))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append((step + 1, loss.item()))
        if sharded.rank == 0 and (step + 1) % options.report_every == 0:
            seconds = time.monotonic() - begun
            tokens = (step + 1 - begun_step) * options.batch * options.length * sharded.active_world_size
            print(f"step {step + 1}: loss {loss.item():.3f}, gradient norm {optimizer.last_norm():.3f}, "
                  f"{tokens / seconds:.0f} tokens/s, {sharded.gathered_bytes() / 1e6:.0f} MB gathered", flush=True)
    if sharded.rank == 0:
        draw(options.plot, losses)
    sharded.close()


if __name__ == "__main__":
    try:
        main()
    except paramshard.AlreadyExistsError as error:
        raise SystemExit(str(error)) from None
