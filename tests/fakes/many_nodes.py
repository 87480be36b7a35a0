"""Thousands of nodes in one process: the agents' frames over a Unix socket, without machines behind them.

It says what an agent says, in its order and at its pace: the bridge's words, hello, clocks, runs, the journal of
a run that goes on, where ranks are. What a check asks is answered by one real agent, once for each question, with
the names and addresses of the simulated host in it; connections between simulated hosts always come about.

``python -m fakes.many_nodes --socket PATH --first N --count N --hosts N [--lines-s N]``
"""

import argparse
import asyncio
import json
import math
import os
import re
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from distconsole_agent.contract.limits import ITEM_BYTES, LATE_SECONDS
from distconsole_agent.contract.protocol import MAX_ENTRIES_PER_ITEM, MAX_LINE_BYTES
from distconsole_agent.server.joining import GREETING
from fakes.agents import AgentNode, Bridge
from fakes.journals import Body, Journal
from suite.check_cases import CASES, load
from suite.roll_calls import call_of

RUN = "scale-1124-000000"
TOLD_LINES_S = 0.1
"""Lines a second of each rank where no flood is asked for."""

HELD_BYTES = 512 * 1024
"""What a bridge and its sockets hold of a stream that nobody takes; then the journal waits."""

SLOW_RANK = 7
"""The rank that keeps the others in a roll call."""

LOADED = re.compile(rb' (\d+) (\d+) "\$f" ')
"""In the line that starts a bridge: the bytes of its two scripts, which follow."""

LINE = "step {number:09} of rank {rank}: what a rank prints that floods\n"
Question = dict[str, Any]


def name_of(place: int) -> str:
    return f"node{place + 1:04}"


def address_of(place: int) -> str:
    return f"10.{64 + (place >> 16)}.{place >> 8 & 255}.{place & 255}"


@dataclass(frozen=True)
class Scale:
    """How much there is of everything."""

    hosts: int
    per_host: int
    lines_s: float

    @property
    def world(self) -> int:
        return self.hosts * self.per_host


class Model:
    """One real agent, and what it answered, to be told again by every simulated host."""

    def __init__(self, folder: Path) -> None:
        self._node = AgentNode(folder)
        self._bridge: Bridge = self._node.bridge()
        self.hello: dict[str, Any] = self._bridge.done("hello", protocol=1)
        self._answers: dict[str, str] = {}
        self._gpus = json.dumps(load(CASES / "healthy.yaml")["eight gpus"]["gpu"])

    def close(self) -> None:
        self._node.close()

    def knows(self, asked: Question) -> bool:
        """Whether it was asked before, and so answers at once."""
        return asked["group"] in self._answers

    def facts(self, asked: Question, place: int) -> msgspec.Raw:
        """Return what ``place`` answers to one probe."""
        name = asked["group"]
        if name not in self._answers:
            known = {**asked, "seconds": 20.0}
            answer = self._bridge.done("probe", group="many", args={"probes": [known]})
            self._answers[name] = self._nameless(answer["facts"]["answers"][asked["name"]])
        return msgspec.Raw(self._own(self._answers[name], place).encode())

    def greet(self, place: int) -> dict[str, Any]:
        """Return the hello of ``place``."""
        address = {"iface": "eth0", "address": address_of(place), "prefix": 10}
        loopback = {"iface": "lo", "address": "127.0.0.1", "prefix": 8, "loopback": True}
        own = {"hostname": name_of(place), "boot_id": f"boot-{place}", "gpus": 8}
        return {**self.hello, **own, "addresses": [loopback, address], "time_ns": time.time_ns()}

    def _nameless(self, answer: dict[str, Any]) -> str:
        text = json.dumps(answer)
        for entry in self.hello["addresses"]:
            if not entry.get("loopback"):
                text = text.replace(f'"{entry["address"]}"', '"@address@"')
        text = text.replace('"127.0.0.1"', '"@address@"')  # what its own name means here
        return text.replace(f'"{self.hello["hostname"]}"', '"@host@"')

    def _own(self, answer: str, place: int) -> str:
        return answer.replace("@host@", name_of(place)).replace("@address@", address_of(place))

    def gpus(self, place: int) -> msgspec.Raw:
        return msgspec.Raw(self._gpus.replace("{host}", name_of(place)).encode())


