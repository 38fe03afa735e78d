"""Updates of a vllm.LLM in this process."""

import re
import types

import pytest
import torch
import vllm

import paramshard
import paramshard.vllm
from engines import answers, checkpoint, engine
from policy import Policy

Tensors = dict[str, torch.Tensor]


def _init(llm: vllm.LLM, policy: Policy, **init_info) -> None:
    llm.init_weight_transfer_engine({"init_info": {**policy.init_info, **init_info}})


def _engine(llm: vllm.LLM) -> paramshard.vllm.Engine:
    [engine] = llm.collective_rpc(lambda worker: worker.weight_transfer_engine)
    return engine


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> types.SimpleNamespace:
    """An engine of its own weights, for updates that are refused, and the weights and answers of a fresh engine."""
    folder = tmp_path_factory.mktemp("llama")
    tensors = [checkpoint(folder / str(seed), "llama", seed) for seed in range(2)]
    fresh = answers(engine(folder / "1"))
    return types.SimpleNamespace(llm=engine(folder / "0"), old=tensors[0], new=tensors[1], fresh=fresh)


@pytest.fixture
def llm(llama, policy) -> vllm.LLM:
    """The engine, with the weights that it has started with."""
    _init(llama.llm, policy)
    policy.publish(llama.old)
    paramshard.vllm.update(llama.llm)
    return llama.llm


@pytest.mark.parametrize("architecture, dtype, changes", [
    ("llama", "float32", {}), ("llama", "bfloat16", {"num_key_value_heads": 4}),
    ("qwen2", "float32", {"tie_word_embeddings": True}), ("qwen2", "bfloat16", {})])
def test_an_engine_answers_as_a_fresh_one_with_the_same_weights(tmp_path, policy, architecture, dtype, changes):
    tensors = [checkpoint(tmp_path / str(seed), architecture, seed, **changes) for seed in range(3)]
    llm = engine(tmp_path / "0", dtype)
    _init(llm, policy)
    seen = [answers(llm)]
    assert llm.get_weight_version() == "default"
    for seed in (1, 2):
        label = policy.publish(tensors[seed], commit_number=seed)
        assert paramshard.vllm.update(llm, min_version=seed) == label == llm.get_weight_version()
        assert (after := answers(llm)) not in seen
        assert after == answers(engine(tmp_path / str(seed), dtype))
        seen.append(after)


def test_an_engine_follows_a_training(tmp_path, policy):
    policy.publish(checkpoint(tmp_path / "0", "llama", 0), commit_number=0)
    llm = engine(tmp_path / "0")
    _init(llm, policy)
    seen = [answers(llm)]
    for commit in (1, 2, 3):
        policy.step(learning_rate=0.1)
        assert paramshard.vllm.update(llm, min_version=commit) == policy.label
        assert (after := answers(llm)) not in seen
        seen.append(after)
    checkpoint(tmp_path / "1", "llama", 0, policy.read())
    assert after == answers(engine(tmp_path / "1"))


def test_an_engine_has_the_decoded_values_of_quantized_planes(tmp_path, policy):
    policy.publish(checkpoint(tmp_path / "0", "llama", 0), encoding="FP8_BLOCK_128X128", encoded="_proj.")
    llm = engine(tmp_path / "0", "bfloat16")
    _init(llm, policy)
    before = answers(llm)
    paramshard.vllm.update(llm)
    checkpoint(tmp_path / "1", "llama", 0, policy.read())
    assert answers(llm) == answers(engine(tmp_path / "1", "bfloat16")) != before


def test_outputs_name_the_version(llm, llama, policy):
    label = policy.publish(llama.new, commit_number=5)
    assert paramshard.vllm.update(llm) == label
    [output] = llm.generate([{"prompt_token_ids": [1, 2]}], vllm.SamplingParams(max_tokens=3, detokenize=False),
                            use_tqdm=False)
    assert [span.version for span in output.outputs[0].weight_versions] == [label]


def _without(name: str):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def _with(name: str, *shape: int):
    return lambda tensors: {**tensors, name: torch.zeros(shape)}


