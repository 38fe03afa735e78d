"""load_pretrained gives every parameter the folder's value, or an error names it."""

import json
import pathlib
import subprocess
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed.checkpoint
from torch import nn

import paramshard
import paramshard.torch as pt
from conftest import program
from models import GPT, assert_close

safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

State = dict[str, torch.Tensor]


def _config(**options) -> "transformers.LlamaConfig":
    options = {"tie_word_embeddings": False} | options
    return transformers.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, **options)


def _write(folder: pathlib.Path, state: State, file: str = "model.safetensors", **metadata: str) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    safetensors.save_file({key: value.contiguous().clone() for key, value in state.items()}, folder / file,
                          metadata={"format": "pt"} | metadata)
    return folder


def _write_index(folder: pathlib.Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


class Kind:
    """A model, and how one without values is made."""

    def __init__(self, name: str):
        self.is_llama = name == "llama"

    def make(self, tied: bool = False) -> nn.Module:
        if self.is_llama:
            return transformers.LlamaForCausalLM(_config(tie_word_embeddings=tied))
        return GPT(layers=2, tied=tied)

    def head(self) -> str:
        return "lm_head.weight" if self.is_llama else "head.weight"

    def embedding(self) -> str:
        return "model.embed_tokens.weight" if self.is_llama else "embed.weight"

    def layer(self) -> str:
        return "model.layers.1." if self.is_llama else "layers.1."


@pytest.fixture(params=["llama", "plain"])
def kind(request) -> Kind:
    return Kind(request.param)


def _load(daemon, make: Callable[[], nn.Module], folder: pathlib.Path, name: str = "m") -> State:
    """Returns the values that the daemon has afterwards."""
    with pt.meta_init():
        module = make()
    with pt.shard(module, name=name, units=[module], socket_dir=str(daemon.socket_dir)) as sharded:
        sharded.load_pretrained(folder)
        sharded.open()
        return dict(module.state_dict())


# --- Keys ---


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "other.model."])
def test_prefixes_of_keys_are_named(daemon, tmp_path, kind, prefix):
    state = kind.make().state_dict()
    _write(tmp_path, {prefix + key: value for key, value in state.items()})
    with pytest.raises(paramshard.NotFoundError, match=f"{kind.embedding()}.* begin with '{prefix}'"):
        _load(daemon, kind.make, tmp_path)


