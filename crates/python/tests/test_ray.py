"""Sweeps on Ray: a cluster of two nodes on this machine, and what happens when parts of it die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from ray.cluster_utils import Cluster

from frontdesk import ray as driver

ROOT = Path(__file__).resolve().parents[3]
STORE = 80 << 20
# Generous: nothing here is about speed.
PATIENCE_S = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head that makes no runs, and a node that makes one at a time."""
    # A short name, for sockets are in it: pytest's own would be too long.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        made = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE,
                "include_dashboard": False,
                # A node that dies is missed within some seconds, and one that only waits for a CPU is not.
                "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 20},
            },
        )
        made.add_node(num_cpus=1, object_store_memory=STORE)
        yield made
        made.shutdown()


def _write_sweep(folder: Path, seeds: int) -> Path:
    text = f"""
        scenario = {str(ROOT / "scenarios/echo-mixed.toml")!r}
        arms = ["stock", "frontdesk"]
        seeds = {seeds}
        set = {{ duration = "10s", warmup = "0s" }}
        grid.vm.cpu.count = [1, 2]
    """
    (folder / "s.toml").write_text(text)
    return folder / "s.toml"


def _start(*arguments: str | Path, path: str | None = None) -> subprocess.Popen[str]:
    # The driver is the first python3 there is.
    path = path or f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [os.environ["FRONTDESK"], "sweep", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})


def _told(process: subprocess.Popen[str]) -> tuple[str, str]:
    return process.communicate(timeout=PATIENCE_S)


def _done(process: subprocess.Popen[str]) -> None:
    told = _told(process)
    assert process.returncode == 0, told


def _until(there: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not there():
        assert process.poll() is None, _told(process)
        assert time.monotonic() < end, "it makes no run"
        time.sleep(0.02)


def _parts(out: Path) -> list[Path]:
    return sorted(out.glob("rows-*.parquet"))


def _whole(sweep: Path, out: Path) -> bytes:
    """The rows by threads."""
    _done(_start(sweep, "--out", out))
    return (out / "rows.parquet").read_bytes()


def test_a_node_that_dies_loses_no_row_and_makes_none_twice(cluster, tmp_path):
    sweep = _write_sweep(tmp_path, seeds=300)
    second = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    process = _start(sweep, "--out", tmp_path / "ray", "--ray", cluster.address)
    _until(lambda: _parts(tmp_path / "ray"), process)
    cluster.remove_node(second, allow_graceful=False)
    assert process.poll() is None, "it died in the middle"
    _done(process)
    rows = (tmp_path / "ray/rows.parquet").read_bytes()
    assert rows == _whole(sweep, tmp_path / "threads")
    assert pq.read_table(tmp_path / "ray/rows.parquet").column("run").unique().to_pylist() == list(range(1200))


def test_a_driver_that_dies_is_said_and_a_sweep_goes_on_where_it_was(cluster, tmp_path):
    sweep, out = _write_sweep(tmp_path, seeds=300), tmp_path / "ray"
    process = _start(sweep, "--out", out, "--ray", cluster.address)
    _until(lambda: _parts(out), process)
    second = _start(sweep, "--out", out)
    assert "another sweep writes into" in _told(second)[1] and second.returncode == 2
    [driver] = [child for child in psutil.Process(process.pid).children() if "frontdesk.ray" in child.cmdline()]
    driver.kill()
    told = _told(process)[1]
    assert process.returncode == 2 and "run the sweep again, and it goes on from there" in told, told
    before = len(_parts(out))
    assert before > 0

    # The command itself is killed, and its driver ends by itself.
    process = _start(sweep, "--out", out, "--ray", cluster.address)
    _until(lambda: len(_parts(out)) > before, process)
    [driver] = [child for child in psutil.Process(process.pid).children() if "frontdesk.ray" in child.cmdline()]
    process.send_signal(signal.SIGKILL)
    _told(process)
    driver.wait(timeout=PATIENCE_S)

    _done(_start(sweep, "--out", out, "--ray", cluster.address))
    assert (out / "rows.parquet").read_bytes() == _whole(sweep, tmp_path / "threads")
    assert not _parts(out)


def test_a_cluster_of_hosts_has_the_same_rows(cluster, tmp_path):
    sweep = tmp_path / "s.toml"
    sweep.write_text(f"""
        scenario = {str(ROOT / "scenarios/desktops/office.toml")!r}
        arms = ["stock"]
        set = {{ duration = "5s", warmup = "1s" }}
        cluster.desktops = 20
        cluster.hosts = 2
        cluster.room = 20
        cluster.placement = "spread"
        cluster.mix = {{ task-worker = 3, developer = 1 }}
        cluster.in-use = [0.5, 0.9]
        cluster.failure = [{{ hosts = 1, from = 1 }}]
        cluster.limit = {{ measure = "p95_ms", most = 20.0 }}
    """)
    _done(_start(sweep, "--out", tmp_path / "ray", "--ray", cluster.address))
    assert (tmp_path / "ray/rows.parquet").read_bytes() == _whole(sweep, tmp_path / "threads")
    rows = pq.read_table(tmp_path / "ray/rows.parquet").to_pandas()
    assert rows.groupby("cluster.part")["cluster.host"].nunique().to_list() == [2, 1]


def test_a_run_that_fails_is_a_row_with_its_error(cluster, tmp_path):
    sweep = _write_sweep(tmp_path, seeds=1)
    (tmp_path / "tasks.toml").write_text(_TASKS)
    (tmp_path / "wrong.json").write_text('{ "tasks": { "one": { "fly": 1 } } }')
    (tmp_path / "good.json").write_text('{ "tasks": { "one": { "loop": -1, "run": 1000, "sleep": 1000 } } }')
    sweep.write_text('scenario = "tasks.toml"\ngrid."vm.0.workloads.0.file" = ["good.json", "wrong.json"]')
    for out, how in (("ray", ["--ray", cluster.address]), ("threads", [])):
        process = _start(sweep, "--out", tmp_path / out, *how)
        told = _told(process)
        assert process.returncode == 1, told
    assert (tmp_path / "ray/rows.parquet").read_bytes() == (tmp_path / "threads/rows.parquet").read_bytes()
    errors = pq.read_table(tmp_path / "ray/rows.parquet").column("error").drop_null().to_pylist()
    assert len(errors) == 1 and f"{tmp_path}/wrong.json: tasks.one.fly" in errors[0]


@pytest.mark.parametrize(
    ("version", "suits"),
    [
        ("2.39.0", False),
        ("2.40.0", True),
        ("2.9.3", False),
        ("2.100.0rc1", True),
        ("3.1", False),
        ("1.50.0", False),
        ("dev", False),
    ],
)
def test_only_a_ray_of_the_versions_that_the_package_asks_for_is_used(monkeypatch, version, suits):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(__version__=version))
    # This one can do nothing, and so what is used of it fails.
    says = "cannot use Ray at auto" if suits else f"has ray {version}, and this is written for 2.40 and later"
    with pytest.raises(driver._Trouble, match=re.escape(says)):
        driver._connect("auto")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    assert wanted == ["ray>=2.40,<3"]


