"""What the panel of choices foretells, against what Gloo, Open MPI and Horovod really do on two hosts.

NCCL is not here: it needs a GPU. Its rules are tested from its source alone (unit/checks).
"""

import ast
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.network import EnvFacts, NetFacts
from distconsole.checks.facts.node import OsFacts, convert
from distconsole.checks.interfaces import gloo, open_mpi
from distconsole.checks.interfaces.node import Node, nodes_of
from distconsole.model.cluster import Host as Asked
from distconsole.model.names import HostName
from distconsole.model.reports import CheckReport, ChoiceReport
from distconsole.model.requests import Check, Level, Where
from distconsole.session import open_session
from testbed import Testbed, missing

pytestmark = pytest.mark.testbed

ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

GLOO = """
import os, psutil, sys
import torch.distributed as dist
def listening():
    return {c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}
for name in sys.argv[1:]:
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    if name != "-":
        os.environ["GLOO_SOCKET_IFNAME"] = name
    before = listening()
    try:
        dist.init_process_group("gloo", init_method=f"file:///tmp/meet{name}", rank=0, world_size=1)
    except RuntimeError:
        print(name, "-")
        continue
    print(name, *sorted(where.ip for where in listening() - before))
    dist.destroy_process_group()
"""

MPI = """
import ctypes, os, psutil
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
world = handle("ompi_mpi_comm_world")
count = 1 << 20
mine, sums = (ctypes.c_int * count)(), (ctypes.c_int * count)()
mpi.MPI_Allreduce(mine, sums, count, handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), world)
mpi.MPI_Barrier(world)
found = {(c.laddr.ip, c.raddr.ip) for c in psutil.Process().net_connections("tcp") if c.raddr}
# Not those within the host: a rank of Open MPI 5 is connected to its daemon by the host's own address.
between = sorted(p for p in found if not p[0].startswith("127.") and p[0] != p[1])
print((os.uname().nodename, between), flush=True)
mpi.MPI_Barrier(world)
mpi.MPI_Finalize()
"""

HOROVOD = """
import os, psutil, torch
import horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(4), name="a")
found = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "ESTABLISHED"}
print("told", (os.uname().nodename, os.environ["HOROVOD_GLOO_IFACE"], sorted(found)), flush=True)
hvd.allreduce(torch.ones(4), name="b")
"""


@pytest.fixture(scope="module")
def two(lean: dict[str, str]) -> Iterator[Testbed]:
    """Two hosts that reach each other by ssh, as mpirun and horovodrun want it."""
    if reason := missing():
        pytest.skip(reason)
    with Testbed(hosts=2, prefix="pick", node_ssh=True, environment=lean) as bed:
        for host in bed.hosts:
            for name, text in (("gloo", GLOO), ("mpi", MPI), ("ranks", HOROVOD)):
                host.path(f"/tmp/{name}.py").write_text(text)
        yield bed


@pytest.fixture
def bed(two: Testbed, nothing_left: None) -> Iterator[Testbed]:
    yield two
    for host in two.hosts:
        host.heal()


def check(bed: Testbed) -> CheckReport:
    where = Where(hosts=bed.names, ssh_config=str(bed.ssh_config))
    request = Check(where=where, level=Level.QUICK, only=("net.choices",))
    with open_session(where) as session:
        *_, ended = run_check(request, session)
    return ended.report


def nodes(report: CheckReport) -> dict[str, Node]:
    """The hosts as the prediction sees them."""
    hosts = []
    for name, said in report.hosts.items():
        evidence = HostEvidence(Asked(HostName(name)))
        for kind, group in ((NetFacts, "net"), (OsFacts, "os"), (EnvFacts, "env")):
            evidence.add_facts(convert(kind, said.facts[group]))
        hosts.append(evidence)
    return nodes_of(View(tuple(hosts), tuple(host.name for host in hosts)))


def foretold(report: CheckReport, engine: str, start: str = "hand") -> list[ChoiceReport]:
    return [c for c in report.choices if c.engine == engine and c.start == start]


def name_on_train(bed: Testbed, position: int) -> None:
    """Let a host's own name mean its address on the second network."""
    host = bed.hosts[position]
    lines = host.right_etc_hosts.read_text().splitlines()
    renamed = [line.replace(f" {host.name}-train", f" {host.name}") for line in lines]
    kept = [line for line in renamed if line.split()[0] != host.address]
    host.wrong_etc_hosts("\n".join([*kept, ""]))


