"""python -m paramshard.export MODEL FOLDER --every N

Exports versions of a model while it trains, as folders of safetensors, for programs that only read files.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import paramshard
from paramshard import views

_FILE = "model.safetensors"
_VERSION = "version.json"  # of an export
_LATEST = "latest"
_PARTIAL = ".partial"  # prefix of folders that are being written or removed
_WAIT = 10.0  # seconds of a wait, after which it says so and begins again
_DTYPES = ("float32", "bfloat16", "fp8")
_COPIED = {".json", ".jinja", ".model", ".py", ".tiktoken", ".txt"}  # suffixes of files beside weights
_NAME = re.compile(r"v(\d+)-([0-9a-f]{8})")  # of an export: version, and the history's first digits


@dataclass(frozen=True)
class Export:
    """A version in a folder of its own."""

    path: pathlib.Path
    history: str
    version: int


class Folder:
    """A folder of exports, each whole or absent. One process at a time writes it."""

    def __init__(self, path: pathlib.Path, keep: int):
        self._path = path
        self._keep = keep
        path.mkdir(parents=True, exist_ok=True)
        self._lock = open(path / ".lock", "w")  # until the process ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise paramshard.FailedPreconditionError(
                f"{path}: another process exports into it: end it, or choose another folder") from None
        for left in path.glob(f"{_PARTIAL}*"):  # by a process that was killed
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def exports(self) -> list[Export]:
        found = []
        for path in self._path.iterdir():
            if _NAME.fullmatch(path.name) and (path / _VERSION).is_file():
                about = json.loads((path / _VERSION).read_text())
                if isinstance(about, dict) and {"history", "version"} <= about.keys():
                    found.append(Export(path, about["history"], about["version"]))
        return found

    def write(self, tensors: dict[str, torch.Tensor], about: dict[str, Any], files: dict[str, bytes]) -> pathlib.Path:
        """Adds an export, points `latest` to it, and removes the oldest ones."""
        export = Export(self._path / f"v{about['version']}-{about['history'][:8]}", about["history"], about["version"])
        partial = self._path / f"{_PARTIAL}-{export.path.name}"
        try:
            partial.mkdir()
            for name, content in {**files, _VERSION: json.dumps(about).encode() + b"\n"}.items():
                (partial / name).write_bytes(content)
            try:
                save_file(tensors, partial / _FILE, metadata={"format": "pt"} | {
                    key: str(value) for key, value in about.items()})
            except SafetensorError as error:
                raise OSError(f"write {export.path}: {error}") from error
            (partial / _FILE).chmod((partial / _VERSION).stat().st_mode)  # safetensors lets nobody else read
            for path in (*partial.iterdir(), partial):
                _sync(path)
            partial.rename(export.path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.settle(export)
        return export.path

    def settle(self, newest: Export) -> None:
        """Points `latest` to the newest export, and removes the oldest ones. Those of another history are older."""
        link = self._path / f"{_PARTIAL}-{_LATEST}"
        link.symlink_to(newest.path.name)
        link.replace(self._path / _LATEST)
        _sync(self._path)
        exports = sorted(self.exports(), key=lambda each: (each.history == newest.history, each.history, each.version))
        for each in exports[:-self._keep]:
            removed = self._path / f"{_PARTIAL}-{each.path.name}"
            each.path.rename(removed)
            shutil.rmtree(removed)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def view_of(parameters: list[paramshard.ReadParameter], dtype: str, split_experts: bool = False) -> paramshard.View:
    """Returns the view of an export. `dtype`: "fp8" leaves codes of FP8_BLOCK_128X128 as stored, beside bfloat16."""
    if dtype == "fp8":
        return views.hf_fp8(parameters, split_experts=split_experts)
    return views.hf(parameters, dtype, split_experts=split_experts)


def files_beside_weights(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns contents by name: config, tokenizer and others. The config says nothing of the folder's own weights."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())
             if path.is_file() and path.suffix in _COPIED and not path.name.endswith(".index.json")}
    if "config.json" not in files:
        raise paramshard.NotFoundError(f"--config {folder}: config.json not found")
    try:
        config = json.loads(files["config.json"])
    except ValueError as error:
        raise paramshard.InvalidArgumentError(f"{folder / 'config.json'}: want JSON: {error}") from None
    if not isinstance(config, dict):
        raise paramshard.InvalidArgumentError(f"{folder / 'config.json'}: want an object, got {type(config).__name__}")
    for key in ("dtype", "torch_dtype", "quantization_config"):
        config.pop(key, None)
    return files | {"config.json": json.dumps(config).encode()}


def config_of(config: bytes, dtype: str, view: paramshard.View) -> bytes:
    """Returns a config that says how weights are exported."""
    own = {"dtype": "bfloat16" if dtype == "fp8" else dtype}
    if view.quantization_config is not None:
        own["quantization_config"] = view.quantization_config
    return json.dumps(json.loads(config) | own, indent=2).encode() + b"\n"


class Exporter:
    """Exports every N-th version: the first that is readable from each multiple of N on."""

    def __init__(self, reader: paramshard.Reader, folder: Folder, every: int, dtype: str, files: dict[str, bytes],
                 split_experts: bool = False):
        self._reader = reader
        self._folder = folder
        self._every = every
        self._dtype = dtype
        self._files = files
        self._split_experts = split_experts
        self._tensors: dict[str, torch.Tensor] = {}
        self._plan: paramshard.Plan | None = None  # of the history of `_next`
        self._next: tuple[str, int] | None = None  # history, and the least version to export

    def next(self) -> dict[str, Any]:
        """Waits for the next version, exports it, and returns figures.

        Goes on waiting where steps end each version before it is copied, or the daemon is away. Other errors are
        those of `Reader.acquire`.
        """
        said = ""
        while True:
            try:
                copied = self._copy_newest()
            except (paramshard.AbortedError, paramshard.DeadlineExceededError, paramshard.UnavailableError) as error:
                if said != str(error):
                    said = str(error)
                    _note(f"{said}; waiting")
                continue
            if copied is not None:
                history, version, begun = copied
                about = {"model": self._reader.model, "history": history, "version": version}
                path = self._folder.write(self._tensors, about, self._files)
                self._next = history, self._due_from(version + 1)
                return about | {"path": str(path), "bytes": sum(each.nbytes for each in self._tensors.values()),
                                "seconds": round(time.monotonic() - begun, 3)}

    def _copy_newest(self) -> tuple[str, int, float] | None:
        """Copies the newest version if it is due, and returns its history and number, and when the copy began.

        None: it is not due, or a history has begun.
        """
        if self._next is not None:
            history, version = self._next
            self._reader.wait_newer(version - 1, timeout=_WAIT, history=history)
        history, version, parameters, begun = self._reader.read(self._copy_due, timeout=_WAIT)
        if begun is not None:
            return history, version, begun
        if self._next is None or self._next[0] != history:
            self._begin(history, version, parameters)  # trainers do not wait for files and memory
        return None

    def _copy_due(self, snapshot: paramshard.Snapshot) -> tuple[str, int, list[paramshard.ReadParameter], float | None]:
        begun = None
        if self._next is not None and self._next[0] == snapshot.history and self._next[1] <= snapshot.version:
            begun = time.monotonic()
            snapshot.copy_into(self._plan)
        return snapshot.history, snapshot.version, snapshot.parameters(), begun

    def _begin(self, history: str, version: int, parameters: list[paramshard.ReadParameter]) -> None:
        view = view_of(parameters, self._dtype, self._split_experts)
        self._tensors = view.allocate("torch")
        for tensor in self._tensors.values():
            tensor.zero_()  # now, rather than while trainers wait
        self._plan = paramshard.Plan(view, self._tensors)
        if "config.json" in self._files:
            self._files["config.json"] = config_of(self._files["config.json"], self._dtype, view)
        exports = [each for each in self._folder.exports() if each.history == history]
        if exports:
            newest = max(exports, key=lambda each: each.version)
            self._folder.settle(newest)
            version = newest.version + 1
        self._next = history, self._due_from(version)

    def _due_from(self, version: int) -> int:
        """Returns the first multiple from a version on."""
        return -(-version // self._every) * self._every


def _note(text: object) -> None:
    print(f"paramshard.export: {text}", file=sys.stderr, flush=True)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text}")
    if int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"want a number below 2**63, got {text}")
    return int(text)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paramshard.export", description=__doc__.partition("\n\n")[2])
    parser.add_argument("model", help="name of the model in the daemon")
    parser.add_argument("folder", type=pathlib.Path, help="gets a folder for each export, and the link `latest`")
    parser.add_argument("--every", type=_positive, default=1, metavar="N",
                        help="exports the first readable version from each multiple of N on; default: 1")
    parser.add_argument("--keep", type=_positive, default=2, metavar="K",
                        help="removes all exports but the newest K; default: 2")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32",
                        help="type of the weights; default: float32. fp8: codes and scales of FP8_BLOCK_128X128 as "
                             "stored, the rest in bfloat16")
    parser.add_argument("--split-experts", action="store_true",
                        help="writes layers of each expert where the model has all in one parameter")
    parser.add_argument("--config", type=pathlib.Path, metavar="FOLDER",
                        help="copies config.json, the tokenizer and others of a model of transformers into each export")
    parser.add_argument("--count", type=_positive, metavar="N", help="ends after N exports")
    parser.add_argument("--json", action="store_true", help="prints a JSON object for each export")
    parser.add_argument("--socket-dir", metavar="FOLDER", help="of the daemon's sockets")
    return parser.parse_args()


def main() -> None:
    """Exports until a signal ends it."""
    options = _parse()
    signal.signal(signal.SIGTERM, _end)
    try:
        files = {} if options.config is None else files_beside_weights(options.config)
        exporter = Exporter(paramshard.Reader(options.model, socket_dir=options.socket_dir, name="paramshard.export"),
                            Folder(options.folder, options.keep), options.every, options.dtype, files,
                            options.split_experts)
        for _ in itertools.count() if options.count is None else range(options.count):
            export = exporter.next()
            print(json.dumps(export) if options.json else
                  f"version {export['version']}: {export['bytes'] / 1e6:.1f} MB in {export['seconds']:.1f} s, "
                  f"{export['path']}", flush=True)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (paramshard.Error, OSError, ValueError) as error:
        raise SystemExit(f"paramshard.export: {error}") from None


if __name__ == "__main__":
    main()
