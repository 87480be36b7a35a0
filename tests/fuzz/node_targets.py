"""What agent, shim and coordinator read of others: the network, ranks, the kernel's files, and what programs print."""

import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distconsole_agent.contract.protocol import MAX_LINE_BYTES, ProtocolError, decode, encode
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.contract.runspec import SpecError, read_spec
from distconsole_agent.coordination import channel
from distconsole_agent.coordination.channel import LinkError, SecretProof
from distconsole_agent.engines import slurm_words
from distconsole_agent.engines.kvstore import KeyValueStore, Room, read_request
from distconsole_agent.journal import lines
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.rank_states import RankStates
from distconsole_agent.journal.reader import JournalError, Reader, read_state
from distconsole_agent.journal.recorders import Recorders
from distconsole_agent.journal.shim_events import ShimEventReducer, ShimLines
from distconsole_agent.node_folder.manifest import read_manifest
from distconsole_agent.probes.collectives.engine_words import MAX_LINE, NcclWords, read_nccl
from distconsole_agent.probes.host import kernel_log, machine, mounts, slurm
from distconsole_agent.probes.programs import Ended
from distconsole_agent.probes.scripts import _read_parts as read_parts
from distconsole_agent.probes.software.engines import parse_version
from distconsole_agent.roll_call import recorder
from distconsole_agent.roll_call.calling import parse_stalls
from distconsole_agent.roll_call.stacks import parse_faulthandler, parse_py_spy, parse_python
from distconsole_agent.server.connection import ConsoleConnection, PendingRequest
from distconsole_agent.supervisor.failures import (
    headline,
    read_engine_summary,
    read_raised,
    told_in,
)
from distconsole_agent.survey.processes import SeenProcess
from distconsole_agent.survey.surveying import read_ras
from distconsole_agent.survey.worlds import find_jobs
from distconsole_agent.system import procfs
from distconsole_agent.system.loop import Loop
from fakes import specs
from fakes.links import World
from fuzz.console_targets import of_bytes, text_of
from fuzz.judging import file_of, sandbox


def request_lines(data: bytes) -> None:
    """A console that says ``data`` to an agent."""
    ours, theirs = socket.socketpair()
    over = threading.Event()
    raised: list[BaseException] = []

    def answer(request: dict[str, Any], _asked: PendingRequest) -> dict[str, Any]:
        return {"seen": len(request)}

    before, threading.excepthook = (
        threading.excepthook,
        lambda told: raised.append(told.exc_value or AssertionError(told.exc_type)),
    )
    try:
        with ours:
            ConsoleConnection(
                theirs, answer, threading.BoundedSemaphore(4), lambda _: over.set()
            ).begin()
            with contextlib.suppress(OSError):
                ours.settimeout(5)
                ours.sendall(data)
                ours.shutdown(socket.SHUT_WR)
                while ours.recv(65536):
                    pass
        assert over.wait(5), "the connection was not given up"
    finally:
        threading.excepthook = before
        theirs.close()
    if raised:
        raise raised[0]


def protocol_line(data: bytes) -> None:
    message = decode(data)
    with contextlib.suppress(ProtocolError):
        assert len(encode(message)) <= MAX_LINE_BYTES


def run_spec(data: bytes) -> None:
    read_spec(str(file_of(data)))


