"""What the pages say is run as it stands."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]


def test_the_quick_start_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/pytorch.md").read_text(), re.DOTALL)
    script = tmp_path / "hello.py"
    script.write_text(blocks[0])
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    steps = [line.split() for line in ran.stdout.splitlines()]
    assert [int(step) for step, _ in steps] == list(range(20)) and all(float(norm) > 0 for _, norm in steps)


def test_the_example_trains(tmp_path):
    text = ROOT / "client/examples/data/persuasion.txt.gz"
    ran = subprocess.run([sys.executable, str(ROOT / "client/python/examples/train_gpt.py"), "--text", str(text),
                          "--steps=20", "--report-every=10", "--layers=2", "--width=64"],
                         capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", ran.stdout)]
    assert len(losses) == 2 and losses[1] < losses[0] < 5
