"""Scenarios and results: what the command says and writes is what Python gets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import frontdesk

ECHO = "scenarios/echo-mixed.toml"


@pytest.fixture(scope="module")
def result() -> frontdesk.Result:
    root = Path(__file__).resolve().parents[3]
    scenario = frontdesk.Scenario.load(root / ECHO, set={"vm.cpu.count": 2}, repeats=2, duration="2s")
    return scenario.simulate(seed=7)


def test_a_result_is_that_of_the_command(command, tmp_path, result):
    file = tmp_path / "result.json"
    told = command("sim", ECHO, "--set", "vm.cpu.count=2", "--repeat", "2", "--duration", "2s", "--seed", "7", "--json", file)
    assert told.returncode in (0, 1), told.stderr
    assert result.outcome == json.loads(file.read_text())
    assert result.passed == (told.returncode == 0)


def test_responses_are_in_every_form_the_same(result):
    array = result.response_ms("stock", "mixed")
    assert array.dtype == np.float64 and len(array) > 20
    frame = result.responses()
    own = frame[(frame.arm == "stock") & (frame.vm == "mixed")]
    assert np.array_equal(own.response_ms.to_numpy(), array)
    assert np.array_equal(own[own.repeat == 2].response_ms, result.response_ms("stock", "mixed", repeat=2))
    summary = result.summary().set_index(["arm", "repeat", "vm"])
    row = summary.loc[("stock", 1, "mixed")]
    first = result.response_ms("stock", "mixed", repeat=1)
    assert row["count"] == len(first) and row["mean_ms"] == pytest.approx(first.mean()) and row["max_ms"] == first.max()
    assert summary.cpu_ms.notna().sum() > 0 and set(result.checks().columns) == {"name", "value", "spread", "bar", "pass"}


def test_a_trace_has_the_names_of_vms_and_every_field(result):
    assert "frontdesk" in result.traced() and "stock" not in result.traced()
    trace = result.trace("frontdesk")
    runs = trace["runs"].to_pandas()
    assert set(runs.vm) >= {"mixed", "cpu-1", "cpu-2"} and (runs.end_ns >= runs.start_ns).all()
    assert trace["boosts"].num_rows > 0 and trace["boosts"].schema.field("hit").type == "bool"
    assert trace["packets"].num_rows > 0 and trace["beliefs"].num_rows > 0 and trace["tasks"].num_rows > 0
    with pytest.raises(frontdesk.Error, match='no trace of arm "stock"; there are those of: .*frontdesk'):
        result.trace("stock")




def test_errors_are_in_the_words_of_the_command(command):
    for setting in ({"vm.cpu.count": 65}, {"vm.cpu.cuont": 1}, {"duration": "soon"}, {"nonsense": True}):
        with pytest.raises(frontdesk.Error) as error:
            frontdesk.Scenario.load(ECHO, set=setting)
        # What --set says of it is part of the message.
        assignment = [f"{key}={json.dumps(value)}" for key, value in setting.items()]
        told = command("sim", ECHO, "--set", *assignment)
        assert told.returncode == 2 and told.stderr == f"frontdesk: {error.value}\n"
    for path in ("scenarios/no-such.toml", "scenarios/mm/desktop.toml"):
        with pytest.raises(frontdesk.Error) as error:
            frontdesk.Scenario.load(path).simulate()
        told = command("sim", path)
        assert told.returncode == 2 and told.stderr.endswith(f"frontdesk: {error.value}\n"), path


def test_a_scenario_can_be_built(command):
    keys = tomllib.loads(Path("scenarios/idle.toml").read_text())
    built = frontdesk.Scenario.build(keys, set={"duration": "1s", "repeats": 1})
    loaded = frontdesk.Scenario.load("scenarios/idle.toml", set=["duration=1s", "repeats=1"])
    assert built.vms == loaded.vms and built.arms == loaded.arms and built.description == loaded.description
    assert built.simulate().outcome == loaded.simulate().outcome
    with pytest.raises(frontdesk.Error, match=r"^here.toml:\d+: duration = 10ms"):
        frontdesk.Scenario.build({**keys, "duration": "10ms"}, path="here.toml")
    with pytest.raises(TypeError, match="none of str, bool"):
        frontdesk.Scenario.build({**keys, "duration": object()})
    with pytest.raises(TypeError, match="a dict is wanted"):
        frontdesk.Scenario.load(ECHO, set="vm.cpu.count=3")
    with pytest.raises(frontdesk.Error, match="there is no such arm"):
        frontdesk.Scenario.load(ECHO, arms=["stok"])


def test_other_threads_run_while_it_simulates():
    scenario = frontdesk.Scenario.load(ECHO, repeats=1, duration="10min", arms=["stock"])
    ended = threading.Event()
    turns = 0

    def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)

    other = threading.Thread(target=take_turns)
    interval = sys.getswitchinterval()
    # Nobody has to let go of the lock for others: what runs beside the call does because the call lets it.
    sys.setswitchinterval(3600)
    try:
        other.start()
        while turns == 0:
            time.sleep(0.001)
        before = turns
        scenario.simulate(threads=1)
        after = turns
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        other.join()
    assert after > before


def test_control_c_ends_the_wait_and_nothing_else():
    script = f"""
import frontdesk, os, signal, threading
# Nobody would wait for that.
endless = frontdesk.Scenario.load({ECHO!r}, repeats=1000, duration="1h", arms=["stock"])
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    endless.simulate(threads=1)
except KeyboardInterrupt:
    short = frontdesk.Scenario.load({ECHO!r}, repeats=1, duration="1s", arms=["stock"])
    print(len(short.simulate().response_ms("stock", "mixed")) > 0)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600)
    assert (told.returncode, told.stdout, told.stderr) == (0, "True\n", "")


def test_the_report_is_that_of_the_command(tmp_path, result):
    result.write_report(tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()
    with pytest.raises(frontdesk.Error, match="cannot write .*: Is a directory"):
        result.write_report(tmp_path)
