"""Plain modules that follow a training."""

from __future__ import annotations

import copy
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import paramshard
import paramshard.torch as pt
from conftest import TIMEOUT
from models import DEVICE, GPT, VOCABULARY, Stack, assert_close, batch_of, loss_of

Aborted, Invalid = paramshard.AbortedError, paramshard.InvalidArgumentError
NotFound, Precondition = paramshard.NotFoundError, paramshard.FailedPreconditionError


# --- A reader without a daemon ---


HISTORY = "0" * 32


class FakeParameter:
    def __init__(self, name: str, values: torch.Tensor):
        self.name, self.shape = name, list(values.shape)


class FakePlan:
    def __init__(self, view: paramshard.View, outputs: dict[str, torch.Tensor]):
        self.outputs = outputs
        for output, tensor in zip(view.outputs, outputs.values(), strict=True):
            [part] = output.parts
            assert (output.name, part.parameter, getattr(torch, output.dtype)) == (part.parameter, output.name,
                                                                                   tensor.dtype)
            assert output.shape == tensor.shape and tensor.is_contiguous() and not tensor.requires_grad


class FakeSnapshot:
    def __init__(self, reader: FakeReader):
        self.reader, self.version, self.history, self.data = reader, reader.version, HISTORY, b""

    def __enter__(self) -> FakeSnapshot:
        return self

    def __exit__(self, *_) -> None:
        pass

    def parameters(self) -> list[FakeParameter]:
        return [FakeParameter(name, values) for name, values in self.reader.values.items()]

    def __getitem__(self, name: str):
        return self.reader.values[name].float().numpy()

    def copy_into(self, plan: FakePlan, stream: int | None = None) -> None:
        for name, output in plan.outputs.items():
            torch.from_dlpack(output).copy_(self.reader.values[name])  # autograd does not see it
            if self.reader.aborts:
                self.reader.aborts -= 1
                raise Aborted(f"copy_into: snapshot ended at {name}")

    def check(self) -> None:
        pass


class FakeReader:
    """Its model has the values of a dictionary, and its first copies are aborted after one parameter."""

    model = "m"
    read = paramshard.Reader.read

    def __init__(self, values: dict[str, torch.Tensor], aborts: int = 0):
        self.values, self.aborts = values, aborts
        self.version = 1
        self.waited_for: list[tuple[str, int]] = []

    def acquire(self, min_version: int | None = None, timeout: float = 60.0) -> FakeSnapshot:
        return FakeSnapshot(self)

    def wait_newer(self, version: int, timeout: float = 60.0, *, history: str | None = None) -> int:
        self.waited_for.append((history, version))
        self.commit()
        return self.version

    def commit(self) -> None:
        self.version += 1


def plan_of(view: paramshard.View, outputs: dict[str, torch.Tensor], real=paramshard.Plan):
    return (FakePlan if isinstance(view.parameters[0], FakeParameter) else real)(view, outputs)


@pytest.fixture(autouse=True)
def plans_of_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paramshard, "Plan", plan_of)


def values_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def check_values(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    own = dict(module.named_parameters(remove_duplicate=False))
    for name, value in values.items():
        assert torch.equal(own[name].detach().float(), value.to(own[name].dtype).float().to(own[name].device)), name


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))


def test_parameters_stay_where_they_are():
    module, source = two_layers(), two_layers()
    places = [(parameter, parameter.data_ptr()) for parameter in module.parameters()]
    reader = FakeReader(values_of(source))
    follower = pt.follow(module, reader)
    assert follower.version is None
    assert follower.update() == reader.version == follower.version
    assert [(parameter, parameter.data_ptr()) for parameter in module.parameters()] == places
    check_values(module, reader.values)
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert follower.update() is None, "the same version"
    reader.commit()
    assert follower.update() == 2 and follower.history == HISTORY
    assert follower.update(newer=True) == 3 and reader.waited_for == [(HISTORY, 2)]


