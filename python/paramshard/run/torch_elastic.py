"""Parts of torchrun that have no public name, each under one here. No other file of the launcher touches any.

torchrun's agent, rendezvous, arguments, logs and reports are what users know, so the launcher has them from torch. But
torchrun makes its agent and its processes by name, in functions that take no others:

- `launch_agent` makes a `LocalElasticAgent`: `launch` puts the launcher's agent in its place.
- `LocalElasticAgent._start_workers` computes the environments of workers, and calls `start_processes`: `starting_by`
  puts the launcher's function in its place.
- Agents are classes to inherit from by methods with an underscore.

A release of torch may move or drop them: importing this file then raises ImportError, which names them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed.elastic.agent.server.api
import torch.distributed.elastic.agent.server.local_elastic_agent as local_elastic_agent
import torch.distributed.elastic.multiprocessing.api as processes
import torch.distributed.elastic.multiprocessing.tail_log
import torch.distributed.launcher.api as launcher
import torch.distributed.run as torchrun

# Paths from torch.distributed, each with the parameters that are used.
NEEDED = {
    "elastic.agent.server.api.SimpleElasticAgent._initialize_workers": ("worker_group",),
    "elastic.agent.server.api.SimpleElasticAgent._rendezvous": ("worker_group",),
    "elastic.agent.server.api.SimpleElasticAgent._restart_workers": ("worker_group",),
    "elastic.agent.server.api.WorkerState.UNHEALTHY": (),
    "elastic.agent.server.local_elastic_agent.LocalElasticAgent._monitor_workers": ("worker_group",),
    "elastic.agent.server.local_elastic_agent.LocalElasticAgent._shutdown": ("death_sig",),
    "elastic.agent.server.local_elastic_agent.LocalElasticAgent._start_workers": ("worker_group",),
    "elastic.agent.server.local_elastic_agent.LocalElasticAgent._stop_workers": ("worker_group",),
    "elastic.agent.server.local_elastic_agent.start_processes":
        ("name", "entrypoint", "args", "envs", "logs_specs", "log_line_prefixes", "numa_options",
         "duplicate_stdout_filters", "duplicate_stderr_filters"),
    "elastic.multiprocessing.api.PContext._close": ("death_sig", "timeout"),
    "elastic.multiprocessing.api.PContext._poll": (),
    "elastic.multiprocessing.api.PContext._start": (),
    "elastic.multiprocessing.api.RunProcsResult": ("return_values", "failures", "stdouts", "stderrs"),
    "launcher.api.LocalElasticAgent": ("spec", "logs_specs", "start_method", "log_line_prefix_template"),
    "launcher.api.launch_agent": (),
    "run.get_args_parser": (),
    "run.run": ("args",),
}


def missing() -> list[str]:
    """Names the parts that this torch lacks."""
    found = []
    for path, parameters in NEEDED.items():
        try:
            part = functools.reduce(getattr, path.split("."), torch.distributed)
        except AttributeError:
            found.append(f"torch.distributed.{path}")
            continue
        if parameters:
            has = inspect.signature(inspect.unwrap(part)).parameters
            found += [f"torch.distributed.{path}({name}=)" for name in parameters if name not in has]
    return found


if missing():
    raise ImportError(f"paramshard.run: torch {torch.__version__} has no {', '.join(missing())}: install a release of "
                      "paramshard that is made for it, or torch 2.11 or 2.15; or start the training with torchrun")

LocalElasticAgent = local_elastic_agent.LocalElasticAgent
RunResult = local_elastic_agent.RunResult
WorkerGroup = local_elastic_agent.WorkerGroup
WorkerState = local_elastic_agent.WorkerState
PContext = processes.PContext
ProcessFailure = processes.ProcessFailure
RunProcsResult = processes.RunProcsResult
start_processes: Callable[..., PContext] = local_elastic_agent.start_processes
arguments_parser: Callable[[], argparse.ArgumentParser] = torchrun.get_args_parser


def launch(arguments: argparse.Namespace, agent: Callable[..., LocalElasticAgent]) -> None:
    """Does what torchrun does, with another agent."""
    with _replaced(launcher, "LocalElasticAgent", agent):
        torchrun.run(arguments)


def starting_by(start: Callable[..., PContext]) -> contextlib.AbstractContextManager[None]:
    """Lets agents start workers by `start` in the block, which has the parameters of `start_processes`."""
    return _replaced(local_elastic_agent, "start_processes", start)


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


class Processes(PContext):
    """Processes of a node, by local rank, some of which may come from another object."""

    def _take_logs_of(self, other: Processes) -> None:
        """Goes on to print what they write, until this object is closed."""
        self._tail_logs += other._tail_logs
        other._tail_logs = []
