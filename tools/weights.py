#!/usr/bin/env python3
"""Whether this kernel lets a process that could run wait when weights of control groups change.

    sudo tools/weights.py [SECONDS]

Two control groups with two processes that compute and one that comes and goes, one of each on either of two
CPUs, for SECONDS (10) each: without changes, and with their weights changed by up to a quarter twenty times a
second. Tells the longest time that one of the four got no CPU. Linux 6.13 to 6.18.44 let it wait for up to a
second and more (docs/install.md). Nothing is left when it ends.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

MOUNTS = [(Path("/sys/fs/cgroup/cpu"), "cpu.shares", 1024), (Path("/sys/fs/cgroup"), "cpu.weight", 100)]


def compute(group: Path, number: int, cpus: list[int]) -> int:
    """Starts a process in the group: 0 and 1 compute on a CPU of theirs, 2 comes and goes on either."""
    child = os.fork()
    if child:
        return child
    # What its parent has to clean up is none of its business.
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, cpus if number == 2 else {cpus[number]})
        rest = random.Random(number)
        while True:
            until = time.perf_counter() + rest.uniform(0.0002, 0.002)
            while number < 2 or time.perf_counter() < until:
                pass
            time.sleep(rest.uniform(0.001, 0.02))
    finally:
        os._exit(0)


def longest(root: Path, knob: str, usual: int, cpus: list[int], seconds: float, changes: bool) -> float:
    """The longest time in seconds that one of them got no CPU."""
    groups = [root / name for name in ("one", "other")]
    children: list[int] = []
    try:
        for group in [root, *groups]:
            group.mkdir()
            if knob == "cpu.weight" and group == root:
                (root / "cgroup.subtree_control").write_text("+cpu")
        for group, number in [(group, number) for group in groups for number in range(3)]:
            children.append(compute(group, number, cpus))
        computing = [pid for index, pid in enumerate(children) if index % 3 < 2]
        chance, weights = random.Random(1), [float(usual)] * 2
        begin = change = time.monotonic()
        ran: dict[int, str] = {}
        since = dict.fromkeys(computing, begin)
        worst = 0.0
        while (now := time.monotonic()) < begin + seconds:
            if changes and now >= change:
                change = now + 0.05
                for index, group in enumerate(groups):
                    wanted = weights[index] * (1 + chance.uniform(-0.25, 0.25))
                    weights[index] = min(max(wanted, usual / 2), usual * 2)
                    (group / knob).write_text(str(int(weights[index])))
            for pid in computing:
                used = Path(f"/proc/{pid}/schedstat").read_text().split()[0]
                if ran.get(pid) != used:
                    ran[pid], since[pid] = used, now
                worst = max(worst, now - since[pid])
            time.sleep(0.01)
        return worst
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        # The kernel takes a moment to let go of them.
        time.sleep(0.2)
        for group in [*groups, root]:
            if group.exists():
                group.rmdir()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if os.geteuid() != 0 or len(cpus) < 2:
        sys.exit("tools/weights.py: needs root and two CPUs")
    mount, knob, usual = next(found for found in MOUNTS if found[0].joinpath("cgroup.procs").exists())
    # Also when it is ended by a signal nothing is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Ahead of what it watches.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    root = mount / f"frontdesk-weights-{os.getpid()}"
    for changes, what in [(False, "as they are"), (True, "changed 20 times a second")]:
        waited = longest(root, knob, usual, cpus, seconds, changes)
        print(f"weights {what}: at most {waited:.2f} s without CPU")


main()
