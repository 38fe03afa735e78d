"""Settings of vLLM, which reads them when it is imported, and a model that changes."""

import os

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_OFFLINE="1",
                  VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")

from collections.abc import Iterator

import pytest

from policy import Policy


@pytest.fixture
def policy(start) -> Iterator[Policy]:
    """The model "policy" of a daemon with two ranks, which does not wait for readers."""
    with Policy(start(ranks=2, flags=("--keeper=off", "--reader-hold=0"))) as policy:
        yield policy
