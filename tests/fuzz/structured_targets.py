"""Messages, entries, facts and arguments: made by their types, and then spoilt in some places."""

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from distconsole.checks.engine.catalogue import CATALOGUE
from distconsole.checks.engine.rule import Verdicts, judge
from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.node import convert
from distconsole.errors import ConsoleError, NodeError
from distconsole.grammar.verbs import parse_args, root
from distconsole.model.cluster import Host
from distconsole.model.diagnosis.calls import Call
from distconsole.model.names import HostName
from distconsole.rpc import frames, wire
from distconsole.rpc.roll_calls import read_call
from distconsole.runs.diagnosis.judge import judge as diagnose
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.reduce import RunReducer
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.contract.requests import AgentRequest, read_request
from distconsole_agent.coordination import channel
from distconsole_agent.coordination.channel import LinkError, SecretProof
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.journal import lines
from distconsole_agent.node_folder.folders import NodeFolders, open_node_dir, this_program
from distconsole_agent.node_folder.runs import NodeRuns
from distconsole_agent.roll_call import recorder
from distconsole_agent.server.answers import Answers
from distconsole_agent.server.connection import PendingRequest
from distconsole_agent.telemetry.sampling import Telemetry
from fakes.any_entry import TEXTS, any_entries, any_value
from fakes.links import SECOND, World, spec
from fuzz.console_targets import check_answer, texts_in
from fuzz.judging import Target, sandbox
from fuzz.node_targets import journal, shim_events
from fuzz.whole_run import Everything
from suite.check_cases import CASES, healthy_hosts, load

T = TypeVar("T")
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**63,
        10**30,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "0",
        "-1",
        [],
        {},
    ),
    *([[]], [None], {"": None}, [1, "a"], {"a": {}}, "9" * 5000, "²", *TEXTS),
)


def spoil(value: Any, dice: random.Random) -> Any:
    """Return ``value`` with junk in place of something in it, or as it was."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        key = dice.choice(sorted(value))
        if dice.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: spoil(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        return [*value[:at], spoil(value[at], dice), *value[at + 1 :]]
    return dice.choice(JUNK)


def spoilt(make: Callable[[random.Random], T]) -> Callable[[random.Random], T]:
    """Return what makes values of ``make``, most of them spoilt in one or two places, and of the same type."""

    def made(dice: random.Random) -> T:
        value = make(dice)
        for _ in range(dice.choice((0, 1, 1, 2))):
            other = spoil(value, dice)
            value = other if type(other) is type(value) else value
        return value

    return made


def wire_message(body: Any) -> Iterator[str]:
    said = wire.decode_answer(json.dumps(body).encode() + b"\n")
    yield from texts_in(check_answer(said))


def _messages(dice: random.Random) -> Any:
    items = {**wire.ITEMS, "follow": frames.JournalNews}
    kinds = {**wire.RESULTS, **items, "refused": frames.Refused}
    op = dice.choice(sorted(kinds))
    part = "error" if op == "refused" else "item" if op in items else "result"
    body = any_value(kinds[op], dice)
    if op == "follow":
        body = {**body, "entries": [entry for _, entry in any_entries(dice, 3)]}
    return {"id": 1, part: body}


def run_entries(told: list[list[Any]]) -> list[str]:
    reducer, made = RunReducer("r", ("n0", "n1")), Everything()
    for host, entry in told:
        item = wire.check_item("follow", json.loads(json.dumps({"entries": [entry]})))
        for known in item.entries:
            for event in reducer.feed(host, known, known.t):
                made.take(event)
            made.look(known.t)
    for event in reducer.lost_for_good(1e9):
        made.take(event)
    made.end(1e9)
    return made.shown()


def _entries(dice: random.Random) -> list[list[Any]]:
    return [list(each) for each in any_entries(dice, 40)]


def diagnosis(told: list[Any]) -> list[str]:
    cleaned = wire.check_result("roll_call", {"ranks": told})["ranks"]
    read = [read_call(body) for body in cleaned if isinstance(body, dict)]
    calls = {call.rank: call for call in read if call is not None}
    found = diagnose(Roll("run-1", calls, dict.fromkeys(range(4), "n0"), {}, longest_s=90.0))
    assert found.summary
    return [found.summary, found.hint]


@cache
def _healthy() -> dict[str, dict[str, Any]]:
    """Return the facts of two healthy hosts, by their kind."""
    healthy = load(CASES / "healthy.yaml")
    return {kind: healthy_hosts(kind, ["a", "b"], healthy) for kind in healthy if kind != "launch"}


KINDS = {kind.group: kind for rule in CATALOGUE for kind in (*rule.needs, *rule.after)}


def facts(value: list[Any]) -> Iterator[str]:
    """Facts of a hostile node: healthy ones with ``changes``, each of them a group's."""
    kind, group, said = value
    hosts = []
    for name, groups in _healthy()[kind].items():
        host = HostEvidence(Host(HostName(name)))
        for each, sound in groups.items():
            told = said if each == group and name == "a" else sound
            told = wire.check_result("probe", {"facts": told})["facts"]
            with suppress(ValueError):
                host.add_facts(convert(KINDS[each], told))
        hosts.append(host)
    view, verdicts = View(tuple(hosts), tuple(host.name for host in hosts)), Verdicts()
    for rule in CATALOGUE:
        if any(need.group == group for need in (*rule.needs, *rule.after)):
            judge(rule, hosts, view, verdicts)
    for found in verdicts.findings:
        yield from (found.summary, found.hint, found.seen or "", found.expected or "")


