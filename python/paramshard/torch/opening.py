"""Opening of a model that the daemon may have already, with values that a script may bring."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import paramshard
from paramshard.spec import ModelSpec
from paramshard.torch import torchrun
from paramshard.torch.tracked_state import unpack

_TIMEOUT = 600.0  # seconds that ranks wait for the first one of their daemon
_SERVE_TIMEOUT = 60.0  # seconds until a daemon serves
_ATTACH_TIMEOUT = 10.0  # seconds until a rank that has imported attaches, which is what it does next
_NAP = 0.02  # seconds between two looks
_SILENCE = 10.0  # seconds of waiting before the log tells the reason
_BEGINNINGS = ("initial", "importing")  # origins of values that a script's values replace

Result = TypeVar("Result")
_log = logging.getLogger("paramshard")


class Verdict(enum.Enum):
    """Decision of a rank about the model that its daemon has."""

    KEEP = "keep"  # opens it with the daemon's values
    FILL = "fill"  # opens it with the script's values
    DELETE = "delete"  # deletes it, and begins anew
    REFUSE = "refuse"


def judge(origin: str, existing: str, *, brings: bool, own: bool) -> Verdict:
    """Decides by the table of docs/train/pytorch.md, alike on all ranks.

    `origin`: of the daemon's values, as `paramshard.CreatedModel.origin` says. `existing`: as in `shard`. `brings`: the
    script has values. `own`: this run, which torchrun has started again, has brought the values.
    """
    if existing == "fresh" and not own:
        return Verdict.DELETE
    if origin in _BEGINNINGS:
        if brings:
            return Verdict.FILL
        return Verdict.KEEP if origin == "initial" else Verdict.REFUSE
    if origin == "imported":
        return Verdict.REFUSE if brings and not own else Verdict.KEEP
    return Verdict.KEEP if own or existing == "resume" else Verdict.REFUSE  # restored, trained or lost


def _is_filled_or_kept(known: paramshard.ModelSummary) -> bool:
    """Returns true once rank 0 has imported, or has attached to the initial values."""
    return known.origin not in _BEGINNINGS or (known.origin == "initial" and known.attached_ranks > 0)


class Opening:
    """Creates the daemon's model or joins it, for one rank, and settles whose values it has.

    Every rank decides by the daemon's answer to its creation. The first rank of each daemon deletes and imports, and
    the others wait until they see what it has done.
    """

    def __init__(self, client: paramshard.Client, connect: Callable[[], paramshard.Client], name: str, *,
                 existing: str, local_rank: int, run: str, takes_any_seed: bool,
                 advise: Callable[[paramshard.ModelSummary | None], str]):
        """`takes_any_seed`: an existing model may have another seed. `advise`: returns advice for a model that the
        daemon has by another description.
        """
        self._client = client
        self._connect = connect
        self._name = name
        self._existing = existing
        self._local_rank = local_rank
        self._run = run
        self._takes_any_seed = takes_any_seed
        self._advise = advise
        self._notes: list[tuple[int, str]] = []  # for the log, with their levels

    def settle(self, spec: ModelSpec, *, brings: bool, brings_all: bool, missing: paramshard.Error | None) -> Verdict:
        """Creates or joins the model. Returns KEEP or FILL.

        `brings`: the script has values; `brings_all`: of all parameters. `missing`: raised if the model would begin
        here, for a parameter that has neither a value nor a rule for one.

        AlreadyExistsError for a model that `existing` does not accept, and if the script's values would replace others;
        FailedPreconditionError if values were announced and have not come; DataLossError if they are lost.
        """
        if self._existing == "fresh" and not torchrun.is_restart():
            return self._begin_anew(spec, brings, brings_all, missing)
        if self._local_rank > 0:
            self.wait(lambda known: known is not None, _TIMEOUT, "rank 0 of this daemon to create the model")
        others = [known.name for known in self._client.models()] if self._existing == "resume" else []
        follow = brings or missing is not None
        try:
            found = self._create(spec, follow, brings_all or missing is not None)
        except paramshard.AlreadyExistsError as error:
            if self._existing == "fresh":
                return self._begin_anew(spec, brings, brings_all, missing)
            raise paramshard.AlreadyExistsError(f"{error}: {self._advise(self.known())}") from error
        if found.origin == "importing" and not brings and self._is_filled_by_first_rank(found):
            return Verdict.KEEP
        if missing is not None and found.origin in _BEGINNINGS:
            if found.created:
                self._client.delete_model(self._name)
            raise missing
        own = self._is_own(found, spec) or (brings and found.origin == "imported" and self._is_of_first_rank(found))
        verdict = judge(found.origin, self._existing, brings=brings, own=own)
        if verdict is Verdict.DELETE:
            return self._begin_anew(spec, brings, brings_all, missing)
        if verdict is Verdict.REFUSE:
            raise self._refusal(found)
        if verdict is Verdict.KEEP and brings:
            self._note(logging.WARNING,
                       f"goes on at commit {found.commit_number}; the values that this script brings are not used")
        if found.created and found.origin in _BEGINNINGS and self._existing == "resume":
            self._note(logging.WARNING, f'existing="resume", and the daemon has no model of this name (it has '
                       f"{', '.join(others) or 'none'}): a new one begins")
        self._note_seed(found, spec, brings_all)
        return verdict

    def _note_seed(self, found: paramshard.CreatedModel, spec: ModelSpec, brings_all: bool) -> None:
        if found.created and found.origin in _BEGINNINGS and not brings_all:
            self._note(logging.INFO, f"values of modules made in meta_init() are drawn with seed {spec.seed}; "
                       "shard(seed=...) sets it")

    def _note(self, level: int, line: str) -> None:
        if self._local_rank == 0:
            self._notes.append((level, line))

    def log_notes(self) -> None:
        """Logs the decisions, once the model is open."""
        for level, line in self._notes:
            _log.log(level, "open %s: %s", self._name, line)
        self._notes.clear()

    def fill(self, tensors: Callable[[], dict[str, Any]]) -> None:
        """Imports values from the first rank of each daemon. All ranks call it."""
        if self._local_rank == 0:
            self._client.import_tensors(self._name, tensors(), run=self._run)
            return
        self._wait_while_there(_is_filled_or_kept, "rank 0 of this daemon to import the values")
        known = self.known()
        if known is not None and known.origin == "initial":
            raise paramshard.FailedPreconditionError(
                f"open {self._name}: rank 0 of this daemon brings no values, and this rank does: bring them on every "
                "rank, or on rank 0")

    def replace(self, history: str, tensors: Callable[[], dict[str, Any]]) -> None:
        """Replaces the values of a model. `history`: the id of their history. All ranks have let go, or are about to.
        """
        if self._local_rank == 0:
            self._wait_while_there(lambda known: known.attached_ranks == 0, "all ranks to let go")
            self.fill(tensors)
        else:
            self._wait_while_there(lambda known: known.history_id != history,
                                   "rank 0 of this daemon to import the values")

    def known(self) -> paramshard.ModelSummary | None:
        """Returns the model as the daemon lists it; None if there is none."""
        models = self._once_available(self._client.models)
        return next((known for known in models if known.name == self._name), None)

    def deleted(self) -> paramshard.Error:
        """Returns the error for a model that existed and is gone."""
        return paramshard.AbortedError(
            f"open {self._name}: model {self._name} was deleted by another client, or the daemon was restarted without "
            "it; make the module and its optimizer again")

    def _wait_while_there(self, is_so: Callable[[paramshard.ModelSummary], bool], what: str) -> None:
        """Same as wait(). AbortedError if the model is deleted meanwhile."""
        self.wait(lambda known: known is None or is_so(known), _TIMEOUT, what)
        if self.known() is None:
            raise self.deleted()

    def wait(self, is_so: Callable[[paramshard.ModelSummary | None], bool], timeout: float, what: str) -> None:
        """Polls until it is so: no message tells what another rank has done before all are attached."""
        deadline = time.monotonic() + timeout
        with self.telling(f"waiting up to {timeout:.0f} s for {what}"):
            while not is_so(self.known()):
                if time.monotonic() > deadline:
                    raise paramshard.DeadlineExceededError(
                        f"open {self._name}: timed out after {timeout:.0f} s waiting for {what}")
                time.sleep(_NAP)

    @contextlib.contextmanager
    def telling(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Logs `what`, if the code inside takes long."""
        def tell() -> None:
            with contextlib.suppress(paramshard.Error):
                _log.warning("open %s: %s", self._name, what if isinstance(what, str) else what())
        timer = threading.Timer(_SILENCE, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _create(self, spec: ModelSpec, follow: bool, all_follow: bool) -> paramshard.CreatedModel:
        restore = "none" if self._existing == "fresh" else None
        return self._once_available(
            lambda: self._client.create_model(spec, restore=restore, values_follow=follow, all_values_follow=all_follow,
                                              takes_any_seed=self._takes_any_seed, run=self._run))

    def _begin_anew(self, spec: ModelSpec, brings: bool, brings_all: bool,
                    missing: paramshard.Error | None) -> Verdict:
        if missing is not None:
            raise missing
        if self._local_rank == 0:
            with contextlib.suppress(paramshard.NotFoundError):
                self._once_available(lambda: self._client.delete_model(self._name))
        else:
            # The first rank is attached only to the model that it has made.
            self.wait(lambda known: known is not None and known.attached_ranks > 0 and
                      known.origin in ("initial", "imported"), _TIMEOUT,
                      "rank 0 of this daemon to delete the model, and to open a new one")
        found = self._create(spec, brings, brings_all)
        if found.origin not in ("initial", "importing", "imported"):
            raise paramshard.AbortedError(
                f"open {self._name}: model was deleted, and another program has created and {found.origin} it")
        self._note_seed(found, spec, brings_all)
        return judge(found.origin, self._existing, brings=brings, own=True)

    def _is_own(self, found: paramshard.CreatedModel, spec: ModelSpec) -> bool:
        """Returns true for a worker that torchrun has started again, and a model that its run has begun or trained."""
        if not torchrun.is_restart() or found.same_run:
            return torchrun.is_restart()
        if self._existing == "resume" or found.origin not in ("restored", "trained"):
            return False
        # The run is in the client state of the last step. All ranks look, and none keeps the model.
        with self._connect() as client, contextlib.closing(client.open_model(spec)) as model:
            run = unpack(model.client_state).run
        if run != self._run and self._local_rank == 0:
            self.wait(lambda known: known is None or known.attached_ranks == 0, _TIMEOUT, "all ranks to let go")
        return run == self._run

    def _is_filled_by_first_rank(self, found: paramshard.CreatedModel) -> bool:
        """Waits for values that rank 0 of this daemon brings and this rank lacks."""
        if self._local_rank == 0 or (torchrun.is_worker() and not found.same_run):
            return False
        self._wait_while_there(lambda known: known.origin not in _BEGINNINGS,
                               "rank 0 of this daemon to import the values")
        return True

    def _is_of_first_rank(self, found: paramshard.CreatedModel) -> bool:
        """Returns true if rank 0 of this daemon, in this job, has imported before this rank asked."""
        if self._local_rank == 0:
            return False
        if torchrun.is_worker():
            return found.same_run
        try:
            self.wait(lambda known: known is not None and known.attached_ranks > 0, _ATTACH_TIMEOUT,
                      "rank 0 of this daemon to attach")
        except paramshard.DeadlineExceededError:
            return False
        return True

    def _refusal(self, found: paramshard.CreatedModel) -> paramshard.Error:
        what = f"shard {self._name}: model {self._name}"
        if found.origin == "lost":
            known = self.known()
            return paramshard.DataLossError(
                f'{what} is lost ({known.unusable if known is not None else "deleted since"}); existing="fresh" '
                "deletes it")
        if found.origin == "importing":
            return paramshard.FailedPreconditionError(
                f"{what} waits for values that its creator announced, and has none; load them before the optimizer is "
                'made, or delete the model with existing="fresh"')
        if found.origin == "imported":
            return paramshard.AlreadyExistsError(
                f"{what} has imported values, which this script's values would replace; to keep them make the module "
                'in meta_init() and load nothing before the optimizer is made, to delete them use existing="fresh"')
        done = " and was restored" if found.origin == "restored" else ""
        return paramshard.AlreadyExistsError(
            f'{what} already exists in the daemon{done}, at commit {found.commit_number}: existing="resume" continues '
            'it, existing="fresh" deletes it; or choose another name=')

    def _once_available(self, call: Callable[[], Result]) -> Result:
        """Repeats the call while the daemon restarts, or a save or a restore is in progress."""
        deadline = time.monotonic() + _SERVE_TIMEOUT
        while True:
            try:
                return call()
            except paramshard.UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_NAP)