def test_what_is_missing_is_said_with_what_to_do(cluster, tmp_path):
    sweep = _write_sweep(tmp_path, seeds=1)

    def told(path: str | None = None, address: str = cluster.address) -> str:
        process = _start(sweep, "--out", tmp_path / "out", "--ray", address, path=path)
        said = _told(process)[1]
        assert process.returncode == 2, said
        return said

    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert "cannot start python3" in told(str(nothing)) and "pip install '.[ray]'" in told(str(nothing))
    # A Python without the package, one without Ray, one with another Ray, and one of another build.
    for name, script, says in (
        ("bare", "import sys; sys.exit('no module')", "ended before all runs were made"),
        ("absent", "import sys; sys.modules['ray'] = None; {run}", "has no package ray"),
        ("other", "import types, sys; sys.modules['ray'] = types.SimpleNamespace(__version__='3.1'); {run}", "has ray 3.1"),
        ("build", "import frontdesk._worker as w; own = w._frontdesk.SweepRuns; "
         "w._frontdesk.SweepRuns = lambda built, sweep: own('0.0 x', sweep); {run}", "install the package again"),
    ):
        run = "import runpy; runpy.run_module('frontdesk.ray', run_name='__main__', alter_sys=True)"
        folder = tmp_path / name
        folder.mkdir()
        text = script.replace("{run}", run)
        (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{text}" "$3"\n')
        (folder / "python3").chmod(0o755)
        said = told(f"{folder}:{os.environ['PATH']}")
        assert says in said and "install" in said, said
    said = told(address="127.0.0.1:1")
    assert "cannot use Ray at 127.0.0.1:1" in said and "ray start --head" in said, said


_TASKS = """
name = "tasks"
description = "Tasks of rt-app."
repeats = 1
duration = "1s"
warmup = "0s"
think_scale = 1.0
guest = { kernel = "6.1-cloud" }
host = { vm_cpus = [0], client_cpus = [1] }
vm = [{ name = "vm", workloads = [{ name = "tasks", run = "rt-app", file = "good.json" }] }]
arms.stock = {}
"""
