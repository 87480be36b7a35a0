"""The report of a check: what the budget left out, and what was asked for and has no verdict."""

import pytest

from distconsole.checks.engine.report import find_unmade, make_report
from distconsole.checks.engine.rule import PASSED, Verdicts
from distconsole.checks.facts.evidence import ELSEWHERE
from distconsole.checks.facts.jobs import CollFacts, RankReport
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.context import CheckContext
from distconsole.config.schema import Config
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.session import Session

NO_GPU = "no GPU"
REST = "the selection and the configuration leave none"


@pytest.mark.parametrize(
    ("budget", "sweeping", "outcome"),
    [(60.0, False, "incomplete"), (None, False, "healthy"), (60.0, True, "healthy")],
)
def test_collectives_that_the_budget_left_out_make_a_check_incomplete(
    budget: float | None, sweeping: bool, outcome: str
) -> None:
    host = Host(HostName("a"))
    with Session(Config(), Cluster((host,))) as session:
        request = Check(level=Level.FULL, budget_seconds=budget)
        context = CheckContext(request, session, frozenset({CollFacts}))
        evidence = context.hosts[host.name]
        evidence.add_facts(SshFacts())
        said = ({"left_out": [["all_reduce", "float32", 1 << 24]]},)
        evidence.add_facts(CollFacts(ranks=(RankReport(rank=0, said=said),)))
        verdicts = Verdicts()
        verdicts.add_cell(host.name, "coll.correct", PASSED)
        report = make_report(context, verdicts, (), 1.0, sweeping=sweeping)
    assert report.outcome == outcome
    assert report.left_out == ("torch all_reduce of 16777216 float32",)


@pytest.mark.parametrize(
    ("only", "first", "second", "expected"),
    [
        (("gpu",), {"gpu.count": NO_GPU}, {"gpu.count": NO_GPU}, [("ab", " of gpu", NO_GPU)]),
        (("os", "gpu"), {"os.user": "", "gpu.count": NO_GPU}, {"os.user": "", "gpu.count": NO_GPU},
         [("ab", " of gpu", NO_GPU)]),
        (("gpu",), {"gpu.count": ""}, {"gpu.count": NO_GPU}, [("b", "", NO_GPU)]),
        ((), {"gpu.count": NO_GPU}, {}, [("ab", "", NO_GPU)]),
        (("os", "expect"), {"os.user": ""}, {"os.user": ""}, [("ab", " of expect", REST)]),
        ((), {"os.user": "", "gpu.count": NO_GPU}, {"os.user": ""}, []),
        (("port",), {"port.master_free": ""}, {"port.master_free": ELSEWHERE}, []),
        (("port",), {"port.master_free": ELSEWHERE}, {}, [("ab", " of port", ELSEWHERE)]),
    ],
)  # fmt: skip
def test_what_is_not_there_to_be_judged_is_told(
    only: tuple[str, ...],
    first: dict[str, str],
    second: dict[str, str],
    expected: list[tuple[str, str, str]],
) -> None:
    """The reasons for skipped checks by host; an empty one: it passed."""
    why = {"a": first, "b": second}
    cells = {
        host: {check: "skipped" if reason else "pass" for check, reason in checks.items()}
        for host, checks in why.items()
    }
    found = [("".join(each.hosts), each.summary) for each in find_unmade(cells, why, (), only)]
    assert found == [(hosts, f"no check{of} was made: {why}") for hosts, of, why in expected]


def test_more_time_is_advised_only_where_there_was_a_budget() -> None:
    why, cells = {"a": {"fs.speed": "no answer in 8 s"}}, {"a": {"fs.speed": "timed_out"}}
    hints = [
        each.hint for limited in (False, True) for each in find_unmade(cells, why, (), (), limited)
    ]
    without = "leave them out with --skip"
    assert hints == [without, f"give more time with --budget, or {without}"]
