"""Updates of a quantized engine, with codes and scales as the daemon stores them.

vLLM's FP8 kernels for CPUs need AMX. This one shows that weights are loaded, not what other kernels compute.
"""

import json
import pathlib

import pytest
import safetensors.torch
import torch
from vllm.model_executor.kernels import linear
from vllm.platforms import PlatformEnum

import paramshard
import paramshard.vllm
from engines import answers, checkpoint, engine
from policy import NAME, Policy

BLOCK = 128
SIZES = dict(hidden_size=256, intermediate_size=512)
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [BLOCK, BLOCK]}


class ReferenceKernel(linear.Fp8BlockScaledMMLinearKernel):
    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability=None):
        return True, None

    @classmethod
    def can_implement(cls, config):
        return True, None

    def apply_block_scaled_mm(self, A, B, As, Bs):
        scales = Bs.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return torch.nn.functional.linear(A, (B.float() * scales).to(A.dtype))


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setitem(linear._POSSIBLE_FP8_BLOCK_KERNELS, PlatformEnum.CPU, [ReferenceKernel])


def _publish(policy: Policy, folder: pathlib.Path, seed: int, encoding: str = "FP8_BLOCK_128X128") -> str:
    """Publishes random weights with quantized layers, and writes what the daemon has made of them as a checkpoint."""
    label = policy.publish(checkpoint(folder, "llama", seed, **SIZES), seed + 1, encoding, "_proj.")
    tensors = {}
    with policy.reader().acquire() as snapshot:
        for parameter in snapshot.parameters():
            tensors[parameter.name] = torch.from_numpy(snapshot[parameter.name]).bfloat16()
            if parameter.format == "FP8_BLOCK_128X128":
                pieces = snapshot.map(parameter.name)
                codes, scales = (torch.cat([torch.from_numpy(array.copy()) for array in arrays]) for arrays in
                                 ([rows.data for rows in pieces], [rows.scales for rows in pieces]))
                tensors[parameter.name] = codes.view(torch.float8_e4m3fn)
                tensors[f"{parameter.name}_scale_inv"] = scales
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTIZATION}))
    return label


def test_a_quantized_engine_answers_as_a_fresh_one_with_the_same_codes(tmp_path, policy):
    _publish(policy, tmp_path / "0", 0)
    llm = engine(tmp_path / "0", "bfloat16")
    llm.init_weight_transfer_engine({"init_info": policy.init_info})
    seen = [answers(llm)]
    for seed in (1, 2):
        label = _publish(policy, tmp_path / str(seed), seed)
        assert paramshard.vllm.update(llm) == label
        assert (after := answers(llm)) not in seen
        assert after == answers(engine(tmp_path / str(seed), "bfloat16"))
        seen.append(after)

    # Other planes are not quantized for it.
    policy.publish(checkpoint(tmp_path / "3", "llama", 3, **SIZES))
    with pytest.raises(paramshard.FailedPreconditionError, match=f"{NAME}: .*_proj.weight: want FP8_BLOCK_128X128 of "
                       "E4M3 for a quantized engine, got FP32.*nothing was loaded"):
        paramshard.vllm.update(llm)
    assert answers(llm) == after
