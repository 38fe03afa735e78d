"""Values on their way into the daemon and out of it."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.init import orthogonal_, trunc_normal_

import paramshard
import paramshard.torch as pt
from paramshard.spec import InitialValue
from paramshard.torch.initial_values import rule_of
from paramshard.torch.memory_report import MemoryReport
from models import DEVICE, GPT, LENGTH, Pair, assert_close, batch_of, loss_of


def _shard(daemon, model: GPT, name: str = "m", **options) -> pt.ShardedModel:
    return pt.shard(model, name=name, units=model.units(), socket_dir=str(daemon.socket_dir), **options)


class Initialized(nn.Module):
    """Every way in which a parameter is filled that the daemon can repeat."""

    def __init__(self):
        super().__init__()
        self.normal = nn.Embedding(64, 32)
        self.uniform = nn.Linear(64, 64)
        self.norm = nn.RMSNorm(64)
        self.truncated = nn.Linear(64, 64, bias=False)
        nn.init.trunc_normal_(self.truncated.weight, 0.1, 0.5, -0.4, 0.4)
        self.data = nn.Linear(64, 64, bias=False)
        self.data.weight.data.normal_(mean=0.0, std=0.02)
        self.ones = nn.Parameter(torch.ones(7))
        self.full = nn.Parameter(torch.full((7,), 0.25))
        self.computed = nn.Parameter(torch.arange(7.0) / 7)
        self.register_buffer("buffer", torch.arange(4.0))


def test_meta_init_gives_the_same_distributions(daemon):
    with pt.meta_init():
        model = Initialized()
    assert all(each.is_meta for name, each in model.named_parameters() if name != "computed")
    assert model.buffer.tolist() == [0, 1, 2, 3]
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), seed=5)
    optimizer = pt.AdamW(model.parameters())
    assert optimizer.last_result() is None
    normal = sharded.read("normal.weight")
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
    uniform = sharded.read("uniform.weight")
    assert uniform.abs().max() <= 0.125 and abs(uniform.std() - 0.125 / 3**0.5) < 0.01
    truncated = sharded.read("truncated.weight")
    assert truncated.min() >= -0.4 and truncated.max() <= 0.4 and 0.0 < truncated.mean() < 0.1
    assert abs(sharded.read("data.weight").std() - 0.02) < 0.002
    assert sharded.read("norm.weight").tolist() == [1.0] * 64
    assert sharded.read("ones").tolist() == [1.0] * 7
    assert sharded.read("full").tolist() == [0.25] * 7
    assert_close(sharded.read("computed"), torch.arange(7.0) / 7, rtol=0, atol=0)


class OfNumbers(nn.Module):
    """Parameters of CLIP and LayerScale, which no operation that torch dispatches makes."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))
        self.scale = nn.ParameterList()
        for index in range(20):
            nn.init.normal_(torch.empty(1))  # is gone, and its address may come again
            self.scale.append(nn.Parameter(torch.tensor([2.5 + index])))


def test_parameters_of_numbers_have_these_from_meta_init(daemon):
    with pt.meta_init():
        model = OfNumbers()
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    pt.AdamW(model.parameters())
    assert [sharded.read(f"scale.{index}").item() for index in range(20)] == [2.5 + index for index in range(20)]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        weight = nn.Parameter(torch.empty(8, 4))
        weight.no_decay = True
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.embed.weight = self.head.weight = weight
        late = self.late = nn.Parameter(torch.empty(3))
        nn.init.ones_(late)
        late.requires_grad = False
        nn.init.normal_(weight)


def test_meta_init_keeps_what_modules_know_of_a_parameter():
    with pt.meta_init():
        model = Shared()
    assert model.embed.weight is model.head.weight and model.embed.weight.no_decay
    assert not model.late.requires_grad and all(each.is_meta for each in model.parameters())
    assert rule_of(model.late).kind == "ones" and rule_of(model.head.weight).kind == "normal"