def _facts(dice: random.Random) -> list[Any]:
    kind = dice.choice(sorted(_healthy()))
    groups = _healthy()[kind]["a"]
    group = dice.choice(sorted(groups))
    said = groups[group]
    for _ in range(dice.choice((1, 1, 2, 4))):
        said = spoil(said, dice)
    return [kind, group, said]


def coordinator_messages(messages: list[Any]) -> None:
    """What a node of the run, which knows its secret, says to the coordinator."""
    world = World(2, max_restarts=1)
    try:
        assert world.coordinator.endpoint is not None
        world.coordinator.begin()
        with socket.create_connection(world.coordinator.endpoint) as sock:
            world.settle()
            nonce = channel.read_greeting(sock.recv(4096).partition(b"\n")[0])
            proof = SecretProof(bytes.fromhex("ab" * 32), "r1", 1, nonce, channel.fresh_nonce())
            sock.sendall(channel.introduce(proof) + b"\n")
            _seal_all(sock, proof.key("client"), messages)
            world.turn(0.2)
        json.dumps(world.told, default=str)
    finally:
        world.close()


def peer_messages(messages: list[Any]) -> None:
    """What a coordinator says to a node of its run."""
    world = World(2)
    listener = socket.create_server(("127.0.0.1", 0))
    peer = Peer(
        world.loop,
        spec(2, 1),
        listener.getsockname(),
        world._events(1),
        now_ns=lambda: int(world.now * SECOND),
    )
    try:
        peer.begin()
        with listener, listener.accept()[0] as sock:
            nonce = channel.fresh_nonce()
            sock.sendall(channel.greet(nonce) + b"\n")
            world.settle()
            line = sock.recv(4096).partition(b"\n")[0]
            proof = channel.check_introduction(line, bytes.fromhex("ab" * 32), "r1", nonce)
            sock.sendall(json.dumps({"proof": proof.of("server")}).encode() + b"\n")
            _seal_all(sock, proof.key("server"), messages)
            world.turn(0.2)
        peer.ended()
        world.turn(60.0 if len(messages) % 8 == 0 else 0.1)
    finally:
        peer.close()
        world.close()


def _seal_all(sock: socket.socket, key: bytes, messages: list[Any]) -> None:
    for number, message in enumerate(messages, 1):
        with suppress(LinkError, OSError):
            sock.sendall(channel.seal(key, number, message) + b"\n")


