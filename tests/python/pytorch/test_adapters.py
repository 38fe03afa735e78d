"""Adapters of PEFT that read weights, or write them, beside the same training without a daemon."""

import copy

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, batch_of

peft = pytest.importorskip("peft")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 32, 24) * 0.2)
        self.down = nn.Parameter(torch.randn(4, 24, 32) * 0.2)

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("bi,bio->bo", x, self.up[which]).relu()
        return torch.einsum("bi,bio->bo", hidden, self.down[which])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(32, 4), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.experts(x, self.router(x).argmax(-1))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Layers(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _square(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(int(tokens[0, 0]))).to(DEVICE)
    return model(x).square().mean()


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [*model.base_model.model.layers, model]


@pytest.mark.parametrize("units", [_blocks, lambda model: [
    *(layer.experts for layer in model.base_model.model.layers), model]], ids=["blocks", "experts"])
def test_adapters_of_experts_train(daemon, units):
    """PEFT parametrizes them in each forward, and sets the memory that they have already."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["router"], target_parameters=["experts.up", "experts.down"],
                             init_lora_weights=False)
    pair = Pair(daemon, peft.get_peft_model(Mixture(), config), units=units)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_that_read_weights_train(daemon, dora):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["layers.0", "layers.1"], use_dora=dora, init_lora_weights=False)
    pair = Pair(daemon, peft.get_peft_model(Layers(), config), units=_blocks)
    pair.train(3, loss=_square)
    pair.check(tolerance=1e-5)


def test_adapters_that_read_weights_in_8_bits_are_told(daemon):
    model = peft.get_peft_model(Layers(128), peft.LoraConfig(r=2, target_modules=["layers.0"], use_dora=True))
    sharded = pt.shard(model, name="m", units=_blocks(model), socket_dir=str(daemon.socket_dir), compute="fp8",
                       format="FP8_BLOCK_128X128")
    pt.AdamW([each for each in model.parameters() if each.requires_grad])
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.0.base_layer.weight.*compute=.fp8"):
        model(torch.ones(2, 128, device=DEVICE))
    sharded.close()


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_a_merge_is_told(daemon, dora, safe):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["layers.0", "layers.1"], use_dora=dora, init_lora_weights=False)
    model = peft.get_peft_model(Layers(), config)
    plain = copy.deepcopy(model).to(DEVICE)
    sharded = pt.shard(model, name="m", units=_blocks(model), socket_dir=str(daemon.socket_dir))
    pt.AdamW([each for each in model.parameters() if each.requires_grad])
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.*base_layer.weight.*lost"):
        with sharded.unsharded():
            model.merge_adapter(safe_merge=safe)
    with pytest.raises(paramshard.FailedPreconditionError, match="layers.0"):
        model.base_model.model.layers[0].merged_adapters.clear()
        model.merge_adapter(safe_merge=safe)
    for layer in model.base_model.model.layers:
        layer.merged_adapters.clear()
    torch.testing.assert_close(_square(model, batch_of(0)), _square(plain, batch_of(0)))
    sharded.close()


# --- Kinds of adapters ---

_QV = {"target_modules": ["q_proj", "v_proj"]}
KINDS = {
    "lora": lambda: peft.LoraConfig(r=4, bias="all", use_rslora=True, **_QV),
    "dora": lambda: peft.LoraConfig(r=4, use_dora=True, modules_to_save=["lm_head"], **_QV),
    "pissa": lambda: peft.LoraConfig(r=4, init_lora_weights="pissa", **_QV),
    "tokens": lambda: peft.LoraConfig(r=4, trainable_token_indices=[1, 2], **_QV),
    "embeddings": lambda: peft.LoraConfig(r=4, target_modules=["embed_tokens", "lm_head"]),
    "adalora": lambda: peft.AdaLoraConfig(target_r=2, init_r=4, total_step=20, tinit=1, tfinal=10, **_QV),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "oft": lambda: peft.OFTConfig(oft_block_size=8, **_QV),
    "boft": lambda: peft.BOFTConfig(boft_block_size=8, **_QV),
    "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj"]),
    "vblora": lambda: peft.VBLoRAConfig(r=4, num_vectors=16, vector_length=16, topk=2, **_QV),
    "loha": lambda: peft.LoHaConfig(r=4, **_QV),
    "lokr": lambda: peft.LoKrConfig(r=4, **_QV),
    "hra": lambda: peft.HRAConfig(r=4, **_QV),
    "fourier": lambda: peft.FourierFTConfig(n_frequency=50, **_QV),
    "norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "encoder": lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, task_type="CAUSAL_LM", encoder_hidden_size=16),
}


def _adapted(config) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False))
    return peft.get_peft_model(llama, config)


def _llama_blocks(model: nn.Module) -> list[nn.Module]:
    return [*model.get_base_model().model.layers, model]


def _language_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_adapter_trains(daemon, kind):
    plain, module = _adapted(KINDS[kind]()), _adapted(KINDS[kind]())
    module.load_state_dict(plain.state_dict())
    plain.to(DEVICE)
    sharded = pt.shard(module, name="m", units=_llama_blocks(module), socket_dir=str(daemon.socket_dir))
    trained = {name: each.detach().clone() for name, each in plain.named_parameters() if each.requires_grad}
    adamw = torch.optim.AdamW([each for each in plain.parameters() if each.requires_grad], lr=1e-2)
    optimizer = pt.AdamW([each for each in module.parameters() if each.requires_grad], lr=1e-2)
    for step in range(3):
        losses = []
        for model, steps in ((plain, adamw), (module, optimizer)):
            torch.manual_seed(step)
            losses.append(_language_loss(model, batch_of(step)))
            losses[-1].backward()
            steps.step()
            steps.zero_grad()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(sharded.read(name), parameter.detach().cpu(), rtol=1e-4, atol=1e-4)
    assert any(not torch.equal(plain.get_parameter(name), before) for name, before in trained.items())


@pytest.mark.parametrize("kind, parameter", [
    (lambda: peft.OSFConfig(effective_rank=2, **_QV), "U_low|V_low"),
    (lambda: peft.CPTConfig(cpt_token_ids=[1, 2], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 2],
                            task_type="CAUSAL_LM"), "delta_embedding")], ids=["osf", "cpt"])
def test_adapters_that_change_gradients_are_refused(daemon, kind, parameter):
    module = _adapted(kind())
    with pytest.raises(paramshard.UnimplementedError, match=f"({parameter}).* has hooks"):
        pt.shard(module, name="m", units=_llama_blocks(module), socket_dir=str(daemon.socket_dir))


def test_adapters_that_read_gradients_are_told(daemon):
    module = _adapted(KINDS["adalora"]())
    pt.shard(module, name="m", units=_llama_blocks(module), socket_dir=str(daemon.socket_dir))
    pt.AdamW([each for each in module.parameters() if each.requires_grad], lr=1e-2)
    _language_loss(module, batch_of(0)).backward()
    with pytest.raises(paramshard.Error, match="lora_"):
        module.base_model.update_and_allocate(2)
