"""Forwards and backwards of every shape give the gradients, and so the weights, of plain torch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, LENGTH, VOCABULARY, Pair, Stack, assert_close, batch_of, loss_of


def test_fifty_clipped_steps_are_those_of_torch(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT())
    pair.train(50)
    pair.check()


def test_tied_embeddings(daemon):
    torch.manual_seed(1)
    pair = Pair(daemon, GPT(tied=True))
    pair.train(10)
    pair.check()
    assert pair.module.head.weight is pair.module.embed.weight


class Normed(nn.Module):
    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


@pytest.mark.parametrize("units", [lambda model: list(model.blocks),
                                   lambda model: [model.blocks[0].norm, *model.blocks],
                                   lambda model: [model.blocks[1], model]], ids=["blocks", "its own", "the second"])
def test_a_module_in_two_units_is_gathered_for_both(daemon, units):
    torch.manual_seed(1)
    norm = nn.LayerNorm(32)
    pair = Pair(daemon, Stack(Normed(norm), Normed(norm)), units=units)
    for step in range(3):
        for model in pair.both():
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            model(x).square().mean().backward()
        pair.step()
    pair.check()


def test_checkpoints_are_recomputed_with_gathered_weights(daemon):
    torch.manual_seed(2)
    pair = Pair(daemon, GPT(checkpoints=True))
    pair.train(5)
    pair.check()


def test_reentrant_checkpoints_behind_an_input_train(daemon):
    """No unit outside of them begins the backward before they do."""
    class Reentrant(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)
            return x

    torch.manual_seed(2)
    pair = Pair(daemon, Reentrant(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))))
    for step in range(3):
        for model in pair.both():
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(step)).to(DEVICE).requires_grad_()
            model(x).square().mean().backward()
        pair.step()
    pair.check()


def test_a_checkpoint_around_the_model_keeps_earlier_micro_batches(daemon):
    torch.manual_seed(2)
    pair = Pair(daemon, GPT())
    for step in range(3):
        for model in pair.both():
            for micro in range(3):
                tokens = batch_of(3 * step + micro)
                logits = checkpoint(model, tokens, use_reentrant=False)
                F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        pair.step()
    pair.check()


def test_compiled_blocks(daemon):
    torch.manual_seed(3)
    pair = Pair(daemon, GPT())
    for layer in pair.module.layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    pair.train(5)
    pair.check()


def test_a_unit_of_the_whole_model_takes_the_rest(daemon):
    torch.manual_seed(4)
    pair = Pair(daemon, GPT(), units=lambda model: [*model.layers, model])
    pair.train(5)
    pair.check()


class Wrapped(nn.Module):
    """A model of the shape of transformers' models with a head."""

    def __init__(self):
        super().__init__()
        self.model = GPT()
        self.head = nn.Linear(VOCABULARY, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(tokens))


def test_the_model_and_its_module_of_that_name_are_two_units(daemon):
    torch.manual_seed(4)
    pair = Pair(daemon, Wrapped(), units=lambda model: [*model.model.layers, model.model, model])
    pair.train(2)
    pair.check()


def test_a_unit_of_many_modules_has_a_short_name(daemon):
    torch.manual_seed(4)
    layers = [nn.Linear(32, 32) for _ in range(300)]
    pair = Pair(daemon, Stack(*layers), units=lambda model: [list(model.blocks[:299]), model.blocks[299]])
    assert [unit.name for unit in pair.sharded.model.spec.units] == ["blocks.0..blocks.298", "blocks.299"]


def test_names_of_units_are_those_that_daemons_have(daemon):
    pair = Pair(daemon, GPT(), units=lambda model: [[model.embed, model.norm], *model.layers, model])
    assert [unit.name for unit in pair.sharded.model.spec.units] == [
        "embed+norm", "layers.0", "layers.1", "layers.2", "model"]


def test_weights_kept_until_the_backward(daemon):
    torch.manual_seed(5)
    pair = Pair(daemon, GPT(), reshard_after_forward=False)
    pair.train(5)
    pair.check()


def test_two_forwards_one_backward(daemon):
    torch.manual_seed(6)
    pair = Pair(daemon, GPT(), gather_slots=3)
    for step in range(5):
        for model in pair.both():
            (loss_of(model, batch_of(step)) + loss_of(model, batch_of(100 + step))).backward()
        pair.step()
    pair.check()


