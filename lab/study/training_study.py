"""Trains digits at every format and state precision beside FP32: python3 training_study.py --help

Every run sees the same data in the same order as the others of its seed. Runs go to OUT, one file of JSON lines each, and
runs that are there are not repeated. The table goes into lab/learning.md, between its marks, and the curves into
lab/pictures/training-digits.svg.
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
class Variant:
    """One way to store a model: the arguments that it differs by from FP32 planes, masters and moments."""

    name: str
    group: str
    arguments: tuple


LIMIT = 1.0  # largest distance of a variant's mean accuracy from FP32's, in points


def format_variant(name, *arguments):
    return Variant(name, "formats", (f"--format={re.split('[ ,]', name)[0]}", *arguments))


def state_variant(name, *arguments):
    return Variant(name, "states", (f"--format={re.split('[ ,]', name)[0]}", *arguments))


VARIANTS = (
    Variant(REFERENCE, "reference", ("--format=FP32",)),
    format_variant("BF16"),
    format_variant("FP16"),
    format_variant("FP8_TENSOR_CURRENT"),
    format_variant("FP8_TENSOR_CURRENT E5M2", "--element=E5M2"),
    format_variant("FP8_TENSOR_DELAYED"),
    format_variant("FP8_BLOCK_128X128"),
    format_variant("MXFP8"),
    format_variant("MXFP8 E5M2", "--element=E5M2"),
    format_variant("MXFP8_2D"),
    format_variant("NVFP4_2D"),
    state_variant("FP32, moments BF16", "--moments=BF16"),
    state_variant("FP32, moments FP16", "--moments=FP16"),
    state_variant("FP32, moments FP8", "--moments=FP8"),
    state_variant("FP32, exp_avg FP8", "--exp-avg=FP8"),
    state_variant("FP32, exp_avg_sq FP8", "--exp-avg-sq=FP8"),
    state_variant("BF16, master BF16 + remainder", "--master=BF16_REMAINDER"),
    state_variant("BF16, master BF16 + remainder, moments BF16", "--master=BF16_REMAINDER", "--moments=BF16"),
    state_variant("MXFP8, moments BF16", "--moments=BF16"),
    state_variant("MXFP8, moments FP16", "--moments=FP16"),
    state_variant("MXFP8, moments FP8", "--moments=FP8"),
    state_variant("NVFP4_2D, moments BF16", "--moments=BF16"),
    state_variant("NVFP4_2D, moments FP8", "--moments=FP8"),
)


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
    variant: Variant
    seed: int

    def file(self, out):
        return out / "digits" / f"{slug(self.variant.name)}-seed{self.seed}.jsonl"


def train(run, daemon, out):
    file = run.file(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = [
        daemon.bin_dir / "paramshard-digits",
        f"--socket-dir={daemon.directory.name}",
        f"--model={slug(run.variant.name)}-{run.seed}",
        f"--seed={run.seed}",
        f"--report={partial}",
        *run.variant.arguments,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise RuntimeError(f"{run.variant.name}, seed {run.seed}: {result.stderr.strip()}")
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
            print(f"{done}/{len(missing)} {run.variant.name} seed {run.seed}", error or "", flush=True)
    return failed


# --- Results


def load_curve(file):
    events = (json.loads(line) for line in file.read_text().splitlines())
    return [event for event in events if event["event"] == "progress"]


def load_curves(out):
    """By variant, the curves of its seeds; variants without all of their runs are left out."""
    curves = {}
    for variant in VARIANTS:
        files = [Run(variant, seed).file(out) for seed in SEEDS]
        if all(file.exists() for file in files):
            curves[variant.name] = [load_curve(file) for file in files]
    return curves


def last(curves, key):
    return [curve[-1][key] for curve in curves]


def mean_and_spread(values, form):
    mean = round(statistics.mean(values), 6) + 0.0  # never -0
    return f"{mean:{form}} ± {statistics.stdev(values):{form.lstrip('+')}}"


def distances(curves, reference):
    """Returns, in points, the difference of each seed's last accuracy from the same seed's in FP32."""
    return [100 * (mine - other) for mine, other in zip(last(curves, "accuracy"), last(reference, "accuracy"))]


def table(curves):
    rows = ["| planes and state | accuracy, % | from FP32, points |", "| --- | --- | --- |"]
    for name, mine in curves.items():
        distance = mean_and_spread(distances(mine, curves[REFERENCE]), "+.2f") if name != REFERENCE else ""
        accuracy = mean_and_spread([100 * value for value in last(mine, "accuracy")], ".2f")
        rows.append(f"| {name} | {accuracy} | {distance} |")
    return "\n".join(rows)


def beyond_limit(curves):
    """Names of the variants that are farther from FP32, in the mean, than they may be."""
    return [name for name, mine in curves.items() if abs(statistics.mean(distances(mine, curves[REFERENCE]))) > LIMIT]


def write_page(text):
    page = PAGE.read_text()
    begin, end = "<!-- table: begin -->\n", "<!-- table: end -->"
    head, rest = page.split(begin)
    PAGE.write_text(head + begin + text + "\n" + end + rest.split(end)[1])


def mean_curve(curves, key):
    return [statistics.mean(event[key] for event in events) for events in zip(*curves)]


def distance_curve(curves, reference):
    """From FP32 at every report: of the accuracy, in points."""
    pairs = zip(mean_curve(curves, "accuracy"), mean_curve(reference, "accuracy"))
    return [100 * (mine - other) for mine, other in pairs]


def plot(curves, file):
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
            bottom.plot(steps, distance_curve(curves[variant.name], curves[REFERENCE]), **style)
        top.set_title(group)
        top.legend(loc="upper right")
        bottom.set_xlabel("step")
    axes[0][0].set_ylabel("validation loss, nats")
    axes[1][0].set_ylabel("accuracy from FP32, points")
    axes[0][0].set_yscale("log")
    figure.suptitle(f"digits: validation loss, mean of {len(SEEDS)} seeds")
    figure.savefig(file, metadata={"Date": None})


def report(out):
    curves = load_curves(out)
    if REFERENCE not in curves:
        sys.exit(f"study: {out} lacks runs in FP32 with seeds {SEEDS}")
    write_page(table(curves))
    plot(curves, ROOT / "lab/pictures/training-digits.svg")
    beyond = beyond_limit(curves)
    if beyond:
        print("farther from FP32 than the limit:", *beyond, sep="\n  ")
    return len(beyond)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/study", help="folder that keeps runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", default="", help="run only variants whose names contain this text")
    parser.add_argument("--no-report", action="store_true", help="do not update lab/")
    options = parser.parse_args()
    runs = [Run(variant, seed) for variant in VARIANTS for seed in SEEDS if options.only in variant.name]
    failed = train_all(runs, options.bin_dir, options.out, options.jobs)
    if not options.no_report:
        failed += report(options.out)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