class Ranks:
    """The journal of one host's ranks, from when it is first followed; what it told it tells again."""

    def __init__(self, scale: Scale, place: int) -> None:
        self._journal = Journal(run=RUN, hosts=scale.hosts, per_host=scale.per_host)
        self._scale = scale
        self._place = place
        self._seq = 0
        self._ends = [scale.per_host]
        """The number of the last entry of the beginning, and of each second."""
        self._began = time.time()
        self._second = 0
        self._line = 0
        self._offset = 0
        self.left_out = 0

    @property
    def _ranks(self) -> range:
        per_host = self._scale.per_host
        return range(self._place * per_host, (self._place + 1) * per_host)

    def go_back(self, after: int) -> None:
        """Go on behind that entry."""
        self._seq, self._second = after, max(0, bisect_right(self._ends, after) - 1)
        del self._ends[self._second + 1 :]

    @property
    def due(self) -> float:
        """UNIX seconds of the next second's end; agents have no clock in common."""
        return self._began + self._place * 0.618 % 1.0 + self._second + 1

    def beginning(self) -> list[Body]:
        return [self._journal.state(rank, "running") for rank in self._ranks]

    def tick(self) -> Iterator[Body]:
        """Yield what an agent tells of a second: a window and lines of each rank, every other one its load."""
        self._second += 1
        for rank in self._ranks:
            yield self._journal.window(rank, self._second)
        if self._second % 2 == 0:
            yield self._journal.sample(self._place, self._second)
        yield from self._lines()

    def end(self, state: str, code: int) -> list[Body]:
        over = {"state": state, "exit_code": code}
        ranks = [self._journal.state(rank, "killed", exit_code=143) for rank in self._ranks]
        verdict = {"kind": "verdict", **over, "first_failure": None}
        return [*ranks, verdict, {"kind": "end", **over, "seconds": time.time() - self._began}]

    def items(self, bodies: list[Body]) -> Iterator[bytes]:
        """Yield the items in which an agent sends ``bodies``."""
        entries: list[bytes] = []
        size = 0
        for body in bodies:
            self._seq += 1
            entry = msgspec.json.encode({"seq": self._seq, "t": self.due - 1, **body})
            if entries and (len(entries) >= MAX_ENTRIES_PER_ITEM or size > ITEM_BYTES):
                yield b",".join(entries)
                entries, size = [], 0
            entries.append(entry)
            size += len(entry)
        self._ends[self._second :] = [self._seq]
        yield b",".join(entries)

    def _lines(self) -> Iterator[Body]:
        rate = self._scale.lines_s / self._scale.world  # of a rank
        due = math.floor((time.time() - self._began) * rate)
        new = due - self._line
        late = math.floor(new - rate * (LATE_SECONDS + 1))
        notice = ""
        if late > 0:  # as an agent does: over a slow way only lines are late, never steps
            notice = f"[distconsole: {late:,} lines are not shown here: the way to this console is too slow for them]\n"
            self.left_out += late * len(self._ranks)
            self._line += late
        numbers = range(self._line, due)
        for rank in self._ranks if new else ():
            text = notice + "".join(LINE.format(number=number, rank=rank) for number in numbers)
            place = {"kind": "log", "rank": rank, "stream": "out", "offset": self._offset}
            yield {**place, "text": text}
        self._line = due
        self._offset += len(numbers) * len(LINE)