def test_a_prefix_that_keys_lack_is_named(daemon, tmp_path):
    plain = nn.ModuleDict({"inner": GPT(layers=1)})

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = GPT(layers=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    _write(tmp_path, plain["inner"].state_dict())
    with pytest.raises(paramshard.NotFoundError, match="inner.embed.weight.* lack 'inner.'"):
        _load(daemon, Outer, tmp_path)


def test_parameters_that_a_folder_lacks_are_named(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    changes = {
        kind.head(): {key: value for key, value in state.items() if key != kind.head()},
        kind.layer(): {key: value for key, value in state.items() if kind.layer() not in key},
        kind.embedding(): {key.replace("embed", "embedding"): value for key, value in state.items()},
    }
    for index, (named, change) in enumerate(changes.items()):
        folder = _write(tmp_path / str(index), change)
        with pytest.raises(paramshard.NotFoundError, match=named):
            _load(daemon, kind.make, folder, f"m{index}")


def test_keys_that_no_parameter_takes_are_named_in_a_warning(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    _write(tmp_path, state | {"score.weight": torch.ones(2, 2)})
    with pytest.warns(UserWarning, match="score.weight"):
        loaded = _load(daemon, kind.make, tmp_path)
    assert_close(loaded, dict(state), rtol=0, atol=0)


def test_nothing_is_said_of_a_folder_that_fits(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    _write(tmp_path, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_close(_load(daemon, kind.make, tmp_path), dict(state), rtol=0, atol=0)


def test_other_shapes_are_named(daemon, tmp_path, kind):
    state = kind.make().state_dict() | {kind.head(): torch.ones(3, 5)}
    _write(tmp_path, state)
    with pytest.raises(paramshard.InvalidArgumentError, match=rf"{kind.head()}.*got \[3, 5\]"):
        _load(daemon, kind.make, tmp_path)


def test_the_folder_of_a_base_model_and_its_head(daemon, tmp_path):
    """transformers adds and removes the prefix of a base model itself."""
    whole = transformers.LlamaForCausalLM(_config())
    whole.model.save_pretrained(tmp_path / "base")
    whole.save_pretrained(tmp_path / "whole")
    with pytest.raises(paramshard.NotFoundError, match="lm_head.weight"):
        _load(daemon, lambda: transformers.LlamaForCausalLM(_config()), tmp_path / "base")
    with pytest.warns(UserWarning, match="lm_head.weight"):
        loaded = _load(daemon, lambda: transformers.LlamaModel(_config()), tmp_path / "whole", "base")
    assert_close(loaded, dict(whole.model.state_dict()), rtol=0, atol=0)
    with_tied = transformers.LlamaForCausalLM(_config(tie_word_embeddings=True))
    with_tied.model.save_pretrained(tmp_path / "tied")
    loaded = _load(daemon, lambda: transformers.LlamaForCausalLM(_config(tie_word_embeddings=True)), tmp_path / "tied",
                   "tied")
    assert_close(loaded, dict(with_tied.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("present", ["first", "second", "both", "reversed"])
def test_a_tied_parameter_has_any_of_its_names(daemon, tmp_path, kind, present):
    state = kind.make(tied=True).state_dict()
    names = [kind.embedding(), kind.head()]
    left_out = {"first": names[1:], "second": names[:1]}.get(present, [])
    kept = {key: value for key, value in state.items() if key not in left_out}
    _write(tmp_path, dict(reversed(kept.items())) if present == "reversed" else kept)
    assert_close(_load(daemon, lambda: kind.make(tied=True), tmp_path), dict(state), rtol=0, atol=0)


def test_a_tied_parameter_with_two_values_is_refused(daemon, tmp_path, kind):
    state = kind.make(tied=True).state_dict()
    _write(tmp_path, state | {kind.head(): state[kind.head()] + 1})
    with pytest.raises(paramshard.InvalidArgumentError, match=f"{kind.embedding()} and {kind.head()}"):
        _load(daemon, lambda: kind.make(tied=True), tmp_path)


def test_values_keep_their_bits(daemon, tmp_path):
    """A config that says bfloat16 does not round the files' float32."""
    plain = transformers.LlamaForCausalLM(_config())
    _write(tmp_path, plain.state_dict())
    loaded = _load(daemon, lambda: transformers.LlamaForCausalLM(_config(dtype="bfloat16")), tmp_path)
    assert_close(loaded, dict(plain.state_dict()), rtol=0, atol=0)
    mixed = {key: value.bfloat16() if "norm" not in key else value for key, value in plain.state_dict().items()}
    loaded = _load(daemon, lambda: transformers.LlamaForCausalLM(_config()), _write(tmp_path / "mixed", mixed), "mixed")
    assert_close(loaded, {key: value.float() for key, value in mixed.items()}, rtol=0, atol=0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def test_buffers_that_a_folder_lacks_stay_and_are_named(daemon, tmp_path):
    state = Counting().state_dict()
    _write(tmp_path, {key: value + 1 for key, value in state.items() if key != "seen"})
    with pt.meta_init():
        module = Counting()
    module.seen += 5
    sharded = pt.shard(module, name="m", units=[module], socket_dir=str(daemon.socket_dir))
    with pytest.warns(UserWarning, match="seen"):
        sharded.load_pretrained(tmp_path)
    assert module.seen.tolist() == [5, 5, 5] and module.norm.num_batches_tracked == 1
    assert_close(module.norm.running_var, state["norm.running_var"] + 1, rtol=0, atol=0)
    sharded.close()


# --- Files ---


def _other(state: State) -> State:
    return {key: value + 1 if value.is_floating_point() else value for key, value in state.items()}


def test_files_beside_a_model_are_not_read(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    _write(tmp_path, state)
    for file in ("consolidated.safetensors", "adapter_model.safetensors", "model-00001-of-00001.safetensors",
                 "model.fp16.safetensors", "other.safetensors"):
        _write(tmp_path, _other(state), file)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "elsewhere",
                                                              "peft_type": "LORA"}))
    assert_close(_load(daemon, kind.make, tmp_path), dict(state), rtol=0, atol=0)


def test_a_whole_file_comes_before_an_index_as_in_transformers(daemon, tmp_path):
    model = transformers.LlamaForCausalLM(_config())
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    _write(tmp_path, _other(model.state_dict()))
    plain = transformers.LlamaForCausalLM.from_pretrained(tmp_path, config=_config())
    loaded = _load(daemon, lambda: transformers.LlamaForCausalLM(_config()), tmp_path)
    assert_close(loaded, dict(plain.state_dict()), rtol=0, atol=0)


def test_shards_that_hold_more_than_their_index_says(daemon, tmp_path, kind):
    state = dict(kind.make().state_dict())
    keys = list(state)
    _write(tmp_path, {key: state[key] for key in keys[:3]} | {"left.over": torch.ones(2)}, "model-00001.safetensors")
    _write(tmp_path, {key: state[key] for key in keys[3:]}, "model-00002.safetensors")
    _write(tmp_path, _other(state), "model-00003.safetensors")
    weight_map = {key: "model-00001.safetensors" if key in keys[:3] else "model-00002.safetensors" for key in keys}
    _write_index(tmp_path, weight_map)
    with pytest.warns(UserWarning, match="left.over"):
        assert_close(_load(daemon, kind.make, tmp_path), state, rtol=0, atol=0)
    _write(tmp_path, {key: state[key] for key in keys[2:]}, "model-00002.safetensors")
    with pytest.raises(paramshard.InvalidArgumentError, match=keys[2]):
        _load(daemon, kind.make, tmp_path, "two")
    _write_index(tmp_path, weight_map | {keys[-1]: "model-00004.safetensors"})
    with pytest.raises(paramshard.Error, match="model-00004"):
        _load(daemon, kind.make, tmp_path, "none")


def test_the_file_that_a_config_names(daemon, tmp_path):
    model = transformers.LlamaForCausalLM(_config())
    _write(tmp_path, _other(model.state_dict()))
    _write(tmp_path, model.state_dict(), "chosen.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(_config().to_dict() | {"transformers_weights":
                                                                            "chosen.safetensors"}))
    loaded = _load(daemon, lambda: transformers.LlamaForCausalLM(_config()), tmp_path)
    assert_close(loaded, dict(model.state_dict()), rtol=0, atol=0)


def test_a_folder_with_files_of_torch(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    torch.save(dict(state), tmp_path / "pytorch_model.bin")
    assert_close(_load(daemon, kind.make, tmp_path), dict(state), rtol=0, atol=0)


def test_a_file_of_torch_with_more_than_weights(daemon, tmp_path, kind):
    """A file with a nested dictionary, as frameworks write checkpoints."""
    state = kind.make().state_dict()
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises((paramshard.NotFoundError, paramshard.InvalidArgumentError), match="state_dict"):
        _load(daemon, kind.make, tmp_path)
    torch.save(dict(state) | {"epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning, match="epoch"):
        assert_close(_load(daemon, kind.make, tmp_path, "n"), dict(state), rtol=0, atol=0)


def test_files_of_torch_are_read_beside_variants_and_adapters(daemon, tmp_path):
    """Other safetensors than model.safetensors and its index are not read, as in transformers."""
    torch.manual_seed(0)
    state, variant = (nn.Linear(4, 4).state_dict() for _ in range(2))
    torch.save(state, tmp_path / "pytorch_model.bin")
    _write(tmp_path, variant, "model.fp16.safetensors")
    _write(tmp_path, {"lora": torch.ones(2)}, "adapter_model.safetensors")
    assert_close(_load(daemon, lambda: nn.Linear(4, 4), tmp_path), state, rtol=0, atol=0)


@pytest.mark.parametrize("change, config", [
    ({}, {"quantization_config": {"quant_method": "gptq"}}),
    ({"weight_scale_inv": torch.ones(1)}, {}),
    ({"weight": torch.eye(4).to_sparse()}, {}),
], ids=["config", "scales", "sparse"])
def test_quantized_files_of_torch_are_refused(daemon, tmp_path, change, config):
    torch.save(nn.Linear(4, 4).state_dict() | change, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(paramshard.InvalidArgumentError, match="weight"):
        _load(daemon, lambda: nn.Linear(4, 4), tmp_path)


@pytest.mark.parametrize("beside", ["model.fp16.safetensors", "model.fp16.safetensors.index.json",
                                    "adapter_model.safetensors", "other.safetensors"])
def test_files_of_torch_come_before_files_of_other_names_as_in_transformers(daemon, tmp_path, kind, beside):
    state = kind.make().state_dict()
    torch.save(dict(state), tmp_path / "pytorch_model.bin")
    if beside.endswith(".json"):
        (tmp_path / beside).write_text(json.dumps({"weight_map": {}}))
    else:
        _write(tmp_path, _other(state), beside)
    assert_close(_load(daemon, kind.make, tmp_path), dict(state), rtol=0, atol=0)


def test_a_file_of_another_name_is_named_in_a_warning(daemon, tmp_path, kind):
    state = kind.make().state_dict()
    _write(tmp_path, state, "model.fp16.safetensors")
    with pytest.warns(UserWarning, match="model.fp16.safetensors"):
        assert_close(_load(daemon, kind.make, tmp_path), dict(state), rtol=0, atol=0)


@pytest.mark.parametrize("config", [
    {"quant_method": "gptq"}, {"quant_method": "bitnet"}, {"quant_method": "fp8"},
    {"quant_method": "compressed-tensors", "quantization_status": "frozen", "transform_config": {"R1": {}}}])
def test_files_of_torch_under_a_quantization_config_are_refused(daemon, tmp_path, kind, config):
    torch.save(dict(kind.make().state_dict()), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    named = "transform_config" if "transform_config" in config else config["quant_method"]
    with pytest.raises(paramshard.InvalidArgumentError, match=f"pytorch_model.bin.*{named}"):
        _load(daemon, kind.make, tmp_path)


class _Subclass(torch.Tensor):
    """A tensor class of packages that quantize: its elements differ from those that it shows."""


@pytest.mark.parametrize("change, named", [
    (lambda head: {"": head.to_sparse()}, "sparse"),
    (lambda head: {"": torch.empty_like(head, device="meta")}, "meta"),
    (lambda head: {"": head.as_subclass(_Subclass)}, "_Subclass"),
    (lambda head: {"": head.to(torch.float8_e4m3fn)}, "float8"),
    (lambda head: {"": head, "_scale_inv": torch.ones(1, 1)}, "scale_inv")])
def test_what_is_no_value_in_a_file_of_torch_is_refused(daemon, tmp_path, kind, change, named):
    state = kind.make().state_dict()
    changed = {f"{kind.head()}{suffix}": tensor for suffix, tensor in change(state[kind.head()].clone()).items()}
    torch.save(dict(state) | changed, tmp_path / "pytorch_model.bin")
    with torch.serialization.safe_globals([_Subclass]):
        with pytest.raises(paramshard.InvalidArgumentError, match=f"{kind.head()}.*{named}"):
            _load(daemon, kind.make, tmp_path)


def test_a_folder_of_a_distributed_checkpoint_is_named(daemon, tmp_path):
    torch.distributed.checkpoint.save(GPT().state_dict(), checkpoint_id=tmp_path)
    with pytest.raises(paramshard.InvalidArgumentError, match="distcp"):
        _load(daemon, GPT, tmp_path)


@pytest.mark.parametrize("text", ["{broken", "[1]"])
def test_a_config_that_is_no_object_is_refused(daemon, tmp_path, kind, text):
    _write(tmp_path, kind.make().state_dict())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(paramshard.InvalidArgumentError, match="config.json"):
        _load(daemon, kind.make, tmp_path)


def test_a_folder_of_adapters_alone_is_refused(daemon, tmp_path, kind):
    _write(tmp_path, {"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(paramshard.NotFoundError, match=f"{kind.embedding()}.*lora_A"):
        _load(daemon, kind.make, tmp_path)


@pytest.mark.parametrize("indexed", [False, True])
def test_parts_of_tensors_are_never_taken_for_the_whole(daemon, tmp_path, kind, indexed):
    """Files of torch's distributed checkpoints say which part of a tensor they hold."""
    state = dict(kind.make().state_dict())
    rows = {key: value.shape[0] // 2 for key, value in state.items()}
    for part in range(2):
        values = {key: value[rows[key]:] if part else value[:rows[key]] for key, value in state.items()}
        sharding = {key: {"saved_offsets": [rows[key] * part, *[0] * (value.dim() - 1)]}
                    for key, value in values.items()}
        _write(tmp_path, values, f"shard-0000{part + 1}-model-00001-of-00001.safetensors", DCP_VERSION="1.0",
               DCP_SHARDING_INFO=json.dumps(sharding))
    if not indexed:  # without one the files are put together
        assert_close(_load(daemon, kind.make, tmp_path), state, rtol=0, atol=0)
        (tmp_path / "shard-00002-model-00001-of-00001.safetensors").rename(tmp_path / "model.safetensors")
    else:
        _write_index(tmp_path, {key: f"shard-0000{1 + index % 2}-model-00001-of-00001.safetensors"
                                for index, key in enumerate(state)})
    with pytest.raises(paramshard.InvalidArgumentError, match="part"):
        _load(daemon, kind.make, tmp_path, "n")


def test_a_part_whose_shape_is_that_of_the_whole(daemon, tmp_path):
    """An upper half of a larger tensor, which has the shape that the model wants."""
    state = nn.Sequential(nn.Linear(4, 4)).state_dict()
    sharding = {key: {"saved_offsets": [4, 0][:value.dim()]} for key, value in state.items()}
    _write(tmp_path, state, DCP_VERSION="1.0", DCP_SHARDING_INFO=json.dumps(sharding))
    with pytest.raises(paramshard.InvalidArgumentError, match="0.(weight|bias).*a part"):
        _load(daemon, lambda: nn.Sequential(nn.Linear(4, 4)), tmp_path)


# --- Models of transformers ---

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
          "vocab_size": 50}


def _models() -> dict[str, Callable[[], nn.Module]]:
    """Ties in several ways, parametrized weights, transposed and merged ones, persistent buffers, renamed parts."""
    of = transformers
    return {
        "t5": lambda: of.T5ForConditionalGeneration(of.T5Config(d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2,
                                                                vocab_size=50, decoder_start_token_id=0)),
        "bert": lambda: of.BertForMaskedLM(of.BertConfig(**_SMALL)),
        "gpt2": lambda: of.GPT2LMHeadModel(of.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50)),
        "wav2vec2": lambda: of.Wav2Vec2ForCTC(of.Wav2Vec2Config(
            **_SMALL, conv_dim=(16, 16), conv_kernel=(3, 3), conv_stride=(2, 2), num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2)),
        "deepseek": lambda: of.DeepseekV3ForCausalLM(of.DeepseekV3Config(
            **_SMALL, num_key_value_heads=2, moe_intermediate_size=16, n_routed_experts=4, n_group=2, topk_group=1,
            num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8,
            qk_nope_head_dim=8, v_head_dim=8)),
        "llava": lambda: of.LlavaForConditionalGeneration(of.LlavaConfig(
            vision_config={"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 2,
                           "num_attention_heads": 2, "intermediate_size": 32, "image_size": 16, "patch_size": 8},
            text_config={"model_type": "llama", **_SMALL, "num_key_value_heads": 2})),
        "resnet": lambda: of.ResNetForImageClassification(of.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
    }


@pytest.mark.parametrize("name", ["t5", "bert", "gpt2", "wav2vec2", "deepseek", "llava", "resnet"])
def test_models_of_transformers_go_round(daemon, tmp_path, name):
    plain, model = _models()[name](), _models()[name]()
    plain.save_pretrained(tmp_path / "before")
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        sharded.load_pretrained(tmp_path / "before")
    sharded.open()
    assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    sharded.save_pretrained(tmp_path / "after")
    before, after = ({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
                     for folder in ("before", "after"))
    assert before == after
    sharded.close()


# --- Adapters ---


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["lora", "nested", "prompts", "saved", "transformers"])
def test_adapters_begin_on_the_folder_of_their_base_model(daemon, tmp_path, name):
    peft = pytest.importorskip("peft")
    base = transformers.LlamaForCausalLM(_config())
    base.save_pretrained(tmp_path)
    configs = {
        "lora": lambda: peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"),
        "nested": lambda: peft.LoraConfig(target_modules=[], target_parameters=["q_proj.weight"]),
        "prompts": lambda: peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
        "saved": lambda: peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
        "transformers": lambda: peft.LoraConfig(target_modules=["q_proj"]),
    }
    model = transformers.LlamaForCausalLM(_config())
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    if name == "transformers":
        model.add_adapter(configs[name]())
    else:
        model = peft.get_peft_model(model, configs[name]())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    sharded.load_pretrained(tmp_path)
    sharded.open()
    own = base.state_dict()
    found = set()
    for key, value in model.state_dict().items():
        plain = key.removeprefix("base_model.model." if name not in ("prompts", "transformers") else "base_model.")
        for wrapper in ("base_layer.", "original_module.", "modules_to_save.default.", "token_adapter."):
            plain = plain.replace(wrapper, "")
        plain = "model.embed_tokens.weight" if plain == "word_embeddings.weight" else plain
        if plain in own:
            found.add(plain)
            assert_close(value, own[plain], rtol=0, atol=0)
        else:
            assert_close(value, before[key], rtol=0, atol=0)
    assert found == own.keys()
    sharded.close()


def test_adapters_on_a_folder_that_lacks_a_parameter(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    state = transformers.LlamaForCausalLM(_config()).state_dict()
    _write(tmp_path, {key: value for key, value in state.items() if "layers.0.self_attn.q_proj" not in key})
    model = peft.get_peft_model(transformers.LlamaForCausalLM(_config()), peft.LoraConfig(target_modules=["q_proj"]))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.NotFoundError, match="layers.0.self_attn.q_proj.weight"):
        sharded.load_pretrained(tmp_path)
    sharded.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["dora", "tokens", "tokens of lora", "pissa", "norms"])
def test_adapters_that_were_made_from_other_values_are_refused(daemon, tmp_path, name):
    """The magnitudes of DoRA, for example, are norms of the base model's rows."""
    peft = pytest.importorskip("peft")
    base = transformers.LlamaForCausalLM(_config())
    base.save_pretrained(tmp_path)
    configs = {
        "dora": lambda: peft.LoraConfig(target_modules=["q_proj"], use_dora=True),
        "tokens": lambda: peft.TrainableTokensConfig(token_indices=[1], target_modules=["embed_tokens"]),
        "tokens of lora": lambda: peft.LoraConfig(target_modules=["q_proj"], trainable_token_indices=[1]),
        "pissa": lambda: peft.LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa"),
        "norms": lambda: peft.LNTuningConfig(target_modules=["norm"], task_type="CAUSAL_LM"),
    }
    model = peft.get_peft_model(transformers.LlamaForCausalLM(_config()), configs[name]())
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.FailedPreconditionError, match="before get_peft_model"):
        sharded.load_pretrained(tmp_path)
    sharded.close()


# --- Encodings ---


def _codes(values: torch.Tensor, block: tuple[int, int], dtype: torch.dtype = torch.float8_e4m3fn,
           scale_dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, a scale for each block, and what they stand for."""
    rows, columns = values.shape
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = torch.rand(grid, generator=torch.Generator().manual_seed(1)).add(0.5).div(64).to(scale_dtype)
    spread = scales.float().repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    codes = (values / spread).to(dtype)
    return codes, scales, codes.float() * spread


BLOCKS = (128, 128)


@pytest.mark.parametrize("suffix, block, dtype, scale_dtype", [
    ("_scale_inv", BLOCKS, torch.float8_e4m3fn, torch.float32),
    ("_scale_inv", BLOCKS, torch.float8_e4m3fn, torch.bfloat16),
    ("_scale", (200, 300), torch.float8_e4m3fn, torch.float32),
    ("_scale", (200, 300), torch.float8_e5m2, torch.bfloat16),
    ("_scale", (1, 300), torch.float8_e4m3fn, torch.bfloat16),
    ("_scale", (1, 300), torch.float8_e5m2, torch.float32),
])
def test_codes_are_decoded_by_their_scales(daemon, tmp_path, suffix, block, dtype, scale_dtype):
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Linear(300, 200))  # noqa: E731
    state = dict(make().state_dict())
    codes, scales, values = _codes(state["0.weight"], block, dtype, scale_dtype)
    _write(tmp_path, state | {"0.weight": codes, f"0.weight{suffix}": scales})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_close(_load(daemon, make, tmp_path), state | {"0.weight": values}, rtol=0, atol=0)


@pytest.mark.parametrize("format", ["FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT", "MXFP8", "MXFP8_2D", "NVFP4_2D", "BF16"])
def test_what_convert_writes_is_decoded(daemon, tmp_path, kind, format):
    torch.manual_seed(0)
    _write(tmp_path / "plain", kind.make().state_dict())
    for arguments in (["plain", "--format", format, "-o", "codes"], ["codes", "--dequantize", "-o", "values"]):
        if arguments[0] == "codes" and format == "BF16":
            continue
        subprocess.run([program("paramshardctl"), "convert", *arguments], check=True, cwd=tmp_path)
    expected = safetensors.load_file(tmp_path / ("codes" if format == "BF16" else "values") / "model.safetensors")
    loaded = _load(daemon, kind.make, tmp_path / "codes")
    assert_close(loaded, {key: value.float() for key, value in expected.items()}, rtol=0, atol=0)


def _quantized(state: State, names: Callable[[str], bool]) -> tuple[State, State]:
    """Returns codes and scales as DeepSeek's files have them, and the values."""
    files, values = dict(state), dict(state)
    for key in filter(names, state):
        files[key], files[f"{key}_scale_inv"], values[key] = _codes(state[key], BLOCKS)
    return files, values


def test_a_quantized_model_of_transformers_is_decoded_and_saved_with_values(daemon, tmp_path):
    torch.manual_seed(0)
    config = _config(quantization_config={"quant_method": "fp8", "weight_block_size": list(BLOCKS)})
    plain = transformers.LlamaForCausalLM(_config())
    files, values = _quantized(plain.state_dict(), lambda key: "proj" in key)
    _write(tmp_path, files)
    config.save_pretrained(tmp_path)
    with pt.meta_init():
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(tmp_path))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    sharded.load_pretrained(tmp_path)
    sharded.open()
    assert_close(dict(model.state_dict()), values, rtol=0, atol=0)
    sharded.save_pretrained(tmp_path / "saved")
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert_close(dict(opened.state_dict()), values, rtol=0, atol=0)
    sharded.close()


def test_quantized_experts_are_decoded_before_they_are_merged(daemon, tmp_path):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "plain")
    files, values = _quantized(safetensors.load_file(tmp_path / "plain" / "model.safetensors"),
                               lambda key: "experts" in key or "proj" in key)
    _write(tmp_path / "codes", files)
    _write(tmp_path / "values", values)
    config.save_pretrained(tmp_path / "values")
    expected = transformers.MixtralForCausalLM.from_pretrained(tmp_path / "values").state_dict()
    loaded = _load(daemon, lambda: transformers.MixtralForCausalLM(config), tmp_path / "codes")
    assert_close(loaded, dict(expected), rtol=0, atol=0)


def test_mxfp4_of_gpt_oss_is_decoded_as_transformers_decodes_it(daemon, tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    torch.manual_seed(0)
    config = transformers.GptOssConfig(vocab_size=40, hidden_size=64, intermediate_size=32, num_hidden_layers=1,
                                       num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_local_experts=2,
                                       num_experts_per_tok=1)
    state = dict(transformers.GptOssForCausalLM(config).state_dict())
    files = dict(state)
    for name in ("gate_up_proj", "down_proj"):
        key = f"model.layers.0.mlp.experts.{name}"
        experts, wide, long = state[key].shape
        blocks = torch.randint(0, 256, (experts, long, wide // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 128, (experts, long, wide // 32), dtype=torch.uint8)
        files |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
        del files[key]
        state[key] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
        assert state[key].shape == (experts, wide, long)
    _write(tmp_path, files)
    (tmp_path / "config.json").write_text(json.dumps(
        config.to_dict() | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}))
    loaded = _load(daemon, lambda: transformers.GptOssForCausalLM(config), tmp_path)
    assert_close(loaded, state, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "unheard of"])
def test_folders_of_unknown_methods_are_refused(daemon, tmp_path, kind, method):
    state = kind.make().state_dict()
    _write(tmp_path, state)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    with pytest.raises(paramshard.InvalidArgumentError, match=f"{method}"):
        _load(daemon, kind.make, tmp_path)


@pytest.mark.parametrize("dtype, named", [
    (torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2"), (torch.float8_e4m3fnuz, "F8_E4M3FNUZ"),
    (torch.int8, "I8"), (torch.uint8, "U8"), (torch.int32, "I32")])
def test_codes_without_scales_are_refused(daemon, tmp_path, kind, dtype, named):
    state = kind.make().state_dict()
    _write(tmp_path, state | {kind.head(): state[kind.head()].to(dtype)})
    with pytest.raises(paramshard.InvalidArgumentError, match=f"{kind.head()}.*got {named}"):
        _load(daemon, kind.make, tmp_path)
