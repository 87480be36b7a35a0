"""Where each rank of this node is in its life, and in which world, folded into ``state`` entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from signal import SIGTERM
from typing import Any

from distconsole_agent.contract import limits
from distconsole_agent.journal.rings import Header, Record
from distconsole_agent.supervisor.runlog import ShimEvent
from distconsole_agent.system.procfs import read_process
from distconsole_training.records import ALONE, PHASES

ENDED = ("exited", "failed", "killed")

MAX_RANK = 1_000_000

MAX_ANCESTORS = 8
"""Between a process of the plan and a rank that it has started; a fork server is one."""

Entry = dict[str, Any]

PLACED = ("rendezvous", "init_process_group")
"""Phases with a place in a world in their record."""


class TrackedRank:
    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.is_placed = True
        """True if ``local_rank`` is known; a rank that the script started must report it itself."""
        self.is_numbered = False
        """Whether ``rank`` is the rank in a process group; until then it is the plan's."""
        self.pid: int | None = None
        self.state = ""
        self.started_ns = 0
        self.world = 0
        """Ranks of the process group that its process asked for; 0 before that."""
        self.starter: int | None = None
        """Number in the plan of the process that started this rank's; None if the shim started it, -1 if unknown."""
        self.ended: Entry | None = None
        """How and when it ended: ``exit_code`` or ``signal``, if known, and ``t``."""

    @property
    def alive(self) -> bool:
        return self.state != "" and self.state not in ENDED


