"""A model of transformers: made without memory, loaded, trained, saved and opened again."""

import contextlib

import pytest
import torch

import paramshard
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


def _resizable(tied: bool, prepare=lambda model: None) -> "transformers.LlamaForCausalLM":
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied))
    prepare(model)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("resize", [lambda model: model.resize_token_embeddings(64),
                                    lambda model: model.resize_token_embeddings(40, mean_resizing=False),
                                    lambda model: model.model.resize_token_embeddings(64),
                                    lambda model: model.resize_token_embeddings(48, 64),
                                    lambda model: model.resize_token_embeddings(pad_to_multiple_of=64)])
def test_resizing_a_sharded_model_is_refused_by_name(daemon, resize, tied):
    model = _resizable(tied)
    embeddings, names = model.get_input_embeddings(), [name for name, _ in model.named_parameters()]
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.open()
        for around in (contextlib.nullcontext(), sharded.unsharded()):
            with around, pytest.raises(paramshard.FailedPreconditionError,
                                       match="resize_token_embeddings of a sharded Llama.*before shard"):
                resize(model)
        assert model.get_input_embeddings() is embeddings and model.config.vocab_size == 48
        assert [name for name, _ in model.named_parameters()] == names
        tokens = torch.zeros(1, 4, dtype=torch.long, device=sharded.device)
        assert model(input_ids=tokens).logits.shape == (1, 4, 48)


@pytest.mark.parametrize("tied", [False, True])
def test_resizing_to_the_same_size_does_nothing(daemon, tied):
    model = _resizable(tied, prepare=lambda model: model.resize_token_embeddings(64))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.open()
        before = sharded.read("model.embed_tokens.weight")
        assert before.shape == (64, 32)
        for again in (model.resize_token_embeddings(), model.resize_token_embeddings(64),
                      model.resize_token_embeddings(new_num_tokens=60, pad_to_multiple_of=32)):
            assert again is model.get_input_embeddings()
        assert torch.equal(sharded.read("model.embed_tokens.weight"), before)
        assert len({id(each) for each in model.parameters()}) == len(list(sharded.parameters()))


def test_other_resizings_are_refused_by_name(daemon):
    model = transformers.DistilBertModel(transformers.DistilBertConfig(
        vocab_size=48, dim=32, hidden_dim=64, n_layers=1, n_heads=2, max_position_embeddings=16))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.open()
        with pytest.raises(paramshard.FailedPreconditionError, match="resize_position_embeddings"):
            model.resize_position_embeddings(32)
        assert model.config.max_position_embeddings == 16
