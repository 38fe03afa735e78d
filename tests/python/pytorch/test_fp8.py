"""Products of 8 bits give what plain torch gives on the same numbers, and their gradients."""

import copy
import functools
import importlib.util
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paramshard.torch import fp8

HOST = torch.device("cpu")
HAS_GPU = torch.cuda.is_available() and fp8.why_not_fp8(torch.device("cuda")) is None
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU whose products scale by blocks of 128")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                  reason="no Triton, which torch without its dependencies does not bring")


def plane_of(weight: torch.Tensor, blocks: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Data and compact scales of the plane that a daemon encodes: powers of two, or one scale for all."""
    if not blocks:
        scale = weight.abs().max() / 448
        return (weight / scale).to(torch.float8_e4m3fn), scale.reshape(1)
    squares = weight.float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128))  # [N / 128, 128, K / 128, 128]
    scales = torch.exp2(torch.ceil(torch.log2(squares.abs().amax((1, 3)) / 448)))
    return (squares / scales[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn), scales


def decoded(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if scales.numel() == 1:
        return data.float() * scales
    return data.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


def rows_of(quantized: fp8.Quantized) -> torch.Tensor:
    return quantized.data.float() * quantized.scales.t().repeat_interleave(128, 1)


def columns_of(quantized: fp8.Quantized) -> torch.Tensor:
    return (quantized.data_t.float() * quantized.scales_t.t().repeat_interleave(128, 1)).t()


class Both:
    """A Linear that computes in 8 bits, and one of plain torch that has the decoded weight."""

    def __init__(self, rows: int, columns: int, *, bias: bool = True, dtype: torch.dtype = torch.float32,
                 wgrad: str = "bf16", blocks: bool = True, values: torch.Tensor | None = None,
                 device: torch.device = HOST):
        linear = nn.Linear(columns, rows, bias=bias)
        self.plane, self.scales = plane_of(linear.weight.detach() if values is None else values, blocks)
        linear.weight.data.copy_(decoded(self.plane, self.scales))
        self.plain = copy.deepcopy(linear).to(device, dtype)
        self.linear = linear.to(device, dtype)
        self.linear.weight.untyped_storage().resize_(0)
        self.weight = fp8.Fp8Weight((rows, columns), device=device)
        fp8.compute_in_fp8(self.linear, self.weight, wgrad)
        self.fill_rows()
        self.fill_transposed()

    def fill_rows(self) -> None:
        self.weight.row_wise.write(self.plane, self.scales)

    def fill_transposed(self) -> None:
        self.weight.transposed.write(self.plane.t(), self.scales.t() if self.scales.dim() == 2 else self.scales)

    def gradients(self, module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        """Returns the output, and the gradients of the input, the weight and the bias."""
        x = x.clone().requires_grad_()
        y = module(x)
        y.backward(dy)
        got = [y.detach(), x.grad] + [parameter.grad for parameter in module.parameters()]
        module.zero_grad()
        return got


def integers(*shape: int) -> torch.Tensor:
    """Numbers up to 7, which 8 bits have with any scale that is a power of two; with a 7 in each block, they are."""
    values = torch.randint(-6, 7, shape).float()
    values.unflatten(-1, (-1, 128))[..., 0] = 7
    values.flatten(0, -2)[::128] = 7
    return values


# --- Quantization ---

@pytest.mark.parametrize("shape", [(1, 128), (128, 128), (300, 384), (256, 640)])
def test_rows_and_columns_are_those_numbers(shape):
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.logspace(-4, 4, shape[0])[:, None]
    quantized = fp8.quantize_1x128(x)
    padded = -(-shape[0] // 128) * 128
    assert [tuple(each.shape) for each in quantized] == [
        (padded, shape[1]), (shape[1] // 128, padded), (shape[1], padded), (padded // 128, shape[1])]
    for values, scales in ((rows_of(quantized), quantized.scales.t().repeat_interleave(128, 1)),
                           (columns_of(quantized), quantized.scales_t.repeat_interleave(128, 0))):
        # Half of the last of 4 bits, or of the smallest number that there is.
        assert ((values[:shape[0]] - x).abs() <= torch.maximum(x.abs() / 16, scales[:shape[0]] * 2.0**-10) * 1.0001).all()
        assert not values[shape[0]:].any()


def test_columns_are_rows_of_the_transpose():
    torch.manual_seed(1)
    x = torch.randn(256, 384, dtype=torch.bfloat16)
    both, of_transpose = fp8.quantize_1x128(x), fp8.quantize_1x128(x.t(), both=False)
    assert torch.equal(both.data_t.view(torch.uint8), of_transpose.data.view(torch.uint8))
    assert torch.equal(both.scales_t, of_transpose.scales)
    assert not of_transpose.data_t.numel() and not of_transpose.scales_t.numel()


@pytest.mark.parametrize("magnitude", [0.0, 1e-44, 1e-38, 1e-30, 1e30, 3.38e38])
def test_blocks_of_any_size_have_a_scale(magnitude):
    x = torch.full((128, 128), magnitude)
    quantized = fp8.quantize_1x128(x)
    for values, scales in ((rows_of(quantized), quantized.scales), (columns_of(quantized), quantized.scales_t)):
        assert (scales >= torch.finfo(torch.float32).tiny).all()
        assert torch.allclose(values, x, rtol=1e-6, atol=torch.finfo(torch.float32).tiny)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_block_with_a_number_that_is_not_finite_is_nan(bad):
    x = torch.ones(256, 384)
    x[3, 200] = bad
    quantized = fp8.quantize_1x128(x)
    assert rows_of(quantized).isnan().nonzero().tolist() == [[3, column] for column in range(128, 256)]
    assert columns_of(quantized).isnan().nonzero().tolist() == [[row, 200] for row in range(128)]


def test_columns_that_are_no_whole_blocks_are_refused():
    with pytest.raises(ValueError, match="want columns in multiples of 128, got 100"):
        fp8.quantize_1x128(torch.ones(4, 100))


def inputs_of_the_kernel() -> list[torch.Tensor]:
    torch.manual_seed(2)
    spread = torch.randn(300, 384) * torch.logspace(-6, 6, 384)
    odd = torch.randn(129, 128)
    odd[::7] = 0
    odd[5, 6], odd[70, 7], odd[128, 8] = float("inf"), float("nan"), 1e-42
    return [torch.randn(1, 128, dtype=torch.bfloat16), spread, spread.bfloat16(), spread.half().nan_to_num(), odd,
            torch.randn(256, 512)[:, 128:256], torch.randn(0, 256)]


def assert_same_bytes(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for each, other in zip(got, expected, strict=True):
        same = each.cpu().float().nan_to_num(nan=1e9) == other.float().nan_to_num(nan=1e9)
        assert each.shape == other.shape and same.all(), f"{(~same).sum()} of {same.numel()} differ"


@needs_triton
def test_the_kernel_gives_the_bytes_of_the_host(tmp_path):
    inputs = inputs_of_the_kernel()
    torch.save(inputs, tmp_path / "inputs")
    program = pathlib.Path(__file__).with_name("interpret_quantize.py")
    subprocess.run([sys.executable, program, tmp_path / "inputs", tmp_path / "outputs"], check=True)
    for x, (both, rows) in zip(inputs, torch.load(tmp_path / "outputs"), strict=True):
        assert_same_bytes(both, fp8.quantize_1x128(x))
        assert_same_bytes(rows, fp8.quantize_1x128(x, both=False))


@needs_gpu
def test_the_kernel_gives_the_bytes_of_the_host_on_a_gpu():
    for x in inputs_of_the_kernel():
        assert_same_bytes(fp8.quantize_1x128(x.cuda()), fp8.quantize_1x128(x))
        assert_same_bytes(fp8.quantize_1x128(x.cuda(), both=False), fp8.quantize_1x128(x, both=False))


# --- Linear ---

@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_that_8_bits_have_give_what_a_linear_gives(wgrad, dtype):
    torch.manual_seed(3)
    both = Both(256, 384, dtype=dtype, wgrad=wgrad, values=integers(256, 384) / 16)
    x, dy = integers(256, 384).to(dtype), integers(256, 256).to(dtype)
    got, expected = (both.gradients(module, x, dy) for module in (both.linear, both.plain))
    for each, other in zip(got[1:], expected[1:], strict=True):
        assert torch.equal(each, other)
    # A bias is added to a product that has been rounded.
    assert relative_error(got[0], expected[0]) < (1e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
@pytest.mark.parametrize("rows, columns", [(128, 512), (640, 128), (256, 1024)])
@pytest.mark.parametrize("shape", [(), (200,), (2, 128), (3, 5, 7)])
def test_any_input_gives_nearly_what_a_linear_gives(wgrad, rows, columns, shape):
    torch.manual_seed(4)
    both = Both(rows, columns, dtype=torch.bfloat16, wgrad=wgrad)
    x = torch.randn(*shape, columns, dtype=torch.bfloat16)
    dy = torch.randn(*shape, rows, dtype=torch.bfloat16)
    got, expected = (both.gradients(module, x, dy) for module in (both.linear, both.plain))
    for each, other in zip(got, expected, strict=True):
        assert each.shape == other.shape and each.dtype == other.dtype
        assert relative_error(each, other) < 0.05
    assert torch.equal(got[3], expected[3])
    if wgrad == "bf16":
        assert torch.equal(got[2], expected[2])


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_a_plane_with_one_scale(wgrad):
    torch.manual_seed(5)
    both = Both(256, 640, bias=False, wgrad=wgrad, blocks=False)
    x, dy = torch.randn(130, 640), torch.randn(130, 256)
    for each, other in zip(both.gradients(both.linear, x, dy), both.gradients(both.plain, x, dy), strict=True):
        assert relative_error(each, other) < 0.05


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_gradients_that_lie_otherwise(wgrad):
    torch.manual_seed(6)
    both = Both(128, 256, wgrad=wgrad)
    x = torch.randn(256, 96).t()
    for dy in (torch.ones(()).expand(96, 128), torch.randn(128, 96).t(), torch.randn(96, 1).expand(96, 128)):
        got, expected = (both.gradients(module, x, dy) for module in (both.linear, both.plain))
        assert all(relative_error(each, other) < 0.05 for each, other in zip(got, expected, strict=True))


def test_inputs_of_another_type_keep_it():
    torch.manual_seed(7)
    both = Both(128, 256, dtype=torch.bfloat16)
    x = torch.randn(4, 256, requires_grad=True)
    y = both.linear(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32 and both.linear.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_a_frozen_weight_takes_no_gradient_and_saves_nothing(wgrad):
    both = Both(128, 256, bias=False, wgrad=wgrad)
    both.linear.weight.requires_grad_(False)
    x = torch.randn(4, 256, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        y = both.linear(x)
    assert sum(each.numel() for each in saved) == 0
    y.sum().backward()
    assert x.grad is not None and both.linear.weight.grad is None


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_an_input_without_gradient_needs_no_transposed_weight(wgrad):
    both = Both(128, 256, wgrad=wgrad)
    both.weight.transposed.block.release()
    both.linear(torch.randn(4, 256)).sum().backward()
    assert both.linear.weight.grad.shape == (128, 256) and both.linear.bias.grad.shape == (128,)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation_needs_the_row_wise_weight_alone(context):
    torch.manual_seed(8)
    both = Both(128, 256)
    both.weight.transposed.block.release()
    x = torch.randn(4, 256)
    with context():
        y = both.linear(x)
    assert not y.requires_grad and relative_error(y, both.plain(x)) < 0.05


@pytest.mark.parametrize("wgrad, bytes_each", [("bf16", 4.0), ("fp8", 1 + 4 / 128)])
def test_what_is_saved_is_the_input(wgrad, bytes_each):
    both = Both(128, 256, bias=False, wgrad=wgrad)
    x = torch.randn(512, 256, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        both.linear(x)
    assert sum(each.numel() * each.element_size() for each in saved) == x.numel() * bytes_each


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_reach_every_gradient(wgrad, bad):
    both = Both(128, 256, wgrad=wgrad)
    x, dy = torch.randn(200, 256), torch.randn(200, 128)
    x[7, 9] = bad
    y, dx, dw, _ = both.gradients(both.linear, x, dy)
    assert y.isnan().nonzero()[:, 0].unique().tolist() == [7]
    assert dx.isfinite().all() and not dw[:, 9].isfinite().any()

    dy[8, 10] = bad
    _, dx, dw, db = both.gradients(both.linear, torch.randn(200, 256), dy)
    assert not dx[8].isfinite().any() and not dw[10].isfinite().any() and not db[10].isfinite()


def test_an_output_may_be_changed_in_place():
    both = Both(128, 256, bias=False)
    x = torch.randn(5, 256, requires_grad=True)
    both.linear(x).add_(1).sum().backward()
    assert x.grad is not None


def test_weights_that_are_not_gathered_are_refused():
    both = Both(128, 256)
    y = both.linear(torch.randn(4, 256, requires_grad=True))
    both.weight.release()
    with pytest.raises(RuntimeError, match=r"weight \[256, 128\] of 8 bits: the weight is not gathered"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match=r"weight \[128, 256\] of 8 bits: the weight is not gathered"):
        both.linear(torch.randn(4, 256))


def test_weights_that_were_gathered_again_are_those_of_the_forward():
    both = Both(128, 256)
    x = torch.randn(4, 256, requires_grad=True)
    for _ in range(2):
        y = both.linear(x)
        both.weight.release()
        both.fill_transposed()
        y.sum().backward()
        both.fill_rows()


def test_weights_that_have_changed_since_the_forward_are_refused():
    both = Both(128, 256)
    y = both.linear(torch.randn(4, 256, requires_grad=True))
    both.weight.renew()
    both.fill_transposed()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_derivative_is_refused():
    both = Both(128, 256)
    x = torch.randn(4, 256, requires_grad=True)
    dx, = torch.autograd.grad(both.linear(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_inputs_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"want an input of 256 columns, got \[2, 128\]"):
        Both(128, 256).linear(torch.randn(2, 128))


@needs_gpu
@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
@pytest.mark.parametrize("rows, columns", [(128, 512), (640, 128), (256, 1024)])
@pytest.mark.parametrize("shape", [(200,), (2, 128), (3, 5, 7)])
@pytest.mark.parametrize("blocks", [True, False])
def test_a_gpu_gives_what_the_host_gives(wgrad, rows, columns, shape, blocks):
    results = []
    for device in (HOST, torch.device("cuda")):
        torch.manual_seed(9)
        both = Both(rows, columns, dtype=torch.bfloat16, wgrad=wgrad, blocks=blocks, device=device)
        x = torch.randn(*shape, columns, dtype=torch.bfloat16)
        dy = torch.randn(*shape, rows, dtype=torch.bfloat16)
        results.append(both.gradients(both.linear, x.to(device), dy.to(device)))
    for host, gpu in zip(*results, strict=True):
        assert relative_error(gpu.cpu(), host) < 6e-3


# --- Modules ---

def test_a_linear_stays_a_linear():
    linear = nn.Linear(128, 128)
    names = list(linear.state_dict())
    fp8.compute_in_fp8(linear, fp8.Fp8Weight((128, 128), device=HOST))
    assert isinstance(linear, nn.Linear) and list(linear.state_dict()) == names
    assert not fp8.can_compute_in_fp8(linear)


def test_other_modules_are_refused():
    class OfSomebody(nn.Linear):
        pass

    hooked = nn.Linear(128, 128)
    hooked.forward = functools.partial(nn.Linear.forward, hooked)
    for module in (nn.Linear(100, 128), nn.Linear(128, 192), OfSomebody(128, 128), hooked, nn.LayerNorm(128)):
        assert not fp8.can_compute_in_fp8(module)
        with pytest.raises(ValueError, match="want an nn.Linear with features in multiples of 128"):
            fp8.compute_in_fp8(module, fp8.Fp8Weight((128, 128), device=HOST))
    with pytest.raises(ValueError, match="want rows in multiples of 128, got 100"):
        fp8.Fp8Weight((100, 128), device=HOST)


class Block(nn.Module):
    """Layers that share an input, as in attention."""

    def __init__(self, wgrad: str, bias: bool, device: torch.device = HOST):
        super().__init__()
        self.both = [Both(rows, columns, wgrad=wgrad, bias=bias, device=device)
                     for rows, columns in ((256, 128), (256, 128), (128, 256))]
        self.a, self.b, self.c = (each.linear for each in self.both)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.c(torch.relu(self.a(x)) * self.b(x))

    def gather_in_time(self, *, recomputes: bool) -> None:
        """The weights have memory in the block's own passes alone, as in a sharded model."""
        self._release()
        self._in_backward = (Both.fill_rows, Both.fill_transposed) if recomputes else (Both.fill_transposed,)
        self.register_forward_pre_hook(torch.compiler.disable(lambda *_: self._fill(Both.fill_rows)))
        self.register_forward_hook(torch.compiler.disable(self._after_forward))

    def _after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:  # not repeated, for a checkpoint
            self._release()
            output.register_hook(lambda _: self._fill(*self._in_backward))
            inputs[0].register_hook(lambda _: self._release())

    def _fill(self, *fills) -> None:
        for each in self.both:
            for fill in fills:
                fill(each)

    def _release(self) -> None:
        for each in self.both:
            each.weight.release()


def results_of(blocks: list[Block], run, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = x
    for block in blocks:
        y = run(block, y)
    y.square().mean().backward()
    got = [y.detach(), x.grad] + [parameter.grad for block in blocks for parameter in block.parameters()]
    for block in blocks:
        block.zero_grad()
    return got


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_a_checkpoint_gives_the_same_bits(wgrad):
    torch.manual_seed(10)
    blocks, x = [Block(wgrad, True), Block(wgrad, False)], torch.randn(2, 70, 128)
    expected = results_of(blocks, lambda block, y: block(y), x)
    for block in blocks:
        block.gather_in_time(recomputes=True)
    got = results_of(blocks, lambda block, y: checkpoint(block, y, use_reentrant=False), x)
    assert all(torch.equal(each, other) for each, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("backend, device", [("aot_eager", HOST),
                                             pytest.param("inductor", torch.device("cuda"), marks=needs_gpu)])
@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_compiled_blocks_give_the_same_and_are_compiled_once(wgrad, backend, device):
    torch.compiler.reset()
    torch.manual_seed(11)
    # More of them than torch would compile one by one.
    blocks = [Block(wgrad, bias=index % 2 == 0, device=device) for index in range(10)]
    x = torch.randn(2, 70, 128, device=device)
    expected = results_of(blocks, lambda block, y: block(y), x)
    torch._dynamo.utils.counters.clear()
    for block in blocks:
        block.gather_in_time(recomputes=False)
        block.compile(fullgraph=True, backend=backend)
    for _ in range(2):
        got = results_of(blocks, lambda block, y: block(y), x)
        for each, other in zip(got, expected, strict=True):
            assert relative_error(each, other) < (1e-5 if device == HOST else 0.02)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # with biases, and without


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_a_compiled_checkpoint_of_any_length(wgrad):
    torch.compiler.reset()
    torch.manual_seed(12)
    block = Block(wgrad, True)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for length in (70, 128, 150, 31):
        x = torch.randn(2, length, 128)
        expected = results_of([block], lambda block, y: block(y), x)
        got = results_of([block], lambda _, y: checkpoint(compiled, y, use_reentrant=False), x)
        assert all(relative_error(each, other) < 1e-5 for each, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("wgrad", ["bf16", "fp8"])
def test_compiled_layers_with_one_input_share_its_quantization(wgrad):
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    counts = []

    def count(graph, _):
        counts.append(sum(node.target is torch.ops.paramshard.quantize_1x128.default for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    block = Block(wgrad, False)
    block.compile(fullgraph=True, backend=aot_autograd(
        fw_compiler=count, bw_compiler=count, partition_fn=min_cut_rematerialization_partition))
    block(torch.randn(4, 128, requires_grad=True)).sum().backward()
    assert counts == [2, 3]  # x and the products of a and b; and gradients of three outputs
