"""One rank of mixtures of experts of transformers that train twice: by plain torch with DDP, and by paramshard.torch.

    torchrun ... mixtures_beside_ddp.py SOCKETS STEPS

The tokens of a rank are few, so that it routes nothing to some experts. Exits with an error where norms or weights
differ.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import transformers
from torch import nn

import paramshard.torch as pt
from models import DEVICE, VOCABULARY, assert_close

EXPERTS = 8
EPSILON = 1e-3  # gradients that nearly cancel out are rounding, which a small one makes as large as any other


def experts_in_lists() -> tuple[nn.Module, list[nn.Module]]:
    """Returns a model whose experts are modules of their own, and its units."""
    model = transformers.SwitchTransformersForConditionalGeneration(transformers.SwitchTransformersConfig(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_sparse_encoder_layers=2,
        num_decoder_layers=2, num_sparse_decoder_layers=1, num_heads=4, num_experts=EXPERTS, router_jitter_noise=0.0,
        dropout_rate=0.0, initializer_factor=0.3))
    return model, [*model.encoder.block, *model.decoder.block, model]


def experts_in_stacks() -> tuple[nn.Module, list[nn.Module]]:
    """Returns a model whose experts are one parameter [experts, rows, columns], and its units."""
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=EXPERTS, num_experts_per_tok=2, max_position_embeddings=32))
    return model, [*model.model.layers, model]


def loss_of(model: nn.Module, rank: int, step: int, has_encoder: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    few = torch.randint(2, VOCABULARY, (2,), generator=generator)
    tokens = few[torch.randint(2, (2, 6), generator=generator)].to(DEVICE)
    of_decoder = {"decoder_input_ids": tokens} if has_encoder else {}
    return model(input_ids=tokens, labels=tokens, **of_decoder).loss


def chosen_experts(model: nn.Module) -> set[tuple[str, int]]:
    """Returns a set of the experts that forwards from now on choose, by layer."""
    chosen: set[tuple[str, int]] = set()
    for name, module in model.named_modules():
        if name.endswith("experts"):
            one_hot = isinstance(module, nn.ModuleDict)
            module.register_forward_pre_hook(lambda _, args, name=name, one_hot=one_hot: chosen.update(
                (name, index) for index in (args[1].nonzero()[:, -1] if one_hot else args[1]).unique().tolist()))
    assert not chosen
    return chosen


def train(make, name: str, sockets: str, steps: int) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plain, _ = make()
    for each, router in plain.named_modules():
        if each.endswith(("router.classifier", "mlp.gate")):
            nn.init.normal_(router.weight, std=0.5)  # choices that no rounding turns
    model, units = make()
    model.load_state_dict(plain.state_dict())
    plain.to(DEVICE)
    has_encoder = plain.config.is_encoder_decoder
    chosen = chosen_experts(plain)
    layers = sum(each.endswith("experts") for each, _ in plain.named_modules())
    ddp = nn.parallel.DistributedDataParallel(plain, find_unused_parameters=True)
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-3, eps=EPSILON)
    without = 0
    with pt.shard(model, name=name, units=units, socket_dir=sockets, local_rank=rank) as sharded:
        optimizer = pt.AdamW(model.parameters(), lr=1e-3, eps=EPSILON, max_grad_norm=0.5)
        for step in range(steps):
            chosen.clear()
            loss_of(ddp, rank, step, has_encoder).backward()
            without += layers * EXPERTS - len(chosen)
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            adamw.step()
            adamw.zero_grad()
            loss_of(model, rank, step, has_encoder).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert_close(optimizer.last_norm(), norm.item(), rtol=1e-5, atol=1e-6)
        assert without > steps, f"rank {rank} lacked {without} experts in {steps} steps"
        for index, (each, parameter) in enumerate(plain.named_parameters()):
            if index % ranks == rank:
                # Torch's own rounding of weights near 1, as in Pair.check().
                assert_close(sharded.read(each), parameter.detach(), rtol=3e-6, atol=1e-6,
                             msg=lambda text, each=each: f"{name}: {each}: {text}")
        dist.barrier()


def main(sockets: str, steps: int) -> None:
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    train(experts_in_lists, "lists", sockets, steps)
    train(experts_in_stacks, "stacks", sockets, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
