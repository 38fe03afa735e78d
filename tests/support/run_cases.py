"""Runs the cases of a GoogleTest program in few processes, and reports each of them; ctest calls it.

    run_cases.py [--shard I/N] [--timeout SECONDS] [--alone PATTERN]... [--report FILE] [--passed FILE] PROGRAM [USED...]

One process runs all cases of the shard, in the program's order or, with GTEST_SHUFFLE=1, in a random one. A case that
runs longer than the timeout (default: 60) is killed and named, and a case whose process dies is named too; a new process
runs what is left behind it. Cases that match an --alone pattern (a glob for whole names) have a process of their own.
GTEST_FILTER and GTEST_REPEAT mean what they mean to the program itself. PARAMSHARD_REPORTS is another folder for reports.

USED are programs that PROGRAM starts. If all cases pass, the file --passed gets a hash of them all; with
PARAMSHARD_CHANGED=1 nothing runs while it is still the same.

Prints the output of each case that failed, and one line in the end. The report is a JUnit file with every case: its
time, what it printed if it failed, or why it was skipped. Exits with 1 if a case failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

_BEGIN = re.compile(r"\[ RUN      \] (\S+)$")
_END = re.compile(r"\[(?:       OK |  FAILED  |  SKIPPED )\] (\S+?)(?:, where .*)? \((\d+) ms\)$")
_SKIPPED = re.compile(r": Skipped\n(.*)")
# Characters that XML does not have.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd]")


@dataclasses.dataclass
class Case:
    """Result of one case."""

    name: str
    status: str  # "passed", "failed" or "skipped"
    seconds: float
    output: str

    @property
    def skip_reason(self) -> str:
        found = _SKIPPED.search(self.output)
        return found[1].strip() if found else "no reason given"


def list_cases(program: str) -> list[str]:
    """Returns the full names of the program's cases that GTEST_FILTER selects."""
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True, timeout=60)
    cases = []
    suite = ""
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            cases.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return [case for case in cases if not re.search(r"(^|[./])DISABLED_", case)]


class Run:
    """One process that runs some cases."""

    def __init__(self, program: str, names: list[str], timeout: float):
        self.results: list[Case] = []
        self._timeout = timeout
        self._current = ""
        self._output: list[str] = []
        self._begin = time.monotonic()
        with tempfile.NamedTemporaryFile("w", prefix="cases-") as flags:
            flags.write(f"--gtest_filter={':'.join(names)}\n")
            flags.flush()
            # With a process group of its own: children that it leaves behind die with it.
            process = subprocess.Popen([program, f"--gtest_flagfile={flags.name}", "--gtest_color=no"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                self._follow(process)
            finally:
                kill_group(process)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                left = self._begin + self._timeout - time.monotonic()
                if left <= 0:
                    self._fail(f"timed out after {self._timeout:.0f} s")
                    return
                if not selector.select(min(left, 1.0)):
                    if process.poll() is not None:
                        break  # a child that it left holds the pipe
                    continue
                chunk = process.stdout.read()
                if not chunk:
                    break
                *lines, text = (text + chunk).split(b"\n")
                for line in lines:
                    self._take(line.decode(errors="replace"))
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self._fail(f"the program did not end within {self._timeout:.0f} s")
            return
        if self._current or status not in (0, 1):
            self._take(text.decode(errors="replace"))
            self._fail(f"the program died by {signal.Signals(-status).name}" if status < 0
                       else f"the program exited with {status}")

    def _take(self, line: str) -> None:
        if begun := _BEGIN.search(line):
            self._current = begun[1]
            self._output = []
            self._begin = time.monotonic()
        elif self._current and (ended := _END.search(line)) and ended[1] == self._current:
            kind = line[ended.start():][:12].strip("[ ]")
            status = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[kind]
            self.results.append(Case(self._current, status, int(ended[2]) / 1000, "\n".join(self._output)))
            self._current = ""
            self._output = []
            self._begin = time.monotonic()
        else:
            self._output.append(line)

    def _fail(self, why: str) -> None:
        name = self._current or "(no case)"
        self.results.append(Case(name, "failed", time.monotonic() - self._begin, "\n".join([*self._output, why])))


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and the rest of its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_cases(program: str, names: list[str], alone: list[str], timeout: float) -> list[Case]:
    """Runs all of `names`; each has a result at least."""
    results: list[Case] = []
    separate = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in alone)]
    groups = [[name for name in names if name not in separate], *([name] for name in separate)]
    for group in groups:
        left = group
        while left:
            run = Run(program, left, timeout)
            results += run.results
            done = {case.name for case in run.results}
            if not done & set(left):
                results += [Case(name, "failed", 0.0, "the program did not run it") for name in left]
                break
            # A case that passed, of a program that died in its own end, has run.
            left = [name for name in left if name not in done]
    return results


def write_report(path: str, program: str, results: list[Case]) -> None:
    suite = ElementTree.Element("testsuite", name=os.path.basename(program), tests=str(len(results)))
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", name=f"{suite.get('name')}.{result.name}",
                                      time=f"{result.seconds:.3f}")
        if result.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=_NOT_XML.sub("?", result.skip_reason))
        elif result.status == "failed":
            ElementTree.SubElement(case, "failure").text = _NOT_XML.sub("?", result.output)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    ElementTree.ElementTree(suite).write(path)


def hash_of(files: list[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def text_of(path: str) -> str:
    try:
        with open(path) as opened:
            return opened.read()
    except FileNotFoundError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--alone", action="append", default=[])
    parser.add_argument("--report")
    parser.add_argument("--passed")
    parser.add_argument("program")
    parser.add_argument("used", nargs="*")
    arguments = parser.parse_args()
    number, shards = map(int, arguments.shard.split("/"))
    identity = hash_of([__file__, arguments.program, *arguments.used])
    if arguments.passed and os.environ.get("PARAMSHARD_CHANGED") == "1" and text_of(arguments.passed) == identity:
        print("has passed before, and has not changed")
        return 0
    names = list_cases(arguments.program)[number - 1::shards]
    results = run_cases(arguments.program, names, arguments.alone, arguments.timeout)
    if arguments.report:
        folder = os.environ.get("PARAMSHARD_REPORTS", os.path.dirname(arguments.report))
        write_report(os.path.join(folder, os.path.basename(arguments.report)), arguments.program, results)
    failed = [result for result in results if result.status == "failed"]
    for result in failed:
        print(f"== {result.name} failed after {result.seconds:.1f} s", result.output, sep="\n")
    skipped = sum(result.status == "skipped" for result in results)
    print(f"{len(results) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped")
    if arguments.passed and not failed and "GTEST_FILTER" not in os.environ:
        os.makedirs(os.path.dirname(arguments.passed), exist_ok=True)
        with open(arguments.passed, "w") as passed:
            passed.write(identity)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
