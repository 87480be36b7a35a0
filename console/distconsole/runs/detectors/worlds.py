"""Checks that the ranks form the one world of the plan, by their reports of start and steps."""

from __future__ import annotations

from collections.abc import Iterator, Set

from distconsole.model.run_events import RunFinding
from distconsole.rpc.frames import PhaseEntry
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text

GATHER_SECONDS, SKEW_SECONDS = 3.0, 10.0
"""Ranks with the same fault are reported together: after the first time if every rank that lives has come
so far, and after the longer time in any case."""

WAIT_SECONDS, LONGER = 30.0, 3.0
"""The ranks wait too long for each other after this time without a further one that asks for the
group, and after this multiple of the time in an attempt before."""

MOVED_SECONDS = 5.0
"""A rank that an elastic engine has moved to another host makes no step on the first one for this long."""

OTHER_WORLD, OTHER_RANK, WAITS, ALONE = "other world", "other rank", "waits", "alone"
"""Wrong worlds; each is reported once in an attempt."""


class WorldWatch:
    """Collects the ranks' reports on their way to the first step."""

    def __init__(self, ranks: RanksSeen) -> None:
        self._ranks = ranks
        self._usual_seconds = 0.0
        self.begin_again()

    def begin_again(self) -> None:
        self._asked: dict[int, float] = {}
        self._joined: set[int] = set()
        self._stepped: set[int] = set()
        self._world = 0
        self._wrong: dict[str, dict[int, PhaseEntry]] = {}
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def add(self, entry: PhaseEntry, t: float) -> None:
        """Take that a rank reached a phase, at ``t`` in UNIX seconds."""
        rank = entry.rank
        if entry.phase == "rendezvous":
            self._asked[rank] = t
            self._world = entry.world or 0
        elif entry.phase == "init_process_group":
            self._joined.add(rank)
            self._wrong.get(ALONE, {}).pop(rank, None)
            if rank in self._asked:
                newest = max(self._asked.values())
                self._usual_seconds = max(self._usual_seconds, t - newest)
        elif entry.phase == "first_step":
            self._stepped.add(rank)
        if entry.alone and rank not in self._joined:
            self._is_wrong(ALONE, entry, t)
        if entry.planned is None:
            return
        if entry.world is not None and entry.world != entry.planned:
            self._is_wrong(OTHER_WORLD, entry, t)
        elif entry.group_rank is not None and entry.group_rank != rank:
            self._is_wrong(OTHER_RANK, entry, t)

    def explained(self) -> None:
        """Note that another finding already explains why the ranks wait for each other."""
        self._told.add(WAITS)

    def due(self, t: float) -> Iterator[RunFinding]:
        living = self._ranks.living.keys()
        self._forget_world_of_all(living)
        for kind, since in list(self._since.items()):
            come = self._stepped if kind == ALONE else self._asked.keys() | self._stepped
            patience = GATHER_SECONDS if come >= living else SKEW_SECONDS
            worlds = (entry.world or 0 for entry in self._wrong[kind].values())
            if kind == OTHER_WORLD and max(worlds, default=0) > len(living):
                patience = WAIT_SECONDS  # a script may start the other ranks itself
            if t - since >= patience:
                yield from self._tell(kind, t)
        waiting = sorted(self._asked.keys() - self._joined)
        if not waiting or self._told.intersection((WAITS, OTHER_WORLD)):
            return
        seconds = t - max(self._asked.values())
        if seconds >= max(WAIT_SECONDS, LONGER * self._usual_seconds):
            missing = sorted(living - self._asked.keys() - self._joined)
            last = (self._ranks.sampled.get(h, t) for h in self._ranks.hosts_of(waiting + missing))
            if t - min(last, default=t) < SKEW_SECONDS:  # a silent host's ranks may be further
                self._told.add(WAITS)
                yield self._waits(waiting, missing, t)

    def flush(self, t: float) -> Iterator[RunFinding]:
        self._forget_world_of_all(self._ranks.hosts.keys())
        for kind in list(self._since):
            yield from self._tell(kind, t)

    def _is_wrong(self, kind: str, entry: PhaseEntry, t: float) -> None:
        if kind not in self._told:
            self._wrong.setdefault(kind, {})[entry.rank] = entry
            self._since.setdefault(kind, t)

    def _forget_world_of_all(self, living: Set[int]) -> None:
        """Forget that ranks ask for another world than the plan's if all ranks of it are there: a script started them."""
        found = self._wrong.get(OTHER_WORLD, {})
        worlds = {entry.world for entry in found.values()}
        if worlds == {len(living)} and found.keys() >= living:
            found.clear()

    def _tell(self, kind: str, t: float) -> Iterator[RunFinding]:
        found = self._wrong[kind]
        if not found or (kind == ALONE and len(self._ranks.hosts) < 2):
            return
        del self._since[kind]
        self._told.add(kind)
        ranks = sorted(found)
        first = found[ranks[0]]
        if kind == ALONE:
            yield self._alone(ranks, t)
        elif kind == OTHER_WORLD:
            yield self._other_world(ranks, first, t)
        else:
            yield self._ranks.finding(
                t,
                "run.world",
                f"{ranks_text(ranks[:1])} is rank {first.group_rank} of its process group",
                ranks,
                expected="each rank has the number that was planned",
                hint="take the rank from RANK, not from the script's own count",
            )

    def _other_world(self, ranks: list[int], first: PhaseEntry, t: float) -> RunFinding:
        asks = "asks" if len(ranks) == 1 else "ask"
        counted = "rank" if first.world == 1 else "ranks"
        return self._ranks.finding(
            t,
            "run.world",
            f"{ranks_text(ranks)} {asks} for a world of {first.world} {counted}, and the run has "
            f"{first.planned}",
            ranks,
            expected=f"a world of {first.planned}",
            hint="the script's own count of ranks (such as Lightning's devices and num_nodes) and that "
            "of --nproc and --hosts are to agree; WORLD_SIZE has the latter, unless --env sets it",
        )

    def _waits(self, ranks: list[int], missing: list[int], t: float) -> RunFinding:
        have = "has" if len(ranks) == 1 else "have"
        world = f" of a world of {self._world}" if self._world else ""
        seconds = t - min(self._asked[rank] for rank in ranks)
        waits = f"{ranks_text(ranks)} {have} waited for the other ranks{world} for {seconds:.0f} s"
        if missing:
            have = "has" if len(missing) == 1 else "have"
            why = f"{ranks_text(missing)} {have} not asked for the process group"
            expected = "every rank calls init_process_group, or hvd.init"
            hint = f"distconsole why {self._ranks.run} says at which line {ranks_text(missing)} is instead"
        else:
            why = "every rank that lives has asked for the process group"
            expected = "the ranks find each other at once"
            hint = (
                "see whether they reach each other: distconsole check --only net,os.hostname,coll; "
                "and whether all ask at one address and port"
            )
        return self._ranks.finding(
            t, "run.rendezvous", f"{waits}; {why}", ranks, expected=expected, hint=hint
        )

    def _alone(self, ranks: list[int], t: float) -> RunFinding:
        if len(ranks) == 1:
            made, seems = "made its first step", "it seems to train by itself"
        else:
            made, seems = "made their first steps", "each seems to train by itself"
        return self._ranks.finding(
            t,
            "run.alone",
            f"{ranks_text(ranks)} {made} without torch.distributed or Horovod initialised: {seems}",
            ranks,
            expected="one training over all ranks",
            hint="if they are to train one model: init_process_group and DistributedDataParallel; if one "
            "process is enough (DataParallel): one host, --nproc 1. Whether they meet in another way is "
            "not seen",
        )


