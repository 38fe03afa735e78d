"""State dictionaries and files of a sharded module equal those of the same program without a daemon."""

import copy
import json

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, GPT, Pair, assert_close, batch_of, loss_of

safetensors = pytest.importorskip("safetensors.torch")


def _on(daemon, module: nn.Module, name: str = "m", **options) -> pt.ShardedModel:
    sharded = pt.shard(module, name=name, units=[module], socket_dir=str(daemon.socket_dir), **options)
    pt.AdamW([each for each in module.parameters() if each.requires_grad], lr=0.0)
    return sharded


class Tables(nn.Module):
    """Buffers in all the ways in which programs have them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        table = torch.randn(2, 16, 4)
        turns = torch.view_as_complex(torch.randn(16, 4, 2))
        for name, value in {
            "first": table[0], "second": table[1], "corner": table[0, :4], "whole": table,
            "real": turns.real, "imaginary": turns.imag, "turned_back": turns.conj().imag, "turns": turns,
            "conjugate": turns.conj(), "left": (halves := torch.randn(16, 8).chunk(2, -1))[0], "right": halves[1],
            "transposed": table[1].t(), "flat": table.view(-1), "every_other": table.flatten()[::2],
            "none": torch.zeros(0), "nothing": torch.zeros(0, 4), "expanded": torch.ones(1).expand(5),
            "scalar": torch.tensor(3.0), "counter": torch.tensor(7), "mask": torch.tensor([True, False]),
            "wide": torch.randn(3, dtype=torch.float64), "narrow": torch.randn(3, dtype=torch.float16),
        }.items():
            self.register_buffer(name, value)
        self.register_buffer("twice", self.whole)
        self.register_buffer("gone", torch.ones(2), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).pow(2).mean()


def test_every_buffer_is_in_the_folder_and_comes_back(daemon, tmp_path):
    torch.manual_seed(0)
    module = Tables()
    expected = {key: value.clone() for key, value in module.state_dict().items()}
    sharded = _on(daemon, module)
    assert_close(dict(module.state_dict()), expected, rtol=0, atol=0)
    sharded.save_pretrained(tmp_path)
    saved = safetensors.load_file(tmp_path / "model.safetensors")
    assert saved.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(saved[key], value.resolve_conj().resolve_neg()), key
    torch.manual_seed(1)
    with pt.meta_init():
        other = Tables()
    again = pt.shard(other, name="again", units=[other], socket_dir=str(daemon.socket_dir))
    for name, buffer in other.named_buffers():
        setattr(other, name, buffer.clone())  # shared memory would have the values of the last write
    again.load_pretrained(tmp_path)
    assert_close(dict(other.named_buffers(remove_duplicate=False)),
                 dict(module.named_buffers(remove_duplicate=False)), rtol=0, atol=0)
    sharded.close()
    again.close()


@pytest.mark.parametrize("value", [torch.zeros(2, dtype=torch.complex128), torch.eye(2).to_sparse()])
def test_a_buffer_that_safetensors_cannot_have_is_named(daemon, tmp_path, value):
    module = nn.Sequential(nn.Linear(4, 4))
    module.register_buffer("odd", value)
    sharded = _on(daemon, module)
    with pytest.raises(paramshard.InvalidArgumentError, match="odd"):
        sharded.save_pretrained(tmp_path)
    assert torch.equal(module.state_dict()["odd"].to_dense().cpu(), value.to_dense())
    sharded.close()


def test_extra_state_that_is_no_tensor_is_named(daemon, tmp_path):
    class Counts(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"seen": 3}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    module = Counts(4, 4)
    sharded = _on(daemon, module)
    assert module.state_dict()["_extra_state"] == {"seen": 3}
    for dtype in (None, torch.bfloat16):
        with pytest.raises(paramshard.InvalidArgumentError, match="_extra_state"):
            sharded.save_pretrained(tmp_path, dtype=dtype)
    sharded.close()


class Fused(nn.Module):
    """Saves one weight as three, and another one transposed, as programs do that read other programs' files."""

    def __init__(self, hooks: bool):
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8)
        if hooks:
            self.qkv.register_state_dict_post_hook(self._split)

    @staticmethod
    def _split(module: nn.Module, state: dict, prefix: str, metadata: dict) -> None:
        for name, part in zip("qkv", state.pop(f"{prefix}weight").chunk(3)):
            state[f"{prefix}{name}"] = part

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.qkv(x)[..., :8])