@pytest.mark.parametrize("prepare", [
    lambda module: module.half(), lambda module: module.bfloat16(),
    lambda module: setattr(module[0], "weight", nn.Parameter(torch.empty(8, 8).t())),
    lambda module: module.requires_grad_(False), lambda module: torch.compile(module, backend="eager")],
    ids=["float16", "bfloat16", "not contiguous", "frozen", "compiled"])
def test_any_plain_parameters_follow(prepare):
    module = two_layers()
    prepared = prepare(module)
    reader = FakeReader(values_of(two_layers()))
    assert pt.follow(prepared or module, reader).update()
    check_values(module, reader.values)


def test_modules_made_for_inference_follow():
    with torch.inference_mode():
        module = two_layers()
        reader = FakeReader(values_of(two_layers()))
        assert pt.follow(module, reader).update()
        check_values(module, reader.values)


def test_parameters_that_were_replaced_follow():
    module, reader = two_layers(), FakeReader(values_of(two_layers()))
    follower = pt.follow(module, reader)
    follower.update()
    module.load_state_dict(values_of(two_layers()), assign=True)
    reader.commit()
    follower.update()
    check_values(module, reader.values)
    module[0] = nn.Linear(8, 8)
    assert follower.update() == reader.version == follower.version, "the same version, into other memory"
    check_values(module, reader.values)


def test_parameters_that_share_memory_are_refused():
    module = two_layers()
    module[0].weight = nn.Parameter(torch.zeros(8, 1).expand(8, 8))
    with pytest.raises(Invalid, match="0.weight has elements that share memory"):
        pt.follow(module, FakeReader(values_of(two_layers())))


def test_a_copy_that_breaks_off_is_done_again():
    module, reader = two_layers(), FakeReader(values_of(two_layers()), aborts=2)
    assert pt.follow(module, reader).update() == reader.version
    check_values(module, reader.values)
    module(torch.ones(1, 8))


def test_a_module_that_is_half_new_refuses_forwards():
    module, reader = two_layers(), FakeReader(values_of(two_layers()))
    compiled = torch.compile(module, backend="eager")
    follower = pt.follow(module, reader)
    follower.update()
    compiled(torch.ones(1, 8))
    reader.commit()
    reader.aborts = 1
    with pytest.raises(Aborted):
        follower.update(timeout=0)
    assert follower.version is None
    for call in (module, module[1], compiled):
        with pytest.raises(Precondition, match="half new"):
            call(torch.ones(1, 8))
    reader.aborts = 1
    with pytest.raises(Aborted):
        follower.update(timeout=0)
    with pytest.raises(Precondition, match="half new"):
        module(torch.ones(1, 8))
    assert follower.update() == reader.version
    for call in (module, module[1], compiled):
        call(torch.ones(1, 8))
    assert not module._forward_pre_hooks and not module[1]._forward_pre_hooks


def test_any_error_in_a_copy_poisons(monkeypatch):
    module, reader = two_layers(), FakeReader(values_of(two_layers()))
    follower = pt.follow(module, reader)
    for error in (KeyboardInterrupt, paramshard.UnavailableError):
        with monkeypatch.context() as patch, pytest.raises(error):
            def raises(*_, error=error):
                raise error
            patch.setattr(FakeSnapshot, "check", raises)
            follower.update(timeout=0)
        with pytest.raises(Precondition, match="half new"):
            module(torch.ones(1, 8))
    follower.update()
    module(torch.ones(1, 8))


def test_autograd_sees_an_update():
    module, reader = two_layers(), FakeReader(values_of(two_layers()))
    loss = module(torch.ones(1, 8)).sum()
    pt.follow(module, reader).update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- Names ---


class Tied(nn.Module):
    def __init__(self, tied: bool = True):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_a_tied_parameter_may_have_any_of_its_names(name):
    module, reader = Tied(), FakeReader({name: torch.randn(8, 4)})
    pt.follow(module, reader).update()
    assert torch.equal(module.head.weight, reader.values[name]) and module.head.weight is module.embed.weight