# Each fills a tensor that nn.Linear's own initializer has filled before.
FILLS = {
    "normal": (lambda weight: nn.init.normal_(weight, std=0.5), ("normal", 0.0, 0.5)),
    "uniform": (lambda weight: nn.init.uniform_(weight, -1, 2), ("uniform", -1.0, 2.0)),
    "uniform from a number to itself": (lambda weight: nn.init.uniform_(weight, 0.5, 0.5), ("constant", 0.5)),
    "constant": (lambda weight: nn.init.constant_(weight, 0.25), ("constant", 0.25)),
    "ones": (nn.init.ones_, ("ones",)),
    "zeros": (nn.init.zeros_, ("zeros",)),
    "xavier": (nn.init.xavier_normal_, ("normal", 0.0, 0.5)),
    "kaiming": (lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="linear"), ("normal", 0.0, 0.5)),
    "truncated": (lambda weight: nn.init.trunc_normal_(weight, 0.05, 0.2, -0.4, 0.4),
                  ("truncated_normal", 0.05, 0.2, -0.4, 0.4)),
    "imported before": (lambda weight: trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
                        ("truncated_normal", 0.0, 0.02, -0.04, 0.04)),
    "bound before": (functools.partial(nn.init.trunc_normal_, std=0.5), ("truncated_normal", 0.0, 0.5, -2.0, 2.0)),
    "data": (lambda weight: nn.init.trunc_normal_(weight.data, std=0.5), ("truncated_normal", 0.0, 0.5, -2.0, 2.0)),
    "transposed": (lambda weight: nn.init.trunc_normal_(weight.T, std=0.5), ("truncated_normal", 0.0, 0.5, -2.0, 2.0)),
    "data set": (lambda weight: setattr(weight, "data", torch.empty_like(weight).normal_(0, 0.3)),
                 ("normal", 0.0, 0.3)),
    "converted": (lambda weight: setattr(weight, "data", weight.data.normal_(0, 0.3).double()), ("normal", 0.0, 0.3)),
}


def test_initializers_are_seen_through_other_modes():
    with torch.device("cpu"), pt.meta_init(), torch.device("cpu"):
        first, own = nn.Linear(4, 4), nn.Linear(4, 4)
        trunc_normal_(first.weight, std=0.5)
        orthogonal_(first.bias.view(2, 2))
        _fill_unless_on_meta(own.weight)
    assert rule_of(first.weight) == InitialValue("truncated_normal", 0.0, 0.5, -2.0, 2.0)
    assert "orthogonal_" in rule_of(first.bias).why and "_fill_unless_on_meta" in rule_of(own.weight).why
    with torch.device("cpu"):
        trunc_normal_(own.weight, std=0.25)
    with pt.meta_init():
        orthogonal_(first.weight)
        second = nn.Sequential(first, nn.Linear(4, 4))
    assert rule_of(own.weight) == InitialValue("truncated_normal", 0.0, 0.25, -2.0, 2.0)
    assert "orthogonal_" in rule_of(second[0].weight).why


@pytest.mark.parametrize("when", ["inside", "behind"])
@pytest.mark.parametrize("fill, rule", FILLS.values(), ids=FILLS)
def test_the_last_initializer_is_the_rule(when, fill, rule):
    with pt.meta_init():
        linear = nn.Linear(4, 4)
        if when == "inside":
            fill(linear.weight)
    if when == "behind":
        fill(linear.weight)
    assert linear.weight.is_meta
    assert rule_of(linear.weight) == InitialValue(*rule)


def _fill_unless_on_meta(weight: torch.Tensor) -> None:
    if not weight.is_meta:
        nn.init.normal_(weight)


def _set_data_to_half_of_it(weight: torch.Tensor) -> None:
    weight.data = weight.data * 0.5


def _zero_together(weight: torch.Tensor) -> None:
    with torch.no_grad():
        torch._foreach_zero_([weight])


