"""Runs task sets through SimSo and tells what became of each job.

Reads a JSON list of {"scheduler": "EDF" | "RM", "duration": ticks, "tasks": [[period, execution time], ...]} from standard
input. Each task is periodic from time 0, its deadline is the end of its period, and a job that is not done by then is
aborted. Writes a JSON list of {"seconds": CPU time of the simulation alone, "jobs": [[release, end, aborted], ...] for each
task}; `end` is null for a job that the end of the simulation found unfinished. All times are whole ticks.
"""

import json
import sys
import time

from simso.configuration import Configuration
from simso.core import Model


def run(case):
    configuration = Configuration()
    # One cycle is one of SimSo's milliseconds is one tick: so no time is ever a fraction.
    configuration.cycles_per_ms = 1
    configuration.duration = case["duration"]
    for number, (period, execution) in enumerate(case["tasks"], 1):
        configuration.add_task(
            name=f"T{number}", identifier=number, period=period, wcet=execution, deadline=period, abort_on_miss=True
        )
    configuration.add_processor(name="CPU", identifier=1)
    configuration.scheduler_info.clas = f"simso.schedulers.{case['scheduler']}_mono"
    configuration.check_all()
    model = Model(configuration)
    begun = time.process_time()
    model.run_model()
    seconds = time.process_time() - begun
    jobs = [
        [[int(job.activation_date), None if job.end_date is None else int(job.end_date), job.aborted] for job in task.jobs]
        for task in model.task_list
    ]
    return {"seconds": seconds, "jobs": jobs}


json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