@pytest.mark.parametrize("module, values, error, text", [
    (lambda: Tied(), lambda: values_of(Tied(tied=False)), Invalid, "embed.weight, head.weight.*not tied"),
    (lambda: Tied(tied=False), lambda: values_of(Tied()), NotFound, "head.weight of the module not found"),
    (lambda: two_layers(), lambda: values_of(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))), Invalid,
     r"1.weight: want shape \[4, 8\].*\[5, 8\]"),
    (lambda: two_layers(), lambda: values_of(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4))), NotFound,
     "0.bias of the module not found"),
    (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4, bias=False)), lambda: values_of(two_layers()), Invalid,
     "no place for 1.bias"),
    (lambda: two_layers(), lambda: values_of(Stack(*two_layers())), NotFound, "0.weight.*instead|blocks.0.weight"),
], ids=["tied here", "tied there", "shape", "missing there", "missing here", "prefix"])
def test_another_architecture_is_named_and_nothing_is_written(module, values, error, text):
    module = module()
    before = values_of(module)
    follower = pt.follow(module, FakeReader(values()))
    with pytest.raises(error, match=text):
        follower.update()
    check_values(module, before)
    assert follower.version is None and not module._forward_pre_hooks


def test_buffers_are_named_or_kept():
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    module.register_buffer("table", torch.ones(2), persistent=False)
    reader = FakeReader(values_of(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))))
    with pytest.raises(Invalid, match=r'1.running_mean, 1.running_var.*buffers="keep"'):
        pt.follow(module, reader)
    with pytest.raises(Invalid, match="zero"):
        pt.follow(module, reader, buffers="zero")
    module[1].running_mean.fill_(3.0)
    pt.follow(module, reader, buffers="keep").update()
    assert (module[1].running_mean == 3.0).all()
    check_values(module, reader.values)


def test_modules_that_cannot_follow_are_named():
    reader = FakeReader({})
    with pytest.raises(TypeError, match="want a paramshard.Reader, got str"):
        pt.follow(two_layers(), "m")
    with pytest.raises(TypeError, match="want a module, got NoneType"):
        pt.follow(None, reader)
    with torch.device("meta"):
        with pytest.raises(Invalid, match="0.weight lies on `meta`"):
            pt.follow(two_layers(), reader)
    with pytest.raises(Invalid, match="0.weight: want float32, bfloat16 or float16"):
        pt.follow(two_layers().double(), reader)

    class Own(nn.Parameter):
        pass

    module = two_layers()
    module[0].weight = Own(torch.ones(8, 8))
    with pytest.raises(paramshard.UnimplementedError, match="0.weight is a Own"):
        pt.follow(module, reader)


# --- Adapters ---


def with_adapters(module: nn.Module, **options) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(module, peft.LoraConfig(**{"r": 2, "target_modules": ["0"], "init_lora_weights": False} |
                                                       options))


def test_the_base_of_adapters_follows_a_plain_model():
    reader = FakeReader(values_of(two_layers()))
    module = with_adapters(two_layers())
    adapters = {name: value for name, value in values_of(module).items() if "lora_" in name}
    pt.follow(module, reader).update()
    check_values(module.get_base_model()[1], {name.removeprefix("1."): value for name, value in reader.values.items()
                                              if name.startswith("1.")})
    assert torch.equal(module.get_base_model()[0].base_layer.weight, reader.values["0.weight"])
    check_values(module, adapters)
    assert adapters


def test_adapters_that_were_trained_follow():
    reader = FakeReader(values_of(with_adapters(two_layers())))
    module = with_adapters(two_layers())
    pt.follow(module, reader).update()
    check_values(module, reader.values)
    with pytest.raises(NotFound, match="0.weight.*of the module not found.*base_layer"):
        pt.follow(two_layers(), reader).update()


@pytest.mark.parametrize("options, text", [
    ({}, "merged into base_model.model.0"), ({"use_dora": True}, "default"),
    ({"modules_to_save": ["1"]}, "are both 1.weight")], ids=["merged", "dora", "modules_to_save"])
def test_adapters_that_depend_on_the_base_are_refused(options, text):
    reader = FakeReader(values_of(two_layers()))
    module = with_adapters(two_layers(), **options)
    if not options:
        module.merge_adapter()
    before = values_of(module)
    with pytest.raises((Precondition, Invalid), match=text):
        pt.follow(module, reader).update()
    check_values(module, before)


