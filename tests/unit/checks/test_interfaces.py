"""Which interface each library takes: its own rules, case by case. NCCL's are from its source alone."""

from collections.abc import Mapping

import pytest

from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.network import EnvFacts, NetAddress, NetFacts, NetInterface
from distconsole.checks.facts.node import MpiFacts, OsFacts, SshFacts
from distconsole.checks.gather.addresses import HostEndpoint
from distconsole.checks.interfaces import gloo, horovod, nccl, open_mpi
from distconsole.checks.interfaces.node import Fault, Node, Ways
from distconsole.checks.interfaces.panel import choices_of, reports, run_variables
from distconsole.launch import place as launch
from distconsole.launch.choose import Choice
from distconsole.launch.launchers.horovod import plan_nodes as plan_horovod
from distconsole.launch.launchers.mpi import plan_nodes as plan_mpi
from distconsole.launch.plan import NodeFacts, NodePlan, Plan, network_env
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import LauncherName, Run
from distconsole.text.choices import panel_lines


def node(
    *listed: str,
    named: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    name: str = "a",
    down: tuple[str, ...] = (),
    infiniband: tuple[str, ...] = (),
) -> Node:
    """A host of ``"eth0 10.0.0.1/24"``; those in ``down`` have no carrier."""
    entries = [line.split() for line in listed]
    addresses = tuple(
        NetAddress(
            iface=iface,
            address=address.partition("/")[0],
            prefix=int(address.partition("/")[2]),
            family=6 if ":" in address else 4,
            loopback=iface == "lo",
        )
        for iface, address in entries
    )
    states = {iface: NetInterface(state="down" if iface in down else "up") for iface, _ in entries}
    return Node(name, addresses, states, {}, variables or {}, parameters or {}, named, infiniband)


LO = "lo 127.0.0.1/8"
ETH0, ETH1 = "eth0 10.0.0.1/24", "eth1 10.1.0.1/24"
IB0, DOCKER = "ib0 10.2.0.1/24", "docker0 172.17.0.1/16"
VIRBR, BRIDGE = "virbr0 192.168.122.1/24", "br-12ab 172.18.0.1/16"
ETH0_V6 = "eth0 fd00::1/64"


@pytest.mark.parametrize(
    ("listed", "variables", "taken"),
    [
        ((LO, ETH0, ETH1), {}, ["eth0", "eth1"]),
        ((LO, ETH0, IB0), {}, ["ib0"]),
        ((LO, DOCKER, ETH0, VIRBR), {}, ["eth0"]),
        ((LO, BRIDGE, ETH0), {}, ["br-12ab", "eth0"]),
        ((LO, DOCKER), {}, ["docker0"]),
        ((LO,), {}, ["lo"]),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "eth1"}, ["eth1"]),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "eth"}, ["eth0", "eth1"]),
        ((LO, ETH0, "eth01 10.3.0.1/24"), {"NCCL_SOCKET_IFNAME": "=eth0"}, ["eth0"]),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "^eth0,lo"}, ["eth1"]),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "^=eth0,lo"}, ["eth1"]),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_IFNAME": "ens5"}, [""]),
    ],
)
def test_nccl_takes(listed: tuple[str, ...], variables: dict[str, str], taken: list[str]) -> None:
    assert [p.interface for p in nccl.choose(node(*listed, variables=variables))] == taken


def test_nccl_takes_the_first_family_of_an_interface_unless_told() -> None:
    both = (LO, ETH0, ETH0_V6)
    assert nccl.choose(node(*both))[0].address == "10.0.0.1"
    six = node(*both, variables={"NCCL_SOCKET_FAMILY": "AF_INET6"})
    assert [p.address for p in nccl.choose(six)] == ["fd00::1"]


