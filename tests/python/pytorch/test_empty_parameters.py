"""Parameters without elements, with which torch trains, stay parameters of the module."""

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from models import DEVICE, Pair, assert_close, batch_of


class Partly(nn.Module):
    """A model with parameters without elements, in two places, as some configurations make it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.none = nn.Linear(0, 32)
        self.also_none = nn.Linear(0, 32, bias=False)
        self.also_none.weight = self.none.weight
        self.prompt = nn.Embedding(0, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = x[:, :0]
        x = torch.cat([self.first(x), self.prompt.weight.to(x.dtype)])
        return x + self.none(nothing) + self.also_none(nothing)

    def units(self) -> list[nn.Module]:
        return [self.first, self.none, self.prompt, self]


def _loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[:, :1].float().expand(-1, 32)).square().mean()


def test_they_are_passed_over_by_steps(daemon):
    torch.manual_seed(0)
    pair = Pair(daemon, Partly())
    pair.train(3, loss=_loss)
    for name in ("first.weight", "first.bias", "none.bias"):
        assert_close(pair.sharded.read(name), dict(pair.plain.named_parameters())[name].detach(), rtol=3e-6, atol=1e-6)
    state = pair.module.state_dict()
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in pair.plain.state_dict().items()}
    assert pair.module.also_none.weight is pair.module.none.weight
    pair.module.load_state_dict(pair.plain.state_dict())
    pair.train(1, loss=_loss)
    with daemon.client() as client:
        assert client.models()[0].commit_number == 4


def test_they_get_memory_where_a_model_has_none(daemon, tmp_path):
    with pt.meta_init():
        model = Partly()
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir), param_dtype=torch.bfloat16)
    optimizer = pt.AdamW(pt.decay_groups(model, 0.1), lr=1e-3)
    assert model.none.weight.device.type == DEVICE and model.none.weight.dtype == torch.bfloat16
    assert model.also_none.weight is model.none.weight
    _loss(model, batch_of(0)).backward()
    optimizer.step()
    assert optimizer.last_norm() > 0
    sharded.save_pretrained(tmp_path)
    sharded.close()


def test_they_are_read_from_folders_and_may_lack(daemon, tmp_path, recwarn):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file
    values = {key: torch.randn_like(value) for key, value in Partly().state_dict().items()}
    for name, keys in (("all", values), ("some", ["first.weight", "first.bias", "none.bias"])):
        folder = tmp_path / name
        folder.mkdir()
        save_file({key: values[key].clone() for key in keys}, folder / "model.safetensors")
        with pt.meta_init():
            model = Partly()
        sharded = pt.shard(model, name=name, units=[model], socket_dir=str(daemon.socket_dir))
        sharded.load_pretrained(folder)
        sharded.open()
        assert_close(sharded.read("first.weight"), values["first.weight"], rtol=0, atol=0)
        sharded.close()
    assert [str(each.message) for each in recwarn if "load_pretrained" in str(each.message)] == []


def test_one_of_another_shape_is_refused(daemon, tmp_path):
    from safetensors.torch import save_file
    values = Partly().state_dict()
    values["prompt.weight"] = torch.ones(3, 32)
    save_file({key: value.clone() for key, value in values.items()}, tmp_path / "model.safetensors")
    with pt.meta_init():
        model = Partly()
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.InvalidArgumentError, match="prompt.weight"):
        sharded.load_pretrained(tmp_path)


def test_a_module_that_has_no_others_is_refused(daemon):
    with pytest.raises(paramshard.InvalidArgumentError, match="no parameters"):
        pt.shard(nn.Linear(0, 4, bias=False), name="m", units=[], socket_dir=str(daemon.socket_dir))