def test_two_backwards_one_step(daemon):
    torch.manual_seed(7)
    pair = Pair(daemon, GPT())
    for step in range(5):
        for model in pair.both():
            losses = [loss_of(model, batch_of(step)), loss_of(model, batch_of(100 + step))]
            for loss in reversed(losses):
                loss.backward()
        pair.step()
    pair.check()


def test_retain_graph_twice(daemon):
    torch.manual_seed(8)
    pair = Pair(daemon, GPT())
    for step in range(3):
        for model in pair.both():
            loss = loss_of(model, batch_of(step))
            loss.backward(retain_graph=True)
            loss.backward()
        pair.step()
    pair.check()


def test_accumulation_adds_micro_batches_up(daemon):
    torch.manual_seed(9)
    pair = Pair(daemon, GPT())
    for step in range(3):
        for model in pair.both():
            for micro in range(8):
                (loss_of(model, batch_of(8 * step + micro)) / 8).backward()
        pair.step()
    pair.check()


def test_accumulate_8_bf16_matches_fp32(start):
    """Eight micro-batches of BF16 gradients: the daemon adds them up in float32, where BF16 sums would lose bits."""
    torch.manual_seed(10)
    model = GPT().to(DEVICE)
    daemon = start()
    sent_bf16 = Pair(daemon, model, name="bf16", grad_dtype=torch.bfloat16)
    for micro in range(8):
        loss_of(sent_bf16.module, batch_of(micro)).backward()
    sent_bf16.optimizer.step()
    expected = 0.0
    for micro in range(8):
        loss_of(model, batch_of(micro)).backward()
        for parameter in model.parameters():
            total = getattr(parameter, "total", torch.zeros_like(parameter))
            parameter.total = total + parameter.grad.to(torch.bfloat16).float()
            parameter.grad = None
    expected = torch.sqrt(sum(parameter.total.double().square().sum() for parameter in model.parameters()))
    assert_close(sent_bf16.optimizer.last_norm(), expected.item(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_accumulate_changes_no_bit(start, grad_dtype, micro_batches):
    """Accumulators of a step with one backward have another type, and the same values."""
    daemon = start()
    torch.manual_seed(11)
    model = GPT()
    pairs = [Pair(daemon, copy.deepcopy(model), name=f"accumulate-{most}", grad_dtype=grad_dtype,
                  accumulate=most) for most in (None, micro_batches)]
    for step in range(5):
        norms = []
        for pair in pairs:
            for micro in range(micro_batches):
                (loss_of(pair.module, batch_of(8 * step + micro)) / micro_batches).backward()
            pair.optimizer.step()
            pair.optimizer.zero_grad()
            norms.append(pair.optimizer.last_norm())
        assert norms[0] == norms[1]
    for name in dict(model.named_parameters()):
        assert torch.equal(pairs[0].sharded.read(name), pairs[1].sharded.read(name)), name
    kept = [pair.sharded.memory_report().daemon["gradients"] for pair in pairs]
    is_kept_as_sent = micro_batches == 1 and grad_dtype == torch.bfloat16
    assert kept[1] < 0.6 * kept[0] if is_kept_as_sent else kept[1] == kept[0]


class _Parts(nn.Module):
    """A model whose second part is left out at times."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if both else x


def test_a_backward_too_many_that_begins_in_an_unused_unit_is_refused(daemon):
    model = _Parts()
    with pt.shard(model, name="m", units=[model.first, model.second], socket_dir=str(daemon.socket_dir),
                  accumulate=1):
        optimizer = pt.AdamW(model.parameters())
        x = torch.randn(2, 8, device=DEVICE)
        model(x, False).sum().backward()
        with pytest.raises(paramshard.FailedPreconditionError, match="raise accumulate=.* are kept"):
            model(x, True).sum().backward()
        x.requires_grad_()
        torch.autograd.grad(model(x, True).sum(), x)  # pushes nothing
        optimizer.step()
        assert optimizer.last_norm() > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_backward_too_many_is_refused_and_nothing_is_lost(daemon, accumulate):
    torch.manual_seed(12)
    pair = Pair(daemon, GPT(), accumulate=accumulate)
    for step in range(3):
        for model in pair.both():
            for micro in range(accumulate):
                loss_of(model, batch_of(8 * step + micro)).backward()
        with pytest.raises(paramshard.FailedPreconditionError, match="raise accumulate=.* are kept") as refused:
            loss_of(pair.module, batch_of(77)).backward()
        assert f"accumulate={accumulate}" in str(refused.value)
        pair.step()
    loss_of(pair.module, batch_of(78)).backward()
    pair.optimizer.zero_grad()  # so that the next step has all its backwards
    for model in pair.both():
        for micro in range(accumulate):
            loss_of(model, batch_of(micro)).backward()
    pair.step()
    pair.check()


class Lora(nn.Module):
    """A frozen base, used before its adapter."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.a = nn.Linear(width, 4, bias=False)
        self.b = nn.Linear(4, width, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(x) + self.b(self.a(x)))


def _inputs(step: int) -> torch.Tensor:
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def _train_stack(pair: Pair, steps: int = 10) -> None:
    pair.train(steps, loss=lambda model, tokens: model(_inputs(int(tokens[0, 0]))).square().mean())


def test_lora_base_before_adapter(daemon):
    torch.manual_seed(11)
    pair = Pair(daemon, Stack(Lora(), Lora(), Lora()))
    _train_stack(pair)
    pair.check()


def test_all_frozen_unit(daemon):
    torch.manual_seed(12)
    frozen = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).requires_grad_(False)
    pair = Pair(daemon, Stack(nn.Linear(32, 32), frozen, nn.Linear(32, 32)))
    _train_stack(pair)
    pair.check()


def test_frozen_first_norm(daemon):
    torch.manual_seed(13)
    blocks = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(3)]
    for block in blocks:
        block[0].requires_grad_(False)
    pair = Pair(daemon, Stack(*blocks))
    _train_stack(pair)
    pair.check()


