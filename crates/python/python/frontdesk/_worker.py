"""What a worker of Ray does for a sweep. It finds this by its name, so the package has to be on each node."""

from __future__ import annotations

from functools import lru_cache

from frontdesk import _frontdesk


@lru_cache(maxsize=1)
def _runs(built: str, sweep: bytes) -> _frontdesk.SweepRuns:
    return _frontdesk.SweepRuns(built, sweep)


def rows(built: str, sweep: bytes, numbers: list[int]) -> bytes:
    """Makes runs, and gives their rows as a Parquet file."""
    return _runs(built, sweep).rows(numbers)
