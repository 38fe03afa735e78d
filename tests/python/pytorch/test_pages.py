"""Code and commands of the documentation, run as they stand."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def _blocks(page: str = "pytorch.md") -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/train" / page).read_text(), re.DOTALL)


def test_the_quick_start_runs(tmp_path):
    script = tmp_path / "hello.py"
    script.write_text(_blocks()[0])
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    steps = [line.split() for line in ran.stdout.splitlines()]
    assert [int(step) for step, _ in steps] == list(range(20)) and all(float(norm) > 0 for _, norm in steps)


def test_the_training_that_is_resumed_runs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_blocks("recovery.md")[0])
    for launcher in (["paramshard.run", "--standalone", "--nproc-per-node=2"], []):
        ran = subprocess.run([sys.executable, *(["-m"] if launcher else []), *launcher, str(script)],
                             capture_output=True, text=True, timeout=100)
        assert ran.returncode == 0, ran.stderr


def test_the_training_of_experts_runs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_blocks("experts.md")[0])
    ran = subprocess.run([sys.executable, "-m", "paramshard.run", "--standalone", "--nproc-per-node=2", str(script)],
                         capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


def test_the_evaluation_follows_the_training(daemon, tmp_path):
    """Both blocks, each in a process, with data; and what is read without a module, and by views."""
    train, evaluate, with_data, *reads = _blocks("rollouts.md")
    step = "    optimizer.step()\n"
    assert step in train and step.lstrip() in with_data
    (tmp_path / "train.py").write_text(train.replace(step, textwrap.indent(with_data, "    ")))
    (tmp_path / "evaluate.py").write_text(evaluate + "".join(reads))
    processes = [subprocess.Popen([sys.executable, str(tmp_path / script)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=os.environ | {
                                      "OMP_NUM_THREADS": "1", "PARAMSHARD_SOCKET_DIR": str(daemon.socket_dir)})
                 for script in ("evaluate.py", "train.py")]
    try:
        (printed, errors), (_, errors_of_training) = (process.communicate(timeout=100) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], errors + errors_of_training
    *evaluated, read = printed.splitlines()
    commits = [int(line.split()[0]) for line in evaluated]
    assert commits == sorted(set(commits)) and commits[0] >= 0 and commits[-1] == 20, printed
    assert read == """20 b'{"samples": 4096}'""", printed


def test_the_training_of_transformers_runs(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2)).save_pretrained(tmp_path / "llama-folder")
    script = tmp_path / "finetune.py"
    script.write_text(next(block for block in _blocks() if "TrainerMixin" in block))
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
                         capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    assert "'train_loss'" in ran.stdout


TEXT = ("--text", str(ROOT / "python/examples/data/persuasion.txt.gz"))


def _run_example(folder: pathlib.Path, script: str, *arguments: str, timeout: float = 110) -> str:
    """Returns the output of a command. With one thread: more threads wait minutes for each other on a busy machine."""
    command = [sys.executable, str(ROOT / "python/examples" / script), *arguments]
    ran = subprocess.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                         timeout=timeout)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _check_progress(printed: str, lines: int) -> list[float]:
    """Returns the losses."""
    line = r"^step \d+: loss ([0-9.]+), gradient norm [0-9.]+, \d+ tokens/s, \d+ MB gathered$"
    progress = re.findall(line, printed, re.MULTILINE)
    assert len(progress) == lines, printed
    return [float(loss) for loss in progress]


def _check_plot(folder: pathlib.Path, printed: str, name: str = "losses.png") -> None:
    if importlib.util.find_spec("matplotlib") is None:
        assert f"{name} is not drawn: install matplotlib" in printed
    else:
        assert (folder / name).read_bytes().startswith(b"\x89PNG") and f"drawn in {name}" in printed


def test_train_gpt_trains_and_draws(tmp_path):
    printed = _run_example(tmp_path, "train_gpt.py", *TEXT, "--steps=20", "--report-every=10", "--layers=2",
                           "--width=64")
    losses = _check_progress(printed, lines=2)
    assert losses[1] < losses[0] < 5
    _check_plot(tmp_path, printed)


def test_ranks_of_train_gpt_draw_batches_of_their_own(tmp_path):
    spec = importlib.util.spec_from_file_location("train_gpt", ROOT / "python/examples/train_gpt.py")
    train_gpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train_gpt)
    (tmp_path / "text").write_text("".join(chr(33 + 7 * each % 90) for each in range(1000)))
    drawn = []
    for rank in (0, 1, 0):
        text = train_gpt.Text(tmp_path / "text", 16)
        text.seed(rank)
        drawn.append(text.batch(4)[0].tolist())
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.timeout(240)
def test_finetune_hf_trains_weights_and_adapters(tmp_path):
    """The second run trains adapters on what the first has saved."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    small = (*TEXT, "--steps=20", "--report-every=10", "--batch=4", "--length=64")
    printed = _run_example(tmp_path, "finetune_hf.py", "tiny", "--random-init", "--out=whole", *small)
    losses = _check_progress(printed, lines=2)
    assert losses[1] < losses[0] < 6
    _check_plot(tmp_path, printed)
    printed = _run_example(tmp_path, "finetune_hf.py", "whole", "--lora", "--out=adapter", "--format=FP32", *small)
    assert _check_progress(printed, lines=2)[0] < losses[0]
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert any("lora_B" in name and value.abs().sum() > 0 for name, value in adapted.state_dict().items())


@pytest.mark.timeout(330)
def test_rl_grpo_goes_on_when_its_trainer_is_killed(tmp_path):
    pytest.importorskip("transformers")
    printed = _run_example(tmp_path, "rl_grpo.py", "--steps=8", "--warm-up=4", "--kill-at=4", "--width=32",
                           "--prompts=4", "--group=4", "--report-every=0", "--json=figures.json",
                           timeout=300)  # four processes import transformers
    figures = json.loads((tmp_path / "figures.json").read_text())
    kill, steps = figures["kill"], [each["step"] for each in figures["steps"]]
    assert kill["killed_at"] == 8 and kill["resumed_at"] in (8, 9)  # 9: it was killed after the commit
    assert steps == [*range(5, 9), *range(9 if 9 in steps else 10, 13)] and (9 in steps or kill["resumed_at"] == 9)
    assert all(0 <= each["step"] - 1 - each["version"] <= 4 for each in figures["steps"])
    assert figures["largest_difference"] < 1e-4
    line = r"^step \d+: reward [01].\d+, rollouts of version \d+, KL \S+$"
    assert len(re.findall(line, printed, re.MULTILINE)) == len(steps)
    _check_plot(tmp_path, printed, "rewards.png")
