"""frontdesk from Python: scenarios on its modelled host, and recordings.

>>> import frontdesk
>>> scenario = frontdesk.Scenario.load("scenarios/echo-mixed.toml", set={"vm.cpu.count": 3}, duration="2s")
>>> result = scenario.simulate(seed=1)
>>> result.summary()  # a pandas.DataFrame
>>> result.responses()  # every response time

Whatever cannot be done is an `Error`, in the words of the command `frontdesk`.
"""

from frontdesk._frontdesk import Error, VERSION as __version__
from frontdesk.recording import Comparison, Difference, Recording, Replay, Tables
from frontdesk.scenario import Result, Scenario, Setting

__all__ = [
    "Comparison",
    "Difference",
    "Error",
    "Recording",
    "Replay",
    "Result",
    "Scenario",
    "Setting",
    "Tables",
    "__version__",
]
