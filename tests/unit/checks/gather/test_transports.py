"""What Open MPI and UCX say of their ways, by lines of Open MPI 4.1.4 and UCX 1.13 and 1.18 on two hosts.
What the ranks of a check's short jobs get to do.
"""

import random
from types import SimpleNamespace
from typing import cast

import pytest

from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.jobs import CollFacts, MpiCollFacts, RankReport, Took
from distconsole.checks.facts.network import NetAddress, NetFacts
from distconsole.checks.facts.node import Facts, ImportFacts, SshFacts, TorchFacts, convert
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.engine_jobs import TORCH, EngineAnswer, EngineJob, run_engine
from distconsole.checks.gather.local_facts import serving
from distconsole.checks.gather.transports import read_mpi_words, split_mpi_words, ways_taken
from distconsole.config.schema import Config
from distconsole.errors import PlanError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

TCP = """\
[n1:126] mca: base: components_register: found loaded component tcp
[n1:126] select: initializing btl component tcp
[n1:126] btl:tcp: using ipv4 interface eth0
[n1:126] selected ob1 best priority 20
[n1:126] mca: bml: Using self btl for send to [[24002,1],0] on node n1
[n1:126] btl:tcp: path from 10.0.0.1 to 10.0.0.2: IPV4 PRIVATE SAME NETWORK
[n1:126] mca: bml: Using tcp btl for send to [[24002,1],1] on node n2
[n1:126] mca: bml: Using vader btl for send to [[24002,1],2] on node n1
""".splitlines()
UCX = """\
[n1:131] ../../ompi/mca/pml/ucx/pml_ucx.c:197 mca_pml_ucx_open: UCX version 1.13.1
[n1:131] selected ucx best priority 51
[1795494341.243797] [n1:131:0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(self/memory0 cma/memory)
[1795494341.243797] [n1:131:0]      ucp_worker.c:1855 UCX  INFO    n1 inter-node cfg#2 tag(rc_mlx5/mlx5_0:1) rma(rc_mlx5/mlx5_0:1)
""".splitlines()
ERRORS = ["[n1:126] PML ucx cannot be selected", "*** An error occurred in MPI_Init", "Traceback"]


def test_errors_are_kept_apart_from_words() -> None:
    assert split_mpi_words([*TCP, *ERRORS, *UCX]) == ([*TCP, *UCX], ERRORS)


def test_open_mpi_names_the_way_to_each_rank() -> None:
    took = convert(Took, read_mpi_words(TCP, 0))
    assert (took.engine, took.network) == ("Open MPI", "ob1")
    assert took.pairs == ((0, 1, "tcp", 0), (0, 2, "vader", 0))
    assert took.sockets == (("10.0.0.1", "10.0.0.2"),)


def test_ucx_names_its_lanes() -> None:
    took = convert(Took, read_mpi_words(UCX, 0))
    assert (took.engine, took.network) == ("UCX", "ucx")
    assert took.devices == ("self/memory0", "cma/memory", "rc_mlx5/mlx5_0:1")


def test_other_lines_say_nothing_and_damage_does_no_harm() -> None:
    assert read_mpi_words(ERRORS, 0) is None
    chance, text = random.Random(16), "\n".join([*TCP, *UCX])
    for _ in range(500):
        at = chance.randrange(len(text))
        damaged = (text[:at] + chance.choice(["[", "9" * 30, "\x1b", "("]) + text[at + 9 :]).split(
            "\n"
        )
        took = read_mpi_words(split_mpi_words(damaged)[0], 0)
        assert took is None or convert(Took, took).engine in ("Open MPI", "UCX")


def view(kind: type[CollFacts], *said: object) -> View:
    """Return two hosts, a rank on each, and what those said of their ways."""
    hosts = []
    for rank, (name, took) in enumerate(zip("ab", said, strict=True)):
        host = HostEvidence(Host(HostName(name)))
        address = NetAddress(iface="eth0", address=f"10.0.0.{rank + 1}")
        host.add_facts(NetFacts(addresses=(address,)))
        host.add_facts(kind(ranks=(RankReport(rank=rank, said=({"took": took},)),)))
        hosts.append(host)
    return View(tuple(hosts), (HostName("a"), HostName("b")))


def test_ways_are_told_by_pairs_of_hosts() -> None:
    nccl = {"engine": "NCCL", "devices": ["mlx5_0:1/IB"], "pairs": [[0, 1, "NET/IB/GDRDMA", 4]]}
    (way,) = ways_taken(view(CollFacts, nccl, {"engine": "NCCL"}))
    assert (way.engine, way.source, way.target, way.via) == ("NCCL", "a", "b", ("NET/IB/GDRDMA",))
    assert (way.channels, way.devices) == (4, ("mlx5_0:1/IB",))
    gloo = [
        {"engine": "Gloo", "sockets": [[f"10.0.0.{a}", f"10.0.0.{b}"]]}
        for a, b in ((1, 2), (2, 1))
    ]
    ways = ways_taken(view(CollFacts, *gloo))
    assert [(w.engine, w.source, w.target, w.devices) for w in ways] == [
        ("Gloo", "a", "b", ("eth0",)),
        ("Gloo", "b", "a", ("eth0",)),
    ]


def test_what_has_another_form_is_passed_over() -> None:
    assert ways_taken(view(MpiCollFacts, {"engine": 7}, "nothing")) == ()


NEEDED: frozenset[type[Facts]] = frozenset({CollFacts, ImportFacts})


@pytest.mark.parametrize(("level", "forked"), [(Level.STANDARD, True), (Level.FULL, False)])
def test_ranks_are_forked_only_where_a_process_with_torch_stays(
    level: Level, forked: bool
) -> None:
    host, jobs = Host(HostName("a"), slots=1), []

    def start(_session: Session, job: EngineJob) -> EngineAnswer:
        jobs.append(job)
        raise PlanError("it is not started here")

    address = NetAddress(iface="eth0", address="10.0.0.1", prefix=24)
    with Session(Config(), Cluster((host,))) as session:
        context = CheckContext(Check(level=level), session, NEEDED)
        context.links[host.name] = cast("NodeLink", SimpleNamespace(connected=True))
        for facts in (
            SshFacts(reached_at="10.0.0.1"),
            NetFacts(addresses=(address,)),
            TorchFacts(present=True),
        ):
            context.hosts[host.name].add_facts(facts)
        assert list(run_engine(context, TORCH, start, None, 1)) == ["a"]
    assert [("preloaded" in job.work, bool(serving(context))) for job in jobs] == [
        (forked, forked)
    ]


def test_a_process_with_torch_stays_for_no_negative_time() -> None:
    with Session(Config(), Cluster((Host(HostName("a")),))) as session:
        request = Check(budget_seconds=1.0)
        context = CheckContext(request, session, NEEDED)
        context.began -= 5.0
    assert serving(context)["serve_seconds"] == 0.0
