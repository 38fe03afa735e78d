"""Versions of a model as folders of safetensors: `python -m paramshard.export`."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import paramshard
import paramshard.torch as pt
from conftest import TIMEOUT, Daemon, fill, spec_of
from models import DEVICE
from paramshard.export import Exporter, Folder

MODEL = "m"


@pytest.fixture
def model(daemon: Daemon):
    with daemon.client() as client, client.open_model(spec_of(MODEL)) as model:
        yield model


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that nobody has made."""
    return tmp_path / "some/exports"


def step(model: paramshard.Model, commits: int = 1) -> None:
    for _ in range(commits):
        with model.gradients("blocks.0") as gradients:
            for name in ("w", "b"):
                fill(gradients[f"blocks.0.{name}"], 1.0)
            gradients.push()
        model.commit(learning_rate=0.1).wait()


def reader_of(daemon: Daemon) -> paramshard.Reader:
    return paramshard.Reader(MODEL, socket_dir=str(daemon.socket_dir))


def exporter_of(daemon: Daemon, folder: pathlib.Path, every: int = 1, keep: int = 2,
                dtype: str = "float32") -> Exporter:
    return Exporter(reader_of(daemon), Folder(folder, keep), every, dtype, {})


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def versions_in(folder: pathlib.Path) -> list[int]:
    return sorted(int(name[1:].partition("-")[0]) for name in names_in(folder) if name != "latest")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_is_the_version(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path, dtype: str):
    exporter = exporter_of(daemon, folder, dtype=dtype)
    for version in range(2):
        export = exporter.next()
        latest = folder / "latest"
        with reader_of(daemon).acquire() as snapshot:
            about = {"model": MODEL, "history": snapshot.history, "version": version}
            assert {key: export[key] for key in about} == about == json.loads((latest / "version.json").read_text())
            values = load_file(latest / "model.safetensors")
            assert list(values) == sorted(parameter.name for parameter in snapshot.parameters())
            for name, value in values.items():
                assert value.dtype == getattr(torch, dtype)
                assert torch.equal(value, torch.from_numpy(snapshot[name]).to(value.dtype))
        assert export["path"] == str(latest.resolve())
        assert export["bytes"] == sum(each.nbytes for each in values.values())
        assert len({path.stat().st_mode for path in latest.iterdir()}) == 1, "others may read all files, or none"
        with safe_open(latest / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"} | {key: str(value) for key, value in about.items()}
        step(model)


def test_every_nth_version_is_exported(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    exporter = exporter_of(daemon, folder, every=3, keep=9)
    assert exporter.next()["version"] == 0
    step(model, 3)
    assert exporter.next()["version"] == 3
    step(model, 4)
    assert exporter.next()["version"] == 7, "6 was over"
    step(model, 2)
    assert exporter.next()["version"] == 9
    assert versions_in(folder) == [0, 3, 7, 9]


def test_an_export_begins_at_a_multiple(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    step(model, 4)
    waited = []

    def wait_newer(version: int, timeout: float, history: str) -> None:
        """Makes the version for which it waits."""
        if not waited:
            step(model, 2)
        waited.append(version)

    reader = reader_of(daemon)
    reader.wait_newer = wait_newer
    exporter = Exporter(reader, Folder(folder, 2), 3, "float32", {})
    assert exporter.next()["version"] == 6 and set(waited) == {5}


def test_the_newest_are_kept(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    exporter = exporter_of(daemon, folder, keep=2)
    for _ in range(12):  # so that names are not in the order of versions
        exporter.next()
        step(model)
    assert versions_in(folder) == [10, 11] and (folder / "latest").resolve().name.startswith("v11-")


def test_another_history_is_newer(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    step(model, 5)
    exporter = exporter_of(daemon, folder, every=5)
    first = exporter.next()
    assert first["version"] == 5
    model.close()
    with daemon.client() as client:
        client.delete_model(MODEL)
        with client.open_model(spec_of(MODEL)):
            second = exporter.next()
    assert second["version"] == 0 and second["history"] != first["history"]
    assert versions_in(folder) == [0, 5] and (folder / "latest").resolve() == pathlib.Path(second["path"])


def test_an_export_that_breaks_off_leaves_nothing(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path,
                                                  monkeypatch):
    exporter = exporter_of(daemon, folder)

    def fail(*_, **__) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("paramshard.export.save_file", fail)
        exporter.next()
    assert names_in(folder) == []
    assert exporter.next()["version"] == 0
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("paramshard.export._sync", fail)
        step(model)
        exporter.next()
    assert versions_in(folder) == [0]


def test_a_new_process_goes_on_with_the_folder(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    exporter = exporter_of(daemon, folder, keep=3)
    for _ in range(3):
        export = exporter.next()
        step(model)
    del exporter
    # The folder after a kill: before `latest` was moved, and while exports were written and removed.
    (folder / "latest").unlink()
    (folder / ".partial-latest").symlink_to("v0")
    for left in (".partial-v3-01234567", ".partial-v0-01234567"):
        (folder / left).mkdir()
        (folder / left / "model.safetensors").write_bytes(b"half")
    with paramshard.Reader(MODEL, socket_dir=str(daemon.socket_dir)).acquire() as snapshot:
        assert snapshot.version == 3
    exporter = exporter_of(daemon, folder, keep=2, every=3)
    assert versions_in(folder) == [0, 1, 2]
    assert exporter.next()["version"] == 3 and versions_in(folder) == [2, 3]
    assert export["version"] == 2
    step(model)
    del exporter
    (folder / "latest").unlink()
    exporter = exporter_of(daemon, folder, every=2)
    assert exporter.next()["version"] == 4, "3 is there"


def test_a_version_that_ends_is_given_up_for_the_next(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path,
                                                      capsys):
    ends = [paramshard.AbortedError("snapshot ended"), paramshard.UnavailableError("the daemon has died"),
            paramshard.DeadlineExceededError("timed out"), paramshard.DeadlineExceededError("timed out")]
    reader = reader_of(daemon)
    acquire = reader.acquire

    def ending(*limits: float | None) -> paramshard.Snapshot:
        if ends:
            raise ends.pop(0)
        return acquire(*limits)

    reader.acquire = ending
    exporter = Exporter(reader, Folder(folder, 2), 1, "float32", {})
    assert exporter.next()["version"] == 0
    assert capsys.readouterr().err.splitlines() == ["paramshard.export: timed out; waiting"]


def test_a_folder_has_one_writer(folder: pathlib.Path):
    first = Folder(folder, 2)
    with pytest.raises(paramshard.FailedPreconditionError, match="another process exports into it"):
        Folder(folder, 2)
    del first
    Folder(folder, 2)


def test_experts_are_split(daemon: Daemon, folder: pathlib.Path):
    normal = paramshard.InitialValue("normal", 0.0, 1.0)
    spec = paramshard.ModelSpec(MODEL, [paramshard.UnitSpec("all", [
        paramshard.ParameterSpec("mlp.experts.gate_up_proj", [2, 8, 4], initial_value=normal)])])
    with daemon.client() as client:
        client.create_model(spec)
        Exporter(reader_of(daemon), Folder(folder, 2), 1, "float32", {}, split_experts=True).next()
    values = load_file(folder / "latest/model.safetensors")
    with reader_of(daemon).acquire() as snapshot:
        joined = torch.from_numpy(snapshot["mlp.experts.gate_up_proj"])
    assert len(values) == 4 and torch.equal(values["mlp.experts.1.up_proj.weight"], joined[1, 4:])


# --- The program ---


def start(daemon: Daemon, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "paramshard.export", *map(str, arguments), "--socket-dir", str(daemon.socket_dir)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})


def test_sigterm_ends_it(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    process = start(daemon, MODEL, folder, "--json")
    try:
        export = json.loads(process.stdout.readline())  # from here on it waits for a version
        process.terminate()
        printed, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, printed, errors) == (0, "", "")
    assert export["version"] == 0 and versions_in(folder) == [0]


def test_a_kill_leaves_whole_exports(daemon: Daemon, model: paramshard.Model, folder: pathlib.Path):
    for _ in range(3):
        process = start(daemon, MODEL, folder, "--json")
        try:
            version = json.loads(process.stdout.readline())["version"]
            step(model, 3)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=TIMEOUT)
        for export in Folder(folder, 2).exports():
            assert len(load_file(export.path / "model.safetensors")) == 4
        assert version in versions_in(folder) or max(versions_in(folder)) > version
        step(model)


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_a_model_of_transformers_is_opened(daemon: Daemon, tmp_path: pathlib.Path, folder: pathlib.Path, dtype: str):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
    source = tmp_path / "source"
    transformers.LlamaForCausalLM(config).save_pretrained(source)
    about = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(about | {"quantization_config": {"quant_method": "fp8"}}))
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors.index.json").write_text("{}")
    model = transformers.LlamaForCausalLM(config).to(DEVICE)
    sharded = pt.shard(model, name=MODEL, units=[*model.model.layers, model], format="FP8_BLOCK_128X128",
                       param_dtype=torch.bfloat16, socket_dir=str(daemon.socket_dir))
    sharded.open()
    process = start(daemon, MODEL, folder, "--config", source, f"--dtype={dtype}", "--count=1", "--every=10")
    printed, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, "")
    assert re.match(r"version 0: 0\.[0-9] MB in ", printed)
    assert printed.rstrip().endswith(str((folder / "latest").resolve()))
    assert names_in(folder / "latest") == ["config.json", "generation_config.json", "model.safetensors",
                                           "tokenizer.json", "version.json"]
    exported = json.loads((folder / "latest/config.json").read_text())
    assert exported["dtype"] == "bfloat16" and exported.get("quantization_config", {}).get("quant_method") == (
        "fp8" if dtype == "fp8" else None)
    codes = [value for value in load_file(folder / "latest/model.safetensors").values() if value.dtype.itemsize == 1]
    assert len(codes) == (2 * 7 if dtype == "fp8" else 0)
    options = {"quantization_config": transformers.FineGrainedFP8Config(
        dequantize=True, modules_to_not_convert=exported["quantization_config"]["modules_to_not_convert"])
               } if dtype == "fp8" else {}
    opened = transformers.AutoModelForCausalLM.from_pretrained(folder / "latest", dtype="auto", **options)
    assert opened.dtype == torch.bfloat16
    with sharded.unsharded() as trained:
        wanted = {name: value.detach().clone().cpu() for name, value in trained.named_parameters()}
    assert {name for name, _ in opened.named_parameters()} == wanted.keys()
    for name, value in opened.named_parameters():
        assert torch.equal(value, wanted[name]), name
    sharded.close()


@pytest.mark.parametrize("arguments, text", [
    (["--every=0"], "argument --every: want a number from 1 on, got 0"),
    (["--keep=x"], "argument --keep: want a number from 1 on, got x"),
    (["--dtype=float16"], "argument --dtype: invalid choice"),
    (["--config=nowhere"], "No such file or directory: 'nowhere'"),
    (["--config=."], "--config .: config.json not found")])
def test_wrong_arguments_are_named(daemon: Daemon, tmp_path: pathlib.Path, monkeypatch, arguments: list[str],
                                  text: str):
    monkeypatch.chdir(tmp_path)
    process = start(daemon, MODEL, tmp_path / "exports", *arguments)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0 and text in errors, errors
