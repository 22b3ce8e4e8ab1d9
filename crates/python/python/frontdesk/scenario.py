"""Scenarios, and what simulating them gives."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from frontdesk import _arrow, _frontdesk, _toml

Setting = Union[Mapping[str, _toml.Value], Sequence[str]]
"""Keys and the values that they get: {"vm.cpu.count": 3}, or as for --set: ["vm.cpu.count=3"]."""


def _assignments(setting: Setting) -> list[str]:
    if isinstance(setting, Mapping):
        return [f"{key}={_toml.toml(value)}" for key, value in setting.items()]
    if isinstance(setting, str):
        raise TypeError(f'set={setting!r}: a dict is wanted, or a list of texts as "vm.cpu.count=3"')
    return list(setting)


class Scenario:
    """A scenario: a machine, VMs, their load, and the arms that are compared. Checked when it is made."""

    def __init__(self, own: _frontdesk.Scenario) -> None:
        self._own = own

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        set: Setting = (),
        repeats: int | None = None,
        duration: str | None = None,
        arms: Sequence[str] = (),
    ) -> Scenario:
        """Reads a scenario file.

        `set` overrides any of its keys, `repeats` and `duration` ("10s") those two, and only these `arms` are
        run; all if left out. Raises `Error` if the file cannot be read, or if what it says cannot be, with
        file, line, key, value, and what is allowed.
        """
        return cls(_frontdesk.Scenario.load(Path(path), _assignments(set), repeats, duration, list(arms)))

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        path: str | os.PathLike[str] = "scenario.toml",
        set: Setting = (),
        repeats: int | None = None,
        duration: str | None = None,
        arms: Sequence[str] = (),
    ) -> Scenario:
        """Takes the text of a scenario file. Messages call it `path`, and files that it names are looked for
        beside that. The rest is as for `load`."""
        own = _frontdesk.Scenario.parse(text, Path(path), _assignments(set), repeats, duration, list(arms))
        return cls(own)

    @classmethod
    def build(
        cls,
        keys: Mapping[str, _toml.Value],
        *,
        path: str | os.PathLike[str] = "scenario.toml",
        set: Setting = (),
    ) -> Scenario:
        """Makes a scenario of what a scenario file would say: tables are dicts, times are texts. A line in a
        message counts the keys at the top."""
        return cls.parse(_toml.document(keys), path=path, set=set)

    @property
    def name(self) -> str:
        """Its name."""
        return self._own.name

    @property
    def description(self) -> str:
        """What it shows."""
        return self._own.description

    @property
    def path(self) -> Path:
        """The scenario file."""
        return self._own.path

    @property
    def arms(self) -> list[str]:
        """The names of its arms."""
        return self._own.arms

    @property
    def vms(self) -> list[str]:
        """The names of its VMs."""
        return self._own.vms

    def simulate(self, *, seed: int = 1, threads: int | None = None) -> Result:
        """Runs all arms and repeats on the modelled host, as `frontdesk sim` does.

        `threads` are as many as there are CPUs if left out. The same seed gives the same result, on any number
        of threads. Other threads of Python run meanwhile, and Ctrl-C ends the waiting. Raises `Error` if the
        scenario cannot be run.
        """
        return Result(self._own.simulate(seed, threads))

    def __repr__(self) -> str:
        return f"<frontdesk.Scenario {self.name!r}: arms {', '.join(self.arms)}>"


class Result:
    """What simulating a scenario gave."""

    def __init__(self, own: _frontdesk.Simulated) -> None:
        self._own = own
        self._outcome: dict[str, Any] | None = None

    @property
    def outcome(self) -> dict[str, Any]:
        """All of it, as `frontdesk sim --json` writes it."""
        if self._outcome is None:
            self._outcome = json.loads(self._own.outcome())
        return self._outcome

    @property
    def passed(self) -> bool:
        """Whether all checks of the scenario pass."""
        return all(check["pass"] for check in self.outcome["checks"])

    def checks(self) -> pd.DataFrame:
        """The checks of the scenario: name, value, bar (as {"at_most": 1.5}), and whether it passes."""
        return pd.DataFrame(self.outcome["checks"], columns=["name", "value", "spread", "bar", "pass"])

    def summary(self) -> pd.DataFrame:
        """A row for each arm, repeat, and VM or VM/WORKLOAD.

        Its response times (count, mean_ms, p50_ms, p95_ms, p99_ms, max_ms), cpu_ms, cpu_share (over its fair
        share), per_s and unit (of what is counted), frames_per_s and dropped; what there is none of is NaN.
        boosts, boost_hits, request_boosts and unanswered_boosts are of all VMs of the repeat.
        """
        rows = []
        for arm, result in self.outcome["arms"].items():
            for number, repeat in enumerate(result["repeats"], start=1):
                kinds = ("cpu_ms", "response_ms", "rates", "times_ms", "frames")
                whom = dict.fromkeys(key for kind in kinds for key in repeat.get(kind, {}))
                rows += [_row(arm, number, repeat, who) for who in whom]
        frame = pd.DataFrame(rows, columns=_COLUMNS)
        # A column without any value would have no type.
        return frame.astype({name: float for name in ["count", *_NUMBERS]})

    def responses(self) -> pd.DataFrame:
        """Every response time in the order measured: arm, repeat, vm and response_ms."""
        return self.responses_table().to_pandas()

    def responses_table(self) -> pa.Table:
        """The same as a table of Arrow's."""
        return _arrow.table(self._own.responses())

    def response_ms(self, arm: str, vm: str, repeat: int | None = None) -> npt.NDArray[np.float64]:
        """The response times of a VM, in milliseconds: of one repeat, from 1, or of all. Empty if it had
        none. Raises `KeyError` if there is no such arm."""
        repeats = self.outcome["arms"][arm]["repeats"]
        wanted = repeats if repeat is None else [repeats[repeat - 1]]
        return np.array([ms for own in wanted for ms in own["samples_ms"].get(vm, [])], dtype=np.float64)

    def traced(self) -> list[str]:
        """The arms that have a trace: those in which the daemon runs, or all if it runs in none."""
        return self._own.traced()

    def trace(self, arm: str) -> dict[str, pa.Table]:
        """What happened in the first repeat of an arm, as tables of Arrow's by their names.

        runs, tasks, boosts, packets, reads, updates, sounds, episodes, weights, frame_rates and beliefs.
        Times are nanoseconds since the beginning of what is measured. Raises `Error` for an arm without a
        trace.
        """
        return _arrow.tables(self._own.trace(arm))

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report that `frontdesk sim --html` writes."""
        self._own.write_report(os.fspath(path))

    def __repr__(self) -> str:
        outcome = self.outcome
        return f"<frontdesk.Result of {outcome['scenario']!r}: arms {', '.join(outcome['arms'])}>"


_RESPONSE = {"count": "count", "mean": "mean_ms", "p50": "p50_ms", "p95": "p95_ms", "p99": "p99_ms", "max": "max_ms"}
_OF_ALL = ["boosts", "boost_hits", "request_boosts", "unanswered_boosts", "seconds"]
_OWN = ["cpu_ms", "cpu_share", "per_s", "unit", "operation_ms", "frames_per_s", "dropped"]
_NUMBERS = [*list(_RESPONSE.values())[1:], *[name for name in _OWN if name != "unit"]]
_COLUMNS = ["arm", "repeat", "vm", *_RESPONSE.values(), *_OWN, *_OF_ALL]


def _row(arm: str, number: int, repeat: dict[str, Any], who: str) -> dict[str, Any]:
    response = repeat["response_ms"].get(who, {})
    rate = repeat["rates"].get(who, {})
    times = repeat["times_ms"].get(who, [])
    frames = repeat.get("frames", {}).get(who, {})
    row: dict[str, Any] = {"arm": arm, "repeat": number, "vm": who}
    row.update({name: response.get(key) for key, name in _RESPONSE.items()})
    row.update(cpu_ms=repeat["cpu_ms"].get(who), cpu_share=repeat["cpu_share"].get(who))
    row.update(per_s=rate.get("per_s"), unit=rate.get("unit"))
    row.update(operation_ms=sum(times) / len(times) if times else None)
    row.update(frames_per_s=frames.get("per_s"), dropped=frames.get("dropped"))
    row.update({key: repeat[key] for key in _OF_ALL})
    return row