def test_hooks_of_a_program_see_values(daemon, tmp_path):
    torch.manual_seed(0)
    plain = Fused(hooks=True)
    module = copy.deepcopy(plain)
    sharded = _on(daemon, module)
    expected = plain.state_dict()
    assert_close(dict(module.state_dict()), dict(expected), rtol=0, atol=0)
    with sharded.unsharded():
        gathered = module.state_dict()
    assert_close(dict(gathered), dict(expected), rtol=0, atol=0)
    sharded.save_pretrained(tmp_path)
    assert_close(safetensors.load_file(tmp_path / "model.safetensors"), dict(expected), rtol=0, atol=0)
    later = module.register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update({f"{prefix}sum": state[f"{prefix}out.bias"].sum()}))
    assert_close(module.state_dict()["sum"], plain.out.bias.detach().sum(), rtol=0, atol=0)
    later.remove()
    sharded.close()


class Views(nn.Linear):
    """Puts parts of a gathered weight into its dictionary by itself."""

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        for index, part in enumerate(self.weight.detach().chunk(2)):
            destination[f"{prefix}part{index}"] = part
        destination[f"{prefix}turned"] = self.weight.detach().t()


def test_views_of_gathered_weights_outlive_them(daemon):
    torch.manual_seed(0)
    module = nn.Sequential(Views(6, 6), nn.Linear(6, 6))
    expected = {key: value.clone() for key, value in module.state_dict().items()}
    sharded = _on(daemon, module)
    with sharded.unsharded():
        state = module.state_dict()
    assert_close(dict(state), expected, rtol=0, atol=0)
    with pytest.raises(paramshard.FailedPreconditionError, match="0.weight"):
        module.state_dict()
    sharded.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_parameters_stay_tied(daemon, tmp_path, dtype):
    pair = Pair(daemon, GPT(tied=True).to(dtype))
    state = pair.module.state_dict()
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    for asked in (None, torch.bfloat16):
        pair.sharded.save_pretrained(tmp_path, dtype=asked)
        saved = safetensors.load_file(tmp_path / "model.safetensors")
        assert saved.keys() == pair.plain.state_dict().keys() - {"head.weight"}


@pytest.mark.parametrize("way", ["part", "whole", "method"])
def test_compiled_modules_are_saved_under_plain_names(daemon, tmp_path, way):
    torch.manual_seed(0)
    plain = GPT(layers=2)
    module = copy.deepcopy(plain)
    whole: nn.Module = module
    if way == "part":
        module.layers[0] = torch.compile(module.layers[0], backend="eager")
    elif way == "method":
        module.compile(backend="eager")
        module.layers[1].compile(backend="eager")
    else:
        whole = torch.compile(module, backend="eager")
    sharded = pt.shard(whole, name="m", units=[*module.layers, whole], socket_dir=str(daemon.socket_dir))
    pt.AdamW(whole.parameters(), lr=0.0)
    loss_of(whole, batch_of(0)).backward()
    sharded.save_pretrained(tmp_path)
    expected = plain.state_dict()
    assert_close(safetensors.load_file(tmp_path / "model.safetensors"), dict(expected), rtol=0, atol=0)
    keys = list(whole.state_dict())
    assert [key.replace("_orig_mod.", "") for key in keys] == list(expected)
    sharded.close()
    again = GPT(layers=2)
    if way == "part":
        again.layers[0] = torch.compile(again.layers[0], backend="eager")
    other = again if way != "whole" else torch.compile(again, backend="eager")
    loaded = pt.shard(other, name="again", units=[*again.layers, other], socket_dir=str(daemon.socket_dir))
    loaded.load_pretrained(tmp_path)
    loaded.open()
    assert list(other.state_dict()) == keys
    for key, value in other.state_dict().items():
        assert_close(value, expected[key.replace("_orig_mod.", "")], rtol=0, atol=0)
    loaded.close()