@pytest.mark.parametrize("change, text", [
    (_without("model.norm.weight"), "model policy has no model.norm.weight, which the engine needs"),
    (_without("model.layers.1.self_attn.k_proj.weight"), "has no model.layers.1.self_attn.k_proj.weight"),
    (_without("model.layers.0.mlp.up_proj.weight"), "has no model.layers.0.mlp.up_proj.weight"),
    (_with("model.layers.0.self_attn.q_proj.bias", 128), "the engine has no model.layers.0.self_attn.q_proj.bias of"),
    (_with("lm_head.weight", 128, 128), r"lm_head.weight: want \[100, 128\], got \[128, 128\]"),
    (_with("model.layers.1.self_attn.v_proj.weight", 128, 128), r"v_proj.weight: want \[64, 128\], got \[128, 128\]"),
    (lambda tensors: {f"policy.{name}": value for name, value in tensors.items()},
     "has no model.embed_tokens.weight, .* and 18 more"),
    (lambda tensors: {"blocks.0.w": torch.zeros(3, 3)}, "has no model.embed_tokens.weight"),
])
def test_another_model_is_refused_and_the_engine_goes_on(llm, llama, policy, change, text):
    before = answers(llm)
    policy.publish(change(llama.new), commit_number=2)
    with pytest.raises(paramshard.FailedPreconditionError, match=f"{text}.*nothing was loaded"):
        paramshard.vllm.update(llm)
    assert answers(llm) == before
    policy.publish(llama.new, commit_number=3)
    paramshard.vllm.update(llm)
    assert answers(llm) == llama.fresh


def test_names_may_have_other_prefixes(llm, llama, policy):
    _init(llm, policy, prefixes={"value_head.": None, "policy.": ""})
    policy.publish({"value_head.weight": torch.zeros(1, 128),
             **{f"policy.{name}": value for name, value in llama.new.items()}})
    paramshard.vllm.update(llm)
    assert answers(llm) == llama.fresh


def test_prefixes_that_make_two_names_one_are_refused(llm, llama, policy):
    _init(llm, policy, prefixes={"policy.": ""})
    policy.publish({**llama.new, **{f"policy.{name}": value for name, value in llama.new.items()}})
    with pytest.raises(paramshard.FailedPreconditionError, match="same name, .*nothing was loaded"):
        paramshard.vllm.update(llm)


class _Overtaken:
    """Readers whose first copies are overtaken by a step of the trainers."""

    def __init__(self, policy: Policy, times: float):
        self.copies = 0
        self._policy, self._times = policy, times
        self._reader = paramshard.Reader

    def __call__(self, *args, **options) -> paramshard.Reader:
        reader = self._reader(*args, **options)
        acquire = reader.acquire
        reader.acquire = lambda *limits: _Overtaking(acquire(*limits), self.copied)
        return reader

    def copied(self) -> None:
        self.copies += 1
        if self.copies <= self._times:
            self._policy.step()


class _Overtaking:
    def __init__(self, snapshot: paramshard.Snapshot, copied):
        self._snapshot, self._copied = snapshot, copied

    def __getattr__(self, name: str):
        return getattr(self._snapshot, name)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._snapshot.release()

    def copy_into(self, plan: paramshard.Plan) -> None:
        self._snapshot.copy_into(plan)
        self._copied()


def test_a_version_that_ends_is_given_up_for_the_next(llm, llama, policy, monkeypatch):
    monkeypatch.setattr(paramshard, "Reader", overtaken := _Overtaken(policy, 3))
    _init(llm, policy)
    first = policy.publish(llama.new, commit_number=2)
    assert paramshard.vllm.update(llm) == policy.label == first.replace(":2", ":5")
    assert overtaken.copies == 4
    assert answers(llm) == llama.fresh


