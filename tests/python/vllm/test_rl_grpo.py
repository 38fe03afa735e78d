"""The example of GRPO with rollouts by vLLM."""

import json
import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[3] / "python/examples/rl_grpo.py"


@pytest.mark.timeout(400)
def test_vllm_samples_with_the_newest_weights(tmp_path: pathlib.Path):
    ran = subprocess.run([sys.executable, str(EXAMPLE), "--engine=vllm", "--steps=4", "--warm-up=2", "--kill-at=2",
                          "--prompts=4", "--group=4", "--json=figures.json"], cwd=tmp_path, capture_output=True,
                         text=True, timeout=350)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["steps"][-1]["step"] == 6 and figures["kill"]["resumed_at"] in (4, 5)
    assert figures["largest_difference"] < 1e-4
