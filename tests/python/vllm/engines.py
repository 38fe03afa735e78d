"""Engines of vLLM on the CPU, with tiny random models, and what they answer."""

import pathlib

import torch
import transformers
import vllm

PROMPTS = [[1, 2, 3], [9, 8, 7, 6], list(range(2, 39))]  # the last one has a whole block, which the prefix cache keeps
TOKENS = 24


def checkpoint(folder: pathlib.Path, architecture: str, seed: int, values: dict[str, torch.Tensor] | None = None,
               **changes) -> dict[str, torch.Tensor]:
    """Writes a model, random or of these values, and returns its parameters.

    Its vocabulary is not a multiple of 64, so that vLLM pads it.
    """
    sizes = dict(vocab_size=100, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.3, tie_word_embeddings=False)
    model_config = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[architecture]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(model_config(**{**sizes, **changes}))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, float("norm" in name), 0.3)
    if values is not None:
        model.load_state_dict(values, strict=not model.config.tie_word_embeddings)
    model.save_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def options(folder: pathlib.Path, dtype: str = "float32") -> dict:
    return dict(model=str(folder), dtype=dtype, skip_tokenizer_init=True, enforce_eager=True, max_model_len=700,
                max_num_seqs=4, disable_log_stats=True, block_size=32, num_gpu_blocks_override=32,
                weight_transfer_config={"backend": "paramshard"})


def sampling(tokens: int = TOKENS, **changes) -> vllm.SamplingParams:
    return vllm.SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True, **changes)


_kept: list[vllm.LLM] = []  # one that is collected ends the process groups of all


def engine(folder: pathlib.Path, dtype: str = "float32") -> vllm.LLM:
    """Starts an engine in this process; it stays there."""
    _kept.append(vllm.LLM(**options(folder, dtype)))
    return _kept[-1]


def answers(llm: vllm.LLM) -> list[list[int]]:
    """Greedy answers to all prompts."""
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling(), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
