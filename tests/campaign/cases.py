"""What one seed stands for: launcher, hosts, fault, moment, and what may come of it. Pure: the same seed is the same case."""

from dataclasses import dataclass
from random import Random

LAUNCHERS = ("torch", "torchrun", "horovod", "mpi", "slurm", "single")
MOMENTS = ("start", "run", "restart", "stop", "end")

SUCCEEDED, CTRL_C, STOPPED = ("succeeded", 0), ("stopped", 130), ("stopped", 143)

HARMLESS = (
    *("agent_killed", "agent_halted", "agent_memory", "shim_halted", "rank_halted"),
    *("console_killed", "console_halted", "console_cut", "host_cut_from_console"),
    *("logins_killed", "sshd_restarted", "ssh_refused"),
    *("network_cut", "network_lost_one_way", "ports_lost"),
    *("disk_full", "disk_read_only", "stuck_filesystem", "second_console", "second_run"),
)
"""The run goes on as without them: no step is lost, and its end is the same."""
DEADLY = ("rank_killed", "raises", "exits", "faults", "shim_killed", "power_cut", "network_gone")
"""The run fails, and who is blamed is known."""
ASKED = ("ctrl_c", "ctrl_c_twice", "sigterm", "stop_verb")
"""A person ends the run."""

ADDED = ("one_session", "strangers", "clock_forward", "clock_back", "floods", "scribbles")
"""Harmless ones that seeds from ``ADDED_FROM`` on may have, so that those before it stay what they were."""
ADDED_FROM = 1000

IN_SCRIPT = ("raises", "exits", "faults", "floods", "scribbles")
LASTING = {
    **dict.fromkeys(("agent_halted", "shim_halted", "rank_halted"), (5, 15, 45)),
    **dict.fromkeys(("network_cut", "network_lost_one_way", "ports_lost"), (5, 8, 20)),
    **dict.fromkeys(("console_cut", "host_cut_from_console", "ssh_refused"), (5, 15, 40)),
    **dict.fromkeys(("disk_full", "disk_read_only", "stuck_filesystem"), (3, 8)),
    **dict.fromkeys(("console_halted", "agent_memory"), (2, 6)),
}
"""Fault -> how many seconds it may last; it is taken back then."""
LONGER = {
    **dict.fromkeys(("network_cut", "network_lost_one_way", "ports_lost"), (5, 20, 60, 110)),
    "strangers": (3, 8),
}
"""The same for seeds from ``ADDED_FROM`` on."""
LOST_AFTER = {"power_cut": 12, "network_gone": 12}
"""Seconds after which a silent host is given up; 120 without a word, as by default."""


