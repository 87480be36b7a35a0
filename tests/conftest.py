"""The rules of every test: a scrubbed environment, nothing left behind, skips with a reason."""

import gc
import itertools
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from suite.console import Console
from suite.environment import scrubbed
from suite.forked_console import console_server
from suite.known_agent import leave_agent
from suite.leaks import Held, leaked_since
from suite.obstacles import by_reason, obstacle
from suite.outcomes import has_failed, remember
from testbed import Testbed, missing

pytest.register_assert_rewrite("suite.blame")
Testbed.fill_cache = leave_agent

SERIAL = ("testbed", "torch_ranks", "horovod", "mpi", "slurm", "benchmark")
"""Marks of tests that start whole clusters: with pytest-xdist those of a file take turns on one worker.

They share hosts there, and wait more than they work; which worker takes a file is found as it goes.
"""

SHARED = ("warm", "warm_verifying", "warm_ranks", "warm_compiling", "trained")
"""Fixtures that each worker would make again, for seconds: all tests that take one are a worker's."""

STANDING = ("standing_nodes",)
"""Fixtures of a file's embedded nodes: its tests are one worker's, or each worker would start them."""

LONG = (
    "test_every_launcher",
    "test_laboratory",
    "test_lost_nodes",
    "test_run_elastic",
    "test_setup",
)
"""Files with the longest tests: they begin first, or the others would wait for them at the end."""

CONDITIONAL = (
    "testbed",
    "torch_ranks",
    "horovod",
    "mpi",
    "mpich",
    "gpu",
    "tmux",
    "slurm",
    "browser",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="also run what is marked campaign")


def pytest_configure(config: pytest.Config) -> None:
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    wanted = scrubbed(os.environ)
    for name in os.environ.keys() - wanted.keys():
        environment.delenv(name)
    for name, value in wanted.items():
        environment.setenv(name, value)
    # A shell's background jobs ignore them, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Measure only when asked: ``pytest tests/benchmarks``."""
    asked = any("benchmarks" in argument for argument in config.args)
    return True if collection_path.name == "benchmarks" and not asked else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare each look for garbage the tests themselves: their million objects stay, and cost it half a second.

    With Python's own thresholds the collector takes a tenth of the time of a test that makes many widgets.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--campaign"):
        later = [item for item in items if _is_for_campaign(item)]
        config.hook.pytest_deselected(items=later)
        left_out = set(later)
        items[:] = [item for item in items if item not in left_out]
    parallel = config.pluginmanager.hasplugin("xdist")
    for item in items:
        if "session_bed" in getattr(item, "fixturenames", ()):
            item.add_marker("testbed")
        marks = {marker.name for marker in item.iter_markers()}
        for marker in marks.intersection(CONDITIONAL):
            if reason := obstacle(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
        if parallel and (group := _group(item, marks)):
            item.add_marker(pytest.mark.xdist_group(group))
    if parallel:  # the long ones first, beside each other; the short ones fill in
        items.sort(key=_place)


def _is_for_campaign(item: pytest.Item) -> bool:
    """Whether a test is marked so, or its module says so of its parameters."""
    is_permutation = getattr(getattr(item, "module", None), "is_permutation", None)
    params = getattr(getattr(item, "callspec", None), "params", {})
    return item.get_closest_marker("campaign") is not None or (
        is_permutation is not None and is_permutation(item.name, params)
    )


def _group(item: pytest.Item, marks: set[str]) -> str:
    """Return the fixture that is shared, or the file's name, with the launcher where it has hosts for each."""
    names = set(getattr(item, "fixturenames", ()))
    if shared := names.intersection(SHARED):
        return str(shared.pop())
    if marks.isdisjoint(SERIAL) and not names.intersection(STANDING):
        return ""
    params = getattr(getattr(item, "callspec", None), "params", {})
    launcher = getattr(params.get("place"), "name", "")
    return "-".join(filter(None, (item.path.stem.removeprefix("test_"), launcher)))


def _place(item: pytest.Item) -> tuple[int, str]:
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return len(LONG) + 1, ""
    stem = item.path.stem
    return LONG.index(stem) if stem in LONG else len(LONG), group.args[0]


def pytest_report_header() -> str:
    without = f"{missing()}; embedded nodes on loopback instead"
    return f"hosts: {without if missing() else 'namespaces with real OpenSSH'}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    remember(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        (report.nodeid.rpartition("::")[2], report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    if skipped:
        terminalreporter.section(f"{len(skipped)} skipped, by reason")
    for reason, tests in by_reason(skipped).items():
        terminalreporter.line(f"{len(tests):4}  {reason}: {', '.join(tests)}")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or a descriptor.

    What fixtures of a wider scope hold is theirs: they are set up before this one.
    """
    before = Held.now()
    yield
    if request.node.get_closest_marker("keeps") is None and (left := leaked_since(before)):
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths for folders, one after the other; ``mktemp`` would look through all those before each time."""
    parent = tmp_path_factory.mktemp("homes")
    return map(parent.joinpath, map(str, itertools.count()))


@pytest.fixture(autouse=True)
def home(nothing_left: None, homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the test's own."""
    folder = next(homes)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, as the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are those of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with all of them."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(scope="session")
def consoles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The address at which each ``Console`` is forked from now on."""
    with (
        console_server(tmp_path_factory.mktemp("c")) as address,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Console, "server", address)
        yield address


@pytest.fixture(scope="session")
def session_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two hosts that live as long as the session; tests take ``bed``."""
    if reason := missing():
        pytest.skip(reason)
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with Testbed(hosts=2) as bed:
        yield bed


@pytest.fixture
def bed(session_bed: Testbed, nothing_left: None) -> Iterator[Testbed]:
    """Two hosts, ``node1`` and ``node2``, as if just switched on; afterwards switched off and on."""
    yield session_bed
    session_bed.reset()


@pytest.fixture(scope="module")
def module_bed(session_bed: Testbed) -> Iterator[Testbed]:
    """Two hosts that stay up through all tests of a file; tests take ``standing_bed``."""
    yield session_bed
    session_bed.reset()


@pytest.fixture
def standing_bed(
    module_bed: Testbed, nothing_left: None, request: pytest.FixtureRequest
) -> Iterator[Testbed]:
    """Two hosts that stay up through all tests of a file, each of which leaves them clean.

    After one that failed they are switched off and on: what it left would fail the others.
    """
    yield module_bed
    if has_failed(request.node):
        module_bed.reset()


@pytest.fixture
def healed_bed(standing_bed: Testbed) -> Iterator[Testbed]:
    """The same two hosts; a fault is taken back without switching them off and on, which a new agent begins after."""
    yield standing_bed
    standing_bed.restore_console()
    for host in standing_bed.hosts:
        host.heal()