class SplitWatch:
    """Notices a rank that goes on making steps on a host after it has appeared on another one.

    A script that starts its own ranks and names its own host as their meeting place (``127.0.0.1``)
    has every host train a model of its own, and nothing fails.
    """

    def __init__(self, ranks: RanksSeen) -> None:
        self._ranks = ranks
        self._moved: dict[int, float] = {}
        self._told = False

    def moved(self, rank: int, t: float) -> None:
        """Take that a rank has appeared on another host, at ``t`` in UNIX seconds."""
        self._moved[rank] = t

    def steps(self, rank: int, host: str, t: float) -> Iterator[RunFinding]:
        """Take steps of ``rank`` on ``host``, though it lives on another; yield the finding, once for a run."""
        if self._told or t - self._moved.get(rank, t) < MOVED_SECONDS:
            return
        self._told = True
        lives_on = self._ranks.hosts[rank]
        yield self._ranks.finding(
            t,
            "run.split",
            f"{lives_on} and {host} train by themselves: each has a rank {rank}",
            (rank,),
            hosts=(lives_on, host),
            expected="one world of ranks over all hosts",
            hint="look where the script's ranks meet (by tcp://127.0.0.1 each host's own do): let it use "
            "MASTER_ADDR, MASTER_PORT, NODE_RANK and NNODES, or give '{master_addr}', '{master_port}', "
            "'{node_rank}' and '{nnodes}' in its arguments",
        )