# --- Models of transformers ---


def _llama(tied: bool = False, dtype: torch.dtype = torch.float32) -> "transformers.LlamaForCausalLM":
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied)).to(dtype)


def _files(folder) -> dict:
    return {path.name: path.read_bytes() if path.suffix != ".json" else json.loads(path.read_text())
            for path in folder.iterdir()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("param_dtype", [None, torch.bfloat16])
def test_a_model_of_transformers_saves_the_same_files(daemon, tmp_path, tied, dtype, param_dtype):
    plain, model = (_llama(tied, dtype) for _ in range(2))
    for each in (plain, model):
        each.generation_config.temperature = 0.5
        each.generation_config.do_sample = True
    sharded = _on(daemon, model, param_dtype=param_dtype)
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "model")
    assert _files(tmp_path / "model") == _files(tmp_path / "plain")
    plain.save_pretrained(tmp_path / "plain", max_shard_size="4KB")
    model.save_pretrained(save_directory=tmp_path / "model", max_shard_size="4KB")
    assert _files(tmp_path / "model") == _files(tmp_path / "plain")
    plain.float().save_pretrained(tmp_path / "float")
    sharded.save_pretrained(tmp_path / "masters")
    assert _files(tmp_path / "masters") == _files(tmp_path / "float")
    assert model.config.dtype == plain.config.dtype
    sharded.close()


@pytest.mark.parametrize("adapted", [False, True])
def test_compiled_models_save_the_same_files(daemon, tmp_path, adapted):
    def make() -> nn.Module:
        return _adapted(_configs()["lora"]) if adapted else _llama()

    plain = torch.compile(make(), backend="eager")
    model = torch.compile(make(), backend="eager")
    sharded = _on(daemon, model)
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "model")
    sharded.save_pretrained(tmp_path / "sharded")
    assert _files(tmp_path / "model") == _files(tmp_path / "plain") == _files(tmp_path / "sharded")
    if adapted:
        model.save_pretrained(tmp_path / "part", state_dict=sharded.adapter_state_dict())
        assert _files(tmp_path / "part") == _files(tmp_path / "plain")
    sharded.close()


def test_a_rank_that_does_not_write_writes_nothing(daemon, tmp_path):
    model = _llama()
    sharded = _on(daemon, model, param_dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", False)
    assert not list((tmp_path / "saved").iterdir())
    sharded.close()


def test_models_of_the_hub_go_round(daemon, tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Model(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self, width: int = 8):
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    plain = Model(6).bfloat16()
    module = copy.deepcopy(plain)
    sharded = _on(daemon, module)
    plain.save_pretrained(tmp_path / "plain")
    module.save_pretrained(tmp_path / "module")
    assert _files(tmp_path / "module") == _files(tmp_path / "plain")
    sharded.save_pretrained(tmp_path / "sharded")
    assert_close(safetensors.load_file(tmp_path / "sharded" / "model.safetensors"), dict(plain.float().state_dict()),
                 rtol=0, atol=0)
    again = Model(6)
    other = pt.shard(again, name="again", units=[again], socket_dir=str(daemon.socket_dir))
    other.load_pretrained(tmp_path / "plain")
    other.open()
    assert_close(dict(again.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    sharded.close()
    other.close()


# --- Adapters of PEFT ---


def _configs() -> dict:
    peft = pytest.importorskip("peft")
    layers = {"target_modules": ["q_proj", "v_proj"]}
    causal = {"task_type": "CAUSAL_LM"}
    return {
        "lora": lambda: peft.LoraConfig(r=4, **layers, **causal),
        "lora with biases": lambda: peft.LoraConfig(r=4, bias="all", **layers, **causal),
        "lora of embeddings": lambda: peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"], **causal),
        "dora": lambda: peft.LoraConfig(r=4, use_dora=True, **layers, **causal),
        "modules to save": lambda: peft.LoraConfig(r=4, modules_to_save=["lm_head", "norm"], **layers, **causal),
        "tokens of lora": lambda: peft.LoraConfig(r=4, trainable_token_indices=[1, 5], **layers, **causal),
        "tokens": lambda: peft.TrainableTokensConfig(token_indices=[1, 5], target_modules=["embed_tokens"], **causal),
        "ia3": lambda: peft.IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"],
                                      **causal),
        "oft": lambda: peft.OFTConfig(oft_block_size=4, use_cayley_neumann=False, **layers, **causal),
        "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj"], **causal),
        "vera without projections": lambda: peft.VeraConfig(r=4, target_modules=["q_proj"], save_projection=False,
                                                            **causal),
        "largest of vblora": lambda: peft.VBLoRAConfig(r=2, num_vectors=6, vector_length=4, save_only_topk_weights=True,
                                                       **layers, **causal),
        "prompts": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, **causal),
        "prefixes": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, **causal),
        "encoded prompts": lambda: peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=8, **causal),
    }