def stranger(data: bytes) -> None:
    """Who connects to the coordinator without the run's secret."""
    world = World(2)
    try:
        assert world.coordinator.endpoint is not None
        with socket.create_connection(world.coordinator.endpoint) as sock:
            for at in range(0, len(data) + 1, max(1, len(data) // 2)):
                with contextlib.suppress(OSError):
                    sock.sendall(data[at : at + max(1, len(data) // 2)])
                world.settle()
        world.turn(4.0)
        assert not any(world.told), "a stranger was heard"
    finally:
        world.close()


def false_coordinator(data: bytes) -> None:
    """What a shim is told by who listens in place of the coordinator."""
    nonce = channel.read_greeting(data.partition(b"\n")[0])
    proof = SecretProof(b"s", "r1", 1, nonce, channel.fresh_nonce())
    channel.check_admission(data.partition(b"\n")[2], proof)
    raise AssertionError("who does not know the secret was believed")


def horovod_store(data: bytes) -> None:
    loop, room = Loop(clock=lambda: 0.0), Room(1000, 2500, 5)
    store = KeyValueStore(
        loop, "127.0.0.1", room, lambda _ends, answer: answer(True), lambda _: None
    )
    try:
        for part in data.split(b"\n--\n")[:4]:
            with socket.create_connection(("127.0.0.1", store.port)) as sock:
                with contextlib.suppress(OSError):
                    sock.sendall(part)
                for _ in range(4):
                    loop.run_once(0.0)
        with contextlib.suppress(ValueError):
            asked = read_request(data, 1000)
            assert asked is None or len(asked.body) <= 1000
    finally:
        store.close()
        loop.close()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=sandbox()) as path:
        yield Path(path)


def ring(data: bytes) -> None:
    with folder() as place:
        (place / "7-1.ring").write_bytes(data)
        states = RankStates([0, 1], engine_ranks=True)
        rings = Recorders(str(place), states, lambda: 10**18)
        try:
            rings.scan({})
            for final in (None, 2 * 10**18):
                for _ in range(8):
                    json.dumps(rings.drain(ended_ns=final))
            json.dumps(rings.marks())
            rings.silent(10**12)
            rings.gone()
        finally:
            rings.close()


def journal_line(data: bytes) -> None:
    for line in data.splitlines(keepends=True):
        if lines.seq_of(line):
            lines.body_of(line)
        lines.mark_of(line)
        lines.is_end(line)


def journal(data: bytes) -> None:
    """A journal's first segment, and after a line of dashes its second."""
    with folder() as place:
        for number, part in enumerate(data.split(b"\n--\n")[:3], 1):
            (place / f"{number:06d}.jsonl").write_bytes(part)
        state = read_state(str(place))
        assert state.size <= len(data)
        reader = Reader(str(place), 0)
        with contextlib.closing(reader), contextlib.suppress(JournalError):
            list(reader.read_all())
        opened = Journal(str(place))
        try:
            opened.open_writer()
            opened.append([{"t": 1.0, "kind": "note"}], {})
        finally:
            opened.close()


def shim_events(data: bytes) -> None:
    told = ShimLines(str(file_of(data)))
    states = RankStates([0, 1], engine_ranks=True)
    reducer = ShimEventReducer(specs.run_spec((0, 1)), states)
    try:
        for _, event in told.read():
            json.dumps(reducer.tell(event))
        reducer.judge_lost(1, "")
        reducer.end_lost(1.0)
    finally:
        told.close()


def nccl_log(data: bytes) -> None:
    text = text_of(data)
    words = NcclWords()
    for at in range(0, len(text), 100):
        words.take(text[at : at + 100])
    facts = read_nccl(text)
    assert facts is None or len(json.dumps(facts)) < 1 << 20
    if max(map(len, text.split("\n"))) < MAX_LINE:
        assert words.facts() == facts


def slurm_output(data: bytes) -> list[str]:
    text = text_of(data)
    slurm.parse_pairs(text)
    slurm.parse_limits(text)
    parse_version(text)
    return [slurm.complaint(Ended(1, text, "", 1.0))] if text.isprintable() else []


def slurm_log(data: bytes) -> None:
    with folder() as place:
        (place / slurm_words.STEP_LOG).write_bytes(data)
        (place / slurm_words.STEP_ENDED).write_bytes(data[:20])
        slurm_words.read_reason(str(place))
        slurm_words.read_srun_death(str(place))
        slurm_words.read_complaint(str(place))
        slurm_words.has_srun(str(place))


def horovod_stalls(data: bytes) -> None:
    found = parse_stalls(text_of(data))
    assert found is None or len(found["stalled"]) <= 16


def flight_recorder(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        recorder.read_health(data)
    try:
        dump = recorder.read_dump(data)
    except ValueError:
        return
    json.dumps(recorder.last_collectives(dump, 1.8e9))
    recorder.is_off(dump)


def faulthandler(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(parse_faulthandler(text_of(data))) <= 32


def py_spy(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_py_spy(text_of(data), 7)
    with contextlib.suppress(ValueError):
        parse_python(text_of(data), 7)


def nccl_ras(data: bytes) -> None:
    assert all(len(line) <= 300 for line in read_ras(text_of(data)))


def failure_words(data: bytes) -> None:
    text = text_of(data)
    told = told_in(text)
    headline(told.error, told.traceback)
    read_engine_summary(str(file_of(data)))


def error_files(data: bytes) -> None:
    with folder() as place:
        (place / "7.json").write_bytes(data)
        read_raised(str(place))


def proc_files(data: bytes) -> None:
    root = str(file_of(data, "proc/7/stat").parent.parent)
    file_of(data, "proc/meminfo")
    one = procfs.read_process(7, root)
    machine.memory(root)
    mounts.read_mounts(str(file_of(data, "mounts")))
    if one is not None:
        _jobs_of(one, data)


def _jobs_of(process: procfs.Process, data: bytes) -> None:
    """The command line and the variables of a process that may train: words, each of a line."""
    words = tuple(text_of(word) for word in data.split(b"\0"))
    told = {name: value for name, _, value in (word.partition("=") for word in words)}
    find_jobs({7: process}, {7: SeenProcess(process, words, told)})


def command_line(data: bytes) -> None:
    _jobs_of(procfs.Process(7, 1, 0, "python", "S", 10.0, 1, False), data)


def kernel_records(data: bytes) -> None:
    found = [kernel_log.parse_record(text_of(each)) for each in data.split(b"\0")]
    json.dumps(kernel_log.events_of([each for each in found if each is not None], 1e6))


def code_manifest(data: bytes) -> None:
    for path in read_manifest(data).paths:
        assert not path.startswith("/")
        assert ".." not in path.split("/")


def probe_words(data: bytes) -> None:
    read_parts(text_of(data))


TARGETS = (
    of_bytes(request_lines, slow=4),
    of_bytes(protocol_line, ProtocolError),
    of_bytes(run_spec, SpecError),
    of_bytes(stranger, slow=40, max_bytes=8192),
    of_bytes(false_coordinator, LinkError),
    of_bytes(horovod_store, slow=4, max_bytes=32 * 1024),
    of_bytes(ring, slow=2, max_bytes=32 * 1024),
    of_bytes(journal_line),
    of_bytes(journal, slow=8),
    of_bytes(shim_events),
    of_bytes(nccl_log),
    of_bytes(slurm_output),
    of_bytes(slurm_log),
    of_bytes(horovod_stalls),
    of_bytes(flight_recorder),
    of_bytes(faulthandler),
    of_bytes(py_spy),
    of_bytes(nccl_ras),
    of_bytes(failure_words),
    of_bytes(error_files),
    of_bytes(proc_files),
    of_bytes(command_line),
    of_bytes(kernel_records),
    of_bytes(code_manifest, Refusal),
    of_bytes(probe_words),
)
