"""Opening of a model that the daemon may have already, by a script that may have values for it."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import paramshard
from paramshard.spec import ModelSpec
from paramshard.torch import torchrun
from paramshard.torch.tracked_state import unpack

ATTACH_TIMEOUT = 600.0  # seconds that ranks wait for each other
_SERVE_TIMEOUT = 60.0  # seconds until a daemon serves
_NEXT_CALL_TIMEOUT = 10.0  # seconds until a rank that has imported attaches, which is what it does next
_POLL_INTERVAL = 0.02  # seconds
_LOG_AFTER = 10.0  # seconds of waiting until the log says for what
_REPLACEABLE = ("initial", "importing")  # origins of values that a script's values replace

Result = TypeVar("Result")
_log = logging.getLogger("paramshard")


class Decision(enum.Enum):
    """Decision of a rank about the model that its daemon has."""

    KEEP = "keep"  # opens it with the daemon's values
    FILL = "fill"  # opens it with the script's values
    DELETE = "delete"  # deletes it, and creates a new one
    REFUSE = "refuse"


def decide(origin: str, existing: str, *, has_values: bool, same_run: bool) -> Decision:
    """Decides by the table of docs/train/pytorch.md, alike on all ranks.

    `origin`: of the daemon's values, as `paramshard.CreatedModel.origin` says. `existing`: as in `shard`. `has_values`:
    the script has values. `same_run`: the daemon's values come from this run, which torchrun has started again.
    """
    if existing == "fresh" and not same_run:
        return Decision.DELETE
    if origin in _REPLACEABLE:
        if has_values:
            return Decision.FILL
        return Decision.KEEP if origin == "initial" else Decision.REFUSE
    if origin == "imported":
        return Decision.REFUSE if has_values and not same_run else Decision.KEEP
    return Decision.KEEP if same_run or existing == "resume" else Decision.REFUSE  # restored, trained or lost


@dataclass(frozen=True)
class ScriptValues:
    """Values of parameters that a script has when it opens a model."""

    any: bool  # of one parameter at least
    all: bool
    missing: paramshard.Error | None  # raised for a new model: a parameter has neither a value nor a rule for one

    @property
    def follow(self) -> bool:
        """True if a new model waits for an import."""
        return self.any or self.missing is not None


class Opening:
    """Creates or joins the daemon's model for one rank, and decides whose values it has.

    Every rank decides by the daemon's answer to its creation. The first rank of each daemon deletes and imports; the
    others poll the daemon until that is done.
    """

    def __init__(self, client: paramshard.Client, connect: Callable[[], paramshard.Client], name: str, *,
                 existing: str, local_rank: int, run: str, takes_any_seed: bool,
                 advice: Callable[[paramshard.ModelSummary | None], str]):
        """Changes nothing yet.

        `takes_any_seed`: an existing model may have another seed. `advice`: returns advice for an error, about a model
        that the daemon has with another description.
        """
        self._client = client
        self._connect = connect
        self._name = name
        self._existing = existing
        self._local_rank = local_rank
        self._run = run
        self._takes_any_seed = takes_any_seed
        self._advice = advice
        self._notes: list[tuple[int, str]] = []  # for the log, with their levels

    # --- The model ---

    def create_or_join(self, spec: ModelSpec, values: ScriptValues) -> Decision:
        """Creates or joins the model. Returns KEEP or FILL.

        AlreadyExistsError for a model that `existing` does not accept, and if the script's values would replace others;
        FailedPreconditionError if announced values were never imported; DataLossError if values are lost.
        """
        if self._existing == "fresh" and not torchrun.is_restart():
            return self._delete_and_create(spec, values)
        if self._local_rank > 0:
            self._wait(lambda model: model is not None, ATTACH_TIMEOUT, "rank 0 of this daemon to create the model")
        others = [model.name for model in self._client.models()] if self._existing == "resume" else []
        try:
            found = self._create(spec, values.follow, values.all or values.missing is not None)
        except paramshard.AlreadyExistsError as error:
            if self._existing == "fresh":
                return self._delete_and_create(spec, values)
            raise paramshard.AlreadyExistsError(f"{error}: {self._advice(self.find())}") from error
        if found.origin == "importing" and not values.any and self._waits_for_first_rank(found):
            return Decision.KEEP
        if values.missing is not None and found.origin in _REPLACEABLE:
            if found.created:
                self._client.delete_model(self._name)
            raise values.missing
        same_run = self._is_of_this_run(found, spec) or (
            values.any and found.origin == "imported" and self._is_of_first_rank(found))
        decision = decide(found.origin, self._existing, has_values=values.any, same_run=same_run)
        if decision is Decision.DELETE:
            return self._delete_and_create(spec, values)
        if decision is Decision.REFUSE:
            raise self._refusal(found)
        if decision is Decision.KEEP and values.any:
            self._note(logging.WARNING,
                       f"goes on at commit {found.commit_number}; the values that this script brings are not used")
        if found.created and found.origin in _REPLACEABLE and self._existing == "resume":
            self._note(logging.WARNING, f'existing="resume", and the daemon has no model of this name (it has '
                       f"{', '.join(others) or 'none'}): a new one begins")
        self._note_seed(found, spec, values)
        return decision

    def _delete_and_create(self, spec: ModelSpec, values: ScriptValues) -> Decision:
        if values.missing is not None:
            raise values.missing
        if self._local_rank == 0:
            with contextlib.suppress(paramshard.NotFoundError):
                self._once_available(lambda: self._client.delete_model(self._name))
        else:
            # The first rank attaches only to the model that it has created.
            self._wait(lambda model: model is not None and model.attached_ranks > 0 and
                       model.origin in ("initial", "imported"), ATTACH_TIMEOUT,
                       "rank 0 of this daemon to delete the model, and to open a new one")
        found = self._create(spec, values.any, values.all)
        if found.origin not in ("initial", "importing", "imported"):
            raise paramshard.AbortedError(
                f"open {self._name}: model was deleted, and another program has created and {found.origin} it")
        self._note_seed(found, spec, values)
        return decide(found.origin, self._existing, has_values=values.any, same_run=True)

    def _create(self, spec: ModelSpec, follow: bool, all_follow: bool) -> paramshard.CreatedModel:
        restore = "none" if self._existing == "fresh" else None
        return self._once_available(
            lambda: self._client.create_model(spec, restore=restore, values_follow=follow, all_values_follow=all_follow,
                                              takes_any_seed=self._takes_any_seed, run=self._run))

    def find(self) -> paramshard.ModelSummary | None:
        """Returns the model as the daemon lists it; None if there is none."""
        models = self._once_available(self._client.models)
        return next((model for model in models if model.name == self._name), None)

    def deleted(self) -> paramshard.Error:
        """Returns the error for a model that existed and is gone."""
        return paramshard.AbortedError(
            f"open {self._name}: model {self._name} was deleted by another client, or the daemon was restarted without "
            "it; make the module and its optimizer again")

    # --- Values ---

    def import_values(self, tensors: Callable[[], dict[str, Any]]) -> None:
        """Imports values into a new model, from the first rank of each daemon. All ranks call it."""
        if self._local_rank == 0:
            self._client.import_tensors(self._name, tensors(), run=self._run)
            return
        # The first rank may have no values: it attaches to the initial ones.
        self._wait_for_model(lambda model: model.origin not in _REPLACEABLE or (
            model.origin == "initial" and model.attached_ranks > 0), "rank 0 of this daemon to import the values")
        model = self.find()
        if model is not None and model.origin == "initial":
            raise paramshard.FailedPreconditionError(
                f"open {self._name}: rank 0 of this daemon brings no values, and this rank does: bring them on every "
                "rank, or on rank 0")

    def replace_values(self, history: str, tensors: Callable[[], dict[str, Any]]) -> None:
        """Replaces the values of a model, which all ranks close. `history`: the id of the values' history."""
        if self._local_rank == 0:
            self._wait_for_model(lambda model: model.attached_ranks == 0, "all ranks to close the model")
            self.import_values(tensors)
        else:
            self._wait_for_model(lambda model: model.history_id != history,
                                 "rank 0 of this daemon to import the values")

    # --- Other ranks, and earlier attempts of the run ---

    def _is_of_this_run(self, found: paramshard.CreatedModel, spec: ModelSpec) -> bool:
        """Returns True for a worker that torchrun has started again, if its run has created or trained the model."""
        if not torchrun.is_restart() or found.same_run:
            return torchrun.is_restart()
        if self._existing == "resume" or found.origin not in ("restored", "trained"):
            return False
        # The run is in the client state of the last step. All ranks look, and none keeps the model.
        with self._connect() as client, contextlib.closing(client.open_model(spec)) as model:
            run = unpack(model.client_state).run
        if run != self._run and self._local_rank == 0:
            self._wait(lambda model: model is None or model.attached_ranks == 0, ATTACH_TIMEOUT,
                       "all ranks to close the model")
        return run == self._run

    def _waits_for_first_rank(self, found: paramshard.CreatedModel) -> bool:
        """Waits for values that rank 0 of this daemon has and this rank lacks. Returns False if there are none."""
        if self._local_rank == 0 or (torchrun.is_worker() and not found.same_run):
            return False
        self._wait_for_model(lambda model: model.origin not in _REPLACEABLE,
                             "rank 0 of this daemon to import the values")
        return True

    def _is_of_first_rank(self, found: paramshard.CreatedModel) -> bool:
        """Returns True if rank 0 of this daemon, in this job, has imported the values before this rank came."""
        if self._local_rank == 0:
            return False
        if torchrun.is_worker():
            return found.same_run
        try:
            self._wait(lambda model: model is not None and model.attached_ranks > 0, _NEXT_CALL_TIMEOUT,
                       "rank 0 of this daemon to attach")
        except paramshard.DeadlineExceededError:
            return False
        return True

    # --- Waiting ---

    def _wait_for_model(self, until: Callable[[paramshard.ModelSummary], bool], event: str) -> None:
        """Same as _wait(). AbortedError if the model is deleted meanwhile."""
        self._wait(lambda model: model is None or until(model), ATTACH_TIMEOUT, event)
        if self.find() is None:
            raise self.deleted()

    def _wait(self, until: Callable[[paramshard.ModelSummary | None], bool], timeout: float, event: str) -> None:
        """Polls: before all ranks are attached, no message says what another rank has done."""
        deadline = time.monotonic() + timeout
        with self.log_if_slow(lambda: f"waiting up to {timeout:.0f} s for {event}"):
            while not until(self.find()):
                if time.monotonic() > deadline:
                    raise paramshard.DeadlineExceededError(
                        f"open {self._name}: timed out after {timeout:.0f} s waiting for {event}")
                time.sleep(_POLL_INTERVAL)

    def _once_available(self, call: Callable[[], Result]) -> Result:
        """Repeats the call while the daemon restarts, or a save or a restore is in progress."""
        deadline = time.monotonic() + _SERVE_TIMEOUT
        while True:
            try:
                return call()
            except paramshard.UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_INTERVAL)

    # --- Messages ---

    @contextlib.contextmanager
    def log_if_slow(self, line: Callable[[], str]) -> Iterator[None]:
        """Logs a line if the code inside takes longer than _LOG_AFTER."""
        def log() -> None:
            with contextlib.suppress(paramshard.Error):
                _log.warning("open %s: %s", self._name, line())
        timer = threading.Timer(_LOG_AFTER, log)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def log_notes(self) -> None:
        """Logs the decisions, once the model is open."""
        for level, line in self._notes:
            _log.log(level, "open %s: %s", self._name, line)
        self._notes.clear()

    def _note(self, level: int, line: str) -> None:
        if self._local_rank == 0:
            self._notes.append((level, line))

    def _note_seed(self, found: paramshard.CreatedModel, spec: ModelSpec, values: ScriptValues) -> None:
        if found.created and found.origin in _REPLACEABLE and not values.all:
            self._note(logging.INFO, f"values of modules made in meta_init() are drawn with seed {spec.seed}; "
                       "shard(seed=...) sets it")

    def _refusal(self, found: paramshard.CreatedModel) -> paramshard.Error:
        model = f"shard {self._name}: model {self._name}"
        if found.origin == "lost":
            summary = self.find()
            return paramshard.DataLossError(
                f'{model} is lost ({summary.unusable if summary is not None else "deleted since"}); existing="fresh" '
                "deletes it")
        if found.origin == "importing":
            return paramshard.FailedPreconditionError(
                f"{model} waits for values that its creator announced, and has none; load them before the optimizer is "
                'made, or delete the model with existing="fresh"')
        if found.origin == "imported":
            return paramshard.AlreadyExistsError(
                f"{model} has imported values, which this script's values would replace; to keep them make the module "
                'in meta_init() and load nothing before the optimizer is made, to delete them use existing="fresh"')
        done = " and was restored" if found.origin == "restored" else ""
        return paramshard.AlreadyExistsError(
            f'{model} already exists in the daemon{done}, at commit {found.commit_number}: existing="resume" continues '
            'it, existing="fresh" deletes it; or choose another name=')
