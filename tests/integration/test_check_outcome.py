"""Every way in which a check can come to its end, and that all that tells of it says the same."""

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

import pytest

from distconsole.checks.engine.baseline import Baselines
from distconsole.checks.engine.run import run_check
from distconsole.checks.gather.engine_jobs import EngineAnswer, EngineJob
from distconsole.checks.gather.short_run import short_run
from distconsole.cli.main import exit_code_of, perform_headless
from distconsole.cli.streams import Streams
from distconsole.config.schema import Config
from distconsole.errors import Terminated
from distconsole.grammar.verbs import parse_line
from distconsole.model.events import CheckEnded, CheckJudged, CheckProgress, Event
from distconsole.model.expectation import Expectation
from distconsole.model.findings import Severity
from distconsole.model.reports import CheckReport
from distconsole.model.requests import Check, Level
from distconsole.operations.sessions import lend
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole.tui.view_models.check import CheckModel
from distconsole.tui.views.check_words import check_verdict
from suite.known_agent import nodes_with_agent
from suite.printing import print_events


@dataclass
class Going:
    """A check that goes on over two nodes, and what can be done to it."""

    nodes: EmbeddedCluster
    session: Session
    late_seconds: float = 0.0

    def clock(self) -> float:
        """Monotonic seconds, which pass only where a case says so."""
        return self.late_seconds

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def terminate(self) -> None:
        raise Terminated

    def cut_power(self) -> None:
        self.nodes.power_cut("node2")

    def cut_all_power(self) -> None:
        for name in self.nodes.hosts:
            self.nodes.power_cut(name)

    def kill_agent(self) -> None:
        os.kill(self.session.link("node2").hello.agent_pid, signal.SIGKILL)

    def spend_budget(self) -> None:
        self.late_seconds = 1000.0


Deed = Callable[[Going], None]


@dataclass(frozen=True)
class Way:
    """One way to an outcome: what is asked for, and what happens before, or as a stage begins."""

    name: str
    outcome: str
    code: int
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    before: Deed | None = None
    deed: Deed | None = None
    at: str = "local facts"
    level: Level = Level.QUICK
    expected: Expectation = field(default_factory=Expectation)
    passed: tuple[str, ...] = ()
    """The hosts that ``--emit-hostfile`` may name."""


BOTH = ("node1", "node2")
SECOND = BOTH[1:]
WAYS = (
    Way("all is well", "healthy", 0, only=("os",), passed=BOTH),
    Way("a failure", "failed", 1, only=("expect",), expected=Expectation(gpus=99)),
    Way("a host that is down", "incomplete", 1, ("os",), before=Going.cut_power, passed=BOTH[:1]),
    Way("one that is down, ssh skipped", "incomplete", 1, (), ("ssh",), before=Going.cut_power,
        passed=BOTH[:1]),
    Way("one that is down, only ssh.lost", "incomplete", 1, ("ssh.lost",), before=Going.cut_power,
        passed=BOTH[:1]),
    Way("no host is up", "incomplete", 3, ("os",), before=Going.cut_all_power),
    Way("no host is up, ssh skipped", "incomplete", 3, (), ("ssh",), before=Going.cut_all_power),
    Way("the budget ends before the facts", "incomplete", 1, ("os",), deed=Going.spend_budget),
    Way("the budget ends before the network", "incomplete", 1, ("os", "net"),
        deed=Going.spend_budget, at="net.reach_tcp"),
    Way("Ctrl-C before a host is reached", "incomplete", 130, ("os",), deed=Going.interrupt,
        at="ssh.connect"),
    Way("Ctrl-C half-way", "incomplete", 130, ("os",), deed=Going.interrupt),
    Way("SIGTERM half-way", "incomplete", 143, ("os",), deed=Going.terminate),
    Way("Ctrl-C in the network", "incomplete", 130, ("os", "net"), deed=Going.interrupt,
        at="net.reach_tcp"),
    Way("Ctrl-C while the report is made", "incomplete", 130, ("os", "coll"), deed=Going.interrupt,
        at="coll.init"),
    Way("a host dies half-way", "incomplete", 1, ("os",), deed=Going.cut_power, passed=BOTH[:1]),
    Way("a host dies half-way, ssh skipped", "incomplete", 1, ("os",), ("ssh",),
        deed=Going.cut_power, passed=BOTH[:1]),
    Way("a host dies in the network", "incomplete", 1, ("net",), deed=Going.cut_power,
        at="net.reach_tcp"),
    Way("all hosts die", "incomplete", 1, ("os",), deed=Going.cut_all_power),
    Way("an agent dies", "incomplete", 1, ("os",), deed=Going.kill_agent, passed=BOTH[:1]),
    Way("an agent dies in the network", "incomplete", 1, ("net",), deed=Going.kill_agent,
        at="net.reach_tcp"),
    Way("no check is selected", "incomplete", 1, ("os",), ("os",)),
    Way("none at this level", "incomplete", 1, ("coll",)),
    Way("only of a script, and there is none", "incomplete", 1, ("script",)),
    Way("only what nobody expects", "incomplete", 1, ("expect",)),
    Way("only GPUs, and there are none", "incomplete", 1, ("gpu",)),
    Way("also GPUs, and there are none", "incomplete", 1, ("os", "gpu")),
    Way("only Slurm, and there is none", "incomplete", 1, ("slurm",)),
)  # fmt: skip

