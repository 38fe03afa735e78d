"""Benchmarks that need no GPU do what their figures say, in a dry run."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[3] / "lab/bench"


@pytest.mark.timeout(240)
def test_a_killed_rank_loses_no_step_and_with_checkpoints_those_since_the_last(tmp_path):
    results = tmp_path / "results.json"
    ran = subprocess.run(
        [sys.executable, str(BENCH / "torch_recovery.py"), "--rounds=1", "--every=4", "--layers=1", "--width=32",
         "--arms=torchrun,spare,dcp", f"--json={results}"], capture_output=True, text=True, timeout=220)
    assert ran.returncode == 0, ran.stderr
    (ours,), (spare,), (theirs,) = (json.loads(results.read_text())[arm] for arm in ("torchrun", "spare", "dcp"))
    # Killed in step 6, of which all had finished 6, numbered from 0; the checkpoint has 4.
    assert (ours["lost_steps"], spare["lost_steps"], theirs["lost_steps"]) == (0, 0, 2)
    for times in (ours, spare, theirs):
        assert 0 < times["started"] < times["imported"] < times["resumed"] < times["stepped"] <= times["caught_up"]
    assert "| steps lost | 0 (0 to 0) | 0 (0 to 0) | 2 (2 to 2) |" in ran.stdout