# Each leaves values that no rule describes, and the name that the refusal has.
UNKNOWN = {
    "eye": (nn.init.eye_, "eye_"),
    "orthogonal": (nn.init.orthogonal_, "orthogonal_"),
    "imported before": (lambda weight: orthogonal_(weight.data), "orthogonal_"),
    "sparse": (lambda weight: nn.init.sparse_(weight, 0.5), "sparse_"),
    "dirac": (lambda weight: nn.init.dirac_(weight.view(4, 2, 2)), "dirac_"),
    "a part": (lambda weight: nn.init.trunc_normal_(weight[:2]), "trunc_normal_ writes a part"),
    "a part of ones": (lambda weight: nn.init.ones_(weight[:2]), "fill_ writes a part"),
    "two parts": (lambda weight: (nn.init.zeros_(weight[0]), nn.init.zeros_(weight[2])), "several parts"),
    "a column": (lambda weight: nn.init.zeros_(weight[:, 1]), "not contiguous"),
    "a part of what no rule describes": (lambda weight: (nn.init.orthogonal_(weight), nn.init.zeros_(weight[0])),
                                         "orthogonal_"),
    "transposed behind": (lambda weight: (nn.init.zeros_(weight[0]), setattr(weight, "data", weight.data.T)),
                          "not contiguous"),
    "changed": (lambda weight: nn.init.trunc_normal_(weight).data.mul_(2), "trunc_normal_, mul_"),
    "copied": (lambda weight: weight.data.copy_(torch.ones(4, 4)), "copy_"),
    "together": (_zero_together, "_foreach_zero_"),
    "data set": (_set_data_to_half_of_it, "data was set"),
}


@pytest.mark.parametrize("when", ["inside", "behind"])
@pytest.mark.parametrize("fill, name", UNKNOWN.values(), ids=UNKNOWN)
def test_what_meta_init_cannot_tell_is_named(daemon, when, fill, name):
    with pt.meta_init():
        linear = nn.Linear(4, 4)
        if when == "inside":
            fill(linear.weight)
    if when == "behind":
        fill(linear.weight)
    pt.shard(linear, name="m", units=[linear], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match=f"weight: .*{name}"):
        pt.AdamW(linear.parameters())


@pytest.mark.parametrize("when", ["inside", "behind"])
def test_a_copy_begins_with_equal_values_or_is_named(when):
    with pt.meta_init():
        norm, linear = nn.LayerNorm(4), nn.Linear(4, 4)
        nn.init.constant_(norm.bias, 0.25)
        pair = nn.ModuleList([norm, linear])
        if when == "inside":
            copies = copy.deepcopy(pair)
    if when == "behind":
        copies = copy.deepcopy(pair)
    assert rule_of(copies[0].weight) == InitialValue("ones")
    assert rule_of(copies[0].bias) == InitialValue("constant", 0.25)
    assert "deepcopy" in rule_of(copies[1].weight).why
    assert isinstance(rule_of(linear.weight), InitialValue)
    nn.init.normal_(copies[1].weight, 0.0, 0.5)
    assert rule_of(copies[1].weight) == InitialValue("normal", 0.0, 0.5)
    with pt.meta_init():
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    assert "deepcopy" in rule_of(encoder.layers[0].linear1.weight).why


def test_an_initializer_that_passes_over_meta_is_named(daemon):
    with pt.meta_init():
        linear = nn.Linear(4, 4)
        _fill_unless_on_meta(linear.weight)
    pt.shard(linear, name="m", units=[linear], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="weight: .*_fill_unless_on_meta"):
        pt.AdamW(linear.parameters())


class FilledBefore(nn.Module):
    """Tensors that are filled before they are parameters, in ways that no rule describes."""

    def __init__(self):
        super().__init__()
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(4, 4)))
        numbers = torch.zeros(4)
        numbers.numpy()[:] = 3
        self.numbers = nn.Parameter(numbers)
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(4, 4), std=0.5))


def test_values_that_no_rule_describes_are_kept_where_they_have_memory(daemon):
    with pt.meta_init():
        model = FilledBefore()
    assert model.truncated.is_meta and not model.orthogonal.is_meta and not model.numbers.is_meta
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    pt.AdamW(model.parameters())
    orthogonal = sharded.read("orthogonal")
    assert_close(orthogonal @ orthogonal.T, torch.eye(4), rtol=0, atol=1e-5)
    assert sharded.read("numbers").tolist() == [3.0] * 4


def test_a_model_that_is_converted_keeps_its_rules():
    with pt.meta_init():
        model = GPT()
    rules = [rule_of(each) for each in model.parameters()]
    model.to(torch.bfloat16)
    assert [rule_of(each) for each in model.parameters()] == rules
    assert all(isinstance(rule, InitialValue) for rule in rules)