def _adapted(config) -> nn.Module:
    import peft
    model = peft.get_peft_model(_llama(), config())
    torch.manual_seed(5)
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                each.normal_()  # zeros would be right without being loaded
    return model


def _saved(folder) -> tuple[dict, dict]:
    return (safetensors.load_file(folder / "adapter_model.safetensors"),
            json.loads((folder / "adapter_config.json").read_text()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["lora", "lora with biases", "lora of embeddings", "dora", "modules to save",
                                  "tokens of lora", "tokens", "ia3", "oft", "vera", "vera without projections",
                                  "largest of vblora", "prompts", "prefixes", "encoded prompts"])
def test_adapters_are_saved_as_peft_saves_them(daemon, tmp_path, kind):
    import peft
    config = _configs()[kind]
    plain = _adapted(config)
    plain.save_pretrained(tmp_path / "plain")
    model = _adapted(config)
    sharded = _on(daemon, model)
    assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    expected = _saved(tmp_path / "plain")
    model.save_pretrained(tmp_path / "model")
    sharded.save_pretrained(tmp_path / "sharded")
    model.save_pretrained(tmp_path / "part", state_dict=sharded.adapter_state_dict())
    for name in ("model", "sharded", "part"):
        values, described = _saved(tmp_path / name)
        assert_close(values, expected[0], rtol=0, atol=0)
        assert described == expected[1]
    loaded = peft.PeftModel.from_pretrained(_llama(), tmp_path / "model").state_dict()
    assert_close(dict(loaded), dict(peft.PeftModel.from_pretrained(_llama(), tmp_path / "plain").state_dict()),
                 rtol=0, atol=0)
    sharded.close()


@pytest.mark.filterwarnings("ignore")
def test_several_adapters_are_saved_each(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    models = []
    for _ in range(2):
        model = _adapted(lambda: peft.LoraConfig(r=4, target_modules=["q_proj"]))
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["v_proj"], modules_to_save=["lm_head"]))
        models.append(model)
    plain, model = models
    plain.save_pretrained(tmp_path / "plain")
    sharded = _on(daemon, model)
    model.save_pretrained(tmp_path / "part", state_dict=sharded.adapter_state_dict())
    sharded.save_pretrained(tmp_path / "sharded")
    for name in ("part", "sharded"):
        for adapter in (".", "other"):
            expected = _saved(tmp_path / "plain" / adapter)
            assert_close(_saved(tmp_path / name / adapter)[0], expected[0], rtol=0, atol=0)
    sharded.close()


def test_adapters_that_transformers_has_added(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    models = []
    for _ in range(2):
        model = _llama()
        torch.manual_seed(5)
        model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
        models.append(model)
    plain, model = models
    plain.save_pretrained(tmp_path / "plain")
    sharded = _on(daemon, model)
    sharded.save_pretrained(tmp_path / "sharded")
    model.save_pretrained(tmp_path / "model")
    for name in ("sharded", "model"):
        assert_close(_saved(tmp_path / name)[0], _saved(tmp_path / "plain")[0], rtol=0, atol=0)
    sharded.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["lora with biases", "modules to save", "tokens of lora", "vera", "prompts"])
