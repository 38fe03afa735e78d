"""A model of transformers: made without memory, loaded, trained, saved and opened again."""

import pytest
import torch

import paramshard.torch as pt
from models import DEVICE, batch_of

transformers = pytest.importorskip("transformers")


def _config() -> "transformers.LlamaConfig":
    return transformers.LlamaConfig(vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                                    tie_word_embeddings=False)


def _shard(daemon, model: torch.nn.Module, name: str) -> pt.ShardedModel:
    return pt.shard(model, name=name, units=[*model.model.layers, model], socket_dir=str(daemon.socket_dir))


def _loss(model: torch.nn.Module, step: int) -> torch.Tensor:
    tokens = batch_of(step)
    return model(input_ids=tokens, labels=tokens).loss


def test_a_pretrained_llama_goes_round(daemon, tmp_path):
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(_config()).to(DEVICE)
    plain.save_pretrained(tmp_path / "before")
    with pt.meta_init():
        model = transformers.LlamaForCausalLM(_config())
    sharded = _shard(daemon, model, "llama")
    sharded.load_pretrained(tmp_path / "before")
    optimizer = pt.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for step in range(5):
        losses = [_loss(each, step) for each in (plain, model)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    sharded.save_pretrained(tmp_path / "after")
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "after").to(DEVICE)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(opened.get_parameter(name), parameter, rtol=3e-6, atol=1e-6)


def test_checkpointing_of_transformers(daemon):
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(_config())
    losses = []
    for name in ("plain", "checkpointed"):
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(_config())
        if name == "checkpointed":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        _shard(daemon, model, name)
        optimizer = pt.AdamW(model.parameters(), lr=1e-3)
        for step in range(3):
            loss = _loss(model, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]


def test_generation_of_transformers(daemon):
    torch.manual_seed(2)
    plain = transformers.LlamaForCausalLM(_config()).eval()
    model = transformers.LlamaForCausalLM(_config()).eval()
    model.load_state_dict(plain.state_dict())
    with _shard(daemon, model, "generates") as sharded:
        sharded.open()
        prompt = batch_of(0, size=1)[:, :4]
        expected = plain.generate(prompt, max_new_tokens=6, do_sample=False)
        with sharded.unsharded():
            assert model.generate(prompt, max_new_tokens=6, do_sample=False).tolist() == expected.tolist()


def test_a_mixture_of_experts_goes_round(daemon, tmp_path):
    """Its experts are one tensor in the model and many in the files."""
    torch.manual_seed(3)
    config = transformers.MixtralConfig(vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
                                        max_position_embeddings=32)
    plain = transformers.MixtralForCausalLM(config).to(DEVICE)
    plain.save_pretrained(tmp_path / "before")
    with pt.meta_init():
        model = transformers.MixtralForCausalLM(config)
    sharded = _shard(daemon, model, "mixtral")
    sharded.load_pretrained(tmp_path / "before")
    optimizer = pt.AdamW(model.parameters(), lr=1e-3)
    loss = _loss(model, 0)
    torch.testing.assert_close(loss, _loss(plain, 0), rtol=1e-5, atol=1e-6)
    loss.backward()
    optimizer.step()
    sharded.save_pretrained(tmp_path / "after")
    opened = transformers.MixtralForCausalLM.from_pretrained(tmp_path / "after").to(DEVICE)
    torch.testing.assert_close(_loss(opened, 1), _loss(model, 1), rtol=1e-5, atol=1e-6)
