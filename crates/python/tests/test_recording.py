"""Recordings: their tables, and replays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import frontdesk

CORPUS = sorted(str(path.relative_to(Path(__file__).parents[3])) for path in (Path(__file__).parents[2] / "record/tests/corpus").glob("*.fdsk"))
ECHO = "crates/record/tests/corpus/5.3-echo-mixed.fdsk"


@pytest.mark.parametrize("path", CORPUS)
def test_all_kinds_of_all_versions_have_columns(path):
    tables = frontdesk.Recording(path).tables()
    assert tables.complete
    if "reservations" not in path:
        assert tables.parameters.num_rows > 0 and set(tables.events.column("kind").to_pylist()) - {"Deadline"}
    else:
        assert tables.decisions.num_rows > 0 and tables.targets.num_rows > 0
        json.loads(tables.decisions.column("event")[0].as_py())


def test_tables_hold_what_is_in_the_recording():
    recording = frontdesk.Recording(ECHO)
    tables = recording.tables()
    verified = recording.verify()
    assert verified.good and verified.report["mismatch"] is None
    kinds = tables.events.column("kind").to_pylist()
    assert len(kinds) - kinds.count("Deadline") == verified.report["events"]
    assert tables.actions.num_rows == verified.report["actions"]
    runs = tables.events.to_pandas().query("kind == 'Run'")
    assert runs.thread.str.match(r"(Vcpu|Emulator) \d+").all() and runs.pcpu.notna().all()
    assert tables.events.schema.field("runnable").type == "bool" and tables.vms.num_rows > 0


def test_a_replay_is_that_of_the_command(command, tmp_path):
    recording = frontdesk.Recording(ECHO)
    config = tmp_path / "careful.toml"
    config.write_text("[tavs]\npb_ratio = 0.01\n[daemon]\ncpus = [0]\n")
    told = json.loads(command("replay", ECHO, "--config", config, "--json").stdout)
    compared = recording.compare(config)
    assert compared.events == told["summary"]["events"]
    assert [vars(difference) for difference in compared.differences] == told["differences"]
    assert list(compared.vms["a.boosts"]) == [vm["a"]["boosts"] for vm in told["summary"]["vms"]]
    assert recording.compare({"tavs": {"pb_ratio": 0.01}}).differences == compared.differences
    sampled = recording.sampled()
    assert sampled.report == json.loads(command("replay", ECHO, "--sampled", "--json").stdout)


def test_a_trace_is_of_an_interval():
    recording = frontdesk.Recording(ECHO)
    whole, part = recording.trace(), recording.trace("10ms", "20ms")
    assert 0 < part["runs"].num_rows < whole["runs"].num_rows
    assert max(part["runs"].column("end_ns").to_pylist()) <= 20_000_000


def test_errors_are_in_the_words_of_the_command(command, tmp_path):
    cut, other, wrong = tmp_path / "cut.fdsk", tmp_path / "other.fdsk", tmp_path / "wrong.toml"
    bytes_ = Path(ECHO).read_bytes()
    cut.write_bytes(bytes_[: len(bytes_) // 2])
    other.write_text("no recording at all")
    wrong.write_text("[tavs]\npb_ratio = 2\n")

    def same(text: Exception, *arguments: str | Path) -> None:
        told: subprocess.CompletedProcess[str] = command(*arguments)
        assert told.returncode == 2 and told.stderr == f"frontdesk: {text}\n"

    for path in (other, tmp_path / "no-such.fdsk"):
        with pytest.raises(frontdesk.Error) as error:
            frontdesk.Recording(path)
        same(error.value, "replay", path)
    with pytest.raises(frontdesk.Error) as error:
        frontdesk.Recording(ECHO).compare(wrong)
    same(error.value, "replay", ECHO, "--config", wrong)
    # One that was cut is read as far as it goes, and says so.
    assert not frontdesk.Recording(cut).tables().complete
