"""Makes a folder for `paramshardctl export --like`, and opens what was exported, with the packages that people have.

    hugging_face_interop.py safetensors|transformers make|check LIKE OUT EXPECTED.JSON

`make` writes a model into LIKE, and {tensor: shape} into EXPECTED.JSON. `check` opens OUT and compares every value: the
i-th of a tensor is 1 / (i % 1009 + 1), rounded to bfloat16. Exit code 77: a package is not installed here.
"""

import json
import os
import sys

NOT_INSTALLED = 77
SHAPES = {'model.embed_tokens.weight': [24, 8], 'model.norm.weight': [8], 'lm_head.weight': [24, 8]}


def make_by_safetensors(like):
    import torch
    from safetensors.torch import save_file
    os.makedirs(like)
    save_file({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()},
              os.path.join(like, 'model.safetensors'), metadata={'format': 'pt'})
    with open(os.path.join(like, 'config.json'), 'w') as file:
        json.dump({'torch_dtype': 'bfloat16'}, file)


def make_by_transformers(like):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=24, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(like, max_shard_size='2KB')


def tensors_by_safetensors(folder):
    from safetensors.torch import load_file
    return load_file(os.path.join(folder, 'model.safetensors'))


def tensors_by_transformers(folder):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.bfloat16)
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 24), logits.shape
    return model.state_dict()


def shapes_in(folder):
    from safetensors import safe_open
    shapes = {}
    for name in os.listdir(folder):
        if name.endswith('.safetensors'):
            with safe_open(os.path.join(folder, name), framework='pt') as file:
                shapes.update({key: list(file.get_tensor(key).shape) for key in file.keys()})
    return shapes


def check(tensors, shapes):
    import torch
    for name, shape in shapes.items():
        tensor = tensors[name]
        assert list(tensor.shape) == shape, (name, tensor.shape, shape)
        index = torch.arange(tensor.numel())
        expected = (1.0 / (index % 1009 + 1).to(torch.float32)).to(torch.bfloat16).reshape(shape)
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, expected), name


def main():
    package, step, like, out, expected = sys.argv[1:]
    try:
        import safetensors
        import torch
        __import__(package)
    except ImportError:
        return NOT_INSTALLED
    if step == 'make':
        {'safetensors': make_by_safetensors, 'transformers': make_by_transformers}[package](like)
        with open(expected, 'w') as file:
            json.dump(shapes_in(like), file)
        return 0
    tensors = {'safetensors': tensors_by_safetensors, 'transformers': tensors_by_transformers}[package](out)
    with open(expected) as file:
        check(tensors, json.load(file))
    return 0


if __name__ == '__main__':
    sys.exit(main())
