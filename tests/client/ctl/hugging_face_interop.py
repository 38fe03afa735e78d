"""Makes a folder for `paramshardctl export --like`, and opens what was exported, with the packages that people have.

    hugging_face_interop.py safetensors|transformers make|check LIKE OUT EXPECTED.JSON

`make` writes a model into LIKE, and {tensor: shape} into EXPECTED.JSON. `check` opens OUT and compares every value: the
i-th of a tensor is 1 / (i % 1009 + 1), rounded to the model's type. `safetensors` needs numpy beside it and has float16,
`transformers` needs PyTorch and has bfloat16. Exit code 77: a package is not installed here.
"""

import json
import math
import os
import sys

NOT_INSTALLED = 77
SHAPES = {'model.embed_tokens.weight': [24, 8], 'model.norm.weight': [8], 'lm_head.weight': [24, 8]}


def make_by_safetensors(like):
    import numpy
    from safetensors.numpy import save_file
    os.makedirs(like)
    save_file({name: numpy.zeros(shape, numpy.float16) for name, shape in SHAPES.items()},
              os.path.join(like, 'model.safetensors'), metadata={'format': 'pt'})
    with open(os.path.join(like, 'config.json'), 'w') as file:
        json.dump({'torch_dtype': 'float16'}, file)


def make_by_transformers(like):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=24, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(like, max_shard_size='2KB')


def shapes_in(folder):
    from safetensors import safe_open
    shapes = {}
    for name in os.listdir(folder):
        if name.endswith('.safetensors'):
            with safe_open(os.path.join(folder, name), framework='np') as file:
                shapes.update({key: list(file.get_slice(key).get_shape()) for key in file.keys()})
    return shapes


def values_of(shape):
    import numpy
    return numpy.float32(1) / (numpy.arange(math.prod(shape)) % 1009 + 1).astype(numpy.float32).reshape(shape)


def check_by_safetensors(folder, shapes):
    import numpy
    from safetensors.numpy import load_file
    tensors = load_file(os.path.join(folder, 'model.safetensors'))
    for name, shape in shapes.items():
        tensor = tensors[name]
        assert tensor.dtype == numpy.float16, (name, tensor.dtype)
        assert numpy.array_equal(tensor, values_of(shape).astype(numpy.float16)), name


def check_by_transformers(folder, shapes):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 24), logits.shape
    tensors = model.state_dict()
    for name, shape in shapes.items():
        tensor = tensors[name]
        assert tensor.dtype == torch.bfloat16, (name, tensor.dtype)
        assert torch.equal(tensor, torch.from_numpy(values_of(shape)).to(torch.bfloat16)), name


def main():
    package, step, like, out, expected = sys.argv[1:]
    try:
        import numpy  # noqa: F401
        import safetensors  # noqa: F401
        if package == 'transformers':
            import torch  # noqa: F401
            import transformers  # noqa: F401
    except ImportError as error:
        print(error)
        return NOT_INSTALLED
    if step == 'make':
        {'safetensors': make_by_safetensors, 'transformers': make_by_transformers}[package](like)
        with open(expected, 'w') as file:
            json.dump(shapes_in(like), file)
        return 0
    with open(expected) as file:
        shapes = json.load(file)
    {'safetensors': check_by_safetensors, 'transformers': check_by_transformers}[package](out, shapes)
    return 0


if __name__ == '__main__':
    sys.exit(main())