def test_transformers_initializers_have_their_rules():
    transformers = pytest.importorskip("transformers")
    from transformers import initialization
    with pt.meta_init():
        linear = nn.Linear(4, 4)
        initialization.trunc_normal_(linear.weight, std=0.02)
        initialization.orthogonal_(linear.bias.view(2, 2))
        siglip = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=8,
            patch_size=4))
    assert rule_of(linear.weight) == InitialValue("truncated_normal", 0.0, 0.02, -2.0, 2.0)
    assert "orthogonal_" in rule_of(linear.bias).why
    unknown = [name for name, each in siglip.named_parameters() if not isinstance(rule_of(each), InitialValue)]
    assert not unknown


def test_rope_buffer_from_meta(daemon):
    """A model that never had memory trains, and has the same buffers as a model with memory."""
    with pt.meta_init():
        model = GPT()
    assert_close(model.positions, GPT().positions)
    sharded = _shard(daemon, model)
    optimizer = pt.AdamW(model.parameters(), lr=1e-2)
    plain = GPT().to(DEVICE)
    plain.load_state_dict(model.state_dict())
    adamw = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for step in range(3):
        for each, steps in ((model, optimizer), (plain, adamw)):
            loss_of(each, batch_of(step)).backward()
            steps.step()
            steps.zero_grad()
    for name, parameter in plain.named_parameters():
        assert_close(sharded.read(name), parameter.detach(), rtol=0, atol=1e-6)


# Each zeroes elements 8 to 11 of a weight of 4 x 4.
ZEROED = {
    "fill_": lambda weight: weight.data[2].fill_(0),
    "zero_": lambda weight: weight.detach()[2].zero_(),
    "zeros_": lambda weight: nn.init.zeros_(weight[2]),
    "constant_": lambda weight: nn.init.constant_(weight[2], 0.0),
    "twice": lambda weight: (nn.init.zeros_(weight[2]), nn.init.zeros_(weight[2])),
    "converted": lambda weight: (nn.init.zeros_(weight[2]), setattr(weight, "data", weight.data.double())),
}


@pytest.mark.parametrize("when", ["inside", "behind"])
@pytest.mark.parametrize("zero", ZEROED.values(), ids=ZEROED)
def test_a_part_that_is_zeroed_behind_an_initializer_is_a_part_of_the_rule(when, zero):
    with pt.meta_init():
        linear = nn.Linear(4, 4)
        if when == "inside":
            nn.init.normal_(linear.weight, std=0.5)
            zero(linear.weight)
    if when == "behind":
        nn.init.normal_(linear.weight, std=0.5)
        zero(linear.weight)
    assert linear.weight.is_meta
    assert rule_of(linear.weight) == InitialValue("normal", 0.0, 0.5, zero_begin=8, zero_end=12)
    nn.init.normal_(linear.weight)
    assert rule_of(linear.weight) == InitialValue("normal", 0.0, 1.0)


@pytest.mark.parametrize("format", ["FP32", "BF16"])
def test_the_padding_row_of_an_embedding_is_zero(daemon, format):
    with pt.meta_init():
        model = nn.Sequential(nn.Embedding(400, 16, padding_idx=-3), nn.EmbeddingBag(50, 8, padding_idx=1))
    sharded = pt.shard(model, name="m", units=[model], format=format, socket_dir=str(daemon.socket_dir))
    sharded.open()
    for name, row in (("0.weight", 397), ("1.weight", 1)):
        values = sharded.read(name)
        others = torch.cat([values[:row], values[row + 1:]])
        assert values[row].abs().max() == 0
        assert (others != 0).any(dim=1).all()
        assert 0.9 < others.std() < 1.1
    sharded.close()


def test_models_of_transformers_with_padding_train_from_meta(daemon):
    transformers = pytest.importorskip("transformers")
    with pt.meta_init():
        bert = transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, pad_token_id=3))
        gemma = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=16, pad_token_id=3))
    tokens = torch.randint(4, 64, (2, 8), device=DEVICE)
    for name, model in (("bert", bert), ("gemma", gemma)):
        sharded = pt.shard(model, name=name, units=[model], socket_dir=str(daemon.socket_dir))
        optimizer = pt.AdamW(model.parameters(), lr=1e-3)
        embeddings = next(name for name, each in model.named_modules() if isinstance(each, nn.Embedding))
        values = sharded.read(f"{embeddings}.weight")
        assert values[3].abs().max() == 0
        assert 0.01 < values[4:].std() < 0.03
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        assert optimizer.last_norm() > 0
        sharded.close()


