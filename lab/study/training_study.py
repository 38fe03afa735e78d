"""Trains digits and the language model at every format and state precision beside FP32: python3 training_study.py --help

Every run sees the same data in the same order as the others of its seed. Runs go to OUT, one file of JSON lines each, and those
that are there are not repeated. The tables go into lab/learning.md, between its marks, and the curves into lab/pictures/.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "lab/learning.md"
SEEDS = (1, 2, 3)
REFERENCE = "FP32"


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    title: str
    program: str
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to store a model: the arguments that it differs by from FP32 planes, masters and moments.

    `limit`: the language model's validation loss may be so many percent from FP32's in the mean of the seeds.
    """

    name: str
    group: str
    limit: float
    arguments: tuple


TASKS = (
    Task("lm", "language model", "paramshard-lm", ("--report-interval=55",)),
    Task("digits", "digits", "paramshard-digits", ()),
)
DIGITS_LIMIT = 1.0  # of accuracy, in points, for every variant


def format_variant(name, limit, *arguments):
    return Variant(name, "formats", limit, (f"--format={re.split('[ ,]', name)[0]}", *arguments))


def state_variant(name, limit, *arguments):
    return Variant(name, "states", limit, (f"--format={re.split('[ ,]', name)[0]}", *arguments))


VARIANTS = (
    Variant(REFERENCE, "reference", 0.0, ("--format=FP32",)),
    format_variant("BF16", 0.5),
    format_variant("FP16", 0.5),
    format_variant("FP8_TENSOR_CURRENT", 1.5),
    format_variant("FP8_TENSOR_CURRENT E5M2", 2.5, "--element=E5M2"),
    format_variant("FP8_TENSOR_DELAYED", 1.5),
    format_variant("FP8_BLOCK_128X128", 1.5),
    format_variant("MXFP8", 1.5),
    format_variant("MXFP8 E5M2", 2.5, "--element=E5M2"),
    format_variant("MXFP8_2D", 1.5),
    format_variant("NVFP4_2D", 4.0),
    format_variant("NVFP4_2D, embedding and head BF16", 4.0, "--rule=embedding.*=BF16", "--rule=head.weight=BF16"),
    state_variant("FP32, moments BF16", 0.5, "--moments=BF16"),
    state_variant("FP32, moments FP16", 0.5, "--moments=FP16"),
    state_variant("FP32, moments FP8", 1.5, "--moments=FP8"),
    state_variant("FP32, exp_avg FP8", 1.5, "--exp-avg=FP8"),
    state_variant("FP32, exp_avg_sq FP8", 1.5, "--exp-avg-sq=FP8"),
    state_variant("BF16, master BF16 + remainder", 0.5, "--master=BF16_REMAINDER"),
    state_variant("BF16, master BF16 + remainder, moments BF16", 0.5, "--master=BF16_REMAINDER", "--moments=BF16"),
    state_variant("MXFP8, moments BF16", 1.5, "--moments=BF16"),
    state_variant("MXFP8, moments FP16", 1.5, "--moments=FP16"),
    state_variant("MXFP8, moments FP8", 1.5, "--moments=FP8"),
    state_variant("NVFP4_2D, moments BF16", 4.0, "--moments=BF16"),
    state_variant("NVFP4_2D, moments FP8", 4.0, "--moments=FP8"),
)


def applies(variant, task):
    """The digits' perceptron has no embedding."""
    return task.name == "lm" or not any(argument.startswith("--rule=") for argument in variant.arguments)


def slug(text):
    return re.sub(r"[^A-Za-z0-9_]+", "-", text)


# --- Runs