def test_nccl_leaves_out_what_has_no_carrier() -> None:
    assert [p.interface for p in nccl.choose(node(ETH0, ETH1, down=("eth0",)))] == ["eth1"]


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({}, "mlx5_0,mlx5_1"),
        ({"NCCL_IB_HCA": "=mlx5_1"}, "mlx5_1"),
        ({"NCCL_IB_HCA": "^mlx5_1"}, "mlx5_0"),
        ({"NCCL_IB_DISABLE": "1"}, ""),
        ({"NCCL_NET": "Socket"}, ""),
    ],
)
def test_nccl_moves_data_by_infiniband(variables: dict[str, str], devices: str) -> None:
    host = node(ETH0, variables=variables, infiniband=("mlx5_0", "mlx5_1"))
    assert nccl.data(host) == devices


@pytest.mark.parametrize(
    ("named", "variables", "taken"),
    [
        (("10.1.0.1",), {}, [("eth1", "10.1.0.1")]),
        (("127.0.1.1",), {}, [("lo", "127.0.1.1")]),
        ((), {}, [("lo", "127.0.0.1")]),
        (("127.0.1.1",), {"GLOO_SOCKET_IFNAME": "eth0"}, [("eth0", "10.0.0.1")]),
        (("127.0.1.1",), {"GLOO_SOCKET_IFNAME": "^lo"}, [("", "")]),
        ((), {"GLOO_SOCKET_IFNAME": "eth0,eth1"}, [("eth0", "10.0.0.1"), ("eth1", "10.1.0.1")]),
    ],
)
def test_gloo_takes(
    named: tuple[str, ...], variables: dict[str, str], taken: list[tuple[str, str]]
) -> None:
    host = node(LO, ETH0, ETH1, ETH0_V6, named=named, variables=variables)
    assert [(p.interface, p.address) for p in gloo.choose(host)] == taken


@pytest.mark.parametrize(
    ("variables", "parameters", "taken"),
    [
        ({}, {}, ["eth0", "eth1", "docker0"]),
        ({"OMPI_MCA_btl_tcp_if_include": "eth1"}, {}, ["eth1"]),
        ({"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/16"}, {}, ["eth0"]),
        ({}, {"btl_tcp_if_include": "eth1"}, ["eth1"]),
        ({"OMPI_MCA_btl_tcp_if_include": "eth0"}, {"btl_tcp_if_include": "eth1"}, ["eth0"]),
        ({"OMPI_MCA_btl_tcp_if_exclude": "docker0,lo"}, {}, ["eth0", "eth1"]),
        ({"OMPI_MCA_btl_tcp_if_include": "ens5"}, {}, [""]),
    ],
)
def test_open_mpi_takes(
    variables: dict[str, str], parameters: dict[str, str], taken: list[str]
) -> None:
    host = node(LO, ETH0, ETH1, DOCKER, ETH0_V6, variables=variables, parameters=parameters)
    assert [p.interface for p in open_mpi.choose(host)] == taken


def paired(one: Node, other: Node) -> set[tuple[str, str]]:
    here, there = open_mpi.side_of(one), open_mpi.side_of(other)
    matched = open_mpi.pairs(here, there)
    return {(here.picks[x].interface, there.picks[y].interface) for x, y in matched}


def test_open_mpi_pairs_networks_and_then_whatever_is_left() -> None:
    here = node(ETH0, ETH1)
    there = node("eth0 10.0.0.2/24", "ib0 10.9.0.2/24", name="b")
    assert paired(here, there) == {("eth0", "eth0"), ("eth1", "ib0")}
    assert paired(here, node("eth0 10.1.0.2/24", name="b")) == {("eth1", "eth0")}
    public = node("eth0 192.0.2.7/24", name="b")
    assert paired(node(ETH0), public) == set()


def test_horovods_process_sets_listen_at_the_hosts_own_name() -> None:
    host = node(ETH0, ETH1, named=("10.1.0.1",), variables={"HOROVOD_GLOO_IFACE": "eth0"})
    assert [p.interface for p in horovod.choose(host)] == ["eth0", "eth1"]