def test_gloo_listens_where_it_was_foretold(bed: Testbed) -> None:
    first, second = bed.hosts
    first.wrong_etc_hosts()
    name_on_train(bed, 1)
    variants = ("-", "eth0", "eth1", "lo", "ens9")
    report = check(bed)
    running = [
        host.popen(["python3", "/tmp/gloo.py", *variants], stdout=subprocess.PIPE, text=True)
        for host in (first, second)
    ]
    for (name, node), process in zip(nodes(report).items(), running, strict=True):
        out, _ = process.communicate(timeout=60)
        real = dict(line.split(maxsplit=1) for line in out.splitlines())
        expected = {}
        for variant in variants:
            told = {} if variant == "-" else {gloo.VARIABLE: variant}
            (pick,) = gloo.choose(node.with_variables(told))
            expected[variant] = pick.address or "-"
        assert real == expected, name
        (shown,) = [c for c in foretold(report, "Gloo") if c.host == name]
        assert shown.address == real["-"]
    # The end with the higher address connects, and that is the one that nobody could reach.
    assert foretold(report, "Gloo")[0].meets is not False


@pytest.mark.mpi
def test_open_mpis_own_file_of_parameters_is_read(bed: Testbed) -> None:
    for host in bed.hosts:
        file = host.path("/run/home/.openmpi/mca-params.conf")
        file.parent.mkdir()
        file.write_text("# what we want\nbtl = tcp,self\nbtl_tcp_if_include = eth1\n")
    report = check(bed)
    real = mpirun(bed, {})
    for host in bed.hosts:
        shutil.rmtree(host.path("/run/home/.openmpi"))
    assert [c.interface for c in foretold(report, "Open MPI")] == ["eth1", "eth1"]
    one, other = (c.address for c in foretold(report, "Open MPI"))
    assert real == {"pick1": [(one, other)], "pick2": [(other, one)]}


@pytest.mark.mpi
@pytest.mark.parametrize(("variable", "value"), [("", ""), ("btl_tcp_if_exclude", "lo,eth1")])
def test_open_mpis_ranks_connect_by_the_interfaces_that_were_foretold(
    bed: Testbed, variable: str, value: str
) -> None:
    told = {f"OMPI_MCA_{variable}": value} if variable else {}
    one, other = (node.with_variables(told) for node in nodes(check(bed)).values())
    here, there = open_mpi.side_of(one), open_mpi.side_of(other)
    matched = open_mpi.pairs(here, there)
    expected = {(here.picks[x].address, there.picks[y].address) for x, y in matched}
    assert expected
    real = mpirun(bed, told)
    assert {name: set(pairs) for name, pairs in real.items()} == {
        one.name: expected,
        other.name: {(b, a) for a, b in expected},
    }


def mpirun(bed: Testbed, variables: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return by host the connections of its rank."""
    exported = [word for name in variables for word in ("-x", name)]
    words = ["timeout", "-k1", "30", "mpirun", "-np", "2", "--host", bed.names]
    words += ["--mca", "btl", "tcp,self", *exported, "python3", "/tmp/mpi.py"]
    done = bed.hosts[0].exec(shlex.join(words), check=False, timeout=50, env={**ROOT, **variables})
    return dict(ast.literal_eval(line) for line in done.stdout.splitlines() if line[:2] == "('")


@pytest.mark.horovod
def test_horovodrun_takes_the_common_interface_and_its_process_sets_the_own_name(
    bed: Testbed,
) -> None:
    second = bed.hosts[1]
    second.rename_interface("train", "ens5")
    try:
        name_on_train(bed, 0)
        name_on_train(bed, 1)
        report = check(bed)
        line = "horovodrun --gloo --disable-cache --verbose -np 2 -H pick1:1,pick2:1"
        done = bed.hosts[0].exec(f"{line} python3 /tmp/ranks.py", check=False, timeout=90)
    finally:
        second.rename_back("train", "ens5")
    taken = {c.interface for c in foretold(report, "Horovod") if "own name" not in c.how}
    assert f"Common interface found: {' '.join(taken)}" in done.stdout, done.stderr
    said = [line.partition("told ")[2] for line in done.stdout.splitlines() if "told " in line]
    real = {name: (nic, set(own)) for name, nic, own in map(ast.literal_eval, said)}
    for host in bed.hosts:
        mine = [c for c in foretold(report, "Horovod") if c.host == host.name]
        assert real[host.name][0] == mine[0].interface == "eth0"
        assert {c.address for c in mine} <= real[host.name][1]
