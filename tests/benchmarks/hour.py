"""What an hour of history costs in memory: the console in a pseudo-terminal, while the journals of an
hour come as fast as it takes them. It measures no time.

They take the way of real ones from ``follow`` on: typed, kept in the store, reduced, folded, drawn. Only
ssh is not there. Every host tells its load and GPUs every other second, every rank a window with ten
points of its loss every ``--every`` seconds and a line every ten.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, program
from benchmarks.glass import Watched
from benchmarks.measure import cpu_seconds
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.names import HostName, RunId
from distconsole.operations import Control, SessionSource
from distconsole.runs.following.follow import follow
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from fakes.journals import START, STEPS_A_WINDOW, Body, Journal, line

RUN = "hour-1"
PER_HOST = 8
TARGETS = {8: 60, 2048: 200}
"""Ranks, and how many MB the console may take with them."""

EVERY = {8: 1, 2048: 10}
"""Seconds between a rank's windows where nothing else is said: with very many an hour takes long."""

MARKS = (5, 30, 60)
"""Minutes of history after which memory is read."""

DRAWING_SECONDS = 3.0
"""So long the screen may draw what has come, before memory is read."""

PATIENCE_SECONDS = 3600.0
AT = [START]
"""The moment that was told last: the console's clock, so that no rank seems silent."""


class HourStream:
    """The journal of one host, as fast as somebody reads it."""

    clock_offset = 0.0

    def __init__(self, journal: Journal, place: int, every: int) -> None:
        self._journal = journal
        self._place = place
        self._every = every
        self._seq = 0

    def close(self) -> None:
        """Nothing is open."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        journal, ranks = self._journal, range(self._place * PER_HOST, (self._place + 1) * PER_HOST)
        yield self._item(START, [journal.state(rank, "running") for rank in ranks])
        for second in range(journal.seconds):
            told: list[Body] = []
            if second % self._every == 0:
                told += [with_points(journal.window(rank, second)) for rank in ranks]
            if second % 2 == 0:
                told.append(journal.sample(self._place, second))
            if second % 10 == 0:
                told += [line(rank, f"epoch {second // 10} of rank {rank}") for rank in ranks]
            if told:
                yield self._item(START + 1 + second, told)

    def _item(self, t: float, bodies: Sequence[Body]) -> dict[str, Any]:
        numbered = enumerate(bodies, self._seq + 1)
        self._seq += len(bodies)
        return {"entries": [{"seq": seq, "t": t, **body} for seq, body in numbered]}


def with_points(window: Body) -> Body:
    """Return ``window`` with the points that an agent takes of its steps."""
    first = window["step"] - STEPS_A_WINDOW + 1
    points = [[step, window["metrics"]["loss"], 32.0] for step in range(first, first + 20, 2)]
    return {**window, "points": {"loss": points}}


def be(*words: str) -> None:
    """Be the console on such a run, and write down what it takes at each mark."""
    from distconsole.tui.app import ConsoleApp
    from distconsole.tui.view_models.hosts import Clocks

    world, every, minutes = map(int, words[:3])
    notes = Path(words[3])
    journal = Journal(
        run=RUN, hosts=max(1, world // PER_HOST), per_host=PER_HOST, seconds=60 * minutes + 1
    )
    places = {name: place for place, name in enumerate(journal.names)}

    def perform(request: ask.Request, _s: SessionSource, control: Control) -> Iterator[Event]:
        if not isinstance(request, ask.Attach):
            return
        yield journal.plan()
        store = RunStore(notes / "runs")
        record = RunRecord(RunId(RUN), "digits", START, journal.names, b"", b"", b"")
        marks = [START + 60 * minute for minute in MARKS if minute <= minutes]

        def open_stream(host: HostName, _after: int, _journal: str) -> HourStream:
            return HourStream(journal, places[host], every)

        for event in follow(store, record, open_stream, left=lambda: control.asked is not None):
            AT[0] = max(AT[0], event.t)
            yield event
            if marks and AT[0] >= marks[0]:
                time.sleep(DRAWING_SECONDS)
                note(notes, round((marks.pop(0) - START) / 60))

    app = ConsoleApp(ask.Attach(run=RUN), clocks=Clocks(unix=lambda: AT[0]), perform=perform)
    app.session.begin()
    app.run()


def note(notes: Path, minute: int) -> None:
    """Write down the memory that this process takes, and the most it ever took."""
    status = Path("/proc/self/status").read_text()
    found = {
        name: int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1]) for name in ("VmRSS", "VmHWM")
    }  # type: ignore[index]
    made = {"rss_bytes": found["VmRSS"] * 1024, "peak_bytes": found["VmHWM"] * 1024}
    aside = notes / "aside"
    aside.write_text(json.dumps(made))
    aside.rename(notes / f"{minute}.json")


def warm_up() -> None:
    """Have all modules compiled: to compile them takes memory, which happens once."""
    with tempfile.TemporaryDirectory(prefix="bench-hour-") as folder:
        words = program("hour", 8, 1, 0, folder)
        with Watched(words, {"XDG_DATA_HOME": folder}) as console:
            console.look_until(lambda text: "a verb, such as" in text, "the prompt")


def of_one(world: int, every: int, minutes: int) -> dict[str, Any]:
    """Return what the console took after each mark, and how long it all lasted.

    Raises:
        TimeoutError: if a mark is not reached.
    """
    began = time.monotonic()
    warm_up()
    with tempfile.TemporaryDirectory(prefix="bench-hour-") as folder:
        notes = Path(folder)
        argv = program("hour", world, every, minutes, folder)
        environment = {"XDG_DATA_HOME": folder, "XDG_STATE_HOME": folder}
        marks = [minute for minute in MARKS if minute <= minutes]
        taken: dict[str, Any] = {}
        with Watched(argv, environment) as console:
            for minute in marks:
                until = time.monotonic() + PATIENCE_SECONDS
                while not (there := notes / f"{minute}.json").exists():
                    console.look(0.5)
                    if time.monotonic() > until:
                        raise TimeoutError(f"minute {minute} never came:\n{console.glass.text}")
                taken[str(minute)] = json.loads(there.read_text())
            cpu = cpu_seconds(console.pid)
        return {
            "every_seconds": every,
            "minutes": taken,
            "target_bytes": TARGETS.get(world, 0) * 10**6,
            "cpu_seconds": cpu,
            "seconds": time.monotonic() - began,
        }


def measure(
    ranks: str = ",".join(map(str, TARGETS)), every: int = 0, minutes: int = MARKS[-1]
) -> dict[str, Any]:
    return {
        world: of_one(int(world), every or EVERY.get(int(world), 1), minutes)
        for world in ranks.split(",")
    }


def rows(figures: Figures) -> list[Row]:
    rows = []
    for world, found in figures.items():
        target, last = found["target_bytes"], list(found["minutes"].values())[-1]["rss_bytes"]
        told = ", ".join(
            f"{at['rss_bytes'] / 1e6:.0f} MB after {minute} min"
            for minute, at in found["minutes"].items()
        )
        every = f"a window every {found['every_seconds']} s, no connections"
        limit = at_most(target / 1e6 or None, last / 1e6, " MB")
        rows.append(Row(f"memory, {world} ranks", told, every, *limit))
    return rows
