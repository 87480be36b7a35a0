"""The frame around the checks: selection, cells, the report, its files and the reference page."""

from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from distconsole.checks.engine.catalogue import (
    CATALOGUE,
    at_level,
    explain_check,
    needs_of,
    select_rules,
)
from distconsole.checks.engine.report import hostfile, junit
from distconsole.checks.engine.results import (
    NotApplicable,
    PredictedChoices,
    RuleResult,
    fail,
    warn,
)
from distconsole.checks.engine.rule import Rule, Verdicts, judge
from distconsole.checks.facts.evidence import UNREACHED, HostEvidence, Outcome, View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import CollFacts, HorovodCollFacts, MpiCollFacts
from distconsole.checks.facts.network import NetFacts, ReachFacts
from distconsole.checks.facts.node import Facts, OsFacts, SshFacts
from distconsole.checks.gather.collective import Sweep, slots_of, work_for
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.timings import bus_factor, message_bytes
from distconsole.config.schema import Config
from distconsole.errors import UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import TextMade
from distconsole.model.names import HostName
from distconsole.model.reports import CheckOutcome, CheckReport, ChoiceReport, HostReport
from distconsole.model.requests import Check, Explain, Level
from distconsole.session import Session
from fakes.blank import blank

GROUPS = {
    *("ssh", "os", "python", "torch", "gpu", "mpi", "horovod", "slurm", "net", "coll", "clock"),
    *("fs", "script", "expect"),
}


def host(name: str, *facts: Facts) -> HostEvidence:
    evidence = HostEvidence(Host(HostName(name)))
    for each in facts:
        evidence.add_facts(each)
    return evidence


def rule_of(*said: RuleResult, needs: tuple[type[Facts], ...] = (OsFacts,)) -> Rule:
    def speak(_view: View) -> Iterator[RuleResult]:
        yield from said

    return Rule("x.y", "os", Level.QUICK, needs, "c", "h", speak)


def cells_of(rule: Rule, *hosts: HostEvidence) -> dict[str, tuple[str, str]]:
    verdicts = Verdicts()
    judge(rule, hosts, View(hosts, tuple(each.name for each in hosts)), verdicts)
    return {
        name: (cells["x.y"].outcome.value, cells["x.y"].why)
        for name, cells in verdicts.cells.items()
    }


def test_what_is_foreseen_is_kept_for_the_report_and_no_finding() -> None:
    choice = ChoiceReport(
        engine="NCCL",
        start="run",
        host="a",
        interface="eth0",
        address="10.0.0.1",
        how="",
        meets=True,
    )
    verdicts, one = Verdicts(), host("a", SshFacts(), OsFacts(hostname="a"))
    judge(rule_of(PredictedChoices((choice,))), [one], View((one,), ("a",)), verdicts)
    assert (verdicts.choices, verdicts.findings) == ((choice,), [])
    assert verdicts.cells["a"]["x.y"].outcome is Outcome.PASS


def test_every_host_has_a_cell_whatever_became_of_it() -> None:
    os_facts = OsFacts(hostname="x")
    late = host("late", SshFacts())
    late.mark_missing(OsFacts, Outcome.TIMED_OUT, "the node did not answer in 2.5 s")
    rule = rule_of(
        fail("bad", ("bad",)), warn("odd", ("odd",)), NotApplicable("no GPU", ("other",))
    )
    assert cells_of(
        rule,
        host("bad", SshFacts(), os_facts),
        host("odd", SshFacts(), os_facts),
        host("other", SshFacts(), os_facts),
        host("good", SshFacts(), os_facts),
        late,
        host("gone", SshFacts(error_kind="connect")),
    ) == {
        "bad": ("fail", "bad"),
        "odd": ("warn", "odd"),
        "other": ("skipped", "no GPU"),
        "good": ("pass", ""),
        "late": ("timed_out", "the node did not answer in 2.5 s"),
        "gone": ("could_not_run", UNREACHED),
    }


def test_a_check_that_found_nothing_out_says_that_it_was_not_looked_at() -> None:
    assert cells_of(rule_of(), host("a", SshFacts()))["a"] == (
        "could_not_run",
        "os was not looked at",
    )


def test_a_finding_without_hosts_is_about_all() -> None:
    cells = cells_of(rule_of(fail("all")), host("a", OsFacts(hostname="a")))
    assert cells == {"a": ("fail", "all")}


def test_ids_are_unique_and_groups_are_those_of_the_command_line() -> None:
    ids = [rule.id for rule in CATALOGUE]
    assert len(ids) == len(set(ids))
    assert {rule.group for rule in CATALOGUE} <= GROUPS


def test_only_and_skip_take_groups_and_prefixes() -> None:
    ids = {rule.id for rule in select_rules(only=("net", "os.host"))}
    assert {"net.reach_tcp", "port.master_free", "os.hostname_unique"} <= ids
    assert "os.kernel" not in ids
    left = {rule.id for rule in select_rules(only=("net",), skip=("net.rtt",))}
    assert "net.rtt" not in left


