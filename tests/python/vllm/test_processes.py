"""Updates of engines in processes of their own, which find the backend by the entry point."""

import asyncio
import contextlib
import multiprocessing

import pytest
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

import paramshard
import paramshard.vllm
from engines import PROMPTS, answers, checkpoint, engine, options, sampling

TIMEOUT = 600.0  # seconds


class _Recorder:
    """Takes the calls of an AsyncLLM, of which one fails."""

    def __init__(self, failing: str, version: str | None):
        self.calls: list[str] = []
        self._failing, self._version = failing, version

    def __getattr__(self, name: str):
        async def call(*args, **options) -> list[str | None]:
            self.calls.append(name)
            if name == self._failing:
                raise RuntimeError(name)
            return [self._version]
        return call


@pytest.mark.parametrize("failing, version, resumed", [
    ("", "h:2", True), ("start_weight_update", "h:1", True), ("update_weights", "h:1", True),
    ("update_weights", None, False), ("finish_weight_update", "h:2", True)])
def test_an_engine_whose_weights_are_not_whole_stays_paused(failing, version, resumed):
    llm = _Recorder(failing, version)
    with pytest.raises(RuntimeError, match=failing) if failing else contextlib.nullcontext():
        assert asyncio.run(paramshard.vllm.update_async(llm)) == version
    assert llm.calls[0] == "pause_generation"
    assert (llm.calls[-1] == "resume_generation") == resumed


async def _generate(llm: AsyncLLM, prompt: list[int], identity: str, begun: asyncio.Event | None = None, **limits):
    """Returns the last output; sets `begun` with the first token."""
    output = None
    async for output in llm.generate({"prompt_token_ids": prompt},
                                     sampling(output_kind=RequestOutputKind.CUMULATIVE, **limits), identity):
        if begun is not None:
            begun.set()
    return output.outputs[0]


async def _answers(llm: AsyncLLM, round_: str) -> list[list[int]]:
    outputs = [await _generate(llm, prompt, f"{round_}-{i}") for i, prompt in enumerate(PROMPTS)]
    return [list(output.token_ids) for output in outputs]


def test_another_process_is_updated_while_it_answers(tmp_path, policy):
    old = checkpoint(tmp_path / "0", "qwen2", 0)
    new = checkpoint(tmp_path / "1", "qwen2", 1)
    fresh = engine(tmp_path / "1")

    async def run() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**options(tmp_path / "0")))
        try:
            assert multiprocessing.active_children()
            await llm.init_weight_transfer_engine(WeightTransferInitRequest(policy.init_info))
            before = await _answers(llm, "before")

            # The engine keeps its weights, and runs, if an update is refused.
            policy.publish({name: value for name, value in old.items() if "k_proj" not in name}, 1)
            with pytest.raises(Exception, match="k_proj.weight.*nothing was loaded"):
                await paramshard.vllm.update_async(llm)
            assert not await llm.is_paused()
            assert await _answers(llm, "refused") == before

            label = policy.publish(new, 2)
            assert await paramshard.vllm.update_async(llm) == label == await llm.get_weight_version()
            assert await _answers(llm, "after") == answers(fresh) != before

            # An update in the middle of an answer: the rest is what the new weights say to all tokens before.
            policy.publish(old, 3)
            begun = asyncio.Event()
            running = asyncio.create_task(_generate(llm, PROMPTS[0], "running", begun, tokens=600))
            await begun.wait()
            newest = await paramshard.vllm.update_async(llm, min_version=3)
            output = await running
            assert [span.version for span in output.weight_versions] == [label, newest]
            switch = output.weight_versions[1].start
            tokens = list(output.token_ids)
            assert 0 < switch < len(tokens)
            rest = await _generate(llm, PROMPTS[0] + tokens[:switch], "rest", tokens=len(tokens) - switch)
            assert tokens[switch:] == list(rest.token_ids)
        finally:
            llm.shutdown()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_an_llm_with_an_engine_in_another_process_is_updated(tmp_path, policy, monkeypatch):
    checkpoint(tmp_path / "0", "llama", 0)
    label = policy.publish(checkpoint(tmp_path / "1", "llama", 1))
    fresh = answers(engine(tmp_path / "1"))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    llm = vllm.LLM(**options(tmp_path / "0"))
    try:
        assert multiprocessing.active_children()
        llm.init_weight_transfer_engine({"init_info": policy.init_info})
        before = answers(llm)
        assert paramshard.vllm.update(llm) == label == llm.get_weight_version()
        assert answers(llm) == fresh != before
    finally:
        llm.llm_engine.engine_core.shutdown()
