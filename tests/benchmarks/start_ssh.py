"""A warm start by the system's ssh: held against the floor that it has, a login by ssh to each host, and the same
verb by paramiko, one after the other. Agents run, keys let in.
"""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import distconsole, finish, log_in_to_all, on_hosts, warm
from benchmarks.measure import Compared, compare
from testbed import Testbed

TARGET = 1.1
VERBS = {"top": ("top", "--once"), "run": ("run", "--launcher", "torch")}
LINES = [
    Compared(
        f"{verb} by ssh", verb, f"{verb} floor", "ssh to all and then by paramiko", ratio=TARGET
    )
    for verb in VERBS
]


@on_hosts()
def measure(bed: Testbed, folder: Path, rounds: int = 7, hosts: int = 4) -> dict[str, Any]:
    """Do each once a round; return seconds, and ratios within the same round."""
    script = folder / "says.py"
    script.write_text("print('it runs')\n")
    warm(bed, folder)

    def ours(verb: str, transport: str) -> float:
        words = [*VERBS[verb], "--transport", transport]
        words += [str(script)] if verb == "run" else []
        return finish(distconsole(bed, *words), folder)[1]

    def floor(verb: str) -> float:
        return log_in_to_all(bed) + ours(verb, "paramiko")

    ways = {verb: partial(ours, verb, "openssh") for verb in VERBS}
    ways |= {f"{verb} floor": partial(floor, verb) for verb in VERBS}
    return {"hosts": hosts, **compare(ways, rounds, LINES, warmed=lambda: None)}


rows = rows_of_turns
