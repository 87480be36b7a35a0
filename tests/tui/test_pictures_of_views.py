"""Snapshots: what every screen looks like, small and large, at one fixed moment.

``pytest tests/tui --snapshot-update`` accepts what they look like now.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from pytest_textual_snapshot import SVGImageExtension
from syrupy.assertion import SnapshotAssertion

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import CheckEnded, Event, FindingMade
from distconsole.model.run_events import BusyProcess, GpuSample, NodeSample
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.widgets.plots import Plot
from fakes import scenes
from fakes.album import ALL, TINY, Page, pictures
from fakes.journals import Journal
from fakes.stage import Scene, keep_run

pytestmark = pytest.mark.usefixtures("utc", "home", "colours")

BUSY = tuple(
    BusyProcess(
        pid=70_000 + at, user=user, command=command, cpu=cpu, memory=int(gigabytes * 2**30)
    )
    for at, (user, command, cpu, gigabytes) in enumerate(
        (
            ("eve", "tar czf /scratch/eve/data.tgz /data/imagenet", 1587.0, 0.4),
            ("me", "python train.py --epochs 90 --token ***", 212.4, 18.2),
            ("root", "/usr/sbin/slurmd -D -s", 0.6, 0.03),
        )
    )
)


def troubled_hosts() -> Iterator[Event]:
    """Eight hosts: one away, a stranger on a GPU, another GPU that is hot and slowed down, one with errors."""
    for event in scenes.hosts(8, 4, lost="node6"):
        if isinstance(event, GpuSample):
            place = (event.host, event.gpu)
            odd = {
                ("node2", 1): {"strangers": ("4711 eve python",), "util": 98.0},
                ("node3", 0): {"throttle": ("hot",), "temp_c": 91.0, "sm_clock_mhz": 870.0},
                ("node7", 3): {"ecc_uncorrected": 2},
            }.get(place, {})
            event = msgspec.structs.replace(event, **odd)
        elif isinstance(event, NodeSample) and event.host == "node1":
            event = msgspec.structs.replace(event, processes=BUSY)
        yield event


def half_checked() -> Iterator[Event]:
    """A check that goes on."""
    for event in scenes.checked(4):
        if isinstance(event, CheckEnded):
            yield from (FindingMade(finding=each) for each in event.report.findings)
        else:
            yield event


def past() -> None:
    journal = Journal(run="digits-1121-a3f9", seconds=120, slow=3, fails=1, lockstep=True)
    journal.write(RunStore(runs_dir()))


def known_hosts() -> None:
    """Have ssh_config know more hosts than are taken at once, and a host file a few."""
    config = Path.home() / ".ssh" / "config"
    config.parent.mkdir()
    names = " ".join(f"node{number:02}" for number in range(1, 41))
    config.write_text(f"Host jump\nHost {names}\n    ProxyJump jump\n")
    Path("hostfile").write_text("gpu1 slots=4\ngpu2 slots=4\n")


def attached(scene: Scene, **views: tuple[str, ...]) -> Page:
    first, *others = views.items()
    lines = {first[0]: (f"attach {scenes.RUN}", *first[1]), **dict(others)}
    return Page({ask.Attach: scene, ask.Top: scenes.hosts}, lines)


FORM = {ask.Top: scenes.hosts, ask.Foresee: scenes.foreseen, ask.Launches: scenes.launches}


def five_minutes(app: ConsoleApp) -> None:
    """Let the hosts have been watched for five minutes, in which they begin to work."""
    task = app.session.load_task
    with task.lock:
        load, samples = task.load, (*task.load.nodes.values(), *task.load.gpus.values())
        for kept in (load.cpu, load.net, load.disk, load.memory, load.use, load.gpu_memory):
            kept.clear()
        for seconds in range(300, -1, -5):
            share = 1 / (1 + math.exp((seconds - 170) / 20))
            for number, sample in enumerate(samples):
                wave = share * (1 + 0.1 * math.sin(seconds / 15 + number))
                figures = ("util", "mem_used", "cpu", "net_rx_s", "net_tx_s")
                known = {name: getattr(sample, name, None) for name in figures}
                changed = {name: value * wave for name, value in known.items() if value}
                load.fold(msgspec.structs.replace(sample, **changed), 1000.0 - seconds)
        for sample in samples:
            load.fold(sample, 1000.0)
    for plot in app.query(Plot):
        plot.data = None


PAGES = {
    "cluster": Page(
        {ask.Top: partial(scenes.hosts, lost="node2")},
        {"cluster": ("view cluster",)},
        ALL,
        after=five_minutes,
    ),
    "hosts": Page(
        {ask.Top: troubled_hosts},
        {"hosts": (), "grouped": ("group host",), "host": ("group none", "press enter")},
    ),
    "empty": Page({}, {"empty": ()}, request=ask.OpenConsole()),
    "first": Page({}, {"first": ()}, request=ask.OpenConsole(), before=known_hosts),
    "check": Page({ask.Check: scenes.checked}, {"check": ("check",)}),
    "finding": Page({ask.Check: scenes.checked}, {"finding": ("check", "press enter")}),
    "checking": Page({ask.Check: half_checked}, {"checking": ("check",)}, going=[ask.Check]),
    "pairs": Page({ask.Check: partial(scenes.paired, dead=1)}, {"pairs": ("check", "pairs")}),
    "interfaces": Page(
        {ask.Check: partial(scenes.paired, dead=1)}, {"interfaces": ("check", "interfaces")}
    ),
    "launch": Page(
        FORM,
        {
            "plan": ("offer run --env SEED=7 --name digits train.py --epochs 3", "press ctrl+n"),
            "last": ("press ctrl+o",),
        },
    ),
    "starting": attached(scenes.starting, starting=()),
    "run": Page(
        {ask.Attach: scenes.straggling, ask.Top: scenes.hosts},
        {"run": (f"attach {scenes.RUN}",)},
        ALL,
    ),
    "failed": Page({ask.Attach: scenes.failing}, {"failed": (f"attach {scenes.RUN}",)}),
    "heat-64": attached(partial(scenes.large, 64, slow=62), **{"heat-64": ("heat",)}),
    "heat-2048": attached(
        scenes.large, **{"heat-2048": ("press h",), "heat-rank": ("press enter enter enter",)}
    ),
    "logs": Page(
        {ask.Attach: partial(scenes.talking, 6)},
        {"logs": (f"attach {scenes.RUN}", "view logs", "press x", "find loss 0.1")},
    ),
    "runs": Page({ask.Runs: scenes.past_runs}, {"runs": ("view runs",)}),
    "compare": Page(
        {ask.Compare: scenes.compared}, {"compare": ("compare digits-1121-000 digits-1121-a3f9",)}
    ),
    "replay": Page({}, {"replay": ("replay digits-1121-a3f9", "at 70s")}, before=past),
    "tiny": Page(
        {ask.Attach: scenes.straggling, ask.Top: scenes.hosts},
        {"tiny": (f"attach {scenes.RUN}",)},
        TINY,
    ),
    "prompt": Page(
        {ask.Check: half_checked, ask.Attach: scenes.straggling, ask.Top: scenes.hosts},
        {
            "stop": (f"attach {scenes.RUN}", "stop last?"),
            "completion": ("press n", "type :r", "press tab tab"),
            "history": (
                "press ctrl+u",
                "offer check --only gpu",
                "press enter : ctrl+r",
                "type c",
            ),
            "jobs": ("press escape escape", "view jobs"),
            "transcript": ("view transcript",),
            "palette": ("view run", "press ctrl+p", "type sort"),
            "help": ("press escape", "view run", "help"),
        },
        before=keep_run,
        going=[ask.Check],
    ),
}


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch, cwd: Path) -> None:
    """Whatever machine this is, its name is the same; the folder is empty."""
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")


def _row(page: str) -> object:
    """Two thousand ranks are drawn as 64 are, in groups."""
    marks = [pytest.mark.campaign] if page == "heat-2048" else []
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", map(_row, PAGES))
async def test_the_views_look_as_they_did(
    page: str, snapshot: SnapshotAssertion, tmp_path: Path
) -> None:
    kept = snapshot.use_extension(SVGImageExtension)
    different = []
    async for name, picture in pictures(PAGES[page]):
        if picture != kept(name=name):
            (tmp_path / f"{name}.svg").write_text(picture)
            different.append(name)
    assert not different, f"how they look now is in {tmp_path}"