def test_a_parameter_that_is_not_used_does_not_move(daemon):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    torch.manual_seed(14)
    pair = Pair(daemon, Stack(Half(), Half()))
    _train_stack(pair)
    pair.check()


def test_a_parameter_may_be_frozen_and_thawed_between_steps(daemon):
    torch.manual_seed(15)
    pair = Pair(daemon, GPT())
    for round in range(3):
        for model in pair.both():
            model.layers[1].requires_grad_(round != 1)
        pair.train(3)
    pair.check()


def test_eval_every_k_changes_nothing(daemon):
    torch.manual_seed(16)
    pair = Pair(daemon, GPT())
    for step in range(6):
        if step % 2:
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    outputs = [model.eval()(batch_of(500 + step, size=2)) for model in pair.both()]
                assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
            for model in pair.both():
                model.train()
        pair.train(1)
    pair.check()


def test_generation_with_all_weights_there(daemon):
    torch.manual_seed(17)
    pair = Pair(daemon, GPT())
    pair.train(2)
    with pair.sharded.unsharded() as module, torch.no_grad():
        assert module.layers[0].qkv.weight.abs().sum() > 0
        for model in pair.both():
            tokens = batch_of(3, size=1)[:, :4]
            while tokens.shape[1] < LENGTH:
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            model.generated = tokens
    assert pair.plain.generated.tolist() == pair.module.generated.tolist()
    pair.train(2)
    pair.check()


def test_bf16_computes_with_rounded_weights(daemon):
    torch.manual_seed(18)
    pair = Pair(daemon, GPT(), param_dtype=torch.bfloat16)
    logits = pair.module(batch_of(0))
    assert logits.dtype == torch.bfloat16
    rounded = pair.plain.to(torch.bfloat16)
    assert_close(logits, rounded(batch_of(0)), rtol=0.05, atol=0.05)
    F.cross_entropy(logits.float().flatten(0, 1), batch_of(0).flatten()).backward()
    pair.optimizer.step()
    assert pair.optimizer.last_norm() > 0


def test_every_format_trains(start):
    daemon = start()
    for format in ("BF16", "FP8_TENSOR_CURRENT", "FP8_BLOCK_128X128", "MXFP8", "MXFP8_2D", "NVFP4_2D"):
        torch.manual_seed(19)
        pair = Pair(daemon, GPT(), name=format, format=[("*norm*", "FP32"), ("*", format)])
        losses = []
        for _ in range(20):
            loss = loss_of(pair.module, batch_of(0))
            loss.backward()
            pair.optimizer.step()
            pair.optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0], (format, losses)
        pair.sharded.close()
