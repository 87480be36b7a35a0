"""Cures as data and as words, proofs, and what of them is written into the configuration."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from distconsole.checks.facts.jobs import RankReport
from distconsole.checks.fixes import proofs, trying
from distconsole.checks.fixes.cures import add_to_hint, attach_proof, lines_to_type
from distconsole.checks.fixes.proofs import judge_ranks
from distconsole.checks.fixes.trying import TrialResult, change_for, conclude, run_both
from distconsole.checks.gather.context import CheckContext
from distconsole.config.load import read_config
from distconsole.config.schema import Config
from distconsole.errors import PlanError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.findings import Cure, Finding, HostCure, Proof, Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Check
from distconsole.operations.check import profile_path, write_profile
from distconsole.session import Session

HOSTS = (Host(HostName("a")), Host(HostName("b")))
CURED = Proof(ran="r", before="refused", after="exact sums", cured=True, seconds=1.0)
FAILED = Proof(ran="r", before="refused", after="refused, too", cured=False, seconds=1.0)
NEVER = Proof(ran="r", before="could not be made to fail: ok", after="", cured=False, seconds=1.0)


def finding(check: str, cure: Cure | None, proof: Proof | None = None, hint: str = "") -> Finding:
    return Finding(
        check=check,
        severity=Severity.FAIL,
        summary="s",
        hosts=("a",),
        hint=hint,
        cure=cure,
        proof=proof,
    )


def on(**changes: HostCure) -> Cure:
    return Cure(hosts=changes)


def test_a_cure_is_typed_in_lines_that_a_shell_takes() -> None:
    nic = HostCure(env={"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"})
    cure = Cure(
        env={"A": "x y"},
        unset=("B",),
        mca={"btl_tcp_if_include": "10.0.0.0/24"},
        port=29501,
        hosts={"a": nic, "b": nic, "c": HostCure(setup="ulimit -n 5")},
    )
    assert lines_to_type(cure) == [
        "mpirun --mca btl_tcp_if_include 10.0.0.0/24",
        "export A='x y'",
        "unset B",
        "MASTER_PORT=29501  # torchrun: --master_port 29501",
        "on a, b: export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME='=eth0'",
        "on c: ulimit -n 5",
    ]


def test_a_cure_that_did_not_help_is_no_hint_any_more() -> None:
    cure = Cure(env={"A": "1"}, by_run="sets it")
    hint = add_to_hint("mend the file", cure)
    assert hint == "mend the file\n`distconsole run` sets it\nby hand: export A=1"
    found = finding("x.y", cure, hint=hint)
    assert attach_proof(found, CURED).hint == hint
    assert attach_proof(found, NEVER).hint == hint
    said = attach_proof(found, FAILED).hint
    assert said.splitlines() == [
        "mend the file",
        "`distconsole run` sets it",
        "tried, and it was no cure: export A=1",
    ]


def test_what_does_not_fail_without_the_cure_is_not_claimed() -> None:
    well = TrialResult(True, "ok")
    tried = conclude("r", well, well, HOSTS, 3.0)
    assert tried.proof == Proof(
        ran="r", before="could not be made to fail: ok", after="", cured=False, seconds=3.0
    )
    assert conclude("r", TrialResult(False, "x", able=False), well, HOSTS, 3.0) is None


def test_all_cures_of_a_check_are_tried_together() -> None:
    first = Cure(env={"A": "1"}, hosts={"a": HostCure(nic="eth1", setup="x")})
    second = Cure(unset=("B",), hosts={"a": HostCure(env={"C": "2"}, setup="y")})
    assert change_for([first, second], "a") == HostCure(
        env={"A": "1", "C": "2"}, unset=("B",), nic="eth1", setup="x\ny"
    )
    assert change_for([first], "b") == HostCure(env={"A": "1"})


def test_four_checks_are_tried_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    names = [f"x.{number}" for number in range(6)]
    prover = lambda _, found: tried.append(found[0].check)  # noqa: E731
    monkeypatch.setattr(proofs, "PROVERS", dict.fromkeys(names, prover))
    findings = [finding(name, Cure(env={"A": "1"})) for name in names]
    findings[:5] = [structs.replace(each, severity=Severity.WARN) for each in findings[:5]]
    with Session(Config(), Cluster(HOSTS)) as session:
        list(proofs.prove(CheckContext(Check(), session, frozenset()), findings, None))
    assert tried == ["x.5", "x.0", "x.1", "x.2"]


def test_a_trial_that_hangs_ends_soon_after_the_other_has_done_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trying, "PATIENCE_SECONDS", 0.0)

    def hangs(enough: threading.Event) -> TrialResult:
        enough.wait()
        return TrialResult(False, "ended")

    assert run_both(hangs, lambda _: TrialResult(True, "ok")) == (
        TrialResult(False, "ended"),
        TrialResult(True, "ok"),
    )


def test_who_interrupts_waits_until_both_trials_have_cleared_away() -> None:
    ended: list[str] = []

    def trial(name: str, enough: threading.Event) -> TrialResult:
        if name == "after":
            os.kill(os.getpid(), signal.SIGINT)
        enough.wait()
        ended.append(name)
        return TrialResult(False, name)

    with pytest.raises(KeyboardInterrupt):
        run_both(partial(trial, "before"), partial(trial, "after"))
    assert sorted(ended) == ["after", "before"]


def test_a_trial_that_cannot_be_started_says_nothing() -> None:
    def refused(_: threading.Event) -> TrialResult:
        raise PlanError("no mpirun")

    before, after = run_both(refused, refused)
    assert (before.able, after.words) == (False, "no mpirun")
    with pytest.raises(KeyError):
        run_both(lambda _: TrialResult(True, ""), lambda _: {}["a"])


def rank(number: int, *stages: str, code: int | None = 0, error: str = "") -> RankReport:
    said = [{"stage": stage} for stage in stages]
    joined = [{"group": {"rank": number, "world_size": 2}}] if "joined the group" in stages else []
    return RankReport(
        rank=number, exit_code=code, seconds=1.0, said=(*said, *joined), error=(error,)
    )


WELL = ("started", "imported torch", "joined the group", "done")


@pytest.mark.parametrize(
    ("ranks", "ok", "words"),
    [
        ((rank(0, *WELL), rank(1, *WELL)), True, "exact sums at 2 ranks"),
        ((rank(0, *WELL), rank(1, *WELL[:2], code=None)), False, "ranks hang: imported torch"),
        (
            (
                rank(0, *WELL[:2], code=None),
                rank(1, *WELL[:2], code=1, error="RuntimeError: [/w/x/pair.cc:15] refused"),
            ),
            False,
            "rank 1 (b): refused",
        ),
        ((), False, "no end"),
    ],
)
def test_ranks_reports_are_one_line(ranks: tuple[RankReport, ...], ok: bool, words: str) -> None:
    found = dict(zip("ab", ([each] for each in ranks), strict=False))
    shown = judge_ranks({name: tuple(each) for name, each in found.items()}, (), 2, 3.0)
    assert (shown.ok, words in shown.words) == (ok, True), shown


def test_only_what_was_proven_and_run_does_not_do_itself_is_written(tmp_path: Path) -> None:
    path = tmp_path / "distconsole.toml"
    path.write_text('setup = "module load cuda"\n')
    findings = [
        finding("net.mtu", on(a=HostCure(nic="eth1"), b=HostCure(nic="ib0")), CURED),
        finding("lim.nofile", on(a=HostCure(setup="ulimit -n 9000")), CURED),
        finding("tmp.dir", on(a=HostCure(env={"TMPDIR": "/var/tmp"})), CURED),
        finding("env.consistency", Cure(env={"NCCL_DEBUG": "INFO"}), CURED),
        finding("net.x", Cure(mca={"btl_tcp_if_include": "10.0.0.0/24"}), CURED),
        finding("env.syntax", Cure(env={"NO": "1"}, by_run="sets it"), CURED),
        finding("lim.processes", on(a=HostCure(setup="no")), FAILED),
        finding("lim.memlock", on(a=HostCure(setup="no")), NEVER),
        finding("nccl.version", Cure(env={"NO": "1"})),
    ]
    cluster = Cluster(HOSTS)
    report = write_profile(path, findings, read_config(path), cluster)
    config = read_config(path)
    setup = "module load cuda\nulimit -n 9000\nexport TMPDIR=/var/tmp"
    assert (config.hosts["a"].nic, config.hosts["b"].nic) == ("eth1", "ib0")
    assert config.settings("a").setup == setup
    assert config.settings("b").setup == "module load cuda"
    assert config.verbs["run"]["env"] == (
        "NCCL_DEBUG=INFO",
        "OMPI_MCA_btl_tcp_if_include=10.0.0.0/24",
    )
    assert {line.check for line in report.written} == {
        *("net.mtu", "lim.nofile", "env.consistency", "net.x")
    }
    assert report.left == {"env.syntax": "sets it"}
    again = write_profile(path, findings, config, cluster)
    assert again.written == ()
    assert "[hosts.a] nic" in again.there


def test_a_script_in_the_place_of_the_file_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a \.toml file"):
        profile_path("train.py")
    empty = write_profile(tmp_path / "x.toml", [], Config(), Cluster(HOSTS))
    assert empty.written == ()
    assert not (tmp_path / "x.toml").exists()