PERMUTATIONS = {
    # The signals are tried on the whole program, below, and what dies also in the laboratory.
    *("SIGTERM half-way", "Ctrl-C in the network", "a host dies in the network"),
    # Whether ssh's own checks are selected is no matter of the level or of how many hosts are down.
    *("one that is down, only ssh.lost", "no host is up, ssh skipped"),
    *("a host dies half-way, ssh skipped", "an agent dies in the network"),
}


def is_permutation(_test: str, params: dict[str, Any]) -> bool:
    return getattr(params.get("way"), "name", "") in PERMUTATIONS


@dataclass
class Told:
    """What a check says at each of its ends."""

    report: CheckReport
    text: str
    json: dict[str, object]
    junit: ElementTree.Element
    hostfile: list[str]
    screen: str
    code: int | None

    @property
    def headline(self) -> str:
        heads = ("healthy", "not healthy", "incomplete")
        return next(line for line in self.text.splitlines() if line.split(":")[0] in heads)


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest,
    standing_nodes: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
    home: Path,
) -> Iterator[EmbeddedCluster]:
    """Two nodes, which are the test's own if it cuts their power."""
    params = request.node.callspec.params
    way = params.get("way", Way("", "", 0, deed=params.get("deed")))
    if not {way.before, way.deed} & {Going.cut_power, Going.cut_all_power}:
        yield standing_nodes
        return
    with nodes_with_agent(tmp_path_factory.mktemp("e")) as own:
        yield own


def go(way: Way, nodes: EmbeddedCluster, tmp_path: Path) -> tuple[Told, Baselines]:
    """Make the check of ``way`` and let happen what is to happen."""
    baselines = Baselines(tmp_path / "baselines")
    request = Check(
        level=way.level,
        only=way.only,
        skip=way.skip,
        budget_seconds=100.0,
        junit=str(tmp_path / "junit.xml"),
        emit_hostfile=str(tmp_path / "hosts"),
    )
    with Session(Config(expect=way.expected), nodes.cluster) as session:
        going = Going(nodes, session)
        if way.before is not None:
            way.before(going)
        events = run_check(
            request, session, clock=going.clock, baselines=baselines, start=short_run
        )
        seen = list(followed(events, way, going))
    return told_by(request, seen), baselines