def test_trainer_saves_adapters_as_without_a_daemon(daemon, tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    from paramshard.torch.transformers import TrainerMixin

    class Trainer(TrainerMixin, transformers.Trainer):
        pass

    config = _configs()[kind]
    arguments = transformers.TrainingArguments(str(tmp_path / "run"), report_to="none", use_cpu=DEVICE == "cpu")
    transformers.Trainer(model=_adapted(config), args=arguments).save_model(tmp_path / "plain")
    model = _adapted(config)
    sharded = _on(daemon, model)
    Trainer(model=model, args=arguments, sharded=sharded).save_model(tmp_path / "sharded")
    expected, saved = _saved(tmp_path / "plain"), _saved(tmp_path / "sharded")
    assert_close(saved[0], expected[0], rtol=0, atol=0)
    assert saved[1] == expected[1]
    assert {path.name for path in (tmp_path / "sharded").iterdir()} == {
        path.name for path in (tmp_path / "plain").iterdir()}
    sharded.close()


def test_adapters_are_loaded_into_a_sharded_model(daemon, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(9)
    trained = _adapted(lambda: peft.LoraConfig(r=4, target_modules=["q_proj"]))
    trained.save_pretrained(tmp_path)
    model = peft.get_peft_model(_llama(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    sharded = _on(daemon, model)
    model.load_adapter(tmp_path, "default")
    assert_close(dict(model.state_dict()), dict(trained.state_dict()), rtol=0, atol=0)
    sharded.close()


# --- Other ways out ---


class Shared(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).sum() * self.weights[0].sum() * self.weights[1].sum()


def test_other_packages_save_the_same(daemon, tmp_path):
    """torch.save, safetensors' save_model, accelerate and torch's distributed checkpoints take state_dict()."""
    accelerate = pytest.importorskip("accelerate")
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    torch.manual_seed(0)
    plain = Shared()
    module = copy.deepcopy(plain)
    sharded = _on(daemon, module)
    expected = dict(plain.state_dict())
    assert_close(dict(get_model_state_dict(module)), dict(get_model_state_dict(plain)), rtol=0, atol=0)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    assert_close(dict(torch.load(tmp_path / "state.pt")), expected, rtol=0, atol=0)
    for name, each in (("plain", plain), ("sharded", module)):
        (tmp_path / name).mkdir()
        safetensors.save_model(each, str(tmp_path / name / "by_safetensors.safetensors"))
        accelerate.Accelerator(cpu=DEVICE == "cpu").save_model(each, tmp_path / name)
    for file in ("by_safetensors.safetensors", "model.safetensors"):
        saved, expected_file = (safetensors.load_file(tmp_path / name / file) for name in ("sharded", "plain"))
        assert_close(saved, expected_file, rtol=0, atol=0)
    sharded.save_pretrained(tmp_path)
    assert safetensors.load_file(tmp_path / "model.safetensors").keys() == {
        key for key in expected if not key.startswith("second.")}
    sharded.close()


def test_values_are_read_in_inference_mode(daemon, tmp_path):
    """Functions that evaluate and save the best model: a dictionary made inside is valid outside."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    sharded = _on(daemon, model)
    with torch.inference_mode():
        state = model.state_dict()
        sharded.save_pretrained(tmp_path)
        with sharded.unsharded():
            assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert not any(value.is_inference() for value in state.values())
    state["weight"].mul_(2.0)
    model.load_state_dict(state)
    assert_close(sharded.read("weight"), safetensors.load_file(tmp_path / "model.safetensors")["weight"] * 2, rtol=0,
                 atol=0)


def test_a_model_is_sharded_in_inference_mode(daemon):
    torch.manual_seed(0)
    with torch.inference_mode():
        model = nn.Linear(4, 4)
        expected = model(torch.ones(1, 4))
        sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
        sharded.open()
        assert_close(model(torch.ones(1, 4, device=DEVICE)), expected)
    sharded.close()
