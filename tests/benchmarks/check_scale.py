"""What many hosts cost ``check``: 64 at level quick next to 64 bare ssh logins, and the matrix of 16.

The logins are OpenSSH clients that are all started at once and run ``true``, as parallel-ssh does it;
hosts, clients and console share this machine's cores.
``python -m benchmarks.check_scale [--json FILE] [--rounds N] [--hosts N]``
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.cluster import bed_and_folder, distconsole, finish, log_in_to_all, warm
from benchmarks.measure import Spread, alternate, ratios, spreads
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


def measure(hosts: int, rounds: int) -> dict[str, Any]:
    """Measure each way once a round; the check of cold hosts in the first round only."""
    with bed_and_folder(hosts) as (bed, folder), ExitStack() as stack:
        cold = quick(bed, folder, cold=True)
        contestants: dict[str, Callable[[], float]] = {
            "ssh": partial(log_in_to_all, bed),
            "quick": partial(quick, bed, folder, cold=False),
        }
        found = alternate(contestants, rounds)
        bed.down()
        some = stack.enter_context(Testbed(MATRIX_HOSTS))
        matrix(some)
        tried = [matrix(some) for _ in range(rounds)]
    return {
        "hosts": hosts,
        "rounds": rounds,
        "seconds": {**spreads(found), "quick_cold": Spread.of([cold])},
        "ratio": ratios(found["quick"], found["ssh"]),
        "matrix_seconds": Spread.of(tried),
    }


def rows(figures: Figures) -> list[Row]:
    """Return the summary's rows."""
    seconds, hosts = figures["seconds"], figures["hosts"]
    floor = f"{hosts} ssh logins {text(seconds['ssh'])} s"
    over, tried = figures["ratio"], figures["matrix_seconds"]
    return [
        Row(
            f"check, {hosts} hosts, quick",
            f"{text(seconds['quick'])} s, {text(over)} of the logins",
            floor,
            f"≤ {TARGET_RATIO:g} of the logins",
            over["median"] <= TARGET_RATIO,
        ),
        Row(f"check, {hosts} hosts, quick, cold", f"{text(seconds['quick_cold'])} s", floor),
        Row(
            f"check, {MATRIX_HOSTS} hosts, all pairs reached",
            f"{text(tried)} s",
            "",
            f"≤ {MATRIX_SECONDS:g} s",
            tried["median"] <= MATRIX_SECONDS,
        ),
    ]


if __name__ == "__main__":
    run_alone("check_scale", __doc__, measure, rows, hosts=64, rounds=5)
