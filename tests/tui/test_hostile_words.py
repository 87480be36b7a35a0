"""Whatever a node, a script or a user calls things, the screen shows it as it is and stays up."""

import unicodedata
from collections.abc import Iterator

import msgspec
import pytest
from rich.cells import cell_len

from distconsole.model import requests as ask
from distconsole.model.events import Event, HostStatus, RunListed
from distconsole.model.run_events import (
    GpuSample,
    LogLine,
    Metric,
    NodeSample,
    PlanMade,
    RankChanged,
    RunEnded,
    RunEvent,
    RunFinding,
    Window,
)
from distconsole.tui.app import ConsoleApp
from fakes import scenes
from fakes.stage import ATTACH, LARGE, SMALL, on_screen, on_stage, screen_text, staged

MARKUP = "[bold]x[/red] [@click=app.quit]y[/] [link='z"
NAN, INFINITE = float("nan"), float("inf")
WORDS = {
    "markup": MARKUP,
    "escapes": "a\x1b[31m\x1b[2J\x1b]0;t\x07\x9b5mz\r\n\t\x00\x85end"
    "\u202e\u2067\u05e9\u05dc\u05d5\u05dd abc\u2069\u202c\u200f",
    "wide and combining": "日本語" * 30 + "e\u0301\u0327" * 40 + "👩\u200d👩\u200d👧🏽\ufe0f",
    "a megabyte": "m" * (1 << 20),
}
NAME_CHARS = 4000
"""Of a name; lines and errors have all."""
VIEWS = ("run", "logs", "cluster", "check", "runs", "transcript", "help")


def odd(events: Iterator[Event], word: str) -> Iterator[Event]:
    replace = msgspec.structs.replace
    line, word = word, word[:NAME_CHARS]
    for event in events:
        match event:
            case PlanMade():
                hosts = tuple(
                    replace(host, command=word, env={word: word}) for host in event.hosts
                )
                yield replace(event, script=f"/a/{word}.py", name=word, why=word, hosts=hosts)
            case LogLine():
                yield replace(event, line=f"{event.line} {line}")
            case Metric() if event.name == "loss":
                yield event
                yield replace(event, name=word)
                yield replace(event, name="nan", value=NAN, min=-INFINITE, max=INFINITE)
            case Window():
                metrics = {word: 1.0, "loss": NAN, "inf": INFINITE}
                yield replace(
                    event, metrics=metrics, step_ms_mean=INFINITE, samples_s=NAN, data_ms=-INFINITE
                )
            case GpuSample():
                yield replace(
                    event, name=word, uuid=word, strangers=(f"1 {word} {word}",), throttle=(word,),
                    util=NAN, temp_c=INFINITE, power_w=-INFINITE, mem_used=1 << 80,
                )  # fmt: skip
            case NodeSample():
                yield replace(event, cpu=INFINITE, net_rx_s=NAN, load1=-INFINITE)
            case RunFinding():
                yield replace(event, summary=word, seen=line, hint=word, check=word)
            case RunListed():
                summary = replace(event.summary, name=word, script=word, metrics={word: NAN})
                yield RunListed(summary=summary)
            case HostStatus():
                yield replace(event, detail=word, hint=word)
            case RunEnded():
                first = event.first_failure
                if first:
                    first = replace(first, error=word, traceback=f"{word}\n{line}", host=word)
                yield replace(event, first_failure=first)
            case _:
                yield event


def on_odd_hosts(events: Iterator[Event], word: str) -> Iterator[Event]:
    """The same from hosts with such a name."""
    name = f"{word[:1000]}2"
    for event in events:
        match event:
            case RankChanged(host="node2") | Window(host="node2") | LogLine(host="node2"):
                yield msgspec.structs.replace(event, host=name)
            case GpuSample(host="node2") | NodeSample(host="node2"):
                yield msgspec.structs.replace(event, host=name)
            case PlanMade():
                hosts = tuple(
                    msgspec.structs.replace(host, host=name) if host.host == "node2" else host
                    for host in event.hosts
                )
                yield msgspec.structs.replace(event, hosts=hosts)
            case _:
                yield event


def obeyed(app: ConsoleApp) -> set[str]:
    """Return the characters on the screen that a terminal obeys or turns round, and lines that are too wide."""
    found = set()
    for line in screen_text(app).split("\n"):
        found |= {repr(each) for each in line if unicodedata.category(each) in ("Cc", "Cs")}
        found |= {repr(each) for each in line if each in "\u202e\u2067\u2069\u202c\u200f"}
        if cell_len(line) > app.size.width:
            found.add(line)
    return found


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("markup", SMALL),
        pytest.param("markup", LARGE, marks=pytest.mark.campaign),
        ("escapes", LARGE),
        ("wide and combining", SMALL),
        ("a megabyte", SMALL),
    ],
)
async def test_names_lines_and_errors_are_shown_as_they_are_and_nothing_obeys_them(
    kind: str, size: tuple[int, int]
) -> None:
    word = WORDS[kind]
    told = {
        ask.Attach: lambda: on_odd_hosts(odd(scenes.failing(), word), word),
        ask.Top: lambda: odd(scenes.hosts(lost="node2"), word),
        ask.Check: lambda: odd(scenes.checked(), word),
        ask.Runs: lambda: odd(scenes.past_runs(), word),
    }
    async with on_stage(told, size, request=ATTACH) as (app, stage, _pilot):
        seen = {}
        await stage.typed(f"check --only '{MARKUP}")
        await stage.typed("check")
        await stage.typed("heat")
        assert obeyed(app) == set()
        await stage.typed("heat")
        for view in VIEWS:
            await stage.typed(f"view {view}")
            seen[view] = screen_text(app)
            assert obeyed(app) == set(), view
        await stage.typed(f"no such verb {MARKUP}")
        await stage.typed("view transcript")
        seen["transcript"] = screen_text(app)
        assert app.is_running
    if kind == "markup":
        for view in ("run", "logs", "transcript"):
            assert "[bold]x[/red]" in seen[view]


async def test_what_is_rung_has_one_sequence_and_nothing_of_a_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    monkeypatch.setattr(ConsoleApp, "to_terminal", lambda _, sequence: written.append(sequence))
    word = WORDS["escapes"]
    app, stage = staged({ask.Run: lambda: odd(scenes.failing(), word), ask.Top: tuple})
    async with on_screen(app, stage):
        await stage.typed("run x.py")
        await stage.settled()
    rung = "".join(written)
    assert rung.startswith("\x07\x1b]9;")
    assert rung.count("\x1b") == 2
    assert rung.count("\x07") == 3
    assert all(isinstance(event, RunEvent) for event in scenes.failing())
