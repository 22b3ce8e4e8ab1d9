"""Makes the runs of a sweep on Ray: `frontdesk sweep --ray ADDRESS` starts `python3 -m frontdesk.ray ADDRESS`.

The command says on standard input what to do, and gets the rows on standard output; crates/sweep/src/ray.rs
says how. It alone writes the results: this may end at any time.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import IO

from frontdesk import _frontdesk, _worker

# Sets of runs that Ray knows of at a time: enough for it to see how many nodes it could use.
_ON_THE_WAY = 1000
# How often Ray begins a set again whose node has died.
_RETRIES = 10


class _Trouble(Exception):
    """Why it cannot go on, and what to do."""


def _suits(version: str) -> bool:
    """Whether a version of Ray is one that this is written for, as pyproject.toml says it."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (2, 40) <= (int(numbers[1]), int(numbers[2])) < (3, 0)


def _connect(address: str) -> None:
    try:
        import ray
    except ImportError as error:
        raise _Trouble(
            f"{sys.executable} has no package ray ({error}): pip install 'ray>=2.40,<3', of the version that the "
            "cluster has"
        ) from error
    if not _suits(ray.__version__):
        raise _Trouble(
            f"{sys.executable} has ray {ray.__version__}, and this is written for 2.40 and later ones before 3: "
            "pip install 'ray>=2.40,<3', of the version that the cluster has"
        )
    try:
        host, _, port = address.rpartition(":")
        if port.isdigit() and "/" not in host:
            # Ray would ask for minutes.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        # Of several types, from one release to the next. Its text names both versions if they differ.
        raise _Trouble(
            f"cannot use Ray at {address}: {error}; `ray start --head` starts a cluster on this machine, and "
            "`ray status` says whether there is one. Ray and Python have to be of the same version on both sides"
        ) from error


def _made(built: str, sweep: bytes, sets: list[list[int]]) -> Iterator[tuple[int, bytes]]:
    """How many runs a set had, and their rows, as they are done."""
    import ray

    make = ray.remote(num_cpus=1, max_retries=_RETRIES)(_worker.rows)
    stored = ray.put(sweep)
    waiting = iter(sets)
    on_the_way: dict[Future[bytes], list[int]] = {}
    # Told by Ray: each time that it is asked for all of them it looks at all of them.
    done: SimpleQueue[Future[bytes]] = SimpleQueue()
    while True:
        for numbers in waiting:
            future = make.remote(built, stored, numbers).future()
            on_the_way[future] = numbers
            future.add_done_callback(done.put)
            if len(on_the_way) >= _ON_THE_WAY:
                break
        if not on_the_way:
            return
        future = done.get()
        numbers = on_the_way.pop(future)
        try:
            yield len(numbers), future.result()
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            last = str(cause).strip().splitlines()[-1:] or [type(cause).__name__]
            raise _Trouble(
                f"Ray did not make run {numbers[0]}: {last[0]}. Each node needs the package frontdesk, of the "
                "same build. What was written before is kept: once this is put right, run the sweep again, "
                "and it goes on from there"
            ) from error


def _frame(out: IO[bytes], kind: str, runs: int, content: bytes) -> None:
    out.write(f"{kind} {runs} {len(content)}\n".encode())
    out.write(content)
    out.flush()


def main(address: str) -> int:
    """Makes all runs that it is told of. Exit status 1 if that is not possible."""
    # Nobody else may write among the rows.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    plan = json.loads(sys.stdin.buffer.readline())
    sweep = sys.stdin.buffer.read()
    try:
        # Says so at once if this package is of another build than the command.
        _frontdesk.SweepRuns(plan["built"], sweep)
        _connect(address)
        for runs, rows in _made(plan["built"], sweep, plan["sets"]):
            _frame(out, "rows", runs, rows)
    except (_Trouble, _frontdesk.Error) as error:
        _frame(out, "error", 0, str(error).encode())
        return 1
    except BrokenPipeError:
        # The command is gone.
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