def test_where_all_versions_end_the_engine_keeps_its_weights(llm, llama, policy, monkeypatch):
    before, label = answers(llm), llm.get_weight_version()
    monkeypatch.setattr(paramshard, "Reader", overtaken := _Overtaken(policy, float("inf")))
    monkeypatch.setattr(paramshard.reader, "time", types.SimpleNamespace(monotonic=lambda: 30.0 * overtaken.copies))
    _init(llm, policy)
    policy.publish(llama.new, commit_number=2)
    with pytest.raises(paramshard.AbortedError, match="every version ended .*commit.*nothing was loaded"):
        paramshard.vllm.update(llm, timeout=60)
    assert overtaken.copies == 2
    assert answers(llm) == before and llm.get_weight_version() == label


def test_a_commit_that_does_not_come_is_waited_for(llm):
    before = answers(llm)
    with pytest.raises(paramshard.DeadlineExceededError, match="commit 7.*nothing was loaded"):
        paramshard.vllm.update(llm, min_version=7, timeout=0.1)
    assert answers(llm) == before


def test_arguments_are_checked(llm):
    with pytest.raises(ValueError, match="modle"):
        llm.init_weight_transfer_engine({"init_info": {"modle": "policy"}})
    with pytest.raises(ValueError, match="commit"):
        llm.start_weight_update()
        llm.update_weights({"update_info": {"commit": 3}})
    paramshard.vllm.update(llm)


def test_an_update_needs_an_engine_that_is_initialized(llm):
    llm.collective_rpc("shutdown_weight_transfer_engine")
    with pytest.raises(paramshard.FailedPreconditionError, match="init_weight_transfer_engine before"):
        paramshard.vllm.update(llm)


def test_running_requests_are_not_mixed(llm, llama, policy):
    policy.publish(llama.new, commit_number=2)
    llm.llm_engine.add_request("running", {"prompt_token_ids": [1, 2]},
                               vllm.SamplingParams(max_tokens=2, detokenize=False))
    with pytest.raises(paramshard.FailedPreconditionError, match="requests are running"):
        paramshard.vllm.update(llm)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    paramshard.vllm.update(llm)
    assert answers(llm) == llama.fresh


@pytest.mark.parametrize("folder, name, value", [
    ("parallel_config", "tensor_parallel_size", 2), ("parallel_config", "pipeline_parallel_size", 2),
    ("parallel_config", "data_parallel_size", 2), ("model_config", "quantization", "awq"),
    ("vllm_config", "lora_config", "adapters")])
def test_engines_that_are_not_supported_are_refused(llm, policy, monkeypatch, folder, name, value):
    monkeypatch.setattr(getattr(_engine(llm), folder), name, value)
    with pytest.raises(paramshard.UnimplementedError, match=f"{name}: want (1|None|fp8), got {value}"):
        _init(llm, policy)


def test_an_engine_in_float16_is_refused(tmp_path, policy):
    checkpoint(tmp_path / "0", "llama", 0)
    llm = engine(tmp_path / "0", "float16")
    with pytest.raises(paramshard.UnimplementedError, match="embed_tokens.weight: want float32 or bfloat16, got .*16"):
        _init(llm, policy)


def test_what_was_loaded_is_compared(tmp_path, policy, monkeypatch):
    """One wrong number anywhere is named, and the engine answers no more."""
    checkpoint(tmp_path / "0", "llama", 0)
    new = checkpoint(tmp_path / "1", "llama", 1)
    llm = engine(tmp_path / "0")
    _init(llm, policy)
    label = policy.publish(new)
    load_weights = _engine(llm).model.load_weights

    def load_other_weights(weights):
        def changed():
            for name, tensor in weights:
                if name == "model.layers.1.self_attn.v_proj.weight":
                    tensor = tensor.clone()
                    tensor[-1, -1] += 1e-6
                yield name, tensor
        return load_weights(changed())

    monkeypatch.setattr(_engine(llm).model, "load_weights", load_other_weights)
    with pytest.raises(paramshard.InternalError, match=re.escape(
            f"model.layers.1.self_attn.v_proj.weight: what was loaded differs from version {label}")):
        paramshard.vllm.update(llm)
    with pytest.raises(paramshard.FailedPreconditionError, match="start a new engine"):
        paramshard.vllm.update(llm)
    with pytest.raises(Exception, match="(?i)meta"):
        answers(llm)