def test_what_no_rule_describes_is_refused(daemon):
    with pt.meta_init():
        model = nn.Sequential(nn.Linear(8, 4))
        nn.init.ones_(model[0].weight[:2])
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="0.weight.*writes a part of it.*without meta_init"):
        pt.AdamW(model.parameters())
    sharded.close()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 4))
    sharded = pt.shard(model, name="n", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="lies on `meta`"):
        pt.AdamW(model.parameters())
    sharded.close()


def test_buffers_without_memory_are_refused(daemon):
    with torch.device("meta"):
        model = GPT()
    with pytest.raises(paramshard.InvalidArgumentError, match="positions lie on `meta`"):
        _shard(daemon, model)


def test_a_state_dict_has_full_values_and_loads_into_torch(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, GPT(tied=True))
    pair.train(3)
    state = pair.module.state_dict()
    assert list(state) == list(pair.plain.state_dict())
    other = GPT(tied=True).to(DEVICE)
    other.load_state_dict(state)
    assert_close(other(batch_of(0)), pair.plain(batch_of(0)), rtol=1e-5, atol=1e-5)


def test_a_state_dict_of_gathered_weights_outlives_them(daemon):
    pair = Pair(daemon, GPT(tied=True))
    pair.train(1)
    with pair.sharded.unsharded():
        state = pair.module.state_dict()
    for key, value in pair.module.state_dict().items():
        assert torch.equal(state[key], value), key