def test_a_removed_check_may_still_be_skipped_and_is_named_where_it_is_asked_for() -> None:
    assert select_rules(skip=("sys.backlog",)) == CATALOGUE
    with pytest.raises(UsageError, match="no check begins with that") as refused:
        select_rules(only=("sys.backlog",))
    assert refused.value.hint == "this version has removed it"


@pytest.mark.parametrize(
    ("flag", "only", "skip"), [("--only", ("nett",), ()), ("--skip", (), ("x",))]
)
def test_a_word_that_means_no_check_is_a_usage_error(
    flag: str, only: tuple[str, ...], skip: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=flag):
        select_rules(only, skip)


def test_quick_launches_nothing() -> None:
    quick = [rule for rule in CATALOGUE if at_level(rule, Level.QUICK)]
    assert not {CollFacts, HorovodCollFacts, MpiCollFacts} & needs_of(quick)
    assert CollFacts in needs_of(CATALOGUE)


def test_what_a_check_leans_on_is_gathered_too() -> None:
    rules = select_rules(only=("coll",))
    assert {ReachFacts, NetFacts} <= needs_of(rules)


def explain(check: str) -> str:
    (told,) = explain_check(Explain(check))
    assert isinstance(told, TextMade)
    return told.text


def test_explain_tells_a_check_and_names_near_ones() -> None:
    assert "127.0.1.1" in explain("os.hostname_bindable")
    of_group = explain("fs").splitlines()
    assert len(of_group) == sum(rule.group == "fs" for rule in CATALOGUE)
    assert {"fs.writable", "fs.speed"} <= {line.split()[0] for line in of_group}
    with pytest.raises(UsageError) as raised:
        explain("os.hostname_bindabel")
    assert raised.value.hint == "did you mean os.hostname_bindable?"


def test_bus_bandwidth_follows_nccl_tests() -> None:
    assert [bus_factor("all_reduce", ranks) for ranks in (2, 4, 8)] == [1.0, 1.5, 1.75]
    assert [bus_factor("all_gather", ranks) for ranks in (2, 4, 8)] == [0.5, 0.75, 0.875]
    assert bus_factor("broadcast", 8) == 1.0
    assert message_bytes("all_reduce", 1000, 4, 8) == 4000
    assert message_bytes("reduce_scatter", 1000, 4, 8) == 32000


@pytest.mark.parametrize("level", [Level.STANDARD, Level.FULL])
def test_the_job_fits_into_one_argument(level: Level) -> None:
    assert len(str(work_for(level, None, 300.0, 30.0, 2))) < 4000


def test_a_job_without_a_script_has_no_rank_for_a_gpu_that_this_shell_hides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    host = Host(HostName("here"), local=True)
    with Session(Config(), Cluster((host,))) as session:
        context = CheckContext(Check(), session, frozenset())
        context.hosts[host.name].add_facts(GpuFacts(present=True, count=4))
        assert slots_of(context, host) == 2


def test_a_sweep_times_one_type_and_verifies_the_others_at_an_odd_size() -> None:
    sweep = Sweep(ops=("broadcast", "barrier"), sizes=(4, 64), dtypes=("float64", "int64"))
    work = work_for(Level.STANDARD, sweep, 100.0, 30.0, 2)
    assert work["cases"] == [
        {"op": "broadcast", "dtype": "int64", "elements": 1003, "iterations": 0}
    ]
    assert (work["sweep"]["dtype"], work["sweep"]["bytes"]) == ("float64", (4, 64))
    assert work["sweep"]["seconds"] < 100.0


def report() -> CheckReport:
    return blank(
        CheckReport,
        outcome=CheckOutcome.FAILED,
        hosts={
            "a": HostReport(reachable=True, facts={}),
            "b": HostReport(reachable=True, facts={}),
        },
        findings=(fail("bad", ("b",), check="x.y"),),
        seconds=1.0,
        cells={"a": {"x.y": "pass", "x.z": "skipped"}, "b": {"x.y": "fail", "x.z": "warn"}},
        why={"a": {"x.z": 'no "GPU"'}, "b": {"x.y": "bad <thing>", "x.z": "odd"}},
    )


def test_a_hostfile_has_the_hosts_that_passed() -> None:
    cluster = Cluster((Host(HostName("a"), slots=4), Host(HostName("b"))))
    assert hostfile(cluster, ["a"], None) == "a slots=4\n"
    assert hostfile(cluster, ["a", "b"], 2) == "a slots=2\nb slots=2\n"


def test_junit_counts_every_cell() -> None:
    suite = ElementTree.fromstring(junit(report()))  # noqa: S314 - our own text
    assert suite.attrib["tests"] == "5"
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("2", "1")
    failure = suite.find("testcase/failure")
    assert failure.attrib["message"] == "bad <thing>"
    *_, whole = suite
    assert [dict(each.attrib) for each in whole] == [{"message": "failed; bad"}]