def _link_messages(dice: random.Random) -> list[Any]:
    common = {
        "n": 1,
        "restart": 0,
        "rank": 2,
        "pid": 7,
        "t_ns": 10**12,
        "exit_code": 1,
        "signal": None,
        "error": "e",
        "traceback": "",
    }
    known: list[dict[str, Any]] = [
        {"op": "ping", "t0": 1}, {"op": "clock", "offset_ns": 5}, {"op": "failed", **common}, {"op": "outlived", **common},
        {"op": "stopping", "reason": "user", "t_ns": 1, "grace": 1.0}, {"op": "idle", "restart": 0}, {"op": "ended", "restart": 0},
        {"op": "command_ended", "name": "x", "exit_code": 0, "restart": 0}, {"op": "answer", "id": 1, "ours": True},
        {"op": "shim_gone", "why": "w"}, {"op": "resume", "got": 0}, {"op": "beat", "ack": 0}, {"op": "pong", "t0": 1, "t1": 2},
        {"op": "stop", "reason": "failure", "grace": 1.0}, {"op": "command", "name": "x", "command": "true"}, {"op": "node_lost", "node": 1},
        {"op": "whose", "id": 1, "maker": ["127.0.0.1", 1], "taker": ["127.0.0.1", 2]},
        {"op": "again", "restart": 1, "of": 1, "port": 5, "checkpoint": None}, {"op": "verdict", "state": "failed", "exit_code": 1, "first_failure": None},
    ]  # fmt: skip
    return [dict(dice.choice(known)) for _ in range(dice.randrange(1, 8))]


def agent_requests(asked: list[Any]) -> None:
    """What a console asks of an agent, but for what starts programs or looks at other processes."""
    runs = NodeRuns(NodeFolders(open_node_dir(str(sandbox() / "node")), "dev"), this_program())
    answers = Answers(str(sandbox() / "node"), runs, Telemetry(), lambda: None)
    for request in asked:
        with suppress(Refusal):
            message = json.loads(json.dumps(request))
            answers.answer(read_request(AgentRequest, message), _Nobody())


class _Nobody(PendingRequest):
    """A console that hears nothing."""

    def __init__(self) -> None:
        self.number, self.environment, self.cancelled = 1, None, threading.Event()
        self.cancelled.set()

    def send_item(self, item: dict[str, Any]) -> None:
        json.dumps(item)

    def send_entries(self, entries: list[bytes], journal_id: str) -> None:
        json.dumps(journal_id)


def _requests(dice: random.Random) -> list[Any]:
    run = dice.choice(("run-1", "../x", "", "a" * 300))
    manifest = {
        "files": [["a.py", 0o644, 3, "ab" * 32]],
        "links": [["l", "a.py"]],
        "folders": ["d"],
    }
    known: list[dict[str, Any]] = [
        {"op": "hello", "protocol": 1}, {"op": "ping"}, {"op": "start", "run": run, "coordinator": None, "master_port": 5},
        {"op": "stop", "run": run, "reason": "user", "grace": 1.0}, {"op": "kill", "run": run}, {"op": "runs"}, {"op": "forget", "run": run},
        {"op": "follow", "run": run, "after": 0, "journal": "x"}, {"op": "sync", "run": run, "manifest": json.dumps(manifest)},
        {"op": "sync_take", "run": run, "pieces": [["ab" * 32, 0, 3]], "data": "YWJj"}, {"op": "trace", "run": run, "ranks": [0], "seconds": 1.0},
        {"op": "trace_take", "run": run, "rank": 0, "name": "x", "offset": 0},
    ]  # fmt: skip
    asked = spoilt(lambda dice: [dict(dice.choice(known)) for _ in range(dice.randrange(1, 4))])(
        dice
    )
    unsafe = ("probe", "prepare", "slurm", "survey", "roll_call", "watch")
    return [each for each in asked if isinstance(each, dict) and each.get("op") not in unsafe]


def arguments(words: list[str]) -> list[str]:
    request = parse_args(words)
    assert request == parse_args(words)
    return []


