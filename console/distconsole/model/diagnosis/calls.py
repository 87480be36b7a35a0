"""A node's report on one rank: a *call*. Every field but the first three may be unknown."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

Word: TypeAlias = Annotated[str, Meta(max_length=512)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rank: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
Code: TypeAlias = Annotated[int, Meta(ge=-255, le=65535)]
Shapes: TypeAlias = Annotated[
    tuple[Annotated[tuple[Count, ...], Meta(max_length=32)], ...], Meta(max_length=64)
]
Types: TypeAlias = Annotated[tuple[Word, ...], Meta(max_length=64)]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything below."""


class Place(Told, frozen=True, kw_only=True):
    """A line of a program; ``line`` is 0 if unknown."""

    function: Word
    file: Word
    line: Count = 0


class Thread(Told, frozen=True, kw_only=True):
    """A thread's Python stack, innermost first."""

    name: Word = ""
    tid: Count = 0
    main: bool = False
    frames: Annotated[tuple[Place, ...], Meta(max_length=64)] = ()


class ProcessEnding(Told, frozen=True, kw_only=True):
    """How a process ended; ``why`` is its node's explanation, such as the kernel's OOM killer."""

    exit_code: Code | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None
    t: Amount | None = None
    why: Word = ""


class Child(Told, frozen=True, kw_only=True):
    """A process that a rank has started, such as a worker of its DataLoader."""

    pid: Count
    state: Word = ""
    name: Word = ""
    cpu_s: Amount = 0.0
    ended: ProcessEnding | None = None
    frames: Annotated[tuple[Place, ...], Meta(max_length=64)] = ()


class Awaited(Told, frozen=True, kw_only=True):
    """The thing that a process waits for: ``kind`` is file, socket, pipe, lock, child, terminal, debugger, stopped or disk."""

    kind: Word
    what: Word = ""


class SystemCall(Told, frozen=True, kw_only=True):
    name: Word
    fd: int | None = None


class CallRefusal(Told, frozen=True, kw_only=True):
    """A way to the stacks that is not possible, and the reason."""

    way: Word
    why: Word


class GpuUse(Told, frozen=True, kw_only=True):
    """The GPU of a rank: percent and watts, and the watts it takes in its steps."""

    index: Count = 0
    util: Amount | None = None
    power_w: Amount | None = None
    power_usual_w: Amount | None = None


class Operation(Told, frozen=True, kw_only=True):
    """An operation that a rank has enqueued: its number in the group, name, shapes and types.

    ``p2p``: a send or receive; its pair of ranks numbers it.
    """

    seq: Count
    op: Word = ""
    state: Word = ""
    p2p: bool = False
    input_sizes: Shapes = ()
    input_dtypes: Types = ()


class Collective(Operation, frozen=True, kw_only=True):
    """The last one that a rank has enqueued in a process group.

    Attributes:
        ranks: Of the group, by their global numbers; empty if unknown.
        span: The first and the last of them, if agents send a range by these alone.
        done_seq: The last one that is complete, -1 for none yet; None if unknown.
        age_s: Seconds since it was enqueued.
        recent: Those before it, newest first.
    """

    group: Word = ""
    name: Word = ""
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=65536)] = ()
    span: tuple[Rank, Rank] | UnsetType = UNSET
    backend: Word = ""
    done_seq: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    age_s: Amount | None = None
    recent: Annotated[tuple[Operation, ...], Meta(max_length=64)] = ()


class HorovodWait(Told, frozen=True, kw_only=True):
    """Horovod's own words: tensors that wait, and which ranks each lacks."""

    stalled: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    missing: Annotated[
        dict[Word, Annotated[tuple[Rank, ...], Meta(max_length=65536)]], Meta(max_length=64)
    ] = msgspec.field(default_factory=dict)


class Call(Told, frozen=True, kw_only=True):
    """One rank at ``t`` (UNIX seconds on the node's clock); seconds, bytes, and CPU seconds over the last ``over_s``.

    Attributes:
        pid: 0 of a rank that was never started.
        stage: not_started, starting, stepping, between or ended.
        step: The last finished step, -1 unknown.
        silent_s: Since that step, or since its start.
        usual_s: Usual duration of its steps.
        way: How the stacks were got: server, signal, py-spy, python or proc.
        native: Frames of the main thread below Python.
        state, wchan: As the kernel has them of the main thread.
        tracer: The process that traces it, 0 for none.
        raised: The exception that it has met, in a line.
        note: Missing parts.
    """

    rank: Rank
    pid: Count | None = None
    alive: bool = True
    local_rank: Rank = 0
    t: Amount | None = None
    ended: ProcessEnding | None = None
    stage: Word | None = None
    step: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    silent_s: Amount | None = None
    usual_s: Amount | None = None
    way: Word | None = None
    refused: Annotated[tuple[CallRefusal, ...], Meta(max_length=16)] = ()
    threads: Annotated[tuple[Thread, ...], Meta(max_length=64)] = ()
    native: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    state: Word = ""
    wchan: Word = ""
    syscall: SystemCall | None = None
    waits_for: Awaited | None = None
    tracer: Count = 0
    cpu_s: Amount | None = None
    over_s: Amount | None = None
    main_cpu_s: Amount | None = None
    children: Annotated[tuple[Child, ...], Meta(max_length=256)] = ()
    swap_bytes: Count = 0
    rss_bytes: Count = 0
    major_faults_s: Amount = 0.0
    gpu: GpuUse | None = None
    collectives: Annotated[tuple[Collective, ...], Meta(max_length=256)] = ()
    horovod: HorovodWait | None = None
    raised: Word = ""
    note: Word = ""

    @property
    def frames(self) -> tuple[Place, ...]:
        """The main thread's stack, innermost first; that of the first thread if none is the main one."""
        main = next((each for each in self.threads if each.main), None)
        if main is None and self.threads:
            main = self.threads[0]
        return () if main is None else main.frames