def followed(events: Iterator[Event], way: Way, going: Going) -> Iterator[Event]:
    deed = way.deed
    for event in events:
        yield event
        if (
            deed is not None
            and isinstance(event, CheckProgress | CheckJudged)
            and event.check == way.at
        ):
            try:
                deed, now = None, deed
                now(going)
            except KeyboardInterrupt as interrupt:
                yield events.throw(interrupt)  # type: ignore[attr-defined] - it is a generator


def told_by(request: Check, seen: list[Event]) -> Told:
    assert request.junit is not None
    assert request.emit_hostfile is not None
    *_, ended = seen
    assert isinstance(ended, CheckEnded)
    picture = CheckModel()
    for event in seen:
        picture.fold(event)
    return Told(
        ended.report,
        print_events(request, *seen)[0],
        json.loads(print_events(replace(request, json=True), *seen)[0]),
        ElementTree.parse(request.junit).getroot(),  # noqa: S314 - our own text
        [line.split()[0] for line in Path(request.emit_hostfile).read_text().splitlines()],
        check_verdict(picture, done=True, cancelled=False)[2].lower(),
        exit_code_of(ended),
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_end_of_a_check_says_the_same_outcome(
    way: Way, tmp_path: Path, nodes: EmbeddedCluster
) -> None:
    told, baselines = go(way, nodes, tmp_path)
    words = {"healthy": "healthy", "failed": "not healthy", "incomplete": "incomplete"}
    assert told.headline.split(":")[0] == words[way.outcome], told.text
    assert words[way.outcome] in told.screen
    assert (way.outcome == "incomplete") == ("healthy" not in told.screen)
    assert told.code == way.code
    assert (told.json["ok"], told.json["outcome"]) == (way.outcome == "healthy", way.outcome)
    bad = {tag: len(told.junit.findall(f"testcase/{tag}")) for tag in ("failure", "error")}
    assert {tag: int(told.junit.attrib[f"{tag}s"]) for tag in bad} == bad
    assert any(bad.values()) == (way.outcome != "healthy")
    assert bool(bad["error"]) == (way.outcome == "incomplete")
    assert set(told.hostfile) <= set(way.passed), told.report.findings
    assert all((baselines.read(name) is None) == (way.outcome != "healthy") for name in BOTH)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_has_a_check_say_what_was_found_so_far(
    number: signal.Signals, code: int, nodes: EmbeddedCluster
) -> None:
    config, out = Config(expect=Expectation(gpus=99)), io.StringIO()
    with Session(config, nodes.cluster) as session:
        streams = Signalled(out, io.StringIO(), number)
        request = Check(level=Level.QUICK, only=("expect", "net"))
        assert perform_headless(request, streams, lend(session)) == code
    text = out.getvalue()
    assert "expected 99" in text
    assert "\nincomplete: cancelled, 2 of 2 hosts reachable" in text


@pytest.mark.parametrize(
    ("deed", "said", "hint"),
    [
        (Going.cut_power, "node2 stopped answering in the middle of the check: ", "ssh node2 uptime"),
        (Going.kill_agent, "node2 is up, and its agent ended in the middle of the check",
         "agent-*.log"),
    ],
)  # fmt: skip
def test_a_dead_agent_is_not_taken_for_a_dead_host(
    deed: Deed, said: str, hint: str, tmp_path: Path, nodes: EmbeddedCluster
) -> None:
    way = Way("", "incomplete", 1, ("os",), deed=deed)
    told, _ = go(way, nodes, tmp_path)
    (found,) = (each for each in told.report.findings if each.check == "ssh.lost")
    assert found.summary.startswith(said)
    assert hint in found.hint


@pytest.mark.torch_ranks
@pytest.mark.horovod
def test_ctrl_c_while_jobs_go_on_blames_nobody(
    standing_nodes: EmbeddedCluster, home: Path
) -> None:
    pressed: list[bool] = []

    def start(session: Session, job: EngineJob) -> EngineAnswer:
        """Run the job, and press Ctrl-C as soon as it goes on."""

        def given_up() -> bool:
            if not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)
            return job.given_up()

        return short_run(session, replace(job, given_up=given_up))

    with Session(Config(), standing_nodes.cluster) as session:
        request = Check(only=("coll.", "horovod."), nproc=1)
        *_, ended = run_check(request, session, start=start)
    report = ended.report
    assert (report.cancelled, report.outcome) == (True, "incomplete")
    assert [each for each in report.findings if each.severity is Severity.FAIL] == []
    assert {cells["horovod.init"] for cells in report.cells.values()} == {"could_not_run"}


