"""What the Python package costs: a call against the command, and a sweep on Ray against threads.

    target/python/bin/python3 crates/python/benches/speed.py

with the package installed in that Python, and the command built. Medians count; there are bars.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import frontdesk

ROOT = Path(__file__).resolve().parents[3]
COMMAND = ROOT / "target/release/frontdesk"
SCENARIO = ROOT / "scenarios/echo-mixed.toml"
# So long that the command takes about a second.
DURATION = "600s"
TURNS = 25


def timed(what: Callable[[], object]) -> float:
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def run(*arguments: str | Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([COMMAND, *arguments], check=False, capture_output=True, env={**os.environ, "PATH": path})


def call() -> bool:
    """A run by the command, with its result as JSON, and by the package, with it as a data frame."""
    options = ["--arms", "stock", "--repeat", "1", "--threads", "1", "--duration", DURATION]

    def package() -> None:
        scenario = frontdesk.Scenario.load(SCENARIO, arms=["stock"], repeats=1, duration=DURATION)
        scenario.simulate(threads=1).summary()

    by = {"command": lambda: run("sim", SCENARIO, *options, "--json", "/dev/null"), "package": package}
    ratios, times = [], {name: [] for name in by}
    for turn in range(TURNS):
        # Each goes first in turn: the machine's speed changes from second to second.
        for name in sorted(by, reverse=turn % 2 == 0):
            times[name].append(timed(by[name]))
        ratios.append(times["package"][-1] / times["command"][-1])
    command, own, ratio = (statistics.median(of) for of in (times["command"], times["package"], ratios))
    quarters = statistics.quantiles(ratios)
    print(
        f"a run: {command:.3f} s by the command, {own:.3f} s by the package: "
        f"{100 * (ratio - 1):+.1f} % in the same turn (half of the turns {100 * (quarters[0] - 1):+.1f} to "
        f"{100 * (quarters[2] - 1):+.1f}), bar +5 %"
    )
    return ratio <= 1.05


def ray() -> bool:
    """A sweep by two threads, and on a Ray cluster of two nodes with a CPU each: of runs that take some tenths of a
    second, for which there is a bar, and of runs that take two milliseconds."""
    from ray.cluster_utils import Cluster

    # A short name, for sockets are in it.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        os.environ["RAY_TMPDIR"] = folder
        head = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        try:
            long, _ = ratio(cluster.address, "180s", turns=3), ratio(cluster.address, "1s", turns=3)
        finally:
            cluster.shutdown()
    print(f"bar for the long ones 0.9: {long:.2f}")
    return long >= 0.9


def ratio(address: str, duration: str, turns: int) -> float:
    """Of a thousand runs, each of so much modelled time."""
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "s.toml"
        sweep.write_text(
            f'scenario = "{SCENARIO}"\narms = ["frontdesk"]\nseeds = 100\nset = {{ duration = "{duration}", warmup = "0s" }}\n'
            "[latin-hypercube]\npoints = 10\nranges.policy.tavs.pb_ratio = { from = 0.05, to = 0.5 }\n"
        )
        times = []
        for turn in range(turns):
            by = {"threads": ["--jobs", "2"], "ray": ["--ray", address]}
            # Each goes first in turn: the machine's speed changes meanwhile.
            took = {}
            for name in sorted(by, reverse=turn % 2 == 0):
                out = f"{folder}/{name}-{turn}"
                took[name] = timed(lambda: run("sweep", sweep, "--out", out, *by[name]))
            rows = [Path(f"{folder}/{name}-{turn}/rows.parquet").read_bytes() for name in by]
            assert rows[0] == rows[1], "the rows differ"
            times.append(took)
            each = f"{took['threads']:.2f} s by two threads, {took['ray']:.2f} s on Ray"
            print(f"1000 runs of {duration}: {each}", flush=True)
    ratios = sorted(took["threads"] / took["ray"] for took in times)
    median = statistics.median(ratios)
    print(f"1000 runs of {duration}: {median:.2f} times as fast on Ray ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return median


if __name__ == "__main__":
    # Both are measured, whatever comes of the first.
    sys.exit(not all([call(), ray()]))
