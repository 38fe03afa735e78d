"""Work of a forked process: it becomes what `python SCRIPT` would be, with torch imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import random
import runpy
import socket
import sys
import types
import zipfile
from typing import NamedTuple

from paramshard.run import messages, warm_up


class Job(NamedTuple):
    """A worker to become."""

    script: str
    is_module: bool  # as of `python -m`
    arguments: list[str]  # of Python's command line, from the script on
    stdout: str  # file; "" for the agent's own
    stderr: str
    channel: int
    in_new_interpreter: bool
    spare: bool  # prepares everything, and waits for the rest of the job


def folder_of(script: str, is_module: bool) -> pathlib.Path:
    """Returns the folder that Python puts first into a script's path."""
    return pathlib.Path.cwd() if is_module else pathlib.Path(script).resolve().parent


def source_of(script: str, is_module: bool) -> pathlib.Path | None:
    """Returns the file of a script or module, without importing it; None if there is none."""
    if not is_module:
        path = pathlib.Path(script)
        return path if path.is_file() else None
    top, *rest = script.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top, [str(pathlib.Path.cwd()), *sys.path])
    if spec is None or spec.origin is None:
        return None
    origin = pathlib.Path(spec.origin)
    if spec.submodule_search_locations is None:
        return origin
    module = origin.parent.joinpath(*rest)
    return next((path for path in (module.with_suffix(".py"), module / "__main__.py") if path.is_file()), None)


def run(job: Job) -> None:
    """Runs a worker. Its exceptions are left to the interpreter, which ends as it does after any script."""
    if job.spare:
        job = _await_job(job)
    _redirect(job.stdout, 1)
    _redirect(job.stderr, 2)
    if job.in_new_interpreter or not job.is_module and not _is_source(job.script):  # a folder, an archive, or an error
        os.set_inheritable(job.channel, True)
        options = ["-u", *(["-m"] if job.is_module else [])]
        os.execv(sys.executable, [sys.executable, *options, *job.arguments])
    _seed()
    _become_script(job)


def _is_source(script: str) -> bool:
    return os.path.isfile(script) and not script.endswith(".pyc") and not zipfile.is_zipfile(script)


def _redirect(path: str, descriptor: int) -> None:
    if path:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, descriptor)
        os.close(file)


def _seed() -> None:
    """Seeds generators as a new process does; workers would draw the same numbers otherwise."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _become_script(job: Job) -> None:
    sys.argv = list(job.arguments)
    sys.orig_argv = [sys.executable, "-u", *(["-m"] if job.is_module else []), *job.arguments]
    sys.path.insert(0, str(folder_of(job.script, job.is_module)))
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if job.is_module:
        runpy._run_module_as_main(job.script)  # which is `python -m`
        return
    script = os.path.abspath(job.script)  # as Python does: it stays right when the script changes its folder
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    main.__file__ = script
    main.__loader__ = loader
    exec(compile(loader.get_data(script), script, "exec", dont_inherit=True), main.__dict__)


def _await_job(job: Job) -> Job:
    """Prepares a spare, and waits until it takes a worker's place. It has no end of its own: its parent's is one."""
    agent = socket.socket(fileno=os.dup(job.channel))
    size = None
    if "LOCAL_RANK" in os.environ and not job.in_new_interpreter:
        try:
            size = warm_up.warm_up(int(os.environ["LOCAL_RANK"]))
        except warm_up.DoesNotFit as error:
            messages.send(agent, {"event": "does not fit", "reason": str(error)})
            sys.exit(0)
    messages.send(agent, {"event": "ready", "bytes": size})
    message, _ = messages.receive(agent, None)
    if message is None:
        sys.exit(0)
    agent.close()
    os.environ.update(message["environment"])
    return job._replace(arguments=message["arguments"], stdout=message["stdout"], stderr=message["stderr"])
