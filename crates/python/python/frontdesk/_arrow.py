"""Tables that the compiled half gives, as Arrow's."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def table(parquet: bytes) -> pa.Table:
    """The table in a Parquet file in memory."""
    return pq.read_table(pa.BufferReader(parquet))


def tables(named: list[tuple[str, bytes]]) -> dict[str, pa.Table]:
    """Tables by their names."""
    return {name: table(parquet) for name, parquet in named}