class Daemon:
    """A paramshardd with one cpu device, on sockets of its own. Models are independent: it serves all runs."""

    def __init__(self, bin_dir, log):
        self.bin_dir = bin_dir
        self.directory = tempfile.TemporaryDirectory(prefix="paramshard-study-")
        self.log = open(log, "w")

    def __enter__(self):
        command = [self.bin_dir / "paramshardd", f"--socket-dir={self.directory.name}", "--device=cpu:0"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 20
        while self.control("version").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"study: the daemon did not start; see {self.log.name}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=20)
        self.directory.cleanup()

    def control(self, *arguments):
        command = [self.bin_dir / "paramshardctl", f"--socket-dir={self.directory.name}", *arguments]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclasses.dataclass(frozen=True)
class Run:
    task: Task
    variant: Variant
    seed: int

    def file(self, out):
        return out / self.task.name / f"{slug(self.variant.name)}-seed{self.seed}.jsonl"


def train(run, daemon, out):
    file = run.file(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = [
        daemon.bin_dir / run.task.program,
        f"--socket-dir={daemon.directory.name}",
        f"--model={slug(run.task.name + '-' + run.variant.name)}-{run.seed}",
        f"--seed={run.seed}",
        f"--report={partial}",
        *run.task.arguments,
        *run.variant.arguments,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise RuntimeError(f"{run.task.name}, {run.variant.name}, seed {run.seed}: {result.stderr.strip()}")
    partial.rename(file)


def train_all(runs, bin_dir, out, jobs):
    out.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not run.file(out).exists()]
    print(f"{len(runs)} runs, {len(runs) - len(missing)} of them done before")
    failed = 0
    with Daemon(bin_dir, out / "daemon.log") as daemon, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(train, run, daemon, out): run for run in missing}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            run = futures[future]
            error = future.exception()
            failed += error is not None
            print(f"{done}/{len(missing)} {run.task.name} {run.variant.name} seed {run.seed}", error or "", flush=True)
    return failed


# --- Results


def load_curve(file):
    events = (json.loads(line) for line in file.read_text().splitlines())
    return [event for event in events if event["event"] == "progress"]


def load_curves(task, out):
    """By variant, the curves of its seeds; variants without all of their runs are left out."""
    curves = {}
    for variant in VARIANTS:
        files = [Run(task, variant, seed).file(out) for seed in SEEDS]
        if all(file.exists() for file in files):
            curves[variant.name] = [load_curve(file) for file in files]
    return curves


def last(curves, key):
    return [curve[-1][key] for curve in curves]


def mean_and_spread(values, form):
    mean = round(statistics.mean(values), 6) + 0.0  # never -0
    return f"{mean:{form}} ± {statistics.stdev(values):{form.lstrip('+')}}"


def loss_distances(curves, reference):
    """Returns, in percent, the difference of each seed's last validation loss from the same seed's in FP32."""
    pairs = zip(last(curves, "validation_loss"), last(reference, "validation_loss"))
    return [100 * (mine / other - 1) for mine, other in pairs]


def accuracy_distances(curves, reference):
    """The same of accuracies, in points."""
    return [100 * (mine - other) for mine, other in zip(last(curves, "accuracy"), last(reference, "accuracy"))]


def table(lm, digits):
    rows = [
        "| planes and state | language model: validation loss | from FP32, % | limit, % | digits: accuracy, % | from FP32, points |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant in VARIANTS:
        cells = [variant.name] + 5 * [""]
        if curves := lm.get(variant.name):
            cells[1] = mean_and_spread(last(curves, "validation_loss"), ".4f")
        if curves and variant.name != REFERENCE:
            cells[2:4] = mean_and_spread(loss_distances(curves, lm[REFERENCE]), "+.2f"), f"{variant.limit}"
        if curves := digits.get(variant.name):
            cells[4] = mean_and_spread([100 * accuracy for accuracy in last(curves, "accuracy")], ".2f")
        if curves and variant.name != REFERENCE:
            cells[5] = mean_and_spread(accuracy_distances(curves, digits[REFERENCE]), "+.2f")
        if any(cells[1:]):
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def beyond_limits(lm, digits):
    """Names of the variants that are farther from FP32, in the mean, than they may be."""
    names = []
    for variant in VARIANTS:
        loss = loss_distances(lm[variant.name], lm[REFERENCE]) if variant.name in lm else [0]
        accuracy = accuracy_distances(digits[variant.name], digits[REFERENCE]) if variant.name in digits else [0]
        if abs(statistics.mean(loss)) > variant.limit or abs(statistics.mean(accuracy)) > DIGITS_LIMIT:
            names.append(variant.name)
    return names


def write_page(text):
    page = PAGE.read_text()
    begin, end = "<!-- table: begin -->\n", "<!-- table: end -->"
    head, rest = page.split(begin)
    PAGE.write_text(head + begin + text + "\n" + end + rest.split(end)[1])


def mean_curve(curves, key):
    return [statistics.mean(event[key] for event in events) for events in zip(*curves)]


def distance_curve(task, curves, reference):
    """From FP32 at every report: of the language model's loss in percent, of the digits' accuracy in points."""
    key = "validation_loss" if task.name == "lm" else "accuracy"
    pairs = zip(mean_curve(curves, key), mean_curve(reference, key))
    return [100 * (mine / other - 1) if task.name == "lm" else 100 * (mine - other) for mine, other in pairs]


def plot(task, curves, file):
    """Above the curves themselves, below how far they are from FP32, means of the seeds; one column for each group."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "paramshard", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), sharex=True, sharey="row", layout="constrained")
    steps = [event["step"] for event in curves[REFERENCE][0]]
    for column, group in enumerate(("formats", "states")):
        top, bottom = axes[:, column]
        top.plot(steps, mean_curve(curves[REFERENCE], "loss"), color="gray", linestyle=":", label="FP32, training loss")
        top.plot(steps, mean_curve(curves[REFERENCE], "validation_loss"), color="black", label=REFERENCE)
        bottom.axhline(0, color="black", linewidth=0.8)
        members = [v for v in VARIANTS if v.group == group and v.name in curves]
        for index, variant in enumerate(members):
            style = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--", "linewidth": 1}
            top.plot(steps, mean_curve(curves[variant.name], "validation_loss"), label=variant.name, **style)
            bottom.plot(steps, distance_curve(task, curves[variant.name], curves[REFERENCE]), **style)
        top.set_title(group)
        top.legend(loc="upper right")
        bottom.set_xlabel("step")
    axes[0][0].set_ylabel("validation loss, nats")
    axes[1][0].set_ylabel("loss from FP32, %" if task.name == "lm" else "accuracy from FP32, points")
    if task.name == "digits":
        axes[0][0].set_yscale("log")
    figure.suptitle(f"{task.title}: validation loss, mean of {len(SEEDS)} seeds")
    figure.savefig(file, metadata={"Date": None})


def report(out):
    curves = {task.name: load_curves(task, out) for task in TASKS}
    for task in TASKS:
        if REFERENCE not in curves[task.name]:
            sys.exit(f"study: {out} lacks runs of {task.name} in FP32 with seeds {SEEDS}")
    write_page(table(curves["lm"], curves["digits"]))
    for task in TASKS:
        plot(task, curves[task.name], ROOT / f"lab/pictures/training-{task.name}.svg")
    beyond = beyond_limits(curves["lm"], curves["digits"])
    if beyond:
        print("farther from FP32 than their limits:", *beyond, sep="\n  ")
    return len(beyond)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/study", help="folder that keeps runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", default="", help="run only variants whose names contain this text")
    parser.add_argument("--no-report", action="store_true", help="do not update lab/")
    options = parser.parse_args()
    runs = [Run(task, variant, seed) for task in TASKS for variant in VARIANTS for seed in SEEDS
            if applies(variant, task) and options.only in variant.name]
    failed = train_all(runs, options.bin_dir, options.out, options.jobs)
    if not options.no_report:
        failed += report(options.out)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