LAUNCHES_AWAY = (
    (SECOND, {"": 1, "train.py": 3, "-- mpirun -np 1 python3 train.py": 1, "--nnodes 1:2 train.py": 1}),
    (BOTH, {"": 3, "train.py": 3}),
)  # fmt: skip
"""The nodes without power, and the exit codes of checks there, with a launch or without."""


@pytest.mark.parametrize(("away", "codes"), LAUNCHES_AWAY, ids=["one", "both"])
def test_a_host_that_a_launch_needs_and_that_is_away_exits_3(
    away: tuple[str, ...], codes: dict[str, int], cwd: Path, home: Path
) -> None:
    (cwd / "train.py").write_text("print('trained')\n")
    found = {}
    with nodes_with_agent(cwd / "e") as nodes:
        for name in away:
            nodes.power_cut(name)
        for words in codes:
            out = io.StringIO()
            with Session(Config(), nodes.cluster) as session:
                request = parse_line(f"check --level quick --only os {words}")
                streams = Streams(out, io.StringIO())
                found[words] = perform_headless(request, streams, lend(session))
            assert "incomplete: " in out.getvalue()
    assert found == codes


class Signalled(Streams):
    """Streams at which a signal comes as soon as the ways between the hosts are tried."""

    def __init__(self, out: TextIO, err: TextIO, number: signal.Signals) -> None:
        super().__init__(out, err)
        self.number = number

    def status(
        self, line: str, *, old_after: float | None = None, seconds: float | None = None
    ) -> None:
        if "net.reach_tcp" in line:
            signal.raise_signal(self.number)


def test_a_check_tells_how_far_it_is_and_what_its_time_went_into(
    standing_nodes: EmbeddedCluster, home: Path
) -> None:
    both = standing_nodes.cluster
    with Session(Config(), replace(both, hosts=both.hosts[:1])) as session:
        *events, ended = run_check(Check(level=Level.QUICK, only=("os", "net")), session)
    told = [each for each in events if isinstance(each, CheckProgress) and each.total]
    assert isinstance(ended, CheckEnded)
    assert told[0].judged == 0
    assert 0 < told[-1].judged < told[-1].total <= len(ended.report.cells["node1"])
    assert told[-1].seconds > 0
    assert {(each.answered, each.hosts) for each in told if each.host} == {((1,), 1)}
    assert ended.report.stage_seconds.keys() == {each.check for each in told}
    stages = ended.report.stage_seconds.values()  # each rounded to a millisecond
    assert 0 < sum(stages) <= ended.report.seconds + 0.001 * len(stages)
    judged = {each.check: each.outcomes for each in events if isinstance(each, CheckJudged)}
    cells = ended.report.cells["node1"]
    assert judged == {check: {"node1": outcome} for check, outcome in cells.items()}


def test_the_seconds_of_a_check_are_those_since_it_was_asked_for(
    standing_nodes: EmbeddedCluster, home: Path
) -> None:
    out = io.StringIO()
    with Session(Config(), standing_nodes.cluster) as session:
        perform_headless(
            Check(level=Level.QUICK, only=("os.user",), json=True),
            Streams(out, io.StringIO()),
            lend(session),
            began=time.monotonic() - 1000.0,
        )
    assert json.loads(out.getvalue())["seconds"] > 1000.0
