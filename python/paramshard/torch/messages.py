"""Parts of messages."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 5


def some(names: Sequence[str]) -> str:
    """Returns the first names, and the number of the others: "a, b, c, d, e and 3 more"."""
    return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