def test_a_state_dict_of_a_model_that_computes_in_bfloat16_has_all_bits(daemon, tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file
    torch.manual_seed(4)
    pair = Pair(daemon, GPT(), param_dtype=torch.bfloat16)
    loss_of(pair.module, batch_of(0)).backward()
    pair.optimizer.step()
    before = {name: pair.sharded.read(name) for name, _ in pair.plain.named_parameters()}
    state = pair.module.state_dict()
    pair.sharded.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    pair.module.load_state_dict(state)
    for name, value in before.items():
        for again in (state[name], saved[name], pair.sharded.read(name)):
            assert_close(again, value, rtol=0, atol=0)


def test_a_state_dict_has_the_types_of_the_module_and_a_folder_those_of_masters(daemon, tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file
    pair = Pair(daemon, GPT().to(torch.bfloat16))
    assert {value.dtype for value in pair.module.state_dict().values()} == {torch.bfloat16}
    pair.sharded.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert {saved[name].dtype for name, _ in pair.plain.named_parameters()} == {torch.float32}
    pair.sharded.save_pretrained(tmp_path, dtype=torch.bfloat16)
    assert load_file(tmp_path / "model.safetensors")["head.weight"].dtype == torch.bfloat16


def test_load_state_dict_before_and_after_the_optimizer(daemon):
    torch.manual_seed(1)
    values = [GPT().state_dict() for _ in range(2)]
    with pt.meta_init():
        model = GPT()
    sharded = _shard(daemon, model)
    model.load_state_dict(values[0])
    optimizer = pt.AdamW(model.parameters(), lr=1e-2)
    assert_close(model.state_dict(), values[0], rtol=0, atol=0)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    model.load_state_dict(values[1])
    assert_close(model.state_dict(), values[1], rtol=0, atol=0)
    loss_of(model, batch_of(0)).backward()
    optimizer.step()
    assert optimizer.last_result().commit_number == 2
    assert sharded.start_step() == 1


def test_moments_stay_when_values_are_loaded(daemon):
    torch.manual_seed(1)
    pair = Pair(daemon, GPT())
    pair.train(3)
    for model in pair.both():
        model.load_state_dict(pair.plain.state_dict())
    pair.train(2)
    pair.check()


def test_pretrained_folders_go_round(daemon, tmp_path):
    pytest.importorskip("safetensors")
    torch.manual_seed(2)
    pair = Pair(daemon, GPT(tied=True))
    pair.train(2)
    pair.sharded.save_pretrained(tmp_path)
    with pt.meta_init():
        model = GPT(tied=True)
    sharded = _shard(daemon, model, "again")
    sharded.load_pretrained(tmp_path)
    pt.AdamW(model.parameters())
    for name, parameter in pair.plain.named_parameters():
        assert_close(sharded.read(name), parameter.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("local_rank", [0, 1])
def test_persistent_buffers_of_a_folder_reach_every_rank(start, tmp_path, local_rank):
    save_file = pytest.importorskip("safetensors.torch").save_file
    daemon = start(ranks=2)
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    plain(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    with pt.meta_init():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), local_rank=local_rank)
    sharded.load_pretrained(tmp_path)
    assert_close(dict(model.named_buffers()), dict(plain.named_buffers()), rtol=0, atol=0)
    save_file(plain.state_dict() | {"1.running_var": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(paramshard.InvalidArgumentError, match=r"1.running_var.*got \[2\]"):
        sharded.load_pretrained(tmp_path)
    sharded.close()


def test_pretrained_folders_that_lack_something_are_refused(daemon, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = GPT()
    sharded = _shard(daemon, model)
    with pytest.raises(paramshard.InvalidArgumentError, match="safetensors.*got none"):
        sharded.load_pretrained(tmp_path)
    save_file({"embed.weight": torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(paramshard.NotFoundError, match="layers.0.norm1.weight"):
        sharded.load_pretrained(tmp_path)
    state = {name: value.detach() for name, value in GPT().named_parameters()} | {"embed.weight": torch.zeros(3, 3)}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(paramshard.InvalidArgumentError, match=r"embed.weight.*got \[3, 3\]"):
        sharded.load_pretrained(tmp_path)
    sharded.close()


def test_the_first_rank_that_takes_part_saves(daemon, tmp_path):
    pytest.importorskip("safetensors")
    pair = Pair(daemon, GPT())
    pair.sharded.rank = 1  # of a world that goes on without the replica of rank 0
    pair.sharded.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()


def test_a_tied_parameter_is_read_by_all_of_its_names(daemon):
    pair = Pair(daemon, GPT(tied=True))
    for name in ("embed.weight", "head.weight"):
        assert_close(pair.sharded.read(name), pair.plain.embed.weight.detach(), rtol=0, atol=0)


def test_reading_names_what_there_is_not(daemon):
    pair = Pair(daemon, GPT())
    with pytest.raises(paramshard.NotFoundError, match="nope"):
        pair.sharded.read("nope")


def test_a_model_that_is_not_trained_needs_no_optimizer(daemon):
    torch.manual_seed(3)
    plain = GPT().to(DEVICE)
    model = GPT()
    model.load_state_dict(plain.state_dict())
    with _shard(daemon, model) as sharded:
        sharded.open()
        with torch.no_grad():
            assert_close(model(batch_of(0)), plain(batch_of(0)), rtol=1e-5, atol=1e-5)


def test_modules_may_be_moved_without_moving_anything(daemon):
    pair = Pair(daemon, GPT())
    pair.module.to(DEVICE)
    pair.module.float()
    pair.train(1)
    pair.check()
    assert LENGTH == pair.module.positions.shape[0]


def test_the_memory_report_counts_state_and_planes(daemon):
    with pt.meta_init():
        model = nn.Sequential(nn.Linear(64, 64, bias=False))
    with pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir)) as sharded:
        pt.AdamW(model.parameters())
        report = sharded.memory_report()
        held = report.daemon
        assert held["master"] >= 64 * 64 * 4 and held["exp_avg"] >= 64 * 64 * 4 and held["planes"] >= 64 * 64 * 4
        assert "daemon  master" in str(report) and (report.allocated is None) == (DEVICE == "cpu")


def test_the_memory_report_is_a_table_with_long_names_too():
    report = MemoryReport(None, None, {"master": 2**20, "momentum_buffer+exp_avg": 2**20}, {})
    assert str(report).splitlines() == [
        "daemon  master                          1.0 MiB", "daemon  momentum_buffer+exp_avg         1.0 MiB"]
