"""Settings of vLLM, which reads them when it is imported, and a model that changes."""

import os

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_OFFLINE="1",
                  VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")

import pathlib
from collections.abc import Callable

import pytest
import torch

import paramshard
import published


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> type[published.Reader]:
    """Class of the readers in this process, and by another plugin of vLLM in those that it starts."""
    package = tmp_path_factory.mktemp("plugin") / "published-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: published\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[vllm.general_plugins]\npublished = published:install\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(paramshard, "Reader", published.Reader, raising=False)
    return published.Reader


@pytest.fixture
def publish(reader, tmp_path: pathlib.Path) -> Callable[[dict[str, torch.Tensor], int], str]:
    """Makes a version of the model "policy" the newest; its socket_dir is tmp_path."""
    return lambda tensors, commit_number=1: published.publish(tmp_path / "policy", tensors, commit_number)
