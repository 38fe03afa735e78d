"""Draws steps of a trace that `paramshardctl trace` has written.

    python3 lab/study/trace_plot.py trace.json lab/pictures/trace-step.svg --model sums-at-commit --commits 1 2

It needs matplotlib. A row is a thread of the trace, a colour what it is at.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
from typing import Any

COLOURS = {"command": "0.6", "gather": "C0", "wait": "0.88", "push": "C2", "sum": "C1", "vote": "black", "apply": "C3",
           "share_amaxes": "C4", "encode": "C5", "answer": "C6"}
LABELLED = ("gather", "push", "sum", "apply")


def spans_of(document: dict[str, Any], model: str, commits: set[int]) -> dict[str, list[dict[str, Any]]]:
    """By row, in the order of their names."""
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in document["traceEvents"]
             if event["ph"] == "M" and event["name"] == "thread_name"}
    rows: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in document["traceEvents"]:
        name = names.get((event["pid"], event["tid"]), "")
        if event["ph"] == "X" and f" of {model}: " in name and event["args"]["commit"] in commits:
            rows[name].append(event)
    return dict(sorted(rows.items()))


def draw(rows: dict[str, list[dict[str, Any]]], title: str, out: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "paramshard", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import patches, pyplot

    figure, axes = pyplot.subplots(figsize=(12, 0.6 * len(rows) + 1.2), layout="constrained")
    start = min(event["ts"] for events in rows.values() for event in events)
    for index, events in enumerate(rows.values()):
        for event in events:
            begin, length = (event["ts"] - start) / 1e3, event["dur"] / 1e3
            axes.broken_barh([(begin, max(length, 0.15))], (index - 0.4, 0.8), color=COLOURS[event["cat"]], linewidth=0)
            if event["cat"] in LABELLED:
                axes.text(begin, index - 0.42, event["name"].split()[-1], fontsize=5, rotation=45, va="bottom")
    axes.set_yticks(range(len(rows)), [name.replace(" of ", "\nof ") for name in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    seen = {event["cat"] for events in rows.values() for event in events}
    axes.legend(handles=[patches.Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in seen],
                loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(seen), frameon=False)
    axes.set_title(title)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, help="SVG file to write")
    parser.add_argument("--model", required=True)
    parser.add_argument("--commits", type=int, nargs="+", required=True, help="commits of the steps to plot")
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    rows = spans_of(json.loads(options.trace.read_text()), options.model, set(options.commits))
    if not rows:
        parser.error(f"{options.trace}: no steps of {options.model} in commits {options.commits}")
    draw(rows, options.title, options.out)


if __name__ == "__main__":
    main()