class RankStates:
    """The ranks of one run on this node.

    Args:
        world_ranks: The global ranks that live here, in local order.
        engine_ranks: The shim starts the ranks themselves, not an engine that starts them.
        watched: The ranks have recorders.
        planned_world: Ranks on all nodes; None if the plan leaves it open.
        own_numbers: A process takes its rank from the process group that it joins.
    """

    def __init__(
        self,
        world_ranks: Sequence[int],
        *,
        engine_ranks: bool,
        watched: bool = True,
        planned_world: int | None = None,
        own_numbers: bool = False,
    ) -> None:
        self.engine_ranks = engine_ranks
        self.planned_world = planned_world
        self._watched = watched
        self._planned = frozenset(world_ranks)
        self.stopping = False
        self.first_started_ns = 0
        self.last_exit: tuple[int, int] | None = None
        self._ranks = {rank: TrackedRank(rank, index) for index, rank in enumerate(world_ranks)}
        self._process_ranks: dict[int, int] = {}
        self._is_own_world = own_numbers
        self._own_numbers = own_numbers and engine_ranks
        self._numbers: dict[int, int] = {}
        """Rank of the plan -> its number in its process group, if that differs."""

    def __iter__(self) -> Iterator[TrackedRank]:
        return iter(self._ranks.values())

    def get(self, rank: int) -> TrackedRank | None:
        return self._ranks.get(rank)

    def states(self) -> dict[str, list[Any]]:
        return {str(r.rank): [r.state, r.pid, r.local_rank] for r in self if r.state}

    def origins(self) -> dict[str, list[Any]]:
        """Return rank -> origin for a mark: a process reports its origin only once."""
        return {str(r.rank): [r.starter, r.world, r.is_placed] for r in self if r.state}

    def restore(
        self, states: dict[str, list[Any]], origins: dict[str, list[Any]] | None = None
    ) -> None:
        """Restore the states of a mark, after the events up to it have been replayed."""
        for number, (state, pid, local_rank) in states.items():
            known = self._process_ranks.get(pid)
            if known is not None and self.engine_ranks and int(number) not in self._planned:
                self._call(known, int(number))
            rank = self._ranks.setdefault(int(number), TrackedRank(int(number), local_rank))
            rank.state, rank.pid, rank.local_rank = state, pid, local_rank
            if origins and number in origins:
                rank.starter, rank.world, rank.is_placed = origins[number]
            elif self.engine_ranks and pid is not None and known is None:
                rank.starter = self._starter_of(pid)

    def of_process(self, pid: int, parent_pid: int, told_rank: int) -> int:
        """Return the rank of a process with a recorder, which believes ``told_rank``; -1 while unknown."""
        if self.engine_ranks and pid in self._process_ranks:
            return self._process_ranks[pid]
        if 0 <= told_rank <= MAX_RANK:
            return told_rank
        for relative in (pid, parent_pid):
            if relative in self._process_ranks:
                if self.engine_ranks:
                    return self._process_ranks[relative]
                if len(self._ranks) == 1:
                    return next(iter(self._ranks))
        return -1

    @property
    def await_numbers(self) -> bool:
        """True while a starting rank may still get another number from its process group."""
        return self._own_numbers and any(rank.state == "starting" for rank in self._ranks.values())

    def number_of(self, planned: int) -> int:
        """Return the number of a rank that the plan, and so the shim and the log files, call so."""
        return self._numbers.get(planned, planned)

    def log_rank(self, planned: int) -> int | None:
        """Return the rank that a process's log lines belong to; None if ranks that it started print there, too."""
        shared = any(rank.starter == planned for rank in list(self))
        return None if shared else self.number_of(planned)

    def numbers_of(self, planned: int) -> frozenset[int]:
        """Return the ranks that end with a process of the plan: its own, and those that it started."""
        started = (rank.rank for rank in self if rank.starter == planned)
        return frozenset((self.number_of(planned), *started))

    def joins(self, number: int, world: int) -> None:
        """Take that the process of a rank asks for a process group of ``world`` ranks."""
        rank = self._ranks.get(number)
        if rank is not None and rank.starter is None:
            rank.world = world

    def renumber(self, known: int, number: int, t: float) -> list[Entry]:
        """Take that a process group calls the rank that is ``known`` here by another number.

        The plan's numbers do not count if it leaves them to the script, or if the group has more ranks.
        """
        rank = self._ranks.get(known)
        if rank is not None and number == known:
            rank.is_numbered = True
        if rank is None or number in self._ranks or number > MAX_RANK:
            return []
        larger = self.engine_ranks and rank.world > (self.planned_world or MAX_RANK)
        if not (self._own_numbers or larger):
            return []
        self._call(known, number)
        return [self._entry(rank, t)] if rank.alive else []

    def _call(self, known: int, number: int) -> None:
        planned = next((p for p, own in self._numbers.items() if own == known), known)
        self._ranks[number] = rank = self._ranks.pop(known)
        self._numbers[planned] = rank.rank = number
        rank.is_numbered = True
        for pid, of in self._process_ranks.items():
            self._process_ranks[pid] = number if of == known else of

    def is_engines_own(self, parent_pid: int) -> bool:
        """Return True if an engine started the process with this parent: then it is a rank itself."""
        return not self.engine_ranks and parent_pid in self._process_ranks

    def started(self, event: ShimEvent) -> list[Entry]:
        number, pid, t_ns = event.rank, event.pid, event.t_ns
        if number is None or pid is None:
            return []
        self.first_started_ns = self.first_started_ns or t_ns
        self._process_ranks[pid] = number
        if self.engine_ranks:
            rank = self._ranks.setdefault(number, TrackedRank(number, 0))
            rank.local_rank = event.local_rank or 0
            rank.world, rank.starter, rank.is_numbered = 0, None, False
            begun = [rank]
        else:
            begun = list(self)
        for rank in begun:
            rank.pid, rank.started_ns = pid if self.engine_ranks else None, t_ns
        return [self._change(rank, "starting", t_ns / 1e9) for rank in begun]

    def begin_again(self) -> None:
        """Reset for a restart: all processes of these ranks have ended and new ones will start."""
        self.stopping = False
        self.last_exit = None
        for planned, number in self._numbers.items():
            self._ranks[planned] = rank = self._ranks.pop(number)
            rank.rank = planned
        self._numbers.clear()

    def exited(self, event: ShimEvent) -> list[Entry]:
        number, t_ns, code, signal = event.rank, event.t_ns, event.exit_code, event.signal
        if number is None or code is None:
            return []
        self.last_exit = max(self.last_exit or (0, 0), (int(code != 0), code))
        own = self._ranks.get(self.number_of(number))
        if not self.engine_ranks:
            ended = [rank for rank in self if rank.alive and not self.is_nobody(rank)]
        else:
            ended = [rank for rank in self if rank.alive and rank.starter == number]
            if own is not None and own.starter is None and not self.is_nobody(own):
                ended.insert(0, own)
        entries = []
        for rank in ended:
            how: Entry = {"t_ns": t_ns}
            if not self._is_found(rank) or code == 0 or rank.pid == event.pid:
                how.update(exit_code=code, signal=signal)
            if event.terminated and signal == SIGTERM:
                how["stopped"] = True
            state = "exited" if code == 0 or self.stopping else "failed"
            state = state if signal is None else "killed"
            entries.append(self._change(rank, state, t_ns / 1e9, how))
        return entries

    def found(self, number: int, header: Header, t: float) -> list[Entry]:
        """Take a rank that was found by its recorder: an engine started it, or a process of the script did.

        A process of the plan that starts ranks is one itself only if it asks for a process group.
        """
        pid, local_rank = header.pid, header.local_rank
        rank = self._ranks.get(number) or TrackedRank(number, max(0, local_rank))
        if rank.pid == pid:
            return []
        spawned = self.engine_ranks and self._is_spawned(rank, header)
        if spawned:
            rank.starter = self._starter_of(header.parent_pid)
            starter = self._ranks.get(self.number_of(rank.starter))
            if starter is not None and not starter.world and starter.pid in self._process_ranks:
                starter.pid = None
        elif self.engine_ranks and (rank.pid is not None or not rank.world):
            return []
        self._ranks[number] = rank
        rank.pid = pid
        rank.is_placed = local_rank >= 0 or not (spawned or self._is_own_world)
        if local_rank >= 0:
            rank.local_rank = local_rank
        if spawned:
            rank.started_ns = header.started_time_ns
        return [self._change(rank, "starting", t)]

    def _is_spawned(self, rank: TrackedRank, header: Header) -> bool:
        if (
            header.pid in self._process_ranks
            or header.rank != rank.rank
            or not self._process_ranks
        ):
            return False
        if rank.rank in self._process_ranks.values():
            is_other = header.is_child or self._own_numbers
            return is_other and (rank.starter is not None or not rank.world)
        starter = self._ranks.get(self.number_of(self._starter_of(header.parent_pid)))
        return starter is None or starter.world in (0, header.world_size)

    def _starter_of(self, parent_pid: int) -> int:
        """Return the number in the plan of the process that started a child of ``parent_pid``; -1 if unknown."""
        number = self._process_ranks.get(parent_pid)
        if number is None and len(self._planned) > 1:
            for _ in range(MAX_ANCESTORS):
                stat = read_process(parent_pid) if parent_pid > 1 else None
                parent_pid = 0 if stat is None else stat.ppid
                if (number := self._process_ranks.get(parent_pid)) is not None:
                    break
        if number is None:
            return min(self._planned) if len(self._planned) == 1 else -1
        return next((p for p, own in self._numbers.items() if own == number), number)

    def _is_found(self, rank: TrackedRank) -> bool:
        """Return True if the shim did not start a rank's process, and so does not report its end."""
        return not self.engine_ranks or rank.starter is not None

    def watches_ends(self, number: int) -> bool:
        """Return whether only the recorder of a rank sees the end of its process."""
        rank = self._ranks.get(number)
        return not self.engine_ranks or (rank is not None and rank.starter is not None)

    def start_of(self, number: int, header: Header) -> int:
        """Return when the shim started the process of a rank, in UNIX ns; 0 if another process of the script did."""
        rank = self._ranks.get(number)
        others = header.is_child or (self._is_own_world and header.pid not in self._process_ranks)
        return 0 if rank is None or others else rank.started_ns

    def trains(self, number: int, t: float) -> list[Entry]:
        """Take a sign that a rank is past its start."""
        rank = self._ranks.get(number)
        if rank is None or rank.state not in ("starting", "stalled"):
            return []
        return [self._change(rank, "running", t)]

    def vanished(self, number: int, pid: int, state: str, t: float) -> list[Entry]:
        """Take the end of a process that an engine or the script started; its exit code is not known."""
        rank = self._ranks.get(number)
        if rank is None or not self._is_found(rank) or rank.pid != pid or not rank.alive:
            return []
        return [self._change(rank, state, t)]

    def failed(self, event: ShimEvent) -> list[Entry]:
        """Take the end of a rank that the shim did not start: its failure is the only event that gives it."""
        rank = self._ranks.get(event.rank or 0)
        if rank is None or rank.pid is None or not self._is_found(rank):
            return []
        state = "failed" if event.signal is None else "killed"
        how = {"t_ns": event.t_ns, "exit_code": event.exit_code, "signal": event.signal}
        return [self._change(rank, state, event.t_ns / 1e9, how)]

    def old_enough(self, now_ns: int) -> list[Entry]:
        """Turn ranks that outlived RUNNING_SECONDS to running; ranks that an engine starts report by a recorder."""
        due = [
            rank
            for rank in self
            if rank.state == "starting"
            and now_ns - rank.started_ns > limits.RUNNING_SECONDS * 1e9
            and (rank.pid is not None or not self._watched)
        ]
        return [entry for rank in due for entry in self.trains(rank.rank, now_ns / 1e9)]

    def stalled(self, number: int, t: float) -> list[Entry]:
        """Take that a rank has made no step for long."""
        rank = self._ranks.get(number)
        if rank is None or rank.state != "running":
            return []
        return [self._change(rank, "stalled", t)]

    def lose(self, t: float) -> list[Entry]:
        """End every living rank: its shim is gone, and the remaining processes have been killed."""
        lost = [rank for rank in self if rank.alive and not self.is_nobody(rank)]
        return [self._change(rank, "killed", t, {"t_ns": int(t * 1e9)}) for rank in lost]

    def is_nobody(self, rank: TrackedRank) -> bool:
        """Return whether no process took a planned number, while others took unplanned ones.

        A script that spawns its ranks numbers them itself; the plan had one number for the node.
        """
        return rank.pid is None and any(each.rank not in self._planned for each in list(self))

    def _change(self, rank: TrackedRank, state: str, t: float, how: Entry | None = None) -> Entry:
        rank.state = state
        told = {key: value for key, value in (how or {}).items() if value is not None}
        for name in ("t_ns", "stopped"):
            told.pop(name, None)
        if "signal" in told:
            told.pop("exit_code", None)
        rank.ended = {**told, "t": round(t, 6)} if state in ENDED else None
        return self._entry(rank, t, how)

    def _entry(self, rank: TrackedRank, t: float, how: Entry | None = None) -> Entry:
        planned = self.engine_ranks and rank.starter is None and not rank.is_numbered
        return {
            "t": round(t, 6),
            "kind": "state",
            "rank": rank.rank,
            "local_rank": rank.local_rank,
            "pid": rank.pid,
            "state": rank.state,
            **({"planned": True} if planned else {}),
            **(how or {}),
        }


def world_of(record: Record, planned: int | None) -> dict[str, Any]:
    """Return the fields that a phase's record adds to its entry; ``planned``: the planned world size."""
    phase = PHASES[record[5]]
    if phase == "first_step" and record[4] & ALONE:
        return {"alone": True}
    if phase not in PLACED:
        return {}
    size, rank = record[6], record[12]
    return {
        "world": size if 0 < size <= MAX_RANK else None,
        "group_rank": int(rank) if 0 <= rank < MAX_RANK else None,
        "planned": planned,
    }
