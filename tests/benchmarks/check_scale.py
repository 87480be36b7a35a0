"""What many hosts cost ``check``: 64 at level quick next to 64 bare ssh logins, and the matrix of 16.

The logins are OpenSSH clients that are all started at once and run ``true``, as parallel-ssh does it;
hosts, clients and console share this machine's cores.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, rows_of_turns, text
from benchmarks.cluster import distconsole, finish, log_in_to_all, on_hosts, warm
from benchmarks.measure import Compared, Spread, compare
from distconsole.checks.engine.run import run_check
from distconsole.model.events import CheckEnded, CheckProgress
from distconsole.model.requests import Check, Level, Where
from distconsole.session import open_session
from testbed import Testbed

TARGET_RATIO = 2.0
MATRIX_HOSTS = 16
MATRIX_SECONDS = 1.0
STAGE = "net.reach_tcp"


def quick(bed: Testbed, folder: Path, *, cold: bool) -> float:
    """Seconds of one check of all hosts, which must be found healthy."""
    if cold:
        bed.reset()
    else:
        warm(bed, folder)
    return finish(distconsole(bed, "check", "--level", "quick"), folder)[1]


def matrix(bed: Testbed) -> float:
    """Seconds in which all hosts have tried all others."""
    where = Where(hosts=bed.names, ssh_config=str(bed.ssh_config))
    moments: list[float] = []
    with open_session(where) as session:
        for event in run_check(Check(where=where, level=Level.QUICK, only=("net",)), session):
            if isinstance(event, CheckProgress) and (event.check, event.host) == (STAGE, ""):
                moments.append(time.monotonic())
            if isinstance(event, CheckEnded) and not event.report.ok:
                raise RuntimeError(f"not healthy: {event.report.findings}")
    return moments[-1] - moments[0]


@on_hosts()
def measure(bed: Testbed, folder: Path, hosts: int = 64, rounds: int = 5) -> dict[str, Any]:
    """Measure each way once a round; the check of cold hosts in the first round only."""
    cold = quick(bed, folder, cold=True)
    ways = {"ssh": partial(log_in_to_all, bed), "quick": partial(quick, bed, folder, cold=False)}
    of = "the ssh logins"
    line = Compared(f"check, {hosts} hosts, quick", "quick", "ssh", of, ratio=TARGET_RATIO)
    figures = compare(ways, rounds, [line])
    bed.down()
    with Testbed(MATRIX_HOSTS) as some:
        matrix(some)
        tried = [matrix(some) for _ in range(rounds)]
    return {"hosts": hosts, **figures, "cold_seconds": cold, "matrix_seconds": Spread.of(tried)}


def rows(figures: Figures) -> list[Row]:
    cold, tried = f"check, {figures['hosts']} hosts, quick, cold", figures["matrix_seconds"]
    return [
        *rows_of_turns(figures),
        Row(cold, f"{figures['cold_seconds']:.2f} s"),
        Row(
            f"check, {MATRIX_HOSTS} hosts, all pairs reached",
            f"{text(tried)} s",
            "",
            *at_most(MATRIX_SECONDS, tried["median"]),
        ),
    ]
