"""Recordings, and what going through them again gives."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import pandas as pd
import pyarrow as pa

from frontdesk import _arrow, _frontdesk, _toml

Config = Union[Mapping[str, _toml.Value], str, "os.PathLike[str]"]
"""Parameters: {"tavs": {"pb_ratio": 0.05}}, or the path of a daemon's configuration file."""


@dataclass(frozen=True)
class Tables:
    """What is in a recording, as tables of Arrow's. `record` is the number of a record in it, from 1."""

    complete: bool
    """Whether the recording ended in order; if not, the tables hold what can be read."""
    events: pa.Table
    """What the engine was told: at_ns, kind, and the fields of all kinds. Kind Deadline: it was told the time."""
    actions: pa.Table
    """What it decided, whether that was applied, and how long that took."""
    decisions: pa.Table
    """What the dispatchers of reservations were told and decided; event and dispatches are JSON."""
    parameters: pa.Table
    """The parameters that the engine had, and those of single VMs, as JSON."""
    vms: pa.Table
    """The names of the VMs."""
    targets: pa.Table
    """The names of what has reservations."""


@dataclass(frozen=True)
class Replay:
    """What going through a recording again gave."""

    good: bool
    """Whether everything was decided as recorded; of sampled tasks, whether false boosts keep within
    pb_ratio."""
    report: dict[str, Any]
    """As `frontdesk replay --json` says it."""


@dataclass(frozen=True)
class Difference:
    """A boost that was given with one of two sets of parameters only."""

    at_s: float
    """Seconds since the first event."""
    vm: str
    """The VM."""
    only: str
    """"a" if only the recorded parameters gave it, "b" if only the others."""
    reason: str
    """Why it was not given with the other set."""


@dataclass(frozen=True)
class Comparison:
    """What two sets of parameters make of the same events."""

    events: int
    """Events told."""
    seconds: float
    """From the first event to the last."""
    vms: pd.DataFrame
    """A row for each VM: boosts of both and of one only, and for either set (a. and b.) its boosts, hits,
    expired, boosted_s, ran_s and share."""
    differences: list[Difference]
    """The boosts that only one set gave."""


class Recording:
    """A recording of a daemon's run. It is read anew for everything that is asked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `Error` if the file cannot be read, or is no recording of this version."""
        self._own = _frontdesk.Recording(Path(path))

    @property
    def path(self) -> Path:
        """The file."""
        return self._own.path

    def tables(self) -> Tables:
        """Everything in it, which is held in memory. Raises `Error` if it is damaged."""
        complete, named = self._own.tables()
        return Tables(complete=complete, **_arrow.tables(named))

    def trace(self, start: str = "0s", length: str | None = None) -> dict[str, pa.Table]:
        """What ran where and when, from so long after the first event, for so long: tables of Arrow's by the
        names that `Result.trace` has. Raises `Error` if there is too much in the interval."""
        return _arrow.tables(self._own.trace(start, length))

    def verify(self) -> Replay:
        """Goes through it with its own parameters, and compares each action and each dispatch."""
        good, report = self._own.verify()
        return Replay(good, json.loads(report))

    def compare(self, config: Config) -> Comparison:
        """Goes through it with its own parameters and with others.

        Parameters that are left out have their defaults, as in a configuration file. The events are those of
        the recorded run whatever is decided. Raises `Error` if a parameter is unknown or out of its range.
        """
        if isinstance(config, Mapping):
            name, text = "config", _toml.document(config)
        else:
            name = os.fspath(config)
            try:
                text = Path(config).read_text(encoding="utf-8")
            except OSError as error:
                raise _frontdesk.Error(f"cannot read {name}: {error.strerror}") from error
        differences, summary = (json.loads(part) for part in self._own.compare(name, text))
        return Comparison(
            events=summary["events"],
            seconds=summary["seconds"],
            vms=pd.json_normalize(summary["vms"]),
            differences=[Difference(**difference) for difference in differences],
        )

    def sampled(self) -> Replay:
        """Goes through it with guest tasks that are only seen where a vCPU leaves its guest."""
        good, report = self._own.sampled()
        return Replay(good, json.loads(report))

    def __repr__(self) -> str:
        return f"<frontdesk.Recording {str(self.path)!r}>"