def _words(dice: random.Random) -> list[str]:
    verb = dice.choice(sorted(root.commands))
    flags = [flag for each in root.commands[verb].params for flag in each.opts] or ["--help"]
    texts = (
        "a",
        "1",
        "x=y",
        "gpu[1-3]",
        "2m",
        "1GiB",
        "nan",
        "-",
        "--",
        "train.py",
        "%",
        "9" * 400,
        "²",
        "a,b",
        "$(x)",
        *TEXTS,
    )
    return [
        verb,
        *(dice.choice(flags if dice.random() < 0.6 else texts) for _ in range(dice.randrange(6))),
    ]


def flight_records(dump: Any) -> None:
    try:
        read = recorder.read_dump(json.dumps(dump).encode())
    except ValueError:
        return
    json.dumps(recorder.last_collectives(read, 1.8e9))
    recorder.is_off(read)


def _dump(dice: random.Random) -> Any:
    entry = {
        "record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 3, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_790_000_000_000_000_000, "input_sizes": [[3, 4]], "input_dtypes": ["Float"],
        "output_sizes": [[3]], "output_dtypes": ["Float"], "state": "completed", "retired": True,
    }  # fmt: skip
    return {
        "version": "2.10",
        "entries": [dict(entry) for _ in range(dice.randrange(1, 4))],
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 3}},
    }


def shim_told(events: Any) -> None:
    shim_events(b"".join(json.dumps(event).encode() + b"\n" for event in events))


def _events(dice: random.Random) -> list[Any]:
    rank = {"rank": 0, "local_rank": 0, "pid": 7, "t_ns": 10**18, "boot_ns": 10**12}
    known: list[dict[str, Any]] = [
        {"event": "started", **rank}, {"event": "exited", **rank, "exit_code": 0, "signal": None}, {"event": "ended", **rank},
        {"event": "failed", **rank, "exit_code": 1, "signal": None, "error": "e", "traceback": "t"}, {"event": "stopping", **rank, "reason": "user"},
        {"event": "note", **rank, "check": "run.x", "severity": "info", "summary": "s"}, {"event": "restart", **rank, "restart": 1, "of": 2},
        {"event": "attempt", **rank, "restart": 1, "of": 2}, {"event": "verdict", **rank, "state": "failed", "exit_code": 1, "first_failure": None},
    ]  # fmt: skip
    return [dict(dice.choice(known)) for _ in range(dice.randrange(1, 8))]


def journal_batches(batches: list[Any]) -> None:
    """A journal whose lines have right checksums, whatever they say."""
    journal(b"".join(lines.dump(each) for each in batches if isinstance(each, dict) and each))


def _batches(dice: random.Random) -> list[Any]:
    first = {
        "mark": {"logs": {"rank-0.out": 0}},
        "last_seq": 0,
        "journal": {"id": "j", "kept": {"i": 3}},
    }
    entries = [
        {"seq": number, "t": 1.0, "kind": "note"} for number in range(1, dice.randrange(2, 5))
    ]
    return [first, *entries, {"mark": {"logs": {"rank-0.out": 9}}, "ended": False}]


TARGETS = (
    Target("wire-message", wire_message, (NodeError,), spoilt(_messages)),
    Target("run-entries", run_entries, (NodeError,), _entries, slow=40),
    Target(
        "diagnosis",
        diagnosis,
        (NodeError,),
        spoilt(lambda dice: [any_value(Call, dice) for _ in range(dice.randrange(5))]),
    ),
    Target("facts", facts, (NodeError,), _facts, slow=8),
    Target("coordinator-messages", coordinator_messages, (), spoilt(_link_messages), slow=20),
    Target("peer-messages", peer_messages, (), spoilt(_link_messages), slow=20),
    Target("agent-requests", agent_requests, (), _requests, slow=20),
    Target("arguments", arguments, (ConsoleError,), _words, slow=4),
    Target("flight-records", flight_records, (), spoilt(_dump)),
    Target("shim-told", shim_told, (), spoilt(_events)),
    Target("journal-batches", journal_batches, (), spoilt(_batches), slow=8),
)
