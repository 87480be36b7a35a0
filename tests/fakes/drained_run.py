"""A run's folder as a source collector finds it, of which a test plays shim, ranks and clock."""

import json
import os
import threading
from pathlib import Path
from typing import Any

from distconsole_agent.contract.runspec import RankSpec
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.reader import Reader
from distconsole_agent.journal.source_collector import SourceCollector
from distconsole_agent.server.answers import LogTexts
from distconsole_agent.system.procfs import read_process
from fakes.ring_writer import RingWriter
from fakes.specs import run_spec

SECOND = 10**9


class Run:
    """A run's folder without a run: a test plays shim, ranks and clock."""

    def __init__(self, folder: Path, *, ranks: int = 2, engine_ranks: bool = True) -> None:
        self.folder = folder
        for name in ("logs", "errors", "journal", "rings"):
            (folder / name).mkdir(parents=True)
        first = RankSpec(0, 0, ("true",), {"CUDA_VISIBLE_DEVICES": "3"})
        self.spec = run_spec(tuple(range(ranks)), engine_ranks=engine_ranks)
        self.spec = self.spec._replace(ranks=(first,))
        self.now = 1000.0
        self.wall_ahead = 0.0
        self.alive(os.getpid())
        self.rings: list[RingWriter] = []
        self.open()

    def open(self) -> None:
        self.journal = Journal(str(self.folder / "journal"))
        assert self.journal.open_writer()
        self.collector = SourceCollector(
            str(self.folder),
            self.spec,
            self.journal,
            lambda: self.now,
            lambda: int((self.now + self.wall_ahead) * 1e9),
        )

    def change_spec(self, **fields: Any) -> None:
        """Have an agent find the run with another spec."""
        self.spec = self.spec._replace(**fields)
        self.crash()

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self.collector.close()
        self.journal.close()
        self.open()

    def close(self) -> None:
        self.collector.close()
        self.journal.close()
        for thread in threading.enumerate():
            if thread.name == "roll call":
                thread.join()
        for ring in self.rings:
            ring.close()

    def tick(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.collector.tick()

    def shim(self, event: str, **fields: Any) -> None:
        line = json.dumps({"t_ns": int(self.now * 1e9), "event": event, **fields})
        with (self.folder / "shim.jsonl").open("a") as file:
            file.write(line + "\n")

    def alive(self, pid: int) -> None:
        stat = read_process(pid)
        start = stat.starttime if stat is not None else 1
        (self.folder / "shim.pid").write_text(f"{pid} {start}\n")

    def start(self, rank: int, pid: int | None = None) -> None:
        self.shim("started", rank=rank, local_rank=rank, pid=pid or 5000 + rank)

    def exit(self, rank: int, code: int = 0, pid: int | None = None) -> None:
        self.shim("exited", rank=rank, local_rank=rank, pid=pid or 5000 + rank, exit_code=code, signal=None)  # fmt: skip

    def log(self, rank: int | None, text: str, stream: str = "out") -> None:
        stem = "engine" if rank is None else f"rank-{rank}"
        with (self.folder / "logs" / f"{stem}.{stream}").open("a") as file:
            file.write(text)

    def ring(self, rank: int, **more: Any) -> RingWriter:
        more = {"pid": 5000 + max(rank, 0), "clock_ns": lambda: int(self.now * 1e9), **more}
        started_ns = int(self.now * 1e9) - 1000 + len(self.rings)
        ring = RingWriter(self.folder / "rings", rank, started_ns=started_ns, **more)
        self.rings.append(ring)
        return ring

    def entries(self, kind: str = "") -> list[dict[str, Any]]:
        reader, texts = (
            Reader(self.journal.folder, 0),
            LogTexts(str(self.folder / "logs"), lambda _entry: False),
        )
        try:
            lines = [texts.fill(e) if b'"kind":"log"' in e else e for e in reader.read_all()]
        finally:
            reader.close()
            texts.close()
        return [e for e in map(json.loads, lines) if kind in ("", e["kind"])]

    def states(self) -> list[tuple[int, str]]:
        return [(e["rank"], e["state"]) for e in self.entries("state")]

    def text(self, rank: int | None, stream: str = "out") -> str:
        parts = [e for e in self.entries("log") if (e["rank"], e["stream"]) == (rank, stream)]
        return "".join(part["text"] for part in parts)

    def steps_told(self) -> list[int]:
        return [entry["steps"] for entry in self.entries("window")]
