"""Views of models of transformers, beside what these save."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

_SMALL = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 2}


def _llama(tied: bool) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, tie_word_embeddings=tied))


def _step(model: nn.Module) -> None:
    optimizer = pt.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def _copied(reader: paramshard.Reader, view: paramshard.View) -> dict[str, torch.Tensor]:
    outputs = view.allocate("torch")
    plan = paramshard.Plan(view, outputs)
    with reader.acquire() as snapshot:
        snapshot.copy_into(plan)
        snapshot.verify(plan)
    return outputs


def _parameters(reader: paramshard.Reader) -> list[paramshard.ReadParameter]:
    with reader.acquire() as snapshot:
        return snapshot.parameters()


def _check_equal(copied: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    assert copied.keys() == saved.keys()
    for name, value in saved.items():
        assert copied[name].dtype == value.dtype and torch.equal(copied[name], value), name


@pytest.mark.parametrize("tied, compiled", [(False, False), (True, False), (False, True)])
def test_hf_is_what_save_pretrained_writes(daemon, tmp_path: pathlib.Path, tied: bool, compiled: bool):
    model = _llama(tied)
    if compiled:
        model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    sharded = pt.shard(model, name="m", units=[*model.model.layers, model], format="BF16",
                       socket_dir=str(daemon.socket_dir))
    _step(model)
    sharded.save_pretrained(tmp_path, dtype=torch.bfloat16)
    reader = paramshard.Reader("m", socket_dir=str(daemon.socket_dir))
    copied = _copied(reader, paramshard.views.hf(_parameters(reader)))
    sharded.close()
    _check_equal(copied, safetensors.load_file(tmp_path / "model.safetensors"))


def test_experts_are_split_as_save_pretrained_splits_them(daemon, tmp_path: pathlib.Path):
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **_SMALL, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2, head_dim=64))
    sharded = pt.shard(model, name="m", units=[*model.model.layers, model], format="BF16",
                       socket_dir=str(daemon.socket_dir))
    _step(model)
    sharded.save_pretrained(tmp_path, dtype=torch.bfloat16)
    reader = paramshard.Reader("m", socket_dir=str(daemon.socket_dir))
    copied = _copied(reader, paramshard.views.hf(_parameters(reader), split_experts=True))
    sharded.close()
    _check_equal(copied, safetensors.load_file(tmp_path / "model.safetensors"))


def test_transformers_opens_hf_fp8(daemon, tmp_path: pathlib.Path):
    model = _llama(tied=False)
    sharded = pt.shard(model, name="m", units=[*model.model.layers, model], format="FP8_BLOCK_128X128",
                       param_dtype=torch.bfloat16, socket_dir=str(daemon.socket_dir))
    _step(model)
    reader = paramshard.Reader("m", socket_dir=str(daemon.socket_dir))
    parameters = _parameters(reader)
    view = paramshard.views.hf_fp8(parameters)
    values, decoded = _copied(reader, view), _copied(reader, paramshard.views.hf(parameters))
    sharded.close()
    assert sum(value.dtype == torch.float8_e4m3fn for value in values.values()) == 2 * 7
    safetensors.save_file(values, tmp_path / "model.safetensors", {"format": "pt"})
    config = transformers.LlamaConfig(**_SMALL).to_dict() | {"quantization_config": view.quantization_config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=transformers.FineGrainedFP8Config(
            dequantize=True, modules_to_not_convert=view.quantization_config["modules_to_not_convert"]))
    _check_equal({name: value.contiguous() for name, value in opened.state_dict().items()}, decoded)


def test_rows_of_tensors_are_filled(daemon):
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    sharded.open()
    reader = paramshard.Reader("m", socket_dir=str(daemon.socket_dir))
    view = paramshard.View(_parameters(reader), [
        paramshard.Output("weight", (6, 8), "bfloat16", [paramshard.Part("0.weight")])])
    padded = torch.full((7, 10), -7.0, dtype=torch.bfloat16)
    plan = paramshard.Plan(view, {"weight": padded[:6, :8]})
    with reader.acquire() as snapshot:
        snapshot.copy_into(plan)
        assert torch.equal(padded[:6, :8], torch.from_numpy(snapshot["0.weight"]).bfloat16())
    assert (padded[6:] == -7).all() and (padded[:, 8:] == -7).all()
    for wrong in (padded[:6, :8].float(), padded.new_empty(6, 8, device="meta"), padded.new_empty(8, 6).T):
        with pytest.raises(paramshard.InvalidArgumentError, match="plan: output weight: want"):
            paramshard.Plan(view, {"weight": wrong})
    sharded.close()


def test_a_plan_notices_that_a_tensor_was_resized(daemon):
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    sharded.open()
    reader = paramshard.Reader("m", socket_dir=str(daemon.socket_dir))
    view = paramshard.views.hf(_parameters(reader))
    outputs = view.allocate("torch")
    plan = paramshard.Plan(view, outputs)
    reader.copy(plan)
    storage = outputs["1.weight"].untyped_storage()
    kept, size = outputs["1.weight"].clone(), storage.nbytes()
    storage.resize_(0)
    text = "output 1.weight: the tensor's storage was resized after the plan was made: make another plan"
    with pytest.raises(paramshard.FailedPreconditionError, match=f"copy_into: {text}: nothing was written"):
        reader.copy(plan)
    with reader.acquire() as snapshot, pytest.raises(paramshard.FailedPreconditionError, match=f"verify: {text}"):
        snapshot.verify(plan)
    storage.resize_(size)
    reader.copy(paramshard.Plan(view, outputs))
    assert torch.equal(outputs["1.weight"], kept)
    sharded.close()