# --- With a daemon ---


def reader_of(daemon) -> paramshard.Reader:
    return paramshard.Reader("m", socket_dir=str(daemon.socket_dir))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, loss=loss_of) -> None:
    loss(model, batch_of(step)).backward()
    optimizer.step()
    optimizer.zero_grad()


def check_follows(follower: pt.Follower, module: nn.Module, sharded: pt.ShardedModel, commits: int) -> None:
    """Every parameter is what a dense forward of the trainer computes with, bit by bit."""
    with sharded.unsharded() as trained:
        values = values_of(trained)
    assert follower.update() == commits
    check_values(module, values)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("format, dtype", [("FP32", torch.float32), ("FP8_BLOCK_128X128", torch.bfloat16),
                                           ("BF16", torch.bfloat16), ("MXFP8", torch.float16),
                                           ("NVFP4_2D", torch.bfloat16)], ids=str)
def test_a_module_computes_with_what_the_trainer_computes_with(daemon, format, dtype, tied):
    torch.manual_seed(0)
    plain = GPT(tied=tied).to(dtype)
    model = GPT(tied=tied).to(DEVICE)
    sharded = pt.shard(model, name="m", units=model.units(), format=format, param_dtype=dtype,
                       socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW(model.parameters(), lr=1e-2)
    follower = pt.follow(plain, reader_of(daemon), buffers="keep")
    for step in range(4):
        train(model, optimizer, step)
        check_follows(follower, plain, sharded, step + 1)
    if dtype is torch.float32:
        assert_close(plain(batch_of(0, device="cpu")), model(batch_of(0)), rtol=1e-5, atol=1e-6)
    sharded.close()


def test_a_module_follows_a_trainer_on_another_thread(daemon):
    """Copies are made beside steps: every version that it reaches is whole."""
    steps = 40
    model, plain = nn.Linear(256, 512, bias=False), nn.Linear(256, 512, bias=False)
    nn.init.ones_(model.weight)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.SGD(model.parameters(), lr=2.0**-8)
    errors = []

    def steps_of_one() -> None:  # each takes the same off every weight
        try:
            for step in range(steps):
                model(torch.ones(1, 256, device=DEVICE)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=steps_of_one)
    thread.start()
    follower = pt.follow(plain, reader_of(daemon))
    seen = 0
    while seen < steps and not errors:
        seen = follower.update(newer=True)
        assert (plain.weight == 1.0 - seen * 2.0**-8).all()
    thread.join(TIMEOUT)
    assert not errors, errors
    sharded.close()


def test_data_of_a_step_comes_with_its_version(daemon):
    model, plain = nn.Linear(8, 4), nn.Linear(8, 4)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.SGD(model.parameters(), lr=0.5)
    follower = pt.follow(plain, reader_of(daemon))
    assert follower.data == b""

    def step() -> bytes:
        model(torch.ones(1, 8, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.last_result()
        follower.update()
        return follower.data

    optimizer.publish(b"none")
    optimizer.publish(b"step 1")
    assert step() == b"step 1"
    assert step() == b"", "of that step alone"
    optimizer.publish(b"step 3")
    with pytest.raises(Precondition):
        optimizer.step()  # no gradients
    assert step() == b"step 3"
    with pytest.raises(Invalid, match="publish: want at most 4096 bytes, got 4097"):
        optimizer.publish(b"x" * 4097)
    with pytest.raises(TypeError, match="publish: want bytes, got str"):
        optimizer.publish("step 4")
    sharded.close()


def test_data_waits_for_schedulers(daemon):
    model = nn.Linear(8, 4)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sharded.track(scheduler=scheduler)
    for data in (b"1", b"2"):
        model(torch.ones(1, 8, device=DEVICE)).sum().backward()
        optimizer.publish(data)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    optimizer.last_result()
    with reader_of(daemon).acquire() as snapshot:
        assert (snapshot.version, snapshot.data) == (2, b"2")
    sharded.close()


TRAINER = """
import pathlib, sys
import torch
import paramshard.torch as pt
from test_follow import train, values_of
from models import GPT
folder, sockets = sys.argv[1:]
torch.set_num_threads(1)
model = GPT()
sharded = pt.shard(model, name="m", units=model.units(), socket_dir=sockets, format="FP8_BLOCK_128X128",
                   param_dtype=torch.bfloat16)
optimizer = pt.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    train(model, optimizer, step)
    with sharded.unsharded():
        torch.save(values_of(model), pathlib.Path(folder, f"{step + 1}.pt"))
    print("committed", flush=True)
    if step % 2:
        sys.stdin.readline()
"""


def test_a_module_follows_another_process(daemon, tmp_path: pathlib.Path):
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path), str(daemon.socket_dir)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=os.path.dirname(__file__), env=os.environ | {
                                   "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    module = GPT().bfloat16()
    follower = pt.follow(module, reader_of(daemon), buffers="keep")
    for commits in (2, 4, 6):
        for _ in range(2):
            assert process.stdout.readline() == "committed\n", process.stderr.read()
        assert follower.update() == commits
        check_values(module, torch.load(tmp_path / f"{commits}.pt", map_location="cpu"))
        process.stdin.write("\n")
        process.stdin.flush()
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    # The model is there without its trainer.
    assert pt.follow(copy.deepcopy(module), reader_of(daemon), buffers="keep").update() == 6


def test_tensors_are_copied_into(daemon):
    model = two_layers()
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    sharded.open()
    tensors = {"0.weight": nn.Parameter(torch.zeros(8, 8, dtype=torch.bfloat16)), "1.weight": torch.zeros(4, 8)}
    with reader_of(daemon).acquire() as snapshot:
        with pytest.raises(Invalid, match="1.bias: want .*float32 or bfloat16.*torch.float16"):
            snapshot.copy_into({**tensors, "1.bias": torch.zeros(4, dtype=torch.float16)})
        assert not any(tensor.any() for tensor in tensors.values())
        snapshot.copy_into(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(tensor, torch.from_numpy(snapshot[name]).to(tensor.dtype)) and tensor.any()
        [rows] = snapshot.map("1.weight")
        assert torch.equal(torch.from_dlpack(rows.typed_data).cpu(), tensors["1.weight"])
    sharded.close()


def test_a_sharded_module_does_not_follow(daemon):
    model = two_layers()
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    with pytest.raises(paramshard.UnimplementedError, match="0.weight is a Placeholder.*not sharded"):
        pt.follow(model, reader_of(daemon))
    sharded.close()


def test_a_model_of_transformers_generates(daemon):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(DEVICE)
    plain = transformers.LlamaForCausalLM(config)
    sharded = pt.shard(model, name="m", units=[*model.model.layers, model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW(model.parameters(), lr=1e-2)
    follower = pt.follow(plain, reader_of(daemon))
    def generated(each: nn.Module) -> torch.Tensor:
        return each.generate(batch_of(9, 1, each.device)[:, :4], max_new_tokens=12, do_sample=False).cpu()

    texts = []
    for step in range(3):
        for batch in range(3):
            train(model, optimizer, batch, lambda each, tokens: each(tokens, labels=tokens).loss)
        check_follows(follower, plain, sharded, 3 * (step + 1))
        with sharded.unsharded():
            assert torch.equal(generated(plain), generated(model))
        texts.append(generated(plain).tolist())
    assert texts[0] != texts[-1]
    sharded.close()


def test_trained_adapters_of_transformers_follow(daemon):
    """Two models with the same adapters; and a base model that follows one without."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=2)

    def adapted(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return with_adapters(transformers.GPT2LMHeadModel(config), target_modules=["c_attn"], fan_in_fan_out=True)

    model, plain = adapted(0).to(DEVICE), adapted(1)
    sharded = pt.shard(model, name="m", units=[model], socket_dir=str(daemon.socket_dir))
    optimizer = pt.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    follower = pt.follow(plain, reader_of(daemon))
    for step in range(2):
        train(model, optimizer, step, lambda each, tokens: each(input_ids=tokens, labels=tokens).loss)
        check_follows(follower, plain, sharded, step + 1)
    sharded.close()