class FaultError(Exception):
    """The fault could not be made; the case says nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run and its fault.

    Attributes:
        slots: Ranks on each host.
        how: How the script's ranks meet: ``bare``, ``torch``, ``spawn`` or ``horovod``.
        host: Index of the fault's host; of its rank's, where it is about one.
        at: The step at which the fault comes, at the moments ``run`` and ``restart``.
        delay: Seconds between the moment and the fault.
        seconds: How long it lasts; 0 for good.
        screen: Whether a screen is attached meanwhile, of which keys are asked.
    """

    seed: int
    launcher: str
    slots: tuple[int, ...]
    how: str
    fault: str
    moment: str
    rank: int
    host: int
    at: int
    steps: int
    delay: float
    seconds: int
    screen: bool = False

    @property
    def world(self) -> int:
        return sum(self.slots)

    @property
    def rank_that_fails_once(self) -> int:
        """The rank for which ranks start anew: another one than the fault's."""
        return (self.rank + 1) % self.world

    @property
    def lost_after(self) -> int:
        return LOST_AFTER.get(self.fault, 120)

    @property
    def name(self) -> str:
        lasts = f"/{self.seconds}s" if self.seconds else ""
        seen = "/screen" if self.screen else ""
        return f"{self.seed}/{self.launcher}-{self.how}-{'+'.join(map(str, self.slots))}/{self.fault}{lasts}/{self.moment}{seen}"


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    random, more = Random(seed), seed >= ADDED_FROM
    launcher = random.choice(LAUNCHERS)
    fault = random.choice((*HARMLESS, *ADDED * more, *DEADLY, *DEADLY, *ASKED))
    moment = random.choice(MOMENTS)
    if fault in IN_SCRIPT or (fault in ASKED and moment in ("stop", "restart")):
        moment = "run"
    if fault in ("second_console", "second_run") and moment in ("start", "end"):
        moment = "run"
    if moment == "restart" and launcher not in ("torch", "torchrun"):
        moment = "run"
    hosts = random.choice((2, 2, 3, 4))
    slots = tuple(random.choice((1, 1, 2)) for _ in range(hosts))
    rank = random.randrange(sum(slots))
    host = next(n for n in range(hosts) if rank < sum(slots[: n + 1]))
    host = 0 if fault == "strangers" else host  # a shim listens on the first host only
    if fault == "power_cut" and moment == "start":
        moment = "run"
    if fault == "strangers" and moment == "start":
        moment = "run"
    if fault.startswith("clock_") and launcher == "slurm":
        launcher = "torch"  # below slurmd nothing has the session's clock
    real = {"single": "spawn", "horovod": "horovod"}.get(launcher)
    how = real or random.choice(
        ("bare", "bare", "bare", "horovod" if launcher == "mpi" else "torch")
    )
    return Case(
        seed=seed,
        launcher=launcher,
        slots=slots,
        how=how,
        fault=fault,
        moment=moment,
        rank=rank,
        host=host,
        at=random.randrange(2, 40),
        steps=random.randrange(60, 140),
        delay=round(random.random() * (1.5 if moment in ("start", "restart") else 0.4), 3),
        seconds=random.choice(({**LASTING, **LONGER} if more else LASTING).get(fault, (0,))),
        screen=more and moment in ("run", "restart") and random.random() < 0.4,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """An end that is right: state, exit code, and whom the run may blame (None: nobody)."""

    state: str
    code: int
    rank: int | None = None
    host: str | None = None


def right_outcomes(case: Case, first_rank_of: list[int], names: list[str]) -> list[Outcome]:
    """Return every right end of a case. More than one where the fault races with the end or with a stop.

    Args:
        first_rank_of: Of each host, its first rank.
        names: The hosts.
    """
    plain = Outcome(*(CTRL_C if case.moment == "stop" else SUCCEEDED))
    if case.fault in HARMLESS or case.fault in ADDED:
        if case.moment != "start":
            return [plain]
        # A launch that its console did not end is taken back by the hosts; one that a host cannot do fails.
        refused = Outcome(*CTRL_C) if case.fault == "console_killed" else Outcome("failed", 3)
        return [plain, refused, *_cut_off_from_store(case, first_rank_of, names)]
    if case.fault in ASKED:
        ends = {"ctrl_c": CTRL_C, "ctrl_c_twice": CTRL_C, "sigterm": STOPPED, "stop_verb": STOPPED}
        asked = Outcome(*ends[case.fault])
        return [asked, plain] if case.moment == "end" else [asked]
    deadly = _deadly(case, first_rank_of[case.host], names[case.host])
    if (case.fault, case.moment) == ("shim_killed", "start"):
        deadly.append(Outcome("failed", 3))  # before it had said that it was there
    if case.moment == "restart" and case.fault in ("shim_killed", "power_cut", "network_gone"):
        # Without that host nothing starts anew, and the run ends as the attempt before did.
        marked = case.rank_that_fails_once
        host = names[max(n for n, first in enumerate(first_rank_of) if first <= marked)]
        deadly.append(Outcome("failed", 1, marked, host))
    # Behind the last step, in a stop, and while ranks start anew, the fault may find nobody.
    return deadly if case.moment in ("run", "start") else [*deadly, plain]


def _cut_off_from_store(case: Case, first_rank_of: list[int], names: list[str]) -> list[Outcome]:
    """Return how Horovod's ranks end that do not reach the store where they are to meet: it aborts them after some tries."""
    if case.launcher != "horovod" or case.fault not in ("network_cut", "network_lost_one_way"):
        return []
    first = first_rank_of[case.host]
    ranks = range(first, first + case.slots[case.host])
    return [Outcome("failed", 134, rank, names[case.host]) for rank in ranks]


def _deadly(case: Case, first: int, host: str) -> list[Outcome]:
    codes = {"raises": 1, "exits": 7, "faults": 139, "rank_killed": 137}
    if case.fault in codes:
        return [Outcome("failed", codes[case.fault], case.rank, host)]
    lost = [Outcome("failed", 1, first, host)]
    if case.launcher == "slurm" and case.fault in ("power_cut", "network_gone"):
        lost.append(Outcome("failed", 143, None, host))
    return lost