class Simulated:
    """The nodes of one process."""

    def __init__(self, scale: Scale, first: int, count: int, model: Model) -> None:
        self.scale = scale
        self.model = model
        self._places = {name_of(place): place for place in range(first, first + count)}
        self._stopped = asyncio.Event()
        self._asking = asyncio.Lock()
        self._ranks: dict[int, Ranks] = {}
        self.told = dict.fromkeys(("items", "bytes", "left_out"), 0)
        self._ops: dict[str, Callable[[int, Question], Awaitable[dict[str, Any]]]] = {
            "hello": self._hello,
            "runs": self._runs,
            "roll_call": self._roll_call,
            "probe": self._probe,
            "stop": self._stop,
            "kill": self._stop,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be the node whose name comes first, until the console goes."""
        followed: dict[int, asyncio.Task[None]] = {}
        writer.transport.set_write_buffer_limits(high=HELD_BYTES)
        try:
            place = await self._start(reader, writer)
            while line := await reader.readline():
                await self._take(place, json.loads(line), writer, followed)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for task in followed.values():
                task.cancel()
            writer.close()

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        name, token = (await reader.readline()).decode().split()
        writer.write(f"distconsole-boot {token} ready\n".encode())
        line = await reader.readline()
        loaded = LOADED.search(line)
        if loaded is None:
            raise ConnectionError(f"no start of a bridge: {line[:200]!r}")
        await reader.readexactly(sum(map(int, loaded.groups())))
        writer.write(GREETING + os.fsencode(sys.executable) + b"\n")
        return self._places[name]

    async def _take(
        self,
        place: int,
        asked: Question,
        writer: asyncio.StreamWriter,
        followed: dict[int, asyncio.Task[None]],
    ) -> None:
        number, op = asked["id"], asked["op"]
        if op == "ping":
            now = {"time_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
            self._say(writer, {"id": number, "result": now})
        elif op == "cancel":
            if (task := followed.pop(asked["target"], None)) is not None:
                task.cancel()
                self._say(writer, {"id": asked["target"], "result": {"cancelled": True}})
            self._say(writer, {"id": number, "result": {}})
        elif op in ("follow", "watch"):
            stream = self._follow if op == "follow" else self._watch
            followed[number] = asyncio.create_task(stream(place, asked, writer))
        elif op in self._ops:
            result = await self._ops[op](place, asked)
            self._say(writer, {"id": number, "result": result})
            await writer.drain()
        else:
            error = {"code": "unknown_op", "message": f"a simulated node does not know {op}"}
            self._say(writer, {"id": number, "error": error})

    def _say(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            error = {"code": "internal", "message": f"an answer of {len(line)} bytes"}
            line = msgspec.json.encode({"id": message["id"], "error": error}) + b"\n"
        writer.write(line)

    async def _follow(self, place: int, asked: Question, writer: asyncio.StreamWriter) -> None:
        ranks = self._ranks.setdefault(place, Ranks(self.scale, place))
        ranks.go_back(asked["after"])
        prefix = b'{"id":%d,"item":{"entries":[' % asked["id"]
        bodies = ranks.beginning() if not asked["after"] else []
        while True:
            for item in ranks.items(bodies) if bodies else ():
                line = prefix + item + b'],"journal":"simulated"}}\n'
                self.told["items"] += 1
                self.told["bytes"] += len(line)
                writer.write(line)
                await writer.drain()
            if self._stopped.is_set():
                break
            await asyncio.sleep(max(0.0, ranks.due - time.time()))
            left_out = ranks.left_out
            bodies = list(ranks.tick())
            self.told["left_out"] += ranks.left_out - left_out
        for item in ranks.items(ranks.end("stopped", 130)):
            writer.write(prefix + item + b'],"journal":"simulated"}}\n')
        self._say(writer, {"id": asked["id"], "result": {"last": 0}})

    async def _watch(self, place: int, asked: Question, writer: asyncio.StreamWriter) -> None:
        journal = Journal(run=RUN, hosts=self.scale.hosts, per_host=self.scale.per_host)
        await asyncio.sleep(place * 0.618 % 1.0)
        for second in range(sys.maxsize):
            sample = journal.sample(place, second)
            item = {"t": time.time(), "node": sample["node"], "gpus": sample["gpus"]}
            self._say(writer, {"id": asked["id"], "item": item})
            await writer.drain()
            await asyncio.sleep(asked.get("interval", 1.0))

    async def _hello(self, place: int, _asked: Question) -> dict[str, Any]:
        return self.model.greet(place)

    async def _runs(self, place: int, _asked: Question) -> dict[str, Any]:
        known = {"run": RUN, "name": "scale", "state": "running", "created": time.time()}
        more = {"script": "train.py", "launcher": "torch", "world_size": self.scale.world}
        ours = {"node_index": place, "nodes": self.scale.hosts, "last_seq": self.scale.per_host}
        return {"runs": [{**known, **more, **ours, "journal": "simulated"}]}

    async def _stop(self, _place: int, _asked: Question) -> dict[str, Any]:
        self._stopped.set()
        return {"stopping": True}

    async def _roll_call(self, place: int, _asked: Question) -> dict[str, Any]:
        per_host, world = self.scale.per_host, self.scale.world
        ranks = range(place * per_host, (place + 1) * per_host)
        waits, elsewhere = {"waits": "backward 2507 train.py:88"}, {"at": "load data.py:3"}
        calls = []
        for rank in ranks:
            words = elsewhere if rank == SLOW_RANK else waits
            call = msgspec.to_builtins(call_of(rank, {**words, "group": "0 0-63"}, world))
            of_all = {"name": "default_pg", "ranks": [], "span": [0, world - 1]}
            call["collectives"] = [each | of_all for each in call["collectives"]]
            calls.append(call)
        return {"ranks": calls, "time_ns": time.time_ns(), "host": name_of(place)}

    async def _probe(self, place: int, asked: Question) -> dict[str, Any]:
        group, args = asked["group"], asked["args"]
        if group == "many":
            answers = {each["name"]: await self._one(place, each) for each in args["probes"]}
            return {"facts": {"answers": answers}}
        if group == "net.listen":
            ports = [{"asked": port, "port": port} for port in args["ports"]]
            more = [{"asked": 0, "port": 40000 + turn} for turn in range(args["ephemeral"])]
            return {"facts": {"token": f"token-{place}", "ports": [*ports, *more]}}
        if group == "net.connect":
            own = address_of(place)
            came = {"ok": True, "error": "", "errno": "", "source": own, "seen_source": own}
            results = [
                {"id": each["id"], **came, "rtt_us": 100.0, "bulk": True if each["bulk"] else None}
                for each in args["targets"]
            ]
            return {"facts": {"results": results}}
        return {"facts": {}}

    async def _one(self, place: int, asked: Question) -> Any:
        own = address_of(place)
        match asked["group"]:
            case "gpu":
                return {"facts": self.model.gpus(place), "seconds": 0.1}
            case "proc":  # those of this machine, which is busy, are nobody's
                return {"facts": {"uid": os.getuid(), "processes": []}, "seconds": 0.1}
            case "net":
                names = ("eth0", own, 10), ("lo", "127.0.0.1", 8)
                keys = ("iface", "address", "prefix")
                addresses = [dict(zip(keys, each, strict=True)) for each in names]
                addresses[1]["loopback"] = True
                routes = dict.fromkeys(asked["args"]["peers"], own)
                facts = {"interfaces": {"eth0": {"mtu": 1500}}, "routes": routes}
                return {"facts": {"addresses": addresses, **facts}, "seconds": 0.1}
            case "between":
                logins = [
                    {"target": each["name"], "name": each["name"], "ok": True}
                    for each in asked["args"]["targets"]
                ]
                return {"facts": {"client": True, "logins": logins}, "seconds": 0.1}
        if not self.model.knows(asked):
            async with self._asking:
                await asyncio.to_thread(self.model.facts, asked, place)
        return self.model.facts(asked, place)


async def be_nodes(scale: Scale, first: int, count: int, socket: Path, model: Model) -> None:
    """Serve until this process is ended."""
    nodes = Simulated(scale, first, count, model)
    loop = asyncio.get_running_loop()
    make = partial(asyncio.start_unix_server, nodes.serve, limit=MAX_LINE_BYTES, backlog=8192)
    server = await make(str(socket))
    loop.call_later(1.0, _note, loop, nodes, socket.with_suffix(".json"))
    async with server:
        await server.serve_forever()


def _note(loop: asyncio.AbstractEventLoop, nodes: Simulated, note: Path) -> None:
    aside = note.with_suffix(".aside")
    aside.write_text(json.dumps(nodes.told))
    aside.rename(note)
    loop.call_later(1.0, _note, loop, nodes, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    for name in ("first", "count", "hosts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--lines-s", type=float, default=0.0)
    given = parser.parse_args()
    # Not SIGINT, which what a shell starts in the background ignores.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lines_s = given.lines_s or TOLD_LINES_S * given.hosts * given.ranks
    scale = Scale(given.hosts, given.ranks, lines_s)
    with tempfile.TemporaryDirectory(prefix="many-nodes-") as folder:
        model = Model(Path(folder))
        try:
            asyncio.run(be_nodes(scale, given.first, given.count, given.socket, model))
        except KeyboardInterrupt:
            pass
        finally:
            model.close()


if __name__ == "__main__":
    main()
