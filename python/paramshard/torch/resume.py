"""`resume_in_process`, by which a worker outlives the deaths of others."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

import paramshard
from paramshard.run.channel import Channel, OtherWorkerDied
from paramshard.torch.sharded_model import ShardedModel
from paramshard.torch.torch_internals import abort_process_groups, forget_compiled
from paramshard.torch.tracked_state import RandomState

# The epoch has ended, or the daemon has: neither is an error of this worker.
_INTERRUPTIONS = (paramshard.AbortedError, paramshard.UnavailableError, paramshard.DeadlineExceededError,
                  OtherWorkerDied)
_NEWS_TIMEOUT = 2.0  # seconds until the agent has seen the death by which a collective has failed

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_log = logging.getLogger("paramshard")


def resume_in_process(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Calls a training function again when another worker has died, in the same process.

        @pt.resume_in_process
        def train():
            with pt.meta_init():
                model = Model()
            sharded = pt.shard(model, ..., daemon="job")
            optimizer = pt.AdamW(model.parameters())
            sharded.track(loader=loader, rng=True)
            for step in range(sharded.start_step(), steps):
                ...

    Under `python -m paramshard.run` this worker then keeps its imports, its CUDA context and what was made outside of
    the function; models, optimizers and process groups are made inside, anew in each call. Before a call process groups
    are aborted, torch.compile begins anew, and random number generators are as they were at the first call. Batches,
    schedulers and generators go on by `track`, as after a restart. The environment has the next restart count, store
    and rank.

    An error of the function's own, and one that no death explains, ends the worker as without this. So does an
    interruption when no restart is left. Under torchrun, and without a launcher, the function is called once.

    Where a script calls several such functions, workers are kept in the first call alone: a new worker begins there. In
    later ones all are replaced. Threads and child processes that a call has started go on when it is left.

    Raises:
        FailedPreconditionError: A sharded model was made outside of the function, and is not closed.
        InvalidArgumentError: The function returns before it trains: it is a generator, or async.
    """
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise paramshard.InvalidArgumentError(
            f"resume_in_process: {function.__name__}: want a function that trains until it returns, got a generator or "
            "an async function")

    @functools.wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        channel = Channel.of_process()
        if channel is None:
            return function(*args, **options)
        outside = next((each for each in ShardedModel.all_of_process if not each.is_closed), None)
        if outside is not None:
            raise paramshard.FailedPreconditionError(
                f"resume_in_process: model {outside.name} was sharded before {function.__name__}() is called: make the "
                "module, shard() and the optimizer inside of the function")
        generators = RandomState()
        state = generators.state_dict()
        channel.enter()
        try:
            while True:
                try:
                    with channel.calling():
                        return function(*args, **options)
                except _INTERRUPTIONS as error:
                    _resume(channel, error)
                except RuntimeError as error:  # of torch.distributed, whose backends have no class of their own
                    if not torch.distributed.is_initialized() or not channel.has_news(_NEWS_TIMEOUT):
                        raise
                    _resume(channel, error)
                # The error is gone here, and with it the frames that had the model.
                _clean()
                generators.load_state_dict(state)
        finally:
            channel.leave()

    return call


def _resume(channel: Channel, error: BaseException) -> None:
    """Waits for the next generation. Raises the error if there is none."""
    _log.warning("%s; waiting to resume", str(error) or "another worker died")
    for sharded in list(ShardedModel.all_of_process):
        sharded.abandon()
    abort_process_groups()
    if not channel.take_generation():
        raise error


def _clean() -> None:
    """Frees what a call has left behind."""
    gc.collect()
    forget_compiled()  # it has guards on the modules that are gone, and a limit of versions
