"""What becomes of a model that the daemon has, and of the values that a script brings."""

from __future__ import annotations

import contextlib
import enum
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import paramshard
from paramshard.spec import ModelSpec
from paramshard.torch import torchrun
from paramshard.torch.tracked_state import unpack

_PATIENCE = 600.0  # seconds that ranks wait for the first one of their daemon
_SHORT_PATIENCE = 60.0  # seconds until a daemon serves
_ATTACH_PATIENCE = 10.0  # seconds until a rank that has imported attaches, which is what it does next
_NAP = 0.02  # seconds between two looks
_BEGINNINGS = ("initial", "importing")  # origins of values that a script's replace

Result = TypeVar("Result")


class Verdict(enum.Enum):
    """What a rank does with the model that its daemon has."""

    KEEP = "keep"  # opens it with the daemon's values
    FILL = "fill"  # opens it with the script's values
    DELETE = "delete"  # deletes it, and begins anew
    REFUSE = "refuse"


def judge(origin: str, existing: str, *, brings: bool, own: bool) -> Verdict:
    """The rule by which all ranks decide: the table of docs/pytorch.md.

    `origin`: of the daemon's values, as `paramshard.CreatedModel.origin` says. `existing`: as in `shard`. `brings`: the
    script has values. `own`: the values were brought by this very run, which torchrun has started again.
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


class Opening:
    """Creates the daemon's model or joins it, for one rank, and settles whose values it has.

    Every rank decides by the daemon's answer to its creation. The first rank of each daemon deletes and imports, and
    the others wait until they see what it has done.
    """

    def __init__(self, client: paramshard.Client, connect: Callable[[], paramshard.Client], name: str, *,
                 existing: str, local_rank: int, run: str,
                 advise: Callable[[paramshard.ModelSummary | None], str]):
        """`advise`: what to do where the daemon has a model of another description."""
        self._client = client
        self._connect = connect
        self._name = name
        self._existing = existing
        self._local_rank = local_rank
        self._run = run
        self._advise = advise

    def settle(self, spec: ModelSpec, *, brings: bool, missing: paramshard.Error | None) -> Verdict:
        """Returns KEEP or FILL; then the model is there.

        `brings`: the script has values. `missing`: raised where the model would begin here, for a parameter that has
        neither a value nor a rule for one.

        AlreadyExistsError for a model that `existing` does not accept, and where the script's values would replace
        others; FailedPreconditionError where values were announced and have not come; DataLossError where they are
        lost.
        """
        if self._existing == "fresh" and not torchrun.is_restart():
            return self._begin_anew(spec, brings, missing)
        follow = brings or missing is not None
        try:
            found = self._create(spec, follow)
        except paramshard.AlreadyExistsError as error:
            if self._existing == "fresh":
                return self._begin_anew(spec, brings, missing)
            raise paramshard.AlreadyExistsError(f"{error}: {self._advise(self.known())}") from error
        if missing is not None and found.origin in _BEGINNINGS:
            if found.created:
                self._client.delete_model(self._name)
            raise missing
        own = self._is_own(found, spec) or (brings and found.origin == "imported" and self._is_of_first_rank(found))
        verdict = judge(found.origin, self._existing, brings=brings, own=own)
        if verdict is Verdict.DELETE:
            return self._begin_anew(spec, brings, missing)
        if verdict is Verdict.REFUSE:
            raise self._refusal(found)
        if verdict is Verdict.KEEP and brings and self._local_rank == 0 and found.origin != "imported":
            logging.getLogger("paramshard").warning(
                "open %s: goes on at commit %d; the values that this script brings are not used", self._name,
                found.commit_number)
        return verdict

    def fill(self, tensors: Callable[[], dict[str, Any]]) -> None:
        """Imports values, which all ranks call; the first one of each daemon has them."""
        if self._local_rank == 0:
            self._client.import_tensors(self._name, tensors(), run=self._run)
        else:
            self._wait_while_there(lambda known: known.origin not in _BEGINNINGS,
                                   "rank 0 of this daemon to import the values")

    def replace(self, history: str, tensors: Callable[[], dict[str, Any]]) -> None:
        """The same for a model that has had values, with the id of their history. No rank is attached, or will soon be.
        """
        if self._local_rank == 0:
            self._wait_while_there(lambda known: known.attached_ranks == 0, "all ranks to let go")
            self.fill(tensors)
        else:
            self._wait_while_there(lambda known: known.history_id != history,
                                   "rank 0 of this daemon to import the values")

    def known(self) -> paramshard.ModelSummary | None:
        """The model as the daemon lists it."""
        return next((known for known in self._client.models() if known.name == self._name), None)

    def deleted(self) -> paramshard.Error:
        """The error where the model was there and is not any more."""
        return paramshard.AbortedError(
            f"open {self._name}: the daemon has the model no longer: another client has deleted it, or the server was "
            "started without it; make the module and its optimizer again")

    def _wait_while_there(self, is_so: Callable[[paramshard.ModelSummary], bool], what: str) -> None:
        """AbortedError where the model is deleted meanwhile."""
        self.wait(lambda known: known is None or is_so(known), _PATIENCE, what)
        if self.known() is None:
            raise self.deleted()

    def wait(self, is_so: Callable[[paramshard.ModelSummary | None], bool], patience: float, what: str) -> None:
        """Looks until it is so: nobody tells what another rank has done before all are attached."""
        deadline = time.monotonic() + patience
        while not is_so(self.known()):
            if time.monotonic() > deadline:
                raise paramshard.DeadlineExceededError(
                    f"open {self._name}: timed out after {patience:.0f} s, waiting for {what}")
            time.sleep(_NAP)

    def _create(self, spec: ModelSpec, follow: bool) -> paramshard.CreatedModel:
        restore = "none" if self._existing == "fresh" else None
        return self._once_available(
            lambda: self._client.create_model(spec, restore=restore, values_follow=follow, run=self._run))

    def _begin_anew(self, spec: ModelSpec, brings: bool, missing: paramshard.Error | None) -> Verdict:
        if missing is not None:
            raise missing
        if self._local_rank == 0:
            with contextlib.suppress(paramshard.NotFoundError):
                self._once_available(lambda: self._client.delete_model(self._name))
        else:
            # Its first rank is attached to no other model than the one that it has made.
            self.wait(lambda known: known is not None and known.attached_ranks > 0 and
                      known.origin in ("initial", "imported"), _PATIENCE,
                      "rank 0 of this daemon to delete the model, and to open a new one")
        found = self._create(spec, brings)
        if found.origin not in ("initial", "importing", "imported"):
            raise paramshard.AbortedError(
                f"open {self._name}: the model was deleted, and another program has created and {found.origin} it")
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
            self.wait(lambda known: known is None or known.attached_ranks == 0, _PATIENCE, "all ranks to let go")
        return run == self._run

    def _is_of_first_rank(self, found: paramshard.CreatedModel) -> bool:
        """Returns true if rank 0 of this daemon, and of this job, has imported before this rank has asked."""
        if self._local_rank == 0:
            return False
        if torchrun.is_worker():
            return found.same_run
        try:
            self.wait(lambda known: known is not None and known.attached_ranks > 0, _ATTACH_PATIENCE,
                      "rank 0 of this daemon to attach")
        except paramshard.DeadlineExceededError:
            return False
        return True

    def _refusal(self, found: paramshard.CreatedModel) -> paramshard.Error:
        what = f"shard {self._name}: the daemon has"
        if found.origin == "lost":
            known = self.known()
            return paramshard.DataLossError(
                f'{what} lost it ({known.unusable if known is not None else "deleted since"}); existing="fresh" '
                "deletes it")
        if found.origin == "importing":
            return paramshard.FailedPreconditionError(
                f"{what} it without the values that its creator announced; load them before the optimizer is made, or "
                'delete the model with existing="fresh"')
        if found.origin == "imported":
            return paramshard.AlreadyExistsError(
                f"{what} imported values, which those of this script would replace; to keep them make the module in "
                'meta_init() and load nothing before the optimizer is made, to delete them use existing="fresh"')
        done = "restored it" if found.origin == "restored" else "it"
        return paramshard.AlreadyExistsError(
            f'{what} {done}, at commit {found.commit_number}: existing="resume" goes on from there, existing="fresh" '
            "deletes it, and another name= leaves it alone")

    def _once_available(self, call: Callable[[], Result]) -> Result:
        """Waits for a daemon that is started again, and for a save or a restore that is under way."""
        deadline = time.monotonic() + _SHORT_PATIENCE
        while True:
            try:
                return call()
            except paramshard.UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_NAP)
