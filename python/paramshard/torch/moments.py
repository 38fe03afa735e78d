"""The step of the daemon's moments, which an optimizer's state_dict names instead of holding them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paramshard

_RECORD = "paramshard"  # in each group of a state_dict: tools that rearrange a state_dict keep its groups


class Moments:
    """Names the moments of a model by their commit, and by the history that counts it.

    A restored state begins another history and has the moments that were saved, so each commit records the history that
    it was made in. An import also begins a history and leaves the moments alone: one set of moments may
    belong to several histories.
    """

    def __init__(self, model: str):
        self._model = model
        self._commit_number = 0
        self._histories: list[str] = []  # the present one is the last

    @property
    def history(self) -> str:
        """The id of the daemon's present history."""
        return self._histories[-1]

    def open(self, history: str, commit_number: int, recorded: str | None) -> None:
        """Notes that the daemon has opened the model. `recorded`: the history that its last commit recorded, if any."""
        if not self._histories and recorded is not None:
            self._histories.append(recorded)
        self._histories.append(history)
        self._commit_number = commit_number

    def step(self) -> tuple[int, list[str]]:
        """Counts a commit. Returns the argument of `undo`."""
        before = self._commit_number, self._histories
        self._commit_number, self._histories = self._commit_number + 1, self._histories[-1:]
        return before

    def undo(self, before: tuple[int, list[str]]) -> None:
        """Takes back a step that failed."""
        self._commit_number, self._histories = before

    def add_to(self, groups: Iterable[dict[str, Any]]) -> None:
        """Adds the record to the groups of a state_dict."""
        for group in groups:
            group[_RECORD] = {"model": self._model, "commit_number": self._commit_number,
                              "histories": list(self._histories)}

    def take_from(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns the state_dict without the record. FailedPreconditionError if the daemon has other moments."""
        groups = state_dict["param_groups"]
        record = next((group[_RECORD] for group in groups if _RECORD in group), None)
        if record is None and not state_dict["state"]:
            record = {"commit_number": 0}  # an optimizer that has made no step
        if record is None:
            raise self._refusal("one that names no commit")
        number, histories = record["commit_number"], record.get("histories", [])
        if number != self._commit_number:
            of = f" of {record['model']}" if record.get("model", self._model) != self._model else ""
            raise self._refusal(f"one of commit {number}{of}")
        if number and not set(histories) & set(self._histories):
            raise self._refusal(f"one of commit {number} of another training")
        return state_dict | {"param_groups": [{key: value for key, value in group.items() if key != _RECORD}
                                              for group in groups]}

    def _refusal(self, what: str) -> paramshard.FailedPreconditionError:
        return paramshard.FailedPreconditionError(
            f"load_state_dict: want a state of {self._model} at commit {self._commit_number}, as the daemon has it, "
            f"got {what}: moments are in the daemon, and not in a state_dict. To go on where the daemon is, use "
            'existing="resume" and load nothing; to go back, restore a checkpoint of the daemon (paramshardctl restore '
            f"{self._model}); to set rates alone, change optimizer.param_groups")
