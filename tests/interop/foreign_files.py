"""Exchanges quantized files with the programs that have their formats.

    foreign_files.py CASE PARAMSHARDCTL FOLDER

CASE is the name of a function below; FOLDER is empty. Exit code 77: a package is not installed here.
"""

import os
import pathlib
import subprocess
import sys

NOT_INSTALLED = 77
os.environ.setdefault('HF_HUB_OFFLINE', '1')
# Largest relative rounding error of E4M3: half the distance between neighboring numbers.
E4M3_ERROR = 1 / 16


def convert(ctl, source, output, *options):
    subprocess.run([ctl, 'convert', source, '-o', output, '--quiet', *options], check=True, stdout=subprocess.DEVNULL)


def tiny_llama(**changes):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    sizes = dict(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=1) | changes
    return LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16)


def assert_close(model, plain):
    values = plain.state_dict()
    for name, value in model.state_dict().items():
        want = values[name].float()
        error = (value.float() - want).abs().max() / want.abs().max()
        assert error <= E4M3_ERROR, (name, error)


def transformers_decodes_blocks(ctl, folder):
    """Also beside matrices that have other rows than whole blocks, which it would decode wrong."""
    for name, changes in {'whole': {}, 'odd': {'intermediate_size': 192}, 'tied': {'tie_word_embeddings': True}}.items():
        plain = tiny_llama(**changes)
        plain.save_pretrained(folder / name)
        convert(ctl, folder / name, folder / f'{name}-fp8', '--format', 'FP8_BLOCK_128X128')
        assert_close(type(plain).from_pretrained(folder / f'{name}-fp8'), plain)
        convert(ctl, folder / f'{name}-fp8', folder / f'{name}-back', '--dequantize', '--dtype', 'BF16')
        assert_close(type(plain).from_pretrained(folder / f'{name}-back'), plain)


def transformers_decodes_blocks_of_experts(ctl, folder):
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    torch.manual_seed(1)
    plain = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, moe_intermediate_size=128, num_experts=4,
        num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=64)).to(torch.bfloat16)
    plain.save_pretrained(folder / 'plain')
    convert(ctl, folder / 'plain', folder / 'fp8', '--format', 'FP8_BLOCK_128X128')
    assert_close(Qwen3MoeForCausalLM.from_pretrained(folder / 'fp8'), plain)


def transformers_refuses_other_formats(ctl, folder):
    plain = tiny_llama()
    plain.save_pretrained(folder / 'plain')
    for name in ('FP8_TENSOR_CURRENT', 'MXFP8', 'MXFP8_2D', 'NVFP4_2D'):
        convert(ctl, folder / 'plain', folder / name, '--format', name)
        try:
            type(plain).from_pretrained(folder / name)
        except ValueError:
            continue
        raise AssertionError(f'transformers opened {name}')


def gpt_oss_is_decoded_as_by_transformers(ctl, folder):
    import torch
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    random = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 64, 2, 16), dtype=torch.uint8, generator=random)
    scales = torch.randint(110, 140, (3, 64, 2), dtype=torch.uint8, generator=random)
    name = 'model.layers.0.mlp.experts.gate_up_proj'
    save_file({f'{name}_blocks': blocks, f'{name}_scales': scales}, folder / 'in.safetensors')
    convert(ctl, folder / 'in.safetensors', folder / 'out.safetensors', '--dequantize')
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(load_file(folder / 'out.safetensors')[name], want)


def fp8_is_decoded_as_by_transformers(ctl, folder):
    import torch
    from safetensors.torch import load_file, save_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    random = torch.Generator().manual_seed(1)
    for shape, grid in (((256, 384), (2, 3)), ((2, 256, 128), (2, 2, 1))):
        codes = torch.randn(shape, generator=random).mul(50).to(torch.float8_e4m3fn)
        scales = torch.rand(grid, generator=random)
        save_file({'a.weight': codes, 'a.weight_scale_inv': scales}, folder / 'in.safetensors')
        convert(ctl, folder / 'in.safetensors', folder / 'out.safetensors', '--dequantize')
        want = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
        assert torch.equal(load_file(folder / 'out.safetensors')['a.weight'], want), shape


def torch_reads_blocks_and_offsets(ctl, folder):
    """PyTorch reads files that torch.distributed.checkpoint has saved, with DCP_SHARDING_INFO, and `ctl` converted."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
    state = {'a.weight': torch.randn(256, 128, generator=torch.Generator().manual_seed(1)), 'norm.weight': torch.ones(8)}
    dcp.save(dict(state), storage_writer=HuggingFaceStorageWriter(str(folder / 'in'), fqn_to_index_mapping={
        'a.weight': 1, 'norm.weight': 1}), no_dist=True)
    convert(ctl, folder / 'in', folder / 'out', '--format', 'FP8_BLOCK_128X128')
    raw = {'a.weight': torch.zeros(256, 128, dtype=torch.float8_e4m3fn), 'a.weight_scale_inv': torch.zeros(2, 1),
           'norm.weight': torch.zeros(8)}
    dcp.load(raw, storage_reader=HuggingFaceStorageReader(str(folder / 'out')), no_dist=True)
    decoded = raw['a.weight'].float() * raw['a.weight_scale_inv'].repeat_interleave(128, 0)
    assert (decoded - state['a.weight']).norm() < E4M3_ERROR * state['a.weight'].norm()
    read = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(read, storage_reader=QuantizedHuggingFaceStorageReader(str(folder / 'out'), target_dtype=torch.float32),
             no_dist=True)
    assert torch.equal(read['a.weight'], decoded)
    assert torch.equal(read['norm.weight'], state['norm.weight'])


def numpy_reads_no_file_with_fp8(ctl, folder):
    import numpy
    from safetensors.numpy import load_file, save_file
    save_file({'a.weight': numpy.ones((128, 128), numpy.float32), 'b': numpy.ones(3, numpy.float32)},
              folder / 'in.safetensors')
    convert(ctl, folder / 'in.safetensors', folder / 'half.safetensors', '--format', 'FP16')
    assert load_file(folder / 'half.safetensors')['a.weight'].dtype == numpy.float16
    convert(ctl, folder / 'in.safetensors', folder / 'fp8.safetensors', '--format', 'FP8_BLOCK_128X128')
    try:
        load_file(folder / 'fp8.safetensors')
    except Exception:  # of no class of its own
        return
    raise AssertionError('safetensors.numpy opened a file with F8_E4M3: docs/operate/convert.md says that it does not')


def main():
    case, ctl, folder = sys.argv[1:]
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    globals()[case](ctl, pathlib.Path(folder))
    return 0


if __name__ == '__main__':
    sys.exit(main())
