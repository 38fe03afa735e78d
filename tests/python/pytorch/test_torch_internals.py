"""The private parts of torch and of transformers that the package relies on, by name."""

import inspect
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import paramshard.torch
from models import DEVICE
from paramshard.torch import torch_internals
from paramshard.torch.torch_internals import call_with_gradient, not_compiled

# A name that begins with an underscore, of torch or of one of its objects.
_PRIVATE = re.compile(r"\btorch(?:\.\w+)*\._[a-z]\w*|torch\.utils import _|"
                      r"\.(?:_cdata|_backward_hooks|_base|_is_view|_version|"
                      r"_parameters|_buffers|_modules|_non_persistent_buffers_set|"
                      r"_state_dict_hooks|_forward_hooks|_forward_pre_hooks)\b")


def test_this_torch_has_all_that_is_needed():
    assert torch_internals.missing() == []


@pytest.mark.parametrize("path", torch_internals.NEEDED)
def test_what_is_gone_is_named(path, monkeypatch):
    monkeypatch.setattr(torch_internals, "NEEDED", (f"{path}_that_is_gone",))
    assert torch_internals.missing() == [f"{path}_that_is_gone"]


def test_meta_init_imports_nothing_that_takes_seconds():
    """torch imports torch._dynamo for a dispatch mode, and for operations that it computes on `meta` in Python."""
    script = """
import sys
import torch
from torch import nn
import paramshard.torch as pt
with pt.meta_init():
    model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.TransformerEncoderLayer(4, 2), nn.Conv2d(3, 3, 3))
    nn.init.trunc_normal_(model[1].linear1.weight)
    model[1].linear2.weight.data.normal_(0.0, 0.02).mul_(2.0)
print("torch._dynamo" in sys.modules, "transformers" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "False False\n"), ended.stderr


LEAST_SECONDS = """
import time
import torch
begin = time.process_time()
import paramshard.torch as pt
imported = time.process_time()
with pt.meta_init():
    torch.nn.Linear(8, 8)
print(imported - begin, time.process_time() - imported)
"""


def test_the_import_and_the_first_module_of_meta_init_take_little():
    """The least processor time of three processes: others may be busy beside them."""
    took = [[float(seconds) for seconds in subprocess.run([sys.executable, "-c", LEAST_SECONDS], capture_output=True,
                                                          check=True, text=True, timeout=60).stdout.split()]
            for _ in range(3)]
    imported, made = (min(each) for each in zip(*took))
    assert imported <= 0.1 and made <= 0.2, took


def test_a_step_does_not_import_what_takes_a_second(daemon):
    script = f"""
import sys
import torch
from torch import nn
import paramshard.torch as pt
with pt.meta_init():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
sharded = pt.shard(model, name="m", units=list(model), socket_dir={str(daemon.socket_dir)!r})
optimizer = pt.AdamW([{{"params": model[0].parameters()}}, {{"params": model[1].parameters(), "lr": 0.1}}])
for _ in range(2):
    model(torch.randn(2, 8, device={DEVICE!r})).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("torch._dynamo" in sys.modules)
sharded.close()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr


def test_torch_compile_leaves_alone_what_is_not_compiled():
    seen = []

    def inner(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    left_alone = not_compiled(lambda x: inner(x) * 2)
    compiled = torch.compile(lambda x: left_alone(x) * 3, backend="eager")
    torch._dynamo.utils.counters.clear()
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [12.0, 12.0]
    assert seen == [False, False]
    assert inner.__code__ not in torch._dynamo.convert_frame.input_codes.seen


def test_a_gradient_hook_without_a_handle_stands_beside_others():
    leaf = torch.ones(2, requires_grad=True)
    hooked = leaf * 2
    seen = []
    hooked.register_hook(lambda gradient: seen.append("before"))
    for tensor, before in ((leaf * 2, []), (hooked, ["before"]), (leaf, [])):
        seen.clear()
        call_with_gradient(tensor, lambda gradient: seen.append(gradient.tolist()))
        handle = tensor.register_hook(lambda gradient: seen.append("after"))
        tensor.register_hook(lambda gradient: seen.append("removed")).remove()
        torch.autograd.grad((tensor * 3).sum(), leaf)
        assert seen == [*before, [3.0, 3.0], "after"]
        handle.remove()


def test_initializers_have_the_arguments_that_are_read():
    assert list(inspect.signature(nn.init.trunc_normal_).parameters)[:5] == ["tensor", "mean", "std", "a", "b"]
    for name in ("orthogonal_", "sparse_", "dirac_", "eye_", "uniform_", "normal_", "kaiming_uniform_"):
        assert "tensor" in inspect.signature(getattr(nn.init, name)).parameters, name


def test_private_parts_of_torch_are_in_one_file():
    found = []
    for source in pathlib.Path(paramshard.torch.__file__).parent.glob("*.py"):
        if source.name == "torch_internals.py":
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            code = line.partition("  #")[0]
            private = [each for each in _PRIVATE.findall(code) if f"self{each}" not in code]
            if private and not line.lstrip().startswith("#"):
                found.append(f"{source.name}:{number}: {', '.join(private)}")
    assert not found, "\n".join(found)


def test_trainer_has_the_methods_that_are_replaced():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from paramshard.torch.transformers import TrainerMixin
    own = {"_adamw_options", "_check_model", "_check_optimizer", "_log_of", "_values_to_save", "_write_checkpoint"}
    replaced = {name for name, each in vars(TrainerMixin).items() if inspect.isfunction(each)} - own
    assert {name for name in replaced if not hasattr(transformers.Trainer, name)} == set()


def test_a_tensor_subclass_is_seen_by_torch():
    """Getters and functions go by the classes of tensors: Placeholder and parameters of meta_init() rely on it."""
    asked = []

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs or {})

    tensor = torch.zeros(2).as_subclass(Asked)
    assert tensor.grad is None and tensor.is_leaf and not tensor.is_meta
    assert asked == ["__get__"] * 3