def test_horovodrun_takes_names_that_all_have_and_by_which_each_reaches_the_next() -> None:
    hosts = [
        node("eth0 10.0.0.1/24", "ens5 10.1.0.1/24", DOCKER, name="a"),
        node("eth0 10.0.0.2/24", "ens6 10.1.0.2/24", DOCKER, name="b"),
    ]
    ways = Ways({host.name: host for host in hosts}, {"a": 1, "b": 2}, {})

    def reaches(source: Node, target: Node, address: str) -> bool:
        return ways.way(source.name, target.name, address).open is not False

    found = horovod.choose_by_probe(hosts, reaches)
    assert [found[name][0].interface for name in "ab"] == ["eth0", "eth0"]
    only = horovod.choose_by_probe([node(ETH0), node("ens5 10.0.0.2/24", name="b")], reaches)
    assert [only[name][0].address for name in "ab"] == ["", ""]


def test_a_way_is_what_was_tried_before_what_subnets_promise() -> None:
    one = node(ETH0, DOCKER)
    other = node("eth0 10.0.0.2/24", "eth1 10.5.0.2/24", DOCKER, name="b", down=("eth1",))
    ways = Ways({"a": one, "b": other}, {"a": 1, "b": 2}, {})
    assert ways.way("a", "b", "10.0.0.2").open
    assert ways.way("a", "b", "127.0.1.1").fault is Fault.LOOPBACK
    assert ways.way("a", "b", "172.17.0.1").fault is Fault.TWICE
    assert ways.way("a", "b", "").fault is Fault.NONE_FOUND
    assert ways.way("a", "b", "10.5.0.2").why == "eth1 of b has no carrier"
    assert ways.way("b", "a", "10.7.0.1").open is None
    shut = Ways(ways.nodes, ways.machine_of, {("a", "b", "10.0.0.2"): "timeout"})
    assert shut.way("a", "b", "10.0.0.2").fault is Fault.SILENT
    assert Ways(ways.nodes, {"a": 1, "b": 1}, {}).way("a", "b", "127.0.0.1").open


def test_what_run_sets_is_what_the_launchers_set() -> None:
    interfaces = (Interface("eth0", "10.0.0.1", 24),)
    placed = NodePlan(
        Host(HostName("a")), NodeFacts("/p", interfaces=interfaces), launch.Endpoint("10.0.0.1", "eth0"),
        0, 0, 1, 1,
    )  # fmt: skip
    job = Plan(
        Run("train.py"), Choice(LauncherName.TORCH, ""), ScriptTraits(), (placed,), "train.py"
    )
    told = run_variables(
        {"a": HostEndpoint("10.0.0.1", "eth0", "10.0.0.0/24")}, {"a": node(LO, ETH0)}
    )["a"]
    planned = {
        **network_env(placed), **plan_horovod(job)[0].env, **plan_mpi(job)[0].env
    }  # fmt: skip
    assert {name: planned.get(name) for name in told} == told


def test_what_mpich_takes_is_said_to_be_unknown_and_never_red() -> None:
    hosts = tuple(HostEvidence(Host(HostName(name))) for name in ("a", "b"))
    for number, host in enumerate(hosts, 1):
        listed = node(LO, f"eth0 10.0.0.{number}/24")
        host.add_facts(NetFacts(addresses=listed.addresses, interfaces=dict(listed.interfaces)))
        host.add_facts(SshFacts(hostname=host.name, boot_id=host.name))
        host.add_facts(OsFacts(hostname=host.name))
        host.add_facts(EnvFacts(variables={"FI_PROVIDER": "tcp"}))
        host.add_facts(MpiFacts(present=True, family="MPICH" if number == 1 else "Open MPI"))
    made = reports(choices_of(View(hosts, ("a", "b"))))

    unknown = [each for each in made if each.engine == "MPICH"]
    assert {(each.host, each.start, each.meets) for each in unknown} == {
        ("a", "run", None),
        ("a", "hand", None),
    }
    lines = panel_lines(made)
    assert next(line.split() for line in lines if "MPICH" in line) == ["MPICH", "?", "-"]
    assert "? MPICH: not foretold" in lines[-1]
    assert "FI_PROVIDER=tcp" in lines[-1]
